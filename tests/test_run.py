"""Runs on disk: the folder, exact resume, damaged checkpoints, full disks, bad command lines."""

import errno
import itertools
import json
import math
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedax import DivergedError, Exchange, FederatedAlgorithm, Reply, factory
from fedax.algorithms.registry import ALGORITHMS, AlgorithmInfo
from fedax.cli.main import run_command
from fedax.clients.gradients import loss_gradient
from fedax.clients.local_steps import train_locally
from fedax.experiment import checkpoint, metrics, run, sitting
from fedax.experiment.checkpoint import CheckpointError
from fedax.experiment.config import RunConfig, resolve
from fedax.experiment.display import Display
from fedax.experiment.errors import ConfigError
from fedax.experiment.folder import RunError
from fedax.experiment.metrics import read_metrics
from fedax.experiment.resolving import with_defaults
from fedax.experiment.values import parse_settings
from fedax.experiment.versions import processor
from fedax.tasks.registry import TASKS, TaskInfo
from problems import quadratic_task

pytestmark = pytest.mark.shares_programs


class StatefulState(NamedTuple):
    params: Any
    round_index: Any


@factory
def stateful(model, client_learning_rate: float = 0.1):
    """Clients remember how far they moved last time and start from there: state matters."""

    def client(params, memory, data, key):
        import optax

        start = jax.tree.map(lambda x, m: x + 0.5 * m, params, memory)
        result = train_locally(
            start, data, key, gradient=loss_gradient(model), optimizer=optax.sgd(1.0),
            learning_rate=client_learning_rate, batch_size=2, num_steps=3,
        )
        moved = jax.tree.map(jnp.subtract, result.params, params)
        return Reply(moved, data.num_examples.astype(float), moved,
                     {"train_loss": (result.loss.mean, result.loss.weight)})

    def server(state, mean, participation):
        return state._replace(params=jax.tree.map(jnp.add, state.params, mean))

    return FederatedAlgorithm(
        lambda params: StatefulState(params, jnp.zeros((), jnp.int32)),
        lambda params: jax.tree.map(jnp.zeros_like, params),
        (Exchange(lambda state: state.params, client, server),),
    )


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    """A task and an algorithm that take no time."""
    references = {"a table of means": lambda: {"test_distance": 4.25}}
    info = TaskInfo(
        "quadratics", "none", ("small",),
        lambda model: quadratic_task()._replace(references=references),
    )
    monkeypatch.setitem(TASKS, "quadratic", info)
    monkeypatch.setitem(ALGORITHMS, "stateful", AlgorithmInfo(stateful, "none"))


def config(**changes):
    values = {
        "task": "quadratic", "algorithm": "fedyogi", "preset": "none", "num_rounds": 12,
        "cohort_size": 3, "evaluate_every": 4, "checkpoint_every": 3,
        "algorithm_options": {"client_learning_rate": 0.1, "batch_size": 2},
    }
    values |= changes
    if values["algorithm"] == "stateful" and "algorithm_options" not in changes:
        values["algorithm_options"] = {}
    if values["algorithm"].startswith("compressed+"):
        values["algorithm_options"] |= {"codec": "top_k(0.4)", "downlink": "sign"}
    if values["algorithm"].startswith("private+"):
        values["algorithm_options"] |= {"noise_multiplier": 1.0, "quantile": 0.5}
        values["sampling"] = "poisson"
    if values["algorithm"].startswith("robust+"):
        values["algorithm_options"] |= {"mean": "centred_clipping(1.0)", "attack": "gaussian(1.0)"}
    return RunConfig(**values)


def timeless(folder):
    """The metrics without what a clock measured."""
    return [
        {k: v for k, v in metrics.items() if "seconds" not in k} for metrics in read_metrics(folder)
    ]


def final_arrays(folder):
    """Every array of the newest checkpoint, and every file of client rows, as bytes."""
    newest = sorted((folder / "checkpoints").glob("round-*"))[-1]
    with np.load(newest / "state.npz") as arrays:
        rows = {path.name: path.read_bytes() for path in newest.glob("*.npy")}
        return newest.name, {name: arrays[name].tobytes() for name in arrays.files} | rows


