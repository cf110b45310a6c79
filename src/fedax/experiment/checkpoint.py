"""Checkpoints: written atomically, verified when read, refused in a sentence when damaged.

A checkpoint is a folder `round-00000040`: the server's arrays and the clients' ids in NumPy's own
`state.npz`, each leaf of the clients' states in a `client_row_00000.npy`, a row for each of those
ids, the best model so far in `best.safetensors` if one is kept, and a `manifest.json` with the
format, the run's fingerprint, the shape and dtype of every array, which of them are the parameters
and digests of every file, of the metrics until then and of itself. It is written under another
name and renamed when complete, so a run killed at any moment leaves whole checkpoints only.
Clients' rows are written and read a block at a time, so that they may be larger than memory.

What else lies among the checkpoints, such as a copy with a name of its own, is left alone.

NumPy writes it and not Orbax, because a full disk is then an `OSError` in the thread that asked,
and no log of another library's threads (docs/notebook/log.md).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard, TypeVar, get_args

import jax
import jax.numpy as jnp
import numpy as np

from fedax.algorithm import Params
from fedax.experiment.arrays import Arrays, read_arrays, write_arrays
from fedax.experiment.manifest import (
    BEST,
    CLIENT_IDS,
    FORMAT,
    MANIFEST,
    ROWS,
    SERVER,
    CheckpointError,
    Declared,
    Manifest,
    PrecisionError,
    digest_of,
    read_manifest,
)
from fedax.experiment.metrics import Prefix, wrong_with_metrics
from fedax.experiment.params import (
    decoded,
    encoded,
    on_device,
    rebuilt,
    structure,
)
from fedax.experiment.versions import __version__
from fedax.files.regular import link_to, open_file, read_file, write_atomically
from fedax.models.parameters import fitted
from fedax.rounds.client_store import ClientStore
from fedax.rounds.options import MEASURES, PERSONALIZE
from fedax.rounds.state import TrainingState
from fedax.rounds.stopping import Best, Goal, Mode

Found = TypeVar("Found")

KEEP = 2
# How this module names folders: whole ones, and those that are not yet or no longer whole.
NAME = re.compile(r"round-\d{8,}", re.ASCII)
PARTIAL = re.compile(r"(partial|removed)-\d{8,}", re.ASCII)
MOST_NAMED = 5  # of what lies among the checkpoints and is none
# Settings that a run may change between its sittings: how long it is, how often it evaluates or
# checkpoints, what it measures, where it logs, when it stops early and how it is chunked. And what
# is no setting; of a user's sources the run folder says more.
FREE = {
    "num_rounds", "evaluate_every", "evaluation_sample", "checkpoint_every", "clients_per_chunk",
    "preset", "diagnostics", "early_stopping", "early_stopping_patience",
    "early_stopping_min_delta", "keep_best", "log", "made_by", "task_source", "algorithm_source",
    *PERSONALIZE, *MEASURES,
}


class Restored(NamedTuple):
    """What `restore_latest` found.

    Attributes:
      state: the run's, or its initial one.
      refused: a sentence for each checkpoint that was refused, and one for what is none.
      best: the best model so far, or None.
    """

    state: TrainingState
    refused: list[str]
    best: Best | None = None


class Stored(NamedTuple):
    """A checkpoint as it is stored, which nothing but itself is needed for.

    Attributes:
      round_index: the rounds that were done.
      params: the parameters, or None if they cannot be told from the rest.
      best: the best model so far, or None.
    """

    round_index: int
    params: Params | None
    best: Best | None


def fingerprint(config: Mapping[str, Any]) -> str:
    """A digest of the settings that a checkpoint must share with its run."""
    fixed = {key: value for key, value in config.items() if key not in FREE}
    return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()


def save(
    folder: Path, state: TrainingState, fingerprint: str, best: bytes | None = None,
    metrics: Prefix | None = None,
) -> None:
    """Writes the state's checkpoint and removes all before it but the newest `KEEP`, with it.

    Args:
      folder: the run's checkpoints, made in a folder that is there.
      state: what is written.
      fingerprint: the run's.
      best: the content of the file with the best model.
      metrics: what metrics.jsonl has up to this round.

    Raises:
      OSError: if the disk is full or not writable; the checkpoints before are untouched.
    """
    round_index = int(state.server_state.round_index)
    for name in _names(folder, PARTIAL):
        shutil.rmtree(folder / name, ignore_errors=True)
    partial = folder / f"partial-{round_index:08d}"
    folder.mkdir(exist_ok=True)  # not its parents: a run folder that was deleted stays deleted
    partial.mkdir()
    arrays = _arrays(state)
    write_arrays(partial, arrays)
    if best is not None:
        write_atomically(partial / BEST, best)
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "fedax": __version__,
        "fingerprint": fingerprint,
        "round": round_index,
        "arrays": {name: [list(a.shape), str(a.dtype)] for name, a in arrays.items()},
        "params": _places_of_params(state.server_state),
        "files": _digests(partial),
        "metrics": None if metrics is None else metrics._asdict(),
        "digest": None,
    }
    manifest["digest"] = digest_of(manifest)
    with (partial / MANIFEST).open("x", encoding="utf-8", newline="\n") as file:
        json.dump(manifest, file)
        file.flush()
        os.fsync(file.fileno())
    target = folder / f"round-{round_index:08d}"
    if target.exists():  # damaged, and refused when the run was resumed
        _remove(target)
    partial.rename(target)
    for old in _before(folder, round_index)[KEEP - 1 :]:
        _remove(old)


def restore_latest(
    folder: Path, initial: TrainingState, fingerprint: str, run: Path | None = None
) -> Restored:
    """The newest checkpoint that is whole and of this run; `initial` if there is none at all.

    Args:
      folder: the run's checkpoints.
      initial: the run's state before its first round; gives structure, shapes and dtypes.
      fingerprint: the run's.
      run: the run's folder, whose metrics must be those that the run wrote; None does not look.

    Raises:
      CheckpointError: if there are checkpoints, but none can be used.
    """
    foreign, refused = _foreign(folder), []
    expected = {name: Declared(a.shape, a.dtype) for name, a in _arrays(initial).items()}

    def restore(path: Path) -> Restored:
        manifest = _read_manifest(path, fingerprint)
        _require_expected(path, manifest.arrays, expected)
        if run is not None:
            wrong = wrong_with_metrics(run, manifest.round_index, manifest.metrics)
            if wrong is not None:
                raise CheckpointError(f"Checkpoint {path} cannot be used: {wrong}")
        state = _state(path, manifest, _read_arrays(path, manifest), initial)
        best = _read_best(path, manifest, state.server_state.params)
        return Restored(state, foreign + refused, best)

    return _newest(folder, restore, refused) or Restored(initial, foreign)


def read_latest(folder: Path, fingerprint: str) -> Stored | None:
    """The newest checkpoint that is whole and of this run; None if there is none at all.

    Raises:
      CheckpointError: if there are checkpoints, but none can be used.
    """
    def read(path: Path) -> Stored:
        manifest = _read_manifest(path, fingerprint)
        arrays, places = _read_arrays(path, manifest), manifest.params
        try:
            params = None if places is None else jax.tree.map(
                lambda array: on_device(array, "A parameter", str(path)), rebuilt(places, arrays)
            )
        except ValueError as error:
            raise CheckpointError(f"Checkpoint {path} cannot be used: {error}") from None
        return Stored(manifest.round_index, params, _read_best(path, manifest, params))

    return _newest(folder, read, [])


def encoded_best(best: Best) -> bytes:
    """The content of the file with the best model, and what makes it so."""
    return encoded(
        best.params, metric=best.goal.metric, mode=best.goal.mode, round=best.round,
        value=best.value,
    )


def _newest(folder: Path, read: Callable[[Path], Found], refused: list[str]) -> Found | None:
    """What is read from the newest checkpoint that can be; the others' reasons go to `refused`."""
    wrong = link_to(folder.parent, folder.name)
    if wrong is not None:
        raise CheckpointError(wrong)
    for path in _checkpoints(folder):
        try:
            return read(path)
        except PrecisionError:  # as all the others are
            raise
        except CheckpointError as error:
            refused.append(str(error))
    if refused:
        raise CheckpointError(
            " ".join(refused) + " No usable checkpoint is left; start the run again with "
            "--overwrite (in Python: overwrite=True)."
        )
    return None


