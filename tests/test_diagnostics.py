"""Diagnostics against NumPy on quadratics, what they cost, and what algorithms send."""

import dataclasses
import functools
import itertools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax import FederatedDataset, simulate
from fedax.data import CohortReader
from fedax.data.cohort_data import NOBODY, STAYS
from fedax.measures.communication import communication
from fedax.measures.dissimilarity import dissimilarity
from fedax.models import character_lstm
from fedax.rounds.cohort import run_round
from fedax.rounds.sampling import part_of_the_day, sampler
from fedax.rounds.state import initial_state
from problems import identical, quadratic_task

RATE, STEPS = 0.1, 3
KEY = jax.random.key(5)
GEOMETRY = ("client_drift", "update_cosine", "pseudo_gradient_norm", "effective_server_step")


def client_quadratic(task, i):
    """The mean of a client's quadratics: its Hessian, and b with gradient H x - b."""
    client = task.train.client(i)
    b = np.mean([A @ c for A, c in zip(client["A"], client["c"], strict=True)], axis=0)
    return client["A"].mean(0), b


def model_deltas(task, ids, x):
    """x_K - x of full-batch gradient descent at each client."""
    deltas = []
    for i in ids:
        H, b = client_quadratic(task, i)
        y = x
        for _ in range(STEPS):
            y = y - RATE * (H @ y - b)
        deltas.append(y - x)
    return np.array(deltas)


def geometry(deltas, weights, step):
    """What a round reports, in the words of `fedax.diagnostics`."""
    units = [d / np.linalg.norm(d) for d in deltas]
    pseudo_gradient = -np.average(deltas, axis=0, weights=weights)
    return {
        "client_drift": np.mean([np.linalg.norm(d) for d in deltas]),
        "update_cosine": np.mean([a @ b for a, b in itertools.combinations(units, 2)]),
        "pseudo_gradient_norm": np.linalg.norm(pseudo_gradient),
        "effective_server_step": np.linalg.norm(step) / np.linalg.norm(pseudo_gradient),
    }


def poisoned(task, client):
    arrays = {name: array.copy() for name, array in task.train.arrays.items()}
    arrays["c"][task.train.offsets[client] : task.train.offsets[client + 1]] = np.nan
    return task._replace(train=FederatedDataset(arrays, task.train.offsets))


@functools.cache
def compiled(algorithm, chunk=1, diagnostics=True):
    return jax.jit(
        functools.partial(run_round, algorithm, clients_per_chunk=chunk, diagnostics=diagnostics)
    )


def info_of(result):
    return {name: float(mean) for name, (mean, _) in result[2].info.items()}


@pytest.mark.parametrize(
    ("chunk", "weighting"), [(1, "num_examples"), (2, "uniform"), (5, "num_examples")]
)
def test_the_geometry_of_two_rounds_is_that_of_numpy(chunk, weighting):
    """One client sends NaN, one drops out, one place is empty: none of them counts."""
    task = quadratic_task()
    sick = poisoned(task, 4)
    algorithm = fedax.fedavgm(
        task.model, RATE, 0.5, momentum=0.9, batch_size=100, num_local_steps=STEPS,
        weighting=weighting,
    )
    ids = np.array([1, 2, 4, 6, 7, 9, 9])
    dropped_at = np.array([STAYS, STAYS, STAYS, 0, STAYS, STAYS, NOBODY])
    cohort = CohortReader(sick.train)(ids, dropped_at)
    state = initial_state(task, algorithm).server_state
    momentum = 0.0
    good = [1, 2, 7, 9]
    weights = task.train.client_sizes[good] if weighting == "num_examples" else np.ones(4)
    for _ in range(2):
        x = np.asarray(state.params["x"])
        result = compiled(algorithm, chunk)(state, (), cohort, KEY)
        deltas = model_deltas(task, good, x)
        momentum = 0.9 * momentum + np.average(deltas, axis=0, weights=weights)
        expected = geometry(deltas, weights, 0.5 * momentum)
        found = info_of(result)
        for name in GEOMETRY:
            assert found[name] == pytest.approx(expected[name], rel=1e-10), name
        state = result[0]
    np.testing.assert_allclose(state.params["x"], x + 0.5 * momentum, rtol=1e-12)


