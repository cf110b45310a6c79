"""Who takes part: the laws of the samplers, dropouts, availability, and what a round makes of it.

Thresholds: a chi-square statistic with k degrees of freedom lies below `chi_square_limit(k)`, and
a mean within 4.5 standard errors, with probability above 1 - 1e-5; seeds are fixed.
"""

import functools
import importlib
import itertools
import json
import math
import shutil
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax import FederatedDataset, simulate, train
from fedax.algorithm import at_round
from fedax.cli.main import run_command
from fedax.data import CohortReader
from fedax.data.cohort_data import NOBODY, STAYS
from fedax.experiment.metrics import read_metrics
from fedax.rounds.cohort import client_key, run_round, run_rounds
from fedax.rounds.sampling import part_of_the_day, sample_cohort, sampler
from fedax.rounds.state import initial_state, run_key
from fedax.tasks.registry import TASKS, TaskInfo
from problems import identical, largest_difference, quadratic_task

SIZES = np.array([3, 7, 1, 12, 5, 8, 2, 9, 4, 6])
module = importlib.import_module("fedax.rounds.simulate")  # fedax.simulate is the function
WAYS = ("uniform", "with_replacement", "by_weight", "cyclic", "full")


def chi_square_limit(degrees, z=4.5):
    """Wilson and Hilferty's quantile of the chi-square distribution at z standard deviations."""
    spread = 2 / (9 * degrees)
    return degrees * (1 - spread + z * math.sqrt(spread)) ** 3


def asked(cohort):
    return cohort.client_ids[cohort.dropped_at != NOBODY]


def check_counts(counts, expected, degrees):
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert statistic < chi_square_limit(degrees)
    assert statistic > degrees / 4  # nor is it too even to be random


@pytest.mark.parametrize("case", ["uniform", "reached by guessing", "reached by search"])
def test_without_replacement_clients_and_pairs_are_uniform(case):
    """Inclusions have variance p (1 - p) and covariance -p (1 - p) / (n - 1)."""
    num_clients, m, num_rounds = 20, 6, 4000
    if case == "uniform":
        draw = sampler("uniform", np.ones(num_clients), m, seed=1)
        everyone = np.arange(num_clients)
    else:  # 20 clients of 60 can be reached, or of 50,000, which guessing hardly finds
        every = 3 if case == "reached by guessing" else 2500
        everyone = np.arange(num_clients) * every
        draw = sampler(
            "uniform", np.ones(num_clients * every), m, seed=1,
            available=lambda ids, t: ids % every == 0,
        )
        num_rounds = 4000 if case == "reached by guessing" else 1500
    seen = np.zeros((num_rounds, num_clients))
    for t in range(num_rounds):
        ids = asked(draw(t, 1))
        assert len(set(ids.tolist())) == m
        seen[t, np.searchsorted(everyone, ids)] = 1
        assert (everyone[np.searchsorted(everyone, ids)] == ids).all()
    p = m / num_clients
    deviation = ((seen.sum(0) - num_rounds * p) ** 2).sum() / (num_rounds * p * (1 - p))
    assert deviation * (num_clients - 1) / num_clients < chi_square_limit(num_clients - 1)
    pair = p * (m - 1) / (num_clients - 1)
    together = (seen.T @ seen)[np.triu_indices(num_clients, 1)] / num_rounds
    assert np.abs(together - pair).max() < 5.5 * math.sqrt(pair * (1 - pair) / num_rounds)
    # Rounds are independent: the overlap of one with the next is hypergeometric.
    overlap = (seen[1:] * seen[:-1]).sum(1)
    variance = m * p * (1 - p) * (num_clients - m) / (num_clients - 1)
    assert abs(overlap.mean() - m * p) < 4.5 * math.sqrt(variance / num_rounds)


