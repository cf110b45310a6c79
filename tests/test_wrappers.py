"""Wrappers and options at their edges: low precision, foreign uploads, rates that are not there."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax import train
from fedax.algorithms.plateau import Plateau, next_plateau
from fedax.clients.minibatches import count_local_steps
from fedax.optimizers.schedules import exponential_decay
from problems import identical, largest_difference, quadratic_model, quadratic_task


@pytest.mark.parametrize("rule", ["paper", "released"])
@pytest.mark.parametrize(("dtype", "level"), [(jnp.float32, 5000.0), (jnp.float32, 4.0),
                                              (jnp.float64, 4.0)])
def test_a_threshold_below_the_losses_resolution_still_means_no_progress(rule, dtype, level):
    """A constant loss makes no progress, though in float32 5000 - 1e-4 is 5000."""
    zero = jnp.zeros((), jnp.int32)
    infinite = jnp.asarray(jnp.inf, dtype)
    plateau = Plateau(jnp.full(20, infinite), infinite, zero, jnp.asarray(20, jnp.int32), zero)
    step = jax.jit(lambda p: next_plateau(p, jnp.asarray(level, dtype), 20, 20, 1e-4, rule))
    decays = []
    for t in range(1, 90):
        after = step(plateau)
        if after.num_decays > plateau.num_decays:
            decays.append(t)
        plateau = after
    # The window is full in round 20; 20 rounds later, and then every P + 1 (paper), P + C - 1.
    assert decays == {"paper": [40, 61, 82], "released": [40, 79]}[rule]


@pytest.mark.quick
@pytest.mark.parametrize(("patience", "cooldown", "period"), [
    (7, 3, 7), (3, 7, 8), (5, 5, 6), (4, 0, 4), (1, 0, 1),
])
def test_rounds_of_the_cooldown_count_towards_the_patience(patience, cooldown, period):
    """Section 9.1 forbids the fall for C rounds, not the count: the period is max(P, C + 1)."""
    zero, infinite = jnp.zeros((), jnp.int32), jnp.asarray(jnp.inf)
    plateau = Plateau(jnp.full(1, infinite), infinite, zero, jnp.asarray(cooldown, jnp.int32), zero)
    step = jax.jit(lambda p: next_plateau(p, jnp.ones(()), patience, cooldown, 1e-4))
    falls = []
    for t in range(1, 60):
        after = step(plateau)
        falls += [t] * int(after.num_decays - plateau.num_decays)
        plateau = after
    assert np.diff(falls).tolist() == [period] * (len(falls) - 1)
    assert len(falls) > 5


@pytest.mark.quick
def test_the_default_lengths_of_section_9_1():
    """W = P = C = ceil(N / M)."""
    for N, M, rounds in ((715, 10, 72), (720, 10, 72), (3, 50, 1), (1000, 10, 100)):
        assert fedax.plateau_lengths(N, M) == {
            "window": rounds, "patience": rounds, "cooldown": rounds
        }
    for N, M in ((0, 1), (5, 0), (5, 1.5)):
        with pytest.raises(ValueError, match="must be a whole number"):
            fedax.plateau_lengths(N, M)
    task = quadratic_task()
    algorithm = fedax.local_update_decay(
        lambda c, s: fedax.fedavg(task.model, c, s), task.model, **fedax.plateau_lengths(20, 8)
    )
    assert algorithm.init({"x": jnp.zeros(3)}).own.losses.shape == (3,)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The training loss has not fallen")
def test_the_rates_fall_with_parameters_of_low_precision():
    rates = {}
    for dtype in (jnp.bfloat16, jnp.float32):
        task = quadratic_task()
        arrays = {k: np.asarray(v, jnp.dtype(dtype)) for k, v in task.train.arrays.items()}
        data = fedax.FederatedDataset(arrays, task.train.offsets)
        model = quadratic_model(3, dtype)
        algorithm = fedax.local_update_decay(
            lambda c, s, model=model: fedax.fedavg(model, c, s, batch_size=4), model, 1e-6, 1.0,
            window=1, patience=1, cooldown=0,
        )
        result = train(fedax.Task(model, data), algorithm, num_rounds=6, evaluate_every=0,
                       cohort_size=10)
        assert result.params["x"].dtype == dtype
        rates[dtype] = result.history["client_learning_rate"]
    # Nothing moves at 1e-6, so after the first round every round is without progress.
    for found in rates.values():
        np.testing.assert_allclose(found, [1e-6, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10], rtol=1e-5)


@pytest.mark.slow
def test_decay_of_one_rate_alone():
    task = quadratic_task()
    options = {"window": 1, "patience": 1, "cooldown": 0, "threshold": 100.0}
    algorithm = fedax.local_update_decay(
        lambda c, s: fedax.local_sgd(task.model, c), task.model, 0.1, None, **options
    )
    history = train(task, algorithm, num_rounds=3, evaluate_every=0).history
    np.testing.assert_allclose(history["client_learning_rate"], [0.1, 0.1, 0.01])
    with pytest.raises(KeyError, match="server_learning_rate"):
        _ = history["server_learning_rate"]
    with pytest.raises(ValueError, match="both None"):
        fedax.local_update_decay(lambda c, s: algorithm, task.model, None, None)
    with pytest.raises(ValueError, match="must be a number, because local_update_decay"):
        fedax.local_update_decay(lambda c, s: algorithm, task.model, exponential_decay(0.1, 0.9))


@pytest.mark.slow
def test_decay_inside_elastic_still_measures_the_whole_data():
    task = quadratic_task()

    def decay(wrap):
        return fedax.local_update_decay(
            lambda c, s: wrap(fedax.fedavg(task.model, c, s)), task.model, 0.1, 1.0
        )

    inside = fedax.elastic(decay(lambda inner: inner), task.model)
    outside = decay(lambda inner: fedax.elastic(inner, task.model))
    losses = [
        train(task, algorithm, num_rounds=3, evaluate_every=0).history["full_loss"]
        for algorithm in (inside, outside)
    ]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-12)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class OwnUpload:
    """A user's upload with more than the contract asks for."""

    pseudo_gradient: Any
    more: Any


