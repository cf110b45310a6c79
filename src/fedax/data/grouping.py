"""From rows in any order, each with its client, to clients that own rows side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedax.data.checks import require_arrays, require_clients, require_name
from fedax.data.rows import as_rows, first_not_finite, is_in_a_file, join_rows, take_rows
from fedax.validate import quoted


class Groups(NamedTuple):
    """Rows grouped by client, clients in the order of their first row.

    Attributes:
      order: int64 [num_rows], the rows client by client, each one's in the order in which they
        stood; None if they stand so already.
      offsets: int64 [num_clients + 1], where in `order` a client's rows begin.
      first: int64 [num_clients], a row of each client.
    """

    order: np.ndarray | None
    offsets: np.ndarray
    first: np.ndarray


def group(
    arrays: Mapping[str, Any], clients: np.ndarray, names: np.ndarray | None = None
) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
    """Arrays grouped by client, the clients' offsets and their names.

    Args:
      arrays: name -> array [num_rows, ...].
      clients: [num_rows], see `checked_ids`.
      names: if the clients are codes, what each stands for.

    Raises:
      TypeError: if the arrays are not a dictionary of arrays.
      ValueError: if lengths differ, or an array in memory holds NaN or infinity.
    """
    require_arrays(arrays)
    found = {}
    for key, given in arrays.items():
        array = as_rows(given, f"The array {key!r}")
        if len(array) != len(clients):
            raise ValueError(
                f"The array {key!r} has {len(array)} rows, but there are {len(clients)} client "
                "ids. Each row needs one client id."
            )
        row = None if is_in_a_file(array) else first_not_finite(array)
        if row is not None:
            client = clients[row] if names is None else names[clients[row]]
            raise ValueError(
                f"The array {key!r} holds a value that is not finite (NaN or infinity), first in "
                f"row {row}, of client {client.item()!r}. Clean the data or leave out the row."
            )
        found[key] = array
    order, offsets, first = group_rows(clients)
    if order is not None:
        found = {key: take_rows(array, order) for key, array in found.items()}
    own = clients[first]
    return found, offsets, own if names is None else names[own]


def group_rows(client_ids: np.ndarray) -> Groups:
    """Groups rows by client, stably.

    Example:
      >>> groups = group_rows(np.array(["b", "b", "a", "b", "a"]))
      >>> groups.order.tolist(), groups.offsets.tolist(), groups.first.tolist()
      ([0, 1, 3, 2, 4], [0, 3, 5], [0, 2])
    """
    # Runs of rows of one client; where a client has one run, nothing needs to move.
    starts = np.flatnonzero(np.append(True, client_ids[1:] != client_ids[:-1]))
    lengths = np.diff(np.append(starts, len(client_ids)))
    clients, num_clients = _numbered(client_ids[starts])
    if num_clients == len(starts):
        return Groups(None, np.append(starts, len(client_ids)), starts)
    runs = np.argsort(clients, kind="stable")
    ends = np.cumsum(lengths[runs])
    order = np.arange(len(client_ids)) + np.repeat(
        starts[runs] - ends + lengths[runs], lengths[runs]
    )
    first = np.flatnonzero(np.diff(clients[runs], prepend=-1))
    begins = ends[first] - lengths[runs[first]]
    return Groups(order, np.append(begins, len(client_ids)), starts[runs[first]])


def _numbered(ids: np.ndarray) -> tuple[np.ndarray, int]:
    """Each id's number, in the order in which they first appear, and how many differ.

    By a table, which takes less time than sorting text; blocks keep few Python objects at a time.
    """
    numbers: dict[Any, int] = {}
    numbered = np.empty(len(ids), np.int64)
    for start in range(0, len(ids), 2**16):
        block = ids[start : start + 2**16].tolist()
        numbered[start : start + len(block)] = [
            numbers.setdefault(name, len(numbers)) for name in block
        ]
    return numbered, len(numbers)


def checked_ids(client_ids: Any) -> np.ndarray:
    """Client ids as an array of text or of whole numbers, [num_rows].

    Raises:
      ValueError: if they are something else, or one is missing. The message names the row.
    """
    if hasattr(client_ids, "to_numpy"):  # a column of pandas, polars or Arrow
        client_ids = client_ids.to_numpy()
    if not isinstance(client_ids, np.ndarray):  # as objects, or NaN beside text becomes "nan"
        client_ids = np.array(client_ids, dtype=object)
    if client_ids.ndim != 1:
        raise ValueError(
            f"client_ids must be one id for each row, but have the shape {list(client_ids.shape)}."
        )
    if not len(client_ids):
        raise ValueError("A data set needs at least one row, but client_ids is empty.")
    if client_ids.dtype.kind in "OT":
        client_ids = _of_objects(client_ids)
    kind = client_ids.dtype.kind
    if kind == "f" and np.isnan(client_ids).any():
        raise ValueError(_missing(int(np.isnan(client_ids).argmax())))
    if kind not in "Uiu":
        hint = {"f": "; convert them with client_ids.astype(int)",
                "S": "; decode them with np.char.decode(client_ids)"}.get(kind, "")
        raise ValueError(
            f"client_ids must be text or whole numbers, but are {client_ids.dtype}{hint}."
        )
    return client_ids


def _of_objects(client_ids: np.ndarray) -> np.ndarray:
    """The same as text or numbers."""
    values = client_ids.tolist()
    kinds = {type(value) for value in values}
    if all(issubclass(kind, str) for kind in kinds):
        for row, value in enumerate(values):
            if value.endswith("\0"):  # NumPy's text leaves it out
                raise ValueError(
                    f"The client's id of row {row} is {quoted(value)}, which ends with a null "
                    "character. Leave it out."
                )
        return np.array(values, dtype=str)
    if all(issubclass(kind, int | np.integer) and kind is not bool for kind in kinds):
        return np.array(values)
    for row, value in enumerate(values):
        if _is_missing(value):
            raise ValueError(_missing(row))
    kind = type(values[0])
    for row, value in enumerate(values):
        if type(value) is not kind or not issubclass(kind, str | int | np.integer):
            raise ValueError(
                "client_ids must be all text or all whole numbers, but the one of row "
                f"{row} is {quoted(value)}, of type {type(value).__name__}."
            )
    raise ValueError(f"client_ids must be text or whole numbers, but are {kind.__name__}.")


def _is_missing(value: Any) -> bool:
    # pandas marks missing values with types of its own, which need no import to be known.
    return value is None or type(value).__name__ in ("NAType", "NaTType") or (
        isinstance(value, float) and np.isnan(value)
    )


def _missing(row: int) -> str:
    return (
        f"Row {row} has no client: its id is missing (None or NaN). Fill it in or leave the row "
        "out."
    )


def client_rows(label: str | int, table: Mapping[str, Any]) -> dict[str, Any]:
    """A client's arrays, which must have names and hold numbers."""
    rows = {}
    for name, value in table.items():
        require_name(name)
        rows[name] = as_rows(value, f"Client {label!r}: array {name!r}")
    return rows


