"""The tables of `fedax data describe`: clients, their sizes, and how their labels differ."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedax.data.federated_dataset import FederatedDataset
from fedax.data.label_skew import LabelSkew
from fedax.outside.text import printable
from fedax.report.tables import Table
from fedax.validate import so_many

_QUANTILES = {"min": 0, "5%": 0.05, "median": 0.5, "95%": 0.95, "max": 1}
# So many labels have a row of their own, and so many of the largest clients.
_MOST_LABELS, _LARGEST = 20, 5


def population_tables(
    name: str, dataset: FederatedDataset, skew: LabelSkew | None
) -> list[Table]:
    """What a client has, the labels of the population, and its largest clients.

    Args:
      name: what the data set is called.
      dataset: the clients.
      skew: of their labels; None: they have none.
    """
    measures: dict[str, np.ndarray] = {"examples": dataset.client_sizes}
    if skew is not None:
        measures |= {
            "labels": skew.num_labels, "share of top label": skew.top_share,
            "distance": skew.distance,
        }
    rows: list[list[Any]] = [
        [what, _number(values.mean()), *map(_number, _quantiles(values))]
        for what, values in measures.items()
    ]
    clients = so_many(dataset.num_clients, "client")
    title = f"{printable(name)}: {clients}, {so_many(dataset.num_examples, 'example')}"
    if skew is not None:
        title += (
            ". Distance: total variation between the label distributions of a client and of the "
            "population, half the sum of |p_i(y) - p(y)|"
        )
    tables = [Table(f"{title}.", ["of a client", "mean", *_QUANTILES], rows)]
    if skew is not None:
        tables.append(_labels(skew))
    return [*tables, _largest(dataset, skew)]


def _labels(skew: LabelSkew) -> Table:
    population, clients = skew.population, skew.num_clients_with
    shown = np.arange(len(population))
    title = f"{so_many(len(population), 'label')}."
    if len(population) > _MOST_LABELS:
        shown = np.argsort(-population, kind="stable")[:_MOST_LABELS]
        title = f"The most frequent of {len(population):,} labels."
    return Table(title, ["label", "examples", "share", "clients"], [
        [str(skew.labels[label]), int(population[label]),
         _number(population[label] / population.sum()), int(clients[label])]
        for label in shown
    ])


def _largest(dataset: FederatedDataset, skew: LabelSkew | None) -> Table:
    largest = np.argsort(-dataset.client_sizes, kind="stable")[:_LARGEST]
    rows: list[list[Any]] = [
        [dataset.name(int(client)), int(dataset.client_sizes[client])] for client in largest
    ]
    headings = ["client", "examples"]
    if skew is not None:
        headings += ["top label", "its share"]
        for row, shares in zip(rows, skew.shares_of(largest), strict=True):
            row += [str(skew.labels[shares.argmax()]), _number(shares.max())]
    return Table("The largest clients.", headings, rows)


def _quantiles(values: np.ndarray) -> np.ndarray:
    return np.quantile(values, list(_QUANTILES.values()))


def _number(value: Any) -> int | float:
    """Four digits after the point, and none where there are none."""
    rounded = round(float(value), 4)
    return int(rounded) if rounded.is_integer() else rounded
