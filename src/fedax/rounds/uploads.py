r"""Which uploads enter the mean, and whether the server's state has overflowed.

An upload counts if all its numbers are finite, its weight is not negative, and

- the square of every number of a `pseudo_gradient` or `gradient` is finite in that array's dtype
  (\|u\| <= 1.8e19 in float32), because adaptive servers square them: one infinite second moment
  would make every later step 0;
- every number times the client's weight leaves room for 2^24 clients in the sum
  (weight \|u\| <= 2e31 in float32).

If something overflows anyway, such as a sum of squares over many rounds, the run ends as diverged
in that round.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fedax.algorithm import Array, PyTree, Reply
from fedax.clients.precision import widen

# The sums over clients have room for so many.
CLIENTS = 2.0**24

# The fields of uploads that servers square.
SQUARED = ("pseudo_gradient", "gradient")


def acceptable(reply: Reply, *, individual: bool) -> Array:
    """Whether a client's reply counts, a bool scalar.

    Args:
      reply: of one client.
      individual: the server gets the uploads one by one, in any dtype, and no sum is taken.
    """
    weight = widen(reply.weight)
    good = (weight >= 0) & (weight <= _most(weight.dtype) / CLIENTS)
    good &= all_finite(reply.client_state)
    if individual:
        good &= all_finite(reply.upload)
    else:
        for path, leaf in jax.tree_util.tree_leaves_with_path(reply.upload):
            squared = any(getattr(key, "name", None) in SQUARED for key in path)
            good &= (jnp.abs(leaf) <= _largest(leaf, weight, squared=squared)).all()
    for value, its_weight in reply.info.values():  # a loss of NaN spoils the client as well
        good &= (jnp.abs(value) <= _largest(value, its_weight, squared=False)) | (its_weight == 0)
    return good


def largest_squared(dtype: Any) -> float:
    """The largest number of a pseudo-gradient of this dtype."""
    return _most(dtype) ** 0.5


def all_finite(tree: PyTree) -> Array:
    """Whether all numbers of a tree are finite, a bool scalar."""
    finite = jnp.asarray(True)
    for leaf in jax.tree.leaves(tree):
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            finite &= jnp.isfinite(leaf).all()
    return finite


def overflows(was_finite: PyTree, server_state: Any) -> Array:
    """Whether an array of the server's state is not finite that was, a bool scalar.

    Some are infinite from the start, such as the best loss of a schedule that waits for a plateau.

    Args:
      was_finite: like the state, a bool scalar for each array, from before the round.
      server_state: after it.
    """
    lost = jnp.asarray(False)
    for was, leaf in zip(jax.tree.leaves(was_finite), jax.tree.leaves(server_state), strict=True):
        lost |= was & ~all_finite(leaf)
    return lost


def _largest(leaf: Array, weight: Array, *, squared: bool) -> Array:
    """The largest number that the leaf may have, in its dtype."""
    own = largest_squared(leaf.dtype) if squared else _most(leaf.dtype)
    summed = widen(leaf).dtype
    room = jnp.asarray(_most(summed) / CLIENTS, summed) / jnp.maximum(weight.astype(summed), 1)
    return jnp.minimum(jnp.asarray(own, summed), room).astype(leaf.dtype)


def _most(dtype: Any) -> float:
    return float(jnp.finfo(dtype).max)
