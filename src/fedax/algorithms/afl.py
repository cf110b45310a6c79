"""AFL: the server minimises the loss of the worst mixture of clients.

Mohri, Sivek, Suresh, "Agnostic Federated Learning", ICML 2019, Stochastic-AFL (section 4).
"""

from __future__ import annotations

from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp

from fedax.algorithm import (
    Array,
    Exchange,
    FederatedAlgorithm,
    Individual,
    Model,
    ModelUpdate,
    Params,
    Participation,
    Reply,
)
from fedax.algorithms.server import Server
from fedax.clients.local_training import LocalMessage, LocalOptions, LocalTraining, pseudo_gradient
from fedax.clients.precision import widen
from fedax.data.cohort_data import ClientExamples
from fedax.factories import factory
from fedax.optimizers.schedules import ScheduleOrNumber
from fedax.signatures import own_defaults
from fedax.validate import check_number


class AFLState(NamedTuple):
    """Server state of AFL.

    Attributes:
      params: x_t.
      round_index: t, int32 scalar.
      optimizer_state: the server optimizer's (plain SGD's).
      step: N gamma_lambda, scalar, from the first exchange to the second.
      threshold: what the projection subtracts, scalar, likewise.
    """

    params: Params
    round_index: Array
    optimizer_state: Any
    step: Array
    threshold: Array


class AFLMessage(NamedTuple):
    """What the clients train with, and change their weight with."""

    local: LocalMessage
    step: Array
    threshold: Array


class AFLOwn(NamedTuple):
    """What a client keeps: N lambda_i, and F_i(x_t) from the first exchange to the second."""

    mixture: Array
    loss: Array


@factory
@own_defaults(weighting="uniform", num_local_steps=1)
def afl(
    model: Model,
    client_learning_rate: ScheduleOrNumber = 0.1,
    server_learning_rate: ScheduleOrNumber = 1.0,
    mixture_learning_rate: float | Array = 0.01,
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""AFL (Mohri et al. 2019, Stochastic-AFL): the model for the worst mixture of clients.

    It seeks the saddle point of the sum of lambda_i F_i(x) over all lambda >= 0 that sum to 1, by
    descent in x and projected ascent in lambda at the same time:

    .. math::
        x_{t+1} = x_t - \eta\, \frac{\sum_i \lambda_i (x_t - x_{i,K})}{\sum_i \lambda_i}, \qquad
        \lambda \leftarrow \Pi\bigl(\lambda + \zeta F(x_t)\bigr)

    At a saddle point all clients with lambda_i > 0 have the same loss, the largest. The paper takes
    one local step; it averages the models of all rounds, of which this is the last.

    Args:
      model: the learning problem.
      client_learning_rate: gamma >= 0, a number or a schedule of the round.
      server_learning_rate: eta >= 0, likewise; 1 in the paper.
      mixture_learning_rate: zeta >= 0, of lambda, which starts at 1 / N for each client. With 0
        this is FedAvg, whose clients draw other minibatches in the same round.
      **local_options: see `LocalOptions`. num_local_steps is 1 by default and weighting is
        "uniform"; other weights multiply lambda. With sampled clients the projection keeps the sum
        of the lambda_i of the round's clients.

    Returns:
      An algorithm with two exchanges. In the first the server sees each client's loss and weight
      (two numbers, no model), because it projects; this gives up secure aggregation of them. Each
      client keeps two numbers.

    Raises:
      ValueError: a hyperparameter is out of its range (unless it is traced).

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> algorithm = fedax.afl(character_lstm(16, 1), 0.1, mixture_learning_rate=0.1)
      >>> [exchange.individual for exchange in algorithm.exchanges]
      [True, False]
    """
    check_number("mixture_learning_rate", mixture_learning_rate, at_least=0)
    local = LocalTraining.checked(model, client_learning_rate, local_options)
    server = Server.checked(None, server_learning_rate)

    def init(params: Params) -> AFLState:
        zero = jnp.zeros((), jax.tree.leaves(params)[0].dtype)
        return AFLState(*server.init(params), zero, zero)

    def init_client(params: Params) -> AFLOwn:
        dtype = jax.tree.leaves(params)[0].dtype
        return AFLOwn(jnp.ones((), dtype), jnp.zeros((), dtype))

    def measure(params: Params, own: AFLOwn, data: ClientExamples, key: Array) -> Reply:
        loss = local.full_loss(params, data, key)
        own = own._replace(loss=loss.mean.astype(own.loss.dtype))
        present = (data.num_examples > 0).astype(loss.weight.dtype)
        return Reply(own, present, own, {"train_loss": loss})

    def project(state: AFLState, each: Individual, participation: Participation) -> AFLState:
        step = (
            jnp.asarray(mixture_learning_rate, state.step.dtype)
            * participation.num_clients.astype(state.step.dtype)
        )
        counts = each.weights > 0
        old = jnp.where(counts, each.uploads.mixture, 0)
        raised = jnp.where(counts, old + step * each.uploads.loss, -jnp.inf)
        return state._replace(step=step, threshold=_threshold(raised, old.sum()))

    def client(message: AFLMessage, own: AFLOwn, data: ClientExamples, key: Array) -> Reply:
        at = message.local
        result = local.train(at, data, key)
        raised = own.mixture + message.step * own.loss - message.threshold
        moved = AFLOwn(jnp.maximum(raised, 0), own.loss)
        upload = ModelUpdate(pseudo_gradient(at, result))
        reply = local.reply(upload, at, data, result, moved)
        weight = widen(reply.weight)
        return reply._replace(weight=weight * own.mixture.astype(weight.dtype))

    def fold(state: AFLState, mean: ModelUpdate, participation: Participation) -> AFLState:
        del participation
        return server.step(state, mean.pseudo_gradient)

    exchanges = (
        Exchange(lambda state: state.params, measure, project, individual=True),
        Exchange(
            lambda state: AFLMessage(local.message(state), state.step, state.threshold),
            client, fold,
        ),
    )
    return FederatedAlgorithm(init, init_client, exchanges)


def _threshold(values: Array, mass: Array) -> Array:
    """Theta with sum_i max(values_i - theta, 0) = mass; values of -inf do not count."""
    largest = jnp.sort(values, descending=True)
    finite = jnp.where(jnp.isfinite(largest), largest, 0)
    thetas = (jnp.cumsum(finite) - mass) / jnp.arange(1, values.size + 1).astype(values.dtype)
    support = (largest > thetas) & jnp.isfinite(largest)
    return thetas[jnp.maximum(support.sum() - 1, 0)]
