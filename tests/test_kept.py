"""Programs of other processes: taken without tracing, equal to the bit, by everything in a name."""

import contextlib
import importlib
import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.devices import kept
from fedax.devices.internals import cache_programs_in
from fedax.devices.kept import Kept, keep_in, remembered
from fedax.experiment.compile_cache import Programs
from fedax.factories import described, factory
from fedax.rounds.measurements import rehearse
from fedax.rounds.state import initial_params

JAX = importlib.import_module("jax._src.compilation_cache")
pytestmark = [pytest.mark.quick, pytest.mark.internals]


@pytest.fixture
def store(tmp_path, monkeypatch):
    """The folder of a process whose cache is fedax's, as `keep_programs` makes it."""
    monkeypatch.setattr(JAX, "get_file_cache", JAX.get_file_cache)  # put back afterwards
    programs = Programs(tmp_path)
    assert cache_programs_in(programs)
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    for name, value in zip(names, (str(tmp_path), 1000.0), strict=True):
        jax.config.update(name, value)
    JAX.reset_cache()
    keep_in(programs)
    yield tmp_path
    keep_in(None)
    for name, value in before.items():
        jax.config.update(name, value)
    JAX.reset_cache()


def counted():
    """A function that counts its traces."""
    traces = []

    def double(x, y):
        traces.append(x)
        return {"sum": 2 * x + jnp.asarray(y, x.dtype)}

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


def test_other_types_than_the_first(store):
    for expected in (2, 0):
        traces, function = counted()
        program = Kept(function, "double")
        for size in (2, 3, 2):
            assert program(jnp.ones(size), 1.0)["sum"].tolist() == [3.0] * size
        assert len(traces) == expected


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


FACTORISE = """
import sys
from pathlib import Path
import jax, numpy as np
from fedax.devices.kept import Kept, keep_in
from fedax.experiment.compile_cache import Programs

keep_in(Programs(Path(sys.argv[1])))
print(Kept(jax.jit(lambda a: abs(jax.numpy.linalg.qr(a)[1])), "qr")(np.diag([2.0, 3.0])).tolist())
"""


def test_a_loaded_program_finds_lapack(tmp_path):
    """It is made ready when a program is lowered; a loaded one crashed the process."""
    env = {name: value for name, value in os.environ.items() if "JAX" not in name}
    for _ in range(2):
        told = subprocess.run(
            [sys.executable, "-c", FACTORISE, str(tmp_path)], check=True, text=True, env=env,
            stdout=subprocess.PIPE,
        ).stdout
        assert told == "[[2.0, 0.0], [0.0, 3.0]]\n"
        assert len(list(tmp_path.iterdir())) == 1


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


# A process that trains; prints what it traced and what it found.
TRAIN = """
import json, sys
import jax, numpy as np
import fedax
from fedax.devices.mesh import client_mesh, cores_as_devices
from fedax.experiment.compile_cache import keep_programs
from fedax.rounds.measurements import rehearse

method, rate, devices = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
cores_as_devices(devices)
keep_programs()
names = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, _, **about: "trace" in event and names.append(about.get("fun_name"))
)
rows = np.arange(24).reshape(8, 3) % 5
data = fedax.FederatedDataset(
    {"x": rows.astype(np.float32), "y": (rows.sum(1) % 2).astype(np.int32)}, [0, 3, 5, 8]
)
model = fedax.models.mlp_classifier(3, [2], 2)
task = fedax.Task(model, data, data)
algorithm = getattr(fedax, method)(model, rate, batch_size=2)
sent = rehearse(task, algorithm)
reports = list(fedax.simulate(
    task, algorithm, num_rounds=2, cohort_size=2, state_every=1, donate=True, mesh=client_mesh(),
))
state = [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(reports[-1].state.server_state)]
metrics = {
    name: float(value) for name, value in reports[-1].metrics.items() if "seconds" not in name
}
print(json.dumps([names, [state, metrics, sent]]))
"""


@pytest.mark.parametrize(("method", "devices"), [("scaffold", 1), ("fedavg", 2)])
def test_a_second_process_trains_alike_and_traces_no_round(tmp_path, method, devices):
    def train(rate):
        done = subprocess.run(
            [sys.executable, "-c", TRAIN, method, str(rate), str(devices)], check=True,
            stdout=subprocess.PIPE, text=True, env={
                **{name: value for name, value in os.environ.items() if "JAX" not in name},
                "XDG_CACHE_HOME": str(tmp_path),
            },
        )
        names, found = json.loads(done.stdout)
        return {"run_rounds", "measure", "init", "one_round"} & set(names), found

    traced, first = train(0.1)
    assert len(traced) == 4
    traced, second = train(0.1)
    assert traced <= {"init"}  # for its shapes
    assert first == second
    traced, other = train(0.2)  # another rate is another number, not another program
    assert traced <= {"init"}
    assert first != other


def test_rehearsal_traces_no_round_twice(store):
    model = fedax.models.mlp_classifier(3, [2], 2)
    data = fedax.FederatedDataset({"x": np.ones((4, 3)), "y": np.zeros(4, np.int32)}, [0, 4])
    task = fedax.Task(model, data, data)
    with traces() as names:
        sent = rehearse(task, fedax.fedavg(model, 0.1))
    assert "one_round" in names
    jax.clear_caches()
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
