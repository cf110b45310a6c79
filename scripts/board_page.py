"""The page of the board's cells, docs/notebook/board.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from board_tasks import (
    LEFT_OUT,
    NEAR,
    NUM_AGAIN,
    NUM_OTHERS,
    NUM_RATES,
    NUM_SETTINGS,
    SEEDS,
    TASKS,
    TUNING_SEED,
    Cell,
    names,
    settings,
)


def page(cells: Sequence[Cell], again: Sequence[Cell] = ()) -> str:
    """The tables, and the cells that were run again."""
    lines = ["# Board\n", *introduction(cells), "\n## All tasks\n", *overview(cells)]
    for name, board in TASKS.items():
        own = [one for one in cells if one["task"] == name]
        if own:
            lines += [f"\n## {name}\n", f"{board.words[0].upper()}{board.words[1:]}.\n", *rows(own)]
    if again:
        lines += ["\n## Run again\n", *rerun(cells, again)]
    return "\n".join(lines) + "\n"


def introduction(cells: Sequence[Cell]) -> Iterator[str]:
    """What was done, in sentences."""
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
        "server rates were changed once after it was seen on digits, to no effect; AdaAlter's "
        "rates were tied to the task's after it was seen on the plays (32.9% with those of digits)."
    )
    yield (
        "- Grids lie around a client rate that FedAvg bears on each task, found before with a few "
        "runs, which the log and the script list; on mnist-writers three rows of longer runs were "
        "known, too. Of weights of proximal terms the product with that rate is the same on all "
        "tasks. Grids and targets were committed before the runs shown."
    )
    yield f"- Left out: {'; '.join(f'`{name}` ({why})' for name, why in LEFT_OUT.items())}."
    yield (
        "- One seed tunes, so methods that are a few points apart may owe it to their setting. "
        "`fedavg`, `local_sgd` and `fednova` are the same update here, where all clients take as "
        "many steps, with a server rate that is tuned or 1: what their rows differ by is what "
        "tuning by one seed costs."
    )
    yield (
        "- Twelve cells, drawn at random, were run again on another kind of processor ([run "
        "again](#run-again)). With the settings of the first time all twelve are within their "
        "spread. Tuned again, three took other settings, as several are nearly level on the "
        "validation data of one seed, where rounding decides. One of the three left its spread: "
        "FedProx on the plays has 41.7 ± 0.4% with the rate 9.99, 0.08 points ahead of 3.16 on "
        "validation data, and 42.6 ± 0.2% with 3.16 again. In 0.27.0 the best settings, "
        "accuracies, rounds and bytes of twelve cells of digits were the same to the last digit; "
        "of another, SCAFFOLD on digits, single images differed (98.1 ± 0.8% for 98.1 ± 1.1%)."
    )
    missing = [text for name in TASKS if (text := _missing(name, cells))]
    if missing:
        yield f"- Not run yet: {'; '.join(missing)}."


def _missing(task: str, cells: Sequence[Cell]) -> str:
    """A task of which rows are missing, and which, unless all are; "" if none is."""
    there = {one["method"] for one in cells if one["task"] == task}
    absent = [name for name in names() if name not in there]
    if not absent or not there:
        return f"all of {task}" if absent else ""
    return f"of {task} {', '.join(f'`{name}`' for name in absent)}"


def overview(cells: Sequence[Cell]) -> Iterator[str]:
    """A table over all tasks: each method's rank and its distance from the best."""
    tasks = [name for name in TASKS if any(one["task"] == name for one in cells)]
    places = {task: _places([one for one in cells if one["task"] == task]) for task in tasks}
    found: dict[str, dict[str, str]] = {}
    ranks: dict[str, list[float]] = {}
    for one in cells:
        method, rank = one["method"], places[one["task"]][one["method"]]
        best = min(_worst_last(other) for other in cells if other["task"] == one["task"])
        found.setdefault(method, {})[one["task"]] = _place(one, rank, best)
        ranks.setdefault(method, []).append(rank / len(places[one["task"]]))
    yield (
        "Rank by accuracy, and points of accuracy behind the best. Methods with the most tasks are "
        "first, and of these the ones ahead on average. An empty cell has not been run. On "
        "mnist-writers own models of persons who never took part are as at first, which counts "
        "against methods of which only these are evaluated.\n"
    )
    yield f"| method | {' | '.join(tasks)} |"
    yield f"|---|{'---|' * len(tasks)}"
    own = {one["method"] for one in cells if one["own"]}
    for method in sorted(
        found, key=lambda name: (-len(ranks[name]), np.mean(ranks[name]), name)
    ):
        label = method + (" (own)" if method in own else "")
        yield f"| {label} | {' | '.join(found[method].get(task, '') for task in tasks)} |"


def _places(cells: Sequence[Cell]) -> dict[str, int]:
    """The rank of each method on a task; the same accuracy is the same rank."""
    keys = sorted(map(_worst_last, cells))
    return {one["method"]: 1 + keys.index(_worst_last(one)) for one in cells}


def _place(one: Cell, rank: int, best: float) -> str:
    """A cell of the table over all tasks."""
    if None in one["accuracy"]:
        return "diverged"
    return f"{rank} ({100 * (best - _worst_last(one)):+.1f})" if rank > 1 else "1"


def rerun(cells: Sequence[Cell], again: Sequence[Cell]) -> Iterator[str]:
    """The cells that were drawn at random and run again, beside the first time."""
    first = {(one["task"], one["method"]): one for one in cells}
    yield (
        f"`python scripts/board.py again` draws {NUM_AGAIN} cells of all tasks. *Within its "
        "spread*: the means differ by at most the larger standard deviation.\n"
    )
    yield "| task | method | accuracy, % | again, % | within its spread | same setting |"
    yield "|---|---|---|---|---|---|"
    for one in again:
        before = first.get((one["task"], one["method"]))
        if before is None:
            continue  # of another file's cells
        same = "yes" if one["best"] == before["best"] else "no"
        yield (
            f"| {one['task']} | {one['method']} | {accuracy_of(before)} | {accuracy_of(one)} | "
            f"{_within(before, one)} | {same} |"
        )


def _within(before: Cell, one: Cell) -> str:
    pair = [before["accuracy"], one["accuracy"]]
    if any(None in values for values in pair):
        return "yes" if pair[0] == pair[1] else "no"
    apart, spread = abs(np.diff(np.mean(pair, 1))[0]), np.std(pair, axis=1, ddof=1).max()
    return "yes" if apart <= spread else "no"


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
            accuracy_of(one), _spread(one["worst_tenth"]),
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


def accuracy_of(one: Cell) -> str:
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
