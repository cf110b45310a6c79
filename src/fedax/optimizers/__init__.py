"""Server optimizers as published, base optimizers as Mime needs them, schedules of the round.

Functions of pseudo-gradients and of round numbers; nothing knows of clients or data.
"""

from fedax.optimizers import base_optimizers, schedules
from fedax.optimizers.base_optimizers import BaseOptimizer
from fedax.optimizers.server_optimizers import (
    AdaptiveState,
    BiasCorrection,
    adabound,
    adagrad,
    adam,
    amsgrad,
    heavy_ball,
    yogi,
)

__all__ = [
    "AdaptiveState",
    "BaseOptimizer",
    "BiasCorrection",
    "adabound",
    "adagrad",
    "adam",
    "amsgrad",
    "base_optimizers",
    "heavy_ball",
    "schedules",
    "yogi",
]
