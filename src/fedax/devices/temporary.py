"""Folders for a while, which are gone when their process is."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from fedax.devices.locks import Lock

_PREFIX = "fedax-"
_LOCK = ".fedax.lock"
# Seconds that a process has to lock the folder that it has made.
_YOUNG = 60.0


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder for what is too large for memory, beside those of other processes.

    It is removed at the end. A process that is killed leaves it; the next one that wants a folder
    removes it.

    Raises:
      OSError: if it cannot be made.
    """
    _remove_left(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name:
        lock = Lock(Path(name) / _LOCK)
        lock.take()
        try:
            yield Path(name)
        finally:
            lock.release()


def _remove_left(parent: Path) -> None:
    """Removes the folders of this user's processes that are gone."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            about = folder.lstat()
            own = not hasattr(os, "getuid") or about.st_uid == os.getuid()
            old = time.time() - about.st_mtime > _YOUNG
            if not (stat.S_ISDIR(about.st_mode) and own and old and (folder / _LOCK).is_file()):
                continue
            lock = Lock(folder / _LOCK)
            if lock.take():
                lock.release()  # nobody else comes to a folder of such a name
                shutil.rmtree(folder, ignore_errors=True)
