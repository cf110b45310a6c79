"""Draws docs/notebook/benchmarks.png from the tables of the page beside it.

    python benchmarks/chart.py
"""

from __future__ import annotations

import re
from pathlib import Path

from matplotlib.figure import Figure

PAGE = Path(__file__).resolve().parent.parent / "docs" / "notebook" / "benchmarks.md"
WORKLOADS = {
    "logistic": "Logistic regression", "emnist": "EMNIST CNN", "cifar": "CIFAR-10 CNN",
    "shakespeare": "Shakespeare LSTM",
}
LABELS = {"threads": "PyTorch threads", "flwr": "Flower"}
# Those that are no peers: fedax itself, and its local steps with nothing federated.
NOT_PEERS = ("fedax", "fedax (1 device)", "bare loop")


def ratios(page: str, section: str) -> dict[str, float]:
    """Each peer's time of a round over fedax's, the median over the same rounds, from a table."""
    table = re.search(rf"<!-- begin {section} -->(.*?)<!-- end {section} -->", page, re.DOTALL)
    if table is None:
        raise ValueError(f"The page has no table {section!r}.")
    rows = [re.split(r" *\| *", row.strip("| ")) for row in table[1].splitlines() if row[:1] == "|"]
    column = next(i for i, title in enumerate(rows[0]) if title.startswith("of fedax's"))
    # The first cell of the head is empty, which the split leaves out.
    return {row[0]: float(row[column + 1]) for row in rows[2:] if row[0] not in NOT_PEERS}


def chart(page: str, family: str = "AMD") -> Figure:
    """Bars for each workload, the slowest peer on top."""
    figure = Figure(figsize=(9.6, 5.6), layout="constrained")
    for axes, (workload, title) in zip(figure.subplots(2, 2).flat, WORKLOADS.items(), strict=True):
        found = sorted(ratios(page, f"{workload} {family}").items(), key=lambda one: one[1])
        names = ["fedax", *(LABELS.get(name, name) for name, _ in found)]
        values = [1.0, *(value for _, value in found)]
        colours = ["#00695c", *["#90a4ae"] * len(found)]
        axes.axvline(1.0, color="#00695c", linewidth=1)
        bars = axes.barh(names, values, color=colours, zorder=2)
        axes.bar_label(bars, [f"{value:.3g}" for value in values], padding=3, zorder=3,
                       bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5})
        scale = ""
        if max(values) > 10:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter("{x:g}")
            scale = ", log scale"
        axes.margins(x=0.12)
        axes.set_title(title)
        axes.set_xlabel(f"time of a round over fedax's{scale}")
        axes.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    chart(PAGE.read_text("utf-8")).savefig(PAGE.with_suffix(".png"), dpi=110)
