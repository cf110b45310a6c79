"""What the tables and figures of Reddi et al. 2021 train: the runs that they share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedax.reproductions.experiment import Part, Plan, name_of
from fedax.reproductions.partial import Partial
from fedax.tuning.grids import preset_grid

SOURCE = "Reddi et al. 2021"
METHODS = {
    "Adagrad": "fedadagrad", "Adam": "fedadam", "Yogi": "fedyogi", "AvgM": "fedavgm",
    "Avg": "fedavg",
}
ADAPTIVE = ("Adagrad", "Adam", "Yogi")
# The rates were tuned with the released code, whose Adam and Yogi are not quite Algorithm 2's.
AS_RELEASED = {"Adam as released": "Adam", "Yogi as released": "Yogi"}
_RELEASED = {
    "initial_accumulator": 0.0, "bias_correction": "released", "second_moment_decay": 0.999,
}
ACCURACY = "test_accuracy"
CLOTHES, PLAYS = "Fashion-MNIST for EMNIST CR", "plays for Shakespeare"


class Row(NamedTuple):
    """A task of the paper.

    Attributes:
      published: its row of Table 1, by method, in the order of METHODS.
      task: with the paper's data.
      metric: which, and `scale` makes it the table's unit.
      hours: of five methods with three seeds, on 2 cores, and guessed on a GPU.
    """

    published: tuple[float, ...]
    task: str
    metric: str = ACCURACY
    scale: float = 100.0
    hours: tuple[float, float] = (100.0, 5.0)

    @property
    def of_a_run(self) -> tuple[float, float]:
        """Hours of one run."""
        return self.hours[0] / 15, self.hours[1] / 15


# Table 1. Accuracy in per cent; of SO LR recall at 5; of EMNIST AE mean squared error x 1,000.
ROWS = {
    "CIFAR-10": Row((72.1, 77.4, 78.0, 77.4, 72.8), "cifar10"),
    "CIFAR-100": Row((47.9, 52.5, 52.4, 52.4, 44.7), "cifar100-tff"),
    "EMNIST CR": Row((85.1, 85.6, 85.5, 85.2, 84.9), "emnist"),
    "Shakespeare": Row((57.5, 57.0, 57.2, 57.3, 56.9), "shakespeare-tff", hours=(5.3, 0.5)),
    "SO NWP": Row((23.8, 25.2, 25.2, 23.8, 19.5), "stackoverflow-words",
                  "test_accuracy_no_oov_or_eos"),
    "SO LR": Row((67.1, 65.8, 65.9, 36.9, 30.0), "stackoverflow-tags", "test_recall_at_5"),
    "EMNIST AE": Row((4.20, 1.01, 0.98, 1.65, 6.47), "emnist-autoencoder",
                     "test_mean_squared_error", 1000.0),
}


EMNIST_AE = "femnist-328 (600 rounds) for EMNIST AE"
CIFAR_100 = "cifar100-resplit (200 rounds) for CIFAR-100"
PARTIAL = {
    PLAYS: Partial("shakespeare"),
    "femnist-328 (300 rounds) for EMNIST CR": Partial("femnist-328", 300, (0.045, 0.005)),
    EMNIST_AE: Partial("femnist-328-autoencoder", 600, (0.045, 0.005)),
    CIFAR_100: Partial("cifar100-resplit", 200, (0.12, 0.01)),
}


# What Figures 3, 4 and 8 tune on the paper's own data: in fewer rounds, over smaller grids.
REDUCED = "shakespeare-tff (100 rounds) for Shakespeare"
_REDUCED = Partial("shakespeare-tff", 100, (0.035, 0.003), evaluate_every=10)
# The server rates of Adam and Yogi there; the published best, 0.01 (appendix D), lies inside.
_OF_ADAM = (0.00316, 0.01, 0.0316, 0.1)


class Small(NamedTuple):
    """A task of the scale "small".

    Attributes:
      task: its name.
      settings: of its preset `quick` that are changed.
      words: what it is, and what is reduced.
      stand_in: whether the data are not the paper's.
      client_rates: to tune over.
      server_rates: by method, likewise.
      hours: of a run, on 2 cores and guessed on a GPU.
      own: settings of a method, where the preset's are those of another paper.
    """

    task: str
    settings: Mapping[str, Any]
    words: str
    stand_in: bool
    client_rates: Sequence[float]
    server_rates: Mapping[str, Sequence[float]]
    hours: tuple[float, float]
    own: Mapping[str, Mapping[str, Any]] = {}


SMALL = {
    "CIFAR-10": Small(
        "cifar10",
        {"task.model": "mlp", "task.num_clients": 500, "cohort_size": 10, "batch_size": 20,
         "num_local_epochs": 1, "num_rounds": 300, "evaluate_every": 10,
         "evaluation_sample": 1000},
        "CIFAR-10: as published 500 clients of 100 images by Dirichlet(0.1), 10 clients a round, "
        "one local epoch with batches of 20; an MLP on whole images in place of the ResNet-18 on "
        "crops, and 300 rounds for 4,000; accuracy every 10 rounds on 1,000 test images, on all "
        "after the last.",
        stand_in=False,
        client_rates=(0.01, 0.0316, 0.1, 0.316),
        server_rates={
            **dict.fromkeys(ADAPTIVE, (0.00316, 0.01, 0.0316, 0.1)),
            "AvgM": (0.0316, 0.1, 0.316, 1.0), "Avg": (0.316, 1.0, 3.16, 10.0),
        },
        hours=(0.0035, 0.001),
    ),
    CLOTHES: Small(
        "fashion-mnist",
        {"task.model": "mlp", "task.partition": "dirichlet(0.3)", "task.num_clients": 200,
         "batch_size": 20, "num_local_epochs": 1, "num_local_steps": 10, "num_rounds": 200,
         "evaluate_every": 10},
        "EMNIST CR's place: Fashion-MNIST dealt to 200 clients by Dirichlet(0.3), an MLP in place "
        "of the CNN, 10 clients a round, at most 10 local steps with batches of 20, 200 rounds; "
        "accuracy every 10 rounds.",
        stand_in=True,
        client_rates=(0.01, 0.0316, 0.1, 0.316),
        server_rates={
            "Adagrad": (0.01, 0.0316, 0.1, 0.316), "Adam": (0.001, 0.00316, 0.01, 0.0316),
            "Yogi": (0.001, 0.00316, 0.01, 0.0316), "AvgM": (0.0316, 0.1, 0.316, 1.0),
            "Avg": (0.316, 1.0, 3.16, 10.0),
        },
        hours=(0.0011, 0.0005),
        own={"AvgM": {"dampening": 0.0}},  # MNIST's preset is elastic2023, an average
    ),
    PLAYS: Small(
        "shakespeare",
        {"num_rounds": 100, "evaluate_every": 10, "evaluation_sample": 1000},
        "Shakespeare's place: the plays that fedax carries, one LSTM layer with a tenth of the "
        "parameters, 10 clients a round, at most 20 local steps with batches of 4, 100 rounds; "
        "accuracy every 10 rounds on 1,000 test examples, on all after the last.",
        stand_in=True,
        client_rates=(0.316, 1.0, 3.16, 10.0),
        server_rates={
            "Adagrad": (0.01, 0.0316, 0.1, 0.316), "Adam": (0.01, 0.0316, 0.1, 0.316),
            "Yogi": (0.01, 0.0316, 0.1, 0.316), "AvgM": (0.1, 0.316, 1.0, 3.16),
            "Avg": (0.316, 1.0, 3.16, 10.0),
        },
        hours=(0.003, 0.001),
    ),
}
def row_of(panel: str) -> Row:
    """The paper's row of a panel, or of what it replaces."""
    return ROWS[name_of(panel)]


