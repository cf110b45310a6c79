"""The one loop of local training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedax.algorithm import Array, Params
from fedax.clients.gradients import Gradient, Loss
from fedax.clients.minibatches import Minibatch, Order, fold_minibatches
from fedax.clients.narrow import transposition
from fedax.clients.precision import sum_dtype
from fedax.clients.sparse_steps import descend
from fedax.data.cohort_data import ClientExamples
from fedax.optimizers.drawing import with_own_keys


class LocalResult(NamedTuple):
    """Result of `LocalTraining.train`.

    Attributes:
      params: x_K, the client's model after its last step.
      loss: the training loss over the local steps: `loss.mean`, scalar, and `loss.weight`, the sum
        of its examples' weights. For the loss of one model use `LocalTraining.full_loss`.
      num_steps: int32 scalar, K_i, number of steps of this client. Cast it before arithmetic:
        `result.num_steps.astype(result.loss.weight.dtype)`.
      optimizer_state: the local optimizer's state.
      gradient_sum: sum_k theta_k g_k, like the parameters; () without gradient weights.
    """

    params: Params
    loss: Loss
    num_steps: Array
    optimizer_state: Any
    gradient_sum: Params | tuple[()]


def train_locally(
    params: Params,
    data: ClientExamples,
    key: Array,
    *,
    gradient: Gradient,
    optimizer: optax.GradientTransformation | None,
    learning_rate: float | Array,
    batch_size: int,
    num_steps: int | Array,
    order: Order = "shuffled",
    one_epoch: bool = False,
    optimizer_state: Any = None,
    gradient_weight: Callable[[Array], Array] | None = None,
) -> LocalResult:
    """Runs x_{k+1} = x_k + learning_rate * optimizer(g_k(x_k)) for num_steps local steps.

    Args:
      params: x_0.
      data: the client's examples.
      key: this client's key for this exchange.
      gradient: (params, minibatch, key) -> the loss and g_k; `loss_gradient(model)`, possibly with
        further terms (proximal, control variates).
      optimizer: an optax transformation; None is plain SGD, for which the gradient may come from
        `sparse_gradient(model)`.
      learning_rate: multiplies the optimizer's update.
      batch_size, num_steps, order, one_epoch: as for `fold_minibatches`.
      optimizer_state: initial state of the optimizer; None: a new one. Keys in it become specific
        to this client, see `fedax.optimizers.drawing`.
      gradient_weight: k -> theta_k for k = 0, 1, ... (int32 scalar), to also compute the weighted
        sum of the gradients.
    """
    dtype = sum_dtype(jax.tree.leaves(params)[0])

    def step(carry: Any, batch: Minibatch, key: Array) -> Any:
        k, params, optimizer_state, gradient_sum, loss_sum, weight_sum = restore(carry)
        loss, grads = gradient(params, batch, key)
        if optimizer is None:
            params = descend(params, grads, learning_rate)
        else:
            updates, optimizer_state = optimizer.update(grads, optimizer_state, params)
            params = jax.tree.map(
                lambda p, u: p + jnp.asarray(learning_rate, p.dtype) * u.astype(p.dtype),
                params, updates,
            )
        if gradient_weight is not None:
            theta = gradient_weight(k)
            gradient_sum = jax.tree.map(
                lambda s, g: s + theta.astype(g.dtype) * g, gradient_sum, grads
            )
        loss_sum += (loss.mean * loss.weight).astype(dtype)
        weight_sum += loss.weight.astype(dtype)
        return hold((k + 1, params, optimizer_state, gradient_sum, loss_sum, weight_sum))

    zero = jnp.zeros((), dtype)
    if optimizer_state is None:
        optimizer_state = () if optimizer is None else optimizer.init(params)
    optimizer_state = with_own_keys(optimizer_state, key)
    start = (
        jnp.zeros((), jnp.int32),
        params,
        optimizer_state,
        () if gradient_weight is None else jax.tree.map(jnp.zeros_like, params),
        zero,
        zero,
    )
    hold, restore = transposition(start)
    end = fold_minibatches(
        step, hold(start), data, key,
        batch_size=batch_size, num_steps=num_steps, order=order, one_epoch=one_epoch,
    )
    _, params, optimizer_state, gradient_sum, loss_sum, weight_sum = restore(end)
    loss = Loss(loss_sum / jnp.where(weight_sum > 0, weight_sum, 1), weight_sum)
    return LocalResult(
        params, loss, jnp.asarray(num_steps, jnp.int32), optimizer_state, gradient_sum
    )


def descended(
    gradient: Callable[[Params], Params],
    params: Params,
    learning_rate: float | Array,
    num_steps: int | Array,
) -> Params:
    """The parameters after that many steps x - gamma g(x) on one function.

    Args:
      gradient: its gradient g.
      params: where the steps begin.
      learning_rate: gamma.
      num_steps: how many; may be traced.

    Example:
      >>> float(descended(lambda x: x - 1, jnp.asarray(0.0), 0.5, 2))
      0.75
    """
    return jax.lax.fori_loop(
        0, num_steps, lambda _, at: descend(at, gradient(at), learning_rate), params
    )