@pytest.mark.slow
def test_elastic_scales_the_pseudo_gradient_of_a_dataclass():
    task = quadratic_task()
    plain = fedax.fedavg(task.model, batch_size=4)
    (exchange,) = plain.exchanges

    def client(message, state, data, key):
        reply = exchange.client(message, state, data, key)
        return reply._replace(upload=OwnUpload(reply.upload.pseudo_gradient, jnp.ones(())))

    own = plain._replace(exchanges=(exchange._replace(client=client),))
    results = [
        train(task, fedax.elastic(algorithm, task.model), num_rounds=3).params
        for algorithm in (plain, own)
    ]
    assert identical(*results)


def test_elastic_refuses_what_has_nothing_to_scale():
    task = quadratic_task()
    plain = fedax.fedavg(task.model)
    (exchange,) = plain.exchanges
    bare = plain._replace(exchanges=(exchange._replace(
        client=lambda *a: exchange.client(*a)._replace(upload={"x": jnp.zeros(3)})
    ),))
    with pytest.raises(ValueError, match="exchange is a dict without one"):
        train(task, fedax.elastic(bare, task.model), num_rounds=1)
    individual = plain._replace(exchanges=(exchange._replace(individual=True),))
    with pytest.raises(ValueError, match="one by one, and each is a ModelUpdate without a method"):
        train(task, fedax.elastic(individual, task.model), num_rounds=1)
    with pytest.raises(ValueError, match="elastic cannot wrap fedexp"):
        train(task, fedax.elastic(fedax.fedexp(task.model), task.model), num_rounds=1)


def test_adaalter_shares_one_accumulator():
    task = quadratic_task()
    sent = fedax.communication(fedax.adaalter(task.model), task.model, task.train.client(0))
    size = sent.model_bytes
    # The model and the accumulator, both ways, and the learning rate down.
    assert (sent.bytes_down - 8, sent.bytes_up) == (2 * size, 2 * size)


@pytest.mark.quick
def test_rho_at_a_client_rate_of_zero_is_no_term():
    task = quadratic_task()
    start = train(task, fedax.fedavg(task.model), num_rounds=0).params
    still = train(task, fedax.fedprox(task.model, 0.0, rho=0.1), num_rounds=2).params
    assert largest_difference(still, start) == 0


@pytest.mark.quick
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_whole_numbers_of_steps_are_not_rounded_up(dtype):
    data = fedax.ClientData({"x": jnp.zeros(5)}, jnp.int32(0), jnp.int32(5), 5)
    schedule = exponential_decay(27.0, 1 / 3)
    steps = [
        int(count_local_steps(data, 2, None, schedule(jnp.asarray(t)).astype(dtype)))
        for t in range(5)
    ]
    assert steps == [27, 9, 3, 1, 1]
    assert int(count_local_steps(data, 2, None, jnp.asarray(3.00001, dtype))) == 4
