"""Clients whose uploads were rejected: which, how often and why."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedax.algorithm import Model, Params
from fedax.clients.gradients import loss_gradient
from fedax.clients.minibatches import Minibatch
from fedax.clients.uploads import largest_squared
from fedax.data.federated_dataset import FederatedDataset
from fedax.mistakes.model import call_loss

# A client is reported when it has been rejected in this number of rounds.
AGAIN = 3
# Number of its examples whose loss is checked.
LOOKED_AT = 256
# Numbers of data above this are worth a word.
LARGE = 1e4


class Rejections:
    """In how many rounds each client was rejected.

    A client is reported once, in the round in which it is rejected for the third time. Earlier
    counts come from the rounds' metrics, where `rejected` lists the names, so counting continues
    when a run is resumed.

    Args:
      model: what is trained.
      data: the clients that train it.
      rounds: the metrics of the rounds that were done before.

    Attributes:
      counts: name -> number of rounds in which the client was rejected.

    Example:
      >>> rejections = Rejections(None, None, [{"round": 1, "rejected": ["ada"]}, {"round": 2}])
      >>> rejections.counts
      Counter({'ada': 1})
    """

    def __init__(
        self, model: Model, data: FederatedDataset, rounds: Iterable[Mapping[str, Any]] = ()
    ) -> None:
        self._model = model
        self._data = data
        self.counts: collections.Counter[str] = collections.Counter()
        for metrics in rounds:
            self.counts.update(set(metrics.get("rejected", ())))

    def add(self, names: Iterable[str], params: Params) -> list[str]:
        """Counts a round's rejected clients; returns a warning for each to report now.

        Args:
          names: the clients; drawn with replacement, one may be there twice.
          params: where the losses of a client are looked at.
        """
        clients = dict.fromkeys(names)
        self.counts.update(clients.keys())
        return [
            f"Client {name!r} was rejected in {AGAIN} rounds and has not contributed to the model. "
            f"{reason(name, self._model, params, self._data)}"
            for name in clients if self.counts[name] == AGAIN
        ]


def reason(name: str, model: Model, params: Params, data: FederatedDataset) -> str:
    """Why a client's upload was rejected, judged by its data and its losses, with a remedy.

    Args:
      name: of the client.
      model: what is trained.
      params: where the losses are looked at, before its local training.
      data: the clients that are trained.
    """
    arrays = data.client(name)
    for key, array in arrays.items():
        if np.issubdtype(array.dtype, np.inexact) and not np.isfinite(array).all():
            row = int(np.argwhere(~np.isfinite(array))[0][0])
            return (
                f"The array {key!r} of client {name!r} is not finite (NaN or infinity), first in "
                f"example {row}. Clean its data or leave the client out."
            )
    few = {key: jnp.asarray(array[:LOOKED_AT]) for key, array in arrays.items()}
    every = jnp.ones(len(next(iter(few.values()))), bool)
    batch, key = Minibatch(few, every), jax.random.key(0)
    losses, weights = (
        np.asarray(value, np.float64) for value in call_loss(model, params, few, key, every)
    )
    for wrong, values, what in (
        (weights < 0, weights, "weight from the loss is negative"),
        (~np.isfinite(losses) & (weights > 0), losses, "loss is not finite before local training"),
    ):
        if wrong.any():
            row = int(np.argmax(wrong))
            return (
                f"Of client {name!r} the {what}: {values[row]:g} in example {row}. Look at that "
                "example, and at the model's loss for it."
            )
    _, gradient = loss_gradient(model)(params, batch, key)
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradient):
        if not jnp.isfinite(leaf).all():
            place = jax.tree_util.keystr(path)
            return (
                f"The losses of client {name!r} are finite, but their gradient is not (NaN or "
                f"infinity){f', first at the parameter {place}' if place else ''}, already at the "
                "model that the server sent. A lower learning rate cannot help: look in the "
                "model for a norm, a root, a logarithm or a division at 0."
            )
    key, largest = max(
        ((key, float(np.abs(array[:LOOKED_AT]).max(initial=0)))
         for key, array in arrays.items() if np.issubdtype(array.dtype, np.floating)),
        key=lambda pair: pair[1], default=("", 0.0),
    )
    numbers = f"; {key!r} has numbers up to {largest:.3g}" if largest > LARGE else ""
    dtype = jax.tree.leaves(params)[0].dtype
    return (
        f"The data of client {name!r} and its losses before local training are finite, so its "
        "local training overflows, or its update is too large for the server (beyond "
        f"{largest_squared(dtype):.2g}), or its weight in the mean is negative. Lower the client "
        f"learning rate, or scale its data{numbers}."
    )
