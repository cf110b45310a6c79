"""What a terminal gets: standard output and error of the command line, and rich's bars and tables.

Nothing reaches it that commands it, but what fedax itself has rich draw; and what its encoding
lacks is replaced.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import json
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import IO, Any, Self, cast

import rich.console
import rich.file_proxy
import rich.progress
from rich.segment import Segment

from fedax.outside.text import printable

KEPT = "\n\t"
COLOURS = re.compile(r"(\x1b\[[\d;]*m)")
# How letters look where there is only ASCII; what draws boxes becomes "+", other ones escapes.
PLAIN = {
    "\u2500": "-", "\u2501": "-", "\u2578": "-", "\u257a": "-", "\u2502": "|", "\u2503": "|",
    "\u2026": "...", "\u2013": "-", "\u2014": "-", "\u2212": "-", "\u2018": "'", "\u2019": "'",
    "\u201c": '"', "\u201d": '"', "\xd7": "x", "\xb7": ".", "\u2022": "*", "\u2192": "->",
}
FIRST_BOX, LAST_BOX = "\u2500", "\u257f"
REPLACED = "fedax-plain"


def _plain(error: UnicodeError) -> tuple[str, int]:
    """What stands for letters that an encoding lacks."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(
        PLAIN.get(letter) or (
            "+" if FIRST_BOX <= letter <= LAST_BOX else letter.encode("unicode_escape").decode()
        )
        for letter in error.object[error.start : error.end]
    ), error.end


codecs.register_error(REPLACED, _plain)


class Escaped:
    """A text stream to which nothing is written that commands a terminal.

    A carriage return passes where a text begins with it, as progress bars do.

    Args:
      stream: where the rest goes; rich, which draws by commands, writes there itself.
      colours: whether colours pass.
    """

    def __init__(self, stream: IO[str], *, colours: bool = False) -> None:
        self.rich_proxied_file = stream
        self._colours = colours

    def write(self, text: str) -> int:
        """Writes the text; returns its length."""
        start = "\r" if text.startswith("\r") else ""
        parts = COLOURS.split(text) if self._colours else [text.removeprefix(start)]
        self.rich_proxied_file.write(start + "".join(
            part if place % 2 else printable(part, KEPT) for place, part in enumerate(parts)
        ))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Writes the lines."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


def nobody_reads() -> None:
    """Lets what is still written to standard output go nowhere, as its reader is gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def without_colours() -> bool:
    """Whether the user wants no colours (https://no-color.org): NO_COLOR has a value."""
    return bool(os.environ.get("NO_COLOR"))


@contextlib.contextmanager
def escaping(*, colours: bool = False) -> Iterator[None]:
    """Within this, standard output and error are `Escaped`, and no letter is beyond them.

    Args:
      colours: whether colours pass, which the parser of the command line writes itself.
    """
    with contextlib.ExitStack() as stack:
        for name in ("stdout", "stderr"):
            if getattr(sys, name) is not None:  # it is closed
                stack.enter_context(_escaped(name, colours))
        yield


@contextlib.contextmanager
def _escaped(name: str, colours: bool) -> Iterator[None]:
    before = getattr(sys, name)
    stream: Any = before.rich_proxied_file if isinstance(before, Escaped) else before
    errors = getattr(stream, "errors", None)
    changes = errors != REPLACED and hasattr(stream, "reconfigure")
    if changes:
        _encode_with(stream, REPLACED)
    escaped = Escaped(stream, colours=colours)
    handlers = _handlers_to(stream)
    for handler in handlers:
        handler.setStream(cast(Any, escaped))
    setattr(sys, name, escaped)
    try:
        yield
    finally:
        if getattr(sys, name) is escaped:
            setattr(sys, name, before)
        for handler in handlers:
            handler.setStream(stream)
        if changes and not stream.closed:
            _encode_with(stream, errors)


def _encode_with(stream: Any, errors: str | None) -> None:
    try:
        stream.reconfigure(errors=errors)
    except OSError as error:
        # What is below the stream was exchanged for what cannot seek; it is written all the same.
        if error.errno != errno.ESPIPE:
            raise


def _handlers_to(stream: IO[str]) -> list[logging.StreamHandler[Any]]:
    """The handlers of loggers that hold a stream, such as those of JAX; others look it up."""
    loggers = [logging.getLogger(), *map(logging.getLogger, [*logging.root.manager.loggerDict])]
    return [
        handler for logger in loggers for handler in logger.handlers
        if isinstance(handler, logging.StreamHandler) and vars(handler).get("stream") is stream
    ]


class Console(rich.console.Console):
    """A console of rich that writes nothing that commands a terminal but what rich draws."""

    @property
    def file(self) -> IO[str]:
        """Where it writes: below all that escapes, or stands above a bar."""
        file = super().file
        while isinstance(file, Escaped | rich.file_proxy.FileProxy):
            file = file.rich_proxied_file
        return file

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        self._file = new_file

    def render(self, *args: Any, **kwargs: Any) -> Iterable[Segment]:
        """The pieces of what is printed."""
        for segment in super().render(*args, **kwargs):
            text = segment.text
            if segment.control or text.isprintable():
                yield segment
            else:
                yield segment._replace(text=printable(text, KEPT))


class Progress(rich.progress.Progress):
    """A bar of rich; what is printed meanwhile stands above it, and is escaped."""

    def start(self) -> None:
        """Begins to draw."""
        super().start()
        for name in ("stdout", "stderr"):
            if isinstance(getattr(sys, name), rich.file_proxy.FileProxy):
                setattr(sys, name, Escaped(getattr(sys, name)))

    def __enter__(self) -> Self:
        self.start()
        return self


def print_json(value: Any) -> None:
    """Prints JSON that other programs read, whatever letters the terminal has."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"

    def escaped(found: re.Match[str]) -> str:
        letter = found[0]
        try:
            letter.encode(encoding)
        except UnicodeEncodeError:
            return json.dumps(letter)[1:-1]
        return letter if letter.isprintable() else json.dumps(letter)[1:-1]

    print(re.sub(r"[^\n -~]", escaped, text))
