"""Initial parameters of a layer, as in the papers' frameworks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

import jax
import jax.numpy as jnp

from fedax.algorithm import Array
from fedax.validate import check_choice

Initialization: TypeAlias = Literal["keras", "pytorch"]


def check_initialization(initialization: str) -> None:
    """Raises a ValueError if the initialisation is unknown."""
    check_choice("initialization", initialization, get_args(Initialization))


def init_layer(
    key: Array, shape: Sequence[int], initialization: Initialization = "keras"
) -> dict[str, Array]:
    r"""Draws a dense or a convolutional layer, in float32.

    With n inputs per output, and m outputs per input:

    * "keras" (`glorot_uniform` and `zeros`): w uniform within :math:`\pm\sqrt{6 / (n + m)}`, b = 0;
    * "pytorch" (`reset_parameters` of `Linear` and `Conv2d`): w and b uniform within
      :math:`\pm 1 / \sqrt n`.

    Args:
      key: a PRNG key.
      shape: shape of w, [in, out] for a dense layer, [k, l, in, out] for a convolution.
      initialization: "keras" or "pytorch".

    Returns:
      `{'w': [...], 'b': [out]}`.

    Example:
      >>> layer = init_layer(jax.random.key(0), (3, 3, 1, 32), "pytorch")
      >>> layer["w"].shape, bool((jnp.abs(layer["b"]) <= 1 / 3).all())
      ((3, 3, 1, 32), True)
    """
    if initialization == "keras":
        kernel = jax.nn.initializers.glorot_uniform()(key, tuple(shape), jnp.float32)
        return {"w": kernel, "b": jnp.zeros(shape[-1], jnp.float32)}
    bound = 1 / math.sqrt(math.prod(shape[:-1]))
    kernel_key, bias_key = jax.random.split(key)
    return {
        "w": jax.random.uniform(kernel_key, tuple(shape), jnp.float32, -bound, bound),
        "b": jax.random.uniform(bias_key, shape[-1:], jnp.float32, -bound, bound),
    }
