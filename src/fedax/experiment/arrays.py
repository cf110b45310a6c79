"""The arrays of a checkpoint as files: NumPy's own formats, of bytes, and never larger than told.

As bytes, because NumPy's format does not know bfloat16, and the manifest knows every dtype.
"""

from __future__ import annotations

import contextlib
import math
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedax.experiment.manifest import ROWS, STATE, Declared, file_of
from fedax.files.array_headers import read_header
from fedax.files.npz import Arrays
from fedax.files.regular import open_file
from fedax.rounds.client_store import row_blocks


def write_arrays(folder: Path, arrays: Arrays) -> None:
    """Writes the clients' rows a block at a time, and all other arrays.

    Raises:
      OSError: if the disk is full or not writable.
    """
    rows = {name: array for name, array in arrays.items() if name.startswith(ROWS)}
    stored: dict[str, Any] = {
        name: array.reshape(-1).view(np.uint8) for name, array in arrays.items()
        if name not in rows
    }
    with (folder / STATE).open("xb") as file:
        np.savez(file, **stored)
        file.flush()
        os.fsync(file.fileno())
    _write_rows(folder, rows)


def read_arrays(folder: Path, declared: Mapping[str, Declared]) -> Arrays:
    """Reads what `write_arrays` wrote; the clients' rows are mapped, not read.

    Args:
      folder: the checkpoint.
      declared: what it holds.

    Raises:
      ValueError: if a file does not match these shapes and dtypes; no memory is used
        for it. The message is a phrase.
      OSError: if a file cannot be read.
    """
    in_state = {name: what for name, what in declared.items() if file_of(name) == STATE}
    arrays = _read_state(folder / STATE, in_state)
    for name, what in declared.items():
        if name not in arrays:
            arrays[name] = _mapped(folder / file_of(name), what)
    return {name: arrays[name].view(what.dtype).reshape(what.shape)
            for name, what in declared.items()}


def _write_rows(folder: Path, rows: Arrays) -> None:
    """Writes the clients' rows as bytes, each leaf in a file, all files a block at a time."""
    with contextlib.ExitStack() as stack:
        files = {name: stack.enter_context((folder / file_of(name)).open("xb")) for name in rows}
        for name, leaf in rows.items():
            shape = (len(leaf), math.prod(leaf.shape[1:]) * leaf.itemsize)
            header = {"descr": "|u1", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(files[name], header)
        for block in row_blocks(list(rows.values())):
            for name, leaf in rows.items():
                files[name].write(leaf[block].tobytes())
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())


def _read_state(path: Path, declared: Mapping[str, Declared]) -> Arrays:
    """The arrays in an archive, as bytes."""
    arrays = {}
    try:
        with open_file(path) as file, zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            if sum(member.file_size for member in members) > path.stat().st_size:
                raise ValueError("it says that it holds more than it has")
            for name, what in declared.items():
                with archive.open(f"{name}.npy") as stored:
                    size = archive.getinfo(f"{name}.npy").file_size
                    _require_header(stored, (what.nbytes,), size)
                    content = stored.read(what.nbytes)
                    if len(content) < what.nbytes:
                        raise ValueError("it is truncated")
                    arrays[name] = np.frombuffer(content, np.uint8)
    except (OSError, MemoryError):
        raise
    except ValueError as error:
        raise ValueError(f"its file {path.name} cannot be read: {error}") from None
    except Exception:  # zipfile has many ways to say that it is none
        raise ValueError(f"its file {path.name} is not a whole archive of arrays") from None
    return arrays


def _mapped(path: Path, what: Declared) -> np.ndarray:
    """A client's rows, mapped from the disk, as bytes."""
    count = what.shape[0] if what.shape else 0
    shape = (count, math.prod(what.shape[1:]) * what.dtype.itemsize)
    with open_file(path) as file:
        try:
            _require_header(file, shape, os.fstat(file.fileno()).st_size)
        except ValueError as error:
            raise ValueError(f"its file {path.name} cannot be read: {error}") from None
        return np.memmap(file, np.uint8, "r", file.tell(), shape)


def _require_header(file: IO[bytes], shape: tuple[int, ...], size: int) -> None:
    """Raises a ValueError unless an array of these bytes comes next, and ends the file."""
    found, fortran, dtype = read_header(file)
    if (found, fortran, dtype) != (shape, False, np.dtype(np.uint8)):
        raise ValueError(f"it holds {dtype}{list(found)} and not {math.prod(shape)} bytes")
    if size - file.tell() != math.prod(shape):
        raise ValueError("its size is another")
