"""Whether a store holds what a part of a data set must hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedax.data.catalogue.kinds import Expected
from fedax.data.downloads.files import Progress, nothing
from fedax.data.errors import DataError
from fedax.data.federated_dataset import FederatedDataset
from fedax.data.store import open_store, read_store_table

_WHITE = 255
# Means are given to four places.
_TOLERANCE = 5e-5 + 1e-9
_ROWS = 4096


def require_expected(
    folder: Path, expected: Expected, what: str, progress: Progress = nothing
) -> None:
    """Raises a clear error unless a store holds what it must.

    Args:
      folder: the store's.
      expected: what must be in it.
      what: it is called.
      progress: of reading it.

    Raises:
      DataError: it does not; the sentence has both numbers.
    """
    data = open_store(folder)
    counted = {
        "clients": (data.num_clients, expected.num_clients),
        "examples": (data.num_examples, expected.num_examples),
    }
    for noun, (found, wanted) in counted.items():
        if wanted is not None and found != wanted:
            raise _differs(what, f"{found:,} {noun}", f"{wanted:,}")
    needed = {"y": (1, expected.label_counts or expected.first_labels), "x": (4, expected.means)}
    for name, (axes, is_needed) in needed.items():
        array = data.arrays.get(name)
        if is_needed and (array is None or array.dtype.kind not in "iu" or array.ndim != axes):
            there = [f"{key} {a.dtype}{list(a.shape[1:])}" for key, a in data.arrays.items()]
            wanted = "whole numbers y" if name == "y" else "images x of whole numbers"
            raise _differs(what, f"arrays {', '.join(there)}", wanted)
    if expected.label_counts:
        counts = np.bincount(data.arrays["y"]).tolist()
        if counts != list(expected.label_counts):
            raise _differs(what, f"labels in the numbers {counts}", f"{expected.label_counts}")
    if expected.first_labels:
        first = data.arrays["y"][: len(expected.first_labels)].tolist()
        if first != list(expected.first_labels):
            raise _differs(what, f"first labels {first}", f"{list(expected.first_labels)}")
    if expected.means:
        means = pixel_means(data, what, progress)
        near = len(means) == len(expected.means) and np.allclose(
            means, expected.means, rtol=0, atol=_TOLERANCE
        )
        if not near:
            raise _differs(what, f"means {np.round(means, 4).tolist()}", f"{expected.means}")
    table = read_store_table(folder)["arrays"]
    for name, digest in expected.digests.items():
        found = table.get(name, {}).get("sha256", "no such array")
        if found != digest:
            raise _differs(what, f"{name!r} with the SHA-256 {found[:16]}", digest[:16])


def pixel_means(
    data: FederatedDataset, what: str = "images", progress: Progress = nothing
) -> np.ndarray:
    """The mean of the pixels `x` by channel, 255 counting 1."""
    x = data.arrays["x"]
    total = np.zeros(x.shape[-1])
    for row in range(0, len(x), _ROWS):
        total += x[row : row + _ROWS].sum(axis=(0, 1, 2), dtype=np.int64)
        progress(f"checking {what}", min(row + _ROWS, len(x)), len(x))
    return total / (x[0, ..., 0].size * len(x) * _WHITE)


def _differs(what: str, found: str, wanted: str) -> DataError:
    return DataError(
        f"The files are not those of {what}: there are {found}, but there must be {wanted}. "
        "Nothing was kept."
    )
