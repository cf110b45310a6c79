"""A user's own task and method at the command line: found, loaded, run, resumed, explained."""

import dataclasses
import functools
import hashlib
import json
import shutil
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
import optax
import pytest

import fedax
from fedax.algorithms.registry import ALGORITHMS, WRAPPERS
from fedax.cli.main import run_command
from fedax.clients.local_training import LocalOptions, LocalTraining
from fedax.experiment import imports, sources
from fedax.experiment.build import algorithm_parts, algorithm_settings, build_algorithm
from fedax.experiment.config import load_config, resolve, run_settings
from fedax.experiment.display import Display
from fedax.experiment.errors import ConfigError
from fedax.experiment.metrics import read_metrics
from fedax.experiment.settings import NEEDED, settings_of
from fedax.experiment.values import check_kind, describe, parse, parse_settings
from problems import quadratic_model, quadratic_task

EXAMPLES = Path(__file__).parent.parent / "examples"

TASKS = '''
import numpy as np
import fedax
from problems import quadratic_model
from sizes import SIZES  # beside this file

with open("imported.txt", "a") as log:
    log.write("tasks ")


def reviews(num_clients: int = 6, spread: float = 1.0) -> fedax.Task:
    """Reviews of shops.

    Args:
      num_clients: how many shops, at least 1.
      spread: how far the shops lie apart.
    """
    rng = np.random.default_rng(0)
    clients = {}
    for i in range(num_clients):
        size = SIZES[i % len(SIZES)]
        matrices = np.stack([np.diag(row) for row in rng.uniform(0.5, 1.5, (size, 2))])
        clients[f"shop {i}"] = {"A": matrices, "c": spread * rng.normal(size=(size, 2))}
    data = fedax.FederatedDataset.from_clients(clients)
    return fedax.Task(quadratic_model(2), data, data)


small = reviews(3)


def with_reference():
    return small._replace(references={"a table": lambda: {"test_distance": 1 / 0}})


def a_dictionary():
    return {"train": small.train}


def objects():
    names = np.array(["a"] * small.train.num_examples, object)
    data = fedax.FederatedDataset({**small.train.arrays, "name": names}, small.train.offsets)
    return small._replace(train=data, test=None)


def missing_file(path: str = "reviews.csv"):
    return np.loadtxt(path)


def _hidden():
    pass


if __name__ == "__main__":
    raise SystemExit("this is no script")
'''
METHODS = '''
import functools
from typing import Any, Unpack
import jax.numpy as jnp
import optax
import fedax


def fedmine(model, rate: float = 0.1, **local_options: Unpack[fedax.LocalOptions]):
    """FedAvg by another name.

    Args:
      model: the learning problem.
      rate: gamma > 0.
    """
    if not callable(rate) and rate <= 0:
        raise ValueError(f"rate must be above 0, but is {rate!r}.")
    return fedax.fedavg(model, rate, **local_options)


def fedavg(model, client_learning_rate=0.1, server_learning_rate=1.0, **options):
    return fedax.fedavg(model, client_learning_rate, server_learning_rate, **options)


def needs(model, rate, steps: int):
    return fedax.fedavg(model, rate, num_local_steps=steps)


def by_name(*, model, rate=0.1):
    return fedax.fedavg(model, rate)


class Method:
    """A method that is an instance.

    Args:
      rate: gamma.
    """

    def __call__(self, model, rate: float = 0.1):
        return fedax.fedavg(model, rate)


instance = Method()
partial = functools.partial(fedmine, rate=0.2)
built = fedax.FederatedAlgorithm(None, None, ())
number = 3


def with_optimizer(model, server: optax.GradientTransformation | None = None, note: str = "x"):
    return fedax.fedopt(model, None, server)


def scheduled(model, rate: Any = 0.1):
    return fedax.fedavg(model, rate)


def shares(model, num_clients: int = 3, seed: int = 0):
    return fedax.fedavg(model, 0.1)


def returns_none(model):
    fedax.fedavg(model)


def fails(model, table=None):
    return (table or {})["rate"]


def no_model():
    return built


def bad_client(model):
    algorithm = fedax.fedavg(model, 0.1)
    (exchange,) = algorithm.exchanges

    def client(message, state, data, key):
        return message.params["nothing"]

    return algorithm._replace(exchanges=(exchange._replace(client=client),))
'''


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    """A folder with a user's files, which is the working folder."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "my_tasks.py").write_text(TASKS)
    (folder / "sizes.py").write_text("SIZES = (3, 5, 4)\n")
    (folder / "my_methods.py").write_text(METHODS)
    monkeypatch.chdir(folder)
    before = dict(sys.modules)
    yield folder
    imports._MODULES.clear()
    imports._DIGESTS.clear()
    for name in set(sys.modules) - set(before):
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


SHORT = ("--rounds", "4", "--cohort-size", "2", "--set", "evaluate_every=2", "checkpoint_every=2")


def fed(*words, status=0):
    assert run_command([str(word) for word in words]) == status


def saved(folder):
    return json.loads((folder / "config.json").read_text())


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def timeless(folder):
    return [{k: v for k, v in m.items() if "seconds" not in k} for m in read_metrics(folder)]


def final_arrays(folder):
    newest = sorted((folder / "checkpoints").glob("round-*"))[-1]
    return {
        path.name: path.read_bytes() for path in newest.iterdir() if path.name != "manifest.json"
    }


def assert_same_run(folder, expected):
    assert timeless(folder) == timeless(expected)
    assert final_arrays(folder).keys() == final_arrays(expected).keys()
    with np.load(sorted(folder.glob("checkpoints/round-*"))[-1] / "state.npz") as a, \
            np.load(sorted(expected.glob("checkpoints/round-*"))[-1] / "state.npz") as b:
        assert {k: a[k].tobytes() for k in a.files} == {k: b[k].tobytes() for k in b.files}
    rows = [{k: v for k, v in final_arrays(f).items() if k != "state.npz"}
            for f in (folder, expected)]
    assert rows[0] == rows[1]


@pytest.mark.slow
def test_a_users_task_and_method_run_as_fedaxs_own_do(project, capsys):
    fed("run", "my_tasks.py:reviews", "my_methods.py:fedmine", *SHORT, "rate=0.2", "spread=2.0",
        "num_local_steps=3")
    (folder,) = (project / "fedax-runs").iterdir()
    assert folder.name.startswith("reviews-fedmine-2")
    out = capsys.readouterr().out
    assert "fedmine on reviews: 6 clients, 24 training examples" in out
    assert "reviews is from my_tasks.py" in out
    assert "Your task reviews does not have presets; settings have defaults" in out
    config = saved(folder)
    assert (config["task"], config["algorithm"], config["preset"]) == ("reviews", "fedmine", "none")
    assert config["task_options"] == {"spread": 2.0, "num_clients": 6}  # defaults, too
    assert config["algorithm_options"] == {"rate": 0.2, "num_local_steps": 3}
    source = config["task_source"]
    assert (source["path"], source["name"]) == (str(project / "my_tasks.py"), "reviews")
    assert source["sha256"] == sha256(project / "my_tasks.py")
    assert source["imports"] == {"sizes.py": sha256(project / "sizes.py")}
    assert config["algorithm_source"]["sha256"] == sha256(project / "my_methods.py")
    assert config["algorithm_source"]["imports"] == {}
    copies = {path.name.partition("-")[2]: path.read_bytes() for path in folder.glob("source/*")}
    assert set(copies) == {"my_tasks.py", "my_methods.py", "sizes.py"}
    assert copies["my_tasks.py"] == (project / "my_tasks.py").read_bytes()
    page = (folder / "report.html").read_text("utf-8")
    assert "<h1>fedmine on reviews</h1>" in page
    assert f"{project / 'my_methods.py'}: fedmine, SHA-256 {sha256(project / 'my_methods.py')}" \
        in page
    assert (project / "imported.txt").read_text() == "tasks "  # once, and without its script
    # The same numbers as from Python.
    sys.path.insert(0, str(project))
    import my_tasks

    task = my_tasks.reviews(spread=2.0)
    sys.path.remove(str(project))
    result = fedax.train(task, fedax.fedavg(task.model, 0.2, num_local_steps=3), num_rounds=4,
                         cohort_size=2)
    assert read_metrics(folder)[-1]["train_loss"] == result.history["train_loss"][-1]


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it, nothing is cleaned up after it."""


