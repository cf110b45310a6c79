r"""Convolution with half the products: columns in tiles of four, by interpolation (Toom-Cook).

Four neighbouring outputs of windows of three columns are middle coefficients of the product of two
polynomials, which is known from its values at six points. Transposed (Winograd, "Arithmetic
complexity of computations", 1980; Lavin and Gray, "Fast algorithms for convolutional neural
networks", CVPR 2016), with the six columns x_{4v+j} of tile v and the kernel's columns w_j,

.. math:: y_{4v+p} = \sum_{q<6} A_{qp} \Big( \sum_{j<6} B_{qj}\, x_{4v+j} \Big)
    \Big( \sum_{j<3} G_{qj}\, w_j \Big), \qquad p < 4

where a product of x and w is summed over the k rows of the window and the C channels: six matrix
products of [B h t, k C] with [k C, D] for t tiles a row, instead of twelve. The points are 0, 1,
-1, 1/2, -2 and infinity. All of A and B are multiples of 1/8, so they are exact.

Measured with value and both gradients in a loop, one core with AVX-512, against `convolution`'s
plain product: 0.66 of the time for 20 images of 26 x 26 x 32 to 64 channels (the EMNIST network's
second layer, 9.4 ms), 0.70 for 10 of 30 x 30 x 32 to 64, 0.64 to 0.73 for 12 x 12 x 32 and 128 and
6 x 6 x 256 to as many, 0.82 for 32 of 15 x 15 x 32 to 64, 0.90 for 24 x 24 x 64, 0.97 for
3 x 3 x 512 and for 24 x 24 x 16. What did not help: rows in tiles too, F(2 x 2, 3 x 3), has fewer
products, but moves 2.7 times as many sums, each of a third of the length (0.83 for the first of
these layers); tiles of two columns (1.05); windows of five columns, tiles of two (0.83 and 1.36 for
two layers).

Rounding grows with the powers of the points. With these six the largest error for the first of
these layers is 9e-7 of the largest output, and 4e-7 and 9e-7 of the gradients; with the usual 2
instead of 1/2 1.7e-6, 6e-7 and 1.5e-6; of the plain product 2e-7 to 3e-7.

All of it is sums, products and slices, so JAX differentiates and batches it.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import lax

from fedax.algorithm import Array

POINTS = (0.0, 1.0, -1.0, 0.5, -2.0)  # and infinity
WINDOW = 3
TILE = 4
# How many rows of a product are taken at a time.
_FEWEST_ROWS, _MOST_ROWS = 64, 256


@functools.cache
def matrices() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A [6, 4], B [6, 6] and G [6, 3] of the equation above.

    Example:
      >>> A, B, G = matrices()
      >>> x, w = np.arange(6.0) ** 2, np.array([1.0, 10.0, 100.0])
      >>> (A.T @ ((B @ x) * (G @ w))).round(9).tolist()
      [410.0, 941.0, 1694.0, 2669.0]
    """
    points = np.array(POINTS)
    others = [np.delete(points, q) for q in range(len(points))]
    # A polynomial's values at the points, and at infinity its last coefficient.
    A, G = (
        np.concatenate([np.vander(points, size, increasing=True), np.eye(size)[-1:]])
        for size in (TILE, WINDOW)
    )
    G[:-1] /= np.array([[np.prod(p - rest)] for p, rest in zip(points, others, strict=True)])
    # The coefficients of the polynomials that are 0 at all other points.
    B = np.zeros((len(G), len(G)))
    B[:-1, :-1] = [np.poly(rest)[::-1] for rest in others]
    B[-1] = np.poly(points)[::-1]
    return A, B, G


