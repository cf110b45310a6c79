"""Sweeps that are stopped, damaged or asked for in odd ways: a sentence, or the same table."""

import json
import shutil

import numpy as np
import pytest

import fedax
from fedax.cli.main import run_command
from fedax.experiment.folder import RunError
from fedax.optimizers.base_optimizers import adam, sgdm
from fedax.tuning import command, halving
from fedax.tuning.display import SweepDisplay

RATES = [0.003, 0.01, 0.03, 0.1]


@pytest.fixture(scope="module")
def task():
    return fedax.load_task("quadratics")


def halved(task, **options):
    return fedax.sweep(
        task, "fedavg", {"client_learning_rate": RATES}, num_rounds=4, progress=False,
        **{"halving": 2, "cohort_size": 3, "evaluate_every": 0, "settings_per_batch": 2, **options},
    )


def stopped_at(monkeypatch, rung, folder, task):
    """A sweep that halves, killed when it is about to begin with a rung."""
    seen = []

    def say(self, text):
        seen.append(text)
        if len(seen) == rung:
            raise MemoryError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(SweepDisplay, "say", say)
        with pytest.raises(MemoryError):
            halved(task, out=folder)


def losses(result):
    return result.record.metrics["train_loss"]


@pytest.mark.quick
def test_a_damaged_state_between_rungs_costs_rounds_and_no_number(task, tmp_path, monkeypatch):
    stopped_at(monkeypatch, 2, tmp_path / "h", task)
    kept = [*(tmp_path / "h" / "rung-0" / "part-00001").glob("checkpoints/*/*.npz")]
    assert kept
    for path in kept:
        path.write_bytes(path.read_bytes()[:100])
    np.testing.assert_allclose(
        losses(halved(task, out=tmp_path / "h")), losses(halved(task)), rtol=1e-12
    )


