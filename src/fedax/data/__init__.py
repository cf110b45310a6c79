"""Federated data sets: what they are, how they are read, which ones ship.

From files and arrays to the examples of a cohort on a device; no models and no training.
"""

from fedax.data.cohort_data import ClientData, ClientExamples, CohortData, CohortReader
from fedax.data.federated_dataset import FederatedDataset
from fedax.data.hold_out import hold_out

__all__ = [
    "ClientData",
    "ClientExamples",
    "CohortData",
    "CohortReader",
    "FederatedDataset",
    "hold_out",
]
