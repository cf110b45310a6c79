"""The parts of a sweep on the disk: units that are done, and where the one under way stands.

`parts/part-00007.npz` has the rounds of the eighth unit. While a unit is trained it has
`parts/part-00007/`: checkpoints as a run's, and the rounds so far in `rounds.npz`.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from fedax.algorithm import WrapperState
from fedax.experiment import checkpoint
from fedax.experiment.checkpoint import CheckpointError
from fedax.experiment.folder import CONFIG, RunError
from fedax.files.npz import packed, read_npz
from fedax.files.regular import link_to, write_atomically
from fedax.rounds.state import TrainingState
from fedax.sweeps.batch import BatchState
from fedax.sweeps.columns import Columns, Part
from fedax.sweeps.planning import Unit

_METRIC = "metric/"
# The columns that have a number for each run, as a `Part` has them.
ROWS = ("setting", "seed", "diverged", "done")
RUNG = re.compile(r"rung-\d{1,6}", re.ASCII)
# Runs as one table may have so many bytes, or so many times what they have in their files: those
# that ended early are filled up.
ALLOWED_BYTES, MOST_TIMES = 2**30, 32


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
          RunError: if the file is damaged, or of another sweep.
        """
        path = self._path(index)
        if not path.exists():
            return None
        part = _part(path, self._of(unit))
        if part.setting.tolist() != list(unit.settings) or set(part.seed.tolist()) != {unit.seed}:
            raise RunError(f"{path} has other settings than the sweep. Delete it.")
        return part

    def finish(self, index: int, unit: Unit, part: Part, *, goes_on: bool = False) -> None:
        """Writes the rounds of a finished unit; keeps its last state if a rung continues it.

        Raises:
          OSError: if the disk is full or not writable.
        """
        self._folder.mkdir(exist_ok=True)
        columns = {name: getattr(part, name) for name in ("setting", "seed", "diverged", "done")}
        columns |= {_METRIC + name: values for name, values in part.metrics.items()}
        write_columns(self._path(index), columns, self._of(unit))
        if not goes_on:
            shutil.rmtree(self._work(index), ignore_errors=True)

    def forget(self) -> None:
        """Removes all states, which are no longer needed."""
        for path in self._folder.glob("part-*"):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)

    def save(self, index: int, unit: Unit, state: BatchState, columns: Columns) -> None:
        """Writes where a unit stands; the state before stays until this one is whole.

        Raises:
          OSError: if the disk is full or not writable.
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
        count = len(unit.settings)
        if any(v.ndim != 2 or len(v) != count or v.shape[1] < done for v in stored.values()):
            shutil.rmtree(work, ignore_errors=True)
            return beginning, rounds
        metrics = {name.removeprefix(_METRIC): v[:, :done] for name, v in stored.items()}
        diverged, alive = (np.asarray(state.own[name]) for name in ("diverged", "alive"))
        batch = BatchState(state.inner, found.state.client_store, diverged, alive)
        return batch, Columns(count, metrics)

    def _of(self, unit: Unit) -> str:
        """A digest of what a unit is."""
        words = json.dumps([self._identity, *unit])
        return hashlib.sha256(words.encode()).hexdigest()

    def _path(self, index: int) -> Path:
        return self._folder / f"part-{index:05d}.npz"

    def _work(self, index: int) -> Path:
        return self._folder / f"part-{index:05d}"


def parts_so_far(folder: Path, num_settings: int) -> list[Part]:
    """The rounds of every run of a sweep that is done, or has come to a rung of halving.

    Raises:
      RunError: if a file is damaged, or of another sweep, or all are too large together.
    """
    latest: dict[tuple[int, int], Part] = {}
    found = [path for path in folder.glob("rung-*") if RUNG.fullmatch(path.name)]
    rungs = sorted(found, key=lambda path: int(path.name.removeprefix("rung-")))
    for place in [folder / "parts", *rungs]:
        wrong = link_to(folder, place.name)
        if wrong is not None:
            raise RunError(wrong)
        for path in sorted(place.glob("part-*.npz")):
            part = _part(path)
            if part.setting.max(initial=-1) >= num_settings:
                raise RunError(f"{path} has settings that are not in {folder / CONFIG}.")
            for row, number in enumerate(part.setting.tolist()):
                latest[number, int(part.seed[row])] = part.row(row)
    require_modest(num_settings, list(latest.values()), str(folder))
    return list(latest.values())


def _whole(state: BatchState) -> TrainingState:
    """The state of a batch as a checkpoint has it."""
    own = {"diverged": jnp.asarray(state.diverged), "alive": jnp.asarray(state.alive)}
    return TrainingState(WrapperState(state.server_state, own), state.client_store)


def _part(path: Path, identity: str | None = None) -> Part:
    return part_of(read_columns(path, identity), path)


def part_of(columns: Mapping[str, np.ndarray], path: Path) -> Part:
    """The rounds of runs from columns that a file has.

    Raises:
      RunError: if they are not those of runs.
    """
    metrics = {
        name.removeprefix(_METRIC): values for name, values in columns.items()
        if name.startswith(_METRIC)
    }
    try:
        setting, seed, diverged, done = (columns[name] for name in ROWS)
        return checked(Part(setting, seed, diverged, done, metrics))
    except KeyError as error:
        raise RunError(f"{path} is damaged: the column {error} is missing.") from None
    except ValueError as error:
        raise RunError(f"{path} is damaged: {error}.") from None


def checked(part: Part) -> Part:
    """A part from a file, whose columns belong together.

    Raises:
      ValueError: if they do not. The message is a phrase.
    """
    count = part.setting.size
    rounds = max((values.shape[-1] for values in part.metrics.values() if values.ndim), default=0)
    for name in ROWS:
        column = getattr(part, name)
        if column.shape != (count,) or column.dtype.kind not in "iu":
            raise ValueError(f"its column {name} does not have a whole number for each run")
        most = {"done": rounds, "diverged": rounds + 1}.get(name, 2**63 - 1)
        if count and not 0 <= column.min() <= column.max() <= most:
            raise ValueError(f"its column {name} has numbers outside 0 to {most}")
    for name, values in part.metrics.items():
        if values.ndim != 2 or len(values) != count or values.dtype.kind not in "biuf":
            raise ValueError(f"its metric {name} does not have numbers for each run and round")
    return part


def require_modest(num_settings: int, parts: Sequence[Part], where: str) -> None:
    """Raises an error unless parts from files can be put together without excessive memory.

    Raises:
      RunError: if one run is much longer than the others, or there are too many seeds, so that the
          whole is far larger than the files.
    """
    rows = sum(len(part.setting) for part in parts)
    names = {name for part in parts for name in part.metrics}
    longest = max((v.shape[1] for part in parts for v in part.metrics.values()), default=0)
    held = sum(values.nbytes for part in parts for values in part.metrics.values())
    seeds = {seed for part in parts for seed in part.seed.tolist()}
    whole = 8 * (rows * longest * len(names) + num_settings * len(seeds))
    if whole > max(ALLOWED_BYTES, MOST_TIMES * held):
        raise RunError(
            f"The runs in {where} would take {whole:,} bytes in memory, far more than their files. "
            "They are damaged, or belong to several sweeps."
        )


def write_columns(path: Path, columns: Mapping[str, np.ndarray], identity: str) -> None:
    """Writes arrays by name in one file, with what they are of and a digest.

    NumPy's format and not Parquet: it is read without another library, a column is one block of
    memory, and a metric of all runs and rounds is a matrix, which a table would take apart.

    Raises:
      OSError: if the disk is full or not writable.
    """
    write_atomically(path, packed({"identity": np.array([identity, _digest(columns)]), **columns}))


def read_columns(path: Path, identity: str | None = None) -> dict[str, np.ndarray]:
    """Reads what `write_columns` wrote.

    Raises:
      RunError: if the file is missing, damaged or of something else.
    """
    try:
        columns = read_npz(path)
        said = columns.pop("identity", np.zeros(0)).tolist()
        if not (isinstance(said, list) and said[1:] == [_digest(columns)]):
            raise ValueError("its columns are not those that were written")
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise RunError(
            f"{path} cannot be read: {reason}. Delete it and resume the sweep, which writes it "
            "again."
        ) from None
    if identity is not None and said[0] != identity:
        raise RunError(f"{path} belongs to another sweep.")
    return columns


def _digest(columns: Mapping[str, np.ndarray]) -> str:
    hashed = hashlib.sha256()
    for name, values in sorted(columns.items()):
        hashed.update(f"{name} {values.dtype.str}{values.shape}".encode())
        hashed.update(np.ascontiguousarray(values).tobytes())
    return hashed.hexdigest()
