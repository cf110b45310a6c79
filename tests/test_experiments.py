"""`fedax reproduce` where it trains: jobs, workers, results, verdicts and the page of results."""

import inspect
import itertools
import json
import math
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

import fedax
import reproduction_causes as causes
import reproduction_sections as sections
from fedax.cli.main import run_command
from fedax.cli.reproductions import what_is_left
from fedax.devices.ending import Request
from fedax.experiment.config import resolve
from fedax.experiment.folder import BusyError, RunError, locked
from fedax.report.tables import Table
from fedax.reproductions import EXPERIMENTS, criteria, reddi2021, reddi2021_tuning, workers
from fedax.reproductions.drawing import draw_curves, keep_in_sight
from fedax.reproductions.experiment import BEYOND, Criterion, Experiment, Outcome, Part, Plan
from fedax.reproductions.jobs import jobs_of
from fedax.reproductions.outcome import (
    Came,
    at_edges,
    gathered,
    judged,
    verdict,
)
from fedax.reproductions.reddi2021_parts import METHODS, ROWS, SMALL, tuned
from fedax.reproductions.results import Results, Trace, kept, spread, traces_of
from fedax.reproductions.results_file import read, write
from fedax.reproductions.workers import train_all
from fedax.sweeps.record import Record, Setting
from reproduction_runs import Trained

ROOT = Path(__file__).parent.parent
PARTS = tuple(
    Part("Quadratics", label, "quadratics", "fedavg", "quick",
         {"num_rounds": 6, "num_local_steps": steps, "evaluate_every": 2},
         {"client_learning_rate": [0.01, 0.1]})
    for label, steps in (("one step", 1), ("five steps", 5))
)


POINT = Criterion("P: less. Agrees if it is so.", None)


def made(finals, metric="test_accuracy", panel="P"):
    """Results of label -> a final value for each seed, with straight curves from 0."""
    return Results(
        Trace(panel, label, {}, seed, 100, 3 if math.isnan(value) else 0,
              {metric: value, "train_loss": 1 - value},
              {metric: ([1, 50, 100], [0.0, value / 2, value])}, {metric: value})
        for label, values in finals.items() for seed, value in enumerate(values)
    )


# Rates fall in 800 rounds only, and the plays are slow.
LONGER = {"charles2020-figure-8": 2.5, "charles2020-figure-9": 3.2}


@pytest.mark.quick
def test_every_small_plan_fits_an_hour():
    for name, experiment in EXPERIMENTS.items():
        for stand_in in (True, False):
            if plan := experiment.plan("small", stand_in):
                hours = sum(cpu for cpu, _ in plan.hours.values())
                assert hours <= LONGER.get(name, 1.0), (name, stand_in)


@pytest.mark.quick
def test_adam_and_yogi_as_released_have_the_released_code_s_settings():
    """On the autoencoder and CIFAR-100, with other data; their rates are those of the others."""
    plan = EXPERIMENTS["reddi2021-table-1"].plan("paper", True)
    parts = {(part.panel, part.label): part for part in plan.parts}
    released = [key for key in parts if key[1].endswith(" as released")]
    assert len(released) == 4
    for panel, label in released:
        part, paper = parts[panel, label], parts[panel, label.removesuffix(" as released")]
        assert part._replace(label=paper.label, settings={}) == paper._replace(settings={})
        assert dict(part.settings) == dict(paper.settings) | {
            "initial_accumulator": 0.0, "bias_correction": "released",
            "second_moment_decay": 0.999,
        }
    whole = EXPERIMENTS["reddi2021-table-1"].plan("paper", False)
    assert {part.label for part in whole.parts} == {*METHODS}


@pytest.mark.quick
def test_every_plan_is_whole():
    """Three seeds at least, settings that resolve, panels with criteria that are sentences."""
    for name, experiment in EXPERIMENTS.items():
        plans = [experiment.plan(scale, stand_in)
                 for scale in ("small", "paper") for stand_in in (True, False)]
        assert any(plans), name
        assert any(plans[:3]) != bool(experiment.alone), name  # in full, on the paper's data, last
        for plan in filter(None, plans):
            assert plan.settings.endswith("."), name
            assert set(plan.hours) >= set(plan.panels), name
            assert min(part.num_seeds for part in plan.parts) >= 3, name
            empty = Results(Trace(part.panel, part.label, {}, 0, 0, 0, {}, {})
                            for part in plan.parts)
            statements = [one.statement for one in experiment.criteria(empty)]
            assert statements, name
            for statement in statements:
                assert "Agrees if" in statement, name
                assert statement.endswith("."), name
                if any(panel.endswith(BEYOND) for panel in plan.panels):  # by which it is counted
                    assert statement.startswith(tuple(f"{panel}: " for panel in plan.panels)), name


@pytest.mark.quick
def test_a_gain_within_its_spread_is_said_to_be():
    """0.04 ± 0.2 against 0.01: pairs of seeds differ by 0.23, 0.03 and -0.17."""
    results = made({"a": [0.74, 0.54, 0.34], "b": [0.5] * 3, "c": [0.51] * 3})
    one = criteria.gains_more("more", "P", ("a", "b"), ("c", "b"), "test_accuracy")
    assert one.judge(results) == Outcome(
        "4.00 ± 20.00 and 1.00 ± 0.00, so 3 ± 20 (less than its spread)", True)
    assert verdict([(one, one.judge(results))]) == "agrees, by less than the spread over seeds"


@pytest.mark.quick
def test_a_best_setting_at_an_edge_is_said():
    def trace(label, client, server, accuracy):
        values = {"client_learning_rate": client, "server_learning_rate": server, "base": "sgd"}
        return Trace("P", label, values, 0, 100, 0, {"train_loss": 1 - accuracy}, {})

    inside = [trace("inside", rate, 1.0, 0.5 - abs(rate - 0.1)) for rate in (0.01, 0.1, 0.3)]
    at = [trace("at", rate, server, rate) for rate in (0.01, 0.1) for server in (1.0, 2.0)]
    assert at_edges(Results(inside)) == ""
    assert at_edges(Results([*inside, *at])) == (
        "Best at an edge of what was tried: P: at (client_learning_rate 0.1, "
        "server_learning_rate 1)."
    )
    decayed = [trace("decayed", f"staircase_decay({rate}, 0.1, 67)", 1.0, rate)
               for rate in (0.01, 0.1, 0.0316)]
    assert at_edges(Results(decayed)) == (
        "Best at an edge of what was tried: P: decayed (client_learning_rate "
        "staircase_decay(0.1, 0.1, 67))."
    )


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_plan_has_jobs(name):
    for scale, stand_in in itertools.product(("small", "paper"), (False, True)):
        plan = EXPERIMENTS[name].plan(scale, stand_in)
        if plan is not None:
            jobs = list(jobs_of(plan.parts))
            assert len(jobs) == sum(part.num_seeds for part in plan.parts)
            assert len({job.key for job in jobs}) == len(jobs)
            assert [job.seed for job in jobs] == sorted(job.seed for job in jobs)


