"""Searches by Optuna: near the known optimum, after kills, by two workers, with pruning."""

import gc
import json
import math
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import tomllib
import weakref
from pathlib import Path

import jax
import numpy as np
import optuna
import pytest
import sqlalchemy
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import RDBStorage
from optuna.trial import TrialState
from sqlalchemy import create_engine, event
from sqlalchemy.engine import Engine

import fedax
from fedax.cli.main import run_command
from fedax.experiment.errors import ConfigError
from fedax.experiment.folder import RunError
from fedax.experiment.metrics import read_history
from fedax.rounds.history import History
from fedax.tasks.registry import TASKS, TaskInfo
from fedax.tuning import samplers, search_command, studies, trials
from fedax.tuning.optuna_search import Search, explore
from fedax.tuning.optuna_workers import Heartbeat, open_study
from fedax.tuning.samplers import make_pruner, quiet
from fedax.tuning.space import parse_space
from problems import quadratic_model, quadratic_task

# One client with the loss a x^2 / 2 and one local step a round from x = 1: after a round the loss
# is a (1 - rate a)^2 / 2, and so on, so the best rate is 1 / a.
CURVATURE = 4.0
BEST = 1 / CURVATURE
SPACE = parse_space(["client_learning_rate=loguniform(0.01, 0.5)"])
ROUNDS = 4


@pytest.fixture(autouse=True)
def unsynchronised():
    """SQLite that does not wait for the disk, which tests need not survive.

    What the tests open themselves is closed at their end: Optuna leaves it open, and Python 3.13
    warns of that.
    """
    connections = []

    def pragma(connection, record):
        connection.execute("PRAGMA synchronous=OFF")
        connections.append(connection)

    event.listen(Engine, "connect", pragma)
    yield
    event.remove(Engine, "connect", pragma)
    for connection in connections:
        connection.close()


def losses(rate, num_rounds=ROUNDS):
    """The training losses of the rounds, each before its step."""
    x = (1 - CURVATURE * rate) ** np.arange(num_rounds)
    return CURVATURE * x**2 / 2


def last(history):
    return float(history["train_loss"][-1])


def train(settings, seed, report, num_rounds=ROUNDS):
    """Trains in closed form, in lockstep."""
    curves = [losses(setting["client_learning_rate"], num_rounds) + seed for setting in settings]
    histories = [History() for _ in settings]
    running = set(range(len(settings)))
    for number in range(1, num_rounds + 1):
        metrics = {}
        for place in sorted(running):
            metrics[place] = {"round": number, "train_loss": curves[place][number - 1]}
            histories[place].append(metrics[place])
        running -= set(report(number, metrics))
    return histories


def asked(**changes):
    return Search(**{
        "space": SPACE, "score": last, "num_rounds": ROUNDS, "num_trials": 30, **changes
    })


def search(*arguments):
    return [tried for batch in explore(*arguments) for tried in batch]


def opened(folder, **changes):
    return open_study("quadratic fedavg", folder / "study.db", **{"space": SPACE, **changes})


def rates(study, *states):
    return [t.params["client_learning_rate"] for t in study.get_trials(states=states or None)]


@pytest.mark.slow
def test_the_best_of_30_trials_is_near_the_known_optimum(tmp_path):
    matrices, centres = np.full((1, 1, 1), CURVATURE), np.zeros((1, 1))
    data = fedax.FederatedDataset.from_clients([{"A": matrices, "c": centres}])
    task = fedax.Task(quadratic_model(1, start=(1.0,)), data, None, "quadratic")

    def train_really(settings, seed, report):
        runs = {
            place: fedax.simulate(
                task, fedax.fedavg(task.model, **setting, batch_size=1, num_local_steps=1),
                num_rounds=ROUNDS, cohort_size=1, evaluate_every=0, seed=seed,
            )
            for place, setting in enumerate(settings)
        }
        histories = [History() for _ in settings]
        for number in range(1, ROUNDS + 1):
            metrics = {place: next(run).metrics for place, run in runs.items()}
            for place, found in metrics.items():
                histories[place].append(found)
            assert report(number, metrics) == []
        return histories

    study = opened(tmp_path)
    search(study, asked(batch_size=5), train_really)
    found = study.get_trials(states=(TrialState.COMPLETE,))
    assert len(found) == 30
    assert abs(study.best_params["client_learning_rate"] / BEST - 1) < 0.1
    for trial in found[:3]:
        expected = losses(trial.params["client_learning_rate"])
        assert trial.value == pytest.approx(expected[-1], rel=1e-9)
        steps = trial.intermediate_values
        assert steps == pytest.approx(dict(enumerate(expected[:-1], start=1)), rel=1e-9)
    with_reloading = optuna.load_study(
        study_name="quadratic fedavg", storage=f"sqlite:///{tmp_path / 'study.db'}"
    )  # as the dashboard does
    assert with_reloading.best_value == study.best_value


