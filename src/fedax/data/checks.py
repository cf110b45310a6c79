"""Checks of the clients and arrays that a data set is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedax.data.errors import DataError
from fedax.mistakes.errors import kind_of
from fedax.validate import quoted

# The most bytes that JAX has for a number of NumPy's kinds; bfloat16 and its like are of kind V.
_LARGEST = {"b": 1, "i": 8, "u": 8, "f": 8, "c": 16, "V": 8}

# Whole numbers in arrays of these names are classes, which count from 0.
LABELS = ("y", "label", "labels", "coarse", "coarse_label", "fine_label")

_TABLE = '{"x": x, "y": y}'


def require_clients(clients: Any) -> None:
    """Raises a clear error unless it is a dictionary or a list of dictionaries of arrays.

    Raises:
      TypeError: if it is something else, such as a pair of arrays per client.
    """
    if not isinstance(clients, Mapping | list | tuple):
        raise TypeError(
            "FederatedDataset.from_clients takes a dictionary, client name -> its arrays, such as "
            f"{_TABLE}, or a list of these, but got {kind_of(clients)}."
        )
    named = clients.items() if isinstance(clients, Mapping) else enumerate(clients)
    for label, table in named:
        if not isinstance(table, Mapping):
            raise TypeError(
                f"Client {label!r} is {kind_of(table)}, but must be a dictionary "
                f"of arrays by name, such as {_TABLE}."
            )


def require_arrays(arrays: Any) -> None:
    """Raises a clear error unless it is a dictionary of arrays with a first axis.

    Raises:
      TypeError: if it is something else.
    """
    if not isinstance(arrays, Mapping):
        raise TypeError(
            "arrays must be a dictionary, name -> array [num_examples, ...], but it is "
            f"{kind_of(arrays)}. Give each array a name, as in {_TABLE}."
        )
    for name, array in arrays.items():
        require_name(name)
        if np.isscalar(array) or getattr(array, "ndim", 1) == 0:
            raise TypeError(
                f"The array {name!r} needs a first axis that counts the examples, but is "
                f"{quoted(array)}."
            )


def require_name(name: Any) -> None:
    """Raises a clear error unless an array's name is text.

    Raises:
      TypeError: if it is something else.
    """
    if not isinstance(name, str):
        raise TypeError(f"An array's name must be text, such as 'x', but is {name!r}.")


def require_numbers(what: str, dtype: np.dtype) -> None:
    """Raises a clear error unless a model can compute with arrays of this dtype.

    Args:
      what: the array, such as "The array 'x'".
      dtype: of the array.

    Raises:
      ValueError: if it is text, objects, dates, or a numeric type that JAX does not have.
    """
    is_number = jnp.issubdtype(dtype, jnp.number) or jnp.issubdtype(dtype, jnp.bool_)
    if is_number and dtype.isnative and dtype.itemsize <= _LARGEST.get(dtype.kind, 0):
        return
    held, cure = f"{dtype}", "Convert it to numbers, as in array.astype(np.float32)"
    if dtype.kind in "UST":
        held = f"text ({dtype})"
        cure = "Encode it as integers, as in np.unique(text, return_inverse=True)[1]"
    elif dtype.kind == "O":
        held = "objects (dtype object), often because its rows have unequal lengths"
        cure = "Convert them to one array of numbers; pad sequences to one length"
    elif not dtype.isnative:
        held = f"{dtype}, numbers in another machine's byte order"
        cure = "Convert it, as in array.astype(array.dtype.newbyteorder('='))"
    raise ValueError(
        f"{what} holds {held}, but models need numbers. {cure}, or leave the array out."
    )


def require_labels(name: str | int, rows: Mapping[str, np.ndarray]) -> None:
    """Raises a clear error if an array of labels has a negative one.

    Args:
      name: the client's.
      rows: its arrays.

    Raises:
      DataError: if the class of an example is negative.
    """
    for key in LABELS:
        values = rows.get(key)
        if values is not None and values.dtype.kind == "i" and values.min() < 0:
            example = int(np.argwhere(values < 0)[0][0])
            raise DataError(
                f"Client {quoted(name)}: {key!r} of example {example} is {values.min()}, but "
                "labels must be 0 or more. Number the classes from 0; for regression, "
                "give the targets as floating point."
            )


def checked_indices(indices: Any, num_clients: int) -> np.ndarray:
    """Indices of clients, int64 [any].

    Raises:
      ValueError: if they are not whole numbers.
        KeyError: if no client has one of the indices.
    """
    chosen = np.asarray(indices)
    if chosen.ndim != 1 or (len(chosen) and chosen.dtype.kind not in "iu"):
        raise ValueError(
            "Indices of clients must be a list of whole numbers, but are "
            f"{quoted(indices)}. To select by name, use client(...) or select(...)."
        )
    for index in chosen[(chosen < 0) | (chosen >= num_clients)].tolist():
        raise KeyError(
            f"There is no client with index {index}: the data set has {num_clients} clients, "
            "numbered from 0."
        )
    return chosen.astype(np.int64)
