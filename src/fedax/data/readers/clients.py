"""What all readers return, and their error messages for damaged files."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from fedax.data.errors import DataError
from fedax.outside.paths import expanded

# Column -> array [n_i, ...], or a list of text, of bytes or of arrays of unequal lengths.
Client: TypeAlias = tuple[str | int, Mapping[str, Any]]

# The one client of centralised data.
POOL = "pool"
_MOST_LETTERS = 300


class WiderKindError(Exception):
    """A column has a wider type than in earlier clients, so all must be read again.

    The reader remembers it.
    """


class Clients:
    """The clients of a file, one after the other; each iteration starts from the beginning.

    Consecutive items with the same name are parts of one client.

    Attributes:
      num_clients: the number of clients, if known before all are read.
    """

    def __init__(
        self,
        read: Callable[[int], Iterator[Client]],
        paths: Sequence[Path] = (),
        num_clients: int | None = None,
    ) -> None:
        """Takes a function that reads clients from a given index on."""
        self._read = read
        self._paths = paths
        self.num_clients = num_clients

    def __iter__(self) -> Iterator[Client]:
        return self._read(0)

    def after(self, count: int) -> Clients:
        """Without the first `count` clients."""
        return Clients(lambda start: self._read(start + count), self._paths, self.num_clients)

    def is_of(self, files: Any) -> bool:
        """Whether the files are the ones that `source` described.

        Compares names, sizes and dates. If a date differs, as for a copy, the file is read and
        compared by its SHA-256.
        """
        try:
            said = [(file["name"], file["bytes"]) for file in files]
            dates = [file["modified"] for file in files]
            digests = [file["sha256"] for file in files]
        except (TypeError, KeyError):
            return False
        found = [path.stat() for path in self._paths]
        if said != [
            (path.name, one.st_size) for path, one in zip(self._paths, found, strict=True)
        ]:
            return False
        return dates == [one.st_mtime_ns for one in found] or digests == [
            file["sha256"] for file in self.source["files"]
        ]

    @functools.cached_property
    def source(self) -> dict[str, Any]:
        """Names, sizes, dates and SHA-256 of the files, which are read in full.

        Raises:
          DataError: if one cannot be read.
        """
        return {"files": [_described(path) for path in self._paths]}


def regular_file(path: Path | str) -> Path:
    """The path of an existing regular file; pipes and devices are rejected.

    Raises:
      DataError: if there is none.
    """
    path = expanded(path)
    try:
        kind = path.stat().st_mode
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else error
        raise DataError(f"Cannot read {path}: {said}.") from None
    if not stat.S_ISREG(kind):
        raise DataError(f"Cannot read {path}: it is not a regular file.")
    return path


def file_of_folder(folder: Path, path: Path) -> Path:
    """The path of a file in a folder; links that leave the folder are rejected.

    Raises:
      DataError: if there is none.
    """
    regular_file(path)
    if not path.resolve().is_relative_to(folder.resolve()):
        raise DataError(
            f"Cannot read {path}: it is a link to {path.resolve()}, outside {folder}. Give the "
            "file itself, or copy it into the folder."
        )
    return path


@contextlib.contextmanager
def reading(path: Path | str, what: str, *errors: type[Exception]) -> Iterator[None]:
    """Turns exceptions from reading a file into `DataError`s.

    Args:
      path: the file.
      what: the expected kind of file, such as "an IDX file".
      errors: the exceptions that mean that it is not.

    Raises:
      DataError: for one of these exceptions, or an error of the operating system.
    """
    try:
        yield
    except DataError:
        raise
    except errors as error:
        raise DataError(f"{path} is damaged, or not {what}: {_reason(error)}.") from None
    except MemoryError:
        raise DataError(
            f"{path} is damaged, or not {what}: it needs more memory than is available."
        ) from None
    except OSError as error:
        raise DataError(f"Cannot read {path}: {_reason(error)}.") from None


def needed(module: str, extra: str, what: str) -> ModuleType:
    """Imports a module of an optional extra.

    Raises:
      DataError: if it is not installed. The message gives the install command.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        raise DataError(
            f"Reading {what} needs {module.partition('.')[0]}: pip install 'fedax[{extra}]'."
        ) from None


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not UTF-8 text; save it as UTF-8"
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    text = (text or type(error).__name__).strip().split("\n")[0].rstrip(".")
    return text if len(text) <= _MOST_LETTERS else text[:_MOST_LETTERS] + "..."


def _described(path: Path) -> dict[str, Any]:
    with reading(path, "a file"), path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        found = path.stat()
    return {
        "name": path.name, "bytes": found.st_size, "modified": found.st_mtime_ns,
        "sha256": digest.hexdigest(),
    }
