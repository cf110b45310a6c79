"""The workloads' models for fedjax: its own where it has one, otherwise plain functions.

A model is (params, batch, key, train) -> (losses [B], weights [B]), with its initial parameters.
"""

import fedjax
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from fedjax.models.emnist import ConvDropoutModule
from jax import lax

cross_entropy = fedjax.metrics.unreduced_cross_entropy_loss


def model_of(data, dropout):
    """The model, and the workload's initial parameters."""
    return MODELS[data.workload.model](data.params, dropout and data.workload.dropout)


def equally(values):
    return values, jnp.ones_like(values)


def classifier(logits):
    """From (params, x) -> logits, with the workload's own names of parameters."""

    def losses(params, batch, key, train):
        del key, train
        return equally(cross_entropy(batch["y"], logits(params, batch["x"])))

    return lambda p, dropout: (losses, p)  # noqa: ARG005


def layers(p):
    """The numbered dense layers, in their order."""
    names = sorted({name.split("/")[0] for name in p})
    return [(p[f"{name}/kernel"], p[f"{name}/bias"]) for name in names]


def mlp(p, x):
    *hidden, (kernel, bias) = layers(p)
    for below, offset in hidden:
        x = jax.nn.relu(x @ below + offset)
    return x @ kernel + bias


def autoencoder(p, dropout):
    del dropout

    def losses(params, batch, key, train):
        del key, train
        hidden = batch["x"]
        for place, (kernel, bias) in enumerate(layers(params)):
            hidden = hidden @ kernel + bias
            if place != 3:  # the code
                hidden = jax.nn.sigmoid(hidden)
        return equally(jnp.square(hidden - batch["x"]).mean(1))

    return losses, p


def cnn(p, dropout):
    """fedjax's own."""
    module = "conv_dropout_module/"
    names = {"conv2_d": "conv0", "conv2_d_1": "conv1", "linear": "dense0", "linear_1": "dense1"}
    start = {
        module + haiku: {"w": p[f"{ours}/kernel"], "b": p[f"{ours}/bias"]}
        for haiku, ours in names.items()
    }
    classes = len(p["dense1/bias"])
    transformed = hk.transform(
        lambda batch, is_train: ConvDropoutModule(classes)(batch["x"], is_train)
    )

    def losses(params, batch, key, train):
        return equally(cross_entropy(
            batch["y"], transformed.apply(params, key, batch, train and dropout)
        ))

    return losses, start


