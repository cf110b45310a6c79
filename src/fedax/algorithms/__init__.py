"""The federated algorithms, one file a family.

Each file has the update rule and source of its methods; the loops over clients and local steps are
shared, in `fedax.clients` and `fedax.rounds`.
"""

from fedax.algorithms.centralised import centralised
from fedax.algorithms.compressed import compressed
from fedax.algorithms.elastic import elastic
from fedax.algorithms.fedadaptive import fedadabound, fedadagrad, fedadam, fedamsgrad, fedyogi
from fedax.algorithms.fedopt import fedavg, fedavgm, fedopt
from fedax.algorithms.fedprox import fedprox
from fedax.algorithms.fedsgd import fedsgd
from fedax.algorithms.local_adaptive import adaalter, local_adam, local_adaptive
from fedax.algorithms.local_update import (
    fomaml,
    local_sgd,
    local_update,
    lookahead,
    minibatch_sgd,
)
from fedax.algorithms.local_update_decay import local_update_decay
from fedax.algorithms.maml import maml
from fedax.algorithms.mime import cmime, mime, mimelite
from fedax.algorithms.mimemvr import mimemvr
from fedax.algorithms.pfnm import pfnm
from fedax.algorithms.scaffold import scaffold
from fedax.algorithms.server_only import server_only

__all__ = [
    "adaalter",
    "centralised",
    "cmime",
    "compressed",
    "elastic",
    "fedadabound",
    "fedadagrad",
    "fedadam",
    "fedamsgrad",
    "fedavg",
    "fedavgm",
    "fedopt",
    "fedprox",
    "fedsgd",
    "fedyogi",
    "fomaml",
    "local_adam",
    "local_adaptive",
    "local_sgd",
    "local_update",
    "local_update_decay",
    "lookahead",
    "maml",
    "mime",
    "mimelite",
    "mimemvr",
    "minibatch_sgd",
    "pfnm",
    "scaffold",
    "server_only",
]
