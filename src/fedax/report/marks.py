"""HTML of what pages are made of: texts, tables, swatches. Everything from data goes through here.

A text is escaped, and what is not printable is written out.
"""

from __future__ import annotations

import html
import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fedax.outside.text import printable

# Lines are told apart by so many colours, each with these dashes (as in static/charts.js).
NUM_COLOURS = 6
DASHES = ("", "9 4", "2 3", "11 3 2 3")
# A text of a table is cut after so many letters.
MOST_LETTERS = 300
# A table of more names and values stands in two columns where the page is wide.
_LONG = 16


class Cell(NamedTuple):
    """A cell of a table.

    Attributes:
      html: what it shows.
      value: by which it is sorted; None: by its text.
      classes: words for the style.
    """

    html: str
    value: float | None = None
    classes: str = ""


class Column(NamedTuple):
    """A column of a table.

    Attributes:
      name: its heading.
      cells: a value or a `Cell` a row.
      classes: words for the style, such as "differs".
    """

    name: str
    cells: Sequence[Any]
    classes: str = ""


def text(value: Any) -> str:
    r"""A value as HTML that shows it as it is.

    Example:
      >>> text("</script>\n"), text(0.123456789), text(None), text(1234567)
      ('&lt;/script&gt;\\n', '0.12346', 'none', '1,234,567')
    """
    return html.escape(plain(value))


def escaped(letters: str) -> str:
    """A text as HTML, of which nothing is cut."""
    return html.escape(printable(letters))


def plain(value: Any) -> str:
    """A value as text, see `text`, which is not yet HTML."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, numbers.Integral):
        return f"{int(value):,}"
    if isinstance(value, numbers.Real):
        return f"{float(value):.5g}"
    return shortened(printable(str(value)), MOST_LETTERS)


def shortened(letters: str, most: int = 90) -> str:
    """A text that is cut where it is very long."""
    return letters if len(letters) <= most else letters[:most] + "..."


def cell(value: Any) -> Cell:
    """A cell that is sorted by its number, if it has one; what is not a number comes last."""
    if isinstance(value, Cell):
        return value
    if value is None or value == "":
        return Cell("", math.nan)
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        return Cell(text(value), float(value), "number")
    return Cell(text(value))


def pairs(rows: Mapping[str, Any]) -> str:
    """A table of names and values, one a line."""
    cells = "\n".join(
        f"<tr><th>{text(name)}</th><td>{text(value)}</td></tr>" for name, value in rows.items()
    )
    long = " long" if len(rows) > _LONG else ""
    return f'<table class="pairs{long}"><tbody>{cells}</tbody></table>'


def plain_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table that stands as it is; the names of the first row are the headings.

    Args:
      rows: name -> a value or a `Cell`.
    """
    head = "".join(f'<th scope="col">{text(words(name))}</th>' for name in rows[0])
    body = "\n".join(
        f"<tr>{''.join(map(_plain_cell, row.values()))}</tr>" for row in rows
    )
    return (
        f'<div class="scroll"><table class="listed"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _plain_cell(value: Any) -> str:
    found = value if isinstance(value, Cell) else Cell(text(value))
    return f"<td{_classes(found.classes)}>{found.html}</td>"


def sorted_table(
    caption: str, columns: Sequence[Column], classes: Sequence[str] = (),
    found_by: Sequence[str] = (),
) -> str:
    """A table that the page's script makes sort and filter.

    Args:
      caption: what it shows, for those who do not see it.
      columns: of the same length.
      classes: of each row, words for the style; (): none.
      found_by: words by which each row is found beside those that it shows; (): none.
    """
    made = [[cell(value) for value in column.cells] for column in columns]
    kinds = [
        f"{column.classes} number" if cells and all(
            "number" in one.classes or not one.html for one in cells
        ) else column.classes
        for column, cells in zip(columns, made, strict=True)
    ]
    head = "".join(
        f'<th scope="col"{_classes(kind)}>{text(column.name)}</th>'
        for column, kind in zip(columns, kinds, strict=True)
    )
    rows = []
    for number, cells in enumerate(zip(*made, strict=True)):
        tds = "".join(
            f"<td{_classes(f'{column.classes} {one.classes}')}{_value(one.value)}>{one.html}</td>"
            for column, one in zip(columns, cells, strict=True)
        )
        found = f' data-words="{text(found_by[number])}"' if found_by else ""
        rows.append(f"<tr{_classes(classes[number] if classes else '')}{found}>{tds}</tr>")
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{text(caption)}">'
        f'<table class="sorts"><caption class="hidden">{text(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>"
        + "\n".join(rows) + "</tbody></table></div>"
    )


def _classes(names: str) -> str:
    known = " ".join(dict.fromkeys(names.split()))
    return f' class="{known}"' if known else ""


def _value(value: float | None) -> str:
    if value is None:
        return ""
    return f' data-value="{value:.10g}"' if math.isfinite(value) else ' data-value=""'


def ticked(chart: str, series: int, label: str, *, shown: bool, named: bool = True) -> str:
    """A box that shows or hides a curve, with the line that it is drawn by.

    Args:
      chart: the chart's id.
      series: which of its curves.
      label: the curve's name.
      shown: whether it is shown at first.
      named: whether the name stands beside it; otherwise only those who do not see hear it.
    """
    name = text(label)
    box = (
        f'<input type="checkbox" data-chart="{chart}" data-series="{series}"'
        f'{" checked" if shown else ""}'
    )
    if named:
        return f"<label>{box}> {swatch(series)} {name}</label>"
    return f'<label class="nowrap">{box} aria-label="curve of {name}"> {swatch(series)}</label>'


def swatch(series: int) -> str:
    """A piece of the line by which a curve is drawn."""
    dash = DASHES[series // NUM_COLOURS % len(DASHES)]
    return (
        '<svg class="swatch" aria-hidden="true"><line x2="26" y1="4" y2="4" stroke-width="3" '
        f'stroke="var(--c{series % NUM_COLOURS})" stroke-dasharray="{dash}"/></svg>'
    )


def words(name: str) -> str:
    """A metric's or a setting's name in words."""
    return name.replace("_", " ")


def listed(names: Iterable[str], most: int = 5) -> str:
    """Names in a sentence, and how many others there are.

    Example:
      >>> listed("abc"), listed("abc", 2)
      ('a, b, c', 'a, b and 1 other')
    """
    known = list(names)
    more = len(known) - most
    if more <= 0:
        return ", ".join(known)
    return f"{', '.join(known[:most])} and {more} other{'s' * (more > 1)}"
