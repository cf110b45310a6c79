"""Where a sweep of short runs spends its processor time, beside that of its local steps.

    python benchmarks/sweep.py                24 settings of 10 rounds on Shakespeare's plays
    python benchmarks/sweep.py --settings 6   fewer

Prints seconds of processor time, of all threads of this process, which other work on the machine
changes less than the time that passes. "Rounds" are the compiled rounds alone.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax

import fedax
from fedax.devices.mesh import cores_as_devices
from fedax.rounds.evaluation import Evaluator
from fedax.sweeps import batch
from fedax.tuning import sitting, training

RATES = [0.1, 0.3, 1.0, 2.0, 3.0, 3.5]
SERVER_RATES = [0.3, 1.0, 1.78, 2.5]


class Parts:
    """Seconds by part; what runs within another part counts for the inner one."""

    def __init__(self) -> None:
        self.calls = collections.defaultdict[str, list[float]](list)
        self._inner: list[float] = []

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Counts what is done meanwhile."""
        self._inner.append(0.0)
        began = time.process_time()
        try:
            yield
        finally:
            whole = time.process_time() - began
            self.calls[name].append(whole - self._inner.pop())
            if self._inner:
                self._inner[-1] += whole

    def wrap(self, owner: Any, attribute: str, name: str) -> None:
        """Counts all calls of a function, with what they start on the devices."""
        function: Callable[..., Any] = getattr(owner, attribute)

        @functools.wraps(function)
        def timed(*args: Any, **others: Any) -> Any:
            with self.part(name):
                return jax.block_until_ready(function(*args, **others))

        setattr(owner, attribute, timed)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--settings", type=int, default=24, help="at most 24, in sixes")
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    if not 1 <= arguments.settings <= len(RATES) * len(SERVER_RATES):
        parser.error(f"--settings must be between 1 and 24, but is {arguments.settings}.")
    cores_as_devices()
    parts = Parts()
    parts.wrap(batch.BatchTraining, "_step", "rounds")
    parts.wrap(batch.BatchTraining, "__init__", "beginning of units")
    parts.wrap(training, "begun", "beginning of units")
    parts.wrap(Evaluator, "per_client", "evaluation")
    parts.wrap(training, "_diverged", "untrained loss")
    for name in ("write_record", "write_results", "write_summary", "write_page"):
        parts.wrap(sitting, name, "reports")
    with parts.part("all"):
        with parts.part("data"):
            task = fedax.load_task("shakespeare", model="small")
        server_rates = SERVER_RATES[: -(-arguments.settings // len(RATES))]
        with tempfile.TemporaryDirectory() as folder:
            fedax.sweep(
                task, fedax.fedavg, {
                    "client_learning_rate": RATES, "server_learning_rate": server_rates,
                    "batch_size": 4, "num_local_epochs": 1, "num_local_steps": 20,
                    "weighting": "num_tokens",
                },
                num_rounds=arguments.rounds, cohort_size=10, out=folder, overwrite=True,
                progress=False,
            )
    print(f"{len(RATES) * len(server_rates)} settings of {arguments.rounds} rounds")
    whole = sum(sum(calls) for calls in parts.calls.values())
    # The first calls trace and compile, besides what the others do.
    for name in ("rounds", "evaluation"):
        first, *others = parts.calls[name]
        usual = sorted(others or [first])[len(others) // 2]
        parts.calls[f"compiling of {name}"] = [max(first - usual, 0.0)]
        parts.calls[name][0] = min(first, usual)
    alone = sum(parts.calls["rounds"])
    for name, calls in sorted(parts.calls.items(), key=lambda item: -sum(item[1])):
        print(f"{'rest' if name == 'all' else name:24} {sum(calls):7.2f} s in {len(calls)} calls")
    print(f"{'whole':24} {whole:7.2f} s, {whole / alone:.2f} times the rounds")


if __name__ == "__main__":
    main()
