"""What a training run reports, round by round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas


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
        last = f", last {dict(self.rounds[-1])}" if self.rounds else ""
        return f"History({len(self.rounds)} rounds{last})"

    def __len__(self) -> int:
        return len(self.rounds)

    def __getitem__(self, name: str) -> np.ndarray:
        """One metric of all rounds, float64 [num_rounds]; NaN in rounds that have none.

        Raises:
          KeyError: no round has it.
        """
        if not any(name in metrics for metrics in self.rounds):
            known = sorted({key for metrics in self.rounds for key in metrics})
            raise KeyError(f"No round has a metric {name!r}; there are {known}.")
        return np.array([metrics.get(name, np.nan) for metrics in self.rounds], dtype=float)

    def to_pandas(self) -> pandas.DataFrame:
        """A data frame with one row a round and one column a metric.

        Raises:
          ModuleNotFoundError: pandas is not installed; the sentence says how to get it.
        """
        return as_frame("A history", self.rounds)


def as_frame(what: str, values: Any) -> pandas.DataFrame:
    """A data frame of these values.

    Raises:
      ModuleNotFoundError: pandas is not installed; the sentence says how to get it.
    """
    try:
        import pandas  # noqa: PLC0415 - optional, and slow to import
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{what} becomes a data frame with pandas: pip install 'fedax[pandas]'."
        ) from error
    return pandas.DataFrame(values)
