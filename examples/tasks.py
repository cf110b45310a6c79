"""Tasks of one's own: a function that returns a `fedax.Task`.

Try `fedax run examples/tasks.py:sensors fedavg --rounds 50`.
"""

import jax
import jax.numpy as jnp
import numpy as np

import fedax


def sensors() -> fedax.Task:
    """40 sensors that tell 3 states apart by 4 readings, each with a tilt and a bias of its own."""
    rng = np.random.default_rng(0)
    directions = rng.normal(size=(4, 3))
    clients = {}
    for number in range(40):
        x = rng.normal(size=(rng.integers(20, 60), 4)) + rng.normal(size=4)
        scores = x @ (directions + 0.3 * rng.normal(size=(4, 3))) + rng.gumbel(size=(len(x), 3))
        clients[f"sensor {number}"] = {
            "x": x.astype(np.float32), "y": scores.argmax(1).astype(np.int32)
        }
    train = {name: {k: v[5:] for k, v in table.items()} for name, table in clients.items()}
    test = {name: {k: v[:5] for k, v in table.items()} for name, table in clients.items()}

    def init(key: jax.Array) -> dict[str, jax.Array]:
        return {"w": 0.1 * jax.random.normal(key, (4, 3)), "b": jnp.zeros((1, 3))}

    return fedax.Task(
        fedax.classification(init, lambda params, x: x @ params["w"] + params["b"]),
        train=fedax.FederatedDataset.from_clients(train),
        test=fedax.FederatedDataset.from_clients(test),
        name="sensors",
    )