@pytest.mark.slow
def test_in_a_method_of_two_exchanges_the_updates_are_those_of_the_second():
    task = quadratic_task()
    algorithm = fedax.mime(
        task.model, RATE, fedax.base_optimizers.sgd(), batch_size=100, num_local_steps=STEPS
    )
    ids, gone = np.array([1, 3, 5, 9]), np.array([STAYS, 1, STAYS, STAYS])
    state = initial_state(task, algorithm).server_state
    x = np.asarray(state.params["x"])
    sizes = task.train.client_sizes
    control = np.average(
        [H @ x - b for H, b in (client_quadratic(task, i) for i in ids)], axis=0, weights=sizes[ids]
    )
    deltas = []
    for i in (1, 5, 9):
        H, _ = client_quadratic(task, i)
        y = x
        for _ in range(STEPS):
            y = y - RATE * (H @ (y - x) + control)
        deltas.append(y - x)
    mean = np.average(deltas, axis=0, weights=sizes[[1, 5, 9]])
    expected = geometry(deltas, sizes[[1, 5, 9]], mean)
    found = info_of(compiled(algorithm)(state, (), CohortReader(task.train)(ids, gone), KEY))
    for name in GEOMETRY:
        assert found[name] == pytest.approx(expected[name], rel=1e-10), name
    assert found["effective_server_step"] == pytest.approx(1, rel=1e-12)


@pytest.mark.slow
def test_what_has_no_value_is_nan():
    """One client has no pair; clients that do not move have no direction, nor has their mean."""
    task = quadratic_task()
    state = initial_state(task, fedax.fedavg(task.model)).server_state
    reader = CohortReader(task.train)
    one = info_of(compiled(fedax.fedavg(task.model))(state, (), reader(np.array([3])), KEY))
    assert np.isnan(one["update_cosine"])
    assert one["client_drift"] == pytest.approx(one["pseudo_gradient_norm"])
    still = fedax.fedavg(task.model, client_learning_rate=0.0)
    found = info_of(compiled(still)(state, (), reader(np.array([1, 2, 3])), KEY))
    assert (found["client_drift"], found["pseudo_gradient_norm"]) == (0, 0)
    assert np.isnan([found["update_cosine"], found["effective_server_step"]]).all()
    gone = reader(np.array([1, 2]), np.array([0, 0]))
    found = info_of(compiled(fedax.fedavg(task.model))(state, (), gone, KEY))
    assert np.isnan([found[name] for name in GEOMETRY]).all()
    # A sum of gradients at gamma = 0 is a pseudo-gradient, though no client moves.
    large_batch = fedax.local_update(task.model, 0.0, 0.25, batch_size=100, num_local_steps=2)
    found = info_of(compiled(large_batch)(state, (), reader(np.array([1, 2])), KEY))
    assert found["client_drift"] == 0
    assert found["pseudo_gradient_norm"] > 0
    assert found["effective_server_step"] == pytest.approx(0.25)


ALGORITHMS = {
    "fedyogi": fedax.fedyogi,
    "scaffold": fedax.scaffold,
    "mime": fedax.mime,
    "elastic": lambda model: fedax.elastic(fedax.fedavg(model), model),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "chunk"), [("fedyogi", 3), ("scaffold", 1), ("mime", 3), ("elastic", 1)]
)
def test_diagnostics_change_no_bit(name, chunk):
    task = quadratic_task()
    ends = []
    for diagnostics in (False, True):
        *_, last = simulate(
            task, ALGORITHMS[name](task.model), num_rounds=6, cohort_size=5, dropout=0.2,
            clients_per_chunk=chunk, diagnostics=diagnostics,
            evaluate_every=3 if name == "fedyogi" else 0,
        )
        ends.append(last)
    off, on = ends
    assert identical(on.state.server_state, off.state.server_state)
    everyone = np.arange(10)
    assert identical(*(end.state.client_store.read(everyone) for end in ends))
    added = {*GEOMETRY, "bytes_down", "bytes_up"}
    if name == "fedyogi":
        added |= {"gradient_dissimilarity", "hessian_dissimilarity"}
    assert set(on.metrics) - set(off.metrics) == added
    same = {name for name in off.metrics if "seconds" not in name}
    assert {key: on.metrics[key] for key in same} == {key: off.metrics[key] for key in same}


