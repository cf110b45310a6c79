"""PowerSGD: a matrix of low rank.

Vogels, Karimireddy, Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
Optimization", NeurIPS 2019.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fedax.algorithm import Array, PyTree
from fedax.codecs.codec import Codec, Encoded, fixed, norm, number_bits
from fedax.factories import factory
from fedax.validate import check_count


@factory
def power_sgd(rank: int = 2) -> Codec:
    r"""PowerSGD (Vogels et al. 2019, Algorithm 1): biased, so it needs feedback.

    One step of subspace iteration on the array as a matrix M, whose columns are its last axis. It
    starts from the factor of the last message, Q, first from normal random numbers:

    .. math:: P = \mathrm{orthogonalised}(M Q), \qquad Q \leftarrow M^T P, \qquad C(M) = P Q^T

    In the paper the workers average P and Q; here each client codes its own array. Error:
    |C(M) - M| <= |M|, and it tends to that of the best matrix of this rank if M stays the same.

    Bits: r (n + m) numbers for a matrix [n, m]. A vector, or a matrix for which that is not less,
    is sent as it is.

    Args:
      rank: r >= 1, an integer that cannot be traced.

    Raises:
      ValueError: rank is not a whole number of at least 1.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from fedax.codecs import power_sgd
      >>> codec, x = power_sgd(1), jnp.outer(jnp.arange(1.0, 5), jnp.ones(4))
      >>> found = codec.encode(jax.random.key(0), x, codec.init(x))
      >>> bool(jnp.allclose(found.decoded, x, atol=1e-5)), float(found.bits) / x.itemsize / 8
      (True, 8.0)
    """
    check_count("rank", rank)

    def is_small(array: Array) -> bool:
        columns = array.shape[-1] if array.ndim else 1
        rows = array.size // max(columns, 1)
        return array.ndim < 2 or rank * (rows + columns) >= array.size

    def init(array: Array) -> PyTree:
        if is_small(array):
            return ()
        return jax.random.normal(jax.random.key(0), (array.shape[-1], rank), array.dtype)

    def encode(key: Array, array: Array, memory: PyTree) -> Encoded:
        del key
        if is_small(array):
            return Encoded(array, fixed(array.size * number_bits(array)), memory)
        matrix = array.reshape(-1, array.shape[-1])
        # A factor of 0, as of an array of zeros, would stay 0.
        start = jnp.where((memory != 0).any(0)[None, :], memory, init(array))
        p = _orthogonalised(jnp.matmul(matrix, start, precision="highest"))
        q = jnp.matmul(matrix.T, p, precision="highest")
        decoded = jnp.matmul(p, q.T, precision="highest").reshape(array.shape)
        return Encoded(decoded, fixed((p.size + q.size) * number_bits(array)), q)

    return Codec(encode, init, unbiased=False)


def _orthogonalised(matrix: Array) -> Array:
    """The columns made orthonormal one after the other; 0 where one depends on those before."""
    done: list[Array] = []
    for column in matrix.T:
        rest = column
        for other in done:
            rest = rest - jnp.vdot(other, rest, precision="highest") * other
        length = norm(rest)
        is_new = length > 1e-5 * norm(column)
        unit = rest / jnp.where(is_new, length, 1)
        done.append(jnp.where(jnp.isnan(length) | is_new, unit, 0))
    return jnp.stack(done, 1)
