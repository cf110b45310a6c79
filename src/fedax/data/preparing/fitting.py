"""Deciding what a table's columns become, on the training rows."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from fedax.data.preparing.cells import (
    Cells,
    Decimal,
    gaps_of,
    has_commas,
    is_number,
    read_cells,
    sign_of,
    with_labels,
)
from fedax.data.preparing.findings import findings_of
from fedax.data.preparing.table import (
    Column,
    Label,
    Table,
    Unlabelled,
    Value,
    codes_of,
    missing,
    numbers_of,
)
from fedax.validate import check_choice, quoted, unknown

Missing: TypeAlias = float | str
Encoding: TypeAlias = Literal["one_hot", "ordinal"]
Unknown: TypeAlias = Literal["error", "column"]
Scaling: TypeAlias = Literal["pooled", "client", "none"]
Objective: TypeAlias = Literal["auto", "classification", "regression"]

# A label of whole numbers with at most this many values is taken for classes.
MOST_CLASSES = 20
# Text with more values is left out, if nobody says which columns to take.
MOST_CATEGORIES = 100
MOST_FEATURES = 2**14
# Columns of unlike values are no ids in a table of fewer rows.
_FEWEST_ROWS = 20
# The share of different whole numbers from which a column with the name of an id is one.
_NEARLY = 0.9
_AN_ID = "has a different value in every row, like an id"
_ID = re.compile(r"(^|[_\W])(id|ids|uuid|guid|key|index|idx|nr|no|number)$|[a-z](Id|ID)$", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ]|$)", re.ASCII)


@dataclasses.dataclass(frozen=True)
class _Options:
    missing: Missing | Mapping[str, Missing]
    encoding: Encoding
    has_other: bool
    categories: Mapping[str, Sequence[Any]]
    chooses: bool

    def missing_of(self, name: str) -> Missing:
        return self.missing.get(name, "error") if isinstance(self.missing, Mapping) else (
            self.missing
        )


def fit_table(
    source: Any,
    *,
    client: str,
    label: str | None = None,
    columns: Iterable[str] | None = None,
    missing: Missing | Mapping[str, Missing] = "error",
    encoding: Encoding = "one_hot",
    unknown: Unknown = "error",
    categories: Mapping[str, Sequence[Any]] | None = None,
    scaling: Scaling = "pooled",
    objective: Objective = "auto",
    positive: Any = None,
    decimal: Decimal = "point",
    unlabelled: Unlabelled = "error",
) -> Table:
    """Fits a table's preprocessing on the training rows.

    Give it only the training rows: they determine means, deviations and categories, and
    `Table.apply` prepares all other rows in the same way. Missing values are filled in first; then
    numbers are scaled, by the population standard deviation (divisor n).

    Args:
      source: a CSV or Parquet file, a pandas or polars data frame, or a dictionary of columns.
      client: the column with each row's client.
      label: the column to predict; None: no label.
      columns: the columns to use as features; None: all others except ids, constant columns, dates,
          and text with more than 100 values.
      missing: how to fill in missing numbers: "error", "mean" of the training rows, or a number; or
          column -> one of these. A missing text is its own category, except with "error".
      encoding: of text: "one_hot", one feature per category, or "ordinal", the category's index.
      unknown: how to treat text that is not in the training rows: "error", or "column", an extra
          category.
      categories: column -> its values in order, text or numbers. Otherwise the sorted values of the
          training rows.
      scaling: of numbers, to mean 0 and deviation 1: "pooled", by all training rows; "client", by
          the training rows of the row's client (for new clients, by all); or "none".
      objective: "classification", "regression", or "auto": classification if the label is text,
          boolean, or whole numbers with at most 20 values.
      positive: the positive class of two, encoded as 1; None: the last in sorted order.
      decimal: with "comma", text such as 27,4 or 1.250,75 is read as numbers.
      unlabelled: how to treat rows without a label: "error" or "drop".

    Returns:
      The table; printing it shows what it does with each column.

    Raises:
      DataError: if a file cannot be read or is malformed.
      ValueError: if a column does not exist, or a value is invalid. The message names the row.
    """
    check_choice("encoding", encoding, ("one_hot", "ordinal"))
    check_choice("unknown", unknown, ("error", "column"))
    check_choice("scaling", scaling, ("pooled", "client", "none"))
    check_choice("objective", objective, ("auto", "classification", "regression"))
    check_choice("decimal", decimal, ("point", "comma"))
    check_choice("unlabelled", unlabelled, ("error", "drop"))
    cells = read_cells(source, client, decimal=decimal)
    if unlabelled == "drop":
        cells = with_labels(cells, label)
    chosen = _chosen(cells, label, columns)
    for what, given in (("missing", missing), ("categories", categories)):
        if isinstance(given, Mapping):
            _check_names(f"column in {what}", given, chosen)
    options = _Options(
        missing, encoding, unknown == "column", _as_lists(categories or {}), columns is not None
    )
    for given in missing.values() if isinstance(missing, Mapping) else (missing,):
        _check_missing(given)
    found = [_column(name, cells, options) for name in chosen]
    taken = [column for column in found if column.how != "left out"]
    if not taken:
        why = "; ".join(f"{column.name!r} {column.why}" for column in found)
        raise ValueError(
            "No feature column remains"
            + (f": {why}. Choose some with columns=[...] (on the command line: --set columns=A,B)."
               if why else ".")
        )
    width = sum(len(column.features) for column in taken)
    if width > MOST_FEATURES:
        raise ValueError(
            f"The table would have {width:,} features, more than {MOST_FEATURES:,}. Use fewer "
            'columns, or encoding="ordinal" (on the command line: --set encoding=ordinal).'
        )
    of_clients: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {}
    if scaling != "none":
        found, of_clients = _scaled(found, cells, by_client=scaling == "client")
    made = None if label is None else _label(label, cells, objective, positive, scaling)
    table = Table(
        client, tuple(found), made, of_clients, cells.num_rows, decimal, unlabelled
    )
    return dataclasses.replace(table, findings=findings_of(table, cells))


def _as_lists(given: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    for name, values in given.items():
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise ValueError(
                f"The categories of the column {name!r} must be a list, but they are "
                f"{quoted(values)}."
            )
        listed = list(values)
        twice = [value for place, value in enumerate(listed) if value in listed[:place]]
        if twice:
            raise ValueError(
                f"The category {quoted(twice[0])} occurs twice in the categories of the column "
                f"{name!r}."
            )
    return {
        name: values.tolist() if isinstance(values, np.ndarray) else list(values)
        for name, values in given.items()
    }


def _check_missing(given: Any) -> None:
    is_number_given = isinstance(given, int | float) and not isinstance(given, bool)
    if given not in ("error", "mean") and not (is_number_given and np.isfinite(given)):
        raise ValueError(f'missing must be "error", "mean" or a number, but it is {quoted(given)}.')


def _check_names(what: str, names: Iterable[str], there: Sequence[str]) -> None:
    for name in names:
        if name not in there:
            raise ValueError(unknown(what, name, there))


def _chosen(cells: Cells, label: str | None, columns: Iterable[str] | None) -> list[str]:
    """The columns to learn from."""
    if label is not None:
        _check_names("label column", [label], list(cells.columns))
    others = [name for name in cells.columns if name != label]
    if columns is None:
        return others
    chosen = [columns] if isinstance(columns, str) else list(columns)
    if label in chosen:
        raise ValueError(f"The column {label!r} is the label, so it cannot be a feature.")
    _check_names("column", chosen, others)
    return list(dict.fromkeys(chosen))


def _column(name: str, cells: Cells, options: _Options) -> Column:
    """What a column becomes, not scaled yet."""
    values = cells.columns[name]
    gaps = gaps_of(values)
    num_gaps = int(gaps.sum())
    listed = options.categories.get(name, cells.categories.get(name))
    if not options.chooses and name not in options.categories:
        why = _why_not(name, values, gaps, cells)
        if why:
            return Column(name, "left out", why, num_gaps=num_gaps)
    rule = options.missing_of(name)
    if num_gaps and rule == "error":
        raise ValueError(missing(name, int(gaps.argmax()), cells))
    if listed is None and (is_number(values) or gaps.all()):
        plain = Column(name, "number", fill=0.0, decimal=sign_of(name, cells))
        if rule == "error":
            fill = None
        elif rule == "mean":
            there = numbers_of(plain, cells)[~gaps]
            fill = float(there.mean()) if len(there) else 0.0
        else:
            fill = float(rule)
        return dataclasses.replace(plain, fill=fill, num_gaps=num_gaps)
    found = tuple(listed) if listed is not None else _sorted(name, values[~gaps].tolist())
    if num_gaps and None not in found:
        found = (*found, None)
    column = Column(
        name, options.encoding, categories=tuple(map(_plain, found)), has_other=options.has_other,
        num_gaps=num_gaps,
    )
    codes_of(column, cells)  # what is not listed is an error, or has a place
    return column


def _plain(value: Any) -> Value:
    """A category as JSON holds it."""
    value = value.item() if isinstance(value, np.generic) else value
    if value is not None and not isinstance(value, str | int | float):
        raise ValueError(f"A category must be text or a number, but one is {quoted(value)}.")
    return value


def _sorted(name: str, values: list[Any]) -> tuple[Any, ...]:
    """The values that differ, in order."""
    kinds = {type(value) for value in values}
    if len(kinds) > 1 or not kinds <= {str, bool, int, float}:
        odd = next(value for value in values if type(value) is not str)
        raise ValueError(
            f"The column {name!r} holds {quoted(odd)}, of type {type(odd).__name__}, which is "
            "neither text nor a number. Convert it, or leave out the column."
        )
    return tuple(sorted(set(values)))


def _why_not(name: str, values: np.ndarray, gaps: np.ndarray, cells: Cells) -> str:
    """Why a column is left out if nobody asked for it; empty: it is taken."""
    there = values[~gaps].tolist()
    kinds = {type(value) for value in there}
    why = ""
    if not there:
        why = "has no values"
    elif not kinds <= {str, bool, int, float}:
        why = f"holds {', '.join(sorted(kind.__name__ for kind in kinds - {str}))}"
    elif len(kinds) > 1 and str in kinds:
        why = "holds text and numbers"
    elif len(set(there)) == 1:
        why = "has the same value in every row" + (", and gaps" if gaps.any() else "")
    elif str in kinds:
        is_listed = name in cells.categories
        why = "" if is_listed else _why_no_text(set(there), len(there))
        if not why and cells.clients is not None and _names_clients(values, gaps, cells.clients):
            why = "only names the client"
    elif values.dtype.kind in "iu" and len(there) >= _FEWEST_ROWS:
        distinct = set(there)
        if len(distinct) == len(there):
            why = _AN_ID if _counts(name, distinct) else ""
        elif len(distinct) > _NEARLY * len(there) and _ID.search(name):
            why = "has another value in nearly every row, as an id does"
    return why


def _why_no_text(distinct: set[str], num_rows: int) -> str:
    """Why text is left out that has these values."""
    if all(_DATE.match(value) for value in distinct):
        return "holds dates"
    if len(distinct) == num_rows >= _FEWEST_ROWS:
        return _AN_ID
    if len(distinct) > MOST_CATEGORIES:
        return f"has {len(distinct):,} different texts"
    return ""


def _counts(name: str, distinct: set[int]) -> bool:
    """Whether whole numbers that all differ are an id by name, or count the rows."""
    return bool(_ID.search(name)) or max(distinct) - min(distinct) < 2 * len(distinct)


def _require_classes(name: str, values: np.ndarray, count: int) -> None:
    """Raises an error if text cannot be classes: numbers, or a text of its own in most rows."""
    if has_commas(values):
        raise ValueError(
            f"The label {name!r} looks like numbers with decimal commas, such as "
            f'{quoted(values[0])}. Read them as numbers with decimal="comma" (on the command line: '
            "--set decimal=comma)."
        )
    if count > MOST_CATEGORIES and 2 * count > len(values):
        raise ValueError(
            f"The label {name!r} has {count:,} different texts in {len(values):,} rows, too many "
            "to be classes. Choose another column, or convert it to numbers."
        )


def _names_clients(values: np.ndarray, gaps: np.ndarray, clients: np.ndarray) -> bool:
    """Whether every client has one value of its own."""
    pairs = set(zip(clients[~gaps].tolist(), values[~gaps].tolist(), strict=True))
    return 2 < len(pairs) == len({own for own, _ in pairs}) == len({of for _, of in pairs})


def _scaled(
    columns: list[Column], cells: Cells, *, by_client: bool
) -> tuple[list[Column], dict[str, tuple[tuple[float, ...], tuple[float, ...]]]]:
    """The columns with means and deviations, and those of each client."""
    numbers = {
        column.name: (numbers_of if column.how == "number" else codes_of)(column, cells)
        for column in columns if column.how in ("number", "ordinal")
    }
    found = []
    for column in columns:
        if column.name in numbers:
            mean, deviation = _statistics(numbers[column.name])
            column = dataclasses.replace(column, mean=mean, deviation=deviation)  # noqa: PLW2901
        found.append(column)
    if not by_client or cells.clients is None or not numbers:
        return found, {}
    stacked = np.stack(list(numbers.values()), 1)
    names, owner = np.unique(cells.clients, return_inverse=True)
    order = np.argsort(owner, kind="stable")
    ends = np.cumsum(np.bincount(owner))
    of_clients = {}
    for name, rows in zip(names.tolist(), np.split(order, ends[:-1]), strict=True):
        own = [_statistics(stacked[rows, place]) for place in range(stacked.shape[1])]
        of_clients[str(name)] = (tuple(mean for mean, _ in own), tuple(of for _, of in own))
    return found, of_clients


def _statistics(values: np.ndarray) -> tuple[float, float]:
    """Mean and deviation of the rows; the deviation of equal values is 1."""
    return float(values.mean()), float(values.std()) if np.ptp(values) else 1.0


def _label(
    name: str, cells: Cells, objective: Objective, positive: Any, scaling: Scaling
) -> Label:
    """What the label is, by its values."""
    values = cells.columns[name]
    gaps = gaps_of(values)
    if gaps.any():
        raise ValueError(
            f"{missing(name, int(gaps.argmax()), cells).split('. Fit')[0]}. It is the label, and "
            f"missing in {int(gaps.sum()):,} of {len(gaps):,} rows. Fill it in, or leave such rows "
            'out with unlabelled="drop" (on the command line: --set unlabelled=drop).'
        )
    listed = cells.categories.get(name)
    there = values.tolist()
    counts = Counter(there)
    is_whole = is_number(values) and all(float(value).is_integer() for value in counts)
    if is_number(values) and not is_whole:
        why = "its values are numbers with decimals"
    elif is_number(values):
        words = "truth values" if values.dtype.kind == "b" else "whole numbers"
        why = f"it has {len(counts):,} {words}"
    else:
        why = f"it has {len(counts):,} texts"
    is_class = not is_number(values) or (is_whole and len(counts) <= MOST_CLASSES)
    if objective != "auto":
        is_class, why = objective == "classification", "you say so"
    if is_class and not is_number(values) and listed is None:
        _require_classes(name, values, len(counts))
    if not is_class:
        if positive is not None:
            raise ValueError(f"positive={quoted(positive)} needs classes, but {name!r} has none.")
        numbers = numbers_of(Column(name, "number"), cells)
        mean, deviation = (0.0, 1.0) if scaling == "none" else _statistics(numbers)
        sign = sign_of(name, cells)
        return Label(name, mean=mean, deviation=deviation, why=why, decimal=sign)
    if is_whole and values.dtype.kind == "f":
        there = [int(value) for value in there]
    classes = list(listed) if listed is not None else list(_sorted(name, there))
    if len(classes) < 2:
        raise ValueError(
            f"The label {name!r} is {quoted(classes[0])} in every training row, so there is "
            "nothing to learn. Choose another column."
        )
    if positive is not None:
        if len(classes) != 2 or not {positive, str(positive)} & {*classes, *map(str, classes)}:
            raise ValueError(
                f"positive={quoted(positive)} is not one of two classes of the label {name!r}: "
                f"{quoted(classes)}."
            )
        classes.sort(key=lambda value: str(value) == str(positive))
    return Label(
        name, tuple(map(_plain, classes)), tuple(counts[value] for value in classes), why=why,
        decimal=sign_of(name, cells),
    )
