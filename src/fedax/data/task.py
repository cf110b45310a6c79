"""A learning problem over a population of clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from fedax.algorithm import Model
from fedax.data.federated_dataset import FederatedDataset


class Task(NamedTuple):
    """A learning problem over a population of clients.

    Attributes:
      model: what is trained.
      train: the clients' training examples.
      test: the clients' test examples, or None; may be another population.
      name: how the task is called.
      references: what to compare with, such as a baseline's metrics: description -> function
        that computes them, `test_*` name -> value.
    """

    model: Model
    train: FederatedDataset
    test: FederatedDataset | None = None
    name: str = "custom"
    references: Mapping[str, Callable[[], Mapping[str, float]]] = MappingProxyType({})

    def __repr__(self) -> str:
        lines = [f"Task {self.name}", f"  {self.model!r}", f"  train: {self.train!r}"]
        if self.test is not None:
            lines.append(f"  test: {self.test!r}")
        return "\n".join(lines)
