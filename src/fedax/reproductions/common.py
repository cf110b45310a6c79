"""What reproductions share: quadratic populations run through the engine, and tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedax.algorithm import Array, FederatedAlgorithm
from fedax.data.cohort_data import CohortReader
from fedax.data.federated_dataset import FederatedDataset
from fedax.report.tables import Table
from fedax.rounds.cohort import RoundInfo, run_round

if TYPE_CHECKING:  # matplotlib is slow to import, and only drawing needs it
    from matplotlib.figure import Figure


class Findings(NamedTuple):
    """What a reproduction found.

    Attributes:
      tables: with the deviations from what was published or derived.
      draw: draws the picture, with what was derived in it, on an empty figure.
    """

    tables: list[Table]
    draw: Callable[[Figure], None]


class Reproduction(NamedTuple):
    """A published table or figure.

    Attributes:
      description: one line.
      source: paper and place.
      compute: computes it, in float64.
      settings: sentences: the settings and where each comes from.
      agreement: what counts as agreement, a sentence each.
      seconds: on 2 cores.
      methods: which it computes, by their names.
      verdict: what tests assert of it.
      result: the verdict in one word, as `fedax.reproductions.outcome.in_a_word` has it.
    """

    description: str
    source: str
    compute: Callable[[], Findings]
    settings: str
    agreement: Sequence[str]
    seconds: int
    methods: tuple[str, ...]
    verdict: str = "agrees"
    result: str = "agrees"


def run_rounds(
    algorithm: FederatedAlgorithm,
    start: Any,
    clients: FederatedDataset,
    num_rounds: int,
    *,
    arrays: Mapping[str, Array] | None = None,
    cohorts: Array | None = None,
    key: Array | None = None,
) -> tuple[Array, RoundInfo]:
    """Rounds on quadratic clients, in one traced program; jit and vmap as you like.

    Args:
      algorithm: on a `fedax.models.quadratic`.
      start: x_0, [d].
      clients: all alike in size, such as from `quadratic_data`.
      num_rounds: T.
      arrays: takes the place of the clients' arrays, if they are traced.
      cohorts: who takes part in each round, int [T, M]; None: every client.
      key: the run's; None: a fixed one.

    Returns:
      x after each round, [T, d], and the rounds' info, stacked.
    """
    whole = CohortReader(clients)(np.arange(clients.num_clients))
    whole = whole if arrays is None else dataclasses.replace(whole, arrays=arrays)
    params = {"x": jnp.asarray(start)}
    states = jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf, (clients.num_clients, *leaf.shape)),
        algorithm.init_client(params),
    )
    run_key = jax.random.key(0) if key is None else key
    if cohorts is None:
        cohorts = jnp.broadcast_to(
            jnp.arange(clients.num_clients), (num_rounds, clients.num_clients)
        )

    def one_round(carry: Any, ids: Array) -> Any:
        server, states = carry
        cohort = dataclasses.replace(
            whole,
            client_ids=ids.astype(jnp.int32), starts=whole.starts[ids],
            num_examples=whole.num_examples[ids], dropped_at=whole.dropped_at[ids],
            repeats=jnp.tril(ids[:, None] == ids[None, :], -1).sum(1).astype(jnp.int32),
        )
        server, own, info = run_round(
            algorithm, server, jax.tree.map(lambda leaf: leaf[ids], states), cohort, run_key,
            clients_per_chunk=len(ids),
        )
        states = jax.tree.map(lambda leaf, new: leaf.at[ids].set(new), states, own)
        return (server, states), (server.params["x"], info)

    return jax.lax.scan(one_round, (algorithm.init(params), states), cohorts)[1]
