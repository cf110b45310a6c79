"""CSV files: one line per example, with a client column."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import re
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedax.data.budget import PART_BYTES, require_few_arrays, require_modest
from fedax.data.errors import DataError
from fedax.data.readers.clients import Client, Clients, reading, regular_file
from fedax.data.readers.scattered import Batch, Rows, by_client
from fedax.data.tables import Columns, choose
from fedax.validate import quoted

# Of a block, which is in memory: lines, and cells; a cell takes 60 bytes beside its letters.
_LINES = 2**14
_CELLS = 2**20
# Of a packed file, what a cell becomes at least: short ones take longest for their letters.
_CELL_BYTES = 8
_LONGEST_LINE = 2**24
# A longer cell is text, whatever it says: NumPy takes as much for each cell as for the longest.
_LONGEST_NUMBER = 1000
_MOST_COLUMNS = 2**16
_LONGEST_NAME = 200
# Where each row's line is among the arrays; no column has so long a name.
LINES = "line" * _LONGEST_NAME
# Of whole numbers below, float64 keeps every digit.
_LARGEST_EXACT = 2**53
_QUOTED = re.compile(r'"[^"]*"')
_WHOLE = re.compile(r"\s*[+-]?[0-9]+\s*")
_ERRORS = (csv.Error, ValueError, EOFError, zlib.error, gzip.BadGzipFile)


def read_csv(
    path: Path | str, client_column: str, columns: Columns | None = None, *,
    only_numbers: bool = False, gaps: frozenset[str] = frozenset(),
    text: Collection[str] = (), precise: bool = False, with_lines: bool = False,
) -> Clients:
    """Reads the clients of a CSV file, in the order of their first line; lines may be in any order.

    The first line names the columns, separated by commas, semicolons or tabs. A column of whole
    numbers becomes int32, other numbers float32, and text a list, for a transform. Numbers look
    like 12, -1.5 or 1e3; `1_000`, `0x1f` and digits of other scripts are text. Cells in `gaps`
    become NaN (None in a text column), and their column float32. The file may be compressed with
    gzip and is read twice.

    Args:
      path: the file, in UTF-8.
      client_column: the column with each line's client.
      columns: the columns to read, as for `FederatedDataset.from_frame`.
      only_numbers: reject text, NaN and infinity and report the line; for data without a transform.
      gaps: the cells that mean a missing value in a column of numbers, such as {"", "NA"}; in a
          text column only empty cells do. Without `gaps` empty cells are an error.
      text: columns that are text, whatever their cells say.
      precise: whether numbers that are not whole become float64.
      with_lines: whether an array `LINES` says in which line of the file each row is.

    Raises:
      DataError: if the file or a column does not exist; during reading, if it is malformed, a value
          is missing, or a number is too large or too precise.
    """
    path = regular_file(path)
    with reading(path, "a CSV file", *_ERRORS):
        names = next(_lines(path))[1]
        if max(map(len, names)) > _LONGEST_NAME:
            raise ValueError(
                f"its first line has column names of more than {_LONGEST_NAME} characters"
            )
    try:
        chosen = choose(names, client_column, columns)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None
    require_few_arrays(path, len(chosen))
    table = _Table(
        path, names, client_column, chosen, gaps, text, only_numbers=only_numbers, precise=precise,
        with_lines=with_lines,
    )
    return Clients(table.clients, [path])


class _Table:
    """A file, its columns, and of what kind they are."""

    def __init__(
        self, path: Path, names: list[str], client_column: str,
        chosen: Mapping[str, str | Sequence[str]], gaps: frozenset[str], text: Collection[str], *,
        only_numbers: bool, precise: bool, with_lines: bool,
    ) -> None:
        self._path = path
        self._names = names
        self._client = names.index(client_column)
        places = {name: place for place, name in enumerate(names)}
        self._chosen = {
            array: [places[name] for name in ([group] if isinstance(group, str) else group)]
            for array, group in chosen.items()
        }
        self._stacked = {array: not isinstance(group, str) for array, group in chosen.items()}
        self._kinds = {
            i: "text" if names[i] in text else "" for group in self._chosen.values() for i in group
        }
        self._only_numbers, self._precise, self._with_lines = only_numbers, precise, with_lines
        self._gaps = gaps
        self._first_text: dict[int, str] = {}  # column -> where its first text is, in words

    def clients(self, start: int) -> Iterator[Client]:
        with reading(self._path, "a CSV file", *_ERRORS):
            rows = Rows(self._ids, self._batches, 8.0 * len(self._names), str(self._path))
            yield from by_client(rows, start)

    def _ids(self) -> Iterator[list[str]]:
        """Whose each line is; notes of what kind the columns are."""
        for lines, block in self._blocks():
            ids = [row[self._client] for row in block]
            if "" in ids:
                raise DataError(
                    f"{self._path}: line {lines[ids.index('')]} has no client. Fill it in or leave "
                    "out the line."
                )
            for place, before in self._kinds.items():
                if before != "text":
                    values = [row[place] for row in block]
                    self._kinds[place] = _wider(before, self._kind(values))
                    if self._kinds[place] == "text":
                        row = next((r for r, value in enumerate(values)
                                    if value not in self._gaps and _is_text(value)), None)
                        if row is not None:  # else values are missing
                            self._first_text[place] = self._cell(lines, block, place, row)
            yield ids

    def _kind(self, values: list[str]) -> str:
        """Of what kind a column's cells are; with gaps a float at least, without values none."""
        there = [value for value in values if value not in self._gaps] if self._gaps else values
        if len(there) == len(values):
            return _kind(values)
        return _wider(_kind(there), "float") if there else ""

    def _batches(self) -> Iterator[Batch]:
        for lines, block in self._blocks():
            columns: dict[str, Any] = {LINES: np.array(lines)} if self._with_lines else {}
            for array, places in self._chosen.items():
                kind = ""
                for place in places:
                    kind = _wider(kind, self._kinds[place])
                    if place in self._first_text and (self._only_numbers or self._stacked[array]):
                        raise DataError(
                            f"{self._first_text[place]}, which is not a number. Correct it, leave "
                            "out the line, or choose the columns to use: columns=[...]. A "
                            "transform "
                            "receives text as a list."
                        )
                kind = kind or ("float" if self._stacked[array] else "text")  # all are missing
                parts = [self._column(lines, block, place, kind) for place in places]
                columns[array] = np.stack(parts, 1) if self._stacked[array] else parts[0]
            yield [row[self._client] for row in block], columns

    def _column(
        self, lines: list[int], block: list[list[str]], place: int, kind: str
    ) -> Any:
        values = [row[place] for row in block]
        if not self._gaps and "" in values:
            where = self._cell(lines, block, place, values.index("")).removesuffix(" holds ''")
            raise DataError(
                f"{where} has a missing value. Fill in missing values or leave out their lines."
            )
        if kind == "text":
            return [value or None for value in values]
        if self._gaps and not self._gaps.isdisjoint(values):
            values = ["nan" if value in self._gaps else value for value in values]
        try:
            numbers = np.array(values).astype(np.float64 if kind == "float" else _DTYPES[kind])
        except (ValueError, OverflowError):
            raise DataError(
                f"{self._path} changed while it was being read: column {self._names[place]!r} is "
                "different now."
            ) from None
        if kind != "float":
            return numbers
        for row in np.flatnonzero(np.abs(numbers) >= _LARGEST_EXACT).tolist():
            if _WHOLE.fullmatch(values[row]):
                raise DataError(
                    f"{self._cell(lines, block, place, row)}, which has more digits than the "
                    "column's type can store (float32, or a 64-bit integer). Leave out the column, "
                    "or write "
                    "the number with a decimal point if its last digits do not matter."
                )
        with np.errstate(over="ignore"):
            singles = numbers.astype(np.float32)
        finite = np.isfinite(singles)
        if not self._only_numbers:  # a transform may fill NaN in
            finite |= ~np.isfinite(numbers)
        if not finite.all():
            row = int(finite.argmin())
            raise DataError(
                f"{self._cell(lines, block, place, row)}, which is not finite in float32. Correct "
                "it or leave out the line."
            )
        return numbers if self._precise else singles

    def _cell(self, lines: list[int], block: list[list[str]], place: int, row: int) -> str:
        """A cell of a block in words."""
        return (
            f"{self._path}: line {lines[row]}, of client {quoted(block[row][self._client])}: the "
            f"column {quoted(self._names[place])} holds {quoted(block[row][place])}"
        )

    def _blocks(self) -> Iterator[tuple[list[int], list[list[str]]]]:
        """The line numbers of rows, and the rows; each as long as the first line."""
        most = max(1, min(_LINES, _CELLS // len(self._names)))
        before = 0
        numbers: list[int] = []
        rows: list[list[str]] = []
        for number, row, letters in itertools.islice(_lines(self._path), 1, None):
            if len(row) != len(self._names):
                raise DataError(
                    f"{self._path}: line {number} has {len(row)} values, but the first names "
                    f"{len(self._names)} columns."
                )
            numbers.append(number)
            rows.append(row)
            if len(rows) == most or letters - before > PART_BYTES:
                yield numbers, rows
                before, numbers, rows = letters, [], []
        if rows:
            yield numbers, rows


_DTYPES = {"int32": np.int32, "int64": np.int64}
_WIDTH = ["", "int32", "int64", "float", "text"]


def _wider(one: str, other: str) -> str:
    return max(one, other, key=_WIDTH.index)


def _kind(values: list[str]) -> str:
    """Of what kind a column's cells are."""
    if max(map(len, values)) > _LONGEST_NUMBER:
        return "text"
    letters = "".join(values)
    if "_" in letters or "\0" in letters or not letters.isascii():
        return "text"  # Python reads 1_000 and digits of other scripts as numbers, NumPy cuts zeros
    array = np.array(values)
    try:
        numbers = array.astype(np.int64)
    except (ValueError, OverflowError):
        try:
            array.astype(np.float64)
        except ValueError:
            # A missing number is no text; it is said where it is met again.
            some = [value for value in values if value]
            return _kind(some) if len(some) < len(values) and some else "text"
        return "float"
    return "int32" if numbers.min() >= -(2**31) and numbers.max() < 2**31 else "int64"


def _is_text(value: str) -> bool:
    return bool(value) and _kind([value]) == "text"


def _lines(path: Path) -> Iterator[tuple[int, list[str], int]]:
    """Line numbers and cells of the lines that are not blank, and the bytes so far."""
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_LINE))
    letters = [0]
    with path.open("rb") as raw:
        is_packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        content: Any = gzip.GzipFile(fileobj=raw) if is_packed else raw
        text = io.TextIOWrapper(content, "utf-8-sig", newline="")
        head = text.readline(_LONGEST_LINE)
        if not head.strip():
            raise DataError(f"{path} is empty; its first line must name the columns.")
        delimiter = max(",;\t", key=_QUOTED.sub("", head).count)
        lines = _bounded(path, head, text, delimiter, letters)
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        for row in reader:
            if len(row) > _MOST_COLUMNS:
                raise ValueError(f"line {reader.line_num} has {len(row):,} columns")
            if any(cell.strip() for cell in row):
                yield reader.line_num, row, letters[0]


def _bounded(
    path: Path, head: str, text: io.TextIOBase, delimiter: str, letters: list[int]
) -> Iterator[str]:
    """The lines, whose letters and cells are counted in a list of one number."""
    line, packed = head, path.stat().st_size
    while line:
        letters[0] += len(line) + _CELL_BYTES * (line.count(delimiter) + 1)
        require_modest(path, packed, letters[0])
        if len(line) >= _LONGEST_LINE:
            raise ValueError(f"a line that begins with {quoted(line[:40])} is too long")
        yield line
        line = text.readline(_LONGEST_LINE)
