"""q-FedAvg: clients with a large loss count for more.

Li, Sanjabi, Beirami, Smith, "Fair Resource Allocation in Federated Learning", ICLR 2020,
Algorithm 2.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp

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
from fedax.algorithms.fedexp import squared_norm
from fedax.algorithms.server import Server, ServerState
from fedax.clients.local_training import LocalMessage, LocalOptions, LocalTraining, pseudo_gradient
from fedax.data.cohort_data import ClientExamples
from fedax.factories import factory
from fedax.optimizers.schedules import ScheduleOrNumber
from fedax.signatures import own_defaults
from fedax.validate import check_number

# Added to the loss, whose power q - 1 is infinite at 0 if q < 1; as in the code released with the
# paper.
_LEAST = 1e-10


class QFedAvgUpload(NamedTuple):
    """F_i^q (x_t - x_{i,K}), and the client's term of the divisor."""

    pseudo_gradient: Params
    divisor: Array


@factory
@own_defaults(weighting="uniform")
def qfedavg(
    model: Model,
    client_learning_rate: ScheduleOrNumber = 0.1,
    server_learning_rate: ScheduleOrNumber = 1.0,
    q: float | Array = 1.0,
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""q-FedAvg (Li et al. 2020, Algorithm 2) for q-FFL: the clients' losses become more alike.

    It minimises the sum of F_i^{q+1} / (q + 1), with F_i the mean loss of all examples of client i
    plus 1e-10, as in the authors' code:

    .. math::
        d_i = x_t - x_{i,K}, \qquad
        x_{t+1} = x_t - \eta\,
        \frac{\sum_i p_i F_i^q(x_t)\, d_i}
             {\sum_i p_i \bigl(F_i^q(x_t) + q F_i^{q-1}(x_t) |d_i|^2 / \gamma\bigr)}

    The divisor estimates how fast the gradient of this sum changes, so that a learning rate tuned
    for FedAvg serves every q. With q = 0 this is FedAvg. The paper's L is 1 / gamma.

    Args:
      model: the learning problem. Its losses are not negative.
      client_learning_rate: gamma >= 0, a number or a schedule of the round.
      server_learning_rate: eta >= 0, likewise; 1 in the paper.
      q: >= 0; the larger, the more a client's weight grows with its loss. The paper uses 0.001 to
        5, depending on the data.
      **local_options: see `LocalOptions`. Clients have equal weights by default.

    Returns:
      An algorithm with one exchange and stateless clients.

    Raises:
      ValueError: a hyperparameter is out of its range (unless it is traced).

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> algorithm = fedax.qfedavg(character_lstm(16, 1), 0.1, q=0.1)
    """
    check_number("q", q, at_least=0)
    local = LocalTraining.checked(model, client_learning_rate, local_options)
    server = Server.checked(None, server_learning_rate)

    def client(message: LocalMessage, state: Any, data: ClientExamples, key: Array) -> Reply:
        loss = local.full_loss(message.params, data, jax.random.fold_in(key, 0)).mean + _LEAST
        result = local.train(message, data, key)
        moved = pseudo_gradient(message, result)
        power = jnp.asarray(q, loss.dtype)
        gamma = message.client_learning_rate.astype(loss.dtype)
        weight = loss**power
        curved = squared_norm(moved).astype(loss.dtype) / jnp.where(gamma > 0, gamma, 1)
        divisor = weight + power * loss ** (power - 1) * curved
        upload = QFedAvgUpload(
            jax.tree.map(lambda d: weight.astype(d.dtype) * d, moved), divisor
        )
        return local.reply(upload, message, data, result, state)

    def fold(state: ServerState, mean: QFedAvgUpload, participation: Participation) -> ServerState:
        del participation
        # It is 0 where the power of every loss is below the smallest number: no step is left.
        divisor = jnp.where(mean.divisor > 0, mean.divisor, 1)
        return server.step(state, jax.tree.map(
            lambda d: d / divisor.astype(d.dtype), mean.pseudo_gradient
        ))

    exchange = Exchange(
        local.message, client, fold, upload=lambda params: QFedAvgUpload(params, jnp.zeros(()))
    )
    return FederatedAlgorithm(server.init, stateless, (exchange,))
