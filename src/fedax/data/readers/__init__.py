"""Readers of common formats of federated data, one module per format.

Each yields clients one after the other, in bounded memory, for `fedax.data.convert` to write into a
store. No reader executes code from a file or follows its links to other files.
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
