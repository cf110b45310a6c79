"""The papers' metrics, against plain loops over made-up outputs."""

import jax.numpy as jnp
import numpy as np
import pytest

from fedax import ModelError, classification
from fedax.models.metrics import mean_squared_error, recall_at, token_accuracy

pytestmark = pytest.mark.quick


def mean(measured):
    values, weights = (np.asarray(part) for part in measured)
    return float((values * weights).sum() / weights.sum())


@pytest.mark.parametrize("left_out", [(), (11,), (11, 13)], ids=["padding", "oov", "oov and end"])
def test_accuracy_counts_the_targets_that_the_paper_counts(left_out):
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, 14, (6, 9)).astype(np.int32)
    for row, end in zip(tokens, (9, 3, 5, 9, 2, 7), strict=True):
        row[end:] = 0
    logits = rng.normal(size=(6, 8, 14))
    hits, count = 0, 0
    for row, scores in zip(tokens, logits, strict=True):
        for target, score in zip(row[1:], scores, strict=True):
            if target == 0 or target in left_out:
                continue
            count += 1
            hits += int(np.argmax(score) == target)
    assert 0 < hits < count
    measured = token_accuracy(left_out)(jnp.asarray(logits), {"tokens": jnp.asarray(tokens)})
    assert mean(measured) == pytest.approx(hits / count, rel=1e-12)


def test_recall_is_that_of_all_tags_together():
    rng = np.random.default_rng(1)
    scores = rng.normal(size=(7, 12))
    tags = np.full((7, 5), -1, np.int32)
    for row, many in zip(tags, (1, 5, 2, 0, 3, 1, 4), strict=True):
        row[:many] = rng.choice(12, many, replace=False)
    found = of = 0
    for score, row in zip(scores, tags, strict=True):
        best = set(np.argsort(-score)[:5].tolist())
        own = {int(tag) for tag in row if tag >= 0}
        found, of = found + len(best & own), of + len(own)
    values, weights = recall_at(5)(jnp.asarray(scores), {"tags": jnp.asarray(tags)})
    assert mean((values, weights)) == pytest.approx(found / of, rel=1e-12)
    assert float(values[3]) == float(weights[3]) == 0.0  # no tags: no NaN, no weight


def test_labels_stored_in_few_bits_are_not_mistaken_for_others():
    """Label 300 is none that 8 bits hold, modulo 256 it is 44."""
    scores = jnp.zeros((1, 301)).at[0, 300].set(1.0)
    values, weights = recall_at(1)(scores, {"tags": jnp.array([[44, -1]], jnp.int8)})
    assert (values.tolist(), weights.tolist()) == ([0.0], [1.0])
    labelled = classification(lambda key: (), lambda params, x: x)
    hits, _ = labelled.metrics["accuracy"](scores, {"y": jnp.array([44], jnp.uint8)})
    assert hits.tolist() == [0.0]
    batch = {"tokens": jnp.array([[1, 44]], jnp.uint8)}
    values, weights = token_accuracy((299,))(scores[:, None], batch)
    assert (values.tolist(), weights.tolist()) == ([0.0], [1.0])


def test_recall_needs_as_many_scores():
    with pytest.raises(ModelError, match="at least 5 labels"):
        recall_at(5)(jnp.zeros((2, 4)), {"tags": jnp.zeros((2, 1), int)})


def test_squared_error_of_images():
    x = np.arange(16.0).reshape(2, 2, 2, 2) / 16
    f = np.full((2, 8), 0.25)
    measured = mean_squared_error()(jnp.asarray(f), {"x": jnp.asarray(x)})
    assert mean(measured) == pytest.approx(np.square(f - x.reshape(2, 8)).mean(), rel=1e-12)
    with pytest.raises(ModelError, match="does not fit the targets"):
        mean_squared_error()(jnp.asarray(f[:, :7]), {"x": jnp.asarray(x)})