def assert_same_run(folder, expected):
    assert timeless(folder) == timeless(expected)
    assert final_arrays(folder) == final_arrays(expected)


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it, nothing is cleaned up after it."""


@pytest.mark.quick
def test_the_run_folder_holds_what_the_contract_says(tmp_path, capsys):
    folder = run.start(config(), tmp_path / "run")
    out = capsys.readouterr().out
    rounds = read_metrics(folder)
    assert [m["round"] for m in rounds] == list(range(1, 13))
    assert all(math.isfinite(m["train_loss"]) and m["seconds"] > 0 for m in rounds)
    assert [m["round"] for m in rounds if "test_distance" in m] == [4, 8, 12]
    written = json.loads((folder / "config.json").read_text())
    assert written["algorithm_options"] == with_defaults(config())[0].algorithm_options
    assert config().algorithm_options.items() <= written["algorithm_options"].items()
    assert {"fedax", "jax", "numpy", "optax", "processor", "python"} <= set(written["made_by"])
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["rounds"] == 12
    assert summary["final"]["test_distance"] == rounds[-1]["test_distance"]
    assert sorted(p.name for p in (folder / "checkpoints").iterdir()) == [
        "round-00000009", "round-00000012"
    ]
    assert out.count("For comparison, a table of means: test distance 4.2500") == 1
    assert "(a table of means: test distance 4.2500)" in out.splitlines()[-1]
    assert summary["references"] == {"a table of means": {"test_distance": 4.25}}
    assert out.count("round 4/12") == 1  # plain lines in a pipe
    assert "\r" not in out
    assert "\x1b" not in out


def test_a_run_that_measures_nothing_still_ends(tmp_path):
    """No local step: no training loss (null in JSON), no evaluation asked for but the last."""
    options = {"num_local_steps": 0}
    folder = run.start(config(num_rounds=3, algorithm_options=options), tmp_path / "run")
    assert [m["train_loss"] for m in read_metrics(folder)] == [None] * 3
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["train_loss_last_100_rounds"] is None
    empty = run.start(config(num_rounds=0), tmp_path / "empty")
    assert json.loads((empty / "summary.json").read_text())["rounds"] == 0


@pytest.mark.quick
def test_report_is_one_file_with_the_curves(tmp_path):
    page = (run.start(config(), tmp_path / "run") / "report.html").read_text("utf-8")
    assert page.count('<figure class="chart"') == 3  # training loss, test distance, the others
    for text in ("fedyogi on quadratic", "train loss", "test distance", "client_learning_rate",
                 "a table of means"):
        assert text in page
    for reference in ("src=", "<link", "@import", 'href="http', "url(http"):
        assert reference not in page


def test_a_terminal_gets_a_bar_with_round_speed_time_left_loss_and_last_test(monkeypatch):
    import io

    from rich.console import Console

    from fedax.experiment import display as display_module
    from fedax.rounds.report import RoundReport
    from fedax.rounds.state import TrainingState

    monkeypatch.setattr(display_module, "SECONDS_BETWEEN_BARS", 0.0)
    monkeypatch.setattr(display_module, "DRAWING_SHARE", 1.0)
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80, color_system=None)
    nothing = TrainingState(None, None)
    with Display(500, console=console) as display:
        for number in range(1, 8):
            metrics = {"round": number, "train_loss": 3.25 / number, "num_reports": 3}
            if number == 5:
                metrics |= {"test_accuracy": 0.4321, "test_loss": 1.5, "evaluation_seconds": 0.1}
            display.show(RoundReport(metrics, ["ada"] if number == 6 else [], [], nothing))
            time.sleep(0.1)  # rich asks for the time left twice a second
    last = screen.getvalue().split("\r")[-1].strip()
    assert "round   7/500 " in last
    assert "rounds/s" in last
    assert re.search(r"rounds/s \d\d:\d\d ", last)  # time left
    assert "loss 0.4643" in last
    assert "test accuracy 43.2%" in last  # of round 5, the last that was evaluated
    assert "Round 6: 1 of 4 clients (ada) uploaded NaN or infinity" in screen.getvalue()


@pytest.mark.slow
def test_the_main_job_learns_what_it_promises(tmp_path):
    """`fedax run` with nothing but --out: above 45% on the test text, the bigram table beside."""
    log = tmp_path / "log"
    with log.open("w", encoding="utf-8") as file:
        process = fedax_process("run", "--out", tmp_path / "run", stdout=file, optimised=True)
        assert process.wait() == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["final"]["test_accuracy"] > 0.45
    out = log.read_text("utf-8")
    bigram = "a bigram table fitted centrally on the training text: test accuracy 27.6%"
    assert out.count(bigram) == 2
    assert "\x1b" not in out


def test_a_run_repeats_to_the_bit_from_its_own_config(tmp_path):
    first = run.start(config(), tmp_path / "first")
    repeated = resolve(config_file=first / "config.json")
    assert repeated == with_defaults(config())[0]
    assert_same_run(run.start(repeated, tmp_path / "second"), first)


@pytest.mark.parametrize(("algorithm", "moment"), [
    *itertools.product(
        ["fedyogi", "stateful"],
        ["round 1", "round 5", "round 12", "arrays", "manifest", "rename", "cleanup", "summary"],
    ),
    ("compressed+scaffold", "round 5"),  # with the memory of error feedback
    ("private+scaffold", "round 5"),  # with an adaptive norm
    ("robust+attacked+scaffold", "round 5"),  # with the mean of the round before
])  # fmt: skip
def test_killed_anywhere_and_resumed_equals_uninterrupted(tmp_path, monkeypatch, algorithm, moment):
    settings = config(algorithm=algorithm)
    expected = run.start(settings, tmp_path / "expected")

    def kill(*arguments, **options):
        raise Killed

    with monkeypatch.context() as patch:
        if moment.startswith("round"):
            number = int(moment.split()[1])
            show = Display.show

            def show_or_die(self, report):
                show(self, report)
                if report.metrics["round"] == number:
                    raise Killed

            patch.setattr(Display, "show", show_or_die)
        elif moment == "summary":
            patch.setattr(sitting, "write_summary", kill)
        else:
            real, calls = checkpoint.save, []
            target = {
                "arrays": (checkpoint, "_arrays"), "manifest": (checkpoint.json, "dump"),
                "rename": (Path, "rename"), "cleanup": (checkpoint, "_checkpoints"),
            }[moment]

            def save_or_die(*arguments):
                calls.append(1)
                if len(calls) == 2:  # the second checkpoint dies at this moment
                    with monkeypatch.context() as inner:
                        inner.setattr(*target, kill)
                        real(*arguments)
                real(*arguments)

            patch.setattr(checkpoint, "save", save_or_die)
        with pytest.raises(Killed):
            run.start(settings, tmp_path / "killed")
    assert_same_run(run.resume(tmp_path / "killed"), expected)
    assert not list((tmp_path / "killed" / "checkpoints").glob("partial-*"))


@pytest.mark.quick
def test_a_longer_run_continues_a_shorter_one(tmp_path):
    expected = run.start(config(num_rounds=12), tmp_path / "long")
    folder = run.start(config(num_rounds=8), tmp_path / "short")
    run.resume(folder, num_rounds=12)
    assert_same_run(folder, expected)
    with pytest.raises(ConfigError, match=r"--rounds is 5, but the run has already done 12"):
        run.resume(folder, num_rounds=5)


def break_file(folder, how):
    """Damages the newest checkpoint; returns its name."""
    newest = sorted((folder / "checkpoints").glob("round-*"))[-1]
    manifest = newest / "manifest.json"
    arrays = newest / "state.npz"
    values = json.loads(manifest.read_text())
    del values["digest"]
    if how == "truncated arrays":
        arrays.write_bytes(arrays.read_bytes()[:-7])
    elif how == "flipped bit":
        content = bytearray(arrays.read_bytes())
        content[len(content) // 2] ^= 1
        arrays.write_bytes(bytes(content))
    elif how == "missing file":
        arrays.unlink()
    elif how == "truncated manifest":
        manifest.write_text(manifest.read_text()[:40])
    elif how == "no manifest":
        manifest.unlink()
    elif how == "foreign manifest":
        manifest.write_text(json.dumps({"format": checkpoint.FORMAT}))
    elif how == "another version":
        manifest.write_text(json.dumps(values | {"format": 99, "fedax": "9.9"}))
    elif how == "another run":
        manifest.write_text(json.dumps(values | {"fingerprint": "0" * 64}))
    return newest.name


SENTENCES = {
    "truncated arrays": "is damaged: its file .* is truncated or changed",
    "flipped bit": "is damaged: its file .* is truncated or changed",
    "missing file": "is damaged: its file .* is missing",
    "truncated manifest": "is damaged: its manifest cannot be read",
    "foreign manifest": "is damaged: its manifest cannot be read",
    "no manifest": "is damaged: its manifest cannot be read",
    "another version": r"was written by fedax 9\.9 in format 99, but fedax .* reads format 2",
    "another run": "belongs to another run",
}


@pytest.mark.parametrize("how", SENTENCES)
def test_a_bad_checkpoint_is_refused_and_the_one_before_it_used(tmp_path, capsys, how):
    expected = run.start(config(), tmp_path / "expected")
    folder = tmp_path / "broken"
    shutil.copytree(expected, folder)
    name = break_file(folder, how)
    capsys.readouterr()
    run.resume(folder)
    out = capsys.readouterr().out
    assert re.search(f"{name} {SENTENCES[how]}", out)
    assert "Continuing after round 9." in out
    assert_same_run(folder, expected)


def test_no_usable_checkpoint_is_an_error_and_loses_nothing(tmp_path):
    folder = run.start(config(), tmp_path / "run")
    before = (folder / "metrics.jsonl").read_bytes()
    for path in (folder / "checkpoints").glob("round-*"):
        (path / "manifest.json").write_text("{}")
    with pytest.raises(CheckpointError, match="start the run again with --overwrite"):
        run.resume(folder)
    assert (folder / "metrics.jsonl").read_bytes() == before


def test_a_checkpoint_of_another_model_is_refused(tmp_path, monkeypatch):
    folder = run.start(config(), tmp_path / "run")
    info = TASKS["quadratic"]._replace(load=lambda model: quadratic_task(dimension=4))
    monkeypatch.setitem(TASKS, "quadratic", info)
    with pytest.raises(CheckpointError, match=r"another model or method: its array server_00000 "
                                              r"is float64\[3\], but float64\[4\] in this run"):
        run.resume(folder)


@pytest.mark.parametrize("where", ["metrics", "checkpoint"])
def test_a_full_disk_is_a_sentence_and_the_run_goes_on_later(tmp_path, monkeypatch, where):
    expected = run.start(config(), tmp_path / "expected")

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = tmp_path / "full"
    with monkeypatch.context() as patch:
        if where == "metrics":
            show, count = Display.show, []

            def fill(self, report):
                show(self, report)
                count.append(1)
                if len(count) == 7:
                    patch.setattr(metrics, "to_json", full)

            patch.setattr(Display, "show", fill)
        else:
            real = checkpoint._digests
            calls = []

            def digests(path):
                calls.append(1)
                return full() if len(calls) == 3 else real(path)

            patch.setattr(checkpoint, "_digests", digests)
        with pytest.raises(RunError, match=r"Cannot write to .*full: The disk is full\. Checkpoints"
                                           r" .* fedax run --resume .*full"):
            run.start(config(), folder)
    assert_same_run(run.resume(folder), expected)


@pytest.fixture
def _interruptible():
    """A process in the background of a shell ignores Ctrl-C, and so would the run in it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interruptible")