@pytest.mark.slow
@pytest.mark.internals
def test_the_databases_of_a_study_are_closed_with_it(tmp_path):
    study = opened(tmp_path)
    search(study, asked(num_trials=4, batch_size=2), train)
    pool = study._storage._backend.engine.pool
    open_now = pool.checkedin() + pool.checkedout()
    assert open_now > 0
    ended = weakref.ref(study._storage._backend)
    closed = 0

    def note(*_):
        nonlocal closed
        closed += 1

    event.listen(pool, "close", note)
    del study
    gc.collect()
    assert ended() is None
    assert closed == open_now


def test_qmc_spreads_its_trials_evenly(tmp_path):
    """Of 16 points of a scrambled Sobol sequence each sixteenth of the range has one."""
    study = opened(tmp_path)
    search(study, asked(sampler="qmc", num_trials=17, batch_size=6), train)
    drawn = np.array(rates(study))[1:]  # the first says what is searched
    at = np.log(drawn / 0.01) / np.log(0.5 / 0.01)
    assert sorted(np.floor(at * 16).astype(int)) == list(range(16))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_cmaes_comes_to_the_optimum_of_two_rates(tmp_path):
    """The loss is 1 + (log10 of each rate + 1)^2, so that both are best at 0.1."""
    space = parse_space([
        "client_learning_rate=loguniform(0.001, 10)", "server_learning_rate=loguniform(0.001, 10)"
    ])

    def train_two(settings, seed, report):
        histories = [History() for _ in settings]
        for number in range(1, ROUNDS + 1):
            metrics = {
                place: {"round": number, "train_loss": 1 + sum(
                    (np.log10(rate) + 1) ** 2 for rate in setting.values()
                )} for place, setting in enumerate(settings)
            }
            for place, found in metrics.items():
                histories[place].append(found)
            report(number, metrics)
        return histories

    study = opened(tmp_path, space=space)
    search(study, asked(space=space, sampler="cmaes", num_trials=60, batch_size=5), train_two)
    values = [trial.value for trial in study.get_trials(states=(TrialState.COMPLETE,))]
    assert len(values) == 60
    assert study.best_value < 1.05
    assert np.mean(values[-20:]) < np.mean(values[:20]) - 0.3  # it learns


class KilledError(BaseException):
    """Stands for SIGKILL."""


SPACE_OF_THREE = parse_space([
    "client_learning_rate=loguniform(0.01, 0.5)", "momentum=uniform(0, 0.95)", "k=int(1, 5)"
])
# What writes to a study.
WRITES = ("_create_new_trial", "set_trial_param", "set_trial_state_values", "record_heartbeat",
          "set_trial_intermediate_value", "set_trial_user_attr", "set_trial_system_attr")


class Kills:
    """Kills this process, as it were, before one of its writes to a study."""

    def __init__(self, monkeypatch):
        self.left, self.count = math.inf, 0
        for name in WRITES:
            monkeypatch.setattr(RDBStorage, name, self.counting(getattr(RDBStorage, name)))

    def counting(self, write):
        def written(*arguments, **named):
            if threading.current_thread() is threading.main_thread():
                self.count, self.left = self.count + 1, self.left - 1
                if self.left == 0:
                    raise KilledError
            return write(*arguments, **named)

        return written


def table(study):
    """All that a study says of its trials."""
    return [
        (t.number, t.state, t.params, t.value, t.user_attrs, t.intermediate_values)
        for t in study.get_trials()
    ]


