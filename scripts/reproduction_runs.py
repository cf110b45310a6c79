"""The runs of docs/notebook/reproductions: which there are, what they are called, how they stand.

The pages of reproductions and those of methods take names, places and verdicts from here.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from fedax.data.catalogue import PRODUCTS, SOURCES
from fedax.experiment.build import algorithm_parts
from fedax.reproductions import EXPERIMENTS, REPRODUCTIONS
from fedax.reproductions.experiment import BEYOND, Criterion, Experiment, Outcome, Plan, Scale
from fedax.reproductions.in_part import missing_methods
from fedax.reproductions.outcome import Came, in_hours, judged, read, verdict
from fedax.tasks.registry import TASKS

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "notebook" / "reproductions"
ALL = {**EXPERIMENTS, **REPRODUCTIONS}
SCALES: tuple[Scale, ...] = ("small", "paper")
# Data sets that a package carries, which need no download.
CARRIED = {name for name, product in PRODUCTS.items() if SOURCES[product.source].package}


class Source(NamedTuple):
    """Where something was published, such as ("Reddi et al. 2021", "Figure 3")."""

    paper: str
    place: str


def source(name: str) -> Source:
    """Of a table or figure.

    Example:
      >>> source("elastic2023-table-1")
      Source(paper='Chen et al. 2023', place='Supplement, Table 1')
    """
    found = re.fullmatch(r"(.+? \d{4}), (.+)", ALL[name].source)
    if not found:
        raise ValueError(f"{name} has the source {ALL[name].source!r}, which names no year.")
    return Source(found[1], sentence(found[2]))


def page_of(title: str) -> str:
    """The page, beside the results, of a table or figure or of one of its runs.

    Example:
      >>> page_of("mime2020-figure-2"), page_of("charles2020-table-3-small-stand-in")
      ('mime2020.md', 'charles2020.md')
    """
    return re.sub(r"-(figure|table|section)-\d.*", ".md", title)


def sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


# Of the strongest kind of run first. "Other data" are stand-ins, a part of the paper's data, and
# data that the paper does not use.
KINDS = ("in full", "published settings, other data", "small", "small, by stand-in")
# What the strongest is called as long as something of it is not run.
IN_PART = "published settings and data, in part"


def kind(scale: str, stand_in: bool) -> str:
    """What kind of run it is, in words, if it has data of the paper wherever it may.

    Example:
      >>> kind("paper", False), kind("small", True)
      ('in full', 'small, by stand-in')
    """
    return KINDS[2 * (scale == "small") + stand_in]


class Computed:
    """A table or figure that is computed, not trained."""

    kind = "computed"
    left: Sequence[str] = ()

    def __init__(self, name: str):
        self.name = self.title = name
        self.info = REPRODUCTIONS[name]
        self.verdict = self.info.verdict
        self.methods = set(self.info.methods)


class Trained:
    """What a plan of an experiment came to, judged by the experiment's criteria."""

    def __init__(self, came: Came):
        if came.name not in EXPERIMENTS:
            raise SystemExit(f"There are results of {came.name}, which is no experiment.")
        self.came, self.name, self.title = came, came.name, came.title
        self.info: Experiment = EXPERIMENTS[came.name]
        self.plan: Plan | None = self.info.plan(came.scale, came.stand_in)

    @property
    def kind(self) -> str:
        """What kind of run it is; of an unfinished one with the paper's data it is no "in full"."""
        came = self.came
        beyond = all(panel.endswith(BEYOND[0]) for panel in came.results.panels)
        found = kind(came.scale, came.stand_in or (beyond and came.scale == "paper"))
        return IN_PART if found == KINDS[0] and self.rest else found

    @cached_property
    def judged(self) -> list[tuple[Criterion, Outcome]]:
        """Each criterion with what it came to."""
        return judged(self.info, self.came.results, self.plan)

    @property
    def verdict(self) -> str:
        return verdict(self.judged)

    @property
    def methods(self) -> set[str]:
        """The methods, wrappers too, that were trained."""
        parts = self.run_plan.parts if self.run_plan else ()
        return {method for part in parts for method in algorithm_parts(part.algorithm)}

    @property
    def run_plan(self) -> Plan | None:
        """What of the plan there are results of."""
        if self.plan is None:
            return None
        whole = self.plan.only(self.came.results.panels)
        missing = [(panel, label) for panel, labels in self.missing.items() for label in labels]
        return whole._replace(
            parts=tuple(part for part in whole.parts if (part.panel, part.label) not in missing)
        )

    @cached_property
    def missing(self) -> dict[str, list[str]]:
        """Panel -> methods that were not run, of panels of which others were."""
        return missing_methods(self.plan, self.came.results) if self.plan else {}

    @property
    def left(self) -> Sequence[str]:
        """What of the plan there are no results of."""
        if self.plan is None:
            return []
        results, found = self.came.results, []
        missing = [panel for panel in self.plan.panels if panel not in results.panels]
        missing += [f"{panel} ({'; '.join(labels)})" for panel, labels in self.missing.items()]
        if missing:
            found.append(f"not run yet: {', '.join(missing)}")
        lacking: dict[tuple[str, int, int], list[str]] = {}
        for (panel, label), (done, wanted) in self._counts.items():
            if 0 < done < wanted:
                lacking.setdefault((panel, done, wanted), []).append(label)
        if lacking:
            words = (
                f"{panel} ({', '.join(labels)}) {done} of {wanted}" + " each" * (len(labels) > 1)
                for (panel, done, wanted), labels in lacking.items()
            )
            found.append(f"not all runs are done yet: {'; '.join(words)}")
        return found

    @property
    def rest(self) -> Plan | None:
        """What is left of the plan: methods with fewer runs than it has; hours of those runs."""
        if self.plan is None:
            return None
        left = {one: wanted - done for one, (done, wanted) in self._counts.items() if done < wanted}
        rest = self.plan.with_parts(
            part for part in self.plan.parts if (part.panel, part.label) in left
        )
        hours = {}
        for panel in rest.panels:
            missing = sum(count for (its, _), count in left.items() if its == panel)
            share = missing / rest.only([panel]).num_runs
            hours[panel] = tuple(share * one for one in rest.hours.get(panel, (0.0, 0.0)))
        return rest._replace(hours=hours) if left else None

    @cached_property
    def _counts(self) -> Mapping[tuple[str, str], tuple[int, int]]:
        """Panel, method -> how many of its runs were made, and how many the plan has."""
        done = collections.Counter(
            (trace.panel, trace.label) for trace in self.came.results.traces
        )
        wanted = collections.Counter[tuple[str, str]]()
        for part in self.plan.parts if self.plan else ():
            wanted[part.panel, part.label] += Plan((part,), "").num_runs
        return {one: (done[one], count) for one, count in wanted.items()}


