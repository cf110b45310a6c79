"""Which setting of a sweep is best, on records made by hand."""

import math

import numpy as np
import pytest

from fedax.report.sweep_tables import best_table
from fedax.sweeps.choosing import choose, extended
from fedax.sweeps.closing import closing_words, remarks
from fedax.sweeps.edges import ADDED, Bounds, bounds_of, continued, edge
from fedax.sweeps.grid import different, product, settings_of
from fedax.sweeps.record import Record

pytestmark = pytest.mark.quick

INF, NAN = math.inf, math.nan


def recorded(grids, losses, *, metric="train_loss", diverged=None, done=None, drop=(), **others):
    """A record of losses[setting][seed], each a list of rounds or the one value of all rounds."""
    settings = settings_of(grids)
    runs = [(n, s) for n in range(len(settings)) for s in range(len(losses[n]))]
    runs = [run for run in runs if run not in drop]
    rows = [np.atleast_1d(np.asarray(losses[n][s], float)) for n, s in runs]
    rounds = max(map(len, rows))
    values = np.full((len(runs), rounds), NAN)
    for row, found in enumerate(rows):
        values[row, :len(found)] = found
    number, seed = (np.array(column, int) for column in zip(*runs, strict=True))
    at = np.array([(diverged or {}).get(run, 0) for run in runs])
    finished = np.array([
        (done or {}).get(run, at[row] - 1 if at[row] else len(rows[row]))
        for row, run in enumerate(runs)
    ])
    return Record(settings, number, seed, at, finished, {metric: values, **others})


RATES = {"fedavg": {"client_learning_rate": [0.1, 1.0, 10.0]}}


def test_the_papers_rule_is_the_mean_of_the_last_hundred_rounds():
    long = np.concatenate([np.full(50, 9.0), np.arange(100.0)])
    steady = np.concatenate([np.zeros(50), np.full(100, 49.6)])
    choice = choose(recorded(RATES, [[long], [steady], [np.full(150, 50.0)]]))
    assert choice.mean == pytest.approx([49.5, 49.6, 50.0])  # the mean of 0, ..., 99 is 99 / 2
    assert choice.methods["fedavg"].order == [0, 1, 2]
    assert (choice.rule, choice.maximise) == ("train_loss", False)


def test_fewer_rounds_are_all_taken_and_those_without_a_loss_left_out():
    choice = choose(recorded(RATES, [[[3.0, NAN, 1.0]], [[2.5, 2.5, 2.5]], [[4.0, 4.0, 4.0]]]))
    assert choice.mean.tolist() == [2.0, 2.5, 4.0]


def test_mean_and_spread_over_seeds():
    choice = choose(recorded(RATES, [[1.0, 2.0, 6.0], [2.0, 3.0, 3.0], [5.0, 5.0, 5.0]]))
    assert choice.mean == pytest.approx([3.0, 8 / 3, 5.0])
    assert choice.spread == pytest.approx([math.sqrt(7), math.sqrt(1 / 3), 0.0])
    assert choice.methods["fedavg"].best == 1
    assert choice.scores.tolist() == [[1, 2, 6], [2, 3, 3], [5, 5, 5]]


def test_one_setting_and_one_seed():
    choice = choose(recorded({"fedavg": {}}, [[2.0]]))
    (chosen,) = choice.methods.values()
    assert (chosen.best, chosen.edges, chosen.sensitivity, chosen.grid) == (0, [], 1.0, {})
    assert np.isnan(choice.spread).all()


def test_seeds_that_are_missing():
    """A mean is over the seeds that there are; a setting without any comes last."""
    choice = choose(recorded(RATES, [[3.0, 1.0], [2.5, 0.0], [1.0, 1.0]],
                             drop=[(1, 1), (2, 0), (2, 1)]))
    np.testing.assert_array_equal(choice.scores, [[3.0, 1.0], [2.5, NAN], [NAN, NAN]])
    np.testing.assert_array_equal(choice.mean, [2.0, 2.5, NAN])
    assert choice.methods["fedavg"].order == [0, 1, 2]
    assert choice.methods["fedavg"].sensitivity == 1 / 3


