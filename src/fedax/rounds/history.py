"""What a training run reports, round by round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedax.rounds.directions import is_evaluated, shown_first
from fedax.validate import unknown

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

# What is said in place of a value that is not defined.
UNDEFINED = "undefined"


class History:
    """The metrics of each round, in order.

    Example:
      >>> history = History([{"round": 1, "train_loss": 2.0}, {"round": 2, "train_loss": 1.0}])
      >>> history["train_loss"].tolist()
      [2.0, 1.0]
    """

    def __init__(self, rounds: list[Mapping[str, float]] | None = None) -> None:
        self.rounds: list[Mapping[str, float]] = list(rounds or [])

    def append(self, metrics: Mapping[str, float]) -> None:
        """Adds a round."""
        self.rounds.append(metrics)

    def __repr__(self) -> str:
        words = []
        for name in self._shown()[:8]:
            values = self[name][np.isfinite(self[name])]
            ends = dict.fromkeys(f"{value:.4g}" for value in values[[0, -1]]) if len(values) else ()
            none = "never measured" if np.isnan(self[name]).all() else "never finite"
            words.append(f"{name} {' -> '.join(ends) or none}")
        return f"History({len(self.rounds)} rounds{': ' if words else ''}{', '.join(words)})"

    def __len__(self) -> int:
        return len(self.rounds)

    def __getitem__(self, name: str) -> np.ndarray:
        """One metric over all rounds, float64 [num_rounds]; NaN in rounds without it.

        Raises:
          KeyError: if there are rounds but none has this metric; the message suggests the nearest.
        """
        if self.rounds and not any(name in metrics for metrics in self.rounds):
            known = sorted({key for metrics in self.rounds for key in metrics})
            raise KeyError(unknown("metric", name, known))
        return np.array([metrics.get(name, np.nan) for metrics in self.rounds], dtype=float)

    def plot(
        self, metrics: str | Sequence[str] | None = None, figure: Figure | None = None
    ) -> Figure:
        """Draws metrics against the round, losses in one panel, accuracies in another, and so on.

        A notebook shows the figure if it is a cell's last line; `.savefig("curves.png")` saves it.
        Rounds without a metric are skipped. Values from a sample of the test examples are hollow
        points.

        Args:
          metrics: one name, or several; None: the training loss and all `validation_*` and
            `test_*`.
          figure: figure to draw into, such as `matplotlib.pyplot.figure()`; None: a new one that is
            not registered with pyplot.

        Raises:
          KeyError: if no round has a metric of that name.
          ValueError: if the history has no rounds yet.

        Example:
          >>> history = History([{"round": r, "train_loss": 1 / r} for r in (1, 2, 3)])
          >>> len(history.plot().axes)
          1
        """
        from fedax.rounds.curves import draw  # noqa: PLC0415 - matplotlib is slow to import

        if isinstance(metrics, str):
            metrics = [metrics]
        names = self._shown() if metrics is None else list(metrics)
        if not self.rounds or not names:
            raise ValueError("There is nothing to draw: the history has no round with a metric.")
        sampled = {
            name: np.array([is_sampled(metrics, name) for metrics in self.rounds])
            for name in names
        }
        return draw(self["round"], {name: self[name] for name in names}, figure, sampled)

    def _shown(self) -> list[str]:
        """The metrics that most want to see, in order."""
        names = {key: None for metrics in self.rounds for key in metrics}
        tests = sorted(filter(is_evaluated, names), key=lambda name: (shown_first(name), name))
        return (["train_loss"] if "train_loss" in names else []) + tests

    def to_pandas(self) -> pandas.DataFrame:
        """A data frame with one row per round and one column per metric.

        Raises:
          ModuleNotFoundError: if pandas is not installed.
        """
        return as_frame("A history", self.rounds)


def mean_and_spread(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sample standard deviation along the first axis; of one value the latter is NaN.

    Of losses just before they diverge they may be infinite.

    Example:
      >>> [number.tolist() for number in mean_and_spread(np.array([[1.0, 1e200], [3.0, 0.0]]))]
      [[2.0, 5e+199], [1.4142135623730951, inf]]
      >>> mean_and_spread(np.full((3, 1), 0.1))[1].tolist()  # where rounding would leave 1.7e-17
      [0.0]
    """
    with np.errstate(over="ignore", invalid="ignore"):
        mean = values.mean(axis=0)
        if len(values) < 2:
            return mean, np.full_like(mean, np.nan)
        return mean, np.where((values == values[0]).all(axis=0), 0.0, values.std(axis=0, ddof=1))


def is_sampled(metrics: Mapping[str, Any], name: str = "test_") -> bool:
    """Whether a round has a metric, or any, from a sample of the test or validation examples.

    Example:
      >>> metrics = {"evaluated_examples": 10, "evaluated_of": 20}
      >>> is_sampled(metrics), is_sampled(metrics, "test_personal_loss"), is_sampled({"round": 1})
      (True, False, False)
    """
    if not is_evaluated(name) or name.split("_")[1] in ("personal", "own"):
        return False
    return metrics.get("evaluated_examples", 0) < metrics.get("evaluated_of", 0)


def is_undefined(metrics: Mapping[str, Any], name: str) -> bool:
    """Whether a metric of an evaluation has no value although the model's losses are finite.

    Such as an AUC where only one class occurs. Where a loss is not finite either, the model is to
    blame, and not the metric.

    Example:
      >>> metrics = {"train_loss": 0.5, "test_loss": 0.7, "test_auc": math.nan}
      >>> is_undefined(metrics, "test_auc"), is_undefined(metrics | {"test_loss": None}, "test_auc")
      (True, False)
    """
    value = metrics.get(name, 0.0)
    if (value is not None and not math.isnan(value)) or not is_evaluated(name):
        return False
    losses = [
        loss for other, loss in metrics.items()
        if other == "train_loss" or (is_evaluated(other) and "loss" in other.split("_"))
    ]
    return bool(losses) and all(loss is not None and math.isfinite(loss) for loss in losses)


def describe_sample(metrics: Mapping[str, Any]) -> str:
    """On how many examples of how many.

    Example:
      >>> describe_sample({"evaluated_examples": 1000, "evaluated_of": 11320})
      '1,000 of 11,320 examples'
    """
    return f"{metrics['evaluated_examples']:,} of {metrics['evaluated_of']:,} examples"


def as_frame(what: str, values: Any) -> pandas.DataFrame:
    """A data frame of these values.

    Raises:
      ModuleNotFoundError: if pandas is not installed.
    """
    try:
        import pandas  # noqa: PLC0415 - optional, and slow to import
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{what} needs pandas to become a data frame: pip install 'fedax[pandas]'."
        ) from error
    return pandas.DataFrame(values)
