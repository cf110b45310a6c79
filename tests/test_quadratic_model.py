"""Quadratic models of learning problems: exact on quadratics, and what they say elsewhere."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import fedax
from fedax import FederatedDataset, Model, Task, simulate
from fedax.algorithms.registry import ALGORITHMS, WRAPPERS
from fedax.data import CohortReader
from fedax.experiment import advice, run
from fedax.experiment.advice import _message, advice_tables, run_advice
from fedax.experiment.build import algorithm_settings, build_algorithm
from fedax.experiment.config import RunConfig, resolve
from fedax.experiment.errors import ConfigError
from fedax.experiment.folder import RunError
from fedax.measures.krylov import krylov_space
from fedax.measures.quadratic_model import advise, quadratic_model
from fedax.models.quadratic import quadratic
from fedax.models.supervised import classification, regression
from fedax.rounds.state import initial_state
from fedax.tasks.registry import TASKS, TaskInfo
from fedax.theory.errors import SingularError
from fedax.theory.population import QuadraticPopulation
from fedax.theory.surrogate import surrogate
from problems import quadratic_task

KEY = jax.random.key(3)


def cohort_of(data):
    return CohortReader(data)(np.arange(data.num_clients))


def quadratics(matrices, linear, sizes=None):
    """A cohort of clients x^T A_i x / 2 + b_i^T x, each with so many times the same example."""
    sizes = np.ones(len(linear), int) if sizes is None else np.asarray(sizes)
    arrays = {"A": np.repeat(matrices, sizes, 0), "b": np.repeat(linear, sizes, 0)}
    return cohort_of(FederatedDataset(arrays, np.concatenate([[0], np.cumsum(sizes)])))


def measure(matrices, linear, x=None, sizes=None, **options):
    x = np.zeros(linear.shape[1]) if x is None else x
    cohort = quadratics(matrices, linear, sizes)
    return quadratic_model(quadratic(jnp.asarray(x)), {"x": jnp.asarray(x)}, cohort, KEY, **options)


def random_quadratics(dimension, num_clients, seed=0, outlier=1.0):
    """Spectra from 0.1 to 2, and one eigenvalue of `outlier`."""
    rng = np.random.default_rng(seed)
    spectrum = np.append(np.linspace(0.1, 2, dimension - 1), outlier)
    shared = np.linalg.qr(rng.normal(size=(dimension, dimension)))[0]
    turns = [np.linalg.qr(shared + 0.02 * rng.normal(size=shared.shape))[0]
             for _ in range(num_clients)]
    return (
        np.stack([(turn * spectrum) @ turn.T for turn in turns]),
        rng.normal(size=(num_clients, dimension)),
    )


@functools.cache
def least_squares():
    """A task of five clients with three features, and their data."""
    rng = np.random.default_rng(1)
    truth = rng.normal(size=3)
    clients = []
    for size in (6, 9, 14, 20, 11):
        x = rng.normal(size=(size, 3)) * [1.0, 0.8, 1.3] + rng.normal(size=3) * 0.2
        own = truth + 0.7 * rng.normal(size=3)
        clients.append({"x": x, "y": x @ own + rng.normal(size=size)})
    model = regression(lambda key: jnp.zeros(3), lambda params, x: x @ params)
    return Task(model, FederatedDataset.from_clients(clients), None, "regression"), clients


@pytest.mark.quick
@pytest.mark.parametrize("weighting", ["num_examples", "uniform"])
def test_linear_regression_is_modelled_exactly(weighting):
    task, clients = least_squares()
    x = jnp.asarray([0.5, -1.0, 2.0])
    found = quadratic_model(task.model, x, cohort_of(task.train), KEY, weighting=weighting)
    expected = QuadraticPopulation.from_regression(
        [c["x"] for c in clients], [c["y"] for c in clients], weighting=weighting
    )
    model = found.population
    np.testing.assert_allclose(model.probabilities, expected.probabilities, rtol=1e-12)
    for name in ("mu", "L", "sigma_A", "sigma_c", "delta"):
        assert getattr(model, name) == pytest.approx(getattr(expected, name), rel=1e-8), name
    assert (found.mu, found.L) == pytest.approx((expected.mu, expected.L), rel=1e-8)
    np.testing.assert_allclose(found.params_at(model.minimiser), expected.minimiser, rtol=1e-8)
    assert found.agreement == pytest.approx(1, rel=1e-8)
    assert (found.damping, found.lifted_share, found.negative_share) == (0, 0, 0)
    gamma, K = 0.8 / expected.L, 8
    for row in advise(found, gamma, K):
        exact = surrogate(expected, row.client_learning_rate, row.num_local_steps)
        assert row.gap == pytest.approx(exact.gap, rel=1e-8)
        assert row.excess_loss == pytest.approx(exact.excess_loss, rel=1e-8)
        assert row.condition_number == pytest.approx(exact.condition_number, rel=1e-8)


def test_fedavg_stops_where_the_model_says():
    task, _ = least_squares()
    x = jnp.asarray([0.5, -1.0, 2.0])
    found = quadratic_model(task.model, x, cohort_of(task.train), KEY)
    gamma, K = 0.8 / found.L, 8
    algorithm = fedax.fedavg(task.model, gamma, batch_size=20, num_local_steps=K)
    *_, last = simulate(task, algorithm, num_rounds=60, sampling="full", evaluate_every=0)
    stops = surrogate(found.population, gamma, K).minimiser
    trained = last.state.server_state.params
    np.testing.assert_allclose(trained, found.params_at(stops), rtol=1e-8)
    gap = np.linalg.norm(trained - found.params_at(found.population.minimiser))
    assert gap > 0.01
    assert advise(found, gamma, K)[0].gap == pytest.approx(gap, rel=1e-7)


@pytest.mark.parametrize("outlier", [1.0, 200.0])
def test_the_subspace_is_a_krylov_space_and_its_eigenvalues_are_within(outlier):
    """40 parameters, 24 directions. With an outlier Lanczos without care loses orthogonality."""
    matrices, linear = random_quadratics(40, 3, outlier=outlier)
    x = np.random.default_rng(5).normal(size=40)
    sizes = np.array([1, 2, 3])
    p = sizes / 6
    found = measure(matrices, linear, x, sizes, num_directions=24, num_lanczos_steps=14)
    V = found.basis
    np.testing.assert_allclose(V @ V.T, np.eye(24), atol=1e-13)
    np.testing.assert_allclose(found.matrices, V @ matrices @ V.T, atol=1e-12 * outlier)
    gradients = matrices @ x + linear
    np.testing.assert_allclose(found.linear, gradients @ V.T, atol=1e-11 * outlier)
    np.testing.assert_allclose(found.probabilities, p, rtol=1e-12)
    # The starts and the first images of them: of five starts, one depends on the others.
    mean = np.tensordot(p, matrices, 1)
    start = p @ np.einsum("nij,nj->ni", matrices, gradients)
    for vector in (*gradients, start, mean @ start, mean @ mean @ start, *(gradients @ mean)):
        assert np.linalg.norm(vector - (vector @ V.T) @ V) < 1e-11 * np.linalg.norm(vector)
    true = np.linalg.eigvalsh(mean)
    found_mean = found.mean_spectrum
    assert true[0] * (1 - 1e-12) < found_mean[0] < true[0] + 0.02 * 2
    assert true[-1] * 0.99 < found_mean[-1] < true[-1] * (1 + 1e-12)
    own = np.linalg.eigvalsh(matrices)
    assert (found.ritz_values[:, 0] > own[:, 0] * (1 - 1e-12)).all()
    assert (found.ritz_values[:, 1] < own[:, -1] * (1 + 1e-12)).all()
    np.testing.assert_allclose(found.ritz_values[:, 1], own[:, -1], rtol=0.02)
    assert own.max() * 0.99 < found.L < own.max() * (1 + 1e-12)
    assert own.min() * (1 - 1e-12) < found.mu < own.min() + 0.04 * 2


def test_gradients_of_many_clients_are_mixed():
    """Thirty clients, ten directions: their gradients lie in three, all of which are found."""
    rng = np.random.default_rng(4)
    matrices = np.broadcast_to(np.diag(np.linspace(1, 2, 12)), (30, 12, 12))
    linear = rng.normal(size=(30, 3)) @ rng.normal(size=(3, 12))
    found = measure(matrices, linear, num_directions=10)
    np.testing.assert_allclose(found.linear @ found.basis, linear, atol=1e-11)


def test_the_steepest_direction_is_found_though_no_gradient_sees_it():
    """Curvature 7 along an axis on which all gradients are 0, so it is in no space from them."""
    matrices = np.stack([np.diag([*np.linspace(a, 2, 11), 7.0]) for a in (0.5, 1.0)])
    linear = np.random.default_rng(0).normal(size=(2, 12)) * ([1.0] * 11 + [0.0])
    found = measure(matrices, linear, num_directions=6)
    assert found.spectra.max() < 2 + 1e-12
    assert abs(found.L - 7) < 1e-6
    assert advise(found, 0.2, 3)[0].relative_rate == pytest.approx(1.4, rel=1e-6)


def test_half_of_the_directions_predict_most_of_the_gap():
    """The gradients have no structure here; a process from E g_i alone finds half as much."""
    matrices, linear = random_quadratics(60, 6, seed=2)
    exact = surrogate(QuadraticPopulation.from_linear(matrices, linear), 0.4, 5).gap
    found = advise(measure(matrices, linear, num_directions=30), 0.4, 5)[0].gap
    V, on_V = krylov_space(lambda i, v: matrices[i] @ v, np.ones(6) / 6, [linear.mean(0)],
                           iter([]), 30)
    alone = surrogate(QuadraticPopulation.from_linear(on_V, linear @ V.T), 0.4, 5).gap
    assert 0.8 * exact < found < exact
    assert alone < 0.6 * exact


def test_one_client_and_equal_clients_have_no_gap():
    matrices, linear = random_quadratics(6, 1, seed=3)
    one = measure(matrices, linear)
    equal = measure(np.repeat(matrices, 3, 0), np.repeat(linear, 3, 0), sizes=[1, 5, 2])
    for found in (one, equal):
        assert found.population.sigma_A == pytest.approx(0, abs=1e-12)
        assert found.population.sigma_c == pytest.approx(0, abs=1e-10)
        for row in advise(found, 0.2, 7):
            assert row.gap == pytest.approx(0, abs=1e-11)
            assert row.bound == pytest.approx(0, abs=1e-9)


def test_rows_are_half_and_double_without_repeats():
    found = measure(*random_quadratics(4, 3))
    pairs = [row[:2] for row in advise(found, 0.2, 5)]
    assert pairs == [(0.2, 5), (0.1, 5), (0.4, 5), (0.2, 3), (0.2, 10)]
    rows = advise(found, 0.2, 1)
    assert [row[:2] for row in rows] == [(0.2, 1), (0.1, 1), (0.4, 1), (0.2, 2)]
    for row in rows[:3]:  # one step is gradient descent on f
        assert row.gap == pytest.approx(0, abs=1e-12)
        assert row.bound == pytest.approx(0, abs=1e-12)
    assert rows[3].gap > 1e-3
    assert [row[:2] for row in advise(found, 0.0, 1)] == [(0.0, 1), (0.0, 2)]


@pytest.mark.quick
def test_rows_by_hand():
    """Curvatures 1 and 3 and centres 1 and 0 on a line, gamma = 1/4, K = 2."""
    found = measure(np.array([[[1.0]], [[3.0]]]), np.array([[-1.0], [0.0]]))
    row = advise(found, 0.25, 2)[0]
    # Q A = 1 - (1 - l / 4)^2 over 1/4: 7/4 and 15/4, so x* = 1/4 becomes 7/22; f'' = 2.
    assert row.gap == pytest.approx(7 / 22 - 1 / 4, rel=1e-12)
    assert row.excess_loss == pytest.approx((7 / 22 - 1 / 4) ** 2, rel=1e-12)
    assert row.condition_number == pytest.approx(1)
    assert row.relative_rate == pytest.approx(0.75)
    # sigma_c = 1/2, sigma_A = 1: (1/2) (1 + 1) (2 * 3 - 15/4) / (7/4)
    assert row.bound == pytest.approx(9 / 7, rel=1e-12)
    assert row.num_not_convex == 0
    # gamma L = 3/2, K = 2: no bound; gamma L = 3: Q A of the second is (1 - 4) < 0.
    assert np.isnan(advise(found, 0.5, 2)[0].bound)
    wild = advise(found, 1.0, 2)[0]
    assert wild.num_not_convex == 1
    assert np.isnan([wild.gap, wild.excess_loss]).all()
    assert wild.condition_number == np.inf
    # K = 3: Q A is 1 and 1 - (-2)^3 = 9, both positive, but averages overshoot: 5 > 2.
    overshoots = advise(found, 1.0, 3)[0]
    assert overshoots.num_not_convex == 0
    assert np.isnan(overshoots.gap)
    assert np.isnan(advise(found, 1e9, 1000)[0].gap)
    for bad in ((-1.0, 2), (0.1, 0), (0.1, 1.5)):
        with pytest.raises(ValueError, match="must be a"):
            advise(found, *bad)


def quartic():
    """Clients sum_j (a_ij x_j^2 / 2 + x_j^4 / 4 + b_ij x_j): Hessians diag(a_i + 3 x^2)."""
    def loss(params, batch, key):
        x = params["x"][None, :]
        values = (batch["a"] * x**2 / 2 + x**4 / 4 + batch["b"] * x).sum(1)
        return values, jnp.ones_like(values)

    a = np.array([[2.0, -1.0, 0.5], [1.0, -0.5, -0.25], [4.0, -0.25, 1.0]])
    b = np.array([[1.0, -0.5, 0.3], [-0.2, 0.4, 0.1], [0.6, 0.2, -0.8]])
    return Model(None, loss, None, {}), FederatedDataset({"a": a, "b": b}, np.arange(4)), a, b


def test_negative_curvature_is_reported_and_lifted_until_the_model_holds():
    model, data, a, b = quartic()
    x = np.array([0.1, 0.2, -0.1])
    params = {"x": jnp.asarray(x)}
    found = quadratic_model(model, params, cohort_of(data), KEY)
    curvatures = a + 3 * x**2
    gradients = a * x + x**3 + b
    assert (found.mu, found.L) == pytest.approx((curvatures.min(), curvatures.max()), rel=1e-9)
    assert found.negative_share == pytest.approx(4 / 9)

    def f(x):
        return (a * x**2 / 2 + x**4 / 4 + b * x).sum(1).mean()

    for k in range(14):
        damping = 1e-4 * 2**k * curvatures.max()
        lifted = np.maximum(curvatures, damping)
        mean, slope = lifted.mean(0), gradients.mean(0)
        predicted = (slope**2 / mean / 2).sum()
        agreement = (f(x) - f(x - slope / mean)) / predicted
        if agreement >= 0.5:
            break
    assert k > 3  # it took some
    assert found.damping == pytest.approx(damping, rel=1e-9)
    assert found.agreement == pytest.approx(agreement, rel=1e-7)
    assert found.lifted_share == pytest.approx((curvatures < damping).mean())
    clients = found.population
    back = found.basis.T
    for i in range(3):
        np.testing.assert_allclose(back @ clients.matrices[i] @ back.T, np.diag(lifted[i]),
                                   atol=1e-9)
    assert clients.mu == pytest.approx(damping, rel=1e-9)
    deviations = gradients / lifted - (gradients / lifted).mean(0)
    assert clients.sigma_c == pytest.approx(np.sqrt((deviations**2).sum(1).mean()), rel=1e-8)
    half = found.with_damping(found.damping / 2)
    assert half.population.mu == pytest.approx(damping / 2, rel=1e-9)
    assert half.population.sigma_c > clients.sigma_c
    assert np.isnan(half.agreement)
    # As it was measured there is no minimum.
    raw = quadratic_model(model, params, cohort_of(data), KEY, damping=0.0)
    assert raw.population.mu == pytest.approx(curvatures.min(), rel=1e-9)
    assert np.isnan(raw.agreement)
    chosen = quadratic_model(model, params, cohort_of(data), KEY, damping=0.25)
    assert chosen.population.mu == pytest.approx(0.25 * curvatures.max(), rel=1e-9)
    saddle = quadratics(-np.eye(2)[None], np.ones((1, 2)))
    down = quadratic_model(quadratic(jnp.zeros(2)), {"x": jnp.zeros(2)}, saddle, KEY, damping=0.0)
    with pytest.raises(SingularError, match="no unique minimiser"):
        advise(down, 0.1, 2)


def test_clients_without_examples_are_left_out():
    matrices, linear = random_quadratics(5, 4, seed=6)
    cohort = quadratics(matrices, linear, [2, 1, 3, 1])
    model, params = quadratic(jnp.zeros(5)), {"x": jnp.zeros(5)}
    empty = dataclasses.replace(
        cohort, num_examples=cohort.num_examples * jnp.asarray([1, 0, 1, 1], jnp.int32)
    )
    kept = [0, 2, 3]
    found = quadratic_model(model, params, empty, KEY)
    assert found.matrices.shape == (3, 5, 5)
    np.testing.assert_allclose(found.probabilities, np.array([2, 3, 1]) / 6, rtol=1e-12)
    V = found.basis
    np.testing.assert_allclose(V.T @ found.matrices @ V, matrices[kept], atol=1e-12)
    expected = QuadraticPopulation.from_linear(matrices[kept], linear[kept], [2, 3, 1])
    assert found.population.sigma_c == pytest.approx(expected.sigma_c, rel=1e-10)
    with pytest.raises(ValueError, match=r"No client .* num_examples is \[0 0 0 0\]"):
        quadratic_model(
            model, params,
            dataclasses.replace(cohort, num_examples=jnp.zeros(4, jnp.int32)), KEY,
        )


def test_weights_are_examples_or_tokens_and_few_examples_are_spread_evenly():
    def loss(params, batch, key):
        values = batch["a"] * params["x"] ** 2 / 2 - params["x"]
        return values, batch["tokens"]

    arrays = {"a": np.arange(1.0, 10.0), "tokens": np.array([1, 2, 1, 1, 3, 0, 2, 5, 1.0])}
    cohort = cohort_of(FederatedDataset(arrays, np.array([0, 6, 9])))
    model, params = Model(None, loss, None, {}), {"x": jnp.zeros(1)}
    sizes = quadratic_model(model, params, cohort, KEY, max_examples=3)
    np.testing.assert_allclose(sizes.probabilities, [6 / 9, 3 / 9], rtol=1e-12)
    # Of six examples the 0th, 2nd and 4th.
    curvatures = [(1 * 1 + 3 * 1 + 5 * 3) / 5, (7 * 2 + 8 * 5 + 9 * 1) / 8]
    np.testing.assert_allclose(sizes.matrices[:, 0, 0], curvatures, rtol=1e-12)
    tokens = quadratic_model(model, params, cohort, KEY, max_examples=3, weighting="num_tokens")
    np.testing.assert_allclose(tokens.probabilities, [5 / 13, 8 / 13], rtol=1e-12)
    with pytest.raises(ValueError, match="Unknown weighting 'num_token'"):
        quadratic_model(model, params, cohort, KEY, weighting="num_token")
    silent = dataclasses.replace(cohort, arrays={**cohort.arrays, "tokens": jnp.zeros(9)})
    with pytest.raises(ValueError, match="every client has weight 0"):
        quadratic_model(model, params, silent, KEY, weighting="num_tokens")
    sick = dataclasses.replace(cohort, arrays={**cohort.arrays, "a": jnp.full(9, jnp.nan)})
    with pytest.raises(ValueError, match="gradient of client 0 is not finite"):
        quadratic_model(model, params, sick, KEY)


@pytest.mark.slow
def test_the_gap_of_logistic_regression():
    """Not quadratic: what FedAvg's own last point says of the gap, against training to the end."""
    rng = np.random.default_rng(7)
    clients = []
    for size in (12, 20, 30, 16):
        x = rng.normal(size=(size, 2)) + rng.normal(size=2)
        logits = x @ (np.array([1.0, -0.5]) + rng.normal(size=2))
        labels = rng.random(size) < 1 / (1 + np.exp(-logits))
        clients.append({"x": x, "y": labels.astype(np.int32)})
    data = FederatedDataset.from_clients(clients)
    base = classification(
        lambda key: jnp.zeros(2), lambda w, x: jnp.stack([jnp.zeros(len(x)), x @ w], 1)
    )

    def loss(params, batch, key):
        values, weights = base.loss(params, batch, key)
        return values + 0.05 * jnp.square(params).sum(), weights

    model = base._replace(loss=loss)
    everything = {name: np.concatenate([c[name] for c in clients]) for name in ("x", "y")}

    def f(w):
        return float(loss(jnp.asarray(w), everything, KEY)[0].mean())

    x_star = scipy.optimize.minimize(f, np.zeros(2), tol=1e-12, method="Nelder-Mead").x
    gamma, K = 0.3, 5
    algorithm = fedax.fedavg(model, gamma, batch_size=30, num_local_steps=K)
    task = Task(model, data, None, "logistic")
    *_, last = simulate(task, algorithm, num_rounds=60, sampling="full", evaluate_every=0)
    stopped = last.state.server_state.params
    gap = np.linalg.norm(stopped - x_star)
    found = quadratic_model(model, stopped, cohort_of(data), KEY)
    assert gap > 0.02
    assert advise(found, gamma, K)[0].gap == pytest.approx(gap, rel=0.15)
    assert found.params_at(found.population.minimiser) == pytest.approx(x_star, abs=0.3 * gap)
    assert found.agreement == pytest.approx(1, abs=0.2)


