"""CIFAR-100 as lossless WebP sheets of 100 images of one class, in a tar archive."""

from __future__ import annotations

import io
import re
import struct
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from fedax.data.readers.clients import POOL, Client, Clients, reading, regular_file

_SIDE, _GRID = 32, 10
_NAME = re.compile(r"(\d\d)_\d\.webp")
# A sheet of noise has some 300 kB.
_MOST_BYTES = 2**20
_MOST_SHEETS = 1000
# Superclass of each class, both in alphabetical order (Krizhevsky, Learning Multiple Layers of
# Features from Tiny Images, 2009).
COARSE = np.array([
    4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11, 6, 11, 5, 10, 7, 6, 13, 15,
    3, 15, 0, 11, 1, 10, 12, 14, 16, 9, 11, 5, 5, 19, 8, 8, 15, 13, 14, 17, 18, 10, 16, 4, 17, 4,
    2, 0, 17, 4, 18, 17, 10, 3, 2, 12, 12, 16, 12, 1, 9, 19, 2, 10, 0, 1, 16, 12, 9, 13, 15, 13,
    16, 19, 2, 4, 6, 19, 5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14, 13,
], np.int32)
_ERRORS = (
    tarfile.TarError, EOFError, ValueError, LookupError, TypeError, AttributeError, OverflowError,
    RecursionError, SyntaxError, struct.error, zlib.error,
)


def read_webp_sheets(path: Path | str) -> Clients:
    """Reads an archive as a single client "pool": `x` [n, 32, 32, 3], `y` and `coarse` [n].

    Args:
      path: an uncompressed tar archive of files `CC_J.webp`: CC is the class, and each sheet of
        320 x 320 pixels shows 100 images in ten rows of ten.

    Raises:
      DataError: if the file does not exist or is malformed.
    """
    file = regular_file(path)

    def read(start: int) -> Iterator[Client]:
        return iter(()) if start else _read(file)

    return Clients(read, [file], 1)


def _read(path: Path) -> Iterator[Client]:
    seen: set[str] = set()
    with reading(path, "an archive of WebP sheets", *_ERRORS), tarfile.open(path, "r:") as tar:
        for member in tar:
            name = _NAME.fullmatch(member.name)
            if not name or not member.isreg() or not 0 < member.size <= _MOST_BYTES:
                raise ValueError(f"it has an entry {member.name[:80]!r} that is not a sheet")
            if member.name in seen:
                raise ValueError(f"it has {member.name} twice")
            if len(seen) == _MOST_SHEETS:
                raise ValueError(f"it has more than {_MOST_SHEETS:,} sheets")
            seen.add(member.name)
            x = _images(cast(BinaryIO, tar.extractfile(member)).read(), member.name)
            y = np.full(len(x), int(name[1]), np.int32)
            yield POOL, {"x": x, "y": y, "coarse": COARSE[y]}
        if not seen:
            raise ValueError("it is empty")


def _images(content: bytes, name: str) -> np.ndarray:
    from PIL import Image  # noqa: PLC0415 - matplotlib brings it; only these sheets need it

    try:
        with Image.open(io.BytesIO(content), formats=["WEBP"]) as sheet:
            if sheet.mode != "RGB" or sheet.size != (_SIDE * _GRID, _SIDE * _GRID):
                raise ValueError(f"{name} is {sheet.mode} of {sheet.size}, not RGB of 320 x 320")
            pixels = np.asarray(sheet)
    except OSError:  # what Pillow raises for a damaged image
        raise ValueError(f"{name} is not a whole WebP image") from None
    grid = pixels.reshape(_GRID, _SIDE, _GRID, _SIDE, 3).swapaxes(1, 2)
    return grid.reshape(_GRID * _GRID, _SIDE, _SIDE, 3)
