"""Whether a metric should be high or low, which its name says."""

from __future__ import annotations

from typing import Literal, TypeAlias

Mode: TypeAlias = Literal["max", "min"]

# What a metric's name says of its direction, in a word of it.
HIGH = {"accuracy", "auc", "auprc", "auroc", "bleu", "correct", "cosine", "f1", "kappa", "mcc",
        "precision", "r2", "recall", "reward", "score", "sensitivity", "specificity"}
LOW = {"bpc", "brier", "bytes", "dissimilarity", "distance", "drift", "ece", "error", "loss", "mae",
       "mse", "nll", "norm", "perplexity", "regret", "rmse", "seconds"}


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
