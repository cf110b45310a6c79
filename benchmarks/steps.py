"""The time of a local step of the papers' models: python benchmarks/steps.py [NAME ...].

A step as fedavg runs it: in the loop of one client's local training, with the paper's batch size,
on made-up examples. Prints milliseconds a step and client, of the clock and of the processor (all
cores together, which other programs disturb less): each the least of several trainings, less what a
training of one step takes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedax
from fedax import models

NUM_WORDS, NUM_TAGS = 10_000, 500
REPETITIONS = 9


def images(random: np.random.Generator, n: int, *shape: int, classes: int) -> dict[str, Any]:
    return {
        "x": random.uniform(size=(n, *shape)).astype(np.float32),
        "y": random.integers(0, classes, n).astype(np.int32),
    }


def tokens(random: np.random.Generator, n: int, length: int, ids: int) -> dict[str, Any]:
    return {"tokens": random.integers(1, ids, (n, length + 1)).astype(np.int32)}


def bags(random: np.random.Generator, n: int, exponent: float) -> dict[str, Any]:
    """100 different words an example, of a Zipf distribution, and 3 tags."""
    chances = np.arange(1, NUM_WORDS + 1) ** -exponent
    chances /= chances.sum()
    draw = [random.choice(NUM_WORDS, 100, replace=False, p=chances) for _ in range(n)]
    return {
        "words": np.array(draw, np.int32),
        "tags": np.array([random.choice(NUM_TAGS, 3, False) for _ in range(n)], np.int32),
    }


def densely(random: np.random.Generator, n: int, exponent: float) -> dict[str, Any]:
    bag = bags(random, n, exponent)
    x = np.zeros((n, NUM_WORDS), np.float32)
    np.put_along_axis(x, bag["words"], np.float32(1 / 100), 1)
    return {"x": x, "tags": bag["tags"]}


def dense_tags() -> fedax.Model:
    """The tag logistic regression with dense inputs."""
    sparse = models.tag_logistic_regression()

    def outputs(params: Any, batch: Any) -> Any:
        return batch["x"] @ params["w"] + params["b"][None]

    return sparse._replace(
        loss=lambda params, batch, key: (  # noqa: ARG005
            sparse.metrics["loss"](outputs(params, batch), batch)
        ),
        outputs=outputs, check=None, sparse=None,
    )


def scattered_tags() -> fedax.Model:
    """That with the sparse product, whose gradient is made dense, as for other methods."""
    return models.tag_logistic_regression()._replace(sparse=None)


def cifar_cnn() -> fedax.Model:
    return models.pooled_cnn(
        (32, 32, 3), 10, num_filters=(64, 64), padding="VALID", hidden_sizes=(384, 192),
        initialization="pytorch",
    )


def femnist_cnn() -> fedax.Model:
    return models.pooled_cnn(
        (32, 32, 1), 64, kernel_size=3, padding="VALID", initialization="pytorch"
    )


# Name -> model, batch size, made-up examples.
STEPS: dict[str, tuple[Callable[[], fedax.Model], int, Callable[..., dict[str, Any]]]] = {
    "image_cnn": (models.image_cnn, 20, lambda r, n: images(r, n, 28, 28, 1, classes=62)),
    "image_cnn-pfl": (
        lambda: models.image_cnn((32, 32, 3), 10), 10,
        lambda r, n: images(r, n, 32, 32, 3, classes=10),
    ),
    "pooled_cnn": (models.pooled_cnn, 20, lambda r, n: images(r, n, 28, 28, 1, classes=62)),
    "pooled_cnn-decay2021": (femnist_cnn, 32, lambda r, n: images(r, n, 32, 32, 1, classes=62)),
    "pooled_cnn-elastic2023": (cifar_cnn, 50, lambda r, n: images(r, n, 32, 32, 3, classes=10)),
    "logistic_regression": (
        models.logistic_regression, 20, lambda r, n: images(r, n, 784, classes=62)
    ),
    "mlp_classifier": (models.mlp_classifier, 20, lambda r, n: images(r, n, 784, classes=62)),
    "autoencoder": (models.autoencoder, 20, lambda r, n: images(r, n, 784, classes=62)),
    "resnet18": (models.resnet18, 20, lambda r, n: images(r, n, 24, 24, 3, classes=100)),
    "resnet18-stride-1": (
        lambda: models.resnet18(stage_strides=(1, 1, 1, 1)), 20,
        lambda r, n: images(r, n, 24, 24, 3, classes=100),
    ),
    "resnet20": (
        lambda: models.resnet20((24, 24, 3)), 20, lambda r, n: images(r, n, 24, 24, 3, classes=100)
    ),
    "character_lstm": (models.character_lstm, 4, lambda r, n: tokens(r, n, 80, 90)),
    "character_gru": (
        lambda: models.character_lstm(vocabulary_size=77, cell="gru"), 32,
        lambda r, n: tokens(r, n, 80, 77),
    ),
    "word_lstm": (models.word_lstm, 16, lambda r, n: tokens(r, n, 20, 10_004)),
    "tags": (models.tag_logistic_regression, 100, lambda r, n: bags(r, n, 1.0)),
    "tags-uniform": (models.tag_logistic_regression, 100, lambda r, n: bags(r, n, 0.0)),
    "tags-gradient": (scattered_tags, 100, lambda r, n: bags(r, n, 1.0)),
    "tags-dense": (dense_tags, 100, lambda r, n: densely(r, n, 1.0)),
    "tags-dense-uniform": (dense_tags, 100, lambda r, n: densely(r, n, 0.0)),
}


def measure(name: str, clients: int, seconds: float) -> None:
    make, batch_size, examples = STEPS[name]
    model = make()
    num_examples = 10 * batch_size
    arrays = examples(np.random.default_rng(0), num_examples)
    data = fedax.ClientData(
        {key: jnp.asarray(array) for key, array in arrays.items()},
        jnp.int32(0), jnp.int32(num_examples), num_examples,
    )
    params = jax.jit(model.init)(jax.random.key(0))

    @jax.jit
    def train(params: Any, num_steps: Any, keys: Any) -> Any:
        algorithm = fedax.fedavg(model, 0.01, batch_size=batch_size, num_local_steps=num_steps)
        exchange = algorithm.exchanges[0]
        message = exchange.broadcast(algorithm.init(params))

        def client(key: Any) -> Any:
            return exchange.client(message, (), data, key).upload

        return client(keys[0]) if clients == 1 else jax.vmap(client)(keys)

    keys = jax.random.split(jax.random.key(1), clients)

    def timed(num_steps: int) -> np.ndarray:
        clocks = (time.perf_counter, time.process_time)
        start = [clock() for clock in clocks]
        jax.block_until_ready(train(params, jnp.int32(num_steps), keys))
        return np.subtract([clock() for clock in clocks], start)

    timed(1)
    # What is done once a training does not count.
    once = np.min([timed(1) for _ in range(REPETITIONS)], axis=0)
    num_steps = max(2, round(seconds / REPETITIONS / max(timed(3)[1] / 3, 1e-5)))
    times = [(timed(num_steps + 1) - once) / num_steps for _ in range(REPETITIONS)]
    clock, processor = 1000 * np.min(times, axis=0) / clients
    print(f"{name:20} {batch_size:5} {clock:9.3f} {processor:9.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("names", nargs="*", help=", ".join(STEPS))
    parser.add_argument("--clients", type=int, default=1, help="under vmap")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each model")
    options = parser.parse_args()
    print(f"{'model':20} {'batch':>5} {'clock':>9} {'processor':>9}")
    for name in options.names or STEPS:
        measure(name, options.clients, options.seconds)


if __name__ == "__main__":
    main()
