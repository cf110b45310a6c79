"""A minibatch is no larger than the population's largest client, whatever batch_size says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax import FederatedDataset, Task
from fedax.clients.minibatches import steps_per_epoch

MOST = 2**31 - 1


def task(sizes=(5, 2, 7)):
    """Linear regression; of every minibatch the loss notes the size."""
    seen = []

    def loss(params, batch, key):
        seen.append(len(batch["y"]))
        errors = batch["x"] @ params - batch["y"]
        return errors**2 / 2, jnp.ones_like(errors)

    rng = np.random.default_rng(0)
    model = fedax.Model(lambda key: jnp.zeros(3), loss, lambda p, batch: batch["x"] @ p, {})
    data = FederatedDataset(
        {"x": rng.normal(size=(sum(sizes), 3)), "y": rng.normal(size=sum(sizes))},
        np.concatenate([[0], np.cumsum(sizes)]),
    )
    return Task(model, data), seen


def after(batch_size, **options):
    one, seen = task()
    algorithm = fedax.fedavg(one.model, 0.1, batch_size=batch_size, **options)
    result = fedax.train(one, algorithm, num_rounds=3, cohort_size=2)
    return result.params, result.history["train_loss"], max(seen)


@pytest.mark.quick
@pytest.mark.parametrize("order", ["shuffled", "sequential"])
def test_a_full_batch_costs_the_largest_client(order):
    """Beyond the largest client's 7 examples the same program runs, so the same bits come out."""
    params, losses, size = after(7, order=order)
    for batch_size in (8, 1_000_000, MOST):
        same, also, wanted = after(batch_size, order=order)
        assert wanted == size == 7
        np.testing.assert_array_equal(same, params)
        np.testing.assert_array_equal(also, losses)
    smaller, *_, size = after(6, order=order)
    assert size == 6
    assert not np.array_equal(smaller, params)


@pytest.mark.slow
def test_batches_drawn_with_replacement_have_their_size_or_a_sentence():
    assert after(50, order="iid")[2] == 50
    one, _ = task()
    algorithm = fedax.fedavg(one.model, 0.1, batch_size=MOST, order="iid")
    with pytest.raises(ValueError, match=r"2,147,483,647 examples.* at most 7,"):
        fedax.train(one, algorithm, num_rounds=1, cohort_size=2)


@pytest.mark.slow
def test_all_that_walks_over_a_clients_examples_is_limited():
    one, seen = task()
    cohort = fedax.CohortReader(one.train)(np.arange(3))
    few, many = (
        fedax.dissimilarity(
            one.model, jnp.ones(3), cohort, jax.random.key(0), batch_size=size
        ) for size in (7, 10**6)
    )
    np.testing.assert_array_equal(few, many)
    fedax.train(
        one, fedax.maml(one.model, 0.1, 0.1, batch_size=10**6), num_rounds=1, cohort_size=2
    )
    assert max(seen) == 7


@pytest.mark.quick
@pytest.mark.parametrize("n", [0, 1, 19, 20, 21, MOST])
def test_steps_of_an_epoch_do_not_overflow(n):
    for batch_size in (1, 20, MOST):
        steps = int(steps_per_epoch(jnp.int32(n), batch_size))
        assert steps == -(-n // batch_size)


@pytest.mark.slow
def test_epochs_without_end_do_not_wrap_around_to_none():
    """10**9 epochs of 7 steps are more than an int32 of steps; the other limit still holds."""
    done, also = (
        after(1, num_local_epochs=epochs, num_local_steps=9)[0] for epochs in (10**9, 100)
    )
    np.testing.assert_array_equal(done, also)
