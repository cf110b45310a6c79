"""fedax: federated optimization in JAX.

Every method is written once, from pieces that combine, and checked against its mathematics.

Example:
  >>> import fedax
  >>> task = fedax.load_task("shakespeare", model="small")
  >>> algorithm = fedax.fedyogi(task.model, 1.0, 0.01, batch_size=4, num_local_steps=2)
  >>> result = fedax.train(task, algorithm, num_rounds=1, evaluate_every=0)
"""

from fedax import base_optimizers, optimizers, schedules, theory
from fedax.algorithm import (
    Exchange,
    FederatedAlgorithm,
    Model,
    ModelUpdate,
    Participation,
    Reply,
)
from fedax.algorithms import (
    adaalter,
    centralised,
    cmime,
    elastic,
    fedadabound,
    fedadagrad,
    fedadam,
    fedamsgrad,
    fedavg,
    fedavgm,
    fedopt,
    fedprox,
    fedsgd,
    fedyogi,
    fomaml,
    local_adam,
    local_adaptive,
    local_sgd,
    local_update,
    local_update_decay,
    lookahead,
    maml,
    mime,
    mimelite,
    mimemvr,
    minibatch_sgd,
    pfnm,
    scaffold,
    server_only,
)
from fedax.base_optimizers import BaseOptimizer
from fedax.communication import communication
from fedax.data import ClientData, FederatedDataset
from fedax.dissimilarity import dissimilarity
from fedax.evaluation import evaluate, evaluate_clients
from fedax.history import History
from fedax.mesh import client_mesh, cores_as_devices
from fedax.models.supervised import classification, regression
from fedax.quadratic_model import advise, quadratic_model
from fedax.sampling import part_of_the_day, sampler
from fedax.simulate import (
    DivergedError,
    RoundReport,
    Task,
    TrainingState,
    TrainResult,
    simulate,
    train,
)
from fedax.tasks import load_task, quadratic_task

__version__ = "0.4.1"

__all__ = [
    "BaseOptimizer",
    "ClientData",
    "DivergedError",
    "Exchange",
    "FederatedAlgorithm",
    "FederatedDataset",
    "History",
    "Model",
    "ModelUpdate",
    "Participation",
    "Reply",
    "RoundReport",
    "Task",
    "TrainResult",
    "TrainingState",
    "adaalter",
    "advise",
    "base_optimizers",
    "centralised",
    "classification",
    "client_mesh",
    "cmime",
    "communication",
    "cores_as_devices",
    "dissimilarity",
    "elastic",
    "evaluate",
    "evaluate_clients",
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
    "load_task",
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
    "optimizers",
    "part_of_the_day",
    "pfnm",
    "quadratic_model",
    "quadratic_task",
    "regression",
    "sampler",
    "scaffold",
    "schedules",
    "server_only",
    "simulate",
    "theory",
    "train",
]
