"""`fedax reproduce`: from its options to the tables, the picture and the verdict."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import jax

from fedax.cli.commands import Reproduce
from fedax.data.catalogue import PRODUCTS, ways_to_get
from fedax.data.folder import is_at_hand
from fedax.devices import terminal
from fedax.experiment.errors import ConfigError
from fedax.experiment.folder import RunError, for_shell
from fedax.experiment.signals import stop_on_signal
from fedax.outside.guesses import nearest
from fedax.report.picture import save_picture
from fedax.report.tables import Table, print_json, print_tables
from fedax.reproductions import EXPERIMENTS, REPRODUCTIONS
from fedax.reproductions.experiment import Experiment, Plan, Scale
from fedax.reproductions.jobs import Job, finished, jobs_of
from fedax.reproductions.outcome import (
    POINTS,
    Came,
    at_edges,
    described,
    described_computation,
    gathered,
    in_hours,
    judged,
    tables_of,
    title,
    verdict,
)
from fedax.reproductions.results import Trace
from fedax.reproductions.results_file import read, with_earlier, write
from fedax.reproductions.workers import Trained, train_all
from fedax.tasks.registry import TASKS
from fedax.validate import check_count, so_many, unknown

OUT = Path("fedax-reproductions")
# What only trained ones take.
OF_TRAINING = ("scale", "stand_in", "only", "seeds", "storage", "workers")


def reproduce(command: Reproduce) -> None:
    """Computes or trains a reproduction, and prints the result.

    Raises:
      ConfigError: if the name, or its scale, is unknown; the message says what is available.
      PictureError, RunError: if files cannot be written, or runs failed.
    """
    name = command.name
    if command.plan and command.json:
        raise ConfigError("--plan prints text, so it cannot be combined with --json.")
    if name is None:
        raise ConfigError("fedax reproduce needs a name; fedax reproduce --list shows them.")
    if name in EXPERIMENTS:
        _train(name, EXPERIMENTS[name], command)
        return
    if name not in REPRODUCTIONS:
        raise ConfigError(_unknown(name))
    for option in OF_TRAINING:
        if getattr(command, option) != getattr(Reproduce(), option):
            raise ConfigError(
                f"--{option.replace('_', '-')} is for reproductions that are trained, but {name} "
                "is computed, in seconds."
            )
    _compute(name, command)


def _compute(name: str, command: Reproduce) -> None:
    """A reproduction that needs no training, in float64."""
    known = REPRODUCTIONS[name]
    if command.plan:
        print(described_computation(name, known))
        return
    with jax.enable_x64(True):
        found = known.compute()
    _print(f"{known.description} ({known.source})", found.tables, command)
    if command.out is not None or not command.json:
        path = save_picture(found.draw, (command.out or OUT) / f"{name}.png", named=False)
        if not command.json:
            print(f"Picture: {path}")


def _unknown(name: str) -> str:
    """What to say of a name that none has: those that contain it, or the nearest."""
    known = [*REPRODUCTIONS, *EXPERIMENTS]
    alike = [one for one in known if name in one] if name else []
    if alike:
        return f"Unknown reproduction {name!r}. There are {', '.join(alike)}."
    near = nearest(name, known)
    meant = f" Did you mean {near!r}?" if near else ""
    return f"Unknown reproduction {name!r}.{meant} fedax reproduce --list shows all."


def _train(name: str, experiment: Experiment, command: Reproduce) -> None:
    whole = _plan(name, experiment, command)
    plan = _chosen(whole, command)
    missing = _missing(plan)
    if command.plan:
        print(described(name, experiment, plan, missing))
        return
    there = plan.only([panel for panel in plan.panels if panel not in missing])
    if not there.parts:
        raise ConfigError(
            " ".join(f"{panel}: {how}" for panel, how in missing.items()) + _other_data(
                experiment, command)
        )
    if command.workers is not None:
        _check_count("--workers", command.workers)
    out = command.out or OUT
    storage = command.storage or out / "runs"
    jobs = list(jobs_of(there.parts))
    file = _file(name, command, out)
    if file and file.exists():
        read(file)  # a damaged one is named before anything is trained

    def show(trained: Trained) -> None:
        if not command.json:
            _tell(trained)

    if not command.json:
        for panel, how in missing.items():
            print(f"Left out: {panel}. {how}")
        print(what_is_left(there, jobs, storage))
    words = f"Stopped. Finished runs are in {for_shell(storage)}; the same command continues."
    with stop_on_signal(lambda: words) as asked:
        try:
            train_all(jobs, storage, command.workers, show, asked)
        except KeyboardInterrupt:
            raise RunError(words) from None
    besides = finished(whole.without(plan), storage)
    if besides and not command.json:
        print(f"The results include {_finished_before(besides, plan)}.")
    order = list(dict.fromkeys(
        (part.panel, part.label) for panel in whole.panels for part in whole.only([panel]).parts
    ))
    done = sorted(
        [*jobs, *besides],
        key=lambda job: (job.seed, order.index((job.part.panel, job.part.label))),
    )
    came = gathered(
        name, experiment, cast(Scale, command.scale), command.stand_in, done, storage
    )
    said = []
    if file and file.exists():  # what others wrote meanwhile is there, too
        earlier = read(file)
        came = with_earlier(came, earlier, whole)
        said = _kept(came, done, earlier, file)
    saved = [] if file is None else _save(experiment, came, out)
    if not command.json and said:
        print("\n".join(said))
    _say(experiment, came, command)
    if not command.json:
        print("\n".join(saved))


def _tell(trained: Trained) -> None:
    part = trained.job.part
    try:
        print(
            f"{trained.done} of {trained.total} jobs: {part.panel}, {part.label}, seed "
            f"{trained.job.seed}: {trained.seconds:.0f} s", flush=True,
        )
    except OSError as error:  # as in `fedax reproduce ... | head -1`; the rest is trained
        if error.errno not in (errno.EPIPE, errno.EINVAL):  # the latter on Windows
            raise
        terminal.nobody_reads()


def _save(experiment: Experiment, came: Came, out: Path) -> list[str]:
    """Writes the results and the picture; sentences that say where."""
    path = write(came, out)
    saved = [f"Results: {path}"]
    if (draw := experiment.draw) is not None:
        picture = save_picture(
            lambda figure: draw(figure, came.results), path.with_suffix(".png"), named=False
        )
        saved.append(f"Picture: {picture}")
    return saved


def _file(name: str, command: Reproduce, out: Path) -> Path | None:
    """Where the results go; None if nowhere."""
    if command.out is None and command.json:
        return None
    return out / f"{title(name, cast(Scale, command.scale), command.stand_in)}.json"


def _kept(came: Came, done: Sequence[Job], earlier: Came, file: Path) -> list[str]:
    """Sentences on the runs of an earlier file that stay, and on methods that do not."""
    trained = {(job.part.panel, job.part.label, job.seed) for job in done}
    stay = [trace for trace in came.results.traces
            if (trace.panel, trace.label, trace.seed) not in trained]
    there = {(trace.panel, trace.label) for trace in came.results.traces}
    gone = [trace for trace in earlier.results.traces if (trace.panel, trace.label) not in there]
    said = [f"The results include what {file} has of {_methods(stay)}."] if stay else []
    if gone:
        said.append(
            f"Left out of {file}: {_methods(gone)}, which this plan trains otherwise or not at all."
        )
    return said


def _methods(traces: Sequence[Trace]) -> str:
    """Panels with their methods.

    Example:
      >>> _methods([Trace("P", label, {}, 0, 1, 0, {}, {}) for label in "AB"])
      'P (A, B)'
    """
    panels: dict[str, dict[str, None]] = {}
    for trace in traces:
        panels.setdefault(trace.panel, {})[trace.label] = None
    return "; ".join(f"{panel} ({', '.join(labels)})" for panel, labels in panels.items())


def _finished_before(jobs: Sequence[Job], plan: Plan) -> str:
    """Panels, and methods of those panels that the plan has, too."""
    others = dict.fromkeys(job.part.panel for job in jobs if job.part.panel not in plan.panels)
    methods = dict.fromkeys(job.part.label for job in jobs if job.part.panel in plan.panels)
    words = [f"panels finished before: {', '.join(others)}"] if others else []
    if methods:
        words.append(f"methods finished before: {', '.join(methods)}")
    return "; ".join(words)


def what_is_left(plan: Plan, jobs: Sequence[Job], storage: Path) -> str:
    """How many jobs are to be trained, and for how long, if all of a panel's take as long."""
    left = [job.part.panel for job in jobs if not job.is_done(storage)]
    if not left:
        return f"{so_many(len(jobs), 'job')}, all finished before."
    hours = sum(
        plan.only([panel]).rough_hours[0] * left.count(panel)
        / sum(job.part.panel == panel for job in jobs) for panel in plan.panels
    )
    before = f", {len(jobs) - len(left)} finished before" if len(left) < len(jobs) else ""
    return f"{so_many(len(jobs), 'job')}{before}: about {in_hours(hours)} hours on 2 cores."


