"""Federated data sets: what they are, how they are read, which ones ship."""

from fedax.data.cohort_data import ClientData, CohortData, CohortReader
from fedax.data.federated_dataset import FederatedDataset

__all__ = ["ClientData", "CohortData", "CohortReader", "FederatedDataset"]
