"""The measurements of a method's settings in docs/notebook, as Markdown.

No number is typed: each is computed from the runs.
"""

from __future__ import annotations

import csv
import functools
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

NOTEBOOK = Path(__file__).parent.parent / "docs" / "notebook"
GOOD = 0.05  # a setting is good within this share of the best score, as in a sweep's summary
# Methods whose server model is not all that they train: its accuracy says little about settings.
OWN_MODELS = ("apfl", "ditto", "fedrep", "ifca", "perfedavg", "personal", "pfedme")
# File -> what its test data are.
MAPS = {
    "plays": "Shakespeare's plays after 50 rounds",
    "mnist": "MNIST with Dirichlet(0.1) labels after 50 rounds",
}
SWEEPS = {"servers": 200, "clients": 200, "mime": 100}  # of the preset quick -> rounds
PANELS = {  # as docs/notebook/label-skew.jsonl calls them
    "FedAvg": "fedavg", "FedAvgM": "fedavgm", "FedAdam": "fedadam", "FedYogi": "fedyogi",
    "SCAFFOLD": "scaffold", "MimeLite": "mimelite", "Elastic": "elastic",
}
RATES = ("client_learning_rate", "server_learning_rate", "slow_weights_step")


class Run(NamedTuple):
    """A row of a sweep's `results.csv`."""

    setting: dict[str, float]
    rounds: int
    diverged: bool
    score: float
    last: dict[str, float]


def _number(text: str) -> float:
    return float(text) if text else np.nan


