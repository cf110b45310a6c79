"""Files that a command writes where its user wants them."""

from __future__ import annotations

import errno
from pathlib import Path

from fedax.experiment.folder import RunError
from fedax.files.regular import write_as_named, write_atomically


def write_result(out: Path, content: bytes, what: str, *, named: bool = True) -> None:
    """Writes a result, and the folders above it that are not there.

    Args:
      out: the file.
      content: of it.
      what: it is, for the sentence of a failure: "page", "table".
      named: whether the user named it; no link in a folder that fedax chose is followed.

    Raises:
      RunError: if it cannot be written.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if named:
            write_as_named(out, content)
        else:
            write_atomically(out, content, alone=False)
    except OSError as error:
        full = error.errno == errno.ENOSPC
        why = "the disk is full" if full else error.strerror or str(error)
        raise RunError(f"Cannot write the {what} {out}: {why}.") from None
