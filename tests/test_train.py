"""From Python what the command line does: folders, going on, stopping, the best, reading again."""

import dataclasses
import errno
import inspect
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

import fedax
from fedax.clients.local_training import LocalTraining
from fedax.data.cohort_data import CohortReader
from fedax.data.describing import Describer, describe_data, digest
from fedax.experiment import checkpoint, display, folder, python_run, run, sitting
from fedax.experiment.naming import made_again
from fedax.rounds import dispatch
from fedax.rounds.options import Settings
from fedax.rounds.report import RoundReport
from fedax.rounds.stopping import EarlyStopping, Goal, MetricError, Watch
from fedax.tasks import registry as tasks
from problems import identical, quadratic_task
from test_run import Killed, assert_same_run, config, final_arrays, stateful, timeless

pytestmark = pytest.mark.shares_programs

TASK = quadratic_task()
OPTIONS = {"cohort_size": 3, "evaluate_every": 2, "checkpoint_every": 3}


def fedyogi(client_learning_rate=0.1, model=TASK.model):
    return fedax.fedyogi(model, client_learning_rate, 0.05, batch_size=2)


def train(out=None, num_rounds=12, task=TASK, algorithm=None, **options):
    options = OPTIONS | options
    return fedax.train(task, algorithm or fedyogi(), num_rounds=num_rounds, out=out, **options)


def assert_same_result(found, expected):
    assert identical(found.params, expected.params)
    assert identical(found.state.server_state, expected.state.server_state)
    assert found.best_round == expected.best_round
    assert identical(found.best_params, expected.best_params)
    assert found.stopped == expected.stopped
    kept = [[{k: v for k, v in m.items() if "seconds" not in k} for m in result.history.rounds]
            for result in (found, expected)]
    assert kept[0] == kept[1]


@pytest.fixture
def _named(monkeypatch):
    """The task by name, as the command line has it."""
    info = tasks.TaskInfo("quadratics", "none", ("small",), lambda model: TASK)
    monkeypatch.setitem(tasks.TASKS, "quadratic", info)


@pytest.mark.usefixtures("_named")
def test_the_folder_is_the_one_of_the_command_line(tmp_path):
    result = train(tmp_path / "python", evaluate_every=4)
    options = {"client_learning_rate": 0.1, "server_learning_rate": 0.05, "batch_size": 2}
    run.start(config(algorithm_options=options), tmp_path / "shell")
    assert_same_run(tmp_path / "python", tmp_path / "shell")
    names = {path.name for path in (tmp_path / "shell").iterdir()}
    assert {path.name for path in (tmp_path / "python").iterdir()} == names
    mine, theirs = (
        json.loads((tmp_path / how / "summary.json").read_text()) for how in ("python", "shell")
    )
    assert set(mine) == set(theirs)
    assert mine["final"] == theirs["final"]
    page = (tmp_path / "python" / "report.html").read_text("utf-8")
    assert "fedyogi on quadratic" in page
    assert "client_learning_rate" in page
    assert_same_result(result, train(evaluate_every=4, checkpoint_every=5))


@pytest.mark.parametrize("moment", ["round 1", "round 5", "round 9", "manifest", "summary"])
def test_killed_and_called_again_equals_uninterrupted(tmp_path, monkeypatch, moment):
    """With a model that is kept and an early stop, both of which are measured before the kill."""
    options = {
        "keep_best": "test_distance", "num_rounds": 30,
        "early_stopping": fedax.EarlyStopping("test_distance", patience=2, min_delta=0.2),
    }
    expected = train(tmp_path / "expected", **options)
    assert 10 <= len(expected.history) < 20
    assert expected.stopped.startswith("test_distance, ")

    def kill(*arguments, **others):
        raise Killed

    with monkeypatch.context() as patch:
        if moment.startswith("round"):
            options["on_round"] = lambda report: (
                kill() if report.metrics["round"] == int(moment.split()[1]) else None
            )
        elif moment == "summary":
            patch.setattr(sitting, "write_summary", kill)
        else:
            patch.setattr(checkpoint.json, "dump", kill)
        with pytest.raises(Killed):
            train(tmp_path / "killed", **options)
    options.pop("on_round", None)
    assert_same_result(train(tmp_path / "killed", **options), expected)
    assert_same_run(tmp_path / "killed", tmp_path / "expected")
    best = [(tmp_path / name / "best.safetensors").read_bytes() for name in ("killed", "expected")]
    assert best[0] == best[1]
    assert_same_result(train(**options), expected)  # nor does a folder change a bit


SCRIPT = """
import sys, time
from test_train import train
print(train(sys.argv[1], 40, keep_best="test_distance", on_round=lambda report: time.sleep(0.02)))
"""


