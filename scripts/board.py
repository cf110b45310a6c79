"""Every method on four tasks, tuned by one rule: docs/notebook/board.md.

    python scripts/board.py train digits                     # the cells of a task that are missing
    python scripts/board.py train digits fedadam scaffold    # these alone, again
    python scripts/board.py train digits my_methods.fedmine  # a method of your own, as a row more
    python scripts/board.py table                            # writes docs/notebook/board.md

A cell is a method on a task. A method of your own is MODULE.FUNCTION; the function takes the model
and `client_learning_rate`, and what else of `TRAINING` and `server_learning_rate` it has. Cells
are kept in docs/notebook/board.jsonl, or in the file of --file.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import inspect
import itertools
import json
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import fedax
from fedax.algorithms import registry
from fedax.optimizers.base_optimizers import sgdm

NOTEBOOK = Path(__file__).resolve().parent.parent / "docs" / "notebook"
CELLS, PAGE = NOTEBOOK / "board.jsonl", NOTEBOOK / "board.md"
TUNING_SEED, SEEDS = 0, (1, 2, 3)
EVALUATIONS = 20
# A setting whose accuracy is so near to the best one's is as good: ease of tuning.
NEAR = 0.02
NUM_RATES, NUM_OTHERS = 4, 3
NUM_SETTINGS = NUM_RATES * NUM_OTHERS

# What is recorded of a run that diverged.
DIVERGED = {"accuracy": None, "worst_tenth": None, "rounds": None, "own": False}

Cell = dict[str, Any]
Build = Callable[..., fedax.FederatedAlgorithm]


class Board(NamedTuple):
    """A task of the board.

    Attributes:
      load: loads the task.
      rounds, cohort: of every run.
      training: local training.
      rate: of clients that plain SGD bears; all grids lie around it.
      target: accuracy to be reached, fixed before the board was run. Four cells of digits with
        logistic regression had been tried by then.
      words: the task in a sentence.
    """

    load: Callable[..., fedax.Task]
    rounds: int
    cohort: int
    training: Mapping[str, Any]
    rate: float
    target: float
    words: str


TASKS = {
    "digits": Board(
        functools.partial(fedax.load_task, "digits", "mlp"), 60, 5,
        {"batch_size": 10, "num_local_steps": 10}, 0.3, 0.8,
        "1,797 digits of 8 x 8 dealt to 20 clients by Dirichlet(0.1), an MLP 64-64-10, 5 clients "
        "a round, 10 local steps with batches of 10, 60 rounds",
    ),
    "mnist-writers": Board(
        functools.partial(fedax.load_task, "mnist-writers", "mlp"), 100, 20,
        {"batch_size": 20, "num_local_epochs": 1}, 0.3, 0.88,
        "MNIST by the 539 persons who wrote it, an MLP 784-200-200-10, 20 persons a round, one "
        "local epoch with batches of 20, 100 rounds",
    ),
    "cifar10": Board(
        functools.partial(
            fedax.load_task, "cifar10", "cnn", preprocessing="plain", num_clients=100,
            partition="dirichlet(0.3)",
        ), 100, 10, {"batch_size": 20, "num_local_steps": 20}, 0.03, 0.4,
        "CIFAR-10 dealt to 100 clients by Dirichlet(0.3), a CNN, 10 clients a round, 20 local "
        "steps with batches of 20, 100 rounds",
    ),
    "shakespeare": Board(
        functools.partial(fedax.load_task, "shakespeare", "small"), 200, 10,
        {"batch_size": 4, "num_local_epochs": 1, "num_local_steps": 20}, 3.16, 0.35,
        "the roles of 37 plays, next characters by the small LSTM, 10 roles a round, at most 20 "
        "local steps with batches of 4, 200 rounds",
    ),
}

_SERVER = "server_learning_rate"
_PLAIN, _ADAPTIVE = (0.316, 1.0, 3.16), (0.00316, 0.01, 0.0316)
# Method -> the setting beside the client rate that is tuned, and its values.
OTHERS: Mapping[str, tuple[str, Sequence[Any]]] = {
    "adaalter": ("adaptivity", (0.01, 0.1, 1.0)),
    "afl": ("mixture_learning_rate", (0.001, 0.01, 0.1)),
    "apfl": ("mixture", (0.25, 0.5, 0.75)),
    "cmime": ("momentum", (0.0, 0.9, 0.99)),
    "ditto": ("attraction", (0.01, 0.1, 1.0)),
    "elastic": ("elasticity", (0.25, 0.5, 1.0)),
    "fedac": ("convexity", (0.1, 1.0, 10.0)),
    "fedadabound": (_SERVER, _ADAPTIVE),
    "fedadagrad": (_SERVER, (0.0316, 0.1, 0.316)),
    "fedadam": (_SERVER, _ADAPTIVE),
    "fedadmm": ("proximal_weight", (0.01, 0.1, 1.0)),
    "fedamsgrad": (_SERVER, _ADAPTIVE),
    "fedavgm": (_SERVER, (0.1, 0.316, 1.0)),
    "feddyn": ("proximal_weight", (0.01, 0.1, 1.0)),
    "fedexp": ("epsilon", (0.0001, 0.001, 0.01)),
    "fedprox": ("proximal_weight", (0.01, 0.1, 1.0)),
    "fedrep": ("num_head_steps", (5, 10, 20)),
    "fedyogi": (_SERVER, _ADAPTIVE),
    "fomaml": (_SERVER, (1.0, 3.16, 10.0)),
    "ifca": ("num_clusters", (2, 3, 4)),
    "lookahead": ("slow_weights_step", (0.5, 1.0, 1.5)),
    "mime": ("momentum", (0.0, 0.9, 0.99)),
    "mimelite": ("momentum", (0.0, 0.9, 0.99)),
    "mimemvr": ("momentum_weight", (0.03, 0.1, 0.3)),
    "perfedavg": ("inner_learning_rate", (0.01, 0.03, 0.1)),
    "pfedme": ("attraction", (1.0, 5.0, 15.0)),
    "qfedavg": ("q", (0.1, 1.0, 5.0)),
    "scaffnew": ("communication_probability", (0.1, 0.3, 1.0)),
    "term": ("tilt", (0.1, 1.0, 5.0)),
}
# Of the client rates that plain SGD bears: Adam's are smaller.
SCALES = {"local_adam": 0.1, "adaalter": 0.3}
# What no row of its own can be made of, and why.
LEFT_OUT = {
    "centralised": "it is no federated method",
    "fedopt": "its server's optimizer is any",
    "fedsgd": "it is FedAvg with a schedule",
    "maml": "its second-order gradient goes through two local steps only",
    "local_update": "it is FedAvg's update of gradients' sums",
    "minibatch_sgd": "it takes no local steps",
    "pfnm": "it matches the neurons of MLPs only",
    "server_only": "it takes no local steps",
}
WRAPPED = ("elastic", "personal")


def names() -> list[str]:
    """The rows of the library's own methods."""
    return [name for name in registry.ALGORITHMS if name not in LEFT_OUT] + list(WRAPPED)


