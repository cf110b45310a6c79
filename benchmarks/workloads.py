"""The workloads: data, models and settings that every framework gets, made with NumPy alone.

    python workloads.py make NAME FILE.npz        (the Shakespeare one needs fedax)
    python workloads.py describe NAME FILE.npz    how much work the rounds are, as JSON

A file holds the examples of all clients in flat arrays, `offsets` (client i owns rows
offsets[i]:offsets[i + 1]), the cohort of every round, and the parameters to start from.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np

# Few, so that each is measured several times and the fastest of them tells what others disturbed.
NUM_COHORTS = 5
NUM_TEST = 4096


class Workload(NamedTuple):
    """What is trained, on what and how; a mean weighted by examples, server rate 1.

    Attributes:
      median_examples: sizes are log-normal around it, or all equal to it; of the roles of
        Shakespeare's plays it is the least size of those that are drawn.
      spread: the standard deviation of the logarithm; 0: all equal.
      rounds_a_turn: rounds that are timed together; 1, or a multiple of NUM_COHORTS so that every
        turn has the same cohorts.
      side_by_side: whether fedax takes the cores as devices, each of which trains a part of the
        cohort. Chosen by measurement, see docs/notebook/benchmarks.md.
      method: one of `PASSES`.
      dropout: whether a model that has dropout trains with it.
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
    method: str = "fedavg"
    dropout: bool = True


EMNIST = Workload("emnist_cnn", 200, 180, 0.5, 10, 20, 0.05, side_by_side=True)

WORKLOADS = {
    "logistic": Workload(
        "logistic", 500, 60, 0.7, 10, 10, 0.1, rounds_a_turn=50, side_by_side=True
    ),
    "emnist": EMNIST,
    # Sizes are the roles'.
    "shakespeare": Workload("lstm", 1219, 0, 0, 10, 4, 1.0, side_by_side=True),
    "cifar": Workload("cifar_cnn", 1000, 50, 0, 50, 10, 0.1, side_by_side=True),
    "resnet18": Workload("resnet18", 100, 100, 0, 10, 20, 0.003, side_by_side=True),
    "autoencoder": EMNIST._replace(model="autoencoder", learning_rate=20.0),
    "mlp": EMNIST._replace(model="mlp"),
    "gru": Workload("gru", 1219, 64, 0, 10, 32, 1.0, side_by_side=True),
    "tags": Workload("tags", 100, 200, 0.7, 10, 100, 100.0, side_by_side=True),
    "scaffold": EMNIST._replace(method="scaffold"),
    # Both gradients of a step take the same dropout, which PyTorch's threads could not repeat.
    "mime": EMNIST._replace(method="mime", dropout=False),
    "population": Workload("tiny", 342_477, 6, 0, 10, 3, 0.1, rounds_a_turn=200),
    "population-100": Workload("tiny", 100, 6, 0, 10, 3, 0.1, rounds_a_turn=200),
}

# Passes over a client's examples, forward and backward, in a round of each method.
PASSES = {"fedavg": 1, "scaffold": 1, "mime": 3}

Shapes: TypeAlias = dict[str, tuple[int, ...]]


def _dense(*sizes: int) -> Shapes:
    """Dense layers, numbered if there are several."""
    shapes: Shapes = {}
    for place, (rows, columns) in enumerate(itertools.pairwise(sizes)):
        name = f"dense{place if len(sizes) > 2 else ''}"
        shapes |= {f"{name}/kernel": (rows, columns), f"{name}/bias": (columns,)}
    return shapes


def _cnn(side: int, channels: int, classes: int) -> Shapes:
    pooled = (side - 4) // 2
    return {
        "conv0/kernel": (3, 3, channels, 32),
        "conv0/bias": (32,),
        "conv1/kernel": (3, 3, 32, 64),
        "conv1/bias": (64,),
        **_dense(pooled * pooled * 64, 128, classes),  # of rows, columns, channels
    }


def _recurrent(cell: str, gates: int, vocabulary: int = 90) -> Shapes:
    """Two layers of 256 units; an LSTM's gates are i, f, g, o, a GRU's r, z, n."""
    shapes: Shapes = {"embedding": (vocabulary, 8)}
    for place, features in enumerate((8, 256)):
        shapes |= {
            f"{cell}{place}/input_kernel": (features, gates * 256),
            f"{cell}{place}/recurrent_kernel": (256, gates * 256),
            f"{cell}{place}/bias": (gates * 256,),
        }
        if cell == "gru":  # applied after the recurrent product, with a bias of its own
            shapes[f"gru{place}/recurrent_bias"] = (gates * 256,)
    return shapes | _dense(256, vocabulary)


def _norm(name: str, channels: int) -> Shapes:
    return {f"{name}/scale": (channels,), f"{name}/offset": (channels,)}


