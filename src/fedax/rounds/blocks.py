"""The examples of an evaluation on its devices, some batches at a time.

A block is several batches, which one program evaluates in a loop. Device d of D has the d-th part
of every batch, so that a last batch that is not full costs one batch at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedax.data.federated_dataset import FederatedDataset
from fedax.devices.memory import aligned_zeros
from fedax.devices.mesh import AXIS

# Examples [batches, batch, ...]: each device has a part of every batch.
IN_BATCHES = PartitionSpec(None, AXIS)
# Most batches of a block, and most bytes of its examples, or of the outputs that are wanted.
MOST_BATCHES, MOST_BYTES = 16, 2**24
# Examples of so many bytes stay on the devices; others are brought there for each evaluation.
KEPT_BYTES = 2**26


def example_bytes(arrays: Mapping[str, Any]) -> int:
    """Bytes of one example of all arrays together."""
    return sum(
        int(np.prod(array.shape[1:], dtype=np.int64)) * np.dtype(array.dtype).itemsize
        for array in arrays.values()
    )


class Blocks:
    """Brings the examples of some rows to the devices, and keeps them there if they are few.

    Args:
      dataset: the examples.
      rows: which of them, sorted; None: all.
      batch_size: examples of a batch, on all devices together.
      bytes_beside: of each example's outputs, if they are wanted.
      mesh: the devices; None: one.

    Attributes:
      batches: of a block.
      batch_size: as given.
    """

    def __init__(
        self, dataset: FederatedDataset, rows: np.ndarray | None, batch_size: int,
        bytes_beside: int, mesh: Mesh | None,
    ) -> None:
        self._arrays, self._rows, self._mesh = dataset.arrays, rows, mesh
        self.batch_size = batch_size
        each = example_bytes(dataset.arrays)
        fitting = MOST_BYTES // max(batch_size * max(each, bytes_beside), 1)
        self.batches = max(1, min(MOST_BATCHES, fitting))
        self._count = dataset.num_examples if rows is None else len(rows)
        self._kept: dict[int, dict[str, jax.Array]] | None = None
        if self._count * each <= KEPT_BYTES:
            self._kept = {}

    def rows(self, block: int) -> np.ndarray:
        """The rows of a block, sorted."""
        size = self.batches * self.batch_size
        rows = np.arange(block * size, min((block + 1) * size, self._count))
        return rows if self._rows is None else self._rows[rows]

    def shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """What the program takes."""
        return {
            key: jax.ShapeDtypeStruct(
                (self.batches, self.batch_size, *array.shape[1:]),
                jax.dtypes.canonicalize_dtype(array.dtype),
            )
            for key, array in self._arrays.items()
        }

    def __getitem__(self, block: int) -> dict[str, jax.Array]:
        """The examples of a block on the devices, name -> [batches, batch_size, ...]."""
        if self._kept is None:
            return self.of_rows(self.rows(block))
        if block not in self._kept:
            self._kept[block] = self.of_rows(self.rows(block))
        return self._kept[block]

    def of_rows(self, rows: np.ndarray) -> dict[str, jax.Array]:
        """The examples of at most as many rows as a block has."""
        return self.placed({
            key: array[rows[0] : rows[-1] + 1] if rows[-1] - rows[0] == len(rows) - 1
            else array[rows]
            for key, array in self._arrays.items()
        })

    def placed(self, examples: dict[str, np.ndarray]) -> dict[str, jax.Array]:
        """The examples [n, ...], n at most those of a block, as the program takes them.

        The last one fills up its batch, as any example that a model accepts.
        """
        return {key: self._place(part) for key, part in examples.items()}

    def _place(self, part: np.ndarray) -> Any:
        devices = [None] if self._mesh is None else list(self._mesh.devices.flat)
        each, (full, rest) = self.batch_size // len(devices), divmod(len(part), self.batch_size)
        batches = part[: len(part) - rest].reshape(full, len(devices), each, *part.shape[1:])
        shape = (self.batches, each, *part.shape[1:])
        parts = []
        for place, device in enumerate(devices):
            # A copy that a CPU's device takes as it is.
            own = aligned_zeros(shape, jax.dtypes.canonicalize_dtype(part.dtype))
            own[:full] = batches[:, place]
            if rest:
                first = full * self.batch_size + place * each
                own[full] = part[np.minimum(np.arange(first, first + each), len(part) - 1)]
            parts.append(jax.device_put(own, device))
        if self._mesh is None:
            return parts[0]
        whole = (self.batches, self.batch_size, *part.shape[1:])
        sharding = NamedSharding(self._mesh, IN_BATCHES)
        return jax.make_array_from_single_device_arrays(whole, sharding, parts)
