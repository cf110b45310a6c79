"""Strict numerics for every test: float64, no silent promotion of dtypes or ranks."""

import os

import jax
import pytest

from quick import quick_jit

# Neither here nor in the processes that tests start do programs come from an earlier session.
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "0"
jax.config.update("jax_enable_compilation_cache", False)
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# These run models of real size, or what users run, and are compiled as users' programs are.
COMPILED_AS_USUAL = {
    "test_benchmarks", "test_characters", "test_client_store", "test_diagnostics",
    "test_hard_users", "test_identities_local_update", "test_methods_on_shakespeare",
    "test_readme", "test_recurrence", "test_reproductions", "test_run", "test_shakespeare",
}


@pytest.fixture(autouse=True)
def _compile_quickly(request, monkeypatch):
    """The other tests run small programs a few times each, so compiling is most of their time."""
    path = request.node.path
    if path.parent.name == "tests" and path.stem not in COMPILED_AS_USUAL:
        monkeypatch.setattr(jax, "jit", quick_jit)
