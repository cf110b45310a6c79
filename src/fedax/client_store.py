"""The states of all clients of the population, between the rounds in which they take part."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from fedax.algorithm import PyTree


class ClientStore:
    """One row a client in flat arrays; a client that never took part has the initial state.

    Memory is touched row by row as clients take part, and a round reads and writes the rows of
    its cohort only. Algorithms without client state (`()`) store nothing.

    Example:
      >>> store = ClientStore({"c": np.zeros(2)}, num_clients=1000)
      >>> store.write(np.array([7]), {"c": np.ones((1, 2))})
      >>> store.read(np.array([6, 7]))["c"].tolist()
      [[0.0, 0.0], [1.0, 1.0]]
    """

    def __init__(self, initial_state: PyTree, num_clients: int) -> None:
        leaves, self._structure = jax.tree.flatten(initial_state)
        self._initial = [np.asarray(leaf) for leaf in leaves]
        self._rows = [np.zeros((num_clients, *leaf.shape), leaf.dtype) for leaf in self._initial]
        self._visited = np.zeros(num_clients if leaves else 0, bool)

    def read(self, client_ids: np.ndarray) -> PyTree:
        """The stacked states of these clients: leaves [len(client_ids), ...]."""
        if not self._rows:
            return self._structure.unflatten([])
        fresh = ~self._visited[client_ids]
        leaves = []
        for rows, initial in zip(self._rows, self._initial, strict=True):
            leaf = rows[client_ids]
            leaf[fresh] = initial
            leaves.append(leaf)
        return self._structure.unflatten(leaves)

    def write(self, client_ids: np.ndarray, states: PyTree) -> None:
        """Stores the stacked states of these clients."""
        if not self._rows:
            return
        self._visited[client_ids] = True
        for rows, leaf in zip(self._rows, jax.tree.leaves(states), strict=True):
            rows[client_ids] = np.asarray(leaf)

    def snapshot(self) -> dict[str, Any]:
        """Everything that must be saved: the ids of the clients that took part, their rows."""
        client_ids = np.flatnonzero(self._visited)
        return {"client_ids": client_ids, "rows": [rows[client_ids] for rows in self._rows]}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Takes a snapshot back."""
        client_ids = np.asarray(snapshot["client_ids"])
        self._visited[:] = False
        self._visited[client_ids] = True
        for rows, saved in zip(self._rows, snapshot["rows"], strict=True):
            rows[client_ids] = np.asarray(saved)
