"""The papers' networks against Flax, their sizes, and how their parameters are drawn."""

import math
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedax import models
from fedax.models.initializers import init_layer

COUNTS = {
    "reddi2021, EMNIST": (models.image_cnn(), 1_206_590),
    "charles2020, EMNIST": (models.pooled_cnn(), 1_690_046),
    "decay2021, FEMNIST": (
        models.pooled_cnn(
            (32, 32, 1), 64, kernel_size=3, padding="VALID", initialization="pytorch"
        ),
        # 3x3 kernels; 32 pixels become 15, then 6; 64 outputs.
        9 * 32 + 32 + 9 * 32 * 64 + 64 + (6 * 6 * 64 + 1) * 512 + 513 * 64,
    ),
    "elastic2023 (FedDyn), CIFAR-10": (
        models.pooled_cnn(
            (32, 32, 3), 10, num_filters=(64, 64), padding="VALID", hidden_sizes=(384, 192),
            initialization="pytorch",
        ),
        797_962,
    ),
    "elastic2023 (FedDyn), MNIST": (
        models.mlp_classifier(hidden_sizes=(200, 200), num_classes=10), 199_210,
    ),
    "mime2020, logistic regression": (models.logistic_regression(), 784 * 62 + 62),
    "mime2020, MLP": (models.mlp_classifier(), 271_862),
    "reddi2021, autoencoder": (models.autoencoder(), 2_837_314),
    "mime2020 and reddi2021, CIFAR-100": (models.resnet18(), 11_227_812),
    "mime2020, CIFAR-100": (models.resnet20(), 278_324),
    "ResNet-20 of He et al.": (models.resnet20(num_classes=10), 272_474),
    "reddi2021, Shakespeare": (models.character_lstm(), 820_522),
    "reddi2021, Stack Overflow": (models.word_lstm(), 4_050_748),
}


@pytest.mark.quick
@pytest.mark.parametrize("name", COUNTS)
def test_number_of_parameters(name):
    model, count = COUNTS[name]
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == count
    assert all(leaf.dtype == "float32" for leaf in jax.tree.leaves(shapes))


def double(tree):
    """In float64, and moved from where it was drawn, so that nothing is 0 or 1."""
    random = np.random.default_rng(0)
    return jax.tree.map(
        lambda leaf: jnp.asarray(leaf, "float64") + 0.1 * random.normal(size=leaf.shape), tree
    )


def conv(layer, x, *, strides=1, padding="SAME", bias=True):
    kernel = layer["w"]
    module = nn.Conv(
        kernel.shape[-1], kernel.shape[:2], strides, padding, use_bias=bias, param_dtype="float64"
    )
    params = {"kernel": kernel, "bias": layer["b"]} if bias else {"kernel": kernel}
    return module.apply({"params": params}, x)


def dense(layer, x):
    module = nn.Dense(layer["w"].shape[-1], param_dtype="float64")
    return module.apply({"params": {"kernel": layer["w"], "bias": layer["b"]}}, x)


def normalised(layer, x, num_groups=2):
    module = nn.GroupNorm(
        num_groups, epsilon=1e-3, param_dtype="float64", force_float32_reductions=False
    )
    return module.apply({"params": {"scale": layer["scale"], "bias": layer["offset"]}}, x)


def pooled(x, window=2, padding="VALID"):
    return nn.max_pool(x, (window, window), (2, 2), padding)


def flax_cnn(params, x, padding):
    for name, layer in params.items():
        if name.startswith("conv"):
            x = pooled(nn.relu(conv(layer, x, padding=padding)))
        else:
            x = x.reshape(x.shape[0], -1)
            x = dense(layer, x)
            if name != list(params)[-1]:
                x = nn.relu(x)
    return x