def test_what_diverges_for_one_seed_is_not_the_best():
    choice = choose(recorded(RATES, [[0.1, 0.1], [2.0, 2.0], [3.0, 3.0]], diverged={(0, 1): 1}))
    chosen = choice.methods["fedavg"]
    assert (chosen.best, chosen.order, chosen.diverged) == (1, [1, 2, 0], [0])
    assert choice.scores[0].tolist() == [0.1, INF]
    assert choice.mean[0] == INF
    assert np.isnan(choice.spread[0])
    assert chosen.sensitivity == 1 / 3


@pytest.mark.parametrize("rule", ["train_loss", "train_loss:max", "test_accuracy"])
def test_nothing_is_best_where_all_diverged(rule):
    choice = choose(recorded(RATES, [[1.0], [2.0], [3.0]],
                             diverged={(0, 0): 1, (1, 0): 1, (2, 0): 1}), rule)
    chosen = choice.methods["fedavg"]
    assert (chosen.best, chosen.edges, chosen.diverged) == (None, [], [0, 1, 2])
    assert math.isnan(chosen.sensitivity)
    assert extended(settings_of(RATES), choice) == []


def test_of_equal_settings_the_first_is_the_best():
    assert choose(recorded(RATES, [[2.0], [1.0], [1.0]])).methods["fedavg"].order == [1, 2, 0]
    most = choose(recorded(RATES, [[1.0], [2.0], [2.0]], metric="test_accuracy"), "test_accuracy")
    assert most.methods["fedavg"].order == [1, 2, 0]


def test_the_last_measured_value_in_the_direction_of_its_name():
    record = recorded(RATES, [[[1, 1, 1]]] * 3, test_accuracy=np.array(
        [[0.9, NAN, 0.5], [NAN, NAN, 0.7], [0.8, NAN, 0.6]]))
    choice = choose(record, "test_accuracy")
    assert choice.maximise
    assert choice.mean.tolist() == [0.5, 0.7, 0.6]
    assert choice.methods["fedavg"].best == 1
    assert choose(record, "test_accuracy:min").methods["fedavg"].best == 0


def test_an_evaluation_that_is_not_finite_is_the_worst_and_not_the_one_before():
    record = recorded(RATES, [[[1, 1]]] * 3, test_loss=np.array([[0.1, NAN], [2, 3], [2, INF]]))
    chosen = choose(record, "test_loss").methods["fedavg"]
    assert (chosen.best, chosen.diverged) == (1, [0, 2])


def test_a_function_of_the_history():
    record = recorded(RATES, [[[3, 2, 1]], [[1, 5, 2]], [[9, 9, 9]]], diverged={(2, 0): 1})

    def lowest(history):
        return history["train_loss"].min()

    choice = choose(record, lowest)
    assert (choice.rule, choice.mean.tolist()) == ("lowest", [1, 1, INF])
    most = choose(record, lambda history: len(history) * history["train_loss"][0], maximise=True)
    assert most.mean.tolist() == [9, 3, -INF]
    assert most.methods["fedavg"].best == 0
    assert choose(record, lambda history: NAN).methods["fedavg"].best is None


def test_a_last_evaluation_of_what_was_given_up_is_no_gap_of_the_others():
    losses = np.array([[NAN, 4, NAN, NAN], [NAN, 3, 9, NAN], [NAN, 2, NAN, 1]])
    record = recorded(RATES, [[[1] * 4], [[1] * 3], [[1] * 4]], test_loss=losses)
    assert choose(record, "test_loss", num_rounds=3).mean.tolist() == [4, 3, 2]
    np.testing.assert_array_equal(choose(record, "test_loss").mean, [INF, NAN, 1])


@pytest.mark.parametrize("answer", [None, "1.0", True, [1.0, 2.0]])
def test_a_function_that_returns_no_number(answer):
    with pytest.raises(TypeError, match=r"must return a number for a run's history, but returned"):
        choose(recorded(RATES, [[1.0], [2.0], [3.0]]), lambda history: answer)


def test_compared_after_some_rounds_and_not_with_those_given_up_before():
    record = recorded(RATES, [[[1, 1]], [[3, 2, 2, 2]], [[4, 4, 1, 0]]], diverged={(2, 0): 4})
    at_two, at_end = choose(record, num_rounds=2), choose(record)
    assert at_two.mean.tolist() == [1.0, 2.5, 4.0]
    np.testing.assert_array_equal(at_end.mean, [NAN, 2.25, INF])
    assert at_end.methods["fedavg"].order == [1, 2, 0]


