"""The client learning rate or number of local steps that keeps FedAvg within a given distance.

FedAvg with fixed gamma and K converges to x*(gamma, K). These functions give the largest gamma and
K for which that is within a given distance of x*, exactly and by the bounds of Charles and Konečný
2020. Symbols: see `fedax.theory.population`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from fedax.theory.errors import TheoryError
from fedax.theory.population import QuadraticPopulation
from fedax.theory.surrogate import phi, surrogate

# Up to how many local steps `largest_K` looks.
MOST_STEPS = 2**20


def largest_gamma(population: QuadraticPopulation, K: float, accuracy: float) -> float:
    """The largest gamma up to which |x*(gamma, K) - x*| <= accuracy, exactly; at most 1/L.

    Args:
      population: the clients.
      K: local steps.
      accuracy: the allowed distance, > 0.

    Returns:
      The largest such gamma. It is 1/L if no smaller gamma exceeds the distance: beyond 1/L a
      client may overshoot its own minimiser, and the theory does not apply.

    Example:
      >>> clients = QuadraticPopulation.from_centres([1.0, 2.0], [1.0, 0.5])
      >>> round(largest_gamma(clients, 2, 0.02), 9)  # gamma / (3 (6 - 5 gamma)) = 0.02
      0.276923077
    """
    check_accuracy(accuracy)
    return _first_crossing(lambda gamma: surrogate(population, gamma, K).gap, accuracy, population)


def theorem_17_gamma(population: QuadraticPopulation, K: float, accuracy: float) -> float:
    """The largest gamma, at most 1/L, for which Theorem 17 promises the distance."""
    check_accuracy(accuracy)
    scale = _scale(population, "Theorem 17")
    L, mu = population.L, population.mu

    def bound(gamma: float) -> float:
        return float(scale * (K * L - phi(K, L, gamma)) / phi(K, mu, gamma))

    return _first_crossing(bound, accuracy, population)


def corollary_20_gamma(population: QuadraticPopulation, K: float, accuracy: float) -> float:
    r"""The gamma that Corollary 20 of Charles and Konečný 2020 prescribes for a distance.

    .. math::
        \gamma = \frac{\ln(1 / (1 - \epsilon))}{K L}, \qquad
        \sigma_c \Bigl(1 + \frac{\sigma_A}{\mu}\Bigr) \frac{L}{\mu} \frac{\epsilon}{1 - \epsilon}
        = \text{accuracy},

    at most the gamma of epsilon = 1 - e^{-K}, which is 1/L.
    """
    check_accuracy(accuracy)
    scale = _scale(population, "Corollary 20") * population.kappa
    if scale == 0:
        return 1 / population.L
    return float(min(np.log1p(accuracy / scale) / (K * population.L), 1 / population.L))


def _scale(population: QuadraticPopulation, name: str) -> float:
    """The common factor of both bounds: sigma_c (1 + sigma_A / mu)."""
    mu = population.mu
    if mu <= 0:
        raise TheoryError(f"{name} needs mu > 0, but mu = {mu:.4g}.")
    scale = population.sigma_c * (1 + population.sigma_A / mu)
    if not np.isfinite(scale):
        raise TheoryError(
            f"The bound of {name} overflows float64: the clients differ too much for it "
            f"(sigma_c = {population.sigma_c:.4g}, sigma_A / mu = {population.sigma_A / mu:.4g})."
        )
    return scale


def largest_K(  # noqa: N802 - the papers' letter
    population: QuadraticPopulation, gamma: float, accuracy: float
) -> float:
    """The largest K up to which |x*(gamma, K) - x*| <= accuracy; inf if all up to 2^20 do.

    Example:
      >>> clients = QuadraticPopulation.from_centres([1.0, 2.0], [1.0, 0.5])
      >>> largest_K(clients, 0.5, 0.07), largest_K(clients, 0.5, 0.1)  # gaps 0, 1/21, 1/15, ...
      (3, inf)
    """
    check_accuracy(accuracy)
    within = 1
    while within < MOST_STEPS:
        beyond = min(within + max(1, within // 50), MOST_STEPS)  # every K at first
        if surrogate(population, gamma, beyond).gap > accuracy:
            break
        within = beyond
    else:
        return float("inf")
    while beyond - within > 1:
        middle = (within + beyond) // 2
        if surrogate(population, gamma, middle).gap <= accuracy:
            within = middle
        else:
            beyond = middle
    return within


def _first_crossing(
    distance: Callable[[float], float], accuracy: float, population: QuadraticPopulation
) -> float:
    """Where a distance that is 0 at gamma = 0 first exceeds the accuracy, in (0, 1/L]."""
    from scipy.optimize import brentq  # noqa: PLC0415 - slow to import

    limit = 1 / population.L
    grid = limit * np.concatenate([[0.0], np.geomspace(1e-12, 1 - 1e-12, 400)])
    for left, right in itertools.pairwise(grid):
        if distance(right) > accuracy:
            root = brentq(
                lambda gamma: distance(gamma) - accuracy, left, right, xtol=1e-15 * limit
            )
            return float(root)  # pyright: ignore[reportArgumentType] - only a root is asked for
    return limit


def check_accuracy(accuracy: float) -> None:
    """Raises a clear error unless the allowed distance is a finite number > 0."""
    if not np.isfinite(accuracy) or accuracy <= 0:
        raise TheoryError(f"accuracy must be a finite distance > 0, but is {accuracy}.")
