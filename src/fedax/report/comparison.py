"""The page that compares runs: what differs between their settings, and their curves."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedax.pictures.labels import by_setting, labels_of_runs
from fedax.report.curves import MOST_POINTS, Chart, View, in_units, view_of
from fedax.report.document import Page
from fedax.report.marks import (
    Cell,
    Column,
    cell,
    listed,
    pairs,
    shortened,
    sorted_table,
    ticked,
    words,
)
from fedax.report.results import results_table
from fedax.report.runs import LAST_ROUNDS, Run, warnings
from fedax.rounds.directions import TEST, is_evaluated, shown_first
from fedax.rounds.history import UNDEFINED, is_undefined, mean_and_spread

# Of more runs only the best few are drawn at first.
MOST_AT_FIRST, BEST_AT_FIRST = 24, 8
# Of so many runs a kind of warning stands with each; of more, once, with their names.
_FEW = 2
# The table of results has so many metrics at most.
MOST_METRICS = 6


def comparison_page(runs: Sequence[Run], command: str = "") -> str:
    """One page for several runs, finished or not. It needs no network and no other file.

    Args:
      runs: with different names.
      command: that made the page.
    """
    differing, common = _settings(runs)
    shown = _best(np.array([run.train_loss for run in runs]))
    title = f"{len(runs)} runs: {listed(dict.fromkeys(run.title for run in runs), 3)}"
    labels = labels_of_runs([run.config for run in runs], [run.name for run in runs])
    table = _table(runs, labels, differing, shown)
    key = ' <span class="key">Settings that differ</span> are coloured, and bold where a run ' \
        "differs from the majority." if differing else " All settings are the same."
    views = _views(runs)
    return Page(
        title=title,
        state=f"{sum(run.summary is not None for run in runs)} of {len(runs)} finished",
        warnings=list(_warnings(runs)),
        before=_results(runs),
        charts=[Chart("Runs", labels, views, shown, in_table=True), *_means(runs)] if views else [],
        after=(
            f"<h2>Runs</h2>\n<p>Click a heading to sort; tick a run to see its curve.{key}</p>\n"
            f"{table}\n<h2>Settings in common</h2>\n{pairs(common)}"
        ),
        commands={"One of the runs, with its folder:": "fedax run --config RUN/config.json"}
        | ({"This page:": command} if command else {}),
        made_by=_same([run.config.get("made_by", {}) for run in runs]),
    ).html()


def _settings(runs: Sequence[Run]) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """The settings that differ, name -> a value a run, and those that all have."""
    settings = [run.settings for run in runs]
    names = dict.fromkeys(name for found in settings for name in found)
    missing = Cell("-", math.nan)
    columns = {name: [found.get(name, missing) for found in settings] for name in names}
    differing = {
        name: values for name, values in columns.items() if len({_known(v) for v in values}) > 1
    }
    return differing, {n: values[0] for n, values in columns.items() if n not in differing}


def _known(value: Any) -> str:
    """By which values are the same: 1 and 1.0 are, 1 and true are not."""
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return repr(float(value)) if plain else repr(value)


def _same(records: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What each record says, where they differ all that is said."""
    names = dict.fromkeys(name for record in records for name in record)
    return {
        name: listed(dict.fromkeys(str(record[name]) for record in records if name in record))
        for name in names
    }


def _best(losses: np.ndarray) -> list[bool]:
    """Which curves are there at first, by their training losses."""
    if len(losses) <= MOST_AT_FIRST:
        return [True] * len(losses)
    best = set(np.argsort(losses, kind="stable")[:BEST_AT_FIRST].tolist())  # NaN last
    return [number in best for number in range(len(losses))]


def _means(runs: Sequence[Run]) -> list[Chart]:
    """A picture of the means over the runs that differ in nothing but their seeds, if any do."""
    groups = by_setting([run.config for run in runs], [run.name for run in runs])
    if all(len(places) == 1 for places in groups.values()):
        return []
    rounds = np.arange(1, max(len(run.rounds) for run in runs) + 1)
    views = []
    for metric in merged(run.metrics for run in runs):
        if metric != "train_loss" and not is_evaluated(metric):
            continue
        mean, spread = np.full((2, len(groups), len(rounds)), np.nan)
        for row, places in enumerate(groups.values()):
            values = [run.values(metric) for run in map(runs.__getitem__, places)]
            count = min(map(len, values))
            of_seeds = np.stack([some[:count] for some in values])
            mean[row, :count], spread[row, :count] = mean_and_spread(of_seeds)
        views.append(view_of(metric, rounds, mean, spread))
    losses = np.array([
        np.mean([runs[place].train_loss for place in places]) for places in groups.values()
    ])
    labels = [
        f"{shortened(label)} ({len(places)} seed{'s' * (len(places) > 1)})"
        for label, places in groups.items()
    ]
    known = [view for view in views if view is not None]
    return [Chart("Means over seeds", labels, known, _best(losses))] if known else []


