"""Signals end every command in time, whatever its threads do; so does the loss of a process."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import jax
import pytest

from attack import processes
from fedax.devices import ending, mesh
from fedax.devices.processes import PlaceError, ProcessError, _require_same, connect
from fedax.experiment.imports import in_callback

# The guard in a process that imports nothing else; its main thread waits for a lock of C, where no
# handler of Python runs.
GUARDED = f"""
import ctypes, importlib.util, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
spec = importlib.util.spec_from_file_location("ending", {ending.__file__!r})
ending = importlib.util.module_from_spec(spec)
sys.modules["ending"] = ending
spec.loader.exec_module(ending)
ending.PATIENCE = 0.8
def wait():
    lock = ctypes.create_string_buffer(128)
    print("waiting", flush=True)
    for _ in range(2):
        ctypes.CDLL(None).pthread_mutex_lock(lock)
"""
GUARD = "ending.set_guard()\n"
IN_A_ROUND = GUARD + """
ending.guard().request = request = ending.Request(lambda: "Kept.")
"""


def guarded(code, *signals):
    """Runs code under the guard and sends signals, so many seconds one after the other."""
    process = subprocess.Popen(
        [sys.executable, "-c", GUARDED + code], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "waiting\n"
    for number in signals:
        time.sleep(0.4)
        began = time.monotonic()
        process.send_signal(number)
    _, errors = process.communicate(timeout=90)
    return process.returncode, errors.splitlines(), time.monotonic() - began


@pytest.mark.quick
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_is_blocked_ends_at_once(number):
    status, errors, seconds = guarded(GUARD + "ending.PATIENCE = 100\nwait()", number)
    assert (status, errors) == (1, ["fedax: Stopped."])
    assert seconds < 50


@pytest.mark.slow
def test_a_run_gets_its_time_and_no_more():
    status, (first, last), seconds = guarded(IN_A_ROUND + "wait()", signal.SIGTERM)
    assert status == 1
    assert first.startswith("fedax: Stopping after this round, within 1 s at most; press")
    assert last == "fedax: Kept."
    assert 0.8 <= seconds < 50


@pytest.mark.slow
def test_a_second_signal_ends_a_run_at_once():
    code = IN_A_ROUND + "ending.PATIENCE = 100\nwait()"
    status, (_, last), seconds = guarded(code, signal.SIGINT, signal.SIGINT)
    assert (status, last) == (1, "fedax: Kept.")
    assert seconds < 50


@pytest.mark.slow
def test_a_handler_that_a_user_set_meanwhile_keeps_its_signal():
    code = GUARD + """
signal.signal(signal.SIGTERM, lambda *_: sys.exit("mine"))
print("waiting", flush=True)
time.sleep(30)
"""
    assert guarded(code, signal.SIGTERM)[:2] == (1, ["mine"])


def test_slow_rounds_get_more_time(monkeypatch):
    now = 100.0
    monkeypatch.setattr(ending.time, "monotonic", lambda: now)
    request = ending.Request()
    for seconds in (2, 30, 5):
        now += seconds
        request.round_done()
    now += 500
    request.round_done(compiling=499)
    assert request.patience == 90
    assert ending.Request().patience == 10


@pytest.mark.slow
def test_a_run_that_ends_by_itself_says_nothing_more():
    code = IN_A_ROUND + """
print("waiting", flush=True)
while not request:
    time.sleep(0.01)
ending.leave("Stopped after round 3.")
"""
    status, errors, seconds = guarded(code, signal.SIGTERM)
    assert (status, errors) == (1, ["fedax: Stopped after round 3."])
    assert seconds < 50


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there is no such shell")
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_without_outputs_says_nothing_and_ends_well(closed, tmp_path):
    command = f'"{sys.executable}" -m fedax'
    for words, status in (("run --help", 0), ("run nothing fedavg", 2)):
        done = subprocess.run(
            f"{command} {words} {closed}", shell=True, cwd=tmp_path, capture_output=True,
            text=True, check=False,
        )
        assert done.returncode == status, done.stderr
        if status == 2 and closed == ">&-":
            assert done.stderr.startswith("fedax: ")
        else:
            assert done.stderr == ""
        if status == 2:
            assert done.stdout == ""


@pytest.mark.skipif(sys.platform == "win32", reason="ctypes has no such lock there")
def test_a_second_signal_ends_a_run_whose_outputs_are_closed(tmp_path):
    code = f"""
from fedax.devices import ending
import ctypes, os, signal, sys
os.close(0), os.close(1), os.close(2)
sys.stdin = sys.stdout = sys.stderr = None
signal.signal(signal.SIGINT, signal.default_int_handler)
ending.open_what_is_closed()
ending.set_guard()
ending.guard().request = ending.Request(lambda: "Kept.")
file = open({str(tmp_path / "ready")!r}, "w")
assert file.fileno() > 2 and sys.stdout.write("nobody reads this") and ending.tell("this") is None
file.close()
lock = ctypes.create_string_buffer(128)
for _ in range(2):
    ctypes.CDLL(None).pthread_mutex_lock(lock)