@pytest.mark.slow
def test_feddyn_from_a_file_killed_and_resumed_elsewhere_equals_uninterrupted(
    project, tmp_path, monkeypatch
):
    """Its clients keep a state each, so what was lost would show."""
    shutil.copy(EXAMPLES / "methods.py", project / "methods.py")
    line = ("run", "my_tasks.py:reviews", "methods.py:feddyn", "--rounds", "9", "--cohort-size",
            "3", "--set", "checkpoint_every=2", "evaluate_every=3", "proximal_weight=0.3",
            "num_local_steps=2", "client_learning_rate=exponential_decay(0.1, 0.9)")
    show = Display.show

    def show_or_die(self, report):
        show(self, report)
        if report.metrics["round"] == 5:
            raise Killed

    with jax.numpy_dtype_promotion("standard"):
        fed(*line, "--out", "whole")
        with monkeypatch.context() as patch:
            patch.setattr(Display, "show", show_or_die)
            with pytest.raises(Killed):
                run_command([*line, "--out", "killed"])
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        monkeypatch.chdir(elsewhere)
        fed("run", "--resume", project / "killed")
        fed("run", "--config", project / "whole" / "config.json", "--out", "again")
    assert len(final_arrays(project / "whole")) > 1  # rows of clients
    assert_same_run(project / "killed", project / "whole")
    assert_same_run(elsewhere / "again", project / "whole")


@pytest.mark.slow
def test_changed_source_is_a_sentence_and_force_goes_on(project, capsys):
    fed("run", "my_tasks.py:reviews", "my_methods.py:fedmine", *SHORT, "--out", "r")
    old = sha256(project / "my_methods.py")
    (project / "my_methods.py").write_text(METHODS + "\n# another line\n")
    (project / "sizes.py").write_text("SIZES = (3, 5, 4)  # the same\n")
    capsys.readouterr()
    fed("run", "--resume", "r", "--rounds", "6", status=2)
    error = capsys.readouterr().err
    assert f"{project / 'my_methods.py'} (a copy is in r/source/{old[:12]}-my_methods.py)" in error
    assert f"{project / 'sizes.py'} (a copy is in " in error
    assert "fedax run --resume r --force" in error
    assert error.count("\n") == 1
    assert saved(Path("r"))["num_rounds"] == 4
    fed("theory", "--run", "r", status=2)  # what it would say is of the code as it is now
    assert "has changed since" in capsys.readouterr().err
    loaded = fedax.load_run("r")
    with pytest.raises(ConfigError, match=r"changed .*pass both yourself: fedax\.load_run\("):
        _ = loaded.algorithm
    given = fedax.load_run("r", task=fedax.load_task("quadratics"), algorithm=object())
    assert (given.task.name, type(given.algorithm)) == ("quadratics", object)
    fed("run", "--config", "r/config.json", "--rounds", "2", "--out", "repeated")
    assert f"Changed since r/config.json was written: {project / 'my_methods.py'}" in \
        capsys.readouterr().out
    fed("run", "--resume", "r", "--rounds", "6", "--force")
    config = saved(Path("r"))
    source = config["algorithm_source"]
    assert source["sha256"] == sha256(project / "my_methods.py") != old
    assert source["changed_after"] == config["task_source"]["changed_after"] == [4]
    assert config["num_rounds"] == len(read_metrics(Path("r"))) == 6
    names = {path.name for path in Path("r/source").iterdir()}
    assert {f"{old[:12]}-my_methods.py", f"{source['sha256'][:12]}-my_methods.py"} <= names
    assert "a different version until round 4" in Path("r/report.html").read_text("utf-8")
    fed("run", "--resume", "r", "--rounds", "7")  # nothing has changed any more
    (project / "my_tasks.py").rename(project / "moved.py")
    capsys.readouterr()
    for words in ((), ("--force",)):
        fed("run", "--resume", "r", *words, status=2)
        error = capsys.readouterr().err
        assert f"{project / 'my_tasks.py'}, which defines reviews of this run, no longer" in error
    written = (Path("r") / "config.json").read_text().replace("my_tasks.py", "moved.py")
    (Path("r") / "config.json").write_text(written)
    fed("run", "--resume", "r", "--rounds", "8", status=2)  # written by hand: whose code is it?
    assert "was not written by your fedax on this machine" in capsys.readouterr().err
    fed("run", "--resume", "r", "--rounds", "8", "--force")
    fed("run", "--resume", "r", "--rounds", "9")


