"""A sink: writes in a thread of its own, so that training neither waits for it nor fails with it.

The truth is metrics.jsonl. When a run continues, a sink starts again and receives all finished
rounds, so it has each round once, whatever an earlier call left.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fedax.rounds.report import DivergedError
from fedax.sinks.names import SINKS, require_libraries, sink_names
from fedax.sinks.rows import Place, Row, Writer, dated, hyperparameters, numbers

# Rounds are collected for so many seconds, and so long that writing takes at most this share.
PAUSE = 1.0
SHARE = 0.05
# So many rounds are written at a time, and a sink that takes longer than this for them is left.
MOST_ROWS = 500
PATIENCE = 60.0
# So many seconds a run that was stopped waits for it.
HURRY = 3.0


class Sink:
    """Writes the rounds of a run by a library; opened by `open_sink`.

    Attributes:
      name: of the sink.
      failure: the message if it has failed; it then accepts no more rounds.
    """

    def __init__(self, name: str, place: Place, config: Mapping[str, Any]) -> None:
        self.name = name
        self.failure: str | None = None
        self._place, self._config = place, config
        self._rows: list[Row] = []
        self._ending, self._summary = False, None
        self._turn = threading.Condition()
        self._written = 0
        # One of a run that was stopped may still be writing there, which ends before this begins.
        called = f"log {name} {place.logs.resolve()}"
        self._earlier = [thread for thread in threading.enumerate() if thread.name == called]
        # A daemon, so that one that hangs keeps no process alive.
        self._thread = threading.Thread(target=self._work, name=called, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(None)
        if self.failure is not None and kind is None:
            warnings.warn(self.failure, RuntimeWarning, stacklevel=2)

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Adds a round; what is no number is left out."""
        self._add([Row(time.time(), numbers(metrics))])

    def replay(self, rounds: Sequence[Mapping[str, Any]]) -> None:
        """Adds rounds that are over, as if they had been trained up to now."""
        self._add(dated([numbers(metrics) for metrics in rounds], time.time()))

    def close(self, summary: Mapping[str, Any] | None, *, hurry: bool = False) -> None:
        """Waits until everything is written.

        Args:
          summary: what the run came to; None if it did not come to its end.
          hurry: whether to wait for a few seconds only; a run that continues writes everything
              again.
        """
        with self._turn:
            if not self._ending:
                self._ending, self._summary = True, summary
            self._turn.notify()
        written, since = -1, time.monotonic()
        began = since
        while self._thread.is_alive() and self.failure is None:
            self._thread.join(0.5)
            if self._written != written and not hurry:
                written, since = self._written, time.monotonic()
            elif hurry and time.monotonic() - began > HURRY:
                return
            elif time.monotonic() - since > PATIENCE:
                self.failure = self._failed(f"no answer for {PATIENCE:.0f} s")
                return

    def _add(self, rows: Sequence[Row]) -> None:
        if self.failure is None:
            with self._turn:
                self._rows += rows

    def _work(self) -> None:
        writer: Writer | None = None
        for thread in self._earlier:
            thread.join()
        try:
            module = importlib.import_module(f"fedax.sinks.{SINKS[self.name].module}")
            opened: Writer = module.open_writer(self._place, hyperparameters(self._config))
            writer = opened
            self._write(opened)
            opened.close(self._summary)
        except Exception as error:  # whatever a library raises, training continues
            self.failure = self._failed(_reason(error))
            self._rows.clear()
            if writer is not None:
                with contextlib.suppress(Exception):
                    writer.close(None)

    def _write(self, writer: Writer) -> None:
        """Writes what comes, until the end."""
        pause = PAUSE
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self._ending, pause)
                ending = self._ending
                rows, self._rows = self._rows, []
            began = time.monotonic()
            for first in range(0, len(rows), MOST_ROWS):
                some = rows[first : first + MOST_ROWS]
                writer.write(some)
                self._written += len(some)
            pause = max(PAUSE, (time.monotonic() - began) / SHARE)
            if ending:
                return

    def _failed(self, why: str) -> str:
        return (
            f"Logging to {self.name} stopped after round {self._written}: {why}. Training "
            "continues. Once the problem is fixed, resume the run to log every round."
        )


def open_sink(name: str, folder: Path, config: Mapping[str, Any], run: str | None = None) -> Sink:
    """Opens a sink, which replaces its earlier output there.

    Args:
      name: one of `SINKS`.
      folder: the run's, or a sweep's.
      config: the run's configuration, whose settings are logged.
      run: the run's name in a sweep.

    Raises:
      ValueError: if the sink is unknown.
      SinkError: if its library is not installed.
    """
    sink_names(name)
    require_libraries([name])
    return Sink(name, Place(folder.absolute(), run), config)  # wherever the program goes later


class Sinks:
    """The sinks of a run; if one fails, a warning is given once and training continues without it.

    Args:
      names: which.
      folder, config, run: see `open_sink`.
      warn: is told of a failure.
      done: the rounds that are over.
    """

    def __init__(
        self, names: Iterable[str], folder: Path, config: Mapping[str, Any],
        warn: Callable[[str], None], done: Sequence[Mapping[str, Any]] = (), run: str | None = None,
    ) -> None:
        self._warn = warn
        self._told: set[str] = set()
        self._sinks = [open_sink(name, folder, config, run) for name in names]
        for sink in self._sinks:
            sink.replay(done)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # One that diverged does not go on, so its rounds are worth waiting for.
        self.close(None, hurry=not (kind is None or issubclass(kind, DivergedError)))

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Adds a round."""
        for sink in self._sinks:
            sink.log(metrics)
        self._tell()

    def close(self, summary: Mapping[str, Any] | None, *, hurry: bool = False) -> list[str]:
        """Waits until everything is written, and returns the names of those that have it all."""
        for sink in self._sinks:
            sink.close(summary, hurry=hurry)
        self._tell()
        return [sink.name for sink in self._sinks if sink.failure is None]

    def _tell(self) -> None:
        for sink in self._sinks:
            if sink.failure is not None and sink.name not in self._told:
                self._told.add(sink.name)
                self._warn(sink.failure)


def _reason(error: Exception) -> str:
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return (text.strip().splitlines() or [type(error).__name__])[0].rstrip(".")[:200]