Run = Computed | Trained


def runs(folder: Path = RESULTS) -> list[Run]:
    """All runs that were made, by paper, place and size."""
    came = [read(path) for path in folder.glob("*.json")]
    came.sort(key=lambda one: (one.scale != "paper", one.stand_in))
    found: list[Run] = [*map(Trained, came), *map(Computed, REPRODUCTIONS)]
    return sorted(found, key=lambda run: source(run.name))


def heading(run: Run) -> str:
    """Such as "Figure 1, small, by stand-in"."""
    return f"{source(run.name).place}, {run.kind}"


def linked(words: str, run: Run, folder: str | None = None) -> str:
    """Words as a link to a run's section; beside them its verdict, and what is left to run.

    Args:
      words: that name it.
      run: which.
      folder: of the papers' pages, from the page on which the link stands; None: it stands on the
        run's own page.
    """
    page = "" if folder is None else folder + page_of(run.title)
    left = "".join(f" ({what})" for what in run.left)
    return f"[{words}]({page}#{run.title}): {run.verdict}{left}"


def data_of(own: Sequence[Run]) -> str:
    """The data of runs in a few words: the paper's, stand-ins, and what the paper does not use."""
    if own and isinstance(own[0], Computed):
        return "computed"
    found: dict[str, dict[str, None]] = {"": {}, "stand-in ": {}, "also ": {}}
    for panel in (panel for run in own if isinstance(run, Trained)
                  for panel in run.came.results.panels):
        data, replaces, _ = panel.partition(" for ")
        data, _, beyond = data.partition(", not in the ")
        place = "stand-in " if replaces else "also " if beyond == "paper" else ""
        found[place][data] = None
    return "; ".join(place + ", ".join(names) for place, names in found.items() if names)


def waiting(name: str, done: Sequence[Run], *, in_short: bool = False) -> list[str]:
    """What was not run of a table or figure, and what it needs: data without a package, and hours.

    Args:
      name: of the table or figure.
      done: its runs.
      in_short: without the hours of each panel.
    """
    if name in REPRODUCTIONS:
        return []
    experiment = EXPERIMENTS[name]
    begun = {(run.came.scale, run.came.stand_in): run for run in done if isinstance(run, Trained)}
    found = []
    for scale in SCALES:
        for stand_in in (True, False):
            run = begun.get((scale, stand_in))
            plan = run.rest if run else experiment.plan(scale, stand_in)
            if plan:
                data = _data(plan)
                why = f"the data {', '.join(data)}, and " if data else ""
                time = rough_time(plan, of_each=not in_short)
                rest = ", what is left" if run else ""
                found.append(f"{kind(scale, stand_in)}{rest}: {why}{time}")
    return found + ([f"nothing stands in: {experiment.alone}"] if experiment.alone else [])


def _data(plan: Plan) -> list[str]:
    names = {TASKS[part.task].dataset for part in plan.parts}
    return sorted(name for name in names if name in PRODUCTS and name not in CARRIED)


def rough_time(plan: Plan, *, of_each: bool = False) -> str:
    """Roughly, before it is run; of each panel too, if that is asked for."""
    cpu, gpu = map(in_hours, plan.rough_hours)
    each = ", ".join(
        panel + f" {in_hours(plan.only([panel]).rough_hours[0])}" * (len(plan.panels) > 1)
        for panel in plan.panels
    )
    some = f" ({each})" if of_each else ""
    return f"about {cpu} hours on 2 cores{some}, perhaps {gpu} on a GPU"
