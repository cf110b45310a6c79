"""LocalUpdate: clients send a weighted sum of the gradients along their local steps.

Charles, Konečný, "On the Outsized Importance of Learning Rates in Local Update Methods" (2020),
Algorithms 1 and 2.

With Theta = (theta_1, ..., theta_K):

    Theta_1 = (1)                distributed minibatch SGD
    Theta_{1:K} = (1, ..., 1)    FedAvg, Reptile, Local SGD, Lookahead, with decoupled rates
    Theta_K = (0, ..., 0, 1)     FOMAML
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, Unpack

import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer

from fedax.algorithm import (
    Array,
    Exchange,
    FederatedAlgorithm,
    Model,
    ModelUpdate,
    Participation,
    Reply,
    stateless,
)
from fedax.algorithms.server import Server, ServerState
from fedax.clients.local_training import LocalMessage, LocalOptions, LocalTraining
from fedax.data.cohort_data import ClientExamples
from fedax.factories import factory
from fedax.optimizers.schedules import ScheduleOrNumber, as_schedule, steps_at
from fedax.signatures import own_defaults
from fedax.validate import check_choice, check_count, check_number

GradientWeights: TypeAlias = Literal["all", "last"] | Array | np.ndarray | tuple[float, ...]


@factory
def local_update(
    model: Model,
    client_learning_rate: ScheduleOrNumber = 0.1,
    server_learning_rate: ScheduleOrNumber = 0.1,
    gradient_weights: GradientWeights = "all",
    server_optimizer: optax.GradientTransformation | None = None,
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""LocalUpdate(Theta, gamma, eta) (Charles and Konečný 2020, Algorithms 1 and 2).

    .. math::
        x_{i,k+1} &= x_{i,k} - \gamma\, g_{i,k}, \quad k = 1, \dots, K - 1, \quad x_{i,1} = x_t \\
        q_i &= \textstyle\sum_{k=1}^{K} \theta_k\, g_{i,k}, \qquad
        x_{t+1} = x_t - \eta \textstyle\sum_i p_i q_i

    Unlike a change of the model, the sum of gradients is not proportional to gamma. So gamma = 0 is
    allowed (it gives large-batch SGD), and `fedavg(model, gamma, alpha)` equals this with
    eta = alpha gamma and all weights 1.

    Args:
      model: the learning problem.
      client_learning_rate: gamma >= 0, a number or a schedule of the round.
      server_learning_rate: eta >= 0, likewise.
      gradient_weights: Theta. "all" is Theta_{1:K} (all weights 1), "last" is Theta_K (1 for the
        last gradient, 0 for the others), with K from the local options. Numbers theta_1, ...,
        theta_K also set K; with fewer local steps, the first of them are used.
      server_optimizer: an optax transformation that receives the mean of q_i; None is SGD.
      **local_options: see `LocalOptions`. The paper uses weighting="uniform" and, in its theory,
        order="iid".

    Raises:
      ValueError: a hyperparameter is out of its range (unless it is traced), or Theta is empty or
        not finite.

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> model = character_lstm(16, 1)
      >>> algorithm = fedax.local_update(model, 0.1, 0.5, gradient_weights=(1.0, 0.5))
    """
    server = Server.checked(server_optimizer, server_learning_rate)
    theta = None
    if isinstance(gradient_weights, str):
        check_choice("gradient_weights", gradient_weights, ("all", "last"))
    else:
        theta = _checked_theta(gradient_weights)
        local_options = _at_most(local_options, theta.shape[0])
    local = LocalTraining.checked(model, client_learning_rate, local_options)

    def gradient_weight(k: Array, num_steps: Array) -> Array:
        if theta is not None:
            return theta[k]
        if gradient_weights == "last":
            return (k == num_steps - 1).astype(jnp.result_type(float))
        return jnp.ones((), jnp.result_type(float))

    def client(message: LocalMessage, state: Any, data: ClientExamples, key: Array) -> Reply:
        result = local.train(message, data, key, gradient_weight=gradient_weight)
        return local.reply(ModelUpdate(result.gradient_sum), message, data, result, state)

    def fold(state: ServerState, mean: ModelUpdate, participation: Participation) -> ServerState:
        del participation
        return server.step(state, mean.pseudo_gradient)

    exchange = Exchange(local.message, client, fold)
    return FederatedAlgorithm(server.init, stateless, (exchange,))