"""
    process = subprocess.Popen([sys.executable, "-c", code])
    began = time.monotonic()
    while not (tmp_path / "ready").exists() and time.monotonic() < began + 60:
        time.sleep(0.05)
    for _ in range(2):
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=5) == 1


CALLBACK = """
import jax, sys
from fedax.cli.main import main
def fails(value):
    raise OSError("no sensor")
def command(arguments):
    jax.jit(lambda x: jax.debug.callback(fails, x))(1.0)
    jax.effects_barrier()
from fedax.cli import main as module
module._list = command
sys.argv = ["fedax", "list", "tasks"]
main()
"""


@pytest.mark.internals
def test_what_fails_in_a_callback_of_a_user_is_theirs(tmp_path):
    (tmp_path / "own.py").write_text(CALLBACK)
    done = subprocess.run(
        [sys.executable, "own.py"], cwd=tmp_path, capture_output=True, text=True, check=False,
    )
    assert done.returncode == 1
    line = done.stderr.splitlines()[-1]  # after JAX's own account
    assert line.startswith("fedax: Your code failed: OSError: no sensor (line 5 of ")


@pytest.mark.quick
def test_whose_a_failed_callback_is():
    def failed(*frames, words="ValueError: first\nsecond"):
        lines = "".join(f'  File "{file}", line {n}, in f\n    f()\n' for n, file in
                        enumerate(frames, 1))
        return in_callback(RuntimeError(
            "INTERNAL: CpuCallback error calling callback: Traceback (most recent call last):\n"
            f"{lines}{words}"
        ))

    installed = jax.__file__
    assert failed(installed, "/u/own.py", json.__file__) == (
        "ValueError: first (line 2 of /u/own.py)."
    )
    assert failed(installed, words="ValueError: it is.") == "ValueError: it is."
    assert failed("/u/own.py", ending.__file__) is None  # a bug of ours
    assert in_callback(ValueError("another")) is None


@pytest.mark.slow
def test_what_nohup_ignores_stays_ignored():
    code = "signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + GUARD + """
print("waiting", flush=True)
time.sleep(1)
"""
    assert guarded(code, signal.SIGINT)[:2] == (0, [])


IMPORTING = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Tells:
    def find_spec(self, name, *_):
        if name == "jax":
            print("importing", flush=True)
sys.meta_path.insert(0, Tells())
sys.argv = ["fedax", "list", "tasks"]
from fedax.cli.main import main
main()
"""


@pytest.mark.internals
def test_ctrl_c_while_modules_are_imported_is_one_line():
    process = subprocess.Popen(
        [sys.executable, "-c", IMPORTING], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env=processes.environment(),
    )
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=90)
    assert (process.returncode, errors) == (1, "fedax: Stopped.\n")


@pytest.mark.parametrize(("begun", "is_it"), [
    ((["-m"], ["python", "-m", "fedax", "run"]), True),
    ((["-m"], ["python", "-X", "dev", "-m", "fedax"]), True),
    ((["-m"], ["python", "-m", "mine", "fedax"]), False),
    ((["/usr/bin/fedax", "run"], []), True),
    ((["C:\\Scripts\\fedax.exe"], []), True),
    ((["my_fedax.py"], []), False),
    (([""], []), False),
    (([], []), False),
])
def test_only_the_command_line_is_guarded(monkeypatch, begun, is_it):
    monkeypatch.setattr(sys, "argv", begun[0])
    monkeypatch.setattr(sys, "orig_argv", begun[1])
    assert ending.is_command_line() is is_it


@pytest.mark.internals
def test_more_devices_than_cores_want_force(monkeypatch, capsys):
    from fedax.cli import main

    monkeypatch.setattr(main, "usable_cores", lambda: 2)
    assert main.run_command(["run", "--devices", "3"]) == 2
    assert "--devices is 3, but only 2 cores can be used" in capsys.readouterr().err
    taken = []
    monkeypatch.setattr(main, "cores_as_devices", taken.append)
    main._use_cores(3, forced=True)
    main._use_cores(2)
    assert taken == [3, 2]
    assert mesh.usable_cores() >= 1


