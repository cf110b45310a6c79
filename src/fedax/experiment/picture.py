"""Pictures as files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fedax.experiment.folder import RunError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save_picture(draw: Callable[[Figure], None], path: Path) -> Path:
    """Draws on an empty figure and writes it; the folder is made.

    Args:
      draw: draws on the figure, whose size it may set.
      path: where; the ending says the format (.png, .svg, .pdf).

    Raises:
      RunError: it cannot be written, or there is no such format.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 - slow, and only drawing needs it

    figure = Figure(figsize=(8, 4.5), layout="constrained", dpi=150)
    draw(figure)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise RunError(f"Cannot write the picture {path}: {error}.") from None
    return path
