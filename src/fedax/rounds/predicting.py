"""A trained model's outputs for data, in batches."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Literal, overload

import jax
import numpy as np

from fedax.algorithm import Array, Batch, Model, Params, PyTree
from fedax.data.federated_dataset import FederatedDataset
from fedax.data.narrowing import require_same_in_jax
from fedax.devices.compiling import jit
from fedax.factories import PROGRAMS, Structure, partition
from fedax.mistakes.errors import kind_of
from fedax.mistakes.model import call_outputs, require_model
from fedax.rounds.batch_sizes import usual_batch_size
from fedax.rounds.checks import require_params
from fedax.rounds.scoring import on_host, require_rows
from fedax.validate import check_count, plain


@overload
def predict(
    model: Model, params: Params, data: Any, batch_size: int | None = None, *,
    per_client: Literal[False] = False,
) -> PyTree: ...


@overload
def predict(
    model: Model, params: Params, data: FederatedDataset, batch_size: int | None = None, *,
    per_client: Literal[True],
) -> dict[str, PyTree]: ...


def predict(
    model: Model,
    params: Params,
    data: FederatedDataset | Mapping[str, Any] | Any,
    batch_size: int | None = None,
    *,
    per_client: bool = False,
) -> Any:
    """The model's outputs for all examples, in their order, such as logits [n, C].

    For probabilities use `scipy.special.softmax(logits, axis=1)`, for classes `logits.argmax(1)`.

    Args:
      model: provides `outputs`.
      params: such as `result.params`.
      data: a `fedax.FederatedDataset`; or arrays by name, `{"x": images}`, with the examples along
        the first axis; or the array "x" itself. Labels are not needed.
      batch_size: examples per batch on the device; affects speed and memory only. None: chosen by
        the size of the model.
      per_client: for a `FederatedDataset`, return a dictionary with each client's outputs by its
        name.

    Returns:
      NumPy arrays shaped like the outputs; floats narrower than float32 become float32.

    Raises:
      TypeError, ValueError: if an argument has the wrong type, or there are no examples.
      ModelError: if the outputs fail, or do not have the examples along their first axis, or a
        number does not fit into the dtype that JAX uses.

    Example:
      >>> import fedax, jax.numpy as jnp
      >>> model = fedax.regression(lambda key: jnp.zeros(1), lambda params, x: x @ params)
      >>> predict(model, jnp.full(1, 2.0), np.array([[1.0], [2.0], [3.0]])).tolist()
      [2.0, 4.0, 6.0]
      >>> data = fedax.FederatedDataset.from_clients({
      ...     "ada": {"x": np.ones((2, 1))}, "bob": {"x": np.zeros((1, 1))}})
      >>> found = predict(model, jnp.full(1, 2.0), data, per_client=True)
      >>> {name: outputs.tolist() for name, outputs in found.items()}
      {'ada': [2.0, 2.0], 'bob': [0.0]}
    """
    require_model(model, "fedax.predict(model, params, data)")
    require_params(params)
    arrays = _arrays(data)
    count = len(next(iter(arrays.values())))
    if batch_size is not None:
        check_count("batch_size", batch_size)
    if per_client and not isinstance(data, FederatedDataset):
        raise TypeError(
            f"per_client=True needs a fedax.FederatedDataset, which has clients, but data is "
            f"{kind_of(data)}."
        )
    size = min(plain(batch_size) or usual_batch_size(model, params, arrays), count)
    numbers, structure = partition(model.outputs)
    program = functools.partial(_program(structure), numbers, params)
    parts: list[PyTree] = []
    under_way: list[Any] = []
    for first in range(0, count, size):
        rows = np.arange(first, min(first + size, count))
        filled = np.pad(rows, (0, size - len(rows)), mode="edge")
        chosen: Any = slice(first, first + size) if len(rows) == size else filled
        batch = {name: array[chosen] for name, array in arrays.items()}
        for name, array in batch.items():
            if isinstance(array, np.ndarray):  # others are JAX's already
                require_same_in_jax(name, array)
        under_way.append((len(rows), program(batch, np.arange(size) < len(rows))))
        if len(under_way) > 1:  # the device has its next batch before this one is looked at
            number, outputs = under_way.pop(0)
            parts.append(on_host(outputs, number))
    parts += [on_host(outputs, number) for number, outputs in under_way]
    together = jax.tree.map(lambda *some: np.concatenate(some), *parts)
    if not (per_client and isinstance(data, FederatedDataset)):
        return together
    ends = data.offsets.tolist()
    return {
        data.name(client): jax.tree.map(
            lambda leaf, part=slice(*ends[client : client + 2]): leaf[part], together
        )
        for client in range(data.num_clients)
    }


def _arrays(data: Any) -> dict[str, Any]:
    """The arrays of the data, checked to have one length.

    Raises:
      TypeError, ValueError: if there are none, they differ in length, or they have no examples.
    """
    if isinstance(data, FederatedDataset):
        return dict(data.arrays)
    if not isinstance(data, Mapping):
        data = {"x": data}
    arrays = {
        name: array if isinstance(array, np.ndarray | jax.Array) else np.asarray(array)
        for name, array in data.items()
    }
    if not arrays:
        raise ValueError("data has no arrays; give for example {'x': images}.")
    for name, array in arrays.items():
        if np.dtype(array.dtype).kind not in "biufV" or not array.ndim:
            raise TypeError(
                "data must be a fedax.FederatedDataset, arrays of numbers by name, or one array "
                f"of examples, but {name!r} is {kind_of(data[name])}."
            )
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"The arrays of data differ in length: {lengths}.")
    if not next(iter(lengths.values())):
        raise ValueError("data has no examples.")
    return arrays


@functools.lru_cache(maxsize=PROGRAMS)
def _program(structure: Structure) -> Any:
    """The outputs of all models of a structure on a batch, which their numbers tell apart."""

    def outputs(numbers: list[Array], params: Params, batch: Batch, mask: Array) -> PyTree:
        found = call_outputs(structure(numbers), params, batch, mask)
        return require_rows(found, mask.shape[0])

    return jit(outputs, newer_loops=True)
