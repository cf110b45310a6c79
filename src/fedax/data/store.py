"""Stores: data sets on disk that are memory-mapped when opened.

A store is a folder with one split of a data set:

=============  ==================================================================================
file           content
=============  ==================================================================================
NAME.npy       an array [num_examples, ...], client after client; blanks and the like in its name
               are written as in web addresses
offsets.npy    int64 [num_clients + 1], where each client's examples begin
names.npy      the clients' names, text or whole numbers [num_clients]
store.json     format, dtypes, shapes, SHA-256 of each file's numbers, where they came from
=============  ==================================================================================

`fedax.data.store_writer` makes them.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import math
import os
import re
import stat
import sys
import urllib.parse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from fedax.data.errors import DataError
from fedax.data.federated_dataset import FederatedDataset
from fedax.files.array_headers import read_header
from fedax.outside.paths import expanded
from fedax.theory.tables import read_table
from fedax.validate import quoted

FORMAT = "fedax store 1"
TABLE = "store.json"
OFFSETS, NAMES = "offsets", "names"
# A header of this size is written first and filled in last, when the shape is known. A multiple of
# 64, so that JAX computes on a CPU with the mapped file itself, without a copy.
HEADER_BYTES = 256
# A file is read and hashed in pieces of this size.
PIECE_BYTES = 2**24
# Of a client's name; all take as much as the longest.
LONGEST_NAME = 256
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
_LONGEST_ARRAY_NAME = 64
_LONGEST_FILE_NAME = 250
_MOST_AXES = 8


class _Entry(NamedTuple):
    """What store.json says of a file."""

    dtype: np.dtype
    shape: tuple[int, ...]
    sha256: str


def open_store(folder: Path | str) -> FederatedDataset:
    """Opens the data set in a store, memory-mapped: rows are read only when they are used.

    Compares sizes, dtypes and shapes with `store.json` and checks the offsets; `check_store` reads
    every number.

    Args:
      folder: of the store.

    Raises:
      DataError: if there is no store, or it is incomplete.

    Example:
      >>> import tempfile
      >>> from fedax.data.store_writer import convert
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     store = convert([("ada", {"x": np.ones((3, 2))}), ("bob", {"x": np.zeros((1, 2))})],
      ...                     Path(folder) / "train")
      ...     data = open_store(store)
      ...     data.num_clients, data.client("ada")["x"].sum().item()
      (2, 6.0)
    """
    folder = expanded(folder)
    table = read_store_table(folder)
    entries = _entries(folder, table)
    maps = len(entries) <= most_maps()
    arrays = {name: _opened(folder, name, entry, maps=maps) for name, entry in entries.items()}
    offsets, names = np.array(arrays.pop(OFFSETS)), np.array(arrays.pop(NAMES))
    try:
        return FederatedDataset(arrays, offsets, names)
    except (TypeError, ValueError) as error:
        raise DataError(f"The store {folder} is damaged: {error}") from None


def check_store(
    folder: Path | str, progress: Callable[[int, int], object] | None = None
) -> FederatedDataset:
    """Reads every number of a store and compares its checksums (SHA-256).

    Args:
      folder: of the store.
      progress: called with the bytes read so far and the total.

    Returns:
      The data set, as `open_store` gives it.

    Raises:
      DataError: if there is no store, it is incomplete, or bytes have changed. The message names
          the file.
    """
    folder = expanded(folder)
    data = open_store(folder)
    entries = _entries(folder, read_store_table(folder))
    total = sum(_size(entry) for entry in entries.values())
    done = 0
    for name, entry in entries.items():
        path = folder / array_file(name)
        digest = hashlib.sha256()
        with path.open("rb") as file:
            file.seek(-_size(entry), 2)
            while piece := file.read(PIECE_BYTES):
                digest.update(piece)
                done += len(piece)
                if progress is not None:
                    progress(done, total)
        if digest.hexdigest() != entry.sha256:
            raise DataError(
                f"{path} has changed since it was written: its SHA-256 is {digest.hexdigest()}, "
                f"but was {entry.sha256}. Make the store again."
            )
    return data


def read_store_table(folder: Path) -> Mapping[str, Any]:
    """The contents of a store's `store.json`.

    Raises:
      DataError: if there is none, or it cannot be read.
    """
    path = folder / TABLE
    try:
        table = read_table(_regular(path))
    except FileNotFoundError:
        raise DataError(
            f"There is no store in {folder}: it has no {TABLE}."
            + (" It has the parts train and test; open one of them."
               if (folder / "train" / TABLE).exists() else "")
        ) from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {_reason(error)}.") from None
    if not isinstance(table, Mapping) or table.get("format") != FORMAT:
        found = table.get("format") if isinstance(table, Mapping) else table
        raise DataError(
            f"{path} has the format {quoted(found)}, but this version of fedax reads {FORMAT!r}. "
            "Make the store again."
        )
    return table


def check_array_name(name: Any) -> None:
    """Raises a clear error unless an array of this name can be a file of a store.

    Raises:
      DataError: if it cannot.
    """
    if (
        not isinstance(name, str) or not 1 <= len(name) <= _LONGEST_ARRAY_NAME
        or not name.isprintable() or set(name) & set("/\\")
        or len(array_file(name)) > _LONGEST_FILE_NAME or name.lower() in (OFFSETS, NAMES)
    ):
        raise DataError(
            f"An array of a store cannot have the name {quoted(name)}: use 1 to "
            f"{_LONGEST_ARRAY_NAME} printable letters other than / and \\, and neither "
            f"{OFFSETS!r} nor {NAMES!r}. To rename a column, use "
            "columns={'other': 'column'}."
        )


def array_file(name: str) -> str:
    """The name of an array's file; what is no letter, digit, _ or - is written as in web addresses.

    Example:
      >>> array_file("pixels"), array_file("sepal length (cm)")
      ('pixels.npy', 'sepal%20length%20%28cm%29.npy')
    """
    if _PLAIN_NAME.fullmatch(name):
        return f"{name}.npy"
    words = urllib.parse.quote(name.encode("utf-8", "surrogatepass"), safe="")
    return words.replace(".", "%2E") + ".npy"


def check_client_name(name: Any) -> None:
    """Raises a clear error unless a client of a store can have this name.

    Raises:
      DataError: if it cannot.
    """
    if isinstance(name, int | np.integer) and not isinstance(name, bool):
        if not -(2**63) <= int(name) < 2**63:
            raise DataError(f"A client's number must fit into 64 bits, but one is {quoted(name)}.")
        return
    if not isinstance(name, str):
        raise DataError(
            f"A client's name must be text or a whole number, but one is {quoted(name)}."
        )
    if not name or len(name) > LONGEST_NAME or not name.isprintable():
        raise DataError(
            f"A client's name must be 1 to {LONGEST_NAME} printable letters, but one is "
            f"{quoted(name)}."
        )


def write_header(file: BinaryIO, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    """Writes a .npy header of `HEADER_BYTES` at the beginning of a file."""
    words = repr({
        "descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape
    }).encode()
    magic = np.lib.format.magic(1, 0)
    room = HEADER_BYTES - len(magic) - 2
    file.seek(0)
    file.write(magic + room.to_bytes(2, "little") + words.ljust(room - 1) + b"\n")


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file that is the old one or the new one."""
    new = path.with_suffix(".new")
    with new.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def sync_folder(folder: Path) -> None:
    """Makes a rename in a folder safe, where the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _entries(folder: Path, table: Mapping[str, Any]) -> dict[str, _Entry]:
    """What `store.json` says of each file, offsets and names last."""
    arrays = table.get("arrays")
    if not isinstance(arrays, Mapping) or not arrays:
        raise DataError(f"{folder / TABLE} names no arrays. Make the store again.")
    for name in arrays:
        try:
            check_array_name(name)
        except DataError as error:
            raise DataError(f"{folder / TABLE} is damaged: {error}") from None
    found = {}
    for name, said in (*arrays.items(), *((key, table.get(key)) for key in (OFFSETS, NAMES))):
        try:
            found[name] = _entry(said, ("U" if name == NAMES else "") + "biufc")
        except (TypeError, ValueError, KeyError, SyntaxError):
            raise DataError(
                f"{folder / TABLE} has an invalid entry for {name!r}: {quoted(said)}. Make the "
                "store again."
            ) from None
    if found[OFFSETS].shape != (found[NAMES].shape[0] + 1,) or found[OFFSETS].dtype != np.int64:
        raise DataError(
            f"{folder / TABLE} lists {found[NAMES].shape[0]} names and "
            f"{found[OFFSETS].shape[0]} offsets, which do not match. Make the store again."
        )
    return found


def _entry(said: Any, kinds: str) -> _Entry:
    """What `store.json` says of a file.

    Raises:
      ValueError, TypeError, KeyError: if the entry is invalid.
    """
    entry = _Entry(np.dtype(said["dtype"]), tuple(said["shape"]), said["sha256"])
    if not isinstance(entry.sha256, str) or entry.dtype.kind not in kinds:
        raise ValueError
    if not 1 <= len(entry.shape) <= _MOST_AXES or any(
        type(length) is not int or not 0 <= length < 2**48 for length in entry.shape
    ):
        raise ValueError
    return entry


def _size(entry: _Entry) -> int:
    return math.prod(entry.shape) * entry.dtype.itemsize


def most_maps() -> int:
    """How many arrays of a store are mapped: half of the files that this process may have open.

    A map keeps its file open. A store of more arrays is read into memory.
    """
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return sys.maxsize
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if most == resource.RLIM_INFINITY else most // 2


def _opened(folder: Path, name: str, entry: _Entry, *, maps: bool) -> np.ndarray:
    """An array of a store, whose header and size are as they were written."""
    path = folder / array_file(name)
    try:
        with _regular(path).open("rb") as file:
            shape, in_columns, dtype = read_header(file)
            begin = file.tell()
            size = file.seek(0, 2)
        if (shape, in_columns, dtype) != (entry.shape, False, entry.dtype):
            raise ValueError(
                f"it holds {dtype}{list(shape)}, but {TABLE} says {entry.dtype}{list(entry.shape)}"
            )
        if size != begin + _size(entry):
            raise ValueError(f"it has {size:,} bytes instead of {begin + _size(entry):,}")
        if not _size(entry):
            raise ValueError("it is empty")
        if not maps:
            count = math.prod(entry.shape)
            return np.fromfile(path, entry.dtype, count, offset=begin).reshape(entry.shape)
        return np.memmap(path, entry.dtype, "r", begin, entry.shape)
    except FileNotFoundError:
        raise DataError(
            f"The store {folder} lacks its file {path.name}. Make the store again."
        ) from None
    except (OSError, ValueError) as error:
        if has_too_many_files(error):
            raise DataError(
                f"Cannot open the store {folder}: each of its arrays is an open file, and this "
                "process cannot open more. Join columns in one array, as in "
                "columns={'x': ['a', 'b']}, or allow more open files (ulimit -n)."
            ) from None
        raise DataError(f"{path} is damaged: {_reason(error)}. Make the store again.") from None


def has_too_many_files(error: Exception) -> bool:
    """Whether it says that no more files can be opened."""
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)


def _regular(path: Path) -> Path:
    """The path, if a file is there; a link, a pipe or a device is not opened."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise ValueError("it is not a regular file")
    return path


def _reason(error: Exception) -> str:
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return text.split("\n")[0][:300].rstrip(".")
