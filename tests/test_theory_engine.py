"""Theory and engine meet: the toolkit says what the engine does on quadratics."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedax
from fedax import base_optimizers
from fedax.models.quadratic import quadratic, quadratic_data
from fedax.reproductions.common import run_rounds
from fedax.theory import dynamics
from fedax.theory.population import QuadraticPopulation
from fedax.theory.surrogate import last

ROUNDS = 50
ETA, GAMMA, K = 0.7, 0.06, 4
THETA = (0.5, 0.0, 2.0, 1.0)
CLIENTS = QuadraticPopulation.random(
    7, 3, mu=0.3, L=5, sigma_A=1, sigma_c=2, probabilities=[1, 2, 3, 4, 5, 6, 7], seed=4
)
START = np.array([1.0, -2.0, 0.5])
LOCAL = {"num_local_steps": K, "batch_size": 1, "weighting": "num_tokens"}
SGDM = base_optimizers.sgdm(0.4)

# Name -> (model -> algorithm, population -> the toolkit's rounds).
METHODS = {
    "fedavg": (
        lambda model: fedax.fedavg(model, GAMMA, ETA, **LOCAL),
        lambda p: dynamics.fedavg(p, GAMMA, K, ETA),
    ),
    "fedavg, SGDm on the server": (
        lambda model: fedax.fedopt(
            model, optax.sgd(1.0), base_optimizers.as_transformation(SGDM),
            client_learning_rate=GAMMA, **LOCAL,
        ),
        lambda p: dynamics.fedavg(p, GAMMA, K, momentum=0.4),
    ),
    "Theta": (
        lambda model: fedax.local_update(model, GAMMA, 0.1, gradient_weights=THETA, **LOCAL),
        lambda p: dynamics.local_update(p, GAMMA, THETA, 0.1),
    ),
    "Theta, gamma = 0": (
        lambda model: fedax.local_update(model, 0.0, 0.05, gradient_weights=THETA, **LOCAL),
        lambda p: dynamics.local_update(p, 0.0, THETA, 0.05),
    ),
    "fomaml": (
        lambda model: fedax.fomaml(model, GAMMA, 0.1, **LOCAL | {"num_local_steps": 3}),
        lambda p: dynamics.local_update(p, GAMMA, last(3), 0.1),
    ),
    "2-MAML": (
        lambda model: fedax.maml(model, GAMMA, 0.1, **LOCAL | {"num_local_steps": 2}),
        lambda p: dynamics.local_update(p, GAMMA, last(5), 0.1),  # Theorem 4
    ),
    "fedprox": (
        lambda model: fedax.fedprox(model, GAMMA, ETA, proximal_weight=1.5, **LOCAL),
        lambda p: dynamics.fedprox(p, GAMMA, K, 1.5, ETA),
    ),
    "mime": (
        lambda model: fedax.mime(model, GAMMA, base_optimizers.sgd(), **LOCAL),
        lambda p: dynamics.mime(p, GAMMA, K),
    ),
    "mime, SGDm": (
        lambda model: fedax.mime(model, GAMMA, SGDM, **LOCAL),
        lambda p: dynamics.mime(p, GAMMA, K, 0.4),
    ),
    "mimelite": (
        lambda model: fedax.mimelite(model, GAMMA, base_optimizers.sgd(), **LOCAL),
        lambda p: dynamics.mimelite(p, GAMMA, K),
    ),
    "mimelite, SGDm": (
        lambda model: fedax.mimelite(model, GAMMA, SGDM, **LOCAL),
        lambda p: dynamics.mimelite(p, GAMMA, K, 0.4),
    ),
    "scaffold": (
        lambda model: fedax.scaffold(model, GAMMA, ETA, **LOCAL),
        lambda p: dynamics.scaffold(p, GAMMA, K, ETA),
    ),
    "scaffold, option I": (
        lambda model: fedax.scaffold(model, GAMMA, ETA, control_option="I", **LOCAL),
        lambda p: dynamics.scaffold(p, GAMMA, K, ETA, control_option="I"),
    ),
    "server-only": (
        lambda model: fedax.server_only(
            model, 0.2, SGDM, batch_size=1, weighting="num_tokens"
        ),
        lambda p: dynamics.server_only(p, 0.2, 0.4),
    ),
}


def trained(build, population=CLIENTS, num_rounds=ROUNDS):
    task = fedax.quadratic_task(population, START)
    path = [START]
    fedax.train(
        task, build(task.model), num_rounds=num_rounds, cohort_size=population.num_clients,
        sampling="full", evaluate_every=0,
        on_round=lambda report: path.append(np.asarray(report.state.server_state.params["x"])),
    )
    return np.stack(path)


@pytest.mark.quick
@pytest.mark.parametrize("name", METHODS)
def test_full_batch_trajectories_are_the_toolkits(name):
    """50 rounds of `fedax.train` in float64, unequal p_i, to 1e-10."""
    build, rounds = METHODS[name]
    expected = rounds(CLIENTS).trajectory(START, ROUNDS)
    assert np.linalg.norm(expected[-1] - expected[0]) > 0.5  # they go somewhere
    np.testing.assert_allclose(trained(build), expected, rtol=0, atol=1e-10)


def test_trajectories_differ_between_the_methods():
    """So that the test above could not pass with one method in another's place."""
    paths = [rounds(CLIENTS).trajectory(START, ROUNDS) for _, rounds in METHODS.values()]
    for i, a in enumerate(paths):
        for b in paths[:i]:
            assert np.abs(a - b).max() > 1e-3


