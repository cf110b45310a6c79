"""NumPy's files with an array of client ids: a folder of .npy files, or an .npz file."""

from __future__ import annotations

import math
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from fedax.data.errors import DataError
from fedax.data.readers.clients import Client, Clients, reading, regular_file, require_modest
from fedax.data.readers.scattered import Batch, Rows, batch_rows, by_client
from fedax.outside.paths import expanded
from fedax.validate import unknown

_ERRORS = (
    ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError,
    SyntaxError, tokenize.TokenError, KeyError, TypeError, OverflowError,
    SystemError,  # letters that Unicode has not
)
_LONGEST_HEADER = 2**16
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0,
}


class _Array(NamedTuple):
    """An array in a file: where it is, and what its header says."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize


def read_numpy(path: Path | str, client_ids: str = "client_ids") -> Clients:
    """The clients of arrays [num_rows, ...], in the order of their first row; rows in any order.

    Args:
      path: an .npz file, or a folder of .npy files.
      client_ids: the name of the array [num_rows], of text or whole numbers, that says whose each
        row is.

    Raises:
      DataError: there is no such file or array, or it is malformed.
    """
    path = expanded(path)
    if path.is_dir():
        paths = [regular_file(file) for file in sorted(path.glob("*.npy"))]
    else:
        paths = [regular_file(path)]
    with reading(path, "an .npz file", *_ERRORS):
        arrays = {array.name: array for array in _headers(path, paths)}
    if client_ids not in arrays:
        raise DataError(f"{path}: {unknown('array of client ids', client_ids, arrays)}")
    ids = arrays.pop(client_ids)
    if len(ids.shape) != 1 or ids.dtype.kind not in "Uiu":
        raise DataError(
            f"{path}: the client ids {client_ids!r} must be text or whole numbers [num_rows], but "
            f"are {ids.dtype}{list(ids.shape)}."
        )
    if not arrays:
        raise DataError(f"{path} has no array beside the client ids.")
    for array in arrays.values():
        if array.shape[0] != ids.shape[0] or array.dtype.kind not in "biufc":
            raise DataError(
                f"{path}: the array {array.name!r} is {array.dtype}{list(array.shape)}, but must "
                f"be numbers with {ids.shape[0]} rows, as many as there are client ids."
            )
    row_bytes = sum(array.row_bytes for array in arrays.values())

    def parts(chosen: list[_Array]) -> Iterator[list[np.ndarray]]:
        with reading(path, "whole", *_ERRORS), ExitStack() as stack:
            files = [_opened(stack, path, array.name)[0] for array in chosen]
            step = batch_rows(row_bytes + ids.row_bytes)
            for row in range(0, ids.shape[0], step):
                count = min(step, ids.shape[0] - row)
                yield [_rows(file, array, count)
                       for file, array in zip(files, chosen, strict=True)]

    def batches() -> Iterator[Batch]:
        for own, *columns in parts([ids, *arrays.values()]):
            yield own.tolist(), dict(zip(arrays, columns, strict=True))

    def read(start: int) -> Iterator[Client]:
        with reading(path, "whole", *_ERRORS):
            yield from by_client(Rows(
                lambda: (own.tolist() for (own,) in parts([ids])), batches, row_bytes, str(path),
            ), start)

    return Clients(read, paths)


def _headers(path: Path, paths: list[Path]) -> Iterator[_Array]:
    names = [file.stem for file in paths]
    if not path.is_dir():
        with zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
            if len(set(names)) < len(names):
                raise ValueError("two arrays have one name")
    for name in names:
        with ExitStack() as stack:
            yield _opened(stack, path, name)[1]


def _opened(stack: ExitStack, path: Path, name: str) -> tuple[BinaryIO, _Array]:
    """A file behind its header, and what that says."""
    if path.is_dir():
        whole = packed = (path / f"{name}.npy").stat().st_size
        file: Any = stack.enter_context((path / f"{name}.npy").open("rb"))
    else:
        archive = stack.enter_context(zipfile.ZipFile(path))
        member = archive.getinfo(f"{name}.npy")
        whole, packed = member.file_size, path.stat().st_size
        file = stack.enter_context(archive.open(member))
    version = np.lib.format.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"the array {name!r} is in a format of NumPy's that is not known here")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of headers that Python 2 wrote
        shape, in_columns, dtype = _HEADERS[version](file, max_header_size=_LONGEST_HEADER)
    size = math.prod(shape) * dtype.itemsize
    if not shape or dtype.hasobject or any(length < 0 for length in shape):
        raise ValueError(f"the array {name!r} is {dtype}{list(shape)}, no numbers [n, ...]")
    if in_columns and len(shape) > 1:
        raise ValueError(
            f"the array {name!r} is stored by columns; save np.ascontiguousarray of it"
        )
    begin = file.tell()
    if begin + size != whole:
        raise ValueError(
            f"the array {name!r} says that it is {dtype}{list(shape)}, {size:,} bytes, but has "
            f"{whole - begin:,}"
        )
    require_modest(path, packed, size)
    return file, _Array(name, shape, dtype)


def _rows(file: BinaryIO, array: _Array, count: int) -> np.ndarray:
    content = file.read(count * array.row_bytes)
    if len(content) < count * array.row_bytes:
        raise EOFError(f"the array {array.name!r} is cut")
    return np.frombuffer(content, array.dtype).reshape(count, *array.shape[1:])
