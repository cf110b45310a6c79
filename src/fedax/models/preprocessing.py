"""Preprocessing of images: augmentation in training, and fixed steps.

It runs on the device, so data sets stay as they are stored. Random steps draw from the key of the
loss, which depends on seed, round, client and local step, but not on chunks, devices or the order
of the cohort. A method that takes two gradients of one step with one key, as Mime does, sees the
same crops in both.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.dtypes import canonicalize_dtype

from fedax.algorithm import Array, Batch, Metric, Model, Params, PyTree
from fedax.clients.precision import sum_dtype, widen
from fedax.factories import factory
from fedax.mistakes.errors import ModelError
from fedax.mistakes.model import array_of, require_model
from fedax.validate import check_count, check_number

# (images [B, H, W, C], floating point, key or None in evaluation) -> images [B, h, w, C].
Step: TypeAlias = Callable[[Array, Array | None], Array]

# What a loss's key is folded with for the images; a model's own draws fold in small numbers.
_TAG = 0x1A6E


@factory
def preprocessed(
    model: Model,
    *,
    training: Sequence[Step] = (),
    evaluation: Sequence[Step] = (),
    images: str = "x",
) -> Model:
    """A model that preprocesses its images with some steps first.

    Integers are converted to the parameters' dtype, or to float32 if that is narrower. Then the
    steps are applied in order: `training` for the loss, `evaluation` for the outputs and the
    metrics. The result is converted to the parameters' dtype.

    Args:
      model: a model for batches with an array of images [B, H, W, C].
      training: `random_crop`, `random_flip` and the steps below, or your own functions. A step is
        `(images, key) -> images`, with a different key at every local step.
      evaluation: `central_crop`, `scaled`, `inverted`, `standardised`, `standardised_each`; here a
        step gets None as the key.
      images: name of the array.

    Returns:
      A model with the parameters and metrics of the given one.

    Raises:
      TypeError: if the model is not a `fedax.Model`, or a step is not a function.
      ModelError: when used, if the array is missing, or a step fails.

    Example:
      >>> from fedax.models import image_cnn
      >>> model = image_cnn((24, 24, 3), 10)
      >>> model = preprocessed(
      ...     model,
      ...     training=[random_crop(24), random_flip(), standardised_each()],
      ...     evaluation=[central_crop(24), standardised_each()],
      ... )
      >>> batch = {"x": np.zeros((5, 32, 32, 3), np.uint8), "y": np.zeros(5, np.int32)}
      >>> model.outputs(model.init(jax.random.key(0)), batch).shape
      (5, 10)
    """
    require_model(model)
    for name, steps in (("training", training), ("evaluation", evaluation)):
        if not (isinstance(steps, Sequence) and all(callable(step) for step in steps)):
            raise TypeError(
                f"{name} must be a list of steps, such as [fedax.models.scaled(255)], but is "
                f"{steps!r}."
            )

    def through(steps: Sequence[Step], like: PyTree, batch: Batch, key: Array | None) -> Batch:
        """The batch with its images after the steps, in the type of the first array of `like`."""
        found = array_of(batch, images, "images")
        if found.ndim != 4:
            raise ModelError(
                f"The images {images!r} must have the shape [B, height, width, channels], but have "
                f"{list(found.shape)}."
            )
        leaf = jax.tree.leaves(like)[0]
        found = found.astype(sum_dtype(leaf))
        for number, step in enumerate(steps):
            found = step(found, None if key is None else jax.random.fold_in(key, number))
        return {**batch, images: found.astype(leaf.dtype)}

    @functools.wraps(model.loss)
    def loss(params: Params, batch: Batch, key: Array, **mask: Array) -> tuple[Array, Array]:
        drawn = jax.random.fold_in(key, _TAG)
        return model.loss(params, through(training, params, batch, drawn), key, **mask)

    @functools.wraps(model.outputs)
    def outputs(params: Params, batch: Batch, **mask: Array) -> PyTree:
        return model.outputs(params, through(evaluation, params, batch, None), **mask)

    def behind(metric: Metric) -> Metric:
        @functools.wraps(metric)
        def seen(found: PyTree, batch: Batch, **mask: Array) -> tuple[Array, Array]:
            return metric(found, through(evaluation, found, batch, None), **mask)

        return seen

    def check(params: Params, arrays: Mapping[str, Any]) -> None:
        if model.check is None or images not in arrays:  # the loss is traced too, and says so there
            return
        stored = arrays[images]
        one = jax.ShapeDtypeStruct((1, *stored.shape[1:]), canonicalize_dtype(stored.dtype))
        try:
            seen = jax.eval_shape(
                lambda params, x: through(evaluation, params, {images: x}, None), params, one
            )[images]
        except ModelError:
            return
        shown = jax.ShapeDtypeStruct((len(stored), *seen.shape[1:]), seen.dtype)
        model.check(params, {**arrays, images: shown})

    metrics = {name: behind(of) for name, of in model.metrics.items()}
    return model._replace(loss=loss, outputs=outputs, metrics=metrics, check=check)


@factory
def random_crop(size: int | Sequence[int], padding: int = 0) -> Step:
    """A random crop of each image; all positions are equally likely.

    Usual for CIFAR (32x32) are `random_crop(24)` and `random_crop(32, padding=4)`.

    Args:
      size: height and width of the crop, or one number for both.
      padding: >= 0, number of zeros added on each side of the image first.

    Raises:
      ValueError: if a number is out of range.
      ModelError: when used, if the crop is larger than the images.

    Example:
      >>> images = jnp.arange(9.0).reshape(1, 3, 3, 1)
      >>> random_crop(2)(images, jax.random.key(0))[0, :, :, 0].tolist()
      [[3.0, 4.0], [6.0, 7.0]]
    """
    height, width = _size(size)
    check_count("padding", padding, at_least=0)

    def step(images: Array, key: Array | None) -> Array:
        key = _drawing("random_crop", key)
        around = ((0, 0), (padding, padding), (padding, padding), (0, 0))
        images = jnp.pad(images, around)
        ranges = _room(images, height, width)
        top, left = (
            jax.random.randint(k, images.shape[:1], 0, n + 1, jnp.int32)
            for k, n in zip(jax.random.split(key), ranges, strict=True)
        )

        def part(image: Array, top: Array, left: Array) -> Array:
            start = top, left, jnp.zeros_like(top)
            return jax.lax.dynamic_slice(image, start, (height, width, image.shape[2]))

        return jax.vmap(part)(images, top, left)

    return step


@factory
def central_crop(size: int | Sequence[int]) -> Step:
    """The centre of each image; if it cannot be exact, half a pixel up and to the left.

    Arguments and errors as for `random_crop`.
    """
    height, width = _size(size)

    def step(images: Array, key: Array | None) -> Array:
        del key
        down, right = (room // 2 for room in _room(images, height, width))
        return images[:, down : down + height, right : right + width]

    return step


@factory
def random_flip() -> Step:
    """Mirrors each image, left to right, with probability 1/2."""

    def step(images: Array, key: Array | None) -> Array:
        mirrored = jax.random.bernoulli(_drawing("random_flip", key), 0.5, images.shape[:1])
        return jnp.where(mirrored[:, None, None, None], images[:, :, ::-1], images)

    return step


@factory
def scaled(divisor: float | Array = 255.0) -> Step:
    """Divides: stored pixels from 0 to 255 become numbers from 0 to 1."""
    check_number("divisor", divisor, above=0)

    def step(images: Array, key: Array | None) -> Array:
        del key
        return images / jnp.asarray(divisor, images.dtype)

    return step


@factory
def inverted() -> Step:
    """1 - x, for images from 0 to 1; use it after `scaled`.

    Federated EMNIST, as TensorFlow Federated publishes it, is dark on light; papers invert it.
    """
    return lambda images, key: 1 - images  # noqa: ARG005


@factory
def framed(width: int, value: float | Array = 0.0) -> Step:
    """A frame of one value around each image, `width` pixels wide.

    Args:
      width: of the frame on each side, at least 1; images of 28 x 28 become 32 x 32 with 2.
      value: of the frame, in the scale of the images at this step.

    Raises:
      ValueError: if the width is less than 1.

    Example:
      >>> framed(1, 0.5)(jnp.ones((1, 1, 1, 1)), None)[0, :, :, 0].tolist()
      [[0.5, 0.5, 0.5], [0.5, 1.0, 0.5], [0.5, 0.5, 0.5]]
    """
    check_count("width", width)
    sides = ((0, 0), (width, width), (width, width), (0, 0))

    def step(images: Array, key: Array | None) -> Array:
        del key
        return jnp.pad(images, sides, constant_values=jnp.asarray(value, images.dtype))

    return step


@factory
def standardised(mean: Sequence[float] | Array, std: Sequence[float] | Array) -> Step:
    """(x - mean) / std, by channel, with the data set's mean and standard deviation.

    Args:
      mean, std: one number per channel, in the scale of the images at this step; std > 0.

    Raises:
      ValueError: if a number is out of range.
      ModelError: when used, if the images have a different number of channels.

    Example:
      >>> standardised([0.5], [0.25])(jnp.ones((1, 1, 1, 1)), None).item()
      2.0
    """
    for name, values in (("mean", mean), ("standard deviation", std)):
        if not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(values)):
            for value in np.ravel(np.asarray(values)).tolist():
                check_number(f"A {name}", value, above=0 if values is std else None)

    def step(images: Array, key: Array | None) -> Array:
        del key
        shift, spread = (jnp.asarray(value, images.dtype).reshape(-1) for value in (mean, std))
        if not shift.shape == spread.shape == images.shape[3:]:
            raise ModelError(
                f"standardised got {shift.size} means and {spread.size} standard deviations, but "
                f"the images have {images.shape[3]} channels; give one of each per channel."
            )
        return (images - shift[None, None, None]) / spread[None, None, None]

    return step


@factory
def standardised_each() -> Step:
    r"""Each image with mean 0 and standard deviation 1, as `tf.image.per_image_standardization`.

    .. math:: (x - \bar x) / \max(\sigma, 1 / \sqrt n)

    with mean and deviation over all n numbers of the image, so an image of one colour becomes 0
    without a division by 0.

    Example:
      >>> images = jnp.array([0.0, 2.0, 2.0, 0.0]).reshape(1, 2, 2, 1)
      >>> standardised_each()(images, None).ravel().tolist()
      [-1.0, 1.0, 1.0, -1.0]
    """

    def step(images: Array, key: Array | None) -> Array:
        del key
        wide = widen(images)
        gap = wide - wide.mean((1, 2, 3), keepdims=True)
        deviation = jnp.sqrt((gap * gap).mean((1, 2, 3), keepdims=True))
        least = 1 / math.sqrt(math.prod(images.shape[1:]))
        return (gap / jnp.maximum(deviation, least)).astype(images.dtype)

    return step


def _size(size: int | Sequence[int]) -> tuple[int, int]:
    """Height and width."""
    pair = tuple(size) if isinstance(size, Sequence) else (size, size)
    if len(pair) != 2:
        raise ValueError(f"A crop's size must be one number or height and width, not {size!r}.")
    for name, value in zip(("height", "width"), pair, strict=True):
        check_count(f"A crop's {name}", value)
    return pair


def _room(images: Array, height: int, width: int) -> tuple[int, int]:
    """How much larger the images are, down and to the right."""
    room = images.shape[1] - height, images.shape[2] - width
    if min(room) < 0:
        raise ModelError(
            f"A crop of {height}x{width} pixels does not fit into images of "
            f"{images.shape[1]}x{images.shape[2]}; make it smaller, or give random_crop a padding."
        )
    return room


def _drawing(name: str, key: Array | None) -> Array:
    """The key, of which there is none in evaluation."""
    if key is None:
        raise ModelError(
            f"{name} is random, so it cannot be used in evaluation; use central_crop there, or "
            "nothing."
        )
    return key