# What is fixed where the adaptivity is not what is asked about: section 5.3.
ADAPTIVITY = 1e-3


def with_published_rates(panel: str, label: str, task: str) -> Part:
    """A method with the best rates of the documentation of the code released with the paper."""
    settings = PARTIAL[panel].settings if panel in PARTIAL else {"evaluate_every": 20}
    if label in AS_RELEASED:
        settings = {**settings, **_RELEASED}
    return Part(panel, label, task, METHODS[AS_RELEASED.get(label, label)], "reddi2021", settings)


def tuned(panel: str, label: str) -> Part:
    """A method with a grid of both rates, at the scale "small"."""
    small = SMALL[panel]
    fixed = {"adaptivity": ADAPTIVITY} if label in ADAPTIVE else small.own.get(label, {})
    grid = {
        "client_learning_rate": small.client_rates,
        "server_learning_rate": small.server_rates[label],
    }
    return Part(panel, label, small.task, METHODS[label], "quick", {**small.settings, **fixed},
                grid)


def tuned_in_fewer_rounds(label: str) -> Part:
    """A method with its grid on the paper's Shakespeare, for `in_fewer_rounds`."""
    part = tuned(PLAYS, label)
    rates = {"server_learning_rate": _OF_ADAM} if label in ("Adam", "Yogi") else {}
    return part._replace(grid={**part.grid, **rates})


