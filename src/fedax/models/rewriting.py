"""Fast convolution and max-pooling for a model of any library, without changing its code."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax import jit

from fedax.devices.internals import JaxprEqn, jaxpr_as_fun, primitives, with_equations
from fedax.models.convolution import Implementation, conv_general_dilated, is_fast
from fedax.models.pooling import window_max

Function = TypeVar("Function", bound=Callable[..., Any])

# Operations that run a program of their own. `custom_jvp_call` and `custom_vjp_call` do so too,
# but come with derivatives that belong to their programs.
_NESTING = (
    primitives.jit_p, primitives.closed_call_p, primitives.remat_p,
    primitives.scan_p, primitives.while_p, primitives.cond_p,
)
# One comparison for each place of the window: more than this compile slowly.
_LARGEST_WINDOW = 25


def fast_convolutions(function: Function, implementation: Implementation = "auto") -> Function:
    """The same function, with the convolutions and max-poolings of `fedax.models`.

    It works for a model of Flax, Equinox or any other library without changes to it. The function
    is traced, and its convolutions that `fedax.models.conv_general_dilated` can compute as a matrix
    product are replaced, as are maxima over windows of at most 25 places. This includes those
    inside `jit`, `scan`, `while_loop`, `cond`, `vmap` and `checkpoint`. It does not include those
    inside a `custom_vjp` or `custom_jvp`, nor those in a derivative that the function takes itself:
    put `jax.grad` around this wrapper, not inside it.

    Values and derivatives are the same up to rounding. The function must work under `jax.jit` and
    have no side effects (split a model of `flax.nnx` into `graphdef` and `state`); arguments that
    are not arrays are passed on unchanged. Each call traces it again, so call the result under
    `jit`, as everything in `fedax` does.

    Args:
      function: the forward pass, `(params, inputs, ...) -> outputs`, or a loss; not its gradient.
      implementation: "matmul"; "xla", which changes nothing; or "auto" for the faster one on JAX's
        default platform, see `fedax.models.convolution.prefers_fast`.

    Raises:
      ValueError: if `implementation` is unknown.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> def apply(params, x):  # any library's
      ...     y = jax.lax.conv_general_dilated(
      ...         x, params, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
      ...     return jax.nn.relu(y)
      >>> fast = jax.jit(fast_convolutions(apply))
      >>> fast(jnp.ones((3, 3, 1, 2)), jnp.ones((1, 4, 4, 1)))[0, 0, :, 0].tolist()
      [4.0, 6.0, 6.0, 4.0]
    """
    if not is_fast(implementation):
        return function

    @functools.wraps(function)
    def fast(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = jax.tree.flatten((args, kwargs))
        places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, jax.Array | np.ndarray)]

        def of_arrays(*arrays: Any) -> Any:
            filled = list(leaves)
            for place, array in zip(places, arrays, strict=True):
                filled[place] = array
            filled_args, filled_kwargs = structure.unflatten(filled)
            return function(*filled_args, **filled_kwargs)

        arrays = [leaves[place] for place in places]
        program, shapes = jax.make_jaxpr(of_arrays, return_shape=True)(*arrays)
        outputs = jaxpr_as_fun(with_equations(program, _replaced))(*arrays)
        return jax.tree.unflatten(jax.tree.structure(shapes), outputs)

    return fast  # pyright: ignore[reportReturnType]


def _replaced(equation: JaxprEqn) -> JaxprEqn:
    """The equation, or one that calls the fast function of the same arguments and outputs."""
    primitive, params = equation.primitive, equation.params
    if primitive in _NESTING:
        return equation.replace(
            params={name: with_equations(value, _replaced) for name, value in params.items()}
        )
    if primitive is primitives.conv_general_dilated_p:
        replacement = functools.partial(conv_general_dilated, implementation="matmul", **params)
    elif primitive is primitives.reduce_window_max_p and _has_small_windows(equation):
        replacement = functools.partial(
            window_max, window=params["window_dimensions"], strides=params["window_strides"],
            pads=params["padding"],
        )
    else:
        return equation
    avals = [variable.aval for variable in equation.invars]
    (call,) = jax.make_jaxpr(jit(replacement))(*avals).eqns
    return call.replace(invars=equation.invars, outvars=equation.outvars)


def _has_small_windows(equation: JaxprEqn) -> bool:
    params = equation.params
    undilated = all(step == 1 for step in (*params["base_dilation"], *params["window_dilation"]))
    outputs: Any = equation.outvars[0].aval
    # Without outputs the windows may be larger than the image, which is no error in JAX.
    return (
        undilated
        and int(np.prod(params["window_dimensions"])) <= _LARGEST_WINDOW
        and outputs.size > 0
    )
