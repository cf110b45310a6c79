"""Methods that a run's config.json describes, made again, and which functions it may name.

A stranger may write any name there, such as "os:system". Without this user's signature, see
`fedax.experiment.trust`, only fedax's own factories and those that installed packages register are
looked up; a module of any other name is not even imported.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedax.algorithm import Model
from fedax.data.describing import MODEL
from fedax.experiment import sources
from fedax.factories import is_factory

# A number of an array takes no more.
MOST_ITEM_BYTES = 16
# Where fedax's factories are. They build functions, and do nothing else.
ROOMS = ("fedax.algorithms.", "fedax.models.", "fedax.optimizers.")


class NotMadeAgainError(ValueError):
    """A description does not say enough to make the value again; the message names the part."""


class NotNamedError(NotMadeAgainError):
    """A name does not lead to a function that may be called; the message is a phrase."""


def named(name: Any, *, own: bool) -> Callable[..., Any]:
    """The function of a name, "module:function".

    Args:
      name: what a file says.
      own: whether this user's fedax wrote it.

    Raises:
      NotNamedError: if there is no such function, or it may not be called.
    """
    module, colon, way = name.partition(":") if isinstance(name, str) else ("", "", "")
    if not colon or module == "__main__" or "<" in way:
        raise NotNamedError(f"{str(name)[:100]} cannot be imported")
    of_fedax = module.startswith(ROOMS) and way.isidentifier()
    if not (own or of_fedax or _is_registered(name)):
        raise NotNamedError(
            f"it refers to the code {name[:100]}, and was not written by your fedax on this "
            "machine, or was changed since"
        )
    try:
        found = functools.reduce(getattr, way.split("."), importlib.import_module(module))
    except (ImportError, AttributeError, ValueError):
        raise NotNamedError(f"{name[:100]} cannot be imported") from None
    if not callable(found) or (of_fedax and not own and not is_factory(found)):
        raise NotNamedError(f"{name[:100]} is not a factory")
    return found


def made_again(  # noqa: PLR0911 - likewise
    description: Any, model: Model | None, *, own: bool
) -> Any:
    """The value of a description.

    Args:
      description: what `Describer` gave.
      model: takes the place of the task's.
      own: whether this user's fedax wrote it; otherwise only fedax's own factories and registered
        ones are called.

    Raises:
      NotMadeAgainError: if it holds a function or an object that its name does not lead to, or that
        may not be called.
    """
    if not isinstance(description, dict):
        return description
    if description == MODEL:
        return model
    if "factory" in description:
        factory = named(description["factory"], own=own)
        arguments = description["arguments"].items()
        return factory(**{name: made_again(value, model, own=own) for name, value in arguments})
    if "values" in description:
        dtype = jnp.dtype(description["array"])
        if dtype.itemsize > MOST_ITEM_BYTES or dtype.kind == "O":
            raise NotMadeAgainError(f"an array cannot be of {dtype}")
        return jnp.asarray(np.asarray(description["values"], dtype))
    if "function" in description and not description["holds"]:
        return named(description["function"], own=own)
    if "float" in description:
        return float(description["float"])
    for kind in (list, tuple):
        if kind.__name__ in description:
            return kind(made_again(item, model, own=own) for item in description[kind.__name__])
    if "dict" in description:
        return {
            key: made_again(value, model, own=own) for key, value in description["dict"].items()
        }
    names = [value for value in description.values() if isinstance(value, str)]
    raise NotMadeAgainError(f"{names[0] if names else 'a value'} cannot be made from its name")


def _is_registered(name: str) -> bool:
    """Whether an installed package registers it as a method."""
    return any(
        entry.value == name for found in sources.offered("algorithm").values() for entry in found
    )
