"""Attacks fedax, and writes what came of it.

    python tests/attack --kills 200 --inputs 5000 --losses 50 --seed 0 --out docs/attack.md

Without numbers a form of some ten minutes. Every part draws from the seed, so a trial that found
something is found again. Exit status: 0 nothing was found, 1 something was.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import datetime
import errno
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from attack import data_files, disks, files, fuzz, kills, processes

ROW = "| {part} | {trials} | {found} | {seconds:.0f} | {ended} |"


class Part:
    """What a part did: its trials, how they ended, and what they found."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.trials = 0
        self.ended: collections.Counter[str] = collections.Counter()
        self.found: list[str] = []
        self._began = time.perf_counter()
        self.seconds = 0.0

    @contextlib.contextmanager
    def trial(self, what: str = "") -> Iterator[None]:
        """One trial; what it finds is noted, and the next one begins."""
        self.trials += 1
        try:
            yield
        except (AssertionError, subprocess.TimeoutExpired) as error:
            self.find(f"{what}{error}")
        self.seconds = time.perf_counter() - self._began

    def find(self, what: str) -> None:
        self.found.append(what)
        print(f"FOUND by {self.name}: {what[:2000]}", flush=True)

    def row(self) -> str:
        ended = "; ".join(f"{number} {what}" for what, number in self.ended.most_common(6))
        return ROW.format(part=self.name, trials=self.trials, found=len(self.found),
                          seconds=self.seconds, ended=ended)


