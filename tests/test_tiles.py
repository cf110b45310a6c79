"""Convolution in tiles of columns, and pooling of it, against XLA's own; and dropout by bytes."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import primitives

from fedax.algorithm import Array, PyTree
from fedax.models.convolution import convolution
from fedax.models.dropout import dropout
from fedax.models.image_cnn import image_cnn
from fedax.models.pooling import largest, max_pool, pooled_convolution
from fedax.models.tiles import columns_in_tiles, matrices, pays, side_by_side
from test_convolution import (
    assert_close,
    count,
    derivatives,
    loss,
    normal,
    slow,
    value_and_gradients,
)


def in_tiles(x: Array, kernel: Array, stride: int = 1) -> Array:
    return side_by_side(columns_in_tiles(x, kernel, stride), x.shape[2] - 2)


def slow_pooled(x: Array, kernel: Array, padding: Any = "SAME") -> Array:
    return max_pool(slow(x, kernel, padding=padding))


def num_products(function: Callable, *arguments: PyTree) -> int:
    return count(jax.make_jaxpr(function)(*arguments).jaxpr, primitives.dot_general_p)


@pytest.mark.quick
def test_matrices():
    """sum_q A_qp G_qj B_qk is 1 where k = p + j and else 0, exactly but for the thirds in G."""
    A, B, G = matrices()
    assert (A.shape, B.shape, G.shape) == ((6, 4), (6, 6), (6, 3))
    found = np.einsum("qp,qj,qk->pjk", A, G, B)
    expected = np.zeros((4, 3, 6))
    for p in range(4):
        for j in range(3):
            expected[p, j, p + j] = 1
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-15)
    np.testing.assert_array_equal(8 * A, np.round(8 * A))
    np.testing.assert_array_equal(2 * B, np.round(2 * B))


@pytest.mark.parametrize("width", range(3, 12))  # outputs of one to three tiles, whole and not
@pytest.mark.parametrize(("num_rows", "stride"), [(3, 1), (1, 2), (4, 3)])
def test_value_and_gradients_equal_xla(width, num_rows, stride):
    x, kernel = normal(0, 2, 7, width, 3), normal(1, num_rows, 3, 3, 2)
    actual = value_and_gradients(partial(in_tiles, stride=stride), x, kernel)
    expected = partial(slow, strides=(stride, 1), padding="VALID")
    assert_close(actual, value_and_gradients(expected, x, kernel))


@pytest.mark.parametrize("padding", ["SAME", "VALID", ((1, 0), (2, 3)), ((-1, 0), (0, -2))])
@pytest.mark.parametrize("size", [(1, 7, 9), (2, 6, 14)])
def test_pooled_convolution(size, padding):
    x, kernel = normal(0, *size, 32), normal(1, 3, 3, 32, 32)
    actual = partial(pooled_convolution, padding=padding, implementation="matmul")
    expected = partial(slow_pooled, padding=padding)
    assert_close(value_and_gradients(actual, x, kernel), value_and_gradients(expected, x, kernel))


@pytest.mark.quick
def test_where_tiles_are_used():
    """Six products instead of one, with many channels of four bytes or more, rows of any stride."""
    x, kernel = normal(0, 1, 8, 12, 32), normal(1, 3, 3, 32, 32)
    fast = partial(convolution, implementation="matmul")
    pooled = partial(pooled_convolution, implementation="matmul")
    small = jax.tree.map(lambda leaf: leaf.astype("bfloat16"), (x, kernel))
    assert [num_products(function, x, kernel) for function in (fast, pooled)] == [6, 6]
    assert num_products(partial(fast, strides=(2, 1)), x, kernel) == 6
    assert num_products(partial(fast, strides=(1, 2)), x, kernel) == 1
    assert [num_products(function, *small) for function in (fast, pooled)] == [1, 1]
    assert num_products(fast, x[..., :16], kernel[:, :, :16]) == 1
    assert num_products(fast, x[:, :, :2], kernel) == 1
    assert num_products(partial(pooled_convolution, implementation="xla"), x, kernel) == 0
    # Of 5 columns two tiles are 12 products instead of 15.
    widths = [pays((3, 3, 32, 32), width, 4) for width in (2, 3, 4, 5, 6)]
    assert widths == [False, True, True, False, True]


@pytest.mark.quick
@pytest.mark.parametrize(("x", "kernel", "sentence"), [
    (np.ones((1, 8, 8, 32), "int32"), np.ones((3, 3, 32, 32), "int32"), "same floating point type"),
    (np.ones((1, 8, 8, 32), "float32"), np.ones((3, 3, 32, 32)), "float32 and float64"),
    (np.ones((1, 8, 8, 16)), np.ones((3, 3, 32, 32)), r"got the shapes \[1, 8, 8, 16\]"),
    (np.ones((1, 2, 8, 32)), np.ones((3, 3, 32, 32)), "does not fit"),
])
def test_what_cannot_be_pooled_is_a_sentence(x, kernel, sentence):
    with pytest.raises(ValueError, match=sentence):
        pooled_convolution(x, kernel, "VALID", implementation="matmul")


@pytest.mark.internals
def test_no_images():
    x, kernel = normal(0, 0, 8, 12, 32), normal(1, 3, 3, 32, 32)
    for fast, expected in ((convolution, slow), (pooled_convolution, slow_pooled)):
        actual = value_and_gradients(partial(fast, implementation="matmul"), x, kernel)
        assert_close(actual, value_and_gradients(expected, x, kernel))


@pytest.mark.internals
@pytest.mark.parametrize(("fast", "expected"), [
    (in_tiles, partial(slow, padding="VALID")),
    (partial(pooled_convolution, implementation="matmul"), slow_pooled),
])
def test_derivatives_of_higher_order_forward_and_of_clients(fast, expected):
    """Forward mode, Hessian-vector products both ways, and clients with kernels of their own."""
    x, kernels = normal(0, 3, 2, 5, 9, 32), normal(1, 3, 3, 3, 32, 32)

    assert_close(*(
        jax.jit(jax.vmap(partial(derivatives, function)))(x, kernels)
        for function in (fast, expected)
    ))


@pytest.mark.slow
@pytest.mark.internals
@pytest.mark.parametrize("part", ["value", "x", "kernel"])
def test_rounding_in_float32(part):
    """Within the bound of rounding that follows from the sums themselves.

    A sum of products of n roundings in a row differs from the exact one by at most n u / (1 - n u)
    times the same sum of absolute values, with u = 2^-24, in whatever order it is added up. So all
    matrices and numbers are replaced by their absolute values, and n counts the roundings on the
    longest path.
    """
    batch, height, width, num_channels, num_features = 4, 10, 14, 32, 48
    u = 2.0**-24
    A, B, G = matrices()
    x = normal(0, batch, height, width, num_channels, dtype="float32")
    kernel = normal(1, 3, 3, num_channels, num_features, dtype="float32")
    cotangent = normal(2, batch, height - 2, width - 2, num_features, dtype="float32")

    def outcome(convolve: Callable, x: Array, kernel: Array, cotangent: Array) -> Array:
        outputs, pull_back = jax.vjp(convolve, x, kernel)
        return {"value": outputs, **dict(zip(("x", "kernel"), pull_back(cotangent), strict=True))}[
            part
        ]

    def absolute(x: Array, kernel: Array) -> Array:
        tiles = jnp.stack([x[:, :, j : j + width - 5 : 4] for j in range(6)])
        values = jnp.einsum("qj,jbhtc->qbhtc", np.abs(B), tiles)
        rows = jnp.stack([values[:, :, i : i + height - 2] for i in range(3)])
        kernels = jnp.einsum("qj,ijcd->qicd", np.abs(G), kernel)
        sums = jnp.einsum("iqbhtc,qicd->qbhtd", rows, kernels)
        outputs = jnp.einsum("qp,qbhtd->bhtpd", np.abs(A), sums)
        return outputs.reshape(batch, height - 2, width - 2, num_features)

    exact = outcome(partial(slow, padding="VALID"), *(
        leaf.astype("float64") for leaf in (x, kernel, cotangent)
    ))
    found = jax.jit(partial(outcome, in_tiles))(x, kernel, cotangent)
    bound = outcome(absolute, *(abs(leaf.astype("float64")) for leaf in (x, kernel, cotangent)))
    # Sums over: the values at points 6, twice with their coefficients; kernels 3; outputs 6; and
    # the product over what the part does not have.
    length = {"value": 3 * num_channels, "x": 3 * num_features, "kernel": batch * 8 * 3}[part]
    n = length + 2 * 6 + 2 * 3 + 2 * 6
    assert found.dtype == "float32"
    errors = abs(found.astype("float64") - exact)
    assert (errors <= n * u / (1 - n * u) * bound).all()
    # And as measured for the EMNIST network: far below a bound for the worst case.
    assert errors.max() < 2e-6 * abs(exact).max()


@pytest.mark.slow
@pytest.mark.internals
def test_the_first_of_equals():
    """Where all is equal to the bit, as over a black border, the first place gets the gradient."""
    x = jnp.zeros((1, 6, 6, 32))
    kernel = normal(0, 3, 3, 32, 32)
    gradients = [
        jax.grad(lambda x, pooled=pooled: pooled(x, kernel, "VALID").sum())(x)
        for pooled in (partial(pooled_convolution, implementation="matmul"), slow_pooled)
    ]
    assert_close(*gradients)
    first, second = jnp.array([1.0, 2.0]), jnp.array([1.0, jnp.nan])
    np.testing.assert_array_equal(largest([first, second]), [1, np.nan])


@pytest.mark.slow
@pytest.mark.internals
def test_the_cnn_computes_the_same_with_every_implementation():
    """Its loss and gradients in training, with dropout of the same key."""
    images = normal(0, 3, 12, 12, 1, dtype="float32")
    batch = {"x": images, "y": jnp.array([0, 5, 9])}
    outcomes = []
    for implementation in ("matmul", "xla"):
        model = image_cnn((12, 12, 1), 10, implementation=implementation)
        params = model.init(jax.random.key(0))

        def mean_loss(params: PyTree, model=model) -> Array:
            return model.loss(params, batch, jax.random.key(1))[0].mean()

        outcomes.append(jax.jit(jax.value_and_grad(mean_loss))(params))
        assert num_products(model.outputs, params, batch) == {"matmul": 9, "xla": 2}[implementation]
    assert_close(*outcomes, tolerance=3e-6)


@pytest.mark.quick
def test_dropout():
    x = jnp.ones((999, 101), jnp.float32)  # not a multiple of four
    for rate in (0.25, 0.5, 0.3):  # the last is not a multiple of 1/256
        y = dropout(x, rate, jax.random.key(0))
        assert y.dtype == x.dtype
        np.testing.assert_allclose(np.unique(y), [0, 1 / (1 - rate)], rtol=1e-7)
        # Within five standard deviations, in all, and of neighbours along both axes.
        kept = np.asarray(y > 0, float) - (1 - rate)
        deviation = np.sqrt(rate * (1 - rate) / x.size)
        assert abs(kept.mean()) < 5 * deviation
        for product in (kept[1:] * kept[:-1], kept[:, 1:] * kept[:, :-1]):
            assert abs(product.mean()) < 5 * rate * (1 - rate) / np.sqrt(product.size)
        np.testing.assert_array_equal(y, dropout(x, rate, jax.random.key(0)))
        assert (y != dropout(x, rate, jax.random.key(1))).any()
    expected = jax.random.bernoulli(jax.random.key(0), 0.7, x.shape)
    np.testing.assert_array_equal(dropout(x, 0.3, jax.random.key(0)) > 0, expected)
    assert dropout(x, 0, jax.random.key(0)) is x
    assert dropout(x, 0.5, None) is x
    for rate in (-0.1, 1):
        with pytest.raises(ValueError, match="A dropout rate must be"):
            dropout(x, rate, jax.random.key(0))


@pytest.mark.slow
@pytest.mark.internals
def test_dropout_of_clients_is_that_of_each():
    keys = jax.random.split(jax.random.key(3), 4)
    x = normal(0, 4, 5, 7)
    for rate in (0.5, 0.3):
        batched = jax.vmap(dropout, in_axes=(0, None, 0))(x, rate, keys)
        alone = [dropout(one, rate, key) for one, key in zip(x, keys, strict=True)]
        np.testing.assert_array_equal(batched, jnp.stack(alone))


@pytest.mark.internals
def test_inside_a_loop_of_checkpointed_steps():
    x, kernel = normal(0, 2, 5, 10, 3), normal(1, 3, 3, 3, 2)

    @partial(jax.jit, static_argnums=0)
    def descend(function: Callable, bound: int) -> Array:
        def step(_: int, k: Array) -> Array:
            return k - 0.01 * jax.grad(partial(loss, jax.checkpoint(function)), argnums=1)(x, k)

        return lax.fori_loop(0, bound, step, kernel)

    assert_close(descend(in_tiles, 3), descend(partial(slow, padding="VALID"), 3))
