"""Ending the process of a command line in time, whatever its threads do.

A thread that waits inside XLA or in a callback runs no signal handler of Python, so a thread of
its own hears the signals. It imports nothing heavy: it stands guard while JAX is imported, too.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from fedax.outside.text import printable

STOPPED = "Stopped."
# Seconds that a run has to end after its round, unless its rounds are longer than a third of it.
PATIENCE = 10.0
LONGEST_ROUNDS = 3
# A terminal or a scheduler may send one signal twice; so soon after the first it is the same.
SAME = 0.3

_leaving = threading.Lock()
_stderr = 2
_last_acts: list[Callable[[], object]] = []
_requests: list[Request] = []


def open_what_is_closed() -> None:
    """Opens nothing in place of a closed standard input, output or error (`>&-`).

    Or the next file that is opened would get its number, and what is said would go there.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free, this one
            setattr(sys, name, os.fdopen(number, mode))


class Request:
    """A request to stop after the round that is under way.

    Args:
      words: what to say, without a full stop at its end, if the process ends before that.

    Attributes:
      by: the signal's number, or None while nobody asked.
    """

    def __init__(self, words: Callable[[], str] = lambda: STOPPED) -> None:
        self.by: int | None = None
        self.words = words
        self._longest = 0.0
        self._began = time.monotonic()

    def __bool__(self) -> bool:
        return self.by is not None

    @property
    def patience(self) -> float:
        """Seconds that it may take from the first signal on."""
        return max(PATIENCE, LONGEST_ROUNDS * self._longest)

    def round_done(self, compiling: float = 0.0) -> None:
        """Takes notice of how long a round took, seconds of compilation left aside."""
        now = time.monotonic()
        self._longest, self._began = max(self._longest, now - self._began - compiling), now


def _for_the_thread(number: int, frame: Any) -> None:
    """The handler of signals that the guard's thread hears."""


class Guard:
    """Hears Ctrl-C and SIGTERM in a thread, and ends the process.

    Where nothing asks for time it ends at once. In a run the first signal is a `Request`; if the
    process has not ended when its patience is over, or after a second signal, it ends at once.

    Attributes:
      request: what the first signal is told to; None where nothing asks for time.
      heard: whether one came.
    """

    def __init__(self) -> None:
        self.request: Request | None = None
        self.heard = False
        self._ear, mouth = socket.socketpair()
        mouth.setblocking(False)
        self._mouth = mouth
        # What a shell's background job or nohup ignores stays ignored.
        usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
        ours = [number for number, plain in usual.items() if signal.getsignal(number) is plain]
        signal.set_wakeup_fd(mouth.fileno(), warn_on_full_buffer=False)
        for number in ours:
            signal.signal(number, _for_the_thread)
        threading.Thread(target=self._listen, name="fedax-guard", daemon=True).start()

    def _listen(self) -> None:
        number = None
        while number is None:
            number = self._heard(None)
        request, first, self.heard = self.request, time.monotonic(), True
        if request is None:
            leave(STOPPED)
        request.by, patience = number, request.patience
        while self._heard(first + SAME) is not None:
            pass
        tell(
            f"Stopping after this round, within {patience:.0f} s at most; press Ctrl-C again to "
            "stop at once."
        )
        self._heard(first + patience)
        leave(request.words())

    def _heard(self, until: float | None) -> int | None:
        """The signal that came, or None if none of ours did until then."""
        while until is None or time.monotonic() < until:
            self._ear.settimeout(None if until is None else max(until - time.monotonic(), 1e-3))
            try:
                heard = self._ear.recv(64)
            except TimeoutError:
                return None
            # What a user's own code has set a handler for meanwhile is not ours any more.
            known = signal.valid_signals()
            ours = [n for n in heard if n in known and signal.getsignal(n) is _for_the_thread]
            if ours:
                return ours[-1]
        return None


_guard: Guard | None = None


def guard() -> Guard | None:
    """The guard of this process, if it has one."""
    return _guard


def set_guard() -> None:
    """Sets the guard of this process, which is a command line's, if it has none yet."""
    global _guard  # noqa: PLW0603 - so are a process's signals
    if _guard is None and threading.current_thread() is threading.main_thread():
        _guard = Guard()


@contextlib.contextmanager
def listening(request: Request) -> Iterator[None]:
    """Has `was_asked` know of a request to a Python program, which has no guard."""
    _requests.append(request)
    try:
        yield
    finally:
        _requests.remove(request)


def was_asked() -> bool:
    """Whether a signal asked this command line, or a run of this program, to end."""
    return (_guard is not None and _guard.heard) or any(_requests)


def is_command_line() -> bool:
    """Whether this process began as `fedax` or `python -m fedax`."""
    name = sys.argv[0] if sys.argv else ""
    if name == "-m":  # as it is while Python looks for the module
        words = sys.orig_argv
        return "-m" in words and words[words.index("-m") + 1 :][:1] == ["fedax"]
    return re.split(r"[/\\]", name)[-1] in ("fedax", "fedax.exe")


def speak_through(descriptor: int) -> None:
    """Has sentences go to another file descriptor than that of standard error."""
    global _stderr  # noqa: PLW0603 - so is standard error
    _stderr = descriptor


def tell(sentence: str) -> None:
    """Says a sentence on standard error, whoever holds Python's lock on it."""
    start = "\n" if _is_terminal() else ""  # below the bar
    line = f"{start}fedax: {printable(' '.join(sentence.split()))}\n"
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    with contextlib.suppress(OSError):
        os.write(_stderr, line.encode(encoding, "backslashreplace"))


@contextlib.contextmanager
def before_leaving(act: Callable[[], object]) -> Iterator[None]:
    """Has a short act done, in whatever thread, if `leave` ends the process meanwhile."""
    _last_acts.append(act)
    try:
        yield
    finally:
        _last_acts.remove(act)


def leave(sentence: str | None, status: int = 1) -> NoReturn:
    """Says a sentence and ends the process at once; of several callers, the first one's.

    Args:
      sentence: what to say; None: it is said already.
      status: the exit status.
    """
    if not _leaving.acquire(blocking=False):
        time.sleep(3600)
    # In a thread, as a reader that does not read would block it.
    farewell = threading.Thread(target=_say_farewell, args=(sentence,), daemon=True)
    farewell.start()
    for act in tuple(_last_acts):
        with contextlib.suppress(Exception):
            act()
    farewell.join(1)
    os._exit(status)


def _say_farewell(sentence: str | None) -> None:
    if sentence is not None:
        tell(sentence)
    with contextlib.suppress(OSError, ValueError, AttributeError):
        if _is_terminal():
            os.write(1, b"\x1b[?25h")  # the cursor, which the bar hides
        sys.stdout.flush()


def _is_terminal() -> bool:
    with contextlib.suppress(OSError):
        return os.isatty(1)
    return False