def test_a_rule_that_cannot_be_followed_says_so():
    record = recorded(RATES, [[[1, 1]]] * 3, test_loss=np.full((3, 2), NAN))
    with pytest.raises(ValueError, match=r"Did you mean 'train_loss'\? Known: 'train_loss'"):
        choose(record, "train_los:min")
    with pytest.raises(ValueError, match=r"by test_loss: it was not measured in the first 2 round"):
        choose(record, "test_loss")
    with pytest.raises(ValueError, match=r"choose: the name 'lift' does not say"):
        choose(record, "lift")
    with pytest.raises(TypeError, match=r"maximise is for a function"):
        choose(record, maximise=True)
    with pytest.raises(ValueError, match=r"num_rounds must be a whole number of at least 1"):
        choose(record, num_rounds=0)


def test_sensitivity_is_the_share_within_five_percent_of_the_best():
    grids = {"fedavg": {"client_learning_rate": [1, 2, 3, 4]}}
    losses = choose(recorded(grids, [[2.0], [2.1], [2.11], [9.0]]))
    assert losses.methods["fedavg"].sensitivity == 0.5  # 2 * 1.05 = 2.1
    shares = recorded(grids, [[0.6], [0.57], [0.56], [0.1]], metric="test_accuracy")
    assert choose(shares, "test_accuracy").methods["fedavg"].sensitivity == 0.5  # 0.6 * 0.95
    below = choose(recorded(grids, [[-2.0], [-1.9], [-1.8], [0.0]]))  # a loss may be negative
    assert below.methods["fedavg"].sensitivity == 0.5


def test_each_method_has_its_own_best():
    grids = {"fedavg": {"client_learning_rate": [0.1, 1.0]}, "fedavgm": {"momentum": [0.0, 0.9]}}
    choice = choose(recorded(grids, [[1.0], [2.0], [4.0], [3.0]]))
    assert {name: of.best for name, of in choice.methods.items()} == {"fedavg": 0, "fedavgm": 3}
    assert choice.methods["fedavgm"].grid == {"momentum": [0.0, 0.9]}


def test_edges_are_the_best_values_at_an_end_of_their_grid():
    grids = {"fedavg": {"client_learning_rate": [1.0, 0.1, 0.01], "server_learning_rate": [1.0],
                        "num_local_steps": [1, 2, 5], "weighting": ["uniform", "num_examples"]}}
    losses = [[float(abs(n - 14))] for n in range(18)]  # 0.01, 1, 2, uniform is the 14th
    (found,) = choose(recorded(grids, losses)).methods["fedavg"].edges
    assert (found.name, found.value, found.side) == ("client_learning_rate", 0.01, "smallest")
    assert found.add == pytest.approx([0.001, 0.0001])


LOGS = [float(value) for value in np.logspace(-3, 0.5, 8)]


