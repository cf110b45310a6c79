"""TernGrad: every entry becomes -1, 0 or 1 times the largest.

Wen, Xu, Yan, Wu, Wang, Chen, Li, "TernGrad: Ternary Gradients to Reduce Communication in
Distributed Deep Learning", NeurIPS 2017.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fedax.algorithm import Array, PyTree
from fedax.codecs.codec import Codec, Encoded, fixed, no_memory, number_bits
from fedax.factories import factory


@factory
def terngrad() -> Codec:
    r"""TernGrad (Wen et al. 2017, equations 3 to 5): unbiased.

    .. math:: Q(x)_i = s\, \mathrm{sgn}(x_i)\, b_i, \qquad s = \max_i |x_i|, \qquad
              b_i \sim \mathrm{Bernoulli}(|x_i| / s)

    Variance: E|Q(x) - x|^2 = s |x|_1 - |x|^2 <= (sqrt(d) - 1)/2 |x|^2, as every entry has variance
    s |x_i| - x_i^2 and s |x|_1 is largest for one entry sqrt(d) + 1 times as large as all others.

    Bits: s, and five entries in a byte, as 3^5 = 243: 1.6 bits an entry.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from fedax.codecs import terngrad
      >>> found = terngrad().encode(jax.random.key(0), jnp.array([2.0, -2, 0], jnp.float32), ())
      >>> found.decoded.tolist(), float(found.bits)
      ([2.0, -2.0, 0.0], 40.0)
    """

    def encode(key: Array, array: Array, memory: PyTree) -> Encoded:
        s = jnp.abs(array).max()
        shares = jnp.abs(array) / jnp.where(s > 0, s, 1)
        chosen = jax.random.uniform(key, array.shape, array.dtype) < shares
        decoded = jnp.where(chosen, s * jnp.sign(array), 0)
        # Of many numbers a CPU's maximum leaves out NaN (JAX 0.10.2), and infinity is never chosen.
        decoded = jnp.where(jnp.isfinite(array).all(), decoded, jnp.nan)
        return Encoded(decoded, fixed(number_bits(array) + 8 * -(-array.size // 5)), memory)

    return Codec(encode, no_memory, unbiased=True)
