"""What a run shows while it trains: a progress bar in a terminal, plain lines in a pipe."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Literal, Self, TypeAlias

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.table import Column

from fedax.devices.terminal import Console, Progress
from fedax.rounds.directions import is_evaluated
from fedax.rounds.history import UNDEFINED, describe_sample, is_sampled, is_undefined
from fedax.rounds.report import RoundReport

Style: TypeAlias = Literal["bar", "lines", "nothing"]

# Plain lines come at evaluations, and in between at least this often.
SECONDS_BETWEEN_LINES = 10.0
# Test metrics that the report shows and a line has no room for.
REPORTED_ONLY = ("worst_tenth_", "personal_before_", "own_mean_", "own_worst_tenth_")
# The bar is drawn at most so often, and drawing takes at most this share of the time.
SECONDS_BETWEEN_BARS = 0.1
DRAWING_SHARE = 0.01


class _Console(Console):
    """A console that falls silent when nobody reads any more, where rich's exits the program."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        with contextlib.suppress(OSError, ValueError):  # no file descriptor, as in a notebook
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


def style_of_command_line(console: Console) -> Style:
    """A bar in a terminal, lines elsewhere, which a log keeps."""
    return "bar" if console.is_terminal else "lines"


def style_of_python(console: Console, progress: bool) -> Style:
    """A bar in a terminal or a notebook, nothing in a pipe or a file, or if none is wanted.

    A bar in a notebook needs ipywidgets; without, there are lines.
    """
    if not progress:
        return "nothing"
    if console.is_jupyter:
        return "bar" if importlib.util.find_spec("ipywidgets") else "lines"
    return "bar" if console.is_terminal else "nothing"


def make_console() -> Console:
    """Standard output, as it is now."""
    return _Console(highlight=False, soft_wrap=True)


class Display:
    """Shows the rounds of one run.

    The bar is drawn by the caller's own thread, and seldom, so rounds that take microseconds are
    not slowed down.

    Args:
      num_rounds: T.
      first_round: rounds that were done before, when a run is resumed.
      console: where to; None is standard output.
      style: what to show; None: as on the command line.
    """

    def __init__(
        self,
        num_rounds: int,
        first_round: int = 0,
        console: Console | None = None,
        style: Style | None = None,
    ) -> None:
        self._console = console or make_console()
        self._style = style or style_of_command_line(self._console)
        self._num_rounds = num_rounds
        self._test = ""
        self._last: Mapping[str, float] = {}
        self._start: float | None = None  # set at the first report, when compilation is over
        self._drawn = time.perf_counter()
        self._pause = SECONDS_BETWEEN_BARS
        self._bar = Progress(
            # What must stay readable in 80 columns keeps its width; the bar gives way.
            TextColumn("round", table_column=Column(min_width=5, no_wrap=True)),
            MofNCompleteColumn(
                table_column=Column(min_width=2 * len(str(num_rounds)) + 1, no_wrap=True)
            ),
            BarColumn(bar_width=None, table_column=Column(ratio=1, max_width=20)),
            TextColumn("{task.fields[rate]}", table_column=Column(min_width=9, no_wrap=True)),
            TimeRemainingColumn(compact=True, table_column=Column(min_width=5, no_wrap=True)),
            TextColumn("{task.fields[metrics]}", markup=False, table_column=Column(no_wrap=True)),
            console=self._console,
            auto_refresh=False,
            disable=self._style != "bar",
            expand=True,
        )
        self._task = self._bar.add_task(
            "", total=num_rounds, completed=first_round, rate="compiling", metrics=""
        )

    def __enter__(self) -> Self:
        self._bar.start()
        self._bar.refresh()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):
            self._draw()
        self._bar.stop()

    def say(self, text: str) -> None:
        """Prints a line, above the bar if there is one.

        If the output is closed (a pipe, a lost terminal), training continues silently; the
        metrics are in the run folder.
        """
        self._print(text)

    def warn(self, text: str) -> None:
        """Prints a line as `say`, in yellow where there are colours."""
        self._print(text, "yellow")

    def _print(self, text: str, style: str | None = None) -> None:
        if self._style == "nothing":
            return
        with contextlib.suppress(OSError):
            self._console.print(text, markup=False, style=style)

    def show(self, report: RoundReport) -> None:
        """Shows a round's report; clients that were rejected get a line of their own."""
        if self._style == "nothing":
            return
        metrics = self._last = report.metrics
        test = describe_test(metrics) if "evaluation_seconds" in metrics else ""
        self._test = test.split("  ")[0] or self._test  # the bar has room for the first
        now = time.perf_counter()
        if self._start is None:
            self._start, self._first_round = now, int(metrics["round"])
        if report.rejected:
            names = ", ".join(report.rejected[:3]) + (", ..." if len(report.rejected) > 3 else "")
            self.say(
                f"Round {int(metrics['round'])}: {len(report.rejected)} of "
                f"{len(report.rejected) + int(metrics['num_reports'])} clients ({names}) uploaded "
                "NaN or infinity; they get weight 0."
            )
        if self._style == "bar":
            if now - self._drawn > self._pause:
                self._draw()
        elif test or metrics["round"] == self._num_rounds or (
            now - self._drawn > SECONDS_BETWEEN_LINES
        ):
            self._drawn = now
            rate = self._rate()
            speed = f"{rate:.2f} rounds/s" if rate else ""
            rounds_left = self._num_rounds - metrics["round"]
            left = f"{rounds_left / rate:.0f} s left" if rate and rounds_left else ""
            words = [f"round {int(metrics['round'])}/{self._num_rounds}", speed, left, self._loss()]
            self.say("  ".join(filter(None, [*words, test])))

    def _draw(self) -> None:
        """Brings the bar to the last report."""
        began = time.perf_counter()
        if self._style != "bar" or self._start is None:
            return
        rate = self._rate()
        self._bar.update(
            self._task, completed=int(self._last["round"]),
            rate=f"{rate:.2f} rounds/s" if rate else "",
            metrics="  ".join(filter(None, [self._loss(), self._test])),
        )
        self._bar.refresh()
        self._drawn = time.perf_counter()
        self._pause = max(SECONDS_BETWEEN_BARS, (self._drawn - began) / DRAWING_SHARE)

    def _rate(self) -> float:
        """Rounds a second since the first report."""
        assert self._start is not None
        done = self._last["round"] - self._first_round
        return done / max(time.perf_counter() - self._start, 1e-9)

    def _loss(self) -> str:
        loss = self._last.get("train_loss", math.nan)
        return "" if math.isnan(loss) else f"loss {loss:.4f}"


def describe_test(metrics: Mapping[str, float | None]) -> str:
    """The metrics of held-out data, accuracies in percent: 'test accuracy 48.9%'; None is NaN.

    Of a sample, the last has the size behind it: 'test loss 1.2 (1,000 of 9,000 examples)'.
    """
    words = []
    for name, value in metrics.items():
        part, _, metric = name.partition("_")
        if is_evaluated(name) and not metric.startswith(REPORTED_ONLY):
            label = metric.replace("_", " ")
            known = math.nan if value is None else value
            number = (
                UNDEFINED if is_undefined(metrics, name)
                else f"{100 * known:.1f}%" if "accuracy" in name else f"{known:.4f}"
            )
            words.append(f"{part} {label} {number}")
    if words and is_sampled(metrics):
        words[-1] += f" ({describe_sample(metrics)})"
    return "  ".join(words)
