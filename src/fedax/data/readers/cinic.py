"""CINIC-10 as published: a tar archive of PNG images, `PART/CLASS/NAME.png`."""

from __future__ import annotations

import io
import lzma
import struct
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from fedax.data.budget import rows_at_a_time
from fedax.data.downloads.archives import tar_stream
from fedax.data.readers.clients import POOL, Client, Clients, reading, regular_file

CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)
_SIDE = 32
# 32 x 32 pixels of noise are 3 kB; of the whole archive with its headers, published some 0.8 GB.
_MOST_BYTES, _MOST_OF_ALL = 2**16, 2 * 10**9
_ERRORS = (
    tarfile.TarError, EOFError, ValueError, LookupError, TypeError, AttributeError, OverflowError,
    RecursionError, SyntaxError, struct.error, zlib.error, lzma.LZMAError,
)


def read_cinic(path: Path | str, part: str) -> Clients:
    """Reads a part as a single client "pool": `x` [n, 32, 32, 3] and `y` [n], in the file's order.

    The archive is read as a stream: nothing is unpacked on the disk.

    Args:
      path: such as `CINIC-10.tar.gz`.
      part: "train", "valid" or "test".

    Raises:
      DataError: if the file does not exist or is malformed.
    """
    file = regular_file(path)

    def read(start: int) -> Iterator[Client]:
        return iter(()) if start else _read(file, part)

    return Clients(read, [file], 1)


def _read(path: Path, part: str) -> Iterator[Client]:
    images: list[np.ndarray] = []
    labels: list[int] = []
    most = rows_at_a_time(3 * _SIDE * _SIDE)
    with reading(path, "an archive of CINIC-10", *_ERRORS), path.open("rb") as file, tar_stream(
        file, path, _MOST_OF_ALL
    ) as tar:
        for member in tar:
            *_, of, label, name = ("", "", "", *member.name.split("/"))
            if of != part or not member.isreg() or not name.endswith(".png"):
                continue
            if label not in CLASSES or not 0 < member.size <= _MOST_BYTES:
                raise ValueError(f"it has an entry {member.name[:80]!r} that is not an image")
            images.append(_image(cast(BinaryIO, tar.extractfile(member)).read(), member.name))
            labels.append(CLASSES.index(label))
            if len(images) == most:
                yield POOL, {"x": np.stack(images), "y": np.array(labels, np.int32)}
                images, labels = [], []
        if images:
            yield POOL, {"x": np.stack(images), "y": np.array(labels, np.int32)}


def _image(content: bytes, name: str) -> np.ndarray:
    from PIL import Image  # noqa: PLC0415 - matplotlib brings it; few data sets need it

    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
            if image.size != (_SIDE, _SIDE):
                raise ValueError(f"{name[:80]} has {image.size} pixels, not 32 x 32")
            return np.asarray(image.convert("RGB"))  # some are grey
    except OSError:  # what Pillow raises for a damaged image
        raise ValueError(f"{name[:80]} is not a whole PNG image") from None
