"""FedOpt and its named members: FedAvg, FedAvgM, FedAdagrad, FedAdam, FedYogi.

Paper 004: Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan, "Adaptive Federated
Optimization", ICLR 2021, Algorithms 1, 2, 3 and 5.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import optax

from fedax import optimizers
from fedax.algorithm import Array, Exchange, FederatedAlgorithm, Model, Params, Participation, Reply
from fedax.data.cohort_data import ClientData
from fedax.local import (
    LocalOptions,
    LocalTraining,
    client_weight,
    count_local_steps,
    local_info,
    loss_gradient,
    train_locally,
)
from fedax.optimizers import BiasCorrection
from fedax.schedules import ScheduleOrNumber, as_schedule
from fedax.validate import check_number


class FedOptState(NamedTuple):
    """Server state of FedOpt.

    Attributes:
      params: x_t.
      round_index: t, int32 scalar.
      optimizer_state: the server optimizer's state.
    """

    params: Params
    round_index: Array
    optimizer_state: optax.OptState


class FedOptMessage(NamedTuple):
    """What the server broadcasts: the model and this round's schedule values."""

    params: Params
    client_learning_rate: Array
    num_local_steps: Any  # int, int32 scalar or None


def fedopt(
    model: Model,
    client_optimizer: optax.GradientTransformation,
    server_optimizer: optax.GradientTransformation,
    *,
    client_learning_rate: ScheduleOrNumber = 1.0,
    server_learning_rate: ScheduleOrNumber = 1.0,
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""FedOpt: any optax optimizer on the clients, any on the server (paper 004, Algorithm 1).

    .. math::
        x_{i,0} = x_t, \quad
        x_{i,k+1} = \text{ClientOpt}(x_{i,k}, g_{i,k}, \eta_l(t)), \quad
        \Delta_t = \sum_i p_i (x_{i,K_i} - x_t), \quad
        x_{t+1} = \text{ServerOpt}(x_t, -\Delta_t, \eta(t))

    with :math:`p_i` proportional to the client's weight. The client optimizer starts afresh in
    every round and the server optimizer keeps its state.

    Args:
      model: the learning problem.
      client_optimizer: an optax transformation; its update, sign included, is multiplied by
        client_learning_rate. `optax.sgd(1.0)` is plain SGD. A schedule inside it counts
        local steps.
      server_optimizer: likewise, fed with the pseudo-gradient x_t - mean_i x_{i,K}. A schedule
        inside it counts rounds.
      client_learning_rate: eta_l >= 0, a number or a schedule of the round.
      server_learning_rate: eta >= 0, likewise.
      **local_options: see `LocalOptions`.

    Returns:
      A one-exchange algorithm with stateless clients. Clients report `train_loss` (the mean
      loss along the local steps) and `num_local_steps`.

    Raises:
      ValueError: a concrete hyperparameter is out of its range; the sentence quotes it.

    Example:
      >>> from fedax.models import character_lstm
      >>> model = character_lstm(num_units=16, num_layers=1)
      >>> algorithm = fedopt(model, optax.sgd(0.5), optax.amsgrad(0.01), num_local_steps=10)
      >>> len(algorithm.exchanges)
      1
    """
    check_number("client_learning_rate", client_learning_rate, at_least=0, schedule=True)
    check_number("server_learning_rate", server_learning_rate, at_least=0, schedule=True)
    local = LocalTraining.checked(local_options)
    client_rate = as_schedule(client_learning_rate)
    server_rate = as_schedule(server_learning_rate)
    gradient = loss_gradient(model)

    def init(params: Params) -> FedOptState:
        return FedOptState(params, jnp.zeros((), jnp.int32), server_optimizer.init(params))

    def broadcast(state: FedOptState) -> FedOptMessage:
        steps = local.num_local_steps
        return FedOptMessage(
            state.params,
            client_rate(state.round_index),
            steps(state.round_index) if callable(steps) else steps,
        )

    def client(message: FedOptMessage, client_state: Any, data: ClientData, key: Array) -> Reply:
        result = train_locally(
            message.params, data, key,
            gradient=gradient,
            optimizer=client_optimizer,
            learning_rate=message.client_learning_rate,
            batch_size=local.batch_size,
            num_steps=count_local_steps(
                data, local.batch_size, local.num_local_epochs, message.num_local_steps
            ),
            order=local.order,
        )
        pseudo_gradient = jax.tree.map(jnp.subtract, message.params, result.params)
        return Reply(
            upload=pseudo_gradient,
            weight=client_weight(local.weighting, data, result),
            client_state=client_state,
            info=local_info(result),
        )

    def server(state: FedOptState, mean: Params, participation: Participation) -> FedOptState:
        del participation
        updates, optimizer_state = server_optimizer.update(
            mean, state.optimizer_state, state.params
        )
        rate = server_rate(state.round_index)
        params = jax.tree.map(
            lambda p, u: p + rate.astype(p.dtype) * u.astype(p.dtype), state.params, updates
        )
        return state._replace(params=params, optimizer_state=optimizer_state)

    return FederatedAlgorithm(init, lambda params: (), (Exchange(broadcast, client, server),))  # noqa: ARG005


def fedavg(
    model: Model,
    client_learning_rate: ScheduleOrNumber = 0.1,
    server_learning_rate: ScheduleOrNumber = 1.0,
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""FedAvg (McMahan et al. 2017; paper 004, Algorithm 3).

    .. math:: x_{t+1} = x_t + \eta\, \Delta_t, \qquad \eta = 1: \; x_{t+1} = \sum_i p_i x_{i,K}

    Args:
      model: the learning problem.
      client_learning_rate: eta_l >= 0, a number or a schedule of the round.
      server_learning_rate: eta >= 0, likewise; 1 is FedAvg proper.
      **local_options: see `LocalOptions`.

    Raises:
      ValueError: a concrete hyperparameter is out of its range.

    Example:
      >>> from fedax.models import character_lstm
      >>> algorithm = fedavg(character_lstm(16, 1), client_learning_rate=0.3, num_local_epochs=2)
    """
    return fedopt(
        model, optax.sgd(1.0), optax.sgd(1.0),
        client_learning_rate=client_learning_rate,
        server_learning_rate=server_learning_rate,
        **local_options,
    )


def fedavgm(
    model: Model,
    client_learning_rate: ScheduleOrNumber = 0.1,
    server_learning_rate: ScheduleOrNumber = 1.0,
    momentum: float | Array = 0.9,
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""FedAvgM: FedAvg with heavy-ball server momentum (Hsu et al. 2019; paper 004, section 4).

    .. math:: m_t = \beta m_{t-1} + \Delta_t, \quad x_{t+1} = x_t + \eta\, m_t

    There is no factor 1 - beta, so beta = 0.9 moves about ten times as far as FedAvg.

    Args:
      model: the learning problem.
      client_learning_rate: eta_l >= 0, a number or a schedule of the round.
      server_learning_rate: eta >= 0, likewise.
      momentum: beta in [0, 1).
      **local_options: see `LocalOptions`.

    Raises:
      ValueError: a concrete hyperparameter is out of its range.

    Example:
      >>> from fedax.models import character_lstm
      >>> algorithm = fedavgm(character_lstm(16, 1), server_learning_rate=0.3, momentum=0.9)
    """
    return fedopt(
        model, optax.sgd(1.0), optimizers.heavy_ball(momentum),
        client_learning_rate=client_learning_rate,
        server_learning_rate=server_learning_rate,
        **local_options,
    )


def fedadagrad(
    model: Model,
    client_learning_rate: ScheduleOrNumber = 0.1,
    server_learning_rate: ScheduleOrNumber = 0.1,
    adaptivity: float | Array = 1e-3,
    momentum: float | Array = 0.0,
    initial_accumulator: float | Array | None = None,
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""FedAdagrad (paper 004, Algorithms 2 and 5).

    .. math::
        m_t = \beta_1 m_{t-1} + (1 - \beta_1) \Delta_t, \quad
        v_t = v_{t-1} + \Delta_t^2, \quad
        x_{t+1} = x_t + \eta\, m_t / (\sqrt{v_t} + \tau)

    Args:
      model: the learning problem.
      client_learning_rate: eta_l >= 0, a number or a schedule of the round.
      server_learning_rate: eta >= 0, likewise.
      adaptivity, momentum, initial_accumulator: as for `fedax.optimizers.adagrad`.
      **local_options: see `LocalOptions`.

    Raises:
      ValueError: a concrete hyperparameter is out of its range.

    Example:
      >>> from fedax.models import character_lstm
      >>> algorithm = fedadagrad(character_lstm(16, 1), adaptivity=0.1)
    """
    return fedopt(
        model, optax.sgd(1.0), optimizers.adagrad(adaptivity, momentum, initial_accumulator),
        client_learning_rate=client_learning_rate,
        server_learning_rate=server_learning_rate,
        **local_options,
    )


def fedadam(
    model: Model,
    client_learning_rate: ScheduleOrNumber = 0.1,
    server_learning_rate: ScheduleOrNumber = 0.01,
    adaptivity: float | Array = 1e-3,
    momentum: float | Array = 0.9,
    second_moment_decay: float | Array = 0.99,
    initial_accumulator: float | Array | None = None,
    bias_correction: BiasCorrection = "none",
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""FedAdam (paper 004, Algorithms 2 and 5), as published: no bias correction.

    .. math::
        m_t = \beta_1 m_{t-1} + (1 - \beta_1) \Delta_t, \quad
        v_t = \beta_2 v_{t-1} + (1 - \beta_2) \Delta_t^2, \quad
        x_{t+1} = x_t + \eta\, m_t / (\sqrt{v_t} + \tau), \quad v_{-1} = \tau^2

    The code released with the paper does otherwise; `initial_accumulator=0.0,
    bias_correction="released"` gives its numbers.

    Args:
      model: the learning problem.
      client_learning_rate: eta_l >= 0, a number or a schedule of the round.
      server_learning_rate: eta >= 0, likewise.
      adaptivity, momentum, second_moment_decay, initial_accumulator, bias_correction: as for
        `fedax.optimizers.adam`.
      **local_options: see `LocalOptions`.

    Raises:
      ValueError: a concrete hyperparameter is out of its range.

    Example:
      >>> from fedax.models import character_lstm
      >>> algorithm = fedadam(character_lstm(16, 1), client_learning_rate=1.0)
    """
    server_optimizer = optimizers.adam(
        adaptivity, momentum, second_moment_decay, initial_accumulator, bias_correction
    )
    return fedopt(
        model, optax.sgd(1.0), server_optimizer,
        client_learning_rate=client_learning_rate,
        server_learning_rate=server_learning_rate,
        **local_options,
    )


def fedyogi(
    model: Model,
    client_learning_rate: ScheduleOrNumber = 0.1,
    server_learning_rate: ScheduleOrNumber = 0.01,
    adaptivity: float | Array = 1e-3,
    momentum: float | Array = 0.9,
    second_moment_decay: float | Array = 0.99,
    initial_accumulator: float | Array | None = None,
    bias_correction: BiasCorrection = "none",
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""FedYogi (paper 004, Algorithms 2 and 5), as published: no bias correction.

    .. math::
        m_t = \beta_1 m_{t-1} + (1 - \beta_1) \Delta_t, \quad
        v_t = v_{t-1} - (1 - \beta_2) \Delta_t^2 \operatorname{sign}(v_{t-1} - \Delta_t^2), \quad
        x_{t+1} = x_t + \eta\, m_t / (\sqrt{v_t} + \tau), \quad v_{-1} = \tau^2

    Args:
      model: the learning problem.
      client_learning_rate: eta_l >= 0, a number or a schedule of the round.
      server_learning_rate: eta >= 0, likewise.
      adaptivity, momentum, second_moment_decay, initial_accumulator, bias_correction: as for
        `fedax.optimizers.yogi`.
      **local_options: see `LocalOptions`.

    Raises:
      ValueError: a concrete hyperparameter is out of its range.

    Example:
      >>> from fedax.models import character_lstm
      >>> algorithm = fedyogi(character_lstm(16, 1), client_learning_rate=1.0)
    """
    server_optimizer = optimizers.yogi(
        adaptivity, momentum, second_moment_decay, initial_accumulator, bias_correction
    )
    return fedopt(
        model, optax.sgd(1.0), server_optimizer,
        client_learning_rate=client_learning_rate,
        server_learning_rate=server_learning_rate,
        **local_options,
    )
