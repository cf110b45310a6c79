"""The states of all clients of the population, between the rounds in which they take part."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from fedax.algorithm import PyTree


class ClientStore:
    """A client's state from when it first took part; until then it has the initial state.

    Memory grows with the clients that took part, not with the population (but for 4 bytes each),
    and a round reads and writes its own cohort only. Algorithms without client state (`()`)
    store nothing.

    Example:
      >>> store = ClientStore({"c": np.zeros(2)}, num_clients=1000)
      >>> store.write(np.array([7]), {"c": np.ones((1, 2))})
      >>> store.read(np.array([6, 7]))["c"].tolist()
      [[0.0, 0.0], [1.0, 1.0]]
    """

    def __init__(self, initial_state: PyTree, num_clients: int) -> None:
        leaves, self._structure = jax.tree.flatten(initial_state)
        self._initial = [np.asarray(leaf) for leaf in leaves]
        # The client's row, or -1 if it never took part.
        self._row = np.full(num_clients if leaves else 0, -1, np.int32)
        self._used = 0
        self._rows = [np.empty((0, *leaf.shape), leaf.dtype) for leaf in self._initial]

    def read(self, client_ids: np.ndarray) -> PyTree:
        """The stacked states of these clients: leaves [len(client_ids), ...]."""
        leaves = []
        for rows, initial in zip(self._rows, self._initial, strict=True):
            places = self._row[client_ids]
            leaf = np.empty((len(client_ids), *initial.shape), initial.dtype)
            leaf[places < 0] = initial
            leaf[places >= 0] = rows[places[places >= 0]]
            leaves.append(leaf)
        return self._structure.unflatten(leaves)

    def write(self, client_ids: np.ndarray, states: PyTree) -> None:
        """Stores the stacked states of these clients."""
        if not self._rows:
            return
        new = client_ids[self._row[client_ids] < 0]
        self._row[new] = np.arange(self._used, self._used + len(new))
        self._used += len(new)
        self._reserve(self._used)
        for rows, leaf in zip(self._rows, jax.tree.leaves(states), strict=True):
            rows[self._row[client_ids]] = np.asarray(leaf)

    def copy(self) -> ClientStore:
        """A store with the same states; writing to one leaves the other."""
        store = ClientStore(self._structure.unflatten(self._initial), len(self._row))
        store.restore(self.snapshot())
        return store

    def snapshot(self) -> dict[str, Any]:
        """What must be saved: the sorted ids of the clients that took part, and their rows."""
        client_ids = np.flatnonzero(self._row >= 0)
        return {
            "client_ids": client_ids,
            "rows": [rows[self._row[client_ids]] for rows in self._rows],
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Takes a snapshot back, in place of what is stored."""
        self._row[:] = -1
        self._used = 0
        self.write(np.asarray(snapshot["client_ids"]), self._structure.unflatten(snapshot["rows"]))

    def _reserve(self, count: int) -> None:
        """Makes room for `count` rows, at least doubling it when it must grow."""
        if count > len(self._rows[0]):
            size = max(count, 2 * len(self._rows[0]))
            for index, rows in enumerate(self._rows):
                grown = np.empty((size, *rows.shape[1:]), rows.dtype)
                grown[: len(rows)] = rows
                self._rows[index] = grown
