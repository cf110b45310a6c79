"""The sweep folder: going on after a kill with the same table, extending, reading."""

import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

import fedax
from fedax.cli.main import run_command
from fedax.experiment.folder import RunError
from fedax.sinks import to_csv
from fedax.sweeps import batch
from fedax.sweeps.columns import Columns, Part, joined
from fedax.sweeps.record import Setting
from fedax.tuning import sitting, training
from fedax.tuning.display import SweepDisplay
from fedax.tuning.keeping import Keeper, read_columns, write_columns

GRID = {"client_learning_rate": [0.02, 0.05, 0.1, 1e9], "server_learning_rate": [0.5, 1.0]}


@pytest.fixture(scope="module")
def task():
    return fedax.load_task("quadratics")


def scaffold(model, client_learning_rate, server_learning_rate):
    return fedax.scaffold(model, client_learning_rate, server_learning_rate, num_local_steps=2)


def swept(task, **options):
    return fedax.sweep(
        task, {"scaffold": scaffold, "fedavg": fedax.fedavg}, GRID, progress=False,
        **{"num_rounds": 8, "seeds": 2, "cohort_size": 3, "settings_per_batch": 3, **options},
    )


def same(one, other):
    """Whether two records are equal to the bit, but for times."""
    for name in ("setting", "seed", "diverged", "done"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    assert set(one.metrics) == set(other.metrics)
    for name in set(one.metrics) - {"seconds", "data_seconds", "compile_seconds"}:
        np.testing.assert_array_equal(one.metrics[name], other.metrics[name], err_msg=name)


@pytest.mark.slow
def test_a_sweep_that_is_stopped_anywhere_ends_with_the_same_table(task, tmp_path, monkeypatch):
    """SCAFFOLD's clients keep states, and units are stopped in the middle and between them."""
    whole = swept(task)
    monkeypatch.setattr(training, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    monkeypatch.setattr(training, "SHARE_OF_CHECKPOINTS", 1.0)
    show, left = SweepDisplay.show, [0]

    def stop_now_and_then(self, number, running):
        left[0] -= 1
        if left[0] == 0:
            raise MemoryError("killed")
        show(self, number, running)

    monkeypatch.setattr(SweepDisplay, "show", stop_now_and_then)
    chance, kills = random.Random(0), 0
    out = tmp_path / "sweep"
    while kills < 30:
        left[0] = chance.randint(2, 25)
        try:
            again = swept(task, out=out)
            break
        except MemoryError:
            kills += 1
    assert kills >= 3
    same(again.record, whole.record)
    same(fedax.load_sweep(out).record, whole.record)
    assert again.choice.methods["scaffold"].best == whole.choice.methods["scaffold"].best


@pytest.mark.quick
def test_writing_large_states_takes_a_tenth_of_the_time(task, tmp_path, monkeypatch):
    """A round takes 20 seconds and so does a checkpoint, so 180 pass between two of them."""
    clock, reports, saved = [0.0], [0], []

    def show(self, number, running):
        clock[0] += 20
        reports[0] += 1

    def save(self, *state):
        clock[0] += 20
        saved.append(reports[0])

    monkeypatch.setattr(batch, "MOST_ROUNDS", 1)  # so every round is reported, however fast
    monkeypatch.setattr(training.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(SweepDisplay, "show", show)
    monkeypatch.setattr(Keeper, "save", save)
    fedax.sweep(
        task, {"fedavg": fedax.fedavg}, {"client_learning_rate": [0.001]}, num_rounds=30,
        cohort_size=3, progress=False, out=tmp_path / "sweep",
    )
    assert saved == [2, 12, 22]


@pytest.mark.quick
def test_a_finished_sweep_is_read_and_not_run_again(task, tmp_path, monkeypatch):
    first = swept(task, out=tmp_path / "a", num_rounds=3, seeds=1)
    monkeypatch.setattr(sitting, "train_units", None)
    same(swept(task, out=tmp_path / "a", num_rounds=3, seeds=1).record, first.record)
    sweep = fedax.load_sweep(tmp_path / "a")
    assert sweep.finished
    assert sweep.config["grid"]["fedavg"] == GRID
    assert sweep.results["diverged"].tolist() == first.record.diverged.tolist()
    assert len(sweep.rounds) == int(first.record.done.sum())
    assert sweep.choice.methods["fedavg"].best == first.choice.methods["fedavg"].best
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert summary["methods"]["fedavg"]["values"] == dict(first.best("fedavg").values)
    with pytest.raises(RunError, match="holds a different sweep"):
        swept(task, out=tmp_path / "a", num_rounds=4, seeds=1)


def test_another_rule_chooses_anew_in_a_finished_sweep_and_its_folder_says_so(task, tmp_path):
    def largest(history):
        return -np.nanmean(history["train_loss"])

    def said(result):
        written = json.loads((tmp_path / "a" / "summary.json").read_text())["methods"]
        assert {name: of["values"] for name, of in written.items()} == {
            name: dict(result.best(name).values) for name in written
        }
        return json.loads((tmp_path / "a" / "config.json").read_text())["choose"]

    options = {"out": tmp_path / "a", "num_rounds": 3, "seeds": 1}
    worst = swept(task, choose=largest, **options)
    assert said(worst) == "largest"
    best = swept(task, **options)
    assert said(best) == "train_loss"
    same(best.record, worst.record)
    assert best.best("fedavg") != worst.best("fedavg")


@pytest.mark.quick
def test_a_sweep_of_python_logs_its_runs_with_their_settings(task, tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(
        "fedax.sinks.to_csv.open_writer",
        lambda place, params, make=to_csv.open_writer: told.append(params) or make(place, params),
    )

    def run(**options):
        return fedax.sweep(
            task, fedax.fedavg, {"client_learning_rate": [0.02, 0.05], "num_local_steps": 3},
            num_rounds=2, seeds=[7], progress=False, log="csv", **options,
        )

    losses = run(out=tmp_path / "a").record.metrics["train_loss"]
    for number in (0, 1):
        table = (tmp_path / "a" / "logs" / f"{number}-7" / "metrics.csv").read_text().splitlines()
        column = table[0].split(",").index("train_loss")
        assert [float(row.split(",")[column]) for row in table[1:]] == losses[number].tolist()
        of_run = {"algorithm": "fedavg", "seed": 7, "num_local_steps": 3, "num_rounds": 2,
                  "client_learning_rate": (0.02, 0.05)[number]}
        assert of_run.items() <= told[number].items()
    with pytest.raises(ValueError, match="needs a sweep folder: pass out= as well"):
        run()


def test_a_sweep_of_a_user_differs_by_what_its_method_does(task, tmp_path):
    def method(factor):
        return lambda rate: fedax.fedavg(task.model, factor * rate)

    def run(factor):
        return fedax.sweep(task, method(factor), {"rate": [0.1, 0.2]}, num_rounds=1,
                           progress=False, out=tmp_path / "own", evaluate_every=0)

    run(1.0)
    run(1.0)
    with pytest.raises(RunError, match="holds a different sweep"):
        run(2.0)


@pytest.mark.quick
def test_a_damaged_part_is_named_and_a_damaged_checkpoint_costs_only_time(task, tmp_path):
    path = tmp_path / "columns.npz"
    write_columns(path, {"a": np.arange(3.0)}, "mine")
    assert read_columns(path, "mine")["a"].tolist() == [0, 1, 2]
    with pytest.raises(RunError, match="another sweep"):
        read_columns(path, "yours")
    content = path.read_bytes()
    flipped = bytes([*content[:200], content[200] ^ 255, *content[201:]])
    for damaged in (content[:-20], b"", flipped):
        path.write_bytes(damaged)
        with pytest.raises(RunError, match="cannot be read"):
            read_columns(path, "mine")
    assert Keeper(tmp_path, "mine").part(0, ((0,), 0, 1)) is None


@pytest.mark.quick
def test_parts_become_a_record_in_order():
    settings = [Setting(0, "a", {"x": 1}), Setting(1, "a", {"x": 2})]
    late = Columns(1)
    late.add({"train_loss": np.array([[3.0], [2.0]])})
    late.add({"train_loss": np.array([[1.0]]), "test_loss": np.array([[5.0]])})
    parts = [
        Part(np.array([1]), np.array([7]), np.array([0]), np.array([3]), late.metrics),
        Part(np.array([0]), np.array([7]), np.array([2]), np.array([1]),
             {"train_loss": np.array([[9.0]])}),
    ]
    record = joined(settings, parts)
    assert record.setting.tolist() == [0, 1]
    assert record.diverged.tolist() == [2, 0]
    np.testing.assert_array_equal(record.metrics["train_loss"], [[9, np.nan, np.nan], [3, 2, 1]])
    np.testing.assert_array_equal(record.metrics["test_loss"][1], [np.nan, np.nan, 5])
    assert [len(record.history(row)) for row in (0, 1)] == [1, 3]
    assert joined(settings, []).num_rounds == 0


@pytest.mark.parametrize(("change", "sentence"), [
    ({"grid": {"client_learning_rte": [0.1]}}, "client_learning_rte"),
    ({"grid": {"client_learning_rate": []}}, "is empty"),
    ({"grid": {"client_learning_rate": [0.1, 0.1]}}, "a value twice"),
    ({"seeds": 0}, "seeds"),
    ({"seeds": [1, 1]}, "seeds must be different"),
    ({"seed": 3}, "give seeds="),
    ({"algorithms": 5}, "method"),
    ({"algorithms": {"a": fedax.fedavg(fedax.load_task("quadratics").model, 0.1)}}, "function"),
    ({"algorithms": "fedavgg"}, "fedavg"),
    ({"settings_per_batch": 0}, "settings_per_batch"),
    ({"task": 3}, "task"),
    ({"choose": "test_los"}, "test_los"),
    ({"mesh": None}, "all devices"),
])
def test_mistakes_meet_sentences(task, change, sentence):
    arguments = {
        "task": task, "algorithms": fedax.fedavg, "grid": {"client_learning_rate": [0.1]},
        "num_rounds": 1, "progress": False, **change,
    }
    with pytest.raises((TypeError, ValueError), match=sentence):
        fedax.sweep(
            arguments.pop("task"), arguments.pop("algorithms"), arguments.pop("grid"), **arguments
        )


@pytest.mark.slow
def test_models_and_batch_sizes_are_groups_of_one_sweep(task):
    small = fedax.regression(lambda key: jnp.zeros(2), lambda params, x: x @ params)
    data = fedax.FederatedDataset.from_clients({
        "a": {"x": np.eye(2), "y": np.ones(2)}, "b": {"x": np.ones((1, 2)), "y": np.zeros(1)},
    })
    tasks = {"one": fedax.Task(small, data, name="one"),
             "two": fedax.Task(small, data.pooled(), name="two")}
    result = fedax.sweep(
        tasks, "fedavg", {"task": ["one", "two"], "batch_size": [1, 2],
                          "client_learning_rate": [0.1, 0.2], "num_local_steps": 1},
        num_rounds=2, cohort_size=1, progress=False,
    )
    assert len(result.record.settings) == 8
    assert result.record.settings[5].values == {
        "task": "two", "batch_size": 1, "client_learning_rate": 0.2
    }
    assert np.isfinite(result.record.metrics["train_loss"]).all()


@pytest.mark.slow
def test_the_command_line_killed_five_times_ends_with_the_same_table(tmp_path):
    grid = ["--grid", "client_learning_rate=0.01,0.03,0.1,0.3", "server_learning_rate=0.5,1"]
    asked = ["sweep", "digits", "fedavg,fedyogi", *grid, "--rounds", "40", "--seeds", "2",
             "--settings-per-batch", "2"]
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}

    def start(*words):
        return subprocess.Popen(
            [sys.executable, "-m", "fedax", *words], env=environment, stdout=subprocess.DEVNULL,
        )

    whole, out = tmp_path / "whole", tmp_path / "killed"
    process = start(*asked, "--out", str(whole))
    assert process.wait() == 0
    chance = random.Random(1)
    process, kills = start(*asked, "--out", str(out)), 0
    while kills < 5:
        before = {path.name for path in out.glob("parts/*")}
        deadline = time.monotonic() + 120
        while {path.name for path in out.glob("parts/*")} == before and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(chance.random() * 0.5)
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
        process = start("sweep", "--resume", str(out))
    assert process.wait() == 0
    same(fedax.load_sweep(out).record, fedax.load_sweep(whole).record)


@pytest.mark.slow
def test_extending_adds_what_the_edge_asks_for(tmp_path, capsys):
    out = tmp_path / "sweep"
    assert run_command([
        "sweep", "quadratics", "fedavg", "--grid", "client_learning_rate=0.001,0.01",
        "--rounds", "5", "--out", str(out),
    ]) == 0
    assert "--extend" in capsys.readouterr().out
    before = fedax.load_sweep(out).record
    assert run_command(["sweep", "--extend", str(out)]) == 0
    after = fedax.load_sweep(out)
    rates = [setting.values["client_learning_rate"] for setting in after.record.settings]
    np.testing.assert_allclose(rates, [0.001, 0.01, 0.1, 1.0])
    np.testing.assert_array_equal(
        after.record.metrics["train_loss"][:2], before.metrics["train_loss"]
    )
    page = (out / "report.html").read_text()
    assert "Then extend it, with its folder as DIR:" in page
    assert "fedax sweep --extend DIR" in page
    assert run_command(["sweep", "--resume", str(out)]) == 0
    assert "fedavg" in capsys.readouterr().out
    assert run_command(["run", "--config", str(out / "best" / "fedavg.toml"), "--rounds", "1",
                        "--out", str(tmp_path / "run")]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("out", [False, True])
def test_halving_gives_up_the_worse_and_the_others_are_as_if_nothing_had_been(task, tmp_path, out):
    """SCAFFOLD's clients keep states, which go along when settings are regrouped."""
    grid = {"client_learning_rate": [0.003, 0.1, 1e300, 0.01, 0.03], "server_learning_rate": 1.0}
    options = {"num_rounds": 9, "seeds": 2, "cohort_size": 3, "progress": False,
               "settings_per_batch": 2}
    whole = fedax.sweep(task, scaffold, grid, **options)
    halved = fedax.sweep(
        task, scaffold, grid, halving=3, **options, out=tmp_path / "h" if out else None
    )
    losses = whole.record.metrics["train_loss"]
    assert whole.record.diverged[whole.record.setting == 2].tolist() == [1, 1]
    after_one = losses[:, 0].reshape(5, 2).mean(axis=1)
    good = [number for number in np.argsort(after_one) if number != 2]
    expected = dict.fromkeys(good, 1) | {2: 0} | dict.fromkeys(good[:2], 3)
    after_three = losses[:, :3].mean(axis=1).reshape(5, 2).mean(axis=1)
    expected[min(good[:2], key=lambda number: after_three[number])] = 9
    done = halved.record.done
    assert done.tolist() == [expected[number] for number in halved.record.setting]
    for row, count in enumerate(done):
        np.testing.assert_allclose(
            halved.record.metrics["train_loss"][row, :count], losses[row, :count], rtol=1e-12
        )
    if out:
        assert not list((tmp_path / "h").glob("rung-*/part-*/"))


@pytest.mark.quick
def test_the_best_so_far_is_of_the_mean_over_seeds_and_not_of_a_lucky_one():
    said = []
    console = SimpleNamespace(print=lambda text, **_: said.append(text))
    settings = [Setting(n, "fedavg", {"client_learning_rate": 10.0**n}) for n in range(3)]
    with SweepDisplay(6, 2, None, "nothing", num_seeds=2) as shown:
        shown._console, shown._style = console, "lines"
        of_seeds = [[3.0, 2.0], [1.0, 0.5], [np.nan, np.nan]], [[3.0, 1.0], [9.0, 9.0], [0.0, 0.0]]
        for losses in of_seeds:
            for places in (slice(0, 2), slice(2, 3)):
                own, values = settings[places], np.array(losses[places])
                shown._drawn = -np.inf
                shown.finished(own, Columns(len(own), {"train_loss": values}), len(own))
    assert [line.partition("best ")[2] for line in said] == [
        "loss 0.7500 with 1 of 2 seeds: fedavg client_learning_rate=10",
        "loss 0.7500 with 1 of 2 seeds: fedavg client_learning_rate=10",
        # The third setting was trained with one seed, with which alone all can be compared.
        "loss 0.7500 with 1 of 2 seeds: fedavg client_learning_rate=10",
        "loss 2.2500: fedavg client_learning_rate=1",
    ]


def test_the_bar_of_a_sweep_says_how_many_are_done_in_80_columns():
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80, color_system=None)
    labels = {"client_learning_rate": 0.3, "server_learning_rate": 0.1}
    setting = Setting(0, "fedyogi", labels)
    with SweepDisplay(40, 100, console, "bar") as shown:
        shown.finished([setting] * 12, Columns(12, {"train_loss": np.ones((12, 100))}), 12)
        shown._draw(70, 4)
        drawn = screen.getvalue().split("\r")[-1]
    assert re.search(r"runs 12/40 .* round 70/100 --:-- best loss 1\.0000: fedyogi .*…", drawn)


def test_the_best_without_a_setting_is_said_without_a_blank():
    with SweepDisplay(1, 2, None, "nothing") as shown:
        shown.finished([Setting(0, "fedavg", {})], Columns(1, {"train_loss": np.ones((1, 2))}), 1)
        assert shown._best_words() == ["best loss 1.0000: fedavg"]


@pytest.mark.quick
@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("test_accuracy", "best test accuracy 0.8000: fedavg client_learning_rate=10"),
        ("test_accuracy:min", "best test accuracy 0.5000: fedavg client_learning_rate=1"),
        ("train_loss", "best loss 1.5000: fedavg client_learning_rate=1"),
        (len, "best loss 1.5000: fedavg client_learning_rate=1"),
    ],
)
def test_the_best_so_far_is_by_what_the_sweep_chooses_by(rule, said):
    settings = [Setting(n, "fedavg", {"client_learning_rate": 10.0**n}) for n in range(3)]
    metrics = {
        "train_loss": np.array([[2.0, 1.0], [3.0, 1.0], [0.0, np.nan]]),
        "test_accuracy": np.array([[np.nan, 0.5], [0.9, 0.8], [0.95, np.nan]]),
    }
    with SweepDisplay(3, 2, None, "nothing", rule) as shown:
        shown.finished(settings, Columns(3, metrics), 3)
        assert shown._best_words() == [said]
