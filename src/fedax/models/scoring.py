"""Functions of all outputs: plain functions, sums of them, or scikit-learn's."""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from fedax.algorithm import PyTree, Score
from fedax.mistakes.errors import ModelError, array_words, kind_of
from fedax.validate import check_choice, quoted

Function: TypeAlias = Callable[[PyTree, Any, Any], Any]
Takes: TypeAlias = Literal["probabilities", "classes", "outputs"]

# What scikit-learn calls the second argument of a function that takes probabilities or scores.
_PROBABILITIES = {"y_score", "y_proba", "y_prob"}
# Those whose second argument is called y_pred, and is probabilities all the same.
_MISNAMED = {"log_loss", "d2_log_loss_score"}


@dataclasses.dataclass(frozen=True)
class Folded:
    """A function of all outputs that needs only a few sums of them, so memory stays bounded.

    Attributes:
      statistics: `(outputs, labels, weights) -> sums`, float64, any shape; the sums of two parts of
        the examples add up to those of both.
      value: `(sums) -> number`.

    Example:
      >>> mean = Folded(
      ...     lambda outputs, labels, weights: np.array([weights @ outputs, weights.sum()]),
      ...     lambda sums: sums[0] / sums[1])
      >>> float(mean(np.array([1.0, 4.0]), None, np.array([1.0, 2.0])))
      3.0
    """

    statistics: Callable[[PyTree, Any, Any], np.ndarray]
    value: Callable[[np.ndarray], Any]

    def __call__(self, outputs: PyTree, labels: Any, weights: Any) -> Any:
        """The value for these examples."""
        return self.value(self.statistics(outputs, labels, weights))


def as_scores(scores: Any, labels: str = "y", weights: str | None = None) -> dict[str, Score]:
    """The user's scores, each with the names of its arrays.

    Args:
      scores: name -> `Score` or function; None: no scores.
      labels, weights: names of the functions' arrays.

    Raises:
      TypeError: if they have the wrong type.
    """
    if scores is None:
        return {}
    if not isinstance(scores, Mapping):
        raise TypeError(
            "scores must be a dictionary, such as {'auc': fedax.scores.auc()}, but is "
            f"{kind_of(scores)}."
        )
    return {name: _as_score(name, given, labels, weights) for name, given in scores.items()}


def _as_score(name: Any, given: Any, labels: str, weights: str | None) -> Score:
    if not isinstance(name, str) or not name:
        raise TypeError(f"The name of a score must be text, such as 'auc', but is {quoted(name)}.")
    if isinstance(given, Score):
        function, labels, weights = given.function, given.labels, given.weights
    else:
        function = given
    if isinstance(inspect.unwrap(function), Folded):  # a factory of the user's has wrapped it
        function = inspect.unwrap(function)
    if isinstance(function, type) or not callable(function):
        raise TypeError(
            f"The score {name!r} must be a function (outputs, labels, weights) -> number, such as "
            f"fedax.scores.auc(), but is {kind_of(function)}."
        )
    if inspect.isfunction(function) and function.__module__ == "fedax.models.scores" and (
        "<locals>" not in function.__qualname__
    ):
        raise TypeError(f"The score {name!r} must be called; use {function.__name__}().")
    first = next(iter(_parameters(function)), None)
    return Score(from_sklearn(function) if first == "y_true" else function, labels, weights)


