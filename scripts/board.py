"""Every method on four tasks, tuned by one rule: docs/notebook/board.md.

    python scripts/board.py train digits                     # the cells of a task that are missing
    python scripts/board.py train digits fedadam scaffold    # these alone, again
    python scripts/board.py train digits my_methods.fedmine  # a method of your own, as a row more
    python scripts/board.py again                            # cells drawn at random, again
    python scripts/board.py table                            # writes docs/notebook/board.md

A cell is a method on a task. A method of your own is MODULE.FUNCTION of the current folder; the
function takes the model and `client_learning_rate`, and may take `server_learning_rate`,
`batch_size` and `num_local_steps`. Cells are kept in docs/notebook/board.jsonl, or in the file of
--file, and those that `again` runs in board-again.jsonl.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

import fedax
from board_page import accuracy_of, page
from board_tasks import (
    AGAIN,
    CELLS,
    EVALUATIONS,
    FIXED,
    NEAR,
    NUM_AGAIN,
    PAGE,
    SEEDS,
    TASKS,
    TUNING_SEED,
    WRAPPED,
    Board,
    Cell,
    factory_of,
    names,
    scaled_to,
    settings,
    takes,
)
from fedax.optimizers.base_optimizers import sgdm

# What is recorded of a run that diverged.
DIVERGED = {"accuracy": None, "worst_tenth": None, "rounds": None, "own": False}
Build = Callable[..., fedax.FederatedAlgorithm]


def build(name: str, board: Board, task: fedax.Task) -> Build:
    """(client_learning_rate=gamma, other=value) -> the algorithm."""
    training = board.training

    def wrapped(client_learning_rate: float, **other: Any) -> fedax.FederatedAlgorithm:
        if name == "elastic":
            inner = fedax.fedavg(task.model, client_learning_rate, **training)
            return fedax.elastic(inner, task.model, **other)
        inner = fedax.fedavg(task.model, client_learning_rate, **other, **training)
        return fedax.personal(inner, task.model, where=last_array(task.model))

    if name in WRAPPED:
        return wrapped
    factory = factory_of(name)
    fixed: dict[str, Any] = {**training, **{
        key: scaled_to(name, board, key, value) for key, value in FIXED.get(name, {}).items()
    }}
    if name == "fedrep":
        fixed["where"] = last_array(task.model)
    elif "." in name:  # a user's method may have no such options
        fixed = {key: value for key, value in fixed.items() if takes(factory, key)}

    def of(**setting: Any) -> fedax.FederatedAlgorithm:
        momentum = setting.pop("momentum", None)
        base = {} if momentum is None else {"base": sgdm(momentum)}
        return factory(task.model, **setting, **base, **fixed)

    return of


def last_array(model: fedax.Model) -> str:
    """The path of the last layer, which personal heads are."""
    leaves = jax.tree_util.tree_leaves_with_path(model.init(jax.random.key(0)))
    return jax.tree_util.keystr(leaves[-1][0][:1], simple=True)


def loaded(board: Board) -> tuple[fedax.Task, fedax.Task]:
    """The task with each client's examples divided in training, validation and test data.

    Returns:
      The task with test data, and with validation data in their place.
    """
    task = board.load()
    train, validation, test = task.train.split(0.2, validation=0.1)
    made = fedax.Task(task.model, train, test, task.name)
    return made, made._replace(test=validation)


def trained(
    board: Board, task: fedax.Task, algorithm: fedax.FederatedAlgorithm, seed: int, *,
    curve: bool = True,
) -> dict[str, Any]:
    """A run's metrics, of clients' own models where the method has such; None if it diverged.

    Without `curve` they are measured at the end only.
    """
    with warnings.catch_warnings():  # of settings that do not train, which are among those tried
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            result = fedax.train(
                task, algorithm, num_rounds=board.rounds, cohort_size=board.cohort, seed=seed,
                evaluate_every=board.rounds // EVALUATIONS if curve else None, progress=False,
            )
        except fedax.DivergedError:
            return DIVERGED
    prefix = "test_own_" if "test_own_accuracy" in result.test else "test_"
    points = [
        (index + 1, metrics[f"{prefix}accuracy"])
        for index, metrics in enumerate(result.history.rounds) if f"{prefix}accuracy" in metrics
    ]
    reached = [number for number, accuracy in points if accuracy >= board.target]
    return {
        "accuracy": result.test[f"{prefix}accuracy"],
        "worst_tenth": result.test.get(f"{prefix}worst_tenth_accuracy"),
        "rounds": reached[0] if reached else None,
        "own": prefix == "test_own_",
    }


def cell(name: str, task_name: str) -> Cell:
    """Tunes a method on a task, and trains it with the best setting."""
    board, began = TASKS[task_name], time.perf_counter()
    task, validating = loaded(board)
    make, options = build(name, board, task), settings(name, board)
    scores = np.array([  # NaN where a setting diverged
        trained(board, validating, make(**one), TUNING_SEED, curve=False)["accuracy"]
        for one in options
    ], float)
    lost = bool(np.isnan(scores).all())
    best = None if lost else options[int(np.nanargmax(scores))]
    algorithm = make(**(best or options[0]))
    sent = fedax.communication(algorithm, task.model, task.train.client_at(0))
    runs = [DIVERGED if lost else trained(board, task, algorithm, seed) for seed in SEEDS]
    return {
        "task": task_name, "method": name, "best": best, "tried": len(options),
        "diverged": int(np.isnan(scores).sum()),
        "near": 0.0 if lost else float(np.mean(scores >= np.nanmax(scores) - NEAR)),
        "bytes_a_round": board.cohort * (sent.bytes_down + sent.bytes_up),
        **{key: [run[key] for run in runs] for key in ("accuracy", "worst_tenth", "rounds")},
        "own": any(run["own"] for run in runs), "seconds": round(time.perf_counter() - began, 1),
        "fedax": fedax.__version__,
    }


def known(path: Path) -> list[Cell]:
    """The cells of a file, of each the newest."""
    if not path.exists():
        return []
    cells = map(json.loads, path.read_text("utf-8").splitlines())
    return list({(one["task"], one["method"]): one for one in cells}.values())


def train(path: Path, task_name: str, chosen: Sequence[str]) -> None:
    """Adds cells to a file."""
    there = {one["method"] for one in known(path) if one["task"] == task_name}
    for name in chosen or [name for name in names() if name not in there]:
        found = cell(name, task_name)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(found) + "\n")
        print(name, accuracy_of(found), found["best"], flush=True)


def again(path: Path) -> None:
    """Runs cells of a file again, drawn at random among all tasks."""
    cells = known(path)
    drawn = np.random.default_rng(TUNING_SEED).permutation(len(cells))[:NUM_AGAIN]
    there = {(one["task"], one["method"]) for one in known(AGAIN)}
    for one in (cells[index] for index in drawn):
        if (one["task"], one["method"]) not in there:
            train(AGAIN, one["task"], [one["method"]])


def main(words: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("what", choices=["train", "again", "table"])
    parser.add_argument("task", nargs="?", choices=list(TASKS))
    parser.add_argument("methods", nargs="*")
    parser.add_argument("--file", type=Path, default=CELLS)
    asked = parser.parse_args(words)
    if asked.what == "table":
        PAGE.write_text(page(known(asked.file), known(AGAIN)), "utf-8")
    elif asked.what == "again":
        again(asked.file)
    elif asked.task is None:
        parser.error(f"train needs a task: {', '.join(TASKS)}.")
    else:
        train(asked.file, asked.task, asked.methods)


if __name__ == "__main__":
    main()
