"""Identities and rules of Mime and its relatives (Karimireddy et al. 2020), against NumPy.

Every fault that an identity must notice is planted into the library's own method here.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedax
from fedax import BaseOptimizer, FederatedDataset, base_optimizers
from fedax.clients.minibatches import Minibatch
from test_hard_users import SIZES, close, quadratic, ragged, run

RATE = 0.05
WALK = {"batch_size": 2, "order": "sequential"}
BASES = {
    "sgd": base_optimizers.sgd(),
    "sgdm": base_optimizers.sgdm(0.9),
    "rmsprop": base_optimizers.rmsprop(0.9, 0.05),
    "adam": base_optimizers.adam(0.9, 0.99, 0.05),
}
every_base = pytest.mark.parametrize("base", BASES)


def far(actual, expected, least=1e-3):
    assert np.abs(np.asarray(actual) - np.asarray(expected)).max() > least


# --------------------------------------------------- Table 4 and rules in NumPy


class Moments(NamedTuple):
    m: Any = 0.0
    v: Any = 0.0


def direction(base: str, g, s: Moments):
    """U(g, s) of Table 4, with the numbers of BASES."""
    if base == "sgd":
        return g
    if base == "sgdm":
        return 0.1 * g + 0.9 * s.m
    root = 0.05 + np.sqrt(s.v)
    return g / root if base == "rmsprop" else (0.1 * g + 0.9 * s.m) / root


def update(base: str, g, s: Moments) -> Moments:
    """V(g, s)."""
    beta2 = 0.99 if base == "adam" else 0.9
    return Moments(0.1 * g + 0.9 * s.m, (1 - beta2) * g**2 + beta2 * s.v)


def gradient(rows, x):
    return (rows["a"] * x + rows["b"]).mean(0)


def minibatch(rows, k, size):
    """The k-th minibatch of epochs in the stored order, the last of an epoch being shorter."""
    n = len(rows["a"])
    first = k % -(-n // size) * size
    return {name: array[first : first + size] for name, array in rows.items()}


def clients_of(dataset):
    return [dataset.client(i) for i in range(dataset.num_clients)]


def mean_gradient(dataset, x):
    """Of the clients, weighted by their examples: of the pooled examples."""
    return gradient(dataset.arrays, x)


def reference(method, base, dataset, num_steps, num_rounds):
    """The rules written out: the parameters and statistics after each round."""
    x, s = np.ones(dataset.arrays["a"].shape[1]), Moments(0.0, 0.05**2)
    for _ in range(num_rounds):
        c, new = mean_gradient(dataset, x), 0.0
        for rows in clients_of(dataset):
            y, own = x, s
            for k in range(num_steps):
                batch = minibatch(rows, k, WALK["batch_size"])
                g = gradient(batch, y)
                if method != "mimelite":
                    g = g - gradient(batch, x) + c
                y = y - RATE * direction(base, g, own)
                if method == "cmime":
                    own = update(base, g, own)
            new = new + len(rows["a"]) / dataset.num_examples * y
        x, s = new, update(base, c, s)
        yield x, s


def check_statistics(statistics, s: Moments, at):
    if statistics:  # SGD has none
        for ours, theirs in zip(statistics, s, strict=True):
            if ours:  # a moment that this base has
                close(ours["x"][at], np.broadcast_to(theirs, ours["x"][at].shape))


@every_base
@pytest.mark.parametrize("method", ["mime", "mimelite", "cmime"])
def test_the_rules_written_out_in_numpy(method, base):
    dataset = ragged(SIZES)
    algorithm = getattr(fedax, method)(
        quadratic(3), RATE, BASES[base], num_local_steps=3, **WALK
    )
    states = run(algorithm, dataset, 4)
    for t, (x, s) in enumerate(reference(method, base, dataset, 3, 4)):
        close(states.params["x"][t], x)
        check_statistics(states.statistics, s, t)


@every_base
def test_server_only_and_fedavg_with_a_server_base_in_numpy(base):
    dataset, K = ragged(SIZES), 3
    only = run(fedax.server_only(quadratic(3), RATE, BASES[base], batch_size=5), dataset, 4)
    server = base_optimizers.as_transformation(BASES[base])
    average = run(
        fedax.fedopt(quadratic(3), optax.sgd(1.0), server, client_learning_rate=RATE,
                     num_local_steps=K, **WALK),
        dataset, 4,
    )
    x = y = np.ones(3)
    s = r = Moments(0.0, 0.05**2)
    for t in range(4):
        c = mean_gradient(dataset, x)
        x, s = x - RATE * direction(base, c, s), update(base, c, s)
        close(only.params["x"][t], x)
        check_statistics(only.optimizer_state, s, t)
        moved = 0.0  # y - mean of the clients' models after plain SGD
        for rows in clients_of(dataset):
            z = y
            for k in range(K):
                z = z - RATE * gradient(minibatch(rows, k, 2), z)
            moved = moved + len(rows["a"]) / dataset.num_examples * (y - z)
        y, r = y - direction(base, moved, r), update(base, moved, r)
        close(average.params["x"][t], y)
        check_statistics(average.optimizer_state, r, t)


@pytest.mark.quick
def test_defaults_and_v_0():
    g = jnp.full(1, 2.0)
    adam, rmsprop, sgdm = (
        getattr(base_optimizers, name)() for name in ("adam", "rmsprop", "sgdm")
    )
    s = adam.update(g, adam.init(g))  # m = .1 g, v = .01 g^2 + .99 v_0 with v_0 = epsilon^2
    close((s.m[0], s.v[0]), (0.2, 0.04 + 0.99e-6))
    close(adam.direction(g, s)[0], (0.2 + 0.18) / (1e-3 + np.sqrt(0.04 + 0.99e-6)))
    close(rmsprop.direction(g, rmsprop.init(g))[0], 2 / 2e-3)
    close(rmsprop.update(g, rmsprop.init(g)).v[0], 0.4 + 0.9e-6)
    close(sgdm.direction(g, sgdm.init(g))[0], 0.2)
    zero = base_optimizers.adam(initial_accumulator=0.0)
    close(zero.direction(g, zero.init(g))[0], 0.2 * 1000)  # the trap: round 1 times 1/epsilon


# -------------------------------------------------------------- Mime at K = 1


def independent(algorithm):
    """Plants the fault: the second gradient of a local step sees a minibatch of its own."""
    last = algorithm.exchanges[-1]

    def client(message, state, data, key):
        def control_variate(local, anchor, control):
            def correct(grads, params, batch, key):
                places = jax.random.randint(key, (2,), 0, data.num_examples, jnp.int32)
                other = Minibatch(data.examples(places), jnp.ones(2, bool))
                _, at_anchor = local.gradient(anchor, other, key)
                return jax.tree.map(lambda g, a, c: g - a + c, grads, at_anchor, control)

            return correct

        with mock.patch("fedax.algorithms.mime.control_variate", control_variate):
            return last.client(message, state, data, key)

    return algorithm._replace(
        exchanges=(*algorithm.exchanges[:-1], last._replace(client=client))
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "options"),
    [("sgd", WALK), ("sgdm", WALK), ("rmsprop", WALK), ("adam", {"batch_size": 1, "order": "iid"}),
     ("adam", {"batch_size": 50}), ("adam", {"weighting": "uniform", **WALK})],
)
def test_mime_of_one_step_is_server_only_whatever_the_minibatch(base, options):
    model, dataset = quadratic(3), ragged(SIZES)
    weighting = options.get("weighting", "num_examples")
    only = fedax.server_only(model, RATE, BASES[base], batch_size=4, weighting=weighting)
    expected = run(only, dataset, 5)
    one = fedax.mime(model, RATE, BASES[base], num_local_steps=1, **options)
    states = run(one, dataset, 5)
    close(states.params, expected.params, 1e-13)
    close(states.statistics, expected.optimizer_state, 1e-13)
    if options is WALK:
        far(run(independent(one), dataset, 5).params["x"], expected.params["x"])


@pytest.mark.slow
def test_holds_with_losses_that_draw_as_both_gradients_see_the_same_draws():
    def loss(params, batch, key):  # as dropout would; server-only and Mime draw c alike
        kept = jax.random.bernoulli(key, 0.5, batch["a"].shape)
        losses = jnp.where(kept, batch["a"] * params["x"][None] ** 2 / 2, 0).sum(-1)
        return losses, jnp.ones_like(losses)

    model, dataset = quadratic(3)._replace(loss=loss), ragged(SIZES)
    only = fedax.server_only(model, RATE, BASES["sgdm"], batch_size=2)
    one = fedax.mime(model, RATE, BASES["sgdm"], num_local_steps=1, **WALK)
    expected = run(only, dataset, 3).params["x"]
    close(run(one, dataset, 3).params["x"], expected, 1e-13)
    far(run(independent(one), dataset, 3).params["x"], expected)


# -------------------------------------------------------- MimeLite and C-Mime


@pytest.mark.slow
def test_mimelite_sgd_is_fedavg():
    model, dataset = quadratic(3), ragged(SIZES)
    options = {"batch_size": 2, "num_local_epochs": 2}  # in shuffled order
    lite = run(fedax.mimelite(model, RATE, BASES["sgd"], **options), dataset, 5)
    close(lite.params, run(fedax.fedavg(model, RATE, 1.0, **options), dataset, 5).params, 1e-14)


@pytest.mark.slow
@every_base
def test_mimelite_of_one_full_step_is_server_only(base):
    model, dataset = quadratic(3), ragged(SIZES)
    expected = run(fedax.server_only(model, RATE, BASES[base]), dataset, 5)

    def lite(batch_size):
        algorithm = fedax.mimelite(
            model, RATE, BASES[base], num_local_steps=1, batch_size=batch_size, order="sequential"
        )
        return run(algorithm, dataset, 5)

    states = lite(max(SIZES))
    close(states.params, expected.params)
    close(states.statistics, expected.optimizer_state)
    if base == "sgdm":
        far(lite(2).params["x"], expected.params["x"])


@pytest.mark.slow
@pytest.mark.parametrize(("base", "num_steps", "alike"),
                         [("sgdm", 1, True), ("adam", 1, True), ("sgdm", 4, False)])
def test_cmime_is_mime_at_one_step_and_not_at_more(base, num_steps, alike):
    mime, cmime = (
        run(make(quadratic(3), RATE, BASES[base], num_local_steps=num_steps, **WALK),
            ragged(SIZES), 4)
        for make in (fedax.mime, fedax.cmime)
    )
    if alike:
        close((cmime.params, cmime.statistics), (mime.params, mime.statistics), 1e-14)
    else:
        far(cmime.params["x"], mime.params["x"], 1e-2)


# ---------------------------------------------------------- identical clients


def identical_clients() -> FederatedDataset:
    one = ragged([4])
    return FederatedDataset.from_clients([one.client(0)] * 3)


@pytest.mark.slow
@every_base
def test_mime_of_identical_clients_is_k_centralised_steps_with_frozen_statistics(base):
    dataset, K = identical_clients(), 5
    states = run(
        fedax.mime(quadratic(3), RATE, BASES[base], num_local_steps=K, batch_size=4), dataset, 4
    )
    x, s = np.ones(3), Moments(0.0, 0.05**2)
    for t in range(4):
        c = mean_gradient(dataset, x)
        for _ in range(K):
            x = x - RATE * direction(base, mean_gradient(dataset, x), s)
        s = update(base, c, s)
        close(states.params["x"][t], x)
        check_statistics(states.statistics, s, t)


def mimemvr_as_printed(algorithm):
    """Plants the fault of equation (15) as printed: the correction is anchored at x^{t-1}."""
    first, second = algorithm.exchanges

    def client(message, state, data, key):
        wrong = message._replace(previous=message.local.params)
        return second.client(wrong, state, data, key)

    return algorithm._replace(exchanges=(first, second._replace(client=client)))


@pytest.mark.slow
def test_mimemvr_of_identical_clients_is_kt_steps_of_gradient_descent():
    dataset, K, T = identical_clients(), 3, 5
    weights = jnp.asarray([0.0, 0.3, 1.0])  # a

    def path_of(a, plant=lambda algorithm: algorithm):
        algorithm = fedax.mimemvr(
            quadratic(3), RATE, a, num_local_steps=K, batch_size=4, order="sequential"
        )
        return run(plant(algorithm), dataset, T).params["x"]

    path = [np.ones(3)]
    for _ in range(K * T):
        path.append(path[-1] - RATE * mean_gradient(dataset, path[-1]))
    close(jax.vmap(path_of)(weights), np.array([path[K::K]] * 3), 1e-14)
    for broken in jax.vmap(lambda a: path_of(a, mimemvr_as_printed))(weights):
        far(broken, path[K::K], 1e-2)


@pytest.mark.quick
def test_mimemvr_of_unlike_clients_in_numpy():
    dataset, K, T, a = ragged(SIZES), 3, 4, 0.3
    states = run(fedax.mimemvr(quadratic(3), RATE, a, num_local_steps=K, **WALK), dataset, T)
    x = before = np.ones(3)
    m = mean_gradient(dataset, x)
    for t in range(T):
        c, g, new = mean_gradient(dataset, before), mean_gradient(dataset, x), 0.0
        for rows in clients_of(dataset):
            y = x
            for k in range(K):
                batch = minibatch(rows, k, 2)
                d = gradient(batch, y) - gradient(batch, before) + a * c + (1 - a) * m
                y = y - RATE * d
            new = new + len(rows["a"]) / dataset.num_examples * y
        m, before, x = a * g + (1 - a) * (m + g - c), x, new
        close((states.params["x"][t], states.momentum["x"][t]), (x, m))


@every_base
def test_the_optimum_is_a_fixed_point_of_mime_and_not_of_fedavg(base):
    dataset = ragged(SIZES)
    best = -dataset.arrays["b"].sum(0) / dataset.arrays["a"].sum(0)
    start = {"x": jnp.asarray(best)}
    algorithm = fedax.mime(quadratic(3), RATE, BASES[base], num_local_steps=6, **WALK)
    x = run(algorithm, dataset, 3, start).params["x"]
    close(x, np.tile(best, (3, 1)), 1e-13)
    if base == "sgd":
        average = fedax.fedavg(quadratic(3), RATE, num_local_steps=6, **WALK)
        far(run(average, dataset, 3, start).params["x"][-1], best, 1e-2)


# --------------------------------------------------------------------- FedJAX


@pytest.mark.slow
def test_fedjax_mime_with_momentum_is_the_papers_at_a_smaller_rate():
    beta, dataset = 0.9, ragged(SIZES)
    trace = optax.trace(beta)  # FedJAX: optax with a frozen state, g + beta m_o
    fedjax = BaseOptimizer(
        trace.init, lambda g, s: trace.update(g, s)[0], lambda g, s: trace.update(g, s)[1]
    )
    options = {"num_local_steps": 3, **WALK}
    paper = run(fedax.mime(quadratic(3), 0.3, BASES["sgdm"], **options), dataset, 5)
    theirs = run(fedax.mime(quadratic(3), 0.3 * (1 - beta), fedjax, **options), dataset, 5)
    close(theirs.params, paper.params)
    close(0.1 * theirs.statistics.trace["x"], paper.statistics.m["x"])  # m_o = m / (1 - beta)
    unscaled = run(fedax.mime(quadratic(3), 0.3, fedjax, **options), dataset, 5)
    far(unscaled.params["x"], paper.params["x"], 1e-2)


def test_the_number_in_fedjaxs_own_test():
    # Loss x w from w = 4, clients [2, 4, 6] and [8, 10], minibatches of 2, rate 1: every corrected
    # gradient is the mean 6, so the deltas are 12 and 6, weighed 3 to 2; the server's rate is 0.2.
    values = np.array([2.0, 4.0, 6.0, 8.0, 10.0])[:, None]
    dataset = FederatedDataset({"a": 0 * values, "b": values}, np.array([0, 3, 5]))
    algorithm = fedax.mime(quadratic(), 1.0, BASES["sgd"], 0.2, batch_size=2)
    x = run(algorithm, dataset, 1, {"x": jnp.full(1, 4.0)}).params["x"]
    close(x[0, 0], 4 - 0.2 * (3 * 12 + 2 * 6) / 5)
    assert x[0, 0] == pytest.approx(2.08)


@pytest.mark.slow
def test_mimemvr_begins_in_the_first_round_that_anyone_answers():
    task = fedax.Task(quadratic(3), ragged(SIZES))
    algorithm = fedax.mimemvr(
        task.model, 0.1, 0.2, num_local_steps=3, batch_size=max(SIZES), order="sequential"
    )
    at_once, later = (
        fedax.train(
            task, algorithm, num_rounds=4 + wait, evaluate_every=0, cohort_size=6,
            available=lambda ids, t, wait=wait: np.full(len(ids), t >= wait),
        )
        for wait in (0, 2)
    )
    close(later.params, at_once.params)
    close(later.state.server_state.momentum, at_once.state.server_state.momentum)
