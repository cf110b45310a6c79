"""Elastic aggregation (Chen et al. 2023): zeta = 1 + tau - Omega / max Omega, and held-out data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax import FederatedDataset, Model
from fedax.algorithms.sensitivity import elastic_scale
from fedax.data import ClientData
from fedax.data.hold_out import hold_out
from test_hard_users import KEY, SIZES, close, quadratic, ragged, run

GAMMA = 0.1
WALK = {"batch_size": 2, "order": "sequential", "num_local_steps": 3}


def far(actual, expected, least=1e-3):
    assert np.abs(np.asarray(actual) - np.asarray(expected)).max() > least


def with_outputs(outputs, dimension=3):
    """The quadratic problem with outputs F(x; z) of a test's own."""
    return quadratic(dimension)._replace(outputs=lambda params, batch: outputs(params["x"], batch))


def alike(x, batch):
    """sum_j x_j: every coordinate is as sensitive as any other, wherever x is."""
    return jnp.broadcast_to(x.sum(), batch["a"].shape[:1])


def unlike(x, batch):
    """Coordinate j of x times j + 1 and the example's own a."""
    return jnp.arange(1.0, x.shape[0] + 1)[None] * x[None] * batch["a"]


def held_out_rows(n, fraction=0.1):
    """Which of a client's n examples are held out: floor(j n / h), h = fraction n rounded."""
    h = min(max(int(np.round(np.float64(fraction) * n)), 1), n - 1)
    return [j * n // h for j in range(h)]


def parts(dataset, fraction=0.1):
    """The clients' held-out rows and the rest, as two data sets."""
    tables = [dataset.client(i) for i in range(dataset.num_clients)]
    held, rest = [], []
    for table in tables:
        rows = held_out_rows(len(table["a"]), fraction)
        held.append({name: array[rows] for name, array in table.items()})
        rest.append({name: np.delete(array, rows, 0) for name, array in table.items()})
    return FederatedDataset.from_clients(held), FederatedDataset.from_clients(rest)


LARGER = [n + 2 for n in SIZES]  # everyone has something to hold out and something left


# ------------------------------------------------------------- zeta and FedAvg


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "mime"])
def test_equal_sensitivities_and_tau_1_are_the_method_on_the_rest(method):
    # zeta = tau for all, and both of Mime's exchanges leave the held-out part alone.
    dataset, model = ragged(LARGER), with_outputs(alike)
    _, rest = parts(dataset, 0.3)
    algorithm = getattr(fedax, method)(model, GAMMA, **WALK)
    expected = run(algorithm, rest, 4).params["x"]
    got = run(fedax.elastic(algorithm, model, 1.0, held_out_fraction=0.3), dataset, 4)
    close(got.params["x"], expected)
    if method == "fedavg":  # zeta = tau: as a server learning rate of tau
        half = run(fedax.elastic(algorithm, model, 0.5, held_out_fraction=0.3), dataset, 4)
        slow = run(fedax.fedavg(model, GAMMA, 0.5, **WALK), rest, 4).params["x"]
        close(half.params["x"], slow)
        far(slow, expected)
        everything = run(algorithm, dataset, 4).params["x"]
        far(everything, expected)


def wrong_sign(algorithm):
    """Plants the fault of Algorithms 1 and 2 as printed: the server steps against the change."""
    last = algorithm.exchanges[-1]

    def server(state, mean, participation):
        negated = jax.tree.map(jnp.negative, mean.inner.pseudo_gradient)
        inner = mean.inner._replace(pseudo_gradient=negated)
        return last.server(state, mean._replace(inner=inner), participation)

    return algorithm._replace(exchanges=(last._replace(server=server),))


