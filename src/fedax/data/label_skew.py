"""How the labels of clients differ from those of the population."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedax.data.federated_dataset import FederatedDataset
from fedax.data.partitions.checks import classes_of
from fedax.validate import unknown


class LabelSkew(NamedTuple):
    """The number of examples of each label that each client has (nonzero counts only).

    Attributes:
      labels: int [num_labels], the labels that occur, ascending.
      sizes: int64 [num_clients], the number of examples of each client.
      clients, codes, counts: of each pair of a client and a label that occurs there, the client's
        index, the label's place in `labels` and the number of examples; by clients, ascending.
    """

    labels: np.ndarray
    sizes: np.ndarray
    clients: np.ndarray
    codes: np.ndarray
    counts: np.ndarray

    @property
    def population(self) -> np.ndarray:
        """Examples of each label, int64 [num_labels]."""
        return _sums(self.codes, self.counts, len(self.labels))

    @property
    def num_clients_with(self) -> np.ndarray:
        """The number of clients that have each label, int64 [num_labels]."""
        return np.bincount(self.codes, minlength=len(self.labels))

    @property
    def num_labels(self) -> np.ndarray:
        """The number of labels that each client has, int64 [num_clients]."""
        return np.bincount(self.clients, minlength=len(self.sizes))

    @property
    def top_share(self) -> np.ndarray:
        """The share of each client's most frequent label, [num_clients]."""
        firsts = np.flatnonzero(np.diff(self.clients, prepend=-1))
        return np.maximum.reduceat(self.counts, firsts) / self.sizes

    @property
    def distance(self) -> np.ndarray:
        """Total variation distance of each client's labels from the population's, [num_clients].

        Half the sum of |p_i(y) - p(y)| over labels y: 0 where they agree, 1 where no label of the
        client's occurs elsewhere, as far as the population's shares allow.
        """
        shares = self.population / self.population.sum()
        own, common = self.counts / self.sizes[self.clients], shares[self.codes]
        # Labels that a client has not contribute what the others leave of the population's 1.
        excess = np.abs(own - common) - common
        return (1 + np.bincount(self.clients, excess, len(self.sizes))) / 2

    def shares_of(self, clients: np.ndarray) -> np.ndarray:
        """The label distributions of some clients, [len(clients), num_labels]."""
        shares = np.zeros((len(clients), len(self.labels)))
        ends = np.append(0, np.cumsum(self.num_labels))
        for row, client in enumerate(clients):
            own = slice(ends[client], ends[client + 1])
            shares[row, self.codes[own]] = self.counts[own] / self.sizes[client]
        return shares


def label_skew(dataset: FederatedDataset, label: str | None = None) -> LabelSkew | None:
    """Counts the labels of each client.

    Args:
      dataset: the clients.
      label: the name of the array of labels; None: "y", if it holds labels.

    Returns:
      The counts; None if `label` is None and "y" does not hold labels.

    Raises:
      ValueError: if the named array does not exist or does not hold labels.

    Example:
      >>> skew = label_skew(FederatedDataset({"y": np.array([0, 0, 0, 1])}, np.array([0, 2, 4])))
      >>> skew.distance.tolist(), skew.top_share.tolist()
      ([0.25, 0.25], [1.0, 0.5])
    """
    if label is None:
        found = dataset.arrays.get("y")
        if found is None or found.ndim != 1 or found.dtype.kind not in "iu":
            return None
    elif label not in dataset.arrays:
        raise ValueError(unknown("array", label, dataset.arrays))
    name = label or "y"
    classes = classes_of(np.asarray(dataset.arrays[name]), f"The array {name!r}")
    num_labels = len(classes.labels)
    owner = np.repeat(np.arange(dataset.num_clients), dataset.client_sizes)
    pairs, counts = np.unique(owner * num_labels + classes.codes, return_counts=True)
    clients, codes = np.divmod(pairs, num_labels)
    return LabelSkew(classes.labels, dataset.client_sizes, clients, codes, counts)


def _sums(places: np.ndarray, counts: np.ndarray, size: int) -> np.ndarray:
    sums = np.zeros(size, np.int64)
    np.add.at(sums, places, counts)
    return sums