@pytest.mark.quick
@pytest.mark.parametrize(("place", "kind", "sentence"), [
    ((None, 2, None), PlaceError, "all three of"),
    (("host0:1", 2, 2), PlaceError, r"in \[0, 1\], but is 2"),
    (("host0:1", 0, 0), PlaceError, "at least 1, but is 0"),
    (("127.0.0.1", 2, 0), PlaceError, "HOST:PORT"),
    ((":1234", 2, 0), PlaceError, "HOST:PORT"),
    (("::1:1234", 2, 0), PlaceError, "HOST:PORT"),
    (("localhost:", 2, 0), PlaceError, "from 1 to 65535, but is ''"),
    (("localhost:ten", 2, 0), PlaceError, "'ten'"),
    (("localhost:0", 2, 0), PlaceError, "'0'"),
    (("localhost:65536", 2, 1), PlaceError, "'65536'"),
    (("localhost:" + "9" * 5000, 2, 1), PlaceError, "from 1 to 65535"),
    (("no-such-host.invalid:1", 2, 1), ProcessError, "'no-such-host.invalid' is unknown here"),
    (("a" * 70 + ".b:1", 2, 1), ProcessError, "is unknown here"),
    (("192.0.2.77:1234", 2, 0), ProcessError, "does not have that address"),
])
def test_a_place_that_is_none_is_said_before_the_runtime_is_asked(
    monkeypatch, place, kind, sentence
):
    monkeypatch.setattr("jax.distributed.initialize", None)
    with pytest.raises(kind, match=sentence) as error:
        connect(*place)
    assert isinstance(error.value, PlaceError) == (kind is PlaceError)


def test_a_port_in_use_is_said(monkeypatch):
    monkeypatch.setattr("jax.distributed.initialize", None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ProcessError, match=f"cannot listen at {where}: the port is in use"):
            connect(where, 2, 0)


def test_differences_between_processes_are_named():
    _require_same(0, {"seed": 1}, 1, {"seed": 1})
    with pytest.raises(ProcessError, match="seed is 0 in process 0 and null in process 2"):
        _require_same(0, {"seed": 0}, 2, {})


@pytest.mark.internals
def test_the_runtime_is_heard(monkeypatch, capfd):
    """Its records about other processes are not shown, all others are, and a fatal one ends."""
    from fedax.devices import losses

    def leave(sentence):
        raise EOFError(sentence)

    monkeypatch.setattr(losses, "leave", leave)
    losses._together.clear()
    reading, writing = os.pipe()
    os.write(writing, (
        b"before\n"
        b"E1122 04:35:33.197695 23546 coordination_service.cc:1549] [27] Use error polling\n1\n"
        b"W1122 04:35:33.197695 23546 cpu_client.cc:49] A warning of the compiler\nwith more\n"
        b"F1122 04:35:39.233312   23652 client.h:80] Terminating process because\n"
    ))
    os.close(writing)
    with pytest.raises(EOFError, match="could not connect: one was lost"):
        losses._read(reading, 2)
    assert capfd.readouterr().err.splitlines() == [
        "before", "W1122 04:35:33.197695 23546 cpu_client.cc:49] A warning of the compiler",
        "with more",
    ]


@pytest.mark.internals
@pytest.mark.slow
def test_a_lost_first_process_ends_the_others(tmp_path):
    outcome = processes.lose(tmp_path / "run", 0, rounds=3)
    assert processes.faults_of_loss(outcome, 0) == []


@pytest.mark.slow
def test_sigterm_to_one_process_stops_all(tmp_path):
    outcome = processes.stop(tmp_path / "run", 1)
    assert processes.faults_of_stop(outcome, tmp_path / "run") == []


@pytest.mark.slow
def test_another_seed_is_named_before_the_first_round(tmp_path):
    outcome = processes.disagree(tmp_path / "run", {1: ("--seed", "1")})
    assert processes.faults_of_disagreement(outcome, "seed is 0 in process 0 and 1 in") == []
    assert not (tmp_path / "run").exists()


@pytest.mark.internals
def test_a_python_program_keeps_its_signals(monkeypatch):
    from fedax.experiment.signals import stop_on_signal

    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    monkeypatch.setattr(ending, "leave", None)
    try:
        with stop_on_signal(lambda: "") as asked:
            signal.raise_signal(signal.SIGTERM)
            assert asked.by == signal.SIGTERM
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ending.guard() is None


@pytest.mark.internals
def test_only_what_the_runtime_raises_is_a_loss(monkeypatch):
    from types import SimpleNamespace

    from jax.errors import JaxRuntimeError

    from fedax.devices import internals, losses
    from fedax.devices.processes import LossError, loss

    gone, full = JaxRuntimeError("UNAVAILABLE: gone"), JaxRuntimeError("RESOURCE_EXHAUSTED: full")
    gloo, own = ValueError("UNKNOWN: Gloo AllGather failed: closed by peer"), ValueError("own")
    assert [loss(error) for error in (gone, gloo)] == [gone, gloo]  # there are no others
    several = SimpleNamespace(process_id=0, num_processes=2)
    monkeypatch.setattr(internals, "processes", lambda: several)
    monkeypatch.setattr(losses, "client", lambda: several)
    monkeypatch.setattr(losses, "told", lambda: None)
    assert [loss(error) for error in (full, own)] == [full, own]
    for error in (gone, gloo):
        assert isinstance(loss(error), LossError)
        assert str(loss(error, "Round 3: ")) == f"Round 3: {losses.LOST}"
    monkeypatch.setattr(losses, "told", lambda: "Process 1 of the training ended: full disk.")
    assert str(loss(gone)) == "Process 1 of the training ended: full disk."
