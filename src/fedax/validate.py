"""Checks of hyperparameters. Messages quote the bad value; traced values are not checked."""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

import numpy as np
from jax.core import Tracer

from fedax.outside import guesses

Function = TypeVar("Function", bound=Callable[..., Any])

# Counts and rounds are int32 where they are computed with.
MOST = 2**31 - 1

# Of a value that is no number so many letters are quoted.
_MOST_LETTERS = 100
# Of names that a sentence lists.
_MOST_CHOICES = 100


def check_number(
    name: str,
    value: Any,
    *,
    at_least: float | None = None,
    above: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
    schedule: bool = False,
) -> None:
    """Raises a clear error unless the value is a number in its range.

    Traced values (under `jit`, `vmap` or `grad`) are not known yet and pass, so that
    hyperparameters may be traced. With `schedule`, callables pass as well.
    """
    if isinstance(value, Tracer) or (schedule and callable(value)):
        return
    bounds = {"at least": at_least, "above": above, "below": below, "at most": at_most}
    wanted = " and ".join(f"{word} {b:g}" for word, b in bounds.items() if b is not None)
    number = _real(value)
    if (
        number is None
        or not np.isfinite(number)
        or (at_least is not None and number < at_least)
        or (above is not None and number <= above)
        or (below is not None and number >= below)
        or (at_most is not None and number > at_most)
    ):
        or_schedule = " or a schedule" if schedule else ""
        if hasattr(value, "init") and hasattr(value, "update"):
            raise ValueError(
                f"{name} must be a finite number {wanted}{or_schedule}, but is an optimizer. "
                "Pass optimizers to fedax.fedopt, as client_optimizer or server_optimizer."
            )
        raise ValueError(
            f"{name} must be a finite number {wanted}{or_schedule}, but is {quoted(value)}."
        )


def check_count(
    name: str,
    value: Any,
    *,
    at_least: int = 1,
    at_most: int | None = MOST,
    schedule: bool = False,
) -> None:
    """Raises a clear error unless the value is a whole number of at least `at_least`.

    Traced values pass and, with `schedule`, callables.

    Args:
      name: of the value, for the message.
      value: to check.
      at_least: the smallest valid value.
      at_most: the largest valid value; None: no limit.
      schedule: whether a schedule is valid.
    """
    if isinstance(value, Tracer) or (schedule and callable(value)):
        return
    number = _scalar(value)
    if not isinstance(number, int) or number < at_least:
        or_schedule = " or a schedule" if schedule else ""
        raise ValueError(
            f"{name} must be a whole number of at least {at_least}{or_schedule}, but is "
            f"{quoted(value)}."
        )
    if at_most is not None and number > at_most:
        raise ValueError(f"{name} must be at most {at_most:,}, but is {quoted(value)}.")


def quoted(value: Any) -> str:
    """The value's `repr`, shortened if it is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits; a deep nest
        return f"a very large {type(value).__name__}"
    return text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}..."


def told_apart(one: str, other: str, most: int) -> tuple[str, str]:
    """Two texts, shortened so that their difference stays visible.

    Example:
      >>> told_apart("a" * 50 + "x", "a" * 50 + "y", 12)
      ('...aaaaaax', '...aaaaaay')
    """
    common = next(
        (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
    hidden = one != other and common >= most - 3 and max(len(one), len(other)) > most
    start = max(common - max(most - 10, most // 2), 0) if hidden else 0

    def cut(text: str) -> str:
        lead = "..." if start else ""
        text = lead + text[start:]
        return text if len(text) <= most else text[: most - 3] + "..."

    return cut(one), cut(other)


def so_many(number: int, thing: str) -> str:
    """The number and the noun, in the plural if needed.

    Example:
      >>> so_many(1, "client"), so_many(2_000, "client")
      ('1 client', '2,000 clients')
    """
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def check_seed(seed: Any) -> None:
    """Raises a clear error unless it is a whole number of at least 0 (not a PRNG key)."""
    if str(getattr(seed, "dtype", "")).startswith("key<"):
        raise ValueError(
            "seed must be a whole number of at least 0, but is a PRNG key. Pass the number "
            "that the key was made from."
        )
    check_count("seed", seed, at_least=0, at_most=None)


def _real(value: Any) -> float | None:
    """The value as a float; infinity where it is beyond float64, None if it is no real scalar."""
    number = _scalar(value)
    try:
        return None if number is None else float(number)
    except OverflowError:
        return np.inf


def _scalar(value: Any) -> int | float | None:
    """The value as a Python number, None if it is not a real scalar."""
    if isinstance(value, bool | str | bytes) or callable(value):
        return None
    if isinstance(value, int | float):
        return value
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        return None
    if array.ndim or array.dtype.kind not in "iuf":
        # jax's bfloat16 is of NumPy's kind V.
        return float(array) if array.ndim == 0 and array.dtype.name == "bfloat16" else None
    return array.item()


def plain(value: Any) -> Any:
    """A scalar or an array without axes, of NumPy or JAX, as Python's number; else the value.

    Example:
      >>> plain(np.int64(8)), plain(np.array(0.5)), plain("all"), plain(None)
      (8, 0.5, 'all', None)
    """
    is_array = hasattr(value, "dtype") and getattr(value, "shape", None) == ()
    if not is_array or isinstance(value, Tracer):
        return value
    number = _scalar(value)
    return value if number is None else number


def plain_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options, each one `plain`."""
    return {name: plain(value) for name, value in options.items()}