def _resnet18(classes: int) -> Shapes:
    """Pre-activation blocks, the first of all without a norm of its own."""
    shapes: Shapes = {"stem/kernel": (7, 7, 3, 64), **_norm("stem/norm", 64)}
    before = 64
    for place, after in enumerate((64, 64, 128, 128, 256, 256, 512, 512)):
        name = f"blocks/{place}"
        if place:
            shapes |= _norm(f"{name}/norm_1", before)
        shapes[f"{name}/conv_1/kernel"] = (3, 3, before, after)
        shapes |= _norm(f"{name}/norm_2", after)
        shapes[f"{name}/conv_2/kernel"] = (3, 3, after, after)
        if before != after:
            shapes[f"{name}/shortcut/kernel"] = (1, 1, before, after)
            shapes |= _norm(f"{name}/shortcut_norm", after)
        before = after
    return {**shapes, **_norm("norm", 512), **_dense(512, classes)}


SHAPES: dict[str, Shapes] = {
    "logistic": _dense(784, 10),
    "tiny": _dense(20, 10),
    "mlp": _dense(784, 300, 100, 62),
    "autoencoder": _dense(784, 1000, 500, 250, 30, 250, 500, 1000, 784),
    "emnist_cnn": _cnn(28, 1, 62),
    "cifar_cnn": _cnn(32, 3, 10),
    "resnet18": _resnet18(100),
    "lstm": _recurrent("lstm", 4),
    "gru": _recurrent("gru", 3),
    "tags": _dense(10_000, 500),
}

# Where a kernel is used in one example, if not once: beginning of its name -> number of places.
PLACES: dict[str, Mapping[str, float]] = {
    "emnist_cnn": {"conv0": 26**2, "conv1": 24**2},
    "cifar_cnn": {"conv0": 30**2, "conv1": 28**2},
    # Images of 24 x 24 are 12 x 12 after the stem, 6 x 6 after its pooling, and halved by stages.
    "resnet18": {"stem": 12**2} | {
        f"blocks/{place}/": side**2 for place, side in enumerate((6, 6, 3, 3, 2, 2, 1, 1))
    },
    "lstm": {"lstm": 80, "dense": 80},
    "gru": {"gru": 80, "dense": 80},
    "tags": {"dense": 100 / 10_000},  # an example has 100 of the words
}


def _products(model: str) -> int:
    """Multiplications of one example's forward pass."""
    return round(sum(
        math.prod(shape) * next(
            (count for start, count in PLACES.get(model, {}).items() if name.startswith(start)), 1
        )
        for name, shape in SHAPES[model].items() if name.endswith("kernel")
    ))


def flops_an_example(model: str) -> int:
    """Forward and backward: three products of each kind, two operations a product."""
    return 3 * 2 * _products(model)


def num_parameters(model: str) -> int:
    return sum(math.prod(shape) for shape in SHAPES[model].values())


class Data(NamedTuple):
    """A workload with its data, as `load` reads it.

    Attributes:
      workload: the settings.
      arrays: name -> array of all examples: x [n, rows, columns, channels] or [n, 784] float32
        and y [n] int32, or tokens [n, 81] uint8, or words [n, 100] and tags [n, 3] int32.
      offsets: int64 [num_clients + 1].
      cohorts: int64 [NUM_COHORTS, cohort_size]; round t is the cohort t modulo NUM_COHORTS.
      params: name -> float32 array, as in `SHAPES`.
    """

    workload: Workload
    arrays: dict[str, np.ndarray]
    offsets: np.ndarray
    cohorts: np.ndarray
    params: dict[str, np.ndarray]

    @property
    def num_clients(self) -> int:
        return len(self.offsets) - 1

    def cohort(self, round_index: int) -> np.ndarray:
        return self.cohorts[round_index % len(self.cohorts)]

    def client(self, index: int) -> dict[str, np.ndarray]:
        rows = slice(int(self.offsets[index]), int(self.offsets[index + 1]))
        return {name: array[rows] for name, array in self.arrays.items()}

    def test(self) -> dict[str, np.ndarray]:
        """The first `NUM_TEST` examples, for the time of an evaluation."""
        return {name: array[:NUM_TEST] for name, array in self.arrays.items()}

    def test_offsets(self) -> np.ndarray:
        """Where the clients of `test` begin and end; the last one may be cut short."""
        return np.unique(np.minimum(self.offsets, NUM_TEST))

    def halves(self, most: int = NUM_TEST) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For each client of `test` with two examples or more: start, middle and end.

        In a personalised evaluation a client trains on its first half, but at most on so many
        examples, and is tested on the others.
        """
        start, end = self.test_offsets()[:-1], self.test_offsets()[1:]
        middle = start + np.minimum((end - start + 1) // 2, most)
        kept = end - start >= 2
        return start[kept], middle[kept], end[kept]

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
    arrays = {key: content[key] for key in ("x", "y", "tokens", "words", "tags") if key in content}
    return Data(WORKLOADS[name], arrays, offsets, cohorts, params)


def make(name: str, path: str) -> None:
    """Makes a workload's file; the same numbers every time."""
    workload = WORKLOADS[name]
    rng = np.random.default_rng(0)
    arrays, offsets = EXAMPLES[workload.model](rng, workload)
    eligible = np.flatnonzero(np.diff(offsets) >= workload.median_examples * (not workload.spread))
    cohorts = np.stack([
        rng.choice(eligible, workload.cohort_size, replace=False) for _ in range(NUM_COHORTS)
    ])
    params = {
        f"params/{key}": _initial(rng, key, shape) for key, shape in SHAPES[workload.model].items()
    }
    np.savez(path, offsets=offsets, cohorts=cohorts, **arrays, **params)  # pyright: ignore


