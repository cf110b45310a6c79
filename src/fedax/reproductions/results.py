"""What the runs of an experiment came to, small enough to be kept beside the documentation."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedax.sweeps.record import Record, Setting

# Reddi et al. 2021, section 4: settings are compared, methods reported, by means over these rounds.
LAST_ROUNDS = 100
# Of shorter runs, it is the last third.
LAST_SHARE = 3
LAST = "the last 100 rounds, or the last third if that is less,"
# A curve is kept as the means of so many windows of rounds.
POINTS = 40
# What is kept of a number.
DIGITS = 6
# What is kept, besides the test metrics; times, say, are no result, and are never the same.
KEPT = ("train_loss", "full_loss", "all_clients_loss", "all_examples_loss", "num_local_steps",
        "total_local_steps", "pseudo_gradient_norm", "boosted_share")
# Larger numbers are written with a power of ten.
MOST = 1e6
# Where the mean of more rounds decides which setting is chosen, the place of that mean in `final`.
CHOICE = "choice"
# Of these metrics the spread within the windows is kept, too.
SPREAD = ("pseudo_gradient_norm",)
# Of these metrics the value of the first round is kept: losses before anything is trained.
BEGUN = ("full_loss",)


class Trace(NamedTuple):
    """A run in a few numbers.

    Attributes:
      panel, label: see `fedax.reproductions.experiment.Part`.
      values: hyperparameter -> value, of those that are tuned over.
      seed: the run's.
      rounds: how many it has.
      diverged: the round in which it diverged, from 1; 0: it did not.
      final: metric -> mean over the last 100 rounds, or over the last third if that is less; NaN
        if the run diverged.
      curves: metric -> rounds and values: means of windows of rounds; empty if it was not kept.
      last: metric -> its last measured value, such as on the whole test set; NaN if it diverged.
      deviations: metric -> the sample standard deviations within those windows; of few metrics.
      extremes: test metric -> its lowest and its highest measured value; empty if the run diverged.
      begin: metric -> its value in the first round; of few metrics.
    """

    panel: str
    label: str
    values: Mapping[str, Any]
    seed: int
    rounds: int
    diverged: int
    final: Mapping[str, float]
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]]
    last: Mapping[str, float] = {}
    deviations: Mapping[str, Sequence[float]] = {}
    extremes: Mapping[str, tuple[float, float]] = {}
    begin: Mapping[str, float] = {}


def traces_of(
    panel: str, label: str, record: Record, num_rounds: int | None = None, *,
    by: str = "train_loss", over: int = LAST_ROUNDS,
) -> list[Trace]:
    """The runs of a record, with their curves.

    Args:
      panel, label: whose.
      record: of a sweep.
      num_rounds: that were asked for, of which a record has fewer if all its runs diverged.
      by, over: the metric and the number of last rounds by which a setting is chosen, if more than
        LAST_ROUNDS.
    """
    missing = (num_rounds or record.num_rounds) - record.num_rounds
    traces = []
    for row, (number, seed) in enumerate(zip(record.setting, record.seed, strict=True)):
        diverged = int(record.diverged[row])
        metrics = {
            name: np.pad(values[row], (0, missing), constant_values=math.nan)
            for name, values in record.metrics.items() if name in KEPT or name.startswith("test_")
        }
        traces.append(Trace(
            panel, label, dict(record.settings[number].values), int(seed), int(record.done[row]),
            diverged,
            {name: math.nan if diverged else _final(values) for name, values in metrics.items()}
            | ({CHOICE: math.nan if diverged else _final(metrics[by], over)}
               if over > LAST_ROUNDS and by in metrics else {}),
            {name: _curve(values) for name, values in metrics.items()},
            {name: math.nan if diverged else _last(values) for name, values in metrics.items()},
            deviations={name: _deviations(metrics[name]) for name in SPREAD if name in metrics},
            extremes={} if diverged else {
                name: (_rounded(np.nanmin(values)), _rounded(np.nanmax(values)))
                for name, values in metrics.items()
                if name.startswith("test_") and not np.isnan(values).all()
            },
            begin={name: _rounded(metrics[name][0]) for name in BEGUN if name in metrics},
        ))
    return traces


def _final(values: np.ndarray, over: int = LAST_ROUNDS) -> float:
    last = values[-min(over, -(-len(values) // LAST_SHARE)):]
    return _rounded(np.nanmean(last)) if not np.isnan(last).all() else math.nan


def _last(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return _rounded(known[-1]) if len(known) else math.nan


def _curve(values: np.ndarray) -> tuple[list[float], list[float]]:
    """Means of windows; each stands at the mean of the rounds that were measured in it."""
    windows = _windows(values)
    return (
        [_rounded(window.mean() + 1) for window in windows],
        [_rounded(values[window].mean()) for window in windows],
    )


def _deviations(values: np.ndarray) -> list[float]:
    return [
        _rounded(values[window].std(ddof=1)) if len(window) > 1 else 0.0
        for window in _windows(values)
    ]


def _windows(values: np.ndarray) -> list[np.ndarray]:
    """The rounds that were measured, from 0, in each window that has one."""
    windows = np.array_split(np.arange(len(values)), min(POINTS, len(values)))
    measured = (window[~np.isnan(values[window])] for window in windows)
    return [window for window in measured if len(window)]


def _rounded(value: Any) -> float:
    return float(f"{float(value):.{DIGITS}g}")


def _first(value: Any) -> float | None:
    """A number, or the one that a schedule begins with; None if it is neither."""
    if isinstance(value, int | float):
        return value
    begins = re.match(r"\w+\(([^,()]+)", str(value))
    try:
        return float(begins[1]) if begins else None
    except ValueError:
        return None


class Results:
    """The runs of an experiment, asked by panel and label.

    Args:
      traces: the runs.
      by: by which metric's final value the best setting of a method is chosen, by the mean over
        its seeds.
      maximise: whether larger is better there.
    """

    def __init__(
        self, traces: Iterable[Trace], by: str = "train_loss", *, maximise: bool = False
    ) -> None:
        self.traces = list(traces)
        self.by, self.maximise = by, maximise

    @property
    def panels(self) -> list[str]:
        """The panels that have runs, in order."""
        return list(dict.fromkeys(trace.panel for trace in self.traces))

    def labels(self, panel: str) -> list[str]:
        """The methods of a panel, in order."""
        return list(dict.fromkeys(t.label for t in self.traces if t.panel == panel))

    def settings(self, panel: str, label: str) -> list[Mapping[str, Any]]:
        """The settings of a method that were tried, in order."""
        found: list[Mapping[str, Any]] = []
        for trace in self._of(panel, label):
            if trace.values not in found:
                found.append(trace.values)
        return found

    def best(self, panel: str, label: str) -> Mapping[str, Any]:
        """The best setting of a method; one that diverged with any seed is not, but a lone one is.

        Raises:
          LookupError: all of several diverged.
        """
        settings = self.settings(panel, label)
        if len(settings) == 1:
            return settings[0]
        sign = -1 if self.maximise else 1
        scored = [
            (sign * np.mean([self._score(t) for t in self._runs(panel, label, values)]), place)
            for place, values in enumerate(settings)
        ]
        finite = [one for one in scored if np.isfinite(one[0])]
        if not finite:
            raise LookupError(f"Every setting of {label} diverged in {panel}.")
        return settings[min(finite)[1]]

    def _score(self, trace: Trace) -> float:
        """What a run is chosen by."""
        return trace.final.get(CHOICE, trace.final.get(self.by, math.nan))

    def edges(self, panel: str, label: str) -> dict[str, Any]:
        """Of the best setting what is the least or the most that was tried.

        Numbers are compared, and schedules by the number that they begin with.
        """
        try:
            best = self.best(panel, label)
        except LookupError:
            return {}
        found = {}
        for key, value in best.items():
            tried = {_first(setting[key]) for setting in self.settings(panel, label)}
            numbers = [one for one in tried if one is not None]
            if len(numbers) > 1 and _first(value) in (min(numbers), max(numbers)):
                found[key] = value
        return found

    def final(
        self, panel: str, label: str, metric: str, values: Mapping[str, Any] | None = None
    ) -> np.ndarray:
        """A metric's mean over the last 100 rounds or third, [seeds]; NaN for runs that diverged.

        If every setting diverged, and none is asked for, it is a single NaN.

        Args:
          panel, label: whose.
          metric: such as test_accuracy.
          values: of the setting; None: of the best one.
        """
        runs = self._runs(panel, label, values)
        return np.array([run.final.get(metric, math.nan) for run in runs] or [math.nan])

    def written(
        self, panel: str, label: str, metric: str, digits: int = 2, scale: float = 1.0
    ) -> str:
        """The final values of a method's best setting for a table, or that it was not run.

        Args:
          panel, label, metric: see `final`.
          digits, scale: see `spread`.
        """
        if label not in self.labels(panel):
            return "not run"
        return spread(self.final(panel, label, metric), digits, scale)

    def last(
        self, panel: str, label: str, metric: str, values: Mapping[str, Any] | None = None
    ) -> np.ndarray:
        """A metric's last measured value, [seeds]; arguments as for `final`."""
        return np.array([t.last.get(metric, math.nan) for t in self._runs(panel, label, values)])

    def record(self, panel: str, metric: str, labels: Sequence[str] = ()) -> Record:
        """The final values of a metric as a sweep's record of one round, as pictures take them.

        Args:
          panel: of which runs.
          metric: which.
          labels: only these methods, which are named by their labels; default: all.
        """
        settings, rows, seeds, values = [], [], [], []
        for label in labels or self.labels(panel):
            for tried in self.settings(panel, label):
                for trace in self._runs(panel, label, tried):
                    rows.append(len(settings))
                    seeds.append(trace.seed)
                    values.append(trace.final.get(metric, math.nan))
                settings.append(Setting(len(settings), label, tried))
        scores = np.array(values)
        return Record(
            settings, np.array(rows), np.array(seeds), np.isnan(scores).astype(int),
            np.ones(len(rows), int), {metric: scores[:, None]},
        )

    def curve(
        self, panel: str, label: str, metric: str, values: Mapping[str, Any] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Rounds [n] and a metric's values [seeds, n]; n is 0 if no curve was kept.

        A run that diverged has NaN from there on.
        """
        found = [t.curves[metric] for t in self._runs(panel, label, values) if metric in t.curves]
        if not found:
            return np.zeros(0), np.zeros((0, 0))
        rounds = max((rounds for rounds, _ in found), key=len)
        padded = np.full((len(found), len(rounds)), math.nan)
        for row, (_, known) in zip(padded, found, strict=True):
            row[: len(known)] = known
        return np.array(rounds), padded

    def begin(
        self, panel: str, label: str, metric: str, values: Mapping[str, Any] | None = None
    ) -> np.ndarray:
        """A metric's value in the first round, [seeds]; NaN where it was not kept."""
        return np.array([t.begin.get(metric, math.nan) for t in self._runs(panel, label, values)])

    def deviations(
        self, panel: str, label: str, metric: str, values: Mapping[str, Any] | None = None
    ) -> np.ndarray:
        """Standard deviations of a metric within the windows of its curve, [seeds, n]."""
        found = [t.deviations.get(metric, []) for t in self._runs(panel, label, values)]
        length = min(map(len, found), default=0)
        return np.array([of[:length] for of in found])

    def highest(
        self, panel: str, label: str, metric: str, values: Mapping[str, Any] | None = None
    ) -> np.ndarray:
        """The highest measured value of a test metric, [seeds]; NaN for runs that diverged."""
        found = [t.extremes.get(metric) for t in self._runs(panel, label, values)]
        return np.array([math.nan if pair is None else pair[1] for pair in found])

    def _of(self, panel: str, label: str) -> list[Trace]:
        return [t for t in self.traces if (t.panel, t.label) == (panel, label)]

    def _runs(self, panel: str, label: str, values: Mapping[str, Any] | None) -> list[Trace]:
        try:
            chosen = self.best(panel, label) if values is None else values
        except LookupError:
            return []
        runs = [t for t in self._of(panel, label) if t.values == chosen]
        return sorted(runs, key=lambda trace: trace.seed)


def spread(values: np.ndarray, digits: int = 2, scale: float = 1.0) -> str:
    """Mean and sample standard deviation in words, such as "57.1 ± 0.3".

    Example:
      >>> spread(np.array([0.56, 0.58]), 1, 100)
      '57.0 ± 1.4'
      >>> spread(np.array([3e15, 5e15]))
      '4e+15 ± 1.4e+15'
    """
    if not len(values) or np.isnan(values).any():
        return "diverged" if len(values) else ""
    kind = f".{digits}f" if abs(scale * values.mean()) < MOST else ".2g"
    deviation = f" ± {scale * values.std(ddof=1):{kind}}" if len(values) > 1 else ""
    return f"{scale * values.mean():{kind}}{deviation}"


def as_json(results: Results) -> list[dict[str, Any]]:
    """The runs for a file; curves only of the best settings, as there may be hundreds of others."""
    rows = []
    for trace in results.traces:
        try:
            chosen = trace.values == results.best(trace.panel, trace.label)
        except LookupError:
            chosen = False
        rows.append(trace._asdict() | ({} if chosen else {"curves": {}, "deviations": {}}))
    return rows


def kept(results: Results) -> Results:
    """What a file keeps of them, which is what is judged, so that a file comes to the same."""
    return Results(from_json(as_json(results)), results.by, maximise=results.maximise)


def paired(*values: np.ndarray, axis: int = 0) -> list[np.ndarray]:
    """Arrays of methods with as many seeds as all of them have.

    Seeds are run in order, so the first ones are the same.

    Example:
      >>> paired(np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0]))
      [array([1., 2.]), array([4., 5.])]
    """
    least = min(array.shape[axis] for array in values)
    return [array.take(range(least), axis) for array in values]


def from_json(rows: Iterable[Mapping[str, Any]]) -> list[Trace]:
    """The runs of a file."""
    return [Trace(**row) for row in rows]
