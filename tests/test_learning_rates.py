"""The page on client and server rates says what its results say."""

from pathlib import Path

import numpy as np
import pytest

import learning_rates

ROOT = Path(__file__).parents[1]


@pytest.mark.quick
@pytest.mark.parametrize("data", ["plays", "mnist"])
def test_the_tables_are_those_of_the_results(data):
    said = learning_rates.page(ROOT / "docs" / "notebook" / f"learning-rates-{data}.csv")
    assert said in (ROOT / "docs" / "notebook" / "learning-rates.md").read_text("utf-8")


def test_what_is_good_what_is_left_out_and_what_falls():
    """Of 100, 96 and 95 are good, 94 is not; a client rate that hardly trains is left out."""
    mean = np.array([[10, 15, 5, 0], [20, 96, 60, 94], [95, 100, 80, -np.inf]], float)
    table = learning_rates.Table(np.array([0.1, 1, 10]), np.array([1, 2, 3, 4]), mean, mean)
    assert table.trained.tolist() == [0, 1, 2]
    assert table.good_share == 3 / 12
    assert table.good_servers == (1 + 2 + 2) / 3  # of 15: 15; of 96: 96, 94; of 100: 100, 95
    assert table.best_servers.tolist() == [2, 2, 2]
    assert not table.falls
    mean[0] = 9, 5, 9.5, 0  # nearer than a tenth of 100 to the worst, 0
    mean[1, 3] = 97
    assert table.trained.tolist() == [1, 2]
    assert table.best_servers.tolist() == [4, 2]
    assert table.falls
