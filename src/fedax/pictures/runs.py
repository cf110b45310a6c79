"""What pictures of rounds are made of: labels with the runs of one setting, a run for each seed."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from fedax.pictures.errors import DrawingError
from fedax.rounds.history import History, is_sampled
from fedax.sweeps.record import Record

if TYPE_CHECKING:
    import pandas


class WithHistory(Protocol):
    """What `fedax.train` and `fedax.load_run` return."""

    history: History


Seeds: TypeAlias = History | WithHistory | Sequence[History | WithHistory]
Rounds: TypeAlias = "Seeds | Mapping[str, Seeds] | Record | pandas.DataFrame"
Series: TypeAlias = tuple[np.ndarray, np.ndarray]

# More settings of a sweep than these are no picture of lines.
MOST_SETTINGS = 12
# A metric that only some runs measure -> how they come to measure it.
_MEASURED = "which is measured with diagnostics=True, --set diagnostics=true"
_HOW = {
    "pseudo_gradient_norm": _MEASURED, "client_drift": _MEASURED, "update_cosine": _MEASURED,
    "effective_server_step": _MEASURED, "bytes_up": _MEASURED, "bytes_down": _MEASURED,
    "gradient_dissimilarity": _MEASURED, "hessian_dissimilarity": _MEASURED,
}
# Columns of a frame that are no metrics.
_NO_METRICS = ("seed", "label", "setting", "algorithm")


class Run(NamedTuple):
    """A run of a setting with a seed.

    Attributes:
      history: its rounds.
      diverged: whether it ended because nothing was finite any more.
    """

    history: History
    diverged: bool


def runs_by_label(data: Rounds) -> dict[str, list[Run]]:
    """Label -> the runs that are drawn as one line; a label that nobody gave is empty.

    Raises:
      DrawingError: if the data are of another kind, or have no rounds.
    """
    found = _labelled(data)
    for label, runs in found.items():
        if not any(len(run.history) for run in runs):
            raise DrawingError(
                f"There is nothing to draw: {_of(label, 'the history')} has no rounds."
            )
    if not found:
        raise DrawingError("There is nothing to draw: give at least one run.")
    return found


def _labelled(data: Any) -> dict[str, list[Run]]:
    if isinstance(data, Record):
        return _of_record(data)
    if isinstance(data, Mapping):
        return {str(label): _seeds(histories) for label, histories in data.items()}
    if hasattr(data, "to_dict") and hasattr(data, "columns"):
        return _of_frame(data)
    return {"": _seeds(data)}


def _seeds(histories: Any) -> list[Run]:
    """The runs of one setting."""
    if not isinstance(histories, Sequence) or isinstance(histories, str):
        histories = [histories]
    known = [getattr(history, "history", history) for history in histories]
    for history in known:
        if not isinstance(history, History):
            raise DrawingError(
                "The data must be a fedax.History, a list of them (the seeds of one setting), a "
                "dictionary of label to either, a sweep's record, or a data frame with a column "
                f"'round', but are of type {type(history).__name__}."
            )
    return [Run(history, _ended_badly(history)) for history in known]


def _ended_badly(history: History) -> bool:
    """Whether the last round's training loss is there and is not finite, although some trained."""
    last = history.rounds[-1] if history.rounds else {}
    loss = last.get("train_loss", 0.0)
    return not np.isfinite(loss) and last.get("num_reports") != 0


def _of_record(record: Record) -> dict[str, list[Run]]:
    if len(record.settings) > MOST_SETTINGS:
        raise DrawingError(
            f"The {len(record.settings)} settings of this sweep are too many for one picture. "
            "Draw fedax.pictures.best_of(record, choice), the best setting of each method."
        )
    return {label: runs_of(record, number) for number, label in enumerate(record.labels())}


def runs_of(record: Record, setting: int) -> list[Run]:
    """The runs of a sweep's setting, in order of their seeds."""
    return [
        Run(record.history(row), bool(record.diverged[row])) for row in record.rows_of(setting)
    ]


def _of_frame(frame: Any) -> dict[str, list[Run]]:
    """A frame's runs by its columns label and seed, or as a sweep's frame of rounds has them."""
    columns = [str(name) for name in frame.columns]
    if "round" not in columns:
        raise DrawingError(f"The data frame needs a column 'round', but has {columns}.")
    names = ["label"] if "label" in columns else (
        [name for name in ("algorithm", "setting") if name in columns]
    )
    runs: dict[str, dict[Any, list[Mapping[str, float]]]] = {}
    for row in frame.sort_values("round", kind="stable").to_dict("records"):
        label = " ".join(str(row[name]) for name in names)
        metrics = {
            str(name): value for name, value in row.items()
            if name not in _NO_METRICS and isinstance(value, int | float)
            and not np.isnan(value)
        }
        runs.setdefault(label, {}).setdefault(row.get("seed"), []).append(metrics)
    for label, seeds in runs.items():
        for rounds in seeds.values():
            numbers = [metrics["round"] for metrics in rounds]
            if len(set(numbers)) < len(numbers):
                raise DrawingError(
                    f"{_of(label, 'This data frame')} has round {_repeated(numbers):g} more than "
                    "once. Add a column 'seed' or 'label' that tells the runs apart."
                )
    return {
        label: [Run(history, _ended_badly(history)) for history in map(History, seeds.values())]
        for label, seeds in runs.items()
    }


def _repeated(numbers: Sequence[float]) -> float:
    return next(a for a, b in itertools.pairwise(numbers) if a == b)


def values_of(history: History, metric: str) -> Series:
    """The rounds in which a metric was measured and what it was; (rounds, values), both [n]."""
    measured = [
        (metrics["round"], metrics[metric]) for metrics in history.rounds
        if metrics.get(metric) is not None and not np.isnan(metrics[metric])
    ]
    rounds, values = zip(*measured, strict=True) if measured else ((), ())
    return np.array(rounds, int), np.array(values, float)


def sampled_rounds(history: History, metric: str) -> set[int]:
    """The rounds in which it was measured on a sample of the test examples."""
    return {int(m["round"]) for m in history.rounds if is_sampled(m, metric)}


def require_metric(runs: Mapping[str, list[Run]], metric: str) -> None:
    """Raises an error unless each label has a run with a metric.

    Raises:
      DrawingError: if not; the message lists the metrics.
    """
    for label, seeds in runs.items():
        known = sorted({name for run in seeds for metrics in run.history.rounds for name in metrics}
                       - {"round", "rejected"})
        if metric not in known:
            how = f", {_HOW[metric]}" if metric in _HOW else ""
            raise DrawingError(
                f"{_of(label, 'The history')} does not have the metric {metric!r}{how}. It "
                f"has: {', '.join(known) or 'none'}."
            )


def _of(label: str, otherwise: str) -> str:
    return repr(label) if label else otherwise
