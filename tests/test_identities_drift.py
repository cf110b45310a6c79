"""FedLin, FedAC, FedADMM and Scaffnew against their papers' equations, written in NumPy.

FedNova, FedDyn and FedExP are in tests/test_own_methods.py, beside the shorter examples.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax import schedules
from problems import identical, quadratic_model, quadratic_task
from test_own_methods import client_quadratic, minibatches

START = np.array([0.1, 0.0, -0.1])
TASK = quadratic_task(start=list(START))
SIZES = TASK.train.client_sizes
EVERYONE = np.arange(10)
COHORTS = np.stack([np.random.default_rng(t).permutation(10)[:4] for t in range(4)])
RAGGED = {"batch_size": 3, "num_local_epochs": 2, "order": "sequential"}  # 2 to 8 steps
FULL = {"batch_size": 20, "num_local_steps": 3}


def trained(algorithm, cohorts=COHORTS, **options):
    """The result after a round with each cohort."""
    return fedax.train(
        TASK, algorithm, num_rounds=len(cohorts), cohort_size=len(cohorts[0]), evaluate_every=0,
        sampling=lambda seed, t: cohorts[t], **options,
    )


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-14)


def gradient(i, x):
    hessian, centre = client_quadratic(TASK, i)
    return hessian @ (x - centre)


def shares(cohort, weighting):
    p = SIZES[cohort] if weighting == "num_examples" else np.ones(len(cohort))
    return p / p.sum()


# --------------------------------------------------------------------- FedLin


@pytest.mark.parametrize("weighting", ["num_examples", "uniform"])
def test_fedlin_is_mitra_et_als_algorithm_1(weighting):
    """y <- y - eta / tau_i (g_i(y) - grad f_i(x) + g), with tau_i of 2 to 8; nothing compressed."""
    rate, server = 0.4, 0.8
    result = trained(fedax.fedlin(
        TASK.model, rate, server, weighting=weighting, **RAGGED
    ))
    x = START
    for cohort in COHORTS:
        p = shares(cohort, weighting)
        g = sum(share * gradient(i, x) for share, i in zip(p, cohort, strict=True))
        ends = []
        for i in cohort:
            y, walk = x, 2 * minibatches(TASK, i, 3)
            for hessian, centre in walk:
                y = y - rate / len(walk) * (hessian @ (y - centre) - gradient(i, x) + g)
            ends.append(y)
        x = x + server * (p @ np.stack(ends) - x)
    close(result.params["x"], x)


@pytest.mark.quick
def test_fedlin_of_one_full_step_is_gradient_descent():
    result = trained(fedax.fedlin(
        TASK.model, 0.3, batch_size=20, num_local_steps=1, weighting="num_examples"
    ), [EVERYONE] * 3)
    x = START
    for _ in range(3):
        x = x - 0.3 * sum(p * gradient(i, x) for i, p in enumerate(SIZES / SIZES.sum()))
    close(result.params["x"], x)


# ---------------------------------------------------------------------- FedAC


@pytest.mark.parametrize("version", ["I", "II"])
@pytest.mark.parametrize("convexity", [0.2, 2.0])
def test_fedac_is_yuan_and_mas_algorithm_1(version, convexity):
    """Equations (3.1) and (3.2), two sequences that are averaged every K steps."""
    eta = 0.1
    result = trained(fedax.fedac(TASK.model, eta, convexity, version, **RAGGED))
    w = ag = START
    for cohort in COHORTS:
        ends = []
        for i in cohort:
            walk = 2 * minibatches(TASK, i, 3)
            gamma = max(np.sqrt(eta / (convexity * len(walk))), eta)
            if version == "I":
                alpha = 1 / (gamma * convexity)
                beta = alpha + 1
            else:
                alpha = 3 / (2 * gamma * convexity) - 1 / 2
                beta = (2 * alpha**2 - 1) / (alpha - 1)
            y, y_ag = w, ag
            for hessian, centre in walk:
                md = y / beta + (1 - 1 / beta) * y_ag
                g = hessian @ (md - centre)
                y_ag = md - eta * g
                y = (1 - 1 / alpha) * y + md / alpha - gamma * g
            ends.append((y, y_ag))
        p = shares(cohort, "uniform")
        w, ag = (p @ np.stack([end[place] for end in ends]) for place in (0, 1))
    close(result.params["x"], ag)
    close(result.state.server_state.fast["x"], w)


@pytest.mark.slow
def test_fedac_with_a_large_convexity_is_fedavg():
    """gamma = eta: both sequences are the same."""
    fast = trained(fedax.fedac(TASK.model, 0.1, 1e3, "I", **FULL))
    close(fast.params["x"], trained(fedax.fedavg(TASK.model, 0.1, weighting="uniform", **FULL))
          .params["x"])


# -------------------------------------------------------------------- FedADMM


@pytest.mark.parametrize("server", [1.0, 0.4])
def test_fedadmm_is_gong_et_als_algorithm_1(server):
    """Warm starts from the client's own model; clients that are absent keep w_i and y_i."""
    rate, rho = 0.1, 0.7
    result = trained(fedax.fedadmm(
        TASK.model, rate, server, proximal_weight=rho, **RAGGED
    ))
    theta, w, y = START, np.tile(START, (10, 1)), np.zeros((10, 3))
    for cohort in COHORTS:
        changes = []
        for i in cohort:
            new = w[i]
            for hessian, centre in 2 * minibatches(TASK, i, 3):
                new = new - rate * (hessian @ (new - centre) + y[i] + rho * (new - theta))
            dual = y[i] + rho * (new - theta)
            changes.append(new + dual / rho - w[i] - y[i] / rho)
            w[i], y[i] = new, dual
        theta = theta + server / len(cohort) * sum(changes)
    close(result.params["x"], theta)
    own = result.state.client_store.read(EVERYONE)
    close(own.params["x"], w)
    close(own.dual["x"], y)