@pytest.mark.slow
def test_sigkill_and_called_again_equals_uninterrupted(tmp_path):
    tests = str(Path(__file__).parent)
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "killed")], stdout=subprocess.DEVNULL,
        env={
            **os.environ, "PYTHONPATH": os.pathsep.join([tests, *filter(None, sys.path)]),
            **dict.fromkeys(("JAX_ENABLE_X64", "JAX_DISABLE_MOST_OPTIMIZATIONS"), "1"),
        },
    )
    lines = tmp_path / "killed" / "metrics.jsonl"
    with process:
        while process.poll() is None and not (
            lines.exists() and lines.read_bytes().count(b"\n") >= 8
        ):
            time.sleep(0.005)
        process.kill()
    assert process.returncode != 0
    done = fedax.load_run(tmp_path / "killed")
    assert not done.finished
    assert done.summary is None
    assert 8 <= len(done.history) < 40
    expected = train(tmp_path / "expected", 40, keep_best="test_distance")
    assert_same_result(train(tmp_path / "killed", 40, keep_best="test_distance"), expected)
    assert_same_run(tmp_path / "killed", tmp_path / "expected")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "finished"
    return out, train(out, keep_best="test_distance")


def copied(finished, tmp_path):
    shutil.copytree(finished[0], tmp_path / "copy")
    return tmp_path / "copy"


def test_called_again_a_finished_run_is_its_result(finished, monkeypatch):
    def never(*arguments, **options):
        raise AssertionError("it trains")

    out, result = finished
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.name != ".lock"}
    with monkeypatch.context() as patch:
        patch.setattr(python_run, "simulate_from", never)
        again = train(out, keep_best="test_distance")
        assert_same_result(again, result)
        assert again.history.rounds == result.history.rounds
        with pytest.raises(fedax.RunError, match=r"num_rounds is 5, but .* has already done 12"):
            train(out, 5)
    assert before == {p: p.stat().st_mtime_ns for p in out.rglob("*") if p.name != ".lock"}


def test_a_page_that_was_not_written_is_written_by_the_next_call(finished, tmp_path, monkeypatch):
    out = copied(finished, tmp_path)
    page = (out / "report.html").read_text("utf-8")
    (out / "report.html").unlink()
    train(out, keep_best="test_distance")
    assert (out / "report.html").read_text("utf-8").count("\n") == page.count("\n")
    (out / "report.html").write_text("shorter")  # of before, when the run had fewer rounds
    os.utime(out / "report.html", (1, 1))
    train(out, keep_best="test_distance")
    assert "shorter" not in (out / "report.html").read_text("utf-8")[:20]
    (out / "report.html").unlink()

    def full(folder):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sitting, "_write_page", full)
    with pytest.warns(RuntimeWarning, match="Cannot write .*report.html: No space left"):
        assert_same_result(train(out, keep_best="test_distance"), finished[1])


def test_more_rounds_go_on(finished, tmp_path):
    out = copied(finished, tmp_path)
    expected = train(num_rounds=16, keep_best="test_distance")
    assert_same_result(train(out, 16, keep_best="test_distance"), expected)
    assert json.loads((out / "config.json").read_text())["num_rounds"] == 16
    assert json.loads((out / "summary.json").read_text())["rounds"] == 16


def own_method(rate, model=TASK.model):
    """Not of a factory that notes what it is called with."""
    return stateful.__wrapped__(model, rate)


