"""The mean over seeds, with its spread, of a metric against what a run spends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from fedax.pictures.errors import DrawingError
from fedax.pictures.runs import Run, require_metric, sampled_rounds, values_of
from fedax.validate import unknown

Against: TypeAlias = Literal["round", "local_steps", "bytes", "bytes_up", "seconds"]

# What is spent -> the metrics whose sum over the rounds it is, and the axis' words.
SPENT: dict[str, tuple[tuple[str, ...], str]] = {
    "round": ((), "Round"),
    "local_steps": (("total_local_steps",), "Local steps (all clients)"),
    "bytes": (("bytes_down", "bytes_up"), "Bytes sent, down and up (all clients)"),
    "bytes_up": (("bytes_up",), "Bytes uploaded (all clients)"),
    "seconds": (("seconds",), "Training time without compilation and evaluation (s)"),
}


class Line(NamedTuple):
    """A metric's mean over seeds.

    Attributes:
      rounds: int [n], in which every seed that has not ended measured it.
      x: [n], what the seeds had spent by then, on average.
      mean, spread: [n], over seeds, spread the sample standard deviation; NaN of a single one.
      counts: int [n], of how many seeds.
      sampled: bool [n], whether it rests on a sample of the test examples.
      diverged: places in `rounds` at which, or next after which, seeds diverged.
      num_seeds: how many there are.
    """

    rounds: np.ndarray
    x: np.ndarray
    mean: np.ndarray
    spread: np.ndarray
    counts: np.ndarray
    sampled: np.ndarray
    diverged: list[int]
    num_seeds: int


def running_mean(rounds: np.ndarray, values: np.ndarray, window: int) -> np.ndarray:
    """At each measurement the mean of those in the last `window` rounds, this one included.

    Example:
      >>> running_mean(np.array([2, 4, 6]), np.array([3.0, 1.0, 5.0]), 3).tolist()
      [3.0, 2.0, 3.0]
    """
    if window == 1:
        return values
    first = np.searchsorted(rounds, rounds - window, side="right")
    return np.array([values[a : b + 1].mean() for b, a in enumerate(first)], float)


def line_of(label: str, runs: Sequence[Run], metric: str, against: str, smoothing: int) -> Line:
    """The mean over the seeds of a setting.

    Args:
      label: the setting's, for what is said of it.
      runs: its seeds.
      metric: what is averaged; rounds in which it is not finite are passed over.
      against: a name of `SPENT`.
      smoothing: rounds of the running mean, over each seed's own measurements.

    Raises:
      DrawingError: if no seed has the metric, or seeds measured it in different rounds.
    """
    if against not in SPENT:
        raise DrawingError(unknown("against", against, get_args(Against)))
    for name in (metric, *SPENT[against][0]):
        require_metric({label: list(runs)}, name)
    measured = []
    for run in runs:
        rounds, values = values_of(run.history, metric)
        finite = np.isfinite(values)
        measured.append((rounds[finite], running_mean(rounds[finite], values[finite], smoothing)))
    numbers = np.unique(np.concatenate([rounds for rounds, _ in measured]))
    values, x = (np.full((len(runs), len(numbers)), np.nan) for _ in range(2))
    sampled = np.zeros(len(numbers), bool)
    for row, (run, (rounds, smooth)) in enumerate(zip(runs, measured, strict=True)):
        places = np.searchsorted(numbers, rounds)
        values[row, places] = smooth
        x[row, places] = _spent(run, against, rounds)
        sampled |= np.isin(numbers, list(sampled_rounds(run.history, metric)))
    last = np.array([rounds[-1] if len(rounds) else 0 for rounds, _ in measured])
    kept = (np.isfinite(values) | (numbers > last[:, None])).all(0)
    if kept.sum() < min((len(rounds) for rounds, _ in measured if len(rounds)), default=0) / 2:
        raise DrawingError(
            f"The seeds{f' of {label!r}' if label else ''} measured {metric!r} in different "
            "rounds, so their mean cannot be drawn. Give each run its own label."
        )
    values, x, numbers = values[:, kept], x[:, kept], numbers[kept]
    counts = np.isfinite(values).sum(0)
    ends = [max(int(np.searchsorted(numbers, end, side="right")) - 1, 0)
            for run, end in zip(runs, last, strict=True) if run.diverged]
    return Line(
        numbers, np.nanmean(x, 0) if len(numbers) else numbers, *_moments(values, counts), counts,
        sampled[kept], ends if len(numbers) else [], len(runs),
    )


def _spent(run: Run, against: str, rounds: np.ndarray) -> np.ndarray:
    """What a run had spent at the end of some rounds."""
    names = SPENT[against][0]
    if not names:
        return rounds.astype(float)
    history = run.history
    total = np.nancumsum(sum(history[name] for name in names))
    return total[np.searchsorted(history["round"], rounds)]


def _moments(values: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sample standard deviation over rows, NaN passed over; NaN of a single value."""
    with np.errstate(over="ignore"):  # of losses just before they diverge
        mean = np.nansum(values, 0) / counts
        squares = np.nansum((values - mean) ** 2, 0)
    spread = np.full(len(mean), np.nan)
    np.divide(squares, counts - 1, out=spread, where=counts > 1)
    return mean, np.sqrt(spread)
