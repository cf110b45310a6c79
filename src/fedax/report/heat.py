"""Heat maps of a sweep as tables, whose cells are numbers on a colour."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedax.pictures.cells import Cell, cell, others, scale_ends
from fedax.report.curves import in_units
from fedax.report.marks import text, words
from fedax.sweeps.choosing import Choice
from fedax.sweeps.record import Record

# From bad to good: viridis, as in fedax.pictures, read at equal distances.
_COLOURS = ("#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30",
            "#fde725")
# From this lightness on, a cell's number is black.
_LIGHT = 0.45
# Across and down, if a sweep varies both; otherwise the first that vary.
_RATES = ("server_learning_rate", "client_learning_rate")


def heat_map(
    record: Record, choice: Choice, algorithm: str, curves: Mapping[int, int]
) -> str:
    """A table of what each pair of two hyperparameters came to.

    "" if the sweep varies none, or if it is no grid: a search, of whose pairs few were tried.

    Args:
      record: the sweep's rounds.
      choice: what was chosen of it.
      algorithm: the method.
      curves: setting's number -> the place of its curve, which a click on its cell shows or hides.
    """
    grid = choice.methods[algorithm].grid
    varied = [name for name, values in grid.items() if len(values) > 1]
    if not varied:
        return ""
    across, down = _RATES if set(_RATES) <= set(varied) else (varied[0], (*varied, None)[1])
    names = [name for name in (across, down) if name is not None]
    if 2 * len(choice.methods[algorithm].order) < math.prod(len(grid[name]) for name in names):
        return ""
    rest = others(choice, algorithm, names)
    best_over = f", each the best over {', '.join(map(words, rest))}" if rest else ""
    ends = scale_ends(choice.mean, choice.maximise)
    head = "".join(f'<th scope="col">{_number(value)}</th>' for value in grid[across])
    rows = []
    for value in reversed(grid[down]) if down else [None]:
        cells = "".join(
            _cell(choice, algorithm, names, ends, curves, cell(
                record, choice, algorithm,
                {across: x} if down is None else {across: x, down: value},
            )) for x in grid[across]
        )
        left = "" if down is None else f'<th scope="row">{_number(value)}</th>'
        rows.append(f"<tr>{left}{cells}</tr>")
    corner = "" if down is None else "<td></td>"
    described = f"{words(across)} across" + (f", {words(down)} down" if down else "")
    return (
        f'<div><h3>{text(algorithm)}</h3>\n<p class="note">{text(described + best_over)}.</p>\n'
        f'<div class="scroll"><table class="heat"><caption class="hidden">'
        f"{text(f'{algorithm}: {described}')}</caption><thead><tr>{corner}{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div></div>\n"
    )


def _cell(
    choice: Choice, algorithm: str, names: Sequence[str], ends: tuple[float, float],
    curves: Mapping[int, int], found: Cell | None,
) -> str:
    if found is not None and found.diverged:
        few = f"{found.diverged} of {found.runs} " if found.diverged < found.runs else ""
        return f'<td class="diverged">{few}diverged</td>'
    if found is None or found.setting is None:
        return '<td class="none">-</td>'
    method = choice.methods[algorithm]
    classes, marks = [], ""
    if found.setting == method.best:
        classes.append("best")
        marks += "<small>\N{BLACK STAR} best</small>"
        if any(edge.name in names for edge in method.edges):
            classes.append("edge")
            marks += "<small>at an edge</small>"
    spread = "" if math.isnan(found.spread) else f"<small>&plusmn; {_spread(choice, found)}</small>"
    named = f' class="{" ".join(classes)}"' if classes else ""
    return (
        f'<td{named} style="{_style(found.score, ends)}"><button type="button" '
        f'data-curve="{curves[found.setting]}">{in_units(choice.rule, found.score)}{spread}{marks}'
        "</button></td>"
    )


def _spread(choice: Choice, found: Cell) -> str:
    return in_units(choice.rule, float(f"{found.spread:.2g}"))


def _style(score: float, ends: tuple[float, float]) -> str:
    """The cell's colour, and that of its number."""
    best, end = ends
    good = 1.0 if best == end else min(max((score - end) / (best - end), 0.0), 1.0)
    place = good * (len(_COLOURS) - 1)
    low = min(int(place), len(_COLOURS) - 2)
    left, right = (
        [int(_COLOURS[at][i : i + 2], 16) for i in (1, 3, 5)] for at in (low, low + 1)
    )
    mixed = [a + (place - low) * (b - a) for a, b in zip(left, right, strict=True)]
    lightness = (0.2126 * mixed[0] + 0.7152 * mixed[1] + 0.0722 * mixed[2]) / 255
    colour = "".join(f"{round(part):02x}" for part in mixed)
    return f"background:#{colour};color:{'#000' if lightness > _LIGHT else '#fff'}"


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else text(value)
