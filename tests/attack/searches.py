"""Kills inside of a search: it ends with the trials of one that was left alone.

A process is killed at any of its operations on the study and on files (as many as it has while it
draws and tells), or at a random moment; two workers of one study are killed, or one is paused for
longer than the grace, after which the other does its trials. Every process is a fork of this one,
which has imported all that it needs.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attack.commands import require_fair
from attack.outcomes import FoundError
from attack.workers import Forked, scratch

SECONDS, MEGABYTES = 300.0, 800.0
HEARTBEAT, GRACE = 1, 3  # seconds, in place of the many that a user's workers have
NUM_TRIALS = 8
SPACE = ("client_learning_rate=loguniform(0.01,0.3)", "momentum=uniform(0,0.95)")
SIZE = ("--rounds", "3", "--trials", str(NUM_TRIALS), "--settings-per-batch")
SEARCHES = {
    "tpe": ("--search", *SPACE, *SIZE, "3"),
    "random": ("--search", *SPACE, *SIZE, "4", "--sampler", "random"),
    "cmaes": ("--search", *SPACE, *SIZE, "2", "--sampler", "cmaes"),
    "pruned": ("--search", *SPACE, *SIZE, "3", "--pruner", "median"),
    "one by one": ("--search", *SPACE, *SIZE, "1", "--sampler", "qmc"),
}
WORKERS = ("--search", *SPACE, "--rounds", "3", "--trials", "16", "--settings-per-batch", "2")


def _begin(folder: Path, words: tuple[str, ...], prepare: Callable[[], None] = int) -> Forked:
    """A search, begun or gone on with, in a process of its own."""
    line = ["sweep", "quadratics", "fedavgm", *words, "--out", str(folder)]
    if (folder / "config.json").exists():
        line = ["sweep", "--resume", str(folder)]
    place = folder.with_name(f"{folder.name}.errors")
    errors = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def search() -> int:
        from fedax.cli.main import run_command
        from fedax.tuning import optuna_workers

        optuna_workers.HEARTBEAT, optuna_workers.GRACE = HEARTBEAT, GRACE
        prepare()
        return run_command(line)

    try:
        return Forked(search, errors=errors)
    finally:
        os.close(errors)


def _said(folder: Path) -> str:
    return folder.with_name(f"{folder.name}.errors").read_text(errors="replace")


def _end(folder: Path, words: tuple[str, ...], what: str) -> None:
    """Has a search go on to its end.

    Raises:
      FoundError: it does not.
    """
    status = _begin(folder, words).wait()
    if status:
        raise FoundError(f"{what}: goes on with status {status}: {_said(folder)[-1000:]}")


def told(database: Path) -> list[tuple[Any, ...]]:
    """The trials that are done, by number: number, state, settings and value.

    Raises:
      FoundError: one still seems to run.
    """
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        trials = connection.execute(
            "SELECT trial_id, number, state FROM trials ORDER BY study_id, number").fetchall()
        found = []
        for number, place, state in trials:
            if state in ("RUNNING", "WAITING"):
                raise FoundError(f"trial {place} is {state} in the end.")
            if state == "FAIL":
                continue
            settings = connection.execute(
                "SELECT param_name, param_value FROM trial_params WHERE trial_id = ? "
                "ORDER BY param_name", [number]).fetchall()
            values = connection.execute(
                "SELECT value FROM trial_values WHERE trial_id = ?", [number]).fetchall()
            found.append((state, tuple(settings), tuple(values)))
    connection.close()
    return found


def _results(folder: Path) -> tuple[Any, ...]:
    """What a search came to: the study's trials, and the folder's settings in their order."""
    return told(folder / "study.db"), json.loads((folder / "config.json").read_text())["settings"]


def _dies(at: int, note: Path | None = None) -> Callable[[], None]:
    """Kills the process at so many operations on the study and on files; 0: counts them only."""

    def prepare() -> None:
        import optuna
        from optuna.storages import RDBStorage

        count = 0

        def watch(owner: Any, name: str) -> None:
            plain = getattr(owner, name)

            @functools.wraps(plain)
            def watched(*arguments: Any, **options: Any) -> Any:
                nonlocal count
                for _ in range(2):  # before and after
                    count += 1
                    if count == at:
                        os.kill(os.getpid(), signal.SIGKILL)
                    if note is not None:
                        note.write_text(str(count))
                    if _ == 0:
                        answer = plain(*arguments, **options)
                return answer

            setattr(owner, name, watched)

        for name in ("ask", "tell", "enqueue_trial"):
            watch(optuna.Study, name)
        for name in dir(RDBStorage):
            if name.startswith(("create_", "set_")):
                watch(RDBStorage, name)
        watch(os, "replace")

    return prepare


@functools.cache
def left_alone(name: str) -> tuple[tuple[Any, ...], int, float]:
    """What a search comes to that nobody disturbs, its operations, and its seconds."""
    folder, note = scratch() / "alone" / name.replace(" ", "-"), scratch() / "operations"
    folder.parent.mkdir(exist_ok=True)
    began = time.perf_counter()
    status = _begin(folder, SEARCHES[name], _dies(0, note)).wait()
    if status:
        raise FoundError(f"{name}: alone status {status}: {_said(folder)[-1000:]}")
    return _results(folder), int(note.read_text()), time.perf_counter() - began


def trial(seed: int, number: int) -> str:
    """A search that is killed up to four times, or a study whose workers are killed or paused.

    Raises:
      FoundError: it ends with other trials than it should.
    """
    rng = random.Random(f"{seed} searches {number}")
    place = scratch() / "trial"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    kind = rng.choice(("one", "one", "one", "two killed", "paused"))
    if kind == "one":
        return _one(place / "search", rng)
    return _workers(place, rng, pauses=kind == "paused")


def _one(folder: Path, rng: random.Random) -> str:
    name = rng.choice(list(SEARCHES))
    expected, operations, seconds = left_alone(name)
    what = name
    for _ in range(rng.randint(1, 3)):
        if rng.random() < 0.7:
            at = rng.randint(1, operations)
            process = _begin(folder, SEARCHES[name], _dies(at))
            what = f"{what}, killed at operation {at}"
        else:
            process = _begin(folder, SEARCHES[name])
            after = rng.uniform(0, seconds)
            time.sleep(after)
            by = rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT))
            process.send_signal(by)
            what = f"{what}, {by.name} after {after:.2f} s"
        status = process.wait()
        if status not in (-signal.SIGKILL, -signal.SIGTERM):
            require_fair(["sweep", what], status, _said(folder))
        if not (folder / "config.json").exists():
            shutil.rmtree(folder, ignore_errors=True)  # as its first sentence says
    _end(folder, SEARCHES[name], what)
    found = _results(folder)
    for part, ours, theirs in zip(("trials", "settings"), found, expected, strict=True):
        if ours != theirs:
            new = [one for one in ours if one not in theirs]
            raise FoundError(
                f"{what}: {len(ours)} {part} in place of {len(theirs)}; others or in another order "
                f"than of one left alone: {str(new or ours)[:300]}")
    return "the same trials"


def _workers(place: Path, rng: random.Random, *, pauses: bool) -> str:
    words = (*WORKERS, "--storage", f"sqlite:///{place.absolute() / 'shared.db'}")
    folders = [place / "a", place / "b"]
    processes = [_begin(folder, words) for folder in folders]
    after = rng.uniform(0.5, 6.0)
    time.sleep(after)
    if pauses:
        what = f"a worker paused after {after:.2f} s"
        processes[0].send_signal(signal.SIGSTOP)
        time.sleep(rng.uniform(1.5, 3.0) * GRACE)
        processes[0].send_signal(signal.SIGCONT)
        for folder, process in zip(folders, processes, strict=True):
            require_fair(["sweep", what], process.wait(), _said(folder))
    else:
        what = f"two workers killed after {after:.2f} s"
        for process in processes:
            process.send_signal(signal.SIGKILL)
            time.sleep(rng.choice((0.0, rng.uniform(0, 2.0))))
        for process in processes:
            process.wait()
    for folder in folders:
        if (folder / "config.json").exists():
            _end(folder, words, what)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    if not any(folder.exists() for folder in folders):
        _end(folders[0], words, what)
    trials = told(place / "shared.db")
    settings = [one[1] for one in trials]
    if len(trials) != 16 or len(set(settings)) != len(settings):
        raise FoundError(
            f"{what}: {len(trials)} trials in place of 16, {len(set(settings))} different settings")
    return "as many trials as asked"