def check_client(
    label: str | int, rows: Mapping[str, np.ndarray], first: Mapping[str, np.ndarray]
) -> None:
    """Raises a clear error if a client's arrays are not like the first client's."""
    if set(rows) != set(first):
        raise ValueError(
            f"Client {label!r} has the arrays {sorted(rows)}, but the first client has "
            f"{sorted(first)}. All clients need the same arrays."
        )
    if not rows or any(value.ndim == 0 for value in rows.values()):
        raise ValueError(
            f"Client {label!r} needs at least one array whose first axis counts its examples."
        )
    lengths = {key: len(value) for key, value in rows.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"Client {label!r} has arrays of unequal lengths: {lengths}.")
    if 0 in lengths.values():
        raise ValueError(
            f"Client {label!r} has no examples. Leave empty clients out of the data set."
        )
    for key, value in rows.items():
        expected = first[key]
        if value.dtype != expected.dtype or value.shape[1:] != expected.shape[1:]:
            raise ValueError(
                f"Client {label!r}: array {key!r} is {value.dtype}{list(value.shape[1:])} an "
                f"example, but the first client's is {expected.dtype}{list(expected.shape[1:])}."
            )
        row = first_not_finite(value)
        if row is not None:
            raise ValueError(
                f"Client {label!r}: array {key!r} holds a value that is not finite (NaN or "
                f"infinity), first in example {row}. Clean the data or leave out the client."
            )


def checked_names(names: list[Any]) -> np.ndarray:
    """Client names as an array of text or of whole numbers."""
    kind = str if isinstance(names[0], str) else int | np.integer
    for name in names:
        if not isinstance(name, kind) or isinstance(name, bool):
            raise ValueError(
                f"Client names must be all text or all whole numbers, but {name!r} is of type "
                f"{type(name).__name__}. Clients in a list are named by their index."
            )
    return np.asarray(names)


def first_twice(names: np.ndarray) -> str | int | None:
    """The first name that comes a second time; by a table, which takes less time than sorting."""
    plain = names.tolist()
    if len(set(plain)) == len(plain):
        return None
    seen: set[str | int] = set()
    return next(name for name in plain if name in seen or seen.add(name))


def checked_offsets(offsets: Any, num_examples: int) -> np.ndarray:
    """Where each client's rows begin, int64 [num_clients + 1].

    Raises:
      ValueError: if they are not whole numbers from 0 to the number of examples.
    """
    offsets = np.asarray(offsets)
    if offsets.dtype.kind not in "iu":
        raise ValueError(f"The offsets must be whole numbers, but are {offsets.dtype}.")
    offsets = offsets.astype(np.int64)
    if offsets.ndim != 1 or len(offsets) < 2:
        raise ValueError("A data set needs at least one client, but none was given.")
    if offsets[0] != 0 or offsets[-1] != num_examples:
        raise ValueError(
            f"The offsets must go from 0 to the {num_examples} examples that the arrays "
            f"hold, but go from {offsets[0]} to {offsets[-1]}."
        )
    return offsets


def join_clients(
    clients: Mapping[Any, Mapping[str, Any]] | Sequence[Mapping[str, Any]],
) -> tuple[dict[str, Any], np.ndarray, np.ndarray | None]:
    """The arrays, offsets and names of single clients' arrays, joined.

    Raises:
      TypeError, ValueError: as for `FederatedDataset.from_clients`.
    """
    require_clients(clients)
    if not clients:
        raise ValueError("A data set needs at least one client, but none was given.")
    if isinstance(clients, Mapping):
        labels, tables = list(clients), list(clients.values())
        names = checked_names(labels)
    else:
        labels, tables, names = range(len(clients)), list(clients), None
    sizes = np.zeros(len(tables), np.int64)
    first: dict[str, Any] = {}
    columns: dict[str, list[np.ndarray]] = {key: [] for key in tables[0]}
    for index, (label, table) in enumerate(zip(labels, tables, strict=True)):
        rows = client_rows(label, table)
        first = first or rows
        check_client(label, rows, first)
        sizes[index] = len(next(iter(rows.values())))
        for key, value in rows.items():
            columns[key].append(value)
    arrays = {key: join_rows(parts) for key, parts in columns.items()}
    return arrays, np.concatenate([[0], np.cumsum(sizes)]), names
