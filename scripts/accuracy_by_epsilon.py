"""Accuracy against epsilon: independent and correlated noise on two tasks, three seeds.

    python scripts/accuracy_by_epsilon.py

The tables of docs/notebook/privacy.md. MNIST must be there (`fedax data get mnist`,
`fedax data get mnist-writers`). The clipping norm and the server's learning rate are chosen from 9
pairs by validation data of seed 0, for each cell by itself; that choice is not covered by epsilon.
"""

from __future__ import annotations

import time
from typing import Any

import fedax
from fedax import privacy

ROUNDS, SEEDS, DELTA = 200, 3, 1e-5
TASKS: dict[str, tuple[str, dict[str, Any], int]] = {
    "MNIST's 539 writers, cohorts of 60": ("mnist-writers", {}, 60),
    "MNIST, 2,000 clients by Dirichlet(1), cohorts of 100": (
        "mnist", {"num_clients": 2000, "partition": "dirichlet(1)"}, 100,
    ),
}
BANDS = 8
MECHANISMS = {"independent": 1, f"{BANDS} bands": BANDS}
EPSILONS = (2.0, 8.0)
GRID = {"clip": [0.05, 0.15, 0.5], "server_learning_rate": [0.3, 1.0, 3.0]}
LOCAL: dict[str, Any] = {"batch_size": 20, "num_local_epochs": 1}


def cell(task: fedax.Task, cohort: int, noise: float, bands: int) -> str:
    """Test accuracy at the best pair, its deviation over seeds, and the pair."""

    def method(clip: float, server_learning_rate: float) -> fedax.FederatedAlgorithm:
        inner = fedax.fedavg(task.model, 0.1, server_learning_rate, **LOCAL)
        return fedax.private(
            inner, clip=clip, noise_multiplier=noise, bands=bands, horizon=ROUNDS
        )

    def swept(grid: Any, seeds: Any) -> fedax.SweepResult:
        return fedax.sweep(
            task, method, grid, num_rounds=ROUNDS, seeds=seeds, cohort_size=cohort,
            sampling="poisson", choose="validation_accuracy", progress=False,
        )

    best = swept(GRID, [0]).best()
    assert best is not None
    result = swept({name: [value] for name, value in best.values.items()}, range(1, SEEDS + 1))
    accuracy = 100 * result.record.metrics["test_accuracy"][:, -1]
    pair = " and ".join(f"{value:g}" for value in best.values.values())
    return f"{accuracy.mean():.1f} ± {accuracy.std(ddof=1):.1f} ({pair})"


def main() -> None:
    """Prints a table for each task."""
    start = time.perf_counter()
    for title, (name, settings, cohort) in TASKS.items():
        task = fedax.load_task(name, "logistic", validation=0.1, **settings)
        clients = task.train.num_clients
        print(f"## {title}\n\n| epsilon | {' | '.join(MECHANISMS)} |\n|---|---|---|", flush=True)
        print(f"| infinity | {cell(task, cohort, 0.0, 1)} | |", flush=True)
        for epsilon in EPSILONS:
            cells = []
            for bands in MECHANISMS.values():
                noise = privacy.noise_multiplier(
                    epsilon, ROUNDS, cohort_size=cohort, num_clients=clients, delta=DELTA,
                    bands=bands,
                )
                cells.append(f"{cell(task, cohort, noise, bands)}, z = {noise:.2f}")
            print(f"| {epsilon:g} | {' | '.join(cells)} |", flush=True)
        print()
    print(f"{ROUNDS} rounds, delta {DELTA:g}, FedAvg on logistic regression. "
          f"{time.perf_counter() - start:.0f} s.")


if __name__ == "__main__":
    main()
