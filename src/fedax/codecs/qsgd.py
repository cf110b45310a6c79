"""QSGD: stochastic rounding to whole levels of the norm, and Elias codes for what is left.

Alistarh, Grubic, Li, Tomioka, Vojnović, "QSGD: Communication-Efficient SGD via Gradient
Quantization and Encoding", NeurIPS 2017.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fedax.algorithm import Array, PyTree
from fedax.codecs.codec import Codec, Encoded, no_memory, norm, number_bits
from fedax.codecs.lengths import elias_omega, gaps
from fedax.factories import factory
from fedax.validate import check_count


@factory
def qsgd(levels: int | Array = 4) -> Codec:
    r"""QSGD (Alistarh et al. 2017, section 3.1): unbiased.

    .. math::
        Q(x)_i = \lVert x \rVert\, \mathrm{sgn}(x_i)\, \xi_i / s, \qquad
        \xi_i = \lfloor s |x_i| / \lVert x \rVert + u_i \rfloor, \quad u_i \sim U[0, 1)

    Variance: E|Q(x) - x|^2 <= min(d/s^2, sqrt(d)/s) |x|^2 (Lemma 3.1).

    Bits: the norm, a bit that says which code follows, and the shorter of two Elias codes
    (Appendix A): the number of entries that are not 0 and of each its gap, its sign and its level;
    or the level + 1 of every entry and the signs of those that are not 0.

    Args:
      levels: s >= 1; may be traced.

    Raises:
      ValueError: levels is not a whole number of at least 1 (unless it is traced).

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from fedax.codecs import qsgd
      >>> qsgd(1).encode(jax.random.key(0), jnp.array([3.0, 0.0, 0.0]), ()).decoded.tolist()
      [3.0, 0.0, 0.0]
    """
    check_count("levels", levels)

    def encode(key: Array, array: Array, memory: PyTree) -> Encoded:
        flat = array.ravel()
        s = jnp.asarray(levels).astype(flat.dtype)
        length = norm(flat)
        shares = jnp.abs(flat) / jnp.where(length > 0, length, 1)
        level = jnp.floor(s * shares + jax.random.uniform(key, flat.shape, flat.dtype))
        decoded = length * jnp.sign(flat) * level / s
        bits = number_bits(array) + 1 + levels_bits(level.astype(jnp.int32))
        return Encoded(decoded.reshape(array.shape), bits, memory)

    return Codec(encode, no_memory, unbiased=True)


def levels_bits(level: Array) -> Array:
    """The length of the shorter of QSGD's two codes for levels >= 0, int32 [d]."""
    chosen = level > 0

    def total(each: Array) -> Array:
        return each.astype(float).sum()

    count = chosen.sum(dtype=jnp.int32)
    gap = elias_omega(jnp.maximum(gaps(chosen), 1))
    sparse = elias_omega(count + 1).astype(float) + total(
        jnp.where(chosen, gap + 1 + elias_omega(level), 0)
    )
    dense = total(elias_omega(level + 1) + chosen.astype(jnp.int32))
    return jnp.minimum(sparse, dense)
