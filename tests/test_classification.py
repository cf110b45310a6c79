"""Losses of classification and regression against scikit-learn, optax and NumPy by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn.metrics import log_loss
from sklearn.utils.class_weight import compute_class_weight

import fedax
from fedax.factories import partition
from fedax.mistakes.errors import ModelError
from fedax.models import balanced_class_weights

KEY = jax.random.key(0)
TIGHT = {"rtol": 1e-12, "atol": 1e-12}


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def made(factory=fedax.classification, **options):
    """A model whose outputs are its inputs."""
    return factory(init, apply, **options)


def init(key):
    del key
    return jnp.zeros(1)


def apply(params, x):
    return x + 0 * params.sum()


def mean(pair):
    values, weights = (np.asarray(part) for part in pair)
    return np.average(values, weights=weights)


def log_softmax(z):
    return z - np.log(np.exp(z).sum(1, keepdims=True))


@pytest.mark.quick
def test_class_and_example_weights_are_scikit_learns(rng):
    z, y = rng.normal(size=(40, 4)), rng.integers(0, 4, 40)
    w, a = rng.uniform(size=40), rng.uniform(size=4)
    model = made(class_weights=a, example_weights="w")
    batch = {"x": z, "y": y, "w": w}
    expected = log_loss(y, np.exp(log_softmax(z)), sample_weight=w * a[y], labels=range(4))
    np.testing.assert_allclose(mean(model.loss(jnp.zeros(1), batch, KEY)), expected, **TIGHT)
    hits = model.metrics["accuracy"](jnp.asarray(z), batch)
    np.testing.assert_allclose(mean(hits), np.average(z.argmax(1) == y, weights=w), **TIGHT)


@pytest.mark.parametrize("smoothing", [0.1, 0.5])
def test_smoothed_labels_are_optaxs(rng, smoothing):
    z, y = rng.normal(size=(9, 5)), rng.integers(0, 5, 9)
    values, weights = made(label_smoothing=smoothing).loss(jnp.zeros(1), {"x": z, "y": y}, KEY)
    smooth = optax.smooth_labels(jax.nn.one_hot(y, 5, dtype=float), smoothing)
    np.testing.assert_allclose(values, optax.softmax_cross_entropy(z, smooth), **TIGHT)
    assert (np.asarray(weights) == 1).all()


@pytest.mark.parametrize("shape", [(30,), (30, 1)])
def test_one_logit_is_two_whose_first_is_0(rng, shape):
    z, y, w = rng.normal(size=30), rng.integers(0, 2, 30), rng.uniform(size=30)
    options = {"class_weights": [0.5, 7.0], "example_weights": "w", "label_smoothing": 0.2}
    one = made(activation="sigmoid", **options)
    two = made(**options)
    pair = np.stack([0 * z, z], 1)
    batch = {"x": z.reshape(shape), "y": y, "w": w}
    other = batch | {"x": pair}
    for name in ("accuracy", "loss"):
        np.testing.assert_allclose(
            mean(one.metrics[name](one.outputs(jnp.zeros(1), batch), batch)),
            mean(two.metrics[name](jnp.asarray(pair), other)), **TIGHT,
        )
    for found, expected in zip(
        one.loss(jnp.zeros(1), batch, KEY), two.loss(jnp.zeros(1), other, KEY), strict=True
    ):
        np.testing.assert_allclose(found, expected, **TIGHT)


@pytest.mark.parametrize("dtype", [bool, np.int32, np.float32])
def test_many_labels_by_hand(rng, dtype):
    z, t = rng.normal(size=(20, 3)), rng.integers(0, 2, (20, 3))
    a, e = rng.uniform(size=(2, 3)), rng.integers(0, 3, (20, 3))
    model = made(activation="sigmoid", class_weights=a, example_weights="e", label_smoothing=0.1)
    q = 0.9 * t + 0.05
    losses = q * np.log1p(np.exp(-z)) + (1 - q) * np.log1p(np.exp(z))
    weights = e * np.where(t == 1, a[1], a[0])
    batch = {"x": z, "y": t.astype(dtype), "e": e}
    found = model.loss(jnp.zeros(1), batch, KEY)
    np.testing.assert_allclose(mean(found), np.average(losses, weights=weights), **TIGHT)
    hits = model.metrics["accuracy"](jnp.asarray(z), batch)
    np.testing.assert_allclose(mean(hits), np.average((z > 0) == (t == 1), weights=e), **TIGHT)


@pytest.mark.slow
def test_labels_that_weigh_nothing_may_be_anything(rng):
    z = rng.normal(size=(3, 2))
    for model, y in (
        (made(example_weights="w"), np.array([0, 1, -1])),
        (made(activation="sigmoid", example_weights="w"), np.array([[0, 1], [1, 1], [-1, 9]])),
    ):
        batch = {"x": z, "y": y, "w": np.array([1.0, 2.0, 0.0])}
        model.check(jnp.zeros(1), batch)

        def loss(x, model=model, batch=batch):
            values, weights = model.loss(jnp.zeros(1), batch | {"x": x}, KEY)
            return (values * weights).sum()

        gradient = jax.grad(loss)(jnp.asarray(z))
        assert jnp.isfinite(gradient).all()
        assert (gradient[2] == 0).all()


def test_balanced_weights_are_scikit_learns(rng):
    y = rng.choice(3, 50, p=[0.7, 0.2, 0.1])
    expected = compute_class_weight("balanced", classes=np.arange(3), y=y)
    np.testing.assert_allclose(balanced_class_weights(np.bincount(y)), expected, **TIGHT)
    t = rng.integers(0, 2, (50, 2))
    found = balanced_class_weights(np.stack([(t == 0).sum(0), t.sum(0)]))
    for column in range(2):
        expected = compute_class_weight("balanced", classes=np.arange(2), y=t[:, column])
        np.testing.assert_allclose(found[:, column], expected, **TIGHT)
    with pytest.raises(ValueError, match=r"class 0 is 0.*np.bincount"):
        balanced_class_weights(np.array([0, 1, 1]))


@pytest.mark.parametrize("by_example", [True, False])
def test_masked_regression_by_hand(rng, by_example):
    f, y = rng.normal(size=(2, 12, 3))
    m = rng.integers(0, 2, 12 if by_example else (12, 3)).astype(bool)
    e = rng.uniform(size=12)
    cells = np.broadcast_to(m[:, None] if by_example else m, y.shape)
    expected = 3 * np.average((f - y) ** 2 / 2, weights=cells * e[:, None])
    y = np.where(cells, y, np.nan)
    model = made(fedax.regression, mask="m", example_weights="e")
    batch = {"x": f, "y": y, "m": m, "e": e}

    def loss(x):
        values, weights = model.loss(jnp.zeros(1), batch | {"x": x}, KEY)
        return (values * weights).sum() / weights.sum()

    value, gradient = jax.value_and_grad(loss)(jnp.asarray(f))
    np.testing.assert_allclose(value, expected, **TIGHT)
    assert jnp.isfinite(gradient).all()
    full = made(fedax.regression, mask="m")
    plain = made(fedax.regression)
    batch |= {"m": np.ones_like(m), "y": np.ones_like(y)}
    for found, wanted in zip(
        full.loss(jnp.zeros(1), batch, KEY), plain.loss(jnp.zeros(1), batch, KEY), strict=True
    ):
        np.testing.assert_allclose(found, wanted, **TIGHT)


def test_evaluation_takes_weighted_means_over_and_within_clients(rng):
    sizes, names = (5, 8, 3), "abc"
    clients = {
        name: {
            "x": rng.normal(size=(n, 2)), "y": rng.normal(size=(n, 2)),
            "m": rng.integers(0, 2, (n, 2)).astype(bool),
        }
        for name, n in zip(names, sizes, strict=True)
    }
    clients["c"]["m"][:] = False
    for table in clients.values():
        table["y"][~table["m"]] = 1e6
    model = made(fedax.regression, mask="m")
    data = fedax.FederatedDataset.from_clients(clients)
    each = fedax.evaluate_clients(model, jnp.zeros(1), data, batch_size=4)

    def by_hand(tables):
        errors = np.concatenate([(t["x"] - t["y"])[t["m"]] for t in tables])
        return (errors**2).mean()

    overall = fedax.evaluate(model, jnp.zeros(1), data, batch_size=4)
    np.testing.assert_allclose(overall["loss"], by_hand(clients.values()), **TIGHT)
    for place in range(2):
        np.testing.assert_allclose(
            each["loss"][place], by_hand([clients[names[place]]]), **TIGHT
        )
    assert np.isnan(each["loss"][2])
    task = fedax.Task(model, train=data, test=data)
    result = fedax.train(
        task, fedax.fedavg(task.model, 0.1), num_rounds=2, cohort_size=3, progress=False
    )
    assert np.isfinite(result.history["train_loss"]).all()


@pytest.mark.parametrize(("options", "batch", "words"), [
    ({"activation": "tanh"}, {}, "activation"),
    ({"label_smoothing": 1.0}, {}, "label_smoothing"),
    ({"class_weights": "balanced"}, {}, "balanced_class_weights"),
    ({"class_weights": {0: 1.0, 1: 2.0}}, {}, "dictionary"),
    ({"class_weights": [1.0, -1.0]}, {}, "finite numbers >= 0"),
    ({"class_weights": [1.0, 2.0, 3.0]}, {}, r"shape \[2\]"),
    ({"activation": "sigmoid"}, {}, 'activation="softmax"'),
    ({}, {"x": np.zeros((2, 1))}, 'activation="sigmoid"'),
    ({}, {"x": np.zeros(2)}, 'activation="sigmoid"'),
    ({"example_weights": "w"}, {}, "needs the array 'w'"),
    ({"example_weights": "w"}, {"w": np.zeros((2, 3))}, "example_weights 'w'"),
])
def test_mistakes_are_named_with_their_cure(options, batch, words):
    with pytest.raises((ValueError, TypeError, ModelError), match=words):
        made(**options).loss(
            jnp.zeros(1), {"x": np.zeros((2, 2)), "y": np.array([0, 1])} | batch, KEY
        )


@pytest.mark.parametrize(("options", "arrays", "words"), [
    ({"example_weights": "w"}, {"w": np.array([1.0, -1.0])}, "one is -1"),
    ({"example_weights": "w"}, {"w": np.array([1.0, np.nan])}, "one is nan"),
    ({"activation": "sigmoid"}, {"x": np.zeros(2), "y": np.array([0, 2])}, "one is 2"),
])
def test_data_are_checked_before_the_first_round(options, arrays, words):
    with pytest.raises(ModelError, match=words):
        made(**options).check(
            jnp.zeros(1), {"x": np.zeros((2, 2)), "y": np.array([0, 1])} | arrays
        )


def test_other_class_weights_compile_nothing_again():
    one, two = (partition(made(class_weights=np.array(a)))[1] for a in ([1.0, 2.0], [3.0, 4.0]))
    assert one == two
