"""A run's rounds from where it stands to its end, kept in its folder.

The one loop that writes a run folder, for the command line's runs and for Python's.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedax.algorithm import FederatedAlgorithm
from fedax.data.task import Task
from fedax.devices.processes import any_of_them
from fedax.experiment import checkpoint
from fedax.experiment.checkpoint import Restored, fingerprint
from fedax.experiment.display import Display
from fedax.experiment.folder import CONFIG, DIVERGED, TABLE, RunError, explained, write_json
from fedax.experiment.manifest import BEST
from fedax.experiment.metrics import MetricsLog, Prefix, read_metrics
from fedax.experiment.pages import report_page
from fedax.experiment.profiling import Trace, describe_time
from fedax.experiment.signals import stop_on_signal
from fedax.experiment.summary import closing, opening, write_summary
from fedax.experiment.versions import versions
from fedax.files.regular import write_atomically
from fedax.measures.communication import Communication
from fedax.report.clients import CLIENTS, clients_table
from fedax.rounds.budget import mechanism_of
from fedax.rounds.history import History
from fedax.rounds.learning import Learning
from fedax.rounds.rejections import Rejections
from fedax.rounds.report import DivergedError, RoundReport
from fedax.rounds.state import TrainingState, population
from fedax.rounds.stopping import Watch
from fedax.rounds.timing import Stopwatch
from fedax.rounds.validation import at_end
from fedax.sinks import Sinks

PAGE = "report.html"


class StoppedError(RunError):
    """A signal stopped the run after a round, with a checkpoint.

    Attributes:
      by: the signal's number.
    """

    def __init__(self, message: str, by: int | None) -> None:
        super().__init__(message)
        self.by = by


class Job(NamedTuple):
    """A run, whoever described it: the command line's configuration or a call from Python.

    Attributes:
      folder: where it is kept.
      config: the content of its config.json, except what it was made by.
      task, algorithm: what is learned, and how.
      sent: what a client sends and gets in a round.
      rounds: (state) -> the reports of the rounds that are left.
      watch: when to stop, and which model is the best.
      go_on: how to continue when it was stopped, the end of a sentence.
      warn: tells of a client that is rejected again and again, of a run that does not learn, and
        of a sink that fails; None: the display does.
    """

    folder: Path
    config: Mapping[str, Any]
    task: Task
    algorithm: FederatedAlgorithm
    sent: Communication
    rounds: Callable[[TrainingState], Iterator[RoundReport]]
    watch: Watch
    go_on: str
    warn: Callable[[str], None] | None = None

    @property
    def num_rounds(self) -> int:
        """T."""
        return self.config["num_rounds"]


def write_config(job: Job, **made_by: Any) -> None:
    """Writes the configuration, with the versions of what it runs on, and the table's rules."""
    write_json(job.folder / CONFIG, {**job.config, "made_by": versions() | made_by})
    table = job.task.train.table
    if table is not None:
        write_atomically(job.folder / TABLE, table.to_json().encode())


def take_part(job: Job, restored: Restored, history: History | None = None) -> TrainingState:
    """Runs the rounds as one of several processes, of which another one writes.

    Args:
      job: the run, of which the watch knows, see `remember`.
      restored: where it stands.
      history: gets the rounds' metrics.

    Raises:
      StoppedError: Ctrl-C or SIGTERM asked to stop, here or in another process.
    """
    state = restored.state
    done = int(state.server_state.round_index)
    with stop_on_signal(lambda: _stopped_inside(job, done)) as asked:
        for report in iter(()) if job.watch.why else job.rounds(state):
            done = int(report.metrics["round"])
            asked.round_done(report.metrics["compile_seconds"])
            if history is not None:
                history.append(report.metrics)
            job.watch.see(report)
            if report.state is None:
                continue
            state = report.state
            stops = any_of_them(bool(asked))
            if job.watch.why:
                break
            if stops and done < job.num_rounds:
                raise _stopped(job, done, asked.by)
    if history is not None:
        _at_end(job, history.rounds, state)
    return state


