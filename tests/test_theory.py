"""The theory toolkit: the papers' numbers, properties of any population, and what is refused."""

import ast
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedax.theory import dynamics
from fedax.theory.claims import Claim
from fedax.theory.dynamics import follow
from fedax.theory.errors import SingularError, TheoryError
from fedax.theory.files import population_from, read_population
from fedax.theory.given import norms
from fedax.theory.moments import mean_square_distances, output_covariances
from fedax.theory.population import QuadraticPopulation
from fedax.theory.prescriptions import (
    corollary_20_gamma,
    largest_gamma,
    largest_K,
    theorem_17_gamma,
)
from fedax.theory.surrogate import chi, last, phi, surrogate

TWO = QuadraticPopulation.from_centres([1.0, 2.0], [1.0, 0.5])
MIME = QuadraticPopulation.from_linear([2.0, 0.0], [1.0, -1.0])


@pytest.mark.quick
def test_two_clients_with_a_point_each():
    """A = 1, 2 and c = 1, 1/2: x*(gamma, 2) = (4 - 3 gamma) / (6 - 5 gamma), x* = 2/3."""
    assert TWO.minimiser[0] == pytest.approx(2 / 3, abs=1e-15)
    for gamma, gap in ((0.1, 0.0060606), (0.3, 0.0222222), (0.5, 0.0476190), (1.0, 1 / 3)):
        found = surrogate(TWO, gamma, 2)
        assert found.minimiser[0] == pytest.approx((4 - 3 * gamma) / (6 - 5 * gamma), rel=1e-14)
        assert found.gap == pytest.approx(gap, abs=5e-8)
    gaps = [surrogate(TWO, 0.5, k).gap for k in (1, 2, 3, 5, 10)]
    assert gaps == pytest.approx([0, 1 / 21, 1 / 15, 0.0793651, 0.0832112], abs=5e-8)
    many = [surrogate(TWO, 0.5, k).gap for k in range(1, 60)]
    assert np.diff(many).min() >= -1e-15
    assert many[-1] == pytest.approx(1 / 12, abs=1e-15)
    # At 6/5 the surrogate loss is flat, beyond it there is no minimum; section 4's 1/2 is
    # where Q_2 = 2 - 2 gamma would have to vanish if it were 1 - 2 gamma.
    for gamma in (1.2, 1.3):
        with pytest.raises(SingularError, match=f"surrogate loss for gamma = {gamma:g}"):
            _ = surrogate(TWO, gamma, 2).minimiser
    assert surrogate(TWO, 0.99, 2).ill_behaved.tolist() == []
    assert surrogate(TWO, 1.01, 2).ill_behaved.tolist() == [1]


@pytest.mark.quick
def test_figure_1_of_2020():
    """Density 8 z / 15 on [.5, 2], A = z, c = 1 / z: x* = 5/7, and 4/5 for K to infinity."""
    clients = QuadraticPopulation.from_density(lambda z: 8 * z / 15, (0.5, 2.0))
    assert (clients.mu, clients.L) == pytest.approx((0.5, 2.0), rel=1e-14)
    assert clients.minimiser[0] == pytest.approx(5 / 7, abs=1e-14)
    assert clients.mean(clients.centres)[0] == pytest.approx(0.8, abs=1e-14)
    by_steps = [surrogate(clients, 0.5, k).minimiser[0] for k in (2, 5, 20)]
    assert by_steps == pytest.approx([0.7482014, 0.7861262, 0.7999342], abs=1.001e-7)
    by_rate = [surrogate(clients, g, 20).minimiser[0] for g in (0.1, 0.01, 0.001, 0)]
    assert by_rate == pytest.approx([0.7739411, 0.7221574, 0.7150843, 5 / 7], abs=5e-8)


