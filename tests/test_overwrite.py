"""overwrite=True and --overwrite: a run begins again in its folder, and nothing else is deleted."""

from pathlib import Path

import pytest

import fedax
from fedax.cli.main import run_command
from fedax.experiment.folder import DIVERGED, locked


@pytest.fixture(scope="module")
def task() -> fedax.Task:
    return fedax.load_task("quadratics")


def train(task: fedax.Task, out: Path, rate: float, **options: object) -> fedax.TrainResult:
    method = fedax.fedavg(task.model, rate, num_local_steps=1)
    return fedax.train(task, method, num_rounds=2, out=out, progress=False, **options)


@pytest.mark.slow
def test_train_begins_again(task: fedax.Task, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(task, out, 0.1, overwrite=True, keep_best="test_loss", log=["csv"])
    with pytest.raises(fedax.RunError, match="start again with overwrite=True"):
        train(task, out, 0.2)
    again = train(task, out, 0.2, overwrite=True)
    assert again.history["train_loss"].tolist() == (
        train(task, tmp_path / "other", 0.2).history["train_loss"].tolist()
    )
    assert not (out / "metrics.csv").exists()
    assert train(task, out, 0.2).history["train_loss"].tolist() == (
        again.history["train_loss"].tolist()
    )


@pytest.mark.slow
def test_a_run_that_diverged_begins_again(task: fedax.Task, tmp_path: Path) -> None:
    with pytest.raises(fedax.DivergedError):
        train(task, tmp_path, 1e200)
    assert (tmp_path / DIVERGED).exists()
    train(task, tmp_path, 0.1, overwrite=True)
    assert not (tmp_path / DIVERGED).exists()


@pytest.mark.parametrize("strange", ["notes.txt", "pictures/a.png", ".git/config"])
def test_nothing_is_deleted_beside_what_a_run_did_not_write(
    task: fedax.Task, tmp_path: Path, strange: str
) -> None:
    train(task, tmp_path, 0.1)
    path = tmp_path / strange
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(fedax.RunError, match=r"was not deleted, because it contains"):
        train(task, tmp_path, 0.2, overwrite=True)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.quick
def test_a_folder_that_holds_no_run_stays(task: fedax.Task, tmp_path: Path) -> None:
    for name in ("logs", "source"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").write_text("kept")
    with pytest.raises(fedax.RunError, match=r"it contains 'logs', which is not part of a run"):
        train(task, tmp_path, 0.1, overwrite=True)
    assert (tmp_path / "logs" / "mine").read_text() == "kept"


def test_what_a_link_leads_to_stays(task: fedax.Task, tmp_path: Path) -> None:
    out, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine").write_text("kept")
    train(task, out, 0.1)
    (out / "logs").symlink_to(elsewhere)
    with pytest.raises(fedax.RunError):
        train(task, out, 0.1, overwrite=True)
    assert (elsewhere / "mine").read_text() == "kept"


def test_a_run_that_is_trained_stays(
    task: fedax.Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(task, tmp_path, 0.1)
    with locked(tmp_path), pytest.raises(fedax.RunError, match="Another process is training"):
        train(task, tmp_path, 0.2, overwrite=True)
    assert (tmp_path / "config.json").exists()
    line = ["run", "quadratics", "fedavg", "--preset", "none", "--out", str(tmp_path)]
    for more in ([], ["--overwrite"]):
        with locked(tmp_path):
            assert run_command([*line, *more]) == 1
        said = capsys.readouterr().err
        assert "Another process is training in" in said
        assert "Wait until it has finished, or choose another folder." in said


def test_a_wrong_call_deletes_nothing(task: fedax.Task, tmp_path: Path) -> None:
    train(task, tmp_path, 0.1)
    with pytest.raises(ValueError, match="cohort"):
        train(task, tmp_path, 0.2, overwrite=True, cohort_size=10**6)
    assert len(fedax.load_run(tmp_path).history) == 2


def test_it_needs_a_folder(task: fedax.Task) -> None:
    with pytest.raises(ValueError, match="overwrite=True needs the folder"):
        train(task, None, 0.1, overwrite=True)
    with pytest.raises(TypeError, match="overwrite must be True or False, but is 'yes'"):
        train(task, None, 0.1, overwrite="yes")


@pytest.mark.slow
def test_sweeps_and_searches_begin_again(task: fedax.Task, tmp_path: Path) -> None:
    options = {"num_rounds": 2, "out": tmp_path, "progress": False}
    for rates in ([0.1, 0.2], [0.3, 0.4]):
        grid = {"client_learning_rate": rates}
        result = fedax.sweep(task, fedax.fedavg, grid, overwrite=True, **options)
        assert result.best().values["client_learning_rate"] in rates
    for _ in range(2):
        found = fedax.search(
            task, fedax.fedavg, {"client_learning_rate": "loguniform(0.01, 0.1)"}, num_trials=2,
            overwrite=True, **options,
        )
        assert len(found.study.trials) == 2
    train(task, tmp_path, 0.1, overwrite=True)


@pytest.mark.slow
def test_of_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    line = ["quadratics", "fedavg", "--rounds", "1", "--out", "it"]
    grid = ["--grid", "client_learning_rate=0.01,0.02"]
    assert run_command(["run", *line, "--log", "csv", "--profile"]) == 0
    assert run_command(["run", *line]) == 1
    assert "start again with --overwrite" in capsys.readouterr().err
    assert run_command(["run", *line, "--overwrite"]) == 0
    assert not Path("it/metrics.csv").exists()
    assert run_command(["sweep", *line, *grid, "--overwrite"]) == 0
    assert run_command(["sweep", *line, *grid, "--halving", "2", "--overwrite"]) == 0
    assert run_command(["run", *line, "--overwrite"]) == 0
    assert run_command(["run", "quadratics", "fedavg", "--overwrite"]) == 2
    assert "--overwrite needs --out" in capsys.readouterr().err
    assert run_command(["run", "--resume", "it", "--overwrite"]) == 2
