"""The board's tasks, methods and settings: what `scripts/board.py` trains."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import fedax
from fedax.algorithms import registry
from fedax.models import pooled_cnn
from fedax.models.preprocessing import preprocessed, scaled, standardised
from fedax.tasks.cifar import CHANNELS

NOTEBOOK = Path(__file__).resolve().parent.parent / "docs" / "notebook"
CELLS, PAGE = NOTEBOOK / "board.jsonl", NOTEBOOK / "board.md"
# Cells that were drawn at random and run again, of which there are `NUM_AGAIN`.
AGAIN, NUM_AGAIN = NOTEBOOK / "board-again.jsonl", 12
TUNING_SEED, SEEDS = 0, (1, 2, 3)
EVALUATIONS = 20
# A setting whose accuracy is so near to the best one's is as good: ease of tuning.
NEAR = 0.02
NUM_RATES, NUM_OTHERS = 4, 3
NUM_SETTINGS = NUM_RATES * NUM_OTHERS

Cell = dict[str, Any]


class Board(NamedTuple):
    """A task of the board.

    Attributes:
      load: loads the task.
      rounds, cohort: of every run.
      training: local training.
      rate: of clients that plain SGD bears; all grids lie around it, see `settings`.
      target: accuracy to be reached, fixed before the board was run. Four cells of digits with
        logistic regression had been tried by then, and some rates of FedAvg on the other tasks,
        with the tuning seed on validation data; on MNIST three cells of longer runs, too.
      words: the task in a sentence.
    """

    load: Callable[..., fedax.Task]
    rounds: int
    cohort: int
    training: Mapping[str, Any]
    rate: float
    target: float
    words: str


def small_images() -> fedax.Task:
    """Images of 20 clients, each four pixels as one, with a CNN of 38,570 parameters."""
    train = fedax.load_task(
        "cifar10", "logistic", preprocessing="plain", num_clients=100, partition="dirichlet(0.3)"
    ).train.take(np.arange(20))
    whole = np.asarray(train.arrays["x"][:], np.float32)
    halved = whole.reshape(-1, 16, 2, 16, 2, 3).mean((2, 4))
    data = dataclasses.replace(train, arrays={**train.arrays, "x": halved})
    network = pooled_cnn(
        (16, 16, 3), 10, num_filters=(16, 32), kernel_size=3, hidden_sizes=(64,),
        initialization="pytorch",
    )
    steps = [scaled(255.0), standardised(*CHANNELS[10])]
    model = preprocessed(network, training=steps, evaluation=steps)
    return fedax.Task(model, data, name="cifar10")


def large_roles() -> fedax.Task:
    """The 50 roles with the most lines, for the character MLP."""
    task = fedax.load_task("shakespeare", "mlp")
    largest = np.argsort(-task.train.client_sizes, kind="stable")[:50]
    return fedax.Task(task.model, task.train.take(np.sort(largest)), name="shakespeare")


TASKS = {
    "digits": Board(
        functools.partial(fedax.load_task, "digits", "mlp"), 60, 5,
        {"batch_size": 10, "num_local_steps": 10}, 0.3, 0.8,
        "1,797 digits of 8 x 8 dealt to 20 clients by Dirichlet(0.1), an MLP 64-64-10, 5 clients "
        "a round, 10 local steps with batches of 10, 60 rounds",
    ),
    "mnist-writers": Board(
        functools.partial(fedax.load_task, "mnist-writers", "mlp"), 40, 10,
        {"batch_size": 10, "num_local_steps": 10}, 0.3, 0.88,
        "MNIST by the 539 persons who wrote it, an MLP 784-200-200-10, 10 persons a round, 10 "
        "local steps with batches of 10, 40 rounds; nearly half of the persons never take part, so "
        "that their own models are as at first. Seven in ten times a person takes part for the "
        "first time, when FedADMM's local steps start from the initial model, so its server's "
        "model stays within about two rounds of it: one round of FedAvg comes to 37, 57 and 38% "
        "(client rate 0.3)",
    ),
    "cifar10": Board(
        small_images, 60, 5, {"batch_size": 10, "num_local_steps": 10}, 0.1, 0.35,
        "CIFAR-10 in 16 x 16 pixels, dealt to 100 clients by Dirichlet(0.3), of whom the first 20 "
        "take part; a CNN with 16 and 32 filters of 3 x 3 and a layer of 64, 5 clients a round, 10 "
        "local steps with batches of 10, 60 rounds",
    ),
    "shakespeare": Board(
        large_roles, 60, 5, {"batch_size": 4, "num_local_steps": 10}, 3.16, 0.4,
        "the 50 largest roles of 37 plays, next characters by an MLP 360-128-90 of the last four, "
        "5 roles a round, 10 local steps with batches of 4 lines of 80 characters, 60 rounds",
    ),
}

_SERVER = "server_learning_rate"
_PLAIN, _ADAPTIVE = (0.316, 1.0, 3.16), (0.00316, 0.01, 0.0316)
# Method -> the setting beside the rate that is tuned, and its values where SGD's rate is
# `USUAL_RATE`.
OTHERS: Mapping[str, tuple[str, Sequence[Any]]] = {
    "adaalter": ("adaptivity", (0.01, 0.1, 1.0)),
    "afl": ("mixture_learning_rate", (0.001, 0.01, 0.1)),
    "apfl": ("mixture", (0.25, 0.5, 0.75)),
    "cmime": ("momentum", (0.0, 0.9, 0.99)),
    "ditto": ("attraction", (0.01, 0.1, 1.0)),
    "elastic": ("elasticity", (0.25, 0.5, 1.0)),
    "fedac": ("convexity", (0.1, 1.0, 10.0)),
    "fedadabound": (_SERVER, _ADAPTIVE),
    "fedadagrad": (_SERVER, (0.0316, 0.1, 0.316)),
    "fedadam": (_SERVER, _ADAPTIVE),
    "fedadmm": ("proximal_weight", (0.01, 0.1, 1.0)),
    "fedamsgrad": (_SERVER, _ADAPTIVE),
    "fedavgm": (_SERVER, (0.1, 0.316, 1.0)),
    "feddyn": ("proximal_weight", (0.01, 0.1, 1.0)),
    "fedexp": ("epsilon", (0.0001, 0.001, 0.01)),
    "fedprox": ("proximal_weight", (0.01, 0.1, 1.0)),
    "fedrep": ("num_head_steps", (5, 10, 20)),
    "fedyogi": (_SERVER, _ADAPTIVE),
    "fomaml": (_SERVER, (1.0, 3.16, 10.0)),
    "ifca": ("num_clusters", (2, 3, 4)),
    "lookahead": ("slow_weights_step", (0.5, 1.0, 1.5)),
    "mime": ("momentum", (0.0, 0.9, 0.99)),
    "mimelite": ("momentum", (0.0, 0.9, 0.99)),
    "mimemvr": ("momentum_weight", (0.03, 0.1, 0.3)),
    "perfedavg": ("inner_learning_rate", (0.01, 0.03, 0.1)),
    "pfedme": ("attraction", (1.0, 5.0, 15.0)),
    "qfedavg": ("q", (0.1, 1.0, 5.0)),
    "scaffnew": ("communication_probability", (0.1, 0.3, 1.0)),
    "server_only": ("momentum", (0.0, 0.9, 0.99)),
    "term": ("tilt", (0.1, 1.0, 5.0)),
}
USUAL_RATE = 0.3
# Of these the product with SGD's rate matters (-1), or the share of it (1).
UNITS = {
    "attraction": -1, "convexity": -1, "inner_learning_rate": 1, "personal_learning_rate": 1,
    "proximal_weight": -1,
}
# Its server's rate is of a gradient.
UNITS_OF_FOMAML = {_SERVER: 1}
# A client's step of Adam does not grow with the gradient: its rates are as much on any task.
OWN_RATES = {"local_adam": 0.03}
# AdaAlter's is at most the gradient over its adaptivity: its rates are a share of SGD's.
SHARES = {"adaalter": 0.3}
# Method -> what is not tuned, and not as by default on every task.
FIXED: Mapping[str, Mapping[str, float]] = {"pfedme": {"personal_learning_rate": 0.1}}
# What no row of its own can be made of, and why.
LEFT_OUT = {
    "centralised": "it is no federated method",
    "fedopt": "its server's optimizer is any",
    "fedsgd": "it is FedAvg with a schedule",
    "maml": "its second-order gradient goes through two local steps only",
    "local_update": "it is FedAvg's update of gradients' sums",
    "pfnm": "it matches the neurons of MLPs only",
    "local_update_decay": "it is a rule by which the rates of `local_update` fall",
}
WRAPPED = ("elastic", "personal")


def names() -> list[str]:
    """The rows of the library's own methods."""
    return [name for name in registry.ALGORITHMS if name not in LEFT_OUT] + list(WRAPPED)


