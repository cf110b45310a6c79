"""SQLite files inside folders that may be a stranger's: what they may define.

A view or a trigger is a program that runs when a library reads or writes a table.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Collection
from pathlib import Path

# Seconds to wait for a process that is writing.
PATIENCE = 60
# A trigger that only refuses a change, as MLflow has one.
_REFUSES = re.compile(
    r"CREATE TRIGGER \w+\s+BEFORE UPDATE ON \w+\s+FOR EACH ROW\s+WHEN [\w\s.!=]+"
    r"BEGIN\s+SELECT RAISE\(ABORT, '[^']*'\);\s+END",
    re.IGNORECASE | re.ASCII,
)

Definition = tuple[str, str, str | None]


def unknown_in(path: Path, known: Collection[Definition] | None = None) -> str | None:
    """What an SQLite file defines that its library does not: a phrase, or None.

    Args:
      path: the file; one that is not there defines nothing.
      known: type, name and statement of all that the library defines; None: tables and indexes
        may be any, and a trigger may refuse a change.

    Raises:
      OSError: the file cannot be read as a database.
    """
    if not path.exists():
        return None
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=PATIENCE)) as database:
            found = database.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
    except sqlite3.Error as error:
        raise OSError(None, str(error), str(path)) from None
    for kind, name, statement in found:
        if known is None:
            virtual = re.match(r"CREATE\s+VIRTUAL", str(statement), re.IGNORECASE)
            good = (kind in ("table", "index") and not virtual) or (
                kind == "trigger" and _REFUSES.fullmatch(str(statement).strip())
            )
        else:
            good = (kind, name, statement) in known
        if not good:
            return f"the {kind} {str(name)[:40]!r}"
    return None
