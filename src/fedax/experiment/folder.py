"""The run folder: how it is made, written, locked, and what is said when that fails."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedax.devices.locks import LEASE, Lock
from fedax.experiment.versions import other_draws
from fedax.files.regular import (
    LOCK,
    PARTIAL,
    not_plain,
    read_file,
    whole_name,
    write_atomically,
)
from fedax.outside.text import Told
from fedax.theory.tables import read_table
from fedax.validate import quoted

CONFIG = "config.json"
# What a run leaves that ended because nothing was finite any more; going on with it removes it.
DIVERGED = "diverged.json"
# What prepared a table, see `fedax.Table`.
TABLE = "table.json"
# What config.json has under "made_by" besides versions: what tells a run's tasks from others, the
# values that a user's own method holds, and the options that nobody gave.
TASKS = "tasks"
HELD = "held"
DEFAULTS = "defaults"
# What every run's config.json has, and under "python" one that a Python program made.
RUN_HAS = {"task", "algorithm", "algorithm_options", "num_rounds", "seed"}
PYTHON_HAS = {"algorithm", "method"}
# What config.json has as the kind of a sweep.
SWEEP = "sweep"
# The configurations of a sweep's methods, which are written before its own.
METHODS = "methods"
# What a process leaves that was killed before it wrote the configuration.
BEGUN = {LOCK, LOCK + LEASE, CONFIG + PARTIAL, METHODS}
# What tells the folder of a run, a sweep or a search, and all that one may hold.
KNOWN_BY = {CONFIG, "study.db"}
HOLDS = {
    *BEGUN, *KNOWN_BY, DIVERGED, TABLE, "metrics.jsonl", "summary.json", "checkpoints",
    "clients.csv", "source", "report.html", "best.safetensors", "logs", "profile", "parts",
    "best", "rounds.npz", "results.csv", "trials", "worker", "metrics.csv", "metrics.parquet",
}


class RunError(Told, RuntimeError):
    """A run cannot start or continue; the message says why."""


class BusyError(RunError):
    """Another process uses the folder."""


@contextlib.contextmanager
def new_folder(
    out: Path, option: str = "--out", go_on: str | None = None, *, overwrite: bool = False
) -> Iterator[None]:
    """Makes an empty run folder, and keeps other processes out of it.

    Args:
      out: the folder; one that a killed start left will do.
      option: how its choice is called where the user is.
      go_on: as for `explained`.
      overwrite: first delete the run, the sweep or the search that it holds.

    Raises:
      RunError: if it cannot be made, holds something, or another process has it.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        if not overwrite:
            if (out / LOCK).exists():  # that somebody trains there comes before what it holds
                with locked(out, go_on, goes_on=False):
                    pass
            _require_empty(out, option)
    except OSError as error:
        raise RunError(f"Cannot make the run folder {out}: {error.strerror}.") from None
    except ValueError:
        raise RunError(
            f"{str(out)!r} cannot be the name of a run folder, as it contains a null character or "
            f"half of a letter. Choose another {option}."
        ) from None
    with locked(out, go_on, goes_on=not overwrite):
        if overwrite:
            delete_run(out, option)
        _require_empty(out, option)  # another may have begun in it, and ended
        yield


def _require_empty(out: Path, option: str) -> None:
    if any(path.name not in BEGUN for path in out.iterdir()):
        hint = ""
        if (out / CONFIG).exists():
            flag = "--overwrite" if option == "--out" else "overwrite=True"
            hint = f"continue it with --resume {out}, start again with {flag}, or "
        raise RunError(f"The folder {out} is not empty; {hint}choose another {option}.")


def delete_run(folder: Path, option: str) -> None:
    """Deletes what a run, a sweep or a search left in a folder that the caller has locked.

    Args:
      folder: one that holds nothing else.
      option: as for `new_folder`.

    Raises:
      RunError: if it holds something that none of them wrote, or cannot be deleted; of the former
        nothing is deleted.
    """
    try:
        found = sorted(folder.iterdir())
        names = {path.name for path in found} - {LOCK, LOCK + LEASE}
        strange = sorted(name for name in names if not _is_held(name))
        if not names & KNOWN_BY:
            strange = sorted(names - BEGUN)
        if strange:
            raise RunError(
                f"{folder} was not deleted, because it contains {quoted(strange[0])}, which is not "
                f"part of a run. Move that file away, or choose another {option}."
            )
        # What tells a run goes last, so that a deletion that was stopped can be done again.
        for path in sorted(found, key=lambda path: path.name in KNOWN_BY):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name not in (LOCK, LOCK + LEASE):
                path.unlink()
    except OSError as error:
        raise RunError(f"Cannot delete the run in {folder}: {error.strerror}.") from None