def _read_manifest(path: Path, fingerprint: str) -> Manifest:
    """The manifest of a checkpoint of this run."""
    manifest = read_manifest(path)
    if manifest.round_index != _round_of(path):
        raise CheckpointError(
            f"Checkpoint {path} was renamed or copied: it belongs to round "
            f"{manifest.round_index}."
        )
    if manifest.fingerprint != fingerprint:
        raise CheckpointError(
            f"Checkpoint {path} belongs to another run: its settings differ from this folder's "
            "config.json."
        )
    return manifest


def _require_expected(
    path: Path, declared: Mapping[str, Declared], expected: Mapping[str, Declared]
) -> None:
    """Raises a CheckpointError unless the arrays are those that this run has."""
    count = declared[CLIENT_IDS].shape
    for name in {**expected, **declared}:
        found, own = declared.get(name), expected.get(name)
        if found is None or own is None:
            what = f"its array {name} does not exist in this run" if own is None else \
                f"its array {name} is missing ({own} in this run)"
        else:
            # As many rows as clients took part.
            shape = own.shape if name.startswith(SERVER) else (*count, *own.shape[1:])
            if found == Declared(shape, own.dtype) and len(count) == 1:
                continue
            widths = (found.dtype.itemsize, own.dtype.itemsize)
            same_kind = found.shape == shape and found.dtype.kind == own.dtype.kind
            if same_kind and sorted(widths) == [4, 8]:
                raise PrecisionError(
                    f"The run used {found.dtype} ({path}), but JAX now uses {own.dtype}. Continue "
                    f"it with JAX_ENABLE_X64={int(widths[0] == 8)}."
                )
            what = f"its array {name} is {found}, but {own} in this run"
        raise CheckpointError(f"Checkpoint {path} is of another model or method: {what}.")


