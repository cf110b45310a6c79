"""Encoded images in Arrow columns, which may be untrusted."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedax.data.budget import ALLOWED_BYTES, MOST_TIMES
from fedax.data.images import ColourError

# Of Pillow's formats those that data come in; others run programs, or open further files.
_FORMATS = ("PNG", "JPEG", "WEBP", "TIFF", "BMP", "GIF", "PPM")


def require_own_images(column: Any, name: str) -> None:
    """Raises a clear error if a column holds paths of image files instead of images.

    Args:
      column: of an Arrow table.
      name: the column's.

    Raises:
      ValueError: if it holds a path; the file is not opened.
    """
    import pyarrow as arrow  # noqa: PLC0415 - there if a table of Arrow's is

    types = arrow.types
    for chunk in column.chunks:
        while types.is_list(chunk.type) or types.is_large_list(chunk.type) or (
            types.is_fixed_size_list(chunk.type)
        ):
            chunk = chunk.flatten()  # noqa: PLW2901 - the images of a list of images
        if is_image(chunk.type) and chunk.field("bytes").null_count:
            place = chunk.field("bytes").is_null().to_pylist().index(True)
            path = chunk.field("path")[place].as_py()
            raise ValueError(
                f"The column {name!r} does not hold the image in the file {path!r:.200}, and fedax "
                "does not open files named in data. Save the images in the column, as "
                "datasets.Dataset.save_to_disk does."
            )


def is_image(kind: Any) -> bool:
    """Whether a type of Arrow's is that of encoded images, as `datasets` has it."""
    import pyarrow as arrow  # noqa: PLC0415 - likewise

    return arrow.types.is_struct(kind) and {"bytes", "path"} == {field.name for field in kind}


def most_bytes(packed: int, count: int) -> int:
    """The largest decoded size of each image, from their number and total bytes."""
    return (MOST_TIMES * packed + ALLOWED_BYTES) // max(1, count)


@contextlib.contextmanager
def opened_image(
    content: bytes | None, path: str | None, name: str, row: int, most: int
) -> Iterator[Any]:
    """An encoded image, which is decoded in the block.

    Args:
      content: the image; None: it is in the file at `path` (only for the user's own data).
      path: see there.
      name: the column's, for sentences.
      row: likewise.
      most: the largest decoded size in bytes.

    Raises:
      ValueError: if it is not an image, too large, or in a colour mode that fedax does not read.
    """
    from PIL import Image  # noqa: PLC0415 - comes with Matplotlib; few data sets need it

    try:
        source: Any = path if content is None else io.BytesIO(content)
        if content is None and (path is None or not Path(path).is_file()):
            raise ValueError(f"there is no file {path}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # `most` is the limit
            image = Image.open(source, formats=_FORMATS)
        with image:
            width, height = image.size
            wide = image.mode in {"I", "F", "P", "PA"}  # four bytes a pixel, or four channels
            size = width * height * max(len(image.getbands()), 4 * wide)
            if size > most:
                raise ValueError(
                    f"it is an image of {width:,} x {height:,}, too large for its bytes"
                )
            yield image
    except MemoryError:
        raise
    except ColourError as error:
        raise ValueError(f"The image of the column {name!r} in row {row} {error}") from None
    except Exception as error:  # each of Pillow's decoders has its own errors
        said = "it is not an image that Pillow reads" if isinstance(
            error, Image.UnidentifiedImageError
        ) else str(error) or type(error).__name__
        raise ValueError(
            f"The column {name!r} holds a damaged image in row {row}: {said.rstrip('.'):.200}."
        ) from None
