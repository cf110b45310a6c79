"""Random orders of a client's examples, which depend only on the key and their number."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from fedax.algorithm import Array

# The smallest number of places that a shuffle sorts.
SHORTEST_SORT = 64
# Number of places for which random bits are drawn together: 256 would take five times as long on a
# CPU.
BITS_AT_ONCE = 128
# Up to this number it counts, for each, those before it: on a CPU a third to a half of the time of
# XLA's sort.
LONGEST_COUNT = 256


@jax.custom_batching.custom_vmap
def largest_lane(value: Array) -> Array:
    """The value; under `vmap`, the largest over all lanes, so that a branch on it stays a branch.

    The `vmap` of a branch on each lane's own value would run all branches at every step.
    """
    return value


@largest_lane.def_vmap
def _largest_lane_batched(size: int, batched: Any, value: Array) -> tuple[Array, bool]:
    del size, batched
    return largest_lane(value.max(0)), False


def random_order(key: Array, num_examples: Array, capacity: int) -> Array:
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

    longer = largest_lane((num_examples > jnp.asarray(lengths[:-1], jnp.int32)).sum())
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
    return jax.lax.fori_loop(0, largest_lane(-(-count // at_once)), draw, bits)


def _order(bits: Array) -> Array:
    """int32 places of the bits in ascending order, the first place first where they are equal."""
    places = jnp.arange(bits.size, dtype=jnp.int32)
    if bits.size > LONGEST_COUNT:
        return jax.lax.sort((bits, places), num_keys=1, is_stable=True)[1]
    first, second = bits[:, None], bits[None, :]
    before = (first < second) | ((first == second) & (places[:, None] < places[None, :]))
    rank = before.sum(0, dtype=jnp.int32)
    return jnp.zeros_like(places).at[rank].set(places, unique_indices=True)
