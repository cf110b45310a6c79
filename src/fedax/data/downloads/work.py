"""Where half-finished things lie while a data set is made, and who may make it."""

from __future__ import annotations

import contextlib
import errno
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from fedax.data.errors import DataError
from fedax.devices.ending import before_leaving
from fedax.devices.locks import Lock

LOCKS = ".locks"
PARTIAL = ".partial"
# Seconds after which a process that waits asks again.
_PAUSE = 0.2


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
    """Turns a failure of the disk into a clear error.

    Raises:
      DataError: if the disk failed.
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            free = shutil.disk_usage(root).free if root.exists() else 0
            raise DataError(
                f"The disk of {root} is full. Partial files were removed, so {free:,} bytes "
                "are free again. Make more room, or set FEDAX_DATA to a folder on another disk."
            ) from error
        raise DataError(f"Cannot write to {root}: {error.strerror or error}.") from error


@contextlib.contextmanager
def _only_one(locks: Path, name: str, say: Callable[[str], object]) -> Iterator[None]:
    lock = Lock(locks / f"{name}.lock")
    if not lock.take():
        say(f"{lock.owner()} is already getting {name}; waiting for it.")
        while not lock.take():
            time.sleep(_PAUSE)
    try:
        yield
    finally:
        lock.release()
