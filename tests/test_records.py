"""What a run writes down of its call and its data, and what a resume compares."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.algorithms.registry import ALGORITHMS, WRAPPERS
from fedax.cli.main import run_command
from fedax.data.describing import Describer, digest
from fedax.devices import processes
from fedax.experiment.build import algorithm_settings, build_algorithm, build_task, task_settings
from fedax.experiment.config import resolve
from fedax.experiment.differing import record_of_tasks, require_same_tasks
from fedax.experiment.folder import RunError
from fedax.experiment.metrics import read_metrics
from fedax.experiment.resolving import with_defaults
from fedax.experiment.settings import OWN, Setting
from problems import quadratic_task

pytestmark = pytest.mark.shares_programs

TASKS = '''
import os
import numpy as np, fedax, jax.numpy as jnp
from numpy import load

def noted(*arguments):
    pass

def mine(count=4, sizes=(1, 2), mode="none", share=0.5, hook=noted):
    assert type(count) is int and sizes == (1, 2) and mode == "none" and hook is noted
    data = load("data.npz")
    clients = {f"c{i}": {"x": data["x"][i] * share, "y": data["y"][i]} for i in range(count)}
    data = fedax.FederatedDataset.from_clients(clients)
    init = lambda key: {"w": jnp.zeros((4, 3), jnp.float32)}
    return fedax.Task(fedax.classification(init, lambda p, x: x @ p["w"]), data, data, "mine")

def method(model, rate=0.1, **options):
    decay = float(load("data.npz")["decay"])
    return fedax.fedavg(model, rate * decay, **{"batch_size": 3, **options})
'''


def write_data(seed=0, decay=1.0, **changes):
    rng = np.random.default_rng(seed)
    arrays = {"x": rng.normal(size=(8, 20, 4)).astype(np.float32),
              "y": rng.integers(0, 3, (8, 20)).astype(np.int32)}
    np.savez("data.npz", decay=decay, **{**arrays, **changes})


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    Path("own.py").write_text(TASKS)
    write_data()
    return tmp_path


def fed(*words, status=0):
    assert run_command([str(word) for word in words]) == status


def start(*words, task="own.py:mine", method="fedavg", rounds=2, out="r"):
    fed("run", task, method, "--set", "cohort_size=2", *words, "--rounds", rounds, "--out", out)
    return json.loads(Path(out, "config.json").read_text())


def weights(folder):
    rounds = read_metrics(Path(folder))
    return [{k: v for k, v in one.items() if "seconds" not in k} for one in rounds]


@pytest.mark.quick
@pytest.mark.parametrize(
    "name", [*ALGORITHMS, *WRAPPERS, "elastic+fedadam", "local_update_decay+elastic+fedavgm"]
)
def test_an_algorithm_is_the_same_with_its_defaults_written_out(name):
    task = quadratic_task()
    options = {
        key: setting.recorded for key, setting in algorithm_settings(name).items()
        if setting.recorded is not OWN
    }
    assert "client_learning_rate" in options or "server_learning_rate" in options
    assert "batch_size" in options
    needed = {"where": "()"} if "where" in options else {}
    options |= needed
    stored = json.loads(json.dumps(options))
    made = [build_algorithm(name, given, task.model) for given in (needed, stored)]
    if name.startswith("local_update_decay"):  # whose inner methods are made in the rounds
        runs = [[one.metrics["train_loss"] for one in fedax.simulate(
            task, algorithm, num_rounds=2, cohort_size=2)] for algorithm in made]
        assert runs[0] == runs[1]
    else:
        first, second = (digest(Describer(complete=True)(algorithm)) for algorithm in made)
        assert first == second


@pytest.mark.parametrize("default", [
    3, 2.0, 1, True, None, "text", "mean", "0.5", "constant(0.1)", "[1]", (1, 2), [1.0], {"a": 1},
    np.float64(0.5), np.int32(3), float("inf"), float("nan"), 10**30, "",
])
def test_what_is_written_of_a_default_is_read_as_the_default(default):
    setting = Setting("key", float | None, default, "")
    assert setting.is_default(json.loads(json.dumps(setting.recorded)))
    assert not setting.is_default("another")


@pytest.mark.parametrize("default", [print, object(), np.arange(3), {1: print}, (1, print)])
def test_a_default_that_no_file_holds_is_not_written(default):
    setting = Setting("key", float, default, "")
    assert setting.recorded is OWN
    assert not setting.is_default(OWN)


@pytest.mark.slow
def test_a_run_of_ones_own_writes_its_resolved_call_and_repeats(project, capsys):
    config = start()
    assert config["task_options"] == {"count": 4, "sizes": "(1, 2)", "share": 0.5}
    assert config["algorithm_options"] == {
        "client_learning_rate": 0.1, "server_learning_rate": 1.0, "batch_size": 20,
        "num_local_epochs": None, "num_local_steps": None, "weighting": "num_examples",
        "order": "shuffled", "proximal_weight": None,
    }
    fed("run", "--config", "r/config.json", "--out", "again")
    assert weights("again") == weights("r")
    repeated = json.loads(Path("again/config.json").read_text())
    assert {**repeated, "made_by": 0} == {**config, "made_by": 0}
    page = Path("r/report.html").read_text()
    for name in ("client_learning_rate", "batch_size", "share", "hook", "task.count=4"):
        assert name in page
    assert config["made_by"]["held"] == {"mode": "none", "hook": "noted"}


@pytest.mark.slow
def test_what_a_method_of_ones_own_holds_is_written_and_not_set(project):
    config = start(method="own.py:method")
    assert config["algorithm_options"] == {"rate": 0.1}  # batch_size is 3 by its own default
    assert config["made_by"]["held"]["batch_size"] == 3
    fed("run", "--config", "r/config.json", "--out", "again")
    assert weights("again") == weights("r")


@pytest.mark.parametrize("task", ["digits", "quadratics"])
def test_a_run_of_fedaxs_own_has_every_setting(task, tmp_path):
    config, defaults = with_defaults(resolve(task=task, algorithm="fedadam", preset="none"))
    assert set(config.task_options) == set(task_settings(task)) - {"validation"}  # if given
    assert set(config.algorithm_options) == set(algorithm_settings("fedadam"))
    sparse = resolve(task=task, algorithm="fedadam", preset="none")
    assert with_defaults(sparse) == (config, defaults)
    assert with_defaults(config) == (config, {"task": [], "algorithm": []})
    if task == "digits":
        tasks = [build_task(task, one.task_options) for one in (sparse, config)]
        assert record_of_tasks(tasks[:1]) == record_of_tasks(tasks[1:])


@pytest.mark.slow
@pytest.mark.parametrize("change", [
    {"seed": 1}, {"y": np.zeros((8, 20), np.int32)}, {"x": np.ones((8, 10, 4), np.float32),
                                                      "y": np.ones((8, 10), np.int32)},
])
def test_a_run_whose_data_changed_does_not_go_on(project, capsys, change):
    start()
    fed("run", "--resume", "r", "--rounds", "3")
    write_data(**change)
    capsys.readouterr()
    fed("run", "--resume", "r", "--rounds", "4", status=1)
    said = capsys.readouterr().err
    assert "The task of the run in r has changed" in said
    assert "task.train" in said
    assert "fedax run --resume r --force" in said
    assert len(read_metrics(Path("r"))) == 3
    fed("run", "--resume", "r", "--rounds", "4", "--force")
    fed("run", "--resume", "r", "--rounds", "5")  # the data of now are the run's


@pytest.mark.slow
def test_a_single_value_of_much_data_is_noticed(project, capsys):
    x, y = np.zeros((8, 20_000, 4), np.float32), np.zeros((8, 20_000), np.int32)
    write_data(x=x, y=y)
    start()
    x[3, 12_345, 2] = 1e-3
    write_data(x=x, y=y)
    fed("run", "--resume", "r", "--rounds", "3", status=1)
    assert "the contents of task.train differ" in capsys.readouterr().err


@pytest.mark.slow
def test_data_that_a_method_of_ones_own_reads_are_compared_too(project, capsys):
    start(method="own.py:method")
    write_data(decay=0.5)
    fed("run", "--resume", "r", "--rounds", "3", status=1)
    assert "the method differs" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_that_an_older_fedax_began_goes_on(project):
    config = start()
    del config["made_by"]["tasks"], config["made_by"]["held"]
    Path("r/config.json").write_text(json.dumps(config))
    write_data(1)
    fed("run", "--resume", "r", "--rounds", "3")  # nothing is known of its data
    assert json.loads(Path("r/config.json").read_text())["made_by"]["tasks"]


@pytest.mark.slow
def test_a_sweep_whose_data_changed_does_not_go_on(project, capsys):
    words = ["own.py:mine", "fedavg", "--grid", "client_learning_rate=0.1,1", "--set",
             "cohort_size=2", "num_rounds=2", "--out", "s"]
    fed("sweep", *words)
    Path("s/summary.json").unlink()
    fed("sweep", "--resume", "s")
    Path("s/summary.json").unlink()
    write_data(1)
    capsys.readouterr()
    fed("sweep", "--resume", "s", status=1)
    assert "The task of the sweep in s has changed: the contents of task.train" in (
        capsys.readouterr().err
    )


@pytest.mark.slow
def test_a_search_whose_data_changed_does_not_go_on(project, capsys):
    fed("sweep", "own.py:mine", "fedavg", "--search", "client_learning_rate=loguniform(0.01,1)",
        "--trials", "2", "--set", "cohort_size=2", "num_rounds=2", "--out", "s")
    fed("sweep", "--resume", "s", "--trials", "3")
    write_data(1)
    capsys.readouterr()
    fed("sweep", "--resume", "s", "--trials", "4", status=1)
    assert "has changed: the contents of task.train" in capsys.readouterr().err


def small_task(value=0.0):
    data = fedax.FederatedDataset.from_clients({
        name: {"x": np.full((8, 3), value, np.float32), "y": np.ones(8, np.float32)}
        for name in "ab"
    })
    model = fedax.regression(lambda key: jnp.zeros(3, jnp.float32), lambda p, x: x @ p)
    return fedax.Task(model, data)


@pytest.mark.slow
def test_a_search_from_python_compares_its_data(tmp_path):
    for task, refused in ((small_task(), False), (small_task(), False), (small_task(1), True)):
        call = {
            "num_rounds": 1, "num_trials": 2, "cohort_size": 2, "out": tmp_path, "progress": False,
        }
        space = {"client_learning_rate": "uniform(0.1, 0.2)"}
        if refused:
            with pytest.raises(RunError, match=r"the contents of task\.train differ"):
                fedax.search(task, fedax.fedavg, space, **call)
        else:
            fedax.search(task, fedax.fedavg, space, **call)


def test_a_run_from_python_has_the_defaults_of_its_factory(tmp_path):
    task = small_task(1)
    call = {"cohort_size": 2, "progress": False, "out": tmp_path / "run"}
    fedax.train(task, fedax.fedavg(task.model, 0.1), num_rounds=1, **call)
    path = tmp_path / "run" / "config.json"
    config = json.loads(path.read_text())
    assert config["algorithm_options"]["batch_size"] == 20
    assert "batch_size" in (tmp_path / "run" / "report.html").read_text()
    assert fedax.load_run(tmp_path / "run", task=task).algorithm is not None
    # As fedax 0.22 wrote it, whose checkpoints are of settings without the defaults.
    older = tmp_path / "older"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedax.data.describing.option_defaults", lambda function: {})
        fedax.train(
            task, fedax.fedavg(task.model, 0.1), num_rounds=1, **{**call, "out": older}
        )
    assert "batch_size" not in json.loads((older / "config.json").read_text())["algorithm_options"]
    assert fedax.load_run(older, task=task).algorithm is not None
    result = fedax.train(
        task, fedax.fedavg(task.model, 0.1), num_rounds=2, **{**call, "out": older}
    )
    assert len(result.history) == 2
    with pytest.raises(RunError, match="batch_size"):
        fedax.train(task, fedax.fedavg(task.model, 0.1, batch_size=3), num_rounds=2, **call)


def test_a_record_of_the_data_that_makes_no_sense_is_as_none():
    now = record_of_tasks([small_task()])
    for before in (None, 3, "x", [3], [None], {}, []):
        require_same_tasks(before, now, "run in r", "Stop.")
    with pytest.raises(RunError, match="has changed"):
        require_same_tasks([{"train": 3}], now, "run in r", "Stop.")


def test_processes_compare_data_and_the_model_to_start_from(monkeypatch):
    """What another process has is compared by name."""
    first = {"the task": record_of_tasks([small_task()])[0], "the model to start from": "a"}
    second = {"the task": record_of_tasks([small_task(1)])[0], "the model to start from": "b"}
    with pytest.raises(processes.ProcessError, match=r"train\.contents.*same settings and data"):
        processes._require_same(0, processes._flat(first), 1, processes._flat(second))


@pytest.mark.slow
@pytest.mark.parametrize("of", ["values", "start"])
def test_two_processes_with_other_data_do_not_train(project, of):
    source = TASKS.replace('load("data.npz")\n    clients', 'load(os.environ["DATA"])\n    clients')
    source = source.replace("jnp.zeros((4, 3), jnp.float32)",
                            'jnp.full((4, 3), float(os.environ["START"]), jnp.float32)')
    Path("own.py").write_text(source)
    write_data(1)
    Path("data.npz").rename("other.npz")
    write_data(0)
    with socket.socket() as ear:
        ear.bind(("127.0.0.1", 0))
        port = ear.getsockname()[1]
    words = [sys.executable, "-m", "fedax", "run", "own.py:mine", "fedavg", "--set",
             "cohort_size=2", "--rounds", "3", "--out", "r", "--devices", "1", "--coordinator",
             f"127.0.0.1:{port}", "--processes", "2", "--process-id"]
    running = [
        subprocess.Popen(
            [*words, str(number)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "DATA": "other.npz" if number and of == "values" else "data.npz",
                 "START": str(number) if of == "start" else "0"},
        )
        for number in range(2)
    ]
    said = [process.communicate(timeout=120)[1] for process in running]
    assert [process.returncode for process in running] == [1, 1]
    what = "the task.train.contents" if of == "values" else "the model to start from"
    assert all("The processes differ" in one and what in one for one in said)


@pytest.mark.slow
def test_defaults_of_a_method_do_not_follow_to_another(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one = ["run", "quadratics", "elastic+fedprox", "--rounds", "1", "--set", "elasticity=0.25"]
    assert run_command([*one, "--out", "first"]) == 0
    other = ["run", "quadratics", "fedavg", "--config", "first/config.json"]
    assert run_command([*other, "--set", "elasticity=0.5", "--out", "wrong"]) == 2
    assert run_command([*other[:2], "elastic+fedavg", *other[3:], "--out", "second"]) == 0
    options = json.loads(Path("second/config.json").read_text())["algorithm_options"]
    assert options["elasticity"] == 0.25
    assert "server_optimizer" not in options
