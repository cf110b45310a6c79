"""Evaluation on a sample while training goes on: the same numbers whatever the clock says."""

import json
import signal
import time

import jax
import numpy as np
import pytest

import fedax
from fedax import DivergedError, EarlyStopping, simulate
from fedax.experiment import run, sitting
from fedax.experiment.display import describe_test
from fedax.experiment.pages import report_page
from fedax.rounds import evaluation, meanwhile, measurements
from fedax.rounds.batch_sizes import usual_batch_size
from fedax.rounds.evaluation import Evaluator
from fedax.rounds.meanwhile import MOST_STATES, Budget
from fedax.rounds.sampling import sample_examples
from fedax.tasks.registry import TASKS, TaskInfo
from problems import identical, quadratic_clients, quadratic_model, quadratic_task
from test_run import Killed, assert_same_run, config, timeless

pytestmark = [pytest.mark.quick, pytest.mark.shares_programs]

TASK = quadratic_task()  # 57 examples
SAMPLE = 23
OPTIONS = {"cohort_size": 3, "evaluate_every": 5, "evaluation_sample": SAMPLE}


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch):
    """Six batches a sample."""
    monkeypatch.setattr(evaluation, "usual_batch_size", four := lambda *_, **__: 4)
    monkeypatch.setattr(measurements, "usual_batch_size", four)


def pieces(monkeypatch, batches):
    """Has `batches(call)` batches go after each round, in place of what the clock says."""
    calls, left = iter(range(10**6)), [0]

    def rounds_took(self, seconds):
        left[0] = batches(next(calls))

    def allows(self, spent):
        left[0] -= 1
        return left[0] >= 0

    monkeypatch.setattr(Budget, "rounds_took", rounds_took)
    monkeypatch.setattr(Budget, "allows", allows)


def fedyogi(model=TASK.model):
    return fedax.fedyogi(model, 0.1, 0.05, batch_size=2)


def reports(algorithm=None, task=TASK, **options):
    options = OPTIONS | {"num_rounds": 22} | options
    return list(simulate(task, algorithm or fedyogi(), **options))


def without_seconds(found):
    return [{k: v for k, v in r.metrics.items() if "seconds" not in k} for r in found]


def sampled_task():
    """A data set of the drawn examples alone."""
    rows = sample_examples(0, TASK.test.num_examples, SAMPLE)
    return fedax.FederatedDataset(
        {name: array[rows] for name, array in TASK.test.arrays.items()}, np.array([0, SAMPLE])
    )


def test_a_sampled_round_has_the_metrics_of_the_drawn_examples():
    full = reports(evaluation_sample=None)
    found = reports()
    assert [r.metrics["round"] for r in found] == list(range(1, 23))
    drawn = sampled_task()
    for a, b in zip(found, full, strict=True):
        number = a.metrics["round"]
        assert a.metrics["train_loss"] == b.metrics["train_loss"]  # training does not notice
        assert ("test_distance" in a.metrics) == (number in (5, 10, 15, 20, 22))
        assert a.metrics["delay_seconds"] >= 0
        if number in (5, 10, 15, 20):
            expected = fedax.evaluate(TASK.model, b.state.server_state.params, drawn)["distance"]
            assert a.metrics["test_distance"] == pytest.approx(expected, rel=1e-12)
            assert a.metrics["test_distance"] != pytest.approx(b.metrics["test_distance"], rel=0.01)
            counts = (a.metrics["evaluated_examples"], a.metrics["evaluated_of"])
            assert counts == (SAMPLE, 57)
            assert (a.clients, "test_worst_tenth_distance" in a.metrics) == (None, False)
    last, expected = found[-1], full[-1]
    for name in ("test_distance", "test_worst_tenth_distance"):
        assert last.metrics[name] == pytest.approx(expected.metrics[name], rel=1e-12)
    assert last.metrics["evaluated_examples"] == last.metrics["evaluated_of"] == 57
    np.testing.assert_allclose(last.clients["distance"], expected.clients["distance"], rtol=1e-12)
    assert identical(last.state.server_state, expected.state.server_state)


