"""A table's preprocessing, fitted on the training clients and applied to any rows."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from fedax.data.federated_dataset import FederatedDataset
from fedax.data.preparing.cells import (
    Cells,
    Decimal,
    gaps_of,
    is_number,
    is_numeral,
    place_of,
    read_cells,
    spellings,
    with_labels,
)
from fedax.data.preparing.findings import described
from fedax.outside import guesses
from fedax.validate import quoted

How: TypeAlias = Literal["number", "one_hot", "ordinal", "left out"]
Unlabelled: TypeAlias = Literal["error", "drop"]
Value: TypeAlias = str | int | float | bool | None

FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Column:
    """What one column becomes.

    Attributes:
      name: of the column.
      how: "number"; "ordinal", the place among the categories as a number; "one_hot", a number for
        each category, 1 for the row's and 0 for the others; or "left out".
      why: it is left out.
      fill: the number that a gap becomes; None: a gap is an error.
      mean, deviation: numbers become (value - mean) / deviation.
      categories: of text, in the order of their places; None among them stands for a gap.
      has_other: whether categories that are not among them have a place of their own, the last.
      num_gaps: how many values are missing in the training rows.
      decimal: the sign of the training rows' numbers where it is known: "comma", or "point" of
        those with fractions.
    """

    name: str
    how: How
    why: str = ""
    fill: float | None = None
    mean: float = 0.0
    deviation: float = 1.0
    categories: tuple[Value, ...] = ()
    has_other: bool = False
    num_gaps: int = 0
    decimal: Decimal | None = None

    @property
    def features(self) -> list[str]:
        """The names of the numbers that it becomes."""
        if self.how == "left out":
            return []
        if self.how != "one_hot":
            return [self.name]
        words = ["(missing)" if value is None else str(value) for value in self.categories]
        return [f"{self.name}={word}" for word in [*words, *["(other)"] * self.has_other]]


@dataclasses.dataclass(frozen=True)
class Label:
    """What is learned.

    Attributes:
      name: of the column.
      classes: their values in the order of their numbers, the positive one of two last; empty for
        a regression.
      counts: of the classes, in the training rows.
      mean, deviation: targets of a regression become (value - mean) / deviation.
      why: the label is taken for classes or for numbers.
      decimal: as of a column.
    """

    name: str
    classes: tuple[Value, ...] = ()
    counts: tuple[int, ...] = ()
    mean: float = 0.0
    deviation: float = 1.0
    why: str = ""
    decimal: Decimal | None = None


@dataclasses.dataclass(frozen=True)
class Table:
    """A table's preprocessing, fitted by `fedax.fit_table`.

    It is fitted on the training rows and applied unchanged to all others. A run saves it as
    `table.json` in its folder; `fedax.load_run(folder).table` loads it for new data.

    Attributes:
      client: the column with each row's client.
      columns: the preprocessing of each column.
      label: the label's preprocessing, or None.
      clients: with scaling by client, client -> means and deviations of all numeric columns. Other
          clients are scaled by the statistics of all rows.
      num_rows: the number of training rows.
      decimal: the decimal sign of text that is numbers, "point" or "comma".
      unlabelled: how rows without a label are treated, "error" or "drop".
      findings: possible mistakes in the data, in words.

    Example:
      >>> from fedax import fit_table
      >>> stays = {"ward": ["a", "a", "b"], "age": [30.0, None, 50.0], "died": ["no", "yes", "no"]}
      >>> table = fit_table(stays, client="ward", label="died", missing="mean", scaling="none")
      >>> table.apply(stays).client("a")["x"].tolist(), table.label.classes
      ([[30.0], [40.0]], ('no', 'yes'))
    """

    client: str
    columns: tuple[Column, ...]
    label: Label | None = None
    clients: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]] = dataclasses.field(
        default_factory=dict
    )
    num_rows: int = 0
    decimal: Decimal = "point"
    unlabelled: Unlabelled = "error"
    findings: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(described(self))

    @property
    def features(self) -> list[str]:
        """The names of the columns of `x`."""
        return [name for column in self.columns for name in column.features]

    def apply(self, source: Any) -> FederatedDataset:
        """The rows as a data set with arrays `x`, float32 [num_rows, num_features], and `y`.

        `y` holds class indices (int32) or scaled targets (float32). Without a label column there is
        no `y`.

        Args:
          source: a CSV or Parquet file, a pandas or polars data frame, or a dictionary of columns,
              with the columns of the training rows.

        Raises:
          DataError: if a file cannot be read or is malformed.
          ValueError: if a column does not exist, or a value is missing, unknown or of the wrong
              type. The message names the column and the row.
        """
        cells = cells_for(self, source)
        if self.label is not None and self.unlabelled == "drop":
            cells = with_labels(cells, self.label.name)
        arrays = {"x": self._x(cells)}
        if self.label is not None and self.label.name in cells.columns:
            arrays["y"] = self._y(cells, self.label)
        data = FederatedDataset.from_arrays(arrays, cells.clients)
        return dataclasses.replace(data, table=self)

    def transform(self, source: Any) -> np.ndarray:
        """The rows as numbers, float32 [num_rows, num_features], in their order.

        Args:
          source: as for `apply`; a frame or a dictionary does not need the client column.

        Raises:
          DataError, ValueError: as for `apply`.
        """
        return self._x(cells_for(self, source, needs_client=False))

    def predictions(self, outputs: Any) -> np.ndarray:
        """Turns a model's outputs into labels: the likeliest class, or the unscaled target.

        Args:
          outputs: logits [num_rows, num_classes], or for a regression predictions [num_rows].

        Raises:
          ValueError: if the table has no label, or the outputs have a different shape.
        """
        found = np.asarray(outputs)
        if self.label is None:
            raise ValueError("The table has no label, so it cannot decode outputs.")
        classes = self.label.classes
        if found.ndim != (2 if classes else 1) or (classes and found.shape[1] != len(classes)):
            wanted = f"[num_rows, {len(classes)}]" if classes else "[num_rows]"
            raise ValueError(
                f"outputs must have shape {wanted}, but they have shape {list(found.shape)}."
            )
        if not classes:
            return found.astype(np.float64) * self.label.deviation + self.label.mean
        return np.array(classes)[found.argmax(1)]

    def to_json(self) -> str:
        """The table as JSON, for `from_json`."""
        return json.dumps({"format": FORMAT, **dataclasses.asdict(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> Table:
        """The table that `to_json` wrote.

        Raises:
          ValueError: if it is not such a table.
        """
        try:
            found = json.loads(text)
            if found.pop("format") != FORMAT:
                raise ValueError("its format is from a different version of fedax")
            found["columns"] = tuple(_column_of(one) for one in found["columns"])
            label = found["label"]
            found["label"] = None if label is None else _label_of(label)
            found["clients"] = {
                name: (tuple(means), tuple(deviations))
                for name, (means, deviations) in found["clients"].items()
            }
            table = cls(**found | {"findings": tuple(map(str, found["findings"]))})
            table._check()
        except (
            AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError
        ) as error:
            raise ValueError(f"This is not a table saved by fedax ({error}).") from None
        return table

    def _check(self) -> None:
        """Raises an error unless every number is one that rows can be scaled by."""
        numbers = [*self._scaled]
        if type(self.num_rows) is not int or self.decimal not in ("point", "comma"):
            raise ValueError(f"it has {quoted(self.num_rows)} rows and sign {quoted(self.decimal)}")
        rows = [(c.mean, c.deviation, c.fill or 0.0) for c in self.columns]
        rows += [(self.label.mean, self.label.deviation, 0.0)] if self.label else []
        for means, deviations in self.clients.values():
            if not len(means) == len(deviations) == len(numbers):
                raise ValueError("a client has a different number of columns")
            rows += [(mean, of, 0.0) for mean, of in zip(means, deviations, strict=True)]
        if not all(math.isfinite(value) for row in rows for value in row) or not all(
            row[1] > 0 for row in rows
        ):
            raise ValueError("a mean or a deviation is not a valid number")

    @property
    def _scaled(self) -> list[Column]:
        return [column for column in self.columns if column.how in ("number", "ordinal")]

    def _x(self, cells: Cells) -> np.ndarray:
        """All features of the rows."""
        found = np.empty((cells.num_rows, len(self.features)), np.float32)
        statistics = self._statistics(cells)
        start, place = 0, 0
        for column in self.columns:
            if column.how == "left out":
                continue
            if column.how == "one_hot":
                codes = codes_of(column, cells)
                width = len(column.features)
                found[:, start : start + width] = codes[:, None] == np.arange(width)
            else:
                values = numbers_of(column, cells) if column.how == "number" else (
                    codes_of(column, cells).astype(np.float64)
                )
                mean, deviation = (column.mean, column.deviation) if statistics is None else (
                    statistics[0][:, place], statistics[1][:, place]
                )
                width, place = 1, place + 1
                found[:, start] = (values - mean) / deviation
            start += width
        return found

    def _statistics(self, cells: Cells) -> tuple[np.ndarray, np.ndarray] | None:
        """The means and deviations of each row's client, [num_rows, num_scaled]; None: of all."""
        if not self.clients or cells.clients is None:
            return None
        pooled = tuple(c.mean for c in self._scaled), tuple(c.deviation for c in self._scaled)
        names, owner = np.unique(cells.clients, return_inverse=True)
        own = [self.clients.get(str(name), pooled) for name in names.tolist()]
        return np.array([of[0] for of in own])[owner], np.array([of[1] for of in own])[owner]

    def _y(self, cells: Cells, label: Label) -> np.ndarray:
        """The label of each row."""
        values = cells.columns[label.name]
        gaps = gaps_of(values)
        if gaps.any():
            row = int(gaps.argmax())
            raise ValueError(
                f"{cells.where} has no label in {place_of(cells, row)}: the column {label.name!r} "
                "is empty there. Fill it in, leave out the row, or fit the table with "
                'unlabelled="drop" (on the command line: --set unlabelled=drop).'
            )
        if label.classes:
            column = Column(label.name, "ordinal", categories=label.classes)
            return codes_of(column, cells, "class")
        numbers = numbers_of(Column(label.name, "number"), cells)
        return ((numbers - label.mean) / label.deviation).astype(np.float32)


