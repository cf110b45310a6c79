"""Results of some of a plan's methods: what was not run is said to be, and counts as no point."""

import itertools
import json
import math
import shutil
from pathlib import Path

import pytest
from matplotlib.figure import Figure

import build_reproductions as build
import reproduction_sections as sections
from fedax.cli.main import run_command
from fedax.reproductions import EXPERIMENTS
from fedax.reproductions.experiment import Outcome, Part, Plan
from fedax.reproductions.outcome import (
    Came,
    in_a_word,
    judged,
    verdict,
)
from fedax.reproductions.results import Results, Trace
from fedax.reproductions.results_file import read, with_earlier, write
from reproduction_runs import Trained

PANEL = "MNIST by writers for EMNIST62"
RUN = ("Server-only SGDm", "FedAvg SGDm", "Mime SGDm", "MimeLite SGDm")
RATE = "client_learning_rate"
METRICS = (
    "test_accuracy", "train_loss", "full_loss", "test_loss", "test_recall_at_5",
    "pseudo_gradient_norm", "boosted_share", "num_local_steps",
)


def made(plan, without=()):
    """Results of a plan, each method a little better than the one before, without some methods."""
    traces = []
    for place, part in enumerate(plan.parts):
        for values in itertools.product(*part.grid.values()) if part.label not in without else ():
            for seed in range(part.num_seeds):
                value = 0.3 + 0.01 * place + 0.001 * seed
                traces.append(Trace(
                    part.panel, part.label, dict(zip(part.grid, values, strict=True)), seed, 100,
                    0, dict.fromkeys(METRICS, value),
                    dict.fromkeys(METRICS, ([1, 50, 100], [1.0, 0.8, value])),
                    dict.fromkeys(METRICS, value), dict.fromkeys(METRICS, [0.1] * 3),
                    dict.fromkeys(METRICS, (0.1, value)), {"full_loss": 1.0},
                ))
    return traces


@pytest.fixture
def figure(monkeypatch):
    """Mime's Figure 3 on MNIST's writers alone, of which the four methods with SGDm were run."""
    entry = EXPERIMENTS["mime2020-figure-3"]
    plan = entry.plan("paper", True).of([PANEL])
    monkeypatch.setitem(
        EXPERIMENTS, "mime2020-figure-3",
        entry._replace(plan=lambda scale, other: plan if other else entry.plan(scale, False)),
    )
    without = {part.label for part in plan.parts} - {*RUN}
    results = Results(made(plan, without), entry.by, maximise=entry.maximise)
    return Came("mime2020-figure-3", "paper", True, results, 60.0, {"fedax": "0"})


@pytest.mark.quick
def test_points_of_methods_that_were_not_run_are_not_run(figure):
    """Of 14 points, 6 are among the four methods; of the others none disagrees."""
    entry = EXPERIMENTS[figure.name]
    plan = entry.plan("paper", True)
    found = judged(entry, figure.results, plan)
    assert [one.statement for one, _ in found] == [
        one.statement for one in entry.criteria(Results(made(plan)))]
    words = [outcome.word for _, outcome in found]
    assert words == [*("yes",) * 5, "no", *("not run",) * 8]
    assert {outcome.measured for _, outcome in found[6:]} >= {
        "not run: Mime Adam", "not run: Mime SGD"}
    assert verdict(found) == "agrees in 5 of 6 points; 8 more not run"
    assert in_a_word(outcome for _, outcome in found) == "partly"
    assert in_a_word([Outcome("", False, run=False)]) == "not run"
    assert verdict(found[6:]) == "not run"


@pytest.mark.quick
def test_the_page_says_which_methods_were_run(figure, monkeypatch):
    run = Trained(figure)
    left = [part.label for part in run.plan.parts if part.label not in RUN]
    assert len(left) == 6
    assert run.left == [f"not run yet: {PANEL} ({'; '.join(left)})"]
    names = " ".join(f'"{label}"' for label in RUN)
    command = f"fedax reproduce mime2020-figure-3 --scale paper --stand-in --only {names}"
    assert sections.commands(run, sections.seeds_of(run)) == f"`{command}`"
    text = "\n".join(sections.section(run, build.RESULTS, [run.title]))
    assert f"Not run yet: {PANEL} ({'; '.join(left)})." in text
    (tuned,) = {line for line in text.splitlines() if "FedAvg SGDm / " in line}
    assert "MimeLite SGDm |" in tuned
    assert "diverged" not in text
    assert "| Mime Adam | not run |" in text
    drawn = Figure()
    run.info.draw(drawn, figure.results)  # SGDm, Adam, with and without momentum
    assert [[words.get_text() for words in axes.texts] for axes in drawn.axes] == [
        [], ["not run"], []]
    assert build._points([run]) == "changed settings, other data, in part: 5 of 6"
    assert run.methods == {"fedopt", "mime", "mimelite", "server_only"}


