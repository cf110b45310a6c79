"""fedax: federated optimization in JAX.

Every method is written once, from pieces that combine, and checked against its mathematics.

Example:
  >>> import fedax
  >>> task = fedax.load_task("shakespeare", model="small")
  >>> algorithm = fedax.fedyogi(task.model, 1.0, 0.01, batch_size=4, num_local_steps=2)
  >>> result = fedax.train(task, algorithm, num_rounds=1, evaluate_every=0)
"""

from fedax import optimizers, schedules
from fedax.algorithm import Exchange, FederatedAlgorithm, Model, Participation, Reply
from fedax.algorithms.fedopt import (
    fedadagrad,
    fedadam,
    fedavg,
    fedavgm,
    fedopt,
    fedyogi,
)
from fedax.data import ClientData, FederatedDataset
from fedax.evaluation import evaluate, evaluate_clients
from fedax.history import History
from fedax.models.supervised import classification, regression
from fedax.simulate import (
    DivergedError,
    RoundReport,
    Task,
    TrainingState,
    TrainResult,
    simulate,
    train,
)
from fedax.tasks import load_task

__version__ = "0.1.0"

__all__ = [
    "ClientData",
    "DivergedError",
    "Exchange",
    "FederatedAlgorithm",
    "FederatedDataset",
    "History",
    "Model",
    "Participation",
    "Reply",
    "RoundReport",
    "Task",
    "TrainResult",
    "TrainingState",
    "classification",
    "evaluate",
    "evaluate_clients",
    "fedadagrad",
    "fedadam",
    "fedavg",
    "fedavgm",
    "fedopt",
    "fedyogi",
    "load_task",
    "optimizers",
    "regression",
    "schedules",
    "simulate",
    "train",
]
