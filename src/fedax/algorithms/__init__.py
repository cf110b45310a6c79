"""The federated algorithms, one file a family.

Each file has the update rule and source of its methods; the loops over clients and local steps are
shared, in `fedax.clients` and `fedax.rounds`.
"""

from fedax.algorithms.afl import afl
from fedax.algorithms.apfl import apfl
from fedax.algorithms.centralised import centralised
from fedax.algorithms.compressed import compressed
from fedax.algorithms.ditto import ditto
from fedax.algorithms.elastic import elastic
from fedax.algorithms.fedac import fedac
from fedax.algorithms.fedadaptive import fedadabound, fedadagrad, fedadam, fedamsgrad, fedyogi
from fedax.algorithms.fedadmm import fedadmm
from fedax.algorithms.feddyn import feddyn
from fedax.algorithms.fedexp import fedexp
from fedax.algorithms.fedlin import fedlin
from fedax.algorithms.fednova import fednova
from fedax.algorithms.fedopt import fedavg, fedavgm, fedopt
from fedax.algorithms.fedprox import fedprox
from fedax.algorithms.fedrep import fedrep
from fedax.algorithms.fedsgd import fedsgd
from fedax.algorithms.ifca import ifca
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
from fedax.algorithms.perfedavg import perfedavg
from fedax.algorithms.personal import personal
from fedax.algorithms.pfedme import pfedme
from fedax.algorithms.pfnm import pfnm
from fedax.algorithms.plateau import plateau_lengths
from fedax.algorithms.private import private
from fedax.algorithms.qfedavg import qfedavg
from fedax.algorithms.scaffnew import scaffnew
from fedax.algorithms.scaffold import scaffold
from fedax.algorithms.server_only import server_only
from fedax.algorithms.statistics import batch_statistics
from fedax.algorithms.term import term

__all__ = [
    "adaalter",
    "afl",
    "apfl",
    "batch_statistics",
    "centralised",
    "cmime",
    "compressed",
    "ditto",
    "elastic",
    "fedac",
    "fedadabound",
    "fedadagrad",
    "fedadam",
    "fedadmm",
    "fedamsgrad",
    "fedavg",
    "fedavgm",
    "feddyn",
    "fedexp",
    "fedlin",
    "fednova",
    "fedopt",
    "fedprox",
    "fedrep",
    "fedsgd",
    "fedyogi",
    "fomaml",
    "ifca",
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
    "perfedavg",
    "personal",
    "pfedme",
    "pfnm",
    "plateau_lengths",
    "private",
    "qfedavg",
    "scaffnew",
    "scaffold",
    "server_only",
    "term",
]
