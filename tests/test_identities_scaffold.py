"""SCAFFOLD, FedProx, local and server adaptivity and FedSGD's decays, against NumPy."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedax
from fedax import Task
from fedax.rounds.sampling import sample_cohort
from test_hard_users import SIZES, close, quadratic, ragged, run

GAMMA = 0.1
WALK = {"batch_size": 2, "order": "sequential"}


def far(actual, expected, least=1e-3):
    assert np.abs(np.asarray(actual) - np.asarray(expected)).max() > least


def gradient(rows, x):
    return (rows["a"] * x + rows["b"]).mean(0)


def minibatch(rows, k, size=2):
    """The k-th minibatch of epochs in the stored order, the last of an epoch being shorter."""
    first = k % -(-len(rows["a"]) // size) * size
    return {name: array[first : first + size] for name, array in rows.items()}


def clients_of(dataset):
    return [dataset.client(i) for i in range(dataset.num_clients)]


def mean_model(dataset, local):
    """sum_i n_i / n local(rows_i)."""
    models = [local(rows) for rows in clients_of(dataset)]
    return np.average(models, axis=0, weights=dataset.client_sizes)


def sgd(rows, x, rate, num_steps, size=2):
    for k in range(num_steps):
        x = x - rate * gradient(minibatch(rows, k, size), x)
    return x


# ------------------------------------------------------------------- SCAFFOLD


@pytest.mark.slow
@pytest.mark.parametrize(("option", "weighting"), [("I", "uniform"), ("II", "num_examples")])
def test_the_first_round_is_fedavg_and_the_second_is_not(option, weighting):
    model, dataset = quadratic(3), ragged(SIZES)
    order = "shuffled" if option == "II" else "sequential"
    options = {"batch_size": 2, "num_local_epochs": 2, "weighting": weighting, "order": order}
    ours = run(fedax.scaffold(model, GAMMA, control_option=option, **options), dataset, 2)
    average = run(fedax.fedavg(model, GAMMA, **options), dataset, 2)
    close(ours.params["x"][0], average.params["x"][0], 1e-14)
    far(ours.params["x"][1], average.params["x"][1])


@pytest.mark.parametrize(
    ("option", "weighting"), [("I", "num_examples"), ("II", "num_examples"), ("II", "uniform")]
)
def test_algorithm_4_with_sampled_clients_in_numpy(option, weighting):
    # Epochs of ragged minibatches (so K_i differs), weights n_i, |S| / N = 1/3, server rate 0.7.
    dataset, eta, size, rounds = ragged(SIZES), 0.7, 2, 6
    N = len(SIZES)
    algorithm = fedax.scaffold(
        quadratic(3), GAMMA, eta, control_option=option, weighting=weighting, **WALK
    )
    result = fedax.train(
        Task(quadratic(3), dataset), algorithm, num_rounds=rounds, cohort_size=size
    )
    x, c, own = np.ones(3), np.zeros(3), np.zeros((N, 3))
    for t in range(rounds):
        cohort = sample_cohort(0, t, N, size)
        moves, changes = [], []
        for i in cohort:
            rows, y = dataset.client(int(i)), x
            K = -(-SIZES[i] // 2)
            for k in range(K):
                y = y - GAMMA * (gradient(minibatch(rows, k), y) - own[i] + c)
            new = gradient(rows, x) if option == "I" else own[i] - c + (x - y) / (K * GAMMA)
            moves.append(y - x)
            changes.append(new - own[i])
            own[i] = new
        weights = [SIZES[i] if weighting == "num_examples" else 1 for i in cohort]
        x = x + eta * np.average(moves, axis=0, weights=weights)
        c = c + size / N * np.average(changes, axis=0, weights=weights)
    state = result.state
    close((result.params["x"], state.server_state.control["x"]), (x, c))
    close(state.client_store.read(np.arange(N))["x"], own)
    if weighting == "uniform":
        close(c, own.mean(0))  # c is the mean of all c_i, whoever took part
    else:
        far(c, own.mean(0))


# -------------------------------------------------------------------- FedProx


@pytest.mark.quick
def test_fedprox_of_mu_0_is_fedavg_to_the_bit():
    model, dataset, options = quadratic(3), ragged(SIZES), {"num_local_steps": 4, **WALK}
    prox = run(fedax.fedprox(model, GAMMA, proximal_weight=0.0, **options), dataset, 3)
    average = run(fedax.fedavg(model, GAMMA, **options), dataset, 3)
    np.testing.assert_array_equal(prox.params["x"], average.params["x"])
    default = run(fedax.fedprox(model, GAMMA, **options), dataset, 3)  # mu = 0.01
    far(default.params["x"], average.params["x"], 1e-5)


def test_fedprox_with_rho_is_mu_rho_over_gamma():
    # Algorithm 2 of Chen et al. 2023 prints y - gamma g + rho (x - y), which gamma does not
    # multiply.
    dataset, K, rho, decay = ragged(SIZES), 4, 0.05, 0.8
    rate = fedax.schedules.exponential_decay(GAMMA, decay)
    prox = fedax.fedprox(quadratic(3), rate, rho=rho, num_local_steps=K, **WALK)
    same = fedax.fedprox(
        quadratic(3), rate, proximal_weight=lambda t: rho / rate(t), num_local_steps=K, **WALK
    )
    got = run(prox, dataset, 3).params["x"]
    close(run(same, dataset, 3).params["x"], got)
    x = np.ones(3)
    for t in range(3):

        def local(rows, x=x, gamma=GAMMA * decay**t):
            y = x
            for k in range(K):
                y = y - gamma * gradient(minibatch(rows, k), y) + rho * (x - y)
            return y

        x = mean_model(dataset, local)
        close(got[t], x)
    with pytest.raises(ValueError, match="rho"):
        fedax.fedprox(quadratic(), rho=0.1, proximal_weight=0.1)


def test_fedprox_on_quadratics_is_the_closed_form():
    # x_K - x = -[I - (I - gamma (A + mu))^K] (A + mu)^{-1} grad f_i(x), full batches, diagonal A.
    dataset, K, mu = ragged(SIZES), 6, 0.7
    prox = fedax.fedprox(
        quadratic(3), GAMMA, proximal_weight=mu, num_local_steps=K, batch_size=max(SIZES),
        order="sequential",
    )

    def local(rows):
        stiff = rows["a"].mean(0) + mu
        return 1 - (1 - (1 - GAMMA * stiff) ** K) / stiff * gradient(rows, 1.0)

    close(run(prox, dataset, 1).params["x"][0], mean_model(dataset, local))


# -------------------------------------- adaptive clients, the centralised one


@pytest.mark.parametrize(("epsilon", "start", "weighting"),
                         [(1.0, 1.0, "uniform"), (0.3, 0.2, "num_examples")])
def test_adaalter_is_xie_et_als_algorithm_4(epsilon, start, weighting):
    # Local steps t = 1, 2, ... over all rounds; every H-th synchronises, t' = mod(t - 1, H) + 1.
    dataset, H, rounds = ragged(SIZES), 3, 4
    weights = np.array(SIZES if weighting == "num_examples" else [1] * len(SIZES), float)
    algorithm = fedax.adaalter(
        quadratic(3), 0.5, epsilon, start, num_local_steps=H, weighting=weighting, **WALK
    )
    states = run(algorithm, dataset, rounds)
    x = [np.ones(3)] * len(SIZES)
    B2 = [np.full(3, start)] * len(SIZES)
    for t in range(1, H * rounds + 1):
        t_prime = (t - 1) % H + 1
        if t_prime == 1:
            synchronized = list(B2)
        for i, rows in enumerate(clients_of(dataset)):
            g = gradient(minibatch(rows, t_prime - 1), x[i])
            x[i] = x[i] - 0.5 * g / np.sqrt(synchronized[i] + t_prime * epsilon**2)
            B2[i] = B2[i] + g * g
        if t_prime == H:
            x = [np.average(x, axis=0, weights=weights)] * len(SIZES)
            B2 = [np.average(B2, axis=0, weights=weights)] * len(SIZES)
            at, state = t // H - 1, states.shared
            close((states.params["x"][at], state["x"][at]), (x[0], B2[0]))


def adam_path(gradients_at, x, rate, beta1, beta2, epsilon):
    """Kingma and Ba's Adam along a list of gradient functions."""
    m = v = 0.0
    for t, g_at in enumerate(gradients_at, 1):
        g = g_at(x)
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
        x = x - rate * (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + epsilon)
    return x


