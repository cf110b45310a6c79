"""Work of the host ahead of the device: draws cohorts, loads their data, groups rounds.

Rounds that take less time than a dispatch are sent to the device together. They are turns of one
compiled loop, so the results are bit-identical however many are sent together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh

from fedax.data.cohort_data import NOBODY, CohortData, CohortReader
from fedax.devices.mesh import deal
from fedax.rounds.sampling import Cohort, Sampler

Result = TypeVar("Result")

# Rounds that go to the device together: at most so many, and for about so long.
MOST_ROUNDS = 64
DISPATCH_SECONDS = 0.05


class Prepared(NamedTuple):
    """Rounds that are ready for the device.

    Attributes:
      first: round_index of the first.
      num_rounds: how many there are.
      client_ids, dropped_at: who takes part, [num_rounds, cohort_size].
      data: their data, stacked, of as many rounds as the compiled program can take.
    """

    first: int
    num_rounds: int
    client_ids: np.ndarray
    dropped_at: np.ndarray
    data: CohortData


def as_here(function: Callable[..., Result]) -> Callable[..., Result]:
    """The function, in another thread as in this one: JAX's context managers hold in their own."""
    config: Any = jax.config  # whose settings type checkers do not know
    x64, device = config.jax_enable_x64, config.jax_default_device

    def run(*arguments: Any) -> Result:
        with jax.enable_x64(x64), jax.default_device(device):
            return function(*arguments)

    return run


class Pace:
    """How many rounds go together: one at first, then as many as take DISPATCH_SECONDS.

    Example:
      >>> pace = Pace(MOST_ROUNDS)
      >>> for seconds in (0.001, 0.002, 0.004):
      ...     pace.learn(seconds, pace.count)
      >>> pace.count
      8
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.count = 1

    def learn(self, seconds: float, count: int) -> None:
        """Takes notice of how long `count` rounds took together, compilation left aside."""
        wanted = int(DISPATCH_SECONDS * count / max(seconds, 1e-9))
        self.count = max(1, min(wanted, 2 * self.count, self.most))


class Preparer:
    """Makes the next rounds ready.

    Args:
      draw: who takes part in a round.
      num_exchanges: of the algorithm.
      reader: brings their data.
      client_sizes: n_i of the population.
      pace: how many rounds go together at most.
      stops: (number of rounds done) -> whether something is wanted then, so that no more rounds
        go together.
      num_rounds: T.
      mesh: of the reader.
    """

    def __init__(
        self,
        draw: Sampler,
        num_exchanges: int,
        reader: CohortReader,
        client_sizes: np.ndarray,
        pace: Pace,
        stops: Callable[[int], bool],
        num_rounds: int,
        mesh: Mesh | None,
    ) -> None:
        self._draw = draw
        self._num_exchanges = num_exchanges
        self._reader = reader
        self._sizes = client_sizes
        self._pace = pace
        self._stops = stops
        self._num_rounds = num_rounds
        self._mesh = mesh

    def __call__(self, first: int) -> Prepared | None:
        """The rounds from this round_index on, or None if there are none left."""
        if first >= self._num_rounds:
            return None
        cohorts = self._cohorts(first)
        last = first + len(cohorts)
        ids, dropped_at = (np.stack(rows) for rows in zip(*cohorts, strict=True))
        # One program takes them, however many there are.
        fill = np.minimum(np.arange(self._pace.most), last - first - 1)
        data = self._reader(ids, dropped_at, fill)
        if self._draw.expected is not None:
            data = dataclasses.replace(data, expected=np.int32(self._draw.expected))
        return Prepared(first, last - first, ids, dropped_at, data)

    def _cohorts(self, first: int) -> list[Cohort]:
        """Those of the next rounds that can go together, at least one."""
        cohorts = [self._arranged(first)]
        for index in range(first + 1, min(first + self._pace.count, self._num_rounds)):
            if self._stops(index):
                break
            try:
                cohort = self._arranged(index)
            except Exception:  # is raised again when this round is the first
                break
            if len(cohort.client_ids) != len(cohorts[0].client_ids):
                break
            cohorts.append(cohort)
        return cohorts

    def _arranged(self, round_index: int) -> Cohort:
        """A cohort in which like sizes share a chunk, and devices of a mesh have their share."""
        cohort = self._draw(round_index, self._num_exchanges)
        places = deal(self._sizes[cohort.client_ids], self._mesh)
        dropped_at = np.where(places < 0, NOBODY, cohort.dropped_at[places])
        return Cohort(cohort.client_ids[places], dropped_at)  # where nobody stands, anybody's id
