"""Pictures of metrics over the rounds: curves, norms of updates, drift, K and rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, MaxNLocator

from fedax.pictures.errors import DrawingError
from fedax.pictures.lines import SPENT, Against, Line, line_of
from fedax.pictures.runs import Rounds, Run, require_metric, runs_by_label, values_of
from fedax.rounds.curves import hollow, new_axes
from fedax.rounds.style import (
    MOST_MARKERS,
    capital,
    legend,
    line_style,
    note,
    spans_decades,
    tidy,
    units,
    upright,
)
from fedax.validate import check_count

# Axes' words for metrics whose names say too little.
_WORDS = {
    "pseudo_gradient_norm": "norm of the server's update (pseudo-gradient)",
    "client_drift": "client drift (mean distance from the server's model)",
    "num_local_steps": "local steps K",
}
# What a run may report of K and of its rates.
_RATES = {
    "num_local_steps": "K", "client_learning_rate": "client learning rate",
    "server_learning_rate": "server learning rate",
}
# So many blocks of rounds are drawn of update norms where nobody says their length.
_BLOCKS = 20


def curves(
    data: Rounds, metric: str = "train_loss", against: Against = "round", smoothing: int = 1,
    axes: Axes | None = None,
) -> Axes:
    """Draws a metric over the rounds: the mean over seeds as a line, their spread as a band.

    The band shows plus and minus the sample standard deviation. The line is thin and has no band
    where fewer seeds are left. A cross marks where a seed diverged, a hollow point an evaluation
    on a sample of the test examples. Positive values that span two decades get a logarithmic
    axis. A note above the picture explains these marks.

    Args:
      data: a history; a list of them, the seeds of one setting; label -> one or a list of them; a
        sweep's record, see also `best_of`; or a data frame with a column `round`, and columns
        `label` and `seed` if it contains several runs.
      metric: name of a metric, such as "test_accuracy".
      against: "round", "local_steps", "seconds", or, counted with `diagnostics=True`, "bytes" (down
        and up) or "bytes_up".
      smoothing: number of rounds of the running mean, which is taken for each seed.
      axes: axes to draw on; None: a new figure. `axes.figure.savefig` writes it.

    Raises:
      DrawingError: if there is nothing to draw; the message says why. It is a ValueError.

    Example:
      >>> from fedax import History
      >>> seeds = [History([{"round": r, "train_loss": a / r} for r in (1, 2, 3)]) for a in (1, 3)]
      >>> axes = curves({"fedavg": seeds, "fedadam": seeds[0]})
      >>> axes.get_lines()[0].get_ydata().tolist()
      [2.0, 1.0, 0.6666666666666666]
    """
    _check_rounds("smoothing", smoothing)
    groups = runs_by_label(data)
    require_metric(groups, metric)
    lines = {
        label: line_of(label, runs, metric, against, smoothing) for label, runs in groups.items()
    }
    if not any(len(line.rounds) for line in lines.values()):
        raise DrawingError(
            f"There is nothing to draw: {metric!r} is finite in no round"
            f"{' of any run' if len(lines) > 1 else ''}."
        )
    axes = new_axes() if axes is None else axes
    handles = [_draw(axes, line, number) for number, line in enumerate(lines.values())]
    _scale(axes, [line.mean for line in lines.values()])
    axes.set(xlabel=SPENT[against][1], ylabel=upright(axes, capital(_words(metric))))
    units(axes.yaxis, metric)
    _label_x(axes, against)
    tidy(axes)
    _name(axes, handles, {
        label if len(line.rounds) else f"{label} (no finite value)": line
        for label, line in lines.items()
    })
    note(axes, [*_told(list(lines.values())), *_smoothed(smoothing)])
    return axes


def update_norms(data: Rounds, window: int | None = None, axes: Axes | None = None) -> Axes:
    """Draws the norm of the server's update: mean and spread in blocks of rounds.

    As in Charles and Konečný 2020, Figure 3: each point is the mean of the norm over a block of
    consecutive rounds and all seeds, and the band shows plus and minus the sample standard
    deviation within it. An incomplete last block is drawn as well.

    Args:
      data: as for `curves`, of runs with `diagnostics=True`.
      window: rounds per block; None: 1/20 of the rounds. The paper uses 1,000.
      axes: axes to draw on; None: a new figure.

    Raises:
      DrawingError: if there is nothing to draw; the message says why.

    Example:
      >>> from fedax import History
      >>> norms = (1.0, 3.0, 4.0, 4.0)
      >>> rounds = [{"round": r, "pseudo_gradient_norm": n} for r, n in enumerate(norms, 1)]
      >>> update_norms(History(rounds), window=2).get_lines()[0].get_ydata().tolist()
      [2.0, 4.0]
    """
    metric = "pseudo_gradient_norm"
    groups = runs_by_label(data)
    require_metric(groups, metric)
    if window is None:
        most = max(len(run.history) for runs in groups.values() for run in runs)
        window = max(most // _BLOCKS, 1)
    _check_rounds("window", window)
    lines = {label: _blocks(runs, metric, window) for label, runs in groups.items()}
    if not any(len(line.rounds) for line in lines.values()):
        raise DrawingError(f"There is nothing to draw: {metric!r} is finite in no round.")
    axes = new_axes() if axes is None else axes
    handles = [_draw(axes, line, number) for number, line in enumerate(lines.values())]
    _scale(axes, [line.mean for line in lines.values()])
    axes.set(xlabel="Round", ylabel=upright(axes, capital(_WORDS[metric])))
    _label_x(axes, "round")
    tidy(axes)
    _name(axes, handles, lines)
    seeds = " and seeds" if any(line.num_seeds > 1 for line in lines.values()) else ""
    few = "round" if window == 1 else f"{window:,} rounds"
    spread = any(np.isfinite(line.spread).any() for line in lines.values())
    band = "; bands: \N{PLUS-MINUS SIGN} standard deviation within them" if spread else ""
    note(axes, [f"each point: mean over {few}{seeds}{band}"])
    return axes


def drift(
    data: Rounds, against: Against = "round", smoothing: int = 1, axes: Axes | None = None
) -> Axes:
    """Draws the clients' mean distance from the server's model after local training.

    Args:
      data, against, smoothing, axes: as for `curves`, of runs with `diagnostics=True`.

    Raises:
      DrawingError: if there is nothing to draw; the message says why.

    Example:
      >>> from fedax import History
      >>> drift(History([{"round": 1, "client_drift": 0.5}])).get_lines()[0].get_ydata().tolist()
      [0.5]
    """
    return curves(data, "client_drift", against, smoothing, axes)


def rates(data: Rounds, axes: Axes | None = None) -> Axes:
    """Draws the local steps K and the reported learning rates, all on one axis.

    K is the mean over a round's clients. Methods report learning rates that follow the training
    loss, such as those of `fedax.algorithms.local_update_decay`.

    Args:
      data, axes: as for `curves`.

    Raises:
      DrawingError: if there is nothing to draw; the message says why.

    Example:
      >>> from fedax import History
      >>> axes = rates(History([{"round": r, "num_local_steps": 6 / r} for r in (1, 2)]))
      >>> axes.get_lines()[0].get_ydata().tolist(), axes.get_ylabel()
      ([6.0, 3.0], 'K')
    """
    groups = runs_by_label(data)
    lines: dict[str, Line] = {}
    shown: dict[str, None] = {}
    for label, runs in groups.items():
        for metric, words in _RATES.items():
            if any(len(values_of(run.history, metric)[0]) for run in runs):
                lines[f"{label}: {words}" if label else words] = line_of(
                    label, runs, metric, "round", 1
                )
                shown[words] = None
    if not lines:
        require_metric(groups, "num_local_steps")
        raise DrawingError("There is nothing to draw: no rate is finite in any round.")
    axes = new_axes() if axes is None else axes
    handles = [_draw(axes, line, number) for number, line in enumerate(lines.values())]
    _scale(axes, [line.mean for line in lines.values()])
    axes.set(xlabel="Round", ylabel=upright(axes, capital(", ".join(shown))))
    _label_x(axes, "round")
    tidy(axes)
    if len(lines) > 1:
        _name(axes, handles, lines)
    note(axes, _told(list(lines.values())))
    return axes


def _check_rounds(name: str, count: int) -> None:
    try:
        check_count(name, count, at_least=1)
    except (TypeError, ValueError) as error:
        raise DrawingError(str(error)) from None


def _blocks(runs: Sequence[Run], metric: str, window: int) -> Line:
    """Mean and standard deviation in each block of rounds, over all seeds together."""
    measured = [values_of(run.history, metric) for run in runs]
    rounds = np.concatenate([rounds for rounds, _ in measured])
    values = np.concatenate([values for _, values in measured])
    rounds, values = rounds[np.isfinite(values)], values[np.isfinite(values)]
    blocks = [(rounds - 1) // window == block for block in np.unique((rounds - 1) // window)]
    counts = np.array([block.sum() for block in blocks], int)
    return Line(
        np.array([rounds[block].max() for block in blocks], int),
        np.array([rounds[block].mean() for block in blocks], float),
        np.array([values[block].mean() for block in blocks], float),
        np.array([values[block].std(ddof=1) if block.sum() > 1 else np.nan for block in blocks]),
        counts, np.zeros(len(blocks), bool), [], len(runs),
    )


def _draw(axes: Axes, line: Line, number: int) -> object:
    """Draws a line, its band, its thin end and its crosses; what the legend shows of it."""
    look = line_style(number)
    marker = look.pop("marker")
    look |= {"marker": marker if len(line.rounds) < MOST_MARKERS else None, "markersize": 3}
    # In blocks of rounds counts say nothing of seeds, and every block is drawn alike.
    whole = line.counts >= line.num_seeds
    (drawn,) = axes.plot(line.x[whole], line.mean[whole], **look)
    band = whole & np.isfinite(line.spread)
    if band.any():
        axes.fill_between(
            line.x[band], (line.mean - line.spread)[band], (line.mean + line.spread)[band],
            color=look["color"], alpha=0.18, linewidth=0,
        )
    hollow(axes, drawn, line.sampled[whole])
    if not whole.all():
        # From the last point of all seeds, so that there is no gap.
        rest = np.arange(len(whole)) >= max(int(whole.sum()) - 1, 0)
        (thin,) = axes.plot(line.x[rest], line.mean[rest], **look, linewidth=0.7)
        hollow(axes, thin, line.sampled[rest])
    if line.diverged:
        places = sorted(set(line.diverged))
        axes.plot(
            line.x[places], line.mean[places], "x", color="black", markersize=8,
            markeredgewidth=1.8, zorder=4,
        )
    return drawn


def _scale(axes: Axes, means: Sequence[np.ndarray]) -> None:
    """A logarithmic axis where values span decades."""
    if spans_decades(np.concatenate([np.ravel(mean) for mean in means])):
        axes.set_yscale("log")


def _label_x(axes: Axes, against: str) -> None:
    if against == "round":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter("{x:,g}")
    elif against in ("bytes", "bytes_up"):
        axes.xaxis.set_major_formatter(EngFormatter("B"))
    elif against == "local_steps":
        axes.xaxis.set_major_formatter("{x:,g}")


def _words(metric: str) -> str:
    return _WORDS.get(metric, metric.replace("_", " "))


def _name(axes: Axes, handles: Sequence[object], lines: Mapping[str, Line]) -> None:
    """A legend, unless there is one line that nobody gave a name."""
    if list(lines) != [""]:
        legend(axes, handles, list(lines))


def _told(lines: Sequence[Line]) -> list[str]:
    """What a reader must know of the lines."""
    seeds = sorted({line.num_seeds for line in lines} - {1})
    told = []
    if seeds:
        told.append(f"lines: mean over {' or '.join(map(str, seeds))} seeds")
    if any(np.isfinite(line.spread).any() for line in lines):
        told.append("bands: \N{PLUS-MINUS SIGN} sample standard deviation over seeds")
    if any((line.counts < line.num_seeds).any() for line in lines):
        told.append("thin: fewer seeds, as others have ended")
    if any(line.diverged for line in lines):
        told.append("cross: a seed diverged")
    if any(line.sampled.any() for line in lines):
        told.append("hollow points: sample of the test examples")
    return told


def _smoothed(smoothing: int) -> list[str]:
    return [] if smoothing == 1 else [f"smoothed over {smoothing:,} rounds"]
