"""The picture of `fedax data describe`: the labels of clients, their sizes, their distances."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedax.data.federated_dataset import FederatedDataset
from fedax.data.label_skew import LabelSkew
from fedax.outside.text import printable
from fedax.rounds.style import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# So many clients and labels are drawn; of more, some that are evenly spread over the data set.
_MOST_CLIENTS, _MOST_LABELS = 100, 100
# One hue from white to dark reads the same in grey and for every kind of sight.
_COLOURS, _BAR = "Blues", COLOURS[0]
_MOST_LETTERS = 70
# Clients are called by their names where these are few and short; side by side they have room for
# so many letters, beyond which they stand upright.
_MOST_NAMES, _MOST_LETTERS_OF_A_NAME, _LETTERS_IN_A_ROW = 40, 24, 70


def draw_population(
    figure: Figure, name: str, dataset: FederatedDataset, skew: LabelSkew | None
) -> None:
    """Draws a column for each client with the shares of its labels, and histograms.

    Args:
      figure: an empty one.
      name: what the data set is called, for the title.
      dataset: the clients.
      skew: of their labels; None: they have none, and only sizes are drawn.
    """
    title = printable(name)
    title = title if len(title) <= _MOST_LETTERS else f"{title[:_MOST_LETTERS]}..."
    if skew is None:
        figure.set_size_inches(6, 4)
        axes = figure.subplots()
        _sizes(axes, dataset.client_sizes)
        axes.set_title(title, fontsize=10, parse_math=False)
        return
    figure.set_size_inches(10, 4.6)
    grid = figure.add_gridspec(2, 2, width_ratios=(2.2, 1))
    shares = figure.add_subplot(grid[:, 0])
    _shares(shares, skew, dataset.client_names)
    shares.set_title(title, fontsize=10, parse_math=False)
    _sizes(figure.add_subplot(grid[0, 1]), dataset.client_sizes)
    distances = figure.add_subplot(grid[1, 1])
    _histogram(
        distances, skew.distance, np.linspace(0, 1, 41),
        "Distance from the population's label distribution",
    )


def _shares(axes: Axes, skew: LabelSkew, names: np.ndarray) -> None:
    """Label by client, the darker the larger the label's share of the client's examples."""
    clients = _spread(len(skew.sizes), _MOST_CLIENTS)
    labels = _spread(len(skew.labels), _MOST_LABELS)
    drawn = axes.imshow(
        skew.shares_of(clients)[:, labels].T, cmap=_COLOURS, vmin=0, vmax=1, aspect="auto",
        origin="lower", interpolation="nearest",
    )
    axes.figure.colorbar(drawn, ax=axes, label="Share of the client's examples", pad=0.02)
    if not _name_clients(axes, names):
        _ticks(axes.xaxis, clients)
    _ticks(axes.yaxis, skew.labels[labels])
    axes.set_xlabel(_counted("client", len(clients), len(skew.sizes)))
    axes.set_ylabel(_counted("label", len(labels), len(skew.labels)))


def _sizes(axes: Axes, sizes: np.ndarray) -> None:
    """How many clients have how many examples."""
    low, high = sizes.min(), sizes.max()
    if low == high:
        bins = np.array([low - 0.5, low + 0.5])
        axes.set_xlim(low - 3, low + 3)
        axes.set_xticks([low])
    elif high > 20 * low:
        bins = np.geomspace(low, high, 31)
        axes.set_xscale("log")
    else:
        bins = np.linspace(low, high, 31)
    _histogram(axes, sizes, bins, "Examples per client")


def _histogram(axes: Axes, values: np.ndarray, bins: np.ndarray, what: str) -> None:
    axes.hist(values, bins=bins.tolist(), color=_BAR, edgecolor="white", linewidth=0.4)
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.set(xlabel=what, ylabel="clients")
    axes.spines[["top", "right"]].set_visible(False)


def _spread(size: int, most: int) -> np.ndarray:
    """All places, or some that are evenly spread."""
    return np.arange(size) if size <= most else np.arange(most) * size // most


def _ticks(axis: Any, values: np.ndarray) -> None:
    """Numbers at some places, of all if there are few."""
    places = np.arange(len(values)) if len(values) <= 10 else _spread(len(values), 10)
    axis.set_ticks(places, [str(values[place]) for place in places])


def _name_clients(axes: Axes, names: np.ndarray) -> bool:
    """Writes the clients' names below their columns if there is room for all of them."""
    if len(names) > _MOST_NAMES:
        return False
    texts = [printable(str(name)) for name in names.tolist()]
    longest = max(map(len, texts))
    if longest > _MOST_LETTERS_OF_A_NAME:
        return False
    upright = (longest + 1) * len(texts) > _LETTERS_IN_A_ROW
    axes.set_xticks(
        range(len(texts)), texts, rotation=90 if upright else 0, fontsize=8, parse_math=False
    )
    return True


def _counted(what: str, drawn: int, size: int) -> str:
    return what if drawn == size else f"{what} ({drawn} of {size:,})"