def test_examples_are_drawn_uniformly_and_by_the_seed():
    drawn = [sample_examples(seed, 40, 10) for seed in range(400)]
    assert all(len(set(rows.tolist())) == 10 and (np.diff(rows) > 0).all() for rows in drawn)
    assert np.array_equal(drawn[3], sample_examples(3, 40, 10))
    counts = np.bincount(np.concatenate(drawn), minlength=40)
    # 39 degrees of freedom, less by the 3/4 that drawing without replacement leaves of the variance
    assert ((counts - 100) ** 2 / (100 * 0.75)).sum() * 39 / 40 < 72.1  # 0.1%


SCHEDULES = {
    "never": lambda call: 0, "at once": lambda call: 99, "one by one": lambda call: 1,
    "now and then": lambda call: (0, 0, 3, 1)[call % 4],
}


@pytest.mark.parametrize("options", [
    {}, {"state_every": 4, "donate": True}, {"evaluate_every": 1, "state_every": 100},
    {"personalize_steps": 1, "state_every": 3},
], ids=str)
def test_no_bit_depends_on_when_the_batches_go(monkeypatch, options):
    plain = reports(evaluation_sample=None)
    expected = None
    for batches in SCHEDULES.values():
        pieces(monkeypatch, batches)
        states = {}
        for report in simulate(TASK, fedyogi(), **OPTIONS | {"num_rounds": 22} | options):
            number = report.metrics["round"]
            states[number] = report.state and jax.tree.map(np.array, report.state.server_state)
            expected = [] if expected is None else expected
            line = without_seconds([report])[0]
            if len(expected) < number:
                expected.append(line)
            assert line == expected[number - 1]
        assert list(states) == list(range(1, 23))
        every = options.get("state_every", 1)
        for number in range(1, 23):
            if number % every == 0 or number == 22 or number % 5 == 0:
                assert identical(states[number], plain[number - 1].state.server_state)


def test_few_states_are_kept_back(monkeypatch):
    """Rounds wait rather than hold one state more; a report comes with no more than it needs."""
    pieces(monkeypatch, lambda call: 0)
    kept, most = [], 0
    keep = meanwhile.Meanwhile._kept

    def counted(self, state):
        nonlocal most
        most = max(most, sum(r.state is not None for r in self._held[1:]) + 1)
        kept.append(1)
        return keep(self, state)

    monkeypatch.setattr(meanwhile.Meanwhile, "_kept", counted)
    reports(evaluate_every=15, num_rounds=40)
    assert most == MOST_STATES
    kept.clear()
    reports(evaluate_every=15, num_rounds=40, state_every=40)
    assert len(kept) == 3  # of the rounds 15 and 30, which are evaluated, and 40


def spent_after(budget, seconds, batch_seconds):
    """What batches take after a round, by a clock that is pretended."""
    budget.rounds_took(seconds)
    spent = 0.0
    while budget.allows(spent):
        taken = batch_seconds()
        budget.batch_took(taken)
        spent += taken
    return spent


@pytest.mark.parametrize("mean", [0.0005, 0.003])
def test_no_round_waits_for_more_than_a_tenth(mean):
    """Rounds from 10 to 200 ms, batches up to a quarter slower or faster than usual."""
    rng = np.random.default_rng(0)
    rounds = np.exp(rng.uniform(np.log(0.01), np.log(0.2), 1000))
    budget = Budget(mean)
    spent = [spent_after(budget, t, lambda: mean * rng.uniform(0.75, 1.25)) for t in rounds]
    assert (spent / rounds).max() <= 0.1
    assert 0.05 < sum(spent) / rounds.sum() < 0.075  # most of what may be used


