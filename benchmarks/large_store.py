"""How long a large store takes to open, how long its cohorts take, and in how much memory.

    python benchmarks/large_store.py make FOLDER --clients 342477 --examples 10000000 --width 64
    python benchmarks/large_store.py read FOLDER --cohort 50
    python benchmarks/large_store.py train FOLDER --rounds 200 --cohort 50

`make` writes uint8 rows [width] and labels; `read` opens the store, then draws and gathers
cohorts; `train` runs FedAvg with logistic regression. The last two print the seconds and the
process's peak memory, of which pages of the mapped files are a part.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import fedax
from fedax.data import CohortReader, StoreWriter, open_store
from fedax.rounds.sampling import sample_cohort


def make(folder: Path, clients: int, examples: int, width: int, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    ends = np.sort(rng.choice(np.arange(1, examples), clients - 1, replace=False))
    sizes = np.diff(np.concatenate([[0], ends, [examples]]))
    with StoreWriter(folder) as writer:
        for index, size in enumerate(sizes):
            x = rng.integers(0, 256, (size, width), np.uint8)
            y = (x[:, 0] > 127).astype(np.int32)
            writer.append(f"client_{index:08d}", {"x": x, "y": y})
        writer.finish()


def read(folder: Path, cohort: int, rounds: int) -> None:
    began, before = time.perf_counter(), time.process_time()
    data = open_store(folder)
    print(f"opened {data!r} in {time.perf_counter() - began:.3f} s, processor "
          f"{time.process_time() - before:.3f} s, {peak():,.0f} MiB")
    began = time.perf_counter()
    reader = CohortReader(data, resident_bytes=0)
    print(f"reader in {time.perf_counter() - began:.3f} s")
    seconds, processor = [], []
    for number in range(rounds):
        began, before = time.perf_counter(), time.process_time()
        found = reader(sample_cohort(0, number, data.num_clients, cohort))
        next(iter(found.arrays.values())).block_until_ready()
        seconds.append(time.perf_counter() - began)
        processor.append(time.process_time() - before)
    print(f"{rounds} cohorts of {cohort}: median {1000 * statistics.median(seconds):.2f} ms, "
          f"processor {1000 * statistics.median(processor):.2f} ms, "
          f"95% below {1000 * float(np.quantile(seconds, 0.95)):.2f} ms; {peak():,.0f} MiB")


def train(folder: Path, cohort: int, rounds: int) -> None:
    data = open_store(folder)
    width = data.arrays["x"].shape[1]
    model = fedax.classification(
        init=lambda _: {"w": jnp.zeros((width, 2))},
        apply=lambda params, x: (x.astype(jnp.float32) / 255 - 0.5) @ params["w"],
    )
    began = time.perf_counter()
    result = fedax.train(
        fedax.Task(model, data), fedax.fedavg(model, 0.1, batch_size=32), num_rounds=rounds,
        cohort_size=cohort, evaluate_every=0,
    )
    seconds = result.history["seconds"]
    print(f"{rounds} rounds of {cohort} in {time.perf_counter() - began:.1f} s; a round "
          f"{1000 * statistics.median(seconds[rounds // 10:]):.1f} ms (median), "
          f"{1000 * statistics.fmean(seconds[rounds // 10:]):.1f} ms (mean); {peak():,.0f} MiB")


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("make", "read", "train"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--clients", type=int, default=342_477)
    parser.add_argument("--examples", type=int, default=10_000_000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--cohort", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=200)
    asked = parser.parse_args()
    if asked.what == "make":
        make(asked.folder, asked.clients, asked.examples, asked.width)
    else:
        {"read": read, "train": train}[asked.what](asked.folder, asked.cohort, asked.rounds)


if __name__ == "__main__":
    main()
