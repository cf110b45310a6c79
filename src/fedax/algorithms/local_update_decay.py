"""LocalUpdateDecay: both learning rates fall when the loss before local training stops falling.

Charles, Konečný, "On the Outsized Importance of Learning Rates in Local Update Methods" (2020),
section 9, Algorithms 3 and 4, equation (25).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedax.algorithm import (
    Array,
    Exchange,
    FederatedAlgorithm,
    Model,
    Params,
    Participation,
    PyTree,
    Reply,
    WrapperState,
    own_model_inside,
)
from fedax.algorithms.decay_upload import DecayUpload, require_one_model, with_loss
from fedax.algorithms.division import require_whole
from fedax.algorithms.plateau import Controller, PlateauRule, Rates
from fedax.clients.gradients import full_loss
from fedax.clients.precision import sum_dtype
from fedax.data.cohort_data import ClientExamples
from fedax.factories import factory
from fedax.mistakes.algorithm import require_wrappable
from fedax.mistakes.errors import kind_of
from fedax.validate import check_count

Build = Callable[[Any, Any], FederatedAlgorithm]


class DecayMessage(NamedTuple):
    """The wrapped algorithm's message, its rates, and the model whose loss clients estimate."""

    inner: PyTree
    rates: Rates
    params: Params


@factory
def local_update_decay(
    build: Build,
    model: Model,
    client_learning_rate: float | Array | None = 0.1,
    server_learning_rate: float | Array | None = 0.1,
    client_decay: float | Array = 0.1,
    server_decay: float | Array = 0.9,
    window: int = 100,
    patience: int | Array = 100,
    cooldown: int | Array = 100,
    threshold: float | Array = 1e-4,
    rule: PlateauRule = "paper",
    loss_batch_size: int = 20,
) -> FederatedAlgorithm:
    r"""LocalUpdateDecay around any algorithm (Charles and Konečný 2020, Algorithms 3 and 4).

    Before its local steps each client computes the loss of the server's model on all its
    examples. l_t is the mean of these losses with the algorithm's client weights, and
    :math:`\hat l_t` the mean of the last W of them. Both learning rates fall,
    :math:`\gamma \leftarrow \alpha \gamma` and :math:`\eta \leftarrow \beta \eta`, when

    .. math:: \hat l_t > \min_{j < t} \hat l_j - \Delta

    has held for P rounds in a row, but never in the first C rounds or in the C rounds after a
    fall. W is the window, P the patience and C the cooldown. With W = P = 1 and C = 0 this is
    Algorithm 3.

    Rounds of the cooldown count towards P: section 9.1 counts the rounds in a row in which the
    condition holds, and forbids only the fall. With a constant loss the rates therefore fall every
    max(P, C + 1) rounds. The other reading, in which the count starts after the cooldown, as in
    Keras and PyTorch, is that of `rule="released"`.

    Args:
      build: (client_learning_rate, server_learning_rate) -> algorithm. It is called in every
        trace, with the current learning rates as traced scalars.
      model: the model that the algorithm trains.
      client_learning_rate: gamma >= 0 of the first round. None if the algorithm has no client
        learning rate; `build` then receives None.
      server_learning_rate: eta > 0 of the first round, or None, likewise.
      client_decay: alpha in (0, 1]; 0.1 in the released code.
      server_decay: beta in (0, 1]; 0.9 in the released code. With both 1 the learning rates stay,
        and the algorithm only reports `full_loss` as well.
      window, patience, cooldown: W >= 1 (static), P >= 1, C >= 0. The paper's experiments use 100
        for all three; `plateau_lengths` has the default of its section 9.1.
      threshold: Delta >= 0, the least fall of the loss that counts as progress.
      rule: "paper" (above) or "released", the controller of the released code. There the minimum
        is replaced only by a mean that is lower by more than Delta, and the cooldown counts down
        before the test, so the round in which it reaches 0 may count. With a constant loss and
        W = P = C = 100 the rates then fall in round 200 and every 199 rounds after it.
      loss_batch_size: examples per batch when that loss is computed, >= 1.

    Returns:
      The algorithm. Clients also report `full_loss`, `client_learning_rate` and
      `server_learning_rate` (a learning rate that is None is not reported).

    Raises:
      TypeError: `build` is an algorithm, or a factory of one, in place of such a function.
      ValueError: a hyperparameter is out of its range (unless it is traced), or the algorithm's
        server receives uploads one by one, as PFNM's does.

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> model = character_lstm(16, 1)
      >>> algorithm = fedax.local_update_decay(
      ...     lambda client_rate, server_rate: fedax.elastic(
      ...         fedax.fedyogi(model, client_rate, server_rate, proximal_weight=0.1), model
      ...     ),
      ...     model, client_learning_rate=1.0, server_learning_rate=0.01, window=10,
      ... )
    """
    _require_build(build)
    control = Controller.checked(
        Rates(client_learning_rate, server_learning_rate), Rates(client_decay, server_decay),
        window, patience, cooldown, threshold, rule,
    )
    check_count("loss_batch_size", loss_batch_size)
    first = build(*control.start)
    require_wrappable(first, "fedax.local_update_decay(build, model)")
    if any(exchange.individual for exchange in first.exchanges):
        raise ValueError(
            "local_update_decay needs the mean of the clients' losses, but the server of the "
            "wrapped algorithm receives uploads one by one. Wrap a different algorithm."
        )
    last = len(first.exchanges) - 1

    def init(params: Params) -> WrapperState:
        dtype = sum_dtype(jax.tree.leaves(params)[0])
        return WrapperState(first.init(params), control.beginning(dtype))

    def controlled(index: int) -> Exchange:
        def broadcast(state: WrapperState) -> DecayMessage:
            now = control.rates(state.own)
            inner = require_whole(
                build(*now).exchanges[index].broadcast(state.inner),
                "So local_update_decay cannot measure the loss. Give the method a schedule, such "
                "as client_learning_rate='exponential_decay(0.1, 0.99)'.",
            )
            return DecayMessage(inner, now, state.params)

        def client(
            message: DecayMessage, state: PyTree, data: ClientExamples, key: Array
        ) -> Reply:
            reply = build(*message.rates).exchanges[index].client(message.inner, state, data, key)
            if index < last:
                return reply
            require_one_model(reply.upload)
            before = full_loss(
                model, message.params, data.everything, jax.random.fold_in(key, 1),
                batch_size=loss_batch_size,
            )
            one = jnp.ones_like(before.weight)
            info = {
                **reply.info,
                "full_loss": before,
                **{
                    f"{side}_learning_rate": (rate, one)
                    for side, rate in message.rates._asdict().items() if rate is not None
                },
            }
            return reply._replace(upload=DecayUpload(reply.upload, before.mean), info=info)

        def server(
            state: WrapperState, mean: PyTree, participation: Participation
        ) -> WrapperState:
            upload = mean.inner if index == last else mean
            exchange = build(*control.rates(state.own)).exchanges[index]
            state = state._replace(inner=exchange.server(state.inner, upload, participation))
            if index < last:
                return state
            return state._replace(own=control.after(state.own, mean.loss))

        inner = first.exchanges[index]._replace(broadcast=broadcast, client=client, server=server)
        return with_loss(inner) if index == last else inner

    # The loss is measured in the last exchange, before which no method moves its parameters.
    return first._replace(
        init=init, exchanges=tuple(map(controlled, range(last + 1))),
        own_model=own_model_inside(first),
    )


def _require_build(build: Any) -> None:
    """Raises a clear error for an algorithm, or for a factory that needs the model first."""
    if not callable(build) or next(iter(inspect.signature(build).parameters), None) == "model":
        raise TypeError(
            "local_update_decay takes a function of the two rates, such as lambda client_rate, "
            "server_rate: fedax.fedavg(model, client_rate, server_rate), but got "
            f"{kind_of(build)}."
        )
