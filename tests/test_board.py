"""The board's cells: every method has a row, all are tuned over as many settings, in one way."""

import json
import sys

import numpy as np
import pytest

import board
import board_page
import board_tasks
import fedax
from fedax.algorithms import registry

TINY = board.TASKS["digits"]._replace(rounds=20, target=0.5)


def mine(model, client_learning_rate, server_learning_rate=1.0, **training):
    """A user's method."""
    return fedax.fedavg(model, client_learning_rate, server_learning_rate, **training)


def plain(model, client_learning_rate):
    """A user's method without any other setting."""
    return fedax.fedavg(model, client_learning_rate, num_local_steps=1)


@pytest.mark.quick
def test_every_method_has_a_row_or_is_left_out_for_a_reason():
    assert set(board.names()) | set(board_tasks.LEFT_OUT) == {
        *registry.ALGORITHMS, *board.WRAPPED, "local_update_decay"}
    assert set(board_tasks.OTHERS) <= set(board.names())
    assert all(board_tasks.LEFT_OUT.values())


@pytest.mark.quick
def test_every_method_is_tuned_over_as_many_settings():
    for name in [*board.names(), "test_board.mine", "test_board.plain"]:
        tried = board.settings(name, TINY)
        assert len(tried) == board_tasks.NUM_SETTINGS
        assert len({json.dumps(one) for one in tried}) == board_tasks.NUM_SETTINGS
        rates = {one[board_tasks.rate_of(name)] for one in tried}
        centre = board_tasks.base_rate(name, TINY)
        assert min(rates) < centre < max(rates)


def test_each_clients_examples_are_divided_once():
    task, validating = board.loaded(TINY)
    whole = TINY.load().train
    parts = task.train.num_examples, validating.test.num_examples, task.test.num_examples
    assert sum(parts) == whole.num_examples
    assert validating.train is task.train
    assert parts[2] == pytest.approx(0.2 * whole.num_examples, rel=0.03)  # rounded down
    assert list(task.test.client_names) == list(task.train.client_names)


@pytest.mark.slow
@pytest.mark.optimised
def test_a_cell_of_a_method_and_of_a_users_own_are_the_same(monkeypatch, tmp_path):
    """`mine` is FedAvg, so its row is FedAvg's; the table has both, and names what was not run."""
    monkeypatch.setitem(board.TASKS, "digits", TINY)
    path = tmp_path / "cells.jsonl"
    board.main(["train", "digits", "fedavg", "test_board.mine", "--file", str(path)])
    first, second = board.known(path)
    assert second["method"] == "test_board.mine"
    for key in ("best", "accuracy", "worst_tenth", "rounds", "near", "bytes_a_round", "tried"):
        assert first[key] == second[key]
    assert first["tried"] == board_tasks.NUM_SETTINGS
    assert not first["own"]
    task, _ = board.loaded(TINY)
    size = 4 * sum(np.size(leaf) for layer in task.model.init(board.jax.random.key(0))
                   for leaf in layer.values())
    assert first["bytes_a_round"] == pytest.approx(2 * TINY.cohort * size, rel=0.02)
    assert all(0.3 < accuracy <= 1 for accuracy in first["accuracy"])
    monkeypatch.setattr(board, "PAGE", tmp_path / "board.md")
    board.main(["table", "--file", str(path)])
    text = (tmp_path / "board.md").read_text("utf-8")
    assert text.count("| fedavg |") == 2  # over all tasks, and on this one
    assert text.count("| test_board.mine |") == 2
    assert "all of mnist-writers; all of cifar10; all of shakespeare." in text


@pytest.mark.slow
@pytest.mark.optimised
def test_a_cell_of_a_method_with_own_models_is_measured_by_them(monkeypatch):
    monkeypatch.setitem(board.TASKS, "digits", TINY._replace(rounds=20))
    monkeypatch.setattr(board, "settings", lambda *_: [{"client_learning_rate": 0.3}])
    found = board.cell("fedrep", "digits")
    assert found["own"]
    assert found["near"] == 1.0
    assert min(found["accuracy"]) > 0.8  # the server's model alone has some 40% here
    assert found["diverged"] == 0


