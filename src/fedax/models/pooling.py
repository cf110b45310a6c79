r"""Pooling of images: the largest or the mean number of every window.

The largest is found by comparing the places of the window one by one. Its derivative is then a few
selections, whereas XLA's own is a scatter, with which a training step of the EMNIST CNN took 1.7
times as long on a CPU.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from fedax.algorithm import Array
from fedax.models import tiles
from fedax.models.convolution import (
    Implementation,
    Padding,
    Pads,
    check_pads,
    check_pair,
    convolution,
    is_fast,
    output_size,
)


def max_pool(
    x: Array,
    window: Sequence[int] = (2, 2),
    strides: Sequence[int] | None = None,
    padding: Padding = "VALID",
) -> Array:
    r"""The largest number of every window, for each channel.

    .. math:: y_{b,h,v,c} = \max_{i<k,\, j<l} x_{b,\, sh+i,\, tv+j,\, c}

    The derivative goes to the largest number; if several are equally large, to the first of them,
    row by row, as with `jax.lax.reduce_window`. NaN counts as largest. Differentiable to any order
    and in forward mode.

    Args:
      x: images [B, H, W, C], floating point or integers.
      window: k, l >= 1.
      strides: s, t >= 1; None: the window's size, so windows do not overlap.
      padding: "SAME", "VALID", or ((above, below), (left, right)). Padding counts as the lowest
        number of the type.

    Raises:
      ValueError: if the shape or dtype of x, the window, the strides or the padding is invalid.

    Example:
      >>> import jax.numpy as jnp
      >>> max_pool(jnp.arange(16.0).reshape(1, 4, 4, 1))[0, :, :, 0].tolist()
      [[5.0, 7.0], [13.0, 15.0]]
    """
    window, strides, pads = _check(x, window, strides, padding, jnp.floating, jnp.integer)
    none = ((0, 0),)
    return window_max(x, (1, *window, 1), (1, *strides, 1), (*none, *pads, *none))


def pooled_convolution(
    x: Array,
    kernel: Array,
    padding: Padding = "SAME",
    *,
    implementation: Implementation = "auto",
) -> Array:
    """`max_pool(convolution(x, kernel, padding=padding))`, faster where columns go in tiles.

    Then the columns are computed separately, and the largest is taken before they are put in order.
    A bias and a rectifier may come after it instead of before, since both preserve order.

    Args:
      x: images [B, H, W, C].
      kernel: w, [k, l, C, D].
      padding, implementation: as for `convolution`, with strides of 1.

    Raises:
      ValueError: as for `convolution` and `max_pool`.

    Example:
      >>> import jax.numpy as jnp
      >>> pooled_convolution(jnp.ones((1, 8, 9, 32)), jnp.ones((3, 3, 32, 64))).shape
      (1, 4, 4, 64)
    """
    fits = (
        x.ndim == kernel.ndim == 4
        and x.shape[3] == kernel.shape[2]
        and x.dtype == kernel.dtype
        and jnp.issubdtype(x.dtype, jnp.floating)
    )
    if fits and is_fast(implementation):
        pads = check_pads(padding, x.shape[1:3], kernel.shape[:2], (1, 1))
        height, width = output_size(x, kernel, (1, 1), pads)
        if tiles.pays(kernel.shape, width, x.dtype.itemsize):
            zero = jnp.zeros((), x.dtype)
            x = lax.pad(x, zero, ((0, 0, 0), *((*pair, 0) for pair in pads), (0, 0, 0)))
            columns = [
                _in_pairs(column[:, : height // 2 * 2])
                for column in tiles.columns_in_tiles(x, kernel)
            ]
            pooled = [
                largest([left[0], right[0], left[1], right[1]])
                for left, right in zip(columns[::2], columns[1::2], strict=True)
            ]
            return tiles.side_by_side(pooled, width // 2)
    return max_pool(convolution(x, kernel, padding=padding, implementation=implementation))


def _in_pairs(images: Array) -> list[Array]:
    """The even and the odd rows of [B, H, W, C]."""
    batch, height, *shape = images.shape
    pairs = lax.split(images.reshape(batch, height // 2, 2, *shape), (1, 1), axis=2)
    return [rows[:, :, 0] for rows in pairs]


def avg_pool(
    x: Array,
    window: Sequence[int] = (2, 2),
    strides: Sequence[int] | None = None,
    padding: Padding = "VALID",
    *,
    count_include_pad: bool = False,
) -> Array:
    r"""The mean of every window, for each channel.

    .. math:: y_{b,h,v,c} = \frac{1}{n_{h,v}} \sum_{i<k,\, j<l} x_{b,\, sh+i,\, tv+j,\, c}

    with x padded by zeros, and n the number of the window's pixels in the image, or k l. bfloat16
    and float16 are summed in float32.

    Args:
      x: images [B, H, W, C], floating point.
      window, strides, padding: as for `max_pool`.
      count_include_pad: whether padding counts, so that n = k l; this is the default of Flax and
        PyTorch. If it does not, a mean over padding alone is NaN.

    Raises:
      ValueError: if the shape or dtype of x, the window, the strides or the padding is invalid.

    Example:
      >>> import jax.numpy as jnp
      >>> avg_pool(jnp.arange(16.0).reshape(1, 4, 4, 1))[0, :, :, 0].tolist()
      [[2.5, 4.5], [10.5, 12.5]]
    """
    window, strides, pads = _check(x, window, strides, padding, jnp.floating)
    none = ((0, 0),)
    summed = x.astype("float32") if x.dtype.itemsize < 4 else x

    def total(values: Array) -> Array:
        return lax.reduce_window(
            values, 0.0, lax.add, (1, *window, 1), (1, *strides, 1), (*none, *pads, *none)
        )

    if count_include_pad:
        mean = total(summed) / float(window[0] * window[1])
    else:
        mean = total(summed) / total(jnp.ones((1, *x.shape[1:3], 1), summed.dtype))
    return mean.astype(x.dtype)


def window_max(
    x: Array, window: Sequence[int], strides: Sequence[int], pads: Pads
) -> Array:
    """The maximum of every window, with one entry of each argument for each axis of x."""
    lowest = -jnp.inf if jnp.issubdtype(x.dtype, jnp.floating) else jnp.iinfo(x.dtype).min
    x = lax.pad(x, jnp.asarray(lowest, x.dtype), [(*pair, 0) for pair in pads])
    return largest(_places(x, window, strides))


def largest(places: Sequence[Array]) -> Array:
    """The largest of several arrays at each place; the derivative goes to the first of equals."""
    found, *others = places
    for other in others:
        # Strictly, so that the first of equals stays; NaN differs from itself.
        found = jnp.where((other > found) | (other != other), other, found)  # noqa: PLR0124
    return found


def _places(x: Array, window: Sequence[int], strides: Sequence[int]) -> list[Array]:
    """For each place in the window, in order, that number of every window."""
    sizes = [(size - k) // s + 1 for size, k, s in zip(x.shape, window, strides, strict=True)]

    def part(place: tuple[int, ...]) -> Array:
        ends = [i + (n - 1) * s + 1 for i, n, s in zip(place, sizes, strides, strict=True)]
        return lax.slice(x, place, ends, strides)

    if tuple(window) != tuple(strides):
        return [part(place) for place in itertools.product(*map(range, window))]
    # Windows that do not overlap are split, whose derivative is a concatenation: a step of the
    # EMNIST CNN is 1.1 times as fast as with slices, whose derivatives are padded and added.
    whole = lax.slice(x, [0] * x.ndim, [n * k for n, k in zip(sizes, window, strict=True)])
    parts = [whole.reshape([length for pair in zip(sizes, window, strict=True) for length in pair])]
    for axis, k in enumerate(window):
        parts = [
            piece for part in parts for piece in lax.split(part, (1,) * k, axis=2 * axis + 1)
        ]
    return [part.reshape(sizes) for part in parts]


def _check(
    x: Array, window: Sequence[int], strides: Sequence[int] | None, padding: Padding, *types: Any
) -> tuple[tuple[int, int], tuple[int, int], Pads]:
    if x.ndim != 4:
        raise ValueError(f"Pooling takes images [B, H, W, C], but the shape is {list(x.shape)}.")
    if not any(jnp.issubdtype(x.dtype, kind) for kind in types):
        raise ValueError(f"Pooling does not support the dtype {x.dtype}.")
    window = check_pair("window", window)
    strides = window if strides is None else check_pair("strides", strides)
    return window, strides, check_pads(padding, x.shape[1:3], window, strides)