@pytest.mark.quick
def test_figure_1_of_2021():
    """Density z^-1/2 on [1, 3]: x* = 1 / E z, the mean's trajectories and the steps' count."""
    clients = QuadraticPopulation.from_density(lambda z: z**-0.5, (1.0, 3.0))
    assert 1 / clients.minimiser[0] == pytest.approx(1.9106836, abs=5e-8)
    assert clients.minimiser[0] == pytest.approx(0.5233729, abs=5e-8)
    assert clients.mean(clients.centres)[0] == pytest.approx(0.5773503, abs=5e-8)
    found = [surrogate(clients, 0.1, k).minimiser[0] for k in (2, 5, 10, 50)]
    # The fixed points x*(0.1, K), which Figure 1 shows as limits.
    assert found == pytest.approx([0.5284942, 0.5416882, 0.5570331, 0.5771789], abs=1e-7)

    def path(steps, d_gamma=1.0, d_K=1.0, scale=lambda gamma: 1.0):
        rounds = (
            dynamics.local_update(
                clients, 0.1 * d_gamma**t, np.ceil(steps * d_K**t),
                0.001 * scale(0.1 * d_gamma**t),
            )
            for t in range(3000)
        )
        return follow(rounds, 0.4)[1:, 0]

    assert path(1)[-1] == pytest.approx(0.5230, abs=5e-5)
    slowly = path(10, d_gamma=0.995)
    assert (slowly.max(), slowly[-1]) == pytest.approx((0.5327, 0.5234), abs=5e-5)
    assert slowly[499] == pytest.approx(0.5280, abs=1.1e-4)
    assert path(10, d_K=0.995)[-1] == pytest.approx(0.5234, abs=5e-5)
    assert path(10, d_K=0.9995)[-1] == pytest.approx(0.5336, abs=6e-5)
    # The delta form, x <- x - eta gamma sum of gradients, does not get there.
    assert path(1, scale=lambda gamma: gamma)[-1] == pytest.approx(0.4538, abs=5e-5)
    decayed = path(10, d_gamma=0.995, scale=lambda gamma: gamma)
    assert decayed[-1] == pytest.approx(0.4314, abs=5e-5)
    assert path(10, d_K=0.995, scale=lambda gamma: gamma)[-1] == pytest.approx(0.4668, abs=5e-5)
    steps = np.ceil(10 * 0.995 ** np.arange(3001)).astype(int)
    assert (steps[:3000].sum(), steps[1:].sum()) == (4586, 4577)
    assert int(np.argmax(steps == 1)) == 460


@pytest.mark.quick
def test_mimes_quadratics():
    """f_1 = x^2 + G x, f_2 = -G x: fixed points, round counts, independence of G."""
    assert (MIME.L, MIME.delta) == (2.0, 1.0)
    assert MIME.gradient_dissimilarity(3.0) == pytest.approx(16.0)  # |x + G|^2
    for K, eta, fixed in ((10, 0.01, 0.0466656), (2, 0.1, 0.0555556)):
        formula = K * eta / (1 - (1 - 2 * eta) ** K) - 0.5
        assert formula == pytest.approx(fixed, abs=5e-8)
        assert dynamics.fedavg(MIME, eta, K).fixed_point[0] == pytest.approx(formula, abs=1e-13)
    cc, K, beta, eta = 0.025, 10, 0.5, 0.05
    r = (1 - 2 * cc) ** K
    S = (1 - r) / (2 * cc)
    formula = cc * (K - S) / (1 - r + eta * beta * (S + K))
    lite = dynamics.mimelite(MIME, eta, K, beta).fixed_point[0]
    assert lite == pytest.approx(formula, abs=1e-13)
    assert lite == pytest.approx(0.05795138, abs=5e-9)
    assert dynamics.mime(MIME, 0.3, 2).matrix[0, 0] == pytest.approx(0.49, abs=1e-14)
    assert dynamics.mime(MIME, 0.1, 10).matrix[0, 0] == pytest.approx(0.27684355, abs=5e-9)
    for beta, counts in ((0.0, (173, 87, 17)), (0.5, (165, 76, 25))):
        for K, count in zip((1, 2, 10), counts, strict=True):
            losses = MIME.loss(dynamics.mime(MIME, 0.05, K, beta).trajectory(1.0, 200))
            assert int(np.argmax(losses <= 1e-8)) == count
    for G in (10.0, 100.0):
        far = QuadraticPopulation.from_linear([2.0, 0.0], [G, -G])
        one, other = (dynamics.mime(p, 0.1, 10, 0.5).trajectory(1.0, 60) for p in (MIME, far))
        np.testing.assert_allclose(one, other, atol=1e-12)
        ends = [dynamics.fedavg(p, 0.01, 10).fixed_point for p in (MIME, far)]
        assert far.loss(ends[1]) / MIME.loss(ends[0]) == pytest.approx(G**2, rel=1e-12)
        path = dynamics.scaffold(far, 0.05, 10).trajectory(1.0, 400)
        assert abs(path[-1, 0]) < 1e-12
    assert dynamics.server_only(MIME, 0.05).fixed_point[0] == pytest.approx(0, abs=1e-15)