def test_ctrl_c_stops_after_the_round_with_a_checkpoint(tmp_path, monkeypatch):
    expected = run.start(config(), tmp_path / "expected")
    show = Display.show

    def interrupt(self, report):
        show(self, report)
        if report.metrics["round"] == 5:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Display, "show", interrupt)
        # Rounds up to 8 may be over, and kept back while round 4 is evaluated.
        sentence = r"Stopped after round [5-8] of 12\. Continue with: fedax run --resume"
        with pytest.raises(RunError, match=sentence) as stop:
            run.start(config(), tmp_path / "stopped")
    done = str(stop.value).split()[3]
    assert (tmp_path / "stopped" / "checkpoints" / f"round-0000000{done}").is_dir()
    assert_same_run(run.resume(tmp_path / "stopped"), expected)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.slow
def test_divergence_is_an_error_and_the_last_checkpoint_stays(tmp_path):
    options = {"client_learning_rate": 1e200, "batch_size": 2}
    with pytest.raises(DivergedError, match=r"Round \d+: none of the 3 clients .* Lower the"):
        run.start(config(algorithm="fedavg", algorithm_options=options), tmp_path / "run")


def test_resume_wants_a_run_folder(tmp_path):
    with pytest.raises(RunError, match=r"is not a run folder: it does not contain config\.json"):
        run.resume(tmp_path)
    (tmp_path / "config.json").write_text("{nonsense")
    with pytest.raises(ConfigError, match="cannot be parsed"):
        run.resume(tmp_path)
    (tmp_path / "config.json").write_text('{"task": "quadratic"}')
    with pytest.raises(ConfigError, match=r"is not the configuration of a run"):
        run.resume(tmp_path)


