"""FedOpt with an adaptive server: FedAdagrad, FedAdam, FedYogi, FedAMSGrad, FedAdaBound.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan, "Adaptive Federated Optimization",
ICLR 2021, Algorithms 2 and 5.
"""

from __future__ import annotations

from typing import Unpack

from fedax import optimizers
from fedax.algorithm import Array, FederatedAlgorithm, Model
from fedax.algorithms.fedopt import fedopt
from fedax.clients.local_training import LocalOptions
from fedax.factories import factory
from fedax.optimizers.schedules import ScheduleOrNumber
from fedax.optimizers.server_optimizers import BiasCorrection


@factory
def fedadagrad(
    model: Model,
    client_learning_rate: ScheduleOrNumber = 0.1,
    server_learning_rate: ScheduleOrNumber = 0.1,
    adaptivity: float | Array = 1e-3,
    momentum: float | Array = 0.0,
    initial_accumulator: float | Array | None = None,
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""FedAdagrad (Reddi et al. 2021, Algorithms 2 and 5).

    The server applies Adagrad to the mean change of the clients' models:

    .. math::
        m_t &= \beta_1 m_{t-1} + (1 - \beta_1) \Delta_t, \qquad
        v_t = v_{t-1} + \Delta_t^2 \\
        x_{t+1} &= x_t + \eta\, m_t / (\sqrt{v_t} + \tau)

    Args:
      model: the learning problem.
      client_learning_rate: eta_l >= 0, a number or a schedule of the round.
      server_learning_rate: eta >= 0, likewise.
      adaptivity, momentum, initial_accumulator: as for `fedax.optimizers.adagrad`.
      **local_options: see `LocalOptions`.

    Raises:
      ValueError: a hyperparameter is out of its range (unless it is traced).

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> algorithm = fedax.fedadagrad(character_lstm(16, 1), adaptivity=0.1)
    """
    return fedopt(
        model, None, optimizers.adagrad(adaptivity, momentum, initial_accumulator),
        client_learning_rate=client_learning_rate,
        server_learning_rate=server_learning_rate,
        **local_options,
    )


@factory
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
    r"""FedAdam (Reddi et al. 2021, Algorithms 2 and 5), as published: no bias correction.

    The server applies Adam to the mean change of the clients' models:

    .. math::
        m_t &= \beta_1 m_{t-1} + (1 - \beta_1) \Delta_t \\
        v_t &= \beta_2 v_{t-1} + (1 - \beta_2) \Delta_t^2, \qquad v_{-1} = \tau^2 \\
        x_{t+1} &= x_t + \eta\, m_t / (\sqrt{v_t} + \tau)

    The code released with the paper differs: `initial_accumulator=0.0,
    bias_correction="released"` reproduces it.

    Args:
      model: the learning problem.
      client_learning_rate: eta_l >= 0, a number or a schedule of the round.
      server_learning_rate: eta >= 0, likewise.
      adaptivity, momentum, second_moment_decay, initial_accumulator, bias_correction: as for
        `fedax.optimizers.adam`.
      **local_options: see `LocalOptions`.

    Raises:
      ValueError: a hyperparameter is out of its range (unless it is traced).

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> algorithm = fedax.fedadam(character_lstm(16, 1), client_learning_rate=1.0)
    """
    server_optimizer = optimizers.adam(
        adaptivity, momentum, second_moment_decay, initial_accumulator, bias_correction
    )
    return fedopt(
        model, None, server_optimizer,
        client_learning_rate=client_learning_rate,
        server_learning_rate=server_learning_rate,
        **local_options,
    )


@factory
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
    r"""FedYogi (Reddi et al. 2021, Algorithms 2 and 5), as published: no bias correction.

    The server applies Yogi to the mean change of the clients' models:

    .. math::
        m_t &= \beta_1 m_{t-1} + (1 - \beta_1) \Delta_t \\
        v_t &= v_{t-1} - (1 - \beta_2) \Delta_t^2 \operatorname{sign}(v_{t-1} - \Delta_t^2), \qquad
               v_{-1} = \tau^2 \\
        x_{t+1} &= x_t + \eta\, m_t / (\sqrt{v_t} + \tau)

    Args:
      model: the learning problem.
      client_learning_rate: eta_l >= 0, a number or a schedule of the round.
      server_learning_rate: eta >= 0, likewise.
      adaptivity, momentum, second_moment_decay, initial_accumulator, bias_correction: as for
        `fedax.optimizers.yogi`.
      **local_options: see `LocalOptions`.

    Raises:
      ValueError: a hyperparameter is out of its range (unless it is traced).

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> algorithm = fedax.fedyogi(character_lstm(16, 1), client_learning_rate=1.0)
    """
    server_optimizer = optimizers.yogi(
        adaptivity, momentum, second_moment_decay, initial_accumulator, bias_correction
    )
    return fedopt(
        model, None, server_optimizer,
        client_learning_rate=client_learning_rate,
        server_learning_rate=server_learning_rate,
        **local_options,
    )


@factory
def fedamsgrad(
    model: Model,
    client_learning_rate: ScheduleOrNumber = 0.1,
    server_learning_rate: ScheduleOrNumber = 0.01,
    adaptivity: float | Array = 1e-3,
    momentum: float | Array = 0.9,
    second_moment_decay: float | Array = 0.99,
    initial_accumulator: float | Array | None = None,
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""FedAMSGrad: FedOpt with AMSGrad (Reddi, Kale, Kumar 2018) at the server.

    The server optimizer is `optimizers.amsgrad`:

    .. math::
        m_t &= \beta_1 m_{t-1} + (1 - \beta_1) \Delta_t, \qquad
        v_t = \beta_2 v_{t-1} + (1 - \beta_2) \Delta_t^2 \\
        \hat v_t &= \max(\hat v_{t-1}, v_t), \qquad \hat v_{-1} = v_{-1} = \tau^2 \\
        x_{t+1} &= x_t + \eta\, m_t / (\sqrt{\hat v_t} + \tau)

    The denominator never falls, so no coordinate's step grows again.

    Args:
      model: the learning problem.
      client_learning_rate: eta_l >= 0, a number or a schedule of the round.
      server_learning_rate: eta >= 0, likewise.
      adaptivity, momentum, second_moment_decay, initial_accumulator: as for
        `fedax.optimizers.adam`.
      **local_options: see `LocalOptions`.

    Raises:
      ValueError: a hyperparameter is out of its range (unless it is traced).

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> algorithm = fedax.fedamsgrad(character_lstm(16, 1), client_learning_rate=1.0)
    """
    server_optimizer = optimizers.amsgrad(
        adaptivity, momentum, second_moment_decay, initial_accumulator
    )
    return fedopt(
        model, None, server_optimizer,
        client_learning_rate=client_learning_rate,
        server_learning_rate=server_learning_rate,
        **local_options,
    )


@factory
def fedadabound(
    model: Model,
    client_learning_rate: ScheduleOrNumber = 0.1,
    server_learning_rate: ScheduleOrNumber = 0.01,
    adaptivity: float | Array = 1e-3,
    momentum: float | Array = 0.9,
    second_moment_decay: float | Array = 0.99,
    initial_accumulator: float | Array | None = None,
    final_scale: float | Array = 1.0,
    bound_rate: float | Array = 1e-3,
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""FedAdaBound: FedOpt with AdaBound (Luo et al. 2019) at the server.

    The server optimizer is `optimizers.adabound`:

    .. math::
        m_t &= \beta_1 m_{t-1} + (1 - \beta_1) \Delta_t \\
        v_t &= \beta_2 v_{t-1} + (1 - \beta_2) \Delta_t^2, \qquad v_{-1} = \tau^2 \\
        x_{t+1} &= x_t + \eta \operatorname{clip}\Bigl(\frac{1}{\sqrt{v_t} + \tau},\;
              s \bigl(1 - \tfrac{1}{b (t+1) + 1}\bigr),\;
              s \bigl(1 + \tfrac{1}{b (t+1)}\bigr)\Bigr)\, m_t

    for t = 0, 1, ... It begins like FedAdam and ends like FedAvgM with the server learning rate
    eta s and dampening equal to momentum.

    Args:
      model: the learning problem.
      client_learning_rate: eta_l >= 0, a number or a schedule of the round.
      server_learning_rate: eta >= 0, likewise.
      adaptivity, momentum, second_moment_decay, initial_accumulator, final_scale, bound_rate: as
        for `fedax.optimizers.adabound`.
      **local_options: see `LocalOptions`.

    Raises:
      ValueError: a hyperparameter is out of its range (unless it is traced).

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> algorithm = fedax.fedadabound(character_lstm(16, 1), final_scale=100.0)
    """
    server_optimizer = optimizers.adabound(
        adaptivity, momentum, second_moment_decay, initial_accumulator, final_scale, bound_rate
    )
    return fedopt(
        model, None, server_optimizer,
        client_learning_rate=client_learning_rate,
        server_learning_rate=server_learning_rate,
        **local_options,
    )