def test_constants_of_a_population():
    """Worked out by hand: A = 1, 3 with p = 3/4, 1/4, c = 0, 2."""
    clients = QuadraticPopulation.from_centres([1.0, 3.0], [0.0, 2.0], [3, 1], noise=0.5)
    assert (clients.mu, clients.L, clients.kappa) == (1.0, 3.0, 3.0)
    assert clients.sigma_A == pytest.approx(np.sqrt(0.75 * 0.25 + 0.25 * 2.25))
    assert clients.sigma_c == pytest.approx(np.sqrt(0.75 * 0.25 + 0.25 * 2.25))
    assert clients.minimiser[0] == pytest.approx(1.0)  # 1.5 / 1.5
    assert clients.gradient_dissimilarity() == pytest.approx(0.75 * 1 + 0.25 * 9)
    assert (clients.delta, clients.G2) == (1.5, 0.5)
    assert clients.loss(1.0) == pytest.approx(0.75 / 2 + 0.25 * (3 / 2 - 6))
    unused = QuadraticPopulation.from_centres([1.0, 3.0, 99.0], [0.0, 2.0, 5.0], [3, 1, 0])
    assert (unused.L, unused.delta) == (3.0, 1.5)


def test_regression_data_are_quadratic_clients():
    rng = np.random.default_rng(0)
    X = [rng.normal(size=(n, 3)) for n in (4, 9, 2)]
    y = [x @ [1.0, -2.0, 0.5] + rng.normal(size=len(x)) for x in X]
    for weighting in ("num_examples", "uniform"):
        clients = QuadraticPopulation.from_regression(X, y, ridge=0.1, weighting=weighting)
        w = np.concatenate([
            np.full(len(v), 1 / 15 if weighting == "num_examples" else 1 / (3 * len(v))) for v in y
        ])
        pooled = np.vstack(X)
        exact = np.linalg.solve(
            pooled.T @ (w[:, None] * pooled) + 0.1 * np.eye(3), pooled.T @ (w * np.concatenate(y))
        )
        np.testing.assert_allclose(clients.minimiser, exact, atol=1e-12)
    noisy = QuadraticPopulation.from_regression(X, y, ridge=0.1, intercept=True, with_noise=True)
    at = noisy.minimiser
    X1 = np.hstack([X[0], np.ones((4, 1))])
    gradients = X1 * (X1 @ at - y[0])[:, None]
    np.testing.assert_allclose(noisy.noise[0], np.cov(gradients.T, bias=True), atol=1e-12)
    with pytest.raises(SingularError, match="Client 2's matrix is singular"):
        _ = QuadraticPopulation.from_regression(X, y).centres


def random_population(draw):
    d, n = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    seed = draw(st.integers(0, 10**6))
    mu = draw(st.floats(0.05, 2))
    L = mu if n == d == 1 else mu * draw(st.floats(1.5, 50))
    p = np.random.default_rng(seed).uniform(0.1, 1, n)
    return QuadraticPopulation.random(n, d, mu=mu, L=L, sigma_c=2.0, noise=0.3, probabilities=p,
                                      seed=seed)


populations = st.composite(random_population)()
steps = st.integers(1, 30)
rates = st.floats(0, 0.95)  # of 1/L
thetas = st.one_of(steps, st.lists(st.floats(0, 2), min_size=1, max_size=8).filter(
    lambda weights: sum(weights) > 0.1
))
quickly = settings(max_examples=60, deadline=None, derandomize=True, database=None)


def rounds_of(p, gamma, K):
    """A round of each method."""
    return {
        "fedavg": dynamics.fedavg(p, gamma, K, 0.7, 0.2),
        "local_update": dynamics.local_update(p, gamma, K, gamma),
        "fedprox": dynamics.fedprox(p, gamma, K, p.mu, 0.7),
        "mime": dynamics.mime(p, gamma, K, 0.3),
        "mimelite": dynamics.mimelite(p, gamma, K, 0.3),
        "scaffold": dynamics.scaffold(p, gamma, K, 0.7),
        "server_only": dynamics.server_only(p, gamma, 0.3),
    }


