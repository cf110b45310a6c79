"""Pictures as files."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fedax.files.regular import write_as_named, write_atomically
from fedax.outside.text import Told

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class PictureError(Told, RuntimeError):
    """A picture cannot be written; the message says why."""


def require_format(path: Path) -> None:
    """Checks that a picture can be written with this ending, before it is computed.

    Raises:
      PictureError: if the format is unknown, or the name does not have an ending.
    """
    from matplotlib.backend_bases import FigureCanvasBase  # noqa: PLC0415 - as below

    known = FigureCanvasBase.get_supported_filetypes()
    if path.suffix.lower().removeprefix(".") not in known:
        raise PictureError(
            f"Cannot write the picture {path}: its name must end in one of "
            f"{', '.join(f'.{ending}' for ending in known)}."
        )


def save_picture(draw: Callable[[Figure], None], path: Path, *, named: bool = True) -> Path:
    """Draws on an empty figure and writes it; the folder is made.

    Args:
      draw: draws on the figure, whose size it may set.
      path: where; the ending says the format (.png, .svg, .pdf).
      named: whether the user named it; no link is followed to where fedax chose the name.

    Raises:
      PictureError: if the file cannot be written, or the format is unknown.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 - slow, and only drawing needs it

    figure = Figure(figsize=(8, 4.5), layout="constrained", dpi=150)
    draw(figure)
    try:
        file = io.BytesIO()
        figure.savefig(file, format=path.suffix.lower().removeprefix("."))
        path.parent.mkdir(parents=True, exist_ok=True)
        if named:
            write_as_named(path, file.getvalue())
        else:
            write_atomically(path, file.getvalue(), alone=False)
    except (OSError, ValueError) as error:
        why = (isinstance(error, OSError) and error.strerror) or str(error)
        raise PictureError(f"Cannot write the picture {path}: {why}.") from None
    return path
