"""The run folder: how it is made, written, locked, and what is said when that fails."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from fedax.rounds.history import History

# How the name of a file ends that is not whole yet.
PARTIAL = ".partial"
LOCK = ".lock"
CONFIG = "config.json"


class RunError(RuntimeError):
    """A run cannot start or go on; the message is a sentence."""


def make_folder(out: Path, option: str = "--out") -> None:
    """Makes an empty run folder.

    Args:
      out: the folder.
      option: how its choice is called where the user is.

    Raises:
      RunError: it cannot be made, or holds something.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        # What a process leaves that was killed before it wrote the configuration.
        begun = {LOCK, CONFIG + PARTIAL}
        if any(path.name not in begun for path in out.iterdir()):
            hint = f"go on with --resume {out}, or " if (out / CONFIG).exists() else ""
            raise RunError(f"The folder {out} is not empty; {hint}choose another {option}.")
    except OSError as error:
        raise RunError(f"Cannot make the run folder {out}: {error.strerror}.") from None


def read_config(folder: Path) -> dict[str, Any]:
    """What a run folder's config.json holds.

    Raises:
      RunError: it is no run folder, or the file is damaged.
    """
    path = folder / CONFIG
    if not path.is_file():
        what = "is not a run folder: it has no config.json" if folder.is_dir() else (
            "is not a folder" if folder.exists() else "does not exist"
        )
        raise RunError(f"{folder} {what}.")
    try:
        config = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"The configuration {path} cannot be read: {error}.") from None
    if not isinstance(config, dict) or not {"task", "algorithm", "num_rounds"} <= set(config):
        raise RunError(f"{path} is no run's configuration.")
    return config


def read_summary(folder: Path) -> dict[str, Any] | None:
    """What a finished run came to; None while it is not finished."""
    try:
        summary = json.loads((folder / "summary.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return summary if isinstance(summary, dict) and "rounds" in summary else None


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The rounds in metrics.jsonl, up to the first line that was cut off or is none of ours."""
    rounds = []
    path = folder / "metrics.jsonl"
    lines = path.read_bytes().splitlines() if path.exists() else []
    for line in lines:
        try:
            metrics = json.loads(line)
        except ValueError:
            break
        if not isinstance(metrics, dict) or metrics.get("round") != len(rounds) + 1:
            break
        rounds.append(metrics)
    return rounds


def read_history(folder: Path) -> History:
    """The numbers in metrics.jsonl; what JSON has no word for, and so is null there, is NaN."""
    return History([
        {name: math.nan if value is None else value for name, value in metrics.items()
         if not isinstance(value, list)}  # the names of rejected clients
        for metrics in read_metrics(folder)
    ])


def truncate_metrics(folder: Path, done: int) -> None:
    """Leaves the lines of the rounds that the checkpoint has; the others are run again."""
    kept = [m for m in read_metrics(folder) if m["round"] <= done]
    if len(kept) < done:
        raise RunError(
            f"{folder / 'metrics.jsonl'} has {len(kept)} whole lines, but the checkpoint has done "
            f"{done} rounds; the file was changed or lost."
        )
    lines = "".join(to_json(m) + "\n" for m in kept)
    write_atomically(folder / "metrics.jsonl", lines.encode())


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
    """Writes a file that is the old one or the new one, never half of it."""
    partial = path.with_name(path.name + PARTIAL)
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


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
        what = "The disk is full" if error.errno == errno.ENOSPC else (error.strerror or str(error))
        message = f"Cannot write to {folder}: {what}."
        if (folder / CONFIG).exists():
            message += (
                " Checkpoints already written are intact; when that is mended, "
                f"{go_on or resuming(folder)}"
            )
        raise RunError(message) from error


def resume_command(folder: Path) -> str:
    """The command that goes on with a run, quoted for the shell."""
    quoted = shlex.quote(str(folder)) if os.name == "posix" else f'"{folder}"'
    return f"fedax run --resume {quoted}"


def resuming(folder: Path) -> str:
    """How to go on with a run on the command line, the end of a sentence."""
    return f"go on with: {resume_command(folder)}"


@contextlib.contextmanager
def locked(folder: Path, go_on: str | None = None) -> Iterator[None]:
    """Keeps a second process out of the folder; the lock goes with the process, however it ends."""
    lock = FileLock(folder / LOCK)
    with explained(folder, go_on):
        try:
            lock.acquire(timeout=0)
        except Timeout:  # an OSError too, but not the disk's
            raise RunError(f"Another process is training in {folder}.") from None
    try:
        yield
    finally:
        lock.release()
