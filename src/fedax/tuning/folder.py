"""The sweep folder: what was asked, and what came out.

`config.json` says what was asked, as a run's does; `methods/0/config.json` is the configuration of
the first method's first run, and so on. `rounds.npz` has every round of every run, `results.csv` a
row a run, `best/METHOD.toml` the best setting of each method, `summary.json` what a sweep says at
its end, and `report.html` shows it all.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedax.experiment import sources, trust
from fedax.experiment.config import RunConfig, load_config
from fedax.experiment.folder import (
    CONFIG,
    METHODS,
    SWEEP,
    TASKS,
    RunError,
    for_shell,
    read_config,
    write_atomically,
    write_json,
)
from fedax.experiment.versions import versions
from fedax.sweeps.choosing import Choice
from fedax.sweeps.closing import closing_words
from fedax.sweeps.planning import Halving, Unit
from fedax.sweeps.record import Record, Setting
from fedax.tuning.keeping import read_columns, write_columns

ROUNDS = "rounds.npz"
RESULTS = "results.csv"
BEST = "best"
_ROWS = ("setting", "seed", "diverged", "done")


def write_sweep_config(
    folder: Path, config: Mapping[str, Any], units: Sequence[Unit], settings: Sequence[Setting],
    tasks: Sequence[Any] | None = None,
) -> None:
    """Writes what was asked, and how it is cut into units.

    Args:
      folder: the sweep's.
      config: task, algorithm, num_rounds, seeds, choose, grid and what else is worth knowing.
      units: as planned.
      settings: of the sweep.
      tasks: what tells its tasks from others; None: it is not known.

    Raises:
      OSError: the disk is full or not writable.
    """
    write_json(folder / CONFIG, {
        "kind": SWEEP, **config,
        "settings": [[setting.algorithm, dict(setting.values)] for setting in settings],
        "units": [[list(unit.settings), unit.seed, unit.size] for unit in units],
        "made_by": versions() | ({} if tasks is None else {TASKS: tasks}),
    })


def read_sweep_config(folder: Path) -> dict[str, Any]:
    """What a sweep's config.json holds.

    Raises:
      RunError: it is no sweep folder, or the file is damaged.
    """
    config = read_config(folder)
    if config.get("kind") != SWEEP:
        raise RunError(
            f"{folder} holds a run and no sweep; go on with it with fedax run --resume "
            f"{for_shell(folder)}"
        )
    try:
        settings = settings_of(config)
        named = {number for unit in units_of(config) for number in unit.settings}
        if not named <= set(range(len(settings))):
            raise ValueError("its units have settings that it does not name")
        if not {setting.algorithm for setting in settings} <= set(config["grid"]):
            raise ValueError("its settings have methods that its grid does not name")
        halving_of(config)
        [int(seed) for seed in config["seeds"]]
        missing = {"choose", "grid", "identity"} - set(config)
        if missing:
            raise KeyError(min(missing))
        if not isinstance(config["choose"], str):
            raise TypeError(f"its rule is {config['choose']!r}")
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{folder / CONFIG} is damaged: {error!r}.") from None
    return config


def settings_of(config: Mapping[str, Any]) -> list[Setting]:
    """The settings that a sweep's config.json names."""
    return [
        Setting(number, algorithm, dict(values))
        for number, (algorithm, values) in enumerate(config["settings"])
    ]


def units_of(config: Mapping[str, Any]) -> list[Unit]:
    """The units that a sweep's config.json plans."""
    return [
        Unit(tuple(int(number) for number in numbers), int(seed), int(size))
        for numbers, seed, size in config["units"]
    ]


def halving_of(config: Mapping[str, Any]) -> Halving | None:
    """How a sweep gives settings up, as its config.json has it."""
    if config.get("halving") is None:
        return None
    factor, num_devices, of_batch = config["halving"]
    return Halving(int(factor), int(num_devices), None if of_batch is None else int(of_batch))


