"""Searches of ranges in a folder: what is asked for, tried, kept, and gone on with.

A search's folder has the study, `study.db`, unless that is elsewhere, and the rounds of every
trial that was trained here, in `trials/METHOD/`.
"""

from __future__ import annotations

import signal
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np

from fedax.algorithm import FederatedAlgorithm
from fedax.data.file_names import file_name
from fedax.data.task import Task
from fedax.devices.ending import Request
from fedax.experiment.differing import record_of_tasks
from fedax.experiment.errors import ConfigError
from fedax.experiment.folder import TASKS, RunError, delete_run, explained, locked
from fedax.experiment.signals import stop_on_signal
from fedax.files.regular import read_file, write_atomically
from fedax.outside.paths import expanded
from fedax.rounds.checks import require_task
from fedax.rounds.history import History
from fedax.rounds.measurements import rehearse
from fedax.rounds.options import Settings, SimulateOptions
from fedax.rounds.stopping import Goal
from fedax.rounds.untrained import lost_in, untrained_loss
from fedax.signatures import with_options
from fedax.sweeps.choosing import PAPER_RULE, default_rule, require_choosable
from fedax.sweeps.record import Record
from fedax.tuning.space import ends, parse_range
from fedax.validate import check_choice, check_count, options_checked, require_out

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler

    from fedax.tuning.optuna_search import Report, TrainBatch, Tried

STUDY, TRIALS, WORKER = "study.db", "trials", "worker"
# The file with a worker's name has no more bytes.
MOST_NAME = 1000


class Plan(NamedTuple):
    """A search, whoever described it.

    Attributes:
      algorithm: the method's name.
      space: the hyperparameters' ranges.
      made: what a setting stands for.
      options: (setting, seed) -> how its rounds are run.
      num_rounds: T.
      num_trials: of all workers together.
      seeds: of each trial.
      choose: by which metric, see `fedax.sweeps.choosing.choose`.
      about: what all workers of the study must have alike, besides.
      sampler, pruner: names, or a sampler of Optuna's.
      batch_size: the number of trials that are trained side by side.
      storage: where the study is; None: in the folder.
      go_on: how to continue when it was stopped, a sentence.
    """

    algorithm: str
    space: Mapping[str, BaseDistribution]
    made: Callable[[Mapping[str, Any]], tuple[Task, FederatedAlgorithm]]
    options: Callable[[Mapping[str, Any], int], Settings]
    num_rounds: int
    num_trials: int
    seeds: Sequence[int]
    choose: str
    about: Mapping[str, Any]
    sampler: str | BaseSampler
    pruner: str
    batch_size: int
    storage: str | None
    go_on: str


class SearchResult(NamedTuple):
    """The result of a search.

    Attributes:
      study: Optuna's study, with all trials of all workers: `study.best_params`,
        `study.best_value`, `study.trials_dataframe()`.
      record: the rounds of the trials that were trained here, like those of a sweep; a setting's
        number is its place among them.
    """

    study: optuna.Study
    record: Record


def require_optuna() -> None:
    """Raises an error if Optuna is not installed."""
    try:
        import optuna  # noqa: PLC0415, F401 - optional, and slow to import
    except ModuleNotFoundError:
        raise RunError("A search needs Optuna: pip install 'fedax[optuna]'.") from None


