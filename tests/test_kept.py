"""Programs of other processes: taken without tracing, equal to the bit, by everything in a name."""

import contextlib
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.devices import kept
from fedax.devices.kept import Kept, keep_in, remembered
from fedax.devices.mesh import client_mesh
from fedax.experiment.compile_cache import Programs
from fedax.factories import described, factory
from fedax.rounds.evaluation import Evaluator
from fedax.rounds.measurements import rehearse
from fedax.rounds.simulate import _program as rounds_program
from fedax.rounds.state import _drawn_by, initial_params

pytestmark = [pytest.mark.quick, pytest.mark.internals]


@pytest.fixture
def store(tmp_path):
    keep_in(Programs(tmp_path))
    yield tmp_path
    keep_in(None)


def counted():
    """A function that counts its traces."""
    traces = []

    def double(x, y):
        traces.append(x)
        return {"sum": 2 * x + y}

    return traces, jax.jit(double)


def call(recipe, *arguments):
    """The result of a new process, as far as `Kept` can tell, and how often it traced."""
    traces, function = counted()
    found = Kept(function, recipe)(*arguments)
    return {name: np.asarray(value).tolist() for name, value in found.items()}, len(traces)


def test_the_second_process_does_not_trace(store):
    x, y = jnp.arange(3.0), np.float32(1)
    assert call("double", x, y) == ({"sum": [1, 3, 5]}, 1)
    assert call("double", x, y) == ({"sum": [1, 3, 5]}, 0)
    assert len(list(store.iterdir())) == 1  # and not in JAX's own form as well


@pytest.mark.parametrize("other", ["recipe", "shape", "dtype", "weak type", "source", "settings"])
def test_what_differs_is_another_program(store, monkeypatch, other):
    x, y, recipe = jnp.arange(3.0), np.float32(1), "double"
    call(recipe, x, y)
    if other == "recipe":
        recipe = "double again"
    elif other == "shape":
        x = jnp.arange(2.0)
    elif other == "dtype":
        x = x.astype(jnp.float32)
    elif other == "weak type":
        y = 1.0
    elif other == "source":
        before = kept._surroundings()
        monkeypatch.setattr(kept, "_surroundings", lambda: ["another", *before[1:]])
    else:
        monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=elsewhere")
    assert call(recipe, x, y)[1] == 1
    assert call(recipe, x, y)[1] == 0


def test_without_a_store_or_a_recipe_it_is_the_function(tmp_path):
    assert call("double", 1.0, 2.0)[1] == 1
    assert call("double", 1.0, 2.0)[1] == 1
    keep_in(Programs(tmp_path))
    try:
        assert call(None, 1.0, 2.0)[1] == 1
    finally:
        keep_in(None)
    assert list(tmp_path.iterdir()) == []


def test_other_types_and_places_than_the_first(store):
    first, second = jax.devices()[:2]
    for most in (4, 1):  # the second process traces only where the arguments are on another device
        traces, function = counted()
        program = Kept(function, "double", [first])
        for size in (2, 3, 2):
            assert program(jnp.ones(size), 1.0)["sum"].tolist() == [3.0] * size
        moved = jax.device_put(jnp.ones(2), second)
        for _ in range(2):
            found = program(moved, 1.0)["sum"]
            assert found.tolist() == [3.0, 3.0]
            assert found.devices() == {second}
        assert len(traces) <= most


def test_a_damaged_program_is_compiled_again(store):
    call("double", 1.0, 2.0)
    (path,) = store.iterdir()
    Programs(store).put(path.stem, b"of another kind")
    assert call("double", 1.0, 2.0) == ({"sum": 4}, 1)
    assert call("double", 1.0, 2.0) == ({"sum": 4}, 0)


def test_a_program_that_calls_python_is_not_kept(store):
    def twice(x):
        return jax.pure_callback(lambda x: 2 * np.asarray(x), jax.typeof(x), x)

    for _ in range(2):
        assert Kept(jax.jit(twice), "twice")(jnp.ones(2)).tolist() == [2.0, 2.0]
    assert list(store.iterdir()) == []


def test_given_away_arguments_are_gone_in_a_loaded_program_too(store):
    for _ in range(2):
        x = jnp.ones(5)
        found = Kept(jax.jit(lambda x: x + 1, donate_argnums=(0,)), "next")(x)
        assert x.is_deleted()
        assert found.tolist() == [2.0] * 5