def write_methods(folder: Path, bases: Sequence[RunConfig]) -> None:
    """Writes the configuration of each method's first run, and copies of a user's own sources.

    Raises:
      OSError: the disk is full or not writable.
    """
    for place, base in enumerate(bases):
        own = folder / METHODS / str(place)
        own.mkdir(parents=True, exist_ok=True)
        values = dataclasses.asdict(base)
        signed = {"signature": trust.signature(values)} if base.sources else {}
        write_json(own / CONFIG, {**values, "made_by": versions() | signed})
        sources.keep_copies(own, base.sources)


def read_methods(folder: Path, count: int) -> list[RunConfig]:
    """The configurations that `write_methods` wrote.

    Raises:
      ConfigError: one is damaged, or a source has changed since.
    """
    return [
        load_config(
            folder / METHODS / str(place) / CONFIG, cure="begin another sweep with that code."
        )
        for place in range(count)
    ]


def write_record(folder: Path, record: Record, identity: str) -> None:
    """Writes every round of every run as columns.

    Raises:
      OSError: the disk is full or not writable.
    """
    columns = {name: getattr(record, name) for name in _ROWS}
    columns |= {f"metric/{name}": values for name, values in record.metrics.items()}
    write_columns(folder / ROUNDS, columns, identity)


def read_record(folder: Path, settings: Sequence[Setting]) -> Record | None:
    """The record of a sweep; None while there is none.

    Raises:
      RunError: the file is damaged.
    """
    path = folder / ROUNDS
    if not path.exists():
        return None
    columns = read_columns(path)
    try:
        rows = [np.asarray(columns[name]) for name in _ROWS]
    except KeyError as error:
        raise RunError(f"{path} is damaged: it has no column {error}.") from None
    if rows[0].size and rows[0].max() >= len(settings):
        raise RunError(f"{path} has settings that {folder / CONFIG} does not name.")
    metrics = {
        name.removeprefix("metric/"): values for name, values in columns.items()
        if name.startswith("metric/")
    }
    return Record(list(settings), rows[0], rows[1], rows[2], rows[3], metrics)


def write_results(folder: Path, record: Record, choice: Choice) -> None:
    """Writes the table of results, a row a run.

    Raises:
      OSError: the disk is full or not writable.
    """
    seeds = np.unique(record.seed)
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(["setting", "algorithm", *record.names, "seed", "rounds", "diverged",
                     f"score ({choice.rule})", *record.metrics])
    for row in range(len(record.setting)):
        number = int(record.setting[row])
        setting = record.settings[number]
        place = int(np.searchsorted(seeds, record.seed[row]))
        last = record.last(row)
        writer.writerow([
            number, setting.algorithm, *(setting.values.get(name, "") for name in record.names),
            int(record.seed[row]), int(record.done[row]), int(record.diverged[row]) or "",
            _number(choice.scores[number, place]),
            *(_number(last[name]) for name in record.metrics),
        ])
    write_atomically(folder / RESULTS, text.getvalue().encode())


def write_summary(
    folder: Path, record: Record, choice: Choice, seconds: float
) -> dict[str, Any]:
    """Writes what a sweep says at its end.

    Raises:
      OSError: the disk is full or not writable.
    """
    summary = {
        "rounds": int(record.done.max(initial=0)), "runs": len(record.setting),
        "choose": choice.rule, "maximise": choice.maximise,
        "methods": {
            method: {
                "best": chosen.best,
                "values": None if chosen.best is None
                else dict(record.settings[chosen.best].values),
                "score": None if chosen.best is None else float(choice.mean[chosen.best]),
                "spread": None if chosen.best is None else float(choice.spread[chosen.best]),
                "within_5_percent": chosen.sensitivity,
                "edges": [edge._asdict() for edge in chosen.edges],
                "diverged": chosen.diverged,
            }
            for method, chosen in choice.methods.items()
        },
        "words": closing_words(record, choice),
        "seconds": seconds,
    }
    write_json(folder / "summary.json", json.loads(json.dumps(summary)))
    return summary


def _number(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.9g}"
