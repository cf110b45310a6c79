"""Mime, MimeLite and C-Mime: a centralised optimizer, mimicked by the clients' local steps.

Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh, "Mime: Mimicking Centralized
Stochastic Algorithms in Federated Learning" (2020), Algorithm 1, Table 4, and Appendix (C-Mime).
"""

from __future__ import annotations

from collections.abc import Callable
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
    PyTree,
    Reply,
    stateless,
)
from fedax.algorithms.server import Server
from fedax.clients.local_training import (
    Correction,
    LocalMessage,
    LocalOptions,
    LocalTraining,
    pseudo_gradient,
)
from fedax.clients.minibatches import Minibatch
from fedax.data.cohort_data import ClientExamples
from fedax.factories import factory
from fedax.optimizers import base_optimizers
from fedax.optimizers.base_optimizers import BaseOptimizer
from fedax.optimizers.checks import require_base
from fedax.optimizers.schedules import ScheduleOrNumber


class MimeState(NamedTuple):
    """Server state of Mime.

    Attributes:
      params: x_t.
      round_index: t, int32 scalar.
      optimizer_state: the server optimizer's (plain SGD's).
      statistics: s, the base optimizer's.
      control: c, the cohort's mean gradient at x_t, from the first exchange to the second.
    """

    params: Params
    round_index: Array
    optimizer_state: Any
    statistics: PyTree
    control: Params


class MimeMessage(NamedTuple):
    """What Mime's clients train with; `control` is () in MimeLite."""

    local: LocalMessage
    statistics: PyTree
    control: Any


class MimeUpload(NamedTuple):
    """MimeLite's upload; Mime sends its gradient in an exchange of its own, so () here."""

    pseudo_gradient: Params
    gradient: Any


