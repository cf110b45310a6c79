"""The GRU layer against a plain scan that JAX differentiates, and against Flax's cell."""

from collections.abc import Callable, Mapping
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fedax
from fedax.algorithm import Array, PyTree
from fedax.models import character_lstm, gru, init_gru

NUM_FEATURES, NUM_UNITS = 5, 6


def plain_gru(inputs: Array, parameters: Mapping[str, Array]) -> Array:
    """The equations as they stand, one position and one gate at a time."""

    def gates(x: Array, kernel: str, bias: str) -> list[Array]:
        parts = [slice(start, start + num_units) for start in (0, num_units, 2 * num_units)]
        return [x @ parameters[kernel][:, part] + parameters[bias][None, part] for part in parts]

    def step(hidden: Array, x: Array) -> tuple[Array, Array]:
        of_inputs = gates(x, "input_kernel", "bias")
        of_hidden = gates(hidden, "recurrent_kernel", "recurrent_bias")
        reset = 1 / (1 + jnp.exp(-of_inputs[0] - of_hidden[0]))
        update = 1 / (1 + jnp.exp(-of_inputs[1] - of_hidden[1]))
        new = jnp.tanh(of_inputs[2] + reset * of_hidden[2])
        hidden = new + update * (hidden - new)
        return hidden, hidden

    num_units = parameters["recurrent_kernel"].shape[0]
    zeros = jnp.zeros((inputs.shape[0], num_units), inputs.dtype)
    _, outputs = lax.scan(step, zeros, inputs.swapaxes(0, 1))
    return outputs.swapaxes(0, 1)


def draw(dtype: str = "float64", *clients: int, sizes: tuple[int, int] = (3, 7)) -> PyTree:
    """Inputs, parameters and a cotangent, all of them away from 0."""
    random = np.random.default_rng(0)

    def normal(*shape: int) -> Array:
        return jnp.asarray(random.normal(size=(*clients, *shape)), dtype)

    parameters = {
        "input_kernel": normal(NUM_FEATURES, 3 * NUM_UNITS),
        "recurrent_kernel": normal(NUM_UNITS, 3 * NUM_UNITS),
        "bias": normal(3 * NUM_UNITS),
        "recurrent_bias": normal(3 * NUM_UNITS),
    }
    return normal(*sizes, NUM_FEATURES), parameters, normal(*sizes, NUM_UNITS)


def value_and_gradients(layer: Callable, *arguments: PyTree) -> PyTree:
    @jax.jit
    def both(inputs: Array, parameters: PyTree, cotangent: Array) -> PyTree:
        outputs, pullback = jax.vjp(layer, inputs, parameters)
        return outputs, pullback(cotangent)

    return both(*arguments)


def loss(layer: Callable, cotangent: Array, arguments: PyTree) -> Array:
    """With curvature in the outputs, so that second derivatives meet every term."""
    return (cotangent * jnp.sin(layer(*arguments))).sum()


def assert_close(actual: PyTree, expected: PyTree, tolerance: float = 1e-12) -> None:
    def check(a: Array, b: Array) -> None:
        assert a.dtype == b.dtype
        scale = max(1.0, float(jnp.abs(b).max()))
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * scale)

    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    jax.tree.map(check, actual, expected)


# Float32 has 6e-8 of rounding per operation and T H = 42 terms in each sum.
@pytest.mark.parametrize(
    ("dtype", "sizes", "tolerance"),
    [
        ("float64", (3, 7), 1e-12), ("float64", (1, 7), 1e-12), ("float64", (3, 1), 1e-12),
        ("float64", (1, 1), 1e-12), ("float32", (3, 7), 5e-6),
    ],
)
def test_value_and_gradients_equal_the_plain_scan(dtype, sizes, tolerance):
    arguments = draw(dtype, sizes=sizes)
    expected = value_and_gradients(plain_gru, *arguments)
    assert_close(value_and_gradients(gru, *arguments), expected, tolerance)


@pytest.mark.slow
def test_equals_the_cell_of_flax():
    inputs, parameters, _ = draw()
    # Flax has no recurrent bias of r and z, and adds the two.
    sums = parameters["bias"] + parameters["recurrent_bias"]
    biases = [*jnp.split(sums, 3)[:2], jnp.split(parameters["bias"], 3)[2]]
    parts = {
        f"i{gate}": {"kernel": kernel, "bias": bias}
        for gate, kernel, bias in zip(
            "rzn", jnp.split(parameters["input_kernel"], 3, 1), biases, strict=True
        )
    } | {
        f"h{gate}": {"kernel": kernel}
        for gate, kernel in zip("rzn", jnp.split(parameters["recurrent_kernel"], 3, 1), strict=True)
    }
    parts["hn"]["bias"] = jnp.split(parameters["recurrent_bias"], 3)[2]
    layer = nn.RNN(nn.GRUCell(NUM_UNITS, dtype="float64", param_dtype="float64"))
    assert_close(gru(inputs, parameters), layer.apply({"params": {"cell": parts}}, inputs))


