"""Server optimizers as published, base optimizers for Mime, and schedules by round.

They are functions of pseudo-gradients and round numbers, independent of clients and data.
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
