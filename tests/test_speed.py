"""What makes rounds fast changes no number, and says what it did."""

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedax
from fedax.clients import gradients, local_steps, shuffles
from fedax.clients import narrow as narrow_module
from fedax.devices import compiling, memory
from fedax.devices.mesh import _halves, _joined, cores_as_devices, deal
from fedax.experiment import run
from fedax.experiment.config import resolve
from fedax.rounds.chunks import automatic_chunk
from fedax.rounds.timing import Stopwatch, _Compilations
from problems import quadratic_task


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [optax.sgd(1.0), optax.sgd(1.0, momentum=0.9)])
@pytest.mark.parametrize("shape", [
    pytest.param((200, 3), marks=pytest.mark.internals), (784, 10), (128, 16)
])
def test_steps_of_a_narrow_matrix_are_those_of_plain_gradients(shape, optimizer):
    """Against a loop of `jax.grad`: three epochs of seven examples, four at a time."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(7, shape[0])))
    y = jnp.asarray(rng.integers(0, shape[1], 7))
    start = {"w": jnp.asarray(rng.normal(size=shape)), "b": jnp.zeros(shape[1])}

    def apply(params, x):
        return x @ params["w"] + params["b"][None]

    model = fedax.classification(lambda key: start, apply)
    data = fedax.ClientData({"x": x, "y": y}, jnp.int32(0), jnp.int32(7), 7)

    def trained(start, data):
        return local_steps.train_locally(
            start, data, jax.random.key(0), gradient=gradients.loss_gradient(model),
            optimizer=optimizer, learning_rate=0.1, batch_size=4, num_steps=6, order="sequential",
        ).params

    expected, state = start, optimizer.init(start)
    for batch in [slice(0, 4), slice(4, 7)] * 3:
        gradient = jax.grad(
            lambda p, batch=batch: optax.softmax_cross_entropy_with_integer_labels(
                apply(p, x[batch]), y[batch]
            ).mean()
        )(expected)
        updates, state = optimizer.update(gradient, state, expected)
        expected = jax.tree.map(lambda p, u: p + 0.1 * u, expected, updates)
    for name, leaf in jax.jit(trained)(start, data).items():
        assert leaf.shape == start[name].shape
        np.testing.assert_allclose(leaf, expected[name], rtol=1e-12, atol=1e-13)
    # Batched over clients, and differentiated through in both directions.
    both = jax.vmap(trained, (0, None))(jax.tree.map(lambda p: jnp.stack([p, -p]), start), data)
    np.testing.assert_allclose(both["w"][0], expected["w"], rtol=1e-12, atol=1e-13)

    def norm(w):
        return (trained(start | {"w": w}, data)["w"] ** 2).sum()

    direction = jnp.asarray(rng.normal(size=shape))
    forward = jax.jvp(norm, (start["w"],), (direction,))[1]
    backward = (jax.grad(norm)(start["w"]) * direction).sum()
    step = 1e-6 * direction
    difference = (norm(start["w"] + step) - norm(start["w"] - step)) / 2e-6
    np.testing.assert_allclose(forward, backward, rtol=1e-10)
    np.testing.assert_allclose(forward, difference, rtol=1e-5)


@pytest.mark.quick
def test_only_narrow_matrices_are_held_transposed():
    shapes = {(784, 10), (128, 2), (4096, 16), (127, 10), (784, 17), (784, 1), (4097, 16), (784,)}
    narrow = {shape for shape in shapes if narrow_module._is_narrow(jnp.zeros(shape))}
    assert narrow == {(784, 10), (128, 2), (4096, 16)}
    tree = {"w": jnp.arange(256.0).reshape(128, 2), "other": jnp.ones((2, 3, 4))}
    hold, restore = narrow_module.transposition(tree)
    held = hold(tree)
    assert held["w"][:3].tolist() == [0, 2, 4]
    assert held["other"] is tree["other"]
    assert (restore(held)["w"] == tree["w"]).all()


@pytest.mark.slow
@pytest.mark.internals
@pytest.mark.parametrize("size", [1, 2, 63, 64, 65, 128, 129, 700])
def test_a_shuffle_depends_on_the_client_only(size):
    """In every capacity the same order: that of the sorted bits of (key, place)."""
    key = jax.random.key(3)
    bits = [int(jax.random.bits(jax.random.fold_in(key, i), dtype=jnp.uint32)) for i in range(size)]
    expected = sorted(range(size), key=bits.__getitem__)
    for capacity in {size, max(size, 64), 700, 1024}:
        order = shuffles.random_order(key, jnp.int32(size), capacity)
        assert order.shape == (capacity,)
        assert order[:size].tolist() == expected


@pytest.mark.slow
@pytest.mark.internals
def test_batched_shuffles_take_the_longest_lane():
    keys, sizes = jax.random.split(jax.random.key(0), 3), jnp.array([3, 200, 64], jnp.int32)
    shuffle = jax.vmap(lambda key, n: shuffles.random_order(key, n, 512))
    lanes = shuffle(keys, sizes)
    for key, size, lane in zip(keys, sizes, lanes, strict=True):
        assert (lane[:size] == shuffles.random_order(key, size, 512)[:size]).all()
    # One branch of each length, which one number chooses, not all of them at every step.
    assert str(jax.make_jaxpr(shuffle)(keys, sizes)).count("cond[") == 1


@pytest.mark.quick
def test_clients_are_dealt_to_devices():
    """9 + 2 and 5 + 4 + 1: the best that two devices with at most three clients each can have."""
    sizes = np.array([5, 9, 1, 2, 4])
    parts = deal(sizes, SimpleNamespace(size=2)).reshape(2, 3)
    assert sorted(parts.ravel().tolist()) == [-1, 0, 1, 2, 3, 4]
    loads = [int(sizes[part[part >= 0]].sum()) for part in parts]
    assert loads == [11, 10]
    for part in parts:
        own = sizes[part[part >= 0]]
        assert (np.diff(own) >= 0).all()
    assert deal(sizes, None).tolist() == [2, 3, 4, 0, 1]
    rng = np.random.default_rng(0)
    for devices in (2, 3, 8):
        many = np.maximum(rng.lognormal(4, 1, 100).astype(int), 1)
        parts = deal(many, SimpleNamespace(size=devices)).reshape(devices, -1)
        loads = [many[part[part >= 0]].sum() for part in parts]
        assert max(loads) <= 1.1 * sum(loads) / devices


@pytest.mark.quick
def test_whole_numbers_survive_as_halves():
    numbers = jnp.array([0, 1, -1, 65535, 65536, 16_777_217, 2**31 - 1, -(2**31)], jnp.int32)
    assert (_joined(*_halves(numbers)) == numbers).all()
    parts = [16_777_217, 33_554_433, 5]  # whose sum float32 does not have
    high, low = (
        sum(np.float32(half) for half in halves)
        for halves in zip(*(_halves(jnp.int32(n)) for n in parts), strict=True)
    )
    assert int(_joined(jnp.float32(high), jnp.float32(low))) == sum(parts)


def fake_device(**memory):
    return SimpleNamespace(platform="gpu", memory_stats=lambda: memory or None)


@pytest.mark.internals
def test_chunks_follow_the_memory():
    needed = SimpleNamespace(output_size_in_bytes=100, temp_size_in_bytes=10)
    compiled = SimpleNamespace(compile=lambda: SimpleNamespace(memory_analysis=lambda: needed))
    asked = []

    def program(clients_per_chunk):
        asked.append(clients_per_chunk)
        return SimpleNamespace(lower=lambda *_: compiled)

    def chunk(device, cohort_size=20):
        return automatic_chunk(program, (), cohort_size, device)

    assert chunk(jax.devices("cpu")[0]) == 1
    assert chunk(fake_device()) == 20
    assert asked == []  # the compiler is not asked where the answer is known
    # 0.8 (200 - 10 - 100) / 10 = 7.2: three chunks of 7, 7 and 6.
    assert chunk(fake_device(bytes_limit=200, bytes_in_use=10)) == 7
    assert chunk(fake_device(bytes_limit=10**6)) == 20
    assert chunk(fake_device(bytes_limit=101)) == 1
    assert asked == [1, 1, 1]


@pytest.mark.quick
def test_nested_compilations_count_once(monkeypatch):
    now = iter([1.0, 2.5, 3.0, 10.0, 11.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(now))
    clock, event = _Compilations(), "/jax/core/compile/backend_compile_duration"
    clock(event, 0.5)  # 0.5 to 1
    clock(event, 0.5)  # 2 to 2.5
    clock(event, 2.8)  # 0.2 to 3 holds both
    assert clock.seconds == pytest.approx(2.8)
    clock(event, 1.0)
    clock("/jax/other", 5.0)
    assert clock.seconds == pytest.approx(3.8)


@pytest.mark.slow
@pytest.mark.internals
def test_rounds_say_what_took_time():
    task = quadratic_task()
    algorithm = fedax.fedavg(task.model, 0.1, batch_size=2)
    watch = Stopwatch()
    history = fedax.train(task, algorithm, num_rounds=30, cohort_size=4, evaluate_every=10).history
    whole = watch.lap().seconds
    parts = {name: np.nansum(history[name]) for name in (
        "seconds", "compile_seconds", "evaluation_seconds", "data_seconds")}
    assert parts["compile_seconds"] > 0
    assert 0 <= parts["data_seconds"] < parts["seconds"]
    assert 0.5 * whole < whole_of(parts) < whole
    assert history["compile_seconds"][0] > 0
    assert history["seconds"][0] < parts["compile_seconds"]


def whole_of(parts):
    return parts["seconds"] + parts["compile_seconds"] + parts["evaluation_seconds"]


@pytest.mark.slow
@pytest.mark.internals
def test_profile_writes_a_trace_and_the_summary_its_parts(tmp_path, capsys):
    config = resolve(
        task="quadratics", algorithm="fedavg", preset=None, config_file=None,
        settings={"num_rounds": 12, "checkpoint_every": 4},
    )
    folder = run.start(config, tmp_path / "run", profile=True)
    summary = json.loads((folder / "summary.json").read_text())
    assert set(summary["time"]) == {"data", "compile", "local_steps", "evaluation", "checkpoint"}
    assert all(seconds > 0 for seconds in summary["time"].values())
    assert summary["seconds"] == pytest.approx(sum(summary["time"].values()))
    rounds = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [r["round"] for r in rounds if "checkpoint_seconds" in r] == [5, 9]
    (trace,) = (folder / "profile").glob("plugins/profile/*/*.trace.json.gz")
    names = {event.get("name") for event in json.loads(gzip.decompress(trace.read_bytes()))[
        "traceEvents"]}
    assert any("run_rounds" in str(name) for name in names)
    assert list((folder / "profile").glob("plugins/profile/*/*.xplane.pb"))
    assert "\nTime: data " in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.internals
def test_a_trace_that_cannot_be_written_is_said(tmp_path, capsys, monkeypatch):
    config = resolve(
        task="quadratics", algorithm="fedavg", preset=None, config_file=None,
        settings={"num_rounds": 3},
    )
    folder = run.start(config, tmp_path / "run")
    (folder / "profile").touch()
    with pytest.raises(run.RunError, match=r"Cannot write to .*: File exists"):
        run.resume(folder, 6, profile=True)
    (folder / "profile").unlink()

    def fails():
        raise RuntimeError("no space")

    monkeypatch.setattr(jax.profiler, "stop_trace", fails)
    monkeypatch.setattr(jax.profiler, "start_trace", lambda folder: None)
    run.resume(folder, 9, profile=True)
    assert "The trace could not be written" in capsys.readouterr().out
    assert json.loads((folder / "summary.json").read_text())["rounds"] == 9
    run.resume(folder, 9, profile=True)
    assert "No trace was written, because there were no rounds." in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.internals
@pytest.mark.parametrize(
    ("variables", "status", "words"),
    [
        ({"JAX_PLATFORMS": "nope"}, 1, "JAX cannot use the platform 'nope'"),
        ({"XDG_CACHE_HOME": "/proc/nope"}, 0, None),
    ],
)
def test_the_command_says_one_sentence(tmp_path, monkeypatch, variables, status, words):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")  # the command's own folder is what may fail
    done = python(
        "import sys; from fedax.cli.main import main\n"
        f"sys.argv[1:] = ['run', 'quadratics', '--rounds', '2', '--out', {str(tmp_path / 'r')!r}]\n"
        # Matplotlib has words of its own for a cache folder that cannot be made.
        "main()", **variables, JAX_ENABLE_COMPILATION_CACHE="1", MPLCONFIGDIR=str(tmp_path),
    )
    assert done.returncode == status, done.stderr
    lines = done.stderr.splitlines()
    assert lines == [] if words is None else len(lines) == 1 and words in lines[0]


def python(code, **more):
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"} | more
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, text=True, capture_output=True, check=False,
        timeout=300,
    )


@pytest.mark.slow
@pytest.mark.internals
def test_cores_become_devices_before_jax_is_used():
    done = python(
        "import fedax, jax\n"
        "assert fedax.cores_as_devices(3) == 3\n"
        "assert len(jax.devices()) == 3 and fedax.client_mesh().size == 3\n"
        "try: fedax.cores_as_devices(2)\n"
        "except RuntimeError as error: print(error)\n"
    )
    assert done.stdout.startswith("The CPU's cores cannot become 2 devices, because"), done.stderr
    with pytest.raises(ValueError, match=r"The number of devices must be .* but is 0"):
        cores_as_devices(0)


@pytest.mark.slow
def test_the_page_on_speed_runs(tmp_path):
    page = (Path(__file__).parent.parent / "docs" / "speed.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (cache,) = blocks[1:]  # test_factories.py runs that on many settings
    done = python(cache.replace("my-cache", (tmp_path / "cache").as_posix()))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.slow
@pytest.mark.internals
def test_a_generator_that_is_left_open_ends_quietly():
    done = python(
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import fedax\n"
        "from problems import quadratic_task\n"
        "task = quadratic_task()\n"
        "rounds = fedax.simulate(task, fedax.fedavg(task.model, 0.1), num_rounds=99, "
        "cohort_size=2)\n"
        "next(rounds)\n",
        JAX_ENABLE_X64="1",
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.internals
@pytest.mark.slow
@pytest.mark.alone
def test_the_second_run_compiles_nothing(tmp_path, monkeypatch):
    """On two cores, as a user runs it; the numbers are those of the first run to the bit."""
    for name in [name for name in os.environ if name.startswith("JAX_")]:
        monkeypatch.delenv(name)  # what conftest.py sets
    seen = []
    for name in ("first", "second"):
        done = python(
            "import sys; from fedax.cli.main import main\n"
            f"sys.argv[1:] = ['run', '--rounds', '2', '--out', {str(tmp_path / name)!r},"
            " '--devices', '2', '--set', 'evaluate_every=0']\nmain()",
            XDG_CACHE_HOME=str(tmp_path / "cache"),
        )
        assert done.returncode == 0, done.stderr
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        seen.append([json.loads(line) for line in lines])
        assert json.loads((tmp_path / name / "config.json").read_text())["made_by"][
            "num_devices"] == 2
    first, second = seen
    assert [r["train_loss"] for r in first] == [r["train_loss"] for r in second]
    assert list((tmp_path / "cache" / "fedax" / "programs").glob("*/jit_run_rounds-*"))
    assert second[0]["compile_seconds"] < 0.7 * first[0]["compile_seconds"]


FIRST_RUN = """
import numpy as np
import jax
from jax._src import compiler
import fedax