def convolution(x, kernel, stride):
    return lax.conv_general_dilated(
        x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def resnet18(p, x):
    def norm(x, name):
        grouped = x.reshape(len(x), -1, 2, x.shape[3] // 2)
        mean = grouped.mean((1, 3), keepdims=True)
        variance = grouped.var((1, 3), keepdims=True)
        normal = ((grouped - mean) * lax.rsqrt(variance + 1e-3)).reshape(x.shape)
        return normal * p[f"{name}/scale"] + p[f"{name}/offset"]

    def activated(x, name):
        return jax.nn.relu(norm(x, name))

    x = activated(convolution(x, p["stem/kernel"], 2), "stem/norm")
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    for place in range(8):
        name = f"blocks/{place}"
        shortcut = p.get(f"{name}/shortcut/kernel")
        stride = 1 if shortcut is None else 2
        hidden = activated(x, f"{name}/norm_1") if place else x
        hidden = convolution(hidden, p[f"{name}/conv_1/kernel"], stride)
        hidden = activated(hidden, f"{name}/norm_2")
        if shortcut is not None:
            x = norm(convolution(x, shortcut, 2), f"{name}/shortcut_norm")
        x = x + convolution(hidden, p[f"{name}/conv_2/kernel"], 1)
    return activated(x, "norm").mean((1, 2)) @ p["dense/kernel"] + p["dense/bias"]


def characters(logits):
    """Losses from (params, tokens [B, 80]) -> logits [B, 80, 90]; padding does not count."""

    def losses(params, batch, key, train):
        del key, train
        tokens = batch["tokens"].astype(jnp.int32)
        targets = tokens[:, 1:]
        values = cross_entropy(targets, logits(params, tokens[:, :-1]))
        counts = (targets != 0).astype(values.dtype)
        total = counts.sum(1)
        return (values * counts).sum(1) / jnp.maximum(total, 1), total

    return losses


def character_lstm(p, dropout):
    """fedjax's Shakespeare model without its tanh between the layers, which no other has.

    And with `dynamic_unroll` for its `static_unroll`, which took 190 s to compile and 34 s a round
    where this takes 10.
    """
    del dropout

    def forward(tokens):
        hidden = hk.Embed(90, 8)(tokens.T)
        core = hk.DeepRNN([hk.LSTM(256), hk.LSTM(256)])
        hidden, _ = hk.dynamic_unroll(core, hidden, core.initial_state(hidden.shape[1]))
        return jnp.transpose(hk.Linear(90)(hidden), (1, 0, 2))

    transformed = hk.transform(forward)

    def layer(number):
        # Haiku's gates are i, g, f, o, and it adds 1 to the forget gate.
        def gates(array):
            i, f, g, o = np.split(array, 4, -1)
            return np.concatenate([i, g, f, o], -1)

        kernel = np.concatenate([p[f"lstm{number}/input_kernel"],
                                 p[f"lstm{number}/recurrent_kernel"]])
        bias = gates(p[f"lstm{number}/bias"]).copy()
        bias[512:768] -= 1
        return {"w": gates(kernel), "b": bias}

    start = {
        "embed": {"embeddings": p["embedding"]},
        "lstm/linear": layer(0),
        "lstm_1/linear": layer(1),
        "linear": {"w": p["dense/kernel"], "b": p["dense/bias"]},
    }
    return characters(lambda params, tokens: transformed.apply(params, None, tokens)), start


def character_gru(p, dropout):
    """With the reset gate after the recurrent product; Haiku's GRU has it before."""
    del dropout

    def layer(params, name, x):
        kernel, bias = params[f"{name}/recurrent_kernel"], params[f"{name}/recurrent_bias"]

        def step(hidden, projected):
            r, z, n = jnp.split(projected, 3, -1)
            a_r, a_z, a_n = jnp.split(hidden @ kernel + bias, 3, -1)
            z = jax.nn.sigmoid(z + a_z)
            n = jnp.tanh(n + jax.nn.sigmoid(r + a_r) * a_n)
            hidden = (1 - z) * n + z * hidden
            return hidden, hidden

        projected = x @ params[f"{name}/input_kernel"] + params[f"{name}/bias"]
        return lax.scan(step, jnp.zeros((x.shape[1], 256)), projected)[1]

    def logits(params, tokens):
        hidden = params["embedding"][tokens.T]
        for name in ("gru0", "gru1"):
            hidden = layer(params, name, hidden)
        return jnp.swapaxes(hidden @ params["dense/kernel"] + params["dense/bias"], 0, 1)

    return characters(logits), p


def tags(p, dropout):
    """Words by their numbers; the gradient of the kernel is dense."""
    del dropout

    def losses(params, batch, key, train):
        del key, train
        logits = params["dense/kernel"][batch["words"]].mean(1) + params["dense/bias"]
        targets = jax.nn.one_hot(batch["tags"], logits.shape[1]).max(1)
        return equally((jax.nn.softplus(logits) - targets * logits).mean(1))

    return losses, p


def linear(p, x):
    return x @ p["dense/kernel"] + p["dense/bias"]


MODELS = {
    "logistic": classifier(linear), "tiny": classifier(linear), "mlp": classifier(mlp),
    "autoencoder": autoencoder, "emnist_cnn": cnn, "cifar_cnn": cnn,
    "resnet18": classifier(resnet18), "lstm": character_lstm, "gru": character_gru, "tags": tags,
}
