"""What a model is worth to clients that fine-tune it first."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fedax.algorithm import Array, Model, Params, PyTree
from fedax.clients.local_training import LocalMessage, LocalTraining
from fedax.clients.minibatches import Minibatch, fold_minibatches, steps_per_epoch
from fedax.clients.precision import sum_dtype, widen
from fedax.data.cohort_data import ClientData, CohortData, CohortReader
from fedax.data.federated_dataset import FederatedDataset
from fedax.data.task import Task
from fedax.devices.compiling import jit
from fedax.devices.mesh import REPLICATED, SPREAD, check_mesh, replicate
from fedax.factories import PROGRAMS, Structure, factory, partition
from fedax.mistakes.model import call_metric, call_outputs
from fedax.rounds.checks import check_examples, require_params, require_task
from fedax.rounds.chunks import automatic_chunk
from fedax.rounds.client_metrics import ClientMetrics
from fedax.rounds.sampling import sample_clients
from fedax.rounds.state import run_key
from fedax.validate import check_count, check_seed, options_checked, plain

# Clients that go to the device together, whose examples it holds at a time.
CLIENTS_AT_A_TIME = 64
# What the run's key is folded with: 0 draws the initial parameters, 1 is for the rounds.
_TAG = 2

# Metric name -> (sum of weight * value, sum of weights).
Sums: TypeAlias = dict[str, tuple[Array, Array]]
# (what all clients share, the client's state, its training and test examples, its key) -> metrics
# before and after, and perhaps the parameters that the latter are of.
Measure: TypeAlias = Callable[
    [PyTree, PyTree, ClientData, ClientData, Array], tuple[Sums, Sums, Params | None]
]


class FineTuning(NamedTuple):
    """How a client fine-tunes; K steps, E epochs, or the smaller count if both are given."""

    client_learning_rate: float
    num_local_steps: int | None
    num_local_epochs: int | None
    batch_size: int


class Personalizer:
    """Fine-tunes the clients of a task and evaluates them; compiles once.

    Args:
      task: with test examples.
      clients: number of clients to draw at most; None: all.
      seed: seed of that draw and of the minibatches.
      clients_per_chunk, mesh: as for `simulate`; only this process's devices of a mesh are used.
      reader: reader of the training examples for that mesh, if there is one.

    Attributes:
      test: the task's test data.

    Raises:
      ValueError: if an argument is out of range, or no client has both training and test examples.
    """

    def __init__(
        self,
        task: Task,
        clients: int | None,
        seed: int,
        clients_per_chunk: int | None = None,
        mesh: Mesh | None = None,
        reader: CohortReader | None = None,
    ) -> None:
        if clients is not None:
            check_count("The number of clients", clients)
        check_seed(seed)
        test, in_train = matched_clients(task)
        matched = np.flatnonzero(in_train >= 0)
        self._num_left_out = task.train.num_clients - len(matched)
        if clients is not None:
            matched = matched[sample_clients(seed, len(matched), clients)]
        self._model = task.model
        self.test, self._in_test, self._in_train = test, matched, in_train[matched]
        # Like sizes together: a chunk takes as long as its largest client.
        self._order = np.argsort(task.train.client_sizes[self._in_train], kind="stable")
        self._mesh = None if mesh is None else mesh.local_mesh
        self._train_reader = reader or CohortReader(task.train, mesh=self._mesh)
        self._test_reader = CohortReader(test, mesh=self._mesh)
        self._key = replicate(run_key(seed, _TAG), self._mesh)
        self._chunk = clients_per_chunk

    def __call__(
        self, params: Params, tuning: FineTuning, *, keep_params: bool = False
    ) -> ClientMetrics:
        """The clients' metrics after fine-tuning, with those before it.

        Args:
          params: where clients begin.
          tuning: how they fine-tune.
          keep_params: whether their parameters are in the result.
        """
        tune = _fine_tuning(self._model, *tuning, keep_params=keep_params)
        return self.measure(tune, params, lambda _: (), keep_params=keep_params)

    def measure(
        self,
        measure: Measure,
        shared: PyTree,
        states_of: Callable[[np.ndarray], PyTree],
        *,
        keep_params: bool,
    ) -> ClientMetrics:
        """The clients' metrics, one group of clients after the other.

        Args:
          measure: one client's part.
          shared: what it takes first.
          states_of: training clients' indices -> their stacked states, which it takes second.
          keep_params: whether the parameters of its third result are in the clients' metrics.
        """
        numbers, structure = partition(measure)
        tuned: dict[int, Params] = {}
        sums = [
            {name: np.zeros((2, len(self._order))) for name in self._model.metrics}
            for _ in range(2)
        ]
        under_way: collections.deque[tuple[np.ndarray, Any]] = collections.deque()

        def take() -> None:
            places, found = under_way.popleft()
            present = places >= 0
            *measured, models = jax.device_get(found)
            for total, of_group in zip(sums, measured, strict=True):
                for name, pair in of_group.items():
                    total[name][:, places[present]] = np.asarray(pair)[:, present]
            if keep_params:
                for row in np.flatnonzero(present):
                    tuned[places[row]] = jax.tree.map(lambda leaf, row=row: leaf[row], models)

        shared = replicate(shared, self._mesh)
        for places, train, test in self._groups():
            states = states_of(self._in_train[places])
            arguments = (numbers, shared, states, self._key, train, test)
            if self._chunk is None:
                self._chunk = automatic_chunk(
                    lambda chunk: _program(structure, chunk, self._mesh), arguments,
                    len(places) // self._devices, jax.local_devices()[0],
                )
            under_way.append((places, _program(structure, self._chunk, self._mesh)(*arguments)))
            if len(under_way) > 1:  # the device has its next group before this one is looked at
                take()
        while under_way:
            take()
        names = self.test.client_names[self._in_test]
        sizes = self.test.client_sizes[self._in_test]
        before, after = ({name: (p[0], p[1]) for name, p in total.items()} for total in sums)
        return ClientMetrics(
            after, names, sizes, ClientMetrics(before, names, sizes), self._num_left_out,
            params={name: tuned[place] for place, name in enumerate(names.tolist())}
            if keep_params else None,
        )

    @property
    def _devices(self) -> int:
        return 1 if self._mesh is None else self._mesh.size

    def _groups(self) -> Iterator[tuple[np.ndarray, CohortData, CohortData]]:
        """Where clients stand among all (-1: nobody), and their training and test examples."""
        length = -(-min(CLIENTS_AT_A_TIME, len(self._order)) // self._devices) * self._devices
        for first in range(0, len(self._order), length):
            group = self._order[first : first + length]
            group = np.append(group, np.full(length - len(group), -1))
            places = group.reshape(-1, self._devices).T.ravel()  # each device has small and large
            train, test = (
                dataclasses.replace(
                    cohort, num_examples=np.where(places < 0, 0, np.asarray(cohort.num_examples))
                )
                for cohort in (
                    self._train_reader(self._in_train[places]),
                    self._test_reader(self._in_test[places]),
                )
            )
            yield places, train, test


@options_checked
def evaluate_personalized(
    task: Task,
    params: Params,
    *,
    client_learning_rate: float,
    num_local_steps: int | None = None,
    num_local_epochs: int | None = None,
    batch_size: int = 20,
    clients: int | None = None,
    seed: int = 0,
    clients_per_chunk: int | None = None,
    mesh: Mesh | None = None,
    keep_params: bool = False,
) -> ClientMetrics:
    r"""Each client fine-tunes the model on its training examples, and is then tested on its own.

    .. math:: x_{i,0} = x, \quad x_{i,k+1} = x_{i,k} - \gamma\, g_{i,k}(x_{i,k}), \quad
              m_i(x_{i,K}) \text{ beside } m_i(x)

    Clients of `task.train` and `task.test` are matched by name, as in the result of `data.split()`;
    clients without a match are left out. Each client costs K local steps and two passes over its
    test examples, so all N clients cost about as much as N / cohort_size rounds.

    Args:
      task: model and data, with test examples.
      params: x, the parameters before fine-tuning, such as `result.params`.
      client_learning_rate: gamma >= 0.
      num_local_steps: K >= 0 minibatches.
      num_local_epochs: E >= 0 passes over the client's examples, each in a fresh random order. Give
        steps or epochs, or both for the smaller count.
      batch_size: B >= 1, examples per step.
      clients: number of clients to draw at most, by the seed; None: all.
      seed: >= 0, seed of that draw and of the order of examples, which depends on the seed and the
        client only.
      clients_per_chunk: number of clients that train as one batch; None as for `simulate`.
      mesh: this process's devices of it share the clients, see `fedax.client_mesh`; None: one.
      keep_params: whether the result also has each client's fine-tuned parameters, which takes the
        memory of one model per client.

    Returns:
      The metrics client by client, in the order of `task.test`: after fine-tuning, and before it in
      `.before`. `.num_left_out` counts training clients without test examples. With keep_params,
      `.params` maps each client's name to its parameters, as NumPy arrays.

    Raises:
      TypeError: if the task or the parameters have the wrong type.
      ValueError: if an argument is out of range, or no client has both training and test examples.
      ModelError: if the model fails or rejects the examples.

    Example:
      >>> import fedax
      >>> data = fedax.FederatedDataset.from_clients({
      ...     name: {"x": np.ones((4, 1)), "y": np.full(4, y)}
      ...     for name, y in (("ada", 1.0), ("bob", 3.0))})
      >>> model = fedax.regression(lambda key: jnp.zeros(1), lambda params, x: x @ params)
      >>> task = fedax.Task(model, *data.split(0.5))
      >>> found = evaluate_personalized(
      ...     task, jnp.full(1, 2.0), client_learning_rate=0.5, num_local_steps=1)
      >>> found.before["loss"].tolist(), found["loss"].tolist()  # half of the way to y
      ([0.5, 0.5], [0.125, 0.125])
      >>> kept = evaluate_personalized(
      ...     task, jnp.full(1, 2.0), client_learning_rate=0.5, num_local_steps=1, keep_params=True)
      >>> kept.params["ada"].tolist()
      [1.5]
    """
    tuning = checked_tuning(client_learning_rate, num_local_steps, num_local_epochs, batch_size)
    if clients_per_chunk is not None:
        check_count("clients_per_chunk", clients_per_chunk)
    require_task(task)
    require_params(params)
    check_mesh(mesh)
    personalizer = Personalizer(task, plain(clients), plain(seed), plain(clients_per_chunk), mesh)
    check_examples(task.model, params, "task.train", task.train)
    check_examples(task.model, params, "task.test", personalizer.test)
    return personalizer(params, tuning, keep_params=bool(keep_params))


def matched_clients(task: Task) -> tuple[FederatedDataset, np.ndarray]:
    """The test data, and each test client's index among the training clients, or -1.

    Raises:
      ValueError: if there are no test data, or no client has both training and test examples.
    """
    if task.test is None:
        raise ValueError(
            "Personalised evaluation needs test examples of the training clients: a task with "
            "test data, such as the result of data.split()."
        )
    in_train = task.train.places_of(task.test)
    if in_train.max() < 0:
        raise ValueError(
            "No client has examples in both task.train and task.test, so none can fine-tune and "
            f"be tested: names look like {task.train.name(0)!r} in task.train and "
            f"{task.test.name(0)!r} in task.test. data.split() gives both parts the same names."
        )
    return task.test, in_train


def checked_tuning(
    client_learning_rate: Any,
    num_local_steps: Any,
    num_local_epochs: Any,
    batch_size: Any,
) -> FineTuning:
    """How clients fine-tune; the local training checks the rest.

    Raises:
      ValueError: if a count is out of range, or neither steps nor epochs are given.
    """
    if num_local_steps is None and num_local_epochs is None:
        raise ValueError(
            "Say how long clients fine-tune: num_local_steps or num_local_epochs, such as 10 and 1."
        )
    for name, value in (
        ("num_local_steps", num_local_steps), ("num_local_epochs", num_local_epochs),
    ):
        if value is not None:
            check_count(name, value, at_least=0)
    return FineTuning(
        plain(client_learning_rate), plain(num_local_steps), plain(num_local_epochs),
        plain(batch_size),
    )


@factory
def _fine_tuning(
    model: Model,
    client_learning_rate: float | Array,
    num_local_steps: int | None,
    num_local_epochs: int | None,
    batch_size: int,
    *,
    keep_params: bool,
) -> Measure:
    """One client's part: its metrics before and after, and perhaps its parameters."""
    local = LocalTraining.checked(model, client_learning_rate, {
        "num_local_steps": num_local_steps, "num_local_epochs": num_local_epochs,
        "batch_size": batch_size,
    })

    def before_and_after(
        params: Params, state: PyTree, train: ClientData, test: ClientData, key: Array
    ) -> tuple[Sums, Sums, Params | None]:
        del state
        rate = local.client_learning_rate(jnp.int32(0))
        message = LocalMessage(params, rate, local.num_local_steps, None)
        tuned = local.train(message, train, key).params
        before = sums_of(model, params, test, key, batch_size)
        after = sums_of(model, tuned, test, key, batch_size)
        return before, after, tuned if keep_params else None

    return before_and_after