def check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    """Raises a clear error, with the nearest choice, unless the value is one of the choices."""
    choices = list(choices)
    if value not in choices:
        raise ValueError(unknown(name, value, choices))


def unknown(name: str, value: Any, choices: Iterable[str]) -> str:
    """The message for a name that is not one of the choices.

    Args:
      name: what it is; the value stands before a phrase with of, in, for or to.
      value: the wrong name.
      choices: the names that there are.

    Example:
      >>> unknown("setting of fedavg", "rate", ["batch_size"])
      "Unknown setting 'rate' of fedavg. Known: 'batch_size'."
    """
    choices = list(choices)
    near = guesses.nearest(str(value), choices)
    return _unknown(name, value, choices, f"Did you mean {near!r}?" if near else "")


def unknown_option(name: str, value: str, choices: Iterable[str]) -> str:
    """The message for an unknown option, including names that other libraries use for it."""
    choices = list(choices)
    return _unknown(name, value, choices, guesses.hint(value, choices))


def check_options(name: str, parameters: Mapping[str, inspect.Parameter], given: Any) -> None:
    """Raises a `TypeError` if a function does not have one of the options that it was given.

    Args:
      name: the function's.
      parameters: of its signature; one that takes any options is left alone.
      given: the options' names.
    """
    kinds = {parameter.kind for parameter in parameters.values()}
    if inspect.Parameter.VAR_KEYWORD in kinds:
        return
    for option in given:
        if option not in parameters:
            raise TypeError(unknown_option(f"option of {name}", option, parameters))


def bound(
    name: str, signature: inspect.Signature, shown: Mapping[str, inspect.Parameter],
    args: tuple[Any, ...], kwargs: dict[str, Any],
) -> inspect.BoundArguments:
    """The arguments of a call, by name.

    Args:
      name: the function's, for the message.
      signature: the function's.
      shown: its parameters as its `help` has them.
      args, kwargs: what it is called with.

    Raises:
      TypeError: if they do not fit the signature.

    Example:
      >>> def cut(text, at, *, gap=" "): ...
      >>> signature = inspect.signature(cut)
      >>> bound("cut", signature, signature.parameters, ("ab", 1, "-"), {})
      Traceback (most recent call last):
      TypeError: cut takes at most 2 positional arguments. Give the others by name, such as gap=' '.
    """
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        reason = str(error)
    takes = [one for one in shown.values() if one.kind < one.VAR_POSITIONAL]
    if reason == "too many positional arguments":
        others = [f"{one.name}={one.default!r}" for one in shown.values() if one not in takes]
        cure = f" Give the others by name, such as {others[0]}." if others else ""
        raise TypeError(f"{name} takes at most {so_many(len(takes), 'positional argument')}.{cure}")
    needed = [one.name for one in takes if one.default is one.empty]
    others = ["..."] if len(needed) < len(shown) else []
    raise TypeError(f"{name}({', '.join([*needed, *others])}): {reason}.")


def options_checked(function: Function) -> Function:
    """A decorator that rejects unknown options and suggests the nearest one.

    Example:
      >>> @options_checked
      ... def train(num_rounds): ...
      >>> train(rounds=3)
      Traceback (most recent call last):
      TypeError: Unknown option 'rounds' of train. Did you mean 'num_rounds'? Known: 'num_rounds'.
    """
    parameters = inspect.signature(function).parameters

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        check_options(function.__name__, parameters, kwargs)
        return function(*args, **kwargs)

    return cast(Function, call)


def require_path(name: str, path: Any, hint: str = "") -> None:
    """Raises a clear error unless it is a path.

    Args:
      name: how the argument is called.
      path: what was given.
      hint: a sentence of what to do; optional.

    Raises:
      TypeError: if it is neither text nor a `pathlib.Path`.
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(
            f"{name} must be text or a pathlib.Path, but is {quoted(path)}.{hint and ' ' + hint}"
        )


def require_out(out: Any, *, overwrite: Any) -> None:
    """Raises a clear error if `out` is no path, or `overwrite` is given without a folder."""
    if out is not None:
        require_path("out", out)
    if not isinstance(overwrite, bool | np.bool_):
        raise TypeError(f"overwrite must be True or False, but is {quoted(overwrite)}.")
    if overwrite and out is None:
        raise ValueError("overwrite=True needs the folder of the run to delete. Give out= as well.")


def _unknown(name: str, value: Any, choices: list[str], hint: str) -> str:
    known = ", ".join(map(repr, choices[:_MOST_CHOICES]))
    if len(choices) > _MOST_CHOICES:
        known += f" and {len(choices) - _MOST_CHOICES:,} more"
    hint = f" {hint}" if hint else ""
    phrase = re.search(" (of|in|for|to) ", name)
    end = phrase.start() if phrase else len(name)
    return f"Unknown {name[:end]} {quoted(str(value))}{name[end:]}.{hint} Known: {known}."
