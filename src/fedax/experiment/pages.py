"""Pages of run folders: what is read of a folder, and the command that repeats it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedax.experiment.folder import (
    CONFIG,
    DEFAULTS,
    HELD,
    TASKS,
    read_config,
    read_divergence,
    read_summary,
    resume_command,
)
from fedax.experiment.metrics import read_rounds
from fedax.report.clients import worst_of_run
from fedax.report.page import run_page
from fedax.report.runs import Run

# What a configuration holds beside settings.
_NO_SETTINGS = {"task", "algorithm", "preset", "made_by", "python", "task_source",
                "algorithm_source", "task_options", "algorithm_options", "log", HELD}


def report_page(folder: Path) -> str:
    """The page of a run folder, from its config.json, metrics.jsonl and summary.json if it has one.

    Raises:
      RunError: if the folder is not a run folder, or cannot be read.
    """
    return run_page(read_run(folder))


def read_run(folder: Path) -> Run:
    """What a page shows of a run folder.

    Raises:
      RunError: if the folder is not a run folder, or cannot be read.
    """
    config = read_config(folder)
    made_by = dict(config.get("made_by", {}))
    held = made_by.pop(HELD, {})
    for key in ("signature", TASKS, DEFAULTS):  # a page may be given away; the rest is for fedax
        made_by.pop(key, None)
    config = config | {"made_by": made_by} | ({HELD: held} if held else {})
    name = Path(os.path.realpath(folder)).name
    return Run(
        name, config, read_rounds(folder), read_summary(folder), _commands(name, config),
        "" if "python" in config else resume_command(folder), worst_of_run(folder),
        read_divergence(folder),
    )


def _commands(name: str, config: Mapping[str, Any]) -> dict[str, str]:
    """What repeats a run: a sentence -> a command line, or nothing."""
    if "python" in config:
        return {
            "This run was made by a Python program with fedax.train. The same program repeats it "
            "with the settings above.": ""
        }
    repeat = shlex.join(["fedax", "run", "--config", f"{name}/{CONFIG}"])
    found = {f"With the run folder {name}:": repeat}
    written = written_out(config)
    return found | {"Without the folder, with every setting:": written} if written else found


def written_out(config: Mapping[str, Any]) -> str:
    """The command line that repeats a run without its folder; "" if a value has no short form.

    Example:
      >>> written_out({"task": "digits", "algorithm": "fedavg", "seed": 0, "preset": "quick",
      ...              "algorithm_options": {"client_learning_rate": 0.1}})
      'fedax run digits fedavg --preset none --set run.seed=0 algorithm.client_learning_rate=0.1'
    """
    settings = {f"run.{key}": value for key, value in config.items() if key not in _NO_SETTINGS}
    for place in ("task", "algorithm"):
        options = config.get(f"{place}_options", {})
        settings |= {f"{place}.{key}": value for key, value in options.items()}
    if not all(value is None or isinstance(value, int | float | str) for value in
               settings.values()):
        return ""
    names = [_place(config, key) for key in ("task", "algorithm")]
    sinks = [word for name in config.get("log", ()) for word in ("--log", name)]
    pairs = [f"{key}={_word(value)}" for key, value in settings.items()]
    return shlex.join(["fedax", "run", *names, "--preset", "none", *sinks, "--set", *pairs])


def _place(config: Mapping[str, Any], key: str) -> str:
    """The name of a task or a method, or where a user's own one is."""
    source = config.get(f"{key}_source")
    return f"{source['path']}:{source['name']}" if source else str(config[key])


def _word(value: Any) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)

