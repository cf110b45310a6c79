"""Names of the arrays in a pytree, and whether two pytrees have the same arrays."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedax.algorithm import PyTree
from fedax.validate import so_many

# How the only array is called where the tree is an array.
ALONE = "params"


def named_leaves(tree: PyTree) -> dict[str, Any]:
    """The leaves by name, in order; a name is the path to the leaf, joined by dots.

    Raises:
      ValueError: if two leaves have the same name, because keys contain dots.

    Example:
      >>> list(named_leaves({"dense": {"w": 1.0, "b": 2.0}, "scales": [3.0, 4.0]}))
      ['dense.b', 'dense.w', 'scales.0', 'scales.1']
    """
    named: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        name = jax.tree_util.keystr(path, simple=True, separator=".") if path else ALONE
        if name in named:
            raise ValueError(
                f"Two arrays would both be named {name!r}, as names are keys joined by dots; "
                "rename one of the keys."
            )
        named[name] = leaf
    return named


def fitted(tree: PyTree, like: PyTree, what: str, whose: str) -> PyTree:
    """The tree's leaves in the structure of `like`, matched by their names.

    Args:
      tree: the given tree; leaves [...].
      like: the tree it must match: same names, shapes and dtypes.
      what, whose: names of the two trees, for the message.

    Raises:
      ValueError: if an array is missing, unexpected, or has another shape or dtype; the message
        names the first.
    """
    given, expected = named_leaves(tree), named_leaves(like)
    for name, array in expected.items():
        if name not in given:
            raise ValueError(
                f"{what} has no array {name!r}, but {whose} has one, {described(array)}; it has "
                f"{_some(list(given))}."
            )
        found = given[name]
        if np.shape(found) != np.shape(array) or _dtype(found) != _dtype(array):
            raise ValueError(
                f"The array {name!r} of {what} is {described(found)}, but that of {whose} is "
                f"{described(array)}."
                + (" Convert it with .astype." if np.shape(found) == np.shape(array) else "")
            )
    for name in given:
        if name not in expected:
            raise ValueError(
                f"{what} has an array {name!r}, but {whose} does not; it has "
                f"{_some(list(expected))}."
            )
    leaves = [given[name] for name in expected]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def counted(tree: PyTree) -> str:
    """The size of a tree, such as '15 parameters in 2 arrays'."""
    leaves = jax.tree.leaves(tree)
    size = sum(map(np.size, leaves))
    return f"{so_many(size, 'parameter')} in {so_many(len(leaves), 'array')}"


def described(array: Any) -> str:
    """Dtype and shape, such as 'float32[3, 4]'."""
    return f"{_dtype(array)}{list(np.shape(array))}"


def _dtype(array: Any) -> Any:
    return getattr(array, "dtype", None) or jnp.asarray(array).dtype


def _some(names: list[str]) -> str:
    """Names for a message; only the first few if there are many."""
    if not names:
        return "none"
    return ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5} more" * (len(names) > 5))
