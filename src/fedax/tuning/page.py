"""The page of a sweep folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedax.experiment.folder import read_config, read_summary
from fedax.files.regular import write_atomically
from fedax.report.sweep_page import sweep_page
from fedax.sweeps.choosing import Choice
from fedax.sweeps.record import Record
from fedax.tuning.folder import config_of_method, read_sweep_config

PAGE = "report.html"


def bases(folder: Path, config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The configuration of each method's first run, as its file has it: no code of it is looked up.

    Args:
      folder: the sweep's.
      config: what its config.json holds.

    Returns:
      Nothing of a sweep that Python made.

    Raises:
      RunError: if a file is damaged.
    """
    if "python" in config:
        return {}
    return {
        method: read_config(config_of_method(folder, place).parent)
        for place, method in enumerate(config["grid"])
    }


def write_page(folder: Path, record: Record, choice: Choice) -> None:
    """Writes a sweep's page, from its folder's configuration and summary.

    Args:
      folder: the sweep's.
      record: its rounds.
      choice: what was chosen of it.

    Raises:
      OSError: if the disk is full or not writable.
      RunError: if the configuration is damaged.
    """
    content = sweep_page(record, choice, read_sweep_config(folder), read_summary(folder))
    write_atomically(folder / PAGE, content.encode())
