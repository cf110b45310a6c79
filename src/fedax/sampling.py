"""Which clients take part in a round."""

from __future__ import annotations

import numpy as np


def sample_cohort(
    seed: int, round_index: int, num_clients: int, cohort_size: int
) -> np.ndarray:
    """Draws a cohort uniformly without replacement; rounds are independent of each other.

    Floyd's algorithm (Bentley and Floyd 1987) on the Philox stream of (seed, round_index): the
    cost grows with the cohort, not with the population, and the draw depends on nothing that
    came before, so a resumed run draws what the uninterrupted one would have.

    Args:
      seed: the run's seed, >= 0.
      round_index: t = 0, 1, ...
      num_clients: N, the size of the population.
      cohort_size: 1 .. N.

    Returns:
      Sorted client indices, int64 [cohort_size].

    Raises:
      ValueError: the cohort is empty or larger than the population.

    Example:
      >>> sample_cohort(seed=0, round_index=3, num_clients=5, cohort_size=5).tolist()
      [0, 1, 2, 3, 4]
    """
    if not 1 <= cohort_size <= num_clients:
        raise ValueError(
            f"A cohort of {cohort_size} clients cannot be drawn from a population of "
            f"{num_clients}; choose a cohort_size from 1 to {num_clients}."
        )
    if cohort_size == num_clients:
        return np.arange(num_clients, dtype=np.int64)
    # A spawn key, unlike a second word of entropy, collides with no other (seed, round).
    stream = np.random.Philox(np.random.SeedSequence(seed, spawn_key=(round_index,)))
    chosen: set[int] = set()
    lasts = range(num_clients - cohort_size, num_clients)
    for word, last in zip(stream.random_raw(cohort_size).tolist(), lasts, strict=True):
        draw = (word * (last + 1)) >> 64  # uniform on 0 .. last up to 2^-64 * (last + 1)
        chosen.add(last if draw in chosen else draw)
    return np.array(sorted(chosen), dtype=np.int64)
