"""Whether padding the last batch would change a model's results for the other examples.

The last batch of a pass is padded with copies of one of its examples. They have weight 0, so they
do not affect a loss that treats each example separately. They do affect a loss that compares the
examples of a batch (a contrastive loss, batch statistics); such a loss must take the `mask`, or an
error is raised.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from fedax.algorithm import FederatedAlgorithm, Model, Params
from fedax.clients.local_training import LocalTraining
from fedax.data.federated_dataset import FederatedDataset
from fedax.factories import partition, recipe
from fedax.mistakes.errors import ModelError, defined_at
from fedax.mistakes.model import takes_mask
from fedax.rounds.settings_of import setting_of
from fedax.rounds.state import is_known
from fedax.rounds.untrained import losses_of

# Examples in a batch, of a method that does not say how many it takes.
USUAL = 4
# Values that differ by no more than this share are the same up to rounding.
ROUNDING = 1e-3


def check_loss(
    model: Model, params: Params, algorithm: FederatedAlgorithm, data: FederatedDataset
) -> None:
    """Raises an error for a loss without `mask` that padding changes, if there will be padding.

    Args:
      model: its loss is tried on a batch, unless it is one of fedax's own.
      params: the model's, as arrays.
      algorithm: which trains in batches of its `batch_size`.
      data: the examples of the clients.

    Raises:
      ModelError: if the loss of an example depends on the copies beside it.
    """
    if takes_mask(model.loss) or is_known(model):
        return
    size = _batch_size(algorithm, int(data.client_sizes.max(initial=0)))
    if size < 2 or not (data.client_sizes % size).any():
        return
    numbers, structure = partition(model)
    program = functools.partial(losses_of(structure), numbers)
    if _depends_on_padding(program, params, data, size):
        raise ModelError(
            f"The model's loss{defined_at(model.loss)} compares the examples of a batch, and the "
            "last batch of a client is padded with copies, which would change it. Give the "
            "loss a fourth parameter, loss(params, batch, key, mask), and leave out the examples "
            "whose mask is False. Use group normalisation instead of batch normalisation, or "
            "choose a batch_size that divides the number of examples of every client."
        )


def check_metrics(
    model: Model, params: Params, data: FederatedDataset, size: int, measure: Callable[..., Any]
) -> None:
    """The same of the outputs and the metrics in an evaluation.

    Args:
      model: whose functions they are.
      params: the model's, as arrays.
      data: the examples that are evaluated.
      size: how many go together, the last batch being filled up.
      measure: (params, batch, mask) -> a tree of arrays [B].

    Raises:
      ModelError: if a metric of an example depends on the copies beside it.
    """
    functions = [model.outputs, *model.metrics.values()]
    if any(map(takes_mask, functions)) or is_known(model) or size < 2:
        return
    if _depends_on_padding(measure, params, data, size):
        raise ModelError(
            f"The model's outputs{defined_at(model.outputs)} or metrics compare the examples of "
            "a batch, and the last batch is padded with copies, which would change them. Add a "
            "last parameter to that function, outputs(params, batch, mask) or "
            "metric(outputs, batch, mask), and leave out the examples whose mask is False. Use "
            "group normalisation instead of batch normalisation."
        )


def _batch_size(algorithm: FederatedAlgorithm, largest: int) -> int:
    given = setting_of(algorithm, "batch_size")
    if given is None and recipe(algorithm) is None:
        given = USUAL
    elif given is None:
        given = LocalTraining._field_defaults["batch_size"]
    return min(int(given), largest)


def _depends_on_padding(
    function: Callable[..., Any], params: Params, data: FederatedDataset, size: int
) -> bool:
    """Whether (params, batch, mask) -> [B] gives other values where the last example is another."""
    rows = np.linspace(0, data.num_examples - 1, size - 1).astype(int)
    mask = np.arange(size) < size - 1
    draws = np.random.default_rng(0)  # not JAX's, which would compile a program for each shape
    # Parameters of 0 would make all examples alike.
    near = jax.tree.map(lambda leaf: _near(np.asarray(leaf), draws), params)
    found = []
    for last in (rows[-1], rows[0]):
        batch = {
            key: np.concatenate([array[rows], array[last:last + 1]])
            for key, array in data.arrays.items()
        }
        values = jax.device_get(jax.tree.leaves(function(near, batch, mask)))
        found.append([np.asarray(value, np.float64)[: size - 1] for value in values])
    return not all(
        np.allclose(one, other, rtol=ROUNDING, atol=1e-6, equal_nan=True)
        for one, other in zip(*found, strict=True)
    )


def _near(leaf: np.ndarray, draws: np.random.Generator) -> np.ndarray:
    return (leaf + 0.1 * draws.standard_normal(leaf.shape)).astype(leaf.dtype)
