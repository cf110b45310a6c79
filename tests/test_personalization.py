"""Metrics client by client: names, the worst tenth, and what fine-tuning gives each client."""

import csv
import dataclasses
import html
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax import ClientMetrics, FederatedDataset
from fedax.cli.main import run_command
from fedax.experiment import run
from fedax.experiment.config import ConfigError, RunConfig, load_config, resolve
from fedax.experiment.metrics import read_metrics
from fedax.report.clients import clients_table
from fedax.tasks import registry as tasks
from problems import identical, quadratic_task

POPULATION = fedax.theory.QuadraticPopulation.random(12, 3, mu=0.2, L=1.5, sigma_c=1.0)
TASK = fedax.quadratic_task(POPULATION, start=0.7)
START = {"x": jnp.full(3, 0.7)}


def losses_after(rate, steps):
    """f_i at x_K = c_i + (I - gamma A_i)^K (x - c_i), its closed form, for each client."""
    found = []
    for matrix, linear in zip(POPULATION.matrices, POPULATION.linear, strict=True):
        centre = -np.linalg.solve(matrix, linear)
        power = np.linalg.matrix_power(np.eye(3) - rate * matrix, steps)
        x = centre + power @ (np.full(3, 0.7) - centre)
        found.append(x @ matrix @ x / 2 + linear @ x)
    return np.array(found)


@pytest.mark.parametrize("options", [
    {"num_local_steps": 4}, {"num_local_epochs": 4}, {"num_local_steps": 4, "num_local_epochs": 9},
    {"num_local_steps": 4, "clients_per_chunk": 5},
], ids=str)
def test_fine_tuning_on_quadratics_is_its_closed_form(options):
    """A client has one example, so a step is a step of its exact gradient and so is an epoch."""
    found = fedax.evaluate_personalized(TASK, START, client_learning_rate=0.3, **options)
    np.testing.assert_allclose(found["loss"], losses_after(0.3, 4), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found.before["loss"], losses_after(0.3, 0), rtol=1e-10, atol=1e-12)
    assert found.num_left_out == 0
    assert (found["loss"] < found.before["loss"]).all()


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"clients_per_chunk": 5}, {"clients": 7}], ids=str)
def test_the_models_are_returned_when_they_are_asked_for(options):
    """x_K = c_i + (I - gamma A_i)^K (x - c_i) of the client by its name."""
    settings = {"client_learning_rate": 0.3, "num_local_steps": 4, **options}
    found = fedax.evaluate_personalized(TASK, START, keep_params=True, **settings)
    assert list(found.params) == found.names.tolist()
    losses = losses_after(0.3, 4)
    for place, name in enumerate(TASK.test.client_names.tolist()):
        if name not in found.params:
            continue
        matrix, linear = POPULATION.matrices[place], POPULATION.linear[place]
        x = found.params[name]["x"]
        centre = -np.linalg.solve(matrix, linear)
        power = np.linalg.matrix_power(np.eye(3) - 0.3 * matrix, 4)
        np.testing.assert_allclose(x, centre + power @ (np.full(3, 0.7) - centre), rtol=1e-10)
        np.testing.assert_allclose(x @ matrix @ x / 2 + linear @ x, losses[place], rtol=1e-10)
    without = fedax.evaluate_personalized(TASK, START, **settings)
    assert without.params is None
    assert without["loss"].tolist() == found["loss"].tolist()


def test_no_step_is_the_evaluation_client_by_client():
    task = quadratic_task()
    params = task.model.init(jax.random.key(0))
    expected = fedax.evaluate_clients(task.model, params, task.test)
    found = fedax.evaluate_personalized(
        task, params, num_local_steps=0, client_learning_rate=0.1, batch_size=4
    )
    assert found["distance"].tolist() == found.before["distance"].tolist()
    np.testing.assert_allclose(found["distance"], expected["distance"], rtol=1e-12)
    assert found.names.tolist() == expected.names.tolist()
    assert found.overall()["distance"] == pytest.approx(
        fedax.evaluate(task.model, params, task.test)["distance"], rel=1e-12
    )


