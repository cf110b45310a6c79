"""Writes what the methods of fedax send, which `fedax list algorithms` shows.

    python scripts/build_sent.py  # after a method is added or sends something else
"""

import json

from fedax.algorithms.registry import ALGORITHMS, WRAPPERS
from fedax.cli.catalogue import SENT, sent


def text() -> str:
    """The file, by name: what changes the order of the methods leaves it as it is."""
    names = sorted([*ALGORITHMS, *WRAPPERS])
    rows = [f"{json.dumps(name)}: {json.dumps(sent(name))}" for name in names]
    return "{\n" + ",\n".join(rows) + "\n}\n"


if __name__ == "__main__":
    SENT.write_text(text(), "utf-8")