@factory
def minibatch_sgd(
    model: Model,
    server_learning_rate: ScheduleOrNumber = 0.1,
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""Distributed minibatch SGD: each client sends one gradient, LocalUpdate with Theta_1.

    .. math:: x_{t+1} = x_t - \eta \textstyle\sum_i p_i\, g_i(x_t)

    Args:
      model: the learning problem.
      server_learning_rate: eta >= 0, a number or a schedule of the round.
      **local_options: see `LocalOptions`; batch_size is that of each client.

    Raises:
      ValueError: a hyperparameter is out of its range (unless it is traced).

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> algorithm = fedax.minibatch_sgd(character_lstm(16, 1), 0.3, batch_size=8)
    """
    return local_update(model, 0.0, server_learning_rate, (1.0,), **local_options)


@factory
def fomaml(
    model: Model,
    client_learning_rate: ScheduleOrNumber = 0.1,
    server_learning_rate: ScheduleOrNumber = 0.1,
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""First-order MAML (Finn et al. 2017), which is LocalUpdate with Theta_K.

    Clients send only the gradient at their last model:

    .. math::
        x_{i,k+1} &= x_{i,k} - \gamma\, g_{i,k}, \quad k = 1, \dots, K - 1, \quad x_{i,1} = x_t \\
        x_{t+1} &= x_t - \eta \textstyle\sum_i p_i\, g_{i,K}

    K includes that last gradient: the client takes K - 1 steps before it.

    Args:
      model: the learning problem.
      client_learning_rate: gamma >= 0, a number or a schedule of the round.
      server_learning_rate: eta >= 0, likewise.
      **local_options: see `LocalOptions`; num_local_steps is K.

    Raises:
      ValueError: a hyperparameter is out of its range (unless it is traced).

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> algorithm = fedax.fomaml(character_lstm(16, 1), 0.1, 0.5, num_local_steps=3)
    """
    return local_update(
        model, client_learning_rate, server_learning_rate, "last", **local_options
    )


@factory
@own_defaults(weighting="uniform")
def local_sgd(
    model: Model,
    client_learning_rate: ScheduleOrNumber = 0.1,
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""Local SGD (Stich 2019): LocalUpdate with Theta_{1:K} and eta = gamma.

    .. math::
        x_{i,k+1} &= x_{i,k} - \gamma\, g_{i,k}, \quad k = 0, \dots, K - 1, \quad x_{i,0} = x_t \\
        x_{t+1} &= x_t - \gamma \textstyle\sum_i p_i \sum_{k=0}^{K-1} g_{i,k}
                 = \textstyle\sum_i p_i\, x_{i,K}

    The models are averaged, by default with equal weights (`weighting`).

    Args:
      model: the learning problem.
      client_learning_rate: gamma = eta >= 0, a number or a schedule of the round.
      **local_options: see `LocalOptions`.

    Raises:
      ValueError: a hyperparameter is out of its range (unless it is traced).

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> algorithm = fedax.local_sgd(character_lstm(16, 1), 0.1, num_local_steps=8)
    """
    check_number("client_learning_rate", client_learning_rate, at_least=0, schedule=True)
    return local_update(
        model, client_learning_rate, client_learning_rate, "all", **local_options
    )


@factory
def lookahead(
    model: Model,
    client_learning_rate: ScheduleOrNumber = 0.1,
    slow_weights_step: float | Array = 0.5,
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""Lookahead with SGD inside (Zhang et al. 2019).

    The slow weights x_t move part of the way to the fast weights x_K:

    .. math:: x_{t+1} = x_t + \alpha\, (x_K - x_t)

    This is LocalUpdate with Theta_{1:K} and eta = alpha gamma. The original method has one client;
    with more, their fast weights are averaged.

    Args:
      model: the learning problem.
      client_learning_rate: gamma >= 0, of the fast weights, a number or a schedule of the round.
      slow_weights_step: alpha >= 0.
      **local_options: see `LocalOptions`; num_local_steps is K, the synchronisation period.

    Raises:
      ValueError: a hyperparameter is out of its range (unless it is traced).

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> algorithm = fedax.lookahead(character_lstm(16, 1), 0.1, 0.5, num_local_steps=5)
    """
    check_number("slow_weights_step", slow_weights_step, at_least=0)
    check_number("client_learning_rate", client_learning_rate, at_least=0, schedule=True)
    rate = as_schedule(client_learning_rate)
    return local_update(
        model, client_learning_rate, lambda t: slow_weights_step * rate(t), "all", **local_options
    )


def _checked_theta(gradient_weights: Any) -> Array:
    """Theta as an array [K]."""
    theta = jnp.asarray(gradient_weights)
    if not jnp.issubdtype(theta.dtype, jnp.floating):
        theta = theta.astype(jnp.result_type(float))
    finite = isinstance(theta, Tracer) or bool(jnp.isfinite(theta).all())
    if theta.ndim != 1 or not theta.shape[0] or not finite:
        raise ValueError(
            f"gradient_weights must be 'all', 'last' or finite numbers theta_1, ..., theta_K with "
            f"K >= 1, but is {gradient_weights!r}."
        )
    return theta


def _at_most(options: LocalOptions, most: int) -> LocalOptions:
    """The options with at most that many local steps."""
    steps = options.get("num_local_steps")
    if steps is None:
        return {**options, "num_local_steps": most}
    check_count("num_local_steps", steps, at_least=0, schedule=True)
    if callable(steps):
        return {**options, "num_local_steps": lambda t: jnp.minimum(steps_at(steps, t), most)}
    if isinstance(steps, int):
        return {**options, "num_local_steps": min(steps, most)}
    return {**options, "num_local_steps": jnp.minimum(steps, most)}
