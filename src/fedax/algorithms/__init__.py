"""The federated algorithms, one file a family."""

from collections.abc import Callable

from fedax.algorithm import FederatedAlgorithm
from fedax.algorithms.fedopt import (
    fedadagrad,
    fedadam,
    fedavg,
    fedavgm,
    fedopt,
    fedyogi,
)

# Those that need nothing but numbers, and so can be named on a command line.
ALGORITHMS: dict[str, Callable[..., FederatedAlgorithm]] = {
    "fedadagrad": fedadagrad,
    "fedadam": fedadam,
    "fedavg": fedavg,
    "fedavgm": fedavgm,
    "fedyogi": fedyogi,
}

__all__ = [
    "ALGORITHMS",
    "fedadagrad",
    "fedadam",
    "fedavg",
    "fedavgm",
    "fedopt",
    "fedyogi",
]