def _plan(name: str, experiment: Experiment, command: Reproduce) -> Plan:
    """All panels of the scale that was asked for.

    Raises:
      ConfigError: if there is none.
    """
    plan = experiment.plan(cast(Scale, command.scale), command.stand_in)
    if plan is None:
        ways = [
            f"--scale {scale}{' --stand-in' * stand_in}"
            for scale in ("small", "paper") for stand_in in (False, True)
            if experiment.plan(scale, stand_in) is not None
        ]
        raise ConfigError(
            f"{name} cannot be run with --scale {command.scale}"
            f"{' and --stand-in' * command.stand_in}. Available: {', '.join(ways)}."
        )
    return plan


def _chosen(plan: Plan, command: Reproduce) -> Plan:
    """The panels, methods and seeds that were asked for.

    Raises:
      ConfigError: if a panel or a method is unknown, or no panel asked for has the method.
    """
    labels = dict.fromkeys(part.label for part in plan.parts)
    for name in command.only:
        if name not in plan.panels and name not in labels:
            raise ConfigError(unknown("panel or method", name, [*plan.panels, *labels]))
    chosen = plan.of(command.only)
    methods = [name for name in command.only if name not in plan.panels]
    for name in command.only:
        if name in methods and name not in {part.label for part in chosen.parts}:
            panels = [one for one in command.only if one in plan.panels]
            raise ConfigError(f"--only: {', '.join(panels)} has no method {name}.")
        if name in plan.panels and name not in chosen.panels:
            raise ConfigError(f"--only: {name} has no method {' or '.join(methods)}.")
    if command.seeds is None:
        return chosen
    _check_count("--seeds", command.seeds)
    return chosen.with_seeds(command.seeds)


