"""Unpacks single files that are compressed with LZMA or xz, within limits."""

from __future__ import annotations

import lzma
import shutil
from pathlib import Path

from fedax.data.budget import require_modest
from fedax.data.errors import DataError
from fedax.data.readers.clients import reading

# What xz's strongest setting needs to unpack is 65 MiB.
_MEMORY = 2**29


def unpack_lzma(path: Path, to: Path) -> None:
    """Unpacks a file.

    Args:
      path: a file that ends in .lzma or .xz.
      to: where to; another file there is overwritten.

    Raises:
      DataError: if it is damaged, becomes far larger than data do, or the disk is too small.
    """
    size, free = path.stat().st_size, shutil.disk_usage(to.parent).free
    unpacker = lzma.LZMADecompressor(memlimit=_MEMORY)
    written = 0
    with (
        reading(path, "a file compressed with LZMA", lzma.LZMAError, EOFError, ValueError),
        path.open("rb") as source, to.open("wb") as target,
    ):
        while not unpacker.eof:
            content = source.read(2**20) if unpacker.needs_input else b""
            if not content and unpacker.needs_input:
                raise ValueError("it ends too early")
            piece = unpacker.decompress(content, 2**24)
            written += len(piece)
            require_modest(path, size, written)
            if written > free:
                raise DataError(
                    f"{path} unpacks to more than the {free:,} bytes that are free in {to.parent}. "
                    "Set TMPDIR to a folder on a larger disk."
                )
            target.write(piece)