def sums_of(model: Model, params: Params, data: ClientData, key: Array, batch_size: int) -> Sums:
    """The metrics summed over a client's examples."""
    dtype = sum_dtype(jax.tree.leaves(params)[0])

    def step(sums: Sums, batch: Minibatch, key: Array) -> Sums:
        del key
        outputs = call_outputs(model.outputs, params, batch.examples, batch.mask)
        return {
            name: _added(
                sums[name], call_metric(name, metric, outputs, batch.examples, batch.mask),
                batch.mask,
            )
            for name, metric in model.metrics.items()
        }

    zeros = {name: (jnp.zeros((), dtype), jnp.zeros((), dtype)) for name in model.metrics}
    return fold_minibatches(
        step, zeros, data, key, batch_size=batch_size,
        num_steps=steps_per_epoch(data.num_examples, batch_size), order="sequential",
    )


def _added(
    sums: tuple[Array, Array], measured: tuple[Array, Array], mask: Array
) -> tuple[Array, Array]:
    """The sums with a minibatch's values; padding weighs 0, and what weighs 0 may be NaN."""
    values, weights = map(widen, measured)
    weights = jnp.where(mask, weights, 0)
    values = jnp.where(weights > 0, values * weights.astype(values.dtype), 0)
    total, weight = sums
    return total + values.sum().astype(total.dtype), weight + weights.sum().astype(weight.dtype)


