"""A run folder from a stranger runs no code."""

import errno
import hashlib
import json
import os
import stat
import sys
from pathlib import Path

import platformdirs
import pytest

import fedax
from fedax.cli.main import run_command
from fedax.experiment import trust
from fedax.experiment.config import resolve

METHOD = """
import fedax, pathlib

def mine(model, client_learning_rate: float = 0.1):
    pathlib.Path("ran").touch()
    return fedax.fedavg(model, client_learning_rate)
"""


def keys_in(folder, monkeypatch):
    """The user's data folder is elsewhere."""
    monkeypatch.setattr(platformdirs, "user_data_path", lambda *_, **__: folder)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A working folder, and a user with no key so far."""
    monkeypatch.chdir(tmp_path)
    keys_in(tmp_path / "data" / "fedax", monkeypatch)
    (tmp_path / "methods.py").write_text(METHOD)
    return tmp_path


def run_mine(*words):
    line = ["run", "quadratics", "methods.py:mine", "--preset", "none", "--rounds", "2", "--out",
            "r", *words]
    assert run_command(line) == 0
    Path("ran").unlink()


def forge(**changes):
    """Changes what the run folder says of itself."""
    path = Path("r") / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


READERS = {
    "resume": ("run", "--resume", "r", "--rounds", "3"),
    "repeat": ("run", "--config", "r/config.json", "--out", "s"),
    "theory": ("theory", "--run", "r"),
}


@pytest.mark.slow
@pytest.mark.parametrize("how", READERS)
def test_a_forged_configuration_runs_nothing(how, project, capsys):
    """One names `os.system` as its task, called with the forger's words; the digest is right."""
    run_mine()
    source = {"name": "system", "path": os.__file__, "module": "os",
              "sha256": hashlib.sha256(Path(os.__file__).read_bytes()).hexdigest()}
    forge(task="system", task_source=source, task_options={"command": "touch ran"})
    capsys.readouterr()
    assert run_command(list(READERS[how])) == 2
    error = capsys.readouterr().err
    assert f"refers to the code {os.__file__}:system and " in error
    assert "was not written by your fedax on this machine" in error
    assert not Path("ran").exists()


@pytest.mark.slow
def test_what_was_written_here_goes_on_and_what_came_from_elsewhere_asks(project, capsys):
    run_mine("--set", "checkpoint_every=1")
    for line in READERS.values():
        assert run_command([word.replace("3", "2") for word in line]) == 0, capsys.readouterr().err
    (project / "data" / "fedax" / "key").unlink()  # as on another machine
    Path("ran").unlink()
    for line in READERS.values():
        assert run_command(list(line)) == 2
    assert not Path("ran").exists()
    run = fedax.load_run("r")
    assert run.params["x"].shape == (20,)  # numbers need no trust
    with pytest.raises(fedax.experiment.errors.ConfigError, match="refers to the code"):
        _ = run.task
    assert run_command([*READERS["resume"], "--force"]) == 0
    assert run_command(["run", "--resume", "r", "--rounds", "4"]) == 0  # signed anew


@pytest.mark.slow
def test_a_changed_setting_of_a_users_code_is_noticed(project, capsys):
    """The code is the user's own, but what it is called with is not."""
    run_mine()
    forge(algorithm_options={"client_learning_rate": 0.2})
    assert run_command(["run", "--resume", "r"]) == 2
    assert "was changed since" in capsys.readouterr().err


def test_a_json_file_that_names_code_is_asked_for_even_without_a_record(project, capsys):
    (project / "c.json").write_text(json.dumps({"algorithm": "methods.py:mine"}))
    assert run_command(["run", "--config", "c.json", "--out", "s"]) == 2
    assert "give task and method yourself" in capsys.readouterr().err
    assert not Path("ran").exists()
    (project / "c.toml").write_text('task = "quadratics"\nalgorithm = "methods.py:mine"\n')
    assert resolve(config_file=Path("c.toml")).algorithm == "mine"  # which a user writes


@pytest.mark.quick
def test_the_key_is_the_users_own(project):
    config = {"task": "a", "algorithm": "b", "task_options": {"rate": 0.1}}
    signed = config | {"made_by": {"signature": trust.signature(config)}}
    assert trust.is_own(signed)
    assert trust.signature(config) == trust.signature(signed | {"num_rounds": 3})
    for change in ({"task": "c"}, {"task_options": {"rate": 0.2}}, {"made_by": None},
                   {"made_by": {"signature": "x"}}, {"made_by": {"signature": "\ud800"}}):
        assert not trust.is_own(signed | change)
    key = platformdirs.user_data_path("fedax", appauthor=False) / "key"
    assert len(key.read_bytes()) == trust.LENGTH
    assert [path.name for path in key.parent.iterdir()] == ["key"]
    if sys.platform != "win32":
        assert stat.S_IMODE(key.stat().st_mode) == 0o600


@pytest.mark.quick
def test_a_full_disk_has_no_key_and_no_part_of_one(project, monkeypatch):
    def full(path):
        path.write_bytes(b"abc")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(trust, "_write_key", full)
        assert trust.signature({"task": "a"}) is None
    folder = platformdirs.user_data_path("fedax", appauthor=False)
    assert list(folder.iterdir()) == []
    assert trust.signature({"task": "a"}) is not None


def test_without_a_place_for_a_key_nothing_is_trusted(project, monkeypatch):
    (project / "file").touch()
    keys_in(project / "file" / "fedax", monkeypatch)
    assert trust.signature({"task": "a"}) is None
    assert not trust.is_own({"task": "a", "made_by": {"signature": None}})
    key = project / "data" / "fedax" / "key"
    key.parent.mkdir(parents=True)
    key.write_bytes(b"")  # a broken one
    keys_in(key.parent, monkeypatch)
    assert trust.signature({"task": "a"}) is None
