"""FedAC: accelerated local steps whose two sequences are both averaged.

Yuan, Ma, "Federated Accelerated Stochastic Gradient Descent", NeurIPS 2020, Algorithm 1 and
equations (3.1) and (3.2).
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Unpack, get_args

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
    stateless,
)
from fedax.clients.local_training import LocalMessage, LocalOptions, LocalTraining
from fedax.clients.minibatches import count_local_steps
from fedax.data.cohort_data import ClientExamples
from fedax.factories import factory
from fedax.optimizers.schedules import ScheduleOrNumber
from fedax.signatures import own_defaults
from fedax.validate import check_choice, check_number

FedACVersion = Literal["I", "II"]


class FedACState(NamedTuple):
    """Server state of FedAC.

    Attributes:
      params: x_t, the paper's w^ag, the sequence that the theory is about.
      round_index: t, int32 scalar.
      fast: w_t, the sequence with the long steps, like the parameters.
    """

    params: Params
    round_index: Array
    fast: Params


class FedACMessage(NamedTuple):
    """What the clients train with."""

    local: LocalMessage
    fast: Params


class FedACUpload(NamedTuple):
    """x_t - x_{i,K} and w_t - w_{i,K}."""

    pseudo_gradient: Params
    fast: Params


@factory
@own_defaults(weighting="uniform")
def fedac(
    model: Model,
    client_learning_rate: ScheduleOrNumber = 0.1,
    convexity: float | Array = 1.0,
    version: FedACVersion = "I",
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""FedAC (Yuan and Ma 2020, Algorithm 1): Nesterov's acceleration within local training.

    A client has two sequences, x with short steps and w with long ones. The gradient is taken
    between them, and the server averages both:

    .. math::
        y_{i,k} &= \tfrac{1}{\beta} w_{i,k} + (1 - \tfrac{1}{\beta}) x_{i,k} \\
        x_{i,k+1} &= y_{i,k} - \gamma\, g_{i,k}, \qquad
        w_{i,k+1} = (1 - \tfrac{1}{\alpha}) w_{i,k} + \tfrac{1}{\alpha} y_{i,k} - \zeta\, g_{i,k} \\
        x_{t+1} &= \textstyle\sum_i p_i x_{i,K}, \qquad
        w_{t+1} = \textstyle\sum_i p_i w_{i,K}

    with g the gradient at y. The long step and the weights follow from the strong convexity mu,

    .. math::
        \zeta = \max\bigl(\sqrt{\gamma / (\mu K_i)}, \gamma\bigr), \quad
        \text{I: } \alpha = \tfrac{1}{\zeta \mu},\; \beta = \alpha + 1, \quad
        \text{II: } \alpha = \tfrac{3}{2 \zeta \mu} - \tfrac12,\;
        \beta = \tfrac{2 \alpha^2 - 1}{\alpha - 1}

    so if mu is at least 1 / (gamma K), both sequences are FedAvg's.

    Args:
      model: the learning problem.
      client_learning_rate: gamma >= 0, a number or a schedule of the round; the paper's eta. The
        theory needs gamma at most 1 / L, for losses with L-Lipschitz gradients.
      convexity: mu > 0, the strong convexity, which is tuned where it is not known. The smaller,
        the longer are the steps of w.
      version: "I" (default), for one worker or noisy gradients, or "II", whose bound is better with
        many local steps. It needs zeta mu < 1.
      **local_options: see `LocalOptions`. Clients have equal weights by default. A proximal term
        pulls towards the y of the first step.

    Returns:
      An algorithm with one exchange and stateless clients.

    Raises:
      ValueError: a hyperparameter is out of its range (unless it is traced).

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> algorithm = fedax.fedac(character_lstm(16, 1), 0.1, convexity=0.1, num_local_steps=10)
    """
    check_number("convexity", convexity, above=0)
    check_choice("version", version, get_args(FedACVersion))
    local = LocalTraining.checked(model, client_learning_rate, local_options)

    def init(params: Params) -> FedACState:
        return FedACState(params, jnp.zeros((), jnp.int32), params)

    def client(message: FedACMessage, state: Any, data: ClientExamples, key: Array) -> Reply:
        at = message.local
        steps = count_local_steps(
            data, local.batch_size, local.num_local_epochs, at.num_local_steps
        )
        path = _Path.of(at.client_learning_rate, convexity, jnp.asarray(steps), version)
        start = (at.params, message.fast)
        between = at._replace(
            params=path.between(*start), client_learning_rate=jnp.ones_like(path.short)
        )
        result = local.train(
            between, data, key, optimizer=path.optimizer(), optimizer_state=start
        )
        x, w = result.optimizer_state
        upload = FedACUpload(optax.tree.sub(at.params, x), optax.tree.sub(message.fast, w))
        return local.reply(upload, at, data, result._replace(params=x), state)

    def fold(state: FedACState, mean: FedACUpload, participation: Participation) -> FedACState:
        del participation
        return state._replace(
            params=optax.tree.sub(state.params, mean.pseudo_gradient),
            fast=optax.tree.sub(state.fast, mean.fast),
        )

    exchange = Exchange(
        lambda state: FedACMessage(local.message(state), state.fast), client, fold,
        upload=lambda params: FedACUpload(params, params),
    )
    return FederatedAlgorithm(init, stateless, (exchange,))


class _Path(NamedTuple):
    """gamma, zeta, 1 / alpha and 1 / beta of a client."""

    short: Array
    long: Array
    mixing: Array
    coupling: Array

    @classmethod
    def of(cls, gamma: Array, convexity: Any, steps: Array, version: str) -> _Path:
        mu = jnp.asarray(convexity, gamma.dtype)
        count = jnp.maximum(steps, 1).astype(gamma.dtype)
        zeta = jnp.maximum(jnp.sqrt(gamma / (mu * count)), gamma)
        scale = zeta * mu
        if version == "I":
            return cls(gamma, zeta, scale, scale / (1 + scale))
        # The inverses of alpha = (3 - s) / (2 s) and beta, times s^2: finite for s = 0 too.
        top, square = (3 - scale) / 2, scale**2
        return cls(gamma, zeta, scale / top, (top * scale - square) / (2 * top**2 - square))

    def between(self, x: Params, w: Params) -> Params:
        """Y = w / beta + (1 - 1 / beta) x."""
        return jax.tree.map(
            lambda x, w: x + self.coupling.astype(x.dtype) * (w - x), x, w
        )

    def optimizer(self) -> optax.GradientTransformation:
        """Moves y; its state is (x, w)."""

        def update(updates: Params, state: Any, params: Any = None) -> tuple[Params, Any]:
            grads, y = updates, params
            short, long, mixing = (
                lambda leaf, n=n: n.astype(leaf.dtype) for n in self[:3]
            )
            x = jax.tree.map(lambda y, g: y - short(y) * g, y, grads)
            w = jax.tree.map(
                lambda w, y, g: w + mixing(w) * (y - w) - long(w) * g, state[1], y, grads
            )
            return optax.tree.sub(self.between(x, w), y), (x, w)

        return optax.GradientTransformation(lambda params: (params, params), update)
