"""Programs with arrays W_0 + a b that are not computed where a product can do without them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedax.algorithm import Array, Params, PyTree
from fedax.devices.internals import JaxprEqn, evaluated, primitives
from fedax.models.parameters import named_leaves


class LowRank(NamedTuple):
    """An array W_0 + a b that no program has computed yet."""

    base: Array  # [k..., d...]: W_0
    a: Array  # [k..., r]
    b: Array  # [r, d...]

    def whole(self) -> Array:
        """W_0 + a b."""
        return self.base + jnp.tensordot(self.a, self.b, 1)


def unmerged(
    function: Callable[[Params], PyTree], params: Params, changed: dict[str, LowRank]
) -> PyTree:
    """The function's value, without computing the arrays that its products can do without.

    Args:
      function: of the whole model's parameters.
      params: the whole model's, W_0.
      changed: by name, the arrays that are different in the argument of the function.
    """
    leaves = [changed.get(name, leaf) for name, leaf in named_leaves(params).items()]
    program, shapes = jax.make_jaxpr(function, return_shape=True)(params)
    return jax.tree.unflatten(jax.tree.structure(shapes), [
        leaf.whole() if isinstance(leaf, LowRank) else leaf
        for leaf in evaluated(program, leaves, _computed)
    ])


def _computed(equation: JaxprEqn, inputs: list[Any]) -> list[Any] | None:
    """An equation's outputs if a rule below has them; else it gets whole arrays."""
    places = [n for n, value in enumerate(inputs) if isinstance(value, LowRank)]
    if not places:
        return None
    if equation.primitive in _CALLS:
        return _called(equation, inputs)
    if len(places) == 1 and equation.primitive in _RULES:
        output = _RULES[equation.primitive](equation, inputs, places[0])
        if output is not None:
            return [output]
    for place in places:
        inputs[place] = inputs[place].whole()
    return None


def _called(equation: JaxprEqn, inputs: list[Any]) -> list[Any]:
    """The outputs of a program's call; one of `jax.checkpoint` stays one."""
    program = equation.params[_CALLS[equation.primitive]]

    def call(*inputs: Any) -> list[Any]:
        return evaluated(program, inputs, _computed)

    if equation.primitive is primitives.remat_p:
        kept = {name: equation.params[name] for name in ("prevent_cse", "policy")}
        return jax.checkpoint(call, **kept)(*inputs)
    return call(*inputs)


def _dot_general(equation: JaxprEqn, inputs: list[Any], place: int) -> Array | None:
    """The product of x with all axes of a, or all of b: products of matrices.

    Of a kernel with more axes XLA would make copies in another order.
    """
    w, x, params = inputs[place], inputs[1 - place], equation.params
    contracted, batch = params["dimension_numbers"]
    k_axes, rank = w.a.ndim - 1, w.a.shape[-1]
    base, a, b = (
        array.reshape(rows, -1)
        for array, rows in zip(w, (w.a.size // rank, w.a.size // rank, rank), strict=True)
    )
    own = w.base.shape[k_axes:]
    axes = sorted(contracted[place])
    if axes == list(range(k_axes, w.base.ndim)):
        base, a, b, own = base.T, b.T, a.T, w.base.shape[:k_axes]
    elif axes != list(range(k_axes)):
        return None
    if any(batch):
        return None
    order = [of_x for _, of_x in sorted(zip(contracted[place], contracted[1 - place], strict=True))]
    x = jnp.moveaxis(x, order, range(x.ndim - len(order), x.ndim))
    free = x.shape[: x.ndim - len(order)]
    product = functools.partial(
        lax.dot_general, dimension_numbers=(((len(free),), (0,)), ((), ())),
        precision=params["precision"], preferred_element_type=params["preferred_element_type"],
    )
    x = x.reshape((*free, base.shape[0]))
    low = product(x, a)
    result = (product(x, base) + product(low, b.astype(low.dtype))).reshape((*free, *own))
    if place == 1:
        return result
    return jnp.moveaxis(result, range(len(free)), range(len(own), result.ndim))


def _convolution(equation: JaxprEqn, inputs: list[Any], place: int) -> Array | None:
    """A convolution whose kernel's last axis is that of the outputs."""
    w, params = inputs[place], equation.params
    numbers, last = params["dimension_numbers"], w.base.ndim - 1
    groups = (params["feature_group_count"], params["batch_group_count"])
    if place != 1 or w.b.ndim != 2 or numbers.rhs_spec[0] != last or groups != (1, 1):
        return None
    product = _bind(equation, _with(inputs, place, w.a))
    return _bind(equation, _with(inputs, place, w.base)) + _expanded(
        product, numbers.out_spec[1], w.b, params["precision"]
    )


def _gather(equation: JaxprEqn, inputs: list[Any], place: int) -> Array | None:
    """Rows of a table, with all numbers of the last axis, such as an embedding's."""
    w, params = inputs[place], equation.params
    numbers, sizes, last = (
        params["dimension_numbers"], params["slice_sizes"], w.base.ndim - 1
    )
    indexed = (
        *numbers.collapsed_slice_dims, *numbers.start_index_map, *numbers.operand_batching_dims
    )
    if place != 0 or w.b.ndim != 2 or last in indexed or sizes[last] != w.base.shape[last]:
        return None
    rank = w.a.shape[-1]
    # Of a row outside the table the fill value is the base's; the product adds nothing.
    rows = _bind(
        equation, _with(inputs, place, w.a), slice_sizes=(*sizes[:last], rank), fill_value=0
    )
    return _bind(equation, _with(inputs, place, w.base)) + _expanded(
        rows, numbers.offset_dims[-1], w.b
    )


def _transpose(equation: JaxprEqn, inputs: list[Any], place: int) -> LowRank | None:
    w, order = inputs[place], tuple(equation.params["permutation"])
    return LowRank(w.base.T, w.b.T, w.a.T) if order == (1, 0) else None


def _convert(equation: JaxprEqn, inputs: list[Any], place: int) -> LowRank | None:
    """Of floating point numbers, rounded before the product."""
    w, dtype = inputs[place], equation.params["new_dtype"]
    if not jnp.issubdtype(dtype, jnp.floating):
        return None
    return LowRank(*(array.astype(dtype) for array in w))


def _expanded(product: Array, at: int, other: Array, precision: Any = None) -> Array:
    """The product with another matrix [r, ...], whose axes take the place of the axis r."""
    result = jnp.tensordot(product, other.astype(product.dtype), (at, 0), precision=precision)
    new = other.ndim - 1
    return jnp.moveaxis(result, range(result.ndim - new, result.ndim), range(at, at + new))


def _with(inputs: list[Any], place: int, value: Array) -> list[Any]:
    return [*inputs[:place], value, *inputs[place + 1 :]]


def _bind(equation: JaxprEqn, inputs: list[Any], **changed: Any) -> Array:
    return equation.primitive.bind(*inputs, **(equation.params | changed))


# Operations that run a program, and the name of their parameter that is it. Those with derivatives
# of their own, `custom_jvp` and `custom_vjp`, are none of them: the derivatives would be lost.
_CALLS = {
    primitives.jit_p: "jaxpr", primitives.remat_p: "jaxpr", primitives.closed_call_p: "call_jaxpr",
}
# (equation, its inputs, the place of the only `LowRank` in them) -> output, or None.
_RULES: dict[Any, Callable[[JaxprEqn, list[Any], int], Any]] = {
    primitives.dot_general_p: _dot_general,
    primitives.conv_general_dilated_p: _convolution,
    primitives.gather_p: _gather,
    primitives.transpose_p: _transpose,
    primitives.convert_element_type_p: _convert,
}
