"""Cells of CSV files, written so that spreadsheets do not read text as formulas."""

from __future__ import annotations

import re
from typing import Any

_FORMULA = re.compile(r"'*[=+\-@\t\r]")


def safe_cell(value: Any) -> Any:
    """A cell to write; text that a spreadsheet would compute, such as `=1+1`, gets an apostrophe.

    Names in data may come from strangers. Numbers are not changed, even as text.

    Example:
      >>> safe_cell("=1+1"), safe_cell("ada"), safe_cell("-5"), safe_cell(-5)
      ("'=1+1", 'ada', '-5', -5)
    """
    if not isinstance(value, str) or not _FORMULA.match(value):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def original_text(cell: str) -> str:
    """The text of a cell that `safe_cell` gave.

    Example:
      >>> original_text(safe_cell("=1+1")), original_text("'tis")
      ('=1+1', "'tis")
    """
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell
