"""Pictures: what is drawn, by its numbers, and what is said of it."""

import json
import re
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.patches import Rectangle

import fedax
from fedax import pictures
from fedax.cli import plots
from fedax.cli.main import run_command
from fedax.pictures import DrawingError
from fedax.pictures.client_files import read_clients
from fedax.pictures.labels import by_setting
from fedax.pictures.lines import running_mean
from fedax.report.clients import clients_table, worst_of_run
from fedax.rounds.style import COLOURS, line_style
from fedax.sweeps.choosing import choose
from fedax.sweeps.grid import settings_of
from fedax.sweeps.record import Record

CLIENT, SERVER = "client_learning_rate", "server_learning_rate"


def history(losses, **others):
    """Rounds with these training losses, and with other metrics; None was not measured."""
    rounds = []
    for number, loss in enumerate(losses, 1):
        metrics = {name: values[number - 1] for name, values in others.items()}
        rounds.append({"round": number, "train_loss": loss} | {
            name: value for name, value in metrics.items() if value is not None
        })
    return fedax.History(rounds)


def points(line):
    return np.asarray(line.get_xydata()).tolist()


def edges_of(axes):
    """(x, lower, upper) of a picture's bands."""
    found = []
    for band in axes.collections:
        assert isinstance(band, PolyCollection)
        vertices = band.get_paths()[0].vertices
        x = np.unique(vertices[:, 0])
        found.append((x, *(
            np.array([reduce(vertices[vertices[:, 0] == at, 1]) for at in x])
            for reduce in (np.min, np.max)
        )))
    return found


def said(axes):
    return axes.get_title(loc="left").replace("\n", " ")


