"""Experiments of `elastic2023` and `mime2020`: plans resolve, criteria tell agreement apart."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from fedax.reproductions import elastic2023, mime2020, mime2020_table
from fedax.reproductions.jobs import jobs_of
from fedax.reproductions.results import Results, Trace, traces_of
from fedax.sweeps.record import Record, Setting

ENTRIES = {**elastic2023.EXPERIMENTS, **mime2020.EXPERIMENTS}
PLANS = [
    (name, scale, stand_in)
    for name in ENTRIES for scale in ("small", "paper") for stand_in in (False, True)
]


def made(panel, label, accuracy, loss=1.0, boosted=0.5, values=None, seeds=3):
    """Runs whose curves rise to a final accuracy, with seeds a tenth of a point apart."""
    rounds = [1.0, 2.0, 3.0, 4.0]
    traces = []
    for seed in range(seeds):
        final = {
            "test_accuracy": accuracy / 100 + 0.001 * seed, "train_loss": loss,
            "boosted_share": boosted,
        }
        curves = {
            name: (rounds, [value * share for share in (0.4, 0.7, 0.9, 1.0)])
            for name, value in final.items()
        }
        traces.append(Trace(panel, label, values or {}, seed, 4, 0, final, curves))
    return traces


def diverged(panel, label, seeds=3):
    return [Trace(panel, label, {}, seed, 2, 2, {}, {}) for seed in range(seeds)]


def results_of(name, accuracies, **others):
    """Made-up runs: label -> test accuracy in per cent, in every panel of the small plan."""
    entry = ENTRIES[name]
    plan = entry.plan("small", False) or entry.plan("small", True)
    traces = []
    for part in plan.parts:
        known = {key: of[part.label] for key, of in others.items() if part.label in of}
        traces += made(part.panel, part.label, accuracies[part.label], **known)
    return Results(traces, entry.by, maximise=entry.maximise)


# Label -> accuracies with which every criterion agrees, and with which none does, by hand from the
# sentences of the papers; then what else is measured.
LINES = {"naive": 61.22, "elastic(average)": 61.11, "elastic(momentum)": 61.45}
NO_SGDM = {
    "Server-only SGDm": 60, "FedAvg SGDm": 50, "Mime SGDm": 71, "MimeLite SGDm": 70,
    "Server-only Adam": 62, "FedAvg Adam": 55, "Mime Adam": 72, "MimeLite Adam": 73,
    "FedAvg SGD": 49, "Mime SGD": 61,
}
WRONG_3 = {
    "Server-only SGDm": 60, "FedAvg SGDm": 75, "Mime SGDm": 40, "MimeLite SGDm": 50,
    "Server-only Adam": 62, "FedAvg Adam": 75, "Mime Adam": 40, "MimeLite Adam": 50,
    "FedAvg SGD": 49, "Mime SGD": 61,
}
FIGURE_4 = {
    "Server-only SGDm": 60, "FedAvg SGDm": 50, "Mime SGDm": 71, "C-Mime SGDm": 69,
    "Server-only Adam": 62, "FedAvg Adam": 55, "Mime Adam": 72, "C-Mime Adam": 68,
}
FIGURE_5 = {"Mime SGDm": 80, "SCAFFOLD": 77, "FedProx": 70, "FedAvg SGD": 75}
PLAIN, HEAVY = ({"server_optimizer": text} for text in ("mime_sgd", "mime_sgdm(0.9)"))
TABLE_3 = {
    f"{method} {base}": accuracy
    for method, row in mime2020_table.PUBLISHED["EMNIST62 logistic"].items()
    for base, accuracy in zip(mime2020_table.BASES, row, strict=True)
}
FIGURE_2 = {
    "FedAvg": 50, "FedAvg + elastic": 55, "FedAvgM": 51, "FedAvgM + elastic": 56, "FedProx": 52,
    "FedProx + elastic": 57, "PFNM": 60, "PFNM + elastic": 61, "FedAvg, MLP": 49,
    "FedAvg, MLP + elastic": 50, "PFNM, MLP": 45, "PFNM, MLP + elastic": 46,
}
CASES = {
    "elastic2023-table-1": (
        ({**LINES, "naive, server rate 1.5": 61}, {"loss": {"elastic(momentum)": 0.9}}),
        ({"naive": 60, "elastic(average)": 62, "elastic(momentum)": 59,
          "naive, server rate 1.5": 61}, {"loss": {"elastic(momentum)": 1.1}}),
    ),
    "elastic2023-figure-1": (
        (LINES, {"boosted": {"elastic(average)": 0.9, "elastic(momentum)": 0.7}}),
        (LINES, {"boosted": {"elastic(average)": 0.7, "elastic(momentum)": 0.9}}),
    ),
    "elastic2023-figure-2": (
        (FIGURE_2, {}),
        ({**FIGURE_2, "FedAvg": 60, "FedAvgM": 60, "FedProx": 60, "PFNM": 65, "PFNM, MLP": 65}, {}),
    ),
    "mime2020-figure-3": ((NO_SGDM, {}), (WRONG_3, {})),
    "mime2020-figure-4": (
        (FIGURE_4, {}), ({**FIGURE_4, "C-Mime SGDm": 72, "C-Mime Adam": 73}, {}),
    ),
    "mime2020-figure-5": (
        (FIGURE_5, {"values": {"SCAFFOLD": PLAIN, "FedProx": PLAIN}}),
        ({"Mime SGDm": 60, "SCAFFOLD": 70, "FedProx": 75, "FedAvg SGD": 65},
         {"values": {"SCAFFOLD": HEAVY, "FedProx": HEAVY}}),
    ),
    "mime2020-table-3": (
        (TABLE_3, {}),
        ({label: 60 if "Mime" in label else 70 for label in TABLE_3}, {}),
    ),
}


@pytest.mark.quick
def test_every_entry_has_both_cases():
    assert set(CASES) == set(ENTRIES)


@pytest.mark.quick
@pytest.mark.parametrize("name", CASES)
def test_criteria_tell_agreement_from_disagreement(name):
    agreeing, disagreeing = (results_of(name, of, **others) for of, others in CASES[name])
    entry = ENTRIES[name]
    for results, agrees in ((agreeing, True), (disagreeing, False)):
        outcomes = {one.statement: one.judge(results) for one in entry.criteria(results)}
        assert outcomes
        wrong = [text for text, outcome in outcomes.items() if outcome.agrees is not agrees]
        assert not wrong
        assert all(outcome.measured for outcome in outcomes.values())
    assert all("Agrees if" in one.statement for one in entry.criteria(agreeing))


@pytest.mark.parametrize("name", CASES)
def test_tables_and_figures_of_made_up_runs(name):
    entry, (accuracies, others) = ENTRIES[name], CASES[name][0]
    results = results_of(name, accuracies, **others)
    for table in entry.tables(results):
        assert table.rows
        assert {len(row) for row in table.rows} == {len(table.headings)}
    if entry.draw is None:
        assert "Table" in entry.source
        return
    figure = Figure()
    entry.draw(figure, results)
    assert all(axes.has_data() for axes in figure.axes)
    assert {axes.get_xlabel() for axes in figure.axes} == {"round"}
    shown = {line.get_label() for axes in figure.axes for line in axes.get_lines()}
    assert shown <= set(accuracies)


@pytest.mark.quick
def test_a_method_that_was_not_run_has_not_diverged():
    """The cell of the table says which it is."""
    entry = ENTRIES["elastic2023-figure-2"]
    results = Results(
        [*made("P", "PFNM", 80), *made("P", "FedAvg", 81), *diverged("P", "FedAvg + elastic")],
        entry.by, maximise=entry.maximise,
    )
    (table,) = entry.tables(results)
    assert table.rows == [["P", "FedAvg", "81.10 ± 0.10", "diverged"],
                          ["P", "PFNM", "80.10 ± 0.10", "not run"]]


@pytest.mark.parametrize("name", CASES)
def test_methods_that_diverged_are_judged_and_drawn(name):
    """The first method of each panel diverged with every setting."""
    entry, (accuracies, others) = ENTRIES[name], CASES[name][0]
    whole = results_of(name, accuracies, **others)
    first = {(panel, whole.labels(panel)[0]) for panel in whole.panels}
    kept = [trace for trace in whole.traces if (trace.panel, trace.label) not in first]
    lost = [trace for panel, label in first for trace in diverged(panel, label)]
    results = Results(lost + kept, entry.by, maximise=entry.maximise)
    assert all(one.judge(results).measured for one in entry.criteria(results))
    assert any("diverged" in cell for table in entry.tables(results)
               for row in table.rows for cell in row)
    if entry.draw is not None:
        entry.draw(Figure(), results)


@pytest.mark.slow
def test_all_plans_resolve_without_data(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDAX_DATA", str(tmp_path))
    for name, scale, stand_in in PLANS:
        plan = ENTRIES[name].plan(scale, stand_in)
        elastic = name.startswith("elastic")
        if (elastic and stand_in) or (not elastic and scale == "small" and not stand_in):
            assert plan is None
            continue
        jobs = list(jobs_of(plan.parts))
        assert len({job.key for job in jobs}) == len(jobs)
        assert all(part.num_seeds >= 3 for part in plan.parts)
        assert set(plan.hours) == set(plan.panels)
        assert len(plan.settings) > 100
        for part in plan.parts:  # every method of a panel trains as long
            same = [job.config for job in jobs if job.part.panel == part.panel]
            assert len({config.num_rounds for config in same}) == 1
            assert len({next(iter(config.bases.values())).cohort_size for config in same}) == 1


def test_on_part_of_the_data_all_is_published_but_the_rounds():
    """Appendix A: 20 clients a round, batches of 20, 10 local epochs; Figure 3 has an MLP."""
    expected = {
        "MNIST by writers for EMNIST62": ("mnist-writers", "logistic", 1000),
        "femnist-328 (300 rounds) for EMNIST62": ("femnist-328", "mlp", 300),
        "cifar100-resplit (40 rounds) for CIFAR100": ("cifar100-resplit", "resnet20", 40),
        "MNIST by writers for EMNIST62 logistic": ("mnist-writers", "logistic", 1000),
        "femnist-328 for EMNIST62 logistic": ("femnist-328", "logistic", 1000),
        "femnist-328 (60 rounds) for EMNIST62 CNN": ("femnist-328", "cnn", 60),
    }
    found = {}
    for name in ("mime2020-figure-3", "mime2020-table-3"):
        for job in jobs_of(ENTRIES[name].plan("paper", True).parts):
            base = next(iter(job.config.bases.values()))
            found[job.part.panel] = (base.task, base.task_options["model"], base.num_rounds)
            assert base.cohort_size == 20
            if not job.part.label.startswith("Server-only"):
                options = base.algorithm_options
                assert (options["batch_size"], options["num_local_epochs"]) == (20, 10)
    assert found == expected


def test_figures_share_their_runs():
    keys = {
        name: {job.key for job in jobs_of(
            (ENTRIES[name].plan("small", False) or ENTRIES[name].plan("small", True)).parts
        )} for name in ENTRIES
    }
    assert keys["elastic2023-figure-1"] < keys["elastic2023-table-1"]
    # FedAvg, and elastic over it by momentum, with 3 of 5 seeds on two tasks.
    assert len(keys["elastic2023-table-1"] & keys["elastic2023-figure-2"]) == 12
    assert len(keys["mime2020-figure-3"] & keys["mime2020-figure-4"]) == 18
    assert len(keys["mime2020-figure-3"] & keys["mime2020-figure-5"]) == 12


@pytest.mark.quick
def test_published_numbers_are_the_papers():
    """Table 1 of Chen et al. 2023 and Table 3 of Karimireddy et al. 2020, as printed."""
    text = "55.39 55.49 58.74 61.22 61.11 61.45"
    found = [*elastic2023.PUBLISHED_TRAIN.values(), *elastic2023.PUBLISHED_TEST.values()]
    assert found == [float(word) for word in text.split()]
    logistic = "66.0 66.8 67.5 67.2 67.3 68.0 66.1 67.3 68.0"
    cnn = "84.9 85.4 85.7 86.0 85.6 86.0 85.0 85.4 85.7"
    for row, text in zip(mime2020_table.PUBLISHED.values(), (logistic, cnn), strict=True):
        assert [number for cells in row.values() for number in cells] == [
            float(word) for word in text.split()
        ]
    assert [10.0 ** power for power in range(1, -6, -1)] == mime2020.GRID


@pytest.mark.quick
@pytest.mark.parametrize(("rounds", "last"), [(2, 1), (100, 34), (300, 100), (500, 100)])
def test_final_values_are_of_the_last_hundred_rounds_or_third(rounds, last):
    values = np.zeros((1, rounds))
    values[0, -last:] = 1
    record = Record(
        (Setting(0, "fedavg", {}),), np.zeros(1, int), np.zeros(1, int), np.zeros(1, int),
        np.array([rounds]), {"test_exact": values, "test_wider": 1 - values},
    )
    (trace,) = traces_of("panel", "label", record)
    assert (trace.final["test_exact"], trace.final["test_wider"]) == (1, 0)