@pytest.mark.quick
def test_a_job_is_trained_once_and_kept_by_its_settings(tmp_path):
    first, second, *_ = jobs = list(jobs_of(PARTS))
    assert len(jobs) == 6
    assert first.record(tmp_path) is None
    first.train(tmp_path)
    record = first.record(tmp_path)
    assert record.metrics["train_loss"].shape == (2, 6)
    before = (first.folder(tmp_path) / "rounds.npz").read_bytes()
    first.train(tmp_path)  # is finished, so nothing is done
    assert (first.folder(tmp_path) / "rounds.npz").read_bytes() == before
    assert second.folder(tmp_path) != first.folder(tmp_path)
    changed = PARTS[0]._replace(settings={**PARTS[0].settings, "num_rounds": 7})
    assert next(jobs_of([changed])).folder(tmp_path) != first.folder(tmp_path)
    renamed = PARTS[0]._replace(panel="Other", label="another name")  # the same settings
    assert next(jobs_of([renamed])).folder(tmp_path) == first.folder(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", '{"rounds": 6, "seconds": "x"}', '{"rounds": 6}x'])
def test_a_damaged_summary_of_a_job_is_named(tmp_path, text):
    first = next(jobs_of(PARTS))
    first.train(tmp_path)
    file = first.folder(tmp_path) / "summary.json"
    file.write_text(text)
    with pytest.raises(RunError, match=r"summary\.json or config\.json beside it is damaged"):
        gathered("made-up", Experiment("", "", lambda *_: None, lambda _: [], lambda _: []),
                 "small", False, [first], tmp_path)


def test_a_job_that_another_process_trains_is_left_to_it(tmp_path):
    job = next(jobs_of(PARTS))
    job.train(tmp_path)
    folder = job.folder(tmp_path)
    (folder / "summary.json").unlink()
    with locked(folder), pytest.raises(BusyError):
        job.train(tmp_path)


def test_traces_are_means_of_the_last_rounds_and_of_windows(tmp_path):
    job = next(jobs_of(PARTS))
    job.train(tmp_path)
    record = job.record(tmp_path)
    one, other = traces_of("Quadratics", "one step", record)
    losses = record.metrics["train_loss"]
    assert one.values == {"client_learning_rate": 0.01}
    assert other.final["train_loss"] == pytest.approx(losses[1, -2:].mean(), rel=1e-5)
    rounds, values = one.curves["train_loss"]
    assert rounds == [1, 2, 3, 4, 5, 6]
    np.testing.assert_allclose(values, losses[0], rtol=1e-5)
    assert one.last["train_loss"] == pytest.approx(losses[0, -1], rel=1e-5)
    long = record._replace(metrics={"test_a": np.tile(np.arange(400.0), (2, 1))})
    rounds, values = traces_of("", "", long)[0].curves["test_a"]
    assert (len(rounds), rounds[0], values[0]) == (40, 5.5, 4.5)
    assert traces_of("", "", long)[0].final["test_a"] == pytest.approx(349.5)  # of 400 the last 100


@pytest.mark.quick
def test_windows_of_a_run_that_diverged_are_those_of_the_others():
    """A job of which every run diverged has fewer rounds than were asked for."""
    none = np.zeros(1, int)
    whole = Record((Setting(0, "fedavg", {}),), none, none, none, none + 80,
                   {"train_loss": np.arange(80.0)[None]})
    short = whole._replace(diverged=none + 31, done=none + 30,
                           metrics={"train_loss": np.arange(30.0)[None]})
    (full,), (lost,) = (traces_of("", "", one, 80) for one in (whole, short))
    assert lost.curves["train_loss"][0] == full.curves["train_loss"][0][:15]
    assert lost.curves["train_loss"][1] == full.curves["train_loss"][1][:15]
    assert math.isnan(lost.final["train_loss"])


@pytest.mark.quick
def test_the_best_setting_is_that_of_all_seeds():
    def run(rate, seed, loss):
        return Trace("P", "M", {"rate": rate}, seed, 10, int(math.isnan(loss)),
                     {"train_loss": loss, "test_accuracy": 1 / loss}, {})

    results = Results([run(1, 0, 0.5), run(1, 1, math.nan), run(2, 0, 1.0), run(2, 1, 2.0),
                       run(3, 0, 1.4), run(3, 1, 1.8)])
    assert results.best("P", "M") == {"rate": 2}  # 1 diverged with a seed
    np.testing.assert_allclose(results.final("P", "M", "test_accuracy"), [1.0, 0.5])
    record = results.record("P", "train_loss")
    assert [setting.label for setting in record.settings] == ["rate=1", "rate=2", "rate=3"]
    assert record.diverged.tolist() == [0, 1, 0, 0, 0, 0]
    lone = Results([run(1, 0, math.nan), run(1, 1, 0.5)])
    np.testing.assert_array_equal(lone.final("P", "M", "train_loss"), [math.nan, 0.5])
    lost = Results([run(1, 0, math.nan), run(2, 0, math.nan)])
    with pytest.raises(LookupError, match="Every setting of M diverged in P"):
        lost.best("P", "M")


@pytest.mark.quick
def test_criteria_are_judged_by_means_over_seeds():
    results = made({"A": [0.50, 0.54], "B": [0.51, 0.50], "C": [math.nan, 0.9]})
    ahead = criteria.at_least("said", "P", "A", "B", "test_accuracy").judge(results)
    assert ahead == Outcome("1.5 ± 3.5 (less than its spread)", True)
    assert not criteria.at_least("said", "P", "A", "B", "test_accuracy", 2.0).judge(results).agrees
    assert not criteria.at_least("said", "P", "B", "A", "test_accuracy").judge(results).agrees
    # 1.5 is 4.5 above -3, more than its spread, though it is less than that itself.
    assert criteria.at_least("said", "P", "A", "B", "test_accuracy", -3.0).judge(results) == (
        Outcome("1.5 ± 3.5", True))
    assert criteria.at_least("said", "P", "A", "B", "test_accuracy", 2.0).judge(results) == (
        Outcome("1.5 ± 3.5 (its distance from 2 is less than its spread)", False))
    # The gap is 1.5 with the spread 3.5.
    within = {width: criteria.within("said", "P", ["A", "B"], "test_accuracy", width).judge(results)
              for width in (1.5, 1.0, 6.0)}
    assert within[1.5] == Outcome("1.5 ± 3.5 (its distance from 1.5 is less than its spread)", True)
    assert within[1.0] == Outcome("1.5 ± 3.5 (its distance from 1 is less than its spread)", False)
    assert within[6.0] == (close := Outcome("1.5 ± 3.5", True))
    # Over rounds 1 and 50, of 0 and half the end.
    early = criteria.earlier("said", "P", "A", "B", "test_accuracy", 0.6).judge(results)
    assert early.agrees
    assert early.measured == "0.375 ± 0.88 (less than its spread)"
    # B and C, of which C diverged, in either order; and a value of two seeds against one that is
    # lost, a tenth lower.
    for order in (["B", "C"], ["C", "B"]):
        lost = criteria.within("said", "P", order, "test_accuracy", 99).judge(results)
        assert lost == Outcome("C diverged", False)
    nan = math.nan
    values = {"all": [0.5, 0.7], "one": [0.6, nan], "none": [nan, nan]}
    for worse, by, agrees in (("one", 0, False), ("one", -0.2, True), ("none", 0, True),
                              ("none", -0.2, False)):
        said = criteria.ahead(
            "said", lambda _: np.array(values["all"]),
            lambda _, worse=worse: np.array(values[worse]), by,
        ).judge(results)
        assert said.agrees == agrees
        assert "diverged" in said.measured
    losing = judged(
        Experiment("", "", lambda *_: None, lambda _: [
            criteria.at_least("said", "P", "C", "A", "test_accuracy")], lambda _: []), results)
    assert losing[0][1] == Outcome("C diverged, or was not measured", False)
    assert verdict([(POINT, Outcome("", agrees)) for agrees in (True, False)]) == (
        "agrees in 1 of 2 points")
    assert verdict([(POINT, early), (POINT, close)]) == (
        "agrees in both points, 1 of them by less than the spread over seeds")
    assert spread(np.array([0.5])) == "0.50"


@pytest.mark.quick
def test_a_value_nearer_to_an_end_of_its_range_than_its_spread_is_called_so():
    values = np.array([0.02, 0.06])  # 0.04 with the spread 0.028
    for least, most, measured, agrees in (
        (-np.inf, 0.05, "0.040 ± 0.028 (its distance from 0.05 is less than its spread)", True),
        (-np.inf, 0.03, "0.040 ± 0.028 (its distance from 0.03 is less than its spread)", False),
        (0.0, 0.05, "0.040 ± 0.028 (its distance from 0.05 is less than its spread)", True),
        (-np.inf, 0.1, "0.040 ± 0.028", True),
    ):
        found = criteria.between("said", lambda _: values, least, most).judge(made({}))
        assert found == Outcome(measured, agrees)


@pytest.mark.quick
def test_which_setting_is_best_is_asked_of_each_seed_alone_too():
    """The loss of 0.2 is lower in the mean, by 0.1 and by 0.5, and with seed 1 that of 0.1 is."""
    losses = {0.1: [0.5, 0.4, 0.9], 0.2: [0.4, 0.5, 0.4]}

    def asked(value, seeds):
        results = Results(
            Trace("P", "A", {"rate": rate}, seed, 9, 0, {"train_loss": of[seed]}, {})
            for rate, of in losses.items() for seed in seeds
        )
        return criteria.chosen("said", "P", "A", "rate", value).judge(results)

    assert asked(0.2, [0, 1, 2]) == Outcome("0.2 (less than its spread: of 3 seeds alone 2 agree)",
                                            True)
    assert asked(0.1, [0, 1, 2]) == Outcome("0.2 (less than its spread: of 3 seeds alone 1 agree)",
                                            False)
    assert asked(0.2, [0, 2]) == Outcome("0.2", True)


@pytest.mark.quick
def test_a_method_with_fewer_seeds_is_compared_with_those_that_it_has():
    """0.1 with seeds 0 and 1; the third of `a`, 0.9, has nothing beside it."""
    results = made({"a": [0.6, 0.7, 0.9], "b": [0.5, 0.6]})
    one = criteria.at_least("said", "P", "a", "b", "test_accuracy")
    assert one.judge(results) == Outcome("10 ± 0", True)


@pytest.mark.quick
def test_seeds_of_another_panel_are_not_asked():
    """The panel P has two seeds, Q has four."""
    results = Results(
        Trace(panel, "A", {"rate": rate}, seed, 9, 0, {"train_loss": rate}, {})
        for panel, count in {"P": 2, "Q": 4}.items() for rate in (0.1, 0.2) for seed in range(count)
    )
    found = criteria.chosen("said", "P", "A", "rate", 0.1).judge(results)
    assert found == Outcome("0.1", True)


@pytest.mark.quick
@pytest.mark.parametrize("criterion", [criteria.at_least, criteria.sooner])
def test_a_seed_that_diverged_does_not_make_a_method_worse(criterion):
    """With seed 0 A is 10 points behind B, whose seed 1 diverged: that is no agreement."""
    lost = made({"A": [0.5, 0.7], "B": [0.6, math.nan]})
    said = criterion("said", "P", "A", "B", "test_accuracy").judge(lost)
    assert not said.agrees
    assert said.measured.startswith("-")
    assert said.measured.endswith("B diverged with 1 of 2 seeds")
    said = criterion("said", "P", "A", "B", "test_accuracy").judge(
        made({"A": [0.5, 0.7], "B": [math.nan, math.nan]}))
    assert said == Outcome("B diverged, or was not measured", True)
    said = criterion("said", "P", "B", "A", "test_accuracy").judge(lost)
    assert said == Outcome("B diverged, or was not measured", False)


@pytest.mark.quick
@pytest.mark.parametrize("criterion", [criteria.earlier, criteria.sooner])
def test_a_run_that_diverged_shortens_no_other(criterion):
    """Of B seed 1 diverged at once; seed 0 is compared over all its rounds, where B is ahead."""
    def run(label, seed, values, diverged=0):
        rounds = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0][: len(values)]
        return Trace("P", label, {}, seed, len(values), diverged,
                     {"test_accuracy": math.nan if diverged else values[-1]},
                     {"test_accuracy": (rounds, values)})

    a = [0.5, *7 * [0.6]]
    b = [0.1, *7 * [0.95]]
    results = Results([run("A", 0, a), run("A", 1, a), run("B", 0, b), run("B", 1, [0.1], 2)])
    assert results.curve("P", "B", "test_accuracy")[1].shape == (2, 8)
    better_first = criterion("said", "P", "B", "A", "test_accuracy").judge(results)
    assert better_first == Outcome("B diverged, or was not measured", False)
    said = criterion("said", "P", "A", "B", "test_accuracy").judge(results)
    # The first quarter: (0.5 + 0.6 - 0.1 - 0.95) / 2; all rounds: (4.7 - 6.75) / 8.
    gap = "2.5" if criterion is criteria.earlier else "-25.6"
    assert said.measured == f"{gap} (one seed); B diverged with 1 of 2 seeds"


