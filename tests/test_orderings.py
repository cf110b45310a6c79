"""Orderings that papers claim: the page is that of the results, by the criteria in the script."""

import jax
import numpy as np
import pytest

import board
import fedax
import ordering_parts
import orderings
from fedax.algorithms import registry

pytestmark = pytest.mark.quick


def test_the_page_is_of_the_results():
    rows = board.known(orderings.RESULTS)
    assert orderings.PAGE.read_text("utf-8") == orderings.page(rows)
    assert {row["method"] for row in rows} <= set(orderings.ORDERINGS)


@pytest.mark.parametrize("name", orderings.ORDERINGS)
def test_both_sides_have_as_many_settings_and_keep_within_them(name):
    one = orderings.ORDERINGS[name]
    assert one.first.name == name.partition("-")[0]
    assert {one.first.name, one.second.name} <= {*registry.ALGORITHMS, "personal", "lora"}
    for side in (one.first, one.second):
        assert len(orderings.settings(side)) == orderings.NUM_SETTINGS
    for row in board.known(orderings.RESULTS):
        if row["method"] == name:
            for side, result in zip((one.first, one.second), row["sides"], strict=True):
                assert result["best"] in orderings.settings(side)
                assert list(result["values"]) == [c.metric for c in one.conditions]


def row(first, second):
    return {"sides": [{"values": first}, {"values": second}]}


@pytest.mark.parametrize(("worst", "mean", "said"), [
    ([0.1, 0.1, 0.1], [0.0, 0.0, 0.0], "agrees"),
    ([0.1, 0.1, 0.1], [-0.02, -0.02, -0.01], "agrees"),
    ([0.1, 0.1, 0.1], [-0.03, -0.03, -0.01], "disagrees"),
    ([0.1, 0.1, -0.01], [0.0, 0.0, 0.0], "inconclusive"),
    ([0.001, 0.001, 0.001], [0.0, 0.0, 0.0], "inconclusive"),
    ([-0.1, -0.1, -0.1], [0.0, 0.0, 0.0], "disagrees"),
    ([0.1, 0.1, None], [0.0, 0.0, None], "inconclusive"),
])
def test_a_verdict_needs_all_seeds_and_the_least_difference(worst, mean, said):
    def above(base, more):
        return [None if by is None else base + by for by in more]

    found = row(
        {"worst tenth": above(0.5, worst), "mean accuracy": above(0.75, mean)},
        {"worst tenth": [0.5] * 3, "mean accuracy": [0.75] * 3},
    )
    assert orderings.verdict("qfedavg", found) == said


def test_lower_is_better_where_the_claim_says_so():
    fewer, more = {"rounds": [5.0, 6.0, 7.0]}, {"rounds": [8.0, 7.0, 9.0]}
    assert orderings.verdict("feddyn", row(fewer, more)) == "agrees"
    assert orderings.verdict("feddyn", row(more, fewer)) == "disagrees"


def tiny(count):
    """Clients of 200 white images whose first pixel is black."""
    x = np.ones((200, 2, 2, 1), np.float32)
    x[:, 0, 0] = 0
    one = {"x": x, "y": np.full(200, 3, np.int32)}
    return fedax.FederatedDataset.from_clients({str(number): one for number in range(count)})


def test_a_quarter_of_annotators_errs_in_each_share_and_test_data_are_clean():
    task = fedax.load_task("digits", "mlp")._replace(train=tiny(8), test=tiny(8))
    changed = ordering_parts.noisy(task, 1)
    for number in range(8):
        wrong = np.mean(changed.train.client_at(number)["y"] != 3)
        assert wrong == pytest.approx(0.9 * (0.0, 0.2, 0.4, 1.0)[number % 4], abs=0.08)
    assert changed.test is task.test


def test_images_are_turned_by_a_quarter_for_each_client_in_all_parts():
    task = fedax.load_task("digits", "mlp")._replace(train=tiny(5), test=tiny(5))
    changed = ordering_parts.rotated(task, 1)
    for data in (changed.train, changed.test):
        corners = [tuple(np.argwhere(data.client_at(n)["x"][0, :, :, 0] == 0)[0]) for n in range(5)]
        assert corners == [(0, 0), (1, 0), (1, 1), (0, 1), (0, 0)]


def test_the_regulariser_adds_its_gradient():
    task = fedax.load_task("digits", "logistic")
    model = ordering_parts.regularised(task, 0).model
    params = jax.tree.map(np.ones_like, task.model.init(jax.random.key(0)))
    batch = {name: np.asarray(rows[:4]) for name, rows in task.train.client_at(0).items()}
    key = jax.random.key(1)
    more = model.loss(params, batch, key)[0] - task.model.loss(params, batch, key)[0]
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    np.testing.assert_allclose(more, ordering_parts.L2 / 2 * size, rtol=1e-6)
