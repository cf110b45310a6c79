"""Disks that are full, read-only or broken, and folders that vanish, at any operation.

Every trial lets one operation on a file of the run folder fail, and all that follow, as a full disk
does. The run must end with one sentence; when the disk is mended it goes on, and ends with the
same bits. `full_disk` does the same with a disk that is really full.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import functools
import io
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from attack.outcomes import (
    FoundError,
    environment,
    limits,
    require_equal,
    require_sentence,
    results,
)

KINDS = {"full": errno.ENOSPC, "read-only": errno.EROFS, "broken": errno.EIO,
         "not allowed": errno.EACCES}
RUN = ("run", "quadratics", "scaffold", "--rounds", "10", "--set", "cohort_size=5",
       "checkpoint_every=2", "evaluate_every=5", "keep_best=test_distance")
SECONDS, MEGABYTES = 60.0, 500.0
CHANGES = ("replace", "rename", "mkdir", "fsync", "unlink", "rmdir", "link", "symlink", "truncate")


class Disk:
    """Counts the operations on files of a folder, and lets one and all that follow fail.

    Args:
      folder: whose files.
      fails_at: the first operation that fails; None: none does.
      happens: (path) -> what happens then; raises the error.
    """

    def __init__(
        self, folder: Path, fails_at: int | None = None, happens: Callable[[str], None] = str
    ) -> None:
        self.folder = str(folder)
        self.count = 0
        self._fails_at, self._happens = fails_at, happens

    def touch(self, path: Any) -> None:
        """An operation begins."""
        if not isinstance(path, int) and not _inside(path, self.folder):
            return
        self.count += 1
        if self._fails_at is not None and self.count >= self._fails_at:
            self._happens(str(path))

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """In the block all operations go through here."""
        disk, plain_open = self, io.open

        class Raw(io.FileIO):
            def write(self, data: Any) -> int:
                disk.touch(self.name)
                return super().write(data)

        @functools.wraps(plain_open)
        def watched_open(
            file: Any, mode: str = "r", buffering: int = -1, encoding: str | None = None,
            errors: str | None = None, newline: str | None = None, closefd: bool = True,
            opener: Any = None,
        ) -> Any:
            writes = bool(set(mode) & set("wax+"))
            if not writes or not (isinstance(file, int) or _inside(file, disk.folder)):
                return plain_open(file, mode, buffering, encoding, errors, newline, closefd, opener)
            disk.touch(file)
            raw = Raw(file, mode.replace("b", "").replace("t", ""), closefd, opener)
            if buffering == 0:
                return raw
            buffered = io.BufferedWriter(raw) if "+" not in mode else io.BufferedRandom(raw)
            if "b" in mode:
                return buffered
            return io.TextIOWrapper(buffered, encoding, errors, newline)

        def watch(name: str) -> Any:
            plain = getattr(os, name)

            @functools.wraps(plain)
            def operation(path: Any, *args: Any, **kwargs: Any) -> Any:
                disk.touch(path)
                return plain(path, *args, **kwargs)

            return mock.patch.object(os, name, operation)

        with contextlib.ExitStack() as stack:
            stack.enter_context(mock.patch.object(io, "open", watched_open))
            stack.enter_context(mock.patch.object(builtins, "open", watched_open))
            for name in CHANGES:
                stack.enter_context(watch(name))
            yield


def _inside(path: Any, folder: str) -> bool:
    return str(Path(path).absolute()).startswith(folder)


def run(words: tuple[str, ...]) -> tuple[int, str]:
    """A command in this process: its exit status, and what it said on standard error."""
    from fedax.cli.main import run_command

    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            status = run_command(list(words))
        except SystemExit as stop:
            status = int(stop.code or 0)
    return status, errors.getvalue()


def resumed(folder: Path) -> tuple[str, ...]:
    """The command that goes on with the run, or starts it if it had not begun."""
    if (folder / "config.json").exists():
        return ("run", "--resume", str(folder))
    return (*RUN, "--out", str(folder))


def left_alone(folder: Path) -> tuple[dict[str, object], int]:
    """What the run comes to, and how many operations it takes."""
    disk = Disk(folder)
    with disk.watched():
        status, errors = run((*RUN, "--out", str(folder)))
    if status:
        raise FoundError(f"A run left alone ends with {status}: {errors}")
    return results(folder), disk.count


def failing(
    rng: random.Random, folder: Path, expected: dict[str, object], operations: int
) -> str:
    """One trial: an operation fails, and all that follow; mended, the run ends with the same bits.

    Returns:
      What was done, and what the user was told.
    """
    kind, place = rng.choice(list(KINDS)), rng.randint(1, operations)
    what = f"A disk that is {kind} from operation {place} on"

    def fails(path: str) -> None:
        raise OSError(KINDS[kind], os.strerror(KINDS[kind]), path)

    with limits(SECONDS, MEGABYTES, what), Disk(folder, place, fails).watched():
        status, errors = run((*RUN, "--out", str(folder)))
    require_sentence(status, errors, what)
    with limits(SECONDS, MEGABYTES, what):
        again, more = run(resumed(folder))
    require_sentence(again, more, f"{what}, mended")
    if again:
        raise FoundError(f"{what}, mended, does not go on: {more}")
    require_equal(folder, expected, what)
    return f"{what}: {errors.strip() or 'noticed nothing'}"


def vanishing(rng: random.Random, folder: Path, operations: int) -> str:
    """One trial: the folder is deleted while the run works; it ends with one sentence."""
    place = rng.randint(3, operations)
    what = f"A folder that vanished before operation {place}"
    gone = []

    def vanish(_: str) -> None:
        if not gone:
            gone.append(True)
            with mock.patch.object(disk, "touch", return_value=None):
                shutil.rmtree(folder, ignore_errors=True)

    disk = Disk(folder, place, vanish)
    with limits(SECONDS, MEGABYTES, what), disk.watched():
        status, errors = run((*RUN, "--out", str(folder)))
    require_sentence(status, errors, what)
    if status == 0 and not (folder / "summary.json").exists():
        raise FoundError(f"{what}: the run says it is done, and nothing is there.")
    shutil.rmtree(folder, ignore_errors=True)
    return f"{what}: {errors.strip() or 'noticed nothing'}"


def full_disk(
    rng: random.Random, folder: Path, cache: Path, expected: dict[str, object]
) -> str:
    """One trial on a small disk of its own (Linux, with the right to mount in a name space).

    The run meets the full disk, the disk is made larger, and the run goes on.
    """
    kilobytes = rng.randrange(8, 200, 4)
    what = f"A disk of {kilobytes} kB"
    folder.mkdir()
    inside = folder / "run"
    command = f"{sys.executable} -m fedax"
    script = f"""
        mount -t tmpfs -o size={kilobytes}k none {folder} || exit 77
        {command} {' '.join(RUN)} --out {inside}
        echo "first $?"
        mount -o remount,size=100m {folder}
        if [ -e {inside}/config.json ]
        then {command} run --resume {inside}
        else {command} {' '.join(RUN)} --out {inside}
        fi
        echo "second $?"
        cp -r {inside} {folder}.kept
    """
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, check=False,
        env=environment(cache), timeout=4 * SECONDS,
    )
    if done.returncode == 77:
        raise FoundError(f"No disk can be mounted here: {done.stderr}")
    first = next(line for line in done.stdout.splitlines() if line.startswith("first "))
    require_sentence(int(first.split()[1]), done.stderr, what)
    if "second 0" not in done.stdout:
        raise FoundError(f"{what}, made larger, does not go on: {done.stderr}")
    kept = folder.with_name(folder.name + ".kept")
    require_equal(kept, expected, what)
    shutil.rmtree(kept)
    return f"{what}: {done.stderr.strip() or 'noticed nothing'}"