def small_task(model):
    return quadratic_task(start=np.array([2.0, -1.0, 0.5]))


def test_every_algorithm_that_has_a_client_learning_rate_says_it():
    task = quadratic_task()
    names = [*ALGORITHMS, *(f"{wrapper}+fedavg" for wrapper in WRAPPERS), "elastic+mime"]
    asked = []
    for name in names:
        if "client_learning_rate" not in algorithm_settings(name) or name == "pfnm":
            continue  # pfnm trains networks only
        options = {"where": "()"} if "where" in algorithm_settings(name) else {}
        algorithm = build_algorithm(name, options | {"client_learning_rate": 0.03}, task.model)
        state = initial_state(task, algorithm).server_state
        assert float(_message(algorithm, state).client_learning_rate) == pytest.approx(0.03), name
        asked.append(name)
    assert set(names) - set(asked) == {"minibatch_sgd", "server_only", "pfnm"}


@pytest.fixture
def quadratic_runs(monkeypatch, tmp_path):
    """Starts runs of two rounds on quadratics and returns their folders."""
    info = TaskInfo("quadratics", "none", ("small",), small_task)
    monkeypatch.setitem(TASKS, "quadratic", info)

    def started(algorithm="fedavg", **options):
        settings = RunConfig(
            task="quadratic", algorithm=algorithm, preset="none", num_rounds=2, cohort_size=3,
            evaluate_every=0, checkpoint_every=1, algorithm_options=options,
        )
        return run.start(settings, tmp_path / f"run{len(list(tmp_path.iterdir()))}")

    return started


