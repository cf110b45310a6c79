"""Two clients, f_1 = x^2 + G x and f_2 = -G x (Karimireddy et al. 2020, section 6.1): x* = 0."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedax
from fedax import base_optimizers
from test_hard_users import quadratic, run, two_clients


def b2(heterogeneity):
    """The model of f_1 = x^2 + G x, f_2 = -G x on `two_clients(1.0)`; G may be traced."""
    plain = quadratic()

    def loss(params, batch, key):
        return plain.loss(params, {**batch, "b": heterogeneity * batch["b"]}, key)

    return plain._replace(loss=loss)


def b2_path(make, num_rounds, *grid):
    """x after each round for every point (G, eta, K, ...) of the grid, in one program."""

    def path(heterogeneity, *point):
        algorithm = make(b2(heterogeneity), *point)
        return run(algorithm, two_clients(1.0), num_rounds).params["x"][:, 0]

    return jax.vmap(path)(*map(jnp.asarray, grid))


ONE = {"batch_size": 1, "order": "sequential"}


def b2_mime(model, eta, K, beta):
    return fedax.mime(model, eta, base_optimizers.sgdm(beta), num_local_steps=K, **ONE)


def b2_mimelite(model, eta, K, beta):
    return fedax.mimelite(model, eta, base_optimizers.sgdm(beta), num_local_steps=K, **ONE)


def b2_fedavg(model, eta, K, beta):
    server = base_optimizers.as_transformation(base_optimizers.sgdm(beta))
    return fedax.fedopt(model, optax.sgd(1.0), server, client_learning_rate=eta,
                        num_local_steps=K, **ONE)


def b2_scaffold(option):
    return lambda model, eta, K: fedax.scaffold(
        model, eta, control_option=option, num_local_steps=K, **ONE
    )


def b2_server_only(model, eta, K, beta):
    return fedax.server_only(model, eta, base_optimizers.sgdm(beta))


@pytest.mark.slow
def test_fixed_points_of_fedavg_and_mimelite():
    G, eta, K = (np.array(a) for a in zip(
        (1.0, 0.01, 10), (10.0, 0.01, 10), (100.0, 0.01, 10), (1.0, 0.1, 2), (7.0, 0.05, 1),
        (1.0, 0.05, 10), strict=True))
    fixed = G * (K * eta / (1 - (1 - 2 * eta) ** K) - 0.5)
    np.testing.assert_allclose(fixed[[0, 3, 4]], [0.0466656, 0.0555556, 0], atol=5e-8)
    x = b2_path(b2_fedavg, 500, G, eta, K, 0 * G)[:, -1]
    np.testing.assert_allclose(x, fixed, rtol=1e-10, atol=1e-10)
    f = x**2 / 2  # the plateau
    np.testing.assert_allclose([f[1] / f[0], f[2] / f[0]], [1e2, 1e4], rtol=1e-9)
    beta = np.array([0.0, 0.5, 0.5, 0.9, 0.5, 0.5])
    cc = eta * (1 - beta)
    r = (1 - 2 * cc) ** K
    S = (1 - r) / (2 * cc)
    fixed = G * cc * (K - S) / (1 - r + eta * beta * (S + K))
    assert fixed[5] == pytest.approx(0.05795138, abs=5e-9)
    x = b2_path(b2_mimelite, 1500, G, eta, K, beta)[:, -1]
    np.testing.assert_allclose(x, fixed, rtol=1e-10, atol=1e-10)


@pytest.mark.quick
def test_mime_shrinks_x_by_its_factor_whatever_g():
    G, eta, K = np.array([1.0, 100.0, 1.0, 100.0]), np.repeat([0.3, 0.1], 2), np.repeat([2, 10], 2)
    factor = 1 - ((1 - (1 - 2 * eta) ** K) / 2 + K * eta) / 2
    np.testing.assert_allclose(factor[[0, 2]], [0.49, 0.27684355], atol=5e-9)
    x = b2_path(b2_mime, 8, G, eta, K, 0 * G)
    np.testing.assert_allclose(x, factor[:, None] ** np.arange(1, 9), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(x[::2], x[1::2], rtol=0, atol=1e-12)


@pytest.mark.slow
def test_rounds_to_an_accuracy_at_a_fixed_rate():
    beta, K = np.repeat([0.0, 0.5], 3), np.tile([1, 2, 10], 2)
    G, eta = np.full(6, 10.0), np.full(6, 0.05)
    rounds = [
        (np.argmax(b2_path(make, 180, G, eta, K, beta) ** 2 / 2 <= 1e-8, axis=1) + 1).tolist()
        for make in (b2_mime, b2_server_only)
    ]
    assert rounds[0] == [173, 87, 17, 165, 76, 25]
    assert rounds[1] == [173] * 3 + [165] * 3  # server-only is Mime at K = 1


@pytest.mark.slow
def test_best_loss_after_60_rounds_over_the_grid_of_rates():
    rates, G, K = np.meshgrid(0.005 * np.arange(1, 401), [1.0, 10.0, 100.0], [2, 10])
    grid = (G.ravel(), rates.ravel(), K.ravel(), np.full(G.size, 0.5))

    def best(make):  # [G, K]
        x = np.asarray(b2_path(make, 60, *grid)[:, -1]).reshape(G.shape)
        return np.nanmin(x**2 / 2, axis=1)

    np.testing.assert_allclose(
        best(b2_fedavg), [[3.4e-4, 1.2e-3], [1.4e-2, 3.5e-2], [2.1e-1, 2.5]], rtol=0.04)
    np.testing.assert_allclose(
        best(b2_mimelite), [[2.7e-5, 7.7e-5], [1.5e-3, 4.7e-3], [5.0e-2, 1.1e-1]], rtol=0.05)
    assert best(b2_mime).max() < 6e-23
    np.testing.assert_allclose(best(b2_server_only), 4e-25, rtol=0.2)


@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_converges_where_fedavg_does_not(option):
    G, eta, K = np.array([1.0, 10.0, 100.0]), np.full(3, 0.05), np.full(3, 10)
    x = b2_path(b2_scaffold(option), 400, G, eta, K)[:, -1]
    # Option II is exact to 1e-15; option I rounds gradients of size G at every step.
    assert (np.abs(x) < (1e-15 if option == "II" else np.finfo(float).eps * G)).all()
    x = b2_path(b2_fedavg, 400, G, eta, K, 0 * G)[:, -1]
    np.testing.assert_allclose(x, G * (0.5 / (1 - 0.9**10) - 0.5), rtol=1e-10)  # FedAvg's own
