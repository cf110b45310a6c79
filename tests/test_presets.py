"""Every preset of every task is one that runs."""

import functools

import numpy as np
import pytest

import fedax
from fedax.data.task import Task
from fedax.experiment.build import build_algorithm
from fedax.experiment.config import resolve
from fedax.models import autoencoder, tag_logistic_regression
from fedax.rounds.measurements import rehearse
from fedax.tasks.registry import SHARED, TASKS, load_task, presets
from problems import largest_difference, quadratic_model

METHODS = [
    (task, preset, method)
    for task in TASKS for preset, tables in presets(task).items()
    for method in tables if method not in SHARED
]
# Those whose shapes are traced as well; the others' models cost more, or their data are not there.
TRACED = [
    (task, preset, method) for task, preset, method in METHODS
    if preset in ("quick", "reddi2021", "elastic2023-small")
    and task in ("shakespeare", "quadratics", "digits")
]
# The papers' keys, with which their presets begin.
KEYS = ("charles2020", "decay2021", "elastic2023", "mime2020", "reddi2021")

loaded = functools.cache(load_task)
# What a task needs to be told.
NEEDED = {"table": {"task.file": "stays.csv", "task.client": "hospital", "task.label": "died"}}


def chosen(task, preset, method):
    wrapper = method in ("elastic", "local_update_decay")
    base = "fedavg" if "fedavg" in presets(task)[preset] else "local_update"
    return resolve(
        task=task, algorithm=f"{method}+{base}" if wrapper else method, preset=preset,
        settings=NEEDED.get(task),
    )


@pytest.mark.quick
def test_every_task_has_a_quick_preset_and_all_of_papers_one_by_a_papers_key():
    assert {task for task, preset, _ in METHODS if preset == "quick"} == set(TASKS)
    published = {task for task, preset, _ in METHODS if preset.startswith(KEYS)}
    assert published == set(TASKS) - {"quadratics", "table"}
    assert {preset for _, preset, _ in METHODS if not preset.startswith(KEYS)} == {"quick"}


QUICK = {task: (task, preset, method) for task, preset, method in reversed(TRACED)}


@pytest.mark.parametrize(("task", "preset", "method"), [
    pytest.param(*which, id="-".join(which), marks=[pytest.mark.quick] * (which in QUICK.values()))
    for which in TRACED
])
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
            options = config.algorithm_options
            if "where" in options:  # names arrays of the task's model
                options = {**options, "where": ()}
            build_algorithm(config.algorithm, options, model)
            assert config.cohort_size <= config.task_options.get("num_clients", 715)


@pytest.mark.quick
@pytest.mark.parametrize("task", TASKS)
def test_the_values_lie_in_the_grids_that_were_searched(task):
    for preset, tables in presets(task).items():
        grid = tables["grid"]
        if preset == "quick" or not grid:
            continue
        for method, settings in tables.items():
            if method in SHARED:
                continue
            for name in ("client_learning_rate", "server_learning_rate", "adaptivity"):
                value = settings.get(name)
                is_searched = name in grid and not isinstance(value, str | None)
                if is_searched and not (preset == "mime2020" and name == "server_learning_rate"):
                    assert value in [pytest.approx(searched) for searched in grid[name]]
        for client, server in grid.get("best_rates", []):
            assert client in grid["client_learning_rate"]
            assert server in [pytest.approx(searched) for searched in grid["server_learning_rate"]]


@pytest.mark.quick
def test_a_preset_begins_as_the_one_that_it_is_like():
    of = presets("emnist")
    assert of["reddi2021-decay"]["run"] == of["reddi2021"]["run"]
    changed = {"client_learning_rate": "staircase_decay(0.1, 0.1, 500)"}
    assert of["reddi2021-decay"]["fedavg"] == of["reddi2021"]["fedavg"] | changed
    assert of["reddi2021"]["fedavg"]["client_learning_rate"] == 0.1


@pytest.mark.quick
def test_samples_and_clients_of_stack_overflow_are_those_of_the_papers():
    """500 posts of 1,000 users, not 250 (errata); a new test sample at each evaluation."""
    tags = presets("stackoverflow-tags")
    for name in (name for name in tags if name.startswith("decay2021")):
        assert tags[name]["task"] == {"num_clients": 1000, "max_examples": 500}, name
    for task in ("stackoverflow-tags", "stackoverflow-words"):
        config = resolve(task=task, algorithm="fedadam", preset="reddi2021")
        assert (config.evaluation_sample, config.evaluation_redraw) == (10_000, True)


