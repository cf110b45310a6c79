"""Checks of hyperparameters that quote the bad value, and leave traced values alone."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

import numpy as np
from jax.core import Tracer


def check_number(
    name: str,
    value: Any,
    *,
    at_least: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> None:
    """Raises a sentence unless the number lies in its range.

    A value that is traced (under `jit`, `vmap` or `grad`) has no number yet and passes, so that
    hyperparameters may be traced; a schedule (a callable) passes too.
    """
    if isinstance(value, Tracer) or callable(value):
        return
    try:
        number = np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a number, but is {value!r}.") from None
    bounds = [
        (at_least, number >= (at_least or 0), "at least"),
        (above, number > (above or 0), "above"),
        (below, number < (below or 0), "below"),
    ]
    wanted = " and ".join(f"{word} {bound:g}" for bound, _, word in bounds if bound is not None)
    holds = all(bool(np.all(ok)) for bound, ok, _ in bounds if bound is not None)
    if not (holds and np.all(np.isfinite(number))):
        raise ValueError(f"{name} must be a finite number {wanted}, but is {value!r}.")


def check_count(name: str, value: Any, *, at_least: int = 1) -> None:
    """Raises a sentence unless the value is a whole number of at least `at_least` (or traced)."""
    if isinstance(value, Tracer) or callable(value):
        return
    whole = not isinstance(value, bool) and np.issubdtype(np.asarray(value).dtype, np.integer)
    if not whole or np.any(np.asarray(value) < at_least):
        raise ValueError(f"{name} must be a whole number of at least {at_least}, but is {value!r}.")


def check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    """Raises a sentence, with the nearest choice, unless the value is one of the choices."""
    choices = list(choices)
    if value not in choices:
        raise ValueError(unknown(name, value, choices))


def unknown(name: str, value: Any, choices: Iterable[str]) -> str:
    """The sentence for a name that is none of the choices."""
    choices = list(choices)
    near = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    known = ", ".join(map(repr, choices))
    return f"Unknown {name} {str(value)!r}.{hint} Known: {known}."