def small_lstm():
    task = fedax.load_task("shakespeare", model="small")
    algorithm = fedax.fedavg(task.model, 0.5, batch_size=4, num_local_steps=10)
    return task._replace(test=None), algorithm


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.alone
def test_diagnostics_of_the_lstm_change_no_bit_and_cost_little():
    """Less than 10% of a round on a machine of our own, a third where others share it."""
    task, algorithm = small_lstm()
    runs = {
        on: simulate(task, algorithm, num_rounds=8, cohort_size=5, diagnostics=on, evaluate_every=0)
        for on in (False, True)
    }
    seconds, reports = {False: [], True: []}, {}
    for _ in range(8):
        for on, run in runs.items():
            reports[on] = next(run)
            seconds[on].append(reports[on].metrics["seconds"])
    assert identical(*(reports[on].state.server_state for on in (False, True)))
    assert min(seconds[True]) < 1.33 * min(seconds[False])
    assert all(np.isfinite(reports[True].metrics[name]) for name in GEOMETRY)


def test_diagnostics_that_are_off_are_not_in_the_program():
    """The round is, word for word, that of clients that never say where their model went."""
    task = quadratic_task()
    algorithm = fedax.fedavg(task.model)
    (exchange,) = algorithm.exchanges

    def silent(*arguments):
        return exchange.client(*arguments)._replace(model_delta=None)

    quiet = algorithm._replace(exchanges=(exchange._replace(client=silent),))
    state = initial_state(task, algorithm).server_state
    cohort = CohortReader(task.train)(np.array([1, 2, 3]))
    texts = [
        jax.jit(functools.partial(run_round, which, diagnostics=on))
        .lower(state, (), cohort, KEY).as_text()
        for which, on in ((algorithm, False), (quiet, False), (algorithm, True))
    ]
    assert texts[0] == texts[1]
    assert len(texts[2]) > len(texts[0])


def hessians_and_gradients(task, ids, x):
    pairs = [client_quadratic(task, i) for i in ids]
    return np.array([H for H, _ in pairs]), np.array([H @ x - b for H, b in pairs])


def exact_dissimilarity(hessians, gradients):
    spread = ((gradients - gradients.mean(0)) ** 2).sum(1).mean()
    return spread, np.abs(np.linalg.eigvalsh(hessians - hessians.mean(0))).max()


def scalar_model():
    def loss(params, batch, key):
        values = batch["a"] * params["x"] ** 2 + batch["b"] * params["x"]
        return values, jnp.ones_like(values)

    return fedax.Model(None, loss, None, {})


@pytest.mark.parametrize("G", [1.0, 10.0, 100.0])
@pytest.mark.parametrize("x", [0.0, 1.0, -0.5])
def test_the_quadratics_of_paper_003(G, x):
    """f_1 = x^2 + G x and f_2 = -G x: |x + G|^2 and 1 (section 6.1)."""
    arrays = {"a": np.array([1.0, 0.0]), "b": np.array([G, -G])}
    cohort = CohortReader(FederatedDataset(arrays, np.array([0, 1, 2])))(np.array([0, 1]))
    found = jax.jit(functools.partial(dissimilarity, scalar_model()))(
        {"x": jnp.full(1, x)}, cohort, KEY
    )
    np.testing.assert_allclose(found, [(x + G) ** 2, 1, x**2], rtol=1e-12)
    # Equation 7: the mean of the squared gradients is 2 x^2 + 2 x G + G^2, and grad f is x.
    for B2 in (1.0, 2.0, 9.0):
        np.testing.assert_allclose(
            found.G2(B2), max(0, 2 * x**2 + 2 * x * G + G**2 - B2 * x**2), rtol=1e-12
        )


