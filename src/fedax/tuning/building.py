"""From a sweep's configuration to the task and the algorithm of every setting."""

from __future__ import annotations

from fedax.data.task import Task
from fedax.experiment.errors import ConfigError
from fedax.experiment.run import Built, build_data, build_method, fitted
from fedax.factories import Structure, partition
from fedax.measures.communication import Communication
from fedax.sweeps.choosing import require_choosable
from fedax.tuning.config import SweepConfig


def built(config: SweepConfig) -> list[Built]:
    """What every setting stands for, in their order.

    A task is loaded once for all settings that have it alike, and it is tried once whether it fits
    an algorithm, for all that differ in numbers only.

    Raises:
      ConfigError: a value is out of its range, or a setting does not fit the task, or what is
        chosen by will not be measured.
      RunError: a task's data are damaged.
    """
    tasks: dict[str, Task] = {}
    known: dict[tuple[str, Structure], Communication] = {}
    found: list[Built] = []
    for setting in config.settings:
        run = config.run(setting)
        options = repr(sorted(run.task_options.items()))
        if options not in tasks:
            tasks[options] = build_data(run)
            try:
                require_choosable(config.choose, tasks[options], run.evaluate_every > 0)
            except ValueError as error:
                raise ConfigError(str(error)) from None
        task = tasks[options]
        algorithm = build_method(run, task)
        kind = options, partition(algorithm)[1]
        if kind not in known:
            known[kind] = fitted(run, task, algorithm)
        found.append(Built(task, algorithm, known[kind]))
    return found
