"""How programs are compiled on the current platform."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from fedax.outside.text import Told

# On a CPU, XLA's newer way of writing fused loops takes two fifths of the time that a small
# round's program is compiled in, and it is no faster (docs/notebook/log.md), except two:
# the step of the sparse tag model, which gathers and adds rows of a matrix, is twice as fast with
# it, and evaluation takes three quarters of the time of CNNs, and less of small models.
OLDER_LOOPS = {"xla_cpu_use_fusion_emitters": False}
LEVEL = "xla_backend_optimization_level"


class ModeError(Told, RuntimeError):
    """JAX is configured so that nothing can be trained; the message says how."""


def require_jit() -> None:
    """Raises a ModeError if JAX must not compile: a round would take minutes."""
    if jax.config.jax_disable_jit:  # pyright: ignore[reportAttributeAccessIssue]
        raise ModeError(
            "fedax compiles its rounds, but compilation is off (JAX_DISABLE_JIT or "
            "jax.disable_jit). Turn it on. To debug a loss, call it directly, or use "
            "jax.debug.print in it."
        )


def jit(
    function: Callable[..., Any], level: int | None = None, *, newer_loops: bool = False,
    **others: Any,
) -> Any:
    """`jax.jit` with the compiler options that suit the platform.

    Args:
      function: what is compiled; not within another compiled function.
      level: of optimisation on a CPU, 0 to 3; None: XLA's.
      newer_loops: whether it is one that gains by them.
      **others: those of `jax.jit`.

    Raises:
      ModeError: JAX must not compile.
    """
    require_jit()
    return jax.jit(function, compiler_options=options(level, newer_loops=newer_loops), **others)


@functools.cache
def options(level: int | None, *, newer_loops: bool) -> dict[str, Any] | None:
    """The options of XLA that it knows, see `jit`; None: its own."""
    if jax.default_backend() != "cpu":
        return None
    chosen = {} if newer_loops else OLDER_LOOPS
    if level is not None:
        chosen = chosen | {LEVEL: level}
    return {name: value for name, value in chosen.items() if name in _known()}


@functools.cache
def _known() -> frozenset[str]:
    """The options that this version of XLA knows; since JAX 0.11.2 it has the newer loops only."""
    both = OLDER_LOOPS | {LEVEL: 0}
    if _compiles_with(both):
        return frozenset(both)
    return frozenset(name for name, value in both.items() if _compiles_with({name: value}))


def _compiles_with(chosen: dict[str, Any]) -> bool:
    try:
        jax.jit(lambda x: x + 1, compiler_options=chosen)(0)
    except jax.errors.JaxRuntimeError:
        return False
    return True
