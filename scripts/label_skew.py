"""Seven methods on MNIST and Fashion-MNIST with few labels a client: docs/notebook/label-skew.md.

    python scripts/label_skew.py mnist logistic >> docs/notebook/label-skew.jsonl  # one panel
    python scripts/label_skew.py table docs/notebook/label-skew.jsonl              # the tables

A panel first tries each method's rates (`RATES`) with one seed and takes those whose model ends
with the smallest loss on 10,000 of all clients' training images; then it trains with three other
seeds, which deal the images anew too. The convolutional network's rates are tried on MNIST, and its
panel on Fashion-MNIST takes them: python scripts/label_skew.py fashion-mnist cnn MNIST.jsonl
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import fedax
from fedax.data.folder import load_dataset
from fedax.optimizers.base_optimizers import sgdm

Row = dict[str, Any]
Rows = list[Row]

SEEDS = (1, 2, 3)
# Model -> rounds, and the most local steps of a client in a round (None: an epoch).
LENGTH = {"logistic": (100, None), "mlp": (50, None), "cnn": (20, 5)}
TRAINING: Mapping[str, Any] = {"batch_size": 20, "num_local_epochs": 1}

# Method -> its factory, and the values that are tried: client rates, then server rates.
RATES: dict[str, tuple[Callable[..., Any], dict[str, tuple[float, ...]]]] = {
    "FedAvg": (fedax.fedavg, {"client_learning_rate": (0.03, 0.1, 0.3)}),
    "FedAvgM": (
        fedax.fedavgm,
        {"client_learning_rate": (0.03, 0.1, 0.3), "server_learning_rate": (0.1, 0.3, 1.0)},
    ),
    "FedAdam": (
        fedax.fedadam,
        {"client_learning_rate": (0.03, 0.1, 0.3), "server_learning_rate": (0.003, 0.01, 0.03)},
    ),
    "FedYogi": (
        fedax.fedyogi,
        {"client_learning_rate": (0.03, 0.1, 0.3), "server_learning_rate": (0.003, 0.01, 0.03)},
    ),
    "SCAFFOLD": (fedax.scaffold, {"client_learning_rate": (0.03, 0.1, 0.3)}),
    "MimeLite": (
        lambda model, **options: fedax.mimelite(model, base=sgdm(0.9), **options),
        {"client_learning_rate": (0.03, 0.1, 0.3)},
    ),
    "Elastic": (
        lambda model, client_learning_rate, **options: fedax.elastic(
            fedax.fedavg(model, client_learning_rate, **options), model
        ),
        {"client_learning_rate": (0.03, 0.1, 0.3)},
    ),
}


def training_sample(dataset: str) -> fedax.FederatedDataset:
    """Training images of all clients together, on which rates are compared."""
    arrays = load_dataset(dataset).train.arrays
    rows = np.sort(np.random.default_rng(0).choice(len(arrays["y"]), 10_000, replace=False))
    chosen = {name: np.asarray(array[rows]) for name, array in arrays.items()}
    return fedax.FederatedDataset(chosen, np.array([0, len(rows)]))


def trained(
    task: fedax.Task, sample: fedax.FederatedDataset, method: str, rates: Mapping[str, float],
    model: str, seed: int,
) -> dict[str, float]:
    """What a run came to: its model's loss on the sample, its accuracy on all test images."""
    rounds, most_steps = LENGTH[model]
    options = {**TRAINING, **({"num_local_steps": most_steps} if most_steps else {})}
    start = time.perf_counter()
    try:
        result = fedax.train(
            task, RATES[method][0](task.model, **rates, **options), num_rounds=rounds,
            cohort_size=10, seed=seed, evaluate_every=rounds, progress=False,
        )
    except fedax.DivergedError:
        return {
            "loss": np.inf, "accuracy": np.nan, "seconds": round(time.perf_counter() - start, 2)
        }
    return {
        "loss": float(fedax.evaluate(task.model, result.params, sample)["loss"]),
        "accuracy": float(result.history["test_accuracy"][-1]),
        "seconds": round(time.perf_counter() - start, 2),
    }


def grid(method: str) -> Iterator[dict[str, float]]:
    """The rates that are tried."""
    values = RATES[method][1]
    for chosen in itertools.product(*values.values()):
        yield dict(zip(values, chosen, strict=True))


def panel(dataset: str, model: str, known: Rows) -> Iterator[dict[str, Any]]:
    """The rows of a data set and a model: each trial, then each seed with the best rates."""
    sample = training_sample(dataset)
    tasks = {seed: fedax.load_task(dataset, model, partition_seed=seed) for seed in (0, *SEEDS)}
    for method in RATES:
        what = {"dataset": dataset, "model": model, "method": method}

        def run(rates: Mapping[str, float], seed: int, what: dict[str, str] = what) -> Row:
            found = trained(tasks[seed], sample, what["method"], rates, model, seed)
            return {**what, "rates": rates, "seed": seed, **found}

        trials = [
            row for row in known
            if (row["model"], row["method"], row["seed"]) == (model, method, 0)
        ]
        for rates in () if trials else grid(method):
            trials.append(run(rates, 0))
            yield trials[-1]
        best = min((row for row in trials if np.isfinite(row["loss"])), key=lambda row: row["loss"])
        for seed in SEEDS:
            yield run(best["rates"], seed)


def page(rows: Rows) -> str:
    """The tables in Markdown."""
    runs: dict[tuple[str, str], dict[str, Rows]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row["seed"]:
            runs[row["dataset"], row["model"]][row["method"]].append(row)
    lines = []
    for (dataset, model), methods in runs.items():
        rounds, steps = LENGTH[model]
        local = f"at most {steps} local steps" if steps else "one local epoch"
        lines += [
            f"\n### {dataset}, {model}: {rounds} rounds, {local}\n",
            "| method | client rate | server rate | training loss | test accuracy |",
            "|---|---|---|---|---|",
        ]
        for method, found in methods.items():
            cells = [_rate(method, found[0]["rates"], key)
                     for key in ("client_learning_rate", "server_learning_rate")]
            loss, accuracy = ([row[key] for row in found] for key in ("loss", "accuracy"))
            if not np.isfinite(loss).all():
                cells += [f"{np.sum(~np.isfinite(loss))} of {len(loss)} diverged", ""]
            else:
                cells += [f"{np.mean(loss):.3f} ± {np.std(loss, ddof=1):.3f}"]
                cells += [f"{100 * np.mean(accuracy):.1f} ± {100 * np.std(accuracy, ddof=1):.1f}"]
            lines.append(f"| {' | '.join([method, *cells])} |")
    return "\n".join(lines)


def _rate(method: str, rates: Mapping[str, float], key: str) -> str:
    """A rate, with a star if it is the smallest or largest that was tried."""
    if key not in rates:
        return ""
    tried = RATES[method][1][key]
    return f"{rates[key]:g}" + "\\*" * (rates[key] in (tried[0], tried[-1]))


def read(path: str) -> Rows:
    """The rows of a file of results."""
    return [json.loads(line) for line in Path(path).read_text("utf-8").splitlines()]


def main(words: list[str]) -> None:
    if words[0] == "table":
        print(page(read(words[1])))
        return
    dataset, model, *others = words
    known = [row for path in others for row in read(path)]
    for row in panel(dataset, model, known):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
