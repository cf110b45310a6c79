"""Figures as the papers have them: panels of curves, with the spread over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedax.reproductions.experiment import name_of
from fedax.reproductions.results import Results
from fedax.rounds.style import legend, line_style, tidy

if TYPE_CHECKING:  # matplotlib is slow to import, and only drawing needs it
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

PANELS_A_ROW = 3


def panels_of(figure: Figure, names: Sequence[str], width: float = 4.6) -> list[Axes]:
    """An empty panel a name, with it as its title, and the figure's size to fit.

    Args:
      figure: empty.
      names: of panels.
      width: of a panel, in inches.
    """
    columns = min(PANELS_A_ROW, len(names))
    rows = -(-len(names) // columns)
    figure.set_size_inches(width * columns, 0.8 * width * rows)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, name in zip(grid, names, strict=False):
        axes.set_title(name)
    for axes in grid[len(names):]:
        axes.remove()
    return list(grid[: len(names)])


def entitle(axes: Axes, title: str) -> None:
    """A title in place of the note that a picture of a sweep has there."""
    axes.set_title("", loc="left")
    axes.set_title(title, fontsize="medium")


def draw_curves(
    axes: Axes, results: Results, panel: str, metric: str, labels: Sequence[str] = (),
    *, scale: float = 1.0, settings: Mapping[str, Mapping[str, Any]] | None = None,
    styles: Mapping[str, tuple[str, str]] | None = None,
    published: Mapping[str, float] | None = None,
) -> None:
    """A line a method, of its best setting: the mean over seeds, and a band to both extremes.

    Of a seed that diverged what was before it counts.

    Args:
      axes: to draw on.
      results: of which.
      panel: of which runs.
      metric: which.
      labels: methods; default: all of the panel.
      scale: from the metric to the axis.
      settings: label -> setting, in place of the best one.
      styles: label -> colour and line style, in the order of the legend; methods without runs are
        left out. Default: one after the other.
      published: label -> final value, in units of the axis.
    """
    handles, names = [], []
    known = results.labels(panel)
    for place, label in enumerate(labels or styles or known):
        if label not in known:
            continue
        rounds, values = results.curve(panel, label, metric, (settings or {}).get(label))
        if not len(rounds):  # all diverged
            continue
        style = line_style(place)
        colour, dashes = (styles or {}).get(label, (style["color"], style["linestyle"]))
        (line,) = axes.plot(
            rounds, scale * np.nanmean(values, 0), color=colour, linestyle=dashes, label=label
        )
        axes.fill_between(
            rounds, scale * np.nanmin(values, 0), scale * np.nanmax(values, 0), color=colour,
            alpha=0.15, linewidth=0,
        )
        handles.append(line)
        names.append(label)
    tidy(axes)
    axes.set_xlabel("round")
    if "loss" in metric:
        keep_in_sight(axes)
    marked = [(line, published[name]) for line, name in zip(handles, names, strict=True)
              if name in published] if published else []
    if marked:
        handles.append(mark_published(axes, marked))
        names.append(f"published, {name_of(panel)}")
    if handles:
        legend(axes, handles, names)
    if not {*(labels or styles or known)} & {*known}:
        axes.text(0.5, 0.5, "not run", transform=axes.transAxes, ha="center", va="center")


def mark_published(axes: Axes, values: Sequence[tuple[Line2D, float]]) -> Line2D:
    """Published final values as diamonds at the right edge, in their lines' colours.

    Args:
      axes: with the lines.
      values: a line of what was measured, and the value.

    Returns:
      What stands for them in a legend.
    """
    style: dict[str, Any] = {
        "marker": "D", "markersize": 5, "linestyle": "none", "markerfacecolor": "none",
    }
    edge = 1.04 * max(float(np.max(line.get_xdata())) for line, _ in values)
    for line, value in values:
        axes.plot([edge], [value], color=line.get_color(), **style)
    (sample,) = axes.plot([], [], color="gray", **style)
    return sample


def keep_in_sight(axes: Axes) -> None:
    """Ends the axis of a loss where lines begin if one explodes, which would hide all others.

    Axes that share it count, too; a published value, a single point, does not begin a line.
    """
    drawn = axes.get_shared_y_axes().get_siblings(axes)
    values = [values for one in drawn for line in one.get_lines()
              if len(values := np.asarray(line.get_ydata(), float))]
    highest = 1.2 * max((line[0] for line in values if len(line) > 1), default=0.0)
    if axes.get_ylim()[1] > 3 * highest > 0:
        lowest = min(np.nanmin(line) for line in values)
        axes.set_ylim(lowest - 0.05 * (highest - lowest), highest)
