"""Reddi et al. 2021 (Adaptive Federated Optimization): Figures 5 to 11, on pairs of rates."""

from __future__ import annotations

from collections.abc import Callable

from fedax.reproductions.experiment import Experiment, Plan, Scale
from fedax.reproductions.reddi2021_parts import METHODS, ROWS, SOURCE
from fedax.reproductions.reddi2021_tuning import (
    draw_figure_2,
    figure_2_criteria,
    figure_2_tables,
    rates_plan,
)

# The appendix has a figure like Figure 2 for each task, with all methods.
TASK_OF_FIGURE = dict(enumerate(ROWS, start=5))


def _plan_of(panel: str) -> Callable[[Scale, bool], Plan | None]:
    """All methods over both rates on one task, with published settings."""
    def plan(scale: Scale, stand_in: bool) -> Plan | None:
        if scale == "small":
            return None
        whole = rates_plan(scale, stand_in, tuple(METHODS), [panel])
        return whole and whole._replace(settings=(
            f"{whole.settings} The available text has no figure of the appendix; which number is "
            "which task's is taken from the order of Table 1."
        ))

    return plan


EXPERIMENTS = {
    f"reddi2021-figure-{number}": Experiment(
        f"which pairs of rates are good for each of five methods, on {panel}",
        f"{SOURCE}, Figure {number}", _plan_of(panel), figure_2_criteria, figure_2_tables,
        draw_figure_2,
        alone="" if panel == "Shakespeare" else
        "it shows all pairs of rates on one of the paper's own tasks; Figure 2 asks the same of "
        "smaller ones",
    )
    for number, panel in TASK_OF_FIGURE.items()
}
