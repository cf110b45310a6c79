"""100,000 clients' own models of 10,000 parameters: trained, resumed, evaluated; time and memory.

    python benchmarks/personal_models.py FOLDER --clients 100000 --cohort 1000

Ditto's clients each keep a model of 100 x 100 numbers, 4 GB in all. The script trains every client
once, in one run and in one that is stopped after half of the rounds and continued; compares all
clients' states to the bit; and measures all own models. It prints seconds and memory: the peak of
the process, of which pages of the mapped file of states are a part, and of its own (anonymous)
pages.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedax
from fedax.data import StoreWriter, open_store

WIDTH, EXAMPLES = 100, 4


def make(folder: Path, clients: int) -> None:
    """Clients with uint8 rows [WIDTH] and one of WIDTH labels."""
    rng = np.random.default_rng(0)
    with StoreWriter(folder) as writer:
        for index in range(clients):
            x = rng.integers(0, 256, (EXAMPLES, WIDTH), np.uint8)
            writer.append(f"client_{index:08d}", {"x": x, "y": x.argmax(1).astype(np.int32)})
        writer.finish()


def digest(state: fedax.TrainingState, clients: int) -> str:
    """Of all clients' states and the server's."""
    found = hashlib.sha256()
    for first in range(0, clients, 1000):
        for leaf in jax.tree.leaves(state.client_store.read(np.arange(first, first + 1000))):
            found.update(np.ascontiguousarray(leaf).tobytes())
    for leaf in jax.tree.leaves(state.server_state):
        found.update(np.asarray(leaf).tobytes())
    return found.hexdigest()


class OwnPages(threading.Thread):
    """Watches the process's anonymous pages, the most of which is `peak`, in MiB."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0.0

    def run(self) -> None:
        while True:
            for line in Path("/proc/self/status").read_text().splitlines():
                if line.startswith("RssAnon"):
                    self.peak = max(self.peak, int(line.split()[1]) / 1024)
            time.sleep(0.02)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--cohort", type=int, default=1000)
    asked = parser.parse_args()
    clients, cohort = asked.clients, asked.cohort
    own = OwnPages()
    own.start()
    if not asked.folder.exists():
        make(asked.folder, clients)
    data = open_store(asked.folder)
    model = fedax.classification(
        init=lambda key: {"w": 0.1 * jax.random.normal(key, (WIDTH, WIDTH))},
        apply=lambda params, x: (x.astype(jnp.float32) / 255 - 0.5) @ params["w"],
    )
    task = fedax.Task(model, data, data)
    algorithm = fedax.ditto(model, 0.1, attraction=0.1, batch_size=EXAMPLES)
    rounds = clients // cohort
    order = np.random.default_rng(1).permutation(clients).reshape(rounds, cohort)
    found: dict[str, Any] = {"clients": clients, "parameters": WIDTH * WIDTH, "cohort": cohort}

    def measured(what: str, work: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        result = work()
        found[f"{what}_seconds"] = round(time.perf_counter() - began, 1)
        found[f"{what}_peak_mib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        found[f"{what}_own_pages_mib"], own.peak = round(own.peak), 0.0
        print(json.dumps(found), flush=True)
        return result

    def taking_turns(seed: int, round_index: int) -> np.ndarray:
        del seed
        return order[round_index]

    def train(last: int, state: fedax.TrainingState | None = None) -> fedax.TrainingState:
        return fedax.train(
            task, algorithm, num_rounds=last, cohort_size=cohort, evaluate_every=0, state=state,
            sampling=taking_turns,
        ).state

    def whole_run() -> tuple[str, fedax.ClientMetrics]:
        state = measured("train", lambda: train(rounds))
        found["stored"] = len(state.client_store)
        own_models = measured(
            "evaluate", lambda: fedax.evaluate_own_models(task, algorithm, state)
        )
        return digest(state, clients), own_models

    expected, metrics = whole_run()
    assert metrics.before is not None
    found["own_accuracy"] = round(metrics.overall()["accuracy"], 4)
    found["server_accuracy"] = round(metrics.before.overall()["accuracy"], 4)
    folder = asked.folder.parent / f"{asked.folder.name}-run"

    def resumed(last: int) -> fedax.TrainingState:
        return fedax.train(
            task, algorithm, num_rounds=last, cohort_size=cohort, evaluate_every=0,
            sampling=taking_turns, out=folder, checkpoint_every=rounds, progress=False,
        ).state

    measured("first_half", lambda: len(resumed(rounds // 2).client_store))
    again = measured("second_half", lambda: resumed(rounds))
    found["resumed_to_the_bit"] = digest(again, clients) == expected
    print(json.dumps(found))


if __name__ == "__main__":
    main()
