"""Section 5, continued: FedAvg's Q_i A_i and the condition number of the surrogate loss."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from fedax.theory.charles2020.conditions import (
    at_most,
    convex,
    statement,
    well_behaved,
    whole_steps,
)
from fedax.theory.charles2020.spectrum import eigenvectors, extremes, four_extremes
from fedax.theory.claims import Claim
from fedax.theory.population import QuadraticPopulation
from fedax.theory.surrogate import (
    check_gamma,
    last,
    phi,
    surrogate,
)

Relation: TypeAlias = Literal["<=", ">=", "="]

def lemma_11(population: QuadraticPopulation, gamma: float, K: int) -> tuple[Claim, ...]:
    r"""Eigenvalues of Q_i(gamma, Theta_{1:K}) A_i (Charles and Konečný 2020, Lemma 11).

    (1) An eigenvector of A_i with eigenvalue lambda is one of Q_i A_i with
    :math:`\phi_{K,\lambda}(\gamma)`. If gamma < 1/L, (2) the extreme eigenvalues are
    :math:`\phi_{K,L_i}` and :math:`\phi_{K,\mu_i}`, and (3) they are between
    :math:`\phi_{K,\mu}` and :math:`\phi_{K,L}`.

    Returns:
      Five claims: part 1 for all eigenvectors (the columns of [N, d, d]), and two each for parts 2
      and 3.

    Raises:
      ConditionError: if mu is not positive, gamma >= 1/L, or K is not a whole number >= 1.

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
        eigenvectors(
            name, clients, matrices, "phi_K,lambda", phi(steps, clients.eigen[0], gamma)
        ),
        *four_extremes(
            name, clients, "Q_i A_i", matrices, ("phi_K,L{0}", "phi_K,mu{0}"),
            lambda mu, L: (phi(steps, L, gamma), phi(steps, mu, gamma)),
        ),
    )


def lemma_12(
    population: QuadraticPopulation, gamma: float, K: int, printed: bool = False
) -> tuple[Claim, ...]:
    r"""Eigenvalues of Q_i(gamma, Theta_K) A_i (Charles and Konečný 2020, Lemma 12).

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
      Five claims, as for `lemma_11`.

    Raises:
      ConditionError: if mu is not positive, gamma >= 1/(K L), or K is not a whole number >= 1.

    Errata: part 2 is printed with L and mu instead of L_i and mu_i, so it fails for every client
    that does not have both. The proof of part 3 fixes gamma < 1/L, where (1 - gamma l)^(K-1) l is
    not monotone; the condition of the statement, gamma < 1/(K L), is the right one.

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
        eigenvectors(
            name, clients, matrices, "(1 - gamma lambda)^(K-1) lambda",
            eigenvalue(clients.eigen[0]),
        ),
        *four_extremes(
            name, clients, "Q_i A_i", matrices,
            ("(1 - gamma L{0})^(K-1) L{0}", "(1 - gamma mu{0})^(K-1) mu{0}"),
            lambda mu, L: (eigenvalue(L), eigenvalue(mu)), own=not printed,
        ),
    )


def corollary_13(population: QuadraticPopulation, gamma: float, K: int) -> tuple[Claim, ...]:
    r"""FedAvg's surrogate loss is better conditioned (Charles and Konečný 2020, Corollary 13).

    If gamma < 1/L, it is L~-smooth and mu~-strongly convex with

    .. math::
        \tilde L \le \phi_{K,L}(\gamma), \quad \tilde\mu \ge \phi_{K,\mu}(\gamma), \quad
        \tilde\kappa \le \frac{1 - (1 - \gamma L)^K}{1 - (1 - \gamma \mu)^K}.

    Returns:
      Three claims, about L~, mu~ and kappa~.

    Raises:
      ConditionError: if mu is not positive, gamma >= 1/L, or K is not a whole number >= 1.

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
    r"""The last gradient's surrogate loss is, too (Charles and Konečný 2020, Corollary 14).

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
      ConditionError: if mu is not positive, gamma >= 1/(K L), or K is not a whole number >= 1.

    Erratum: the conclusion names Theta_{1:K}, for which it is false: one client with eigenvalues 1
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
    r"""phi_{K,L}(gamma) / phi_{K,mu}(gamma) <= L / mu (Charles and Konečný 2020, Lemma 35).

    Raises:
      ConditionError: if mu is not positive, gamma > 1/L, or K is not a whole number >= 1.

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
