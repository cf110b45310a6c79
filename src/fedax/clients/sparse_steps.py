r"""Steps of SGD that change only the rows of a matrix that occur in the minibatch.

If a loss depends on a matrix w only through products y = x w with sparse x, its gradient is
:math:`x^\top \bar y`, as sparse as x. So the derivative is taken with respect to y, and the step
:math:`w - \gamma\, x^\top \bar y` changes only the rows of w that x selects. The gradient for all
of w is never built. Methods that need it (momentum, control variates, a proximal term) use
`loss_gradient`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedax.algorithm import Array, Model, Params
from fedax.clients.gradients import Gradient, Loss, mean_loss
from fedax.clients.minibatches import Minibatch
from fedax.clients.narrow import fast_gradient
from fedax.clients.sparse_product import add_product, product
from fedax.devices.internals import trace_state
from fedax.mistakes.errors import ModelError


class SparseGradient(NamedTuple):
    r"""The gradient :math:`\sum_u x_u^\top g_u` of a matrix, for each product u of the loss.

    Attributes:
      columns, values: x_u, as for `sparse_product`.
      rows: g_u, [B, C].
    """

    columns: tuple[Array, ...]
    values: tuple[Array, ...]
    rows: tuple[Array, ...]


class Multiplied:
    """Replaces a matrix in the loss, and records what it is multiplied with.

    Attributes:
      matrix: it.
      uses: the columns, the values and the product of each `sparse_product`, in their order.
      shape, dtype, ndim: of the matrix.
    """

    def __init__(self, matrix: Array, offsets: tuple[Array, ...] | None) -> None:
        self.matrix = matrix
        self.uses: list[tuple[Array, Array, Array]] = []
        self.shape, self.dtype, self.ndim = matrix.shape, matrix.dtype, matrix.ndim
        self._offsets, self._trace = offsets, trace_state()

    def product(self, columns: Array, values: Array) -> Array:
        """The product, plus an offset with respect to which its derivative is taken."""
        if trace_state() != self._trace:
            raise ModelError("The model's loss multiplies it inside such a function.")
        result = product(columns, values, self.matrix)
        if self._offsets is not None:
            result = result + self._offsets[len(self.uses)]
        self.uses.append((columns, values, result))
        return result


def sparse_product(columns: Array, values: Array, matrix: Array | Multiplied) -> Array:
    r"""The product of sparse rows with a matrix: :math:`y_b = \sum_j v_{b,j}\, w_{c_{b,j}}`.

    Only the gradient with respect to w is dense, and not even that for a parameter in
    `Model.sparse` if a client trains by plain SGD. Differentiable to any order with respect to
    values and matrix, and batched by `vmap`.

    Args:
      columns: c, integers [B, m] below N; negative ones are padding, and larger ones give NaN.
      values: v, [B, m]; cast to the dtype of `matrix`.
      matrix: w, [N, C].

    Returns:
      y, [B, C].

    Example:
      >>> w = jnp.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
      >>> columns = jnp.array([[2, 0], [1, -1]])
      >>> sparse_product(columns, jnp.array([[1.0, 10.0], [1.0, 1.0]]), w).tolist()
      [[15.0, 26.0], [3.0, 4.0]]
    """
    if isinstance(matrix, Multiplied):
        return matrix.product(columns, values)
    return product(columns, values, matrix)


def sparse_gradient(model: Model) -> Gradient:
    """The gradient of `mean_loss`, with a `SparseGradient` for the parameters in `model.sparse`."""

    def gradient(params: Params, batch: Minibatch, key: Array) -> tuple[Loss, Params]:
        leaves, structure = jax.tree.flatten(params)
        try:
            sparse = structure.flatten_up_to(model.sparse)
        except ValueError as error:
            raise ModelError(
                "The model's sparse must be a tree of True and False like its parameters, but "
                f"does not fit them: {error}"
            ) from None
        places = [place for place, is_sparse in enumerate(sparse) if is_sparse]
        dense = [None if place in places else leaf for place, leaf in enumerate(leaves)]

        def objective(dense: Any, offsets: Any) -> tuple[Array, tuple[Array, Any]]:
            full = list(dense)
            for place in places:
                full[place] = Multiplied(leaves[place], None if offsets is None else offsets[place])
            loss = mean_loss(model, structure.unflatten(full), batch, key)
            return loss.mean, (loss.weight, {place: full[place].uses for place in places})

        # First what is multiplied, then the derivative at offsets of 0.
        try:
            _, (_, uses) = jax.eval_shape(objective, dense, None)
        except ModelError as error:
            jax.eval_shape(lambda: mean_loss(model, params, batch, key))  # what fails anyhow
            raise ModelError(
                "A parameter in the model's sparse may only be used by "
                "fedax.models.sparse_product, in the loss itself and not inside jax.jit, "
                "jax.vmap, jax.checkpoint, jax.lax.cond and the like. Change the loss, or build "
                f"the model with sparse=None. {error}"
            ) from error.__cause__
        offsets = {
            place: tuple(jnp.zeros(y.shape, y.dtype) for *_, y in of_place)
            for place, of_place in uses.items()
        }
        derivative = jax.value_and_grad(objective, argnums=(0, 1), has_aux=True)
        (mean, (weight, uses)), (grads, rows) = derivative(dense, offsets)
        grads = fast_gradient(grads)
        for place in places:
            grads[place] = SparseGradient(
                tuple(columns for columns, *_ in uses[place]),
                tuple(values for _, values, _ in uses[place]),
                rows[place],
            )
        return Loss(mean, weight), structure.unflatten(grads)

    return gradient


def descend(params: Params, gradient: Params, learning_rate: Array | float) -> Params:
    """The parameters after a step of SGD, x - gamma g."""

    def step(leaf: Array, grad: Any) -> Array:
        rate = jnp.asarray(learning_rate, leaf.dtype)
        if not isinstance(grad, SparseGradient):
            return leaf + rate * -grad.astype(leaf.dtype)
        for columns, values, rows in zip(*grad, strict=True):
            leaf = add_product(columns, values, rate * -rows, leaf)
        return leaf

    return jax.tree.map(step, params, gradient)
