"""Old names of presets, models and reproductions: accepted, with one line that says the new."""

import json

import pytest

import fedax
from fedax.cli.main import run_command
from fedax.experiment.config import load_config, resolve
from fedax.reproductions import EXPERIMENTS, REPRODUCTIONS
from fedax.tasks import renamed
from fedax.tasks.registry import TASKS, presets
from fedax.tuning.config import sweep_config
from problems import largest_difference

pytestmark = pytest.mark.quick

OLD_PRESETS = {
    "shakespeare": ("paper", "charles", "decayk", "decayk-33", "decayk-rate",
                    "decayk-constant-100"),
    "shakespeare-tff": ("paper",), "digits": ("paper",), "mnist": ("paper",),
    "fashion-mnist": ("paper",), "cifar10": ("paper", "elastic"),
    "cifar100": ("paper", "charles", "mime"), "cifar100-tff": ("paper", "charles", "mime"),
    "emnist": ("paper", "paper-decay", "charles", "decayk", "decayk-rate-3", "mime"),
    "emnist-autoencoder": ("paper",), "stackoverflow-words": ("paper", "charles"),
    "stackoverflow-tags": ("paper", "charles", "decayk-100"),
}
OLD_REPRODUCTIONS = (
    "adaptive-table-1", "adaptive-figure-4", "outsized-rates-section-4", "outsized-rates-table-2",
    "decaying-steps-figure-1", "elastic-table-1", "mime-figure-2", "mime-table-3",
)


def test_every_old_name_leads_to_a_new_one():
    for task, old in OLD_PRESETS.items():
        assert {renamed.new_preset(task, name) for name in old} <= set(presets(task))
        assert not set(old) & set(presets(task))
    assert {renamed.new_reproduction(name) for name in OLD_REPRODUCTIONS} <= {
        *EXPERIMENTS, *REPRODUCTIONS
    }
    for task, models in renamed.MODELS.items():
        assert {*models, *models.values()} <= set(TASKS[task].models)


def test_no_new_name_is_an_old_one():
    for task in TASKS:
        for name in presets(task):
            assert renamed.new_preset(task, name) == name
    for name in (*EXPERIMENTS, *REPRODUCTIONS):
        assert renamed.new_reproduction(name) == name


@pytest.mark.parametrize(("task", "old", "new"), [
    ("shakespeare", "paper", "reddi2021"), ("mnist", "paper", "elastic2023"),
])
def test_python_takes_an_old_preset_with_a_warning(task, old, new):
    said = f"The preset {old} is now called {new}; the old name works until 0.28"
    with pytest.warns(FutureWarning, match=said):
        config = resolve(task=task, algorithm="fedavg", preset=old)
    assert config == resolve(task=task, algorithm="fedavg", preset=new)


def test_a_grid_takes_an_old_preset_with_one_warning():
    with pytest.warns(FutureWarning) as said:
        config = sweep_config("shakespeare", ["fedavg", "fedadam"], ["paper"])
    assert len(said) == 1
    assert config == sweep_config("shakespeare", ["fedavg", "fedadam"], ["reddi2021"])


def test_an_old_model_is_the_new_one():
    with pytest.warns(FutureWarning, match="shakespeare paper is now called reddi2021"):
        old = fedax.load_task("shakespeare", model="paper")
    assert old.model.init.__qualname__ == fedax.load_task(
        "shakespeare", model="reddi2021"
    ).model.init.__qualname__


def test_the_command_line_says_so_in_one_line(tmp_path, capsys):
    command = ["run", "digits", "fedavg", "--preset", "paper", "--rounds", "1",
               "--set", "num_local_steps=1", "--out", str(tmp_path / "run")]
    assert run_command(command) == 0
    assert capsys.readouterr().err == (
        "fedax: The preset paper is now called elastic2023-small; the old name works until 0.28.\n"
    )
    written = json.loads((tmp_path / "run/config.json").read_text("utf-8"))
    assert written["preset"] == "elastic2023-small"
    assert run_command(["reproduce", "mime-figure-2", "--plan"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("mime2020-figure-2: ")
    assert err == ("fedax: The reproduction mime-figure-2 is now called mime2020-figure-2; the old "
                   "name works until 0.28.\n")


def test_a_folder_with_old_names_goes_on_as_if_nothing_had_happened(tmp_path, capsys):
    def start(folder, *more):
        return run_command([
            "run", "digits", "fedavg", "--preset", "elastic2023-small", "--set",
            "num_local_steps=1", "--out", str(folder), *more,
        ])

    assert start(tmp_path / "whole", "--rounds", "4") == 0
    assert start(tmp_path / "old", "--rounds", "2") == 0
    path = tmp_path / "old/config.json"
    values = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps(values | {"preset": "paper"}), "utf-8")
    assert load_config(path).preset == "elastic2023-small"
    capsys.readouterr()
    assert run_command(["run", "--resume", str(tmp_path / "old"), "--rounds", "4"]) == 0
    assert capsys.readouterr().err == ""
    whole, old = (fedax.load_run(tmp_path / name).params for name in ("whole", "old"))
    assert largest_difference(whole, old) == 0


def test_a_recorded_old_model_stays_as_its_checkpoints_have_it():
    config = resolve(task="shakespeare", algorithm="fedavg", settings={"task.model": "paper"})
    assert config.task_options["model"] == "paper"
