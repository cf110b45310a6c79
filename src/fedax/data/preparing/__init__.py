"""Tables as users have them, with gaps and text, made into the arrays that a model takes."""

from fedax.data.preparing.fitting import fit_table
from fedax.data.preparing.table import Column, Label, Table

__all__ = ["Column", "Label", "Table", "fit_table"]