def _read_arrays(path: Path, manifest: Manifest) -> Arrays:
    """All arrays of a checkpoint, whose files are those that were written."""
    try:
        for name, digest in manifest.files.items():
            if not (path / name).exists():
                raise ValueError(f"its file {name} is missing")
            if _digest(path / name) != digest:
                raise ValueError(f"its file {name} is truncated or changed")
        return read_arrays(path, manifest.arrays)
    except ValueError as error:
        raise CheckpointError(f"Checkpoint {path} is damaged: {error}.") from None
    except OSError as error:
        raise CheckpointError(f"Checkpoint {path} cannot be read: {error}.") from None


def _read_best(path: Path, manifest: Manifest, params: Params | None) -> Best | None:
    """The best model, in the structure of the parameters if these are known."""
    if BEST not in manifest.files:
        return None
    file = path / BEST
    try:
        arrays, said = decoded(read_file(file), str(file))
        metric, mode, best_round, value = map(said.get, ("metric", "mode", "round", "value"))
        if not (
            isinstance(metric, str) and _is_mode(mode) and type(best_round) is int
            and 1 <= best_round <= manifest.round_index and isinstance(value, float)
        ):
            raise ValueError(f"{file} does not contain its round and metric.")
        return Best(
            Goal(metric, mode), best_round, value,
            rebuilt(said.get("structure"), arrays) if params is None
            else fitted(arrays, params, str(file), "the run"),
        )
    except (OSError, ValueError) as error:
        raise CheckpointError(f"Checkpoint {path} cannot be used: {error}") from None


def _is_mode(value: Any) -> TypeGuard[Mode]:
    return value in get_args(Mode)


def _places_of_params(server_state: Any) -> Any:
    """The structure of the parameters with the names of their arrays; None if it is not known."""
    leaves, tree = jax.tree.flatten(server_state)
    try:
        params = tree.unflatten([f"server_{i:05d}" for i in range(len(leaves))]).params
        return structure(params, lambda name, place: place)  # noqa: ARG005
    except Exception:  # a state that computes its parameters, or keys that share a name
        return None