@quickly
@given(populations, rates, thetas)
def test_distortions_are_sums_of_powers(p, rate, Theta):
    gamma = rate / p.L
    found = surrogate(p, gamma, Theta)
    weights = np.ones(Theta) if isinstance(Theta, int) else Theta
    for i, A in enumerate(p.matrices):
        power, total = np.eye(p.dimension), np.zeros_like(A)
        for weight in weights:
            total, power = total + weight * power, power @ (np.eye(p.dimension) - gamma * A)
        np.testing.assert_allclose(found.distortions[i], total, atol=1e-10 * sum(weights))
        np.testing.assert_allclose(found.matrices[i], total @ A, atol=1e-10 * sum(weights) * p.L)
    exact = np.linalg.solve(
        p.mean(found.matrices),
        p.mean((found.distortions @ p.matrices @ p.centres[:, :, None])[:, :, 0]),
    )
    np.testing.assert_allclose(found.minimiser, exact, atol=1e-8)
    np.testing.assert_allclose(found.gradient(exact), 0, atol=1e-7 * sum(weights) * p.L)
    assert found.distortions.shape == p.matrices.shape


@quickly
@given(populations, st.floats(0.05, 0.95), steps)
def test_a_round_is_local_training_written_out(p, rate, K):
    """Every method's round against loops over clients and steps."""
    gamma, d = rate / p.L, p.dimension
    x = np.linspace(-1, 2, d)
    own = np.random.default_rng(K).normal(size=(p.num_clients, d))
    grad = p.matrices @ x + p.linear
    mean_grad, c = p.mean(grad), p.mean(own)
    m = np.ones(d)

    def walk(step):
        ends = []
        for i in range(p.num_clients):
            y = x.copy()
            for _ in range(K):
                y = y - step(i, p.matrices[i] @ y + p.linear[i], y)
            ends.append(y)
        return np.array(ends)

    rounds = rounds_of(p, gamma, K)
    plain = walk(lambda i, g, y: gamma * g)
    one = rounds["fedavg"].matrix @ np.concatenate([x, m]) + rounds["fedavg"].offset
    pseudo = 0.8 * (x - p.mean(plain)) * 0.7 / (0.7 * gamma) + 0.2 * m
    np.testing.assert_allclose(one[:d], x - 0.7 * gamma * pseudo, atol=1e-9)
    np.testing.assert_allclose(one[d:], pseudo, atol=1e-8 * max(p.L * K, 1))
    prox = walk(lambda i, g, y: gamma * (g + p.mu * (y - x)))
    moved = follow([rounds["fedprox"]], x)[1]
    np.testing.assert_allclose(moved, x + 0.7 * p.mean(prox - x), atol=1e-9)
    for name, local in (
        ("mime", lambda i, g: g - grad[i] + mean_grad), ("mimelite", lambda i, g: g),
    ):
        ends = walk(lambda i, g, y, local=local: gamma * (0.7 * local(i, g) + 0.3 * m))
        one = rounds[name].matrix @ np.concatenate([x, m]) + rounds[name].offset
        np.testing.assert_allclose(one[:d], p.mean(ends), atol=1e-9)
        np.testing.assert_allclose(one[d:], 0.7 * mean_grad + 0.3 * m, atol=1e-8)
    ends = walk(lambda i, g, y: gamma * (g - own[i] + c))
    one = rounds["scaffold"].matrix @ np.concatenate([x, own.ravel()]) + rounds["scaffold"].offset
    np.testing.assert_allclose(one[:d], x + 0.7 * p.mean(ends - x), atol=1e-9)
    kept = own - c + (x - ends) / (K * gamma)
    np.testing.assert_allclose(one[d:].reshape(own.shape), kept, atol=1e-8 * max(p.L, 1))


@quickly
@given(populations, rates, thetas, st.floats(0.01, 100))
def test_scaling_of_the_losses(p, rate, Theta, s):
    """A -> s A, gamma -> gamma / s: the same points, the same rounds."""
    gamma = max(rate, 0.01) / p.L
    scaled = QuadraticPopulation.from_centres(s * p.matrices, p.centres, p.probabilities, p.noise)
    one, other = surrogate(p, gamma, Theta), surrogate(scaled, gamma / s, Theta)
    np.testing.assert_allclose(one.minimiser, other.minimiser, atol=1e-9)
    np.testing.assert_allclose(s * one.matrix, other.matrix, rtol=1e-9, atol=1e-12 * s)
    assert other.condition_number == pytest.approx(one.condition_number, rel=1e-8)
    assert (scaled.kappa, scaled.sigma_c) == pytest.approx((p.kappa, p.sigma_c), rel=1e-9)
    assert scaled.sigma_A == pytest.approx(s * p.sigma_A, rel=1e-9)
    for name in ("fedprox", "mime", "scaffold"):
        if name == "fedprox":  # its weight is scaled like mu
            pair = [rounds_of(q, g, 3)[name] for q, g in ((p, gamma), (scaled, gamma / s))]
        else:
            pair = [getattr(dynamics, name)(q, g, 3) for q, g in ((p, gamma), (scaled, gamma / s))]
        start = np.ones(p.dimension)
        np.testing.assert_allclose(
            pair[0].trajectory(start, 5), pair[1].trajectory(start, 5), atol=1e-8
        )


