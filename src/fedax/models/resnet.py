"""Residual networks with group normalisation: ResNet-18 and ResNet-20."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from fedax.algorithm import Array, Model, Params
from fedax.factories import factory
from fedax.models.convolution import Implementation, convolution, is_fast
from fedax.models.group_norm import check_groups, group_norm
from fedax.models.images import as_images, check_image_shape
from fedax.models.pooling import max_pool
from fedax.models.supervised import classification
from fedax.validate import check_count


@factory
def resnet18(
    image_shape: Sequence[int] = (24, 24, 3),
    num_classes: int = 100,
    *,
    num_groups: int = 2,
    stage_strides: Sequence[int] = (1, 2, 2, 2),
    implementation: Implementation = "auto",
) -> Model:
    """ResNet-18 with group normalisation, for CIFAR (Reddi et al. 2021 and others).

    The pre-activation form (He et al. 2016, "v2"): 7x7 kernels with stride 2 and 64 filters, 3x3
    maximum pooling with stride 2, four stages of two blocks with 64, 128, 256 and 512 filters, the
    mean over pixels, and a dense layer; see `residual_network` for a block and the initial values.
    11,227,812 parameters with 100 classes, 11,181,642 with 10.

    Karimireddy et al. 2020 uses two groups, once the default of TensorFlow Addons, which the code
    released with Reddi et al. 2021 uses. In that code every stage has stride 1 (`stage_strides=(1,
    1, 1, 1)`), so images of 24 x 24 pixels stay 6 x 6 to the end. The default here is the network
    that the papers name.

    Args:
      image_shape: [H, W, C]; Charles and Konečný 2020, Karimireddy et al. 2020 and Reddi et al.
        2021 crop CIFAR's images to 24 x 24.
      num_classes: number of classes, >= 2.
      num_groups: groups of the normalisation, a divisor of the numbers of filters.
      stage_strides: stride of the first block of each stage.
      implementation: as for `fedax.models.convolution`.

    Returns:
      A model for batches `{'x': [B, H, W, C], 'y': [B]}`, as for `fedax.models.image_cnn`.

    Raises:
      ValueError: if a size is out of range; when used, if the inputs have the wrong shape.

    Example:
      >>> params = jax.eval_shape(resnet18().init, jax.random.key(0))
      >>> sum(leaf.size for leaf in jax.tree.leaves(params))
      11227812
    """
    return residual_network(
        image_shape, num_classes, num_filters=(64, 128, 256, 512), num_blocks=(2, 2, 2, 2),
        stage_strides=stage_strides, stem_size=7, stem_stride=2, num_groups=num_groups,
        implementation=implementation,
    )


@factory
def resnet20(
    image_shape: Sequence[int] = (32, 32, 3),
    num_classes: int = 100,
    *,
    num_groups: int = 2,
    implementation: Implementation = "auto",
) -> Model:
    """ResNet-20 with group normalisation, for CIFAR (Karimireddy et al. 2020 in places).

    The depth and widths of He et al. 2015 (section 4.2), in the pre-activation form: 3x3 kernels
    with 16 filters, three stages of three blocks with 16, 32 and 64 filters, the second and the
    third with stride 2, the mean over pixels, and a dense layer. 278,324 parameters with 100
    classes, 272,474 with 10.

    Args:
      image_shape: [H, W, C].
      num_classes: number of classes, >= 2.
      num_groups: groups of the normalisation, a divisor of 16.
      implementation: as for `fedax.models.convolution`.

    Returns:
      A model for batches `{'x': [B, H, W, C], 'y': [B]}`, as for `fedax.models.image_cnn`.

    Raises:
      ValueError: if a size is out of range; when used, if the inputs have the wrong shape.

    Example:
      >>> params = jax.eval_shape(resnet20().init, jax.random.key(0))
      >>> sum(leaf.size for leaf in jax.tree.leaves(params))
      278324
    """
    return residual_network(
        image_shape, num_classes, num_filters=(16, 32, 64), num_blocks=(3, 3, 3),
        stage_strides=(1, 2, 2), stem_size=3, stem_stride=1, num_groups=num_groups,
        implementation=implementation,
    )


@factory
def residual_network(
    image_shape: Sequence[int],
    num_classes: int,
    *,
    num_filters: Sequence[int],
    num_blocks: Sequence[int],
    stage_strides: Sequence[int],
    stem_size: int,
    stem_stride: int,
    num_groups: int = 2,
    implementation: Implementation = "auto",
) -> Model:
    r"""A residual network of basic blocks in the pre-activation form.

    With :math:`a(x) = \max(0, \operatorname{norm}(x))` and 3x3 convolutions V, W without bias, a
    block is

    .. math:: x \mapsto s(x) + a(a(x) * V) * W

    where s(x) = x, or, if the block changes the shape, norm(x * S) with 1x1 kernels. The very first
    block uses x in place of a(x), as the stem ends with a(x). This follows the code released with
    Reddi et al. 2021, as do the initial values: kernels are truncated normal with variance 2 / n
    for n inputs per output (He); the dense layer is normal with standard deviation 0.01; scales are
    1, offsets and bias 0. The code's weight decay, which the paper does not mention, is left out.

    Args:
      image_shape: [H, W, C].
      num_classes: number of classes, >= 2.
      num_filters, num_blocks, stage_strides: one number for each stage.
      stem_size: height and width of the first kernels.
      stem_stride: stride of the first convolution; if it is not 1, 3x3 maximum pooling of the same
        stride follows.
      num_groups: groups of the normalisation.
      implementation: as for `fedax.models.convolution`.

    Raises:
      ValueError: if a size is out of range, or the three sequences differ in length.
    """
    shape = check_image_shape(image_shape)
    check_count("num_classes", num_classes, at_least=2)
    stages = [tuple(num_filters), tuple(num_blocks), tuple(stage_strides)]
    if len({len(stage) for stage in stages}) != 1:
        raise ValueError(
            "num_filters, num_blocks and stage_strides must have one number for each stage, but "
            f"are {stages[0]}, {stages[1]} and {stages[2]}."
        )
    for name, numbers in zip(("num_filters", "num_blocks", "stage_strides"), stages, strict=True):
        for number in numbers:
            check_count(name, number)
    for filters in num_filters:
        check_groups(num_groups, filters)
    is_fast(implementation)
    convolve = partial(convolution, implementation=implementation)
    # Of every block: how many channels go in and come out, and its stride.
    blocks: list[tuple[int, int, int]] = []
    before = num_filters[0]
    for filters, count, stride in zip(*stages, strict=True):
        for place in range(count):
            blocks.append((before, filters, stride if place == 0 else 1))
            before = filters

    def init(key: Array) -> Params:
        stem_key, dense_key, *keys = jax.random.split(key, 2 + len(blocks))
        dense = 0.01 * jax.random.normal(dense_key, (before, num_classes), jnp.float32)
        return {
            "stem": {
                "w": _he(stem_key, (stem_size, stem_size, shape[2], num_filters[0])),
                "norm": _init_norm(num_filters[0]),
            },
            "blocks": tuple(
                _init_block(block_key, *block, is_first=place == 0)
                for place, (block_key, block) in enumerate(zip(keys, blocks, strict=True))
            ),
            "norm": _init_norm(before),
            "dense": {"w": dense, "b": jnp.zeros(num_classes, jnp.float32)},
        }

    def norm(x: Array, parameters: Mapping[str, Array]) -> Array:
        return group_norm(x, parameters["scale"], parameters["offset"], num_groups)

    def activated(x: Array, parameters: Mapping[str, Array]) -> Array:
        return jax.nn.relu(norm(x, parameters))

    def block(x: Array, layer: Mapping[str, Any], stride: int) -> Array:
        # The first block of all has no norm of its own.
        hidden = activated(x, layer["norm_1"]) if "norm_1" in layer else x
        hidden = activated(convolve(hidden, layer["conv_1"], (stride, stride)), layer["norm_2"])
        if "shortcut" in layer:
            x = norm(convolve(x, layer["shortcut"], (stride, stride)), layer["shortcut_norm"])
        return x + convolve(hidden, layer["conv_2"])

    def logits(params: Params, x: Array) -> Array:
        images = as_images(x, shape, params["stem"]["w"])
        strides = (stem_stride, stem_stride)
        hidden = convolve(images, params["stem"]["w"], strides)
        hidden = activated(hidden, params["stem"]["norm"])
        if stem_stride != 1:
            hidden = max_pool(hidden, (3, 3), strides, "SAME")
        for (_, _, stride), layer in zip(blocks, params["blocks"], strict=True):
            hidden = block(hidden, layer, stride)
        means = activated(hidden, params["norm"]).mean((1, 2))
        return means @ params["dense"]["w"] + params["dense"]["b"][None]

    return classification(init, logits)


def _he(key: Array, shape: tuple[int, ...]) -> Array:
    return jax.nn.initializers.he_normal()(key, shape, jnp.float32)


def _init_norm(num_channels: int) -> dict[str, Array]:
    return {
        "scale": jnp.ones(num_channels, jnp.float32), "offset": jnp.zeros(num_channels, jnp.float32)
    }


def _init_block(key: Array, before: int, filters: int, stride: int, *, is_first: bool) -> Params:
    first, second, shortcut = jax.random.split(key, 3)
    layer: dict[str, Any] = {
        "conv_1": _he(first, (3, 3, before, filters)),
        "norm_2": _init_norm(filters),
        "conv_2": _he(second, (3, 3, filters, filters)),
    }
    if not is_first:
        layer["norm_1"] = _init_norm(before)
    if stride != 1 or before != filters:
        layer["shortcut"] = _he(shortcut, (1, 1, before, filters))
        layer["shortcut_norm"] = _init_norm(filters)
    return layer
