"""MAML: the server learns a model from which a few local steps go far.

Finn, Abbeel, Levine, "Model-Agnostic Meta-Learning", ICML 2017; as a federated method in Charles,
Konečný, "On the Outsized Importance of Learning Rates in Local Update Methods" (2020), section 3.
"""

from __future__ import annotations

from typing import Any, Unpack, cast

import jax
import jax.numpy as jnp
import optax
from jax.core import Tracer

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
from fedax.algorithms.server import Server, ServerState
from fedax.clients.gradients import mean_loss
from fedax.clients.local_steps import LocalResult
from fedax.clients.local_training import LocalMessage, LocalOptions, LocalTraining
from fedax.clients.minibatches import draw_minibatch
from fedax.data.cohort_data import ClientExamples
from fedax.factories import factory
from fedax.optimizers.schedules import ScheduleOrNumber
from fedax.signatures import own_defaults
from fedax.validate import check_count


@factory
@own_defaults(num_local_steps=1)
def maml(
    model: Model,
    client_learning_rate: ScheduleOrNumber = 0.1,
    server_learning_rate: ScheduleOrNumber = 0.1,
    server_optimizer: optax.GradientTransformation | None = None,
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""MAML (Finn et al. 2017; K-MAML in Charles and Konečný 2020, equation 14).

    Clients send the gradient of their loss after K local steps, with respect to the model from
    which these steps started:

    .. math::
        m_i^K(x) = f_i(x_{i,K}(x); z'), \qquad
        x_{t+1} = x_t - \eta \textstyle\sum_i p_i \nabla m_i^K(x_t)

    The gradient is exact: it differentiates through the local steps (second order), so the
    model's loss must be twice differentiable in reverse mode. `fomaml` leaves the second order out.

    The minibatch z' of the outer loss is drawn independently, as in the paper; with
    order="sequential" it is the one that follows the K inner ones (after the last, the first
    again). On quadratics with full batches this equals LocalUpdate with Theta_{2K+1}.

    Args:
      model: the learning problem.
      client_learning_rate: gamma >= 0, a number or a schedule of the round.
      server_learning_rate: eta >= 0, likewise.
      server_optimizer: an optax transformation that receives the mean of the gradients; None is
        SGD.
      **local_options: see `LocalOptions`. num_local_steps is K >= 0, 1 by default. It must be a
        Python integer, because reverse-mode differentiation needs a static length, and
        num_local_epochs is not allowed. Memory grows with K.

    Returns:
      An algorithm with one exchange and stateless clients; `train_loss` is the outer loss.

    Raises:
      ValueError: a hyperparameter is out of its range (unless it is traced), or
        num_local_epochs is given.
      TypeError: num_local_steps is traced or a schedule.

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> algorithm = fedax.maml(character_lstm(16, 1), 0.1, 0.1, num_local_steps=2)
    """
    if local_options.get("num_local_epochs") is not None:
        raise ValueError(
            f"maml counts local steps, not epochs, but num_local_epochs is "
            f"{local_options.get('num_local_epochs')!r}. Give num_local_steps instead."
        )
    num_local_steps = local_options.pop("num_local_steps")
    if isinstance(num_local_steps, Tracer) or callable(num_local_steps):
        raise TypeError(
            "maml differentiates through its local steps in reverse mode, so num_local_steps must "
            f"be a Python integer, but is {num_local_steps!r}."
        )
    check_count("num_local_steps", num_local_steps, at_least=0)
    server = Server.checked(server_optimizer, server_learning_rate)
    # K stays out of the options, and so out of the message, where it could become an array.
    local = LocalTraining.checked(model, client_learning_rate, local_options)

    def client(message: LocalMessage, state: Any, data: ClientExamples, key: Array) -> Reply:
        inner_key, outer_key, loss_key = jax.random.split(key, 3)
        batch = draw_minibatch(
            data, outer_key, batch_size=local.batch_size, order=local.order,
            after=cast(int, num_local_steps),
        )

        def meta_loss(params: Params) -> tuple[Array, Any]:
            start = message._replace(params=params, num_local_steps=num_local_steps)
            adapted = local.train(start, data, inner_key)
            loss = mean_loss(model, adapted.params, batch, loss_key)
            return loss.mean, (loss, adapted)

        (_, (loss, adapted)), gradient = jax.value_and_grad(meta_loss, has_aux=True)(
            message.params
        )
        result = LocalResult(
            adapted.params, loss, jnp.where(data.num_examples > 0, adapted.num_steps, 0), (), ()
        )
        return local.reply(ModelUpdate(gradient), message, data, result, state)

    def fold(state: ServerState, mean: ModelUpdate, participation: Participation) -> ServerState:
        del participation
        return server.step(state, mean.pseudo_gradient)

    exchange = Exchange(local.message, client, fold)
    return FederatedAlgorithm(server.init, stateless, (exchange,))
