"""How sensitive a model's outputs are to each parameter, and how far `fedax.elastic` moves it.

Chen et al., "Elastic Aggregation for Federated Optimization", CVPR 2023, Algorithms 1 and 2 (as
printed in the supplement of the submission).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp

from fedax.algorithm import Array, Model, Params
from fedax.clients.minibatches import Minibatch, count_local_steps, fold_minibatches
from fedax.clients.precision import sum_dtype
from fedax.data.cohort_data import ClientExamples
from fedax.mistakes.model import call_outputs

Sensitivity = Literal["momentum", "average"]
Output = Literal["logits", "softmax"]


def measurement(
    model: Model,
    sensitivity_decay: float | Array,
    sensitivity: Sensitivity,
    output: Output,
    sensitivity_batch_size: int,
) -> Callable[[Params, ClientExamples, Array], Params]:
    """(params, data, key) -> Omega_k, like the parameters; see `fedax.elastic`."""

    def size(params: Params, batch: Minibatch) -> Array:
        """Sum over the batch of |F(x; z)|^2; padding counts for nothing."""
        outputs = call_outputs(model.outputs, params, batch.examples, batch.mask)
        total = jnp.zeros((), jax.tree.leaves(params)[0].dtype)
        for leaf in jax.tree.leaves(outputs):
            values = jax.nn.softmax(leaf, axis=-1) if output == "softmax" else leaf
            mask = batch.mask.reshape(-1, *[1] * (leaf.ndim - 1))
            total += jnp.where(mask, jnp.square(values), 0).sum().astype(total.dtype)
        return total

    def measure(params: Params, data: ClientExamples, key: Array) -> Params:
        """Omega_k."""

        def step(carry: tuple[Params, Array], batch: Minibatch, key: Array) -> Any:
            del key
            omega, count = carry
            grads = jax.grad(size)(params, batch)

            def update(omega: Array, g: Array) -> Array:
                if sensitivity == "average":
                    return omega + (jnp.abs(g) - omega) / (count + 1).astype(g.dtype)
                mu = jnp.asarray(sensitivity_decay, g.dtype)
                return mu * omega + (1 - mu) * jnp.abs(g)

            return jax.tree.map(update, omega, grads), count + 1

        zeros = jax.tree.map(jnp.zeros_like, params)
        return fold_minibatches(
            step, (zeros, jnp.zeros((), jnp.int32)), data, key,
            batch_size=sensitivity_batch_size, order="sequential",
            num_steps=count_local_steps(data, sensitivity_batch_size, num_local_epochs=1),
        )[0]

    return measure


def elastic_scale(sensitivity: Params, elasticity: float | Array) -> Params:
    """Zeta = 1 + tau - Omega / max Omega, the maximum over all scalars of all leaves.

    Example:
      >>> elastic_scale({"a": jnp.asarray([4.0, 1.0]), "b": jnp.asarray([0.0])}, 0.5)["a"].tolist()
      [0.5, 1.25]
    """
    largest = jnp.stack([leaf.max() for leaf in jax.tree.leaves(sensitivity)]).max()

    def scale(omega: Array) -> Array:
        most = largest.astype(omega.dtype)
        share = jnp.where(most > 0, omega / jnp.where(most > 0, most, 1), 0)
        return 1 + jnp.asarray(elasticity, omega.dtype) - share

    return jax.tree.map(scale, sensitivity)


def boosted_share(sensitivity: Params, elasticity: float | Array) -> Array:
    """The share of all scalars with zeta > 1, which move further than without elastic aggregation.

    Example:
      >>> float(boosted_share({"a": jnp.asarray([4.0, 1.0]), "b": jnp.asarray([2.0, 0.0])}, 0.5))
      0.5
    """
    leaves = jax.tree.leaves(elastic_scale(sensitivity, elasticity))
    dtype = sum_dtype(leaves[0])
    counts = jnp.stack([(leaf > 1).sum(dtype=dtype) for leaf in leaves])
    return counts.sum() / sum(leaf.size for leaf in leaves)
