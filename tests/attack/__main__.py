"""Attacks fedax, and writes what came of it.

    python tests/attack --kills 200 --inputs 5000 --losses 50 --jobs 2 \
        --markdown docs/notebook/attack.md

Without numbers a form of some ten minutes. Every part is a process of its own and draws from the
seed, so a trial that found something is found again. Exit status: 0 nothing was found, 1 something
was.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import datetime
import errno
import functools
import json
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import fedax
import made_data
from attack import (
    bombs,
    data_files,
    disks,
    escapes,
    files,
    forgeries,
    fuzz,
    kills,
    links,
    locks,
    processes,
    searches,
)
from attack.workers import Worker

FINDING = (
    'A finding is a wrong bit, a traceback, "a bug in fedax", more than one sentence, code that '
    "was run, a change outside of a folder, a letter that commands a terminal, or more time or "
    "memory than its limit."
)
ROW = "| {part} | {trials} | {found} | {seconds:.0f} | {each} | {ended} |"


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
        ended = "; ".join(f"{number:,} {what}" for what, number in self.ended.most_common(6))
        each = 1000 * self.seconds / max(self.trials, 1)
        return ROW.format(part=self.name, trials=self.trials, found=len(self.found),
                          seconds=self.seconds, ended=ended,
                          each=f"{each:,.0f} ms" if each < 1000 else f"{each / 1000:.1f} s")

    @classmethod
    def of(cls, noted: dict[str, Any]) -> Part:
        """A part that another process noted."""
        part = cls(noted["name"])
        part.trials, part.found, part.seconds = noted["trials"], noted["found"], noted["seconds"]
        part.ended.update(noted["ended"])
        return part

    def noted(self) -> dict[str, Any]:
        return {"name": self.name, "trials": self.trials, "found": self.found,
                "seconds": self.seconds, "ended": self.ended}


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
    for name, fuzzer in fuzz.FUZZERS.items():
        part = Part(f"inputs: {name}")
        with part.trial():
            for what in dict.fromkeys(fuzzer(seed, count)):
                part.find(what)
        part.trials = count
        part.ended["without a finding"] = count - len(part.found)
        yield part


def data_lie(count: int, seed: int, folder: Path) -> Iterator[Part]:
    """Files of data in every format, damaged and forged."""
    with Worker(data_files.SECONDS, data_files.MEGABYTES, folder) as worker:
        for name in (*made_data.FORMATS, *made_data.TABLES):
            part = Part(f"data: {name}")
            with part.trial():
                part.ended, found = data_files.attack(worker, name, seed, count)
                for what in found:
                    part.find(what)
            part.trials = count
            yield part


def in_workers(module: Any, name: str, count: int, seed: int, folder: Path) -> Iterator[Part]:
    """Trials of a module in a process that is kept for many."""
    part = Part(name)
    function = f"{module.__name__}:trial"
    with Worker(module.SECONDS, module.MEGABYTES, folder) as worker:
        for trial in range(count):
            with part.trial(f"trial {trial}: "):
                part.ended[worker.ask(function, seed, trial)] += 1
    yield part


def bombs_go_off(count: int, seed: int, folder: Path) -> Iterator[Part]:
    """Small files that want much: of each kind the same number."""
    each = -(-count // len(bombs.BOMBS))
    part = Part("bombs")
    # What a bomb's making takes is no part of its budget.
    with Worker(10 * bombs.SECONDS, 20 * bombs.MEGABYTES, folder) as worker:
        for name in bombs.BOMBS:
            for trial in range(each):
                with part.trial(f"{name}, trial {trial}: "):
                    part.ended[worker.ask("attack.bombs:trial", name, seed, trial)] += 1
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


def page(parts: list[Part], command: str, minutes: float) -> str:
    """The results as a page of the docs."""
    today = datetime.date.today().isoformat()
    rows = "\n".join(part.row() for part in parts)
    found = "\n".join(f"- {part.name}: `{what[:500]}`" for part in parts for what in part.found)
    place = f"{platform.system()}, Python {platform.python_version()}"
    trials = sum(part.trials for part in parts)
    faults = sum(len(part.found) for part in parts)
    return f"""# Attack: crashes, damaged files and hostile inputs

