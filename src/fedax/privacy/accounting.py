r"""Accounting: what a number of rounds with noise guarantees, and how much noise a guarantee takes.

The guarantee is (epsilon, delta) differential privacy of whole clients: whether one client's data
are replaced by nothing (its upload by 0) changes the probability of any outcome by at most a factor
e^epsilon, up to delta. N, the number of clients, is public.

In each round every client takes part with probability q = cohort_size / N, and the sum of the
clipped uploads gets Gaussian noise of `noise_multiplier` times the clipping norm. With `bands` b
> 1 the noise is correlated over b rounds, and the clients, dealt into b groups, take turns: in each
round a client of the group takes part with probability q b. Then T rounds cost as much as
ceil(T / b) with that probability (Choquette-Choo et al. 2023, "(Amplified) Banded Matrix
Factorization", Theorem 4).

The numbers are dp-accounting's: privacy loss distributions (Koskela et al. 2020), or Rényi
divergences where the noise is so small that distributions would take minutes, or delta so small
that they say nothing.
"""

from __future__ import annotations

import functools
import logging
import math
from typing import Any

from fedax.privacy.library import PrivacyError, require_libraries
from fedax.validate import check_count, check_number

# Below this multiplier distributions of the privacy loss take seconds and hundreds of MB.
SMALL_NOISE = 0.5
# A noise multiplier is found to this relative precision.
PRECISION = 1e-4
# More noise than that is nobody's; more rounds than that, too.
MOST_NOISE = 2.0**20
MOST_ROUNDS = 2**24


def default_delta(num_clients: int) -> float:
    """N^-1.1, smaller than the chance 1 / N of picking the client.

    Example:
      >>> f"{default_delta(1000):.2g}"
      '0.0005'
    """
    return float(num_clients) ** -1.1


