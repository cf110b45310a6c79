"""The folders that a command is given: which are sweeps, and what to call them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from fedax.experiment.folder import CONFIG, read_file


def is_sweep(folder: Path) -> bool:
    """Whether a folder is a sweep's; of what is neither that nor a run's, reading it says so."""
    try:
        config = json.loads(read_file(folder / CONFIG))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(config, dict) and config.get("kind") == "sweep"


def distinct_names(folders: Sequence[Path]) -> list[str]:
    """Folders by the last part of their names, or in full where that is not enough."""
    short = [folder.resolve().name for folder in folders]
    return [
        name if short.count(name) == 1 else str(folder)
        for name, folder in zip(short, folders, strict=True)
    ]
