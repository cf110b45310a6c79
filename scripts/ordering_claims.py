"""The orderings that papers claim, with their criteria: what `scripts/orderings.py` runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

import fedax
from board import last_array
from board_tasks import Board
from fedax.models import lora
from ordering_parts import (
    Condition,
    Found,
    Ordering,
    Side,
    Trained,
    after_a_step,
    noisy,
    objective,
    of_own,
    of_server,
    of_server_and_sent,
    over_rounds,
    regularised,
    rotated,
    turned_after_training,
)


def digits(clients: int, partition: str, model: str = "mlp") -> Callable[..., fedax.Task]:
    """(partition_seed=...) -> the digits dealt to clients."""
    return functools.partial(
        fedax.load_task, "digits", model, num_clients=clients, partition=partition
    )


def writers(partition_seed: int) -> fedax.Task:
    """MNIST by the persons who wrote it, whom no seed deals."""
    del partition_seed
    return fedax.load_task("mnist-writers", "logistic")


_RATE = "client_learning_rate"
SIX = {_RATE: (0.01, 0.0316, 0.1, 0.316, 1.0, 3.16)}
THREE = {_RATE: (0.0316, 0.1, 0.316)}
_STEPS = {"batch_size": 10, "num_local_steps": 10}


def _side(
    name: str, measure: Callable[[Trained], Found], grid: Mapping[str, Sequence[Any]],
    **fixed: Any,
) -> Side:
    factory = getattr(fedax, name)

    def make(model: fedax.Model, **options: Any) -> fedax.FederatedAlgorithm:
        if name == "fedavg":
            options.pop("inner_learning_rate", None)  # of the step after training
        return factory(model, **fixed, **options)

    return Side(name, make, grid, measure)


def _fedavg(measure: Callable[[Trained], Found], **fixed: Any) -> Side:
    return _side("fedavg", measure, SIX, **{"weighting": "uniform", **fixed})


def _with_heads(name: str, grid: Mapping[str, Sequence[Any]]) -> Side:
    """FedRep or FedPer (`personal`), each client with a last layer of its own."""

    def make(model: fedax.Model, **options: Any) -> fedax.FederatedAlgorithm:
        where = last_array(model)
        if name == "fedrep":
            return fedax.fedrep(model, where, weighting="uniform", **options)
        return fedax.personal(fedax.fedavg(model, weighting="uniform", **options), model, where)

    return Side(name, make, grid, of_own)


def _average(model: fedax.Model, **options: Any) -> fedax.FederatedAlgorithm:
    return fedax.fedavg(model, **options)


def _adapted(model: fedax.Model) -> fedax.Model:
    """Adapters of rank 4 around the model as it begins."""
    return lora(model, model.init(jax.random.key(0)), rank=4)


_TWO_LABELS = Board(
    digits(20, "shards(2)"), 60, 10, _STEPS, 0.3, 0.0,
    "digits dealt to 20 clients of two labels, an MLP, 10 clients a round, 10 local steps with "
    "batches of 10, 60 rounds",
)

FIRST_STAGE: Mapping[str, Ordering] = {
    "qfedavg": Ordering(
        "Li et al. 2020 (q-FFL), Table 1",
        "with q > 0 the worst tenth of clients has a higher test accuracy than with q = 0, at a "
        "similar mean",
        _side("qfedavg", of_server, {_RATE: (0.1, 0.316, 1.0), "q": (1.0, 5.0)}),
        _fedavg(of_server),
        (Condition("worst tenth"), Condition("mean accuracy", most_behind=0.02)),
        Board(writers, 100, 20, {"batch_size": 20, "num_local_epochs": 1}, 0.3, 0.0,
              "MNIST by the 539 persons who wrote it, logistic regression, 20 persons a round, one "
              "local epoch with batches of 20, 100 rounds"),
    ),
    "term": Ordering(
        "Li et al. 2021 (TERM), experiment with noisy annotators",
        "with four groups of annotators, whose labels are random in 0, 20, 40 and 100% of "
        "examples, a negative tilt of the groups' losses beats the mean loss on clean test data",
        _side("term", of_server, {_RATE: (0.1, 0.316, 1.0), "tilt": (-1.0, -2.0)},
              weighting="uniform"),
        _fedavg(of_server),
        (Condition("accuracy"),),
        Board(digits(20, "iid"), 60, 20, _STEPS, 0.3, 0.0,
              "digits dealt at random to 20 annotators, five of each kind, an MLP, all in every "
              "round, 10 local steps with batches of 10, 60 rounds"),
        noisy,
    ),
    "ditto": Ordering(
        "Li et al. 2021 (Ditto), experiments on fairness",
        "the clients' own models have a higher mean test accuracy than FedAvg's global model, and "
        "vary less between clients",
        _side("ditto", of_own, {**THREE, "attraction": (0.1, 1.0)}, weighting="uniform"),
        _fedavg(of_server),
        (Condition("mean accuracy"), Condition("deviation", higher=False)),
        Board(digits(20, "dirichlet(0.5)"), 60, 10, _STEPS, 0.3, 0.0,
              "digits dealt to 20 clients by Dirichlet(0.5), an MLP, 10 clients a round, 10 local "
              "steps with batches of 10, 60 rounds"),
    ),
    "fednova": Ordering(
        "Wang et al. 2020 (FedNova), Table 1",
        "with clients of unequal sizes and labels and the same number of local epochs, FedNova is "
        "more accurate than FedAvg",
        _side("fednova", of_server, SIX),
        _fedavg(of_server, weighting="num_examples"),
        (Condition("accuracy"),),
        Board(digits(16, "dirichlet_by_class(0.1)"), 30, 16,
              {"batch_size": 10, "num_local_epochs": 2}, 0.3, 0.0,
              "digits dealt to 16 clients of unequal sizes by Dirichlet(0.1) for each label, an "
              "MLP, all clients in every round, two local epochs with batches of 10, 30 rounds"),
    ),
    "feddyn": Ordering(
        "Acar et al. 2021 (FedDyn), Table 1",
        "with a tenth of the clients in a round, FedDyn reaches a target accuracy in fewer rounds "
        "than FedAvg",
        _side("feddyn", over_rounds, {**THREE, "proximal_weight": (0.01, 0.1)}),
        _fedavg(over_rounds),
        (Condition("rounds", higher=False, unit="rounds"),),
        Board(digits(50, "dirichlet(0.3)"), 100, 5,
              {"batch_size": 10, "num_local_epochs": 5}, 0.3, 0.85,
              "digits dealt to 50 clients by Dirichlet(0.3), an MLP, 5 clients a round, five local "
              "epochs with batches of 10, at most 100 rounds, to 85%"),
    ),
    "fedexp": Ordering(
        "Jhunjhunwala et al. 2023 (FedExP), experiments on EMNIST and CIFAR",
        "FedExP is more accurate at the end than FedAvg with a server learning rate of 1",
        _side("fedexp", over_rounds, {**THREE, "epsilon": (0.01, 0.1)}),
        _fedavg(over_rounds),
        (Condition("accuracy of the last ten rounds"),),
        Board(digits(50, "dirichlet(0.3)"), 100, 10,
              {"batch_size": 10, "num_local_steps": 20}, 0.3, 0.0,
              "digits dealt to 50 clients by Dirichlet(0.3), an MLP, 10 clients a round, 20 local "
              "steps with batches of 10, 100 rounds; accuracy over the last ten"),
    ),
    "scaffnew": Ordering(
        "Mishchenko et al. 2022 (ProxSkip), abstract",
        "on regularised logistic regression with full gradients, Scaffnew is nearer to the minimum "
        "than gradient descent after the same number of rounds",
        _side("scaffnew", objective, SIX, communication_probability=0.1),
        _fedavg(objective, num_local_steps=1),
        (Condition("objective", higher=False, unit="objective"),),
        Board(digits(20, "dirichlet(0.1)", "logistic"), 100, 20, {"batch_size": 1000}, 0.3, 0.0,
              "digits dealt to 20 clients by Dirichlet(0.1), logistic regression with "
              "0.0005 |x|^2, full gradients, all clients in every round, p = 0.1, 100 rounds; "
              "settings are chosen by the objective itself"),
        regularised,
    ),
    "apfl": Ordering(
        "Deng et al. 2020 (APFL), section 5, clients of two labels",
        "the clients' mixed models have a higher mean accuracy on their own data than FedAvg's "
        "global model",
        _side("apfl", of_own, {**THREE, "mixture": (0.25, 0.75)}, weighting="uniform"),
        _fedavg(of_server),
        (Condition("mean accuracy"),),
        _TWO_LABELS,
    ),
    "pfedme": Ordering(
        "T. Dinh et al. 2020 (pFedMe), Table 1",
        "the clients' own models of pFedMe are more accurate than those of Per-FedAvg",
        _side("pfedme", of_own, {_RATE: (0.0949, 0.3, 0.949), "attraction": (5.0, 15.0)}),
        _side("perfedavg", of_own, {_RATE: (0.0316, 0.1, 0.316),
                                    "inner_learning_rate": (0.03, 0.1)}),
        (Condition("mean accuracy"),),
        Board(digits(20, "shards(2)"), 60, 5, {"batch_size": 20, "num_local_steps": 20}, 0.3, 0.0,
              "digits dealt to 20 clients of two labels, an MLP, 5 clients a round, 20 local steps "
              "with batches of 20, 60 rounds"),
    ),
    "ifca": Ordering(
        "Ghosh et al. 2020 (IFCA), Table 1, rotated MNIST",
        "with images turned by 0, 90, 180 or 270 degrees, IFCA with four clusters is more accurate "
        "than one global model",
        _side("ifca", of_own, {_RATE: (0.1, 0.316, 1.0), "cluster_seed": (0, 1)}, num_clusters=4),
        _fedavg(of_server),
        (Condition("mean accuracy"),),
        Board(digits(40, "iid"), 60, 20, _STEPS, 0.3, 0.0,
              "digits dealt at random to 40 clients, a quarter turned by each angle, an MLP, 20 "
              "clients a round, 10 local steps with batches of 10, 60 rounds"),
        rotated,
    ),
    "perfedavg": Ordering(
        "Fallah et al. 2020 (Per-FedAvg), Table 1",
        "after one gradient step of each client, the model of Per-FedAvg (HF) is more accurate "
        "than FedAvg's",
        _side("perfedavg", of_own, {**THREE, "inner_learning_rate": (0.03, 0.1)}, version="HF"),
        _side("fedavg", after_a_step, {**THREE, "inner_learning_rate": (0.03, 0.1)},
              weighting="uniform"),
        (Condition("mean accuracy"),),
        Board(digits(20, "shards(2)"), 60, 5, {"batch_size": 10, "num_local_steps": 10}, 0.3, 0.0,
              "digits dealt to 20 clients of two labels, an MLP, 5 clients a round, 10 local steps "
              "with batches of 10, 60 rounds"),
    ),
}


# Added after the others were known, with criteria committed before their own runs.
THIRD_STAGE: Mapping[str, Ordering] = {
    "fedlin": Ordering(
        "Mitra et al. 2021 (FedLin), abstract and section 6",
        "with clients that differ and several local steps with full gradients, FedLin is nearer to "
        "the minimum than FedAvg, whose local steps drift, after the same number of rounds",
        _side("fedlin", objective, {_RATE: (0.1, 0.316, 1.0, 3.16, 10.0, 31.6)}),
        _fedavg(objective),
        (Condition("objective", higher=False, unit="objective"),),
        Board(digits(20, "dirichlet(0.1)", "logistic"), 100, 20,
              {"batch_size": 1000, "num_local_steps": 10}, 0.3, 0.0,
              "digits dealt to 20 clients by Dirichlet(0.1), logistic regression with "
              "0.0005 |x|^2, full gradients, all clients in every round, 10 local steps, 100 "
              "rounds; FedLin's rate is that of 10 steps together; settings are chosen by the "
              "objective itself"),
        regularised,
    ),
    "fedac": Ordering(
        "Yuan and Ma 2020 (FedAc), Figure 1",
        "with clients that are alike and several local steps, FedAc reaches a lower objective than "
        "FedAvg after the same number of rounds",
        _side("fedac", objective, {_RATE: (0.1, 0.316, 1.0), "convexity": (0.001, 0.01)}),
        _fedavg(objective),
        (Condition("objective", higher=False, unit="objective"),),
        Board(digits(20, "iid", "logistic"), 30, 20, _STEPS, 0.3, 0.0,
              "digits dealt at random to 20 clients, logistic regression with 0.0005 |x|^2, all in "
              "every round, 10 local steps with batches of 10, 30 rounds; settings are chosen by "
              "the objective itself"),
        regularised,
    ),
    "fedadmm": Ordering(
        "Gong et al. 2022 (FedADMM), Table III",
        "with a tenth of the clients in a round, FedADMM reaches a target accuracy in fewer rounds "
        "than FedAvg",
        _side("fedadmm", over_rounds, {**THREE, "proximal_weight": (0.01, 0.1)}),
        _fedavg(over_rounds),
        (Condition("rounds", higher=False, unit="rounds"),),
        FIRST_STAGE["feddyn"].board,
    ),
    "afl": Ordering(
        "Mohri et al. 2019 (AFL), Table 2",
        "the label with the lowest test accuracy, each label being a client, has a higher one than "
        "with uniform weights",
        _side("afl", of_server, {_RATE: (0.1, 0.316, 1.0), "mixture_learning_rate": (0.01, 0.1)}),
        _fedavg(of_server),
        (Condition("worst tenth"),),
        Board(digits(10, "shards(1)", "logistic"), 300, 10,
              {"batch_size": 20, "num_local_steps": 1}, 0.3, 0.0,
              "digits dealt to 10 clients of one label, logistic regression, all in every round, "
              "one local step with batches of 20, 300 rounds"),
    ),
    "personal": Ordering(
        "Arivazhagan et al. 2019 (FedPer), Figures 3 and 4",
        "with a last layer of their own, the clients' models are more accurate than FedAvg's",
        _with_heads("personal", SIX),
        _fedavg(of_server),
        (Condition("mean accuracy"),),
        _TWO_LABELS,
    ),
    "fedrep": Ordering(
        "Collins et al. 2021 (FedRep), Table 1",
        "the clients' own models are more accurate than FedPer's",
        _with_heads("fedrep", {**THREE, "num_head_steps": (5, 10)}),
        _with_heads("personal", SIX),
        (Condition("mean accuracy"),),
        _TWO_LABELS,
    ),
    "lora": Ordering(
        "Hu et al. 2022 (LoRA), Tables 2 to 4",
        "trained further on other data, adapters of low rank are on par with all parameters, with "
        "a fraction of the numbers to send",
        Side("lora", _average, SIX, of_server_and_sent, _adapted),
        Side("fedavg", _average, SIX, of_server_and_sent),
        (Condition("accuracy", most_behind=0.01),
         Condition("bytes uploaded", higher=False, unit="bytes")),
        Board(digits(20, "iid"), 30, 5, _STEPS, 0.3, 0.0,
              "digits dealt at random to 20 clients; an MLP is trained centrally for 30 epochs on "
              "those of the first ten clients, then federated on those of the others, turned by a "
              "quarter: 5 clients a round, 10 local steps with batches of 10, 30 rounds"),
        turned_after_training,
    ),
}


def mnist(clients: int, partition: str) -> Callable[..., fedax.Task]:
    """(partition_seed=...) -> MNIST dealt to clients, for logistic regression."""
    return functools.partial(
        fedax.load_task, "mnist", "logistic", num_clients=clients, partition=partition
    )


# Those that were inconclusive on digits, with 280 test images: again with 12,000.
SECOND_STAGE: Mapping[str, Board] = {
    "term": Board(
        mnist(20, "iid"), 60, 20, {"batch_size": 20, "num_local_steps": 10}, 0.3, 0.0,
        "MNIST dealt at random to 20 annotators, five of each kind, logistic regression, all in "
        "every round, 10 local steps with batches of 20, 60 rounds",
    ),
    "ditto": Board(
        mnist(100, "dirichlet(0.5)"), 100, 10, {"batch_size": 20, "num_local_steps": 20}, 0.3, 0.0,
        "MNIST dealt to 100 clients by Dirichlet(0.5), logistic regression, 10 clients a round, 20 "
        "local steps with batches of 20, 100 rounds",
    ),
    "fednova": Board(
        mnist(16, "dirichlet_by_class(0.1)"), 30, 16, {"batch_size": 32, "num_local_epochs": 2},
        0.3, 0.0,
        "MNIST dealt to 16 clients of unequal sizes by Dirichlet(0.1) for each label, logistic "
        "regression, all clients in every round, two local epochs with batches of 32, 30 rounds",
    ),
    "feddyn": Board(
        mnist(100, "dirichlet(0.3)"), 100, 10, {"batch_size": 50, "num_local_epochs": 5}, 0.3, 0.9,
        "MNIST dealt to 100 clients by Dirichlet(0.3), logistic regression, 10 clients a round, "
        "five local epochs with batches of 50, at most 100 rounds, to 90%",
    ),
    "fedexp": Board(
        mnist(100, "dirichlet(0.3)"), 100, 20, {"batch_size": 20, "num_local_steps": 20}, 0.3, 0.0,
        "MNIST dealt to 100 clients by Dirichlet(0.3), logistic regression, 20 clients a round, 20 "
        "local steps with batches of 20, 100 rounds; accuracy over the last ten",
    ),
    "perfedavg": Board(
        mnist(50, "shards(2)"), 100, 10, {"batch_size": 20, "num_local_steps": 10}, 0.3, 0.0,
        "MNIST dealt to 50 clients of two labels, logistic regression, 10 clients a round, 10 "
        "local steps with batches of 20, 100 rounds",
    ),
}
ORDERINGS: Mapping[str, Ordering] = {
    **FIRST_STAGE,
    **{f"{name}-mnist": FIRST_STAGE[name]._replace(board=board)
       for name, board in SECOND_STAGE.items()},
    **THIRD_STAGE,
}


# What was tried after a verdict, to find its cause.
AFTERWARDS: Mapping[str, str] = {
    "qfedavg": "q-FedAvg is slower: its divisor has a second term, which grows with q and makes "
    "its steps shorter. With four times the rounds the gap is smaller, but there. With seed 1 and "
    "client rate 0.316 the worst tenth is 67.6% after 100 rounds and 72.1% after 400 with q = 0 "
    "(FedAvg), 66.7% and 71.6% with q = 0.1, 63.1% and 69.2% with q = 1.",
    "lora": "A turn by a quarter changes a layer of 64 x 64 by more than rank 4. With seed 1 and "
    "client rate 0.1 rank 4 comes to 85.7%, 16 to 94.3%, 32 to 93.6%; FedAvg of all parameters to "
    "94.3%.",
}
