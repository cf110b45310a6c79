"""Ditto: each client has a model of its own, which stays near the server's.

Li, Hu, Beirami, Smith, "Ditto: Fair and Robust Federated Learning Through Personalization", ICML
2021, Algorithm 1.
"""

from __future__ import annotations

from typing import Any, Unpack

import jax
import jax.numpy as jnp

from fedax.algorithm import (
    Array,
    Exchange,
    FederatedAlgorithm,
    Model,
    ModelUpdate,
    Params,
    Participation,
    Reply,
)
from fedax.algorithms.server import Server, ServerState
from fedax.clients.local_training import LocalMessage, LocalOptions, LocalTraining, pseudo_gradient
from fedax.clients.minibatches import Minibatch
from fedax.data.cohort_data import ClientExamples
from fedax.factories import factory
from fedax.optimizers.schedules import ScheduleOrNumber
from fedax.validate import check_number


@factory
def ditto(
    model: Model,
    client_learning_rate: ScheduleOrNumber = 0.1,
    server_learning_rate: ScheduleOrNumber = 1.0,
    attraction: float | Array = 0.1,
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""Ditto (Li et al. 2021, Algorithm 1).

    The server's model x_t is FedAvg's. Beside it each client keeps a model v_i of its own and
    trains it with as many steps, on its loss with a penalty on the distance to the server's model:

    .. math::
        v_i &\leftarrow v_i - \gamma\, \bigl(\nabla f_i(v_i) + \lambda (v_i - x_t)\bigr) \\
        x_{t+1} &= x_t + \eta \textstyle\sum_i p_i (x_{i,K} - x_t)

    With lambda = 0 each client trains v_i alone. A large lambda keeps it at the server's model;
    gamma lambda < 1 is needed.

    Args:
      model: the learning problem.
      client_learning_rate: gamma >= 0 of both models, a number or a schedule of the round.
      server_learning_rate: eta >= 0, likewise; 1 in the paper.
      attraction: lambda >= 0. The paper tries 0.05, 0.1, 0.5, 1 and 2.
      **local_options: see `LocalOptions`. proximal_weight is for the server's model only. The
        server weighs clients by their numbers of examples, as in `fedavg`; the paper's mean is
        weighting="uniform".

    Returns:
      An algorithm with one exchange. Each client keeps v_i, of the size of the parameters. Before
      a client takes part, v_i is the initial model.

    Raises:
      ValueError: a hyperparameter is out of its range (unless it is traced).

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> algorithm = fedax.ditto(character_lstm(16, 1), 0.1, attraction=0.5)
    """
    local = LocalTraining.checked(model, client_learning_rate, local_options)
    server = Server.checked(None, server_learning_rate)
    check_number("attraction", attraction, at_least=0)

    def client(message: LocalMessage, own: Params, data: ClientExamples, key: Array) -> Reply:
        def attract(grads: Params, params: Params, batch: Minibatch, key: Array) -> Params:
            del batch, key
            return jax.tree.map(
                lambda g, v, x: g + jnp.asarray(attraction, g.dtype) * (v - x),
                grads, params, message.params,
            )

        result = local.train(message, data, key)
        start = message._replace(params=own, proximal_weight=None)
        mine = local.train(start, data, jax.random.fold_in(key, 0), correction=attract)
        return local.reply(
            ModelUpdate(pseudo_gradient(message, result)), message, data, result, mine.params
        )

    def fold(state: ServerState, mean: ModelUpdate, participation: Participation) -> ServerState:
        del participation
        return server.step(state, mean.pseudo_gradient)

    def own_model(state: Any, own: Params, data: ClientExamples, key: Array) -> Params:
        del state, data, key
        return own

    return FederatedAlgorithm(
        server.init, lambda params: params, (Exchange(local.message, client, fold),),
        own_model=own_model,
    )
