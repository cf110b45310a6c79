"""The page of a sweep folder."""

from __future__ import annotations

from pathlib import Path

from fedax.experiment.folder import read_summary, write_atomically
from fedax.report.sweep_page import sweep_page
from fedax.sweeps.choosing import Choice
from fedax.sweeps.record import Record
from fedax.tuning.folder import read_sweep_config

PAGE = "report.html"


def write_page(folder: Path, record: Record, choice: Choice) -> None:
    """Writes a sweep's page, from its folder's configuration and summary.

    Args:
      folder: the sweep's.
      record: its rounds.
      choice: what was chosen of it.

    Raises:
      OSError: the disk is full or not writable.
      RunError: the configuration is damaged.
    """
    content = sweep_page(record, choice, read_sweep_config(folder), read_summary(folder))
    write_atomically(folder / PAGE, content.encode())
