"""Tables of results, as text."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from rich.table import Table as RichTable

from fedax.devices import terminal
from fedax.outside.text import printable

NUMBER = re.compile(r"$|[-+]?[\d.]|nan|inf|none")


# A column of text may shrink to so many characters.
NARROWEST = 16


class Table(NamedTuple):
    """A table to print.

    Attributes:
      title: a sentence that says what it shows.
      headings: of the columns.
      rows: cells, text or numbers; None is an empty one.
    """

    title: str
    headings: list[str]
    rows: list[list[Any]]


class _Column(NamedTuple):
    """A column with the least width in which it can be read."""

    heading: str
    cells: list[str]
    numbers: bool
    width: int


def print_tables(tables: Sequence[Table]) -> None:
    """Prints titles and tables, columns of numbers to the right and never broken.

    Of a table without rows only the title.

    Where a terminal is too narrow for all columns, the others follow below, each time with the
    first.
    """
    for found in tables:
        rows = [[_text(cell) for cell in row] for row in found.rows]
        columns = [
            _column(heading, [row[place] for row in rows], first=place == 0)
            for place, heading in enumerate(found.headings)
        ]
        console = terminal.Console(soft_wrap=False, highlight=False, markup=False)
        whole = sum(column.width for column in columns)
        if not (console.is_terminal or "COLUMNS" in os.environ):  # a pipe
            console.width = max(console.width, whole)
        console.print(found.title)
        for some in _fitting(columns, console.width) if rows else ():
            table = RichTable(box=None, pad_edge=False)
            for column in some:
                table.add_column(
                    column.heading, overflow="fold", no_wrap=column.numbers,
                    justify="right" if column.numbers else "left",
                )
            for cells in zip(*(column.cells for column in some), strict=True):
                table.add_row(*cells)
            console.width = max(console.width, sum(column.width for column in some))
            console.print(table)
        console.print()


def _column(heading: str, cells: list[str], *, first: bool) -> _Column:
    numbers = not first and all(map(NUMBER.match, cells))
    widest = max(map(len, [heading, *cells]))
    return _Column(heading, cells, numbers, (widest if numbers else min(widest, NARROWEST)) + 2)


def _fitting(columns: list[_Column], width: int) -> list[list[_Column]]:
    """The columns in groups that fit, each with the first column."""
    first, *others = columns
    groups, left = [[first]], width - first.width
    for column in others:
        if column.width > left + 2 and len(groups[-1]) > 1:  # the last needs no space behind it
            groups.append([first])
            left = width - first.width
        groups[-1].append(column)
        left -= column.width
    return groups


def print_json(tables: Sequence[Table]) -> None:
    """Prints the tables as JSON; numbers that are not finite are null."""
    terminal.print_json([
        found._replace(rows=[[_finite(cell) for cell in row] for row in found.rows])._asdict()
        for found in tables
    ])


def _text(cell: Any) -> str:
    if cell is None:
        return ""
    if isinstance(cell, str):
        return printable(cell)
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:.6g}"


def _finite(cell: Any) -> Any:
    return None if isinstance(cell, float) and not math.isfinite(cell) else cell
