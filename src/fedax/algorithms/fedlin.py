"""FedLin: local steps along the mean gradient, corrected by the client's own.

Mitra, Jaafar, Pappas, Hassani, "Linear Convergence in Federated Learning: Tackling Client
Heterogeneity and Sparse Gradients", NeurIPS 2021, Algorithm 1 without sparsification.
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
    ModelUpdate,
    Params,
    Participation,
    Reply,
    stateless,
)
from fedax.algorithms.mime import gradient_exchange
from fedax.algorithms.server import Server
from fedax.clients.local_training import LocalMessage, LocalOptions, LocalTraining, pseudo_gradient
from fedax.clients.minibatches import Minibatch, count_local_steps
from fedax.data.cohort_data import ClientExamples
from fedax.factories import factory
from fedax.optimizers.schedules import ScheduleOrNumber
from fedax.signatures import own_defaults


class FedLinState(NamedTuple):
    """Server state of FedLin.

    Attributes:
      params: x_t.
      round_index: t, int32 scalar.
      optimizer_state: the server optimizer's (plain SGD's).
      control: c, the cohort's mean gradient at x_t, from the first exchange to the second.
    """

    params: Params
    round_index: Array
    optimizer_state: Any
    control: Params


class FedLinMessage(NamedTuple):
    """What the clients train with."""

    local: LocalMessage
    control: Params


@factory
@own_defaults(weighting="uniform")
def fedlin(
    model: Model,
    client_learning_rate: ScheduleOrNumber = 0.1,
    server_learning_rate: ScheduleOrNumber = 1.0,
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""FedLin (Mitra et al. 2021, Algorithm 1), without sparsification.

    In the first exchange the clients send the gradient of all their examples. In the second their
    local steps follow the mean gradient c, corrected by how their own gradient changes on the way:

    .. math::
        c &= \textstyle\sum_i p_i \nabla f_i(x_t) \\
        x_{i,k+1} &= x_{i,k} - \tfrac{\gamma}{K_i} \bigl(g_{i,k} - \nabla f_i(x_t) + c\bigr) \\
        x_{t+1} &= x_t + \eta \textstyle\sum_i p_i (x_{i,K} - x_t)

    The step is divided by the client's number of local steps K_i, so clients that take more steps
    do not move further. With the gradient of all examples in each step, FedLin converges linearly
    to the minimum of the mean loss; with one such step it is gradient descent.

    Args:
      model: the learning problem.
      client_learning_rate: gamma >= 0, the path of all local steps together, a number or a schedule
        of the round.
      server_learning_rate: eta >= 0, likewise; 1 in the paper.
      **local_options: see `LocalOptions`. Clients have equal weights by default, as in the paper.

    Returns:
      An algorithm with two exchanges and stateless clients, which compute the gradient of all
      their examples in both.

    Raises:
      ValueError: a hyperparameter is out of its range (unless it is traced).

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> algorithm = fedax.fedlin(character_lstm(16, 1), 1.0, num_local_steps=10)
      >>> len(algorithm.exchanges)
      2
    """
    local = LocalTraining.checked(model, client_learning_rate, local_options)
    server = Server.checked(None, server_learning_rate)

    def init(params: Params) -> FedLinState:
        return FedLinState(*server.init(params), optax.tree.zeros_like(params))

    def client(message: FedLinMessage, state: Any, data: ClientExamples, key: Array) -> Reply:
        at = message.local
        _, own = local.full_gradient(at.params, data, jax.random.fold_in(key, 0))

        def correct(grads: Params, params: Params, batch: Minibatch, key: Array) -> Params:
            del params, batch, key
            return jax.tree.map(lambda g, f, c: g - f + c, grads, own, message.control)

        steps = count_local_steps(
            data, local.batch_size, local.num_local_epochs, at.num_local_steps
        )
        rate = at.client_learning_rate
        rate = rate / jnp.maximum(jnp.asarray(steps), 1).astype(rate.dtype)
        result = local.train(
            at._replace(client_learning_rate=rate), data, key, correction=correct
        )
        return local.reply(ModelUpdate(pseudo_gradient(at, result)), at, data, result, state)

    def fold(state: FedLinState, mean: ModelUpdate, participation: Participation) -> FedLinState:
        del participation
        return server.step(state, mean.pseudo_gradient)

    first = gradient_exchange(local, lambda state, mean: state._replace(control=mean))
    second = Exchange(
        lambda state: FedLinMessage(local.message(state), state.control), client, fold
    )
    return FederatedAlgorithm(init, stateless, (first, second))
