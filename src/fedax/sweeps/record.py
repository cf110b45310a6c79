"""The record of a sweep: every round of every setting and seed, as columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedax.rounds.history import History, as_frame

if TYPE_CHECKING:
    import pandas


class Setting(NamedTuple):
    """A method with its hyperparameters; with a seed it is a run.

    Attributes:
      number: from 0, in the sweep; it does not change when the sweep is extended.
      algorithm: the method's name.
      values: the hyperparameters that the sweep varies, name -> value, in the grid's order.
    """

    number: int
    algorithm: str
    values: Mapping[str, Any]

    @property
    def label(self) -> str:
        """Its values in words.

        Example:
          >>> Setting(0, "fedavg", {"client_learning_rate": 0.1, "num_local_steps": 5}).label
          'client_learning_rate=0.1 num_local_steps=5'
        """
        return _in_words(self.values)


class Record(NamedTuple):
    """Every round of every run of a sweep; each row is a run, a setting with a seed.

    Attributes:
      settings: all of them, in order of their numbers.
      setting: int [runs], number of the setting.
      seed: int [runs].
      diverged: int [runs], the round in which the run diverged, from 1, or 0. A run diverges if
        nothing finite is left, or if its training loss stays above twice that of the untrained
        model.
      done: int [runs], number of rounds; fewer than requested if the run diverged or was stopped
        early.
      metrics: name -> float64 [runs, rounds]; NaN in rounds without a value, and after the last
        round.
    """

    settings: Sequence[Setting]
    setting: np.ndarray
    seed: np.ndarray
    diverged: np.ndarray
    done: np.ndarray
    metrics: Mapping[str, np.ndarray]

    @property
    def num_rounds(self) -> int:
        """Number of rounds of the longest run."""
        return max((values.shape[1] for values in self.metrics.values()), default=0)

    @property
    def algorithms(self) -> list[str]:
        """The methods, in order."""
        return list(dict.fromkeys(setting.algorithm for setting in self.settings))

    @property
    def names(self) -> list[str]:
        """The hyperparameters that vary, in order."""
        return list(dict.fromkeys(name for setting in self.settings for name in setting.values))

    def measured(self, method: str) -> set[str]:
        """The metrics that a run of this method has in some round."""
        rows = [self.settings[number].algorithm == method for number in self.setting]
        return {name for name, values in self.metrics.items() if not np.isnan(values[rows]).all()}

    def labels(self) -> list[str]:
        """A label for each setting that tells it apart, such as "fedavg momentum=0.9".

        Example:
          >>> settings = [Setting(n, "fedavg", {"rate": rate, "K": 5})
          ...             for n, rate in enumerate((0.1, 1.0))]
          >>> Record(settings, np.arange(2), np.zeros(2, int), np.zeros(2, int),
          ...        np.ones(2, int), {}).labels()
          ['rate=0.1', 'rate=1']
        """
        several = len(self.algorithms) > 1
        varying: dict[str, dict[str, set[str]]] = {}
        for setting in self.settings:
            for name, value in setting.values.items():
                varying.setdefault(setting.algorithm, {}).setdefault(name, set()).add(repr(value))
        found = []
        for method, values in ((one.algorithm, one.values) for one in self.settings):
            told = {n: value for n, value in values.items() if len(varying[method][n]) > 1}
            words = [method] if several or not told else []
            found.append(" ".join([*words, _in_words(told)]).strip())
        return found

    def rows_of(self, setting: int) -> np.ndarray:
        """The rows of a setting, in order of their seeds."""
        rows = np.flatnonzero(self.setting == setting)
        return rows[np.argsort(self.seed[rows], kind="stable")]

    def history(self, row: int) -> History:
        """The history of one run."""
        return History([
            {"round": number + 1} | {
                name: float(values[row, number]) for name, values in self.metrics.items()
                if not np.isnan(values[row, number])
            }
            for number in range(int(self.done[row]))
        ])

    def last(self, row: int) -> dict[str, float]:
        """The last value of each metric of a run; NaN if it has none."""
        known = {name: values[row][~np.isnan(values[row])] for name, values in self.metrics.items()}
        return {name: float(v[-1]) if len(v) else np.nan for name, v in known.items()}

    def results(self) -> pandas.DataFrame:
        """A data frame with one row per run: its setting, seed and last metrics.

        Raises:
          ModuleNotFoundError: if pandas is not installed.
        """
        rows = []
        for row, (number, seed) in enumerate(zip(self.setting, self.seed, strict=True)):
            setting = self.settings[number]
            found = {
                "setting": int(number), "algorithm": setting.algorithm,
                **{name: setting.values.get(name) for name in self.names}, "seed": int(seed),
                "rounds": int(self.done[row]), "diverged": int(self.diverged[row]),
            }
            rows.append(found | self.last(row))
        return as_frame("A sweep's results", rows)

    def rounds(self) -> pandas.DataFrame:
        """A data frame with one row per round of each run.

        Raises:
          ModuleNotFoundError: if pandas is not installed.
        """
        rows = [
            {"setting": int(number), "algorithm": self.settings[number].algorithm,
             **{name: self.settings[number].values.get(name) for name in self.names},
             "seed": int(seed), **metrics}
            for row, (number, seed) in enumerate(zip(self.setting, self.seed, strict=True))
            for metrics in self.history(row).rounds
        ]
        return as_frame("A sweep's rounds", rows)


def _in_words(values: Mapping[str, Any]) -> str:
    return " ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in values.items()
    )