def _check_count(option: str, value: int) -> None:
    """Raises ConfigError unless the value is 1 or more."""
    try:
        check_count(option, value)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _missing(plan: Plan) -> dict[str, str]:
    """Panels whose data are not available -> how to get them."""
    found = {}
    for part in plan.parts:
        data = TASKS[part.task].dataset
        if data in PRODUCTS and not is_at_hand(data):
            found[part.panel] = f"The data set {data} is not available. {ways_to_get(data)}"
    return found


def _other_data(experiment: Experiment, command: Reproduce) -> str:
    if command.stand_in or experiment.plan(cast(Scale, command.scale), True) is None:
        return ""
    return " Or use another data set in its place: --stand-in."


def _say(experiment: Experiment, came: Came, command: Reproduce) -> None:
    """Tables and the verdict."""
    plan = experiment.plan(came.scale, came.stand_in)
    found = judged(experiment, came.results, plan)
    points = Table(
        f"Verdict: {verdict(found)}" + (
            ", on other data than the paper's, or with fewer rounds." if came.stand_in else "."
        ),
        POINTS,
        [[one.statement, outcome.measured, outcome.word]
         for one, outcome in found],
    )
    tables = [*tables_of(experiment, came), points]
    _print(f"{experiment.description} ({experiment.source})", tables, command)
    edges = at_edges(came.results)
    if edges and not command.json:
        print(f"{edges}\n")


def _print(title: str, tables: Sequence[Table], command: Reproduce) -> None:
    if command.json:
        print_json(tables)
    else:
        print(f"{title}\n")
        print_tables(tables)
