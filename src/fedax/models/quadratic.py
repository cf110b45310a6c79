"""Quadratic losses, for which federated methods can be computed exactly (`fedax.theory`)."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from fedax.algorithm import Array, Batch, Model, Params
from fedax.data.federated_dataset import FederatedDataset
from fedax.factories import factory
from fedax.theory.population import QuadraticPopulation


@factory
def quadratic(start: Any, minimiser: Any = None) -> Model:
    r"""The model x with the loss of an example :math:`x^T A x / 2 + b^T x`.

    A batch has `A` [B, d, d] and `b` [B, d], and optionally `weight` [B], the weights of the losses
    (default 1). The parameters are `{"x": [d]}`.

    Args:
      start: initial x, [d]; its dtype is the precision of the computation.
      minimiser: x*, [d]; adds the metric `distance`, |x - x*|.

    Example:
      >>> import jax
      >>> model = quadratic(jnp.asarray([2.0]))
      >>> batch = {"A": jnp.asarray([[[3.0]]]), "b": jnp.asarray([[1.0]])}
      >>> losses, _ = model.loss({"x": jnp.asarray([2.0])}, batch, jax.random.key(0))
      >>> losses.tolist()  # 3 * 2^2 / 2 + 2
      [8.0]
    """

    def loss(params: Params, batch: Batch, key: Array) -> tuple[Array, Array]:
        del key
        return _losses(params["x"], batch)

    def outputs(params: Params, batch: Batch) -> Array:
        return jnp.broadcast_to(params["x"], batch["b"].shape)

    def init(key: Array) -> Params:
        del key
        return {"x": jnp.asarray(start)}

    def distance(x: Array, batch: Batch) -> tuple[Array, Array]:
        lengths = jnp.linalg.norm(x - jnp.asarray(minimiser, x.dtype)[None], axis=1)
        return lengths, _weights(lengths, batch)

    metrics: dict[str, Any] = {"loss": lambda x, batch: _losses(x[0], batch)}
    if minimiser is not None:
        metrics["distance"] = distance
    return Model(init, loss, outputs, metrics)


def quadratic_data(population: QuadraticPopulation) -> FederatedDataset:
    """A population's clients as a data set for `quadratic`.

    A client without noise has one example (A_i, b_i). With noise it has 2 d examples, whose
    gradients have the client's mean and exactly its covariance C_i: b_i +- the columns of (d
    C_i)^(1/2). With `weighting="num_tokens"` a client's weight in the mean is its probability.

    Args:
      population: clients with probability 0 are left out.

    Example:
      >>> population = QuadraticPopulation.from_centres([1.0, 2.0], [1.0, 0.5], noise=0.04)
      >>> quadratic_data(population).client(0)["b"].ravel().round(6).tolist()  # -1 -+ 0.2
      [-0.8, -1.2]
    """
    d = population.dimension
    values, vectors = np.linalg.eigh(population.noise)
    roots = (vectors * np.sqrt(d * np.maximum(values, 0))[:, None, :]).swapaxes(1, 2)
    shifts = np.concatenate([roots, -roots], 1) if population.noise.any() else np.zeros((1, 1, d))
    dtype = jnp.result_type(float)
    return FederatedDataset.from_clients([
        {
            "A": np.repeat(population.matrices[i : i + 1], shifts.shape[1], 0).astype(dtype),
            "b": (population.linear[i] + shifts[i % len(shifts)]).astype(dtype),
            "weight": np.full(
                shifts.shape[1], population.probabilities[i] * population.num_clients, dtype
            ),
        }
        for i in np.flatnonzero(population.taking_part)
    ])


def _losses(x: Array, batch: Batch) -> tuple[Array, Array]:
    values = jnp.einsum("i,bij,j->b", x, batch["A"], x) / 2 + batch["b"] @ x
    return values, _weights(values, batch)


def _weights(values: Array, batch: Batch) -> Array:
    return batch["weight"] if "weight" in batch else jnp.ones_like(values)
