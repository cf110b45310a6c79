"""PFedMe: clients' own models by Moreau envelopes of their losses.

T. Dinh, Tran, Nguyen, "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020,
Algorithm 1.
"""

from __future__ import annotations

from typing import Any, Unpack

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
from fedax.algorithms.server import Server, ServerState
from fedax.clients.gradients import Loss
from fedax.clients.local_steps import descended
from fedax.clients.local_training import LocalMessage, LocalOptions, LocalTraining, pseudo_gradient
from fedax.clients.minibatches import Minibatch
from fedax.clients.sparse_steps import descend
from fedax.data.cohort_data import ClientExamples
from fedax.factories import factory
from fedax.optimizers.schedules import ScheduleOrNumber
from fedax.signatures import own_defaults
from fedax.validate import check_count, check_number


@factory
@own_defaults(weighting="uniform")
def pfedme(
    model: Model,
    client_learning_rate: ScheduleOrNumber = 0.01,
    server_learning_rate: ScheduleOrNumber = 1.0,
    attraction: float | Array = 15.0,
    personal_learning_rate: float | Array = 0.1,
    num_personal_steps: int | Array = 5,
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""PFedMe (T. Dinh et al. 2020, Algorithm 1).

    Clients descend the Moreau envelopes of their losses. Its gradient at w is
    :math:`\lambda (w - \theta(w))`, where theta(w) is the client's own model, near w:

    .. math::
        f_i(\theta(w)) + \tfrac{\lambda}{2} \|\theta(w) - w\|^2
            &\approx \min_\theta f_i(\theta) + \tfrac{\lambda}{2} \|\theta - w\|^2 \\
        w_{i,r+1} &= w_{i,r} - \eta \lambda\, (w_{i,r} - \theta(w_{i,r})),
            \qquad w_{i,0} = x_t \\
        x_{t+1} &= (1 - \beta)\, x_t + \beta \textstyle\sum_i p_i w_{i,R}

    Each local step finds theta on one minibatch, by K steps of gradient descent that begin at w:

    .. math::
        \theta \leftarrow \theta
            - \rho\, \bigl(\nabla f_i(\theta) + \lambda (\theta - w_{i,r})\bigr)

    With K = 1 this is FedAvg with client rate eta lambda rho; with rho = 1 / lambda and a large
    lambda it tends to FedAvg with rate eta. With lambda = 0 the server's model stays as it is. For
    rho and the loss's largest curvature L, rho (L + lambda) < 2 is needed.

    Args:
      model: the learning problem.
      client_learning_rate: eta >= 0, a number or a schedule of the round.
      server_learning_rate: beta >= 0, likewise.
      attraction: lambda >= 0. The default and those of the next two are the released code's.
      personal_learning_rate: rho >= 0.
      num_personal_steps: K >= 1.
      **local_options: see `LocalOptions`; num_local_steps is R. proximal_weight attracts w to the
        server's model. Clients have equal weights by default, as in the paper.

    Returns:
      An algorithm with one exchange. Each client keeps its last theta, of the size of the
      parameters; before it takes part, this is the initial model. Only the round's clients train;
      in the paper all do, and the round's clients upload. `train_loss` is the loss at w.

    Raises:
      ValueError: a hyperparameter is out of its range (unless it is traced).

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> algorithm = fedax.pfedme(character_lstm(16, 1), 0.05, num_local_steps=20)
    """
    local = LocalTraining.checked(model, client_learning_rate, local_options)
    server = Server.checked(None, server_learning_rate)
    check_number("attraction", attraction, at_least=0)
    check_number("personal_learning_rate", personal_learning_rate, at_least=0)
    check_count("num_personal_steps", num_personal_steps)

    def near(w: Params, batch: Minibatch, key: Array) -> tuple[Loss, Params]:
        """The loss at w, and theta(w)."""

        def gradient(theta: Params) -> Params:
            _, grads = local.gradient(theta, batch, key)
            return jax.tree.map(
                lambda g, y, x: g + jnp.asarray(attraction, g.dtype) * (y - x), grads, theta, w
            )

        loss, grads = local.gradient(w, batch, key)
        first = descend(w, grads, personal_learning_rate)
        return loss, descended(gradient, first, personal_learning_rate, num_personal_steps - 1)

    # In the place of gradients the optimizer receives theta, which is also its state.
    moreau = local._replace(gradient=near, sparse_gradient=None)

    def client(message: LocalMessage, own: Params, data: ClientExamples, key: Array) -> Reply:
        mu = message.proximal_weight

        def update(
            updates: Params, state: Params, params: Params | None = None
        ) -> tuple[Params, Params]:
            """W's step to theta, and theta."""
            del state
            step = jax.tree.map(
                lambda theta, w: jnp.asarray(attraction, w.dtype) * (theta - w), updates, params
            )
            if mu is not None:
                step = jax.tree.map(
                    lambda u, w, x: u - jnp.asarray(mu, u.dtype) * (w - x),
                    step, params, message.params,
                )
            return step, updates

        result = moreau.train(
            message._replace(proximal_weight=None), data, key,
            optimizer=optax.GradientTransformation(lambda params: params, update),
            optimizer_state=own,
        )
        upload = ModelUpdate(pseudo_gradient(message, result))
        return local.reply(upload, message, data, result, result.optimizer_state)

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
