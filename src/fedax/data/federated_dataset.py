"""A federated data set: flat arrays and client offsets."""

from __future__ import annotations

import dataclasses
import difflib
import functools
from collections.abc import Mapping, Sequence
from typing import Any, overload

import numpy as np

from fedax.data.checks import checked_indices, require_arrays, require_clients
from fedax.data.grouping import (
    check_client,
    checked_ids,
    checked_names,
    checked_offsets,
    client_rows,
    first_twice,
    group,
)
from fedax.data.rows import as_rows, join_rows, take_rows
from fedax.data.splitting import TEST, TRAIN, VALIDATION, SplitBy, split_rows
from fedax.data.tables import Columns, dataset_arrays, frame_arrays
from fedax.validate import so_many


@dataclasses.dataclass(frozen=True, eq=False)
class FederatedDataset:
    """The examples of all clients in flat arrays; client i owns rows offsets[i]:offsets[i + 1].

    Any client is reached in O(1) and costs no Python object, so 342,477 clients cost a round
    what 100 do. The arrays may be `numpy.memmap`s; nothing here copies them. SciPy sparse
    matrices stay sparse (as `fedax.data.rows.SparseRows`): rows are made dense when a cohort is
    read or evaluated.

    Attributes:
      arrays: name -> array [num_examples, ...]; all have the same leading axis.
      offsets: int64 [num_clients + 1], strictly increasing from 0 to num_examples.
      names: text or whole numbers, [num_clients], or None, when a client's name is its index.
      categories: column -> the values that its numbers stand for, of data from a table.

    Raises:
      TypeError: the arrays are no dictionary of arrays.
      ValueError: the arrays do not fit together, or a client has no examples.

    Example:
      >>> data = FederatedDataset.from_clients({
      ...     "ada": {"x": np.zeros((3, 2)), "y": np.zeros(3)},
      ...     "bob": {"x": np.ones((1, 2)), "y": np.ones(1)},
      ... })
      >>> data.num_clients, data.num_examples, data.name(1)
      (2, 4, 'bob')
    """

    arrays: Mapping[str, np.ndarray]
    offsets: np.ndarray
    names: np.ndarray | None = None
    categories: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        require_arrays(self.arrays)
        if not self.arrays:
            raise ValueError("A data set needs at least one array, and got none.")
        arrays = {
            name: as_rows(array, f"The array {name!r}") for name, array in self.arrays.items()
        }
        object.__setattr__(self, "arrays", arrays)
        lengths = {name: len(array) for name, array in arrays.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"All arrays need the same number of examples, but have {lengths}.")
        offsets = checked_offsets(self.offsets, next(iter(lengths.values())))
        if self.names is not None:
            names = np.asarray(self.names)
            if names.dtype.kind not in "iuU":
                names = names.astype(str)
            if names.shape != (len(offsets) - 1,):
                raise ValueError(
                    f"{len(offsets) - 1} clients need as many names, but there are {names.size}."
                )
            twice = first_twice(names)
            if twice is not None:
                raise ValueError(f"Two clients have the name {twice!r}; names must differ.")
            object.__setattr__(self, "names", names)
        object.__setattr__(self, "offsets", offsets)
        empty = np.flatnonzero(np.diff(offsets) <= 0)
        if empty.size:
            raise ValueError(
                f"Client {self.name(int(empty[0]))!r} has no examples"
                + (f" (one of {empty.size} such clients)" if empty.size > 1 else "")
                + ". Leave empty clients out of the data set."
            )

    @classmethod
    def from_clients(
        cls,
        clients: (
            Mapping[str, Mapping[str, Any]] | Mapping[int, Mapping[str, Any]]
            | Sequence[Mapping[str, Any]]
        ),
    ) -> FederatedDataset:
        """Joins the arrays of single clients.

        Args:
          clients: client name, text or a whole number -> its arrays by name (or a list of such,
            when the names are the indices); each array's leading axis counts that client's
            examples.

        Raises:
          TypeError: clients are no dictionaries of arrays.
          ValueError: names, shapes or dtypes differ between clients, a client has no examples,
            or a floating point array holds NaN or infinity. The sentence names the client.
        """
        require_clients(clients)
        if not clients:
            raise ValueError("A data set needs at least one client, and got none.")
        if isinstance(clients, Mapping):
            names = checked_names(list(clients))
            tables = list(clients.values())
        else:
            names, tables = None, list(clients)
        labels = list(clients) if isinstance(clients, Mapping) else list(range(len(clients)))
        sizes = np.zeros(len(tables), np.int64)
        first: dict[str, Any] = {}
        columns: dict[str, list[np.ndarray]] = {key: [] for key in tables[0]}
        for index, (label, table) in enumerate(zip(labels, tables, strict=True)):
            rows = client_rows(label, table)
            first = first or rows
            check_client(label, rows, first)
            sizes[index] = len(next(iter(rows.values())))
            for key, value in rows.items():
                columns[key].append(value)
        arrays = {key: join_rows(parts) for key, parts in columns.items()}
        return cls(arrays, np.concatenate([[0], np.cumsum(sizes)]), names)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any], client_ids: Any) -> FederatedDataset:
        """Groups the rows of flat arrays by client.

        Clients come in the order of their first row, and a client's rows in the order in which
        they stand. Rows that stand client by client already are not copied; otherwise an array in
        memory is copied once, and one in a file (`np.load(path, mmap_mode="r")`) is read in place
        through an index of 8 bytes a row.

        Args:
          arrays: name -> array [num_rows, ...], in memory, mapped from a file, or a SciPy sparse
            matrix [num_rows, columns], which stays sparse.
          client_ids: [num_rows], text or whole numbers: whose row each is. Array, list or column.

        Raises:
          TypeError: the arrays are no dictionary of arrays.
          ValueError: lengths differ, a row has no client, or an array in memory holds NaN or
            infinity; the sentence names the row.

        Example:
          >>> data = FederatedDataset.from_arrays(
          ...     {"x": np.arange(5.0)}, client_ids=[1007, 12, 1007, 12, 12])
          >>> data.names.tolist(), data.client("12")["x"].tolist()
          ([1007, 12], [1.0, 3.0, 4.0])
        """
        return cls(*group(arrays, checked_ids(client_ids)))

    @classmethod
    def from_frame(
        cls, frame: Any, client_column: str, columns: Columns | None = None, *,
        categories: FederatedDataset | Mapping[str, Sequence[Any]] | None = None,
    ) -> FederatedDataset:
        """The rows of a pandas or polars data frame, grouped by client; see `from_arrays`.

        Columns of numbers and truth values are taken as they are, one of lists or arrays as an
        array if all have one shape, and one of `categories` as numbers (int32), which have no
        order: make them one-hot in the model. A categorical column of pandas and an `Enum` of
        polars have categories of their own.

        Args:
          frame: one row an example.
          client_column: says whose example it is.
          columns: which columns to take; None: all the others. Or array name -> a column, or
            several that stand side by side in one array [num_rows, num_columns].
          categories: column -> its values in the order of their numbers; or the training set, or
            its frame, so that a test set is numbered alike.

        Raises:
          ValueError: a column is not there, holds text, dates, a missing value or an unknown
            category; the message names the column and the row, from 0.

        Example:
          >>> import pandas
          >>> frame = pandas.DataFrame({
          ...     "user": ["ada", "bob", "ada"], "age": [30, 40, 31], "height": [1.7, 1.8, 1.7],
          ...     "buys": [True, False, True],
          ... })
          >>> data = FederatedDataset.from_frame(
          ...     frame, "user", {"x": ["age", "height"], "y": "buys"})
          >>> data.client("ada")["x"].tolist()
          [[30.0, 1.7], [31.0, 1.7]]
        """
        arrays, clients, used = frame_arrays(frame, client_column, columns, categories)
        return cls(*group(arrays, checked_ids(clients)), used)

    @classmethod
    def from_huggingface(
        cls, dataset: Any, client_column: str, columns: Columns | None = None, *,
        categories: FederatedDataset | Mapping[str, Sequence[Any]] | None = None,
    ) -> FederatedDataset:
        """The rows of a Hugging Face `datasets.Dataset`, grouped by client; see `from_arrays`.

        The columns that are taken are read into memory through the Arrow table: numbers, class
        labels (as their numbers), arrays and lists of one shape, and images of one size and kind
        (`fedax.data.images.pixels_of`).

        Args:
          dataset: one split, not streamed; one row an example.
          client_column: says whose example it is.
          columns, categories: as for `from_frame`; class labels have categories of their own.

        Raises:
          ValueError: as for `from_frame`, or the rows of a column differ in shape.

        Example:
          >>> import datasets
          >>> rows = datasets.Dataset.from_dict(
          ...     {"writer": ["ada", "bob", "ada"], "pixels": [[0, 1], [2, 3], [4, 5]]})
          >>> data = FederatedDataset.from_huggingface(rows, "writer")
          >>> data.client("ada")["pixels"].tolist()
          [[0, 1], [4, 5]]
        """
        arrays, clients, names, used = dataset_arrays(dataset, client_column, columns, categories)
        return cls(*group(arrays, checked_ids(clients), names), used)

    def __repr__(self) -> str:
        sizes = self.client_sizes
        arrays = [f"{name} {a.dtype}{list(a.shape[1:])}" for name, a in self.arrays.items()]
        arrays = [*arrays[:8], *(["..."] if len(arrays) > 8 else [])]
        return (
            f"FederatedDataset({so_many(self.num_clients, 'client')}, "
            f"{so_many(self.num_examples, 'example')} of "
            f"{', '.join(arrays)}; {sizes.min():,} to {sizes.max():,} a client, median "
            f"{np.median(sizes):,g})"
        )

    @property
    def num_clients(self) -> int:
        """The size of the population."""
        return len(self.offsets) - 1

    @property
    def num_examples(self) -> int:
        """The number of examples of all clients together."""
        return int(self.offsets[-1])

    @property
    def client_sizes(self) -> np.ndarray:
        """Number of examples of each client, int64 [num_clients]."""
        return np.diff(self.offsets)

    @property
    def client_names(self) -> np.ndarray:
        """The names of all clients, which are their indices where there are no others."""
        return np.arange(self.num_clients) if self.names is None else self.names

    @property
    def nbytes(self) -> int:
        """Size of the arrays in bytes, of sparse ones what they would take dense."""
        return sum(array.nbytes for array in self.arrays.values())

    def name(self, index: int) -> str:
        """The name of the client with this index, as text."""
        return str(index) if self.names is None else str(self.names[index])

    def index(self, name: str | int) -> int:
        """The index of the client with this name; a name that is a number may be given as text.

        Raises:
          KeyError: there is no such client; the message suggests the nearest name.

        Example:
          >>> data = FederatedDataset.from_arrays({"x": np.zeros(2)}, client_ids=[1007, 12])
          >>> data.index(12), data.index("12")
          (1, 1)
        """
        place = self._places.get(str(name))
        if place is None:
            near = difflib.get_close_matches(str(name), self._places, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            if isinstance(name, int | np.integer) and 0 <= name < self.num_clients:
                hint = f" By index, it is client_at({name}); take([{name}]) selects by index."
            raise KeyError(f"There is no client {name!r}.{hint}")
        return place

    def client(self, name: int | str) -> dict[str, np.ndarray]:
        """The arrays of the client with this name, as views where arrays are ordinary ones.

        Args:
          name: as for `index`. Clients without names are named by their index.

        Raises:
          KeyError: there is no such client; the message suggests the nearest name.
        """
        return self.client_at(self.index(name))

    def client_at(self, index: int) -> dict[str, np.ndarray]:
        """The arrays of the client with this index, as `client` gives them by name.

        Raises:
          KeyError: the index is not in 0 to num_clients - 1.
        """
        (index,) = checked_indices([index], self.num_clients)
        rows = slice(int(self.offsets[index]), int(self.offsets[index + 1]))
        return {key: array[rows] for key, array in self.arrays.items()}

    def places_of(self, others: FederatedDataset) -> np.ndarray:
        """The index here of each client of another data set, by name; -1 if it is not here.

        Example:
          >>> data = FederatedDataset.from_arrays({"x": np.zeros(3)}, ["ada", "bob", "eve"])
          >>> data.places_of(data.select(["eve", "ada"])).tolist()
          [2, 0]
        """
        return np.array([self._places.get(name, -1) for name in others._places], np.int64)

    def pooled(self) -> FederatedDataset:
        """All examples as one client's, named "pool"; copies nothing."""
        return dataclasses.replace(self, offsets=self.offsets[[0, -1]], names=np.array(["pool"]))

    def select(self, clients: Any) -> FederatedDataset:
        """The clients of these names, in this order; they keep their names.

        `data.select(data.client_names)` is the whole data set; `take` selects by index.

        Args:
          clients: names as for `index`, or a bool array [num_clients], such as
            `data.client_sizes >= 10`.

        Raises:
          KeyError: there is no such client.
          ValueError: no client is selected, or one comes twice.

        Example:
          >>> data = FederatedDataset.from_arrays({"x": np.arange(4.0)}, client_ids=[7, 0, 5, 5])
          >>> few = data.select([5, 0])
          >>> few.names.tolist(), few.arrays["x"].tolist()
          ([5, 0], [2.0, 3.0, 1.0])
        """
        chosen = np.atleast_1d(clients)
        if chosen.ndim > 1:
            raise ValueError(
                f"select takes a list of names, but got an array of shape {list(chosen.shape)}."
            )
        if chosen.dtype != bool:
            return self.take([self.index(name) for name in chosen.tolist()])
        if chosen.shape != (self.num_clients,):
            raise ValueError(
                f"A choice by truth values needs one for each of the {self.num_clients} "
                f"clients, but has the shape {list(chosen.shape)}."
            )
        return self.take(np.flatnonzero(chosen))

    def take(self, indices: Any) -> FederatedDataset:
        """The clients at these indices, in this order; they keep their names.

        Args:
          indices: whole numbers from 0 to num_clients - 1.

        Raises:
          KeyError: an index is not in that range.
          ValueError: no client is selected, or one comes twice.

        Example:
          >>> data = FederatedDataset.from_arrays({"x": np.arange(4.0)}, client_ids=[7, 0, 5, 5])
          >>> data.take([2, 0]).names.tolist()
          [5, 7]
        """
        chosen = checked_indices(indices, self.num_clients)
        sizes = self.client_sizes[chosen]
        ends = np.cumsum(sizes)
        rows = np.arange(sizes.sum()) + np.repeat(self.offsets[chosen] - ends + sizes, sizes)
        return self._of_rows(rows, sizes, chosen)

    @overload
    def split(
        self, fraction: float = ..., seed: int = ..., *, by: SplitBy = ..., validation: None = ...
    ) -> tuple[FederatedDataset, FederatedDataset]: ...
    @overload
    def split(
        self, fraction: float = ..., seed: int = ..., *, by: SplitBy = ..., validation: float
    ) -> tuple[FederatedDataset, FederatedDataset, FederatedDataset]: ...
    def split(
        self, fraction: float = 0.2, seed: int = 0, *, by: SplitBy = "examples",
        validation: float | None = None,
    ) -> tuple[FederatedDataset, ...]:
        """Training, perhaps validation, and test data: parts of each client's examples, or clients.

        Of a client's n examples the test part has n times the fraction, rounded, but at least one,
        and the training part at least one. A client with a single example is in the training part
        alone. All parts keep the clients' names (where there were none, their indices become names)
        and the order of examples. What is in the test part depends on the seed, the clients' names
        and their numbers of examples only.

        Arrays in memory are copied; one in a file is read in place, through an index.

        Args:
          fraction: for testing, in (0, 1).
          seed: >= 0.
          by: "examples", or "clients": whole clients are held out.
          validation: the fraction for validation, such as 0.1; None: there are two parts.

        Returns:
          The training and the test part, for `fedax.Task(model, train, test)`; or the training, the
          validation and the test part, for `fedax.Task(model, train, test, validation=...)`.

        Raises:
          ValueError: an argument is out of its range, or a part would be empty.

        Example:
          >>> data = FederatedDataset({"x": np.arange(11.0)}, np.array([0, 10, 11]))
          >>> train, test = data.split(0.2)
          >>> train.client_sizes.tolist(), test.client_sizes.tolist(), test.names.tolist()
          ([8, 1], [2], [0])
          >>> [part.num_examples for part in data.split(0.2, validation=0.1)]
          [8, 1, 2]
        """
        rows = split_rows(list(self._places), self.client_sizes, fraction, validation, seed, by)
        kinds = (TRAIN, TEST) if validation is None else (TRAIN, VALIDATION, TEST)
        return tuple(self._of_part(rows == kind) for kind in kinds)

    def _of_part(self, chosen: np.ndarray) -> FederatedDataset:
        """The data of the rows chosen, bool [num_examples], and of the clients that have any."""
        counts = np.add.reduceat(chosen.astype(np.int64), self.offsets[:-1])
        clients = np.flatnonzero(counts)
        return self._of_rows(np.flatnonzero(chosen), counts[clients], clients)

    def _of_rows(
        self, rows: np.ndarray, sizes: np.ndarray, clients: np.ndarray
    ) -> FederatedDataset:
        """The data set of these rows, of which these clients own so many each."""
        return dataclasses.replace(
            self,
            arrays={key: take_rows(array, rows) for key, array in self.arrays.items()},
            offsets=np.append(0, np.cumsum(sizes)),
            names=self.client_names[clients],
        )

    @functools.cached_property
    def _places(self) -> dict[str, int]:
        """Name, as text -> index."""
        return {str(name): index for index, name in enumerate(self.client_names.tolist())}
