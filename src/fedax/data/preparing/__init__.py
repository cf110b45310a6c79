"""Prepares tables with missing values and text as arrays for a model."""

from fedax.data.preparing.fitting import fit_table
from fedax.data.preparing.table import Column, Label, Table

__all__ = ["Column", "Label", "Table", "fit_table"]
