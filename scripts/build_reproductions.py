"""Writes docs/reproductions.md from the results that lie beside it, in docs/reproductions.

    fedax reproduce NAME --scale SCALE --out docs/reproductions --storage DIR
    fedax reproduce COMPUTED --json --out docs/reproductions/computed > .../computed/COMPUTED.json
    python scripts/build_reproductions.py

No number on the page is typed: tables and verdicts are computed from the files, by the criteria
that stand in src/fedax/reproductions. What was found when a disagreement was looked into is written
by hand, in a file NAME-SCALE.txt beside the results.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from fedax.data.catalogue import PRODUCTS, SOURCES
from fedax.report.tables import Table
from fedax.reproductions import EXPERIMENTS, REPRODUCTIONS
from fedax.reproductions.experiment import Experiment, Plan, Scale
from fedax.reproductions.outcome import Came, at_edges, in_hours, judged, read, verdict
from fedax.tasks.registry import TASKS

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE, RESULTS = DOCS / "reproductions.md", DOCS / "reproductions"
# Data sets that a package carries, so that this kind of machine can have them.
AT_HAND = {name for name, product in PRODUCTS.items() if SOURCES[product.source].package}

# What stands above is written by hand.
MARK = "<!-- what follows is generated -->"


def page(folder: Path = RESULTS) -> str:
    """What is generated."""
    came = sorted((read(path) for path in folder.glob("*.json")), key=_order)
    for one in came:
        if one.name not in EXPERIMENTS:
            raise SystemExit(f"{folder} has results of {one.name}, which is no experiment.")
    lines = [
        MARK, "", "| table or figure | question | what was done | verdict |",
        "|---|---|---|---|",
    ]
    rows = {name: _row(name, EXPERIMENTS[name], came) for name in EXPERIMENTS} | {
        name: [info.source, info.description, f"[computed](#{name})",
               f"{info.verdict} (tests/test_reproductions.py asserts it)"]
        for name, info in REPRODUCTIONS.items()
    }
    lines += [_cells(row) for _, row in sorted(rows.items(), key=lambda item: item[1][0])]
    lines += [text for one in came for text in _section(one)]
    lines += [text for name in REPRODUCTIONS for text in _computed(name, folder / "computed")]
    return "\n".join(lines) + "\n"


def _order(came: Came) -> tuple[str, str]:
    return EXPERIMENTS[came.name].source if came.name in EXPERIMENTS else "", came.title


def _row(name: str, experiment: Experiment, came: Sequence[Came]) -> list[str]:
    done, verdicts = [], []
    for one in came:
        if one.name == name:
            found = judged(experiment, one.results)
            not_run = "".join(f", {words}" for words in _not_run(one))
            done.append(f"[{_kind(one.scale, one.stand_in)}](#{one.title}){not_run}")
            verdicts.append(verdict(found) + (" (stand-in)" if one.stand_in else ""))
    done += _waiting(experiment, {(one.scale, one.stand_in) for one in came if one.name == name})
    if experiment.alone:
        done.append(f"nothing stands in: {experiment.alone}")
    return [experiment.source, experiment.description, "; ".join(done), "; ".join(verdicts)]


def _kind(scale: str, stand_in: bool) -> str:
    if stand_in:
        return "stand-in, published settings" if scale == "paper" else "stand-in, small"
    return "in full" if scale == "paper" else "small"


def _waiting(experiment: Experiment, done: set[tuple[str, bool]]) -> list[str]:
    """What was not run, and what it waits for."""
    found = []
    for scale in ("small", "paper"):
        for stand_in in (True, False):
            plan = experiment.plan(cast(Scale, scale), stand_in)
            if plan is None or (scale, stand_in) in done:
                continue
            data = _data(plan)
            why = f"the data {', '.join(data)}, and " if data else ""
            found.append(f"{_kind(scale, stand_in)}: waiting for {why}{_time(plan)}")
    return found


def _time(plan: Plan) -> str:
    """Roughly, before it is run."""
    cpu, gpu = map(in_hours, plan.rough_hours)
    return f"about {cpu} hours on 2 cores, perhaps {gpu} on a GPU"


def _data(plan: Plan) -> list[str]:
    names = {TASKS[part.task].dataset for part in plan.parts}
    return sorted(name for name in names if name in PRODUCTS and name not in AT_HAND)


def _section(came: Came) -> Iterable[str]:
    experiment = EXPERIMENTS[came.name]
    found = judged(experiment, came.results)
    plan = experiment.plan(came.scale, came.stand_in)
    yield f"\n## {came.title}\n"
    yield f"{experiment.source}: {experiment.description}. **{_sentence(verdict(found))}**" + (
        ", by data that stand in for the paper's.\n" if came.stand_in else ".\n"
    )
    seeds = _seeds(came)
    yield f"{_commands(came, seeds)}; {plan.settings if plan else ''}\n"
    if plan and plan.tried:
        yield "| data | methods | tuned over |\n|---|---|---|"
        yield from map(_cells, plan.tried)
        yield ""
    for words in _not_run(came):
        yield f"{_sentence(words)}.\n"
    made = came.made
    yield (
        f"{len(came.results.traces):,} runs with {_of_all(seeds)}, {came.seconds / 3600:.1f} hours "
        f"of one {made.get('device', 'device')} in all, {made.get('date', '')}, fedax "
        f"{made.get('fedax', '?')}, JAX {made.get('jax', '?')}."
        + (f" Of the whole plan beforehand: {_time(_with_seeds(plan, seeds))}.\n" if plan else "\n")
    )
    yield "| criterion | measured | agrees |\n|---|---|---|"
    for criterion, outcome in found:
        yield _cells([criterion.statement, outcome.measured, outcome.word])
    for table in experiment.tables(came.results):
        yield from _table(table)
    if edges := at_edges(came.results):
        yield f"\n{edges}"
    note = RESULTS / f"{came.title}.txt"
    if note.exists():
        yield f"\n{note.read_text('utf-8').rstrip()}"
    picture = RESULTS / f"{came.title}.png"
    if picture.exists():
        yield f"\n![{experiment.source}, measured](reproductions/{picture.name})"


def _seeds(came: Came) -> dict[str, int]:
    """Panel -> with how many seeds it was run."""
    traces = came.results.traces
    return {
        panel: len({trace.seed for trace in traces if trace.panel == panel})
        for panel in came.results.panels
    }


def _of_all(seeds: Mapping[str, int]) -> str:
    """In words."""
    if len(set(seeds.values())) == 1:
        return f"{next(iter(seeds.values()))} seeds"
    return " and ".join(f"{count} seeds ({panel})" for panel, count in seeds.items())


def _commands(came: Came, seeds: Mapping[str, int]) -> str:
    """What gives these results: one command, or one for each number of seeds."""
    plan = EXPERIMENTS[came.name].plan(came.scale, came.stand_in)
    whole = f"fedax reproduce {came.name} --scale {came.scale}" + " --stand-in" * came.stand_in
    found = []
    for count in dict.fromkeys(seeds.values()):
        of = [panel for panel, its in seeds.items() if its == count]
        planned = max(part.num_seeds for part in plan.only(of).parts) if plan else count
        only = "".join(f' "{panel}"' for panel in of)
        found.append(
            f"`{whole}" + f" --only{only}" * (len(of) < len(seeds))
            + f" --seeds {count}" * (count > planned) + "`"
        )
    return " and ".join(found)


def _with_seeds(plan: Plan, seeds: Mapping[str, int]) -> Plan:
    """The plan with as many seeds of a panel as were run."""
    each = [plan.only([panel]).with_seeds(seeds.get(panel, 1)) for panel in plan.panels]
    return plan._replace(
        parts=tuple(part for one in each for part in one.parts),
        hours={panel: hours for one in each for panel, hours in one.hours.items()},
    )


def _not_run(came: Came) -> Iterable[str]:
    """What of a plan there are no results of."""
    plan = EXPERIMENTS[came.name].plan(cast(Scale, came.scale), came.stand_in)
    if plan is None:
        return
    if missing := [panel for panel in plan.panels if panel not in came.results.panels]:
        yield f"not run yet: {', '.join(missing)}"
    there = plan.only(came.results.panels).num_runs
    if len(came.results.traces) < there:
        yield f"not all is done yet: {len(came.results.traces):,} of {there:,} runs"


def _computed(name: str, folder: Path) -> Iterable[str]:
    info = REPRODUCTIONS[name]
    yield f"\n## {name}\n"
    yield f"{info.source}: {info.description}. **{_sentence(info.verdict)}**.\n"
    time = f"about {info.seconds} seconds on 2 cores, and no GPU is needed"
    yield f"`fedax reproduce {name}`, {time}; {info.settings}\n"
    yield from (f"- {sentence}" for sentence in info.agreement)
    for table in json.loads((folder / f"{name}.json").read_text("utf-8")):
        yield from _table(Table(**table))
    yield f"\n![{info.source}, computed](reproductions/computed/{name}.png)"


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


def _table(table: Table) -> Iterable[str]:
    yield f"\n{table.title}\n"
    yield _cells(table.headings)
    yield "|" + "---|" * len(table.headings)
    for row in table.rows:
        yield _cells(row)


def _cells(row: Sequence[Any]) -> str:
    return "| " + " | ".join("" if cell is None else str(cell) for cell in row) + " |"


if __name__ == "__main__":
    above = PAGE.read_text("utf-8").split(MARK)[0]
    PAGE.write_text(above + page(), "utf-8")
