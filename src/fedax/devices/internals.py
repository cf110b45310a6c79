"""What fedax uses of JAX beyond its stable interface, in one place, as versions differ here.

Of JAX 0.10 and 0.12 both are tried (tests/test_internals.py). No other file of fedax imports from
`jax._src`, `jax.extend`, `jax.interpreters` or `jax.experimental`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.experimental import multihost_utils
from jax.experimental.buffer_callback import buffer_callback
from jax.extend.core import (
    Jaxpr,
    JaxprEqn,
    Literal,
    Primitive,
    get_opaque_trace_state,
    jaxpr_as_fun,
    primitives,
)
from jax.interpreters import ad, batching, mlir

__all__ = [
    "JaxprEqn",
    "Primitive",
    "buffer_callback",
    "cache_programs_in",
    "evaluated",
    "in_transposition",
    "jaxpr_as_fun",
    "multihost_utils",
    "new_primitive",
    "primitives",
    "processes",
    "set_derivatives",
    "trace_state",
    "with_equations",
]


def with_equations(program: Any, change: Callable[[JaxprEqn], JaxprEqn]) -> Any:
    """The program, or each of a tuple of them, with its equations changed; others as they are.

    In JAX 0.10 a `ClosedJaxpr` holds constants and a `Jaxpr`, and both occur; since 0.11 they are
    one class, whose `jaxpr` is itself.
    """
    if isinstance(program, tuple):
        return tuple(with_equations(part, change) for part in program)
    if isinstance(program, Jaxpr):
        return program.replace(eqns=[change(equation) for equation in program.eqns])
    if isinstance(getattr(program, "jaxpr", None), Jaxpr):
        return program.replace(jaxpr=with_equations(program.jaxpr, change))
    return program


def evaluated(
    program: Any, inputs: Sequence[Any], compute: Callable[[JaxprEqn, list[Any]], list[Any] | None]
) -> list[Any]:
    """A program's outputs, computed equation by equation.

    Args:
      program: a program, with its constants if it has any.
      inputs: its arguments; those that are no arrays are for `compute` to know.
      compute: (equation, its inputs) -> its outputs, or None: the inputs are arrays, and the
        equation's own operation is taken.
    """
    # In JAX 0.10 that of `checkpoint` is a `Jaxpr`, which has no constants.
    body, constants = getattr(program, "jaxpr", program), getattr(program, "consts", ())
    variables = [*body.constvars, *body.invars]
    values = dict(zip(variables, [*constants, *inputs], strict=True))

    def read(variable: Any) -> Any:
        return variable.val if isinstance(variable, Literal) else values[variable]

    for equation in body.eqns:
        arguments = [read(variable) for variable in equation.invars]
        outputs = compute(equation, arguments)
        if outputs is None:
            params = equation.primitive.get_bind_params(equation.params)
            outputs = equation.primitive.bind(*arguments, **params)
            outputs = outputs if equation.primitive.multiple_results else [outputs]
        values.update(zip(equation.outvars, outputs, strict=True))
    return [read(variable) for variable in body.outvars]


def trace_state() -> Any:
    """Of which function's trace JAX computes a part; equal in the same one."""
    return get_opaque_trace_state(convention="nnx")


def new_primitive(
    name: str, shape: Callable[..., Any], everywhere: Callable[..., Any],
    on_cpu: Callable[..., Any], batched: Callable[..., Any],
) -> Primitive:
    """An operation with one result that JAX can compile and batch.

    Args:
      name: what programs call it.
      shape: the result's abstract value, of the arguments'.
      everywhere: what computes it, in terms of JAX's operations.
      on_cpu: the same for CPUs.
      batched: what `vmap` makes of it: (primitive, arguments, axes) -> (result, axis).
    """
    primitive = Primitive(name)
    primitive.def_abstract_eval(shape)
    primitive.def_impl(jax.jit(primitive.bind))
    for function, platform in ((everywhere, None), (on_cpu, "cpu")):
        lowering = mlir.lower_fun(function, multiple_results=False)
        mlir.register_lowering(primitive, lowering, platform=platform)
    batching.primitive_batchers[primitive] = lambda *of: batched(primitive, *of)
    return primitive


def set_derivatives(
    primitive: Primitive, forward: Sequence[Callable[..., Any] | None],
    transposed: Callable[..., Any],
) -> None:
    """Sets an operation's derivatives.

    Args:
      primitive: it.
      forward: for each argument the change of the result, (tangent, *arguments) -> tangent.
      transposed: (cotangent, *arguments) -> cotangents, where it is linear in an argument.
    """
    ad.defjvp(primitive, *forward)
    ad.primitive_transposes[primitive] = transposed


def in_transposition(argument: Any) -> bool:
    """Whether an operation is transposed with respect to this argument, which has no value."""
    return ad.is_undefined_primal(argument)


def processes() -> Any:
    """What JAX knows of the processes: this one's id, their number, the client of the store."""
    from jax._src import distributed  # noqa: PLC0415 - no public name; only if there are several

    return distributed.global_state


def cache_programs_in(programs: Any) -> bool:
    """Has JAX keep its compiled programs in this store; False where JAX does not let us."""
    try:
        module: Any = importlib.import_module("jax._src.compilation_cache")
    except ImportError:
        return False
    if not hasattr(module, "get_file_cache"):
        return False
    module.get_file_cache = lambda path: (programs, path)
    return True
