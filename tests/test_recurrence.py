"""The LSTM layer against the plain scan it replaces, differentiated by JAX."""

from collections.abc import Callable, Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from fedax.algorithm import Array, PyTree
from fedax.models import init_lstm, lstm

Layer = Callable[[Array, Mapping[str, Array]], Array]

NUM_SEQUENCES, NUM_POSITIONS, NUM_FEATURES, NUM_UNITS = 3, 7, 5, 6


def plain_lstm(
    inputs: Array, parameters: Mapping[str, Array], gate_order: tuple[int, ...] = (0, 1, 2, 3)
) -> Array:
    """The equations as they stand, one position at a time."""

    def step(state: tuple[Array, Array], x: Array) -> tuple[tuple[Array, Array], Array]:
        hidden, cell = state
        z = x @ parameters["input_kernel"] + hidden @ parameters["recurrent_kernel"]
        gates = jnp.split(z + parameters["bias"][None, :], 4, axis=-1)
        i, f, g, o = (gates[position] for position in gate_order)
        cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
        hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
        return (hidden, cell), hidden

    num_units = parameters["recurrent_kernel"].shape[0]
    zeros = jnp.zeros((inputs.shape[0], num_units), inputs.dtype)
    _, outputs = lax.scan(step, (zeros, zeros), jnp.swapaxes(inputs, 0, 1))
    return jnp.swapaxes(outputs, 0, 1)


def draw(
    dtype: str, num_clients: int | None = None, num_units: int = NUM_UNITS
) -> tuple[Array, dict[str, Array], Array]:
    """Inputs, parameters (all entries away from their special initial values), a cotangent."""
    random = np.random.default_rng(0)
    batch = () if num_clients is None else (num_clients,)

    def normal(*shape: int) -> Array:
        return jnp.asarray(random.normal(size=(*batch, *shape)), dtype)

    parameters = {
        "input_kernel": normal(NUM_FEATURES, 4 * num_units),
        "recurrent_kernel": normal(num_units, 4 * num_units),
        "bias": normal(4 * num_units),
    }
    inputs = normal(NUM_SEQUENCES, NUM_POSITIONS, NUM_FEATURES)
    return inputs, parameters, normal(NUM_SEQUENCES, NUM_POSITIONS, num_units)


@partial(jax.jit, static_argnums=0)
def value_and_gradients(
    layer: Layer, inputs: Array, parameters: Mapping[str, Array], cotangent: Array
) -> PyTree:
    outputs, pullback = jax.vjp(layer, inputs, parameters)
    return outputs, pullback(cotangent)


def loss(layer: Layer, cotangent: Array, arguments: PyTree) -> Array:
    """A loss with curvature in the outputs, so that second derivatives meet every term."""
    return (cotangent * jnp.sin(layer(*arguments))).sum()


def assert_close(actual: PyTree, expected: PyTree, tolerance: float) -> None:
    def check(a: Array, b: Array) -> None:
        assert a.dtype == b.dtype
        scale = max(1.0, float(jnp.abs(b).max()))
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * scale)

    jax.tree.map(check, actual, expected)


# Float32 has 6e-8 of rounding per operation and T H = 42 terms in each sum; bfloat16 2^16 times it.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float64", 1e-12), ("float32", 5e-6), ("bfloat16", 5e-6 * 2**16)]
)
def test_value_and_gradients_equal_the_plain_scan(dtype: str, tolerance: float):
    arguments = draw(dtype)
    expected = value_and_gradients(plain_lstm, *arguments)
    assert_close(value_and_gradients(lstm, *arguments), expected, tolerance)
    with jax.disable_jit():
        assert_close(lstm(*arguments[:2]), expected[0], tolerance)
    assert all(leaf.dtype == dtype for leaf in jax.tree.leaves(expected))


