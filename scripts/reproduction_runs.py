"""The runs of docs/notebook/reproductions: which there are, what they are called, how they stand.

The pages of reproductions and those of methods take names, places and verdicts from here.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from fedax.data.catalogue import PRODUCTS, SOURCES
from fedax.experiment.build import algorithm_parts
from fedax.reproductions import EXPERIMENTS, REPRODUCTIONS
from fedax.reproductions.experiment import BEYOND, Criterion, Experiment, Outcome, Plan, Scale
from fedax.reproductions.in_part import missing_methods
from fedax.reproductions.outcome import Came, in_hours, judged, verdict
from fedax.reproductions.results_file import read
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
# What "other data" are called where they are the paper's, and what both are called where more is
# changed than the data and the rounds.
FEWER_ROUNDS = "published settings and data, fewer rounds"
CHANGED, CHANGED_FEWER = "changed settings, other data", "changed settings, fewer rounds"


def kind(
    scale: str, stand_in: bool, panels: Sequence[str], plan: Plan | None, experiment: Experiment
) -> str:
    """What kind of run panels of a plan make, in words.

    Example:
      >>> table = EXPERIMENTS["mime2020-table-3"]
      >>> plan = table.plan("paper", True)
      >>> kind("paper", True, plan.panels, plan, table)
      'changed settings, other data'
    """
    beyond = all(panel.endswith(BEYOND[0]) for panel in panels)
    found = KINDS[2 * (scale == "small") + (stand_in or (beyond and scale == "paper"))]
    if found != KINDS[1]:
        return found
    fewer = stand_in and are_the_papers(panels, plan, experiment)
    if plan and {*panels} & {*plan.changed}:
        return CHANGED_FEWER if fewer else CHANGED
    return FEWER_ROUNDS if fewer else found


def are_the_papers(panels: Iterable[str], plan: Plan | None, experiment: Experiment) -> bool:
    """Whether all of a plan's panels have tasks that the paper has, if only with fewer rounds."""
    whole = experiment.plan("paper", False)
    if plan is None or whole is None:
        return False
    used = {panel: {part.task for part in plan.parts if part.panel == panel} for panel in panels}
    papers = {part.task for part in whole.parts}
    return all(tasks and tasks <= papers for tasks in used.values())


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
        came, panels = self.came, self.came.results.panels
        found = kind(came.scale, came.stand_in, panels, self.plan, self.info)
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
    """The data of runs in a few words, the strongest run's first.

    Example:
      >>> data_of([run for run in runs() if run.name == "reddi2021-figure-2"])
      'CIFAR-10, Fashion-MNIST, plays (not in the figure)'
    """
    if own and isinstance(own[0], Computed):
        return "computed"
    found: dict[str, dict[str, None]] = {}
    trained = [one for one in own if isinstance(one, Trained)]
    for run, panel in ((one, panel) for one in trained for panel in one.came.results.panels):
        beyond = next((words for words in BEYOND if panel.endswith(words)), "")
        data, replaces, _ = panel.removesuffix(beyond).partition(" for ")
        other = replaces and not are_the_papers([panel], run.plan, run.info)
        place = beyond.removeprefix(", ") or "stand-in" * bool(other)
        found.setdefault(place, {})[data] = None
    return "; ".join(
        ", ".join(names) + f" ({place})" * bool(place) for place, names in found.items()
    )


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
                what = kind(scale, stand_in, plan.panels, plan, experiment)
                found.append(f"{what}{rest}: {why}{time}")
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
