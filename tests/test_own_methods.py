"""FedExP, FedDyn, FedNova and q-FedAvg against their papers' equations, written in NumPy.

The shorter ones of examples/methods.py, and those of the library.
"""

import ast
import importlib.util
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from problems import identical, quadratic_model, quadratic_task

EXAMPLES = Path(__file__).parent.parent / "examples"
RATE, STEPS = 0.1, 3


def load(name):
    """One of the examples, as a user's file."""
    spec = importlib.util.spec_from_file_location(f"examples_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


METHODS = load("methods")
both = pytest.mark.parametrize("methods", [METHODS, fedax], ids=["example", "fedax"])


def q_fedavg(methods):
    """By the name that the module has."""
    return getattr(methods, "qffl", None) or methods.qfedavg


@pytest.fixture(autouse=True)
def _as_users_do():
    with jax.numpy_dtype_promotion("standard"):
        yield


def one_batch(factory, task, **settings):
    """With all of a client's examples in each step, so that nothing is random but the cohort."""
    return factory(task.model, RATE, batch_size=20, num_local_steps=STEPS, **settings)


def client_quadratic(task, client):
    """Hessian and minimiser of a client's mean loss."""
    arrays = task.train.client(client)
    hessian = arrays["A"].mean(0)
    return hessian, np.linalg.solve(hessian, np.einsum("nij,nj->i", arrays["A"], arrays["c"])
                                    / len(arrays["A"]))


def locally(x, hessian, centre, linear=0.0, weight=0.0, steps=STEPS, rate=RATE):
    """Gradient steps on f(y) - linear y + weight |y - x|^2 / 2."""
    y = x
    for _ in range(steps):
        y = y - rate * (hessian @ (y - centre) - linear + weight * (y - x))
    return y


def minibatches(task, client, size):
    """Hessian and minimiser of each minibatch of one epoch in the stored order."""
    a, c = (task.train.client(client)[name] for name in "Ac")
    parts = [(a[k : k + size], c[k : k + size]) for k in range(0, len(a), size)]
    return [
        (a.mean(0), np.linalg.solve(a.sum(0), np.einsum("nij,nj->i", a, c))) for a, c in parts
    ]


def loss_of(task, client, x):
    """The mean of a client's losses."""
    arrays = task.train.client(client)
    gap = x - arrays["c"]
    return 0.5 * np.einsum("ni,nij,nj->n", gap, arrays["A"], gap).mean()


def rate_of(t):
    """A schedule."""
    return 0.2 * 0.9**t


@pytest.mark.quick
@both
@pytest.mark.parametrize("epsilon", [1e-3, 0.5])
def test_fedexp_takes_the_papers_server_step(epsilon, methods):
    """eta_g = max(1, sum |Delta_i|^2 / (2 M (|mean Delta|^2 + epsilon))), w - eta_g mean Delta."""
    task = quadratic_task(start=[0.1, 0.0, -0.1])
    everyone = task.train.num_clients
    algorithm = one_batch(methods.fedexp, task, epsilon=epsilon)
    steps, x = [], np.array([0.1, 0.0, -0.1])
    for t in range(1, 9):
        deltas = np.stack(
            [x - locally(x, *client_quadratic(task, i)) for i in range(everyone)]
        )
        mean = deltas.mean(0)
        steps.append(max(1, (deltas**2).sum() / (2 * everyone * ((mean**2).sum() + epsilon))))
        x = x - steps[-1] * mean
        if t in (1, 8):
            result = fedax.train(
                task, algorithm, num_rounds=t, cohort_size=everyone, evaluate_every=0
            )
            np.testing.assert_allclose(result.params["x"], x, rtol=1e-12)
    # Small epsilon: the clients disagree, and the server extrapolates; large: it is FedAvg.
    assert max(steps) > 2 if epsilon < 0.1 else max(steps) == 1


@both
def test_feddyn_is_the_papers_algorithm_1(methods):
    """Cohorts of 4 of 10, states of absent clients kept, h with all clients in the denominator."""
    alpha, cohort_size, start = 0.7, 4, [0.1, 0.0, -0.1]
    task = quadratic_task(start=start)
    num_clients = task.train.num_clients
    algorithm = one_batch(methods.feddyn, task, proximal_weight=alpha)
    cohorts = np.stack([np.random.default_rng(t).permutation(num_clients)[:4] for t in range(5)])
    end = fedax.train(
        task, algorithm, num_rounds=5, cohort_size=cohort_size, evaluate_every=0,
        sampling=lambda seed, t: cohorts[t],
    ).state
    theta, h, own = np.array(start), np.zeros(3), np.zeros((num_clients, 3))
    for cohort in cohorts:
        local = {}
        for i in cohort:
            local[i] = locally(theta, *client_quadratic(task, i), own[i], alpha)
            own[i] -= alpha * (local[i] - theta)
        h -= alpha / num_clients * sum(local[i] - theta for i in cohort)
        theta = sum(local.values()) / cohort_size - h / alpha
    np.testing.assert_allclose(end.server_state.params["x"], theta, rtol=1e-12)
    np.testing.assert_allclose(end.server_state.h["x"], h, rtol=1e-12)
    np.testing.assert_allclose(end.server_state.h["x"], own.mean(0), rtol=1e-12)
    np.testing.assert_allclose(
        end.client_store.read(np.arange(num_clients))["x"], own, rtol=1e-12, atol=1e-15
    )


@pytest.mark.slow
@both
def test_feddyn_finds_the_minimiser_where_fedavg_does_not(methods):
    task = quadratic_task()
    hessians, centres = zip(*(client_quadratic(task, i) for i in range(10)), strict=True)
    minimiser = np.linalg.solve(
        sum(hessians), sum(h @ c for h, c in zip(hessians, centres, strict=True))
    )
    options = {"num_local_steps": 20, "batch_size": 20, "weighting": "uniform"}
    for factory, setting, far in (
        (fedax.fedavg, {}, (1e-2, 1.0)), (methods.feddyn, {"proximal_weight": 0.5}, (0, 1e-6))
    ):
        algorithm = factory(task.model, 0.2, **setting, **options)
        result = fedax.train(task, algorithm, num_rounds=200, cohort_size=10, evaluate_every=0)
        assert far[0] <= np.linalg.norm(result.params["x"] - minimiser) < far[1], factory


@both
@pytest.mark.parametrize("weight", [None, 0.0, 1e-9, 0.7, 15.0])
@pytest.mark.parametrize("weighting", ["num_examples", "uniform"])
def test_fednova_is_the_papers_normalised_mean(weight, weighting, methods):
    """Clients of 1 to 12 examples take 2 to 8 steps in two epochs of minibatches of 3.

    With alpha = eta mu, Wang et al. have a_i = [(1 - alpha)^(tau - 1), ..., 1 - alpha, 1].
    """
    start, cohort_size, rounds = np.array([0.1, 0.0, -0.1]), 4, 3
    task = quadratic_task(start=list(start))
    sizes = task.train.client_sizes
    cohorts = np.stack([np.random.default_rng(t).permutation(10)[:4] for t in range(rounds)])
    algorithm = methods.fednova(
        task.model, rate_of, batch_size=3, num_local_epochs=2, order="sequential",
        proximal_weight=weight, weighting=weighting,
    )
    result = fedax.train(
        task, algorithm, num_rounds=rounds, cohort_size=cohort_size, evaluate_every=0,
        sampling=lambda seed, t: cohorts[t],
    )
    x, mu = start, weight or 0.0
    for t, cohort in enumerate(cohorts):
        p = sizes[cohort] if weighting == "num_examples" else np.ones(cohort_size)
        p = p / p.sum()
        rate, steps, directions = rate_of(t), [], []
        for i in cohort:
            y, walk = x, 2 * minibatches(task, i, 3)
            for hessian, centre in walk:
                y = y - rate * (hessian @ (y - centre) + mu * (y - x))
            a = (1 - rate * mu) ** np.arange(len(walk))
            steps.append(len(walk))
            directions.append((x - y) / (rate * a.sum()))
        assert len(set(steps)) > 1
        x = x - (p @ steps) * rate * (p @ np.stack(directions))
    np.testing.assert_allclose(result.params["x"], x, rtol=1e-12)


@both
@pytest.mark.parametrize("name", ["fednova", "qffl"])
@pytest.mark.parametrize("weighting", ["num_examples", "uniform"])
def test_a_special_case_is_fedavg(name, weighting, methods):
    """FedNova where all take as many steps, and q-FFL with q = 0, whatever the weights."""
    task = quadratic_task()
    options = {"batch_size": 3, "num_local_steps": 4, "weighting": weighting, "order": "sequential"}
    given = {"q": 0.0} if name == "qffl" else {}
    make = q_fedavg(methods) if name == "qffl" else methods.fednova
    models = [
        fedax.train(
            task, factory(task.model, RATE, **own, **options), num_rounds=5, cohort_size=4,
            evaluate_every=0,
        ).params["x"]
        for factory, own in ((make, given), (fedax.fedavg, {}))
    ]
    np.testing.assert_allclose(models[0], models[1], rtol=1e-12)


@both
@pytest.mark.parametrize("q", [0.0, 0.3, 1.0, 5.0])
def test_qffl_is_the_papers_algorithm_2(q, methods):
    """Delta_k = F_k^q L (w - w_k), h_k = q F_k^(q - 1) |L (w - w_k)|^2 + L F_k^q, L = 1 / eta."""
    start, rounds = np.array([0.1, 0.0, -0.1]), 4
    task = quadratic_task(start=list(start))
    everyone = task.train.num_clients
    algorithm = q_fedavg(methods)(
        task.model, rate_of, q=q, batch_size=20, num_local_steps=STEPS
    )
    result = fedax.train(
        task, algorithm, num_rounds=rounds, cohort_size=everyone, evaluate_every=0
    )
    w = start
    for t in range(rounds):
        lipschitz, top, bottom = 1 / rate_of(t), 0, 0
        for k in range(everyone):
            loss = loss_of(task, k, w) + 1e-10  # as the released code does
            change = lipschitz * (
                w - locally(w, *client_quadratic(task, k), rate=rate_of(t))
            )
            top = top + loss**q * change
            bottom = bottom + q * loss ** (q - 1) * change @ change + lipschitz * loss**q
        w = w - top / bottom
    np.testing.assert_allclose(result.params["x"], w, rtol=1e-12)


@pytest.mark.slow
@both
def test_qffl_minimises_the_mean_of_powers_of_the_clients_losses(methods):
    """With one local step it rests where sum_k F_k^q grad F_k = 0, with a smaller largest loss."""
    task = quadratic_task()
    largest = {}
    for q in (0.0, 3.0):
        algorithm = q_fedavg(methods)(task.model, RATE, q=q, batch_size=20, num_local_steps=1)
        x = np.asarray(fedax.train(
            task, algorithm, num_rounds=1000, cohort_size=10, evaluate_every=0
        ).params["x"])
        losses = np.array([loss_of(task, k, x) for k in range(10)])
        pulls = np.stack([h @ (x - c) for h, c in (client_quadratic(task, k) for k in range(10))])
        pulls *= losses[:, None] ** q
        assert np.linalg.norm(pulls.sum(0)) < 1e-8 * np.linalg.norm(pulls, axis=1).sum()
        largest[q] = losses.max()
    assert largest[3.0] < 0.95 * largest[0.0]


@both
def test_qffl_rests_where_nothing_is_left_to_learn(methods):
    for settings in ({"q": 0.3}, {"q": 1.0}, {"q": 1.0, "client_learning_rate": 0.0}):
        solved = quadratic_task(start=[0.0] * 3)
        arrays = {name: array * (name == "A") for name, array in solved.train.arrays.items()}
        train = fedax.FederatedDataset(arrays, solved.train.offsets)
        algorithm = q_fedavg(methods)(solved.model, **settings)
        end = fedax.train(solved._replace(train=train, test=None), algorithm, num_rounds=2)
        assert not np.asarray(end.params["x"]).any()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings"),
    [("fedexp", {"epsilon": 1e9}), ("feddyn", {"proximal_weight": 0.0}), ("qfedavg", {"q": 0.0}),
     ("fednova", {})],
)
def test_a_special_case_is_fedavg_to_the_bit(name, settings):
    """With minibatches in random order; FedNova divides by 4 steps, which is exact."""
    task = quadratic_task()
    options = {"batch_size": 3, "num_local_steps": 4, "weighting": "uniform"}
    ends = [
        fedax.train(
            task, factory(task.model, RATE, **own, **options), num_rounds=5, cohort_size=4,
            evaluate_every=0,
        ).params
        for factory, own in ((getattr(fedax, name), settings), (fedax.fedavg, {}))
    ]
    assert identical(*ends)


