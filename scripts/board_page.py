"""The page of the board's cells, docs/notebook/board.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from board_tasks import (
    LEFT_OUT,
    NEAR,
    NUM_OTHERS,
    NUM_RATES,
    NUM_SETTINGS,
    SEEDS,
    TASKS,
    TUNING_SEED,
    Cell,
    settings,
)


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
