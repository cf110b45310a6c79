"""Runs libraries that read untrusted files in separate processes.

The HDF5 and Arrow libraries crash on some damaged files, never finish on others, or take
unpredictable amounts of memory. Their programs (`hdf5_process.py`, `arrow_process.py`) report what
they read in lines of JSON, each followed by the bytes that it describes. A program that crashes or
does not answer for too long becomes a clear error.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from fedax.data import budget
from fedax.data.errors import DataError


class LibraryProcess:
    """A program that reads one data set.

    Args:
      program: the file of the program.
      arguments: of its command line.
      paths: what it reads, for sentences; a line with "file" says at which it is.
      library: what it reads it with, such as "the HDF5 library".
      what: the file should be, such as "an HDF5 file".
    """

    def __init__(
        self, program: Traversable, arguments: list[str], paths: Sequence[Path], library: str,
        what: str,
    ) -> None:
        self._paths, self._place = paths, 0
        self._library, self._what = library, what
        unpacked = contextlib.ExitStack()  # a program inside a zip is a file while it runs
        file = unpacked.enter_context(resources.as_file(program))
        # Not from its own folder, whose modules have names of others'. Arrow's own pools of memory
        # and C's arenas reserve more addresses than the limit leaves.
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(file), *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=os.environ | {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2"},
        )
        self._watch = _Watch(self._process)
        self.end = weakref.finalize(self, _end, self._process, self._watch, unpacked)

    def ask(self, request: Mapping[str, Any]) -> None:
        """Writes a line to the program."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:  # it has ended, which is said when it is listened to
            return

    def hear(self) -> dict[str, Any]:
        """What the program says next.

        Raises:
          DataError: if it reports a fault of the file, has ended, or does not answer in time.
        """
        assert self._process.stdout is not None
        with self._watch:
            line = self._process.stdout.readline()
        if not line.endswith(b"\n"):
            raise self._lost()
        head = json.loads(line)
        self._place = head.get("file", self._place)
        path = self._paths[self._place]
        if "malformed" in head:
            raise DataError(f"{path}{head['malformed']}.")
        if "damaged" in head:
            why = head["damaged"].rstrip(".")
            raise DataError(f"{path} is damaged, or not {self._what}: {why}.")
        return head

    def take(self, size: int) -> bytes:
        """The next `size` bytes, which the program has announced.

        Raises:
          DataError: if it has ended, or does not answer in time.
        """
        assert self._process.stdout is not None
        with self._watch:
            content = self._process.stdout.read(size)
        if len(content) < size:
            raise self._lost()
        return content

    def _lost(self) -> DataError:
        why = "does not finish reading it" if self._watch.was_late else "crashes on it"
        return DataError(f"{self._paths[self._place]} is damaged: {self._library} {why}.")


class _Watch:
    """Ends a process that does not answer for too long, while it is waited for."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.was_late = False
        self._process = process
        self._since = math.inf
        self._ended = threading.Event()
        threading.Thread(target=self._look, daemon=True).start()

    def __enter__(self) -> None:
        self._since = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._since = math.inf

    def end(self) -> None:
        """Looks no more."""
        self._ended.set()

    def _look(self) -> None:
        while not self._ended.wait(0.5):
            if time.monotonic() - self._since > budget.MOST_SECONDS:
                self.was_late = True
                self._process.kill()
                return


def _end(
    process: subprocess.Popen[bytes], watch: _Watch, unpacked: contextlib.ExitStack
) -> None:
    process.kill()
    watch.end()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:  # what was still to be written
                continue
    process.wait()
    unpacked.close()
