"""Losses and accuracy of a classification: one of C classes, or yes and no."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedax.algorithm import Array, Batch
from fedax.mistakes.errors import ModelError
from fedax.mistakes.model import array_of, check_range
from fedax.models.weighting import (
    check_weights,
    mean_of_cells,
    require_class_weights,
    weights_of,
)

_WEIGHTS = "example_weights"


class Softmax(NamedTuple):
    """One of C classes, by C logits.

    Attributes:
      labels: the name of their array.
      class_weights: [C], or None.
      example_weights: the name of their array, or None.
      smoothing: label smoothing.
    """

    labels: str
    class_weights: Any
    example_weights: str | None
    smoothing: float

    def loss(self, logits: Array, batch: Batch) -> tuple[Array, Array]:
        """Losses [B] and their weights [B]."""
        found = self._labels_of(logits, batch)
        # The loss of a label beyond the classes is NaN; a negative one would count from their end.
        found = found.astype(int)
        found = jnp.where(found < 0, logits.shape[1], found)
        values = optax.softmax_cross_entropy_with_integer_labels(logits, found)
        if self.smoothing:
            uniform = optax.softmax_cross_entropy(logits, jnp.full_like(logits, 1 / len(logits[0])))
            values = (1 - self.smoothing) * values + self.smoothing * uniform
        weights = self._weights_of(found, batch, values)
        if self.class_weights is not None:
            require_class_weights(self.class_weights, (logits.shape[1],))
            of_classes = jnp.asarray(self.class_weights).astype(values.dtype)
            # Not of_classes[found]: a mesh of several devices refuses to index a constant.
            classes = jax.nn.one_hot(found, len(of_classes), dtype=values.dtype)
            weights = weights * (classes @ of_classes)
        return self._counted(values, weights), weights

    def accuracy(self, logits: Array, batch: Batch) -> tuple[Array, Array]:
        """Whether the largest logit is the label's [B], and the examples' weights [B]."""
        found = self._labels_of(logits, batch)
        hits = (logits.argmax(-1).astype(int) == found.astype(int)).astype(logits.dtype)
        return hits, self._weights_of(found, batch, hits)

    def check(self, shape: tuple[int, ...], arrays: Mapping[str, Any]) -> None:
        """Raise a clear error unless the labels that count and the weights are in range.

        Args:
          shape: of logits.
          arrays: of some examples.
        """
        weights, found = check_weights(_WEIGHTS, self.example_weights, arrays), arrays[self.labels]
        if weights is not None:
            found = np.asarray(found)[weights > 0]
        if len(found):
            check_range(f"The labels {self.labels!r}", found, shape[1], "classes")

    def _labels_of(self, logits: Array, batch: Batch) -> Array:
        found = array_of(batch, self.labels, "labels")
        _check_shapes(logits, found, self.labels)
        return found

    def _weights_of(self, found: Array, batch: Batch, values: Array) -> Array:
        given = weights_of(batch, self.example_weights, _WEIGHTS, found)
        return jnp.ones_like(values) if given is None else given.astype(values.dtype)

    def _counted(self, values: Array, weights: Array) -> Array:
        """The values, with 0 for an example with weight 0, whose label may be anything."""
        return values if self.example_weights is None else jnp.where(weights == 0, 0, values)


class Sigmoid(NamedTuple):
    """Yes or no for each logit; see `Softmax`."""

    labels: str
    class_weights: Any
    example_weights: str | None
    smoothing: float

    def loss(self, logits: Array, batch: Batch) -> tuple[Array, Array]:
        """Losses [B] and their weights [B]."""
        logits, found = self._fitting(logits, batch)
        smooth = (1 - self.smoothing) * found.astype(logits.dtype) + self.smoothing / 2
        values = optax.sigmoid_binary_cross_entropy(logits, smooth)
        weights = self._weights_of(found, batch, values)
        if self.class_weights is not None:
            require_class_weights(self.class_weights, (2,), (2, *found.shape[1:]))
            no, yes = jnp.asarray(self.class_weights).astype(values.dtype)
            shape = (1, *no.shape) if no.ndim else (1,) * values.ndim
            weights = weights * jnp.where(found > 0, yes.reshape(shape), no.reshape(shape))
        return mean_of_cells(values, weights)

    def accuracy(self, logits: Array, batch: Batch) -> tuple[Array, Array]:
        """The share of an example's labels that are right [B], and the examples' weights [B]."""
        logits, found = self._fitting(logits, batch)
        hits = ((logits > 0) == (found > 0)).astype(logits.dtype)
        return mean_of_cells(hits, self._weights_of(found, batch, hits))

    def check(self, shape: tuple[int, ...], arrays: Mapping[str, Any]) -> None:
        """Raise a clear error unless the labels that count are 0 or 1 and the weights in range."""
        del shape
        weights, found = check_weights(_WEIGHTS, self.example_weights, arrays), arrays[self.labels]
        found = np.asarray(found)
        if weights is not None:
            if weights.ndim < found.ndim:
                weights = weights.reshape(weights.shape + (1,) * (found.ndim - weights.ndim))
            found = found[np.broadcast_to(weights > 0, found.shape)]
        wrong = (found != 0) & (found != 1)
        if wrong.any():
            raise ModelError(
                f"The labels {self.labels!r} must be 0 or 1 for a sigmoid, but one is "
                f"{found[wrong][0]:g}. Give unknown labels weight 0 in example_weights, "
                "or leave out activation= for more than two classes."
            )

    def _fitting(self, logits: Array, batch: Batch) -> tuple[Array, Array]:
        """Logits and labels of one shape."""
        found = array_of(batch, self.labels, "labels")
        if found.ndim == 1 and logits.shape == (*found.shape, 1):
            logits = logits[:, 0]
        if logits.shape != found.shape or found.ndim not in (1, 2):
            cure = (
                f" Drop the labels' last axis: {self.labels}[:, 0]."
                if found.shape == (*logits.shape, 1)
                else ' For one label out of several classes use activation="softmax".'
                if found.ndim == 1 and logits.ndim == 2 else " Give a logit for each label."
            )
            raise ModelError(
                f"With a sigmoid, logits and the labels {self.labels!r} must both be [B] or "
                f"[B, L], but are {list(logits.shape)} and {list(found.shape)}.{cure}"
            )
        return logits, found

    def _weights_of(self, found: Array, batch: Batch, values: Array) -> Array:
        given = weights_of(batch, self.example_weights, _WEIGHTS, found)
        return jnp.ones_like(values) if given is None else given.astype(values.dtype)


def _check_shapes(logits: Array, found: Array, labels: str) -> None:
    """Raises a clear error unless logits are [B, C] and labels integers [B]."""
    if logits.ndim != 2 or logits.shape[:1] != found.shape:
        cure = (
            ' Logits have one column per class; for one logit use activation="sigmoid".'
            if logits.ndim != 2
            else f" If they are one-hot, use {labels}.argmax(1); if several may be 1 at once, use "
            'activation="sigmoid".' if found.shape == logits.shape
            else f" Drop the labels' last axis: {labels}[:, 0]."
            if found.shape == (len(logits), 1) else " An example has one label."
        )
        raise ModelError(
            f"Logits must have the shape [B, C] and the labels {labels!r} the shape [B], but they "
            f"are {list(logits.shape)} and {list(found.shape)}.{cure}"
        )
    if logits.shape[1] == 1:
        raise ModelError(
            f"A softmax over one logit is always 1. For two classes {labels!r} "
            'give fedax.classification activation="sigmoid", or return two logits.'
        )
    if not jnp.issubdtype(found.dtype, jnp.integer):
        raise ModelError(
            f"The labels {labels!r} must be whole numbers, from 0 to {logits.shape[1] - 1}, but "
            f"are {found.dtype}. Convert them with {labels}.astype(np.int32)."
        )
