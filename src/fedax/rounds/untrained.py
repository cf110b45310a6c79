"""The loss of the untrained model, against which divergence is judged."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

from fedax.algorithm import Array, Batch, Params
from fedax.data.task import Task
from fedax.devices.compiling import jit
from fedax.factories import PROGRAMS, Structure, partition
from fedax.mistakes.model import call_loss
from fedax.rounds.state import initial_params

# Examples whose losses are looked at, evenly spaced over the clients.
LOOKED_AT = 64
# A run has diverged if its training loss ends above the untrained model's by this many times its
# size. Rates that are too high need not end in what is not finite.
FACTOR = 1.0
# Number of last rounds whose mean is the final training loss; all if there are fewer.
LAST_ROUNDS = 100


def untrained_loss(task: Task, seed: int) -> float:
    """The initial model's mean loss over some of the training examples."""
    return mean_loss(task, initial_params(task.model, seed))


def mean_loss(task: Task, params: Params) -> float:
    """The mean loss over some of the training examples; of one task always the same examples."""
    data = task.train
    rows = np.unique(np.linspace(0, data.num_examples - 1, LOOKED_AT).astype(int))
    batch = {name: np.asarray(array[rows]) for name, array in data.arrays.items()}
    numbers, structure = partition(task.model)
    losses, weights = (
        np.asarray(found, np.float64)
        for found in losses_of(structure)(numbers, params, batch, np.ones(len(rows), bool))
    )
    counted = weights > 0
    return float(np.average(losses[counted], weights=weights[counted])) if counted.any() else np.nan


def lost_in(losses: np.ndarray, untrained: float) -> int:
    """The round from which on a training loss stays far above the untrained one, from 1; or 0.

    Example:
      >>> lost_in(np.array([2.3, 9.0, 1e9, 6e26]), untrained=2.3)
      2
      >>> lost_in(np.array([2.3, 9.0, 1.0, 0.5]), untrained=2.3)
      0
    """
    limit = untrained + FACTOR * abs(untrained)
    known = losses[np.isfinite(losses)]
    if not len(known) or untrained == 0 or not known[-LAST_ROUNDS:].mean() > limit:
        return 0
    fine = np.flatnonzero(losses <= limit)
    return int(fine[-1]) + 2 if len(fine) and fine[-1] + 1 < len(losses) else 1


@functools.lru_cache(maxsize=PROGRAMS)
def losses_of(structure: Structure) -> Any:
    """The losses of all models of a structure on a batch, which their numbers tell apart."""

    def losses(
        numbers: list[Array], params: Params, batch: Batch, mask: Array
    ) -> tuple[Array, Array]:
        return call_loss(structure(numbers), params, batch, jax.random.key(0), mask)

    return jit(losses)