def test_the_wrong_sign_breaks_it():
    dataset, model = ragged(LARGER), with_outputs(alike)
    algorithm = fedax.elastic(fedax.fedavg(model, GAMMA, **WALK), model, 1.0)
    best = -dataset.arrays["b"].sum(0) / dataset.arrays["a"].sum(0)

    def distances(algorithm):
        return np.abs(np.asarray(run(algorithm, dataset, 6).params["x"]) - best).max(1)

    right, wrong = distances(algorithm), distances(wrong_sign(algorithm))
    assert (np.diff(right) < 0).all()
    assert (np.diff(wrong) > 0).all()


@pytest.mark.parametrize("tau", [0.0, 0.5])
def test_the_most_sensitive_coordinate_moves_tau_times_as_far(tau):
    # Omega is largest at the last coordinate, so zeta = tau there; at tau = 0 it is frozen.
    dataset, model = ragged(LARGER), with_outputs(unlike)
    _, rest = parts(dataset)
    algorithm = fedax.fedavg(model, GAMMA, **WALK)
    moved = run(algorithm, rest, 1).params["x"][0] - 1
    x = run(fedax.elastic(algorithm, model, tau), dataset, 1).params["x"][0]
    zeta = (x - 1) / moved
    if tau == 0:
        assert x[2] == 1.0
    else:
        close(zeta[2], tau)
    assert (zeta[:2] > tau + 0.1).all()
    assert (zeta < 1 + tau).all()


def graded(x, batch):
    """Coordinate j of x times j + 1: at x = 1, Omega^j is 1/9, 4/9 and 1 of the largest."""
    return jnp.arange(1.0, 4)[None] * x[None] * jnp.ones_like(batch["a"])


@pytest.mark.quick
@pytest.mark.parametrize("decays", [False, True])
@pytest.mark.parametrize(
    ("outputs", "tau", "share"), [(alike, 0.5, 0), (graded, 0.5, 2 / 3), (graded, 0.2, 1 / 3)]
)
def test_rounds_report_the_share_of_the_parameters_with_zeta_above_1(outputs, tau, share, decays):
    model = with_outputs(outputs)

    def build(client_rate=GAMMA, server_rate=1.0):
        method = fedax.fedavg(model, client_rate, server_rate, **WALK)
        return fedax.elastic(method, model, tau)

    algorithm = fedax.local_update_decay(build, model, GAMMA, 1.0) if decays else build()
    task = fedax.Task(model, ragged(LARGER))
    reports = fedax.simulate(task, algorithm, num_rounds=1, cohort_size=len(LARGER))
    assert next(iter(reports)).metrics["boosted_share"] == pytest.approx(share)


def test_zeta_is_1_plus_tau_minus_omega_over_the_maximum_of_all_leaves():
    draw = np.random.default_rng(0)
    omega = {"a": draw.uniform(0, 1, (3, 2)), "b": draw.uniform(0, 5, 4)}
    zeta = elastic_scale(jax.tree.map(jnp.asarray, omega), 0.3)
    close(zeta, {name: 1.3 - leaf / omega["b"].max() for name, leaf in omega.items()})
    flat = np.concatenate([leaf.ravel() for leaf in zeta.values()])
    assert (flat.min(), (flat <= 1.3).all()) == (pytest.approx(0.3), True)
    assert zeta["a"].min() > 0.3 + 0.5  # no maximum of its own for each leaf
    nothing = elastic_scale(jax.tree.map(lambda leaf: jnp.asarray(0 * leaf), omega), 0.3)
    np.testing.assert_array_equal(nothing["a"], 1.3)


# ----------------------------------------------------------------------- Omega


def linear():
    """F = W z for 2 classes, with any training loss."""

    def loss(params, batch, key):
        values = (params["W"] ** 2).sum() + batch["z"].sum(1)
        return values, jnp.ones_like(values)

    return Model(
        init=lambda key: {"W": jnp.asarray([[1.0, -2.0, 0.5], [0.3, 0.8, -1.0]])},
        loss=loss, outputs=lambda params, batch: batch["z"] @ params["W"].T, metrics={},
    )