@pytest.mark.quick
def test_methods_of_one_of_several_panels_are_named_with_it(monkeypatch):
    parts = tuple(Part(panel, label, "quadratics", "fedavg") for panel in "PQ" for label in "AB")
    monkeypatch.setitem(EXPERIMENTS, "made-up", EXPERIMENTS["mime2020-figure-3"]._replace(
        source="made up 2020, Figure 1",
        plan=lambda scale, stand_in: Plan(parts, "", {"P": (0.2, 0.1), "Q": (0.2, 0.1)})))
    traces = [trace for trace in made(Plan(parts, "")) if (trace.panel, trace.label) != ("Q", "B")]
    run = Trained(Came("made-up", "small", False, Results(traces), 12.0, {}))
    whole = "fedax reproduce made-up --scale small"
    assert sections.commands(run, sections.seeds_of(run)) == (
        f'`{whole} --only "P"` and `{whole} --only "Q" "A"`')
    assert run.left == ["not run yet: Q (B)"]


# An entry with each kind of table.
@pytest.mark.parametrize("name", [
    "charles2020-figure-3", "charles2020-table-4", "decay2021-figure-3", "decay2021-table-1",
    "elastic2023-figure-1", "elastic2023-figure-2", "elastic2023-table-1", "mime2020-figure-4",
    "mime2020-figure-5", "mime2020-table-3", "reddi2021-table-1", "reddi2021-table-3",
])
def test_no_table_says_of_a_method_that_was_not_run_that_it_diverged(name):
    """Nor is any of its points counted, and the others are drawn."""
    entry = EXPERIMENTS[name]
    plan = entry.plan("small", True) or entry.plan("small", False)
    plan = plan.only(plan.panels[:1])
    for label in dict.fromkeys(part.label for part in plan.parts):
        results = Results(made(plan, {label}), entry.by, maximise=entry.maximise)
        for criterion, outcome in judged(entry, results, plan):
            assert outcome.run != outcome.measured.startswith("not run: "), criterion.statement
            assert "not measured" not in outcome.measured, criterion.statement
        cells = [cell for table in entry.tables(results) for row in table.rows for cell in row]
        assert not any("diverged" in str(cell) for cell in cells), label
    if entry.draw is not None:
        entry.draw(Figure(), results)


def test_methods_are_chosen_by_name(monkeypatch, capsys):
    parts = tuple(Part(panel, label, "quadratics", "fedavg", grid={"client_learning_rate": grid})
                  for panel, label, grid in (
                      ("P", "A", [0.1]), ("P", "B", [0.1, 0.2, 0.3]), ("Q", "A", [0.1])))
    plan = Plan(parts, ".", {"P": (0.4, 0.1), "Q": (0.2, 0.1)})
    monkeypatch.setitem(EXPERIMENTS, "made-up", EXPERIMENTS["mime2020-figure-4"]._replace(
        plan=lambda scale, stand_in: plan))

    def said(*only):
        assert run_command(["reproduce", "made-up", "--plan", "--only", *only]) == 0
        lines = capsys.readouterr().out.splitlines()
        return next(line for line in lines if line.startswith("Runs")), next(
            line for line in lines if line.startswith("Time"))[:17]

    assert said("A") == ("Runs: 6 with 3 seeds, in P, Q.", "Time: about 0.30 ")
    assert said("P", "A") == ("Runs: 3 with 3 seeds, in P.", "Time: about 0.10 ")
    assert said("Q") == ("Runs: 3 with 3 seeds, in Q.", "Time: about 0.20 ")
    for only, sentence in ((["Q", "B"], "--only: Q has no method B."),
                           (["P", "Q", "B"], "--only: Q has no method B."),
                           (["C"], "panel or method 'C'")):
        assert run_command(["reproduce", "made-up", "--only", *only]) == 2
        assert sentence in capsys.readouterr().err