def killed(count: int, seed: int, folder: Path) -> Iterator[Part]:
    """Kills, dealt to the table of runs, a few a run."""
    cache = folder / "cache"
    names = list(kills.RUNS)
    each = {name: count // len(names) + (i < count % len(names)) for i, name in enumerate(names)}
    for name, number in each.items():
        part = Part(f"kills: {name}")
        place = folder / name.replace(" ", "-")
        with part.trial():
            expected, seconds = kills.left_alone(name, place.with_suffix(".alone"), cache)
            part.trials = 0
            for trial in range(-(-number // 4)):
                rng = random.Random(f"{seed} {name} {trial}")
                few, run = min(4, number - 4 * trial), place.with_suffix(f".{trial}")
                with part.trial(f"trial {trial}: "):
                    part.trials += few - 1
                    met = kills.attack(name, few, rng, run, cache, expected, seconds)
                    part.ended["met the run at work"] += met
                shutil.rmtree(run, ignore_errors=True)
        yield part


def disks_fail(count: int, seed: int, folder: Path) -> Iterator[Part]:
    """Operations that fail, folders that vanish, and disks that are full."""
    expected, operations = disks.left_alone(folder / "alone")
    trials: dict[str, Callable[[random.Random, Path], str]] = {
        "disks that fail": lambda rng, run: disks.failing(rng, run, expected, operations),
        "folders that vanish": lambda rng, run: disks.vanishing(rng, run, operations),
    }
    if shutil.which("unshare"):
        trials["full disks"] = lambda rng, run: disks.full_disk(
            rng, run, folder / "cache", expected
        )
    for name, attack in trials.items():
        part = Part(name)
        for trial in range(count if name != "full disks" else -(-count // 10)):
            run = folder / f"{name}-{trial}".replace(" ", "-")
            with part.trial(f"trial {trial}: "):
                attack(random.Random(f"{seed} {name} {trial}"), run)
                part.ended["same bits" if name != "folders that vanish" else "a sentence"] += 1
            shutil.rmtree(run, ignore_errors=True)
        yield part


def files_lie(inputs: int, folders: int, seed: int, folder: Path) -> Iterator[Part]:
    """Files of a run folder: after accidents, and forged."""
    expected, operations = disks.left_alone(folder / "run")
    unfinished = folder / "unfinished"

    def fails(path: str) -> None:
        raise OSError(errno.ENOSPC, "full", path)

    with disks.Disk(unfinished, int(0.7 * operations), fails).watched():
        disks.run((*disks.RUN, "--out", str(unfinished)))
    part = Part("run folders after accidents")
    for trial in range(folders):
        with part.trial(f"trial {trial}: "):
            rng = random.Random(f"{seed} accidents {trial}")
            said = files.folder_after_accidents(rng, unfinished, folder / "damaged", expected)
            part.ended["same bits" if said.endswith("goes on") else "a sentence"] += 1
        shutil.rmtree(folder / "damaged", ignore_errors=True)
    yield part
    for reader in files.readers(folder):
        part = Part(f"files: {reader.name}")
        for trial in range(inputs):
            with part.trial(f"trial {trial}: "):
                read = reader.attack(random.Random(f"{seed} {trial}"), folder / "input")
                part.ended["read" if read else "a sentence"] += 1
        yield part


def inputs_lie(count: int, seed: int) -> Iterator[Part]:
    """Settings, files, data sets and questions that nobody would write."""
    for name, fuzzer in (fuzz.FUZZERS | data_files.FUZZERS).items():
        part = Part(f"inputs: {name}")
        with part.trial():
            for what in dict.fromkeys(fuzzer(seed, count)):
                part.find(what)
        part.trials = count
        part.ended["without a finding"] = count - len(part.found)
        yield part


def processes_lost(count: int, seed: int, folder: Path) -> Iterator[Part]:
    """Processes that are lost, asked to stop, disagree, or are called by strangers."""
    part = Part("lost processes")
    for trial in range(count):
        with part.trial():
            rng = random.Random(f"{seed} {trial}")
            outcome, faults = processes.random_loss(folder / f"lost-{trial}", rng)
            _note(part, outcome, faults)
    yield part
    part = Part("processes asked to stop")
    for trial in range(-(-count // 10)):
        with part.trial():
            run = folder / f"stopped-{trial}"
            outcome = processes.stop(run, asked=trial % 2)
            _note(part, outcome, processes.faults_of_stop(outcome, run))
    yield part
    part = Part("strangers at the port")
    for trial, what in enumerate(list(processes.STRANGERS)[: count]):
        with part.trial():
            outcome = processes.strangers(folder / f"strangers-{trial}", what, 1 + trial)
            _note(part, outcome, processes.faults_of_strangers(outcome))
    yield part


def _note(part: Part, outcome: processes.Outcome, faults: list[str]) -> None:
    part.ended[f"statuses {sorted(map(str, outcome.statuses))}"] += 1
    for fault in faults:
        part.find(f"{outcome.what}: {fault}")


def page(parts: list[Part], command: str) -> str:
    """The results as a page of the docs."""
    today = datetime.date.today().isoformat()
    rows = "\n".join(part.row() for part in parts)
    found = "\n".join(f"- {part.name}: `{what[:500]}`" for part in parts for what in part.found)
    minutes = sum(part.seconds for part in parts) / 60
    place = f"{platform.system()}, Python {platform.python_version()}"
    return f"""# What an attack found

`{command}`, {today}, {place}, {minutes:.0f} minutes.
A finding is a wrong bit, a traceback, "a defect of fedax", more than one sentence, or more time or
memory than its limit. [security.md](security.md) says what is defended against.

| what | trials | findings | seconds | how they ended |
|---|---|---|---|---|
{rows}

{found or 'Nothing was found.'}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=18, help="SIGKILL, SIGTERM and SIGINT")
    parser.add_argument("--inputs", type=int, default=100, help="for each reader")
    parser.add_argument("--losses", type=int, default=5, help="of a process")
    parser.add_argument("--disks", type=int, default=20, help="failing operations")
    parser.add_argument("--folders", type=int, default=50, help="run folders after accidents")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="kills, disks, files, inputs or processes")
    parser.add_argument("--out", type=Path, help="writes a page of the docs")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as parent:
        places = {key: Path(parent) / key for key in ("kills", "disks", "files", "processes")}
        for place in places.values():
            place.mkdir()
        attacks = {
            "kills": killed(asked.kills, asked.seed, places["kills"]),
            "disks": disks_fail(asked.disks, asked.seed, places["disks"]),
            "files": files_lie(asked.inputs, asked.folders, asked.seed, places["files"]),
            "inputs": inputs_lie(asked.inputs, asked.seed),
            "processes": processes_lost(asked.losses, asked.seed, places["processes"]),
        }
        parts = []
        for name, attack in attacks.items():
            if asked.only in ("", name):
                for part in attack:
                    parts.append(part)
                    print(part.row(), flush=True)
    if asked.out:
        asked.out.write_text(page(parts, f"python tests/attack {' '.join(sys.argv[1:])}"), "utf-8")
    return 1 if any(part.found for part in parts) else 0


if __name__ == "__main__":
    sys.exit(main())
