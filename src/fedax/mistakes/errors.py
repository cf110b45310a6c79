"""The two errors for users' functions, and their messages."""

from __future__ import annotations

import functools
import inspect
import re
import sysconfig
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from fedax.outside.text import Told

# Where frames are nobody's own: fedax, and the packages and the library that it stands on.
_FEDAX = str(Path(__file__).parents[1])
_STANDARD = sysconfig.get_paths()["stdlib"]
_PACKAGES = re.compile(r"[\\/](site|dist)-packages[\\/]")
_ENGINE = re.compile(r"[\\/](site|dist)-packages[\\/](jax|jaxlib|fedax)[\\/]")

# Limits on the items of a list that are named and the letters of a text that are quoted.
_MOST_NAMED = 6
_MOST_LETTERS = 300


class ModelError(Told, ValueError):
    """A model's function failed or returned something invalid, or the data do not fit the model.

    The message says which function, where in the user's code, and what to do. The original
    exception is `__cause__`.
    """


class AlgorithmError(Told, ValueError):
    """A method's function failed or returned something invalid; see `ModelError` for the message.

    For a method with several exchanges the message names the exchange.
    """


# These have clear messages already, or are not caused by the user's function.
PASSED_ON = (ModelError, AlgorithmError, MemoryError, jax.errors.JaxRuntimeError)


def failure(what: str, call: str, given: Mapping[str, Any], error: Exception) -> str:
    """The message for an error in a user's function.

    Args:
      what: the function, such as "The model's loss".
      call: how it is called, such as "loss(params, batch, key)".
      given: the arguments to show, by name.
      error: the exception.
    """
    words = ", ".join(f"{name}{path}" for name, tree in given.items() for path in described(tree))
    return (
        f"{what} failed{_place(error)}: {said(error)}{_cure(error, given)} It is called as {call}"
        + (f", here with {words}." if words else ".")
    )


def said(error: Exception) -> str:
    """An error's message in one line with a full stop."""
    text = str(error).strip().split("\n")[0].rstrip(".")
    text = text if len(text) <= _MOST_LETTERS else text[:_MOST_LETTERS] + "..."
    return f"{type(error).__name__}: {text}." if text else f"{type(error).__name__}."


def described(tree: Any, most: int | None = _MOST_NAMED) -> list[str]:
    """The first arrays of a tree: path, dtype and shape, such as "['w'] float32[3, 2]"."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    words = [f"{jax.tree_util.keystr(path)} {array_words(leaf)}" for path, leaf in leaves[:most]]
    return words + ([f" and {len(leaves) - len(words)} more"] if len(words) < len(leaves) else [])


def array_words(leaf: Any) -> str:
    """An array's dtype and shape, or a description of any other value."""
    if hasattr(leaf, "dtype") and hasattr(leaf, "shape"):
        return f"{leaf.dtype}{list(leaf.shape)}"
    return kind_of(leaf)


def kind_of(value: Any) -> str:
    """A description of a value: "the class Task", "the function fedavg", "0.1", "a dict"."""
    if value is None or isinstance(value, bool | int | float | str):
        text = repr(value)
        return text if len(text) <= _MOST_LETTERS else f"a {type(value).__name__}"
    name = getattr(value, "__name__", None)
    if isinstance(value, type):
        return f"the class {name}"
    if name and callable(value):
        return f"the function {name}"
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'AEIOUaeiou' else 'a'} {kind}"


def defined_at(function: Any) -> str:
    """Where a user's function is defined, " (FILE, line N)"; empty if it is not the user's."""
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or _is_library(code.co_filename):
        return ""
    return f" ({code.co_filename}, line {code.co_firstlineno})"


def checked_call(
    kind: type[Exception],
    what: str,
    call: str,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    given: Mapping[str, Any],
    explain: Callable[[Exception], str | None] = lambda error: None,  # noqa: ARG005
) -> Any:
    """Calls a user's function and explains its exceptions.

    Args:
      kind: the error to raise.
      what, call, given: as for `failure`.
      function: the user's.
      arguments: its arguments.
      explain: (error) -> a better message, or None.
    """
    if not callable(function):
        raise kind(f"{what} must be a function {call}, but is {kind_of(function)}.")
    try:
        return function(*arguments)
    except PASSED_ON:
        raise
    except Exception as error:
        raise kind(explain(error) or failure(what, call, given, error)) from error


def _place(error: Exception) -> str:
    """Where in the user's code an error came from, or else in which package."""
    frames = [
        (frame.f_code.co_filename, line, frame.f_code.co_name)
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    own = [frame for frame in frames if not _is_library(frame[0])]
    others = [frame for frame in frames if not (_is_own(frame[0]) or _ENGINE.search(frame[0]))]
    if not (own or others):
        return ""
    file, line, name = (own or others)[-1]
    return f" in {file}, line {line}, in {name}"


def _is_own(file: str) -> bool:
    return file.startswith((_FEDAX, "<frozen"))


def _is_library(file: str) -> bool:
    return _is_own(file) or bool(_PACKAGES.search(file)) or file.startswith(_STANDARD)


def _cure(error: Exception, given: Mapping[str, Any]) -> str:
    """What to do about an error with a well-known cause."""
    untraceable = (
        jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError,
        jax.errors.TracerIntegerConversionError, jax.errors.NonConcreteBooleanIndexError,
    )
    if isinstance(error, untraceable):
        return (
            " Values are not known while a round is compiled: use jnp.where instead of if, and "
            "jax.numpy instead of numpy."
        )
    whole = any(
        hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.integer)
        for leaf in jax.tree.leaves(dict(given))
    )
    if whole and "dtype" in str(error):
        return " Convert integers to floating point first, as in x.astype(np.float32) / 255."
    return ""