Examples: TypeAlias = tuple[dict[str, np.ndarray], np.ndarray]


def offsets_of(rng: np.random.Generator, workload: Workload) -> np.ndarray:
    sizes = workload.median_examples * np.exp(
        workload.spread * rng.standard_normal(workload.num_clients)
    )
    return np.concatenate([[0], np.cumsum(np.maximum(sizes.astype(np.int64), 1))])


def images(classes: int, *shape: int) -> Callable[[np.random.Generator, Workload], Examples]:
    """A workload's clients of `noisy_pictures`."""

    def make(rng: np.random.Generator, workload: Workload) -> Examples:
        offsets = offsets_of(rng, workload)
        return noisy_pictures(rng, classes, shape, int(offsets[-1])), offsets

    return make


def noisy_pictures(
    rng: np.random.Generator, classes: int, shape: tuple[int, ...], num_examples: int
) -> dict[str, np.ndarray]:
    """A picture of its own for each class, under noise."""
    labels = rng.integers(0, classes, num_examples).astype(np.int32)
    pictures = 0.5 * rng.random((classes, *shape), np.float32)
    x = rng.standard_normal((num_examples, *shape), np.float32)
    x *= 0.3  # in place and part by part, as there may be gigabytes
    for first in range(0, num_examples, 10_000):
        x[first : first + 10_000] += pictures[labels[first : first + 10_000]]
    return {"x": x, "y": labels}


def roles(rng: np.random.Generator, workload: Workload) -> Examples:
    """The roles of Shakespeare's plays, which fedax has."""
    del rng, workload
    from fedax.data import shakespeare  # noqa: PLC0415  (only these workloads need it)

    clients, _ = shakespeare.load()
    return dict(clients.arrays), np.asarray(clients.offsets)


def bags(rng: np.random.Generator, workload: Workload) -> Examples:
    """100 different words an example, of a Zipf distribution, and 3 tags that go with them."""
    offsets = offsets_of(rng, workload)
    num_words, num_tags = SHAPES["tags"]["dense/kernel"]
    chances = 1 / np.arange(1, num_words + 1)
    chances /= chances.sum()
    words = np.array([
        rng.choice(num_words, 100, replace=False, p=chances) for _ in range(offsets[-1])
    ], np.int32)
    return {"words": words, "tags": np.sort(words, 1)[:, 50:53] % num_tags}, offsets


EXAMPLES = {
    "logistic": images(10, 784),
    "tiny": images(10, 20),
    "mlp": images(62, 784),
    "autoencoder": images(62, 784),
    "emnist_cnn": images(62, 28, 28, 1),
    "cifar_cnn": images(10, 32, 32, 3),
    "resnet18": images(100, 24, 24, 3),
    "lstm": roles,
    "gru": roles,
    "tags": bags,
}


def _initial(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Glorot uniform kernels and zero biases, of a forget gate one, as Keras has them."""
    if name.endswith(("bias", "offset")):
        bias = np.zeros(shape, np.float32)
        if name.startswith("lstm"):
            bias[shape[0] // 4 : shape[0] // 2] = 1
        return bias
    if name.endswith("scale"):
        return np.ones(shape, np.float32)
    if name == "embedding":
        return rng.uniform(-0.05, 0.05, shape).astype(np.float32)
    window = math.prod(shape[:-2])
    limit = math.sqrt(6 / (window * (shape[-2] + shape[-1])))
    return rng.uniform(-limit, limit, shape).astype(np.float32)


def describe(name: str, path: str) -> None:
    """Prints operations in a round's local steps, for each of the cohorts, and rounds_a_turn."""
    data = load(name, path)
    examples = np.diff(data.offsets)[data.cohorts].sum(1)
    flops = PASSES[data.workload.method] * flops_an_example(data.workload.model) * examples
    print(json.dumps({
        "flops": flops.tolist(), "rounds_a_turn": data.workload.rounds_a_turn,
        "num_test": len(next(iter(data.test().values()))),
    }))


if __name__ == "__main__":
    {"make": make, "describe": describe}[sys.argv[1]](*sys.argv[2:])
