"""The section of a run on its paper's page: how it was run, the result, the note, the picture.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedax.report.tables import Table
from fedax.reproductions.experiment import Plan
from fedax.reproductions.outcome import POINTS, at_edges, tables_of
from reproduction_runs import Computed, Run, Trained, heading, page_of, rough_time, sentence

LINK = re.compile(r"\]\(([^)#\s]*)(#[^)\s]*)?\)")


def section(run: Run, folder: Path, titles: Sequence[str]) -> list[str]:
    """The lines of a run's section; the anchor is its title, as everywhere a run is named.

    Args:
      run: which.
      folder: where its results lie.
      titles: of all runs, which notes may link to.
    """
    head = (
        f'\n## <a id="{run.title}"></a>{heading(run)}\n\n'
        f"{sentence(run.info.description)}. **{sentence(run.verdict)}**. "
        f"[Overview](../reproductions.md#{run.name})\n"
    )
    if isinstance(run, Computed):
        return [head, *_computed(run, folder / "computed")]
    return [head, *_trained(run), *_note(run, folder, titles), *_picture(run, folder)]


def _trained(run: Trained) -> Iterable[str]:
    came, plan, seeds = run.came, run.plan, seeds_of(run)
    yield f"{commands(run, seeds)}; {plan.settings if plan else ''}\n"
    if run.run_plan and run.run_plan.tried:
        yield from _rows(["data", "methods", "tuned over"], run.run_plan.tried)
        yield ""
    for words in run.left:
        yield f"{sentence(words)}.\n"
    made, before = came.made, with_seeds(plan, seeds) if plan else None
    yield (
        f"{len(came.results.traces):,} runs with {of_all(seeds)}, {came.seconds / 3600:.1f} hours "
        f"by the clock in all, on a {made.get('device', 'device')}; the last of them "
        f"{made.get('date', '')}, fedax {made.get('fedax', '?')}, JAX {made.get('jax', '?')}"
        + (f", {made['processor']}." if made.get("processor") else ".")
        + (f" Of the whole plan beforehand: {rough_time(before)}.\n" if before else "\n")
    )
    yield from _rows(
        POINTS,
        [[criterion.statement, outcome.measured, outcome.word] for criterion, outcome in run.judged]
    )
    for table in tables_of(run.info, came):
        yield from _table(table)
    if edges := at_edges(came.results):
        yield f"\n{edges}"


def _note(run: Trained, folder: Path, titles: Sequence[str]) -> Iterable[str]:
    """What was written by hand."""
    note = folder / f"{run.title}.txt"
    if note.exists():
        yield f"\n{moved(note.read_text('utf-8').rstrip(), page_of(run.title), titles)}"


def moved(text: str, page: str, titles: Sequence[str]) -> str:
    """A note, whose links are meant in docs/, for a paper's page beside it.

    Args:
      text: the note; `#TITLE` is a run's section, on whichever page it is.
      page: the paper's.
      titles: of all runs.
    """

    def one(found: re.Match[str]) -> str:
        target, anchor = found[1], found[2] or ""
        if "://" in target:
            return found[0]
        if target:
            return f"]({posixpath.relpath(target, 'reproductions')}{anchor})"
        if anchor[1:] not in titles:
            raise SystemExit(f"A note on {page} links to {anchor}, which is no run.")
        its = page_of(anchor[1:])
        return f"]({'' if its == page else its}{anchor})"

    return LINK.sub(one, text)


def _picture(run: Trained, folder: Path) -> Iterable[str]:
    picture = folder / f"{run.title}.png"
    if picture.exists():
        yield f"\n![{run.info.source}, measured]({picture.name})"


def _computed(run: Computed, folder: Path) -> Iterable[str]:
    when = f"about {run.info.seconds} seconds on 2 cores, and no GPU is needed"
    yield f"`fedax reproduce {run.name}`, {when}; {run.info.settings}\n"
    yield "`tests/test_reproductions.py` asserts the verdict. What counts as agreement:\n"
    yield from (f"- {words}" for words in run.info.agreement)
    for table in json.loads((folder / f"{run.name}.json").read_text("utf-8")):
        yield from _table(Table(**table))
    yield f"\n![{run.info.source}, computed](computed/{run.name}.png)"


def seeds_of(run: Trained) -> dict[str, dict[str, int]]:
    """Panel -> method -> with how many seeds it was run."""
    found: dict[str, dict[str, set[int]]] = {}
    for trace in run.came.results.traces:
        found.setdefault(trace.panel, {}).setdefault(trace.label, set()).add(trace.seed)
    return {panel: {label: len(seeds) for label, seeds in its.items()}
            for panel, its in found.items()}


def of_all(seeds: Mapping[str, Mapping[str, int]]) -> str:
    """In words."""
    each = {panel: " or ".join(map(str, sorted(set(its.values())))) for panel, its in seeds.items()}
    if len(set(each.values())) == 1:
        return _seeds(next(iter(each.values())))
    return " and ".join(f"{_seeds(count)} ({panel})" for panel, count in each.items())


def _seeds(count: str) -> str:
    return f"{count} seed{'s' * (count != '1')}"


def commands(run: Trained, seeds: Mapping[str, Mapping[str, int]]) -> str:
    """What gives these results: one command, or one for each number of seeds asked for."""
    came, plan = run.came, run.plan
    whole = f"fedax reproduce {came.name} --scale {came.scale}" + " --stand-in" * came.stand_in
    asked: dict[tuple[int | None, tuple[str, ...]], list[str]] = {}
    for panel, its in seeds.items():
        planned = {part.label: part.num_seeds for part in plan.only([panel]).parts} if plan else {}
        as_planned = all(count == planned.get(label, count) for label, count in its.items())
        alike: dict[int | None, list[str]] = {}
        for label, count in its.items():
            alike.setdefault(None if as_planned else count, []).append(label)
        for count, labels in alike.items():
            methods = tuple(labels) if panel in run.missing or len(alike) > 1 else ()
            asked.setdefault((count, methods), []).append(panel)
    found = []
    for (count, methods), panels in asked.items():
        several = len(asked) > 1 or bool(plan and (
            {*seeds} != {*plan.panels} or (methods and len(plan.panels) > 1)
        ))
        only = "".join(f' "{name}"' for name in (*(panels if several else ()), *methods))
        found.append(f"`{whole}" + f" --only{only}" * bool(only)
                     + f" --seeds {count}" * (count is not None) + "`")
    return " and ".join(found)


def with_seeds(plan: Plan, seeds: Mapping[str, Mapping[str, int]]) -> Plan:
    """The plan with as many seeds of a method as were run, and hours in proportion."""
    return plan.with_parts(
        part._replace(num_seeds=max(part.num_seeds, seeds.get(part.panel, {}).get(part.label, 0)))
        for part in plan.parts
    )


def _table(table: Table) -> Iterable[str]:
    yield f"\n{table.title}\n"
    yield from _rows(table.headings, table.rows)


def _rows(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterable[str]:
    yield cells(headings)
    yield "|" + "---|" * len(headings)
    yield from map(cells, rows)


def cells(row: Sequence[Any]) -> str:
    """A line of a table."""
    return "| " + " | ".join("" if cell is None else str(cell) for cell in row) + " |"
