"""The table of results: its numbers, its words, and that every format reads back as the same."""

import csv
import io
import json
import re
import shutil
import statistics
import subprocess

import numpy as np
import pytest
from scipy import stats

import fedax
from fedax import History
from fedax.cli.main import run_command
from fedax.experiment import metrics
from fedax.experiment.folder import RunError
from fedax.measures.significance import paired_p
from fedax.report.latex import latex_text
from fedax.sweeps.choosing import choose
from fedax.sweeps.record import Record, Setting

ACCURACIES = {"fedavg": (0.70, 0.74, 0.71), "fedadam": (0.80, 0.79, 0.84)}


def write_run(folder, values, *, metric="test_accuracy", num_rounds=None, finished=True, **config):
    """A run folder with a value a round of a metric."""
    folder.mkdir(parents=True)
    given = {
        "task": "digits", "algorithm": "fedavg", "seed": 0, "preset": "quick",
        "num_rounds": len(values) if num_rounds is None else num_rounds, "cohort_size": 5,
        "algorithm_options": {"client_learning_rate": 0.1}, "made_by": {"fedax": "0"},
    } | config
    (folder / "config.json").write_text(json.dumps(given))
    rounds = [
        {"round": number, "train_loss": 1 / number, "num_reports": 4, "num_rejected": 1,
         "num_dropped": 0} | ({} if value == "none" else {metric: value})
        for number, value in enumerate(values, 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in rounds))
    if finished:
        summary = {
            "rounds": len(values), "final": {} if values[-1] == "none" else {metric: values[-1]},
            "bytes_down_per_client": 30, "bytes_up_per_client": 10,
        }
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


@pytest.fixture
def folders(tmp_path):
    """Three seeds of two methods, of which the first reaches 70% in its rounds 2, 1 and 2."""
    return [
        write_run(tmp_path / f"{method}-{seed}", [0.72 if seed == 1 else 0.5, value],
                  algorithm=method, seed=seed)
        for method, values in ACCURACIES.items() for seed, value in enumerate(values)
    ]


