"""The page of a sweep: its settings, what was chosen and how sure that is."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedax.report.comparison import merged
from fedax.report.curves import MOST_POINTS, Chart, View, in_units, view_of
from fedax.report.document import Page
from fedax.report.heat import heat_map
from fedax.report.marks import Cell, Column, listed, pairs, sorted_table, text, ticked, words
from fedax.report.runs import Run, above_its_start, still_improving
from fedax.rounds.directions import is_evaluated
from fedax.rounds.history import mean_and_spread
from fedax.sweeps.choosing import CLOSE, Choice, MethodChoice
from fedax.sweeps.closing import rule_in_words
from fedax.sweeps.edges import Edge
from fedax.sweeps.record import Record
from fedax.validate import so_many

# What a sweep's configuration holds that stands elsewhere, or that says nothing to a reader.
_SAID_ELSEWHERE = ("made_by", "command", "extended", "kind", "python", "algorithms", "settings",
                   "units", "identity")
# So many curves of each method are drawn at first, if there are few methods.
_FIRST_OF_FEW, _FEW_METHODS = 3, 2


def sweep_page(
    record: Record, choice: Choice, config: Mapping[str, Any], summary: Mapping[str, Any] | None
) -> str:
    """The page of a sweep, finished or not. It needs no network and no other file.

    Args:
      record: every round of every setting and seed.
      choice: what was chosen of it.
      config: what the sweep's config.json holds.
      summary: what it came to; None while it is not finished.
    """
    order = _order(record, choice)
    seeds = len(np.unique(record.seed))
    count = len(record.settings)
    state = (
        f"{so_many(count, 'setting')}, {so_many(seeds, 'seed')}, "
        f"{so_many(int(record.done.max(initial=0)), 'round')}, "
        + ("finished" if summary is not None else "not finished")
    )
    curves = {number: place for place, number in enumerate(order)}
    maps = "".join(heat_map(record, choice, method, curves) for method in record.algorithms)
    if maps:
        maps = f'<h2>Heat maps</h2>\n{_legend(record, choice)}\n<div class="maps">{maps}</div>'
    shown = _at_first(record, choice, order)
    views = _views(record, order)
    names = record.labels()
    labels = [names[number] for number in order]
    return Page(
        title=f"Sweep of {listed(record.algorithms)} on {config.get('task', '?')}",
        state=state,
        warnings=list(_warnings(record, choice, config, summary)),
        before=f"<h2>Best setting of each method</h2>\n{_methods(record, choice)}\n{maps}",
        charts=[Chart("Settings", labels, views, shown, in_table=True)] if views else [],
        after=(
            "<h2>Settings</h2>\n<p>Click a heading to sort; tick a setting to see its curve. The "
            f"best of each method is bold.</p>\n{_table(record, choice, order, labels, shown)}\n"
            f"<h2>Configuration</h2>\n{pairs(_asked(config))}"
        ),
        commands=_commands(choice, config, summary),
        made_by={
            name: value for name, value in config.get("made_by", {}).items()
            if name != "signature" and not isinstance(value, list | dict)  # the rest is for fedax
        },
    ).html()


def best_runs(
    record: Record, choice: Choice, config: Mapping[str, Any],
    bases: Mapping[str, Mapping[str, Any]] = {},
) -> list[Run]:
    """The runs of each method's best setting, a seed each, as a comparison shows them.

    Args:
      record, choice, config: as for `sweep_page`.
      bases: method -> the configuration of one of its runs, for the settings that do not vary.
    """
    best = [chosen.best for chosen in choice.methods.values() if chosen.best is not None]
    return [
        run._replace(name=f"best {run.config['algorithm']}, seed {run.config['seed']}")
        for run in runs_of_settings(record, best, config, bases)
    ]


def runs_of_settings(
    record: Record, numbers: Iterable[int], config: Mapping[str, Any],
    bases: Mapping[str, Mapping[str, Any]] = {},
) -> list[Run]:
    """The runs of some settings, a seed each; a run that diverged says so.

    Args:
      record, config, bases: as for `best_runs`.
      numbers: of the settings.
    """
    found = []
    for number in numbers:
        setting = record.settings[number]
        method = setting.algorithm
        measured = record.measured(method)
        for row in record.rows_of(number):
            rounds = record.history(int(row)).rounds
            tested = [m for m in rounds if any(map(is_evaluated, m))]
            final = {  # what the last evaluation lacks and others have was not finite there
                name: tested[-1].get(name, math.nan) for name in record.metrics
                if is_evaluated(name) and name in measured
            } if tested else {}
            diverged = int(record.diverged[row])
            ended = diverged or len(rounds) >= config.get("num_rounds", 0)
            seed = int(record.seed[row])
            known = {
                "task": config.get("task"), "algorithm": method,
                "num_rounds": config.get("num_rounds", len(rounds)), **bases.get(method, {}),
                "seed": seed, "made_by": config.get("made_by", {}),
            }
            summary = {"final": final, "stopped": None, "references": {}}
            found.append(Run(
                f"{method} {setting.label}, seed {seed}", _with(known, setting.values),
                [{**m, "round": int(m["round"])} for m in rounds], summary if ended else None, {},
                why_diverged=f"It diverged in round {diverged}." if diverged else "",
            ))
    return found


def _with(config: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """A run's configuration with the values of a setting, each where its name stands."""
    found = dict(config)
    for name, value in values.items():
        key = name.rpartition(".")[2]
        if key in found:
            found[key] = value
        elif key in found.get("task_options", {}):
            found["task_options"] = found["task_options"] | {key: value}
        else:
            found["algorithm_options"] = found.get("algorithm_options", {}) | {key: value}
    return found


