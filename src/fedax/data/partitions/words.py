"""Partitions given as text, on the command line or in a task's settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fedax.data.federated_dataset import FederatedDataset
from fedax.data.partitions import plain
from fedax.data.partitions.dirichlet import dirichlet, dirichlet_by_class, dirichlet_lognormal
from fedax.data.partitions.pachinko import pachinko
from fedax.data.partitions.partition import Partition
from fedax.factories import parse_call
from fedax.validate import quoted, unknown

# Text -> what it does, one for each function.
PARTITIONS = {
    "iid": "at random",
    "dirichlet(0.1)": "each client's label distribution from Dir(alpha)",
    "dirichlet_by_class(0.5)": "each label's distribution over clients from Dir(alpha), as in PFNM",
    "dirichlet_lognormal(0.1, 0.3)": "Dir(alpha), and log-normal sizes of spread sigma",
    "shards(2)": "shards of the rows sorted by label",
    "pachinko(0.1, 10)": "coarse labels from Dir(0.1), and the fine ones of each from Dir(10)",
    "by_key('user')": "by the array of that name; needs no num_clients",
}


def parse_partition(
    text: str,
    dataset: FederatedDataset,
    num_clients: int | None = None,
    seed: int = 0,
    *,
    label: str = "y",
    coarse: str = "coarse",
) -> Partition:
    """Makes the partition that a text such as "dirichlet(0.1)" describes.

    It is tied to the arrays that it depends on: `Partition.of` rejects a data set with different
    ones.

    Args:
      text: one of the functions of this room with its settings, see `PARTITIONS`.
      dataset: the data set to partition; its own clients are ignored.
      num_clients: the number of clients; not needed for `by_key`.
      seed: of the draw, >= 0.
      label: the array of labels.
      coarse: the array of coarse labels, for `pachinko`.

    Raises:
      ValueError: if the text is not a partition, an array does not exist, or an argument is out of
          range.

    Example:
      >>> data = FederatedDataset({"y": np.arange(60) % 3}, np.array([0, 60]))
      >>> parse_partition("dirichlet(0.5)", data, num_clients=6)
      Partition(dirichlet(0.5), seed 0: 6 clients, 60 of 60 examples; 10 to 10 a client)
    """
    if not isinstance(text, str) or text.endswith(".npz"):
        raise ValueError(
            f"A task takes a partition as text, such as 'dirichlet(0.1)', not {quoted(text)}. A "
            "Partition divides data by partition.of(data), of which fedax.Task makes a task."
        )
    used: dict[str, Any] = {}

    def array(name: str, option: str = "label") -> np.ndarray:
        if name not in dataset.arrays:
            cure = f" Choose the array with the labels: {option}=." if option else ""
            raise ValueError(unknown("array", name, dataset.arrays) + cure)
        used[name] = np.asarray(dataset.arrays[name])
        return used[name]

    def clients() -> int:
        if num_clients is None:
            raise ValueError(f"{text!r} needs num_clients, the number of clients.")
        return num_clients

    def at_random(examples_per_client: int | None = None) -> Partition:
        return plain.iid(dataset.num_examples, clients(), seed=seed,
                         examples_per_client=examples_per_client)

    def of_clients(alpha: float, examples_per_client: int | None = None) -> Partition:
        return dirichlet(array(label), clients(), alpha, seed=seed,
                         examples_per_client=examples_per_client)

    def of_classes(alpha: float = 0.5, min_examples: int = 10) -> Partition:
        return dirichlet_by_class(array(label), clients(), alpha, seed=seed,
                                  min_examples=min_examples)

    def of_sizes(alpha: float, sigma: float) -> Partition:
        return dirichlet_lognormal(array(label), clients(), alpha, sigma, seed=seed)

    def of_shards(shards_per_client: int = 2) -> Partition:
        return plain.shards(array(label), clients(), shards_per_client, seed=seed)

    def of_groups(
        coarse_alpha: float = 0.1, alpha: float = 10.0, examples_per_client: int | None = None
    ) -> Partition:
        return pachinko(array(label), array(coarse, "coarse"), clients(), coarse_alpha, alpha,
                        seed=seed, examples_per_client=examples_per_client)

    def of_keys(key: str) -> Partition:
        return plain.by_key(array(key, ""), key)

    choices: dict[str, Callable[..., Partition]] = {
        "iid": at_random, "dirichlet": of_clients, "dirichlet_by_class": of_classes,
        "dirichlet_lognormal": of_sizes, "shards": of_shards, "pachinko": of_groups,
        "by_key": of_keys,
    }
    try:
        partition = parse_call(text, choices, "partition")
    except SyntaxError as error:
        raise ValueError(str(error)) from None
    return partition.with_digests(used)
