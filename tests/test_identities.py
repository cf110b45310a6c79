"""Identities between algorithms that hold exactly (float64), and faults that must break them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedax import Exchange, FederatedAlgorithm, Reply, fedadam, fedavg, fedavgm, fedopt, train
from fedax import optimizers as server_optimizers
from fedax.algorithms.server import ServerState
from fedax.clients.gradients import Loss, loss_gradient
from fedax.clients.local_steps import train_locally
from fedax.clients.minibatches import count_local_steps, fold_minibatches
from problems import largest_difference, quadratic_task

ROUNDS, COHORT = 10, 6


def run(task, algorithm, num_rounds=ROUNDS):
    return train(task, algorithm, num_rounds=num_rounds, cohort_size=COHORT).params


def one_exchange(client, server):
    """A stateless one-exchange algorithm for a test."""
    return FederatedAlgorithm(
        init=lambda params: ServerState(params, jnp.zeros((), jnp.int32), ()),
        init_client=lambda params: (),
        exchanges=(Exchange(lambda state: state.params, client, server),),
    )


def averaged_models(model, rate, weighting, **options):
    """FedAvg as Algorithm 3 prints it: the new model is the mean of the clients' models."""

    def client(params, state, data, key):
        result = train_locally(
            params, data, key, gradient=loss_gradient(model), optimizer=optax.sgd(1.0),
            learning_rate=rate, batch_size=options["batch_size"],
            num_steps=count_local_steps(data, options["batch_size"], options["num_local_epochs"]),
        )
        weight = data.num_examples if weighting == "num_examples" else data.num_examples > 0
        return Reply(result.params, weight.astype(float), state, {})

    return one_exchange(client, lambda state, mean, who: state._replace(params=mean))


@pytest.mark.slow
@pytest.mark.parametrize("weighting", ["num_examples", "uniform"])
def test_fedopt_with_sgd_of_rate_one_is_fedavg(weighting):
    task = quadratic_task()
    options = {"batch_size": 2, "num_local_epochs": 2}
    delta_form = fedopt(
        task.model, optax.sgd(1.0), optax.sgd(1.0), client_learning_rate=0.1,
        weighting=weighting, **options,
    )
    model_form = averaged_models(task.model, 0.1, weighting, **options)
    named = fedavg(task.model, 0.1, weighting=weighting, **options)
    expected = run(task, model_form)
    assert largest_difference(run(task, delta_form), expected) < 1e-12
    assert largest_difference(run(task, named), expected) < 1e-12


@pytest.mark.slow
def test_breaks_with_another_server_rate_or_other_weights():
    task = quadratic_task()
    options = {"batch_size": 2, "num_local_epochs": 2}
    expected = run(task, averaged_models(task.model, 0.1, "num_examples", **options))
    assert largest_difference(run(task, fedavg(task.model, 0.1, 0.99, **options)), expected) > 1e-3
    uniform = fedavg(task.model, 0.1, weighting="uniform", **options)
    assert largest_difference(run(task, uniform), expected) > 1e-3


def sums_of_gradients(model, client_rate, server_rate, num_steps, batch_size, weighting):
    """LocalUpdate(Theta_{1:K}): clients upload the sum of their gradients."""

    def client(params, state, data, key):
        def step(carry, batch, key):
            x, total = carry
            _, grads = loss_gradient(model)(x, batch, key)
            x = jax.tree.map(lambda a, g: a - jnp.asarray(client_rate, a.dtype) * g, x, grads)
            return x, jax.tree.map(jnp.add, total, grads)

        zeros = jax.tree.map(jnp.zeros_like, params)
        _, total = fold_minibatches(
            step, (params, zeros), data, key, batch_size=batch_size, num_steps=num_steps
        )
        weight = data.num_examples if weighting == "num_examples" else jnp.ones(())
        return Reply(total, weight.astype(float), state, {})

    def server(state, mean, who):
        params = jax.tree.map(lambda x, g: x - server_rate * g, state.params, mean)
        return state._replace(params=params)

    return one_exchange(client, server)


@pytest.mark.slow
@pytest.mark.parametrize("weighting", ["num_examples", "uniform"])
def test_sums_of_gradients_with_server_rate_gamma_are_fedavg(weighting):
    task = quadratic_task()
    gamma, K = 0.1, 4
    local_update = sums_of_gradients(task.model, gamma, gamma, K, 2, weighting)
    expected = run(
        task, fedavg(task.model, gamma, num_local_steps=K, batch_size=2, weighting=weighting)
    )
    assert largest_difference(run(task, local_update), expected) < 1e-12


