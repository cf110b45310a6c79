"""The pages in a real browser: what they show, how they are handled, that they ask nobody."""

import hashlib
import json
import math
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import browsers
from browsers import opened, painted
from fedax.cli import reports
from fedax.cli.main import run_command
from fedax.experiment import config as configs
from fedax.experiment.pages import report_page, written_out
from fedax.experiment.values import parse_settings
from fedax.files.regular import whole_name, write_as_named, write_atomically
from fedax.report.comparison import comparison_page
from fedax.report.curves import view_of
from fedax.report.page import run_page
from fedax.report.runs import Run, still_improving, warnings
from fedax.report.sweep_page import best_runs, sweep_page
from fedax.sweeps.choosing import choose
from fedax.sweeps.grid import settings_of
from fedax.sweeps.record import Record
from fedax.tuning import results

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\u2028</script>"
RATES = {"a": 0.3, "b": 0.02, "c": 10.0}


@pytest.fixture(scope="module")
def browser():
    with browsers.started() as found:
        yield found


def losses(rate, num_rounds=40):
    return [1 + rate / number for number in range(1, num_rounds + 1)]


def config_of(**changes):
    return {
        "task": "digits", "algorithm": "fedavg", "preset": "quick", "seed": 0, "num_rounds": 40,
        "algorithm_options": {"client_learning_rate": 0.1}, "made_by": {"fedax": "1.2.3"},
    } | changes


def rounds_of(values):
    """Lines of metrics, with a test in every fifth round."""
    return [
        {"round": number, "train_loss": value, "num_reports": 3}
        | ({"test_accuracy": 1 / (1 + value)} if number % 5 == 0 else {})
        for number, value in enumerate(values, start=1)
    ]


def run_of(name, rate, **changes):
    rounds = rounds_of(losses(rate))
    final = {"test_accuracy": rounds[-1]["test_accuracy"]}
    return Run(
        name, config_of(algorithm_options={"client_learning_rate": rate}), rounds,
        {"final": final, "stopped": None, "references": {}, "seconds": rate}, {},
    )._replace(**changes)


def written(tmp_path, content):
    file = tmp_path / "page.html"
    file.write_bytes(content.encode())
    return file


def column(page, name):
    """A column of the table, from above, of the rows that are there to see."""
    heads = page.locator("table.sorts th").all_inner_texts()
    place = heads.index(name) + 1
    return page.locator(f"table.sorts tbody tr:visible td:nth-child({place})").all_inner_texts()


def chart(page, expression):
    return page.evaluate(f"(() => {{ const c = document.querySelector('#chart-0').chart;"
                         f" return {expression}; }})()")


def place(page):
    """The plot, its box, and where a round is in it."""
    plot = page.locator(".plot")
    plot.scroll_into_view_if_needed()
    box = page.locator(".u-over").bounding_box()
    return plot, box, lambda number: box["x"] + (number - 1) / 39 * box["width"]


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    runs = [run_of(name, rate) for name, rate in RATES.items()]
    runs += [run_of(f"d{i}", 0.5, summary=None) for i in range(3)]
    return written(tmp_path_factory.mktemp("page"), comparison_page(runs, "fedax report a b c"))


@pytest.mark.quick
def test_a_table_sorts_by_number_and_filters_by_words(browser, comparison):
    with opened(browser, comparison) as page:
        assert page.locator("th.differs").all_inner_texts() == ["client_learning_rate"]
        rate = page.get_by_role("button", name="client_learning_rate")
        rate.click()
        expected = sorted([*RATES.values(), 0.5, 0.5, 0.5])
        assert [float(cell) for cell in column(page, "client_learning_rate")] == expected
        assert page.locator("[aria-sort]").get_attribute("aria-sort") == "ascending"
        rate.press("Enter")  # a button, so the keyboard does as well
        assert [float(cell) for cell in column(page, "client_learning_rate")] == expected[::-1]
        assert page.locator("[aria-sort]").get_attribute("aria-sort") == "descending"
        for _ in range(2):  # what has no number comes last either way
            page.get_by_role("button", name="seconds").click()
            assert column(page, "seconds")[-3:] == ["", "", ""]
        assert [float(cell) for cell in column(page, "seconds")[:3]] == [10, 0.3, 0.02]
        page.get_by_label("Filter rows").fill("not FINISHED d1")
        assert column(page, "run") == ["d1"]
        assert page.locator("output").inner_text() == "1 of 6 rows"
        page.get_by_label("Filter rows").fill("")
        assert len(column(page, "run")) == 6


@pytest.mark.quick
def test_curves_are_read_toggled_and_zoomed(browser, comparison):
    with opened(browser, comparison) as page:
        assert chart(page, "c.plot.data[3]") == pytest.approx(losses(10.0), rel=1e-5)
        _, box, across = place(page)
        page.mouse.move(across(11), box["y"] + box["height"] / 2)
        read = page.locator(".readout").inner_text().split()
        assert read[:2] == ["round", "11"]
        assert f"{losses(10.0)[10]:.5g}" in read
        # A curve is hidden by its box, and the picture is another one, scaled to the others.
        before = chart(page, "c.plot.ctx.canvas.toDataURL()")
        page.get_by_label("curve of client_learning_rate=10").uncheck()
        painted(page)
        assert chart(page, "c.plot.series.map(s => s.show).slice(1)") == [True] * 2 + [False] + \
            [True] * 3
        assert chart(page, "c.plot.ctx.canvas.toDataURL()") != before
        assert chart(page, "c.plot.scales.y.max") < 2
        page.get_by_role("button", name="Hide all").click()
        page.get_by_label("Filter rows").fill("not")
        page.get_by_role("button", name="Show all rows below").click()
        painted(page)
        assert chart(page, "c.shown") == [False] * 3 + [True] * 3
        page.get_by_role("button", name="Reset").click()
        assert chart(page, "c.shown.every(Boolean)")


@pytest.mark.quick
def test_a_picture_zooms_by_dragging_by_keys_and_by_buttons(browser, comparison):
    with opened(browser, comparison) as page:
        plot, box, across = place(page)
        scale = "[c.plot.scales.x.min, c.plot.scales.x.max]"
        page.mouse.move(across(10), box["y"] + 50)
        page.mouse.down()
        page.mouse.move(across(20), box["y"] + 60, steps=3)
        page.mouse.up()
        painted(page)
        assert chart(page, scale) == pytest.approx([10, 20], abs=0.1)
        page.mouse.dblclick(across(20), box["y"] + 50)
        painted(page)
        assert chart(page, scale) == [1, 40]
        plot.focus()
        plot.press("Escape")
        plot.press("+")
        painted(page)
        assert chart(page, scale) == [10.75, 30.25]
        plot.press("ArrowRight")
        plot.press("ArrowRight")
        assert page.locator(".readout").inner_text().startswith("round 12")
        plot.press("0")
        painted(page)
        assert chart(page, scale) == [1, 40]
        page.get_by_label("Zoom in").click()
        painted(page)
        low, high = chart(page, scale)
        assert high - low == pytest.approx(39 / 2)
        # Another metric, a logarithmic scale, a mean over rounds.
        page.get_by_label("Show all rounds").click()
        page.get_by_label("Smoothing").select_option("10")
        expected = [np.mean(losses(10.0)[max(i - 9, 0) : i + 1]) for i in range(40)]
        assert chart(page, "c.plot.data[3]") == pytest.approx(expected, rel=1e-5)
        page.get_by_label("log scale").check()
        assert chart(page, "c.plot.scales.y.distr") == 3
        page.get_by_label("Metric").select_option(label="test accuracy")
        assert chart(page, "c.plot.data[0]") == list(range(5, 41, 5))


def test_names_from_data_are_text(browser, tmp_path):
    """In a task's, a method's, a client's, a run's and a setting's name; and NaN in its numbers."""
    rounds = rounds_of([1.0, math.nan, math.inf, 0.5, 0.25])
    rounds[1]["train_loss"] = None
    options = {HOSTILE: HOSTILE}
    run = run_of(
        HOSTILE, 0.1, rounds=rounds, worst=("accuracy", [{"client": HOSTILE, "accuracy": 0.5}]),
        config=config_of(task=HOSTILE, algorithm=HOSTILE, algorithm_options=options,
                         made_by={HOSTILE: "\ud800"}),
        summary={"final": {}, "stopped": HOSTILE, "references": {HOSTILE: {"train_loss": 0.3}},
                 "rejected_clients": {HOSTILE: 2}},
        commands={HOSTILE: HOSTILE}, go_on=HOSTILE,
    )
    for content in (run_page(run), comparison_page([run, run_of("b", 0.2)], HOSTILE)):
        with opened(browser, written(tmp_path, content)) as page:
            assert page.locator("img").count() == 0
            assert "<script>alert(1)</script><img src=x" in page.title()
            assert page.locator("h1").inner_text() in page.title()
            assert HOSTILE.replace("\u2028", "\\u2028") in page.locator("pre").all_inner_texts()
            rounds, values = chart(page, "c.plot.data.slice(0, 2)")
            drawn = [pair for pair in zip(rounds, values, strict=True) if pair[1] is not None]
            assert drawn == [(1, 1), (4, 0.5), (5, 0.25)]
            assert page.locator("script").count() == 4  # with the data


def test_no_script_but_the_packages_own_can_run(browser, comparison):
    """Even if a name got through as HTML."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(comparison.as_uri())
    page.evaluate("""() => {
        const script = document.createElement("script");
        script.textContent = "window.hostile = 1";
        document.body.append(script);
        document.body.insertAdjacentHTML("beforeend", "<img src=x onerror='window.hostile = 2'>");
        return fetch("https://example.org/").catch(() => 0);
    }""")
    painted(page)
    assert page.evaluate("window.hostile") is None
    context.close()


def sweep():
    """Two methods on a grid of rates; the first is best at the edge, the second diverges once."""
    grid = {"client_learning_rate": [0.1, 1.0, 10.0], "server_learning_rate": [0.5, 1.0, 2.0]}
    settings = settings_of({"fedavg": grid, "fedyogi": grid})
    ends = {setting.number: setting.number + 1.0 for setting in settings}
    ends[9 + 4] = 0.5  # fedyogi's middle
    number = np.repeat(np.arange(18), 2)
    seed = np.tile([0, 1], 18)
    values = np.array([[ends[n] + 3 / r + 0.1 * s for r in range(1, 31)]
                       for n, s in zip(number, seed, strict=True)])
    diverged, done = np.zeros(36, int), np.full(36, 30)
    diverged[-1], done[-1], values[-1, 10:] = 11, 11, np.nan
    tests = np.full_like(values, np.nan)
    tests[:, 9::10] = 1 / (1 + values[:, 9::10])
    record = Record(settings, number, seed, diverged, done,
                    {"train_loss": values, "test_accuracy": tests})
    config = {"kind": "sweep", "task": "digits", "algorithms": ["fedavg", "fedyogi"],
              "grid": {"fedavg": grid, "fedyogi": grid}, "num_rounds": 30, "seeds": [0, 1],
              "command": "fedax sweep digits fedavg,fedyogi"}
    return record, choose(record), config


def test_a_sweep_shows_the_best_the_edges_and_what_diverged(browser, tmp_path):
    record, choice, config = sweep()
    file = written(tmp_path, sweep_page(record, choice, config, {}))
    with opened(browser, file) as page:
        mean = np.mean([1.0 + 3 / r for r in range(1, 31)]) + 0.05
        spread = 0.1 / math.sqrt(2)  # of two values that are 0.1 apart
        maps = page.locator("table.heat")
        assert maps.count() == 2
        # The smallest client rate is below, the smallest server rate at the left.
        best = maps.first.locator("tr").last.locator("td").first
        assert best.inner_text().split() == [
            f"{mean:.5g}", "±", f"{spread:.2g}", "★", "best", "at", "an", "edge"]
        assert best.get_attribute("class") == "best edge"
        assert maps.last.locator("td.best").inner_text().endswith("★ best")
        assert maps.last.locator("td.diverged").inner_text() == "1 of 2 diverged"
        assert maps.last.locator("tbody tr").first.locator("td").last.get_attribute("class") == \
            "diverged"
        noticed = page.locator(".warnings").inner_text()
        assert "of fedavg has the smallest client_learning_rate of its grid, 0.1" in noticed
        assert "add 0.01, 0.001." in noticed
        assert "the best of fedyogi has" not in noticed
        assert "1 of 9 settings of fedyogi" in noticed
        methods, settings = page.locator("table.sorts").all()
        first = methods.locator("tbody tr").first.locator("td").all_inner_texts()
        # Results before settings, with their spread.
        assert first[:2] == ["fedavg", f"{mean:.5g} ± {spread:.2g}"]
        assert first[3:5] == ["0.1", "0.5"]
        assert "11% (1 of 9)" in methods.inner_text()
        rows = settings.locator("tbody tr")
        assert [rows.nth(i).locator("td").nth(1).inner_text() for i in range(3)] == ["13", "0", "1"]
        assert "diverged" in rows.last.inner_text()
        assert "1 of 2 seeds, round 11" in rows.last.inner_text()
        assert chart(page, "c.shown.slice(0, 2)") == [True, True]
        assert chart(page, "c.shown.filter(Boolean).length") == 6  # the best three of either
        maps.first.locator("tr").nth(1).locator("button").last.click()  # its worst, not yet shown
        assert chart(page, "c.shown.filter(Boolean).length") == 7
        assert page.locator("[aria-pressed=true]").count() == 7
        # A curve is the mean over the seeds, up to the round in which one diverged.
        curve = chart(page, "c.plot.data[c.given.labels.length]")
        assert curve[:10] == pytest.approx([18.05 + 3 / r for r in range(1, 11)], rel=1e-5)
        assert curve[10:] == [None] * 20
        assert "fedax run --config best/fedyogi.toml" in page.locator("pre").all_inner_texts()
    runs = best_runs(record, choice, config)
    assert [run.name for run in runs] == [
        f"best {method}, seed {seed}" for method in ("fedavg", "fedyogi") for seed in (0, 1)]
    assert runs[0].final["test_accuracy"] == pytest.approx(1 / (1 + 1.1))
    assert "best fedyogi, seed 1" in comparison_page(runs)


def test_dark_narrow_and_without_scripts(browser, tmp_path, comparison):
    """What is dark has light letters, and no page is wider than a telephone."""
    record, choice, config = sweep()
    pages = [comparison, tmp_path / "run.html", tmp_path / "sweep.html"]
    pages[1].write_text(run_page(run_of("r" * 80, 0.3)), "utf-8")
    pages[2].write_text(sweep_page(record, choice, config, None), "utf-8")
    lightness = "(name) => getComputedStyle(document.body)[name].match(/\\d+/g).slice(0, 3)" \
        ".map(Number).reduce((a, b) => a + b) / 765"
    for file in pages:
        with opened(browser, file, viewport={"width": 360, "height": 640},
                    color_scheme="dark") as page:
            assert page.evaluate("document.documentElement.scrollWidth") <= 360
            assert page.evaluate(lightness, "backgroundColor") < 0.15
            assert page.evaluate(lightness, "color") > 0.85
            assert chart(page, "c.plot.width") <= 360
    many = tmp_path / "many.html"
    asked = config | {"algorithm": "fedavg," * 30}
    many.write_text(sweep_page(record, choice, asked, None), "utf-8")
    with opened(browser, many, viewport={"width": 1200, "height": 900}) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= 1200
    with opened(browser, comparison, color_scheme="light") as page:
        before = chart(page, "c.plot.ctx.canvas.toDataURL()")
        page.get_by_role("button", name="Dark colours").press("Enter")
        painted(page)
        assert page.evaluate(lightness, "backgroundColor") < 0.15
        assert chart(page, "c.plot.ctx.canvas.toDataURL()") != before
        page.evaluate("dispatchEvent(new Event('beforeprint'))")  # paper is light
        assert page.evaluate(lightness, "backgroundColor") > 0.85
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.evaluate(lightness, "backgroundColor") < 0.15
        page.get_by_role("button", name="Light colours").click()
        assert page.evaluate(lightness, "backgroundColor") > 0.85
    with opened(browser, comparison, java_script_enabled=False) as page:
        assert page.locator("table.sorts tbody tr").count() == 6
        assert "need JavaScript" in page.locator("noscript").inner_text()
        page.evaluate = lambda *_: None  # nothing can be asked of it


def test_runs_of_one_setting_are_shown_as_their_mean(browser, tmp_path):
    def run(name, rate, seed, rounds=40):
        options = {"client_learning_rate": rate}
        return run_of(name, rate, config=config_of(seed=seed, algorithm_options=options),
                      rounds=rounds_of([rate * (1 + seed) / r for r in range(1, rounds + 1)]))

    runs = [run("a", 0.1, 0), run("b", 0.1, 1, rounds=30), run("c", 0.2, 0)]
    with opened(browser, written(tmp_path, comparison_page(runs))) as page:
        given = page.evaluate("document.querySelector('#chart-1').chart.given")
        assert given["labels"] == [
            "client_learning_rate=0.1 (2 seeds)", "client_learning_rate=0.2 (1 seed)"]
        view = given["views"][0]
        expected = {"y": 0.15, "spread": 0.1 / math.sqrt(2)}  # of 0.1 and 0.2, where both are
        for name, first in expected.items():
            curve = view[name][0]
            assert curve[:30] == pytest.approx([first / r for r in range(1, 31)], rel=1e-5)
            assert curve[30:] == [None] * 10
        assert view["spread"][1] is None
    assert "Means over seeds" not in comparison_page(runs[1:])


@pytest.mark.slow
@pytest.mark.alone
def test_two_hundred_runs_of_a_thousand_rounds_open_in_three_seconds(browser, tmp_path):
    draws = np.random.default_rng(0).normal(size=(200, 1000))
    runs = [
        run_of(f"run {i}", 1 + i / 100, rounds=rounds_of((2 + draw).tolist()))
        for i, draw in enumerate(draws)
    ]
    file = written(tmp_path, comparison_page(runs))
    assert file.stat().st_size < 3e6
    with opened(browser, file) as page:
        painted(page)
        assert browsers.seconds_worked(page) < 3
        assert chart(page, "c.plot.data.length") == 201
        assert chart(page, "c.plot.data[200].length") == 1000  # none is left out
        page.get_by_role("button", name="Show all rows below").click()
        painted(page)
        assert chart(page, "c.shown.every(Boolean)")


@pytest.mark.quick
def test_the_charting_library_is_the_published_one_with_its_licence():
    """The digests of npm's uplot 1.6.32."""
    static = resources.files("fedax.report") / "static"
    script = (static / "uPlot.iife.min.js").read_bytes()
    style = (static / "uPlot.min.css").read_bytes()
    assert hashlib.sha256(script).hexdigest() == (
        "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f")
    assert hashlib.sha256(style).hexdigest() == (
        "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04")
    assert "Copyright (c) 2022 Leon Sorokin" in (static / "uPlot.LICENSE.md").read_text("utf-8")
    said = (static / "README.md").read_text("utf-8")
    assert f"{len(script):,} and {len(style):,}" in said


@pytest.mark.slow
def test_the_docs_python_runs():
    text = (Path(__file__).parent.parent / "docs" / "report.md").read_text("utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"), \
            jax.numpy_rank_promotion("allow"):
        exec(compile(block, "report.md", "exec"), {})


@pytest.mark.quick
def test_without_a_browser_a_sentence_says_what_to_do():
    with pytest.raises(pytest.fail.Exception, match="apt-get install chromium"):
        browsers.executable(lambda name: None)


@pytest.mark.quick
def test_long_curves_keep_the_ends_of_each_stretch():
    """A hundred thousand rounds of ten curves: the lowest and the highest of every five."""
    values = np.random.default_rng(0).normal(size=(10, 100_000))
    view = view_of("loss", np.arange(100_000), values)
    assert view.values.shape == (10, 40_000)
    stretches = values.reshape(10, 20_000, 5)
    pairs = view.values.reshape(10, 20_000, 2)
    assert (np.sort(pairs) == np.stack([stretches.min(2), stretches.max(2)], axis=2)).all()
    first = stretches.argmin(2) < stretches.argmax(2)
    assert ((pairs[..., 0] < pairs[..., 1]) == first).all()
    assert "of every 5 measured rounds" in view.note


@pytest.mark.quick
def test_warnings_that_matter():
    kinds = lambda run: [sentence.partition(":")[0] for sentence in warnings(run)]  # noqa: E731
    flat = rounds_of([1.0] * 40)
    final = {"test_accuracy": 0.5}
    good = run_of("a", 0.1, rounds=flat)
    assert kinds(good) == []
    assert kinds(good._replace(summary=None, rounds=flat[:9])) == ["Not finished"]
    assert kinds(run_of("a", 10.0)) == ["Still improving at the end"]
    assert kinds(good._replace(rounds=[m | {"num_rejected": 1} for m in flat])) == [
        "Uploads rejected"]
    lost = [*flat[:-1], flat[-1] | {"train_loss": None}]
    assert kinds(good._replace(rounds=lost)) == ["Diverged"]
    blown = rounds_of([2.0, *np.geomspace(2.0, 1e30, 39)])
    (sentence,) = warnings(good._replace(rounds=blown))
    last = np.geomspace(2.0, 1e30, 39)[-4:].mean()
    assert sentence == (
        f"Worse than at the start: the mean training loss of the last 4 rounds is {last:.4g}; "
        "in the first round it was 2. Try lower learning rates.")
    assert kinds(good._replace(rounds=rounds_of([2.0, *[3.0] * 38, 1.0]))) == []
    sampled = [m | {"evaluated_examples": 5, "evaluated_of": 9} for m in flat]
    at_end = {"final": final | sampled[-1], "stopped": None}
    (sentence,) = warnings(good._replace(rounds=sampled, summary=at_end))
    assert sentence == "Evaluated on a sample: final test metrics use 5 of 9 examples."
    whole = {"evaluated_examples": 9, "evaluated_of": 9}
    at_end = {"final": final | whole, "stopped": None}
    assert kinds(good._replace(rounds=[*sampled[:-1], flat[-1] | whole], summary=at_end)) == []
    worse = {"final": final, "stopped": None, "references": {"a table": {"test_accuracy": 0.6}}}
    (sentence,) = warnings(good._replace(summary=worse))
    assert sentence == "Worse than a table: test accuracy 50%, compared with 60%."
    untested = [{"round": 1, "train_loss": 1.0}]
    assert kinds(good._replace(rounds=untested)) == ["No test metrics"]