def flax_resnet(params, x, strides, *, stem_stride, num_groups=2):
    norm = partial(normalised, num_groups=num_groups)
    x = conv(params["stem"], x, strides=stem_stride, bias=False)
    x = nn.relu(norm(params["stem"]["norm"], x))
    x = pooled(x, 3, "SAME") if stem_stride == 2 else x
    for layer, stride in zip(params["blocks"], strides, strict=True):
        y = nn.relu(norm(layer["norm_1"], x)) if "norm_1" in layer else x
        y = conv({"w": layer["conv_1"]}, y, strides=stride, bias=False)
        y = conv({"w": layer["conv_2"]}, nn.relu(norm(layer["norm_2"], y)), bias=False)
        if "shortcut" in layer:
            x = conv({"w": layer["shortcut"]}, x, strides=stride, bias=False)
            x = norm(layer["shortcut_norm"], x)
        x = x + y
    return dense(params["dense"], nn.relu(norm(params["norm"], x)).mean((1, 2)))


def flax_autoencoder(params, x):
    for place, layer in enumerate(params):
        x = dense(layer, x.reshape(x.shape[0], -1))
        x = x if place == len(params) // 2 - 1 else nn.sigmoid(x)
    return x


def flax_words(params, tokens):
    x = params["embedding"][tokens]
    for layer in params["layers"]:
        cell = layer["lstm"]
        names = ("input_kernel", "recurrent_kernel", "bias")
        gates = zip("ifgo", *(jnp.split(cell[name], 4, axis=-1) for name in names), strict=True)
        parts = {}
        for gate, inputs, recurrent, bias in gates:
            parts[f"i{gate}"] = {"kernel": inputs}
            parts[f"h{gate}"] = {"kernel": recurrent, "bias": bias}
        units = cell["recurrent_kernel"].shape[0]
        rnn = nn.RNN(nn.OptimizedLSTMCell(units, dtype="float64", param_dtype="float64"))
        x = dense(layer["projection"], rnn.apply({"params": {"cell": parts}}, x))
    return dense(params["output"], x)


SMALL = {
    "pooled_cnn": (
        models.pooled_cnn((9, 8, 2), 3, num_filters=(4, 3), hidden_sizes=(5,)),
        (9, 8, 2), partial(flax_cnn, padding="SAME"),
    ),
    "pooled_cnn without padding": (
        models.pooled_cnn(
            (14, 13, 1), 3, num_filters=(4, 3), kernel_size=3, padding="VALID", hidden_sizes=(5, 4)
        ),
        (14, 13, 1), partial(flax_cnn, padding="VALID"),
    ),
    "residual network with a stem": (
        models.residual_network(
            (9, 12, 3), 5, num_filters=(4, 6), num_blocks=(1, 2), stage_strides=(1, 2),
            stem_size=7, stem_stride=2,
        ),
        (9, 12, 3), partial(flax_resnet, strides=(1, 2, 1), stem_stride=2),
    ),
    "residual network": (
        models.residual_network(
            (7, 6, 3), 5, num_filters=(6, 9), num_blocks=(2, 1), stage_strides=(1, 2),
            stem_size=3, stem_stride=1, num_groups=3,
        ),
        (7, 6, 3), partial(flax_resnet, strides=(1, 1, 2), stem_stride=1, num_groups=3),
    ),
    "mlp": (
        models.mlp_classifier(6, (5, 4), 3), (2, 3),
        lambda params, x: dense(
            params[2], nn.relu(dense(params[1], nn.relu(dense(params[0], x.reshape(-1, 6)))))
        ),
    ),
    "logistic regression": (
        models.logistic_regression(6, 3), (6,), lambda params, x: dense(params[0], x),
    ),
    "autoencoder": (models.autoencoder(6, (5, 4), 2), (2, 3), flax_autoencoder),
    "word_lstm": (models.word_lstm(7, 3, 5, 2), None, flax_words),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_values_and_gradients_equal_those_of_flax(name):
    model, shape, reference = SMALL[name]
    random = np.random.default_rng(1)
    params = double(model.init(jax.random.key(0)))
    if shape is None:
        batch = {"tokens": jnp.asarray(random.integers(1, 7, (3, 6)))}
        inputs = batch["tokens"][:, :-1]
    else:
        inputs = jnp.asarray(random.uniform(size=(4, *shape)))
        batch = {"x": inputs, "y": jnp.array([0, 2, 1, 0])}

    def loss(outputs):
        weights = jnp.cos(jnp.arange(outputs.size)).reshape(outputs.shape)
        return (jnp.sin(outputs) * weights).sum(), outputs

    def value_and_gradient(function):
        return jax.jit(jax.value_and_grad(lambda p: loss(function(p)), has_aux=True))(params)

    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        (_, expected), wanted = value_and_gradient(lambda p: reference(p, inputs))
    (_, actual), gradient = value_and_gradient(lambda p: model.outputs(p, batch))
    np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-12)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-11), gradient, wanted
    )
    # What trains is the loss of these outputs.
    losses, weights = model.loss(params, batch, jax.random.key(2))
    measured, counts = model.metrics["loss"](actual, batch)
    np.testing.assert_allclose(losses, measured, rtol=1e-12)
    np.testing.assert_array_equal(weights, counts)


