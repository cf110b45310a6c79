"""The page of a run: its curves, its result and its settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedax.report.clients import CLIENTS
from fedax.report.curves import Chart, View, in_units, view_of
from fedax.report.document import Page
from fedax.report.marks import pairs, plain_table, text, words
from fedax.report.runs import LAST_ROUNDS, Run, warnings
from fedax.rounds.budget import in_words
from fedax.rounds.directions import EVALUATED, TEST, is_evaluated
from fedax.rounds.history import UNDEFINED, describe_sample, is_sampled, is_undefined
from fedax.validate import so_many

# What follows "test_" or "validation_" in a metric's name -> what its line shows.
LINES = {
    "": "all examples",
    "worst_tenth_": "mean of the worst 10% of clients",
    "personal_": "fine-tuned on some clients",
    "personal_before_": "the same clients before fine-tuning",
    "own_": "each client's own model, all examples",
    "own_mean_": "each client's own model, mean over clients",
    "own_worst_tenth_": "own models of the worst 10% of clients",
}
# At most this number of rejected clients are listed.
MOST_REJECTED = 20


def run_page(run: Run) -> str:
    """The page of a run, finished or not. It needs no network and no other file."""
    page = Page(
        title=run.title,
        state=f"{run.name}: {run.state}",
        warnings=list(warnings(run)),
        before=f"<h2>Result</h2>\n{pairs(_headline(run))}",
        charts=_charts(run),
        after=f"{_rejected(run)}{_worst_clients(run)}<h2>Settings</h2>\n{pairs(run.settings)}",
        commands=run.commands,
        made_by=run.config.get("made_by", {}),
    )
    return page.html()


def _charts(run: Run) -> list[Chart]:
    """Training loss, test metrics with their variants, and one to choose from the others."""
    names = run.metrics
    groups = [
        [f"{part}{line}{name.removeprefix(part)}" for line in LINES]
        for part in EVALUATED
        for name in sorted(n for n in names if n.startswith(part))
        if not name.startswith(tuple(f"{part}{line}" for line in LINES if line))
    ]
    shown = [["train_loss"], *groups]
    charts = [
        chart for group in shown for chart in [_chart(run, [n for n in group if n in names])]
        if chart is not None
    ]
    known = {name for group in shown for name in group}
    rounds = np.array([metrics["round"] for metrics in run.rounds], int)
    others = [view_of(name, rounds, run.values(name)[None]) for name in names if name not in known]
    views = [view for view in others if view is not None]
    if views:
        charts.append(Chart("Other metrics", [run.name], views, [True]))
    return charts


def _chart(run: Run, names: Sequence[str]) -> Chart | None:
    """A metric and its variants; None if no round has it."""
    if not names:
        return None
    rounds = np.array([metrics["round"] for metrics in run.rounds], int)
    view = view_of(names[0], rounds, np.stack([run.values(name) for name in names]))
    if view is None:
        return None
    references = (run.summary or {}).get("references", {})
    view = view._replace(references={
        text: metrics[names[0]] for text, metrics in references.items() if names[0] in metrics
    })
    part, _, first = names[0].partition("_")
    labels = [
        LINES[name.removeprefix(f"{part}_").removesuffix(first)] if is_evaluated(name)
        else "train loss" for name in names
    ]
    if not view.note:  # all rounds are there
        view = _with_samples(view, run, names)
    return Chart(words(names[0]), labels, [view], [True] * len(names))


def _with_samples(view: View, run: Run, names: Sequence[str]) -> View:
    """The view, knowing which points rest on a sample."""
    at = {metrics["round"]: metrics for metrics in run.rounds}
    sampled = [
        [k for k, r in enumerate(view.rounds.tolist()) if name in at[r] and is_sampled(at[r], name)]
        for name in names
    ]
    if not any(sampled):
        return view
    first = at[int(view.rounds[next(points for points in sampled if points)[0]])]
    return view._replace(sampled=sampled, note=f"Hollow points: {describe_sample(first)}")


def _headline(run: Run) -> dict[str, Any]:
    final, summary = run.final, run.summary or {}
    best: Mapping[str, Any] = summary.get("best") or {}
    tests = {name.removeprefix("best_"): value for name, value in run.of_best.items()}
    end = f" of the last model (round {len(run.rounds)})" if tests else ""
    rows: dict[str, Any] = {
        f"{words(name)}{end}": UNDEFINED if is_undefined(final, name) else in_units(name, v)
        for name, v in final.items() if "evaluated_" not in name
    }
    if "evaluated_of" in final:
        rows["evaluated on"] = describe_sample(final)
    for reference, metrics in summary.get("references", {}).items():
        rows |= {f"{words(name)} of {reference}": in_units(name, v) for name, v in metrics.items()}
    if best:
        value = in_units(best["metric"], best["value"])
        rows[f"best {words(best['metric'])}"] = f"{value} in round {best['round']}"
        rows |= {
            f"{words(name)} of the best model (round {best['round']})": in_units(name, v)
            for name, v in tests.items()
        }
    last = min(LAST_ROUNDS, len(run.rounds))
    loss = run.train_loss
    guarantee = summary.get("privacy")
    if guarantee:
        rows["privacy"] = in_words(guarantee)
        rows["privacy protects against"] = guarantee["adjacency"]
        if "sampling" in guarantee:  # older runs do not say it
            rows["sampling of clients"] = guarantee["sampling"]
    else:
        rows[f"train loss, mean of the last {last} rounds"] = None if np.isnan(loss) else loss
    rows["rounds"] = len(run.rounds)
    rows |= {f"seconds: {words(part)}": s for part, s in summary.get("time", {}).items()}
    if not guarantee:
        rows["uploads rejected (NaN or infinity)"] = int(np.nansum(run.values("num_rejected")))
    return rows


def _rejected(run: Run) -> str:
    """The clients that were rejected most often, if any."""
    clients: Mapping[str, int] = (run.summary or {}).get("rejected_clients", {})
    if not clients:
        return ""
    most = list(clients.items())[:MOST_REJECTED]
    rows = {name: f"in {so_many(count, 'round')}" for name, count in most}
    if len(clients) > MOST_REJECTED:
        rows["others"] = so_many(len(clients) - MOST_REJECTED, "client")
    return f"<h2>Rejected clients</h2>\n{pairs(rows)}\n"


def _part(run: Run) -> str:
    """The data on which the clients were last measured one by one, "test" or "validation"."""
    last = next((m for m in reversed(run.rounds) if any(map(is_evaluated, m))), {})
    return "test" if not last or any(name.startswith(TEST) for name in last) else "validation"


def _worst_clients(run: Run) -> str:
    """The clients for whom the model is worst, if the run measured them."""
    metric, clients = run.worst
    if not clients:
        return ""
    return (
        f"<h2>Worst clients</h2>\n<p>By {_part(run)} {text(metric)} in the last evaluation; "
        f"<code>{CLIENTS}</code> has all clients.</p>\n{plain_table(clients)}\n"
    )
