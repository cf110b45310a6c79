"""Several rounds in one dispatch change no bit, and stop where something is wanted."""

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax import DivergedError, simulate
from fedax.data import cohort_data
from fedax.rounds.dispatch import MOST_ROUNDS, Pace
from problems import identical, quadratic_clients, quadratic_model, quadratic_task

pytestmark = pytest.mark.internals

TASK = quadratic_task()
LOCAL = {"num_local_epochs": 2, "batch_size": 2}


def reports(algorithm, **options):
    options = {"num_rounds": 40, "cohort_size": 4, "evaluate_every": 0} | options
    return list(simulate(options.pop("task", TASK), algorithm, **options))


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_run_stops_at_the_round_that_goes_wrong():
    """In round r the loss is about 1e50 (1e50)^(2 (r - 1)), which float64 has up to r = 3."""
    data = quadratic_clients((3, 4, 5))
    data.arrays["A"][...] *= 1e50
    task = fedax.Task(quadratic_model(3), data)
    algorithm = fedax.fedavg(task.model, 1.0, batch_size=10)
    seen = {}
    for every in (1, 100):
        rounds = simulate(task, algorithm, num_rounds=50, cohort_size=3, state_every=every)
        seen[every] = [next(rounds).metrics["train_loss"] for _ in range(3)]
        with pytest.raises(DivergedError, match="Round 4: none of the 3 clients"):
            next(rounds)
    assert seen[1] == seen[100]


@pytest.mark.slow
def test_client_states_go_round_by_round():
    algorithm = fedax.scaffold(TASK.model, 0.05, **LOCAL)
    a, b = (reports(algorithm, state_every=every)[-1].state for every in (1, 100))
    assert identical(a.server_state, b.server_state)
    assert identical(a.client_store.read(np.arange(10)), b.client_store.read(np.arange(10)))


@pytest.mark.quick
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
    for _ in range(10):
        pace.learn(1e-4 * pace.count, pace.count)
    assert pace.count == MOST_ROUNDS
    pace.learn(1.0 * pace.count, pace.count)
    assert pace.count == 1


@pytest.mark.slow
def test_cohorts_of_other_sizes_go_apart():
    algorithm = fedax.fedyogi(TASK.model, 0.05, 0.1, **LOCAL)

    def sampling(seed, round_index):
        del seed
        return np.arange(1 + round_index // 7 % 3)

    single, together = (reports(algorithm, sampling=sampling, state_every=n) for n in (1, 100))
    assert identical(together[-1].state.server_state, single[-1].state.server_state)
    assert [r.metrics["num_reports"] for r in together[::7]] == [1, 2, 3, 1, 2, 3]
    assert any(r.state is None for r in together)


@pytest.mark.slow
def test_rounds_before_a_samplers_error_are_run():
    def sampling(seed, round_index):
        del seed
        if round_index == 20:
            raise KeyError("no clients today")
        return np.arange(4)

    for every in (1, 1000):
        rounds = simulate(
            TASK, fedax.fedavg(TASK.model, 0.05, **LOCAL), num_rounds=40, sampling=sampling,
            evaluate_every=0, state_every=every,
        )
        assert [next(rounds).metrics["round"] for _ in range(20)] == list(range(1, 21))
        sentence = "given as sampling failed .*no clients today"
        with pytest.raises(ValueError, match=sentence) as caught:
            next(rounds)
        assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.slow
def test_packed_data_go_round_by_round_in_the_dtype_of_the_caller(monkeypatch):
    """JAX's context managers hold in their thread, and another one brings the data."""
    algorithm = fedax.fedavg(TASK.model, 0.05, **LOCAL)
    resident = reports(algorithm, state_every=100)
    monkeypatch.setattr(cohort_data.CohortReader.__init__, "__defaults__", (0, None))
    jax.config.update("jax_enable_x64", False)
    try:
        with jax.enable_x64(True):
            packed = reports(algorithm, state_every=100)
    finally:
        jax.config.update("jax_enable_x64", True)
    assert [r.metrics["train_loss"] for r in packed] == [
        r.metrics["train_loss"] for r in resident]
    assert all(r.state is not None for r in packed)


@pytest.mark.slow
def test_times_are_of_this_run_and_thread():
    """A sampler that compiles does so in the data thread, while the rounds are timed here."""
    def sampling(seed, round_index):
        del seed
        jax.jit(lambda x: jnp.cos(x) * round_index)(1.0)
        return np.arange(4)

    def run():
        return reports(fedax.fedavg(TASK.model, 0.05, **LOCAL), sampling=sampling,
                       evaluate_every=5, task=TASK)

    with ThreadPoolExecutor(2) as threads:
        for found in [future.result() for future in [threads.submit(run), threads.submit(run)]]:
            for report in found:
                times = {k: v for k, v in report.metrics.items() if "seconds" in k}
                assert min(times.values()) >= 0
                assert times["data_seconds"] <= times["seconds"]


def test_a_wrong_mesh_is_said():
    algorithm = fedax.fedavg(TASK.model, 0.05, **LOCAL)
    for wrong in (2, jax.make_mesh((1,), ("data",))):
        with pytest.raises(ValueError, match=r"must be None or a mesh from fedax\.client_mesh"):
            fedax.train(TASK, algorithm, num_rounds=1, mesh=wrong)
    with pytest.raises(ValueError, match="num_rounds must be"):
        fedax.train(TASK, algorithm, num_rounds=None)
