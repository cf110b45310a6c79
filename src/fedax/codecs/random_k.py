"""Random-k: a few entries at random, enlarged."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fedax.algorithm import Array, PyTree
from fedax.codecs.codec import Codec, Encoded, fixed, no_memory, number_bits
from fedax.factories import factory
from fedax.validate import check_number


@factory
def random_k(share: float | Array = 0.1) -> Codec:
    r"""Random-k sparsification (Stich, Cordonnier, Jaggi 2018; Wangni et al. 2018): unbiased.

    .. math:: Q(x)_i = (d/k)\, x_i\, [i \in K], \qquad K \text{ uniform among the sets of } k

    Variance: E|Q(x) - x|^2 = (d/k - 1) |x|^2.

    Bits: k numbers. The positions cost nothing: the server draws them from the same key.

    Args:
      share: k/d in (0, 1]; k is rounded up. May be traced.

    Raises:
      ValueError: share is out of its range (unless it is traced).

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from fedax.codecs import random_k
      >>> found = random_k(0.5).encode(jax.random.key(0), jnp.ones(4, jnp.float32), ())
      >>> sorted(found.decoded.tolist()), float(found.bits)
      ([0.0, 0.0, 2.0, 2.0], 64.0)
    """
    check_number("share", share, above=0, at_most=1)

    def encode(key: Array, array: Array, memory: PyTree) -> Encoded:
        count = part_of(share, array.size)
        places = jax.random.permutation(key, jnp.arange(array.size, dtype=jnp.int32))
        places = places.reshape(array.shape)
        factor = jnp.where(places < count, array.size / count.astype(array.dtype), 0)
        # Times 0, so that a NaN that was not drawn is seen.
        return Encoded(array * factor, fixed(count) * number_bits(array), memory)

    return Codec(encode, no_memory, unbiased=True)


def part_of(share: float | Array, size: int) -> Array:
    """A share of the entries, rounded up, between 1 and all; int32 scalar.

    Example:
      >>> part_of(0.1, 10).tolist(), part_of(0.1, 11).tolist()
      (1, 2)
    """
    # 0.1 of 10 is 1, although in float32 it is a little more.
    share = jnp.asarray(share, None if hasattr(share, "dtype") else float)
    rounding = 2 * float(jnp.finfo(share.dtype).eps)
    count = jnp.where(share < 1, jnp.ceil(share * size * (1 - rounding)), size)
    return jnp.clip(count.astype(jnp.int32), 1, size)
