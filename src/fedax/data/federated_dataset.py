"""A federated data set: flat arrays and client offsets."""

from __future__ import annotations

import dataclasses
import difflib
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from fedax.data.checks import checked_indices, require_arrays
from fedax.data.grouping import checked_ids, checked_offsets, first_twice, group, join_clients
from fedax.data.rows import as_rows, take_rows
from fedax.data.splitting import TEST, TRAIN, VALIDATION, SplitBy, split_rows
from fedax.data.tables import Columns, dataset_arrays, frame_arrays
from fedax.data.torch_examples import torch_arrays, torch_clients
from fedax.validate import so_many

if TYPE_CHECKING:
    from fedax.data.preparing.table import Table


@dataclasses.dataclass(frozen=True, eq=False)
class FederatedDataset:
    """The examples of all clients in flat arrays; client i owns rows offsets[i]:offsets[i + 1].

    Access to a client takes constant time and no Python object per client, so a round costs the
    same with 342,477 clients as with 100. The arrays may be `numpy.memmap`s; they are not copied.
    SciPy sparse matrices stay sparse (as `fedax.data.rows.SparseRows`): rows are made dense when a
    cohort is read or evaluated.

    Attributes:
      arrays: name -> array [num_examples, ...]; all have the same leading axis.
      offsets: int64 [num_clients + 1], strictly increasing from 0 to num_examples.
      names: the clients' names, text or whole numbers [num_clients]; None: a client's name is its
          index.
      categories: for data from a table, column -> the values that its codes stand for.
      table: the preprocessing that made the arrays, see `fedax.fit_table`; or None.

    Raises:
      TypeError: if the arrays are not a dictionary of arrays.
      ValueError: if the arrays have different lengths, or a client has no examples.

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
    table: Table | None = None

    def __post_init__(self) -> None:
        require_arrays(self.arrays)
        if not self.arrays:
            raise ValueError("A data set needs at least one array, but none was given.")
        arrays = {
            name: as_rows(array, f"The array {name!r}") for name, array in self.arrays.items()
        }
        object.__setattr__(self, "arrays", arrays)
        lengths = {name: len(array) for name, array in arrays.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(
                f"All arrays must have the same number of examples, but they have {lengths}."
            )
        offsets = checked_offsets(self.offsets, next(iter(lengths.values())))
        if self.names is not None:
            names = np.asarray(self.names)
            if names.dtype.kind not in "iuU":
                names = names.astype(str)
            if names.shape != (len(offsets) - 1,):
                raise ValueError(
                    f"{len(offsets) - 1} clients need as many names, but {names.size} were given."
                )
            twice = first_twice(names)
            if twice is not None:
                raise ValueError(f"Two clients have the name {twice!r}; names must be unique.")
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
        clients: Mapping[str, Mapping[str, Any]] | Mapping[int, Mapping[str, Any]]
        | Sequence[Mapping[str, Any]],
    ) -> FederatedDataset:
        """Joins the arrays of single clients.

        Args:
          clients: client name (text or a whole number) -> its arrays by name; or a list of such
              dictionaries, whose indices become the names. The leading axis of each array counts
              that client's examples.

        Raises:
          TypeError: if a client is not a dictionary of arrays.
          ValueError: if array names, shapes or dtypes differ between clients, a client has no
              examples, or a floating point array holds NaN or infinity. The message names the
              client.
        """
        return cls(*join_clients(clients))

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any], client_ids: Any) -> FederatedDataset:
        """Groups the rows of flat arrays by client.

        Clients are ordered by their first row, and each client's rows keep their order. Rows that
        are already grouped are not copied. Otherwise an array in memory is copied once, and a
        memory-mapped one (`np.load(path, mmap_mode="r")`) is read in place through an index of 8
        bytes a row.

        Args:
          arrays: name -> array [num_rows, ...], in memory, mapped from a file, or a SciPy sparse
            matrix [num_rows, columns], which stays sparse.
          client_ids: the client of each row, text or whole numbers [num_rows]; an array, a list or
              a data frame's column.

        Raises:
          TypeError: if the arrays are not a dictionary of arrays.
          ValueError: if lengths differ, a row has no client, or an array in memory holds NaN or
              infinity. The message names the row.

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

        Numeric and boolean columns are used as they are. A column of lists or arrays becomes one
        array if all rows have the same shape. A column in `categories` becomes integer codes
        (int32); they have no order, so one-hot encode them in the model. Categorical columns of
        pandas and `Enum` columns of polars bring their own categories.

        Args:
          frame: one row per example.
          client_column: the column with each example's client.
          columns: the columns to use; None: all others. Or a dictionary, array name -> a column or
              a list of columns to join in one array [num_rows, num_columns].
          categories: column -> its values in the order of their codes. For a test set give the
              training set or its frame, so that both use the same codes.

        Raises:
          ValueError: if a column does not exist, or holds text, dates, a missing value or an
              unknown category. The message names the column and the row, counted from 0.

        Example:
          >>> import pandas
          >>> frame = pandas.DataFrame({"user": ["ada", "bob", "ada"], "age": [30, 40, 31],
          ...     "height": [1.7, 1.8, 1.7], "buys": [True, False, True]})
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

        Reads the chosen columns into memory through the Arrow table: numbers, class labels (as
        integers), arrays and lists of one shape, and images of one size and mode
        (`fedax.data.images.pixels_of`).

        Args:
          dataset: one split, not streamed; one row per example.
          client_column: the column with each example's client.
          columns, categories: as for `from_frame`; class labels bring their own categories.

        Raises:
          ValueError: as for `from_frame`, or if the rows of a column differ in shape.

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

    @classmethod
    def from_torch(
        cls, clients: Any, names: Sequence[str] = ("x", "y"), *, client_ids: Any = None
    ) -> FederatedDataset:
        """The examples of PyTorch's `Dataset`s or `DataLoader`s, each of which is read once.

        Args:
          clients: client -> its data set, such as a `Subset`; or a list of data sets. All examples
              of a loader are read in order; its batch size, `shuffle` and `drop_last` are ignored.
              Random transforms are drawn only once, so put augmentation in the model's loss.
          names: the names of an example's parts; not needed if examples are dictionaries.
          client_ids: the client of each example, if `clients` is a single data set.

        Raises:
          TypeError, ValueError: if examples are not numbers or differ in shape, or a data set has
              no length. The message names the client and the example.
        """
        if client_ids is None:
            return cls.from_clients(torch_clients(clients, names))
        return cls.from_arrays(torch_arrays(clients, names, "The data set"), client_ids)

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
        """The names of all clients; their indices if no names were given."""
        return np.arange(self.num_clients) if self.names is None else self.names

    @property
    def nbytes(self) -> int:
        """Size of the arrays in bytes; sparse arrays count as if they were dense."""
        return sum(array.nbytes for array in self.arrays.values())

    def name(self, index: int) -> str:
        """The name of the client with this index, as text."""
        return str(index) if self.names is None else str(self.names[index])

    def index(self, name: str | int) -> int:
        """The index of the client with this name; numeric names may be given as text.

        Raises:
          KeyError: if no client has this name. The message suggests the nearest name.

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
        """The arrays of the client with this name (views, where the arrays allow it).

        Args:
          name: as for `index`. Without names, a client's name is its index.

        Raises:
          KeyError: if no client has this name. The message suggests the nearest name.
        """
        return self.client_at(self.index(name))

    def client_at(self, index: int) -> dict[str, np.ndarray]:
        """The arrays of the client with this index, as `client` gives them by name.

        Raises:
          KeyError: if the index is not in 0 to num_clients - 1.
        """
        (index,) = checked_indices([index], self.num_clients)
        rows = slice(int(self.offsets[index]), int(self.offsets[index + 1]))
        return {key: array[rows] for key, array in self.arrays.items()}

    def places_of(self, others: FederatedDataset) -> np.ndarray:
        """The index in this data set of each client of another one, by name; -1 if it has none.

        Example:
          >>> data = FederatedDataset.from_arrays({"x": np.zeros(3)}, ["ada", "bob", "eve"])
          >>> data.places_of(data.select(["eve", "ada"])).tolist()
          [2, 0]
        """
        return np.array([self._places.get(name, -1) for name in others._places], np.int64)

    def pooled(self) -> FederatedDataset:
        """All examples as a single client named "pool"; nothing is copied."""
        return dataclasses.replace(self, offsets=self.offsets[[0, -1]], names=np.array(["pool"]))

    def select(self, clients: Any) -> FederatedDataset:
        """A data set of the clients with these names, in this order.

        `data.select(data.client_names)` is the whole data set; `take` selects by index.

        Args:
          clients: names as for `index`, or a bool array [num_clients], such as
            `data.client_sizes >= 10`.

        Raises:
          KeyError: if no client has one of the names.
            ValueError: if no client is selected, or one is selected twice.

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
                f"A selection by a bool array needs one value for each of the {self.num_clients} "
                f"clients, but the array has shape {list(chosen.shape)}."
            )
        return self.take(np.flatnonzero(chosen))

    def take(self, indices: Any) -> FederatedDataset:
        """A data set of the clients at these indices, in this order; they keep their names.

        Args:
          indices: whole numbers from 0 to num_clients - 1.

        Raises:
          KeyError: if an index is not in that range.
            ValueError: if no client is selected, or one is selected twice.

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
        """Splits into training, test and optionally validation data, by examples or by clients.

        With `by="examples"`, each client with n examples gives round(fraction n) of them to the
        test part, but at least one, and keeps at least one for training. A client with a single
        example appears in the training part only. All parts keep the clients' names (without names,
        their indices become names) and the order of examples. The test part depends only on the
        seed, the clients' names and their numbers of examples.

        Arrays in memory are copied; memory-mapped ones are read in place, through an index.

        Args:
          fraction: the fraction for testing, in (0, 1).
          seed: >= 0.
          by: "examples" to split each client's examples, "clients" to hold out whole clients.
          validation: the fraction for validation, such as 0.1; None: no validation part.

        Returns:
          `train, test`, for `fedax.Task(model, train, test)`; with `validation`, `train,
          validation, test`, for `fedax.Task(model, train, test, validation=validation)`.

        Raises:
          ValueError: if an argument is out of range, or a part would be empty.

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
        """The data set of the chosen rows (bool [num_examples]), without clients that have none."""
        counts = np.add.reduceat(chosen.astype(np.int64), self.offsets[:-1])
        clients = np.flatnonzero(counts)
        return self._of_rows(np.flatnonzero(chosen), counts[clients], clients)

    def _of_rows(
        self, rows: np.ndarray, sizes: np.ndarray, clients: np.ndarray
    ) -> FederatedDataset:
        """The data set of these rows; `sizes` is each client's number of rows."""
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
