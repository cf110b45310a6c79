"""Paths that users give."""

from __future__ import annotations

import os
from pathlib import Path


def expanded(path: str | os.PathLike[str]) -> Path:
    """The path, with the home folder in the place of a leading `~`, as a shell has it.

    Raises:
      ValueError: if there is no home folder.

    Example:
      >>> expanded("runs/first").as_posix()
      'runs/first'
    """
    found = os.path.expanduser(path)  # noqa: PTH111 - leaves what is no user's name, and ./~ alone
    if found == "~" or found.startswith(("~/", f"~{os.sep}")):
        raise ValueError(f"There is no home folder for {str(path)!r}. Give a path without '~'.")
    return Path(found)
