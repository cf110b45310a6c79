"""A cohort spread over several devices, of one process or of many.

Every device trains a part of the cohort; the sums of a round are added up by the mesh's own
collectives, and the server state is the same on every device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedax.algorithm import PyTree

AXIS = "clients"
SPREAD = PartitionSpec(AXIS)
REPLICATED = PartitionSpec()


def client_mesh(devices: Sequence[Any] | None = None) -> Mesh | None:
    """The mesh over these devices, or over all there are; None if there is only one.

    Example:
      >>> client_mesh(jax.devices()[:1]) is None
      True
    """
    devices = jax.devices() if devices is None else list(devices)
    return Mesh(np.array(devices), (AXIS,)) if len(devices) > 1 else None


def replicate(tree: PyTree, mesh: Mesh | None) -> PyTree:
    """The tree on every device of the mesh; every process gives the same."""
    if mesh is None:
        return tree
    everywhere = NamedSharding(mesh, REPLICATED)

    def place(leaf: Any) -> jax.Array:
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            data, kind = np.asarray(jax.random.key_data(leaf)), jax.random.key_impl(leaf)
            return jax.jit(
                lambda words: jax.random.wrap_key_data(words, impl=kind), out_shardings=everywhere
            )(data)
        array = np.asarray(leaf)
        return jax.make_array_from_callback(array.shape, everywhere, lambda index: array[index])

    return jax.tree.map(place, tree)


def one_copy(tree: PyTree, mesh: Mesh | None) -> PyTree:
    """A replicated tree as arrays of one device of this process."""
    if mesh is None:
        return tree
    return jax.tree.map(lambda leaf: leaf.addressable_data(0), tree)


def deal(places: int, mesh: Mesh | None) -> np.ndarray:
    """In which order places stand, so that each device gets its share of every size.

    A device takes a contiguous part of the cohort, so of places in the order of their sizes it
    is dealt every num_devices-th. Places beyond the given ones are to be filled.

    Example:
      >>> from types import SimpleNamespace
      >>> deal(5, SimpleNamespace(size=2)).tolist()
      [0, 2, 4, 1, 3, 5]
    """
    if mesh is None:
        return np.arange(places)
    share = -(-places // mesh.size)
    return np.arange(share * mesh.size).reshape(share, mesh.size).T.ravel()
