"""SQLite files as published by TensorFlow Federated: one serialized example per row."""

from __future__ import annotations

import contextlib
import itertools
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedax.data.budget import PART_BYTES
from fedax.data.errors import DataError
from fedax.data.readers.clients import Client, Clients, reading, regular_file
from fedax.data.readers.packed import unpack_lzma
from fedax.data.readers.tf_example import parse_example, size_of, stacked
from fedax.devices.temporary import temporary_folder
from fedax.validate import unknown

_MAGIC = b"SQLite format 3\0"
_COLUMNS = {
    "examples": ("split_name", "client_id", "serialized_example_proto"),
    "client_metadata": ("client_id", "split_name", "num_examples"),
}
_LARGEST_EXAMPLE = 2**26
_ERRORS = (sqlite3.Error, ValueError, OverflowError)


def read_sqlite(path: Path | str, split: str | None = None) -> Clients:
    """Reads the clients of a file such as `emnist_all.sqlite.lzma`, in the order of their names.

    Args:
      path: a file with the tables `examples(split_name, client_id, serialized_example_proto)` and
        `client_metadata(client_id, split_name, num_examples)`. A file that ends in .lzma or .xz is
        unpacked into the folder for temporary files (`TMPDIR`).
      split: the split to read, such as "train"; None: the only one.

    Raises:
      DataError: if the file or split does not exist; during reading, if it is malformed, or a
          client has a wrong number of examples.
    """
    path = regular_file(path)
    packed = path.suffix.lower() in (".lzma", ".xz")
    if packed:
        return Clients(lambda start: _unpacked(path, split, start), [path])
    _require_whole(path, path)
    with _opened(path) as database:
        chosen = _chosen(database, path, split)
        count = "SELECT COUNT(*) FROM client_metadata WHERE split_name = ?"
        with reading(path, "an SQLite file", *_ERRORS):
            (num_clients,) = database.execute(count, [chosen]).fetchone()
    return Clients(lambda start: _read(path, chosen, start), [path], num_clients)


def _unpacked(path: Path, split: str | None, start: int) -> Iterator[Client]:
    with temporary_folder() as folder:
        unpacked = folder / path.stem
        unpack_lzma(path, unpacked)
        _require_whole(unpacked, path)
        yield from _read(unpacked, split, start, path)


@contextlib.contextmanager
def _opened(path: Path, called: Path | None = None) -> Iterator[sqlite3.Connection]:
    """A database that is only read, and whose own definitions run no code."""
    called = called or path
    with reading(called, "an SQLite file", *_ERRORS), path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise DataError(
                f"{called} is not an SQLite file: it does not begin with the SQLite signature."
            )
    for ending in ("-wal", "-journal"):
        with contextlib.suppress(OSError):
            if os.path.getsize(f"{path}{ending}"):  # noqa: PTH202 - a name beside it
                raise DataError(
                    f"{path} is incomplete: {path.name}{ending} holds changes that were not "
                    "merged. Open and close it with sqlite3 first."
                )
    with reading(called, "an SQLite file", *_ERRORS):
        database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
    try:
        with reading(called, "an SQLite file", *_ERRORS):
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LARGEST_EXAMPLE)
            database.execute("PRAGMA trusted_schema = OFF")
            database.execute("PRAGMA cell_size_check = ON")
            database.execute("PRAGMA ignore_check_constraints = ON")
            for table, columns in _COLUMNS.items():
                _check_table(database, called, table, columns)
        yield database
    finally:
        database.close()


def _require_whole(path: Path, called: Path) -> None:
    """Raises a clear error if a page is in two places, which makes a large table of a few pages.

    After this every query takes time in proportion to the file.
    """
    with _opened(path, called) as database, reading(called, "an SQLite file", *_ERRORS):
        for table in _COLUMNS:
            (said,) = database.execute(f"PRAGMA quick_check({table})").fetchone()
            if said != "ok":
                lines = [line for line in str(said).splitlines() if not line.startswith("***")]
                raise ValueError(f"the table {table} is not whole ({' '.join(lines[:1])})")


