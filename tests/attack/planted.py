"""Trials that must be found, and one that must not: they prove that the attack can fail."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np

from attack import commands


def works() -> str:
    return "done"


def late() -> None:
    time.sleep(60)


def greedy() -> int:
    return int(np.ones(2**24).sum())  # 128 MiB, and no longer held in the end


def dies() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def raises() -> None:
    raise KeyError("x")


def leaks() -> None:
    """A title of the terminal, which a name has set, among colours that are fedax's own."""
    commands.require_plain(["x"], "\x1b[31mred\x1b[0m", terminal=True)
    commands.require_plain(["x"], "\x1b[31mred\x1b[0m \x1b]0;EVIL\x07", terminal=True)


def changes() -> None:
    folder = Path("mine")
    folder.mkdir()
    (folder / "thesis").write_text("mine")
    before = commands.digest(folder)
    commands.require_same(before, folder, "nothing")
    (folder / "thesis").write_text("yours")
    commands.require_same(before, folder, "something")
