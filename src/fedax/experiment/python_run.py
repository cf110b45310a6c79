"""A run that a Python program describes with its own objects, kept in a run folder."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import platform
import signal
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedax.algorithm import FederatedAlgorithm, Params
from fedax.data.describing import (
    Describer,
    describe_task,
    digest,
    plain_values,
)
from fedax.data.task import Task
from fedax.devices.processes import are_several, compare, is_first
from fedax.experiment import checkpoint, trust
from fedax.experiment.checkpoint import Restored, fingerprint
from fedax.experiment.differing import (
    differences,
    digest_of_params,
    in_words,
    record_of_tasks,
    require_same_tasks,
)
from fedax.experiment.display import Display, make_console, style_of_python
from fedax.experiment.folder import (
    CONFIG,
    TASKS,
    RunError,
    explained,
    locked,
    new_folder,
    read_run_config,
    read_summary,
)
from fedax.experiment.metrics import as_history, read_metrics
from fedax.experiment.sitting import (
    Job,
    StoppedError,
    complete,
    remember,
    save,
    sit,
    take_part,
    write_config,
)
from fedax.factories import recipe
from fedax.rounds.history import History
from fedax.rounds.measurements import rehearse, without_held_out
from fedax.rounds.options import Settings, SimulateOptions
from fedax.rounds.report import RoundReport
from fedax.rounds.simulate import cohorts_of, simulate_from
from fedax.rounds.state import TrainingState, initial_state
from fedax.rounds.stopping import ON_ROUND, EarlyStopping, Watch

# Options of `simulate` that are no settings of a run.
NOT_WRITTEN = {"state", "state_every", "donate", "mesh"}


class Call(NamedTuple):
    """What `fedax.train` was called with, for a run that is kept in a folder."""

    task: Task
    algorithm: FederatedAlgorithm
    num_rounds: int
    checkpoint_every: int
    progress: bool
    looks: bool  # whether on_round was given
    early_stopping: EarlyStopping | None
    keep_best: str | None
    initial_params: Params | None
    log: tuple[str, ...]
    options: SimulateOptions
    settings: Settings


def train_in_folder(
    folder: Path, call: Call, watch: Watch, *, overwrite: bool = False
) -> tuple[TrainingState, History]:
    """Trains to the end, from where the folder stands; returns the last state and all rounds.

    Args:
      folder: the run's.
      call: what `fedax.train` was called with.
      watch: when to stop, and which model is the best.
      overwrite: delete what the folder holds, and begin there.

    Raises:
      RunError: if the folder holds a different run, cannot be used, or is in use.
      ProcessError: if this is one of several processes, and another has other arguments.
      KeyboardInterrupt, SystemExit: Ctrl-C or SIGTERM stopped it after a round; the message says
        how to go on.
      DivergedError: see `simulate`.
    """
    config, code = describe_call(call)
    initial = initial_state(call.task, call.algorithm, call.settings.seed, call.initial_params)
    tasks = record_of_tasks([call.task])
    require_same_call(call, initial, tasks)
    cohorts_of(call.algorithm, call.task.train, call.settings)  # before anything is made
    goes_on = not overwrite and (folder / CONFIG).exists()
    before = read_run_config(folder) if goes_on else None
    if before is not None and differences(before, config):
        older, _ = describe_call(call, complete=False)
        config = config if differences(before, older) else older
    tested = call.settings.evaluate_every != 0
    task = call.task if tested else without_held_out(call.task)
    sent = rehearse(task, call.algorithm, initial.server_state.params)
    job = Job(
        folder, config, call.task, call.algorithm, sent,
        lambda state: _rounds(call, watch, state), watch,
        f"call fedax.train again with the same arguments and out={str(folder)!r} to continue.",
        lambda sentence: warnings.warn(sentence, RuntimeWarning, stacklevel=8),
    )
    if before is not None:
        _require_same(folder, before, config, code)
        require_same_tasks(
            before.get("made_by", {}).get(TASKS), tasks, f"run in {folder}",
            "Choose another out=, or pass the data that the run started with.",
        )
    if not is_first():
        restored = Restored(initial, []) if overwrite else _restored(job, initial)
        history = as_history(read_metrics(folder)[: _done(restored)])
        if before is not None and _is_finished(job, restored, before, call.looks):
            return restored.state, history
        with _as_python():
            return take_part(job, restored, history), history
    mine = locked(folder, job.go_on) if before is not None else new_folder(
        folder, "out=", job.go_on, overwrite=overwrite
    )
    with mine:
        if before is None:
            with explained(folder, job.go_on):
                write_config(
                    job, code=code, signature=trust.signature(job.config), **{TASKS: tasks}
                )
                save(job, initial)
        restored = _restored(job, initial)
        if before is not None and _is_finished(job, restored, before, call.looks):
            complete(job)
            return restored.state, as_history(read_metrics(folder))
        if before is not None:
            with explained(folder, job.go_on):
                write_config(
                    job, code=code, signature=trust.signature(job.config), **{TASKS: tasks}
                )
        return _sit(job, restored, call.progress), as_history(read_metrics(folder))


def _sit(job: Job, restored: Restored, progress: bool) -> TrainingState:
    """Runs the rounds that are left."""
    console, done = make_console(), _done(restored)
    display = Display(job.num_rounds, done, console, style_of_python(console, progress))
    notes = [*restored.refused, *([f"Continuing after round {done}."] if done else [])]
    with _as_python():
        return sit(job, restored, notes, display)


@contextlib.contextmanager
def _as_python() -> Iterator[None]:
    """Tells of a signal as Python does."""
    try:
        yield
    except StoppedError as stopped:
        kind = KeyboardInterrupt if stopped.by == signal.SIGINT else SystemExit
        raise kind(str(stopped)) from None


def require_same_call(
    call: Call, initial: TrainingState, tasks: list[dict[str, Any]] | None = None
) -> None:
    """Raises a `ProcessError` if another process has other settings, data or parameters."""
    if are_several():
        config, _ = describe_call(call)
        task, = record_of_tasks([call.task]) if tasks is None else tasks
        compare("settings", {
            **config, "the task": task,
            "the model to start from": digest_of_params(initial.server_state.params),
        })


def describe_call(call: Call, *, complete: bool = True) -> tuple[dict[str, Any], str]:
    """The configuration of a run that Python described, and a digest of the user's own code.

    Args:
      call: what `fedax.train` was called with.
      complete: False as fedax 0.22 and before had it, see `Describer`.
    """
    settings, stopping, describe = call.settings, call.early_stopping, Describer(complete=complete)
    made = recipe(call.algorithm)
    algorithm = describe(call.algorithm)
    describe(call.task.model)  # for its code
    arguments = {name: value for name, value in algorithm.get("arguments", {}).items()
                 if name != "model"}
    config = {
        "task": call.task.name,
        "algorithm": _method_name(call.algorithm) if made is None else made.factory.__name__,
        "preset": "none",
        "num_rounds": _plain(call.num_rounds),
        "checkpoint_every": _plain(call.checkpoint_every),
        **{name: describe(_plain(value)) for name, value in settings._asdict().items()
           if name not in NOT_WRITTEN},
        "early_stopping": None if stopping is None else dataclasses.asdict(stopping),
        "keep_best": call.keep_best,
        "log": call.log,
        "algorithm_options": plain_values(algorithm) if made is None else arguments,
        "python": {
            **describe_task(call.task),
            "algorithm": algorithm.get("factory"),
            "method": digest(algorithm),
            "initial_params": digest_of_params(call.initial_params),
        },
    }
    return json.loads(json.dumps(config)), digest(describe.codes)


def _require_same(
    folder: Path, before: Mapping[str, Any], config: Mapping[str, Any], code: str
) -> None:
    """Raises an error if the folder's run is another; warns if only the user's code is."""
    if "python" not in before:
        raise RunError(
            f"The run in {folder} was started on the command line. Continue it there, or choose "
            "another out=."
        )
    found = differences(before, config)
    if found:
        raise RunError(
            f"{folder} holds a different run: {in_words(found)}. Choose another out=, start again "
            "with overwrite=True, or repeat the call recorded in its config.json."
        )
    made_by = before.get("made_by", {})
    then, now = str(made_by.get("python")), platform.python_version()
    same_python = then.split(".")[:2] == now.split(".")[:2]
    if same_python and made_by.get("code") != code:
        warnings.warn(
            f"The code of the model or the method has changed since the run in {folder} was "
            "started. Training continues with the new code; to start again, choose another out=.",
            UserWarning, stacklevel=5,
        )


def _is_finished(job: Job, restored: Restored, before: Mapping[str, Any], looks: bool) -> bool:
    """Whether nothing is left to do for this call; has the watch take notice of what is done."""
    done = _done(restored)
    if job.num_rounds < done:
        raise RunError(
            f"num_rounds is {job.num_rounds}, but the run in {job.folder} has already done {done} "
            "rounds."
        )
    remember(job, restored)
    summary = read_summary(job.folder)
    if summary is None or summary["rounds"] != done:
        return False
    job.watch.final = summary.get("final", {})
    job.watch.best_test = (summary.get("best") or {}).get("test")
    why = summary.get("stopped") or ""
    if why.startswith(ON_ROUND) and looks and job.num_rounds <= before["num_rounds"]:
        job.watch.why = why
    if not set(job.config["log"]) <= set(summary.get("log", ())):  # a sink lacks rounds
        return False
    return done == job.num_rounds or job.watch.why is not None


def _restored(job: Job, initial: TrainingState) -> Restored:
    """Where the run stands."""
    return checkpoint.restore_latest(
        job.folder / "checkpoints", initial, fingerprint(job.config), job.folder
    )


def _done(restored: Restored) -> int:
    return int(restored.state.server_state.round_index)


def _rounds(call: Call, watch: Watch, state: TrainingState) -> Iterator[RoundReport]:
    every = 1 if watch.needs_every_state else call.options.get(
        "state_every", 1 if call.looks else call.checkpoint_every
    )
    options: SimulateOptions = {
        "donate": not call.looks, **call.options, "state": state,
        "state_every": math.gcd(every, call.checkpoint_every),
    }
    return simulate_from(call.task, call.algorithm, call.num_rounds, options)


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's."""
    return value.item() if isinstance(value, np.generic) else value


def _method_name(algorithm: FederatedAlgorithm) -> str:
    """The name of the function that a method's own functions were defined in."""
    for function in (algorithm.exchanges[0].client, algorithm.init):
        name = getattr(function, "__qualname__", "").split(".")[0]
        if name and not name.startswith("<"):
            return name
    return "own"
