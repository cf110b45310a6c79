"""Shows options passed as `**options` in a function's `help`.

The options are the keys of a `TypedDict`, whose docstring describes each one. Written once there,
they are shown with every function that accepts them.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast, get_args

Function = TypeVar("Function", bound=Callable[..., Any])

# Where a TypedDict keeps its keys' defaults, which it has no words for, and a function its own.
DEFAULTS = "__option_defaults__"


def has_defaults(options: Any, defaults: Mapping[str, Any]) -> None:
    """Says what the keys of a `TypedDict` of options are when they are not given.

    Raises:
      TypeError: the two do not have the same names.
    """
    named = {name: defaults[name] for name in options.__annotations__ if name in defaults}
    if len(named) < len(options.__annotations__):
        missing = sorted(set(options.__annotations__) - set(named))
        raise TypeError(f"{options.__name__} has keys without a default: {', '.join(missing)}.")
    setattr(options, DEFAULTS, named)


def own_defaults(**values: Any) -> Callable[[Function], Function]:
    """A decorator: in this function these options have other defaults than in their TypedDict."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **{**values, **kwargs})

        setattr(call, DEFAULTS, values)
        return cast(Function, call)

    return decorate


def with_options(function: Function) -> Function:
    """Shows the options in the function's signature and docstring; calling it stays as it is.

    Args:
      function: takes `**options: Unpack[O]` with a `TypedDict` O; any other is left alone. Its
        docstring has a line that begins with `**options:`, below which the options are put.

    Returns:
      The function itself.

    Example:
      >>> from fedax import fedavg
      >>> inspect.signature(fedavg).parameters["batch_size"].default
      20
      >>> "batch_size: B >= 1" in fedavg.__doc__
      True
    """
    signature = inspect.signature(function)
    parameters = [*signature.parameters.values()]
    options = _options(function, parameters[-1]) if parameters else None
    if options is None:
        return function
    *others, last = parameters
    shown = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default,
            annotation=getattr(annotation, "__forward_arg__", annotation),
        )
        for name, default in option_defaults(function).items()
        for annotation in [options.__annotations__[name]]
    ]
    setattr(function, "__signature__", signature.replace(parameters=[*others, *shown]))  # noqa: B010
    function.__doc__ = _with_entries(inspect.getdoc(function), last.name, entries(options))
    return function


def option_defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """The defaults of the options behind `**options: Unpack[O]`; none if it takes no such options.

    Example:
      >>> from fedax import fedavg
      >>> option_defaults(inspect.unwrap(fedavg))["batch_size"]
      20
    """
    parameters = inspect.signature(function).parameters
    options = _options(function, [*parameters.values()][-1]) if parameters else None
    if options is None:
        return {}
    defaults = {**getattr(options, DEFAULTS), **getattr(function, DEFAULTS, {})}
    return {name: defaults[name] for name in options.__annotations__ if name not in parameters}


def entries(options: Any) -> list[str]:
    """The lines of a TypedDict's docstring that say what its keys mean."""
    lines = (inspect.getdoc(options) or "").splitlines()
    names = "|".join(options.__annotations__)
    begins = [i for i, line in enumerate(lines) if re.match(rf"({names})\b.*?: ", line)]
    if not begins:
        return []
    end = begins[-1] + 1
    while end < len(lines) and lines[end].startswith(" "):
        end += 1
    return lines[begins[0] : end]


def _options(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """The TypedDict whose keys the function takes, or None."""
    annotation = parameter.annotation
    if parameter.kind is not inspect.Parameter.VAR_KEYWORD or "Unpack" not in str(annotation):
        return None
    if isinstance(annotation, str):
        annotation = eval(annotation, inspect.unwrap(function).__globals__)
    found = get_args(annotation)
    return found[0] if found and hasattr(found[0], DEFAULTS) else None


def _with_entries(doc: str | None, name: str, lines: list[str]) -> str | None:
    """The docstring with these lines below the one of the argument, indented further."""
    if doc is None:
        return None
    before = doc.splitlines()
    at = next((i for i, line in enumerate(before) if line.strip().startswith(f"**{name}:")), None)
    if at is None:
        return doc
    indent = len(before[at]) - len(before[at].lstrip()) + 2
    end = at + 1
    while end < len(before) and before[end].startswith(" " * indent):
        end += 1
    inserted = [" " * indent + line for line in lines]
    return "\n".join([*before[:end], *inserted, *before[end:]])
