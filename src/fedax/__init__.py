"""fedax: federated optimization in JAX.

Train a model on data that stays with many clients, and compare methods for it.

Example:
  >>> import fedax
  >>> task = fedax.load_task("shakespeare", model="small")
  >>> algorithm = fedax.fedyogi(task.model, 1.0, 0.01, batch_size=4, num_local_steps=2)
  >>> result = fedax.train(task, algorithm, num_rounds=1, evaluate_every=0)
"""

from fedax.devices import ending

if ending.is_command_line():  # what follows takes seconds to import
    ending.open_what_is_closed()
    ending.set_guard()

from fedax import attacks, codecs, optimizers, pictures, privacy, robust_means, theory
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
    afl,
    apfl,
    attacked,
    batch_statistics,
    centralised,
    cmime,
    compressed,
    ditto,
    elastic,
    fedac,
    fedadabound,
    fedadagrad,
    fedadam,
    fedadmm,
    fedamsgrad,
    fedavg,
    fedavgm,
    feddyn,
    fedexp,
    fedlin,
    fednova,
    fedopt,
    fedprox,
    fedrep,
    fedsgd,
    fedyogi,
    fomaml,
    ifca,
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
    perfedavg,
    personal,
    pfedme,
    pfnm,
    plateau_lengths,
    private,
    qfedavg,
    robust,
    scaffnew,
    scaffold,
    server_only,
    term,
)
from fedax.clients.local_steps import LocalResult
from fedax.clients.local_training import LocalMessage, LocalOptions, LocalTraining
from fedax.contract import audit_privacy, check_algorithm
from fedax.data import ClientData, CohortReader, DataError, FederatedDataset, read_data
from fedax.data.preparing import Table, fit_table
from fedax.data.task import Task
from fedax.data.text import Vocabulary
from fedax.devices.mesh import client_mesh, cores_as_devices
from fedax.experiment.folder import RunError
from fedax.experiment.load import load_run
from fedax.experiment.params import load_params, save_params
from fedax.experiment.train import TrainResult, train
from fedax.factories import factory, partition
from fedax.measures.communication import communication
from fedax.measures.dissimilarity import dissimilarity
from fedax.measures.quadratic_model import advise, quadratic_model
from fedax.mistakes import AlgorithmError, ModelError
from fedax.models import scores
from fedax.models.next_token import next_token
from fedax.models.supervised import classification, regression
from fedax.optimizers import BaseOptimizer, base_optimizers, schedules
from fedax.outside.version import __version__ as __version__
from fedax.report.results import TableError
from fedax.report.results_table import ResultsTable
from fedax.rounds.client_metrics import ClientMetrics
from fedax.rounds.cohort import RoundInfo, run_round
from fedax.rounds.evaluation import evaluate, evaluate_clients
from fedax.rounds.history import History
from fedax.rounds.options import SimulateOptions
from fedax.rounds.own_models import evaluate_own_models
from fedax.rounds.personalization import evaluate_personalized
from fedax.rounds.predicting import predict
from fedax.rounds.report import DivergedError, RoundReport
from fedax.rounds.sampling import part_of_the_day, sampler
from fedax.rounds.simulate import simulate
from fedax.rounds.state import TrainingState, initial_state
from fedax.rounds.stopping import EarlyStopping
from fedax.tasks.quadratics import quadratic_task
from fedax.tasks.registry import load_task
from fedax.tuning.load import LoadedSweep, load_sweep
from fedax.tuning.results import table
from fedax.tuning.searching import SearchResult, search
from fedax.tuning.sweep import SweepResult, sweep

__all__ = [
    "AlgorithmError",
    "BaseOptimizer",
    "ClientData",
    "ClientMetrics",
    "CohortReader",
    "DataError",
    "DivergedError",
    "EarlyStopping",
    "Exchange",
    "FederatedAlgorithm",
    "FederatedDataset",
    "History",
    "LoadedSweep",
    "LocalMessage",
    "LocalOptions",
    "LocalResult",
    "LocalTraining",
    "Model",
    "ModelError",
    "ModelUpdate",
    "Participation",
    "Reply",
    "ResultsTable",
    "RoundInfo",
    "RoundReport",
    "RunError",
    "SearchResult",
    "SimulateOptions",
    "SweepResult",
    "Table",
    "TableError",
    "Task",
    "TrainResult",
    "TrainingState",
    "Vocabulary",
    "adaalter",
    "advise",
    "afl",
    "apfl",
    "attacked",
    "attacks",
    "audit_privacy",
    "base_optimizers",
    "batch_statistics",
    "centralised",
    "check_algorithm",
    "classification",
    "client_mesh",
    "cmime",
    "codecs",
    "communication",
    "compressed",
    "cores_as_devices",
    "dissimilarity",
    "ditto",
    "elastic",
    "evaluate",
    "evaluate_clients",
    "evaluate_own_models",
    "evaluate_personalized",
    "factory",
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
    "fit_table",
    "fomaml",
    "ifca",
    "initial_state",
    "load_params",
    "load_run",
    "load_sweep",
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
    "next_token",
    "optimizers",
    "part_of_the_day",
    "partition",
    "perfedavg",
    "personal",
    "pfedme",
    "pfnm",
    "pictures",
    "plateau_lengths",
    "predict",
    "privacy",
    "private",
    "qfedavg",
    "quadratic_model",
    "quadratic_task",
    "read_data",
    "regression",
    "robust",
    "robust_means",
    "run_round",
    "sampler",
    "save_params",
    "scaffnew",
    "scaffold",
    "schedules",
    "scores",
    "search",
    "server_only",
    "simulate",
    "sweep",
    "table",
    "term",
    "theory",
    "train",
]
