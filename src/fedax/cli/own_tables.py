"""A user's own table as a task: `fedax run stays.csv --client hospital --label died`."""

from __future__ import annotations

import dataclasses
from typing import TypeVar

from fedax.cli.commands import Run, Sweep
from fedax.experiment.errors import ConfigError
from fedax.tasks.tables import names_table

TASK = "table"
Command = TypeVar("Command", Run, Sweep)


def lacks_columns(command: Run | Sweep) -> bool:
    """Whether the task is a file, but its client column or its label is not given."""
    return names_table(command.task) and any(
        value is None and not any(
            word.partition("=")[0].strip().removeprefix("task.") == name
            for words in command.set for word in words
        ) for name, value in (("client", command.client), ("label", command.label))
    )


def as_task(command: Command) -> Command:
    """The command with the file, the client column and the label as settings of the task `table`.

    Raises:
      ConfigError: if a file is given without --client or --label.
    """
    given = {"client": command.client, "label": command.label}
    task = command.task
    if task is not None and names_table(task):
        if lacks_columns(command):
            raise ConfigError(
                f"{task} is a table, which needs the column of clients and the column to predict: "
                f"{_called(command)} {task} --client COLUMN --label COLUMN."
            )
        given["file"], task = task, TASK
    elif task not in (None, TASK) and any(given.values()):
        raise ConfigError(
            f"--client and --label are for a table, but {task} is a task. Give the file of the "
            f"table instead: {_called(command)} FILE.csv --client COLUMN --label COLUMN."
        )
    # In quotes, as the name of a column may look like a number.
    words = tuple(f"task.{name}='{value}'" for name, value in given.items() if value is not None)
    if not words:
        return command
    return dataclasses.replace(
        command, task=task, client=None, label=None, set=(words, *command.set)
    )


def _called(command: Run | Sweep) -> str:
    return "fedax run" if isinstance(command, Run) else "fedax sweep"