@pytest.mark.parametrize("way", ["with_replacement", "by_weight"])
def test_draws_with_replacement_are_multinomial(way):
    cohort_size, num_rounds = 4, 8000
    draw = sampler(way, SIZES, cohort_size, seed=2)
    ids = np.stack([draw(t, 1).client_ids for t in range(num_rounds)])
    p = SIZES / SIZES.sum() if way == "by_weight" else np.full(10, 0.1)
    check_counts(np.bincount(ids.ravel(), minlength=10), p * ids.size, 9)
    # Two of a round are the same client with probability sum p^2: no pair is avoided.
    pairs = [(a, b) for a in range(cohort_size) for b in range(a)]
    same = np.mean([ids[:, a] == ids[:, b] for a, b in pairs], axis=0)
    error = same.std() / math.sqrt(num_rounds)
    assert abs(same.mean() - (p**2).sum()) < 4.5 * error


@pytest.mark.quick
def test_cyclic_passes_ask_everyone_once_in_a_new_order():
    draw = sampler("cyclic", np.ones(10), cohort_size=4, seed=3)
    rounds = [asked(draw(t, 1)).tolist() for t in range(3 * 200)]
    assert [len(ids) for ids in rounds[:3]] == [4, 4, 2]
    passes = [rounds[3 * i : 3 * i + 3] for i in range(200)]
    for one in passes:
        assert sorted(itertools.chain(*one)) == list(range(10))
    assert len({str(one) for one in passes}) > 180  # there are 3,150 of them
    first = np.bincount(list(itertools.chain(*(one[0] for one in passes))), minlength=10)
    # As `without replacement`: 4 of 10, 200 times.
    assert ((first - 80) ** 2).sum() / (200 * 0.4 * 0.6) * 0.9 < chi_square_limit(9)


@pytest.mark.quick
@pytest.mark.parametrize("way", WAYS)
def test_a_cohort_depends_on_seed_and_round_alone(way):
    def cohorts(seed, rounds):
        draw = sampler(way, SIZES, 4, seed, available=part_of_the_day(0.5), dropout=0.3)
        return {t: [array.tolist() for array in draw(t, 2)] for t in rounds}

    forward = cohorts(0, range(30))
    backward = cohorts(0, reversed(range(30)))
    assert forward == backward
    assert cohorts(0, [17])[17] == forward[17]
    others = cohorts(1, range(30))
    assert sum(forward[t] != others[t] for t in range(30)) > 25
    assert len({str(cohort) for cohort in forward.values()}) > 25


KEY = jax.random.key(5)


def seconds_each(function, repeats=7, calls=100):
    times = []
    for _ in range(repeats):
        start = time.process_time()
        for t in range(calls):
            function(t)
        times.append((time.process_time() - start) / calls)
    return min(times)


@pytest.mark.parametrize("way", ["uniform", "with_replacement", "by_weight", "available"])
@pytest.mark.alone
def test_the_cost_of_a_cohort_does_not_grow_with_the_population(way):
    seconds = {}
    for num_clients in (1_000, 342_477):
        draw = sampler(
            "uniform" if way == "available" else way, np.ones(num_clients, np.int64), 50, 0,
            available=part_of_the_day(0.5) if way == "available" else None, dropout=0.1,
        )
        seconds[num_clients] = seconds_each(lambda t, draw=draw: draw(t, 1))
    assert seconds[342_477] < 3 * seconds[1_000]


@pytest.mark.slow
def test_nor_does_the_cost_of_a_round():
    runs = []
    for num_clients in (1_000, 342_477):
        task = quadratic_task(sizes=(1,), dimension=1)
        arrays = {k: np.repeat(a, num_clients, axis=0) for k, a in task.train.arrays.items()}
        data = FederatedDataset(arrays, np.arange(num_clients + 1))
        algorithm = fedax.scaffold(task.model)
        runs.append(simulate(
            task._replace(train=data, test=None), algorithm, num_rounds=60, dropout=0.1
        ))
    # In turns, so that both meet whatever else the machine does.
    reports = zip(*runs, strict=True)
    seconds = [[report.metrics["seconds"] for report in pair] for pair in reports]
    few, many = np.min(seconds, axis=0)
    assert many < 2 * few


