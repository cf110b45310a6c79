"""The commands that show results, and their options; the docstrings are what `--help` shows."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from fedax.cli.words import NUMBER, WHOLE, one_of, option, read_by
from fedax.measures.significance import TESTS

FORMATS = {"markdown": ".md", "latex": ".tex", "csv": ".csv"}


@dataclasses.dataclass(frozen=True)
class Report:
    """Write an HTML page that shows a run or a sweep, or compares several; it works offline.

    A finished run or sweep already has its own page, report.html in its folder.
    """

    dirs: Annotated[
        Positional[tuple[Path, ...]], read_by(Path, "folders", "*"), option("DIR ...")
    ] = ()
    """Folders of runs and sweeps, which may be unfinished."""
    out: Annotated[Path | None, option("FILE")] = None
    """Page to write. Default: DIR/report.html for one folder, fedax-report.html for several."""
    debug: Annotated[bool, option("")] = False
    """Show the traceback if the command fails."""


@dataclasses.dataclass(frozen=True)
class Table:
    """Write a table of results as in papers: mean and spread over seeds, the best in bold.

    Runs that differ only in their seeds share one row. A sweep adds one row for the best setting of
    each method.
    """

    dirs: Annotated[
        Positional[tuple[Path, ...]], read_by(Path, "folders", "*"), option("DIR ...")
    ] = ()
    """Folders of runs and sweeps, which may be unfinished."""
    metric: Annotated[str | None, option("NAME[,NAME...]")] = None
    """Metrics to show, such as test_accuracy,test_loss. --target and --significance use the first.
    Default: test_accuracy, otherwise test_loss."""
    target: Annotated[float | None, NUMBER, option("VALUE")] = None
    """Add the rounds and bytes until the metric first reaches this value, such as 0.8 for 80%."""
    significance: Annotated[str | None, one_of(tuple(TESTS)), option("|".join(TESTS))] = None
    """Add p-values of this paired test over seeds, against the best row."""
    baseline: Annotated[str | None, option("NAME")] = None
    """With --significance: test against this method, or this row, such as 'fedavg momentum=0.9'."""
    all_settings: Annotated[bool, option("")] = False
    """For a sweep: one row for every setting."""
    format: Annotated[str | None, one_of(tuple(FORMATS)), option("|".join(FORMATS))] = None
    """Format of the table; LaTeX needs the package booktabs.
    Default: by the ending of --out, otherwise markdown."""
    out: Annotated[Path | None, option("FILE")] = None
    """File to write. Default: print the table."""
    debug: Annotated[bool, option("")] = False
    """Show the traceback if the command fails."""


@dataclasses.dataclass(frozen=True)
class Plot:
    """Draw a picture of runs or sweeps, as in papers; --list shows the kinds.

    Runs that differ only in their seeds share one line, with its spread; labels say what differs
    between lines. A sweep adds the best setting of each method.
    """

    kind: Annotated[Positional[str | None], option("[KIND]")] = None
    """What to draw; --list shows the kinds."""
    dirs: Annotated[
        Positional[tuple[Path, ...]], read_by(Path, "folders", "*"), option("DIR ...")
    ] = ()
    """Folders of runs or sweeps."""
    out: Annotated[Path | None, option("FILE")] = None
    """File to write (.png, .svg or .pdf)."""
    metric: Annotated[str | None, option("NAME")] = None
    """Metric to draw, such as test_accuracy. In pictures of settings: the metric that ranks them.
    Default: train_loss, or the metric of the sweep; for clients, their first metric."""
    against: Annotated[str | None, option("round|local_steps|bytes|bytes_up|seconds")] = None
    """Horizontal axis. Default: round."""
    smoothing: Annotated[int | None, WHOLE, option("N")] = None
    """Average each point over the last N rounds. Default: 1."""
    window: Annotated[int | None, WHOLE, option("N")] = None
    """For update-norms: mean and spread of every N rounds. Default: 1/20 of the rounds."""
    algorithm: Annotated[str | None, option("NAME")] = None
    """For heat-map: only this method of the sweep."""
    x: Annotated[str | None, option("NAME")] = None
    """For heat-map: hyperparameter on the horizontal axis. Default: server_learning_rate."""
    y: Annotated[str | None, option("NAME")] = None
    """For heat-map: hyperparameter on the vertical axis. Default: client_learning_rate."""
    list: Annotated[bool, option("")] = False
    """List the kinds of pictures."""
    json: Annotated[bool, option("")] = False
    """With --list: print JSON."""
    debug: Annotated[bool, option("")] = False
    """Show the traceback if the command fails."""
