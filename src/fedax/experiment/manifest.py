"""The manifest of a checkpoint: what the checkpoint holds, believed only where it can be true.

Whoever damaged or forged it, nothing but a `CheckpointError` comes of it, and no memory is taken
before what it asks for was compared with the files' sizes.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import jax.numpy as jnp
import numpy as np

from fedax.experiment.folder import RunError
from fedax.experiment.metrics import Prefix
from fedax.experiment.versions import __version__
from fedax.files.regular import read_file

FORMAT = 2
MANIFEST = "manifest.json"
STATE = "state.npz"
BEST = "best.safetensors"
CLIENT_IDS = "client_ids"
SERVER = "server_"
ROWS = "client_row_"  # how the names of arrays begin that have a file of their own
MOST_BYTES = 16 * 2**20
MOST_ROUNDS = 2**31 - 1
MOST_DIMENSIONS, MOST_ELEMENTS, MOST_FORMATS = 32, 2**62, 1000

_ARRAY = re.compile(rf"{SERVER}\d{{5,}}|{CLIENT_IDS}|{ROWS}\d{{5,}}", re.ASCII)
_DTYPE = re.compile(r"bool|bfloat16|u?int\d{1,2}|complex\d{2,3}|float\d{1,2}(_e\dm\d\w{0,6})?",
                    re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}")


class CheckpointError(RunError):
    """No checkpoint can be used; the message says why."""


class PrecisionError(CheckpointError):
    """A checkpoint is of 64 bits where JAX computes in 32, or the other way round."""


class Declared(NamedTuple):
    """An array as the manifest has it."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


class Manifest(NamedTuple):
    """What a checkpoint holds.

    Attributes:
      fingerprint: of the run's settings.
      round_index: the rounds that were done.
      arrays: by name.
      params: where among them the parameters are, see `fedax.experiment.params.structure`; None if
        that is not known.
      files: their digests by name.
      metrics: what metrics.jsonl began with; None in checkpoints of fedax 0.5 and before.
    """

    fingerprint: str
    round_index: int
    arrays: dict[str, Declared]
    params: Any
    files: dict[str, str]
    metrics: Prefix | None


def digest_of(manifest: dict[str, Any]) -> str:
    """The digest of a manifest whose own is None; those of fedax 0.5 and before have none."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def file_of(array: str) -> str:
    """The file that an array is in."""
    return f"{array}.npy" if array.startswith(ROWS) else STATE


def read_manifest(path: Path) -> Manifest:
    """Reads the manifest of a checkpoint.

    Args:
      path: the checkpoint.

    Raises:
      CheckpointError: if it cannot be read, is not of this format, or says what cannot be.
    """
    try:
        said = json.loads(read_file(path / MANIFEST, MOST_BYTES))
        rest = said | {"digest": None} if isinstance(said, dict) else None
        digest = rest and digest_of(rest)
    except (OSError, ValueError, RecursionError):
        raise _damaged(path) from None
    if rest is None:
        raise _damaged(path)
    _require_format(path, said)
    if said.get("digest", digest) != digest:
        raise _damaged(path, ": it was changed")
    try:
        manifest = Manifest(
            _text(said, "fingerprint"), _whole(said, "round", MOST_ROUNDS),
            {name: _declared(name, what) for name, what in _table(said, "arrays").items()},
            said.get("params"), _files(_table(said, "files")), _prefix(said.get("metrics")),
        )
        missing = {file_of(name) for name in manifest.arrays} - set(manifest.files)
        if CLIENT_IDS not in manifest.arrays or missing:
            raise ValueError("its arrays and files do not belong together")
    except ValueError as error:
        raise _damaged(path, f": {error}") from None
    return manifest


def _damaged(path: Path, why: str = "") -> CheckpointError:
    return CheckpointError(f"Checkpoint {path} is damaged: its manifest cannot be read{why}.")


def _require_format(path: Path, said: dict[str, Any]) -> None:
    found, version = said.get("format"), said.get("fedax")
    if not _is_whole(found) or not 0 < found < MOST_FORMATS:
        raise _damaged(path)
    if found != FORMAT:
        by = version if isinstance(version, str) and len(version) < 40 else "an unknown version"
        raise CheckpointError(
            f"Checkpoint {path} was written by fedax {by} in format {found}, but fedax "
            f"{__version__} reads format {FORMAT}."
        )


def _is_whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _whole(said: dict[str, Any], key: str, most: int) -> int:
    value = said.get(key)
    if not _is_whole(value) or not 0 <= value <= most:
        raise ValueError(f"its {key!r} is no whole number from 0 to {most}")
    return value


def _text(said: dict[str, Any], key: str) -> str:
    if not isinstance(said.get(key), str):
        raise ValueError(f"its {key!r} is no text")
    return said[key]


def _table(said: dict[str, Any], key: str) -> dict[str, Any]:
    if not isinstance(said.get(key), dict):
        raise ValueError(f"its {key!r} is no table")
    return said[key]


def _declared(name: str, what: Any) -> Declared:
    if not _ARRAY.fullmatch(name):
        raise ValueError(f"no array is called {name[:40]!r}")
    if not (isinstance(what, list) and len(what) == 2 and isinstance(what[0], list)):
        raise ValueError(f"the array {name} has no shape and dtype")
    shape, dtype = what
    if len(shape) > MOST_DIMENSIONS or not all(
        _is_whole(size) and 0 <= size <= MOST_ELEMENTS for size in shape
    ):
        raise ValueError(f"the array {name} has no such shape")
    if not (isinstance(dtype, str) and _DTYPE.fullmatch(dtype)):
        raise ValueError(f"the array {name} has no such dtype")
    try:
        return Declared(tuple(shape), jnp.dtype(dtype))
    except TypeError:
        raise ValueError(f"the array {name} has no such dtype") from None


def _files(files: dict[str, Any]) -> dict[str, str]:
    for name, digest in files.items():
        if not (name in (STATE, BEST) or re.fullmatch(rf"{ROWS}\d{{5,}}\.npy", name, re.ASCII)):
            raise ValueError(f"no file is called {name[:40]!r}")
        if not (isinstance(digest, str) and _DIGEST.fullmatch(digest)):
            raise ValueError(f"the file {name} has no digest")
    return files


def _prefix(metrics: Any) -> Prefix | None:
    if metrics is None:
        return None
    if not (isinstance(metrics, dict) and isinstance(metrics.get("sha256"), str)
            and _DIGEST.fullmatch(metrics["sha256"])):
        raise ValueError("its 'metrics' have no digest")
    return Prefix(_whole(metrics, "num_bytes", MOST_ELEMENTS), metrics["sha256"])