def _order(record: Record, choice: Choice) -> list[int]:
    """The numbers of the settings: the best of each method first, then by their scores."""
    best = {chosen.best for chosen in choice.methods.values()}
    cost = -choice.mean if choice.maximise else choice.mean
    return sorted(range(len(record.settings)), key=lambda number: (
        number not in best, math.isnan(cost[number]), cost[number], number
    ))


def _at_first(record: Record, choice: Choice, order: list[int]) -> list[bool]:
    each = _FIRST_OF_FEW if len(record.algorithms) <= _FEW_METHODS else 1
    first = {number for chosen in choice.methods.values() for number in chosen.order[:each]}
    return [number in first for number in order]


def _views(record: Record, order: list[int]) -> list[View]:
    """Each setting's mean over its seeds, up to the round in which the first of them ends."""
    rounds = np.arange(1, record.num_rounds + 1)
    rows = [[row for row in record.rows_of(number) if record.done[row]] for number in order]
    several = any(len(some) > 1 for some in rows)
    found: list[View] = []
    for metric in merged(iter([list(record.metrics)])):
        mean, spread = np.full((2, len(order), len(rounds)), np.nan)
        for place, some in enumerate(rows):
            values = record.metrics[metric][some]
            values = np.where(np.isfinite(values), values, np.nan)
            if some:
                mean[place], spread[place] = mean_and_spread(values)
        wanted = metric == "train_loss" or is_evaluated(metric)
        size = sum(view.values.size for view in found)
        if not wanted and size + np.isfinite(mean).any(axis=0).sum() * len(order) > MOST_POINTS:
            continue
        view = view_of(metric, rounds, mean, spread if several else None)
        if view is not None:
            found.append(view)
    return found


def _methods(record: Record, choice: Choice) -> str:
    """The table of the methods."""
    methods = list(choice.methods.items())
    settings = [None if m.best is None else record.settings[m.best] for _, m in methods]
    names = [n for n in record.names if any(s is not None and n in s.values for s in settings)]
    table = sorted_table("The best setting of each method", [
        Column("method", [name for name, _ in methods]),
        Column(words(choice.rule), [_score(choice, chosen.best) for _, chosen in methods]),
        *_tests(record, choice, [
            record.rows_of(-1 if chosen.best is None else chosen.best) for _, chosen in methods
        ]),
        *(Column(n, [None if s is None else s.values.get(n) for s in settings]) for n in names),
        Column(f"within {CLOSE:.0%}", [_share(chosen) for _, chosen in methods]),
        Column("diverged", [
            Cell(f"{len(chosen.diverged)} of {len(chosen.order)}", float(len(chosen.diverged)))
            for _, chosen in methods
        ]),
        Column("values to add", [
            "; ".join(f"{edge.name}: {_added(edge)}" for edge in chosen.edges)
            for _, chosen in methods
        ]),
    ])
    seeds = len(np.unique(record.seed))
    over = f"; mean \N{PLUS-MINUS SIGN} sample standard deviation over {seeds} seeds" * (seeds > 1)
    return (
        f"<p>Chosen by {text(rule_in_words(record, choice))}{over}. A large share of settings "
        f"within {CLOSE:.0%} of the best means that a method is easy to tune.</p>\n"
        f"{table}"
    )


