"""Charles and Konečný 2020, sections 8 and 9, by training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedax.report.tables import Table
from fedax.reproductions import charles2020_criteria as criteria
from fedax.reproductions import charles2020_rate_criteria as rate_criteria
from fedax.reproductions.charles2020_plans import (
    AT_FIXED,
    BEGUN,
    BY_SGD,
    BY_YOGI,
    DATA,
    LONG_TUNED,
    LOSS,
    NORM,
    REDUCED,
    TIED,
    TUNED,
    Kind,
    constant,
    plan,
    rates_of,
    reduced,
    tied,
)
from fedax.reproductions.experiment import Experiment, Plan, Scale, name_of
from fedax.reproductions.results import LAST, Results, spread
from fedax.rounds.style import legend, line_style, tidy

if TYPE_CHECKING:  # matplotlib is slow to import, and only drawing needs it
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SOURCE = "Charles and Konečný 2020, "
_LOSSES = (
    "the mean training loss over the first quarter of the rounds and over the last 100, over seeds "
    "with the sample standard deviation"
)


def loss_tables(results: Results) -> list[Table]:
    """The figures' curves in numbers; the text publishes none."""
    return [
        Table(
            f"{panel}: {_LOSSES}. Published: curves, of which the text has no numbers.",
            ["", "first", "last"],
            [[label, *criteria.losses(results, panel, label)] for label in results.labels(panel)],
        )
        for panel in results.panels
    ]


def norm_tables(results: Results) -> list[Table]:
    """Figure 3 in numbers."""
    tables = []
    for panel in results.panels:
        rows = []
        for label in results.labels(panel):
            norms = results.curve(panel, label, NORM)[1]
            within = results.deviations(panel, label, NORM)
            known = norms.size and within.size
            rows.append([
                label, spread(norms.mean(1), 3) if known else "diverged",
                spread(within.mean(1), 3) if known else "diverged",
            ])
        tables.append(Table(
            f"{panel}: norm of the update q_t, its mean over all rounds and its standard deviation "
            "within windows of a fortieth of them (the paper's: of 1,000 rounds), over seeds with "
            "the sample standard deviation. "
            "Published: curves, of which the text has no numbers.",
            ["", "mean norm", "standard deviation within windows"], rows,
        ))
    return tables


def best_rate_tables(results: Results) -> list[Table]:
    """Tables 3 to 7, published beside measured."""
    tables = []
    for panel in results.panels:
        published = DATA[name_of(panel)].best
        rows, tried = [], rates_of(results, panel)
        for rate in sorted({*tried, *published}, reverse=True):
            label = constant(rate)
            found = [_best(results, panel, label), criteria.losses(results, panel, label)[1]]
            rows.append([
                f"{rate:g}", f"{published[rate]:.3g}" if rate in published else "not listed",
                *(found if rate in tried else ["not run", ""]),
            ])
        tables.append(Table(
            f"{panel}: the best eta for each gamma, by the mean training loss over {LAST} and "
            f"over seeds. Published: {name_of(panel)}.",
            ["gamma", "published eta", "measured eta", "loss, last rounds"], rows,
        ))
    return tables


def _of_the_papers_data(scale: Scale, stand_in: bool) -> Plan | None:
    """Table 2's rates are of its data; on other data they mean nothing."""
    return None if stand_in else plan(list(DATA), [REDUCED])(scale, stand_in)


def reduce_tables(results: Results) -> list[Table]:
    """Table 2, published beside measured."""
    rows = []
    for panel in results.panels:
        gamma, eta = DATA[name_of(panel)].reduce
        try:
            found = rate_criteria.begins_at(results, panel)
            measured = [f"{found:g}", _best(results, panel, reduced(found)),
                        criteria.losses(results, panel, reduced(found))[1]]
        except LookupError:
            measured = ["diverged", "", ""]
        rows.append([panel, f"{gamma:g}", measured[0], f"{eta:.3g}", *measured[1:]])
    return [Table(
        "Rates of LocalUpdateDecay: the largest gamma that does not diverge, and the best eta by "
        f"the mean training loss over {LAST} and over seeds. For Shakespeare the paper "
        "prints eta = 10^(3/2), which is not in its grid; its minus sign is thought to be lost. "
        "For a stand-in, the published rates are those of the data set "
        "that it replaces.",
        ["", "published gamma", "measured gamma", "published eta", "measured eta",
         "loss, last rounds"], rows,
    )]


def _best(results: Results, panel: str, label: str) -> str:
    try:
        return f"{results.best(panel, label)['server_learning_rate']:.3g}"
    except LookupError:
        return "diverged"


def _drawing(
    metric: str, words: str, kinds: Sequence[Callable[[float], str]]
) -> Callable[[Figure, Results], None]:
    """A panel a task and a line a label, on a logarithmic axis.

    Args:
      metric: on the vertical axis; norms with their spread within windows as a pale band, losses
        with the least and the most of the seeds.
      words: the axis's name.
      kinds: of labels.
    """
    def draw(figure: Figure, results: Results) -> None:
        panels = results.panels
        figure.set_size_inches(5 * len(panels), 4.4)
        for axes, panel in zip(
            figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
        ):
            labels = [
                called(rate) for called in kinds for rate in rates_of(results, panel, called)
                if called is not reduced or rate == _drawn(results, panel)
            ]
            _lines(axes, results, panel, metric, labels)
            axes.set(title=panel, xlabel="round", yscale="log")
            axes.set_ylabel(words)

    return draw


