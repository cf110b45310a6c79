"""One round over one cohort: chunks of clients, weighted means, the guard against non-finite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedax.algorithm import Array, Exchange, FederatedAlgorithm, Participation, PyTree
from fedax.data.cohort_data import ClientData, CohortData


class RoundInfo(NamedTuple):
    """What a round reports; nothing of it feeds back.

    Attributes:
      info: name -> (weighted mean over the clients that count, sum of the weights); from the
        last exchange that gave a value of that name.
      accepted: bool [cohort_size], True where every upload of the client was finite.
    """

    info: Mapping[str, tuple[Array, Array]]
    accepted: Array


class _Sums(NamedTuple):
    upload: PyTree  # sum of weight * upload
    weight: Array  # sum of weights
    num_reports: Array  # int32, clients with a positive weight
    info: dict[str, tuple[Array, Array]]  # sum of weight * value, sum of weights


def run_round(
    algorithm: FederatedAlgorithm,
    server_state: Any,
    client_states: PyTree,
    cohort: CohortData,
    key: Array,
    *,
    clients_per_chunk: int = 1,
) -> tuple[Any, PyTree, RoundInfo]:
    """Runs the exchanges of one round, in order, over one cohort. Pure; jit and vmap as you like.

    Args:
      algorithm: any federated algorithm.
      server_state: its state, with `params` and `round_index`.
      client_states: the cohort's client states, stacked: leaves [cohort_size, ...].
      cohort: who takes part and where the examples are.
      key: the run's key. Client i draws from fold_in(fold_in(key, round_index), client_id_i),
        so its draws depend neither on chunks, nor on the order of the cohort.
      clients_per_chunk: how many clients run batched at a time, 1 to cohort_size.

    Returns:
      server_state after the round, the cohort's new client states, and the round's info. A
      client with a non-finite upload weighs 0 and keeps its old state. If no upload of an
      exchange counts, the server state stays as it was (only `round_index` advances).
    """
    round_key = jax.random.fold_in(key, server_state.round_index)
    keys = jax.vmap(lambda i: jax.random.fold_in(round_key, i))(cohort.client_ids)
    accepted = jnp.ones(cohort.client_ids.shape, bool)
    info: dict[str, tuple[Array, Array]] = {}
    for index, exchange in enumerate(algorithm.exchanges):
        exchange_keys = jax.vmap(lambda k, index=index: jax.random.fold_in(k, index))(keys)
        server_state, client_states, exchange_info, finite = _run_exchange(
            exchange, server_state, client_states, cohort, exchange_keys, clients_per_chunk
        )
        info |= exchange_info
        accepted &= finite
    server_state = server_state._replace(round_index=server_state.round_index + 1)
    return server_state, client_states, RoundInfo(info, accepted)


def _run_exchange(
    exchange: Exchange,
    server_state: Any,
    client_states: PyTree,
    cohort: CohortData,
    keys: Array,
    clients_per_chunk: int,
) -> tuple[Any, PyTree, dict[str, tuple[Array, Array]], Array]:
    message = exchange.broadcast(server_state)

    def answer(start: Array, size: Array, key: Array, client_state: PyTree) -> Any:
        data = ClientData(cohort.arrays, start, size, cohort.capacity)
        return _guarded(exchange, message, client_state, data, key)

    inputs = (cohort.starts, cohort.num_examples, keys, client_states)
    sums, (new_states, finite) = _map_in_chunks(answer, inputs, clients_per_chunk)
    any_report = sums.weight > 0
    mean = jax.tree.map(
        lambda total: total / jnp.where(any_report, sums.weight, 1).astype(total.dtype),
        sums.upload,
    )
    participation = Participation(
        num_clients=cohort.num_clients,
        cohort_size=jnp.asarray(cohort.client_ids.shape[0], jnp.int32),
        num_reports=sums.num_reports,
    )
    updated = exchange.server(server_state, mean, participation)
    server_state = _select(any_report, updated, server_state)
    info = {
        name: (total / jnp.where(weight > 0, weight, 1), weight)
        for name, (total, weight) in sums.info.items()
    }
    return server_state, new_states, info, finite


def _guarded(
    exchange: Exchange, message: PyTree, client_state: PyTree, data: ClientData, key: Array
) -> tuple[_Sums, tuple[PyTree, Array]]:
    """One client's contribution to the sums; nothing if any of its numbers is not finite."""
    reply = exchange.client(message, client_state, data, key)
    weight = jnp.asarray(reply.weight)
    finite = jnp.isfinite(weight) & (weight >= 0)
    for leaf in jax.tree.leaves((reply.upload, reply.client_state)):
        finite &= jnp.isfinite(leaf).all()
    present = data.num_examples > 0
    counts = finite & present
    weight = jnp.where(counts, weight, 0)
    upload = jax.tree.map(
        lambda leaf: jnp.where(counts, leaf, 0) * weight.astype(leaf.dtype), reply.upload
    )
    info = {}
    for name, (value, its_weight) in reply.info.items():
        total_weight = jnp.where(counts, its_weight, 0).astype(value.dtype)
        info[name] = (jnp.where(counts, value, 0) * total_weight, total_weight)
    sums = _Sums(upload, weight, (weight > 0).astype(jnp.int32), info)
    return sums, (_select(counts, reply.client_state, client_state), finite)


def _map_in_chunks(answer: Any, inputs: PyTree, clients_per_chunk: int) -> tuple[_Sums, PyTree]:
    """Maps `answer` over the leading axis of `inputs`, `clients_per_chunk` at a time.

    Sums the first result over clients as it goes, so memory holds one chunk's uploads, and
    stacks the second. The cohort is filled up to whole chunks with clients without examples.
    """
    cohort_size = inputs[0].shape[0]
    clients_per_chunk = min(clients_per_chunk, cohort_size)
    num_chunks = -(-cohort_size // clients_per_chunk)
    filler = num_chunks * clients_per_chunk - cohort_size
    starts, sizes, keys, states = inputs
    if filler:
        sizes = jnp.concatenate([sizes, jnp.zeros(filler, sizes.dtype)])
        repeat = jnp.minimum(jnp.arange(cohort_size + filler), cohort_size - 1)
        starts, keys, states = jax.tree.map(lambda leaf: leaf[repeat], (starts, keys, states))
    chunks = jax.tree.map(
        lambda leaf: leaf.reshape(num_chunks, clients_per_chunk, *leaf.shape[1:]),
        (starts, sizes, keys, states),
    )

    def chunk_answer(chunk: PyTree) -> tuple[_Sums, PyTree]:
        if clients_per_chunk == 1:  # no batching: a loop's length is then that client's own
            sums, rest = answer(*jax.tree.map(lambda leaf: leaf[0], chunk))
            return sums, jax.tree.map(lambda leaf: leaf[None], rest)
        sums, rest = jax.vmap(answer)(*chunk)
        return jax.tree.map(lambda leaf: leaf.sum(0, dtype=leaf.dtype), sums), rest

    shapes = jax.eval_shape(chunk_answer, jax.tree.map(lambda leaf: leaf[0], chunks))[0]
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    def body(total: _Sums, chunk: PyTree) -> tuple[_Sums, PyTree]:
        sums, rest = chunk_answer(chunk)
        return jax.tree.map(jnp.add, total, sums), rest

    total, rest = jax.lax.scan(body, zeros, chunks)
    return total, jax.tree.map(
        lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:cohort_size], rest
    )


def _select(condition: Array, true: PyTree, false: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), true, false)