def _stopped(job: Job, done: int, by: int | None) -> StoppedError:
    go_on = f"{job.go_on[0].upper()}{job.go_on[1:]}"
    return StoppedError(f"Stopped after round {done} of {job.num_rounds}. {go_on}", by)


def _stopped_inside(job: Job, done: int, kept: int | None = None) -> str:
    """What is said if a round cannot be waited for."""
    last = "" if kept is None else (
        f" The last checkpoint is of round {kept}." if kept else " There is no checkpoint yet."
    )
    inside = f"Stopped inside round {done + 1}" if done < job.num_rounds else "Stopped at the end"
    return f"{inside} of {job.num_rounds}.{last} {job.go_on[0].upper()}{job.go_on[1:]}"


def remember(job: Job, restored: Restored) -> None:
    """Has the watch take notice of the rounds that are done."""
    done = int(restored.state.server_state.round_index)
    job.watch.replay(read_metrics(job.folder)[:done], restored.best)


def sit(
    job: Job, restored: Restored, notes: list[str], display: Display, *, profile: bool = False
) -> TrainingState:
    """Runs the rounds that are left, writing metrics and checkpoints, then summary and report.

    Args:
      job: the run; its folder is locked by the caller, and holds its configuration.
      restored: where the run stands, of which the watch knows, see `remember`.
      notes: said before the first round.
      display: shows the rounds.
      profile: write a trace of some rounds, and say where time went.

    Returns:
      The state after the last round.

    Raises:
      StoppedError: Ctrl-C or SIGTERM asked to stop.
      RunError: if the folder cannot be written.
      DivergedError: see `fedax.simulate`.
    """
    folder, watch, state = job.folder, job.watch, restored.state
    done = kept = int(state.server_state.round_index)
    before = read_metrics(folder)[:done]
    rejections = Rejections(job.task.model, population(job.task, job.algorithm), before)
    learning = Learning(job.task, job.config["seed"], before)
    warn = job.warn or display.warn
    references = {text: dict(compute()) for text, compute in job.task.references.items()}
    trace = Trace(folder / "profile" if profile else None, job.num_rounds - done)
    saving = 0.0
    log = _opened(job, done)
    with (
        log, display, stop_on_signal(lambda: _stopped_inside(job, done, kept)) as asked,
        Sinks(job.config["log"], folder, job.config, warn, before) as sinks,
    ):
        _tell(display.say, opening(folder, job.config, job.task, state, references), notes)
        _tell(warn, learning.begin(state, job.algorithm))
        with _begun(trace, job), _remembered(job):
            for report in iter(()) if watch.why else job.rounds(state):
                done = int(report.metrics["round"])
                asked.round_done(report.metrics["compile_seconds"])
                if saving:
                    report.metrics["checkpoint_seconds"], saving = saving, 0.0
                watch.see(report)  # first, as on_round may add metrics
                with explained(folder, job.go_on):
                    rejected = {"rejected": report.rejected} if report.rejected else {}
                    log.write(report.metrics | rejected)
                    _keep_clients(folder, report)
                sinks.log(report.metrics)
                display.show(report)
                params = (report.state or restored.state).server_state.params
                _tell(warn, rejections.add(report.rejected, params), learning.add(report.metrics))
                trace.round_done()
                if report.state is None:
                    continue
                state = report.state
                stops = any_of_them(bool(asked)) and not report.followed
                last = done == job.num_rounds or stops or watch.why
                if last or done % job.config["checkpoint_every"] == 0:
                    stopwatch = Stopwatch()
                    with explained(folder, job.go_on):
                        log.flush()
                        save(job, state, log.prefix)
                    kept = done
                    saving = stopwatch.lap().seconds
                if watch.why:
                    break
                if stops and done < job.num_rounds:
                    raise _stopped(job, done, asked.by)
        _tell(warn, learning.end(state))
        summary = _finish(
            job, references, saving, rejections, display, state, sinks
        )
        if profile:
            _tell(display.say, [describe_time(summary["time"]), trace.outcome])
    return state


