"""Geometry of a round: how the clients' updates relate to each other and to the server's step.

Off by default; `simulate(..., diagnostics=True)` reports, each round:

  client_drift           mean over clients of |x_i - x_t|, x_i the client's model after training
  update_cosine          mean over pairs of clients of cos(x_i - x_t, x_j - x_t)
  pseudo_gradient_norm   |g_t|, g_t the weighted mean that the server gets
  effective_server_step  |x_{t+1} - x_t| / |g_t|

Norms are over all parameters together. The server does not need individual updates: each client
normalises its own, and the cosine comes from the sum of the unit vectors u_i, (|sum_i u_i|^2 - m) /
(m (m - 1)).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedax.algorithm import Array, Params
from fedax.clients.precision import widen


class Directions(NamedTuple):
    """One client's contribution to a round's geometry, or the sum over clients.

    Attributes:
      unit: model_delta / |model_delta|, like the parameters; 0 if the client did not move.
      moved: 1 if the client moved.
      drift: |model_delta|.
      counts: 1 if the client counts.
    """

    unit: Params
    moved: Array
    drift: Array
    counts: Array


def norm(tree: Params) -> Array:
    """The Euclidean norm over all leaves."""
    squares = [jnp.square(widen(leaf)).sum() for leaf in jax.tree.leaves(tree)]
    return jnp.sqrt(sum(squares[1:], start=squares[0]))


def direction(model_delta: Params, counts: Array) -> Directions:
    """A client's `Directions`; all 0 if it does not count."""
    drift = jnp.where(counts, norm(model_delta), 0)
    moved = drift > 0
    unit = jax.tree.map(
        lambda leaf: jnp.where(
            moved, widen(leaf) / jnp.where(moved, drift, 1).astype(widen(leaf).dtype), 0
        ),
        model_delta,
    )
    return Directions(unit, moved.astype(drift.dtype), drift, counts.astype(drift.dtype))


def round_geometry(
    total: Directions | None,
    pseudo_gradient: Params | None,
    before: Params,
    after: Params,
    any_report: Array,
) -> dict[str, tuple[Array, Array]]:
    """The geometry of an exchange: name -> (value, 1), or (NaN, 0) if it has none.

    Args:
      total: the sum of the clients' `Directions`; None if they do not train in this exchange.
      pseudo_gradient: the pseudo-gradient that the server received; None if the method sends none.
      before, after: the server's parameters around its step.
      any_report: bool scalar, whether any client counts.
    """
    info = {}
    if total is not None:
        pairs = total.moved * (total.moved - 1)
        info["client_drift"] = (total.drift / jnp.maximum(total.counts, 1), total.counts > 0)
        info["update_cosine"] = (
            (norm(total.unit) ** 2 - total.moved) / jnp.where(pairs > 0, pairs, 1), pairs > 0
        )
    if pseudo_gradient is not None:
        length = norm(pseudo_gradient)
        step = norm(jax.tree.map(jnp.subtract, after, before))
        info["pseudo_gradient_norm"] = (length, any_report)
        info["effective_server_step"] = (step / jnp.where(length > 0, length, 1), length > 0)
    return {
        name: (jnp.where(known, value, jnp.nan), known.astype(value.dtype))
        for name, (value, known) in info.items()
    }