def cells_for(table: Table, source: Any, *, needs_client: bool = True) -> Cells:
    """The rows, with each column read as it was in the training rows; see `read_cells`."""
    values = {column.name: column.categories for column in table.columns}
    signs: dict[str, Decimal | None] = {one.name: one.decimal for one in table.columns}
    if (label := table.label) is not None:
        values[label.name], signs[label.name] = label.classes, label.decimal
    return read_cells(
        source, table.client, needs_client=needs_client, decimal=table.decimal,
        signs=signs,
        text=[name for name, of in values.items()
              if of and all(value is None or isinstance(value, str) for value in of)],
    )


def numbers_of(column: Column, cells: Cells) -> np.ndarray:
    """A column of numbers with its gaps filled, float64 [num_rows].

    Raises:
      ValueError: it is not there, holds something else or infinity, or a gap cannot be filled.
    """
    values = _values(column, cells)
    gaps = gaps_of(values)
    if not is_number(values) and not gaps.all():
        there = values.tolist()
        wrong = [row for row in np.flatnonzero(~gaps).tolist() if not is_numeral(str(there[row]))]
        row = wrong[0] if wrong else int(gaps.argmin())
        raise ValueError(
            f"{cells.where}: the column {column.name!r} holds {quoted(there[row])} in "
            f"{place_of(cells, row)}, but the training rows hold numbers. Correct it."
        )
    if gaps.any() and column.fill is None:
        raise ValueError(missing(column.name, int(gaps.argmax()), cells))
    numbers = np.where(gaps, column.fill or 0.0, 0.0 if not is_number(values) else values)
    numbers = numbers.astype(np.float64)
    if not np.isfinite(numbers).all():
        row = int(np.isfinite(numbers).argmin())
        raise ValueError(
            f"{cells.where}: the column {column.name!r} holds infinity in {place_of(cells, row)}. "
            "Correct it, or leave out the row."
        )
    return numbers


