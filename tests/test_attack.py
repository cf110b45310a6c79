"""The attack's short form: a few trials of each part; docs/notebook/attack.md has the long form."""

import errno
import os
import random
import sys
from pathlib import Path

import jax
import pytest

import made_data
from attack import bombs, data_files, disks, files, kills
from attack.outcomes import FoundError, require_equal, require_sentence, results
from attack.workers import Worker

pytestmark = [
    pytest.mark.shares_programs,
    pytest.mark.skipif(sys.platform == "win32", reason="signals, pipes and limits are POSIX"),
]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A run left alone: its folder, what it came to, and its operations on files."""
    jax.config.update("jax_disable_most_optimizations", True)  # as for the tests: to the bit
    folder = tmp_path_factory.mktemp("alone")
    expected, operations = disks.left_alone(folder / "run")
    return folder, expected, operations


@pytest.fixture(scope="module")
def unfinished(alone, tmp_path_factory):
    """A run that a full disk stopped between its checkpoints."""
    folder = tmp_path_factory.mktemp("unfinished") / "run"

    def fails(path):
        raise OSError(errno.ENOSPC, "full", path)

    with disks.Disk(folder, int(0.7 * alone[2]), fails).watched():
        disks.run((*disks.RUN, "--out", str(folder)))
    return folder


@pytest.mark.quick
@pytest.mark.parametrize("trial", range(4))
def test_disks_fail_and_folders_vanish(alone, trial, tmp_path):
    _, expected, operations = alone
    disks.failing(random.Random(f"fails {trial}"), tmp_path / "a", expected, operations)
    disks.vanishing(random.Random(f"vanishes {trial}"), tmp_path / "b", operations)


@pytest.mark.parametrize("trial", range(20))
def test_run_folders_after_accidents(alone, unfinished, trial, tmp_path):
    files.folder_after_accidents(
        random.Random(f"accident {trial}"), unfinished, tmp_path / "run", alone[1]
    )


@pytest.mark.parametrize("number", range(5))
def test_files_that_were_damaged_or_forged(alone, number, tmp_path):
    reader = files.readers(alone[0])[number]
    trials = [random.Random(f"{reader.name} {trial}") for trial in range(100)]
    read = sum(reader.attack(trial, tmp_path / "input") for trial in trials)
    assert read  # not all were refused


@pytest.mark.slow
@pytest.mark.parametrize("name", ["states of clients", "from Python"])
def test_kills(name, tmp_path):
    expected, seconds = kills.left_alone(name, tmp_path / "alone", tmp_path / "cache")
    kills.attack(
        name, 3, random.Random(name), tmp_path / "run", tmp_path / "cache", expected, seconds
    )


@pytest.mark.quick
def test_the_attack_finds_what_is_there_to_find(alone, tmp_path):
    """Planted: another bit, a traceback, two sentences, a reader that raises something else."""
    folder, expected, _ = alone
    with pytest.raises(FoundError, match="server_00000 differ from the run left alone"):
        require_equal(folder / "run", expected | {"server_00000": b"other"}, "Planted")
    for status, said in [(1, "Traceback"), (1, ""), (0, "fedax: no."), (1, "fedax: a\nfedax: b\n"),
                         (None, ""), (-6, "fedax: a\n"), (1, "fedax: a bug in fedax: x\n")]:
        with pytest.raises(FoundError):
            require_sentence(status, said, "Planted")
    reader = files.Reader(
        "Planted", lambda path: {}[path], (ValueError,), [b"{}"], files.forge_json
    )
    with pytest.raises(FoundError, match="KeyError"):
        reader.attack(random.Random(0), tmp_path / "input")
    silent = disks.Disk(tmp_path, 1, lambda path: None)
    with silent.watched():
        (tmp_path / "x").write_text("x")
        os.replace(tmp_path / "x", tmp_path / "y")  # noqa: PTH105
        Path(os.devnull).write_text("x")
    assert silent.count >= 3  # opened, written, renamed; not what is elsewhere
    assert results(folder / "run") == expected


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    """A process for the trials of several parts, which share the folders that they attack."""
    with Worker(60, 1000, tmp_path_factory.mktemp("worker")) as kept:
        yield kept


@pytest.mark.parametrize("trial", range(8))
@pytest.mark.parametrize("part", ["links", "forgeries", "escapes"])
def test_folders_and_names_of_strangers(worker, part, trial):
    assert worker.ask(f"attack.{part}:trial", 1, trial)


# Those that are made in a moment; the long form has all.
QUICK_BOMBS = ["npz_header", "npy_header", "csv_name", "leaf_json", "sqlite_views", "sqlite_pages",
               "store", "partition", "no_files"]


@pytest.mark.parametrize("name", QUICK_BOMBS)
def test_bombs(worker, name):
    for trial in range(2):
        worker.ask("attack.bombs:trial", name, 2, trial, what=name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*bombs.BOMBS} - {*QUICK_BOMBS}))
def test_bombs_that_take_long_to_make(worker, name):
    worker.ask("attack.bombs:trial", name, 2, 0, what=name)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["searches", "locks"])
def test_killed_searches_and_file_systems_without_locks(part, tmp_path):
    with Worker(300, 1000, tmp_path) as kept:  # one that trains nothing itself, as it is forked
        for trial in range(2):
            kept.ask(f"attack.{part}:trial", 0, trial)


@pytest.mark.parametrize("name", sorted(made_data.FORMATS | made_data.TABLES))
def test_files_of_data_that_were_damaged_or_forged(worker, name):
    ended, found = data_files.attack(worker, name, 3, 25)
    assert not found
    assert ended["a sentence"]


@pytest.mark.slow
def test_the_attack_finds_what_is_planted(worker):
    """A trial that raises, commands a terminal, or changes what is outside is a finding."""
    for what, found in {"raises": "KeyError", "leaks": "wrote", "changes": "changed"}.items():
        with pytest.raises(FoundError, match=found):
            worker.ask(f"attack.planted:{what}")
    assert worker.ask("attack.planted:works") == "done"


@pytest.mark.slow
def test_the_attack_finds_what_breaks_its_process(tmp_path):
    """A trial that hangs, fills the memory or crashes is a finding; a new process takes over."""
    with Worker(1, 60, tmp_path) as kept:
        for what, found in {"late": "not done", "greedy": "more than", "dies": "status"}.items():
            with pytest.raises(FoundError, match=found):
                kept.ask(f"attack.planted:{what}")
            assert kept.ask("attack.planted:works") == "done"