@functools.cache
def compiled(algorithm, chunk, diagnostics):
    return jax.jit(
        functools.partial(
            run_round, algorithm, clients_per_chunk=chunk, diagnostics=diagnostics
        )
    )


def one_round(task, algorithm, ids, dropped_at=None, chunk=1, states=None, diagnostics=False):
    ids = np.asarray(ids)
    state = initial_state(task, algorithm)
    states = state.client_store.read(ids) if states is None else states
    dropped_at = None if dropped_at is None else np.asarray(dropped_at)
    cohort = CohortReader(task.train)(ids, dropped_at)
    return compiled(algorithm, chunk, diagnostics)(state.server_state, states, cohort, KEY)


@pytest.mark.slow
def test_a_client_drawn_twice_counts_twice_and_draws_afresh():
    task = quadratic_task()
    algorithm = fedax.fedavg(task.model, 0.1, batch_size=2)
    state, _, info = one_round(task, algorithm, [3, 3, 5])
    (exchange,) = algorithm.exchanges
    start = initial_state(task, algorithm).server_state
    reader = CohortReader(task.train)
    moved = []
    for i, repeat in ((3, 0), (3, 1), (5, 0)):
        cohort = reader(np.array([i]))
        data = fedax.ClientData(
            cohort.arrays, cohort.starts[0], cohort.num_examples[0], cohort.capacity
        )
        own = client_key(KEY, 0, i, 0, repeat)
        reply = jax.jit(exchange.client)(exchange.broadcast(start), (), data, own)
        moved.append(np.asarray(reply.upload.pseudo_gradient["x"]))
    assert np.abs(moved[0] - moved[1]).max() > 1e-3
    weights = [12, 12, 8]
    expected = start.params["x"] - np.average(moved, axis=0, weights=weights)
    np.testing.assert_allclose(state.params["x"], expected, rtol=1e-12)
    assert int(info.num_reports) == 3


def remembering(task, exchanges=1):
    """FedAvg whose clients keep the number that they drew in their last exchange."""
    (exchange,) = fedax.fedavg(task.model).exchanges

    def client(message, state, data, key):
        reply = exchange.client(message, state, data, key)
        return reply._replace(client_state=jax.random.uniform(key))

    return fedax.fedavg(task.model)._replace(
        init_client=lambda params: jnp.zeros(()),
        exchanges=(exchange._replace(client=client),) * exchanges,
    )


@pytest.mark.quick
@pytest.mark.parametrize("repeat", [0, 2])
def test_a_clients_key_is_folded_of_round_client_exchange_and_repeat(repeat):
    numbers = (7, 2**31 - 1, 1, *([repeat] if repeat else []))
    expected = functools.reduce(jax.random.fold_in, numbers, KEY)
    found = jax.jit(client_key)(KEY, jnp.int32(7), jnp.int32(2**31 - 1), 1, jnp.int32(repeat))
    assert jax.random.key_data(found).tolist() == jax.random.key_data(expected).tolist()


