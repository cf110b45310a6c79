"""Federated data sets: the type, readers for common formats, and built-in data sets.

Covers everything from files and arrays to a cohort's examples on a device.
"""

from fedax.data.checking import check_data
from fedax.data.cohort_data import ClientData, ClientExamples, CohortData, CohortReader
from fedax.data.errors import DataError
from fedax.data.federated_dataset import FederatedDataset
from fedax.data.folder import Splits, data_folder, load_dataset
from fedax.data.getting import get_dataset
from fedax.data.hold_out import hold_out
from fedax.data.reading import read_data
from fedax.data.store import check_store, open_store
from fedax.data.store_writer import StoreWriter, convert

__all__ = [
    "ClientData",
    "ClientExamples",
    "CohortData",
    "CohortReader",
    "DataError",
    "FederatedDataset",
    "Splits",
    "StoreWriter",
    "check_data",
    "check_store",
    "convert",
    "data_folder",
    "get_dataset",
    "hold_out",
    "load_dataset",
    "open_store",
    "read_data",
]