def pays(kernel_shape: Sequence[int], out_width: int, itemsize: int) -> bool:
    """Whether tiles are faster than the plain product, and as exact as numbers of this size are.

    Half the products count for less with few channels, and fewer than half are left where a row
    ends within a tile. Two bytes are too few for the sums that are multiplied.
    """
    _, window, num_channels, num_features = kernel_shape
    computed = -(-out_width // TILE) * len(matrices()[1])
    return (
        window == WINDOW
        and itemsize >= 4
        and min(num_channels, num_features) >= 32
        and computed <= 0.7 * window * out_width
    )


def columns_in_tiles(
    x: Array, kernel: Array, stride: int = 1, precision: lax.PrecisionLike = None
) -> list[Array]:
    """The convolution without padding; columns 4 v + p for each p < 4: four arrays [B, h, t, D].

    Args:
      x: [B, H, W, C].
      kernel: [k, 3, C, D].
      stride: of the rows. That of the columns is 1.
      precision: of the products.

    Returns:
      With t = ceil((W - 2) / 4); columns beyond W - 3 are of an image with zeros at its right.
    """
    batch, height, width, num_channels = x.shape
    num_rows, _, _, num_features = kernel.shape
    A, B, G = matrices()
    num_tiles = -(-(width - WINDOW + 1) // TILE)
    out_height = (height - num_rows) // stride + 1
    # Columns j of all tiles; the last two are the next tile's first.
    missing = (num_tiles + 1) * TILE - width
    x = lax.pad(x, jnp.zeros((), x.dtype), ((0, 0, 0), (0, 0, 0), (0, missing, 0), (0, 0, 0)))
    x = x.reshape(batch, height, num_tiles + 1, TILE, num_channels)
    parts = lax.split(x, (1,) * TILE, axis=3)
    columns = [
        lax.slice_in_dim(parts[j % TILE][:, :, :, 0], j // TILE, j // TILE + num_tiles, axis=2)
        for j in range(len(B))
    ]
    kernels = [kernel[:, j] for j in range(WINDOW)]
    sums = []
    for of_columns, of_kernels in zip(B, G, strict=True):
        values = _combine(of_columns, columns)
        rows = [
            lax.slice_in_dim(values, i, i + (out_height - 1) * stride + 1, stride, axis=1)
            for i in range(num_rows)
        ]
        matrix = _combine(of_kernels, kernels).reshape(-1, num_features)
        sums.append(_multiply(jnp.concatenate(rows, 3), matrix, precision))
    return [_combine(column, sums) for column in A.T]


def side_by_side(phases: Sequence[Array], width: int) -> Array:
    """The columns of `columns_in_tiles` in their order, [B, h, width, D]."""
    batch, height, num_tiles, num_features = phases[0].shape
    columns = jnp.stack(phases, 3).reshape(batch, height, num_tiles * len(phases), num_features)
    return columns[:, :, :width]


def _combine(coefficients: np.ndarray, arrays: Sequence[Array]) -> Array:
    """The sum of the arrays times their coefficients, those of 0 left out."""
    terms = [
        array if c == 1 else -array if c == -1 else array * np.asarray(c, array.dtype)
        for c, array in zip(coefficients, arrays, strict=True) if c
    ]
    return functools.reduce(operator.add, terms)


def _multiply(values: Array, matrix: Array, precision: lax.PrecisionLike) -> Array:
    """The matrix product over the last axis, in parts.

    Its derivative with respect to the matrix is values^T times what comes back, which XLA's CPU
    back end is slow at over many rows: 2,880 x 96 and 2,880 x 64 took 0.51 ms, and 0.39 in eight
    parts that are added. Parts of at most 256 rows are 4% better for the whole step where every
    core is a device, as larger ones are spread over the threads of all; one core alone prefers 384.
    The other two products are as fast in parts.
    """
    *shape, num_inputs = values.shape
    num_rows = math.prod(shape)
    choice = range(-(-num_rows // _MOST_ROWS), num_rows // _FEWEST_ROWS + 1)
    parts = next((parts for parts in choice if parts and num_rows % parts == 0), 1)
    product = jnp.matmul(
        values.reshape(parts, num_rows // parts, num_inputs),
        jnp.broadcast_to(matrix, (parts, *matrix.shape)), precision=precision,
    )
    return product.reshape(*shape, matrix.shape[1])
