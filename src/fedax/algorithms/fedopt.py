"""FedOpt, and its members without an adaptive server: FedAvg, FedAvgM.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan, "Adaptive Federated Optimization",
ICLR 2021, Algorithms 1 and 3.
"""

from __future__ import annotations

from typing import Any, Unpack

import optax

from fedax import optimizers
from fedax.algorithm import (
    Array,
    Exchange,
    FederatedAlgorithm,
    Model,
    ModelUpdate,
    Participation,
    Reply,
    stateless,
)
from fedax.algorithms.server import Server, ServerState
from fedax.clients.local_training import LocalMessage, LocalOptions, LocalTraining, pseudo_gradient
from fedax.data.cohort_data import ClientExamples
from fedax.factories import factory
from fedax.optimizers.checks import require_optimizer
from fedax.optimizers.schedules import ScheduleOrNumber


@factory
def fedopt(
    model: Model,
    client_optimizer: optax.GradientTransformation | None = None,
    server_optimizer: optax.GradientTransformation | None = None,
    *,
    client_learning_rate: ScheduleOrNumber = 1.0,
    server_learning_rate: ScheduleOrNumber = 1.0,
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""FedOpt: optax optimizers on the clients and the server (Reddi et al. 2021, Algorithm 1).

    .. math::
        x_{i,k+1} &= \text{ClientOpt}(x_{i,k}, g_{i,k}, \eta_l(t)), \qquad x_{i,0} = x_t \\
        \Delta_t &= \textstyle\sum_i p_i (x_{i,K_i} - x_t) \\
        x_{t+1} &= \text{ServerOpt}(x_t, -\Delta_t, \eta(t))

    The client optimizer starts from a new state in every round; the server optimizer keeps its
    state.

    Args:
      model: the learning problem.
      client_optimizer: an optax transformation; its update, sign included, is multiplied by
        client_learning_rate. None is SGD, `optax.sgd(1.0)`. A schedule inside it counts local
        steps.
      server_optimizer: an optax transformation that receives the pseudo-gradient
        x_t - mean_i x_{i,K}; None is SGD. A schedule inside it counts rounds.
        `fedax.base_optimizers.as_transformation` turns a base optimizer of Mime into one.
      client_learning_rate: eta_l >= 0, a number or a schedule of the round.
      server_learning_rate: eta >= 0, likewise.
      **local_options: see `LocalOptions`.

    Returns:
      An algorithm with one exchange and stateless clients. Clients report `train_loss` (the mean
      loss over the local steps) and `num_local_steps`.

    Raises:
      ValueError: a hyperparameter is out of its range (unless it is traced).

    Example:
      >>> import fedax, optax
      >>> from fedax.models import character_lstm
      >>> model = character_lstm(num_units=16, num_layers=1)
      >>> algorithm = fedax.fedopt(model, optax.sgd(0.5), optax.amsgrad(0.01), num_local_steps=10)
      >>> len(algorithm.exchanges)
      1
    """
    require_optimizer("client_optimizer", client_optimizer)
    server = Server.checked(server_optimizer, server_learning_rate)
    local = LocalTraining.checked(model, client_learning_rate, local_options)

    def client(message: LocalMessage, state: Any, data: ClientExamples, key: Array) -> Reply:
        result = local.train(message, data, key, optimizer=client_optimizer)
        upload = ModelUpdate(pseudo_gradient(message, result))
        return local.reply(upload, message, data, result, state)

    def fold(state: ServerState, mean: ModelUpdate, participation: Participation) -> ServerState:
        del participation
        return server.step(state, mean.pseudo_gradient)

    exchange = Exchange(local.message, client, fold)
    return FederatedAlgorithm(server.init, stateless, (exchange,))


@factory
def fedavg(
    model: Model,
    client_learning_rate: ScheduleOrNumber = 0.1,
    server_learning_rate: ScheduleOrNumber = 1.0,
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""FedAvg (McMahan et al. 2017; Reddi et al. 2021, Algorithm 3).

    The server moves along the mean change of the clients' models; with eta = 1 it averages them:

    .. math:: x_{t+1} = x_t + \eta\, \Delta_t, \qquad \eta = 1: \; x_{t+1} = \sum_i p_i x_{i,K}

    Args:
      model: the learning problem.
      client_learning_rate: eta_l >= 0, a number or a schedule of the round.
      server_learning_rate: eta >= 0, likewise; 1 averages the models, as published.
      **local_options: see `LocalOptions`.

    Raises:
      ValueError: a hyperparameter is out of its range (unless it is traced).

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> model = character_lstm(16, 1)
      >>> algorithm = fedax.fedavg(model, client_learning_rate=0.3, num_local_epochs=2)
    """
    return fedopt(
        model,
        client_learning_rate=client_learning_rate,
        server_learning_rate=server_learning_rate,
        **local_options,
    )


@factory
def fedavgm(
    model: Model,
    client_learning_rate: ScheduleOrNumber = 0.1,
    server_learning_rate: ScheduleOrNumber = 1.0,
    momentum: float | Array = 0.9,
    dampening: float | Array = 0.0,
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""FedAvgM: FedAvg with server momentum (Hsu et al. 2019; Reddi et al. 2021, section 4).

    .. math:: m_t = \beta m_{t-1} + (1 - d) \Delta_t, \quad x_{t+1} = x_t + \eta\, m_t

    With the default d = 0 this is the heavy ball: beta = 0.9 moves the model about ten times as
    far as FedAvg. With d = beta, m is an exponential moving average, as in Algorithm 1 of elastic
    aggregation (Chen et al. 2023).

    Args:
      model: the learning problem.
      client_learning_rate: eta_l >= 0, a number or a schedule of the round.
      server_learning_rate: eta >= 0, likewise.
      momentum: beta in [0, 1).
      dampening: d in [0, 1), see `fedax.optimizers.heavy_ball`.
      **local_options: see `LocalOptions`.

    Raises:
      ValueError: a hyperparameter is out of its range (unless it is traced).

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> algorithm = fedax.fedavgm(character_lstm(16, 1), server_learning_rate=0.3, momentum=0.9)
    """
    return fedopt(
        model, None, optimizers.heavy_ball(momentum, dampening),
        client_learning_rate=client_learning_rate,
        server_learning_rate=server_learning_rate,
        **local_options,
    )