@pytest.mark.quick
def test_two_positions_by_hand():
    # W = U = 0, so that r = sigma(b_r + c_r) = 1/4, z = sigma(b_z + c_z) = 1/3 and
    # n = tanh(b_n + r c_n) = tanh(0.5 + 0.8 / 4); h_1 = 2n/3 and h_2 = 2n/3 + h_1/3.
    parameters = {
        "input_kernel": jnp.zeros((1, 3)),
        "recurrent_kernel": jnp.zeros((1, 3)),
        "bias": jnp.array([-np.log(3), -np.log(4), 0.5]),
        "recurrent_bias": jnp.array([0, np.log(2), 0.8]),
    }
    n = np.tanh(0.7)
    outputs = gru(jnp.ones((1, 2, 1)), parameters)
    np.testing.assert_allclose(outputs[0, :, 0], [2 * n / 3, 8 * n / 9], rtol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("shared_parameters", [False, True])
def test_vmap_over_clients(shared_parameters):
    inputs, parameters, cotangent = draw("float64", 4)
    axes = (0, 0, 0)
    if shared_parameters:
        parameters, axes = jax.tree.map(lambda array: array[0], parameters), (0, None, 0)
    expected = [
        value_and_gradients(
            plain_gru,
            inputs[client],
            parameters if shared_parameters else {k: v[client] for k, v in parameters.items()},
            cotangent[client],
        )
        for client in range(4)
    ]
    actual = jax.vmap(partial(value_and_gradients, gru), axes)(inputs, parameters, cotangent)
    assert_close(actual, jax.tree.map(lambda *leaves: jnp.stack(leaves), *expected))


@pytest.mark.slow
def test_derivatives_of_second_order():
    inputs, parameters, cotangent = draw()
    arguments = (inputs, parameters)
    direction = jax.tree.map(jnp.cos, arguments)

    def derivatives(layer: Callable) -> PyTree:
        gradient = jax.grad(partial(loss, layer, cotangent))

        def slope(arguments: PyTree) -> Array:
            terms = jax.tree.map(lambda a, b: (a * b).sum(), gradient(arguments), direction)
            return jnp.stack(jax.tree.leaves(terms)).sum()

        return jax.jvp(gradient, (arguments,), (direction,))[1], jax.grad(slope)(arguments)

    actual, expected = (jax.jit(partial(derivatives, layer))() for layer in (gru, plain_gru))
    assert_close(actual, expected)


def test_gradient_steps_inside_a_loop_and_a_checkpoint():
    inputs, parameters, cotangent = draw()

    @partial(jax.jit, static_argnums=0)
    def descend(layer: Callable, bound: int) -> PyTree:
        def step(_: Array, current: PyTree) -> PyTree:
            gradient = jax.grad(partial(loss, jax.checkpoint(layer), cotangent))((inputs, current))
            return jax.tree.map(lambda a, b: a - 0.01 * b, current, gradient[1])

        return lax.fori_loop(0, bound, step, parameters)

    assert_close(descend(gru, 3), descend(plain_gru, 3))


@pytest.mark.parametrize("sizes", [(0, 3), (2, 0)])
def test_no_sequences_and_no_positions(sizes):
    arguments = draw(sizes=sizes)
    outputs, (_, gradients) = value_and_gradients(gru, *arguments)
    assert outputs.shape == (*sizes, NUM_UNITS)
    assert not any(leaf.any() for leaf in gradients.values())


def test_init_follows_keras():
    num_features, num_units = 40, 30
    parameters = init_gru(jax.random.key(3), num_features, num_units)
    assert all(leaf.dtype == "float32" for leaf in parameters.values())
    # Three gates, each with a weight from every input and unit, and two biases.
    size = sum(leaf.size for leaf in parameters.values())
    assert size == 3 * num_units * (num_features + num_units + 2)
    assert not parameters["bias"].any()
    assert not parameters["recurrent_bias"].any()
    recurrent = parameters["recurrent_kernel"]
    np.testing.assert_allclose(recurrent @ recurrent.T, np.eye(num_units), atol=1e-5)
    limit = np.sqrt(6 / (num_features + 3 * num_units))
    assert 0.99 * limit < float(jnp.abs(parameters["input_kernel"]).max()) <= limit


@pytest.mark.parametrize("sizes", [(0, 4), (4, 0)])
def test_init_rejects_empty_layers(sizes):
    with pytest.raises(ValueError, match=f"must be positive, not {sizes[0]} and {sizes[1]}"):
        init_gru(jax.random.key(0), *sizes)


def test_character_model_of_gru_layers_has_its_size():
    # Embedding 90 x 8; per layer 3 gates x 256 units x (inputs + 256 + 2 biases); dense 257 x 90.
    expected = 90 * 8 + 3 * 256 * (8 + 256 + 2) + 3 * 256 * (256 + 256 + 2) + 257 * 90
    shapes = jax.eval_shape(character_lstm(cell="gru").init, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == expected == 622_890
    of_001 = character_lstm(vocabulary_size=77, cell="gru")  # its Table 3: 77 tokens
    shapes = jax.eval_shape(of_001.init, jax.random.key(0))
    fewer = 13 * (8 + 257)
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == expected - fewer == 619_445
    with pytest.raises(ValueError, match="Unknown cell 'rnn'"):
        character_lstm(cell="rnn")  # pyright: ignore[reportArgumentType]


@pytest.mark.slow
def test_character_model_of_gru_layers_equals_its_equations_and_trains():
    model = character_lstm(32, 1, cell="gru")
    params = jax.tree.map(lambda a: a.astype("float64"), model.init(jax.random.key(0)))
    batch = {"tokens": jnp.array([[3, 4, 5, 0], [9, 8, 7, 6]])}
    hidden = plain_gru(params["embedding"][batch["tokens"][:, :-1]], params["layers"][0])
    logits = hidden @ params["output"]["kernel"] + params["output"]["bias"][None, None]
    assert_close(model.outputs(params, batch), logits)

    task = fedax.load_task("shakespeare", model="small")._replace(model=model)
    algorithm = fedax.fedavg(model, client_learning_rate=1.0, batch_size=4, num_local_steps=4)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        result = fedax.train(task, algorithm, num_rounds=3, cohort_size=4, evaluate_every=0)
    losses = result.history["train_loss"]
    # The first is that of about 90 equally likely characters, log 90 = 4.5.
    assert losses[0] < 4.6
    assert losses[2] < losses[1] < losses[0]
