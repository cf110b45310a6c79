"""Scaffnew: control variates, and a random number of local steps that all clients share.

Mishchenko, Malinovsky, Stich, Richtárik, "ProxSkip: Yes! Local Gradient Steps Provably Lead to
Communication Acceleration! Finally!", ICML 2022, Algorithm 2.
"""

from __future__ import annotations

from typing import NamedTuple, Unpack

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
from fedax.clients.local_training import LocalMessage, LocalOptions, LocalTraining, pseudo_gradient
from fedax.clients.minibatches import Minibatch
from fedax.data.cohort_data import ClientExamples
from fedax.factories import factory
from fedax.optimizers.schedules import ScheduleOrNumber, geometric, steps_at
from fedax.signatures import own_defaults
from fedax.validate import check_count, check_number


class ScaffnewState(NamedTuple):
    """Server state of Scaffnew.

    Attributes:
      params: x_t.
      round_index: t, int32 scalar.
      step: x_{t+1} - x_t, from the first exchange to the second, like the parameters.
    """

    params: Params
    round_index: Array
    step: Params


class ScaffnewMessage(NamedTuple):
    """x_{t+1} - x_t, and p / gamma."""

    step: Params
    scale: Array


@factory
@own_defaults(weighting="uniform")
def scaffnew(
    model: Model,
    client_learning_rate: ScheduleOrNumber = 0.1,
    communication_probability: float | Array = 0.1,
    steps_seed: int = 0,
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""Scaffnew (Mishchenko et al. 2022, Algorithm 2): ProxSkip for federated learning.

    After each local step a coin that all clients share decides with probability p whether they
    communicate. So the number K of local steps in a round is geometric, with mean 1 / p. Clients
    keep control variates h_i, which start at 0:

    .. math::
        x_{i,k+1} = x_{i,k} - \gamma\, (g_{i,k} - h_i), \qquad
        x_{t+1} = \textstyle\sum_i p_i x_{i,K}, \qquad
        h_i \leftarrow h_i + \tfrac{p}{\gamma} (x_{t+1} - x_{i,K})

    With full gradients and p near the root of the inverse condition number, it needs fewer rounds
    than gradient descent. With p = 1 it is gradient descent: the h_i, whose sum is 0, change
    nothing if all clients take part, and stay 0 here.

    Args:
      model: the learning problem.
      client_learning_rate: gamma >= 0, a number or a schedule of the round. If it is 0, h_i does
        not change.
      communication_probability: p in (0, 1].
      steps_seed: the seed of the coin, see `fedax.schedules.geometric`; runs with different seeds
        of the run share the numbers of local steps.
      **local_options: see `LocalOptions`. num_local_steps and num_local_epochs are upper bounds of
        K here, none by default. Clients have equal weights by default; the paper has all clients
        in every round, each once. If a client drops out between the exchanges, the sum of the h_i
        stays off 0, and so does the limit: leave `dropout` at 0.

    Returns:
      An algorithm with two exchanges, of which the second sends how the model changed and
      receives nothing. Each client keeps h_i, of the size of the parameters.

    Raises:
      ValueError: a hyperparameter is out of its range (unless it is traced).

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> algorithm = fedax.scaffnew(character_lstm(16, 1), 0.1, communication_probability=0.2)
    """
    check_number("communication_probability", communication_probability, above=0, at_most=1)
    check_count("steps_seed", steps_seed, at_least=0)
    coin = geometric(communication_probability, steps_seed)
    local = LocalTraining.checked(model, client_learning_rate, local_options)

    def init(params: Params) -> ScaffnewState:
        return ScaffnewState(params, jnp.zeros((), jnp.int32), optax.tree.zeros_like(params))

    def begin(state: ScaffnewState) -> LocalMessage:
        message, steps = local.message(state), steps_at(coin, state.round_index)
        if message.num_local_steps is not None:
            bound = jnp.ceil(jnp.asarray(message.num_local_steps, steps.dtype))
            steps = jnp.minimum(steps, bound)
        return message._replace(num_local_steps=steps)

    def scale(message: LocalMessage) -> Array:
        gamma = message.client_learning_rate
        p = jnp.asarray(communication_probability, gamma.dtype)
        return jnp.where((gamma > 0) & (p < 1), p / jnp.where(gamma > 0, gamma, 1), 0)

    def client(message: LocalMessage, own: Params, data: ClientExamples, key: Array) -> Reply:
        def correct(grads: Params, params: Params, batch: Minibatch, key: Array) -> Params:
            del params, batch, key
            return optax.tree.sub(grads, own)

        result = local.train(message, data, key, correction=correct)
        # The rest of h_i's change, p / gamma (x_{t+1} - x_t), follows in the second exchange.
        moved = pseudo_gradient(message, result)
        new = _added(own, scale(message), moved)
        return local.reply(ModelUpdate(moved), message, data, result, new)

    def fold(
        state: ScaffnewState, mean: ModelUpdate, participation: Participation
    ) -> ScaffnewState:
        del participation
        step = optax.tree.scale(-1, mean.pseudo_gradient)
        return state._replace(params=optax.tree.add(state.params, step), step=step)

    def finish(message: ScaffnewMessage, own: Params, data: ClientExamples, key: Array) -> Reply:
        del key
        one = (data.num_examples > 0).astype(message.scale.dtype)
        return Reply(jnp.zeros_like(one), one, _added(own, message.scale, message.step), {})

    def keep(
        state: ScaffnewState, mean: Array, participation: Participation
    ) -> ScaffnewState:
        del mean, participation
        return state

    exchanges = (
        Exchange(begin, client, fold),
        Exchange(
            lambda state: ScaffnewMessage(state.step, scale(begin(state))), finish, keep,
            upload=lambda params: jnp.zeros(()),  # noqa: ARG005
        ),
    )
    return FederatedAlgorithm(init, optax.tree.zeros_like, exchanges)


def _added(tree: Params, scale: Array, other: Params) -> Params:
    """Tree + scale other."""
    return jax.tree.map(lambda a, b: a + scale.astype(a.dtype) * b, tree, other)
