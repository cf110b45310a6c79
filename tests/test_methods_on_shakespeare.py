"""Every method by its name on the embedded task, and the algorithms' names themselves."""

import json

import numpy as np
import pytest

from fedax.algorithms.registry import ALGORITHMS, WRAPPERS
from fedax.cli.main import run_command
from fedax.experiment.build import algorithm_parts, algorithm_settings
from fedax.experiment.config import resolve
from fedax.experiment.errors import ConfigError
from fedax.experiment.metrics import read_metrics
from fedax.tasks.registry import SHARED, presets

# Of private no training loss is told: tests/test_private.py.
NAMES = [
    *ALGORITHMS, *(name for name in WRAPPERS if name != "private"),
    "local_update_decay+elastic+fedprox",
]
FIRST = ("fedavg",)  # the others are slow, all together


# Those with FedAvg's rate for clients, 3.16, which is for more steps and clients than here.
OWN = (
    "attacked", "compressed", "elastic",
    "fedavg", "fedopt", "local_sgd", "local_update", "local_update_decay",
    "lookahead", "robust",
)


@pytest.mark.optimised
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in FIRST else pytest.mark.slow) for n in NAMES]
)
def test_fifty_rounds_by_name(name, tmp_path, capsys):
    """Its own settings, with cohorts of 2 and few local steps (docs/notebook/log.md has all).

    The loss of the first rounds is near log 90 = 4.5; any method at work gets below 4.
    """
    steps = [] if name in ("maml", "minibatch_sgd", "fomaml", *OWN) else ["num_local_steps=3"]
    steps += ["num_head_steps=1"] * (name == "fedrep")  # before which no loss is measured
    # With two clients some rates overshoot, and rounding decides where the model goes.
    clients = 5 if name in ("fomaml", *OWN) else 2
    line = ["run", "shakespeare", name, "--rounds", "50", "--out", str(tmp_path / "run"), "--set",
            f"cohort_size={clients}", "evaluate_every=0", "checkpoint_every=25", *steps]
    assert run_command(line) == 0, capsys.readouterr().err
    rounds = read_metrics(tmp_path / "run")
    losses = [metrics["train_loss"] for metrics in rounds]
    assert len(losses) == 50
    assert np.isfinite(losses).all()
    assert np.mean(losses[-10:]) < 4.0 < np.mean(losses[:1])
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["total_local_steps"] == sum(m["total_local_steps"] for m in rounds)
    assert (summary["total_local_steps"] > 0) == (name != "server_only")
    assert (summary["bytes_up_per_client"] > 0) == (name != "centralised")


@pytest.mark.quick
def test_every_method_has_settings_of_its_own():
    quick = presets("shakespeare")["quick"]
    assert set(quick) - set(SHARED) == set(ALGORITHMS) | set(WRAPPERS)


@pytest.mark.quick
def test_names_of_wrapped_algorithms():
    assert algorithm_parts("elastic+scaffold") == ["elastic", "scaffold"]
    assert algorithm_parts("elastic+local_update_decay") == [
        "elastic", "local_update_decay", "local_update",
    ]
    keys = algorithm_settings("local_update_decay+elastic+fedprox")
    assert {"window", "elasticity", "rho", "proximal_weight", "num_local_steps"} <= set(keys)
    config = resolve(algorithm="local_update_decay+elastic+fedprox", settings={"rho": 0.1})
    assert config.algorithm_options["window"] == 20
    assert config.algorithm_options["elasticity"] == 0.5
    assert config.algorithm_options["rho"] == 0.1


@pytest.mark.quick
@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("elastik", {}, "Did you mean 'elastic'"),
        ("fedavg+elastic", {}, "fedavg in 'fedavg\\+elastic' is not a wrapper"),
        ("elastic+", {}, "A name is missing beside '\\+' in 'elastic\\+'"),
        ("local_update_decay+local_sgd", {"server_learning_rate": 0.1}, "Unknown setting"),
        ("elastic+fedavg", {"momentum": 0.9}, "a run of elastic\\+fedavg on .* 'momentum'"),
        ("fedavg", {"sampling": "uniforn"}, "Did you mean 'uniform'"),
        ("fedavg", {"dropout": 1.0}, "dropout must be .* below 1, but is 1.0"),
        ("fedavg", {"availability": 0}, "availability must be .* above 0"),
        ("fedavg", {"diagnostics": "yes"}, "diagnostics must be true or false, but is 'yes'"),
    ],
)
def test_names_and_settings_that_are_refused(name, settings, sentence):
    with pytest.raises(ConfigError, match=sentence):
        resolve(algorithm=name, settings=settings)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("mime base=adan(0.9)", "Unknown base optimizer 'adan'. Did you mean 'adam'"),
        ("mime base=sgdm(0.9", "'sgdm(0.9' is not a base optimizer such as"),
        ("mime base=sgdm(1.5)", "momentum must be a finite number"),
        ("fedprox server_optimizer=adan", "Unknown optimizer 'adan'. Did you mean 'adam'"),
        ("local_update gradient_weights=first", "gradient_weights must be all, last or numbers"),
        ("maml num_local_epochs=2", "maml counts local steps, not epochs"),
        ("fedprox rho=0.1 proximal_weight=0.2", "rho = 0.1 and proximal_weight = 0.2 set the same"),
        ("local_update_decay+pfnm seed=1", "receives uploads one by one"),
        ("pfnm model=small", "must be those of a multi-layer perceptron"),
        ("pfnm model=mlp capacity=1000000000", "makes layers of "),
        ("pfnm labels=foo", "labels = 'foo', but the clients' arrays are"),
        ("local_update_decay client_learning_rate=constant(0.1)", "must be a number, because"),
    ],
)
def test_options_that_are_refused_when_built(words, sentence, tmp_path, capsys):
    name, *settings = words.split()
    line = ["run", "shakespeare", name, "--out", str(tmp_path / "run"), "--set", *settings]
    assert run_command(line) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_optimizers_and_weights_from_words(tmp_path):
    for line in (
        "mime base=adam(0.9,0.99,0.001) client_learning_rate=0.03",
        "fedprox server_optimizer=yogi(0.001) server_learning_rate=0.01",
        "fedopt server_optimizer=mime_sgdm(0.9)",
        "local_update_decay+local_sgd window=1",
        "local_update gradient_weights=(1,0.5,0.25)",
        "scaffold num_local_steps=exponential_decay(4,0.5) control_option=I",
    ):
        name, *settings = line.split()
        out = tmp_path / name
        command = ["run", "shakespeare", name, "--rounds", "2", "--out", str(out), "--set",
                   "evaluate_every=0", "cohort_size=2", *settings]
        if not any(setting.startswith("num_local_steps=") for setting in settings):
            command.append("num_local_steps=2")
        assert run_command(command) == 0
        rounds = read_metrics(out)
        assert len(rounds) == 2
        assert "server_learning_rate" not in rounds[0]