SENTENCES = {
    "no file": ("my_task.py:reviews", "my_task.py does not exist. Did you mean my_tasks.py?"),
    "no name": ("my_tasks.py:review", "Unknown name 'review' in my_tasks.py. Did you mean "
                "'reviews'?"),
    "no NAME": ("my_tasks.py", "my_tasks.py:NAME, such as my_tasks.py:reviews"),
    "no word": ("my_tasks.py:", "is neither FILE.py:NAME nor package.module:NAME"),
    "Windows": (r"C:\x\my.py:name", r"The file C:\x\my.py does not exist"),
    "no module": ("mytasks:reviews", "the module 'mytasks' was not found"),
    "a module": ("my_tasks.py:np", "my_tasks.py:np is a module, but a task is"),
    "a dictionary": ("my_tasks.py:a_dictionary", "returned a dict, but a task is a fedax.Task"),
    "objects": ("my_tasks.py:objects", "The array 'name' holds objects"),
    "file lost": ("my_tasks.py:missing_file", "failed when it was called: FileNotFoundError: "
                  "reviews.csv not found"),
    "method first": ("my_methods.py:fedmine", "it is a method, not a task. Write a task before it: "
                     "fedax run TASK my_methods.py:fedmine"),
    "a preset": ("my_tasks.py:reviews --preset reddi2021", "task reviews does not have presets"),
    "large cohort": ("my_tasks.py:reviews --cohort-size 10",
                     "cohort_size is 10, but the task reviews has only 6"),
    "unknown": ("my_tasks.py:small fedavg --set num_clients=3",
                "Unknown setting 'num_clients' of a run of fedavg on small"),
    "spelling": ("my_tasks.py:reviews fedavg --set spraed=3", "Did you mean 'spread'?"),
    "no whole number": ("my_tasks.py:reviews fedavg --set num_clients=2.5",
                        "my_tasks.py:reviews: num_clients must be a whole number, but is 2.5"),
    "syntax": ("broken.py:x", "broken.py has a syntax error: invalid syntax (line 2 of"),
    "import": ("needy.py:x", "needy.py needs the module 'nowhere', which was not found (line 3 of"),
    "name": ("undefined.py:x", "undefined.py failed when it was imported: NameError: name 'y' is "
             "not defined (line 1 of"),
    "script": ("script.py:x", "script.py ended the program when it was imported (line 2 of"),
    "sibling": ("beside.py:x", "has a syntax error: invalid syntax (line 2 of"),
    "nothing": ("empty.py:x", "empty.py does not define 'x', nor any function"),
    "needed": ("my_tasks.py:reviews my_methods.py:needs --set rate=0.1",
               "my_methods.py:needs needs steps, which has no default: --set steps=VALUE"),
    "both needed": ("my_tasks.py:reviews my_methods.py:needs",
                    "needs rate and steps, which have no defaults: --set rate=VALUE steps=VALUE"),
    "range": ("my_tasks.py:small my_methods.py:fedmine --cohort-size 2 --set rate=-1",
              "my_methods.py:fedmine: rate must be above 0, but is -1.0"),
    "no number": ("my_tasks.py:small my_methods.py:fedmine --set rate=fast",
                  "my_methods.py:fedmine: rate must be a number, but is 'fast'"),
    "no schedule": ("my_tasks.py:small my_methods.py:scheduled --set rate=constant(-1)",
                    "my_methods.py:scheduled: rate: value must be a finite number at least 0"),
    "built": ("my_tasks.py:small my_methods.py:built",
              "my_methods.py:built is a FederatedAlgorithm, but a method is a function of the"),
    "task second": ("my_tasks.py:small my_tasks.py:small", "is a task, but a method was expected"),
    "no function": ("my_tasks.py:small my_methods.py:number", "my_methods.py:number is 3, but a"),
    "no model": ("my_tasks.py:small my_methods.py:no_model", "does not take a model, but"),
    "a task's function": ("my_tasks.py:small my_tasks.py:reviews", "does not take a model"),
    "None": ("my_tasks.py:small my_methods.py:returns_none --cohort-size 2",
             "my_methods.py:returns_none returned None (is there a return?), but a method is"),
    "fails": ("my_tasks.py:small my_methods.py:fails --cohort-size 2",
              "my_methods.py:fails failed when it was called: KeyError: 'rate' (line 67 of"),
    "client": ("my_tasks.py:small my_methods.py:bad_client --cohort-size 2", "my_methods.py"),
    "wrapper": ("my_tasks.py:small elastik+my_methods.py:fedmine",
                "Unknown algorithm 'elastik'. Did you mean 'elastic'?"),
    "behind": ("my_tasks.py:small my_methods.py:fedmine+elastic", "Wrappers come first"),
    "both": ("my_tasks.py:reviews my_methods.py:shares --set num_clients=2",
             "Setting 'num_clients' belongs to the task and the algorithm; write "
             "task.num_clients or algorithm.num_clients"),
    "and the run": ("my_tasks.py:reviews my_methods.py:shares --set seed=2",
                    "write run.seed or algorithm.seed"),
    "no such part": ("my_tasks.py:reviews fedavg --set data.spread=2", "Unknown setting"),
    "force alone": ("my_tasks.py:reviews --force", "--force needs --resume"),
}
BROKEN = {
    "broken.py": "x = 1\ndef f(:\n", "needy.py": "import sys\n\nimport nowhere\n",
    "undefined.py": "x = y\n", "script.py": "import sys\nsys.exit(3)\n",
    "beside.py": "from broken import x\n", "empty.py": "",
}


