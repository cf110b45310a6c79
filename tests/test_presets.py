"""Every preset of every task is one that runs: of each method, shapes only."""

import functools

import pytest

from fedax.experiment.build import build_algorithm
from fedax.experiment.config import resolve
from fedax.rounds.measurements import rehearse
from fedax.tasks.registry import SHARED, TASKS, load_task, presets

METHODS = [
    (task, preset, method)
    for task in TASKS for preset, tables in presets(task).items()
    for method in tables if method not in SHARED
]

loaded = functools.cache(load_task)


def test_every_task_has_a_quick_preset():
    assert {task for task, preset, _ in METHODS if preset == "quick"} == set(TASKS)


@pytest.mark.quick
@pytest.mark.parametrize(("task", "preset", "method"), METHODS, ids=map("-".join, METHODS))
def test_a_preset_can_be_run(task, preset, method):
    wrapper = method in ("elastic", "local_update_decay")
    config = resolve(task=task, algorithm=f"{method}+fedavg" if wrapper else method, preset=preset)
    built = loaded(task, config.task_options.get("model"))
    algorithm = build_algorithm(config.algorithm, config.algorithm_options, built.model)
    sent = rehearse(built, algorithm)
    assert config.cohort_size <= built.train.num_clients
    assert sent.model_bytes > 0
