"""The codec that changes nothing."""

from __future__ import annotations

from fedax.algorithm import Array, PyTree
from fedax.codecs.codec import Codec, Encoded, fixed, no_memory, number_bits
from fedax.factories import factory


@factory
def identity() -> Codec:
    """Sends every number as it is: the method is unchanged to the bit, and its bits are counted.

    Bits: d numbers of their dtype.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from fedax.codecs import identity
      >>> float(identity().encode(jax.random.key(0), jnp.zeros(5, jnp.float32), ()).bits)
      160.0
    """

    def encode(key: Array, array: Array, memory: PyTree) -> Encoded:
        del key
        return Encoded(array, fixed(array.size * number_bits(array)), memory)

    return Codec(encode, no_memory, unbiased=True, any_precision=True)
