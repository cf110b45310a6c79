"""Samples that are drawn again for each evaluation, and the loss over all training clients."""

import json

import jax
import numpy as np
import pytest

import fedax
from fedax import simulate
from fedax.experiment import run
from fedax.rounds.sampling import sample_examples
from fedax.tasks.registry import TASKS, TaskInfo
from problems import quadratic_task
from test_run import config

pytestmark = [pytest.mark.quick, pytest.mark.shares_programs]

QUADRATIC = quadratic_task()  # 57 test examples
TASK = QUADRATIC._replace(model=QUADRATIC.model._replace(
    metrics={"loss": QUADRATIC.model.metrics["distance"]}
))
SAMPLE = 23
OPTIONS = {"cohort_size": 3, "evaluate_every": 2, "num_rounds": 7}


def fedyogi():
    return fedax.fedyogi(TASK.model, 0.1, 0.05, batch_size=2)


def reports(**options):
    return list(simulate(TASK, fedyogi(), **OPTIONS, **options))


def rows(dataset, chosen):
    return fedax.FederatedDataset(
        {name: array[chosen] for name, array in dataset.arrays.items()},
        np.array([0, len(chosen)]),
    )


def test_a_redrawn_sample_is_another_one_each_time_and_depends_on_seed_and_round_only():
    found = reports(evaluation_sample=SAMPLE, evaluation_redraw=True, seed=4)
    states = {int(r.metrics["round"]): r.state for r in reports(seed=4)}
    draws = set()
    for report in found:
        number = int(report.metrics["round"])
        if number % 2 or number == 7:
            continue
        drawn = sample_examples(4, TASK.test.num_examples, SAMPLE, number)
        draws.add(tuple(drawn.tolist()))
        params = states[number].server_state.params
        expected = fedax.evaluate(TASK.model, params, rows(TASK.test, drawn))
        assert report.metrics["test_loss"] == pytest.approx(expected["loss"], rel=1e-12)
        assert report.metrics["evaluated_examples"] == SAMPLE
    assert len(draws) == 3
    assert found[-1].metrics["evaluated_examples"] == TASK.test.num_examples  # the last: all
    again = list(simulate(
        TASK, fedyogi(), **OPTIONS, evaluation_sample=SAMPLE, evaluation_redraw=True, seed=4,
        state_every=3, mesh=None,
    ))
    for one, other in zip(found, again, strict=True):
        assert one.metrics.get("test_loss") == other.metrics.get("test_loss")


def test_the_loss_over_all_training_clients_is_the_mean_over_clients_and_over_examples():
    for report in reports(evaluate_training=True, evaluation_sample=SAMPLE):
        number = int(report.metrics["round"])
        if number % 2 and number != 7:
            assert "all_clients_loss" not in report.metrics
            continue
        params = report.state.server_state.params
        losses, sizes = [], TASK.train.client_sizes
        for client in range(TASK.train.num_clients):
            begin, end = TASK.train.offsets[client : client + 2]
            own = rows(TASK.train, np.arange(begin, end))
            losses.append(fedax.evaluate(TASK.model, params, own)["loss"])
        assert report.metrics["all_clients_loss"] == pytest.approx(np.mean(losses), rel=1e-12)
        assert report.metrics["all_examples_loss"] == pytest.approx(
            np.average(losses, weights=sizes), rel=1e-12
        )
    plain = reports()
    measured = reports(evaluate_training=True)
    assert plain[-1].metrics["test_loss"] == measured[-1].metrics["test_loss"]


def test_a_model_without_a_loss_is_a_sentence():
    task = TASK._replace(model=TASK.model._replace(metrics={}))
    with pytest.raises(ValueError, match="evaluate_training measures the metric 'loss', but the m"):
        list(simulate(task, fedyogi(), **OPTIONS, evaluate_training=True))


def test_a_run_records_them(monkeypatch, tmp_path):
    monkeypatch.setitem(TASKS, "quadratic", TaskInfo(
        "quadratics", "none", ("model",), lambda model: TASK
    ))
    settings = config(
        num_rounds=4, evaluate_every=2, evaluate_training=True, evaluation_sample=SAMPLE,
        evaluation_redraw=True,
    )
    folder = run.start(settings, tmp_path / "run")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert ["all_clients_loss" in line for line in lines] == [False, True, False, True]
    assert json.loads((folder / "config.json").read_text())["evaluation_redraw"] is True


def test_what_is_no_mesh_is_said():
    params = TASK.model.init(jax.random.key(0))
    with pytest.raises(ValueError, match=r"mesh from fedax.client_mesh\(devices\), but is 2"):
        fedax.evaluate(TASK.model, params, TASK.test, mesh=2)
