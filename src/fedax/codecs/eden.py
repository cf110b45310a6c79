"""DRIVE and EDEN: a random rotation, one to four bits an entry, and the scale that corrects.

Vargaftik, Ben Basat, Portnoy, Mendelson, Ben-Itzhak, Mitzenmacher, "DRIVE: One-bit Distributed Mean
Estimation", NeurIPS 2021, and "EDEN: Communication-Efficient and Robust Distributed Mean Estimation
for Federated Learning", ICML 2022.
"""

from __future__ import annotations

import functools
import math

import jax.numpy as jnp
import numpy as np

from fedax.algorithm import Array, PyTree
from fedax.codecs.codec import Codec, Encoded, fixed, no_memory, norm, number_bits
from fedax.codecs.rotation import rotate
from fedax.factories import factory
from fedax.validate import check_count, check_number

MOST_BITS = 4


@factory
def drive() -> Codec:
    r"""DRIVE (Vargaftik et al. 2021, Algorithm 1): the signs after a rotation; unbiased.

    .. math:: Q(x) = S\, R^{-1} \mathrm{sgn}(R x), \qquad
              S = \lVert x \rVert_2^2 / \lVert R x \rVert_1

    Variance: E|Q(x) - x|^2 tends to (pi/2 - 1) |x|^2 = 0.571 |x|^2 for long x. It is `eden` with
    one bit, see there for the rotation and the bits.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from fedax.codecs import drive
      >>> float(drive().encode(jax.random.key(0), jnp.ones(7, jnp.float32), ()).bits)
      39.0
    """
    return _rotated(1)


@factory
def eden(bits: int = 2) -> Codec:
    r"""EDEN (Vargaftik et al. 2022, Algorithm 1) with a whole number of bits an entry; unbiased.

    .. math::
        z = \sqrt d\, R x / \lVert x \rVert, \qquad q_i = \text{the centroid nearest to } z_i, \\
        Q(x) = S\, R^{-1} q, \qquad S = \lVert x \rVert^2 / \langle R x, q \rangle

    The 2^b centroids are those of Lloyd and Max for a standard normal variable. Variance:
    E|Q(x) - x|^2 tends to (1/E[q^2] - 1) |x|^2 for long x: 0.571, 0.133, 0.0358 and 0.0096 for 1 to
    4 bits (Theorem 2.3).

    That it is unbiased is proved for a uniformly random R, which arrays of at most 64 entries get.
    Longer ones get six randomised Hadamard transforms, for which it holds approximately; see
    `fedax.codecs.rotation.rotate`.

    Bits: b an entry, and S. The rotation costs nothing: the server draws it from the same key.

    Args:
      bits: b from 1 to 4, an integer that cannot be traced.

    Raises:
      ValueError: bits is not a whole number from 1 to 4.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from fedax.codecs import eden
      >>> x = jnp.arange(1000, dtype=jnp.float32)
      >>> found = eden(4).encode(jax.random.key(0), x, ())
      >>> float(found.bits), bool(jnp.linalg.norm(found.decoded - x) < 0.15 * jnp.linalg.norm(x))
      (4032.0, True)
    """
    check_count("bits", bits)
    check_number("bits", bits, at_most=MOST_BITS)
    return _rotated(bits)


def _rotated(bits: int) -> Codec:
    centroids = normal_centroids(bits)
    edges = (centroids[1:] + centroids[:-1]) / 2

    def encode(key: Array, array: Array, memory: PyTree) -> Encoded:
        flat = array.ravel()
        length = norm(flat)
        root = jnp.sqrt(jnp.asarray(flat.size, flat.dtype))
        z = rotate(key, flat / jnp.where(length > 0, length, 1)) * root
        place = jnp.searchsorted(jnp.asarray(edges, flat.dtype), jnp.abs(z))
        q = jnp.where(z >= 0, 1, -1).astype(flat.dtype) * jnp.asarray(centroids, flat.dtype)[place]
        product = jnp.vdot(z, q, precision="highest")
        scale = length * root / jnp.where(product > 0, product, 1)
        decoded = (scale * rotate(key, q, back=True)).reshape(array.shape)
        return Encoded(decoded, fixed(bits * flat.size + number_bits(array)), memory)

    return Codec(encode, no_memory, unbiased=True)


@functools.cache
def normal_centroids(bits: int) -> np.ndarray:
    """The positive half of the 2^bits centroids of Lloyd and Max for a standard normal variable.

    Example:
      >>> normal_centroids(2).round(4).tolist()
      [0.4528, 1.5104]
    """
    centroids = np.linspace(0.1, 1 + 0.45 * bits, 2 ** (bits - 1))
    for _ in range(1000):
        edges = np.concatenate([[0], (centroids[1:] + centroids[:-1]) / 2, [np.inf]])
        below = [0.5 * math.erfc(-edge / math.sqrt(2)) for edge in edges]
        density = np.exp(-np.square(edges) / 2) / np.sqrt(2 * np.pi)
        before, centroids = centroids, -np.diff(density) / np.diff(below)
        if np.abs(centroids - before).max() < 1e-12:
            break
    return centroids
