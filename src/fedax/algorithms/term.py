"""TERM: the exponential of a client's loss is its weight.

Li, Beirami, Sanjabi, Smith, "Tilted Empirical Risk Minimization", ICLR 2021, equation (1) and
Lemma 1; the clients are the groups.
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
from fedax.algorithms.server import Server
from fedax.clients.local_training import LocalMessage, LocalOptions, LocalTraining, pseudo_gradient
from fedax.clients.precision import widen
from fedax.data.cohort_data import ClientExamples
from fedax.factories import factory
from fedax.optimizers.schedules import ScheduleOrNumber
from fedax.validate import check_number

# The largest exponent. Times 10^6 examples and numbers of the model up to 10^7, e^40 is within what
# `fedax.clients.uploads` accepts in float32.
_MOST = 40.0


class TermState(NamedTuple):
    """Server state of TERM.

    Attributes:
      params: x_t.
      round_index: t, int32 scalar.
      optimizer_state: the server optimizer's (plain SGD's).
      loss: c, the tilted mean of the clients' losses in the round before, scalar.
    """

    params: Params
    round_index: Array
    optimizer_state: Any
    loss: Array


class TermMessage(NamedTuple):
    """What the clients train with."""

    local: LocalMessage
    loss: Array


class TermUpload(NamedTuple):
    """x_t - x_{i,K} and F_i(x_t)."""

    pseudo_gradient: Params
    loss: Array


@factory
def term(
    model: Model,
    client_learning_rate: ScheduleOrNumber = 0.1,
    server_learning_rate: ScheduleOrNumber = 1.0,
    tilt: float | Array = 1.0,
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""TERM (Li et al. 2021, equation 1 and Lemma 1) with clients as groups, on FedAvg's rounds.

    It minimises a soft maximum of the losses F_i of the clients:

    .. math::
        \tfrac{1}{\tau} \log \textstyle\sum_i p_i \exp(\tau F_i(x)), \qquad
        w_i = p_i \exp(\tau (F_i(x_t) - c)), \qquad
        x_{t+1} = x_t - \eta\, \frac{\sum_i w_i (x_t - x_{i,K})}{\sum_i w_i}

    A tilt tau > 0 helps the clients with the largest loss; as it grows, the objective approaches
    the largest loss. A tilt below 0 gives such clients less weight, for example if their labels
    are wrong. With tau = 0 this is FedAvg. The constant c cancels: it is the weighted mean loss of
    the round before, and keeps the exponentials within the range of numbers. Exponents are limited
    to 40, in either direction.

    Args:
      model: the learning problem.
      client_learning_rate: gamma >= 0, a number or a schedule of the round.
      server_learning_rate: eta >= 0, likewise.
      tilt: tau, any finite number.
      **local_options: see `LocalOptions`.

    Returns:
      An algorithm with one exchange and stateless clients.

    Raises:
      ValueError: a hyperparameter is out of its range (unless it is traced).

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> algorithm = fedax.term(character_lstm(16, 1), 0.1, tilt=2.0)
    """
    check_number("tilt", tilt)
    local = LocalTraining.checked(model, client_learning_rate, local_options)
    server = Server.checked(None, server_learning_rate)

    def init(params: Params) -> TermState:
        return TermState(*server.init(params), jnp.zeros((), jax.tree.leaves(params)[0].dtype))

    def client(message: TermMessage, state: Any, data: ClientExamples, key: Array) -> Reply:
        at = message.local
        loss = local.full_loss(at.params, data, jax.random.fold_in(key, 0)).mean
        result = local.train(at, data, key)
        exponent = jnp.asarray(tilt, loss.dtype) * (loss - message.loss.astype(loss.dtype))
        upload = TermUpload(pseudo_gradient(at, result), loss.astype(message.loss.dtype))
        reply = local.reply(upload, at, data, result, state)
        tilted = jnp.exp(jnp.clip(exponent, -_MOST, _MOST))
        return reply._replace(weight=widen(reply.weight) * tilted.astype(widen(reply.weight).dtype))

    def fold(state: TermState, mean: TermUpload, participation: Participation) -> TermState:
        del participation
        return server.step(state._replace(loss=mean.loss), mean.pseudo_gradient)

    exchange = Exchange(
        lambda state: TermMessage(local.message(state), state.loss), client, fold,
        upload=lambda params: TermUpload(params, jnp.zeros(())),
    )
    return FederatedAlgorithm(init, stateless, (exchange,))