def test_batches_longer_than_every_share_take_a_tenth_on_the_whole():
    budget = Budget(0.05)
    spent = np.array([spent_after(budget, 0.1, lambda: 0.05) for _ in range(1000)])
    assert set(spent.round(6)) == {0.0, 0.05}
    assert 0.07 < spent.sum() / 100 <= 0.0751


def test_a_slow_batch_is_not_the_end_of_evaluation():
    """Half a second, as the machine was busy, between others of a millisecond."""
    budget = Budget(0.001)
    budget.rounds_took(0.1)
    budget.batch_took(0.5)
    assert 0.006 < spent_after(budget, 0.1, lambda: 0.001) <= 0.0075


def test_reports_that_were_kept_back_come_before_the_sentence(monkeypatch):
    pieces(monkeypatch, lambda call: 0)
    data = quadratic_clients((3, 4, 5))
    data.arrays["A"][...] *= 1e50
    task = fedax.Task(quadratic_model(3), data, data)
    rounds = simulate(
        task, fedax.fedavg(task.model, 1.0, batch_size=10), num_rounds=50, cohort_size=3,
        evaluate_every=2, evaluation_sample=5, state_every=100,
    )
    found = [next(rounds) for _ in range(3)]
    assert [r.metrics["round"] for r in found] == [1, 2, 3]
    assert found[1].metrics["evaluated_examples"] == 5
    with pytest.raises(DivergedError, match="Round 4: none of the 3 clients"):
        next(rounds)


def test_what_was_trained_is_reported_before_a_failure(monkeypatch):
    pieces(monkeypatch, lambda call: 0)

    def draw(seed, round_index):
        if round_index == 8:
            raise RuntimeError("the table of clients is gone")
        return np.arange(3)

    for sample in (None, SAMPLE):
        options = OPTIONS | {"num_rounds": 20, "state_every": 3, "evaluation_sample": sample}
        rounds = simulate(TASK, fedyogi(), sampling=draw, **options)
        assert [next(rounds).metrics["round"] for _ in range(8)] == list(range(1, 9))
        with pytest.raises(ValueError, match="the table of clients is gone"):
            next(rounds)


def test_outputs_that_fail_are_a_sentence_with_a_sample_too():
    task = TASK._replace(model=TASK.model._replace(outputs=lambda params, batch: batch["z"]))
    for sample in (None, SAMPLE):
        with pytest.raises(fedax.ModelError, match=r"^Evaluation on task\.test: .* for 'z'"):
            reports(task=task, evaluation_sample=sample)


def test_the_only_batch_is_timed(monkeypatch):
    """Otherwise a batch of a second would pass for one of a microsecond."""
    timed = []
    monkeypatch.setattr(meanwhile, "Budget", lambda seconds: timed.append(seconds) or Budget(0.1))
    measure = Evaluator._measure
    monkeypatch.setattr(
        Evaluator, "_measure", lambda self, *of: time.sleep(0.02) or measure(self, *of)
    )
    reports(num_rounds=6, evaluation_sample=3)
    assert timed[0] >= 0.02


def test_methods_with_client_states_have_the_same_sample_at_once():
    algorithm = fedax.scaffold(TASK.model, 0.05, batch_size=2, num_local_epochs=1)
    found = reports(algorithm, num_rounds=7)
    expected = fedax.evaluate(
        TASK.model, found[4].state.server_state.params, sampled_task()
    )["distance"]
    assert found[4].metrics["test_distance"] == pytest.approx(expected, rel=1e-12)
    assert found[4].metrics["evaluated_examples"] == SAMPLE


def test_a_sample_of_all_is_all():
    found, full = reports(evaluation_sample=57), reports(evaluation_sample=None)
    for a, b in zip(found, full, strict=True):
        assert a.metrics.keys() - {"delay_seconds"} == b.metrics.keys()
        assert (a.clients is None) == (b.clients is None)
        if b.clients is not None:
            np.testing.assert_allclose(a.clients["distance"], b.clients["distance"], rtol=1e-12)


