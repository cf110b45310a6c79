"""Chooses the clients and examples that a task trains on."""

from __future__ import annotations

import dataclasses

import numpy as np

from fedax.data.federated_dataset import FederatedDataset
from fedax.data.folder import Splits
from fedax.data.partitions import parse_partition
from fedax.data.rows import take_rows
from fedax.validate import check_count, check_number, check_seed


def partitioned(splits: Splits, partition: str, num_clients: int, seed: int) -> Splits:
    """Partitions centralised training examples among clients; the test set stays whole.

    Args:
      splits: of one client each.
      partition: text, see `fedax.data.partitions.PARTITIONS`.
      num_clients: how many to make.
      seed: of the draw.

    Raises:
      ValueError: if the partition is unknown.
    """
    try:
        made = parse_partition(partition, splits.train, num_clients, seed)
    except ValueError as error:
        raise ValueError(f"partition={partition}: {error}") from error
    return Splits(made.of(splits.train), splits.test)


def sampled(
    splits: Splits, num_clients: int | None, max_examples: int | None, seed: int
) -> Splits:
    """Draws clients at random and limits the training examples of each.

    If both parts have the same clients, the test part has the drawn ones; otherwise all test
    examples are kept.

    Args:
      splits: a population by its nature.
      num_clients: the number of clients, drawn without replacement; their order stays. None: all.
      max_examples: keep at most this many of each client's first training examples; None: all.
      seed: of the draw.

    Raises:
      ValueError: if a number is out of range, or there are fewer clients.

    Example:
      >>> data = FederatedDataset.from_clients({
      ...     name: {"x": np.arange(n)} for name, n in (("ada", 3), ("bob", 2), ("eve", 4))})
      >>> train, test = sampled(Splits(data, data), 2, 3, seed=0)
      >>> train.names.tolist(), train.client_sizes.tolist(), test.client_sizes.tolist()
      (['bob', 'eve'], [2, 3], [2, 4])
    """
    train, test = splits
    for name, value in (("num_clients", num_clients), ("max_examples", max_examples)):
        if value is not None:
            check_count(name, value)
    check_seed(seed)
    if num_clients is not None and num_clients > train.num_clients:
        raise ValueError(
            f"num_clients is {num_clients:,}, but there are {train.num_clients:,} clients; choose "
            "at most that many, or none for all."
        )
    chosen = np.arange(train.num_clients)
    if num_clients is not None:
        rng = np.random.Generator(np.random.PCG64(seed))
        chosen = np.sort(rng.choice(train.num_clients, num_clients, replace=False))
        if np.array_equal(train.client_names, test.client_names):
            test = _some(test, chosen, None)
    return Splits(_some(train, chosen, max_examples), test)


def split_again(splits: Splits, fraction: float, seed: int) -> Splits:
    """Joins each client's training and test examples and draws a share of them for the test.

    Args:
      splits: with the same clients in both parts.
      fraction: for the test, in (0, 1); see `FederatedDataset.split`.
      seed: of the draw.

    Raises:
      ValueError: if the fraction is out of range.

    Example:
      >>> train = FederatedDataset.from_clients({"ada": {"x": np.arange(3)}})
      >>> test = FederatedDataset.from_clients({"ada": {"x": np.arange(3, 5)}})
      >>> train, test = split_again(Splits(train, test), 0.2, seed=0)
      >>> train.client_sizes.tolist(), test.client_sizes.tolist()
      ([4], [1])
    """
    check_number("held_out", fraction, above=0, below=1)
    train, test = splits
    sizes = np.stack([train.client_sizes, test.client_sizes], 1).ravel()
    begins = np.stack([train.offsets[:-1], test.offsets[:-1] + train.num_examples], 1).ravel()
    ends = np.cumsum(sizes)
    rows = np.arange(ends[-1]) + np.repeat(begins - ends + sizes, sizes)
    arrays = {
        name: np.concatenate([array[:], test.arrays[name][:]])[rows]
        for name, array in train.arrays.items()
    }
    joined = dataclasses.replace(train, arrays=arrays, offsets=np.append(0, ends[1::2]))
    return Splits(*joined.split(fraction, seed))


def _some(
    dataset: FederatedDataset, chosen: np.ndarray, max_examples: int | None
) -> FederatedDataset:
    """The first examples of these clients, read in place where they are in a file."""
    sizes = dataset.client_sizes[chosen]
    if max_examples is not None:
        sizes = np.minimum(sizes, max_examples)
    if len(chosen) == dataset.num_clients and sizes.sum() == dataset.num_examples:
        return dataset
    offsets = np.append(0, np.cumsum(sizes))
    rows = np.arange(offsets[-1]) + np.repeat(dataset.offsets[chosen] - offsets[:-1], sizes)
    arrays = {name: take_rows(array, rows) for name, array in dataset.arrays.items()}
    return dataclasses.replace(
        dataset, arrays=arrays, offsets=offsets, names=dataset.client_names[chosen]
    )
