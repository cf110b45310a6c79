"""Clients whose uploads do not count: who they are, how often it happened, and why."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedax.algorithm import Model, Params
from fedax.data.federated_dataset import FederatedDataset

# A client is named when it was rejected in so many rounds.
AGAIN = 3
# On so many of its examples the loss is looked at.
LOOKED_AT = 256


class Rejections:
    """In how many rounds each client was rejected.

    A client is named once, in the round in which it is rejected for the third time. What was
    counted before comes from the rounds' metrics, where `rejected` lists the names, so that
    counting goes on when a run is resumed.

    Args:
      rounds: the metrics of the rounds that were done before.

    Example:
      >>> rejections = Rejections([{"round": 1, "rejected": ["ada"]}, {"round": 2}])
      >>> rejections.add(["ada", "bob"]), rejections.add(["ada"])
      ([], ['ada'])
      >>> dict(rejections.counts)
      {'ada': 3, 'bob': 1}
    """

    def __init__(self, rounds: Iterable[Mapping[str, Any]] = ()) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        for metrics in rounds:
            self.add(metrics.get("rejected", ()))

    def add(self, names: Iterable[str]) -> list[str]:
        """Counts a round's rejected clients; returns those that are to be named now."""
        clients = dict.fromkeys(names)  # drawn with replacement, one may be there twice
        self.counts.update(clients)
        return [name for name in clients if self.counts[name] == AGAIN]


def again(name: str, model: Model, params: Params, data: FederatedDataset) -> str:
    """The sentence for a client that was rejected in `AGAIN` rounds; arguments as for `reason`."""
    return (
        f"Client {name!r} was rejected in {AGAIN} rounds, so it teaches the model nothing. "
        f"{reason(name, model, params, data)}"
    )


def reason(name: str, model: Model, params: Params, data: FederatedDataset) -> str:
    """Why a client's upload does not count, as far as its data and its losses tell; with a cure.

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
                f"example {row}. Clean its data or leave it out."
            )
    few = {key: jnp.asarray(array[:LOOKED_AT]) for key, array in arrays.items()}
    losses, weights = (
        np.asarray(value, np.float64) for value in model.loss(params, few, jax.random.key(0))
    )
    for wrong, what in (
        (weights < 0, "weight that the loss gives is negative"),
        (~np.isfinite(losses), "loss is not finite before local training"),
    ):
        if wrong.any():
            row = int(np.argmax(wrong))
            value = (weights if (weights < 0).any() else losses)[row]
            return (
                f"Of client {name!r} the {what}: {value:g} in example {row}. Look at that "
                "example, and at the model's loss for it."
            )
    return (
        f"The data of client {name!r} and its losses before local training are finite, so its "
        "local training overflows, or its weight in the mean is negative. Lower the client "
        "learning rate, or look at the size of its numbers."
    )
