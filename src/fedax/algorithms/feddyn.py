"""FedDyn: local losses whose regulariser changes so that their minima agree.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama, "Federated Learning Based on Dynamic
Regularization", ICLR 2021, Algorithm 1.
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
from fedax.clients.precision import sum_dtype
from fedax.data.cohort_data import ClientExamples
from fedax.factories import factory
from fedax.optimizers.schedules import ScheduleOrNumber
from fedax.signatures import own_defaults


class FedDynState(NamedTuple):
    """Server state of FedDyn.

    Attributes:
      params: x_t.
      round_index: t, int32 scalar.
      h: the mean of all clients' h_i, like the parameters.
    """

    params: Params
    round_index: Array
    h: Params


@factory
@own_defaults(weighting="uniform", proximal_weight=0.1)
def feddyn(
    model: Model,
    client_learning_rate: ScheduleOrNumber = 0.1,
    **local_options: Unpack[LocalOptions],
) -> FederatedAlgorithm:
    r"""FedDyn (Acar et al. 2021, Algorithm 1).

    Each client keeps h_i, an estimate of the gradient of its loss, and the server their mean h.
    A client takes local steps on f_i(y) - <h_i, y> + alpha/2 |y - x_t|^2:

    .. math::
        x_{i,k+1} &= x_{i,k} - \gamma\, (g_{i,k} - h_i + \alpha (x_{i,k} - x_t)), \qquad
        h_i \leftarrow h_i - \alpha (x_{i,K} - x_t) \\
        h &\leftarrow h - \alpha \tfrac{|S|}{N} \textstyle\sum_i p_i (x_{i,K} - x_t), \qquad
        x_{t+1} = \textstyle\sum_i p_i x_{i,K} - \tfrac{1}{\alpha} h

    With exact local minimisation it finds the minimum of the mean loss whatever the clients' data.
    With alpha = 0 there is no regulariser, and this is FedAvg.

    Args:
      model: the learning problem.
      client_learning_rate: gamma >= 0, a number or a schedule of the round.
      **local_options: see `LocalOptions`. proximal_weight is alpha, 0.1 by default;
        the paper tries 0.1, 0.01 and 0.001. Clients have equal weights by default, as in the
        paper: then h is the mean of all h_i if no client is drawn twice in a round.

    Returns:
      An algorithm with one exchange. Each client keeps h_i, of the size of the parameters.

    Raises:
      ValueError: a hyperparameter is out of its range (unless it is traced).

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> algorithm = fedax.feddyn(character_lstm(16, 1), 0.1, proximal_weight=0.01)
    """
    local = LocalTraining.checked(model, client_learning_rate, local_options)
    require_proximal_weight(local)

    def init(params: Params) -> FedDynState:
        return FedDynState(params, jnp.zeros((), jnp.int32), optax.tree.zeros_like(params))

    def client(message: LocalMessage, own: Params, data: ClientExamples, key: Array) -> Reply:
        def correct(grads: Params, params: Params, batch: Minibatch, key: Array) -> Params:
            del params, batch, key
            return optax.tree.sub(grads, own)

        result = local.train(message, data, key, correction=correct)
        moved = pseudo_gradient(message, result)
        new = jax.tree.map(
            lambda h, d: h + jnp.asarray(message.proximal_weight, d.dtype) * d, own, moved
        )
        return local.reply(ModelUpdate(moved), message, data, result, new)

    def fold(state: FedDynState, mean: ModelUpdate, participation: Participation) -> FedDynState:
        alpha = jnp.asarray(local.message(state).proximal_weight)

        def gathered(h: Array, d: Array) -> Array:
            dtype = sum_dtype(h)  # int32 / int32 would be float32
            share = (
                participation.num_reports.astype(dtype) / participation.num_clients.astype(dtype)
            )
            return h + (alpha.astype(dtype) * share).astype(h.dtype) * d

        def moved(x: Array, d: Array, h: Array) -> Array:
            weight = alpha.astype(x.dtype)
            return x - d - jnp.where(weight > 0, h / jnp.where(weight > 0, weight, 1), 0)

        h = jax.tree.map(gathered, state.h, mean.pseudo_gradient)
        params = jax.tree.map(moved, state.params, mean.pseudo_gradient, h)
        return state._replace(params=params, h=h)

    exchange = Exchange(local.message, client, fold)
    return FederatedAlgorithm(init, optax.tree.zeros_like, (exchange,))


def require_proximal_weight(local: LocalTraining) -> None:
    """Raises a clear error if the option that a method is built on was set to None."""
    if local.proximal_weight is None:
        raise ValueError(
            "proximal_weight must be a finite number at least 0 or a schedule in this method, but "
            "is None."
        )