@pytest.mark.slow
def test_methods_run_one_after_the_other_come_to_the_whole(monkeypatch, capfd, tmp_path):
    """What is written after the first can be read, and says what is missing."""
    parts = tuple(
        Part("P", label, "quadratics", "fedavg", "quick",
             {"num_rounds": 6, "num_local_steps": steps}, {"client_learning_rate": [0.01, 0.1]})
        for label, steps in (("one step", 1), ("five steps", 5))
    )
    entry = EXPERIMENTS["mime2020-figure-4"]._replace(
        source="made up 2020, Figure 1", by="train_loss", maximise=False, draw=None,
        plan=lambda scale, stand_in: Plan(parts, ".", {"P": (0.01, 0.01)}))
    monkeypatch.setitem(EXPERIMENTS, "made-up", entry)
    monkeypatch.chdir(tmp_path)

    def labels(name):
        assert run_command(["reproduce", "made-up", "--only", name, "--out", "out"]) == 0
        came = read(tmp_path / "out" / "made-up-small.json")
        return Trained(came).left, came.results.labels("P")

    assert labels("five steps") == (["not run yet: P (one step)"], ["five steps"])
    assert "finished before" not in capfd.readouterr().out
    assert labels("one step") == ([], ["one step", "five steps"])
    assert "methods finished before: five steps." in capfd.readouterr().out

    whole = read(tmp_path / "out" / "made-up-small.json")
    shutil.rmtree(tmp_path / "out" / "runs")  # as on another machine
    assert labels("one step") == ([], ["one step", "five steps"])
    said = capfd.readouterr().out
    file = Path("out", "made-up-small.json")
    assert f"The results include what {file} has of P (five steps)." in said
    assert read(tmp_path / file).results.traces == whole.results.traces


def came(seconds, date, runs, **grid):
    """Runs of `method: (rounds, seeds, the round in which they diverged)`, for each value."""
    traces = [
        Trace("P", label, dict(zip(grid, values, strict=True)), seed, count, diverged, {}, {})
        for seed in range(10) for label, (count, seeds, diverged) in runs.items()
        for values in itertools.product(*grid.values()) if seed in seeds
    ]
    return Came("made-up", "small", False, Results(traces), seconds, {"date": date})


def plan_of(*labels, **grid):
    return Plan(tuple(
        Part("P", label, "quadratics", "fedavg", settings={"num_rounds": 6}, grid=grid)
        for label in labels
    ), ".")


@pytest.mark.quick
def test_a_file_keeps_the_runs_that_were_not_made_again():
    """Seed by seed; they have their share of the file's time, and the last run says the day."""
    plan, three, two = plan_of("first", "second", "third"), range(3), range(2)
    earlier = came(600.0, "2026-03-01", {"first": (6, two, 0), "third": (6, three, 0)})
    now = with_earlier(
        came(40.0, "2026-02-01", {"second": (6, two, 0), "third": (6, two, 0)}), earlier, plan)
    assert [(trace.seed, trace.label) for trace in now.results.traces] == [
        (0, "first"), (0, "second"), (0, "third"), (1, "first"), (1, "second"), (1, "third"),
        (2, "third")]
    assert now.seconds == 40.0 + 600.0 * 3 / 5
    assert now.made == {"date": "2026-03-01"}

    again = came(40.0, "2026-02-01", {"first": (6, three, 0), "third": (6, three, 0)})
    found = with_earlier(again, earlier, plan)
    assert (found.results.traces, found.seconds, found.made) == (
        again.results.traces, 40.0, again.made)


@pytest.mark.quick
@pytest.mark.parametrize(("runs", "grid", "stays"), [
    ({"first": (6, range(2), 0)}, {RATE: [0.1, 1.0]}, True),
    ({"first": (3, range(2), 3)}, {RATE: [0.1, 1.0]}, True),  # all of them diverged
    ({"first": (5, range(2), 0)}, {RATE: [0.1, 1.0]}, False),  # of a plan with fewer rounds
    ({"gone": (6, range(2), 0)}, {RATE: [0.1, 1.0]}, False),
    ({"first": (6, range(2), 0)}, {RATE: [0.1, 3.0]}, False),
    ({"first": (6, range(2), 0)}, {"momentum": [0.1, 1.0]}, False),
])
def test_a_method_that_the_plan_trains_otherwise_is_left_out_whole(runs, grid, stays):
    """Its diverged runs, which might be of either plan, too: they alone would say it diverged."""
    earlier = came(600.0, "2026-01-01", runs, **grid)
    mixed = earlier._replace(results=Results([
        *earlier.results.traces,
        *came(0.0, "", {label: (3, [5], 3) for label in runs}, **grid).results.traces]))
    now = came(40.0, "2026-02-01", {"second": (6, range(2), 0)}, **{RATE: [0.1]})
    for file in (earlier, mixed):
        found = with_earlier(now, file, plan_of("first", "second", **{RATE: (0.1, 1.0)}))
        assert len(found.results.traces) == 2 + len(file.results.traces) * stays


