"""A learning problem over a population of clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from fedax.algorithm import Model
from fedax.data.categories import require_alike
from fedax.data.federated_dataset import FederatedDataset
from fedax.mistakes.errors import kind_of
from fedax.validate import check_number


class _Task(NamedTuple):
    model: Model
    train: FederatedDataset
    test: FederatedDataset | None = None
    name: str = "custom"
    references: Mapping[str, Callable[[], Mapping[str, float]]] = MappingProxyType({})
    validation: FederatedDataset | None = None


class Task(_Task):
    """A learning problem over a population of clients.

    Attributes:
      model: what is trained.
      train: the clients' training examples.
      test: the clients' test examples, or None; may be another population.
      name: of the task.
      references: baselines to compare with, description -> function that returns their metrics
          (`test_*` name -> value).
      validation: the clients' validation examples, or None; may be another population. With
          validation data, evaluation rounds measure `validation_*`, which early stopping,
          `keep_best`, sweeps and searches use; `test_*` is measured only at the end.

    Raises:
      TypeError: if `train`, `test` or `validation` is not a `FederatedDataset`.
        ValueError: if their categories of a column differ.
    """

    __slots__ = ()

    def __new__(  # noqa: D102 - the class says it
        cls, model: Model, train: FederatedDataset, test: FederatedDataset | None = None,
        name: str = "custom",
        references: Mapping[str, Callable[[], Mapping[str, float]]] = MappingProxyType({}),
        validation: FederatedDataset | None = None,
    ) -> Task:
        if isinstance(name, FederatedDataset):
            raise TypeError(
                "name must be text, but is a FederatedDataset. Give three parts by name: "
                "Task(model, train, test, validation=validation)."
            )
        for part, data in (("train", train), ("test", test), ("validation", validation)):
            if not isinstance(data, FederatedDataset) and (part == "train" or data is not None):
                cure = "Give its data: task.train or task.test." if isinstance(data, Task) else (
                    "From flat arrays, make one with FederatedDataset.from_arrays("
                    "arrays, client_ids); from one dictionary per client, with "
                    "FederatedDataset.from_clients(clients)."
                )
                raise TypeError(
                    f"{part} must be a fedax.FederatedDataset, but it is {kind_of(data)}. {cure}"
                )
        for held_out in (test, validation):
            if held_out is not None:
                require_alike(train.categories, held_out.categories)
        return super().__new__(cls, model, train, test, name, references, validation)

    def with_validation(self, fraction: float, seed: int = 0) -> Task:
        """The task with a part of each client's training examples held out for validation.

        The choice depends only on the seed, the client's name and its number of examples; see
        `FederatedDataset.split`. A client with a single example keeps it for training.

        Args:
          fraction: of the training examples, in (0, 1).
          seed: >= 0.

        Raises:
          ValueError: if the task already has validation data, an argument is out of range, or no
              client has two examples.

        Example:
          >>> import fedax
          >>> task = fedax.load_task("digits").with_validation(0.1)
          >>> task.train.num_examples + task.validation.num_examples, task.train.num_clients
          (1437, 20)
        """
        if self.validation is not None:
            raise ValueError(
                f"The task {self.name} already has validation data. Leave validation out, or start "
                "from a task without it: task._replace(validation=None)."
            )
        check_number("validation", fraction, above=0, below=1)
        train, validation = self.train.split(fraction, seed)
        return self._replace(train=train, validation=validation)

    @classmethod
    def _make(  # pyright: ignore[reportIncompatibleMethodOverride] - _replace checks too
        cls, iterable: Iterable[Any]
    ) -> Task:
        return cls(*iterable)

    def __repr__(self) -> str:
        lines = [f"Task {self.name}", f"  {self.model!r}", f"  train: {self.train!r}"]
        if self.validation is not None:
            lines.append(f"  validation: {self.validation!r}")
        if self.test is not None:
            lines.append(f"  test: {self.test!r}")
        return "\n".join(lines)
