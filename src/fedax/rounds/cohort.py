"""One round over one cohort: chunks of clients, weighted means, the guard against non-finite."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from fedax.algorithm import (
    Array,
    Exchange,
    FederatedAlgorithm,
    Individual,
    Participation,
    PublicParticipation,
    PyTree,
    Reply,
    at_round,
)
from fedax.clients.precision import widen
from fedax.clients.uploads import acceptable, all_finite, finite_beside, weighted_sum
from fedax.data.cohort_data import NOBODY, ClientData, CohortData
from fedax.devices.mesh import AXIS, REPLICATED, SPREAD, add_up, where_kept
from fedax.measures.diagnostics import Directions, direction, round_geometry
from fedax.mistakes.algorithm import call_broadcast, call_client, call_report, call_server

# Info that adds up over the exchanges of a round.
BITS = {"bits_up", "bits_down"}
# In place of a client's index, for what the server draws.
_SERVER = 2**31 - 1


class RoundInfo(NamedTuple):
    """Diagnostics of a round; nothing is computed from them later.

    Attributes:
      info: name -> (weighted mean over the clients that count, sum of the weights), from the last
        exchange that reported a value of that name; of `bits_up` and `bits_down`, the sum over
        exchanges. NaN if the weights sum to 0.
      accepted: bool [cohort_size], whether every upload of the client was finite and not too large
        to be averaged.
      dropped: bool [cohort_size], whether the client dropped out of the round.
      num_reports: int32 scalar, |S|: the clients with a positive weight in the last exchange.
      num_local_steps: int32 scalar, sum of the info `num_local_steps` over exchanges and the
        clients that count; exact, unlike the mean.
      finite: bool scalar, whether the server's parameters are finite after the round, as well as
        every array of its state that was finite before.
    """

    info: Mapping[str, tuple[Array, Array]]
    accepted: Array
    dropped: Array
    num_reports: Array
    num_local_steps: Array
    finite: Array


class _Client(NamedTuple):
    """One client, or a chunk or a cohort of them stacked."""

    start: Array
    num_examples: Array
    key: Array  # what it draws from in this exchange
    repeat: Array  # how often it stands before this place in the cohort
    accepted: Array  # False from its first upload on that is not finite
    state: PyTree
    client_id: Array


class _Sums(NamedTuple):
    upload: PyTree  # sum of weight * upload; () if the server sees them one by one
    like: PyTree  # zeros of each upload's dtype, scalars
    weight: Array  # sum of weights
    num_reports: Array  # int32, clients with a positive weight
    num_local_steps: Array  # int32
    info: dict[str, tuple[Array, Array]]  # sum of weight * value, sum of weights
    directions: Directions | None  # for the diagnostics


class _Kept(NamedTuple):
    """What is kept of each client of an exchange, stacked."""

    state: PyTree
    accepted: Array
    individual: PyTree  # upload and weight if the server wants each, otherwise ()


def run_round(
    algorithm: FederatedAlgorithm,
    server_state: Any,
    client_states: PyTree,
    cohort: CohortData,
    key: Array,
    *,
    clients_per_chunk: int = 1,
    diagnostics: bool = False,
    mesh: Mesh | None = None,
) -> tuple[Any, PyTree, RoundInfo]:
    """Runs the exchanges of one round in order over one cohort. Pure; works under jit and vmap.

    Args:
      algorithm: any federated algorithm.
      server_state: its state, with `params` and `round_index`.
      client_states: the cohort's client states, stacked: leaves [cohort_size, ...].
      cohort: who takes part and where the examples are.
      key: the run's key. Each client draws from its own `client_key`, so its draws depend neither
        on chunks nor on the order of the cohort.
      clients_per_chunk: number of clients that run as one batch, 1 to cohort_size.
      diagnostics: also report how the clients' updates relate to each other, see
        `fedax.measures.diagnostics`.
      mesh: devices over which the cohort is spread. The cohort's size is then a multiple of their
        number, and the cohort comes from a `CohortReader` of this mesh. None: one device.

    Returns:
      The server state after the round, the cohort's new client states and the round's info. A
      client that uploads NaN, infinity or numbers that are too large (`fedax.clients.uploads`), or
      that drops out, gets weight 0 from that exchange on and keeps the state it had before the
      round. If no upload of an exchange counts, the server state does not change (only
      `round_index` advances).

    Example:
      Three learning rates at a time; a method without client states has `()` for them.

      >>> import fedax, jax.numpy as jnp, numpy as np
      >>> centres = fedax.theory.QuadraticPopulation.from_centres([1.0, 2.0], [1.0, 0.5])
      >>> task, key = fedax.quadratic_task(centres), jax.random.key(0)
      >>> cohort = fedax.CohortReader(task.train)(np.arange(2))
      >>> def after_60_rounds(rate):
      ...     algorithm = fedax.fedavg(task.model, rate, num_local_steps=2)
      ...     def step(t, state):
      ...         return run_round(algorithm, state, (), cohort, key)[0]
      ...     state = algorithm.init(task.model.init(key))
      ...     return jax.lax.fori_loop(0, 60, step, state).params["x"]
      >>> found = jax.jit(jax.vmap(after_60_rounds))(jnp.asarray([0.1, 0.3, 0.5]))
      >>> [f"{x:.3f}" for x in found.ravel().tolist()]
      ['0.673', '0.689', '0.714']
    """
    was_finite = finite_beside(server_state)
    round_index = server_state.round_index
    clients = _Client(
        cohort.starts, cohort.num_examples, key=cohort.client_ids,  # a key for each exchange, below
        repeat=cohort.repeats, accepted=jnp.ones(cohort.client_ids.shape, bool),
        state=client_states, client_id=cohort.client_ids,
    )
    info: dict[str, tuple[Array, Array]] = {}
    num_reports = num_local_steps = jnp.zeros((), jnp.int32)
    for index, exchange in enumerate(algorithm.exchanges):
        keys = jax.vmap(lambda i, r, e=index: client_key(key, round_index, i, e, r))(
            cohort.client_ids, cohort.repeats
        )
        present = jnp.where(cohort.dropped_at > index, cohort.num_examples, 0)
        server_state, clients, exchange_info, num_reports, steps = _run_exchange(
            exchange, f"exchange {index + 1} of {len(algorithm.exchanges)}", server_state,
            clients._replace(key=keys, num_examples=present), cohort,
            client_key(key, round_index, _SERVER, index) if exchange.total else None,
            clients_per_chunk, diagnostics, mesh,
        )
        for name in info.keys() & exchange_info.keys() & BITS:
            mean, weight = exchange_info[name]
            exchange_info[name] = (info[name][0] + mean, weight)
        info |= exchange_info
        num_local_steps += steps
    finite = all_finite(server_state.params)
    for was, still in zip(was_finite, finite_beside(server_state), strict=True):
        finite &= ~was | still
    gone = cohort.dropped_at < len(algorithm.exchanges)
    states = clients.state
    if len(algorithm.exchanges) > 1:  # one exchange keeps them itself
        states = jax.vmap(_select)(clients.accepted & ~gone, states, client_states)
    dropped = gone & (cohort.dropped_at != NOBODY)
    round_info = RoundInfo(
        info, clients.accepted, dropped, num_reports, num_local_steps, finite
    )
    return at_round(server_state, server_state.round_index + 1), states, round_info


def run_rounds(
    algorithm: FederatedAlgorithm,
    server_state: Any,
    client_states: PyTree,
    cohorts: CohortData,
    count: Array,
    key: Array,
    *,
    clients_per_chunk: int = 1,
    diagnostics: bool = False,
    mesh: Mesh | None = None,
) -> tuple[Any, PyTree, RoundInfo]:
    """Runs `count` rounds in one program, one after the other, until one diverges.

    The results are bit-identical for every `count`, as the rounds always run in a loop.

    Args:
      algorithm, key, clients_per_chunk, diagnostics, mesh: as for `run_round`.
      server_state: before the first round.
      client_states: states of the first round's cohort. With client states, run only one round: the
        next one has other clients.
      cohorts: the cohorts of several rounds, stacked; those beyond `count` are ignored.
      count: int32 scalar, 1 to the number of cohorts.

    Returns:
      The server state after the last round, its cohort's client states, and the info of all rounds,
      stacked. After a round without a finite upload, or with parameters that are not finite, no
      further rounds run; their info is 0.
    """

    @partial(jax.jit, inline=True)  # traced once, for its shapes and in the loop
    def one(server_state: Any, client_states: PyTree, index: Array) -> Any:
        return run_round(
            algorithm, server_state, client_states, cohorts.of_round(index), key,
            clients_per_chunk=clients_per_chunk, diagnostics=diagnostics, mesh=mesh,
        )

    shapes = jax.eval_shape(one, server_state, client_states, jnp.int32(0))[2]
    rounds = cohorts.client_ids.shape[0]
    infos = jax.tree.map(lambda leaf: jnp.zeros((rounds, *leaf.shape), leaf.dtype), shapes)

    def body(carry: Any) -> Any:
        index, _, server_state, states, infos = carry
        before = client_states if rounds == 1 else states
        server_state, states, info = one(server_state, before, index)
        infos = jax.tree.map(lambda all_, leaf: all_.at[index].set(leaf), infos, info)
        done = info.accepted & (cohorts.dropped_at[index] >= len(algorithm.exchanges))
        sound = info.finite & (info.accepted.all() | done.any())
        return index + 1, sound, server_state, states, infos

    # One round alone does not write where it reads, which would copy the states twice.
    states = jax.tree.map(jnp.zeros_like, client_states) if rounds == 1 else client_states
    start = (jnp.int32(0), jnp.asarray(True), server_state, states, infos)
    after = jax.lax.while_loop(lambda c: (c[0] < count) & c[1], body, start)
    return after[2], after[3], after[4]


def client_key(
    key: Array, round_index: int | Array, client_id: int | Array, exchange_index: int = 0,
    repeat: int | Array = 0,
) -> Array:
    """The key from which a client draws in one exchange: (seed, round, client, exchange).

    A client that occurs more than once in a cohort gets a different key each time.
    """
    numbers = (round_index, client_id, exchange_index, repeat)

    def fold(key: Array, number: Array) -> tuple[Array, Array]:
        key = jax.random.fold_in(key, number)
        return key, key

    # In a loop, as each fold_in is as long to compile as a small model's step.
    last, keys = jax.lax.scan(fold, key, jnp.stack([jnp.asarray(n, jnp.uint32) for n in numbers]))
    return jnp.where(jnp.asarray(repeat) > 0, last, keys[2])


def _run_exchange(
    exchange: Exchange,
    place: str,
    server_state: Any,
    clients: _Client,
    cohort: CohortData,
    server_key: Array | None,
    clients_per_chunk: int,
    diagnostics: bool,
    mesh: Mesh | None,
) -> tuple[Any, _Client, dict[str, tuple[Array, Array]], Array, Array]:
    """One exchange: the server state and the clients after it, its info, reports and steps."""
    message = call_broadcast(exchange, place, server_state)
    one_by_one = exchange.individual or exchange.collusion is not None

    def answer(message: PyTree, arrays: Mapping[str, Array], client: _Client) -> Any:
        data = ClientData(
            arrays, client.start, client.num_examples, cohort.capacity, client.repeat,
            cohort.largest, client.client_id,
        )
        reply = call_client(exchange, place, message, client.state, data, client.key)
        if not diagnostics:
            reply = reply._replace(model_delta=None)
        return _guarded(reply, client, one_by_one)

    def map_clients(
        message: PyTree, arrays: Mapping[str, Array], clients: _Client
    ) -> tuple[_Sums, _Kept]:
        return _map_in_chunks(partial(answer, message, arrays), clients, clients_per_chunk)

    if mesh is not None:
        map_clients = _over_devices(map_clients, mesh)
    sums, kept = map_clients(message, cohort.arrays, clients)
    any_report = sums.weight > 0
    upload = _received(exchange, sums, kept, cohort.client_ids)
    cohort_size = (cohort.dropped_at != NOBODY).sum(dtype=jnp.int32)
    participation = Participation(cohort.num_clients, cohort_size, sums.num_reports)
    if server_key is not None:
        expected = cohort_size if cohort.expected is None else cohort.expected
        participation = PublicParticipation(
            cohort.num_clients, expected.astype(jnp.float32), server_key
        )
    updated = call_server(exchange, place, server_state, upload, participation)
    # Not of two values, so that it stays one number for many settings side by side.
    stepped = updated if exchange.total else _select(any_report, updated, server_state)
    updated = at_round(stepped, updated.round_index)
    info = {
        name: (jnp.where(weight > 0, total / weight, jnp.nan), weight)
        for name, (total, weight) in sums.info.items()
    } | {
        name: (jnp.where(any_report, value, jnp.nan), any_report.astype(value.dtype))
        for name, value in call_report(exchange, place, upload).items()
    }
    if diagnostics:
        info |= round_geometry(
            sums.directions, getattr(upload, "pseudo_gradient", None),
            server_state.params, updated.params, any_report,
        )
    clients = clients._replace(accepted=kept.accepted, state=kept.state)
    return updated, clients, info, sums.num_reports, sums.num_local_steps


def _received(exchange: Exchange, sums: _Sums, kept: _Kept, client_ids: Array) -> PyTree:
    """What the server receives: the mean, the sum or the uploads one by one."""
    totals = sums.upload
    if kept.individual:
        each = Individual(*kept.individual)
        if exchange.collusion is not None:
            each = exchange.collusion(each, client_ids)
        if exchange.individual:
            return each
        totals = jax.tree.map(partial(weighted_sum, each.weights), each.uploads)
    if exchange.total:
        return totals
    any_report = sums.weight > 0
    return jax.tree.map(  # the choice for each array by itself, or XLA rounds in another way
        lambda total, like: (
            total / jnp.where(any_report, sums.weight, 1).astype(total.dtype)
        ).astype(like.dtype),
        totals, sums.like,
    )


def _guarded(reply: Reply, client: _Client, individual: bool) -> tuple[_Sums, _Kept]:
    """One client's contribution to the sums; nothing if a number is not finite or too large.

    Sums are taken in float32 at least, so that many clients of low precision still average.
    """
    weight = widen(reply.weight)
    absent = client.num_examples == 0  # a filler, or dropped out: what it says is not looked at
    accepted = client.accepted & (acceptable(reply) | absent)
    counts = accepted & ~absent
    weight = jnp.where(counts, weight, 0)

    def total(value: Array, weight: Array) -> Array:
        value = jnp.where(counts, widen(value), 0)
        return value * weight.astype(value.dtype)

    info = {}
    for name, (value, its_weight) in reply.info.items():
        counted = jnp.where(counts, its_weight, 0).astype(widen(value).dtype)
        info[name] = (total(value, counted), counted)
    directions = None if reply.model_delta is None else direction(reply.model_delta, counts)
    summed, each = (), ()
    if individual:
        each = (jax.tree.map(lambda leaf: jnp.where(counts, leaf, 0), reply.upload), weight)
    else:
        summed = jax.tree.map(lambda leaf: total(leaf, weight), reply.upload)
    steps, _ = reply.info.get("num_local_steps", (jnp.zeros(()), None))
    sums = _Sums(
        summed, jax.tree.map(lambda leaf: jnp.zeros((), leaf.dtype), reply.upload), weight,
        (weight > 0).astype(jnp.int32), jnp.where(counts, steps, 0).astype(jnp.int32), info,
        directions,
    )
    return sums, _Kept(_select(counts, reply.client_state, client.state), accepted, each)


def _map_in_chunks(
    answer: Any, clients: _Client, clients_per_chunk: int
) -> tuple[_Sums, _Kept]:
    """Maps `answer` over the clients, `clients_per_chunk` at a time.

    Sums the first result over clients as it goes, so memory holds one chunk's uploads, and
    stacks the second. The cohort is filled up to whole chunks with clients without examples.
    """
    cohort_size = clients.start.shape[0]
    clients_per_chunk = min(clients_per_chunk, cohort_size)
    num_chunks = -(-cohort_size // clients_per_chunk)
    filler = num_chunks * clients_per_chunk - cohort_size
    if filler:
        places = jnp.minimum(jnp.arange(cohort_size + filler), cohort_size - 1)
        clients = jax.tree.map(lambda leaf: leaf[places], clients)
        absent = jnp.arange(cohort_size + filler) >= cohort_size
        clients = clients._replace(num_examples=jnp.where(absent, 0, clients.num_examples))
    chunks = jax.tree.map(
        lambda leaf: leaf.reshape(num_chunks, clients_per_chunk, *leaf.shape[1:]), clients
    )

    @partial(jax.jit, inline=True)  # traced once, for its shapes and in the loop
    def chunk_answer(chunk: _Client) -> tuple[_Sums, _Kept]:
        if clients_per_chunk == 1:  # no batching: a loop's length is then that client's own
            sums, rest = answer(jax.tree.map(lambda leaf: leaf[0], chunk))
            return sums, jax.tree.map(lambda leaf: leaf[None], rest)
        sums, rest = jax.vmap(answer)(chunk)
        return jax.tree.map(lambda leaf: leaf.sum(0, dtype=leaf.dtype), sums), rest

    shapes = jax.eval_shape(chunk_answer, jax.tree.map(lambda leaf: leaf[0], chunks))[0]
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    def body(total: _Sums, chunk: PyTree) -> tuple[_Sums, _Kept]:
        sums, rest = chunk_answer(chunk)
        return jax.tree.map(jnp.add, total, sums), rest

    total, rest = jax.lax.scan(body, zeros, chunks)
    return total, jax.tree.map(
        lambda leaf: leaf.reshape(cohort_size + filler, *leaf.shape[2:])[:cohort_size], rest
    )


def _over_devices(map_clients: Any, mesh: Mesh) -> Any:
    """The same over a mesh: each device maps its part of the clients on its part of the data."""

    def on_a_device(
        message: PyTree, arrays: Mapping[str, Array], clients: _Client
    ) -> tuple[_Sums, Array, _Kept]:
        own = {name: array[0] for name, array in arrays.items()}
        sums, kept = map_clients(message, own, clients)
        # Every device's own part of a vector of the whole cohort: one collective less.
        share = kept.accepted.shape[0]
        accepted = jnp.zeros(share * mesh.size, jnp.int32)
        place = (jax.lax.axis_index(AXIS) * share,)
        accepted = jax.lax.dynamic_update_slice(accepted, kept.accepted.astype(jnp.int32), place)
        return *add_up((sums, accepted)), kept

    spread = jax.shard_map(
        on_a_device, mesh=mesh, in_specs=(REPLICATED, SPREAD, SPREAD),
        out_specs=(REPLICATED, REPLICATED, SPREAD), check_vma=False,
    )

    def on_all(*arguments: Any) -> tuple[_Sums, _Kept]:
        sums, accepted, kept = spread(*arguments)
        everywhere: Any = NamedSharding(mesh, REPLICATED)
        own_state: Any = where_kept(mesh)
        kept = kept._replace(accepted=accepted > 0)
        places = _Kept(own_state, everywhere, everywhere)
        return sums, jax.lax.with_sharding_constraint(kept, places)

    return on_all


def _select(condition: Array, true: PyTree, false: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), true, false)
