"""Low-rank adapters: a frozen model, and for each large matrix a small product that is trained.

Hu, Shen, Wallis, Allen-Zhu, Li, Wang, Wang, Chen, "LoRA: Low-Rank Adaptation of Large Language
Models", ICLR 2022.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedax.algorithm import Array, Model, Params, PyTree
from fedax.devices.internals import JaxprEqn, evaluated, primitives
from fedax.factories import factory
from fedax.mistakes.model import require_model
from fedax.models.frozen import Where, chosen, wrapped
from fedax.models.parameters import named_leaves
from fedax.validate import check_count, check_number


class _Adapted(NamedTuple):
    """A matrix W_0 + a b that no program has computed yet; a has its scale."""

    base: Array  # [..., d]
    a: Array  # [k, r]
    b: Array  # [r, d]

    def whole(self) -> Array:
        return self.base + (self.a @ self.b).reshape(self.base.shape)


@factory
def lora(
    model: Model,
    params: Params,
    rank: int = 4,
    where: Where | None = None,
    alpha: float | Array | None = None,
) -> Model:
    r"""A model whose matrices are frozen and changed by products of low rank (Hu et al. 2022).

    .. math:: W = W_0 + \tfrac{\alpha}{r} B A, \qquad
        B \in \mathbb{R}^{d \times r},\ A \in \mathbb{R}^{r \times k}

    (equation 3). B starts at 0, so the model starts as the given one. A is drawn from the normal
    distribution with variance 1 / k. Every other array is frozen. Only the As and Bs are trained,
    sent and counted. A mean over clients is that of the As and of the Bs, as is common, which is
    not the mean of the products.

    fedax stores kernels the other way round, [in, out] with k = in and d = out. Of a convolution's
    kernel [h, w, in, out], the first three axes are one, k = h w in.

    Args:
      model: the learning problem.
      params: its trained parameters W_0.
      rank: r >= 1.
      where: which arrays have an adapter, as in `frozen`; each has two axes or more. None: all of
        two axes or more in which a product of rank r has fewer numbers than the array.
      alpha: > 0, the scale; None is r, a factor of 1.

    Returns:
      A model with parameters `{name: {"a": [k, r], "b": [r, d]}}`. `merge_lora` puts them into W_0.
      A product x W is computed as x W_0 + (x A) B, without W and without its gradient. So is a
      convolution whose kernel's last axis is that of its outputs. Where the model uses W in another
      way, or inside a program of its own such as `jax.lax.scan`, W is computed.

    Raises:
      TypeError: if the model is not a `fedax.Model`.
      ValueError: if a number is out of its range, `where` names no array, or an array has fewer
        than two axes.

    Example:
      >>> from fedax.models import mlp_classifier
      >>> model = mlp_classifier(784, [300, 100], 10)
      >>> small = lora(model, model.init(jax.random.key(0)), rank=4)
      >>> own = small.init(jax.random.key(1))
      >>> list(own), own["0.w"]["a"].shape, own["0.w"]["b"].shape
      (['0.w', '1.w', '2.w'], (784, 4), (4, 300))
    """
    require_model(model)
    check_count("rank", rank, at_least=1)
    if alpha is not None:
        check_number("alpha", alpha, above=0)
    leaves = named_leaves(params)
    if where is None:
        adapted = [name for name, leaf in leaves.items() if _worth_it(leaf.shape, rank)]
    else:
        adapted = [n for n, yes in zip(leaves, chosen(params, where), strict=True) if yes]
    for name in adapted:
        if leaves[name].ndim < 2:
            raise ValueError(
                f"An adapter needs an array with two axes or more, but {name!r} has the shape "
                f"{list(leaves[name].shape)}. Name only matrices and kernels with where."
            )
    if not adapted:
        raise ValueError(
            f"No array has an adapter of rank {rank}: no product of two such matrices has fewer "
            "numbers than an array of the model. Choose a smaller rank, or name arrays with where."
        )

    def init(key: Array) -> Params:
        drawn = {}
        for number, name in enumerate(adapted):
            k, d = _matrix(leaves[name].shape)
            a = jax.random.normal(jax.random.fold_in(key, number), (k, rank), leaves[name].dtype)
            b = jnp.zeros((rank, d), leaves[name].dtype)
            drawn[name] = {"a": a / math.sqrt(k), "b": b}
        return drawn

    def through(function: Callable[[Params], PyTree], own: Params) -> PyTree:
        return _unmerged(function, _adapters(own, params, alpha), params)

    return wrapped(model, through)._replace(init=init, sparse=None)


def merge_lora(params: Params, full: Params, alpha: float | Array | None = None) -> Params:
    r"""The whole model's parameters, W_0 + alpha / r (A B)^T with the adapters.

    Args:
      params: parameters of a `lora` model.
      full: W_0, like the parameters of the model that it was made from.
      alpha: the scale that `lora` was given.

    Example:
      >>> full = {"w": jnp.ones((2, 2))}
      >>> own = {"w": {"a": jnp.array([[1.0], [2.0]]), "b": jnp.array([[3.0, 4.0]])}}
      >>> merge_lora(own, full)["w"].tolist()
      [[4.0, 5.0], [7.0, 9.0]]
    """
    merged = [
        leaf.whole() if isinstance(leaf, _Adapted) else leaf
        for leaf in _adapters(params, full, alpha)
    ]
    return jax.tree.unflatten(jax.tree.structure(full), merged)


def _adapters(
    own: Params, full: Params, alpha: float | Array | None
) -> list[Array | _Adapted]:
    """The leaves of the whole model."""

    def adapted(leaf: Array, a: Array, b: Array) -> _Adapted:
        scale = 1 if alpha is None else jnp.asarray(alpha, a.dtype) / a.shape[1]
        return _Adapted(leaf, a * scale, b)

    return [
        adapted(leaf, **own[name]) if name in own else leaf
        for name, leaf in named_leaves(full).items()
    ]


def _unmerged(
    function: Callable[[Params], PyTree], leaves: list[Array | _Adapted], full: Params
) -> PyTree:
    """What a function makes of parameters, without merging what its products can do without."""
    program, shapes = jax.make_jaxpr(function, return_shape=True)(full)
    return jax.tree.unflatten(jax.tree.structure(shapes), [
        leaf.whole() if isinstance(leaf, _Adapted) else leaf
        for leaf in evaluated(program, leaves, _computed)
    ])


def _computed(equation: JaxprEqn, inputs: list[Any]) -> list[Any] | None:
    """An equation's outputs where it multiplies by an adapted matrix; else it merges them."""
    places = [n for n, value in enumerate(inputs) if isinstance(value, _Adapted)]
    if not places:
        return None
    if places == [1] and (product := _product(equation)) is not None:
        base, a, b = inputs[1]
        own = product(inputs[0], a.reshape(*base.shape[:-1], a.shape[1]))
        return [product(inputs[0], base) + own @ b]
    for place in places:
        inputs[place] = inputs[place].whole()
    return None


def _product(equation: JaxprEqn) -> Callable[[Array, Array], Array] | None:
    """(x, kernel) -> outputs, if the equation is a product that keeps the kernel's last axis."""
    params = dict(equation.params)
    kernel: Any = equation.invars[1].aval
    if equation.primitive is primitives.dot_general_p:
        (_, contracted), (batch, _) = params["dimension_numbers"]
        if kernel.ndim == 2 and tuple(contracted) == (0,) and not batch:
            params["out_sharding"] = None
            return lambda x, w: jax.lax.dot_general(x, w, **params)
    if equation.primitive is primitives.conv_general_dilated_p:
        numbers = params["dimension_numbers"]
        last = kernel.ndim - 1
        groups = (params["feature_group_count"], params["batch_group_count"])
        if (numbers.rhs_spec[0], numbers.out_spec[1]) == (last, last) and groups == (1, 1):
            return lambda x, w: jax.lax.conv_general_dilated(x, w, **params)
    return None


def _matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    return int(np.prod(shape[:-1])), shape[-1]


def _worth_it(shape: tuple[int, ...], rank: int) -> bool:
    return len(shape) >= 2 and rank * sum(_matrix(shape)) < math.prod(shape)