@pytest.mark.quick
class TestCurves:
    def test_the_line_is_the_mean_and_the_band_its_standard_deviation(self):
        losses = np.array([[4.0, 2.0, 1.0], [2.0, 2.0, 0.5], [3.0, 5.0, 0.0]])
        axes = pictures.curves([history(row) for row in losses])
        (line,) = axes.get_lines()
        assert np.allclose(line.get_xdata(), [1, 2, 3], rtol=0)
        assert np.allclose(line.get_ydata(), losses.mean(0), rtol=1e-14)
        ((x, lower, upper),) = edges_of(axes)
        spread = losses.std(0, ddof=1)
        assert np.array_equal(x, [1, 2, 3])
        assert np.allclose(lower, losses.mean(0) - spread, rtol=1e-12)
        assert np.allclose(upper, losses.mean(0) + spread, rtol=1e-12)
        assert said(axes) == ("lines: mean over 3 seeds; bands: ± sample standard deviation "
                              "over seeds.")
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("Round", "Train loss")
        assert axes.get_legend() is None

    def test_one_run_of_one_round_is_a_point_without_a_band(self):
        axes = pictures.curves(history([0.5]))
        assert points(axes.get_lines()[0]) == [[1, 0.5]]
        assert axes.get_lines()[0].get_marker() == "o"
        assert (edges_of(axes), said(axes)) == ([], "")

    def test_smoothing_is_the_mean_of_the_last_rounds_of_each_seed(self):
        seeds = [[4.0, 2.0, 6.0, 8.0], [0.0, 2.0, 2.0, 0.0]]
        axes = pictures.curves([history(row) for row in seeds], smoothing=3)
        each = [[4, 3, 4, 16 / 3], [0, 1, 4 / 3, 4 / 3]]
        assert np.allclose(axes.get_lines()[0].get_ydata(), np.mean(each, 0), rtol=1e-14)
        ((_, lower, _),) = edges_of(axes)
        assert np.allclose(lower, np.mean(each, 0) - np.std(each, 0, ddof=1), rtol=1e-12)
        assert said(axes).endswith("smoothed over 3 rounds.")

    def test_a_running_mean_counts_rounds_and_not_measurements(self):
        rounds, values = np.array([1, 10, 12, 19]), np.array([1.0, 2.0, 4.0, 6.0])
        assert running_mean(rounds, values, 10).tolist() == [1.0, 1.5, 3.0, 4.0]

    def test_a_test_metric_is_drawn_where_it_was_measured_and_hollow_on_a_sample(self):
        accuracy = [None, 0.5, None, 0.7]
        run = history([1.0] * 4, test_accuracy=accuracy, evaluated_examples=[None, 5, None, 9],
                      evaluated_of=[None, 9, None, 9])
        axes = pictures.curves(run, "test_accuracy")
        line, hollow = axes.get_lines()
        assert points(line) == [[2, 0.5], [4, 0.7]]
        assert points(hollow) == [[2, 0.5]]
        assert hollow.get_markerfacecolor() == "white"
        assert "hollow points: sample" in said(axes)
        assert axes.yaxis.get_major_formatter()(0.5) == "50.0%"

    def test_against_what_was_spent(self):
        spent = {"total_local_steps": [10, 20, 30], "bytes_down": [1.0, 1.0, 1.0],
                 "bytes_up": [2.0, 3.0, 4.0], "seconds": [0.5, 0.25, 0.25]}
        run = history([3.0, 2.0, 1.0], **spent)
        other = history([3.0, 2.0, 1.0], **spent | {"seconds": [1.5, 0.75, 0.75]})
        expected = {
            "local_steps": [10, 30, 60], "bytes": [3, 7, 12], "bytes_up": [2, 5, 9],
            "seconds": [0.5, 0.75, 1.0],
        }
        for against, x in expected.items():
            axes = pictures.curves(run, against=against)
            assert axes.get_lines()[0].get_xdata().tolist() == x
        axes = pictures.curves([run, other], against="seconds")
        assert axes.get_lines()[0].get_xdata().tolist() == [1.0, 1.5, 2.0]
        assert axes.get_xlabel() == "Training time without compilation and evaluation (s)"

    def test_where_seeds_have_ended_the_line_is_thin(self):
        runs = [history([4.0, 2.0]), history([2.0, 4.0, 8.0, 7.0])]
        whole, thin = pictures.curves(runs).get_lines()
        assert points(whole) == [[1, 3], [2, 3]]
        assert points(thin) == [[2, 3], [3, 8], [4, 7]]
        assert thin.get_linewidth() < whole.get_linewidth() / 2
        ((x, _, _),) = edges_of(whole.axes)
        assert x.tolist() == [1, 2]
        assert "thin: fewer seeds" in said(whole.axes)

    @pytest.mark.parametrize("end", [np.nan, np.inf])
    def test_a_cross_is_where_a_seed_diverged(self, end):
        runs = {"a": [history([4.0, 2.0, end]), history([2.0, 4.0, 3.0])], "b": history([1.0, 1.0])}
        axes = pictures.curves(runs)
        (cross,) = [line for line in axes.get_lines() if line.get_marker() == "x"]
        assert points(cross) == [[2, 3]]
        assert "cross: a seed diverged" in said(axes)

    def test_losses_just_before_they_diverge_are_drawn(self):
        runs = [history([1e-12, 1e150]), history([1e-12, 1e200])]
        axes = pictures.curves(runs)
        assert points(axes.get_lines()[0]) == [[1, 1e-12], [2, (1e150 + 1e200) / 2]]
        axes.figure.canvas.draw()

    def test_a_last_round_without_reports_is_no_divergence(self):
        run = history([4.0, np.nan], num_reports=[3, 0])
        axes = pictures.curves(run)
        assert [points(line) for line in axes.get_lines()] == [[[1, 4]]]

    def test_lines_differ_in_colour_and_in_grey(self):
        runs = {f"method {n}": history([float(n), 1.0]) for n in range(5)}
        lines = pictures.curves(runs).get_lines()
        assert len({line.get_color() for line in lines}) == 5
        assert len({str(line._dash_pattern) for line in lines}) == 5
        assert len({line.get_marker() for line in lines}) == 5
        styles = [line_style(number) for number in range(36)]
        assert len({(s["color"], s["linestyle"]) for s in styles}) == 36

    def test_names_stand_as_they_are(self):
        runs = {"_private $x_1$": history([1.0]), "\x1b[2J": history([2.0]), "b" * 400: history(
            [3.0])}
        axes = pictures.curves(runs)
        texts = axes.get_legend().get_texts()
        assert texts[0].get_text().strip() == "_private $x_1$"
        assert not texts[0].get_parse_math()
        assert texts[1].get_text() == "?[2J"
        assert len(texts[2].get_text()) < 170
        axes.figure.canvas.draw()

    @pytest.mark.parametrize(("last", "scale"), [(0.02, "linear"), (0.01, "log"), (0.0, "linear")])
    def test_decades_have_a_logarithmic_axis(self, last, scale):
        assert pictures.curves(history([1.0, last])).get_yscale() == scale

    def test_a_label_without_a_finite_value_is_named(self):
        axes = pictures.curves({"good": history([1.0, 2.0]), "bad": history([np.nan])})
        names = [text.get_text() for text in axes.get_legend().get_texts()]
        assert names == ["good", "bad (no finite value)"]

    def test_it_draws_on_given_axes_and_without_pyplot(self):
        given = Figure().add_subplot()
        assert pictures.curves(history([1.0]), axes=given) is given
        assert pictures.curves(history([1.0])).figure._repr_png_()[:4] == b"\x89PNG"
        assert "matplotlib.pyplot" not in sys.modules

    def test_frames(self):
        frame = pandas.DataFrame({
            "label": ["a", "a", "a", "a", "b"], "seed": [0, 0, 1, 1, 0],
            "round": [2, 1, 1, 2, 1], "train_loss": [1.0, 3.0, 5.0, 3.0, 7.0],
            "test_loss": [4.0, np.nan, np.nan, 8.0, np.nan],
        })
        lines = pictures.curves(frame).get_lines()
        assert [points(line) for line in lines] == [[[1, 4], [2, 2]], [[1, 7]]]
        lines = pictures.curves(frame[frame.label == "a"], "test_loss").get_lines()
        assert points(lines[0]) == [[2, 6]]
        own = history([2.0, 1.0])
        assert points(pictures.curves(own.to_pandas()).get_lines()[0]) == [[1, 2], [2, 1]]
        with pytest.raises(DrawingError, match="'a' has round 1 more than once"):
            pictures.curves(frame.drop(columns="seed"))
        with pytest.raises(DrawingError, match=r"a column 'round', but has \['label'\]"):
            pictures.curves(frame[["label"]])

    def test_a_record_and_its_frame_have_a_line_a_setting(self):
        found = record({"fedavg": {CLIENT: [0.1, 1.0]}}, {(0.1,): [3.0, 2.0], (1.0,): [1.0, None]},
                       seeds=2)
        axes = pictures.curves(found)
        names = [text.get_text() for text in axes.get_legend().get_texts()]
        assert names == [f"{CLIENT}=0.1", f"{CLIENT}=1"]
        assert points(axes.get_lines()[0]) == [[1, 2.5], [2, 2.5], [3, 2.5]]
        (cross,) = [line for line in axes.get_lines() if line.get_marker() == "x"]
        assert points(cross) == [[1, 1.0]]  # the mean of 1, and of the other's only round
        of_frame = pictures.curves(found.rounds()).get_lines()
        assert points(of_frame[0]) == points(axes.get_lines()[0])

    def test_what_fedax_train_returns_will_do(self):
        result = SimpleNamespace(history=history([2.0, 1.0]))
        assert points(pictures.curves([result]).get_lines()[0]) == [[1, 2], [2, 1]]

    @pytest.mark.parametrize(("data", "options", "words"), [
        (history([1.0]), {"metric": "los"}, "metric 'los'. It has: train_loss."),
        ({"a": history([1.0])}, {"against": "bytes"},
         "'a' does not have the metric 'bytes_down', which is measured with diagnostics=True"),
        (history([1.0]), {"against": "bites"}, "Unknown against 'bites'. Did you mean 'bytes'"),
        (history([1.0]), {"smoothing": 0}, "smoothing must be a whole number of at least 1, but"),
        (history([np.nan, np.inf]), {}, "'train_loss' is finite in no round"),
        (fedax.History(), {}, "the history has no rounds"),
        ({}, {}, "give at least one run"),
        ([3], {}, "of type int"),
        ([history([1.0], a=[None]), history([1.0, 2.0])], {"metric": "a"}, "the metric 'a'"),
        ([history([1.0] * 5, a=[1, None, 1, None, 1]), history([1.0] * 6, a=[None, 2] * 3)],
         {"metric": "a"}, "measured 'a' in different rounds"),
    ])
    def test_what_cannot_be_drawn_is_a_sentence(self, data, options, words):
        with pytest.raises(DrawingError, match=words):
            pictures.curves(data, **options)

    def test_too_many_settings_are_no_picture(self):
        found = record({"fedavg": {CLIENT: [float(n) for n in range(13)]}}, {})
        with pytest.raises(DrawingError, match="13 settings of this sweep are too many"):
            pictures.curves(found)