@pytest.mark.slow
def test_advice_is_of_the_newest_checkpoint_and_its_round(quadratic_runs):
    folder = quadratic_runs(
        client_learning_rate="exponential_decay(0.4, 0.5)", batch_size=2, num_local_epochs=3
    )
    found = run_advice(folder, num_clients=4, seed=5)
    assert found.round_index == 2
    assert found.client_learning_rate == pytest.approx(0.1)
    task = quadratic_task()
    ids = np.random.default_rng(5).choice(10, 4, replace=False)
    sizes = task.train.client_sizes[np.sort(ids)]
    assert found.num_local_steps == round(np.mean(3 * np.ceil(sizes / 2)))
    # f_i = (x - c)^T A (x - c) / 2 over a client's examples, and the state that the run reached.
    clients = [task.train.client(i) for i in np.sort(ids)]
    population = QuadraticPopulation.from_linear(
        np.stack([c["A"].mean(0) for c in clients]),
        np.stack([-np.einsum("nij,nj->i", c["A"], c["c"]) / len(c["c"]) for c in clients]),
        sizes,
    )
    x = np.asarray(run.read_run(folder).restored.state.server_state.params["x"])
    exact = surrogate(population, found.client_learning_rate, found.num_local_steps)
    assert (found.mu, found.L) == pytest.approx((population.mu, population.L), rel=1e-8)
    assert found.gap.once == pytest.approx(exact.gap, rel=1e-8)
    assert found.rows[0].excess_loss == pytest.approx(exact.excess_loss, rel=1e-8)
    assert found.sigma_c.once == pytest.approx(population.sigma_c, rel=1e-8)
    assert found.distance == pytest.approx(np.linalg.norm(x - population.minimiser), rel=1e-8)
    assert found.predicted_fall == pytest.approx(
        population.loss(x) - population.loss(population.minimiser), rel=1e-8
    )
    assert (found.damping, found.num_parameters, found.num_directions) == (0, 3, 3)
    assert not found.notes
    assert run_advice(folder, num_clients=4, seed=5) == found
    assert run_advice(folder, num_clients=4, seed=6).distance != found.distance


