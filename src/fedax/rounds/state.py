"""The state of a run: its initial value, and all that it needs to continue."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedax.algorithm import Array, FederatedAlgorithm, Model, Params, PyTree
from fedax.data.federated_dataset import FederatedDataset
from fedax.data.task import Task
from fedax.devices.compiling import jit
from fedax.factories import PROGRAMS, Structure, partition, recipe
from fedax.mistakes.algorithm import call_state_inits, require_algorithm
from fedax.mistakes.errors import kind_of
from fedax.mistakes.model import call_init
from fedax.models.parameters import counted, fitted
from fedax.rounds.checks import require_params, require_task
from fedax.rounds.client_store import ClientStore
from fedax.validate import check_seed, so_many


class TrainingState(NamedTuple):
    """All that a run needs to continue exactly, besides its configuration.

    Attributes:
      server_state: with `params` and `round_index`.
      client_store: the clients' states.
    """

    server_state: Any
    client_store: ClientStore

    def __repr__(self) -> str:
        leaves = jax.tree.leaves(self.server_state)
        if any(isinstance(leaf, jax.Array) and leaf.is_deleted() for leaf in leaves):
            return "TrainingState(given away to the next round)"
        return (
            f"TrainingState(after round {int(self.server_state.round_index)}, "
            f"{counted(self.server_state.params)}, states of "
            f"{so_many(len(self.client_store), 'client')})"
        )


def initial_state(
    task: Task, algorithm: FederatedAlgorithm, seed: int = 0, params: Params | None = None
) -> TrainingState:
    """The state before the first round.

    Args:
      task, algorithm: as for `simulate`.
      seed: seed of the initial parameters.
      params: initial parameters to use instead, matched by name with those of the model's init.

    Raises:
      TypeError: if the task, the algorithm or `params` have the wrong type.
      ValueError: if the seed is not an integer >= 0, the model has no parameters or some that are
        not floating point arrays, or `params` do not match them; the message names the first
        difference.
      ModelError, AlgorithmError: if a function that returns initial values fails.
    """
    check_seed(seed)
    require_task(task)
    drawn = initial_params(task.model, seed)
    if params is None:
        params = drawn
    else:
        require_params(params, "initial_params")
        params = fitted(_strong(params), drawn, "initial_params", "the model")
    return state_at(task, algorithm, params)


def state_at(task: Task, algorithm: FederatedAlgorithm, params: Params) -> TrainingState:
    """The state before the first round from these parameters, which are the model's."""
    require_algorithm(algorithm)
    server_state, client_state = call_state_inits(algorithm, params)
    store = ClientStore(_strong(client_state), population(task, algorithm).num_clients)
    return TrainingState(_strong(server_state), store)


def initial_params(model: Model, seed: int) -> Params:
    """The parameters that a run starts from, init(run_key(seed, 0)).

    Those of fedax's own models are drawn by one program: layer by layer, JAX would compile a few
    for every shape, 12 s for a ResNet-18 in place of 4.

    Raises:
      ValueError: if there are none, or some that are not floating point arrays.
      ModelError: if the model's init fails.
    """
    key = run_key(seed, 0)
    if is_known(model):
        numbers, structure = partition(model)
        drawn = _drawn_by(structure)(numbers, key)
    else:
        drawn = call_init(model, key)
    if not jax.tree.leaves(drawn):
        raise ValueError(
            f"The model's init returns no parameters but {kind_of(drawn)}, so there is nothing to "
            "train. It must return a pytree of floating point arrays."
        )
    for leaf in jax.tree.leaves(drawn):
        if not jnp.issubdtype(getattr(leaf, "dtype", type(leaf)), jnp.floating):
            what = getattr(leaf, "dtype", type(leaf).__name__)
            raise ValueError(
                f"The model's init returns a parameter of type {what} and shape "
                f"{np.shape(leaf) if hasattr(leaf, 'dtype') else '()'}; parameters must be "
                "floating point arrays. Keep anything else in the functions that use them "
                "(Equinox: eqx.partition)."
            )
    return _strong(drawn)


@functools.lru_cache(maxsize=PROGRAMS)
def _drawn_by(structure: Structure) -> Any:
    def init(numbers: list[Array], key: Array) -> Params:
        return call_init(structure(numbers), key)

    return jit(init, level=1)  # used once or a few times; at level 0 an LSTM takes 7 s to draw


def is_known(value: Any) -> bool:
    """Whether all functions in it are made by factories of fedax, and of nothing of the user's.

    Example:
      >>> import fedax
      >>> model = fedax.models.character_lstm(4, 1)
      >>> is_known(model), is_known(fedax.regression(lambda key: 0.0, lambda p, x: p * x))
      (True, False)
    """
    if not (isinstance(value, Model) or callable(value)):
        return True
    found = recipe(value)
    if found is None or not found.factory.__module__.startswith("fedax."):
        return False
    parts = jax.tree.leaves(
        list(found.arguments.values()),
        is_leaf=lambda part: isinstance(part, Model) or callable(part),
    )
    return all(map(is_known, parts))


def population(task: Task, algorithm: FederatedAlgorithm) -> FederatedDataset:
    """The clients that the algorithm trains on: the task's, or their pool as one."""
    return task.train.pooled() if algorithm.pooled else task.train


def _strong(tree: PyTree) -> PyTree:
    """The tree without weakly typed arrays, with which the second round would compile again."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.asarray(leaf).dtype), tree)


def run_key(seed: int, part: int) -> jax.Array:
    """The key from which everything random of a part of a run comes: fold_in(seed, part)."""
    # The implementation is named, so that a user's jax_default_prng_impl changes no number, and
    # NumPy spreads the seed, of which jax.random.key would keep 32 bits.
    words = np.random.SeedSequence(seed).generate_state(2, np.uint32)
    key = jax.random.wrap_key_data(jnp.asarray(words, words.dtype), impl="threefry2x32")
    return _fold_in()(key, part)


@functools.cache
def _fold_in() -> Any:
    return jit(jax.random.fold_in, level=0)  # used once, so that compiling it is what it costs