def _check_table(
    database: sqlite3.Connection, path: Path, table: str, columns: tuple[str, ...]
) -> None:
    """Raises a clear error unless it is an ordinary table with these columns."""
    found = database.execute(
        "SELECT type, sql FROM sqlite_master WHERE name = ? COLLATE NOCASE", [table]
    ).fetchone()
    # As SQLite writes a table's definition, also where the type is forged.
    if found is None or found[0] != "table" or not str(found[1]).startswith("CREATE TABLE "):
        raise DataError(f"{path} has no table {table}.")
    # The last number of a column is 0 unless it is computed.
    there = {row[1]: row[6] for row in database.execute(f"PRAGMA table_xinfo({table})")}
    computed = [name for name, hidden in there.items() if hidden]
    if computed:
        raise DataError(
            f"{path}: the column {computed[0]!r} of the table {table} is computed, but fedax runs "
            "no code that a database defines."
        )
    for column in columns:
        if column not in there:
            raise DataError(
                f"{path}: the table {table} has no column {column!r}; it has "
                f"{', '.join(sorted(map(str, there))[:20])}."
            )


def _chosen(database: sqlite3.Connection, path: Path, split: str | None) -> str:
    """The split to read."""
    with reading(path, "an SQLite file", *_ERRORS):
        rows = database.execute("SELECT DISTINCT split_name FROM client_metadata").fetchall()
    splits = sorted(str(row[0]) for row in rows)
    if split is None and len(splits) != 1:
        raise DataError(
            f"{path} has the splits {', '.join(map(repr, splits[:20])) or 'none'}; choose one, as "
            "in split='train'."
        )
    if split is not None and split not in splits:
        raise DataError(f"{path}: {unknown('split', split, splits[:20])}")
    return splits[0] if split is None else split


def _read(
    path: Path, split: str | None, start: int, called: Path | None = None
) -> Iterator[Client]:
    called = called or path
    with _opened(path, called) as database, reading(called, "an SQLite file", *_ERRORS):
        chosen = _chosen(database, called, split)
        # Both in the order of bytes, one beside the other.
        expected = iter(database.execute(
            "SELECT client_id, num_examples FROM client_metadata WHERE split_name = ? "
            "ORDER BY client_id", [chosen],
        ))
        after = next(itertools.islice(expected, start - 1, start), None) if start else None
        rows = database.execute(
            "SELECT client_id, serialized_example_proto FROM examples WHERE split_name = ? "
            f"{'AND client_id > ?' if after else ''} ORDER BY client_id, rowid",
            [chosen, *([after[0]] if after else [])],
        )
        for client, own in itertools.groupby(rows, key=lambda row: row[0]):
            _check_name(called, client)
            name, promised = next(expected, (None, 0))
            while name is not None and name != client and promised == 0:
                _check_name(called, name)
                yield name, {}
                name, promised = next(expected, (None, 0))
            if name != client:
                raise DataError(
                    f"{called}: the table examples has the client {client!r} where the table "
                    f"client_metadata has {name!r}."
                )
            read = 0
            for columns, number in _parts(called, client, (row[1] for row in own)):
                read += number
                yield client, columns
            if read != promised:
                raise DataError(
                    f"{called}: client {client!r} has {read} examples, but the table "
                    f"client_metadata says {promised!r}."
                )
        for name, promised in expected:
            if promised != 0:
                raise DataError(f"{called}: client {name!r} has no examples.")
            _check_name(called, name)
            yield name, {}


def _check_name(path: Path, client: Any) -> None:
    if not isinstance(client, str):
        raise DataError(f"{path}: a client's name must be text, but one is {client!r:.100}.")


def _parts(
    path: Path, client: str, messages: Iterator[Any]
) -> Iterator[tuple[dict[str, Any], int]]:
    """A client's columns, and how many examples they have; of a large client in parts."""
    examples, size, known, first = [], 0, 0, 0
    held = 0  # in memory, by the examples up to `known`; packed numbers become eight times as large
    for number, message in enumerate(messages):
        if not isinstance(message, bytes):
            raise DataError(
                f"{path}: example {number} of client {client!r} is not a serialized message."
            )
        try:
            examples.append(parse_example(message))
        except ValueError as error:
            raise DataError(
                f"{path}: example {number} of client {client!r} is not a tf.train.Example: {error}."
            ) from None
        size += len(message)
        if 8 * size > 4 * PART_BYTES:
            held += sum(map(size_of, examples[known:]))
            known = len(examples)
        if max(size, held) > 4 * PART_BYTES:
            yield _columns(path, client, examples, first), len(examples)
            examples, size, known, held, first = [], 0, 0, 0, number + 1
    if examples:
        yield _columns(path, client, examples, first), len(examples)


def _columns(
    path: Path, client: str, examples: list[dict[str, Any]], first: int
) -> dict[str, Any]:
    try:
        return stacked(examples)
    except ValueError as error:
        raise DataError(
            f"{path}, client {client!r}, counted from example {first}: {error}."
        ) from None
