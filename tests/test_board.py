"""The board's cells: every method has a row, all are tuned over as many settings, in one way."""

import json

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


@pytest.mark.quick
def test_every_method_has_a_row_or_is_left_out_for_a_reason():
    assert set(board.names()) | set(board_tasks.LEFT_OUT) == {*registry.ALGORITHMS, *board.WRAPPED}
    assert set(board_tasks.OTHERS) <= set(board.names())
    assert all(board_tasks.LEFT_OUT.values())


@pytest.mark.quick
def test_every_method_is_tuned_over_as_many_settings():
    for name in [*board.names(), "test_board.mine"]:
        tried = board.settings(name, TINY)
        assert len(tried) == board_tasks.NUM_SETTINGS
        assert len({json.dumps(one) for one in tried}) == board_tasks.NUM_SETTINGS
        rates = {one["client_learning_rate"] for one in tried}
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
    assert text.count("| fedavg |") == 1
    assert text.count("| test_board.mine |") == 1
    assert "Not run yet: mnist-writers, cifar10, shakespeare." in text


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
    assert board.PAGE.read_text("utf-8") == board.page(cells)
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
