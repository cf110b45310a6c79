"""A picture of a history: metrics against the round."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fedax.rounds.style import COLOURS, MOST_MARKERS, tidy, units


class Picture(Figure):
    """A figure that a notebook shows even if pyplot has not been imported."""

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.savefig(content, format="png")
        return content.getvalue()


def new_axes(width: float = 7, height: float = 4.2) -> Axes:
    """Axes in a new figure that is not registered with pyplot."""
    return Picture(figsize=(width, height), layout="constrained").add_subplot()


def draw(
    rounds: np.ndarray, curves: Mapping[str, np.ndarray], figure: Any = None,
    sampled: Mapping[str, np.ndarray] | None = None,
) -> Figure:
    """Draws curves, those of one kind in one panel.

    Args:
      rounds: [num_rounds].
      curves: name -> values [num_rounds]; values that are not finite are skipped.
      figure: to draw into; None: a new one.
      sampled: name -> bool [num_rounds], where it is of a sample, which hollow points show; None:
        nowhere.
    """
    panels: dict[str, list[str]] = {}
    for name in curves:
        panels.setdefault(panel_of(name), []).append(name)
    if figure is None:
        figure = Picture(figsize=(7, 0.6 + 2.4 * len(panels)), layout="constrained")
    places = np.atleast_1d(figure.subplots(len(panels), sharex=True))
    for axes, (kind, names) in zip(places, panels.items(), strict=True):
        for name, colour in zip(names, COLOURS * len(names), strict=False):
            there = np.isfinite(curves[name])
            (line,) = axes.plot(
                rounds[there], curves[name][there], color=colour, label=name.replace("_", " "),
                marker="o" if there.sum() < MOST_MARKERS else None, markersize=3,
            )
            if sampled is not None:
                hollow(axes, line, sampled[name][there])
        _finish(axes, kind, len(names))
    places[-1].set_xlabel("round")
    return figure


def hollow(axes: Axes, line: Line2D, sampled: np.ndarray) -> None:
    """Shows which points of a line are of a sample: they are hollow, or the others alone are drawn.

    Args:
      axes: of the line.
      line: with a marker, or without if it has many points.
      sampled: bool, for each of its points.
    """
    if not sampled.any():
        return
    points, colour = np.asarray(line.get_xydata()), line.get_color()
    marker = str(line.get_marker())
    if marker != "None":
        look = {"marker": marker, "linestyle": "", "color": colour, "markersize": 3}
        axes.plot(*points[sampled].T, **look, markerfacecolor="white")
    else:
        axes.plot(*points[~sampled].T, "o", color=colour, markersize=3)


def panel_of(name: str) -> str:
    """What a metric measures, the last word of its name.

    Example:
      >>> panel_of("test_top_5_accuracy"), panel_of("train_loss")
      ('accuracy', 'loss')
    """
    return name.rsplit("_", 1)[-1]


def _finish(axes: Axes, kind: str, count: int) -> None:
    axes.set_ylabel(kind)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    units(axes.yaxis, kind)
    tidy(axes)
    if count > 1 or axes.get_lines()[0].get_label() != kind:
        axes.legend(frameon=False)
