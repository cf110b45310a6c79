"""Small learning problems whose answers are known."""

import jax
import jax.numpy as jnp
import numpy as np

from fedax import FederatedDataset, Model, Task, factory


@factory
def quadratic_model(dimension, dtype=jnp.float64, start=None):
    """Client loss (x - c)^T A (x - c) / 2, mean over the client's examples (A, c)."""

    def loss(params, batch, key):
        del key
        gap = params["x"][None, :] - batch["c"]
        values = 0.5 * jnp.einsum("bi,bij,bj->b", gap, batch["A"], gap)
        return values, jnp.ones_like(values)

    def init(key):
        if start is not None:
            return {"x": jnp.asarray(start, dtype)}
        return {"x": jax.random.normal(key, (dimension,), dtype)}

    def outputs(params, batch):
        return jnp.broadcast_to(params["x"][None, :], batch["c"].shape)

    def distance(outputs, batch):
        values = ((outputs - batch["c"]) ** 2).sum(1)
        return values, jnp.ones_like(values)

    return Model(init, loss, outputs, {"distance": distance})


def quadratic_clients(sizes, dimension=3, seed=0, dtype=np.float64):
    """Clients with `sizes[i]` random positive definite quadratics each."""
    rng = np.random.default_rng(seed)
    clients = []
    for size in sizes:
        roots = rng.normal(size=(size, dimension, dimension)) / np.sqrt(dimension)
        matrices = roots @ roots.transpose(0, 2, 1) + 0.1 * np.eye(dimension)
        clients.append(
            {"A": matrices.astype(dtype), "c": rng.normal(size=(size, dimension)).astype(dtype)}
        )
    return FederatedDataset.from_clients(clients)


def quadratic_task(sizes=(3, 7, 1, 12, 5, 8, 2, 9, 4, 6), dimension=3, seed=0, start=None):
    data = quadratic_clients(sizes, dimension, seed)
    return Task(quadratic_model(dimension, start=start), data, data, "quadratic")


def largest_difference(a, b):
    """The largest relative difference between two pytrees."""
    differences = jax.tree.map(
        lambda x, y: float(
            np.max(np.abs(np.asarray(x, np.float64) - np.asarray(y, np.float64)))
            / max(float(np.max(np.abs(np.asarray(y, np.float64)))), 1e-300)
        ),
        a, b,
    )
    return max(jax.tree.leaves(differences))


def identical(a, b):
    """Whether two pytrees are equal to the bit."""
    same = jax.tree.map(lambda x, y: np.asarray(x).tobytes() == np.asarray(y).tobytes(), a, b)
    return all(jax.tree.leaves(same)) and jax.tree.structure(a) == jax.tree.structure(b)
