"""Commands in a kept process: what they say to a pipe or to a terminal, and what is left of it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pty
import re
import sys
import tempfile
import termios
import threading
from collections.abc import Iterator
from pathlib import Path

from attack.outcomes import NOISE, UNSEEN, FoundError, require_sentence

# What a terminal is sent for colours, and for a bar that is drawn again: fedax's own.
OWN = re.compile(r"\x1b\[[0-9;]*m|\x1b\[[0-9]*[ABCDGJK]|\x1b\[\?25[hl]|\r")


def run(words: list[str], terminal: bool = False) -> tuple[int, str, str]:
    """A command in this process.

    Args:
      words: of the command line.
      terminal: whether it writes to a terminal, on which both outputs are one.

    Returns:
      The exit status, and what was written to standard output and standard error.
    """
    from fedax.cli.main import run_command

    with _written(terminal) as said:
        try:
            status = run_command(words)
        except SystemExit as stop:  # of the parser of the command line
            status = stop.code if isinstance(stop.code, int) else 1
    return status, said[0], said[-1]


@contextlib.contextmanager
def _written(terminal: bool) -> Iterator[list[str]]:
    """What is written to descriptors 1 and 2 in the block, by whatever library."""
    said: list[str] = []
    kept = [os.dup(1), os.dup(2)]
    reader = None
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        ours = [output.fileno(), errors.fileno()]
        if terminal:
            screen, ours[0] = pty.openpty()
            mode = termios.tcgetattr(ours[0])
            mode[1] &= ~termios.OPOST  # as written
            termios.tcsetattr(ours[0], termios.TCSANOW, mode)
            ours[1] = os.dup(ours[0])
            reader = threading.Thread(target=_copy, args=(screen, output.fileno()))
            reader.start()
        try:
            for number, our in enumerate(ours, 1):
                os.dup2(our, number)
            yield said
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, keep in enumerate(kept, 1):
                os.dup2(keep, number)
                os.close(keep)
            if reader is not None:
                for our in ours:
                    os.close(our)
                reader.join()
                os.close(screen)
            for file in (output, errors):
                file.seek(0)
                said.append(file.read().decode("utf-8", "backslashreplace"))
            if terminal:
                del said[1:]


def _copy(screen: int, file: int) -> None:
    """Until the last writer of the terminal has closed it."""
    while True:
        try:
            content = os.read(screen, 2**16)
        except OSError:  # EIO: there is no writer
            return
        if not content:
            return
        os.write(file, content)


def require_plain(words: list[str], said: str, terminal: bool) -> None:
    """Raises FoundError if something was said that commands a terminal, or hides what it is."""
    plain = OWN.sub("", said) if terminal else said
    unseen = UNSEEN.search(plain)
    if unseen:
        around = plain[max(0, unseen.start() - 60) : unseen.end() + 30]
        raise FoundError(f"fedax {' '.join(words)!r} wrote {around!r}")


def require_fair(words: list[str], status: int, errors: str) -> None:
    """Raises FoundError unless the command did its work or said one sentence."""
    what = f"fedax {' '.join(words)}"
    if status == 2:  # of the command line's parser, in a frame
        if NOISE.search(errors):
            raise FoundError(f"{what} said {errors[-1500:]}")
        return
    require_sentence(status, errors, what)


def digest(folder: Path) -> dict[str, str]:
    """What a folder holds, to the byte: names, kinds, modes and contents."""
    found = {}
    for path in sorted(folder.rglob("*")):
        mode = f"{path.lstat().st_mode:o} "
        if path.is_symlink():
            found[str(path)] = f"{mode}{path.readlink()}"
        elif path.is_file():
            found[str(path)] = mode + hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            found[str(path)] = mode
    return found


def require_same(before: dict[str, str], folder: Path, what: str) -> None:
    """Raises FoundError if something in the folder is not as it was."""
    after = digest(folder)
    changed = sorted(
        Path(name).name for name in before | after if before.get(name) != after.get(name)
    )
    if changed:
        raise FoundError(f"{what}: changed outside of the folder: {', '.join(changed[:8])}")
