"""How all pictures look: colours and lines that stay apart, for the colour-blind and in grey."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

# Colours that stay apart for the colour-blind (Okabe and Ito 2008), the darker ones first.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
# Where colours are not seen, these keep lines apart, and these the points.
_DASHES: tuple[Any, ...] = (
    "-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)), (0, (9, 3)),
    (0, (6, 1.2, 1.2, 1.2, 1.2, 1.2)),
)
_MARKERS = ("o", "s", "^", "D", "v", "P")
# A line of fewer points is drawn with them.
MOST_MARKERS = 60
# An axis of positive values that spans such a factor is logarithmic.
_DECADES = 100.0
# Letters of a label that are shown, letters per line, and letters of a note per inch.
_MOST_LETTERS = 150
_LABEL_LETTERS = 56
_LETTERS_AN_INCH = 13
_UPRIGHT_LETTERS_AN_INCH = 9
# Matplotlib's size of a figure's only place, in parts of the figure.
_WHOLE_WIDTH, _WHOLE_HEIGHT = 0.775, 0.77
# What a metric with one of these words in its name counts in parts of 1.
_SHARES = {"accuracy", "precision", "recall"}


def line_style(number: int) -> dict[str, Any]:
    """Colour, dashes and marker of a picture's lines by number; 36 are different."""
    colours = len(COLOURS)
    return {
        "color": COLOURS[number % colours],
        "linestyle": _DASHES[(number + number // colours) % len(_DASHES)],
        "marker": _MARKERS[number % len(_MARKERS)],
    }


def tidy(axes: Axes) -> None:
    """A light grid, and no frame at the top and at the right."""
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def units(axis: Axis, metric: str) -> None:
    """Shows a metric's values with its unit, as far as its name says it."""
    from matplotlib.ticker import EngFormatter, PercentFormatter  # noqa: PLC0415 - slow to import

    if is_share(metric):
        axis.set_major_formatter(PercentFormatter(1.0))
    elif "bytes" in metric.split("_"):
        axis.set_major_formatter(EngFormatter("B"))


def is_share(metric: str) -> bool:
    """Whether a metric is counted in parts of 1, so that per cent are its unit.

    Example:
      >>> is_share("test_accuracy"), is_share("train_loss")
      (True, False)
    """
    return bool(_SHARES & set(metric.split("_")))


def spans_decades(values: np.ndarray) -> bool:
    """Whether values are best seen on a logarithmic axis; not finite ones do not count.

    Example:
      >>> spans_decades(np.array([0.01, 3.0])), spans_decades(np.array([0.0, 1e6]))
      (True, False)
    """
    values = values[np.isfinite(values)]
    with np.errstate(over="ignore"):
        return bool(len(values) and values.min() > 0 and values.max() / values.min() >= _DECADES)


def inches(axes: Axes) -> tuple[float, float]:
    """Width and height of the axes' place in its figure, words beside them included."""
    place = axes.get_subplotspec()
    figure: Any = axes.figure
    width, height = figure.bbox.width / figure.dpi, figure.bbox.height / figure.dpi
    if place is None:
        return width, height
    part = place.get_position(figure)
    return width * part.width / _WHOLE_WIDTH, height * part.height / _WHOLE_HEIGHT


def note(axes: Axes, sentences: Sequence[str]) -> None:
    """Says above the picture how to read it, in lines as wide as its place."""
    if sentences:
        width = inches(axes)[0] * _LETTERS_AN_INCH
        words = plain("; ".join(sentences) + ".", 1000)
        text = "\n".join(textwrap.wrap(words, max(int(width), 24)))
        axes.set_title(text, fontsize=8, loc="left", color="#444", parse_math=False)


def capital(text: str) -> str:
    """The text with a capital letter, as labels of axes have it."""
    return text[:1].upper() + text[1:]


def upright(axes: Axes, text: str) -> str:
    """A text in lines as long as the axes are high, for what stands beside them."""
    letters = inches(axes)[1] * _UPRIGHT_LETTERS_AN_INCH
    return "\n".join(textwrap.wrap(text, max(int(letters), 16), break_on_hyphens=False))


def legend(
    axes: Axes, handles: Sequence[Any], labels: Sequence[str], *, below: bool = False
) -> None:
    """A legend in which names stand as they are, whatever they are.

    Below the axes, in three columns, it hides no line.
    """
    place: dict[str, Any] = {"ncols": 1 if len(labels) <= 8 else 2}
    if below:
        place = {"ncols": 3, "loc": "upper center", "bbox_to_anchor": (0.5, -0.15)}
    shown = axes.legend(
        handles, ["\n".join(textwrap.wrap(plain(label), _LABEL_LETTERS, drop_whitespace=False))
                  for label in labels], frameon=True, framealpha=0.9,
        edgecolor="none", fontsize="small", handlelength=3.5, **place,
    )
    for text in shown.get_texts():
        text.set_parse_math(False)


def plain(text: str, most: int = _MOST_LETTERS) -> str:
    r"""A text that Matplotlib draws as it is: printable, short and no private label.

    Example:
      >>> plain("_a\n"), plain("b" * 10, 4)
      (' _a?', 'bbbb...')
    """
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    text = text if len(text) <= most else f"{text[:most]}..."
    return f" {text}" if text.startswith("_") else text
