"""Partitions without a distribution: at random, in shards of sorted labels, by a key."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedax.data.grouping import checked_ids, group_rows
from fedax.data.partitions.checks import call_text, check_population, classes_of, even_sizes
from fedax.data.partitions.label_draws import generator
from fedax.data.partitions.ordering import stable_order
from fedax.data.partitions.partition import Partition, from_owners
from fedax.validate import check_count


def iid(
    num_examples: int, num_clients: int, *, seed: int = 0, examples_per_client: int | None = None
) -> Partition:
    """Divides examples at random into clients whose sizes differ by at most one.

    Args:
      num_examples: the number of rows.
      num_clients: the number of clients, at most the number of examples.
      seed: of the draw, >= 0.
      examples_per_client: the number of examples per client; the other rows are not used. None: all
          rows are used.

    Raises:
      ValueError: if there are too few examples.

    Example:
      >>> iid(10, 3).client_sizes.tolist()
      [4, 3, 3]
    """
    check_count("num_examples", num_examples, at_least=0)
    check_population(num_examples, num_clients, seed)
    sizes = even_sizes(num_examples, num_clients, examples_per_client)
    owner = np.full(num_examples, -1)
    dealt = generator(seed).permutation(num_examples)[: sizes.sum()]
    owner[dealt] = np.repeat(np.arange(num_clients), sizes)
    text = call_text("iid", examples_per_client=examples_per_client)
    return from_owners(owner, num_clients, text, seed)


def shards(
    labels: Any, num_clients: int, shards_per_client: int = 2, *, seed: int = 0
) -> Partition:
    """Sorts rows by label and gives each client random shards (McMahan et al. 2017, section 3).

    The paper gives MNIST in 200 shards of 300 rows to 100 clients, 2 each. Rows of one label stay
    in their order. If the rows do not divide evenly, some shards have one row more.

    Args:
      labels: whole numbers >= 0, [num_rows].
      num_clients: the number of clients.
      shards_per_client: shards of each client, about its number of labels.
      seed: of the draw, >= 0.

    Raises:
      ValueError: if the labels are invalid, or there are fewer rows than shards.

    Example:
      >>> partition = shards(np.repeat(np.arange(10), 60), num_clients=10)
      >>> partition.client_sizes.tolist()
      [60, 60, 60, 60, 60, 60, 60, 60, 60, 60]
    """
    classes = classes_of(labels)
    check_population(len(classes.codes), num_clients, seed)
    check_count("shards_per_client", shards_per_client)
    num_shards = num_clients * shards_per_client
    if num_shards > len(classes.codes):
        raise ValueError(
            f"{num_clients:,} clients with {shards_per_client:,} shards each need {num_shards:,} "
            f"rows or more, but there are {len(classes.codes):,}."
        )
    sizes = even_sizes(len(classes.codes), num_shards)
    shard_owner = np.empty(num_shards, np.int64)
    dealt = generator(seed).permutation(num_shards)
    shard_owner[dealt] = np.repeat(np.arange(num_clients), shards_per_client)
    owner = np.empty(len(classes.codes), np.int64)
    owner[stable_order(classes.codes, len(classes.counts))] = np.repeat(shard_owner, sizes)
    return from_owners(owner, num_clients, call_text("shards", shards_per_client), seed)


def by_key(keys: Any, name: str = "key") -> Partition:
    """Groups rows by a key: rows with the same key form one client.

    Nothing is drawn. Clients come in the order of their first row and are named by their keys.

    Args:
      keys: text or whole numbers, [num_rows].
      name: of the keys, for messages.

    Raises:
      ValueError: if a row has no key, or the keys are neither text nor whole numbers.

    Example:
      >>> partition = by_key(["ada", "bob", "ada"])
      >>> partition.names.tolist(), partition.rows.tolist()
      (['ada', 'bob'], [0, 2, 1])
    """
    ids = checked_ids(keys)
    groups = group_rows(ids)
    sizes = np.diff(groups.offsets)
    owner = np.empty(len(ids), np.int64)
    order = np.arange(len(ids)) if groups.order is None else groups.order
    owner[order] = np.repeat(np.arange(len(sizes)), sizes)
    return from_owners(owner, len(sizes), call_text("by_key", name), None, ids[groups.first])
