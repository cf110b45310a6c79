"""Extracts wanted files from archives, flat and within size limits."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import struct
import tarfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO, cast

from fedax.data.downloads.files import PIECE_BYTES, Progress, nothing
from fedax.data.errors import DataError

_DEBIAN = b"!<arch>\n"
_ENTRY_BYTES = 60
# What headers and the end may take beside the files; tar writes blocks of 10 kB.
_HEADERS = 2**24
_BROKEN = (
    tarfile.TarError, EOFError, OSError, lzma.LZMAError, zlib.error, ValueError, struct.error,
    # what tarfile makes of headers that nobody would write
    LookupError, TypeError, AttributeError, OverflowError, RecursionError, MemoryError,
)


def unpack(
    archive: Path,
    wanted: Collection[str],
    folder: Path,
    most_bytes: int,
    progress: Progress = nothing,
) -> list[Path]:
    """Takes files out of a tar archive, compressed or not, or out of a Debian package.

    Only regular files are taken whose name, without folders, is wanted; they come to lie side by
    side. So no path leads out of the folder, and no link is made.

    Args:
      archive: the file.
      wanted: names of files.
      folder: where to; none of them is in it.
      most_bytes: what all that the archive holds may come to.
      progress: of unpacking, in bytes.

    Returns:
      What was taken.

    Raises:
      DataError: it is no such archive, is cut off, holds a name twice or too much.
      OSError: the disk failed.
    """
    found: list[Path] = []
    total = done = 0
    try:
        with archive.open("rb") as file, tar_stream(file, archive, most_bytes) as tar:
            for member in tar:
                total += member.size
                if member.size < 0 or total > most_bytes:
                    raise _too_much(archive, most_bytes)
                name = member.name.rpartition("/")[2]
                if name not in wanted or not member.isreg():
                    continue
                path = folder / name
                if path in found:
                    raise DataError(
                        f"{archive} contains {name} twice, so it is not the expected archive."
                    )
                content = cast(BinaryIO, tar.extractfile(member))
                found.append(path)
                with _Output(path) as out:
                    while piece := content.read(PIECE_BYTES):
                        out.write(piece)
                        done += len(piece)
                        progress(f"unpacking {name}", done, 0)
    except BaseException as error:
        for path in found:
            path.unlink(missing_ok=True)
        if isinstance(error, _DiskError):
            raise error.error from None
        if isinstance(error, _BROKEN) and not isinstance(error, DataError):
            raise DataError(
                f"{archive} is damaged, or not an archive: {str(error).rstrip('.') or 'cut off'}."
            ) from None
        raise
    return found


@contextlib.contextmanager
def tar_stream(file: BinaryIO, archive: Path, most_bytes: int) -> Iterator[tarfile.TarFile]:
    """A tar archive, compressed or not, whose entries can be read once, in their order.

    Args:
      file: the archive, opened.
      archive: its path, for sentences.
      most_bytes: what all that it holds may come to.

    Raises:
      DataError: when read, if it holds more. Other errors are those of `tarfile`.
    """
    stream = _Limited(_decompressed(file), most_bytes + _HEADERS, archive, most_bytes)
    with tarfile.open(fileobj=cast(BinaryIO, stream), mode="r|") as tar:
        yield tar
    # To the end, where checksums stand.
    while stream.read(PIECE_BYTES):
        pass


def _too_much(archive: Path, most_bytes: int) -> DataError:
    return DataError(
        f"{archive} unpacks to more than {most_bytes:,} bytes, so it is not the expected archive. "
        "Nothing was extracted."
    )


class _DiskError(Exception):
    """The disk failed, which is not the archive's fault."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


class _Output:
    """A file whose failures are told from those of the archive."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = path.open("xb")
        except OSError as error:
            raise _DiskError(error) from None

    def __enter__(self) -> _Output:
        return self

    def write(self, piece: bytes) -> None:
        try:
            self._file.write(piece)
        except OSError as error:
            raise _DiskError(error) from None

    def __exit__(self, *error: object) -> None:
        try:
            self._file.close()
        except OSError as failure:
            raise _DiskError(failure) from None


class _Limited:
    """A stream with a limit on its bytes; tarfile reads long names and notes whole."""

    def __init__(self, stream: BinaryIO, left: int, archive: Path, most_bytes: int) -> None:
        self._stream, self._left = stream, left
        self._error = _too_much(archive, most_bytes)

    def read(self, size: int) -> bytes:
        piece = self._stream.read(size)
        self._left -= len(piece)
        if self._left < 0:
            raise self._error
        return piece


class _Part:
    """A part of a file as a stream, which is all that tarfile asks for."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._left = file, size

    def read(self, size: int = -1) -> bytes:
        piece = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(piece)
        return piece


def _decompressed(file: BinaryIO) -> BinaryIO:
    """The tar archive in a file; of a Debian package, its data."""
    begin = file.read(len(_DEBIAN))
    file.seek(0)
    if begin == _DEBIAN:
        file.seek(len(_DEBIAN))
        part, name = _data_of_package(file)
        packed = {"data.tar": None, "data.tar.gz": gzip, "data.tar.xz": lzma}
        if name not in packed:
            raise ValueError(f"it holds {name}, which fedax does not unpack")
        module = packed[name]
        return cast(BinaryIO, part if module is None else module.open(cast(BinaryIO, part), "rb"))
    for magic, module in ((b"\x1f\x8b", gzip), (b"BZh", bz2), (b"\xfd7zXZ", lzma)):
        if begin.startswith(magic):
            return cast(BinaryIO, module.open(file, "rb"))
    return file


def _data_of_package(file: BinaryIO) -> tuple[_Part, str]:
    """The archive `data.tar.*` in a Debian package (an `ar` archive), as a stream; its name."""
    while entry := file.read(_ENTRY_BYTES):
        name, digits = entry[:16].decode("ascii", "replace").strip(" /"), entry[48:58].strip()
        if not digits.isdigit():
            raise ValueError("it has an entry without a size")
        size = int(digits)
        if name.startswith("data.tar"):
            return _Part(file, size), name
        file.seek(size + size % 2, 1)
    raise ValueError("it has no data.tar")
