"""From a sweep's configuration to the task and the algorithm of every setting."""

from __future__ import annotations

import dataclasses

from fedax.data.task import Task
from fedax.experiment.config import RunConfig
from fedax.experiment.errors import ConfigError
from fedax.experiment.run import (
    Built,
    build_data,
    build_method,
    fitted,
    smaller_cohort,
)
from fedax.factories import Structure, partition
from fedax.measures.communication import Communication
from fedax.sweeps.choosing import require_choosable
from fedax.sweeps.grid import same
from fedax.tuning.config import SweepConfig


def built(config: SweepConfig) -> list[Built]:
    """What every setting stands for, in their order.

    A task is loaded once for all settings that have it alike, and it is tried once whether it fits
    an algorithm, for all that differ in numbers only.

    Raises:
      ConfigError: if a value is out of its range, or a setting does not fit the task, or what is
        chosen by will not be measured.
      RunError: if the data of a task are damaged.
    """
    tasks: dict[str, Task] = {}
    known: dict[tuple[str, Structure], Communication] = {}
    found: list[Built] = []
    runs = [config.run(setting) for setting in config.settings]
    for run in runs:
        if (options := _options(run)) not in tasks:
            tasks[options] = build_data(run)
    rule = config.ruled(tasks.values()).choose
    for run in runs:
        options = _options(run)
        task = tasks[options]
        algorithm = build_method(run, task)
        kind = options, partition(algorithm)[1]
        if kind not in known:
            known[kind] = fitted(run, task, algorithm)
            try:
                require_choosable(
                    rule, task, algorithm, evaluates=run.evaluate_every > 0,
                    reported=known[kind].reported,
                )
            except ValueError as error:
                raise ConfigError(str(error)) from None
        found.append(Built(task, algorithm, known[kind]))
    return found


def smaller_cohorts(config: SweepConfig, num_clients: int) -> SweepConfig:
    """The sweep with cohorts of at most `num_clients`."""
    bases = {name: smaller_cohort(base, num_clients) for name, base in config.bases.items()}
    return dataclasses.replace(config, bases=bases)


def possible(config: SweepConfig, known: int) -> tuple[SweepConfig, list[str]]:
    """The sweep without those new settings that cannot be built, and sentences that say why.

    What a name does not tell of a hyperparameter's range its factory does: an edge may ask for
    more than there is.

    Args:
      config: a sweep that was made wider.
      known: how many of its settings are not new.
    """
    tasks: dict[str, Task] = {}
    kept, why = list(config.settings[:known]), dict[str, None]()
    for setting in config.settings[known:]:
        run = config.run(setting)
        options = _options(run)
        if options not in tasks:
            tasks[options] = build_data(run)
        try:
            build_method(run, tasks[options])
        except ConfigError as error:
            why[f"Left out an invalid value: {error}"] = None
        else:
            kept.append(setting._replace(number=len(kept)))
    grid = {
        name: {
            key: [value for value in values if any(
                one.algorithm == name and same(one.values[key], value) for one in kept
            )] for key, values in of.items()
        } for name, of in config.grid.items()
    }
    return dataclasses.replace(config, grid=grid, settings=tuple(kept)), list(why)


def _options(run: RunConfig) -> str:
    """What tells the task of a run from that of another one."""
    return repr(sorted(run.task_options.items()))