def made_adaptive():
    """Five methods on the tasks of the scale small, over both rates, as the paper would have it."""
    inverse = {"AvgM", "Avg"}
    traces = []
    for panel in ("EMNIST CR", "Shakespeare"):
        for label in METHODS:
            for c, client in enumerate([0.01, 0.1, 1.0, 10.0]):
                for s, server in enumerate([0.1, 1.0, 10.0]):
                    best = 2 - c if label in inverse else 1
                    far = abs(s - best)
                    accuracy = 0.8 - (0.3 if label in inverse else 0.02) * far
                    accuracy = accuracy if client < 10 else 0.1  # nothing is learned
                    traces += [
                        Trace(panel, label, {"client_learning_rate": client,
                                             "server_learning_rate": server,
                                             **({"adaptivity": tau} if tau else {})}, seed, 200, 0,
                              {"test_accuracy": accuracy + 0.001 * (label == "Adagrad"),
                               "train_loss": 1 - accuracy, "test_loss": 1 - accuracy},
                              {"test_accuracy": ([10, 100, 200], [accuracy / 2] * 3)})
                        for seed in range(3)
                        for tau in ((None,) if label in inverse else (1e-3,))
                    ]
    return Results(traces)


@pytest.mark.quick
def test_figures_3_4_and_8_of_paper_004_on_its_shakespeare_are_reduced_in_rounds_and_grids():
    panel = "shakespeare-tff (100 rounds) for Shakespeare"
    for name, runs in (("figure-3", 3 * (12 + 2 * 16 + 3 * 6)), ("figure-4", 3 * 5 * 16),
                       ("figure-8", 3 * 5 * 16)):
        plan = EXPERIMENTS[f"reddi2021-{name}"].plan("paper", True)
        assert (plan.panels, plan.num_runs) == ([panel], runs)
        assert "adaptivity 1e-05, 0.001, 0.1" in plan.settings or name != "figure-3"
        published = resolve(task="shakespeare-tff", algorithm="fedadam", preset="reddi2021")
        for job in jobs_of(plan.parts):
            (base,) = job.config.bases.values()
            assert base.task_options == published.task_options
            assert (base.num_rounds, base.cohort_size) == (100, published.cohort_size)
            for key in ("batch_size", "num_local_epochs"):
                assert base.algorithm_options[key] == published.algorithm_options[key]
            if name != "figure-3" and "adaptivity" in base.algorithm_options:
                assert base.algorithm_options["adaptivity"] == 1e-3
    assert {job.key for job in jobs_of(EXPERIMENTS["reddi2021-figure-4"].plan("paper", True).parts)
            } == {job.key for job in jobs_of(plan.parts)}


