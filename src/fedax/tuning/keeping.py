"""The parts of a sweep on the disk: units that are done, and where the one under way stands.

`parts/part-00007.npz` has the rounds of the eighth unit. While a unit is trained it has
`parts/part-00007/`: checkpoints as a run's, and the rounds so far in `rounds.npz`.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedax.algorithm import WrapperState
from fedax.experiment import checkpoint
from fedax.experiment.checkpoint import CheckpointError
from fedax.experiment.folder import RunError, read_file, write_atomically
from fedax.rounds.state import TrainingState
from fedax.sweeps.batch import BatchState
from fedax.sweeps.columns import Columns, Part
from fedax.sweeps.planning import Unit

_METRIC = "metric/"


class Keeper:
    """Keeps the parts of one sweep.

    Args:
      folder: the sweep's.
      identity: what the parts are of, so that no other sweep's are taken for them.
      name: of the folder of these parts.
    """

    def __init__(self, folder: Path, identity: str, name: str = "parts") -> None:
        self._folder = folder / name
        self._identity = identity

    def part(self, index: int, unit: Unit) -> Part | None:
        """The rounds of a unit that is done; None if it is not.

        Raises:
          RunError: the file is damaged, or of another sweep.
        """
        path = self._path(index)
        if not path.exists():
            return None
        part = _part(read_columns(path, self._of(unit)))
        if part.setting.tolist() != list(unit.settings) or set(part.seed.tolist()) != {unit.seed}:
            raise RunError(f"{path} is of other settings than the sweep's; delete it.")
        return part

    def finish(self, index: int, unit: Unit, part: Part, *, goes_on: bool = False) -> None:
        """Writes the rounds of a unit that is done; its last state stays if something goes on.

        Raises:
          OSError: the disk is full or not writable.
        """
        self._folder.mkdir(exist_ok=True)
        columns = {name: getattr(part, name) for name in ("setting", "seed", "diverged", "done")}
        columns |= {_METRIC + name: values for name, values in part.metrics.items()}
        write_columns(self._path(index), columns, self._of(unit))
        if not goes_on:
            shutil.rmtree(self._work(index), ignore_errors=True)

    def forget(self) -> None:
        """Removes all states, from which nothing goes on any more."""
        for path in self._folder.glob("part-*"):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)

    def save(self, index: int, unit: Unit, state: BatchState, columns: Columns) -> None:
        """Writes where a unit stands; the state before stays until this one is whole.

        Raises:
          OSError: the disk is full or not writable.
        """
        work = self._work(index)
        self._folder.mkdir(exist_ok=True)
        work.mkdir(exist_ok=True)
        rounds = {_METRIC + name: values for name, values in columns.metrics.items()}
        write_columns(work / "rounds.npz", rounds, self._of(unit))
        checkpoint.save(work / "checkpoints", _whole(state), self._of(unit))

    def restore(
        self, index: int, unit: Unit, beginning: BatchState, rounds: Columns
    ) -> tuple[BatchState, Columns]:
        """Where a unit stands; the beginning, if nothing that can be used is there."""
        work = self._work(index)
        if not work.is_dir():
            return beginning, rounds
        try:
            found = checkpoint.restore_latest(
                work / "checkpoints", _whole(beginning), self._of(unit)
            )
            stored = read_columns(work / "rounds.npz", self._of(unit))
        except (CheckpointError, RunError):  # it costs the unit's rounds, and no number
            shutil.rmtree(work, ignore_errors=True)
            return beginning, rounds
        state = found.state.server_state
        done = int(state.round_index)
        metrics = {name.removeprefix(_METRIC): v[:, :done] for name, v in stored.items()}
        if any(values.shape[1] < done for values in metrics.values()):
            shutil.rmtree(work, ignore_errors=True)
            return beginning, rounds
        diverged, alive = (np.asarray(state.own[name]) for name in ("diverged", "alive"))
        batch = BatchState(state.inner, found.state.client_store, diverged, alive)
        return batch, Columns(len(unit.settings), metrics)

    def _of(self, unit: Unit) -> str:
        """A digest of what a unit is."""
        words = json.dumps([self._identity, *unit])
        return hashlib.sha256(words.encode()).hexdigest()

    def _path(self, index: int) -> Path:
        return self._folder / f"part-{index:05d}.npz"

    def _work(self, index: int) -> Path:
        return self._folder / f"part-{index:05d}"


def parts_so_far(folder: Path) -> list[Part]:
    """The rounds of every run of a sweep that is done, or has come to a rung of halving.

    Raises:
      RunError: a file is damaged.
    """
    latest: dict[tuple[int, int], Part] = {}
    rungs = sorted(folder.glob("rung-*"), key=lambda path: int(path.name.removeprefix("rung-")))
    for place in [folder / "parts", *rungs]:
        for path in sorted(place.glob("part-*.npz")):
            part = _part(read_columns(path))
            for row, number in enumerate(part.setting.tolist()):
                latest[number, int(part.seed[row])] = part.row(row)
    return list(latest.values())


def _whole(state: BatchState) -> TrainingState:
    """The state of a batch as a checkpoint has it."""
    own = {"diverged": jnp.asarray(state.diverged), "alive": jnp.asarray(state.alive)}
    return TrainingState(WrapperState(state.server_state, own), state.client_store)


def _part(columns: Mapping[str, np.ndarray]) -> Part:
    metrics = {
        name.removeprefix(_METRIC): values for name, values in columns.items()
        if name.startswith(_METRIC)
    }
    return Part(
        columns["setting"], columns["seed"], columns["diverged"], columns["done"], metrics
    )


def write_columns(path: Path, columns: Mapping[str, np.ndarray], identity: str) -> None:
    """Writes arrays by name in one file, with what they are of and a digest.

    NumPy's format and not Parquet: it is read without another library, a column is one block of
    memory, and a metric of all runs and rounds is a matrix, which a table would take apart.

    Raises:
      OSError: the disk is full or not writable.
    """
    stored: dict[str, Any] = dict(columns)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, identity=np.array([identity, _digest(columns)]), **stored)
    write_atomically(path, buffer.getvalue())


def read_columns(path: Path, identity: str | None = None) -> dict[str, np.ndarray]:
    """Reads what `write_columns` wrote.

    Raises:
      RunError: the file is missing, damaged or of something else.
    """
    try:
        content = io.BytesIO(read_file(path))
        if not zipfile.is_zipfile(content):
            raise ValueError("it is no whole .npz file")
        with np.load(content, allow_pickle=False) as file:
            columns = {name: file[name] for name in file.files}
        written, digest = columns.pop("identity").tolist()
        if _digest(columns) != digest:
            raise ValueError("its columns are not those that were written")
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise RunError(
            f"{path} cannot be read: {error}. Delete it, and go on with the sweep, which makes it "
            "again."
        ) from None
    if identity is not None and written != identity:
        raise RunError(f"{path} belongs to another sweep.")
    return columns


def _digest(columns: Mapping[str, np.ndarray]) -> str:
    hashed = hashlib.sha256()
    for name, values in sorted(columns.items()):
        hashed.update(f"{name} {values.dtype.str}{values.shape}".encode())
        hashed.update(np.ascontiguousarray(values).tobytes())
    return hashed.hexdigest()
