"""MimeMVR: momentum-based variance reduction, mimicked by the clients' local steps.

Karimireddy et al., "Mime: Mimicking Centralized Stochastic Algorithms in Federated
Learning" (2020), Appendix, equations (14) and (15).
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
    ModelUpdate,
    Params,
    Participation,
    Reply,
    stateless,
)
from fedax.algorithms.mime import control_variate
from fedax.algorithms.server import Server
from fedax.clients.local_training import LocalMessage, LocalOptions, LocalTraining, pseudo_gradient
from fedax.data.cohort_data import ClientExamples
from fedax.factories import factory
from fedax.optimizers.schedules import ScheduleOrNumber, as_schedule
from fedax.validate import check_number


class MimeMVRState(NamedTuple):
    """Server state of MimeMVR.

    Attributes:
      params: x^{t-1}, the current model.
      round_index: int32 scalar.
      optimizer_state: the server optimizer's (plain SGD's).
      previous: x^{t-2}, the model before.
      momentum: m^{t-1}, which estimates the gradient at x^{t-2}.
      control: the cohort's mean gradients at x^{t-1} and x^{t-2}, between the exchanges.
      started: bool scalar, whether m has begun.
    """

    params: Params
    round_index: Array
    optimizer_state: Any
    previous: Params
    momentum: Params
    control: tuple[Params, Params]
    started: Array


class MimeMVRMessage(NamedTuple):
    """What the clients train with: the anchor x^{t-2} and a c + (1 - a) m^{t-1}."""

    local: LocalMessage
    previous: Params
    direction: Params


@factory
def mimemvr(
    model: Model,
    client_learning_rate: ScheduleOrNumber = 0.1,
    momentum_weight: ScheduleOrNumber = 0.1,
    server_learning_rate: ScheduleOrNumber = 1.0,
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""MimeMVR (Karimireddy et al. 2020, equations 14 and 15, corrected), in two exchanges.

    .. math::
        c &= \textstyle\sum_{i \in S_t} p_i \nabla f_i(x^{t-2}), \qquad
        g = \textstyle\sum_{i \in S_t} p_i \nabla f_i(x^{t-1}) \\
        y &\leftarrow y - \gamma\, \bigl(\nabla f_i(y; z) - \nabla f_i(x^{t-2}; z)
             + a\, c + (1 - a)\, m^{t-1}\bigr), \quad y_0 = x^{t-1} \\
        m^t &= a\, g + (1 - a) (m^{t-1} + g - c)

    In the first round in which a client answers, x^{t-2} = x^{t-1} and m^0 = c. Equation (15) is
    printed with x^{t-1} in the local correction; (14) and the proof of Lemma 9 need x^{t-2}.

    Args:
      model: the learning problem.
      client_learning_rate: gamma >= 0, a number or a schedule of the round.
      momentum_weight: a in [0, 1], likewise; with 1 the momentum has no memory.
      server_learning_rate: eta >= 0, likewise; 1 in the paper.
      **local_options: see `LocalOptions`.

    Raises:
      ValueError: a hyperparameter is out of its range (unless it is traced).

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> len(fedax.mimemvr(character_lstm(16, 1), 0.1, momentum_weight=0.2).exchanges)
      2
    """
    check_number("momentum_weight", momentum_weight, at_least=0, at_most=1, schedule=True)
    weight_of = as_schedule(momentum_weight)
    local = LocalTraining.checked(model, client_learning_rate, local_options)
    server = Server.checked(None, server_learning_rate)

    def init(params: Params) -> MimeMVRState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        started = jnp.zeros((), bool)
        return MimeMVRState(*server.init(params), params, zeros, (zeros, zeros), started)

    def two_gradients(
        message: tuple[Params, Params], state: Any, data: ClientExamples, key: Array
    ) -> Reply:
        (loss, now), (_, before) = (local.full_gradient(x, data, key) for x in message)
        return Reply((now, before), local.weight(data, loss), state, {"train_loss": loss})

    def keep(
        state: MimeMVRState, mean: tuple[Params, Params], participation: Participation
    ) -> MimeMVRState:
        del participation
        momentum = jax.tree.map(
            lambda c, m: jnp.where(state.started, m, c), mean[1], state.momentum
        )
        return state._replace(control=mean, momentum=momentum, started=jnp.ones((), bool))

    def broadcast(state: MimeMVRState) -> MimeMVRMessage:
        direction = _mix(weight_of(state.round_index), state.control[1], state.momentum)
        return MimeMVRMessage(local.message(state), state.previous, direction)

    def client(message: MimeMVRMessage, state: Any, data: ClientExamples, key: Array) -> Reply:
        correction = control_variate(local, message.previous, message.direction)
        result = local.train(message.local, data, key, correction=correction)
        upload = ModelUpdate(pseudo_gradient(message.local, result))
        return local.reply(upload, message.local, data, result, state)

    def fold(
        state: MimeMVRState, mean: ModelUpdate, participation: Participation
    ) -> MimeMVRState:
        del participation
        now, before = state.control
        moved = jax.tree.map(lambda m, g, c: m + g - c, state.momentum, now, before)
        momentum = _mix(weight_of(state.round_index), now, moved)
        state = state._replace(previous=state.params, momentum=momentum)
        return server.step(state, mean.pseudo_gradient)

    return FederatedAlgorithm(
        init, stateless,
        (
            Exchange(
                lambda state: (state.params, state.previous), two_gradients, keep,
                upload=lambda params: (params, params),
            ),
            Exchange(broadcast, client, fold),
        ),
    )


def _mix(weight: Array, new: Params, old: Params) -> Params:
    """A new + (1 - a) old."""

    def mix(new: Array, old: Array) -> Array:
        a = weight.astype(new.dtype)
        return a * new + (1 - a) * old

    return jax.tree.map(mix, new, old)
