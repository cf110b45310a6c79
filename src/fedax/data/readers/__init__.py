"""Readers of the formats that federated data come in, one file a format.

Each gives clients one after the other, in bounded memory, for `fedax.data.convert` to write into
a store; none executes what a file holds, and none follows it out of itself.
"""

from fedax.data.readers.clients import Clients
from fedax.data.readers.hdf5 import read_hdf5

__all__ = ["Clients", "read_hdf5"]
