"""Checks for optimizers: optax transformations and base optimizers are easily mixed up."""

from __future__ import annotations

from typing import Any

from fedax.mistakes.errors import kind_of
from fedax.optimizers.base_optimizers import BaseOptimizer


def require_optimizer(name: str, optimizer: Any) -> None:
    """Raises a clear error unless this is None or an optax transformation.

    Raises:
      TypeError: if it is not.
    """
    if isinstance(optimizer, BaseOptimizer):
        hint = "Convert it with fedax.base_optimizers.as_transformation(...)."
    elif optimizer is None or all(
        callable(getattr(optimizer, part, None)) for part in ("init", "update")
    ):
        return
    elif isinstance(optimizer, int | float):
        hint = "Give a learning rate as client_learning_rate or server_learning_rate."
    else:
        hint = "Call its factory, as in optax.sgd(1.0)."
    raise TypeError(
        f"{name} must be an optax transformation, such as optax.sgd(1.0), or None, but is "
        f"{kind_of(optimizer)}. {hint}"
    )


def require_base(base: Any) -> None:
    """Raises a clear error unless this is one of `fedax.base_optimizers`.

    Raises:
      TypeError: if it is not.
    """
    if not isinstance(base, BaseOptimizer):
        raise TypeError(
            "base must be one of fedax.base_optimizers, such as sgdm(0.9), with separate direction "
            f"and update, but is {kind_of(base)}. An optax transformation combines the two, so it "
            "cannot be a base."
        )
