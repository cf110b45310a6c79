"""The file of results that `fedax reproduce` writes, and that is committed: JSON, a run a line.

It is read as anybody's file: what is damaged is named, and nothing is counted twice.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedax.experiment.folder import RunError
from fedax.files.regular import write_atomically
from fedax.reproductions.experiment import Plan
from fedax.reproductions.jobs import Job, jobs_of
from fedax.reproductions.outcome import Came
from fedax.reproductions.results import Results, Trace, as_json, from_json
from fedax.validate import quoted

# What the fields of a run are; numbers of its metrics are checked one by one.
KINDS = {"panel": str, "label": str, "values": dict, "seed": int, "rounds": int, "diverged": int,
         "final": dict, "last": dict, "curves": dict}


def write(came: Came, folder: Path) -> Path:
    """Writes what can be committed.

    Raises:
      RunError: the file cannot be written.
    """
    path = folder / f"{came.title}.json"
    rows = as_json(came.results)
    head = {
        "name": came.name, "scale": came.scale, "stand_in": came.stand_in,
        "seconds": round(came.seconds), "made": dict(came.made), "by": came.results.by,
        "maximise": came.results.maximise,
    }
    lines = ",\n".join(json.dumps(_finite(row), allow_nan=False) for row in rows)
    text = json.dumps(head, indent=1)[:-2] + f',\n "runs": [\n{lines}\n]}}\n'
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode(), alone=False)
    except OSError as error:
        raise RunError(f"Cannot write {path}: {error.strerror}.") from None
    return path


def read(path: Path) -> Came:
    """Reads what `write` wrote.

    Raises:
      RunError: it is no such file.
    """
    try:
        found = json.loads(path.read_text("utf-8"))
        traces = from_json([_known(row) for row in found["runs"]])
        _require_single(traces)
        results = Results(traces, found["by"], maximise=found["maximise"])
        seconds, made = _number(found["seconds"]), dict(found["made"])
        if not isinstance(made.get("date", ""), str):
            raise ValueError(f"the date {quoted(made['date'])}")
        came = Came(found["name"], found["scale"], found["stand_in"], results, seconds, made)
        if came.title != path.stem:
            raise ValueError(f"it has results of {came.title}")
        return came
    except RecursionError:
        why = "too many brackets"
    except KeyError as error:
        why = f"{error} is missing"
    except (OSError, ValueError, TypeError, AttributeError) as error:
        why = str(error)
    raise RunError(
        f"{path} is not what fedax reproduce writes: {why}. Move it away to begin a new one."
    )


def _finite(value: Any) -> Any:
    """With null in place of numbers that are not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value


def _known(row: Any) -> dict[str, Any]:
    """A run's fields, with NaN in place of null.

    Raises:
      ValueError: one of them is something else.
    """
    if not isinstance(row, dict):
        raise ValueError(f"a run is {quoted(row)}")
    for name, kind in KINDS.items():
        if type(row[name]) is not kind:
            raise ValueError(f"a run has the {name} {quoted(row[name])}")
    for curve in row["curves"].values():  # rounds and values
        if type(curve) is not list or [type(part) for part in curve] != [list, list]:
            raise ValueError(f"a run has the curve {quoted(curve)}")
        for one in (*curve[0], *curve[1]):
            if one is not None:
                _number(one)
    numbers = {
        name: {key: math.nan if value is None else _number(value)
               for key, value in row[name].items()}
        for name in ("final", "last")
    }
    return {**row, **numbers}


def _number(value: Any) -> float:
    """A finite number."""
    if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
        raise ValueError(f"{quoted(value)} is no finite number")
    return float(value)


def _require_single(traces: Sequence[Trace]) -> None:
    """Raises a ValueError if a run is there twice, as after a merge, and would count twice."""
    count = Counter(
        (trace.panel, trace.label, trace.seed, json.dumps(trace.values, sort_keys=True))
        for trace in traces
    )
    for (panel, label, seed, _), number in count.items():
        if number > 1:
            raise ValueError(f"the run of {label} in {panel} with seed {seed} is there twice")


def with_earlier(came: Came, earlier: Came, plan: Plan) -> Came:
    """With the runs of an earlier file that were not made again, seed by seed.

    A method stays whole or not at all: if the plan trains it with other rounds or another grid by
    now, or runs of a seed are missing, it is left out. Of the time that the earlier runs took,
    those that stay have their share by number.
    """
    parts: dict[tuple[str, str], list[Job]] = {}
    for job in jobs_of(plan.parts):
        parts.setdefault((job.part.panel, job.part.label), []).append(job)
    methods: dict[tuple[str, str], list[Trace]] = {}
    for trace in earlier.results.traces:
        methods.setdefault((trace.panel, trace.label), []).append(trace)
    now = {(trace.panel, trace.label, trace.seed) for trace in came.results.traces}
    stay = [
        trace for one, traces in methods.items()
        if _is_whole(parts.get(one, ()), traces)
        for trace in traces if (*one, trace.seed) not in now
    ]
    order = [*parts]
    traces = sorted(
        [*came.results.traces, *stay],
        key=lambda one: (one.seed, order.index((one.panel, one.label))),
    )
    share = len(stay) / max(len(earlier.results.traces), 1)
    last = max((came, earlier) if stay else (came,), key=lambda one: one.made.get("date", ""))
    return came._replace(
        results=Results(traces, came.results.by, maximise=came.results.maximise),
        seconds=came.seconds + share * earlier.seconds, made=last.made,
    )


def _is_whole(jobs: Sequence[Job], traces: Sequence[Trace]) -> bool:
    """Whether runs are those of jobs, and with each seed all of them.

    A file may have more seeds than the plan; of such a seed all jobs of the first are asked for.
    """
    if not all(any(_is_of(job, trace) for job in jobs) for trace in traces):
        return False
    for seed in {trace.seed for trace in traces}:
        planned = [job for job in jobs if job.seed == seed]
        for job in planned or [job for job in jobs if job.seed == jobs[0].seed]:
            size = math.prod(map(len, job.part.grid.values()))
            if sum(trace.seed == seed and _is_of(job, trace) for trace in traces) != size:
                return False
    return True


def _is_of(job: Job, trace: Trace) -> bool:
    """Whether a run is one of those that a job makes, its seed aside."""
    grid, rounds = job.part.grid, job.config.num_rounds
    ends = trace.rounds <= rounds if trace.diverged else trace.rounds == rounds
    return ends and trace.values.keys() == grid.keys() and all(
        value in grid[key] for key, value in trace.values.items()
    )