def build(name: str, board: Board, task: fedax.Task) -> Build:
    """(client_learning_rate, other=value) -> the algorithm."""
    training = board.training

    def wrapped(client_learning_rate: float, **other: Any) -> fedax.FederatedAlgorithm:
        if name == "elastic":
            inner = fedax.fedavg(task.model, client_learning_rate, **training)
            return fedax.elastic(inner, task.model, **other)
        inner = fedax.fedavg(task.model, client_learning_rate, **other, **training)
        return fedax.personal(inner, task.model, where=last_array(task.model))

    if name in WRAPPED:
        return wrapped
    if "." in name:
        module, _, function = name.rpartition(".")
        factory = getattr(importlib.import_module(module), function)
    else:
        factory = registry.ALGORITHMS[name].factory
    fixed: dict[str, Any] = dict(training)
    if name == "fedrep":
        fixed["where"] = last_array(task.model)

    def of(client_learning_rate: float, **other: Any) -> fedax.FederatedAlgorithm:
        momentum = other.pop("momentum", None)
        base = {} if momentum is None else {"base": sgdm(momentum)}
        return factory(
            task.model, client_learning_rate=client_learning_rate, **other, **base, **fixed
        )

    return of


def last_array(model: fedax.Model) -> str:
    """The path of the last layer, which personal heads are."""
    leaves = jax.tree_util.tree_leaves_with_path(model.init(jax.random.key(0)))
    return jax.tree_util.keystr(leaves[-1][0][:1], simple=True)


