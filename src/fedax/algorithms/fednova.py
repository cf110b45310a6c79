"""FedNova: clients that take more local steps do not weigh more.

Wang, Liu, Liang, Joshi, Poor, "Tackling the Objective Inconsistency Problem in Heterogeneous
Federated Optimization", NeurIPS 2020, section 4 and equation (10).
"""

from __future__ import annotations

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
    Reply,
    stateless,
)
from fedax.algorithms.server import Server, ServerState
from fedax.clients.local_training import LocalMessage, LocalOptions, LocalTraining, pseudo_gradient
from fedax.data.cohort_data import ClientExamples
from fedax.factories import factory
from fedax.optimizers.schedules import ScheduleOrNumber


class FedNovaUpload(NamedTuple):
    """(x_t - x_{i,K}) / |a_i| and K_i."""

    pseudo_gradient: Params
    num_steps: Array


@factory
def fednova(
    model: Model,
    client_learning_rate: ScheduleOrNumber = 0.1,
    server_learning_rate: ScheduleOrNumber = 1.0,
    server_optimizer: optax.GradientTransformation | None = None,
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""FedNova (Wang et al. 2020, NeurIPS, equation 10).

    Each client's change is divided by the number of its local steps, and the mean is multiplied by
    the mean number of steps:

    .. math::
        x_{t+1} = x_t - \eta \Bigl(\textstyle\sum_i p_i K_i\Bigr)
                  \textstyle\sum_i p_i \frac{x_t - x_{i,K}}{|a_i|}, \qquad
        |a_i| = \textstyle\sum_{k < K_i} (1 - \gamma \mu)^k

    Without a proximal term mu is 0, so the divisor is K_i. If all clients take the same number of
    steps, this is FedAvg.

    Args:
      model: the learning problem.
      client_learning_rate: gamma >= 0, a number or a schedule of the round.
      server_learning_rate: eta >= 0, likewise; 1 in the paper.
      server_optimizer: an optax transformation that receives the step above; None is SGD. The
        paper's server momentum is `fedax.optimizers.heavy_ball(0.9)`.
      **local_options: see `LocalOptions`. The numbers of steps differ if clients train for
        epochs.

    Raises:
      ValueError: a hyperparameter is out of its range (unless it is traced).

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> algorithm = fedax.fednova(character_lstm(16, 1), 0.1, num_local_epochs=2)
    """
    local = LocalTraining.checked(model, client_learning_rate, local_options)
    server = Server.checked(server_optimizer, server_learning_rate)

    def client(message: LocalMessage, state: Any, data: ClientExamples, key: Array) -> Reply:
        result = local.train(message, data, key)
        steps = result.num_steps.astype(result.loss.weight.dtype)
        length = steps
        if message.proximal_weight is not None:
            pull = (message.client_learning_rate * message.proximal_weight).astype(steps.dtype)
            length = _geometric_sum(pull, result.num_steps)
        length = jnp.where(steps > 0, length, 1)
        change = jax.tree.map(
            lambda d: d / length.astype(d.dtype), pseudo_gradient(message, result)
        )
        upload = FedNovaUpload(change, steps)
        return local.reply(upload, message, data, result, state)

    def fold(state: ServerState, mean: FedNovaUpload, participation: Participation) -> ServerState:
        del participation
        return server.step(state, jax.tree.map(
            lambda d: mean.num_steps.astype(d.dtype) * d, mean.pseudo_gradient
        ))

    exchange = Exchange(
        local.message, client, fold, upload=lambda params: FedNovaUpload(params, jnp.zeros(()))
    )
    return FederatedAlgorithm(server.init, stateless, (exchange,))


def _geometric_sum(pull: Array, count: Array) -> Array:
    """sum_{k < count} (1 - pull)^k, without cancellation where pull is small."""
    number = count.astype(pull.dtype)
    small = jnp.clip(pull, 1e-30, 0.5)
    large = jnp.where(pull > 0.5, pull, 1)
    last = jnp.abs(1 - large) ** number * jnp.where((large > 1) & (count % 2 == 1), -1.0, 1.0)
    return jnp.where(
        pull > 0.5, (1 - last) / large,
        jnp.where(pull > 0, -jnp.expm1(number * jnp.log1p(-small)) / small, number),
    )
