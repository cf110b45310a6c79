"""`fedax data`: getting and checking data sets."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from rich.progress import BarColumn, TaskProgressColumn, TextColumn

from fedax.data.checking import check_data
from fedax.data.getting import Via, get_dataset, known_names
from fedax.devices.terminal import Console, Progress, print_json
from fedax.experiment.errors import ConfigError
from fedax.validate import so_many, unknown

# The bar is drawn at most so often.
_SECONDS_BETWEEN_BARS = 0.1


def get(name: str, via: str, source: Path | None) -> None:
    """Gets a data set, and says so.

    Raises:
      ConfigError: if the name is unknown.
    """
    if name not in known_names():
        raise ConfigError(unknown("data set", name, known_names()))
    with _shown() as told:
        get_dataset(
            name, via=cast(Via, via), source=source, say=told.say, progress=told.show
        )


def check(path: str, *, as_json: bool = False) -> None:
    """Checks what lies at a path, and prints what it is."""
    with _shown() as told:
        rows = check_data(path, told.show)
    if as_json:
        print_json(rows)
        return
    for row in rows:
        words = [
            so_many(row[key], key.removesuffix("s"))
            for key in ("clients", "examples", "bytes") if key in row
        ]
        words += [f"{name} {kind}" for name, kind in row.get("arrays", {}).items()]
        words += [f"sha256 {row['sha256']}"] if "sha256" in row else []
        print(f"{row['path']}: {row['what']}, {', '.join(words)}. Matches {row['checked']}.")


class _Display:
    """Shows how far something is, in a terminal; sentences anywhere."""

    def __init__(self, console: Console, bar: Progress) -> None:
        self._console, self._bar = console, bar
        self._task = bar.add_task("", total=None)
        self._drawn = 0.0

    def say(self, sentence: str) -> None:
        """Prints a sentence, above the bar if there is one."""
        self._console.print(sentence, markup=False, highlight=False, soft_wrap=True)

    def show(self, what: str, done: int, total: int) -> None:
        """Draws the bar, but not too often."""
        now = time.monotonic()
        if now - self._drawn < _SECONDS_BETWEEN_BARS:
            return
        self._bar.update(self._task, description=what, completed=done, total=total or None)
        self._bar.refresh()
        self._drawn = now


@contextmanager
def _shown() -> Iterator[_Display]:
    console = Console()
    bar = Progress(
        TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(),
        console=console, auto_refresh=False, transient=True, disable=not console.is_terminal,
    )
    with bar:
        yield _Display(console, bar)