@pytest.mark.parametrize("case", SENTENCES)
def test_a_mistake_is_one_sentence(project, capsys, case):
    for name, text in BROKEN.items():
        (project / name).write_text(text)
    line, sentence = SENTENCES[case]
    assert run_command(["run", *line.split(), "--out", "r"]) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert captured.err.startswith("fedax: ")
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert not (project / "r").exists()


@pytest.mark.slow
def test_debug_shows_the_traceback_of_a_users_function():
    with pytest.raises(ConfigError) as raised:
        run_command(["run", "my_tasks.py:small", "my_methods.py:fails", "--cohort-size", "2",
                     "--debug"])
    assert isinstance(raised.value.__cause__, KeyError)


@pytest.mark.slow
def test_a_failure_later_is_named_as_the_users(capsys):
    fed("run", "my_tasks.py:with_reference", "fedavg", *SHORT, "--out", "r", status=1)
    error = capsys.readouterr().err
    assert "Your code failed: ZeroDivisionError: division by zero (line 3" in error
    assert "my_tasks.py" in error


def test_a_key_that_fits_two_is_told_apart():
    config = resolve(
        task="my_tasks.py:reviews", algorithm="my_methods.py:shares",
        settings=parse_settings(["task.num_clients=5", "algorithm.num_clients=2", "run.seed=7",
                                 "algorithm.seed=8", "spread=3"]),
    )
    assert config.task_options == {"num_clients": 5, "spread": 3}
    assert config.algorithm_options == {"num_clients": 2, "seed": 8}
    assert config.seed == 7


@pytest.mark.slow
def test_a_file_of_settings_names_files_beside_it(project, tmp_path, monkeypatch):
    (project / "run.toml").write_text(
        'task = "my_tasks.py:reviews"\nalgorithm = "elastic+my_methods:shares"\nseed = 4\n'
        "[task_options]\nnum_clients = 5\n[algorithm_options]\nseed = 6\nelasticity = 0.3\n"
    )
    monkeypatch.chdir(tmp_path)
    config = resolve(config_file=project / "run.toml")
    assert (config.task, config.algorithm, config.seed) == ("reviews", "elastic+shares", 4)
    assert config.task_options == {"num_clients": 5}
    assert config.algorithm_options == {"seed": 6, "elasticity": 0.3}
    assert config.algorithm_source.path == str(project / "my_methods.py")
    assert config.algorithm_source.module == "my_methods"
    (project / "run.toml").write_text("task = 3\n")
    with pytest.raises(ConfigError, match="must be a name, but is 3"):
        resolve(config_file=project / "run.toml")


@pytest.mark.slow
def test_wrappers_around_a_file_whose_path_has_plus_signs_and_spaces(project):
    folder = project / "c++ and more"
    folder.mkdir()
    shutil.copy("my_methods.py", folder / "my+methods.py")
    text = "local_update_decay+elastic+c++ and more/my+methods.py:fedavg"
    fed("run", "my_tasks.py:reviews", text, *SHORT, "client_learning_rate=0.2", "patience=1",
        "window=1", "elasticity=0.3", "num_local_steps=2", "--out", "r")
    config = saved(Path("r"))
    assert config["algorithm"] == "local_update_decay+elastic+my+methods.fedavg"  # fedax has one
    assert config["algorithm_source"]["path"] == str(folder / "my+methods.py")
    loaded = load_config(Path("r/config.json"))
    assert algorithm_parts(loaded.algorithm, loaded.algorithm_source)[:2] == [
        "local_update_decay", "elastic"
    ]
    task = sources.load(loaded.task_source)()
    expected = fedax.local_update_decay(
        lambda client_rate, server_rate: fedax.elastic(
            fedax.fedavg(task.model, client_rate, server_rate, num_local_steps=2), task.model, 0.3
        ),
        task.model, client_learning_rate=0.2, patience=1, window=1,
    )
    result = fedax.train(task, expected, num_rounds=4, cohort_size=2)
    assert read_metrics(Path("r"))[-1]["train_loss"] == result.history["train_loss"][-1]


@pytest.mark.slow
def test_a_schedule_of_a_wrappers_rates_is_refused_as_for_fedaxs_own():
    config = resolve(
        task="my_tasks.py:small", algorithm="local_update_decay+my_methods.py:needs",
        settings={"rate": 0.1, "steps": 2, "server_decay": 0.5},
    )
    # It has no rate of those names that could fall.
    task = sources.load(config.task_source)
    with pytest.raises(ConfigError, match="are both None"):
        build_algorithm(
            config.algorithm, config.algorithm_options, task.model, config.algorithm_source
        )