@pytest.mark.parametrize(("name", "values", "below", "above"), [
    ("client_learning_rate", [0.1, 0.316, 1, 3.16], [0.0316, 0.01], [10, 31.6]),
    ("server_learning_rate", LOGS, [10**-3.5, 1e-4], [10, 10**1.5]),
    ("server_learning_rate", [0.1, 0.3, 1, 3], [0.03, 0.01], [10, 30]),
    ("client_learning_rate", [0.0, 0.01, 0.1], None, [1, 10]),
    ("adaptivity", [0.02, 0.05], [0.008, 0.0032], [0.125, 0.3125]),
    ("client_learning_rate", [0.3, 1], [0.1, 0.03], [3, 10]),
    ("client_learning_rate", [0.316, 1], [0.1, 0.0316], [3.16, 10]),
    ("client_learning_rate", [10**-0.5, 1.0], [0.1, 10**-1.5], [10**0.5, 10]),
    ("client_learning_rate", [0.03, 1], [0.003, 0.0003], [10, 100]),  # a decade at most
    ("client_learning_rate", [0.002, 0.5], [0.0002, 0.00002], [5, 50]),
    ("client_learning_rate", [1e-6, 1e-4, 1e-2], [1e-8, 1e-10], [1, 100]),  # but if all are more
    ("num_local_steps", [3, 10], [1], [30, 100]),
    ("num_local_steps", [1, 2, 4, 8], None, [16, 32]),
    ("num_local_steps", [5, 10, 20], [2, 1], [40, 80]),  # 2.5 and 1.25, whole
    ("num_local_epochs", [1, 2, 3], None, [4, 5]),
    ("batch_size", [3, 6], [2, 1], [12, 24]),
    ("momentum", [0.0, 0.9], None, [0.99, 0.999]),
    ("momentum", [0.5, 0.9], [0.0], [0.98, 0.996]),  # from 1 they are 0.5, 0.1, 0.02, 0.004
    ("second_moment_decay", [0.9, 0.99], [0.0], [0.999, 0.9999]),
    ("client_decay", [0.9, 1.0], [0.81, 0.729], None),
    ("momentum_weight", [0.1, 0.5], [0.02, 0.004], [0.5 + 0.5 * 4 / 9, 1 - 0.5 * (5 / 9) ** 2]),
    ("shift", [-1, 0, 1], [-2, -3], [2, 3]),
    ("algorithm.momentum", [0.0, 0.9], None, [0.99, 0.999]),
    ("offset", [0.2, 0.4, 0.6], [0.1, 0.05], [0.8, 1.0]),  # positive stays positive
])
def test_a_grid_goes_on_in_its_own_steps(name, values, below, above):
    for side, value, expected in (("smallest", values[0], below), ("largest", values[-1], above)):
        found = edge(name, value, values)
        if expected is None:
            assert found is None
        else:
            assert (found.side, found.value) == (side, value)
            assert found.add == pytest.approx(expected)
            assert len(found.add) <= ADDED


def test_what_is_no_edge():
    assert edge("client_learning_rate", 0.1, [0.01, 0.1, 1.0]) is None
    assert edge("client_learning_rate", 0.1, [0.1]) is None
    assert edge("base", "sgdm(0.9)", ["sgdm(0.9)", "adam(0.001)"]) is None
    assert edge("switch", True, [True, False]) is None
    assert edge("num_local_steps", None, [None, 5]) is None
    for situation in ("task.seed", "partition_seed", "cohort_size", "dropout", "num_clients"):
        assert edge(situation, 0.5, [0.1, 0.5]) is None


def test_no_value_leaves_what_a_hyperparameter_can_be():
    below_one = ("momentum", "sensitivity_decay")
    for name in (*below_one, "num_local_steps", "client_learning_rate", "window"):
        whole = bounds_of(name, [1]).whole
        for low, high in ((0.0, 0.1), (0.1, 0.2), (0.9, 0.999999), (1, 2), (1, 100)):
            values = [max(round(low), 1), max(round(high), 2)] if whole else [low, high]
            if not whole and bounds_of(name, values).most < high:
                continue
            for side in ("smallest", "largest"):
                for value in continued(values, side, bounds_of(name, values)):
                    assert value < 1 if name in below_one else value >= whole
                    assert isinstance(value, int) == whole
                    assert value not in values
    assert continued([1e300, 1e308], "largest", Bounds()) == []


def test_values_by_size_and_texts_as_they_came():
    assert different([3, 1.0, 1, 2]) == [1.0, 2, 3]
    assert different([True, 1, "a", None, "a"]) == [True, 1, "a", None]


def test_the_settings_are_the_product_of_each_methods_grid():
    settings = settings_of({"a": {"x": [1, 2], "y": ["p", "q"]}, "b": {}})
    assert [setting.number for setting in settings] == list(range(5))
    assert [dict(setting.values) for setting in settings] == [
        {"x": 1, "y": "p"}, {"x": 1, "y": "q"}, {"x": 2, "y": "p"}, {"x": 2, "y": "q"}, {}
    ]


def test_an_extension_has_what_the_edges_ask_for_and_only_that():
    grids = {"fedavg": {"client_learning_rate": [0.1, 1.0], "server_learning_rate": [0.1, 1.0]},
             "fedavgm": {"momentum": [0.5, 0.7, 0.9]}}
    settings = settings_of(grids)
    losses = [[4.0], [3.0], [2.0], [1.0], [5.0], [4.0], [5.0]]
    found = extended(settings, choose(recorded(grids, losses)))
    assert [setting.number for setting in found] == list(range(7, 7 + 12))
    pairs = {tuple(setting.values.values()) for setting in found}
    rates = [0.1, 1.0, 10.0, 100.0]  # both rates are best at 1
    assert pairs == {(c, s) for c in rates for s in rates if max(c, s) > 1}
    assert {setting.algorithm for setting in found} == {"fedavg"}  # momentum is best inside


