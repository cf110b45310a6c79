"""A run that a Python program describes with its own objects, kept in a run folder."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import platform
import signal
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedax.algorithm import FederatedAlgorithm, Params
from fedax.data.describing import (
    NOT_THERE,
    Describer,
    describe_task,
    digest,
    plain_values,
    short_pair,
)
from fedax.data.task import Task
from fedax.devices.processes import compare, is_first
from fedax.experiment import checkpoint, trust
from fedax.experiment.checkpoint import FREE, Restored, fingerprint
from fedax.experiment.display import Display, make_console, style_of_python
from fedax.experiment.folder import (
    CONFIG,
    RunError,
    explained,
    locked,
    new_folder,
    read_run_config,
    read_summary,
)
from fedax.experiment.metrics import read_history
from fedax.experiment.sitting import (
    Job,
    StoppedError,
    remember,
    save,
    sit,
    take_part,
    write_config,
)
from fedax.factories import recipe
from fedax.models.parameters import named_leaves
from fedax.rounds.history import History
from fedax.rounds.measurements import rehearse
from fedax.rounds.options import Settings, SimulateOptions
from fedax.rounds.report import RoundReport
from fedax.rounds.simulate import simulate
from fedax.rounds.state import TrainingState, initial_state
from fedax.rounds.stopping import ON_ROUND, EarlyStopping, Watch

# How differences are told: so many, without the words that only structure a description.
MOST_DIFFERENCES = 3
STRUCTURAL = {"arguments", "arrays", "dict", "fields", "holds", "values"}


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


def train_in_folder(folder: Path, call: Call, watch: Watch) -> tuple[TrainingState, History]:
    """Trains to the end, from where the folder stands; returns the last state and all rounds.

    Raises:
      RunError: the folder holds another run or cannot be used, or is in use.
      ProcessError: this is one of several processes, and another has other arguments.
      KeyboardInterrupt, SystemExit: Ctrl-C or SIGTERM stopped it after a round; the message says
        how to go on.
      DivergedError: see `simulate`.
    """
    config, code = describe_call(call)
    compare("settings", config)
    initial = initial_state(call.task, call.algorithm, call.settings.seed, call.initial_params)
    tested = call.settings.evaluate_every != 0
    task = call.task if tested else call.task._replace(test=None)
    sent = rehearse(task, call.algorithm, initial.server_state.params)
    job = Job(
        folder, config, call.task, call.algorithm, sent,
        lambda state: _rounds(call, watch, state), watch,
        f"call fedax.train again with the same arguments and out={str(folder)!r} to go on.",
        lambda sentence: warnings.warn(sentence, RuntimeWarning, stacklevel=6),
    )
    before = read_run_config(folder) if (folder / CONFIG).exists() else None
    if before is not None:
        _require_same(folder, before, config, code)
    if not is_first():
        restored = _restored(job, initial)
        history = History(read_history(folder).rounds[: _done(restored)])
        if before is not None and _is_finished(job, restored, before, call.looks):
            return restored.state, history
        with _as_python():
            return take_part(job, restored, history), history
    mine = new_folder(folder, "out=", job.go_on) if before is None else locked(folder, job.go_on)
    with mine:
        if before is None:
            with explained(folder, job.go_on):
                write_config(job, code=code, signature=trust.signature(job.config))
                save(job, initial)
        restored = _restored(job, initial)
        if before is not None and _is_finished(job, restored, before, call.looks):
            return restored.state, read_history(folder)
        if before is not None:
            with explained(folder, job.go_on):
                write_config(job, code=code, signature=trust.signature(job.config))
        return _sit(job, restored, call.progress), read_history(folder)


def _sit(job: Job, restored: Restored, progress: bool) -> TrainingState:
    """Runs the rounds that are left."""
    console, done = make_console(), _done(restored)
    display = Display(job.num_rounds, done, console, style_of_python(console, progress))
    notes = [*restored.refused, *([f"Going on after round {done}."] if done else [])]
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


def describe_call(call: Call) -> tuple[dict[str, Any], str]:
    """The configuration of a run that Python described, and a digest of the user's own code."""
    settings, stopping, describe = call.settings, call.early_stopping, Describer()
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
            "initial_params": _digest_of_params(call.initial_params),
        },
    }
    return json.loads(json.dumps(config)), digest(describe.codes)


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between two configurations, as phrases; the settings that may are left out.

    Example:
      >>> differences({"seed": 0, "num_rounds": 5}, {"seed": 1, "num_rounds": 9})
      ['seed was 0 and is 1']
    """
    phrases: list[str] = []
    for name in {**now, **before}:
        if name not in (*FREE, "python"):
            inside = name == "algorithm_options"
            phrases += _differences("" if inside else name, before.get(name), now.get(name))
    about_method = any(before.get(n) != now.get(n) for n in ("algorithm", "algorithm_options"))
    old, new = before.get("python", {}), now.get("python", {})
    for name in {**new, **old}:
        if name in ("train", "test"):
            phrases += _differences(f"task.{name}", old.get(name), new.get(name))
        elif old.get(name) != new.get(name) and not (
            about_method and name in ("algorithm", "method")
        ):
            what = "start (initial_params)" if name == "initial_params" else name
            phrases.append(f"the {what} is another")
    return phrases


def _differences(name: str, old: Any, new: Any) -> list[str]:
    """The phrases for a part of the configurations; a container that is of one kind is opened."""
    if old == new:
        return []
    if isinstance(old, Mapping) and isinstance(new, Mapping) and _kind(old) == _kind(new):
        found: list[str] = []
        for key in {**new, **old}:
            # What only says what kind of a thing the rest is of has no place in a sentence.
            way = name if key in STRUCTURAL else f"{name}.{key}".lstrip(".")
            found += _differences(way, old.get(key, NOT_THERE), new.get(key, NOT_THERE))
        return found
    if name.endswith(".contents"):
        return [f"the contents of {name.removesuffix('.contents')} are others"]
    before, now = short_pair(old, new)
    return [f"{name} was {before} and is {now}"]


def _kind(description: Mapping[str, Any]) -> Any:
    """What two descriptions have in common whose parts can be compared."""
    return next((description[key] for key in ("factory", "function", "type", "class", "array")
                 if key in description), sorted(set(description) & {"list", "tuple", "dict"}))


def _require_same(
    folder: Path, before: Mapping[str, Any], config: Mapping[str, Any], code: str
) -> None:
    """Raises a sentence if the folder's run is another; warns if only the user's code is."""
    if "python" not in before:
        raise RunError(
            f"The run in {folder} was made by the command line; go on with it there, or choose "
            "another out=."
        )
    found = differences(before, config)
    if found:
        told = found[:MOST_DIFFERENCES]
        told += ["and more"] if len(found) > len(told) else []
        raise RunError(
            f"The run in {folder} is another than this call's: {'; '.join(told)}. Choose another "
            "out=, or call with what config.json there says."
        )
    made_by = before.get("made_by", {})
    then, now = str(made_by.get("python")), platform.python_version()
    same_python = then.split(".")[:2] == now.split(".")[:2]
    if same_python and made_by.get("code") != code:
        warnings.warn(
            f"The code of the model or the method is not what it was when the run in {folder} was "
            "begun. Training goes on with the new code; choose another out= to begin anew.",
            UserWarning, stacklevel=4,
        )


def _is_finished(job: Job, restored: Restored, before: Mapping[str, Any], looks: bool) -> bool:
    """Whether nothing is left to do for this call; has the watch take notice of what is done."""
    done = _done(restored)
    if job.num_rounds < done:
        raise RunError(
            f"The run in {job.folder} has done {done} rounds already; num_rounds="
            f"{job.num_rounds} is less."
        )
    remember(job, restored)
    summary = read_summary(job.folder)
    if summary is None or summary["rounds"] != done:
        return False
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
    return simulate(call.task, call.algorithm, num_rounds=call.num_rounds, **options)


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


def _digest_of_params(params: Params | None) -> str | None:
    if params is None:
        return None
    hashed = hashlib.sha256()
    for name, leaf in named_leaves(jax.device_get(params)).items():
        array = np.asarray(leaf)
        hashed.update(f"{name} {array.dtype}{array.shape}".encode() + array.tobytes())
    return hashed.hexdigest()[:16]
