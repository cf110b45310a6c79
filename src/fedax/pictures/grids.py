"""Pictures of a sweep: heat maps, the best server rate, adaptivity.

Reddi et al., "Adaptive Federated Optimization" (2020), Figures 2, 3 and 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.transforms import ScaledTranslation, Transform

from fedax.pictures.cells import Cell, cell, chosen, method_of, others, require_varied
from fedax.pictures.errors import DrawingError
from fedax.pictures.heat import draw_cells, mark_best, mark_edges
from fedax.rounds.curves import new_axes
from fedax.rounds.history import History
from fedax.rounds.style import (
    capital,
    legend,
    line_style,
    note,
    spans_decades,
    tidy,
    units,
    upright,
)
from fedax.sweeps.choosing import Choice
from fedax.sweeps.closing import rule_in_words
from fedax.sweeps.grid import is_number
from fedax.sweeps.record import Record

# So far apart, in points, are methods that would cover each other.
_APART = 3.0


def best_of(record: Record, choice: Choice | None = None) -> dict[str, list[History]]:
    """Returns the histories of each method's best setting, one per seed, for `curves`.

    Methods whose settings all diverged are left out.

    Args:
      record: the rounds of the sweep.
      choice: the selection; None: as by `fedax.sweeps.choosing.choose`.

    Raises:
      DrawingError: if there is no best setting.

    Example:
      >>> from fedax.sweeps.grid import settings_of
      >>> settings = settings_of({"fedavg": {"client_learning_rate": [0.1, 1.0]}})
      >>> none = np.zeros(2, int)
      >>> losses = {"train_loss": np.array([[3.0], [2.0]])}
      >>> record = Record(settings, np.arange(2), none, none, none + 1, losses)
      >>> best_of(record)
      {'fedavg client_learning_rate=1': [History(1 rounds: train_loss 2)]}
    """
    choice = chosen(record, choice)
    best = {
        method: found.best for method, found in choice.methods.items() if found.best is not None
    }
    if not best:
        raise DrawingError("There is nothing to draw: no setting of this sweep has a finite score.")
    return {
        f"{method} {record.settings[number].label}".strip():
            [record.history(row) for row in record.rows_of(number)]
        for method, number in best.items()
    }


def heat_map(
    record: Record, choice: Choice | None = None, algorithm: str | None = None,
    x: str = "server_learning_rate", y: str = "client_learning_rate", axes: Axes | None = None,
) -> Axes:
    """Draws the score of each pair of learning rates, as in Reddi et al. 2021, Figure 2.

    The number in a cell is the mean over the seeds, for the best setting if other hyperparameters
    vary. The best cell has a frame and a star. A cell in which at least one seed diverged is
    hatched. If the best is at an edge of the grid, a dashed line shows it, and a note says which
    values to add. All methods of a sweep share one colour scale; far worse values share its last
    colour, so that differences between good values stay visible.

    Args:
      record: the rounds of the sweep.
      choice: the selection; None: as by `fedax.sweeps.choosing.choose`.
      algorithm: the method to draw; optional if there is only one.
      x, y: the hyperparameters.
      axes: axes to draw on; None: a new figure.

    Raises:
      DrawingError: if the method is unknown, or its sweep does not vary these hyperparameters.

    Example:
      >>> from fedax.sweeps.grid import settings_of
      >>> grid = {"client_learning_rate": [0.1, 1.0], "server_learning_rate": [0.5, 1.0, 2.0]}
      >>> none = np.zeros(6, int)
      >>> losses = {"train_loss": np.array([[3.0], [2.0], [4.0], [1.0], [2.5], [9.0]])}
      >>> record = Record(settings_of({"fedavg": grid}), np.arange(6), none, none, none + 1, losses)
      >>> [text.get_text() for text in heat_map(record).texts][:3]
      ['3.00', '2.00', '4.00']
    """
    choice = chosen(record, choice)
    algorithm = method_of(record, algorithm)
    require_varied(choice, algorithm, (x, y))
    if x == y:
        raise DrawingError(f"A heat map has two hyperparameters, but x and y are both {x}.")
    found = choice.methods[algorithm]
    columns, rows = found.grid[x], found.grid[y]
    cells = [
        [cell(record, choice, algorithm, {x: column, y: row}) for column in columns] for row in rows
    ]
    if axes is None:
        axes = new_axes(*heat_map_size(len(columns), len(rows)))
    draw_cells(axes, cells, choice, rule_in_words(record, choice))
    for axis, values in ((axes.xaxis, columns), (axes.yaxis, rows)):
        axis.set_ticks(range(len(values)), [_number(value) for value in values])
    axes.set(xlabel=capital(_words(x)), ylabel=capital(_words(y)))
    told = [algorithm, *_over(others(choice, algorithm, (x, y)))]
    if found.best is None:
        told.append("no setting has a finite score")
    else:
        values = record.settings[found.best].values
        mark_best(axes, columns.index(values[x]), rows.index(values[y]))
        told.append("star: best")
        told += mark_edges(axes, [edge for edge in found.edges if edge.name in (x, y)], x)
    every = [one for row in cells for one in row]
    if any(one is not None and one.diverged for one in every):
        told.append("hatched: diverged")
    if any(one is None or (one.setting is None and not one.diverged) for one in every):
        told.append("dash: not finished")
    note(axes, told)
    return axes


def heat_map_size(columns: int, rows: int) -> tuple[float, float]:
    """Width and height in inches of a heat map with this number of cells.

    Example:
      >>> heat_map_size(4, 6)
      (5.6, 4.9)
    """
    return 2.6 + 0.75 * max(columns, 3), 1.9 + 0.5 * max(rows, 3)


def best_server_rate(
    record: Record, choice: Choice | None = None, axes: Axes | None = None
) -> Axes:
    """Draws the best server rate per client rate and method, as in Reddi et al. 2021, Figure 4.

    Client rates with which every setting diverged have no point. Points of several methods that
    would overlap are drawn side by side.

    Args:
      record, choice, axes: as for `heat_map`.

    Raises:
      DrawingError: if no method's sweep varies both rates, or no score is finite.

    Example:
      >>> from fedax.sweeps.grid import settings_of
      >>> grid = {"client_learning_rate": [0.1, 1.0], "server_learning_rate": [0.5, 1.0, 2.0]}
      >>> none = np.zeros(6, int)
      >>> losses = {"train_loss": np.array([[3.0], [2.0], [4.0], [1.0], [2.5], [9.0]])}
      >>> record = Record(settings_of({"fedavg": grid}), np.arange(6), none, none, none + 1, losses)
      >>> best_server_rate(record).get_lines()[0].get_xydata().tolist()
      [[0.1, 1.0], [1.0, 0.5]]
    """
    choice = chosen(record, choice)
    client, server = "client_learning_rate", "server_learning_rate"
    methods = _that_vary(record, choice, (client, server))
    points: dict[str, list[tuple[float, float]]] = {}
    for method in methods:
        best = [
            (rate, cell(record, choice, method, {client: rate}))
            for rate in choice.methods[method].grid[client]
        ]
        points[method] = [
            (rate, record.settings[one.setting].values[server])
            for rate, one in best if one is not None and one.setting is not None
        ]
    _require_points(points)
    axes = new_axes() if axes is None else axes
    handles = []
    for number, (method, pairs) in enumerate(points.items()):
        handles += axes.plot(
            *np.array(pairs, float).reshape(-1, 2).T, **line_style(number), label=method,
            transform=_aside(axes, number, len(points)), markersize=6, linewidth=1.2,
        )
        axes.update_datalim(pairs)
    for axis, name, place in (("x", client, 0), ("y", server, 1)):
        grid = sorted({value for method in points for value in choice.methods[method].grid[name]})
        _rates_on(axes, axis, grid, [pair[place] for pairs in points.values() for pair in pairs])
    axes.set(xlabel="Client learning rate", ylabel="Best server learning rate")
    tidy(axes)
    legend(axes, handles, list(points))
    note(axes, [f"best by {rule_in_words(record, choice)}",
                *_over(_others_of(choice, methods, (client, server)))])
    return axes


def adaptivity(record: Record, choice: Choice | None = None, axes: Axes | None = None) -> Axes:
    """Draws the best score at each adaptivity and method, as in Reddi et al. 2021, Figure 3.

    Bars show plus and minus the sample standard deviation over the seeds of that best setting.

    Args:
      record, choice, axes: as for `heat_map`.

    Raises:
      DrawingError: if no method's sweep varies the adaptivity, or no score is finite.

    Example:
      >>> from fedax.sweeps.grid import settings_of
      >>> grid = {"adaptivity": [0.001, 0.1], "server_learning_rate": [0.1, 1.0]}
      >>> none = np.zeros(4, int)
      >>> losses = {"train_loss": np.array([[3.0], [2.0], [1.0], [2.5]])}
      >>> record = Record(settings_of({"fedadam": grid}), np.arange(4), none, none, none + 1,
      ...                 losses)
      >>> adaptivity(record).get_lines()[0].get_xydata().tolist()
      [[0.001, 2.0], [0.1, 1.0]]
    """
    choice = chosen(record, choice)
    name = "adaptivity"
    methods = _that_vary(record, choice, (name,))
    points: dict[str, list[tuple[float, Cell]]] = {}
    for method in methods:
        found = [
            (value, cell(record, choice, method, {name: value}))
            for value in choice.methods[method].grid[name]
        ]
        points[method] = [
            (value, one) for value, one in found if one is not None and one.setting is not None
        ]
    _require_points(points)
    axes = new_axes() if axes is None else axes
    handles = []
    for number, (method, cells) in enumerate(points.items()):
        drawn = axes.errorbar(
            [value for value, _ in cells], [one.score for _, one in cells],
            [0 if np.isnan(one.spread) else one.spread for _, one in cells],
            **line_style(number), capsize=3, label=method,
            transform=_aside(axes, number, len(points)),
        )
        handles.append(drawn)
        for value, one in cells:
            reach = 0 if np.isnan(one.spread) else one.spread
            axes.update_datalim([(value, one.score - reach), (value, one.score + reach)])
    scores = np.array([one.score for cells in points.values() for _, one in cells])
    if spans_decades(scores):
        axes.set_yscale("log")
    axes.autoscale_view()
    grid = sorted({value for method in points for value in choice.methods[method].grid[name]})
    _rates_on(axes, "x", grid, [value for cells in points.values() for value, _ in cells])
    words = rule_in_words(record, choice).replace("_", " ")
    axes.set(xlabel="Adaptivity τ", ylabel=upright(axes, capital(words)))
    units(axes.yaxis, choice.rule)
    tidy(axes)
    legend(axes, handles, list(points))
    spread = any(np.isfinite(one.spread) for cells in points.values() for _, one in cells)
    note(axes, [
        "each point: best setting with that adaptivity"
        + _best_over(_others_of(choice, methods, (name,))),
        *(["bars: \N{PLUS-MINUS SIGN} sample standard deviation over seeds"] if spread else []),
    ])
    return axes


def _that_vary(record: Record, choice: Choice, names: Sequence[str]) -> list[str]:
    """The methods whose sweep varies these hyperparameters, which are numbers."""
    found = [
        method for method in record.algorithms
        if all(
            name in choice.methods[method].grid
            and all(map(is_number, choice.methods[method].grid[name])) for name in names
        )
    ]
    if not found:
        varied = "; ".join(
            f"{method}: {', '.join(choice.methods[method].grid) or 'nothing'}"
            for method in record.algorithms
        )
        raise DrawingError(
            f"No method of this sweep varies {' and '.join(names)}. They vary: {varied}."
        )
    return found


def _require_points(points: dict[str, list[Any]]) -> None:
    """Drops methods without any point.

    Raises:
      DrawingError: if there is none.
    """
    for method in [method for method, found in points.items() if not found]:
        del points[method]
    if not points:
        raise DrawingError("There is nothing to draw: no setting of this sweep has a finite score.")


def _rates_on(axes: Axes, axis: str, grid: Sequence[float], drawn: Sequence[float]) -> None:
    """A logarithmic axis with the grid's values at its ticks, of which all are seen."""
    set_scale = axes.set_xscale if axis == "x" else axes.set_yscale
    set_limits = axes.set_xlim if axis == "x" else axes.set_ylim
    ticks = axes.xaxis if axis == "x" else axes.yaxis
    low, high = float(grid[0]), float(grid[-1])
    if low > 0:
        set_scale("log")
        factor = max(high / low, 1.2) ** 0.06
        set_limits(low / factor, high * factor)
    elif low == 0 and high > 0:  # a client rate of 0 is FedSGD's
        least = min(value for value in grid if value > 0)
        set_scale("symlog", linthresh=least)
        set_limits(-least / 3, high * 1.5)
    else:
        axes.autoscale_view(scalex=axis == "x", scaley=axis == "y")
    shown = grid if len(grid) <= 12 else sorted(set(drawn))
    ticks.set_ticks(list(shown), [_number(value) for value in shown])
    ticks.set_ticks([], minor=True)


def _aside(axes: Axes, number: int, count: int) -> Transform:
    """Where a method's points are drawn: some points of a font beside the other methods'."""
    move = (number - (count - 1) / 2) * _APART / 72
    return axes.transData + ScaledTranslation(move, 0, axes.figure.dpi_scale_trans)


def _others_of(choice: Choice, methods: Sequence[str], names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(
        name for method in methods for name in others(choice, method, names)
    ))


def _over(names: Sequence[str]) -> list[str]:
    return [f"best{_best_over(names)}"] if names else []


def _best_over(names: Sequence[str]) -> str:
    return f" over {', '.join(map(_words, names))}" if names else ""


def _words(name: str) -> str:
    return name.replace("_", " ")


def _number(value: Any) -> str:
    return f"{value:.3g}" if is_number(value) else str(value)