@pytest.mark.slow
def test_advice_says_when_it_does_not_fit(quadratic_runs):
    for name in ("minibatch_sgd", "server_only"):
        with pytest.raises(ConfigError, match=f"not support {name}: it does not have a client"):
            run_advice(quadratic_runs(name))
    with pytest.raises(ConfigError, match="trains on all data in one place"):
        run_advice(quadratic_runs("centralised"))
    steps = {"client_learning_rate": 0.1, "num_local_steps": 4}
    corrected = quadratic_runs("scaffold", **steps)
    assert "do more than gradient steps" in run_advice(corrected).notes[0]
    assert run_advice(quadratic_runs("elastic+fedavg", **steps)).notes == []
    weighted = quadratic_runs("local_update", gradient_weights="last", **steps)
    assert "do more than" in run_advice(weighted).notes[0]
    found = run_advice(quadratic_runs(client_learning_rate=3.0, num_local_steps=1, batch_size=20))
    assert found.rows[0].relative_rate > 2
    assert "local steps diverge" in found.notes[0]
    cells = advice_tables(found)[1].rows[0]
    assert cells[3:5] == ["diverges", "diverges"]
    assert cells[6] == "gamma L >= 1"


def test_derivatives_that_are_not_finite_are_a_sentence(quadratic_runs, monkeypatch):
    def fails(*_, **__):
        raise ValueError("The gradient of client ada is not finite at these parameters.")

    monkeypatch.setattr(advice, "quadratic_model", fails)
    with pytest.raises(RunError, match=r"Cannot fit a quadratic .*: The gradient of client ada"):
        run_advice(quadratic_runs(client_learning_rate=0.1, num_local_steps=1))


