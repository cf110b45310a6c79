"""Adaptive optimizers on the clients whose state is averaged along with the models.

Xie, Koyejo, Gupta, Lin, "Local AdaAlter: Communication-Efficient Stochastic Gradient Descent with
Adaptive Learning Rates" (2019), Algorithm 4; Reddi et al., "Adaptive Federated Optimization",
ICLR 2021, section 1, compare with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import optax

from fedax.algorithm import (
    Array,
    Exchange,
    FederatedAlgorithm,
    Model,
    Params,
    Participation,
    PyTree,
    Reply,
    stateless,
)
from fedax.algorithms.server import Server
from fedax.clients.local_training import LocalMessage, LocalOptions, LocalTraining, pseudo_gradient
from fedax.data.cohort_data import ClientExamples
from fedax.factories import factory
from fedax.optimizers.base_optimizers import adam, as_transformation
from fedax.optimizers.drawing import is_key, with_raw_keys
from fedax.optimizers.schedules import ScheduleOrNumber
from fedax.validate import check_number


class LocalAdaptiveState(NamedTuple):
    """Server state of `local_adaptive`.

    Attributes:
      params: x_t.
      round_index: t, int32 scalar.
      optimizer_state: the server optimizer's (plain SGD's).
      shared: the mean of what the clients shared of their optimizers' states; they start a round
        from it.
    """

    params: Params
    round_index: Array
    optimizer_state: Any
    shared: PyTree


class LocalAdaptiveMessage(NamedTuple):
    """What the clients train with."""

    local: LocalMessage
    shared: PyTree


class LocalAdaptiveUpload(NamedTuple):
    """x_t - x_{i,K} and the shared part of the optimizer state, integers as floats."""

    pseudo_gradient: Params
    shared: PyTree


@factory
def local_adaptive(
    model: Model,
    client_optimizer: optax.GradientTransformation,
    client_learning_rate: ScheduleOrNumber = 1.0,
    server_learning_rate: ScheduleOrNumber = 1.0,
    share: Callable[[PyTree], PyTree] = lambda state: state,
    restart: Callable[[PyTree], PyTree] = lambda shared: shared,
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""Any optax optimizer on the clients, with its state averaged after every round.

    .. math::
        (x_{i,K}, s_{i,K}) = \text{ClientOpt}^K(x_t, s_t), \qquad
        x_{t+1} = x_t + \eta \textstyle\sum_i p_i (x_{i,K} - x_t), \qquad
        s_{t+1} = \textstyle\sum_i p_i s_{i,K}

    In `fedopt`, by contrast, the clients' optimizer starts from a new state in every round.

    Args:
      model: the learning problem.
      client_optimizer: an optax transformation; its update is multiplied by
        client_learning_rate. Integers of its state, such as counts, are averaged and rounded. A
        random key in it is not sent; each client draws from its own key in each round.
      client_learning_rate: gamma >= 0, a number or a schedule of the round.
      server_learning_rate: eta >= 0, likewise; 1 averages the models.
      share: (state) -> the part of it that is sent both ways and averaged; by default all.
      restart: (averaged part) -> the state that a round starts from; by default the same.
      **local_options: see `LocalOptions`.

    Raises:
      ValueError: a hyperparameter is out of its range (unless it is traced).

    Example:
      >>> import fedax, optax
      >>> from fedax.models import character_lstm
      >>> model = character_lstm(16, 1)
      >>> algorithm = fedax.local_adaptive(model, optax.adam(1e-3), num_local_steps=8)
    """
    local = LocalTraining.checked(model, client_learning_rate, local_options)
    server = Server.checked(None, server_learning_rate)
    client_optimizer = with_raw_keys(client_optimizer)

    def init(params: Params) -> LocalAdaptiveState:
        return LocalAdaptiveState(*server.init(params), share(client_optimizer.init(params)))

    def client(
        message: LocalAdaptiveMessage, state: Any, data: ClientExamples, key: Array
    ) -> Reply:
        result = local.train(
            message.local, data, key,
            optimizer=client_optimizer, optimizer_state=restart(message.shared),
        )
        as_float = jax.tree.map(_as_float, share(result.optimizer_state))
        upload = LocalAdaptiveUpload(pseudo_gradient(message.local, result), as_float)
        return local.reply(upload, message.local, data, result, state)

    def fold(
        state: LocalAdaptiveState, mean: LocalAdaptiveUpload, participation: Participation
    ) -> LocalAdaptiveState:
        del participation
        shared = jax.tree.map(_cast, mean.shared, state.shared)
        return server.step(state._replace(shared=shared), mean.pseudo_gradient)

    exchange = Exchange(
        lambda state: LocalAdaptiveMessage(local.message(state), state.shared), client, fold,
        upload=lambda params: LocalAdaptiveUpload(params, init(params).shared),
    )
    return FederatedAlgorithm(init, stateless, (exchange,))


