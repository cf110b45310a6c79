"""Scaled signs.

Karimireddy, Rebjock, Stich, Jaggi, "Error Feedback Fixes SignSGD and other Gradient Compression
Schemes", ICML 2019; without the scale Bernstein et al., "signSGD", ICML 2018.
"""

from __future__ import annotations

import jax.numpy as jnp

from fedax.algorithm import Array, PyTree
from fedax.codecs.codec import Codec, Encoded, fixed, no_memory, number_bits
from fedax.factories import factory


@factory
def sign() -> Codec:
    r"""Scaled signs (Karimireddy et al. 2019, Algorithm 1): biased, so it needs feedback.

    .. math:: C(x) = \frac{\lVert x \rVert_1}{d}\, \mathrm{sgn}(x), \qquad \mathrm{sgn}(0) = 1

    Error: |C(x) - x|^2 = (1 - phi(x)) |x|^2 with phi(x) = |x|_1^2 / (d |x|^2) (Lemma 8).

    Bits: the scale, and one bit an entry.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from fedax.codecs import sign
      >>> found = sign().encode(jax.random.key(0), jnp.array([1.0, -3.0], jnp.float32), ())
      >>> found.decoded.tolist(), float(found.bits)
      ([2.0, -2.0], 34.0)
    """

    def encode(key: Array, array: Array, memory: PyTree) -> Encoded:
        del key
        scale = jnp.abs(array).mean()
        decoded = jnp.where(array >= 0, scale, -scale)
        return Encoded(decoded, fixed(array.size + number_bits(array)), memory)

    return Codec(encode, no_memory, unbiased=False)
