"""The columns of a file, a frame or a dictionary, with their gaps."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from fedax.data import readers
from fedax.data.categories import own_categories
from fedax.data.errors import DataError
from fedax.data.grouping import checked_ids
from fedax.data.readers.clients import WiderKindError
from fedax.data.readers.csv import LINES
from fedax.data.reading import recognised
from fedax.outside.paths import expanded
from fedax.validate import quoted, unknown

# Cells of CSV that mean a missing value where a column's other cells are numbers.
GAPS = frozenset({"", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "?"})

Decimal: TypeAlias = Literal["point", "comma"]
_NUMERAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
# A number as in 27,4 or 1.250,75.
_WITH_COMMA = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+)(,\d+)?(e[+-]?\d+)?", re.ASCII | re.I)


class Cells(NamedTuple):
    """The rows of a table.

    Attributes:
      columns: name -> numbers or truth values [num_rows], with NaN where they are missing; or other
        objects, with None.
      clients: each row's client, text or whole numbers [num_rows]; None without a client column.
      categories: of columns that have their own.
      where: what the table is called in a message.
      places: where each row is: of a CSV file its line, from 1; of another file its place among its
        client's rows, from 0; otherwise its place in the table, from 0 [num_rows].
      has_lines: whether the places are lines.
      commas: columns of numbers that were written with decimal commas.
    """

    columns: dict[str, np.ndarray]
    clients: np.ndarray | None
    categories: dict[str, tuple[Any, ...]]
    where: str
    places: np.ndarray
    has_lines: bool = False
    commas: frozenset[str] = frozenset()

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return len(next(iter(self.columns.values()))) if self.columns else 0

    def take(self, rows: np.ndarray) -> Cells:
        """These rows."""
        columns = {name: column[rows] for name, column in self.columns.items()}
        return self._replace(
            columns=columns, clients=None if self.clients is None else self.clients[rows],
            places=self.places[rows],
        )


def read_cells(
    source: Any, client: str, *, needs_client: bool = True, decimal: Decimal = "point",
    signs: Mapping[str, Decimal | None] | None = None, text: Collection[str] = (),
) -> Cells:
    """The cells of a table.

    Args:
      source: a CSV or Parquet file, a folder saved by Hugging Face's `datasets`, a pandas or polars
          frame, or a dictionary of columns. Rows of a file are grouped by client.
      client: the column with each row's client.
      needs_client: whether the column must be there; a file needs it anyway.
      decimal: "comma": text such as 27,4 or 1.250,75 is a number, where a whole column is such.
      signs: of columns whose decimal sign is known, whether or not a cell has it; None: it is not.
      text: columns of a CSV file that are known to be text, even if it says numbers.

    Raises:
      DataError: a file cannot be read, or is malformed.
      ValueError: there is no such column, columns differ in length, or there are no rows.
    """
    if isinstance(source, Cells):
        return with_decimal(source, decimal, signs)
    if isinstance(source, str | Path):
        known = [name for name, sign in (signs or {}).items() if sign == "comma"]
        return with_decimal(_of_file(expanded(source), client, [*text, *known]), decimal, signs)
    is_lazy = hasattr(source, "collect") and not hasattr(source, "__len__")
    names: list[Any] = [] if is_lazy else list(
        source if isinstance(source, Mapping) else getattr(source, "columns", ())
    )
    if not names or not hasattr(source, "__getitem__"):
        hint = "; call its collect() first" if is_lazy else ""
        raise ValueError(
            "A table must be a file, a pandas or polars data frame, or a dictionary of columns, "
            f"not {type(source).__name__}{hint}."
        )
    for name in names:
        if not isinstance(name, str):
            raise ValueError(f"A column's name must be text, but one is {name!r}.")
        if names.count(name) > 1:
            raise ValueError(f"Two columns have the name {name!r}; names must be unique.")
    if client not in names and needs_client:
        raise ValueError(unknown("client column", client, names))
    columns = {name: _column(source[name]) for name in names if name != client}
    clients = checked_ids(source[client]) if client in names else None
    lengths = {name: len(column) for name, column in columns.items()}
    if clients is not None:
        lengths[client] = len(clients)
    if len(set(lengths.values())) > 1:
        raise ValueError(f"All columns must have the same number of rows, but they have {lengths}.")
    if not max(lengths.values()):
        raise ValueError("A table needs at least one row, but none was given.")
    own = {
        name: own_categories(source[name]) for name in columns if hasattr(source[name], "dtype")
    }
    listed = {name: of for name, of in own.items() if of}
    places = np.arange(max(lengths.values()))
    return with_decimal(Cells(columns, clients, listed, "The table", places), decimal, signs)


def _of_file(path: Path, client: str, text: Collection[str]) -> Cells:
    kind = recognised(path)
    if kind == "csv":
        clients = readers.read_csv(
            path, client, gaps=GAPS, text=text, precise=True, with_lines=True
        )
    elif kind == "parquet":
        files = sorted(path.glob("*.parquet")) if path.is_dir() else path
        clients = readers.read_parquet(files, client, gaps=True)
    elif kind == "huggingface":
        clients = readers.read_saved_huggingface(path, client, gaps=True)
    else:
        raise DataError(
            f"{path} is not a table: its format is {kind}. Give a CSV or Parquet file with a "
            "header."
        )
    while True:
        try:
            parts = list(clients)
            break
        except WiderKindError:
            continue
    columns = {
        name: _joined([part[name] for _, part in parts]) for name in parts[0][1]
    }
    ids = checked_ids([name for name, part in parts for _ in range(_length(part))])
    places = columns.pop(LINES, None)
    if places is None:  # a client's rows are next to each other
        starts = np.flatnonzero(np.append(True, ids[1:] != ids[:-1]))
        places = np.arange(len(ids)) - np.repeat(starts, np.diff(starts, append=len(ids)))
    return Cells(columns, ids, {}, str(path), places, has_lines=kind == "csv")


def _length(part: Mapping[str, Any]) -> int:
    return len(next(iter(part.values())))


def _joined(parts: list[Any]) -> np.ndarray:
    if all(isinstance(part, np.ndarray) for part in parts):
        return _column(np.concatenate(parts))
    return _column([value for part in parts for value in part])


def _column(values: Any) -> np.ndarray:
    """A column of numbers with NaN for gaps, or of objects with None."""
    gaps = None
    if hasattr(values, "isna"):  # pandas
        gaps = np.asarray(values.isna(), bool)
    elif hasattr(values, "is_null"):  # polars
        gaps = values.is_null().to_numpy()
    array = np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values) if (
        not isinstance(values, list | tuple)
    ) else None
    if array is not None and array.ndim != 1:
        raise ValueError(f"A column must have one value per row, but one has shape {array.shape}.")
    if array is not None and (
        array.dtype.kind == "f"  # with NaN where a value is missing
        or (array.dtype.kind in "biu" and (gaps is None or not gaps.any()))
    ):
        return array
    listed = getattr(values, "to_list", None)
    plain = list(values) if listed is None else listed()
    if gaps is not None:
        plain = [None if gap else value for value, gap in zip(plain, gaps.tolist(), strict=True)]
    return of_objects(plain)


def of_objects(values: list[Any]) -> np.ndarray:
    """Numbers or truth values if all that are there are such, or else objects."""
    there = [value for value in values if not is_gap(value)]
    if there and all(isinstance(value, bool | int | float | np.number | np.bool_)
                     for value in there):
        if len(there) < len(values):
            return np.array([np.nan if is_gap(value) else float(value) for value in values])
        return np.array(values)
    found = np.empty(len(values), object)
    found[:] = [
        None if is_gap(value) else str(value) if isinstance(value, np.str_) else value
        for value in values
    ]
    return found


def with_labels(cells: Cells, label: str | None) -> Cells:
    """The rows whose label is not missing."""
    if label is None or label not in cells.columns:
        return cells
    gaps = gaps_of(cells.columns[label])
    return cells.take(np.flatnonzero(~gaps)) if gaps.any() else cells


def has_commas(column: np.ndarray) -> bool:
    """Whether a column is text that reads as numbers with decimal commas, at least one of them."""
    return _reads_so(column) and any("," in value for value in column.tolist() if value)


def _reads_so(column: np.ndarray) -> bool:
    """Whether a column is text that reads as numbers without decimal points, or gaps."""
    return column.dtype.kind == "O" and all(
        value is None or (isinstance(value, str) and (
            value in GAPS or _WITH_COMMA.fullmatch(value.strip()) is not None
        )) for value in column.tolist()
    )


def with_decimal(
    cells: Cells, decimal: Decimal, signs: Mapping[str, Decimal | None] | None = None
) -> Cells:
    """The cells with text such as 27,4 as numbers, if the decimal sign is a comma.

    Args:
      cells: of a table.
      decimal: the sign.
      signs: of columns whose sign is known; with "comma" 2.300 is 2300, even if no cell has one.
    """
    if decimal == "point":
        return cells
    read = {}
    for name, column in cells.columns.items():
        sign = (signs or {}).get(name)
        if _reads_so(column) if sign == "comma" else sign is None and has_commas(column):
            read[name] = _of_commas(column)
    return cells._replace(
        columns=cells.columns | read, commas=cells.commas | read.keys()
    )


def _of_commas(column: np.ndarray) -> np.ndarray:
    return np.array([
        np.nan if value is None or value in GAPS
        else float(value.replace(".", "").replace(",", ".")) for value in column.tolist()
    ])


def sign_of(name: str, cells: Cells) -> Decimal | None:
    """The decimal sign of a column of numbers: of whole ones it is not known."""
    if name in cells.commas:
        return "comma"
    column = cells.columns[name]
    has_fractions = column.dtype.kind == "f" and bool(
        (column[np.isfinite(column)] % 1 != 0).any()
    )
    return "point" if has_fractions else None


def is_gap(value: Any) -> bool:
    """Whether a cell is missing: None, NaN, pandas' NA or NaT."""
    return value is None or type(value).__name__ in ("NAType", "NaTType") or (
        isinstance(value, float | np.floating) and bool(np.isnan(value))
    )


