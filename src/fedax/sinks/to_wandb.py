"""Weights & Biases: an offline run, which `wandb sync` uploads."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Offline means that nothing is sent, the library's own failures included.
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")

import wandb

from fedax.sinks.rows import Place, Plain, Row, outcome

PROJECT = "fedax"


class _Run:
    """An offline run; one of an earlier sitting gives it its id and is removed."""

    def __init__(self, place: Place, params: Mapping[str, Plain]) -> None:
        place.logs.mkdir(parents=True, exist_ok=True)
        _remove_links(place.logs / "wandb")
        before = sorted(place.logs.glob("wandb/offline-run-*-*"))
        self._run = wandb.init(
            project=PROJECT, name=place.name, dir=place.logs, config=dict(params), mode="offline",
            id=before[-1].name.rpartition("-")[2] if before else None, reinit="create_new",
            settings=wandb.Settings(
                silent=True, console="off", disable_git=True, save_code=False,
                x_disable_stats=True, x_disable_machine_info=True, disable_job_creation=True,
            ),
        )
        for old in before:
            if not old.samefile(Path(self._run.dir).parent):
                shutil.rmtree(old)

    def write(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._run.log(dict(row.metrics), step=row.round)

    def close(self, summary: Mapping[str, Any] | None) -> None:
        if summary is not None:
            self._run.summary.update(outcome(summary))
        self._run.finish(exit_code=0 if summary is not None else 1)


def _remove_links(folder: Path) -> None:
    """Removes the links that the library made in an earlier sitting, wherever they lead now."""
    for inside, folders, files in os.walk(folder):
        for path in (Path(inside, name) for name in (*folders, *files)):
            if path.is_symlink():
                path.unlink()


open_writer = _Run
