"""A sweep's settings dealt to cells: by one or two hyperparameters, the best over the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedax.pictures.errors import DrawingError
from fedax.sweeps.choosing import Choice, choose
from fedax.sweeps.grid import same
from fedax.sweeps.record import Record
from fedax.validate import unknown

# The colours' scale ends where a value is so many times as far from the best as the middle one is.
_REACH = 3.0


class Cell(NamedTuple):
    """The settings of a method that have the same values of some hyperparameters.

    Attributes:
      score: of the best, the mean over its seeds; NaN without one.
      spread: the sample standard deviation over its seeds; NaN of one.
      setting: the best one's number; None if none has a score.
      diverged: how many runs of the best, or of the first if all diverged, did so.
      runs: how many runs that one has.
    """

    score: float
    spread: float
    setting: int | None
    diverged: int
    runs: int


def chosen(record: Record, choice: Choice | None) -> Choice:
    """What was chosen, or what the papers' rule chooses.

    Raises:
      DrawingError: if the sweep cannot be chosen from.
    """
    try:
        return choose(record) if choice is None else choice
    except ValueError as error:
        raise DrawingError(str(error)) from None


def method_of(record: Record, algorithm: str | None) -> str:
    """The method to draw.

    Raises:
      DrawingError: if the method is unknown, or there are several and none is given.
    """
    known = record.algorithms
    if algorithm is None:
        if len(known) != 1:
            raise DrawingError(
                f"This sweep has {len(known)} methods. Choose one with algorithm=: "
                f"{', '.join(known) or 'none'}."
            )
        return known[0]
    if algorithm not in known:
        raise DrawingError(unknown("method of this sweep", algorithm, known))
    return algorithm


def require_varied(choice: Choice, algorithm: str, names: Sequence[str]) -> None:
    """Raises an error unless a sweep varied these hyperparameters of a method.

    Raises:
      DrawingError: if not; the message lists those that it varied.
    """
    grid = choice.methods[algorithm].grid
    for name in names:
        if name not in grid:
            raise DrawingError(
                f"The sweep of {algorithm} does not vary {name}. It varies: "
                f"{', '.join(grid) or 'nothing'}."
            )


def others(choice: Choice, algorithm: str, names: Sequence[str]) -> list[str]:
    """The hyperparameters of a method over which a cell is the best."""
    grid = choice.methods[algorithm].grid
    return [name for name, values in grid.items() if name not in names and len(values) > 1]


def cell(record: Record, choice: Choice, algorithm: str, values: dict[str, Any]) -> Cell | None:
    """The best of the method's settings that have these values; None if there is no such setting.

    Those of which all seeds came through are better than any other.
    """
    numbers = [
        number for number in choice.methods[algorithm].order
        if all(
            name in record.settings[number].values
            and same(record.settings[number].values[name], value)
            for name, value in values.items()
        )
    ]
    if not numbers:
        return None
    first = numbers[0]
    scores = choice.scores[first]
    known = np.isfinite(choice.mean[first])
    return Cell(
        float(choice.mean[first]) if known else np.nan,
        float(choice.spread[first]) if known else np.nan,
        int(first) if known else None,
        int(np.isinf(scores).sum()), int((~np.isnan(scores)).sum()),
    )


def scale_ends(scores: np.ndarray, maximise: bool) -> tuple[float, float]:
    """The best score, and the one where the colours' scale ends; what is worse has its last colour.

    It ends where far worse values do not hide the differences between good ones.

    Example:
      >>> scale_ends(np.array([1.0, 2.0, 3.0, 100.0, np.inf]), False)
      (1.0, 5.5)
    """
    known = scores[np.isfinite(scores)]
    if not len(known):
        return (1.0, 0.0) if maximise else (0.0, 1.0)
    best, worst = (known.max(), known.min()) if maximise else (known.min(), known.max())
    far = best + _REACH * (np.median(known) - best)
    return float(best), float(max(far, worst) if maximise else min(far, worst))
