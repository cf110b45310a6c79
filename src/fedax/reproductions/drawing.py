"""Curves of an experiment in the axes of a paper: a metric against rounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedax.reproductions.results import Results

if TYPE_CHECKING:  # matplotlib is slow to import, and only drawing needs it
    from matplotlib.axes import Axes


def draw_curves(
    axes: Axes, results: Results, panel: str, metric: str,
    styles: Mapping[str, tuple[str, str]], scale: float = 100.0,
) -> None:
    """A curve a method: the mean over seeds, with a band of one sample standard deviation.

    Args:
      axes: where to.
      results, panel, metric: what; methods without runs, or that diverged, are left out.
      styles: label -> colour and line style, in the order of the legend.
      scale: from the metric to the units of the axis.
    """
    for label, (colour, line) in styles.items():
        if label not in results.labels(panel):
            continue
        rounds, values = results.curve(panel, label, metric)
        if not len(rounds):
            continue
        mean = scale * values.mean(axis=0)
        axes.plot(rounds, mean, line, color=colour, linewidth=1.4, label=label)
        if len(values) > 1:
            width = scale * values.std(axis=0, ddof=1)
            axes.fill_between(rounds, mean - width, mean + width, color=colour, alpha=0.12, lw=0)
    axes.set_xlabel("rounds")
    axes.grid(alpha=0.3)
    if axes.has_data():
        axes.legend(fontsize=8)
