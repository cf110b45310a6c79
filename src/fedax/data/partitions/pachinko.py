"""Pachinko allocation: label distributions drawn from a hierarchy of labels."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedax.data.partitions.checks import (
    Classes,
    call_text,
    check_alpha,
    check_population,
    classes_of,
    even_sizes,
)
from fedax.data.partitions.label_draws import (
    LabelDistributions,
    draw_labels,
    generator,
    log_gammas,
    take_labelled,
)
from fedax.data.partitions.partition import Partition, from_owners


def pachinko(
    labels: Any,
    coarse_labels: Any,
    num_clients: int,
    coarse_alpha: float = 0.1,
    alpha: float = 10.0,
    *,
    seed: int = 0,
    examples_per_client: int | None = None,
) -> Partition:
    """Pachinko allocation: clients draw coarse labels, then fine labels within them.

    Reddi et al. 2021 and Chen et al. 2023 use this partition for CIFAR-100.

    Labels are the leaves of a graph root -> coarse -> fine. Client after client draws p ~
    Dir(coarse_alpha) over the coarse labels and, for each of those, q ~ Dir(alpha) over its fine
    ones. Each of its examples draws a coarse label from p, a fine one from its q, and an example
    with that, without replacement. A fine label whose examples are used up is removed from its q,
    which is normalised again; a coarse one whose fine ones are all used up is removed from p.
    Fed-CIFAR100 is 0.1 and 10 with 500 clients of 100.

    The p and q are drawn first, for all clients; where labels are removed they are normalised,
    which for a Dirichlet distribution is the same as drawing them over the labels that are left.

    Args:
      labels: the fine labels, whole numbers >= 0, [num_rows].
      coarse_labels: [num_rows], the same for all rows of a fine label.
      num_clients: the number of clients.
      coarse_alpha: > 0, of the coarse labels.
      alpha: > 0, of the fine labels of each coarse one.
      seed: of the draw, >= 0.
      examples_per_client: as for `dirichlet`.

    Raises:
      ValueError: if the labels are invalid, a fine label has two coarse ones, or there are too few
          examples.

    Example:
      >>> fine = np.arange(400) % 20
      >>> partition = pachinko(fine, fine // 5, 4, coarse_alpha=1e-6)
      >>> [len(set(fine[rows] // 5)) for rows in np.split(partition.rows, partition.offsets[1:-1])]
      [1, 1, 1, 1]
    """
    fine, coarse = classes_of(labels), classes_of(coarse_labels, "coarse_labels")
    if len(fine.codes) != len(coarse.codes):
        raise ValueError(
            f"There are {len(fine.codes):,} labels and {len(coarse.codes):,} coarse labels; each "
            "row needs one of each."
        )
    check_population(len(fine.codes), num_clients, seed)
    check_alpha("coarse_alpha", coarse_alpha)
    check_alpha("alpha", alpha)
    sizes = even_sizes(len(fine.codes), num_clients, examples_per_client)
    parents = _parents(fine, coarse)
    ranks = np.argsort(parents, kind="stable")  # the children of one coarse label side by side
    number = np.argsort(ranks)
    codes, counts = number[fine.codes], fine.counts[ranks]
    rng = generator(seed)
    group_logs = log_gammas(coarse_alpha, (num_clients, len(coarse.counts)), rng)
    label_logs = log_gammas(alpha, (num_clients, len(counts)), rng)
    distributions = LabelDistributions(label_logs, group_logs, parents[ranks])
    clients = np.repeat(np.arange(num_clients, dtype=np.int32), sizes)
    drawn = draw_labels(distributions, clients, counts, rng)
    owner = np.full(len(codes), -1)
    owner[take_labelled(drawn, codes, counts, rng)] = clients
    text = call_text("pachinko", coarse_alpha, alpha, examples_per_client=examples_per_client)
    return from_owners(owner, num_clients, text, seed)


def _parents(fine: Classes, coarse: Classes) -> np.ndarray:
    """The number of each fine label's coarse one."""
    parents = np.empty(len(fine.counts), np.int64)
    parents[fine.codes] = coarse.codes
    odd = np.flatnonzero(parents[fine.codes] != coarse.codes)
    if odd.size:
        row = int(odd[0])
        label = fine.codes[row]
        first, second = coarse.labels[coarse.codes[row]], coarse.labels[parents[label]]
        raise ValueError(
            f"The label {fine.labels[label]} has the coarse label {first} in row {row} and "
            f"{second} elsewhere; each label needs one coarse label."
        )
    return parents