def test_a_walk_comes_to_the_same_bits_in_any_steps():
    params = TASK.model.init(jax.random.key(0))
    evaluator = Evaluator(TASK.model, TASK.test, 4, sample=SAMPLE, seed=3)
    whole = evaluator.per_client(params)
    walk = evaluator.begin(params)
    left = []
    for count in (0, 1, 3, 9):
        walk.go_on(count)
        left.append(walk.batches_left)
    assert left == [6, 5, 2, 0]
    assert walk.result().overall() == whole.overall()
    assert whole.num_examples.sum() == SAMPLE
    assert whole["distance"].tobytes() == walk.result()["distance"].tobytes()


def test_batches_are_small_where_they_are_work(monkeypatch):
    monkeypatch.undo()
    sizes = {}
    for width in (10, 300, 30_000):  # 100, 3,000 and 300,000 parameters
        model = fedax.classification(
            lambda key, width=width: {"w": jax.numpy.zeros((width, 10))},
            lambda params, x: x @ params["w"],
        )
        data = fedax.FederatedDataset.from_clients(
            [{"x": np.zeros((2, width)), "y": np.zeros(2, np.int32)}]
        )
        params = jax.eval_shape(model.init, jax.random.key(0))
        sizes[width] = tuple(
            usual_batch_size(model, params, data.arrays, soon=soon) for soon in (False, True)
        )
    # 2048 * 3,000 < 10^7, 64 * 240,004 bytes < 2^24, and 32 * 300,000 < 10^7
    assert sizes == {10: (4096, 4096), 300: (4096, 2048), 30_000: (64, 32)}
    text = fedax.load_task("shakespeare", model="small")
    params = jax.eval_shape(text.model.init, jax.random.key(0))
    assert usual_batch_size(text.model, params, text.test.arrays, soon=True) == 8
    assert usual_batch_size(text.model, params, text.test.arrays) == 128  # no fewer sequences


# In run folders.


@pytest.fixture
def named(monkeypatch):
    info = TaskInfo("quadratics", "none", ("small",), lambda model: quadratic_task())
    monkeypatch.setitem(TASKS, "quadratic", info)