@pytest.mark.quick
@pytest.mark.parametrize(("task", "preset"), [
    ("mnist", "elastic2023"), ("digits", "elastic2023-small"), ("cifar10", "elastic2023"),
])
def test_the_momentum_of_elastic2023_is_an_average_as_in_its_algorithm_1(task, preset):
    config = resolve(task=task, algorithm="fedavgm", preset=preset)
    model = quadratic_model(1, start=[0.0])
    options = config.algorithm_options | {"client_learning_rate": 1.0, "num_local_epochs": 1}
    algorithm = build_algorithm(config.algorithm, options, model)
    data = fedax.FederatedDataset.from_clients([{"A": np.ones((1, 1, 1)), "c": np.ones((1, 1))}])
    moved = fedax.train(
        Task(model, data, data, "one step to 1"), algorithm, num_rounds=2, cohort_size=1,
        progress=False, evaluate_every=0,
    ).params
    # Every local model is 1: x_1 = 0.1, m_2 = 0.9 0.1 + 0.1 (1 - x_1). The heavy ball is at 1.9.
    assert moved["x"].item() == pytest.approx(0.28)


# What is published for losses that are summed over a batch: batch size, client rate, the rest.
YOGI = "yogi(1e-05, 0.9, 0.99, 0.0)"
AT_ONCE = {"window": 1, "patience": 1, "cooldown": 0}
SUMMED = {
    ("stackoverflow-tags", "reddi2021", "fedavg"): (100, 10**2, {}),
    ("stackoverflow-tags", "charles2020", "local_update_decay"): (
        16, 10**2, {"server_optimizer": YOGI, "threshold": 1e-4} | AT_ONCE
    ),
    ("emnist-autoencoder", "reddi2021", "fedadagrad"): (20, 10**1.5, {"adaptivity": 1e-3}),
}


@pytest.mark.slow
@pytest.mark.parametrize(("task", "preset", "method"), SUMMED, ids=map("-".join, SUMMED))
def test_the_rates_of_summed_losses_are_those_of_their_means(task, preset, method):
    batch_size, rate, published = SUMMED[task, preset, method]
    rng = np.random.default_rng(0)
    if task == "emnist-autoencoder":
        model = autoencoder(4, (3,), 2)
        clients = [{"x": rng.uniform(size=(batch_size, 4))} for _ in range(2)]
    else:
        model = tag_logistic_regression(7, 3)
        clients = [
            {name: rng.integers(-1, most, (batch_size, 2)) for name, most in
             (("words", 7), ("tags", 3))}
            for _ in range(2)
        ]
    data = fedax.FederatedDataset.from_clients(clients)

    def summed(params, batch, key):
        values, weights = model.loss(params, batch, key)
        return batch_size * values, weights

    def trained(model, own):
        config = resolve(task=task, algorithm=method, preset=preset)
        options = {**config.algorithm_options, **own}
        assert options["batch_size"] == batch_size
        algorithm = build_algorithm(config.algorithm, options, model)
        return fedax.train(
            Task(model, data, data, "made"), algorithm, num_rounds=4, cohort_size=2,
            progress=False, evaluate_every=0,
        ).params

    again = AT_ONCE if method == "local_update_decay" else {}
    as_published = trained(
        model._replace(loss=summed), {"client_learning_rate": rate, **published}
    )
    assert largest_difference(trained(model, again), as_published) < 1e-4  # of float32


@pytest.mark.quick
@pytest.mark.parametrize(("given", "steps", "epochs"), [
    ({}, None, 1),
    ({"num_local_steps": 50}, 50, None),
    ({"algorithm.num_local_steps": 50}, 50, None),
    ({"num_local_epochs": 3}, None, 3),
    ({"num_local_steps": 50, "num_local_epochs": 2}, 50, 2),
])
def test_a_local_limit_that_is_given_replaces_the_presets_other_one(given, steps, epochs):
    """The preset quick of digits has one epoch, some 8 steps, which would stop 50 steps."""
    options = resolve(task="digits", algorithm="fedavg", settings=given).algorithm_options
    assert (options.get("num_local_steps"), options.get("num_local_epochs")) == (steps, epochs)


def test_a_file_and_the_command_line_may_give_one_local_limit_each(tmp_path):
    (tmp_path / "own.toml").write_text("[algorithm_options]\nnum_local_steps = 50\n")
    for settings, epochs in (({}, None), ({"num_local_epochs": 2}, 2)):
        options = resolve(
            task="digits", algorithm="fedavg", config_file=tmp_path / "own.toml", settings=settings
        ).algorithm_options
        assert (options["num_local_steps"], options["num_local_epochs"]) == (50, epochs)


@pytest.mark.parametrize("name", [
    name for name in TASKS if "fedsgd" in presets(name).get("quick", {})
])
def test_no_epoch_stops_the_decaying_steps_of_fedsgd(name):
    options = chosen(name, "quick", "fedsgd").algorithm_options
    assert options.get("num_local_epochs") is None
    assert options["steps_decay"] < 1
