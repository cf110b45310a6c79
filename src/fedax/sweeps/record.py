"""What a sweep came to: every round of every setting and seed, as columns."""

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
      number: from 0, in the sweep; kept when it is extended.
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
    """Every round of every run of a sweep; a row is a run, a setting with a seed.

    Attributes:
      settings: all of them, in order of their numbers.
      setting: int [runs], which one a row is of.
      seed: int [runs].
      diverged: int [runs], the round in which the run diverged, from 1; 0: it did not. A run
        diverges where nothing finite is left, or where its training loss rises for good to more
        than twice that of the untrained model.
      done: int [runs], how many rounds it has; fewer than were asked for if it diverged or was
        given up early.
      metrics: name -> float64 [runs, rounds]; NaN in rounds that have none, and after the last.
    """

    settings: Sequence[Setting]
    setting: np.ndarray
    seed: np.ndarray
    diverged: np.ndarray
    done: np.ndarray
    metrics: Mapping[str, np.ndarray]

    @property
    def num_rounds(self) -> int:
        """The most rounds that a run has."""
        return max((values.shape[1] for values in self.metrics.values()), default=0)

    @property
    def algorithms(self) -> list[str]:
        """The methods, in order."""
        return list(dict.fromkeys(setting.algorithm for setting in self.settings))

    @property
    def names(self) -> list[str]:
        """The hyperparameters that are varied, in order."""
        return list(dict.fromkeys(name for setting in self.settings for name in setting.values))

    def labels(self) -> list[str]:
        """Each setting by what tells it from the others, such as "fedavg momentum=0.9".

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
        """The rounds of a run, as a single run has them."""
        return History([
            {"round": number + 1} | {
                name: float(values[row, number]) for name, values in self.metrics.items()
                if not np.isnan(values[row, number])
            }
            for number in range(int(self.done[row]))
        ])

    def last(self, row: int) -> dict[str, float]:
        """The last value of each metric of a run; NaN where it has none."""
        known = {name: values[row][~np.isnan(values[row])] for name, values in self.metrics.items()}
        return {name: float(v[-1]) if len(v) else np.nan for name, v in known.items()}

    def results(self) -> pandas.DataFrame:
        """A data frame with a row a run: its setting and seed, and the last value of each metric.

        Raises:
          ModuleNotFoundError: if pandas is not installed; the message says how to get it.
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
        """A data frame with a row a round of a run.

        Raises:
          ModuleNotFoundError: if pandas is not installed; the message says how to get it.
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
