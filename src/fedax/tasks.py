"""Tasks by name: data, model and what to compare with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from fedax.data import shakespeare
from fedax.data.federated_dataset import FederatedDataset
from fedax.models import character_lstm
from fedax.models.mlp import character_mlp
from fedax.models.quadratic import quadratic, quadratic_data
from fedax.simulate import Task
from fedax.theory.errors import SingularError
from fedax.theory.population import QuadraticPopulation
from fedax.validate import check_choice


class TaskInfo(NamedTuple):
    """What is known of a task without loading it.

    Attributes:
      description: one line.
      dataset: the data set's name.
      models: the models that it can be loaded with; the first is the default.
      load: (model name) -> task.
    """

    description: str
    dataset: str
    models: tuple[str, ...]
    load: Callable[[str], Task]


class DatasetInfo(NamedTuple):
    """What is known of a data set without loading it."""

    description: str
    source: str


def load_task(name: str, model: str | None = None) -> Task:
    """Loads a task by name.

    Args:
      name: one of `TASKS`; "shakespeare" is embedded in the package.
      model: one of the task's models; None means its first.

    Raises:
      ValueError: there is no such task or model; the sentence suggests the nearest. Or the
        task's data file is damaged.

    Example:
      >>> task = load_task("shakespeare", model="small")
      >>> task.train.num_clients == task.test.num_clients
      True
    """
    check_choice("task", name, TASKS)
    info = TASKS[name]
    if model is None:
        model = info.models[0]
    check_choice(f"model of the task {name}", model, info.models)
    return info.load(model)


def quadratic_task(population: QuadraticPopulation, start: Any = 0.0) -> Task:
    """A population of quadratic clients as a task, where `fedax.theory` says what will happen.

    The test metrics are `loss`, f(x), and `distance`, |x - x*|. With
    `weighting="num_tokens"` clients weigh their probabilities p_i; `batch_size=1` takes one
    example of the noise a step, and with `order="iid"` examples are drawn independently, as the
    theory has it.

    Args:
      population: the clients.
      start: x_0, [d] or a number for all coordinates.

    Example:
      >>> from fedax.theory.population import QuadraticPopulation
      >>> import fedax
      >>> clients = QuadraticPopulation.from_centres([1.0, 2.0], [1.0, 0.5])
      >>> task = quadratic_task(clients)
      >>> algorithm = fedax.fedavg(task.model, 0.5, num_local_steps=2)
      >>> result = fedax.train(task, algorithm, num_rounds=60, cohort_size=2)
      >>> round(float(result.params["x"][0]), 4)  # 5/7, not the minimiser 2/3
      0.7143
    """
    try:
        minimiser = population.minimiser
    except SingularError:
        minimiser = None
    dtype = jnp.result_type(float)
    x_0 = np.broadcast_to(np.asarray(start), population.linear.shape[1:]).astype(dtype)
    data = quadratic_data(population)
    references: dict[str, Callable[[], Mapping[str, float]]] = {}
    if minimiser is not None:
        references["the minimiser x*"] = lambda: {"test_loss": float(population.loss(minimiser))}
    return Task(quadratic(x_0, minimiser), data, data, "quadratics", references)


def _load_quadratics(model: str) -> Task:
    populations: Mapping[str, Callable[[], QuadraticPopulation]] = {
        "random": lambda: QuadraticPopulation.random(
            100, 20, mu=0.1, L=2.0, sigma_c=1.0, noise=1.0
        ),
        "two_clients": lambda: QuadraticPopulation.from_centres([1.0, 2.0], [1.0, 0.5]),
    }
    return quadratic_task(populations[model]())


def _load_shakespeare(model: str) -> Task:
    train, test = (
        FederatedDataset(clients.arrays, clients.offsets, np.asarray(clients.names))
        for clients in shakespeare.load()
    )
    models = {
        "small": lambda: character_lstm(128, 1),
        "paper": lambda: character_lstm(256, 2),
        "mlp": lambda: character_mlp(context=4, hidden_sizes=(128,)),
    }
    references: Mapping[str, Callable[[], Mapping[str, float]]] = {
        "a bigram table fitted centrally on the training text": lambda: {
            "test_accuracy": shakespeare.bigram_accuracy(
                train.arrays["tokens"], test.arrays["tokens"]
            )
        }
    }
    return Task(models[model](), train, test, "shakespeare", references)


TASKS: dict[str, TaskInfo] = {
    "shakespeare": TaskInfo(
        description="next character of Shakespeare's plays, a client being a role of a play",
        dataset="shakespeare",
        models=("small", "paper", "mlp"),
        load=_load_shakespeare,
    ),
    "quadratics": TaskInfo(
        description="quadratic losses, for which fedax theory says where every method goes",
        dataset="quadratics",
        models=("random", "two_clients"),
        load=_load_quadratics,
    ),
}

DATASETS: dict[str, DatasetInfo] = {
    "shakespeare": DatasetInfo(
        description="the roles of 37 plays, first 80% of each one's lines for training",
        source="embedded",
    ),
    "quadratics": DatasetInfo(
        description="100 random clients in 20 dimensions; or section 4 of Charles, Konecny 2020",
        source="made",
    ),
}
