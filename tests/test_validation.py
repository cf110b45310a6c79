"""Validation data: held out, measured between rounds, and what stopping, keeping and choosing use.

The model is one number x with loss (x - y)^2 / 2. A step of rate r from x on clients that all have
y = 3 leads to x + r (3 - x), so with r = 1/2 round t ends at 3 (1 - 2^-t).
"""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.cli.main import run_command
from fedax.data.splitting import parts_of_rows
from fedax.experiment.errors import ConfigError
from fedax.rounds.validation import validation_metric
from fedax.sweeps.choosing import RuleError, default_rule

GOAL = 3.0
MODEL = fedax.regression(lambda key: jnp.zeros(1), lambda params, x: x @ params)


def dataset(y, clients=2, examples=4):
    return fedax.FederatedDataset.from_clients({
        f"c{i}": {"x": np.ones((examples, 1)), "y": np.full(examples, y)} for i in range(clients)
    })


def task(validation=1.5, test=GOAL):
    held = {"validation": dataset(validation)} if validation is not None else {}
    return fedax.Task(MODEL, dataset(GOAL), dataset(test), **held)


def method(model=MODEL, client_learning_rate=0.5):
    return fedax.fedavg(model, client_learning_rate, num_local_steps=1, batch_size=4)


OPTIONS = {"cohort_size": 2, "evaluate_every": 1, "progress": False}


def after(rounds, rate=0.5):
    return GOAL * (1 - (1 - rate) ** rounds)


def loss(x, y):
    return (x - y) ** 2 / 2


@pytest.mark.slow
def test_each_round_measures_validation_data_and_the_last_also_test_data():
    result = fedax.train(task(), method(), num_rounds=4, **OPTIONS)
    found = result.history["validation_loss"]
    np.testing.assert_allclose(found, [loss(after(t), 1.5) for t in (1, 2, 3, 4)], rtol=1e-12)
    tested = result.history["test_loss"]
    assert np.isnan(tested[:3]).all()
    assert tested[3] == pytest.approx(loss(after(4), GOAL), rel=1e-12)
    assert result.test == {"test_loss": tested[3]}
    last = fedax.train(task(), method(), num_rounds=4, **OPTIONS | {"evaluate_every": None})
    assert [("validation_loss" in m, "test_loss" in m) for m in last.history.rounds] == [
        (False, False)] * 3 + [(True, True)]
    assert last.best_round is None
    nothing = fedax.train(task(), method(), num_rounds=2, **OPTIONS | {"evaluate_every": 0})
    assert not nothing.test
    assert "validation_loss" not in nothing.history.rounds[-1]


@pytest.mark.slow
def test_the_best_round_is_that_of_the_validation_data_where_the_test_data_disagree():
    # Validation wants x = 1.5, which is round 1; test wants 3, which the last round is next to.
    result = fedax.train(task(), method(), num_rounds=5, **OPTIONS)
    assert result.best_round == 1
    assert result.best_params.tolist() == [1.5]
    assert result.best_test["test_loss"] == pytest.approx(loss(1.5, GOAL), rel=1e-12)
    assert result.test["test_loss"] == pytest.approx(loss(after(5), GOAL), rel=1e-12)
    assert "best: of round 1, test_loss 1.125" in repr(result)
    other = fedax.train(task(), method(), num_rounds=5, keep_best="train_loss", **OPTIONS)
    assert other.best_round == 5


