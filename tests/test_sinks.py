"""What each sink's own library reads back, after a run that was killed and went on."""

import contextlib
import csv
import errno
import json
import math
import sqlite3
import struct
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import fedax
from fedax.cli.main import run_command
from fedax.experiment import run
from fedax.experiment.display import Display
from fedax.experiment.metrics import read_history, read_metrics
from fedax.rounds.report import DivergedError
from fedax.sinks import (
    SINKS,
    SinkError,
    Sinks,
    log_record,
    open_sink,
    require_libraries,
    sink,
    sink_names,
)
from fedax.sinks.rows import dated, hyperparameters, numbers
from fedax.sweeps.record import Record, Setting
from fedax.tasks.registry import TASKS, TaskInfo
from problems import quadratic_task
from test_run import Killed, assert_same_run, config, final_arrays

# Of libraries that are not ours.
pytestmark = [
    pytest.mark.shares_programs,
    pytest.mark.filterwarnings("ignore:.*noload.*"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:google.*"),
]

TASK = quadratic_task()
ALL = tuple(SINKS)


def train(out, log, num_rounds=6, **options):
    algorithm = fedax.fedyogi(TASK.model, 0.1, 0.05, batch_size=2)
    return fedax.train(
        TASK, algorithm, num_rounds=num_rounds, out=out, log=log, cohort_size=3,
        evaluate_every=3, checkpoint_every=2, progress=False, **options,
    )


@pytest.fixture
def registry(monkeypatch):
    """A task of the command line's that takes no time."""
    monkeypatch.setitem(TASKS, "quadratic", TaskInfo(
        "quadratics", "none", ("small",), lambda model: TASK
    ))


def die_after(monkeypatch, number):
    """Has a run end in the middle of a round, as a kill would."""
    show = Display.show

    def show_or_die(self, report):
        show(self, report)
        if report.metrics["round"] == number:
            raise Killed

    monkeypatch.setattr(Display, "show", show_or_die)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run with every sink, killed after round 5, whose newest checkpoint is of round 4."""
    out = tmp_path_factory.mktemp("sinks") / "run"
    with pytest.MonkeyPatch.context() as patch:
        die_after(patch, 5)
        with pytest.raises(Killed):
            train(out, ALL)
    train(out, ALL)
    return out


@pytest.fixture(scope="module")
def expected(folder):
    """The rounds that the run has: [{metric: value}]."""
    rounds = read_history(folder).rounds
    assert [m["round"] for m in rounds] == [1, 2, 3, 4, 5, 6]
    assert [m["round"] for m in rounds if "test_distance" in m] == [3, 6]
    return rounds


@pytest.mark.slow
def test_every_sink_says_that_it_has_all(folder):
    assert json.loads((folder / "summary.json").read_text())["log"] == list(ALL)


def test_tensorboard_reads_each_round_once(folder, expected):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import plugin_data_pb2

    read = EventAccumulator(str(folder / "logs" / "tensorboard"), {"scalars": 0})
    read.Reload()
    names = {name for metrics in expected for name in metrics} - {"round"}
    assert set(read.Tags()["scalars"]) == names
    for name in names:
        points = [(m["round"], float(np.float32(m[name]))) for m in expected if name in m]
        assert [(event.step, event.value) for event in read.Scalars(name)] == points
    content = read.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    params = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    assert params["client_learning_rate"].number_value == 0.1
    assert params["algorithm"].string_value == "fedyogi"
    assert "_hparams_/session_end_info" in read.PluginTagToContent("hparams")


def test_mlflow_reads_each_round_once(folder, expected):
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder / 'logs' / 'mlflow' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("fedax")
    (found,) = client.search_runs([experiment.experiment_id])  # that of the kill is deleted
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "run"
    assert found.data.params["client_learning_rate"] == "0.1"
    assert found.data.params["keep_best"] == "none"
    for name in {name for metrics in expected for name in metrics} - {"round"}:
        points = [(m["round"], m[name]) for m in expected if name in m]
        history = client.get_metric_history(found.info.run_id, name)
        assert [(metric.step, metric.value) for metric in history] == points
    assert found.data.metrics["final_test_distance"] == expected[-1]["test_distance"]


def wandb_records(path):
    """The records of an offline file: LevelDB's log, with a header of 7 bytes, of Protobufs."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, parts = path.read_bytes(), 7, []
    while at + 7 <= len(content):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", content, at + 4)
        parts.append(content[at + 7 : at + 7 + length])
        at += 7 + length
        if kind in (1, 4):  # a whole one, or the last part
            yield Record.FromString(b"".join(parts))
            parts = []


def test_mlflow_has_a_name_of_its_own_for_each_metric_and_setting(tmp_path):
    from mlflow import MlflowClient

    names = ["acc@1", "acc#1", "a//b", "/abs", "..", "", "x" * 300, "x" * 301, "loss"]
    values = {name: float(place) for place, name in enumerate(names)}
    with open_sink("mlflow", tmp_path, {"algorithm_options": values}) as opened:
        for number in (1, 2):
            opened.log({"round": number} | {name: at + number for name, at in values.items()})
    client = MlflowClient(f"sqlite:///{tmp_path / 'logs' / 'mlflow' / 'mlflow.db'}")
    run_id = (tmp_path / "logs" / "mlflow" / "run-id").read_text().strip()
    data = client.get_run(run_id).data
    assert sorted(data.metrics.values()) == [value + 2 for value in values.values()]
    assert sorted(map(float, data.params.values())) == list(values.values())
    assert {"acc_1", "loss"} < data.metrics.keys()
    for key in data.metrics:
        assert [one.step for one in client.get_metric_history(run_id, key)] == [1, 2]


def test_a_store_of_mlflow_that_was_left_half_made_is_made_again(tmp_path, monkeypatch):
    from mlflow import MlflowClient

    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    file = tmp_path / "logs" / "mlflow" / "mlflow.db"
    file.parent.mkdir(parents=True)
    with contextlib.closing(sqlite3.connect(file)) as store, store:
        store.execute("CREATE TABLE registered_models (name VARCHAR(256) NOT NULL)")
        store.execute("CREATE TABLE webhooks (id INTEGER PRIMARY KEY)")
    for _ in range(2):  # the second finds a store with a run, and keeps it
        with open_sink("mlflow", tmp_path, {}) as opened:
            opened.log({"round": 1, "train_loss": 0.5})
        run_id = (file.parent / "run-id").read_text().strip()
        assert MlflowClient(f"sqlite:///{file}").get_run(run_id).data.metrics["train_loss"] == 0.5
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "create_run", full)
        told = pytest.warns(RuntimeWarning, match="No space left")
        with told, open_sink("mlflow", tmp_path / "other", {}) as opened:
            opened.log({"round": 1, "train_loss": 0.5})
    with open_sink("mlflow", tmp_path / "other", {}) as opened:  # MLflow knows this store already
        opened.log({"round": 1, "train_loss": 0.5})
    with contextlib.closing(sqlite3.connect(file)) as store:
        assert store.execute("SELECT count(*) FROM runs").fetchone() == (2,)