@pytest.mark.slow
def test_presets_of_ours_with_a_method_of_the_users(capsys):
    config = resolve(task="quadratics", algorithm="elastic+my_methods.py:fedmine")
    assert (config.preset, config.num_rounds, config.cohort_size) == ("quick", 200, 10)
    assert config.task_options == {"model": "random"}
    assert config.algorithm_options == {"batch_size": 1, "num_local_steps": 10, "order": "iid"}
    paper = resolve(task="shakespeare", algorithm="my_methods.py:by_name", preset="reddi2021")
    assert (paper.num_rounds, paper.algorithm_options) == (1200, {})  # it takes no local options
    # A method of the user's is not ours of that name.
    named = resolve(task="quadratics", algorithm="my_methods.py:fedavg")
    assert named.algorithm == "my_methods.fedavg"
    assert "client_learning_rate" not in named.algorithm_options
    fed("run", "quadratics", "my_methods.py:fedmine", "--rounds", "1", "--out", "r")
    assert "Preset quick supplies the settings of the run and of local training; " \
        "fedmine's own settings have their defaults" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("name", ["instance", "partial", "by_name", "scheduled", "fedmine"])
def test_methods_of_every_kind(name):
    config = resolve(
        task="my_tasks.py:small", algorithm=f"my_methods.py:{name}", settings={"rate": 0.3}
    )
    task = sources.load(config.task_source)
    algorithm = build_algorithm(
        config.algorithm, config.algorithm_options, task.model, config.algorithm_source
    )
    expected = fedax.fedavg(task.model, 0.3)
    states = [a.init(task.model.init(jax.random.key(0))) for a in (algorithm, expected)]
    messages = [a.exchanges[0].broadcast(s)
                for a, s in zip((algorithm, expected), states, strict=True)]
    assert messages[0].client_learning_rate == messages[1].client_learning_rate == 0.3
    rate = algorithm_settings(config.algorithm, config.algorithm_source)["rate"]
    assert rate.default == {"partial": 0.2}.get(name, 0.1)


@pytest.mark.quick
def test_optimizers_and_schedules_as_text():
    config = resolve(
        task="my_tasks.py:small", algorithm="my_methods.py:with_optimizer",
        settings=parse_settings(["server=yogi(0.01)", "note=constant(1)"]),
    )
    source = config.algorithm_source
    algorithm = build_algorithm(
        config.algorithm, config.algorithm_options, quadratic_model(2), source
    )
    state = algorithm.init(quadratic_model(2).init(jax.random.key(0)))
    ours = fedax.fedyogi(quadratic_model(2), adaptivity=0.01).init(state.params)
    assert jax.tree.structure(state) == jax.tree.structure(ours)


@pytest.mark.quick
@pytest.mark.parametrize("text", ["sgd(0.1, 0.9)", "sgdm(0.9)", "mime_sgd(0.1)"])
def test_an_optimizer_as_text_with_a_rate_is_told_where_the_rate_is(text):
    with pytest.raises(ValueError, match=r"valid|Unknown") as told:
        parse("client_optimizer", text, optax.GradientTransformation)
    assert str(told.value).endswith(
        ". The learning rate is a setting of its own, client_learning_rate or "
        "server_learning_rate; SGD with momentum is heavy_ball(0.9)."
    )
    assert ".." not in str(told.value)


CASES = [
    (float, 1, 1.0), (float | None, None, None), (int, 3, 3), (str, 5, "5"), (str, True, "true"),
    (str, "constant(1)", "constant(1)"), (Any, "a word", "a word"), (Any, "(1, 2)", (1, 2)),
    (Any, "[1, 'a']", [1, "a"]), (Any, "(1, 2", "(1, 2"), (tuple[float, ...], "(1, 2)", (1.0, 2.0)),
    (tuple[int, ...], "(1, 2)", (1, 2)), (Literal["a", "none"], None, "none"),
    (fedax.schedules.ScheduleOrNumber, "0.5", 0.5), ("Schedule | None", "0.5", 0.5),
    (int | jax.Array, 2, 2), (Path | None, "x.csv", Path("x.csv")),
    (float | jax.Array, 2, 2.0),
    (jax.Array, 0.5, 0.5),
]


@pytest.mark.quick
@pytest.mark.parametrize(("hint", "given", "expected"), CASES)
def test_values_by_their_annotation(hint, given, expected):
    value = parse("x", given, hint)
    assert value == expected
    assert type(value) is type(expected)
    check_kind("x", value, hint)


@pytest.mark.parametrize("hint", [float, fedax.schedules.ScheduleOrNumber, Any, "Schedule"])
def test_a_call_of_a_schedule_is_one_wherever_it_is_not_text(hint):
    schedule = parse("x", "staircase_decay(1.0, 0.5, 10)", hint)
    assert float(schedule(np.int32(20))) == 0.25
    check_kind("x", schedule, hint)


@pytest.mark.parametrize(
    ("hint", "value", "words"),
    [(int, 2.5, "a whole number"), (int | None, True, "a whole number or none"),
     (bool, 1, "true or false"), (Literal["a", "b"], "c", "a or b"), (float, None, "a number"),
     (float | jax.Array, "x", "a number"),
     (optax.GradientTransformation | None, 1, "an optimizer or none")],
)
def test_values_that_their_annotation_excludes(hint, value, words):
    with pytest.raises(ValueError, match=f"^x must be {words}.*, but is "):
        check_kind("x", value, hint)