data = fedax.FederatedDataset.from_arrays({"x": np.ones((40, 3), np.float32),
                                           "y": np.ones(40, np.float32)}, np.arange(40) // 4)
start = np.zeros(3, np.float32)
model = fedax.regression(lambda key: jax.device_put(start), lambda params, x: x @ params)
plain = compiler.compile_or_get_cached

def named(backend, computation, *others, **options):
    print(computation.operation.attributes["sym_name"].value)
    return plain(backend, computation, *others, **options)

compiler.compile_or_get_cached = named
for rate in (0.1, 0.2):
    fedax.train(fedax.Task(model, data), fedax.fedavg(model, rate), num_rounds=5, cohort_size=10,
                evaluate_every=0, progress=False)
"""


@pytest.mark.quick
def test_a_first_run_compiles_a_trial_of_the_options_the_keys_and_the_rounds():
    """Each program costs some hundredths of a second, arrays made by JAX one a dtype and shape."""
    said = subprocess.run(
        [sys.executable, "-c", FIRST_RUN], capture_output=True, text=True, check=True, timeout=120
    ).stdout
    all_known = len(compiling._known()) == 2
    trials = 1 if all_known else 3  # of both options, and then of each
    assert said.split() == ["jit__lambda"] * trials + ["jit_fold_in", "jit_run_rounds"]


@pytest.mark.quick
@pytest.mark.internals
def test_what_the_compiler_leaves_is_given_back_before_the_program_runs(monkeypatch):
    trimmed, seen = [], []
    monkeypatch.setattr(memory, "_trim", lambda: trimmed.append)
    monkeypatch.setattr(memory, "_LONG", 0.0)
    jax.jit(lambda x: jax.pure_callback(
        lambda y: (seen.append(len(trimmed)), y)[1], jax.ShapeDtypeStruct((), np.float32), x
    ))(np.float32(3)).block_until_ready()
    assert seen[0] >= 1  # once it was compiled, and before it ran
    monkeypatch.setattr(memory, "_LONG", 1e9)
    before = len(trimmed)
    jax.jit(lambda x: x + 7)(np.float32(3)).block_until_ready()
    assert len(trimmed) == before
