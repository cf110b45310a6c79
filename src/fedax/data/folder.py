"""The folder of downloaded data sets."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import platformdirs

from fedax.data import digits, shakespeare
from fedax.data.catalogue import PRODUCTS, ways_to_get
from fedax.data.errors import DataError
from fedax.data.federated_dataset import FederatedDataset
from fedax.data.readers.clients import regular_file
from fedax.data.store import open_store
from fedax.outside.paths import expanded
from fedax.theory.tables import read_table
from fedax.validate import check_choice

VARIABLE = "FEDAX_DATA"
TABLE = "dataset.json"
SPLITS = ("train", "test")


class Splits(NamedTuple):
    """A data set for training and one for testing."""

    train: FederatedDataset
    test: FederatedDataset


def data_folder() -> Path:
    """The folder of data sets: `$FEDAX_DATA`, or else `data` in fedax's cache folder."""
    given = os.environ.get(VARIABLE)
    if given:
        return expanded(given).absolute()
    return platformdirs.user_cache_path("fedax", appauthor=False) / "data"


def load_dataset(name: str) -> Splits:
    """Opens a data set by name, memory-mapped: rows are read only when they are used.

    Centralised data, such as `cifar10`, have a single client named "pool".

    Args:
      name: see `fedax list datasets`.

    Raises:
      ValueError: if there is no such data set. The message suggests the nearest name.
      DataError: if it is not available locally or is damaged. The message says how to get it.

    Example:
      >>> train, test = load_dataset("digits")
      >>> train.num_examples, test.num_examples, train.arrays["x"].shape[1:]
      (1437, 360, (8, 8, 1))
    """
    check_choice("data set", name, [*EMBEDDED, *PRODUCTS])
    if name in EMBEDDED:
        return EMBEDDED[name].load()
    folder = data_folder() / name
    if not is_at_hand(name):
        raise DataError(f"The data set {name} is not in {data_folder()}. {ways_to_get(name)}")
    return Splits(*(open_store(folder / split) for split in SPLITS))


def is_at_hand(name: str) -> bool:
    """Whether a data set can be loaded, as far as that can be seen without opening it."""
    return name in EMBEDDED or (data_folder() / name / TABLE).is_file()


def read_dataset_table(folder: Path) -> Mapping[str, Any]:
    """The record of a data set's origin, saved beside its stores.

    Raises:
      DataError: if there is no record, or it cannot be read.
    """
    try:
        table = read_table(regular_file(folder / TABLE))
    except DataError:
        raise
    except (OSError, ValueError) as error:
        raise DataError(f"{folder / TABLE} cannot be read: {error}.") from None
    if not isinstance(table, Mapping):
        raise DataError(
            f"{folder / TABLE} has been modified since fedax wrote it. Get the data set again."
        )
    return table


def _plays() -> Splits:
    return Splits(*(
        FederatedDataset(clients.arrays, clients.offsets, np.asarray(clients.names))
        for clients in shakespeare.load()
    ))


def _digits() -> Splits:
    return Splits(*(
        FederatedDataset(arrays, np.array([0, len(arrays["y"])]), np.array(["pool"]))
        for arrays in digits.load()
    ))


class Embedded(NamedTuple):
    """A data set that is part of fedax."""

    description: str
    load: Callable[[], Splits]


EMBEDDED: Mapping[str, Embedded] = {
    "shakespeare": Embedded(
        "the roles of 37 plays; the first 80% of each role's lines for training", _plays
    ),
    "digits": Embedded("1,797 handwritten digits, 8 x 8, as in scikit-learn", _digits),
}
