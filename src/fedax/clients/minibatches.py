"""Minibatches of a client: orders, epochs and numbers of steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp

from fedax.algorithm import Array, Batch
from fedax.clients.shuffles import largest_lane, random_order
from fedax.data.cohort_data import ClientExamples
from fedax.mistakes.errors import AlgorithmError
from fedax.optimizers.decaying_counts import rounded_up
from fedax.validate import MOST

Order: TypeAlias = Literal["shuffled", "iid", "sequential"]
Carry = TypeVar("Carry")

# A minibatch with repetitions may have this size.
MOST_BYTES = 2**28


class Minibatch(NamedTuple):
    """B examples; those with mask False are padding.

    Attributes:
      examples: name -> array [B, ...]. A padding row repeats one of the client's own examples.
      mask: bool [B].
    """

    examples: Batch
    mask: Array


def minibatch_size(data: ClientExamples, batch_size: int, order: Order) -> int:
    """How many examples a minibatch has room for: B, or the population's largest client if that is
    smaller, as the rest would be padding in every minibatch of every client.

    The cohort's largest would make it less, but then rounding would depend on who else is there.

    Raises:
      AlgorithmError: if minibatches drawn with replacement, which have no padding, are larger than
        that client and beyond reason.
    """  # noqa: D205 - the first sentence is that long
    largest = data.capacity if data.largest is None else data.largest
    if order != "iid":
        return batch_size if data.largest is None else min(batch_size, largest)
    one = jax.eval_shape(data.examples, jax.ShapeDtypeStruct((1,), jnp.int32))
    size = batch_size * sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(one))
    if batch_size > largest and size > MOST_BYTES:
        raise AlgorithmError(
            f'With order = "iid" every minibatch has batch_size = {batch_size:,} examples, drawn '
            f"with replacement from at most {largest:,}, here {size / 2**30:,.1f} GiB. Lower "
            "batch_size, or use another order, where a minibatch has at most a client's examples."
        )
    return batch_size


def count_local_steps(
    data: ClientExamples,
    batch_size: int,
    num_local_epochs: int | Array | None = None,
    num_local_steps: int | Array | None = None,
) -> int | Array:
    """The number of local steps: E ceil(n / B), K, or the smaller of the two if both are given.

    A fraction, as from a decaying schedule, is rounded up (decaying-steps paper 2021: K_t =
    ceil(K_0 d^t)). If neither is given, it is one epoch. A client without examples (padding of a
    chunk) takes no steps, unless only K is given, as a Python number. K then stays a Python number,
    so that reverse-mode differentiation through the local steps works; the client's minibatches
    have weight 0.
    """
    if num_local_epochs is None and isinstance(num_local_steps, int):
        return num_local_steps
    if num_local_epochs is None and num_local_steps is not None:
        return jnp.where(data.num_examples > 0, _whole(num_local_steps), 0)
    epochs = 1 if num_local_epochs is None else num_local_epochs
    per_epoch = steps_per_epoch(data.num_examples, batch_size)
    epochs = _whole(epochs)
    if not within_one_epoch(num_local_epochs, num_local_steps):  # the product is int32 too
        epochs = jnp.minimum(epochs, MOST // jnp.maximum(per_epoch, 1))
    steps = epochs * per_epoch
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

    Every pass over local data uses it. Orders:
      shuffled: epochs, each in a fresh random order; the last minibatch of an epoch holds what
        is left, filled up with padding. num_steps may end within an epoch or span many.
      iid: every minibatch is drawn uniformly with replacement (what the theory assumes).
      sequential: epochs in the stored order, for full passes.

    A traced `num_steps` runs exactly that many steps. With a Python number the fold can be
    differentiated in reverse mode.

    Args:
      step: pure function; gets a different key for every step.
      carry: initial value.
      data: the client's examples.
      key: this client's key for this exchange.
      batch_size: B, static; see `minibatch_size`.
      num_steps: int or int32 scalar, see `count_local_steps`.
      order: static.
      one_epoch: whether all steps are in the first epoch, see `within_one_epoch`; the loop then
        need not check at every step whether an epoch begins. Static.
    """
    batch_size = minibatch_size(data, batch_size, order)
    order_key, step_key = jax.random.split(key)
    per_epoch = jnp.maximum(steps_per_epoch(data.num_examples, batch_size), 1)

    def shuffle(epoch: int | Array) -> Array:
        return random_order(
            jax.random.fold_in(order_key, epoch), data.num_examples, data.capacity
        )

    def body(k: Any, state: tuple[Array, Carry]) -> tuple[Array, Carry]:
        permutation, carry = state
        k = jnp.asarray(k, jnp.int32)
        if order == "iid":
            draws = jax.random.randint(jax.random.fold_in(order_key, k), (batch_size,), 0,
                                       jnp.maximum(data.num_examples, 1), dtype=jnp.int32)
            batch = Minibatch(data.examples(draws), jnp.full(batch_size, data.num_examples > 0))
        else:
            epoch, position = (0, k) if one_epoch else (k // per_epoch, k % per_epoch)
            if order == "shuffled" and not one_epoch:
                # Batched clients that are done stay at k = num_steps, where no epoch begins.
                begins = (position == 0) & (k < num_steps)
                permutation = jax.lax.cond(
                    largest_lane(begins),
                    lambda: jnp.where(begins, shuffle(epoch), permutation),
                    lambda: permutation,
                )
            batch = _at(data, position, batch_size, permutation if order == "shuffled" else None)
        return permutation, step(carry, batch, jax.random.fold_in(step_key, k))

    permutation = jnp.zeros(data.capacity if order == "shuffled" else 0, jnp.int32)
    if order == "shuffled" and one_epoch:
        permutation = shuffle(0)
    return jax.lax.fori_loop(0, num_steps, body, (permutation, carry))[1]


def within_one_epoch(num_local_epochs: Any, num_local_steps: Any) -> bool:
    """Whether `count_local_steps` with these arguments is certainly at most one epoch."""
    if num_local_epochs is None:
        return num_local_steps is None
    return isinstance(num_local_epochs, int) and num_local_epochs <= 1


def draw_minibatch(
    data: ClientExamples, key: Array, *, batch_size: int, order: Order = "shuffled", after: int = 0
) -> Minibatch:
    """The first minibatch of a new pass, see `fold_minibatches`.

    Sequential passes are all the same, so there it is the minibatch after the first `after`.
    """
    batch_size = minibatch_size(data, batch_size, order)
    if order == "sequential":
        per_epoch = jnp.maximum(steps_per_epoch(data.num_examples, batch_size), 1)
        return _at(data, jnp.int32(after) % per_epoch, batch_size)
    places = jnp.zeros(batch_size, jnp.int32)
    nothing = Minibatch(data.examples(places), jnp.zeros(batch_size, bool))
    return fold_minibatches(
        lambda carry, batch, key: batch, nothing, data, key,  # noqa: ARG005
        batch_size=batch_size, num_steps=1, order=order, one_epoch=True,
    )


def steps_per_epoch(num_examples: Array, batch_size: int) -> Array:
    """ceil(n / B)."""
    return (num_examples - 1) // batch_size + 1  # num_examples + batch_size may not be an int32


def _at(
    data: ClientExamples, position: Array, batch_size: int, permutation: Array | None = None
) -> Minibatch:
    """The minibatch at a position of an epoch, in the stored order or a permutation of it."""
    places = position * batch_size + jnp.arange(batch_size, dtype=jnp.int32)
    mask = places < data.num_examples
    places = jnp.minimum(places, jnp.maximum(data.num_examples - 1, 0))
    return Minibatch(data.examples(places if permutation is None else permutation[places]), mask)


def _whole(count: int | Array) -> Array:
    """A number of steps as int32, fractions rounded up."""
    count = jnp.asarray(count)
    if jnp.issubdtype(count.dtype, jnp.inexact):
        return rounded_up(count)
    return count.astype(jnp.int32)