OTHERS = {
    "seed": (lambda: {"seed": 1}, "seed was 0 and is 1"),
    "cohort": (lambda: {"cohort_size": 4}, "cohort_size was 3 and is 4"),
    "rate": (lambda: {"algorithm": fedyogi(0.2)}, "client_learning_rate was 0.1 and is 0.2"),
    "schedule": (
        lambda: {"algorithm": fedyogi(fedax.schedules.exponential_decay(0.1, 0.5))},
        "client_learning_rate was 0.1 and is exponential_decay(initial_value=0.1, decay_rate=0.5)",
    ),
    "method": (
        lambda: {"algorithm": fedax.fedavg(TASK.model)}, "algorithm was 'fedyogi' and is 'fedavg'"
    ),
    "data": (
        lambda: {"task": TASK._replace(train=quadratic_task(seed=1).train)},
        "the contents of task.train differ",
    ),
    "no test": (lambda: {"task": TASK._replace(test=None)}, "task.test was 10 clients and is None"),
    "model": (
        lambda: {"task": TASK._replace(model=quadratic_task(start=(1.0, 2.0, 3.0)).model)},
        "the model differs",
    ),
    "sampling": (lambda: {"sampling": "cyclic"}, "sampling was 'uniform' and is 'cyclic'"),
    "available": (
        lambda: {"available": fedax.part_of_the_day(0.5)},
        "available was None and is part_of_the_day(",
    ),
    "start": (lambda: {"initial_params": {"x": np.zeros(3)}}, "the start (initial_params) differs"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_another_call_is_refused_and_told_apart(finished, what):
    change, sentence = OTHERS[what]
    out = finished[0]
    before = (out / "config.json").read_bytes()
    with pytest.raises(fedax.RunError) as refused:
        train(out, **change())
    assert f"holds a different run: {sentence}" in str(refused.value)
    assert str(refused.value).endswith("or repeat the call recorded in its config.json.")
    assert (out / "config.json").read_bytes() == before


def test_what_changes_no_bit_may_change(finished):
    result = train(
        finished[0], checkpoint_every=7, evaluate_every=3, progress=False, clients_per_chunk=2,
        diagnostics=True, mesh=fedax.client_mesh(jax.devices()[:1]), keep_best="test_distance",
    )
    assert_same_result(result, finished[1])


def test_a_setting_that_only_a_closure_holds_is_noticed_too(tmp_path):
    out = tmp_path / "run"
    train(out, 3, algorithm=own_method(0.1))
    written = json.loads((out / "config.json").read_text())
    assert written["algorithm"] == "stateful"
    assert written["algorithm_options"]["client_learning_rate"] == 0.1
    with pytest.raises(fedax.RunError, match=r"client_learning_rate was 0\.1 and is 0\.2"):
        train(out, 3, algorithm=own_method(0.2))
    assert len(train(out, 3, algorithm=own_method(0.1)).history) == 3


@pytest.mark.slow
def test_changed_code_is_said_and_training_goes_on(tmp_path):
    def scaled(factor):
        exec_globals = {}
        exec(f"def apply(params, x):\n    return {factor} * (x @ params)", exec_globals)
        return fedax.regression(init=lambda key: jnp.ones((2, 1)), apply=exec_globals["apply"])

    data = fedax.FederatedDataset.from_clients(
        [{"x": np.ones((2, 2)), "y": np.ones((2, 1))} for _ in range(3)]
    )
    options = {"cohort_size": 2, "out": tmp_path / "run"}
    model = scaled(1.0)
    fedax.train(fedax.Task(model, data), fedax.fedavg(model), num_rounds=2, **options)
    fedax.train(fedax.Task(model, data), fedax.fedavg(model), num_rounds=2, **options)
    model = scaled(2.0)
    with pytest.warns(UserWarning, match="The code of the model or the method has changed"):
        fedax.train(fedax.Task(model, data), fedax.fedavg(model), num_rounds=3, **options)


def test_the_digest_of_data_reads_a_bounded_part_and_sees_what_it_reads():
    rows = 3_000_000
    array = np.zeros((rows, 2), np.float32)
    offsets = np.array([0, 7, rows])

    class Counting(np.ndarray):
        read = 0

        def __getitem__(self, index):
            part = np.asarray(self)[index]
            Counting.read += part.nbytes
            return part

    data = fedax.FederatedDataset({"x": array}, offsets)
    object.__setattr__(data, "arrays", {"x": array.view(Counting)})
    before = describe_data(data)
    assert 0 < Counting.read <= 2**20
    assert before == describe_data(fedax.FederatedDataset({"x": array.copy()}, offsets))
    for change in (0, rows - 1):
        array[change, 1] = 1
        assert describe_data(data)["contents"] != before["contents"]
        array[change, 1] = 0
    moved = fedax.FederatedDataset({"x": array}, np.array([0, 8, rows]))
    assert describe_data(moved)["contents"] != before["contents"]
    named = fedax.FederatedDataset({"x": array}, offsets, np.array(["ada", "bob"]))
    assert describe_data(named)["contents"] != before["contents"]


@pytest.mark.parametrize(
    "make",
    [
        lambda m: fedax.fedavg(m, fedax.schedules.staircase_decay(0.1), num_local_steps=3),
        lambda m: fedax.mime(m, 0.1, base=fedax.base_optimizers.adam(0.9, 0.99, 0.001)),
        lambda m: fedax.local_update(m, 0.1, 1.0, (1.0, 0.5)),
        lambda m: fedax.elastic(fedax.fedprox(m, np.float32(0.1), proximal_weight=0.1), m),
        lambda m: fedax.fedadam(m, jnp.asarray(0.1, jnp.float32), 0.05, adaptivity=1e-3),
    ],
)
def test_a_method_is_made_again_from_what_is_written_down(make):
    algorithm = make(TASK.model)
    written = json.loads(json.dumps(Describer()(algorithm)))
    again = made_again(written, TASK.model, own=False)
    assert Describer()(again) == Describer()(algorithm)
    assert Describer()(again) != Describer()(fedax.fedavg(TASK.model, 0.7))


class TestOnRound:
    @pytest.mark.parametrize("answer", [True, np.bool_(True)])
    def test_true_stops_after_that_round(self, answer):
        seen = []

        def on_round(report):
            seen.append(report.metrics["round"])
            return answer if report.metrics["round"] == 5 else None

        result = train(on_round=on_round)
        assert seen == [1, 2, 3, 4, 5]
        assert len(result.history) == 5
        assert int(result.state.server_state.round_index) == 5
        assert result.stopped == "on_round returned True after round 5."
        assert identical(result.params, train(num_rounds=5).params)

    @pytest.mark.parametrize("answer", [False, None, np.bool_(False)])
    def test_false_and_none_go_on(self, answer):
        result = train(num_rounds=3, on_round=lambda report: answer)
        assert (len(result.history), result.stopped) == (3, None)

    @pytest.mark.parametrize("answer", ["stop", 1, 0.0, [True]])
    def test_anything_else_is_a_sentence(self, answer):
        with pytest.raises(TypeError, match="on_round must return True to stop, and False or None"):
            train(num_rounds=3, on_round=lambda report: answer)

    @pytest.mark.parametrize(("name", "why"), [
        ("rejected", "names the list of rejected clients"), ("\udcff", "is no text"),
    ])
    def test_a_name_that_no_file_of_a_run_can_have_is_refused_at_once(self, name, why):
        with pytest.raises(MetricError, match=f"after round 1, which {why}"):
            train(on_round=lambda report: report.metrics.update({name: 1.0}))

    def test_its_own_failure_is_not_the_disks(self, tmp_path):
        def on_round(report):
            raise OSError(errno.ENOSPC, "mine")

        with pytest.raises(OSError, match="mine"):
            train(tmp_path / "run", on_round=on_round)

    def test_a_run_that_it_stopped_is_finished_for_the_same_call(self, tmp_path):
        def on_round(report):
            return report.metrics["round"] >= 5

        out = tmp_path / "run"
        stopped = train(out, on_round=on_round)
        assert_same_result(train(out, on_round=on_round), stopped)
        assert fedax.load_run(out).summary["stopped"] == stopped.stopped
        assert fedax.load_run(out).finished
        assert_same_result(train(out), train())  # without it, to the end


class TestEarlyStopping:
    def watched(self, values, **options):
        """The rounds after which a watch was not told to stop, and why it was."""
        watch = Watch(EarlyStopping("loss", **options))
        for number, value in enumerate(values, 1):
            watch.see(RoundReport({"round": number, "loss": value}, [], [], None))
            if watch.why:
                return number, watch.why
        return None

    @pytest.mark.parametrize(
        ("values", "options", "round_number"),
        [
            ([3, 2, 2, 2, 2], {"patience": 2}, 4),
            ([3, 2, 2.5, 1.9, 2.0, 2.0], {"patience": 2}, 6),
            ([3, 2.9, 2.8, 2.7], {"patience": 2, "min_delta": 0.15}, None),
            ([3, 2.9, 2.9, 2.7], {"patience": 2, "min_delta": 0.15}, 3),
            ([1, 2, 3, 2, 1], {"patience": 2, "mode": "max"}, 5),
            ([np.nan, np.inf, 1], {"patience": 2}, 2),
            ([1, -np.inf, 1], {"patience": 2}, 3),
            ([5, 5], {"patience": 1}, 2),
        ],
    )
    def test_counts_measurements_without_an_improvement(self, values, options, round_number):
        found = self.watched(values, **options)
        assert (found[0] if found else None) == round_number

    def test_the_reason_quotes_what_was_asked_and_found(self):
        assert self.watched([2, 1, 1, 1], patience=2, min_delta=0.5)[1] == (
            "loss, 1 at best, did not improve by more than 0.5 in 2 rounds up to round 4."
        )

    @pytest.mark.parametrize(
        ("name", "mode"),
        [("test_accuracy", "max"), ("test_top_5_accuracy", "max"), ("test_f1", "max"),
         ("train_loss", "min"), ("test_distance", "min"), ("client_drift", "min")],
    )
    def test_the_name_says_where_to(self, name, mode):
        assert EarlyStopping(name).mode == mode
        assert EarlyStopping(f"{name}:max").mode == "max"
        assert EarlyStopping(f"{name}:max").metric == name
        assert Goal.of("keep_me:min", None, "keep_best") == ("keep_me", "min")

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (("test_lift",), "early_stopping: the name 'test_lift' does not say whether .* write "
                             "'test_lift:max' or 'test_lift:min'"),
            (("test_loss", 0), "patience must be a whole number of at least 1, but is 0"),
            (("test_loss", 5, -0.1), "min_delta must be a finite number at least 0, but is -0.1"),
            (("test_loss", 5, 0.0, "up"), "Unknown direction 'up' for test_loss"),
            ((3,), "early_stopping must be a metric's name, such as 'test_loss', not 3"),
        ],
    )
    def test_a_wrong_one_is_a_sentence(self, arguments, sentence):
        with pytest.raises(ValueError, match=sentence):
            EarlyStopping(*arguments)

    @pytest.mark.parametrize(
        ("options", "error", "sentence"),
        [
            ({"early_stopping": "test_loss"}, TypeError, "for example fedax.EarlyStopping"),
            ({"keep_best": 3}, ValueError, "keep_best must be a metric's name"),
            ({"keep_best": "test_distance", "evaluate_every": 0}, ValueError,
             "evaluate_every=0 turns evaluation off"),
            ({"early_stopping": EarlyStopping("test_loss"), "evaluate_every": None}, ValueError,
             "only the last round is evaluated; set evaluate_every"),
            ({"on_round": 3}, TypeError, "on_round must be a function"),
            ({"checkpoint_every": 0}, ValueError, "checkpoint_every must be a whole number"),
        ],
    )
    def test_what_cannot_be_is_said_before_the_first_round(self, options, error, sentence):
        with pytest.raises(error, match=sentence):
            train(num_rounds=1, **options)

    def test_an_unknown_metric_is_a_sentence_at_the_first_evaluation(self):
        seen = []
        with pytest.raises(ValueError, match=r"Unknown metric 'test_distanse' to watch\. Did you "
                                             r"mean 'test_distance'\? Known: .*'train_loss'"):
            train(keep_best="test_distanse:min", on_round=lambda r: seen.append(r.metrics["round"]))
        assert seen == [1, 2]  # evaluated after the second, to which on_round might add it
        with pytest.raises(ValueError, match="Unknown metric 'train_los' to watch"):
            train(early_stopping=EarlyStopping("train_los:min"), evaluate_every=0)

    def test_rounds_count_for_what_every_round_has(self):
        stopping = EarlyStopping("train_loss", patience=2, min_delta=10.0)
        result = train(early_stopping=stopping, evaluate_every=0)
        assert len(result.history) == 3
        assert int(result.state.server_state.round_index) == 3
        assert identical(result.params, train(num_rounds=3).params)


