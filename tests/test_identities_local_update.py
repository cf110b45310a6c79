"""Identities of LocalUpdate, MAML and LocalUpdateDecay (Charles and Konečný 2020)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax import FederatedDataset, Task
from fedax.algorithms.plateau import Plateau, next_plateau
from test_hard_users import SIZES, close, quadratic, ragged, run

GAMMA, ETA = 0.1, 0.3
WALK = {"batch_size": 2, "order": "sequential"}


def far(actual, expected, least=1e-3):
    assert np.abs(np.asarray(actual) - np.asarray(expected)).max() > least


def last_x(algorithm, dataset, num_rounds=4, params=None):
    return run(algorithm, dataset, num_rounds, params).params["x"][-1]


def gradient(rows, x):
    return (rows["a"] * x + rows["b"]).mean(0)


def minibatch(rows, k, size=2):
    """The k-th minibatch of epochs in the stored order, the last of an epoch being shorter."""
    first = k % -(-len(rows["a"]) // size) * size
    return {name: array[first : first + size] for name, array in rows.items()}


def local_gradients(rows, x, rate, num_steps, size=2):
    """g_1, ..., g_K along SGD from x."""
    for k in range(num_steps):
        g = gradient(minibatch(rows, k, size), x)
        yield g
        x = x - rate * g


def numpy_rounds(dataset, theta, num_rounds, uniform=True):
    """LocalUpdate(Theta, GAMMA, ETA), Algorithms 1 and 2 written out."""
    x = np.ones(3)
    clients = [dataset.client(i) for i in range(dataset.num_clients)]
    weights = np.array([1 if uniform else len(rows["a"]) for rows in clients], float)
    for _ in range(num_rounds):
        q = [
            sum(t * g for t, g in zip(theta, local_gradients(rows, x, GAMMA, len(theta)),
                                      strict=True))
            for rows in clients
        ]
        x = x - ETA * np.average(q, axis=0, weights=weights)
    return x


# ------------------------------------------------------ FedAvg as LocalUpdate


@pytest.mark.slow
@pytest.mark.parametrize("weighting", ["num_examples", "uniform"])
def test_all_gradients_at_the_clients_rate_are_fedavg(weighting):
    model, dataset = quadratic(3), ragged(SIZES)
    order = "shuffled" if weighting == "num_examples" else "sequential"
    options = {"batch_size": 2, "num_local_epochs": 2, "weighting": weighting, "order": order}
    average = last_x(fedax.fedavg(model, GAMMA, 1.0, **options), dataset)
    update = fedax.local_update(model, GAMMA, GAMMA, "all", **options)
    close(last_x(update, dataset), average)
    if weighting == "uniform":
        other = fedax.local_update(model, GAMMA, 1.1 * GAMMA, "all", **options)
        far(last_x(other, dataset), average)
        del options["weighting"]  # it is local_sgd's default
        close(last_x(fedax.local_sgd(model, GAMMA, **options), dataset), average)


def test_holds_with_an_adaptive_server_when_its_adaptivity_scales():
    # The server sees -Delta / gamma in place of -Delta, which scaling tau by 1/gamma undoes.
    model, dataset, options = quadratic(3), ragged(SIZES), {"num_local_steps": 3, **WALK}
    adam = fedax.optimizers.adam(0.01 / GAMMA)
    update = fedax.local_update(model, GAMMA, ETA, "all", adam, **options)
    named = fedax.fedadam(model, GAMMA, ETA, 0.01, **options)
    close(last_x(update, dataset), last_x(named, dataset))


# -------------------------------------------------------------------- Theta_1


@pytest.mark.slow
def test_theta_1_does_not_know_gamma_and_is_minibatch_sgd_of_size_mb():
    model, M, B = quadratic(3), 4, 3
    dataset = ragged([B + 2] * M)
    options = {"batch_size": B, "weighting": "uniform", "order": "sequential"}
    x = last_x(fedax.minibatch_sgd(model, ETA, **options), dataset)
    for gamma, theta in ((0.0, (1.0,)), (0.7, (1.0,)), (0.7, (1.0, 0.0, 0.0))):
        update = fedax.local_update(model, gamma, ETA, theta, **options)
        np.testing.assert_array_equal(last_x(update, dataset), x)
    expected = np.ones(3)
    pool = {
        name: np.concatenate([dataset.client(i)[name][:B] for i in range(M)]) for name in "ab"
    }
    for _ in range(4):
        expected = expected - ETA * gradient(pool, expected)  # MB = 12 examples
    close(x, expected)
    far(last_x(fedax.local_update(model, 0.7, ETA, (0.0, 1.0), **options), dataset), x)


# ------------------------------------------------------------------ gamma = 0


@pytest.mark.parametrize("order", ["sequential", "shuffled"])
def test_without_a_client_rate_the_output_is_k_gradients_of_kb_pooled_samples(order):
    K, B = 4, 3
    dataset = ragged([K * B] * 3)  # an epoch: in any order each example once
    options = {"batch_size": B, "num_local_steps": K, "order": order}
    x = last_x(fedax.local_update(quadratic(3), 0.0, ETA, "all", **options), dataset)
    expected = np.ones(3)
    for _ in range(4):
        expected = expected - ETA * K * gradient(dataset.arrays, expected)
    close(x, expected)


def test_without_a_client_rate_the_delta_form_stays_exactly_where_it_is():
    dataset = ragged(SIZES)
    for make in (fedax.fedavg, fedax.fedyogi):
        states = run(make(quadratic(3), 0.0, 5.0, **WALK), dataset, 3)
        np.testing.assert_array_equal(states.params["x"], 1.0)


# ------------------------------------------------------------------ Lookahead


def test_one_client_is_lookahead_with_alpha_eta_over_gamma():
    dataset, K, alpha = ragged([7]), 5, 0.4
    x = np.ones(3)
    for _ in range(4):  # Zhang et al. 2019: slow weights x, fast weights y
        y = x
        for k in range(K):
            y = y - GAMMA * gradient(minibatch(dataset.client(0), k), y)
        x = x + alpha * (y - x)
    options = {"num_local_steps": K, **WALK}
    named = fedax.lookahead(quadratic(3), GAMMA, alpha, **options)
    close(last_x(named, dataset), x)
    update = fedax.local_update(quadratic(3), GAMMA, alpha * GAMMA, "all", **options)
    close(last_x(update, dataset), x)
    far(last_x(fedax.lookahead(quadratic(3), GAMMA, 1.0, **options), dataset), x)


# --------------------------------------------------------------- Lemma 7, Theta


@pytest.mark.quick
@pytest.mark.parametrize("K", [1, 4])
def test_theta_k_is_the_gradient_after_k_minus_1_steps(K):
    dataset = ragged([7])
    x = last_x(fedax.fomaml(quadratic(3), GAMMA, ETA, num_local_steps=K, **WALK), dataset, 1)
    *_, last, one_more = local_gradients(dataset.client(0), np.ones(3), GAMMA, K + 1)
    close(x, 1 - ETA * last)
    far(x, 1 - ETA * one_more)


def test_epochs_end_theta_k_at_each_clients_own_last_step():
    dataset = ragged(SIZES)
    x = last_x(fedax.fomaml(quadratic(3), GAMMA, ETA, **WALK), dataset, 1)
    lasts = [
        [*local_gradients(dataset.client(i), np.ones(3), GAMMA, -(-n // 2))][-1]
        for i, n in enumerate(SIZES)
    ]
    close(x, 1 - ETA * np.average(lasts, axis=0, weights=SIZES))


def test_lemma_7_has_the_exponent_k_minus_1():
    # Planting the printed exponent K must break it: Theta_K's output is (1 - gamma l)^{K-1} l x.
    values, K = np.array([0.3, 1.0, 1.7]), 4
    dataset = FederatedDataset({"a": values[None], "b": np.zeros((1, 3))}, np.array([0, 1]))
    output = 1 - last_x(fedax.fomaml(quadratic(3), GAMMA, 1.0, num_local_steps=K), dataset, 1)
    close(output, (1 - GAMMA * values) ** (K - 1) * values)
    far(output, (1 - GAMMA * values) ** K * values, 0.02)


@pytest.mark.parametrize("uniform", [True, False])
@pytest.mark.parametrize("theta", [(1.0, 0.5, -2.0), (0.0, 0.0, 1.0, 3.0, 0.25)])
def test_theta_may_be_any_numbers(theta, uniform):
    dataset = ragged(SIZES)
    weighting = "uniform" if uniform else "num_examples"
    numbers = theta if uniform else np.array(theta)
    update = fedax.local_update(quadratic(3), GAMMA, ETA, numbers, weighting=weighting, **WALK)
    close(last_x(update, dataset, 3), numpy_rounds(dataset, theta, 3, uniform))


@pytest.mark.slow
def test_theta_counts_the_steps_unless_there_are_to_be_fewer():
    dataset, theta = ragged(SIZES), (1, 2, 3)  # whole numbers too
    for given, used in ((2, 2), (9, 3), (lambda t: 2.5 - t.astype(float), 3)):
        update = fedax.local_update(
            quadratic(3), GAMMA, ETA, theta, num_local_steps=given, weighting="uniform", **WALK
        )
        close(last_x(update, dataset, 1), numpy_rounds(dataset, theta[:used], 1))
    traced = jax.jit(
        lambda t: last_x(
            fedax.local_update(quadratic(3), GAMMA, ETA, t, weighting="uniform", **WALK), dataset, 1
        )
    )
    close(traced(jnp.asarray(theta, float)), numpy_rounds(dataset, theta, 1))


@pytest.mark.parametrize("theta", [(), (1.0, np.nan), np.ones((2, 2)), "first", 1.0])
def test_theta_must_be_finite_numbers(theta):
    with pytest.raises(ValueError, match="gradient_weights"):
        fedax.local_update(quadratic(), GAMMA, ETA, theta)


# ----------------------------------------------------------------------- MAML


def quartic():
    """Not a quadratic: a x^4 / 4 + b x."""

    def loss(params, batch, key):
        x = params["x"][None]
        losses = (batch["a"] * x**4 / 4 + batch["b"] * x).sum(-1)
        return losses, jnp.ones_like(losses)

    return quadratic(3)._replace(loss=loss)


@pytest.mark.parametrize("K", [0, 1, 2, 4])
def test_k_maml_of_quadratics_is_theta_2k_plus_1(K):
    dataset, options = ragged(SIZES), {"batch_size": max(SIZES), "order": "sequential"}
    x = last_x(fedax.maml(quadratic(3), 0.3, ETA, num_local_steps=K, **options), dataset, 3)
    theta = (0.0,) * (2 * K) + (1.0,)
    close(x, last_x(fedax.local_update(quadratic(3), 0.3, ETA, theta, **options), dataset, 3))
    named = fedax.fomaml(quadratic(3), 0.3, ETA, num_local_steps=K + 1, **options)
    if K == 2:  # first order only is Theta_{K+1}; and off quadratics the identity ends
        far(last_x(named, dataset, 3), x)
        exact = last_x(fedax.maml(quartic(), 0.1, ETA, num_local_steps=K, **options), dataset, 1)
        update = fedax.local_update(quartic(), 0.1, ETA, theta, **options)
        far(last_x(update, dataset, 1), exact)


@pytest.mark.parametrize("K", [1, 2, 4])
def test_the_k_maml_gradient_is_the_derivative(K):
    dataset, rate = ragged([5, 2]), 0.05
    options = {"num_local_steps": K, "batch_size": 5, "order": "sequential"}
    output = 1 - last_x(fedax.maml(quartic(), rate, 1.0, **options), dataset, 1)

    def objective(x):
        total = 0.0
        for rows, n in ((dataset.client(0), 5), (dataset.client(1), 2)):
            y, a, b = x, rows["a"].mean(0), rows["b"].mean(0)
            for _ in range(K):
                y = y - rate * (a * y**3 + b)
            total += n / 7 * (a * y**4 / 4 + b * y).sum()
        return total

    h = 1e-5
    differences = [(objective(1 + h * u) - objective(1 - h * u)) / (2 * h) for u in np.eye(3)]
    np.testing.assert_allclose(output, differences, rtol=1e-7)


@pytest.mark.parametrize("K", [0, 1, 2, 3, 4])
def test_in_sequence_the_outer_minibatch_follows_the_inner_ones(K):
    """Batches of 2 of 5 examples: inner 0 to K - 1, outer the next, from the start after the last.

    The paper draws S_1, ..., S_K and z from the client's examples, each on its own.
    """
    dataset, options = ragged([5]), {"batch_size": 2, "order": "sequential"}
    x = last_x(fedax.maml(quadratic(3), GAMMA, 1.0, num_local_steps=K, **options), dataset, 1)
    client = dataset.client(0)
    batches = [[client[name][rows].mean(0) for name in "ab"] for rows in ([0, 1], [2, 3], [4])]
    y, derivative = np.ones(3), np.ones(3)
    for k in range(K):
        a, b = batches[k % 3]
        y, derivative = y - GAMMA * (a * y + b), derivative * (1 - GAMMA * a)
    a, b = batches[K % 3]
    close(1 - x, derivative * (a * y + b))


@pytest.mark.slow
def test_breaks_with_random_minibatches():
    # Scalar A_z in {.5, 1.5}, c = 0, gamma = .4, K = 1, one example a minibatch, x = 1. MAML's step
    # and its derivative share z, the outer minibatch is fresh; Theta_3 has three; all shared: .28.
    curvatures, gamma, clients = np.array([0.5, 1.5]), 0.4, 20_000
    shrink, mean = 1 - gamma * curvatures, curvatures.mean()
    maml, theta, shared = (
        (shrink**2).mean() * mean, shrink.mean() ** 2 * mean, (shrink**2 * curvatures).mean()
    )
    assert (maml, theta, shared) == pytest.approx((0.40, 0.36, 0.28))
    draws = np.multiply.outer(shrink**2, curvatures)
    arrays = {"a": np.tile(curvatures, clients)[:, None], "b": np.zeros((2 * clients, 1))}
    dataset = FederatedDataset(arrays, np.arange(0, 2 * clients + 1, 2))
    options = {"batch_size": 1, "order": "iid"}
    means = [
        1 - float(run(algorithm, dataset, 1, None, clients).params["x"][0, 0])
        for algorithm in (
            fedax.maml(quadratic(), gamma, 1.0, num_local_steps=1, **options),
            fedax.local_update(quadratic(), gamma, 1.0, (0.0, 0.0, 1.0), **options),
        )
    ]
    error = draws.std() / np.sqrt(clients)  # of the first; the second's is smaller
    assert abs(means[0] - maml) < 4 * error
    assert abs(means[1] - theta) < 4 * error
    assert 10 * error < 0.04  # so neither is the other, and neither is `shared`


# ------------------------------------------------------------ LocalUpdateDecay


def rounds_of_decay(num_rounds, **options):
    """1-based rounds in which the rates fall when the loss is constant."""
    model = quadratic()._replace(
        loss=lambda params, batch, key: (0 * batch["a"][:, 0] + 3.0, jnp.ones(len(batch["a"])))
    )
    build = functools.partial(fedax.fedavg, model, batch_size=1)
    algorithm = fedax.local_update_decay(build, model, **options)
    decays = np.asarray(run(algorithm, ragged([1], 1), num_rounds).own.num_decays)
    return (np.flatnonzero(np.diff(decays, prepend=0)) + 1).tolist()


@pytest.mark.slow
def test_a_constant_loss_under_the_released_rule():
    assert rounds_of_decay(800, rule="released") == [200, 399, 598, 797]  # W = P = C = 100
    assert rounds_of_decay(400, rule="released", window=10) == [199, 398]


@pytest.mark.slow
def test_a_constant_loss_under_the_papers_rule():
    # W = 100: the first mean is round 100's, so (25) holds from round 101 on and has done so
    # P = 100 times at 200. Rounds 201 to 300 are cooldown, in which the counter goes on: 301.
    assert rounds_of_decay(700) == [200, 301, 402, 503, 604]
    assert rounds_of_decay(350, window=10) == [110, 211, 312]
    assert rounds_of_decay(10, window=1, patience=1, cooldown=0) == list(range(2, 11))


def paper_rule(losses, W, P, C, delta):
    """Section 9.1 word for word, one decision a round."""
    means, count, barred, decisions = [], 0, C, []
    for t, _ in enumerate(losses):
        mean = np.mean(losses[t - W + 1 : t + 1]) if t >= W - 1 else np.inf
        holds = bool(np.isfinite([*means, np.inf]).any()) and mean > min(means) - delta  # (25)
        count = count + 1 if holds else 0
        decays = count >= P and barred == 0
        barred = max(barred - 1, 0)
        if decays:
            count, barred = 0, C
        means.append(mean)
        decisions.append(decays)
    return decisions


def released_rule(losses, W, P, C, delta):
    """The callback of the released code, whose `best` is set by the threshold only."""
    window, best, wait, cooldown, decisions = [np.inf] * W, np.inf, 0, C, []
    for loss in losses:
        window = [*window[1:], loss]
        if cooldown > 0:
            cooldown, wait = cooldown - 1, 0
        decays = False
        if np.mean(window) < best - delta:
            best, wait = np.mean(window), 0
        elif cooldown == 0:
            wait += 1
            if wait >= P:
                decays, cooldown, wait = True, C, 0
        decisions.append(decays)
    return decisions


@pytest.mark.parametrize("rule", ["paper", "released"])
def test_the_controller_on_random_losses(rule):
    def decisions(losses, W, P, C):
        zero = jnp.zeros((), jnp.int32)
        start = Plateau(
            jnp.full(W, jnp.inf), jnp.asarray(jnp.inf), zero, jnp.asarray(C, jnp.int32), zero
        )

        def step(plateau, loss):
            after = next_plateau(plateau, loss, P, C, 0.02, rule)
            return after, after.num_decays > plateau.num_decays

        return jax.jit(lambda x: jax.lax.scan(step, start, x)[1])(jnp.asarray(losses)).tolist()

    draw = np.random.default_rng(0)
    losses = np.exp(-np.arange(150) / 40) + 0.1 * draw.normal(size=150)
    for W, P, C in ((1, 1, 0), (1, 3, 0), (4, 2, 5), (5, 5, 5), (3, 6, 2)):
        expected = {"paper": paper_rule, "released": released_rule}[rule](losses, W, P, C, 0.02)
        assert sum(expected) > 2
        assert decisions(losses, W, P, C) == expected


def test_algorithm_3_in_numpy():
    dataset, K, T = ragged(SIZES), 3, 12
    gamma, eta, alpha, beta, delta = 1.2, 0.5, 0.5, 0.9, 1e-3
    model = quadratic(3)

    def build(client_rate, server_rate):
        return fedax.local_update(
            model, client_rate, server_rate, num_local_steps=K, weighting="uniform",
            batch_size=max(SIZES), order="sequential",
        )

    algorithm = fedax.local_update_decay(
        build, model, gamma, eta, alpha, beta, window=1, patience=1, cooldown=0, threshold=delta,
        loss_batch_size=4,
    )
    result = fedax.train(Task(model, dataset), algorithm, num_rounds=T, cohort_size=len(SIZES))
    x, losses, rates = np.ones(3), [], []
    for _ in range(T):
        loss, q = [], []
        for i in range(len(SIZES)):
            rows = dataset.client(i)
            loss.append((rows["a"] * x**2 / 2 + rows["b"] * x).sum(1).mean())
            q.append(sum(local_gradients(rows, x, gamma, K, max(SIZES))))
        rates.append((gamma, eta))
        x = x - eta * np.mean(q, axis=0)
        losses.append(np.mean(loss))
        if len(losses) > 1 and losses[-1] > min(losses[:-1]) - delta:
            gamma, eta = alpha * gamma, beta * eta
    assert 2 <= len(set(rates)) < T  # they fall, and not in every round
    close(result.params["x"], x)
    for name, expected in zip(("client", "server"), zip(*rates, strict=True), strict=True):
        close(result.history[f"{name}_learning_rate"], expected)
