r"""The statements of the decaying-steps paper (2021), one function each, named after it.

"Faster Federated Learning with Decaying Number of Local SGD Steps" (2021) builds on Charles and
Konečný 2020: its equation 7 is `charles2020.theorem_17`, its surrogate loss (equation 4)
lacks the same square as equation 9 of Charles and Konečný 2020, and its lemmas on quadratics are
those of that paper with K in place of gamma. As there, functions check conditions, left sides are
exact, and `printed=True` gives the published form where it is wrong. Symbols:
`fedax.theory.population`.

K is real here. Algorithm 2 takes whole steps, for which K_t must be rounded; (I - gamma A_i)^K and
the variance of the output, a geometric sum, are real functions of K, so the statements can be
checked for real K. The server's learning rate multiplies the clients' sums of gradients: Algorithm
2 returns x - x_K, which should be x - x_{K+1} and is gamma times that sum.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedax.theory.charles2020.conditions import (
    at_most,
    convex,
    positive,
    round_numbers,
    well_behaved,
)
from fedax.theory.charles2020.convergence import variance_bound
from fedax.theory.claims import Claim, require
from fedax.theory.moments import mean_square_distances
from fedax.theory.population import QuadraticPopulation
from fedax.theory.surrogate import check_gamma, phi, surrogate


class StepSchedules(NamedTuple):
    """Schedules of rounds 1, ..., T.

    Attributes:
      gamma: client learning rate of all rounds.
      Ks: local steps, real, [T].
      etas: server learning rates, [T].
    """

    gamma: float
    Ks: np.ndarray
    etas: np.ndarray


def lemma_1(
    population: QuadraticPopulation, gamma: float, K_1: float, K_2: float
) -> tuple[Claim, Claim]:
    r"""More steps give smaller mean Hessians (decaying-steps paper 2021, appendix A.1.1, Lemma 1).

    If 0 < gamma < 1/L and 1 <= K_1 <= K_2, then :math:`C = Q_i(K_1) A_i / K_1 - Q_i(K_2) A_i / K_2`
    is positive semidefinite, and its largest eigenvalue at most
    :math:`\phi_L(K_1) / K_1 - \phi_L(K_2) / K_2`.

    Returns:
      Two claims with an entry for each client with positive probability.

    Raises:
      ConditionError: if mu or gamma is not positive, gamma >= 1/L, or not 1 <= K_1 <= K_2.

    Example:
      >>> clients = QuadraticPopulation.from_centres([1.0, 2.0], [1.0, 0.5])
      >>> smallest, largest = lemma_1(clients, 0.25, 1, 2)
      >>> largest.actual.round(6).tolist(), round(largest.bound, 6)
      ([0.125, 0.5], 0.5)
    """
    name, clients = _two_lengths("Lemma 1", population, gamma, K_1, K_2)
    first, second = (surrogate(clients, gamma, K).matrices / K for K in (K_1, K_2))
    values = np.linalg.eigvalsh(first - second)
    bound = phi(K_1, clients.L, gamma) / K_1 - phi(K_2, clients.L, gamma) / K_2
    return (
        Claim(name, "lambda_min(C) >= 0", values[:, 0], ">=", 0.0),
        Claim(
            name, "lambda_max(C) <= phi_L(K_1) / K_1 - phi_L(K_2) / K_2",
            values[:, -1], "<=", float(bound),
        ),
    )


def theorem_1(population: QuadraticPopulation, gamma: float, K_1: float, K_2: float) -> Claim:
    r"""Distance between the minimisers of K_1 and K_2 steps (decaying-steps paper 2021, Theorem 1).

    If 0 < gamma < 1/L and 1 <= K_1 <= K_2, then

    .. math:: |x^*(\gamma, K_1) - x^*(\gamma, K_2)| \le \sigma_c
        \left(1 + \frac{\phi_L(K_2)}{\phi_\mu(K_2)}\right)
        \frac{\phi_L(K_1) - (K_1 / K_2) \phi_L(K_2)}{\phi_\mu(K_1)}.

    Raises:
      ConditionError: if mu or gamma is not positive, gamma >= 1/L, or not 1 <= K_1 <= K_2.

    Errata of the proof: those of Theorem 21 of Charles and Konečný 2020, on which it is modelled.
    The theorem is right.

    Example:
      >>> clients = QuadraticPopulation.from_centres([1.0, 2.0], [1.0, 0.5])
      >>> claim = theorem_1(clients, 0.25, 2, 4)
      >>> round(claim.actual, 6), round(claim.bound, 6)
      (0.026633, 0.381122)
    """
    name, clients = _two_lengths("Theorem 1", population, gamma, K_1, K_2)
    mu, L = clients.mu, clients.L
    ratio = phi(K_2, L, gamma) / phi(K_2, mu, gamma)
    difference = phi(K_1, L, gamma) - K_1 / K_2 * phi(K_2, L, gamma)
    return Claim(
        name,
        "|x*(K_1) - x*(K_2)| <= sigma_c (1 + phi_L(K_2) / phi_mu(K_2)) "
        "(phi_L(K_1) - (K_1 / K_2) phi_L(K_2)) / phi_mu(K_1)",
        _distance(clients, gamma, K_1, K_2), "<=",
        float(clients.sigma_c * (1 + ratio) * difference / phi(K_1, mu, gamma)),
    )


def corollary_1(
    population: QuadraticPopulation, gamma: float, K_1: float, K_2: float
) -> tuple[Claim, Claim]:
    r"""The same, in terms of K_2 - K_1 (decaying-steps paper 2021, Corollary 1).

    If 0 < gamma < 1/L and 1 <= K_1 <= K_2, then

    .. math:: |x^*(\gamma, K_1) - x^*(\gamma, K_2)|
        \le 2 \sigma_c \frac{L^2}{\mu^2} \frac{K_2 - K_1}{K_2}
        \le 2 \sigma_c \frac{L^2}{\mu^2} (K_2 - K_1).

    It does not depend on Corollary 22 of Charles and Konečný 2020, and is right.

    Returns:
      Two claims, one for each bound.

    Raises:
      ConditionError: if mu or gamma is not positive, gamma >= 1/L, or not 1 <= K_1 <= K_2.

    Example:
      >>> clients = QuadraticPopulation.from_centres([1.0, 2.0], [1.0, 0.5])
      >>> first, second = corollary_1(clients, 0.25, 2, 4)
      >>> round(first.actual, 6), round(first.bound, 6), round(second.bound, 6)
      (0.026633, 1.0, 4.0)
    """
    name, clients = _two_lengths("Corollary 1", population, gamma, K_1, K_2)
    distance = _distance(clients, gamma, K_1, K_2)
    bound = 2 * clients.sigma_c * clients.kappa**2 * (K_2 - K_1)
    left = "|x*(K_1) - x*(K_2)| <= 2 sigma_c (L / mu)^2 (K_2 - K_1)"
    return (
        Claim(name, left + " / K_2", distance, "<=", bound / K_2),
        Claim(name, left, distance, "<=", bound),
    )


def theorem_2_schedules(
    population: QuadraticPopulation, K_0: float, num_rounds: int, gamma: float | None = None
) -> StepSchedules:
    r"""The schedules of Theorem 2 (decaying-steps paper 2021, equation 11).

    .. math::
        K_t &= \max\left\{\frac{K_0}{b + t}, 1\right\}, \qquad
        \eta_t = \frac{3}{\phi_\mu(\gamma, K_t) (b + t)} \\
        b &= 3 \kappa^2, \qquad \gamma \le \frac{\ln 2}{K_0 \mu}

    gamma < 1/L need not be required: if K_0 is so small that ln 2 / (K_0 mu) >= 1/L, then K_0 <=
    kappa ln 2 < b, every K_t is 1, and gamma has no effect.

    Args:
      population: the clients, mu > 0.
      K_0: >= 1, real. No round has more than K_0 / b steps.
      num_rounds: T.
      gamma: > 0; None: ln 2 / (K_0 mu), the largest.

    Returns:
      gamma, and K_t and eta_t for t = 1, ..., T. fedax's algorithms take them as
      `lambda t: jnp.asarray(Ks)[t]`, as they count rounds from 0, and round K_t up. eta_t is for
      sums of gradients, as `local_update` sends them.

    Raises:
      ConditionError: if mu or gamma is not positive, K_0 < 1, or gamma > ln 2 / (K_0 mu).

    Example:
      >>> clients = QuadraticPopulation.from_centres([1.0, 2.0], [1.0, 0.5])
      >>> gamma, Ks, etas = theorem_2_schedules(clients, 30, 3)
      >>> round(gamma, 4), Ks.round(3).tolist(), etas.round(4).tolist()
      (0.0231, [2.308, 2.143, 2.0], [0.1015, 0.1013, 0.1012])
    """
    return _schedules(_statement("Theorem 2"), population, K_0, num_rounds, gamma)


def theorem_2(
    population: QuadraticPopulation,
    K_0: float,
    start: Any,
    num_rounds: int,
    *,
    gamma: float | None = None,
    batch_size: int = 1,
    cohort_size: int | None = None,
    printed: bool = False,
) -> Claim:
    r"""K falls, and x_t converges to x* (decaying-steps paper 2021, Theorem 2).

    With the schedules of `theorem_2_schedules` and all clients,

    .. math::
        E|x_t - x^*|^2 &\le \frac{2 \nu + 16 \sigma_c^2 \kappa^2 K_0^2}{b + t} \\
        \nu &= \max\left\{\frac{36 G^2}{\mu^2 M B}, (b + 1) |x_1 - x^*_1|^2\right\},

    where x*_1 minimises the surrogate loss of round 1, and M is as in
    `charles2020.convergence`.

    Args:
      population: the clients, mu > 0, with their noise.
      K_0: >= 1, real.
      start: x_1, [d].
      num_rounds: T.
      gamma: > 0; None: ln 2 / (K_0 mu), the largest.
      batch_size: B.
      cohort_size: M clients drawn independently (only with `printed`); None: all.
      printed: with G^2 / K_0 in nu, for every M, as published.

    Returns:
      One claim with an entry for each x_t, t = 1, ..., T + 1.

    Raises:
      ConditionError: as for `theorem_2_schedules`, or if cohort_size is given.

    Errata: (a) published with 36 G^2 / (mu^2 K_0 M B). The proof takes mu_t >= K_0 mu / 2 from
    Lemma 18 of Charles and Konečný 2020, which gives mu_t >= K_t mu / 2, so K_0 must be the
    smallest K_t, which is eventually 1: noise is averaged over K_t steps, not over K_0. With A = 1,
    G = M B = 1, x_1 = x* and K_0 = 2000 the left side tends to 9 / (5 t), which is 50 times the
    published bound and 0.025 times the corrected one. (b) The proof's C = 4 sigma_c^2 kappa^2 must
    be 4 sigma_c^2 kappa^2 K_0^2; and its last steps use equation 9, whose (K_t - 1) / K_t is not
    O(1/t). Equation 10 gives both, and the 16. (c) The erratum of Lemma 23 of Charles and Konečný
    2020.

    Example:
      >>> client = QuadraticPopulation.from_centres([1.0], [0.0], noise=1.0)
      >>> claim = theorem_2(client, 2000, [0.0], 2500, printed=True)
      >>> round(claim.ratio, 2), round(theorem_2(client, 2000, [0.0], 2500).ratio, 3)
      (47.33, 0.024)
    """
    name = _statement("Theorem 2", printed)
    clients = convex(name, population)
    rates = _schedules(name, clients, K_0, num_rounds, gamma)
    b = 3 * clients.kappa**2
    variance = variance_bound(name, clients, 1, batch_size, cohort_size, printed)
    noise = 36 * (variance / clients.mu) / clients.mu
    away = np.asarray(start, float) - surrogate(clients, rates.gamma, rates.Ks[0]).minimiser
    nu = max(noise / K_0 if printed else noise, (b + 1) * away @ away)
    distances = mean_square_distances(
        clients, [rates.gamma] * len(rates.Ks), list(rates.Ks), rates.etas, start,
        clients.minimiser, batch_size=batch_size, cohort_size=cohort_size,
    )
    return Claim(
        name, "E|x_t - x*|^2 <= (2 nu + 16 sigma_c^2 kappa^2 K_0^2) / (b + t)",
        distances, "<=",
        (2 * nu + 16 * (clients.sigma_c * clients.kappa * K_0) ** 2)
        / (b + round_numbers(num_rounds + 1)),
    )


def _statement(number: str, printed: bool = False) -> str:
    return f"Decaying steps 2021, {number}" + (" (as printed)" if printed else "")


def _schedules(
    name: str, population: QuadraticPopulation, K_0: float, num_rounds: int, gamma: float | None
) -> StepSchedules:
    clients = convex(name, population)
    require(K_0 >= 1, name, f"K_0 >= 1, but K_0 = {K_0:g}")
    limit = float(np.log(2) / (K_0 * clients.mu))
    gamma = limit if gamma is None else check_gamma(gamma)
    positive(name, "gamma", gamma)
    at_most(name, "gamma", gamma, "ln 2 / (K_0 mu)", limit)
    later = 3 * clients.kappa**2 + round_numbers(num_rounds)
    Ks = np.maximum(K_0 / later, 1.0)
    curvatures = np.array([phi(K, clients.mu, gamma) for K in Ks])
    return StepSchedules(gamma, Ks, 3 / (curvatures * later))


def _two_lengths(
    number: str, population: QuadraticPopulation, gamma: float, K_1: float, K_2: float
) -> tuple[str, QuadraticPopulation]:
    """The statement's name and the clients, with 0 < gamma < 1/L and 1 <= K_1 <= K_2."""
    name = _statement(number)
    clients = well_behaved(name, population, gamma)
    positive(name, "gamma", gamma)
    require(K_1 >= 1, name, f"K_1 >= 1, but K_1 = {K_1:g}")
    at_most(name, "K_1", K_1, "K_2", K_2)
    return name, clients


def _distance(clients: QuadraticPopulation, gamma: float, K_1: float, K_2: float) -> float:
    first, second = (surrogate(clients, gamma, K).minimiser for K in (K_1, K_2))
    return float(np.linalg.norm(first - second))