@pytest.mark.quick
def test_the_best_is_what_training_to_its_round_gives():
    result = train(algorithm=fedax.fedavg(TASK.model, 0.6, batch_size=2), keep_best="test_distance")
    distances = result.history["test_distance"]
    assert result.best_round == int(np.nanargmin(distances)) + 1
    assert 2 <= result.best_round < 12
    shorter = train(
        num_rounds=result.best_round, algorithm=fedax.fedavg(TASK.model, 0.6, batch_size=2)
    )
    assert identical(result.best_params, shorter.params)
    assert not identical(result.best_params, result.params)


@pytest.mark.usefixtures("_named")
def test_the_command_line_stops_early_and_keeps_the_best(tmp_path, capsys):
    options = {
        "num_rounds": 30, "evaluate_every": 2, "early_stopping": "test_distance",
        "early_stopping_patience": 2, "early_stopping_min_delta": 0.2, "keep_best": "test_distance",
        "algorithm_options": {"client_learning_rate": 0.1, "server_learning_rate": 0.05,
                              "batch_size": 2},
    }
    out = run.start(config(**options), tmp_path / "run")
    said = capsys.readouterr().out.splitlines()[-1]
    expected = train(
        num_rounds=30, keep_best="test_distance",
        early_stopping=EarlyStopping("test_distance", patience=2, min_delta=0.2),
    )
    summary = json.loads((out / "summary.json").read_text())
    assert summary["rounds"] == len(expected.history) < 30
    assert summary["stopped"] == expected.stopped
    assert said.startswith(expected.stopped)
    assert summary["best"]["round"] == expected.best_round
    assert identical(fedax.load_params(out / "best.safetensors"), expected.best_params)
    assert run.resume(out) == out  # has nothing to do
    assert json.loads((out / "summary.json").read_text())["stopped"] == expected.stopped