@pytest.mark.quick
def test_a_method_of_which_settings_are_missing_is_left_out_whole():
    """Or a setting with three seeds is compared with one that has one."""
    now = came(40.0, "", {"second": (6, range(1), 0)}, **{RATE: [0.1, 1.0]})
    whole = came(60.0, "", {"first": (6, range(2), 0)}, **{RATE: [0.1, 1.0]})
    part = whole._replace(results=Results(whole.results.traces[:-1]))
    plan = plan_of("first", "second", **{RATE: (0.1, 1.0)})
    for file, stays in ((whole, 4), (part, 0)):
        assert len(with_earlier(now, file, plan).results.traces) == 2 + stays
    grown = plan_of("first", **{RATE: (0.1, 1.0)})  # by a second part
    more = plan._replace(parts=(*plan.parts, grown.parts[0]._replace(grid={RATE: (3.0,)})))
    assert len(with_earlier(now, whole, more).results.traces) == 2


FILES = sorted(build.RESULTS.glob("*.json"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_methods_may_have_different_numbers_of_seeds(path):
    """They are compared on those that both have; and no run of a file is lost to its own plan."""
    file = read(path)
    entry, traces = EXPERIMENTS[file.name], file.results.traces
    plan = entry.plan(file.scale, file.stand_in)
    first, last = traces[0], max(trace.seed for trace in traces)
    fewer = [trace for trace in traces
             if (trace.panel, trace.label, trace.seed) != (first.panel, first.label, last)]
    results = Results(fewer, file.results.by, maximise=file.results.maximise)
    assert len(judged(entry, results, plan)) == len(judged(entry, file.results, plan))
    assert len(entry.tables(results)) == len(entry.tables(file.results))

    alone = Results([trace for trace in traces if trace.label == first.label], file.results.by,
                    maximise=file.results.maximise)
    whole = with_earlier(file._replace(results=alone), file, plan).results.traces
    assert sorted(map(str, whole)) == sorted(map(str, traces))


@pytest.mark.quick
def test_a_damaged_file_of_results_is_named_before_anything_is_trained(tmp_path, capsys):
    file = tmp_path / "charles2020-table-5-small-stand-in.json"
    line = ["reproduce", "charles2020-table-5", "--stand-in", "--out", str(tmp_path)]
    run = json.loads((build.RESULTS / file.name).read_text("utf-8"))
    one = run["runs"][0]

    def text_of(head=(), row=(), more=()):
        return json.dumps({**run, **dict(head), "runs": [{**one, **dict(row)}, *more]})

    for text, why in (
        ("{}", "'runs' is missing"),
        ('{"runs": [{"seed": 0, "final": null, "last": {}}]}', "'panel' is missing"),
        ('{"runs":' + "[" * 100_000, "too many brackets"),
        (text_of({"seconds": 10**400}), "is no finite number"),
        (text_of({"seconds": math.nan}), "nan is no finite number"),
        (text_of({"made": {"date": 5}}), "the date 5"),
        (text_of(row={"values": [1]}), r"a run has the values [1]"),
        (text_of(row={"curves": {"test_loss": [[1], [10**400]]}}), "is no finite number"),
        (text_of(row={"curves": {"test_loss": 5}}), "a run has the curve 5"),
        (text_of(row={"rounds": "x"}), "a run has the rounds 'x'"),
        (text_of(row={"final": {"test_accuracy": 10**400}}), "is no finite number"),
        (text_of(row={"final": {"test_accuracy": "x"}}), "'x' is no finite number"),
        (text_of(more=[1]), "a run is 1"),
        (text_of({"scale": "paper"}), "it has results of charles2020-table-5-paper-stand-in"),
        (text_of(more=[one]), f"the run of {one['label']} in {one['panel']} with seed 0 is there "
         "twice"),
    ):
        file.write_text(text)
        assert run_command(line) == 1
        said = capsys.readouterr().err
        assert "is not what fedax reproduce writes: " in said
        assert why in said
        assert "Internal error" not in said
        assert "Move it away to begin a new one." in said
        assert not (tmp_path / "runs").exists()


@pytest.mark.quick
def test_what_was_run_in_part_survives_its_file(figure, tmp_path):
    again = Trained(read(write(figure, tmp_path)))
    assert again.verdict == Trained(figure).verdict
    assert again.left == Trained(figure).left