@pytest.mark.slow
def test_fedadmm_of_weight_0_averages_the_changes_of_the_clients_own_models():
    """Without a penalty there is no dual variable; one round is FedAvg to the bit."""
    options = {"weighting": "uniform", **FULL}
    ours = trained(fedax.fedadmm(TASK.model, 0.1, proximal_weight=0.0, **FULL), COHORTS[:1])
    assert identical(
        ours.params, trained(fedax.fedavg(TASK.model, 0.1, **options), COHORTS[:1]).params
    )


# ------------------------------------------------------------------- Scaffnew


@pytest.mark.parametrize("weighting", ["num_examples", "uniform"])
def test_scaffnew_is_mishchenko_et_als_algorithm_2(weighting):
    """Iterations with a coin whose outcomes are the numbers of local steps that fedax drew."""
    rate, p, rounds = 0.2, 0.3, 6
    result = trained(
        fedax.scaffnew(TASK.model, rate, p, batch_size=20, weighting=weighting), [EVERYONE] * rounds
    )
    steps = np.asarray(result.history["num_local_steps"]).astype(int)
    assert len(set(steps)) > 2
    coin = [theta for K in steps for theta in [0] * (K - 1) + [1]]
    share = shares(EVERYONE, weighting)
    x, h = np.tile(START, (10, 1)), np.zeros((10, 3))
    for theta in coin:
        hat = np.stack([x[i] - rate * (gradient(i, x[i]) - h[i]) for i in EVERYONE])
        x = np.tile(share @ hat, (10, 1)) if theta else hat
        h = h + p / rate * (x - hat)
    close(result.params["x"], x[0])
    close(result.state.client_store.read(EVERYONE)["x"], h)


@pytest.mark.slow
@pytest.mark.parametrize("cohorts", [[EVERYONE] * 5, COHORTS], ids=["everyone", "sampled"])
def test_scaffnew_with_probability_1_is_gradient_descent(cohorts):
    """With sampled clients too, as the control variates stay 0; up to the order of sums."""
    one = {"batch_size": 20, "num_local_steps": 1, "weighting": "uniform"}
    ours = trained(fedax.scaffnew(TASK.model, 0.3, 1.0, batch_size=20), cohorts)
    assert set(ours.history["num_local_steps"]) == {1}
    descent = trained(fedax.fedavg(TASK.model, 0.3, **one), cohorts)
    close(ours.params["x"], descent.params["x"])
    store = ours.state.client_store
    assert not np.any(store.read(EVERYONE)["x"])


def test_scaffnews_control_variates_sum_to_0_whoever_takes_part():
    result = trained(fedax.scaffnew(TASK.model, 0.2, 0.3, weighting="uniform"))
    own = result.state.client_store.read(EVERYONE)["x"]
    assert np.abs(own).max() > 1e-3
    close(own.sum(0), np.zeros(3))


@pytest.mark.quick
def test_the_geometric_schedule_has_the_geometric_distribution():
    """Mean 1 / p, P(K = 1) = p; the same numbers for the same seed, others for another."""
    draws = {
        seed: np.asarray(jax.vmap(schedules.geometric(0.25, seed))(jnp.arange(2000)))
        for seed in (0, 1)
    }
    assert draws[0].min() == 1
    assert abs(draws[0].mean() - 4) < 4 * np.sqrt(0.75 / 0.25**2 / 2000)
    assert abs((draws[0] == 1).mean() - 0.25) < 4 * np.sqrt(0.25 * 0.75 / 2000)
    assert (draws[0] != draws[1]).any()
    assert set(np.asarray(jax.vmap(schedules.geometric(1.0))(jnp.arange(50)))) == {1}
    with pytest.raises(ValueError, match=r"probability must be .* but is 0"):
        schedules.geometric(0.0)


# ------------------------------------------------------------ published orderings


def minimiser(weights):
    parts = [client_quadratic(TASK, i) for i in EVERYONE]
    hessian = sum(p * h for p, (h, _) in zip(weights, parts, strict=True))
    pull = sum(p * h @ c for p, (h, c) in zip(weights, parts, strict=True))
    return np.linalg.solve(hessian, pull)


