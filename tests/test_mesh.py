"""Several devices and several processes give the numbers of one."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedax.devices.cores import take_a_core

HERE = Path(__file__).parent


def environment(**more):
    path = os.pathsep.join([str(HERE), *sys.path])
    return os.environ | {"PYTHONPATH": path} | more


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "tolerance"), [
    pytest.param("float64", 1e-10, marks=pytest.mark.internals), ("float32", 2e-5),
])
def test_four_devices_give_the_numbers_of_one(dtype, tolerance):
    """FedYogi, SCAFFOLD, Mime; chunks, ways of sampling, resumed on other devices, packed data."""
    done = subprocess.run(
        [sys.executable, HERE / "mesh_checks.py", dtype], env=environment(), text=True,
        capture_output=True, check=False, timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("devices") == 4
    assert found.pop("rows on a device") == [[1, 1024]] * 4  # each has its own clients' only
    assert found.pop("states on a device") == [[2, 3]] * 4  # 7 clients and a place for nobody
    assert len(found) == 32
    assert max(found.values()) < tolerance, found


def run_processes(folder, *words, count=2):
    """`fedax run` as so many processes, started."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    return [
        subprocess.Popen(
            [
                sys.executable, "-m", "fedax", "run", *words, "--coordinator", f"localhost:{port}",
                "--processes", str(count), "--process-id", str(index),
                *([] if "--resume" in words else ["--out", str(folder)]),
            ],
            env=environment(JAX_ENABLE_X64="1"), text=True, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for index in range(count)
    ]


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.internals
@pytest.mark.slow
def test_two_processes_give_the_numbers_of_one_and_survive_a_loss(tmp_path):
    """Also: one is killed, the other says so; resumed as one process, the run ends the same."""
    job = ["quadratics", "scaffold", "--rounds", "30", "--set", "cohort_size=7",
           "checkpoint_every=5"]
    one = tmp_path / "one"
    subprocess.run(
        [sys.executable, "-m", "fedax", "run", *job, "--out", str(one)], check=True,
        env=environment(JAX_ENABLE_X64="1"), stdout=subprocess.DEVNULL, timeout=300,
    )
    expected = metrics(one)

    two = tmp_path / "two"
    for process in run_processes(two, *job):
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors[-2000:]
    for a, b in zip(metrics(two), expected, strict=True):
        assert a["train_loss"] == pytest.approx(b["train_loss"], rel=1e-10)
    assert metrics(two)[-1]["test_distance"] == pytest.approx(
        expected[-1]["test_distance"], rel=1e-10
    )

    lost = tmp_path / "lost"
    first, second = run_processes(lost, *job[:2], "--rounds", "100000", *job[4:])
    deadline = time.time() + 200
    while len(list((lost / "checkpoints").glob("round-*"))) < 2:
        assert time.time() < deadline
        assert first.poll() is None, first.communicate()[1][-2000:]
        time.sleep(0.2)
    second.send_signal(signal.SIGKILL)
    second.communicate(timeout=60)
    _, errors = first.communicate(timeout=200)
    assert first.returncode == 1, errors[-2000:]
    (sentence,) = (line for line in errors.splitlines() if line.startswith("fedax: "))
    assert "nother process of the training was lost" in sentence
    done = max(int(p.name.removeprefix("round-")) for p in (lost / "checkpoints").glob("round-*"))
    total = str(max(done + 10, 30))
    for folder in (lost, one):
        subprocess.run(
            [sys.executable, "-m", "fedax", "run", "--resume", str(folder), "--rounds", total],
            check=True, env=environment(JAX_ENABLE_X64="1"), stdout=subprocess.DEVNULL, timeout=300,
        )
    for a, b in zip(metrics(lost), metrics(one), strict=True):
        assert a["train_loss"] == pytest.approx(b["train_loss"], rel=1e-9)


@pytest.mark.quick
def test_what_is_wrong_with_processes_is_said(capsys):
    from fedax.cli.main import run_command

    assert run_command(["run", "--processes", "2"]) == 2
    assert "all three of" in capsys.readouterr().err
    words = ["--coordinator", "localhost:1", "--processes", "2", "--process-id", "2"]
    assert run_command(["run", *words]) == 2
    assert "must be in [0, 1], but is 2" in capsys.readouterr().err


@pytest.mark.quick
def test_where_no_core_can_be_asked_for_none_is_taken(monkeypatch):
    """As on macOS and Windows."""
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    assert take_a_core() is None


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the test above says what is so elsewhere")
def test_each_process_has_a_core_of_its_own_until_it_ends(tmp_path):
    cores = sorted(os.sched_getaffinity(0))[:2]
    program = Path(take_a_core.__code__.co_filename).read_text("utf-8") + (  # starts at once
        f"import sys\nos.sched_setaffinity(0, {cores})\nheld = take_a_core()\n"
        "print(*sorted(os.sched_getaffinity(0)), flush=True)\nsys.stdin.read()\n"
    )
    started = []

    def start(home=tmp_path):
        """Waits until it has chosen; the cores on which it is."""
        process = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, env={**os.environ, "XDG_CACHE_HOME": str(home), "HOME": str(home)},
        )
        started.append(process)
        return [int(word) for word in process.stdout.readline().split()]

    try:
        assert [start() for _ in cores] == [[core] for core in cores]
        assert start() == cores  # none is left, so it stays on all
        started[0].kill()
        started[0].wait()
        assert start() == cores[:1]
        (tmp_path / "file").touch()
        assert start(tmp_path / "file") == cores  # no folder for locks
    finally:
        for process in started:
            process.kill()
            process.communicate()


PRODUCTS = """
import hashlib, os, sys
from fedax.devices.cores import compute_in_one_thread
if sys.argv[1] == "one":
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
elif sys.argv[1] == "all":
    compute_in_one_thread()
import jax, numpy as np
left, right = (np.random.default_rng(n).normal(size=(20000, 64)).astype("f") for n in (0, 1))
product = jax.jit(lambda a, b: a.T @ b)(left, right)
print(hashlib.sha256(np.asarray(product).tobytes()).hexdigest())
"""


@pytest.mark.slow
@pytest.mark.skipif(len(getattr(os, "sched_getaffinity", lambda _: [])(0)) < 2,
                    reason="a process on one core has nothing to divide")
def test_a_result_does_not_depend_on_how_many_cores_a_worker_may_use():
    """Not even its last bits; XLA left alone divides a product among the cores."""
    found = {
        cores: subprocess.run([sys.executable, "-c", PRODUCTS, cores], capture_output=True,
                              text=True, check=True).stdout
        for cores in ("one", "all", "as XLA does")
    }
    assert found["all"] == found["one"]
    assert found["as XLA does"] != found["one"]  # or the test asks nothing
