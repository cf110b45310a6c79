"""What is said of runs that train without learning."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.cli.main import run_command
from fedax.rounds.learning import Learning


def data(scale=1.0):
    rng = np.random.default_rng(0)
    clients = {}
    for number in range(10):
        x = rng.normal(size=(20, 5)).astype(np.float32)
        clients[str(number)] = {
            "x": (scale * x).astype(np.float32), "y": (x.sum(1) > 0).astype(np.int32)
        }
    return fedax.FederatedDataset.from_clients(clients)


def init(key):
    return 0.5 * jax.random.normal(key, (5, 2))


def apply(params, x):
    return x @ params.astype(x.dtype)


def said(model, *, rate=0.3, scale=1.0, **options):
    """What a run of eight rounds warns of."""
    task = fedax.Task(model, train=data(scale), test=data(scale))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        fedax.train(
            task, fedax.fedavg(task.model, rate), num_rounds=8, progress=False, **options
        )
    return [str(warning.message) for warning in found if warning.category is RuntimeWarning]


def softmax(params, x):
    return jax.nn.softmax(apply(params, x))


def sigmoid(params, x):
    return jax.nn.sigmoid(apply(params[:, 0], x))


@pytest.mark.slow
@pytest.mark.parametrize(("model", "options", "words"), [
    (fedax.classification(init, apply), {"scale": 255.0}, "'x' has numbers up to"),
    (fedax.classification(init, softmax), {}, "remove the softmax"),
    (fedax.classification(init, sigmoid, activation="sigmoid"), {}, "remove the sigmoid"),
    (fedax.classification(init, apply), {"rate": 1e-9}, "has not fallen"),
    (
        fedax.classification(
            lambda key: {"params": init(key), "batch_stats": {"mean": jnp.zeros(2)}},
            lambda p, x: apply(p["params"], x),
        ), {}, "nn.GroupNorm",
    ),
])
@pytest.mark.parametrize("folder", [False, True])
def test_each_is_said_once_with_its_cure(tmp_path, model, options, words, folder):
    found = said(model, **options, **({"out": tmp_path / "run"} if folder else {}))
    assert len(found) == 1
    assert words in found[0]


def normalised(key):
    stats = {"first": {"mean": jnp.zeros(2)}, "last": {"mean": jnp.zeros(2)}}
    return {"params": init(key), "shift": jnp.zeros(2), "batch_stats": stats}


NORMALISED = fedax.classification(normalised, lambda p, x: apply(p["params"], x) + p["shift"])


def with_statistics(where, rate=0.3):
    return fedax.batch_statistics(
        fedax.fedavg(NORMALISED, rate), NORMALISED, where, lambda params, batch, mask: params
    )


def decayed(build):
    return fedax.local_update_decay(
        build, NORMALISED, client_learning_rate=0.3, server_learning_rate=None
    )


@pytest.mark.parametrize(("algorithm", "words"), [
    (with_statistics("batch_stats"), None),
    (with_statistics(lambda name: name.startswith("batch_stats")), None),
    (fedax.personal(with_statistics("batch_stats"), NORMALISED, "shift"), None),
    (decayed(lambda rate, _: with_statistics("batch_stats", rate)), None),
    (decayed(lambda rate, _: fedax.fedavg(NORMALISED, rate)), "nn.GroupNorm"),
    (fedax.personal(fedax.fedavg(NORMALISED), NORMALISED, "shift"), "nn.GroupNorm"),
    (with_statistics("shift"), "'batch_stats.first.mean', 'batch_stats.last.mean'"),
    (with_statistics("batch_stats.first"), "Add ['batch_stats.last.mean'] to where"),
    (decayed(lambda rate, _: with_statistics("batch_stats.first", rate)),
     "Add ['batch_stats.last.mean'] to where"),
])
def test_statistics_are_named_that_no_method_updates(algorithm, words):
    """`batch_statistics` may be inside others, and choose some statistics only."""
    task = fedax.Task(NORMALISED, data())
    state = fedax.initial_state(task, algorithm)
    found = Learning(task, 0).begin(state, algorithm)
    assert len(found) == (words is not None)
    assert all(words in sentence for sentence in found)


@pytest.mark.slow
@pytest.mark.parametrize("model", [
    fedax.classification(init, apply),
    fedax.classification(lambda key: jnp.zeros((5, 2)), apply),
    fedax.classification(lambda key: jnp.zeros(5), apply, activation="sigmoid"),
    fedax.classification(
        lambda key: init(key)[:, :1], apply, activation="sigmoid", class_weights=[1.0, 9.0]
    ),
])
def test_nothing_is_said_of_a_run_that_learns(model):
    assert said(model) == []


@pytest.mark.quick
def test_zero_parameters_and_unscaled_inputs_are_seen_in_the_loss_after_a_step():
    model = fedax.classification(lambda key: jnp.zeros((5, 2)), apply)
    found = said(model, scale=1e4)
    assert "times that of guessing one of 2 classes (ln 2 = 0.69)" in found[0]
    assert sum("times that of guessing" in sentence for sentence in found) == 1


def test_a_resumed_run_does_not_say_it_again(tmp_path):
    model = fedax.classification(init, softmax)
    assert len(said(model, out=tmp_path / "run")) == 1
    assert said(model, out=tmp_path / "run") == []


@pytest.mark.slow
def test_one_line_on_the_command_line(tmp_path, capsys):
    for rate, count in (("0.1", 0), ("1e-9", 1)):
        assert run_command([
            "run", "digits", "fedavg", "--rounds", "8", "--out", str(tmp_path / rate),
            "--set", f"client_learning_rate={rate}",
        ]) == 0
        output = capsys.readouterr()
        assert "Warning" not in output.err
        lines = (output.out + output.err).splitlines()
        assert sum("has not fallen" in line for line in lines) == count


@pytest.mark.quick
def test_another_model_than_the_tasks_is_a_warning():
    """As m2, whose outputs are the negative of m1's: the loss falls, the accuracy too."""
    task = fedax.Task(fedax.classification(init, apply), data())
    other = fedax.classification(init, lambda params, x: -apply(params, x))
    again = fedax.classification(init, apply)
    twin = fedax.classification(init, lambda params, x: 1.0 * apply(params, x))
    for model, count in ((task.model, 0), (again, 0), (twin, 0), (other, 1)):
        measured = task.model if count else other  # by elastic, which does not train it
        algorithm = fedax.elastic(fedax.fedavg(model), measured)
        found = Learning(task, 0).begin(fedax.initial_state(task, algorithm), algorithm)
        assert len(found) == count
        assert all("trains another model than task.model" in said for said in found)


@pytest.mark.parametrize(("empty", "count"), [(3, 1), (2, 0)])
def test_rounds_without_clients_are_a_warning_if_most_are(empty, count):
    """Of four rounds; a private run does not say how many took part."""
    task = fedax.Task(fedax.classification(init, apply), data())
    state = fedax.initial_state(task, fedax.fedavg(task.model))
    learning, withholds = Learning(task, 0), Learning(task, 0)
    for number in range(4):
        reports = {"num_reports": 0.0 if number < empty else 2.0, "num_rejected": 0}
        learning.add({"round": number + 1, **reports})
        withholds.add({"round": number + 1})
    found = learning.end(state)
    assert len(found) == count
    assert all(said.startswith(f"No client trained in {empty} of 4 rounds") for said in found)
    assert withholds.end(state) == []
