"""Orderings that papers claim, tried on data available here: docs/notebook/orderings.md.

    python scripts/orderings.py            # those that are missing
    python scripts/orderings.py ditto      # this one, again
    python scripts/orderings.py --page     # only writes the page

`ORDERINGS` in `ordering_claims` has the criteria. They were committed before any of them was run.
Results are kept in docs/notebook/orderings.jsonl.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import fedax
from board import known, loaded
from board_tasks import NOTEBOOK, SEEDS, TUNING_SEED
from ordering_claims import AFTERWARDS, ORDERINGS, SECOND_STAGE, THIRD_STAGE
from ordering_parts import Condition, Found, Ordering, Setting, Side, Trained, over_rounds

RESULTS, PAGE = NOTEBOOK / "orderings.jsonl", NOTEBOOK / "orderings.md"
NUM_SETTINGS = 6
# The method that a paper has ahead must be ahead by this in the mean, in the metric's units.
LEAST = {"accuracy": 0.005, "rounds": 1.0, "objective": 1e-4, "bytes": 1.0}


def settings(side: Side) -> list[Setting]:
    """The settings that are tried."""
    return [
        dict(zip(side.grid, values, strict=True))
        for values in itertools.product(*side.grid.values())
    ]


def trained(one: Ordering, side: Side, task: fedax.Task, setting: Setting, seed: int) -> Found:
    """What a run comes to; NaN if it diverged."""
    options = {**one.board.training, **setting}
    algorithm = side.make(task.model, **options)
    with warnings.catch_warnings():  # of settings that do not train, which are among those tried
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            result = fedax.train(
                task, algorithm, num_rounds=one.board.rounds, cohort_size=one.board.cohort,
                seed=seed, evaluate_every=1 if side.measure is over_rounds else 0, progress=False,
            )
        except fedax.DivergedError:
            return diverged(one)
    return side.measure(Trained(task, algorithm, result, setting, one.board.target))


def diverged(one: Ordering) -> Found:
    """What a run that diverged comes to."""
    return {condition.metric: float("nan") for condition in one.conditions}


def found_of(one: Ordering, side: Side) -> dict[str, Any]:
    """Tunes a side on validation data, and runs the best setting on test data."""

    def tasks(seed: int) -> Iterator[fedax.Task]:
        made = loaded(one.board._replace(load=functools.partial(
            one.board.load, partition_seed=seed
        )))
        changed = (one.change(task, seed) for task in made)
        return (task._replace(model=side.model(task.model)) for task in changed)

    metric, higher = one.conditions[0].metric, one.conditions[0].higher
    _, validating = tasks(TUNING_SEED)
    options = settings(side)
    scores = np.array([
        trained(one, side, validating, setting, TUNING_SEED)[metric] for setting in options
    ])
    lost = np.isnan(scores).all()
    best = None if lost else options[int(np.nanargmax(scores if higher else -scores))]
    runs = [
        diverged(one) if best is None else trained(one, side, next(tasks(seed)), best, seed)
        for seed in SEEDS
    ]
    return {
        "method": side.name, "best": best, "tried": len(options),
        "diverged": int(np.isnan(scores).sum()),
        "values": {c.metric: [
            None if np.isnan(run[c.metric]) else run[c.metric] for run in runs
        ] for c in one.conditions},
    }


def run(name: str) -> dict[str, Any]:
    """The result of an ordering."""
    one, began = ORDERINGS[name], time.perf_counter()
    sides = [found_of(one, side) for side in (one.first, one.second)]
    return {
        "task": "ordering", "method": name, "sides": sides,
        "seconds": round(time.perf_counter() - began, 1), "fedax": fedax.__version__,
    }


def ahead(condition: Condition, row: Mapping[str, Any]) -> np.ndarray:
    """By how much the first method is ahead, seed by seed."""
    first, second = (np.array(side["values"][condition.metric], float) for side in row["sides"])
    return first - second if condition.higher else second - first


def verdict(name: str, row: Mapping[str, Any]) -> str:
    """Agrees, disagrees or inconclusive; see the page."""
    held, reversed_ = [], []
    for condition in ORDERINGS[name].conditions:
        by = ahead(condition, row)
        least = LEAST[condition.unit]
        if condition.most_behind is not None:
            held.append(bool(by.mean() >= -condition.most_behind))
            reversed_.append(bool(by.mean() < -condition.most_behind))
        else:
            held.append(bool((by > 0).all() and by.mean() >= least))
            reversed_.append(bool((by < 0).all() and by.mean() <= -least))
    return "agrees" if all(held) else "disagrees" if any(reversed_) else "inconclusive"


def page(rows: Sequence[Mapping[str, Any]]) -> str:
    """The page."""
    found = {row["method"]: row for row in rows}
    counts = [verdict(name, row) for name, row in found.items()]
    said = ", ".join(
        f"{counts.count(word)} {word}" for word in ("agrees", "disagrees", "inconclusive")
    ) if counts else "none was run yet"
    lines = [
        "# Orderings that papers claim\n",
        "See whether a method is ahead of the one that its paper compares it with, on small data. "
        f"These are no replications: data and models differ from the papers'. So far: {said}, of "
        f"{len(ORDERINGS)}; {len(ORDERINGS) - len(found)} not run. To run one again: `python "
        "scripts/orderings.py NAME`.\n",
        f"- Both methods have {NUM_SETTINGS} settings. The best is chosen on validation data, a "
        f"tenth of each client's examples, with seed {TUNING_SEED}, by the first metric of the "
        f"claim. The three seeds {', '.join(map(str, SEEDS))} deal the data and draw the model "
        "and the cohorts anew; test data are a fifth of each client's examples.",
        "- *Agrees*: in every metric that should be ahead, the first method is ahead with all "
        f"three seeds, and in the mean by at least {100 * LEAST['accuracy']:g} points of accuracy, "
        f"{LEAST['rounds']:g} round or {LEAST['objective']:g} of the objective. *Disagrees*: it is "
        "behind in one of them with all three seeds and by that in the mean, or further behind in "
        "another metric than the claim allows. Otherwise *inconclusive*; so is a run that "
        "diverged.",
        "- Criteria and settings were committed before the first run. The board was known by then: "
        "on it all of the first 11 methods except FedNova and IFCA had a higher accuracy than "
        "FedAvg on another division of the digits.",
        f"- The {len(SECOND_STAGE)} that were inconclusive on the digits have a second stage on "
        "MNIST with the same criteria and settings, committed after the first stage and before its "
        "own runs.",
        f"- The claims of {', '.join(f'`{name}`' for name in THIRD_STAGE)} were added when the "
        "others were known, with criteria committed before their own runs.",
    ]
    lines.append(
        "- FedBN has its ordering in a test, with a margin committed before: on two domains own "
        "models are ahead of FedAvg's with averaged statistics by 52 to 62 points (`pytest -m slow "
        "tests/test_statistics.py -k two_domains`; [log](log.md))."
    )
    for name, one in ORDERINGS.items():
        lines += [f"\n## {name}\n", *section(name, one, found.get(name))]
    return "\n".join(lines) + "\n"


def section(name: str, one: Ordering, row: Mapping[str, Any] | None) -> Iterator[str]:
    """A claim, its criterion and its result."""
    yield f"- **Claim**: {one.claim} ({one.paper})."
    yield f"- **Data**: {one.board.words}."
    criteria = "; ".join(
        f"{c.metric} {'higher' if c.higher else 'lower'}" if c.most_behind is None
        else f"{c.metric} at most {100 * c.most_behind:g} points behind" for c in one.conditions
    )
    yield f"- **Criterion**: `{one.first.name}` beside `{one.second.name}`: {criteria}."
    tried = " and ".join(
        f"{side.name} with " + " by ".join(
            f"{key} {', '.join(f'{value:g}' for value in values)}"
            for key, values in side.grid.items()
        ) for side in (one.first, one.second)
    )
    yield f"- **Settings**: {tried}."
    if row is None:
        yield "- **Verdict**: not run."
        return
    yield f"- **Verdict**: **{verdict(name, row)}**.\n"
    metrics = [c.metric for c in one.conditions]
    yield f"| method | best setting | diverged | {' | '.join(metrics)} |"
    yield f"|---|---|---{'|---' * len(metrics)}|"
    for side in row["sides"]:
        best = ", ".join(f"{key} {value:g}" for key, value in (side["best"] or {}).items())
        values = " | ".join(
            ", ".join("diverged" if v is None else f"{v:.4g}" for v in side["values"][m])
            for m in metrics
        )
        yield f"| {side['method']} | {best} | {side['diverged']} of {side['tried']} | {values} |"
    if name in AFTERWARDS:
        yield f"\nTried afterwards: {AFTERWARDS[name]}"


def main(words: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(ORDERINGS))
    parser.add_argument("--page", action="store_true", help="only write the page")
    parser.add_argument("--file", type=Path, default=RESULTS)
    asked = parser.parse_args(words)
    if unknown := set(asked.names) - set(ORDERINGS):
        parser.error(f"no such ordering: {', '.join(sorted(unknown))}.")
    there = {row["method"] for row in known(asked.file)}
    missing = [name for name in ORDERINGS if name not in there]
    for name in [] if asked.page else asked.names or missing:
        row = run(name)
        with asked.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(name, verdict(name, row), json.dumps(row["sides"]), flush=True)
    PAGE.write_text(page(known(asked.file)), "utf-8")


if __name__ == "__main__":
    main()
