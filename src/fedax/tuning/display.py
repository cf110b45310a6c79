"""What a sweep shows while it trains."""

from __future__ import annotations

import contextlib
import math
import time
from types import TracebackType
from typing import Self

import numpy as np
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.table import Column

from fedax.devices.terminal import Console, Progress
from fedax.experiment.display import SECONDS_BETWEEN_LINES, Style, make_console
from fedax.rounds.stopping import Goal
from fedax.rounds.untrained import LAST_ROUNDS
from fedax.sweeps.choosing import PAPER_RULE, Rule
from fedax.sweeps.columns import Columns
from fedax.sweeps.record import Setting

# The bar is drawn at most so often.
SECONDS_BETWEEN_BARS = 0.2
# So many columns the bar itself keeps.
NARROWEST_BAR = 4


class SweepDisplay:
    """Shows settings, rounds, the time that is left and the best so far.

    Args:
      num_runs: settings times seeds.
      num_rounds: of each.
      console: where to; None is standard output.
      style: as for a run.
      rule: which is best; of a function, which gets whole runs, the training loss stands for it.
      num_seeds: of each setting.
    """

    def __init__(
        self, num_runs: int, num_rounds: int, console: Console | None, style: Style,
        rule: Rule = PAPER_RULE, num_seeds: int = 1,
    ) -> None:
        self._console = console or make_console()
        self._goal = Goal.of(PAPER_RULE if callable(rule) else rule, None, "choose")
        self._style = style
        self._num_runs, self._num_rounds, self._num_seeds = num_runs, num_rounds, num_seeds
        self._runs_done = 0
        self._rounds_done = 0.0
        self._scores: dict[str, list[float]] = {}
        self._best: tuple[float, int, str] | None = None
        self._began: tuple[float, float] | None = None
        self._drawn = time.perf_counter()
        # What must stay readable keeps its width; the bar gives way, and then the best.
        self._widths = [len("runs"), 2 * len(str(num_runs)) + 1,
                        max(len("compiling"), 2 * len(str(num_rounds)) + len("round /")), 5]
        self._bar = Progress(
            TextColumn("runs", table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[runs]}", table_column=Column(no_wrap=True)),
            BarColumn(bar_width=None, table_column=Column(ratio=1, max_width=20)),
            TextColumn("{task.fields[round]}", table_column=Column(no_wrap=True)),
            TimeRemainingColumn(compact=True, table_column=Column(min_width=5, no_wrap=True)),
            TextColumn("{task.fields[best]}", markup=False, table_column=Column(no_wrap=True)),
            console=self._console, auto_refresh=False, disable=style != "bar", expand=True,
        )
        self._task = self._bar.add_task(
            "", total=num_runs * num_rounds, runs=f"0/{num_runs}", round="compiling", best=""
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
            self._draw(0)
        self._bar.stop()

    def say(self, text: str) -> None:
        """Prints a line, above the bar if there is one."""
        if self._style != "nothing":
            with contextlib.suppress(OSError):
                self._console.print(text, markup=False)

    def show(self, number: int, running: int) -> None:
        """Shows the round that `running` runs, trained side by side, have reached."""
        if self._began is None:  # what is left is told from what came after compiling
            self._began = time.perf_counter(), self._rounds_done + number * running
        pause = SECONDS_BETWEEN_BARS if self._style == "bar" else SECONDS_BETWEEN_LINES
        if time.perf_counter() - self._drawn < pause:
            return
        if self._style == "bar":
            self._draw(number, running)
        else:
            self._drawn = time.perf_counter()
            self.say(self._line(number, running))

    def finished(self, settings: list[Setting], columns: Columns, count: int) -> None:
        """Takes notice of runs that are done.

        The best is of the mean over the seeds with which all settings so far were trained.
        """
        self._runs_done += count
        self._rounds_done += count * self._num_rounds
        metric, sign = self._goal.metric, -1 if self._goal.mode == "max" else 1
        kept = LAST_ROUNDS if metric == PAPER_RULE else 1
        values = columns.metrics.get(metric)
        for setting, row in zip(settings, values if values is not None else (), strict=False):
            whole = len(row) == self._num_rounds and not np.isnan(row[-1])
            scores = self._scores.setdefault(f"{setting.algorithm} {setting.label}".rstrip(), [])
            scores.append(float(row[~np.isnan(row)][-kept:].mean()) if whole else sign * math.inf)
        shared = min(map(len, self._scores.values()), default=1)
        score, name = min(
            ((sum(scores[:shared]) / shared, name) for name, scores in self._scores.items()),
            key=lambda found: sign * found[0], default=(math.inf, ""),
        )
        self._best = (score, shared, name) if math.isfinite(score) else None
        if self._style == "lines" and (
            time.perf_counter() - self._drawn > SECONDS_BETWEEN_LINES
            or self._runs_done == self._num_runs
        ):
            self._drawn = time.perf_counter()
            self.say(self._line(0, 0))

    def _line(self, number: int, running: int) -> str:
        words = [f"{self._runs_done} of {self._num_runs} runs"]
        if running and number < self._num_rounds:
            words.append(f"{running} at round {number}/{self._num_rounds}")
        left = self._seconds_left(number * running)
        if left is not None and self._runs_done < self._num_runs:
            words.append(f"{left:.0f} s left")
        return "  ".join([*words, *self._best_words()])

    def _best_words(self) -> list[str]:
        if self._best is None:
            return []
        metric = self._goal.metric
        what = "loss" if metric == PAPER_RULE else metric.replace("_", " ")
        score, shared, name = self._best
        of = f" with {shared} of {self._num_seeds} seeds" if shared < self._num_seeds else ""
        return [f"best {what} {score:.4f}{of}: {name}"]

    def _cut(self, text: str) -> str:
        """As much of a text as the bar has room for."""
        room = self._console.width - sum(self._widths) - len(self._widths) - NARROWEST_BAR - 1
        return text if len(text) <= room else text[: max(room - 1, 0)] + "…"

    def _seconds_left(self, under_way: float) -> float | None:
        if self._began is None:
            return None
        since, first = self._began
        done = self._rounds_done + under_way - first
        if done <= 0:
            return None
        left = self._num_runs * self._num_rounds - self._rounds_done - under_way
        return left * (time.perf_counter() - since) / done

    def _draw(self, number: int, running: int = 0) -> None:
        if self._style != "bar":
            return
        self._bar.update(
            self._task, completed=self._rounds_done + number * running,
            runs=f"{self._runs_done}/{self._num_runs}",
            round=f"round {number}/{self._num_rounds}" if running else "",
            best=self._cut(" ".join(self._best_words())),
        )
        self._bar.refresh()
        self._drawn = time.perf_counter()
