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

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fedax.algorithm import Array, PyTree, Reply
from fedax.clients.precision import widen

# The sums over clients have room for so many.
CLIENTS = 2.0**24

# The fields of uploads that servers square.
SQUARED = ("pseudo_gradient", "gradient")

# Arrays of at most so many numbers are looked at together.
SMALL = 2**15


def acceptable(reply: Reply) -> Array:
    """Whether a client's reply counts, a bool scalar."""
    weight = widen(reply.weight)
    good = (weight >= 0) & (weight <= _most(weight.dtype) / CLIENTS)
    good &= all_finite(reply.client_state)
    kinds: dict[bool, list[Array]] = {True: [], False: []}
    for path, leaf in jax.tree_util.tree_leaves_with_path(reply.upload):
        if jnp.issubdtype(leaf.dtype, jnp.floating):  # others are for an `individual` exchange
            kinds[any(getattr(key, "name", None) in SQUARED for key in path)].append(leaf)
    for squared, leaves in kinds.items():
        for leaf in _joined(leaves):
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
    leaves = jax.tree.leaves(tree)
    for leaf in _joined([leaf for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.inexact)]):
        finite &= jnp.isfinite(leaf).all()
    return finite


def finite_beside(server_state: Any) -> list[Array]:
    """For each array of the server's state beside its `params` whether it is finite.

    Some are infinite from the start, such as the best loss of a schedule that waits for a plateau.
    """
    return [
        all_finite(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(server_state)
        if getattr(path[0], "name", None) != "params"
    ]


def fields_of(upload: PyTree) -> dict[str, Any]:
    """The fields of an upload, and of those inside a wrapper's."""
    if not hasattr(upload, "_asdict"):
        return {}
    fields = upload._asdict()
    return fields_of(fields.pop("inner", None)) | fields


def single_numbers(upload: PyTree) -> list[str]:
    """The names of an upload's fields that are one number beside the change of the model."""
    return [
        name for name, value in fields_of(upload).items()
        if getattr(value, "ndim", None) == 0 and name not in SQUARED
    ]


def weighted_sum(weights: Array, uploads: Array) -> Array:
    """The sum over clients of weight times upload [n, ...], in float32 at least."""
    uploads = widen(uploads)
    return jnp.tensordot(weights.astype(uploads.dtype), uploads, 1, precision="highest")


def _joined(leaves: Sequence[Array]) -> list[Array]:
    """The same numbers in fewer arrays, as a CPU's compiler takes 10 ms for each loop over one."""
    found, small = [], dict[Any, list[Array]]()
    for leaf in leaves:
        if leaf.size > SMALL:
            found.append(leaf)
        else:
            small.setdefault(leaf.dtype, []).append(leaf.ravel())
    return found + [jnp.concatenate(together) for together in small.values()]


def _largest(leaf: Array, weight: Array, *, squared: bool) -> Array:
    """The largest number that the leaf may have, in its dtype."""
    own = largest_squared(leaf.dtype) if squared else _most(leaf.dtype)
    summed = widen(leaf).dtype
    room = jnp.asarray(_most(summed) / CLIENTS, summed) / jnp.maximum(weight.astype(summed), 1)
    return jnp.minimum(jnp.asarray(own, summed), room).astype(leaf.dtype)


def _most(dtype: Any) -> float:
    return float(jnp.finfo(dtype).max)