def _drawn(results: Results, panel: str) -> float | None:
    try:
        return rate_criteria.begins_at(results, panel)
    except LookupError:
        return None


def _lines(
    axes: Axes, results: Results, panel: str, metric: str, labels: Sequence[str]
) -> None:
    handles, names = [], []
    for number, label in enumerate(labels):
        rounds, values = results.curve(panel, label, metric)
        if not len(rounds):  # all diverged, which the paper omits, too
            continue
        mean = np.nanmean(values, 0)
        low, high = np.nanmin(values, 0), np.nanmax(values, 0)
        if metric == NORM:
            within = results.deviations(panel, label, metric).mean(0)
            low, high = mean - within, mean + within
        style: dict[str, Any] = {**line_style(number), "marker": ""}
        (line,) = axes.plot(rounds, mean, **style)
        axes.fill_between(rounds, np.maximum(low, 1e-3 * mean), high, color=line.get_color(),
                          alpha=0.15, linewidth=0)
        handles.append(line)
        names.append(label.replace(", gamma =", " from"))
    tidy(axes)
    if handles:
        legend(axes, handles, names, below=True)


_CROSS_ENTROPY = "cross-entropy training loss"
_AT_CONSTANT = _drawing(LOSS, _CROSS_ENTROPY, [constant])
_WITH_REDUCED = _drawing(LOSS, _CROSS_ENTROPY, [constant, reduced])


def _rates_table(number: int, name: str) -> Experiment:
    return Experiment(
        f"the best server rate for each client rate, on {name}", f"{SOURCE}Table {number}",
        plan([name], [TUNED]), rate_criteria.tables_3_to_7, best_rate_tables, by=LOSS,
    )


def _against_decay(number: int, names: Sequence[str]) -> Experiment:
    kinds: list[Kind] = [LONG_TUNED, BEGUN, REDUCED]
    return Experiment(
        "LocalUpdateDecay, whose client rate is not tuned, against tuned constant rates",
        f"{SOURCE}Figure {number}", plan(names, kinds), rate_criteria.figure_8, loss_tables,
        _WITH_REDUCED, by=LOSS,
    )


EXPERIMENTS: dict[str, Experiment] = {
    "charles2020-figure-2": Experiment(
        "with a fixed server rate, large client rates are fast at first and small ones end lower",
        f"{SOURCE}Figure 2", plan(BY_SGD, [AT_FIXED]), criteria.figure_2, loss_tables,
        _AT_CONSTANT, by=LOSS,
    ),
    "charles2020-figure-3": Experiment(
        "the norm of the server's update falls as the client rate grows", f"{SOURCE}Figure 3",
        plan(["CIFAR-100"], [AT_FIXED]), criteria.figure_3, norm_tables,
        _drawing(NORM, "norm of the update", [constant]), by=LOSS,
    ),
    "charles2020-figure-4": Experiment(
        "tying the client and the server rate together is not enough", f"{SOURCE}Figure 4",
        plan(["CIFAR-100"], [TIED, TUNED]), criteria.figure_4, loss_tables,
        _drawing(LOSS, _CROSS_ENTROPY, [tied]), by=LOSS,
    ),
    "charles2020-figure-5": Experiment(
        "with tuned server rates large client rates are as good where rounds are few",
        f"{SOURCE}Figure 5", plan(BY_SGD, [TUNED]), criteria.figure_5, loss_tables,
        _AT_CONSTANT, by=LOSS,
    ),
    "charles2020-figure-6": Experiment(
        "with Yogi and a fixed server rate, client rates on Stack Overflow",
        f"{SOURCE}Figure 6", plan(BY_YOGI, [AT_FIXED]), criteria.figure_6, loss_tables,
        _AT_CONSTANT, by=LOSS,
    ),
    "charles2020-figure-7": Experiment(
        "with Yogi and tuned server rates, client rates on Stack Overflow",
        f"{SOURCE}Figure 7", plan(BY_YOGI, [TUNED]), criteria.figure_7, loss_tables,
        _AT_CONSTANT, by=LOSS,
    ),
    "charles2020-figure-8": _against_decay(8, BY_SGD),
    "charles2020-figure-9": _against_decay(9, BY_YOGI),
    "charles2020-table-2": Experiment(
        "the rates of LocalUpdateDecay", f"{SOURCE}Table 2", _of_the_papers_data,
        rate_criteria.table_2, reduce_tables, by=LOSS,
        alone="the rates are those of its data, and on others may be any",
    ),
    "charles2020-table-3": _rates_table(3, "CIFAR-100"),
    "charles2020-table-4": _rates_table(4, "FEMNIST"),
    "charles2020-table-5": _rates_table(5, "Shakespeare"),
    "charles2020-table-6": _rates_table(6, "StackOverflow NWP"),
    "charles2020-table-7": _rates_table(7, "StackOverflow TP"),
}
