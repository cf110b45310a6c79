"""The rounds of runs that train together, as growing columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedax.sweeps.record import Record, Setting


class Part(NamedTuple):
    """The rounds of some runs of a sweep; each row is a run.

    Attributes:
      setting, seed, diverged, done: int [runs], as in a `Record`.
      metrics: name -> float64 [runs, rounds].
    """

    setting: np.ndarray
    seed: np.ndarray
    diverged: np.ndarray
    done: np.ndarray
    metrics: dict[str, np.ndarray]

    def row(self, place: int) -> Part:
        """One of the runs."""
        own = slice(place, place + 1)
        metrics = {name: values[own] for name, values in self.metrics.items()}
        return Part(self.setting[own], self.seed[own], self.diverged[own], self.done[own], metrics)


class Columns:
    """Collects the metrics of a unit, turn by turn.

    Args:
      count: how many runs.
      metrics: name -> [runs, rounds] so far.
    """

    def __init__(self, count: int, metrics: Mapping[str, np.ndarray] | None = None) -> None:
        self._count = count
        self.metrics: dict[str, np.ndarray] = dict(metrics or {})

    @property
    def num_rounds(self) -> int:
        """How many rounds there are so far."""
        return max((values.shape[1] for values in self.metrics.values()), default=0)

    def add(self, metrics: Mapping[str, np.ndarray]) -> None:
        """Adds rounds, [rounds, runs or more]; a metric that they lack is NaN."""
        before = self.num_rounds
        length = len(next(iter(metrics.values())))
        for name in {**self.metrics, **metrics}:
            old = self.metrics.get(name, np.full((self._count, before), np.nan))
            new = metrics.get(name, np.full((length, self._count), np.nan))
            self.metrics[name] = np.concatenate([old, new[:, : self._count].T], axis=1)


def joined(settings: Sequence[Setting], parts: Iterable[Part]) -> Record:
    """The record of a sweep from its parts, in order of settings and seeds."""
    parts = list(parts)
    names = dict.fromkeys(name for part in parts for name in part.metrics)
    length = max((v.shape[1] for part in parts for v in part.metrics.values()), default=0)

    def whole(part: Part, name: str) -> np.ndarray:
        values = part.metrics.get(name, np.zeros((len(part.setting), 0)))
        return np.pad(values, ((0, 0), (0, length - values.shape[1])), constant_values=np.nan)

    if not parts:
        none = np.zeros(0, np.int64)
        return Record(list(settings), none, none, none, none, {})
    setting, seed, diverged, done = (
        np.concatenate([getattr(part, name) for part in parts]).astype(np.int64)
        for name in ("setting", "seed", "diverged", "done")
    )
    order = np.lexsort((seed, setting))
    metrics = {
        name: np.concatenate([whole(part, name) for part in parts])[order] for name in names
    }
    return Record(
        list(settings), setting[order], seed[order], diverged[order], done[order], metrics
    )
