"""IDX, the format of MNIST, optionally compressed with gzip."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fedax.data.budget import require_modest, rows_at_a_time
from fedax.data.errors import DataError
from fedax.data.readers.clients import POOL, Client, Clients, reading, regular_file

_DTYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
_ERRORS = (EOFError, zlib.error, gzip.BadGzipFile, ValueError)


def read_idx(images: Path | str, labels: Path | str) -> Clients:
    """Reads images and labels as a single client "pool": `x` [n, height, width, 1] and `y` [n].

    Args:
      images: such as `train-images-idx3-ubyte` or `train-images-idx3-ubyte.gz`.
      labels: such as `train-labels-idx1-ubyte`, one for each image.

    Raises:
      DataError: if a file does not exist or is malformed.
    """
    paths = [regular_file(images), regular_file(labels)]

    def read(start: int) -> Iterator[Client]:
        return iter(()) if start else _read(*paths)

    with ExitStack() as stack:
        shapes = [opened(stack, path)[1] for path in paths]
    if len(shapes[0]) < 2 or len(shapes[1]) != 1 or shapes[0][0] != shapes[1][0]:
        raise DataError(
            f"{paths[0]} has shape {list(shapes[0])} and {paths[1]} {list(shapes[1])}; they must "
            "be images [n, height, width] and labels [n]."
        )
    return Clients(read, paths, 1)


def _read(images: Path, labels: Path) -> Iterator[Client]:
    with ExitStack() as stack:
        pixels, shape, kind = opened(stack, images)
        classes, _, class_kind = opened(stack, labels)
        size = math.prod(shape[1:]) * kind.itemsize
        step = rows_at_a_time(size)
        for row in range(0, shape[0], step):
            count = min(step, shape[0] - row)
            x = np.frombuffer(_exactly(pixels, count * size, images), kind)
            y = np.frombuffer(_exactly(classes, count * class_kind.itemsize, labels), class_kind)
            x = x.reshape(count, *shape[1:], *([1] if len(shape) == 3 else []))
            _require_whole(labels, row, y)
            yield POOL, {"x": x.astype(kind.newbyteorder("=")), "y": y.astype(np.int32)}
        for file, path in ((pixels, images), (classes, labels)):
            with reading(path, "an IDX file", *_ERRORS):
                if file.read(1):
                    raise ValueError("it has bytes after its end")


def _require_whole(path: Path, row: int, labels: np.ndarray) -> None:
    """Raises a clear error unless every label, floating point or not, is a whole number."""
    whole = np.isfinite(labels) & (np.abs(np.nan_to_num(labels)) < 2.0**31)
    whole[whole] = labels[whole] == np.trunc(labels[whole])
    if not whole.all():
        example = int(np.argmin(whole))
        raise DataError(
            f"{path}: the label of example {row + example} is {labels[example]}, but labels must "
            "be whole numbers."
        )


def opened(stack: ExitStack, path: Path) -> tuple[BinaryIO, tuple[int, ...], np.dtype]:
    """A file behind its header, the shape and the dtype that it says.

    Args:
      stack: closes the file.
      path: of the file, compressed with gzip or not.

    Raises:
      DataError: if it is malformed.
    """
    with reading(path, "an IDX file", *_ERRORS):
        file: Any = stack.enter_context(path.open("rb"))
        is_packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        if is_packed:
            file = stack.enter_context(gzip.GzipFile(fileobj=file))
        head = file.read(4)
        if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in _DTYPES or not 1 <= head[3] <= 4:
            raise ValueError(f"it begins with the magic number {head.hex() or 'none'}")
        kind = np.dtype(_DTYPES[head[2]])
        shape = tuple(
            int.from_bytes(_exactly(file, 4, path), "big") for _ in range(head[3])
        )
        size = math.prod(shape) * kind.itemsize
        there = path.stat().st_size
        if is_packed:
            require_modest(path, there, size)
        if not size or (size + 4 + 4 * head[3] != there and not is_packed):
            raise ValueError(f"its header says {list(shape)}, {size:,} bytes, but it has {there:,}")
    return file, shape, kind


def _exactly(file: BinaryIO, count: int, path: Path) -> bytes:
    with reading(path, "an IDX file", *_ERRORS):
        content = file.read(count)
        if len(content) < count:
            raise EOFError("it ends too early")
    return content
