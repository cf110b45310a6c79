"""One run of the command line in a run folder: started, resumed, read."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
from jax.sharding import Mesh

from fedax.algorithm import FederatedAlgorithm
from fedax.data.describing import Describer, digest
from fedax.data.file_names import file_name
from fedax.data.task import Task
from fedax.devices.mesh import client_mesh
from fedax.devices.processes import are_several, compare, is_first
from fedax.experiment import checkpoint, sources, trust
from fedax.experiment.build import build_algorithm, build_task, reads_files
from fedax.experiment.checkpoint import Restored, fingerprint
from fedax.experiment.config import (
    RunConfig,
    describe_sources,
    load_config,
    personalization,
    with_sources_of_now,
)
from fedax.experiment.differing import digest_of_params, record_of_tasks, require_same_tasks
from fedax.experiment.display import Display
from fedax.experiment.errors import CohortError, ConfigError
from fedax.experiment.folder import (
    CONFIG,
    DEFAULTS,
    HELD,
    TASKS,
    RunError,
    explained,
    locked,
    new_folder,
    read_config,
    require_run,
    resume_command,
    resuming,
)
from fedax.experiment.resolving import held_by, with_defaults
from fedax.experiment.sitting import Job, remember, sit, take_part, write_config
from fedax.experiment.summary import describe_table
from fedax.measures.communication import Communication
from fedax.rounds.budget import budget_of
from fedax.rounds.measurements import rehearse, require_personalization
from fedax.rounds.options import SimulateOptions
from fedax.rounds.report import RoundReport
from fedax.rounds.sampling import part_of_the_day
from fedax.rounds.simulate import simulate_from
from fedax.rounds.state import TrainingState, initial_state
from fedax.rounds.stopping import BY_VALIDATION, EarlyStopping, Watch
from fedax.rounds.validation import watched
from fedax.sinks import require_libraries
from fedax.validate import so_many

C = TypeVar("C")
B = TypeVar("B")


def start(
    config: RunConfig, out: Path | None = None, *, profile: bool = False,
    fit_cohort: bool = False, overwrite: bool = False,
) -> Path:
    """Starts a run in a new folder and trains to its end.

    Args:
      config: what to run.
      out: the run folder, created; None makes one under fedax-runs/.
      profile: whether to trace some rounds into the folder's profile/, and show where time went.
      fit_cohort: whether to reduce the cohort to the population if the population is smaller.
      overwrite: whether to delete the run or sweep in the folder first.

    Returns:
      The run folder.

    Raises:
      ConfigError: if the configuration does not fit the task.
      RunError: if the folder cannot be used, or the run was stopped or could not continue.
      SinkError: if the library of a sink is not installed.
      DivergedError: see `fedax.simulate`.
    """
    require_libraries(config.log)
    config, built = fitted_cohort(config, build, smaller_cohort) if fit_cohort else (
        config, build(config)
    )
    config = _with_watched(config, built.task)
    config, defaults = with_defaults(config)
    job = _job(out or Path("fedax-runs"), config, built)
    beginning = Restored(initial_state(built.task, built.algorithm, config.seed), [])
    tasks = _record(config, built)
    compare("settings", _settings(config, tasks, beginning))
    if not is_first():
        take_part(job, beginning)
        return job.folder
    folder = out or _unused_folder(config)
    job = job._replace(folder=folder, go_on=resuming(folder))
    with new_folder(folder, overwrite=overwrite):
        with explained(folder):
            _write_config(job, config, tasks, defaults)
        display = Display(config.num_rounds)
        about = describe_table(built.task, config.task_options)
        notes = [*about, *describe_sources(config), *(trust.notes() if config.sources else ())]
        sit(job, beginning, notes, display, profile=profile)
    return folder


def resume(
    folder: Path, num_rounds: int | None = None, *, profile: bool = False, force: bool = False,
    log: tuple[str, ...] | None = None,
) -> Path:
    """Continues a run from its newest complete checkpoint; exactly, on the same number of devices.

    Args:
      folder: a run folder.
      num_rounds: a new total of rounds; None keeps the run's.
      profile: as for `start`.
      force: continue although a user's source has changed, and record the new one.
      log: names of sinks from now on; None keeps the run's.

    Raises:
      ConfigError, RunError, SinkError, CheckpointError, DivergedError: as for `start`, and if the
        folder or all of its checkpoints are damaged.
    """
    require_run(folder)
    if not is_first():
        config, built, restored = read_run(folder, force=force)
        config = dataclasses.replace(config, num_rounds=num_rounds or config.num_rounds)
        tasks = _record(config, built)
        compare("settings", _settings(config, tasks, restored))
        job = _job(folder, config, built)
        remember(job, restored)
        take_part(job, restored)
        return folder
    with locked(folder):
        config, built, restored = read_run(folder, force=force)
        if num_rounds is not None:
            config = dataclasses.replace(config, num_rounds=num_rounds)
        if log is not None:
            config = dataclasses.replace(config, log=log)
        require_libraries(config.log)
        done = int(restored.state.server_state.round_index)
        if num_rounds is not None and num_rounds < done:
            raise ConfigError(
                f"--rounds is {num_rounds}, but the run has already done "
                f"{so_many(done, 'round')}."
            )
        tasks = _record(config, built)
        made_by = read_config(folder).get("made_by", {})
        before = made_by.get(TASKS)
        if not force:
            _require_same(folder, config, before, tasks)
        compare("settings", _settings(config, tasks, restored))
        if force:
            config = with_sources_of_now(config, done)
        job = _job(folder, config, built)
        if num_rounds is not None or log is not None or force or before is None:
            with explained(folder):
                _write_config(job, config, tasks, made_by.get(DEFAULTS, {}))
        note = f"Continuing after round {done}." if done else (
            "There is no checkpoint yet: starting from the beginning."
        )
        if done == config.num_rounds:
            note = f"All {done} rounds are done. To train longer: --rounds N."
        remember(job, restored)
        display = Display(config.num_rounds, done)
        notes = [*describe_sources(config), *restored.refused, note]
        sit(job, restored, notes, display, profile=profile)
    return folder


def _record(config: RunConfig, built: Built) -> list[dict[str, Any]]:
    """What tells the run's task from others, and a digest of a user's own method."""
    found = record_of_tasks([built.task])
    if config.algorithm_source is not None:
        found[0]["method"] = digest(Describer(complete=True)(built.algorithm))
    return found


def _require_same(folder: Path, config: RunConfig, before: Any, now: list[dict[str, Any]]) -> None:
    """Raises an error if the data that a user's own task or method reads have changed."""
    reads = reads_files(config.task, config.task_source)
    if not isinstance(before, list) or not (config.sources or reads):
        return
    if not reads:  # one of fedax's own is known by its name and its settings
        before, now = ([{"method": one.get("method")} for one in tasks] for tasks in (before, now))
    require_same_tasks(
        before, now, f"run in {folder}",
        f"To continue with the new data: {resume_command(folder)} --force",
    )


