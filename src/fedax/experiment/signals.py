"""Stopping after the round that is under way, when Ctrl-C or a scheduler asks for it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

from fedax.devices.ending import Request, guard, listening


@contextlib.contextmanager
def stop_on_signal(words: Callable[[], str]) -> Iterator[Request]:
    """The first Ctrl-C or SIGTERM asks to stop after the round, the second stops at once.

    In the command line's process its guard sees to it, in a Python program handlers do: only in
    the main thread, and only where a signal would do what it does in a plain Python. What the user
    set, and what a shell's background job or nohup ignores, stays.

    Args:
      words: what the guard says if the process ends in the middle of a round.
    """
    asked, of_process = Request(words), guard()
    if of_process is not None:
        of_process.request = asked
        try:
            yield asked
        finally:
            if not asked:
                of_process.request = None
        return
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
        with listening(asked):
            yield asked
    finally:
        for number in ours:
            signal.signal(number, plain[number])
