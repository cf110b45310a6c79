"""From runs to the table of results of a paper: mean and spread over seeds, and which is best."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedax.measures.significance import TESTS, paired_p
from fedax.outside.text import Told
from fedax.pictures.labels import Group, grouped, in_short
from fedax.report.curves import in_units
from fedax.report.marks import listed, words
from fedax.report.results_table import ResultColumn, ResultsTable, Unit, Value
from fedax.report.runs import LAST_ROUNDS, Run
from fedax.rounds.directions import TEST, Mode, direction
from fedax.rounds.history import mean_and_spread
from fedax.rounds.style import is_share
from fedax.validate import quoted, unknown

# The first of these that runs have is the table's metric.
DEFAULTS = ("test_accuracy", "test_loss", "validation_accuracy", "validation_loss", "train_loss")
_TOO_FEW = "too few seeds"


class TableError(Told, ValueError):
    """No table can be made; the message says why."""


class _Goal(NamedTuple):
    """A metric, and where it should go, if anybody knows."""

    metric: str
    mode: Mode | None


class _Row(NamedTuple):
    """A setting and its runs."""

    group: Group
    runs: list[Run]

    def by_seed(self, metric: str) -> dict[object, float]:
        """Seed -> the result of its run, of those that have one."""
        found = {run.config.get("seed"): run.result(metric) for run in self.runs
                 if not run.diverged}
        return {s: value for s, value in found.items() if value is not None and value == value}  # noqa: PLR0124 - NaN


def results_table(
    runs: Sequence[Run],
    metrics: Sequence[str] = (),
    target: float | None = None,
    significance: str | None = None,
    baseline: str | None = None,
    notes: Sequence[str] = (),
) -> ResultsTable:
    """The results of runs, a row for those that differ in nothing but their seeds.

    Args:
      runs: with different names.
      metrics: their names; "NAME:max" and "NAME:min" say what is best where the name does not.
      target: of the first metric, the value that is to be reached.
      significance: a test, see `fedax.measures.significance.TESTS`.
      baseline: the method, or method and settings, of the row that others are tested against;
        None: the best one.
      notes: more sentences for below the table.

    Raises:
      TableError: if the runs do not have a metric, or too few seeds.
    """
    if not runs:
        raise TableError("A table needs at least one run.")
    goals = _goals(runs, metrics)
    first = goals[0]
    groups = grouped([run.config for run in runs], [run.name for run in runs])
    tasks = list(dict.fromkeys(group.task for group in groups))
    groups.sort(key=lambda group: tasks.index(group.task))
    rows = [_Row(group, [runs[place] for place in group.places]) for group in groups]
    columns = [_of_metric(rows, goal) for goal in goals]
    told = [*_about_means(rows, columns, goals), *notes, *_about_runs(rows, goals)]
    if target is not None:
        watched = _watched(runs, first)
        columns += _to_target(rows, watched, target)
        told += _about_target(columns, watched, target)
    if significance is not None:
        tested, reference = _tested(rows, columns[0], first.metric, significance, baseline)
        columns.append(tested)
        told.append(reference)
    names = dict.fromkeys(name for group in groups for name in group.differs)
    return ResultsTable(
        [group.task for group in groups], [group.method for group in groups],
        {name: [group.differs.get(name) for group in groups] for name in names},
        [len(row.runs) for row in rows], columns, told,
    )


def _goals(runs: Sequence[Run], metrics: Sequence[str]) -> list[_Goal]:
    """The metrics that are asked for, or the one that says most."""
    def measured(name: str) -> bool:
        return any(run.result(name) is not None for run in runs)

    metrics = metrics or [name for name in DEFAULTS if measured(name)][:1]
    if not metrics:
        raise TableError(
            "The runs do not have a test metric or a training loss yet, so there is nothing to "
            "show in a table."
        )
    found = []
    for text in dict.fromkeys(map(str.strip, metrics)):
        name, _, mode = text.partition(":")
        if not measured(name):
            known = {name for run in runs for name in (*run.metrics, *run.final, *run.of_best)}
            raise TableError(unknown("metric of the runs", name, sorted(known)))
        if mode not in ("", "max", "min"):
            raise TableError(
                f"Write {name}:max or {name}:min, whichever is better, not {quoted(mode)}."
            )
        found.append(_Goal(name, mode or direction(name)))
    return found


def _of_metric(rows: Sequence[_Row], goal: _Goal) -> ResultColumn:
    cells = [_value(row, goal.metric) for row in rows]
    unit: Unit = "share" if is_share(goal.metric) else "number"
    return ResultColumn(goal.metric, words(goal.metric), unit, _best(rows, cells, goal.mode))


def _value(row: _Row, metric: str) -> Value:
    results = [run.result(metric) for run in row.runs]
    lost = sum(run.diverged for run in row.runs)
    missing = sum(value is None for value in results)
    undefined = sum(value is not None and math.isnan(value) for value in results)
    for said, count in (("diverged", lost), ("not measured", missing), ("undefined", undefined)):
        if count:
            return Value(math.nan, said=f"{said}{_part(count, len(results))}")
    return _over_seeds([value for value in results if value is not None])


def _part(count: int, of: int) -> str:
    return "" if count == of else f" ({count} of {of})"


def _over_seeds(values: Sequence[float]) -> Value:
    mean, deviation = mean_and_spread(np.array(values, float))
    return Value(float(mean), float(deviation))


def _best(rows: Sequence[_Row], cells: Sequence[Value], mode: Mode | None) -> list[Value]:
    """The cells, of which the best of each task are marked where there are several."""
    found = []
    for row, cell in zip(rows, cells, strict=True):
        others = [
            other.mean for its, other in zip(rows, cells, strict=True)
            if its.group.task == row.group.task and not math.isnan(other.mean)
        ]
        best = mode is not None and len(others) > 1 and (
            cell.mean == (max(others) if mode == "max" else min(others))
        )
        found.append(cell._replace(best=best))
    return found


def _watched(runs: Sequence[Run], goal: _Goal) -> _Goal:
    """By which the target is reached: the same metric of validation data, where there are any.

    Then test data are evaluated only at the end.
    """
    kind, _, name = goal.metric.partition("_")
    of_validation = f"validation_{name}"
    if kind == "test" and any(of_validation in metrics for run in runs for metrics in run.rounds):
        return goal._replace(metric=of_validation)
    return goal


def _to_target(rows: Sequence[_Row], goal: _Goal, target: float) -> list[ResultColumn]:
    """Rounds and bytes until the metric is first as good as the target."""
    if goal.mode is None:
        raise TableError(
            f"It is unknown whether {goal.metric!r} should rise or fall to the target. Write "
            f"'{goal.metric}:max' or '{goal.metric}:min'."
        )
    if not math.isfinite(target):
        raise TableError(f"The target must be a finite number, but is {target}.")
    if is_share(goal.metric) and not 0 <= target <= 1:
        raise TableError(
            f"{goal.metric} is between 0 and 1, so it never reaches {target:g}. Write 0.8 for 80%."
        )
    found = []
    said = in_units(goal.metric, target)
    measures: dict[Unit, Callable[[Run, int], float | None]] = {
        "rounds": lambda run, place: float(run.rounds[place]["round"]), "bytes": _bytes,
    }
    for unit, measure in measures.items():
        cells = []
        for row in rows:
            places = [_reached(run, goal, target) for run in row.runs]
            values = [
                None if place is None else measure(run, place)
                for run, place in zip(row.runs, places, strict=True)
            ]
            count = len(places) - places.count(None)
            if count < len(places):
                cell = Value(math.nan, said=f"reached by {count} of {len(places)}" if count else
                             "not reached")
            elif None in values:
                cell = Value(math.nan, said="not counted")
            else:
                cell = _over_seeds([value for value in values if value is not None])
            cells.append(cell)
        found.append(ResultColumn(
            f"{unit}_to_target", f"{unit} to {said}", unit, _best(rows, cells, "min")
        ))
    return found


def _reached(run: Run, goal: _Goal, target: float) -> int | None:
    """The place of the first round in which the metric is as good as the target."""
    values = run.values(goal.metric)
    good = np.flatnonzero(values >= target if goal.mode == "max" else values <= target)
    return int(good[0]) if len(good) else None


def _bytes(run: Run, place: int) -> float | None:
    """What all clients were sent and sent up to a round; None if nobody counted it.

    Diagnostics count it. Otherwise it follows from what a client is sent and sends in a round, with
    the bits of its codes that were measured, as long as none has dropped out.
    """
    counted = (run.values("bytes_down") + run.values("bytes_up"))[: place + 1]
    if not np.isnan(counted).any():
        return float(counted.sum())
    summary = run.summary or {}
    each = np.zeros(place + 1)
    for way in ("down", "up"):
        computed = float(summary.get(f"bytes_{way}_per_client", math.nan))
        bits = run.values(f"bits_{way}")[: place + 1]
        each += np.where(np.isnan(bits), computed, bits / 8)
    reports, rejected, dropped = (
        run.values(f"num_{what}")[: place + 1] for what in ("reports", "rejected", "dropped")
    )
    total = float((each * (reports + rejected)).sum())
    return None if math.isnan(total) or dropped.any() else total


def _tested(
    rows: Sequence[_Row], column: ResultColumn, metric: str, test: str, baseline: str | None
) -> tuple[ResultColumn, str]:
    """The p-values of a test over paired seeds, and what is to say of them."""
    if test not in TESTS:
        raise TableError(unknown("test", test, TESTS))
    cells, against = [], {}
    for task, places in itertools.groupby(range(len(rows)), lambda at: rows[at].group.task):
        own = list(places)
        reference = _reference(rows, column, own, baseline)
        if reference is not None:
            against[task] = _name(rows[reference].group)
        for at in own:
            cells.append(
                Value(math.nan, said="reference") if at == reference
                else _p(rows, column, metric, test, (at, reference))
            )
    name = TESTS[test].name
    which = " and ".join(
        f"{label} on {task}" if len(against) > 1 else label for task, label in against.items()
    )
    count = sum(not cell.said for cell in cells)
    sentence = (
        f"p: two-sided {name} of {words(metric)}, paired by seed, against {which or 'nothing'}"
        f"{'' if baseline else ' (the best)'}; not corrected for multiple comparisons "
        f"({count})."
    )
    if any(cell.said == _TOO_FEW for cell in cells):
        sentence += " Too few seeds: fewer than two are shared with the reference."
    return ResultColumn("p", "p", "p", cells), sentence


def _reference(
    rows: Sequence[_Row], column: ResultColumn, places: Sequence[int], baseline: str | None
) -> int | None:
    """The place of the row that a task's others are tested against."""
    if baseline is None:
        return next((at for at in places if column.cells[at].best), None)
    names = {at: _name(rows[at].group) for at in places}
    found = [at for at in places if baseline in (names[at], rows[at].group.method)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise TableError(unknown("baseline", baseline, names.values()))
    raise TableError(
        f"The baseline {baseline!r} has several rows; choose one: "
        f"{listed([names[at] for at in found])}."
    )


def _name(group: Group) -> str:
    """A row of a task: its method, and the settings that differ."""
    return " ".join([group.method, *(f"{n}={in_short(v)}" for n, v in group.differs.items())])


def _p(
    rows: Sequence[_Row], column: ResultColumn, metric: str, test: str,
    pair: tuple[int, int | None],
) -> Value:
    row, reference = pair
    if reference is None or column.cells[row].said or column.cells[reference].said:
        return Value(math.nan, said="\N{EN DASH}")
    own, other = rows[row].by_seed(metric), rows[reference].by_seed(metric)
    if len(own.keys() & other.keys()) < 2:
        return Value(math.nan, said=_TOO_FEW)
    p = paired_p(own, other, test)
    return Value(math.nan, said="undefined") if math.isnan(p) else Value(p)


def _about_means(
    rows: Sequence[_Row], columns: Sequence[ResultColumn], goals: Sequence[_Goal]
) -> Iterator[str]:
    counts = sorted({len(row.runs) for row in rows})
    tasks = dict.fromkeys(row.group.task for row in rows if row.group.task)
    where = f" on {next(iter(tasks))}" if len(tasks) == 1 else ""
    what = listed([words(goal.metric) for goal in goals])
    title = f"{what[0].upper()}{what[1:]}{where}"
    if counts == [1]:
        yield f"{title}: one seed each, so no standard deviation."
    else:
        over = f"{counts[0]} seeds" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
        yield f"{title}: mean \N{PLUS-MINUS SIGN} sample standard deviation over {over}."
        if counts[0] == 1:
            yield "A single seed has no standard deviation."
    if any(cell.best for column in columns for cell in column.cells):
        yield "The best is bold."
    for metric in (goal.metric for goal in goals if goal.mode is None):
        yield (
            f"The best {metric} is not bold, since it is unknown which direction is better: write "
            f"{metric}:max or {metric}:min."
        )
    if any(goal.metric == "train_loss" for goal in goals):
        yield f"Train loss: mean over the last {LAST_ROUNDS} rounds, or all if fewer."


def _about_runs(rows: Sequence[_Row], goals: Sequence[_Goal]) -> Iterator[str]:
    """What a reader must know of the runs."""
    own = [row.group.label for row in rows if row.group.own_data]
    if own:
        yield f"Seeds differ in their data or their starting point: {listed(own)}."
    short = [
        f"{row.group.label}, seed {run.config.get('seed')} ({run.state.partition(': ')[2]})"
        for row in rows for run in row.runs
        if run.summary is None and not run.diverged and len(run.rounds) < _asked(run)
    ]
    if short:
        yield f"Not finished (results so far): {listed(short)}."
    sampled = [
        row.group.label for row in rows if any(
            run.final.get("evaluated_examples", 0) < run.final.get("evaluated_of", 0)
            for run in row.runs
        )
    ]
    if sampled and any(goal.metric.startswith(TEST) for goal in goals):
        yield f"Evaluated on a sample of the test examples: {listed(sampled)}."


    tests = [goal.metric for goal in goals if goal.metric.startswith(TEST)]
    if tests and any(run.of_best for row in rows for run in row.runs):
        yield (
            f"Test results are of the last round's model; best_{tests[0]} is of the best model by "
            "validation data."
        )


def _asked(run: Run) -> int:
    return int(run.config.get("num_rounds", len(run.rounds)))


def _about_target(
    columns: Sequence[ResultColumn], goal: _Goal, target: float
) -> Iterator[str]:
    side = "at least" if goal.mode == "max" else "at most"
    yield (
        f"The target is reached in the first round with a measured {words(goal.metric)} of {side} "
        f"{in_units(goal.metric, target)}. Bytes: all clients, down and up."
    )
    if any(cell.said == "not counted" for column in columns for cell in column.cells):
        yield "With diagnostics=true, all bytes are counted."


def by_label(runs: Mapping[str, Sequence[Run]]) -> list[Run]:
    """Runs of which those with one label are the seeds of one setting.

    A seed is a run's own, or its place where they are not known or not different.
    """
    found = []
    for label, some in runs.items():
        seeds = [run.config.get("seed") for run in some]
        if None in seeds or len(set(map(repr, seeds))) < len(seeds):
            seeds = list(range(len(seeds)))
        for place, (run, seed) in enumerate(zip(some, seeds, strict=True)):
            config = {
                "task": run.config.get("task", ""), "algorithm": label, "seed": seed,
                "num_rounds": max(map(_asked, some)),
            }
            found.append(run._replace(name=f"{label} {place}", config=config))
    return found
