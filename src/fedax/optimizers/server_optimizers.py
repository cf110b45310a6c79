"""Server optimizers exactly as published, as optax transformations with learning rate 1.

They take the pseudo-gradient g_t = x_t - (weighted mean of the local models), that is g_t =
-Delta_t in the papers' notation, in place of a gradient. The factories of `fedax.algorithms.fedopt`
multiply their updates by the server learning rate eta.

symbol    argument              meaning
tau       adaptivity            added to sqrt(v_t); smaller means more adaptive
beta_1    momentum              decay of the first moment m
beta_2    second_moment_decay   decay of the second moment v
v_{-1}    initial_accumulator   value of v before the first round; None means tau^2
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedax.algorithm import Array
from fedax.factories import factory
from fedax.validate import check_choice, check_number

BiasCorrection: TypeAlias = Literal["none", "standard", "released"]


class AdaptiveState(NamedTuple):
    """State of an adaptive server optimizer.

    Attributes:
      num_updates: int32 scalar, the number of updates so far.
      m: first moment of the pseudo-gradient, like the parameters.
      v: second moment, like the parameters.
    """

    num_updates: Array
    m: optax.Updates
    v: optax.Updates


@factory
def adagrad(
    adaptivity: float | Array = 1e-3,
    momentum: float | Array = 0.0,
    initial_accumulator: float | Array | None = None,
) -> optax.GradientTransformation:
    r"""FedAdagrad's server optimizer (Reddi et al. 2021, Algorithm 2).

    .. math::
        m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t, \qquad
        v_t = v_{t-1} + g_t^2 \\
        u_t &= -m_t / (\sqrt{v_t} + \tau)

    Args:
      adaptivity: tau > 0. If it is large compared with the root of v, steps are those of SGD with
        momentum; if it is small, all coordinates move by similar amounts.
      momentum: beta_1 in [0, 1), the share of m that each round keeps; the paper's experiments use
        0.
      initial_accumulator: v_{-1} >= 0; None means tau^2, the smallest value that the paper allows.
        The released code starts from 0, optax and TFF from 0.1.

    Raises:
      ValueError: if a concrete value is out of range.

    Example:
      >>> server = adagrad(adaptivity=1e-3, initial_accumulator=0.0)
      >>> g = jnp.asarray([0.01])
      >>> round(float(server.update(g, server.init(g))[0][0]), 3)  # -0.01 / (0.01 + 0.001)
      -0.909
    """
    return _adaptive(lambda v, squared: v + squared, adaptivity, momentum, initial_accumulator)


@factory
def adam(
    adaptivity: float | Array = 1e-3,
    momentum: float | Array = 0.9,
    second_moment_decay: float | Array = 0.99,
    initial_accumulator: float | Array | None = None,
    bias_correction: BiasCorrection = "none",
) -> optax.GradientTransformation:
    r"""FedAdam's server optimizer (Reddi et al. 2021, Algorithm 2).

    By default there is no bias correction, and v_{-1} = tau^2.

    .. math::
        m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t, \qquad
        v_t = \beta_2 v_{t-1} + (1 - \beta_2) g_t^2 \\
        u_t &= -c_s\, m_t / (\sqrt{v_t} + \tau)

    with :math:`c_s = 1` or, with `bias_correction`, :math:`c_s = \sqrt{1 - \beta_2^s} / (1 -
    \beta_1^s)`.

    Args:
      adaptivity: tau > 0. If it is large compared with the root of v, steps are those of SGD with
        momentum; if it is small, all coordinates move by similar amounts.
      momentum: beta_1 in [0, 1), the share of m that each round keeps.
      second_moment_decay: beta_2 in [0, 1), the share of v that each round keeps.
      initial_accumulator: v_{-1} >= 0; None means tau^2. The released code starts from 0.
      bias_correction: "none", as in the paper; "standard", each step times sqrt(1 - beta_2^s) / (1
        - beta_1^s) with s = 1, 2, ... (Kingma and Ba, and the FedAdam of the decaying-steps paper
        (2021)); "released", the same with s = 2, 3, ..., as in the code released with Reddi et al.
        2021, which applies a zero gradient at the start, and in Flower's FedAdam.

    Raises:
      ValueError: if a concrete value is out of range.

    Example:
      >>> server = adam(adaptivity=1e-3)
      >>> g = jnp.asarray([0.01])
      >>> round(float(server.update(g, server.init(g))[0][0]), 3)
      -0.415
    """
    check_number("second_moment_decay", second_moment_decay, at_least=0, below=1)

    def second_moment(v: Array, squared: Array) -> Array:
        beta2 = jnp.asarray(second_moment_decay, v.dtype)
        return beta2 * v + (1 - beta2) * squared

    return _adaptive(
        second_moment, adaptivity, momentum, initial_accumulator,
        second_moment_decay, bias_correction,
    )


@factory
def yogi(
    adaptivity: float | Array = 1e-3,
    momentum: float | Array = 0.9,
    second_moment_decay: float | Array = 0.99,
    initial_accumulator: float | Array | None = None,
    bias_correction: BiasCorrection = "none",
) -> optax.GradientTransformation:
    r"""FedYogi's server optimizer (Reddi et al. 2021, Algorithm 2).

    There is no bias correction, and v_{-1} = tau^2 by default.

    .. math::
        m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t \\
        v_t &= v_{t-1} - (1 - \beta_2) g_t^2 \operatorname{sign}(v_{t-1} - g_t^2) \\
        u_t &= -c_s\, m_t / (\sqrt{v_t} + \tau)

    with sign(0) = 0. Arguments, errors and :math:`c_s` as for `adam`.

    Example:
      >>> server = yogi(adaptivity=1e-3)
      >>> g = jnp.asarray([0.01])
      >>> round(float(server.update(g, server.init(g))[0][0]), 3)
      -0.414
    """
    check_number("second_moment_decay", second_moment_decay, at_least=0, below=1)

    def second_moment(v: Array, squared: Array) -> Array:
        beta2 = jnp.asarray(second_moment_decay, v.dtype)
        return v - (1 - beta2) * squared * jnp.sign(v - squared)

    return _adaptive(
        second_moment, adaptivity, momentum, initial_accumulator,
        second_moment_decay, bias_correction,
    )


@factory
def amsgrad(
    adaptivity: float | Array = 1e-3,
    momentum: float | Array = 0.9,
    second_moment_decay: float | Array = 0.99,
    initial_accumulator: float | Array | None = None,
) -> optax.GradientTransformation:
    r"""Adam's server optimizer with AMSGrad's denominator (Reddi, Kale, Kumar, ICLR 2018).

    .. math::
        m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t, \qquad
        v_t = \beta_2 v_{t-1} + (1 - \beta_2) g_t^2 \\
        \hat v_t &= \max(\hat v_{t-1}, v_t), \qquad
        u_t = -m_t / (\sqrt{\hat v_t} + \tau)

    so no coordinate's step grows again. As in that paper there is no bias correction;
    `optax.amsgrad` has one. Arguments and errors as for `adam`.

    Example:
      >>> server = amsgrad(adaptivity=1e-3)
      >>> g = jnp.asarray([0.01])
      >>> round(float(server.update(g, server.init(g))[0][0]), 3)
      -0.415
    """
    inner = adam(adaptivity, momentum, second_moment_decay, initial_accumulator)

    def init(params: optax.Params) -> tuple[AdaptiveState, optax.Updates]:
        state: Any = inner.init(params)
        return state, state.v

    def update(updates: optax.Updates, state: Any, params: Any = None) -> Any:
        del params
        moments: Any = inner.update(updates, state[0])[1]
        largest = jax.tree.map(jnp.maximum, state[1], moments.v)
        return _adaptive_step(moments.m, largest, adaptivity), (moments, largest)

    return optax.GradientTransformation(init, update)


@factory
def adabound(
    adaptivity: float | Array = 1e-3,
    momentum: float | Array = 0.9,
    second_moment_decay: float | Array = 0.99,
    initial_accumulator: float | Array | None = None,
    final_scale: float | Array = 1.0,
    bound_rate: float | Array = 1e-3,
) -> optax.GradientTransformation:
    r"""Adam's server optimizer within AdaBound's bounds (Luo, Xiong, Liu, Sun, ICLR 2019).

    .. math::
        m_t &= \beta_1 m_{t-1} + (1 - \beta_1) g_t, \qquad
        v_t = \beta_2 v_{t-1} + (1 - \beta_2) g_t^2 \\
        u_t &= -\operatorname{clip}\Bigl(\frac{1}{\sqrt{v_t} + \tau},\;
              s \bigl(1 - \tfrac{1}{b t + 1}\bigr),\;
              s \bigl(1 + \tfrac{1}{b t}\bigr)\Bigr)\, m_t, \qquad t = 1, 2, \dots

    It starts as Adam and ends as SGD with momentum and learning rate eta s, without bias
    correction.

    Args:
      adaptivity, momentum, second_moment_decay, initial_accumulator: as for `adam`.
      final_scale: s > 0; s times the server learning rate is AdaBound's final learning rate.
      bound_rate: b > 0, how fast the bounds close; 1e-3 in that paper.

    Raises:
      ValueError: if a concrete value is out of range.

    Example:
      >>> server = adabound(final_scale=2.0, bound_rate=1e6)  # the bounds are closed at once
      >>> g = jnp.asarray([1.0])
      >>> round(float(server.update(g, server.init(g))[0][0]), 3)  # -2 (1 - 0.9) g
      -0.2
    """
    check_number("final_scale", final_scale, above=0)
    check_number("bound_rate", bound_rate, above=0)
    inner = adam(adaptivity, momentum, second_moment_decay, initial_accumulator)

    def update(updates: optax.Updates, state: Any, params: Any = None) -> Any:
        del params
        moments: Any = inner.update(updates, state)[1]

        def step(m: Array, v: Array) -> Array:
            tau, scale, rate = (
                jnp.asarray(number, m.dtype) for number in (adaptivity, final_scale, bound_rate)
            )
            progress = rate * moments.num_updates.astype(m.dtype)
            low, high = scale * (1 - 1 / (progress + 1)), scale * (1 + 1 / progress)
            return -jnp.clip(1 / (jnp.sqrt(v) + tau), low, high) * m

        return jax.tree.map(step, moments.m, moments.v), moments

    return optax.GradientTransformation(inner.init, update)


@factory
def heavy_ball(
    momentum: float | Array = 0.9, dampening: float | Array = 0.0
) -> optax.GradientTransformation:
    r"""FedAvgM's server optimizer: :math:`m_t = \beta m_{t-1} + (1 - d) g_t`, :math:`u_t = -m_t`.

    With d = 0 it is the heavy ball without a factor 1 - beta, as in the code of Reddi et al. 2021.
    With d = beta, m is the exponential moving average of the pseudo-gradients (Chen et al. 2023,
    Algorithm 1).

    Args:
      momentum: beta in [0, 1).
      dampening: d in [0, 1). The name is from PyTorch, whose first m is g_0 without the factor.

    Raises:
      ValueError: if a concrete value is out of range.

    Example:
      >>> server = heavy_ball(0.9)
      >>> g = jnp.asarray([1.0])
      >>> _, state = server.update(g, server.init(g))
      >>> round(float(server.update(g, state)[0][0]), 6)
      -1.9
    """
    check_number("momentum", momentum, at_least=0, below=1)
    check_number("dampening", dampening, at_least=0, below=1)

    def update(updates: optax.Updates, state: Any, params: Any = None) -> Any:
        del params

        def average(m: Array, g: Array) -> Array:
            beta, d = (jnp.asarray(number, g.dtype) for number in (momentum, dampening))
            return beta * m + (1 - d) * g

        trace = jax.tree.map(average, state.trace, updates)
        return jax.tree.map(jnp.negative, trace), optax.TraceState(trace)

    return optax.GradientTransformation(optax.trace(momentum).init, update)


def _adaptive(
    second_moment: Callable[[Array, Array], Array],
    adaptivity: float | Array,
    momentum: float | Array,
    initial_accumulator: float | Array | None,
    second_moment_decay: float | Array = 0.0,
    bias_correction: BiasCorrection = "none",
) -> optax.GradientTransformation:
    """What the three adaptive optimizers share; they differ in v_t = second_moment(v, g^2)."""
    check_number("adaptivity", adaptivity, above=0)
    check_number("momentum", momentum, at_least=0, below=1)
    if initial_accumulator is None:
        initial_accumulator = adaptivity**2
    check_number("initial_accumulator", initial_accumulator, at_least=0)
    check_choice("bias_correction", bias_correction, get_args(BiasCorrection))

    def init(params: optax.Params) -> AdaptiveState:
        return AdaptiveState(
            num_updates=jax.device_put(np.int32(0)),
            m=jax.tree.map(jnp.zeros_like, params),
            v=jax.tree.map(
                lambda p: jnp.broadcast_to(jnp.asarray(initial_accumulator, p.dtype), p.shape),
                params,
            ),
        )

    def correction(count: Array, dtype: Any) -> Array:
        if bias_correction == "none":
            return jnp.ones((), dtype)
        s = (count + (1 if bias_correction == "released" else 0)).astype(dtype)
        beta1, beta2 = (jnp.asarray(b, dtype) for b in (momentum, second_moment_decay))
        return jnp.sqrt(1 - beta2**s) / (1 - beta1**s)

    def update(updates: optax.Updates, state: Any, params: Any = None) -> Any:
        del params
        count = state.num_updates + 1

        def first_moment(m: Array, g: Array) -> Array:
            beta1 = jnp.asarray(momentum, g.dtype)
            return beta1 * m + (1 - beta1) * g

        m = jax.tree.map(first_moment, state.m, updates)
        v = jax.tree.map(lambda v, g: second_moment(v, g * g), state.v, updates)
        corrected = jax.tree.map(lambda m: correction(count, m.dtype) * m, m)
        return _adaptive_step(corrected, v, adaptivity), AdaptiveState(count, m, v)

    return optax.GradientTransformation(init, update)


def _adaptive_step(
    m: optax.Updates, v: optax.Updates, adaptivity: float | Array
) -> optax.Updates:
    """-m / (sqrt(v) + tau)."""
    return jax.tree.map(
        lambda m, v: -m / (jnp.sqrt(v) + jnp.asarray(adaptivity, m.dtype)), m, v
    )
