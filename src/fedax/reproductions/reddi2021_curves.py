"""Reddi et al. 2021 (Adaptive Federated Optimization): Figure 1, how fast each method trains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedax.experiment.presets import preset_values
from fedax.report.tables import Table
from fedax.reproductions import criteria, drawing
from fedax.reproductions.experiment import Criterion, Experiment, Part, Plan, Scale, name_of
from fedax.reproductions.reddi2021 import final_values, table_1_plan
from fedax.reproductions.reddi2021_parts import (
    ADAPTIVE,
    AS_RELEASED,
    METHODS,
    PARTIAL,
    SMALL,
    SOURCE,
    hours,
    row_of,
)
from fedax.reproductions.results import Results, paired

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCAFFOLD = "SCAFFOLD"
# Section 5.1: tasks without sparse gradients, and those of them where momentum and adaptivity gain
# much; on the others most methods do well.
DENSE = ("CIFAR-10", "CIFAR-100", "EMNIST AE", "EMNIST CR", "Shakespeare")
HARD = DENSE[:3]
# What "comparable" and "close" may be behind, in points.
CLOSE = -1.0


def figure_1_plan(scale: Scale, stand_in: bool) -> Plan:
    """The runs of Table 1, and SCAFFOLD."""
    plan = table_1_plan(scale, stand_in)
    if scale == "small":
        words = " SCAFFOLD with the server rate 1."
        parts = (*plan.parts, *(_small_scaffold(panel) for panel in plan.panels))
    else:
        words = " SCAFFOLD, whose rates the available text does not give, has those of Avg."
        tasks = {part.panel: part.task for part in plan.parts}
        parts = (*plan.parts, *(_scaffold(panel, task) for panel, task in tasks.items()))
    return Plan(parts, plan.settings + words, hours(parts, small=scale == "small"))


def _small_scaffold(panel: str) -> Part:
    small = SMALL[panel]
    return Part(
        panel, SCAFFOLD, small.task, "scaffold", "quick",
        {**small.settings, "server_learning_rate": 1.0},
        {"client_learning_rate": small.client_rates},
    )


def _scaffold(panel: str, task: str) -> Part:
    """SCAFFOLD with the settings of Avg."""
    values = preset_values(task, "reddi2021", METHODS["Avg"])
    settings = {key.removeprefix("run.").removeprefix("algorithm."): value
                for key, value in values.items()}
    return Part(panel, SCAFFOLD, task, "scaffold", "none", {
        **settings, **(PARTIAL[panel].settings if panel in PARTIAL else {"evaluate_every": 20}),
    })


def figure_1_criteria(results: Results) -> Sequence[Criterion]:
    """Who is ahead in the first rounds, and throughout (section 5.1)."""
    return [one for panel in results.panels for one in _of_a_task(panel, results)]


def _of_a_task(panel: str, results: Results) -> Iterator[Criterion]:
    row, name = row_of(panel), name_of(panel)
    unit = {"scale": row.scale, "smaller_is_better": row.scale > 100}
    if name == "EMNIST CR":
        yield criteria.within(
            "the task is easy, most optimizers do well after enough rounds", panel, list(METHODS),
            row.metric, 2.0,
        )
    for said, better, worse in _first(name):
        yield criteria.earlier(said, panel, better, worse, row.metric, **unit)
    for label in ("Adam", "Yogi") if name in DENSE else ():
        for others, words in (
            (("AvgM", "Avg"), "comparably to or better than nonadaptive ones"),
            (("Adagrad",), "close to or better than Adagrad"),
        ):
            yield criteria.throughout(
                f"{label} performs {words} throughout", panel, label, others, row.metric, CLOSE,
                **unit,
            )
    if SCAFFOLD in results.labels(panel):
        yield _scaffold_behind(panel)


def _first(name: str) -> Iterator[tuple[str, str, str]]:
    """What the paper says of the first rounds, who is ahead, and of whom."""
    if name == "Shakespeare":
        for other in METHODS:
            if other != "Adagrad":
                yield "Adagrad converges faster than the others", "Adagrad", other
    elif name in ("SO NWP", "SO LR"):
        for label in ADAPTIVE:
            for other in ("AvgM", "Avg"):
                yield ("adaptive optimizers dramatically outperform nonadaptive ones", label,
                       other)
    elif name in HARD:
        for label in ("Yogi", "Adam"):
            yield f"{label} has faster initial convergence than AvgM", label, "AvgM"


def _scaffold_behind(panel: str) -> Criterion:
    row, others = row_of(panel), ("Avg", *ADAPTIVE)
    sign = -row.scale if row.scale > 100 else row.scale

    def lowest(results: Results) -> np.ndarray:
        return np.min(paired(*(
            sign * results.final(panel, label, row.metric) for label in others
        )), 0)

    return criteria.ahead(
        f"{panel}: SCAFFOLD performs comparably to or worse than Avg and the adaptive methods. "
        f"Agrees if the worst of {', '.join(others)}, seed by seed, is at most "
        f"{-CLOSE:g} behind it by {row.metric}, in the mean over seeds.",
        lowest, lambda results: sign * results.final(panel, SCAFFOLD, row.metric), CLOSE,
        names=("one of them", SCAFFOLD),
    )


def figure_1_tables(results: Results) -> list[Table]:
    """Table 1's values, and SCAFFOLD's."""
    return [final_values(results, [*METHODS, SCAFFOLD])]


def draw_figure_1(figure: Figure, results: Results) -> None:
    """Validation performance against rounds, a panel a task, with Table 1 at their end."""
    for axes, panel in zip(
        drawing.panels_of(figure, results.panels), results.panels, strict=True
    ):
        row = row_of(panel)
        drawing.draw_curves(
            axes, results, panel, row.metric, [*METHODS, SCAFFOLD, *AS_RELEASED], scale=row.scale,
            published=dict(zip(METHODS, row.published, strict=True)),
        )
        axes.set_ylabel("error x 1,000" if row.scale > 100 else "accuracy or recall, per cent")


EXPERIMENTS = {
    "reddi2021-figure-1": Experiment(
        "adaptive server optimizers converge at least as fast, SCAFFOLD does not",
        f"{SOURCE}, Figure 1", figure_1_plan, figure_1_criteria, figure_1_tables, draw_figure_1,
    ),
}
