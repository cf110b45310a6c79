"""What a metric's name says: whether it should be high or low, and of which data it is."""

from __future__ import annotations

from typing import Literal, TypeAlias

Mode: TypeAlias = Literal["max", "min"]

# What a metric's name says of its direction, in a word of it.
HIGH = {"accuracy", "auc", "auprc", "auroc", "bleu", "correct", "cosine", "f1", "kappa", "mcc",
        "precision", "r2", "recall", "reward", "score", "sensitivity", "specificity"}
LOW = {"bpc", "brier", "bytes", "dissimilarity", "distance", "drift", "ece", "error", "loss", "mae",
       "mse", "nll", "norm", "perplexity", "regret", "rmse", "seconds"}

# How the names of what evaluation measures begin, in the order of pages.
EVALUATED = VALIDATION, TEST = "validation_", "test_"


def is_evaluated(metric: str) -> bool:
    """Whether a metric of this name is of validation or test data, measured in evaluation rounds.

    Example:
      >>> is_evaluated("test_loss"), is_evaluated("validation_loss"), is_evaluated("train_loss")
      (True, True, False)
    """
    return metric.startswith(EVALUATED)


def shown_first(metric: str) -> tuple[bool, bool, bool]:
    """The order of metrics on pages: training loss, validation, test, others.

    Example:
      >>> sorted(["seconds", "test_loss", "train_loss", "validation_loss"], key=shown_first)
      ['train_loss', 'validation_loss', 'test_loss', 'seconds']
    """
    return (
        metric != "train_loss", not is_evaluated(metric), not metric.startswith(VALIDATION)
    )


def direction(metric: str) -> Mode | None:
    """Where a metric of this name should go; None if the name does not say.

    Example:
      >>> direction("test_accuracy"), direction("test_loss"), direction("lift")
      ('max', 'min', None)
    """
    words = set(metric.split("_"))
    if bool(words & HIGH) == bool(words & LOW):
        return None
    return "max" if words & HIGH else "min"
