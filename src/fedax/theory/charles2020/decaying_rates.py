"""Section 7, continued: decaying rates, in Theorems 27 and 29 and Corollary 28."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedax.theory.charles2020.conditions import (
    at_least,
    convex,
    round_numbers,
    statement,
    whole_steps,
)
from fedax.theory.charles2020.convergence import (
    curvatures,
    default_offset,
    fedavg_distances,
    variance_bound,
)
from fedax.theory.charles2020.distance import distance_within, nearly_linear
from fedax.theory.claims import Claim
from fedax.theory.population import QuadraticPopulation
from fedax.theory.surrogate import phi, surrogate


class Schedules(NamedTuple):
    """Learning rates of rounds 1, ..., T.

    Attributes:
      gammas: client learning rates, [T].
      etas: server learning rates, [T].
    """

    gammas: np.ndarray
    etas: np.ndarray


def theorem_27_schedule(
    population: QuadraticPopulation, gamma: float, K: int, num_rounds: int, b: float | None = None
) -> np.ndarray:
    r"""The server's learning rates of Theorem 27, [T]: eta_t = 2 / (mu_gamma (b + t)).

    Args:
      population: the clients, mu > 0.
      gamma: 0 <= gamma <= 1/L.
      K: whole, >= 1.
      num_rounds: T.
      b: offset; None: the smallest published value, 2 L_gamma^2 / mu_gamma^2.

    Raises:
      ConditionError: if mu is not positive, gamma > 1/L, or K is not a whole number >= 1.

    Example:
      >>> clients = QuadraticPopulation.from_centres([1.0, 2.0], [1.0, 0.5])
      >>> theorem_27_schedule(clients, 0.25, 2, 3).round(4).tolist()
      [0.1662, 0.1451, 0.1287]
    """
    name = statement("Theorem 27")
    _, mu_gamma, L_gamma = curvatures(name, population, gamma, K)
    return 2 / (mu_gamma * (default_offset(b, mu_gamma, L_gamma) + round_numbers(num_rounds)))


def theorem_27(
    population: QuadraticPopulation,
    gamma: float,
    K: int,
    start: Any,
    num_rounds: int,
    *,
    b: float | None = None,
    batch_size: int = 1,
    cohort_size: int | None = None,
    printed: bool = False,
) -> Claim:
    r"""Client rate fixed, server rate falling (Charles and Konečný 2020, Theorem 27).

    If gamma <= 1/L, all clients take part, eta_t = 2 / (mu_gamma (b + t)) and
    b >= 2 L_gamma / mu_gamma, then

    .. math::
        E|x_t - x^*_\gamma|^2 &\le \frac{\nu}{b + t} \\
        \nu &= \max\left\{\frac{4 K G^2}{\mu_\gamma^2 M B}, (b + 1) |x_1 - x^*_\gamma|^2\right\}.

    The published condition is b >= 2 L_gamma^2 / mu_gamma^2; Lemma 25 as stated here allows a
    smaller b.

    Args:
      population, gamma, K, start, batch_size, cohort_size: as for `lemma_25`.
      num_rounds: T.
      b: offset; None: 2 L_gamma^2 / mu_gamma^2.
      printed: for every gamma and M, with the condition on b, as published.

    Returns:
      One claim with an entry for each x_t, t = 1, ..., T + 1.

    Raises:
      ConditionError: as for `lemma_25`, or if b is too small.

    Errata: those of Lemmas 23 and 24.

    Example:
      >>> clients = QuadraticPopulation.from_centres([1.0, 2.0], [1.0, 0.5], noise=1.0)
      >>> claim = theorem_27(clients, 0.25, 2, [0.0], 2)
      >>> claim.actual.round(3).tolist(), claim.bound.round(3).tolist()
      ([0.468, 0.191, 0.097], [0.468, 0.409, 0.363])
    """
    name = statement("Theorem 27", printed)
    return _decaying(
        name, population, gamma, K, start, num_rounds, b, batch_size, cohort_size, printed
    ).claim


def corollary_28(
    population: QuadraticPopulation,
    gamma: float,
    K: int,
    epsilon: float,
    start: Any,
    num_rounds: int,
    *,
    b: float | None = None,
    batch_size: int = 1,
    cohort_size: int | None = None,
    printed: bool = False,
) -> tuple[Claim, Claim]:
    r"""The same, towards the true minimiser (Charles and Konečný 2020, Corollary 28).

    If epsilon <= 1 - e^{-K}, gamma <= ln(1/(1 - epsilon)) / (K L), all clients take part and eta_t
    and b are as in Theorem 27, then

    .. math::
        E|x_t - x^*|^2 &\le \frac{2 \nu}{b + t} + 2 \sigma_c^2
        \left(1 + \frac{\sigma_A}{\mu}\right)^2
        \frac{L^2}{\mu^2} \frac{\epsilon^2}{(1 - \epsilon)^2} \\
        \nu &\le \max\left\{\frac{4 G^2}{(1 - \epsilon)^2 \mu^2 K M B},
        (b + 1) |x_1 - x^*_\gamma|^2\right\}.

    Args:
      population, gamma, K, start, num_rounds, b, batch_size, cohort_size: as for `theorem_27`.
      epsilon: 0 <= epsilon <= 1 - e^{-K}.
      printed: for every M, with the condition on b, as published.

    Returns:
      Two claims: one with an entry for each x_t, t = 1, ..., T + 1, and one for nu.

    Raises:
      ConditionError: as for `theorem_27`, or if epsilon or gamma is out of range.

    Errata: that of Lemma 23. In the text after it beta_2 lacks the square of |x_1 - x*_gamma|, and
    b_gamma is twice the square of the condition number, not twice the condition number (with which
    it would do here).

    Example:
      >>> clients = QuadraticPopulation.from_centres([1.0, 2.0], [1.0, 0.5], noise=1.0)
      >>> claim, nu = corollary_28(clients, 0.1, 2, 0.5, [0.0], 2)
      >>> claim.actual.round(3).tolist(), claim.bound.round(3).tolist()
      ([0.444, 0.198, 0.103], [2.03, 1.932, 1.852])
      >>> round(nu.actual, 3), round(nu.bound, 3)
      (3.702, 4.0)
    """
    name = statement("Corollary 28", printed)
    clients, steps = nearly_linear(name, population, gamma, K, epsilon)
    found = _decaying(
        name, clients, gamma, steps, start, num_rounds, b, batch_size, cohort_size, printed
    )
    distances = fedavg_distances(
        clients, gamma, steps, found.etas, start, clients.minimiser, batch_size, cohort_size
    )
    first = 4 * found.variance / ((1 - epsilon) * clients.mu * steps) ** 2
    return (
        Claim(
            name,
            "E|x_t - x*|^2 <= 2 nu / (b + t) "
            "+ 2 (sigma_c (1 + sigma_A / mu) (L / mu) epsilon / (1 - epsilon))^2",
            distances, "<=", 2 * found.claim.bound + 2 * distance_within(clients, epsilon) ** 2,
        ),
        Claim(
            name,
            "nu <= max(4 G^2 / ((1 - epsilon)^2 mu^2 K M B), (b + 1) |x_1 - x*_gamma|^2)",
            found.nu, "<=", max(first, found.initial),
        ),
    )


def theorem_29_schedules(population: QuadraticPopulation, K: int, num_rounds: int) -> Schedules:
    r"""The learning rates of Theorem 29.

    .. math::
        \gamma_t &= \min\left\{\frac{1}{L (b + t)}, \frac{\ln 2}{K \mu}\right\} \\
        \eta_t &= \frac{3}{\phi_{K,\mu}(\gamma_t) (b + t)}, \qquad b = 3 \kappa^2

    Args:
      population: the clients, mu > 0.
      K: whole, >= 1.
      num_rounds: T.

    Raises:
      ConditionError: if mu is not positive, or K is not a whole number >= 1.

    Example:
      >>> clients = QuadraticPopulation.from_centres([1.0, 2.0], [1.0, 0.5])
      >>> gammas, etas = theorem_29_schedules(clients, 2, 3)
      >>> gammas.round(4).tolist(), etas.round(4).tolist()
      ([0.0385, 0.0357, 0.0333], [0.1176, 0.1091, 0.1017])
    """
    name = statement("Theorem 29")
    clients, steps = convex(name, population), whole_steps(name, K)
    later = 3 * clients.kappa**2 + round_numbers(num_rounds)
    gammas = np.minimum(1 / (clients.L * later), np.log(2) / (steps * clients.mu))
    curvatures = np.array([phi(steps, clients.mu, gamma) for gamma in gammas])
    return Schedules(gammas, 3 / (curvatures * later))


def theorem_29(
    population: QuadraticPopulation,
    K: int,
    start: Any,
    num_rounds: int,
    *,
    batch_size: int = 1,
    cohort_size: int | None = None,
    printed: bool = False,
) -> Claim:
    r"""Both learning rates fall, and x_t converges to x* (Charles and Konečný 2020, Theorem 29).

    With the schedules of `theorem_29_schedules` and all clients,

    .. math::
        E|x_t - x^*|^2 &\le \frac{2 \nu + 4 K^2 \sigma_c^2 \kappa^2}{b + t} \\
        \nu &= \max\left\{\frac{36 G^2}{\mu^2 K M B}, (b + 1) |x_1 - x^*_1|^2\right\},

    where x*_1 minimises the surrogate loss of round 1.

    Args:
      population: the clients, mu > 0, with their noise.
      K: whole, >= 1.
      start: x_1, [d].
      num_rounds: T.
      batch_size: B.
      cohort_size: M clients drawn independently (only with `printed`); None: all.
      printed: with 16 sigma_c^2 kappa^2 and 18 G^2, for every M, as published.

    Returns:
      One claim with an entry for each x_t, t = 1, ..., T + 1.

    Raises:
      ConditionError: if mu is not positive, K is not a whole number >= 1, or cohort_size is given.

    Errata: (a) published with 16 sigma_c^2 kappa^2. The proof uses Corollary 22, whose constant is
    K instead of 2, so its C = 4 sigma_c^2 kappa^2 becomes K^2 sigma_c^2 kappa^2. No constant
    without K can be right: gamma_t is ln 2 / (K mu) for about K / (kappa ln 2) rounds, in which
    x*_t does not move while the published bound falls. A = 50, 1 with p = 1/51, 50/51 and c = 1, 0,
    K = 300000, no noise: started at x*_1, |x_1 - x*|^2 is .2130, the published bound .1025. (b) The
    proof's 9 K G^2 / mu_t^2 with mu_t >= K mu / 2 is 36 G^2 / (mu^2 K), not 18. (c) That of Lemma
    23. (d) In the proof eta_t = (3/mu_t) / (3 kappa^2 + t), the left side of equation 42 is
    |x_{t+1} - x*_{t+1}|^2, and the last |x*_t - x*| is squared.

    Example:
      >>> clients = QuadraticPopulation.from_centres([1.0, 2.0], [1.0, 0.5], noise=1.0)
      >>> claim = theorem_29(clients, 2, [0.0], 2)
      >>> claim.actual.round(3).tolist(), claim.bound.round(3).tolist()
      ([0.444, 0.205, 0.106], [1.692, 1.571, 1.467])
    """
    name = statement("Theorem 29", printed)
    clients, steps = convex(name, population), whole_steps(name, K)
    variance = variance_bound(name, clients, steps, batch_size, cohort_size, printed)
    gammas, etas = theorem_29_schedules(clients, steps, num_rounds)
    b = 3 * clients.kappa**2
    first, C = (18, 4.0) if printed else (36, float(steps**2))
    away = np.asarray(start, float) - surrogate(clients, gammas[0], steps).minimiser
    nu = max(first * (variance / clients.mu / steps) / clients.mu / steps, (b + 1) * away @ away)
    distances = fedavg_distances(
        clients, gammas, steps, etas, start, clients.minimiser, batch_size, cohort_size
    )
    return Claim(
        name,
        f"E|x_t - x*|^2 <= (2 nu + {'16' if printed else '4 K^2'} sigma_c^2 kappa^2) / (b + t)",
        distances, "<=",
        (2 * nu + 4 * C * (clients.sigma_c * clients.kappa) ** 2)
        / (b + round_numbers(num_rounds + 1)),
    )


class _Decaying(NamedTuple):
    """Theorem 27's claim and its quantities."""

    claim: Claim
    etas: np.ndarray
    variance: float
    nu: float
    initial: float


