"""Every preset of every task is one that runs."""

import functools

import pytest

from fedax.experiment.build import build_algorithm
from fedax.experiment.config import resolve
from fedax.rounds.measurements import rehearse
from fedax.tasks.registry import SHARED, TASKS, load_task, presets
from problems import quadratic_model

METHODS = [
    (task, preset, method)
    for task in TASKS for preset, tables in presets(task).items()
    for method in tables if method not in SHARED
]
# Those whose shapes are traced as well; the others' models cost more, or their data are not there.
TRACED = [
    (task, preset, method) for task, preset, method in METHODS
    if preset in ("quick", "paper") and task in ("shakespeare", "quadratics", "digits")
]

loaded = functools.cache(load_task)


def chosen(task, preset, method):
    wrapper = method in ("elastic", "local_update_decay")
    base = "fedavg" if "fedavg" in presets(task)[preset] else "local_update"
    return resolve(
        task=task, algorithm=f"{method}+{base}" if wrapper else method, preset=preset
    )


@pytest.mark.quick
def test_every_task_has_a_quick_preset_and_all_but_quadratics_a_paper():
    for wanted, lacking in (("quick", set()), ("paper", {"quadratics"})):
        assert {task for task, preset, _ in METHODS if preset == wanted} == set(TASKS) - lacking


@pytest.mark.quick
@pytest.mark.parametrize(("task", "preset", "method"), TRACED, ids=map("-".join, TRACED))
def test_a_preset_can_be_run(task, preset, method):
    config = chosen(task, preset, method)
    built = loaded(task, config.task_options.get("model"))
    algorithm = build_algorithm(config.algorithm, config.algorithm_options, built.model)
    sent = rehearse(built, algorithm)
    assert config.cohort_size <= built.train.num_clients
    assert sent.model_bytes > 0


@pytest.mark.quick
@pytest.mark.parametrize("task", TASKS)
def test_the_values_of_every_preset_are_taken(task):
    model = quadratic_model(3)
    for of, preset, method in METHODS:
        if of == task and (of, preset, method) not in TRACED:
            config = chosen(task, preset, method)
            build_algorithm(config.algorithm, config.algorithm_options, model)
            assert config.cohort_size <= config.task_options.get("num_clients", 715)


@pytest.mark.quick
@pytest.mark.parametrize("task", TASKS)
def test_the_values_lie_in_the_grids_that_were_searched(task):
    for preset, tables in presets(task).items():
        grid = tables["grid"]
        if preset == "quick" or not grid:
            continue
        for method, settings in tables.items():
            if method in SHARED or method == "local_update_decay":  # whose grid is another
                continue
            for name in ("client_learning_rate", "server_learning_rate", "adaptivity"):
                value = settings.get(name)
                is_searched = name in grid and not isinstance(value, str | None)
                if is_searched and not (preset == "mime" and name == "server_learning_rate"):
                    assert value in [pytest.approx(searched) for searched in grid[name]]
        for client, server in grid.get("best_rates", []):
            assert client in grid["client_learning_rate"]
            assert server in [pytest.approx(searched) for searched in grid["server_learning_rate"]]


@pytest.mark.quick
def test_a_preset_begins_as_the_one_that_it_is_like():
    of = presets("emnist")
    assert of["paper-decay"]["run"] == of["paper"]["run"]
    changed = {"client_learning_rate": "staircase_decay(0.1, 0.1, 500)"}
    assert of["paper-decay"]["fedavg"] == of["paper"]["fedavg"] | changed
    assert of["paper"]["fedavg"]["client_learning_rate"] == 0.1
