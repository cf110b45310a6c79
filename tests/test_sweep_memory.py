"""What a sweep needs of memory: it grows with the settings side by side, not with the grid."""

from __future__ import annotations

import subprocess
import sys

import pytest

# A model of 1 MB, whose settings have 1 MB of state each, or two with momentum.
SWEEP = """
import resource, sys
import jax
jax.config.update("jax_num_cpu_devices", 1)
import numpy as np
import fedax
settings, side_by_side = map(int, sys.argv[1:])
model = fedax.Model(
    lambda key: {"x": jax.numpy.zeros(250_000, jax.numpy.float32)},
    lambda params, batch, key: ((params["x"][:1] - batch["a"]) ** 2, 1 + 0 * batch["a"]),
    lambda params, batch: batch["a"], {},
)
data = fedax.FederatedDataset.from_arrays(
    {"a": np.ones(8, np.float32)}, np.repeat(np.arange(4), 2))
fedax.sweep(
    fedax.Task(model, data), fedax.fedavgm,
    {"client_learning_rate": np.linspace(0.01, 0.1, settings).tolist(), "num_local_steps": 2,
     "batch_size": 1},
    num_rounds=3, cohort_size=2, evaluate_every=0, progress=False,
    settings_per_batch=side_by_side,
)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def peak(settings: int, side_by_side: int) -> float:
    """MiB that a sweep of a process of its own had at most."""
    process = subprocess.run(
        [sys.executable, "-c", SWEEP, str(settings), str(side_by_side)],
        capture_output=True, text=True, check=True, timeout=300,
    )
    return float(process.stdout)


@pytest.mark.slow
def test_memory_grows_with_the_settings_side_by_side_and_not_with_the_grid() -> None:
    few, many, wide = peak(16, 4), peak(256, 4), peak(256, 64)
    assert many < few + 40  # the states of 240 settings more would be 240 to 720 MiB
    assert wide > many + 60  # those of 60 settings more at a time are: the measure sees them
