"""The sweep folder: its configuration and its results.

`config.json` is the configuration, as for a run; `methods/0/config.json` is the configuration of
the first method's first run, and so on. `rounds.npz` has every round of every run, `results.csv`
one row per run, `best/METHOD.toml` the best setting of each method, `summary.json` the final
summary, and `report.html` shows all of it.
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

from fedax.data.csv_cells import safe_cell
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
    write_json,
)
from fedax.experiment.versions import versions
from fedax.files.regular import link_to, write_atomically
from fedax.sweeps.choosing import Choice
from fedax.sweeps.closing import closing_words
from fedax.sweeps.planning import Halving, Unit
from fedax.sweeps.record import Record, Setting
from fedax.tuning.checking import check_sweep
from fedax.tuning.keeping import ROWS, part_of, read_columns, require_modest, write_columns

ROUNDS = "rounds.npz"
RESULTS = "results.csv"
BEST = "best"


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
      OSError: if the disk is full or not writable.
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
      RunError: if the folder is not a sweep folder, or the file is damaged.
    """
    config = read_config(folder)
    if config.get("kind") != SWEEP:
        raise RunError(
            f"{folder} is a run, not a sweep. To continue it: fedax run --resume "
            f"{for_shell(folder)}"
        )
    try:
        check_sweep(config)
    except ValueError as error:
        raise damaged(folder, error) from None
    return config


def damaged(folder: Path, why: object) -> RunError:
    """What to raise of a sweep's config.json that holds what cannot be."""
    return RunError(f"{folder / CONFIG} is damaged: {str(why).rstrip('.')}.")


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
      OSError: if the disk is full or not writable.
    """
    for place, base in enumerate(bases):
        own = folder / METHODS / str(place)
        own.mkdir(parents=True, exist_ok=True)
        values = dataclasses.asdict(base)
        signed = {"signature": trust.signature(values)} if base.sources else {}
        write_json(own / CONFIG, {**values, "made_by": versions() | signed})
        sources.keep_copies(own, base.sources)


def read_methods(folder: Path, names: Sequence[str]) -> dict[str, RunConfig]:
    """The configurations that `write_methods` wrote, by the methods' names.

    Raises:
      ConfigError: if one is damaged, or a source has changed since.
      RunError: if one is of another method, or of another task than the first.
    """
    found: dict[str, RunConfig] = {}
    for place, name in enumerate(names):
        path = config_of_method(folder, place)
        base = load_config(path, cure="start another sweep with that code.")
        found[name] = base
        if base.algorithm != name:
            raise damaged(folder, f"its method {name} is {base.algorithm} in {path}")
        if base.task != found[names[0]].task:
            raise damaged(folder, f"{path} is of another task, {base.task}")
    return found


def config_of_method(folder: Path, place: int) -> Path:
    """Where a sweep folder has the configuration of a method's first run.

    Raises:
      RunError: if a link leads there.
    """
    wrong = link_to(folder, METHODS, str(place))
    if wrong is not None:
        raise RunError(wrong)
    return folder / METHODS / str(place) / CONFIG


def write_record(folder: Path, record: Record, identity: str) -> None:
    """Writes every round of every run as columns.

    Raises:
      OSError: if the disk is full or not writable.
    """
    columns = {name: getattr(record, name) for name in ROWS}
    columns |= {f"metric/{name}": values for name, values in record.metrics.items()}
    write_columns(folder / ROUNDS, columns, identity)


def read_record(folder: Path, settings: Sequence[Setting]) -> Record | None:
    """The record of a sweep; None while there is none.

    Raises:
      RunError: if the file is damaged.
    """
    path = folder / ROUNDS
    if not path.exists():
        return None
    part = part_of(read_columns(path), path)
    if part.setting.max(initial=-1) >= len(settings):
        raise RunError(f"{path} has settings that are not in {folder / CONFIG}.")
    require_modest(len(settings), [part], str(folder))
    return Record(list(settings), *part)


def write_results(folder: Path, record: Record, choice: Choice) -> None:
    """Writes the table of results, a row a run.

    Raises:
      OSError: if the disk is full or not writable.
    """
    seeds = np.unique(record.seed)
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    names, metrics = map(safe_cell, record.names), map(safe_cell, record.metrics)
    writer.writerow(["setting", "algorithm", *names, "seed", "rounds", "diverged",
                     f"score ({choice.rule})", *metrics])
    for row in range(len(record.setting)):
        number = int(record.setting[row])
        setting = record.settings[number]
        place = int(np.searchsorted(seeds, record.seed[row]))
        last = record.last(row)
        writer.writerow([
            number, safe_cell(setting.algorithm),
            *(safe_cell(setting.values.get(name, "")) for name in record.names),
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
      OSError: if the disk is full or not writable.
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
