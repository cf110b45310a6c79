"""The table of results of a paper, and how it is written: Markdown, LaTeX, CSV."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from fedax.data.csv_cells import safe_cell
from fedax.outside.text import printable
from fedax.pictures.labels import in_short
from fedax.report.latex import latex_number, latex_text
from fedax.report.marks import Cell, escaped, plain_table, shortened, text
from fedax.rounds.history import as_frame

if TYPE_CHECKING:
    import pandas

Unit: TypeAlias = Literal["share", "number", "rounds", "bytes", "p"]

# A column of numbers shows so many digits of its smallest, and no more decimals than these.
_DIGITS, _MOST_DECIMALS = 4, 6
# Numbers whose sizes differ by more than this factor, or that lie outside of these bounds, are
# written each with its own digits.
_WIDEST, _SMALLEST, _LARGEST = 1e3, 1e-3, 1e6
_PREFIXES = ("B", "kB", "MB", "GB", "TB", "PB")
_MARKED = re.compile(r"([\\`*<>\[\]|$~&]|\b_|_\b|^#)")
_NONE = "\N{EN DASH}"


class Value(NamedTuple):
    """A cell: what the seeds of a setting came to.

    Attributes:
      mean: NaN where there is none, and `said` says why.
      deviation: the sample standard deviation over the seeds; NaN of one.
      said: why there is no mean, such as "diverged (1 of 3)".
      best: whether no other setting of the task is better.
    """

    mean: float
    deviation: float = math.nan
    said: str = ""
    best: bool = False


class ResultColumn(NamedTuple):
    """A column of numbers.

    Attributes:
      name: without spaces, as CSV has it.
      heading: in words, without its unit.
      unit: of its values.
      cells: a row each.
    """

    name: str
    heading: str
    unit: Unit
    cells: Sequence[Value]


class ResultsTable(NamedTuple):
    """Results of settings over their seeds, as in a paper; see `fedax.table`.

    It prints as Markdown, and a notebook shows it as a table.

    Attributes:
      tasks, methods: those of each row.
      settings: name -> one value per row, for the settings that differ; None if a row does not
        have the setting.
      seeds: number of seeds of each row.
      columns: of numbers.
      notes: sentences below the table.
    """

    tasks: Sequence[str]
    methods: Sequence[str]
    settings: dict[str, list[Any]]
    seeds: Sequence[int]
    columns: Sequence[ResultColumn]
    notes: Sequence[str]

    def __repr__(self) -> str:
        return self.markdown()

    def _repr_markdown_(self) -> str:
        return self.markdown()

    def markdown(self) -> str:
        r"""The table in Markdown, the best values in bold, with its notes below.

        Example:
          >>> cells = [Value(0.8, 0.01, best=True), Value(0.75, 0.02)]
          >>> column = ResultColumn("test_accuracy", "test accuracy", "share", cells)
          >>> print(ResultsTable(["digits"] * 2, ["fedadam", "fedavg"], {}, [3, 3], [column],
          ...                    ["Mean over 3 seeds."]).markdown())
          | method  | test accuracy (%) |
          | :------ | ----------------: |
          | fedadam |  **80.00 ± 1.00** |
          | fedavg  |      75.00 ± 2.00 |
          <BLANKLINE>
          Mean over 3 seeds.
        """
        named, numbers = self._text(), [_written(column) for column in self.columns]
        cells = [[_markdown(name), *map(_markdown, values)] for name, values in named.items()]
        cells += [
            [_markdown(heading), *(
                f"**{_plain(shown)}**" if cell.best else _markdown(_plain(shown))
                for shown, cell in zip(column, source.cells, strict=True)
            )] for (heading, column), source in zip(numbers, self.columns, strict=True)
        ]
        widths = [max(3, *map(len, column)) for column in cells]
        lines = []
        for row in zip(*cells, strict=True):
            shown = [
                cell.ljust(width) if place < len(named) else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append(f"| {' | '.join(shown)} |")
        rule = [
            f":{'-' * (width - 1)}" if place < len(named) else f"{'-' * (width - 1)}:"
            for place, width in enumerate(widths)
        ]
        lines.insert(1, f"| {' | '.join(rule)} |")
        return "\n".join([*lines, "", " ".join(map(_markdown, self.notes))])

    def html(self) -> str:
        """The table for a page, with its notes below."""
        columns: dict[str, Sequence[Any]] = dict(self._text())
        for column in self.columns:
            heading, written = _written(column)
            columns[heading] = [
                Cell(
                    f"<strong>{text(_plain(cell))}</strong>" if value.best else text(_plain(cell)),
                    classes="number nowrap",
                ) for cell, value in zip(written, column.cells, strict=True)
            ]
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return f"{plain_table(rows)}\n<p class=\"note\">{escaped(' '.join(self.notes))}</p>"

    def latex(self) -> str:
        """The table in LaTeX, which needs the package booktabs; its notes are the caption.

        It compiles whatever names hold: special characters are escaped, and letters that pdfLaTeX
        lacks become their numbers, such as U+4E2D.
        """
        named, numbers = self._text(), [_written(column) for column in self.columns]
        head = [*map(latex_text, named), *(latex_text(heading) for heading, _ in numbers)]
        lines = [
            r"% \usepackage{booktabs}",
            r"\begin{table}",
            r"  \centering",
            rf"  \caption{{{latex_text(' '.join(self.notes))}}}",
            rf"  \begin{{tabular}}{{{'l' * len(named)}{'r' * len(numbers)}}}",
            r"    \toprule",
            rf"    {' & '.join(head)} \\",
            r"    \midrule",
        ]
        for row, task in enumerate(self.tasks):
            if row and task != self.tasks[row - 1]:
                lines.append(r"    \midrule")
            cells = [latex_text(values[row]) for values in named.values()]
            cells += [
                latex_number(*written[row], bold=column.cells[row].best)
                for (_, written), column in zip(numbers, self.columns, strict=True)
            ]
            lines.append(rf"    {' & '.join(cells)} \\")
        return "\n".join([*lines, r"    \bottomrule", r"  \end{tabular}", r"\end{table}"])

    def csv(self) -> str:
        """The table as CSV, a row a setting, with all digits, in the units of the metrics."""
        rows = self._rows()
        file = io.StringIO(newline="")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(map(safe_cell, rows[0]))
        for row in rows:
            writer.writerow(
                "" if value is None or value != value else safe_cell(  # noqa: PLR0124 - NaN
                    value if isinstance(value, int | float) else printable(str(value))
                ) for value in row.values()
            )
        return file.getvalue().rstrip("\n")

    def to_pandas(self) -> pandas.DataFrame:
        """A data frame with the columns of `csv`.

        Raises:
          ModuleNotFoundError: if pandas is not installed; the message says how to install it.
        """
        return as_frame("A table", self._rows())

    def _rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        remarked = {column.name for column in self.columns if any(v.said for v in column.cells)}
        for row, (task, method) in enumerate(zip(self.tasks, self.methods, strict=True)):
            cells: dict[str, Any] = {"task": task, "method": method}
            cells |= {name: values[row] for name, values in self.settings.items()}
            cells["seeds"] = self.seeds[row]
            for column in self.columns:
                value = column.cells[row]
                cells[column.name] = value.mean
                if column.unit != "p":
                    cells[f"{column.name}_deviation"] = value.deviation
                if column.name in remarked:
                    cells[f"{column.name}_remark"] = value.said
            found.append(cells)
        return found

    def _text(self) -> dict[str, list[str]]:
        """The columns of text, as far as a reader needs them."""
        found: dict[str, list[str]] = {}
        if len(set(self.tasks)) > 1:
            found["task"] = [*map(_shown, self.tasks)]
        found["method"] = [*map(_shown, self.methods)]
        found |= {_shown(name): [*map(_shown, values)] for name, values in self.settings.items()}
        if len(set(self.seeds)) > 1:
            found["seeds"] = [*map(str, self.seeds)]
        return found


def _shown(value: Any) -> str:
    if value is None or value == "":
        return _NONE
    return shortened(printable(in_short(value)))


def _written(column: ResultColumn) -> tuple[str, list[tuple[str, str]]]:
    """A column's heading with its unit; of each cell the mean or what is said, and the spread."""
    means = [cell.mean for cell in column.cells if math.isfinite(cell.mean)]
    sizes = [abs(mean) for mean in means if mean] or [1.0]
    heading, scale = printable(column.heading), 1.0
    if column.unit == "share":
        heading, scale, decimals = f"{heading} (%)", 100.0, 2
    elif column.unit == "bytes":
        power = min(max(int(math.log10(max(sizes)) // 3), 0), len(_PREFIXES) - 1)
        heading, scale = f"{_PREFIXES[power]}{heading.removeprefix('bytes')}", 1000.0 ** -power
        decimals = 0 if power == 0 else _decimals([size * scale for size in sizes])
    elif column.unit == "rounds":
        whole = all(mean == int(mean) for mean in means) and not any(
            cell.deviation > 0 for cell in column.cells
        )
        decimals = 0 if whole else 1
    elif column.unit == "p":
        decimals = 3
    else:
        decimals = _decimals(sizes)
    exponents = column.unit == "number" and (
        max(sizes) > _WIDEST * min(sizes) or not _SMALLEST <= max(sizes) < _LARGEST
    )

    def number(value: float, digits: int = _DIGITS) -> str:
        if not math.isfinite(value):
            return ""
        if column.unit == "p" and value < 10**-decimals:
            return f"<{10**-decimals:g}"
        shown = f"{value:.{digits}g}" if exponents else f"{scale * value:,.{decimals}f}"
        return shown if any(letter in "123456789" for letter in shown) else shown.removeprefix("-")

    return heading, [
        (cell.said or number(cell.mean) or _NONE, "" if cell.said else number(cell.deviation, 2))
        for cell in column.cells
    ]


def _decimals(sizes: Sequence[float]) -> int:
    """With which the smallest of some numbers has its digits."""
    return min(max(_DIGITS - 1 - math.floor(math.log10(min(sizes))), 0), _MOST_DECIMALS)


def _plain(cell: tuple[str, str]) -> str:
    mean, deviation = cell
    return f"{mean} \N{PLUS-MINUS SIGN} {deviation}" if deviation else mean


def _markdown(text: str) -> str:
    """A text that Markdown shows as it is."""
    return _MARKED.sub(r"\\\1", text)
