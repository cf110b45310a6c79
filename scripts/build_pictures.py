"""Makes the gallery of docs/pictures.md from small runs on `digits`, in some minutes.

    python scripts/build_pictures.py docs/pictures
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

import fedax
from fedax import pictures
from fedax.optimizers import schedules
from fedax.sweeps.grid import settings_of
from fedax.sweeps.record import Record

SEEDS = (0, 1, 2)
CLIENT_RATES = [0.01, 0.03, 0.1, 0.3, 1.0, 3.0]
SERVER_RATES = [0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0]
TRAINING: Mapping[str, Any] = {"batch_size": 10, "num_local_steps": 10}
METHODS: Mapping[str, Callable[..., Any]] = {
    "fedavg": fedax.fedavg, "fedadam": fedax.fedadam, "fedyogi": fedax.fedyogi,
}


def rounds_of(task: fedax.Task, algorithm: Any, seed: int, num_rounds: int, **options: Any) -> (
    list[dict[str, float]]
):
    """The rounds of a run, up to one in which it diverges."""
    rounds = []
    try:
        for report in fedax.simulate(
            task, algorithm, num_rounds=num_rounds, cohort_size=5, seed=seed, **options
        ):
            rounds.append(report.metrics)
    except fedax.DivergedError:
        pass
    return rounds


def sweep(task: fedax.Task, num_rounds: int) -> Record:
    """Three methods, each over its grid, with two seeds."""
    rates = {"client_learning_rate": CLIENT_RATES, "server_learning_rate": SERVER_RATES}
    adaptive = rates | {"adaptivity": [1e-4, 1e-3, 1e-2, 1e-1]}
    settings = settings_of({"fedavg": rates, "fedadam": adaptive, "fedyogi": adaptive})
    runs = [(setting, seed) for setting in settings for seed in SEEDS[:2]]
    losses = np.full((len(runs), num_rounds), np.nan)
    for row, (setting, seed) in enumerate(runs):
        algorithm = METHODS[setting.algorithm](task.model, **setting.values, **TRAINING)
        rounds = rounds_of(task, algorithm, seed, num_rounds, evaluate_every=0)
        losses[row, : len(rounds)] = [metrics["train_loss"] for metrics in rounds]
    done = np.isfinite(losses).sum(1)
    return Record(
        settings, np.array([setting.number for setting, _ in runs]),
        np.array([seed for _, seed in runs]), np.where(done < num_rounds, done + 1, 0), done,
        {"train_loss": losses},
    )


def trained(task: fedax.Task, algorithms: Mapping[str, Any], num_rounds: int) -> (
    dict[str, list[fedax.History]]
):
    """Label -> the histories of its seeds, with diagnostics."""
    return {
        label: [
            fedax.History(rounds_of(
                task, algorithm, seed, num_rounds, evaluate_every=5, diagnostics=True
            )) for seed in SEEDS
        ]
        for label, algorithm in algorithms.items()
    }


def gallery() -> Iterator[tuple[str, Axes]]:
    """Each picture with its name."""
    task = fedax.load_task("digits", model="logistic")
    runs = trained(task, {
        "FedAvg": fedax.fedavg(task.model, 0.1, **TRAINING),
        "FedAdam": fedax.fedadam(task.model, 0.1, 0.03, **TRAINING),
        "SCAFFOLD": fedax.scaffold(task.model, 0.1, **TRAINING),
    }, 60)
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
    record = sweep(task, 30)
    yield "heat-map", pictures.heat_map(record, algorithm="fedavg")
    yield "heat-map-fedyogi", pictures.heat_map(record, algorithm="fedyogi")
    yield "best-server-rate", pictures.best_server_rate(record)
    yield "adaptivity", pictures.adaptivity(record)


def main(folder: Path) -> None:
    """Writes the gallery."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, axes in gallery():
        axes.figure.savefig(folder / f"{name}.png", dpi=80)
        print(name, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
