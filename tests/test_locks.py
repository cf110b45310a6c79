"""Locks between processes, with a file system that has them and with one that has none."""

import errno
import fcntl
import json
import os
import subprocess
import sys
import time

import jax
import pytest

import fedax
from fedax.data.errors import DataError
from fedax.data.store_writer import StoreWriter
from fedax.devices import locks
from fedax.devices.locks import BEAT, GRACE, LEASE, Lock
from fedax.devices.temporary import temporary_folder
from fedax.experiment.folder import BusyError, locked, new_folder
from problems import quadratic_task

NO_LOCKS = [errno.ENOLCK, errno.EOPNOTSUPP, errno.EACCES, errno.ENOSYS, errno.EINVAL]
# A process whose file system keeps no locks, if an error is given, and that holds a lock.
HOLD = """
import fcntl, os, sys, time
if sys.argv[2] != "0":
    def flock(*_):
        raise OSError(int(sys.argv[2]), os.strerror(int(sys.argv[2])))
    fcntl.flock = flock
import importlib.util
from pathlib import Path
spec = importlib.util.spec_from_file_location("locks", sys.argv[3])  # without JAX
locks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(locks)
locks.BEAT = float(sys.argv[4])
print(locks.Lock(Path(sys.argv[1])).take(), flush=True)
time.sleep(60)
"""

pytestmark = pytest.mark.quick


