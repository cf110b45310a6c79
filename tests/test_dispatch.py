"""Several rounds in one dispatch change no bit, and stop where something is wanted."""

import jax
import numpy as np
import pytest

import fedax
from fedax import DivergedError, simulate
from fedax.dispatch import MOST_ROUNDS, Pace
from problems import identical, quadratic_clients, quadratic_model, quadratic_task

TASK = quadratic_task()
LOCAL = {"num_local_epochs": 2, "batch_size": 2}


def reports(algorithm, **options):
    options = {"num_rounds": 40, "cohort_size": 4, "evaluate_every": 0} | options
    return list(simulate(options.pop("task", TASK), algorithm, **options))


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_rounds_together_are_the_rounds_one_by_one(dropout):
    algorithm = fedax.fedyogi(TASK.model, 0.05, 0.1, **LOCAL)
    single = reports(algorithm, dropout=dropout)
    for options in ({"state_every": 100}, {"state_every": 7, "donate": True},
                    {"state_every": 100, "evaluate_every": 9}):
        together = reports(algorithm, dropout=dropout, **options)
        assert len(together) == 40
        for a, b in zip(together, single, strict=True):
            for name in ("train_loss", "num_reports", "num_dropped", "total_local_steps"):
                assert a.metrics[name] == b.metrics[name] or np.isnan(b.metrics[name])
            assert a.dropped == b.dropped
        assert identical(together[-1].state.server_state, single[-1].state.server_state)
        every = options["state_every"]
        wanted = [number % every == 0 or number == 40 for number in range(1, 41)]
        if "donate" not in options:
            assert all(r.state is not None for r, w in zip(together, wanted, strict=True) if w)
            assert any(r.state is None for r in together)
        tested = [r.metrics["round"] for r in together if "test_distance" in r.metrics]
        assert tested == ([9, 18, 27, 36, 40] if "evaluate_every" in options else [])


def test_a_run_stops_at_the_round_that_goes_wrong():
    """In round r the loss is about 1e60 (1e60)^(2 (r - 1)), which float64 has up to r = 3."""
    data = quadratic_clients((3, 4, 5))
    data.arrays["A"][...] *= 1e60
    task = fedax.Task(quadratic_model(3), data)
    algorithm = fedax.fedavg(task.model, 1.0, batch_size=10)
    seen = {}
    for every in (1, 100):
        rounds = simulate(task, algorithm, num_rounds=50, cohort_size=3, state_every=every)
        seen[every] = [next(rounds).metrics["train_loss"] for _ in range(3)]
        with pytest.raises(DivergedError, match="Round 4: none of the 3 clients"):
            next(rounds)
    assert seen[1] == seen[100]


def test_client_states_go_round_by_round():
    algorithm = fedax.scaffold(TASK.model, 0.05, **LOCAL)
    a, b = (reports(algorithm, state_every=every)[-1].state for every in (1, 100))
    assert identical(a.server_state, b.server_state)
    assert identical(a.client_store.read(np.arange(10)), b.client_store.read(np.arange(10)))


def test_train_leaves_the_callers_state_alone():
    algorithm = fedax.fedavgm(TASK.model, 0.05, **LOCAL)
    first = fedax.train(TASK, algorithm, num_rounds=3, cohort_size=4)
    before = jax.tree.map(np.array, first.state.server_state)
    ends = [
        fedax.train(TASK, algorithm, num_rounds=9, cohort_size=4, state=first.state).params
        for _ in range(2)
    ]
    assert identical(*ends)
    assert identical(first.state.server_state, before)


def test_the_pace_follows_the_rounds():
    pace = Pace(MOST_ROUNDS)
    pace.learn(5.0, 1)  # compiling
    for _ in range(10):
        pace.learn(1e-4 * pace.count, pace.count)
    assert pace.count == MOST_ROUNDS
    pace.learn(1.0 * pace.count, pace.count)
    assert pace.count == 1
