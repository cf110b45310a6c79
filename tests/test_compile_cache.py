"""Kept programs: whole or not there, trusted only with their digest, bounded, in nobody's way."""

import importlib
import os
import subprocess
import sys
import time
import warnings

import jax
import jax.numpy as jnp
import pytest

from fedax.experiment import compile_cache
from fedax.experiment.compile_cache import ABANDONED, DIGEST_BYTES, PARTIAL, Programs

pytestmark = [pytest.mark.quick, pytest.mark.internals]

JAX = importlib.import_module("jax._src.compilation_cache")


@pytest.mark.parametrize("length", [0, 1, 100_000])
def test_what_is_put_is_got(tmp_path, length):
    programs, program = Programs(tmp_path), os.urandom(length)
    assert programs.get("jit_f-1") is None
    programs.put("jit_f-1", program)
    assert Programs(tmp_path).get("jit_f-1") == program
    programs.put("jit_f-1", b"another")
    assert programs.get("jit_f-1") == b"another"
    assert [path.name for path in tmp_path.iterdir()] == ["jit_f-1.program"]


@pytest.mark.parametrize("how", ["truncated", "empty", "only a part", "flipped", "longer"])
def test_a_damaged_program_is_removed_and_kept_anew(tmp_path, how):
    programs = Programs(tmp_path)
    programs.put("jit_f-1", b"program")
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    path.write_bytes({
        "truncated": content[:-1], "empty": b"", "only a part": content[:9],
        "flipped": content[:-1] + bytes([content[-1] ^ 1]), "longer": content + b"\0",
    }[how])
    assert programs.get("jit_f-1") is None
    assert list(tmp_path.iterdir()) == []
    programs.put("jit_f-1", b"program")
    assert programs.get("jit_f-1") == b"program"


def test_what_was_used_the_longest_time_ago_goes(tmp_path):
    size = 100 + DIGEST_BYTES
    programs = Programs(tmp_path, 3 * size)
    for age, name in enumerate(("first", "second", "third")):
        programs.put(name, bytes(100))
        os.utime(tmp_path / f"{name}.program", (age, age))
    assert programs.get("first") == bytes(100)  # and so it was used last
    programs.put("fourth", bytes(100))
    kept = {path.stem for path in tmp_path.iterdir()}
    assert kept == {"first", "third", "fourth"}
    programs.put("too large", bytes(3 * size))
    assert programs.get("too large") is None


def test_what_killed_processes_left_goes_after_an_hour(tmp_path):
    now = time.time()
    for name, age in (("old", 2 * ABANDONED), ("new", 0)):
        (tmp_path / (name + PARTIAL)).write_bytes(b"half")
        os.utime(tmp_path / (name + PARTIAL), (now - age, now - age))
    Programs(tmp_path).put("jit_f-1", b"program")
    assert {path.name for path in tmp_path.iterdir()} == {"new" + PARTIAL, "jit_f-1.program"}


@pytest.mark.parametrize("how", ["gone", "a file"])
def test_a_folder_that_cannot_be_used_is_no_error(tmp_path, how):
    folder = tmp_path / "programs"
    if how == "a file":
        folder.write_bytes(b"")
    programs = Programs(folder)
    programs.put("jit_f-1", b"program")
    assert programs.get("jit_f-1") is None


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        def full(*arguments):
            raise OSError(28, "No space left on device")

        patch.setattr(compile_cache.Path, "replace", full)
        Programs(tmp_path).put("jit_f-1", b"program")
    assert list(tmp_path.iterdir()) == []


WRITER = """
import runpy, sys
from pathlib import Path
Programs = runpy.run_path(sys.argv[1])["Programs"]  # the file alone is imported sooner
programs, number = Programs(Path(sys.argv[2])), 0
while number < 100_000:
    programs.put(f"jit_f-{number % 3}", bytes([number % 256]) * 300_000)
    number += 1
"""


def test_processes_that_write_and_are_killed_leave_whole_programs_only(tmp_path):
    command = [sys.executable, "-c", WRITER, compile_cache.__file__, str(tmp_path)]
    writer = subprocess.Popen(command)
    programs, found, end = Programs(tmp_path), 0, time.monotonic() + 60
    while found < 100 and time.monotonic() < end:
        for path in tmp_path.glob("*.program"):
            content = programs.get(path.stem)
            assert content is not None
            assert len(content) == 300_000
            found += 1
        programs.put("jit_f-0", bytes(300_000))  # which both write
    writer.kill()
    writer.wait()
    assert found >= 100
    assert all(programs.get(path.stem) for path in tmp_path.glob("*.program"))


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """The folder of a user whose cache is not configured; `keep_programs` was called."""
    settings = {
        "jax_compilation_cache_dir": None, "jax_persistent_cache_min_compile_time_secs": 0.0,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    monkeypatch.setattr(JAX, "get_file_cache", JAX.get_file_cache)  # put back afterwards
    monkeypatch.setattr(compile_cache.platformdirs, "user_cache_path", lambda *_, **__: tmp_path)
    for name, value in settings.items():
        jax.config.update(name, value)
    JAX.reset_cache()
    with warnings.catch_warnings():
        compile_cache.keep_programs()
        yield tmp_path / "programs"
    for name, value in before.items():
        jax.config.update(name, value)
    JAX.reset_cache()


def test_jax_asks_for_programs_heals_and_says_nothing(kept):
    """The file of JAX's own that a kill leaves half written was recompiled for ever, with words."""
    seen = []

    def listen(event, **_):
        seen.append(event.split("/")[-1])

    def hits_and_misses():
        seen.clear()
        jax.jit(lambda x: x * 2 + 1)(jnp.float64(1.0))  # a new function, the same program
        return seen.count("cache_hits"), seen.count("cache_misses")

    jnp.float64(1.0)
    jax.monitoring.register_event_listener(listen)
    try:
        assert hits_and_misses() == (0, 1)
        (path,) = kept.glob("*/jit__lambda*.program")
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
        assert hits_and_misses() == (0, 1)
        assert hits_and_misses() == (1, 0)
        # What has the right digest and is no program: JAX compiles, and it is replaced.
        Programs(path.parent).put(path.stem, b"no program")
        assert hits_and_misses() == (0, 1)
        assert hits_and_misses() == (1, 0)
    finally:
        jax.monitoring.unregister_event_listener(listen)


def test_a_cache_that_is_configured_stays_as_it_is():
    before = JAX.get_file_cache
    assert jax.config.jax_compilation_cache_dir is not None  # conftest.py's
    compile_cache.keep_programs()
    assert JAX.get_file_cache is before