@pytest.mark.quick
def test_noise_is_no_improvement():
    draws = np.random.default_rng(0).normal(size=(200, 100)) + 10
    said = sum(bool(still_improving(10 * draw)) for draw in draws)
    assert said <= 20  # of chance; the rule asks for two standard errors, on one side
    line = np.linspace(2, 1, 100)
    share = 1 - line[90:].mean() / line[80:90].mean()
    assert still_improving(line) == (
        f"the mean training loss of the last 10 rounds is {share:.1%} below that of the 10 before.")


@pytest.mark.quick
def test_the_command_that_is_written_out_repeats_the_run():
    settings = {
        "run.seed": 3, "dropout": 0.1, "server_learning_rate": "constant(0.1)",
        "keep_best": "test_loss", "diagnostics": True,
    }
    resolved = asdict(configs.resolve(task="digits", algorithm="fedyogi", settings=settings))
    line = shlex.split(written_out(json.loads(json.dumps(resolved))))
    assert line[:7] == ["fedax", "run", "digits", "fedyogi", "--preset", "none", "--set"]
    again = configs.resolve(
        task="digits", algorithm="fedyogi", preset="none", settings=parse_settings(line[7:])
    )
    assert asdict(again) == resolved | {"preset": "none"}
    logged = written_out(json.loads(json.dumps(resolved | {"log": ("csv", "mlflow")})))
    assert shlex.split(logged) == [*line[:6], "--log", "csv", "--log", "mlflow", *line[6:]]


def folder_of(path, run, *, finished=True, torn=False):
    path.mkdir()
    (path / "config.json").write_text(json.dumps(run.config))
    lines = "".join(json.dumps(metrics) + "\n" for metrics in run.rounds)
    (path / "metrics.jsonl").write_text(lines[:-20] if torn else lines)
    if finished:
        (path / "summary.json").write_text(json.dumps(dict(run.summary) | {"rounds": 40}))
    return path


@pytest.mark.quick
@pytest.mark.skipif(sys.platform == "win32", reason="there are no named pipes")
def test_a_result_goes_into_a_pipe_and_where_a_link_leads(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder_of(tmp_path / "a", run_of("a", 0.1))
    os.mkfifo("pipe")
    read = []
    reader = threading.Thread(target=lambda: read.append(Path("pipe").read_text("utf-8")))
    reader.start()
    assert run_command(["report", "a", "--out", "pipe"]) == 0
    reader.join(60)
    assert read == [report_page(Path("a"))]
    assert Path("pipe").is_fifo()
    Path("elsewhere.html").write_text("old")
    Path("link.html").symlink_to("elsewhere.html")
    assert run_command(["report", "a", "--out", "link.html"]) == 0
    assert Path("link.html").is_symlink()
    assert Path("elsewhere.html").read_text("utf-8") == read[0]
    Path("elsewhere.html").write_text("old")  # but no link in a folder that may be a stranger's
    (tmp_path / "a" / "report.html").unlink(missing_ok=True)
    (tmp_path / "a" / "report.html").symlink_to(tmp_path / "elsewhere.html")
    assert run_command(["report", "a"]) == 0
    assert Path("elsewhere.html").read_text() == "old"
    program = (
        "from pathlib import Path; from fedax.files.regular import write_as_named\n"
        "print('before', flush=True); write_as_named(Path('/dev/stdout'), b'page\\n')\n"
        "print('after')"
    )
    with Path("log").open("w") as log:
        subprocess.run([sys.executable, "-c", program], stdout=log, check=True)
    assert Path("log").read_text() == "before\npage\nafter\n"
    Path("fedax-reproductions").mkdir()
    Path("fedax-reproductions/charles2020-section-4.png").symlink_to("../elsewhere.html")
    assert run_command(["reproduce", "charles2020-section-4"]) == 0
    assert Path("elsewhere.html").read_text() == "old"
    Path("loop").symlink_to("loop")
    capsys.readouterr()
    assert run_command(["report", "loop"]) == 1
    assert run_command(["table", "loop"]) == 1
    assert "bug" not in capsys.readouterr().err


@pytest.mark.quick
def test_a_page_may_be_written_while_its_run_writes_it_too(tmp_path):
    page, errors, stop = tmp_path / "report.html", [], threading.Event()
    writes = [
        lambda: write_atomically(page, b"run" * 1000),
        lambda: write_atomically(page, b"command" * 1000, alone=False),
        lambda: write_as_named(page, b"named" * 1000),
    ]

    def again(write):
        while not stop.is_set():
            try:
                write()
            except OSError as error:
                errors.append(error)

    threads = [threading.Thread(target=again, args=(write,)) for write in writes]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []
    assert page.read_bytes() in {word * 1000 for word in (b"run", b"command", b"named")}
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert whole_name("report.html.0123abcd.partial") == whole_name("report.html.partial")
    assert whole_name("report.html") == "report.html"


@pytest.mark.quick
def test_the_command_writes_pages_of_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = [
        folder_of(tmp_path / name, run_of(name, rate), finished=name != "b", torn=name == "b")
        for name, rate in RATES.items()
    ]
    assert run_command(["report", "b"]) == 0
    page = (tmp_path / "b" / "report.html").read_text("utf-8")
    assert "Not finished: 39 of 40 rounds done. Continue with: fedax run --resume b" in page
    assert page == report_page(folders[1].relative_to(tmp_path))
    assert run_command(["report", "a", "b", "c", "a"]) == 0
    page = (tmp_path / "fedax-report.html").read_text("utf-8")
    assert "<h1>3 runs: fedavg on digits</h1>" in page
    assert "fedax report a b c" in page
    assert run_command(["report", "a", "c", "--out", "new/two.html"]) == 0
    assert "2 runs" in (tmp_path / "new" / "two.html").read_text("utf-8")
    assert "Report: new/two.html (0." in capsys.readouterr().out
    (tmp_path / "empty").mkdir()
    folder_of(tmp_path / "forged", run_of("f", 0.1, config=config_of(num_rounds="many")))
    for arguments, status, sentence in (
        ([], 2, "fedax report needs one or more folders"),
        (["nowhere"], 1, "nowhere does not exist."),
        (["empty", "a"], 1, "empty is not a run folder: it does not contain config.json."),
        (["forged"], 1, "forged/config.json is damaged: its num_rounds cannot be 'many'."),
        (["a", "forged"], 1, "forged/config.json is damaged: its num_rounds cannot be 'many'."),
        (["a", "--out", "empty"], 2, "--out empty is a folder"),
        (["a", "--out", "a/config.json/x.html"], 1, "Cannot write the page a/config.json/x.html: "),
    ):
        assert run_command(["report", *arguments]) == status
        assert sentence in capsys.readouterr().err


@pytest.mark.quick
def test_the_command_writes_pages_of_sweeps(tmp_path, capsys, monkeypatch):
    record, choice, config = sweep()
    folder_of(tmp_path / "a", run_of("a", 0.3))
    for place, method in enumerate(("fedavg", "fedyogi")):
        base = config_of(algorithm=method, dropout=0.25, algorithm_options={"momentum": 0.5})
        (tmp_path / "s" / "methods" / str(place)).mkdir(parents=True)
        (tmp_path / "s" / "methods" / str(place) / "config.json").write_text(json.dumps(base))
    (tmp_path / "s" / "config.json").write_text(json.dumps({"algorithm": "all"} | config))
    loaded = SimpleNamespace(record=record, choice=choice, config=config, summary={})
    for module in (reports, results):
        monkeypatch.setattr(module, "load_sweep", lambda folder: loaded)
    assert run_command(["report", str(tmp_path / "s")]) == 0
    page = (tmp_path / "s" / "report.html").read_text("utf-8")
    assert page == sweep_page(record, choice, config, {})
    out = tmp_path / "both.html"
    assert run_command(["report", str(tmp_path / "a"), str(tmp_path / "s"), "--out", str(out)]) == 0
    page = out.read_text("utf-8")
    assert "<h1>5 runs: " in page
    assert "s: best fedyogi, seed 1" in page
    assert set(re.findall(r'<th scope="col" class="differs[^"]*">([^<]*)', page)) == {
        "algorithm", "seed", "client_learning_rate", "dropout", "momentum", "server_learning_rate"}


@pytest.mark.slow
def test_a_run_without_rounds_and_one_of_one_round_have_a_page(browser, tmp_path):
    none = run_of("a", 0.1, rounds=[], summary=None)
    one = none._replace(rounds=[{"round": 1, "train_loss": 1.5, "rejected": ["x"]}])
    for content in (run_page(none), comparison_page([none])):
        with opened(browser, written(tmp_path, content)) as page:
            assert "No curves yet." in page.locator("main").inner_text()
    with opened(browser, written(tmp_path, run_page(one))) as page:
        assert chart(page, "[c.plot.scales.x.min, c.plot.scales.x.max]") == [0, 2]
