"""A cohort whose size nobody gave is no larger than the population."""

import json
from pathlib import Path

import pytest

import fedax
from fedax.cli.main import run_command


@pytest.fixture(scope="module")
def task() -> fedax.Task:
    return fedax.load_task("digits", num_clients=4)


@pytest.mark.slow
def test_of_train_and_simulate(task: fedax.Task, tmp_path: Path) -> None:
    method = fedax.fedavg(task.model, 0.1, num_local_steps=1)
    of_all = fedax.train(task, method, num_rounds=2, cohort_size=4, progress=False)
    default = fedax.train(task, method, num_rounds=2, progress=False, out=tmp_path / "run")
    assert default.history["train_loss"].tolist() == of_all.history["train_loss"].tolist()
    assert json.loads((tmp_path / "run" / "config.json").read_text())["cohort_size"] == 4
    assert len(list(fedax.simulate(task, method, num_rounds=1))) == 1
    with pytest.raises(ValueError, match="A cohort of 10 clients cannot be drawn"):
        fedax.train(task, method, num_rounds=1, cohort_size=10)


@pytest.mark.quick
def test_with_replacement_it_stays(task: fedax.Task) -> None:
    method = fedax.fedavg(task.model, 0.1, num_local_steps=1)
    draws = [
        fedax.train(task, method, num_rounds=2, sampling="with_replacement", **given)
        .history["train_loss"].tolist() for given in ({}, {"cohort_size": 10})
    ]
    assert draws[0] == draws[1]


@pytest.mark.slow
def test_of_a_sweep(task: fedax.Task) -> None:
    rates = {"client_learning_rate": [0.1, 0.2]}
    options = {"num_rounds": 2, "progress": False}
    default = fedax.sweep(task, "fedavg", rates, **options)
    of_all = fedax.sweep(task, "fedavg", rates, cohort_size=4, **options)
    assert str(default.choice) == str(of_all.choice)


@pytest.mark.slow
def test_of_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    line = ["digits", "fedavg", "--rounds", "1", "--set", "num_clients=4"]
    assert run_command(["run", *line, "--out", "run"]) == 0
    assert json.loads(Path("run/config.json").read_text())["cohort_size"] == 4
    assert "1 round of 4 clients" in capsys.readouterr().out
    grid = ["--grid", "client_learning_rate=0.1,0.2"]
    assert run_command(["sweep", *line, *grid, "--out", "sweep"]) == 0
    method = json.loads(Path("sweep/methods/0/config.json").read_text())
    assert method["cohort_size"] == 4
    for given in (["--cohort-size", "10"], ["--set", "run.cohort_size=10"]):
        assert run_command(["run", *line, *given]) == 2
        assert "cohort_size is 10, but the task digits has only 4" in capsys.readouterr().err