def from_sklearn(
    function: Callable[..., Any], takes: Takes | None = None, **arguments: Any
) -> Function:
    """A metric of scikit-learn, `function(y_true, y_pred or y_score, sample_weight=)`, as a score.

    In `scores={"auc": roc_auc_score}` the function itself is enough; use this to pass arguments.
    For two classes the function gets the probability of class 1 [n], for more classes [n, C]. The
    value is NaN if the function returns NaN, or if it raises an error because a class does not
    occur.

    Args:
      function: the metric, such as `sklearn.metrics.average_precision_score`.
      takes: its second argument: "probabilities" (sigmoid or softmax of the outputs), "classes"
        (the predicted ones) or "outputs" (unchanged). None: decided by its name in the function.
        `y_score` and `y_proba` are probabilities; `y_pred` is classes if labels are integers, and
        outputs otherwise.
      **arguments: passed to the function, such as `average="macro"`.

    Raises:
      TypeError: if it is not a function (y_true, y_pred, ...).

    Example:
      >>> def share_right(y_true, y_pred, sample_weight=None):
      ...     return np.average(y_true == y_pred, weights=sample_weight)
      >>> score = from_sklearn(share_right)
      >>> float(score(np.array([[0.2, 0.9], [3.0, 1.0]]), np.array([1, 1]), np.array([3.0, 1.0])))
      0.75
    """
    names = _parameters(function)
    if names[:1] != ["y_true"] or len(names) < 2:
        raise TypeError(
            "from_sklearn needs a function (y_true, y_pred, ...) like scikit-learn's metrics, "
            f"but got {kind_of(function)}."
        )
    if takes is not None:
        check_choice("takes", takes, ("probabilities", "classes", "outputs"))
    name = getattr(getattr(function, "func", function), "__name__", "the function")
    likely = names[1] in _PROBABILITIES or name in _MISNAMED
    weighs = "sample_weight" in names and "sample_weight" not in arguments

    def score(outputs: PyTree, labels: Any, weights: Any) -> Any:
        kind = takes or ("probabilities" if likely else None)
        if kind is None:
            kind = "outputs" if np.asarray(labels).dtype.kind == "f" else "classes"
        if kind == "outputs":
            truth, found, complete = np.asarray(labels), np.asarray(outputs), True
            found = found.reshape(truth.shape) if found.size == truth.size else found
        else:
            read = reading(outputs, labels)
            truth, complete = read.labels, read.complete
            found = read.probabilities if kind == "probabilities" else read.predicted
        if not weighs and np.ptp(weights) > 0:
            raise ModelError(
                f"{name} takes no sample_weight, but the examples have different weights. Use "
                "another metric, or a score without weights."
            )
        if not np.isfinite(found).all():
            return np.nan
        given = {**arguments, **({"sample_weight": weights} if weighs else {})}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # of what is undefined, which is NaN
                return function(truth, found, **given)
        except ValueError:
            if complete:
                raise
            return np.nan

    return score


class Reading(NamedTuple):
    """Outputs and labels of a classification in one form.

    Attributes:
      logits: float64 [n], one for two classes, or [n, C].
      labels: whole numbers [n], or 0 and 1 [n, C] where an example has any number of labels.
    """

    logits: np.ndarray
    labels: np.ndarray

    @property
    def num_classes(self) -> int:
        """C, two of a single logit."""
        return self.logits.shape[1] if self.logits.ndim == 2 else 2

    @property
    def has_many_labels(self) -> bool:
        """Whether an example has any number of labels."""
        return self.labels.ndim == 2

    @property
    def probabilities(self) -> np.ndarray:
        """Of class 1 [n] of two, else of each class or label [n, C]."""
        from scipy.special import expit, softmax  # noqa: PLC0415 - slow to import

        if self.has_many_labels or self.logits.ndim == 1:
            return expit(self.logits)
        found = softmax(self.logits, axis=1)
        return found[:, 1] if self.num_classes == 2 else found

    @property
    def predicted(self) -> np.ndarray:
        """The likeliest class [n], or 0 and 1 [n, C]."""
        if self.has_many_labels or self.logits.ndim == 1:
            return (self.logits > 0).astype(np.int64)
        return self.logits.argmax(1)

    @property
    def complete(self) -> bool:
        """Whether every class occurs, and of each label both values."""
        if self.has_many_labels:
            return bool((self.labels.min(0) != self.labels.max(0)).all())
        return len(np.unique(self.labels)) == self.num_classes


def reading(outputs: PyTree, labels: Any) -> Reading:
    """Outputs and labels of a classification.

    Raises:
      ModelError: if their shapes do not fit, or labels are not integers in range.
    """
    if not isinstance(outputs, np.ndarray):
        raise ModelError(
            f"A score of classes needs one array of outputs, but got {kind_of(outputs)}. Select "
            "one in your own function: lambda outputs, labels, weights: ..."
        )
    labels = np.asarray(labels)
    logits = outputs[:, 0] if outputs.ndim == 2 and outputs.shape[1] == 1 else outputs
    found = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    fits = found.shape == logits.shape if found.ndim == 2 else (
        found.ndim == 1 and logits.ndim in (1, 2) and len(found) == len(logits)
    )
    if not fits:
        raise ModelError(
            "A score of classes needs outputs [n] or [n, C] and labels [n], or both [n, C] for "
            f"several labels per example, but they are {array_words(outputs)} and "
            f"{array_words(labels)}."
        )
    whole = found.astype(np.int64) if np.isfinite(found).all() else found
    logits = logits.astype(np.float64)
    count = 2 if found.ndim == 2 or logits.ndim == 1 else logits.shape[1]
    if (whole != found).any() or (len(found) and (found.min() < 0 or found.max() >= count)):
        raise ModelError(
            f"The labels of a score must be whole numbers from 0 to {count - 1}, but range from "
            f"{found.min():g} to {found.max():g}."
        )
    return Reading(logits, whole)


def _parameters(function: Any) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # built-in functions have no signature
        return []
