"""What `batch_statistics` sends to clients, and what of it others must leave alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import NamedTuple

import jax

from fedax.algorithm import Params, PyTree
from fedax.mistakes.errors import AlgorithmError


class StatisticsMessage(NamedTuple):
    """The wrapped algorithm's message, and the server's model."""

    inner: PyTree
    params: Params


def refuse_statistics(message: PyTree, name: str, cure: str) -> None:
    """Raises an AlgorithmError around `batch_statistics`, in a wrapper that changes uploads.

    Args:
      message: the wrapped algorithm's.
      name: the wrapper's.
      cure: what to do.
    """
    parts = jax.tree.leaves(message, is_leaf=lambda part: isinstance(part, StatisticsMessage))
    if any(isinstance(part, StatisticsMessage) for part in parts):
        raise AlgorithmError(
            f"{name} would change the statistics that clients of batch_statistics upload. {cure}"
        )


def require_mask(update: Callable[..., Params]) -> None:
    """Raises a TypeError unless `update` takes three arguments."""
    try:
        inspect.signature(update).bind(None, None, None)
    except TypeError:
        raise TypeError(
            "update must take three arguments, (params, batch, mask): a client's last minibatch is "
            "filled up, and mask [B] is False for what must not count."
        ) from None
