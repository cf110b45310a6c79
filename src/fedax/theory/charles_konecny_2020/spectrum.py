r"""Section 5: eigenvalues of Q_i, of Q_i A_i and of the surrogate loss.

Statements about a client are evaluated for all clients of positive probability at once, so their
sides are arrays with an entry (a matrix, a spectrum) for each. mu_i and L_i are the extreme
eigenvalues of A_i; mu and L those of all of them, so gamma < 1/L is gamma < 1/L_i for each.
Eigenvalues are those of the matrices that `fedax.theory.surrogate` builds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import numpy as np

from fedax.theory.charles_konecny_2020.conditions import (
    at_most,
    convex,
    positive,
    statement,
    well_behaved,
    whole_steps,
)
from fedax.theory.claims import Claim, require
from fedax.theory.population import QuadraticPopulation
from fedax.theory.surrogate import (
    Weights,
    check_gamma,
    check_theta,
    distort,
    last,
    phi,
    sum_of,
    surrogate,
)

Relation: TypeAlias = Literal["<=", ">=", "="]


def lemma_5(population: QuadraticPopulation, gamma: float, Theta: Weights) -> tuple[Claim, Claim]:
    r"""Without local progress the surrogate loss is the loss (paper 000, Lemma 5).

    If gamma = 0 or K(Theta) = 1, then :math:`Q_i = a I` and :math:`\tilde f_i = a f_i` with
    :math:`a = \sum_k \theta_k`. The second claim compares gradients at x = 0 and Hessians,
    [Q_i A_i, Q_i b_i] with a [A_i, b_i].

    Raises:
      ConditionError: gamma is above 0 and Theta has a weight after the first.

    Erratum: the proof ends in a f~_i; it must be a f_i. The lemma is right.

    Example:
      >>> clients = QuadraticPopulation.from_centres([1.0, 2.0], [1.0, 0.5])
      >>> lemma_5(clients, 0.0, 3)[0].actual.ravel().tolist()
      [3.0, 3.0]
    """
    name = statement("Lemma 5")
    weights = check_theta(Theta)
    length = weights if isinstance(weights, float) else float(np.flatnonzero(weights)[-1] + 1)
    require(
        check_gamma(gamma) == 0 or length == 1, name,
        f"gamma = 0 or K(Theta) = 1, but gamma = {gamma:g} and K(Theta) = {length:g}",
    )
    a, found = sum_of(Theta), surrogate(population, gamma, Theta)
    losses = [np.dstack([of.matrices, of.linear]) for of in (found, population)]
    return (
        Claim(name, "Q_i = a I", found.distortions, "=", a * np.eye(population.dimension)),
        Claim(name, "f~_i = a f_i", losses[0], "=", a * losses[1]),
    )


def lemma_6(population: QuadraticPopulation, gamma: float, Theta: Weights) -> tuple[Claim, ...]:
    r"""A client's surrogate loss is convex and has its minimiser (paper 000, Lemma 6).

    If gamma < 1/L_i, then (1) Q_i is positive definite; (2) the surrogate loss is least at c_i
    only; (3) the eigenvalues of Q_i are :math:`\sum_k \theta_k (1 - \gamma \lambda)^{k-1}`, one
    for each eigenvalue lambda of A_i; (4) the largest belongs to mu_i, the smallest to L_i.

    Part 1 is claimed as lambda_min(Q_i) >= 0, and part 4 says that it is not 0; part 2 as a
    gradient that is 0 at c_i.

    Returns:
      Five claims: parts 1, 2, 3 and the two of part 4.

    Raises:
      ConditionError: mu is not positive, or gamma >= 1/L.

    Example:
      >>> clients = QuadraticPopulation.from_centres([1.0, 2.0], [1.0, 0.5])
      >>> lemma_6(clients, 0.25, [1, 1, 1])[2].actual.tolist()  # 1 + 3/4 + 9/16, 1 + 1/2 + 1/4
      [[2.3125], [1.75]]
    """
    name = statement("Lemma 6")
    clients = well_behaved(name, population, gamma)
    found = surrogate(clients, gamma, Theta)
    formula = distort(Theta, clients.eigen[0], gamma)
    spectrum = np.linalg.eigvalsh(found.distortions)
    return (
        Claim(name, "lambda_min(Q_i) > 0", spectrum[:, 0], ">=", 0.0),
        Claim(
            name, "Q_i A_i c_i = -Q_i b_i, so grad f~_i(c_i) = 0",
            np.einsum("nij,nj->ni", found.matrices, clients.centres), "=", -found.linear,
        ),
        Claim(
            name, "lambda(Q_i) = sum_k theta_k (1 - gamma lambda)^(k-1)",
            spectrum, "=", formula[:, ::-1],
        ),
        *extremes(
            name, "Q_i", found.distortions,
            ("sum_k theta_k (1 - gamma mu_i)^(k-1)", formula[:, 0]),
            ("sum_k theta_k (1 - gamma L_i)^(k-1)", formula[:, -1]), exact=True,
        ),
    )


def lemma_7(
    population: QuadraticPopulation, gamma: float, K: int, printed: bool = False
) -> tuple[Claim, ...]:
    r"""The extreme eigenvalues of Q_i(gamma, Theta_K) (paper 000, Lemma 7).

    .. math::
        \lambda_{\max} = (1 - \gamma \mu_i)^{K-1} \le (1 - \gamma \mu)^{K-1}, \qquad
        \lambda_{\min} = (1 - \gamma L_i)^{K-1} \ge (1 - \gamma L)^{K-1}

    Args:
      population: the clients.
      gamma: 0 <= gamma < 1/L.
      K: whole, >= 1.
      printed: with the published exponents.

    Returns:
      Four claims: the two equations, the two inequalities.

    Raises:
      ConditionError: mu is not positive, gamma >= 1/L, or K is not a whole number >= 1.

    Erratum: the published exponents are K; equation 8 has k - 1. For K = 4 and gamma mu_i = .15
    the eigenvalue is .61412, and .52201 is printed; the printed upper bound fails too.

    Example:
      >>> client = QuadraticPopulation.from_centres([1.0], [0.0])
      >>> lemma_7(client, 0.15, 4)[0].actual.round(5).tolist()
      [0.61412]
      >>> lemma_7(client, 0.15, 4, printed=True)[0].bound.round(5).tolist()
      [0.52201]
    """
    name = statement("Lemma 7", printed)
    clients = well_behaved(name, population, gamma)
    steps = whole_steps(name, K)
    power, symbol = (steps, "K") if printed else (steps - 1, "(K-1)")
    return _four_extremes(
        name, clients, "Q_i", surrogate(clients, gamma, last(steps)).distortions,
        ("(1 - gamma mu{0})^" + symbol, "(1 - gamma L{0})^" + symbol),
        lambda mu, L: ((1 - gamma * mu) ** power, (1 - gamma * L) ** power),
    )


def lemma_8(population: QuadraticPopulation, gamma: float, K: int) -> tuple[Claim, ...]:
    r"""The extreme eigenvalues of Q_i(gamma, Theta_{1:K}) (paper 000, Lemma 8).

    .. math::
        \lambda_{\max} = \frac{1 - (1 - \gamma \mu_i)^K}{\gamma \mu_i}
            \le \frac{1 - (1 - \gamma \mu)^K}{\gamma \mu}, \qquad
        \lambda_{\min} = \frac{1 - (1 - \gamma L_i)^K}{\gamma L_i}
            \ge \frac{1 - (1 - \gamma L)^K}{\gamma L}

    At gamma = 0 these are K. Arguments, returns and errors are those of `lemma_7`.

    Example:
      >>> client = QuadraticPopulation.from_centres([1.0], [0.0])
      >>> lemma_8(client, 0.5, 2)[0].bound.tolist()
      [1.5]
    """
    name = statement("Lemma 8")
    clients = well_behaved(name, population, gamma)
    steps = whole_steps(name, K)
    return _four_extremes(
        name, clients, "Q_i", surrogate(clients, gamma, steps).distortions,
        ("phi_K,mu{0} / mu{0}", "phi_K,L{0} / L{0}"),
        lambda mu, L: (phi(steps, mu, gamma) / mu, phi(steps, L, gamma) / L),
    )


def lemma_9(
    population: QuadraticPopulation, gamma: float, K: int, printed: bool = False
) -> Claim:
    r"""Q_i of FedAvg, in closed form (paper 000, Lemma 9).

    .. math:: Q_i(\gamma, \Theta_{1:K}) = (I - (I - \gamma A_i)^K) (\gamma A_i)^{-1}

    Args:
      population: the clients.
      gamma: 0 < gamma < 1/L.
      K: whole, >= 1.
      printed: without the power, as published.

    Raises:
      ConditionError: mu or gamma is not positive, gamma >= 1/L, or K is not a whole number >= 1.

    Erratum: the power K is missing, and what is printed is the identity, which is right only for
    K = 1. In the proof the two powers -1 are k - 1 and K. For K = 2 and gamma A_i = 1/2, Q_i is
    1.5.

    Example:
      >>> client = QuadraticPopulation.from_centres([1.0], [0.0])
      >>> lemma_9(client, 0.5, 2).bound.item(), lemma_9(client, 0.5, 2, printed=True).bound.item()
      (1.5, 1.0)
    """
    name = statement("Lemma 9", printed)
    clients = well_behaved(name, population, gamma)
    positive(name, "gamma", gamma)
    steps = whole_steps(name, K)
    eye = np.eye(clients.dimension)
    rest = np.linalg.matrix_power(eye - gamma * clients.matrices, 1 if printed else steps)
    return Claim(
        name, f"Q_i = (I - (I - gamma A_i){'' if printed else '^K'}) (gamma A_i)^-1",
        surrogate(clients, gamma, steps).distortions, "=",
        (eye - rest) @ np.linalg.inv(gamma * clients.matrices),
    )


def lemma_10(population: QuadraticPopulation, gamma: float, Theta: Weights) -> tuple[Claim, ...]:
    r"""Eigenvalues of Q_i A_i (paper 000, Lemma 10).

    (1) An eigenvector v of A_i with eigenvalue lambda is one of Q_i A_i with
    :math:`\sum_k \theta_k (1 - \gamma \lambda)^{k-1} \lambda` (whatever gamma is). (2) If
    gamma < 1/L_i,

    .. math::
        \lambda_{\max} \le \sum_k \theta_k (1 - \gamma \mu_i)^{k-1} L_i, \qquad
        \lambda_{\min} \ge \sum_k \theta_k (1 - \gamma L_i)^{k-1} \mu_i.

    Returns:
      Three claims: part 1 for all eigenvectors, the columns of [N, d, d], and the two of part 2.

    Raises:
      ConditionError: mu is not positive, or gamma >= 1/L.

    Example:
      >>> client = QuadraticPopulation.from_centres([[[1.0, 0.0], [0.0, 2.0]]], [[0.0, 0.0]])
      >>> _, largest, smallest = lemma_10(client, 0.25, [1, 1])
      >>> largest.actual.tolist(), largest.bound.tolist()
      ([3.0], [3.5])
      >>> smallest.actual.tolist(), smallest.bound.tolist()
      ([1.75], [1.5])
    """
    name = statement("Lemma 10")
    clients = well_behaved(name, population, gamma)
    matrices, values = surrogate(clients, gamma, Theta).matrices, clients.eigen[0]
    factors = distort(Theta, values, gamma)
    return (
        _eigenvectors(
            name, clients, matrices, "sum_k theta_k (1 - gamma lambda)^(k-1) lambda",
            factors * values,
        ),
        *extremes(
            name, "Q_i A_i", matrices,
            ("sum_k theta_k (1 - gamma mu_i)^(k-1) L_i", factors[:, 0] * values[:, -1]),
            ("sum_k theta_k (1 - gamma L_i)^(k-1) mu_i", factors[:, -1] * values[:, 0]),
        ),
    )


def lemma_11(population: QuadraticPopulation, gamma: float, K: int) -> tuple[Claim, ...]:
    r"""Eigenvalues of Q_i(gamma, Theta_{1:K}) A_i (paper 000, Lemma 11).

    (1) An eigenvector of A_i with eigenvalue lambda is one of Q_i A_i with
    :math:`\phi_{K,\lambda}(\gamma)`. If gamma < 1/L, (2) the extreme eigenvalues are
    :math:`\phi_{K,L_i}` and :math:`\phi_{K,\mu_i}`, and (3) they are between
    :math:`\phi_{K,\mu}` and :math:`\phi_{K,L}`.

    Returns:
      Five claims: part 1 for all eigenvectors, the columns of [N, d, d], and two of parts 2 and 3
      each.

    Raises:
      ConditionError: mu is not positive, gamma >= 1/L, or K is not a whole number >= 1.

    Example:
      >>> clients = QuadraticPopulation.from_centres([1.0, 2.0], [1.0, 0.5])
      >>> lemma_11(clients, 0.25, 2)[1].actual.round(6).tolist()
      [1.75, 3.0]
    """
    name = statement("Lemma 11")
    clients = well_behaved(name, population, gamma)
    steps = whole_steps(name, K)
    matrices = surrogate(clients, gamma, steps).matrices
    return (
        _eigenvectors(
            name, clients, matrices, "phi_K,lambda", phi(steps, clients.eigen[0], gamma)
        ),
        *_four_extremes(
            name, clients, "Q_i A_i", matrices, ("phi_K,L{0}", "phi_K,mu{0}"),
            lambda mu, L: (phi(steps, L, gamma), phi(steps, mu, gamma)),
        ),
    )


def lemma_12(
    population: QuadraticPopulation, gamma: float, K: int, printed: bool = False
) -> tuple[Claim, ...]:
    r"""Eigenvalues of Q_i(gamma, Theta_K) A_i (paper 000, Lemma 12).

    (1) An eigenvector of A_i with eigenvalue lambda is one of Q_i A_i with
    :math:`(1 - \gamma \lambda)^{K-1} \lambda`. If gamma < 1/(K L),

    .. math::
        \lambda_{\max} = (1 - \gamma L_i)^{K-1} L_i \le (1 - \gamma L)^{K-1} L, \qquad
        \lambda_{\min} = (1 - \gamma \mu_i)^{K-1} \mu_i \ge (1 - \gamma \mu)^{K-1} \mu

    (parts 2 and 3).

    Args:
      population: the clients.
      gamma: 0 <= gamma < 1/(K L).
      K: whole, >= 1.
      printed: part 2 with L and mu, as published.

    Returns:
      Five claims, as of `lemma_11`.

    Raises:
      ConditionError: mu is not positive, gamma >= 1/(K L), or K is not a whole number >= 1.

    Errata: part 2 is printed with L and mu in place of L_i and mu_i, and so fails for every client
    that does not have both. The proof of part 3 fixes gamma < 1/L, where (1 - gamma l)^(K-1) l
    is not monotone; the condition of the statement, gamma < 1/(K L), is the right one.

    Example:
      >>> clients = QuadraticPopulation.from_centres([1.0, 2.0], [1.0, 0.5])
      >>> lemma_12(clients, 0.125, 2)[1].actual.tolist()
      [0.875, 1.5]
      >>> float(lemma_12(clients, 0.125, 2, printed=True)[1].bound)
      1.5
    """
    name = statement("Lemma 12", printed)
    steps = whole_steps(name, K)
    clients = well_behaved(name, population, gamma, steps)
    matrices = surrogate(clients, gamma, last(steps)).matrices

    def eigenvalue(value: Any) -> Any:
        return (1 - gamma * value) ** (steps - 1) * value

    return (
        _eigenvectors(
            name, clients, matrices, "(1 - gamma lambda)^(K-1) lambda",
            eigenvalue(clients.eigen[0]),
        ),
        *_four_extremes(
            name, clients, "Q_i A_i", matrices,
            ("(1 - gamma L{0})^(K-1) L{0}", "(1 - gamma mu{0})^(K-1) mu{0}"),
            lambda mu, L: (eigenvalue(L), eigenvalue(mu)), own=not printed,
        ),
    )


def corollary_13(population: QuadraticPopulation, gamma: float, K: int) -> tuple[Claim, ...]:
    r"""FedAvg's surrogate loss is the better conditioned (paper 000, Corollary 13).

    If gamma < 1/L, it is L~-smooth and mu~-strongly convex with

    .. math::
        \tilde L \le \phi_{K,L}(\gamma), \quad \tilde\mu \ge \phi_{K,\mu}(\gamma), \quad
        \tilde\kappa \le \frac{1 - (1 - \gamma L)^K}{1 - (1 - \gamma \mu)^K}.

    Returns:
      Three claims, about L~, mu~ and kappa~.

    Raises:
      ConditionError: mu is not positive, gamma >= 1/L, or K is not a whole number >= 1.

    Example:
      >>> client = QuadraticPopulation.from_centres([[[1.0, 0.0], [0.0, 2.0]]], [[0.0, 0.0]])
      >>> kappa = corollary_13(client, 0.25, 2)[2]
      >>> round(kappa.actual, 9), round(kappa.bound, 9)  # 3 / 1.75
      (1.714285714, 1.714285714)
    """
    name = statement("Corollary 13")
    clients = well_behaved(name, population, gamma)
    steps = whole_steps(name, K)
    found = surrogate(clients, gamma, steps)
    largest, smallest = (
        float(phi(steps, value, gamma)) for value in (clients.L, clients.mu)
    )
    return (
        *extremes(
            name, "E[Q_i A_i]", found.matrix, ("phi_K,L", largest), ("phi_K,mu", smallest)
        ),
        Claim(
            name, "kappa~(Theta_1:K) <= phi_K,L / phi_K,mu",
            found.condition_number, "<=", largest / smallest,
        ),
    )


def corollary_14(
    population: QuadraticPopulation, gamma: float, K: int, printed: bool = False
) -> tuple[Claim, ...]:
    r"""So is that of the last gradient only (paper 000, Corollary 14).

    If gamma < 1/(K L), the surrogate loss of Theta_K has

    .. math::
        \tilde L \le (1 - \gamma L)^{K-1} L, \quad
        \tilde\mu \ge (1 - \gamma \mu)^{K-1} \mu, \quad
        \tilde\kappa \le \left(\frac{1 - \gamma L}{1 - \gamma \mu}\right)^{K-1} \frac L\mu.

    Args:
      population: the clients.
      gamma: 0 <= gamma < 1/(K L).
      K: whole, >= 1.
      printed: the third claim about the loss of Theta_{1:K}, as published.

    Returns:
      Three claims, about L~, mu~ and kappa~.

    Raises:
      ConditionError: mu is not positive, gamma >= 1/(K L), or K is not a whole number >= 1.

    Erratum: the conclusion names Theta_{1:K}, and is false of it: one client with eigenvalues 1
    and 2, gamma = 1/8, K = 2 has kappa~ = 1.8667 there, above the bound 1.7143.

    Example:
      >>> client = QuadraticPopulation.from_centres([[[1.0, 0.0], [0.0, 2.0]]], [[0.0, 0.0]])
      >>> round(corollary_14(client, 0.125, 2)[2].actual, 4)
      1.7143
      >>> round(corollary_14(client, 0.125, 2, printed=True)[2].actual, 4)
      1.8667
    """
    name = statement("Corollary 14", printed)
    steps = whole_steps(name, K)
    clients = well_behaved(name, population, gamma, steps)
    found = surrogate(clients, gamma, last(steps))
    largest, smallest = (
        (1 - gamma * value) ** (steps - 1) * value for value in (clients.L, clients.mu)
    )
    conditioned = surrogate(clients, gamma, steps) if printed else found
    return (
        *extremes(
            name, "E[Q_i A_i]", found.matrix, ("(1 - gamma L)^(K-1) L", largest),
            ("(1 - gamma mu)^(K-1) mu", smallest),
        ),
        Claim(
            name,
            f"kappa~({'Theta_1:K' if printed else 'Theta_K'}) <= "
            "((1 - gamma L) / (1 - gamma mu))^(K-1) L / mu",
            conditioned.condition_number, "<=", largest / smallest,
        ),
    )


def lemma_35(population: QuadraticPopulation, gamma: float, K: int) -> Claim:
    r"""phi_{K,L}(gamma) / phi_{K,mu}(gamma) <= L / mu (paper 000, Lemma 35).

    Raises:
      ConditionError: mu is not positive, gamma > 1/L, or K is not a whole number >= 1.

    Example:
      >>> clients = QuadraticPopulation.from_centres([1.0, 2.0], [1.0, 0.5])
      >>> lemma_35(clients, 0.5, 2).actual, lemma_35(clients, 0.5, 2).bound
      (1.3333333333333333, 2.0)
    """
    name = statement("Lemma 35")
    mu, L = convex(name, population).mu, population.L
    at_most(name, "gamma", check_gamma(gamma), "1/L", 1 / L)
    steps = whole_steps(name, K)
    ratio = float(phi(steps, L, gamma) / phi(steps, mu, gamma))
    return Claim(name, "phi_K,L / phi_K,mu <= L / mu", ratio, "<=", L / mu)


def extremes(
    name: str,
    what: str,
    matrices: np.ndarray,
    largest: tuple[str, Any],
    smallest: tuple[str, Any],
    exact: bool = False,
) -> tuple[Claim, Claim]:
    """Claims of the extreme eigenvalues of matrices, [d, d] or [N, d, d].

    Args:
      name: the statement's.
      what: the matrices in symbols.
      matrices: they themselves.
      largest, smallest: right sides, in symbols and in numbers.
      exact: equations, not bounds from above and below.
    """
    values = np.linalg.eigvalsh(matrices).T
    above: Relation = "=" if exact else "<="
    under: Relation = "=" if exact else ">="
    top, bottom = f"lambda_max({what}) {above} ", f"lambda_min({what}) {under} "
    return (
        Claim(name, top + largest[0], values[-1], above, largest[1]),
        Claim(name, bottom + smallest[0], values[0], under, smallest[1]),
    )


def _four_extremes(
    name: str,
    clients: QuadraticPopulation,
    what: str,
    matrices: np.ndarray,
    symbols: tuple[str, str],
    sides: Callable[[Any, Any], tuple[Any, Any]],
    own: bool = True,
) -> tuple[Claim, ...]:
    """Equations with the mu_i and L_i of each client, then bounds with mu and L.

    Args:
      name, what, matrices: as of `extremes`.
      clients: their owners.
      symbols: right sides for the largest and the smallest, with {0} for the index of mu and L.
      sides: (mu, L) -> the same in numbers.
      own: False: the equations too with mu and L.
    """
    values = clients.eigen[0]

    def pairs(index: str, low: Any, high: Any) -> Any:
        return zip((symbol.format(index) for symbol in symbols), sides(low, high), strict=True)

    of_all = pairs("", clients.mu, clients.L)
    of_each = pairs("_i", values[:, 0], values[:, -1]) if own else pairs("", clients.mu, clients.L)
    return (
        *extremes(name, what, matrices, *of_each, exact=True),
        *extremes(name, what, matrices, *of_all),
    )


def _eigenvectors(
    name: str, clients: QuadraticPopulation, matrices: np.ndarray, symbol: str, values: np.ndarray
) -> Claim:
    """The eigenvectors of A_i are the matrices', with these eigenvalues."""
    vectors = clients.eigen[1]
    return Claim(
        name, f"Q_i A_i v = {symbol} v", matrices @ vectors, "=", vectors * values[:, None, :]
    )
