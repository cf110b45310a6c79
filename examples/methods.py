"""Methods of one's own: FedExP, built on FedAvg; FedDyn, FedNova and q-FFL, built from the parts.

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


class FedNovaUpload(NamedTuple):
    """A client's change of the model per local step, and tau_i."""

    pseudo_gradient: Any
    num_steps: jax.Array


class ModelState(NamedTuple):
    """The state of a server that keeps nothing but the model."""

    params: Any
    round_index: jax.Array


def only_the_model(params: Any) -> ModelState:
    """The server's state before the first round."""
    return ModelState(params, jnp.int32(0))


@fedax.factory
def fednova(
    model: fedax.Model,
    client_learning_rate: fedax.schedules.ScheduleOrNumber = 0.1,
    **local_options: Unpack[fedax.LocalOptions],
) -> fedax.FederatedAlgorithm:
    """FedNova (Wang et al., NeurIPS 2020): clients that take more steps do not count for more.

    w <- w - (sum_i p_i tau_i) sum_i p_i (w - w_i) / |a_i|, where |a_i| is tau_i, the local steps;
    with a proximal term, |a_i| = sum_{k < tau_i} (1 - eta mu)^k.

    Args:
      model: the learning problem.
      client_learning_rate: eta, a number or a schedule of the round.
      **local_options: see `fedax.LocalOptions`.
    """
    local = fedax.LocalTraining.checked(model, client_learning_rate, local_options)

    def client(message, state, data, key):
        result = local.train(message, data, key)
        steps = result.num_steps.astype(result.loss.weight.dtype)
        length = steps
        if message.proximal_weight is not None:
            kept = (1 - message.client_learning_rate * message.proximal_weight).astype(steps.dtype)
            length = jax.lax.fori_loop(0, result.num_steps, lambda _, a: 1 + kept * a, 0 * steps)
        length = jnp.where(steps > 0, length, 1)
        moved = optax.tree.sub(message.params, result.params)
        per_step = jax.tree.map(lambda d: d / length.astype(d.dtype), moved)
        return local.reply(FedNovaUpload(per_step, steps), message, data, result, state)

    def server(state, mean, _):
        step = jax.tree.map(lambda d: mean.num_steps.astype(d.dtype) * d, mean.pseudo_gradient)
        return state._replace(params=optax.tree.sub(state.params, step))

    exchange = fedax.Exchange(local.message, client, server)
    return fedax.FederatedAlgorithm(only_the_model, lambda _: (), (exchange,))


class QFFLUpload(NamedTuple):
    """A client's F^q (w - w_i), and what the server divides its mean by."""

    pseudo_gradient: Any
    divisor: jax.Array


@fedax.factory
def qffl(
    model: fedax.Model,
    client_learning_rate: fedax.schedules.ScheduleOrNumber = 0.1,
    q: float = 1.0,
    **local_options: Unpack[fedax.LocalOptions],
) -> fedax.FederatedAlgorithm:
    """q-FedAvg for q-FFL (Li et al., ICLR 2020): clients with a large loss count for more.

    With F_i the loss over all of a client's examples at w, and L = 1/eta,
    w <- w - sum_i F_i^q L (w - w_i) / sum_i (q F_i^(q-1) |L (w - w_i)|^2 + L F_i^q).

    Args:
      model: the learning problem; its losses are not negative.
      client_learning_rate: eta, a number or a schedule of the round.
      q: >= 0; 0 is FedAvg, and the larger, the more alike are the clients' losses.
      **local_options: see `fedax.LocalOptions`.
    """
    local = fedax.LocalTraining.checked(
        model, client_learning_rate, {"weighting": "uniform", **local_options}
    )

    def client(message, state, data, key):
        loss = local.full_loss(message.params, data, jax.random.fold_in(key, 0)).mean + 1e-10
        result = local.train(message, data, jax.random.fold_in(key, 1))
        moved = optax.tree.sub(message.params, result.params)
        rate = jnp.where(message.client_learning_rate > 0, message.client_learning_rate, 1)
        squared = optax.tree.norm(moved, squared=True)
        divisor = q * loss ** (q - 1) * squared / rate + loss**q
        weighted = jax.tree.map(lambda d: (loss**q).astype(d.dtype) * d, moved)
        return local.reply(QFFLUpload(weighted, divisor), message, data, result, state)

    def server(state, mean, _):
        step = jax.tree.map(lambda d: d / mean.divisor.astype(d.dtype), mean.pseudo_gradient)
        return state._replace(params=optax.tree.sub(state.params, step))

    exchange = fedax.Exchange(local.message, client, server)
    return fedax.FederatedAlgorithm(only_the_model, lambda _: (), (exchange,))
