"""Makes the gallery of docs/pictures.md from small runs on `digits`, in some minutes.

    python scripts/build_pictures.py docs/pictures
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

import fedax
from fedax import pictures
from fedax.optimizers import schedules

SEEDS = (0, 1, 2)
TRAINING: Mapping[str, Any] = {"batch_size": 10, "num_local_steps": 10}
METHODS: Mapping[str, Callable[..., Any]] = {
    "fedavg": fedax.fedavg, "fedadam": fedax.fedadam, "fedyogi": fedax.fedyogi,
}


def sweep(task: fedax.Task) -> fedax.SweepResult:
    """Three methods, each over its grid, with two seeds."""
    methods = {
        name: functools.partial(factory, **TRAINING) for name, factory in METHODS.items()
    }
    grid = {
        "client_learning_rate": [0.01, 0.03, 0.1, 0.3, 1.0, 3.0],
        "server_learning_rate": [0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0],
        "adaptivity": [1e-4, 1e-3, 1e-2, 1e-1],
    }
    return fedax.sweep(
        task, methods, grid, num_rounds=30, seeds=2, cohort_size=5, evaluate_every=0,
        progress=False,
    )


def sweep_with_marks() -> fedax.SweepResult:
    """One in which settings diverge, and the best lies at the edge."""
    task = fedax.load_task("quadratics")
    grid = {
        "client_learning_rate": [0.01, 0.03, 0.1, 0.3, 1.0, 3.0],
        "server_learning_rate": [0.003, 0.01, 0.03, 0.1],
    }
    methods = {"fedavg": functools.partial(fedax.fedavg, num_local_steps=20)}
    return fedax.sweep(
        task, methods, grid, num_rounds=100, seeds=3, cohort_size=3, evaluate_every=0,
        progress=False,
    )


def trained(task: fedax.Task, algorithms: Mapping[str, Any], num_rounds: int) -> (
    dict[str, list[fedax.History]]
):
    """Label -> the histories of its seeds, with diagnostics."""
    return {
        label: [
            fedax.train(
                task, algorithm, num_rounds=num_rounds, cohort_size=5, seed=seed, progress=False,
                evaluate_every=5, diagnostics=True,
            ).history for seed in SEEDS
        ]
        for label, algorithm in algorithms.items()
    }


def compared(model: fedax.Model) -> dict[str, fedax.FederatedAlgorithm]:
    """Label -> what the first pictures compare."""
    return {
        "FedAvg": fedax.fedavg(model, 0.1, **TRAINING),
        "FedAdam": fedax.fedadam(model, 0.1, 0.03, **TRAINING),
        "SCAFFOLD": fedax.scaffold(model, 0.1, **TRAINING),
    }


def tuned() -> dict[str, list[fedax.History]]:
    """Method -> the seeds of its best setting: what the front page compares, by the same grid."""
    task = fedax.load_task("digits")
    training = {"batch_size": 10, "num_local_epochs": 1}
    methods = {
        "FedAvg": functools.partial(fedax.fedavg, **training),
        "FedAdam": functools.partial(fedax.fedadam, **training),
        "SCAFFOLD": functools.partial(fedax.scaffold, **training),
    }
    grid = {
        "client_learning_rate": [0.03, 0.1, 0.3, 1.0],
        "FedAdam.server_learning_rate": [0.01, 0.03, 0.1],
    }
    found = fedax.sweep(
        task, methods, grid, num_rounds=60, seeds=5, cohort_size=5, evaluate_every=5,
        progress=False,
    )
    best = pictures.best_of(found.record, found.choice)
    return {label.partition(" ")[0]: histories for label, histories in best.items()}


def front() -> Axes:
    """The picture of README.md and of the site's front page, legible at a telephone's width."""
    figure = Figure(figsize=(5.4, 3.1), layout="constrained")
    return pictures.curves(tuned(), "test_accuracy", axes=figure.subplots())


def gallery() -> Iterator[tuple[str, Axes]]:
    """Each picture with its name."""
    yield "front", front()
    task = fedax.load_task("digits", model="logistic")
    runs = trained(task, compared(task.model), 60)
    yield "curves", pictures.curves(runs, smoothing=5)
    yield "accuracy", pictures.curves(runs, "test_accuracy", against="bytes")
    yield "drift", pictures.drift(runs, smoothing=5)
    by_rate = {
        f"client learning rate {rate:g}": fedax.fedavg(task.model, rate, **TRAINING)
        for rate in (0.01, 0.1, 1.0)
    }
    yield "update-norms", pictures.update_norms(trained(task, by_rate, 60), window=5)
    decaying = fedax.local_update_decay(
        lambda client_rate, server_rate: fedax.fedavg(
            task.model, client_rate, server_rate, batch_size=10,
            num_local_steps=schedules.exponential_decay(20, 0.97),
        ),
        task.model, 0.1, 1.0, client_decay=0.3, window=5, patience=5, cooldown=5,
    )
    yield "rates", pictures.rates(trained(task, {"LocalUpdateDecay": decaying}, 60))
    result = fedax.train(
        task, fedax.fedavg(task.model, 0.1, **TRAINING), num_rounds=30, cohort_size=5,
        progress=False,
    )
    yield "clients", pictures.clients(fedax.evaluate_clients(task.model, result.params, task.train))
    found = sweep(task)
    for method in ("fedavg", "fedyogi"):
        yield f"heat-map-{method}", pictures.heat_map(*found, algorithm=method)
    yield "best-server-rate", pictures.best_server_rate(*found)
    yield "adaptivity", pictures.adaptivity(*found)
    yield "heat-map-marks", pictures.heat_map(*sweep_with_marks())


def main(folder: Path) -> None:
    """Writes the gallery."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, axes in gallery():
        figure: Any = axes.figure
        figure.savefig(folder / f"{name}.png", dpi=130 if name == "front" else 80)
        print(name, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
