"""SCAFFOLD: control variates that the clients keep between rounds.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning", ICML 2020; as in Reddi et al., "Adaptive Federated Optimization", 2021,
Algorithm 4, and in Karimireddy et al., "Mime", 2020.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Unpack, get_args

import jax
import jax.numpy as jnp
import optax

from fedax.algorithm import (
    Array,
    Exchange,
    FederatedAlgorithm,
    Model,
    Params,
    Participation,
    Reply,
)
from fedax.algorithms.server import Server
from fedax.clients.local_training import LocalMessage, LocalOptions, LocalTraining, pseudo_gradient
from fedax.clients.minibatches import Minibatch
from fedax.clients.precision import sum_dtype
from fedax.data.cohort_data import ClientExamples
from fedax.factories import factory
from fedax.optimizers.schedules import ScheduleOrNumber
from fedax.validate import check_choice

ControlOption = Literal["I", "II"]


class ScaffoldState(NamedTuple):
    """Server state of SCAFFOLD.

    Attributes:
      params: x_t.
      round_index: t, int32 scalar.
      optimizer_state: the server optimizer's state.
      control: c, the mean of all clients' control variates, like the parameters.
    """

    params: Params
    round_index: Array
    optimizer_state: optax.OptState
    control: Params


class ScaffoldMessage(NamedTuple):
    """What the clients train with."""

    local: LocalMessage
    control: Params


class ScaffoldUpload(NamedTuple):
    """x_t - x_{i,K} and c_i^+ - c_i."""

    pseudo_gradient: Params
    control_delta: Params


@factory
def scaffold(
    model: Model,
    client_learning_rate: ScheduleOrNumber = 0.1,
    server_learning_rate: ScheduleOrNumber = 1.0,
    server_optimizer: optax.GradientTransformation | None = None,
    control_option: ControlOption = "II",
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""SCAFFOLD (Karimireddy et al. 2020, ICML; Reddi et al. 2021, Algorithm 4).

    Each client keeps a control variate c_i, an estimate of its gradient, and the server their mean
    c. Local steps are corrected by the difference:

    .. math::
        x_{i,k+1} &= x_{i,k} - \gamma\, (g_{i,k} - c_i + c) \\
        c_i^+ &= c_i - c + (x_t - x_{i,K}) / (K_i \gamma) \quad\text{(option II)}
                 \qquad\text{or}\qquad \nabla f_i(x_t) \quad\text{(option I)} \\
        x_{t+1} &= x_t + \eta \textstyle\sum_i p_i (x_{i,K} - x_t), \qquad
        c \leftarrow c + \tfrac{|S|}{N} \textstyle\sum_i p_i (c_i^+ - c_i)

    All control variates start at 0, so the first round is FedAvg. `proximal_weight` adds its term
    to g, and a server optimizer replaces the step of x_{t+1}.

    Args:
      model: the learning problem.
      client_learning_rate: gamma >= 0, a number or a schedule of the round. With option II, a
        client that takes no step keeps its c_i; if gamma = 0, all clients do.
      server_learning_rate: eta >= 0, likewise.
      server_optimizer: an optax transformation that receives x_t - mean x_{i,K}; None is SGD.
      control_option: "II" (default) computes c_i^+ from the local steps; "I" from the gradient of
        all the client's examples at x_t, which takes one more pass over them.
      **local_options: see `LocalOptions`. With `weighting="uniform"` c stays the mean of all c_i.
        With other weights and partial participation it drifts away from that mean. A run with
        clients of 60 to 900 examples diverged after 500 rounds.

    Returns:
      An algorithm with one exchange. Each client keeps c_i, of the size of the parameters. It is
      stored for the clients that took part, on disk if it is large.

    Raises:
      ValueError: a hyperparameter is out of its range (unless it is traced).

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> algorithm = fedax.scaffold(character_lstm(16, 1), 0.1, num_local_steps=10)
    """
    check_choice("control_option", control_option, get_args(ControlOption))
    local = LocalTraining.checked(model, client_learning_rate, local_options)
    server = Server.checked(server_optimizer, server_learning_rate)

    def init(params: Params) -> ScaffoldState:
        return ScaffoldState(*server.init(params), _zeros(params))

    def client(message: ScaffoldMessage, own: Params, data: ClientExamples, key: Array) -> Reply:
        def correct(grads: Params, params: Params, batch: Minibatch, key: Array) -> Params:
            del params, batch, key
            return jax.tree.map(lambda g, ci, c: g - ci + c, grads, own, message.control)

        result = local.train(message.local, data, key, correction=correct)
        moved = pseudo_gradient(message.local, result)
        if control_option == "I":
            _, new = local.full_gradient(message.local.params, data, jax.random.fold_in(key, 0))
        else:
            rate = message.local.client_learning_rate.astype(float)
            path = rate * result.num_steps.astype(float)
            new = jax.tree.map(
                lambda ci, c, d: jnp.where(
                    path > 0, ci - c + d / jnp.where(path > 0, path, 1).astype(d.dtype), ci
                ),
                own, message.control, moved,
            )
        # Of a client drawn twice the first state is kept, so only its change may enter c.
        kept = data.repeat == 0
        change = jax.tree.map(lambda new, ci: jnp.where(kept, new - ci, 0), new, own)
        upload = ScaffoldUpload(moved, change)
        return local.reply(upload, message.local, data, result, new)

    def fold(
        state: ScaffoldState, mean: ScaffoldUpload, participation: Participation
    ) -> ScaffoldState:
        def move(c: Array, d: Array) -> Array:
            dtype = sum_dtype(c)  # int32 / int32 would be float32
            share = (
                participation.num_reports.astype(dtype) / participation.num_clients.astype(dtype)
            )
            return c + share.astype(c.dtype) * d

        control = jax.tree.map(move, state.control, mean.control_delta)
        return server.step(state._replace(control=control), mean.pseudo_gradient)

    exchange = Exchange(
        lambda state: ScaffoldMessage(local.message(state), state.control), client, fold,
        upload=lambda params: ScaffoldUpload(params, params),
    )
    return FederatedAlgorithm(init, _zeros, (exchange,))


def _zeros(params: Params) -> Params:
    return jax.tree.map(jnp.zeros_like, params)