@options_checked
@with_options
def search(
    task: Task,
    factory: Callable[..., FederatedAlgorithm],
    space: Mapping[str, str | BaseDistribution],
    *,
    num_rounds: int,
    num_trials: int,
    out: str | Path,
    overwrite: bool = False,
    seeds: int = 1,
    choose: str | None = None,
    sampler: str | BaseSampler = "tpe",
    pruner: str = "none",
    batch_size: int = 8,
    storage: str | None = None,
    fixed: Mapping[str, Any] | None = None,
    progress: bool = True,
    **options: Unpack[SimulateOptions],
) -> SearchResult:
    """Searches ranges of hyperparameters with Optuna, training several trials as one program.

    The same call again continues an interrupted search; trials in progress are repeated. With a
    larger num_trials, it adds trials.

    Args:
      task: model and data.
      factory: (model, **hyperparameters) -> the method, such as `fedax.fedyogi`.
      space: hyperparameter -> its range: "loguniform(0.001, 10)", "uniform(0, 1)", "int(1, 20)",
        "logint(1, 100)" or "choice(A, B)", or one of `optuna.distributions`.
      num_rounds: number of rounds of every trial, T.
      num_trials: total number of trials of the study.
      out: a folder, created if it does not exist.
      overwrite: whether to delete the run, sweep or search in the folder first; a study in storage
        stays.
      seeds: number of seeds of every trial, counted from the option `seed`; a trial's value is the
        mean over them.
      choose: metric that ranks the trials, as for a sweep. None: the validation loss if the task
        has validation data, otherwise "train_loss".
      sampler: "tpe", "random", "qmc", "cmaes", "gp", or one of `optuna.samplers`.
      pruner: "none", "median", "hyperband" or "halving"; stops trials that fall behind, by their
        first seed.
      batch_size: number of trials that are drawn and trained together.
      storage: URL of a database that several workers share, such as
        "postgresql://user@host/name"; None: SQLite in the folder. Each worker has its own folder.
      fixed: hyperparameters that are not searched.
      progress: whether to print a line for every batch.
      **options: see `SimulateOptions`.

    Raises:
      TypeError, ValueError, ConfigError: if an argument is wrong.
      RunError: if Optuna is not installed, or the study belongs to a different search or cannot be
        used.
      KeyboardInterrupt: on Ctrl-C; the same call continues.
    """
    check_search(sampler, pruner, num_trials, batch_size, choose or PAPER_RULE)
    from fedax.experiment.sitting import StoppedError  # noqa: PLC0415 - slow to import

    require_task(task)
    require_out(out, overwrite=overwrite)
    check_count("seeds", seeds)
    check_count("num_rounds", num_rounds)
    settings = Settings.checked(num_rounds, options, task.train.num_clients)
    if choose is None:
        choose = default_rule([task], evaluates=settings.evaluate_every != 0)
    fixed = dict(fixed or {})
    ranges = {
        key: parse_range(key, of) if isinstance(of, str) else of for key, of in space.items()
    }
    plan = Plan(
        getattr(factory, "__name__", "own"), ranges,
        lambda values: (task, factory(task.model, **fixed, **values)),
        lambda values, seed: settings._replace(seed=seed),  # noqa: ARG005 - the same for all
        num_rounds, num_trials, tuple(range(settings.seed, settings.seed + seeds)), choose,
        {"task": task.name, "cohort_size": settings.cohort_size, "fixed": fixed,
         TASKS: record_of_tasks([task])},
        sampler, pruner, batch_size, storage,
        f"Call fedax.search again with the same arguments and out={str(out)!r} to continue.",
    )
    _require_choosable(plan)
    folder = expanded(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"Cannot make the folder {folder}: {error.strerror}.") from None
    with locked(folder, plan.go_on, goes_on=not overwrite):
        if overwrite:
            delete_run(folder, "out=")
        try:
            return run_search(folder, plan, print if progress else lambda line: None)  # noqa: ARG005
        except StoppedError as stopped:
            kind = KeyboardInterrupt if stopped.by == signal.SIGINT else SystemExit
            raise kind(str(stopped)) from None


def check_search(
    sampler: str | BaseSampler, pruner: str, num_trials: int, batch_size: int, choose: str
) -> None:
    """Raises an error if something that is asked for is not there, or no such thing.

    Raises:
      ConfigError: if the sampler, pruner, number or direction is wrong.
      RunError: Optuna, or what a sampler needs, is not installed.
    """
    require_optuna()
    from fedax.tuning.samplers import PRUNERS, check_sampler  # noqa: PLC0415 - slow to import

    try:
        check_count("num_trials", num_trials)
        check_count("batch_size", batch_size)
        check_choice("pruner", pruner, PRUNERS)
        Goal.of(choose, None, "choose")
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if isinstance(sampler, str):
        check_sampler(sampler)


