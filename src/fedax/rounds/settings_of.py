"""What a method was made with."""

from __future__ import annotations

from typing import Any

from fedax.algorithm import FederatedAlgorithm
from fedax.factories import recipe


def setting_of(algorithm: Any, name: str) -> Any:
    """What a method, or the one that it wraps, was made with; None if it does not say.

    Example:
      >>> import fedax
      >>> model = fedax.models.character_lstm(4, 1)
      >>> inner = fedax.fedavg(model, 0.3, batch_size=4)
      >>> setting_of(fedax.elastic(inner, model), "client_learning_rate")
      0.3
    """
    found = recipe(algorithm)
    if found is None:
        return None
    if found.arguments.get(name) is not None:
        return found.arguments[name]
    inner = (a for a in found.arguments.values() if isinstance(a, FederatedAlgorithm))
    return next((setting_of(algorithm, name) for algorithm in inner), None)
