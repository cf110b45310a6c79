"""How programs are compiled on the platform at hand."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

# On a CPU, XLA's newer way of writing fused loops takes two fifths of the time that a small
# round's program is compiled in, and the program is not faster for it (docs/log.md).
ON_CPU = {"xla_cpu_use_fusion_emitters": False}


def jit(function: Callable[..., Any], level: int | None = None, **options: Any) -> Any:
    """`jax.jit` with the compiler options that suit the platform.

    Args:
      function: what is compiled; not within another compiled function.
      level: of optimisation on a CPU, 0 to 3; None: XLA's.
      **options: those of `jax.jit`.
    """
    return jax.jit(function, compiler_options=_compiler_options(level), **options)


@functools.cache
def _compiler_options(level: int | None) -> dict[str, Any] | None:
    if jax.default_backend() != "cpu":
        return None
    chosen = ON_CPU | ({} if level is None else {"xla_backend_optimization_level": level})
    try:
        jax.jit(lambda x: x + 1, compiler_options=chosen)(0)
    except jax.errors.JaxRuntimeError:  # another version of XLA may not know them
        return None
    return chosen
