"""The Shakespeare model: its size, its loss by hand, and padding that never counts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedax.algorithm import Array, Batch, Params, PyTree
from fedax.models import character_lstm

MODEL = character_lstm(num_units=6, num_layers=2, embedding_size=3, vocabulary_size=11)


@functools.cache
def draw_params(dtype: str = "float64") -> Params:
    """Initial parameters, scaled so that the logits are far from uniform."""
    params = jax.jit(MODEL.init)(jax.random.key(7))
    return jax.tree.map(lambda array: 3 * array.astype(dtype), params)


def draw_tokens(num_sequences: int = 4, num_tokens: int = 9) -> np.ndarray:
    random = np.random.default_rng(1)
    return random.integers(1, 11, size=(num_sequences, num_tokens)).astype(np.uint8)


def batch_of(tokens: np.ndarray) -> Batch:
    return {"tokens": jnp.asarray(tokens)}


def mean_loss(params: Params, batch: Batch) -> Array:
    losses, weights = MODEL.loss(params, batch, jax.random.key(0))
    return (losses * weights).sum() / weights.sum()


LOSS = jax.jit(MODEL.loss)
OUTPUTS = jax.jit(MODEL.outputs)
VALUE_AND_GRADIENT = jax.jit(jax.value_and_grad(mean_loss))


def assert_same(actual: PyTree, expected: PyTree, tolerance: float = 1e-12) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=tolerance), actual, expected)


@pytest.mark.quick
def test_number_of_parameters():
    # Embedding 90 x 8; per layer 4 gates x 256 units x (inputs + 256 + 1 bias); dense 257 x 90.
    expected = 90 * 8 + 4 * 256 * (8 + 256 + 1) + 4 * 256 * (256 + 256 + 1) + 257 * 90
    shapes = jax.eval_shape(character_lstm().init, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == expected == 820_522
    assert all(leaf.dtype == "float32" for leaf in jax.tree.leaves(shapes))


def test_initial_values_follow_keras():
    params = jax.jit(character_lstm(num_units=16, num_layers=1).init)(jax.random.key(0))
    largest = float(jnp.abs(params["embedding"]).max())
    assert 0.045 < largest <= 0.05
    np.testing.assert_array_equal(params["output"]["bias"], 0)
    limit = np.sqrt(6 / (16 + 90))
    assert 0.99 * limit < float(jnp.abs(params["output"]["kernel"]).max()) <= limit


@pytest.mark.slow
def test_loss_and_metrics_by_hand():
    params, tokens = draw_params(), draw_tokens()
    tokens[0, 5:] = 0
    tokens[1, 3] = 0  # Padding inside a sequence is no target either.
    tokens[2] = 0
    batch = batch_of(tokens)
    logits = np.asarray(OUTPUTS(params, batch))
    assert logits.shape == (4, 8, 11)
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    expected_loss, expected_accuracy, expected_weights = np.zeros((3, 4))
    for b in (0, 1, 3):
        targets = [(t, tokens[b, t + 1]) for t in range(8) if tokens[b, t + 1] != 0]
        expected_weights[b] = len(targets)
        expected_loss[b] = -np.mean([np.log(probabilities[b, t, y]) for t, y in targets])
        expected_accuracy[b] = np.mean([np.argmax(logits[b, t]) == y for t, y in targets])
    outputs = jnp.asarray(logits)
    np.testing.assert_array_equal(expected_weights, [4, 7, 0, 8])
    assert_same(LOSS(params, batch, jax.random.key(0)), (expected_loss, expected_weights))
    assert_same(MODEL.metrics["loss"](outputs, batch), (expected_loss, expected_weights))
    assert_same(MODEL.metrics["accuracy"](outputs, batch), (expected_accuracy, expected_weights))


@pytest.mark.quick
def test_outputs_are_causal():
    params, tokens = draw_params(), draw_tokens()
    changed = tokens.copy()
    changed[:, 5] = changed[:, 5] % 10 + 1
    before, after = (OUTPUTS(params, batch_of(t)) for t in (tokens, changed))
    np.testing.assert_array_equal(before[:, :5], after[:, :5])
    assert float(jnp.abs(before[:, 5:] - after[:, 5:]).max()) > 1e-3


@pytest.mark.parametrize("padding", ["appended tokens", "appended sequence"])
def test_padding_changes_neither_loss_nor_gradient(padding: str):
    params, tokens = draw_params(), draw_tokens()
    axes = [(0, 0), (0, 4)] if padding == "appended tokens" else [(0, 2), (0, 0)]
    padded = np.pad(tokens, axes)
    expected = VALUE_AND_GRADIENT(params, batch_of(tokens))
    assert_same(VALUE_AND_GRADIENT(params, batch_of(padded)), expected)


def test_padding_comparison_notices_an_ordinary_token():
    params, tokens = draw_params(), draw_tokens()
    longer = np.pad(tokens, [(0, 0), (0, 1)], constant_values=1)
    (before, _), (after, _) = (VALUE_AND_GRADIENT(params, batch_of(t)) for t in (tokens, longer))
    assert abs(float(after - before)) > 1e-3


def test_a_sequence_of_padding_has_no_loss_no_weight_and_no_gradient():
    params, batch = draw_params(), batch_of(np.zeros((2, 9), np.uint8))
    losses, weights = LOSS(params, batch, jax.random.key(0))
    np.testing.assert_array_equal(jnp.stack([losses, weights]), 0)
    gradient = jax.jit(jax.grad(lambda p: MODEL.loss(p, batch, jax.random.key(0))[0].sum()))(params)
    for leaf in jax.tree.leaves(gradient):
        np.testing.assert_array_equal(leaf, 0)


def test_gradient_equals_finite_differences():
    params, tokens = draw_params(), draw_tokens()
    tokens[0, 5:] = 0
    batch = batch_of(tokens)
    random = np.random.default_rng(2)
    direction = jax.tree.map(lambda array: jnp.asarray(random.normal(size=array.shape)), params)

    def along(step: float) -> float:
        moved = jax.tree.map(lambda a, d: a + step * d, params, direction)
        return float(VALUE_AND_GRADIENT(moved, batch)[0])

    _, gradient = VALUE_AND_GRADIENT(params, batch)
    products = jax.tree.map(lambda g, d: float((g * d).sum()), gradient, direction)
    slope = sum(jax.tree.leaves(products))
    # Central differences: error of order step^2 = 1e-10 and rounding of 1e-16/step = 1e-11.
    np.testing.assert_allclose((along(1e-5) - along(-1e-5)) / 2e-5, slope, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("token_dtype", ["uint8", "int32", "int64"])
def test_dtypes_follow_the_parameters(dtype: str, token_dtype: str):
    def everything(params: Params, batch: Batch) -> PyTree:
        outputs = MODEL.outputs(params, batch)
        values = [metric(outputs, batch) for metric in MODEL.metrics.values()]
        loss = MODEL.loss(params, batch, jax.random.key(0))
        return outputs, values, loss, jax.grad(mean_loss)(params, batch)

    batch = batch_of(draw_tokens().astype(token_dtype))
    shapes = jax.eval_shape(everything, draw_params(dtype), batch)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(shapes)} == {dtype}


@pytest.mark.slow
def test_vmap_over_clients_in_a_loop_equals_one_client_at_a_time():
    tokens = draw_tokens(num_sequences=12).reshape(3, 2, 2, 9)  # clients, steps, B, T + 1

    def train(client_tokens: Array) -> Params:
        def step(params: Params, batch_tokens: Array) -> tuple[Params, None]:
            gradient = jax.grad(mean_loss)(params, {"tokens": batch_tokens})
            return jax.tree.map(lambda a, g: a - 0.1 * g, params, gradient), None

        return jax.lax.scan(step, draw_params(), client_tokens)[0]

    together = jax.jit(jax.vmap(train))(jnp.asarray(tokens))
    train_alone = jax.jit(train)
    for client in range(3):
        alone = train_alone(jnp.asarray(tokens[client]))
        assert_same(jax.tree.map(lambda leaf, c=client: leaf[c], together), alone)


@pytest.mark.parametrize(
    "sizes",
    [{"num_units": 0}, {"num_layers": 0}, {"embedding_size": 0}, {"vocabulary_size": 1}],
)
def test_rejects_empty_models(sizes: dict[str, int]):
    with pytest.raises(ValueError, match="must be at least 1"):
        character_lstm(**sizes)
