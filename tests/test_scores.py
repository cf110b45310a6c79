"""Functions of all outputs: AUC, F1 and others, beside scikit-learn; and a model's predictions."""

import functools
import math

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit, softmax
from sklearn import calibration, metrics

import fedax
from fedax import scores
from fedax.data.describing import Describer, digest
from fedax.experiment.display import describe_test
from fedax.experiment.metrics import read_metrics
from fedax.models.preprocessing import preprocessed
from fedax.rounds.evaluation import Evaluator
from fedax.rounds.history import is_undefined
from fedax.rounds.stopping import Goal

pytestmark = [pytest.mark.quick, pytest.mark.shares_programs]

EXACT = {"rel": 1e-12, "abs": 1e-12, "nan_ok": True}
SIZES = (1, 40, 7, 3, 60, 12, 9, 25, 30, 2, 18)


def same(params, x):
    """The inputs are the outputs."""
    return x + params


def zero(key):
    return jnp.zeros(())


def identity(num_classes, given, *, weights=None):
    """A model whose inputs are its outputs, over made-up clients with ties, and its data."""
    rng = np.random.default_rng(num_classes)
    count = sum(SIZES)
    shape = (count,) if num_classes == 1 else (count, num_classes)
    x = rng.normal(size=shape).round(1)  # so that there are ties
    noisy = x + rng.normal(size=shape)
    y = noisy > 0 if num_classes == 1 else noisy.argmax(1)
    arrays = {"x": x, "y": y.astype(np.int32), "w": rng.integers(0, 4, count) / 2.0}
    owners = np.repeat(np.arange(len(SIZES)), SIZES)
    data = fedax.FederatedDataset.from_arrays(arrays, client_ids=owners)
    named = {name: scores.Score(of, weights=weights) for name, of in given.items()}
    model = fedax.Model(
        zero, lambda p, b, k: (b["x"].reshape(len(b["y"]), -1)[:, 0], jnp.ones(len(b["y"]))),
        lambda params, batch: same(params, batch["x"]), {}, scores=named,
    )
    return model, data


def expected(data, num_classes, weights, rows=slice(None)):
    """The same of scikit-learn, for examples that weigh something."""
    x, y = data.arrays["x"][rows], data.arrays["y"][rows]
    w = np.ones(len(y)) if weights is None else data.arrays[weights][rows]
    x, y, w = x[w > 0], y[w > 0], w[w > 0]
    two = num_classes <= 2
    p = softmax(x, axis=1) if num_classes > 1 else np.stack([1 - expit(x), expit(x)], axis=1)
    guess = p.argmax(1)
    kind = {"average": "binary" if two else "macro", "sample_weight": w, "zero_division": 0}
    every = list(range(p.shape[1]))
    edges = np.linspace(0, 1, 11)[1:-1]
    places = np.searchsorted(edges, p.max(1))
    ece = sum(
        abs((w * (guess == y))[places == b].sum() - (w * p.max(1))[places == b].sum())
        for b in range(10)
    ) / w.sum()
    return {
        "auc": metrics.roc_auc_score(
            y, p[:, 1] if two else p, sample_weight=w, multi_class="ovr"
        ),
        "f1": metrics.f1_score(y, guess, **kind),
        "f1_micro": metrics.f1_score(y, guess, **kind | {"average": "micro"}),
        "f1_weighted": metrics.f1_score(y, guess, **kind | {"average": "weighted"}),
        "precision": metrics.precision_score(y, guess, **kind),
        "recall": metrics.recall_score(y, guess, **kind),
        "recall_1": metrics.recall_score(y, guess, **kind | {"average": None}, labels=every)[1],
        "balanced_accuracy": metrics.balanced_accuracy_score(y, guess, sample_weight=w),
        "log_loss": metrics.log_loss(y, p, sample_weight=w, labels=every),
        "brier": metrics.brier_score_loss(
            y, p[:, 1] if two else p, sample_weight=w, labels=every, scale_by_half=two
        ),
        "calibration_error": ece,
    }


