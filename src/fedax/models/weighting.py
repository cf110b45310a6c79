"""Weights of classes, examples and single labels or targets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fedax.algorithm import Array, Batch
from fedax.mistakes.errors import ModelError, kind_of
from fedax.mistakes.model import array_of
from fedax.validate import quoted


def balanced_class_weights(counts: Any) -> np.ndarray:
    r"""Class weights with which every class counts the same: :math:`a_c = n / (C n_c)`.

    Same as scikit-learn's `class_weight="balanced"`, but from counts, which can be summed over
    clients.

    Args:
      counts: n_c, number of examples of each class, [C], such as `np.bincount(data.arrays["y"])` of
        the training data; for several labels [2, L], the number of examples without each label
        (first row) and with it.

    Returns:
      Weights with the shape of the counts, float64, for `class_weights` of `fedax.classification`.

    Raises:
      ValueError: if the counts are not integers >= 1.

    Example:
      >>> balanced_class_weights([90, 10]).round(4).tolist()
      [0.5556, 5.0]
    """
    found = np.asarray(counts)
    if found.dtype.kind not in "iu" or found.ndim not in (1, 2) or not len(found):
        raise ValueError(
            f"counts must be whole numbers, one per class, but are {quoted(counts)}. "
            'Count labels with np.bincount(data.arrays["y"]).'
        )
    if found.min(initial=1) < 1:
        place = np.unravel_index(found.argmin(), found.shape)[0]
        raise ValueError(
            f"Each class needs at least one example, but the count of class {place} is "
            f"{found.min()}. Give counts, not labels: np.bincount(labels)."
        )
    return found.sum(0) / (len(found) * found)


def checked_class_weights(given: Any) -> Any:
    """The class weights as an array, which may be traced, or None if there are none.

    Raises:
      TypeError, ValueError: if they have the wrong type, are negative or not finite.
    """
    if given is None:
        return None
    if any(isinstance(part, Tracer) for part in jax.tree.leaves(given)):
        return jnp.asarray(given, float)
    if isinstance(given, str):
        raise ValueError(
            f"class_weights must be an array, one weight per class, but is {quoted(given)}. For "
            "balanced "
            'weights use fedax.models.balanced_class_weights(np.bincount(data.arrays["y"])).'
        )
    if isinstance(given, Mapping):
        raise TypeError(
            "class_weights must be an array, one weight per class, but is a dictionary. Give its "
            "values in the order of the classes: [weight of class 0, weight of class 1, ...]."
        )
    try:
        found = np.asarray(given, float)
    except (TypeError, ValueError):
        raise TypeError(
            f"class_weights must be an array, one weight per class, but is {kind_of(given)}."
        ) from None
    if found.ndim not in (1, 2) or not (np.isfinite(found) & (found >= 0)).all() or not found.any():
        raise ValueError(
            f"class_weights must be finite numbers >= 0, one per class, but are "
            f"{quoted(given)}."
        )
    return found


def require_class_weights(found: Any, *fitting: tuple[int, ...]) -> None:
    """Raise a clear error unless the class weights have one of the shapes that fit the model."""
    if found.shape not in fitting:
        wanted = " or ".join(str(list(shape)) for shape in fitting)
        raise ModelError(
            f"class_weights must have the shape {wanted} for this model's outputs, one weight per "
            f"class, but have {list(found.shape)}."
        )


def weights_of(batch: Batch, name: str | None, argument: str, like: Array) -> Array | None:
    """The batch's weights, with missing axes of `like` as size 1; None if there are none.

    Args:
      batch: the examples.
      name: name of their array, [B] or with the shape of `like`; None: no array.
      argument: its name in the model's factory.
      like: labels or targets [B, ...].
    """
    if name is None:
        return None
    found = array_of(batch, name, argument)
    if found.shape == like.shape:
        return found
    if found.shape != like.shape[:1]:
        raise ModelError(
            f"The {argument} {name!r} must have the shape {list(like.shape[:1])}, or "
            f"{list(like.shape)} like the values they weigh, but have {list(found.shape)}."
        )
    return found.reshape(found.shape + (1,) * (like.ndim - 1))


def mean_of_cells(values: Array, weights: Array) -> tuple[Array, Array]:
    r"""Means over all axes but the first, and their weights.

    With D values for each example, :math:`\sum_k w_k v_k / \sum_k w_k` and :math:`\sum_k w_k / D`,
    so the mean over examples is the mean over all values together. A value with weight 0 may be
    anything.
    """
    weights = jnp.broadcast_to(weights, values.shape)
    values = jnp.where(weights == 0, 0, values)
    values, weights = (part.reshape(len(part), -1) for part in (values, weights))
    total = weights.sum(1)
    return (values * weights).sum(1) / jnp.where(total == 0, 1, total), weights.mean(1)


def check_weights(argument: str, name: str | None, arrays: Mapping[str, Any]) -> np.ndarray | None:
    """The weights of some examples as a NumPy array; None if there are none.

    Raises:
      ModelError: if a weight is negative or not finite.
    """
    if name is None or name not in arrays:
        return None
    found = np.asarray(arrays[name])
    if found.dtype.kind not in "biuf":
        raise ModelError(f"The {argument} {name!r} must be numbers, but are {found.dtype}.")
    wrong = ~np.isfinite(found) | (found < 0)
    if wrong.any():
        raise ModelError(
            f"The {argument} {name!r} must be finite numbers >= 0, but one is "
            f"{found[wrong][0]:g}. Give weight 0 to what should not count."
        )
    return found