@factory
def mime(
    model: Model,
    client_learning_rate: ScheduleOrNumber = 0.1,
    base: BaseOptimizer | None = None,
    server_learning_rate: ScheduleOrNumber = 1.0,
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""Mime (Karimireddy et al. 2020, Algorithm 1).

    In the first exchange the clients send the gradient of all their examples. In the second they
    take local steps with the server's statistics s (such as momentum), which stay fixed within a
    round, and a correction by the mean gradient c:

    .. math::
        c &= \textstyle\sum_i p_i \nabla f_i(x_t) \\
        y_{i,k+1} &= y_{i,k} - \gamma\, U\bigl(\nabla f_i(y_{i,k}; z) - \nabla f_i(x_t; z) + c,\,
                     s\bigr), \quad y_{i,0} = x_t \\
        x_{t+1} &= x_t + \eta \textstyle\sum_i p_i (y_{i,K} - x_t), \qquad s \leftarrow V(c, s)

    Both gradients of a local step use the same minibatch z and the same random key.

    Args:
      model: the learning problem.
      client_learning_rate: gamma >= 0, a number or a schedule of the round.
      base: U and V, see `fedax.base_optimizers`; None is SGD with momentum 0.9.
      server_learning_rate: eta >= 0, likewise; 1 in the paper.
      **local_options: see `LocalOptions`.

    Returns:
      An algorithm with two exchanges and stateless clients.

    Raises:
      ValueError: a hyperparameter is out of its range (unless it is traced).

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> algorithm = fedax.mime(character_lstm(16, 1), 0.1, fedax.base_optimizers.adam())
      >>> len(algorithm.exchanges)
      2
    """
    return _mime(
        model, client_learning_rate, base, server_learning_rate, local_options, frozen=True
    )


@factory
def cmime(
    model: Model,
    client_learning_rate: ScheduleOrNumber = 0.1,
    base: BaseOptimizer | None = None,
    server_learning_rate: ScheduleOrNumber = 1.0,
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""C-Mime (Karimireddy et al. 2020): Mime whose clients update their copy of the statistics.

    .. math::
        g &= \nabla f_i(y_{i,k}; z) - \nabla f_i(x_t; z) + c \\
        y_{i,k+1} &= y_{i,k} - \gamma\, U(g, s_i), \qquad s_i \leftarrow V(g, s_i)

    A round starts from s_i = s, and the clients' statistics are discarded at its end. The server's
    statistics change as in Mime. The paper uses C-Mime for comparison: it should follow a
    centralised method less well. Arguments, returns and errors are as for `mime`.

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> algorithm = fedax.cmime(character_lstm(16, 1), 0.1, fedax.base_optimizers.sgdm(0.9))
    """
    return _mime(
        model, client_learning_rate, base, server_learning_rate, local_options, frozen=False
    )


@factory
def mimelite(
    model: Model,
    client_learning_rate: ScheduleOrNumber = 0.1,
    base: BaseOptimizer | None = None,
    server_learning_rate: ScheduleOrNumber = 1.0,
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""MimeLite (Karimireddy et al. 2020, Algorithm 1): Mime without the correction.

    .. math::
        y_{i,k+1} = y_{i,k} - \gamma\, U(\nabla f_i(y_{i,k}; z), s), \qquad
        s \leftarrow V\bigl(\textstyle\sum_i p_i \nabla f_i(x_t),\, s\bigr)

    The model x changes as in Mime. Each client still sends the gradient of all its examples at
    x_t, which s needs, but in the same exchange. Arguments and errors are as for `mime`.

    Returns:
      An algorithm with one exchange and stateless clients.

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> len(fedax.mimelite(character_lstm(16, 1), 0.1).exchanges)
      1
    """
    base = base_optimizers.sgdm() if base is None else base
    require_base(base)
    local = LocalTraining.checked(model, client_learning_rate, local_options)
    server = Server.checked(None, server_learning_rate)

    def client(message: MimeMessage, state: Any, data: ClientExamples, key: Array) -> Reply:
        _, gradient = local.full_gradient(message.local.params, data, jax.random.fold_in(key, 0))
        optimizer = base_optimizers.frozen(base, message.statistics)
        result = local.train(message.local, data, key, optimizer=optimizer)
        upload = MimeUpload(pseudo_gradient(message.local, result), gradient)
        return local.reply(upload, message.local, data, result, state)

    def fold(state: MimeState, mean: MimeUpload, participation: Participation) -> MimeState:
        del participation
        state = server.step(state, mean.pseudo_gradient)
        return state._replace(statistics=base.update(mean.gradient, state.statistics))

    exchange = Exchange(
        lambda state: MimeMessage(local.message(state), state.statistics, ()), client, fold,
        upload=lambda params: MimeUpload(params, params),
    )
    return FederatedAlgorithm(mime_init(base, server, control=False), stateless, (exchange,))


def _mime(
    model: Model,
    client_learning_rate: ScheduleOrNumber,
    base: BaseOptimizer | None,
    server_learning_rate: ScheduleOrNumber,
    local_options: LocalOptions,
    *,
    frozen: bool,
) -> FederatedAlgorithm:
    """Mime, with the clients' statistics frozen or not."""
    base = base_optimizers.sgdm() if base is None else base
    require_base(base)
    local = LocalTraining.checked(model, client_learning_rate, local_options)
    server = Server.checked(None, server_learning_rate)

    def client(message: MimeMessage, state: Any, data: ClientExamples, key: Array) -> Reply:
        if frozen:
            optimizer = base_optimizers.frozen(base, message.statistics)
        else:
            optimizer = base_optimizers.as_transformation(base)
        result = local.train(
            message.local, data, key,
            optimizer=optimizer,
            optimizer_state=() if frozen else message.statistics,
            correction=control_variate(local, message.local.params, message.control),
        )
        upload = MimeUpload(pseudo_gradient(message.local, result), ())
        return local.reply(upload, message.local, data, result, state)

    def fold(state: MimeState, mean: MimeUpload, participation: Participation) -> MimeState:
        del participation
        state = server.step(state, mean.pseudo_gradient)
        return state._replace(statistics=base.update(state.control, state.statistics))

    first = gradient_exchange(local, lambda state, mean: state._replace(control=mean))
    second = Exchange(
        lambda state: MimeMessage(local.message(state), state.statistics, state.control),
        client, fold,
    )
    return FederatedAlgorithm(mime_init(base, server, control=True), stateless, (first, second))


def control_variate(local: LocalTraining, anchor: Params, control: Params) -> Correction:
    """g(y; z) -> g(y; z) - g(anchor; z) + control, with the same minibatch and randomness."""

    def correct(grads: Params, params: Params, batch: Minibatch, key: Array) -> Params:
        del params
        _, at_anchor = local.gradient(anchor, batch, key)
        return jax.tree.map(lambda g, a, c: g - a + c, grads, at_anchor, control)

    return correct


def gradient_exchange(
    local: LocalTraining, fold: Callable[[Any, Params], Any]
) -> Exchange:
    """Every client sends the gradient of its whole data at the model; `fold` takes their mean."""

    def client(params: Params, state: Any, data: ClientExamples, key: Array) -> Reply:
        loss, gradient = local.full_gradient(params, data, key)
        one = jnp.ones_like(loss.weight)
        info = {"train_loss": loss, "num_local_steps": (jnp.zeros_like(one), one)}
        return Reply(ModelUpdate(gradient), local.weight(data, loss), state, info)

    def server(state: Any, mean: ModelUpdate, participation: Participation) -> Any:
        del participation
        return fold(state, mean.pseudo_gradient)

    return Exchange(lambda state: state.params, client, server)


def mime_init(base: BaseOptimizer, server: Server, *, control: bool) -> Callable[[Params], Any]:
    """(params) -> the state before the first round."""

    def init(params: Params) -> MimeState:
        zeros = jax.tree.map(jnp.zeros_like, params) if control else ()
        return MimeState(*server.init(params), base.init(params), zeros)

    return init