READY = {
    "auc": scores.auc(), "f1": scores.f1(), "f1_micro": scores.f1("micro"),
    "f1_weighted": scores.f1("weighted"), "precision": scores.precision(),
    "recall": scores.recall(), "recall_1": scores.recall(1),
    "balanced_accuracy": scores.balanced_accuracy(), "log_loss": scores.log_loss(),
    "brier": scores.brier(), "calibration_error": scores.calibration_error(10),
}


@pytest.mark.parametrize("weights", [None, "w"], ids=["unweighted", "weighted and masked"])
@pytest.mark.parametrize("num_classes", [1, 2, 4], ids=["one logit", "two classes", "four"])
def test_scores_are_those_of_scikit_learn(num_classes, weights):
    model, data = identity(num_classes, READY, weights=weights)
    wanted = expected(data, num_classes, weights)
    for size in (16, None):
        assert fedax.evaluate(model, jnp.zeros(()), data, size) == pytest.approx(wanted, **EXACT)
    clients = fedax.evaluate_clients(model, jnp.zeros(()), data, 16)
    assert clients.overall() == pytest.approx(wanted, **EXACT)
    largest = SIZES.index(60)
    own = expected(data, num_classes, weights, slice(data.offsets[4], data.offsets[5]))
    assert {n: v[largest] for n, v in clients.items()} == pytest.approx(own, **EXACT)