@pytest.mark.slow
@pytest.mark.parametrize("max_examples", [None, 2])
def test_delta_per_example_is_of_the_farthest_example(max_examples):
    """(A2) of Karimireddy et al. 2020; the mean Hessian is that of the clients."""
    rng = np.random.default_rng(3)
    sizes = np.array([3, 1, 4])
    roots = rng.normal(size=(8, 4, 4))
    A = 2 * np.eye(4) + 0.03 * roots @ roots.swapaxes(1, 2)
    A[1] += np.diag([5, 0.5, 0.5, 0.5])  # so far from the mean that every start finds it
    arrays = {"A": A, "c": rng.normal(size=(8, 4))}
    offsets = np.append(0, np.cumsum(sizes))
    cohort = CohortReader(FederatedDataset(arrays, offsets))(np.arange(3))
    groups = [
        A[a:b] if max_examples is None else A[a:b][np.arange(min(2, b - a)) * (b - a) // min(
            2, b - a)]
        for a, b in itertools.pairwise(offsets)
    ]
    mean = np.mean([group.mean(0) for group in groups], 0)
    delta = max(np.linalg.norm(one - mean, 2) for group in groups for one in group)
    model = quadratic_task(dimension=4).model
    found = jax.jit(functools.partial(
        dissimilarity, model, num_iterations=200, max_examples=max_examples, per_example=True,
    ))({"x": jnp.zeros(4)}, cohort, KEY)
    assert float(found.hessian_dissimilarity) == pytest.approx(delta, rel=1e-6)
    clients = max(np.linalg.norm(group.mean(0) - mean, 2) for group in groups)
    assert delta > 1.2 * clients


@functools.partial(jax.jit, static_argnames="batch_size")
def measure(x, cohort, num_iterations, batch_size=20):
    """Of `quadratic_model`s, which differ in nothing that matters here."""
    return dissimilarity(
        quadratic_task().model, {"x": x}, cohort, KEY,
        num_iterations=num_iterations, batch_size=batch_size,
    )


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_dissimilarity_on_random_quadratics(seed):
    """G^2 exactly; delta from below, never falling, in the end the largest eigenvalue."""
    task = quadratic_task(dimension=6, seed=seed)
    ids = np.array([0, 2, 3, 5, 8])
    x = np.random.default_rng(seed).normal(size=6)
    spread, delta = exact_dissimilarity(*hessians_and_gradients(task, ids, x))
    cohort = CohortReader(task.train)(ids)
    found = [measure(x, cohort, n) for n in (1, 5, 500)]
    np.testing.assert_allclose([f.gradient_dissimilarity for f in found], spread, rtol=1e-10)
    deltas = [float(f.hessian_dissimilarity) for f in found]
    assert deltas == sorted(deltas)
    assert 0.2 * delta < deltas[0]
    assert 0.75 * delta < deltas[1]
    assert deltas[2] == pytest.approx(delta, rel=1e-6)


def test_delta_is_of_the_farthest_client_not_of_many_nearer_ones():
    """One client with norm 1 along one axis, twenty with 0.5 along another.

    The power iteration on their mean square would find the twenty: 20 * 0.5^2 > 1^2.
    """
    roots = np.zeros((21, 4, 4))
    roots[0, 0, 0] = 1.0
    roots[1::2, 1, 1], roots[2::2, 1, 1] = 0.5, -0.5
    arrays = {"A": roots + 2 * np.eye(4), "c": np.zeros((21, 4))}
    cohort = CohortReader(FederatedDataset(arrays, np.arange(22)))(np.arange(21))
    _, delta = exact_dissimilarity(arrays["A"], np.zeros((21, 4)))
    found = measure(jnp.zeros(4), cohort, 60)
    assert float(found.hessian_dissimilarity) == pytest.approx(delta, rel=1e-6)
    assert delta == pytest.approx(20 / 21)


@pytest.mark.slow
def test_batches_empty_clients_and_packing_change_only_rounding():
    task = quadratic_task()
    ids = np.array([1, 3, 5, 7])
    x = jnp.asarray([0.3, -1.0, 2.0])
    cohort = CohortReader(task.train)(ids)
    expected = measure(x, cohort, 5)
    packed = CohortReader(task.train, resident_bytes=0)(ids)
    np.testing.assert_allclose(measure(x, packed, 5, batch_size=3), expected, rtol=1e-12)

    def counting(data, counted):
        sizes = data.num_examples * jnp.asarray(counted, jnp.int32)
        return dataclasses.replace(data, num_examples=sizes)

    more = CohortReader(task.train)(np.array([1, 2, 3, 5, 7]))
    found = measure(x, counting(more, [1, 0, 1, 1, 1]), 5)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    one = measure(x, counting(cohort, [0, 1, 0, 0]), 5)
    np.testing.assert_allclose(one[:2], [0, 0], atol=1e-12)
    assert np.isnan(measure(x, counting(cohort, [0] * 4), 5)).all()


