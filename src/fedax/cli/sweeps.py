"""`fedax sweep`: from its options to the sweep, and what is said at its end."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedax.cli.commands import Sweep
from fedax.cli.own_tables import as_task
from fedax.cli.words import gives, require_out
from fedax.experiment.errors import ConfigError
from fedax.experiment.folder import for_shell, read_config
from fedax.experiment.values import log_names, parse_settings
from fedax.outside.text import printable
from fedax.report.sweep_tables import best_table
from fedax.report.tables import print_tables
from fedax.sinks import log_record, require_libraries
from fedax.sweeps.choosing import Choice
from fedax.sweeps.closing import remarks
from fedax.sweeps.record import Record
from fedax.tuning.command import extend_sweep, read_sweep, resume_sweep, start_sweep
from fedax.tuning.config import SweepConfig, sweep_config
from fedax.tuning.folder import halving_of
from fedax.tuning.search_command import (
    Found,
    is_search,
    resume_search,
    search_config,
    start_search,
)
from fedax.validate import so_many

# Options of searches alone.
OF_SEARCH = ("trials", "sampler", "pruner", "storage")
# What may go with --resume of a search.
WITH_SEARCH = ("resume", "trials", "storage", "log", "debug")
# What may go with --resume and with --extend, which take all else from the folder.
WITH_FOLDER = {"resume": "choose", "extend": "settings_per_batch"}


def sweep(command: Sweep) -> None:
    """Runs, continues or extends a sweep, and prints the result.

    Raises:
      ConfigError, RunError: see `fedax.tuning.command`.
    """
    command = as_task(command)
    require_out(command.out, overwrite=command.overwrite)
    names = log_names(command.log)
    require_libraries(names)
    if command.search or (command.resume is not None and is_search(command.resume)):
        found = searched(command)
        print_found(found)
        if names:
            _log(names, found.folder, found.config.sweep, found.record)
        return
    if command.extend is not None and is_search(command.extend):
        raise ConfigError(
            "A search does not have a grid to extend. To add trials: --resume DIR --trials N."
        )
    for option in OF_SEARCH:
        if getattr(command, option) is not None:
            raise ConfigError(f"--{option} needs --search KEY=RANGE.")
    if command.resume is None and command.extend is None:
        config = asked(command)
        swept = start_sweep(
            config, command.out, settings_per_batch=command.settings_per_batch,
            halving=command.halving, notes=describe(config),
            fit_cohort=_fits_cohort(command, described(command)[2]), overwrite=command.overwrite,
        )
    else:
        require_alone(command)
        if command.extend is not None:
            swept = extend_sweep(command.extend, settings_per_batch=command.settings_per_batch)
        else:
            swept = resume_sweep(command.resume or Path(), rule=command.choose)
    halves = halving_of(read_config(swept.folder)) is not None
    print_outcome(swept.record, swept.choice, swept.folder, extends=not halves)
    if names:
        _log(names, swept.folder, read_sweep(swept.folder).config, swept.record)


def _log(names: tuple[str, ...], folder: Path, config: SweepConfig, record: Record) -> None:
    """Writes all runs to sinks again."""
    logged = log_record(
        names, folder, lambda setting, seed: dataclasses.asdict(config.run(setting, seed)), record,
        print,
    )
    if logged:
        print(f"Logs of the runs in {folder / 'logs'}: {', '.join(logged)}")


def searched(command: Sweep) -> Found:
    """Runs a search, or continues one.

    Raises:
      ConfigError, RunError: see `fedax.tuning.search_command`.
    """
    if command.resume is not None:
        given = {name: getattr(Sweep(), name) for name in WITH_SEARCH}
        if dataclasses.replace(command, **given) != Sweep():
            raise ConfigError(
                "--resume continues a search with its own settings. Only --trials (the new "
                "total), --storage and --log can be given with it."
            )
        return resume_search(command.resume, command.trials, command.storage)
    if command.grid or command.extend is not None or command.halving:
        raise ConfigError("--search cannot be combined with --grid, --halving or --extend.")
    task, algorithms, fixed = described(command)
    given = {
        "num_trials": command.trials, "sampler": command.sampler, "pruner": command.pruner,
        "batch_size": command.settings_per_batch, "storage": command.storage,
    }
    config = search_config(
        task, algorithms, [word for words in command.search for word in words or ("",)],
        preset=command.preset, settings=fixed, num_seeds=command.seeds,
        choose=command.choose,
        **{name: value for name, value in given.items() if value is not None},
    )
    return start_search(config, command.out, fit_cohort=_fits_cohort(command, fixed),
                        overwrite=command.overwrite)


def print_found(found: Found) -> None:
    """Prints what a search says at its end."""
    if found.choice is not None:
        print_tables([best_table(found.record, found.choice)])
        for sentence in remarks(found.record, found.choice):
            print(printable(sentence))
    print(f"Search: {found.folder}")


def asked(command: Sweep) -> SweepConfig:
    """The sweep that a command line describes.

    Raises:
      ConfigError: if the options do not describe a sweep; the message says why.
    """
    task, algorithms, fixed = described(command)
    return sweep_config(
        task, algorithms,
        [word for words in command.grid for word in words or ("",)],
        preset=command.preset, settings=fixed, num_seeds=command.seeds,
        choose=command.choose,
    )


def described(command: Sweep) -> tuple[str, list[str], dict[str, Any]]:
    """The task, the methods and the fixed settings of a command line.

    Raises:
      ConfigError: if one of them is missing or wrong; the message says why.
    """
    if command.task is None or command.algorithms is None:
        raise ConfigError(
            "fedax sweep needs a task and methods, such as: fedax sweep shakespeare "
            "fedavg,fedavgm --grid client_learning_rate=0.1,1"
        )
    # An option without a word reaches the parser of its words as an empty one, and is refused.
    fixed = parse_settings(
        [word for words in command.set for word in words or ("",)],
        {"--rounds": command.rounds, "--cohort-size": command.cohort_size},
    )
    return command.task, [name.strip() for name in command.algorithms.split(",")], fixed


def _fits_cohort(command: Sweep, fixed: Iterable[str]) -> bool:
    """Whether nobody has said how large cohorts are."""
    varied = [word for words in (*command.grid, *command.search) for word in words]
    return not gives("cohort_size", [*fixed, *varied])


def require_alone(command: Sweep) -> None:
    """Raises a `ConfigError` if --resume or --extend comes with settings, which the folder has."""
    if command.resume is not None and command.extend is not None:
        raise ConfigError(
            "--resume and --extend cannot be combined. Finish the sweep with --resume, then "
            "extend it."
        )
    option = "resume" if command.extend is None else "extend"
    with_it = WITH_FOLDER[option]
    given = {name: getattr(Sweep(), name) for name in (option, with_it, "log", "debug")}
    if dataclasses.replace(command, **given) != Sweep():
        raise ConfigError(
            f"--{option} uses the sweep's own settings. Only --{with_it.replace('_', '-')} and "
            "--log can be given with it."
        )


def describe(config: SweepConfig) -> list[str]:
    """What a sweep says before it begins."""
    lines = []
    for name, grid in config.grid.items():
        count = sum(setting.algorithm == name for setting in config.settings)
        sizes = " x ".join(f"{len(values)} {key}" for key, values in grid.items())
        lines.append(f"{name}: {so_many(count, 'setting')}"
                     f"{f' ({sizes})' if sizes else ', nothing to vary'}")
    runs = len(config.settings) * len(config.seeds)
    lines.append(
        f"{so_many(runs, 'run')} of {so_many(config.num_rounds, 'round')} on {config.task}, "
        f"{so_many(len(config.seeds), 'seed')} each"
    )
    return lines


def print_outcome(
    record: Record, choice: Choice, folder: Path, *, extends: bool = True
) -> None:
    """Prints a sweep's summary, and how to continue if a grid was too narrow.

    Args:
      record, choice, folder: of the sweep.
      extends: whether its grid can be extended.
    """
    print_tables([best_table(record, choice)])
    for sentence in remarks(record, choice):
        print(printable(sentence))
    if extends and any(chosen.edges for chosen in choice.methods.values()):
        print(f"To extend these grids: fedax sweep --extend {for_shell(folder)}")
    print(f"Sweep: {folder}\nReport: {folder / 'report.html'}")
