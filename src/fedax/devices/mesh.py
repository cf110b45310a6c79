"""A cohort spread over several devices, of one process or of many.

Every device trains a part of the cohort; the sums of a round are added up by the mesh's own
collectives, and the server state is the same on every device.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedax.algorithm import Array, PyTree
from fedax.validate import check_count

AXIS = "clients"
SPREAD = PartitionSpec(AXIS)
REPLICATED = PartitionSpec()


def cores_as_devices(count: int | None = None) -> int:
    """Makes JAX treat the CPU's cores as devices, so that a mesh can train clients in parallel.

    Call it before anything else uses JAX. Training clients in parallel is faster than spreading
    each operation over the cores: docs/notebook/benchmarks.md has measurements. Without a mesh,
    everything still runs on the first device.

    Args:
      count: number of devices, >= 1; None: the cores that this process may use.

    Returns:
      The count.

    Raises:
      RuntimeError: if JAX is already in use with another number of devices.
      ValueError: if the count is less than 1.
    """
    if count is None:
        count = usable_cores()
    check_count("The number of devices", count)
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
        if jax.local_device_count("cpu") == count:
            return count
        raise RuntimeError(
            f"The CPU's cores cannot become {count} devices, because JAX is already in use. Call "
            "cores_as_devices() first, before creating arrays or listing devices."
        ) from None
    return count


def usable_cores() -> int:
    """The cores that this process may use."""
    usable = getattr(os, "sched_getaffinity", None)
    return len(usable(0)) if usable else os.cpu_count() or 1


def client_mesh(devices: Sequence[Any] | None = None) -> Mesh | None:
    """The mesh over these devices, or over all there are; None if there is only one.

    Raises:
      TypeError: if they are not a list, but a number, for example.

    Example:
      >>> client_mesh(jax.devices()[:1]) is None
      True
    """
    devices = jax.devices() if devices is None else devices
    if not isinstance(devices, Sequence | np.ndarray):
        raise TypeError(
            f"devices must be a list of devices, such as jax.devices()[:2], but is {devices!r}."
        )
    devices = list(devices)
    return Mesh(np.array(devices), (AXIS,)) if len(devices) > 1 else None


def check_mesh(mesh: Any) -> None:
    """Raises a clear error unless it is None or a mesh of `client_mesh`."""
    if mesh is not None and (not isinstance(mesh, Mesh) or mesh.axis_names != (AXIS,)):
        raise ValueError(
            f"mesh must be None or a mesh from fedax.client_mesh(devices), but is {mesh!r}."
        )


def replicate(tree: PyTree, mesh: Mesh | None) -> PyTree:
    """The tree on every device of the mesh, or on one; every process gives the same."""
    if mesh is None:
        return one_copy(tree)
    everywhere = NamedSharding(mesh, REPLICATED)

    def place(leaf: Any) -> jax.Array:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            data, kind = np.asarray(jax.random.key_data(leaf)), jax.random.key_impl(leaf)
            return jax.jit(
                lambda words: jax.random.wrap_key_data(words, impl=kind), out_shardings=everywhere
            )(data)
        array = np.asarray(leaf)
        return jax.make_array_from_callback(array.shape, everywhere, lambda index: array[index])

    return jax.tree.map(place, tree)


def spread(tree: PyTree, mesh: Mesh) -> PyTree:
    """NumPy's arrays [clients, ...], each device with a part; every process gives the same."""
    by_part = NamedSharding(mesh, SPREAD)

    def place(leaf: np.ndarray) -> jax.Array:
        return jax.make_array_from_callback(leaf.shape, by_part, lambda index: leaf[index])

    return jax.tree.map(place, tree)


def where_kept(mesh: Mesh) -> NamedSharding:
    """Where arrays [clients, ...] are that the host reads: each device's part on that device.

    Of several processes each reads all of them, so there they are on every device.
    """
    is_here = len({device.process_index for device in mesh.devices.flat}) == 1
    return NamedSharding(mesh, SPREAD if is_here else REPLICATED)


