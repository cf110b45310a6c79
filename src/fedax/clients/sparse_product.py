r"""Products of sparse rows with a matrix, and their transpose, without dense intermediates.

With row b of the sparse matrix x given by its columns :math:`c_{b,1}, \dots, c_{b,m}` and values v,

.. math:: y_b = \sum_j v_{b,j}\, w_{c_{b,j}} \quad (y = x w), \qquad
    w_{c_{b,j}} \mathrel{+}= v_{b,j}\, g_b \quad (w + x^\top g)

The two are each other's transposes with respect to w, g and y, so they are primitives of JAX with
derivatives of any order, forward and backward, each again one of the two; many clients under
`vmap` are one product with their matrices below each other.

On a CPU the rows of w are gathered for a few columns of x at a time, and added to w one after the
other, in place. XLA's own gather and scatter, which other platforms use, took 5 and 2 times as long
on a CPU (100 rows of 100 columns, w of 10,000 x 500, 2 cores).
"""

from __future__ import annotations

import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp

from fedax.algorithm import Array
from fedax.devices.internals import (
    Primitive,
    in_transposition,
    new_primitive,
    set_derivatives,
)

# Number of columns of x that are gathered, or added, in a step of the loop.
GATHERED_AT_ONCE = 10
ADDED_AT_ONCE = 4


def product(columns: Array, values: Array, matrix: Array) -> Array:
    """The product x w, [B, C], of x [B, N] in sparse form and w [N, C].

    Args:
      columns: integers [B, m] below N; negative ones are ignored, and larger ones give NaN.
      values: [B, m]; cast to the dtype of `matrix`.
      matrix: w.

    Example:
      >>> w = jnp.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
      >>> product(jnp.array([[2, 0], [1, -1]]), jnp.array([[1.0, 10.0], [1.0, 1.0]]), w).tolist()
      [[15.0, 26.0], [3.0, 4.0]]
    """
    return _product_p.bind(*_cleaned(columns, values, matrix), matrix)


def add_product(columns: Array, values: Array, rows: Array, matrix: Array) -> Array:
    """The sum w + x^T g, [N, C], of x [B, N] in sparse form, g [B, C] and w [N, C].

    Columns and values as for `product`. Inside a loop, a w that is not used afterwards is changed
    in place.
    """
    return _add_p.bind(*_cleaned(columns, values, matrix), rows, matrix)


def _cleaned(columns: Array, values: Array, matrix: Array) -> tuple[Array, Array]:
    """Columns in 0 .. N - 1, int32, and values: 0 for nothing, NaN where there is no column."""
    count = len(matrix)
    columns, values = columns.astype(jnp.int32), values.astype(matrix.dtype)
    values = jnp.where(columns < 0, jnp.zeros_like(values), values)
    values = jnp.where(columns < count, values, jnp.full_like(values, jnp.nan))
    return jnp.clip(columns, 0, count - 1), values


def _dots(columns: Array, rows: Array, matrix: Array) -> Array:
    """g_b . w_c for every column c of every row b, [B, m]."""
    return jnp.einsum("bmc,bc->bm", matrix.at[columns].get(mode="promise_in_bounds"), rows)


def _product_everywhere(columns: Array, values: Array, matrix: Array) -> Array:
    return jnp.einsum("bm,bmc->bc", values, matrix.at[columns].get(mode="promise_in_bounds"))


def _product_on_cpu(columns: Array, values: Array, matrix: Array) -> Array:
    def partial(columns: Array, values: Array) -> Array:
        terms = (
            v[:, None] * matrix.at[c].get(mode="promise_in_bounds")
            for c, v in zip(columns, values, strict=True)
        )
        return functools.reduce(operator.add, terms)

    def add(total: Array, some: tuple[Array, Array]) -> tuple[Array, None]:
        return total + partial(*some), None

    if not columns.size:
        return jnp.zeros((columns.shape[0], matrix.shape[1]), matrix.dtype)
    size = min(GATHERED_AT_ONCE, columns.shape[1])
    chunks = [array.T.reshape(-1, size, len(array)) for array in _padded(columns, values, size)]
    start = partial(*(chunk[0] for chunk in chunks))
    return jax.lax.scan(add, start, (chunks[0][1:], chunks[1][1:]))[0]


def _add_everywhere(columns: Array, values: Array, rows: Array, matrix: Array) -> Array:
    return matrix.at[columns].add(values[:, :, None] * rows[:, None, :], mode="promise_in_bounds")


