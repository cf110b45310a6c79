"""K_t = ceil(K_0 d^t) in the precision that runs train in, against decimal arithmetic."""

import decimal
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.clients.minibatches import count_local_steps
from fedax.optimizers.schedules import exponential_decay, staircase_decay
from problems import quadratic_model

pytestmark = pytest.mark.quick

DATA = fedax.ClientData({"x": jnp.zeros(5, jnp.float32)}, jnp.int32(0), jnp.int32(5), 5)


def exact_counts(initial, rate, num_rounds):
    """ceil(K_0 d^t) for t = 0, 1, ..., of decimal numbers as they are written."""
    with decimal.localcontext() as context:
        context.prec = 50
        value, counts = decimal.Decimal(str(initial)), []
        for _ in range(num_rounds):
            counts.append(math.ceil(value))
            value *= decimal.Decimal(str(rate))
    return np.array(counts)


def counts_of(algorithm, rounds):
    """The local steps of a client with 5 examples in these rounds."""
    state = algorithm.init({"x": jnp.zeros(3, jnp.float32)})

    def count(t):
        message = algorithm.exchanges[0].broadcast(state._replace(round_index=t))
        return jnp.asarray(count_local_steps(DATA, 2, None, message.num_local_steps))

    return np.asarray(jax.vmap(count)(jnp.asarray(rounds, jnp.int32)))


def method(schedule):
    return fedax.fedavg(quadratic_model(3, jnp.float32), 0.1, num_local_steps=schedule)


@pytest.mark.parametrize(
    ("initial", "rate", "num_rounds"), [(100, 0.9996, 4000), (50, 0.9999, 20_000)]
)
def test_float32_counts_are_those_of_exact_arithmetic(initial, rate, num_rounds):
    with jax.enable_x64(False):
        counts = counts_of(method(exponential_decay(initial, rate)), range(num_rounds))
    assert (counts == exact_counts(initial, rate, num_rounds)).all()


@pytest.mark.slow
def test_a_grid_of_them():
    """K_0 and d are arguments of the program, each pair one of a batch."""
    rounds = np.r_[0:400, 400:12_000:7]
    grid = [(k, d) for k in (3, 10, 33, 100, 1000, 10_000)
            for d in (0.5, 0.9, 0.99, 0.995, 0.996, 0.999, 0.9995, 0.9996, 0.99995, 1.0)]
    with jax.enable_x64(False):
        schedules = jax.vmap(lambda k, d: jax.vmap(exponential_decay(k, d).steps)(
            jnp.asarray(rounds, jnp.int32)
        ))
        initial, rates = (jnp.asarray(column, jnp.float32) for column in zip(*grid, strict=True))
        found = np.asarray(jax.jit(schedules)(initial, rates))
    for (k, d), counts in zip(grid, found, strict=True):
        assert (counts == exact_counts(k, d, 12_000)[rounds]).all(), (k, d)


@pytest.mark.slow
@pytest.mark.parametrize("x64", [False, True])
def test_whole_numbers_and_rates_of_every_kind(x64):
    def counts(schedule, rounds):
        return counts_of(method(schedule), rounds).tolist()

    with jax.enable_x64(x64):
        assert counts(exponential_decay(27.0, 1 / 3), range(5)) == [27, 9, 3, 1, 1]
        assert counts(exponential_decay(10_000, 0.9996), [0, 1, 2]) == [10_000, 9996, 9993]
        assert counts(exponential_decay(2.5, 0.5), [0, 1, 2]) == [3, 2, 1]
        assert counts(exponential_decay(3, 1.0), [0, 2**31 - 1]) == [3, 3]
        assert counts(exponential_decay(3, 2.0), [0, 1, 5]) == [3, 6, 96]  # growing
        assert counts(exponential_decay(0, 0.5), [0, 9]) == [0, 0]
        assert counts(exponential_decay(1e6, 1e-3), [0, 1, 2, 3, 1000]) == [10**6, 1000, 1, 1, 1]
        assert counts(staircase_decay(100, 0.1, 500), [0, 499, 500, 1000, 1500]) == [
            100, 100, 10, 1, 1
        ]


def test_methods_that_pass_a_schedule_on():
    """FedSGD's own decay, a limit on K, and a second setting in the first one's program."""
    rounds, expected = range(4000), exact_counts(100, 0.9996, 4000)
    model = quadratic_model(3, jnp.float32)
    with jax.enable_x64(False):
        decaying = fedax.fedsgd(model, num_local_steps=100, steps_decay=0.9996)
        assert (counts_of(decaying, rounds) == expected).all()
        limited = fedax.local_update(
            model, gradient_weights=np.ones(80, np.float32),
            num_local_steps=exponential_decay(100, 0.9996),
        )
        assert (counts_of(limited, rounds) == np.minimum(expected, 80)).all()
        numbers, structure = fedax.partition(method(exponential_decay(100, 0.9996)))
        assert structure == fedax.partition(method(exponential_decay(50, 0.999)))[1]
        again = jax.jit(lambda numbers, t: structure(numbers).exchanges[0].broadcast(
            method(1).init({"x": jnp.zeros(3)})._replace(round_index=t)
        ).num_local_steps)
        assert [int(again(numbers, t)) for t in rounds[::400]] == expected[::400].tolist()
