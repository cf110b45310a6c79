r"""SGD steps of narrow matrices, such as a classifier's last layer, on a CPU.

For inputs x [B, D], a matrix w [D, C] and the gradient :math:`\bar y` of y = x w, a step is

.. math:: w \leftarrow w - \gamma\, x^\top \bar y

On a CPU, XLA computes the product row by row, C numbers at a time, so with few classes most of a
vector unit is idle. Here the product is computed as :math:`(\bar y^\top x)^\top`, and w is stored
transposed from step to step, so that both run along D. Models and optimizers still see w [D, C].
For 784 inputs and 10 classes a step of logistic regression takes 6.5 microseconds instead of 13.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np

from fedax.algorithm import Array, PyTree

Tree = TypeVar("Tree", bound=PyTree)

# Measured on a CPU with batches of 4, 20 and 64: how many times as fast a step is. 2 to 16 columns:
# with 128 rows 1.1 to 1.9, with 784 1.7 to 2.7, with 3072 1.6 to 8.4, but with 32 rows 1.0 to 1.4.
# More columns, 128 to 3072 rows: 32 gave 0.9 to 2.4, 62 gave 0.4 to 1.6.
MOST_COLUMNS = 16
FEWEST_ROWS = 128
# A larger matrix may be an embedding, whose rows are looked up: transposed that is slow.
MOST_NUMBERS = 2**16


def fast_gradient(gradient: Tree) -> Tree:
    """The same gradient, with narrow matrices computed along their rows."""
    # The barrier keeps XLA from turning the product round again.
    return jax.tree.map(
        lambda g: jax.lax.optimization_barrier(g.T).T if _is_narrow(g) else g, gradient
    )


def transposition(tree: PyTree) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """How to hold such a tree from step to step, and how to get it back; both keep every bit.

    Args:
      tree: arrays, of which the narrow matrices are held as the vector of their columns. As a
        vector because XLA would lay out a transposed matrix as it was before.

    Example:
      >>> import jax.numpy as jnp
      >>> tree = {"w": jnp.arange(600.0).reshape(200, 3), "b": jnp.zeros(3)}
      >>> hold, restore = transposition(tree)
      >>> bool((restore(hold(tree))["w"] == tree["w"]).all())
      True
    """
    leaves, structure = jax.tree.flatten(tree)
    shapes = [np.shape(leaf) if _is_narrow(leaf) else None for leaf in leaves]

    def through(function: Callable[[Array, tuple[int, int]], Array]) -> Callable[[Any], Any]:
        def mapped(tree: Any) -> Any:
            leaves = structure.flatten_up_to(tree)
            return structure.unflatten([
                leaf if shape is None else function(leaf, shape)
                for leaf, shape in zip(leaves, shapes, strict=True)
            ])

        return mapped

    return (
        through(lambda leaf, shape: leaf.T.reshape(math.prod(shape))),
        through(lambda leaf, shape: leaf.reshape(shape[1], shape[0]).T),
    )


def _is_narrow(leaf: Any) -> bool:
    shape = np.shape(leaf)
    return (
        len(shape) == 2
        and shape[0] >= FEWEST_ROWS
        and 2 <= shape[1] <= MOST_COLUMNS
        and math.prod(shape) <= MOST_NUMBERS
        and jax.default_backend() == "cpu"
    )