def cells_of(table):
    """The rows of Markdown, as lists of cells."""
    lines = [line for line in table.markdown().splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [rows[0], *rows[2:]]


def seeds(*losses):
    return [History([{"round": 1, "test_loss": loss}]) for loss in losses]


@pytest.mark.quick
def test_numbers_are_mean_and_sample_deviation_over_seeds(folders):
    table = fedax.table(folders)
    frame = {row["method"]: row for row in csv.DictReader(io.StringIO(table.csv()))}
    for method, values in ACCURACIES.items():
        assert float(frame[method]["test_accuracy"]) == pytest.approx(
            statistics.mean(values), rel=1e-14)
        assert float(frame[method]["test_accuracy_deviation"]) == pytest.approx(
            statistics.stdev(values), rel=1e-12)
        assert frame[method]["seeds"] == "3"
    assert cells_of(table) == [
        ["method", "test accuracy (%)"], ["fedavg", "71.67 ± 2.08"],
        ["fedadam", "**81.00 ± 2.65**"],
    ]
    assert table.notes == [
        "Test accuracy on digits: mean ± sample standard deviation over 3 seeds.",
        "The best is bold.",
    ]
    assert r"$\mathbf{81.00} \pm 2.65$ \\" in table.latex()
    assert repr(table) == table.markdown()
    assert table.to_pandas().columns.tolist() == next(csv.reader([table.csv().splitlines()[0]]))


@pytest.mark.quick
def test_rounds_and_bytes_to_a_target(folders):
    table = fedax.table(folders, target=0.7)
    assert table.columns[1].heading == "rounds to 70%"
    mean, deviation = 5 / 3, statistics.stdev([2, 1, 2])
    for cell in table.columns[1].cells:  # both methods; five clients send and get 40 bytes a round
        assert (cell.mean, cell.deviation) == pytest.approx((mean, deviation), rel=1e-14)
        assert cell.best
    for cell in table.columns[2].cells:
        assert (cell.mean, cell.deviation) == pytest.approx((200 * mean, 200 * deviation))
    assert cells_of(table)[0] == ["method", "test accuracy (%)", "rounds to 70%", "B to 70%"]
    partly = fedax.table(folders, target=0.71)
    assert partly.columns[1].cells[0].said == "reached by 2 of 3"
    never = fedax.table(folders, target=0.9)
    assert [cell.said for cell in never.columns[2].cells] == ["not reached", "not reached"]
    # Of a loss the target is reached from above.
    losses = fedax.table({"a": [History([{"round": r, "test_loss": 1 / r} for r in (1, 2, 3)])]},
                         target=0.5)
    assert losses.columns[1].cells[0].mean == 2
    assert losses.columns[2].cells[0].said == "not counted"


@pytest.mark.quick
def test_bytes_of_codes_are_those_that_were_measured(tmp_path):
    """Five clients, 30 bytes down as the summary computes, 7 and 3 bytes up as measured."""
    folder = write_run(tmp_path / "run", [0.5, 0.7])
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line, bits in zip(lines, (56, 24), strict=True):
        line["bits_up"] = bits
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (cell,) = fedax.table([folder], target=0.7).columns[2].cells
    assert cell.mean == 5 * (30 + 7) + 5 * (30 + 3)


@pytest.mark.quick
@pytest.mark.parametrize(("finished", "content", "said"), [
    (True, b'{"round": 1}\n{bad\n{"round": 3}\n', "line 2 is not .* finished with 3 rounds"),
    (True, b'{"round": 1}\n', "it ends after line 1, but the run finished with 3 rounds"),
    (False, b'{"round": 1}\n{bad\n{"round": 3}\n', "line 2 is not what a run writes. Restore"),
    (False, b'{"round": 1}\n{bad\n', "line 2 is not what a run writes. Restore"),
    (False, b'{"round": 1}\n{"round": 2, "train_loss": "abc"}\n{"round": 3}\n', "line 2 is not"),
    (False, b'{"round": 1}\n{"round": 2, "train_loss": 1%s}\n' % (b"0" * 400), "line 2 is not"),
])
def test_a_damaged_line_is_a_sentence_and_no_shorter_run(tmp_path, finished, content, said, capsys):
    folder = write_run(tmp_path / "run", [0.5, 0.7, 0.8], finished=finished)
    (folder / "metrics.jsonl").write_bytes(content)
    with pytest.raises(RunError, match=f"metrics.jsonl is damaged: {said}"):
        fedax.table([folder])
    with pytest.raises(RunError, match=said):
        fedax.load_run(folder)
    assert run_command(["table", str(folder)]) != 0
    assert re.search(said, capsys.readouterr().err)


@pytest.mark.quick
def test_a_run_may_go_on_and_end_while_it_is_read(tmp_path, monkeypatch):
    """Rounds come, and the summary, between any two looks at its files."""
    folder = write_run(tmp_path / "run", [0.5, 0.7], finished=False)
    read, count = metrics.read_file, [2]

    def reads(path):
        content = read(path)
        lines = (folder / "metrics.jsonl").read_text()
        for _ in range(3):
            count[0] += 1
            lines += json.dumps({"round": count[0]}) + "\n"
        (folder / "metrics.jsonl").write_text(lines)
        (folder / "summary.json").write_text(json.dumps({"rounds": count[0]}))
        return content

    monkeypatch.setattr(metrics, "read_file", reads)
    assert len(metrics.read_rounds(folder)) == 2
    assert len(metrics.read_rounds(folder)) == 5


@pytest.mark.quick
def test_a_line_that_is_being_written_is_no_damage(tmp_path):
    folder = write_run(tmp_path / "run", [0.5, 0.7, 0.8], finished=False)
    (folder / "metrics.jsonl").write_bytes(b'{"round": 1, "train_loss": 2}\n{"round": 2, "trai')
    assert len(fedax.load_run(folder).history) == 1


@pytest.mark.quick
def test_a_target_is_reached_on_validation_data_where_there_are_any():
    rounds = [{"round": r, "validation_accuracy": r / 10} for r in range(1, 7)]
    rounds[-1]["test_accuracy"] = 0.55
    table = fedax.table({"a": History(rounds)}, target=0.3)
    assert table.columns[0].cells[0].mean == 0.55
    assert table.columns[1].cells[0].mean == 3
    assert "measured validation accuracy of at least 30%" in table.notes[1]


@pytest.mark.quick
def test_what_the_last_evaluation_of_a_sweep_lacks_is_undefined():
    settings = [Setting(n, name, {}) for n, name in enumerate(("a", "b"))]
    none = np.zeros(2, int)
    record = Record(settings, np.arange(2), none, none, none + 2, {
        "train_loss": np.ones((2, 2)), "test_loss": np.ones((2, 2)),
        "test_auc": np.array([[0.7, 0.8], [0.9, np.nan]])})
    table = fedax.table(fedax.SweepResult(record, choose(record)), "test_auc")
    assert [cell.said or cell.mean for cell in table.columns[0].cells] == [0.8, "undefined"]


@pytest.mark.slow
def test_what_stopped_early_was_tested_after_its_last_round(tmp_path):
    """With validation data no round of its history has a test metric."""
    task = fedax.load_task("digits").with_validation(0.2)
    result = fedax.train(
        task, fedax.fedavg(task.model, 0.1), num_rounds=9, evaluate_every=1, cohort_size=2,
        early_stopping=fedax.EarlyStopping(patience=1, min_delta=10.0), progress=False,
        out=tmp_path / "run",
    )
    assert not any("test_loss" in metrics for metrics in result.history.rounds)
    metrics = ["test_loss", "best_test_loss", "validation_loss"]
    expected = [
        result.test["test_loss"], result.best_test["test_loss"],
        result.history["validation_loss"][-1],
    ]
    for given in (result, tmp_path / "run", {"mine": [result]}):
        columns = fedax.table(given, metrics).columns
        assert [column.cells[0].mean for column in columns] == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
def test_bytes_without_diagnostics_are_those_that_diagnostics_count(tmp_path):
    task = fedax.load_task("quadratics")
    for name, diagnostics in (("with", True), ("without", False)):
        fedax.train(
            task, fedax.scaffold(task.model, 0.01), num_rounds=4, cohort_size=3, progress=False,
            diagnostics=diagnostics, out=tmp_path / name,
        )
    first, second = (
        fedax.table(tmp_path / name, "train_loss", target=1e9).columns[2].cells[0].mean
        for name in ("with", "without")
    )
    assert first == second > 0


@pytest.mark.quick
@pytest.mark.parametrize(("test", "function"), [
    ("t-test", stats.ttest_rel), ("wilcoxon", stats.wilcoxon)])
def test_significance_is_of_the_seeds_in_common(tmp_path, test, function):
    values = {"a": (0.5, 0.61, 0.55, 0.64, 0.52), "b": (0.7, 0.72, 0.75, 0.71), "c": (0.6,)}
    folders = [
        write_run(tmp_path / f"{method}{seed}", [value], algorithm=method, seed=seed)
        for method, of_seeds in values.items() for seed, value in reversed([*enumerate(of_seeds)])
    ]
    table = fedax.table(folders, significance=test)
    p = dict(zip(table.methods, table.columns[1].cells, strict=True))
    assert p["b"].said == "reference"
    assert p["c"].said == "too few seeds"
    assert p["a"].mean == pytest.approx(function(values["a"][:4], values["b"]).pvalue, rel=1e-12)
    name = {"t-test": "paired t-test", "wilcoxon": "Wilcoxon signed-rank test"}[test]
    assert name in table.notes[-1]
    assert "against b (the best); not corrected for multiple comparisons (1)" in table.notes[-1]
    against = fedax.table(folders, significance=test, baseline="a")
    assert against.columns[1].cells[0].said == "reference"
    assert against.columns[1].cells[1].mean == p["a"].mean
    with pytest.raises(fedax.TableError, match="baseline 'd'"):
        fedax.table(folders, significance=test, baseline="d")


@pytest.mark.quick
def test_a_baseline_is_a_row_of_each_task(tmp_path):
    folders = [
        write_run(tmp_path / f"{task}{rate}{seed}", [rate + 0.01 * seed**2], task=task, seed=seed,
                  algorithm_options={"client_learning_rate": rate})
        for task in ("digits", "mnist") for rate in (0.1, 0.3) for seed in range(3)
    ]
    name = "fedavg client_learning_rate=0.1"
    table = fedax.table(folders, significance="t-test", baseline=name)
    assert [cell.said for cell in table.columns[1].cells] == [
        "reference", "undefined", "reference", "undefined"]
    assert f"against {name} on digits and {name} on mnist; not" in table.notes[-1]
    with pytest.raises(fedax.TableError, match=f"several rows; choose one: {name}, "):
        fedax.table(folders, significance="t-test", baseline="fedavg")


@pytest.mark.quick
def test_p_values_where_differences_say_nothing():
    assert paired_p({0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0}, "t-test") == 1
    assert np.isnan(paired_p({0: 0.1, 1: 0.2}, {0: 0.4, 1: 0.5}, "t-test"))  # but for rounding
    assert np.isnan(paired_p({0: 1.0}, {0: 2.0}, "t-test"))
    assert np.isnan(paired_p({0: 1.0, 1: 2.0}, {2: 2.0, 3: 1.0}, "wilcoxon"))


@pytest.mark.quick
def test_rows_are_told_apart_by_what_differs(tmp_path):
    folders = [
        write_run(tmp_path / f"{task}-{rate}-{seed}", [value], task=task, seed=seed,
                  log=["csv"] if seed else [], task_options={"model": task},
                  algorithm_options={"client_learning_rate": rate, "momentum": 0.9})
        for (task, rate), value in {("digits", 0.1): 0.8, ("mnist", 0.3): 0.7,
                                    ("digits", 0.3): 0.6, ("mnist", 0.1): 0.7}.items()
        for seed in (0, 1)
    ]
    table = fedax.table(folders)
    # The model differs between tasks, but not within one; logs make no other setting.
    assert cells_of(table) == [
        ["task", "method", "client_learning_rate", "test accuracy (%)"],
        ["digits", "fedavg", "0.1", "**80.00 ± 0.00**"],
        ["digits", "fedavg", "0.3", "60.00 ± 0.00"],
        ["mnist", "fedavg", "0.3", "**70.00 ± 0.00**"],  # of equals, both
        ["mnist", "fedavg", "0.1", "**70.00 ± 0.00**"],
    ]
    assert table.latex().count(r"\midrule") == 2
    # A setting that a configuration does not have is no difference if others tell them apart.
    other = write_run(tmp_path / "other", [0.5], algorithm_options={"client_learning_rate": 1.0})
    assert "momentum" not in fedax.table([*folders[:2], other]).settings
    alone = write_run(tmp_path / "alone", [0.5], algorithm_options={"client_learning_rate": 0.1},
                      task_options={"model": "digits"})
    assert fedax.table([*folders[:2], alone]).settings == {"momentum": [0.9, None]}
    again = shutil.copytree(folders[0], tmp_path / "again")  # the same run is no other seed
    assert fedax.table([folders[0], again]).settings == {"run": ["digits-0.1-0", "again"]}
    assert len(fedax.table([folders[0], str(folders[0])]).methods) == 1


@pytest.mark.quick
def test_seeds_may_have_data_of_their_own(tmp_path):
    def run(name, seed, data=None, **changes):
        python = {"python": {"model": "m", "algorithm": "a", "method": name, "initial_params": None,
                             "train": {"arrays": {"x": "float32[5]"}, "contents": data}}}
        return write_run(tmp_path / f"{name}-{seed}-{data}", [0.5 + seed / 10], algorithm=name,
                         seed=seed, **({} if data is None else python) | changes)

    each = [run(name, seed, f"data {seed}") for name in ("a", "b") for seed in (0, 1, 2)]
    table = fedax.table(each)
    assert (table.methods, table.seeds, table.settings) == (["a", "b"], [3, 3], {})
    assert table.columns[0].cells[0][:2] == pytest.approx((0.6, 0.1))
    assert table.notes[-1] == "Seeds differ in their data or their starting point: a, b."
    parts = [run("c", seed, task_options={"partition_seed": seed}) for seed in (3, 4)]
    assert fedax.table([*each[4:], *parts]).seeds == [2, 2]
    # Data that several seeds share, or of which one seed has several, are a setting.
    both = [run("d", seed, data) for data in ("x", "y") for seed in (0, 1)]
    assert fedax.table(both).seeds == [2, 2]
    assert fedax.table([both[0], both[2]]).seeds == [1, 1]
    assert fedax.table([*both[:2], run("d", 2, "y")]).seeds == [2, 1]
    assert "of its own" not in fedax.table(both).notes[-1]


@pytest.mark.quick
def test_a_metric_of_two_lines_has_one_in_the_table(tmp_path):
    table = fedax.table(write_run(tmp_path / "run", [0.5], metric="test\nscore"), "test\nscore")
    assert cells_of(table)[0][1] == r"test\\nscore"
    assert r"test\textbackslash{}nscore \\" in table.latex()


@pytest.mark.quick
def test_what_has_no_mean_says_why(tmp_path):
    def three(name, *values, **changes):
        return [write_run(tmp_path / f"{name}{seed}", [value], algorithm=name, seed=seed, **changes)
                for seed, value in enumerate(values)]

    folders = [*three("fine", 0.7, 0.8, 0.9), *three("undefined", 0.99, None, 0.99),
               *three("missing", 0.99, "none", "none"), *three("lost", 0.99, 0.99, 0.99)]
    (tmp_path / "lost1" / "diverged.json").write_text('{"why": "Nothing is finite."}')
    line = {"round": 1, "train_loss": None, "num_reports": 5, "test_accuracy": 0.1}
    (tmp_path / "lost2" / "metrics.jsonl").write_text(f"{json.dumps(line)}\n")
    table = fedax.table(folders)
    assert [row[1] for row in cells_of(table)[1:]] == [
        "80.00 ± 10.00", "undefined (1 of 3)", "not measured (2 of 3)", "diverged (2 of 3)"]
    rows = list(csv.DictReader(io.StringIO(table.csv())))
    assert float(rows[0]["test_accuracy"]) == pytest.approx(0.8, rel=1e-15)
    assert [row["test_accuracy"] for row in rows[1:]] == ["", "", ""]
    assert rows[3]["test_accuracy_remark"] == "diverged (2 of 3)"
    # With one seed there is no deviation, and no best where there is nothing to compare with.
    one = fedax.table(folders[0])
    assert cells_of(one)[1] == ["fine", "70.00"]
    assert one.notes == ["Test accuracy on digits: one seed each, so no standard deviation."]
    assert "±" not in one.markdown()
    assert r"\pm" not in one.latex()
    short = write_run(tmp_path / "short", [0.6], num_rounds=9, finished=False, algorithm="x")
    sentence = "Not finished (results so far): x num_rounds=9, seed 0 (1 of 9 rounds)."
    assert sentence in fedax.table([folders[0], short]).notes


@pytest.mark.quick
def test_a_run_that_ends_as_diverged_is_told_apart_from_one_that_was_stopped(tmp_path):
    task, out = fedax.load_task("quadratics"), tmp_path / "lost"
    with pytest.raises(fedax.DivergedError):
        fedax.train(task, fedax.fedavg(task.model, 1e30), num_rounds=9, out=out, progress=False)
    table = fedax.table([out], "train_loss")
    assert table.columns[0].cells[0].said == "diverged"
    assert run_command(["report", str(out)]) == 0
    page = (out / "report.html").read_text("utf-8")
    assert "Diverged: Round " in page
    assert "Not finished" not in page


@pytest.mark.quick
def test_metrics_are_found_and_asked_for(folders, capsys):
    both = fedax.table(folders, ["train_loss", "test_accuracy"])
    assert [column.name for column in both.columns] == ["train_loss", "test_accuracy"]
    assert fedax.table(folders, "num_reports").columns[0].cells[0].best is False
    assert "num_reports:max or num_reports:min" in fedax.table(folders, "num_reports").notes[-1]
    assert fedax.table(folders, "num_reports:max").columns[0].cells[0].best
    assert fedax.table({"a": seeds(1.0)}).columns[0].name == "test_loss"
    losses = {"a": [History([{"round": 1, "train_loss": 2.0}])]}
    assert fedax.table(losses).columns[0].name == "train_loss"
    for wrong, message in (
        ({"metric": "test_accurac"}, "Did you mean 'test_accuracy'"),
        ({"metric": "test_accuracy:up"}, "accuracy:max or"), ({"target": 70}, "Write 0.8 for 80%"),
        ({"target": float("nan")}, "finite"), ({"baseline": "fedavg"}, "needs significance"),
        ({"significance": "anova"}, "anova"),
    ):
        with pytest.raises(fedax.TableError, match=message):
            fedax.table(folders, **wrong)
    for nothing in ([], {}, {"a": History()}):
        with pytest.raises(fedax.TableError, match=r"A table needs|nothing to show"):
            fedax.table(nothing)
    with pytest.raises(TypeError, match="of type int"):
        fedax.table([3])


@pytest.mark.quick
def test_sweeps_are_their_best_settings_or_all(tmp_path):
    task = fedax.load_task("quadratics")
    rates = {"client_learning_rate": [0.001, 0.01, 1e300]}
    out = tmp_path / "sweep"
    found = fedax.sweep(task, fedax.fedavg, rates, num_rounds=6, seeds=2, out=out, progress=False)
    scores = found.choice.mean
    for given in (found, out, fedax.load_sweep(out)):
        table = fedax.table(given, "train_loss")
        (cell,) = table.columns[0].cells
        assert cell.mean == pytest.approx(scores.min(), rel=1e-12)
        assert table.seeds == [2]
        assert any("client_learning_rate=0.01 is the best of 3" in note
                   for note in table.notes)
        every = fedax.table(given, "train_loss", all_settings=True)
        assert every.settings == {"client_learning_rate": [0.001, 0.01, 1e300]}
        assert every.columns[0].cells[2].said == "diverged"
        assert [c.mean for c in every.columns[0].cells[:2]] == pytest.approx(scores[:2], rel=1e-12)
    labelled = fedax.table({"tuned": out, "mine": seeds(1.0, 2.0)}, "test_loss")
    assert labelled.methods == ["tuned", "mine"]
    assert str(found.choice).splitlines()[2].split()[:3] == [
        "fedavg", f"{scores.min():.4g}", "±"]


NAMES = ["a_b & 50% #1 $x$ {y} ~z^2 \\cmd", "[1em]", "*", "--grid '' `` \"q\" <a>|b|",
         "\u00e9\u00fc\u00f1\u00e7\u0142\u00df\u015b\u0151\u0105", "\u03b1\u03bb\u03a3\u03bf",
         "\u4e2d\U0001f600\u202e\x1b[2J\n", "\u00b1\u2264\u2026\u221e", "\\end{document}", "%", ""]


@pytest.mark.quick
def test_latex_compiles_whatever_names_hold(tmp_path):
    rows = {name: seeds(10.0**-place, 0.5) for place, name in enumerate(NAMES)}
    text = fedax.table(rows, target=0.4, significance="t-test").latex()
    assert text.isascii()
    body = text.split(r"\midrule")[1].split(r"\bottomrule")[0].strip().splitlines()
    assert len(body) == len(NAMES)
    for line in body:
        bare = re.sub(r"\\[\\&%$#_{}~]", "", line)
        assert bare.count("&") == 4
        assert bare.count("{") == bare.count("}")
        assert bare.count("$") % 2 == 0
        assert not re.search(r"[%#~]|^\s*[\[*]", bare)
    assert text.count("{document}") == 0
    if shutil.which("pdflatex"):  # which a machine that only tests need not have
        (tmp_path / "all.tex").write_text(
            "\\documentclass{article}\n\\usepackage{booktabs}\n\\begin{document}\n"
            f"{text}\n\\end{{document}}\n")
        done = subprocess.run(
            ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "all.tex"],
            cwd=tmp_path, capture_output=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:]