def diverging(*, seeds):
    """`fedax.train`, with which runs of these seeds diverge."""

    def train(task, algorithm, *, seed, **options):
        if seed in seeds:
            raise fedax.DivergedError("It diverged.")
        return TRAIN(task, algorithm, seed=seed, **options)

    return train


TRAIN = fedax.train


@pytest.mark.parametrize(("seeds", "said", "diverged"), [
    ((0, 1, 2, 3), "all settings diverged", 1), ((2,), "1 of 3 seeds diverged", 0),
])
def test_what_diverges_is_recorded(monkeypatch, tmp_path, capsys, seeds, said, diverged):
    """All settings of the tuning seed, or a final seed: a row says so, and the command goes on."""
    monkeypatch.setitem(board.TASKS, "digits", TINY)
    monkeypatch.setattr(board, "settings", lambda *_: [{"client_learning_rate": 0.3}])
    monkeypatch.setattr(fedax, "train", diverging(seeds=seeds))
    path = tmp_path / "cells.jsonl"
    board.main(["train", "digits", "test_board.mine", "fedavg", "--file", str(path)])
    assert capsys.readouterr().out.count(said) == 2
    cells = board.known(path)
    assert len(cells) == 2
    for one in cells:
        assert one["accuracy"].count(None) == len(set(seeds) - {0})
        assert one["diverged"] == diverged
    better = cells[0] | {"method": "test_board.better", "accuracy": [0.1, 0.1, 0.1],
                         "best": {"client_learning_rate": 0.3}}
    shown = list(board_page.rows([*cells, better]))[2:]
    assert "test_board.better" in shown[0]
    assert all(f"| {said} |" in row for row in shown[1:])
    assert json.loads(path.read_text("utf-8").splitlines()[0], parse_constant=pytest.fail)


@pytest.mark.quick
def test_the_page_is_of_the_cells():
    cells = board.known(board_tasks.CELLS)
    assert board.PAGE.read_text("utf-8") == board.page(cells, board.known(board.AGAIN))
    assert {one["method"] for one in cells if one["task"] == "digits"} == set(board.names())
    assert all(one["tried"] == board_tasks.NUM_SETTINGS for one in cells)


@pytest.mark.quick
def test_the_table_says_where_a_seed_does_not_reach_the_target():
    one = {"task": "digits", "method": "fedavg", "best": {"client_learning_rate": 0.03},
           "tried": 12, "diverged": 1, "near": 0.25, "bytes_a_round": 10**6,
           "accuracy": [0.8, 0.9, 1.0], "worst_tenth": [0.5, 0.5, 0.5],
           "rounds": [3, None, 5], "own": False}
    (row,) = list(board_page.rows([one]))[2:]
    assert row == ("| fedavg | 90.0 ± 10.0 | 50.0 ± 0.0 | - | - | 25% | 1 of 12 | "
                   "client_learning_rate 0.03 (edge) |")
    (row,) = list(board_page.rows([one | {"rounds": [3, 4, 5], "own": True}]))[2:]
    assert "| fedavg (own) |" in row
    assert "| 4 | 4 |" in row


def made(task, method, *accuracies, **changes):
    """A cell with these accuracies."""
    rate = "client_learning_rate" if "." in method else board_tasks.rate_of(method)
    return {
        "task": task, "method": method, "best": {rate: 0.3}, "tried": 12,
        "diverged": 0, "near": 0.25, "bytes_a_round": 10**6, "accuracy": list(accuracies),
        "worst_tenth": [0.5] * 3, "rounds": [3, 4, 5], "own": False, **changes,
    }


LOST = {"best": None, "worst_tenth": [None] * 3, "rounds": [None] * 3, "diverged": 12, "near": 0.0}


