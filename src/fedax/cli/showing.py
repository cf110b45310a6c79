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
    """Write one page that shows a run or a sweep, or compares several; it works offline.

    Of one folder it is that folder's report.html, which a finished run or sweep has already.
    """

    dirs: Annotated[
        Positional[tuple[Path, ...]], read_by(Path, "folders", "*"), option("DIR ...")
    ] = ()
    """Folders of runs and sweeps, finished or not."""
    out: Annotated[Path | None, option("FILE")] = None
    """The page to write. Default: DIR/report.html of one folder, fedax-report.html of several."""
    debug: Annotated[bool, option("")] = False
    """Show the traceback of a failure."""


@dataclasses.dataclass(frozen=True)
class Table:
    """Write the table of results of a paper: mean and spread over seeds, the best in bold.

    Runs that differ only in their seeds are one row, named by task, method and what differs. Of a
    sweep, each method's best setting is a row.
    """

    dirs: Annotated[
        Positional[tuple[Path, ...]], read_by(Path, "folders", "*"), option("DIR ...")
    ] = ()
    """Folders of runs and sweeps, finished or not."""
    metric: Annotated[str | None, option("NAME[,NAME...]")] = None
    """What runs came to, such as test_accuracy,test_loss; the first is for --target and
    --significance. Default: test_accuracy, or else test_loss."""
    target: Annotated[float | None, NUMBER, option("VALUE")] = None
    """Add the rounds, and the bytes of all clients, until the metric is first as good as this, such
    as 0.8 for 80% accuracy."""
    significance: Annotated[str | None, one_of(tuple(TESTS)), option("|".join(TESTS))] = None
    """Add the p-values of this test of paired seeds, against the best row."""
    baseline: Annotated[str | None, option("NAME")] = None
    """With --significance: against this method, or this row, such as 'fedavg momentum=0.9'."""
    all_settings: Annotated[bool, option("")] = False
    """Of a sweep, make every setting a row."""
    format: Annotated[str | None, one_of(tuple(FORMATS)), option("|".join(FORMATS))] = None
    """How it is written; LaTeX needs the package booktabs. Default: what the ending of --out says,
    or markdown."""
    out: Annotated[Path | None, option("FILE")] = None
    """The file to write. Default: the terminal."""
    debug: Annotated[bool, option("")] = False
    """Show the traceback of a failure."""


@dataclasses.dataclass(frozen=True)
class Plot:
    """Draw a picture of runs or sweeps, as in the papers; --list shows the kinds.

    Runs that differ only in their seeds are one line with its spread, and lines are called by what
    differs between them. Of a sweep, each method's best setting is drawn.
    """

    kind: Annotated[Positional[str | None], option("[KIND]")] = None
    """What to draw, see --list."""
    dirs: Annotated[
        Positional[tuple[Path, ...]], read_by(Path, "folders", "*"), option("DIR ...")
    ] = ()
    """Run folders, or sweep folders."""
    out: Annotated[Path | None, option("FILE")] = None
    """The file to write (.png, .svg, .pdf)."""
    metric: Annotated[str | None, option("NAME")] = None
    """What is drawn, such as test_accuracy; of heat-map, best-server-rate and adaptivity, what
    settings are compared by. Default: train_loss, or what the sweep was; of clients, their first
    metric."""
    against: Annotated[str | None, option("round|local_steps|bytes|seconds")] = None
    """What is on the horizontal axis. Default: round."""
    smoothing: Annotated[int | None, WHOLE, option("N")] = None
    """Each point is the mean of the last N rounds. Default: 1."""
    window: Annotated[int | None, WHOLE, option("N")] = None
    """Of update-norms: mean and spread of every N rounds. Default: a twentieth of the rounds."""
    algorithm: Annotated[str | None, option("NAME")] = None
    """Of a heat map: only this method of the sweep."""
    x: Annotated[str | None, option("NAME")] = None
    """Of a heat map: the hyperparameter. Default: server_learning_rate."""
    y: Annotated[str | None, option("NAME")] = None
    """Of a heat map: the other. Default: client_learning_rate."""
    list: Annotated[bool, option("")] = False
    """Show the kinds of pictures."""
    json: Annotated[bool, option("")] = False
    """With --list: print JSON."""
    debug: Annotated[bool, option("")] = False
    """Show the traceback of a failure."""
