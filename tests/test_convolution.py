"""The fast convolution and pooling against XLA's own, differentiated by JAX."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import jit, lax
from jax.extend.core import jaxprs_in_params, primitives
from jax.sharding import Mesh, PartitionSpec
from jax.test_util import check_grads

from fedax.algorithm import Array, PyTree
from fedax.models.convolution import (
    _scatters as scatters,
)
from fedax.models.convolution import conv_general_dilated, convolution, prefers_fast
from fedax.models.image_cnn import image_cnn
from fedax.models.pooling import avg_pool, max_pool
from fedax.models.rewriting import fast_convolutions

LAYOUT = ("NHWC", "HWIO", "NHWC")


def normal(seed: int, *shape: int, dtype: str = "float64") -> Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def slow(x: Array, kernel: Array, strides=(1, 1), padding="SAME") -> Array:
    return lax.conv_general_dilated(x, kernel, strides, padding, dimension_numbers=LAYOUT)


def fast(x: Array, kernel: Array, strides=(1, 1), padding="SAME") -> Array:
    return convolution(x, kernel, strides, padding, implementation="matmul")


def loss(function: Callable, *arguments: Array) -> Array:
    """With curvature in the outputs, so that second derivatives meet every term."""
    outputs = function(*arguments)
    return (jnp.sin(outputs) * jnp.cos(jnp.arange(outputs.size)).reshape(outputs.shape)).sum()


def value_and_gradients(function: Callable, *arguments: Array) -> PyTree:
    places = tuple(range(len(arguments)))

    @jax.jit
    def both(*arguments: Array) -> PyTree:
        gradients = jax.grad(partial(loss, function), argnums=places)(*arguments)
        return function(*arguments), gradients

    return both(*arguments)


def derivatives(function: Callable, *arguments: Array) -> PyTree:
    """Forward mode, and products with the Hessian forward over reverse and reverse over reverse."""
    directions = jax.tree.map(jnp.cos, arguments)

    def gradient(*args: Array) -> PyTree:
        return jax.grad(partial(loss, function), argnums=(0, 1))(*args)

    def slope(*args: Array) -> Array:
        terms = jax.tree.map(lambda a, b: (a * b).sum(), gradient(*args), directions)
        return jnp.stack(terms).sum()

    return (
        jax.jvp(function, arguments, directions),
        jax.jvp(gradient, arguments, directions),  # what fedax.dissimilarity takes
        jax.grad(slope, argnums=(0, 1))(*arguments),
    )


def assert_close(actual: PyTree, expected: PyTree, tolerance: float = 1e-12) -> None:
    def check(a: Array, b: Array) -> None:
        assert a.dtype == b.dtype
        scale = max(1.0, float(jnp.abs(b.astype("float64")).max())) if b.size else 1.0
        np.testing.assert_allclose(
            np.asarray(a, "float64"), np.asarray(b, "float64"), rtol=0, atol=tolerance * scale
        )

    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    jax.tree.map(check, actual, expected)


def count(program: PyTree, primitive: object) -> int:
    """How often a program holds a primitive, at any depth."""
    own = sum(equation.primitive is primitive for equation in program.eqns)
    return own + sum(
        count(inner, primitive)
        for equation in program.eqns
        for inner in jaxprs_in_params(equation.params)
    )


def num_convolutions(function: Callable, *arguments: PyTree) -> int:
    return count(jax.make_jaxpr(function)(*arguments).jaxpr, primitives.conv_general_dilated_p)


WINDOWS = [(1, 1), (2, 3), (3, 3), (5, 2)]
STRIDES = [(1, 1), (2, 1), (1, 3), (3, 2)]
PADDINGS = ["SAME", "VALID", ((1, 2), (0, 3)), ((2, 0), (1, 1))]


# Sizes for which columns are scattered if the stride allows it, and for which they are gathered.
@pytest.mark.parametrize("sizes", [(2, 7, 13, 3, 2), (1, 6, 5, 1, 3)])
@pytest.mark.parametrize("strides", STRIDES)
@pytest.mark.parametrize("window", WINDOWS)
def test_value_and_gradients_equal_xla(window, strides, sizes):
    *shape, num_features = sizes
    x, kernel = normal(0, *shape), normal(1, *window, shape[-1], num_features)
    # Each padding meets each window and each stride.
    padding = PADDINGS[(WINDOWS.index(window) + STRIDES.index(strides)) % len(PADDINGS)]
    actual, expected = (
        partial(function, strides=strides, padding=padding) for function in (fast, slow)
    )
    assert num_convolutions(actual, x, kernel) == 0
    assert_close(value_and_gradients(actual, x, kernel), value_and_gradients(expected, x, kernel))


def test_both_ways_are_tested():
    ways = [
        [scatters((*window, *sizes), (1, 1), width) for window in WINDOWS]
        for width, sizes in ((13, (3, 2)), (5, (1, 3)))
    ]
    assert ways == [[False, True, True, True], [False] * 4]


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 9, 1, 4), (0, 5, 5, 2), (3, 3, 12, 8)])
def test_odd_shapes(shape):
    x, kernel = normal(0, *shape), normal(1, 3, 3, shape[3], 2)
    assert_close(value_and_gradients(fast, x, kernel), value_and_gradients(slow, x, kernel))


@pytest.mark.quick
@pytest.mark.parametrize(
    ("size", "stride", "places"), [(1, 1, 1), (1, 2, 1), (2, 1, 9), (2, 2, 4), (3, 2, 9)]
)
def test_places_of_the_kernel_that_meet_only_padding_are_left_out(size, stride, places):
    x, kernel = normal(0, 2, size, size, 5), normal(1, 3, 3, 5, 4)
    strided = partial(fast, strides=(stride, stride))
    (product,) = (
        equation for equation in jax.make_jaxpr(strided)(x, kernel).jaxpr.eqns
        if equation.primitive is primitives.dot_general_p
    )
    assert product.invars[1].aval.shape == (5 * places, 4)
    expected = partial(slow, strides=(stride, stride))
    assert_close(value_and_gradients(strided, x, kernel), value_and_gradients(expected, x, kernel))


@pytest.mark.quick
def test_by_hand():
    # Row [1, 2, 4] under the kernel [10, 1]: no flip, so 10 * 1 + 2 and 10 * 2 + 4.
    x = jnp.array([1.0, 2.0, 4.0]).reshape(1, 1, 3, 1)
    y = fast(x, jnp.array([10.0, 1.0]).reshape(1, 2, 1, 1), padding="VALID")
    np.testing.assert_array_equal(y[0, 0, :, 0], [12, 24])


@pytest.mark.internals
@pytest.mark.parametrize("num_features", [2, 12])  # scattered, gathered
def test_clients_with_their_own_kernels(num_features):
    x, kernels = normal(0, 4, 2, 6, 9, 3), normal(1, 4, 3, 3, 3, num_features)
    expected = [value_and_gradients(slow, *client) for client in zip(x, kernels, strict=True)]
    expected = jax.tree.map(lambda *leaves: jnp.stack(leaves), *expected)
    assert_close(jax.vmap(partial(value_and_gradients, fast))(x, kernels), expected)


@pytest.mark.internals
@pytest.mark.parametrize("num_features", [2, 12])
def test_derivatives_of_higher_order_and_forward(num_features):
    arguments = normal(0, 2, 5, 9, 3), normal(1, 3, 3, 3, num_features)
    assert_close(*(jax.jit(partial(derivatives, way))(*arguments) for way in (fast, slow)))


@pytest.mark.internals
@pytest.mark.parametrize("loop", ["scan", "while_loop"])
def test_gradient_steps_inside_a_loop(loop):
    x, kernel = normal(0, 2, 5, 9, 3), normal(1, 3, 3, 3, 2)

    @partial(jax.jit, static_argnums=0)
    def descend(function: Callable, bound: int) -> Array:
        def step(k: Array) -> Array:
            return k - 0.01 * jax.grad(partial(loss, jax.checkpoint(function)), argnums=1)(x, k)

        if loop == "scan":
            return lax.scan(lambda k, _: (step(k), None), kernel, None, length=3)[0]
        # The bound is traced, so the `fori_loop` is a `while_loop`.
        return lax.fori_loop(0, bound, lambda _, k: step(k), kernel)

    assert_close(descend(fast, 3), descend(slow, 3))


# A few units of roundoff, 6e-8, 4e-3 and 5e-4: sums are taken in float32 in all three.
@pytest.mark.internals
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 1e-6), ("bfloat16", 0.01), ("float16", 0.001)]
)
@pytest.mark.parametrize("num_features", [2, 12])
def test_lower_precision(dtype, tolerance, num_features):
    arguments = normal(0, 2, 5, 9, 3), normal(1, 3, 3, 3, num_features)
    cotangent = normal(2, 2, 5, 9, num_features)
    rounded = jax.tree.map(lambda leaf: leaf.astype(dtype), (*arguments, cotangent))

    @partial(jax.jit, static_argnums=0)
    def pull_back(function: Callable, x: Array, kernel: Array, cotangent: Array) -> PyTree:
        outputs, pullback = jax.vjp(function, x, kernel)
        return outputs, pullback(cotangent)

    actual = pull_back(fast, *rounded)
    assert all(leaf.dtype == dtype for leaf in jax.tree.leaves(actual))
    exact = pull_back(slow, *jax.tree.map(lambda leaf: leaf.astype("float64"), rounded))
    if dtype != "float32":  # the sums of the outputs are rounded once
        half_a_step = float(jnp.finfo(dtype).eps) / 2
        np.testing.assert_allclose(
            actual[0].astype("float64"), exact[0], rtol=1.01 * half_a_step, atol=1e-5
        )
    assert_close(jax.tree.map(lambda a: a.astype("float64"), actual), exact, tolerance)


@pytest.mark.internals
@pytest.mark.parametrize(
    "layout", [None, LAYOUT, ("NCHW", "HWIO", "NHWC"), ("HWNC", "OHWI", "CNHW")]
)
def test_layouts(layout):
    x, kernel = normal(0, *(3,) * 4), normal(1, *(3,) * 4)
    args = (x, kernel, (2, 1), [(1, 0), (2, 1)], None, None, layout)
    actual = conv_general_dilated(*args, implementation="matmul")
    assert_close(actual, lax.conv_general_dilated(*args))


def test_window_larger_than_the_image_is_empty_as_with_jax():
    args = (normal(0, 1, 1, 1, 5), normal(1, 1, 1, 3, 3), (1, 1), "VALID")
    assert conv_general_dilated(*args, implementation="matmul").shape == (1, 1, 0, 3)
    pool = fast_convolutions(partial(nn.max_pool, window_shape=(3, 2)), "matmul")
    assert pool(normal(0, 1, 1, 5, 3)).shape == (1, 0, 4, 3)


@pytest.mark.parametrize("shapes", [((1, 2, 5, 5), (0, 2, 3, 3)), ((1, 0, 5, 5), (2, 0, 3, 3))])
def test_no_features_and_no_channels_as_with_jax(shapes):
    x, kernel = (jnp.ones(shape) for shape in shapes)
    args = (x, kernel, (1, 1), "VALID")
    actual = conv_general_dilated(*args, implementation="matmul")
    assert_close(actual, lax.conv_general_dilated(*args))


@pytest.mark.internals
@pytest.mark.parametrize(
    "arguments",
    [
        {"window_strides": (1,)},
        {"window_strides": (-1, 1)},
        {"padding": [(0, 0)]},
        {"padding": "SAMEE"},
        {"lhs_dilation": (1,)},
        {"rhs": np.ones((1, 3, 3, 3))},
        {"rhs": np.ones((0, 2, 0, 3))},
    ],
)
def test_arguments_that_do_not_fit_raise_the_error_of_jax(arguments):
    options: dict[str, Any] = {
        "lhs": np.ones((1, 2, 5, 5)), "rhs": np.ones((4, 2, 3, 3)), "window_strides": (1, 1),
        "padding": [(0, 0), (0, 0)], **arguments,
    }
    with pytest.raises((ValueError, TypeError, RuntimeError)) as expected:
        lax.conv_general_dilated(**options)
    with pytest.raises(type(expected.value)) as actual:
        conv_general_dilated(**options, implementation="matmul")
    assert str(actual.value).split("\n")[0] == str(expected.value).split("\n")[0]


def test_one_spatial_dimension():
    x, kernel = normal(0, 2, 3, 9), normal(1, 4, 3, 3)
    options = {"window_strides": (2,), "padding": "SAME"}
    expected = value_and_gradients(partial(lax.conv_general_dilated, **options), x, kernel)
    function = partial(conv_general_dilated, implementation="matmul", **options)
    assert num_convolutions(function, x, kernel) == 0
    assert_close(value_and_gradients(function, x, kernel), expected)


@pytest.mark.internals
@pytest.mark.parametrize(
    "options",
    [
        {"rhs_dilation": (2, 1)},
        {"lhs_dilation": (1, 2), "padding": [(1, 1), (1, 1)]},
        {"feature_group_count": 2},
        {"batch_group_count": 2},
        {"preferred_element_type": jnp.float64, "dtype": "float32"},
        {"preferred_element_type": np.dtype("float64"), "dtype": "float32"},
        {"preferred_element_type": np.dtype("float32"), "dtype": "bfloat16"},
        {"dtype": "int32"},
        {"padding": "SAME_LOWER", "fast": True},
        {"padding": [(-1, 0), (0, -1)], "fast": True},
        {"preferred_element_type": jnp.float64, "fast": True},
        {"precision": "highest", "fast": True},
        {"lhs_dilation": (1, 1), "rhs_dilation": (1, 1), "fast": True},
    ],
)
def test_what_the_product_cannot_do_goes_to_jax(options):
    options = dict(options)
    is_fast, dtype = options.pop("fast", False), options.pop("dtype", "float64")
    padding = options.pop("padding", "VALID")
    depth = 2 if "feature_group_count" in options else 4
    x, kernel = (10 * normal(0, 4, 4, 6, 6)).astype(dtype), normal(1, 4, depth, 3, 2).astype(dtype)
    args = (x, kernel, (1, 1), padding)
    matmul = partial(conv_general_dilated, implementation="matmul", **options)
    assert_close(matmul(*args), lax.conv_general_dilated(*args, **options))
    assert num_convolutions(lambda x: matmul(x, *args[1:]), x) == (0 if is_fast else 1)


@pytest.mark.quick
def test_choice_of_implementation(monkeypatch):
    x, kernel = normal(0, 1, 5, 5, 2), normal(1, 3, 3, 2, 2)

    def num(implementation: Any) -> int:
        return num_convolutions(partial(convolution, implementation=implementation), x, kernel)

    assert [num("matmul"), num("xla"), num("auto")] == [0, 1, 0]
    assert not prefers_fast("gpu")
    assert not prefers_fast("tpu")
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert [num("matmul"), num("xla"), num("auto")] == [0, 1, 1]
    assert fast_convolutions(slow) is slow
    with pytest.raises(ValueError, match="Unknown implementation 'matmull'"):
        num("matmull")


@pytest.mark.quick
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((np.ones((2, 5, 5)), np.ones((3, 3, 1, 1))), r"takes images \[B, H, W, C\]"),
        ((np.ones((2, 5, 5, 2)), np.ones((3, 3, 1, 1))), r"got the shapes \[2, 5, 5, 2\]"),
        ((np.ones((2, 5, 5, 1), "float32"), np.ones((3, 3, 1, 1))), "float32 and float64"),
        ((np.ones((2, 5, 5, 1), int), np.ones((3, 3, 1, 1), int)), "the same floating point type"),
        ((np.ones((2, 5, 5, 1)), np.ones((3, 3, 1, 1)), (1, 0)), "strides must be two positive"),
        ((np.ones((2, 5, 5, 1)), np.ones((3, 3, 1, 1)), (1,)), "strides must be two positive"),
        ((np.ones((2, 5, 5, 1)), np.ones((3, 3, 1, 1)), (1, 1), "SAMEE"), "Did you mean 'SAME'"),
        ((np.ones((2, 5, 5, 1)), np.ones((3, 3, 1, 1)), (1, 1), 1), "padding must be"),
        ((np.ones((2, 5, 5, 1)), np.ones((3, 3, 1, 1)), (1, 1), (1, 1)), "padding must be"),
        ((np.ones((2, 5, 2, 1)), np.ones((3, 3, 1, 1)), (1, 1), "VALID"), "does not fit"),
    ],
)
def test_convolution_errors(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        fast(*arguments)


# Small integers, so that many windows have several largest numbers.
@pytest.mark.parametrize("padding", ["VALID", "SAME", ((1, 0), (1, 1))])
@pytest.mark.parametrize(
    ("window", "strides"), [((2, 2), None), ((3, 3), (2, 2)), ((2, 3), (3, 1))]
)
def test_max_pool_equals_reduce_window(window, strides, padding):
    x = jnp.asarray(np.random.default_rng(0).integers(0, 3, (2, 6, 9, 3)), "float64")
    pads = padding if isinstance(padding, str) else ((0, 0), *padding, (0, 0))

    def expected(x: Array) -> Array:
        steps = window if strides is None else strides
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, *window, 1), (1, *steps, 1), pads)

    actual = partial(max_pool, window=window, strides=strides, padding=padding)
    assert_close(value_and_gradients(actual, x), value_and_gradients(expected, x), 0)
    # Forward mode is the adjoint of reverse mode; at ties, that of `reduce_window` is not.
    direction = normal(1, *x.shape)
    outputs, tangent = jax.jvp(actual, (x,), (direction,))
    cotangent = normal(2, *outputs.shape)
    (gradient,) = jax.vjp(actual, x)[1](cotangent)
    assert_close((tangent * cotangent).sum(), (direction * gradient).sum())


@pytest.mark.internals
def test_max_pool_gives_ties_to_the_first():
    x = jnp.array([[1.0, 2.0], [2.0, 2.0]]).reshape(1, 2, 2, 1)
    np.testing.assert_array_equal(
        jax.grad(lambda x: max_pool(x).sum())(x)[0, :, :, 0], [[0, 1], [0, 0]]
    )


@pytest.mark.slow
@pytest.mark.internals
def test_max_pool_keeps_nan_integers_and_infinity():
    x = jnp.array([jnp.nan, 1.0, -jnp.inf, -jnp.inf, 2.0, jnp.nan]).reshape(1, 1, 6, 1)
    np.testing.assert_array_equal(max_pool(x, (1, 2)).ravel(), [jnp.nan, -jnp.inf, jnp.nan])
    whole = jnp.array([[-5, -7], [-9, -6]], "int8").reshape(1, 2, 2, 1)
    assert max_pool(whole).ravel() == jnp.int8(-5)
    assert max_pool(whole, padding=((1, 1), (0, 0))).ravel().tolist() == [-5, -6]


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("count_include_pad", [False, True])
def test_avg_pool(count_include_pad, padding):
    x = normal(0, 2, 5, 6, 3)
    options = {"padding": padding, "count_include_pad": count_include_pad}
    with jax.numpy_dtype_promotion("standard"):
        expected = nn.avg_pool(x, (2, 3), (2, 2), **options)
    assert_close(avg_pool(x, (2, 3), (2, 2), **options), expected)
    if padding == "SAME":
        check_grads(lambda x: avg_pool(x, (2, 3), (2, 2), **options), (x,), 2)


@pytest.mark.internals
def test_avg_pool_sums_in_float32():
    # In float16, 2048 + 1 is 2048.
    x = jnp.ones((1, 64, 64, 1), "float16")
    assert avg_pool(x, (64, 64)).ravel().tolist() == [1]
    assert avg_pool(x).dtype == "float16"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((np.ones((5, 5, 1)),), r"Pooling takes images"),
        ((np.ones((2, 5, 5, 1)), (0, 2)), "window must be two positive"),
        ((np.ones((2, 5, 5, 1)), (2, 2), (1, -1)), "strides must be two positive"),
        ((np.ones((2, 1, 5, 1)),), r"A window of \[2, 2\] pixels does not fit"),
        ((np.ones((2, 5, 5, 1), bool),), "does not support the dtype bool"),
        ((np.ones((2, 5, 5, 1), complex),), "does not support the dtype complex128"),
    ],
)
@pytest.mark.parametrize("pool", [max_pool, avg_pool])
def test_pooling_errors(pool, arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        pool(*arguments)


class LinenNetwork(nn.Module):
    """With convolutions of which one is dilated, one grouped and one inside a checkpoint."""

    convolve: Callable | None = None

    @nn.compact
    def __call__(self, x: Array) -> Array:
        layer = partial(nn.Conv, param_dtype="float64", conv_general_dilated=self.convolve)
        x = nn.relu(layer(4, (3, 3))(x))
        x = nn.max_pool(x, (3, 3), (2, 2), "SAME")
        x = nn.relu(layer(4, (3, 3), strides=2)(x))
        x = layer(4, (3, 3), kernel_dilation=2)(layer(4, (2, 2), feature_group_count=2)(x))
        x = nn.remat(nn.Conv)(4, (3, 3), param_dtype="float64")(x)
        return nn.Dense(3, param_dtype="float64")(x.reshape(x.shape[0], -1))


class EquinoxNetwork(eqx.Module):
    """Channels first, for one image; `activation` is a leaf that is no array."""

    layers: tuple
    activation: Callable

    def __init__(self, key: Array):
        first, second = jax.random.split(key)
        self.layers = (
            eqx.nn.Conv2d(2, 4, 3, key=first, dtype="float64"),
            eqx.nn.MaxPool2d(2, 2),
            eqx.nn.Conv2d(4, 3, 2, stride=2, padding=1, key=second, dtype="float64"),
        )
        self.activation = jax.nn.relu

    def __call__(self, x: Array) -> Array:
        for layer in self.layers:
            x = self.activation(layer(x))
        return x


def check_wrapper(apply: Callable, params: PyTree, x: Array, left: int = 0) -> None:
    """The wrapped function has `left` convolutions, and the same values and gradients."""
    wrapped = fast_convolutions(apply, "matmul")
    assert num_convolutions(apply, params, x) > left
    assert num_convolutions(wrapped, params, x) == left
    pooling = count(jax.make_jaxpr(wrapped)(params, x).jaxpr, primitives.reduce_window_max_p)
    assert pooling == 0

    def gradient(function: Callable) -> PyTree:
        return jax.jit(jax.value_and_grad(lambda p: loss(function, p, x)))(params)

    assert_close(gradient(wrapped), gradient(apply))


@pytest.mark.slow
@pytest.mark.internals
def test_flax_takes_conv_general_dilated():
    x = normal(0, 2, 9, 9, 2)
    mine = LinenNetwork(partial(conv_general_dilated, implementation="matmul"))
    params = jax.jit(LinenNetwork().init)(jax.random.key(0), x)
    expected = value_and_gradients(lambda x: LinenNetwork().apply(params, x), x)
    assert_close(value_and_gradients(lambda x: mine.apply(params, x), x), expected)
    assert num_convolutions(mine.apply, params, x) == 3  # dilated, grouped, and given no function


@pytest.mark.internals
def test_nnx_takes_conv_general_dilated():
    x = normal(0, 2, 9, 9, 2)

    def layer(**options: Any) -> nnx.Conv:
        return nnx.Conv(2, 4, (3, 3), param_dtype="float64", rngs=nnx.Rngs(0), **options)

    mine = layer(conv_general_dilated=partial(conv_general_dilated, implementation="matmul"))
    assert_close(value_and_gradients(mine, x), value_and_gradients(layer(), x))
    assert num_convolutions(mine, x) == 0


@pytest.mark.slow
@pytest.mark.internals
def test_wrapper_on_flax_linen():
    x = normal(0, 2, 9, 9, 2)
    network = LinenNetwork()
    check_wrapper(network.apply, jax.jit(network.init)(jax.random.key(0), x), x, left=2)


@pytest.mark.internals
def test_wrapper_on_flax_nnx():
    layers = [
        nnx.Conv(2, 3, (3, 3), param_dtype="float64", rngs=nnx.Rngs(0)),
        nnx.Conv(3, 4, (2, 3), strides=2, param_dtype="float64", rngs=nnx.Rngs(1)),
    ]
    graph, state = nnx.split(nnx.Sequential(*layers))
    check_wrapper(lambda state, x: nnx.merge(graph, state)(x), state, normal(0, 2, 7, 7, 2))


@pytest.mark.slow
@pytest.mark.internals
def test_wrapper_on_equinox():
    network, x = EquinoxNetwork(jax.random.key(0)), normal(0, 3, 2, 9, 9)
    params, static = eqx.partition(network, eqx.is_array)
    check_wrapper(lambda p, x: jax.vmap(eqx.combine(p, static))(x), params, x)
    # A module is an argument like any other, though some of its leaves are functions.
    whole = fast_convolutions(lambda network, x: jax.vmap(network)(x), "matmul")
    assert_close(whole(network, x), jax.vmap(network)(x))


def nested(params: PyTree, x: Array) -> Array:
    """Convolutions inside jit, scan, cond, checkpoint and vmap."""
    x = jit(partial(slow, strides=(1, 2)))(x, params["first"])
    x, _ = lax.scan(lambda x, k: (jnp.tanh(slow(x, k)), None), x, params["scanned"])
    x = lax.cond(x.sum() > 0, lambda: slow(x, params["first"]), lambda: x + 1)
    x = jax.checkpoint(lambda x: slow(slow(x, params["first"]), params["first"]))(x)
    return jax.vmap(lambda image: slow(image[None], params["first"])[0])(x)


@pytest.mark.slow
@pytest.mark.internals
def test_wrapper_inside_nested_programs():
    params = {"first": normal(1, 3, 3, 2, 2) / 4, "scanned": normal(2, 3, 2, 2, 2, 2) / 4}
    x = normal(0, 2, 6, 9, 2)
    check_wrapper(nested, params, x)
    wrapped = fast_convolutions(nested, "matmul")
    directions = jax.tree.map(jnp.cos, params)
    clients = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), params)

    def uses(function: Callable) -> PyTree:
        gradient = jax.grad(lambda p: loss(function, p, x))
        of_clients = jax.vmap(function, in_axes=(0, None))(clients, x)
        return jax.jvp(gradient, (params,), (directions,)), of_clients

    assert_close(*(jax.jit(partial(uses, function))() for function in (wrapped, nested)))


@pytest.mark.internals
def test_wrapper_with_parameters_that_are_closed_over():
    x, kernel = normal(0, 2, 6, 9, 2), normal(1, 3, 3, 2, 2)
    closed = jax.grad(lambda k: loss(fast_convolutions(lambda x: slow(x, k), "matmul"), x))
    assert num_convolutions(closed, kernel) == 0
    assert_close(closed(kernel), jax.grad(lambda k: loss(slow, x, k))(kernel))


@pytest.mark.slow
@pytest.mark.internals
def test_wrapper_in_while_loop_and_under_shard_map():
    x, kernel = normal(0, 2, 6, 9, 2), normal(1, 3, 3, 2, 2) / 4

    def repeated(kernel: Array, x: Array) -> Array:
        return lax.fori_loop(0, jnp.int32(3), lambda _, x: slow(x, kernel), x)

    wrapped = fast_convolutions(repeated, "matmul")
    assert num_convolutions(wrapped, kernel, x) == 0
    assert_close(jax.jit(wrapped)(kernel, x), repeated(kernel, x))
    mesh = Mesh(np.array(jax.devices()[:1]), ("clients",))
    clients = PartitionSpec("clients")

    def gradient(function: Callable) -> Callable:
        return jax.grad(lambda kernel, x: loss(function, kernel, x))

    sharded = jax.shard_map(
        jax.vmap(gradient(fast_convolutions(nested_step, "matmul"))),
        mesh=mesh, in_specs=(clients, clients), out_specs=clients,
    )
    arguments = jnp.stack([kernel, 2 * kernel]), jnp.stack([x, x + 1])
    assert_close(jax.jit(sharded)(*arguments), jax.vmap(gradient(nested_step))(*arguments))


def nested_step(kernel: Array, x: Array) -> Array:
    return lax.scan(lambda x, _: (slow(x, kernel), None), x, None, length=2)[0]


@pytest.mark.internals
def test_wrapper_leaves_the_rest_as_it_is():
    x, kernel = normal(0, 2, 6, 9, 2), normal(1, 3, 3, 2, 2)

    @jax.custom_vjp
    def own(x: Array) -> Array:
        return slow(x, kernel)

    own.defvjp(lambda x: (own(x), None), lambda _, g: (7 * g,))

    def apply(x: Array, *, scale: int, name: str = "no array") -> dict[str, Any]:
        assert isinstance(scale, int)
        assert name == "no array"
        # JAX has no derivative of the dilated one.
        maxima = partial(lax.reduce_window, lax.stop_gradient(x), -jnp.inf, lax.max)
        large = maxima((1, 6, 9, 1), (1, 1, 1, 1), "VALID")
        dilated = maxima((1, 2, 2, 1), (1, 1, 1, 1), "VALID", window_dilation=(1, 5, 8, 1))
        return {"y": scale * own(jax.nn.relu(x)) + large + dilated, "none": None}

    wrapped = fast_convolutions(apply, "matmul")
    assert_close(wrapped(x, scale=3), apply(x, scale=3))
    assert_close(
        jax.grad(lambda x: wrapped(x, scale=3)["y"].sum())(x),
        jax.grad(lambda x: apply(x, scale=3)["y"].sum())(x),
    )
    assert wrapped.__name__ == "apply"
    program = jax.make_jaxpr(partial(wrapped, scale=3))(x).jaxpr
    assert count(program, primitives.conv_general_dilated_p) == 1
    assert count(program, primitives.reduce_window_max_p) == 2


# Two convolutions, each with 9 weights from every channel and a bias; 28 - 2 - 2 = 24 pixels are
# pooled to 12, and 32 to 14; then two dense layers.
@pytest.mark.parametrize(
    ("arguments", "terms", "size"),
    [
        (((28, 28, 1), 62), (9 * 32, 12 * 12 * 64 * 128, 129 * 62), 1_206_590),
        (((32, 32, 3), 10), (9 * 3 * 32, 14 * 14 * 64 * 128, 129 * 10), 1_626_442),
    ],
)
def test_image_cnn_has_the_papers_size(arguments, terms, size):
    assert sum(terms) + 32 + (9 * 32 + 1) * 64 + 128 == size
    model = image_cnn(*arguments)
    params = jax.eval_shape(model.init, jax.random.key(0))
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params)) == size
    batch = {"x": jnp.zeros((4, *arguments[0]), "uint8"), "y": jnp.zeros(4, int)}
    assert jax.eval_shape(model.outputs, params, batch).shape == (4, arguments[1])
    losses, weights = jax.eval_shape(model.loss, params, batch, jax.random.key(0))
    assert losses.shape == weights.shape == (4,)


@pytest.mark.slow
def test_image_cnn_equals_its_equations():
    model = image_cnn((8, 10, 2), 5, dropout_rates=(0, 0), implementation="matmul")
    params = model.init(jax.random.key(0))
    limits = {name: float(jnp.abs(layer["w"]).max()) for name, layer in params.items()}
    # Glorot: sqrt(6 / (fan in + fan out)), of a convolution with 9 places.
    expected = {
        "conv_1": math.sqrt(6 / (9 * 2 + 9 * 32)), "conv_2": math.sqrt(6 / (9 * 32 + 9 * 64)),
        "dense_1": math.sqrt(6 / (2 * 3 * 64 + 128)), "dense_2": math.sqrt(6 / (128 + 5)),
    }
    assert limits == pytest.approx(expected, rel=0.05)
    assert all(limits[name] <= expected[name] for name in limits)
    assert all(not layer["b"].any() for layer in params.values())

    # Biases of their own, in float64, so that it matters where they are added.
    params = jax.tree.map(lambda leaf: normal(1, *leaf.shape) / 8, params)
    batch = {"x": normal(2, 4, 8, 10, 2), "y": jnp.array([0, 4, 2, 2])}

    def plain(p: PyTree) -> Array:
        x = batch["x"]
        for layer in (p["conv_1"], p["conv_2"]):
            x = jax.nn.relu(slow(x, layer["w"], padding="VALID") + layer["b"][None, None, None])
        x = nn.max_pool(x, (2, 2), (2, 2)).reshape(4, -1)
        x = jax.nn.relu(x @ p["dense_1"]["w"] + p["dense_1"]["b"][None])
        return x @ p["dense_2"]["w"] + p["dense_2"]["b"][None]

    def plain_loss(p: PyTree) -> Array:
        return -jnp.take_along_axis(jax.nn.log_softmax(plain(p)), batch["y"][:, None], 1).sum()

    @jax.jit
    def both(p: PyTree) -> PyTree:
        gradient = jax.grad(lambda p: model.loss(p, batch, jax.random.key(0))[0].sum())(p)
        return model.outputs(p, batch), gradient

    assert_close(both(params), jax.jit(lambda p: (plain(p), jax.grad(plain_loss)(p)))(params))


@pytest.mark.slow
def test_image_cnn_drops_in_training_only():
    model = image_cnn((8, 8, 1), 3, dropout_rates=(0.25, 0.5))
    params = jax.tree.map(jnp.zeros_like, model.init(jax.random.key(0)))
    # All 256 numbers after pooling are 1, so that unit 0 of the dense layer is their mean, and
    # logit 0 is that of the units, of which only unit 0 is not 0.
    params["conv_2"]["b"] = params["conv_2"]["b"] + 1
    params["dense_1"]["w"] = params["dense_1"]["w"].at[:, 0].set(1 / 256)
    params["dense_2"]["w"] = params["dense_2"]["w"].at[0, 0].set(1)
    batch = {"x": jnp.zeros((1000, 8, 8)), "y": jnp.zeros(1000, int)}
    outputs = jax.jit(model.outputs)(params, batch)
    np.testing.assert_array_equal(outputs, outputs[:1].repeat(1000, 0))
    np.testing.assert_allclose(outputs[0], [1, 0, 0])
    losses, _ = jax.jit(model.loss)(params, batch, jax.random.key(0))
    # loss = log(2 + exp(z)) - z, so that z = log(2 / (exp(loss) - 1)).
    z = np.log(2 / np.expm1(np.asarray(losses, "float64")))
    kept = np.abs(z) > 1e-3
    assert abs(kept.mean() - 0.5) < 5 * math.sqrt(0.25 / 1000)
    # A kept unit counts double. Of 256 numbers each is 4/3 with probability 3/4: variance 1/3.
    shares = z[kept] / 2
    assert abs(shares.mean() - 1) < 5 * math.sqrt(1 / 3 / 256 / kept.sum())
    assert shares.std() == pytest.approx(math.sqrt(1 / 3 / 256), rel=0.2)
    again, _ = jax.jit(model.loss)(params, batch, jax.random.key(0))
    np.testing.assert_array_equal(losses, again)
    other, _ = jax.jit(model.loss)(params, batch, jax.random.key(1))
    assert (losses != other).any()


@pytest.mark.parametrize(
    ("arguments", "options", "sentence"),
    [
        (((28, 28),), {}, r"image_shape must be \[H, W, C\]"),
        (((5, 28, 1),), {}, "The images' height must be a whole number of at least 6"),
        (((28, 28, 1), 1), {}, "num_classes must be a whole number of at least 2"),
        ((), {"dropout_rates": (0.5, 1.0)}, "A dropout rate must be a finite number"),
        ((), {"implementation": "fast"}, "Unknown implementation 'fast'"),
    ],
)
def test_image_cnn_errors(arguments, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        image_cnn(*arguments, **options)


def test_image_cnn_names_inputs_that_do_not_fit():
    model = image_cnn()
    params = jax.eval_shape(model.init, jax.random.key(0))
    with pytest.raises(ValueError, match=r"takes images of the shape \[28, 28, 1\]"):
        jax.eval_shape(model.outputs, params, {"x": jnp.zeros((2, 32, 32, 3))})