def sensitivity(z, fraction=0.5, batch_size=2, model=None, **options):
    """Omega_k that a client with the examples z uploads."""
    model = linear() if model is None else model
    algorithm = fedax.elastic(
        fedax.fedavg(model, GAMMA), model, held_out_fraction=fraction,
        sensitivity_batch_size=batch_size, **options,
    )
    state = algorithm.init(model.init(KEY))
    n = len(z)
    data = ClientData({"z": jnp.asarray(z)}, jnp.int32(0), jnp.int32(n), n)
    exchange = algorithm.exchanges[-1]
    reply = jax.jit(exchange.client)(exchange.broadcast(state), (), data, KEY)
    return reply.upload.sensitivity["W"]


def batch_gradients(z, batch_size, fraction=0.5, softmax=False):
    """|grad| of the batch sums of |F(z)|^2 on the held-out part: 2 (W z) z^T for F = W z."""
    W = np.asarray(linear().init(KEY)["W"])
    held = z[held_out_rows(len(z), fraction)]
    result = []
    for first in range(0, len(held), batch_size):
        g = np.zeros_like(W)
        for row in held[first : first + batch_size]:
            out = W @ row
            if softmax:  # d|s|^2 / d out = 2 (diag(s) - s s^T) s
                s = np.exp(out) / np.exp(out).sum()
                out = s * s - s * (s @ s)
            g = g + 2 * np.outer(out, row)
        result.append(np.abs(g))
    return result


@pytest.mark.slow
@pytest.mark.parametrize("output", ["logits", "softmax"])
def test_omega_of_a_linear_model_in_numpy(output):
    # Five held out in batches of 2, 2, 1: the absolute value of the batch's sum, then momentum.
    z = np.random.default_rng(1).normal(size=(10, 3))
    gs = batch_gradients(z, 2, softmax=output == "softmax")
    assert len(gs) == 3
    omega = 0.0
    for g in gs:
        omega = 0.7 * omega + 0.3 * g
    close(sensitivity(z, sensitivity_decay=0.7, output=output), omega)
    average = sensitivity(z, sensitivity="average", output=output)
    close(average, np.mean(gs, axis=0))
    ratios = average / omega
    assert ratios.max() > 1.1 * ratios.min()  # so the two variants differ in zeta too
    if output == "logits":
        one_by_one = np.mean(batch_gradients(z, 1), axis=0)  # the sum of |g|, a usual mistake
        far(average * 3 / 5, one_by_one, 0.1)


def test_n_constant_batches_give_1_minus_mu_to_the_n():
    z = np.tile([[1.0, 0.5, -2.0]], (12, 1))
    (g, *others) = batch_gradients(z, 2)
    assert len(others) == 2
    mus = np.array([0.0, 0.5, 0.95])
    omegas = jax.vmap(lambda mu: sensitivity(z, sensitivity_decay=mu))(jnp.asarray(mus))
    close(omegas, np.multiply.outer(1 - mus**3, g))
    close(sensitivity(z, sensitivity="average"), g)


def test_scaling_f_or_mu_on_constant_batches_changes_nothing():
    one = ragged([1]).client(0)
    dataset = FederatedDataset.from_clients(
        [{name: np.repeat(array + 0.1 * i, 8, 0) for name, array in one.items()} for i in range(3)]
    )

    def outcome(scale, mu):
        model = with_outputs(lambda x, batch: scale * unlike(x, batch))
        algorithm = fedax.elastic(
            fedax.fedavg(model, GAMMA, **WALK), model, 0.3, mu, 0.5, sensitivity_batch_size=2
        )
        return run(algorithm, dataset, 3).params["x"]

    grid = jnp.asarray([1.0, -7.0, 1e-3]), jnp.asarray([0.95, 0.95, 0.3])
    outcomes = jax.vmap(outcome)(*grid)
    close(outcomes[1], outcomes[0])
    close(outcomes[2], outcomes[0])
    far(outcomes[0], run(fedax.fedavg(quadratic(3), GAMMA, **WALK), dataset, 3).params["x"])