def settings(name: str, board: Board) -> list[dict[str, Any]]:
    """The settings of a method that are tried, NUM_SETTINGS of them."""
    rate = board.rate * SCALES.get(name, 1.0)
    if name in OTHERS:
        key, values = OTHERS[name]
    elif name in WRAPPED or "." in name or _SERVER in inspect.signature(
        registry.ALGORITHMS[name].factory
    ).parameters:
        key, values = _SERVER, _PLAIN
    else:  # one number alone
        steps = np.logspace(-1.5, 1, NUM_SETTINGS)
        return [{"client_learning_rate": float(f"{rate * step:.3g}")} for step in steps]
    steps = np.logspace(-1, 0.5, NUM_RATES)
    return [
        {"client_learning_rate": float(f"{rate * step:.3g}"), key: value}
        for step, value in itertools.product(steps, values)
    ]


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
    board: Board, task: fedax.Task, algorithm: fedax.FederatedAlgorithm, seed: int
) -> dict[str, Any]:
    """A run's metrics, of clients' own models where the method has such; None if it diverged."""
    with warnings.catch_warnings():  # of settings that do not train, which are among those tried
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            result = fedax.train(
                task, algorithm, num_rounds=board.rounds, cohort_size=board.cohort, seed=seed,
                evaluate_every=board.rounds // EVALUATIONS, progress=False,
            )
        except fedax.DivergedError:
            return DIVERGED
    prefix = "test_own_" if "test_own_accuracy" in result.test else "test_"
    curve = [
        (index + 1, metrics[f"{prefix}accuracy"])
        for index, metrics in enumerate(result.history.rounds) if f"{prefix}accuracy" in metrics
    ]
    reached = [number for number, accuracy in curve if accuracy >= board.target]
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
        trained(board, validating, make(**one), TUNING_SEED)["accuracy"] for one in options
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
        print(name, _accuracy(found), found["best"], flush=True)


def page(cells: Sequence[Cell]) -> str:
    """The tables."""
    lines = ["# Board\n", *introduction(cells)]
    for name, board in TASKS.items():
        own = [one for one in cells if one["task"] == name]
        if own:
            lines += [f"\n## {name}\n", f"{board.words[0].upper()}{board.words[1:]}.\n", *rows(own)]
    return "\n".join(lines) + "\n"