# Figure 3 varies the adaptivity; at the scale "small" over fewer values.
ADAPTIVITIES, FEW = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1), (1e-5, 1e-3, 1e-1)


class Tried(NamedTuple):
    """What Figure 3 tries at the scale "small".

    Attributes:
      adaptivities: of which.
      client_rates: with each.
      server_rates: by method that is run with them; the larger the adaptivity, the larger the rate
        that suits it.
    """

    adaptivities: Sequence[float]
    client_rates: Sequence[float]
    server_rates: Mapping[str, Sequence[float]]


FIGURE_3 = {
    "CIFAR-10": (
        Tried((1e-5, 1e-3), (0.0316, 0.1), dict.fromkeys(ADAPTIVE, (0.001, 0.00316, 0.01))),
        Tried((1e-1,), (0.0316, 0.1), dict.fromkeys(ADAPTIVE, (0.0316, 0.1, 0.316))),
        # The best rates lay at the ends of those above.
        Tried((1e-5,), (0.0316, 0.1), dict.fromkeys(("Adam", "Yogi"), (0.000316,))),
        Tried((1e-1,), (0.1,), dict.fromkeys(ADAPTIVE, (1.0,))),
        Tried((1e-1,), (0.316,), dict.fromkeys(ADAPTIVE, (0.1, 0.316))),
    ),
    CLOTHES: (
        Tried(FEW, SMALL[CLOTHES].client_rates, SMALL[CLOTHES].server_rates),
        Tried((1e-1,), (0.1, 0.316, 1.0),
              {"Adagrad": (1.0, 3.16), "Adam": (0.1, 0.316), "Yogi": (0.1, 0.316)}),
    ),
    PLAYS: (
        Tried((1e-5, 1e-3), (1.0, 3.16), dict.fromkeys(ADAPTIVE, (0.0316, 0.1))),
        Tried((1e-1,), (1.0, 3.16), dict.fromkeys(ADAPTIVE, (0.1, 0.316, 1.0))),
    ),
    REDUCED: (
        Tried((1e-5, 1e-3), (1.0, 3.16), {
            "Adagrad": (0.0316, 0.1, 0.316), **dict.fromkeys(("Adam", "Yogi"), _OF_ADAM),
        }),
        Tried((1e-1,), (1.0, 3.16), dict.fromkeys(ADAPTIVE, (0.1, 0.316, 1.0))),
    ),
}


def with_adaptivities(panel: str, tried: Sequence[Tried]) -> list[Part]:
    """The adaptive methods on a panel, with what Figure 3 tries there."""
    return [
        _with_adaptivity(panel, label, one)
        for label in ADAPTIVE for one in tried if label in one.server_rates
    ]


