"""Local training: how a client walks through its examples, and the one loop that does it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Self, TypeAlias, TypedDict, TypeVar, get_args

import jax
import jax.numpy as jnp
import optax

from fedax.algorithm import Array, Batch, Model, Params
from fedax.data.cohort_data import ClientData
from fedax.numerics import sum_dtype, widen
from fedax.schedules import ScheduleOrNumber
from fedax.validate import check_choice, check_count, unknown

Weighting: TypeAlias = Literal["num_examples", "num_tokens", "uniform"]
Order: TypeAlias = Literal["shuffled", "iid", "sequential"]
Carry = TypeVar("Carry")


class LocalOptions(TypedDict, total=False):
    """How clients train; the factories take these by keyword.

    batch_size: B >= 1, default 20. Static.
    num_local_epochs: E >= 0, passes over the client's examples, each in a fresh random order.
      The default, if num_local_steps is not given either, is 1.
    num_local_steps: K >= 0 minibatches; may be a schedule, whose fractions are rounded up. If
      both are given, the smaller count.
    weighting: a client's weight in the mean: "num_examples" n_i (default; paper 004, Algorithm
      5), "uniform" (Algorithm 2), "num_tokens" (the summed weight of the losses that it
      processed, as the code released with that paper does for language models).
    order: of the minibatches: "shuffled" (default), "iid" or "sequential", see
      `fold_minibatches`.
    """

    batch_size: int
    num_local_epochs: int | Array | None
    num_local_steps: ScheduleOrNumber | None
    weighting: Weighting
    order: Order


class LocalTraining(NamedTuple):
    """`LocalOptions` with their defaults."""

    batch_size: int = 20
    num_local_epochs: int | Array | None = None
    num_local_steps: Any = None
    weighting: Weighting = "num_examples"
    order: Order = "shuffled"

    @classmethod
    def checked(cls, options: LocalOptions) -> Self:
        """The options with their defaults.

        Raises:
          ValueError: a concrete value is out of its range.
          TypeError: there is no such option.
        """
        for name in options:
            if name not in cls._fields:
                raise TypeError(unknown("option", name, cls._fields))
        local = cls(**options)
        check_count("batch_size", local.batch_size)
        for name in ("num_local_epochs", "num_local_steps"):
            value = getattr(local, name)
            if value is not None:
                check_count(name, value, at_least=0, schedule=name == "num_local_steps")
        check_choice("weighting", local.weighting, get_args(Weighting))
        check_choice("order", local.order, get_args(Order))
        return local


class Minibatch(NamedTuple):
    """B examples, of which those with a mask of False are padding.

    Attributes:
      examples: name -> array [B, ...]. A padding row repeats one of the client's own examples.
      mask: bool [B].
    """

    examples: Batch
    mask: Array


class Loss(NamedTuple):
    """A weighted mean and the sum of the weights behind it (scalars)."""

    mean: Array
    weight: Array


Gradient: TypeAlias = Callable[[Params, Minibatch, Array], tuple[Loss, Params]]


def mean_loss(model: Model, params: Params, batch: Minibatch, key: Array) -> Loss:
    """The weighted mean of the model's losses over a minibatch; padding weighs 0.

    A minibatch in which nothing weighs has loss 0 and gradient 0.
    """
    losses, weights = model.loss(params, batch.examples, key)
    losses = widen(losses)
    weights = jnp.where(batch.mask, weights.astype(losses.dtype), 0)
    total = weights.sum()
    return Loss((losses * weights).sum() / jnp.where(total > 0, total, 1), total)


def loss_gradient(model: Model) -> Gradient:
    """The gradient of `mean_loss`: (params, minibatch, key) -> (loss, gradient)."""

    def gradient(params: Params, batch: Minibatch, key: Array) -> tuple[Loss, Params]:
        def objective(params: Params) -> tuple[Array, Array]:
            return mean_loss(model, params, batch, key)

        (mean, weight), grads = jax.value_and_grad(objective, has_aux=True)(params)
        return Loss(mean, weight), grads

    return gradient


def count_local_steps(
    data: ClientData,
    batch_size: int,
    num_local_epochs: int | Array | None = None,
    num_local_steps: int | Array | None = None,
) -> int | Array:
    """The number of local steps: E ceil(n / B), K, or the smaller of the two if both are given.

    A fraction, as a decaying schedule gives, is rounded up (paper 001: K_t = ceil(K_0 d^t)).
    Neither given means one epoch. A client without examples (a chunk's filler) does nothing
    unless K alone is given as a Python number, which stays one so that reverse-mode
    differentiation through the local steps is possible; its minibatches then weigh nothing.
    """
    if num_local_epochs is None and isinstance(num_local_steps, int):
        return num_local_steps
    if num_local_epochs is None and num_local_steps is not None:
        return jnp.where(data.num_examples > 0, _whole(num_local_steps), 0)
    epochs = 1 if num_local_epochs is None else num_local_epochs
    steps = _whole(epochs) * _steps_per_epoch(data.num_examples, batch_size)
    if num_local_steps is None:
        return steps
    return jnp.minimum(steps, _whole(num_local_steps))


def fold_minibatches(
    step: Callable[[Carry, Minibatch, Array], Carry],
    carry: Carry,
    data: ClientData,
    key: Array,
    *,
    batch_size: int,
    num_steps: int | Array,
    order: Order = "shuffled",
) -> Carry:
    """Folds `step` over a client's minibatches: carry <- step(carry, minibatch_k, key_k).

    Every walk over local data goes through here. Orders:
      shuffled: epochs, each in a fresh random order; the last minibatch of an epoch holds what
        is left, filled up with padding. num_steps may end within an epoch or span many.
      iid: every minibatch is drawn uniformly with replacement (what the theory assumes).
      sequential: epochs in the stored order, for full passes.

    A traced `num_steps` costs as many steps as its value says. With a Python number the fold
    can be differentiated in reverse mode.

    Args:
      step: pure; gets a key of its own for every step.
      carry: initial value.
      data: the client's examples.
      key: this client's key for this exchange.
      batch_size: B, static.
      num_steps: int or int32 scalar, see `count_local_steps`.
      order: static.
    """
    order_key, step_key = jax.random.split(key)
    steps_per_epoch = jnp.maximum(_steps_per_epoch(data.num_examples, batch_size), 1)
    slots = jnp.arange(batch_size, dtype=jnp.int32)
    last = jnp.maximum(data.num_examples - 1, 0)

    def body(k: Any, state: tuple[Array, Carry]) -> tuple[Array, Carry]:
        permutation, carry = state
        k = jnp.asarray(k, jnp.int32)
        if order == "iid":
            draws = jax.random.randint(jax.random.fold_in(order_key, k), (batch_size,), 0, last + 1,
                                       dtype=jnp.int32)
            batch = Minibatch(data.examples(draws), jnp.full(batch_size, data.num_examples > 0))
        else:
            epoch, position = k // steps_per_epoch, k % steps_per_epoch
            if order == "shuffled":
                # Batched clients that are done stay at k = num_steps, where no epoch begins.
                begins = (position == 0) & (k < num_steps)
                permutation = jax.lax.cond(
                    _any_lane(begins),
                    lambda: jnp.where(
                        begins,
                        _permutation(
                            jax.random.fold_in(order_key, epoch), data.num_examples, data.capacity
                        ),
                        permutation,
                    ),
                    lambda: permutation,
                )
            places = position * batch_size + slots
            mask = places < data.num_examples
            places = jnp.minimum(places, last)
            indices = permutation[places] if order == "shuffled" else places
            batch = Minibatch(data.examples(indices), mask)
        return permutation, step(carry, batch, jax.random.fold_in(step_key, k))

    unshuffled = jnp.zeros(data.capacity if order == "shuffled" else 0, jnp.int32)
    return jax.lax.fori_loop(0, num_steps, body, (unshuffled, carry))[1]


class LocalResult(NamedTuple):
    """What local training ends with.

    Attributes:
      params: x_K.
      loss: mean training loss along the local steps and its weight.
      num_steps: int32 scalar, K.
    """

    params: Params
    loss: Loss
    num_steps: Array


def train_locally(
    params: Params,
    data: ClientData,
    key: Array,
    *,
    gradient: Gradient,
    optimizer: optax.GradientTransformation,
    learning_rate: float | Array,
    batch_size: int,
    num_steps: int | Array,
    order: Order = "shuffled",
) -> LocalResult:
    """Runs x_{k+1} = x_k + learning_rate * optimizer(g_k(x_k)) for num_steps local steps.

    Args:
      params: x_0.
      data: the client's examples.
      key: this client's key for this exchange.
      gradient: gives the loss and g_k from (params, minibatch, key); `loss_gradient(model)`,
        or that with further terms (proximal, control variates).
      optimizer: an optax transformation, started afresh; `optax.sgd(1.0)` is plain SGD.
      learning_rate: multiplies the optimizer's update.
      batch_size, num_steps, order: as for `fold_minibatches`.
    """
    dtype = sum_dtype(jax.tree.leaves(params)[0])

    def step(carry: tuple[Params, Any, Array, Array], batch: Minibatch, key: Array) -> Any:
        params, optimizer_state, loss_sum, weight_sum = carry
        loss, grads = gradient(params, batch, key)
        updates, optimizer_state = optimizer.update(grads, optimizer_state, params)
        params = jax.tree.map(
            lambda p, u: p + jnp.asarray(learning_rate, p.dtype) * u.astype(p.dtype),
            params, updates,
        )
        loss_sum += (loss.mean * loss.weight).astype(dtype)
        return params, optimizer_state, loss_sum, weight_sum + loss.weight.astype(dtype)

    zero = jnp.zeros((), dtype)
    params, _, loss_sum, weight_sum = fold_minibatches(
        step, (params, optimizer.init(params), zero, zero), data, key,
        batch_size=batch_size, num_steps=num_steps, order=order,
    )
    loss = Loss(loss_sum / jnp.where(weight_sum > 0, weight_sum, 1), weight_sum)
    return LocalResult(params, loss, jnp.asarray(num_steps, jnp.int32))


def client_weight(weighting: Weighting, data: ClientData, result: LocalResult) -> Array:
    """A client's weight in the mean, see `LocalOptions`; 0 for a client without examples."""
    dtype = result.loss.weight.dtype
    if weighting == "num_examples":
        return data.num_examples.astype(dtype)
    if weighting == "num_tokens":
        return result.loss.weight
    return (data.num_examples > 0).astype(dtype)


def local_info(result: LocalResult) -> dict[str, tuple[Array, Array]]:
    """What clients report of their local training."""
    one = jnp.ones_like(result.loss.weight)
    return {
        "train_loss": (result.loss.mean, result.loss.weight),
        "num_local_steps": (result.num_steps.astype(one.dtype), one),
    }


def _steps_per_epoch(num_examples: Array, batch_size: int) -> Array:
    return (num_examples + (batch_size - 1)) // batch_size


def _whole(count: int | Array) -> Array:
    """A number of steps as int32, fractions rounded up."""
    count = jnp.asarray(count)
    if jnp.issubdtype(count.dtype, jnp.inexact):
        count = jnp.ceil(count)
    return count.astype(jnp.int32)


@jax.custom_batching.custom_vmap
def _any_lane(predicate: Array) -> Array:
    """The predicate; under `vmap`, whether any lane's holds, so that a `cond` on it stays one.

    The `vmap` of a `cond` on each lane's own predicate would run both branches at every step.
    """
    return predicate


@_any_lane.def_vmap
def _any_lane_batched(size: int, batched: Any, predicate: Array) -> tuple[Array, bool]:
    del size, batched
    return _any_lane(predicate.any(0)), False


def _permutation(key: Array, num_examples: Array, capacity: int) -> Array:
    """A uniform permutation of 0 .. num_examples - 1 in the first places of int32 [capacity].

    The order depends on the key and on num_examples only, not on the capacity, which may differ
    from one cohort to the next: place i's random bits come from (key, i).
    """
    places = jnp.arange(capacity, dtype=jnp.int32)
    bits = jax.vmap(lambda i: jax.random.bits(jax.random.fold_in(key, i), dtype=jnp.uint32))(places)
    # The client's own places first, in random order: the sort is stable, so even a place with
    # all bits set comes before those beyond the client's examples.
    bits = jnp.where(places < num_examples, bits, jnp.full_like(bits, 0xFFFFFFFF))
    return jax.lax.sort((bits, places), num_keys=1, is_stable=True)[1]