@pytest.mark.slow
@pytest.mark.optimised
def test_advice_on_shakespeare(tmp_path):
    """A real recurrent network with 82,474 parameters, after two rounds."""
    settings = resolve(
        task="shakespeare", algorithm="fedavg",
        settings={
            "num_rounds": 2, "cohort_size": 2, "evaluate_every": 0, "num_local_steps": 2,
            "client_learning_rate": 1.0,
        },
    )
    folder = run.start(settings, tmp_path / "run")
    found = run_advice(folder, num_clients=3, max_examples=4, num_directions=5)
    assert (found.round_index, found.num_clients, found.num_directions) == (2, 3, 5)
    assert found.num_parameters == 82474
    assert (found.client_learning_rate, found.num_local_steps) == (1.0, 2)
    assert 0.5 < found.L < 50
    assert found.mu < 0.1 * found.L
    assert 0.5 < found.agreement < 2
    assert np.isfinite([*found.sigma_c, found.sigma_A, found.distance, found.predicted_fall]).all()
    assert found.sigma_A < found.L
    label, *cells = advice_tables(found)
    assert label.title.startswith("Quadratic approximation at the current point")
    assert "on 3 sampled clients" in label.title
    assert len(cells[0].rows) == 5 - (found.num_local_steps == 1)