def _settings(
    config: RunConfig, tasks: list[dict[str, Any]], restored: Restored
) -> dict[str, Any]:
    """What all processes of a training must have alike."""
    x64: Any = jax.config
    start = restored.state.server_state
    return {
        **dataclasses.asdict(config), "the round to continue from": int(start.round_index),
        "the model to start from": digest_of_params(start.params) if are_several() else None,
        "the task": tasks[0],
        "the number of devices": jax.local_device_count(),
        "JAX_ENABLE_X64": x64.jax_enable_x64,
    }


class ReadRun(NamedTuple):
    """A run as its folder has it: its settings, what they stand for, and its newest state."""

    config: RunConfig
    built: Built
    restored: Restored


def read_run(folder: Path, *, force: bool = False) -> ReadRun:
    """Reads a run folder; the state is that of the newest whole checkpoint, or the initial one.

    Args:
      folder: a run folder.
      force: whether a user's source may have changed.

    Raises:
      ConfigError, RunError, CheckpointError: if the folder is not a run folder, or is damaged.
    """
    require_run(folder)
    config = load_config(folder / CONFIG, force=force)
    built = build(config)
    restored = checkpoint.restore_latest(
        folder / "checkpoints", initial_state(built.task, built.algorithm, config.seed),
        fingerprint(dataclasses.asdict(config)), folder,
    )
    return ReadRun(config, built, restored)


class Built(NamedTuple):
    """What a configuration stands for."""

    task: Task
    algorithm: FederatedAlgorithm
    sent: Communication


def build(config: RunConfig) -> Built:
    """Loads the task and makes the algorithm.

    Raises:
      ConfigError, RunError: if they cannot be loaded, or do not fit together.
    """
    task = build_data(config)
    algorithm = build_method(config, task)
    return Built(task, algorithm, fitted(config, task, algorithm))


def fitted_cohort(
    config: C, build: Callable[[C], B], smaller: Callable[[C, int], C]
) -> tuple[C, B]:
    """A configuration whose cohorts are no larger than the population, and what it builds."""
    try:
        return config, build(config)
    except CohortError as error:
        return fitted_cohort(smaller(config, error.num_clients), build, smaller)


def smaller_cohort(config: RunConfig, num_clients: int) -> RunConfig:
    """The configuration with a cohort of at most `num_clients`."""
    return dataclasses.replace(config, cohort_size=min(config.cohort_size, num_clients))


def build_data(config: RunConfig) -> Task:
    """Loads the task.

    Raises:
      ConfigError, RunError: if it cannot be loaded.
    """
    try:
        return build_task(config.task, config.task_options, config.task_source)
    except ConfigError:
        raise
    except ValueError as error:
        raise RunError(str(error)) from None