@quickly
@given(populations, st.floats(0.05, 0.95), steps, st.randoms(use_true_random=False))
def test_permuted_and_duplicated_clients_are_the_same_population(p, rate, K, random):
    gamma = rate / p.L
    order = list(range(p.num_clients))
    random.shuffle(order)
    shuffled = QuadraticPopulation.from_linear(
        p.matrices[order], p.linear[order], p.probabilities[order], p.noise[order]
    )
    twice = QuadraticPopulation.from_linear(  # client 0 is two of half its weight
        np.concatenate([p.matrices, p.matrices[:1]]), np.concatenate([p.linear, p.linear[:1]]),
        np.concatenate([[p.probabilities[0] / 2], p.probabilities[1:], [p.probabilities[0] / 2]]),
        np.concatenate([p.noise, p.noise[:1]]),
    )
    start = np.ones(p.dimension)
    expected = {name: r.trajectory(start, 4) for name, r in rounds_of(p, gamma, K).items()}
    for other in (shuffled, twice):
        for constant in ("mu", "L", "sigma_A", "sigma_c", "G2", "delta"):
            assert getattr(other, constant) == pytest.approx(getattr(p, constant), abs=1e-9)
        found = surrogate(other, gamma, K)
        np.testing.assert_allclose(found.minimiser, surrogate(p, gamma, K).minimiser, atol=1e-9)
        for name, rounds in rounds_of(other, gamma, K).items():
            np.testing.assert_allclose(
                rounds.trajectory(start, 4), expected[name], atol=1e-8, err_msg=name
            )


@quickly
@given(populations, rates, steps, st.integers(0, 1000))
def test_moved_and_turned_coordinates(p, rate, K, seed):
    """c -> R c + t, A -> R A R^T moves every point alike."""
    rng = np.random.default_rng(seed)
    R = np.linalg.qr(rng.normal(size=(p.dimension, p.dimension)))[0]
    t = rng.normal(size=p.dimension)
    moved = QuadraticPopulation.from_centres(
        R @ p.matrices @ R.T, p.centres @ R.T + t, p.probabilities
    )
    gamma = rate / p.L
    one, other = surrogate(p, gamma, K), surrogate(moved, gamma, K)
    np.testing.assert_allclose(R @ one.minimiser + t, other.minimiser, atol=1e-8)
    assert other.gap == pytest.approx(one.gap, abs=1e-8)
    assert moved.sigma_A == pytest.approx(p.sigma_A, abs=1e-8)


@quickly
@given(populations, rates, steps)
def test_degenerate_inputs_close_the_gap(p, rate, K):
    """One client, equal clients, K = 1 and gamma = 0: FedAvg minimises the true loss."""
    gamma = rate / p.L
    one = QuadraticPopulation.from_centres(p.matrices[:1], p.centres[:1])
    equal = QuadraticPopulation.from_centres(
        np.repeat(p.matrices[:1], 3, 0), np.repeat(p.centres[:1], 3, 0), [1, 2, 3]
    )
    same_centre = QuadraticPopulation.from_centres(
        p.matrices, np.repeat(p.centres[:1], p.num_clients, 0), p.probabilities
    )
    for clients in (one, equal, same_centre):
        np.testing.assert_allclose(surrogate(clients, gamma, K).minimiser, p.centres[0], atol=1e-8)
    assert one.sigma_A == one.sigma_c == one.delta == 0
    assert surrogate(p, gamma, 1).gap == pytest.approx(0, abs=1e-9)
    assert surrogate(p, 0.0, K).gap == pytest.approx(0, abs=1e-9)
    assert surrogate(p, gamma, 1).condition_number == pytest.approx(
        surrogate(p, 0.0, K).condition_number, rel=1e-8
    )
    np.testing.assert_allclose(
        dynamics.fedavg(p, 0.0, K).trajectory(np.ones(p.dimension), 2), 1.0, atol=0
    )


