"""Links in folders of runs, sweeps and searches: nothing outside the folder is changed.

A stranger's folder may have a symbolic link wherever fedax writes: to a file, to a folder, to
nothing, through other links. The command works, or says one sentence; what lies outside stays as it
is, to the byte.
"""

from __future__ import annotations

import functools
import os
import random
import shutil
from pathlib import Path

from attack import commands
from attack.outcomes import FoundError
from attack.workers import scratch

SECONDS, MEGABYTES = 90.0, 800.0
QUADRATICS = ("quadratics", "fedavg")
GRID = ("--grid", "client_learning_rate=0.01,0.1")
SEARCH = ("--search", "client_learning_rate=loguniform(0.01,0.3)", "--trials", "3")
# Kind of folder -> the command that makes it.
MADE = {
    "run": ("run", *QUADRATICS, "--rounds", "4", "--set", "checkpoint_every=2",
            "keep_best=test_distance", "evaluate_every=2"),
    "sweep": ("sweep", *QUADRATICS, *GRID, "--seeds", "2", "--rounds", "3"),
    "halving": ("sweep", "quadratics", "fedavg,fedavgm", "--grid",
                "client_learning_rate=0.01,0.03,0.1", "--rounds", "4", "--halving", "2"),
    "search": ("sweep", *QUADRATICS, *SEARCH, "--rounds", "2"),
    "pruned": ("sweep", *QUADRATICS, *SEARCH, "--rounds", "4", "--pruner", "median"),
}
# What is done with it afterwards.
USED = {
    "run": (("run", "--resume", "D", "--rounds", "6"), ("report", "D"),
            ("run", "--resume", "D", "--rounds", "6", "--log", "csv"),
            ("run", "--resume", "D", "--rounds", "6", "--log", "tensorboard"),
            ("run", "--resume", "D", "--rounds", "6", "--profile"),
            ("plot", "curves", "D", "--out", "D/picture.png")),
    "sweep": (("sweep", "--resume", "D"), ("sweep", "--extend", "D"), ("report", "D"),
              ("sweep", "--resume", "D", "--log", "csv"),
              ("sweep", "--resume", "D", "--choose", "test_loss"),
              ("plot", "curves", "D", "--out", "D/picture.png")),
    "halving": (("sweep", "--resume", "D"), ("report", "D")),
    "search": (("sweep", "--resume", "D", "--trials", "4"), ("report", "D"),
               ("sweep", "--resume", "D", "--trials", "4", "--log", "csv")),
    "pruned": (("sweep", "--resume", "D", "--trials", "4"),),
}
# Names that are there for a moment only, or only later.
LATER = {
    "run": ("checkpoints/round-00000006", "checkpoints/round-00000006.partial", "profile", "logs",
            "picture.png", "metrics.csv", "metrics.parquet", "checkpoints/best", "report.html"),
    "sweep": ("parts/part-00002", "parts/part-00002.npz", "parts/part-00001", "logs", "picture.png",
              "best/fedavg.toml", "methods/0", "rounds.npz"),
    "search": ("study.db-wal", "study.db-journal", "study.db-shm", "trials/fedavg/000003.npz",
               "logs", "worker", "parts", "parts/part-00000"),
}
LATER |= {"halving": LATER["sweep"], "pruned": LATER["search"]}
# What a stopped one lacks.
STOPPED = ("summary.json", "rounds.npz", "results.csv", "report.html")


@functools.cache
def template(kind: str) -> Path:
    """A folder of a kind, made once in each process."""
    folder = scratch() / "templates" / kind
    status, _, errors = commands.run([*MADE[kind], "--out", str(folder)])
    assert status == 0, errors
    return folder


def trial(seed: int, number: int) -> str:
    """Links somewhere in a folder, and a command; returns how it ended.

    Raises:
      FoundError: something outside has changed, or there was no sentence.
    """
    rng = random.Random(f"{seed} links {number}")
    kind = rng.choice(list(MADE))
    whole = template(kind)
    place = scratch() / "trial"
    shutil.rmtree(place, ignore_errors=True)
    folder, outside = place / "stranger", place / "mine"
    shutil.copytree(whole, folder)
    outside.mkdir(parents=True)
    if rng.random() < 0.5:
        for name in STOPPED:
            (folder / name).unlink(missing_ok=True)
        for part in sorted((folder / "parts").glob("*"))[1:]:
            part.unlink()
    places = sorted(str(path.relative_to(whole)) for path in whole.rglob("*"))
    done = [_link(folder, rng.choice([*places, *LATER[kind]]), outside, rng)
            for _ in range(rng.choice((1, 1, 1, 2, 4)))]
    before = commands.digest(outside)
    words = [word.replace("D", str(folder), 1) if word[:1] == "D" else word
             for word in rng.choice(USED[kind])]
    what = f"{kind} with {'; '.join(filter(None, done))}, fedax {' '.join(words)}"
    status, _, errors = commands.run(words)
    commands.require_same(before, outside, what)
    try:
        commands.require_fair(words, status, errors)
    except FoundError as error:
        raise FoundError(f"{what}: {error}") from None
    return "done" if status == 0 else "a sentence"


def _link(folder: Path, name: str, outside: Path, rng: random.Random) -> str:
    """Puts a link at a place in the folder to something outside, and says so."""
    path = folder / name
    if not path.parent.resolve().is_relative_to(folder.resolve()) or path.is_symlink():
        return ""  # below another link
    path.parent.mkdir(parents=True, exist_ok=True)
    target = outside / path.name
    how = rng.choice(("same", "same", "nothing", "other", "folder", "hard"))
    if target.exists() or target.is_symlink():
        how = "nothing"
    if how == "hard" and path.is_file():
        shutil.move(path, target)
        path.hardlink_to(target)
        return f"{name} a hard link"
    if not _made(target, path, how):
        how, target = "nothing", outside / f"new-{path.name}"
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    pointed: str | Path = target
    if rng.random() < 0.3:
        pointed = os.path.relpath(target, path.parent)
    if rng.random() < 0.3:  # through another link in the folder
        (folder / "hop").unlink(missing_ok=True)
        (folder / "hop").symlink_to(target)
        pointed = folder / "hop"
    path.symlink_to(pointed)
    return f"{name} a link to {how}"


def _made(target: Path, path: Path, how: str) -> bool:
    """Makes what a link leads to: something of one's own, which looks like what was there."""
    if how == "same" and path.exists():
        shutil.move(path, target)
        folders = [target, *target.rglob("*")] if target.is_dir() else []
        for folder in filter(Path.is_dir, folders):
            (folder / "thesis.txt").write_text("mine")
    elif how == "folder":
        (target / "part-00000").mkdir(parents=True)
        (target / "part-00000" / "thesis.txt").write_text("mine")
    elif how == "other":
        target.write_text("mine")
    else:
        return False
    return True
