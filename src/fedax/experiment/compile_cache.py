"""Compiled programs are kept on the disk, so that the next run of the same kind starts at once."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

import jax
import platformdirs

MOST_BYTES = 2**30


def keep_programs() -> None:
    """Turns on JAX's compilation cache, in the user's cache folder, unless it is configured.

    Each kind of machine has a folder of its own, as a home folder may be shared by several and a
    program for one's processor may not run on another's. `JAX_COMPILATION_CACHE_DIR` puts the
    cache elsewhere, `JAX_ENABLE_COMPILATION_CACHE=0` turns it off.
    """
    if jax.config.jax_compilation_cache_dir is None:  # pyright: ignore[reportAttributeAccessIssue]
        folder = platformdirs.user_cache_path("fedax", appauthor=False) / "programs" / _processor()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:  # a read-only home, say: then each run compiles
            return
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_compilation_cache_max_size", MOST_BYTES)


def _processor() -> str:
    """A short name for what the processor can do."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        can = next(line for line in lines if line.lower().startswith(("flags", "features")))
    except (OSError, StopIteration):
        can = platform.processor()
    return f"{platform.machine()}-{hashlib.sha256(can.encode()).hexdigest()[:12]}"
