"""What happens before a first round: imports, initial parameters, what a sweep's units share."""

import subprocess
import sys

import jax
import numpy as np
import pytest

import fedax
from fedax import models
from fedax.rounds.options import Settings
from fedax.rounds.state import initial_params, run_key
from fedax.sweeps import batch
from fedax.sweeps.batch import Shared
from problems import identical

pytestmark = pytest.mark.quick


def test_the_command_line_imports_nothing_that_a_run_does_not_need():
    slow = ["matplotlib", "scipy", "pandas", "optuna", "PIL", "h5py"]
    code = f"""
import sys
import fedax.cli.main, fedax.experiment.run
print([name for name in {slow} if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("model", [
    models.mlp_classifier(6, (5,), 3),
    models.character_lstm(4, 1),
    models.pooled_cnn((8, 8, 1), 3, num_filters=(2, 3)),
], ids=["mlp", "lstm", "cnn"])
def test_initial_parameters_are_those_of_the_models_init(model):
    # One program may merge two factors, each rounded once: 2 units in the last place.
    for got, wanted in zip(
        jax.tree.leaves(initial_params(model, 3)), jax.tree.leaves(model.init(run_key(3, 0))),
        strict=True,
    ):
        tolerance = 4 * np.finfo(got.dtype).eps
        np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)


def test_a_users_init_is_called_as_it_is():
    seen = []
    model = fedax.regression(lambda key: seen.append(key) or np.ones(2), lambda p, x: x @ p)
    np.testing.assert_array_equal(initial_params(model, 0), np.ones(2))
    (key,) = seen
    assert np.asarray(jax.random.key_data(key)).tolist()  # and not while it was traced


def test_the_units_of_a_sweep_share_evaluators_and_untrained_losses(monkeypatch):
    task = fedax.load_task("digits", model="logistic")
    shared, devices = Shared(), jax.devices()[:1]
    losses = []
    monkeypatch.setattr(batch, "mean_loss", lambda task, params: losses.append(params) or 1.0)
    settings = Settings.checked(4, {"cohort_size": 3, "evaluate_every": 4})
    first = shared.evaluators(task, settings, devices)
    assert shared.evaluators(task, settings._replace(seed=1), devices) is first
    sampled = settings._replace(evaluation_sample=20)
    assert shared.evaluators(task, sampled, devices) is not shared.evaluators(
        task, sampled._replace(seed=1), devices
    )
    assert shared.evaluators(task, settings._replace(evaluate_every=0), devices) == []
    for seed in (0, 0, 1):
        assert shared.untrained_loss(task, seed) == 1.0
    assert len(losses) == 2
    for seed, params in enumerate(losses):
        assert identical(params, initial_params(task.model, seed))
