"""Accuracy against bytes: 6 methods, 5 codecs, 2 tasks, 3 seeds, as Markdown tables.

    python scripts/accuracy_by_bytes.py

The tables of docs/notebook/bytes.md. Half an hour on a busy core.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import fedax
from fedax import codecs

ROUNDS, COHORT, SEEDS = 40, 10, 3
LOCAL: dict[str, Any] = {"num_local_epochs": 2, "batch_size": 10}
METHODS: dict[str, Callable[[fedax.Model], fedax.FederatedAlgorithm]] = {
    "fedavg": lambda model: fedax.fedavg(model, 0.1, **LOCAL),
    "fedavgm": lambda model: fedax.fedavgm(model, 0.1, 0.3, momentum=0.7, **LOCAL),
    "fedadam": lambda model: fedax.fedadam(model, 0.1, 0.03, adaptivity=1e-2, **LOCAL),
    "scaffold": lambda model: fedax.scaffold(model, 0.1, **LOCAL),
    "mimelite": lambda model: fedax.mimelite(
        model, 0.03, fedax.base_optimizers.sgdm(0.7), **LOCAL
    ),
    "mime": lambda model: fedax.mime(model, 0.03, fedax.base_optimizers.sgdm(0.7), **LOCAL),
}
CODECS: dict[str, Callable[[], codecs.Codec]] = {
    "identity": codecs.identity, "qsgd(4)": lambda: codecs.qsgd(4), "eden(1)": codecs.drive,
    "top_k(0.05)": lambda: codecs.top_k(0.05), "sign": codecs.sign,
}
TASKS = {
    "digits, logistic regression": ("logistic", {}),
    "digits, MLP, by class": ("mlp", {"partition": "dirichlet(0.3)"}),
}


def row(task: fedax.Task, method: str) -> list[str]:
    """Test accuracy and kilobytes that a client uploads in a round, for each codec."""
    cells = []
    for codec in CODECS.values():
        result = fedax.sweep(
            task,
            lambda server_learning_rate, codec=codec: fedax.compressed(  # noqa: ARG005
                METHODS[method](task.model), codec()
            ),
            {"server_learning_rate": [1.0]}, num_rounds=ROUNDS, seeds=SEEDS, cohort_size=COHORT,
            evaluate_every=ROUNDS, progress=False,
        )
        metrics = result.record.metrics
        accuracy = 100 * metrics["test_accuracy"][:, -1]
        kilobytes = np.nanmean(metrics["bits_up"]) / 8000
        cells.append(f"{accuracy.mean():.1f} ± {accuracy.std(ddof=1):.1f}; {kilobytes:.2f}")
    return cells


def main() -> None:
    """Prints a table for each task."""
    start = time.perf_counter()
    for title, (model, settings) in TASKS.items():
        task = fedax.load_task("digits", model, **settings)
        print(f"## {title}\n\n| method | {' | '.join(CODECS)} |\n|---{'|---' * len(CODECS)}|")
        for method in METHODS:
            print(f"| `{method}` | {' | '.join(row(task, method))} |", flush=True)
        print()
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
