"""Low-rank adapters: a frozen model, and for each large matrix a small product that is trained.

Hu, Shen, Wallis, Allen-Zhu, Li, Wang, Wang, Chen, "LoRA: Low-Rank Adaptation of Large Language
Models", ICLR 2022.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedax.algorithm import Array, Model, Params, PyTree
from fedax.factories import factory
from fedax.mistakes.model import require_model
from fedax.models.frozen import Where, chosen, wrapped
from fedax.models.low_rank import LowRank, unmerged
from fedax.models.parameters import named_leaves
from fedax.validate import check_count, check_number, quoted


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

    fedax stores kernels the other way round, [in, out] with k = in and d = out. Of a kernel with
    more axes, the last is d and the others are k, such as k = h w in of a convolution's kernel
    [h, w, in, out]. A kernel with three axes has k in the first alone if k + d is then smaller:
    of attention, [in, heads, d] has k = in, and [heads, d, out] has k = heads d.

    Args:
      model: the learning problem.
      params: its trained parameters W_0.
      rank: r >= 1.
      where: which arrays have an adapter, as in `frozen`; each has two axes or more. None: all of
        two axes or more in which a product of rank r has fewer numbers than the array.
      alpha: > 0, the scale; None is r, a factor of 1.

    Returns:
      A model with parameters `{name: {"a": [k, r], "b": [r, d]}}`. `merge_lora` puts them into W_0.
      A product x W is computed as x W_0 + (x A) B, without W and without its gradient. So are
      x W^T, a convolution whose kernel's last axis is that of its outputs, and rows of W that are
      looked up, also inside `jax.jit` and `jax.checkpoint`. Where the model uses W in another way,
      W is computed: in a sum, in part of the sums over k, in `jax.vmap` over W, and in
      `jax.lax.scan`, `while_loop`, `cond`, `jax.custom_jvp` and `jax.custom_vjp`, whose derivatives
      stay their own.

    Raises:
      TypeError: if the model is not a `fedax.Model`, or `where` is neither names nor a function.
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
    if not adapted and where is not None:
        raise ValueError(
            f"where chooses no array, so nothing would be trained. Name some of "
            f"{quoted(list(leaves))}."
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
        return unmerged(function, params, _changed(own, params, alpha))

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
    changed = _changed(params, full, alpha)
    leaves = [
        changed[name].whole() if name in changed else leaf
        for name, leaf in named_leaves(full).items()
    ]
    return jax.tree.unflatten(jax.tree.structure(full), leaves)


def _changed(
    own: Params, full: Params, alpha: float | Array | None
) -> dict[str, LowRank]:
    """The whole model's arrays that have an adapter."""

    def low_rank(base: Array, a: Array, b: Array) -> LowRank:
        rank, axes = a.shape[1], _split(base.shape)
        scale = 1 if alpha is None else jnp.asarray(alpha, a.dtype) / rank
        a = (a * scale).reshape((*base.shape[:axes], rank))
        return LowRank(base, a, b.reshape((rank, *base.shape[axes:])))

    return {
        name: low_rank(leaf, **own[name])
        for name, leaf in named_leaves(full).items() if name in own
    }


def _split(shape: tuple[int, ...]) -> int:
    """How many of the first axes of an array are the rows of its matrix."""
    last = len(shape) - 1
    return min((last, 1), key=lambda axes: sum(_sizes(shape, axes))) if last == 2 else last


def _matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    return _sizes(shape, _split(shape))


def _sizes(shape: tuple[int, ...], axes: int) -> tuple[int, int]:
    return math.prod(shape[:axes]), math.prod(shape[axes:])


def _worth_it(shape: tuple[int, ...], rank: int) -> bool:
    return len(shape) >= 2 and rank * sum(_matrix(shape)) < math.prod(shape)
