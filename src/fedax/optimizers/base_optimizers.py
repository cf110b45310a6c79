"""Centralised optimizers for Mime: a direction U and an update V of the statistics.

Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh, "Mime: Mimicking Centralized Stochastic
Algorithms in Federated Learning" (2020), Table 4 (its denominator, garbled in the available text,
is read as epsilon + sqrt v). A step at the gradient g with statistics s is

    x <- x - eta U(g, s),    then    s <- V(g, s).

symbol    argument              meaning
beta      momentum              decay of the first moment m (Adam: beta_1)
beta_2    second_moment_decay   decay of the second moment v (RMSProp: beta)
epsilon   adaptivity            added to sqrt(v)
v_0       initial_accumulator   v before the first round; None means epsilon^2

The paper does not give v_0. With v_0 = 0 the first round's steps are divided by epsilon alone; with
epsilon^2 (the rule of Reddi et al. 2021) by 2 epsilon, so they are half as long. Once v has grown,
the difference disappears.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedax.algorithm import Array, Params, PyTree
from fedax.factories import factory
from fedax.validate import check_number


class BaseOptimizer(NamedTuple):
    """A centralised optimizer in two parts; write your own with three functions.

    Attributes:
      init: (params) -> s.
      direction: U, (g, s) -> like the parameters.
      update: V, (g, s) -> s.
    """

    init: Any  # (params) -> s; optax's own type names its argument
    direction: Callable[[Params, PyTree], Params]
    update: Callable[[Params, PyTree], PyTree]


class Moments(NamedTuple):
    """Statistics of the bases below; a moment that a base does not have is ().

    Attributes:
      m: first moment of the gradient, like the parameters.
      v: second moment, like the parameters.
    """

    m: Any
    v: Any


@factory
def sgd() -> BaseOptimizer:
    """SGD: U = g, no statistics."""
    return BaseOptimizer(lambda params: (), lambda g, s: g, lambda g, s: s)  # noqa: ARG005


@factory
def sgdm(momentum: float | Array = 0.9) -> BaseOptimizer:
    """SGD with momentum (Karimireddy et al. 2020, Table 4): U = (1 - beta) g + beta m, V: m = U.

    Args:
      momentum: beta in [0, 1).

    Raises:
      ValueError: if momentum is a concrete value out of range.

    Example:
      >>> base = sgdm(0.5)
      >>> g = jnp.asarray([1.0])
      >>> s = base.update(g, base.init(g))
      >>> float(base.direction(g, s)[0])  # 0.5 + 0.5 * 0.5
      0.75
    """
    check_number("momentum", momentum, at_least=0, below=1)

    def direction(g: Params, s: Moments) -> Params:
        return _average(momentum, g, s.m)

    return BaseOptimizer(
        lambda params: Moments(jax.tree.map(jnp.zeros_like, params), ()),
        direction,
        lambda g, s: Moments(direction(g, s), ()),
    )


@factory
def rmsprop(
    second_moment_decay: float | Array = 0.9,
    adaptivity: float | Array = 1e-3,
    initial_accumulator: float | Array | None = None,
) -> BaseOptimizer:
    """RMSProp (Karimireddy et al. 2020, Table 4): U = g / (epsilon + sqrt v), V updates v.

    V: v = (1 - beta) g^2 + beta v.

    Args:
      second_moment_decay: beta in [0, 1).
      adaptivity: epsilon > 0.
      initial_accumulator: v_0 >= 0; None means epsilon^2.

    Raises:
      ValueError: if a concrete value is out of range.

    Example:
      >>> base = rmsprop(adaptivity=0.5)
      >>> g = jnp.asarray([1.0])
      >>> float(base.direction(g, base.init(g))[0])  # 1 / (0.5 + 0.5)
      1.0
    """
    check_number("second_moment_decay", second_moment_decay, at_least=0, below=1)
    start = _second_moment(adaptivity, initial_accumulator)

    def update(g: Params, s: Moments) -> Moments:
        return Moments((), _average(second_moment_decay, jax.tree.map(jnp.square, g), s.v))

    return BaseOptimizer(
        lambda params: Moments((), start(params)),
        lambda g, s: _divide(g, s.v, adaptivity),
        update,
    )


@factory
def adam(
    momentum: float | Array = 0.9,
    second_moment_decay: float | Array = 0.99,
    adaptivity: float | Array = 1e-3,
    initial_accumulator: float | Array | None = None,
) -> BaseOptimizer:
    """Adam (Karimireddy et al. 2020, Table 4): steps by both moments' averages.

    U = ((1 - b1) g + b1 m) / (epsilon + sqrt v); V updates m and v.

    There is no bias correction, and the denominator uses only the stored v.

    Args:
      momentum: beta_1 in [0, 1).
      second_moment_decay: beta_2 in [0, 1).
      adaptivity: epsilon > 0.
      initial_accumulator: v_0 >= 0; None means epsilon^2.

    Raises:
      ValueError: if a concrete value is out of range.

    Example:
      >>> base = adam(adaptivity=0.5)
      >>> g = jnp.asarray([1.0])
      >>> round(float(base.direction(g, base.init(g))[0]), 6)  # 0.1 / (0.5 + 0.5)
      0.1
    """
    check_number("momentum", momentum, at_least=0, below=1)
    check_number("second_moment_decay", second_moment_decay, at_least=0, below=1)
    start = _second_moment(adaptivity, initial_accumulator)

    def update(g: Params, s: Moments) -> Moments:
        squares = jax.tree.map(jnp.square, g)
        return Moments(_average(momentum, g, s.m), _average(second_moment_decay, squares, s.v))

    return BaseOptimizer(
        lambda params: Moments(jax.tree.map(jnp.zeros_like, params), start(params)),
        lambda g, s: _divide(_average(momentum, g, s.m), s.v, adaptivity),
        update,
    )


@factory
def as_transformation(base: BaseOptimizer) -> optax.GradientTransformation:
    """The base as an optax transformation with learning rate 1: -U(g, s), then V(g, s).

    On the server it gives FedAvg with this server optimizer, as in the paper's comparisons.

    Example:
      >>> server = as_transformation(sgdm(0.5))
      >>> g = jnp.asarray([1.0])
      >>> float(server.update(g, server.init(g))[0][0])
      -0.5
    """

    def update(updates: optax.Updates, state: Any, params: Any = None) -> Any:
        del params
        step = jax.tree.map(jnp.negative, base.direction(updates, state))
        return step, base.update(updates, state)

    return optax.GradientTransformation(base.init, update)


def frozen(base: BaseOptimizer, statistics: PyTree) -> optax.GradientTransformation:
    """Steps along -U(g, s) with fixed statistics s, as taken by Mime's clients."""

    def update(updates: optax.Updates, state: Any, params: Any = None) -> Any:
        del params
        return jax.tree.map(jnp.negative, base.direction(updates, statistics)), state

    return optax.GradientTransformation(lambda params: (), update)  # noqa: ARG005


def _average(decay: float | Array, new: Params, old: Params) -> Params:
    def average(new: Array, old: Array) -> Array:
        beta = jnp.asarray(decay, new.dtype)
        return (1 - beta) * new + beta * old

    return jax.tree.map(average, new, old)


def _divide(numerator: Params, v: Params, adaptivity: float | Array) -> Params:
    return jax.tree.map(
        lambda n, v: n / (jnp.asarray(adaptivity, n.dtype) + jnp.sqrt(v)), numerator, v
    )


def _second_moment(
    adaptivity: float | Array, initial_accumulator: float | Array | None
) -> Callable[[Params], Params]:
    """(params) -> v_0."""
    check_number("adaptivity", adaptivity, above=0)
    v0 = adaptivity**2 if initial_accumulator is None else initial_accumulator
    check_number("initial_accumulator", v0, at_least=0)
    return lambda params: jax.tree.map(
        lambda p: jnp.broadcast_to(jnp.asarray(v0, p.dtype), p.shape), params
    )