@functools.cache
def _sweep(name: str) -> dict[str, list[list[Run]]]:
    """Method -> the runs of each of its settings, a list of seeds."""
    with (NOTEBOOK / name).open(newline="", encoding="utf-8") as lines:
        header, *rows = csv.reader(lines)
    seed = header.index("seed")  # settings come before it, results after
    found: dict[str, dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        told = dict(zip(header[seed:], row[seed:], strict=True))
        found[row[1]][row[0]].append(Run(
            {key: float(value) for key, value in zip(header[2:seed], row[2:], strict=False)
             if value},
            int(told["rounds"]), bool(told["diverged"]), _number(told["score (train_loss)"]),
            {key: _number(told.get(key, "")) for key in ("train_loss", "test_accuracy")},
        ))
    return {method: list(settings.values()) for method, settings in found.items()}


def short(name: str) -> str:
    """A hyperparameter's name in a table's head."""
    return name.replace("_learning_rate", " rate").replace("_", " ")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def spread(values: Sequence[float], digits: int) -> str:
    """Mean and sample standard deviation."""
    mean = f"{np.mean(values):.{digits}f}"
    return f"{mean} ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else mean


def sections(method: str) -> str:
    """All measurements of a method."""
    parts = [on_digits(method), *rate_maps(method), halved(method), panels(method)]
    return "\n\n".join(part for part in parts if part)


def rate_maps(method: str) -> list[str]:
    """The method's heat maps of docs/learning-rates-*.csv."""
    return [
        text for name, words in MAPS.items()
        if (text := _rate_map(_sweep(f"learning-rates-{name}.csv").get(method, []), words))
    ]


def _rate_map(settings: list[list[Run]], words: str) -> str:
    if not settings:
        return ""
    keys = ("client_learning_rate", "server_learning_rate")
    cells = {
        (runs[0].setting[keys[0]], runs[0].setting[keys[1]]): _percent(
            [np.nan if run.diverged else run.last["test_accuracy"] for run in runs]
        )
        for runs in settings
    }
    found = best(cells)
    return (
        f"**Learning rates on {words}**: test accuracy in percent, mean over {len(settings[0])} "
        f"seeds. The best is client rate {found.at[0]:.3g} and server rate {found.at[1]:.3g}, with "
        f"{found.top:.1f}; **{found.good:.0%} of the settings** are within {GOOD:.0%} of it "
        "([all methods, and how it was measured](../notebook/learning-rates.md)).\n\n"
        + heat_map(cells, "client \\ server rate")
    )


def _percent(accuracies: Sequence[float]) -> float:
    """The mean over seeds in percent, -inf if one diverged."""
    mean = 100 * float(np.mean(accuracies))
    return mean if np.isfinite(mean) else -np.inf


# (row, column) -> score; columns are numbers, or all of them names.
Cells: TypeAlias = dict[tuple[float, Any], float]


class Best(NamedTuple):
    """The best cell of a map, its score, and the share of cells that are nearly as good."""

    at: tuple[float, float | str]
    top: float
    good: float


def best(cells: Cells) -> Best:
    """The best cell of a map of scores; a score is -inf if a run diverged."""
    at = max(cells, key=lambda pair: cells[pair])
    good = [cell >= (1 - GOOD) * cells[at] for cell in cells.values()]
    return Best(at, cells[at], float(np.mean(good)))


def heat_map(cells: Cells, corner: str) -> str:
    """Scores by row and column as a table whose cells are coloured; a row NaN has no name."""
    found = best(cells)
    worst = min(cell for cell in cells.values() if np.isfinite(cell))
    rows, columns = (sorted({pair[place] for pair in cells}) for place in (0, 1))
    heads = (x if isinstance(x, str) else f"{x:.3g}" for x in columns)
    lines = [f"<tr><th>{corner}</th>", *(f"<th>{head}</th>" for head in heads), "</tr>"]
    for y in rows:
        lines.append("<tr><th></th>" if len(rows) == 1 else f"<tr><th>{y:.3g}</th>")
        for x in columns:
            value = cells[y, x]
            if np.isfinite(value):
                share = (value - worst) / max(found.top - worst, 1e-9)
                mark = ' class="best"' if (y, x) == found.at else ""
                lines.append(f'<td{mark} style="--share: {share:.2f}">{value:.1f}</td>')
            else:
                lines.append('<td class="diverged" style="--share: 0">diverged</td>')
        lines.append("</tr>")
    return f'<div class="map"><table class="rates">{"".join(lines)}</table></div>'


@functools.cache
def _sensitivity() -> dict[str, dict[str, list[dict[str, str]]]]:
    """Method -> what was varied -> the rows of docs/notebook/sensitivity.csv."""
    found: dict[str, dict[str, list[dict[str, str]]]] = defaultdict(lambda: defaultdict(list))
    with (NOTEBOOK / "sensitivity.csv").open(newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            found[row["method"]][row["varied"]].append(row)
    return found


def varied(method: str) -> set[str]:
    """The settings that docs/notebook/sensitivity.csv varies, the rates by their names."""
    found = set()
    for what, rows in _sensitivity().get(method, {}).items():
        rates = (key for key in RATES if any(row[key] for row in rows))
        found.update(rates if what == "rates" else [what])
    return found


def on_digits(method: str) -> str:
    """How the method's accuracy on `digits` depends on each setting, from sensitivity.csv.

    Raises:
      ValueError: it was not measured.
    """
    if method == "compressed":
        return (
            "Its learning rates are those of the wrapped method. [Fewer bytes]"
            "(../guides/fewer-bytes.md) compares the codecs."
        )
    if method == "private":
        return (
            "Its learning rates are those of the wrapped method. [Differential privacy]"
            "(../guides/privacy.md) says how to choose the noise."
        )
    if method in OWN_MODELS:
        return ""
    varied = dict(_sensitivity().get(method, {}))
    if not varied:
        raise ValueError(f"sensitivity.csv lacks {method}: scripts/sensitivity.py adds it.")
    rates = varied.pop("rates")
    client = [key for key in ("client_learning_rate",) if rates[0][key]]
    server = [key for key in ("server_learning_rate", "slow_weights_step") if rates[0][key]]
    cells = _cells(rates, client if server else [], server or client)
    found = best(cells)
    names = [*client, *server]
    values = found.at if len(names) == 2 else found.at[1:]
    words = " and ".join(
        f"{short(key)} {value:g}" for key, value in zip(names, values, strict=True)
    )
    corner = " \\ ".join(map(short, names))
    seeds = len({row["seed"] for row in rates})
    ends = [
        short(key) for key, value, tried in zip(
            names, values, [{pair[place] for pair in cells} for place in (0, 1)][-len(names):],
            strict=True,
        ) if value in (min(tried), max(tried))
    ]
    verb = "is" if len(ends) == 1 else "are"
    edges = f" The best {' and '.join(ends)} {verb} at the edge of the grid." if ends else ""
    parts = [
        f"**On `digits`**: test accuracy in percent after 60 rounds, mean over {seeds} seeds "
        f"(`scripts/sensitivity.py`). The best is {words}, with {found.top:.1f}; "
        f"**{found.good:.0%} of the settings** are within {GOOD:.0%} of it.{edges}",
        heat_map(cells, corner),
    ]
    if varied:
        parts.append("At the best learning rates, one other setting varied at a time:")
    for what, rows in varied.items():
        parts.append(heat_map(_cells(rows, [], ["value"]), short(what)))
    return "\n\n".join(parts)


def _value(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _cells(
    rows: list[dict[str, str]], down: Sequence[str], across: Sequence[str]
) -> Cells:
    scores: dict[tuple[float, float | str], list[float]] = defaultdict(list)
    for row in rows:
        pair = (float(row[down[0]]) if down else 0.0, _value(row[across[0]]))
        scores[pair].append(np.nan if row["diverged"] == "1" else float(row["test_accuracy"]))
    return {pair: _percent(found) for pair, found in scores.items()}


def halved(method: str) -> str:
    """The method's settings of the sweeps for the quick preset, which gave settings up early."""
    for name, rounds in SWEEPS.items():
        settings = _sweep(f"quick-rates-{name}.csv").get(method)
        if settings:
            return _halved(settings, rounds)
    return ""


def _halved(settings: list[list[Run]], rounds: int) -> str:
    keys = sorted({key for runs in settings for key in runs[0].setting})

    def loss(runs: list[Run]) -> float:
        if any(run.diverged for run in runs):
            return np.inf
        ended = all(np.isfinite(run.score) for run in runs)
        return float(np.mean([run.score if ended else run.last["train_loss"] for run in runs]))

    order = sorted(settings, key=lambda runs: (-min(run.rounds for run in runs), loss(runs)))
    rows = []
    for runs in order:
        length, diverged = min(run.rounds for run in runs), any(run.diverged for run in runs)
        scores = [run.score for run in runs]
        ended = bool(np.isfinite(scores).all())
        last = scores if ended else [run.last["train_loss"] for run in runs]
        found = "diverged" if diverged else spread(last, 3)
        mark = "**" if runs is order[0] else ""
        cells = [f"{runs[0].setting[key]:g}" if key in runs[0].setting else "" for key in keys]
        cells += [str(length), found]
        rows.append([f"{mark}{cell}{mark}" if cell else "" for cell in cells])
    return (
        f"**Settings on Shakespeare's plays**, preset `quick`: training loss, {len(settings[0])} "
        f"seeds, in a sweep of {rounds} rounds that stopped weak settings by successive halving "
        "([how it was measured](../notebook/quick-rates.md)). For settings that ran to the end it "
        "is the mean of the last 100 rounds, for the others the loss of their last round: compare "
        "only rows with the same number of rounds.\n\n"
        + table([*map(short, keys), "rounds", "training loss"], rows)
    )


@functools.cache
def _panels() -> list[dict]:
    return [json.loads(line) for line in
            (NOTEBOOK / "label-skew.jsonl").read_text("utf-8").splitlines()]


def panels(method: str) -> str:
    """The method on clients of few labels, of docs/notebook/label-skew.jsonl."""
    rows = []
    of: dict[tuple[str, str], list[dict]] = defaultdict(list)
    for row in _panels():
        if PANELS[row["method"]] == method:
            of[row["dataset"], row["model"]].append(row)
    for (dataset, model), runs in of.items():
        final = [run for run in runs if run["seed"]]
        tried = [run["loss"] for run in runs if not run["seed"]]
        rates = ", ".join(f"{short(key)} {value:g}" for key, value in final[0]["rates"].items())
        share = ""
        if tried:
            good = sum(loss <= (1 + GOOD) * min(tried) for loss in tried)
            share = f"{good} of {len(tried)}"
        losses = [run["loss"] for run in final]
        ended = bool(np.isfinite(losses).all())
        rows.append([
            f"{dataset}, {model}", rates, share,
            spread(losses, 3) if ended
            else f"{np.sum(~np.isfinite(losses))} of {len(losses)} diverged",
            spread([100 * run["accuracy"] for run in final], 1) if ended else "",
        ])
    if not rows:
        return ""
    return (
        "**Clients of few labels** ([how it was measured](../notebook/label-skew.md)): the best of "
        f"the learning rates tried, how many have a loss within {GOOD:.0%} of the best (one seed; "
        "empty where the rates are those of another data set), and the result of the best for "
        "three other seeds.\n\n"
        + table(["data and model", "best rates", "good settings", "training loss",
                 "test accuracy"], rows)
    )