def test_the_autoencoders_loss_is_the_mean_squared_error():
    model = models.autoencoder(4, (3,), 2)
    x = jnp.asarray(np.random.default_rng(0).uniform(size=(2, 2, 2)), "float32")
    params = model.init(jax.random.key(0))
    outputs = model.outputs(params, {"x": x})
    losses, weights = model.loss(params, {"x": x}, jax.random.key(1))
    errors = np.asarray(outputs) - np.asarray(x).reshape(2, 4)
    np.testing.assert_allclose(losses, (errors**2).sum(1) / 4, rtol=1e-6)
    assert weights.tolist() == [1, 1]


@pytest.mark.parametrize("shape", [(80, 120), (3, 3, 20, 40)])
def test_initial_layers_are_those_of_the_frameworks(shape):
    fan_in, fan_out = math.prod(shape[:-1]), math.prod(shape[:-2]) * shape[-1]
    keras = init_layer(jax.random.key(0), shape)
    limit = math.sqrt(6 / (fan_in + fan_out))
    assert 0.99 * limit < float(jnp.abs(keras["w"]).max()) <= limit
    assert not keras["b"].any()
    pytorch = init_layer(jax.random.key(0), shape, "pytorch")
    # `kaiming_uniform_` with a = sqrt(5): gain sqrt(2 / (1 + 5)), bound gain * sqrt(3 / n).
    limit = math.sqrt(2 / 6) * math.sqrt(3 / fan_in)
    for leaf in pytorch.values():
        assert 0.9 * limit < float(jnp.abs(leaf).max()) <= limit
        assert float(leaf.min()) < -0.8 * limit
    variance = float(jnp.var(pytorch["w"]))
    np.testing.assert_allclose(variance, limit**2 / 3, rtol=0.05)  # over 7,200 numbers and more


@pytest.mark.slow
def test_the_residual_network_is_drawn_as_the_released_code_does():
    params = jax.jit(models.resnet20().init)(jax.random.key(0))
    kernel = params["blocks"][-1]["conv_2"]  # 3 x 3 x 64 inputs
    np.testing.assert_allclose(float(kernel.var()), 2 / (9 * 64), rtol=0.03)
    # Of a normal with this variance cut at two of its own deviations.
    assert float(jnp.abs(kernel).max()) < 2.3 * math.sqrt(2 / (9 * 64))
    np.testing.assert_allclose(float(params["dense"]["w"].std()), 0.01, rtol=0.05)
    assert (params["norm"]["scale"] == 1).all()
    assert not params["norm"]["offset"].any()
    assert "norm_1" not in params["blocks"][0]


