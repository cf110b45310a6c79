"""File systems without locks: one process at a time all the same, and after a kill it goes on.

In the processes of a trial `flock` and `lockf` fail as they do on such file systems. A run, a sweep
or a search works; a second process is refused in one sentence while the first one is at work; after
SIGKILL the next one goes on at once, to the same bits.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attack import searches
from attack.commands import require_fair
from attack.outcomes import FoundError, results
from attack.workers import Forked, scratch

SECONDS, MEGABYTES = 300.0, 800.0
FAILURES = {"ENOLCK": errno.ENOLCK, "EOPNOTSUPP": errno.EOPNOTSUPP, "EACCES": errno.EACCES,
            "ENOSYS": errno.ENOSYS}
ROUNDS = 400
COMMANDS = {
    "run": ("run", "quadratics", "scaffold", "--rounds", str(ROUNDS), "--set", "cohort_size=5",
            "checkpoint_every=10"),
    "sweep": ("sweep", "quadratics", "fedavg", "--grid", "client_learning_rate=0.01,0.03,0.1",
              "--rounds", "30", "--settings-per-batch", "1"),
    "search": ("sweep", "quadratics", "fedavgm", *searches.SEARCHES["tpe"]),
}


def _begin(folder: Path, kind: str, failure: int | None, name: str = "") -> Forked:
    words = [*COMMANDS[kind], "--out", str(folder)]
    if (folder / "config.json").exists():
        words = [words[0], "--resume", str(folder)]
    errors = os.open(_errors(folder, name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def command() -> int:
        from fedax.cli.main import run_command

        if failure is not None:
            for function in ("flock", "lockf"):
                setattr(fcntl, function, _failing(failure))
        return run_command(words)

    try:
        return Forked(command, errors=errors)
    finally:
        os.close(errors)


def _failing(number: int) -> Callable[..., None]:
    def lock(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    return lock


def _errors(folder: Path, name: str) -> Path:
    return folder.with_name(f"{folder.name}{name}.errors")


@functools.cache
def left_alone(kind: str) -> tuple[Any, float]:
    """What a command comes to where there are locks, and its seconds."""
    folder = scratch() / "alone" / kind
    folder.parent.mkdir(exist_ok=True)
    began = time.perf_counter()
    if _begin(folder, kind, None).wait():
        raise FoundError(f"{kind}, alone: {_errors(folder, '').read_text()[-1000:]}")
    return _came_to(folder, kind), time.perf_counter() - began


def _came_to(folder: Path, kind: str) -> Any:
    if kind == "run":
        return results(folder)
    if kind == "search":
        return searches.told(folder / "study.db")
    lines = (folder / "results.csv").read_text().splitlines()
    kept = [i for i, name in enumerate(lines[0].split(",")) if "seconds" not in name]
    return [[line.split(",")[i] for i in kept] for line in lines]


def trial(seed: int, number: int) -> str:
    """A command without locks, killed or not, with a second process beside it or not.

    Raises:
      FoundError: it does not work, two are at work, or other bits came of it.
    """
    rng = random.Random(f"{seed} locks {number}")
    kind, failing = rng.choice(list(COMMANDS)), rng.choice(list(FAILURES))
    expected, seconds = left_alone(kind)
    place = scratch() / "trial"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    folder, what = place / "D", f"{kind} where flock fails with {failing}"
    process = _begin(folder, kind, FAILURES[failing])
    if rng.random() < 0.7:
        _wait_for(process, folder / "config.json")
        if rng.random() < 0.6:
            what = f"{what}, a second process"
            second = _begin(folder, kind, FAILURES[failing], ".second")
            status = second.wait()
            said = _errors(folder, ".second").read_text(errors="replace")
            at_work = process.poll() is None
            require_fair([what], status, said)
            if status == 0 and at_work:
                raise FoundError(f"{what}: works beside the first one.")
        else:
            time.sleep(rng.uniform(0, seconds))
        if rng.random() < 0.7:
            what = f"{what}, killed"
            process.send_signal(signal.SIGKILL)
            if process.wait() == -signal.SIGKILL:
                process = _begin(folder, kind, FAILURES[failing])
    if process.wait():
        said = _errors(folder, "").read_text(errors="replace")
        raise FoundError(f"{what}: status {process.returncode}: {said[-1000:]}")
    if _came_to(folder, kind) != expected:
        raise FoundError(f"{what}: other results than where there are locks.")
    return "the same results"


def _wait_for(process: Forked, path: Path) -> None:
    while process.poll() is None and not path.exists():
        time.sleep(0.01)