@pytest.mark.quick
def test_figures_5_to_11_of_paper_004_have_a_task_each_in_the_order_of_table_1():
    tasks = ["CIFAR-10", "CIFAR-100", "EMNIST CR", "Shakespeare", "SO NWP", "SO LR", "EMNIST AE"]
    for number, panel in enumerate(tasks, start=5):
        plan = EXPERIMENTS[f"reddi2021-figure-{number}"].plan("paper", False)
        rates = 8 * (7 if panel == "EMNIST AE" else 9)  # of clients and of the server
        assert (plan.panels, plan.num_runs) == ([panel], 5 * rates * 3)
        keys = [job.key for job in jobs_of(plan.parts)]
        assert len(set(keys)) == len(keys) > 0


@pytest.mark.quick
def test_figures_2_to_4_of_paper_004_judge_and_draw():
    results = made_adaptive()
    for name in ("reddi2021-figure-2", "reddi2021-figure-3", "reddi2021-figure-4",
                 "reddi2021-figure-1"):
        experiment = EXPERIMENTS[name]
        of = results
        if name == "reddi2021-figure-3":
            of = Results(t for t in results.traces if "adaptivity" in t.values)
        found = judged(experiment, of)
        if name != "reddi2021-figure-1":
            assert verdict(found) == "agrees", [outcome for _, outcome in found]
        assert all(table.rows for table in experiment.tables(of))
        figure = Figure(layout="constrained")
        experiment.draw(figure, of)
        assert all(axes.has_data() for axes in figure.axes)
    assert reddi2021_tuning.share_close(results, "EMNIST CR", "Yogi") == 0.75
    assert reddi2021_tuning.share_close(results, "EMNIST CR", "AvgM") == 0.25
    assert reddi2021_tuning.slope(results, "EMNIST CR", "Avg") == pytest.approx(-1)
    # One step of half a decade, of two methods, written with three digits: a tie.
    one_step = Results(
        Trace("P", label, {"client_learning_rate": client, "server_learning_rate": server}, 0, 9, 0,
              {"train_loss": 2.0 - (server == best), "test_loss": 2.0 - (server == best)}, {})
        for label, servers in (("Adagrad", (0.0316, 0.01)), ("Avg", (1.0, 0.316)))
        for client, best in ((0.01, servers[0]), (0.0316, servers[1]), (0.1, servers[1]),
                             (0.316, servers[1]))
        for server in servers
    )
    # Deviations of x: -0.75, -0.25, 0.25, 0.75; of y: 0.375 and three of -0.125.
    assert {reddi2021_tuning.slope(one_step, "P", of) for of in ("Adagrad", "Avg")} == {-0.3}
    # The same rate is best for all, and no rounding makes a falling line of it.
    assert all(math.copysign(1, reddi2021_tuning.slope(results, "EMNIST CR", label)) == 1
               and reddi2021_tuning.slope(results, "EMNIST CR", label) == 0
               for label in ("Adagrad", "Adam", "Yogi"))
    assert sorted(reddi2021_tuning.best_rates(results, "EMNIST CR", "Yogi")) == [0.01, 0.1, 1.0]
    figure = Figure(layout="constrained")
    EXPERIMENTS["reddi2021-figure-4"].draw(figure, results)
    # The client rate 10 did not train, so it has no point.
    assert {x for axes in figure.axes for line in axes.get_lines() if line.get_xdata().size
            for x in line.get_xdata()} == {0.01, 0.1, 1.0}
    assert {(axes.get_title(), axes.get_title("left")) for axes in figure.axes} == {
        ("EMNIST CR", ""), ("Shakespeare", "")}