@pytest.mark.usefixtures("named")
@pytest.mark.parametrize("saves", [2, 3])
def test_killed_with_an_evaluation_under_way_and_resumed(tmp_path, monkeypatch, saves):
    pieces(monkeypatch, SCHEDULES["one by one"])
    settings = config(evaluate_every=5, evaluation_sample=SAMPLE, num_rounds=22,
                      keep_best="test_distance")
    expected = run.start(settings, tmp_path / "expected")
    assert [m.get("evaluated_examples") for m in timeless(expected)][4::5] == [SAMPLE] * 4
    save, calls = sitting.save, iter(range(100))

    def kill(*arguments):
        if next(calls) == saves:
            raise Killed
        save(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(sitting, "save", kill)
        with pytest.raises(Killed):
            run.start(settings, tmp_path / "killed")
    pieces(monkeypatch, SCHEDULES["never"])
    run.resume(tmp_path / "killed")
    assert_same_run(tmp_path / "killed", expected)
    best = [(tmp_path / name / "best.safetensors").read_bytes() for name in ("killed", "expected")]
    assert best[0] == best[1]


@pytest.mark.usefixtures("named")
def test_asked_to_stop_it_keeps_the_rounds_that_are_done(tmp_path, monkeypatch):
    """In round 8, of which those from 5 on are kept back: it does not wait for their evaluation."""
    settings = config(
        evaluate_every=5, evaluation_sample=SAMPLE, num_rounds=12, checkpoint_every=1
    )
    expected = run.start(settings, tmp_path / "expected")
    pieces(monkeypatch, lambda call: signal.raise_signal(signal.SIGTERM) or 0 if call == 3 else 0)
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with pytest.raises(sitting.StoppedError, match="Stopped after round 8 of 12"):
            run.start(settings, tmp_path / "run")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert len(timeless(tmp_path / "run")) == 8
    pieces(monkeypatch, SCHEDULES["never"])
    run.resume(tmp_path / "run")
    assert_same_run(tmp_path / "run", expected)


@pytest.mark.usefixtures("named")
def test_a_run_that_stops_early_is_evaluated_in_full(tmp_path, monkeypatch, capsys):
    pieces(monkeypatch, SCHEDULES["one by one"])
    stopping = {"early_stopping": "test_distance", "early_stopping_patience": 2,
                "early_stopping_min_delta": 0.2}
    settings = config(evaluate_every=2, evaluation_sample=SAMPLE, num_rounds=40, **stopping,
                      keep_best="test_distance")
    folder = run.start(settings, tmp_path / "run")
    rounds, summary = timeless(folder), json.loads((folder / "summary.json").read_text())
    assert summary["stopped"]
    assert len(rounds) < 40  # what was trained beyond is forgotten
    assert f"up to round {len(rounds)}." in summary["stopped"]
    measured = {m["round"]: m["test_distance"] for m in rounds if "test_distance" in m}
    assert list(measured) == list(range(2, len(rounds) + 1, 2))
    params = fedax.load_run(folder).params
    expected = fedax.evaluate(TASK.model, params, TASK.test)["distance"]
    assert summary["final"]["test_distance"] == pytest.approx(expected, rel=1e-12)
    assert summary["final"]["evaluated_examples"] == summary["final"]["evaluated_of"] == 57
    assert measured[len(rounds)] != pytest.approx(expected, rel=1e-3)
    best = min(measured, key=measured.get)
    assert summary["best"] == {"metric": "test_distance", "round": best, "value": measured[best]}
    shorter = fedax.train(
        TASK, fedax.fedyogi(TASK.model, 0.1, batch_size=2), num_rounds=best, cohort_size=3,
        progress=False, evaluate_every=0,
    )
    assert identical(fedax.load_params(folder / "best.safetensors"), shorter.params)
    assert f"({SAMPLE} of 57 examples)" in capsys.readouterr().out
    assert f"Hollow points: {SAMPLE} of 57 examples" in report_page(folder)


@pytest.mark.usefixtures("named")
def test_a_folder_that_knows_no_sample_goes_on_without(tmp_path):
    """As fedax 0.6 and before wrote it."""
    folder = run.start(config(num_rounds=4, evaluation_sample=None), tmp_path / "run")
    written = json.loads((folder / "config.json").read_text())
    del written["evaluation_sample"]
    (folder / "config.json").write_text(json.dumps(written))
    run.resume(folder, num_rounds=8)
    assert [m["evaluated_examples"] for m in timeless(folder) if "evaluated_of" in m] == [57, 57]


def test_training_from_python_marks_what_is_of_a_sample():
    stopping = EarlyStopping("test_distance", patience=99)
    result = fedax.train(
        TASK, fedyogi(), num_rounds=12, progress=False, early_stopping=stopping, **OPTIONS
    )
    history = result.history
    assert history["evaluated_examples"][[4, 9, 11]].tolist() == [SAMPLE, SAMPLE, 57]
    lines = history.plot(["test_distance", "train_loss"]).axes[0].get_lines()
    assert [line.get_xydata()[:, 0].tolist() for line in lines[:2]] == [[5, 10, 12], [5, 10]]
    assert [line.get_markerfacecolor() for line in lines[:2]] == [lines[0].get_color(), "white"]
    assert describe_test(history.rounds[4]).endswith("(23 of 57 examples)")
    assert "examples" not in describe_test(history.rounds[11])


@pytest.mark.parametrize("value", [0, -1, 1.5, "many"])
def test_a_size_that_is_none_is_a_sentence(value):
    with pytest.raises(ValueError, match=f"evaluation_sample .*{value}"):
        simulate(TASK, fedyogi(), num_rounds=1, evaluation_sample=value)
