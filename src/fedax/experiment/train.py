"""Training from Python."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Unpack, cast

import jax
import jax.numpy as jnp

from fedax.algorithm import FederatedAlgorithm, Params
from fedax.data.task import Task
from fedax.devices.mesh import one_copy
from fedax.devices.processes import are_several
from fedax.mistakes.algorithm import require_algorithm
from fedax.models.parameters import counted
from fedax.outside.paths import expanded
from fedax.rounds.budget import budget_of
from fedax.rounds.checks import require_task
from fedax.rounds.directions import TEST
from fedax.rounds.history import History
from fedax.rounds.learning import Learning
from fedax.rounds.options import Settings, SimulateOptions
from fedax.rounds.rejections import Rejections
from fedax.rounds.report import RoundReport
from fedax.rounds.simulate import simulate
from fedax.rounds.state import TrainingState, initial_state, population
from fedax.rounds.stopping import EarlyStopping, Watch
from fedax.rounds.validation import at_end, watched
from fedax.signatures import with_options
from fedax.sinks import require_libraries, sink_names
from fedax.validate import check_count, options_checked, plain, plain_options, quoted, require_out


class TrainResult(NamedTuple):
    """The result of `train`.

    Attributes:
      params: the trained parameters.
      history: the metrics of every round.
      state: the training state, to continue from, see `simulate`.
      best_params: parameters of the best round by the metric of keep_best; None if keep_best is
        not used.
      best_round: that round, counted from 1.
      stopped: why training ended before its last round, in a sentence; else None.
      test: the `test_*` metrics at the end; empty if nothing was evaluated on test data.
      best_test: the `test_*` metrics of best_params, if the task has validation data; else None.
    """

    params: Params
    history: History
    state: TrainingState
    best_params: Params | None = None
    best_round: int | None = None
    stopped: str | None = None
    test: Mapping[str, float] = MappingProxyType({})
    best_test: Mapping[str, float] | None = None

    def __repr__(self) -> str:
        lines = ["TrainResult", f"  params: {counted(self.params)}", f"  history: {self.history!r}"]
        if self.best_round is not None:
            tests = [f"{name} {value:.4g}" for name, value in (self.best_test or {}).items()]
            lines.append(f"  best: {', '.join([f'of round {self.best_round}', *tests])}")
        if self.stopped is not None:
            lines.append(f"  stopped: {self.stopped}")
        return "\n".join(lines)


@options_checked
@with_options
def train(
    task: Task,
    algorithm: FederatedAlgorithm,
    *,
    num_rounds: int,
    out: str | Path | None = None,
    overwrite: bool = False,
    checkpoint_every: int = 20,
    progress: bool = True,
    on_round: Callable[[RoundReport], bool | None] | None = None,
    early_stopping: EarlyStopping | None = None,
    keep_best: str | None = None,
    initial_params: Params | None = None,
    log: Sequence[str] = (),
    **options: Unpack[SimulateOptions],
) -> TrainResult:
    """Trains for num_rounds rounds and returns the parameters and the history.

    With `out`, the run is saved in a folder as by `fedax run`: configuration, metrics, summary,
    checkpoints and a report. Repeat the same call to continue after an interruption; the result is
    the same to the bit as without it. If the run is finished, the call returns its result; with a
    larger num_rounds, it trains the missing rounds. A call with a different task, method, seed or
    anything else that changes the result is refused. Ctrl-C stops after the current round.

    If a client's uploads are rejected in three rounds, a `RuntimeWarning` names the client and the
    reason.

    Args:
      task: model and data.
      algorithm: the method.
      num_rounds: total number of rounds, T >= 0, counted from the beginning of training.
      out: a run folder, created if it does not exist; None saves nothing to disk.
      overwrite: whether to delete the run or sweep in the folder first. A folder that contains
        anything else is never deleted.
      checkpoint_every: rounds between checkpoints in that folder, >= 1.
      progress: whether to show a progress bar in a terminal or a notebook; nothing is shown in a
        pipe or a file.
      on_round: called with every report. If it returns True, training stops after that round (or
        the next whose report has a state, see state_every); False and None continue. Numbers that
        it adds to `report.metrics` are saved with the round's, and can be watched.
      early_stopping: when to stop, such as `fedax.EarlyStopping(patience=5)`, which watches the
        task's validation loss, or `fedax.EarlyStopping("train_loss")`.
      keep_best: metric, such as "validation_accuracy"; the result has the parameters of its best
        round, and the folder a `best.safetensors`. Whether higher or lower is better follows from
        the name as for `fedax.EarlyStopping`. None: the validation loss if the task has validation
        data and evaluate_every is given; otherwise no best model is kept.
      initial_params: starting point; None: drawn by `task.model.init`.
      log: with `out`, formats and services that also get the metrics: "tensorboard", "mlflow",
        "wandb", "csv", "parquet" (docs/guides/logging.md).
      **options: see `SimulateOptions`. Without on_round, state_every is num_rounds (with `out`:
        checkpoint_every) and donate is True, since the states in between are not used; early
        stopping or keep_best by a metric that is not of the test data sets state_every to 1.

    Returns:
      The result. With `out`, the history is the folder's.

    Raises:
      TypeError, ValueError: if an argument is wrong; the message quotes it.
      DivergedError: if no client of a round sent a finite upload, or the server's parameters
        became infinite or NaN.
      RunError: if the folder contains a different run, cannot be used, or is in use by another
        process.
      SinkError: if the library of a sink in log is not installed.
      KeyboardInterrupt: on Ctrl-C; with `out` after a round, with a checkpoint.

    Example:
      >>> import fedax
      >>> task = fedax.load_task("shakespeare", model="small")
      >>> algorithm = fedax.fedyogi(task.model, 1.0, 0.01, batch_size=4, num_local_steps=2)
      >>> result = fedax.train(task, algorithm, num_rounds=2, evaluate_every=0)
      >>> len(result.history)
      2
    """
    require_task(task)
    require_algorithm(algorithm)
    num_rounds, checkpoint_every = plain(num_rounds), plain(checkpoint_every)
    options = cast(SimulateOptions, plain_options(dict(options)))
    settings = Settings.checked(num_rounds, options, task.train.num_clients)
    check_count("checkpoint_every", checkpoint_every)
    early_stopping, keep_best = watched(
        task, early_stopping, keep_best, settings.evaluate_every, adds=on_round is not None
    )
    watch = Watch(
        early_stopping, keep_best, on_round, evaluate_every=settings.evaluate_every,
        validates=task.validation is not None,
        budget=budget_of(
            algorithm, task.train.num_clients, settings.sampling, settings.cohort_size, num_rounds
        ),
    )
    if settings.state is not None and (initial_params is not None or out is not None):
        other = "initial_params" if initial_params is not None else "out"
        raise ValueError(
            f"state and {other} cannot be combined, since each sets the starting point: state "
            "continues in memory, initial_params starts again, and out= continues from its folder. "
            "Pass one of them."
        )
    names = sink_names(log)
    require_libraries(names)
    if names and out is None:
        raise ValueError(f"log={quoted(log)} needs a run folder: pass out= as well.")
    require_out(out, overwrite=overwrite)
    start = settings.state
    if out is not None or are_several():
        # matplotlib, for the report, is slow to import.
        from fedax.experiment import python_run  # noqa: PLC0415

        call = python_run.Call(
            task, algorithm, num_rounds, checkpoint_every, progress, on_round is not None,
            early_stopping, keep_best, initial_params, names, options, settings,
        )
        if out is not None:
            state, history = python_run.train_in_folder(
                expanded(out).absolute(), call, watch, overwrite=overwrite
            )
            return _result(history, state, watch)
        start = start or initial_state(task, algorithm, settings.seed, initial_params)
        python_run.require_same_call(call, start)
    return _train_in_memory(
        task, algorithm, num_rounds, progress, on_round is not None, watch,
        start or initial_state(task, algorithm, settings.seed, initial_params), options,
    )


def _train_in_memory(
    task: Task,
    algorithm: FederatedAlgorithm,
    num_rounds: int,
    progress: bool,
    looks: bool,
    watch: Watch,
    state: TrainingState,
    options: SimulateOptions,
) -> TrainResult:
    from fedax.experiment.display import (  # noqa: PLC0415 - rich is slow to import
        Display,
        make_console,
        style_of_python,
    )

    options = {**options, "state": state}
    if not looks:  # nobody looks at the states in between
        options = {"state_every": max(num_rounds, 1), "donate": True, **options}
    if watch.needs_every_state:
        options["state_every"] = 1
    history, start = History(), state
    rejections = Rejections(task.model, population(task, algorithm))
    learning = Learning(task, plain(options.get("seed", 0)))

    def warn(sentences: list[str]) -> None:
        for sentence in sentences:
            warnings.warn(sentence, RuntimeWarning, stacklevel=5)

    console = make_console()
    display = Display(
        num_rounds, int(state.server_state.round_index), console,
        style_of_python(console, progress),
    )
    reports = simulate(task, algorithm, num_rounds=num_rounds, **options)
    warn(learning.begin(state, algorithm))
    with display:
        for report in reports:
            history.append(report.metrics)
            params = (report.state or start).server_state.params
            warn(rejections.add(report.rejected, params))
            warn(learning.add(report.metrics))
            state = report.state or state
            watch.see(report)
            display.show(report)
            if watch.why and report.state is not None:
                break
    warn(learning.end(state))
    at_end(
        task, algorithm, watch, history.rounds, state, plain(options.get("seed", 0)),
        options.get("evaluate_every"), options.get("evaluation_sample"),
    )
    return _result(history, state, watch)


def _result(history: History, state: TrainingState, watch: Watch) -> TrainResult:
    best = watch.best
    return TrainResult(
        one_copy(state.server_state.params), history, state,
        None if best is None else jax.tree.map(jnp.asarray, best.params),
        None if best is None else best.round,
        watch.why,
        {name: value for name, value in watch.final.items() if name.startswith(TEST)},
        watch.best_test,
    )
