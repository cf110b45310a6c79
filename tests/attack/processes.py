"""Trials of several processes: losses, disagreements and strangers at the port, on the loopback.

    python tests/attack/processes.py --trials 50 --seed 0

Every trial starts the processes, does something to them, and gives what came of it; `faults` says
what of it should not be.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fedax.devices.processes import HEARTBEAT

JOB = ("quadratics", "scaffold", "--set", "cohort_size=7", "checkpoint_every=5")
ENDLESS = (*JOB, "--rounds", "1000000")
LIMIT = HEARTBEAT + 10.0  # seconds that the others have after a loss
# What no user should see.
NOISE = re.compile(r"^[EF]\d{4} |Check failure|Traceback|terminate called|a defect", re.I | re.M)


@dataclasses.dataclass
class Outcome:
    """What came of a trial.

    Attributes:
      what: was done.
      statuses: the exit statuses; None: it did not end within the limit.
      errors: what each said on standard error.
      seconds: from what was done until each ended.
      rounds: that were done at that time.
    """

    what: str
    statuses: list[int | None]
    errors: list[str]
    seconds: list[float]
    rounds: int = 0

    def sentences(self, index: int) -> list[str]:
        """What process `index` said as fedax says it."""
        lines = self.errors[index].splitlines()
        return [line for line in lines if line.startswith("fedax: ")]


class Processes:
    """So many processes of one training; they are killed where the block ends.

    Args:
      folder: the run folder.
      words: of the command line.
      own: id -> words of that process only.
      count: how many processes.
      host: where process 0 listens.
    """

    def __init__(self, folder, *words, own=None, count=2, host="127.0.0.1"):
        self.folder, self.port = Path(folder), free_port()
        self._logs = [Path(f"{folder}.errors{index}") for index in range(count)]
        place = [] if "--resume" in words else ["--out", str(folder)]
        self.all = []
        for index in range(count):
            line = [
                *words, *place, "--devices", "1", "--coordinator", f"{host}:{self.port}",
                "--processes", str(count), "--process-id", str(index), *(own or {}).get(index, ()),
            ]
            with self._logs[index].open("wb") as log:
                self.all.append(subprocess.Popen(
                    [sys.executable, "-m", "fedax", "run", *line], stderr=log,
                    stdout=subprocess.DEVNULL, env=environment(), start_new_session=True,
                ))
        self.began = time.monotonic()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.all:
            if process.poll() is None:
                process.kill()
            process.wait()

    def rounds(self):
        """How many rounds the folder has."""
        with contextlib.suppress(OSError):
            return (self.folder / "metrics.jsonl").read_bytes().count(b"\n")
        return 0

    def are_connected(self):
        """Whether all have joined the first one; by Linux's table of connections."""
        return sum(state == "01" for state, _ in listed(self.port)) >= len(self.all)

    def is_listening(self):
        """Whether process 0 listens at its port."""
        return any(state == "0A" for state, _ in listed(self.port))

    def wait_for(self, reached, limit=120.0):
        """Waits until it is so, for as long as all processes live."""
        end = time.monotonic() + limit
        while not reached():
            if time.monotonic() > end or any(p.poll() is not None for p in self.all):
                raise AssertionError(f"It did not come so far: {self._errors()}")
            time.sleep(0.01)

    def finish(self, what, limit=LIMIT):
        """Waits for the ends, and gives the outcome."""
        rounds, began = self.rounds(), time.monotonic()
        seconds = [limit] * len(self.all)
        while time.monotonic() < began + limit:
            for index, process in enumerate(self.all):
                if process.poll() is not None:
                    seconds[index] = min(seconds[index], time.monotonic() - began)
            if all(p.poll() is not None for p in self.all):
                break
            time.sleep(0.02)
        statuses = [process.poll() for process in self.all]
        return Outcome(what, statuses, self._errors(), seconds, rounds)

    def _errors(self):
        return [log.read_text(errors="replace") for log in self._logs]


def environment():
    """For `python -m fedax` from anywhere."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "JAX_ENABLE_X64": "1"}


def free_port():
    """A port of the loopback interface that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def listed(port):
    """The (state, address) of what this machine has open at a local port, as in /proc/net/tcp."""
    rows = [
        line.split()
        for table in ("/proc/net/tcp", "/proc/net/tcp6") if Path(table).exists()
        for line in Path(table).read_text().splitlines()[1:]
    ]
    return [
        (row[3], row[1].split(":")[0]) for row in rows if int(row[1].split(":")[1], 16) == port
    ]


def lose(
    folder, victim, *, after=0.0, rounds=None, count=2, words=ENDLESS, by=signal.SIGKILL
):
    """Kills a process so many seconds after all are connected, or after so many rounds."""
    with Processes(folder, *words, count=count) as processes:
        if rounds is not None:
            processes.wait_for(lambda: processes.rounds() >= rounds)
            what = f"round {rounds}"
        else:
            processes.wait_for(processes.are_connected)
            what = "connecting"
        time.sleep(after)
        what = f"{by.name} to process {victim} of {count}, {after:.3f} s after {what}"
        processes.all[victim].send_signal(by)
        return processes.finish(what)


def faults_of_loss(outcome, victim):
    """What should not be: the others end with status 1 and one sentence, which says what to do."""
    found = []
    for index, status in enumerate(outcome.statuses):
        said = outcome.sentences(index)
        if index == victim:
            continue
        if status != 1:
            found.append(f"process {index}: status {status}")
        if len(said) != 1 or "rocess" not in said[0]:
            found.append(f"process {index} said {said}")
        if NOISE.search(outcome.errors[index]):
            found.append(f"process {index}: {outcome.errors[index][-600:]}")
    return found


