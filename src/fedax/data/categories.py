"""Categories: the values of a text column, with the same codes in all data sets of a task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedax.validate import quoted, unknown

_CURE = "Make the test set with categories=train, so that both use the same codes."


def given_categories(given: Any, names: Sequence[Any]) -> dict[str, tuple[Any, ...]]:
    """Column -> its categories in the order of their numbers, of what a user gave.

    Args:
      given: a dictionary of lists, a data set that remembers its categories, a frame whose columns
        of text and categories count, or None.
      names: of the columns that are there.

    Raises:
      ValueError: if a category occurs twice, a column does not exist, or a data set has no
          categories.
    """
    if given is None:
        return {}
    if hasattr(given, "arrays"):
        if not given.categories:
            raise ValueError(
                "categories= was given a data set, but it has no categories. "
                "Make the training set with categories={column: [value, ...]}."
            )
        return {name: own for name, own in given.categories.items() if name in names}
    if hasattr(given, "columns"):
        found = {name: _of_frame(given[name]) for name in given.columns}
        return {name: own for name, own in found.items() if own and name in names}
    if not isinstance(given, Mapping):
        raise ValueError(
            "categories must be {column: [value, ...]} or the training set, but is "
            f"{quoted(given)}."
        )
    for name, values in given.items():
        if name not in names:
            raise ValueError(unknown("column in categories", name, map(str, names)))
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise ValueError(
                f"The categories of the column {name!r} must be a list, but are {quoted(values)}."
            )
    found = {name: tuple(np.asarray(values).tolist()) if isinstance(values, np.ndarray)
             else tuple(values) for name, values in given.items()}
    for name, values in found.items():
        for value in values:
            if values.count(value) > 1:
                raise ValueError(
                    f"The category {quoted(value)} occurs twice in the categories of the column "
                    f"{name!r}."
                )
    return found


def _of_frame(series: Any) -> tuple[Any, ...]:
    """The categories of a column of a frame; of text its values in order, of numbers none."""
    own = own_categories(series)
    if own is not None:
        return own
    values = set(series.drop_nulls().to_list() if hasattr(series, "drop_nulls")
                 else series.dropna().to_list())
    return tuple(sorted(values)) if all(isinstance(value, str) for value in values) else ()


def own_categories(series: Any) -> tuple[Any, ...] | None:
    """Those of a categorical column of pandas or an `Enum` of polars; None for another."""
    kind = str(series.dtype)
    if kind == "category":
        return tuple(series.cat.categories.to_list())
    if kind.startswith("Enum"):
        return tuple(series.dtype.categories.to_list())
    return None


def numbered(values: Sequence[Any], categories: Sequence[Any], name: str) -> np.ndarray:
    """Each value's place among the categories, int32.

    Raises:
      ValueError: if a value is not among them. The message names it and its row.

    Example:
      >>> numbered(["b", "a", "b"], ("a", "b"), "city").tolist()
      [1, 0, 1]
    """
    places = {value: place for place, value in enumerate(categories)}
    codes = np.fromiter((places.get(value, -1) for value in values), np.int32, len(values))
    if (codes < 0).any():
        row = int(np.argmax(codes < 0))
        raise ValueError(
            f"The column {name!r} has the category {quoted(values[row])}, first in row {row}, "
            f"which is not among its {len(categories)} categories: {quoted(list(categories))}. Add "
            "it there (a model then has one more), or leave out the row."
        )
    return codes


def require_alike(train: Mapping[str, Sequence[Any]], test: Mapping[str, Sequence[Any]]) -> None:
    """Raises a clear error if a category of the test set has another number in the training set.

    Args:
      train, test: column -> its categories.

    Raises:
      ValueError: if codes differ. The message names the column and the category.
    """
    for name in sorted(train.keys() & test.keys()):
        for place, value in enumerate(test[name]):
            if value not in train[name]:
                raise ValueError(
                    f"The column {name!r} has the category {quoted(value)} in test, but not in "
                    f"train. {_CURE}"
                )
            number = list(train[name]).index(value)
            if number != place:
                raise ValueError(
                    f"The column {name!r} has different codes in train and test: "
                    f"{quoted(value)} is {number} in train and {place} in test. {_CURE}"
                )
