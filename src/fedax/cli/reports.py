"""`fedax report`: the page of a run or of a sweep, and the page that compares several."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from fedax.cli.commands import Report
from fedax.cli.writing import write_result
from fedax.experiment.errors import ConfigError
from fedax.experiment.pages import report_page
from fedax.outside.text import printable
from fedax.report.comparison import comparison_page
from fedax.report.runs import Run
from fedax.report.sweep_page import sweep_page
from fedax.tuning.load import load_sweep
from fedax.tuning.page import PAGE
from fedax.tuning.results import distinct_names, is_sweep, runs_in, understood

DEFAULT = Path("fedax-report.html")


def report(command: Report) -> None:
    """Writes the page and says where it is.

    Raises:
      ConfigError: if no folder is given.
      RunError: if a folder does not contain a run or a sweep, or the page cannot be written.
    """
    folders = list({os.path.realpath(folder): folder for folder in command.dirs}.values())
    if not folders:
        raise ConfigError(
            "fedax report needs one or more folders of runs or sweeps: fedax report DIR ..."
        )
    if command.out is not None and command.out.is_dir():
        raise ConfigError(
            f"--out {command.out} is a folder. Give a file, such as {command.out / PAGE}."
        )
    page = _one(folders[0]) if len(folders) == 1 else _several(folders, command)
    out = command.out or (folders[0] / PAGE if len(folders) == 1 else DEFAULT)
    content = page.encode()
    write_result(out, content, "page", named=command.out is not None)
    print(f"Report: {printable(str(out))} ({len(content) / 1e6:.1f} MB)")


def _one(folder: Path) -> str:
    with understood(folder):
        if not is_sweep(folder):
            return report_page(folder)
        sweep = load_sweep(folder)
        return sweep_page(sweep.record, sweep.choice, sweep.config, sweep.summary)


def _several(folders: Sequence[Path], command: Report) -> str:
    """Runs, and the best settings of sweeps."""
    runs: list[Run] = []
    for folder, name in zip(folders, distinct_names(folders), strict=True):
        with understood(folder):
            found = runs_in(folder)
        runs += [run._replace(name=f"{name}: {run.name}" if run.name else name) for run in found]
    with understood("these folders"):
        return comparison_page(runs, _repeating(command))


def _repeating(command: Report) -> str:
    """The command that makes the page again."""
    words = ["fedax", "report", *map(str, command.dirs)]
    if command.out is not None:
        words += ["--out", str(command.out)]
    return shlex.join(words)