def test_update_norms_are_means_and_spreads_of_blocks_of_rounds():
    norms = np.array([[1.0, 3.0, 2.0, 2.0, 7.0], [5.0, 7.0, 6.0, 2.0, 9.0]])
    runs = [history([1.0] * 5, pseudo_gradient_norm=row) for row in norms]
    axes = pictures.update_norms(runs, window=2)
    blocks = [norms[:, :2], norms[:, 2:4], norms[:, 4:]]
    assert np.allclose(points(axes.get_lines()[0]), [
        [x, block.mean()] for x, block in zip([1.5, 3.5, 5.0], blocks, strict=True)], rtol=1e-14)
    ((_, lower, upper),) = edges_of(axes)
    spread = np.array([block.std(ddof=1) for block in blocks])
    assert np.allclose(upper - lower, 2 * spread, rtol=1e-12)
    assert "mean over 2 rounds and seeds; bands: ± standard deviation" in said(axes)
    assert len(points(pictures.update_norms(runs).get_lines()[0])) == 5
    with pytest.raises(DrawingError, match="diagnostics=True"):
        pictures.update_norms(history([1.0]))


def test_drift_is_the_curve_of_it():
    axes = pictures.drift(history([1.0, 1.0], client_drift=[0.5, 0.7]), smoothing=2)
    assert points(axes.get_lines()[0]) == [[1, 0.5], [2, 0.6]]
    assert "Client drift" in axes.get_ylabel()


def test_rates_are_what_rounds_report():
    run = history([1.0, 1.0], num_local_steps=[10.0, 5.0], client_learning_rate=[0.1, 0.01])
    axes = pictures.rates({"a": run, "b": history([1.0], num_local_steps=[10.0])})
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == ["a: K", "a: client learning rate", "b: K"]
    assert [points(line) for line in axes.get_lines()] == [
        [[1, 10], [2, 5]], [[1, 0.1], [2, 0.01]], [[1, 10]]]
    assert (axes.get_yscale(), axes.get_ylabel()) == ("log", "K, client learning rate")
    with pytest.raises(DrawingError, match="the metric 'num_local_steps'"):
        pictures.rates(history([1.0]))


def record(grids, scores, seeds=1, metric="train_loss"):
    """A record of three rounds: values -> a score for each seed; None: it diverged in round 2."""
    settings = settings_of(grids)
    rows, diverged, values = [], [], []
    for setting in settings:
        of_seeds = scores.get((setting.algorithm, *setting.values.values()),
                              scores.get(tuple(setting.values.values()), [1.0] * seeds))
        for seed, score in enumerate(of_seeds):
            rows.append((setting.number, seed))
            diverged.append(2 if score is None else 0)
            values.append([1.0, np.nan, np.nan] if score is None else [score] * 3)
    numbers = np.array(rows).reshape(-1, 2)
    done = np.where(np.array(diverged) > 0, 1, 3)
    return Record(settings, *numbers.T, np.array(diverged), done, {metric: np.array(values)})


GRID = {CLIENT: [0.1, 1.0], SERVER: [0.5, 1.0, 2.0]}
SCORES = {
    (0.1, 0.5): [3.0, 5.0], (0.1, 1.0): [1.0, 2.0], (0.1, 2.0): [2.0, 4.0],
    (1.0, 0.5): [2.0, 2.0], (1.0, 1.0): [9.0, None], (1.0, 2.0): [None, None],
}


def texts_of(axes, rows, columns):
    cells = {text.get_position(): text.get_text() for text in axes.texts}
    return [[cells[column, row] for column in range(columns)] for row in range(rows)]


@pytest.mark.quick
class TestHeatMap:
    def test_cells_are_means_over_seeds_and_marks_lie_on_them(self):
        axes = pictures.heat_map(record({"fedavg": GRID}, SCORES))
        assert texts_of(axes, 2, 3) == [
            ["4.00", "1.50", "3.00"], ["2.00", "1 of 2\ndiverged", "diverged"]]
        shown = axes.images[0].get_array()
        assert shown.tolist() == [[4, 1.5, 3], [2, None, None]]
        rectangles = [p for p in axes.patches if isinstance(p, Rectangle)]
        hatched = [p.get_xy() for p in rectangles if p.get_hatch()]
        assert hatched == [(0.5, 0.5), (1.5, 0.5)]
        framed = {p.get_xy() for p in rectangles if not p.get_fill()}
        assert framed == {(0.5, -0.5)}
        stars = [line for line in axes.get_lines() if line.get_marker() == "*"]
        assert np.round(points(stars[0])[0]).tolist() == [1, 0]
        assert (axes.get_xlabel(), axes.get_ylabel()) == (
            "Server learning rate", "Client learning rate")
        assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0.5", "1", "2"]
        bar = axes.figure.axes[1]
        assert bar.get_ylabel().replace("\n", " ") == (
            "Mean over 2 seeds of the mean train loss over all 3 rounds; lower is better")

    def test_the_edge_at_which_the_best_lies_is_dashed(self):
        axes = pictures.heat_map(record({"fedavg": GRID}, SCORES))
        (dashed,) = [line for line in axes.get_lines() if to_hex(line.get_color()) == COLOURS[1]]
        assert points(dashed) == [[-0.5, -0.5], [2.5, -0.5]]  # the smallest client rate, below
        assert "dashed: best at the smallest client learning rate, add 0.01, 0.001" in (
            said(axes))
        turned = pictures.heat_map(record({"fedavg": GRID}, SCORES), x=CLIENT, y=SERVER)
        (dashed,) = [line for line in turned.get_lines() if to_hex(line.get_color()) == COLOURS[1]]
        assert points(dashed) == [[-0.5, -0.5], [-0.5, 2.5]]
        assert texts_of(turned, 3, 2)[1] == ["1.50", "1 of 2\ndiverged"]

    def test_a_cell_is_the_best_over_other_hyperparameters(self):
        grid = {CLIENT: [0.1, 1.0], SERVER: [1.0, 2.0], "momentum": [0.0, 0.9]}
        scores = {(0.1, 1.0, 0.0): [3.0], (0.1, 1.0, 0.9): [2.0], (1.0, 2.0, 0.0): [None],
                  (1.0, 2.0, 0.9): [7.0]}
        axes = pictures.heat_map(record({"fedavgm": grid}, scores))
        assert texts_of(axes, 2, 2) == [["2.00", "1.00"], ["1.00", "7.00"]]
        assert "fedavgm; best over momentum" in said(axes)
        assert not [p for p in axes.patches if p.get_hatch()]

    def test_good_accuracies_are_light_and_per_cent(self):
        scores = {(0.1, 0.5): [0.2], (0.1, 1.0): [0.81], (0.1, 2.0): [0.7]}
        found = record({"fedavg": {CLIENT: [0.1], SERVER: [0.5, 1.0, 2.0]}}, scores,
                       metric="test_accuracy")
        axes = pictures.heat_map(found, choose(found, "test_accuracy"))
        assert texts_of(axes, 1, 3) == [["20.0%", "81.0%", "70.0%"]]
        image = axes.images[0]
        light = image.cmap(image.norm([0.2, 0.7, 0.81]))[:, :3].sum(1)
        assert light[0] < light[1] < light[2]

    def test_far_worse_values_do_not_hide_the_differences_between_good_ones(self):
        rates = [float(n) for n in range(1, 6)]
        losses = {(0.1, rate): [loss] for rate, loss in zip(
            rates, [1.0, 1.1, 1.2, 1.3, 1e9], strict=True)}
        axes = pictures.heat_map(record({"fedavg": {CLIENT: [0.1], SERVER: rates}}, losses))
        scale = axes.images[0].norm
        assert (scale.vmin, scale.vmax) == (1.0, pytest.approx(1 + 3 * 0.2))
        assert texts_of(axes, 1, 5)[0][-1] == "1.00e+09"

    def test_all_methods_have_one_scale(self):
        found = record({"fedavg": GRID, "fedadam": GRID},
                       {("fedadam", 0.1, 0.5): [0.2], ("fedavg", 1.0, 1.0): [1.4]})
        scales = {(a.images[0].norm.vmin, a.images[0].norm.vmax) for a in (
            pictures.heat_map(found, algorithm=name) for name in ("fedavg", "fedadam"))}
        ((low, high),) = scales
        assert (low, high) == (pytest.approx(0.2), pytest.approx(1.4))

    def test_a_setting_that_was_not_run_is_a_dash(self):
        whole = record({"fedavg": GRID}, {})
        axes = pictures.heat_map(whole._replace(setting=whole.setting[1:], seed=whole.seed[1:],
                                                diverged=whole.diverged[1:], done=whole.done[1:],
                                                metrics={"train_loss": np.ones((5, 3))}))
        assert texts_of(axes, 2, 3)[0] == ["-", "1.00", "1.00"]
        assert said(axes).endswith("dash: not finished.")

    def test_a_sweep_that_diverged_everywhere_has_no_best(self):
        found = record({"fedavg": GRID, "fedsgd": {SERVER: [1.0]}}, {key: [None] for key in SCORES})
        axes = pictures.heat_map(found, algorithm="fedavg")
        assert {text.get_text() for text in axes.texts} == {"diverged"}
        assert "no setting has a finite score" in said(axes)

    @pytest.mark.parametrize(("options", "words"), [
        ({"x": "momentum"}, "does not vary momentum. It varies: client_learning_rate, server"),
        ({"x": CLIENT}, "x and y are both client_learning_rate"),
        ({"algorithm": "fedadm"}, "Did you mean 'fedadam'"),
        ({"algorithm": None}, "has 2 methods. Choose one with algorithm=: fedavg, fedadam"),
    ])
    def test_what_cannot_be_drawn_is_a_sentence(self, options, words):
        found = record({"fedavg": GRID, "fedadam": GRID}, {})
        with pytest.raises(DrawingError, match=words):
            pictures.heat_map(found, **{"algorithm": "fedavg"} | options)


