"""AFL and TERM against their papers' equations, written in NumPy.

q-FedAvg's equations are in tests/test_own_methods.py, beside the shorter example.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq

import fedax
from problems import identical
from test_identities_drift import (
    COHORTS,
    EVERYONE,
    FULL,
    START,
    TASK,
    close,
    gradient,
    shares,
    trained,
)
from test_own_methods import client_quadratic, locally, loss_of

# A fair model has a larger mean loss, of which fedax warns.
fair = pytest.mark.filterwarnings("ignore:The training loss has not fallen:RuntimeWarning")

# ------------------------------------------------------------------------ AFL


def projected(v, mass):
    """The nearest point with numbers >= 0 that sum to the mass, by its optimality condition."""
    theta = brentq(
        lambda theta: np.maximum(v - theta, 0).sum() - mass, v.min() - mass, v.max(), xtol=1e-15
    )
    return np.maximum(v - theta, 0)


@pytest.mark.slow
@pytest.mark.parametrize("step", [0.002, 0.5])
def test_afl_is_mohri_et_als_algorithm(step):
    """w and lambda move at once: w with the old lambda, lambda with the losses at the old w."""
    rate, rounds = 0.1, 6
    result = trained(fedax.afl(
        TASK.model, rate, mixture_learning_rate=step, batch_size=20
    ), [EVERYONE] * rounds)
    w, mixture = START, np.full(10, 0.1)
    for _ in range(rounds):
        losses = np.array([loss_of(TASK, i, w) for i in EVERYONE])
        move = sum(mixture[i] * gradient(i, w) for i in EVERYONE)
        mixture = projected(mixture + step * losses, 1.0)
        w = w - rate * move
    close(result.params["x"], w)
    close(result.state.client_store.read(EVERYONE).mixture / 10, mixture)
    assert (mixture == 0).any() == (step > 0.1)


@pytest.mark.slow
def test_afl_with_sampled_clients_moves_weight_within_the_cohort():
    """The clients of a round keep their mass, so all weights sum to the number of clients."""
    result = trained(fedax.afl(TASK.model, 0.1, mixture_learning_rate=0.1, **FULL))
    w, mixture = START, np.ones(10)
    for cohort in COHORTS:
        losses = np.array([loss_of(TASK, i, w) for i in cohort])
        ends = np.stack([locally(w, *client_quadratic(TASK, i)) for i in cohort])
        new = projected(mixture[cohort] + 10 * 0.1 * losses, mixture[cohort].sum())
        w = np.average(ends, axis=0, weights=mixture[cohort])
        mixture[cohort] = new
    own = np.asarray(result.state.client_store.read(EVERYONE).mixture)
    close(result.params["x"], w)
    close(own, mixture)
    close(own.sum(), 10)


@pytest.mark.slow
@pytest.mark.parametrize("weighting", ["num_examples", "uniform"])
def test_afl_whose_mixture_rests_is_fedavg_to_the_bit(weighting):
    """In the stored order: its clients train in the second exchange, where keys differ."""
    options = {
        "batch_size": 3, "num_local_steps": 4, "weighting": weighting, "order": "sequential"
    }
    still = trained(fedax.afl(TASK.model, 0.1, mixture_learning_rate=0.0, **options))
    assert identical(still.params, trained(fedax.fedavg(TASK.model, 0.1, **options)).params)


@pytest.mark.slow
@fair
def test_afl_lowers_the_largest_loss():
    """At the saddle point the clients with weight have the largest loss, all the same."""
    losses = {}
    for step in (0.0, 0.01):
        end = trained(
            fedax.afl(TASK.model, 0.1, mixture_learning_rate=step, batch_size=20), [EVERYONE] * 3000
        )
        x = np.asarray(end.params["x"])
        losses[step] = np.array([loss_of(TASK, i, x) for i in EVERYONE])
    mixture = np.asarray(end.state.client_store.read(EVERYONE).mixture)
    weighted = losses[0.01][mixture > 1e-3]
    assert losses[0.01].max() < 0.9 * losses[0.0].max()
    assert len(weighted) > 1
    assert weighted.min() > 0.98 * losses[0.01].max()


# ----------------------------------------------------------------------- TERM


@pytest.mark.parametrize("tilt", [-2.0, 0.5, 5.0])
@pytest.mark.parametrize("weighting", ["num_examples", "uniform"])
def test_term_weighs_clients_by_the_exponential_of_their_loss(tilt, weighting):
    """Lemma 1 of Li et al.: grad R~(t; w) = sum_i w_i grad F_i, w_i = p_i e^(t F_i) / sum."""
    server = 0.7
    result = trained(fedax.term(
        TASK.model, 0.1, server, tilt=tilt, weighting=weighting, **FULL
    ))
    w = START
    for cohort in COHORTS:
        losses = np.array([loss_of(TASK, i, w) for i in cohort])
        weights = shares(cohort, weighting) * np.exp(tilt * losses)
        ends = np.stack([locally(w, *client_quadratic(TASK, i)) for i in cohort])
        w = w + server * (np.average(ends, axis=0, weights=weights) - w)
    close(result.params["x"], w)


@pytest.mark.quick
@pytest.mark.parametrize("weighting", ["num_examples", "uniform"])
def test_term_without_a_tilt_is_fedavg_to_the_bit(weighting):
    options = {"batch_size": 3, "num_local_steps": 4, "weighting": weighting}
    plain = trained(fedax.term(TASK.model, 0.1, tilt=0.0, **options))
    assert identical(plain.params, trained(fedax.fedavg(TASK.model, 0.1, **options)).params)


@pytest.mark.slow
@fair
def test_term_of_one_full_step_descends_the_tilted_loss():
    """It rests where the gradient of (1/t) log mean e^(t F_i) is 0; the largest loss falls."""
    largest = []
    for tilt in (0.0, 2.0, 10.0):
        end = trained(
            fedax.term(TASK.model, 0.1, tilt=tilt, batch_size=20, num_local_steps=1,
                       weighting="uniform"),
            [EVERYONE] * 1500,
        )
        x = np.asarray(end.params["x"])
        losses = np.array([loss_of(TASK, i, x) for i in EVERYONE])
        pulls = np.exp(tilt * (losses - losses.max()))[:, None] * np.stack(
            [gradient(i, x) for i in EVERYONE]
        )
        assert np.linalg.norm(pulls.sum(0)) < 1e-8 * np.linalg.norm(pulls, axis=1).sum()
        largest.append(losses.max())
    assert largest[0] > largest[1] > largest[2]


@pytest.mark.slow
@fair
def test_a_tilt_beyond_the_range_of_numbers_still_trains():
    """e^(1e4) overflows; exponents are limited, and the clients of the largest loss lead."""
    end = trained(
        fedax.term(TASK.model, 0.02, tilt=1e4, batch_size=20, num_local_steps=1), [EVERYONE] * 300
    )
    x = np.asarray(end.params["x"])
    assert np.isfinite(x).all()
    before, after = (max(loss_of(TASK, i, at) for i in EVERYONE) for at in (START, x))
    assert after < before


@pytest.mark.quick
@pytest.mark.parametrize("count", [50, 60_000, 1_000_000])
def test_a_large_client_with_the_largest_tilted_loss_is_accepted(count):
    """In float32, before c is known: n_i e^60 times a loss of 4 was no number to sum."""
    one = jnp.float32(1)
    model = fedax.Model(
        lambda key: {"x": one},
        lambda params, batch, key: (4 * params["x"] + batch["z"], one + batch["z"]),
        lambda params, batch: batch["z"], {},
    )
    algorithm = fedax.term(model, 0.1, tilt=20.0, batch_size=20, num_local_steps=1)
    data = fedax.FederatedDataset.from_clients({"large": {"z": np.zeros(count, np.float32)}})
    task = fedax.Task(model, data, data, "one client")
    result = fedax.train(task, algorithm, num_rounds=1, cohort_size=1, evaluate_every=0)
    assert result.history["num_rejected"].tolist() == [0]


# ------------------------------------------------------------------- q-FedAvg


@pytest.mark.parametrize("start", [1.0, 1.0001])
def test_qfedavg_at_losses_whose_power_is_below_the_smallest_number_rests(start):
    """Numerator and divisor are both 0 in float32, where F_i^5 is 1e-50 or 1e-41."""
    data = fedax.FederatedDataset.from_clients(
        [{"x": np.ones((4, 1), "f4"), "y": np.ones(4, "f4")}] * 4
    )
    model = fedax.regression(lambda key: jnp.full(1, start, "f4"), lambda p, x: x @ p)
    result = fedax.train(
        fedax.Task(model, data, data), fedax.qfedavg(model, q=5.0, num_local_steps=5),
        num_rounds=2, cohort_size=4,
    )
    np.testing.assert_array_equal(result.params, np.full(1, start, "f4"))
