r"""Convolution as a matrix product: fast inside loops and for many clients on a CPU.

For images x [B, H, W, C], a kernel w [k, l, C, D] and strides s, t

.. math:: y_{b,h,v,d} = \sum_{i<k} \sum_{j<l} \sum_c x_{b,\, sh+i,\, tv+j,\, c}\, w_{i,j,c,d}

is one product of a matrix of windows with the kernel, and so are its derivatives with respect to x
and w. There are two ways to compute it; `_scatters` chooses the one that moves less data:

* gathered: the k l C numbers of every window side by side, times the kernel [k l C, D];
* scattered: only the k rows of every window side by side, times the kernel [k C, l D], and then
  the sum over j of the products, each shifted by j.

All of it is slices, products and sums, so JAX differentiates it, forward and backward and to any
order, and batches it: clients with kernels of their own are a batched product.

So there is no `custom_vjp` here, which would rule out forward mode. Six were measured on the EMNIST
network's second layer (20 images of 26 x 26 x 32 to 24 x 24 x 64, both gradients, in a `fori_loop`
on a 2-core CPU, medians of 40 in turns). The best computes the windows again in its backward pass
and takes dw = windows^T dy and dx as the shifted sum of dy w^T: 5.2 ms where the derivative of the
above takes 5.0 to 5.1, and with 4 clients 11.0 each where that takes 11.0, with the same memory
(22.9 and 91.7 MiB), because XLA merges the second computation of the windows with the first. The
other five took 1.4 to 2.6 times as long (medians of 14).

Windows of three columns and many channels take half the products, see `fedax.models.tiles`.

Why not XLA's own convolution: on a CPU its gradient with respect to w is slow inside `scan` and
`while_loop`, and `vmap` over clients makes it a grouped convolution, which is slower still.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from fedax.algorithm import Array
from fedax.models import tiles
from fedax.validate import check_choice

Padding: TypeAlias = str | Sequence[tuple[int, int]]
Pads: TypeAlias = tuple[tuple[int, int], ...]
Implementation: TypeAlias = Literal["auto", "matmul", "xla"]

IMPLEMENTATIONS = ("auto", "matmul", "xla")


def prefers_fast(platform: str) -> bool:
    """Whether "auto" means the matrix product, not XLA's own convolution, on a platform.

    It does on "cpu", from measurements. It does not on "gpu" and "tpu", where XLA's convolution
    comes from a library or the hardware; it was faster on an NVIDIA H100, and TPUs have not been
    measured. With many clients under `vmap` the convolution is grouped, so
    `implementation="matmul"` may be worth trying there too.

    Example:
      >>> prefers_fast("cpu"), prefers_fast("gpu")
      (True, False)
    """
    return platform == "cpu"


def is_fast(implementation: str) -> bool:
    """Whether an implementation means the matrix product on JAX's default platform.

    Raises:
      ValueError: if it is none of "auto", "matmul" and "xla".
    """
    check_choice("implementation", implementation, IMPLEMENTATIONS)
    if implementation == "auto":
        return prefers_fast(jax.default_backend())
    return implementation == "matmul"


def convolution(
    x: Array,
    kernel: Array,
    strides: Sequence[int] = (1, 1),
    padding: Padding = "SAME",
    *,
    precision: lax.PrecisionLike = None,
    implementation: Implementation = "auto",
) -> Array:
    r"""Convolution of images with a kernel, as neural networks define it (no flip).

    .. math:: y_{b,h,v,d} = \sum_{i,j,c} x_{b,\, sh+i,\, tv+j,\, c}\, w_{i,j,c,d}

    with x padded by zeros. Equals `jax.lax.conv_general_dilated` up to rounding, including all
    derivatives and forward mode. bfloat16 and float16 are summed in float32.

    Args:
      x: images [B, H, W, C].
      kernel: w, [k, l, C, D], of the same floating point type as `x`.
      strides: s, t >= 1.
      padding: "SAME", "VALID" (no padding), or the zeros ((above, below), (left, right)).
      precision: precision of the products, as for `jax.lax.dot_general`.
      implementation: "matmul", "xla" for XLA's own convolution, or "auto" for the faster one on
        JAX's default platform, see `prefers_fast`.

    Returns:
      y [B, ceil(H / s), ceil(W / t), D] for "SAME", [B, floor((H - k) / s) + 1, ..., D] for
      "VALID".

    Raises:
      ValueError: if shapes, types, strides or padding do not fit, or `implementation` is unknown.

    Example:
      >>> import jax.numpy as jnp
      >>> images, kernel = jnp.ones((1, 5, 5, 2)), jnp.ones((3, 3, 2, 4))
      >>> convolution(images, kernel).shape, convolution(images, kernel, (2, 2), "VALID").shape
      ((1, 5, 5, 4), (1, 2, 2, 4))
      >>> convolution(images, kernel)[0, :, 0, 0].tolist()  # two channels; the padding counts 0
      [8.0, 12.0, 12.0, 12.0, 8.0]
    """
    if x.ndim != 4 or kernel.ndim != 4 or x.shape[3] != kernel.shape[2]:
        raise ValueError(
            "convolution takes images [B, H, W, C] and a kernel [k, l, C, D], but got the "
            f"shapes {list(x.shape)} and {list(kernel.shape)}."
        )
    if x.dtype != kernel.dtype or not jnp.issubdtype(x.dtype, jnp.floating):
        raise ValueError(
            "convolution takes images and a kernel of the same floating point type, but got "
            f"{x.dtype} and {kernel.dtype}."
        )
    strides = check_pair("strides", strides)
    pads = check_pads(padding, x.shape[1:3], kernel.shape[:2], strides)
    return conv_general_dilated(
        x, kernel, strides, pads, dimension_numbers=("NHWC", "HWIO", "NHWC"),
        precision=precision, implementation=implementation,
    )


def conv_general_dilated(
    lhs: Array,
    rhs: Array,
    window_strides: Sequence[int],
    padding: Padding,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: lax.PrecisionLike = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
    *,
    implementation: Implementation = "auto",
) -> Array:
    """`jax.lax.conv_general_dilated`, computed by `convolution`'s matrix product where possible.

    That is in one or two spatial dimensions, in any layout, without dilation and groups, for
    floating point numbers of one type. Everything else is passed to JAX unchanged, including
    invalid arguments, for which JAX raises its own errors. Use it in a layer of Flax as
    `nn.Conv(32, (3, 3), conv_general_dilated=conv_general_dilated)`.

    Args:
      lhs, rhs, window_strides, padding, lhs_dilation, rhs_dilation, dimension_numbers,
        feature_group_count, batch_group_count, precision, preferred_element_type, out_sharding:
        as for `jax.lax.conv_general_dilated`.
      implementation: as for `convolution`.

    Raises:
      ValueError: if `implementation` is unknown. JAX's own errors are passed on.

    Example:
      >>> import jax.numpy as jnp
      >>> image, kernel = jnp.ones((1, 2, 5, 5)), jnp.ones((4, 2, 3, 3))  # channels first
      >>> conv_general_dilated(image, kernel, (1, 1), "SAME").shape
      (1, 4, 5, 5)
    """
    num_spatial = lhs.ndim - 2
    fits = (
        is_fast(implementation)
        and lhs.ndim == rhs.ndim
        and num_spatial in (1, 2)
        and lhs.dtype == rhs.dtype
        and jnp.issubdtype(lhs.dtype, jnp.floating)
        and min(rhs.shape) > 0
        and len(window_strides) == num_spatial
        and min(window_strides) > 0
        and (isinstance(padding, str) or len(padding) == num_spatial)
        and all(
            dilation is None or tuple(dilation) == (1,) * num_spatial
            for dilation in (lhs_dilation, rhs_dilation)
        )
        and feature_group_count == batch_group_count == 1
        # Not `in (None, lhs.dtype)`: NumPy finds float64 equal to None.
        and (preferred_element_type is None or preferred_element_type == lhs.dtype)
        and out_sharding is None
    )
    if fits:
        layout = lax.conv_dimension_numbers(lhs.shape, rhs.shape, dimension_numbers)
        # From here [B, H, W, C] and [k, l, C, D].
        x = lhs.transpose(layout.lhs_spec[0], *layout.lhs_spec[2:], layout.lhs_spec[1])
        kernel = rhs.transpose(*layout.rhs_spec[2:], layout.rhs_spec[1], layout.rhs_spec[0])
        strides = tuple(window_strides)
        pads = padding
        if isinstance(pads, str):
            pads = lax.padtype_to_pads(x.shape[1:-1], kernel.shape[:-2], strides, pads)
        pads = tuple(pads)
        if lhs.ndim == 3:
            x, kernel, strides, pads = x[:, None], kernel[None], (1, *strides), ((0, 0), *pads)
        if x.shape[3] == kernel.shape[2] and min(output_size(x, kernel, strides, pads)) > 0:
            y = _product(x, kernel, strides, pads, precision)
            y = y[:, 0] if lhs.ndim == 3 else y
            batch, features, *spatial = layout.out_spec
            places = (batch, *spatial, features)
            return y.transpose([places.index(axis) for axis in range(lhs.ndim)])
    return lax.conv_general_dilated(
        lhs, rhs, window_strides, padding, lhs_dilation, rhs_dilation, dimension_numbers,
        feature_group_count, batch_group_count, precision, preferred_element_type, out_sharding,
    )


def _product(
    x: Array, kernel: Array, strides: tuple[int, ...], pads: Pads, precision: Any
) -> Array:
    """The equation at the top, for x [B, H, W, C] and the kernel [k, l, C, D]."""
    out_height, out_width = output_size(x, kernel, strides, pads)
    kernel, pads = _meeting_the_image(x, kernel, strides, pads)
    height, width, num_channels, num_features = kernel.shape
    x = lax.pad(x, jnp.zeros((), x.dtype), ((0, 0, 0), *((*pair, 0) for pair in pads), (0, 0, 0)))

    def slices(x: Array, window: int, size: int, stride: int, axis: int) -> list[Array]:
        ends = ((i, i + (size - 1) * stride + 1) for i in range(window))
        return [lax.slice_in_dim(x, start, end, stride, axis) for start, end in ends]

    def multiply(columns: Array, matrix: Array) -> Array:
        product = lax.dot(
            columns.reshape(-1, columns.shape[-1]), matrix, precision=precision,
            preferred_element_type=jnp.float32 if x.dtype.itemsize < 4 else None,
        )
        return product.reshape(*columns.shape[:-1], matrix.shape[1])

    if strides[1] == 1 and tiles.pays(kernel.shape, out_width, x.dtype.itemsize):
        return tiles.side_by_side(
            tiles.columns_in_tiles(x, kernel, strides[0], precision), out_width
        )
    rows = jnp.concatenate(slices(x, height, out_height, strides[0], 1), axis=3)
    if _scatters(kernel.shape, strides, out_width):
        matrix = kernel.swapaxes(1, 2).reshape(height * num_channels, width * num_features)
        parts = lax.split(multiply(rows, matrix), (num_features,) * width, axis=3)
        shifted = (lax.slice_in_dim(p, j, j + out_width, axis=2) for j, p in enumerate(parts))
        return functools.reduce(operator.add, shifted).astype(x.dtype)
    windows = jnp.concatenate(slices(rows, width, out_width, strides[1], 2), axis=3)
    return multiply(windows, kernel.swapaxes(0, 1).reshape(-1, num_features)).astype(x.dtype)


def _meeting_the_image(
    x: Array, kernel: Array, strides: tuple[int, ...], pads: Pads
) -> tuple[Array, Pads]:
    """The kernel without border rows and columns that only meet padding, and the pads for it.

    Of a 3 x 3 kernel one place of nine is left for images of one pixel.
    """
    kept, fewer = [], []
    for size, window, number, stride, (before, after) in zip(
        x.shape[1:3], kernel.shape[:2], output_size(x, kernel, strides, pads), strides, pads,
        strict=True,
    ):
        met = [
            i for i in range(window)
            if any(0 <= stride * h + i - before < size for h in range(number))
        ]
        first, last = (met[0], met[-1]) if met else (0, window - 1)
        kept.append(slice(first, last + 1))
        fewer.append((before - first, after - (window - 1 - last)))
    return kernel[tuple(kept)], tuple(fewer)


def _scatters(kernel_shape: tuple[int, ...], strides: tuple[int, ...], out_width: int) -> bool:
    """Whether the columns of the windows are summed after the product, or gathered before it.

    Per output, gathering moves k l C numbers and scattering k C + l D, but scattering also
    computes l - 1 columns of products at the border for nothing. Measured against gathering, with
    both gradients: 0.3 to 0.5 times with 64 channels at 24 pixels, 0.6 to 0.9 times with 8 to 64
    channels at 8 to 28 pixels, 0.9 to 1.2 times with 64 to 256 at 3 to 7 pixels, and up to 6 times
    with 1 or 3 channels.
    """
    _, width, num_channels, num_features = kernel_shape
    return strides[1] == 1 and num_features <= (width - 1) * num_channels and out_width >= 8


def output_size(
    x: Array, kernel: Array, strides: tuple[int, ...], pads: Pads
) -> tuple[int, ...]:
    """Height and width of the output; not positive if the kernel is larger than the image."""
    return tuple(
        (size + sum(pair) - window) // stride + 1
        for size, window, stride, pair in zip(
            x.shape[1:3], kernel.shape[:2], strides, pads, strict=True
        )
    )


def check_pair(name: str, values: Sequence[int]) -> tuple[int, int]:
    """The values as two positive integers.

    Raises:
      ValueError: if they are not.
    """
    try:
        first, second = map(operator.index, values)
    except (TypeError, ValueError):
        first, second = 0, 0
    if min(first, second) < 1:
        raise ValueError(f"{name} must be two positive integers, but is {values!r}.")
    return first, second


def check_pads(
    padding: Padding, sizes: Sequence[int], windows: Sequence[int], strides: Sequence[int]
) -> Pads:
    """The padding before and after both spatial dimensions, as integers.

    Raises:
      ValueError: if the padding is invalid, or the window is larger than the padded image.
    """
    if isinstance(padding, str):
        check_choice("padding", padding.upper(), ("SAME", "VALID"))
        pads = lax.padtype_to_pads(sizes, windows, strides, padding)
    else:
        pads = padding
    try:
        (top, bottom), (left, right) = ((operator.index(a), operator.index(b)) for a, b in pads)
    except (TypeError, ValueError):
        raise ValueError(
            'padding must be "SAME", "VALID" or ((above, below), (left, right)), but is '
            f"{padding!r}."
        ) from None
    if sizes[0] + top + bottom < windows[0] or sizes[1] + left + right < windows[1]:
        raise ValueError(
            f"A window of {list(windows)} pixels does not fit into images of {list(sizes)} with "
            f"the padding {padding!r}."
        )
    return (top, bottom), (left, right)