def _add_on_cpu(columns: Array, values: Array, rows: Array, matrix: Array) -> Array:
    if not columns.size:
        return matrix
    size = min(ADDED_AT_ONCE, columns.shape[1])
    columns, values = _padded(columns, values, size)
    groups = columns.shape[1] // size
    columns, values = columns.reshape(-1, size), values.reshape(-1, size)
    width = (1, matrix.shape[1])

    def add(i: Any, matrix: Array) -> Array:
        i, zero = jnp.asarray(i, jnp.int32), jnp.zeros((), jnp.int32)
        row = jax.lax.dynamic_slice(rows, (i // groups, zero), width)
        for j in range(size):
            place = (columns[i, j], zero)
            old = jax.lax.dynamic_slice(matrix, place, width)
            matrix = jax.lax.dynamic_update_slice(matrix, old + values[i, j] * row, place)
        return matrix

    return jax.lax.fori_loop(0, columns.shape[0], add, matrix)


def _padded(columns: Array, values: Array, size: int) -> tuple[Array, Array]:
    """With as many columns as are a multiple of `size`; those that are new have the value 0."""
    missing = ((0, 0), (0, -columns.shape[1] % size))
    return jnp.pad(columns, missing), jnp.pad(values, missing)


def _batched(primitive: Primitive, arguments: Any, axes: Any) -> tuple[Array, int]:
    """Clients' rows below each other; and their matrices, if each has its own."""
    count = next(
        array.shape[axis] for array, axis in zip(arguments, axes, strict=True) if axis is not None
    )

    def in_front(array: Array, axis: int | None) -> Array:
        if axis is None:
            return jnp.broadcast_to(array[None], (count, *array.shape))
        return jnp.moveaxis(array, axis, 0)

    *examples, matrix = arguments
    columns, *rest = map(in_front, examples, axes[:-1])
    if axes[-1] is not None or primitive is _add_p:
        matrix = in_front(matrix, axes[-1])
        first = matrix.shape[1] * jnp.arange(count, dtype=columns.dtype)
        columns = columns + first[:, None, None]
        matrix = _below_each_other(matrix)
    result = primitive.bind(*map(_below_each_other, (columns, *rest)), matrix)
    return result.reshape(count, len(result) // count, result.shape[1]), 0


def _below_each_other(array: Array) -> Array:
    return array.reshape(array.shape[0] * array.shape[1], array.shape[2])


_product_p = new_primitive(
    "sparse_product",
    lambda columns, values, matrix: matrix.update(shape=(columns.shape[0], matrix.shape[1])),  # noqa: ARG005
    _product_everywhere, _product_on_cpu, _batched,
)
_add_p = new_primitive(
    "add_sparse_product",
    lambda columns, values, rows, matrix: matrix,  # noqa: ARG005
    _add_everywhere, _add_on_cpu, _batched,
)


def _transposed_product(
    cotangent: Any, columns: Array, values: Any, matrix: Any
) -> tuple[None, Any, Any]:
    if in_transposition(matrix):
        zeros = jnp.zeros(matrix.aval.shape, matrix.aval.dtype)
        return None, None, _add_p.bind(columns, values, cotangent, zeros)
    return None, _dots(columns, cotangent, matrix), None


def _transposed_add(
    cotangent: Any, columns: Array, values: Any, rows: Any, matrix: Any
) -> tuple[None, Any, Any, Any]:
    of_values = of_rows = None
    if in_transposition(values):
        of_values = _dots(columns, rows, cotangent)
    if in_transposition(rows):
        of_rows = _product_p.bind(columns, values, cotangent)
    return None, of_values, of_rows, cotangent if in_transposition(matrix) else None


set_derivatives(
    _product_p,
    (
        None,
        lambda tangent, columns, values, matrix: _product_p.bind(columns, tangent, matrix),  # noqa: ARG005
        lambda tangent, columns, values, matrix: _product_p.bind(columns, values, tangent),  # noqa: ARG005
    ),
    _transposed_product,
)
set_derivatives(
    _add_p,
    (
        None,
        lambda tangent, columns, values, rows, matrix: _add_p.bind(  # noqa: ARG005
            columns, tangent, rows, jnp.zeros_like(matrix)
        ),
        lambda tangent, columns, values, rows, matrix: _add_p.bind(  # noqa: ARG005
            columns, values, tangent, jnp.zeros_like(matrix)
        ),
        lambda tangent, columns, values, rows, matrix: tangent,  # noqa: ARG005
    ),
    _transposed_add,
)