def in_order(rows, size, epochs):
    steps = -(-len(rows["a"]) // size) * epochs
    return [lambda x, k=k: gradient(minibatch(rows, k, size), x) for k in range(steps)]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_centralised_training_is_the_optimizer_on_the_pool(optimizer):
    dataset, rounds = ragged(SIZES), 3
    path = in_order(dataset.arrays, 4, 2 * rounds)
    with jax.numpy_dtype_promotion("standard"):  # optax's own arithmetic mixes dtypes
        opt = None if optimizer == "sgd" else optax.adam(1.0, 0.8, 0.9, eps=1e-2)
        algorithm = fedax.centralised(
            quadratic(3), GAMMA, opt, batch_size=4, order="sequential", num_local_epochs=2
        )
        result = fedax.train(
            Task(quadratic(3), dataset), algorithm, num_rounds=rounds, cohort_size=2
        )
    if optimizer == "adam":
        expected = adam_path(path, np.ones(3), GAMMA, 0.8, 0.9, 1e-2)
    else:
        expected = np.ones(3)
        for g in path:
            expected = expected - GAMMA * g(expected)
    close(result.params["x"], expected)


@pytest.mark.slow
def test_local_adaptive_of_one_client_is_the_uninterrupted_optimizer():
    dataset, rounds = ragged([7]), 4
    with jax.numpy_dtype_promotion("standard"):
        opt = optax.adam(1.0, 0.8, 0.9, eps=1e-2)
        kept = run(fedax.local_adaptive(quadratic(3), opt, GAMMA, **WALK), dataset, rounds)
        afresh = fedax.fedopt(
            quadratic(3), opt, optax.sgd(1.0), client_learning_rate=GAMMA, **WALK
        )
        afresh = run(afresh, dataset, rounds)
    expected = adam_path(in_order(dataset.client(0), 2, rounds), np.ones(3), GAMMA, 0.8, 0.9, 1e-2)
    close(kept.params["x"][-1], expected)
    assert kept.shared[0].count.tolist() == [4, 8, 12, 16]
    far(afresh.params["x"][-1], expected, 1e-2)


def test_local_adam_averages_its_moments():
    dataset, K, tau = ragged(SIZES), 3, 0.05
    states = run(
        fedax.local_adam(quadratic(3), GAMMA, 0.7, tau, num_local_steps=K, **WALK), dataset, 3
    )
    x, m, v = np.ones(3), np.zeros(3), np.full(3, tau**2)
    for t in range(3):

        def local(rows, x=x, m=m, v=v):
            for k in range(K):
                g = gradient(minibatch(rows, k), x)
                m = 0.9 * m + 0.1 * g
                x, v = x - GAMMA * m / (tau + np.sqrt(v)), 0.99 * v + 0.01 * g * g
            return np.stack([x, m, v])

        mean, m, v = mean_model(dataset, local)
        x = x + 0.7 * (mean - x)
        moments = states.shared
        close((states.params["x"][t], moments.m["x"][t], moments.v["x"][t]), (x, m, v))


# ----------------------------------------------------------- adaptive servers


@pytest.mark.quick
@pytest.mark.parametrize("name", ["fedamsgrad", "fedadabound", "decay2021's FedAdam"])
def test_adaptive_servers_in_numpy(name):
    dataset, K, rounds = ragged(SIZES), 3, 12
    eta, tau, beta1, beta2 = 0.3, 0.02, 0.8, 0.7
    options = {"num_local_steps": K, **WALK}
    if name == "fedamsgrad":
        algorithm = fedax.fedamsgrad(quadratic(3), GAMMA, eta, tau, beta1, beta2, **options)
    elif name == "fedadabound":
        algorithm = fedax.fedadabound(
            quadratic(3), GAMMA, eta, tau, beta1, beta2, final_scale=3.0, bound_rate=0.1, **options
        )
    else:  # decay2021, Algorithm 3: v from 0, eta_t = alpha sqrt(1 - b2^t) / (1 - b1^t)
        server = fedax.optimizers.adam(tau, beta1, beta2, 0.0, "standard")
        algorithm = fedax.fedsgd(quadratic(3), GAMMA, eta, server_optimizer=server, **options)
    got = run(algorithm, dataset, rounds).params["x"]
    x, m = np.ones(3), np.zeros(3)
    v = largest = np.full(3, 0.0 if name == "decay2021's FedAdam" else tau**2)
    clipped = set()
    for t in range(1, rounds + 1):
        delta = mean_model(dataset, lambda rows, x=x: sgd(rows, x, GAMMA, K)) - x
        m, v = beta1 * m + (1 - beta1) * delta, beta2 * v + (1 - beta2) * delta**2
        scale = 1 / (np.sqrt(v) + tau)
        if name == "fedamsgrad":
            clipped |= set(np.sign(largest - v))
            largest = np.maximum(largest, v)
            scale = 1 / (np.sqrt(largest) + tau)
        elif name == "fedadabound":
            low, high = 3 * (1 - 1 / (0.1 * t + 1)), 3 * (1 + 1 / (0.1 * t))
            clipped |= set(np.sign(scale - high))
            scale = np.clip(scale, low, high)
        else:
            scale = scale * np.sqrt(1 - beta2**t) / (1 - beta1**t)
        x = x + eta * m * scale
        close(got[t - 1], x)
    assert name == "decay2021's FedAdam" or clipped == {-1, 1}  # the bound was at work, and was not


# ------------------------------------------------------- FedSGD's three decays


@pytest.mark.slow
def test_all_combinations_of_the_three_decays_in_numpy():
    dataset, K0, eta = ragged(SIZES[:3]), 5, 0.6
    decays = [*itertools.product((1.0, 0.7), (1.0, 0.8), (1.0, 0.9))]

    def path(decays):
        algorithm = fedax.fedsgd(quadratic(3), GAMMA, eta, *decays, num_local_steps=K0, **WALK)
        return run(algorithm, dataset, 5).params["x"]

    paths = jax.vmap(path)(jnp.asarray(decays))
    for (steps_decay, client_decay, server_decay), got in zip(decays, paths, strict=True):
        x = np.ones(3)
        for t in range(5):
            K, rate = int(np.ceil(K0 * steps_decay**t)), GAMMA * client_decay**t
            mean = mean_model(dataset, lambda rows, x=x, K=K, rate=rate: sgd(rows, x, rate, K))
            x = x + eta * server_decay**t * (mean - x)
            close(got[t], x)


def counts(make, num_rounds, dtype):
    """total_local_steps of each round, one client of one example."""
    arrays = {"a": np.ones((1, 1), dtype), "b": np.zeros((1, 1), dtype)}
    dataset = fedax.FederatedDataset(arrays, np.array([0, 1]))
    model = quadratic()._replace(init=lambda key: {"x": jnp.ones(1, dtype)})
    result = fedax.train(
        Task(model, dataset), make(model), num_rounds=num_rounds, cohort_size=1, evaluate_every=0
    )
    return result.history["total_local_steps"]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_decayed_steps_are_4586_and_4577(dtype):
    # ceil(10 * 0.995^t), 3000 rounds from t = 0 and from t = 1; the first K = 1 at t = 460.
    with jax.enable_x64(dtype == "float64"):
        steps = counts(
            lambda model: fedax.fedsgd(
                model, 0.01, num_local_steps=10, steps_decay=0.995, batch_size=1,
                order="sequential",
            ),
            3001, dtype,
        )
    assert (steps[:3000].sum(), steps[1:].sum()) == (4586, 4577)
    assert np.argmax(steps == 1) == 460


def test_breaks_when_the_steps_are_rounded():
    steps = counts(
        lambda model: fedax.fedavg(
            model, 0.01, num_local_steps=lambda t: jnp.round(10 * 0.995 ** t.astype(float)),
            batch_size=1, order="sequential",
        ),
        700, "float64",
    )
    ceil = np.ceil(10 * 0.995 ** np.arange(700))
    assert steps.sum() < ceil.sum() - 300
    assert steps[-1] == 0  # and from t = 598 on nothing is trained at all


def test_fewer_steps_cost_less_time():
    dataset = ragged([1])
    algorithm = fedax.fedsgd(
        quadratic(3), 1e-3, num_local_steps=2_000_000, steps_decay=0.5, batch_size=1,
        order="sequential",
    )
    history = fedax.train(
        Task(quadratic(3), dataset), algorithm, num_rounds=14, cohort_size=1, evaluate_every=0
    ).history
    assert history["total_local_steps"][[0, 1, 13]].tolist() == [2_000_000, 1_000_000, 245]
    seconds = history["seconds"]  # round 0 compiles; a million steps, then some thousand and fewer
    assert seconds[1] > 5 * seconds[8:].min()