def introduction(cells: Sequence[Cell]) -> Iterator[str]:
    """What was done, in sentences."""
    missing = [name for name in TASKS if name not in {one["task"] for one in cells}]
    yield (
        "Look up how the methods of fedax compare on the same task, each tuned in the same way. "
        "To run a cell again: `python scripts/board.py train TASK METHOD`; for a method of your "
        "own as a row more: `python scripts/board.py train TASK my_methods.fedmine`.\n"
    )
    yield (
        f"- Each method has {NUM_SETTINGS} settings: {NUM_RATES} client rates, half a decade "
        f"apart, by {NUM_OTHERS} values of one other setting (`OTHERS` in the script), or "
        f"{NUM_SETTINGS} client rates if it has no other. The best is that with the highest "
        f"accuracy on validation data, a tenth of each client's examples, with seed {TUNING_SEED}."
    )
    yield (
        f"- Accuracies are on a fifth of each client's examples, after training with the best "
        f"setting, mean and sample standard deviation over seeds {', '.join(map(str, SEEDS))}. "
        "Methods with models of the clients' own are measured by these (*own*)."
    )
    yield (
        "- *Worst tenth*: the mean of the tenth of clients with the lowest accuracy. *To the "
        "target*: rounds, and megabytes from and to all clients, until the accuracy reaches the "
        "target, in the mean over seeds; \"-\" if a seed does not. *Near*: the share of the "
        f"settings tried within {100 * NEAR:.0f} points of the best, so how easy it is to tune. "
        "*Edge* marks a value at the edge of what was tried: one beyond might be better. FOMAML's "
        "server rates were changed once after it was seen on digits, to no effect."
    )
    yield f"- Left out: {'; '.join(f'`{name}` ({why})' for name, why in LEFT_OUT.items())}."
    yield (
        "- Twelve cells of digits, drawn at random, were run again, on another machine: "
        "the same best settings, accuracies, worst tenths, rounds and bytes, to the last digit; of "
        "one method another share of settings is near the best."
    )
    if missing:
        yield f"- Not run yet: {', '.join(missing)}."


def rows(cells: Sequence[Cell]) -> Iterator[str]:
    """A task's table, the best first."""
    target = TASKS[cells[0]["task"]].target
    yield (
        f"| method | accuracy, % | worst tenth, % | rounds to {100 * target:g}% | MB to it | near "
        "| diverged | best setting |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for one in sorted(cells, key=_worst_last):
        reached = None not in one["rounds"]
        rounds = np.mean(one["rounds"]) if reached else None
        best = ", ".join(
            f"{key} {value:g}{' (edge)' * at_edge(one, key)}"
            for key, value in (one["best"] or {}).items()
        )
        yield "| " + " | ".join([
            one["method"] + (" (own)" if one["own"] else ""),
            _accuracy(one), _spread(one["worst_tenth"]),
            "-" if rounds is None else f"{rounds:.0f}",
            "-" if rounds is None else f"{rounds * one['bytes_a_round'] / 1e6:.3g}",
            f"{100 * one['near']:.0f}%", f"{one['diverged']} of {one['tried']}", best,
        ]) + " |"


def at_edge(one: Cell, key: str) -> bool:
    """Whether the best value of a setting is the least or the most that was tried."""
    if "." in one["method"]:
        return False  # a user's method, which need not be there
    tried = [setting[key] for setting in settings(one["method"], TASKS[one["task"]])]
    return one["best"][key] in (min(tried), max(tried))


def _worst_last(one: Cell) -> float:
    """By what rows are sorted; those that diverged with a seed are the last."""
    return np.inf if None in one["accuracy"] else -np.mean(one["accuracy"])


def _accuracy(one: Cell) -> str:
    """The accuracy, or what diverged."""
    if one["best"] is None:
        return "all settings diverged"
    lost = one["accuracy"].count(None)
    return f"{lost} of {len(SEEDS)} seeds diverged" if lost else _spread(one["accuracy"])


def _spread(values: Sequence[float | None]) -> str:
    if None in values:
        return ""
    found = 100 * np.array(values, float)
    return f"{found.mean():.1f} ± {found.std(ddof=1):.1f}"


def main(words: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("what", choices=["train", "table"])
    parser.add_argument("task", nargs="?", choices=list(TASKS))
    parser.add_argument("methods", nargs="*")
    parser.add_argument("--file", type=Path, default=CELLS)
    asked = parser.parse_args(words)
    if asked.what == "table":
        PAGE.write_text(page(known(asked.file)), "utf-8")
    elif asked.task is None:
        parser.error(f"train needs a task: {', '.join(TASKS)}.")
    else:
        train(asked.file, asked.task, asked.methods)


if __name__ == "__main__":
    main()
