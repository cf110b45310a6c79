"""The bare loop: the same local steps on the same data, jitted, with nothing federated around.

One compiled program a round: for each client a loop over its steps, in the stored order, from the
initial parameters. Nothing is shuffled, weighted, averaged, checked or reported.
"""

import sys
import time

import jax
import jax.numpy as jnp

import protocol
import workloads
from jax_models import model_of


def sgd(gradient, start, num_steps):
    del start, num_steps
    return gradient


def scaffold(gradient, start, num_steps):
    """As many sums as SCAFFOLD; the parameters at the start stand for the control variates."""
    del num_steps
    return lambda params, k: jax.tree.map(
        lambda g, own, c: g - own + c, gradient(params, k), start, start
    )


def mime(gradient, start, num_steps):
    """Three gradients of a minibatch; the parameters at the start stand for the momentum."""

    def add(k, total):
        grads = gradient(start, k)
        return jax.tree.map(lambda t, g: t + g / num_steps.astype(g.dtype), total, grads)

    control = jax.lax.fori_loop(0, num_steps, add, jax.tree.map(jnp.zeros_like, start))
    return lambda params, k: jax.tree.map(
        lambda g, a, c, m: 0.1 * (g - a + c) + 0.9 * m,
        gradient(params, k), gradient(start, k), control, start,
    )


# (gradient, parameters at the start, steps) -> (params, k) -> the direction of step k.
METHODS = {"fedavg": sgd, "scaffold": scaffold, "mime": mime}


def bare_loop(model, arrays, batch_size, learning_rate, method="fedavg"):
    """The function (params, starts, sizes, key) -> the last client's params, after one epoch each.

    A client is examples start : start + size of the arrays.
    """

    @jax.jit
    def train(arrays, params, starts, sizes, key):
        def one_client(params, client):
            start, size = client
            num_steps = (size + batch_size - 1) // batch_size

            def gradient(params, k):
                places = k * batch_size + jnp.arange(batch_size, dtype=jnp.int32)
                rows = start + jnp.minimum(places, size - 1)
                batch = {name: array[rows] for name, array in arrays.items()}

                def objective(params):
                    losses, weights = model.loss(params, batch, jax.random.fold_in(key, k))
                    weights = jnp.where(places < size, weights, 0)
                    return (losses * weights).sum() / weights.sum()

                return jax.grad(objective)(params)

            direction = METHODS[method](gradient, params, num_steps)

            def step(k, params):
                return jax.tree.map(
                    lambda p, d: p - learning_rate * d, params, direction(params, k)
                )

            return jax.lax.fori_loop(0, num_steps, step, params), None

        return jax.lax.scan(one_client, params, (starts, sizes))[0]

    return lambda params, starts, sizes, key: train(
        arrays, params, jnp.asarray(starts, jnp.int32), jnp.asarray(sizes, jnp.int32), key
    )


def matrix_rate(size=2048, repeats=10):
    """Floating point operations a second in float32 matrix products, the fastest of a few."""
    a = jax.random.normal(jax.random.key(0), (size, size), jnp.float32)
    product = jax.jit(jnp.matmul)
    product(a, a).block_until_ready()
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        product(a, a).block_until_ready()
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def main(name, path, check):
    data = workloads.load(name, path)
    workload = data.workload
    model = model_of(data, dropout=not check)
    params, key = model.init(jax.random.key(0)), jax.random.key(1)
    arrays = {name: jnp.asarray(array) for name, array in data.arrays.items()}
    train = bare_loop(
        model, arrays, workload.batch_size, workload.learning_rate, workload.method
    )
    rounds = protocol.Rounds(rate=matrix_rate, versions={"jax": jax.__version__})
    round_index = 0
    while rounds.begin():
        cohort = data.cohort(round_index)
        sizes = data.offsets[cohort + 1] - data.offsets[cohort]
        # Rounds depend on nothing, so without waiting for each they would run side by side.
        jax.block_until_ready(train(params, data.offsets[cohort], sizes, key))
        rounds.end(int((-(-sizes // workload.batch_size)).sum()))
        round_index += 1


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], check=sys.argv[3:] == ["check"])
