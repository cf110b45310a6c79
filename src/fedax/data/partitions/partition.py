"""A partition: the rows of each client, and how they were drawn."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import os
import secrets
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

import numpy as np

from fedax.data.errors import DataError
from fedax.data.federated_dataset import FederatedDataset
from fedax.data.partitions.ordering import rows_of
from fedax.data.rows import take_rows
from fedax.data.splitting import held_out_rows
from fedax.files.array_headers import read_header
from fedax.outside.paths import expanded
from fedax.validate import check_number, check_seed, quoted, so_many

_FORMAT = "fedax partition 1"
# Of an array so many rows at a time go into its digest.
_BLOCK = 2**20


@dataclasses.dataclass(frozen=True, eq=False)
class Partition:
    """Which rows of a data set each client owns; client i owns rows[offsets[i]:offsets[i + 1]].

    Attributes:
      rows: int64 [num_rows], each at most once, those of a client ascending.
      offsets: int64 [num_clients + 1], strictly increasing from 0 to num_rows.
      names: of the clients, or None, when a client's name is its index.
      made: how: `partition` (as text), `num_clients`, `seed`, `num_examples` of what was
        partitioned, `digests` of the arrays that it depends on, and NumPy's version.

    Example:
      >>> labels = np.array([0, 0, 1, 1, 2, 2])
      >>> data = FederatedDataset({"y": labels}, np.array([0, 6]))
      >>> from fedax.data.partitions import shards
      >>> shards(labels, num_clients=3, shards_per_client=1).of(data).client_sizes.tolist()
      [2, 2, 2]
    """

    rows: np.ndarray
    offsets: np.ndarray
    names: np.ndarray | None
    made: Mapping[str, Any]

    def __repr__(self) -> str:
        sizes = self.client_sizes
        return (
            f"Partition({self.made.get('partition')}, seed {self.made.get('seed')}: "
            f"{so_many(self.num_clients, 'client')}, {len(self.rows):,} of "
            f"{so_many(self.num_examples, 'example')}; "
            f"{sizes.min():,} to {sizes.max():,} a client)"
        )

    @property
    def num_clients(self) -> int:
        """The size of the population."""
        return len(self.offsets) - 1

    @property
    def num_examples(self) -> int:
        """The number of examples of the partitioned data set; `len(rows)` of them are used."""
        return int(self.made["num_examples"])

    @property
    def client_sizes(self) -> np.ndarray:
        """Number of examples of each client, int64 [num_clients]."""
        return np.diff(self.offsets)

    def of(self, dataset: FederatedDataset) -> FederatedDataset:
        """The data set with its examples divided among these clients; its own clients are ignored.

        Memory-mapped and sparse arrays are read in place through the rows; arrays in memory are
        copied.

        Raises:
          ValueError: if the partition was made for different examples.
        """
        if dataset.num_examples != self.num_examples:
            raise ValueError(
                f"The partition was made for {self.num_examples:,} examples, but the data set has "
                f"{dataset.num_examples:,}. Make it again for this data set."
            )
        for name, digest in self.made.get("digests", {}).items():
            if name not in dataset.arrays:
                raise ValueError(
                    f"The partition depends on the array {name!r}, which this data set does not "
                    f"have; it has {', '.join(map(repr, dataset.arrays))}."
                )
            if digest_of(dataset.arrays[name]) != digest:
                raise ValueError(
                    f"The partition was made for a different data set: its array {name!r} was "
                    "different. Make the partition again for this data set."
                )
        arrays = {name: take_rows(array, self.rows) for name, array in dataset.arrays.items()}
        return dataclasses.replace(
            dataset, arrays=arrays, offsets=self.offsets, names=self.names
        )

    def split(self, fraction: float = 0.2, seed: int = 0) -> tuple[Partition, Partition]:
        """Splits each client's examples into a training and a test partition.

        The same as `partition.of(dataset).split(fraction, seed)`, as two partitions to save.

        Args:
          fraction: the fraction for testing, in (0, 1); see `FederatedDataset.split`.
          seed: >= 0.

        Raises:
          ValueError: if an argument is out of range, or no client has two examples.
        """
        check_number("fraction", fraction, above=0, below=1)
        check_seed(seed)
        names = np.arange(self.num_clients) if self.names is None else self.names
        is_test = held_out_rows(names.astype(str).tolist(), self.client_sizes, fraction, seed)
        if not is_test.any():
            raise ValueError("No client has two or more examples, so there is nothing to split.")
        owner = np.repeat(np.arange(self.num_clients), self.client_sizes)
        parts = []
        for part, chosen in (("train", ~is_test), ("test", is_test)):
            clients, sizes = np.unique(owner[chosen], return_counts=True)
            made = {**self.made, "part": part, "fraction": float(fraction), "split_seed": int(seed)}
            offsets = np.append(0, np.cumsum(sizes))
            parts.append(Partition(self.rows[chosen], offsets, names[clients], made))
        return parts[0], parts[1]

    def with_digests(self, arrays: Mapping[str, Any]) -> Partition:
        """The same, tied to the arrays that it was made by."""
        digests = {name: digest_of(array) for name, array in arrays.items()}
        return dataclasses.replace(self, made={**self.made, "digests": digests})

    def save(self, path: Path | str) -> Path:
        """Saves the partition as an .npz file, atomically, with a JSON record of how it was made.

        Args:
          path: the file, ending in .npz; an existing file is replaced.

        Raises:
          DataError: if the name has a different ending, or the file cannot be written.
        """
        path = expanded(path)
        if path.suffix != ".npz":
            raise DataError(
                f"A partition's file name must end in .npz, but it is {quoted(str(path))}."
            )
        arrays = {"rows": self.rows, "offsets": self.offsets}
        if self.names is not None:
            arrays["names"] = self.names
        words = json.dumps({"format": _FORMAT, **self.made}, sort_keys=True)
        arrays["made"] = np.frombuffer(words.encode(), np.uint8)
        unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with unfinished.open("xb") as file:
                    np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]
                    file.flush()
                    os.fsync(file.fileno())
                unfinished.replace(path)
            finally:
                unfinished.unlink(missing_ok=True)
        except OSError as error:
            raise DataError(f"Cannot write the partition {path}: {error.strerror}.") from None
        return path

    @classmethod
    def load(cls, path: Path | str) -> Partition:
        """Loads a partition written by `save`.

        Raises:
          DataError: if the file does not exist, is not a partition, or is damaged.
        """
        path = expanded(path)
        try:
            about = path.stat()
            if not stat.S_ISREG(about.st_mode):
                _refuse("it is not a file")
            with path.open("rb") as file:
                found = _read_arrays(file, about.st_size)
                made = json.loads(found.pop("made").tobytes().decode())
            return _checked(found, made)
        except OSError as error:
            raise DataError(f"Cannot read the partition {path}: {error.strerror}.") from None
        except Exception as error:  # zipfile, NumPy and JSON have many ways to say that it is none
            raise DataError(
                f"{path} is not a partition, or is damaged: {_phrase(error)}. Make it again with "
                "fedax data partition."
            ) from None


def from_owners(
    owner: np.ndarray,
    num_clients: int,
    partition: str,
    seed: int | None,
    names: np.ndarray | None = None,
) -> Partition:
    """The partition that gives each row to its owner; -1 stands for nobody."""
    rows, offsets = rows_of(owner, num_clients)
    return Partition(rows, offsets, names, {
        "partition": partition, "num_clients": int(num_clients), "num_examples": len(owner),
        "seed": None if seed is None else int(seed), "numpy": importlib.metadata.version("numpy"),
    })


def digest_of(array: Any) -> str:
    """SHA-256 of an array's numbers as int64 or, where they are no whole numbers, their bytes."""
    digest = hashlib.sha256()
    for start in range(0, len(array), _BLOCK):
        block = np.asarray(array[start : start + _BLOCK])
        if block.dtype.kind in "iu":
            block = block.astype("<i8")
        digest.update(np.ascontiguousarray(block).tobytes())
    return digest.hexdigest()