@pytest.mark.slow
@pytest.mark.parametrize("num_clients", [None, 2])
def test_a_width_at_which_the_weight_gradients_transpose_first(num_clients: int | None):
    inputs, parameters, cotangent = draw("float64", num_clients, num_units=256)

    def derivatives(layer: Layer, *arguments: PyTree) -> PyTree:
        inputs, parameters, cotangent = arguments
        gradient = jax.grad(partial(loss, layer, cotangent))
        direction = jax.tree.map(jnp.cos, (inputs, parameters))
        return jax.jvp(gradient, ((inputs, parameters),), (direction,))

    actual, expected = (
        jax.jit(f if num_clients is None else jax.vmap(f))(inputs, parameters, cotangent)
        for f in (partial(derivatives, lstm), partial(derivatives, plain_lstm))
    )
    assert_close(actual, expected, 1e-12)


@pytest.mark.parametrize("gate_order", [(1, 0, 2, 3), (0, 1, 3, 2), (3, 1, 2, 0)])
def test_comparison_notices_a_wrong_gate_order(gate_order: tuple[int, ...]):
    arguments = draw("float64")
    faulty = partial(plain_lstm, gate_order=gate_order)
    expected = value_and_gradients(faulty, *arguments)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_close(value_and_gradients(lstm, *arguments), expected, 1e-12)


@pytest.mark.quick
def test_two_positions_by_hand():
    # W = 0, U = 0 and b = 0 except g: i = f = o = 1/2, g = tanh(b_g), so that
    # c_1 = g/2, c_2 = g/4 + g/2, and h_t = tanh(c_t)/2.
    parameters = {
        "input_kernel": jnp.zeros((1, 4), "float64"),
        "recurrent_kernel": jnp.zeros((1, 4), "float64"),
        "bias": jnp.array([0, 0, 0.7, 0], "float64"),
    }
    g = np.tanh(0.7)
    expected = np.tanh([0.5 * g, 0.75 * g]) / 2
    outputs = lstm(jnp.ones((1, 2, 1), "float64"), parameters)
    np.testing.assert_allclose(outputs[0, :, 0], expected, rtol=1e-14)


@pytest.mark.parametrize("shared_parameters", [False, True])
def test_vmap_over_clients(shared_parameters: bool):
    inputs, parameters, cotangent = draw("float64", num_clients=4)
    axes = (0, 0, 0)
    if shared_parameters:
        parameters, axes = jax.tree.map(lambda array: array[0], parameters), (0, None, 0)
    expected = [
        value_and_gradients(
            plain_lstm,
            inputs[client],
            parameters if shared_parameters else {k: v[client] for k, v in parameters.items()},
            cotangent[client],
        )
        for client in range(4)
    ]
    actual = jax.vmap(partial(value_and_gradients, lstm), in_axes=axes)(
        inputs, parameters, cotangent
    )
    assert_close(actual, jax.tree.map(lambda *leaves: jnp.stack(leaves), *expected), 1e-12)


@pytest.mark.slow
def test_reverse_over_reverse():
    inputs, parameters, cotangent = draw("float64")
    direction = jax.tree.map(jnp.cos, (inputs, parameters))

    def slope(layer: Layer, arguments: PyTree) -> Array:
        gradient = jax.grad(partial(loss, layer, cotangent))(arguments)
        terms = jax.tree.map(lambda a, b: (a * b).sum(), gradient, direction)
        return jnp.stack(jax.tree.leaves(terms)).sum()

    actual, expected = (
        jax.jit(jax.grad(partial(slope, layer)))((inputs, parameters))
        for layer in (lstm, plain_lstm)
    )
    assert_close(actual, expected, 1e-12)


def test_forward_over_reverse_is_a_hessian_vector_product():
    inputs, parameters, cotangent = draw("float64")
    arguments = (inputs, parameters)
    direction = jax.tree.map(jnp.cos, arguments)

    def product(layer: Layer) -> PyTree:
        gradient = jax.jit(jax.grad(partial(loss, layer, cotangent)))
        return jax.jvp(gradient, (arguments,), (direction,))[1]

    assert_close(product(lstm), product(plain_lstm), 1e-12)


