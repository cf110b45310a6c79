r"""Section 6: the distance between the surrogate loss's minimiser and that of f.

x*(gamma, Theta) is the minimiser of the surrogate loss, x* that of f. Left sides are exact. The
bounds are loose, so prefer the left side if the population is known.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedax.theory.charles2020.conditions import (
    at_most,
    convex,
    positive,
    statement,
    well_behaved,
    whole_steps,
)
from fedax.theory.claims import Claim, require
from fedax.theory.population import QuadraticPopulation
from fedax.theory.surrogate import Weights, check_gamma, chi, phi, surrogate


def lemma_15(population: QuadraticPopulation, gamma: float, K: int, x: Any) -> tuple[Claim, ...]:
    r"""Many local steps: distance to the clients' centres (Charles and Konečný 2020, Lemma 15).

    If 0 < gamma < 1/L, then for every K >= 1

    .. math:: \tilde f(x, \gamma, \Theta_{1:K}) \le \frac{1}{2\gamma} E|x - c_i|^2,

    and it converges to the right side as K grows; the minimiser of the right side is c = E c_i. The
    limits are claimed with their rates: with :math:`r = (1 - \gamma\mu)^K` the left side is at
    least 1 - r times the right one, as :math:`\gamma Q_i A_i = I - (I - \gamma A_i)^K`, and

    .. math:: |x^*(\gamma, \Theta_{1:K}) - c| \le \sigma_c\, r / (1 - r).

    Args:
      population: the clients.
      gamma: 0 < gamma < 1/L.
      K: whole, >= 1.
      x: points, [..., d].

    Returns:
      Three claims: the bound, the limit, the minimiser.

    Raises:
      ConditionError: if mu or gamma is not positive, gamma >= 1/L, or K is not a whole number >= 1.

    Example:
      >>> clients = QuadraticPopulation.from_centres([1.0, 2.0], [1.0, 0.5])
      >>> bound, _, minimiser = lemma_15(clients, 0.25, 10, [0.0])
      >>> round(float(bound.actual), 4), round(float(bound.bound), 4)
      (1.1934, 1.25)
      >>> round(minimiser.actual, 5), round(minimiser.bound, 5)
      (0.00712, 0.01492)
    """
    name = statement("Lemma 15")
    clients = well_behaved(name, population, gamma)
    positive(name, "gamma", gamma)
    steps = whole_steps(name, K)
    found = surrogate(clients, gamma, steps)
    x = np.asarray(x, float)
    loss = found.loss(x) + found.constant
    away = x[..., None, :] - clients.centres
    limit = np.sum(away**2, -1) @ clients.probabilities / (2 * gamma)
    r = (1 - gamma * clients.mu) ** steps
    distance = float(np.linalg.norm(found.minimiser - clients.mean(clients.centres)))
    return (
        Claim(name, "f~(x) <= E|x - c_i|^2 / (2 gamma)", loss, "<=", limit),
        Claim(
            name, "f~(x) >= (1 - (1 - gamma mu)^K) E|x - c_i|^2 / (2 gamma)",
            loss, ">=", (1 - r) * limit,
        ),
        Claim(
            name, "|x*(gamma, Theta_1:K) - c| <= sigma_c r / (1 - r), r = (1 - gamma mu)^K",
            distance, "<=", clients.sigma_c * r / (1 - r),
        ),
    )


def theorem_16(population: QuadraticPopulation, gamma: float, Theta: Weights) -> Claim:
    r"""The minimisers' distance, for any weights (Charles and Konečný 2020, Theorem 16).

    If gamma < 1/L, then with :math:`\chi = \sum_k \theta_k (1 - \gamma L)^{k-1} / \sum_k \theta_k`

    .. math:: |x^*(\gamma, \Theta) - x^*| \le
        \frac{L \sigma_c}{\mu} \left(1 + \frac{\sigma_A}{\mu}\right) \frac{1 - \chi}{\chi}.

    Raises:
      ConditionError: if mu is not positive, or gamma >= 1/L.

    Example:
      >>> clients = QuadraticPopulation.from_centres([1.0, 2.0], [1.0, 0.5])
      >>> claim = theorem_16(clients, 0.25, [1, 1])
      >>> round(claim.actual, 6), round(claim.bound, 6)
      (0.017544, 0.25)
    """
    name = statement("Theorem 16")
    clients = well_behaved(name, population, gamma)
    found, share = surrogate(clients, gamma, Theta), chi(Theta, clients.L, gamma)
    return Claim(
        name,
        "|x*(gamma, Theta) - x*| <= (L sigma_c / mu) (1 + sigma_A / mu) (1 - chi) / chi",
        found.gap, "<=",
        clients.kappa * clients.sigma_c * (1 + clients.sigma_A / clients.mu) * (1 - share) / share,
    )


def theorem_17(population: QuadraticPopulation, gamma: float, K: float) -> Claim:
    r"""The minimisers' distance for FedAvg (Charles and Konečný 2020, Theorem 17).

    It is also equation 7 of the decaying-steps paper (2021).

    If gamma < 1/L, then

    .. math:: |x^*(\gamma, \Theta_{1:K}) - x^*| \le \sigma_c \left(1 + \frac{\sigma_A}{\mu}\right)
        \frac{K L - \phi_{K,L}(\gamma)}{\phi_{K,\mu}(\gamma)}.

    K >= 1 need not be whole, as in the decaying-steps paper (2021): K l - phi_{K,l} still increases
    with l.

    Raises:
      ConditionError: if mu is not positive, gamma >= 1/L, or K < 1.

    Errata of the proof: tau is 1/K, not K; Lemma 32. The theorem is right.

    Example:
      >>> clients = QuadraticPopulation.from_centres([1.0, 2.0], [1.0, 0.5])
      >>> claim = theorem_17(clients, 0.25, 2)
      >>> round(claim.actual, 6), round(claim.bound, 6)
      (0.017544, 0.214286)
    """
    name = statement("Theorem 17")
    clients = well_behaved(name, population, gamma)
    require(K >= 1, name, f"K >= 1, but K = {K:g}")
    mu, L = clients.mu, clients.L
    ratio = (K * L - phi(K, L, gamma)) / phi(K, mu, gamma)
    return Claim(
        name,
        "|x*(gamma, Theta_1:K) - x*| <= sigma_c (1 + sigma_A / mu) (K L - phi_K,L) / phi_K,mu",
        surrogate(clients, gamma, K).gap, "<=",
        float(clients.sigma_c * (1 + clients.sigma_A / mu) * ratio),
    )


def lemma_18(population: QuadraticPopulation, gamma: float, K: int, epsilon: float) -> Claim:
    r"""K times the eigenvalue is nearly phi for a small gamma (Charles and Konečný 2020, Lemma 18).

    .. math:: 0 \le \epsilon \le 1 - e^{-K}, \quad
        \gamma \le \frac{\ln(1 / (1 - \epsilon))}{K \lambda}
        \quad \Rightarrow \quad \phi_{K,\lambda}(\gamma) \ge (1 - \epsilon) K \lambda

    for every eigenvalue lambda of any A_i; if gamma is small enough for L, it is for all.

    Returns:
      One claim with an entry for each eigenvalue, [N, d].

    Raises:
      ConditionError: if mu is not positive, K is not a whole number >= 1, or epsilon or gamma is
        out of range.

    Erratum of the proof: x = ln(1/(1 - epsilon)) is at most K, not 1. The lemma is right.

    Example:
      >>> clients = QuadraticPopulation.from_centres([1.0, 2.0], [1.0, 0.5])
      >>> claim = lemma_18(clients, 0.1, 3, 0.5)
      >>> claim.actual.round(2).tolist(), claim.bound.tolist()
      ([[2.71], [4.88]], [[1.5], [3.0]])
    """
    name = statement("Lemma 18")
    clients, steps = nearly_linear(name, population, gamma, K, epsilon)
    values = clients.eigen[0]
    return Claim(
        name, "phi_K,lambda >= (1 - epsilon) K lambda",
        phi(steps, values, gamma), ">=", (1 - epsilon) * steps * values,
    )


def corollary_19(
    population: QuadraticPopulation, gamma: float, K: int, epsilon: float
) -> tuple[Claim, Claim]:
    r"""Lemma 18 for L and for mu (Charles and Konečný 2020, Corollary 19).

    If epsilon <= 1 - e^{-K} and gamma <= ln(1/(1 - epsilon)) / (K L), then

    .. math:: \phi_{K,L}(\gamma) \ge (1 - \epsilon) K L, \qquad
        \phi_{K,\mu}(\gamma) \ge (1 - \epsilon) K \mu.

    Raises:
      ConditionError: as for `lemma_18`.

    Example:
      >>> clients = QuadraticPopulation.from_centres([1.0, 2.0], [1.0, 0.5])
      >>> [claim.holds for claim in corollary_19(clients, 0.1, 3, 0.5)]
      [True, True]
    """
    name = statement("Corollary 19")
    clients, steps = nearly_linear(name, population, gamma, K, epsilon)
    largest, smallest = (
        Claim(
            name, f"phi_K,{symbol} >= (1 - epsilon) K {symbol}",
            float(phi(steps, value, gamma)), ">=", (1 - epsilon) * steps * value,
        )
        for symbol, value in (("L", clients.L), ("mu", clients.mu))
    )
    return largest, smallest


def corollary_20(population: QuadraticPopulation, gamma: float, K: int, epsilon: float) -> Claim:
    r"""Theorem 17 for a small gamma (Charles and Konečný 2020, Corollary 20).

    If epsilon <= 1 - e^{-K} and gamma <= ln(1/(1 - epsilon)) / (K L), then

    .. math:: |x^*(\gamma, \Theta_{1:K}) - x^*| \le \sigma_c
        \left(1 + \frac{\sigma_A}{\mu}\right) \frac{L}{\mu} \frac{\epsilon}{1 - \epsilon}.

    Raises:
      ConditionError: as for `lemma_18`.

    Example:
      >>> clients = QuadraticPopulation.from_centres([1.0, 2.0], [1.0, 0.5])
      >>> claim = corollary_20(clients, 0.1, 3, 0.5)
      >>> round(claim.actual, 6), round(claim.bound, 6)
      (0.011858, 0.75)
    """
    name = statement("Corollary 20")
    clients, steps = nearly_linear(name, population, gamma, K, epsilon)
    return Claim(
        name,
        "|x*(gamma, Theta_1:K) - x*| <= "
        "sigma_c (1 + sigma_A / mu) (L / mu) epsilon / (1 - epsilon)",
        surrogate(clients, gamma, steps).gap, "<=", distance_within(clients, epsilon),
    )


def theorem_21(
    population: QuadraticPopulation, gamma_1: float, gamma_2: float, K: int
) -> Claim:
    r"""Distance between the minimisers of two client rates (Charles and Konečný 2020, Theorem 21).

    If gamma_1 <= gamma_2 < 1/L, then

    .. math:: |x^*(\gamma_1, \Theta_{1:K}) - x^*(\gamma_2, \Theta_{1:K})| \le \sigma_c
        \left(1 + \frac{\phi_{K,L}(\gamma_2)}{\phi_{K,\mu}(\gamma_2)}\right)
        \frac{\phi_{K,L}(\gamma_1) - \phi_{K,L}(\gamma_2)}{\phi_{K,\mu}(\gamma_1)}.

    Raises:
      ConditionError: if mu is not positive, gamma_1 > gamma_2, gamma_2 >= 1/L, or K is not a whole
        number >= 1.

    Errata of the proof: v_j = E[B_{i,j} c_i] - E[B_{i,j}] E[c_i]; and its step from
    E|B_{i,2} - B_2|^2 to E|B_{i,2}|^2 is invalid in the operator norm, but is not needed, as
    T_4 = |E[B_{i,2} (c_i - c)]|. The theorem is right.

    Example:
      >>> clients = QuadraticPopulation.from_centres([1.0, 2.0], [1.0, 0.5])
      >>> claim = theorem_21(clients, 0.1, 0.2, 5)
      >>> round(claim.actual, 6), round(claim.bound, 6)
      (0.02155, 0.305798)
    """
    name = statement("Theorem 21")
    clients, steps, distance = _two_rates(name, population, gamma_1, gamma_2, K)
    (mu_1, L_1), (mu_2, L_2) = (
        (phi(steps, clients.mu, gamma), phi(steps, clients.L, gamma))
        for gamma in (gamma_1, gamma_2)
    )
    return Claim(
        name,
        "|x*(gamma_1) - x*(gamma_2)| <= sigma_c (1 + phi_K,L(gamma_2) / phi_K,mu(gamma_2)) "
        "(phi_K,L(gamma_1) - phi_K,L(gamma_2)) / phi_K,mu(gamma_1)",
        distance, "<=", float(clients.sigma_c * (1 + L_2 / mu_2) * (L_1 - L_2) / mu_1),
    )


def corollary_22(
    population: QuadraticPopulation, gamma_1: float, gamma_2: float, K: int, printed: bool = False
) -> Claim:
    r"""The same, in terms of gamma_2 - gamma_1 (Charles and Konečný 2020, Corollary 22).

    If gamma_1 <= gamma_2 < 1/L, then

    .. math:: |x^*(\gamma_1, \Theta_{1:K}) - x^*(\gamma_2, \Theta_{1:K})| \le
        K \sigma_c \frac{L^3}{\mu^2} (\gamma_2 - \gamma_1).

    Args:
      population: the clients.
      gamma_1, gamma_2: 0 <= gamma_1 <= gamma_2 < 1/L.
      K: whole, >= 1.
      printed: with the published constant 2 instead of K.

    Raises:
      ConditionError: if mu is not positive, gamma_1 > gamma_2, gamma_2 >= 1/L, or K is not a whole
        number >= 1.

    Erratum: published with the constant 2, which is false for large K. The proof replaces (1 -
    gamma_2 L)^{k-1} by (1 - gamma_2 L) (1 - gamma_1 L)^{k-2}, which is larger, in a term that is
    subtracted. The correct statement, since

    .. math:: -\phi_{K,L}'(\gamma) = K (K - 1) L^2 \int_0^1 u (1 - \gamma L u)^{K-2} du
        \le \frac K2 L\, \phi_{K-1,L}(\gamma)

    by Chebyshev's inequality for an increasing and a decreasing factor, is phi_{K,L}(gamma_1) -
    phi_{K,L}(gamma_2) <= (K/2) L (gamma_2 - gamma_1) phi_{K-1,L}(gamma_1): K/2 times the proof's
    value. For K <= 2 the published form is right. Counterexample: two clients with A = 1.1, 0.9 and
    c = 1, -1, K = 100, gamma = 0 and 1e-4 are 4.893e-4 apart; published bound 3.286e-4, corrected
    1.643e-2.

    Example:
      >>> clients = QuadraticPopulation.from_centres([1.1, 0.9], [1.0, -1.0])
      >>> claim = corollary_22(clients, 0.0, 1e-4, 100)
      >>> f"{claim.actual:.3e} {claim.bound:.3e}", claim.holds
      ('4.893e-04 1.643e-02', True)
      >>> claim = corollary_22(clients, 0.0, 1e-4, 100, printed=True)
      >>> f"{claim.bound:.3e}", claim.holds
      ('3.286e-04', False)
    """
    name = statement("Corollary 22", printed)
    clients, steps, distance = _two_rates(name, population, gamma_1, gamma_2, K)
    factor, symbol = (2, "2") if printed else (steps, "K")
    return Claim(
        name,
        f"|x*(gamma_1) - x*(gamma_2)| <= {symbol} sigma_c (L^3 / mu^2) (gamma_2 - gamma_1)",
        distance, "<=",
        factor * clients.sigma_c * clients.kappa**2 * clients.L * (gamma_2 - gamma_1),
    )


def lemma_32(
    population: QuadraticPopulation, gamma: float, K: int, printed: bool = False
) -> Claim:
    r"""Distance between Q_i A_i / K and A_i (Charles and Konečný 2020, Lemma 32).

    .. math:: \gamma < 1/L \quad \Rightarrow \quad
        |Q_i(\gamma, \Theta_{1:K}) A_i / K - A_i| \le \frac{K L - \phi_{K,L}(\gamma)}{K}

    Args:
      population: the clients.
      gamma: 0 <= gamma < 1/L.
      K: whole, >= 1.
      printed: the distance from I, as published.

    Returns:
      One claim with an entry for each client with positive probability.

    Raises:
      ConditionError: if mu is not positive, gamma >= 1/L, or K is not a whole number >= 1.

    Erratum: published, and proved, with I instead of A_i. With gamma = 0 that claims |A_i - I| <=
    0.

    Example:
      >>> clients = QuadraticPopulation.from_centres([1.0, 2.0], [1.0, 0.5])
      >>> claim = lemma_32(clients, 0.25, 2)
      >>> claim.actual.round(6).tolist(), round(claim.bound, 6)
      ([0.125, 0.5], 0.5)
      >>> lemma_32(clients, 0.0, 2, printed=True).holds
      False
    """
    name = statement("Lemma 32", printed)
    clients = well_behaved(name, population, gamma)
    steps = whole_steps(name, K)
    target = np.eye(clients.dimension) if printed else clients.matrices
    difference = surrogate(clients, gamma, steps).matrices / steps - target
    return Claim(
        name, f"|Q_i A_i / K - {'I' if printed else 'A_i'}| <= (K L - phi_K,L) / K",
        np.linalg.norm(difference, 2, (1, 2)), "<=",
        float(clients.L - phi(steps, clients.L, gamma) / steps),
    )


def lemma_33(
    population: QuadraticPopulation, gamma_1: float, gamma_2: float, K: int
) -> tuple[Claim, Claim]:
    r"""A larger gamma gives smaller surrogate Hessians (Charles and Konečný 2020, Lemma 33).

    If gamma_1 <= gamma_2 <= 1/L, then :math:`C = Q_i(\gamma_1) A_i - Q_i(\gamma_2) A_i` is positive
    semidefinite, and its largest eigenvalue at most phi_{K,L}(gamma_1) - phi_{K,L}(gamma_2).

    Returns:
      Two claims with an entry for each client with positive probability.

    Raises:
      ConditionError: if mu is not positive, gamma_1 > gamma_2, gamma_2 > 1/L, or K is not a whole
        number >= 1.

    Example:
      >>> clients = QuadraticPopulation.from_centres([1.0, 2.0], [1.0, 0.5])
      >>> smallest, largest = lemma_33(clients, 0.0, 0.25, 2)
      >>> largest.actual.round(6).tolist(), round(largest.bound, 6)
      ([0.25, 1.0], 1.0)
    """
    name = statement("Lemma 33")
    clients = convex(name, population)
    at_most(name, "gamma_1", check_gamma(gamma_1), "gamma_2", check_gamma(gamma_2))
    at_most(name, "gamma_2", gamma_2, "1/L", 1 / clients.L)
    steps = whole_steps(name, K)
    first, second = (surrogate(clients, gamma, steps).matrices for gamma in (gamma_1, gamma_2))
    values = np.linalg.eigvalsh(first - second)
    bound = phi(steps, clients.L, gamma_1) - phi(steps, clients.L, gamma_2)
    return (
        Claim(name, "lambda_min(C) >= 0", values[:, 0], ">=", 0.0),
        Claim(
            name, "lambda_max(C) <= phi_K,L(gamma_1) - phi_K,L(gamma_2)",
            values[:, -1], "<=", float(bound),
        ),
    )


def distance_within(clients: QuadraticPopulation, epsilon: float) -> float:
    """Corollary 20's bound."""
    ratio = epsilon / (1 - epsilon)
    return clients.sigma_c * (1 + clients.sigma_A / clients.mu) * clients.kappa * ratio


