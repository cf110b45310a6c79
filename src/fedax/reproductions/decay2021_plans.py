"""Decaying steps 2021: the data sets of section 4, their stand-ins, and what is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fedax.reproductions.experiment import Part, Plan, Scale, name_of
from fedax.reproductions.partial import Partial
from fedax.reproductions.results import Results

CONSTANT, RATE, STEPS = "constant", "decaying gamma", "decaying K"
# Scheme -> what its presets' names begin with.
SCHEMES = {CONSTANT: "decay2021-constant", RATE: "decay2021-rate", STEPS: "decay2021"}
ROUNDS = 4000
# How many points an accuracy may still rise up to 4,000 rounds to be called a plateau: what the
# criteria allow a highest accuracy to be lower.
FLAT = 0.5
PLATEAU = (
    " What training ends with is asked of a plateau: each method compared would, at the pace per "
    "doubling of the rounds from its third quarter of the rounds to its last, rise by at most "
    f"{FLAT:g} points up to {ROUNDS:,} rounds."
)
# Section 4.2: "Each curve is an average over 5 trials with different random seeds".
SEEDS = 5


# As many rounds as one seed of all methods makes in three hours, with the decays as published.
TFF_PLAYS = "shakespeare-tff (30 rounds) for Shakespeare"


class Column(NamedTuple):
    """A column of Table 1, a K_0 of a data set.

    Attributes:
      rate_error, rate_accuracy: of decaying gamma: lowest training error, highest test accuracy.
      steps_error, steps_accuracy: of decaying K.
      share: of local steps that decaying K takes.
    """

    rate_error: float
    rate_accuracy: float
    steps_error: float
    steps_accuracy: float
    share: float


class Data(NamedTuple):
    """A data set of the paper, and its stand-in.

    Attributes:
      columns: of Table 1, by K_0.
      task: with the paper's data; None: they are not published.
      metric: that Table 1 calls accuracy.
      decays: K_0 -> d_eta, d_gamma and d_K of Table 5.
      rates: gamma_0 and eta_0 of Table 5.
      hours: of the published setting, on 2 cores and guessed on a GPU.
      stand_in: the panel's name on its stand-in.
      partial: what replaces the data at the scale "paper", by the panel's name.
      small: task, preset, settings and K_0s of the small scale.
      small_grid: what is tuned there.
      small_hours: likewise.
    """

    columns: Mapping[int, Column]
    task: str | None
    metric: str
    decays: Mapping[int, tuple[float, float, float]]
    rates: tuple[float, float]
    hours: tuple[float, float]
    stand_in: str | None = None
    partial: Mapping[str, Partial] = {}
    small: tuple[str, str, Mapping[str, Any], tuple[int, ...]] | None = None
    small_grid: Mapping[str, Sequence[float]] = {}
    small_hours: tuple[float, float] = (0.0, 0.0)


_CLOTHES: Mapping[str, Any] = {
    "task.partition": "dirichlet(0.3)", "task.num_clients": 300, "batch_size": 20,
    "num_local_epochs": None, "num_rounds": 300, "evaluate_every": 10, "evaluation_sample": 2000,
}
# Of Stack Overflow the server is FedAdam's (section 4.1, Algorithm 3), as in its preset decay2021.
_ADAM: Mapping[str, Any] = {
    "server_optimizer": "adam(1e-8, 0.9, 0.999, 0.0, 'standard')", "weighting": "uniform",
}

DATA = {
    "StackOverflow": Data(
        {10: Column(0.02, 0.37, 0.02, 0.41, 0.55), 33: Column(0.02, 0.40, 0.02, 0.46, 0.51),
         100: Column(0.02, 0.44, 0.02, 0.42, 0.50)},
        "stackoverflow-tags", "test_recall_at_5",
        {10: (1.0, 0.999, 0.9996), 33: (1.0, 0.999, 0.9996), 100: (1.0, 0.9996, 0.9996)},
        (1.0, 0.3), (800.0, 20.0), "Fashion-MNIST for StackOverflow", {},
        ("fashion-mnist", "quick", {
            **_CLOTHES, **_ADAM, "task.model": "logistic", "client_learning_rate": 0.1,
        }, (10, 33, 100)), {"server_learning_rate": (0.001, 0.003, 0.01, 0.03)}, (0.15, 0.05),
    ),
    "FEMNIST": Data(
        {3: Column(0.22, 0.91, 0.23, 0.91, 0.65), 10: Column(0.11, 0.92, 0.16, 0.92, 0.55),
         33: Column(0.05, 0.91, 0.14, 0.92, 0.26)},
        None, "test_accuracy",
        {3: (0.9996, 0.9996, 0.9996), 10: (0.9996, 0.9996, 0.9996), 33: (0.9996, 0.9996, 0.999)},
        (0.3, 1.0), (175.0, 4.0), "Fashion-MNIST for FEMNIST",
        {"emnist for FEMNIST": Partial("emnist", evaluate_every=None),
         "femnist-328 (200 rounds) for FEMNIST":
         Partial("femnist-328", 200, (0.08, 0.005), evaluate_every=10)},
        ("fashion-mnist", "quick", {**_CLOTHES, "task.model": "mlp"}, (3, 10, 33)),
        small_hours=(0.15, 0.05),
    ),
    "Shakespeare": Data(
        {10: Column(1.33, 0.55, 1.44, 0.54, 0.55), 33: Column(1.12, 0.57, 1.23, 0.56, 0.51),
         100: Column(0.87, 0.57, 0.84, 0.58, 0.50)},
        None, "test_accuracy",
        {10: (0.9996, 0.9996, 0.9996), 33: (0.999, 0.999, 0.9996), 100: (0.996, 0.996, 0.9996)},
        (1.0, 1.0), (2000.0, 20.0), "plays for Shakespeare",
        {"plays in LEAF's parse for Shakespeare":
         Partial("shakespeare-leaf", evaluate_every=None),
         TFF_PLAYS: Partial("shakespeare-tff", 30, (0.3, 0.01), evaluate_every=10)},
        ("shakespeare", "decay2021", {
            "task.model": "small", "batch_size": 4, "num_rounds": 200, "evaluate_every": 10,
            "evaluation_sample": 1000,
        }, (10, 33)), small_hours=(0.4, 0.05),
    ),
}


def metric_of(panel: str) -> str:
    """What is called accuracy; of Stack Overflow, but not of its stand-in, recall."""
    name = name_of(panel)
    return DATA[name].metric if panel == name else "test_accuracy"


def label(steps: int, scheme: str) -> str:
    """What a method is called.

    Example:
      >>> label(10, STEPS)
      'K = 10, decaying K'
    """
    return f"K = {steps}, {scheme}"


def settings(name: str, steps: int, scheme: str, rounds: int = ROUNDS) -> dict[str, Any]:
    """The settings of Table 5, with decays that come to the same in fewer rounds.

    Args:
      name: of the data set.
      steps: K_0.
      scheme: one of SCHEMES.
      rounds: T; a decay d becomes d^(4000 / T).
    """
    rate, server = DATA[name].rates
    decays = [round(decay ** (ROUNDS / rounds), 6) for decay in DATA[name].decays[steps]]
    return {
        "num_local_steps": steps, "client_learning_rate": rate, "server_learning_rate": server,
        "server_decay": decays[0],
        "client_decay": decays[1] if scheme == RATE else 1.0,
        "steps_decay": decays[2] if scheme == STEPS else 1.0,
    }


def plan(
    names: Sequence[str], schemes: Sequence[str]
) -> Callable[[Scale, bool], Plan | None]:
    """The plans of some data sets and schemes."""
    def of(scale: Scale, stand_in: bool) -> Plan | None:
        if scale == "small":
            return _small(names, schemes) if stand_in else None
        return _paper(names, schemes, stand_in)

    return of


def _small(names: Sequence[str], schemes: Sequence[str]) -> Plan | None:
    parts, hours = [], {}
    for name in names:
        data = DATA[name]
        if data.small is None or data.stand_in is None:
            continue
        task, preset, common, counts = data.small
        hours[data.stand_in] = data.small_hours
        parts += [
            Part(data.stand_in, label(steps, scheme), task, "fedsgd", preset,
                 {key: value for key, value in
                  {**settings(name, steps, scheme, common["num_rounds"]), **common}.items()
                  if key not in data.small_grid}, data.small_grid, num_seeds=SEEDS)
            for steps in counts for scheme in schemes
        ]
    return Plan(
        tuple(parts),
        "Rates, decays and K_0 of Table 5. Reduced: 300 rounds of Fashion-MNIST and 200 of the "
        "plays for 4,000, with each decay d as d^(4000 / rounds), so that it comes to the same and "
        "takes the same share of steps. Fashion-MNIST is dealt to 300 clients by Dirichlet(0.3), "
        "with batches of 20 for 32; for FEMNIST with an MLP for a CNN; for the tags of Stack "
        "Overflow with a logistic model and FedAdam as there, gamma_0 = 0.1 for 1, and eta_0 "
        "tuned, with the highest accuracy over the last 100 rounds, for each K_0 and scheme, as "
        "Table 5's 0.3 is of other data and far too large for these. Of the plays all roles, "
        "one LSTM layer of a tenth of the parameters and batches of 4 for two GRU layers and 32, "
        "and K_0 = 10 and 33 without 100. Accuracy every 10 rounds on 2,000 test examples, of the "
        "plays 1,000, at the end on all. 10 clients a round, weighed by their examples, for the "
        "tags alike, and 5 seeds, as in section 4." + PLATEAU,
        hours,
    ) if parts else None


def _paper(names: Sequence[str], schemes: Sequence[str], stand_in: bool) -> Plan | None:
    parts, hours = [], {}
    for name in names:
        data = DATA[name]
        own = {name: Partial(data.task, evaluate_every=None)} if data.task else {}
        whole = {} if name == "StackOverflow" else {"evaluation_sample": None}
        for panel, used in (data.partial if stand_in else own).items():
            its = [
                Part(
                    panel, label(steps, scheme), used.task, "fedsgd",
                    SCHEMES[scheme] + ("" if steps == 10 else f"-{steps}"),
                    {**whole, **used.settings,
                     **(settings(name, steps, scheme, used.rounds)
                        if used.rounds and panel != TFF_PLAYS else {})},
                    num_seeds=SEEDS,
                )
                for steps in data.columns for scheme in schemes
            ]
            parts += its
            hours[panel] = data.hours if used.hours is None else (
                SEEDS * len(its) * used.hours[0], SEEDS * len(its) * used.hours[1]
            )
    return Plan(
        tuple(parts),
        "The presets decay2021, decay2021-rate and decay2021-constant: Table 5 and appendix B, "
        "4,000 rounds, 5 seeds. K_0 = 33 for the 100 that Table 5 prints for FEMNIST "
        "(docs/notebook/errata.md). Accuracy every 40 rounds on all test examples, of Stack "
        "Overflow on 10,000."
        + (" LEAF drew the paper's 1,000 writers, which are not published. emnist: TensorFlow "
           "Federated's 3,400. femnist-328: 328 of LEAF's, as LEAF prepared them, all of whom may "
           "take part, for 200 rounds, with each decay d as d^20, so that it comes to the same; "
           "accuracy every 10 rounds. The plays: those that fedax carries in LEAF's parse, 889 "
           "roles with enough text for the paper's 1,000. shakespeare-tff: TensorFlow Federated's "
           "715 roles, for 30 rounds, which take three hours of 2 cores with one seed; decays as "
           "published, so that they hardly begin." + PLATEAU if stand_in else ""),
        hours,
    ) if parts else None


def steps_of(results: Results, panel: str) -> list[int]:
    """The K_0s that have runs in a panel."""
    known = results.labels(panel)
    return [k for k in DATA[name_of(panel)].columns
            if any(label(k, scheme) in known for scheme in SCHEMES)]