def _is_held(name: str) -> bool:
    """Whether a run, a sweep or a search writes it; a killed one leaves partial files."""
    return whole_name(name) in HOLDS or name.startswith(("study.db-", "rung-"))


def require_run(folder: Path) -> None:
    """Raises an error if no run can go on in a folder."""
    if os.path.isfile(folder / CONFIG):  # noqa: PTH113 - likewise
        try:
            config = read_config(folder)
        except RunError:  # whoever reads it whole says what is wrong
            return
        _require_no_sweep(folder, config)
        return
    message = f"{folder} is not a run folder: it does not contain config.json."
    if not os.path.lexists(folder):
        message = f"The run folder {folder} does not exist."
    try:
        found = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        (folder / CONFIG).is_file()
    except OSError as error:
        raise RunError(f"Cannot read the run folder {folder}: {error.strerror}.") from None
    if found and found <= BEGUN:
        message += f" A run was stopped there before it started; start it with --out {folder}."
    raise RunError(message)


def read_config(folder: Path) -> dict[str, Any]:
    """What a run folder's config.json holds.

    Raises:
      RunError: if the folder is not a run folder, or the file is damaged.
    """
    path = folder / CONFIG
    try:
        is_file = path.is_file()
    except OSError as error:
        raise RunError(f"Cannot read the run folder {folder}: {error.strerror}.") from None
    if not is_file:
        what = "is not a run folder: it does not contain config.json" if folder.is_dir() else (
            "is not a folder" if folder.exists() else "does not exist"
        )
        raise RunError(f"{folder} {what}.")
    try:
        config = read_table(path, links=False)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise RunError(f"The configuration {path} cannot be read: {reason}.") from None
    if not isinstance(config, dict) or not {"task", "algorithm", "num_rounds"} <= set(config):
        raise RunError(f"{path} is not the configuration of a run.")
    wrong = _wrong_with(config)
    if wrong is not None:
        raise RunError(f"{path} is damaged: its {wrong} cannot be {quoted(config[wrong])}.")
    return config


def _wrong_with(config: Mapping[str, Any]) -> str | None:
    """The first key whose value no configuration has; None if there is none."""
    kinds = {
        "task": str, "algorithm": str, "num_rounds": int, "made_by": dict, "python": dict,
        "task_options": dict, "algorithm_options": dict,
    }
    return next((key for key, kind in kinds.items() if key in config
                 and not isinstance(config[key], kind)), None)


def read_run_config(folder: Path) -> dict[str, Any]:
    """What a run folder's config.json holds, which is not a sweep's.

    Raises:
      RunError: if the folder is not a run folder, or the file is damaged.
    """
    config = read_config(folder)
    _require_no_sweep(folder, config)
    python = config.get("python", {})
    missing = RUN_HAS - set(config)
    if "python" in config and isinstance(python, Mapping):
        missing |= PYTHON_HAS - set(python)
    if missing or not isinstance(python, Mapping):
        raise RunError(
            f"{folder / CONFIG} is damaged: {min(missing, default='table python')!r} is missing."
        )
    return config


def _require_no_sweep(folder: Path, config: Mapping[str, Any]) -> None:
    if config.get("kind") == SWEEP:
        raise RunError(
            f"{folder} is a sweep, not a run. To continue it: fedax sweep --resume "
            f"{for_shell(folder)}. To read it: fedax.load_sweep."
        )


def read_summary(folder: Path) -> dict[str, Any] | None:
    """What a finished run came to; None while it is not finished."""
    try:
        summary = json.loads(read_file(folder / "summary.json"))
    except (OSError, ValueError, RecursionError):
        return None
    return summary if isinstance(summary, dict) and "rounds" in summary else None