def is_number(column: np.ndarray) -> bool:
    """Whether a column holds numbers or truth values."""
    return column.dtype.kind in "biuf"


def gaps_of(column: np.ndarray) -> np.ndarray:
    """Where values are missing, bool [num_rows]."""
    if column.dtype.kind == "f":
        return np.isnan(column)
    if column.dtype.kind == "O":
        return np.array([value is None for value in column], bool)
    return np.zeros(len(column), bool)


def place_of(cells: Cells, row: int) -> str:
    """A row in words: of a file its client and the line, or which of the client's rows it is."""
    place = cells.places[row]
    if cells.where == "The table" or cells.clients is None:
        return f"row {place}"
    client = quoted(cells.clients[row].item())
    where = f"line {place}," if cells.has_lines else f"row {place}"
    return f"{where} of client {client}"


def _as_text(value: Any) -> str | None:
    """A number as text, since a column of text may hold only digits in another file."""
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value)


def spellings(value: Any) -> Iterator[Any]:
    """A cell, and what it may be among the training rows; a gap is a gap alone."""
    yield value
    if value is not None:
        yield _as_text(value)
        yield _single(value)
        if isinstance(value, str) and is_numeral(value):
            yield float(value)


def is_numeral(text: str) -> bool:
    """Whether text is a number, as it is if another cell of its column is none.

    Example:
      >>> [is_numeral(text) for text in ("-1.5", "1e3", "1,250", "1_0", "oops", "")]
      [True, True, False, False, False, False]
    """
    return _NUMERAL.fullmatch(text.strip()) is not None


def _single(value: Any) -> Any:
    """A number as tables of CSV files until 0.27 have it, in float32."""
    return float(np.float32(value)) if isinstance(value, float) else value
