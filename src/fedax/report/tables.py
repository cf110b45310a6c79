"""Tables of results, as text."""

from __future__ import annotations

import math
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


def print_tables(tables: Sequence[Table]) -> None:
    """Prints titles and tables, columns of numbers to the right and never broken."""
    for found in tables:
        rows = [[_text(cell) for cell in row] for row in found.rows]
        table = RichTable(box=None, pad_edge=False)
        width = 0
        for place, heading in enumerate(found.headings):
            cells = [row[place] for row in rows]
            numbers = bool(place) and all(map(NUMBER.match, cells))
            widest = max(map(len, [heading, *cells]))
            table.add_column(
                heading, overflow="fold", justify="right" if numbers else "left", no_wrap=numbers
            )
            width += (widest if numbers else min(widest, NARROWEST)) + 2
        for row in rows:
            table.add_row(*row)
        console = terminal.Console(soft_wrap=False, highlight=False, markup=False)
        console.width = max(console.width, width)  # a pipe, or a terminal that breaks the lines
        console.print(found.title)
        console.print(table)
        console.print()


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
