"""What a metric's name says of it: whether it should be high or low, and its unit."""

from __future__ import annotations

from typing import Literal, TypeAlias

Mode: TypeAlias = Literal["max", "min"]

# What a metric's name says of its direction, in a word of it.
HIGH = {"accuracy", "auc", "bleu", "cosine", "correct", "f1", "precision", "r2", "recall",
        "reward", "score"}
LOW = {"bpc", "bytes", "dissimilarity", "distance", "drift", "error", "loss", "mae", "mse", "nll",
       "norm", "perplexity", "regret", "rmse", "seconds"}
# What a metric with one of these words in its name counts in parts of 1.
SHARES = {"accuracy", "precision", "recall"}


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


def is_share(metric: str) -> bool:
    """Whether a metric is counted in parts of 1, so that per cent are its unit.

    Example:
      >>> is_share("test_accuracy"), is_share("train_loss")
      (True, False)
    """
    return bool(SHARES & set(metric.split("_")))
