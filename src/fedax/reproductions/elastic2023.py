"""Chen et al. 2023 (elastic aggregation), supplement: Table 1, Figures 1 and 2, by training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedax.report.tables import Table
from fedax.reproductions import criteria
from fedax.reproductions.drawing import draw_curves
from fedax.reproductions.experiment import Criterion, Experiment, Outcome, Part, Plan, Scale
from fedax.reproductions.published import beside
from fedax.reproductions.results import LAST, Results

if TYPE_CHECKING:  # matplotlib is slow to import, and only drawing needs it
    from matplotlib.figure import Figure

SOURCE = "Chen et al. 2023, supplement"
# Table 1 and Figure 1 are on CIFAR-10 alone; of Figure 2 the text names no data.
MNIST = "MNIST, not in the paper"
# Table 1, on CIFAR-10: accuracy in per cent.
PUBLISHED_TRAIN = {"naive": 55.39, "elastic(average)": 55.49, "elastic(momentum)": 58.74}
PUBLISHED_TEST = {"naive": 61.22, "elastic(average)": 61.11, "elastic(momentum)": 61.45}

# Figure 1, and from which share of boosted parameters on it tells nothing which is larger.
WAYS = ("elastic(average)", "elastic(momentum)")
NEARLY_ALL = 0.999

MLP = "MLP"
OPTIMIZERS = {"FedAvg": "fedavg", "FedAvgM": "fedavgm", "FedProx": "fedprox"}
# Not in the paper: zeta is near 1 + tau for most parameters, so what it gains may be its longer
# steps, which FedAvg can have as well.
LONGER = "naive, server rate 1.5"
# The differences of Table 1's test accuracies are small.
MANY_SEEDS = 5


class Panel(NamedTuple):
    """A data set at a scale.

    Attributes:
      task, preset: as in `fedax sweep`.
      settings: of every method.
      grid: of every method.
      sensitivity_batch_size: of elastic aggregation; the only setting of the preset's that is
        replaced at the scale "paper".
      proximal_weight: FedProx's.
      hours: on 2 cores, and guessed on a GPU, of Table 1, Figure 1 and Figure 2.
    """

    task: str
    preset: str
    settings: Mapping[str, Any]
    grid: Mapping[str, Sequence[Any]]
    sensitivity_batch_size: int
    proximal_weight: float
    hours: Sequence[tuple[float, float]]


_SMALL: Mapping[str, Any] = {
    "batch_size": 20, "num_local_epochs": 10, "num_local_steps": 10, "evaluate_every": 10,
}
PANELS: Mapping[str, Mapping[str, Panel]] = {
    "paper": {
        "CIFAR-10": Panel(
            "cifar10", "elastic2023", {"num_rounds": 1000}, {}, 1, 1e-4,
            ((130.0, 2.0), (75.0, 1.0), (160.0, 3.0)),
        ),
        MNIST: Panel(
            "mnist", "elastic2023", {"num_rounds": 200}, {}, 1, 1e-4,
            ((0.4, 0.1), (0.2, 0.1), (0.6, 0.1)),
        ),
    },
    "small": {
        "CIFAR-10": Panel(
            "cifar10", "elastic2023", {**_SMALL, "num_rounds": 50, "cohort_size": 5}, {}, 5, 0.1,
            ((0.25, 0.05), (0.12, 0.05), (0.4, 0.1)),
        ),
        MNIST: Panel(
            "mnist", "elastic2023", {**_SMALL, "num_rounds": 75, "evaluate_every": 5},
            {"client_learning_rate": [0.03, 0.1, 0.3]}, 10, 0.1,
            ((0.1, 0.05), (0.05, 0.05), (0.15, 0.05)),
        ),
    },
}
_PAPER = (
    "The presets elastic2023 (docs/tasks.md): clients by Dirichlet for each class (section 2) with "
    "the 0.5 of the code released with PFNM; the log-normal sizes of section 2, whose variance is "
    "not given, are left out; 10 local epochs and a held-out tenth (section 4); 100 clients, 10 of "
    "them a round, batches of 50, the client's rate 0.1, FedProx's weight 0.0001 and the networks "
    "are FedDyn's, whose code made the data; elasticity 0.5 and decay 0.95 are FL-bench's; "
    "FedAvgM's momentum 0.9 is an average (Algorithm 1), its 0.9 that of Reddi et al. 2021. "
    "Sensitivity is measured example by example, as in equation (1): a batch of the preset's size "
    "would be the whole of what a client holds out, and then average and momentum are the same "
    "except for a factor, which zeta ignores. The available text has neither rates, rounds, "
    "cohorts nor networks, so levels cannot be compared, only differences."
)
_REDUCED = (
    " Reduced: at most 10 local steps of 20 images a round; CIFAR-10: 50 rounds of 5 clients, the "
    "client's rate 0.1 for all methods, not tuned; MNIST: 75 rounds of 10 clients, rates tuned "
    "over 0.03, 0.1, 0.3 by the training loss, for every method alike except PFNM, which has 0.1, "
    "as its matching takes most of the time; FedProx's weight 0.1, as the term of 0.0001 hardly "
    "acts; sensitivity in batches of 5 and 10, not one by one. Accuracy every 10 and 5 rounds on "
    "2,000 test images, on all after the last; means over the last third of the rounds."
)


def _part(name: str, panel: Panel, label: str, algorithm: str, **own: Any) -> Part:
    settings = {**panel.settings}
    if "elastic" in algorithm:
        settings["sensitivity_batch_size"] = panel.sensitivity_batch_size
    if "fedprox" in algorithm:
        settings["proximal_weight"] = panel.proximal_weight
    num_seeds = own.pop("num_seeds", 3)
    return Part(
        name, label, panel.task, algorithm, panel.preset, {**settings, **own}, panel.grid,
        num_seeds,
    )


def _plan(scale: Scale, stand_in: bool, place: int, parts: Sequence[Part]) -> Plan | None:
    if stand_in:  # its own data are to be had
        return None
    return Plan(
        tuple(parts), _PAPER + (_REDUCED if scale == "small" else ""),
        {name: panel.hours[place] for name, panel in PANELS[scale].items()},
    )


def table_1_plan(scale: Scale, stand_in: bool) -> Plan | None:
    """FedAvg, and elastic aggregation with both ways to accumulate sensitivity."""
    return _plan(scale, stand_in, 0, [
        part for name, panel in PANELS[scale].items() for part in (
            _part(name, panel, "naive", "fedavg", num_seeds=MANY_SEEDS),
            *(_part(name, panel, f"elastic({way})", "elastic+fedavg", sensitivity=way,
                    num_seeds=MANY_SEEDS) for way in ("average", "momentum")),
            _part(name, panel, LONGER, "fedavg", server_learning_rate=1.5,
                  num_seeds=MANY_SEEDS),
        )
    ])


def figure_1_plan(scale: Scale, stand_in: bool) -> Plan | None:
    """Elastic aggregation with both ways to accumulate sensitivity."""
    return _plan(scale, stand_in, 1, [
        _part(name, panel, f"elastic({way})", "elastic+fedavg", sensitivity=way)
        for name, panel in PANELS[scale].items() for way in ("average", "momentum")
    ])


def figure_2_plan(scale: Scale, stand_in: bool) -> Plan | None:
    """Three optimizers and PFNM, each with and without elastic aggregation.

    PFNM matches the units of perceptrons, so on CIFAR-10 it has one, and FedAvg with it is beside.
    """
    parts = []
    for name, panel in PANELS[scale].items():
        for label, algorithm in OPTIMIZERS.items():
            parts += [
                _part(name, panel, label, algorithm),
                _part(name, panel, f"{label} + elastic", f"elastic+{algorithm}",
                      sensitivity="momentum"),
            ]
        if name == MNIST:
            parts += _pfnm(name, panel, "PFNM")
        else:
            model = {"task.model": "mlp"}
            parts += [
                _part(name, panel, f"FedAvg, {MLP}", "fedavg", **model),
                _part(name, panel, f"FedAvg, {MLP} + elastic", "elastic+fedavg",
                      sensitivity="momentum", **model),
                *_pfnm(name, panel, f"PFNM, {MLP}", **{"task.preprocessing": "plain"}),
            ]
    found = _plan(scale, stand_in, 2, parts)
    return found and found._replace(settings=f"{found.settings} {_ELASTIC_PFNM}.")


def _pfnm(name: str, panel: Panel, label: str, **own: Any) -> list[Part]:
    return [
        part._replace(preset="none", settings={**_PFNM, **part.settings}, grid={})
        for part in (
            _part(name, panel, label, "pfnm", **own),
            _part(name, panel, f"{label} + elastic", "elastic+pfnm", sensitivity="momentum", **own),
        )
    ]


_ELASTIC_PFNM = (
    "PFNM has no averaged change that could be scaled; over it, which the available text does not "
    "define, elastic aggregation scales what each client changed before units are matched, as "
    "fedax.elastic says; PFNM matches the units of perceptrons, so on CIFAR-10 it has an MLP of "
    "two layers of 200, and FedAvg with it stands beside it"
)
# What the preset has for the other methods, with the variances of the code released with PFNM; one
# sweep of the matching and room for twice the units are chosen, as matching takes most of the time.
_PFNM: Mapping[str, Any] = {
    "task.model": "mlp", "task.partition": "dirichlet_by_class(0.5)", "task.num_clients": 100,
    "cohort_size": 10, "batch_size": 50, "num_local_epochs": 10, "evaluate_every": 10,
    "client_learning_rate": 0.1, "variance": 1.0, "prior_variance": 10.0, "num_sweeps": 1,
    "capacity": 2,
}


def table_1_criteria(results: Results) -> Sequence[Criterion]:
    """The differences of the table; what it has of the training accuracy, of the loss."""
    def of(said: str, on_cifar: str, panel: str) -> str:
        return f"{said}{on_cifar}" if panel == "CIFAR-10" else f"{said}, as in the paper's CIFAR-10"

    return [one for panel in results.panels for one in (
        criteria.at_least(
            of("with momentum better on test data than naive averaging", ", 0.23 points", panel),
            panel, "elastic(momentum)", "naive", "test_accuracy",
        ),
        criteria.at_least(
            of("with momentum better on test data than with the average", ", 0.34 points", panel),
            panel, "elastic(momentum)", "elastic(average)", "test_accuracy",
        ),
        criteria.at_least(
            of("with the average behind naive averaging on test data", ", 0.11 points", panel),
            panel, "naive", "elastic(average)", "test_accuracy",
        ),
        criteria.at_least(
            of("with momentum better in training than naive averaging",
               ", 3.35 points of accuracy", panel) + ", so a smaller training loss",
            panel, "elastic(momentum)", "naive", "train_loss", scale=1.0, smaller_is_better=True,
        ),
    )]


def table_1_tables(results: Results) -> list[Table]:
    """Published beside measured, and what longer steps alone come to."""
    rows = []
    for panel in results.panels:
        is_published, columns = panel == "CIFAR-10", [*PUBLISHED_TEST, LONGER]
        accuracy = {
            label: 100 * results.final(panel, label, "test_accuracy") for label in columns
            if label in results.labels(panel)
        }
        if is_published:
            rows.append([f"{panel}, train accuracy, published",
                         *(f"{value:.2f}" for value in PUBLISHED_TRAIN.values()), ""])
        published = PUBLISHED_TEST if is_published else {}
        rows += beside(
            panel, "test accuracy", published, accuracy, columns, alike=False
        )
        rows.append([f"{panel}, train loss, measured", *(
            results.written(panel, label, "train_loss", 3) for label in columns
        )])
    title = (
        f"Means over {LAST} and over seeds, with the "
        "sample standard deviation; accuracy in per cent. The last column is not in the paper: "
        "zeta is near 1.5 for most parameters, so it shows what longer steps alone come to."
    )
    return [Table(title, ["", *PUBLISHED_TEST, LONGER], rows)]


def figure_1_criteria(results: Results) -> Sequence[Criterion]:
    """Which way boosts more parameters."""
    return [
        _if_some_are_not(panel, criteria.at_least(
            "the average boosts more parameters (zeta > 1) than momentum", panel,
            *WAYS, "boosted_share",
        ))
        for panel in results.panels
    ]


def _if_some_are_not(panel: str, criterion: Criterion) -> Criterion:
    """Where both ways boost nearly all parameters, which boosts more is inconclusive."""
    def judge(results: Results) -> Outcome:
        found = criterion.judge(results)
        shares = [results.final(panel, label, "boosted_share") for label in WAYS]
        if any(np.isnan(of).any() or of.mean() < NEARLY_ALL for of in shares):
            return found
        words = f"{found.measured}, where both boost more than {NEARLY_ALL:.1%}"
        return Outcome(words, False, inconclusive=True)

    return criterion._replace(judge=judge)


def figure_1_tables(results: Results) -> list[Table]:
    """The share of boosted parameters; the text has no numbers of the figure."""
    rows = [
        [panel, *(results.written(panel, label, "boosted_share", 2, 100) for label in WAYS)]
        for panel in results.panels
    ]
    return [Table("Parameters boosted, in per cent, at the end of training.", ["", *WAYS], rows)]


def figure_2_criteria(results: Results) -> Sequence[Criterion]:
    """Improvements with every optimizer, at the end and on the way."""
    return [one for panel in results.panels for label in _wrapped(results, panel) for one in (
        criteria.at_least(
            f"elastic aggregation improves {label}", panel, f"{label} + elastic", label,
            "test_accuracy",
        ),
        criteria.sooner(
            f"elastic aggregation makes {label} faster", panel, f"{label} + elastic", label,
            "test_accuracy",
        ),
    )]


def _wrapped(results: Results, panel: str) -> list[str]:
    """Of which methods it is asked whether they gain."""
    return [*OPTIMIZERS, *(one for one in ("PFNM", f"PFNM, {MLP}") if one in results.labels(panel))]


def figure_2_tables(results: Results) -> list[Table]:
    """Test accuracy with and without."""
    rows = []
    for panel in results.panels:
        for label in (*OPTIMIZERS, "PFNM", f"FedAvg, {MLP}", f"PFNM, {MLP}"):
            if label in results.labels(panel):
                rows.append([panel, label, *(
                    results.written(panel, one, "test_accuracy", 2, 100)
                    for one in (label, f"{label} + elastic")
                )])
    title = f"Test accuracy in per cent, at the end of training. {_ELASTIC_PFNM}."
    return [Table(title, ["", "optimizer", "without", "with elastic"], rows)]


def draw_figure_1(figure: Figure, results: Results) -> None:
    """The percentage of boosted parameters against rounds."""
    _draw(figure, results, "boosted_share", "parameters boosted (%)", {
        "elastic(average)": ("#d95f02", "-"), "elastic(momentum)": ("#1f6fb2", "-"),
    })


def draw_figure_2(figure: Figure, results: Results) -> None:
    """Test accuracy against rounds: dashed without, whole lines with elastic aggregation."""
    colours = dict(zip((*OPTIMIZERS, "PFNM"), ("black", "#d95f02", "#1f6fb2", "#777777"),
                       strict=True))
    _draw(figure, results, "test_accuracy", "test accuracy (%)", {
        **{label: (colour, "--") for label, colour in colours.items()},
        f"FedAvg, {MLP}": ("black", ":"), f"PFNM, {MLP}": ("#777777", ":"),
        **{f"{label} + elastic": (colour, "-") for label, colour in colours.items()},
        f"PFNM, {MLP} + elastic": ("#777777", "-"),
    })


def _draw(
    figure: Figure, results: Results, metric: str, title: str,
    styles: Mapping[str, tuple[str, str]],
) -> None:
    figure.set_size_inches(5 * max(len(results.panels), 1), 4)
    axes = figure.subplots(1, max(len(results.panels), 1), squeeze=False)[0]
    for panel, place in zip(results.panels, axes, strict=False):
        draw_curves(place, results, panel, metric, styles=styles, scale=100)
        place.set_title(panel)
        place.set_ylabel(title)


table_1 = Experiment(
    "elastic aggregation with sensitivity by momentum, by average, and without",
    f"{SOURCE}, Table 1", table_1_plan, table_1_criteria, table_1_tables,
)
figure_1 = Experiment(
    "momentum boosts fewer parameters than the average of sensitivities",
    f"{SOURCE}, Figure 1", figure_1_plan, figure_1_criteria, figure_1_tables, draw_figure_1,
)
figure_2 = Experiment(
    "elastic aggregation improves FedAvg, FedAvgM, FedProx and PFNM",
    f"{SOURCE}, Figure 2", figure_2_plan, figure_2_criteria, figure_2_tables, draw_figure_2,
)

EXPERIMENTS: dict[str, Experiment] = {
    "elastic2023-table-1": table_1,
    "elastic2023-figure-1": figure_1,
    "elastic2023-figure-2": figure_2,
}
