"""Compiled programs are kept on the disk, so that the next run of the same kind starts at once.

JAX asks for programs and offers those that it compiled; `Programs` keeps them in place of
JAX's own files, which are written where they are read (a kill leaves a half, for ever) and guarded
by a lock. Here a file is whole or not there, is trusted only with its digest, and nothing waits.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import tempfile
import time
import warnings
from pathlib import Path

import jax
import platformdirs

from fedax.devices.internals import cache_programs_in

MOST_BYTES = 2**30
SUFFIX, PARTIAL = ".program", ".partial"
# After so many seconds a file that is not whole was left by a process that was killed.
ABANDONED = 3600.0
DIGEST_BYTES = hashlib.sha256().digest_size


def keep_programs() -> None:
    """Turns on JAX's compilation cache, in the user's cache folder, unless it is configured.

    Each kind of machine has a folder of its own, as a home folder may be shared by several and a
    program for one's processor may not run on another's. `JAX_COMPILATION_CACHE_DIR` puts the
    cache elsewhere, as JAX's own files; `JAX_ENABLE_COMPILATION_CACHE=0` turns it off.
    """
    # Of what goes wrong there the user has no more than a compilation.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache entry")
    if jax.config.jax_compilation_cache_dir is None:  # pyright: ignore[reportAttributeAccessIssue]
        folder = platformdirs.user_cache_path("fedax", appauthor=False) / "programs" / _processor()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:  # a read-only home, say: then each run compiles
            return
        if cache_programs_in(Programs(folder)):
            jax.config.update("jax_compilation_cache_dir", str(folder))
            # JAX keeps only what takes a second to compile: a start has dozens that take less.
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


class Programs:
    """Programs by JAX's names for them, in a folder that any number of processes share.

    Nothing raises and nothing waits: what cannot be read is not there, and what cannot be written
    is compiled again the next time.

    Args:
      folder: where they are, one file each: a SHA-256 digest, and the bytes that it is of.
      most_bytes: what the folder may hold; those that were not used for the longest time go.
    """

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self._path = folder
        self._most_bytes = most_bytes
        self._bytes: int | None = None  # in the folder, before the next look at it

    def get(self, key: str) -> bytes | None:
        """The program of this name, or None; a damaged one is removed."""
        path = self._path / (key + SUFFIX)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        program = content[DIGEST_BYTES:]
        whole = hashlib.sha256(program).digest() == content[:DIGEST_BYTES]
        with contextlib.suppress(OSError):  # a folder that cannot be written serves all the same
            if whole:
                os.utime(path)
            else:
                path.unlink()
        return program if whole else None

    def put(self, key: str, value: bytes) -> None:
        """Keeps a program, in place of one of the same name."""
        with contextlib.suppress(OSError):  # a full or read-only disk
            handle, name = tempfile.mkstemp(PARTIAL, dir=self._path)
            partial = Path(name)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(hashlib.sha256(value).digest())
                    file.write(value)
                partial.replace(self._path / (key + SUFFIX))
            except OSError:
                partial.unlink()
                raise
            # A look at a folder of thousands of small programs takes as long as compiling one.
            if self._bytes is None or self._bytes + len(value) + DIGEST_BYTES > self._most_bytes:
                self._bytes = self._make_room()
            else:
                self._bytes += len(value) + DIGEST_BYTES

    def _make_room(self) -> int:
        """Removes what was used the longest time ago and what killed processes left.

        Returns the bytes of what stays.
        """
        total, now = 0, time.time()
        files = []
        with os.scandir(self._path) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False):
                    with contextlib.suppress(OSError):  # another process removed it
                        files.append((entry.stat(follow_symlinks=False), Path(entry.path)))
        for status, path in sorted(files, key=lambda file: -file[0].st_mtime):
            total += status.st_size
            abandoned = path.suffix == PARTIAL and status.st_mtime < now - ABANDONED
            if total > self._most_bytes or abandoned:
                with contextlib.suppress(OSError):
                    path.unlink()
                    total -= status.st_size
        return total


def _processor() -> str:
    """A short name for what the processor can do."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        can = next(line for line in lines if line.lower().startswith(("flags", "features")))
    except (OSError, StopIteration):
        can = platform.processor()
    return f"{platform.machine()}-{hashlib.sha256(can.encode()).hexdigest()[:12]}"
