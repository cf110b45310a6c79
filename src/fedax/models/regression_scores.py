"""Scores of a regression: mean absolute error, root mean square error and R squared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fedax.algorithm import PyTree
from fedax.mistakes.errors import ModelError
from fedax.models.scoring import Folded, Function
from fedax.validate import check_number


def mae(scale: float = 1.0) -> Folded:
    r"""The mean absolute error, :math:`\text{scale} \cdot \frac1w \sum_i w_i |p_i - y_i|`.

    Args:
      scale: > 0; the deviation by which the labels were divided gives the error in their own unit.
    """
    return _mean_of(np.abs, scale, lambda mean: mean)


def rmse(scale: float = 1.0) -> Folded:
    r"""The root mean square error, :math:`\text{scale} \sqrt{\frac1w \sum_i w_i (p_i - y_i)^2}`.

    Args:
      scale: > 0; the deviation by which the labels were divided gives the error in their own unit.

    Example:
      >>> float(rmse()(np.array([1.0, 4.0]), np.array([1.0, 2.0]), np.ones(2)) ** 2)
      2.0000000000000004
    """
    return _mean_of(np.square, scale, np.sqrt)


def r2() -> Function:
    r"""The share of the variance that is explained.

    .. math:: 1 - \frac{\sum_i w_i (p_i - y_i)^2}{\sum_i w_i (y_i - \bar y)^2}

    NaN where all labels are equal. Needs all outputs at once, like `fedax.scores.auc`.
    """

    def value(outputs: PyTree, labels: Any, weights: Any) -> float:
        error, truth = _errors(outputs, labels)
        weights = np.asarray(weights, np.float64)
        if not weights.sum() > 0:
            return np.nan
        spread = weights @ np.square(truth - np.average(truth, weights=weights))
        return float(1 - weights @ np.square(error) / spread) if spread > 0 else np.nan

    return value


def _mean_of(
    of_error: Callable[[np.ndarray], np.ndarray], scale: float, of_mean: Callable[[Any], Any]
) -> Folded:
    check_number("scale", scale, above=0)

    def statistics(outputs: PyTree, labels: Any, weights: Any) -> np.ndarray:
        error, _ = _errors(outputs, labels)
        weights = np.asarray(weights, np.float64)
        return np.array([weights @ of_error(error), weights.sum()])

    def value(sums: np.ndarray) -> float:
        return float(scale * of_mean(sums[0] / sums[1])) if sums[1] > 0 else np.nan

    return Folded(statistics, value)


def _errors(outputs: PyTree, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    """Predictions less labels, and the labels, float64 [n]."""
    guess, truth = np.asarray(outputs, np.float64), np.asarray(labels, np.float64)
    if guess.ndim == truth.ndim + 1 and guess.shape[-1] == 1:
        guess = guess[..., 0]
    if guess.shape != truth.shape or truth.ndim != 1:
        raise ModelError(
            "A score of a regression needs one prediction and one label for each example, but the "
            f"outputs have the shape {list(guess.shape)} and the labels {list(truth.shape)}."
        )
    return guess - truth, truth