def elastic_move(x, held, rest, tau, mu):
    """The mean move of FedAvg's clients times zeta: 4 full-batch steps, weights n_i of the rest.

    Outputs are those of `unlike`, so F = a_zj (j + 1) x_j; Omega_k with momentum over batches of 1.
    """
    moves, omegas = [], []
    for i in range(held.num_clients):
        a, b = (rest.client(i)[name].mean(0) for name in "ab")
        y, omega = x, 0.0
        for _ in range(4):
            y = y - GAMMA * (a * y + b)
        for a in held.client(i)["a"]:
            omega = mu * omega + (1 - mu) * np.abs(2 * (np.arange(1, 4) * a) ** 2 * x)
        moves.append(y - x)
        omegas.append(omega)
    move, omega = (np.average(v, axis=0, weights=rest.client_sizes) for v in (moves, omegas))
    return (1 + tau - omega / omega.max()) * move


FOUR_STEPS = {"num_local_steps": 4, "batch_size": 50, "order": "sequential"}


@pytest.mark.quick
def test_whole_rounds_in_numpy():
    dataset, model, tau, mu = ragged(LARGER), with_outputs(unlike), 0.4, 0.8
    algorithm = fedax.elastic(
        fedax.fedavg(model, GAMMA, 0.9, **FOUR_STEPS), model, tau, mu, 0.25,
        sensitivity_batch_size=1,
    )
    got = run(algorithm, dataset, 4).params["x"]
    held, rest = parts(dataset, 0.25)
    x = np.ones(3)
    for t in range(4):
        x = x + 0.9 * elastic_move(x, held, rest, tau, mu)
        close(got[t], x)


def test_elastic_over_fedavgm_is_algorithm_1():
    """m <- mu' m + (1 - mu') Delta and x <- x + eta m, with the sign put right."""
    dataset, model, tau, mu = ragged(LARGER), with_outputs(unlike), 0.4, 0.8
    held, rest = parts(dataset, 0.25)
    decay, eta, x, m = 0.7, 0.9, np.ones(3), 0.0
    algorithm = fedax.elastic(
        fedax.fedavgm(model, GAMMA, eta, decay, dampening=decay, **FOUR_STEPS), model, tau, mu,
        0.25, sensitivity_batch_size=1,
    )
    got = run(algorithm, dataset, 4).params["x"]
    for t in range(4):
        m = decay * m + (1 - decay) * elastic_move(x, held, rest, tau, mu)
        x = x + eta * m
        close(got[t], x)


# ---------------------------------------------------------------- fixed points


@pytest.mark.slow
def test_elastic_and_fedavg_share_their_fixed_points():
    # A of [-1, 1]: FedAvg's fixed point solves sum_i p_i (1 - (1 - gamma a_i)^K) (x - c_i) = 0,
    # coordinate by coordinate; zeta > 0 multiplies this by something positive and adds no zeros.
    dataset, model, K = ragged(LARGER), with_outputs(unlike), 5
    _, rest = parts(dataset)
    walk = {"num_local_steps": K, "batch_size": 50, "order": "sequential"}
    a, b = (
        np.array([rest.client(i)[name].mean(0) for i in range(len(LARGER))]) for name in "ab"
    )
    weights = rest.client_sizes[:, None] * (1 - (1 - GAMMA * a) ** K)
    fixed = (weights * (-b / a)).sum(0) / weights.sum(0)
    best = -rest.arrays["b"].sum(0) / rest.arrays["a"].sum(0)
    far(fixed, best)  # not the optimum: clients drift
    average = fedax.fedavg(model, GAMMA, **walk)
    close(run(average, rest, 100).params["x"][-1], fixed)
    taus = jnp.asarray([0.1, 0.5, 2.0])
    ends = jax.vmap(
        lambda tau: run(fedax.elastic(average, model, tau), dataset, 900).params["x"][-1]
    )(taus)
    close(ends, np.tile(fixed, (3, 1)))
    frozen = run(fedax.elastic(average, model, 0.0), dataset, 5, {"x": jnp.asarray(fixed)})
    close(frozen.params["x"][-1], fixed)


