"""The folders that a command is given: which are sweeps, and what to call them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedax.experiment.folder import SWEEP, read_config


def is_sweep(folder: Path) -> bool:
    """Whether a folder is a sweep's, or else a run's.

    Raises:
      RunError: it is neither.
    """
    return read_config(folder).get("kind") == SWEEP


def distinct_names(folders: Sequence[Path]) -> list[str]:
    """Folders by the last part of their names, or in full where that is not enough."""
    short = [folder.resolve().name for folder in folders]
    return [
        name if short.count(name) == 1 else str(folder)
        for name, folder in zip(short, folders, strict=True)
    ]
