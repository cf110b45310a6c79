"""What a run shows while it trains: a progress bar in a terminal, plain lines in a pipe."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from fedax.rounds.report import RoundReport

# Plain lines come at evaluations, and in between at least this often.
SECONDS_BETWEEN_LINES = 10.0
# Test metrics that the report shows and a line has no room for.
REPORTED_ONLY = ("test_worst_tenth_", "test_personal_before_")


class _Console(Console):
    """A console that falls silent when nobody reads any more, where rich's exits the program."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        with contextlib.suppress(OSError, ValueError):  # no file descriptor, as in a notebook
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


class Display:
    """Shows the rounds of one run.

    Args:
      num_rounds: T.
      first_round: rounds that were done before, when a run is resumed.
      console: where to; None is standard output.
    """

    def __init__(
        self, num_rounds: int, first_round: int = 0, console: Console | None = None
    ) -> None:
        self._console = console or _Console(highlight=False, soft_wrap=True)
        self._num_rounds = num_rounds
        self._test = ""
        self._start: float | None = None  # set at the first report, when compilation is over
        self._last_line = time.perf_counter()
        self._bar = Progress(
            # What must stay readable in 80 columns keeps its width; the bar gives way.
            TextColumn("round", table_column=Column(min_width=5, no_wrap=True)),
            MofNCompleteColumn(
                table_column=Column(min_width=2 * len(str(num_rounds)) + 1, no_wrap=True)
            ),
            BarColumn(bar_width=None, table_column=Column(ratio=1, max_width=20)),
            TextColumn("{task.fields[rate]}", table_column=Column(min_width=9, no_wrap=True)),
            TimeRemainingColumn(compact=True, table_column=Column(min_width=5, no_wrap=True)),
            TextColumn("{task.fields[metrics]}", table_column=Column(no_wrap=True)),
            console=self._console,
            disable=not self._console.is_terminal,
            expand=True,
        )
        self._task = self._bar.add_task(
            "", total=num_rounds, completed=first_round, rate="compiling", metrics=""
        )

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """Prints a line, above the bar if there is one.

        When nobody reads any more (a closed pipe, a lost terminal) training goes on in silence;
        what it measures is in the run folder.
        """
        with contextlib.suppress(OSError):
            self._console.print(text, markup=False)

    def show(self, report: RoundReport) -> None:
        """Shows a round's report; clients that were rejected get a line of their own."""
        metrics = report.metrics
        number = int(metrics["round"])
        test = describe_test(metrics)
        self._test = test.split("  ")[0] or self._test  # the bar has room for the first
        now = time.perf_counter()
        if self._start is None:
            self._start, self._first_round = now, number
        rate = (number - self._first_round) / max(now - self._start, 1e-9)
        train_loss = metrics.get("train_loss", math.nan)
        loss = "" if math.isnan(train_loss) else f"loss {train_loss:.4f}"
        if report.rejected:
            names = ", ".join(report.rejected[:3]) + (", ..." if len(report.rejected) > 3 else "")
            self.say(
                f"round {number}: {len(report.rejected)} of "
                f"{len(report.rejected) + int(metrics['num_reports'])} clients ({names}) sent an "
                "upload that is not finite; it weighs 0."
            )
        if self._console.is_terminal:
            self._bar.update(
                self._task, completed=number, rate=f"{rate:.2f} rounds/s" if rate else "",
                metrics="  ".join(filter(None, [loss, self._test])),
            )
        elif test or number == self._num_rounds or now - self._last_line > SECONDS_BETWEEN_LINES:
            self._last_line = now
            speed = f"{rate:.2f} rounds/s" if rate else ""
            left = f"{(self._num_rounds - number) / rate:.0f} s left" if rate else ""
            words = [f"round {number}/{self._num_rounds}", speed, left, loss, test]
            self.say("  ".join(filter(None, words)))


def describe_test(metrics: Mapping[str, float]) -> str:
    """The test metrics in words, accuracies in percent: 'test accuracy 48.9%'."""
    words = []
    for name, value in metrics.items():
        if name.startswith("test_") and not name.startswith(REPORTED_ONLY):
            label = name.removeprefix("test_").replace("_", " ")
            number = f"{100 * value:.1f}%" if "accuracy" in name else f"{value:.4f}"
            words.append(f"test {label} {number}")
    return "  ".join(words)
