"""Grids: the values of a method's hyperparameters, and the settings that they make."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedax.sweeps.record import Setting
from fedax.validate import quoted


def require_grid(grid: Any) -> None:
    """Raises a clear error unless a sweep's grid is a dictionary with names as keys.

    Raises:
      TypeError: if it is not.
    """
    if not isinstance(grid, Mapping) or not all(isinstance(name, str) for name in grid):
        raise TypeError(
            'grid must be a dictionary of hyperparameters and their values, such as '
            f'{{"client_learning_rate": [0.1, 0.2]}}, but is {quoted(grid)}.'
        )


def is_number(value: Any) -> bool:
    """Whether it is a real number; True and False are not."""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def different(values: Sequence[Any]) -> list[Any]:
    """The different values: numbers by size, anything else as it first came.

    Example:
      >>> different([1, 0.1, 1.0]), different(["small", "large", "small"])
      ([0.1, 1], ['small', 'large'])
    """
    found: list[Any] = []
    for value in values:
        if not any(same(value, other) for other in found):
            found.append(value)
    return sorted(found) if all(map(is_number, found)) else found


def same(value: Any, other: Any) -> bool:
    """Whether two values of a grid are one; 1 is 1.0, but not true."""
    return isinstance(value, bool) == isinstance(other, bool) and value == other


def product(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination of a grid's values, the last hyperparameter's changing fastest.

    Example:
      >>> product({"a": [1, 2], "b": ["x"]})
      [{'a': 1, 'b': 'x'}, {'a': 2, 'b': 'x'}]
    """
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def settings_of(grids: Mapping[str, Mapping[str, Sequence[Any]]]) -> list[Setting]:
    """The settings of a sweep, numbered: method after method, each over its own grid.

    A method without a grid has one setting.

    Example:
      >>> grids = {"fedavgm": {"momentum": [0.5, 0.9]}, "fedsgd": {}}
      >>> [(one.number, one.algorithm, one.label) for one in settings_of(grids)]
      [(0, 'fedavgm', 'momentum=0.5'), (1, 'fedavgm', 'momentum=0.9'), (2, 'fedsgd', '')]
    """
    pairs = [(method, values) for method, grid in grids.items() for values in product(grid)]
    return [Setting(number, method, values) for number, (method, values) in enumerate(pairs)]