def _with_adaptivity(panel: str, label: str, tried: Tried) -> Part:
    part = tuned(panel, label)
    settings = {key: value for key, value in part.settings.items() if key != "adaptivity"}
    return part._replace(settings=settings, grid={
        "client_learning_rate": tried.client_rates,
        "server_learning_rate": tried.server_rates[label], "adaptivity": tried.adaptivities,
    })


def in_fewer_rounds(parts: Sequence[Part], adaptivity: str = f"{ADAPTIVITY:g}") -> Plan:
    """Small parts of the plays, on the paper's data instead, with the published settings."""
    changed = tuple(
        part._replace(
            panel=REDUCED, task=_REDUCED.task, preset="reddi2021", settings={
                **_REDUCED.settings,
                **{key: value for key, value in part.settings.items() if key == "adaptivity"},
            },
        ) for part in parts
    )
    return Plan(
        changed,
        "Shakespeare: the data, network, cohort, batches and epochs of the preset `reddi2021`, for "
        f"{_REDUCED.rounds} rounds of 1,200; both rates are tuned over a part of appendix D.2's "
        f"grid by the training loss of the last third of the rounds, with adaptivity {adaptivity}. "
        "Accuracy every 10 rounds on 2,000 test examples, on all after the last.",
        hours(changed, small=False), {REDUCED},
    )


def in_words(panels: Sequence[str], source: Sequence[str] = tuple(ROWS)) -> str:
    """What the tasks of the scale "small" are, and which of the source's are not among them."""
    asked = [name_of(panel) for panel in panels]
    elsewhere = [name_of(panel) for panel, small in SMALL.items()
                 if name_of(panel) in source and name_of(panel) not in asked]
    missing = [name for name in source if name not in map(name_of, SMALL)]
    sentences = [SMALL[panel].words for panel in panels]
    if elsewhere:
        how = "without" if any(SMALL[panel].stand_in for panel in panels) else "with"
        sentences.append(f"{' and '.join(elsewhere)}: {how} --stand-in.")
    if missing:
        are, them = ("are", "them") if len(missing) > 1 else ("is", "it")
        sentences.append(f"The paper's {', '.join(missing)} {are} left out, as only the same "
                         f"images and plays could replace {them}.")
    if not set(asked) & set(source):
        sentences.append("These are not in the figure: the paper says that similar results hold "
                         "for other tasks.")
    return " ".join(
        [*sentences,
         "Both rates are tuned over a grid by the training loss of the last 100 rounds "
         "(section 4), or of the last third where that is less, with adaptivity "
         f"{ADAPTIVITY:g}."]
    )


def small_panels(stand_in: bool) -> list[str]:
    """The tasks of the scale "small" with the paper's data, or on stand-ins."""
    return [panel for panel, small in SMALL.items() if small.stand_in == stand_in]


def full_grid(panel: str, label: str, **changed: Sequence[float]) -> Part:
    """A method with the paper's grid of appendix D.2, at the scale "paper"."""
    grid = preset_grid(ROWS[panel].task, None, "reddi2021")
    rates = {key: grid[key] for key in ("client_learning_rate", "server_learning_rate")}
    fixed = {"adaptivity": ADAPTIVITY} if label in ADAPTIVE and not changed else {}
    return Part(panel, label, ROWS[panel].task, METHODS[label], "reddi2021",
                {"evaluate_every": 20, **fixed}, {**rates, **changed})


def hours(parts: Sequence[Part], *, small: bool) -> dict[str, tuple[float, float]]:
    """Rough hours of each panel."""
    found: dict[str, tuple[float, float]] = {}
    for part in parts:
        partial = _REDUCED if part.panel == REDUCED else PARTIAL.get(part.panel)
        each = SMALL[part.panel].hours if small else (
            partial.hours if partial and partial.hours else row_of(part.panel).of_a_run
        )
        runs = part.num_seeds * math.prod(map(len, part.grid.values()))
        before = found.get(part.panel, (0.0, 0.0))
        cpu, gpu = (round(known + runs * one, 2)
                    for known, one in zip(before, each, strict=True))
        found[part.panel] = (cpu, gpu)
    return found