@pytest.mark.parametrize(("sampler", "pruner", "kills"), [
    ("tpe", "none", 2), ("cmaes", "none", 2), ("qmc", "hyperband", 1),
    # Each sampler with two pruners, and each pruner with two samplers.
    *[pytest.param(sampler, pruner, 5, marks=pytest.mark.slow) for sampler, pruner in (
        ("tpe", "none"), ("tpe", "hyperband"), ("random", "median"), ("random", "halving"),
        ("qmc", "median"), ("qmc", "halving"), ("cmaes", "none"), ("cmaes", "hyperband"),
    )],
])
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_killed_at_any_write_and_resumed_equals_uninterrupted(
    tmp_path, monkeypatch, sampler, pruner, kills
):
    """Its trials, their settings, values, scores on the way and order, to the bit."""
    def given():
        return Search(
            SPACE_OF_THREE, last, 9, 22, seeds=(0, 1) if pruner == "none" else (0,), seed=3,
            sampler=sampler, pruner=make_pruner(pruner, 9, 1), batch_size=6,
        )

    def train_nine(settings, seed, report):
        return train(settings, seed, report, 9)

    def tried(name, kept):
        study = open_study("quadratic", tmp_path / f"{name}.db", space=SPACE_OF_THREE)
        search(study, given(), train_nine, kept.extend)
        return table(study)

    killer = Kills(monkeypatch)
    whole = tried("whole", [])
    assert [row[0] for row in whole] == list(range(22))
    writes, chance = killer.count, np.random.default_rng(0)
    for kill in range(kills):
        killer.left, kept = int(chance.integers(1, writes)), []
        for _ in range(4):
            try:
                found = tried(kill, kept)
            except KilledError:
                killer.left = int(chance.integers(1, writes))
                continue
            break
        else:
            killer.left = math.inf
            found = tried(kill, kept)
        assert found == whole
        assert {one.number for one in kept} == set(range(22))


@pytest.mark.parametrize("sampler", [
    "tpe", pytest.param("random", marks=pytest.mark.slow),
    pytest.param("qmc", marks=pytest.mark.slow),
])
def test_killed_in_a_batch_and_resumed_equals_uninterrupted(tmp_path, sampler):
    given = asked(num_trials=18, batch_size=6, sampler=sampler)
    (tmp_path / "whole").mkdir()
    whole = opened(tmp_path / "whole")
    search(whole, given, train)
    batches, kept = [], []

    def train_or_die(settings, seed, report):
        batches.append(settings)
        if len(batches) in (1, 4):
            report(1, {0: {"round": 1, "train_loss": 1.0}})
            raise KilledError
        return train(settings, seed, report)

    for _ in range(3):
        study = opened(tmp_path)
        try:
            search(study, given, train_or_die, kept.extend)
        except KilledError:
            continue
        break
    assert table(study) == table(whole)
    assert [tried.values["client_learning_rate"] for tried in kept] == rates(whole)
    search(study, asked(num_trials=18), None)  # nothing is left to train


def test_a_worker_that_was_paused_leaves_its_trials_to_the_one_that_took_them_over(
    tmp_path, monkeypatch
):
    def pass_time():
        with create_engine(f"sqlite:///{tmp_path / 'study.db'}").begin() as connection:
            connection.exec_driver_sql("UPDATE trial_heartbeats SET heartbeat = '2020-01-01'")

    trained = []

    def pause(settings, seed, report):
        if not trained:
            trained.append([dict(setting) for setting in settings])
            pass_time()
            search(opened(tmp_path), asked(num_trials=6, worker="other"), train)
            monkeypatch.setattr(Heartbeat, "_is_late", lambda self: True)
        histories = train(settings, seed, report)
        trained.append([len(history) for history in histories])
        return histories

    kept = []
    study = opened(tmp_path)
    search(study, asked(num_trials=6, batch_size=3, worker="paused"), pause, kept.extend)
    assert trained[1:] == [[1, 1, 1]]  # after a round it is noticed
    assert kept == []
    found = study.get_trials()
    assert [trial.state for trial in found] == [TrialState.COMPLETE] * 6
    assert {trial.user_attrs["worker"] for trial in found} == {"other"}
    assert [trial.params for trial in found[:3]] == trained[0]


