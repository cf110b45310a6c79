"""Reddi et al. 2021 (Adaptive Federated Optimization): Figures 2 to 4, on tuning, by training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedax.pictures.grids import adaptivity, best_server_rate, heat_map, heat_map_size
from fedax.report.tables import Table
from fedax.reproductions import drawing
from fedax.reproductions.criteria import gained, range_of, seed_by_seed
from fedax.reproductions.experiment import (
    NOT_IN_THE_FIGURE,
    Criterion,
    Experiment,
    Outcome,
    Plan,
    Scale,
    name_of,
)
from fedax.reproductions.reddi2021_parts import (
    ADAPTIVE,
    ADAPTIVITIES,
    FEW,
    FIGURE_3,
    METHODS,
    PLAYS,
    REDUCED,
    ROWS,
    SOURCE,
    full_grid,
    hours,
    in_fewer_rounds,
    in_words,
    row_of,
    small_panels,
    tuned,
    tuned_in_fewer_rounds,
    with_adaptivities,
)
from fedax.reproductions.results import LAST, Results, spread
from fedax.sweeps.choosing import choose

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OF_FIGURE_2 = ("Adam", "Yogi", "AvgM")
CLOSE = 0.05
# Almost as well, of an error; and small differences, in points or of an error.
NEARLY = 0.1
SMALL_RANGE, SMALL_SHARE = 2.0, 0.2
_D2 = (
    "The preset `reddi2021` of the task with both rates from the grid of appendix D.2 as the "
    "project recalls it."
)


def figure_2_plan(scale: Scale, stand_in: bool) -> Plan | None:
    """FedAdam, FedYogi and FedAvgM over both rates; small ones are on data of other figures."""
    plan = rates_plan(scale, stand_in, OF_FIGURE_2, ["SO NWP"])
    if plan is None or scale == "paper":
        return plan
    parts = tuple(part._replace(panel=part.panel + NOT_IN_THE_FIGURE) for part in plan.parts)
    times = {panel + NOT_IN_THE_FIGURE: those for panel, those in plan.hours.items()}
    return plan._replace(parts=parts, hours=times)


def figure_4_plan(scale: Scale, stand_in: bool) -> Plan | None:
    """All methods over both rates."""
    return rates_plan(scale, stand_in, tuple(METHODS), list(ROWS))


def rates_plan(
    scale: Scale, stand_in: bool, labels: Sequence[str], panels: Sequence[str]
) -> Plan | None:
    """Methods over both rates: at the scale "paper" on these tasks, else on all small ones."""
    small = scale == "small"
    if not small and stand_in:
        plays = [tuned_in_fewer_rounds(label) for label in labels]
        return in_fewer_rounds(plays) if name_of(PLAYS) in panels else None
    chosen = small_panels(stand_in) if small else panels
    make = tuned if small else full_grid
    parts = tuple(make(panel, label) for panel in chosen for label in labels)
    return Plan(parts, in_words(chosen, panels) if small else _D2, hours(parts, small=small))


def figure_3_plan(scale: Scale, stand_in: bool) -> Plan | None:
    """The adaptive methods over both rates and the adaptivity."""
    if scale == "paper" and not stand_in:
        parts = tuple(
            full_grid(panel, label, adaptivity=ADAPTIVITIES)
            for panel in ROWS for label in ADAPTIVE
        )
        return Plan(parts, _D2 + " Five values of the adaptivity.", hours(parts, small=False))
    few = ", ".join(f"{one:g}" for one in FEW)
    if scale == "paper":
        return in_fewer_rounds(with_adaptivities(PLAYS, FIGURE_3[REDUCED]), few)
    panels = small_panels(stand_in)
    parts = tuple(
        part for panel in panels for part in with_adaptivities(panel, FIGURE_3[panel])
    )
    words = in_words(panels).replace(", with adaptivity 0.001", "")
    return Plan(parts, f"{words} The adaptivity from {few}.", hours(parts, small=True))


def share_close(results: Results, panel: str, label: str) -> float:
    """The share of a method's settings whose mean metric is within 5% of the panel's best one.

    Section 5.2 shows heat maps, where this is the size of the good region; the best is that of all
    methods there, so that a method is not good for being near to its own. A setting that diverged
    with a seed is not close.
    """
    row = row_of(panel)

    def means(of: str) -> np.ndarray:
        return np.array([
            results.final(panel, of, row.metric, setting).mean()
            for setting in results.settings(panel, of)
        ])

    everything = np.concatenate([means(of) for of in results.labels(panel)])
    if np.isnan(everything).all():
        return 0.0
    if row.scale > 100:  # an error
        return float((means(label) <= (1 + CLOSE) * np.nanmin(everything)).mean())
    return float((means(label) >= (1 - CLOSE) * np.nanmax(everything)).mean())


def figure_2_criteria(results: Results) -> Sequence[Criterion]:
    """More good settings of the adaptive methods than of FedAvgM."""
    def judge_of(panel: str, label: str) -> Criterion:
        def judge(found: Results) -> Outcome:
            ours, other = (share_close(found, panel, one) for one in (label, "AvgM"))
            return Outcome(f"{ours:.0%} against {other:.0%}", ours > other)

        return seed_by_seed(Criterion(
            f"{panel}: of AvgM only few server rates are good for each client rate, of {label} "
            f"many for a range. Agrees if a larger share of {label}'s settings is within "
            f"{CLOSE:.0%} of the best {row_of(panel).metric} of all methods.",
            judge,
        ))

    return [judge_of(panel, label) for panel in results.panels for label in ("Adam", "Yogi")]


def figure_2_tables(results: Results) -> list[Table]:
    """The shares, and the best settings."""
    rows = [
        [panel, label, f"{share_close(results, panel, label):.0%}",
         *_numbers(results, panel, label)]
        for panel in results.panels for label in results.labels(panel)
    ]
    title = (
        "Share of a method's settings whose final metric is within 5% of the best of all methods, "
        "and the setting with the lowest training loss. The paper shows heat maps and gives no "
        "numbers. In the figure a star marks the setting with the best metric, and a dashed line "
        "an edge of the grid at which it lies."
    )
    return [Table(title, ["task", "method", "close", "client rate", "server rate", "metric"], rows)]


def _numbers(results: Results, panel: str, label: str) -> list[str]:
    try:
        best = results.best(panel, label)
    except LookupError:
        return ["diverged", "", ""]
    row = row_of(panel)
    metric = row.scale * results.final(panel, label, row.metric).mean()
    return [f"{best['client_learning_rate']:g}", f"{best['server_learning_rate']:g}",
            f"{metric:.2f}"]


def draw_figure_2(figure: Figure, results: Results) -> None:
    """A heat map a method, a row a task."""
    panels = results.panels
    first = results.settings(panels[0], results.labels(panels[0])[0])
    columns = len({one["server_learning_rate"] for one in first})
    width, height = heat_map_size(columns, len(first) // max(columns, 1))
    labels = [label for label in METHODS if label in results.labels(panels[0])]
    figure.set_size_inches(width * len(labels), height * len(panels))
    grid = figure.subplots(len(panels), len(labels), squeeze=False)
    for axes_row, panel in zip(grid, panels, strict=True):
        record = results.record(panel, row_of(panel).metric, labels)
        choice = choose(record, row_of(panel).metric)
        for axes, label in zip(axes_row, labels, strict=True):
            heat_map(record, choice, label, axes=axes)
            drawing.entitle(axes, f"{panel}: {label}")


def figure_3_criteria(results: Results) -> Sequence[Criterion]:
    """10^-3 is almost as good as any other adaptivity, except on Stack Overflow LR (section 5.2).

    FedAdam and FedYogi differ little among all of them.

    The number is lost in the available text; 10^-3 is what is remembered of the paper.
    """
    def judge_of(panel: str, label: str) -> Criterion:
        row = row_of(panel)
        error = row.scale > 100

        def judge(found: Results) -> Outcome:
            best = best_at(found, panel, label)
            if not best:
                return Outcome(f"{label} diverged", False)
            if 1e-3 not in best:
                return Outcome(f"{label} diverged with 10^-3", False)
            ours = best[1e-3]
            if error:
                share = ours.mean() / min(value.mean() for value in best.values()) - 1
                return Outcome(f"{share:.0%}", bool(share <= NEARLY))
            gap = max(best.values(), key=np.mean) - ours
            return Outcome(gained(gap, 1.0), bool(gap.mean() <= 1.0))

        near = f"at most {NEARLY:.0%} above" if error else "within 1 point of"
        return Criterion(
            f"{panel}: an adaptivity of 10^-3 works almost as well as all other values for "
            f"{label}. Agrees if with the best rates the mean of {row.metric} is {near} that with "
            "the best adaptivity.",
            judge,
        )

    panels = [panel for panel in results.panels if panel != "SO LR"]
    return [
        *(judge_of(panel, label) for panel in panels for label in results.labels(panel)),
        *(_small_differences(panel, label) for panel in panels for label in ("Adam", "Yogi")),
    ]


def _small_differences(panel: str, label: str) -> Criterion:
    row = row_of(panel)
    error = row.scale > 100

    def judge(results: Results) -> Outcome:
        values = [*best_at(results, panel, label).values()]
        if not values:
            return Outcome(f"{label} diverged", False)
        gap = range_of(values)
        if error:
            share = gap.mean() / min(one.mean() for one in values)
            return Outcome(f"{share:.0%}", bool(share <= SMALL_SHARE))
        return Outcome(gained(gap, SMALL_RANGE), bool(gap.mean() <= SMALL_RANGE))

    width = f"{SMALL_SHARE:.0%} of the least" if error else f"{SMALL_RANGE:g} points"
    return Criterion(
        f"{panel}: {label} sees only small differences among the values of the adaptivity. Agrees "
        f"if with the best rates the means of {row.metric} are within {width}.",
        judge,
    )


def best_at(results: Results, panel: str, label: str) -> dict[float, np.ndarray]:
    """Adaptivity -> the best metric over both rates, a posteriori, as in Figure 3; [seeds]."""
    row = row_of(panel)
    sign = 1 if row.scale > 100 else -1
    found: dict[float, np.ndarray] = {}
    for setting in results.settings(panel, label):
        values = row.scale * results.final(panel, label, row.metric, setting)
        if not np.isnan(values).any():
            known = found.setdefault(setting["adaptivity"], values)
            found[setting["adaptivity"]] = min(known, values, key=lambda one: sign * one.mean())
    return dict(sorted(found.items()))


def figure_3_tables(results: Results) -> list[Table]:
    """The best metric at each adaptivity."""
    values = sorted({
        setting["adaptivity"] for trace in results.traces for setting in [trace.values]
    })
    rows = []
    for panel in results.panels:
        for label in results.labels(panel):
            best = best_at(results, panel, label)
            rows.append([panel, label, *(
                spread(best[one]) if one in best else "diverged" for one in values
            )])
    title = (
        f"The metric with the best rates a posteriori, mean over {LAST} and over "
        "seeds, at each adaptivity. The paper shows curves and gives no numbers."
    )
    return [Table(title, ["task", "method", *(f"{one:g}" for one in values)], rows)]


def draw_figure_3(figure: Figure, results: Results) -> None:
    """The best metric against the adaptivity, a panel a task."""
    for axes, panel in zip(
        drawing.panels_of(figure, results.panels), results.panels, strict=True
    ):
        metric = row_of(panel).metric
        record = results.record(panel, metric)
        adaptivity(record, choose(record, metric), axes)
        drawing.entitle(axes, panel)


def best_rates(results: Results, panel: str, label: str) -> dict[float, float]:
    """Client rate -> the best server rate, that with the lowest training loss (section 4).

    Client rates that did not train are left out: those whose test loss with it is within 10% of the
    worst of all settings (section 5.3).
    """
    best: dict[float, tuple[float, float, float]] = {}
    worst = math.nan
    for setting in results.settings(panel, label):
        loss, test = (
            results.final(panel, label, metric, setting).mean()
            for metric in (results.by, "test_loss")
        )
        if not math.isnan(loss):
            found = (loss, setting["server_learning_rate"], test)
            client = setting["client_learning_rate"]
            best[client] = min(best.get(client, found), found)
            worst = float(np.fmax(worst, test))
    return {client: server for client, (_, server, test) in best.items() if test < 0.9 * worst}


def slope(results: Results, panel: str, label: str) -> float:
    """Of log best server rate against log client rate, by least squares; NaN of a single point."""
    found = best_rates(results, panel, label)
    if len(found) < 2:
        return math.nan
    x, y = np.log10([*found]), np.log10([*found.values()])
    # Without the 1e-17 of either sign that least squares leave where the best rate is the same for
    # all, and so that rates such as 0.0316, for 10^-1.5, do not tell two equal slopes apart.
    return round(float(np.polyfit(x, y, 1)[0]), 2) + 0.0


def figure_4_criteria(results: Results) -> Sequence[Criterion]:
    """An inverse relationship for FedAvg and FedAvgM, less of one for adaptive methods."""
    def falls(panel: str, label: str) -> Criterion:
        def judge(found: Results) -> Outcome:
            value = slope(found, panel, label)
            return Outcome(f"slope {value:.2f}", value < 0)

        return seed_by_seed(Criterion(
            f"{panel}: a clear inverse relationship between the client's rate and the best "
            f"server's of {label}. Agrees if its slope in logarithms is negative.",
            judge,
        ))

    def flatter(panel: str, label: str) -> Criterion:
        def judge(found: Results) -> Outcome:
            values = [slope(found, panel, one) for one in (label, "Avg")]
            return Outcome(f"slopes {values[0]:.2f} and {values[1]:.2f}",
                           abs(values[0]) < abs(values[1]))

        return seed_by_seed(Criterion(
            f"{panel}: much more stability of the best server rate for {label}. Agrees if its "
            "slope is nearer to 0 than that of Avg.",
            judge,
        ))

    return [
        one for panel in results.panels
        for one in (*(falls(panel, label) for label in ("AvgM", "Avg")),
                    *(flatter(panel, label) for label in ADAPTIVE))
    ]


def figure_4_tables(results: Results) -> list[Table]:
    """The slopes."""
    rows = [
        [panel, *(f"{slope(results, panel, label):.2f}" if label in results.labels(panel) else
                  "not run" for label in METHODS)]
        for panel in results.panels
    ]
    title = (
        "Slope of the logarithm of the best server rate against that of the client rate, by the "
        f"mean training loss of {LAST} and over seeds. Client rates that did not train are left "
        "out here and in the figure, as in the paper (section 5.3): those whose test loss is "
        "within 10% of the worst of the method. The paper shows the points and gives no numbers."
    )
    return [Table(title, ["task", *METHODS], rows)]


def draw_figure_4(figure: Figure, results: Results) -> None:
    """The best server rate against the client rate, a panel a task."""
    for axes, panel in zip(
        drawing.panels_of(figure, results.panels), results.panels, strict=True
    ):
        clients = {label: best_rates(results, panel, label) for label in results.labels(panel)}
        trained = Results(
            (trace for trace in results.traces if trace.panel == panel
             and trace.values["client_learning_rate"] in clients[trace.label]), results.by,
        )
        record = trained.record(panel, results.by)
        best_server_rate(record, choose(record, results.by), axes)
        drawing.entitle(axes, panel)


EXPERIMENTS = {
    "reddi2021-figure-2": Experiment(
        "FedAdam and FedYogi have more good pairs of rates than FedAvgM", f"{SOURCE}, Figure 2",
        figure_2_plan, figure_2_criteria, figure_2_tables, draw_figure_2,
    ),
    "reddi2021-figure-3": Experiment(
        "the adaptivity matters little, 10^-3 is nearly the best", f"{SOURCE}, Figure 3",
        figure_3_plan, figure_3_criteria, figure_3_tables, draw_figure_3,
    ),
    "reddi2021-figure-4": Experiment(
        "the best server rate falls with the client rate, less so for adaptive methods",
        f"{SOURCE}, Figure 4", figure_4_plan, figure_4_criteria, figure_4_tables, draw_figure_4,
    ),
}