def stop(folder, asked, rounds=5, by=signal.SIGTERM, count=2):
    """Asks one process to stop, after so many rounds."""
    with Processes(folder, *ENDLESS, count=count) as processes:
        processes.wait_for(lambda: processes.rounds() >= rounds)
        processes.all[asked].send_signal(by)
        return processes.finish(f"{by.name} to process {asked} after round {rounds}")


def faults_of_stop(outcome, folder):
    """What should not be: all stop after one round, of which there is a checkpoint."""
    said = [outcome.sentences(index) for index in range(len(outcome.statuses))]
    found = [f"statuses {outcome.statuses}"] if set(outcome.statuses) != {1} else []
    rounds = set(re.findall(r"Stopped after round (\d+) of", "\n".join(outcome.errors)))
    stopped = [sum("Stopped after round" in line for line in lines) for lines in said]
    if set(stopped) != {1} or len(rounds) != 1:
        return [*found, f"they said {outcome.errors}"]
    if not (Path(folder) / "checkpoints" / f"round-{int(*rounds):08}").is_dir():
        found.append(f"no checkpoint of round {rounds}")
    return found


def disagree(folder, own, *words, count=2):
    """Starts processes with words of their own."""
    with Processes(folder, *(words or ENDLESS), own=own, count=count) as processes:
        return processes.finish(f"own words {own}", limit=90)


def faults_of_disagreement(outcome, *names):
    """What should not be: all end with one sentence that names the difference, before round 1."""
    found = [f"did {outcome.rounds} rounds"] if outcome.rounds else []
    for index, status in enumerate(outcome.statuses):
        said = outcome.sentences(index)
        if status not in {1, 2}:
            found.append(f"process {index}: status {status}")
        if len(said) != 1 or not all(name in said[0] for name in names):
            found.append(f"process {index} said {said}")
        if NOISE.search(outcome.errors[index]):
            found.append(f"process {index}: {outcome.errors[index][-600:]}")
    return found


# What a stranger may send, and whether the connection stays open.
HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(64)
STRANGERS = {
    "nothing, and stays": (b"", True),
    "nothing, and goes": (b"", False),
    "random bytes": (random.Random(0).randbytes(100_000), False),
    "random bytes, and stays": (random.Random(1).randbytes(5_000), True),
    "an HTTP request": (b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", False),
    "a TLS hello": (HELLO, True),
    "an HTTP/2 preface and noise": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0" * 300, True),
}


def strangers(folder, what, number=1, rounds=40):
    """Connects to the coordinator's port so often, before and in training, and lets it end."""
    content, stays = STRANGERS[what]
    words = (*JOB, "--rounds", str(rounds))
    with contextlib.ExitStack() as stack:
        processes = stack.enter_context(Processes(folder, *words))
        for moment in (processes.is_listening, lambda: processes.rounds() >= 2):
            processes.wait_for(moment)
            for _ in range(number):
                stranger = stack.enter_context(
                    socket.create_connection(("127.0.0.1", processes.port), timeout=5)
                )
                with contextlib.suppress(OSError):
                    stranger.sendall(content)
                if not stays:
                    stranger.close()
        return processes.finish(f"{number} strangers: {what}", limit=120)


def faults_of_strangers(outcome, rounds=40):
    """What should not be: the run ends as if nobody had called."""
    done = outcome.statuses == [0, 0] and not any(map(NOISE.search, outcome.errors))
    return [] if done else [f"statuses {outcome.statuses}: {outcome.errors}"]


def random_loss(folder, rng):
    """A loss of any process at any moment: connecting, compiling, between rounds, at the end."""
    count = rng.choice([2, 2, 2, 3])
    victim = rng.randrange(count)
    kind = rng.choice(["start", "rounds", "checkpoints", "end"])
    if kind == "start":
        outcome = lose(folder, victim, after=rng.uniform(0, 3), count=count)
    elif kind == "rounds":
        outcome = lose(folder, victim, rounds=rng.randrange(1, 60), count=count)
    elif kind == "checkpoints":  # one after every round, so most moments are in one
        words = tuple(word.replace("checkpoint_every=5", "checkpoint_every=1") for word in ENDLESS)
        rounds, after = rng.randrange(1, 9), rng.uniform(0, 0.05)
        outcome = lose(folder, victim, rounds=rounds, after=after, count=count, words=words)
    else:
        words = (*JOB, "--rounds", "20")
        outcome = lose(folder, victim, rounds=rng.randrange(17, 21), count=count, words=words)
    # A process that had done all its rounds may have ended well before it noticed.
    return outcome, faults_of_loss(outcome, victim)


def main():
    """Runs trials and says how they ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    bad, counts, slowest = 0, collections.Counter(), 0.0
    for trial in range(arguments.trials):
        rng = random.Random(f"{arguments.seed} {trial}")
        with tempfile.TemporaryDirectory() as parent:
            outcome, faults = random_loss(Path(parent) / "run", rng)
        bad += bool(faults)
        counts.update(str(status) for status in outcome.statuses)
        slowest = max(slowest, *outcome.seconds)
        print(json.dumps({
            "trial": trial, "what": outcome.what, "statuses": outcome.statuses,
            "seconds": [round(s, 2) for s in outcome.seconds], "rounds": outcome.rounds,
            "said": [outcome.sentences(i) for i in range(len(outcome.statuses))], "faults": faults,
        }), flush=True)
    print(f"{arguments.trials} trials, {bad} with faults; statuses {dict(counts)}; "
          f"the slowest took {slowest:.1f} s.")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