def codes_of(column: Column, cells: Cells, what: str = "category") -> np.ndarray:
    """The place of each row's category, int32 [num_rows]; of an unknown one the last.

    Raises:
      ValueError: the column is not there, or a category is unknown and has no place.
    """
    values = _values(column, cells)
    places: dict[Any, int] = {value: place for place, value in enumerate(column.categories)}
    other = len(places) if column.has_other else -1
    found: dict[Any, int] = {}
    codes = np.empty(len(values), np.int32)
    gaps = gaps_of(values)
    for row, value in enumerate(values.tolist()):
        key = None if gaps[row] else value
        code = found.get(key)
        if code is None:
            code = found[key] = next(
                (places[one] for one in spellings(key) if one in places), other
            )
        codes[row] = code
    if (codes < 0).any():
        row = int((codes < 0).argmax())
        if gaps[row]:
            raise ValueError(missing(column.name, row, cells))
        cell = quoted(values.tolist()[row])
        raise ValueError(
            f"{cells.where}: the column {column.name!r} has the {what} {cell} in "
            f"{place_of(cells, row)}, which is not among the {len(places)} of the training rows: "
            f"{quoted(list(column.categories))}. " + (
                "Leave out the row." if what == "class" else
                'Leave out the row, or fit the table with unknown="column" (on the command line: '
                "--set unknown=column)."
            )
        )
    return codes


