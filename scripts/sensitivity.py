"""Test accuracy by setting for each method on `digits`: docs/notebook/sensitivity.csv.

    python scripts/sensitivity.py docs/notebook/sensitivity.csv           # all, some 15 minutes
    python scripts/sensitivity.py docs/notebook/sensitivity.csv fedavg    # only some

What the file has already is not measured again.

20 clients of few labels, 5 of them a round, batches of 10, 10 local steps, 60 rounds, 3 seeds. A
method's rates are tried as a full grid; then, at the pair of rates that was best, each other
setting alone. The pages of the methods on the site show it.
"""

from __future__ import annotations

import csv
import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import fedax
from fedax.algorithms import registry
from fedax.optimizers.base_optimizers import sgdm

ROUNDS, SEEDS, COHORT = 60, 3, 5
TRAINING: Mapping[str, Any] = {"batch_size": 10, "num_local_steps": 10}
RATES = {
    "client_learning_rate": [0.001, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0],
    "server_learning_rate": [0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0],
    "slow_weights_step": [0.1, 0.3, 0.5, 1.0, 1.5, 2.0, 3.0],
}
OTHERS = {
    "momentum": [0.0, 0.5, 0.9, 0.97], "adaptivity": [1e-5, 1e-4, 1e-3, 1e-2, 1e-1],
    "second_moment_decay": [0.9, 0.99, 0.999], "final_scale": [0.1, 1.0, 10.0],
    "proximal_weight": [0.001, 0.01, 0.1, 1.0, 10.0], "steps_decay": [0.95, 0.98, 0.99, 1.0],
    "client_decay": [0.95, 0.98, 0.99, 1.0], "momentum_weight": [0.01, 0.1, 0.3, 1.0],
    "elasticity": [0.0, 0.25, 0.5, 1.0], "sensitivity_decay": [0.5, 0.9, 0.95, 0.99],
    "server_decay": [0.8, 0.9, 0.95, 1.0], "window": [3, 5, 10], "patience": [5, 10, 20],
    "cooldown": [0, 5, 20], "threshold": [1e-4, 1e-2, 1e-1], "variance": [0.1, 1.0, 10.0],
    "prior_variance": [0.1, 1.0, 10.0], "num_local_steps": [1, 3, 10, 30],
    "batch_size": [1, 3, 10, 30],
    "dampening": [0.0, 0.5, 0.9], "initial_accumulator": [0.0, 1e-6, 1e-4, 1e-2, 1.0],
    "bound_rate": [1e-4, 1e-3, 1e-2, 1e-1], "mass": [0.1, 1.0, 10.0], "num_sweeps": [1, 3, 10],
    "held_out_fraction": [0.05, 0.1, 0.3, 0.5], "bias_correction": ["none", "standard", "released"],
    "control_option": ["I", "II"], "gradient_weights": ["all", "last"],
    "sensitivity": ["momentum", "average"], "output": ["logits", "softmax"],
    "rule": ["paper", "released"],
    "q": [0.01, 0.1, 1.0, 5.0], "tilt": [-1.0, 0.1, 1.0, 5.0], "epsilon": [1e-4, 1e-3, 1e-2, 1e-1],
    "mixture_learning_rate": [0.001, 0.01, 0.1], "convexity": [0.01, 0.1, 1.0, 10.0],
    "communication_probability": [0.03, 0.1, 0.3, 1.0], "version": ["I", "II"],
}
PENALTIES = ("fedprox", "feddyn", "fedadmm")
DECAY = "local_update_decay"  # by name, over local_update, with windows that fit a short run
PLATEAU = {**TRAINING, "window": 5, "patience": 10, "cooldown": 5}
COLUMNS = ["method", "varied", *RATES, "value", "seed", "diverged", "test_accuracy"]
Row = dict[str, Any]


def with_momentum(factory: Callable[..., Any]) -> Callable[..., Any]:
    """A relative of Mime with the momentum of its base as a setting."""

    def build(
        model: fedax.Model, client_learning_rate: float = 0.1, server_learning_rate: float = 1.0,
        momentum: float = 0.9, num_local_steps: Any = 10, batch_size: Any = 10,
    ) -> fedax.FederatedAlgorithm:
        return factory(
            model, client_learning_rate, sgdm(momentum), server_learning_rate,
            batch_size=batch_size, num_local_steps=num_local_steps,
        )

    return build


def server_only(
    model: fedax.Model, server_learning_rate: float = 0.1, momentum: float = 0.9
) -> fedax.FederatedAlgorithm:
    """Server-only with the momentum of its base as a setting."""
    return fedax.server_only(model, server_learning_rate, sgdm(momentum))