def test_an_extension_fills_no_other_gaps():
    settings = settings_of({"fedavg": {"client_learning_rate": [1, 2, 4], "momentum": [0, 1]}})
    del settings[0]
    settings = [setting._replace(number=n) for n, setting in enumerate(settings)]
    record = recorded({"fedavg": {"client_learning_rate": range(5)}}, [[3], [3], [2], [2], [1]])
    choice = choose(record._replace(settings=settings))
    assert {edge.name for edge in choice.methods["fedavg"].edges} == {"client_learning_rate"}
    assert [dict(one.values) for one in extended(settings, choice)] == product(
        {"client_learning_rate": [8, 16], "momentum": [0, 1]}
    )


def test_the_closing_words_say_all_of_it():
    grids = {"fedavg": {"client_learning_rate": [0.1, 1.0], "weighting": ["uniform", "n"]},
             "fedavgm": {"momentum": [0.0, 0.9]}, "fedsgd": {}}
    losses = [[9.0, 9.0], [9.0, 9.0], [1.0, 1.5], [1.3, 1.3], [1.0, 1.0], [2.0, 2.0], [3.0, 4.0]]
    record = recorded(grids, losses, diverged={
        (0, 0): 1, (1, 1): 1, (4, 0): 1, (5, 0): 1
    })
    choice = choose(record)
    words = closing_words(record, choice)
    assert words == [
        "Chosen by the mean train_loss over one round; lower is better.",
        "fedavg: the best setting is client_learning_rate=1 weighting=uniform, with 1.25 ± 0.35 "
        "(2 seeds).",
        "fedavg: 50% of its settings (2 of 4) are within 5% of the best.",
        "fedavg: best client_learning_rate is 1, the largest of its grid; add 10, 100.",
        "fedavg: 2 of 4 settings diverged: client_learning_rate=0.1 weighting=uniform; "
        "client_learning_rate=0.1 weighting=n.",
        "fedavgm: all settings that were run diverged; try lower learning rates.",
        "fedsgd: the best setting is the only one, with 3.5 ± 0.71 (2 seeds).",
    ]
    assert remarks(record, choice) == words[3:6]
    table = best_table(record, choice)
    assert table.headings == ["method", "train_loss", "best setting", "within 5%", "diverged"]
    assert table.rows == [
        ["fedavg", "1.25 ± 0.35", "client_learning_rate=1 weighting=uniform", "2 of 4", "2"],
        ["fedavgm", "", "none", "", "2"],
        ["fedsgd", "3.5 ± 0.71", "the only one", "", ""],
    ]
    alone = choose(recorded({"fedsgd": {}}, [[3.0, 4.0]]))
    assert alone.table() == (["method", "train_loss"], [["fedsgd", "3.5 ± 0.71"]])
    printed = str(choice).splitlines()
    assert printed[0].startswith("The best setting of each method by train_loss, lower is better")
    assert [line.split("  ")[0] for line in printed[1:]] == [
        "method", "fedavg", "fedavgm", "fedsgd"]
    assert len({line.index(word) for line, word in zip(
        printed[1:3], ("best setting", "client_learning_rate"), strict=True)}) == 1


def test_the_rule_in_words():
    long = recorded(RATES, [[np.ones(101)]] * 3, test_loss=np.ones((3, 101)))
    assert "the mean train_loss over the last 100 rounds; lower" in closing_words(
        long, choose(long))[0]
    last = choose(long, "test_loss")
    first_word, *_, last_word = closing_words(long, last)
    assert "Chosen by the last test_loss; lower" in first_word
    assert last_word == remarks(long, last)[-1]
    assert last_word.startswith("The settings were chosen by test data")
    assert "chosen by test data" not in " ".join(closing_words(long, choose(long)))

    def first(history):
        return history["train_loss"][0]

    assert "Chosen by first; higher" in closing_words(long, choose(long, first, maximise=True))[0]
