"""The states of all clients of the population, between the rounds in which they take part."""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import weakref
from collections.abc import Iterator
from typing import IO, Any

import jax
import numpy as np

from fedax.algorithm import PyTree
from fedax.devices.memory import aligned_zeros
from fedax.devices.mesh import parts
from fedax.outside.text import Told
from fedax.validate import check_count

BLOCK_BYTES = 16 * 2**20
ALIGNMENT = 8  # bytes; no JAX dtype needs more
CACHED_BYTES = 2**18  # read at once, as they are written twice
ROOM_BYTES = 2**29  # of address space for rows in memory, at least


class StoreError(Told, RuntimeError):
    """The clients' states do not fit on the disk."""


class ClientStore:
    """States of the clients that have taken part; all others have the initial state.

    The store grows with the clients that have taken part, not with the population (except for 4
    bytes per client). A round reads and writes only its own cohort. Algorithms without client state
    (`()`) store nothing.

    Up to `memory_bytes` the states are kept in memory. Beyond that they are in a memory-mapped
    temporary file, with bit-identical values. Where the system allows it the file has no name, so
    it disappears with the store or the process, however that ends. The environment variable TMPDIR
    says where it is; this should be a disk (some systems keep /tmp in memory). Space is reserved
    before it is used.

    Args:
      initial_state: the state of a client that has not taken part; leaves [...].
      num_clients: the population; client ids are 0 to num_clients - 1.
      memory_bytes: >= 0, the size up to which states stay in memory, if the system has it. As they
        grow beyond 512 MiB, the old and the new rows are both in memory for a moment.

    Raises:
      ValueError: if memory_bytes is not a whole number >= 0.

    Example:
      >>> store = ClientStore({"c": np.zeros(2)}, num_clients=1000)
      >>> store.write(np.array([7]), {"c": np.ones((1, 2))})
      >>> store.read(np.array([6, 7]))["c"].tolist()
      [[0.0, 0.0], [1.0, 1.0]]
    """

    def __init__(
        self, initial_state: PyTree, num_clients: int, memory_bytes: int = 2 * 2**30
    ) -> None:
        check_count("memory_bytes", memory_bytes, at_least=0, at_most=None)
        leaves, self._structure = jax.tree.flatten(initial_state)
        self._initial = [np.asarray(leaf) for leaf in leaves]
        # The client's row, or -1 if it never took part.
        self._row = np.full(num_clients if leaves else 0, -1, np.int32)
        self._used = 0
        self._memory_bytes = memory_bytes
        # A row is one client's leaves side by side: one place on the disk, one open file.
        sizes = [-(-leaf.nbytes // ALIGNMENT) * ALIGNMENT for leaf in self._initial]
        self._offsets = np.cumsum([0, *sizes])
        self._file: IO[bytes] | None = None
        self._use(np.zeros((0, self._offsets[-1]), np.uint8))

    @property
    def num_clients(self) -> int:
        """Size of the population if clients have a state, otherwise 0."""
        return len(self._row)

    @property
    def initial_state(self) -> PyTree:
        """The state of a client that has not taken part."""
        return self._structure.unflatten(self._initial)

    def __len__(self) -> int:
        """Number of clients that have a state of their own."""
        return self._used

    @property
    def holds_anything(self) -> bool:
        """Whether clients have a state at all."""
        return bool(self._rows)

    def read(self, client_ids: np.ndarray) -> PyTree:
        """The stacked states of these clients, copied: leaves [len(client_ids), ...]."""
        if not self._rows:
            return self._structure.unflatten([])
        places = self._row[client_ids]
        new = places < 0
        leaves = []
        for rows, initial in zip(self._rows, self._initial, strict=True):
            leaf = aligned_zeros((len(places), *initial.shape), initial.dtype)
            step = max(1, CACHED_BYTES // max(1, initial.nbytes))
            for start in range(0, len(places) if len(rows) else 0, step):
                block = slice(start, start + step)
                leaf[block] = rows[places[block]]  # the last row for -1, and then the initial one
            leaf[new] = initial
            leaves.append(leaf)
        return self._structure.unflatten(leaves)

    def write(self, client_ids: np.ndarray, states: PyTree) -> None:
        """Stores the stacked states of these clients; if a client occurs twice, the last one.

        Raises:
          StoreError: if the disk has no room for new clients; nothing has been stored.
        """
        if not self._rows:
            return
        ids, from_the_end = np.unique(client_ids[::-1], return_index=True)
        if len(ids) < len(client_ids):
            last = len(client_ids) - 1 - from_the_end
            self.write(ids, jax.tree.map(lambda leaf: np.asarray(leaf)[last], states))
            return
        places = self._row[client_ids]
        new = places < 0
        used = self._used + int(new.sum())
        self._reserve(used)
        places[new] = np.arange(self._used, used)
        for rows, leaf in zip(self._rows, jax.tree.leaves(states), strict=True):
            for (clients, *others), array in parts(leaf):
                rows[(places[clients], *others)] = array
        self._row[client_ids] = places
        self._used = used

    def __reduce__(self) -> Any:
        """Copies and pickles have the rows that are used."""
        clients = (self.initial_state, len(self._row), self._memory_bytes)
        return _restored, (*clients, self.snapshot())

    def copy(self) -> ClientStore:
        """A store with the same states; writing to one does not change the other.

        Raises:
          StoreError: if the disk has no room for it.
        """
        make, arguments = self.__reduce__()
        return make(*arguments)

    def snapshot(self) -> dict[str, Any]:
        """The data to save, as views: the rows are not copied.

        Returns:
          `client_ids`, the clients that have taken part, in the order of their rows; and `rows`, an
          array [len(client_ids), ...] for each leaf of the state. The next write may change the
          rows.
        """
        client_ids = np.flatnonzero(self._row >= 0)
        return {
            "client_ids": client_ids[np.argsort(self._row[client_ids])],
            "rows": [rows[: self._used] for rows in self._rows],
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Replaces the stored states by a snapshot, one block of clients at a time.

        Raises:
          StoreError: if the disk has no room for it; the store is as it was.
        """
        client_ids, leaves = np.asarray(snapshot["client_ids"]), snapshot["rows"]
        self._reserve(len(client_ids))
        self._row[:] = -1
        self._used = 0
        for block in row_blocks(leaves):
            self.write(client_ids[block], self._structure.unflatten([x[block] for x in leaves]))

    def _reserve(self, count: int) -> None:
        """Makes room for `count` rows. If that fails, nothing has changed."""
        capacity, row_bytes = self._buffer.shape
        if count <= capacity:
            return
        fitting = min(self._memory_bytes // max(row_bytes, 1), len(self._row))
        if self._file is None and count <= fitting:
            # Pages are taken when they are written: room costs nothing and saves moving the rows.
            roomy = max(ROOM_BYTES // max(row_bytes, 1), 2 * count)
            for room in (min(roomy, fitting), min(2 * count, fitting), count):
                with contextlib.suppress(MemoryError):
                    buffer = np.zeros((room, row_bytes), np.uint8)
                    buffer[: self._used] = self._buffer[: self._used]
                    self._use(buffer)
                    return
        # Growing moves nothing there, but takes space that others may need.
        capacity = max(count, min(capacity + capacity // 8, len(self._row)))
        self._use(self._map(capacity * row_bytes).reshape(capacity, row_bytes))

    def _map(self, size: int) -> np.ndarray:
        """The first `size` bytes of the file, which gets that long and then holds all rows."""
        file = self._file
        try:
            if file is None:
                file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed with the store
            _extend(file, self._buffer.size if self._file else 0, size)
            mapped = np.frombuffer(mmap.mmap(file.fileno(), size), np.uint8)
        except OSError as error:
            if file is not None and self._file is None:
                file.close()
            raise StoreError(
                f"The clients' states need a file of {size:,} bytes in "
                f"{tempfile.tempdir or 'the temporary folder'}, but writing it failed: "
                f"{error.strerror or error}. Free some space there, or set the environment "
                "variable TMPDIR to a folder on a larger disk."
            ) from error
        if self._file is None:
            in_memory = self._buffer[: self._used].reshape(-1)
            mapped[: in_memory.size] = in_memory
            self._file = file
            weakref.finalize(self, file.close)
        return mapped

    def _use(self, buffer: np.ndarray) -> None:
        """Keeps the rows in this buffer [capacity, bytes of a row]."""
        self._buffer = buffer
        self._rows = [
            buffer[:, offset : offset + leaf.nbytes].view(leaf.dtype)
            .reshape(len(buffer), *leaf.shape)
            for leaf, offset in zip(self._initial, self._offsets[:-1], strict=True)
        ]


def _restored(
    initial_state: PyTree, num_clients: int, memory_bytes: int, snapshot: dict[str, Any]
) -> ClientStore:
    """A store with these states."""
    store = ClientStore(initial_state, num_clients, memory_bytes)
    store.restore(snapshot)
    return store


def row_blocks(leaves: list[np.ndarray]) -> Iterator[slice]:
    """Cuts rows [count, ...] of several leaves where they have about 16 MiB together.

    Example:
      >>> list(row_blocks([np.zeros((3, 2**20)), np.zeros(3)]))
      [slice(0, 1, None), slice(1, 2, None), slice(2, 3, None)]
    """
    count = len(leaves[0]) if leaves else 0
    step = max(1, BLOCK_BYTES * count // max(1, sum(leaf.nbytes for leaf in leaves)))
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def _extend(file: IO[bytes], start: int, end: int) -> None:
    """Takes space on the disk for these bytes: a hole, met there when full, ends the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), start, end - start)
        return
    file.seek(start)
    while start < end:
        start += file.write(bytes(min(BLOCK_BYTES, end - start)))