@pytest.mark.slow
@pytest.mark.parametrize("num_groups", [1, 2, 6])
def test_the_derivative_of_group_norm_is_that_of_its_equation(num_groups):
    """Forward, backward, forward over backward and backward twice, with respect to all numbers."""
    random = np.random.default_rng(0)
    x, *of_channels = (random.normal(1, 1, size) for size in ((3, 4, 5, 6), (6,), (6,)))
    arguments = tuple(map(jnp.asarray, (x, *of_channels, 0.1)))

    def plain(x, scale, offset, epsilon):
        groups = x.reshape(3, 20, num_groups, -1)
        centred = groups - groups.mean((1, 3), keepdims=True)
        variance = (centred**2).mean((1, 3), keepdims=True)
        z = (centred / jnp.sqrt(variance + epsilon)).reshape(x.shape)
        return z * scale[None, None, None] + offset[None, None, None]

    def fast(x, scale, offset, epsilon):
        return models.group_norm(x, scale, offset, num_groups, epsilon)

    @partial(jax.jit, static_argnums=0)
    def derivatives(norm, *arguments):
        directions = jax.tree.map(jnp.cos, arguments)
        every = (0, 1, 2, 3)

        def total(*arguments):
            return (jnp.sin(norm(*arguments)) * jnp.cos(x)).sum()

        def slope(*arguments):
            return jax.jvp(total, arguments, directions)[1]

        def of_gradient(*arguments):
            gradient = jax.grad(total, every)(*arguments)
            return jnp.stack([jnp.sin(leaf).sum() for leaf in gradient]).sum()

        return (
            jax.jvp(norm, arguments, directions), jax.grad(total, every)(*arguments),
            jax.jvp(jax.grad(total, every), arguments, directions),
            jax.grad(slope, every)(*arguments), jax.grad(of_gradient, every)(*arguments),
        )

    # Sums of 120 numbers in another order, at most three deep: 1e-12 of the largest is generous
    # for 3 * 120 roundings of 1.1e-16, which are 4e-14, times the 4 that 1 / sqrt(0.1) is at most.
    for actual, expected in zip(
        jax.tree.leaves(derivatives(fast, *arguments)),
        jax.tree.leaves(derivatives(plain, *arguments)), strict=True,
    ):
        largest = max(1.0, float(jnp.abs(expected).max()))
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-12 * largest)


def test_group_norm_of_half_precision_sums_in_single():
    x = jnp.asarray(np.random.default_rng(0).normal(300, 1, (1, 16, 16, 4)), "bfloat16")
    one, zero = jnp.ones(4, "bfloat16"), jnp.zeros(4, "bfloat16")
    y = models.group_norm(x, one, zero)
    wide = models.group_norm(
        x.astype("float32"), one.astype("float32"), zero.astype("float32")
    )
    np.testing.assert_allclose(
        np.asarray(y, "float32"), np.asarray(wide), rtol=1e-2, atol=1e-2
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: models.pooled_cnn((4, 4, 1), num_filters=(2, 2, 2)), "After 3 of 3 convolutions"),
        (lambda: models.pooled_cnn((4, 4, 1), padding="VALID"), "does not fit into images"),
        (lambda: models.pooled_cnn(initialization="keros"), "Did you mean 'keras'"),
        (lambda: models.pooled_cnn(image_shape=(28, 28)), "image_shape must be"),
        (lambda: models.pooled_cnn(num_filters=(32, 0)), "A number of filters must be"),
        (lambda: models.pooled_cnn(hidden_sizes=(0,)), "A hidden size must be"),
        (lambda: models.resnet18(num_groups=3), "must divide the number of channels, 64, but is 3"),
        (lambda: models.resnet18(stage_strides=(1, 2)), "one number for each stage"),
        (lambda: models.resnet20(num_classes=1), "num_classes must be"),
        (lambda: models.autoencoder(code_size=0), "A layer size must be"),
        (lambda: models.word_lstm(num_units=0), "num_units must be"),
        (lambda: models.mlp_classifier(initialization="jax"), "Unknown initialization 'jax'"),
    ],
)
def test_sizes_that_do_not_fit_are_sentences(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("name", ["pooled_cnn", "residual network", "autoencoder"])
def test_inputs_that_do_not_fit_are_sentences(name):
    model = SMALL[name][0]
    batch = {"x": jnp.ones((2, 5)), "y": jnp.zeros(2, int)}
    params = model.init(jax.random.key(0))
    with pytest.raises(Exception, match=r"the inputs have the shape \[2, 5\]"):
        model.outputs(params, batch)