def test_forward_mode_of_the_layer_itself_raises():
    inputs, parameters, _ = draw("float64")
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(lambda x: lstm(x, parameters), (inputs,), (inputs,))


def test_checkpoint():
    inputs, parameters, cotangent = draw("float64")
    arguments = (inputs, parameters)
    expected = jax.grad(partial(loss, plain_lstm, cotangent))(arguments)
    checkpointed = jax.jit(jax.grad(jax.checkpoint(partial(loss, lstm, cotangent))))
    assert_close(checkpointed(arguments), expected, 1e-12)


@pytest.mark.parametrize("loop", ["scan", "while_loop"])
def test_gradient_steps_inside_a_loop(loop: str):
    inputs, parameters, cotangent = draw("float64")

    @partial(jax.jit, static_argnums=0)
    def descend(layer: Layer, bound: int) -> PyTree:
        def step(current: PyTree) -> PyTree:
            gradient = jax.grad(partial(loss, layer, cotangent))((inputs, current))[1]
            return jax.tree.map(lambda a, b: a - 0.01 * b, current, gradient)

        if loop == "scan":
            return lax.scan(lambda p, _: (step(p), None), parameters, None, length=3)[0]
        # The bound is traced, so the `fori_loop` is a `while_loop`.
        return lax.fori_loop(0, bound, lambda _, p: step(p), parameters)

    assert_close(descend(lstm, 3), descend(plain_lstm, 3), 1e-12)


def test_clients_under_shard_map():
    inputs, parameters, cotangent = draw("float64", num_clients=2)
    gradients = jax.vmap(partial(value_and_gradients, lstm))
    clients = PartitionSpec("clients")
    mesh = Mesh(np.array(jax.devices()[:1]), ("clients",))
    sharded = jax.jit(jax.shard_map(gradients, mesh=mesh, in_specs=clients, out_specs=clients))
    assert_close(
        sharded(inputs, parameters, cotangent), gradients(inputs, parameters, cotangent), 1e-12
    )


@pytest.mark.parametrize(("num_sequences", "num_positions"), [(0, 3), (2, 0), (1, 1)])
def test_degenerate_shapes(num_sequences: int, num_positions: int):
    _, parameters, _ = draw("float64")
    inputs = jnp.ones((num_sequences, num_positions, NUM_FEATURES), "float64")
    cotangent = jnp.ones((num_sequences, num_positions, NUM_UNITS), "float64")
    outputs, (_, gradients) = value_and_gradients(lstm, inputs, parameters, cotangent)
    assert outputs.shape == cotangent.shape
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(gradients))


def test_init_follows_keras():
    num_features, num_units = 40, 30
    parameters = init_lstm(jax.random.key(3), num_features, num_units)
    assert all(leaf.dtype == "float32" for leaf in parameters.values())
    assert sum(leaf.size for leaf in parameters.values()) == 4 * num_units * (
        num_features + num_units + 1
    )
    bias = parameters["bias"].reshape(4, num_units)
    np.testing.assert_array_equal(bias, np.outer([0, 1, 0, 0], np.ones(num_units)))
    recurrent = parameters["recurrent_kernel"]
    np.testing.assert_allclose(recurrent @ recurrent.T, np.eye(num_units), atol=1e-5)
    limit = np.sqrt(6 / (num_features + 4 * num_units))
    largest = float(jnp.abs(parameters["input_kernel"]).max())
    assert 0.99 * limit < largest <= limit


@pytest.mark.parametrize(("num_features", "num_units"), [(0, 4), (4, 0)])
def test_init_rejects_empty_layers(num_features: int, num_units: int):
    with pytest.raises(ValueError, match="must be positive"):
        init_lstm(jax.random.key(0), num_features, num_units)
