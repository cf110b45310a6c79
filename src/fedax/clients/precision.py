"""The precision of sums."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from fedax.algorithm import Array


def sum_dtype(array: Array) -> Any:
    """The array's dtype, but at least float32.

    A sum in bfloat16 stops growing at 256 ones.
    """
    if jnp.issubdtype(array.dtype, jnp.floating) and jnp.finfo(array.dtype).bits >= 32:
        return array.dtype
    return jnp.dtype(jnp.float32)


def widen(value: Any) -> Array:
    """The value as an array in its `sum_dtype`."""
    array = jnp.asarray(value)
    return array.astype(sum_dtype(array))
