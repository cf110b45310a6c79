"""HDF5 as TensorFlow Federated publishes it: `examples/CLIENT/FIELD`, a row an example."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedax.data.errors import DataError
from fedax.data.readers.clients import (
    Client,
    Clients,
    needed,
    reading,
    regular_file,
    require_modest,
    rows_at_a_time,
)

_GROUP = "examples"
# Deflate makes 1,032 bytes of one at most; what was never written makes any number of none.
_MOST_TIMES = 1100
_ERRORS = (RuntimeError, ValueError, KeyError, TypeError, OverflowError, NotImplementedError)


def read_hdf5(path: Path | str) -> Clients:
    """The clients of a file such as `fed_emnist_train.h5`, in the order of their names.

    Args:
      path: a file with a group `examples`, of which each group is a client and has a data set a
        field, `pixels` and `label` for example, whose first axis counts the examples. Text is
        given as a list of bytes.

    Raises:
      DataError: there is no such file, or h5py is not installed; while it is read: it is
        malformed.
    """
    h5py = needed("h5py", "hdf5", "HDF5")
    path = regular_file(path)
    with reading(path, "an HDF5 file", *_ERRORS, OSError):
        if not h5py.is_hdf5(path):
            raise DataError(f"{path} is no HDF5 file: it does not begin as one does.")
        with h5py.File(path, "r") as file:
            num_clients = len(_group(h5py, file, _GROUP, path))
    return Clients(lambda start: _read(h5py, path, start), [path], num_clients)


def _read(h5py: Any, path: Path, start: int) -> Iterator[Client]:
    with reading(path, "an HDF5 file", *_ERRORS, OSError), h5py.File(path, "r") as file:
        clients = _group(h5py, file, _GROUP, path)
        names = sorted(clients)
        packed, unpacked = path.stat().st_size, 0
        if not names:
            raise DataError(f"{path} has no clients: its group {_GROUP!r} is empty.")
        for name in names[start:]:
            fields = _group(h5py, clients, name, path)
            found = {field: _data(h5py, fields, field, name, path) for field in sorted(fields)}
            lengths = {field: data.shape[0] for field, data in found.items()}
            if len(set(lengths.values())) != 1 or 0 in lengths.values():
                raise DataError(
                    f"{path}: client {name!r} needs fields of one length, at least 1, but has "
                    f"{lengths or 'none'}."
                )
            (length,) = set(lengths.values())
            row_bytes = sum(
                int(np.prod(data.shape[1:], dtype=object)) * data.dtype.itemsize
                for data in found.values()
            )
            unpacked += length * row_bytes
            require_modest(path, packed, unpacked)
            step = rows_at_a_time(row_bytes)
            for row in range(0, length, step):
                yield name, {
                    field: _plain(data[row : row + step]) for field, data in found.items()
                }


def _group(h5py: Any, parent: Any, name: str, path: Path) -> Any:
    """A group in another one; what a link leads to is not followed."""
    if name not in parent:
        raise DataError(f"{path} has no group {name!r}, in which the clients stand.")
    group = _own(h5py, parent, name, path)
    if not isinstance(group, h5py.Group):
        raise DataError(f"{path}: {group.name!r} should be a group, but is a data set.")
    return group


def _own(h5py: Any, parent: Any, name: str, path: Path) -> Any:
    if not isinstance(parent.get(name, getlink=True), h5py.HardLink):
        raise DataError(
            f"{path}: {parent.name}/{name} is a link to elsewhere, which is not followed."
        )
    return parent[name]


def _data(h5py: Any, fields: Any, field: str, client: str, path: Path) -> Any:
    """A field's data set, if its numbers are in this file and as many as it says."""
    data = _own(h5py, fields, field, path)
    what = f"{path}: field {field!r} of client {client!r}"
    if not isinstance(data, h5py.Dataset) or not data.shape:
        raise DataError(f"{what} should be an array whose first axis counts the examples.")
    if data.is_virtual or data.external:
        raise DataError(f"{what} has its numbers in another file, which is not read.")
    if data.dtype.kind not in "biufSO" or (
        data.dtype.kind == "O" and h5py.check_string_dtype(data.dtype) is None
    ):
        raise DataError(f"{what} is {data.dtype}, but must be numbers or text.")
    size = int(np.prod(data.shape, dtype=object)) * data.dtype.itemsize
    if size > _MOST_TIMES * data.id.get_storage_size() + 2**16:
        raise DataError(
            f"{what} says that it has {size:,} bytes, but the file has only "
            f"{data.id.get_storage_size():,} of it."
        )
    return data


def _plain(values: np.ndarray) -> Any:
    """Numbers as they are; text as a list of bytes."""
    if values.dtype.kind not in "SO":
        return values
    return [
        value.encode("utf-8", "surrogateescape") if isinstance(value, str) else bytes(value)
        for value in values.ravel().tolist()
    ]
