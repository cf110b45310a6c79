"""HDF5 as TensorFlow Federated publishes it: `examples/CLIENT/FIELD`, a row an example."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedax.data.errors import DataError
from fedax.data.readers import clients as sizes
from fedax.data.readers.clients import (
    PART_BYTES,
    Client,
    Clients,
    needed,
    reading,
    regular_file,
    require_modest,
)

_PROGRAM = resources.files("fedax.data.readers") / "hdf5_process.py"
_MAGIC = b"\x89HDF\r\n\x1a\n"
# The library has not ended after so long without a client; the largest take a second.
MOST_SECONDS = 60.0


def read_hdf5(path: Path | str) -> Clients:
    """The clients of a file such as `fed_emnist_train.h5`, in the order of their names.

    The HDF5 library reads it in a process of its own, as some damaged files crash it, or keep it
    busy for ever.

    Args:
      path: a file with a group `examples`, of which each group is a client and has a data set a
        field, `pixels` and `label` for example, whose first axis counts the examples. Text is
        given as a list of bytes.

    Raises:
      DataError: there is no such file, or h5py is not installed; while it is read: it is
        malformed.
    """
    needed("h5py", "hdf5", "HDF5")
    path = regular_file(path)
    with reading(path, "an HDF5 file"), path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise DataError(f"{path} is no HDF5 file: it does not begin as one does.")
    return Clients(lambda start: _read(path, start), [path])


def _read(path: Path, start: int) -> Iterator[Client]:
    limits = (start, PART_BYTES, sizes.MOST_TIMES, sizes.ALLOWED_BYTES)
    with resources.as_file(_PROGRAM) as program:
        yield from _read_by(program, [str(path.absolute()), *map(str, limits)], path)


def _read_by(program: Path, arguments: list[str], path: Path) -> Iterator[Client]:
    # Not from its own folder, whose modules have names of others'.
    process = subprocess.Popen(
        [sys.executable, "-P", str(program), *arguments],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    watch = _Watch(process)
    try:
        while True:
            with watch:
                head, columns = _message(path, process.stdout)
            if head is None:
                why = "never ends reading it" if watch.was_late else "crashes on it"
                raise DataError(f"{path} is damaged: the HDF5 library {why}.")
            if "done" in head:
                return
            if columns:
                yield head["client"], columns
    finally:
        process.kill()
        watch.end()
        process.stdout.close()
        process.wait()


class _Watch:
    """Ends a process that says nothing for too long, while it is waited for."""

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
            if time.monotonic() - self._since > MOST_SECONDS:
                self.was_late = True
                self._process.kill()
                return


def _message(path: Path, file: IO[bytes]) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """What the process says next; None if it ended without a word.

    Raises:
      DataError: it says what is wrong.
    """
    line = file.readline()
    if not line.endswith(b"\n"):
        return None, {}
    head = json.loads(line)
    if "malformed" in head:
        raise DataError(f"{path}{head['malformed']}.")
    if "damaged" in head:
        raise DataError(f"{path} is damaged, or not an HDF5 file: {head['damaged']}.")
    if "unpacks" in head:
        require_modest(path, path.stat().st_size, head["unpacks"])
    columns: dict[str, Any] = {}
    for field, said in head.get("columns", {}).items():
        columns[field] = _column(said, file)
        if columns[field] is None:
            return None, {}
    return head, columns


def _column(said: dict[str, Any], file: IO[bytes]) -> Any:
    """A column as it was described; None if the process ended within it."""
    if "lengths" in said:
        ends = np.cumsum([0, *said["lengths"]]).tolist()
        content = file.read(ends[-1])
        whole = len(content) == ends[-1]
        return [content[a:b] for a, b in itertools.pairwise(ends)] if whole else None
    kind = np.dtype(said["dtype"])
    size = math.prod(said["shape"]) * kind.itemsize
    content = file.read(size)
    return np.frombuffer(content, kind).reshape(said["shape"]) if len(content) == size else None