def epsilon(
    noise_multiplier: float,
    num_rounds: int,
    *,
    cohort_size: int,
    num_clients: int,
    delta: float | None = None,
    bands: int = 1,
) -> float:
    """The epsilon that a number of rounds guarantees.

    Args:
      noise_multiplier: z >= 0, the noise's standard deviation over the clipping norm.
      num_rounds: T >= 0.
      cohort_size: the expected number of clients in a round, at least 1.
      num_clients: N.
      delta: in (0, 1); None: N^-1.1.
      bands: b >= 1, see the top of this page.

    Returns:
      Epsilon; 0 without rounds, infinity without noise.

    Raises:
      PrivacyError: jax-privacy is not installed, or b groups cannot give such cohorts.
      ValueError: an argument is out of its range.

    Example:
      >>> from fedax import privacy
      >>> print(f"{privacy.epsilon(1.0, 500, cohort_size=100, num_clients=3400, delta=1e-5):.2f}")
      4.20
    """
    check_number("noise_multiplier", noise_multiplier, at_least=0)
    check_count("num_rounds", num_rounds, at_least=0)
    delta = checked_delta(delta, num_clients)
    check_cohort(cohort_size, num_clients, bands)
    if num_rounds == 0:
        return 0.0
    if noise_multiplier == 0:
        return math.inf
    # The groups take turns, so a cycle that has begun costs as much as a whole one.
    whole = -(-num_rounds // bands) * bands
    return _epsilon(float(noise_multiplier), whole, cohort_size, num_clients, delta, bands)


def noise_multiplier(
    epsilon: float,
    num_rounds: int,
    *,
    cohort_size: int,
    num_clients: int,
    delta: float | None = None,
    bands: int = 1,
) -> float:
    """The least noise multiplier with which a number of rounds guarantees this epsilon.

    Args:
      epsilon: above 0.
      num_rounds: T >= 1.
      cohort_size, num_clients, delta, bands: as for `epsilon`.

    Returns:
      z, at most one part in 10,000 above the least.

    Raises:
      PrivacyError, ValueError: as for `epsilon`.

    Example:
      >>> from fedax import privacy
      >>> rounds = {"cohort_size": 100, "num_clients": 3400, "delta": 1e-5}
      >>> print(f"{privacy.noise_multiplier(8.0, 500, **rounds):.3f}")
      0.753
    """
    check_number("epsilon", epsilon, above=0)
    check_count("num_rounds", num_rounds)

    def of(noise: float) -> float:
        return _of(noise, num_rounds, cohort_size, num_clients, delta, bands)

    high, high_epsilon = 1.0, of(1.0)
    while high_epsilon > epsilon:
        high = 2 * high
        high_epsilon = of(high)
        if high > MOST_NOISE:
            raise PrivacyError(
                f"No noise gives epsilon {epsilon:g} with delta "
                f"{checked_delta(delta, num_clients):.3g} over {num_rounds:,} rounds. Allow a "
                "larger epsilon or fewer rounds."
            )
    low, low_epsilon = high / 2, of(high / 2)
    while low_epsilon <= epsilon:
        high, high_epsilon, low = low, low_epsilon, low / 2
        low_epsilon = of(low)
    tries = 0
    while high - low > PRECISION * high:
        # Epsilon is nearly a power of z, and each costs a second: guess, a bit above and below.
        share = 0.5
        if high_epsilon > 0 and math.isfinite(low_epsilon):
            share = math.log(low_epsilon / epsilon) / math.log(low_epsilon / high_epsilon)
        aside = PRECISION / 3 * (-1) ** tries
        middle = low * (high / low) ** share * (1 + aside)
        tries += 1
        if tries % 4 == 0 or not low < middle < high:
            middle = (low + high) / 2
        reached = of(middle)
        if reached <= epsilon:
            high, high_epsilon = middle, reached
        else:
            low, low_epsilon = middle, reached
    return high


def num_rounds(
    epsilon: float,
    noise_multiplier: float,
    *,
    cohort_size: int,
    num_clients: int,
    delta: float | None = None,
    bands: int = 1,
) -> int:
    """The largest number of rounds that still guarantees this epsilon.

    Args:
      epsilon: above 0.
      noise_multiplier: z >= 0.
      cohort_size, num_clients, delta, bands: as for `epsilon`.

    Returns:
      T, at most 2^24; 0 if one round is too much.

    Raises:
      PrivacyError, ValueError: as for `epsilon`.

    Example:
      >>> from fedax import privacy
      >>> privacy.num_rounds(4.0, 1.0, cohort_size=100, num_clients=3400, delta=1e-5)
      452
    """
    check_number("epsilon", epsilon, above=0)

    def of(cycles: int) -> float:
        return _of(noise_multiplier, cycles * bands, cohort_size, num_clients, delta, bands)

    low, low_epsilon = 1, of(1)
    if low_epsilon > epsilon:
        return 0
    high, high_epsilon = 2, of(2)
    while high_epsilon <= epsilon:
        if high * bands >= MOST_ROUNDS:
            return MOST_ROUNDS
        low, low_epsilon, high = high, high_epsilon, 2 * high
        high_epsilon = of(high)
    while high - low > 1:
        # Epsilon is nearly a power of T, and each costs a second.
        guess = (low + high) // 2
        if low_epsilon > 0:  # it can be 0: delta alone is enough
            slope = math.log(high_epsilon / low_epsilon) / math.log(high / low)
            guess = int(low * (epsilon / low_epsilon) ** (1 / slope)) if slope > 0 else low
        middle = min(max(guess, low + 1), high - 1)
        if of(middle) <= epsilon:
            low, low_epsilon = middle, of(middle)
        else:
            high, high_epsilon = middle, of(middle)
    return low * bands


def checked_delta(delta: float | None, num_clients: int) -> float:
    """The delta that is meant; raises a clear error if it is out of range."""
    check_count("num_clients", num_clients)
    if delta is None:
        return default_delta(num_clients) if num_clients > 1 else 0.5
    check_number("delta", delta, above=0, below=1)
    return float(delta)


def check_cohort(cohort_size: int, num_clients: int, bands: int) -> None:
    """Raises a clear error unless b groups of the clients can give cohorts of this size."""
    check_count("cohort_size", cohort_size)
    check_count("bands", bands, at_most=num_clients)
    if cohort_size > num_clients // bands:
        groups = f"{bands} groups of " if bands > 1 else ""
        raise PrivacyError(
            f"cohort_size is {cohort_size}, but {num_clients} clients make only {groups}"
            f"{num_clients // bands}. Take smaller cohorts"
            f"{' or fewer bands' if bands > 1 else ''}."
        )


def _of(
    noise: float, rounds: int, cohort_size: int, num_clients: int, delta: float | None, bands: int
) -> float:
    return epsilon(
        noise, rounds, cohort_size=cohort_size, num_clients=num_clients, delta=delta, bands=bands
    )


def _no_orders(record: logging.LogRecord) -> bool:
    return "Excluding this order" not in record.getMessage()


@functools.lru_cache(maxsize=256)
def _epsilon(
    noise: float, rounds: int, cohort_size: int, num_clients: int, delta: float, bands: int
) -> float:
    require_libraries()
    from jax_privacy.accounting import (  # noqa: PLC0415 - optional, and slow to import
        DpParams,
        DpsgdTrainingAccountant,
        PldAccountantConfig,
        RdpAccountantConfig,
    )

    # Rényi orders that do not converge are left out, which is no news for a user.
    logging.getLogger("absl").addFilter(_no_orders)
    params = DpParams(
        noise_multipliers=noise, num_samples=num_clients, delta=delta, batch_size=cohort_size,
        cycle_length=bands,
    )

    def by(config: Any) -> float:
        return float(DpsgdTrainingAccountant(config).compute_epsilon(rounds, params))

    exact = math.inf if noise < SMALL_NOISE else by(PldAccountantConfig())
    # Distributions are cut at their tails, which alone are more than a delta of 1e-15.
    return exact if math.isfinite(exact) else by(RdpAccountantConfig())
