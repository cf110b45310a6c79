"""NumPy files with an array of client ids: a folder of .npy files, or an .npz file."""

from __future__ import annotations

import io
import math
import sys
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from fedax.data.budget import require_few_arrays, require_modest
from fedax.data.errors import DataError
from fedax.data.readers.clients import Client, Clients, file_of_folder, reading, regular_file
from fedax.data.readers.scattered import Batch, Rows, batch_rows, by_client
from fedax.files.array_headers import read_header
from fedax.outside.paths import expanded
from fedax.validate import quoted, unknown

_ERRORS = (
    ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError,
    KeyError, TypeError, OverflowError,
    SystemError,  # letters that Unicode has not
)
# Of an archive's list of what is in it; 4,096 arrays have 300 kB at most.
_LONGEST_LIST = 2**22


class _Array(NamedTuple):
    """An array in a file: where it is, and what its header says."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize


def read_numpy(path: Path | str, client_ids: str = "client_ids") -> Clients:
    """Reads the clients of arrays [num_rows, ...], in the order of their first row.

    Rows may be in any order.

    Args:
      path: an .npz file, or a folder of .npy files.
      client_ids: the name of the array with each row's client, text or whole numbers [num_rows].

    Raises:
      DataError: if the file or the array does not exist, or is malformed.
    """
    path = expanded(path)
    if path.is_dir():
        paths = [file_of_folder(path, file) for file in sorted(path.glob("*.npy"))]
    else:
        paths = [regular_file(path)]
    with reading(path, "an .npz file", *_ERRORS):
        arrays = {array.name: array for array in _headers(path, paths)}
    if client_ids not in arrays:
        raise DataError(f"{path}: {unknown('client id array', client_ids, arrays)}")
    ids = arrays.pop(client_ids)
    if len(ids.shape) != 1 or ids.dtype.kind not in "Uiu":
        cure = {"S": " Save them as text: np.char.decode(ids).",
                "f": " Save them as whole numbers: ids.astype(int)."}.get(ids.dtype.kind, "")
        raise DataError(
            f"{path}: the client ids {client_ids!r} must be text or whole numbers [num_rows], but "
            f"they are {ids.dtype}{list(ids.shape)}.{cure}"
        )
    if not arrays:
        raise DataError(f"{path} has no array except the client ids.")
    for array in arrays.values():
        if array.shape[0] != ids.shape[0] or array.dtype.kind not in "biufc":
            raise DataError(
                f"{path}: the array {array.name!r} is {array.dtype}{list(array.shape)}, but must "
                f"be numbers with {ids.shape[0]} rows, one for each client id."
            )
    row_bytes = sum(array.row_bytes for array in arrays.values())

    def parts(chosen: list[_Array]) -> Iterator[list[np.ndarray]]:
        with reading(path, "whole", *_ERRORS), ExitStack() as stack:
            place = _place(stack, path)
            files = [_opened(stack, place, array.name)[0] for array in chosen]
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


def read_arrays(path: Path | str) -> dict[str, np.ndarray]:
    """All arrays of an .npz file, whatever their numbers of rows, in memory.

    Args:
      path: the file. Its arrays come to at most `fedax.data.budget.MOST_TIMES` its size.

    Raises:
      DataError: if it does not exist or is malformed.
    """
    path = regular_file(path)
    with reading(path, "an .npz file", *_ERRORS), ExitStack() as stack:
        arrays = list(_headers(path, [path]))
        place = _place(stack, path)
        return {
            array.name: _rows(_opened(stack, place, array.name)[0], array, array.shape[0])
            for array in arrays
        }


class _Bounded(io.BufferedReader):
    """A file of which an archive's list is read, if it is as long as such a list."""

    most = _LONGEST_LIST

    def read(self, size: int | None = -1) -> bytes:
        if size is not None and size > self.most:
            raise ValueError(f"its list of arrays has {size:,} bytes")
        return super().read(size)


def _place(stack: ExitStack, path: Path) -> Path | zipfile.ZipFile:
    """The folder, or the archive, which is opened once."""
    if path.is_dir():
        return path
    file = stack.enter_context(_Bounded(io.FileIO(path)))
    archive = stack.enter_context(zipfile.ZipFile(file))
    file.most = sys.maxsize
    return archive


def _headers(path: Path, paths: list[Path]) -> Iterator[_Array]:
    total, packed = 0, sum(file.stat().st_size for file in paths)
    with ExitStack() as stack:
        place = _place(stack, path)
        names = [file.stem for file in paths] if isinstance(place, Path) else [
            name.removesuffix(".npy") for name in place.namelist()
        ]
        require_few_arrays(path, len(names))
        if len(set(names)) < len(names):
            raise ValueError("two arrays have the same name")
        for name in names:
            with ExitStack() as own:
                array = _opened(own, place, name)[1]
            total += math.prod(array.shape) * array.dtype.itemsize
            require_modest(path, packed, total)
            yield array


def _opened(stack: ExitStack, place: Path | zipfile.ZipFile, name: str) -> tuple[Any, _Array]:
    """A file behind its header, and what that says."""
    if isinstance(place, Path):
        whole = (place / f"{name}.npy").stat().st_size
        file: Any = stack.enter_context((place / f"{name}.npy").open("rb"))
    else:
        member = place.getinfo(f"{name}.npy")
        whole = member.file_size
        file = stack.enter_context(place.open(member))
    try:
        shape, in_columns, dtype = read_header(file)
    except ValueError as error:
        raise ValueError(f"the array {quoted(name)} is damaged: {error}") from None
    size = math.prod(shape) * dtype.itemsize
    if dtype.hasobject:
        raise ValueError(
            f"the array {quoted(name)} holds Python objects, not numbers [n, ...]; loading them "
            f"would run code. Save numbers, or names as text: np.array({name}.tolist(), dtype=str)."
        )
    if not shape:
        raise ValueError(f"the array {quoted(name)} is {dtype}{list(shape)}, not numbers [n, ...]")
    if in_columns and len(shape) > 1:
        raise ValueError(
            f"the array {quoted(name)} is stored in column-major order; save "
            "np.ascontiguousarray(array) instead"
        )
    begin = file.tell()
    if begin + size != whole:
        raise ValueError(
            f"the array {quoted(name)} says that it is {dtype}{list(shape)}, {size:,} bytes, but "
            f"has {whole - begin:,}"
        )
    return file, _Array(name, shape, dtype)


def _rows(file: BinaryIO, array: _Array, count: int) -> np.ndarray:
    content = file.read(count * array.row_bytes)
    if len(content) < count * array.row_bytes:
        raise EOFError(f"the array {array.name!r} ends too early")
    return np.frombuffer(content, array.dtype).reshape(count, *array.shape[1:])
