"""APFL: each client's model is a mixture of its own and the server's.

Deng, Kamani, Mahdavi, "Adaptive Personalized Federated Learning", 2020, Algorithm 1 and equation
(11).
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
)
from fedax.algorithms.server import Server, ServerState
from fedax.clients.gradients import Loss
from fedax.clients.local_training import LocalMessage, LocalOptions, LocalTraining
from fedax.clients.minibatches import Minibatch
from fedax.data.cohort_data import ClientExamples
from fedax.factories import factory
from fedax.optimizers.schedules import ScheduleOrNumber
from fedax.validate import check_number


class APFLClient(NamedTuple):
    """A client's state.

    Attributes:
      params: v_i.
      mixture: alpha_i, scalar.
    """

    params: Params
    mixture: Array


class Pair(NamedTuple):
    """The two models of a client that trains."""

    shared: Params
    own: Params


@factory
def apfl(
    model: Model,
    client_learning_rate: ScheduleOrNumber = 0.1,
    server_learning_rate: ScheduleOrNumber = 1.0,
    mixture: float | Array = 0.5,
    mixture_learning_rate: float | Array | None = None,
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""APFL (Deng et al. 2020, Algorithm 1).

    The server's model x_t is FedAvg's. Each client also keeps v_i, and its own model is the mixture
    with weight alpha_i. In each local step both models move along the gradients of one minibatch:

    .. math::
        x_{i,k+1} &= x_{i,k} - \gamma\, \nabla f_i(x_{i,k}), \qquad
        \bar v_i = \alpha_i v_i + (1 - \alpha_i)\, x_{i,k} \\
        v_i &\leftarrow v_i - \gamma\, \alpha_i \nabla f_i(\bar v_i)

    With a learning rate for the mixture, alpha_i changes before the local steps (equation 11):

    .. math::
        \alpha_i \leftarrow \operatorname{clip}\bigl(
            \alpha_i - \gamma_\alpha \langle v_i - x_t, \nabla f_i(\bar v_i) \rangle, 0, 1 \bigr)

    With alpha = 0 the clients' own models are the server's; with alpha = 1 each trains alone.

    Args:
      model: the learning problem.
      client_learning_rate: gamma >= 0 of both models, a number or a schedule of the round.
      server_learning_rate: eta >= 0, likewise; 1 in the paper.
      mixture: alpha in [0, 1], each client's at the beginning.
      mixture_learning_rate: gamma_alpha >= 0; None, the default: alpha_i stays as it is. The
        gradient is that of all of the client's examples.
      **local_options: see `LocalOptions`. proximal_weight is for the server's model only. The
        server weighs clients by their numbers of examples, as in `fedavg`; the paper's mean is
        weighting="uniform".

    Returns:
      An algorithm with one exchange. Each client keeps v_i, of the size of the parameters, and
      alpha_i. Before a client takes part, v_i is the initial model.

    Raises:
      ValueError: a hyperparameter is out of its range (unless it is traced).

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> algorithm = fedax.apfl(character_lstm(16, 1), 0.1, mixture=0.25)
    """
    local = LocalTraining.checked(model, client_learning_rate, local_options)
    server = Server.checked(None, server_learning_rate)
    check_number("mixture", mixture, at_least=0, at_most=1)
    if mixture_learning_rate is not None:
        check_number("mixture_learning_rate", mixture_learning_rate, at_least=0)

    def init_client(params: Params) -> APFLClient:
        dtype = jax.tree.leaves(params)[0].dtype
        return APFLClient(params, jnp.asarray(mixture, dtype))

    def adapted(own: APFLClient, shared: Params, data: ClientExamples, key: Array) -> Array:
        """The client's alpha in this round."""
        if mixture_learning_rate is None:
            return own.mixture
        _, grads = local.full_gradient(mixed(own, shared), data, key)
        products = jax.tree.map(
            lambda v, x, g: ((v - x) * g).sum().astype(own.mixture.dtype),
            own.params, shared, grads,
        )
        rate = jnp.asarray(mixture_learning_rate, own.mixture.dtype)
        return jnp.clip(own.mixture - rate * sum(jax.tree.leaves(products)), 0, 1)

    def client(message: LocalMessage, own: APFLClient, data: ClientExamples, key: Array) -> Reply:
        start = message.params
        alpha = adapted(own, start, data, jax.random.fold_in(key, 0))

        def gradient(pair: Pair, batch: Minibatch, key: Array) -> tuple[Loss, Pair]:
            loss, grads = local.gradient(pair.shared, batch, key)
            if message.proximal_weight is not None:
                grads = jax.tree.map(
                    lambda g, y, x: g + jnp.asarray(message.proximal_weight, g.dtype) * (y - x),
                    grads, pair.shared, start,
                )
            _, of_mixture = local.gradient(
                mixed(APFLClient(pair.own, alpha), pair.shared), batch, key
            )
            return loss, Pair(
                grads, jax.tree.map(lambda g: alpha.astype(g.dtype) * g, of_mixture)
            )

        both = local._replace(gradient=gradient, sparse_gradient=None)
        result = both.train(
            message._replace(params=Pair(start, own.params), proximal_weight=None), data, key
        )
        pair: Pair = result.params
        upload = ModelUpdate(jax.tree.map(jnp.subtract, start, pair.shared))
        return local.reply(
            upload, message, data, result._replace(params=pair.shared), APFLClient(pair.own, alpha)
        )

    def fold(state: ServerState, mean: ModelUpdate, participation: Participation) -> ServerState:
        del participation
        return server.step(state, mean.pseudo_gradient)

    def own_model(state: Any, own: APFLClient, data: ClientExamples, key: Array) -> Params:
        del data, key
        return mixed(own, state.params)

    return FederatedAlgorithm(
        server.init, init_client, (Exchange(local.message, client, fold),), own_model=own_model
    )


def mixed(own: APFLClient, shared: Params) -> Params:
    """Alpha v + (1 - alpha) x."""
    return jax.tree.map(
        lambda v, x: own.mixture.astype(v.dtype) * v + (1 - own.mixture.astype(v.dtype)) * x,
        own.params, shared,
    )