def test_an_example_may_have_any_number_of_labels():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(80, 3)).round(1)
    y = (x + rng.normal(size=x.shape) > 0.5).astype(np.int32)
    y[:, 2] = 0  # a label that nobody has
    data = fedax.FederatedDataset.from_arrays({"x": x, "y": y}, client_ids=np.arange(80) // 10)
    given = {
        "auc": scores.auc(), "f1": scores.f1(), "f1_micro": scores.f1("micro"),
        "log_loss": scores.log_loss(), "brier": scores.brier(), "recall_0": scores.recall(0),
        "skl": scores.from_sklearn(metrics.f1_score, average="samples", zero_division=0),
    }
    found = fedax.evaluate(identity(2, given)[0], jnp.zeros(()), data)
    guess, p = (x > 0).astype(int), expit(x)
    f1 = functools.partial(metrics.f1_score, y, guess, zero_division=0)
    assert found == pytest.approx({
        "auc": metrics.roc_auc_score(y[:, :2], p[:, :2]), "f1": f1(average="macro"),
        "f1_micro": f1(average="micro"), "recall_0": metrics.recall_score(y[:, 0], guess[:, 0]),
        "log_loss": metrics.log_loss(y[:, :2].ravel(), p[:, :2].ravel()) * 2 / 3
        - np.log1p(-p[:, 2]).mean() / 3,
        "brier": ((p - y) ** 2).mean(), "skl": f1(average="samples"),
    }, **EXACT)


@pytest.mark.parametrize("num_classes", [1, 2])
def test_calibration_is_that_of_scikit_learns_curve(num_classes):
    model, data = identity(num_classes, {"ece": scores.calibration_error(10, label=1)})
    x = data.arrays["x"]
    p = expit(x if num_classes == 1 else x[:, 1] - x[:, 0])
    true, mean = calibration.calibration_curve(data.arrays["y"], p, n_bins=10)
    counts = np.bincount(np.searchsorted(np.linspace(0, 1, 11)[1:-1], p), minlength=10)
    wanted = (abs(true - mean) * counts[counts > 0]).sum() / len(p)
    assert fedax.evaluate(model, jnp.zeros(()), data)["ece"] == pytest.approx(wanted, **EXACT)


def test_functions_of_scikit_learn_are_taken_as_they_are():
    given = {
        "ap": metrics.average_precision_score, "roc": metrics.roc_auc_score, "f1": metrics.f1_score,
        "loss": metrics.log_loss, "brier": metrics.brier_score_loss,
        "mcc": metrics.matthews_corrcoef, "f2": functools.partial(metrics.fbeta_score, beta=2.0),
    }
    model, data = identity(2, {})
    model = model._replace(scores=given)
    found = fedax.evaluate(model, jnp.zeros(()), data)
    x, y = data.arrays["x"], data.arrays["y"]
    p, guess = softmax(x, axis=1)[:, 1], x.argmax(1)
    assert found == pytest.approx({
        "ap": metrics.average_precision_score(y, p), "roc": metrics.roc_auc_score(y, p),
        "f1": metrics.f1_score(y, guess), "loss": metrics.log_loss(y, p),
        "brier": metrics.brier_score_loss(y, p), "mcc": metrics.matthews_corrcoef(y, guess),
        "f2": metrics.fbeta_score(y, guess, beta=2.0),
    }, **EXACT)
    clients = fedax.evaluate_clients(model, jnp.zeros(()), data)  # some have one class
    assert np.isnan(clients["roc"][0])
    assert not np.isnan(clients["roc"][4])


def test_of_numbers_scikit_learn_gets_the_outputs():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 50))
    data = fedax.FederatedDataset.from_arrays({"x": x, "t": y}, client_ids=np.arange(50) // 5)
    given = {"r2": metrics.r2_score, "spread": lambda o, t, w: (o - t).std()}
    model = fedax.regression(zero, same, targets="t", scores=given)
    found = fedax.evaluate(model, jnp.zeros(()), data)
    assert found == pytest.approx({
        "r2": metrics.r2_score(y, x), "spread": (x - y).std(), "loss": ((x - y) ** 2).mean() / 2
    }, **EXACT)


def test_each_clients_score_is_that_of_its_examples():
    model, data = identity(4, READY, weights="w")
    clients = fedax.evaluate_clients(model, jnp.zeros(()), data, 16)
    assert len(clients) == len(READY)
    assert list(clients) == list(READY)
    for client in range(data.num_clients):
        part = slice(data.offsets[client], data.offsets[client + 1])
        x, y, w = (data.arrays[name][part] for name in ("x", "y", "w"))
        x, y, w = x[w > 0], y[w > 0], w[w > 0]
        for name, of in READY.items():
            wanted = of(x, y, w) if len(w) else math.nan
            assert clients[name][client] == pytest.approx(wanted, **EXACT)
    worst = clients.worst()
    known = np.sort(clients["auc"][~np.isnan(clients["auc"])])
    assert worst["auc"] == pytest.approx(known[: math.ceil(len(known) / 10)].mean())


def test_folded_scores_see_a_batch_at_a_time_and_others_all():
    seen = {"folded": [], "all": []}

    def statistics(outputs, labels, weights):
        seen["folded"].append(len(labels))
        return np.array([len(labels)], float)

    def function(outputs, labels, weights):
        seen["all"].append(len(labels))
        return 0.0

    given = {"folded": scores.Folded(statistics, lambda sums: sums[0]), "all": function}
    model, data = identity(2, given)
    found = Evaluator(model, data, 16).overall(jnp.zeros(()))
    assert found == {"folded": data.num_examples, "all": 0.0}
    assert max(seen["folded"]) == 16
    assert max(seen["all"]) == data.num_examples


def test_outputs_that_are_nan_have_no_score():
    model, data = identity(2, READY | {"sk": scores.from_sklearn(metrics.roc_auc_score)})
    found = fedax.evaluate(model, jnp.full((), math.nan), data)
    assert all(map(math.isnan, found.values()))


def problem(labels=None, **given):
    """Logistic regression on ten clients, with scores."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 4))
    y = (x.sum(1) + rng.normal(size=300) > 0.5).astype(np.int32) if labels is None else labels
    data = fedax.FederatedDataset.from_arrays({"x": x, "y": y}, client_ids=np.arange(300) // 30)
    model = fedax.classification(
        lambda key: jnp.zeros((4, 2)), lambda params, x: x @ params,
        scores=given or {"auc": scores.auc(), "f1": scores.f1()},
    )
    return fedax.Task(model, *data.split(0.5))


def test_training_watches_scores_and_keeps_them(tmp_path):
    task = problem()
    algorithm = fedax.fedavg(task.model, 0.1, num_local_steps=1)
    options = {"num_rounds": 6, "cohort_size": 5, "evaluate_every": 2}
    stopping = fedax.EarlyStopping("test_auc", patience=2, min_delta=1.0)
    result = fedax.train(task, algorithm, **options, early_stopping=stopping, keep_best="test_f1")
    assert result.stopped is not None
    assert "test_auc" in result.stopped
    best = fedax.evaluate(task.model, result.best_params, task.test)
    assert best["f1"] == result.history["test_f1"][result.best_round - 1]
    out = tmp_path / "run"
    options["keep_best"] = "test_auc"
    half = fedax.train(task, algorithm, **options | {"num_rounds": 4}, out=out)
    kept = fedax.train(task, algorithm, **options, out=out)
    whole = fedax.train(task, algorithm, **options)
    for name in ("test_auc", "test_f1", "test_worst_tenth_auc"):
        np.testing.assert_array_equal(kept.history[name], whole.history[name])
    assert kept.best_round == whole.best_round
    assert len(half.history) == 4
    assert read_metrics(out)[-1]["test_auc"] == whole.history["test_auc"][-1]
    page = (out / "report.html").read_text()
    assert "test auc" in page
    assert "test f1" in page
    assert "auc" in (out / "clients.csv").read_text().split("\n")[0]


@pytest.mark.parametrize("sample", [60, 1000])
def test_a_sample_is_scored_while_training_goes_on(sample):
    task = problem()
    algorithm = fedax.fedavg(task.model, 0.1, num_local_steps=1)
    options = {
        "num_rounds": 4, "cohort_size": 5, "evaluate_every": 2, "evaluation_sample": sample
    }
    history, found = fedax.train(task, algorithm, **options).history, []
    for report in fedax.simulate(task, algorithm, **options):
        found.append(report.metrics.get("test_auc", math.nan))
        if report.clients is not None:  # of all test examples
            assert len(report.clients["auc"]) == task.test.num_clients
            wanted = fedax.evaluate_clients(
                task.model, report.state.server_state.params, task.test
            )
            np.testing.assert_allclose(report.clients["auc"], wanted["auc"], rtol=1e-12)
    np.testing.assert_array_equal(history["test_auc"], found)
    assert np.isfinite(history["test_auc"][[1, 3]]).all()


def test_sweeps_choose_by_scores():
    task = problem()
    rates = [1e-4, 0.3]
    result = fedax.sweep(
        task, fedax.fedavg, {"client_learning_rate": rates, "num_local_steps": 2}, num_rounds=3,
        cohort_size=5, choose="test_auc",
    )
    single = [
        fedax.train(
            task, fedax.fedavg(task.model, rate, num_local_steps=2), num_rounds=3, cohort_size=5
        ).history["test_auc"][-1] for rate in rates
    ]
    assert result.choice.mean == pytest.approx(single, rel=1e-9)


ONE_CLASS = np.zeros(300, np.int32)


def test_what_is_undefined_is_said_so_and_has_not_diverged(tmp_path, capsys):
    task = problem(ONE_CLASS, auc=scores.auc(), roc=metrics.roc_auc_score)
    algorithm = fedax.fedavg(task.model, 0.1, num_local_steps=1)
    result = fedax.train(task, algorithm, num_rounds=2, cohort_size=5, out=tmp_path / "run")
    assert math.isnan(result.history["test_auc"][-1])
    last = read_metrics(tmp_path / "run")[-1]
    assert last["test_auc"] is None
    assert is_undefined(last, "test_auc")
    assert "test auc undefined" in describe_test(last)
    assert "test loss 0." in describe_test(last)
    page = (tmp_path / "run" / "report.html").read_text()
    assert page.count("<td>undefined</td>") == 4  # over all, and of the worst tenth
    assert "Diverged" not in page
    clients = fedax.evaluate_clients(task.model, result.params, task.test)
    assert "auc: undefined for every client" in repr(clients)
    with pytest.raises(ValueError, match="test_auc: it is undefined in every run"):
        fedax.sweep(
            task, fedax.fedavg, {"client_learning_rate": [0.1, 0.2], "num_local_steps": 1},
            num_rounds=2, cohort_size=5, choose="test_auc",
        )


def test_a_setting_whose_score_is_undefined_is_last_and_has_not_diverged():
    def only_if_good(outputs, labels, weights):
        right = (outputs.argmax(1) == labels).mean()
        return right if right > 0.7 else math.nan

    task = problem(good=only_if_good)
    result = fedax.sweep(
        task, fedax.fedavg, {"client_learning_rate": [0.0, 0.5], "num_local_steps": 4},
        num_rounds=8, cohort_size=5, choose="test_good:max",
    )
    (method,) = result.choice.methods.values()
    assert np.isnan(result.choice.mean[0])
    assert result.choice.mean[1] > 0.7
    assert method.best == 1
    assert method.diverged == []


def test_predictions_are_the_outputs_in_their_order():
    task = problem()
    params = jnp.asarray(np.random.default_rng(1).normal(size=(4, 2)))
    data, x = task.test, task.test.arrays["x"]
    wanted = np.asarray(x) @ np.asarray(params)
    for given in (data, {"x": x}, x, x.tolist()):
        for size in (None, 7, 10_000):
            found = fedax.predict(task.model, params, given, size)
            assert isinstance(found, np.ndarray)
            np.testing.assert_allclose(found, wanted, rtol=1e-12)
    clients = fedax.predict(task.model, params, data, 7, per_client=True)
    assert list(clients) == [data.name(client) for client in range(data.num_clients)]
    np.testing.assert_array_equal(
        np.concatenate(list(clients.values())), fedax.predict(task.model, params, data, 7)
    )
    assert fedax.evaluate(task.model, params, data)["auc"] == pytest.approx(
        metrics.roc_auc_score(data.arrays["y"], softmax(found, axis=1)[:, 1]), **EXACT
    )


def test_narrow_outputs_are_given_as_float32():
    def outputs(params, batch):
        return {"h": batch["x"].astype(jnp.bfloat16), "n": batch["x"]}

    model = fedax.Model(zero, None, outputs, {})
    found = fedax.predict(model, jnp.zeros(()), np.ones((3, 2)))
    assert found["h"].dtype == np.float32
    assert found["n"].dtype == np.float64


@pytest.mark.parametrize(("data", "options", "error", "sentence"), [
    ({"x": np.zeros((2, 4)), "y": np.zeros(3)}, {}, ValueError, "differ in length"),
    (np.zeros((0, 4)), {}, ValueError, "no examples"),
    ({}, {}, ValueError, "no arrays"),
    (["ada"], {}, TypeError, "arrays of numbers"),
    (np.zeros((2, 4)), {"per_client": True}, TypeError, "needs a fedax.FederatedDataset"),
    (np.zeros((2, 4)), {"batch_size": 0}, ValueError, "batch_size"),
    ({"pixels": np.zeros((2, 4))}, {}, fedax.ModelError, "Did you mean 'pixels'"),
    (np.zeros((2, 3)), {}, fedax.ModelError, "apply"),
])
def test_what_cannot_be_predicted_is_a_sentence(data, options, error, sentence):
    with pytest.raises(error, match=sentence):
        fedax.predict(problem().model, jnp.zeros((4, 2)), data, **options)


def refuse(outputs, labels, weights):
    raise RuntimeError("no such luck")


@pytest.mark.parametrize(("given", "error", "sentence"), [
    ([scores.auc()], TypeError, "must be a dictionary"),
    ({"auc": "auc"}, TypeError, r"must be a function .*such as fedax.scores.auc\(\)"),
    ({"auc": scores.auc}, TypeError, r"must be called; use auc\(\)"),
    ({"": scores.auc()}, TypeError, "name of a score"),
    ({"loss": scores.log_loss()}, ValueError, "The model also has a metric named 'loss'"),
    ({"a": scores.Score(scores.auc(), "label")}, fedax.ModelError, "needs the labels 'label'"),
    ({"a": scores.Score(scores.auc(), weights="w")}, fedax.ModelError, "the weights 'w'"),
    ({"a": scores.Score(scores.auc(), weights="x")}, fedax.ModelError, "one number an example"),
    ({"a": scores.Score(scores.auc(), labels="x")}, fedax.ModelError, "but they are float64"),
    ({"a": refuse}, fedax.ModelError, "'a' failed in .*test_scores.py.*no such luck"),
    ({"a": lambda o, y, w: o}, fedax.ModelError, r"must return one number, but returned float64\["),
    ({"a": lambda o, y, w: None}, fedax.ModelError, "must return one number"),
    ({"a": lambda o, y: 0.0}, fedax.ModelError, r"function\(outputs, labels, weights\)"),
    ({"a": scores.recall(2)}, fedax.ModelError, "no class 2: the model has 2"),
    ({"a": scores.calibration_error(label=3)}, fedax.ModelError, "no class 3"),
    ({"a": functools.partial(metrics.f1_score, average="no")}, fedax.ModelError, "average"),
])
def test_wrong_scores_are_said_before_the_first_round(given, error, sentence):
    task = problem()

    def begin():
        model = fedax.classification(
            lambda key: jnp.zeros((4, 2)), lambda params, x: x @ params, scores=given
        )
        algorithm = fedax.fedavg(model, 0.1, num_local_steps=1)
        return next(fedax.simulate(
            task._replace(model=model), algorithm, num_rounds=100, cohort_size=2
        ))

    with pytest.raises(error, match=sentence):
        begin()


def test_arguments_out_of_their_range_are_sentences():
    for call in (
        lambda: scores.f1("mean"), lambda: scores.calibration_error(0), lambda: scores.recall(-1),
        lambda: scores.from_sklearn(metrics.f1_score, takes="logits"),
    ):
        with pytest.raises(ValueError, match=r"must be|Unknown"):
            call()
    with pytest.raises(TypeError, match="from_sklearn needs"):
        scores.from_sklearn(np.mean)
    with pytest.raises(fedax.ModelError, match="'binary' is for two classes"):
        scores.f1("binary")(np.zeros((2, 3)), np.array([0, 1]), np.ones(2))
    with pytest.raises(fedax.ModelError, match="from 0 to 1, but range from 0 to 4"):
        scores.auc()(np.zeros(2), np.array([0, 4]), np.ones(2))
    unweighted = scores.from_sklearn(lambda y_true, y_pred: 0.0)
    with pytest.raises(fedax.ModelError, match="takes no sample_weight"):
        unweighted(np.zeros(2), np.array([0, 1]), np.array([1.0, 2.0]))


def test_scores_pass_through_what_is_put_around_a_model():
    task = problem()
    model = preprocessed(task.model, images="x")
    assert model.scores == task.model.scores

    @fedax.factory
    def wrapped(rate: float):
        return task.model._replace(
            loss=lambda p, b, k: (rate * b["x"][:, 0], jnp.ones(len(b["x"]))),
            scores={"f1": scores.f1(), "own": lambda outputs, labels, weights: 2.0},
        )

    found = fedax.evaluate(wrapped(0.5), jnp.zeros((4, 2)), task.test)
    assert found["own"] == 2.0
    assert found["f1"] == 0.0


def test_names_say_where_scores_should_go():
    high = ("test_auc", "test_f1", "test_recall_3", "test_balanced_accuracy", "test_mcc")
    low = ("test_calibration_error", "test_ece", "test_brier", "test_log_loss")
    assert {Goal.of(name, None, "").mode for name in high} == {"max"}
    assert {Goal.of(name, None, "").mode for name in low} == {"min"}


def test_a_model_without_scores_is_described_as_before():
    """So that folders that older versions wrote go on."""
    def init(key):
        return jnp.zeros((3, 2))

    def loss(params, batch, key):
        return batch["x"], batch["x"]

    init.__qualname__, loss.__qualname__, init.__module__, loss.__module__ = "i", "l", "m", "m"
    own = fedax.Model(init, loss, loss, {})
    made = fedax.classification(init, loss)
    described = [Describer()(model) for model in (own, made)]
    assert "scores" not in described[0]["fields"]
    assert "scores" not in described[1]["arguments"]
    more = made._replace(scores={"auc": scores.auc()})
    assert digest(Describer()(more)) != digest(described[1])


@pytest.mark.slow
def test_searches_are_led_by_scores(tmp_path):
    task = problem()
    result = fedax.search(
        task, fedax.fedavg, {"client_learning_rate": "loguniform(0.001, 1)"},
        fixed={"num_local_steps": 2}, num_rounds=3, num_trials=3,
        cohort_size=5, choose="test_auc", progress=False, out=tmp_path / "found",
    )
    rate = result.study.best_params["client_learning_rate"]
    algorithm = fedax.fedavg(task.model, rate, num_local_steps=2)
    single = fedax.train(task, algorithm, num_rounds=3, cohort_size=5).history["test_auc"][-1]
    assert result.study.best_value == pytest.approx(single, rel=1e-9)