def _opened(job: Job, done: int) -> MetricsLog:
    """The metrics of the folder's rounds, to which others are added."""
    with explained(job.folder, job.go_on):
        if done < job.num_rounds and job.watch.why is None:  # a longer run is not finished any more
            (job.folder / "summary.json").unlink(missing_ok=True)
        return MetricsLog(job.folder, done)


def _tell(say: Callable[[str], None], *lines: Iterable[str]) -> None:
    for line in itertools.chain(*lines):
        say(line)


@contextlib.contextmanager
def _remembered(job: Job) -> Iterator[None]:
    """Leaves in the folder why a run diverged, for tables and pages."""
    with explained(job.folder, job.go_on):
        (job.folder / DIVERGED).unlink(missing_ok=True)
    try:
        yield
    except DivergedError as error:
        with contextlib.suppress(OSError):  # the run has a better reason to end
            write_json(job.folder / DIVERGED, {"why": str(error)})
        raise


def _finish(
    job: Job, references: Mapping[str, Any], saving: float, rejections: Rejections,
    display: Display, state: TrainingState, sinks: Sinks,
) -> dict[str, Any]:
    """Writes the summary and the page, closes the sinks, and returns the summary."""
    with explained(job.folder, job.go_on):
        _at_end(job, read_metrics(job.folder), state)
        summary = write_summary(
            job.folder, job.config, job.task, job.sent, references, job.watch, saving,
            rejections.counts.most_common(),
            mechanism_of(
                job.algorithm, job.task.train.num_clients, job.config["sampling"],
                job.config["cohort_size"],
            ),
            sinks.close,
        )
        _write_page(job.folder)
    display.say(closing(job.folder, summary, references))
    return summary


def complete(job: Job) -> None:
    """Writes the page of a finished run that failed when only the page was left to write.

    The run is finished without it, so a page that cannot be written is only told of.
    """
    page, summary = job.folder / PAGE, job.folder / "summary.json"
    if not page.exists() or page.stat().st_mtime < summary.stat().st_mtime:
        try:
            _write_page(job.folder)
        except OSError as error:
            if job.warn is not None:
                job.warn(f"Cannot write {page}: {error.strerror}.")


def _write_page(folder: Path) -> None:
    write_atomically(folder / PAGE, report_page(folder).encode())


def _at_end(job: Job, rounds: Sequence[Mapping[str, Any]], state: TrainingState) -> None:
    """Has the watch know what was measured at the end."""
    at_end(
        job.task, job.algorithm, job.watch, rounds, state, job.config["seed"],
        job.config["evaluate_every"], job.config["evaluation_sample"],
    )


def _begun(trace: Trace, job: Job) -> contextlib.ExitStack:
    """The trace, begun; a sentence if it cannot be written."""
    with contextlib.ExitStack() as tracing, explained(job.folder, job.go_on):
        tracing.enter_context(trace)
        return tracing.pop_all()


def save(job: Job, state: TrainingState, metrics: Prefix | None = None) -> None:
    """Writes a checkpoint, and the best model beside the checkpoints."""
    best = None if job.watch.best is None else checkpoint.encoded_best(job.watch.best)
    checkpoint.save(job.folder / "checkpoints", state, fingerprint(job.config), best, metrics)
    if best is not None:
        write_atomically(job.folder / BEST, best)


def _keep_clients(folder: Path, report: RoundReport) -> None:
    """Writes the table of the clients if the round measured them, over the one before."""
    if report.clients is not None:
        table = clients_table(report.clients, report.personal, report.own)
        write_atomically(folder / CLIENTS, table.encode())