@pytest.mark.slow
def test_breaks_when_the_rates_differ():
    task = quadratic_task()
    local_update = sums_of_gradients(task.model, 0.1, 0.11, 4, 2, "uniform")
    expected = run(
        task, fedavg(task.model, 0.1, num_local_steps=4, batch_size=2, weighting="uniform")
    )
    assert largest_difference(run(task, local_update), expected) > 1e-3


def fedprox(model, rate, proximal_weight, batch_size, num_local_steps):
    """FedProx as a test: the local gradient gains proximal_weight (x - x_t)."""

    def client(params, state, data, key):
        def gradient(x, batch, key):
            loss, grads = loss_gradient(model)(x, batch, key)
            return Loss(*loss), jax.tree.map(
                lambda g, a, b: g + proximal_weight * (a - b), grads, x, params
            )

        result = train_locally(
            params, data, key, gradient=gradient, optimizer=optax.sgd(1.0), learning_rate=rate,
            batch_size=batch_size,
            num_steps=count_local_steps(data, batch_size, None, num_local_steps),
        )
        return Reply(result.params, data.num_examples.astype(float), state, {})

    return one_exchange(client, lambda state, mean, who: state._replace(params=mean))


@pytest.mark.slow
def test_fedprox_without_its_term_is_fedavg_and_with_it_is_not():
    task = quadratic_task()
    expected = run(task, fedavg(task.model, 0.1, batch_size=2, num_local_steps=5))
    assert largest_difference(run(task, fedprox(task.model, 0.1, 0.0, 2, 5)), expected) < 1e-12
    assert largest_difference(run(task, fedprox(task.model, 0.1, 0.1, 2, 5)), expected) > 1e-4


@pytest.mark.slow
def test_fedavgm_without_momentum_is_fedavg_and_with_it_is_heavy_ball():
    task = quadratic_task()
    options = {"batch_size": 2, "num_local_steps": 5}
    expected = run(task, fedavg(task.model, 0.1, 0.7, **options))
    still = fedavgm(task.model, 0.1, 0.7, momentum=0.0, **options)
    moving = fedavgm(task.model, 0.1, 0.7, momentum=0.9, **options)
    assert largest_difference(run(task, still), expected) < 1e-12
    assert largest_difference(run(task, moving), expected) > 1e-2
    # Keras' heavy ball, written out: m = .9 m + Delta, x += eta m, for Delta = 1, 1, 1.
    optimizer, x, state = server_optimizers.heavy_ball(0.9), 0.0, None
    for expected_x in (0.7, 0.7 * (1 + 1.9), 0.7 * (1 + 1.9 + 2.71)):
        g = jnp.full(1, -1.0)
        state = optimizer.init(g) if state is None else state
        update, state = optimizer.update(g, state)
        x += 0.7 * float(update[0])
        assert x == pytest.approx(expected_x, rel=1e-12)


def steps(optimizer, deltas, rate=1.0):
    """The server's steps x_{t+1} - x_t for given mean deltas (scalars)."""
    state, result = optimizer.init(jnp.zeros(1)), []
    for delta in deltas:
        update, state = optimizer.update(jnp.full(1, -float(delta)), state)
        result.append(rate * float(update[0]))
    return np.array(result)


# FedAdam's first steps for a constant Delta = .1, eta = .01, tau = 1e-3, beta = (.9, .99).
FIRST_STEPS = {
    "paper": ({}, [0.0090503, 0.0125484, 0.0148395]),
    "bias-corrected": (
        {"initial_accumulator": 0.0, "bias_correction": "standard"},
        [0.0090909, 0.0093380, 0.0094516],
    ),
    "released, off by one": (
        {"initial_accumulator": 0.0, "bias_correction": "released"},
        [0.0067496, 0.0079983, 0.0085788],
    ),
}


@pytest.mark.quick
@pytest.mark.parametrize("form", FIRST_STEPS)
def test_first_steps_of_fedadam(form):
    options, expected = FIRST_STEPS[form]
    adam = server_optimizers.adam(adaptivity=1e-3, **options)
    np.testing.assert_allclose(steps(adam, [0.1] * 3, 0.01), expected, atol=5.1e-8)


def test_tells_the_three_forms_apart():
    paper, corrected, released = (
        steps(server_optimizers.adam(adaptivity=1e-3, **options), [0.1] * 3, 0.01)
        for options, _ in FIRST_STEPS.values()
    )
    for a, b in ((paper, corrected), (paper, released), (corrected, released)):
        assert np.min(np.abs(a - b)) > 4e-5