def missing(name: str, row: int, cells: Cells) -> str:
    """That a value is missing, and what to do."""
    return (
        f"{cells.where}: the column {name!r} has a missing value in {place_of(cells, row)}. Fit "
        'the table with missing="mean" or with a number (on the command line: --set '
        "missing=mean), or leave out the row."
    )


def _values(column: Column, cells: Cells) -> np.ndarray:
    if column.name not in cells.columns:
        near = guesses.nearest(column.name, list(cells.columns))
        raise ValueError(
            f"{cells.where} does not have the column {column.name!r}, which the training rows have"
            + (f"; did you mean {near!r} there?" if near else ".")
        )
    return cells.columns[column.name]


def _column_of(record: Mapping[str, Any]) -> Column:
    """A column as it was written down."""
    column = Column(**{**record, "categories": _values_of(record, "categories")})
    known: Sequence[str] = ("number", "one_hot", "ordinal", "left out")
    if column.how not in known or type(column.has_other) is not bool:
        raise ValueError(f"a column has the unknown kind {quoted(column.how)}")
    return column


def _label_of(record: Mapping[str, Any]) -> Label:
    """A label as it was written down."""
    return Label(**{
        **record, "classes": _values_of(record, "classes"), "counts": tuple(record["counts"])
    })


def _values_of(record: Mapping[str, Any], key: str) -> tuple[Any, ...]:
    """The categories or classes of a column, which has a name and a known decimal sign."""
    values, name, sign = record[key], record["name"], record.get("decimal")
    if type(name) is not str or sign not in (None, "point", "comma"):
        raise ValueError(f"a column has the name {quoted(name)} and the sign {quoted(sign)}")
    if type(values) is not list or not all(
        value is None or isinstance(value, str | int | float) for value in values
    ):
        raise ValueError(f"the {key} of {name!r} are {quoted(values)}")
    return tuple(values)
