"""What can be set, in words: of what is listed, and of a run before it is started."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedax.experiment.build import algorithm_settings, find_algorithm, find_task, task_settings
from fedax.experiment.config import resolve, run_settings
from fedax.experiment.errors import ConfigError
from fedax.experiment.presets import default_algorithm

Row = dict[str, Any]

WIDEST = 100


def print_settings(
    title: str, settings: Iterable[Row], chosen: Mapping[str, Any] | None = None, by: str = ""
) -> None:
    """Prints settings, two or more lines each.

    Args:
      title: the first line.
      settings: rows of `Setting.row`.
      chosen: values that they have without being set, where these are not the defaults.
      by: who has chosen them.
    """
    width = min(shutil.get_terminal_size().columns, WIDEST)
    print(f"\n{title}")
    for row in settings:
        words = [row["type"]]
        if row["needed"]:
            words.append("required")
        default = row.get("default", ...)
        if default is not ...:
            words.append(f"default {_word(default)}")
        value = (chosen or {}).get(row["name"], default)
        if value != default:
            words.append(f"{by}: {_word(value)}")
        print(f"  {row['name']}  {'; '.join(filter(None, words))}")
        if row["meaning"]:
            print(textwrap.fill(row["meaning"], width, initial_indent=" " * 6,
                                subsequent_indent=" " * 6))


def _word(value: Any) -> str:
    """A value as one would write it."""
    return str(value).lower() if isinstance(value, bool | None) else str(value)


def explain_run(
    task: str, algorithm: str | None, preset: str | None,
    given: Mapping[str, Any] | None = None, why: str = "",
) -> None:
    """Prints what can be set in a run: of the method, of the task, of the run itself.

    Then why no preset's values stand beside the defaults, if there are none.

    Args:
      task, algorithm, preset: names, or where a user's own are.
      given: settings that the user gives, which are not the preset's.
      why: why the preset's values cannot be shown; empty: they may be.

    Raises:
      ConfigError: if the task or the algorithm is unknown.
    """
    task_name, task_source = find_task(task)
    name, source = find_algorithm(algorithm or default_algorithm(task_name, task_source))
    parts = {
        name: algorithm_settings(name, source),
        f"the task {task_name}": task_settings(task_name, task_source),
        "the run": run_settings(),
    }
    chosen, by = {}, ""
    if not why:
        try:
            config = resolve(task=task, algorithm=algorithm, preset=preset, settings=given)
        except ConfigError as error:  # there is no such preset, or something must be given first
            why = f"The preset's values cannot be shown. {error}"
        else:
            by = f"preset {config.preset}"
            chosen = {**vars(config), **config.task_options, **config.algorithm_options}
            for key in given or ():
                chosen.pop(key.rpartition(".")[2], None)
    for of, found in parts.items():
        if found:
            rows = [setting.row() for setting in found.values()]
            print_settings(f"Settings of {of}, for --set KEY=VALUE:", rows, chosen, by)
    if why:
        width = min(shutil.get_terminal_size().columns, WIDEST)
        print(f"\n{textwrap.fill(why, width, break_on_hyphens=False)}")


def explain_rows(rows: Sequence[Row]) -> None:
    """Prints the settings of the rows of a list that describe them."""
    for row in rows:
        print_settings(f"Settings of {row['name']}, for --set KEY=VALUE:", row["settings"])