def test_the_best_server_rate_of_each_client_rate():
    scores = SCORES | {(1.0, 0.5): [None, None], (1.0, 1.0): [None, 1.0]}
    found = record({"fedavg": GRID, "fedadam": GRID, "fedsgd": {SERVER: [1.0]}},
                   scores | {("fedadam", *key): [1.0, 1.0] for key in SCORES}
                   | {("fedadam", 0.1, 2.0): [0.5, 0.5]})
    axes = pictures.best_server_rate(found)
    # Of the second client rate every setting of fedavg diverged for some seed.
    assert [points(line) for line in axes.get_lines()] == [
        [[0.1, 1.0]], [[0.1, 2.0], [1.0, 0.5]]]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["fedavg", "fedadam"]
    for low, drawn, high in zip((0.1, 0.5), axes.dataLim.get_points().T, (1.0, 2.0), strict=True):
        assert (drawn >= low).all()
        assert (drawn <= high).all()
    with_zero = record({"fedavg": {CLIENT: [0.0, 0.1], SERVER: [0.5, 1.0]}}, {})
    axes = pictures.best_server_rate(with_zero)
    assert points(axes.get_lines()[0]) == [[0.0, 0.5], [0.1, 0.5]]
    assert axes.get_xscale() == "symlog"
    left, right = axes.get_xlim()
    assert left < 0
    assert right > 0.1
    with pytest.raises(DrawingError, match="varies client_learning_rate and server_learning_rate"):
        pictures.best_server_rate(record({"fedsgd": {SERVER: [1.0]}}, {}))


def test_adaptivity_is_the_best_at_each_with_bars_of_its_spread():
    grid = {"adaptivity": [0.001, 0.1], SERVER: [0.1, 1.0]}
    scores = {(0.001, 0.1): [3.0, 4.0], (0.001, 1.0): [2.0, 2.5], (0.1, 0.1): [1.0, 3.0],
              (0.1, 1.0): [5.0, None]}
    axes = pictures.adaptivity(record({"fedyogi": grid, "fedavg": {SERVER: [1.0]}}, scores, 2))
    line = axes.get_lines()[0]
    assert points(line) == [[0.001, 2.25], [0.1, 2.0]]
    bars = axes.collections[0].get_segments()
    expected = [(2.25, np.std([2, 2.5], ddof=1)), (2.0, np.std([1, 3], ddof=1))]
    for bar, (mean, spread) in zip(bars, expected, strict=True):
        assert np.allclose(bar[:, 1], [mean - spread, mean + spread], rtol=1e-12)
        assert axes.get_ylim()[0] < mean - spread
        assert mean + spread < axes.get_ylim()[1]
    assert axes.get_xlim()[0] < 0.001
    assert axes.get_xlim()[1] > 0.1
    assert "best setting with that adaptivity over server learning rate; bars" in said(axes)
    with pytest.raises(DrawingError, match=r"No method .* adaptivity. They vary: fedavg: server_l"):
        pictures.adaptivity(record({"fedavg": {SERVER: [1.0]}}, {}))


