"""The page on robust means under attack says what its results say."""

from pathlib import Path

import pytest

import attacks as script

pytestmark = pytest.mark.quick

NOTEBOOK = Path(__file__).parents[1] / "docs" / "notebook"
ROWS = script.read(NOTEBOOK / "robustness.jsonl")


def test_the_tables_are_those_of_the_results():
    assert len(ROWS) == len(script.DATA) * len(script.ATTACKS) * len(script.RULES)
    assert all(len(row["accuracy"]) == script.SEEDS for row in ROWS)
    page = (NOTEBOOK / "robustness.md").read_text("utf-8")
    assert script.page(ROWS).strip() in page
    found = list(script.verdicts(ROWS))
    assert f"all {len(found)} are met" in page
    assert all(met for _, _, met in found)


@pytest.mark.parametrize("attack", [name for name in script.ATTACKS if name != "none"])
def test_the_criteria_see_what_they_are_about(attack):
    """A rule that collapses fails its criteria; a mean that holds fails the mean's."""
    changed = [
        row | {"accuracy": [10.0] * 3 if row["rule"] != "mean" else [86.0] * 3}
        if (row["attack"], row["data"]) == (attack, "alike") else row for row in ROWS
    ]
    failed = {words for words, _, met in script.verdicts(changed) if not met}
    expected = {rule for rule, claimed in script.CLAIMED.items() if attack in claimed}
    assert {rule for rule in script.CLAIMED if any(f"`{rule}` withstands" in w for w in failed)} \
        == expected
    assert any("the mean breaks" in words for words in failed) == (attack in script.LONG)


def test_an_attack_that_breaks_nothing_is_seen():
    changed = [
        row | {"accuracy": [80.0] * 3} if row["data"] == "two labels" else row for row in ROWS
    ]
    failed = [words for words, _, met in script.verdicts(changed) if not met]
    assert len(failed) == len(script.BREAKS)
