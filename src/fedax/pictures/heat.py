"""Cells as colours and numbers, and what is marked among them."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.patches import Rectangle

from fedax.pictures.cells import Cell, scale_ends
from fedax.rounds.style import COLOURS, capital, inches, is_share, units, upright
from fedax.sweeps.choosing import Choice
from fedax.sweeps.edges import Edge

# Points of a number's letters, for an inch of a cell's width.
_LETTER_POINTS = 14
# From this lightness on, a cell's number is black.
_LIGHT = 0.45


def draw_cells(
    axes: Axes, cells: Sequence[Sequence[Cell | None]], choice: Choice, words: str
) -> None:
    """Draws cells with their numbers, and a bar that says what they are.

    Args:
      axes: to draw on.
      cells: row by row from below; None: there is no such setting.
      choice: of which all scores make the scale.
      words: what the scores are.
    """
    scores = np.array([[np.nan if one is None else one.score for one in row] for row in cells])
    scale, beyond = _scale(choice.mean, choice.maximise)
    # Light is good on both scales, so that what is bad is dark in grey, too.
    colours = mpl.colormaps["viridis" if choice.maximise else "viridis_r"]
    drawn = axes.imshow(
        np.ma.masked_invalid(scores), cmap=colours, norm=scale, aspect="auto", origin="lower",
        interpolation="nearest",
    )
    width, height = inches(axes)
    cell = min((width - 2.6) / scores.shape[1], 2 * (height - 1.9) / scores.shape[0])
    size = float(np.clip(_LETTER_POINTS * cell, 3, 9))
    share = is_share(choice.rule)
    for (row, column), score in np.ndenumerate(scores):
        one = cells[row][column]
        if one is not None and one.diverged:
            _hatch(axes, column, row)
        if one is None or (np.isnan(score) and not one.diverged):
            text, colour = "-", "#444"
        elif one.diverged:
            few = f"{one.diverged} of {one.runs}\n" if one.diverged < one.runs else ""
            text, colour = f"{few}diverged", "black"
        else:
            text = f"{score:.1%}" if share else f"{score:#.3g}".rstrip(".")
            colour = "black" if _lightness(colours(scale(score))) > _LIGHT else "white"
        bad = one is not None and bool(one.diverged)
        axes.text(
            column, row, text, ha="center", va="center", color=colour,
            fontsize=min(size, 7) if bad else size,
            bbox={"facecolor": "#e8e8e8", "edgecolor": "none", "pad": 1} if bad else None,
        )
    bar = axes.figure.colorbar(drawn, ax=axes, pad=0.02, extend=beyond)
    seeds = int((~np.isnan(choice.scores)).sum(1).max(initial=0))
    over = f"mean over {seeds} seeds of " if seeds > 1 else ""
    bar.set_label(upright(axes, capital(over + words.replace("_", " "))))
    units(bar.ax.yaxis, choice.rule)


def _scale(scores: np.ndarray, maximise: bool) -> tuple[Normalize, str]:
    """The colours' scale, and at which ends values lie beyond it."""
    best, end = scale_ends(scores, maximise)
    known = scores[np.isfinite(scores)]
    if maximise:
        return Normalize(end, best), "min" if (known < end).any() else "neither"
    return Normalize(best, end), "max" if (known > end).any() else "neither"


def _hatch(axes: Axes, column: int, row: int) -> None:
    axes.add_patch(Rectangle(
        (column - 0.5, row - 0.5), 1, 1, facecolor="#e8e8e8", edgecolor="#8a8a8a", hatch="///",
        linewidth=0,
    ))


def mark_best(axes: Axes, column: int, row: int) -> None:
    """A frame around the best cell, and a star in its corner."""
    for colour, width in (("white", 4.5), ("black", 2.2)):
        axes.add_patch(Rectangle(
            (column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor=colour, linewidth=width,
            zorder=3, clip_on=False,
        ))
    axes.plot(
        column + 0.36, row + 0.32, marker="*", markersize=9, color="black",
        markeredgecolor="white", markeredgewidth=0.7, zorder=4,
    )


def mark_edges(axes: Axes, edges: Sequence[Edge], x: str) -> list[str]:
    """Dashed lines where the best lies at the edge of the grid; what they mean."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    told = []
    for edge in edges:
        large = edge.side == "largest"
        at = (right if large else left) if edge.name == x else (top if large else bottom)
        points = ([at, at], [bottom, top]) if edge.name == x else ([left, right], [at, at])
        axes.plot(
            *points, color=COLOURS[1], linewidth=4, linestyle=(0, (3, 1.5)), clip_on=False, zorder=5
        )
        added = ", ".join(f"{value:.3g}" for value in edge.add)
        told.append(f"dashed: best at the {edge.side} {edge.name.replace('_', ' ')}, add {added}")
    axes.set(xlim=(left, right), ylim=(bottom, top))
    return told


def _lightness(colour: tuple[float, ...]) -> float:
    red, green, blue = colour[:3]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