@quickly
@given(populations, rates, st.integers(1, 10), st.integers(1, 3))
def test_noise_of_a_client_is_the_sum_over_its_steps(p, rate, K, batch_size):
    """For Theta_{1:K}: sum_j (I - gamma A)^j C (I - gamma A)^j / B; Theta_K by its recursion."""
    gamma, eye = rate / p.L, np.eye(p.dimension)
    found = output_covariances(p, gamma, K, batch_size)
    final = output_covariances(p, gamma, last(K), batch_size)
    for i, (A, C) in enumerate(zip(p.matrices, p.noise, strict=True)):
        shrink = eye - gamma * A
        powers = [np.linalg.matrix_power(shrink, j) for j in range(K)]
        exact = sum(T @ C @ T.T for T in powers) / batch_size
        np.testing.assert_allclose(found[i], exact, atol=1e-10 * K)
        # The K-th gradient: its own noise, and A times the noise of x_K.
        at = sum((gamma**2 * T @ C @ T.T for T in powers[:-1]), np.zeros_like(C))
        np.testing.assert_allclose(final[i], (C + A @ at @ A) / batch_size, atol=1e-10 * K)


def test_second_moments_without_noise_are_the_mean_trajectory():
    clients = QuadraticPopulation.random(5, 3, seed=2)
    path = dynamics.local_update(clients, 0.05, 4, 0.1).trajectory(np.ones(3), 20)
    squares = mean_square_distances(
        clients, [0.05] * 20, [4] * 20, [0.1] * 20, np.ones(3), clients.minimiser
    )
    np.testing.assert_allclose(squares, ((path - clients.minimiser) ** 2).sum(1), rtol=1e-10)


@quickly
@given(populations, st.integers(2, 12), st.floats(0.001, 0.3))
def test_prescriptions_keep_the_distance(p, K, share):
    """Exactly the wanted distance at the largest gamma; the bounds' gammas are no larger."""
    away = np.linalg.norm(p.mean(p.centres) - p.minimiser)
    if away < 1e-3:
        return
    wanted = share * away
    exact = largest_gamma(p, K, wanted)
    gap = surrogate(p, exact, K).gap
    assert gap == pytest.approx(wanted, rel=1e-6) or (exact == 1 / p.L and gap <= wanted)
    for gamma in (theorem_17_gamma(p, K, wanted), corollary_20_gamma(p, K, wanted)):
        assert 0 < gamma <= exact * (1 + 1e-9)
        assert surrogate(p, gamma, K).gap <= wanted * (1 + 1e-9)
    within = largest_K(p, 0.5 / p.L, wanted)
    if np.isfinite(within):
        gaps = [surrogate(p, 0.5 / p.L, k).gap for k in range(1, int(within) + 2)]
        assert gaps[-1] > wanted
        assert within > 50 or max(gaps[:-1]) <= wanted * (1 + 1e-12)


def test_phi_and_chi():
    assert phi(3, 2.0, 0.25) == pytest.approx(2 * (1 + 0.5 + 0.25))
    assert phi(3, 2.0, 0.75) == pytest.approx(2 * (1 - 0.5 + 0.25))  # beyond 1 / l
    assert phi(3, 2.0, 0.5) == 2.0
    assert phi(5, 0.0, 0.1) == 0.0
    assert phi(1000, 1.0, 1e-14) == pytest.approx(1000 * (1 - 999 / 2 * 1e-14), rel=1e-13)
    assert phi(2.5, 1.0, 0.5) == pytest.approx((1 - 0.5**2.5) / 0.5)
    assert chi((0.0, 0.0, 1.0), 2.0, 0.25) == pytest.approx(0.25)
    assert chi(3, 2.0, 0.25) == pytest.approx((1 + 0.5 + 0.25) / 3)
    with pytest.raises(TheoryError, match="use a whole K"):
        phi(2.5, 1.0, 1.5)


def test_random_populations_have_the_constants_asked_for():
    for d, n, sigma_A in ((1, 2, None), (1, 9, 2.0), (2, 1, 0.0), (3, 30, 1.5), (5, 4, 0.0)):
        p = QuadraticPopulation.random(n, d, mu=0.5, L=6, sigma_A=sigma_A, sigma_c=3, seed=n)
        assert (p.mu, p.L) == pytest.approx((0.5, 6), rel=1e-9)
        assert p.sigma_c == pytest.approx(3 if n > 1 else 0, rel=1e-9)
        if sigma_A is not None:
            assert p.sigma_A == pytest.approx(sigma_A, abs=1e-9)
    with pytest.raises(TheoryError, match="this draw can have"):
        QuadraticPopulation.random(10, 3, mu=1, L=2, sigma_A=5)
    with pytest.raises(TheoryError, match="one eigenvalue"):
        QuadraticPopulation.random(1, 1, mu=1, L=2)


