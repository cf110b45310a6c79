"""Quadratic losses as a task, with exact predictions in `fedax.theory`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedax.data.task import Task
from fedax.models.quadratic import quadratic, quadratic_data
from fedax.theory.errors import SingularError
from fedax.theory.given import as_population
from fedax.theory.population import QuadraticPopulation


def quadratic_task(population: QuadraticPopulation, start: Any = 0.0) -> Task:
    """A population of quadratic clients as a task, with exact predictions in `fedax.theory`.

    The test metrics are `loss`, f(x), and `distance`, |x - x*|. Use `weighting="num_tokens"` to
    weight clients by their probabilities p_i, `batch_size=1` for one noise example per step, and
    `order="iid"` to draw examples independently, as the theory assumes.

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
    as_population(population)
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


def load(model: str) -> Task:
    """The population of that name as a task."""
    populations: Mapping[str, Callable[[], QuadraticPopulation]] = {
        "random": lambda: QuadraticPopulation.random(
            100, 20, mu=0.1, L=2.0, sigma_c=1.0, noise=1.0
        ),
        "two_clients": lambda: QuadraticPopulation.from_centres([1.0, 2.0], [1.0, 0.5]),
    }
    return quadratic_task(populations[model]())
