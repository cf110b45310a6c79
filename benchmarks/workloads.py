"""The workloads: data, models and settings that every framework gets, made with NumPy alone.

    python workloads.py make NAME FILE.npz        (the Shakespeare one needs fedax)
    python workloads.py describe NAME FILE.npz    how much work the rounds are, as JSON

A file holds the examples of all clients in flat arrays, `offsets` (client i owns rows
offsets[i]:offsets[i + 1]), the cohort of every round, and the parameters to start from.
"""

from __future__ import annotations

import json
import math
import sys
from typing import NamedTuple

import numpy as np

# Few, so that each is measured several times and the fastest of them tells what others disturbed.
NUM_COHORTS = 5
NUM_TEST = 4096


class Workload(NamedTuple):
    """What is trained, on what and how; SGD on the clients, a mean weighted by examples.

    Attributes:
      median_examples: sizes are log-normal around it, or all equal to it.
      spread: the standard deviation of the logarithm; 0: all equal.
      rounds_a_turn: rounds that are timed together; 1, or a multiple of NUM_COHORTS so that every
        turn has the same cohorts.
      side_by_side: whether fedax takes the cores as devices, each of which trains a part of the
        cohort. Chosen by measurement, see docs/notebook/benchmarks.md.
    """

    model: str
    num_clients: int
    median_examples: int
    spread: float
    cohort_size: int
    batch_size: int
    learning_rate: float
    rounds_a_turn: int = 1
    side_by_side: bool = False


WORKLOADS = {
    "logistic": Workload(
        "logistic", 500, 60, 0.7, 10, 10, 0.1, rounds_a_turn=50, side_by_side=True
    ),
    "emnist": Workload("emnist_cnn", 200, 180, 0.5, 10, 20, 0.05, side_by_side=True),
    # Sizes are the roles'.
    "shakespeare": Workload("lstm", 1219, 0, 0, 10, 4, 1.0, side_by_side=True),
    "cifar": Workload("cifar_cnn", 1000, 50, 0, 50, 10, 0.1, side_by_side=True),
    "population": Workload("tiny", 342_477, 6, 0, 10, 3, 0.1, rounds_a_turn=200),
    "population-100": Workload("tiny", 100, 6, 0, 10, 3, 0.1, rounds_a_turn=200),
}


def _cnn_shapes(side: int, channels: int, classes: int) -> dict[str, tuple[int, ...]]:
    pooled = (side - 4) // 2
    return {
        "conv0/kernel": (3, 3, channels, 32),
        "conv0/bias": (32,),
        "conv1/kernel": (3, 3, 32, 64),
        "conv1/bias": (64,),
        "dense0/kernel": (pooled * pooled * 64, 128),  # of rows, columns, channels
        "dense0/bias": (128,),
        "dense1/kernel": (128, classes),
        "dense1/bias": (classes,),
    }


def _cnn_products(side: int, channels: int, classes: int) -> int:
    shapes = _cnn_shapes(side, channels, classes)
    places = {"conv0": (side - 2) ** 2, "conv1": (side - 4) ** 2}
    return sum(
        math.prod(shape) * places.get(name.split("/")[0], 1)
        for name, shape in shapes.items()
        if name.endswith("kernel")
    )


_LSTM_SHAPES = {
    "embedding": (90, 8),
    "lstm0/input_kernel": (8, 1024),
    "lstm0/recurrent_kernel": (256, 1024),
    "lstm0/bias": (1024,),  # gates i, f, g, o
    "lstm1/input_kernel": (256, 1024),
    "lstm1/recurrent_kernel": (256, 1024),
    "lstm1/bias": (1024,),
    "dense/kernel": (256, 90),
    "dense/bias": (90,),
}

SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "logistic": {"dense/kernel": (784, 10), "dense/bias": (10,)},
    "tiny": {"dense/kernel": (20, 10), "dense/bias": (10,)},
    "emnist_cnn": _cnn_shapes(28, 1, 62),
    "cifar_cnn": _cnn_shapes(32, 3, 10),
    "lstm": _LSTM_SHAPES,
}

# Multiplications of one example's forward pass.
PRODUCTS = {
    "logistic": 784 * 10,
    "tiny": 20 * 10,
    "emnist_cnn": _cnn_products(28, 1, 62),
    "cifar_cnn": _cnn_products(32, 3, 10),
    "lstm": 80 * sum(math.prod(s) for n, s in _LSTM_SHAPES.items() if n.endswith("kernel")),
}


def flops_an_example(model: str) -> int:
    """Forward and backward: three products of each kind, two operations a product."""
    return 3 * 2 * PRODUCTS[model]


def num_parameters(model: str) -> int:
    return sum(math.prod(shape) for shape in SHAPES[model].values())


