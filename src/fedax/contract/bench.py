"""Test bench of the checks: small quadratics, and a few rounds as one program."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedax.algorithm import Batch, FederatedAlgorithm, Model, Params
from fedax.data.cohort_data import CohortData, CohortReader
from fedax.data.federated_dataset import FederatedDataset
from fedax.data.task import Task
from fedax.devices.compiling import jit
from fedax.factories import partition, recipe
from fedax.mistakes.algorithm import like_twin
from fedax.rounds.cohort import run_round
from fedax.rounds.state import TrainingState, initial_state, population

DIMENSION = 3
# More than one batch of the default size, a single example, and sizes in between.
SIZES = (3, 25, 9, 40, 1, 30, 6)
# The cohorts of the rounds, in turn.
COHORTS = np.array([[0, 1, 2, 3, 4], [6, 4, 3, 1, 5]])
ROUNDS = 4

Build = Callable[..., FederatedAlgorithm]


class Broken(Exception):  # noqa: N818
    """A clause of the contract does not hold."""


class NotApplicable(Exception):  # noqa: N818
    """A clause does not apply to this method."""


class Bench:
    """A factory with its settings, and values shared by the checks.

    Args:
      factory: (model, **settings) -> algorithm.
      settings: its keyword arguments.
    """

    def __init__(self, factory: Build, settings: Mapping[str, Any]) -> None:
        self.factory = factory
        self._settings = dict(settings)
        self.num_traces = 0  # of `program`
        self.model = quadratics_model()
        self.data = quadratics()

    def build(self, numbers: Mapping[str, Any] | None = None) -> FederatedAlgorithm:
        """The algorithm, with other values for some settings."""
        return self.factory(self.model, **{**self._settings, **(numbers or {})})

    @functools.cached_property
    def algorithm(self) -> FederatedAlgorithm:
        """The algorithm with the settings as they were given."""
        return self.build()

    @functools.cached_property
    def parameters(self) -> dict[str, Any]:
        """Name -> argument of the factory, defaults included."""
        own = list(inspect.signature(self.factory).parameters.values())[1:]
        defaults = {p.name: p.default for p in own if p.default is not p.empty}
        return defaults | self._settings

    @functools.cached_property
    def numbers(self) -> dict[str, jax.Array]:
        """The settings that are floating point numbers, which may be traced, as arrays."""
        numbers = {
            name: jnp.asarray(value, jnp.result_type(float))
            for name, value in self.parameters.items()
            if isinstance(value, float)
            or (hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jnp.floating))
        }
        if recipe(self.algorithm) is None:
            return numbers
        return {name: value for name, value in numbers.items() if self.compiles_once(name)}

    def compiles_once(self, name: str) -> bool:
        """Whether a different value of this setting needs no new compilation."""
        value = self.parameters[name]
        one, other = (partition(self.build({name: value * scale}))[1] for scale in (1.0, 0.75))
        return one == other

    def task(self, data: FederatedDataset | None = None) -> Task:
        """The quadratics as a task."""
        return Task(self.model, self.data if data is None else data, None, "contract")

    def everyone(self, data: FederatedDataset | None = None, dtype: Any = None) -> CohortData:
        """All clients as one cohort, from which cohorts are taken; the pool if that is wanted."""
        clients = population(self.task(data), self.algorithm)
        cohort = CohortReader(clients)(np.arange(clients.num_clients))
        arrays = {
            name: array if dtype is None else array.astype(dtype)
            for name, array in cohort.arrays.items()
        }
        return dataclasses.replace(cohort, arrays=arrays)

    @functools.cached_property
    def cohorts(self) -> np.ndarray:
        """Client ids, a row a round."""
        return np.zeros((1, 1), np.int64) if self.algorithm.pooled else COHORTS

    def start(self) -> TrainingState:
        """The state before the first round."""
        return initial_state(self.task(), self.algorithm)

    def states(self, state: TrainingState) -> tuple[Any, Any]:
        """The server's state, and all clients' states as rows."""
        ids = np.arange(len(self.everyone().client_ids))
        return state.server_state, jax.tree.map(jnp.asarray, state.client_store.read(ids))

    @functools.cached_property
    def first_states(self) -> tuple[Any, Any]:
        """Those before the first round."""
        return self.states(self.start())

    @functools.cached_property
    def program(self) -> Callable[..., Any]:
        """`rounds` of the algorithm, one client at a time, compiled once for all checks."""
        def build(numbers: Mapping[str, Any]) -> FederatedAlgorithm:
            self.num_traces += 1
            return self.build(numbers)

        return quick_jit(rounds(build))

    def run(self, **changes: Any) -> Any:
        """Some rounds from the start: the server's state, the clients' states, who was accepted.

        Args:
          **changes: to the arguments of `rounds`: numbers, states, everyone, cohorts, key, count.
        """
        arguments = {
            "numbers": {}, "states": self.first_states, "everyone": self.everyone(),
            "cohorts": self.cohorts, "key": jax.random.key(1), "count": ROUNDS,
        } | changes
        return self.program(*arguments.values())


def rounds(
    build: Callable[[Mapping[str, Any]], FederatedAlgorithm], clients_per_chunk: int = 1
) -> Callable[..., Any]:
    """(numbers, states, everyone, cohorts, key, count) -> the states after `count` rounds.

    Round t's cohort is row t of `cohorts`, from its first row again after the last.
    """

    def run(
        numbers: Any, states: Any, everyone: CohortData, cohorts: Any, key: Any, count: Any
    ) -> Any:
        algorithm = build(numbers)
        cohorts = jnp.asarray(cohorts)

        def one(_: Any, carry: Any) -> Any:
            server_state, client_states, _ = carry
            ids = cohorts[server_state.round_index % cohorts.shape[0]]
            server_state, own, info = run_round(
                algorithm, server_state, jax.tree.map(lambda leaf: leaf[ids], client_states),
                cohort_of(everyone, ids), key, clients_per_chunk=clients_per_chunk,
            )
            kept = jax.tree.map(lambda leaf, new: leaf.at[ids].set(new), client_states, own)
            return server_state, kept, info.accepted

        return jax.lax.fori_loop(0, count, one, (*states, jnp.ones(cohorts.shape[1], bool)))

    return run


def quick_jit(function: Callable[..., Any]) -> Any:
    """`jax.jit` that compiles quickly: a round of small arrays runs shorter than it is compiled."""
    return jit(function, level=0)


def cohort_of(everyone: CohortData, ids: Any) -> CohortData:
    """The cohort of the clients in these places."""
    names = ("client_ids", "starts", "num_examples", "repeats", "dropped_at")
    return dataclasses.replace(everyone, **{name: getattr(everyone, name)[ids] for name in names})


def quadratics_model() -> Model:
    """Parameters x [3] and a scalar y; losses (x - c)^T A (x - c) / 2 + (y - c_1)^2 / 2."""

    def init(key: Any) -> Params:
        del key
        dtype = jnp.result_type(float)
        return {"x": jnp.array([1.0, -1.0, 0.5], dtype), "inner": {"y": jnp.array(0.2, dtype)}}

    def losses(params: Params, batch: Batch, key: Any = None) -> Any:
        del key
        gaps = params["x"][None, :] - batch["c"]
        values = jnp.einsum("bi,bij,bj->b", gaps, batch["A"], gaps) / 2
        values += (params["inner"]["y"] - batch["c"][:, 0]) ** 2 / 2
        return values, jnp.ones_like(values)

    def outputs(params: Params, batch: Batch) -> Any:
        return batch["c"] * params["x"][None, :] + params["inner"]["y"]

    def size(outputs: Any, batch: Batch) -> Any:
        del batch
        values = (outputs * outputs).sum(1)
        return values, jnp.ones_like(values)

    return Model(init, losses, outputs, {"size": size})


def quadratics(equal: bool = False) -> FederatedDataset:
    """The clients' examples (A, c); with `equal` all examples are the same."""
    rng = np.random.default_rng(0)
    num_examples = sum(SIZES)
    roots = rng.normal(size=(num_examples, DIMENSION, DIMENSION)) / 2
    arrays = {
        "A": roots @ roots.transpose(0, 2, 1) + 0.3 * np.eye(DIMENSION),
        "c": rng.normal(size=(num_examples, DIMENSION)),
    }
    if equal:
        arrays = {name: np.repeat(array[:1], num_examples, 0) for name, array in arrays.items()}
    dtype = jnp.result_type(float)
    return FederatedDataset(
        {name: array.astype(dtype) for name, array in arrays.items()},
        np.concatenate([[0], np.cumsum(SIZES)]),
    )


def difference(a: Any, b: Any) -> float:
    """The largest difference of two pytrees, relative to the array it occurs in."""
    def of(x: Any, y: Any) -> float:
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        largest = max(float(np.abs(y).max(initial=0)), 1e-3)
        found = float(np.abs(x - y).max(initial=0)) / largest
        return np.inf if np.isnan(found) else found

    return max(jax.tree.leaves(jax.tree.map(of, a, like_twin(a, b))), default=0.0)


def tolerance() -> float:
    """What rounding may change: half of the digits."""
    return float(np.sqrt(jnp.finfo(jnp.result_type(float)).eps))
