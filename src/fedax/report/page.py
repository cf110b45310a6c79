"""A run's page: one self-contained HTML file with its curves, its result and its settings."""

from __future__ import annotations

import html
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

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


def write_report(folder: Path) -> Path:
    """Writes `report.html` of a run folder from its config.json, summary.json, metrics.jsonl.

    Returns:
      The path of the page. It needs no network and no other file.
    """
    config = json.loads((folder / "config.json").read_text("utf-8"))
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    lines = (folder / "metrics.jsonl").read_text("utf-8").splitlines()
    rounds = [json.loads(line) for line in lines]
    title = f"{config['algorithm']} on {config['task']}"
    made_by = config.pop("made_by", {})
    config.pop("python", None)  # digests, which say nothing to a reader
    figures = "\n".join(
        f"<figure>{_curve(name, rounds, summary['references'])}</figure>"
        for name in _curves(rounds)
    )
    page = f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>{html.escape(title)}</title><style>{_STYLE}</style></head>
<body>
<h1>{html.escape(title)}</h1>
{_table(_headline(summary))}
{_rejected(summary)}<h2>Curves</h2>
{figures}
<h2>Settings</h2>
{_table(_flat(config))}
<h2>Made by</h2>
{_table(made_by)}
</body>
</html>
"""
    path = folder / "report.html"
    path.write_text(page, encoding="utf-8", newline="\n")
    return path


def _curves(rounds: Sequence[Mapping[str, Any]]) -> list[str]:
    """The metrics worth a picture: training loss, then the test metrics."""
    names = {key for metrics in rounds for key in metrics}
    tests = sorted(name for name in names if name.startswith("test_"))
    return (["train_loss"] if "train_loss" in names else []) + tests


def _curve(
    name: str,
    rounds: Sequence[Mapping[str, Any]],
    references: Mapping[str, Mapping[str, float]],
) -> str:
    """One metric against the round, as inline SVG; what to compare with is a dashed line."""
    points = [(m["round"], m[name]) for m in rounds if m.get(name) is not None]
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.size": 10}):
        figure = Figure(figsize=(8, 3.2), layout="constrained")
        axes = figure.add_subplot()
        marker = "o" if len(points) < 60 else None
        axes.plot(*zip(*points, strict=True), marker=marker, markersize=3, color="#1f6fb2")
        for text, metrics in references.items():
            if name in metrics:
                axes.axhline(metrics[name], color="#777", linestyle="--", linewidth=1)
                axes.annotate(
                    text, (1, metrics[name]), xycoords=("axes fraction", "data"),
                    xytext=(-4, 4), textcoords="offset points", ha="right", color="#555",
                )
        axes.set(xlabel="round", title=name.replace("_", " "))
        if "accuracy" in name:
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
    rows["mean training loss of the last 100 rounds"] = summary["train_loss_last_100_rounds"]
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
