"""Partitions whose label distributions are drawn from Dirichlet distributions.

| symbol | name | meaning |
|---|---|---|
| N, n | `num_examples`, `num_clients` | of the data set, of the partition |
| alpha | `alpha` | concentration: towards 0 a client has one label, towards infinity all alike |
| sigma | `sigma` | spread of the logarithms of clients' sizes |
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedax.data.partitions.checks import (
    call_text,
    check_alpha,
    check_population,
    classes_of,
    even_sizes,
)
from fedax.data.partitions.label_draws import (
    LabelDistributions,
    Rng,
    draw_labels,
    generator,
    log_gammas,
    take_labelled,
)
from fedax.data.partitions.ordering import stable_order
from fedax.data.partitions.partition import Partition, from_owners
from fedax.validate import check_count, check_number

# `dirichlet_by_class` draws again until no client is too small; after so many draws, or so many
# Gamma variables in all, which take a few seconds, it says that this will not happen.
_MOST_ATTEMPTS = 5_000
_MOST_GAMMAS = 10**8
# Beyond it e^sigma has no meaning, and in the end no number.
_LARGEST_SIGMA = 1e6


def dirichlet(
    labels: Any,
    num_clients: int,
    alpha: float,
    *,
    seed: int = 0,
    examples_per_client: int | None = None,
) -> Partition:
    """Each client draws a label distribution from Dir(alpha) and then its examples from it.

    p_i ~ Dir(alpha, ..., alpha) over the labels. Client after client, each of its examples draws
    a label from p_i and then an example with that label, without replacement. A label whose
    examples are used up is removed and all p_i are normalised again. The CIFAR-10 of Reddi et al.
    2021 is alpha = 0.1 with 500 clients of 100.

    The p_i are drawn first and depend on the seed, the number of clients and the number of labels
    only: a test set with the same labels that is partitioned with the same seed has them too.

    Args:
      labels: whole numbers >= 0, [num_rows].
      num_clients: the number of clients.
      alpha: > 0.
      seed: of the draw, >= 0.
      examples_per_client: the number of examples per client; the other rows are not used. None: all
          rows are used, and sizes differ by at most one.

    Raises:
      ValueError: if the labels are invalid, or there are too few examples.

    Example:
      >>> labels = np.repeat(np.arange(10), 50)
      >>> one = dirichlet(labels, 10, alpha=1e-6, examples_per_client=10)
      >>> [len(set(labels[rows])) for rows in np.split(one.rows, one.offsets[1:-1])]
      [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]
    """
    classes = classes_of(labels)
    check_population(len(classes.codes), num_clients, seed)
    check_alpha("alpha", alpha)
    sizes = even_sizes(len(classes.codes), num_clients, examples_per_client)
    rng = generator(seed)
    logs = log_gammas(alpha, (num_clients, len(classes.counts)), rng)
    clients = np.repeat(np.arange(num_clients, dtype=np.int32), sizes)
    drawn = draw_labels(LabelDistributions(logs), clients, classes.counts, rng)
    owner = np.full(len(classes.codes), -1)
    owner[take_labelled(drawn, classes.codes, classes.counts, rng)] = clients
    text = call_text("dirichlet", alpha, examples_per_client=examples_per_client)
    return from_owners(owner, num_clients, text, seed)


def dirichlet_lognormal(
    labels: Any, num_clients: int, alpha: float, sigma: float, *, seed: int = 0
) -> Partition:
    """Clients of log-normal sizes whose label distributions are drawn from Dir(alpha) (FedDyn).

    n_i ~ LogNormal(log(N / n), sigma), scaled to the sum N and rounded, at least 1. Then a client
    that is not full, chosen at random, draws a label from its p_i ~ Dir(alpha) and an example with
    it, without replacement, until all are full; a label that is used up is drawn again.

    FedDyn's code rounds all n_i down and gives the remainder (about half an example per client) to
    the first client; a client may be empty. Here the remainder goes to the clients that lost most
    by rounding.

    Args:
      labels: whole numbers >= 0, [num_rows]; all rows are used.
      num_clients: n.
      alpha: > 0.
      sigma: in [0, 10^6]; 0: equal sizes.
      seed: of the draw, >= 0.

    Raises:
      ValueError: if the labels are invalid, or there are fewer examples than clients.

    Example:
      >>> partition = dirichlet_lognormal(np.arange(600) % 10, 20, alpha=1.0, sigma=0.3)
      >>> partition.client_sizes.sum().item(), partition.client_sizes.std().item() > 5
      (600, True)
    """
    classes = classes_of(labels)
    num_examples = len(classes.codes)
    check_population(num_examples, num_clients, seed)
    check_alpha("alpha", alpha)
    check_number("sigma", sigma, at_least=0, at_most=_LARGEST_SIGMA)
    rng = generator(seed)
    logs = log_gammas(alpha, (num_clients, len(classes.counts)), rng)
    sizes = _lognormal_sizes(num_examples, num_clients, sigma, rng)
    clients = np.repeat(np.arange(num_clients, dtype=np.int32), sizes)
    # A client that is not full, chosen at random again and again: the order of arrivals of
    # Poisson processes, one a client, all of the same rate.
    times = np.cumsum(rng.standard_exponential(num_examples))
    before = np.append(0.0, times)[np.cumsum(sizes) - sizes]
    clients = clients[np.argsort(times - np.repeat(before, sizes), kind="stable")]
    drawn = draw_labels(LabelDistributions(logs), clients, classes.counts, rng)
    owner = np.empty(num_examples, np.int64)
    owner[take_labelled(drawn, classes.codes, classes.counts, rng)] = clients
    return from_owners(owner, num_clients, call_text("dirichlet_lognormal", alpha, sigma), seed)


def dirichlet_by_class(
    labels: Any, num_clients: int, alpha: float = 0.5, *, seed: int = 0, min_examples: int = 10
) -> Partition:
    """For each label, proportions over the clients from Dir(alpha) (PFNM's hetero-dir).

    Label after label, p ~ Dir(alpha, ..., alpha) over the clients; p_i becomes 0 for clients with
    N / n examples or more, p is normalised, and the label's examples, in random order, are cut at
    the cumulated p. All is drawn again until every client has `min_examples`.

    Args:
      labels: whole numbers >= 0, [num_rows]; all rows are used.
      num_clients: n.
      alpha: > 0; PFNM uses 0.5.
      seed: of the draw, >= 0.
      min_examples: >= 1; PFNM uses 10.

    Raises:
      ValueError: if the labels are invalid, or no draw gives every client `min_examples`.

    Example:
      >>> partition = dirichlet_by_class(np.arange(600) % 10, 10)
      >>> partition.client_sizes.sum().item(), partition.client_sizes.min().item() >= 10
      (600, True)
    """
    classes = classes_of(labels)
    num_examples = len(classes.codes)
    check_population(num_examples, num_clients, seed)
    check_alpha("alpha", alpha)
    check_count("min_examples", min_examples)
    if num_clients * min_examples > num_examples:
        raise ValueError(
            f"{num_clients:,} clients with min_examples={min_examples:,} need "
            f"{num_clients * min_examples:,} examples, but there are {num_examples:,}. Lower "
            "num_clients or min_examples."
        )
    rng = generator(seed)
    gammas = num_clients * len(classes.counts)
    attempts = min(_MOST_ATTEMPTS, max(1, _MOST_GAMMAS // gammas))
    for _ in range(attempts):
        counts = _class_counts(classes.counts, num_clients, alpha, rng)
        if counts.sum(0).min() >= min_examples:
            break
    else:
        raise ValueError(
            f"In {attempts:,} draws of dirichlet_by_class with alpha = {alpha:g}, some of the "
            f"{num_clients:,} clients always had fewer than min_examples = {min_examples:,} "
            "examples. Use a larger alpha, fewer clients or a smaller min_examples."
        )
    shuffled = rng.permutation(num_examples)
    by_label = shuffled[stable_order(classes.codes[shuffled], len(classes.counts))]
    owner = np.empty(num_examples, np.int64)
    everyone = np.tile(np.arange(num_clients), len(classes.counts))
    owner[by_label] = np.repeat(everyone, counts.reshape(-1))
    text = call_text("dirichlet_by_class", alpha, *([min_examples] if min_examples != 10 else []))
    return from_owners(owner, num_clients, text, seed)


def _class_counts(
    class_sizes: np.ndarray, num_clients: int, alpha: float, rng: Rng
) -> np.ndarray:
    """How many examples of each label each client gets, int64 [num_labels, num_clients]."""
    logs = log_gammas(alpha, (len(class_sizes), num_clients), rng)
    sizes = np.zeros(num_clients, np.int64)
    counts = np.zeros((len(class_sizes), num_clients), np.int64)
    mean = class_sizes.sum() / num_clients
    for label, size in enumerate(class_sizes):
        is_open = sizes < mean
        weights = np.exp(logs[label] - logs[label][is_open].max(), where=is_open,
                         out=np.zeros(num_clients))
        shares = np.cumsum(weights)
        ends = np.floor(shares / shares[-1] * size).astype(np.int64)
        counts[label] = np.diff(ends, prepend=0)
        sizes += counts[label]
    return counts


def _lognormal_sizes(
    num_examples: int, num_clients: int, sigma: float, rng: Rng
) -> np.ndarray:
    """Sizes of clients, each at least 1, that add up to the number of examples."""
    if not sigma:
        return even_sizes(num_examples, num_clients)
    logs = sigma * rng.standard_normal(num_clients)
    shares = np.exp(logs - logs.max())
    quotas = shares / shares.sum() * num_examples
    above = np.maximum(quotas - 1, 0)  # those below 1 get 1, at the cost of all others
    rest = num_examples - num_clients
    above *= rest / above.sum() if rest else 0
    sizes = np.floor(above).astype(np.int64)
    missing = rest - sizes.sum()
    sizes[np.argsort(sizes - above, kind="stable")[:missing]] += 1
    return sizes + 1