@pytest.mark.slow
def test_dissimilarity_of_the_lstm_with_its_own_gradient():
    """Against the whole Hessian by central differences of the gradient, in float64."""
    model = character_lstm(num_units=2, num_layers=1, embedding_size=2, vocabulary_size=4)
    params = jax.tree.map(lambda p: 3 * p.astype(jnp.float64), model.init(jax.random.key(1)))
    rng = np.random.default_rng(0)
    offsets = np.array([0, 3, 5, 9])
    tokens = rng.integers(1, 4, size=(9, 6)).astype(np.uint8)
    cohort = CohortReader(FederatedDataset({"tokens": tokens}, offsets))(np.arange(3))
    flat, restore = jax.flatten_util.ravel_pytree(params)

    def gradients(point):
        def loss(point, rows):
            losses, weights = model.loss(restore(point), {"tokens": rows}, KEY)
            return (losses * weights).sum() / weights.sum()

        pairs = itertools.pairwise(offsets)
        return jnp.stack([jax.grad(loss)(point, tokens[a:b]) for a, b in pairs])

    h = 1e-5
    columns = jax.jit(
        jax.vmap(lambda e: (gradients(flat + h * e) - gradients(flat - h * e)) / (2 * h))
    )(jnp.eye(flat.size))
    hessians = np.asarray(columns).transpose(1, 0, 2)
    hessians = (hessians + hessians.transpose(0, 2, 1)) / 2
    spread, delta = exact_dissimilarity(hessians, np.asarray(jax.jit(gradients)(flat)))
    found = jax.jit(functools.partial(dissimilarity, model, num_iterations=80, batch_size=4))(
        params, cohort, KEY
    )
    assert float(found.gradient_dissimilarity) == pytest.approx(spread, rel=1e-9)
    assert float(found.hessian_dissimilarity) == pytest.approx(delta, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("most", [10, 3])
def test_a_run_reports_the_dissimilarity_of_those_who_took_part_to_the_end(most, monkeypatch):
    """Not of a client of NaN, nor of those that dropped out, at the model after the round.

    At most so many clients are measured, evenly from the smallest to the largest.
    """
    monkeypatch.setattr(sys.modules["fedax.rounds.measurements"], "MEASURED_CLIENTS", most)
    task = quadratic_task()
    sick = poisoned(task, 4)
    algorithm = fedax.fedavg(task.model, batch_size=4)
    rounds = list(
        simulate(
            sick, algorithm, num_rounds=6, sampling="full", dropout=0.3, seed=3,
            evaluate_every=2, diagnostics=True,
        )
    )
    assert [("hessian_dissimilarity" in r.metrics) for r in rounds] == [False, True] * 3
    assert all(4 in map(int, r.rejected) or 4 in map(int, r.dropped) for r in rounds)
    assert any(r.dropped for r in rounds[1::2])
    for report in rounds[1::2]:
        ids = [i for i in range(10) if i != 4 and str(i) not in report.dropped]
        ids = sorted(ids, key=lambda i: task.train.client_sizes[i])
        places = np.linspace(0, len(ids) - 1, min(most, len(ids))).round().astype(int)
        ids = [ids[place] for place in places]
        x = np.asarray(report.state.server_state.params["x"])
        spread, delta = exact_dissimilarity(*hessians_and_gradients(task, ids, x))
        assert report.metrics["gradient_dissimilarity"] == pytest.approx(spread, rel=1e-10)
        assert 0.4 * delta < report.metrics["hessian_dissimilarity"] < delta * (1 + 1e-12)


@pytest.mark.slow
def test_bytes_of_a_round_are_those_of_the_clients_that_were_asked():
    """A client that misses an exchange was sent its message and nothing later."""
    task = quadratic_task()
    algorithm = fedax.mime(task.model, base=fedax.base_optimizers.sgd())
    options = {"seed": 1, "dropout": 0.4, "available": part_of_the_day(0.5)}
    reports = list(
        simulate(
            task, algorithm, num_rounds=8, cohort_size=6, diagnostics=True, evaluate_every=0,
            **options,
        )
    )
    draw = sampler("uniform", task.train.client_sizes, 6, **options)
    params, rate = 3 * 8, 8  # float64 [3] and one learning rate
    for t, report in enumerate(reports):
        at = draw(t, 2).dropped_at
        asked, in_second = (at >= 0).sum(), (at >= 1).sum()
        assert report.metrics["bytes_down"] == asked * params + in_second * (params + rate)
        assert report.metrics["bytes_up"] == in_second * params + (at > 1).sum() * params
    assert len({report.metrics["bytes_up"] for report in reports}) > 3


def copies(model):
    """Algorithm -> copies of the parameters (down, up), by hand.

    The table of Chen et al. 2023: FedAvg, FedAvgM, FedProx, AdaOpt 2x, SCAFFOLD 4x, Elastic 3x.
    Down x; up x_i - x. SCAFFOLD: c and c_i beside them. Elastic: Omega_k up. Mime: down x, c and
    the statistics s (0, 1, 2 copies for SGD, momentum, Adam), up the full gradient and x_i - x.
    MimeLite: no c down. MimeMVR: down x, the model before it and the direction, up two gradients
    and x_i - x. Averaged client optimizers send their two moments both ways.
    """
    base = fedax.base_optimizers
    averaged = fedax.fedavg(model)
    return {
        "fedavg": (averaged, 1, 1),
        "fedavgm": (fedax.fedavgm(model), 1, 1),
        "fedprox": (fedax.fedprox(model), 1, 1),
        "fedadagrad": (fedax.fedadagrad(model), 1, 1),
        "fedadam": (fedax.fedadam(model), 1, 1),
        "fedyogi": (fedax.fedyogi(model), 1, 1),
        "scheduled": (fedax.fedsgd(model, steps_decay=0.9), 1, 1),
        "scaffold": (fedax.scaffold(model), 2, 2),
        "scaffold option I": (fedax.scaffold(model, control_option="I"), 2, 2),
        "elastic": (fedax.elastic(averaged, model), 1, 2),
        "elastic mime": (fedax.elastic(fedax.mime(model, base=base.sgd()), model), 2, 3),
        "mime sgd": (fedax.mime(model, base=base.sgd()), 2, 2),
        "mime sgdm": (fedax.mime(model, base=base.sgdm()), 3, 2),
        "mime adam": (fedax.mime(model, base=base.adam()), 4, 2),
        "cmime adam": (fedax.cmime(model, base=base.adam()), 4, 2),
        "mimelite sgd": (fedax.mimelite(model, base=base.sgd()), 1, 2),
        "mimelite sgdm": (fedax.mimelite(model, base=base.sgdm()), 2, 2),
        "mimelite adam": (fedax.mimelite(model, base=base.adam()), 3, 2),
        "mimemvr": (fedax.mimemvr(model), 3, 3),
        "server only": (fedax.server_only(model, base=base.adam()), 1, 1),
        "local update": (fedax.local_update(model), 1, 1),
        "local adam": (fedax.local_adam(model), 3, 3),
        "centralised": (fedax.centralised(model), 0, 0),
    }


@pytest.mark.slow
def test_what_algorithms_send_is_counted_as_in_the_papers():
    model = character_lstm(32, 1)
    tokens = {"tokens": np.zeros((5, 81), np.uint8)}
    size = 4 * sum(leaf.size for leaf in jax.tree.leaves(model.init(KEY)))
    for name, (algorithm, down, up) in copies(model).items():
        sent = communication(algorithm, model, tokens)
        assert sent.model_bytes == size
        for whole, number in ((sent.bytes_down, down), (sent.bytes_up, up)):
            assert whole // size == number, name
            assert whole % size <= 40, name  # learning rates, numbers of steps
        assert sent.copies == pytest.approx(down + up, abs=0.01)
        assert sent.with_cohort(np.array([STAYS, STAYS, NOBODY]), {}) == {
            "bytes_down": 2 * sent.bytes_down, "bytes_up": 2 * sent.bytes_up
        }


@pytest.mark.quick
def test_server_only_reports_its_step_and_no_drift():
    task = quadratic_task()
    algorithm = fedax.server_only(task.model, 0.3, fedax.base_optimizers.sgd())
    history = fedax.train(task, algorithm, num_rounds=3, evaluate_every=0, diagnostics=True).history
    np.testing.assert_allclose(history["effective_server_step"], 0.3, rtol=1e-12)
    assert (history["pseudo_gradient_norm"] > 0).all()
    with pytest.raises(KeyError, match="client_drift"):
        _ = history["client_drift"]