def _decaying(
    name: str,
    population: QuadraticPopulation,
    gamma: float,
    K: int,
    start: Any,
    num_rounds: int,
    b: float | None,
    batch_size: int,
    cohort_size: int | None,
    printed: bool,
) -> _Decaying:
    """Theorem 27; see there."""
    clients, mu_gamma, L_gamma = curvatures(name, population, gamma, K, printed)
    b = default_offset(b, mu_gamma, L_gamma)
    condition = L_gamma / mu_gamma
    if printed:
        at_least(name, "b", b, "2 L_gamma^2 / mu_gamma^2", 2 * condition**2)
    else:
        at_least(name, "b", b, "2 L_gamma / mu_gamma", 2 * condition)
    variance = variance_bound(name, clients, K, batch_size, cohort_size, printed)
    later = b + round_numbers(num_rounds + 1)
    etas = 2 / (mu_gamma * later[:-1])
    target = surrogate(clients, gamma, K).minimiser
    distances = fedavg_distances(clients, gamma, K, etas, start, target, batch_size, cohort_size)
    initial = float((b + 1) * distances[0])
    nu = max(4 * variance / mu_gamma**2, initial)
    claim = Claim(name, "E|x_t - x*_gamma|^2 <= nu / (b + t)", distances, "<=", nu / later)
    return _Decaying(claim, etas, variance, nu, initial)