@pytest.mark.slow
def test_of_a_client_drawn_twice_the_first_state_is_kept_if_it_came_back():
    task = quadratic_task()
    algorithm = remembering(task)

    def own(seed, t):
        return [3, 3, 5]

    def dropped_at(seed):
        return sampler(own, SIZES, 3, seed, dropout=0.5)(0, 1).dropped_at.tolist()

    for pattern in ([STAYS] * 3, [STAYS, 0, STAYS], [0, STAYS, STAYS]):
        seed = next(seed for seed in range(200) if dropped_at(seed) == pattern)
        options = {"num_rounds": 1, "sampling": own, "seed": seed, "evaluate_every": 0}
        result = train(task, algorithm, dropout=0.5, **options)
        key = run_key(seed, 1)
        drawn = float(jax.random.uniform(client_key(key, 0, 3, 0, 0)))
        kept = float(result.state.client_store.read(np.array([3]))[0])
        assert kept == (drawn if pattern[0] == STAYS else 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize(
    "options",
    [
        {"sampling": "uniform"}, {"sampling": "cyclic"}, {"sampling": "full"},
        {"sampling": "with_replacement"}, {"sampling": "with_replacement", "dropout": 0.2},
        {"sampling": "by_weight"},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_scaffolds_c_is_the_mean_of_all_c_i_however_cohorts_are_drawn(option, options):
    """So it converges to the minimiser, however often a client stands in a cohort."""
    sizes = (3, 7, 1, 5, 2)
    task = quadratic_task(sizes)
    algorithm = fedax.scaffold(
        task.model, 0.1, control_option=option, weighting="uniform", batch_size=8,
        num_local_steps=5, order="sequential",
    )
    rounds = 400 if options["sampling"] in ("uniform", "with_replacement") else 60
    for report in simulate(
        task, algorithm, num_rounds=rounds, cohort_size=3, evaluate_every=0, **options
    ):
        state = report.state
    every = state.client_store.read(np.arange(5))["x"]
    control = np.asarray(state.server_state.control["x"])
    np.testing.assert_allclose(control, every.mean(0), atol=1e-13)
    if rounds == 400:
        clients = [task.train.client(i) for i in range(5)]
        A = np.mean([c["A"].mean(0) for c in clients], axis=0)
        b = np.mean([np.einsum("nij,nj->i", c["A"], c["c"]) / len(c["c"]) for c in clients], axis=0)
        np.testing.assert_allclose(state.server_state.params["x"], np.linalg.solve(A, b), atol=1e-6)


@pytest.mark.slow
def test_by_weight_with_uniform_weights_is_unbiased():
    """Its expectation over all ordered draws is the full round weighted by examples, exactly."""
    sizes = np.array([3, 7, 1])
    task = quadratic_task(sizes=tuple(sizes))
    options = {"client_learning_rate": 0.1, "batch_size": 100, "num_local_epochs": 3}
    by_weight = fedax.fedavg(task.model, weighting="uniform", **options)
    p = sizes / sizes.sum()
    expected = one_round(task, fedax.fedavg(task.model, **options), [0, 1, 2])[0].params["x"]
    mean = sum(
        p[i] * p[j] * one_round(task, by_weight, [i, j])[0].params["x"]
        for i, j in itertools.product(range(3), repeat=2)
    )
    np.testing.assert_allclose(mean, expected, rtol=1e-12)


EXACT = {
    "fedyogi": fedax.fedyogi,
    "scaffold": fedax.scaffold,
    "mime": fedax.mime,
    "elastic": lambda model: fedax.elastic(fedax.fedavg(model), model),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXACT)
def test_the_round_of_the_others(name):
    """Clients that drop out at once, or empty places, leave no trace in what the others do."""
    task = quadratic_task()
    algorithm = EXACT[name](task.model)
    alone = one_round(task, algorithm, [1, 4, 8])
    last = len(algorithm.exchanges)
    gone = [STAYS, 0, STAYS, 0, last, NOBODY]
    mixed = one_round(task, algorithm, [1, 3, 4, 5, 8, 8], gone)
    assert identical(mixed[0], alone[0])
    kept = jax.tree.map(lambda leaf: leaf[np.array([0, 2, 4])], mixed[1])
    assert identical(kept, alone[1])
    assert mixed[2].dropped.tolist() == [False, True, False, True, False, False]
    assert int(mixed[2].num_reports) == int(alone[2].num_reports) == 3
    assert int(mixed[2].num_local_steps) == int(alone[2].num_local_steps)
    for value, like in zip(mixed[2].info.values(), alone[2].info.values(), strict=True):
        assert identical(value, like)
    if name == "mime":
        chunked = one_round(task, algorithm, [1, 3, 4, 5, 8, 8], gone, chunk=4)
        assert largest_difference(chunked[0].params, alone[0].params) < 1e-12
    # And when everyone leaves, nothing changes at all.
    before = initial_state(task, algorithm)
    state, states, info = one_round(task, algorithm, [1, 3, 4, 5, 8, 8], [0, 0, 0, 0, 0, NOBODY])
    assert int(state.round_index) == 1
    assert identical(
        state, at_round(before.server_state, before.server_state.round_index + 1)
    )
    assert identical(states, before.client_store.read(np.array([1, 3, 4, 5, 8, 8])))
    assert all(np.isnan(mean) and weight == 0 for mean, weight in info.info.values())
    assert (int(info.num_reports), int(info.num_local_steps)) == (0, 0)
    assert bool(info.finite)


def client_gradient(task, i, x):
    client = task.train.client(i)
    return np.mean([A @ (x - c) for A, c in zip(client["A"], client["c"], strict=True)], axis=0)


@pytest.mark.slow
def test_a_client_that_drops_between_the_exchanges_of_mime_gave_its_gradient_only():
    """Mime with SGD and full batches, by hand: c is the mean of 3 clients, x that of 2."""
    task = quadratic_task()
    algorithm = fedax.mime(
        task.model, 0.1, fedax.base_optimizers.sgd(), batch_size=100, num_local_steps=3,
        weighting="uniform",
    )
    x = np.asarray(initial_state(task, algorithm).server_state.params["x"])
    control = np.mean([client_gradient(task, i, x) for i in (1, 3, 5)], axis=0)
    ends = []
    for i in (1, 5):
        y = x
        for _ in range(3):
            y = y - 0.1 * (client_gradient(task, i, y) - client_gradient(task, i, x) + control)
        ends.append(y)
    state, _, info = one_round(task, algorithm, [1, 3, 5], [STAYS, 1, STAYS], chunk=2)
    np.testing.assert_allclose(state.control["x"], control, rtol=1e-12)
    np.testing.assert_allclose(state.params["x"], np.mean(ends, axis=0), rtol=1e-12)
    assert info.dropped.tolist() == [False, True, False]
    assert int(info.num_reports) == 2
    assert int(info.num_local_steps) == 6


@pytest.mark.quick
def test_a_client_that_drops_out_keeps_its_state():
    task = quadratic_task()
    algorithm = fedax.scaffold(task.model)
    states = {"x": jax.random.normal(jax.random.key(1), (3, 3))}
    _, after, _ = one_round(task, algorithm, [1, 3, 5], [STAYS, 0, STAYS], states=states)
    assert identical(after["x"][1], states["x"][1])
    assert np.abs(after["x"] - states["x"]).min(axis=1)[[0, 2]].min() > 1e-6
    # Of two exchanges, the second missed: what it kept in the first is forgotten too.
    two = remembering(task, exchanges=2)
    _, after, _ = one_round(task, two, [1, 3, 5], [STAYS, 1, 0], states=jnp.full(3, 7.0))
    assert after[1:].tolist() == [7.0, 7.0]
    assert 0 < after[0] < 1


@pytest.mark.slow
def test_dropouts_have_their_probability_and_are_reported_by_name():
    task = quadratic_task()
    names = np.array([f"client {i}" for i in range(10)])
    data = FederatedDataset(task.train.arrays, task.train.offsets, names)
    algorithm = fedax.scaffold(task.model, num_local_steps=1)
    reports = list(
        simulate(
            task._replace(train=data, test=None), algorithm, num_rounds=300, cohort_size=5,
            dropout=0.2,
        )
    )
    number = np.array([report.metrics["num_dropped"] for report in reports])
    assert [len(report.dropped) for report in reports] == number.tolist()
    assert set(itertools.chain(*(report.dropped for report in reports))) == set(names.tolist())
    for report in reports:
        metrics = report.metrics
        assert metrics["num_reports"] == 5 - metrics["num_dropped"] == metrics["total_local_steps"]
        assert report.rejected == []
    assert abs(number.sum() - 300) < 4.5 * math.sqrt(1500 * 0.2 * 0.8)
    # Of two exchanges each is as likely the first that is missed.
    draw = sampler("full", SIZES, 10, 0, dropout=0.5)
    at = np.concatenate([draw(t, 2).dropped_at for t in range(400)])
    counts = np.array([(at == 0).sum(), (at == 1).sum(), (at == STAYS).sum()])
    assert ((counts - [1000, 1000, 2000]) ** 2 / [1000, 1000, 2000]).sum() < chi_square_limit(2)


def test_part_of_the_day():
    ids = np.arange(20_000)
    available = part_of_the_day(0.25, seed=3)
    hours = np.stack([available(ids, t) for t in range(24)])
    assert set(hours.sum(0).tolist()) == {6}
    # In every hour a quarter, and each client at its own time of day.
    assert np.abs(hours.mean(1) - 0.25).max() < 4.5 * math.sqrt(0.25 * 0.75 / 20_000)
    begins = np.argmax(hours & ~np.roll(hours, 1, axis=0), axis=0)
    check_counts(np.bincount(begins, minlength=24), np.full(24, 20_000 / 24), 23)
    assert (available(ids, 24) == hours[0]).all()
    other = part_of_the_day(0.25, seed=4)(ids, 0)  # another seed, other times
    share = (other & hours[0]).mean()
    assert abs(share - 1 / 16) < 4.5 * math.sqrt(1 / 16 * 15 / 16 / 20_000)
    assert part_of_the_day(1.0)(ids, 7).all()
    long = part_of_the_day(0.5, rounds_per_day=1000)
    assert (long(ids, 10) == long(ids, 11)).mean() > 0.99


@pytest.mark.parametrize("way", ["with_replacement", "by_weight", "cyclic", "full"])
def test_who_is_not_reached_counts_as_dropped_unless_the_cohort_is_chosen_among_the_others(way):
    available = part_of_the_day(0.5)
    draw = sampler(way, SIZES, 4, 0, available=available)
    always = sampler(way, SIZES, 4, 0)
    for t in range(10):
        cohort = draw(t, 2)
        ids = asked(cohort)
        assert (cohort.client_ids == always(t, 2).client_ids).all()
        dropped = cohort.dropped_at[: len(ids)] == 0
        assert (dropped == ~available(ids, t)).all()


@pytest.mark.slow
def test_fewer_available_than_asked_for_compile_nothing_anew(monkeypatch):
    """All of them are asked; a cohort keeps its size, with empty places."""
    task = quadratic_task()._replace(test=None)
    count = [3, 5, 0, 1, 4, 2, 10]

    def available(ids, t):
        return ids < count[t]

    traces = []

    def counted(*arguments, **options):
        traces.append(1)
        return run_rounds(*arguments, **options)

    monkeypatch.setattr(module, "run_rounds", counted)
    algorithm = fedax.scaffold(task.model, num_local_steps=2, batch_size=100)
    options = {"num_rounds": 7, "cohort_size": 5, "diagnostics": True, "evaluate_every": 0}
    reports = list(simulate(task, algorithm, available=available, **options))
    assert len(traces) == 1
    assert [r.metrics["num_reports"] for r in reports] == [3, 5, 0, 1, 4, 2, 5]
    assert [r.metrics["num_dropped"] for r in reports] == [0] * 7
    assert all(r.dropped == r.rejected == [] for r in reports)
    sent = fedax.communication(algorithm, task.model, task.train.client(0))
    assert [r.metrics["bytes_up"] for r in reports] == [n * sent.bytes_up for n in
                                                        (3, 5, 0, 1, 4, 2, 5)]
    assert [r.metrics["bytes_down"] for r in reports] == [n * sent.bytes_down for n in
                                                          (3, 5, 0, 1, 4, 2, 5)]
    assert np.isnan(reports[2].metrics["train_loss"])
    assert reports[2].metrics["total_local_steps"] == 0
    # The same clients from a sampler of one's own, in cohorts without empty places.
    chosen = [sampler("uniform", SIZES, 5, 0, available=available)(t, 1) for t in range(7)]

    def own(seed, t):
        return asked(chosen[t])

    end = train(task, algorithm, num_rounds=2, cohort_size=5, sampling=own).params["x"]
    assert identical(end, reports[1].state.server_state.params["x"])


def test_the_number_that_was_asked_leaves_empty_places_out():
    task = quadratic_task()
    (exchange,) = fedax.fedavg(task.model).exchanges

    def server(state, mean, participation):
        return state._replace(params={"x": jnp.stack(participation).astype(float)})

    algorithm = fedax.fedavg(task.model)._replace(exchanges=(exchange._replace(server=server),))
    state, _, _ = one_round(task, algorithm, [1, 3, 5, 5], [STAYS, 0, STAYS, NOBODY])
    assert state.params["x"].tolist() == [10, 3, 2]


GARBAGE = {
    "text": ("ada", r"must return client indices, .* but returned 'ada'\."),
    "nothing": (None, "must return client indices"),
    "nobody": ([], "must return client indices"),
    "fractions": ([0.5, 1.0], "must return client indices"),
    "a mask": (np.ones(10, bool), "must return client indices"),
    "a table": ([[1, 2]], "must return client indices"),
    "ragged": ([[1], [1, 2]], "must return client indices"),
    "too large": ([3, 10], r"returned client 10, but the clients are 0 to 9\."),
    "negative": ([3, -1], r"returned client -1, but the clients are 0 to 9\."),
}


@pytest.mark.parametrize("case", GARBAGE)
def test_what_a_sampler_of_ones_own_must_not_give(case):
    value, sentence = GARBAGE[case]
    draw = sampler(lambda seed, t: value, SIZES, 3, 0)
    with pytest.raises(ValueError, match=sentence):
        draw(0, 1)


def test_bad_arguments_are_sentences():
    task = quadratic_task()
    algorithm = fedax.fedavg(task.model)

    for options, sentence in (
        ({"sampling": "cyclical"}, "Did you mean 'cyclic'"),
        ({"dropout": 1.0}, r"dropout must be .* below 1, but is 1\.0"),
        ({"dropout": -0.1}, r"dropout must be .* but is -0\.1"),
        ({"available": 0.5}, r"available must be a function .* part_of_the_day\(0\.5\), .* is 0.5"),
        ({"available": lambda ids, t: True}, r"for each of the 12 clients .* returned bool\[\]"),
        ({"available": lambda ids, t: ids, "sampling": "full"}, r"10 clients .* int64\[10\]"),
        ({"sampling": "cyclic", "cohort_size": 11}, "cohort of 11 clients cannot"),
    ):
        with pytest.raises(ValueError, match=sentence):
            list(simulate(task, algorithm, num_rounds=1, **{"cohort_size": 3} | options))
    for share in (0, 1.5):
        with pytest.raises(ValueError, match=f"share must be .* but is {share}"):
            part_of_the_day(share)
    with pytest.raises(ValueError, match="rounds_per_day must be"):
        part_of_the_day(0.5, rounds_per_day=0)
    for way in ("with_replacement", "full"):
        with pytest.raises(ValueError, match="cohort_size must be a whole number"):
            sampler(way, SIZES, 0, 0)
    assert len(sampler("with_replacement", SIZES, 30, 0)(0, 1).client_ids) == 30


@pytest.mark.slow
def test_full_participation_asks_everyone_and_uniform_is_sample_cohort():
    draw = sampler("full", SIZES, 3, 0)
    assert [draw(t, 1).client_ids.tolist() for t in (0, 5)] == [list(range(10))] * 2
    assert (sampler("uniform", SIZES, 3, 7)(4, 1).client_ids == sample_cohort(7, 4, 10, 3)).all()
    task = quadratic_task()
    (report,) = simulate(task, fedax.fedavg(task.model), num_rounds=1, sampling="full")
    assert report.metrics["num_reports"] == 10


@pytest.mark.slow
def test_local_steps_are_counted_exactly():
    """E ceil(n_i / B) each; their sum is whole even where a float32 mean is not."""
    task = quadratic_task()
    algorithm = fedax.fedavg(task.model, batch_size=4, num_local_epochs=3)
    (report,) = simulate(task, algorithm, num_rounds=1, sampling="full", clients_per_chunk=3)
    steps = 3 * np.ceil(SIZES / 4)
    assert report.metrics["total_local_steps"] == steps.sum() == 54
    assert report.metrics["num_local_steps"] == pytest.approx(steps.mean())
    (exchange,) = algorithm.exchanges

    def client(message, state, data, key):
        reply = exchange.client(message, state, data, key)
        steps = data.num_examples.astype(jnp.float32) + 9_999_990
        return reply._replace(info={"num_local_steps": (steps, jnp.float32(1))})

    many = algorithm._replace(exchanges=(exchange._replace(client=client),))
    (report,) = simulate(task, many, num_rounds=1, sampling="full")
    assert report.metrics["total_local_steps"] == 10 * 9_999_990 + SIZES.sum()  # odd, above 2^24


@pytest.fixture
def registry(monkeypatch):
    """A task for the command line that takes no time."""
    info = TaskInfo("quadratics", "none", ("small",), lambda model: quadratic_task())
    monkeypatch.setitem(TASKS, "quadratic", info)


def run_line(out, algorithm, *settings):
    line = ["run", "quadratic", algorithm, "--preset", "none", "--out", str(out), "--set",
            "client_learning_rate=0.1", "batch_size=2", *settings]
    assert run_command(line) == 0
    return out


def strict_json(text):
    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def timeless(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert [strict_json(line) for line in lines] == read_metrics(folder)
    return [{k: v for k, v in m.items() if "seconds" not in k} for m in read_metrics(folder)]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["scaffold", "mime"])
def test_a_run_of_mostly_empty_rounds(registry, tmp_path, capsys, algorithm):
    folder = run_line(
        tmp_path / "run", algorithm, "dropout=0.9", "cohort_size=1", "num_rounds=12",
        "evaluate_every=4", "diagnostics=true",
    )
    rounds = timeless(folder)
    empty = [m for m in rounds if m["num_reports"] == 0]
    assert len(empty) > 6
    assert all(m["num_dropped"] == 1 and m["effective_server_step"] is None for m in empty)
    if algorithm != "mime":
        assert all(m["train_loss"] is None and m["total_local_steps"] == 0 for m in empty)
    assert rounds[0]["num_reports"] == 0  # a first round without anybody
    assert all(m["gradient_dissimilarity"] in (None, 0) for m in rounds[3::4])
    summary = strict_json((folder / "summary.json").read_text())
    assert summary["num_dropped"] == sum(m["num_dropped"] for m in rounds) >= len(empty)
    assert summary["total_local_steps"] == sum(m["total_local_steps"] for m in rounds)
    assert summary["bytes_up_per_client"] > 0
    assert "NaN" not in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("scaffold", ("sampling=cyclic", "dropout=0.2", "availability=0.5", "diagnostics=true")),
        ("mime", ("availability=0.3", "dropout=0.3")),
    ],
)
def test_a_resumed_run_equals_the_uninterrupted_one(registry, tmp_path, algorithm, settings):
    whole = run_line(
        tmp_path / "whole", algorithm, "num_rounds=12", "cohort_size=4", "evaluate_every=4",
        "checkpoint_every=3", *settings,
    )
    folder = tmp_path / "killed in round 11"
    shutil.copytree(whole, folder)
    shutil.rmtree(folder / "checkpoints" / "round-00000012")
    (folder / "summary.json").unlink()
    assert run_command(["run", "--resume", str(folder)]) == 0
    assert timeless(folder) == timeless(whole)
    arrays = []
    for path in (folder, whole):
        newest = path / "checkpoints" / "round-00000012"
        rows = {file.name: file.read_bytes() for file in newest.glob("*.npy")}
        with np.load(newest / "state.npz") as state:
            arrays.append({k: state[k].tobytes() for k in state.files} | rows)
    assert arrays[0] == arrays[1]
    rounds = timeless(whole)
    assert sum(m["num_dropped"] for m in rounds[9:]) > 0
    assert len({m["num_reports"] for m in rounds}) > 2