@pytest.mark.parametrize("method", ["set_trial_intermediate_value", "set_trial_state_values"])
def test_a_worker_that_is_paused_while_it_writes_goes_on(tmp_path, monkeypatch, method):
    """It writes what it has of a trial, or tells it, when another worker has done just that."""
    write = getattr(RDBStorage, method)
    paused = []

    def slow_write(storage, trial, *rest, **options):
        if not paused and options.get("state") != TrialState.RUNNING:
            paused.append(trial)
            with create_engine(f"sqlite:///{tmp_path / 'study.db'}").begin() as connection:
                connection.exec_driver_sql("UPDATE trial_heartbeats SET heartbeat = '2020-01-01'")
            search(opened(tmp_path), asked(num_trials=6, worker="other"), train)
        return write(storage, trial, *rest, **options)

    study = opened(tmp_path)
    monkeypatch.setattr(RDBStorage, method, slow_write)
    search(study, asked(num_trials=6, batch_size=3, worker="paused"), train)
    assert len(paused) == 1
    found = study.get_trials()
    assert [trial.state for trial in found] == [TrialState.COMPLETE] * 6
    assert {trial.user_attrs["worker"] for trial in found} == {"other"}


def test_what_somebody_enqueued_is_tried_first(tmp_path):
    study = opened(tmp_path, space=SPACE_OF_THREE)
    study.enqueue_trial({"client_learning_rate": 0.25, "k": 2})
    search(study, asked(space=SPACE_OF_THREE, num_trials=4, batch_size=2), train)
    found = study.get_trials()
    assert len(found) == 4
    assert (found[0].params["client_learning_rate"], found[0].params["k"]) == (0.25, 2)
    assert found[0].value == losses(0.25)[-1]


@pytest.mark.parametrize("name", ["a%20b", "what?", "a#b%", "{x} é", "a b", "a%2Fb"])
def test_a_folder_of_any_name_has_its_own_study(tmp_path, name):
    (tmp_path / "a b").mkdir(exist_ok=True)
    (tmp_path / name).mkdir(exist_ok=True)
    search(opened(tmp_path / name), asked(num_trials=1, sampler="random"), train)
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.db")] == [
        f"{name}/study.db"
    ]


@pytest.mark.slow
@pytest.mark.internals
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.filterwarnings("ignore:Heartbeat of storage")  # filters are no thread's own
def test_two_workers_share_a_file(tmp_path):
    """Each trial is one worker's, together they are as many as asked for, and none is twice."""
    errors = []
    barrier = threading.Barrier(2)

    def work(name):
        try:
            study = opened(tmp_path)
            barrier.wait()
            search(study, asked(num_trials=16, batch_size=2, sampler="random", worker=name), train)
        except Exception as error:
            errors.append(error)

    opened(tmp_path)
    workers = [threading.Thread(target=work, args=(name,)) for name in ("one", "two")]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert errors == []
    # What both began at the same moment and only one is needed of has failed.
    trials = [t for t in opened(tmp_path).get_trials() if t.state != TrialState.FAIL]
    assert {trial.state for trial in trials} == {TrialState.COMPLETE}
    assert len(trials) == 16
    assert len({trial.params["client_learning_rate"] for trial in trials}) == len(trials)
    assert {trial.user_attrs["worker"] for trial in trials} == {"one", "two"}


@pytest.mark.slow
def test_two_processes_share_a_study_and_one_that_is_killed_goes_on(tmp_path):
    """Each trial is one's, both name the best of the study, and none is lost by a SIGKILL."""
    storage = f"sqlite:///{tmp_path / 'shared.db'}"

    def command(name, *words):
        return subprocess.Popen(
            [sys.executable, "-m", "fedax", "sweep", *words, "--storage", storage],
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )

    asked_for = ("quadratics", "fedavg", "--search", "client_learning_rate=loguniform(0.001, 0.1)",
                 "--trials", "24", "--settings-per-batch", "2", "--rounds", "40", "--sampler",
                 "random", "--set", "evaluate_every=0")
    workers = {name: command(name, *asked_for, "--out", name) for name in ("one", "two")}

    def done():
        try:
            study = optuna.load_study(study_name="quadratics fedavg", storage=storage)
            return study.get_trials(states=(TrialState.COMPLETE,))
        except (KeyError, sqlalchemy.exc.OperationalError):  # not there yet
            return []

    deadline = time.monotonic() + 240
    while len({trial.user_attrs["worker"] for trial in done()}) < 2:
        assert time.monotonic() < deadline
        assert None in [worker.poll() for worker in workers.values()]
        time.sleep(0.1)
    workers["two"].kill()
    workers["two"].communicate(timeout=60)
    said, _ = workers["one"].communicate(timeout=240)
    assert workers["one"].returncode == 0, said
    known = {"one": done()}  # the trials of "two" that were cut off are not among them
    # Time passes: until then they count as running, so that one of 24 may seem to be under way.
    with create_engine(storage).begin() as connection:
        connection.exec_driver_sql("UPDATE trial_heartbeats SET heartbeat = '2020-01-01 00:00:00'")
    again = command("two", "--resume", "two")
    said, _ = again.communicate(timeout=240)
    assert again.returncode == 0, said
    found = known["two"] = done()
    assert len(found) == 24
    assert len({trial.params["client_learning_rate"] for trial in found}) == len(found)
    for name, trials_then in known.items():
        best = min(trials_then, key=lambda trial: trial.value)
        assert fedax.load_sweep(tmp_path / name).finished
        toml = tomllib.loads((tmp_path / name / "best" / "fedavg.toml").read_text())
        found_rate = toml["algorithm_options"]["client_learning_rate"]
        assert found_rate == pytest.approx(best.params["client_learning_rate"])