def test_types_in_plain_words():
    assert describe(fedax.schedules.ScheduleOrNumber) == "number or schedule"
    assert describe(optax.GradientTransformation | None) == "optimizer or none"
    assert describe(fedax.BaseOptimizer) == "base optimizer"
    assert describe(Callable[[int], int]) == "schedule"
    assert describe(dict[str, int] | None) == "dict[str, int] | None"
    assert describe("Later") == "Later"
    assert describe(Any) == "any value"


def package(folder, name, version, points, **files):
    """An installed distribution with entry points, and its modules."""
    folder.mkdir(exist_ok=True)
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(textwrap.dedent(points))
    for module, text in files.items():
        path = folder.joinpath(*module.split("__")).with_suffix(".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Packages that offer tasks and methods, one of them broken."""
    folder = tmp_path / "site-packages"
    package(
        folder, "shop-tasks", "1.2",
        """
        [fedax.tasks]
        shops = shop.tasks:reviews
        shop-floor = shop.tasks:small
        quadratics = shop.tasks:small
        twice = shop.tasks:small
        sizes = shop.sizes:SIZES
        [fedax.algorithms]
        fedmine = shop.methods:fedmine
        needs = shop.methods:needs
        """,
        shop____init__="", shop__methods=METHODS, shop__sizes="SIZES = (3, 5, 4)\n",
        shop__tasks=TASKS.replace("from sizes", "from .sizes").replace("imported.txt", "i.txt"),
    )
    package(
        folder, "broken-things", "0.1",
        """
        [fedax.tasks]
        broken = broken_things:task
        twice = broken_things:task
        [fedax.algorithms]
        lost = broken_things:method
        """,
        broken_things="import nowhere_to_be_found\n",
    )
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.mark.slow
def test_entry_points_run_by_name(installed, project, tmp_path, monkeypatch, capsys):
    fed("run", "shops", "elastic+fedmine", *SHORT, "--out", "r")
    config = saved(Path("r"))
    assert (config["task"], config["algorithm"]) == ("shops", "elastic+fedmine")
    source = config["task_source"]
    assert (source["module"], source["name"]) == ("shop.tasks", "reviews")
    assert (source["distribution"], source["version"]) == ("shop-tasks", "1.2")
    assert source["imports"] == {"shop/sizes.py": sha256(installed / "shop" / "sizes.py")}
    monkeypatch.chdir(tmp_path)
    fed("run", "--resume", project / "r", "--rounds", "6")
    (installed / "shop_tasks-1.2.dist-info").rename(installed / "shop_tasks-1.3.dist-info")
    metadata = installed / "shop_tasks-1.3.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("1.2", "1.3"))
    capsys.readouterr()
    fed("run", "--resume", project / "r", status=2)
    assert "has changed since it was started: shop-tasks 1.3" in capsys.readouterr().err
    fed("run", "broken", status=2)
    assert "broken of broken-things 0.1 needs the module 'nowhere_to_be_found'" in \
        capsys.readouterr().err
    fed("run", "twice", status=2)
    error = capsys.readouterr().err
    assert "Several packages provide the task 'twice'; choose one: " in error
    assert "shop.tasks:small (shop-tasks 1.3)" in error
    fed("run", "shop-flor", status=2)
    assert "Did you mean 'shop-floor'?" in capsys.readouterr().err


def test_entry_points_are_listed_with_where_they_come_from(installed, capsys):
    fed("list", "tasks")
    out = " ".join(capsys.readouterr().out.split())
    assert "description models presets from" in out
    assert "broken, from broken-things 0.1: broken of broken-things 0.1 needs the module " \
        "'nowhere_to_be_found'" in out
    fed("list", "tasks", "--json")
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)
            if row["from"] != "fedax"}
    assert rows["shops"]["from"] == "shop-tasks 1.2"
    assert rows["shops"]["description"] == "Reviews of shops."
    assert rows["shops"]["settings"] == ["num_clients", "spread", "validation"]
    assert rows["quadratics"]["problem"] == (
        "fedax has one of this name; to use the other, write shop.tasks:small"
    )
    assert "Several packages provide" in rows["twice"]["problem"]
    assert "shop.sizes:SIZES is a tuple, but a task is" in rows["sizes"]["problem"]


@pytest.mark.slow
def test_methods_of_packages_are_listed_with_what_they_send(installed, capsys):
    fed("list", "algorithms", "--json", "--settings")
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["fedmine"]["from"] == "shop-tasks 1.2"
    assert rows["fedmine"]["copies"] == rows["fedavg"]["copies"] == 2
    assert rows["fedmine"]["description"] == "FedAvg by another name."
    assert rows["fedmine"]["settings"][0] == {
        "name": "rate", "type": "number", "default": 0.1, "needed": False, "meaning": "gamma > 0."
    }
    assert "needs rate and steps" in rows["needs"]["problem"]
    assert rows["needs"]["settings"][0]["needed"]
    assert "nowhere_to_be_found" in rows["lost"]["problem"]
    fed("list", "algorithms")
    out = capsys.readouterr().out
    assert "lost, from broken-things 0.1: lost of broken-things 0.1 needs" in " ".join(out.split())


@pytest.mark.slow
def test_modules_are_found_from_the_working_folder_and_later_from_another(
    project, tmp_path, monkeypatch, capsys
):
    (project / "lab").mkdir()
    (project / "lab" / "__init__.py").write_text("")
    (project / "lab" / "sizes.py").write_text("SIZES = (2, 2)\n")
    (project / "lab" / "tasks.py").write_text(TASKS.replace("from sizes", "from lab.sizes"))
    fed("run", "lab.tasks:reviews", "fedavg", *SHORT, "--out", "r")
    source = saved(Path("r"))["task_source"]
    assert (source["module"], source["path"]) == ("lab.tasks", str(project / "lab" / "tasks.py"))
    assert set(source["imports"]) == {"lab/__init__.py", "lab/sizes.py"}
    assert str(project) not in sys.path
    monkeypatch.chdir(tmp_path)
    fed("run", "--resume", project / "r", "--rounds", "5")
    (project / "lab" / "sizes.py").write_text("SIZES = (2, 2, 2)\n")
    capsys.readouterr()
    fed("run", "--resume", project / "r", status=2)
    assert str(project / "lab" / "sizes.py") in capsys.readouterr().err