def elastic(
    model: fedax.Model, client_learning_rate: float = 0.1, server_learning_rate: float = 1.0,
    elasticity: float = 0.5, sensitivity_decay: float = 0.95, held_out_fraction: float = 0.1,
    sensitivity: Any = "momentum", output: Any = "logits",
) -> fedax.FederatedAlgorithm:
    """Elastic aggregation over FedAvg."""
    inner = fedax.fedavg(model, client_learning_rate, server_learning_rate, **TRAINING)
    return fedax.elastic(
        inner, model, elasticity, sensitivity_decay, held_out_fraction, sensitivity, output
    )


def method(name: str) -> Callable[..., Any]:
    """(model, **settings) -> algorithm."""
    own = {"server_only": server_only, "elastic": elastic}
    if name in own:
        return own[name]
    factory = registry.ALGORITHMS[name].factory
    if name in ("mime", "mimelite", "cmime"):
        return with_momentum(factory)
    fixed: dict[str, Any] = dict(TRAINING)
    if name == "minibatch_sgd":
        fixed["num_local_steps"] = 1
    if name == "maml":
        fixed["num_local_steps"] = 2
    if name == "pfnm":
        fixed["labels"] = "y"
    return functools.partial(factory, **fixed)


def runs(name: str, what: str, grid: Mapping[str, Any]) -> list[Row]:
    """The rows of one sweep."""
    task = fedax.load_task("digits", "mlp" if name == "pfnm" else "logistic")
    methods: Any = [f"{DECAY}+local_update"] if name == DECAY else {name: method(name)}
    fixed = PLATEAU if name == DECAY else {}
    result = fedax.sweep(
        task, methods, {**fixed, **grid}, num_rounds=ROUNDS, seeds=SEEDS, cohort_size=COHORT,
        evaluate_every=ROUNDS, progress=False,
    )
    record, rows = result.record, []
    for run, accuracy in enumerate(record.metrics["test_accuracy"][:, -1]):
        fixed = {key: value for key, value in grid.items() if not isinstance(value, list)}
        values = {**fixed, **record.settings[record.setting[run]].values}
        diverged = bool(record.diverged[run])
        rows.append({
            "method": name, "varied": what,
            **{key: f"{values[key]:g}" for key in RATES if key in values},
            "value": "" if what == "rates" else _short(values[what]),
            "seed": int(record.seed[run]),
            "diverged": int(diverged), "test_accuracy": "" if diverged else f"{accuracy:.4f}",
        })
    return rows


def _short(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def best(rows: list[Row]) -> dict[str, float]:
    """The rates with the highest mean accuracy of those that never diverged."""
    scores: dict[tuple[str, ...], list[float]] = {}
    for row in rows:
        pair = tuple(row.get(key, "") for key in RATES)
        accuracy = -np.inf if int(row["diverged"]) else float(row["test_accuracy"])
        scores.setdefault(pair, []).append(accuracy)
    top = max(scores, key=lambda pair: np.mean(scores[pair]))
    return {key: float(value) for key, value in zip(RATES, top, strict=True) if value}


def measured(name: str, known: list[Row]) -> list[Row]:
    """The rows of a method that are not known."""
    has = {*RATES, *PLATEAU, "client_decay", "server_decay", "threshold", "rule"} - {
        *TRAINING, "slow_weights_step"
    }
    if name != DECAY:
        has = set(inspect.signature(method(name)).parameters)
    there = {row["varied"] for row in known}
    rows = [] if "rates" in there else runs(
        name, "rates", {key: values for key, values in RATES.items() if key in has}
    )
    rates = best([row for row in [*known, *rows] if row["varied"] == "rates"])
    for what, values in OTHERS.items():
        fixed = name == "minibatch_sgd" and what == "num_local_steps"
        alike = what == "proximal_weight" and name not in PENALTIES
        few = name == "maml" and what == "num_local_steps"  # backward through all of them
        if what in has - there and not fixed and not alike:
            rows += runs(name, what, {**rates, what: [1, 2, 5] if few else values})
    return rows


def main(path: Path, names: list[str]) -> None:
    """Adds the rows of methods to a file."""
    if not path.exists():
        path.write_text(",".join(COLUMNS) + "\n", "utf-8")
    with path.open(encoding="utf-8") as file:
        known = list(csv.DictReader(file))
    # Of these the wrapped method's settings are varied; codecs are compared by
    # scripts/accuracy_by_bytes.py, robust means by scripts/attacks.py.
    others = {"attacked", "compressed", "robust"}
    every = [*registry.ALGORITHMS, *(name for name in registry.WRAPPERS if name not in others)]
    for name in names or every:
        rows = measured(name, [row for row in known if row["method"] == name])
        with path.open("a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, COLUMNS, lineterminator="\n").writerows(rows)
        print(name, len(rows), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
