"""The decaying-steps paper (2021): Figures 2 to 4 and Table 1, by training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedax.report.tables import Table
from fedax.reproductions import criteria
from fedax.reproductions.decay2021_plans import (
    CONSTANT,
    DATA,
    FLAT,
    RATE,
    ROUNDS,
    SCHEMES,
    STEPS,
    label,
    metric_of,
    plan,
    steps_of,
)
from fedax.reproductions.drawing import keep_in_sight, mark_published
from fedax.reproductions.experiment import Criterion, Experiment, Outcome, name_of
from fedax.reproductions.results import LAST, POINTS, Results, paired, spread
from fedax.rounds.style import legend, line_style, tidy

if TYPE_CHECKING:  # matplotlib is slow to import, and only drawing needs it
    from matplotlib.figure import Figure

SOURCE = "Decaying steps 2021, "
# Section 4.1: settings are chosen by the test accuracy. Only small plans have a grid.
BY = "test_accuracy"
# Section 4.1: "the highest test accuracy over the last 500 rounds".
CHOSEN_OVER = 500


def highest(panel: str, steps: int, scheme: str) -> Callable[[Results], np.ndarray]:
    """Reads the highest test accuracy in per cent."""
    metric = metric_of(panel)
    return lambda results: 100 * results.highest(panel, label(steps, scheme), metric)


def lowest_error(panel: str, steps: int, scheme: str) -> Callable[[Results], np.ndarray]:
    """Reads the lowest training loss, of means over a fortieth of the rounds."""
    def read(results: Results) -> np.ndarray:
        name = label(steps, scheme)
        values = results.curve(panel, name, "train_loss")[1]
        lowest = values.min(1) if values.size else np.nan
        return np.where(np.isnan(results.final(panel, name, "train_loss")), np.nan, lowest)

    return read


def share(panel: str, steps: int) -> Callable[[Results], np.ndarray]:
    """Reads the share of local steps that decaying K takes."""
    def read(results: Results) -> np.ndarray:
        name = label(steps, STEPS)
        values = results.curve(panel, name, "num_local_steps")[1]
        if not values.size or np.isnan(results.final(panel, name, "train_loss")).any():
            return np.array([np.nan])
        return values.mean(1) / steps

    return read


def still_to_come(results: Results, panel: str, name: str) -> float:
    """By how many points a method's accuracy would still rise up to the published 4,000 rounds.

    If it rises with each doubling of the rounds as it did from the third quarter to the last, whose
    middles are log2(7 / 5) doublings apart. With 4,000 rounds, and where every run diverged, 0.
    """
    rounds, values = results.curve(panel, name, metric_of(panel))
    runs = 100 * values[~np.isnan(values).any(1)] if values.size else values
    if not runs.size or len(rounds) < 4:
        return 0.0
    quarter = runs.shape[1] // 4
    gain = runs[:, -quarter:].mean() - runs[:, -2 * quarter : -quarter].mean()
    done = max(trace.rounds for trace in results.traces if trace.panel == panel)
    return float(gain / np.log2(7 / 5) * np.log2(max(ROUNDS / done, 1)))


def at_a_plateau(criterion: Criterion, panel: str, names: Sequence[str]) -> Criterion:
    """A point on what training ends with; it is inconclusive where one of the methods still rises.

    Args:
      criterion: the point.
      panel: which.
      names: of the methods that it compares.
    """
    def judge(results: Results) -> Outcome:
        found = criterion.judge(results)
        most = max(still_to_come(results, panel, name) for name in names)
        if most <= FLAT:
            return found
        return found._replace(
            measured=f"{found.measured}; no plateau: {most:.1f} points still to come",
            inconclusive=True,
        )

    return Criterion(f"{criterion.statement} Inconclusive without a plateau.", judge)


def table_1_criteria(results: Results) -> Sequence[Criterion]:
    """Equal accuracy, and less training error with larger K.

    The share of steps is arithmetic and agrees by itself, so it is no criterion.
    """
    found = []
    for panel in results.panels:
        columns = DATA[name_of(panel)].columns
        counts = steps_of(results, panel)
        for k in counts:
            column = columns[k]
            gap = round(100 * (column.steps_accuracy - column.rate_accuracy))
            least = 0 if gap > 0 else -1 if gap >= -1 else gap - 1
            needed = f"at least {least:+d}" if least else "positive"
            found.append(at_a_plateau(criteria.ahead(
                f"{panel}, K = {k}: the highest test accuracy of decaying K less that of decaying "
                f"gamma was {gap:+d} points. Agrees if it is {needed}, in the mean over seeds.",
                highest(panel, k, STEPS), highest(panel, k, RATE), least,
            ), panel, [label(k, STEPS), label(k, RATE)]))
        for scheme in (RATE, STEPS):
            if name_of(panel) != "StackOverflow":
                found.append(_less_error(panel, counts, scheme))
    return found


def _less_error(panel: str, counts: Sequence[int], scheme: str) -> Criterion:
    """Section 4.2, of constant gamma and K; Table 1 has it of the decays for two data sets."""
    few, many = counts[0], counts[-1]
    return criteria.ahead(
        f"{panel}, {scheme}: larger K reaches a lower training error. Agrees if the lowest "
        f"training loss (of means over a fortieth of the rounds) with K = {many} is below that "
        f"with K = {few}.",
        lambda results: -lowest_error(panel, many, scheme)(results),
        lambda results: -lowest_error(panel, few, scheme)(results),
    )


def figure_criteria(results: Results) -> Sequence[Criterion]:
    """What section 4.2 says of the curves."""
    return [one for panel in results.panels for one in _of_panel(panel, steps_of(results, panel))]


def _of_panel(panel: str, counts: Sequence[int]) -> Iterator[Criterion]:
    metric = metric_of(panel)

    def final(results: Results, k: int) -> np.ndarray:
        return 100 * results.final(panel, label(k, CONSTANT), metric)

    def of(schemes: Sequence[str], ks: Sequence[int]) -> list[str]:
        return [label(k, scheme) for scheme in schemes for k in ks]

    few, many = counts[0], counts[-1]
    yield criteria.ahead(
        f"{panel}, (a): with constant gamma and K, higher K converges faster. Agrees if the mean "
        f"test accuracy over the first quarter of the rounds, in per cent, with K = {many} is "
        f"above that with K = {few}.",
        criteria.along(panel, label(many, CONSTANT), metric, 100, 0.25),
        criteria.along(panel, label(few, CONSTANT), metric, 100, 0.25),
        names=(f"K = {many}", f"K = {few}"),
    )
    yield _less_error(panel, counts, CONSTANT)
    if name_of(panel) == "StackOverflow":
        yield at_a_plateau(criteria.ahead(
            f"{panel}, (a): higher K has the higher recall. Agrees if the highest with K = {many} "
            f"is above that with K = {few}.",
            highest(panel, many, CONSTANT), highest(panel, few, CONSTANT),
        ), panel, of([CONSTANT], (few, many)))
        yield at_a_plateau(criteria.between(
            f"{panel}, (b): decaying gamma could not improve over constant gamma. Agrees if the "
            "highest recall over all K is at most 1 point higher.",
            lambda results: np.subtract(*paired(
                _top(panel, counts, RATE)(results), _top(panel, counts, CONSTANT)(results)
            )), -np.inf, 1.0,
        ), panel, of([RATE, CONSTANT], counts))
        for scheme in (CONSTANT, RATE):
            yield at_a_plateau(criteria.ahead(
                f"{panel}, (c): significant improvements over both by decaying K. Agrees if the "
                f"highest recall over all K is at least 1 point above that with {scheme}.",
                _top(panel, counts, STEPS), _top(panel, counts, scheme), 1.0,
            ), panel, of([STEPS, scheme], counts))
        return
    yield at_a_plateau(criteria.ahead(
        f"{panel}, (a): but final test accuracy is harmed by higher K. Agrees if the mean over the "
        f"last 100 rounds with the best smaller K is above that with K = {many}, in per cent.",
        lambda results: np.max(paired(*(final(results, k) for k in counts[:-1])), axis=0),
        lambda results: final(results, many),
    ), panel, of([CONSTANT], counts))
    for letter, scheme in (("b", RATE), ("c", STEPS)):
        for k in counts:
            yield at_a_plateau(criteria.ahead(
                f"{panel}, ({letter}): the highest test accuracy with {scheme} is the same as with "
                f"both constant or better. Agrees if it is at most 0.5 points lower, K = {k}.",
                highest(panel, k, scheme), highest(panel, k, CONSTANT), -0.5,
            ), panel, of([scheme, CONSTANT], [k]))


def _top(panel: str, counts: Sequence[int], scheme: str) -> Callable[[Results], np.ndarray]:
    """Reads the highest accuracy of a scheme over all K."""
    return lambda results: np.max(
        paired(*(highest(panel, k, scheme)(results) for k in counts)), axis=0
    )


def table_1_tables(results: Results) -> list[Table]:
    """Table 1, published beside measured."""
    rows = []
    for panel in results.panels:
        name = name_of(panel)
        for k, column in DATA[name].columns.items():
            lines = [
                (f"{RATE}, highest accuracy", 100 * column.rate_accuracy,
                 highest(panel, k, RATE), 1),
                (f"{STEPS}, highest accuracy", 100 * column.steps_accuracy,
                 highest(panel, k, STEPS), 1),
                (f"{RATE}, lowest training error", column.rate_error,
                 lowest_error(panel, k, RATE), 3),
                (f"{STEPS}, lowest training error", column.steps_error,
                 lowest_error(panel, k, STEPS), 3),
                ("share of steps used", column.share, share(panel, k), 3),
            ]
            for what, published, read, digits in lines:
                words = f"{panel}, K = {k}: {what}"
                is_alike = name == panel or "share" in what
                scheme = RATE if what.startswith(RATE) else STEPS
                rows.append(
                    _row(words, published, read(results), digits, is_alike=is_alike)
                    if label(k, scheme) in results.labels(panel)
                    else [words, f"{published:g}", "not run", ""]
                )
    return [Table(
        "Highest test accuracy (of Stack Overflow recall at 5) during training in per cent, lowest "
        "training loss of means over a fortieth of the rounds, and the share of local steps that "
        "decaying K takes: means over seeds with the sample standard deviation. For a "
        "stand-in, the published numbers are those of the data set that it replaces, and only the "
        "shares are compared with them.",
        ["", "published", "measured", "measured less published"], rows,
    )]


def _row(
    what: str, published: float, measured: np.ndarray, digits: int, *, is_alike: bool
) -> list[str]:
    """A row; on a stand-in, a difference from what was published has no meaning."""
    gap = measured - published
    is_known = is_alike and len(gap) and not np.isnan(gap).any()
    return [
        what, f"{published:g}", spread(measured, digits),
        f"{gap.mean():+.{digits}f}" if is_known else "",
    ]


def figure_tables(results: Results) -> list[Table]:
    """What the figures show in numbers; the text has none for constant gamma and K."""
    tables = []
    for panel in results.panels:
        metric = metric_of(panel)
        rows = [
            [name + _tuned(results, panel, name),
             spread(results.final(panel, name, metric), 1, 100),
             spread(highest(panel, k, scheme)(results), 1),
             spread(lowest_error(panel, k, scheme)(results), 3)]
            for scheme in SCHEMES for k in steps_of(results, panel)
            if (name := label(k, scheme)) in results.labels(panel)
        ]
        tables.append(Table(
            f"{panel}: {metric} in per cent and training loss; over {LAST} and over seeds. "
            "Published: the figure; numbers are in decay2021-table-1.",
            ["", "accuracy, last rounds", "highest accuracy", "lowest training error"], rows,
        ))
    return tables


def _tuned(results: Results, panel: str, name: str) -> str:
    """The server rate of a method, where it was tuned."""
    try:
        rate = results.best(panel, name).get("server_learning_rate")
    except LookupError:
        return ""
    return "" if rate is None else f", eta_0 = {rate:g}"


def draw(figure: Figure, results: Results) -> None:
    """Training error and test accuracy, a column a scheme, a line a K_0, with Table 1's best."""
    panels = results.panels
    figure.set_size_inches(12, 6 * len(panels))
    grid = figure.subplots(2 * len(panels), len(SCHEMES), squeeze=False, sharex="row",
                           sharey="row")
    for place, panel in enumerate(panels):
        metric = metric_of(panel)
        words = "top-5 recall" if metric == "test_recall_at_5" else "top-1 accuracy"
        for column, scheme in enumerate(SCHEMES):
            for row, (key, text) in enumerate((("train_loss", "training error"), (metric, words))):
                axes = grid[2 * place + row][column]
                handles, names, published = [], [], []
                for number, k in enumerate(steps_of(results, panel)):
                    rounds, values = results.curve(panel, label(k, scheme), key)
                    if not len(rounds):
                        continue
                    style = line_style(number) | {"marker": ""}
                    if key == "train_loss":
                        rounds, values = smoothed(rounds, values)
                    (line,) = axes.plot(rounds, np.nanmean(values, 0), **style)
                    axes.fill_between(rounds, np.nanmin(values, 0), np.nanmax(values, 0),
                                      alpha=0.15, color=line.get_color(), linewidth=0)
                    handles.append(line)
                    names.append(f"K = {k}")
                    of_table = _published(panel, k, scheme, key)
                    if of_table is not None:
                        published.append((line, of_table))
                tidy(axes)
                if published:
                    handles.append(mark_published(axes, published))
                    names.append(f"best, published, {name_of(panel)}")
                if row == 0:
                    axes.set_title(f"{panel}\n({'abc'[column]}) {scheme}")
                else:
                    axes.set_xlabel("round")
                if column == 0:
                    axes.set_ylabel(text)
                if handles:
                    legend(axes, handles, names)
        keep_in_sight(grid[2 * place][0])