@pytest.mark.parametrize("panel", SMALL)
def test_paper_004s_methods_have_its_momentum_everywhere(panel):
    """AvgM is heavy ball, Adam and Yogi have 0.9 and 0.99, Adagrad no momentum (section 4)."""
    defaults = {label: inspect.signature(getattr(fedax, name)).parameters
                for label, name in METHODS.items()}
    wanted = {
        "AvgM": {"momentum": 0.9, "dampening": 0.0}, "Adagrad": {"momentum": 0.0},
        "Adam": {"momentum": 0.9, "second_moment_decay": 0.99},
        "Yogi": {"momentum": 0.9, "second_moment_decay": 0.99},
    }
    for label, settings in wanted.items():
        (job, *_) = jobs_of([tuned(panel, label)])
        options = job.config.bases[METHODS[label]].algorithm_options
        for name, value in settings.items():
            assert options.get(name, defaults[label][name].default) == value, (label, name)


@pytest.mark.quick
def test_paper_004s_numbers():
    """Table 1 as it stands in the paper, section 5.1; Tables 2 and 3."""
    assert list(METHODS) == ["Adagrad", "Adam", "Yogi", "AvgM", "Avg"]
    assert {panel: row.published for panel, row in ROWS.items()} == {
        "CIFAR-10": (72.1, 77.4, 78.0, 77.4, 72.8), "CIFAR-100": (47.9, 52.5, 52.4, 52.4, 44.7),
        "EMNIST CR": (85.1, 85.6, 85.5, 85.2, 84.9), "Shakespeare": (57.5, 57.0, 57.2, 57.3, 56.9),
        "SO NWP": (23.8, 25.2, 25.2, 23.8, 19.5), "SO LR": (67.1, 65.8, 65.9, 36.9, 30.0),
        "EMNIST AE": (4.20, 1.01, 0.98, 1.65, 6.47),
    }
    assert reddi2021.TABLE_2 == {
        "SO NWP": (24.4, 25.7, 25.7, 24.5, 20.5), "SO LR": (66.8, 65.2, 66.5, 46.5, 40.6)}
    assert reddi2021.TABLE_3["ExpDecay"] == (85.3, 86.2, 86.2, 85.8, 85.2)


def quadratics(monkeypatch):
    """An experiment of seconds, by name."""
    def ordered(results):
        def judge(found):
            gains = (found.final("Quadratics", "one step", "train_loss")
                     - found.final("Quadratics", "five steps", "train_loss"))
            return Outcome(spread(gains), bool(gains.mean() > 0))

        return [Criterion("More steps are faster. Agrees if the loss is lower.", judge)]

    def draw(figure, results):
        draw_curves(figure.subplots(), results, "Quadratics", "train_loss")

    experiment = Experiment(
        "do more steps help?", "made up, Figure 1",
        lambda scale, stand_in: Plan(PARTS, "Six rounds.", {"Quadratics": (0.01, 0.01)})
        if scale == "small" and not stand_in else None,
        ordered, lambda results: [Table("Losses.", ["", "loss"], [
            [label, spread(results.final("Quadratics", label, "train_loss"))]
            for label in results.labels("Quadratics")])],
        draw,
    )
    monkeypatch.setitem(EXPERIMENTS, "made-up", experiment)
    return experiment


@pytest.mark.slow
def test_the_command_trains_says_and_writes(tmp_path, monkeypatch, capfd):
    quadratics(monkeypatch)
    out, storage = tmp_path / "out", tmp_path / "runs"
    words = ["reproduce", "made-up", "--out", str(out), "--storage", str(storage)]
    assert run_command(words) == 0
    said = capfd.readouterr().out
    assert said.startswith("6 jobs: about 0.010 hours on 2 cores.")
    assert "6 of 6 jobs: Quadratics" in said
    assert "Verdict: agrees." in said
    came = read(out / "made-up-small.json")
    assert len(came.results.traces) == 12
    assert came.made["fedax"]
    assert (out / "made-up-small.png").stat().st_size > 1000
    assert not list(storage.glob("worker*"))  # nothing failed, so no log is left
    assert run_command(words) == 0  # nothing is trained again
    again = capfd.readouterr().out
    assert again.startswith("6 jobs, all finished before.")
    assert " of 6 jobs: " not in again
    half = next(jobs_of(PARTS)).folder(storage)
    half.rename(storage / "elsewhere")
    jobs = list(jobs_of(PARTS))
    plan = Plan(PARTS, "", {"Quadratics": (600.0, 6.0)})
    said = "6 jobs, 5 finished before: about 100 hours on 2 cores."
    assert what_is_left(plan, jobs, storage) == said
    (storage / "elsewhere").rename(half)
    assert read(out / "made-up-small.json").results.traces == came.results.traces
    # In this process, without workers, the numbers are the same.
    job = next(jobs_of(PARTS))
    job.train(tmp_path / "here")
    for trace in traces_of("Quadratics", "one step", job.record(tmp_path / "here")):
        (same,) = [t for t in came.results.traces if (t.label, t.seed, t.values) == (
            trace.label, trace.seed, trace.values)]
        assert same.final["train_loss"] == pytest.approx(trace.final["train_loss"], rel=1e-4)


