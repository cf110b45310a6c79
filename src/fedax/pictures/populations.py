"""Pictures of clients: how a metric is spread over them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from fedax.outside.paths import expanded
from fedax.pictures.client_files import read_clients
from fedax.pictures.errors import DrawingError
from fedax.rounds.client_metrics import CLIENTS_FOR_A_TENTH, ClientMetrics
from fedax.rounds.curves import new_axes
from fedax.rounds.directions import direction
from fedax.rounds.style import COLOURS, capital, is_share, legend, note, tidy, units
from fedax.validate import unknown

Clients: TypeAlias = ClientMetrics | str | Path

_WORST = 0.1
# At least and at most so many bars.
_FEWEST_BARS, _MOST_BARS = 5, 40


def clients(data: Clients, metric: str | None = None, axes: Axes | None = None) -> Axes:
    """Draws a histogram of a metric over clients, with the worst 10% marked.

    The worst 10% are hatched. Lines show the mean over all clients, each counted once, and over
    the worst 10%, as in `fedax.ClientMetrics.worst`. With fewer than ten clients, no worst 10%
    are shown.

    Args:
      data: the clients' metrics, from `fedax.evaluate_clients` or a round's report, or the path
        of a run folder's clients.csv.
      metric: name of the metric; None: the first.
      axes: axes to draw on; None: a new figure.

    Raises:
      DrawingError: if the metric is unknown, no client has a value, or the file cannot be read.

    Example:
      >>> losses = np.arange(20.0)
      >>> metrics = ClientMetrics({"loss": (losses, np.ones(20))}, np.arange(20), np.ones(20, int))
      >>> [line.get_xdata()[0] for line in clients(metrics).get_lines()]
      [9.5, 18.5]
    """
    found = data if isinstance(data, ClientMetrics) else read_clients(expanded(data))
    metric = metric_of(found, metric)
    values = found[metric]
    known = values[np.isfinite(values)]
    if not len(known):
        raise DrawingError(f"There is nothing to draw: no client has a finite {metric!r}.")
    axes = new_axes() if axes is None else axes
    high = direction(metric) == "max"
    order = np.sort(known) if high else np.sort(known)[::-1]
    few = math.ceil(_WORST * len(known) * (1 - 1e-12)) if len(known) >= CLIENTS_FOR_A_TENTH else 0
    count = f"{len(known):,} client{'' if len(known) == 1 else 's'}"
    groups: list[tuple[np.ndarray, str, dict[str, Any]]] = [
        (order[few:], "other clients" if few else count, {"color": "#9ecae1"}),
    ]
    if few:
        worst = {"color": COLOURS[1], "hatch": "////"}
        groups.append((order[:few], f"worst 10%: {few:,} of {count}", worst))
    bins = _bins(known)
    handles: list[Any] = []
    below = np.zeros(len(bins) - 1)
    for values_of_group, _, look in groups:
        heights, _ = np.histogram(values_of_group, bins)
        some = heights > 0
        handles.append(axes.bar(
            bins[:-1][some], heights[some], np.diff(bins)[some], below[some], align="edge",
            edgecolor="white", linewidth=0.4, **look,
        ))
        below += heights
    labels = [label for _, label, _ in groups]
    lines: list[tuple[float, str, Any]] = [(float(known.mean()), "mean over clients", "-")]
    if few:
        lines.append((float(order[:few].mean()), "mean over the worst 10%", (0, (5, 1.5))))
    for value, label, dashes in lines:
        handles.append(axes.axvline(value, color="black", linestyle=dashes, linewidth=1.6))
        labels.append(f"{label}: {value:.1%}" if is_share(metric) else f"{label}: {value:.4g}")
    axes.set(xlabel=capital(f"{metric.replace('_', ' ')} of a client"), ylabel="Clients")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    units(axes.xaxis, metric)
    tidy(axes)
    legend(axes, handles, labels)
    left = len(values) - len(known)
    note(axes, [f"clients without a finite value: {left:,}"] if left else [])
    return axes


def metric_of(found: Mapping[str, object], metric: str | None) -> str:
    """The metric that is drawn.

    Raises:
      DrawingError: if the metric is unknown, or there are none.
    """
    if not len(found):
        raise DrawingError("There is nothing to draw: the clients have no metric.")
    if metric is not None and metric not in found:
        raise DrawingError(unknown("metric of clients", metric, found))
    return next(iter(found)) if metric is None else metric


def _bins(values: np.ndarray) -> np.ndarray:
    """The bars' edges: as many as the square root of the clients, of one width."""
    low, high = float(values.min()), float(values.max())
    if low == high:
        half = max(abs(low), 1.0) / 20
        return np.array([low - half, low + half])
    count = int(np.clip(round(math.sqrt(len(values))), _FEWEST_BARS, _MOST_BARS))
    return np.linspace(low, high, count + 1)
