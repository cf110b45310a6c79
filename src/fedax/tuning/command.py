"""Sweeps that the command line describes: begun, gone on with, extended."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from fedax.data.file_names import file_name
from fedax.experiment.config import RunConfig
from fedax.experiment.differing import record_of_tasks, require_same_tasks
from fedax.experiment.display import make_console, style_of_command_line
from fedax.experiment.errors import ConfigError
from fedax.experiment.folder import (
    TASKS,
    RunError,
    explained,
    for_shell,
    locked,
    new_folder,
    read_summary,
)
from fedax.experiment.run import fitted_cohort, simulate_options
from fedax.files.regular import write_atomically
from fedax.rounds.options import Settings
from fedax.rounds.stopping import Goal
from fedax.sweeps.choosing import Choice, RuleError, choose, require_choosable
from fedax.sweeps.planning import Entry, Halving, Unit, plan
from fedax.sweeps.record import Record
from fedax.tuning.best import best_toml
from fedax.tuning.building import built, possible, smaller_cohorts
from fedax.tuning.config import SweepConfig
from fedax.tuning.folder import (
    BEST,
    damaged,
    halving_of,
    read_methods,
    read_record,
    read_sweep_config,
    settings_of,
    units_of,
    write_methods,
    write_sweep_config,
)
from fedax.tuning.grids import VARIED_OF_RUN
from fedax.tuning.halving import halved
from fedax.tuning.sitting import Work, sit


class Swept(NamedTuple):
    """What a sweep came to, and where."""

    folder: Path
    record: Record
    choice: Choice


def start_sweep(
    config: SweepConfig, out: Path | None = None, *, settings_per_batch: int | None = None,
    halving: int | None = None, notes: Sequence[str] = (), fit_cohort: bool = False,
    overwrite: bool = False,
) -> Swept:
    """Runs a sweep in a new folder.

    Args:
      config: what to run.
      out: the folder, created; None makes one under fedax-runs/.
      settings_per_batch: see `fedax.sweeps.planning.plan`.
      halving: see `fedax.sweep`.
      notes: messages to print first.
      fit_cohort, overwrite: see `fedax.experiment.run.start`.

    Raises:
      ConfigError: if a value is wrong, or the settings do not fit the task.
      RunError: if the folder cannot be used, or the sweep was stopped.
    """
    config, entries = fitted_cohort(config, _entries, smaller_cohorts) if fit_cohort else (
        config, _entries(config)
    )
    config = config.ruled(entry.task for entry in entries)
    if halving is not None:
        _require_fit_to_give_up(config, entries)
    units = _planned(config, entries, settings_per_batch, range(len(entries)))
    by_halves = _halved(halving, settings_per_batch, config)
    folder = out or unused_folder(config)
    asked = Asked(config, units, identity_of(config), _typed(), by_halves, _tasks(entries))
    with new_folder(folder, go_on=_go_on(folder), overwrite=overwrite):
        with explained(folder, _go_on(folder)):
            write_methods(folder, list(config.bases.values()))
            _write_config(folder, asked)
        return _sat(folder, asked, entries, notes)


def identity_of(config: SweepConfig) -> str:
    """A digest of all that a sweep's numbers depend on but the versions of libraries."""
    bases = [str(base) for base in config.bases.values()]
    text = json.dumps([config.grid, config.seeds, bases], default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def resume_sweep(
    folder: Path, *, rule: str | None = None, notes: Sequence[str] = ()
) -> Swept:
    """Continues a sweep where it stopped; for a finished sweep, returns its result.

    Args:
      folder: the sweep's.
      rule: the new rule to choose by; None: as before.
      notes: messages to print first.

    Raises:
      ConfigError, RunError: if the folder is not a sweep folder or is damaged, the sweep
        was stopped again, or the rule cannot be followed.
    """
    asked = read_sweep(folder)
    config = asked.config
    with locked(folder, _go_on(folder)):
        done = _finished(folder, config, rule or config.choose)
        if done is not None and rule in (None, config.choose):
            return done
        if rule is not None and asked.halving is not None:
            raise ConfigError(
                f"The sweep in {folder} stops settings early by {config.choose}, so it cannot "
                f"choose by {rule}. Start another sweep."
            )
        asked = asked._replace(config=dataclasses.replace(config, choose=rule or config.choose))
        entries = _entries(asked.config)
        _require_same_tasks(folder, asked, entries)
        if rule is not None:
            with explained(folder, _go_on(folder)):
                (folder / "summary.json").unlink(missing_ok=True)
                _write_config(folder, asked)
        return _sat(folder, asked, entries, notes)


def extend_sweep(
    folder: Path, *, settings_per_batch: int | None = None, notes: Sequence[str] = ()
) -> Swept:
    """Continues a finished sweep beyond the edges of its grids at which best settings are.

    Raises:
      ConfigError: if it is not finished, or no best setting is at an edge.
      RunError: as for `resume_sweep`.
    """
    asked = read_sweep(folder)
    config = asked.config
    with locked(folder, _go_on(folder)):
        done = _finished(folder, config, config.choose)
        if done is None:
            raise ConfigError(f"The sweep in {folder} is not finished; {_go_on(folder)}")
        if asked.halving is not None:
            raise ConfigError(
                f"The sweep in {folder} used halving, so it cannot be extended. Start another "
                "sweep with a wider grid."
            )
        wider, left_out = possible(config.wider(done.choice), len(config.settings))
        if len(wider.settings) == len(config.settings):
            why = " ".join(left_out) or "No best setting is at an edge of its grid."
            raise ConfigError(f"There is nothing to add to the sweep in {folder}. {why}")
        entries = _entries(wider)
        _require_same_tasks(folder, asked, entries)
        new = range(len(config.settings), len(entries))
        units = [*asked.units, *_planned(wider, entries, settings_per_batch, new)]
        asked = asked._replace(
            config=wider, units=units, extended=asked.extended + 1, tasks=_tasks(entries)
        )
        with explained(folder, _go_on(folder)):
            (folder / "summary.json").unlink(missing_ok=True)
            _write_config(folder, asked)
        return _sat(folder, asked, entries, [*notes, *left_out])


class Asked(NamedTuple):
    """What a sweep of the command line is.

    Attributes:
      config: what it runs.
      units: as planned.
      identity: what its parts are of.
      command: how it was begun.
      halving: how settings are given up; None: all run to the end.
      extended: how many times its grids were widened since.
      tasks: what tells its tasks from others, see `record_of_tasks`; None: it is not known.
    """

    config: SweepConfig
    units: list[Unit]
    identity: str
    command: str | None
    halving: Halving | None
    tasks: list[dict[str, Any]] | None
    extended: int = 0


def read_sweep(folder: Path) -> Asked:
    """Reads what a sweep of the command line is.

    Raises:
      ConfigError, RunError: if the folder is not a sweep folder, is damaged, or is from Python.
    """
    written = read_sweep_config(folder)
    if "python" in written:
        raise RunError(
            f"The sweep in {folder} was started from Python. To continue it, call fedax.sweep "
            "again in that program; fedax.load_sweep reads it."
        )
    config = SweepConfig(
        written["grid"], tuple(settings_of(written)), tuple(written["seeds"]), written["choose"],
        read_methods(folder, list(written["grid"])),
    )
    require_rule(folder, config)
    return Asked(
        config, units_of(written), written["identity"], written.get("command"),
        halving_of(written), written.get("made_by", {}).get(TASKS),
        int(written.get("extended", 0)),
    )


def require_rule(folder: Path, config: SweepConfig) -> None:
    """Raises an error unless a folder's configuration can be followed.

    Raises:
      RunError: if it does not have methods, or the rule is unknown.
    """
    try:
        if not config.bases:
            raise ValueError("it does not have a method")
        Goal.of(config.choose, None, "choose")
    except ValueError as error:
        raise damaged(folder, error) from None


def _finished(folder: Path, config: SweepConfig, rule: str) -> Swept | None:
    """What a sweep came to by a rule; None if it is not finished.

    Raises:
      ConfigError: if the rule cannot be followed.
    """
    record = read_record(folder, config.settings)
    if read_summary(folder) is None or record is None:
        return None
    try:
        return Swept(folder, record, choose(record, rule))
    except ValueError as error:  # its direction is unknown, or a RuleError
        raise ConfigError(f"{error} {_choose_another(folder)}") from None


def _entries(config: SweepConfig) -> list[Entry]:
    """What every setting stands for."""
    entries = []
    for setting, found in zip(config.settings, built(config), strict=True):
        run = config.run(setting)
        kind = tuple(getattr(run, name) for name in VARIED_OF_RUN)
        options = functools.partial(_options, run)
        entries.append(Entry(found.task, found.algorithm, options, kind))
    return entries


def _require_fit_to_give_up(config: SweepConfig, entries: Sequence[Entry]) -> None:
    """Raises an error if settings cannot be given up by the rule."""
    try:
        for entry in entries:
            require_choosable(
                config.choose, entry.task, entry.algorithm, evaluates=True, gives_up=True
            )
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _tasks(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """What tells the tasks of the settings from others, each once."""
    return record_of_tasks([*{id(entry.task): entry.task for entry in entries}.values()])


def _require_same_tasks(folder: Path, asked: Asked, entries: Sequence[Entry]) -> None:
    """Raises an error if the data of a user's own task have changed."""
    if next(iter(asked.config.bases.values())).task_source is not None:
        require_same_tasks(
            asked.tasks, _tasks(entries), f"sweep in {folder}", "Start another sweep with it."
        )


def _options(run: RunConfig, seed: int) -> Settings:
    """How the rounds of a setting are run."""
    options = simulate_options(dataclasses.replace(run, seed=seed))
    return Settings.checked(run.num_rounds, {**options, "state_every": max(run.num_rounds, 1)})


def _planned(
    config: SweepConfig, entries: Sequence[Entry], settings_per_batch: int | None, numbers: range
) -> list[Unit]:
    try:
        return plan(entries, config.seeds, jax.local_device_count(), settings_per_batch, numbers)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _halved(
    factor: int | None, settings_per_batch: int | None, config: SweepConfig
) -> Halving | None:
    try:
        return None if factor is None else halved(factor, settings_per_batch, config.settings)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _sat(
    folder: Path, asked: Asked, entries: Sequence[Entry], notes: Sequence[str]
) -> Swept:
    """Runs what is left."""
    config = asked.config
    work = Work(
        config.settings, entries, asked.units, config.num_rounds, config.choose, asked.identity,
        _go_on(folder), config.seeds, asked.halving,
    )

    def keep_best(record: Record, choice: Choice) -> None:
        (folder / BEST).mkdir(exist_ok=True)
        for algorithm in config.algorithms:
            text = best_toml(config, record, choice, algorithm)
            path = folder / BEST / file_name(f"{algorithm}.toml")
            if text is None:
                path.unlink(missing_ok=True)
            else:
                write_atomically(path, text.encode())

    style = style_of_command_line(make_console())
    try:
        record, choice = sit(work, folder, style, notes, keep_best)
    except RuleError as error:
        raise ConfigError(f"{error} {_choose_another(folder)}") from None
    return Swept(folder, record, choice)


def _write_config(folder: Path, asked: Asked) -> None:
    config = asked.config
    first = next(iter(config.bases.values()))
    said = {
        "task": config.task, "algorithm": ",".join(config.algorithms),
        "algorithms": config.algorithms, "preset": first.preset, "num_rounds": config.num_rounds,
        "seeds": list(config.seeds), "choose": config.choose, "grid": config.grid,
        "cohort_size": first.cohort_size, "evaluate_every": first.evaluate_every,
        "evaluation_sample": first.evaluation_sample, "command": asked.command,
        "identity": asked.identity, "halving": asked.halving,
        "extended": asked.extended,
    }
    write_sweep_config(folder, said, asked.units, config.settings, asked.tasks)


def _go_on(folder: Path) -> str:
    return f"continue with: fedax sweep --resume {for_shell(folder)}"


def _choose_another(folder: Path) -> str:
    return f"Choose another metric: fedax sweep --resume {for_shell(folder)} --choose METRIC"


def _typed() -> str:
    """The command line of this process, for the page."""
    return "fedax " + " ".join(for_shell(word) for word in sys.argv[1:])


def unused_folder(config: SweepConfig) -> Path:
    """A folder under fedax-runs/ that no other run has."""
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    first = Path("fedax-runs") / file_name(f"{config.task}-sweep-{stamp}")
    folder, number = first, 1
    while folder.exists():
        number += 1
        folder = first.with_name(f"{first.name}-{number}")
    return folder
