"""What the clients' own models are worth, for methods that have such models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jax.sharding import Mesh

from fedax.algorithm import Array, FederatedAlgorithm, Model, Params, PyTree
from fedax.clients.local_training import LocalTraining
from fedax.data.cohort_data import ClientData
from fedax.data.task import Task
from fedax.devices.mesh import check_mesh
from fedax.factories import factory
from fedax.mistakes.algorithm import require_algorithm
from fedax.rounds.checks import (
    check_examples,
    require_state,
    require_task,
    require_training_state,
)
from fedax.rounds.client_metrics import CLIENTS_FOR_A_TENTH, ClientMetrics
from fedax.rounds.personalization import Measure, Personalizer, Sums, sums_of
from fedax.rounds.state import TrainingState, population
from fedax.validate import check_count, options_checked, plain

# Test examples that go through a model together.
BATCH_SIZE = LocalTraining._field_defaults["batch_size"]


@options_checked
def evaluate_own_models(
    task: Task,
    algorithm: FederatedAlgorithm,
    state: TrainingState,
    *,
    clients: int | None = None,
    seed: int = 0,
    clients_per_chunk: int | None = None,
    mesh: Mesh | None = None,
    keep_params: bool = False,
) -> ClientMetrics:
    """Each client's own model on its own test examples, for methods that have such models.

    Clients of `task.train` and `task.test` are matched by name, as in the result of `data.split()`;
    clients without a match are left out. Clients that never took part have the initial state. Their
    states and examples are read in groups, so memory does not grow with the number of clients.

    Args:
      task: model and data, with test examples.
      algorithm: a method whose clients have models of their own, such as `fedax.ditto(model)`.
      state: after training, such as `result.state`.
      clients: number of clients to draw at most, by the seed; None: all.
      seed: >= 0, seed of that draw and of what the method draws for a client's model.
      clients_per_chunk: number of clients that run as one batch; None as for `simulate`.
      mesh: this process's devices of it share the clients, see `fedax.client_mesh`; None: one.
      keep_params: whether the result also has each client's parameters, which takes the memory of
        one model per client.

    Returns:
      The metrics client by client, in the order of `task.test`: of the own models, and of the
      server's model in `.before`. `.num_left_out` counts training clients without test examples.
      With keep_params, `.params` maps each client's name to its parameters, as NumPy arrays.

    Raises:
      TypeError: if an argument has the wrong type.
      ValueError: if the method has no such models, or no client has both training and test
        examples.

    Example:
      >>> import fedax, jax.numpy as jnp, numpy as np
      >>> data = fedax.FederatedDataset.from_clients({
      ...     name: {"x": np.ones((4, 1)), "y": np.full(4, y)}
      ...     for name, y in (("ada", 1.0), ("bob", 3.0))})
      >>> model = fedax.regression(lambda key: jnp.zeros(1), lambda params, x: x @ params)
      >>> task = fedax.Task(model, *data.split(0.5))
      >>> algorithm = fedax.ditto(model, 0.5, attraction=0.0, num_local_steps=1)
      >>> result = fedax.train(task, algorithm, num_rounds=1, cohort_size=2)
      >>> found = evaluate_own_models(task, algorithm, result.state)
      >>> found.before["loss"].tolist(), found["loss"].tolist()  # half of the way to y
      ([0.0, 2.0], [0.125, 1.125])
    """
    if clients_per_chunk is not None:
        check_count("clients_per_chunk", clients_per_chunk)
    require_task(task)
    require_algorithm(algorithm)
    require_training_state(state)
    require_state(state, algorithm, population(task, algorithm))
    if algorithm.own_model is None:
        raise ValueError(
            "This method's clients do not have models of their own, as those of fedax.ditto and "
            "fedax.personal do. fedax.evaluate_personalized fine-tunes the server's model."
        )
    params = state.server_state.params
    check_mesh(mesh)
    personalizer = Personalizer(task, plain(clients), plain(seed), plain(clients_per_chunk), mesh)
    check_examples(task.model, params, "task.train", task.train)
    check_examples(task.model, params, "task.test", personalizer.test)
    return own_models(
        personalizer, task.model, algorithm, state.server_state, state.client_store.read,
        keep_params=bool(keep_params),
    )


def own_models(
    personalizer: Personalizer,
    model: Model,
    algorithm: FederatedAlgorithm,
    server_state: Any,
    states_of: Callable[[np.ndarray], PyTree],
    *,
    keep_params: bool = False,
) -> ClientMetrics:
    """The metrics of the clients' own models, with those of the server's model before them.

    Args:
      personalizer: of the task.
      model: the task's.
      algorithm: with `own_model`.
      server_state: of the round.
      states_of: training clients' indices -> their stacked states.
      keep_params: whether the parameters of the own models are in the result.
    """
    measure = _own_model(algorithm, model, keep_params=keep_params)
    return personalizer.measure(measure, server_state, states_of, keep_params=keep_params)


class OwnModels:
    """The clients' own models in evaluation rounds, of any method on the same task.

    Args:
      task: with the test data of the part.
      part: "validation" or "test".
      personalizer: of the task.
    """

    def __init__(self, task: Task, part: str, personalizer: Personalizer) -> None:
        self._model, self._part, self._personalizer = task.model, part, personalizer

    def __call__(
        self, algorithm: FederatedAlgorithm, server_state: Any,
        states_of: Callable[[np.ndarray], PyTree],
    ) -> tuple[ClientMetrics, dict[str, float]]:
        """The clients' metrics, and `test_own_*` or `validation_own_*`; see `own_models`.

        Over all examples, over all clients (`own_mean_`), and over the worst tenth of them.
        """
        clients = own_models(
            self._personalizer, self._model, algorithm, server_state, states_of
        )
        found = {"own": clients.overall(), "own_mean": clients.worst(1.0)}
        if len(clients.names) >= CLIENTS_FOR_A_TENTH:
            found["own_worst_tenth"] = clients.worst()
        return clients, {
            f"{self._part}_{kind}_{name}": value
            for kind, values in found.items() for name, value in values.items()
        }


@factory
def _own_model(
    algorithm: FederatedAlgorithm, model: Model, *, keep_params: bool
) -> Measure:
    """One client's part: the metrics of the server's model and of its own."""

    def server_and_own(
        server_state: Any, state: PyTree, train: ClientData, test: ClientData, key: Array
    ) -> tuple[Sums, Sums, Params | None]:
        assert algorithm.own_model is not None
        own = algorithm.own_model(server_state, state, train, key)
        of_server = sums_of(model, server_state.params, test, key, BATCH_SIZE)
        return of_server, sums_of(model, own, test, key, BATCH_SIZE), own if keep_params else None

    return server_and_own
