"""Readers of the formats that federated data come in, one file a format.

Each gives clients one after the other, in bounded memory, for `fedax.data.convert` to write into
a store; none executes what a file holds, and none follows it out of itself.
"""

from fedax.data.readers.arrow import read_huggingface, read_parquet, read_saved_huggingface
from fedax.data.readers.cifar import read_cifar_binary, read_cifar_pickle
from fedax.data.readers.clients import Clients
from fedax.data.readers.csv import read_csv
from fedax.data.readers.hdf5 import read_hdf5
from fedax.data.readers.idx import read_idx
from fedax.data.readers.leaf import read_leaf
from fedax.data.readers.numpy import read_numpy
from fedax.data.readers.sqlite import read_sqlite

__all__ = [
    "Clients",
    "read_cifar_binary",
    "read_cifar_pickle",
    "read_csv",
    "read_hdf5",
    "read_huggingface",
    "read_idx",
    "read_leaf",
    "read_numpy",
    "read_parquet",
    "read_saved_huggingface",
    "read_sqlite",
]
