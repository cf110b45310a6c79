"""From rows in any order to clients: in two passes, with a client's rows put together on the disk.

The first pass reads whose each row is. If clients' rows stand side by side, the second only cuts
them. Otherwise it deals them to temporary files, each of which holds a few clients and fits into
memory, where they are put in order.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fedax.data.budget import PART_BYTES
from fedax.data.errors import DataError
from fedax.data.readers.clients import Client
from fedax.devices.temporary import temporary_folder
from fedax.validate import quoted

# Names of clients, one a row, and the columns of the same rows.
Batch: TypeAlias = tuple[list[Any], Mapping[str, Any]]

# A temporary file is read whole. There are at most this many, unless each has one client.
_FILE_BYTES = 2**25
_MOST_FILES = 256


class Rows(NamedTuple):
    """A table whose rows may be in any order.

    Attributes:
      ids: gives whose each row is, in parts.
      batches: gives the same with the columns.
      row_bytes: about what a row takes in memory.
      where: what the table is called in a sentence.
    """

    ids: Callable[[], Iterable[list[Any]]]
    batches: Callable[[], Iterable[Batch]]
    row_bytes: float
    where: str


def by_client(rows: Rows, start: int = 0) -> Iterator[Client]:
    """Clients in the order of their first row, each one's rows in the order in which they stand.

    Args:
      rows: the table.
      start: the number of clients to skip.

    Yields:
      A client's name and its columns; of a large client in parts.

    Raises:
      DataError: if a row has no client, there are no rows, or the table changes during reading.
    """
    numbers, counts, is_grouped = _counted(rows)
    if not counts:
        raise DataError(f"{rows.where} has no rows.")
    if is_grouped:
        yield from _cut(rows, start)
        return
    sizes = np.array(counts, np.float64) * max(1.0, rows.row_bytes)
    largest = max(_FILE_BYTES, sizes.sum() / _MOST_FILES)
    ends = np.cumsum(sizes) - sizes[: start or 1].sum() * bool(start)
    # The file of each client; a file has as many as fit, and one at least.
    file_of = np.maximum(ends // largest, 0).astype(np.int64)
    names = list(numbers)
    with temporary_folder() as folder:
        _deal(rows, numbers, file_of, start, folder)
        for file in np.unique(file_of[start:]).tolist():
            path = folder / str(file)
            own = np.flatnonzero(file_of == file)
            size = path.stat().st_size
            if (own >= start).sum() == 1:  # however large it is, it stands in order
                for _, columns in _dealt(path):
                    yield names[own[-1]], columns
            elif size > 4 * largest:  # rows take more than was said
                num_rows = sum(counts[client] for client in own if client >= start)
                yield from by_client(_table(path, names, size / num_rows, rows))
            else:
                yield from _in_order(path, names)
            path.unlink()


def _counted(rows: Rows) -> tuple[dict[Any, int], list[int], bool]:
    """Each client's number, in the order of first rows, its rows, and whether they are grouped."""
    numbers: dict[Any, int] = {}
    counts: list[int] = []
    last, num_runs, row = None, 0, 0
    for ids in rows.ids():
        for name in ids:
            if name is None or name != name:  # noqa: PLR0124 - NaN
                raise DataError(
                    f"{rows.where}: row {row} has no client. Fill it in or leave out the row."
                )
            number = numbers.setdefault(name, len(numbers))
            if number == len(counts):
                counts.append(0)
            counts[number] += 1
            num_runs += number != last
            last = number
            row += 1
    return numbers, counts, num_runs == len(counts)


def _cut(rows: Rows, start: int) -> Iterator[Client]:
    """Clients whose rows stand side by side."""
    seen, last = 0, None
    for ids, columns in rows.batches():
        begins = [i for i, name in enumerate(ids) if name != (ids[i - 1] if i else last)]
        bounds = sorted({0, *begins, len(ids)})
        begins_here = set(begins)
        for begin, end in itertools.pairwise(bounds):
            seen += begin in begins_here
            if seen > start:
                yield ids[begin], {key: column[begin:end] for key, column in columns.items()}
        last = ids[-1] if ids else last


