"""From a data set to what a compiled round reads: the examples of one cohort."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from fedax.data.federated_dataset import FederatedDataset
from fedax.data.narrowing import require_same_in_jax
from fedax.data.rows import SparseRows, read_ahead, release
from fedax.devices.memory import aligned, aligned_zeros
from fedax.devices.mesh import SPREAD
from fedax.mistakes.errors import kind_of

# A data set up to this size stays on the device; a larger one is packed cohort by cohort.
RESIDENT_BYTES = 4 * 2**30
# One with sparse arrays, which are dense on the device, up to this size.
SPARSE_RESIDENT_BYTES = 2**28
# Of a mapped data set so much is held until the process lets it go; and what is read with a client:
# Linux maps pages in blocks of 64 KiB, of which a stretch begins one and ends one.
MAPPED_BYTES = 2**28
_READ_AROUND = 2**17
# Capacities and packed totals climb a ladder of powers from here, so that ragged cohorts
# compile a handful of programs in a run, not one a round.
SMALLEST_RUNG = 1024
# The exchange at which a client drops out that does not, and where there is no client at all.
STAYS = 2**31 - 1
NOBODY = -1


class ClientExamples(Protocol):
    """The interface of a client's examples in local training, such as `ClientData`."""

    @property
    def num_examples(self) -> jax.Array:
        """The number of examples, int32 scalar."""
        ...

    @property
    def capacity(self) -> int:
        """Static upper bound of num_examples, the length of a shuffle."""
        ...

    @property
    def largest(self) -> int | None:
        """Static size of the population's largest client, to which minibatches are limited."""
        ...

    @property
    def repeat(self) -> jax.Array | int:
        """How often the same client occurs earlier in the cohort, see `CohortData`."""
        ...

    @property
    def client_id(self) -> jax.Array | int:
        """The client's index in the population."""
        ...

    @property
    def everything(self) -> ClientExamples:
        """All of the client's examples, if these are a part."""
        ...

    def examples(self, indices: jax.Array) -> dict[str, jax.Array]:
        """The examples with these indices (int32 [B], each in 0 .. num_examples - 1)."""
        ...


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, repr=False)
class ClientData:
    """One client's examples, as passed to a client function.

    The client owns rows start : start + num_examples of `arrays`, which other clients share.
    Minibatches are gathered from there, so nothing is padded to the largest client.

    Attributes:
      arrays: name -> array [rows, ...].
      start: int32 scalar, the client's first row.
      num_examples: int32 scalar; 0 for the dummies that fill up a chunk.
      capacity: static upper bound of num_examples, the length of a shuffle.
      repeat: int32 scalar, how often the same client occurs earlier in the cohort; 0 unless cohorts
          are drawn with replacement. The state of repeat 0 is the one that is saved.
      largest: static, the number of examples of the population's largest client; a larger minibatch
          would be padding for every client. None: not known.
      client_id: int32 scalar, the client's index in the population.
    """

    arrays: Mapping[str, jax.Array]
    start: jax.Array
    num_examples: jax.Array
    capacity: int = dataclasses.field(metadata={"static": True})
    repeat: jax.Array | int = 0
    largest: int | None = dataclasses.field(default=None, metadata={"static": True})
    client_id: jax.Array | int = 0

    def __repr__(self) -> str:
        return f"ClientData(at most {self.capacity} rows of {_shapes(self.arrays)})"

    @property
    def everything(self) -> ClientData:
        """All of the client's examples."""
        return self

    def examples(self, indices: jax.Array) -> dict[str, jax.Array]:
        """The examples with these indices (int32 [B], each in 0 .. num_examples - 1)."""
        rows = self.start + indices
        return {key: _take(array, rows) for key, array in self.arrays.items()}


def _shapes(arrays: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in arrays.items())


def _take(array: jax.Array, rows: jax.Array) -> jax.Array:
    """The rows [B] of an array, [B, ...].

    On a CPU one after the other: XLA shares a gather from a large array among the cores, however
    few rows it takes, and 3 rows of 20 numbers took 1.1 to 1.6 microseconds instead of 0.1.
    """
    if jax.default_backend() == "cpu":
        return jax.lax.map(lambda row: jax.lax.dynamic_index_in_dim(array, row, 0, False), rows)
    return jnp.take(array, rows, axis=0, mode="clip")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, repr=False)