@pytest.mark.slow
def test_two_folders_with_files_and_siblings_of_the_same_names(project, tmp_path):
    """Each finds its own, also when it imports only as it is called."""
    for name, number in (("first", 1), ("second", 2)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "helpers.py").write_text(f"NUMBER = {number}\n")
        (folder / "later.py").write_text(f"NUMBER = {number}\n")
        (folder / "same.py").write_text(
            "import helpers\nimport fedax\n\n\ndef method(model):\n"
            "    import later\n\n    assert later.NUMBER == helpers.NUMBER == sizes()\n"
            "    return fedax.fedavg(model, 0.1 * later.NUMBER)\n\n\n"
            f"def sizes():\n    return {number}\n"
        )
    model = quadratic_model(2)
    params = model.init(jax.random.key(0))
    for _ in range(2):
        for name, number in (("first", 1), ("second", 2)):
            title, source = sources.find("algorithm", f"{tmp_path / name}/same.py:method", [])
            algorithm = build_algorithm(title, {}, model, source)
            message = algorithm.exchanges[0].broadcast(algorithm.init(params))
            assert message.client_learning_rate == pytest.approx(0.1 * number)
            assert set(source.imports) == {"helpers.py", "later.py"}
    assert all(str(tmp_path) not in path for path in sys.path)


def test_a_file_is_imported_once_and_anew_when_it_has_changed(project):
    _, source = sources.find("task", "my_tasks.py:reviews", [])
    reviews = sources.load(source)
    assert sources.load(source) is reviews
    assert reviews.__annotations__["spread"] is float  # as the file says, not as fedax's own do
    assert sources.changes(source) == []
    (project / "sizes.py").write_text("SIZES = (7,)\n")
    assert sources.changes(source) == [str(project / "sizes.py")]
    assert sources.load(source)().train.num_examples == 6 * 7
    assert "my_tasks" not in fedax.tasks.registry.TASKS


@pytest.mark.slow
def test_dataclasses_and_names_for_type_checkers_only(project):
    (project / "typed.py").write_text(textwrap.dedent(
        '''
        from __future__ import annotations
        import dataclasses
        from typing import TYPE_CHECKING, ClassVar
        import fedax
        if TYPE_CHECKING:
            from fedax import Model
            from fedax.optimizers.schedules import ScheduleOrNumber

        @dataclasses.dataclass
        class Options:
            kind: ClassVar[str] = "a"
            rate: float = 0.1

        def method(model: Model, rate: ScheduleOrNumber = Options().rate, **options):
            return fedax.fedavg(model, rate, **options)
        '''
    ))
    config = resolve(
        task="my_tasks.py:small", algorithm="typed.py:method",
        settings={"rate": "staircase_decay(1.0, 0.5, 10)", "batch_size": 3},
    )
    build_algorithm(
        config.algorithm, config.algorithm_options, quadratic_model(2), config.algorithm_source
    )
    settings = algorithm_settings(config.algorithm, config.algorithm_source)
    assert set(settings) == {"rate", *LocalOptions.__annotations__}
    assert settings["rate"].row()["type"] == "number or schedule"


@pytest.mark.slow
def test_advice_for_a_run_of_a_users_method(capsys):
    fed("run", "my_tasks.py:reviews", "my_methods.py:fedavg", *SHORT, "num_local_steps=2", "--out",
        "r")
    capsys.readouterr()
    fed("theory", "--run", "r", "--json")
    assert "Clients of my_methods.fedavg in this run do more than gradient steps" in \
        capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "sentence"),
    [({"path": "my_tasks.py"}, "is not the source of a task or a method"),
     ({"colour": "red"}, "is not the source of a task or a method"),
     ({"name": "review"}, "Unknown name 'review' in")],
)
def test_an_edited_record_is_checked(project, change, sentence):
    config = dataclasses.asdict(resolve(task="my_tasks.py:small", algorithm="fedavg"))
    (project / "config.json").write_text(json.dumps(config))
    assert load_config(project / "config.json", force=True).task_source.name == "small"
    config["task_source"] |= change
    (project / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=sentence):
        load_config(project / "config.json", force=True)


def test_a_folder_from_before_there_were_sources_is_read(project):
    config = resolve(task="quadratics", algorithm="fedavg")
    values = dataclasses.asdict(config)
    del values["task_source"], values["algorithm_source"]
    (project / "config.json").write_text(json.dumps(values))
    assert load_config(project / "config.json") == config


@pytest.mark.quick
@pytest.mark.parametrize("name", [*ALGORITHMS, *WRAPPERS])
def test_every_setting_of_ours_has_a_type_and_a_meaning(name):
    for setting in algorithm_settings(name).values():
        row = setting.row()
        assert row["type"], row
        assert len(row["meaning"]) > 5, row
        assert "as for" not in row["meaning"], row
        assert not row["needed"], row