@pytest.mark.slow
def test_a_client_s_whole_loss_is_one_model_s_and_no_training_changes_it():
    """Whatever the batch size; its gradient goes with it."""
    task = quadratic_task()
    x = {"x": jnp.array([0.3, -0.2, 0.1])}
    arrays = {name: jnp.asarray(array) for name, array in task.train.arrays.items()}
    for batch_size in (2, 50):
        local = fedax.LocalTraining.checked(
            task.model, 0.1, {"batch_size": batch_size, "proximal_weight": 3.0}
        )
        for client in (2, 3):
            start = jnp.int32(task.train.offsets[client])
            count = jnp.int32(task.train.client_sizes[client])
            data = fedax.ClientData(arrays, start, count, 12)
            hessian, centre = client_quadratic(task, client)
            loss = local.full_loss(x, data, jax.random.key(0))
            again, gradient = local.full_gradient(x, data, jax.random.key(0))
            expected = loss_of(task, client, np.asarray(x["x"]))
            np.testing.assert_allclose([loss.mean, again.mean], expected, rtol=1e-12)
            assert int(loss.weight) == int(count)
            np.testing.assert_allclose(gradient["x"], hessian @ (x["x"] - centre), rtol=1e-12)
            result = local.train(
                fedax.LocalMessage(x, jnp.float64(0.1), 4, None), data, jax.random.key(0)
            )
            assert isinstance(result, fedax.LocalResult)
            assert int(result.num_steps) == 4


