"""Programs that are compiled quickly and run slowly: tests run each a few times on small arrays."""

import functools

import jax

# The same numbers up to rounding. Of every program; without these compiling takes three times as
# long, and a model of real size runs as fast.
COMPILER_FLAGS = (
    "--xla_backend_optimization_level=1 --xla_cpu_use_fusion_emitters=false "
    "--xla_cpu_parallel_codegen_split_count=1"
)
# Halves the compilation again, for what runs small arrays only.
quick_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
