"""Checkpoints: written atomically, verified when read, refused in a sentence when damaged.

A checkpoint is a folder `round-00000040`: the server's arrays and the clients' ids in NumPy's own
`state.npz`, each leaf of the clients' states in a `client_row_00000.npy`, a row for each of those
ids, the best model so far in `best.safetensors` if one is kept, and a `manifest.json` with the
format, the run's fingerprint, the shape and dtype of every array, which of them are the parameters
and a digest of every file. It is written under another name and renamed when complete, so a
run killed at any moment leaves whole checkpoints only. Clients' rows are written and read a block
at a time, so that they may be larger than memory.

NumPy writes it and not Orbax, because a full disk is then an `OSError` in the thread that asked,
and no log of another library's threads (docs/log.md).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

import fedax
from fedax.algorithm import Params
from fedax.experiment.folder import RunError, write_atomically
from fedax.experiment.params import (
    decoded,
    encoded,
    on_device,
    rebuilt,
    structure,
)
from fedax.models.parameters import fitted
from fedax.rounds.client_store import row_blocks
from fedax.rounds.options import PERSONALIZE
from fedax.rounds.state import TrainingState
from fedax.rounds.stopping import Best, Goal

Found = TypeVar("Found")

FORMAT = 2
KEEP = 2
STATE = "state.npz"
BEST = "best.safetensors"
ROWS = "client_row_"  # how the names of arrays begin that have a file of their own
# Settings that a run may change between its sittings: how long it is, how often it evaluates or
# checkpoints and what it measures, when it stops early and how it is chunked. And what is no
# setting; of a user's sources the run folder says more.
FREE = {
    "num_rounds", "evaluate_every", "checkpoint_every", "clients_per_chunk", "preset",
    "diagnostics", "early_stopping", "early_stopping_patience", "early_stopping_min_delta",
    "keep_best", "made_by", "task_source", "algorithm_source", *PERSONALIZE,
}


class CheckpointError(RunError):
    """No checkpoint can be used; the message is a sentence."""


class Restored(NamedTuple):
    """What `restore_latest` found.

    Attributes:
      state: the run's, or its initial one.
      refused: a sentence for each checkpoint that was refused.
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
    folder: Path, state: TrainingState, fingerprint: str, best: bytes | None = None
) -> None:
    """Writes the state's checkpoint and removes all but the newest `KEEP`.

    Args:
      folder: the run's checkpoints.
      state: what is written.
      fingerprint: the run's.
      best: the content of the file with the best model.

    Raises:
      OSError: the disk is full or not writable; the checkpoints before are untouched.
    """
    round_index = int(state.server_state.round_index)
    target = folder / f"round-{round_index:08d}"
    for abandoned in folder.glob("partial-*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    partial = folder / f"partial-{round_index:08d}"
    partial.mkdir(parents=True)
    arrays = _arrays(state)
    rows = {name: arrays[name] for name in arrays if name.startswith(ROWS)}
    # As bytes: NumPy's format does not know bfloat16, and the manifest knows every dtype.
    stored: dict[str, Any] = {
        name: arrays[name].reshape(-1).view(np.uint8) for name in arrays if name not in rows
    }
    with (partial / STATE).open("wb") as file:
        np.savez(file, **stored)
        file.flush()
        os.fsync(file.fileno())
    _write_rows(partial, rows)
    if best is not None:
        write_atomically(partial / BEST, best)
    manifest = {
        "format": FORMAT,
        "fedax": fedax.__version__,
        "fingerprint": fingerprint,
        "round": round_index,
        "arrays": {name: [list(a.shape), str(a.dtype)] for name, a in arrays.items()},
        "params": _places_of_params(state.server_state),
        "files": _digests(partial),
    }
    with (partial / "manifest.json").open("w", encoding="utf-8", newline="\n") as file:
        json.dump(manifest, file)
        file.flush()
        os.fsync(file.fileno())
    if target.exists():  # damaged, and refused when the run was resumed
        shutil.rmtree(target)
    partial.rename(target)
    for old in _checkpoints(folder)[KEEP:]:
        shutil.rmtree(old, ignore_errors=True)


def restore_latest(folder: Path, initial: TrainingState, fingerprint: str) -> Restored:
    """The newest checkpoint that is whole and of this run; `initial` if there is none at all.

    Args:
      folder: the run's checkpoints.
      initial: the run's state before its first round; gives structure, shapes and dtypes.
      fingerprint: the run's.

    Raises:
      CheckpointError: there are checkpoints, but none can be used.
    """
    refused: list[str] = []

    def restore(path: Path) -> Restored:
        _, arrays = _read(path, fingerprint)
        state = _state(path, arrays, initial)
        return Restored(state, refused, _read_best(path, state.server_state.params))

    return _newest(folder, restore, refused) or Restored(initial, [])


def read_latest(folder: Path, fingerprint: str) -> Stored | None:
    """The newest checkpoint that is whole and of this run; None if there is none at all.

    Raises:
      CheckpointError: there are checkpoints, but none can be used.
    """
    def read(path: Path) -> Stored:
        manifest, arrays = _read(path, fingerprint)
        places = manifest.get("params")  # older checkpoints do not say
        params = None if places is None else jax.tree.map(
            lambda array: on_device(array, "A parameter", str(path)), rebuilt(places, arrays)
        )
        return Stored(manifest["round"], params, _read_best(path, params))

    return _newest(folder, read, [])


def encoded_best(best: Best) -> bytes:
    """The content of the file with the best model, and what makes it so."""
    return encoded(
        best.params, metric=best.goal.metric, mode=best.goal.mode, round=best.round,
        value=best.value,
    )


def _newest(folder: Path, read: Callable[[Path], Found], refused: list[str]) -> Found | None:
    """What is read from the newest checkpoint that can be; the others' reasons go to `refused`."""
    for path in _checkpoints(folder):
        try:
            return read(path)
        except CheckpointError as error:
            refused.append(str(error))
    if refused:
        raise CheckpointError(
            " ".join(refused) + " No checkpoint is left to go on from; start the run anew."
        )
    return None


def _read(path: Path, fingerprint: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The manifest and all arrays of a checkpoint that is whole and of this run."""
    manifest = _read_manifest(path)
    if manifest.get("format") != FORMAT:
        raise CheckpointError(
            f"Checkpoint {path} was written by fedax {manifest.get('fedax')} in format "
            f"{manifest.get('format')!r}, but fedax {fedax.__version__} reads format {FORMAT}."
        )
    if manifest["fingerprint"] != fingerprint:
        raise CheckpointError(
            f"Checkpoint {path} belongs to another run: its settings are not those of this "
            "folder's config.json."
        )
    digests = _digests(path)
    for name, digest in manifest["files"].items():
        if digests.get(name) != digest:
            what = "is missing" if name not in digests else "is truncated or changed"
            raise CheckpointError(f"Checkpoint {path} is damaged: its file {name} {what}.")
    with np.load(path / STATE) as stored:
        return manifest, {
            name: (
                np.load(path / f"{name}.npy", mmap_mode="r") if name.startswith(ROWS)
                else stored[name]
            ).view(jnp.dtype(dtype)).reshape(shape)
            for name, (shape, dtype) in manifest["arrays"].items()
        }


def _read_best(path: Path, params: Params | None) -> Best | None:
    """The best model, in the structure of the parameters if these are known."""
    file = path / BEST
    if not file.exists():
        return None
    content = file.read_bytes()
    arrays, said = decoded(content, str(file))
    return Best(
        Goal(said["metric"], said["mode"]), said["round"], said["value"],
        rebuilt(said["structure"], arrays) if params is None
        else fitted(arrays, params, str(file), "the run"),
    )


def _places_of_params(server_state: Any) -> Any:
    """The structure of the parameters with the names of their arrays; None if it is not known."""
    leaves, tree = jax.tree.flatten(server_state)
    try:
        params = tree.unflatten([f"server_{i:05d}" for i in range(len(leaves))]).params
        return structure(params, lambda name, place: place)  # noqa: ARG005
    except Exception:  # a state that computes its parameters, or keys that share a name
        return None


def _state(path: Path, arrays: dict[str, np.ndarray], initial: TrainingState) -> TrainingState:
    """The training state from a checkpoint's arrays, if they are what this run has."""
    expected = _arrays(initial)
    for name, array in expected.items():
        found = arrays.get(name)
        varies = name.startswith("client_")  # as many rows as clients took part
        if (
            found is None
            or found.dtype != array.dtype
            or found.shape[varies:] != array.shape[varies:]
        ):
            what = "is missing" if found is None else f"is {found.dtype}{list(found.shape)}"
            raise CheckpointError(
                f"Checkpoint {path} is of another model or algorithm: its array {name} {what}, "
                f"and this run's is {array.dtype}{list(array.shape)}."
            )
    structure = jax.tree.structure(initial.server_state)
    leaves = [jnp.asarray(arrays[name]) for name in expected if name.startswith("server_")]
    rows = [arrays[name] for name in expected if name.startswith(ROWS)]
    initial.client_store.restore({"client_ids": arrays["client_ids"], "rows": rows})
    return TrainingState(structure.unflatten(leaves), initial.client_store)


def _arrays(state: TrainingState) -> dict[str, np.ndarray]:
    """Every array of the state by a name that says where it belongs; the rows are no copies."""
    server = jax.device_get(jax.tree.leaves(state.server_state))
    clients = state.client_store.snapshot()
    arrays = {f"server_{i:05d}": np.asarray(leaf) for i, leaf in enumerate(server)}
    arrays["client_ids"] = np.asarray(clients["client_ids"])
    return arrays | {f"{ROWS}{i:05d}": rows for i, rows in enumerate(clients["rows"])}


def _write_rows(folder: Path, rows: dict[str, np.ndarray]) -> None:
    """Writes the clients' rows as bytes, each leaf in a file, all files a block at a time."""
    with contextlib.ExitStack() as stack:
        files = {
            name: stack.enter_context((folder / f"{name}.npy").open("wb")) for name in rows
        }
        for name, leaf in rows.items():
            shape = (len(leaf), math.prod(leaf.shape[1:]) * leaf.itemsize)
            header = {"descr": "|u1", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(files[name], header)
        for block in row_blocks(list(rows.values())):
            for name, leaf in rows.items():
                files[name].write(leaf[block].tobytes())
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((path / "manifest.json").read_text("utf-8"))
        if manifest["format"] == FORMAT:  # what other formats hold is not known
            if not all(isinstance(manifest[key], dict) for key in ("arrays", "files")):
                raise TypeError
            _ = manifest["fingerprint"]
    except (OSError, ValueError, TypeError, KeyError):
        raise CheckpointError(f"Checkpoint {path} is damaged: its manifest cannot be read.") \
            from None
    return manifest


def _checkpoints(folder: Path) -> list[Path]:
    """The complete checkpoints, newest first."""
    return sorted(folder.glob("round-*"), reverse=True)


def _digests(path: Path) -> dict[str, str]:
    digests = {}
    for member in sorted(path.rglob("*")):
        if member.is_file() and member.name != "manifest.json":
            with member.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            digests[member.relative_to(path).as_posix()] = digest
    return digests