@pytest.mark.quick
@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (server_optimizers.adam(1e-3), 0.415),
        (server_optimizers.adam(1e-3, initial_accumulator=0.0), 0.500),
        (server_optimizers.adam(1e-3, initial_accumulator=0.0, bias_correction="released"), 0.371),
        (server_optimizers.yogi(1e-3), 0.414),
        (server_optimizers.yogi(1e-3, initial_accumulator=0.0), 0.500),
        (server_optimizers.adagrad(1e-3, initial_accumulator=0.0), 0.909),
        (optax.adagrad(1.0, initial_accumulator_value=0.1, eps=1e-3), 0.031),
        (optax.adam(1.0, 0.9, 0.99, eps=1e-3), 0.909),
    ],
    ids=["adam", "adam v=0 (FedLab)", "adam off by one (Flower)", "yogi", "yogi v=0 (Flower)",
         "adagrad v=0", "optax's adagrad, v=.1", "torch's adam"],
)
def test_first_server_step_of_each_convention(optimizer, expected):
    """Delta = 0.01, eta = 1, tau = 1e-3, beta = (.9, .99), one coordinate."""
    with jax.numpy_dtype_promotion("standard"):  # optax's own arithmetic mixes dtypes
        assert steps(optimizer, [0.01])[0] == pytest.approx(expected, abs=5e-4)


ADAPTIVE = {
    "adagrad": server_optimizers.adagrad,
    "adam": server_optimizers.adam,
    "yogi": server_optimizers.yogi,
}


@pytest.mark.parametrize("name", ADAPTIVE)
@pytest.mark.parametrize("scale", [1e-3, 7.0])
def test_scaling_delta_tau_and_root_v_leaves_the_steps(name, scale):
    deltas = np.random.default_rng(0).normal(size=20)
    plain = steps(ADAPTIVE[name](0.01, initial_accumulator=0.04), deltas)
    scaled = steps(
        ADAPTIVE[name](0.01 * scale, initial_accumulator=0.04 * scale**2), scale * deltas
    )
    np.testing.assert_allclose(scaled, plain, rtol=1e-12)
    wrong = steps(ADAPTIVE[name](0.01, initial_accumulator=0.04), scale * deltas)
    assert np.max(np.abs(wrong - plain)) > 1e-2  # tau and v must scale as well


def test_first_step_of_fedadagrad():
    eta, delta, tau, v = 0.3, 0.2, 0.01, 0.05
    adagrad = server_optimizers.adagrad(tau, initial_accumulator=v)
    expected = eta * delta / (np.sqrt(v + delta**2) + tau)
    assert steps(adagrad, [delta], eta)[0] == pytest.approx(expected, rel=1e-14)
    smallest = server_optimizers.adagrad(tau)  # v_{-1} = tau^2 unless it is given
    expected = eta * delta / (np.sqrt(tau**2 + delta**2) + tau)
    assert steps(smallest, [delta], eta)[0] == pytest.approx(expected, rel=1e-14)


def test_yogi_is_adam_in_its_first_step_from_zero_only():
    deltas = [0.3, -0.1, 0.2]
    yogi = steps(server_optimizers.yogi(0.01, initial_accumulator=0.0), deltas)
    adam = steps(server_optimizers.adam(0.01, initial_accumulator=0.0), deltas)
    assert yogi[0] == pytest.approx(adam[0], rel=1e-14)
    assert abs(yogi[1] - adam[1]) > 1e-3


def test_v_of_yogi_falls_no_faster_than_beta_2_allows():
    optimizer = server_optimizers.yogi(0.5, second_moment_decay=0.9)
    state = optimizer.init(jnp.zeros(1))
    rng = np.random.default_rng(1)
    for t in range(200):
        _, state = optimizer.update(jnp.asarray([rng.normal() * 0.05]), state)
        assert float(state.v[0]) >= 0.9 ** (t + 1) * 0.25 * (1 - 1e-12)


@pytest.mark.parametrize("name", ADAPTIVE)
def test_a_huge_tau_leaves_sgd_with_momentum(name):
    tau, e0 = 1e9, 0.5
    deltas = np.random.default_rng(2).normal(size=5)
    optimizer = ADAPTIVE[name](tau, momentum=0.9, initial_accumulator=1.0)
    moments, m = [], 0.0
    for delta in deltas:
        m = 0.9 * m + 0.1 * delta
        moments.append(e0 * m)
    np.testing.assert_allclose(steps(optimizer, deltas, tau * e0), moments, rtol=1e-7)