class TestProgress:
    def console(self, **options):
        return Console(file=io.StringIO(), width=80, color_system=None, **options)

    def test_where_a_bar_is_shown(self, monkeypatch):
        pipe, terminal = self.console(), self.console(force_terminal=True)
        notebook = self.console(force_jupyter=True)
        assert display.style_of_python(pipe, True) == "nothing"
        assert display.style_of_python(terminal, True) == "bar"
        found = []
        monkeypatch.setattr(
            display.importlib.util, "find_spec", lambda name: "there" if found else None
        )
        assert display.style_of_python(notebook, True) == "lines"
        found.append("ipywidgets")
        assert display.style_of_python(notebook, True) == "bar"
        for console in (pipe, terminal, notebook):
            assert display.style_of_python(console, False) == "nothing"
        assert display.style_of_command_line(pipe) == "lines"
        assert display.style_of_command_line(terminal) == "bar"

    @pytest.mark.parametrize("out", [None, "run"])
    def test_what_is_shown(self, tmp_path, monkeypatch, capsys, out):
        out = out and tmp_path / out
        train(out, 4)
        assert capsys.readouterr().out == ""
        console = self.console(force_terminal=True)
        for module in (display, python_run):
            monkeypatch.setattr(module, "make_console", lambda: console)
        train(out and tmp_path / "another", 4, progress=False)
        assert console.file.getvalue() == ""
        train(out and tmp_path / "third", 4)
        assert "round 4/4" in console.file.getvalue()
        assert ("third" in console.file.getvalue()) == (out is not None)

    @pytest.mark.parametrize(
        ("options", "together"),
        [
            ({}, True), ({"progress": False}, True), ({"keep_best": "test_distance"}, True),
            ({"early_stopping": EarlyStopping("test_distance", 99)}, True),
            ({"keep_best": "train_loss"}, False), ({"on_round": lambda report: None}, False),
        ],
    )
    def test_rounds_go_to_the_device_together_as_without(self, monkeypatch, options, together):
        console = self.console(force_terminal=True)
        monkeypatch.setattr(display, "make_console", lambda: console)
        counts = []
        learn = dispatch.Pace.learn
        monkeypatch.setattr(
            dispatch.Pace, "learn",
            lambda self, seconds, count: (counts.append(count), learn(self, 1e-6 * count, count)),
        )
        train(num_rounds=40, evaluate_every=20, **options)
        assert sum(counts) == 40
        assert (max(counts) > 4) == together
        assert together or set(counts) == {1}