def smoothed(rounds: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A curve's means over a twentieth of the rounds, as section 4.2's over 200 of 4,000.

    Args:
      rounds: where the windows of a curve are [n].
      values: their means [seeds, n].

    Example:
      >>> smoothed(np.array([50.0, 150.0, 250.0]), np.array([[4.0, 2.0, 1.0]]))
      (array([150., 250.]), array([[3. , 1.5]]))
    """
    width = min(POINTS // 20, len(rounds))
    means = np.lib.stride_tricks.sliding_window_view(values, width, axis=1).mean(2)
    return rounds[width - 1 :], means


def _published(panel: str, steps: int, scheme: str, metric: str) -> float | None:
    """Of Table 1 the lowest training error or the highest accuracy; recall is no accuracy."""
    if metric_of(panel) != DATA[name_of(panel)].metric:
        return None
    column, error = DATA[name_of(panel)].columns[steps], metric == "train_loss"
    if scheme == RATE:
        return column.rate_error if error else column.rate_accuracy
    if scheme == STEPS:
        return column.steps_error if error else column.steps_accuracy
    return None


def _figure(number: int, name: str) -> Experiment:
    return Experiment(
        f"training error and test accuracy with constant, decaying gamma and decaying K, on {name}",
        f"{SOURCE}Figure {number}", plan([name], list(SCHEMES)), figure_criteria, figure_tables,
        draw, BY, maximise=True, over=CHOSEN_OVER,
    )


EXPERIMENTS: dict[str, Experiment] = {
    "decay2021-figure-2": _figure(2, "StackOverflow"),
    "decay2021-figure-3": _figure(3, "FEMNIST"),
    "decay2021-figure-4": _figure(4, "Shakespeare"),
    "decay2021-table-1": Experiment(
        "decaying K reaches the accuracy of decaying gamma with up to 3.8 times fewer local steps",
        f"{SOURCE}Table 1", plan(list(DATA), [RATE, STEPS]), table_1_criteria, table_1_tables,
        by=BY, maximise=True, over=CHOSEN_OVER,
    ),
}