class Data(NamedTuple):
    """A workload with its data, as `load` reads it.

    Attributes:
      workload: the settings.
      arrays: name -> array of all examples: x [n, rows, columns, channels] or [n, 784] float32
        and y [n] int32, or tokens [n, 81] uint8.
      offsets: int64 [num_clients + 1].
      cohorts: int64 [NUM_COHORTS, cohort_size]; round t is the cohort t modulo NUM_COHORTS.
      params: name -> float32 array, as in `SHAPES`.
    """

    workload: Workload
    arrays: dict[str, np.ndarray]
    offsets: np.ndarray
    cohorts: np.ndarray
    params: dict[str, np.ndarray]

    def cohort(self, round_index: int) -> np.ndarray:
        return self.cohorts[round_index % len(self.cohorts)]

    def client(self, index: int) -> dict[str, np.ndarray]:
        rows = slice(int(self.offsets[index]), int(self.offsets[index + 1]))
        return {name: array[rows] for name, array in self.arrays.items()}

    def test(self) -> dict[str, np.ndarray]:
        """The first `NUM_TEST` examples, for the time of an evaluation."""
        return {name: array[:NUM_TEST] for name, array in self.arrays.items()}

    def check(self, num_examples: int = 256) -> dict[str, np.ndarray]:
        """The examples whose loss every framework reports, without dropout."""
        rows = np.linspace(0, self.offsets[-1] - 1, num_examples).astype(np.int64)
        return {name: array[rows] for name, array in self.arrays.items()}


def load(name: str, path: str) -> Data:
    """Reads a workload's file."""
    with np.load(path) as file:
        content = {key: file[key] for key in file.files}
    params = {key[7:]: array for key, array in content.items() if key.startswith("params/")}
    offsets, cohorts = content["offsets"], content["cohorts"]
    arrays = {key: content[key] for key in ("x", "y", "tokens") if key in content}
    return Data(WORKLOADS[name], arrays, offsets, cohorts, params)


def make(name: str, path: str) -> None:
    """Makes a workload's file; the same numbers every time."""
    workload = WORKLOADS[name]
    rng = np.random.default_rng(0)
    if workload.model == "lstm":
        from fedax.data import shakespeare  # noqa: PLC0415  (only this workload needs it)

        clients, _ = shakespeare.load()
        arrays, offsets = dict(clients.arrays), np.asarray(clients.offsets)
    else:
        sizes = workload.median_examples * np.exp(
            workload.spread * rng.standard_normal(workload.num_clients)
        )
        offsets = np.concatenate([[0], np.cumsum(np.maximum(sizes.astype(np.int64), 1))])
        arrays = images(rng, workload.model, int(offsets[-1]))
    cohorts = np.stack([
        rng.choice(workload.num_clients, workload.cohort_size, replace=False)
        for _ in range(NUM_COHORTS)
    ])
    params = {
        f"params/{key}": _initial(rng, key, shape) for key, shape in SHAPES[workload.model].items()
    }
    np.savez(path, offsets=offsets, cohorts=cohorts, **arrays, **params)  # pyright: ignore


def images(rng: np.random.Generator, model: str, num_examples: int) -> dict[str, np.ndarray]:
    """A picture of its own for each class, under noise."""
    classes = {"emnist_cnn": 62}.get(model, 10)
    shape = {
        "logistic": (784,), "tiny": (20,), "emnist_cnn": (28, 28, 1), "cifar_cnn": (32, 32, 3)
    }[model]
    labels = rng.integers(0, classes, num_examples).astype(np.int32)
    pictures = 0.5 * rng.random((classes, *shape), np.float32)
    x = rng.standard_normal((num_examples, *shape), np.float32)
    x *= 0.3  # in place and part by part, as there may be gigabytes
    for first in range(0, num_examples, 10_000):
        x[first : first + 10_000] += pictures[labels[first : first + 10_000]]
    return {"x": x, "y": labels}


def _initial(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Glorot uniform kernels and zero biases, of a forget gate one, as Keras has them."""
    if name.endswith("bias"):
        bias = np.zeros(shape, np.float32)
        if name.startswith("lstm"):
            bias[shape[0] // 4 : shape[0] // 2] = 1
        return bias
    if name == "embedding":
        return rng.uniform(-0.05, 0.05, shape).astype(np.float32)
    window = math.prod(shape[:-2])
    limit = math.sqrt(6 / (window * (shape[-2] + shape[-1])))
    return rng.uniform(-limit, limit, shape).astype(np.float32)


def describe(name: str, path: str) -> None:
    """Prints operations in a round's local steps, for each of the cohorts, and rounds_a_turn."""
    data = load(name, path)
    examples = np.diff(data.offsets)[data.cohorts].sum(1)
    flops = flops_an_example(data.workload.model) * examples
    print(json.dumps({
        "flops": flops.tolist(), "rounds_a_turn": data.workload.rounds_a_turn,
        "num_test": len(next(iter(data.test().values()))),
    }))


if __name__ == "__main__":
    {"make": make, "describe": describe}[sys.argv[1]](*sys.argv[2:])