def split_task(names=None):
    """Ten clients of several sizes, one of them with a single example."""
    whole = quadratic_task()
    data = FederatedDataset(whole.train.arrays, whole.train.offsets, names)
    train, test = data.split(0.4)
    return whole._replace(train=train, test=test)


def tuned(task, params=None, **options):
    params = task.model.init(jax.random.key(0)) if params is None else params
    settings = {"num_local_epochs": 2, "client_learning_rate": 0.1, "batch_size": 2} | options
    return fedax.evaluate_personalized(task, params, **settings)


@pytest.mark.slow
def test_clients_are_matched_by_name_and_draw_from_their_own_key():
    names = np.array(list("abcdefghij"))
    task = split_task(names)
    found = tuned(task)
    assert found.names.tolist() == list("abdefghij")  # c has one example
    assert found.num_left_out == 1
    assert found.num_examples.tolist() == task.test.client_sizes.tolist()
    # Another order, fewer test clients, a stranger among them: each client's value is its own.
    stranger = {"z": task.test.client("a")}
    few = {name: task.test.client(name) for name in ("j", "b", "e")}
    other = task._replace(test=FederatedDataset.from_clients({**few, **stranger}))
    part = tuned(other)
    assert part.names.tolist() == ["j", "b", "e"]
    assert part.num_left_out == 7
    whole = dict(zip(found.names.tolist(), found["distance"].tolist(), strict=True))
    np.testing.assert_allclose(
        part["distance"], [whole[name] for name in ("j", "b", "e")], rtol=1e-12
    )
    # Batched, and packed instead of resident, too; another seed draws other minibatches.
    np.testing.assert_allclose(
        tuned(task, clients_per_chunk=4)["distance"], found["distance"], rtol=1e-12
    )
    assert not np.allclose(tuned(task, seed=1)["distance"], found["distance"], rtol=1e-6)
    drawn = tuned(task, clients=4)
    assert len(drawn.names) == 4
    assert drawn.names.tolist() == tuned(task, clients=4).names.tolist()
    np.testing.assert_allclose(
        drawn["distance"], [whole[name] for name in drawn.names.tolist()], rtol=1e-12
    )
    assert drawn.names.tolist() != tuned(task, clients=4, seed=5).names.tolist()
    # Where nobody has a name, the indices are the names.
    numbered = tuned(split_task(np.arange(10)))
    assert numbered["distance"].tolist() == tuned(split_task())["distance"].tolist()


@pytest.mark.slow
def test_more_clients_than_go_to_the_device_together(monkeypatch):
    expected = tuned(split_task())
    monkeypatch.setattr("fedax.rounds.personalization.CLIENTS_AT_A_TIME", 4)
    found = tuned(split_task())
    assert found["distance"].tolist() == expected["distance"].tolist()
    monkeypatch.setattr("fedax.data.cohort_data.CohortReader.__init__.__defaults__", (0, None))
    packed = tuned(split_task())
    assert packed["distance"].tolist() == expected["distance"].tolist()


