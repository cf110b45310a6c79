"""Settings of a method."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fedax.algorithm import FederatedAlgorithm
from fedax.factories import Recipe, recipe


def recipes(algorithm: Any) -> Iterator[Recipe]:
    """How a method was made, and then the ones that it wraps, as far as factories noted it.

    Example:
      >>> import fedax
      >>> model = fedax.models.character_lstm(4, 1)
      >>> algorithm = fedax.local_update_decay(
      ...     lambda rate, _: fedax.elastic(fedax.fedavg(model, rate), model), model)
      >>> [found.factory.__name__ for found in recipes(algorithm)]
      ['local_update_decay', 'elastic', 'fedavg']
    """
    found = recipe(algorithm)
    if found is None:
        return
    yield found
    given = found.arguments
    inner = [value for value in given.values() if isinstance(value, FederatedAlgorithm)]
    if found.factory.__name__ == "local_update_decay":  # it takes a function that makes the method
        inner.append(given["build"](given["client_learning_rate"], given["server_learning_rate"]))
    for wrapped in inner:
        yield from recipes(wrapped)


def setting_of(algorithm: Any, name: str) -> Any:
    """A setting of a method or of the one that it wraps; None if it has no such setting.

    Example:
      >>> import fedax
      >>> model = fedax.models.character_lstm(4, 1)
      >>> inner = fedax.fedavg(model, 0.3, batch_size=4)
      >>> setting_of(fedax.elastic(inner, model), "client_learning_rate")
      0.3
      >>> decayed = fedax.local_update_decay(lambda *rates: fedax.elastic(inner, model), model)
      >>> setting_of(decayed, "batch_size")
      4
    """
    values = (found.arguments.get(name) for found in recipes(algorithm))
    return next((value for value in values if value is not None), None)
