"""Checks of a task, its data and a state before the first round; nothing is compiled here."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from fedax.algorithm import FederatedAlgorithm, Model, Params
from fedax.data.federated_dataset import FederatedDataset
from fedax.data.narrowing import is_narrowed, require_same_in_jax
from fedax.data.rows import LazyRows, is_in_a_file
from fedax.data.task import Task
from fedax.mistakes.algorithm import call_state_inits
from fedax.mistakes.errors import ModelError, checked_call, kind_of
from fedax.mistakes.model import require_model

# If there are more examples, evenly spaced ones are checked; if they must be read first, from a
# disk or a sparse matrix, only as many as have this size.
MOST_EXAMPLES = 2**20
MOST_READ_BYTES = 2**26


def require_task(task: Any) -> None:
    """Raises a clear error unless this is a task with a model and numeric data.

    Raises:
      TypeError: if it is not a task, or one of its fields has the wrong type.
    """
    if not isinstance(task, Task):
        hint = ""
        if isinstance(task, FederatedAlgorithm):
            hint = " The task comes first: fedax.train(task, algorithm, num_rounds=...)."
        elif isinstance(task, str):
            hint = f" Load a named task with fedax.load_task({task!r})."
        raise TypeError(f"task must be a fedax.Task(model, data), but is {kind_of(task)}.{hint}")
    require_model(task.model)
    require_dataset("task.train", task.train)
    for name, data in (("task.test", task.test), ("task.validation", task.validation)):
        if data is not None:
            require_dataset(name, data)


def require_dataset(name: str, data: Any) -> None:
    """Raises a clear error unless it is a `FederatedDataset`.

    Args:
      name: how the argument is called.
      data: what was given.

    Raises:
      TypeError: if it is something else.
    """
    if not isinstance(data, FederatedDataset):
        hint = (
            " Give its data: task.train or task.test." if isinstance(data, Task)
            else ' Build one from a dictionary of clients: FederatedDataset.from_clients({"ada": '
            '{"x": x, "y": y}, ...}).'
        )
        raise TypeError(f"{name} must be a fedax.FederatedDataset, but is {kind_of(data)}.{hint}")


def check_examples(model: Model, params: Params, name: str, data: FederatedDataset) -> None:
    """Runs the model's `check` on the examples; the error names the first client at fault.

    Numbers that JAX would change by narrowing their dtype are refused for every model.

    Args:
      model: its `check` is run; a model without one accepts everything else.
      params: the model's, of which shapes and dtypes matter.
      name: the data's name, for the message.
      data: the examples, all of them or evenly spaced ones.

    Raises:
      ModelError: if the check fails, or a number does not fit into the dtype that JAX uses.
    """
    look = model.check
    narrowed = [key for key, array in data.arrays.items() if is_narrowed(array.dtype)]
    if look is None and not narrowed:
        return
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params)

    def check(rows: slice) -> None:
        if look is not None:
            checked_call(
                ModelError, "The model's check", "check(params, arrays)", look,
                (shapes, _Rows(data.arrays, rows)), {},
            )
        for key in narrowed:
            require_same_in_jax(key, data.arrays[key][rows])

    most = MOST_EXAMPLES
    if any(is_in_a_file(array) or isinstance(array, LazyRows) for array in data.arrays.values()):
        most = max(1, MOST_READ_BYTES * data.num_examples // data.nbytes)
    step = -(-data.num_examples // most)
    try:
        check(slice(None, None, step))
    except ModelError as error:
        if step > 1:
            raise ModelError(f"In {name}: {error}") from error.__cause__
        client, error = _first_client(check, data, error)
        raise ModelError(f"In {name}, client {client!r}: {error}") from error.__cause__


class _Rows(Mapping[str, Any]):
    """Some rows of each array, read on demand: a check looks at few arrays."""

    def __init__(self, arrays: Mapping[str, Any], rows: slice) -> None:
        self._arrays = arrays
        self._rows = rows

    def __getitem__(self, name: str) -> Any:
        return self._arrays[name][self._rows]

    def __contains__(self, name: object) -> bool:
        return name in self._arrays

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


def _first_client(
    check: Any, data: FederatedDataset, error: ModelError
) -> tuple[str, ModelError]:
    """The first client whose examples do not pass, and what is said of them alone."""
    first, last = 0, data.num_clients
    while first < last:
        middle = (first + last - 1) // 2
        try:
            check(slice(int(data.offsets[first]), int(data.offsets[middle + 1])))
            first = middle + 1
        except ModelError as narrower:
            last, error = middle, narrower
    return data.name(first), error


def require_training_state(state: Any) -> None:
    """Raises a clear error unless it is a `TrainingState`.

    Raises:
      TypeError: if it is something else.
    """
    if not (hasattr(state, "server_state") and hasattr(state, "client_store")):
        raise TypeError(
            "state must be a TrainingState, as fedax.train(...).state or a report's .state, but is "
            f"{kind_of(state)}."
        )


def require_state(state: Any, algorithm: FederatedAlgorithm, data: FederatedDataset) -> None:
    """Raises a clear error unless the state belongs to this algorithm and this number of clients.

    Raises:
      ValueError: if it belongs to another algorithm or population.
    """
    server_state, store = state.server_state, state.client_store
    if store.num_clients not in (0, data.num_clients):
        raise ValueError(
            f"The state is of a population of {store.num_clients} clients, but task.train has "
            f"{data.num_clients}. Start without a state, or use the data that it was trained on."
        )
    expected, client_state = jax.eval_shape(
        lambda params: call_state_inits(algorithm, params), server_state.params
    )
    for given, wanted, who in (
        (server_state, expected, "server"), (store.initial_state, client_state, "client"),
    ):
        if jax.tree.structure(given) != jax.tree.structure(wanted):
            raise ValueError(
                f"The {who} state {_structure(given)} belongs to another algorithm: this one has "
                f"{_structure(wanted)}. Start without a state, or use the algorithm that wrote "
                "it."
            )


def _structure(tree: Any) -> str:
    """A state's type and those of its fields."""
    if not hasattr(tree, "_fields"):
        return kind_of(tree)
    fields = ", ".join(
        f"{name}: {type(value).__name__}" for name, value in zip(tree._fields, tree, strict=True)
    )
    return f"{type(tree).__name__}({fields})"


def require_params(params: Any, name: str = "params") -> None:
    """Raises a clear error if a file's name, a result or a state is given for parameters.

    Args:
      params: what was given.
      name: how the argument is called.

    Raises:
      TypeError: if it is one of these.
    """
    wanted = f"{name} must be the model's parameters, but is {kind_of(params)}"
    if isinstance(params, str | os.PathLike):
        raise TypeError(f"{wanted}. Read a file with fedax.load_params({str(params)!r}).")
    for path in ("params", "server_state.params"):
        holder = params
        for field in path.split("."):
            holder = getattr(holder, field, None)
        if holder is not None and not isinstance(params, Mapping):
            owner = "result" if hasattr(params, "history") else "state"
            raise TypeError(f"{wanted}; use {owner}.{path}.")
