"""Continuing a run: how much memory the clients' states take."""

import tracemalloc

import numpy as np
import pytest

from fedax.data.task import Task
from fedax.experiment.train import train
from fedax.rounds.client_store import ClientStore
from fedax.theory import tables
from test_hard_users import quadratic, ragged, scaffold

COUNT, SIZE, COHORT_SIZE = 80, 100_000, 2
STATES = COUNT * SIZE * 8


@pytest.mark.slow
@pytest.mark.parametrize("memory_bytes", [2 * 2**30, 10**6], ids=["memory", "disk"])
def test_states_are_in_memory_once_at_most(tmp_path, monkeypatch, memory_bytes):
    """Neither copied when the run is restored, nor when they grow; on the disk a block is."""
    monkeypatch.setattr(ClientStore.__init__, "__defaults__", (memory_bytes,))
    monkeypatch.setitem(tables.MOST_BYTES, ".json", 2**20)  # as much is asked for when one is read
    model, data = quadratic(SIZE), ragged([1] * COUNT, dimension=1)

    def store_after(num_rounds, **out):
        return train(
            Task(model, data), scaffold(model, 0.1, 1, 1), num_rounds=num_rounds, progress=False,
            sampling=lambda seed, index: np.arange(COHORT_SIZE) + COHORT_SIZE * index,
            cohort_size=COHORT_SIZE, evaluate_every=0, **out,
        ).state.client_store

    in_folder = {"out": tmp_path / "run", "checkpoint_every": 20}
    store_after(20, **in_folder)
    tracemalloc.start()
    store = store_after(40, **in_folder)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (store._file is not None) == (memory_bytes < STATES)
    assert peak < 25 * 10**6 + (0 if store._file else STATES)  # a block of 16 MiB, and cohorts
    everyone, expected = np.arange(COUNT), store_after(40)
    np.testing.assert_array_equal(store.read(everyone)["x"], expected.read(everyone)["x"])


@pytest.mark.quick
def test_the_states_that_somebody_continues_from_are_not_changed():
    """Those of a user are copied, unlike those that a folder's run was restored to."""
    model, data = quadratic(3), ragged([1] * 6)
    task, algorithm = Task(model, data), scaffold(model, 0.1, 1, 1)
    options = {"cohort_size": 6, "evaluate_every": 0, "progress": False}
    first = train(task, algorithm, num_rounds=1, **options).state
    before = first.client_store.read(np.arange(6))["x"]
    second = train(task, algorithm, num_rounds=3, state=first, **options).state
    np.testing.assert_array_equal(first.client_store.read(np.arange(6))["x"], before)
    assert (second.client_store.read(np.arange(6))["x"] != before).any()