@factory
def local_adam(
    model: Model,
    client_learning_rate: ScheduleOrNumber = 0.01,
    server_learning_rate: ScheduleOrNumber = 1.0,
    adaptivity: float | Array = 1e-3,
    momentum: float | Array = 0.9,
    second_moment_decay: float | Array = 0.99,
    initial_accumulator: float | Array | None = None,
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""Local Adam: Adam on the clients, with moments averaged like the models.

    .. math::
        m_{i,k+1} &= \beta_1 m_{i,k} + (1 - \beta_1)\, g_{i,k}, \qquad
        v_{i,k+1} = \beta_2 v_{i,k} + (1 - \beta_2)\, g_{i,k}^2 \\
        x_{i,k+1} &= x_{i,k} - \gamma\, m_{i,k+1} / (\sqrt{v_{i,k}} + \tau) \\
        x_{t+1} &= x_t + \eta \textstyle\sum_i p_i (x_{i,K} - x_t), \qquad
        m_{t+1} = \textstyle\sum_i p_i m_{i,K}, \qquad
        v_{t+1} = \textstyle\sum_i p_i v_{i,K}

    A round starts from :math:`x_{i,0} = x_t`, :math:`m_{i,0} = m_t` and :math:`v_{i,0} = v_t`; the
    first from :math:`m_0 = 0` and :math:`v_0 = \tau^2`. As in `fedax.base_optimizers.adam` there
    is no bias correction, and a step divides by the root of the previous v.

    Args:
      model: the learning problem.
      client_learning_rate: gamma >= 0, a number or a schedule of the round.
      server_learning_rate: eta >= 0, likewise.
      adaptivity: tau > 0. If it is large compared with the root of v, steps are those of SGD with
        momentum; if it is small, all coordinates move by similar amounts.
      momentum: beta_1 in [0, 1), the share of m that a step keeps.
      second_moment_decay: beta_2 in [0, 1), the share of v that a step keeps.
      initial_accumulator: v_0 >= 0; None means tau^2.
      **local_options: see `LocalOptions`.

    Raises:
      ValueError: a hyperparameter is out of its range (unless it is traced).

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> algorithm = fedax.local_adam(character_lstm(16, 1), num_local_steps=8)
    """
    base = adam(momentum, second_moment_decay, adaptivity, initial_accumulator)
    return local_adaptive(
        model, as_transformation(base), client_learning_rate, server_learning_rate,
        **local_options,
    )


class AdaAlterState(NamedTuple):
    """A client's state in Local AdaAlter.

    Attributes:
      synchronized: B^2 of the last synchronisation, like the parameters.
      running: A^2, that plus the squared gradients since, like the parameters.
      num_steps: t', local steps since the synchronisation, int32 scalar.
    """

    synchronized: Params
    running: Params
    num_steps: Array


@factory
def adaalter(
    model: Model,
    client_learning_rate: ScheduleOrNumber = 0.1,
    adaptivity: float | Array = 1.0,
    initial_accumulator: float | Array = 1.0,
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""Local AdaAlter (Xie et al. 2019, Algorithm 4).

    .. math::
        x_{i} &\leftarrow x_{i} - \gamma\, g / \sqrt{B^2 + t' \epsilon^2}, \qquad
        A_i^2 \leftarrow A_i^2 + g^2 \qquad (t' = 1, 2, \dots, K) \\
        x &\leftarrow \textstyle\sum_i p_i x_{i}, \qquad
        B^2, A_i^2 \leftarrow \textstyle\sum_i p_i A_i^2

    Since the last synchronisation the denominator grows by epsilon^2 per step instead of by the
    squared gradients, so between synchronisations all clients scale their steps alike.

    Args:
      model: the learning problem.
      client_learning_rate: gamma >= 0, a number or a schedule of the round.
      adaptivity: epsilon > 0; 1 in the paper.
      initial_accumulator: B_0^2 >= 0; 1 in the paper.
      **local_options: see `LocalOptions`.

    Raises:
      ValueError: a hyperparameter is out of its range (unless it is traced).

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> algorithm = fedax.adaalter(character_lstm(16, 1), 0.5, num_local_steps=4)
    """
    check_number("adaptivity", adaptivity, above=0)
    check_number("initial_accumulator", initial_accumulator, at_least=0)

    def init(params: Params) -> AdaAlterState:
        start = jax.tree.map(
            lambda p: jnp.broadcast_to(jnp.asarray(initial_accumulator, p.dtype), p.shape), params
        )
        return AdaAlterState(start, start, jnp.zeros((), jnp.int32))

    def update(updates: optax.Updates, state: Any, params: Any = None) -> Any:
        del params
        count = state.num_steps + 1

        def step(g: Array, b: Array) -> Array:
            epsilon = jnp.asarray(adaptivity, g.dtype)
            return -g / jnp.sqrt(b + count.astype(g.dtype) * epsilon**2)

        running = jax.tree.map(lambda a, g: a + g * g, state.running, updates)
        scaled = jax.tree.map(step, updates, state.synchronized)
        return scaled, AdaAlterState(state.synchronized, running, count)

    return local_adaptive(
        model, optax.GradientTransformation(init, update), client_learning_rate, 1.0,
        share=lambda state: state.running,  # the rest of a state follows from it
        restart=lambda running: AdaAlterState(running, running, jnp.zeros((), jnp.int32)),
        **local_options,
    )


def _as_float(leaf: Array) -> Array:
    """What is sent of an array of the state: integers as floats, and 0 in place of a key."""
    if is_key(leaf):
        return jnp.zeros((), jnp.result_type(float))
    floating = jnp.issubdtype(leaf.dtype, jnp.floating)
    return leaf if floating else leaf.astype(jnp.result_type(float))


def _cast(mean: Array, like: Array) -> Array:
    """The mean in the state's own dtype, integers rounded; a key is not averaged."""
    if is_key(like):
        return like
    if jnp.issubdtype(like.dtype, jnp.integer):
        mean = jnp.round(mean)
    return mean.astype(like.dtype)