def build_method(config: RunConfig, task: Task) -> FederatedAlgorithm:
    """Makes the algorithm for the task.

    Raises:
      ConfigError: if it cannot be created, or the task has too few clients.
    """
    if config.cohort_size > task.train.num_clients:
        raise CohortError(
            f"cohort_size is {config.cohort_size}, but the task {config.task} has only "
            f"{so_many(task.train.num_clients, 'client')}.", task.train.num_clients,
        )
    return build_algorithm(
        config.algorithm, config.algorithm_options, task.model, config.algorithm_source
    )


def fitted(config: RunConfig, task: Task, algorithm: FederatedAlgorithm) -> Communication:
    """What a client sends and gets, if the task and the algorithm fit together.

    Raises:
      ConfigError: if they do not.
    """
    try:  # what does not fit together is said before anything is made
        with contextlib.ExitStack() as stack:
            for source in config.sources:
                stack.enter_context(sources.beside(source))
            sent = rehearse(task, algorithm)
            require_personalization(task, algorithm, personalization(config))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"Algorithm {config.algorithm} on {config.task}: {error}") from error
    return sent


def _job(folder: Path, config: RunConfig, built: Built) -> Job:
    """The run that a configuration describes.

    Raises:
      ConfigError: if what is watched is never measured.
    """
    stopping = None
    try:
        if config.early_stopping is not None:
            stopping = EarlyStopping(
                config.early_stopping, config.early_stopping_patience,
                config.early_stopping_min_delta,
            )
        watch = Watch(
            stopping, config.keep_best, evaluate_every=config.evaluate_every,
            validates=built.task.validation is not None,
            budget=budget_of(
                built.algorithm, built.task.train.num_clients, config.sampling,
                config.cohort_size, config.num_rounds,
            ),
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return Job(
        folder, dataclasses.asdict(config), *built,
        functools.partial(_rounds, config, built, watch.needs_every_state), watch,
        resuming(folder),
    )


def _with_watched(config: RunConfig, task: Task) -> RunConfig:
    """The configuration with the validation metric where nobody names another.

    Raises:
      ConfigError: if a metric is watched that the task does not have.
    """
    stopping = None if config.early_stopping is None else EarlyStopping(config.early_stopping)
    try:
        stopping, keep_best = watched(task, stopping, config.keep_best, config.evaluate_every)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    # A metric that was named keeps its direction, as in "lift:max".
    if config.early_stopping == BY_VALIDATION and stopping is not None:
        config = dataclasses.replace(config, early_stopping=stopping.metric)
    return dataclasses.replace(config, keep_best=keep_best)


def _rounds(
    config: RunConfig, built: Built, every_state: bool, state: TrainingState
) -> Iterator[RoundReport]:
    options: SimulateOptions = {
        **simulate_options(config), "state": state, "donate": True, "mesh": _mesh(config, built),
        "state_every": 1 if every_state else config.checkpoint_every,
    }
    return simulate_from(built.task, built.algorithm, config.num_rounds, options)


def simulate_options(config: RunConfig) -> SimulateOptions:
    """How a configuration's rounds are run, as `fedax.simulate` takes it."""
    return {
        "cohort_size": config.cohort_size, "seed": config.seed,
        "evaluate_every": config.evaluate_every, "evaluation_sample": config.evaluation_sample,
        "evaluation_redraw": config.evaluation_redraw,
        "evaluate_training": config.evaluate_training,
        "clients_per_chunk": config.clients_per_chunk, "sampling": config.sampling,
        "dropout": config.dropout, "diagnostics": config.diagnostics,
        "available": (
            None if config.availability == 1
            else part_of_the_day(config.availability, seed=config.seed)
        ),
        "personalize_steps": config.personalize_steps,
        "personalize_epochs": config.personalize_epochs,
        "personalize_learning_rate": config.personalize_learning_rate,
        "personalize_clients": config.personalize_clients,
    }


def _mesh(config: RunConfig, built: Built) -> Mesh | None:
    """All devices that there are, but no more than clients; of several processes each has some."""
    if are_several():
        return client_mesh()
    size = 1 if built.algorithm.pooled else config.cohort_size
    return client_mesh(jax.devices()[:size])


def _unused_folder(config: RunConfig) -> Path:
    """Makes a folder under fedax-runs/ that no other run has."""
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    first = Path("fedax-runs") / file_name(f"{config.task}-{config.algorithm}-{stamp}")
    folder, number = first, 1
    try:
        folder.parent.mkdir(exist_ok=True)
        while True:
            try:
                folder.mkdir()
                return folder
            except FileExistsError:
                number += 1
                folder = first.with_name(f"{first.name}-{number}")
    except OSError as error:
        raise RunError(f"Cannot make the run folder {folder}: {error.strerror}.") from None


def _write_config(
    job: Job, config: RunConfig, tasks: list[dict[str, Any]], defaults: Any
) -> None:
    held = held_by(job.algorithm, config)
    own = {"signature": trust.signature(job.config)} if config.sources else {}
    write_config(
        job, **{TASKS: tasks, DEFAULTS: defaults}, **{HELD: held} if held else {}, **own
    )
    sources.keep_copies(job.folder, config.sources)