def nearly_linear(
    name: str, population: QuadraticPopulation, gamma: float, K: int, epsilon: float
) -> tuple[QuadraticPopulation, int]:
    """The clients and K, with 0 <= epsilon <= 1 - e^-K, gamma <= ln(1/(1 - epsilon)) / (K L)."""
    clients, steps = convex(name, population), whole_steps(name, K)
    require(epsilon >= 0, name, f"epsilon >= 0, but epsilon = {epsilon:g}")
    at_most(name, "epsilon", epsilon, "1 - e^-K", -np.expm1(-steps))
    limit = -np.log1p(-epsilon) / (steps * clients.L)
    at_most(name, "gamma", check_gamma(gamma), "ln(1/(1 - epsilon)) / (K L)", limit)
    return clients, steps


def _two_rates(
    name: str, population: QuadraticPopulation, gamma_1: float, gamma_2: float, K: int
) -> tuple[QuadraticPopulation, int, float]:
    """The clients, K and the minimisers' distance, with gamma_1 <= gamma_2 < 1/L."""
    clients = well_behaved(name, population, gamma_2, symbol="gamma_2")
    steps = whole_steps(name, K)
    at_most(name, "gamma_1", check_gamma(gamma_1), "gamma_2", gamma_2)
    first, second = (surrogate(clients, gamma, steps).minimiser for gamma in (gamma_1, gamma_2))
    return clients, steps, float(np.linalg.norm(first - second))