class CohortData:
    """The clients of one round and where their examples are; or of several rounds, stacked.

    Attributes:
      client_ids: int32 [cohort_size], indices into the population.
      starts, num_examples: int32 [cohort_size].
      repeats: int32 [cohort_size], how often the same client occurs earlier.
      dropped_at: int32 [cohort_size], the exchange from which on the client is gone; `STAYS` if
        it stays, `NOBODY` if the place is empty.
      arrays, capacity, largest: as in `ClientData`; over a mesh arrays are [devices, rows, ...].
      num_clients: int32 scalar, the size of the population.
      expected: int32 scalar, the expected size of a cohort whose size is drawn; None: it is not.

    Of several rounds the arrays before `arrays` are [rounds, cohort_size].
    """

    client_ids: jax.Array
    starts: jax.Array
    num_examples: jax.Array
    repeats: jax.Array
    dropped_at: jax.Array
    num_clients: jax.Array
    arrays: Mapping[str, jax.Array]
    capacity: int = dataclasses.field(metadata={"static": True})
    largest: int | None = dataclasses.field(default=None, metadata={"static": True})
    expected: jax.Array | None = None

    def __repr__(self) -> str:
        size = " rounds of ".join(map(str, np.shape(self.client_ids)))
        return f"CohortData({size} clients, at most {self.capacity} rows each of " \
               f"{_shapes(self.arrays)})"

    def of_round(self, index: int | jax.Array) -> CohortData:
        """One of several rounds."""
        names = ("client_ids", "starts", "num_examples", "repeats", "dropped_at")
        return dataclasses.replace(self, **{name: getattr(self, name)[index] for name in names})

    def with_arrays(self, arrays: Mapping[str, jax.Array]) -> CohortData:
        """The same clients with these arrays, such as copies on other devices."""
        return dataclasses.replace(self, arrays=arrays)


