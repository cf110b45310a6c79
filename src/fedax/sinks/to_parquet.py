"""A table of the rounds as Parquet, by pyarrow."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow
from pyarrow import parquet

from fedax.sinks.rows import Place, Plain, Row


class _Parquet:
    """metrics.parquet: one row per round, null where a round lacks a metric.

    The settings are JSON in the schema's metadata, as `fedax`. The file is always complete.
    """

    def __init__(self, place: Place, params: Mapping[str, Plain]) -> None:
        place.table.mkdir(parents=True, exist_ok=True)
        self._path = place.table / "metrics.parquet"
        self._about = {"fedax": json.dumps(params)}
        self._parts: list[pyarrow.Table] = []
        self.write([])

    def write(self, rows: Sequence[Row]) -> None:
        names = dict.fromkeys(["round", *(name for row in rows for name in row.metrics)])
        columns = {name: [row.metrics.get(name) for row in rows] for name in names}
        if rows:
            self._parts.append(pyarrow.table(columns))
        empty = pyarrow.table({"round": pyarrow.array([], pyarrow.int64())})
        table = pyarrow.concat_tables([empty, *self._parts], promote_options="permissive")
        self._parts = [table]
        partial = self._path.with_name(self._path.name + ".partial")
        partial.unlink(missing_ok=True)
        parquet.write_table(table.replace_schema_metadata(self._about), partial)
        partial.replace(self._path)

    def close(self, summary: Mapping[str, Any] | None) -> None:
        del summary


open_writer = _Parquet