@pytest.mark.parametrize(
    ("content", "lines"),
    [(b'{"round": 1}\n', 1), (None, 0), (b"[1, 2]\n", 0), (b"\xff\xfe\n", 0), (b"{}\n", 0)],
)
def test_lost_metrics_are_noticed(tmp_path, content, lines):
    folder = run.start(config(), tmp_path / "run")
    if content is None:
        (folder / "metrics.jsonl").unlink()
    else:
        (folder / "metrics.jsonl").write_bytes(content)
    with pytest.raises(RunError, match=f"has {lines} complete lines, but .* is of round 12"):
        run.resume(folder)


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("num_rounds", "x", "num_rounds must be a whole number"),
        ("algorithm", "fedyogo", "Did you mean 'fedyogi'"),
        ("algorithm_options", {"rate": 1}, "Unknown setting 'rate' of fedyogi"),
        ("task_options", {"size": 1}, "Unknown setting 'size' of the task quadratic"),
        ("task_options", 3, "must be a table of names and values, but is 3"),
    ],
)
def test_an_edited_config_is_checked_on_resume(tmp_path, key, value, sentence):
    folder = run.start(config(num_rounds=3), tmp_path / "run")
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {key: value}))
    with pytest.raises(ConfigError, match=sentence):
        run.resume(folder)


