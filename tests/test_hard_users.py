"""Hard users of the round: Mime, SCAFFOLD, K-MAML, a grid in one program, clients by hand.

Every expected number is derived. The problem is quadratic: example z has the loss
sum_j a_zj x_j^2 / 2 + b_zj x_j.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedax
from fedax import base_optimizers
from fedax.algorithm import Exchange, FederatedAlgorithm, Model, Participation, Reply
from fedax.algorithms import fedadam, fedavg
from fedax.clients.gradients import Loss, loss_gradient
from fedax.clients.local_steps import train_locally
from fedax.clients.minibatches import Minibatch, count_local_steps, fold_minibatches
from fedax.data import ClientData, CohortReader, FederatedDataset
from fedax.data.task import Task
from fedax.experiment.train import train
from fedax.rounds.client_store import ClientStore
from fedax.rounds.cohort import run_round
from fedax.rounds.sampling import sample_cohort
from fedax.rounds.simulate import simulate
from fedax.rounds.state import initial_state

KEY = jax.random.key(7, impl="threefry2x32")


# ---------------------------------------------------------------- the problem


def quadratic(dimension: int = 1, start: float = 1.0) -> Model:
    def loss(params: Any, batch: Any, key: Any) -> Any:
        x = params["x"][None]
        losses = (batch["a"] * x**2 / 2 + batch["b"] * x).sum(-1)
        return losses, jnp.ones_like(losses)

    return Model(
        init=lambda key: {"x": jnp.full(dimension, start, float)},
        loss=loss,
        outputs=lambda params, batch: params["x"],
        metrics={},
    )


def two_clients(heterogeneity: float) -> FederatedDataset:
    """B2: f_1 = x^2 + G x, f_2 = -G x; their mean is x^2 / 2, minimised by 0."""
    return FederatedDataset(
        {"a": np.array([[2.0], [0.0]]), "b": np.array([[1.0], [-1.0]]) * heterogeneity},
        np.arange(3),
    )


def ragged(sizes: list[int], dimension: int = 3, seed: int = 0) -> FederatedDataset:
    draw = np.random.default_rng(seed)
    shape = (sum(sizes), dimension)
    return FederatedDataset(
        {"a": draw.uniform(0.5, 1.5, shape), "b": draw.normal(size=shape)},
        np.concatenate([[0], np.cumsum(sizes)]),
    )


SIZES = [3, 7, 1, 12, 5, 2]


def fresh_client_states(algorithm: FederatedAlgorithm, params: Any, cohort_size: int) -> Any:
    return jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf, (cohort_size, *leaf.shape)),
        algorithm.init_client(params),
    )


def run(
    algorithm: FederatedAlgorithm,
    dataset: FederatedDataset,
    num_rounds: int,
    params: Any = None,
    clients_per_chunk: int = 1,
) -> Any:
    """Full participation, all rounds in one dispatch: the states after every round."""
    params = quadratic(dataset.arrays["a"].shape[1]).init(KEY) if params is None else params
    cohort = CohortReader(dataset)(np.arange(dataset.num_clients))

    def one_round(carry: Any, _: None) -> Any:
        server, clients, _ = run_round(
            algorithm, *carry, cohort, KEY, clients_per_chunk=clients_per_chunk
        )
        return (server, clients), server

    start = (algorithm.init(params), fresh_client_states(algorithm, params, dataset.num_clients))
    return jax.jit(lambda c: jax.lax.scan(one_round, c, length=num_rounds))(start)[1]


@functools.partial(jax.jit, static_argnums=0, static_argnames="clients_per_chunk")
def jitted_round(algorithm: FederatedAlgorithm, *args: Any, clients_per_chunk: int = 1) -> Any:
    return run_round(algorithm, *args, clients_per_chunk=clients_per_chunk)


def close(actual: Any, expected: Any, tolerance: float = 1e-12) -> None:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance),
        actual, expected,
    )


# ------------------------------------------------------- the hard users


def mime(model: Model, learning_rate: Any, num_local_steps: Any, batch_size: int) -> Any:
    return fedax.mime(
        model, learning_rate, base_optimizers.adam(initial_accumulator=1.0),
        num_local_steps=num_local_steps, batch_size=batch_size,
    )


def scaffold(model: Model, learning_rate: Any, num_local_steps: Any, batch_size: int) -> Any:
    return fedax.scaffold(
        model, learning_rate, num_local_steps=num_local_steps, batch_size=batch_size,
        weighting="uniform",
    )



@pytest.mark.quick
def test_control_variates_sum_to_the_servers() -> None:
    # With c_i starting at 0, c = (1/N) sum_i c_i after every round, whoever took part.
    model, dataset = quadratic(3), ragged(SIZES)
    task = Task(model, dataset)
    for report in simulate(
        task, scaffold(model, 0.1, None, 2), num_rounds=30, cohort_size=2, evaluate_every=0
    ):
        every = report.state.client_store.read(np.arange(6))["x"]
        close(report.state.server_state.control["x"], every.mean(0))
    assert (abs(every).max(1) > 0).all()  # 30 rounds of 2 reached all 6


@pytest.mark.slow
def test_scaffold_over_342477_clients() -> None:
    population, cohort_size, num_rounds, rate = 342_477, 50, 4, 0.1
    sizes = 1 + np.arange(population) % 3
    draw = np.random.default_rng(0)
    dataset = FederatedDataset(
        {"a": draw.uniform(0.5, 1.5, (sizes.sum(), 4)), "b": draw.normal(size=(sizes.sum(), 4))},
        np.concatenate([[0], np.cumsum(sizes)]),
    )
    model = quadratic(4)
    task = Task(model, dataset)
    seen: list[int] = []
    seconds = []
    for report in simulate(
        task, scaffold(model, rate, 1, 3), num_rounds=num_rounds, cohort_size=cohort_size,
        evaluate_every=0,
    ):
        cohort = sample_cohort(0, len(seconds), population, cohort_size)
        seen += cohort.tolist()
        seconds.append(report.metrics["seconds"])
        store = report.state.client_store
        if len(seconds) == 1:  # K = 1 from x = 1, full batch: c_i = mean of a + b
            expected = np.array([
                dataset.client(int(i))["a"].mean(0) + dataset.client(int(i))["b"].mean(0)
                for i in cohort
            ])
            close(store.read(cohort)["x"], expected)
            share = cohort_size / population
            close(report.state.server_state.control["x"], share * expected.mean(0), 1e-15)
            close(report.state.server_state.params["x"], 1 - rate * expected.mean(0))
    assert len(set(seen)) == len(seen)  # nobody twice, so the first check holds for all of them
    assert sorted(seen) == sorted(store.snapshot()["client_ids"].tolist())
    others = np.setdiff1d(np.arange(population), seen)
    assert not store.read(others)["x"].any()
    assert (abs(store.read(np.array(sorted(seen)))["x"]).max(1) > 0).all()
    assert min(seconds) < 0.1  # a round costs what its cohort costs (1 to 3 ms here)


# ---------------------------------------------- (4) a grid in one program


@pytest.mark.slow
def test_a_grid_with_traced_steps_is_one_program() -> None:
    model, dataset = quadratic(3), ragged(SIZES)
    grid = (
        jnp.asarray([0.05, 0.1, 0.2, 0.1]),  # client learning rate
        jnp.asarray([0.1, 0.01, 0.5, 1.0]),  # server learning rate
        jnp.asarray([1e-3, 1e-1, 1e-2, 1e-1]),  # adaptivity
        jnp.asarray([0.9, 0.0, 0.5, 0.9]),  # momentum
        jnp.asarray([1, 7, 3, 0], jnp.int32),  # local steps
    )

    def final(client_rate: Any, server_rate: Any, adaptivity: Any, momentum: Any, k: Any) -> Any:
        algorithm = fedadam(
            model, client_rate, server_rate, adaptivity, momentum, batch_size=2, num_local_steps=k,
        )
        return run(algorithm, dataset, 4)

    traces = []

    def counted(*point: Any) -> Any:
        traces.append(1)
        return final(*point)

    together = jax.jit(jax.vmap(counted))(*grid)
    assert len(traces) == 1
    for index in (1, 2):
        point = [values[index].item() for values in grid]  # Python numbers: nothing traced
        close(jax.tree.map(lambda leaf, i=index: leaf[i], together), final(*point))
    close(together.params["x"][3], np.ones((4, 3)))  # K = 0 stays where it is


@pytest.mark.slow
def test_a_grid_of_mime_and_of_scaffold() -> None:
    model, dataset = quadratic(3), ragged(SIZES)
    rates = jnp.asarray([0.05, 0.3])
    for make in (
        lambda rate: mime(model, rate, 3, 2), lambda rate: scaffold(model, rate, 3, 2)
    ):
        together = jax.vmap(lambda rate, make=make: run(make(rate), dataset, 3).params)(rates)
        close(together["x"][1], run(make(0.3), dataset, 3).params["x"])


@pytest.mark.slow
def test_hypergradients_flow_through_rounds() -> None:
    # After two Mime rounds of K = 2 on B2: x = factor(eta)^2. The full pass has a traced number
    # of minibatches, so only forward mode goes through it.
    def final(rate: Any) -> Any:
        algorithm = fedax.mime(
            quadratic(), rate, base_optimizers.sgd(), num_local_steps=2, batch_size=1
        )
        return run(algorithm, two_clients(1.0), 2).params["x"][-1, 0]

    def exact(rate: Any) -> Any:
        return (1 - ((1 - (1 - 2 * rate) ** 2) / 2 + 2 * rate) / 2) ** 2

    close(jax.jvp(final, (0.1,), (1.0,))[1], jax.grad(exact)(0.1))


# ------------------------------------------------- (5) clients over a network


def over_the_wire(tree: Any) -> Any:
    """Bytes and back; the receiver knows the structure, as a deployed client would."""
    leaves, structure = jax.tree.flatten(tree)
    packed = flax.serialization.msgpack_serialize(
        {str(i): np.asarray(leaf) for i, leaf in enumerate(leaves)}
    )
    table = flax.serialization.msgpack_restore(packed)
    return structure.unflatten([table[str(i)] for i in range(len(leaves))])


def every_algorithm(model: Model) -> dict[str, FederatedAlgorithm]:
    return {
        "fedadam": fedadam(model, 0.1, 0.1, batch_size=2, num_local_epochs=2),
        "mime": mime(model, 0.1, 3, 2),
        "scaffold": scaffold(model, 0.1, None, 2),
        "maml": fedax.maml(model, 0.1, 0.1, num_local_steps=3, batch_size=2, weighting="uniform"),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedadam", "mime", "scaffold"])
def test_clients_that_answer_one_at_a_time(name: str) -> None:
    model, dataset = quadratic(3), ragged(SIZES)
    algorithm = every_algorithm(model)[name]
    cohort = np.array([4, 1, 3])  # any order
    params = model.init(KEY)
    simulated = algorithm.init(params)
    own = simulated_own = fresh_client_states(algorithm, params, 3)
    by_hand = algorithm.init(params)
    answer = [jax.jit(exchange.client) for exchange in algorithm.exchanges]
    clients = [jax.tree.map(lambda leaf, i=i: leaf[i], own) for i in range(3)]
    for _ in range(3):
        simulated, simulated_own, _ = jitted_round(
            algorithm, simulated, simulated_own, CohortReader(dataset)(cohort), KEY
        )
        for stage, exchange in enumerate(algorithm.exchanges):
            message = over_the_wire(exchange.broadcast(by_hand))
            total: Any = None
            weights = 0.0
            for i, client_id in enumerate(cohort):
                local = {k: jnp.asarray(v) for k, v in dataset.client(int(client_id)).items()}
                size = len(local["a"])  # only its own examples, so another capacity
                data = ClientData(local, jnp.int32(0), jnp.int32(size), size)
                key = jax.random.fold_in(KEY, by_hand.round_index)
                key = jax.random.fold_in(jax.random.fold_in(key, client_id), stage)
                reply = answer[stage](message, clients[i], data, key)
                clients[i] = over_the_wire(reply.client_state)
                upload, weight = over_the_wire((reply.upload, reply.weight))
                scaled = jax.tree.map(lambda leaf, w=weight: leaf * w, upload)
                total = scaled if total is None else jax.tree.map(np.add, total, scaled)
                weights += weight
            by_hand = exchange.server(
                by_hand,
                jax.tree.map(lambda leaf, w=weights: leaf / w, total),
                Participation(jnp.int32(6), jnp.int32(3), jnp.int32(3)),
            )
        by_hand = by_hand._replace(round_index=by_hand.round_index + 1)
    close(by_hand, simulated, 1e-13)
    for i, state in enumerate(clients):
        close(state, jax.tree.map(lambda leaf, i=i: leaf[i], simulated_own), 1e-13)


# ----------------------------------------------------- the engine, cornered


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedadam", "mime", "scaffold"])
def test_chunks_and_the_order_of_the_cohort_change_nothing(name: str) -> None:
    model, dataset = quadratic(3), ragged(SIZES)
    algorithm = every_algorithm(model)[name]
    params = model.init(KEY)
    own = fresh_client_states(algorithm, params, 5)
    own = jax.tree.map(lambda leaf: leaf + jnp.arange(5.0)[:, None], own)  # tell them apart
    cohort = np.array([0, 5, 3, 1, 2])
    reader = CohortReader(dataset)
    reference = jitted_round(algorithm, algorithm.init(params), own, reader(cohort), KEY)
    for clients_per_chunk in (3, 99):
        close(
            jitted_round(
                algorithm, algorithm.init(params), own, reader(cohort), KEY,
                clients_per_chunk=clients_per_chunk,
            ),
            reference,
        )
    order = np.array([3, 0, 4, 2, 1])
    own = jax.tree.map(lambda leaf: leaf[order], own)
    server, clients, _ = jitted_round(
        algorithm, algorithm.init(params), own, reader(cohort[order]), KEY, clients_per_chunk=3
    )
    close(server, reference[0])
    close(clients, jax.tree.map(lambda leaf: leaf[order], reference[1]))


@pytest.mark.slow
def test_packed_cohorts_are_resident_ones_to_the_bit_and_compile_a_handful_of_times() -> None:
    sizes = np.minimum(np.random.default_rng(1).zipf(1.3, 300), 1500)
    dataset = ragged(sizes.tolist(), 2)
    algorithm = fedadam(quadratic(2), 0.1, 0.01, batch_size=16, num_local_steps=20)
    results = []
    for resident_bytes, most in ((2**30, 2), (0, 6)):
        reader = CohortReader(dataset, resident_bytes)
        step = jax.jit(functools.partial(run_round, algorithm))
        state = algorithm.init(quadratic(2).init(KEY))
        shapes = set()
        for t in range(20):
            cohort = reader(sample_cohort(0, t, 300, 10))
            shapes.add((cohort.capacity, len(cohort.arrays["a"])))
            state, _, info = step(state, (), cohort, KEY)
            assert info.accepted.all()
        assert step._cache_size() == len(shapes) <= most
        results.append(np.asarray(state.params["x"]))
    assert results[0].tobytes() == results[1].tobytes()


def poisoned(sizes: list[int], *bad: int) -> FederatedDataset:
    dataset = ragged(sizes)
    arrays = {name: array.copy() for name, array in dataset.arrays.items()}
    for client in bad:
        arrays["b"][dataset.offsets[client] : dataset.offsets[client + 1]] = np.nan
    return FederatedDataset(arrays, dataset.offsets)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "clients_per_chunk"), [("fedadam", 1), ("mime", 2), ("scaffold", 2), ("maml", 1)]
)
def test_a_client_of_nan_counts_for_nothing(name: str, clients_per_chunk: int) -> None:
    # The round is the one of the others; the client keeps its state.
    model = quadratic(3)
    algorithm = every_algorithm(model)[name]
    params = model.init(KEY)
    dataset = poisoned(SIZES, 3)
    everyone, others = np.arange(6), np.array([0, 1, 2, 4, 5])
    own = fresh_client_states(algorithm, params, 6)
    own = jax.tree.map(lambda leaf: leaf + 0.25, own)
    server, clients, info = jitted_round(
        algorithm, algorithm.init(params), own, CohortReader(dataset)(everyone), KEY,
        clients_per_chunk=clients_per_chunk,
    )
    assert info.accepted.tolist() == [True, True, True, False, True, True]
    expected, expected_clients, _ = jitted_round(
        algorithm, algorithm.init(params), jax.tree.map(lambda leaf: leaf[others], own),
        CohortReader(dataset)(others), KEY,
    )
    close(server, expected)
    close(jax.tree.map(lambda leaf: leaf[others], clients), expected_clients)
    close(jax.tree.map(lambda leaf: leaf[3], clients), jax.tree.map(lambda leaf: leaf[3], own))


@pytest.mark.parametrize("name", ["mime", "scaffold"])
def test_a_round_of_nothing_but_nan_changes_nothing(name: str) -> None:
    model = quadratic(3)
    algorithm = every_algorithm(model)[name]
    dataset = poisoned(SIZES, *range(6))
    before = algorithm.init(model.init(KEY))
    own = fresh_client_states(algorithm, before.params, 6)
    cohort = CohortReader(dataset)(np.arange(6))
    server, clients, info = jitted_round(algorithm, before, own, cohort, KEY)
    assert not info.accepted.any()
    close(server, before._replace(round_index=before.round_index + 1))
    close(clients, own)


class Probe(NamedTuple):
    params: Any
    round_index: Any
    reports: Any


def probe(*answers: Callable[[Any], tuple[Any, Any]]) -> FederatedAlgorithm:
    """One exchange an answer: client number -> (upload, weight). States count the exchanges."""

    def exchange(answer: Callable[[Any], tuple[Any, Any]]) -> Exchange:
        def client(message: Any, count: Any, data: ClientData, key: Any) -> Reply:
            del message, key
            upload, weight = answer(data.examples(jnp.zeros(1, jnp.int32))["number"][0])
            return Reply(upload, weight, count + 1, {})

        return Exchange(
            lambda s: s.params, client,
            lambda s, mean, p: s._replace(params=mean, reports=p.num_reports),
        )

    return FederatedAlgorithm(
        lambda p: Probe(p, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)),
        lambda p: jnp.zeros((), jnp.int32),
        tuple(exchange(answer) for answer in answers),
    )


def run_probe(algorithm: FederatedAlgorithm, params: Any, num_clients: int = 4) -> Any:
    numbers = np.arange(float(num_clients))
    dataset = FederatedDataset({"number": numbers}, np.arange(num_clients + 1))
    cohort = CohortReader(dataset)(np.arange(num_clients))
    own = jnp.zeros(num_clients, jnp.int32)
    return run_round(algorithm, algorithm.init(params), own, cohort, KEY)


@pytest.mark.slow
def test_a_client_lost_in_the_first_exchange_stays_out_of_the_second() -> None:
    lost = probe(
        lambda i: (jnp.where(i == 0, jnp.nan, i), jnp.ones(())), lambda i: (i, jnp.ones(()))
    )
    server, counts, info = run_probe(lost, jnp.zeros(()))
    assert info.accepted.tolist() == [False, True, True, True]
    assert counts.tolist() == [0, 2, 2, 2]  # "keeps its old state"
    assert (float(server.params), int(server.reports)) == (2.0, 3)


def test_a_client_lost_in_the_second_exchange_keeps_the_state_from_before_the_round() -> None:
    lost = probe(
        lambda i: (i, jnp.ones(())), lambda i: (jnp.where(i == 0, jnp.nan, i), jnp.ones(()))
    )
    _, counts, info = run_probe(lost, jnp.zeros(()))
    assert info.accepted.tolist() == [False, True, True, True]
    assert counts.tolist() == [0, 2, 2, 2]


def test_zero_weights_leave_the_server_alone() -> None:
    server, _, _ = run_probe(probe(lambda i: (i + 5, jnp.zeros(()))), jnp.ones(()))
    assert (float(server.params), int(server.round_index)) == (1.0, 1)


def test_a_client_of_weight_zero_among_others() -> None:
    one_of_four = probe(lambda i: (i, jnp.where(i == 3, 2.0, 0.0)))
    server, _, _ = run_probe(one_of_four, jnp.zeros(()))
    assert (float(server.params), int(server.reports)) == (3.0, 1)


@pytest.mark.parametrize("num_clients", [4, 600])
def test_a_mean_in_bfloat16_is_a_mean(num_clients: int) -> None:
    # 600 ones average to 1. A bfloat16 sum stops at 256 and would give 0.43.
    ones = probe(lambda i: (jnp.ones((), jnp.bfloat16), jnp.ones(())))
    server, _, _ = run_probe(ones, jnp.zeros((), jnp.bfloat16), num_clients)
    assert server.params.dtype == jnp.bfloat16
    assert float(server.params) == 1.0


def test_tokens_are_counted_beyond_256_in_bfloat16() -> None:
    def loss(params: Any, batch: Any, key: Any) -> Any:
        losses = (batch["number"][:, None] * params["x"][None]).sum(-1)
        return losses, jnp.ones_like(losses)

    data = ClientData({"number": jnp.ones(600, jnp.bfloat16)}, jnp.int32(0), jnp.int32(600), 600)
    params = {"x": jnp.ones(2, jnp.bfloat16)}
    result = train_locally(
        params, data, KEY, gradient=loss_gradient(quadratic()._replace(loss=loss)),
        optimizer=optax.sgd(1.0), learning_rate=0.0, batch_size=1, num_steps=600,
    )
    assert (float(result.loss.weight), float(result.loss.mean)) == (600.0, 2.0)


@pytest.mark.slow
def test_one_client_of_one_example_and_a_minibatch_larger_than_every_client() -> None:
    # x <- x - eta (a x + b) with the client's own mean, whatever the minibatch is padded with.
    model, rate = quadratic(3), 0.1
    dataset = ragged(SIZES)
    for client in (2, 3):
        size = SIZES[client]
        table = dataset.client(client)
        alone = FederatedDataset(table, np.array([0, size]))
        expected = 1 - rate * (table["a"].mean(0) + table["b"].mean(0))
        after = run(fedavg(model, rate, batch_size=64), alone, 1).params["x"][0]
        close(after, expected)
        algorithm = fedavg(model, rate, batch_size=64)
        within, _, _ = jitted_round(
            algorithm, algorithm.init(model.init(KEY)), (),
            CohortReader(dataset)(np.array([client])), KEY,
        )
        close(within.params["x"], expected)


def test_without_local_steps_nothing_moves() -> None:
    model, dataset = quadratic(3), ragged(SIZES)
    for options in ({"num_local_steps": 0}, {"num_local_steps": 3, "num_local_epochs": 0}):
        after = run(fedavg(model, 0.1, **options), dataset, 2).params["x"]
        close(after, np.ones((2, 3)), 0)


def test_an_epoch_of_n_over_b_steps_sees_every_example_once() -> None:
    data = ClientData({"z": jnp.arange(100)}, jnp.int32(30), jnp.int32(11), 64)

    def collect(seen: Any, batch: Minibatch, key: Any) -> Any:
        return seen.at[batch.examples["z"]].add(batch.mask.astype(int))

    for epochs in (1, 3):
        seen = fold_minibatches(
            collect, jnp.zeros(100, int), data, KEY, batch_size=4,
            num_steps=count_local_steps(data, 4, num_local_epochs=epochs),
        )
        expected = np.zeros(100, int)
        expected[30:41] = epochs
        assert seen.tolist() == expected.tolist()


@pytest.mark.slow
def test_without_jit_the_numbers_are_the_same() -> None:
    model, dataset = quadratic(3), ragged([1, 3])
    algorithm = mime(model, 0.1, 1, 2)
    cohort = CohortReader(dataset)(np.arange(2))
    state = algorithm.init(model.init(KEY))
    step = functools.partial(run_round, algorithm, state, (), cohort, KEY)
    compiled = jax.jit(step)()
    with jax.disable_jit():
        close(step(), compiled)


@pytest.mark.slow
def test_shuffles_are_uniform_and_do_not_know_the_capacity() -> None:
    def order(key: Any, capacity: int) -> Any:
        data = ClientData({"z": jnp.arange(4)}, jnp.int32(0), jnp.int32(4), capacity)
        return fold_minibatches(
            lambda carry, batch, key: batch.examples["z"], jnp.zeros(4, int), data, key,
            batch_size=4, num_steps=1,
        )

    keys = jax.random.split(KEY, 12_000)
    tight, wide = (np.asarray(jax.vmap(lambda k, c=c: order(k, c))(keys)) for c in (4, 37))
    assert (tight == wide).all()
    _, counts = np.unique(tight, axis=0, return_counts=True)
    assert len(counts) == 24
    chi_square = ((counts - 500) ** 2 / 500).sum()
    assert chi_square < 49.7  # 23 degrees of freedom, p = 0.001


def test_cohorts_are_uniform() -> None:
    counts: dict[tuple[int, ...], int] = {}
    for t in range(12_000):
        cohort = tuple(sample_cohort(7, t, 6, 3).tolist())
        counts[cohort] = counts.get(cohort, 0) + 1
    assert len(counts) == 20
    chi_square = sum((c - 600) ** 2 / 600 for c in counts.values())
    assert chi_square < 43.8  # 19 degrees of freedom, p = 0.001


def test_float32_under_x64_stays_float32() -> None:
    model, dataset = quadratic(3), ragged(SIZES)
    model = model._replace(init=lambda key: {"x": jnp.ones(3, jnp.float32)})
    narrow = FederatedDataset(
        {k: v.astype(np.float32) for k, v in dataset.arrays.items()}, dataset.offsets
    )
    state = train(
        Task(model, narrow), fedadam(model, 0.1, 0.1, batch_size=2), num_rounds=2, cohort_size=3
    ).state.server_state
    assert {leaf.dtype.name for leaf in jax.tree.leaves(state)} == {"float32", "int32"}


def test_a_state_may_be_started_from_twice() -> None:
    model, dataset = quadratic(3), ragged(SIZES)
    algorithm = scaffold(model, 0.1, None, 2)
    task = Task(model, dataset)
    start = initial_state(task, algorithm)
    runs = [
        train(task, algorithm, num_rounds=3, cohort_size=4, evaluate_every=0, state=start).params
        for _ in range(2)
    ]
    close(runs[0], runs[1], 0)


def test_large_populations_with_large_models_need_memory_for_those_that_took_part() -> None:
    # SCAFFOLD on Stack Overflow tags: 342,477 clients of 5,000,500 parameters.
    store = ClientStore({"c": np.zeros(5_000_500, np.float32)}, 342_477)
    store.write(np.array([342_476]), {"c": np.ones((1, 5_000_500), np.float32)})
    assert store.read(np.array([7, 342_476]))["c"][:, -1].tolist() == [0.0, 1.0]


def test_weakly_typed_initial_parameters_compile_once() -> None:
    model = quadratic(3)
    traces = []

    def loss(params: Any, batch: Any, key: Any) -> Any:
        traces.append(1)
        return model.loss(params, batch, key)

    weak = model._replace(init=lambda key: {"x": jnp.full(3, 1.0)}, loss=loss)
    task, counts = Task(weak, ragged(SIZES)), []
    for _ in simulate(task, fedavg(weak), num_rounds=3, cohort_size=3, evaluate_every=0):
        counts.append(len(traces))
    assert counts[0] == counts[2]


def test_decaying_local_steps_round_up() -> None:
    # K_t = ceil(K_0 d^t), so K_1 = ceil(9.95) = 10; rounding down gives 9.
    from fedax.optimizers.schedules import exponential_decay

    model = quadratic(3)
    algorithm = fedavg(model, 0.1, num_local_steps=exponential_decay(10.0, 0.995), batch_size=2)
    history = train(
        Task(model, ragged(SIZES)), algorithm, num_rounds=2, cohort_size=3, evaluate_every=0
    ).history
    assert history["num_local_steps"].tolist() == [10.0, 10.0]


def test_seeds_that_differ_beyond_32_bits_differ() -> None:
    model = quadratic(3)
    model = model._replace(init=lambda key: {"x": jax.random.normal(key, (3,), jnp.float32)})
    task = Task(model, ragged(SIZES))
    algorithm = fedavg(model)
    with jax.enable_x64(False):
        draws = {
            tuple(initial_state(task, algorithm, seed).server_state.params["x"].tolist())
            for seed in (3, 3 + 2**32, 3 + 2**40)
        }
    assert len(draws) == 3


@pytest.mark.slow
@pytest.mark.alone
def test_many_clients_at_a_time_shuffle_once_an_epoch() -> None:
    # Under vmap the shuffle must not be redone at every local step, which costs 20 times as much.
    sizes = np.random.default_rng(0).integers(20, 400, 10).tolist()
    algorithm = fedavg(quadratic(2), 0.1, batch_size=4)
    state = algorithm.init(quadratic(2).init(KEY))
    cohort = CohortReader(ragged(sizes, 2))(np.arange(10))
    seconds = {}
    for clients_per_chunk in (1, 10):
        times = []
        for _ in range(6):
            start = time.perf_counter()
            jax.block_until_ready(
                jitted_round(algorithm, state, (), cohort, KEY, clients_per_chunk=clients_per_chunk)
            )
            times.append(time.perf_counter() - start)
        seconds[clients_per_chunk] = min(times)
    assert seconds[10] < 4 * seconds[1]


@pytest.mark.slow
def test_the_loss_gradient_of_an_empty_minibatch_is_zero() -> None:
    batch = Minibatch({"a": jnp.ones((2, 1)), "b": jnp.ones((2, 1))}, jnp.zeros(2, bool))
    loss, grads = loss_gradient(quadratic())({"x": jnp.ones(1)}, batch, KEY)
    close((loss, grads), (Loss(0.0, 0.0), {"x": np.zeros(1)}), 0)


# ---------------------------------------------------------------- a parameter without numbers


@pytest.mark.parametrize("name", ["scaffold", "krum", "compressed"])
def test_an_array_without_numbers_changes_nothing(name):
    """One of its axes may be 0; what is kept of each client is still stacked."""
    make = {
        "scaffold": fedax.scaffold,
        "krum": lambda *rest, **local: fedax.robust(
            fedax.fedavg(*rest, **local), fedax.robust_means.krum()
        ),
        "compressed": lambda *rest, **local: fedax.compressed(
            fedax.fedavg(*rest, **local), fedax.codecs.top_k(0.5)
        ),
    }[name]
    plain, data = quadratic(3), ragged([2, 4, 3, 5])
    also = plain._replace(init=lambda key: {**plain.init(key), "none": jnp.zeros((0, 4))})
    found = [
        train(Task(model, data), make(model, 0.1, num_local_steps=2), num_rounds=3, cohort_size=4,
              progress=False).params
        for model in (also, plain)
    ]
    assert found[0]["none"].shape == (0, 4)
    np.testing.assert_array_equal(found[0]["x"], found[1]["x"])