def distance(algorithm, rounds, weights=(0.1,) * 10):
    """From the minimiser of the mean loss, after rounds with everyone."""
    end = fedax.train(
        TASK, algorithm, num_rounds=rounds, cohort_size=10, sampling="full", evaluate_every=0
    )
    return np.linalg.norm(np.asarray(end.params["x"]) - minimiser(weights))


@pytest.mark.slow
def test_fednova_removes_what_unequal_numbers_of_steps_do_to_fedavg():
    """Wang et al., Theorem 1: FedAvg rests at the minimum of other weights; here 5 times as far."""
    options = {"batch_size": 1, "num_local_epochs": 1, "order": "sequential"}
    p = SIZES / SIZES.sum()
    ours, average = (
        distance(factory(TASK.model, 0.003, **options), 3000, p)
        for factory in (fedax.fednova, fedax.fedavg)
    )
    assert 5 * ours < average


@pytest.mark.slow
@pytest.mark.parametrize(
    ("factory", "settings"),
    [(fedax.fedlin, {}), (fedax.fedadmm, {"proximal_weight": 0.5}),
     (fedax.scaffnew, {"communication_probability": 0.1})],
    ids=["fedlin", "fedadmm", "scaffnew"],
)
def test_a_method_finds_the_minimum_where_fedavg_does_not(factory, settings):
    """Mitra et al., Theorem 1; Gong et al., section V; Mishchenko et al., Theorem 3.6.

    Full gradients, some 10 local steps, clients that differ: 10^-6 against more than 10^-2.
    """
    steps = {} if factory is fedax.scaffnew else {"num_local_steps": 10}
    assert distance(factory(TASK.model, 0.3, batch_size=20, **steps, **settings), 600) < 1e-6
    average = fedax.fedavg(
        TASK.model, 0.3, batch_size=20, num_local_steps=10, weighting="uniform"
    )
    assert distance(average, 600) > 1e-2


def stiff(dimension=10, condition=1000.0, spread=0.0):
    """Clients whose quadratics share curvatures between 1 / condition and 1."""
    draw = np.random.default_rng(0)
    curvature = np.diag(np.geomspace(1 / condition, 1, dimension))
    centres = 1 + spread * draw.normal(size=(10, 1, dimension))
    data = fedax.FederatedDataset.from_clients(
        [{"A": curvature[None], "c": centre} for centre in centres]
    )
    task = TASK._replace(
        model=quadratic_model(dimension, start=[0.0] * dimension), train=data, test=None
    )
    gap = lambda x: (x - centres.mean((0, 1))) @ curvature @ (x - centres.mean((0, 1)))  # noqa: E731
    return task, gap


def losses_after(task, gap, rounds, *algorithms):
    return [
        gap(np.asarray(fedax.train(
            task, algorithm, num_rounds=rounds, cohort_size=10, sampling="full", evaluate_every=0
        ).params["x"]))
        for algorithm in algorithms
    ]


@pytest.mark.slow
def test_fedac_needs_fewer_rounds_than_fedavg():
    """Yuan and Ma, Figure 1: at the same step size and number of rounds a tenth of the loss."""
    task, gap = stiff()
    options = {"batch_size": 1, "num_local_steps": 4}
    ours, average = losses_after(
        task, gap, 100,
        fedax.fedac(task.model, 0.5, 1e-3, "I", **options),
        fedax.fedavg(task.model, 0.5, weighting="uniform", **options),
    )
    assert 10 * ours < average


@pytest.mark.slow
def test_fedexp_needs_fewer_rounds_than_fedavg():
    """Jhunjhunwala et al., Figure 2: clients that differ, one model that fits all; by 10.

    Each client's loss has one direction of its own, so changes are orthogonal and the step is 5.
    """
    data = fedax.FederatedDataset.from_clients(
        [{"A": np.diag(np.eye(10)[i])[None], "c": np.ones((1, 10))} for i in range(10)]
    )
    task = TASK._replace(model=quadratic_model(10, start=[0.0] * 10), train=data, test=None)
    options = {"batch_size": 1, "num_local_steps": 5, "weighting": "uniform"}
    ours, average = losses_after(
        task, lambda x: ((x - 1) ** 2).sum(), 30,
        fedax.fedexp(task.model, 0.1, epsilon=1e-9, **options),
        fedax.fedavg(task.model, 0.1, **options),
    )
    assert 10 * ours < average


@pytest.mark.slow
def test_scaffnew_needs_fewer_rounds_than_gradient_descent():
    """Mishchenko et al., Theorem 3.6: fewer by the root of the condition number, here 10.

    With p = 0.1 and gamma = 1 / L, 100 rounds are worth more than 400 of gradient descent with
    gamma = 1 / L.
    """
    task, gap = stiff(condition=100.0, spread=1.0)
    (ours,) = losses_after(task, gap, 100, fedax.scaffnew(task.model, 1.0, 0.1, batch_size=1))
    (descent,) = losses_after(
        task, gap, 400, fedax.fedavg(task.model, 1.0, batch_size=1, num_local_steps=1)
    )
    assert ours < descent