def test_a_trial_whose_worker_was_killed_before_it_said_whose_it_is_counts_for_nothing(tmp_path):
    with quiet():
        opened(tmp_path).ask(dict(SPACE))
    search(opened(tmp_path), asked(num_trials=3, batch_size=1, worker="one"), train)
    assert len(rates(opened(tmp_path), TrialState.COMPLETE)) == 3


def test_trials_of_a_worker_that_is_gone_are_done_by_another(tmp_path):
    def die(settings, seed, report):
        raise KilledError

    with pytest.raises(KilledError):
        search(opened(tmp_path), asked(num_trials=3, worker="gone"), die)
    left = rates(opened(tmp_path))
    search(opened(tmp_path), asked(num_trials=4, batch_size=1, worker="other"), train)
    assert len(rates(opened(tmp_path), TrialState.RUNNING)) == 3  # it may still be alive
    engine = create_engine(f"sqlite:///{tmp_path / 'study.db'}")
    with engine.begin() as connection:  # time passes
        connection.exec_driver_sql("UPDATE trial_heartbeats SET heartbeat = '2020-01-01 00:00:00'")
    study = opened(tmp_path)
    search(study, asked(num_trials=4, worker="other"), train)
    done = study.get_trials(states=(TrialState.COMPLETE,))
    assert len(done) == 4
    assert set(left) <= set(rates(study, TrialState.COMPLETE))
    assert {trial.user_attrs["worker"] for trial in done} == {"other"}


@pytest.mark.slow
@pytest.mark.internals
def test_no_connection_is_left_open(tmp_path, monkeypatch):
    """Neither of a storage that cannot be opened, nor of the one that says what Optuna defines."""
    made = []

    class Watched(sqlite3.Connection):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            made.append(self)

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3.dbapi2, "connect",
                        lambda *args, **options: connect(*args, **{**options, "factory": Watched}))
    monkeypatch.setattr("fedax.tuning.optuna_workers.PAUSE", 0)
    broken = tmp_path / "broken.db"
    broken.write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    with quiet(), pytest.raises(RunError, match="cannot be used"):
        open_study("fedax", f"sqlite:///{broken}", space=SPACE)
    studies._definitions.cache_clear()
    studies._definitions()
    gc.collect()
    assert len(made) >= 2
    for connection in made:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")


@pytest.mark.slow
@pytest.mark.internals
@pytest.mark.parametrize("name", ["median", "hyperband", "halving"])
def test_pruning_gives_bad_settings_up(tmp_path, name):
    pruner = make_pruner(name, 9, 1)
    trained = []

    def counting(settings, seed, report):
        histories = train(settings, seed, report, num_rounds=9)
        trained.extend(histories)
        return histories

    study = opened(tmp_path)
    search(
        study, asked(num_rounds=9, num_trials=20, batch_size=4, pruner=pruner, sampler="random"),
        counting,
    )
    pruned = study.get_trials(states=(TrialState.PRUNED,))
    done = study.get_trials(states=(TrialState.COMPLETE,))
    assert len(pruned) >= 3
    assert len(pruned) + len(done) == 20
    assert sum(map(len, trained)) < 20 * 9
    assert sorted(len(h) for h in trained if len(h) < 9) == sorted(
        t.user_attrs["rounds"]["0"] for t in pruned
    )
    assert np.median([t.intermediate_values[1] for t in pruned]) >= np.median(
        [t.intermediate_values[1] for t in done]
    )


