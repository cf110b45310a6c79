"""A client's loss and gradient: over a minibatch, and over all of its examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from fedax.algorithm import Array, Model, Params
from fedax.clients.minibatches import (
    Minibatch,
    fold_minibatches,
    minibatch_size,
    steps_per_epoch,
)
from fedax.clients.narrow import fast_gradient
from fedax.clients.precision import widen
from fedax.data.cohort_data import ClientExamples
from fedax.mistakes.model import call_loss


class Loss(NamedTuple):
    """A weighted mean and the sum of the weights behind it (scalars)."""

    mean: Array
    weight: Array


Gradient: TypeAlias = Callable[[Params, Minibatch, Array], tuple[Loss, Params]]


def mean_loss(model: Model, params: Params, batch: Minibatch, key: Array) -> Loss:
    """The weighted mean of the model's losses over a minibatch; padding has weight 0.

    A minibatch whose weights are all 0 has loss 0 and gradient 0; with a negative weight the loss
    is NaN. The loss of an example with weight 0 is ignored, even if it is not finite.

    Raises:
      ModelError: if the loss fails, or does not return floating point losses [B] and weights [B].
    """
    losses, weights = call_loss(model, params, batch.examples, key, batch.mask)
    losses = widen(losses)
    # A weight below 0 would train away from its example: the client is rejected. Weights that are
    # constants cost nothing here.
    weights = weights.astype(losses.dtype)
    wrong = (weights < 0).any()
    weights = jnp.where(batch.mask, weights, 0)
    total = weights.sum()
    losses = jnp.where(weights > 0, losses, 0)
    mean = (losses * weights).sum() / jnp.where(total > 0, total, 1)
    return Loss(jnp.where(wrong, jnp.nan, mean), total)


def loss_gradient(model: Model) -> Gradient:
    """The gradient of `mean_loss`: (params, minibatch, key) -> (loss, gradient)."""

    def gradient(params: Params, batch: Minibatch, key: Array) -> tuple[Loss, Params]:
        def objective(params: Params) -> tuple[Array, Array]:
            return mean_loss(model, params, batch, key)

        (mean, weight), grads = jax.value_and_grad(objective, has_aux=True)(params)
        return Loss(mean, weight), fast_gradient(grads)

    return gradient


def mean_over_client(
    function: Callable[[Minibatch, Array], tuple[Array, Any]],
    data: ClientExamples,
    key: Array,
    *,
    batch_size: int,
) -> tuple[Array, Any]:
    """The weighted mean of a function of minibatches over all of a client's examples.

    Args:
      function: (minibatch, key) -> (weight, tree of values); a minibatch with weight 0 is ignored.
      data: the client's examples, read once in the stored order.
      key: this client's key for this exchange.
      batch_size: affects only rounding, speed and memory, unless the function uses the key.

    Returns:
      The sum of the weights (scalar) and the mean of the values; 0 if all weights are 0.
    """

    def step(carry: tuple[Array, Any], batch: Minibatch, key: Array) -> tuple[Array, Any]:
        total, values = carry
        weight, value = function(batch, key)
        add = jax.tree.map(lambda s, v: s + weight.astype(v.dtype) * v, values, value)
        return total + weight, add

    size = minibatch_size(data, batch_size, "sequential")
    first = Minibatch(data.examples(jnp.zeros(size, jnp.int32)), jnp.ones(size, bool))
    shapes = jax.eval_shape(function, first, key)
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    total, values = fold_minibatches(
        step, zeros, data, key, batch_size=batch_size,
        num_steps=steps_per_epoch(data.num_examples, batch_size), order="sequential",
    )
    divisor = jnp.where(total > 0, total, 1)
    return total, jax.tree.map(lambda v: v / divisor.astype(v.dtype), values)


def full_gradient(
    gradient: Gradient, params: Params, data: ClientExamples, key: Array, *, batch_size: int
) -> tuple[Loss, Params]:
    """The loss over all of a client's examples and its gradient; see `mean_over_client`.

    Example:
      >>> import fedax
      >>> task = fedax.load_task("shakespeare", model="small")
      >>> model, train = task.model, task.train
      >>> arrays = {name: jnp.asarray(array) for name, array in train.arrays.items()}
      >>> data = fedax.ClientData(arrays, jnp.int32(0), jnp.int32(3), 3)
      >>> params, key = model.init(jax.random.key(0)), jax.random.key(1)
      >>> one, three = (
      ...     full_gradient(loss_gradient(model), params, data, key, batch_size=b)[1]["output"]
      ...     for b in (1, 3)
      ... )
      >>> bool(jnp.allclose(one["bias"], three["bias"], atol=1e-6))
      True
    """

    def weighted(batch: Minibatch, key: Array) -> tuple[Array, Params]:
        loss, grads = gradient(params, batch, key)
        return loss.weight, (loss.mean, grads)

    total, (mean, grads) = mean_over_client(weighted, data, key, batch_size=batch_size)
    return Loss(mean, total), grads


def full_loss(
    model: Model, params: Params, data: ClientExamples, key: Array, *, batch_size: int
) -> Loss:
    """The loss over all of a client's examples; see `mean_over_client`."""

    def weighted(batch: Minibatch, key: Array) -> tuple[Array, Array]:
        loss = mean_loss(model, params, batch, key)
        return loss.weight, loss.mean

    total, mean = mean_over_client(weighted, data, key, batch_size=batch_size)
    return Loss(mean, total)