def test_a_run_without_checkpoints_says_that_it_begins_anew(tmp_path, capsys):
    expected = run.start(config(), tmp_path / "expected")
    folder = tmp_path / "lost"
    shutil.copytree(expected, folder)
    shutil.rmtree(folder / "checkpoints")
    capsys.readouterr()
    run.resume(folder)
    assert "There is no checkpoint yet: starting from the beginning." in capsys.readouterr().out
    assert_same_run(folder, expected)


def test_two_processes_do_not_train_in_one_folder(tmp_path):
    folder = run.start(config(), tmp_path / "run")
    holder = subprocess.Popen(
        [sys.executable, "-c",
         "import sys, time; from filelock import FileLock\n"
         "with FileLock(sys.argv[1]): print('held', flush=True); time.sleep(60)",
         str(folder / ".lock")],
        stdout=subprocess.PIPE, text=True,
    )
    with holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(RunError, match="Another process is training in"):
            run.resume(folder, num_rounds=13)
        holder.kill()
    run.resume(folder, num_rounds=13)  # a killed process leaves no lock behind


@pytest.mark.slow
def test_a_closed_pipe_does_not_stop_training(tmp_path):
    """`fedax run | head -1`: nobody reads any more, and the results are in the folder."""
    arguments = ("run", "shakespeare", "fedavg", "--rounds", "4", "--cohort-size", "2", "--set",
                 "num_local_steps=1", "evaluate_every=0", "--out", tmp_path / "run")
    with fedax_process(*arguments, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline().startswith(b"fedavg on shakespeare")
        process.stdout.close()
        assert process.wait() == 0
    assert len(read_metrics(tmp_path / "run")) == 4
    assert (tmp_path / "run" / "report.html").is_file()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="a closed pipe is another error there")
@pytest.mark.parametrize("words", [("run", "digits", "fedavg"), ("run",), ("sweep",)])
def test_help_that_nobody_reads_on_ends_in_silence(words):
    """`fedax run digits fedavg --help | head -1`."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "fedax", *words, "--help"], stdout=write, stderr=subprocess.PIPE,
        env={**os.environ, "JAX_PLATFORMS": "cpu"}, check=False,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a full device is Linux's")
@pytest.mark.parametrize("word", ["--version", "--help"])
def test_what_a_full_disk_cannot_take_is_one_sentence(word):
    """`fedax --version > /dev/full` ended in a traceback."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "fedax", word], stdout=full, stderr=subprocess.PIPE, check=False,
            env={**os.environ, "JAX_PLATFORMS": "cpu"}, text=True,
        )
    assert done.returncode == 1
    assert done.stderr == "fedax: Cannot write the output: No space left on device.\n"


def test_a_sentence_names_each_setting_once():
    with pytest.raises(ConfigError, match="Unknown setting") as found:
        resolve(settings={"client_lr": 1.0})
    known = re.findall(r"'([^']+)'", str(found.value).partition("Known:")[2])
    assert len(known) == len(set(known)) > 20


