"""A run's page: one self-contained HTML file with its curves, its result and its settings."""

from __future__ import annotations

import html
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from fedax.report.clients import CLIENTS, worst_of_run
from fedax.rounds.curves import hollow
from fedax.rounds.history import describe_sample, is_sampled

# What a metric's name begins with -> what its line shows, and in which colour.
LINES = {
    "test_": ("all examples", "#1f6fb2"),
    "test_worst_tenth_": ("mean of the worst tenth of the clients", "#c0504d"),
    "test_personal_": ("some clients after fine-tuning", "#2a8f5b"),
    "test_personal_before_": ("the same clients before", "#8fc7a8"),
}
# So many clients that were rejected are named.
MOST_REJECTED = 20

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
       color: #222; background: #fff; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; } th, td { text-align: left; padding: .15rem 1.2rem .15rem 0; }
th { font-weight: 600; } td { font-variant-numeric: tabular-nums; }
figure { margin: 1rem 0; } svg { max-width: 100%; height: auto; }
"""


def report_page(folder: Path) -> str:
    """The page of a run folder from its config.json, summary.json and metrics.jsonl.

    It needs no network and no other file.
    """
    config = json.loads((folder / "config.json").read_text("utf-8"))
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    lines = (folder / "metrics.jsonl").read_text("utf-8").splitlines()
    rounds = [json.loads(line) for line in lines]
    title = f"{config['algorithm']} on {config['task']}"
    made_by = config.pop("made_by", {})
    config.pop("python", None)  # digests, which say nothing to a reader
    figures = "\n".join(
        f"<figure>{_curve(names, rounds, summary['references'])}</figure>"
        for names in _curves(rounds)
    )
    return f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>{html.escape(title)}</title><style>{_STYLE}</style></head>
<body>
<h1>{html.escape(title)}</h1>
{_table(_headline(summary))}
{_rejected(summary)}<h2>Curves</h2>
{figures}
{_worst_clients(folder)}<h2>Settings</h2>
{_table(_flat(config))}
<h2>Made by</h2>
{_table(made_by)}
</body>
</html>
"""


def _curves(rounds: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The metrics worth a picture: training loss, then the test metrics with their variants."""
    names = {key for metrics in rounds for key in metrics}
    variants = [prefix for prefix in LINES if prefix != "test_"]
    tests = sorted(
        name for name in names if name.startswith("test_") and not name.startswith(tuple(variants))
    )
    groups = [
        [prefix + name.removeprefix("test_") for prefix in LINES] for name in tests
    ]
    shown = [[name for name in group if name in names] for group in groups]
    return ([["train_loss"]] if "train_loss" in names else []) + shown


def _curve(
    names: Sequence[str],
    rounds: Sequence[Mapping[str, Any]],
    references: Mapping[str, Mapping[str, float]],
) -> str:
    """A metric and its variants against the round, as inline SVG.

    What to compare with is a dashed line.
    """
    first = names[0]
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": first, "font.size": 10}):
        figure = Figure(figsize=(8, 3.2), layout="constrained")
        axes = figure.add_subplot()
        for name in names:
            measured = [m for m in rounds if m.get(name) is not None]
            points = [m["round"] for m in measured], [m[name] for m in measured]
            sampled = np.array([is_sampled(m, name) for m in measured], bool)
            label, colour = LINES.get(
                name.removesuffix(first.removeprefix("test_")), LINES["test_"]
            )
            marker = "o" if len(measured) < 60 else None
            if sampled.any():
                label += f"; hollow: {describe_sample(measured[int(sampled.argmax())])}"
            (line,) = axes.plot(
                *points, marker=marker, markersize=3, color=colour, label=label
            )
            hollow(axes, line, sampled)
        for text, metrics in references.items():
            if first in metrics:
                axes.axhline(metrics[first], color="#777", linestyle="--", linewidth=1)
                axes.annotate(
                    text, (1, metrics[first]), xycoords=("axes fraction", "data"),
                    xytext=(-4, 4), textcoords="offset points", ha="right", color="#555",
                )
        axes.set(xlabel="round", title=first.replace("_", " "))
        if len(names) > 1 or any(is_sampled(m, first) for m in rounds):
            axes.legend(frameon=False, fontsize="small")
        if "accuracy" in first:
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    svg = buffer.getvalue()
    return svg[svg.index("<svg") :]


def _headline(summary: Mapping[str, Any]) -> dict[str, Any]:
    rows: dict[str, Any] = {name.replace("_", " "): v for name, v in summary["final"].items()}
    for text, metrics in summary["references"].items():
        rows |= {f"{name.replace('_', ' ')} of {text}": v for name, v in metrics.items()}
    last = min(100, summary["rounds"])
    rows[f"mean training loss of the last {last} rounds"] = summary["train_loss_last_100_rounds"]
    rows["rounds"] = summary["rounds"]
    rows |= {f"seconds: {part.replace('_', ' ')}": s for part, s in summary["time"].items()}
    rows["uploads rejected as not finite"] = summary["num_rejected"]
    return rows


def _rejected(summary: Mapping[str, Any]) -> str:
    """The clients that were rejected most often, if any."""
    clients = summary.get("rejected_clients", {})
    if not clients:
        return ""
    rows = {name: f"in {count} rounds" for name, count in list(clients.items())[:MOST_REJECTED]}
    if len(clients) > MOST_REJECTED:
        rows["others"] = f"{len(clients) - MOST_REJECTED} clients"
    return f"<h2>Clients that were rejected</h2>\n{_table(rows)}\n"


def _worst_clients(folder: Path) -> str:
    """The clients for whom the model is worst, if the run measured them."""
    metric, clients = worst_of_run(folder)
    if not clients:
        return ""
    head = "".join(f"<th>{html.escape(name.replace('_', ' '))}</th>" for name in clients[0])
    rows = "".join(
        f"<tr>{''.join(f'<td>{html.escape(_text(value))}</td>' for value in row.values())}</tr>"
        for row in clients
    )
    return (
        f"<h2>Clients for whom it is worst</h2>\n<p>By their test {html.escape(metric)} in the "
        f"last evaluation; all clients are in <code>{CLIENTS}</code>.</p>\n"
        f"<table><tr>{head}</tr>{rows}</table>\n"
    )


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for key, value in config.items():
        if key in ("task_source", "algorithm_source"):
            rows |= {key.replace("_", " "): _source(value)} if value else {}
        else:
            rows |= value if isinstance(value, Mapping) else {key: value}
    return rows


def _source(source: Mapping[str, Any]) -> str:
    """Where a user's task or method came from."""
    package = f" of {source['distribution']} {source['version']}" if source["distribution"] else ""
    rounds = " and ".join(map(str, source["changed_after"]))
    changed = f"; it was another version until round {rounds}" if rounds else ""
    return f"{source['path']}: {source['name']}{package}, SHA-256 {source['sha256']}{changed}"


def _table(rows: Mapping[str, Any]) -> str:
    cells = "".join(
        f"<tr><th>{html.escape(str(name))}</th><td>{html.escape(_text(value))}</td></tr>"
        for name, value in rows.items()
    )
    return f"<table>{cells}</table>"


def _text(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
