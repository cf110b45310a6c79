"""Where half-finished things lie while a data set is made, and who may make it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from fedax.data.errors import DataError
from fedax.devices.ending import before_leaving

LOCKS = ".locks"
PARTIAL = ".partial"


@contextlib.contextmanager
def working_folder(root: Path, name: str, say: Callable[[str], object]) -> Iterator[Path]:
    """An empty folder beside what becomes of it, which is gone however this ends.

    One process at a time has it for a name; another one waits. What a killed process left is
    removed by the next one.

    Args:
      root: the folder of all data.
      name: what is made.
      say: told a sentence if it must wait.

    Raises:
      DataError: the disk failed.
    """
    with explained(root):
        locks, partial = root / LOCKS, root / PARTIAL
        for folder in (locks, partial):
            folder.mkdir(parents=True, exist_ok=True)
        with _only_one(locks, name, say):
            for left in partial.glob(f"{name}.*"):
                shutil.rmtree(left, ignore_errors=True)
            work = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=partial))
            try:
                with before_leaving(lambda: discard(work)):
                    yield work
            finally:
                discard(work)


def discard(folder: Path) -> None:
    """Removes a folder whole: at no time is a part of it where it was."""
    trash = folder.with_name(f"{folder.name}.removed")
    with contextlib.suppress(OSError):
        folder.rename(trash)
        shutil.rmtree(trash, ignore_errors=True)


@contextlib.contextmanager
def explained(root: Path) -> Iterator[None]:
    """Turns a failure of the disk into a sentence.

    Raises:
      DataError: with that sentence.
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            free = shutil.disk_usage(root).free if root.exists() else 0
            raise DataError(
                f"The disk of {root} filled up. Nothing half-written was left, so {free:,} bytes "
                "are free again; make room for more, or set FEDAX_DATA to a folder on another disk."
            ) from error
        raise DataError(f"Cannot write to {root}: {error.strerror or error}.") from error


@contextlib.contextmanager
def _only_one(locks: Path, name: str, say: Callable[[str], object]) -> Iterator[None]:
    lock = FileLock(locks / f"{name}.lock")
    owner = locks / f"{name}.json"  # the lock's own file is emptied by whoever asks for it
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"{_described(owner)} is getting {name} already; waiting for it.")
        lock.acquire(poll_interval=0.2)
    try:
        owner.write_text(json.dumps({"process": os.getpid(), "host": socket.gethostname()}))
        yield
    finally:
        owner.unlink(missing_ok=True)
        lock.release()


def _described(owner: Path) -> str:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        said = json.loads(owner.read_text())
        return f"Process {int(said['process'])} on {str(said['host'])[:100]}"
    return "Another process"
