"""Files and folders that may be a stranger's: what is opened, and what may be written into.

Only regular files are opened, as a named pipe would be waited for and a device never ends. Inside
a folder of fedax no link is followed, so that nothing outside it is read or written.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import secrets
import stat
import time
from pathlib import Path

# How the name of a file ends that is not whole yet; before it is a word of its own where others may
# write the same file.
PARTIAL = ".partial"
_PARTIAL = re.compile(r"(\.[0-9a-f]{8})?\.partial\Z", re.ASCII)
LOCK = ".lock"
# How a journal of SQLite ends that names another file, which SQLite then deletes.
_NAMES_ANOTHER = bytes.fromhex("d9d505f920a163d7")


def open_file(path: Path, *, links: bool = False) -> io.BufferedReader:
    """Opens a regular file to read; a pipe, a socket or a device is not opened.

    Args:
      path: the file.
      links: whether a link is followed, as of a file that the user names.

    Raises:
      OSError: it cannot be opened, or is not a regular file.
    """
    mode = (path.stat() if links else path.lstat()).st_mode
    if not stat.S_ISREG(mode):
        what = "It is a folder" if stat.S_ISDIR(mode) else "It is not a regular file"
        raise OSError(errno.EINVAL, what, str(path))
    return path.open("rb")


def read_file(path: Path, most_bytes: int | None = None, *, links: bool = False) -> bytes:
    """Reads a regular file, see `open_file`.

    Raises:
      OSError: it cannot be read, is not a regular file or has more bytes than that.
    """
    with open_file(path, links=links) as file:
        if most_bytes is not None and os.fstat(file.fileno()).st_size > most_bytes:
            raise OSError(errno.EFBIG, f"It has more than {most_bytes:,} bytes", str(path))
        return file.read()


def link_to(folder: Path, *names: str) -> str | None:
    """A sentence if a link leads from a folder to a place below it; None if there is none."""
    for name in names:
        folder /= name
        if folder.is_symlink():
            return _is_a_link(folder)
    return None


def _is_a_link(path: Path | str) -> str:
    return f"{path} is a link that fedax did not make. Remove it."


def whole_name(name: str) -> str:
    """The name of the file that one becomes when it is whole.

    Example:
      >>> whole_name("report.html.00ff00ff.partial"), whole_name("report.html")
      ('report.html', 'report.html')
    """
    return _PARTIAL.sub("", name)


def write_as_named(path: Path, content: bytes) -> None:
    """Writes a file that the user named: links are followed, and others may write it, too.

    What is no file is written into, such as a pipe, and so is standard output.

    Raises:
      OSError: it cannot be written.
    """
    try:
        there = path.stat()
    except FileNotFoundError:
        there = None
    output = there and _output(there)
    if output is None and (there is None or stat.S_ISREG(there.st_mode)):
        write_atomically(Path(os.path.realpath(path)), content, alone=False)
        return
    with path.open("wb") if output is None else os.fdopen(os.dup(output), "wb") as file:
        file.write(content)


def _output(there: os.stat_result) -> int | None:
    """The descriptor of a file that is standard output or error (`--out /dev/stdout > file`)."""
    for number in (1, 2):
        with contextlib.suppress(OSError):
            if os.path.samestat(there, os.fstat(number)):
                return number
    return None


def write_atomically(path: Path, content: bytes, *, alone: bool = True) -> None:
    """Writes a file that is the old one or the new one, never half of it; follows no link.

    Args:
      path: the file.
      content: of it.
      alone: whether nobody else writes it now, as where the folder is locked; a file that was left
        half is then written over.
    """
    own = "" if alone else f".{secrets.token_hex(4)}"
    partial = path.with_name(path.name + own + PARTIAL)
    try:
        partial.unlink(missing_ok=True)
        with partial.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        _rename(partial, path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def _rename(partial: Path, path: Path) -> None:
    """Renames; on Windows again and again for a while, as somebody may be reading the old file."""
    for _ in range(100 if os.name == "nt" else 0):
        with contextlib.suppress(PermissionError):
            partial.replace(path)
            return
        time.sleep(0.01)
    partial.replace(path)


def not_plain(folder: Path) -> str | None:
    """Why fedax must not write into a folder: a sentence, or None if it may.

    Everything below must be a file or a folder of its own. Then whatever is written, replaced or
    removed there, by fedax or by a library, is inside the folder.

    Raises:
      OSError: a folder in it cannot be read.
    """
    ahead = [folder]
    while ahead:
        with os.scandir(ahead.pop()) as entries:
            for entry in entries:
                if entry.is_symlink():
                    if _is_of_wandb(Path(entry.path).relative_to(folder)):
                        continue
                    return _is_a_link(entry.path)
                if entry.is_dir(follow_symlinks=False):
                    ahead.append(Path(entry.path))
                elif not entry.is_file(follow_symlinks=False):
                    return f"{entry.path} is not a regular file. Remove it."
                elif entry.name == LOCK or ".db" in entry.name:  # written in place, not replaced
                    wrong = _wrong_in_place(entry)
                    if wrong is not None:
                        return wrong
    return None


def _is_of_wandb(place: Path) -> bool:
    """Whether a link is among the logs of Weights & Biases, which makes some.

    Only that library writes there, and the sink removes all links before it does.
    """
    logs, *inside = place.parent.parts or ("",)
    return logs == "logs" and "wandb" in inside[:2]


def _wrong_in_place(entry: os.DirEntry[str]) -> str | None:
    """Why a lock or a database must not be opened for writing."""
    found = entry.stat(follow_symlinks=False)
    if found.st_nlink > 1:
        return (
            f"{entry.path} has a second name elsewhere (a hard link). Replace it by a copy of "
            "its own, or remove it."
        )
    if entry.name.endswith("-journal") and found.st_size >= len(_NAMES_ANOTHER):
        with open_file(Path(entry.path)) as file:
            file.seek(-len(_NAMES_ANOTHER), os.SEEK_END)
            if file.read() == _NAMES_ANOTHER:
                return (
                    f"{entry.path} names a file that SQLite would delete, and fedax did not "
                    "write it. Remove it."
                )
    return None
