"""Published files, and whether a file is one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from fedax.data.errors import DataError

# Called with what is done, how much of it is done, and how much there is (0: not known).
Progress: TypeAlias = Callable[[str, int, int], object]
PIECE_BYTES = 2**20


class Published(NamedTuple):
    """A file as it was published.

    Attributes:
      name: what it is called.
      sha256: of its bytes; empty: none is known, see `md5`.
      num_bytes: its size; None where it is not known.
      urls: where it is available, the best first.
      unpacked_bytes: of an archive, what its files come to at most.
      md5: of its bytes, where only this is known.
    """

    name: str
    sha256: str
    num_bytes: int | None = None
    urls: tuple[str, ...] = ()
    unpacked_bytes: int = 0
    md5: str = ""


def nothing(what: str, done: int, total: int) -> None:
    """Progress that nobody sees."""


def sha256_of(path: Path, progress: Progress = nothing) -> str:
    """The SHA-256 of a file; raises a `DataError` if it cannot be read."""
    return _digest_of(path, hashlib.sha256(), progress)


def _digest_of(path: Path, digest: Any, progress: Progress) -> str:
    """A digest of a file.

    Raises:
      DataError: it cannot be read.
    """
    done = 0
    try:
        total = path.stat().st_size
        with path.open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                digest.update(piece)
                done += len(piece)
                progress(f"checking {path.name}", done, total)
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror}.") from None
    return digest.hexdigest()


def require_published(
    path: Path, published: Published, origin: str, progress: Progress = nothing
) -> None:
    """Raises a clear error unless a file has the bytes that were published under its name.

    Args:
      path: the file.
      published: what it should be.
      origin: where it came from, for the sentence.
      progress: of reading it.

    Raises:
      DataError: it is cut off, altered, or something else.
    """
    size = path.stat().st_size
    if published.num_bytes is not None and size != published.num_bytes:
        how = "cut off" if size < published.num_bytes else "altered"
        raise DataError(
            f"{published.name} from {origin} has {size:,} bytes, but {published.num_bytes:,} were "
            f"published: it is {how}, or a different file. It was not used."
        )
    kind, known = ("SHA-256", published.sha256) if published.sha256 else ("MD5", published.md5)
    made = hashlib.sha256() if published.sha256 else hashlib.md5(usedforsecurity=False)
    found = _digest_of(path, made, progress)
    if found != known:
        raise DataError(
            f"{published.name} from {origin} is not the file that was published: its {kind} "
            f"begins {found[:16]}, but should begin {known[:16]}. It is damaged or "
            "modified, and was not used."
        )
