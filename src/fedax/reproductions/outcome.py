"""What an experiment came to: the verdict, and the file that is committed of it."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedax.experiment.folder import RunError, read_config, read_summary
from fedax.report.tables import Table
from fedax.reproductions.common import Reproduction
from fedax.reproductions.criteria import SMALL
from fedax.reproductions.experiment import BEYOND, Criterion, Experiment, Outcome, Plan, Scale
from fedax.reproductions.in_part import InPart, NotRunError, as_if_whole, missing_methods
from fedax.reproductions.jobs import Job
from fedax.reproductions.published import DEVIATION
from fedax.reproductions.results import (
    Results,
    from_json,
    kept,
    traces_of,
)

# The columns of a table of points.
POINTS = ["what the paper says, and what agrees with it", "measured", "agrees"]


class Came(NamedTuple):
    """What a plan of an experiment came to.

    Attributes:
      name: the experiment's.
      scale, stand_in: the plan's.
      results: the runs.
      seconds: that they took, on one core or on a GPU.
      made: when the last of them ended, versions and device.
    """

    name: str
    scale: Scale
    stand_in: bool
    results: Results
    seconds: float
    made: Mapping[str, Any]

    @property
    def title(self) -> str:
        """For files."""
        return title(self.name, self.scale, self.stand_in)


def title(name: str, scale: Scale, stand_in: bool) -> str:
    """What the files of an experiment's plan are called.

    Example:
      >>> title("reddi2021-table-1", "small", stand_in=True)
      'reddi2021-table-1-small-stand-in'
    """
    return "-".join([name, scale, *["stand-in"] * stand_in])


def judged(
    experiment: Experiment, results: Results, plan: Plan | None = None
) -> list[tuple[Criterion, Outcome]]:
    """Each criterion with what it came to; a method of which all settings diverged disagrees.

    Args:
      experiment: whose criteria.
      results: what was run.
      plan: the whole plan; what asks for a method of it that was not run, is not run either.
    """
    listed = as_if_whole(plan, results) if plan else results
    asked = InPart(results, missing_methods(plan, results)) if plan else results
    found = []
    for criterion in experiment.criteria(listed):
        try:
            outcome = criterion.judge(asked)
        except NotRunError as error:
            outcome = Outcome(str(error), False, run=False)
        except LookupError as error:
            outcome = Outcome(str(error.args[0]), False)
        found.append((criterion, outcome))
    return found


def verdict(found: Sequence[tuple[Criterion, Outcome]]) -> str:
    """In words; points on data not used in the paper, or in its figure, are counted separately.

    Example:
      >>> points = [(Criterion("A: less.", None), Outcome("", True)),
      ...           (Criterion("A: more.", None), Outcome("", False)),
      ...           (Criterion("B, not in the paper: less.", None), Outcome("", True)),
      ...           (Criterion("C, not in the figure: less.", None), Outcome("", False))]
      >>> verdict(points[:3])
      'agrees in 1 of 2 points; agrees (on data not used in the paper)'
      >>> verdict(points[3:])
      'disagrees (on data not used in the figure)'
      >>> verdict([points[0], (Criterion("A: the same run.", None), Outcome("", False, True))])
      'agrees; 1 more inconclusive'
      >>> verdict([points[0], (Criterion("A: a method.", None), Outcome("", False, run=False))])
      'agrees; 1 more not run'
    """
    counts = []
    for lacks in ("", *BEYOND):
        count = _counted([outcome for criterion, outcome in found if criterion.beyond == lacks])
        source = lacks.rpartition(" ")[2]
        counts.append(f"{count} (on data not used in the {source})" if lacks and count else count)
    return "; ".join(filter(None, counts))


def _counted(outcomes: Sequence[Outcome]) -> str:
    counting = [outcome for outcome in outcomes if outcome.counts]
    said = [_of_points(counting)] if counting else []
    for word in ("inconclusive", "not run"):
        if count := sum(outcome.word == word for outcome in outcomes):
            said.append(f"{count} more {word}" if said else word)
    return "; ".join(said)


def _of_points(outcomes: Sequence[Outcome]) -> str:
    agreeing = [outcome for outcome in outcomes if outcome.agrees]
    if not agreeing:
        return "disagrees" if outcomes else ""
    small = sum(SMALL in outcome.measured for outcome in agreeing)
    of_all = f" in {len(agreeing)} of {len(outcomes)} points"
    if len(agreeing) == len(outcomes):
        every = "both" if len(outcomes) == 2 else f"all {len(outcomes)}"
        of_all = f" in {every} points" if 0 < small < len(outcomes) else ""
    some = "" if small == len(agreeing) else f"{small} of them "
    words = f", {some}by less than the spread over seeds" if small else ""
    return f"agrees{of_all}{words}"


def in_a_word(outcomes: Iterable[Outcome]) -> str:
    """The verdict of points, of one run or of several, in one word.

    Returns:
      "agrees" if all points do that are not inconclusive, "partly" if at least half of them do,
      else "disagrees"; "inconclusive" instead of the first two if more than half of all points are;
      "not run" if there are none, or if none was run.

    Example:
      >>> in_a_word([Outcome("", True), Outcome("", False)])
      'partly'
      >>> in_a_word([Outcome("", True), *[Outcome("", False, inconclusive=True)] * 2])
      'inconclusive'
    """
    outcomes = [outcome for outcome in outcomes if outcome.run]
    telling = [outcome.agrees for outcome in outcomes if outcome.counts]
    if not telling:
        return "inconclusive" if outcomes else "not run"
    share = sum(telling) / len(telling)
    if share < 0.5:
        return "disagrees"
    if 2 * len(telling) < len(outcomes):
        return "inconclusive"
    return "agrees" if share == 1 else "partly"


def at_edges(results: Results) -> str:
    """A sentence on the best settings beyond which none was tried; empty if there is none."""
    found = [
        f"{panel}: " + ", ".join(words) for panel in results.panels
        if (words := [_edge(label, edges) for label in results.labels(panel)
                      if (edges := results.edges(panel, label))])
    ]
    return f"Best at an edge of what was tried: {'; '.join(found)}." if found else ""


def _edge(label: str, edges: Mapping[str, Any]) -> str:
    words = (
        f"{key} {value}" if isinstance(value, str) else f"{key} {value:g}"
        for key, value in edges.items()
    )
    return f"{label} ({', '.join(words)})"


def gathered(
    name: str, experiment: Experiment, scale: Scale, stand_in: bool, jobs: Sequence[Job],
    storage: Path,
) -> Came:
    """What the finished jobs came to; a method counts when all of its jobs are finished.

    Raises:
      RunError: none is finished, or a folder is damaged.
    """
    records = [(job, job.record(storage)) for job in jobs]
    waiting = {(job.part.panel, job.part.label) for job, record in records if record is None}
    done = [(job, record) for job, record in records
            if (job.part.panel, job.part.label) not in waiting]
    if not done:
        raise RunError(f"No method of {name} is finished in {storage}.")
    traces = [
        trace for job, record in done if record is not None
        for trace in traces_of(
            job.part.panel, job.part.label, record, job.config.num_rounds, by=experiment.by,
            over=experiment.over,
        )
    ]
    written = [_written(job, storage) for job, _ in done]
    made = dict(written[-1]["versions"]) | {"date": max(one["date"] for one in written)}
    seconds = sum(one["seconds"] for one in written)
    results = kept(Results(traces, experiment.by, maximise=experiment.maximise))
    return Came(name, scale, stand_in, results, seconds, made)


def tables_of(experiment: Experiment, came: Came) -> list[Table]:
    """What was measured, beside what was published; of a small run no deviations from it."""
    tables = experiment.tables(came.results)
    if came.scale == "paper":
        return tables
    return [
        table._replace(rows=[row for row in table.rows if not str(row[0]).endswith(DEVIATION)])
        for table in tables
    ]


def _written(job: Job, storage: Path) -> dict[str, Any]:
    """Seconds, versions and the day of a job.

    Raises:
      RunError: its folder is damaged.
    """
    folder = job.folder(storage)
    file = folder / "summary.json"
    summary, versions = read_summary(folder), read_config(folder).get("made_by", {})
    seconds = None if summary is None else summary.get("seconds", 0.0)
    if not isinstance(seconds, int | float) or not isinstance(versions, dict):
        raise RunError(
            f"{file} or config.json beside it is damaged. Delete {folder} to train again."
        )
    day = datetime.date.fromtimestamp(file.stat().st_mtime)
    return {"seconds": float(seconds), "versions": versions, "date": f"{day:%Y-%m-%d}"}


def described_computation(name: str, reproduction: Reproduction) -> str:
    """What is computed, before it is: settings, time, and what would count as agreement."""
    return "\n".join([
        f"{name}: {reproduction.description} ({reproduction.source})",
        f"Settings: {reproduction.settings}",
        f"Time: about {reproduction.seconds} seconds on 2 cores; it needs no GPU and no data.",
        "What counts as agreement:",
        *(f"- {sentence}" for sentence in reproduction.agreement),
    ])


def in_hours(count: float) -> str:
    """Hours with two digits: a rough time says no more.

    Example:
      >>> in_hours(0.184), in_hours(1.26), in_hours(41_924), in_hours(0.0042)
      ('0.18', '1.3', '42,000', '0.004')
    """
    rounded = float(f"{max(count, 0.001):.2g}")
    digits = 0 if rounded >= 10 else 1 if rounded >= 1 else 2 if rounded >= 0.1 else 3
    return f"{rounded:,.{digits}f}"


def described(name: str, experiment: Experiment, plan: Plan, missing: Mapping[str, str]) -> str:
    """What a plan is, before it is run: settings, time, data, and what would count as agreement."""
    cpu, gpu = plan.rough_hours
    seeds = " or ".join(map(str, sorted({part.num_seeds for part in plan.parts})))
    lines = [
        f"{name}: {experiment.description} ({experiment.source})",
        f"Settings: {plan.settings}",
        *(f"Tuned over: {panel}, {methods}: {grid}." for panel, methods, grid in plan.tried),
        f"Runs: {plan.num_runs:,} with {seeds} seed{'s' * (seeds != '1')}, in "
        f"{', '.join(plan.panels)}.",
        f"Time: about {in_hours(cpu)} hours on 2 cores, perhaps {in_hours(gpu)} on a GPU "
        "(a guess).",
        *(f"Missing: the data of {panel}: {how}" for panel, how in missing.items()),
        "What counts as agreement:",
    ]
    panels = Results(
        trace for panel in plan.panels for trace in from_json([{
            "panel": panel, "label": part.label, "values": {}, "seed": 0, "rounds": 0,
            "diverged": 0, "final": {}, "curves": {}, "last": {},
        } for part in plan.parts if part.panel == panel])
    )
    lines += [f"- {criterion.statement}" for criterion in experiment.criteria(panels)]
    return "\n".join(lines)
