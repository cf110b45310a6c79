"""Local training: how a client walks through its examples, and the one loop that does it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import optax

from fedax.algorithm import Array, Batch, Model, Params
from fedax.data.cohort_data import ClientExamples
from fedax.narrow import fast_gradient, transposition
from fedax.numerics import sum_dtype, widen

Order: TypeAlias = Literal["shuffled", "iid", "sequential"]
Carry = TypeVar("Carry")

# A shuffle sorts at least so many places.
SHORTEST_SORT = 64
# Random bits are drawn for so many places together: 256 would take five times as long on a CPU.
BITS_AT_ONCE = 128
# Up to so many it counts, for each, those that come before it: on a CPU a third to a half of
# the time of XLA's sort.
LONGEST_COUNT = 256


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
        return Loss(mean, weight), fast_gradient(grads)

    return gradient


def count_local_steps(
    data: ClientExamples,
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
    data: ClientExamples,
    key: Array,
    *,
    batch_size: int,
    num_steps: int | Array,
    order: Order = "shuffled",
    one_epoch: bool = False,
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
      one_epoch: the steps end within the first epoch, see `within_one_epoch`; the loop then need
        not ask at every step whether an epoch begins. Static.
    """
    order_key, step_key = jax.random.split(key)
    steps_per_epoch = jnp.maximum(_steps_per_epoch(data.num_examples, batch_size), 1)
    slots = jnp.arange(batch_size, dtype=jnp.int32)
    last = jnp.maximum(data.num_examples - 1, 0)

    def shuffle(epoch: int | Array) -> Array:
        return _permutation(
            jax.random.fold_in(order_key, epoch), data.num_examples, data.capacity
        )

    def body(k: Any, state: tuple[Array, Carry]) -> tuple[Array, Carry]:
        permutation, carry = state
        k = jnp.asarray(k, jnp.int32)
        if order == "iid":
            draws = jax.random.randint(jax.random.fold_in(order_key, k), (batch_size,), 0, last + 1,
                                       dtype=jnp.int32)
            batch = Minibatch(data.examples(draws), jnp.full(batch_size, data.num_examples > 0))
        else:
            epoch, position = (0, k) if one_epoch else (k // steps_per_epoch, k % steps_per_epoch)
            if order == "shuffled" and not one_epoch:
                # Batched clients that are done stay at k = num_steps, where no epoch begins.
                begins = (position == 0) & (k < num_steps)
                permutation = jax.lax.cond(
                    _largest_lane(begins),
                    lambda: jnp.where(begins, shuffle(epoch), permutation),
                    lambda: permutation,
                )
            places = position * batch_size + slots
            mask = places < data.num_examples
            places = jnp.minimum(places, last)
            indices = permutation[places] if order == "shuffled" else places
            batch = Minibatch(data.examples(indices), mask)
        return permutation, step(carry, batch, jax.random.fold_in(step_key, k))

    permutation = jnp.zeros(data.capacity if order == "shuffled" else 0, jnp.int32)
    if order == "shuffled" and one_epoch:
        permutation = shuffle(0)
    return jax.lax.fori_loop(0, num_steps, body, (permutation, carry))[1]


def within_one_epoch(num_local_epochs: Any, num_local_steps: Any) -> bool:
    """Whether `count_local_steps` of these is surely no more than one epoch."""
    if num_local_epochs is None:
        return num_local_steps is None
    return isinstance(num_local_epochs, int) and num_local_epochs <= 1


class LocalResult(NamedTuple):
    """What local training ends with.

    Attributes:
      params: x_K.
      loss: mean training loss along the local steps and its weight.
      num_steps: int32 scalar, K.
      optimizer_state: the local optimizer's state.
      gradient_sum: sum_k theta_k g_k, like the parameters; () unless gradient weights were given.
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
    optimizer: optax.GradientTransformation,
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
      gradient: gives the loss and g_k from (params, minibatch, key); `loss_gradient(model)`,
        or that with further terms (proximal, control variates).
      optimizer: an optax transformation; `optax.sgd(1.0)` is plain SGD.
      learning_rate: multiplies the optimizer's update.
      batch_size, num_steps, order, one_epoch: as for `fold_minibatches`.
      optimizer_state: what the optimizer starts from; None starts it afresh.
      gradient_weight: theta_k from k = 0, 1, ... (int32 scalar), if the weighted sum of the
        gradients is wanted.
    """
    dtype = sum_dtype(jax.tree.leaves(params)[0])

    def step(carry: Any, batch: Minibatch, key: Array) -> Any:
        k, params, optimizer_state, gradient_sum, loss_sum, weight_sum = restore(carry)
        loss, grads = gradient(params, batch, key)
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
    start = (
        jnp.zeros((), jnp.int32),
        params,
        optimizer.init(params) if optimizer_state is None else optimizer_state,
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


def mean_over_client(
    function: Callable[[Minibatch, Array], tuple[Array, Any]],
    data: ClientExamples,
    key: Array,
    *,
    batch_size: int,
) -> tuple[Array, Any]:
    """The weighted mean of a function of minibatches over all of a client's examples.

    Args:
      function: (minibatch, key) -> (weight, tree of values); a minibatch of weight 0 counts
        for nothing.
      data: the client's examples, walked once in the stored order.
      key: this client's key for this exchange.
      batch_size: changes nothing but rounding, speed and memory, unless the function draws.

    Returns:
      The sum of the weights (scalar) and the mean of the values; 0 where nothing weighs.
    """

    def step(carry: tuple[Array, Any], batch: Minibatch, key: Array) -> tuple[Array, Any]:
        total, values = carry
        weight, value = function(batch, key)
        add = jax.tree.map(lambda s, v: s + weight.astype(v.dtype) * v, values, value)
        return total + weight, add

    first = Minibatch(data.examples(jnp.zeros(batch_size, jnp.int32)), jnp.ones(batch_size, bool))
    shapes = jax.eval_shape(function, first, key)
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    total, values = fold_minibatches(
        step, zeros, data, key, batch_size=batch_size,
        num_steps=_steps_per_epoch(data.num_examples, batch_size), order="sequential",
    )
    divisor = jnp.where(total > 0, total, 1)
    return total, jax.tree.map(lambda v: v / divisor.astype(v.dtype), values)


def full_gradient(
    gradient: Gradient, params: Params, data: ClientExamples, key: Array, *, batch_size: int
) -> tuple[Loss, Params]:
    """The loss over all of a client's examples and its gradient; arguments as above.

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
    """The loss over all of a client's examples; arguments as above."""

    def weighted(batch: Minibatch, key: Array) -> tuple[Array, Array]:
        loss = mean_loss(model, params, batch, key)
        return loss.weight, loss.mean

    total, mean = mean_over_client(weighted, data, key, batch_size=batch_size)
    return Loss(mean, total)


def draw_minibatch(
    data: ClientExamples, key: Array, *, batch_size: int, order: Order = "shuffled"
) -> Minibatch:
    """The first minibatch of a fresh walk, see `fold_minibatches`."""
    places = jnp.zeros(batch_size, jnp.int32)
    nothing = Minibatch(data.examples(places), jnp.zeros(batch_size, bool))
    return fold_minibatches(
        lambda carry, batch, key: batch, nothing, data, key,  # noqa: ARG005
        batch_size=batch_size, num_steps=1, order=order, one_epoch=True,
    )


def _steps_per_epoch(num_examples: Array, batch_size: int) -> Array:
    return (num_examples + (batch_size - 1)) // batch_size


def _whole(count: int | Array) -> Array:
    """A number of steps as int32, fractions rounded up."""
    count = jnp.asarray(count)
    if jnp.issubdtype(count.dtype, jnp.inexact):
        # Rounding may lift a whole number, such as 27 / 3^2, above itself.
        count = jnp.ceil(count * (1 - 4 * jnp.finfo(count.dtype).eps))
    return count.astype(jnp.int32)


@jax.custom_batching.custom_vmap
def _largest_lane(value: Array) -> Array:
    """The value; under `vmap`, the largest of the lanes' values, so that a branch on it stays one.

    The `vmap` of a branch on each lane's own value would run all branches at every step.
    """
    return value


@_largest_lane.def_vmap
def _largest_lane_batched(size: int, batched: Any, value: Array) -> tuple[Array, bool]:
    del size, batched
    return _largest_lane(value.max(0)), False


def _permutation(key: Array, num_examples: Array, capacity: int) -> Array:
    """A uniform permutation of 0 .. num_examples - 1 in the first places of int32 [capacity].

    The order depends on the key and on num_examples only, not on the capacity, which may differ
    from one cohort to the next: place i's random bits come from (key, i). Of a few lengths the
    smallest that holds the client is sorted, as most clients are small; each one compiles.
    """
    lengths = [SHORTEST_SORT]
    while lengths[-1] < capacity:
        lengths.append((2 if lengths[-1] < LONGEST_COUNT else 4) * lengths[-1])
    lengths[-1] = capacity
    bits = _random_bits(key, num_examples, capacity)

    def sort(length: int) -> Array:
        return jnp.pad(_order(bits[:length]), (0, capacity - length))

    longer = _largest_lane((num_examples > jnp.asarray(lengths[:-1], jnp.int32)).sum())
    return jax.lax.switch(longer, [partial(sort, length) for length in lengths])


def _random_bits(key: Array, count: Array, capacity: int) -> Array:
    """uint32, `capacity` or a few more: random in the first `count` places, then all bits set.

    So the client's own places come first when sorted; even one with all bits set, as sorts are
    stable.
    """
    at_once = min(BITS_AT_ONCE, capacity)

    def draw(block: Any, bits: Array) -> Array:
        first = jnp.asarray(block, jnp.int32) * at_once
        places = first + jnp.arange(at_once, dtype=jnp.int32)
        drawn = jax.vmap(
            lambda i: jax.random.bits(jax.random.fold_in(key, i), dtype=jnp.uint32)
        )(places)
        drawn = jnp.where(places < count, drawn, jnp.full_like(drawn, 0xFFFFFFFF))
        return jax.lax.dynamic_update_slice(bits, drawn, (first,))

    most = -(-capacity // at_once)
    bits = jnp.full(most * at_once, 0xFFFFFFFF, jnp.uint32)
    if most == 1:
        return draw(0, bits)
    return jax.lax.fori_loop(0, _largest_lane(-(-count // at_once)), draw, bits)


def _order(bits: Array) -> Array:
    """int32 places of the bits in ascending order, the first place first where they are equal."""
    places = jnp.arange(bits.size, dtype=jnp.int32)
    if bits.size > LONGEST_COUNT:
        return jax.lax.sort((bits, places), num_keys=1, is_stable=True)[1]
    first, second = bits[:, None], bits[None, :]
    before = (first < second) | ((first == second) & (places[:, None] < places[None, :]))
    rank = before.sum(0, dtype=jnp.int32)
    return jnp.zeros_like(places).at[rank].set(places, unique_indices=True)
