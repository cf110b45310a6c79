"""Checkpoints: written atomically, verified when read, refused in a sentence when damaged.

A checkpoint is a folder `round-00000040`: the server's arrays and the clients' ids in NumPy's own
`state.npz`, each leaf of the clients' states in a `client_row_00000.npy`, a row for each of those
ids, and a `manifest.json` with the format, the run's fingerprint, the shape and dtype of every
array and a digest of every file. It is written under another name and renamed when complete, so a
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
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fedax
from fedax.rounds.client_store import row_blocks
from fedax.rounds.state import TrainingState

FORMAT = 2
KEEP = 2
STATE = "state.npz"
ROWS = "client_row_"  # how the names of arrays begin that have a file of their own


class CheckpointError(RuntimeError):
    """No checkpoint can be used; the message is a sentence."""


class Restored(NamedTuple):
    """What `restore_latest` found: the state, and a sentence for each checkpoint it refused."""

    state: TrainingState
    refused: list[str]


def save(folder: Path, state: TrainingState, fingerprint: str) -> None:
    """Writes the state's checkpoint and removes all but the newest `KEEP`.

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
    manifest = {
        "format": FORMAT,
        "fedax": fedax.__version__,
        "fingerprint": fingerprint,
        "round": round_index,
        "arrays": {name: [list(a.shape), str(a.dtype)] for name, a in arrays.items()},
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
    refused = []
    for path in _checkpoints(folder):
        try:
            return Restored(_restore(path, initial, fingerprint), refused)
        except CheckpointError as error:
            refused.append(str(error))
    if refused:
        raise CheckpointError(
            " ".join(refused) + " No checkpoint is left to go on from; start the run anew."
        )
    return Restored(initial, [])


def _restore(path: Path, initial: TrainingState, fingerprint: str) -> TrainingState:
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
        found = {
            name: (
                np.load(path / f"{name}.npy", mmap_mode="r") if name.startswith(ROWS)
                else stored[name]
            ).view(jnp.dtype(dtype)).reshape(shape)
            for name, (shape, dtype) in manifest["arrays"].items()
        }
    return _state(path, found, initial)


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