def holding(path, error=0, beat=BEAT):
    """A process that has a lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path), str(error), locks.__file__, str(beat)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )
    assert process.stdout.readline() == "True\n"
    return process


def end(process):
    process.kill()
    process.communicate(timeout=60)


@pytest.fixture(params=[0, *NO_LOCKS])
def error(request, monkeypatch):
    """What flock says: 0, nothing."""
    def flock(*_):
        raise OSError(request.param, os.strerror(request.param))

    if request.param:
        monkeypatch.setattr(fcntl, "flock", flock)
    return request.param


def test_one_at_a_time_has_a_lock(tmp_path, error):
    one, two = Lock(tmp_path / "lock"), Lock(tmp_path / "lock")
    assert one.take()
    assert not two.take()
    assert one.owner() == two.owner() == f"Process {os.getpid()} on {os.uname().nodename}"
    one.release()
    assert two.take()
    two.release()
    assert two.owner() == "Another process"
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_a_process_that_is_killed_has_no_lock(tmp_path, error):
    path = tmp_path / "lock"
    process = holding(path, error)
    assert not Lock(path).take()
    process.kill()
    time.sleep(0.05)  # a zombie from now on
    lock = Lock(path)
    assert lock.take()
    end(process)
    lock.release()


def test_a_lock_of_before_and_a_lease_of_now_exclude_each_other(tmp_path, monkeypatch):
    """The lock service of NFS may fail for a while."""
    path = tmp_path / "lock"
    with monkeypatch.context() as patch:
        process = holding(path)
        patch.setattr(fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOLCK, "")))
        assert not Lock(path).take()
        end(process)
    process = holding(path, errno.ENOLCK)
    assert not Lock(path).take()
    end(process)
    lock = Lock(path)
    assert lock.take()
    assert not path.with_name("lock" + LEASE).exists()
    lock.release()


def test_the_owner_on_another_machine_is_gone_when_it_gives_no_sign_of_life(tmp_path, monkeypatch):
    monkeypatch.setattr(
        fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOLCK, ""))
    )
    path, lease = tmp_path / "lock", tmp_path / ("lock" + LEASE)
    record = {"process": os.getpid(), "started": "1", "host": "elsewhere", "machine": "elsewhere"}
    lease.write_text(json.dumps(record))
    assert not Lock(path).take()
    assert Lock(path).owner() == f"Process {os.getpid()} on elsewhere"
    for age, gone in ((GRACE - 2 * BEAT, False), (GRACE + 1, True)):
        then = time.time() - age
        os.utime(lease, (then, then))
        lock = Lock(path)
        assert lock.take() is gone
    lock.release()
    # The number of a process that ended, which another one has now.
    lease.write_text(json.dumps(record | {"machine": locks._machine()}))
    lock = Lock(path)
    assert lock.take()
    lock.release()
    # Half of a record, of a process that was killed as it wrote it.
    lease.write_text('{"process": 1')
    assert not Lock(path).take()
    os.utime(lease, (0, 0))
    lock = Lock(path)
    assert lock.take()
    lock.release()


def test_the_owner_gives_signs_of_life_and_ends_when_its_lease_is_another_s(tmp_path):
    path, lease = tmp_path / "lock", tmp_path / ("lock" + LEASE)
    process = holding(path, errno.ENOLCK, beat=0.1)
    os.utime(lease, (0, 0))
    deadline = time.monotonic() + 30
    while lease.stat().st_mtime == 0:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    record = json.loads(lease.read_text())
    lease.write_text(json.dumps(record | {"process": 1, "host": "elsewhere"}))
    _, said = process.communicate(timeout=30)
    assert process.returncode == 1
    assert said.startswith("This process was paused for over ")
    assert f"Process 1 on elsewhere has taken over {tmp_path}." in said


def test_runs_and_stores_are_made_where_there_are_no_locks(tmp_path, error):
    task, out = quadratic_task(), tmp_path / "run"
    algorithm = fedax.fedavg(task.model, client_learning_rate=0.1)
    given = {"num_rounds": 2, "cohort_size": 2, "progress": False, "out": out}
    with new_folder(out):
        process = None
    process = holding(out / ".lock", error)
    with pytest.raises(BusyError, match="Another process is training in"), locked(out):
        pass
    end(process)
    fedax.train(task, algorithm, **given)
    fedax.train(task, algorithm, **given | {"num_rounds": 3})
    assert not (out / (".lock" + LEASE)).exists()
    with StoreWriter(tmp_path / "store") as writer:
        writer.append("ada", {"x": [1.0]})
        with pytest.raises(DataError, match="Another process is making"):
            StoreWriter(tmp_path / "store")
        store = writer.finish()
    assert sorted(path.name for path in store.iterdir() if "lock" in path.name) == []


def test_a_link_or_a_pipe_is_no_lock(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(OSError, match=r"regular file|symbolic links"):
            Lock(tmp_path / name).take()
    assert not (tmp_path / "elsewhere").exists()


def test_the_temporary_folder_of_a_process_that_was_killed_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name in ("fedax-left", "fedax-held", "fedax-young", "fedax-own", "other"):
        (tmp_path / name).mkdir()
        if name != "fedax-own":  # a user's, who gave it this name
            (tmp_path / name / ".fedax.lock").touch()
        if name != "fedax-young":
            os.utime(tmp_path / name, (0, 0))
    (tmp_path / "fedax-link").symlink_to(tmp_path / "other")
    held = Lock(tmp_path / "fedax-held" / ".fedax.lock")
    assert held.take()
    with temporary_folder() as folder:
        found = {path.name for path in tmp_path.iterdir()}
    held.release()
    assert found == {"fedax-held", "fedax-young", "fedax-own", "other", "fedax-link", folder.name}
    assert not folder.exists()


def test_a_run_does_not_go_on_with_other_random_numbers(tmp_path):
    task = quadratic_task()
    algorithm = fedax.fedavg(task.model, client_learning_rate=0.1)
    given = {"cohort_size": 2, "progress": False, "out": tmp_path / "run"}
    fedax.train(task, algorithm, num_rounds=2, **given)
    with (
        jax.threefry_partitionable(not jax.config.jax_threefry_partitionable),
        pytest.raises(fedax.RunError, match="JAX_THREEFRY_PARTITIONABLE=True in the environment"),
    ):
        fedax.train(task, algorithm, num_rounds=3, **given)
    fedax.train(task, algorithm, num_rounds=3, **given)
