"""What fedax uses of JAX's internals, each on the version that is installed."""

import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import primitives

import fedax
from fedax.devices import compiling, internals
from xla_flags import FLAGS, known

pytestmark = [pytest.mark.quick, pytest.mark.internals]

SOURCE = Path(fedax.__file__).parent
PRIVATE = re.compile(r"jax\._src|\bjax\.(extend|interpreters|experimental|lib)\b|\bjaxlib\.\w")


def test_no_other_file_imports_them():
    having = [
        path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py")
        if PRIVATE.search("".join(
            line for line in path.read_text("utf-8").splitlines(keepends=True)
            if re.match(r"\s*(from|import) |.*import_module\(", line)
        ))
    ]
    assert having == ["devices/internals.py"]


def doubled(equation):
    if "jaxpr" in equation.params:
        nested = internals.with_equations(equation.params["jaxpr"], doubled)
        return equation.replace(params=equation.params | {"jaxpr": nested})
    if equation.primitive is not primitives.sin_p:
        return equation
    return equation.replace(primitive=primitives.cos_p)


@pytest.mark.parametrize("around", [
    lambda f: f, jax.jit, lambda f: jax.jit(jax.jit(f)), jax.checkpoint,
    lambda f: lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, None, length=1)[0],
], ids=["plain", "jit", "jit twice", "checkpoint", "scan"])
def test_equations_are_changed_at_any_depth(around):
    constant = np.arange(3.0)  # so that the program has constants
    x = jnp.array([0.0, 0.5, 1.0])
    program = jax.make_jaxpr(around(lambda x: jnp.sin(x) + constant))(x)
    changed = internals.with_equations(program, doubled)
    (result,) = internals.jaxpr_as_fun(changed)(x)
    np.testing.assert_allclose(result, np.cos(x) + constant, rtol=1e-12)
    (result,) = internals.jaxpr_as_fun(program)(x)  # which is left as it was
    np.testing.assert_allclose(result, np.sin(x) + constant, rtol=1e-12)


def test_equations_of_a_tuple_of_programs_and_of_other_parameters():
    program = jax.make_jaxpr(jnp.sin)(0.5)
    others = ("name", None, 3, np.ones(2))
    changed = internals.with_equations((program, *others), doubled)
    assert internals.jaxpr_as_fun(changed[0])(0.5)[0] == np.cos(0.5)
    assert all(after is before for after, before in zip(changed[1:], others, strict=True))


def test_the_state_of_a_trace_tells_functions_apart():
    outside = internals.trace_state()
    assert internals.trace_state() == outside

    @jax.jit
    def inside(x):
        assert internals.trace_state() == internals.trace_state() != outside
        return x

    inside(1.0)


def test_a_new_primitive_is_compiled_batched_and_differentiated():
    """3 x, which on a CPU is computed in another way."""
    def batched(primitive, arguments, axes):
        return primitive.bind(*arguments), axes[0]

    triple = internals.new_primitive(
        "triple", lambda x: x, lambda x: 3 * x, lambda x: x + x + x, batched
    )

    def transposed(cotangent, x):
        assert internals.in_transposition(x)
        return (triple.bind(cotangent),)

    internals.set_derivatives(triple, (lambda tangent, x: triple.bind(tangent),), transposed)
    assert not internals.in_transposition(jnp.ones(()))
    x = jnp.arange(4.0).reshape(2, 2)
    assert jax.make_jaxpr(triple.bind)(x).eqns[0].primitive is triple
    for compute in (triple.bind, jax.jit(triple.bind), jax.vmap(triple.bind, 1, 1)):
        np.testing.assert_array_equal(compute(x), 3 * x)
    assert jax.grad(triple.bind)(2.0) == 3.0
    assert jax.jvp(triple.bind, (2.0,), (1.0,)) == (6.0, 3.0)


def test_a_callback_reads_and_writes_buffers():
    def double(context, out, x):
        np.asarray(out)[...] = 2 * np.asarray(x)

    x = jnp.arange(3.0)
    call = internals.buffer_callback(double, jax.ShapeDtypeStruct(x.shape, x.dtype))
    np.testing.assert_array_equal(jax.jit(call)(x), 2 * x)


def test_a_single_process_broadcasts_and_gathers():
    assert internals.multihost_utils.broadcast_one_to_all(np.asarray(True))
    assert np.any(internals.multihost_utils.process_allgather(np.asarray(True)))


def test_what_jax_knows_of_the_processes():
    state = internals.processes()
    assert state.client is None
    assert state.process_id == 0


@pytest.mark.parametrize("there", ["as it is", "without the function", "without the module"])
def test_programs_are_kept_or_jax_says_that_they_cannot_be(there, monkeypatch):
    name = "jax._src.compilation_cache"
    module = sys.modules[name]
    monkeypatch.setattr(module, "get_file_cache", module.get_file_cache)
    if there == "without the function":
        monkeypatch.delattr(module, "get_file_cache")
    if there == "without the module":
        monkeypatch.setitem(sys.modules, name, None)
    programs = object()
    assert internals.cache_programs_in(programs) == (there == "as it is")
    if there == "as it is":
        assert module.get_file_cache("a folder") == (programs, "a folder")


def test_options_of_xla_that_it_does_not_know_are_left_out(monkeypatch):
    compiling._known.cache_clear()
    compiling.options.cache_clear()
    try:
        on_a_cpu = jax.default_backend() == "cpu"
        found = compiling.options(1, newer_loops=True)
        assert found == ({compiling.LEVEL: 1} if on_a_cpu else None)
        compiling.jit(lambda x: x + 1, 1)(0)  # with all options that are known
        compiling._known.cache_clear()
        compiling.options.cache_clear()
        monkeypatch.setattr(compiling, "OLDER_LOOPS", {"xla_no_such_option": False})
        assert compiling.options(None, newer_loops=False) == ({} if on_a_cpu else None)
        assert compiling.options(1, newer_loops=False) == found
    finally:
        compiling._known.cache_clear()
        compiling.options.cache_clear()


def test_flags_of_xla_that_it_does_not_know_are_left_out():
    """They abort the process, and with it all tests."""
    assert known((FLAGS[0], "--xla_no_such_flag=1", FLAGS[2])) == (FLAGS[0], FLAGS[2])


@pytest.mark.parametrize(("message", "fails"), [("jax.f is deprecated", True), ("another", False)])
def test_what_jax_is_going_to_take_away_fails_in_processes_that_tests_start(message, fails):
    code = f"import warnings; warnings.warn({message!r}, DeprecationWarning)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode != 0) == fails