FULL_DISK = """
import resource, sys
from fedax.cli.main import run_command
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))  # a checkpoint has about 1 MB
sys.exit(run_command(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the kernel's limit on files is POSIX")
def test_a_write_that_the_kernel_refuses_is_one_sentence(tmp_path):
    folder = tmp_path / "a folder"
    arguments = [*map(str, REAL), "--out", str(folder)]
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == (
        f"fedax: Cannot write to {folder}: File too large. Checkpoints already written are intact. "
        f"When the problem is solved, continue with: fedax run --resume '{folder}'\n"
    )
    with fedax_process("run", "--resume", folder, "--rounds", 4) as process:
        assert process.wait() == 0
    assert len(read_metrics(folder)) == 4


# The command line, in process: what it prints on standard error, and its exit status.
COMMANDS = {
    "unknown task": ("run shakespeer", 2, "Unknown task 'shakespeer'. Did you mean 'shakespeare'?"),
    "unknown algorithm": ("run quadratic fedyogy", 2, "Did you mean 'fedyogi'?"),
    "unknown setting": ("run --set server_lr=1", 2, "Did you mean 'server_learning_rate'?"),
    "no value": ("run --set rounds", 2, "--set takes KEY=VALUE"),
    "negative rate": (
        "run quadratic fedavg --preset none --set client_learning_rate=-0.1", 2,
        "client_learning_rate must be a finite number at least 0 or a schedule, but is -0.1",
    ),
    "word for a number": (
        "run quadratic fedavg --preset none --set batch_size=four", 2,
        "batch_size must be a whole number of at least 1, but is 'four'",
    ),
    "negative schedule": (
        "run quadratic fedavg --preset none --set client_learning_rate=constant(-1)", 2,
        "value must be a finite number at least 0, but is -1",
    ),
    "words in a schedule": (
        "run quadratic fedavg --preset none --set client_learning_rate=constant('a')", 2,
        "value must be a finite number at least 0, but is 'a'",
    ),
    "setting twice": (
        "run quadratic fedavg --set client_learning_rate=0.1 algorithm.client_learning_rate=0.2", 2,
        "algorithm.client_learning_rate is given twice: --set client_learning_rate=0.1 and --set "
        "algorithm.client_learning_rate=0.2. Leave one out.",
    ),
    "option and setting": (
        "run quadratic fedavg --cohort-size 4 --set cohort_size=5", 2,
        "cohort_size is given twice: --cohort-size and --set cohort_size=5. Leave one out.",
    ),
    "seed twice": ("run --seed 0 --set run.seed=0", 2, "--seed and --set run.seed=0"),
    "sweep's setting twice": (
        "sweep quadratic fedavg --set dropout=0 --set dropout=0.5", 2,
        "dropout is given twice: --set dropout=0 and --set dropout=0.5",
    ),
    "sweep's option and setting": (
        "sweep quadratic fedavg --rounds 4 --set num_rounds=5", 2,
        "num_rounds is given twice: --rounds and --set num_rounds=5",
    ),
    "bad partition": (
        "run digits --set partition=dirichlet(-1)", 2,
        "Task digits: partition=dirichlet(-1): alpha must be a finite number above 0, but is -1.",
    ),
    "no partition": (
        "run digits --set partition=shards(2", 2,
        "Task digits: partition=shards(2: 'shards(2' is not a partition such as",
    ),
    "too many clients": (
        "run digits --set num_clients=5000", 2,
        "Task digits: partition=dirichlet(0.1): num_clients is 5,000, but there are 1,437 examples",
    ),
    "bad validation": ("run digits --set validation=2", 2, "Task digits: validation must be a"),
    "wrapper behind": (
        "run digits fedavg+elastic", 2,
        "Only attacked, compressed, elastic, local_update_decay, personal, private and robust can "
        "be written before '+'. Did you mean elastic+fedavg?",
    ),
    "empty set": ("run --set", 2, "--set takes KEY=VALUE"),
    "bad schedule": (
        "run quadratic fedavg --preset none --set client_learning_rate=stair(1)", 2,
        "Unknown schedule 'stair'. Did you mean 'staircase_decay'?",
    ),
    "large cohort": (
        "run quadratic fedavg --preset none --cohort-size 11", 2,
        "cohort_size is 11, but the task quadratic has only 10 clients",
    ),
    "no rounds": ("run quadratic --preset none --rounds -3", 2, "num_rounds must be a whole"),
    "bad model": ("run --set model=huge", 2, "Unknown model 'huge' of the task shakespeare"),
    "no preset": ("run quadratic", 2, "preset 'quick' of task quadratic. It does not have"),
    "another preset": (
        "run shakespeare --preset redi2021", 2,
        "Did you mean reddi2021? Available: quick"
    ),
    "not in the preset": (
        "run shakespeare fomaml --preset reddi2021", 2,
        "'reddi2021' of task shakespeare does not have settings for fomaml, since its source does "
        "not give any. It covers fed",
    ),
    "no config": ("run --config nowhere.toml", 2, "Cannot read the configuration nowhere.toml"),
    "no folder": ("run --resume nowhere", 1, "does not exist"),
    "resume and more": ("run --resume x --seed 3", 2, "Only --rounds (the new total)"),
}


@pytest.mark.quick
@pytest.mark.parametrize("case", COMMANDS)
def test_a_wrong_command_line_is_one_sentence(tmp_path, monkeypatch, capsys, case):
    monkeypatch.chdir(tmp_path)
    line, status, sentence = COMMANDS[case]
    assert run_command(line.split()) == status
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert captured.err.startswith("fedax: ")
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert list(tmp_path.iterdir()) == []  # nothing was begun


@pytest.mark.quick
@pytest.mark.parametrize(("content", "sentence"), [
    ("tsk = 'digits'", "bad.toml: Unknown key 'tsk'. Did you mean 'task'? Known: 'task', "),
    ("[task_options]\nmodell = 1", "bad.toml: Unknown setting"),
])
def test_a_files_unknown_key_names_the_file(content, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("bad.toml").write_text(content)
    assert run_command(["run", "--config", "bad.toml"]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.quick
@pytest.mark.parametrize("line", ["run --rounds many", "list everything"])
def test_the_parser_exits_with_two(line, capsys):
    with pytest.raises(SystemExit) as stopped:
        run_command(line.split())
    assert stopped.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.quick
def test_out_that_cannot_be_used(tmp_path, capsys):
    file = tmp_path / "file"
    file.write_text("kept")
    line = ["run", "quadratic", "fedavg", "--preset", "none", "--rounds", "1", "--out"]
    assert run_command([*line, str(file / "below")]) == 1
    assert "Cannot make the run folder" in capsys.readouterr().err
    assert run_command([*line, f"{tmp_path}/a\0b"]) == 1
    assert "cannot be the name of a run folder, as it contains a null" in capsys.readouterr().err
    assert run_command([*line, str(tmp_path)]) == 1
    assert "is not empty; choose another --out" in capsys.readouterr().err
    assert file.read_text() == "kept"
    assert run_command([*line, str(tmp_path / "run")]) == 0
    assert run_command([*line, str(tmp_path / "run")]) == 1
    assert "continue it with --resume" in capsys.readouterr().err


def test_debug_shows_the_traceback(monkeypatch):
    with pytest.raises(ConfigError):
        run_command(["run", "nowhere", "--debug"])


def test_a_defect_is_named_as_one(monkeypatch, capsys):
    monkeypatch.setattr(run, "start", lambda *arguments, **options: 1 / 0)
    assert run_command(["run", "quadratic", "fedavg", "--preset", "none"]) == 1
    assert "Internal error, a bug in fedax: ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.quick
def test_settings_win_over_file_over_preset(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(
        'algorithm = "fedadam"\nnum_rounds = 7\nserver_learning_rate = 0.5\n'
        "[algorithm_options]\nadaptivity = 0.2\n"
    )
    settings = parse_settings(["adaptivity=0.3", "num_local_steps=none"])
    resolved = resolve(config_file=file, settings=settings)
    assert resolved.algorithm == "fedadam"
    assert resolved.num_rounds == 7
    assert resolved.cohort_size == 10  # the preset's
    assert resolved.algorithm_options["client_learning_rate"] == 3.16  # the preset's
    assert resolved.algorithm_options["server_learning_rate"] == 0.5  # the file's
    assert resolved.algorithm_options["adaptivity"] == 0.3  # the setting's
    assert resolved.algorithm_options["num_local_steps"] is None
    assert resolve(algorithm="fedavg", config_file=None).algorithm == "fedavg"


@pytest.mark.quick
def test_paper_preset_has_the_published_numbers():
    """Reddi et al. 2021: Shakespeare's best values, batch 4, 10 clients, 1200 rounds, E = 1."""
    published = {
        "fedadagrad": (0, -1 / 2, -1), "fedadam": (0, -2, -3), "fedyogi": (0, -2, -3),
        "fedavgm": (0, -1 / 2, None), "fedavg": (0, 0, None),
    }
    for algorithm, (client, server, tau) in published.items():
        resolved = resolve(algorithm=algorithm, preset="reddi2021")
        options = resolved.algorithm_options
        assert (resolved.num_rounds, resolved.cohort_size) == (1200, 10)
        assert (options["batch_size"], options["num_local_epochs"]) == (4, 1)
        assert "num_local_steps" not in options
        assert options["client_learning_rate"] == pytest.approx(10**client)
        assert options["server_learning_rate"] == pytest.approx(10**server)
        assert options.get("adaptivity") == (None if tau is None else pytest.approx(10**tau))
        assert resolved.task_options == {"model": "reddi2021"}


