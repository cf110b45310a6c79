"""Shared by the networks for images: the inputs' shape and a layer's activation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax

from fedax.algorithm import Array, Params
from fedax.mistakes.errors import ModelError
from fedax.validate import check_count


def check_image_shape(image_shape: Sequence[int], smallest: int = 1) -> tuple[int, int, int]:
    """The shape [H, W, C] of an image, H and W at least `smallest`.

    Raises:
      ValueError: if it is not such a shape.
    """
    shape = tuple(image_shape)
    if len(shape) != 3:
        raise ValueError(f"image_shape must be [H, W, C], but is {image_shape!r}.")
    least = (smallest, smallest, 1)
    for name, size, at_least in zip(("height", "width", "channels"), shape, least, strict=True):
        check_count(f"The images' {name}", size, at_least=at_least)
    return shape


def as_images(x: Array, shape: tuple[int, int, int], like: Array) -> Array:
    """The inputs [B, ...] as images [B, H, W, C] of the dtype of `like`.

    Raises:
      ModelError: if the inputs have a different size.
    """
    if math.prod(x.shape[1:]) != math.prod(shape):
        raise ModelError(
            f"The network takes images of the shape {list(shape)}, but the inputs have the "
            f"shape {list(x.shape)}."
        )
    return x.reshape(-1, *shape).astype(like.dtype)


def rectified(hidden: Array, layer: Params) -> Array:
    """max(0, hidden + b)."""
    return jax.nn.relu(hidden + layer["b"].reshape((1,) * (hidden.ndim - 1) + (-1,)))