BAD = {
    "A population needs": lambda: QuadraticPopulation.from_linear([], []),
    "must be symmetric, but client 0": lambda: QuadraticPopulation.from_centres(
        [[[1, 2], [0, 1]]], [[0, 0]]
    ),
    r"must be \[2, 1, 1\]": lambda: QuadraticPopulation.from_centres([1, 2, 3], [0, 1]),
    "probabilities must be 2 numbers": lambda: QuadraticPopulation.from_centres(
        [1, 2], [0, 1], [1, -1]
    ),
    "one is nan": lambda: QuadraticPopulation.from_centres([1, np.nan], [0, 1]),
    "noise must be": lambda: QuadraticPopulation.from_centres([1, 2], [0, 1], noise=-1),
    "or a covariance .*, symmetric": lambda: QuadraticPopulation.from_centres(
        [np.eye(2)], [[0, 0]], noise=[[1, 5], [0, 1]]
    ),
    "must be numbers": lambda: QuadraticPopulation.from_centres(["a", "b"], [0, 1]),
    "left < right": lambda: QuadraticPopulation.from_density(lambda z: z, (2, 1)),
    "0 < mu <= L": lambda: QuadraticPopulation.random(2, 2, mu=0, L=1),
    "Client 1 needs features": lambda: QuadraticPopulation.from_regression(
        [np.ones((2, 1)), np.ones(3)], [np.ones(2), np.ones(3)]
    ),
    "Client 1 has 2 features": lambda: QuadraticPopulation.from_regression(
        [np.ones((2, 1)), np.ones((3, 2))], [np.ones(2), np.ones(3)]
    ),
    "ridge must be": lambda: QuadraticPopulation.from_regression([[[1]]], [[1]], ridge=-1),
    "gamma must be": lambda: surrogate(TWO, -0.1, 2),
    "K must be above 0": lambda: surrogate(TWO, 0.1, 0),
    "not all 0, but it is .0.0, 0.0.": lambda: surrogate(TWO, 0.1, (0.0, 0.0)),
    "K must be a whole number": lambda: last(2.5),
    "eta must be": lambda: dynamics.server_only(TWO, -1.0),
    "momentum must be": lambda: dynamics.mime(TWO, 0.1, 2, 1.0),
    "proximal_weight must be": lambda: dynamics.fedprox(TWO, 0.1, 2, -1.0),
    "gamma must be above 0": lambda: dynamics.scaffold(TWO, 0.0, 2),
    "control_option must be": lambda: dynamics.scaffold(TWO, 0.1, 2, control_option="III"),
    r"whole number in \[1, 2\]": lambda: dynamics.mime(TWO, 0.1, 2, cohort_size=3),
    "probabilities differ": lambda: dynamics.mime(
        QuadraticPopulation.from_centres([1, 2], [0, 1], [1, 2]), 0.1, 2, cohort_size=1
    ),
    "a point must be finite": lambda: dynamics.fedavg(TWO, 0.1, 2).trajectory(np.nan, 3),
    "gamma must be numbers": lambda: surrogate(TWO, "a", 2),
    "gamma must be a number": lambda: surrogate(TWO, [0.1, 0.2], 2),
    "num_nodes must be": lambda: QuadraticPopulation.from_density(np.abs, (1, 2), num_nodes=2.5),
    "Hessian is not finite": lambda: surrogate(TWO, 3.0, 10**6).minimiser,
    "state of 15,003 numbers": lambda: dynamics.scaffold(
        QuadraticPopulation.random(5000, 3), 0.1, 2
    ),
    "A point has 1 coord": lambda: dynamics.fedavg(TWO, 0.1, 2).trajectory([1, 2], 3),
    "no unique fixed point": lambda: dynamics.fedavg(TWO, 0.0, 2).fixed_point,
    "Client 1's matrix is singular": lambda: MIME.sigma_c,
    "The loss f has no unique": lambda: QuadraticPopulation.from_linear([0.0], [1.0]).minimiser,
    "accuracy must be": lambda: largest_gamma(TWO, 2, 0.0),
    "Theorem 17 needs mu > 0": lambda: theorem_17_gamma(MIME, 2, 0.1),
    "exactly one of centres, linear": lambda: population_from({"matrices": [1]}),
    "not 'centers'": lambda: population_from({"matrices": [1], "linear": [1], "centers": [1]}),
    "must end in .json": lambda: read_population("clients.txt"),
    "Cannot read": lambda: read_population("nowhere.json"),
}