@pytest.mark.quick
def test_letters_for_latex():
    assert latex_text("\u00e9 \u012b \u03b2 \u4e2d") == r"\'{e} \={\i} $\beta$ U+4E2D"
    assert latex_text("a--b") == "a-{-}b"


@pytest.mark.quick
def test_markdown_and_csv_hold_names_as_they_are():
    rows = {"=1+1|x": seeds(1.0), "my_method": seeds(2.0), "<b>*x*": seeds(3.0)}
    table = fedax.table(rows)
    assert [row[0] for row in cells_of(table)[1:]] == [r"=1+1\|x", "my_method", r"\<b\>\*x\*"]
    assert [row["method"] for row in csv.DictReader(io.StringIO(table.csv()))] == [
        "'=1+1|x", "my_method", "<b>*x*"]


@pytest.mark.quick
@pytest.mark.parametrize(("values", "shown"), [
    ((0.01234, 2.5), ["0.01234", "2.50000"]), ((1e-9, 3.0), ["1e-09", "3"]),
    ((12345.6, 2345.6), ["12,346", "2,346"]), ((3e7, 4e7), ["3e+07", "4e+07"]),
    ((-0.25, 0.5), ["-0.2500", "0.5000"]), ((0.0, 0.5), ["0.0000", "0.5000"]),
])
def test_digits_follow_the_numbers(values, shown):
    table = fedax.table({"a": seeds(values[0]), "b": seeds(values[1])})
    assert [row[1].strip("*") for row in cells_of(table)[1:]] == shown


