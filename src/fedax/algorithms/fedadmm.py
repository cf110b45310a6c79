"""FedADMM: every client has a model and a dual variable of its own.

Gong, Li, Freris, "FedADMM: A Robust Federated Deep Learning Framework with Adaptivity to System
Heterogeneity", ICDE 2022, Algorithm 1.
"""

from __future__ import annotations

from typing import NamedTuple, Unpack

import jax
import jax.numpy as jnp
import optax

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
from fedax.algorithms.feddyn import require_proximal_weight
from fedax.algorithms.server import Server, ServerState
from fedax.clients.local_training import LocalMessage, LocalOptions, LocalTraining
from fedax.clients.minibatches import Minibatch
from fedax.data.cohort_data import ClientExamples
from fedax.factories import factory
from fedax.optimizers.schedules import ScheduleOrNumber
from fedax.signatures import own_defaults


class FedADMMOwn(NamedTuple):
    """What a client keeps: its model and its dual variable."""

    params: Params
    dual: Params


@factory
@own_defaults(weighting="uniform", proximal_weight=0.1)
def fedadmm(
    model: Model,
    client_learning_rate: ScheduleOrNumber = 0.1,
    server_learning_rate: ScheduleOrNumber = 1.0,
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""FedADMM (Gong et al. 2022, Algorithm 1): FedProx with dual variables.

    Each client keeps its model x_i, from which its next local steps start, and a dual variable
    u_i. Local steps lower the augmented Lagrangian f_i(y) + <u_i, y - x_t> + rho/2 |y - x_t|^2:

    .. math::
        x_{i,k+1} &= x_{i,k} - \gamma\, (g_{i,k} + u_i + \rho (x_{i,k} - x_t)),
        \qquad x_{i,0} = x_i \\
        u_i^+ &= u_i + \rho (x_{i,K} - x_t), \qquad x_i^+ = x_{i,K} \\
        x_{t+1} &= x_t + \eta \textstyle\sum_i p_i \bigl((x_i^+ + u_i^+ / \rho)
                   - (x_i + u_i / \rho)\bigr)

    Before a client takes part for the first time, x_i is the initial model and u_i is 0.

    Args:
      model: the learning problem.
      client_learning_rate: gamma >= 0, a number or a schedule of the round.
      server_learning_rate: eta >= 0, likewise. With the share of clients in a round, |S| / N, x_t
        stays the mean of all x_i + u_i / rho, so training can rest at the minimum. Larger values
        are faster at first; if clients take part rarely, they diverge.
      **local_options: see `LocalOptions`. proximal_weight is rho, 0.1 by default. With 0 there is
        no dual variable. Clients have equal weights by default, as in the paper.

    Returns:
      An algorithm with one exchange. Each client keeps twice the size of the parameters.

    Raises:
      ValueError: a hyperparameter is out of its range (unless it is traced).

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> algorithm = fedax.fedadmm(character_lstm(16, 1), 0.1, proximal_weight=0.01)
    """
    local = LocalTraining.checked(model, client_learning_rate, local_options)
    require_proximal_weight(local)
    server = Server.checked(None, server_learning_rate)

    def init_client(params: Params) -> FedADMMOwn:
        return FedADMMOwn(params, optax.tree.zeros_like(params))

    def client(message: LocalMessage, own: FedADMMOwn, data: ClientExamples, key: Array) -> Reply:
        rho = jnp.asarray(message.proximal_weight)

        def correct(grads: Params, params: Params, batch: Minibatch, key: Array) -> Params:
            del batch, key
            return jax.tree.map(
                lambda g, u, y, x: g + u + rho.astype(g.dtype) * (y - x),
                grads, own.dual, params, message.params,
            )

        start = message._replace(params=own.params, proximal_weight=None)
        result = local.train(start, data, key, correction=correct)
        # (u_i^+ - u_i) / rho is x_{i,K} - x_t; without a penalty there is no dual variable.
        gap = jax.tree.map(
            lambda y, x: jnp.where(rho > 0, y - x, 0), result.params, message.params
        )
        dual = jax.tree.map(lambda u, d: u + rho.astype(d.dtype) * d, own.dual, gap)
        change = jax.tree.map(lambda x, y, d: x - y - d, own.params, result.params, gap)
        new = FedADMMOwn(result.params, dual)
        return local.reply(ModelUpdate(change), message, data, result, new)

    def fold(state: ServerState, mean: ModelUpdate, participation: Participation) -> ServerState:
        del participation
        return server.step(state, mean.pseudo_gradient)

    exchange = Exchange(local.message, client, fold)
    return FederatedAlgorithm(server.init, init_client, (exchange,))
