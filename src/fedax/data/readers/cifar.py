"""CIFAR-10 and CIFAR-100 as published: binary records or Python pickles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedax.data.budget import rows_at_a_time
from fedax.data.errors import DataError
from fedax.data.readers.clients import POOL, Client, Clients, reading, regular_file
from fedax.data.readers.unpickle import unpickled
from fedax.validate import quoted

_PIXELS = 3 * 32 * 32
# Of a data set with so many classes: array -> (key in a pickled batch, number of classes). A
# binary record begins with these labels.
_LABELS = {
    10: {"y": ("labels", 10)},
    100: {"coarse": ("coarse_labels", 20), "y": ("fine_labels", 100)},
}
# A whole batch is in memory while it is read. The largest published one has 50,000 images.
_MOST_BYTES = 2**29


def read_cifar_binary(paths: Sequence[Path | str] | Path | str, num_classes: int = 10) -> Clients:
    """Reads binary batches, in order, as a single client "pool".

    Args:
      paths: such as `data_batch_1.bin` to `data_batch_5.bin`, or one file.
      num_classes: 10, or 100.

    Returns:
      `x` uint8 [n, 32, 32, 3] and `y` int32 [n]; for CIFAR-100 also `coarse`.

    Raises:
      DataError: if a file does not exist or is malformed.
    """
    return _clients(paths, num_classes, _binary)


def read_cifar_pickle(paths: Sequence[Path | str] | Path | str, num_classes: int = 10) -> Clients:
    """Reads pickled batches likewise, as data only: no code in them is executed.

    Args:
      paths: such as `data_batch_1` to `data_batch_5`, or `train`.
      num_classes: 10, or 100.

    Returns:
      As for `read_cifar_binary`.

    Raises:
      DataError: if a file does not exist, is malformed, or holds anything except dictionaries,
          lists, numbers, text and NumPy arrays.
    """
    return _clients(paths, num_classes, _pickled)


def _clients(paths: Any, num_classes: int, read_batch: Any) -> Clients:
    if num_classes not in _LABELS:
        raise DataError(f"num_classes must be 10 or 100, but is {quoted(num_classes)}.")
    files = [paths] if isinstance(paths, Path | str) else list(paths)
    found = [regular_file(path) for path in files]
    if not found:
        raise DataError("paths must name at least one file, but is empty.")

    def read(start: int) -> Iterator[Client]:
        for path in [] if start else found:
            for x, labels in read_batch(path, _LABELS[num_classes]):
                for key, (_, classes) in _LABELS[num_classes].items():
                    _check_labels(path, key, labels[key], classes)
                images = x.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
                yield POOL, {"x": images, **{key: y.astype(np.int32) for key, y in labels.items()}}

    return Clients(read, found, 1)


def _binary(path: Path, labels: Mapping[str, Any]) -> Iterator[tuple[np.ndarray, dict[str, Any]]]:
    """Images and labels of records: label bytes, then 3,072 bytes."""
    length = len(labels) + _PIXELS
    size = path.stat().st_size
    if not size or size % length:
        raise DataError(
            f"{path} is damaged, or not a binary batch of CIFAR with {len(labels)} "
            f"label{'s' * (len(labels) > 1)}: its {size:,} bytes are not a multiple of {length:,}."
        )
    with reading(path, "a binary batch of CIFAR"), path.open("rb") as file:
        while content := file.read(length * rows_at_a_time(length)):
            if len(content) % length:
                raise DataError(f"{path} became shorter while it was being read.")
            records = np.frombuffer(content, np.uint8).reshape(-1, length)
            yield records[:, len(labels):], {key: records[:, i] for i, key in enumerate(labels)}


def _pickled(path: Path, labels: Mapping[str, Any]) -> Iterator[tuple[np.ndarray, dict[str, Any]]]:
    """Images and labels of a pickled dictionary."""
    with reading(path, "a pickled batch of CIFAR", ValueError):
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"it is larger than {_MOST_BYTES:,} bytes")
        batch = unpickled(path.read_bytes())
        if not isinstance(batch, dict):
            raise ValueError("it does not hold a dictionary")
        plain = {key.decode("latin-1") if isinstance(key, bytes) else key: value
                 for key, value in batch.items()}
        x = plain.get("data")
        if not isinstance(x, np.ndarray) or x.dtype != np.uint8 or x.shape[1:] != (_PIXELS,):
            raise ValueError(f"its 'data' is not uint8[n, {_PIXELS}]")
        found = {}
        for key, (name, _) in labels.items():
            values = plain.get(name)
            if not isinstance(values, list) or not all(type(value) is int for value in values):
                raise ValueError(f"its {name!r} is not a list of whole numbers")
            if len(values) != len(x) or not values:
                raise ValueError(f"it has {len(x)} images and {len(values)} {name}")
            if max(values) >= 2**31 or min(values) < -(2**31):
                raise ValueError(f"its {name!r} has numbers that are not labels")
            found[key] = np.array(values, np.int64)
    yield x, found


def _check_labels(path: Path, key: str, labels: np.ndarray, classes: int) -> None:
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if wrong.size:
        raise DataError(
            f"{path} is damaged, or from a different data set: the label {key!r} of image "
            f"{wrong[0]} is {labels[wrong[0]]}, but the classes are 0 to {classes - 1}."
        )
