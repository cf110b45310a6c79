"""One run in a run folder: started, stopped, resumed, reported."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import json
import os
import platform
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jax.sharding import Mesh

import fedax
from fedax.algorithm import FederatedAlgorithm
from fedax.data.task import Task
from fedax.devices.mesh import client_mesh
from fedax.devices.processes import are_several, is_first
from fedax.experiment import checkpoint, sources
from fedax.experiment.build import build_algorithm, build_task
from fedax.experiment.config import (
    PERSONALIZE_KEYS,
    RunConfig,
    describe_sources,
    load_config,
    with_sources_of_now,
)
from fedax.experiment.display import Display, describe_test
from fedax.experiment.errors import ConfigError
from fedax.experiment.folder import (
    RunError,
    explained,
    locked,
    make_folder,
    read_metrics,
    resume_command,
    to_json,
    truncate_metrics,
    write_atomically,
    write_json,
)
from fedax.experiment.profiling import Trace, describe_time, time_parts
from fedax.measures.communication import Communication
from fedax.report.clients import CLIENTS, clients_table
from fedax.report.page import write_report
from fedax.rounds.measurements import rehearse
from fedax.rounds.rejections import Rejections
from fedax.rounds.report import RoundReport
from fedax.rounds.sampling import part_of_the_day
from fedax.rounds.simulate import simulate
from fedax.rounds.state import TrainingState, initial_state, population
from fedax.rounds.timing import Stopwatch


def start(config: RunConfig, out: Path | None = None, *, profile: bool = False) -> Path:
    """Starts a run in a new folder and trains to its end.

    Args:
      config: what to run.
      out: the run folder, created; None makes one under fedax-runs/.
      profile: write a trace of some rounds to the folder's profile/, and say where time went.

    Returns:
      The run folder.

    Raises:
      ConfigError: the configuration does not fit the task.
      RunError: the folder cannot be used, or the run was stopped or could not go on.
      DivergedError: see `fedax.simulate`.
    """
    built = _build(config)
    folder = out or _unused_folder(config)
    if not is_first():
        _take_part(config, built, initial_state(built.task, built.algorithm, config.seed))
        return folder
    make_folder(folder)
    with locked(folder):
        with explained(folder):
            (folder / "metrics.jsonl").touch()
            _write_config(folder, config)
        state = initial_state(built.task, built.algorithm, config.seed)
        _train(folder, config, built, state, [], profile=profile)
    return folder


def resume(
    folder: Path, num_rounds: int | None = None, *, profile: bool = False, force: bool = False
) -> Path:
    """Goes on with a run where its newest whole checkpoint stands; on as many devices, exactly.

    Args:
      folder: a run folder.
      num_rounds: a new total of rounds; None keeps the run's.
      profile: as for `start`.
      force: go on although a user's source has changed, and record how it is now.

    Raises:
      ConfigError, RunError, CheckpointError, DivergedError: as for `start`, or the folder or all
        of its checkpoints are damaged.
    """
    _require_run(folder)
    if not is_first():
        config, built, restored = load_run(folder, force=force)
        config = dataclasses.replace(config, num_rounds=num_rounds or config.num_rounds)
        _take_part(config, built, restored.state)
        return folder
    with locked(folder):
        config, built, restored = load_run(folder, force=force)
        if num_rounds is not None:
            config = dataclasses.replace(config, num_rounds=num_rounds)
        done = int(restored.state.server_state.round_index)
        if num_rounds is not None and num_rounds < done:
            raise ConfigError(
                f"The run has done {done} rounds already; --rounds {num_rounds} is less."
            )
        with explained(folder):
            if force:
                config = with_sources_of_now(config, done)
            if num_rounds is not None or force:
                _write_config(folder, config)
            truncate_metrics(folder, done)
        note = f"Going on after round {done}." if done else "No checkpoint yet: from the beginning."
        notes = [*restored.refused, note]
        _train(folder, config, built, restored.state, notes, profile=profile)
    return folder


class LoadedRun(NamedTuple):
    """A run as its folder has it: its settings, what they stand for, and its newest state."""

    config: RunConfig
    built: Built
    restored: checkpoint.Restored


def load_run(folder: Path, *, force: bool = False) -> LoadedRun:
    """Reads a run folder; the state is that of the newest whole checkpoint, or the initial one.

    Args:
      folder: a run folder.
      force: whether a user's source may have changed.

    Raises:
      ConfigError, RunError, CheckpointError: it is no run folder, or damaged.
    """
    _require_run(folder)
    config = load_config(folder / "config.json", force=force)
    built = _build(config)
    restored = checkpoint.restore_latest(
        folder / "checkpoints", initial_state(built.task, built.algorithm, config.seed),
        fingerprint(config),
    )
    return LoadedRun(config, built, restored)


def _require_run(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise RunError(f"{folder} is not a run folder: it has no config.json.")


def fingerprint(config: RunConfig) -> str:
    """A digest of the settings that a checkpoint must share with its run.

    How long a run is, how often it evaluates or checkpoints and how it is chunked may change; of
    a user's sources the run folder says more.
    """
    free = {"num_rounds", "evaluate_every", "checkpoint_every", "clients_per_chunk", "preset",
            "diagnostics", "task_source", "algorithm_source", *PERSONALIZE_KEYS}
    fixed = {k: v for k, v in dataclasses.asdict(config).items() if k not in free}
    return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()


class Built(NamedTuple):
    """What a configuration stands for."""

    task: Task
    algorithm: FederatedAlgorithm
    sent: Communication


def _build(config: RunConfig) -> Built:
    try:
        task = build_task(config.task, config.task_options, config.task_source)
    except ConfigError:
        raise
    except ValueError as error:
        raise RunError(str(error)) from None
    if config.cohort_size > task.train.num_clients:
        raise ConfigError(
            f"cohort_size is {config.cohort_size}, but the task {config.task} has "
            f"{task.train.num_clients} clients; choose at most that many."
        )
    algorithm = build_algorithm(
        config.algorithm, config.algorithm_options, task.model, config.algorithm_source
    )
    try:  # what does not fit together is said before anything is made
        with contextlib.ExitStack() as stack:
            for source in config.sources:
                stack.enter_context(sources.beside(source))
            sent = rehearse(task, algorithm)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"Algorithm {config.algorithm} on {config.task}: {error}") from error
    return Built(task, algorithm, sent)


def _train(
    folder: Path,
    config: RunConfig,
    built: Built,
    state: TrainingState,
    notes: list[str],
    *,
    profile: bool,
) -> None:
    """Runs the rounds that are left, writing metrics and checkpoints, then the summary."""
    task, _, sent = built
    done = int(state.server_state.round_index)
    references = {text: dict(compute()) for text, compute in task.references.items()}
    trace = Trace(folder / "profile" if profile else None, config.num_rounds - done)
    rejections = Rejections(task.model, population(task, built.algorithm), read_metrics(folder))
    saving = 0.0
    with Display(config.num_rounds, done) as display, _stop_on_signal() as stopped:
        for line in [*_opening(folder, config, task, state, references), *notes]:
            display.say(line)
        rounds = _rounds(config, built, state)
        with explained(folder), (folder / "metrics.jsonl").open(
            "a", encoding="utf-8", newline="\n"
        ) as log, trace:
            for report in rounds:
                done = int(report.metrics["round"])
                if saving:
                    report.metrics["checkpoint_seconds"], saving = saving, 0.0
                rejected = {"rejected": report.rejected} if report.rejected else {}
                log.write(to_json(report.metrics | rejected) + "\n")
                log.flush()
                if report.clients is not None:
                    table = clients_table(report.clients, report.personal)
                    write_atomically(folder / CLIENTS, table.encode())
                display.show(report)
                params = (report.state or state).server_state.params
                for sentence in rejections.add(report.rejected, params):
                    display.say(sentence)
                trace.round_done()
                if report.state is None:
                    continue
                last = done == config.num_rounds or stopped.is_set()
                if last or done % config.checkpoint_every == 0:
                    watch = Stopwatch()
                    os.fsync(log.fileno())
                    checkpoint.save(folder / "checkpoints", report.state, fingerprint(config))
                    saving = watch.lap().seconds
                if stopped.is_set() and done < config.num_rounds:
                    raise RunError(
                        f"Stopped after round {done} of {config.num_rounds}. Go on with: "
                        f"{resume_command(folder)}"
                    )
        with explained(folder):
            summary = _write_summary(
                folder, config, task, sent, references, saving, rejections.counts.most_common()
            )
            write_report(folder)
        display.say(_closing(folder, config, summary, references))
        if profile:
            display.say(describe_time(summary["time"]))
            display.say(trace.outcome)


def _rounds(config: RunConfig, built: Built, state: TrainingState) -> Iterator[RoundReport]:
    return simulate(
        built.task, built.algorithm, num_rounds=config.num_rounds, cohort_size=config.cohort_size,
        seed=config.seed, evaluate_every=config.evaluate_every,
        clients_per_chunk=config.clients_per_chunk, state=state,
        state_every=config.checkpoint_every, donate=True, mesh=_mesh(config, built),
        sampling=config.sampling, dropout=config.dropout, diagnostics=config.diagnostics,
        available=(
            None if config.availability == 1
            else part_of_the_day(config.availability, seed=config.seed)
        ),
        **{key: getattr(config, key) for key in PERSONALIZE_KEYS},
    )


def _mesh(config: RunConfig, built: Built) -> Mesh | None:
    """All devices that there are, but no more than clients; of several processes each has some."""
    if are_several():
        return client_mesh()
    size = 1 if built.algorithm.pooled else config.cohort_size
    return client_mesh(jax.devices()[:size])


def _take_part(config: RunConfig, built: Built, state: TrainingState) -> None:
    """Runs the rounds as one of several processes, of which another one writes."""
    for _ in _rounds(config, built, state):
        pass


def _opening(
    folder: Path,
    config: RunConfig,
    task: Task,
    state: TrainingState,
    references: Mapping[str, Mapping[str, float]],
) -> list[str]:
    """What a run says of itself before its first round."""
    num_parameters = sum(leaf.size for leaf in jax.tree.leaves(state.server_state.params))
    lines = [
        f"{config.algorithm} on {config.task}: {task.train.num_clients:,} clients, "
        f"{task.train.num_examples:,} training examples, {num_parameters:,} parameters",
        f"{config.num_rounds} rounds of {config.cohort_size} clients, preset {config.preset}, "
        f"seed {config.seed}, in {folder}",
        *describe_sources(config),
    ]
    return lines + [f"For comparison, {text}: {describe_test(m)}" for text, m in references.items()]


def _closing(
    folder: Path,
    config: RunConfig,
    summary: Mapping[str, Any],
    references: Mapping[str, Mapping[str, float]],
) -> str:
    words = [f"Done: {config.num_rounds} rounds in {summary['seconds']:.0f} s."]
    result = describe_test(summary["final"])
    if result:
        compare = "".join(f" ({text}: {describe_test(m)})" for text, m in references.items())
        words.append(f"{result[0].upper()}{result[1:]}{compare}.")
    return " ".join([*words, f"Report: {folder / 'report.html'}"])


def _unused_folder(config: RunConfig) -> Path:
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    name = f"{config.task}-{config.algorithm}-{stamp}"
    numbered = (Path("fedax-runs") / (name + suffix) for suffix in ("", "-2", "-3", "-4", "-5"))
    return next((path for path in numbered if not path.exists()), Path("fedax-runs") / name)


def _write_config(folder: Path, config: RunConfig) -> None:
    made_by = {
        "fedax": fedax.__version__,
        "python": platform.python_version(),
        "jax": jax.__version__,
        "numpy": np.__version__,
        "optax": optax.__version__,
        "platform": platform.platform(),
        "device": jax.devices()[0].device_kind,
        "num_devices": jax.device_count(),
    }
    write_json(folder / "config.json", {**dataclasses.asdict(config), "made_by": made_by})
    sources.keep_copies(folder, config.sources)


def _write_summary(
    folder: Path,
    config: RunConfig,
    task: Task,
    sent: Communication,
    references: Mapping[str, Mapping[str, float]],
    saving: float,
    rejected_clients: list[tuple[str, int]],
) -> dict[str, Any]:
    """Writes what the whole run came to, over all its sittings."""
    rounds = read_metrics(folder)
    parts = time_parts(rounds, saving)
    losses = [m["train_loss"] for m in rounds[-100:] if m.get("train_loss") is not None]
    tested = [metrics for metrics in rounds if any(key.startswith("test_") for key in metrics)]
    summary = {
        "rounds": len(rounds),
        "seconds": sum(parts.values()),
        "time": parts,
        "num_clients": task.train.num_clients,
        "num_rejected": sum(metrics["num_rejected"] for metrics in rounds),
        "rejected_clients": dict(rejected_clients),
        "train_loss_last_100_rounds": float(np.mean(losses)) if losses else None,
        "final": {k: v for k, v in tested[-1].items() if k.startswith("test_")} if tested else {},
        "references": references,
        "algorithm": config.algorithm,
        "total_local_steps": sum(metrics.get("total_local_steps", 0) for metrics in rounds),
        "num_dropped": sum(metrics["num_dropped"] for metrics in rounds),
        "bytes_down_per_client": sent.bytes_down,
        "bytes_up_per_client": sent.bytes_up,
    }
    write_json(folder / "summary.json", summary)
    return summary


@contextlib.contextmanager
def _stop_on_signal() -> Iterator[threading.Event]:
    """The first Ctrl-C or SIGTERM asks to stop after the round, the second stops at once."""
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return

    def handle(number: int, frame: Any) -> None:
        del number, frame
        if stopped.is_set():
            raise KeyboardInterrupt
        stopped.set()

    before = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup and background jobs set it
            before[number] = signal.signal(number, handle)
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
