"""Whether a metric should be high or low, which its name says."""

from __future__ import annotations

from typing import Literal, TypeAlias

Mode: TypeAlias = Literal["max", "min"]

# What a metric's name says of its direction, in a word of it.
HIGH = {"accuracy", "auc", "bleu", "cosine", "correct", "f1", "precision", "r2", "recall",
        "reward", "score"}
LOW = {"bpc", "bytes", "dissimilarity", "distance", "drift", "error", "loss", "mae", "mse", "nll",
       "norm", "perplexity", "regret", "rmse", "seconds"}


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