def _read_arrays(file: Any, size: int) -> dict[str, np.ndarray]:
    """The arrays of an archive, for which no more memory is taken than the file has bytes."""
    found = {}
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if sum(member.file_size for member in members) > size:
            _refuse("it is shorter than its header says")
        for member in members:
            with archive.open(member) as stored:
                shape, fortran, dtype = read_header(cast(BinaryIO, stored))
                content = stored.read()
                if fortran or dtype.hasobject or len(shape) != 1 or dtype.itemsize == 0:
                    _refuse(f"{member.filename} is not a one-dimensional array")
                if shape[0] * dtype.itemsize != len(content):
                    _refuse(f"{member.filename} is truncated")
                found[member.filename.removesuffix(".npy")] = np.frombuffer(content, dtype)
    return found


def _checked(found: dict[str, np.ndarray], made: Any) -> Partition:
    """A partition of what a file holds."""
    if not isinstance(made, dict) or made.pop("format", None) != _FORMAT:
        _refuse(f"it does not say that it is a {_FORMAT}")
    rows, offsets, names = found["rows"], found["offsets"], found.get("names")
    num_examples = made.get("num_examples")
    if not isinstance(num_examples, int) or rows.dtype != np.int64 or offsets.dtype != np.int64:
        _refuse("its rows and offsets are not whole numbers of 64 bits, or their count is missing")
    if not isinstance(made.get("digests", {}), dict):
        _refuse("its digests are not a dictionary")
    if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != len(rows):
        _refuse("its offsets do not go from 0 to the number of rows")
    if (np.diff(offsets) <= 0).any():
        _refuse("a client has no rows")
    if rows.min() < 0 or rows.max() >= num_examples:
        _refuse(f"a row is not one of {num_examples}")
    ascending = np.sort(rows)
    if (ascending[1:] == ascending[:-1]).any():
        _refuse("a row has two owners")
    if names is not None and (len(names) != len(offsets) - 1 or names.dtype.kind not in "iuU"):
        _refuse("it does not have one name for each client")
    if names is not None:
        unique, counts = np.unique(names, return_counts=True)
        if counts.max() > 1:
            _refuse(f"two clients have the name {quoted(unique[counts.argmax()].item())}")
    return Partition(rows, offsets, names, made)


def _refuse(why: str) -> NoReturn:
    raise ValueError(why)


def _phrase(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"it has no {error.args[0] if error.args else 'such array'}"
    return (str(error) or type(error).__name__).split("\n")[0][:300].rstrip(".")
