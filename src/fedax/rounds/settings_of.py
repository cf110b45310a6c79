"""Settings of a method."""

from __future__ import annotations

from typing import Any

from fedax.algorithm import FederatedAlgorithm
from fedax.factories import recipe


def setting_of(algorithm: Any, name: str) -> Any:
    """A setting of a method or of the one that it wraps; None if it has no such setting.

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
