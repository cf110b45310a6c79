"""NumPy's archives that may be a stranger's: every size is checked before memory is taken."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedax.files.array_headers import read_header
from fedax.files.regular import open_file

Arrays = dict[str, np.ndarray]

# An archive may unpack to so many bytes, or to so many times its own size.
ALLOWED_BYTES, MOST_TIMES = 2**26, 20
MOST_AXES = 32
_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)



def packed(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The content of an `.npz`: compressed, unless `read_npz` would then refuse it.

    Example:
      >>> len(packed({"x": np.zeros(1000)})) < 1000 < len(packed({"x": np.zeros(10**7)}))
      True
    """
    stored: dict[str, Any] = dict(arrays)
    file = io.BytesIO()
    np.savez_compressed(file, **stored)
    with zipfile.ZipFile(file) as archive:
        if _unpacked(archive) <= _most(file.tell()):
            return file.getvalue()
    file = io.BytesIO()
    np.savez(file, **stored)
    return file.getvalue()


def read_npz(path: Path) -> Arrays:
    """Reads arrays of numbers and text from an `.npz` inside a folder, see `fedax.files.regular`.

    Raises:
      OSError: the file cannot be read.
      ValueError: it is damaged, holds something else, or unpacks to far more than its size, for
        which no memory was taken. The message is a phrase.
    """
    with open_file(path) as file:
        size = path.stat().st_size
        try:
            archive = zipfile.ZipFile(file)
        except Exception:  # zipfile has many ways to say that it is none
            raise ValueError("it is not a complete .npz file") from None
        with archive:
            unpacked = _unpacked(archive)
            if unpacked > _most(size):
                raise ValueError(
                    f"it unpacks to {unpacked:,} bytes, more than {MOST_TIMES} times its size"
                )
            return {
                member.filename.removesuffix(".npy"): _member(archive, member)
                for member in archive.infolist()
            }


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """An array of an archive."""
    name = member.filename[:40]
    if member.compress_type not in _PACKED or member.flag_bits & 1:
        raise ValueError(f"its member {name!r} uses an unsupported compression or is encrypted")
    try:
        with archive.open(member) as file:
            shape, fortran, dtype = read_header(file)
            count = math.prod(shape)
            plain = dtype.kind in "biufU" and dtype.itemsize and len(shape) <= MOST_AXES
            if not plain or min(shape, default=0) < 0:
                raise ValueError(f"its array {name!r} is neither of numbers nor of text")
            size = count * dtype.itemsize
            if file.tell() + size != member.file_size:
                raise ValueError(f"its array {name!r} has a different size from its header")
            content = bytearray(file.read())  # reads to the end, so that the checksum is compared
            if len(content) < size:
                raise ValueError(f"its array {name!r} ends too early")
            return np.ndarray(shape, dtype, content, order="F" if fortran else "C")
    except (OSError, ValueError):
        raise
    except Exception:  # as above, of a member: a bad checksum, a local header that differs
        raise ValueError(f"its array {name!r} is damaged") from None


def _unpacked(archive: zipfile.ZipFile) -> int:
    return sum(member.file_size for member in archive.infolist())


def _most(size: int) -> int:
    return max(ALLOWED_BYTES, MOST_TIMES * size)
