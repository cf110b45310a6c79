"""Models of which some arrays are frozen: neither trained, sent, nor counted."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import jax

from fedax.algorithm import Array, Batch, Model, Params, PyTree
from fedax.factories import factory
from fedax.mistakes.model import require_model
from fedax.models.parameters import named_leaves
from fedax.validate import quoted

Where: TypeAlias = str | Sequence[str] | Callable[[str], bool]


@factory
def frozen(model: Model, params: Params, where: Where) -> Model:
    """A model that trains some of its arrays and keeps the others as they are.

    Every method works with it as it is. Only the trained arrays are its parameters: only they are
    sent, averaged, kept in client states, saved and counted by `fedax.communication`.

    Args:
      model: the learning problem.
      params: its parameters, for instance of a run: the frozen arrays, and where training of the
        others starts.
      where: which arrays are frozen: the name of an array or of a group, several names (in text:
        with commas in between), or a function `(name) -> bool`. A name is the keys joined by dots,
        such as "stem.kernel"; "stem" is the group of all whose names begin with "stem.".

    Returns:
      A model whose parameters are those of the given one, with None for each frozen array.
      `merged` puts them together again.

    Raises:
      TypeError: if the model is not a `fedax.Model`, or `where` is neither names nor a function.
      ValueError: if `where` names no array, or freezes all or none.

    Example:
      >>> from fedax.models import mlp_classifier
      >>> model = mlp_classifier(4, [3], 2)
      >>> params = model.init(jax.random.key(0))
      >>> head = frozen(model, params, where="0")
      >>> list(named_leaves(head.init(jax.random.key(1))))
      ['1.b', '1.w']
    """
    require_model(model)
    fixed = chosen(params, where)
    if all(fixed) or not any(fixed):
        raise ValueError(
            f"where must freeze some arrays and leave some to train, but freezes "
            f"{sum(fixed)} of {len(fixed)}: {quoted(list(named_leaves(params)))}."
        )
    structure = jax.tree.structure(params)

    def trained(tree: PyTree) -> PyTree:
        leaves = zip(fixed, structure.flatten_up_to(tree), strict=True)
        return structure.unflatten([None if frozen else leaf for frozen, leaf in leaves])

    def through(function: Callable[[Params], PyTree], own: Params) -> PyTree:
        return function(merged(own, params))

    sparse = None if model.sparse is None else trained(model.sparse)
    return wrapped(model, through)._replace(init=lambda _: trained(params), sparse=sparse)


def merged(params: Params, full: Params) -> Params:
    """All arrays of a `frozen` model: the trained ones, and those of `full` where they are None.

    Args:
      params: trained parameters of the frozen model.
      full: the parameters from which `frozen` made it.

    Example:
      >>> merged({"stem": None, "head": 3.0}, {"stem": 1.0, "head": 2.0})
      {'head': 3.0, 'stem': 1.0}
    """
    return jax.tree.map(lambda fixed, own: fixed if own is None else own, full, params)


def wrapped(model: Model, through: Callable[[Callable[[Params], Any], Params], Any]) -> Model:
    """The model with other parameters.

    Args:
      model: the learning problem.
      through: (function of the model's parameters, other parameters) -> its value.
    """

    @functools.wraps(model.loss)
    def loss(params: Params, batch: Batch, key: Array, **mask: Array) -> tuple[Array, Array]:
        return through(lambda whole: model.loss(whole, batch, key, **mask), params)

    @functools.wraps(model.outputs)
    def outputs(params: Params, batch: Batch, **mask: Array) -> PyTree:
        return through(lambda whole: model.outputs(whole, batch, **mask), params)

    def check(params: Params, arrays: Mapping[str, Any]) -> None:
        if model.check is not None:
            whole = jax.eval_shape(lambda own: through(lambda whole: whole, own), params)
            model.check(whole, arrays)

    return model._replace(loss=loss, outputs=outputs, check=check)


def chosen(params: Params, where: Where) -> list[bool]:
    """Which of the arrays `where` means, in the order of `jax.tree.leaves`.

    Raises:
      TypeError: if `where` is neither names nor a function.
      ValueError: if a name is that of no array and no group.

    Example:
      >>> chosen({"scale": 1.0, "offset": 2.0, "w": 3.0}, "scale, offset")
      [True, True, False]
    """
    names = list(named_leaves(params))
    if callable(where):
        return [bool(where(name)) for name in names]
    groups = _groups(where, names)
    for group in groups:
        if not any(_within(name, group) for name in names):
            raise ValueError(
                f"where names {group!r}, but the model has no such array or group. It has "
                f"{quoted(names)}."
            )
    return [any(_within(name, group) for group in groups) for name in names]


def _groups(where: Any, names: list[str]) -> list[str]:
    """The names in `where`; text has them with commas in between."""
    if isinstance(where, str):
        return [name.strip() for name in where.split(",") if name.strip()]
    groups = list(where) if isinstance(where, Iterable) else [where]
    for group in groups:
        if not isinstance(group, str):
            raise TypeError(
                "where must be the name of an array or group, several names, or a function "
                f"(name) -> bool, but is {quoted(where)}. The model has {quoted(names)}."
            )
    return groups


def _within(name: str, group: str) -> bool:
    return name == group or name.startswith(f"{group}.")
