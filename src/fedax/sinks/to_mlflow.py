"""MLflow: a run in a tracking store, by its client."""

from __future__ import annotations

import contextlib
import logging
import os
import posixpath
import re
import sqlite3
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

# What is trained here is nobody else's business.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException

from fedax.devices.sqlite import sqlite_address
from fedax.files.databases import PATIENCE, unknown_in
from fedax.sinks.rows import Place, Plain, Row, outcome

Item = TypeVar("Item")

EXPERIMENT = "fedax"
# A request takes no more of them, and a name no more letters, the mark of a second one included.
MOST_METRICS, MOST_PARAMS = 1000, 100
MOST_LETTERS = 240

# One run at a time opens the store that a sweep's runs share.
_opening: dict[Path, threading.Lock] = {}


class _Run:
    """A run in the store of $MLFLOW_TRACKING_URI, or in the folder's own SQLite.

    It takes the place of the one of an earlier sitting, whose id is in a file; that one is
    deleted as MLflow deletes, so that `mlflow gc` removes it.
    """

    def __init__(self, place: Place, params: Mapping[str, Plain]) -> None:
        for name in ("mlflow", "alembic"):  # they tell how they make the tables
            logging.getLogger(name).setLevel(logging.WARNING)
        place.shared.joinpath("mlflow").mkdir(parents=True, exist_ok=True)
        place.logs.joinpath("mlflow").mkdir(parents=True, exist_ok=True)
        server = os.environ.get("MLFLOW_TRACKING_URI")
        lock = _opening.setdefault(place.shared, threading.Lock())
        with contextlib.nullcontext() if server else lock:
            self._client = MlflowClient(server or _store(place))
            known = place.logs / "mlflow" / "run-id"
            if known.exists():
                self._forget(known.read_text("utf-8").strip())
            self._id = self._client.create_run(
                self._experiment(place), run_name=place.name,
                tags={"fedax.folder": str(place.folder)},
            ).info.run_id
            known.unlink(missing_ok=True)
            known.write_text(self._id + "\n", "utf-8")
        self._key, key = _Keys(), _Keys()
        words = [Param(key(name), str(value)) for name, value in params.items()]
        for some in _parts(words, MOST_PARAMS):
            self._client.log_batch(self._id, params=some)
        self._last = Row(0.0, {"round": 0})

    def write(self, rows: Sequence[Row]) -> None:
        for some in _parts([
            Metric(self._key(name), value, int(row.time * 1000), row.round)
            for row in rows for name, value in row.metrics.items() if name != "round"
        ], MOST_METRICS):
            self._client.log_batch(self._id, metrics=some)
        self._last = rows[-1]

    def close(self, summary: Mapping[str, Any] | None) -> None:
        if summary is not None:
            self.write([self._last._replace(
                metrics={"round": self._last.round, **outcome(summary)}
            )])
        self._client.set_terminated(self._id, "KILLED" if summary is None else "FINISHED")

    def _experiment(self, place: Place) -> str:
        found = self._client.get_experiment_by_name(EXPERIMENT)
        if found is None:
            artifacts = (place.shared / "mlflow" / "artifacts").resolve().as_uri()
            local = "MLFLOW_TRACKING_URI" not in os.environ
            return self._client.create_experiment(EXPERIMENT, artifacts if local else None)
        return found.experiment_id

    def _forget(self, run_id: str) -> None:
        try:
            self._client.delete_run(run_id)
        except MlflowException:  # of another store, or deleted already
            return


def _store(place: Place) -> str:
    """The address of the folder's own store."""
    file = place.shared / "mlflow" / "mlflow.db"
    unknown = unknown_in(file)
    if unknown is not None:
        raise ValueError(f"{file} has {unknown}, which MLflow did not write; remove the file")
    if file.exists():
        _empty_if_half_made(file)
    return sqlite_address(file)


def _empty_if_half_made(file: Path) -> None:
    """Removes the tables of a store that MLflow left half made, which it cannot complete.

    The last that it writes into a new one is an experiment.
    """
    with contextlib.closing(sqlite3.connect(file, timeout=PATIENCE)) as store, store:
        tables = [name for (name,) in store.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        )]
        if "experiments" in tables and store.execute("SELECT 1 FROM experiments").fetchone():
            return
        for name in tables:
            store.execute('DROP TABLE "{}"'.format(name.replace('"', '""')))


class _Keys:
    """Names as MLflow takes them, each name another one."""

    def __init__(self) -> None:
        self._keys: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        if name not in self._keys:
            key = _cleaned(name)
            if key in self._keys.values():
                key = f"{key}_{zlib.crc32(name.encode('utf-8', 'replace')):08x}"
            self._keys[name] = key
        return self._keys[name]


def _cleaned(name: str) -> str:
    """A name of letters that MLflow takes, and no place outside a folder.

    Example:
      >>> _cleaned("accuracy@1"), _cleaned("../loss"), _cleaned("")
      ('accuracy_1', '__loss', '_')
    """
    key = re.sub(r"[^\w\-. /]", "_", name)[:MOST_LETTERS] or "_"
    unsafe = posixpath.normpath(key) != key or key.startswith((".", "/"))
    return re.sub(r"^\.+|/", "_", key) if unsafe else key


def _parts(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    return (items[begin : begin + size] for begin in range(0, len(items), size))


open_writer = _Run