@pytest.mark.quick
def test_the_command(folders, tmp_path, capsys):
    words = [str(folder) for folder in folders]
    assert run_command(["table", *words]) == 0
    assert capsys.readouterr().out == f"{fedax.table(folders)}\n"
    assert run_command(["table", *words, "--format", "csv", "--metric", "train_loss"]) == 0
    said = capsys.readouterr()
    assert said.out == f"{fedax.table(folders, 'train_loss').csv()}\n"
    assert "mean over the last 100 rounds" in said.err
    out = tmp_path / "new" / "table.tex"
    assert run_command(["table", *words, "--out", str(out), "--significance", "t-test",
                        "--baseline", "fedavg", "--target", "0.7"]) == 0
    assert out.read_text() == fedax.table(
        folders, significance="t-test", baseline="fedavg", target=0.7).latex() + "\n"
    capsys.readouterr()
    for wrong, status, sentence in (
        ([], 2, "needs one or more folders"), ([*words, "--out", "x.pdf"], 2, "does not end in"),
        ([*words, "--baseline", "fedavg"], 2, "needs --significance"),
        ([*words, "--metric", "auc"], 1, "Unknown metric 'auc' of the runs"),
        ([str(tmp_path / "nothing")], 1, "does not exist"),
    ):
        assert run_command(["table", *wrong]) == status
        assert sentence in capsys.readouterr().err


