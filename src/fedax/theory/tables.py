"""Reads tables of names and values from untrusted .json and .toml files."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from fedax.files.regular import open_file

# A file of more bytes is not read. What JSON becomes in memory is up to twenty times its size, and
# tomllib, which is Python, reads a megabyte in about a second.
MOST_BYTES = {".json": 2**26, ".toml": 2**22}
# Maximum nesting of tables and lists; Python's recursion ends near a thousand.
DEEPEST = 50


def read_text(path: Path, most: int, *, links: bool = True) -> str:
    """The text of a file, of which at most a given number of bytes are read.

    Args:
      path: the file.
      most: maximum number of bytes.
      links: whether to follow a link, as for a file that the user names.

    Raises:
      OSError: if the file cannot be read.
      ValueError: if it is larger, or no text.
    """
    with open_file(path, links=links) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it is larger than {most / 2**20:g} MiB")
    return content.decode("utf-8-sig")  # some editors begin a file with a mark


def read_table(path: Path, *, links: bool = True) -> Any:
    """The table in a .json file, or in a .toml file for any other ending.

    Args:
      path: the file.
      links: as for `read_text`.

    Raises:
      OSError: if the file cannot be read.
      ValueError: if it is too large, cannot be parsed or is nested too deeply.
    """
    ending = path.suffix.lower()
    read, most = (json.loads, MOST_BYTES[ending]) if ending == ".json" else (
        tomllib.loads, MOST_BYTES[".toml"]
    )
    try:
        value = read(read_text(path, most, links=links))
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if _is_deep(value):
        raise ValueError(_TOO_DEEP)
    return value


_TOO_DEEP = f"its tables and lists are nested more than {DEEPEST} deep"


def _is_deep(value: Any) -> bool:
    """Whether it nests deeper than `DEEPEST`."""
    level = [value]
    for _ in range(DEEPEST):
        level = [
            item for value in level if isinstance(value, dict | list)
            for item in (value.values() if isinstance(value, dict) else value)
            if isinstance(item, dict | list)
        ]
        if not level:
            return False
    return True
