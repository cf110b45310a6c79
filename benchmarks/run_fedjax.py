"""fedjax's side of the benchmark: its federated averaging or Mime.

Where JAX has several devices, clients train on them side by side, with fedjax's own backend.
"""

import functools
import sys
from importlib.metadata import version

import fedjax
import jax
import jax.numpy as jnp

import protocol
import workloads
from fedjax_models import model_of


class CountedBatches(fedjax.ClientDataset):
    """A client's data set that counts the minibatches taken from all of them."""

    num_batches = 0

    def shuffle_repeat_batch(self, hparams=None, **kwargs):
        view = super().shuffle_repeat_batch(hparams, **kwargs)
        CountedBatches.num_batches += view._num_steps
        return view


def fedavg(losses, workload, batches):
    """The clients' minibatches are never padded, so each example counts by its weight alone."""

    def mean(params, batch, key):
        values, weights = losses(params, batch, key, True)
        return (values * weights).sum() / jnp.maximum(weights.sum(), 1)

    return fedjax.algorithms.fed_avg.federated_averaging(
        jax.grad(mean), fedjax.optimizers.sgd(workload.learning_rate), fedjax.optimizers.sgd(1.0),
        batches,
    )


def mime(losses, workload, batches):
    """Its momentum is m <- beta m + g, so the same steps have a rate 1 - beta times as large."""
    return fedjax.algorithms.mime.mime(
        lambda params, batch, key: losses(params, batch, key, True)[0],
        fedjax.optimizers.sgd((1 - MOMENTUM) * workload.learning_rate, MOMENTUM), batches,
        fedjax.PaddedBatchHParams(workload.batch_size), 1.0,
    )


MOMENTUM = 0.9
METHODS = {"fedavg": fedavg, "mime": mime}


def main(name, path, check):
    data = workloads.load(name, path)
    workload = data.workload
    if jax.local_device_count() > 1:
        fedjax.set_for_each_client_backend("pmap")
    losses, params = model_of(data, dropout=not check)
    params = jax.tree_util.tree_map(jnp.asarray, params)
    algorithm = METHODS[workload.method](
        losses, workload,
        fedjax.ShuffleRepeatBatchHParams(workload.batch_size, num_epochs=1, skip_shuffle=check),
    )
    state = algorithm.init(params)

    @jax.jit
    def evaluate(params, batch):
        values, weights = losses(params, batch, jax.random.PRNGKey(0), False)
        return (values * weights).sum() / weights.sum()

    rounds = protocol.Rounds(
        lambda: evaluate(state.params, data.check()),
        versions={"fedjax": version("fedjax"), "jax": jax.__version__},
    )
    key = jax.random.PRNGKey(0)
    round_index = 0
    while rounds.begin():
        key, *keys = jax.random.split(key, workload.cohort_size + 1)
        clients = [
            (client, CountedBatches(data.client(client)), rng)
            for client, rng in zip(data.cohort(round_index), keys, strict=True)
        ]
        state, _ = algorithm.apply(state, clients)
        rounds.end(
            CountedBatches.num_batches, functools.partial(jax.block_until_ready, state.params)
        )
        CountedBatches.num_batches = 0
        round_index += 1


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], check=sys.argv[3:] == ["check"])