def test_the_best_setting_of_each_method_as_histories():
    found = record({"fedavg": GRID, "fedsgd": {SERVER: [1.0]}},
                   SCORES | {("fedsgd", 1.0): [None, None]})
    best = pictures.best_of(found)
    assert list(best) == [f"fedavg {CLIENT}=0.1 {SERVER}=1"]
    (runs,) = best.values()
    assert [run["train_loss"].tolist() for run in runs] == [[1.0] * 3, [2.0] * 3]
    bad = record({"fedavg": {CLIENT: [1.0]}}, {(1.0,): [None]})
    with pytest.raises(DrawingError, match="no setting of this sweep has a finite score"):
        pictures.best_of(bad)


def metrics_of(values, name="accuracy"):
    values = np.asarray(values, float)
    there = (~np.isnan(values)).astype(float)
    return fedax.ClientMetrics({name: (np.nan_to_num(values), there)},
                               np.arange(len(values)).astype(str), np.full(len(values), 4))


@pytest.mark.quick
class TestClients:
    @pytest.mark.parametrize(("name", "worst"), [
        ("accuracy", [0.0, 0.1, 0.2]), ("loss", [0.9, 0.8, 0.7])])
    def test_bars_count_clients_and_the_worst_tenth_is_hatched(self, name, worst):
        values = np.concatenate([np.arange(10) / 10, np.full(15, 0.45)])
        found = metrics_of(values, name)
        axes = pictures.clients(found)
        others, few = axes.containers
        assert sum(bar.get_height() for bar in others) == 22
        assert sum(bar.get_height() for bar in few) == 3
        assert {bar.get_hatch() for bar in few} == {"////"}
        assert {bar.get_hatch() for bar in others} == {None}
        marked = sum(bar.get_height() for bar in few
                     if bar.get_x() - 1e-9 <= max(worst)
                     and bar.get_x() + bar.get_width() + 1e-9 >= min(worst))
        assert marked == 3
        mean, tail = [line.get_xdata()[0] for line in axes.get_lines()]
        assert mean == pytest.approx(values.mean(), rel=1e-12)
        assert tail == pytest.approx(found.worst()[name], rel=1e-12)
        assert tail == pytest.approx(np.mean(worst), rel=1e-12)

    def test_few_clients_have_no_worst_tenth_and_missing_ones_are_counted(self):
        axes = pictures.clients(metrics_of([0.5, 0.5, np.nan]))
        assert [bar.get_height() for bar in axes.containers[0]] == [2]
        assert len(axes.containers) == 1
        assert said(axes) == "clients without a finite value: 1."

    def test_the_table_of_a_run_is_drawn_as_its_metrics(self, tmp_path):
        found = metrics_of([0.25, np.nan, 0.5, 0.75], "loss")
        path = tmp_path / "clients.csv"
        path.write_text(clients_table(found))
        read = read_clients(path)
        assert np.array_equal(read["loss"], found["loss"], equal_nan=True)
        assert read.names.tolist() == found.names.tolist()
        (line,) = pictures.clients(path).get_lines()
        assert line.get_xdata()[0] == 0.5
        metric, worst = worst_of_run(tmp_path)
        assert metric == "loss"
        assert [(row["client"], row["loss"]) for row in worst] == [
            ("3", 0.75), ("2", 0.5), ("0", 0.25)]

    @pytest.mark.parametrize(("text", "words"), [
        ("", "not a table of a run's"), ("a,b\n1,2\n", "no columns client and num_examples"),
        ("client,num_examples,loss\n", "it has no client"),
        ("client,num_examples,loss\na,1\n", "line 2 has 2 of 3 columns"),
        ("client,num_examples,loss\na,1,x\n", "could not convert"),
        (f"client,num_examples,loss\na,{10**30},1\n", "not a table of a run's clients"),
        ("client,num_examples,loss\na,1,\n", "no client has a finite 'loss'"),
        ("client,num_examples\na,1\n", "the clients have no metric"),
    ])
    def test_a_table_that_is_none_is_a_sentence(self, text, words, tmp_path):
        path = tmp_path / "clients.csv"
        path.write_text(text)
        with pytest.raises(DrawingError, match=words):
            pictures.clients(path)

    def test_mistakes_are_sentences(self, tmp_path):
        with pytest.raises(DrawingError, match="Did you mean 'loss'"):
            pictures.clients(metrics_of([1.0], "loss"), "lss")
        with pytest.raises(DrawingError, match=r"Cannot read .*none.csv: the file does not exist"):
            pictures.clients(tmp_path / "none.csv")


