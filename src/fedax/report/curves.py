"""The curves of a page, as the JSON that its script draws."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedax.report.marks import plain, text, ticked, words
from fedax.rounds.style import is_share

# Curves have so many points together, at most; of longer ones each stretch of rounds keeps its
# lowest and its highest value.
MOST_POINTS = 400_000
# ... and each keeps so many stretches, whatever their number.
FEWEST_STRETCHES = 100


class View(NamedTuple):
    """What a chart shows at a time: a metric of each of its curves.

    Attributes:
      metric: its name.
      rounds: int [points], of all curves.
      values: float64 [curves, points]; not finite where there is none.
      spread: float64 [curves, points], sample standard deviation over the seeds; None: no seeds.
      sampled: curve -> the points that rest on a sample of the test examples.
      references: text -> value to compare with.
      note: a sentence below the picture.
    """

    metric: str
    rounds: np.ndarray
    values: np.ndarray
    spread: np.ndarray | None = None
    sampled: Sequence[Sequence[int]] = ()
    references: Mapping[str, float] = {}
    note: str = ""


class Chart(NamedTuple):
    """A picture whose curves can be chosen.

    Attributes:
      title: above it.
      labels: of the curves.
      views: what it can show, the first at first.
      shown: which curves are there at first.
      in_table: whether the boxes of the curves are in a table of the page; otherwise below.
    """

    title: str
    labels: Sequence[str]
    views: Sequence[View]
    shown: Sequence[bool]
    in_table: bool = False


def view_of(
    metric: str, rounds: np.ndarray, values: np.ndarray, spread: np.ndarray | None = None,
    num_curves: int | None = None,
) -> View | None:
    """A view of the rounds in which a curve has the metric, thinned if there are very many.

    Args:
      metric: its name.
      rounds: int [rounds].
      values: float64 [curves, rounds]; NaN where there is none.
      spread: as the values; None: there is none.
      num_curves: how many there are; None: as many as the values have.

    Returns:
      None if no value is finite.

    Example:
      >>> view_of("loss", np.array([1, 2, 3]), np.array([[1.0, np.nan, 0.5]])).rounds.tolist()
      [1, 3]
    """
    there = np.isfinite(values).any(axis=0)
    if not there.any():
        return None
    rounds, values = rounds[there], values[:, there]
    spread = None if spread is None else spread[:, there]
    stretches = max(MOST_POINTS // 2 // (num_curves or len(values)), FEWEST_STRETCHES)
    if len(rounds) <= 2 * stretches:
        return View(metric, rounds, values, spread)
    edges = np.linspace(0, len(rounds), stretches + 1).astype(int)
    kept = np.stack([edges[:-1], edges[:-1] + np.diff(edges) // 2], axis=1).ravel()
    thin = np.full((len(values), len(kept)), np.nan)
    width = None if spread is None else np.full(thin.shape, np.nan)
    for number, (first, end) in enumerate(itertools.pairwise(edges.tolist())):
        for curve, part in enumerate(values[:, first:end]):
            known = np.flatnonzero(np.isfinite(part))
            if not len(known):
                continue
            pair = sorted({int(known[part[known].argmin()]), int(known[part[known].argmax()])})
            for place, at in enumerate(pair):
                thin[curve, 2 * number + place] = part[at]
                if width is not None and spread is not None:
                    width[curve, 2 * number + place] = spread[curve, first + at]
    stretch = math.ceil(len(rounds) / stretches)
    return View(
        metric, rounds[kept], thin, width,
        note=f"Thinned: the lowest and the highest value of every {stretch} measured rounds are "
        "shown.",
    )


def payload(charts: Sequence[Chart]) -> str:
    r"""The charts as JSON that is safe in a page: no `<`, no NaN, six digits.

    Example:
      >>> view = View("loss", np.array([1, 2]), np.array([[1 / 3, np.nan]]))
      >>> payload([Chart("", ["</script>"], [view], [True])])[:60]
      '{"charts":[{"labels":["\\u003c/script>"],"views":[{"x":[1,2],'
    """
    found = [
        {"labels": [plain(label) for label in chart.labels],
         "views": [_view(view) for view in chart.views]}
        for chart in charts
    ]
    written = json.dumps({"charts": found}, separators=(",", ":"), allow_nan=False)
    return written.replace("<", "\\u003c")


def _view(view: View) -> dict[str, Any]:
    found: dict[str, Any] = {
        "x": view.rounds.tolist(), "y": [_rounded(curve) for curve in view.values],
        "percent": is_share(view.metric), "note": view.note,
        "references": [
            {"label": plain(label), "value": value} for label, value in view.references.items()
            if value is not None and math.isfinite(value)
        ],
    }
    if view.spread is not None:
        found["spread"] = [
            _rounded(curve) if np.isfinite(curve).any() else None for curve in view.spread
        ]
    if any(view.sampled):
        found["sampled"] = [list(points) for points in view.sampled]
    return found


def _rounded(values: np.ndarray) -> list[float | None]:
    return [float(f"{v:.6g}") if math.isfinite(v) else None for v in values.tolist()]


def in_units(metric: str, value: Any) -> str:
    """A metric's value in words.

    Example:
      >>> in_units("test_accuracy", 0.6667), in_units("test_loss", 1 / 3), in_units("loss", None)
      ('66.67%', '0.33333', 'none')
    """
    if value is None:
        return "none"
    return f"{100 * value:.4g}%" if is_share(metric) else f"{value:.5g}"


def figure(number: int, chart: Chart) -> str:
    """The place of a chart in the page, with what it is handled by."""
    name = f"chart-{number}"
    choices = "".join(
        f'<option value="{i}">{text(words(view.metric))}</option>'
        for i, view in enumerate(chart.views)
    )
    choose = (
        f'<label>Metric <select class="view">{choices}</select></label>'
        if len(chart.views) > 1 else ""
    )
    several = (
        '<button type="button" class="all">Show all rows below</button>'
        '<button type="button" class="nothing">Hide all</button>'
        '<button type="button" class="first">Reset</button>' if chart.in_table else ""
    )
    boxes = "" if chart.in_table or len(chart.labels) < 2 else '<div class="legend">' + "".join(
        ticked(name, series, label, shown=shown)
        for series, (label, shown) in enumerate(zip(chart.labels, chart.shown, strict=True))
    ) + "</div>"
    return f"""<figure class="chart" id="{name}">
<figcaption><h3>{text(chart.title)}</h3></figcaption>
<div class="tools">{choose}<label>Smoothing <select class="smooth"><option value="1">none</option>\
<option value="10">mean of 10 rounds</option><option value="100">mean of 100 rounds</option>\
</select></label><label><input type="checkbox" class="log"> log scale</label>\
<span>Zoom <button type="button" class="in" aria-label="Zoom in">+</button> \
<button type="button" class="out" aria-label="Zoom out">&minus;</button> \
<button type="button" class="whole" aria-label="Show all rounds">all</button></span>{several}</div>
<div class="plot" tabindex="0" role="group" aria-label="{text(chart.title)} against the round. \
Arrow keys read values, plus and minus zoom, 0 shows all rounds."></div>
{boxes}<p class="note"></p>
</figure>"""