See how fedax withstands killed runs, failing disks, damaged files and hostile inputs, and repeat
the attack with the command below. {faults:,} of {trials:,} trials found a fault.

`{command}`, {today}, fedax {fedax.__version__}, {place}: {minutes:.0f} minutes. {FINDING}
[security.md](security.md) says what is defended against.

| what | trials | findings | seconds | a trial | how they ended |
|---|---|---|---|---|---|
{rows}

{found or 'Nothing was found.'}
"""


def attacks(asked: argparse.Namespace, folder: Path) -> dict[str, Callable[[], Iterator[Part]]]:
    """All parts, by name, the longest first."""
    seed = asked.seed
    new = {
        "links": (links, asked.inputs // 10), "forgeries": (forgeries, asked.inputs // 5),
        "escapes": (escapes, asked.inputs // 5), "searches": (searches, asked.kills // 4),
        "locks": (locks, asked.kills // 10),
    }
    return {
        "kills": lambda: killed(asked.kills, seed, folder),
        "data": lambda: data_lie(asked.inputs, seed, folder),
        "processes": lambda: processes_lost(asked.losses, seed, folder),
        "bombs": lambda: bombs_go_off(max(asked.inputs // 25, 1), seed, folder),
        "inputs": lambda: inputs_lie(asked.inputs, seed),
        "disks": lambda: disks_fail(asked.disks, seed, folder),
        "files": lambda: files_lie(asked.inputs, asked.folders, seed, folder),
        **{name: functools.partial(in_workers, module, name, max(count, 1), seed, folder)
           for name, (module, count) in new.items()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=18, help="SIGKILL, SIGTERM and SIGINT")
    parser.add_argument("--inputs", type=int, default=100, help="for each reader")
    parser.add_argument("--losses", type=int, default=5, help="of a process")
    parser.add_argument("--disks", type=int, default=20, help="failing operations")
    parser.add_argument("--folders", type=int, default=50, help="run folders after accidents")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="so many parts at a time")
    parser.add_argument("--only", default="", help="parts, with commas between them")
    parser.add_argument("--markdown", type=Path, help="writes the results at the top of a page")
    parser.add_argument("--json", type=Path, help="writes the results for another process")
    asked = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent)
        all_parts = attacks(asked, folder)
        names = asked.only.split(",") if asked.only else list(all_parts)
        if unknown := [name for name in names if name not in all_parts]:
            parser.error(f"--only: no part is called {unknown[0]!r}, but {', '.join(all_parts)}.")
        if len(names) == 1:
            parts = []
            for part in all_parts[names[0]]():
                parts.append(part)
                print(part.row(), flush=True)
        else:
            parts = _in_processes(names, folder, asked.jobs)
    minutes = (time.perf_counter() - began) / 60
    if asked.json:  # the process that asked writes the page
        asked.json.write_text(json.dumps([part.noted() for part in parts]))
    elif asked.markdown:
        command = f"python tests/attack {' '.join(sys.argv[1:])}"
        before = asked.markdown.read_text("utf-8") if asked.markdown.exists() else ""
        _, heading, kept = before.partition("\n## ")  # what explains the parts stays as it is
        asked.markdown.write_text(page(parts, command, minutes) + heading + kept, "utf-8")
    return 1 if any(part.found for part in parts) else 0


def _in_processes(names: list[str], folder: Path, jobs: int) -> list[Part]:
    """Each part in a process of its own, whose memory and programs are its own."""

    def one(name: str) -> list[Part]:
        noted = folder / f"{name}.json"
        done = subprocess.run(
            [sys.executable, str(Path(__file__).parent), *sys.argv[1:], "--only", name, "--json",
             str(noted)], check=False,
        )
        if not noted.exists():
            part = Part(name)
            part.find(f"the attack itself ended with status {done.returncode}.")
            return [part]
        return [Part.of(found) for found in json.loads(noted.read_text())]

    with ThreadPoolExecutor(jobs) as pool:
        return [part for parts in pool.map(one, names) for part in parts]


if __name__ == "__main__":
    sys.exit(main())