class CohortReader:
    """Brings cohorts of a data set to the device.

    A data set of at most `resident_bytes` is put there once, and a cohort is then only its
    offsets. Of a larger one (a memory-mapped one, say) a cohort's own rows are packed for each
    round; the numbers are the same. With sparse arrays it is their dense size that counts, and
    the limit is 256 MiB.

    Over a mesh each device has arrays of its own, along a first axis, and a client's rows are
    on the device that trains it. With several processes rows are always packed, and a process
    reads those of its own devices' clients only.

    Example:
      >>> dataset = FederatedDataset({"x": np.arange(4.0)}, np.array([0, 1, 4]))
      >>> CohortReader(dataset)(np.array([1])).num_examples.tolist()
      [3]
    """

    def __init__(
        self,
        dataset: FederatedDataset,
        resident_bytes: int = RESIDENT_BYTES,
        mesh: Mesh | None = None,
    ) -> None:
        self._dataset = dataset
        self._mesh = mesh
        self._largest = int(dataset.client_sizes.max())
        if any(isinstance(array, SparseRows) for array in dataset.arrays.values()):
            resident_bytes = min(resident_bytes, SPARSE_RESIDENT_BYTES)
        fits = dataset.nbytes <= resident_bytes and dataset.num_examples < 2**31
        self._mapped = 0  # bytes of files that this process may count as its memory
        self._resident = None
        if fits and jax.process_count() == 1:
            @functools.cache
            def whole(key: str) -> np.ndarray:
                array = np.asarray(dataset.arrays[key])
                require_same_in_jax(key, array)
                # All devices of a CPU then read the same memory.
                return aligned(array) if jax.default_backend() == "cpu" else array

            self._resident = self._place(
                {key: (array.shape, array.dtype) for key, array in dataset.arrays.items()},
                lambda key, _: whole(key),
            )

    @property
    def is_resident(self) -> bool:
        """Whether the data stay on the device."""
        return self._resident is not None

    def __call__(
        self,
        client_ids: np.ndarray,
        dropped_at: np.ndarray | None = None,
        rounds: np.ndarray | None = None,
    ) -> CohortData:
        """The data of these clients, integers [cohort_size] or [rounds, cohort_size].

        Args:
          client_ids: who; over a mesh a multiple of its devices, which take equal parts in order.
          dropped_at: of the same shape, see `CohortData`; None: everyone stays.
          rounds: which of the rounds to stack, with repetition; None: each once.
        """
        if dropped_at is None:
            dropped_at = np.full(client_ids.shape, STAYS)
        offsets = self._dataset.offsets
        first, last = offsets[client_ids], offsets[client_ids + 1]
        sizes = last - first
        if self._resident is not None:
            arrays, starts = self._resident, first
        else:
            arrays, starts = self._pack(first, sizes)
        leaves = {
            "client_ids": client_ids, "starts": starts, "num_examples": sizes,
            "repeats": _repeats(client_ids, dropped_at), "dropped_at": dropped_at,
        }
        if rounds is not None:
            leaves = {name: leaf[rounds] for name, leaf in leaves.items()}
        # Over a mesh NumPy's arrays are every process's own copy of the same.
        to_device: Any = jax.device_put if self._mesh is None else np.asarray
        return CohortData(
            **{name: to_device(np.asarray(leaf, np.int32)) for name, leaf in leaves.items()},
            num_clients=to_device(np.int32(self._dataset.num_clients)),
            arrays=arrays,
            capacity=min(self._largest, rung(int(sizes.max()), factor=4)),
            largest=self._largest,
        )

    def _pack(
        self, first: np.ndarray, sizes: np.ndarray
    ) -> tuple[dict[str, jax.Array], np.ndarray]:
        """Copies clients' rows side by side into arrays as long as the next rung."""
        num_devices = 1 if self._mesh is None else self._mesh.size

        def of_devices(array: np.ndarray) -> np.ndarray:
            """[..., cohort_size] -> [devices, clients of all rounds]."""
            parts = array.reshape(-1, num_devices, array.shape[-1] // num_devices)
            return parts.swapaxes(0, 1).reshape(num_devices, -1)

        first_of, sizes_of = of_devices(first), of_devices(sizes)
        starts_of = np.cumsum(sizes_of, 1) - sizes_of
        rows = rung(int(sizes_of.sum(1).max()), factor=2)

        def own(key: str, device: int) -> np.ndarray:
            array = self._dataset.arrays[key]
            buffer = aligned_zeros((rows, *array.shape[1:]), array.dtype)
            read_ahead(array, first_of[device], sizes_of[device])
            for source, target, size in zip(
                first_of[device], starts_of[device], sizes_of[device], strict=True
            ):
                buffer[target : target + size] = array[source : source + size]
            require_same_in_jax(key, buffer)
            return buffer

        shapes = {
            key: ((rows, *array.shape[1:]), array.dtype)
            for key, array in self._dataset.arrays.items()
        }
        packed = self._place(shapes, own)
        self._mapped += sum(
            sizes.sum() * (array.nbytes // len(array)) + sizes.size * _READ_AROUND
            for array in self._dataset.arrays.values()
        )
        if self._mapped > MAPPED_BYTES:
            self._mapped = 0
            for array in self._dataset.arrays.values():
                release(array)
        starts = starts_of.reshape(num_devices, -1, sizes.shape[-1] // num_devices)
        return packed, starts.swapaxes(0, 1).reshape(sizes.shape)

    def _place(
        self,
        shapes: Mapping[str, tuple[tuple[int, ...], Any]],
        own: Callable[[str, int], np.ndarray],
    ) -> dict[str, jax.Array]:
        """Arrays on the device; over a mesh [devices, ...], from what each device has of its own.

        `own` is called for the devices of this process only.
        """
        mesh = self._mesh
        if mesh is None:
            # Where jnp.asarray holds two copies for a moment, this holds one, or none.
            return {key: jax.device_put(own(key, 0)) for key in shapes}
        spread = NamedSharding(mesh, SPREAD)

        def place(key: str) -> jax.Array:
            shape, dtype = shapes[key]
            return jax.make_array_from_callback(
                (mesh.size, *shape), spread,
                lambda index: own(key, _start(index))[None].astype(
                    jax.dtypes.canonicalize_dtype(dtype), copy=False
                ),
            )

        return {key: place(key) for key in shapes}


def _start(index: Any) -> int:
    """The device's place along the first axis, from its part of the array."""
    return index[0].start or 0


def _repeats(client_ids: np.ndarray, dropped_at: np.ndarray) -> np.ndarray:
    """For each place, how often its client stands before it in the same round.

    A place where nobody stands comes after all others with its id, wherever it is.
    """
    if client_ids.ndim == 2:
        return np.stack([_repeats(*row) for row in zip(client_ids, dropped_at, strict=True)])
    order = np.lexsort((dropped_at == NOBODY, client_ids))
    ordered = client_ids[order]
    first = np.searchsorted(ordered, ordered, side="left")
    repeats = np.empty(len(client_ids), np.int64)
    repeats[order] = np.arange(len(client_ids)) - first
    return repeats


def rung(size: int, factor: int) -> int:
    """The smallest SMALLEST_RUNG * factor^k that is at least `size`."""
    length = SMALLEST_RUNG
    while length < size:
        length *= factor
    return length


def require_cohort(cohort: Any) -> None:
    """Raises a clear error unless it is what a reader gives.

    Raises:
      TypeError: if it is something else, such as a data set.
    """
    if not isinstance(cohort, CohortData):
        raise TypeError(
            "cohort must come from a CohortReader, as CohortReader(task.train)(np.arange(5)) "
            f"does for the first 5 clients, but is {kind_of(cohort)}."
        )
