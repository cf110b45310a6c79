"""SIGKILL and SIGTERM at random moments: what goes on afterwards ends with the same bits."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from attack.outcomes import (
    NOISE,
    REPOSITORY,
    FoundError,
    environment,
    require_equal,
    results,
)

OWN = f"{REPOSITORY / 'examples'}"
QUADRATICS = ("run", "quadratics")
# Name -> a command line without its folder; "train" stands for tests/attack/train.py.
RUNS = {
    "fedyogi": (*QUADRATICS, "fedyogi", "--preset", "none", "--set", "client_learning_rate=0.1"),
    "states of clients": (*QUADRATICS, "scaffold", "--set", "cohort_size=7"),
    "two exchanges": (
        *QUADRATICS, "mime", "--preset", "none", "--set", "base=adam(0.9,0.99,0.001)",
        "client_learning_rate=0.05",
    ),
    "wrapped, dropouts, diagnostics": (
        *QUADRATICS, "elastic+fedavgm", "--preset", "none", "--set", "client_learning_rate=0.1",
        "cohort_size=5", "dropout=0.3", "diagnostics=true", "sampling=cyclic",
    ),
    "stopped early, the best kept": (
        *QUADRATICS, "fedavg", "--preset", "none", "--set", "client_learning_rate=0.01",
        "evaluate_every=2", "keep_best=test_distance", "early_stopping=test_distance",
        "early_stopping_patience=30", "early_stopping_min_delta=1000",
    ),
    "two devices": (
        *QUADRATICS, "fedadam", "--preset", "none", "--set", "cohort_size=6",
        "client_learning_rate=0.1",
    ),
    "a user's": ("run", f"{OWN}/tasks.py:sensors", f"{OWN}/methods.py:feddyn", "--set",
                 "cohort_size=4"),
    "Shakespeare": (
        "run", "shakespeare", "fedadam", "--set", "model=mlp", "cohort_size=3",
        "num_local_steps=2", "evaluate_every=20",
    ),
    "from Python": ("train",),
}
DEVICES = {"two devices": "2"}
ROUNDS = 120
LENGTH = ("--rounds", str(ROUNDS), "--set", "checkpoint_every=3")
LIMIT = 180.0  # seconds that a run left alone may take
END = 20.0  # seconds within which SIGTERM ends it


def command(name: str, folder: Path) -> list[str]:
    """How the run starts or goes on, as a user would."""
    words = RUNS[name]
    if words == ("train",):
        return [sys.executable, str(Path(__file__).with_name("train.py")), str(folder)]
    if (folder / "config.json").exists():
        words = ("run", "--resume", str(folder))
    else:
        words = (*words, *LENGTH, "--out", str(folder))
    # On as many devices as before: that is part of the bits.
    return [sys.executable, "-m", "fedax", *words, "--devices", DEVICES.get(name, "1")]


def left_alone(name: str, folder: Path, cache: Path) -> tuple[dict[str, object], float]:
    """What the run comes to, and how long it takes."""
    begin = time.perf_counter()
    _run_to_its_end(name, folder, cache)
    return results(folder), time.perf_counter() - begin


def _run_to_its_end(name: str, folder: Path, cache: Path) -> None:
    done = subprocess.run(
        command(name, folder), env=environment(cache), capture_output=True, text=True, check=False,
        timeout=LIMIT,
    )
    if done.returncode or NOISE.search(done.stderr):
        raise FoundError(f"{name} ends with {done.returncode}: {done.stderr[-2000:]}")


def attack(
    name: str, kills: int, rng: random.Random, folder: Path, cache: Path,
    expected: dict[str, object], seconds: float,
) -> int:
    """Kills a run again and again, has it go on each time, and compares its end.

    Args:
      name: which of `RUNS`.
      kills: how many.
      rng: draws the moments.
      folder: the run folder, which does not exist.
      cache: where programs are kept.
      expected, seconds: of the run left alone.

    Returns:
      How many of the kills met a process that was still at work.

    Raises:
      FoundError: something other than the same bits came of it.
    """
    met = 0
    for _ in range(kills):
        number = rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT))
        process = subprocess.Popen(
            command(name, folder), env=environment(cache), stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True,
        )
        try:
            _wait(process, rng, folder, seconds)
            met += process.poll() is None
            process.send_signal(number)
            _, errors = process.communicate(timeout=END)
        except subprocess.TimeoutExpired:
            raise FoundError(f"{name}: not ended {END} s after {number.name}.") from None
        finally:
            process.kill()
        allowed = (0, 1, -number)
        if process.returncode not in allowed or NOISE.search(errors):
            raise FoundError(
                f"{name}: after {number.name} status {process.returncode}: {errors[-2000:]}"
            )
    _run_to_its_end(name, folder, cache)
    require_equal(folder, expected, f"{name}, killed {kills} times")
    return met


def _wait(process: subprocess.Popen, rng: random.Random, folder: Path, seconds: float) -> None:
    """Until a moment of the start, or until some rounds later than now, or the process's end."""
    if rng.random() < 0.3:
        time.sleep(rng.uniform(0.05, 0.6 * seconds))
        return
    wanted = min(_rounds(folder) + rng.randint(1, ROUNDS // 3), ROUNDS)
    while process.poll() is None and _rounds(folder) < wanted:
        time.sleep(0.002)
    time.sleep(rng.uniform(0, 0.01))  # anywhere in a round or a checkpoint


def _rounds(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0