def test_defaults_that_are_shown_are_those_that_apply(monkeypatch):
    """What the factories hand on to local training when nobody sets anything."""
    handed = {}
    checked = LocalTraining.checked.__func__

    def spy(cls, model, rate, options):
        handed.update(options)
        return checked(cls, model, rate, options)

    monkeypatch.setattr(LocalTraining, "checked", classmethod(spy))
    differ = {}
    for name, info in ALGORITHMS.items():
        handed.clear()
        info.factory(quadratic_task().model, **({"where": ()} if name == "fedrep" else {}))
        shown = algorithm_settings(name)
        for key in LocalOptions.__annotations__:
            default = shown[key].default
            given = handed.get(key, LocalTraining._field_defaults[key])
            if callable(given):
                given = int(given(np.int32(0)))
            if default != given:
                differ[name, key] = (default, given)
    # These two say so in the meaning; maml keeps its own steps to itself.
    assert differ.pop(("fedprox", "proximal_weight")) == (None, 0.01)
    assert "proximal_weight is 0.01" in algorithm_settings("fedprox")["proximal_weight"].meaning
    assert differ.pop(("minibatch_sgd", "num_local_steps")) == (None, 1)
    assert differ.pop(("maml", "num_local_steps")) == (1, None)
    assert differ == {}


def test_every_setting_of_the_run_has_a_type_and_a_meaning():
    settings = run_settings()
    assert {"seed", "num_rounds", "sampling", "dropout"} <= set(settings)
    for setting in settings.values():
        assert setting.row()["type"]
        assert len(setting.meaning) > 5
        assert setting.default is not NEEDED


def test_docstrings_of_several_styles():
    def method(model, rate=0.1, steps=3, momentum=0.9, other=1.0, **options):
        """One line.

        Args:
          model: the problem.
          rate (float): gamma,
            above 0.
          steps, momentum: both.

        Returns:
          rate: not this.
        """

    found = settings_of(method, ("model",), options=LocalOptions)
    assert found["rate"].meaning == "gamma, above 0."
    assert found["steps"].meaning == found["momentum"].meaning == "both."
    assert found["other"].meaning == ""
    assert found["steps"].row()["type"] == "number"  # no annotation: 3 may also have been 3.5
    assert found["batch_size"].default == 20
    assert settings_of(functools.partial(method, rate=0.5))["rate"].default == 0.5

    def named(model, proximal_weight: float = 0.1, **options):
        """An option by a name of its own, and nothing said of it."""

    found = settings_of(named, ("model",), options=LocalOptions)
    assert found["proximal_weight"].default == 0.1
    assert found["proximal_weight"].meaning.startswith("mu >= 0 of FedProx")
    assert list(found) == ["proximal_weight", *(set_ for set_ in LocalOptions.__annotations__
                                                if set_ != "proximal_weight")]


@pytest.mark.slow
def test_help_of_a_run_shows_what_can_be_set(capsys):
    with pytest.raises(SystemExit) as stopped:
        run_command(["run", "shakespeare", "fedyogi", "--help"])
    assert stopped.value.code == 0
    out = capsys.readouterr().out
    assert "--cohort-size N" in out
    assert "  adaptivity  number; default 0.001\n      tau > 0. If it is large compared" in out
    assert "  client_learning_rate  number or schedule; default 0.1; preset quick: 3.16\n" in out
    assert "  model  small, reddi2021, gru or mlp; default small\n" in out
    assert "  dropout  number; default 0.0\n" in out
    with pytest.raises(SystemExit) as stopped:
        run_command(["run", "my_tasks.py:reviews", "my_methods.py:needs", "-h"])
    assert stopped.value.code == 0
    out = capsys.readouterr().out
    assert "  steps  whole number; required\n" in out
    assert "  spread  number; default 1.0\n      how far the shops lie apart.\n" in out
    with pytest.raises(SystemExit) as stopped:
        run_command(["run", "shakespeare", "fedyogy", "--help"])
    assert stopped.value.code == 2
    assert "Did you mean 'fedyogi'?" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stopped:
        run_command(["run", "--help"])
    assert stopped.value.code == 0


@pytest.mark.parametrize(("run", "reason"), [
    (["emnist-autoencoder", "scaffold"],
     "Preset 'quick' of task emnist-autoencoder does not have settings for scaffold"),
    (["shakespeare", "fedyogi", "--preset", "papr"], "Unknown preset 'papr' of task shakespeare."),
    (["my_tasks.py:reviews", "my_methods.py:needs"], "steps"),
])
def test_help_of_a_run_says_why_it_shows_no_preset(run, reason, capsys):
    with pytest.raises(SystemExit) as stopped:
        run_command(["run", *run, "--help"])
    assert stopped.value.code == 0
    said = " ".join(capsys.readouterr().out.split())
    *_, end = said.partition("The preset's values cannot be shown. ")
    assert reason in end
    assert "; preset " not in said


@pytest.mark.slow
def test_one_method_or_task_is_listed_with_its_settings(capsys):
    fed("list", "algorithms", "fedavg")
    out = capsys.readouterr().out
    assert "Settings of fedavg, for --set KEY=VALUE:" in out
    assert "  batch_size  whole number; default 20\n      B >= 1" in out
    fed("list", "algorithms", "my_methods.py:fedmine", "--json")
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["from"], row["copies"]) == ("my_methods.py:fedmine", 2)
    assert row["settings"][0]["meaning"] == "gamma > 0."
    fed("list", "tasks", "my_tasks.py:reviews", "--json")
    (row,) = json.loads(capsys.readouterr().out)
    assert row["description"] == "Reviews of shops."
    names = [setting["name"] for setting in row["settings"]]
    assert names == ["num_clients", "spread", "validation"]
    fed("list", "datasets", "--settings", status=2)
    assert "--settings are for tasks and algorithms" in capsys.readouterr().err
    fed("list", "algorithms", "fedavgg", status=2)
    assert "Did you mean 'fedavg'?" in capsys.readouterr().err
