"""Files of arrays that are appended to, of which none stays open.

A table may have more columns, and so a store more arrays, than a process may have open files.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from fedax.data.budget import PART_BYTES


class ArrayFiles:
    """What is appended is kept in memory up to a part, and then written to each file in turn.

    Args:
      path: (name of an array) -> its file.
    """

    def __init__(self, path: Callable[[str], Path]) -> None:
        self._path = path
        self._kept: dict[str, list[bytes]] = {}
        self._size = 0

    def begin(self, name: str, head: bytes) -> None:
        """Begins an array's file again with these bytes.

        Raises:
          OSError: the disk fails.
        """
        self._path(name).write_bytes(head)
        self.go_on(name)

    def go_on(self, name: str) -> None:
        """Takes up a file that is there."""
        self._kept[name] = []

    def append(self, name: str, content: bytes) -> None:
        """Appends bytes to an array's file.

        Raises:
          OSError: the disk fails.
        """
        self._kept[name].append(content)
        self._size += len(content)
        if self._size > PART_BYTES:
            self._write()

    def save(self) -> None:
        """Has the disk keep all that was appended.

        Raises:
          OSError: the disk fails.
        """
        self._write(keep=True)

    def forget(self) -> None:
        """Forgets the files and what was not written."""
        self._kept, self._size = {}, 0

    def _write(self, *, keep: bool = False) -> None:
        kept = self._kept
        self._kept, self._size = {name: [] for name in kept}, 0
        for name, parts in kept.items():
            with self._path(name).open("ab") as file:
                file.writelines(parts)
                if keep:
                    file.flush()
                    os.fsync(file.fileno())