@pytest.mark.slow
def test_seeds_are_averaged_and_divergence_is_the_worst(tmp_path):
    def train_some(settings, seed, report):
        histories = train(settings, seed, report)
        for setting, history in zip(settings, histories, strict=True):
            if setting["client_learning_rate"] > 0.2 and seed == 1:
                del history.rounds[2:]
        return histories

    study = opened(tmp_path, about={"num_rounds": ROUNDS})
    search(study, asked(num_trials=12, seeds=(0, 1, 5), sampler="random"), train_some)
    trials = study.get_trials()
    assert {t.state for t in trials} == {TrialState.COMPLETE}
    for trial in trials:
        rate, attributes = trial.params["client_learning_rate"], trial.user_attrs
        value = losses(rate)[-1]
        if rate > 0.2:
            assert (trial.value, attributes["diverged"]) == (math.inf, 3)
            assert attributes["scores"][1] is None
        else:
            assert trial.value == pytest.approx(value + 2.0)  # the mean of 0, 1 and 5
            assert attributes["spread"] == pytest.approx(math.sqrt(7))  # of 0, 1 and 5
    assert any(t.value == math.inf for t in trials)
    with pytest.raises(RunError, match="a different search: num_rounds was 4 and is now 5"):
        opened(tmp_path, about={"num_rounds": 5})
    with pytest.raises(RunError, match="search: direction was minimise and is now maximise"):
        opened(tmp_path, about={"num_rounds": ROUNDS}, maximise=True)


TASK = quadratic_task()
ASKED = {
    "space": {"client_learning_rate": "loguniform(0.003, 0.3)",
              "server_learning_rate": FloatDistribution(0.5, 2.0)},
    "num_rounds": 6, "num_trials": 6, "batch_size": 4, "seeds": 2, "fixed": {"batch_size": 2},
    "cohort_size": 3, "evaluate_every": 3, "seed": 5, "progress": False,
}


@pytest.mark.slow
@pytest.mark.internals
def test_a_search_trains_what_single_runs_train_and_goes_on(tmp_path, monkeypatch, capsys):
    keep = trials.keep_trials

    def keep_or_die(folder):
        def kept(tried):
            keep(folder)(tried)
            raise KilledError
        return kept

    with monkeypatch.context() as patch:
        patch.setattr(trials, "keep_trials", keep_or_die)
        with pytest.raises(KilledError):
            fedax.search(TASK, fedax.fedavgm, out=tmp_path, **ASKED)
    result = fedax.search(TASK, fedax.fedavgm, out=tmp_path, **ASKED | {"progress": True})
    assert capsys.readouterr().out.splitlines()[-1].startswith("6/6 trials  best ")
    study, record = result
    assert [setting.number for setting in record.settings] == list(range(6))
    assert record.seed.tolist() == [5, 6] * 6
    assert record.done.tolist() == [6] * 12
    found = [trial for trial in study.get_trials() if trial.state == TrialState.COMPLETE]
    assert [setting.values for setting in record.settings] == [trial.params for trial in found]
    for number in (0, 5):
        scores = []
        for row in record.rows_of(number):
            algorithm = fedax.fedavgm(TASK.model, **found[number].params, batch_size=2)
            single = fedax.train(
                TASK, algorithm, num_rounds=6, cohort_size=3, evaluate_every=3, progress=False,
                seed=int(record.seed[row]),
            ).history
            own = record.history(row)
            for name in ("train_loss", "test_distance"):
                np.testing.assert_allclose(own[name], single[name], rtol=1e-12)
            scores.append(single["train_loss"].mean())
        assert found[number].value == pytest.approx(np.mean(scores), rel=1e-12)
    with pytest.raises(RunError, match="a different search: num_rounds was 6 and is now 7"):
        fedax.search(TASK, fedax.fedavgm, out=tmp_path, **ASKED | {"num_rounds": 7})