@pytest.mark.quick
@pytest.mark.parametrize("what", ["tasks", "algorithms", "datasets", "reproductions"])
def test_list(what, capsys, monkeypatch):
    monkeypatch.delitem(ALGORITHMS, "stateful")  # which has no settings for the embedded task
    assert run_command(["list", what]) == 0
    assert capsys.readouterr().out.strip()
    assert run_command(["list", what, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    if what == "algorithms":
        names = {row["name"] for row in rows}
        assert {"fedadagrad", "fedadam", "fedavg", "fedavgm", "fedyogi"} <= names
        assert all(row["description"] and "adaptivity" in row["settings"]
                   for row in rows if row["name"] == "fedadam")
    if what == "tasks":
        assert "shakespeare" in {row["name"] for row in rows}


def fedax_process(*arguments, stdout=None, optimised=False):
    """The command as a user runs it; optimised: so long that optimising its programs pays."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    if optimised:
        del environment["XLA_FLAGS"]
    return subprocess.Popen(
        [sys.executable, "-m", "fedax", *map(str, arguments)], env=environment, stdout=stdout,
    )


REAL = ("run", "shakespeare", "fedadam", "--rounds", "60", "--cohort-size", "3", "--set",
        "num_local_steps=2", "evaluate_every=0", "checkpoint_every=3")


@pytest.mark.slow
def test_sigkill_of_the_real_thing_at_random_moments(tmp_path):
    """Shakespeare, killed again and again, ends with the bits of the run left alone."""
    process = fedax_process(*REAL, "--out", tmp_path / "expected")
    assert process.wait() == 0
    rng = np.random.default_rng(0)
    folder, kills = tmp_path / "killed", 0
    process = fedax_process(*REAL, "--out", folder)
    while kills < 4:
        while process.poll() is None and not read_lines(folder):  # it has begun to train
            time.sleep(0.01)
        begun = read_lines(folder)
        while process.poll() is None and read_lines(folder) < begun + 4:
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.05))
        finished = process.poll() is not None
        process.kill()
        process.wait()
        kills += not finished
        if finished:
            break
        process = fedax_process("run", "--resume", folder)
    if process.poll() is None:
        assert process.wait() == 0
    assert kills >= 3
    assert_same_run(folder, tmp_path / "expected")


def read_lines(folder):
    try:
        return (folder / "metrics.jsonl").read_text().count("\n")
    except OSError:
        return 0


def test_a_damaged_data_file_is_a_sentence(tmp_path, monkeypatch, capsys):
    from fedax.data import shakespeare

    damaged = tmp_path / "shakespeare.txt.bz2"
    damaged.write_bytes(shakespeare.PATH.read_bytes()[:1000])
    monkeypatch.setattr(shakespeare, "PATH", damaged)
    assert run_command(["run", "--out", str(tmp_path / "run")]) == 1
    error = capsys.readouterr().err
    assert str(damaged) in error
    assert error.count("\n") == 1


@pytest.mark.quick
def test_the_processor_is_named_with_its_model(tmp_path):
    """Names such as AMD EPYC are of many processors."""
    described = tmp_path / "cpuinfo"
    core = "cpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\nflags\t: fpu\n\n"
    described.write_text(f"processor\t: 0\n{core}processor\t: 1\n{core}")
    assert processor(described) == "AMD EPYC (family 26, model 2)"
    described.write_text("model name\t: Cortex\n")
    assert processor(described) == "Cortex"
    described.write_text("Features : fp asimd\n")
    assert processor(described) == platform.processor() == processor(tmp_path / "none")