def run_search(folder: Path, plan: Plan, say: Callable[[str], None]) -> SearchResult:
    """Tries settings until there are enough, in a folder that the caller has locked.

    Raises:
      RunError: if the study or the folder cannot be used, or the study is of a different search.
      StoppedError: Ctrl-C or SIGTERM.
    """
    from fedax.tuning import optuna_search as trying  # noqa: PLC0415 - optional, slow to import
    from fedax.tuning.optuna_workers import open_study  # noqa: PLC0415
    from fedax.tuning.samplers import make_pruner  # noqa: PLC0415
    from fedax.tuning.studies import (  # noqa: PLC0415
        explained_damage,
        require_sound,
        require_study_file,
    )
    from fedax.tuning.trials import keep_trials, record_of, scorer, trainer  # noqa: PLC0415

    maximise = Goal.of(plan.choose, None, "choose").mode == "max"
    every = trying.rounds_between_reports(plan.num_rounds)
    asked = trying.Search(
        plan.space, scorer(plan.choose), plan.num_rounds, plan.num_trials, maximise,
        plan.seeds, plan.sampler, make_pruner(plan.pruner, plan.num_rounds, every),
        plan.batch_size, plan.seeds[0], _worker(folder, plan.storage), _judge(plan.made),
    )
    about = {
        **plan.about, "algorithm": plan.algorithm, "num_rounds": plan.num_rounds,
        "seeds": list(plan.seeds), "choose": plan.choose,
    }
    name = f"{plan.about['task']} {plan.algorithm}"
    if plan.storage is None:
        require_study_file(folder / STUDY)
    with explained_damage(str(folder)):
        study = open_study(
            name, plan.storage or folder / STUDY, space=plan.space, maximise=maximise,
            about=about,
        )
        require_sound(study, plan.space)
    train = trainer(
        plan.made, plan.space, plan.num_rounds, plan.options, every, plan.batch_size
    )
    trials = trials_of(folder, plan.algorithm)
    with (
        stop_on_signal(lambda: f"Stopped. {plan.go_on}") as stop,
        explained(folder, plan.go_on),
    ):
        stopping = _stopping(train, stop, plan.go_on)
        for tried in trying.explore(study, asked, stopping, keep_trials(trials)):
            say(_line(study, tried, plan.num_trials))
    return SearchResult(study, record_of({plan.algorithm: (study, trials)}))


def _require_choosable(plan: Plan) -> None:
    """Raises a ConfigError if runs would not have the metric that a search chooses by."""
    values = {key: ends(of)[0] for key, of in plan.space.items()}
    task, algorithm = plan.made(values)
    evaluates = plan.options(values, plan.seeds[0]).evaluate_every != 0
    try:
        require_choosable(
            plan.choose, task, algorithm, evaluates=evaluates,
            reported=rehearse(task, algorithm).reported,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _judge(
    made: Callable[[Mapping[str, Any]], tuple[Task, FederatedAlgorithm]]
) -> Callable[[Mapping[str, Any], int, History], int]:
    """In which round a run that came to its end diverged, as a sweep judges it; 0: it did not."""
    untrained: dict[tuple[int, int], tuple[Task, float]] = {}

    def lost(values: Mapping[str, Any], seed: int, history: History) -> int:
        task, _ = made(values)
        key = (id(task), seed)
        if not any("train_loss" in metrics for metrics in history.rounds):
            return 0  # private methods do not report it
        if key not in untrained:
            untrained[key] = task, untrained_loss(task, seed)
        return lost_in(np.asarray(history["train_loss"]), untrained[key][1])

    return lost


def trials_of(folder: Path, algorithm: str) -> Path:
    """Where the rounds of a method's trials are."""
    return folder / TRIALS / file_name(algorithm)


def _worker(folder: Path, storage: str | None) -> str:
    """The name of this worker: of one of several a name of its own, which the folder remembers."""
    if storage is None:
        return ""
    file = folder / WORKER
    with explained(folder):
        if not file.exists() or not read_file(file, MOST_NAME).strip():
            write_atomically(file, f"{uuid.uuid4().hex[:12]}\n".encode())
        return read_file(file, MOST_NAME).decode("utf-8", "replace").strip()


def _stopping(train: TrainBatch, stop: Request, go_on: str) -> TrainBatch:
    """The same, but when it is asked to stop it does after the round."""
    from fedax.experiment.sitting import StoppedError  # noqa: PLC0415 - slow to import

    def train_until(settings: Any, seed: int, report: Report) -> Any:
        def report_or_stop(number: int, metrics: Any) -> Sequence[int]:
            stop.round_done()
            if stop:
                raise StoppedError(
                    f"Stopped. Trials in progress will be repeated. {go_on}", stop.by
                )
            return report(number, metrics)

        return train(settings, seed, report_or_stop)

    return train_until


def _line(study: optuna.Study, tried: Sequence[Tried], num_trials: int) -> str:
    """What is said after a batch."""
    from optuna.trial import TrialState  # noqa: PLC0415 - optional, and slow to import

    states = (TrialState.COMPLETE, TrialState.PRUNED)
    over = study.get_trials(deepcopy=False, states=states)
    words = [f"{len(over)}/{num_trials} trials"]
    for what, count in (
        ("stopped early", sum(trial.given_up for trial in tried)),
        ("diverged", sum(any(trial.diverged.values()) for trial in tried)),
    ):
        words += [f"{count} of {len(tried)} {what}"] if count else []
    if any(trial.state == TrialState.COMPLETE for trial in over):
        values = " ".join(
            f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in study.best_params.items()
        )
        words.append(f"best {study.best_value:.6g} with {values}")
    return "  ".join(words)