@pytest.mark.slow
@pytest.mark.internals
def test_ctrl_c_stops_a_search_after_the_round_and_it_goes_on(tmp_path, monkeypatch):
    space = {"client_learning_rate": "loguniform(0.003, 0.3)"}
    given = ASKED | {"space": space, "seeds": 1, "pruner": "median", "choose": "test_distance"}
    follow = trials._follow

    def follow_and_signal(*arguments):
        signal.raise_signal(signal.SIGINT)
        follow(*arguments)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    try:
        with monkeypatch.context() as patch:
            patch.setattr(trials, "_follow", follow_and_signal)
            with pytest.raises(KeyboardInterrupt, match=r"repeated\. Call fedax.search again"):
                fedax.search(TASK, fedax.fedavg, out=tmp_path, **given)
    finally:
        signal.signal(signal.SIGINT, before)
    left = rates(optuna.load_study(
        study_name="quadratic fedavg", storage=f"sqlite:///{tmp_path / 'study.db'}"
    ))
    study = fedax.search(TASK, fedax.fedavg, out=tmp_path, **given).study
    over = rates(study, TrialState.COMPLETE, TrialState.PRUNED)
    assert len(over) == 6
    assert over[:4] == left


@pytest.mark.slow
def test_the_command_line_searches_goes_on_and_keeps_what_a_sweep_keeps(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setitem(TASKS, "quadratic", TaskInfo(
        "quadratics", "none", ("small",), lambda model: TASK
    ))
    out = str(tmp_path / "search")
    command = ["sweep", "quadratic", "fedavg,fedavgm", "--preset", "none", "--search",
               "client_learning_rate=loguniform(0.003, 0.3)", "fedavgm.momentum=uniform(0.5, 0.9)",
               "--set", "batch_size=2", "evaluate_every=0", "--rounds", "4", "--cohort-size", "3",
               "--settings-per-batch", "3", "--sampler", "random"]
    assert run_command([*command, "--trials", "3", "--out", out]) == 0
    said = capsys.readouterr().out
    assert "fedavgm:\n3/3 trials  best " in said
    assert "Best settings, chosen by the mean train_loss over all 4 rounds" in said
    assert run_command(["sweep", "--resume", out, "--trials", "5", "--log", "csv"]) == 0
    logged = (tmp_path / "search" / "logs" / "9-0" / "metrics.csv").read_text()
    assert len(logged.splitlines()) == 5
    found = fedax.load_sweep(tmp_path / "search")
    assert found.record.algorithms == ["fedavg", "fedavgm"]
    assert len(found.record.settings) == 10
    assert json.loads((tmp_path / "search" / "config.json").read_text())["search"]["trials"] == 5
    assert "grid" not in found.summary["words"][-1]
    page = (tmp_path / "search" / "report.html").read_text()
    assert page.count('<table class="heat">') == 1  # fedavg's one range; two have few of the pairs
    study = optuna.load_study(
        study_name="quadratic fedavgm", storage=f"sqlite:///{out}/study.db"
    )
    assert set(study.best_params) == {"client_learning_rate", "momentum"}
    best = found.choice.methods["fedavgm"].best
    assert found.choice.methods["fedavgm"].edges == []
    assert "10 of 10 runs" in repr(found)
    assert found.record.settings[best].values == study.best_params
    assert found.choice.mean[best] == study.best_value
    again = tmp_path / "again"
    toml = tmp_path / "search" / "best" / "fedavgm.toml"
    assert run_command(["run", "--config", str(toml), "--out", str(again)]) == 0
    losses = read_history(again)["train_loss"]
    assert losses.mean() == pytest.approx(study.best_value, rel=1e-12)
    capsys.readouterr()
    for words, sentence in (
        (["--search", "rate=uniform(0,1)"], "Unknown setting 'rate' of runs of fedavg and fedavgm"),
        (["--search", "momentum=uniform(0,1)"], "--search has no range of a setting of fedavg"),
        (["--search", "client_learning_rate=uniform(-1,1)"], "client_learning_rate must be"),
        (["--search", "client_learning_rate=uniform(0,1)", "--sampler", "tp"], "Unknown sampler"),
        (["--search", "client_learning_rate=uniform(0,1)", "--grid", "reddi2021"], "be combined"),
        (["--search", "client_learning_rate=uniform(0,1)", "--trials", "0"], "num_trials must be"),
        (["--trials", "3"], "--trials needs --search"),
        (["--resume", out, "--rounds", "3"], "--resume continues a search with its own settings"),
        (["--extend", out], "A search does not have a grid to extend"),
    ):
        start = [] if out in words else [
            "quadratic", "fedavg,fedavgm", "--preset", "none", "--out", str(tmp_path / "none")
        ]
        assert run_command(["sweep", *start, *words]) == 2
        assert sentence in capsys.readouterr().err, words
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
def test_the_pages_python_runs(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parent.parent / "docs" / "search.md").read_text("utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        exec(code, {})
    assert "8/8 trials" in capsys.readouterr().out


def test_a_password_is_not_kept(tmp_path, monkeypatch):
    url = f"sqlite://me:secret@/{tmp_path}/study.db"
    assert search_command._has_password(url)
    assert not search_command._has_password(f"sqlite:///{tmp_path}/study.db")
    monkeypatch.setattr(sys, "argv", ["fedax", "sweep", "digits", "--storage", url])
    assert search_command._typed(url) == "fedax sweep digits --storage URL"


@pytest.mark.quick
def test_optuna_that_is_missing_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(RunError, match=r"A search needs Optuna: pip install 'fedax\[optuna\]'"):
        fedax.search(TASK, fedax.fedavg, out=tmp_path / "run", **ASKED)
    assert not (tmp_path / "run").exists()


@pytest.mark.quick
def test_ranges_as_text():
    space = parse_space([
        "a=loguniform(1e-3, 10)", "b=uniform(-1,2)", "c = int(1, 20)", "d=logint(1,100)",
        "e=choice(5, 0.5, mean, none)", "f=choice(sgdm(0.9), adam(0.9, 0.99))",
    ])
    assert space == {
        "a": FloatDistribution(0.001, 10.0, log=True), "b": FloatDistribution(-1.0, 2.0),
        "c": IntDistribution(1, 20), "d": IntDistribution(1, 100, log=True),
        "e": CategoricalDistribution([5, 0.5, "mean", None]),
        "f": CategoricalDistribution(["sgdm(0.9)", "adam(0.9, 0.99)"]),
    }


@pytest.mark.quick
@pytest.mark.parametrize(("words", "sentence"), [
    ([], "--search needs ranges"),
    (["rate"], "takes KEY=RANGE"),
    (["rate=0.1,1"], "must be uniform"),
    (["rate=normal(0,1)"], "must be uniform"),
    (["rate=uniform(1)"], "needs two numbers"),
    (["rate=uniform(0,inf)"], "needs two numbers"),
    (["rate=int(1,2.5)"], "needs two whole numbers"),
    (["rate=loguniform(0,1)"], "number above 0, but is 'loguniform"),
    (["rate=uniform(2,1)"], "from a lower to a higher number, but"),
    (["rate=choice(1,,2)"], "has an empty choice"),
    (["rate=uniform(0,1)", "rate=uniform(0,2)"], "has rate twice"),
])
def test_what_is_no_range_is_a_sentence(words, sentence):
    with pytest.raises(ConfigError, match=sentence):
        parse_space(words)


@pytest.mark.quick
def test_names_and_storages_that_are_none_are_sentences(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"Unknown sampler 'tp'\. Did you mean 'tpe'"):
        samplers.make_sampler("tp", 0)
    with pytest.raises(ConfigError, match=r"Unknown pruner 'medain'\. Did you mean 'median'"):
        make_pruner("medain", 10, 1)
    monkeypatch.setattr(samplers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RunError, match="The sampler cmaes needs cmaes: pip install cmaes"):
        samplers.make_sampler("cmaes", 0)
    for url in ("nonsense", "postgresql+none://me:secret@nowhere/db", f"sqlite:///{tmp_path}/no/x"):
        with pytest.raises(RunError, match=r"The study's storage .* cannot be used") as told:
            open_study("name", url, space=SPACE)
        assert "secret" not in str(told.value)


@pytest.mark.slow
def test_a_finite_loss_far_above_the_untrained_one_has_diverged(tmp_path):
    """A loss that grows a thousandfold and stays finite, as rates a little too high give it."""
    task = fedax.load_task("digits")
    found = fedax.search(
        task, fedax.fedavg, {"client_learning_rate": "loguniform(300, 301)"}, num_rounds=3,
        num_trials=2, choose="train_loss:min", cohort_size=2, progress=False,
        out=tmp_path / "found",
    )
    assert np.isfinite(found.record.metrics["train_loss"]).all()
    assert (found.record.diverged > 0).all()
    assert [trial.user_attrs["scores"] for trial in found.study.trials] == [[None]] * 2