def _added(edge: Edge) -> str:
    """The values to add to a grid."""
    return ", ".join(map(_short, edge.add))


def _share(chosen: MethodChoice) -> Cell:
    if math.isnan(chosen.sensitivity):
        return Cell("", math.nan)
    count = len(chosen.order)
    shown = f"{chosen.sensitivity:.0%} ({round(chosen.sensitivity * count)} of {count})"
    return Cell(shown, chosen.sensitivity, "number")


def _score(choice: Choice, number: int | None) -> Cell:
    """A setting's score with its spread; one that diverged is worse than any other."""
    if number is None or math.isnan(choice.mean[number]):
        return Cell("", math.nan)
    mean, spread = choice.mean[number], choice.spread[number]
    if math.isinf(mean):
        return Cell("diverged", math.copysign(1e300, mean))
    return Cell(_with_spread(choice.rule, float(mean), float(spread)), float(mean), "number nowrap")


def _legend(record: Record, choice: Choice) -> str:
    return (
        f'<p class="note">Each cell shows {text(rule_in_words(record, choice))}. Lighter is '
        "better; all methods share one scale, and far worse values share its darkest colour. "
        "\N{BLACK STAR}: best of the method; dashed frame: best at an edge of the grid; hatched: "
        "diverged. Click a cell to show or hide its curve.</p>"
    )


def _table(
    record: Record, choice: Choice, order: list[int], labels: list[str], shown: list[bool]
) -> str:
    best = {chosen.best for chosen in choice.methods.values()}
    settings = [record.settings[number] for number in order]
    rows = [record.rows_of(number) for number in order]
    columns = [
        Column("curve", [
            Cell(
                ticked("chart-0", place, label, shown=shown[place], named=False), float(place),
            ) for place, label in enumerate(labels)
        ]),
        Column("number", [setting.number for setting in settings]),
        Column("method", [setting.algorithm for setting in settings]),
        Column(words(choice.rule), [_score(choice, number) for number in order]),
        *_tests(record, choice, rows),
        Column("diverged", [_diverged(record, some) for some in rows]),
        *(Column(name, [setting.values.get(name) for setting in settings], "differs")
          for name in record.names),
        Column("seeds", [int((record.done[some] > 0).sum()) for some in rows]),
        Column("rounds", [int(record.done[some].max(initial=0)) for some in rows]),
    ]
    return sorted_table(
        "The settings", columns, ["best" if number in best else "" for number in order],
        [f"best of {record.settings[number].algorithm}" if number in best else ""
         for number in order],
    )


def _tests(record: Record, choice: Choice, rows: Sequence[np.ndarray]) -> list[Column]:
    """The test metrics of settings, besides the one that chose."""
    return [
        Column(words(metric), [_last(record, metric, some) for some in rows])
        for metric in merged(iter([list(record.metrics)]))
        if is_evaluated(metric) and metric != choice.rule
    ]


def _diverged(record: Record, rows: np.ndarray) -> Cell:
    """In which rounds the runs of a setting diverged."""
    lost = [row for row in rows if record.diverged[row]]
    if not lost:
        return Cell("", math.nan)
    first = min(int(record.diverged[row]) for row in lost)
    few = f"{len(lost)} of {len(rows)} seeds, " if len(rows) > 1 else ""
    return Cell(f"{few}round {first}", float(first), "nowrap")


