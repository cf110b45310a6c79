"""Mean absolute error, root mean square error and R squared, beside scikit-learn."""

import numpy as np
import pytest
from sklearn import metrics

from fedax import scores
from fedax.mistakes.errors import ModelError
from fedax.models.scoring import Folded

pytestmark = pytest.mark.quick


def drawn(count=200):
    """Predictions, labels far from zero, and weights, of which some are zero."""
    rng = np.random.default_rng(3)
    labels = 1e5 + rng.normal(size=count)
    return labels + rng.normal(size=count) / 2, labels, rng.integers(0, 4, count).astype(float)


@pytest.mark.parametrize(("score", "reference"), [
    (scores.mae(), metrics.mean_absolute_error), (scores.r2(), metrics.r2_score),
    (scores.rmse(), lambda *of, **given: metrics.mean_squared_error(*of, **given) ** 0.5),
])
@pytest.mark.parametrize("column", [False, True])
def test_as_in_scikit_learn(score, reference, column):
    guess, labels, weights = drawn()
    found = score(guess[:, None] if column else guess, labels, weights)
    assert found == pytest.approx(reference(labels, guess, sample_weight=weights), rel=1e-12)


def test_scale_gives_the_labels_own_unit():
    guess, labels, weights = drawn()
    for score in (scores.mae, scores.rmse):
        small = score(7.0)(guess / 7, labels / 7, weights)
        assert small == pytest.approx(score()(guess, labels, weights), rel=1e-12)


def test_sums_of_parts_are_those_of_all():
    guess, labels, weights = drawn()
    for score in (scores.mae(), scores.rmse()):
        assert isinstance(score, Folded)
        parts = sum(score.statistics(guess[part], labels[part], weights[part])
                    for part in (slice(0, 50), slice(50, 200)))
        assert score.value(parts) == pytest.approx(score(guess, labels, weights), rel=1e-13)


def test_undefined_and_refused():
    nothing, one = np.zeros(0), np.ones(1)
    for score in (scores.mae(), scores.rmse(), scores.r2()):
        assert np.isnan(score(nothing, nothing, nothing))
        with pytest.raises(ModelError, match=r"outputs have the shape \[1, 2\]"):
            score(np.ones((1, 2)), one, one)
    assert np.isnan(scores.r2()(np.arange(3.0), np.ones(3), np.ones(3)))
    with pytest.raises(ValueError, match="scale"):
        scores.mae(0.0)