@pytest.mark.quick
@pytest.mark.parametrize("changes", [
    {"summary.json": '{"rounds": 1, "final": [1]}'},
    {"summary.json": '{"rounds": 1, "final": {"test_accuracy": "high"}}'},
    {"summary.json": '{"rounds": 1, "bytes_up_per_client": {}}'},
    {"config.json": '{"task": "t", "algorithm": "a", "num_rounds": 1, "seed": [1, {}]}'},
    {"diverged.json": "[" * 9000},
])
def test_a_strangers_folder_gives_a_table_or_a_sentence(folders, changes, capsys):
    for name, content in changes.items():
        (folders[0] / name).write_text(content)
    assert run_command(["table", *map(str, folders), "--significance", "t-test"]) in (0, 1)
    assert "defect" not in capsys.readouterr().err


@pytest.mark.quick
def test_the_page_of_several_runs_has_results_before_settings(folders, tmp_path):
    out = tmp_path / "page.html"
    assert run_command(["report", *map(str, folders), "--out", str(out)]) == 0
    page = out.read_text("utf-8")
    assert page.index("<h2>Results</h2>") < page.index("<h2>Curves</h2>")
    assert "<strong>81.00 ± 2.65</strong>" in page
    heads = re.findall(r'<th scope="col"[^>]*>([^<]*)', page[page.index("<h2>Runs</h2>"):])
    assert heads.index("test accuracy") < heads.index("algorithm") < heads.index("seed")
    labels = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])["charts"][0]["labels"]
    assert labels[:3] == [f"fedavg, seed {seed}" for seed in range(3)]


@pytest.mark.quick
def test_clients_own_models_are_among_the_results_however_many_metrics_there_are(
    folders, tmp_path
):
    own = ["test_own_accuracy", "test_own_mean_accuracy", "test_own_worst_tenth_accuracy"]
    several = [f"test_mean_{name}" for name in ("auc", "error", "f1", "loss", "mae", "recall")]
    for folder in folders:
        path = folder / "summary.json"
        summary = json.loads(path.read_text("utf-8"))
        summary["final"] |= dict.fromkeys([*several, *own], 0.5)
        path.write_text(json.dumps(summary))
    out = tmp_path / "page.html"
    assert run_command(["report", *map(str, folders), "--out", str(out)]) == 0
    page = out.read_text("utf-8")
    results = page[page.index("<h2>Results</h2>"):page.index("<h2>Curves</h2>")]
    for name in own:
        assert name.replace("_", " ") in results
    assert "train loss" not in results  # one too many of the others
