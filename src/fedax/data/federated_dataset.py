"""A federated data set: flat arrays and client offsets."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence

import numpy as np

from fedax.data.checks import require_arrays, require_clients


@dataclasses.dataclass(frozen=True, eq=False)
class FederatedDataset:
    """The examples of all clients in flat arrays; client i owns rows offsets[i]:offsets[i + 1].

    Any client is reached in O(1) and costs no Python object, so 342,477 clients cost a round
    what 100 do. The arrays may be `numpy.memmap`s; nothing here copies them.

    Attributes:
      arrays: name -> array [num_examples, ...]; all have the same leading axis.
      offsets: int64 [num_clients + 1], strictly increasing from 0 to num_examples.
      names: unicode array [num_clients], or None, when a client's name is its index.

    Raises:
      TypeError: the arrays are no dictionary of arrays.
      ValueError: the arrays do not fit together, or a client has no examples.

    Example:
      >>> data = FederatedDataset.from_clients({
      ...     "ada": {"x": np.zeros((3, 2)), "y": np.zeros(3)},
      ...     "bob": {"x": np.ones((1, 2)), "y": np.ones(1)},
      ... })
      >>> data.num_clients, data.num_examples, data.name(1)
      (2, 4, 'bob')
    """

    arrays: Mapping[str, np.ndarray]
    offsets: np.ndarray
    names: np.ndarray | None = None

    def __post_init__(self) -> None:
        require_arrays(self.arrays)
        if not self.arrays:
            raise ValueError("A data set needs at least one array, and got none.")
        lengths = {name: len(array) for name, array in self.arrays.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"All arrays need the same number of examples, but have {lengths}.")
        offsets = np.asarray(self.offsets)
        if offsets.dtype.kind not in "iu":
            raise ValueError(f"The offsets must be whole numbers, but are {offsets.dtype}.")
        offsets = offsets.astype(np.int64)
        num_examples = next(iter(lengths.values()))
        if offsets.ndim != 1 or len(offsets) < 2:
            raise ValueError("A data set needs at least one client, and got none.")
        if offsets[0] != 0 or offsets[-1] != num_examples:
            raise ValueError(
                f"The offsets must go from 0 to the {num_examples} examples that the arrays "
                f"hold, but go from {offsets[0]} to {offsets[-1]}."
            )
        if self.names is not None:
            names = np.asarray(self.names, dtype=str)
            if names.shape != (len(offsets) - 1,):
                raise ValueError(
                    f"{len(offsets) - 1} clients need as many names, but there are {len(names)}."
                )
            unique, counts = np.unique(names, return_counts=True)
            if counts.max() > 1:
                twice = str(unique[counts.argmax()])
                raise ValueError(f"Two clients have the name {twice!r}; names must differ.")
            object.__setattr__(self, "names", names)
        object.__setattr__(self, "offsets", offsets)
        empty = np.flatnonzero(np.diff(offsets) <= 0)
        if empty.size:
            raise ValueError(
                f"Client {self.name(int(empty[0]))!r} has no examples"
                + (f" (one of {empty.size} such clients)" if empty.size > 1 else "")
                + ". Leave empty clients out of the data set."
            )

    @classmethod
    def from_clients(
        cls, clients: Mapping[str, Mapping[str, np.ndarray]] | Sequence[Mapping[str, np.ndarray]]
    ) -> FederatedDataset:
        """Joins the arrays of single clients.

        Args:
          clients: client name -> its arrays by name (or a list of such, when the names are the
            indices); each array's leading axis counts that client's examples.

        Raises:
          TypeError: clients are no dictionaries of arrays.
          ValueError: names, shapes or dtypes differ between clients, a client has no examples,
            or a floating point array holds NaN or infinity. The sentence names the client.
        """
        require_clients(clients)
        if not clients:
            raise ValueError("A data set needs at least one client, and got none.")
        if isinstance(clients, Mapping):
            for name in clients:
                if not isinstance(name, str):
                    raise ValueError(
                        f"Client names must be text, but {name!r} is of type "
                        f"{type(name).__name__}. Clients in a list are named by their index."
                    )
            names = np.asarray(list(clients), dtype=str)
            tables = list(clients.values())
        else:
            names, tables = None, list(clients)
        labels = list(clients) if isinstance(clients, Mapping) else list(range(len(clients)))
        sizes = np.zeros(len(tables), np.int64)
        first = {key: np.asarray(value) for key, value in tables[0].items()}
        columns: dict[str, list[np.ndarray]] = {key: [] for key in first}
        for index, (label, table) in enumerate(zip(labels, tables, strict=True)):
            rows = {key: np.asarray(value) for key, value in table.items()}
            _check_client(label, rows, first)
            sizes[index] = len(next(iter(rows.values())))
            for key, value in rows.items():
                columns[key].append(value)
        arrays = {key: np.concatenate(parts) for key, parts in columns.items()}
        return cls(arrays, np.concatenate([[0], np.cumsum(sizes)]), names)

    def __repr__(self) -> str:
        sizes = self.client_sizes
        arrays = [f"{name} {a.dtype}{list(a.shape[1:])}" for name, a in self.arrays.items()]
        arrays = [*arrays[:8], *(["..."] if len(arrays) > 8 else [])]
        return (
            f"FederatedDataset({self.num_clients:,} clients, {self.num_examples:,} examples of "
            f"{', '.join(arrays)}; {sizes.min():,} to {sizes.max():,} a client, median "
            f"{np.median(sizes):,g})"
        )

    @property
    def num_clients(self) -> int:
        """The size of the population."""
        return len(self.offsets) - 1

    @property
    def num_examples(self) -> int:
        """The number of examples of all clients together."""
        return int(self.offsets[-1])

    @property
    def client_sizes(self) -> np.ndarray:
        """Number of examples of each client, int64 [num_clients]."""
        return np.diff(self.offsets)

    @property
    def nbytes(self) -> int:
        """Size of the arrays in bytes."""
        return sum(array.nbytes for array in self.arrays.values())

    def name(self, index: int) -> str:
        """The name of the client with this index."""
        return str(index) if self.names is None else str(self.names[index])

    def client(self, client: int | str) -> dict[str, np.ndarray]:
        """The arrays of one client, by index or by name, as views.

        Raises:
          KeyError: there is no such client; the sentence suggests the nearest name.
        """
        index = self._index(client)
        rows = slice(int(self.offsets[index]), int(self.offsets[index + 1]))
        return {key: array[rows] for key, array in self.arrays.items()}

    def pooled(self) -> FederatedDataset:
        """All examples as one client's, named "pool"; copies nothing."""
        return FederatedDataset(self.arrays, self.offsets[[0, -1]], np.array(["pool"]))

    def _index(self, client: int | str) -> int:
        if isinstance(client, str) and self.names is not None:
            found = np.flatnonzero(self.names == client)
            if not found.size:
                near = difflib.get_close_matches(client, self.names.tolist(), n=1)
                hint = f" Did you mean {near[0]!r}?" if near else ""
                raise KeyError(f"There is no client {client!r}.{hint}")
            return int(found[0])
        index = int(client)
        if not 0 <= index < self.num_clients:
            raise KeyError(f"Client {index} is not one of the {self.num_clients} clients.")
        return index


def _check_client(
    label: str | int, rows: Mapping[str, np.ndarray], first: Mapping[str, np.ndarray]
) -> None:
    """Raises a sentence if a client's arrays are not like the first client's."""
    if set(rows) != set(first):
        raise ValueError(
            f"Client {label!r} has the arrays {sorted(rows)}, but the first client has "
            f"{sorted(first)}."
        )
    if not rows or any(value.ndim == 0 for value in rows.values()):
        raise ValueError(f"Client {label!r} needs arrays whose first axis counts its examples.")
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
        if np.issubdtype(value.dtype, np.inexact) and not np.isfinite(value).all():
            row = int(np.argwhere(~np.isfinite(value))[0][0])
            raise ValueError(
                f"Client {label!r}: array {key!r} holds a value that is not finite (NaN or "
                f"infinity), first in example {row}. Clean the data or leave the client out."
            )
