"""Settings as tables: of what is listed, and of a run before it is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedax.experiment.build import algorithm_settings, find_algorithm, find_task, task_settings
from fedax.experiment.config import RunConfig, resolve, run_settings
from fedax.experiment.errors import ConfigError
from fedax.report.tables import Table, print_tables

Row = dict[str, Any]


def print_settings(rows: Sequence[Row]) -> None:
    """Prints the settings of those rows of a list that describe them."""
    found = {row["name"]: row.get("settings", []) for row in rows}
    print_tables([
        _table(f"Settings of {name}", settings)
        for name, settings in found.items() if settings and isinstance(settings[0], dict)
    ])


def settings_of_run(task: str, algorithm: str | None, preset: str | None) -> list[Table]:
    """What can be set in a run: of the method, of the task, of the run itself.

    Raises:
      ConfigError: there is no such task or algorithm.
    """
    task_name, task_source = find_task(task)
    name, source = find_algorithm(algorithm or RunConfig.algorithm)
    parts = {
        f"of {name}": algorithm_settings(name, source),
        f"of the task {task_name}": task_settings(task_name, task_source),
        "of the run": run_settings(),
    }
    try:
        config = resolve(task=task, algorithm=algorithm, preset=preset)
    except ConfigError:  # there is no such preset, or something must be given first
        chosen, title = {}, ""
    else:
        chosen = {**vars(config), **config.task_options, **config.algorithm_options}
        title = f"preset {config.preset}" if config.preset != "none" else ""
    return [
        _table(f"Settings {of}, for --set KEY=VALUE", [s.row() for s in found.values()],
                        (title, chosen) if title else None)
        for of, found in parts.items() if found
    ]


def _table(
    title: str, rows: Sequence[Row], preset: tuple[str, Mapping[str, Any]] | None = None
) -> Table:
    headings = ["setting", "type", "default", *([preset[0]] if preset else []), "meaning"]
    cells = [
        [
            row["name"], row["type"], _value(row["default"]),
            *([_value(preset[1].get(row["name"], ""))] if preset else []), row["meaning"],
        ]
        for row in rows
    ]
    return Table(title, headings, cells)


def _value(value: Any) -> str:
    words = {None: "none", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else f"{value}"
