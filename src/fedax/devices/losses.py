"""When another process of the training ends: this one says so and ends, too.

JAX's runtime aborts a process when it misses another one. What it says before it does is read
here; and a process that fails leaves word for the others.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import sys
import threading
import time
from typing import Any

import jax

from fedax.devices import internals, terminal
from fedax.devices.ending import leave, speak_through

LOST = (
    "Another process of the training was lost, or cannot be reached. The last checkpoint is "
    "intact: start all processes again with --resume."
)
APART = (
    "The processes of the training could not connect: one was lost, or two have the same id. Every "
    "process needs the same coordinator and number of processes, and its own id."
)
ENDED = "fedax/ended/"
SECONDS_BETWEEN_LOOKS = 0.5
# What the runtime's log begins a record with: its level and the file that it comes from.
RECORD = re.compile(rb"([IWEF])\d{4} [\d:.]+ +\d+ ([^:\]]+):\d+\] ")
OF_THE_RUNTIME = (b"coordination_service", b"client.h", b"distributed_runtime")

_together = threading.Event()
_over = threading.Event()


def client() -> Any:
    """The client of the key-value store that the processes share, or None."""
    return internals.processes().client if jax.distributed.is_initialized() else None


def read_the_runtime() -> None:
    """Reads what JAX's runtime writes to standard error, and ends the process before it aborts."""
    said = os.dup(2)
    os.set_inheritable(said, False)
    reading, writing = os.pipe()
    sys.stderr.flush()
    os.dup2(writing, 2)
    os.close(writing)
    speak_through(said)
    sys.stderr = terminal.Escaped(  # pyright: ignore[reportAttributeAccessIssue] - a text stream
        os.fdopen(said, "w", buffering=1, errors=terminal.REPLACED, closefd=False)
    )
    threading.Thread(target=_read, args=(reading, said), name="fedax-losses", daemon=True).start()
    with contextlib.suppress(OSError, AttributeError, TypeError):  # where there is no such library
        # abort() calls the handler first, which is C's own sleep() and gives us some seconds.
        library = ctypes.CDLL(None)
        library.signal(int(signal.SIGABRT), library.sleep)


def _read(reading: int, said: int) -> None:
    """Passes on what is no record of the runtime about the other processes."""
    ours = False
    with os.fdopen(reading, "rb") as lines:
        for line in lines:
            record = RECORD.match(line)
            if record is not None:
                ours = record[2].startswith(OF_THE_RUNTIME)
                if ours and record[1] == b"F":
                    # The store may be gone, and would not say why.
                    leave(LOST if _together.is_set() else APART)
            if not ours:
                with contextlib.suppress(OSError):
                    os.write(said, line)


def watch_the_others() -> None:
    """Ends this process soon after another one left word that it ended."""
    _together.set()
    threading.Thread(target=_watch, name="fedax-others", daemon=True).start()


def _watch() -> None:
    while not _over.wait(SECONDS_BETWEEN_LOOKS):
        sentence = told()
        if sentence is not None and not _over.wait(SECONDS_BETWEEN_LOOKS):
            leave(sentence)


def told() -> str | None:
    """The word that another process left, as a sentence; None if there is none within a second."""
    left: list[tuple[str, str]] = []

    def look() -> None:
        with contextlib.suppress(Exception):  # of the runtime's kinds, if the first one is gone
            left.extend(client().key_value_dir_get(ENDED))

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    looking.join(1)
    for key, sentence in left:
        number = key.rsplit("/", 1)[-1]
        if number != str(internals.processes().process_id):
            return f"Process {number} of the training ended: {sentence}"
    return None


def abandon(sentence: str | None) -> None:
    """Leaves word for the others that this process fails; None: because of another one's loss."""
    _over.set()
    if sentence is None:
        return
    with contextlib.suppress(Exception):
        number = internals.processes().process_id
        client().key_value_set(f"{ENDED}{number}", sentence, allow_overwrite=True)
        if number == 0:  # the store ends with it
            time.sleep(3 * SECONDS_BETWEEN_LOOKS)


def end_of_watch() -> None:
    """The processes end together now."""
    _over.set()