def _views(runs: Sequence[Run]) -> list[View]:
    """Training loss and test metrics; the others too, as long as the page stays small."""
    rounds = np.arange(1, max((len(run.rounds) for run in runs), default=0) + 1)
    found: list[View] = []
    for metric in merged(run.metrics for run in runs):
        values = np.full((len(runs), len(rounds)), np.nan)
        for row, run in enumerate(runs):
            values[row, : len(run.rounds)] = run.values(metric)
        wanted = metric == "train_loss" or is_evaluated(metric)
        size = sum(view.values.size for view in found)
        if not wanted and size + np.isfinite(values).any(axis=0).sum() * len(runs) > MOST_POINTS:
            continue
        view = view_of(metric, rounds, values)
        if view is not None:
            found.append(view)
    return found


def merged(names: Iterator[Sequence[str]]) -> list[str]:
    """The metrics of several runs: training loss, tests, others."""
    known = dict.fromkeys(name for some in names for name in some)
    return sorted(known, key=shown_first)


def _results(runs: Sequence[Run]) -> str:
    """What the settings came to over their seeds, above all else."""
    tests = dict.fromkeys(name for run in runs for name in run.final if is_evaluated(name))
    losses = any(run.result("train_loss") is not None for run in runs)
    tests = sorted(tests, key=lambda name: not name.startswith(TEST))
    own = [name for name in tests if "_own_" in name]
    metrics = [*(name for name in tests if name not in own), *(["train_loss"] if losses else [])]
    if not metrics and not own:
        return ""
    found = results_table(runs, metrics[:MOST_METRICS] + own[:MOST_METRICS])
    return f"<h2>Results</h2>\n{found.html()}\n"


def _last_rounds(runs: Sequence[Run]) -> str:
    """Over how many rounds the training loss is averaged, in words.

    Example:
      >>> _last_rounds([Run("a", {}, [{"round": r} for r in range(20)], None, {})])
      '20 rounds'
    """
    counts = {min(LAST_ROUNDS, len(run.rounds)) for run in runs}
    return f"{max(counts)} rounds" + (" at most" if len(counts) > 1 else "")


def _table(
    runs: Sequence[Run], labels: Sequence[str], differing: Mapping[str, list[Any]],
    shown: Sequence[bool],
) -> str:
    columns = [
        Column("curve", [
            Cell(ticked("chart-0", i, label, shown=shown[i], named=False), float(i))
            for i, label in enumerate(labels)
        ]),
        Column("run", [run.name for run in runs], "name"),
        Column(f"train loss, last {_last_rounds(runs)}", [
            None if math.isnan(run.train_loss) else run.train_loss for run in runs
        ]),
    ]
    finals = [run.final for run in runs]
    for name in dict.fromkeys(name for final in finals for name in final):
        if is_evaluated(name):
            columns.append(Column(words(name), [_measured(name, f) for f in finals]))
    seconds = [
        None if run.summary is None else float(run.summary.get("seconds", math.nan)) for run in runs
    ]
    return sorted_table("The runs", [
        *columns,
        *(Column(name, _odd(values), "differs") for name, values in differing.items()),
        Column("seconds", seconds), Column("state", [run.state for run in runs]),
    ])


def _measured(metric: str, final: Mapping[str, float | None]) -> Cell:
    value = final.get(metric)
    if is_undefined(final, metric):
        return Cell(UNDEFINED, math.nan, "number")
    if value is None or math.isnan(value):
        return Cell("", math.nan)
    return Cell(in_units(metric, value), value, "number")


def _odd(values: Sequence[Any]) -> list[Cell]:
    """Cells, of which those are marked that are not as most are."""
    most, count = collections.Counter(map(_known, values)).most_common(1)[0]
    common = 2 * count > len(values)
    return [
        one._replace(classes=f"{one.classes} odd") if common and _known(value) != most else one
        for value, one in zip(values, map(cell, values), strict=True)
    ]


def _warnings(runs: Sequence[Run]) -> Iterator[str]:
    tasks = dict.fromkeys(str(run.config["task"]) for run in runs)
    if len(tasks) > 1:
        yield f"Different tasks ({listed(tasks)}): their losses cannot be compared."
    lengths = [len(run.rounds) for run in runs]
    if min(lengths) < max(lengths):
        yield (
            f"Different numbers of rounds ({min(lengths)} to {max(lengths)}): final results are "
            "of different rounds."
        )
    versions = _same([run.config.get("made_by", {}) for run in runs])
    for name in ("fedax", "jax"):
        if ", " in versions.get(name, ""):
            yield f"Different versions of {name}: {versions[name]}."
    kinds: dict[str, list[tuple[str, str]]] = {}
    for run in runs:
        for sentence in warnings(run):
            kinds.setdefault(sentence.partition(":")[0], []).append((run.name, sentence))
    for kind, found in kinds.items():
        if len(found) <= _FEW:
            yield from (f"{name}: {sentence}" for name, sentence in found)
        else:
            yield f"{kind}: {listed(name for name, _ in found)}."