def test_labels_are_what_differs():
    def config(algorithm, seed=0, task="digits", cohort_size=10, **options):
        return {"task": task, "algorithm": algorithm, "seed": seed, "cohort_size": cohort_size,
                "num_rounds": 9, "algorithm_options": options, "made_by": {"seed": seed}}

    def labels(*configs):
        return by_setting(configs, [f"run-{place}" for place in range(len(configs))])

    assert labels(config("fedavg", rate=1.0), config("fedavg", 1, rate=1.0)) == {"fedavg": [0, 1]}
    assert labels(config("fedavg", rate=1.0), config("fedadam", beta=0.9)) == {
        "fedavg": [0], "fedadam": [1]}
    assert labels(config("fedavg", rate=1.0), config("fedavg", rate=0.1), config("fedadam")) == {
        "fedavg rate=1": [0], "fedavg rate=0.1": [1], "fedadam": [2]}
    assert labels(config("fedavg"), config("fedavg", task="mnist", cohort_size=5)) == {
        "digits cohort_size=10": [0], "mnist cohort_size=5": [1]}
    # Of a task's options only those that differ are said.
    iid, shards = ({"task_options": {"model": "mlp", "partition": text}}
                   for text in ("iid", "shards(2)"))
    assert labels(config("fedavg") | iid, config("fedavg") | shards) == {
        "partition=iid": [0], "partition=shards(2)": [1]}
    # The same run again is no other seed, and what has no name has its folder's.
    assert labels(config("fedavg"), config("fedavg"), config("fedavg", 1)) == {
        "fedavg (run-0)": [0, 2], "fedavg (run-1)": [1]}
    assert labels(config("fedavg"), config("fedavg") | {"python": {"model": "b"}}) == {
        "fedavg (run-0)": [0], "fedavg (run-1)": [1]}


