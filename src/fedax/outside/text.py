r"""Text for people that commands no terminal, whatever a stranger's file or a path holds.

Control characters, escape sequences, directions of writing that hide something, and halves of
letters become escapes of Python, such as `\x1b`.
"""

from __future__ import annotations

from collections.abc import Sequence


def printable(text: str, keep: str = "") -> str:
    r"""The text with what no terminal should get written out.

    Args:
      text: any.
      keep: what is left as it is nevertheless, such as line breaks.

    Example:
      >>> printable("ada\x1b[2J")
      'ada\\x1b[2J'
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in keep
        else letter.encode("unicode_escape").decode()
        for letter in text
    )


def in_columns(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of text, whose columns stand below each other.

    Example:
      >>> print(in_columns(["method", "loss"], [["fedavg", "1.5"], ["mime", "0.25"]]))
      method  loss
      fedavg  1.5
      mime    0.25
    """
    lines = [[printable(cell) for cell in row] for row in (headings, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


class Told(Exception):  # noqa: N818 - only a base of errors
    """An error whose message is for people, so that it is printable wherever it is shown."""

    def __str__(self) -> str:
        return printable(super().__str__(), "\n\t")