def _last(record: Record, metric: str, rows: np.ndarray) -> Cell:
    """Mean and spread over the seeds of the last value; nothing where a seed diverged."""
    found = []
    for row in rows:
        known = record.metrics[metric][row]
        known = known[~np.isnan(known)]
        if len(known) and not record.diverged[row]:
            found.append(known[-1])
    if not found or len(found) < np.count_nonzero(record.done[rows]):
        return Cell("", math.nan)
    mean, spread = map(float, mean_and_spread(np.array(found)))
    return Cell(_with_spread(metric, mean, spread), mean, "number nowrap")


def _with_spread(metric: str, mean: float, spread: float) -> str:
    shown = in_units(metric, mean)
    if math.isnan(spread):
        return shown
    return f"{shown} &plusmn; {in_units(metric, float(f'{spread:.2g}'))}"


def _warnings(
    record: Record, choice: Choice, config: Mapping[str, Any], summary: Mapping[str, Any] | None
) -> Iterator[str]:
    asked = config.get("num_rounds", record.num_rounds)
    if summary is None:
        done = int(((record.done >= asked) | (record.diverged > 0)).sum())
        seeds = len(config.get("seeds", np.unique(record.seed)))
        yield (
            f"Not finished: {done} of {len(record.settings) * seeds} runs done. Continue with: "
            "fedax sweep --resume and the sweep's folder."
        )
    for method, chosen in choice.methods.items():
        if chosen.best is None:
            yield f"No best setting: no setting of {method} has a finite score."
            continue
        for edge in chosen.edges:
            yield (
                f"At the grid's edge: the best setting of {method} has the {edge.side} {edge.name} "
                f"of its grid, {edge.value:.6g}. A better one may be beyond it; add "
                f"{_added(edge)}."
            )
        rows = record.rows_of(chosen.best)
        losses = record.metrics.get("train_loss", np.empty((len(record.done), 0)))[rows]
        mean = losses.mean(axis=0)
        if above_its_start(mean):
            yield f"Worse than at the start: for the best of {method}, {above_its_start(mean)}"
        elif still_improving(mean):
            yield f"Still improving at the end: for the best of {method}, {still_improving(mean)}"
        rejected = record.metrics.get("num_rejected")
        count = 0 if rejected is None else int(np.nansum(rejected[rows]))
        if count:
            yield (
                f"Uploads rejected: {count:,} contained NaN or infinity in the best setting of "
                f"{method}."
            )
    lost = [
        f"{len(chosen.diverged)} of {len(chosen.order)} settings of {method}"
        for method, chosen in choice.methods.items() if chosen.diverged
    ]
    if lost:
        yield f"Diverged: {listed(lost, 8)}. They are marked in the table."
    if choice.rule.startswith("test_"):
        yield (
            f"Chosen by {choice.rule}: the best setting's result on these data is too optimistic, "
            "because they were used to select it."
        )
    if record.metrics and not any(map(is_evaluated, record.metrics)):
        yield "No test metrics: nothing was evaluated on test data."


def _asked(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration, except what is shown elsewhere."""
    rows: dict[str, Any] = {}
    for name, value in config.items():
        if name in _SAID_ELSEWHERE:
            continue
        if name == "grid" and isinstance(value, Mapping):
            for method, grid in value.items():
                rows |= {
                    f"{method}: {key}": ", ".join(map(_short, values))
                    for key, values in grid.items()
                }
        elif isinstance(value, Mapping):
            rows |= value
        elif isinstance(value, list | tuple):
            rows[name] = ", ".join(map(str, value))
        else:
            rows[name] = value
    return rows


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _commands(
    choice: Choice, config: Mapping[str, Any], summary: Mapping[str, Any] | None
) -> dict[str, str]:
    if not config.get("command"):
        return {"This sweep was made by a Python program with fedax.sweep; run it again.": ""}
    found = {"This sweep:": str(config["command"])}
    if times := config.get("extended"):
        often = "" if times == 1 else f"{times} times, "
        found[f"Then {often}extend it, with its folder as DIR:"] = (
            "fedax sweep --extend DIR"
        )
    if summary is None:
        return found
    for method, chosen in choice.methods.items():
        if chosen.best is not None and re.fullmatch(r"[\w+.-]+", method):  # a file's name as it is
            found[f"The best setting of {method}, in the sweep's folder:"] = (
                f"fedax run --config best/{method}.toml"
            )
    return found
