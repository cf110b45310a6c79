"""Tables of results, as text."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console
from rich.table import Table as RichTable

NUMBER = re.compile(r"$|[-+]?[\d.]|nan|inf|none")


class Table(NamedTuple):
    """A table to print.

    Attributes:
      title: a sentence that says what it shows.
      headings: of the columns.
      rows: cells as text.
    """

    title: str
    headings: list[str]
    rows: list[list[str]]


def print_tables(tables: Sequence[Table]) -> None:
    """Prints titles and tables, columns of numbers to the right."""
    console = Console(soft_wrap=False, highlight=False, markup=False)
    for found in tables:
        table = RichTable(box=None, pad_edge=False)
        for place, heading in enumerate(found.headings):
            numbers = place and all(NUMBER.match(row[place]) for row in found.rows)
            table.add_column(heading, overflow="fold", justify="right" if numbers else "left")
        for row in found.rows:
            table.add_row(*row)
        console.print(found.title)
        console.print(table)
        console.print()


def print_json(tables: Sequence[Table]) -> None:
    """Prints the tables as JSON."""
    print(json.dumps([table._asdict() for table in tables], indent=2, ensure_ascii=False))
