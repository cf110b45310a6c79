"""Where time goes: a stopwatch that knows how much of a time was compilation."""

from __future__ import annotations

import collections
import threading
import time
from typing import Any, NamedTuple

import jax

# What JAX reports of a compilation: tracing, lowering, and XLA's own work.
_COMPILING = "/jax/core/compile/"


class Lap(NamedTuple):
    """A time in seconds.

    Attributes:
      seconds: all of it.
      compiling: of that, in compilation.
    """

    seconds: float
    compiling: float


class Stopwatch:
    """Runs from when it is made, in one thread.

    Example:
      >>> watch = Stopwatch()
      >>> jax.jit(lambda x: x + 1)(1.0).item()
      2.0
      >>> lap = watch.lap()
      >>> 0 < lap.compiling < lap.seconds
      True
    """

    def __init__(self) -> None:
        self._start, self._compiled = time.perf_counter(), _compilations.seconds

    def lap(self) -> Lap:
        """The time since the last lap, or since the beginning."""
        now, compiled = time.perf_counter(), _compilations.seconds
        lap = Lap(now - self._start, compiled - self._compiled)
        self._start, self._compiled = now, compiled
        return lap


class _Compilations(threading.local):
    """The time that each thread has spent compiling; JAX reports it in the thread that does."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._spans: collections.deque[tuple[float, float]] = collections.deque(maxlen=100)

    def __call__(self, event: str, duration_secs: float, **kwargs: Any) -> None:
        del kwargs
        if not event.startswith(_COMPILING):
            return
        end = time.perf_counter()
        start = end - duration_secs
        # An event reports when it ends, so those that it holds were counted already.
        while self._spans and self._spans[-1][0] >= start:
            inner = self._spans.pop()
            self.seconds -= inner[1] - inner[0]
        self._spans.append((start, end))
        self.seconds += duration_secs


_compilations = _Compilations()
jax.monitoring.register_event_duration_secs_listener(_compilations)
