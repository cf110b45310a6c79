"""Functions that a run's config.json names: which of them may be called.

A stranger may write any name there, such as "os:system". Without this user's signature, see
`fedax.experiment.trust`, only fedax's own factories and those that installed packages register are
looked up; a module of any other name is not even imported.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from fedax.experiment import sources
from fedax.factories import is_factory

# Where fedax's factories are. They build functions, and do nothing else.
ROOMS = ("fedax.algorithms.", "fedax.models.", "fedax.optimizers.")


class NotNamedError(ValueError):
    """A name does not lead to a function that may be called; the message is a phrase."""


def named(name: Any, *, own: bool) -> Callable[..., Any]:
    """The function of a name, "module:function".

    Args:
      name: what a file says.
      own: whether this user's fedax wrote it.

    Raises:
      NotNamedError: there is no such function, or it may not be called.
    """
    module, colon, way = name.partition(":") if isinstance(name, str) else ("", "", "")
    if not colon or module == "__main__" or "<" in way:
        raise NotNamedError(f"{str(name)[:100]} cannot be imported")
    of_fedax = module.startswith(ROOMS) and way.isidentifier()
    if not (own or of_fedax or _is_registered(name)):
        raise NotNamedError(
            f"it names code to run, {name[:100]}, and was not written by fedax for you here, or "
            "was changed since"
        )
    try:
        found = functools.reduce(getattr, way.split("."), importlib.import_module(module))
    except (ImportError, AttributeError, ValueError):
        raise NotNamedError(f"{name[:100]} cannot be imported") from None
    if not callable(found) or (of_fedax and not own and not is_factory(found)):
        raise NotNamedError(f"{name[:100]} is not a factory")
    return found


def _is_registered(name: str) -> bool:
    """Whether an installed package registers it as a method."""
    return any(
        entry.value == name for found in sources.offered("algorithm").values() for entry in found
    )
