"""`fedax table`: the table of results of a paper."""

from __future__ import annotations

import sys

from fedax.cli.commands import Table
from fedax.cli.showing import FORMATS
from fedax.cli.writing import write_result
from fedax.experiment.errors import ConfigError
from fedax.outside.text import printable
from fedax.tuning.results import table


def write_table(command: Table) -> None:
    """Prints or writes the table of folders.

    Raises:
      ConfigError: if no folder is given, or options cannot be combined.
      RunError: if a folder does not contain a run or a sweep, or the file cannot be written.
      TableError: if the runs do not have the metric or the seeds.
    """
    if not command.dirs:
        raise ConfigError(
            "fedax table needs one or more folders of runs or sweeps: fedax table DIR ..."
        )
    if command.baseline is not None and command.significance is None:
        raise ConfigError("--baseline needs --significance, the test to use.")
    kind = _format(command)
    found = table(
        command.dirs, tuple((command.metric or "").split(",")) if command.metric else (),
        target=command.target, significance=command.significance, baseline=command.baseline,
        all_settings=command.all_settings,
    )
    text = {"markdown": found.markdown, "latex": found.latex, "csv": found.csv}[kind]()
    if kind == "csv":  # which has no place for them
        print("\n".join(found.notes), file=sys.stderr)
    if command.out is None:
        print(text)
        return
    write_result(command.out, f"{text}\n".encode(), "table")
    print(f"Table: {printable(str(command.out))}")


def _format(command: Table) -> str:
    """How the table is written, by the option or by the file's ending."""
    if command.out is None or command.format is not None:
        return command.format or "markdown"
    endings = {ending: kind for kind, ending in FORMATS.items()}
    kind = endings.get(command.out.suffix.lower())
    if kind is None:
        raise ConfigError(
            f"--out {command.out} does not end in {', '.join(endings)}. Change it, or give "
            "--format."
        )
    return kind
