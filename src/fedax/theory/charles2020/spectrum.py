r"""Section 5: eigenvalues of Q_i, of Q_i A_i and of the surrogate loss.

Statements about a client are evaluated for all clients with positive probability at once, so their
sides are arrays with an entry (a matrix, a spectrum) for each. mu_i and L_i are the extreme
eigenvalues of A_i; mu and L those of all of them, so gamma < 1/L is gamma < 1/L_i for each.
Eigenvalues are those of the matrices that `fedax.theory.surrogate` builds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import numpy as np

from fedax.theory.charles2020.conditions import (
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
    r"""Without local progress the surrogate loss is the loss (Charles and Konečný 2020, Lemma 5).

    If gamma = 0 or K(Theta) = 1, then :math:`Q_i = a I` and :math:`\tilde f_i = a f_i` with
    :math:`a = \sum_k \theta_k`. The second claim compares gradients at x = 0 and Hessians,
    [Q_i A_i, Q_i b_i] with a [A_i, b_i].

    Raises:
      ConditionError: if gamma > 0 and Theta has a weight after the first.

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
    r"""A client's surrogate loss is convex, with its minimiser (Charles and Konečný 2020, Lemma 6).

    If gamma < 1/L_i, then (1) Q_i is positive definite; (2) the surrogate loss is least at c_i
    only; (3) the eigenvalues of Q_i are :math:`\sum_k \theta_k (1 - \gamma \lambda)^{k-1}`, one
    for each eigenvalue lambda of A_i; (4) the largest belongs to mu_i, the smallest to L_i.

    Part 1 is claimed as lambda_min(Q_i) >= 0, which part 4 shows not to be 0; part 2 is claimed as
    a gradient of 0 at c_i.

    Returns:
      Five claims: parts 1, 2, 3 and the two of part 4.

    Raises:
      ConditionError: if mu is not positive, or gamma >= 1/L.

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
    r"""The extreme eigenvalues of Q_i(gamma, Theta_K) (Charles and Konečný 2020, Lemma 7).

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
      ConditionError: if mu is not positive, gamma >= 1/L, or K is not a whole number >= 1.

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
    return four_extremes(
        name, clients, "Q_i", surrogate(clients, gamma, last(steps)).distortions,
        ("(1 - gamma mu{0})^" + symbol, "(1 - gamma L{0})^" + symbol),
        lambda mu, L: ((1 - gamma * mu) ** power, (1 - gamma * L) ** power),
    )


def lemma_8(population: QuadraticPopulation, gamma: float, K: int) -> tuple[Claim, ...]:
    r"""The extreme eigenvalues of Q_i(gamma, Theta_{1:K}) (Charles and Konečný 2020, Lemma 8).

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
    return four_extremes(
        name, clients, "Q_i", surrogate(clients, gamma, steps).distortions,
        ("phi_K,mu{0} / mu{0}", "phi_K,L{0} / L{0}"),
        lambda mu, L: (phi(steps, mu, gamma) / mu, phi(steps, L, gamma) / L),
    )


def lemma_9(
    population: QuadraticPopulation, gamma: float, K: int, printed: bool = False
) -> Claim:
    r"""Q_i of FedAvg, in closed form (Charles and Konečný 2020, Lemma 9).

    .. math:: Q_i(\gamma, \Theta_{1:K}) = (I - (I - \gamma A_i)^K) (\gamma A_i)^{-1}

    Args:
      population: the clients.
      gamma: 0 < gamma < 1/L.
      K: whole, >= 1.
      printed: without the power, as published.

    Raises:
      ConditionError: if mu or gamma is not positive, gamma >= 1/L, or K is not a whole number >= 1.

    Erratum: the power K is missing; the printed form is the identity, which is right only for K =
    1. In the proof the two powers -1 are k - 1 and K. For K = 2 and gamma A_i = 1/2, Q_i is 1.5.

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
    r"""Eigenvalues of Q_i A_i (Charles and Konečný 2020, Lemma 10).

    (1) An eigenvector v of A_i with eigenvalue lambda is one of Q_i A_i with :math:`\sum_k \theta_k
    (1 - \gamma \lambda)^{k-1} \lambda` (for every gamma). (2) If gamma < 1/L_i,

    .. math::
        \lambda_{\max} \le \sum_k \theta_k (1 - \gamma \mu_i)^{k-1} L_i, \qquad
        \lambda_{\min} \ge \sum_k \theta_k (1 - \gamma L_i)^{k-1} \mu_i.

    Returns:
      Three claims: part 1 for all eigenvectors, the columns of [N, d, d], and the two of part 2.

    Raises:
      ConditionError: if mu is not positive, or gamma >= 1/L.

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
        eigenvectors(
            name, clients, matrices, "sum_k theta_k (1 - gamma lambda)^(k-1) lambda",
            factors * values,
        ),
        *extremes(
            name, "Q_i A_i", matrices,
            ("sum_k theta_k (1 - gamma mu_i)^(k-1) L_i", factors[:, 0] * values[:, -1]),
            ("sum_k theta_k (1 - gamma L_i)^(k-1) mu_i", factors[:, -1] * values[:, 0]),
        ),
    )


def extremes(
    name: str,
    what: str,
    matrices: np.ndarray,
    largest: tuple[str, Any],
    smallest: tuple[str, Any],
    exact: bool = False,
) -> tuple[Claim, Claim]:
    """Claims about the extreme eigenvalues of matrices, [d, d] or [N, d, d].

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


def four_extremes(
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


def eigenvectors(
    name: str, clients: QuadraticPopulation, matrices: np.ndarray, symbol: str, values: np.ndarray
) -> Claim:
    """The eigenvectors of A_i are the matrices', with these eigenvalues."""
    vectors = clients.eigen[1]
    return Claim(
        name, f"Q_i A_i v = {symbol} v", matrices @ vectors, "=", vectors * values[:, None, :]
    )
