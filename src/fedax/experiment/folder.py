"""The run folder: how it is made, written, locked, and what is said when that fails."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import shlex
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from fedax.outside.text import Told

# How the name of a file ends that is not whole yet.
PARTIAL = ".partial"
LOCK = ".lock"
CONFIG = "config.json"
# What config.json has under "made_by" besides versions: what tells a run's tasks from others, and
# the values that a user's own method holds.
TASKS = "tasks"
HELD = "held"
# What config.json has as the kind of a sweep.
SWEEP = "sweep"
# The configurations of a sweep's methods, which are written before its own.
METHODS = "methods"
# What a process leaves that was killed before it wrote the configuration.
BEGUN = {LOCK, CONFIG + PARTIAL, METHODS}


class RunError(Told, RuntimeError):
    """A run cannot start or go on; the message is a sentence."""


class BusyError(RunError):
    """Another process has the folder."""


@contextlib.contextmanager
def new_folder(out: Path, option: str = "--out", go_on: str | None = None) -> Iterator[None]:
    """Makes an empty run folder, and keeps other processes out of it.

    Args:
      out: the folder; one that a killed start left will do.
      option: how its choice is called where the user is.
      go_on: as for `explained`.

    Raises:
      RunError: it cannot be made, holds something, or another process has it.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        _require_empty(out, option)
    except OSError as error:
        raise RunError(f"Cannot make the run folder {out}: {error.strerror}.") from None
    with locked(out, go_on):
        _require_empty(out, option)  # another may have begun in it, and ended
        yield


def _require_empty(out: Path, option: str) -> None:
    if any(path.name not in BEGUN for path in out.iterdir()):
        hint = f"go on with --resume {out}, or " if (out / CONFIG).exists() else ""
        raise RunError(f"The folder {out} is not empty; {hint}choose another {option}.")


def require_run(folder: Path) -> None:
    """Raises a sentence if no run can go on in a folder."""
    if os.path.isfile(folder / CONFIG):  # noqa: PTH113 - likewise
        try:
            config = read_config(folder)
        except RunError:  # whoever reads it whole says what is wrong
            return
        _require_no_sweep(folder, config)
        return
    message = f"{folder} is not a run folder: it has no config.json."
    try:
        found = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        (folder / CONFIG).is_file()
    except OSError as error:
        raise RunError(f"Cannot read the run folder {folder}: {error.strerror}.") from None
    if found and found <= BEGUN:
        message += f" A run was stopped there before it had begun; start it with --out {folder}."
    raise RunError(message)


def read_config(folder: Path) -> dict[str, Any]:
    """What a run folder's config.json holds.

    Raises:
      RunError: it is no run folder, or the file is damaged.
    """
    path = folder / CONFIG
    try:
        is_file = path.is_file()
    except OSError as error:
        raise RunError(f"Cannot read the run folder {folder}: {error.strerror}.") from None
    if not is_file:
        what = "is not a run folder: it has no config.json" if folder.is_dir() else (
            "is not a folder" if folder.exists() else "does not exist"
        )
        raise RunError(f"{folder} {what}.")
    try:
        config = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"The configuration {path} cannot be read: {error}.") from None
    if not isinstance(config, dict) or not {"task", "algorithm", "num_rounds"} <= set(config):
        raise RunError(f"{path} is no run's configuration.")
    return config


def read_run_config(folder: Path) -> dict[str, Any]:
    """What a run folder's config.json holds, which is not a sweep's.

    Raises:
      RunError: it is no run folder, or the file is damaged.
    """
    config = read_config(folder)
    _require_no_sweep(folder, config)
    return config


def _require_no_sweep(folder: Path, config: Mapping[str, Any]) -> None:
    if config.get("kind") == SWEEP:
        raise RunError(
            f"{folder} holds a sweep and no run; fedax sweep --resume {for_shell(folder)} goes on "
            "with it, and fedax.load_sweep reads it."
        )


def read_summary(folder: Path) -> dict[str, Any] | None:
    """What a finished run came to; None while it is not finished."""
    try:
        summary = json.loads(read_file(folder / "summary.json"))
    except (OSError, ValueError, RecursionError):
        return None
    return summary if isinstance(summary, dict) and "rounds" in summary else None


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


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file that is the old one or the new one, never half of it; follows no link."""
    partial = path.with_name(path.name + PARTIAL)
    try:
        partial.unlink(missing_ok=True)
        with partial.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def open_file(path: Path) -> io.BufferedReader:
    """Opens a file of a run folder to read; a link, a pipe or a device is not opened.

    Raises:
      OSError: it cannot be opened, or is no file.
    """
    if not stat.S_ISREG(path.lstat().st_mode):
        raise OSError(errno.EINVAL, "It is no regular file", str(path))
    return path.open("rb")


def read_file(path: Path, most_bytes: int | None = None) -> bytes:
    """Reads a file of a run folder, see `open_file`.

    Raises:
      OSError: it cannot be read, is no file or has more bytes than that.
    """
    with open_file(path) as file:
        if most_bytes is not None and os.fstat(file.fileno()).st_size > most_bytes:
            raise OSError(errno.EFBIG, f"It has more than {most_bytes:,} bytes", str(path))
        return file.read()


@contextlib.contextmanager
def explained(folder: Path, go_on: str | None = None) -> Iterator[None]:
    """Turns a failure of the disk into a sentence.

    Args:
      folder: where it may happen.
      go_on: how to go on with the run; None: on the command line.
    """
    try:
        yield
    except OSError as error:
        if not os.path.lexists(folder):
            raise RunError(
                f"The run folder {folder} is gone: it was deleted or moved while the run was "
                "writing to it. If it was moved, go on with it at its new place; if it was "
                "deleted, start the run anew."
            ) from error
        what = "The disk is full" if error.errno == errno.ENOSPC else (error.strerror or str(error))
        message = f"Cannot write to {folder}: {what}."
        if os.path.exists(folder / CONFIG):  # noqa: PTH110 - likewise
            message += (
                " Checkpoints already written are intact; when that is mended, "
                f"{go_on or resuming(folder)}"
            )
        raise RunError(message) from error


def resume_command(folder: Path) -> str:
    """The command that goes on with a run."""
    return f"fedax run --resume {for_shell(folder)}"


def for_shell(word: Path | str) -> str:
    """A folder, or another text, as one word of a command line."""
    return shlex.quote(str(word)) if os.name == "posix" else f'"{word}"'


def resuming(folder: Path) -> str:
    """How to go on with a run on the command line, the end of a sentence."""
    return f"go on with: {resume_command(folder)}"


@contextlib.contextmanager
def locked(folder: Path, go_on: str | None = None) -> Iterator[None]:
    """Keeps a second process out of the folder; the lock goes with the process, however it ends."""
    lock = FileLock(folder / LOCK)
    with explained(folder, go_on):
        if (folder / LOCK).is_symlink():
            raise RunError(f"{folder / LOCK} is a link, which fedax did not make; remove it.")
        try:
            lock.acquire(timeout=0)
        except Timeout:  # an OSError too, but not the disk's
            raise BusyError(f"Another process is training in {folder}.") from None
    try:
        yield
    finally:
        lock.release()
