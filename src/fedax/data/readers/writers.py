"""Images by the persons who wrote them: MNIST's digits, and a part of LEAF's FEMNIST."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from fedax.data.errors import DataError
from fedax.data.readers import idx
from fedax.data.readers.clients import Client, Clients, reading, regular_file
from fedax.data.readers.numpy import read_arrays
from fedax.data.store import open_store

# Of a row of QMNIST's tables: the digit and the writer; there are 8 columns.
_DIGIT, _WRITER, _COLUMNS = 0, 2, 8
# FEMNIST's arrays: one entry an image, or one a writer.
_IMAGES = {"images": 3, "labels": 1, "writer": 1, "split": 1}
_WRITERS = {"writer_complete": 1, "writer_cut": 1}
_SPLITS = {"train": 0, "test": 1}


def read_mnist_writers(store: Path, path: Path | str, split: str) -> Clients:
    """Reads MNIST's digits by writer, in the order of the writers' numbers.

    Args:
      store: MNIST's training or test part, as fedax saves it.
      path: who wrote them: QMNIST's `qmnist-train-labels-idx2-int`, whose first rows are those of
        MNIST in order, or an .npz file with the arrays `train_label`, `train_writer`,
        `test_label`, `test_writer`.
      split: "train" or "test", for an .npz file.

    Returns:
      Clients "0000", "0001" and so on with `x` and `y` as in MNIST.

    Raises:
      DataError: if a file does not exist, is malformed, or is not of these digits.
    """
    file = regular_file(path)

    def read(start: int) -> Iterator[Client]:
        pool = open_store(store).arrays
        labels, writers = _mnist_table(file, split)
        count = len(pool["y"])
        if len(labels) < count or (labels[:count] != pool["y"]).any():
            raise DataError(f"{file} is not of these digits: its labels differ from MNIST's.")
        for writer in np.unique(writers[:count]).tolist()[start:]:
            rows = np.flatnonzero(writers[:count] == writer)
            yield f"{writer:04}", {name: array[rows] for name, array in pool.items()}

    return Clients(read, [file])


def read_femnist_writers(path: Path | str, split: str) -> Clients:
    """Reads a part of LEAF's FEMNIST: the writers all of whose images are in the file.

    Args:
      path: an .npz file with the arrays `images` uint8 [n, 28, 28] (paper is 255), `labels` (0 to
        61), `writer` (into `writer_ids`) and `split` (0: LEAF's training part, 1: its test part),
        and for each writer `writer_ids`, `writer_complete` and `writer_cut`.
      split: "train" or "test".

    Returns:
      Clients with `x` [n_i, 28, 28, 1], `y`, and `cut`, a bool: whether LEAF may have left out
      images of this writer to fill a file's quota.

    Raises:
      DataError: if the file does not exist or is malformed.
    """
    file = regular_file(path)

    def read(start: int) -> Iterator[Client]:
        arrays = read_arrays(file)
        with reading(file, "a file of FEMNIST's writers", ValueError, LookupError):
            _require_femnist(arrays)
        chosen = np.flatnonzero(arrays["writer_complete"]).tolist()
        for number in chosen[start:]:
            rows = np.flatnonzero(
                (arrays["writer"] == number) & (arrays["split"] == _SPLITS[split])
            )
            yield str(arrays["writer_ids"][number]), {
                "x": arrays["images"][rows][..., None],
                "y": arrays["labels"][rows].astype(np.int32),
                "cut": bool(arrays["writer_cut"][number]),
            }

    return Clients(read, [file])


def _mnist_table(path: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Labels and writers, in MNIST's order."""
    if path.suffix == ".npz":
        arrays = read_arrays(path)
        names = [f"{split}_label", f"{split}_writer"]
        with reading(path, "a file of MNIST's writers", ValueError):
            _require_whole(arrays, dict.fromkeys(names, 1))
        return arrays[names[0]], arrays[names[1]].astype(np.int64)
    with ExitStack() as stack:
        file, shape, kind = idx.opened(stack, path)
        with reading(path, "one of QMNIST's tables", ValueError, EOFError, gzip.BadGzipFile):
            if len(shape) != 2 or shape[1] != _COLUMNS or kind != np.dtype(">i4"):
                raise ValueError(f"it is {kind}{list(shape)}, not int32[n, {_COLUMNS}]")
            content = file.read(shape[0] * _COLUMNS * kind.itemsize)
            table = np.frombuffer(content, kind).reshape(shape).astype(np.int64)
            if table[:, _WRITER].min() < 0:
                raise ValueError("a writer's number is negative")
    return table[:, _DIGIT], table[:, _WRITER]


def _require_femnist(arrays: Mapping[str, np.ndarray]) -> None:
    _require_whole(arrays, {**_IMAGES, **_WRITERS})
    text = arrays.get("writer_ids", np.zeros(0))
    if text.dtype.kind != "U":
        raise ValueError("its 'writer_ids' are not text")
    if arrays["images"].dtype != np.uint8 or arrays["images"].shape[1:] != (28, 28):
        raise ValueError("its 'images' are not uint8[n, 28, 28]")
    for names in (list(_IMAGES), ["writer_ids", *_WRITERS]):
        if len({len(arrays[name]) for name in names}) > 1:
            raise ValueError(f"{', '.join(names)} have different lengths")
    if len(set(text.tolist())) < len(text):
        raise ValueError("two writers have the same name")
    writer, labels = arrays["writer"], arrays["labels"]
    if writer.max() >= len(text) or labels.max() > 61 or arrays["split"].max() > 1:
        raise ValueError("it has a writer, label or part that does not exist")


def _require_whole(arrays: Mapping[str, np.ndarray], axes: Mapping[str, int]) -> None:
    """Raises an error unless these arrays are there, of non-negative whole numbers."""
    for name, number in axes.items():
        array = arrays.get(name)
        if array is None or array.ndim != number or array.dtype.kind not in "bu":
            raise ValueError(f"it lacks the array {name!r} of non-negative whole numbers")