@pytest.mark.slow
def test_a_panel_finished_before_is_among_the_results_of_another(tmp_path, monkeypatch, capfd):
    """As where a difference needs more seeds in one panel alone; of the other all that are."""
    quadratics(monkeypatch)
    other = tuple(part._replace(panel="Others", settings={**part.settings, "num_rounds": 7})
                  for part in PARTS)
    plan = Plan((*PARTS, *other), "", {"Quadratics": (0.01, 0.01), "Others": (0.01, 0.01)})
    monkeypatch.setitem(EXPERIMENTS, "made-up", EXPERIMENTS["made-up"]._replace(
        plan=lambda scale, stand_in: plan))
    whole = ["reproduce", "made-up", "--storage", str(tmp_path / "runs"), "--out",
             str(tmp_path / "out")]

    def seeds():
        came = read(tmp_path / "out" / "made-up-small.json")
        return {panel: len({t.seed for t in came.results.traces if t.panel == panel})
                for panel in came.results.panels}

    assert run_command([*whole, "--only", "Quadratics", "--seeds", "4"]) == 0
    assert "Finished before" not in capfd.readouterr().out
    assert seeds() == {"Quadratics": 4}
    assert run_command([*whole, "--only", "Others"]) == 0
    said = capfd.readouterr().out
    assert "The results include panels finished before: Quadratics." in said
    assert said.startswith("6 jobs: ")
    assert list(seeds().items()) == [("Quadratics", 4), ("Others", 3)]  # in the plan's order


def test_plans_and_mistakes_are_sentences(monkeypatch, capfd, tmp_path):
    quadratics(monkeypatch)
    assert run_command(["reproduce", "made-up", "--plan"]) == 0
    said = capfd.readouterr().out
    assert "Runs: 12 with 3 seeds, in Quadratics." in said
    assert "- More steps are faster. Agrees if" in said
    assert run_command(["reproduce", "made-up", "--plan", "--seeds", "5"]) == 0
    assert "Runs: 20 with 5 seeds, in Quadratics." in capfd.readouterr().out
    assert run_command(["reproduce", "made-up", "--plan", "--seeds", "1"]) == 0
    assert "Runs: 4 with 1 seed, in Quadratics." in capfd.readouterr().out
    for words, sentence in (
        (["made-up", "--scale", "paper"], "Available: --scale small."),
        (["made-up", "--only", "quadratic"], "Did you mean 'Quadratics'?"),
        (["made-up", "--workers", "0"], "--workers"),
        (["made-up", "--seeds", "0"], "--seeds"),
        (["mime2020-figure-2", "--scale", "paper"], "is computed, in seconds"),
        (["nothing"], "nothing"),
    ):
        assert run_command(["reproduce", *words, "--out", str(tmp_path)]) == 2
        error = capfd.readouterr().err
        assert sentence in error
        assert error.count("\n") == 1


@pytest.mark.slow
def test_what_fails_is_said_and_the_rest_is_trained(tmp_path):
    bad = PARTS[0]._replace(label="bad", settings={**PARTS[0].settings, "seed": 1})
    jobs = list(jobs_of([*PARTS, bad]))
    stuck = jobs[0].folder(tmp_path)
    stuck.mkdir(parents=True)
    (stuck / "config.json").write_text("{")
    shown = []
    with pytest.raises(RunError, match="one step in Quadratics with seed 0 was not trained: "):
        train_all(jobs, tmp_path, 1, shown.append)
    assert len(shown) == len(jobs) - 1
    assert list(tmp_path.glob("worker*.log"))
    came = gathered(
        "made-up", EXPERIMENTS["reddi2021-table-1"], "small", False, jobs, tmp_path
    )
    finished = {part.label for part in [*PARTS, bad]} - {"one step"}
    assert set(came.results.labels("Quadratics")) == finished


class _Standing:
    """A worker without a process, which trains or fails as it is told."""

    platform = "cpu"

    def __init__(self, storage, place):
        self.done = 0

    def ask(self, job):
        self.done += 1
        return {"done": True} if self.done < 2 else {"error": "it was killed.", "gone": True}

    def stop(self, *, keep_log):
        pass


@pytest.mark.quick
def test_jobs_that_were_not_tried_are_counted_and_what_show_raises_is_raised(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "_Worker", _Standing)
    jobs, shown = list(jobs_of(PARTS)), []
    with pytest.raises(RunError) as failed:
        train_all(jobs, tmp_path, 1, shown.append)
    assert str(failed.value).endswith(
        f"was not trained: it was killed. {len(jobs) - 2} jobs not tried; the same command "
        "continues."
    )
    assert [trained.job for trained in shown] == jobs[:1]

    def broken(self, job):
        raise OSError(22, "Invalid argument")

    with monkeypatch.context() as patch:
        patch.setattr(_Standing, "ask", broken)
        with pytest.raises(RunError, match=f"{len(jobs) - 1} jobs not tried"):
            train_all(jobs, tmp_path, 1, shown.append)

    def gone(trained):
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        train_all(jobs, tmp_path, 1, gone)


@pytest.mark.slow
def test_asked_to_stop_it_begins_no_other_job_and_goes_on_later(tmp_path):
    asked, shown = Request(), []

    def show(trained):
        shown.append(trained)
        asked.by = 15

    jobs = list(jobs_of(PARTS))
    with pytest.raises(KeyboardInterrupt):
        train_all(jobs, tmp_path, 1, show, asked)
    assert 1 <= len(shown) < len(jobs)
    assert not list(tmp_path.glob("worker*.log"))
    done = [job for job in jobs if job.record(tmp_path) is not None]
    assert [trained.job for trained in shown] == done
    train_all(jobs, tmp_path, 1, shown.append)
    assert len(shown) == len(jobs)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL of a process group")