def test_what_is_remembered_is_computed_once(store):
    calls = []

    def compute():
        calls.append(1)
        return [[1, 2], None]

    for recipe, arguments, so_far in (
        ("a", np.ones(2), 1), ("a", np.zeros(2), 1), ("b", np.ones(2), 2), ("b", np.ones(3), 3),
        (None, np.ones(2), 4), (None, np.ones(2), 5),
    ):
        assert remembered(recipe, arguments, compute) == [[1, 2], None]
        assert len(calls) == so_far


def forget():
    """As in a new process."""
    for program in (rounds_program, _drawn_by, importlib.import_module(Evaluator.__module__)._program):
        program.cache_clear()
    jax.clear_caches()


@contextlib.contextmanager
def traces():
    """Names of what JAX traces meanwhile."""
    names = []

    def listen(event, duration, **about):
        del duration
        if event.endswith("jaxpr_trace_duration"):
            names.append(about.get("fun_name"))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield names
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_a_second_process_trains_alike_and_traces_no_round(store, method, devices):
    rows = np.arange(24).reshape(8, 3) % 5
    data = fedax.FederatedDataset(
        {"x": rows.astype(np.float32), "y": (rows.sum(1) % 2).astype(np.int32)}, [0, 3, 5, 8]
    )

    def train(rate):
        model = fedax.models.mlp_classifier(3, [2], 2)
        task = fedax.Task(model, data, data)
        algorithm = getattr(fedax, method)(model, rate, batch_size=2)
        sent = rehearse(task, algorithm)
        with traces() as names:
            reports = list(fedax.simulate(
                task, algorithm, num_rounds=2, cohort_size=2, state_every=1, donate=True,
                mesh=client_mesh(jax.devices()[:devices]),
            ))
        params = jax.tree.leaves(reports[-1].state.server_state.params)
        metrics = {
            name: value for name, value in reports[-1].metrics.items() if "seconds" not in name
        }
        return names, sent, metrics, [np.asarray(leaf).tolist() for leaf in params]

    first_names, *first = train(0.1)
    forget()
    names, *second = train(0.1)
    heavy = {"run_rounds", "measure", "init"}
    assert heavy <= set(first_names)
    assert not heavy & set(names)
    assert first == second
    forget()
    names, *third = train(0.2)  # another rate is another number, not another program
    assert not heavy & set(names)
    assert third[2] != first[2]


def test_rehearsal_traces_no_round_twice(store):
    model = fedax.models.mlp_classifier(3, [2], 2)
    data = fedax.FederatedDataset({"x": np.ones((4, 3)), "y": np.zeros(4, np.int32)}, [0, 4])
    task = fedax.Task(model, data, data)
    with traces() as names:
        sent = rehearse(task, fedax.fedavg(model, 0.1))
    assert "one_round" in names
    forget()
    with traces() as names:
        assert rehearse(task, fedax.fedavg(model, 0.3)) == sent
    assert "one_round" not in names
    with traces() as names:
        assert rehearse(task, fedax.scaffold(model)) != sent
    assert "one_round" in names


def test_texts_of_what_was_made():
    model = fedax.models.mlp_classifier(3, [2], 2)
    text = described(fedax.fedavg(model, 0.1))
    assert text is not None
    assert " at 0x" not in text
    same = fedax.fedavg(fedax.models.mlp_classifier(3, [2], 2), 0.2)
    assert described(same) == text
    others = [
        fedax.fedavg(model, 0.1, batch_size=3),
        fedax.fedavg(fedax.models.mlp_classifier(3, [4], 2), 0.1),
        fedax.fedavg(model, fedax.schedules.exponential_decay(0.1, 0.9)),
        fedax.fedavgm(model, 0.1), fedax.scaffold(model, 0.1),
    ]
    texts = {described(other) for other in others}
    assert None not in texts
    assert len(texts | {text}) == 1 + len(others)
    assert described(same, "a") != described(same, "b")


def test_of_a_users_functions_there_is_no_text():
    model = fedax.models.mlp_classifier(3, [2], 2)

    @factory
    def constant(rate: float):
        return lambda t: rate

    for made in (
        fedax.fedavg(model, lambda t: 0.1), fedax.fedavg(model, constant(0.1)),
        model._replace(init=lambda key: initial_params(model, 0)),
        fedax.fedavg(fedax.regression(lambda key: jnp.zeros(1), lambda p, x: x @ p), 0.1),
    ):
        assert described(made) is None
