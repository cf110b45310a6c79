"""Partitions: which client owns which rows of a data set that has no clients of its own.

Functions of labels that give a `Partition`, which is saved with how it was made. All are drawn
from NumPy's PCG64 with a seed; docs/partitions.md has the equations.
"""

from fedax.data.partitions.dirichlet import dirichlet, dirichlet_by_class, dirichlet_lognormal
from fedax.data.partitions.pachinko import pachinko
from fedax.data.partitions.partition import Partition
from fedax.data.partitions.plain import by_key, iid, shards
from fedax.data.partitions.words import PARTITIONS, parse_partition

__all__ = [
    "PARTITIONS",
    "Partition",
    "by_key",
    "dirichlet",
    "dirichlet_by_class",
    "dirichlet_lognormal",
    "iid",
    "pachinko",
    "parse_partition",
    "shards",
]