@pytest.mark.parametrize("sentence", BAD)
def test_what_is_wrong_is_said(sentence):
    with pytest.raises(TheoryError, match=sentence) as error:
        BAD[sentence]()
    assert str(error.value).endswith(".")


def test_populations_from_files(tmp_path):
    (tmp_path / "a.json").write_text('{"matrices": [1, 2], "centres": [1, 0.5]}')
    (tmp_path / "b.toml").write_text(
        "density_power = 1\ninterval = [0.5, 2.0]\n", encoding="utf-8"
    )
    (tmp_path / "c.toml").write_text("[random]\nnum_clients = 4\ndimension = 2\nL = 3.0\n")
    np.savez(tmp_path / "d.npz", matrices=[2.0, 0.0], linear=[1.0, -1.0], noise=0.25)
    (tmp_path / "e.csv").write_text("client,x,y\nann,1,1\nbob,1,3\nann,2,2\n")
    assert read_population(tmp_path / "a.json").minimiser[0] == pytest.approx(2 / 3)
    assert read_population(tmp_path / "b.toml").minimiser[0] == pytest.approx(5 / 7)
    assert pytest.approx(3.0) == read_population(tmp_path / "c.toml").L
    npz = read_population(tmp_path / "d.npz")
    assert (npz.minimiser[0], npz.G2) == (0.0, 0.25)
    (tmp_path / "f.csv").write_text("x;y;client\r\n1;1;ann\r\n ; ; \r\n1;3;bob\r\n2;2;ann\r\n")
    semicolons = read_population(tmp_path / "f.csv", target_column="y")
    assert semicolons.minimiser[0] == pytest.approx(8 / 6)
    csv = read_population(tmp_path / "e.csv")
    assert csv.minimiser[0] == pytest.approx(8 / 6)
    assert csv.probabilities.tolist() == pytest.approx([2 / 3, 1 / 3])
    for name, content, sentence in (
        ("f.csv", "client,x,y\nann,1\n", "Line 2 has 2 values, the first 3"),
        ("g.csv", "client,x,y\n\n\nann,1,b\n", "Line 4: could not convert"),
        ("h.csv", "name,x,y\nann,1,2\n", "There is no column 'client'; the columns are name, x, y"),
        ("i.json", "[1, 2]", "a table of names and values"),
        ("j.json", "{", "cannot be parsed"),
        ("k.json", '{"random": {"clients": 3}}', "cannot be built"),
        ("l.json", '{"random": 5}', "random must be a table"),
        ("m.json", '{"random": {"num_clients": 2.5, "dimension": 1}}', "num_clients must be"),
        ("n.json", '{"density_power": "x", "interval": [1, 2]}', "density_power must be numbers"),
        ("o.json", '{"density_power": 1, "interval": ["a", 2]}', "interval must be numbers"),
        ("p.npz", "nothing", "not a complete .npz file"),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(TheoryError, match=sentence):
            read_population(tmp_path / name)


def test_claims_compare_up_to_rounding():
    assert Claim("s", "t", 1.0, "<=", 1.0 - 1e-12).holds
    assert not Claim("s", "t", 1.0, "<=", 1.0 - 1e-6).holds
    assert not Claim("s", "t", np.nan, "<=", 1.0).holds
    assert Claim("s", "t", np.array([1.0, 2.0]), ">=", np.array([0.5, 2.0])).holds
    assert not Claim("s", "t", np.array([1.0, 2.0]), "=", np.array([1.0, 2.1])).holds
    assert Claim("s", "t", np.array([1.0, 0.0]), "<=", np.array([4.0, 0.0])).ratio == 0.25


@pytest.mark.quick
def test_theory_imports_nothing_of_the_engine():
    folder = Path(dynamics.__file__).parent
    ground = ("fedax.theory", "fedax.files", "fedax.outside")  # which know NumPy at most
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            modules = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            for module in modules:
                assert module.split(".")[0] not in ("jax", "optax", "matplotlib"), path
                assert not module.startswith("fedax") or module.startswith(ground), path


def test_differences_beyond_float64_are_infinite():
    """The mean of two curvatures of 1e308 is none; an SVD of it did not converge."""
    with np.errstate(all="ignore"):
        population = QuadraticPopulation.from_centres([1e308, 1e308], [0.0, 0.0])
        assert (population.sigma_A, population.delta) == (np.inf, np.inf)
    assert norms(np.array([[[3.0, 0.0], [0.0, 1.0]], np.full((2, 2), np.nan)])).tolist() == [
        3.0, np.inf
    ]
