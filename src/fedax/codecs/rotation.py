"""Random rotations of vectors of any length."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fedax.algorithm import Array

# Up to this length a vector is multiplied by a uniformly random orthogonal matrix.
SMALL = 64
# Pairs of Hadamard rotations of longer ones.
PAIRS = 2


def rotate(key: Array, vector: Array, *, back: bool = False) -> Array:
    """The vector [d] times a random orthogonal matrix, or times its inverse.

    Up to 64 entries the matrix is uniformly random. A longer vector is rotated by randomised
    Hadamard transforms H D, with D of random signs (Ailon and Chazelle 2009): of its first n
    entries, then of its last n, n being the largest power of two that fits, and all that once more.
    Nothing is padded. A single transform of a vector with one large entry is not random enough:
    all its entries have the sign of the large one or its opposite.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> vector, key = jnp.arange(100.0), jax.random.key(0)
      >>> there = rotate(key, vector)
      >>> bool(jnp.allclose(rotate(key, there, back=True), vector, atol=1e-3))
      True
    """
    if vector.size <= SMALL:
        matrix = _uniform(key, vector.size, vector.dtype)
        return jnp.matmul(matrix.T if back else matrix, vector, precision="highest")
    n = 1 << (vector.size.bit_length() - 1)
    parts = [slice(0, n), slice(vector.size - n, vector.size)] * PAIRS
    steps = list(enumerate(parts))
    for number, part in reversed(steps) if back else steps:
        signs = jax.random.rademacher(jax.random.fold_in(key, number), (n,), vector.dtype)
        own = vector[part]
        own = signs * hadamard(own) if back else hadamard(signs * own)
        vector = vector.at[part].set(own)
    return vector


def hadamard(vector: Array) -> Array:
    """The vector [n] times Hadamard's matrix over sqrt(n), its own inverse; n is a power of two.

    Computed as products of matrices of at most 64 rows, whose Kronecker product it is.

    Example:
      >>> import jax.numpy as jnp
      >>> hadamard(jnp.array([1.0, 0.0, 0.0, 0.0])).tolist()
      [0.5, 0.5, 0.5, 0.5]
    """
    rest = vector.size
    while rest > 1:
        rows = min(rest, SMALL)
        index = jnp.arange(rows)
        odd = jax.lax.population_count(index[:, None] & index[None, :]) & 1
        matrix = (1 - 2 * odd).astype(vector.dtype) / jnp.sqrt(jnp.asarray(rows, vector.dtype))
        # The axis that was first comes last: after all of them the order is as it was.
        vector = jnp.matmul(vector.reshape(rows, -1).T, matrix, precision="highest").ravel()
        rest //= rows
    return vector


def _uniform(key: Array, size: int, dtype: jnp.dtype) -> Array:
    """A uniformly random orthogonal matrix [size, size] (Mezzadri 2007)."""
    q, r = jnp.linalg.qr(jax.random.normal(key, (size, size), dtype))
    return q * jnp.sign(jnp.diagonal(r))[None, :]
