"""What a run came to, and what no user may see."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

# What is never said to a user.
NOISE = re.compile(
    r"Traceback|bug in fedax|Check failure|terminate called|Segmentation|^[EF]\d{4} |Warning:",
    re.MULTILINE,
)
# Letters that command a terminal, or that show text as other than it is.
UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
SUITE = Path(__file__).resolve().parents[1]
REPOSITORY = SUITE.parent


class FoundError(AssertionError):
    """The attack has found something; the message says what was done and what came of it."""


def results(folder: Path) -> dict[str, object]:
    """All that a run computed, to the bit, without what a clock measured."""
    lines = (folder / "metrics.jsonl").read_text("utf-8").splitlines()
    found: dict[str, object] = {
        "metrics": [
            {key: value for key, value in json.loads(line).items() if "seconds" not in key}
            for line in lines
        ],
    }
    newest = max((folder / "checkpoints").glob("round-????????"))
    with np.load(newest / "state.npz") as arrays:
        found |= {name: arrays[name].tobytes() for name in arrays.files}
    for path in [*newest.glob("*.npy"), *newest.glob("*.safetensors"), folder / "clients.csv"]:
        if path.exists():
            found[path.name] = path.read_bytes()
    final = json.loads((folder / "summary.json").read_text("utf-8"))["final"]
    return found | {"final": {k: v for k, v in final.items() if "seconds" not in k}}


def require_equal(folder: Path, expected: dict[str, object], what: str) -> None:
    """Raises FoundError unless the run's results are the expected ones."""
    found = results(folder)
    different = [name for name in expected | found if expected.get(name) != found.get(name)]
    if different:
        raise FoundError(f"{what}: {', '.join(different)} differ from the run left alone.")


def require_sentence(status: int | None, errors: str, what: str) -> None:
    """Raises FoundError unless a command succeeded in silence or failed with one sentence."""
    if status not in (0, 1, 2) or NOISE.search(errors):
        raise FoundError(f"{what}: status {status}, and it said: {errors[-2000:]}")
    said = [line for line in errors.splitlines() if line.startswith("fedax: ")]
    if (status == 0 and said) or (status != 0 and len(said) != 1):
        raise FoundError(f"{what}: status {status} with {len(said)} sentences: {errors[-2000:]}")


@contextlib.contextmanager
def limits(seconds: float, megabytes: float, what: str) -> Iterator[None]:
    """Raises FoundError if the block takes longer, or more memory than there was at its start."""

    def late(*_: object) -> None:
        raise FoundError(f"{what}: not done after {seconds} s.")

    before = signal.signal(signal.SIGALRM, late)
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    taken = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held) / 1024
    if taken > megabytes:
        raise FoundError(f"{what}: took {taken:.0f} MB, more than {megabytes}.")


def environment(cache: Path) -> dict[str, str]:
    """Of a command in a process of its own, whose kept programs are attacked with it."""
    path = os.pathsep.join([str(SUITE), *filter(None, sys.path)])
    ours = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    return ours | {"PYTHONPATH": path, "XDG_CACHE_HOME": str(cache), "JAX_PLATFORMS": "cpu"}