def test_early_stopping_goes_by_the_validation_loss_and_then_the_test_data_are_evaluated():
    stopping = fedax.EarlyStopping(patience=2)
    result = fedax.train(task(), method(), num_rounds=9, early_stopping=stopping, **OPTIONS)
    assert len(result.history) == 3
    assert result.stopped.startswith("validation_loss, 0 at best, did not improve in 2 evaluations")
    assert "test_loss" not in result.history.rounds[-1]
    assert result.test["test_loss"] == pytest.approx(loss(after(3), GOAL), rel=1e-12)
    assert result.best_test["test_loss"] == pytest.approx(loss(1.5, GOAL), rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("folder", [False, True])
def test_own_models_stop_a_run_and_are_then_evaluated_on_test_data(tmp_path, folder):
    """As in a run that has no more rounds than that."""
    algorithm = fedax.ditto(MODEL, 0.5, attraction=0.5, num_local_steps=1, batch_size=4)
    stopping = fedax.EarlyStopping("validation_own_loss", patience=2)
    out = {"out": tmp_path / "run"} if folder else {}
    result = fedax.train(
        task(), algorithm, num_rounds=9, early_stopping=stopping, **out, **OPTIONS
    )
    assert result.stopped.startswith("validation_own_loss")
    count = len(result.history)
    assert count < 9
    whole = fedax.train(task(), algorithm, num_rounds=count, **OPTIONS)
    assert result.test == pytest.approx(whole.test, rel=1e-12)
    assert "test_own_loss" in result.test


@pytest.mark.slow
def test_a_sweep_chooses_by_the_validation_loss():
    rates = [0.1, 0.5, 0.9]  # after one round at 0.3, 1.5 and 2.7
    grid = {"client_learning_rate": rates}
    options = OPTIONS | {"num_rounds": 1}
    for validation, best in ((0.3, 0.1), (1.5, 0.5), (2.7, 0.9), (None, 0.9)):
        result = fedax.sweep(task(validation), {"method": method}, grid, **options)
        assert result.choice.rule == ("train_loss" if validation is None else "validation_loss")
        if validation is not None:
            assert result.best().values == {"client_learning_rate": best}
            tested = result.record.metrics["test_loss"][:, -1]
            np.testing.assert_allclose(tested, [loss(r * GOAL, GOAL) for r in rates], rtol=1e-6)
    by_training = fedax.sweep(task(), {"method": method}, grid, choose="train_loss", **options)
    assert by_training.choice.rule == "train_loss"
    unmeasured = fedax.sweep(
        task(), {"method": method}, grid, **options | {"evaluate_every": 0})
    assert unmeasured.choice.rule == "train_loss"


@pytest.mark.slow
def test_halving_gives_up_by_validation_data_and_only_what_came_to_the_end_is_tested():
    grid = {"client_learning_rate": [0.1, 0.2, 0.5, 0.9]}
    found = fedax.sweep(
        task(), {"method": method}, grid, num_rounds=4, halving=2,
        **OPTIONS | {"evaluate_every": None})
    tested = found.record.metrics["test_loss"]
    assert np.isnan(tested[:, :3]).all()
    came = ~np.isnan(found.record.metrics["train_loss"][:, -1])
    assert (np.isnan(tested[:, 3]) == ~came).all()
    assert 0 < came.sum() < 4
    with pytest.raises(ValueError, match=r"at the end. Choose by validation_loss"):
        fedax.sweep(task(), {"method": method}, grid, num_rounds=4, halving=2, choose="test_loss",
                    **OPTIONS)


@pytest.mark.slow
def test_a_search_chooses_by_the_validation_loss(tmp_path):
    found = fedax.search(
        task(), method, {"client_learning_rate": "choice(0.1, 0.5)"}, num_rounds=1, num_trials=8,
        sampler="random", out=tmp_path / "search", **OPTIONS)
    assert found.study.best_params == {"client_learning_rate": 0.5}
    assert found.study.best_value == 0.0  # at 1.5; the training loss of round 1 is equal for both


def private(model=MODEL, noise_multiplier=0.5):
    return fedax.private(method(model), clip=1.0, noise_multiplier=noise_multiplier)


@pytest.mark.slow
def test_what_a_method_does_not_report_is_refused_before_training(tmp_path):
    """A private method withholds the training loss; the paper's rule chooses by it."""
    options = OPTIONS | {"sampling": "poisson"}
    grid = {"noise_multiplier": [0.5, 1.0]}
    for more, said in (({}, r"Cannot choose by train_loss: .*\(validation=0.1 holds some out\)\."),
                       ({"evaluate_every": 0}, "holds some out\\) with evaluate_every above 0.")):
        with pytest.raises(ValueError, match=said):
            fedax.sweep(task(None), {"it": private}, grid, num_rounds=2, out=tmp_path / "sweep",
                        **options | more)
        with pytest.raises(ConfigError, match=said):
            fedax.search(task(None), private, {"noise_multiplier": "uniform(0.5, 1)"},
                         num_rounds=2, num_trials=2, out=tmp_path / "search", **options | more)
    assert not (tmp_path / "sweep").exists()
    found = fedax.sweep(task(), {"it": private}, grid, num_rounds=2, **options)
    assert found.choice.rule == "validation_loss"
    searched = fedax.search(
        task(None), private, {"noise_multiplier": "uniform(0.5, 1)"}, num_rounds=2, num_trials=2,
        choose="test_loss", out=tmp_path / "other", **options)
    assert len(searched.study.trials) == 2
    with pytest.raises(RuleError, match="the metric was not measured"):
        fedax.search(task(), method, {"client_learning_rate": "uniform(0.1, 0.5)"}, num_rounds=2,
                     num_trials=2, choose="tran_loss", out=tmp_path / "mistyped", **OPTIONS)


@pytest.mark.slow
@pytest.mark.parametrize("sample", [None, 2])
def test_test_data_change_nothing_but_what_they_say(tmp_path, sample):
    """Corrupted test labels: the same models, rounds and choices to the bit."""
    whole = fedax.load_task("digits", num_clients=5, validation=0.2)
    y = np.asarray(whole.test.arrays["y"])
    corrupt = dataclasses.replace(
        whole.test, arrays={**whole.test.arrays, "y": (y * 7 + 3) % 10})
    runs, sweeps = [], []
    for number, test in enumerate((whole.test, corrupt, None)):
        one = whole._replace(test=test)
        runs.append(fedax.train(
            one, fedax.fedavg(one.model, 0.5), num_rounds=8, cohort_size=3, evaluate_every=2,
            evaluation_sample=sample, early_stopping=fedax.EarlyStopping(patience=1),
            progress=False, out=tmp_path / str(number)))
        sweeps.append(fedax.sweep(
            one, fedax.fedavg, {"client_learning_rate": [0.01, 0.5]}, num_rounds=2, cohort_size=3,
            evaluate_every=1, progress=False))
    first = runs[0]
    for other in runs[1:]:
        for name, leaf in first.params.items() if isinstance(first.params, dict) else ():
            assert np.array_equal(leaf, other.params[name])
        assert (first.best_round, first.stopped) == (other.best_round, other.stopped)
        for name in ("train_loss", "validation_loss"):
            assert np.array_equal(first.history[name], other.history[name], equal_nan=True)
    assert first.test != runs[1].test
    assert not runs[2].test
    assert runs[2].best_test is None
    for found in sweeps[1:]:
        assert found.best() == sweeps[0].best()
        assert np.array_equal(found.choice.scores, sweeps[0].choice.scores)


def test_without_validation_data_nothing_is_otherwise():
    plain = fedax.train(task(None), method(), num_rounds=3, **OPTIONS)
    assert plain.best_params is None
    assert plain.best_test is None
    assert not any(name.startswith("validation") for m in plain.history.rounds for name in m)
    validated = fedax.train(task(), method(), num_rounds=3, **OPTIONS)
    assert np.array_equal(plain.params, validated.params)
    assert np.array_equal(plain.history["train_loss"], validated.history["train_loss"])
    assert plain.history["test_loss"][-1] == validated.history["test_loss"][-1]
    assert plain.test == {"test_loss": plain.history["test_loss"][-1]}


@pytest.mark.slow
def test_clients_fine_tune_and_are_validated():
    result = fedax.train(
        task(), method(), num_rounds=2, personalize_steps=1, personalize_learning_rate=0.5,
        **OPTIONS)
    first, last = result.history.rounds
    assert first["validation_personal_before_loss"] == pytest.approx(loss(after(1), 1.5))
    assert first["validation_personal_loss"] == pytest.approx(loss(after(2), 1.5))
    assert "test_personal_loss" not in first
    assert last["validation_personal_loss"] == pytest.approx(loss(after(3), 1.5))
    assert last["test_personal_loss"] == pytest.approx(loss(after(3), GOAL))


@pytest.mark.slow
def test_clients_fine_tune_on_validation_data_where_the_test_data_are_of_others():
    whole = fedax.load_task("digits", num_clients=5, validation=0.2)
    result = fedax.train(
        whole, fedax.fedavg(whole.model, 0.1), num_rounds=1, cohort_size=2, progress=False,
        personalize_steps=1)
    last = result.history.rounds[-1]
    assert {"validation_personal_accuracy", "test_accuracy"} <= last.keys()
    assert "test_personal_accuracy" not in last


def test_a_sample_of_the_validation_data_between_and_all_at_the_end():
    result = fedax.train(task(), method(), num_rounds=2, evaluation_sample=3, **OPTIONS)
    first, last = result.history.rounds
    assert (first["evaluated_examples"], first["evaluated_of"]) == (3, 8)
    assert first["validation_loss"] == pytest.approx(loss(after(1), 1.5))
    assert "test_loss" not in first
    assert (last["evaluated_examples"], last["evaluated_of"]) == (8, 8)
    assert {"validation_loss", "test_loss"} <= last.keys()


@pytest.mark.parametrize(("call", "words"), [
    (lambda: fedax.train(task(), method(), num_rounds=1, keep_best="test_loss", **OPTIONS),
     r"keep_best uses test_loss, but .* at the end only. Use validation_loss"),
    (lambda: fedax.train(task(), method(), num_rounds=1, **OPTIONS,
                         early_stopping=fedax.EarlyStopping("test_loss")),
     r"early_stopping uses test_loss"),
    (lambda: fedax.train(task(None), method(), num_rounds=1, **OPTIONS,
                         early_stopping=fedax.EarlyStopping()),
     r"no validation data. Hold some out, with --set validation=0.1"),
    (lambda: fedax.train(task(None), method(), num_rounds=1, keep_best="validation_loss",
                         **OPTIONS), r"keep_best uses validation_loss, but .* no validation"),
    (lambda: fedax.sweep(task(None), {"m": method}, {"client_learning_rate": [1.0]},
                         num_rounds=1, choose="validation_loss", **OPTIONS),
     r"Cannot choose by validation_loss: custom has no validation data"),
    (lambda: fedax.Task(MODEL, dataset(1.0), dataset(1.0), dataset(1.0)),
     r"name must be text.*validation=validation"),
    (lambda: fedax.Task(MODEL, dataset(1.0), validation=3), r"validation must be a fedax"),
    (lambda: task().with_validation(0.5), r"already has validation data"),
    (lambda: task(None).with_validation(1), r"validation must be .* below 1"),
    (lambda: fedax.Task(MODEL, dataset(1.0, examples=1)).with_validation(0.5),
     r"No client has two or more examples"),
    (lambda: dataset(1.0).split(0.6, validation=0.4), r"leave nothing to train with"),
    (lambda: dataset(1.0).split(0.2, validation=0), r"validation must be .* above 0"),
    (lambda: dataset(1.0, examples=2).split(0.2, validation=0.2), r"No client has three or"),
    (lambda: dataset(1.0).split(0.5, by="client"), r"split kind \(by\).*'clients'"),
    (lambda: dataset(1.0).split(0.5, by="clients", validation=0.1), r"none is left to train"),
    (lambda: fedax.load_task("digits", validation=2), r"validation must be"),
])
def test_mistakes_get_a_sentence(call, words):
    with pytest.raises((TypeError, ValueError), match=words):
        call()


def test_a_metric_of_the_callers_own_may_be_called_validation():
    def add(report):
        report.metrics["validation_gap"] = -report.metrics["round"]

    found = fedax.train(
        task(None), method(), num_rounds=3, keep_best="validation_gap:min", on_round=add,
        **OPTIONS | {"evaluate_every": None})
    assert found.best_round == 3


def test_the_default_metric():
    assert validation_metric(task(None)) is None
    assert validation_metric(task()) == "validation_loss"
    model = MODEL._replace(metrics={"lift": MODEL.metrics["loss"], "auc": MODEL.metrics["loss"]})
    assert validation_metric(task()._replace(model=model)) == "validation_auc"
    nameless = task()._replace(model=model._replace(metrics={"lift": MODEL.metrics["loss"]}))
    assert validation_metric(nameless) is None
    assert default_rule([task(), task()], evaluates=True) == "validation_loss"
    assert default_rule([task(), task(None)], evaluates=True) == "train_loss"
    with pytest.raises(ValueError, match=r"needs a metric.*'validation_lift:max'"):
        fedax.train(nameless, method(), num_rounds=1, **OPTIONS,
                    early_stopping=fedax.EarlyStopping())


@pytest.mark.quick
@pytest.mark.parametrize("by", ["examples", "clients"])
@pytest.mark.parametrize("seed", [0, 5])
def test_three_parts_hold_every_example_once(by, seed):
    rows = np.arange(70.0)
    data = fedax.FederatedDataset.from_arrays({"x": rows}, [f"c{i % 10}" for i in range(70)])
    train, validation, test = data.split(0.2, seed, by=by, validation=0.3)
    parts = [part.arrays["x"] for part in (train, validation, test)]
    assert sorted(np.concatenate(parts)) == rows.tolist()
    two = data.split(0.2, seed, by=by)
    assert np.array_equal(two[1].arrays["x"], parts[2])
    names = [set(part.client_names.tolist()) for part in (train, validation, test)]
    if by == "examples":
        assert all(len(own) == 10 for own in names)
        assert [set(p.client_sizes.tolist()) for p in (train, validation, test)] == [{4}, {2}, {1}]
    else:
        assert [len(own) for own in names] == [5, 3, 2]
        assert len(set().union(*names)) == 10
        again = data.take(np.arange(10)[::-1]).split(0.2, seed, by=by, validation=0.3)
        assert set(again[1].client_names.tolist()) == names[1]


@pytest.mark.quick
def test_small_clients_train_first():
    sizes = np.array([1, 2, 3, 4])
    parts = parts_of_rows(list("abcd"), sizes, 0.3, 0.3, 0)
    own = np.split(parts, np.cumsum(sizes)[:-1])
    counts = [np.bincount(one, minlength=3).tolist() for one in own]
    assert counts == [[1, 0, 0], [1, 0, 1], [1, 1, 1], [2, 1, 1]]


OWN = """
import jax.numpy as jnp
import numpy as np
import fedax

def data(y):
    return fedax.FederatedDataset.from_clients(
        [{"x": np.ones((10, 1), np.float32), "y": np.full(10, y, np.float32)} for _ in range(3)])

model = fedax.regression(lambda key: jnp.zeros(1, jnp.float32), lambda params, x: x @ params)
task = fedax.Task(model, data(3.0), data(1.0))

def made(scale: float = 1.0):
    return fedax.Task(model, data(3.0 * scale), data(1.0), validation=data(1.5))

def named(validation: float = 0.5):
    return fedax.Task(model, data(3.0), data(1.0)).with_validation(validation)
"""


def run(words, folder, *more):
    assert run_command([
        "run", *words, "--rounds", "4", "--out", str(folder), "--set", "evaluate_every=1",
        "cohort_size=3", "num_local_steps=1", "batch_size=10", "client_learning_rate=0.5", *more,
    ]) == 0
    return json.loads((folder / "config.json").read_text()), json.loads(
        (folder / "summary.json").read_text())


@pytest.mark.slow
def test_the_command_line_holds_out_a_part_of_any_task(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    config, summary = run(["own.py:task", "fedavg"], tmp_path / "a", "validation=0.2")
    assert config["task_options"] == {"validation": 0.2}
    assert config["keep_best"] == "validation_loss"
    assert "24 training examples" in capsys.readouterr().out
    assert summary["best"]["round"] == 4  # validation wants 3, too, and test 1
    config, summary = run(["own.py:made", "fedavg"], tmp_path / "b")
    assert summary["best"]["metric"] == "validation_loss"
    assert summary["best"]["round"] == 1
    assert summary["best"]["test"] == {"test_loss": pytest.approx(0.125, rel=1e-6)}
    assert summary["final"]["test_loss"] == pytest.approx(loss(after(4), 1.0), rel=1e-6)
    page = (tmp_path / "b" / "report.html").read_text()
    assert "test loss of the best model (round 1)" in page
    assert "test loss of the last model (round 4)" in page
    capsys.readouterr()
    assert run_command(["table", "b", "--metric", "test_loss,best_test_loss"]) == 0
    table = capsys.readouterr().out
    assert "Test results are of the last round's model" in table
    assert "1.64" in table
    assert "0.125" in table
    config, _ = run(["own.py:named", "fedavg"], tmp_path / "c", "validation=0.1")
    assert config["task_options"] == {"validation": 0.1}
    config, summary = run(["own.py:task", "fedavg"], tmp_path / "d")
    assert "validation" not in config["task_options"]
    assert config["keep_best"] is None
    assert summary["best"] is None
    config, summary = run(
        ["own.py:made", "fedavg"], tmp_path / "e", "early_stopping=validation",
        "early_stopping_patience=2")
    assert config["early_stopping"] == "validation_loss"
    assert summary["rounds"] == 3
    assert summary["final"]["test_loss"] == pytest.approx(loss(after(3), 1.0), rel=1e-6)
    capsys.readouterr()
    assert run_command(["run", "own.py:made", "fedavg", "--set", "validation=0.1",
                 "cohort_size=3", "client_learning_rate=1"]) == 2
    assert "already has validation data" in capsys.readouterr().err
    assert run_command(["run", "own.py:task", "fedavg", "--set", "keep_best=validation",
                 "cohort_size=3", "client_learning_rate=1"]) == 2
    assert "Hold some out, with --set validation=0.1" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_goes_on_with_the_same_part(tmp_path):
    words = ["digits", "fedavg"]
    run(words, tmp_path / "whole", "validation=0.1", "num_clients=5")
    assert run_command([
        "run", *words, "--rounds", "2", "--out", str(tmp_path / "half"), "--set",
        "evaluate_every=1", "cohort_size=3", "num_local_steps=1", "batch_size=10",
        "client_learning_rate=0.5", "validation=0.1", "num_clients=5"]) == 0
    assert run_command(["run", "--resume", str(tmp_path / "half"), "--rounds", "4"]) == 0
    whole, half = (fedax.load_run(tmp_path / name) for name in ("whole", "half"))
    for name in ("train_loss", "validation_loss"):
        assert np.array_equal(whole.history[name], half.history[name])
    assert whole.summary["best"] == half.summary["best"]
    assert whole.task.validation.num_examples == half.task.validation.num_examples > 0


def test_a_finished_folder_gives_the_same_result(tmp_path):
    def call():
        return fedax.train(task(), method(), num_rounds=9, out=tmp_path / "run",
                           early_stopping=fedax.EarlyStopping(patience=2), **OPTIONS)

    first, again = call(), call()
    assert first.test == again.test
    assert first.best_test == again.best_test
    with pytest.raises(fedax.RunError, match="validation"):
        fedax.train(task(1.0), method(), num_rounds=9, out=tmp_path / "run",
                    early_stopping=fedax.EarlyStopping(patience=2), **OPTIONS)


@pytest.mark.slow
def test_a_sweep_of_the_command_line_chooses_by_validation(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    words = ["--grid", "client_learning_rate=0.1,0.5", "--set", "num_rounds=1", "cohort_size=3",
             "num_local_steps=1", "batch_size=10", "evaluate_every=1"]
    assert run_command(["sweep", "own.py:made", "fedavg", *words, "--out", "s"]) == 0
    assert json.loads((tmp_path / "s" / "config.json").read_text())["choose"] == "validation_loss"
    assert "client_learning_rate=0.5" in capsys.readouterr().out
    assert run_command(["sweep", "own.py:task", "fedavg", *words, "--out", "t"]) == 0
    assert json.loads((tmp_path / "t" / "config.json").read_text())["choose"] == "train_loss"
    assert run_command(["sweep", "--resume", "s", "--choose", "train_loss"]) == 0


@pytest.mark.slow
def test_a_metric_that_is_not_measured_is_said_on_the_command_line(capsys, tmp_path):
    assert run_command([
        "run", "digits", "fedavg", "--rounds", "1", "--out", str(tmp_path / "a"), "--set",
        "validation=0.15", "early_stopping=validation_auc", "evaluate_every=1",
    ]) == 1
    said = capsys.readouterr().err
    assert "Unknown metric 'validation_auc' to watch" in said
    assert "defect" not in said