# ------------------------------------------------------------ the held-out part


@pytest.mark.slow
def test_the_held_out_part_is_removed_from_training():
    dataset, model = ragged(LARGER), with_outputs(unlike)
    algorithm = fedax.elastic(
        fedax.fedavg(model, GAMMA, **WALK), model, held_out_fraction=0.3
    )
    rows = [
        first + row
        for first, n in zip(dataset.offsets, LARGER, strict=False)
        for row in held_out_rows(n, 0.3)
    ]

    def outcome(rows):  # with these rows' linear terms spoiled; outputs do not see them
        b = dataset.arrays["b"].copy()
        b[rows] += 100.0
        spoiled = FederatedDataset({**dataset.arrays, "b": b}, dataset.offsets)
        return np.asarray(run(algorithm, spoiled, 2).params["x"])

    np.testing.assert_array_equal(outcome(rows), outcome([]))
    far(outcome([rows[0] + 1]), outcome([]))


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.3, 0.5, 0.77, 0.99])
def test_hold_out_is_a_partition_of_the_wanted_size(fraction):
    arrays = {"i": jnp.arange(200, dtype=jnp.int32)}
    places = jnp.arange(200, dtype=jnp.int32)

    @jax.jit
    def split(n):
        both = hold_out(ClientData(arrays, jnp.int32(0), n, 200), fraction)
        return [(part.num_examples, part.examples(places)["i"]) for part in both]

    for n in [*range(2, 70), 99, 100, 199, 200]:
        (num_rest, rest), (num_held, held) = jax.device_get(split(jnp.int32(n)))
        rest, held = rest[:num_rest].tolist(), held[:num_held].tolist()
        assert sorted(rest + held) == list(range(n))
        assert rest == sorted(rest)
        assert held == held_out_rows(n, fraction)
        assert abs(len(held) - min(max(fraction * n, 1), n - 1)) <= 0.5
    both = split(jnp.int32(1))
    assert [(int(size), int(rows[0])) for size, rows in both] == [(1, 0), (1, 0)]
    assert [int(size) for size, _ in split(jnp.int32(0))] == [0, 0]


def test_hold_out_of_many_examples_does_not_overflow():
    n = 1_000_000
    data = ClientData({"i": jnp.arange(n, dtype=jnp.int32)}, jnp.int32(0), jnp.int32(n), n)
    rest, held = hold_out(data, 0.1)
    assert int(held.num_examples) == (2**31 - 1) // n  # the documented cap
    rows = [np.asarray(part.examples(jnp.arange(int(part.num_examples), dtype=jnp.int32))["i"])
            for part in (rest, held)]
    np.testing.assert_array_equal(np.sort(np.concatenate(rows)), np.arange(n))


@pytest.mark.slow
def test_hold_out_spreads_over_classes_stored_one_after_another():
    sizes = np.array([37, 5, 80, 61, 17])
    labels = np.repeat(np.arange(5), sizes)
    n = len(labels)
    data = ClientData({"y": jnp.asarray(labels)}, jnp.int32(0), jnp.int32(n), n)
    for fraction in (0.1, 0.25, 0.5, 0.9):
        for part, share in zip(hold_out(data, fraction), (1 - fraction, fraction), strict=True):
            size = int(part.num_examples)
            classes = part.examples(jnp.arange(size, dtype=jnp.int32))["y"]
            counts = np.bincount(classes, minlength=5)
            assert np.abs(counts - share * sizes).max() < 1.5
    contiguous = np.bincount(labels[: n // 10], minlength=5)  # what this guards against
    assert np.abs(contiguous - 0.1 * sizes).max() > 15