@pytest.mark.quick
def test_the_page_begins_with_all_tasks_and_says_which_rows_are_missing():
    whole = [made("digits", name, 0.5, 0.5, 0.5) for name in board.names() if name != "scaffold"]
    cells = [
        *whole, made("digits", "scaffold", 0.6, 0.7, 0.8), made("cifar10", "fedavg", 0.4, 0.4, 0.4),
        made("cifar10", "scaffold", 0.3, 0.4, 0.2),
        made("cifar10", "fedprox", None, None, None, **LOST),
        made("cifar10", "test_board.mine", 0.4, None, 0.4, own=True),
    ]
    text = board.page(cells)
    table = text[text.index("## All tasks"):text.index("## digits")]
    assert [line for line in table.splitlines() if line.startswith("|")][:6] == [
        "| method | digits | cifar10 |", "|---|---|---|",
        "| fedavg | 2 (-20.0) | 1 |", "| scaffold | 1 | 2 (-10.0) |",
        "| fedprox | 2 (-20.0) | diverged |", "| adaalter | 2 (-20.0) |  |",
    ]
    assert "| test_board.mine (own) |  | diverged |" in table
    (missing,) = (line for line in text.splitlines() if line.startswith("- Not run yet: "))
    of_none, of_some, of_others = missing.removeprefix("- Not run yet: ").split("; ")
    assert (of_none, of_others) == ("all of mnist-writers", "all of shakespeare.")
    assert of_some == "of cifar10 " + ", ".join(
        f"`{name}`" for name in board.names() if name not in {"fedavg", "scaffold", "fedprox"}
    )
    assert "Not run yet" not in board.page([
        made(task, name, 0.5, 0.5, 0.5) for task in board.TASKS for name in board.names()
    ])
    lost = next(line for line in text.splitlines() if "all settings diverged" in line)
    assert lost == "| fedprox | all settings diverged |  | - | - | 0% | 12 of 12 |  |"


@pytest.mark.quick
def test_a_table_of_no_cells_has_no_rows():
    assert list(board_page.overview([]))[1:] == ["| method |  |", "|---|"]


@pytest.mark.quick
def test_a_users_method_is_found_in_the_folder_and_need_not_have_a_server_rate(
    tmp_path, monkeypatch
):
    (tmp_path / "methods_of_mine.py").write_text("from test_board import plain as fedmine\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(tmp_path)])
    task = fedax.load_task("digits", "mlp")
    options = board.settings("methods_of_mine.fedmine", TINY)
    assert [set(one) for one in options] == [{"client_learning_rate"}] * 12
    algorithm = board.build("methods_of_mine.fedmine", TINY, task)(**options[0])
    assert len(algorithm.exchanges) == 1


@pytest.mark.quick
def test_cells_are_drawn_and_judged_by_their_spread(tmp_path, monkeypatch):
    """Means of 0.6 and 0.62 with a standard deviation of 0.1; of 0.6 and 0.8."""
    names = [*board.names()][:14]
    path, ran = tmp_path / "cells.jsonl", []
    path.write_text("".join(
        json.dumps(made("digits", name, 0.5, 0.6, 0.7)) + "\n" for name in names))
    monkeypatch.setattr(board, "AGAIN", tmp_path / "again.jsonl")

    def cell(name, task):
        ran.append(name)
        return made(task, name, *((0.52, 0.62, 0.72) if len(ran) > 1 else (0.7, 0.8, 0.9)))

    monkeypatch.setattr(board, "cell", cell)
    board.main(["again", "--file", str(path)])
    assert len(set(ran)) == 12
    board.main(["again", "--file", str(path)])  # those that are there are not run again
    assert len(ran) == 12
    rows = list(board_page.rerun(board.known(path), board.known(board.AGAIN)))[3:]
    assert rows[0] == f"| digits | {ran[0]} | 60.0 ± 10.0 | 80.0 ± 10.0 | no | yes |"
    assert rows[1] == f"| digits | {ran[1]} | 60.0 ± 10.0 | 62.0 ± 10.0 | yes | yes |"


@pytest.mark.quick
def test_grids_lie_around_each_tasks_rate():
    """Products with the rate of plain SGD are those of digits; what is a rate grows with it."""
    digits, shakespeare = board.TASKS["digits"], board.TASKS["shakespeare"]
    for name in board.names():
        for one, other in zip(
            board.settings(name, digits), board.settings(name, shakespeare), strict=True
        ):
            for key, unit in {**board_tasks.UNITS, board_tasks.rate_of(name): 1}.items():
                if key in one and not (unit == 1 and name in board_tasks.OWN_RATES):
                    expected = one[key] * (shakespeare.rate / digits.rate) ** unit
                    assert other[key] == pytest.approx(expected, rel=0.01)
                elif key in one:
                    assert other[key] == one[key]