def base_rate(name: str, board: Board) -> float:
    """The client rate around which a method's lie."""
    return OWN_RATES.get(name, SHARES.get(name, 1.0) * board.rate)


def scaled_to(name: str, board: Board, key: str, value: Any) -> Any:
    """A setting that is `value` where SGD's rate is `USUAL_RATE`."""
    unit = (UNITS | UNITS_OF_FOMAML if name == "fomaml" else UNITS).get(key, 0)
    factor = (board.rate / USUAL_RATE) ** unit
    return value if factor == 1 else float(f"{value * factor:.3g}")


def factory_of(name: str) -> Callable[..., fedax.FederatedAlgorithm]:
    """A method's function; a user's is MODULE.FUNCTION, in the current folder or installed."""
    if "." not in name:
        return registry.ALGORITHMS[name].factory
    module, _, function = name.rpartition(".")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return getattr(importlib.import_module(module), function)


def takes(factory: Callable[..., Any], key: str) -> bool:
    """Whether a function has a parameter, by name or among others by `**`."""
    parameters = inspect.signature(factory).parameters
    return key in parameters or any(
        one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()
    )


def rate_of(name: str) -> str:
    """Which rate of a method is tuned: the clients', or the server's where they take no steps."""
    if name in WRAPPED or takes(factory_of(name), "client_learning_rate"):
        return "client_learning_rate"
    return _SERVER


def settings(name: str, board: Board) -> list[dict[str, Any]]:
    """The settings of a method that are tried, NUM_SETTINGS of them."""
    rate, of_whom = base_rate(name, board), rate_of(name)
    if name in OTHERS:
        key, values = OTHERS[name]
    elif name in WRAPPED or (of_whom != _SERVER and takes(factory_of(name), _SERVER)):
        key, values = _SERVER, _PLAIN
    else:  # one number alone
        steps = np.logspace(-1.5, 1, NUM_SETTINGS)
        return [{of_whom: float(f"{rate * step:.3g}")} for step in steps]
    steps = np.logspace(-1, 0.5, NUM_RATES)
    return [
        {of_whom: float(f"{rate * step:.3g}"), key: scaled_to(name, board, key, value)}
        for step, value in itertools.product(steps, values)
    ]