def test_killed_at_work_its_workers_end_and_the_next_one_goes_on(tmp_path):
    longer = {"num_rounds": 2_000, "evaluate_every": 0}
    parts = [part._replace(settings={**part.settings, **longer}) for part in PARTS]
    program = (
        "import sys, json\nfrom pathlib import Path\n"
        "from fedax.reproductions.experiment import Part\n"
        "from fedax.reproductions.jobs import jobs_of\n"
        "from fedax.reproductions.workers import train_all\n"
        "parts = [Part(**one) for one in json.loads(sys.argv[1])]\n"
        "train_all(list(jobs_of(parts)), Path(sys.argv[2]), 2, lambda _: None)\n"
    )
    told = json.dumps([part._asdict() for part in parts])
    process = subprocess.Popen([sys.executable, "-c", program, told, str(tmp_path)])
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("*/parts")) and time.monotonic() < deadline:
        time.sleep(0.2)
    workers = [int(line.split()[0]) for line in subprocess.run(
        ["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True,
    ).stdout.splitlines() if f" {process.pid} " in line and "reproductions.workers" in line]
    assert len(workers) == 2
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}/cmdline").exists() and
              b"workers" in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in workers):
        assert time.monotonic() < deadline, "a worker outlives the process that asked it"
        time.sleep(0.2)
    job = next(jobs_of(parts))
    train_all([job], tmp_path, 1, lambda _: None)
    whole = job.record(tmp_path)
    job.train(tmp_path / "at-once")
    at_once = job.record(tmp_path / "at-once")
    np.testing.assert_allclose(
        whole.metrics["train_loss"], at_once.metrics["train_loss"], rtol=1e-4)


@pytest.mark.quick
def test_published_values_and_seeds_that_diverged_are_drawn():
    results = made({"A": [0.4, 0.6], "B": [0.2]}, panel="plays for Shakespeare")
    cut = results.traces[1]
    results.traces[1] = cut._replace(
        diverged=60, curves={"test_accuracy": ([1, 50], [0.0, 0.5])})
    axes = Figure().subplots()
    draw_curves(axes, results, "plays for Shakespeare", "test_accuracy", scale=100,
                published={"A": 57.5, "not run": 1.0})
    line, _, point, _ = axes.get_lines()
    assert line.get_ydata() == pytest.approx([0, 35, 40])
    assert (point.get_xdata(), point.get_ydata()) == ([104.0], [57.5])
    assert point.get_color() == line.get_color()
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "A", "B", "published, Shakespeare"]


@pytest.mark.quick
@pytest.mark.parametrize(("last", "limits"), [(1e22, (0.045, 1.2)), (2.0, (0.005, 2.095))])
def test_a_loss_that_explodes_hides_no_other(last, limits):
    axes = Figure().subplots()
    for end in (0.1, last):
        axes.plot([0, 1], [1.0, end])
    keep_in_sight(axes)
    assert axes.get_ylim() == pytest.approx(limits)


@pytest.mark.quick
def test_results_survive_their_file(tmp_path):
    results = made({"A": [0.5, math.nan], "B": [0.25, 0.75]})
    came = gathered_like(results)
    path = write(came, tmp_path)
    again = read(path)
    assert math.isnan(again.results.traces[1].final["test_accuracy"])
    np.testing.assert_equal(again.results.final("P", "B", "test_accuracy"), [0.25, 0.75])
    assert "NaN" not in path.read_text()
    path.write_text("{}")
    with pytest.raises(RunError, match="is not what fedax reproduce writes"):
        read(path)


@pytest.mark.quick
def test_a_file_keeps_what_is_judged(tmp_path):
    """Curves of a lone setting though a seed of it diverged, and of the best one of several."""
    def one(label, rate, seed, loss, diverged=0):
        final = math.nan if diverged else loss
        return Trace("P", label, {"client_learning_rate": rate} if rate else {}, seed, 9, diverged,
                     {"train_loss": final}, {"train_loss": ([1.0, 5.0, 9.0], [3.0, 2.0, loss])})

    results = kept(Results([
        one("lone", None, 0, 0.5), one("lone", None, 1, 1e9, diverged=7),
        one("tuned", 0.1, 0, 0.5), one("tuned", 0.3, 0, 0.4), one("tuned", 1.0, 0, 1e9, diverged=2),
    ]))
    again = read(write(gathered_like(results), tmp_path)).results
    for found in (results, again):
        rounds, values = found.curve("P", "lone", "train_loss", {})
        np.testing.assert_array_equal(rounds, [1, 5, 9])
        np.testing.assert_array_equal(values, [[3, 2, 0.5], [3, 2, 1e9]])
        lengths = [len(found.curve("P", "tuned", "train_loss", {"client_learning_rate": rate})[0])
                   for rate in (0.1, 0.3, 1.0)]
        assert lengths == [0, 3, 0]
        assert found.best("P", "tuned") == {"client_learning_rate": 0.3}


def gathered_like(results):
    return Came("made-up", "small", True, results, 12.0, {"fedax": "0"})


@pytest.mark.quick
def test_the_causes_that_are_looked_for_have_their_tables():
    lines = (ROOT / "docs" / "notebook" / "reproduction-causes.md").read_text("utf-8").splitlines()
    titles = [f"## {causes.title(probe)}" for probe in causes.PROBES]
    assert [line for line in lines if line.startswith("## ")] == titles
    assert len(set(titles)) == len(titles)
    assert all(list(jobs_of(list(causes.parts_of(probe)))) for probe in causes.PROBES)


@pytest.mark.quick
def test_a_table_of_causes_whose_runs_are_lost_stays_as_it_was(tmp_path):
    page, probe = causes.PAGE.read_text("utf-8"), causes.PROBES[1]
    kept = causes.look(probe, tmp_path, page)
    assert kept in page
    assert kept.count("## ") == 1
    assert kept.startswith(f"## {causes.title(probe)}\n\nSeeds: {probe.seeds}.\n\n| | best")
    lost = page.replace(kept, "")
    assert causes.look(probe, tmp_path, lost) == f"## {causes.title(probe)}\n\nNot run yet.\n"
    last = "\n".join(["# Causes", "", kept])  # nothing follows it
    assert causes.look(probe, tmp_path, last) == kept