@pytest.mark.parametrize(("change", "sentence"), [
    (lambda: tuned(split_task()._replace(test=None)), r"needs test examples .* data\.split\(\)"),
    (lambda: tuned(split_task()._replace(test=split_task().train.pooled())),
     "names look like '0' in task.train and 'pool' in task.test"),
    (lambda: tuned(TASK, START, num_local_epochs=None), "Say how long clients fine-tune"),
    (lambda: tuned(TASK, START, num_local_steps=1.5), "num_local_steps must be a whole .* is 1.5"),
    (lambda: tuned(TASK, START, num_local_epochs=-1), "num_local_epochs must be .* is -1"),
    (lambda: tuned(TASK, START, client_learning_rate=-1), "client_learning_rate must .* is -1"),
    (lambda: tuned(TASK, START, batch_size=0), "batch_size must be .* is 0"),
    (lambda: tuned(TASK, START, clients=0), "number of clients must be .* is 0"),
    (lambda: tuned(TASK, START, seed=-1), "seed must be .* is -1"),
])
def test_what_cannot_be_fine_tuned_is_a_sentence(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        change()


# The metrics themselves.


def some_metrics():
    values = np.array([0.5, 0.1, np.nan, 0.3, 0.9, 0.7, 0.8, 0.2, 0.6, 1.0, 0.4, 0.55])
    weights = np.where(np.isnan(values), 0.0, np.arange(1.0, 13))
    sums = {
        name: (np.nan_to_num(sign * values) * weights, weights)
        for name, sign in (("accuracy", 1), ("loss", 1), ("lift", -1))
    }
    return ClientMetrics(sums, np.arange(12) + 100, np.arange(12) + 1), values, weights


@pytest.mark.quick
def test_the_worst_tenth_by_hand():
    clients, values, weights = some_metrics()
    np.testing.assert_allclose(clients["accuracy"], values, rtol=1e-15)
    assert list(clients) == ["accuracy", "loss", "lift"]
    # Of 11 clients with a value a tenth is 2: the lowest accuracies, the highest losses.
    assert clients.worst() == pytest.approx({"accuracy": 0.15, "loss": 0.95, "lift": -0.15})
    assert clients.worst(1 / 11)["loss"] == pytest.approx(1.0)
    assert clients.worst(1)["loss"] == pytest.approx(np.nanmean(values))
    assert list(clients.worst_clients("accuracy", 3)) == ["101", "107", "103"]
    assert clients.worst_clients("loss", 1) == pytest.approx({"109": 1.0})
    assert clients.overall()["loss"] == pytest.approx(
        np.nansum(values * weights) / weights.sum()
    )
    with pytest.raises(ValueError, match=r"fraction must be .* above 0 and at most 1, but is 0"):
        clients.worst(0)
    thirty = ClientMetrics({"loss": (np.arange(30.0), np.ones(30))}, np.arange(30), np.ones(30))
    assert thirty.worst()["loss"] == 28  # of 3, though 0.1 * 30 is above 3 in floating point


@pytest.mark.quick
def test_how_they_are_shown():
    clients, _, _ = some_metrics()
    lines = repr(clients).splitlines()
    assert lines[0] == "ClientMetrics of 12 clients"
    assert lines[1] == "  accuracy: mean 0.55, worst tenth 0.15; worst 101 0.1, 107 0.2, 103 0.3"
    after = ClientMetrics(clients._sums, clients.names, clients.num_examples, clients, 3)
    assert repr(after).splitlines()[0] == (
        "ClientMetrics of 12 clients after fine-tuning (before), 3 without test examples left out"
    )
    assert "mean 0.55 (0.55), worst tenth 0.15 (0.15);" in repr(after)
    frame = after.to_pandas()
    assert frame.loc[101].to_dict() == pytest.approx({
        "num_examples": 2, "accuracy": 0.1, "loss": 0.1, "lift": -0.1,
        "accuracy_before": 0.1, "loss_before": 0.1, "lift_before": -0.1,
    })
    few = ClientMetrics({"loss": (np.ones(1), np.ones(1))}, np.array([109]), np.ones(1))
    rows = list(csv.reader(clients_table(clients, few).splitlines()))
    assert rows[0] == ["client", "num_examples", "accuracy", "loss", "lift", "personal_loss"]
    assert rows[3] == ["102", "3", "", "", "", ""]
    assert rows[10] == ["109", "10", "1.0", "1.0", "-1.0", "1.0"]


# In training.


def history_of(task, algorithm, **options):
    settings = {"num_rounds": 2, "cohort_size": 3, "evaluate_every": 1} | options
    return list(fedax.simulate(task, algorithm, **settings))


@pytest.mark.slow
def test_training_reports_what_evaluation_finds():
    task = split_task()
    rates = fedax.schedules.exponential_decay(0.2, 0.5)
    algorithm = fedax.fedavg(task.model, rates, batch_size=3)
    plain = history_of(task, algorithm)
    reports = history_of(task, algorithm, personalize_steps=3, personalize_clients=4, seed=0)
    for number, (report, without) in enumerate(zip(reports, plain, strict=True), start=1):
        params = report.state.server_state.params
        expected = fedax.evaluate_personalized(
            task, params, num_local_steps=3, client_learning_rate=0.2 * 0.5**number, batch_size=3,
            clients=4, seed=0,
        )
        np.testing.assert_allclose(
            report.personal["distance"], expected["distance"], rtol=1e-12
        )
        metrics = report.metrics
        assert metrics["test_personal_distance"] == pytest.approx(
            expected.overall()["distance"], rel=1e-12
        )
        assert metrics["test_personal_before_distance"] == pytest.approx(
            expected.before.overall()["distance"], rel=1e-12
        )
        assert without.personal is None
        own = fedax.evaluate_clients(task.model, params, task.test)
        assert report.clients["distance"].tolist() == own["distance"].tolist()
        assert "test_worst_tenth_distance" not in metrics  # nine test clients
        assert metrics["test_distance"] == without.metrics["test_distance"]
    # What is measured changes no bit of the training.
    a, b = (found[-1].state.server_state for found in (plain, reports))
    assert identical(a, b)


def test_the_worst_tenth_is_reported_of_ten_clients():
    task = quadratic_task()
    (report,) = history_of(task, fedax.fedavg(task.model), num_rounds=1)
    assert report.metrics["test_worst_tenth_distance"] == report.clients["distance"].max()
    (report,) = history_of(task, fedax.fedavg(task.model), num_rounds=1, evaluate_every=0)
    assert report.clients is None


@pytest.mark.slow
def test_every_kind_of_method_fine_tunes_at_its_rate():
    task = quadratic_task()
    inner = fedax.fedavg(task.model, 0.3, batch_size=4)
    for algorithm, rate in (
        (inner, 0.3), (fedax.elastic(inner, task.model), 0.3), (fedax.mime(task.model, 0.05), 0.05),
        (fedax.centralised(task.model), 0.1),
    ):
        (report,) = history_of(task, algorithm, num_rounds=1, personalize_epochs=1)
        expected = fedax.evaluate_personalized(
            task, report.state.server_state.params, num_local_epochs=1, client_learning_rate=rate,
            batch_size=4 if rate == 0.3 else 20,
        )
        np.testing.assert_allclose(report.personal["distance"], expected["distance"], rtol=1e-10)
    unknown = inner._replace(init_client=lambda params: ())  # changed, so it does not say
    with pytest.raises(ValueError, match=r"give personalize_learning_rate, such as 0.1"):
        history_of(task, unknown, personalize_steps=1)
    history_of(task, unknown, num_rounds=1, personalize_steps=1, personalize_learning_rate=0.1)


@pytest.mark.parametrize(("options", "sentence"), [
    ({"personalize_steps": -1}, "personalize_steps must be a whole number of at least 0.* is -1"),
    ({"personalize_epochs": 0.5}, "personalize_epochs must be a whole number .* is 0.5"),
    ({"personalize_clients": 0}, "personalize_clients must be .* is 0"),
    ({"personalize_learning_rate": 0.1}, "without a number of steps; also give personalize_steps"),
    ({"personalize_steps": 1, "personalize_learning_rate": -1.0}, "rate must be .* is -1.0"),
])
def test_wrong_options_are_sentences(options, sentence):
    task = quadratic_task()
    with pytest.raises(ValueError, match=sentence):
        history_of(task, fedax.fedavg(task.model), **options)
    with pytest.raises(ConfigError, match=sentence):
        resolve(task="quadratics", algorithm="fedavg", settings=options)


# On disk.


@pytest.fixture
def quadratics(monkeypatch):
    """A task of ten clients, one of whose names HTML and CSV must quote."""
    names = np.array(["a,b <c>", *"bcdefghij"])
    task = quadratic_task()
    data = FederatedDataset(task.train.arrays, task.train.offsets, names)
    task = task._replace(train=data, test=data)
    info = tasks.TaskInfo("none", "none", ("small",), lambda model: task)
    monkeypatch.setitem(tasks.TASKS, "quadratic", info)
    return data


def config(**changes):
    return RunConfig(**{
        "task": "quadratic", "algorithm": "fedavg", "preset": "none", "num_rounds": 4,
        "cohort_size": 3, "evaluate_every": 2, "checkpoint_every": 2, "personalize_steps": 2,
        "personalize_clients": 5,
    } | changes)


@pytest.mark.slow
def test_a_run_keeps_its_clients_and_shows_the_worst(quadratics, tmp_path, capsys):
    folder = run.start(config(), tmp_path / "run")
    with (folder / "clients.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["client"] for row in rows] == quadratics.names.tolist()
    assert sum(row["personal_distance"] != "" for row in rows) == 5
    final = read_metrics(folder)[-1]
    values = np.array([float(row["distance"]) for row in rows])
    weights = quadratics.client_sizes
    assert final["test_distance"] == pytest.approx((values * weights).sum() / weights.sum())
    assert final["test_worst_tenth_distance"] == pytest.approx(values.max())
    page = (folder / "report.html").read_text()
    assert "Worst clients" in page
    assert "a,b &lt;c&gt;" in page
    worst = rows[int(values.argmax())]
    assert f"<td>{values.max():.5g}</td>" in page
    assert f"<td>{html.escape(worst['client'])}</td>" in page
    for label in ("mean of the worst 10%", "fine-tuned on some clients", "before fine-tuning"):
        assert label in page
    out = capsys.readouterr().out
    assert "test personal distance" in out
    assert "worst tenth" not in out


def test_a_run_without_evaluation_has_no_clients(quadratics, tmp_path):
    folder = run.start(config(evaluate_every=0, personalize_steps=None), tmp_path / "run")
    assert not (folder / "clients.csv").exists()
    assert "worst" not in (folder / "report.html").read_text()


@pytest.mark.slow
def test_fine_tuning_may_be_turned_on_when_a_run_is_resumed(quadratics, tmp_path):
    """It is no part of the training, so older runs and checkpoints go on with or without it."""
    folder = run.start(config(personalize_steps=None), tmp_path / "run")
    written = json.loads((folder / "config.json").read_text())
    for key in [key for key in written if key.startswith("personalize")]:
        del written[key]
    (folder / "config.json").write_text(json.dumps(written))
    assert load_config(folder / "config.json").personalize_clients == 100
    (folder / "config.json").write_text(json.dumps(written | {"personalize_steps": 2}))
    run.resume(folder, 6)
    assert "test_personal_distance" in read_metrics(folder)[-1]
    expected = run.start(config(num_rounds=6), tmp_path / "other")
    kept = [{k: v for k, v in metrics.items() if "seconds" not in k and "personal" not in k}
            for metrics in read_metrics(folder)]
    whole = [{k: v for k, v in metrics.items() if "seconds" not in k and "personal" not in k}
             for metrics in read_metrics(expected)]
    assert kept == whole


@pytest.mark.slow
def test_the_command_line_takes_the_options(quadratics, tmp_path, capsys):
    words = ["run", "quadratic", "fedavg", "--preset", "none", "--rounds", "1", "--out",
             str(tmp_path / "run"), "--set", "cohort_size=2"]
    assert run_command([*words, "personalize_epochs=1", "personalize_learning_rate=0.05"]) == 0
    assert "test_personal_distance" in read_metrics(tmp_path / "run")[-1]
    written = load_config(tmp_path / "run" / "config.json")
    assert written.personalize_learning_rate == 0.05
    assert dataclasses.asdict(written)["personalize_clients"] == 100
    assert run_command([*words, "personalize_learning_rate=0.05"]) == 2
    assert "give personalize_steps or personalize_epochs" in capsys.readouterr().err
    alone = ["run", "quadratic", "server_only", "--preset", "none", "--rounds", "1", "--out",
             str(tmp_path / "none"), "--set", "cohort_size=2", "personalize_steps=1"]
    assert run_command(alone) == 2
    assert "method does not have one; give personalize_learning_rate" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
