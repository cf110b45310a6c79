"""A learning problem over a population of clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from fedax.algorithm import Model
from fedax.data.categories import require_alike
from fedax.data.federated_dataset import FederatedDataset
from fedax.mistakes.errors import kind_of


class _Task(NamedTuple):
    model: Model
    train: FederatedDataset
    test: FederatedDataset | None = None
    name: str = "custom"
    references: Mapping[str, Callable[[], Mapping[str, float]]] = MappingProxyType({})


class Task(_Task):
    """A learning problem over a population of clients.

    Attributes:
      model: what is trained.
      train: the clients' training examples.
      test: the clients' test examples, or None; may be another population.
      name: how the task is called.
      references: what to compare with, such as a baseline's metrics: description -> function
        that computes them, `test_*` name -> value.

    Raises:
      TypeError: `train` or `test` is no `FederatedDataset`.
      ValueError: they number the categories of a column differently.
    """

    __slots__ = ()

    def __new__(  # noqa: D102 - the class says it
        cls, model: Model, train: FederatedDataset, test: FederatedDataset | None = None,
        name: str = "custom",
        references: Mapping[str, Callable[[], Mapping[str, float]]] = MappingProxyType({}),
    ) -> Task:
        for part, data in (("train", train), ("test", test)):
            if not isinstance(data, FederatedDataset) and (part == "train" or data is not None):
                cure = "Give its data: task.train or task.test." if isinstance(data, Task) else (
                    "Make one of arrays and whose each row is with FederatedDataset.from_arrays("
                    "arrays, client_ids), or of one dictionary a client with "
                    "FederatedDataset.from_clients(clients)."
                )
                raise TypeError(
                    f"{part} must be a fedax.FederatedDataset, but is {kind_of(data)}. {cure}"
                )
        if test is not None:
            require_alike(train.categories, test.categories)
        return super().__new__(cls, model, train, test, name, references)

    @classmethod
    def _make(  # pyright: ignore[reportIncompatibleMethodOverride] - _replace checks too
        cls, iterable: Iterable[Any]
    ) -> Task:
        return cls(*iterable)

    def __repr__(self) -> str:
        lines = [f"Task {self.name}", f"  {self.model!r}", f"  train: {self.train!r}"]
        if self.test is not None:
            lines.append(f"  test: {self.test!r}")
        return "\n".join(lines)