def numpy_server(name, deltas, eta, tau, beta1, beta2, smoothed=False):
    """Algorithm 2 of Reddi et al. 2021 in NumPy; `smoothed` plants the fault of squaring m_t."""
    m, v, result = 0.0, tau**2, []
    for delta in deltas:
        m = beta1 * m + (1 - beta1) * delta
        squared = m**2 if smoothed else delta**2
        if name == "adagrad":
            v = v + squared
        elif name == "adam":
            v = beta2 * v + (1 - beta2) * squared
        else:
            v = v - (1 - beta2) * squared * np.sign(v - squared)
        result.append(eta * m / (np.sqrt(v) + tau))
    return np.array(result)


@pytest.mark.parametrize("name", ADAPTIVE)
def test_algorithm_2_squares_the_raw_delta_and_not_the_smoothed_one(name):
    deltas = np.random.default_rng(3).normal(size=30)
    got = steps(ADAPTIVE[name](0.01, momentum=0.9), deltas, 0.1)
    np.testing.assert_allclose(
        got, numpy_server(name, deltas, 0.1, 0.01, 0.9, 0.99), rtol=1e-12
    )
    fault = numpy_server(name, deltas, 0.1, 0.01, 0.9, 0.99, smoothed=True)
    assert np.max(np.abs(got - fault)) > 1e-2
    no_momentum = steps(ADAPTIVE[name](0.01, momentum=0.0), deltas, 0.1)
    same = numpy_server(name, deltas, 0.1, 0.01, 0.0, 0.99, smoothed=True)
    np.testing.assert_allclose(no_momentum, same, rtol=1e-12)  # alike at beta_1 = 0


@pytest.mark.slow
def test_bias_correction_planted_in_fedadam_is_seen():
    task = quadratic_task()
    options = {"batch_size": 2, "num_local_steps": 3}
    paper = run(task, fedadam(task.model, 0.1, 0.01, **options))
    fault = run(task, fedadam(task.model, 0.1, 0.01, bias_correction="standard", **options))
    assert largest_difference(fault, paper) > 1e-3


@pytest.mark.parametrize("weighting", ["num_examples", "uniform"])
def test_fedavg_round_on_quadratics_is_the_closed_form(weighting):
    """x' = x - eta sum_i p_i [I - (I - gamma A_i)^K] (x - c_i), full batches (`charles2020`, 3)."""
    sizes, gamma, eta, K = (1, 1, 1, 1), 0.2, 0.8, 6
    task = quadratic_task(sizes)
    algorithm = fedavg(task.model, gamma, eta, batch_size=1, num_local_steps=K,
                       weighting=weighting)
    start = train(task, algorithm, num_rounds=0, cohort_size=4).params["x"]
    x = np.asarray(start)
    for _ in range(5):
        change = np.zeros_like(x)
        for A, c in zip(task.train.arrays["A"], task.train.arrays["c"], strict=True):
            contraction = np.linalg.matrix_power(np.eye(3) - gamma * A, K)
            change += (np.eye(3) - contraction) @ (x - c) / 4
        x = x - eta * change
    got = train(task, algorithm, num_rounds=5, cohort_size=4).params["x"]
    np.testing.assert_allclose(got, x, rtol=1e-12)


@pytest.mark.quick
def test_fedavg_of_unequal_clients_is_numpys():
    """Two epochs of ragged minibatches in the stored order, weights n_i, written out in NumPy."""
    # Minibatches of 3 leave rests of 1 and 2, which padding would bias if it weighed.
    sizes, rate, batch_size = (4, 8, 1), 0.1, 3
    task = quadratic_task(sizes)
    algorithm = fedavg(task.model, rate, batch_size=batch_size, num_local_epochs=2,
                       order="sequential")
    x = np.asarray(train(task, algorithm, num_rounds=0, cohort_size=3).params["x"])
    for _ in range(3):
        new = np.zeros_like(x)
        for client in range(3):
            data, y = task.train.client(client), x.copy()
            for _ in range(2):
                for first in range(0, sizes[client], batch_size):
                    A, c = (data[k][first : first + batch_size] for k in ("A", "c"))
                    y = y - rate * np.einsum("bij,bj->i", A, y[None] - c) / len(A)
            new += sizes[client] / sum(sizes) * y
        x = new
    got = train(task, algorithm, num_rounds=3, cohort_size=3).params["x"]
    np.testing.assert_allclose(got, x, rtol=1e-12)
