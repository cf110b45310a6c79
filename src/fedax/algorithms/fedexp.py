"""FedExP: FedAvg whose server step is extrapolated.

Jhunjhunwala, Wang, Joshi, "FedExP: Speeding Up Federated Averaging via Extrapolation", ICLR 2023,
Algorithm 1.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import optax

from fedax.algorithm import (
    Array,
    FederatedAlgorithm,
    Model,
    ModelUpdate,
    Params,
    Participation,
    PyTree,
    Reply,
)
from fedax.algorithms.fedopt import fedavg
from fedax.algorithms.server import ServerState
from fedax.clients.local_training import LocalMessage, LocalOptions
from fedax.clients.precision import widen
from fedax.data.cohort_data import ClientExamples
from fedax.factories import factory
from fedax.optimizers.schedules import ScheduleOrNumber
from fedax.signatures import own_defaults
from fedax.validate import check_number


class FedExPUpload(NamedTuple):
    """x_t - x_{i,K} and its squared norm."""

    pseudo_gradient: Params
    squared_norm: Array


@factory
@own_defaults(weighting="uniform")
def fedexp(
    model: Model,
    client_learning_rate: ScheduleOrNumber = 0.1,
    epsilon: float | Array = 1e-3,
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""FedExP (Jhunjhunwala et al. 2023, Algorithm 1): FedAvg with a computed server learning rate.

    The less the clients' changes agree, the further the server moves along their mean:

    .. math::
        d_i = x_t - x_{i,K}, \qquad
        \eta_t = \max\Bigl(1, \frac{\sum_i p_i |d_i|^2}{2 (|\sum_i p_i d_i|^2 + \epsilon)}\Bigr),
        \qquad x_{t+1} = x_t - \eta_t \textstyle\sum_i p_i d_i

    The step is never smaller than FedAvg's. The paper evaluates the mean of the last two models;
    here it is the last.

    Args:
      model: the learning problem.
      client_learning_rate: gamma >= 0, a number or a schedule of the round.
      epsilon: > 0, in the squared units of the model's change; if it is large, this is FedAvg.
      **local_options: see `LocalOptions`. Clients have equal weights by default, as in the paper.

    Returns:
      An algorithm with one exchange and stateless clients, which reports `server_step`, eta_t.

    Raises:
      ValueError: a hyperparameter is out of its range (unless it is traced).

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> algorithm = fedax.fedexp(character_lstm(16, 1), 0.1, num_local_steps=10)
    """
    check_number("epsilon", epsilon, above=0)
    base = fedavg(model, client_learning_rate, **local_options)
    (exchange,) = base.exchanges

    def client(message: LocalMessage, state: Any, data: ClientExamples, key: Array) -> Reply:
        reply = exchange.client(message, state, data, key)
        change = reply.upload.pseudo_gradient
        return reply._replace(upload=FedExPUpload(change, squared_norm(change)))

    def rate(mean: FedExPUpload) -> Array:
        squared = squared_norm(mean.pseudo_gradient)
        bound = 2 * (squared + jnp.asarray(epsilon, squared.dtype))
        return jnp.maximum(1, mean.squared_norm / bound)

    def fold(state: ServerState, mean: FedExPUpload, participation: Participation) -> ServerState:
        eta = rate(mean)
        step = jax.tree.map(lambda d: eta.astype(d.dtype) * d, mean.pseudo_gradient)
        return exchange.server(state, ModelUpdate(step), participation)

    changed = exchange._replace(
        client=client, server=fold, report=lambda mean: {"server_step": rate(mean)},
        upload=lambda params: FedExPUpload(params, jnp.zeros(())),
    )
    return base._replace(exchanges=(changed,))


def with_own_norm(upload: PyTree) -> PyTree:
    """The upload of FedExP, if it is in there, with the norm of what it still has."""
    def is_one(part: PyTree) -> bool:
        return isinstance(part, FedExPUpload)

    return jax.tree.map(
        lambda part: part._replace(squared_norm=squared_norm(part.pseudo_gradient))
        if is_one(part) else part, upload, is_leaf=is_one,
    )


def squared_norm(tree: Params) -> Array:
    """The sum of the squares of all numbers, in float32 at least."""
    return optax.tree.norm(jax.tree.map(widen, tree), squared=True)
