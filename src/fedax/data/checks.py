"""Whether clients and arrays are given in the form that a data set is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedax.mistakes.errors import kind_of

_TABLE = '{"x": x, "y": y}'


def require_clients(clients: Any) -> None:
    """Raises a sentence unless it is a dictionary or a list of dictionaries of arrays.

    Raises:
      TypeError: it is something else, such as a pair of arrays a client.
    """
    if not isinstance(clients, Mapping | list | tuple):
        raise TypeError(
            "FederatedDataset.from_clients takes a dictionary, client name -> its arrays such as "
            f"{_TABLE}, or a list of such, but got {kind_of(clients)}."
        )
    named = clients.items() if isinstance(clients, Mapping) else enumerate(clients)
    for label, table in named:
        if not isinstance(table, Mapping):
            raise TypeError(
                f"Client {label!r} is given as {kind_of(table)}, but each client is a dictionary "
                f"of its arrays by name, such as {_TABLE}."
            )


def require_arrays(arrays: Any) -> None:
    """Raises a sentence unless it is a dictionary of arrays with a first axis.

    Raises:
      TypeError: it is something else.
    """
    if not isinstance(arrays, Mapping):
        raise TypeError(
            f"arrays must be a dictionary, name -> array [num_examples, ...], but is "
            f"{kind_of(arrays)}. Give each array a name, as in {_TABLE}."
        )
    for name, array in arrays.items():
        if np.isscalar(array) or getattr(array, "ndim", 1) == 0:
            raise TypeError(
                f"The array {name!r} needs a first axis that counts the examples, but is "
                f"{array!r}."
            )