def read_divergence(folder: Path) -> str:
    """Why a run ended as diverged, in a sentence; "" if it did not."""
    try:
        found = json.loads(read_file(folder / DIVERGED))
    except (OSError, ValueError, RecursionError):
        return ""
    return str(found["why"]) if isinstance(found, dict) and "why" in found else ""


def to_json(value: Any) -> str:
    """JSON in one line; what is not finite becomes null, as JSON has no word for it."""
    def clean(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: clean(item) for key, item in value.items()}
        if isinstance(value, float) and not np.isfinite(value):
            return None
        return value

    return json.dumps(clean(value), ensure_ascii=False)


def write_json(path: Path, value: Any) -> None:
    """Writes indented JSON; the file is the old one or the new one, never half of it."""
    write_atomically(path, (json.dumps(json.loads(to_json(value)), indent=2) + "\n").encode())


@contextlib.contextmanager
def explained(folder: Path, go_on: str | None = None) -> Iterator[None]:
    """Turns a failure of the disk into a sentence.

    Args:
      folder: where it may happen.
      go_on: how to continue the run; None: on the command line.
    """
    try:
        yield
    except OSError as error:
        if not os.path.lexists(folder):
            raise RunError(
                f"The run folder {folder} was deleted or moved while the run was writing to it. "
                "If it was moved, resume the run at its new place; if it was deleted, start the "
                "run again."
            ) from error
        what = "The disk is full" if error.errno == errno.ENOSPC else (error.strerror or str(error))
        message = f"Cannot write to {folder}: {what}."
        if os.path.exists(folder / CONFIG):  # noqa: PTH110 - likewise
            message += (
                " Checkpoints already written are intact. When the problem is solved, "
                f"{go_on or resuming(folder)}"
            )
        raise RunError(message) from error


def resume_command(folder: Path) -> str:
    """The command that continues a run."""
    return f"fedax run --resume {for_shell(folder)}"


def for_shell(word: Path | str) -> str:
    """A folder, or another text, as one word of a command line."""
    return shlex.quote(str(word)) if os.name == "posix" else f'"{word}"'


def resuming(folder: Path) -> str:
    """How to continue a run on the command line, the end of a sentence."""
    return f"continue with: {resume_command(folder)}"


@contextlib.contextmanager
def locked(
    folder: Path, go_on: str | None = None, *, goes_on: bool = True
) -> Iterator[None]:
    """Keeps a second process out of the folder; the lock goes with the process, however it ends.

    Args:
      folder: of a run.
      go_on: as for `explained`.
      goes_on: whether the run in the folder continues.

    Raises:
      RunError: if it cannot be written, holds a link (see `fedax.files.regular.not_plain`), or was
        begun with other random numbers than JAX draws now.
      BusyError: if another process has it.
    """
    lock = Lock(folder / LOCK)
    with explained(folder, go_on):
        wrong = not_plain(folder)
        if wrong is not None:
            raise RunError(wrong)
        if not lock.take():
            raise BusyError(
                f"Another process is training in {folder}. Wait until it has finished, or choose "
                "another folder."
            )
    try:
        if goes_on:
            _require_same_draws(folder)
        yield
    finally:
        lock.release()


def _require_same_draws(folder: Path) -> None:
    """Raises an error if the run in a folder would continue with different random numbers."""
    if not (folder / CONFIG).is_file():
        return
    try:
        made_by = read_config(folder).get("made_by")
    except RunError:  # whoever reads it whole says what is wrong
        return
    if why := other_draws(made_by):
        raise RunError(f"The run in {folder} cannot be continued. {why}")


def drop_defaults(
    config: dict[str, Any], made_by: Any, *, task: str | None, algorithm: str | None
) -> None:
    """Drops the defaults of a task or a method of a config.json in whose place another one comes.

    Args:
      config: what the file holds; changed.
      made_by: what it has under that name.
      task, algorithm: what is taken instead; None: what the file says.
    """
    defaults = made_by.get(DEFAULTS) if isinstance(made_by, Mapping) else None
    for part, instead in (("task", task), ("algorithm", algorithm)):
        options = config.get(f"{part}_options")
        names = defaults.get(part) if isinstance(defaults, Mapping) else None
        if instead in (None, config.get(part)) or not isinstance(options, Mapping):
            continue
        dropped = names if isinstance(names, list) else []
        config[f"{part}_options"] = {k: v for k, v in options.items() if k not in dropped}
