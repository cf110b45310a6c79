"""The flags of XLA that tests run with, of which versions know different ones."""

import os
import subprocess
import sys

# Programs that are compiled in a third of the time, with the same numbers up to rounding, and that
# run as fast as usual.
FLAGS = (
    "--xla_backend_optimization_level=1",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
)


def known(flags):
    """Those that this version of XLA knows: any other aborts the process that has it."""

    def starts(*flags):
        return subprocess.run(
            [sys.executable, "-c", "import jax; jax.devices()"], capture_output=True, check=False,
            env={**os.environ, "XLA_FLAGS": " ".join(flags)}, timeout=120,
        ).returncode == 0

    return flags if starts(*flags) else tuple(flag for flag in flags if starts(flag))
