"""Divides the arrays of a model, and of what is like it, into shared and personal ones."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedax.algorithm import Array, Model, PyTree
from fedax.mistakes.errors import AlgorithmError
from fedax.mistakes.model import call_init
from fedax.models.frozen import Where, chosen
from fedax.models.parameters import named_leaves
from fedax.validate import quoted


class Part(NamedTuple):
    """The shared or the personal arrays of a tree that is like the parameters, in its order."""

    arrays: tuple[Array, ...]


class PersonalMessage(NamedTuple):
    """What is sent to a client: the wrapped algorithm's message without personal arrays."""

    inner: PyTree
    round_index: Array


class Division(NamedTuple):
    """Which arrays of the parameters are personal.

    Attributes:
      structure: of the parameters.
      shapes: of their arrays.
      personal: whether each is personal.
    """

    structure: Any
    shapes: tuple[tuple[int, ...], ...]
    personal: tuple[bool, ...]

    def part(self, tree: PyTree, *, personal: bool) -> PyTree:
        """The tree with one `Part` of everything in it that is like the parameters."""

        def is_like(tree: PyTree) -> bool:
            return jax.tree.structure(tree) == self.structure and (
                tuple(map(jnp.shape, jax.tree.leaves(tree))) == self.shapes
            )

        def take(tree: PyTree) -> PyTree:
            if not is_like(tree):
                return tree
            arrays = zip(jax.tree.leaves(tree), self.personal, strict=True)
            return Part(tuple(array for array, own in arrays if own == personal))

        return jax.tree.map(take, tree, is_leaf=is_like)

    def joined(self, shared: PyTree, personal: PyTree) -> PyTree:
        """The whole of two trees' parts; everything else is the first one's."""

        def join(one: PyTree, other: PyTree) -> PyTree:
            if not _is_part(one):
                return one
            arrays = {False: iter(one.arrays), True: iter(other.arrays)}
            return self.structure.unflatten([next(arrays[own]) for own in self.personal])

        return jax.tree.map(join, shared, personal, is_leaf=_is_part)

    def filled(self, tree: PyTree, *, personal: bool, zeros: bool = True) -> PyTree:
        """The whole of a tree's shared or personal parts, with zeros or None for the other ones."""

        def fill(tree: PyTree) -> PyTree:
            if not _is_part(tree):
                return tree
            given, dtype = iter(tree.arrays), tree.arrays[0].dtype
            return self.structure.unflatten([
                next(given) if own == personal else jnp.zeros(shape, dtype) if zeros else None
                for own, shape in zip(self.personal, self.shapes, strict=True)
            ])

        return jax.tree.map(fill, tree, is_leaf=_is_part)


def require_whole(message: PyTree, cure: str) -> PyTree:
    """The message of an algorithm to a client.

    Raises:
      AlgorithmError: if it is one of `personal`, without personal arrays; the cure says what to do.
    """
    if isinstance(message, PersonalMessage):
        raise AlgorithmError(f"personal sends only the shared arrays of the model. {cure}")
    return message


def divided(model: Model, where: Where | None) -> Division:
    """Which of the model's arrays are personal.

    Raises:
      TypeError: if `where` is neither names nor a function.
      ValueError: if `where` names no array, unless it is an empty sequence, or leaves none
        to share.
    """
    params = jax.eval_shape(lambda: call_init(model, jax.random.key(0)))
    names = quoted(list(named_leaves(params)))
    if isinstance(where, str) and where.strip() == "()":  # as on the command line
        where = ()
    elif where is None:
        where = ""
    own = tuple(chosen(params, where))
    if not any(own) and (isinstance(where, str) or callable(where)):
        what = "where chooses no array" if callable(where) else f"where is {where!r}"
        raise ValueError(
            f"{what}, so nothing would be personal. Name arrays or groups of the model, as in "
            f"where={next(iter(named_leaves(params)), 'head')!r}. It has {names}. "
            "where=() says that all are shared."
        )
    if own and all(own):
        raise ValueError(
            f"where must leave some arrays to share, but all are personal: {names}."
        )
    shapes = tuple(leaf.shape for leaf in jax.tree.leaves(params))
    return Division(jax.tree.structure(params), shapes, own)


def _is_part(tree: PyTree) -> bool:
    return isinstance(tree, Part)