@pytest.mark.quick
def test_the_page_names_the_commands_that_give_its_numbers(monkeypatch):
    """As many seeds of each panel as were run: five of one of them are not five of all."""
    parts = tuple(Part(panel, "A", "quadratic", "fedavg") for panel in ("P", "Q"))
    monkeypatch.setitem(EXPERIMENTS, "made-up", quadratics(monkeypatch)._replace(
        plan=lambda scale, stand_in: Plan(parts, "", {"P": (0.3, 0.1), "Q": (0.6, 0.1)})))

    def said(more):
        three, others = made({"A": [0.1] * 3}), made({"A": [0.1] * more}, panel="Q")
        run = Trained(gathered_like(Results([*three.traces, *others.traces])))
        seeds = sections.seeds_of(run)
        hours = sections.with_seeds(run.plan, seeds).rough_hours[0]
        return sections.commands(run, seeds), sections.of_all(seeds), hours

    whole = "fedax reproduce made-up --scale small --stand-in"
    assert said(3) == (f"`{whole}`", "3 seeds", pytest.approx(0.9))
    assert said(5) == (f'`{whole} --only "P"` and `{whole} --only "Q" --seeds 5`',
                       "3 seeds (P) and 5 seeds (Q)", pytest.approx(0.3 + 1.0))


@pytest.mark.quick
def test_methods_with_other_numbers_of_seeds_are_told_as_they_were_run(monkeypatch):
    """B is planned with five: three of A and five of B are 8 runs for 0.8 hours, as planned."""
    parts = (Part("P", "A", "quadratic", "fedavg"),
             Part("P", "B", "quadratic", "fedavg", num_seeds=5))
    monkeypatch.setitem(EXPERIMENTS, "made-up", quadratics(monkeypatch)._replace(
        plan=lambda scale, stand_in: Plan(parts, "", {"P": (0.8, 0.1)})))

    def said(of_a):
        run = Trained(gathered_like(made({"A": [0.1] * of_a, "B": [0.1] * 5})))
        seeds = sections.seeds_of(run)
        hours = sections.with_seeds(run.plan, seeds).rough_hours[0]
        return sections.commands(run, seeds), sections.of_all(seeds), hours

    whole = "fedax reproduce made-up --scale small --stand-in"
    assert said(3) == (f"`{whole}`", "3 or 5 seeds", pytest.approx(0.8))
    assert said(5) == (f"`{whole} --seeds 5`", "5 seeds", pytest.approx(1.0))
    assert said(1) == (f'`{whole} --only "P" "A" --seeds 1` and `{whole} --only "P" "B" --seeds 5`',
                       "1 or 5 seeds", pytest.approx(0.8))


@pytest.mark.quick
def test_throughout_is_judged_in_the_quarter_where_it_is_least_ahead():
    """A is 10 points ahead of B and C first, in the third quarter 3 behind C, then level."""
    def run(label, seed, values):
        rounds = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
        values = [value + 0.001 * seed for value in values]
        return Trace("P", label, {}, seed, 8, 0, {"test_accuracy": values[-1]},
                     {"test_accuracy": (rounds, values)})

    curves = {"A": [0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.6, 0.6],
              "B": [0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4],
              "C": [0.1, 0.1, 0.2, 0.2, 0.53, 0.53, 0.6, 0.6]}
    results = Results([run(label, seed, of) for label, of in curves.items() for seed in (0, 1)])
    for by, agrees in ((-3.1, True), (-2.9, False)):
        said = criteria.throughout("said", "P", "A", ("B", "C"), "test_accuracy", by)
        outcome = said.judge(results)
        assert outcome.agrees is agrees
        assert outcome.measured.startswith("-3 ± ")
        assert outcome.measured.endswith("in quarter 3")
    lost = Results([*results.traces, *(Trace("P", "D", {}, seed, 2, 2, {}, {}) for seed in (0, 1))])
    assert not criteria.throughout("s", "P", "D", ("B",), "test_accuracy", -9).judge(lost).agrees
    assert criteria.throughout("s", "P", "A", ("B", "D"), "test_accuracy", 0).judge(lost).agrees


@pytest.mark.quick
def test_figure_1_of_paper_004_asks_for_scaffold_and_all_quarters():
    """SCAFFOLD may be a point ahead of the worst of the others, and no more."""
    def judged_with(scaffold):
        made_up = Results([
            Trace("CIFAR-10", label, {}, seed, 40, 0, {"test_accuracy": value, "train_loss": 1.0},
                  {"test_accuracy": ([10, 20, 30, 40], [value] * 4)})
            for label, value in {**dict.fromkeys(METHODS, 0.5), "Adam": 0.505, "Yogi": 0.506,
                                 "SCAFFOLD": scaffold}.items() for seed in range(3)
        ])
        found = judged(EXPERIMENTS["reddi2021-figure-1"], made_up)
        return {one.statement.split(".")[0]: outcome.agrees for one, outcome in found}

    agreeing = judged_with(0.509)
    assert len(agreeing) == 7
    assert all(agreeing.values())
    disagreeing = judged_with(0.511)
    assert [said for said, agrees in disagreeing.items() if not agrees] == [
        "CIFAR-10: SCAFFOLD performs comparably to or worse than Avg and the adaptive methods"]


@pytest.mark.quick
@pytest.mark.parametrize(("worst", "agrees"), [(0.481, True), (0.479, False)])
def test_small_differences_among_adaptivities_are_two_points(worst, agrees):
    made_up = Results([
        Trace("CIFAR-10", label, {"adaptivity": tau, "client_learning_rate": 0.1}, seed, 9, 0,
              {"test_accuracy": value, "train_loss": 1.0}, {})
        for label in ("Adam", "Yogi") for tau, value in ((1e-5, 0.5), (1e-3, 0.5), (0.1, worst))
        for seed in range(3)
    ])
    found = {one.statement: outcome.agrees
             for one, outcome in judged(EXPERIMENTS["reddi2021-figure-3"], made_up)}
    assert [of for said, of in found.items() if "small differences" in said] == [agrees] * 2
    assert all(of for said, of in found.items() if "almost as well" in said)