@functools.lru_cache(maxsize=PROGRAMS)
def _program(structure: Structure, clients_per_chunk: int, mesh: Mesh | None) -> Any:
    """A group of clients, of all fine-tunings of a structure, which their numbers tell apart."""

    def group(
        numbers: list[Array], shared: PyTree, states: PyTree, key: Array, train: CohortData,
        test: CohortData,
    ) -> tuple[Sums, Sums, Params | None]:

        def share(
            numbers: list[Array], shared: PyTree, key: Array, arrays: tuple[Any, Any], clients: Any
        ) -> tuple[Sums, Sums, Params | None]:
            measure = structure(numbers)
            if mesh is not None:  # the device's own
                arrays = jax.tree.map(lambda array: array[0], arrays)
            in_train, in_test = arrays

            def one(client: tuple[Any, ...]) -> tuple[Sums, Sums, Params | None]:
                state, client_id, start, size, test_start, test_size = client
                return measure(
                    shared, state,
                    ClientData(in_train, start, size, train.capacity, largest=train.largest),
                    ClientData(in_test, test_start, test_size, test.capacity, largest=test.largest),
                    jax.random.fold_in(key, client_id),
                )

            # No batching of one: a loop's length is then that client's own.
            chunk = None if clients_per_chunk == 1 else clients_per_chunk
            return jax.lax.map(one, clients, batch_size=chunk)

        run = share if mesh is None else jax.shard_map(
            share, mesh=mesh, in_specs=(REPLICATED, REPLICATED, REPLICATED, SPREAD, SPREAD),
            out_specs=SPREAD, check_vma=False,
        )
        clients = (
            states, train.client_ids, train.starts, train.num_examples, test.starts,
            test.num_examples,
        )
        return run(numbers, shared, key, (train.arrays, test.arrays), clients)

    return jit(group)
