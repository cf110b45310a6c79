"""The page on clients of few labels says what its results say."""

from pathlib import Path

import pytest

import label_skew

ROOT = Path(__file__).parents[1]
# The data set on which a model's rates were searched for both.
SEARCHED_ON = {"cnn": "mnist"}


@pytest.mark.quick
def test_the_tables_are_those_of_the_results():
    rows = label_skew.read(ROOT / "docs" / "notebook" / "label-skew.jsonl")
    page = (ROOT / "docs" / "notebook" / "label-skew.md").read_text("utf-8")
    assert label_skew.page(rows).strip() in page


def test_the_rates_are_the_best_of_the_search():
    rows = label_skew.read(ROOT / "docs" / "notebook" / "label-skew.jsonl")
    kept = [row for row in rows if row["seed"]]
    assert len(kept) == 6 * 7 * 3
    for row in kept:
        tried = [
            other for other in rows
            if not other["seed"] and all(other[k] == row[k] for k in ("model", "method"))
            and other["dataset"] in (row["dataset"], SEARCHED_ON.get(row["model"]))
        ]
        assert row["rates"] == min(tried, key=lambda other: other["loss"])["rates"]