@pytest.fixture
def _interruptible():
    """A process in the background of a shell ignores Ctrl-C, and so would the run in it."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_interruptible")
class TestSignals:
    @pytest.mark.parametrize(
        ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
    )
    def test_in_a_folder_it_stops_after_the_round_and_goes_on(self, tmp_path, number, error):
        def on_round(report):
            if report.metrics["round"] == 5:
                signal.raise_signal(number)

        out = tmp_path / "run"
        with pytest.raises(error) as stopped:
            train(out, on_round=on_round)
        assert str(stopped.value) == (
            "Stopped after round 5 of 12. Call fedax.train again with the same arguments and "
            f"out={str(out)!r} to continue."
        )
        assert signal.getsignal(number) is not None
        assert not fedax.load_run(out).finished
        assert len(fedax.load_run(out).history) == 5
        assert_same_result(train(out), train())

    def test_in_memory_it_passes_at_once(self):
        seen = []

        def on_round(report):
            seen.append(report.metrics["round"])
            signal.raise_signal(signal.SIGINT)

        with pytest.raises(KeyboardInterrupt):
            train(on_round=on_round)
        assert seen == [1]

    def test_a_users_own_handlers_stay_and_so_do_those_of_threads(self, tmp_path):
        def mine(number, frame):
            pass

        signal.signal(signal.SIGINT, mine)
        handlers = []

        def on_round(report):
            handlers.append(signal.getsignal(signal.SIGINT))

        train(tmp_path / "run", 2, on_round=on_round)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        thread = threading.Thread(
            target=train, args=(tmp_path / "thread", 2), kwargs={"on_round": on_round}
        )
        thread.start()
        thread.join()
        assert handlers == [mine] * 2 + [signal.default_int_handler] * 2


class TestLoadRun:
    def test_of_python(self, finished):
        out, result = finished
        loaded = fedax.load_run(out)
        assert (loaded.finished, len(loaded.history)) == (True, 12)
        assert loaded.config["algorithm_options"]["client_learning_rate"] == 0.1
        assert identical(loaded.params, result.params)
        assert identical(loaded.best_params, result.best_params)
        assert loaded.best_round == result.best_round
        assert loaded.summary["rounds"] == 12
        for name, cure in (("task", "task="), ("algorithm", "task="), ("state", "task=")):
            with pytest.raises(fedax.RunError, match=rf"was created in Python .* Pass it.*{cure}"):
                getattr(loaded, name)

    def test_of_python_with_its_objects(self, finished):
        out, result = finished
        loaded = fedax.load_run(out, task=TASK)  # the method is made again by its name
        assert identical(loaded.state.server_state, result.state.server_state)
        assert identical(loaded.params, result.params)
        more = fedax.train(
            loaded.task, loaded.algorithm, num_rounds=16, state=loaded.state, cohort_size=3,
            evaluate_every=2,
        )
        assert identical(more.params, train(num_rounds=16).params)

    def test_other_objects_are_refused(self, finished):
        out, _ = finished
        with pytest.raises(fedax.RunError, match="its model or its data differ"):
            _ = fedax.load_run(out, task=quadratic_task(seed=1)).task
        with pytest.raises(fedax.RunError, match=r"which is fedyogi\(client_learning_rate=0.1, "):
            _ = fedax.load_run(out, task=TASK, algorithm=fedyogi(0.2)).algorithm

    def test_a_task_of_fedax_and_its_method_come_by_name(self, tmp_path, monkeypatch):
        task = fedax.load_task("quadratics", model="two_clients")
        fedax.train(task, fedax.fedavg(task.model, 0.1), num_rounds=2, out=tmp_path / "run",
                    cohort_size=2)
        loaded = fedax.load_run(tmp_path / "run")
        assert digest(Describer()(loaded.task.model)) == digest(Describer()(task.model))
        assert identical(loaded.state.server_state.params, loaded.params)
        monkeypatch.setattr(CohortReader, "__init__", None)  # reading a history needs no data
        monkeypatch.setattr(tasks, "load_task", None)
        assert len(fedax.load_run(tmp_path / "run").history) == 2

    @pytest.mark.usefixtures("_named")
    def test_of_the_command_line_finished_or_not(self, tmp_path):
        out = run.start(config(algorithm="stateful" if False else "fedavg"), tmp_path / "run")
        loaded = fedax.load_run(out)
        assert identical(loaded.state.server_state.params, loaded.params)
        assert loaded.task is loaded.task
        assert loaded.config["cohort_size"] == 3
        assert loaded.best_params is None
        shutil.rmtree(out / "checkpoints")
        (out / "summary.json").unlink()
        begun = fedax.load_run(out)
        assert not begun.finished
        initial = fedax.initial_state(begun.task, begun.algorithm, begun.config["seed"])
        assert identical(begun.params, initial.server_state.params)

    def test_before_the_first_round_there_is_the_start(self, tmp_path):
        def on_round(report):
            raise Killed

        start = {"x": jnp.asarray([1.0, 2.0, 3.0])}
        with pytest.raises(Killed):
            train(tmp_path / "run", on_round=on_round, initial_params=start)
        assert identical(fedax.load_run(tmp_path / "run").params, start)

    def test_what_is_no_run_is_a_sentence(self, finished, tmp_path):
        for path, sentence in (
            (tmp_path / "nowhere", "nowhere does not exist"),
            (tmp_path, r"is not a run folder: it does not contain config\.json"),
        ):
            with pytest.raises(fedax.RunError, match=sentence):
                fedax.load_run(path)
        out = copied(finished, tmp_path)
        newest = sorted((out / "checkpoints").glob("round-*"))
        (newest[-1] / "state.npz").write_bytes(b"cut off")
        assert identical(fedax.load_run(out).params, train(num_rounds=9).params)
        (newest[0] / "state.npz").write_bytes(b"cut off")
        with pytest.raises(fedax.RunError, match="No usable checkpoint is left"):
            _ = fedax.load_run(out).params
        for content, sentence in (("{", "cannot be read"), ("[1]", "the configuration of a run")):
            (out / "config.json").write_text(content)
            with pytest.raises(fedax.RunError, match=sentence):
                fedax.load_run(out)


class TestFolders:
    def test_one_that_holds_something_else(self, tmp_path):
        (tmp_path / "mine").write_text("kept")
        with pytest.raises(fedax.RunError, match=r"is not empty; choose another out=\."):
            train(tmp_path)

    def test_one_that_a_process_had_only_begun(self, tmp_path):
        (tmp_path / ".lock").touch()
        (tmp_path / "config.json.partial").write_text("{")
        assert len(train(tmp_path, 2).history) == 2

    @pytest.mark.usefixtures("_named")
    def test_one_of_the_command_line(self, tmp_path):
        out = run.start(config(num_rounds=1), tmp_path / "run")
        with pytest.raises(fedax.RunError, match="was started on the command line"):
            train(out)

    def test_the_command_line_says_who_goes_on(self, finished):
        from fedax.experiment.errors import ConfigError

        with pytest.raises(ConfigError, match="belongs to a run started from Python"):
            run.resume(finished[0])

    def test_one_where_another_process_trains(self, finished, tmp_path):
        out = copied(finished, tmp_path)
        with folder.locked(out), pytest.raises(fedax.RunError, match="Another process is training"):
            train(out, 13)

    def test_a_full_disk(self, tmp_path, monkeypatch):
        def full(*arguments):
            raise OSError(errno.ENOSPC, "No space left on device")

        out = tmp_path / "run"
        with monkeypatch.context() as patch:
            real = checkpoint._digests
            calls = []
            patch.setattr(
                checkpoint, "_digests",
                lambda path: full() if calls.append(1) or len(calls) == 3 else real(path),
            )
            with pytest.raises(fedax.RunError, match=r"Cannot write to .*: The disk is full\. .*"
                                                     r"solved, call fedax\.train again"):
                train(out)
        assert_same_result(train(out), train())


def test_what_is_printed_is_short_and_says_what_matters(finished, tmp_path):
    result = finished[1]
    task = fedax.load_task("shakespeare", model="small")
    algorithm = fedax.elastic(
        fedax.fedyogi(task.model, 1.0, fedax.schedules.staircase_decay(0.1), batch_size=4),
        task.model,
    )
    cohort = CohortReader(task.train)(np.arange(5))
    reports = list(fedax.simulate(TASK, fedyogi(), num_rounds=2, cohort_size=3))
    wanted = {
        "TrainResult": (result, ["3 parameters in 1 array", "12 rounds", "test_distance",
                                 "best: of round"]),
        "History": (result.history, ["12 rounds", "train_loss", "test_distance"]),
        "FederatedDataset": (task.train, ["1,219 clients", "examples", "tokens uint8[81]",
                                          "median"]),
        "Task": (task, ["shakespeare", "character_lstm", "train", "test", "1,219"]),
        "Model": (task.model, ["character_lstm", "num_units=128", "accuracy"]),
        "FederatedAlgorithm": (algorithm, ["elastic", "fedyogi", "batch_size=4",
                                           "staircase_decay(initial_value=0.1", "1 exchange"]),
        "own": (own_method(0.1), ["FederatedAlgorithm", "stateful"]),
        "TrainingState": (result.state, ["after round 12", "3 parameters", "0 clients"]),
        "RoundReport": (reports[-1], ["round 2", "train_loss", "test_distance"]),
        "ClientData": (
            fedax.ClientData(cohort.arrays, cohort.starts, cohort.num_examples, cohort.capacity),
            ["ClientData", "tokens uint8"],
        ),
        "CohortData": (cohort, ["5 clients", "tokens uint8"]),
        "LoadedRun": (
            fedax.load_run(finished[0]), ["fedyogi on quadratic", "12 of 12", "finished"]
        ),
    }
    for name, (thing, parts) in wanted.items():
        text = repr(thing)
        assert len(text) <= 1000, name
        assert len(text.splitlines()) <= 10, name
        for part in parts:
            assert part in text, (name, text)
    traced = jax.jit(lambda data: jnp.asarray(len(repr(data))))(cohort)
    assert int(traced) < 1000
    given = list(fedax.simulate(TASK, fedyogi(), num_rounds=2, cohort_size=3, donate=True))
    assert "given away" in repr(given[0].state)


def test_a_history_draws_itself(finished, tmp_path):
    history = finished[1].history
    figure = history.plot()
    assert [axes.get_ylabel() for axes in figure.axes] == ["loss", "distance"]
    drawn = figure.axes[1].get_lines()[0].get_xydata()
    assert drawn[:, 0].tolist() == [2, 4, 6, 8, 10, 12]
    assert np.array_equal(drawn[:, 1], history["test_distance"][1::2])
    figure.savefig(tmp_path / "curves.png")
    assert figure._repr_png_()[:4] == b"\x89PNG"
    from matplotlib.figure import Figure

    mine = Figure()
    assert history.plot(["num_reports"], figure=mine) is mine
    assert [axes.get_ylabel() for axes in history.plot("train_loss").axes] == ["loss"]
    for mistyped in ("trainloss", ["trainloss"]):
        with pytest.raises(KeyError, match=r"Unknown metric 'trainloss'\. .* 'train_loss'\?"):
            history.plot(mistyped)
    with pytest.raises(ValueError, match="nothing to draw"):
        fedax.History().plot()


class TestHelp:
    def test_simulate_and_train_show_every_option(self):
        for function in (fedax.simulate, fedax.train):
            shown = inspect.signature(function).parameters
            assert not any(p.kind is p.VAR_KEYWORD for p in shown.values())
            for name, default in Settings._field_defaults.items():
                assert shown[name].default == default
                assert shown[name].annotation == fedax.SimulateOptions.__annotations__[
                    name].__forward_arg__
                assert f"    {name}" in function.__doc__ or f", {name}" in function.__doc__
        own = set(inspect.signature(fedax.train).parameters) - set(Settings._fields)
        for name in own:
            assert f"  {name}: " in fedax.train.__doc__

    def test_factories_show_the_options_of_local_training(self):
        shown = inspect.signature(fedax.fedavg).parameters
        for name, annotation in fedax.LocalOptions.__annotations__.items():
            assert shown[name].default == LocalTraining._field_defaults[name]
            assert shown[name].annotation == annotation.__forward_arg__
            assert f"\n    {name}: " in fedax.fedavg.__doc__

    def test_the_defaults_that_are_shown_are_those_that_hold(self):
        def shown(factory):
            return {
                name: parameter.default
                for name, parameter in inspect.signature(factory).parameters.items()
                if name in fedax.LocalOptions.__annotations__
            }

        assert shown(fedax.maml)["num_local_steps"] == 1
        assert shown(fedax.fedsgd)["num_local_steps"] == 10
        assert shown(fedax.local_sgd)["weighting"] == "uniform"
        for factory in (fedax.fedprox, fedax.fedsgd):  # whatever None stands for
            results = [
                fedax.train(TASK, factory(TASK.model, **options), num_rounds=1, cohort_size=3)
                for options in ({}, shown(factory))
            ]
            assert identical(results[0].params, results[1].params)


@pytest.mark.slow
def test_a_client_that_is_rejected_again_and_again_is_named_in_a_warning(tmp_path):
    data = fedax.FederatedDataset.from_clients(
        {name: {"x": np.full((3, 2), 1e200 if name == "bob" else 1.0), "y": np.zeros((3, 1))}
         for name in ("ada", "bob", "eve")}
    )
    model = fedax.regression(init=lambda key: jnp.ones((2, 1)), apply=lambda w, x: x @ w)
    for out in (None, tmp_path / "run"):
        with pytest.warns(RuntimeWarning, match="Client 'bob' was rejected in 3 rounds") as warned:
            result = fedax.train(
                fedax.Task(model, data), fedax.fedavg(model, 0.1), num_rounds=4, cohort_size=3,
                out=out,
            )
        assert {Path(w.filename).name for w in warned} == {"test_train.py"}
        assert result.history["num_rejected"].tolist() == [1] * 4
        assert "rejected" not in result.history.rounds[0]
    assert fedax.load_run(tmp_path / "run").summary["rejected_clients"] == {"bob": 4}


def test_numbers_of_numpy_are_numbers(tmp_path):
    options = {"seed": np.int64(0), "cohort_size": np.int32(3), "dropout": np.float64(0.0)}
    train(tmp_path / "run", np.int64(2), checkpoint_every=np.int64(3), **options)
    assert len(train(tmp_path / "run", 2).history) == 2
    stopping = EarlyStopping("test_distance", np.int64(2), np.float32(0.5))
    assert json.dumps(dataclasses.asdict(stopping))


def test_the_result_is_a_tuple_of_eight(finished):
    assert fedax.TrainResult._fields == (
        "params", "history", "state", "best_params", "best_round", "stopped", "test", "best_test"
    )
    assert dataclasses.is_dataclass(EarlyStopping)
    assert timeless(finished[0])[-1]["round"] == 12
    assert final_arrays(finished[0])[0] == "round-00000012"
