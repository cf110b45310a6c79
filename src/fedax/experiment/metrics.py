"""The metrics of a run in its folder: a line of JSON a round, and the digest that vouches for them.

A checkpoint has the digest of the lines up to its round, so that a resume notices a changed digit.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from fedax.experiment.folder import RunError, read_summary, to_json
from fedax.files.regular import read_file, write_atomically
from fedax.rounds.history import History

METRICS = "metrics.jsonl"
# As a table of rounds and metrics it may have so many cells, or so many times its numbers: most
# metrics are measured in some rounds only.
ALLOWED_CELLS, MOST_EMPTY = 2**20, 64


class Prefix(NamedTuple):
    """The beginning of metrics.jsonl, up to a checkpoint's round.

    Attributes:
      num_bytes: how long it is.
      sha256: its digest, in hexadecimal digits.
    """

    num_bytes: int
    sha256: str


class MetricsLog:
    """metrics.jsonl, from which the rounds after a checkpoint are removed, open at its end.

    Args:
      folder: the run's.
      done: the rounds that the checkpoint has; the others are run again.

    Raises:
      RunError: if it has fewer complete lines.
      OSError: if it cannot be written.
    """

    def __init__(self, folder: Path, done: int) -> None:
        self._path = folder / METRICS
        lines = whole_lines(folder)
        if len(lines) < done:
            raise RunError(_lost(folder, len(lines), done))
        kept = b"".join(line for line, _ in lines[:done])
        write_atomically(self._path, kept)
        self._hash, self._size = hashlib.sha256(kept), len(kept)
        # Without a buffer, as closing it on a full disk would fail once more.
        self._file = self._path.open("ab", buffering=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    @property
    def prefix(self) -> Prefix:
        """What was written so far."""
        return Prefix(self._size, self._hash.hexdigest())

    def write(self, metrics: Mapping[str, Any]) -> None:
        """Adds a round."""
        line = (to_json(metrics) + "\n").encode()
        written = 0
        while written < len(line):
            written += self._file.write(line[written:])
        self._hash.update(line)
        self._size += len(line)

    def flush(self) -> None:
        """Makes sure that what was written is on the disk, and is where it is looked for.

        Raises:
          RunError: if the file was deleted or replaced.
          OSError: if the disk failed, or the folder is gone.
        """
        os.fsync(self._file.fileno())
        if not self._path.parent.exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self._path))
        own = os.fstat(self._file.fileno())
        if not (self._path.exists() and os.path.samestat(own, self._path.stat())):
            raise RunError(
                f"{self._path} was deleted or replaced while the run was writing to it, and lacks "
                "the rounds since then. Resume the run: it continues from the newest checkpoint "
                "whose rounds are in the file."
            )


def whole_lines(folder: Path) -> list[tuple[bytes, dict[str, Any]]]:
    """The lines of metrics.jsonl and what they say, up to one that was cut off or is none of ours.

    Raises:
      RunError: if it cannot be read, or would be far larger as a table.
    """
    return _whole(_content(folder), folder)


def _whole(content: bytes, folder: Path) -> list[tuple[bytes, dict[str, Any]]]:
    lines: list[tuple[bytes, dict[str, Any]]] = []
    names: set[str] = set()
    numbers = 0
    for line in content.splitlines(keepends=True):
        try:
            metrics = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not (_is_round(metrics, len(lines) + 1) and line.endswith(b"\n")):
            break
        lines.append((line, metrics))
        names.update(metrics)
        numbers += len(metrics)
    cells = len(names) * len(lines)
    if cells > max(ALLOWED_CELLS, MOST_EMPTY * numbers):
        raise RunError(
            f"{folder / METRICS} was not written by a run: it has {len(names):,} metrics, which as "
            f"a table would take {cells:,} cells for {numbers:,} numbers."
        )
    return lines


def _is_round(metrics: Any, number: int) -> bool:
    """Whether a line says what a round does: its number, numbers and the rejected clients."""
    if not isinstance(metrics, dict) or metrics.get("round") != number:
        return False
    rejected = metrics.get("rejected", [])
    return isinstance(rejected, list) and all(isinstance(name, str) for name in rejected) and all(
        value is None or isinstance(value, float) or _is_whole(value)
        for name, value in metrics.items() if name != "rejected"
    )


def _is_whole(value: Any) -> bool:
    """Whether it is a whole number, of at most what a float can be, as those of a run are."""
    return isinstance(value, int) and abs(value) < sys.float_info.max


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The rounds in metrics.jsonl, see `whole_lines`."""
    return [metrics for _, metrics in whole_lines(folder)]


def read_rounds(folder: Path) -> list[dict[str, Any]]:
    """The rounds in metrics.jsonl, for whoever reads results: all that the run had.

    A line that is being written has no end yet, and may be there.

    Raises:
      RunError: if a line is none, or a finished run had more rounds.
    """
    finished = (read_summary(folder) or {}).get("rounds", 0)  # before the rounds, as a run goes on
    content = _content(folder)
    rounds = [metrics for _, metrics in _whole(content, folder)]
    done, lines = len(rounds), content.count(b"\n")
    is_short = isinstance(finished, int) and finished > done
    if is_short or lines > done:
        raise RunError(
            f"{folder / METRICS} is damaged: " + (
                f"line {done + 1:,} is not what a run writes" if lines > done else
                f"it ends after line {done:,}"
            ) + f", but the run finished with {finished:,} rounds" * is_short +
            ". Restore the file from a copy, or resume the run, which trains the lost rounds again "
            "if a checkpoint before them is left."
        )
    return rounds


def read_history(folder: Path) -> History:
    """The numbers in metrics.jsonl, see `read_rounds`."""
    return as_history(read_rounds(folder))


def as_history(rounds: Iterable[Mapping[str, Any]]) -> History:
    """The numbers of rounds; what JSON has no word for, and so is null there, is NaN."""
    return History([
        {name: math.nan if value is None else value for name, value in metrics.items()
         if not isinstance(value, list)}  # the names of rejected clients
        for metrics in rounds
    ])


def wrong_with_metrics(folder: Path, done: int, prefix: Prefix | None) -> str | None:
    """A sentence if metrics.jsonl is not what a checkpoint says; None if it is.

    Args:
      folder: the run's.
      done: the checkpoint's round.
      prefix: what it says; older ones say nothing.
    """
    lines = whole_lines(folder)
    if len(lines) < done:
        return _lost(folder, len(lines), done)
    content = b"".join(line for line, _ in lines[:done])
    if prefix is not None and prefix != Prefix(len(content), hashlib.sha256(content).hexdigest()):
        return (
            f"{folder / METRICS} was changed: its first {done} lines differ from those written "
            f"before the checkpoint of round {done}."
        )
    return None


def _lost(folder: Path, count: int, done: int) -> str:
    return (
        f"{folder / METRICS} was changed or lost: it has {count} complete lines, but the "
        f"checkpoint is of round {done}."
    )


def _content(folder: Path) -> bytes:
    try:
        return read_file(folder / METRICS)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise RunError(f"Cannot read {folder / METRICS}: {error.strerror}.") from None