def run_folder(path, losses, algorithm="fedavg", seed=0, clients=None, **options):
    path.mkdir(parents=True)
    config = {"task": "digits", "algorithm": algorithm, "num_rounds": len(losses), "seed": seed,
              "algorithm_options": options}
    (path / "config.json").write_text(json.dumps(config))
    lines = [json.dumps({"round": n, "train_loss": loss}) for n, loss in enumerate(losses, 1)]
    (path / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    if clients is not None:
        (path / "clients.csv").write_text(clients_table(clients))
    return str(path)


@pytest.fixture
def drawn(monkeypatch):
    """The figures that the command line drew."""
    figures = []

    def keep(draw, path):
        figures.append(Figure())
        draw(figures[-1])
        return path

    monkeypatch.setattr(plots, "save_picture", keep)
    return figures


@pytest.mark.quick
class TestCommand:
    def test_seeds_are_one_line_and_settings_several(self, tmp_path, drawn, capsys):
        folders = [
            run_folder(tmp_path / f"{rate}-{seed}", [rate, rate + seed], seed=seed, rate=rate)
            for rate in (1.0, 2.0) for seed in (0, 1)
        ]
        out = str(tmp_path / "a b.png")
        assert run_command(["plot", "curves", *folders, folders[0], "--out", out]) == 0
        (axes,) = drawn[0].axes
        assert [points(line) for line in axes.get_lines()] == [
            [[1, 1], [2, 1.5]], [[1, 2], [2, 2.5]]]
        assert [t.get_text() for t in axes.get_legend().get_texts()] == ["rate=1", "rate=2"]
        assert capsys.readouterr().out == f"Picture: {out}\n"

    @pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
    def test_files_of_every_kind(self, ending, tmp_path):
        out = tmp_path / "pictures" / f"curve.{ending}"
        folder = run_folder(tmp_path / "run", [2.0, 1.0])
        options = ["--smoothing", "2", "--against", "round", "--out", str(out)]
        assert run_command(["plot", "curves", folder, *options]) == 0
        if ending == "png":
            assert imread(out).std() > 0.05
        else:
            assert out.read_bytes()[:4] in (b"%PDF", b"<?xm")

    def test_clients_have_a_panel_a_run(self, tmp_path, drawn):
        folders = [
            run_folder(tmp_path / str(seed), [1.0], seed=seed, clients=metrics_of([0.5, seed]))
            for seed in (0, 1)
        ]
        assert run_command(["plot", "clients", *folders, "--out", str(tmp_path / "x.png")]) == 0
        assert [said(axes) for axes in drawn[0].axes] == ["fedavg, seed 0", "fedavg, seed 1"]
        assert [axes.get_lines()[0].get_xdata()[0] for axes in drawn[0].axes] == [0.25, 0.75]

    def test_a_sweep(self, tmp_path, drawn):
        task, folder = fedax.load_task("quadratics"), tmp_path / "sweep"
        grid = {CLIENT: [0.01, 0.1], SERVER: [0.1, 1.0], "adaptivity": [0.1, 0.01]}
        found = fedax.sweep(
            task, ("fedavg", "fedadam"), grid, num_rounds=2, seeds=2, cohort_size=2, out=folder,
            progress=False,
        )
        out = ["--out", str(tmp_path / "x.png")]
        for kind in ("heat_map", "best-server-rate", "adaptivity", "curves"):
            assert run_command(["plot", kind, str(folder), *out]) == 0
        maps, rates, adaptivity, curves = drawn
        assert [said(axes).split(";")[0] for axes in maps.axes[:2]] == ["fedavg", "fedadam"]
        assert len(maps.axes) == 4  # with their bars
        expected = pictures.heat_map(*found, algorithm="fedadam")
        assert texts_of(maps.axes[1], 2, 2) == texts_of(expected, 2, 2)
        assert len(rates.axes[0].get_lines()) == 2
        assert len(adaptivity.axes[0].get_legend().get_texts()) == 1
        best = found.best("fedavg")
        losses = [found.record.metrics["train_loss"][row]
                  for row in found.record.rows_of(best.number)]
        line = curves.axes[0].get_lines()[0]
        assert np.allclose(line.get_ydata(), np.mean(losses, 0), rtol=1e-12)
        own = run_folder(tmp_path / "run", [5.0], "fedavg")
        assert run_command(["plot", "curves", own, str(folder), *out]) == 0
        names = [text.get_text() for text in drawn[-1].axes[0].get_legend().get_texts()]
        assert names[0] == "fedavg"
        assert names[1].startswith(f"fedavg {CLIENT}=")
        assert run_command(["plot", "heat-map", str(folder), "--metric", "train_los", *out]) == 1

    @pytest.mark.parametrize(("words", "status", "sentence"), [
        (["curv", "RUN"], 2, "Unknown picture 'curv'. Did you mean 'curves'?"),
        ([], 2, "needs a kind of picture; fedax plot --list shows them"),
        (["curves"], 2, "fedax plot curves needs a folder (runs, sweeps)"),
        (["curves", "RUN", "--metric", "los"], 1, "the metric 'los'. It has: train"),
        (["curves", "TMP"], 1, "is not a run folder: it does not contain config.json."),
        (["curves", "TMP/none"], 1, "none does not exist."),
        (["drift", "RUN"], 1, "measured with diagnostics=True, --set diagnostics=true. It has"),
        (["drift", "RUN", "--x", "a"], 2, "--x does not apply to drift, whose options are: "),
        (["heat-map", "RUN"], 2, "needs a sweep, but"),
        (["clients", "RUN"], 1, "does not have clients.csv. It is written at the end"),
        (["curves", "EMPTY"], 1, "empty has not finished a round yet"),
        (["curves", "RUN", "--smoothing", "0"], 1, "smoothing must be"),
        (["curves", "RUN", "--against", "rounds"], 1, "Did you mean 'round'"),
        (["curves", "NAN"], 1, "'train_loss' is finite in no round."),
    ])
    def test_mistakes_are_sentences(self, words, status, sentence, tmp_path, capsys):
        places = {
            "RUN": run_folder(tmp_path / "run", [1.0]),
            "EMPTY": run_folder(tmp_path / "empty", []),
            "NAN": run_folder(tmp_path / "nan", [None, None]),
            "TMP": str(tmp_path), "TMP/none": str(tmp_path / "none"),
        }
        arguments = [places.get(word, word) for word in words]
        out = tmp_path / "x.png"
        assert run_command(["plot", *arguments, "--out", str(out)]) == status
        error = capsys.readouterr().err
        assert sentence in error
        assert error.startswith("fedax: ")
        assert not out.exists()

    @pytest.mark.parametrize("kind", ["curves", "clients"])
    def test_a_run_without_rounds_is_left_out(self, kind, tmp_path, capsys):
        run, out = run_folder(tmp_path / "run", [5.0, 4.0]), tmp_path / "x.png"
        empty = run_folder(tmp_path / "empty", [])
        (tmp_path / "run" / "clients.csv").write_text("client,num_examples,loss\nada,3,1.5\n")
        assert run_command(["plot", kind, empty, run, "--out", str(out)]) == 0
        left_out, picture = capsys.readouterr().out.splitlines()
        assert left_out.startswith(f"Left out: The run in {empty} ")
        assert picture == f"Picture: {out}"

    def test_the_file_is_asked_for_before_anything_is_read(self, tmp_path, capsys):
        assert run_command(["plot", "curves", str(tmp_path)]) == 2
        assert "--out curves.png" in capsys.readouterr().err
        assert run_command(["plot", "curves", str(tmp_path), "--out", "x.doc"]) == 1
        assert "its name must end in one of" in capsys.readouterr().err

    def test_the_list_has_every_kind(self, capsys):
        assert run_command(["plot", "--list", "--json"]) == 0
        (table,) = json.loads(capsys.readouterr().out)
        names = [row[0].replace("-", "_") for row in table["rows"]]
        assert sorted(names) == sorted(set(pictures.__all__) - {"DrawingError", "best_of"})


PAGE = Path(__file__).parent.parent / "docs" / "pictures.md"


def blocks(language):
    text = PAGE.read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_pages_code_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    session = {}
    for code in blocks("python"):
        exec(compile(code, "pictures.md", "exec"), session)
    lines = session["axes"].get_lines()
    # 3 clients a round with 2 and 20 local steps.
    assert [line.get_xdata()[-1] for line in lines] == [20 * 3 * 2, 20 * 3 * 20]
    assert {path.name for path in tmp_path.iterdir()} == {"curves.png", "table.tex"}
    assert session["table"].methods == ["2 local steps", "20 local steps"]


@pytest.mark.slow
def test_the_pages_commands_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for line in "".join(blocks("sh")).splitlines():
        assert run_command(shlex.split(line)[1:]) == 0, line
    assert {path.name for path in tmp_path.iterdir()} == {
        "runs", "curves.png", "accuracy.svg", "drift.pdf", "table.tex"}


def test_the_page_has_every_picture():
    text = PAGE.read_text("utf-8")
    for name in re.findall(r"\]\((pictures/[\w.-]+)\)", text):
        assert 1000 < (PAGE.parent / name).stat().st_size < 60_000, name
    missing = [kind for kind in plots.KINDS if f"`{kind}`" not in text]
    assert missing == []