def parts(array: Any) -> Iterator[tuple[tuple[slice, ...], np.ndarray]]:
    """An array as the devices have it, each part with its place; on a CPU no copy.

    Example:
      >>> [(part, rows.shape) for part, rows in parts(jnp.zeros((3, 2)))]
      [((slice(None, None, None), slice(None, None, None)), (3, 2))]
    """
    if not isinstance(array, jax.Array):
        yield (slice(None),) * np.ndim(array), np.asarray(array)
        return
    # Of copies on several devices one is enough.
    shards = {str(shard.index): shard for shard in array.addressable_shards}
    for shard in shards.values():
        yield shard.index, np.asarray(shard.data)


def one_copy(tree: PyTree) -> PyTree:
    """The tree with replicated arrays as their copies on the first device of this process."""

    def copy(leaf: Any) -> Any:
        several = isinstance(leaf, jax.Array) and len(leaf.sharding.device_set) > 1
        return leaf.addressable_data(0) if several else leaf

    return jax.tree.map(copy, tree)


def deal(sizes: np.ndarray, mesh: Mesh | None) -> np.ndarray:
    """In which order a cohort's clients stand: by size, and in equal parts for the devices.

    A device takes a contiguous part of the cohort. The parts have one length, with -1 where nobody
    stands; the largest client left goes to the device that has the fewest examples so far.

    Args:
      sizes: n_i of the cohort's clients.
      mesh: the devices; None: one.

    Example:
      >>> from types import SimpleNamespace
      >>> deal(np.array([5, 9, 1, 2, 4]), SimpleNamespace(size=2)).tolist()
      [3, 1, -1, 2, 4, 0]
    """
    order = np.argsort(sizes, kind="stable")
    if mesh is None:
        return order
    share = -(-len(order) // mesh.size)
    parts: list[list[int]] = [[] for _ in range(mesh.size)]
    free = [(0, device) for device in range(mesh.size)]
    for place in order[::-1].tolist():
        examples, device = heapq.heappop(free)
        parts[device].append(place)
        if len(parts[device]) < share:
            heapq.heappush(free, (examples + int(sizes[place]), device))
    return np.concatenate([part[::-1] + [-1] * (share - len(part)) for part in parts])


def add_up(tree: PyTree) -> PyTree:
    """The sum over the devices, in as few collectives as can be: each costs a wait for all.

    That is one for each floating point dtype. Whole numbers (int32) go with float32 or float64 as
    two of 16 bits each, whose sums over up to 256 devices are exact there.
    """
    leaves, structure = jax.tree.flatten(tree)
    parts = [_halves(leaf) if leaf.dtype == jnp.int32 else [leaf] for leaf in leaves]
    flat = [part for of_leaf in parts for part in of_leaf]
    summed: list[Any] = [None] * len(flat)
    for dtype in {part.dtype: None for part in flat}:
        places = [i for i, part in enumerate(flat) if part.dtype == dtype]
        total = jax.lax.psum(jnp.concatenate([flat[i].ravel() for i in places]), AXIS)
        ends = np.cumsum([flat[i].size for i in places])[:-1]
        for i, part in zip(places, jnp.split(total, ends), strict=True):
            summed[i] = part.reshape(flat[i].shape)
    whole = iter(summed)
    return jax.tree.unflatten(structure, [
        _joined(next(whole), next(whole)) if leaf.dtype == jnp.int32 else next(whole)
        for leaf in leaves
    ])


def _halves(whole: Array) -> list[Array]:
    """The high and the low 16 bits of int32 numbers."""
    return [(whole >> 16).astype(float), (whole & 0xFFFF).astype(float)]


def _joined(high: Array, low: Array) -> Array:
    return (high.astype(jnp.int32) << 16) + low.astype(jnp.int32)
