"""Strict numerics for every test: float64, no silent promotion of dtypes or ranks.

Tests run in several processes (pytest-xdist; `-n 0` for one), which share the programs they
compile. What measures time is marked `alone` and runs while the other processes wait.
"""

import contextlib
import gc
import importlib
import os
import shutil
import tempfile
from pathlib import Path

import jax
import pytest

from fedax.rounds import evaluation, measurements, personalization
from xla_flags import FLAGS, known

_sharing: Path | None = None  # the file whose programs are kept
simulation = importlib.import_module("fedax.rounds.simulate")  # fedax.simulate is the function

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# Programs are large graphs of objects, and looking for cycles in them is a tenth of the time.
gc.set_threshold(100_000, 50, 100)

# Set before the first program; the processes that tests start inherit it.
if "XLA_FLAGS" not in os.environ:
    os.environ["XLA_FLAGS"] = " ".join(known(FLAGS))

# What JAX is going to take away fails in the processes that tests start, too.
os.environ.setdefault("PYTHONWARNINGS", "error:jax.:DeprecationWarning")

# The folder that this session's processes share, and those that its tests start. No program comes
# from an earlier session.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["FEDAX_TEST_FOLDER"] = tempfile.mkdtemp(prefix="fedax-tests-")
SHARED = Path(os.environ["FEDAX_TEST_FOLDER"])
os.environ["XDG_DATA_HOME"] = str(SHARED / "data")  # this user's key
for _name, _value in {
    "jax_enable_compilation_cache": True,
    "jax_compilation_cache_dir": str(SHARED / "programs"),
    "jax_persistent_cache_min_compile_time_secs": 0.1,
}.items():
    jax.config.update(_name, _value)
    os.environ[_name.upper()] = str(_value)

# One device in this process, whichever test is the first to use JAX: a command would take two.
jax.local_devices()


def pytest_collection_modifyitems(items):
    """The longest tests begin first, so that in the end no process waits for one of them."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.fixture(autouse=True)
def _compile_anew(request):
    """Kept programs would hide what a test changes in the functions that they are made of.

    The tests of a file that is marked `shares_programs` change none, nor count compilations.
    """
    global _sharing  # noqa: PLW0603
    shares = request.node.get_closest_marker("shares_programs") is not None
    if not shares or request.node.path != _sharing:
        for module in (simulation, evaluation, measurements, personalization):
            module._program.cache_clear()
    _sharing = request.node.path if shares else None


@pytest.fixture(autouse=True)
def _compile_quickly(request):
    """Most tests run small programs a few times each, so compiling is most of their time."""
    pays = request.node.get_closest_marker("optimised") is not None
    jax.config.update("jax_disable_most_optimizations", not pays)


@pytest.fixture(autouse=True)
def _alone_if_it_says_so(request):
    """Tests of time have the machine to themselves, as far as this session is concerned."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError):  # on Windows such tests may be disturbed
            import fcntl

            file = stack.enter_context((SHARED / "lock").open("w"))
            alone = request.node.get_closest_marker("alone")
            fcntl.flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


def pytest_unconfigure():
    if "PYTEST_XDIST_WORKER" not in os.environ:
        shutil.rmtree(SHARED, ignore_errors=True)


@pytest.fixture
def compiled():
    """Names of the programs that were compiled, in order."""
    names = []

    def listen(event, duration, **kwargs):
        del duration
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(kwargs.get("fun_name", event))

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield names
    jax.monitoring.unregister_event_duration_listener(listen)
