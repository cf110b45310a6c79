"""Top-k: the largest entries.

Aji, Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017; Stich,
Cordonnier, Jaggi, "Sparsified SGD with Memory", NeurIPS 2018.
"""

from __future__ import annotations

import jax.numpy as jnp

from fedax.algorithm import Array, PyTree
from fedax.codecs.codec import Codec, Encoded, fixed, no_memory, number_bits
from fedax.codecs.lengths import position_bits
from fedax.codecs.random_k import part_of
from fedax.factories import factory
from fedax.validate import check_number


@factory
def top_k(share: float | Array = 0.01) -> Codec:
    r"""Top-k sparsification (Stich et al. 2018, Definition 2.1): biased, so it needs feedback.

    .. math:: C(x)_i = x_i \text{ for the } k \text{ largest } |x_i|, \qquad 0 \text{ otherwise}

    The first of equal entries are sent. Error: |C(x) - x|^2 <= (1 - k/d) |x|^2 (equation 6).

    Bits: k numbers, and their positions as a Golomb-Rice code of the gaps (Sattler et al. 2019).

    Args:
      share: k/d in (0, 1]; k is rounded up. May be traced.

    Raises:
      ValueError: share is out of its range (unless it is traced).

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from fedax.codecs import top_k
      >>> x = jnp.array([0.1, -3.0, 2.0, 0.0])
      >>> top_k(0.25).encode(jax.random.key(0), x, ()).decoded.tolist()
      [0.0, -3.0, 0.0, 0.0]
    """
    check_number("share", share, above=0, at_most=1)

    def encode(key: Array, array: Array, memory: PyTree) -> Encoded:
        del key
        flat = array.ravel()
        count = part_of(share, flat.size)
        order = jnp.argsort(-jnp.abs(flat), stable=True)
        places = jnp.arange(flat.size, dtype=jnp.int32)
        chosen = jnp.zeros(flat.size, bool).at[order].set(places < count)
        bits = fixed(count) * number_bits(array) + position_bits(chosen, count)
        decoded = jnp.where(chosen, flat, 0)
        return Encoded(decoded.reshape(array.shape), bits, memory)

    return Codec(encode, no_memory, unbiased=False)