NOISY = QuadraticPopulation.random(6, 2, mu=0.3, L=3, sigma_c=2, noise=2.0, seed=1)
SAMPLED = {"num_local_steps": 3, "batch_size": 2, "order": "iid"}
SHORT, COHORT, REPLICAS = 12, 2, 3000
BY_SAMPLING = {
    "fedavg": (
        lambda model: fedax.fedavg(model, 0.2, **SAMPLED),
        lambda p: dynamics.fedavg(p, 0.2, 3),
    ),
    "Theta": (
        lambda model: fedax.local_update(model, 0.2, 0.1, gradient_weights=(1, 0, 2), **SAMPLED),
        lambda p: dynamics.local_update(p, 0.2, (1, 0, 2), 0.1),
    ),
    "fedprox": (
        lambda model: fedax.fedprox(model, 0.2, proximal_weight=1.0, **SAMPLED),
        lambda p: dynamics.fedprox(p, 0.2, 3, 1.0),
    ),
    "mime": (
        lambda model: fedax.mime(model, 0.2, base_optimizers.sgdm(0.3), **SAMPLED),
        lambda p: dynamics.mime(p, 0.2, 3, 0.3, cohort_size=COHORT),
    ),
    "mimelite": (
        lambda model: fedax.mimelite(model, 0.2, base_optimizers.sgdm(0.3), **SAMPLED),
        lambda p: dynamics.mimelite(p, 0.2, 3, 0.3),
    ),
    "scaffold": (
        lambda model: fedax.scaffold(model, 0.2, **SAMPLED),
        lambda p: dynamics.scaffold(p, 0.2, 3, cohort_size=COHORT),
    ),
}


def sampled_paths(build, population, cohort_size, num_rounds, start):
    """x after each round of independent runs with cohorts drawn without replacement, [R, T, d]."""
    rng = np.random.default_rng(0)
    order = rng.random((REPLICAS, num_rounds, population.num_clients)).argsort(-1)
    cohorts = jnp.asarray(order[:, :, :cohort_size])
    data, algorithm = quadratic_data(population), build(quadratic(jnp.asarray(start)))

    def one(ids, key):
        return run_rounds(algorithm, start, data, num_rounds, cohorts=ids, key=key)[0]

    keys = jax.random.split(jax.random.key(1), REPLICAS)
    return np.asarray(jax.jit(jax.vmap(one))(cohorts, keys))


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_SAMPLING)
def test_sampled_trajectories_have_the_toolkits_mean(name):
    """2 of 6 clients a round, minibatches of 2: the mean of 3,000 runs within sampling error."""
    build, rounds = BY_SAMPLING[name]
    paths = sampled_paths(build, NOISY, COHORT, SHORT, START[:2])
    expected = rounds(NOISY).trajectory(START[:2], SHORT)[1:]
    errors = paths.std(0) / np.sqrt(REPLICAS)
    z = (paths.mean(0) - expected) / errors
    assert np.abs(z).max() < 4.5  # of 24 values; one alone exceeds it once in 150,000 times
    assert errors.max() < 0.05 * np.abs(expected[0] - expected[-1]).max()


@pytest.mark.slow
def test_mime_on_cohorts_has_a_mean_of_its_own():
    """The cohort is in both factors of Mime's step: with one client it is MimeLite on average."""
    paths = sampled_paths(BY_SAMPLING["mime"][0], NOISY, 1, SHORT, START[:2])
    errors = paths.std(0) / np.sqrt(REPLICAS)
    careless = dynamics.mime(NOISY, 0.2, 3, 0.3).trajectory(START[:2], SHORT)[1:]
    lite = dynamics.mimelite(NOISY, 0.2, 3, 0.3).trajectory(START[:2], SHORT)[1:]
    assert np.abs((paths.mean(0) - careless) / errors).max() > 7
    assert np.abs((paths.mean(0) - lite) / errors).max() < 4.5


@pytest.mark.slow
def test_the_task_runs_by_name(tmp_path, capsys):
    from fedax.cli.main import run_command

    folder = tmp_path / "run"
    line = ["run", "quadratics", "scaffold", "--rounds", "300", "--out", str(folder)]
    assert run_command(line) == 0
    assert run_command(["list", "tasks"]) == 0
    assert "quadratics" in capsys.readouterr().out
