"""Conditions of the statements, and the clients they are about."""

from __future__ import annotations

import dataclasses

import numpy as np

from fedax.theory.claims import require
from fedax.theory.given import as_count
from fedax.theory.population import SINGULAR, QuadraticPopulation
from fedax.theory.surrogate import check_gamma

# A value may pass a limit that it is allowed to equal by this share, which is rounding.
ROUNDING = 1e-12


def statement(number: str, printed: bool = False) -> str:
    """Paper and number, the name of a statement in `Claim` and in errors."""
    return f"Charles and Konečný 2020, {number}" + (" (as printed)" if printed else "")


def below(name: str, symbol: str, value: float, limit_symbol: str, limit: float) -> None:
    """Requires value < limit of the statement with this name."""
    require(
        value < limit, name,
        f"{symbol} < {limit_symbol}, but {symbol} = {value:g} and {limit_symbol} = {limit:g}",
    )


def at_most(name: str, symbol: str, value: float, limit_symbol: str, limit: float) -> None:
    """Requires value <= limit, up to rounding."""
    require(
        value <= limit + ROUNDING * abs(limit), name,
        f"{symbol} <= {limit_symbol}, but {symbol} = {value:g} and {limit_symbol} = {limit:g}",
    )


def at_least(name: str, symbol: str, value: float, limit_symbol: str, limit: float) -> None:
    """Requires value >= limit, up to rounding."""
    require(
        value >= limit - ROUNDING * abs(limit), name,
        f"{symbol} >= {limit_symbol}, but {symbol} = {value:g} and {limit_symbol} = {limit:g}",
    )


def positive(name: str, symbol: str, value: float) -> None:
    """Requires value > 0."""
    require(value > 0, name, f"{symbol} > 0, but {symbol} = {value:g}")


def whole_steps(name: str, K: float) -> int:
    """Requires a whole number of steps, at least 1, and returns it."""
    require(K >= 1 and int(K) == K, name, f"a whole K >= 1, but K = {K:g}")
    return int(K)


def round_numbers(num_rounds: int) -> np.ndarray:
    """The rounds t = 1, ..., T.

    Raises:
      TheoryError: if T is not a whole number >= 1.
    """
    return np.arange(1, as_count("num_rounds", num_rounds) + 1)


def convex(name: str, population: QuadraticPopulation) -> QuadraticPopulation:
    """Requires mu > 0 (Assumption 2).

    Returns:
      The clients that statements are about: those with a positive probability.
    """
    mu, L = population.mu, population.L
    beside = f", which is negligible compared with L = {L:g}" if mu > 0 else ""
    require(
        mu > SINGULAR * L, name, f"mu > 0 (Assumption 2), but mu = {mu:g}{beside}"
    )
    part = population.taking_part
    if part.all():
        return population
    return dataclasses.replace(
        population,
        matrices=population.matrices[part],
        linear=population.linear[part],
        probabilities=population.probabilities[part],
        noise=population.noise[part],
    )


def well_behaved(
    name: str, population: QuadraticPopulation, gamma: float, K: int = 1, symbol: str = "gamma"
) -> QuadraticPopulation:
    """Requires mu > 0 and gamma < 1 / (K L), and returns the clients as `convex` does."""
    clients = convex(name, population)
    limit = "1/L" if K == 1 else "1/(K L)"
    below(name, symbol, check_gamma(gamma), limit, 1 / (K * clients.L))
    return clients