def _deal(
    rows: Rows, numbers: Mapping[Any, int], file_of: np.ndarray, start: int, folder: Path
) -> None:
    """Appends rows to the files of their clients."""
    for ids, columns in rows.batches():
        try:
            clients = np.array([numbers[name] for name in ids], np.int64)
        except KeyError as error:
            raise DataError(
                f"{rows.where} changed while it was being read: it had no client "
                f"{quoted(error.args[0])}."
            ) from None
        order = np.argsort(file_of[clients], kind="stable")
        order = order[clients[order] >= start]
        files = file_of[clients[order]]
        for chosen in np.split(order, np.flatnonzero(np.diff(files)) + 1):
            if len(chosen):
                path = folder / str(file_of[clients[chosen[0]]])
                with path.open("ab") as file:
                    _write(file, clients[chosen], {
                        key: _taken(column, chosen) for key, column in columns.items()
                    })


def _table(path: Path, names: list[Any], row_bytes: float, of: Rows) -> Rows:
    """A temporary file that is too large for the memory, as a table like the first."""
    return Rows(
        lambda: ([names[client] for client in clients] for clients, _ in _dealt(path)),
        lambda: (([names[client] for client in clients], columns)
                 for clients, columns in _dealt(path)),
        row_bytes, of.where,
    )


def _in_order(path: Path, names: list[Any]) -> Iterator[Client]:
    """The clients of a temporary file."""
    parts = list(_dealt(path))
    clients = np.concatenate([clients for clients, _ in parts])
    columns = {key: _joined([part[key] for _, part in parts]) for key in parts[0][1]}
    order = np.argsort(clients, kind="stable")
    for chosen in np.split(order, np.flatnonzero(np.diff(clients[order])) + 1):
        yield names[clients[chosen[0]]], {
            key: _taken(column, chosen) for key, column in columns.items()
        }


def _taken(column: Any, rows: np.ndarray) -> Any:
    return column[rows] if isinstance(column, np.ndarray) else [column[row] for row in rows]


def _joined(parts: list[Any]) -> Any:
    if all(isinstance(part, np.ndarray) for part in parts):
        with contextlib.suppress(ValueError):
            return np.concatenate(parts)
    return [value for part in parts for value in part]


def _write(file: Any, clients: np.ndarray, columns: Mapping[str, Any]) -> None:
    """Appends rows to a temporary file: arrays as they are, lists as lengths and contents."""
    np.save(file, clients)
    np.save(file, np.array(list(columns), np.str_))
    for column in columns.values():
        if isinstance(column, np.ndarray):
            np.save(file, np.array(["array"]))
            np.save(file, column)
            continue
        kind = next((type(value).__name__ for value in column if value is not None), "bytes")
        contents = [b"" if value is None else _content(value) for value in column]
        np.save(file, np.array([kind]))
        np.save(file, np.array([len(content) for content in contents], np.int64))
        np.save(file, np.array([value is None for value in column]))
        np.save(file, np.frombuffer(b"".join(contents), np.uint8))


def _dealt(path: Path) -> Iterator[tuple[np.ndarray, dict[str, Any]]]:
    """What was written to a temporary file, part by part."""
    with path.open("rb") as file:
        while file.peek(1):
            clients = np.load(file)
            names = np.load(file).tolist()
            columns = {}
            for name in names:
                kind = np.load(file).item()
                if kind == "array":
                    columns[name] = np.load(file)
                    continue
                ends = np.cumsum(np.load(file))
                missing = np.load(file).tolist()
                content = np.load(file).tobytes()
                columns[name] = [
                    None if gap else _value(kind, content[begin:end])
                    for begin, end, gap in zip([0, *ends[:-1]], ends, missing, strict=True)
                ]
            yield clients, columns


def _content(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, np.ndarray):
        buffer = io.BytesIO()
        np.save(buffer, value)
        return buffer.getvalue()
    if isinstance(value, list):  # of text or of bytes, which JSON does not have
        is_bytes = bool(value) and isinstance(value[0], bytes)
        return json.dumps(
            [is_bytes, [item.decode("latin-1") for item in value] if is_bytes else value]
        ).encode()
    return value


def _value(kind: str, content: bytes) -> Any:
    if kind == "str":
        return content.decode("utf-8", "surrogatepass")
    if kind == "list":
        is_bytes, items = json.loads(content)
        return [item.encode("latin-1") for item in items] if is_bytes else items
    return np.load(io.BytesIO(content)) if kind == "ndarray" else content


def batch_rows(row_bytes: float) -> int:
    """How many rows to read at a time."""
    return int(max(1, min(2**16, PART_BYTES // max(1.0, row_bytes))))
