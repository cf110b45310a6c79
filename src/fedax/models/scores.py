"""Functions of all outputs, such as AUC and F1, for `scores=` of a model.

Each factory returns a function `(outputs, labels, weights) -> number` of NumPy arrays. Outputs are
logits: [n] or [n, 1] for two classes, [n, C] for C; labels are [n]. If both are [n, C] with C > 1,
an example may have any number of labels. `mae`, `rmse` and `r2` are for a regression: outputs and
labels are numbers. Scores are computed in float64 on the host, batch by batch in bounded memory,
except AUC and R squared, which need all outputs at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import numpy as np

from fedax.algorithm import PyTree, Score
from fedax.mistakes.errors import ModelError
from fedax.models.regression_scores import mae, r2, rmse
from fedax.models.scoring import Folded, Function, Reading, from_sklearn, reading
from fedax.validate import check_choice, check_count

__all__ = [
    "Folded",
    "Score",
    "auc",
    "balanced_accuracy",
    "brier",
    "calibration_error",
    "f1",
    "from_sklearn",
    "log_loss",
    "mae",
    "precision",
    "r2",
    "recall",
    "rmse",
]

Average: TypeAlias = Literal["binary", "macro", "micro", "weighted"]

# The rows of the table that counts classes.
_RIGHT, _LABELLED, _PREDICTED, _KNOWN = range(4)


def auc() -> Function:
    r"""The area under the ROC curve; for more than two classes the mean of one versus rest.

    .. math:: P(s_+ > s_-) + \tfrac12 P(s_+ = s_-)

    where s are the probabilities of a random positive and a random negative example. The mean is
    over the classes (or labels) that have both kinds of examples; if there are none, the value is
    NaN. It needs all outputs at once: they are kept on the host until the evaluation ends, 4 bytes
    per number in float32.

    Example:
      >>> score = auc()
      >>> score(np.array([-1.0, 0.5, 0.5, 2.0]), np.array([0, 0, 1, 1]), np.ones(4))
      0.875
    """

    def area(outputs: PyTree, labels: Any, weights: Any) -> float:
        read, weights = reading(outputs, labels), np.asarray(weights, np.float64)
        if read.has_many_labels:
            parts = [
                _area(column, truth, weights)
                for column, truth in zip(read.logits.T, read.labels.T, strict=True)
            ]
        elif read.num_classes == 2:  # a single logit is as good as its sigmoid, and has fewer ties
            single = read.logits if read.logits.ndim == 1 else read.probabilities
            parts = [_area(single, read.labels, weights)]
        else:
            parts = [
                _area(column, read.labels == one, weights)
                for one, column in enumerate(read.probabilities.T)
            ]
        known = [part for part in parts if not np.isnan(part)]
        return float(np.mean(known)) if known else np.nan

    return area


def f1(average: Average | None = None) -> Folded:
    r"""F1, :math:`2\,\mathrm{TP} / (2\,\mathrm{TP} + \mathrm{FP} + \mathrm{FN})`.

    Args:
      average: "binary": the value for class 1. "macro": the mean over classes that occur as labels
        or predictions. "weighted": the same, weighted by the number of labels. "micro": computed
        from the counts of all classes together. None: "binary" for two classes, else "macro".
    """
    return _of_counts(average, lambda right, labelled, predicted: (2 * right, labelled + predicted))


def precision(average: Average | None = None) -> Folded:
    """TP / (TP + FP), 0 if the class is never predicted; `average` as for `f1`."""
    return _of_counts(average, lambda right, labelled, predicted: (right, predicted))  # noqa: ARG005


def recall(label: int | None = None, *, average: Average | None = None) -> Folded:
    """TP / (TP + FN), of one class or of all.

    For each of ten classes: `{f"recall_{c}": fedax.scores.recall(c) for c in range(10)}`.

    Args:
      label: the class; the value is NaN if no example has it. None: all classes, combined by
        `average`.
      average: see `f1`.

    Raises:
      ModelError: when used, if the model has no such class.
    """
    if label is None:
        return _of_counts(average, lambda right, labelled, predicted: (right, labelled))  # noqa: ARG005
    check_count("label", label, at_least=0)

    def value(counts: np.ndarray) -> float:
        _require_class(label, counts.shape[1])
        return _over(counts[_RIGHT, label], counts[_LABELLED, label])

    return Folded(_counts, value)


def balanced_accuracy() -> Folded:
    """The mean recall of the classes that occur among the labels."""

    def value(counts: np.ndarray) -> float:
        there = counts[_LABELLED] > 0
        return _over((counts[_RIGHT, there] / counts[_LABELLED, there]).sum(), there.sum())

    return Folded(_counts, value)


def calibration_error(bins: int = 15, *, label: int | None = None) -> Folded:
    r"""The expected calibration error (Guo et al. 2017), over bins of equal width.

    .. math:: \sum_b \frac{w_b}{w} \lvert \mathrm{acc}_b - \mathrm{conf}_b \rvert

    with :math:`\mathrm{conf}_b` the mean probability in a bin and :math:`\mathrm{acc}_b` how often
    it was correct. A bin includes its upper end, as in scikit-learn's `calibration_curve`.

    Args:
      bins: number of bins between 0 and 1, >= 1.
      label: None: use the probability of the predicted class, and whether it is correct. A class:
        use its probability, and whether an example has it.

    Raises:
      ValueError: if a number is out of range.
      ModelError: when used, if the model has no such class, or an example may have several labels.
    """
    check_count("bins", bins)
    if label is not None:
        check_count("label", label, at_least=0)
    inner = np.linspace(0, 1, bins + 1)[1:-1]

    def statistics(outputs: PyTree, labels: Any, weights: Any) -> np.ndarray:
        read = _of_classes("calibration_error", outputs, labels)
        each = _each(read)
        if label is None:
            sure, hit = each.max(1), read.predicted == read.labels
        else:
            _require_class(label, read.num_classes)
            sure, hit = each[:, label], read.labels == label
        places = np.searchsorted(inner, sure)
        return np.stack([
            np.bincount(places, weights * of, bins) for of in (np.ones_like(sure), sure, hit)
        ])

    return Folded(statistics, lambda sums: _over(np.abs(sums[2] - sums[1]).sum(), sums[0].sum()))


def log_loss() -> Folded:
    r"""The mean of :math:`-\log p_y` (natural logarithm), over all labels if there are several."""

    def losses(read: Reading) -> np.ndarray:
        from scipy.special import log_expit, log_softmax  # noqa: PLC0415 - slow to import

        if read.has_many_labels or read.logits.ndim == 1:
            each = -log_expit(np.where(read.labels == 1, read.logits, -read.logits))
            return each.mean(1) if each.ndim == 2 else each
        return -log_softmax(read.logits, axis=1)[np.arange(len(read.labels)), read.labels]

    return _mean(losses)


def brier() -> Folded:
    r"""The Brier score: mean squared error of the probabilities.

    .. math:: (p_1 - y)^2 \quad\text{or}\quad \sum_c (p_c - [y = c])^2

    for two classes and for more, averaged over the examples. With several labels per example it is
    the mean over them.
    """

    def losses(read: Reading) -> np.ndarray:
        if read.has_many_labels or read.num_classes == 2:
            each = np.square(read.probabilities - read.labels)
            return each.mean(1) if each.ndim == 2 else each
        truth = read.labels[:, None] == np.arange(read.num_classes)
        return np.square(read.probabilities - truth).sum(1)

    return _mean(losses)


def _area(scores: np.ndarray, truth: np.ndarray, weights: np.ndarray) -> float:
    """AUC of one class; NaN unless there are positive and negative examples."""
    order = np.argsort(scores, kind="stable")
    ordered = scores[order]
    ties = np.concatenate([[0], np.cumsum(ordered[1:] != ordered[:-1])]) if len(ordered) else order
    positive = np.bincount(ties, (weights * (truth == 1))[order])
    negative = np.bincount(ties, (weights * (truth != 1))[order])
    below = np.cumsum(negative) - negative
    return _over((positive * (below + negative / 2)).sum(), positive.sum() * negative.sum())


def _counts(outputs: PyTree, labels: Any, weights: Any) -> np.ndarray:
    """By class, float64 [4, C]: predicted right, labelled, predicted, and if it counts anyway."""
    read = reading(outputs, labels)
    if read.has_many_labels:
        truth, guess, w = read.labels, read.predicted, np.asarray(weights, np.float64)
        every = np.full(truth.shape[1], w.sum())
        return np.stack([w @ (truth * guess), w @ truth, w @ guess, every])
    count, guess = read.num_classes, read.predicted
    return np.stack([
        np.bincount(guess, weights * (guess == read.labels), count),
        np.bincount(read.labels, weights, count),
        np.bincount(guess, weights, count),
        np.zeros(count),
    ])


def _of_counts(
    average: Average | None, ratio: Callable[..., tuple[np.ndarray, np.ndarray]]
) -> Folded:
    """A ratio of counts, averaged over classes."""
    if average is not None:
        check_choice("average", average, ("binary", "macro", "micro", "weighted"))

    def value(counts: np.ndarray) -> float:
        labelled, has_many = counts[_LABELLED], bool(counts[_KNOWN].any())
        if not (counts[_LABELLED : _KNOWN + 1] > 0).any():
            return np.nan
        two = counts.shape[1] == 2 and not has_many
        how = average or ("binary" if two else "macro")
        if how == "binary" and not two:
            raise ModelError(
                f"average='binary' is for two classes, but there are {counts.shape[1]}; use "
                "'macro', 'micro' or 'weighted'."
            )
        if how == "micro":
            above, below = ratio(*counts[:_KNOWN].sum(1))
            return float(above / below) if below else 0.0
        above, below = ratio(*counts[:_KNOWN])
        each = np.divide(above, below, out=np.zeros_like(labelled), where=below > 0)
        if how == "binary":
            return float(each[1])
        if how == "weighted":
            return float(labelled @ each / labelled.sum()) if labelled.any() else 0.0
        return float(each[(labelled + counts[_PREDICTED] + counts[_KNOWN]) > 0].mean())

    return Folded(_counts, value)


def _mean(losses: Callable[[Reading], np.ndarray]) -> Folded:
    """The weighted mean of what each example has."""

    def statistics(outputs: PyTree, labels: Any, weights: Any) -> np.ndarray:
        each = losses(reading(outputs, labels))
        return np.array([(weights * each).sum(), np.sum(weights)], np.float64)

    return Folded(statistics, lambda sums: _over(*sums))


def _of_classes(name: str, outputs: PyTree, labels: Any) -> Reading:
    read = reading(outputs, labels)
    if read.has_many_labels:
        raise ModelError(f"{name} needs one label per example, but the labels are [n, C].")
    return read


def _each(read: Reading) -> np.ndarray:
    """The probability of each class [n, C]."""
    from scipy.special import softmax  # noqa: PLC0415 - slow to import

    if read.num_classes > 2:
        return softmax(read.logits, axis=1)
    first = read.probabilities
    return np.stack([1 - first, first], axis=1)


def _require_class(label: int, count: int) -> None:
    if label >= count:
        raise ModelError(f"There is no class {label}: the model has {count}, numbered from 0.")


def _over(above: Any, below: Any) -> float:
    """The ratio; NaN over 0."""
    return float(above / below) if below > 0 else np.nan
