"""HDF5 files as published by TensorFlow Federated: `examples/CLIENT/FIELD`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from fedax.data import budget
from fedax.data.budget import require_modest
from fedax.data.errors import DataError
from fedax.data.readers.clients import Client, Clients, needed, reading, regular_file
from fedax.data.readers.processes import LibraryProcess

_PROGRAM = resources.files("fedax.data.readers") / "hdf5_process.py"
_MAGIC = b"\x89HDF\r\n\x1a\n"


def read_hdf5(path: Path | str) -> Clients:
    """Reads the clients of a file such as `fed_emnist_train.h5`, in the order of their names.

    The HDF5 library runs in a separate process, because some damaged files crash it or keep it busy
    for ever.

    Args:
      path: a file with a group `examples` that has one group per client. Each of these has one data
          set per field, for example `pixels` and `label`, whose first axis counts the examples.
          Text is returned as a list of bytes.

    Raises:
      DataError: if the file does not exist, or h5py is not installed; during reading, if it is
          malformed.
    """
    needed("h5py", "hdf5", "HDF5")
    path = regular_file(path)
    with reading(path, "an HDF5 file"), path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise DataError(
                f"{path} is not an HDF5 file: it does not begin with the HDF5 signature."
            )
    return Clients(lambda start: _read(path, start), [path])


def _read(path: Path, start: int) -> Iterator[Client]:
    size = path.stat().st_size
    limits = (
        start, budget.PART_BYTES, budget.MOST_TIMES * size + budget.ALLOWED_BYTES,
        budget.process_memory(size),
    )
    process = LibraryProcess(
        _PROGRAM, [str(path.absolute()), *map(str, limits)], [path], "the HDF5 library",
        "an HDF5 file",
    )
    try:
        while "done" not in (head := process.hear()):
            if "unpacks" in head:
                require_modest(path, size, head["unpacks"])
            columns = {
                field: _column(said, process) for field, said in head.get("columns", {}).items()
            }
            if columns:
                yield head["client"], columns
    finally:
        process.end()


def _column(said: dict[str, Any], process: LibraryProcess) -> Any:
    """A column as it was described."""
    if "lengths" in said:
        ends = np.cumsum([0, *said["lengths"]]).tolist()
        content = process.take(ends[-1])
        return [content[a:b] for a, b in itertools.pairwise(ends)]
    kind = np.dtype(said["dtype"])
    content = process.take(math.prod(said["shape"]) * kind.itemsize)
    return np.frombuffer(content, kind).reshape(said["shape"])