def _state(
    path: Path, manifest: Manifest, arrays: Arrays, initial: TrainingState
) -> TrainingState:
    """The training state from a checkpoint's arrays, which are those that this run has."""
    structure = jax.tree.structure(initial.server_state)
    leaves = [arrays[f"{SERVER}{i:05d}"] for i in range(structure.num_leaves)]
    server_state = structure.unflatten(map(jnp.asarray, leaves))
    if int(server_state.round_index) != manifest.round_index:
        raise CheckpointError(
            f"Checkpoint {path} is damaged: its arrays are of round {server_state.round_index}."
        )
    ids, store = arrays[CLIENT_IDS], initial.client_store
    if not _are_clients(ids, store):
        raise CheckpointError(f"Checkpoint {path} is damaged: its clients are not in this run.")
    count = sum(name.startswith(ROWS) for name in arrays)
    rows = [arrays[f"{ROWS}{i:05d}"] for i in range(count)]
    store.restore({CLIENT_IDS: ids, "rows": rows})
    return TrainingState(server_state, store)


def _are_clients(ids: np.ndarray, store: ClientStore) -> bool:
    """Whether these are ids of the population, each once."""
    known = np.unique(ids)
    return len(known) == len(ids) and not ((known < 0) | (known >= store.num_clients)).any()


def _arrays(state: TrainingState) -> Arrays:
    """Every array of the state by a name that says where it belongs; the rows are no copies."""
    server = jax.device_get(jax.tree.leaves(state.server_state))
    clients = state.client_store.snapshot()
    arrays = {f"{SERVER}{i:05d}": np.asarray(leaf) for i, leaf in enumerate(server)}
    arrays[CLIENT_IDS] = np.asarray(clients["client_ids"])
    return arrays | {f"{ROWS}{i:05d}": rows for i, rows in enumerate(clients["rows"])}


def _names(folder: Path, pattern: re.Pattern[str]) -> list[str]:
    """The folders in a folder, no links, whose whole name is of the pattern."""
    try:
        if not folder.is_dir():
            return []
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries
                    if pattern.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)]
    except OSError as error:
        raise CheckpointError(f"Cannot read the folder {folder}: {error.strerror}.") from None


def _round_of(path: Path) -> int:
    """The round in the name of a checkpoint; -1 if that is not how it is written."""
    number = int(path.name.removeprefix("round-"))
    return number if path.name == f"round-{number:08d}" else -1


def _checkpoints(folder: Path) -> list[Path]:
    """The checkpoints by their names, newest first."""
    return sorted((folder / name for name in _names(folder, NAME)), key=_round_of, reverse=True)


def _before(folder: Path, round_index: int) -> list[Path]:
    """The checkpoints of earlier rounds that are what their names say, newest first."""
    found = []
    for path in _checkpoints(folder):
        try:
            if _round_of(path) == read_manifest(path).round_index < round_index:
                found.append(path)
        except CheckpointError:  # damaged: it is of no use, but nobody asked to remove it
            continue
    return found


def _remove(checkpoint: Path) -> None:
    """Removes a checkpoint; if that is interrupted, the next save removes the rest."""
    doomed = checkpoint.with_name(checkpoint.name.replace("round", "removed"))
    try:
        checkpoint.rename(doomed)
    except OSError:  # in use, on Windows
        return
    shutil.rmtree(doomed, ignore_errors=True)


def _foreign(folder: Path) -> list[str]:
    """A sentence about what lies among the checkpoints and is none; hidden files are not named."""
    own = {*_names(folder, NAME), *_names(folder, PARTIAL)}
    names = sorted(
        path.name for path in (folder.iterdir() if folder.is_dir() else ())
        if path.name not in own and not path.name.startswith(".")
    )
    if not names:
        return []
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    named = ", ".join(names[:MOST_NAMED]) + more
    return [f"Not a checkpoint, and ignored in {folder}: {named}."]


def _digests(path: Path) -> dict[str, str]:
    return {member.name: _digest(member) for member in sorted(path.iterdir())}


def _digest(path: Path) -> str:
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
