"""A table of the rounds as CSV, which any program reads."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from typing import Any

from fedax.data.csv_cells import safe_cell
from fedax.sinks.rows import Place, Plain, Row


class _Csv:
    """metrics.csv: one line per round, with an empty cell where a round lacks a metric.

    When a round brings a new metric, the lines before it get an empty cell. The settings are in
    the folder's config.json.
    """

    def __init__(self, place: Place, params: Mapping[str, Plain]) -> None:
        del params
        place.table.mkdir(parents=True, exist_ok=True)
        self._path = place.table / "metrics.csv"
        self._names: list[str] = ["round"]
        self._path.unlink(missing_ok=True)  # not through a link
        self._file = self._path.open("x", encoding="utf-8", newline="")
        self._rows(self._file).writerow(self._names)

    def write(self, rows: Sequence[Row]) -> None:
        names = dict.fromkeys(name for row in rows for name in row.metrics)
        new = [name for name in names if name not in self._names]
        if new:
            self._widen(new)
        lines = self._rows(self._file)
        for row in rows:
            lines.writerow([safe_cell(row.metrics.get(name, "")) for name in self._names])
        self._file.flush()

    def close(self, summary: Mapping[str, Any] | None) -> None:
        del summary
        self._file.close()

    def _widen(self, new: Sequence[str]) -> None:
        """Adds columns."""
        self._file.close()
        partial = self._path.with_name(self._path.name + ".partial")
        partial.unlink(missing_ok=True)
        with (
            self._path.open(encoding="utf-8", newline="") as old,
            partial.open("x", encoding="utf-8", newline="") as wider,
        ):
            lines = csv.reader(old)
            next(lines)
            self._names += new
            self._rows(wider).writerow(map(safe_cell, self._names))
            self._rows(wider).writerows([*line, *("" for _ in new)] for line in lines)
        partial.replace(self._path)
        self._file = self._path.open("a", encoding="utf-8", newline="")

    @staticmethod
    def _rows(file: Any) -> Any:
        return csv.writer(file, lineterminator="\n")


open_writer = _Csv
