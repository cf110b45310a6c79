"""Lengths of codewords, counted inside compiled programs: Elias omega, Golomb-Rice, positions."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fedax.algorithm import Array


def elias_omega(numbers: Array) -> Array:
    """The length of Elias' omega code of positive whole numbers, int32.

    omega(1) = "0"; before the zero stand n in binary, the length of that minus 1 in binary, and so
    on down to 1. (Elias, "Universal codeword sets and representations of the integers", 1975.)

    Example:
      >>> elias_omega(jnp.array([1, 2, 4, 16, 100])).tolist()
      [1, 3, 6, 11, 13]
    """
    numbers = numbers.astype(jnp.int32)
    length = jnp.ones_like(numbers)
    for _ in range(4):  # of any int32: at most 31 bits, 5, 3 and 2
        binary = 32 - jax.lax.clz(numbers)
        length = jnp.where(numbers > 1, length + binary, length)
        numbers = jnp.where(numbers > 1, binary - 1, 1)
    return length


def rice_bits(chosen: Array, size: int) -> Array:
    r"""The m of the Golomb-Rice code of the gaps between k of d positions, int32 scalar.

    .. math:: m = \max(0,\, 1 + \lfloor \log_2 (\log(\varphi - 1) / \log(1 - k / d)) \rfloor)

    with the golden ratio phi (Sattler, Wiedemann, Müller, Samek, "Robust and
    communication-efficient federated learning from non-iid data", 2019, equation 17). A gap g takes
    floor((g - 1) / 2^m) + 1 + m bits.

    Example:
      >>> rice_bits(jnp.int32(10), 1000).tolist()
      6
    """
    share = jnp.minimum(chosen.astype(float) / size, 1 - 1e-6)
    best = jnp.log(0.6180339887498949) / jnp.log1p(-share)
    return jnp.maximum(1 + jnp.floor(jnp.log2(best)), 0).astype(jnp.int32)


def gaps(chosen: Array) -> Array:
    """How far each chosen position lies behind the chosen one before it, int32; the first from -1.

    Args:
      chosen: bool [d].

    Returns:
      int32 [d], of no meaning where nothing was chosen.

    Example:
      >>> gaps(jnp.array([False, True, True, False, True])).tolist()[1:]
      [2, 1, 1, 2]
    """
    places = jnp.arange(chosen.size, dtype=jnp.int32)
    last = jax.lax.cummax(jnp.where(chosen, places, -1))
    before = jnp.concatenate([jnp.full(1, -1, jnp.int32), last[:-1]])
    return places - before


def position_bits(chosen: Array, count: Array) -> Array:
    """The length of the positions of the chosen entries as a Golomb-Rice code of their gaps.

    Args:
      chosen: bool [d].
      count: int32 scalar, how many there are, which the receiver knows.
    """
    m = rice_bits(count, chosen.size)
    each = ((gaps(chosen) - 1) >> m) + 1 + m
    return jnp.where(chosen, each, 0).astype(float).sum()