def test_a_setting_out_of_its_range_is_refused_in_a_sentence():
    model = quadratic_model(3)
    with pytest.raises(ValueError, match=r"proximal_weight must be .* but is -1"):
        METHODS.feddyn(model, proximal_weight=-1.0)
    with pytest.raises(TypeError, match=r"Did you mean 'batch_size'"):
        METHODS.fedexp(model, batchsize=3)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "not_applicable"), [
    ("fedexp", ["elastic"]), ("feddyn", []), ("fednova", []), ("qffl", []),
])
def test_the_contract_holds(name, not_applicable):
    """Elastic aggregation would scale the mean change, but not the lengths that FedExP needs."""
    checks = fedax.check_algorithm(getattr(METHODS, name))
    checks.raise_if_failed()
    assert [check.name for check in checks if check.passed is None] == not_applicable


@pytest.mark.quick
def test_each_is_under_20_lines():
    tree = ast.parse((EXAMPLES / "methods.py").read_text())
    for function in tree.body:
        if isinstance(function, ast.FunctionDef) and function.decorator_list:
            first, *_, last = function.body[1:]
            lines = (EXAMPLES / "methods.py").read_text().splitlines()
            code = [line for line in lines[first.lineno - 1 : last.end_lineno] if line.strip()]
            assert 5 < len(code) < 20, function.name


def test_a_loop_over_settings_compiles_once():
    """Decorated, so another alpha is the same program."""
    task = quadratic_task()
    made = [METHODS.feddyn(task.model, 0.1, weight) for weight in (0.1, 0.3)]
    structures = [fedax.partition(algorithm)[1] for algorithm in made]
    assert structures[0] == structures[1]
    seconds = [
        fedax.train(
            task, algorithm, num_rounds=2, cohort_size=3, evaluate_every=0
        ).history["compile_seconds"].sum()
        for algorithm in made
    ]
    assert seconds[1] == 0 < seconds[0]


@pytest.mark.slow
def test_the_examples_task_is_learnt():
    task = load("tasks").sensors()
    assert (task.train.num_clients, task.test.num_examples) == (40, 200)
    with jax.enable_x64(False), jax.numpy_rank_promotion("allow"):
        result = fedax.train(task, METHODS.feddyn(task.model), num_rounds=60)
    assert result.history["test_accuracy"][-1] > 0.6
    assert jnp.result_type(result.params["w"]) == jnp.float32
