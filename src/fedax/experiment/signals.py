"""Stopping after the round that is under way, when Ctrl-C or a scheduler asks for it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


class Asked:
    """Whether somebody asked to stop.

    Attributes:
      by: the signal's number, or None.
    """

    def __init__(self) -> None:
        self.by: int | None = None

    def __bool__(self) -> bool:
        return self.by is not None


@contextlib.contextmanager
def stop_on_signal() -> Iterator[Asked]:
    """The first Ctrl-C or SIGTERM asks to stop after the round, the second stops at once.

    Only in the main thread, and only where a signal would do what it does in a plain Python: what
    the user set, and what a shell's background job or nohup ignores, stays.
    """
    asked = Asked()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def handle(number: int, frame: Any) -> None:
        del frame
        if asked:
            raise KeyboardInterrupt
        asked.by = number

    plain = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    ours = [number for number, usual in plain.items() if signal.getsignal(number) is usual]
    try:
        for number in ours:
            signal.signal(number, handle)
        yield asked
    finally:
        for number in ours:
            signal.signal(number, plain[number])