def test_wandb_has_each_round_once(folder, expected):
    (path,) = (folder / "logs" / "wandb").glob("offline-run-*/*.wandb")  # that of the kill is gone
    records = list(wandb_records(path))
    rows = [
        {".".join(item.nested_key) or item.key: json.loads(item.value_json)
         for item in record.history.item}
        for record in records if record.WhichOneof("record_type") == "history"
    ]
    own = [{name: value for name, value in row.items() if name[0] != "_"} for row in rows]
    assert own == expected
    assert [row["_step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    (begun,) = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    params = {item.key: json.loads(item.value_json) for item in begun.config.update}
    assert params["client_learning_rate"] == 0.1
    assert (begun.project, begun.display_name) == ("fedax", "run")
    (ended,) = [record.exit for record in records if record.WhichOneof("record_type") == "exit"]
    assert ended.exit_code == 0


def test_csv_has_each_round_once(folder, expected):
    with (folder / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [{name: float(text) for name, text in row.items() if text} for row in rows] == expected
    assert [row["round"] for row in rows] == ["1", "2", "3", "4", "5", "6"]  # and not 1.0


def test_parquet_has_each_round_once(folder, expected):
    import pyarrow as pa
    from pyarrow import parquet

    table = parquet.read_table(folder / "metrics.parquet")
    rows = [{name: value for name, value in row.items() if value is not None}
            for row in table.to_pylist()]
    assert rows == expected
    assert table.schema.field("round").type == pa.int64()
    about = json.loads(table.schema.metadata[b"fedax"])
    assert (about["client_learning_rate"], about["num_rounds"]) == (0.1, 6)


def test_a_finished_run_gets_a_sink_that_it_lacks(tmp_path):
    train(tmp_path / "run", ())
    assert not (tmp_path / "run" / "metrics.csv").exists()
    params = final_arrays(tmp_path / "run")
    train(tmp_path / "run", "csv")
    lines = (tmp_path / "run" / "metrics.csv").read_text().splitlines()
    assert len(lines) == 7
    (tmp_path / "run" / "metrics.csv").write_text("the user's own")
    train(tmp_path / "run", "csv")  # nothing is lacking, so it is left alone
    assert (tmp_path / "run" / "metrics.csv").read_text() == "the user's own"
    assert final_arrays(tmp_path / "run") == params


@pytest.mark.usefixtures("registry")
def test_the_choice_of_sinks_changes_no_bit_of_the_run_and_may_change(tmp_path, monkeypatch):
    plain = run.start(config(), tmp_path / "plain")
    with monkeypatch.context() as patch:
        die_after(patch, 7)
        with pytest.raises(Killed):
            run.start(config(log=("csv",)), tmp_path / "run")
    with monkeypatch.context() as patch:
        die_after(patch, 10)
        with pytest.raises(Killed):
            run.resume(tmp_path / "run", log=("parquet", "csv"))
    assert_same_run(run.resume(tmp_path / "run"), plain)
    written = json.loads((tmp_path / "run" / "config.json").read_text())
    assert written["log"] == ["parquet", "csv"]
    from pyarrow import parquet

    table = parquet.read_table(tmp_path / "run" / "metrics.parquet")
    assert table["round"].to_pylist() == list(range(1, 13))
    losses = [m["train_loss"] for m in read_metrics(tmp_path / "run")]
    assert table["train_loss"].to_pylist() == losses
    with (tmp_path / "run" / "metrics.csv").open(newline="") as file:
        assert [float(row["train_loss"]) for row in csv.DictReader(file)] == losses


def test_a_full_disk_is_told_once_and_training_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(sink, "PAUSE", 0.0)
    from fedax.sinks import to_csv

    def full(self, rows):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(to_csv._Csv, "write", full)
        with pytest.warns(RuntimeWarning, match="No space left on device") as told:
            result = train(tmp_path / "run", ("csv", "parquet"))
    assert len(told) == 1
    assert "Logging to csv stopped after round 0: No space" in str(told[0].message)
    assert len(result.history) == 6
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["log"] == ["parquet"]
    train(tmp_path / "run", ("csv", "parquet"))  # mended: what is missing is written
    assert len((tmp_path / "run" / "metrics.csv").read_text().splitlines()) == 7


@pytest.mark.quick
def test_a_sink_in_a_loop_of_ones_own_says_that_it_failed(tmp_path, monkeypatch):
    from fedax.sinks import to_csv

    def full(self, rows):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(to_csv._Csv, "write", full)
    told = pytest.warns(RuntimeWarning, match="csv stopped after round 0: No space left")
    with told, open_sink("csv", tmp_path, {}) as opened:
        opened.log({"round": 1, "train_loss": 0.5})


def test_a_sink_keeps_its_place_wherever_the_program_goes(tmp_path, monkeypatch):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with open_sink("csv", Path("run"), {}) as opened:
        monkeypatch.chdir(tmp_path / "there")
        opened.log({"round": 1, "train_loss": 0.5})
    train("of_python", ("csv",), on_round=lambda report: monkeypatch.chdir(tmp_path / "here"))
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["run"]
    assert (tmp_path / "here" / "run" / "metrics.csv").exists()
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["of_python"]
    rows = (tmp_path / "there" / "of_python" / "metrics.csv").read_text().splitlines()
    assert len(rows) == 7


def test_a_library_that_fails_when_it_is_opened_stops_nothing(tmp_path, monkeypatch):
    from fedax.sinks import to_parquet

    def broken(place, params):
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr(to_parquet, "open_writer", broken)
    warned = []
    with Sinks(["parquet", "csv"], tmp_path, {}, warned.append) as sinks:
        for number in (1, 2):
            sinks.log({"round": number, "train_loss": 0.5})
        assert sinks.close({}) == ["csv"]
    assert len(warned) == 1
    assert "parquet stopped after round 0: first line. Training continues" in warned[0]


@pytest.mark.quick
def test_a_sink_that_hangs_is_left_and_does_not_slow_the_rounds(tmp_path, monkeypatch):
    from fedax.sinks import to_csv

    monkeypatch.setattr(sink, "PAUSE", 0.0)
    monkeypatch.setattr(sink, "PATIENCE", 0.1)
    hang = threading.Event()
    monkeypatch.setattr(to_csv._Csv, "write", lambda self, rows: hang.wait())
    opened = open_sink("csv", tmp_path, {})
    began = time.perf_counter()
    for number in range(1, 1001):
        opened.log({"round": number, "train_loss": 0.5})
    assert time.perf_counter() - began < 10  # waiting would take 0.1 s a row, 100 s
    opened.close({})
    hang.set()
    assert "no answer for" in opened.failure


@pytest.mark.quick
def test_a_run_that_is_stopped_does_not_wait_for_a_slow_sink_and_one_that_diverged_does(
    tmp_path, monkeypatch
):
    from fedax.sinks import to_csv

    write, go_on = to_csv._Csv.write, threading.Event()

    def slow(self, rows):
        go_on.wait(0.6 if "Diverged" in self._path.parent.name else 60)
        write(self, rows)

    monkeypatch.setattr(to_csv._Csv, "write", slow)
    monkeypatch.setattr(sink, "HURRY", 0.1)
    monkeypatch.setattr(sink, "MOST_ROWS", 1)
    lines = {}
    for error in (KeyboardInterrupt, DivergedError):
        folder = tmp_path / error.__name__
        with pytest.raises(error), Sinks(["csv"], folder, {}, pytest.fail) as sinks:  # noqa: PT012
            for number in (1, 2, 3):
                sinks.log({"round": number, "train_loss": 0.5})
            raise error
        table = folder / "metrics.csv"
        lines[error] = len(table.read_text().splitlines()) if table.exists() else 0
    go_on.set()
    assert lines[KeyboardInterrupt] < 4
    assert lines[DivergedError] == 4


@pytest.mark.quick
def test_a_run_that_goes_on_waits_for_what_the_stopped_one_still_writes(tmp_path, monkeypatch):
    from fedax.sinks import to_csv

    steps, mine, go_on = [], [], threading.Event()
    open_writer, close = to_csv.open_writer, to_csv._Csv.close

    def slow(place, params):
        steps.append("open")
        go_on.wait(30)
        mine.append(open_writer(place, params))
        return mine[-1]

    def closed(self, summary):
        close(self, summary)
        if any(self is one for one in mine):  # not of another test's, whose thread is late
            steps.append("close")

    monkeypatch.setattr(to_csv, "open_writer", slow)
    monkeypatch.setattr(to_csv._Csv, "close", closed)
    first = open_sink("csv", tmp_path, {})
    first.log({"round": 1, "train_loss": 9.0})
    with monkeypatch.context() as patch:
        patch.setattr(sink, "HURRY", 0.1)
        first.close(None, hurry=True)
    with open_sink("csv", tmp_path, {}) as second, open_sink("csv", tmp_path / "other", {}):
        second.log({"round": 1, "train_loss": 0.5})
        until = time.monotonic() + 30
        while len(steps) < 2 and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.3)  # for the second to open in, did it not wait
        assert steps == ["open"] * 2  # the first, and the one of another folder
        go_on.set()
    assert steps[2:] in (["close", "close", "open", "close"], ["close", "open", "close", "close"])
    assert (tmp_path / "metrics.csv").read_text() == "round,train_loss\n1,0.5\n"


@pytest.mark.quick
def test_columns_that_come_later_and_what_is_no_number(tmp_path):
    rounds = [
        {"round": 1, "train_loss": 0.5},
        {"round": 2, "train_loss": math.inf, "rejected": ["a, \"b\""]},
        {"round": 3, "train_loss": None, "x, y": 3},
    ]
    for name in ("csv", "parquet"):
        with open_sink(name, tmp_path, {"task": "t"}) as opened:
            opened.replay(rounds[:2])
            opened.log(rounds[2])
    with (tmp_path / "metrics.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [["round", "train_loss", "x, y"], ["1", "0.5", ""], ["2", "nan", ""],
                    ["3", "nan", "3"]]
    from pyarrow import parquet

    columns = parquet.read_table(tmp_path / "metrics.parquet").to_pydict()
    assert columns["x, y"] == [None, None, 3]
    assert columns["train_loss"][0] == 0.5
    assert np.isnan(columns["train_loss"][1:]).all()


@pytest.mark.quick
def test_a_run_without_rounds_has_empty_tables(tmp_path):
    for name in ("csv", "parquet"):
        open_sink(name, tmp_path, {}).close({})
    from pyarrow import parquet

    assert (tmp_path / "metrics.csv").read_text() == "round\n"
    assert parquet.read_table(tmp_path / "metrics.parquet").num_rows == 0


@pytest.mark.quick
def test_runs_of_a_sweep_have_places_of_their_own(tmp_path):
    for name in ("3-0", "3-1"):
        with open_sink("csv", tmp_path, {}, name) as opened:
            opened.log({"round": 1, "train_loss": 0.5})
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.csv"))
    assert found == [str(Path("logs", name, "metrics.csv")) for name in ("3-0", "3-1")]


def small_record():
    """Two settings with two seeds; the last run diverged in its second round."""
    losses = np.array([[1.0, 0.5], [1.1, 0.6], [2.0, 1.5], [2.1, np.nan]])
    settings = [Setting(n, "fedavg", {"client_learning_rate": 10.0**n}) for n in range(2)]
    return Record(settings, np.array([0, 0, 1, 1]), np.array([3, 4, 3, 4]),
                  np.array([0, 0, 0, 2]), np.array([2, 2, 2, 1]), {"train_loss": losses})


def config_of(setting, seed):
    return {"algorithm": setting.algorithm, "seed": seed, "algorithm_options": setting.values}


@pytest.mark.quick
def test_the_runs_of_a_sweep_are_logged(tmp_path):
    assert log_record(["csv"], tmp_path, config_of, small_record(), pytest.fail) == ["csv"]
    tables = {
        path.parent.name: path.read_text().splitlines()
        for path in (tmp_path / "logs").glob("*/metrics.csv")
    }
    assert tables == {
        name: ["round,train_loss", *lines] for name, lines in {
            "0-3": ["1,1.0", "2,0.5"], "0-4": ["1,1.1", "2,0.6"], "1-3": ["1,2.0", "2,1.5"],
            "1-4": ["1,2.1"],
        }.items()
    }


@pytest.mark.slow
def test_the_runs_of_a_sweep_share_a_store_of_mlflow(tmp_path):
    from mlflow import MlflowClient

    for _ in range(2):  # the second time in place of the first
        log_record(["mlflow"], tmp_path, config_of, small_record(), pytest.fail)
    client = MlflowClient(f"sqlite:///{tmp_path / 'logs' / 'mlflow' / 'mlflow.db'}")
    found = client.search_runs([client.get_experiment_by_name("fedax").experiment_id])
    assert {
        (run.info.run_name, run.data.params["client_learning_rate"], run.data.params["seed"],
         run.data.metrics["train_loss"]) for run in found
    } == {
        (f"{tmp_path.name}/0-3", "1.0", "3", 0.5), (f"{tmp_path.name}/0-4", "1.0", "4", 0.6),
        (f"{tmp_path.name}/1-3", "10.0", "3", 1.5), (f"{tmp_path.name}/1-4", "10.0", "4", 2.1),
    }
    assert len(found) == 4


@pytest.mark.quick
def test_settings_are_flat_and_named_as_the_command_line_names_them():
    flat = hyperparameters({
        "task": "t", "seed": 1, "early_stopping": {"metric": "loss", "patience": 2},
        "python": {"method": "digest"}, "made_by": {}, "log": ["csv"],
        "task_options": {"model": "small", "rate": 1},
        "algorithm_options": {"rate": 2, "seed": 3, "sizes": [1, 2], "on": True},
    })
    assert flat == {
        "task": "t", "seed": 1, "early_stopping.metric": "loss", "early_stopping.patience": 2,
        "model": "small", "task.rate": 1, "algorithm.rate": 2, "algorithm.seed": 3,
        "sizes": "[1, 2]", "on": True,
    }


@pytest.mark.quick
def test_rounds_that_are_over_are_dated_back_by_what_they_took():
    rounds = [{"round": 1, "seconds": 1.0, "compile_seconds": 9.0},
              {"round": 2, "seconds": 2.0, "evaluation_seconds": math.nan}, {"round": 3}]
    assert [row.time for row in dated(rounds, 50.0)] == [48.0, 50.0, 50.0]
    assert numbers({"round": 1, "x": None, "who": ["a"]}).keys() == {"round", "x"}


@pytest.mark.quick
def test_what_cannot_be_logged_to_is_a_sentence(tmp_path, monkeypatch, capsys):
    with pytest.raises(ValueError, match=r"Unknown sink 'tensorbord'\. Did you mean 'tensorboard'"):
        sink_names(["tensorbord"])
    with pytest.raises(ValueError, match="log must be names"):
        train(tmp_path / "run", 3)
    with pytest.raises(ValueError, match=r"log=.*needs a run folder"):
        train(None, "csv")
    missing = {"wandb"}
    find = sink.require_libraries.__globals__["importlib"].util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *a: None if name in missing else find(name, *a)
    )
    with pytest.raises(SinkError, match=r"wandb needs wandb: pip install 'fedax\[wandb\]'"):
        train(tmp_path / "run", "wandb")
    assert not (tmp_path / "run").exists()
    assert run_command(["run", "digits", "fedavg", "--log", "wandb"]) == 1
    assert "pip install 'fedax[wandb]'" in capsys.readouterr().err
    assert run_command(["run", "digits", "fedavg", "--log", "cvs"]) == 2
    assert "Did you mean 'csv'" in capsys.readouterr().err
    require_libraries(["csv"])
