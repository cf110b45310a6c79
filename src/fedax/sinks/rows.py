"""What a sink is given: where it writes, a run's settings, rounds, and what it came to."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

Plain: TypeAlias = bool | int | float | str

# Of a configuration what is no setting, or says where something lies.
LEFT_OUT = ("made_by", "python", "task_source", "algorithm_source", "log")
# A round took the sum of these.
TIMES = ("seconds", "compile_seconds", "evaluation_seconds", "checkpoint_seconds")


class Place(NamedTuple):
    """Where a sink writes.

    Attributes:
      folder: of the run, or of the sweep.
      run: a run's name in a sweep's folder; None: the folder is the run's.
    """

    folder: Path
    run: str | None = None

    @property
    def logs(self) -> Path:
        """The folder for what a library writes."""
        return self.folder / "logs" if self.run is None else self.folder / "logs" / self.run

    @property
    def table(self) -> Path:
        """The folder for a table."""
        return self.folder if self.run is None else self.logs

    @property
    def shared(self) -> Path:
        """The folder for what all runs of a sweep share."""
        return self.folder / "logs"

    @property
    def name(self) -> str:
        """How people call the run."""
        name = self.folder.resolve().name
        return name if self.run is None else f"{name}/{self.run}"


class Row(NamedTuple):
    """A round: when it was over, in seconds since 1970, and its metrics, with `round`."""

    time: float
    metrics: Mapping[str, float]

    @property
    def round(self) -> int:
        """Its number."""
        return int(self.metrics["round"])


class Writer(Protocol):
    """What a library writes a run by."""

    def write(self, rows: Sequence[Row]) -> None:
        """Adds rounds, and makes them seen."""
        ...

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """Ends it; the summary is None if the run did not come to its end."""
        ...


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a round; what is not finite is NaN, as metrics.jsonl has one word for it.

    Example:
      >>> numbers({"round": 1, "train_loss": None, "drift": float("inf"), "rejected": ["a"]})
      {'round': 1, 'train_loss': nan, 'drift': nan}
    """
    return {
        name: math.nan if value is None or not math.isfinite(value) else value
        for name, value in metrics.items() if not isinstance(value, list | str)
    }


def dated(rounds: Sequence[Mapping[str, float]], now: float) -> list[Row]:
    """Rounds that are over, as if they had been trained up to now without a break.

    Example:
      >>> [row.time for row in dated([{"round": 1, "seconds": 2.0}, {"round": 2, "seconds": 3.0}],
      ...                            100.0)]
      [97.0, 100.0]
    """
    rows = []
    for metrics in reversed(rounds):
        rows.append(Row(now, metrics))
        took = (metrics.get(name, 0.0) for name in TIMES)
        now -= sum(seconds for seconds in took if not math.isnan(seconds))
    return rows[::-1]


def hyperparameters(config: Mapping[str, Any]) -> dict[str, Plain]:
    """A configuration as flat names and plain values, named as `--set` names them.

    Settings of the task and the method stand beside those of the run; one whose name is taken has
    `task.` or `algorithm.` before it.

    Example:
      >>> hyperparameters({"task": "digits", "seed": 0, "keep_best": None,
      ...                  "algorithm_options": {"client_learning_rate": 0.1, "seed": 3}})
      {'task': 'digits', 'seed': 0, 'keep_best': 'none', 'client_learning_rate': 0.1, \
'algorithm.seed': 3}
    """
    parts = ("task", "algorithm")
    found = dict(_flat({
        name: value for name, value in config.items()
        if name not in (*LEFT_OUT, *(f"{part}_options" for part in parts))
    }))
    flat = {part: dict(_flat(config.get(f"{part}_options", {}))) for part in parts}
    both = flat["task"].keys() & flat["algorithm"].keys()
    for part in parts:
        for name, value in flat[part].items():
            taken = name in both or name in config
            found[f"{part}.{name}" if taken else name] = value
    return found


def outcome(summary: Mapping[str, Any]) -> dict[str, float]:
    """What a run came to, as numbers whose names no round has."""
    found = {"train_loss_last_100_rounds": summary.get("train_loss_last_100_rounds")}
    found |= {f"final_{name}": value for name, value in (summary.get("final") or {}).items()}
    best = summary.get("best")
    if best:
        found |= {"best_round": best["round"], f"best_{best['metric']}": best["value"]}
    return {name: value for name, value in found.items() if isinstance(value, int | float)}


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Plain]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        elif value is None:
            yield f"{before}{name}", "none"
        else:
            plain = value if isinstance(value, Plain) else json.dumps(value, default=str)
            yield f"{before}{name}", plain