@pytest.mark.parametrize("options", [{"halving": None}, {}])
def test_parts_that_are_deleted_meanwhile_are_made_again(task, tmp_path, monkeypatch, options):
    finished, deleted = SweepDisplay.finished, []

    def delete_and_finish(self, *arguments):
        for parts in [*tmp_path.glob("h/parts"), *tmp_path.glob("h/rung-*")]:
            shutil.rmtree(parts)
            deleted.append(parts.name)
        finished(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(SweepDisplay, "finished", delete_and_finish)
        found = halved(task, out=tmp_path / "h", **options)
    assert len(deleted) >= 2
    np.testing.assert_allclose(losses(found), losses(halved(task, **options)), rtol=1e-12)
    np.testing.assert_array_equal(
        fedax.load_sweep(tmp_path / "h").record.metrics["train_loss"], losses(found)
    )


@pytest.mark.quick
def test_halving_goes_on_with_the_units_that_it_began_with(task, tmp_path, monkeypatch):
    """Whatever the call says of them, and however many devices there are now."""
    stopped_at(monkeypatch, 2, tmp_path / "h", task)
    monkeypatch.setattr(halving.jax, "local_device_count", lambda: 3)
    again = halved(task, out=tmp_path / "h", settings_per_batch=1)
    monkeypatch.undo()
    np.testing.assert_allclose(losses(again), losses(halved(task)), rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("grid", "seeds", "values"), [
    ({"client_learning_rate": [np.float32(0.25), np.float32(0.5)]}, np.arange(2), [0.25, 0.5]),
    ({"client_learning_rate": [fedax.schedules.exponential_decay(0.5, 0.9), 0.25]}, np.int64(2),
     ["exponential_decay(initial_value=0.5, decay_rate=0.9)", 0.25]),
])
def test_a_folder_takes_all_values_that_a_sweep_takes(task, tmp_path, grid, seeds, values):
    def sweep():
        return fedax.sweep(
            task, fedax.fedavg, grid, num_rounds=1, seeds=seeds, progress=False, evaluate_every=0,
            out=tmp_path / "s",
        )

    first, again = sweep(), sweep()
    np.testing.assert_array_equal(losses(first), losses(again))
    loaded = fedax.load_sweep(tmp_path / "s")
    assert [setting.values["client_learning_rate"] for setting in loaded.record.settings] == values
    assert loaded.config["seeds"] == [0, 1]


def test_objects_of_a_grid_are_told_by_their_calls(task):
    result = fedax.sweep(
        task, fedax.mimelite, {"base": [sgdm(0.5), adam(0.5)]}, num_rounds=0, progress=False,
    )
    assert [setting.values["base"].split("(")[0] for setting in result.record.settings] == [
        "sgdm", "adam"
    ]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A sweep of the command line, and a run."""
    place = tmp_path_factory.mktemp("finished")
    grid = ["--grid", "client_learning_rate=0.01,0.1,1e9"]
    assert run_command(["sweep", "quadratics", "fedavg", *grid, "--rounds", "1",
                        "--out", str(place / "sweep")]) == 0
    return place / "sweep"


@pytest.fixture
def folder(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "sweep")


@pytest.mark.quick
def test_a_rule_that_cannot_be_followed_leaves_a_finished_sweep_finished(folder, capsys):
    before = (folder / "config.json").read_bytes()
    assert run_command(["sweep", "--resume", str(folder), "--choose", "nonsense:min"]) == 2
    assert f"fedax sweep --resume {folder} --choose METRIC" in capsys.readouterr().err
    assert (folder / "config.json").read_bytes() == before
    assert fedax.load_sweep(folder).finished


def test_best_settings_are_there_when_a_sweep_is_finished(folder, monkeypatch):
    (folder / "summary.json").unlink()
    shutil.rmtree(folder / "best")
    with monkeypatch.context() as patch:
        patch.setattr(command, "best_toml", lambda *_: 1 / 0)
        assert run_command(["sweep", "--resume", str(folder)]) == 1
    assert run_command(["sweep", "--resume", str(folder)]) == 0
    assert "client_learning_rate = 0.1" in (folder / "best" / "fedavg.toml").read_text()


def test_a_sweep_is_no_run_and_says_so(folder, task, capsys):
    assert run_command(["run", "--resume", str(folder)]) == 1
    assert f"fedax sweep --resume {folder}" in capsys.readouterr().err
    with pytest.raises(RunError, match="is a sweep, not a run"):
        fedax.load_run(folder)
    with pytest.raises(RunError, match="is a sweep, not a run"):
        fedax.train(task, fedax.fedavg(task.model, 0.1), num_rounds=1, out=folder, progress=False)


@pytest.mark.slow
def test_a_start_that_was_killed_can_be_made_again(tmp_path, folder):
    left = tmp_path / "left"
    shutil.copytree(folder / "methods", left / "methods")
    assert run_command(["sweep", "quadratics", "fedavg", "--seeds", "2", "--rounds", "1",
                        "--out", str(left)]) == 0


@pytest.mark.quick
@pytest.mark.parametrize("damage", [
    {"units": [[[99], 0, 1]]}, {"settings": [["nosuch", {}]] * 3}, {"settings": []},
    {"halving": "abc"}, {"choose": 5}, {"seeds": None}, {"grid": 3},
])
def test_a_damaged_configuration_is_named(folder, capsys, damage):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | damage))
    assert run_command(["sweep", "--resume", str(folder)]) == 1
    assert f"{path} is damaged" in capsys.readouterr().err


@pytest.mark.quick
@pytest.mark.parametrize("name", ["rounds.npz", "parts/part-00000.npz"])
def test_damaged_columns_are_made_again_when_they_are_deleted(folder, capsys, name):
    (folder / name).write_bytes(b"junk")
    if name != "rounds.npz":
        (folder / "summary.json").unlink()
    assert run_command(["sweep", "--resume", str(folder)]) == 1
    said = capsys.readouterr().err
    assert f"{folder / name} cannot be read" in said
    assert "Delete it" in said
    (folder / name).unlink()
    assert run_command(["sweep", "--resume", str(folder)]) == 0
    assert fedax.load_sweep(folder).record.num_rounds == 1


@pytest.mark.slow
def test_code_that_has_changed_is_named_with_what_helps_a_sweep(tmp_path, capsys):
    own = tmp_path / "own.py"
    own.write_text("import fedax\n\ndef method(model, rate: float = 0.1):\n"
                   "    return fedax.fedavg(model, rate)\n")
    out = tmp_path / "sweep"
    grid = ["--grid", "rate=0.1,0.2", "--rounds", "0"]
    assert run_command(["sweep", "quadratics", f"{own}:method", *grid, "--out", str(out)]) == 0
    for damage in (lambda: own.write_text(own.read_text() + "#"), own.unlink):
        damage()
        assert run_command(["sweep", "--resume", str(out)]) == 2
        said = capsys.readouterr().err
        assert "start another sweep with that code." in said
        assert "--force" not in said
