"""Two methods of one's own: FedExP, built on FedAvg, and FedDyn, built from the parts.

Try `fedax run examples/tasks.py:sensors examples/methods.py:feddyn --set proximal_weight=0.3`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import optax

import fedax


class FedExPUpload(NamedTuple):
    """A client's Delta_i and |Delta_i|^2."""

    pseudo_gradient: Any
    squared_norm: jax.Array


@fedax.factory
def fedexp(
    model: fedax.Model,
    client_learning_rate: fedax.schedules.ScheduleOrNumber = 0.1,
    epsilon: float = 1e-3,
    **local_options: Unpack[fedax.LocalOptions],
) -> fedax.FederatedAlgorithm:
    """FedExP (Jhunjhunwala, Wang, Joshi, ICLR 2023): FedAvg with a server step from its updates.

    Args:
      model: the learning problem.
      client_learning_rate: eta_l, a number or a schedule of the round.
      epsilon: > 0, added to |mean Delta|^2.
      **local_options: see `fedax.LocalOptions`.
    """
    options: fedax.LocalOptions = {"weighting": "uniform", **local_options}
    fedavg = fedax.fedavg(model, client_learning_rate, **options)
    (exchange,) = fedavg.exchanges

    def client(*arguments):
        reply = exchange.client(*arguments)
        delta = reply.upload.pseudo_gradient
        return reply._replace(upload=FedExPUpload(delta, optax.tree.norm(delta, squared=True)))

    def server(state, mean, participation):
        squared = optax.tree.norm(mean.pseudo_gradient, squared=True)
        rate = jnp.maximum(1, mean.squared_norm / (2 * (squared + epsilon)))
        step = fedax.ModelUpdate(optax.tree.scale(rate, mean.pseudo_gradient))
        return exchange.server(state, step, participation)

    return fedavg._replace(exchanges=(exchange._replace(client=client, server=server),))


class FedDynState(NamedTuple):
    """The server's model, the round, and h, the mean of all clients' own h_i."""

    params: Any
    round_index: jax.Array
    h: Any


@fedax.factory
def feddyn(
    model: fedax.Model,
    client_learning_rate: fedax.schedules.ScheduleOrNumber = 0.1,
    proximal_weight: float = 0.1,
    **local_options: Unpack[fedax.LocalOptions],
) -> fedax.FederatedAlgorithm:
    """FedDyn (Acar et al., ICLR 2021).

    Args:
      model: the learning problem.
      client_learning_rate: of the local steps, a number or a schedule of the round.
      proximal_weight: the paper's alpha, > 0.
      **local_options: see `fedax.LocalOptions`.
    """
    local = fedax.LocalTraining.checked(
        model, client_learning_rate,
        {"weighting": "uniform", "proximal_weight": proximal_weight, **local_options},
    )
    zeros = optax.tree.zeros_like

    def init(params):
        return FedDynState(params, jnp.int32(0), zeros(params))

    def client(message, h, data, key):
        result = local.train(message, data, key, correction=lambda g, *_: optax.tree.sub(g, h))
        moved = optax.tree.sub(message.params, result.params)
        h = optax.tree.add_scale(h, proximal_weight, moved)
        return local.reply(fedax.ModelUpdate(moved), message, data, result, h)

    def server(state, mean, participation):
        share = proximal_weight * participation.num_reports / participation.num_clients
        moved = mean.pseudo_gradient
        h = jax.tree.map(lambda h, d: h + share.astype(d.dtype) * d, state.h, moved)
        params = jax.tree.map(lambda x, d, h: x - d - h / proximal_weight, state.params, moved, h)
        return state._replace(params=params, h=h)

    return fedax.FederatedAlgorithm(init, zeros, (fedax.Exchange(local.message, client, server),))
