"""fedjax's side of the benchmark: its federated averaging and, where it has one, its model.

Where JAX has several devices, clients train on them side by side, with fedjax's own backend.
"""

import functools
import sys
from importlib.metadata import version

import fedjax
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from fedjax.models.emnist import ConvDropoutModule

import protocol
import workloads


def classifier(forward, start, dropout):
    """A Haiku function of (batch, is_train) as (loss of batch, initial parameters)."""
    transformed = hk.transform(forward)

    def losses(params, rng, batch, is_train):
        logits = transformed.apply(params, rng, batch, is_train)
        return fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], logits).mean()

    return lambda params, batch, rng, train: losses(params, rng, batch, train and dropout), start


def model_of(data, dropout):
    """(params, batch, key, train) -> loss, and the workload's initial parameters."""
    p, name = data.params, data.workload.model
    if name in ("logistic", "tiny"):
        return classifier(
            lambda batch, is_train: hk.Linear(10)(batch["x"]),  # noqa: ARG005
            {"linear": {"w": p["dense/kernel"], "b": p["dense/bias"]}}, dropout,
        )
    if name == "lstm":
        return character_lstm(p)
    module = "conv_dropout_module/"
    names = {"conv2_d": "conv0", "conv2_d_1": "conv1", "linear": "dense0", "linear_1": "dense1"}
    start = {
        module + haiku: {"w": p[f"{ours}/kernel"], "b": p[f"{ours}/bias"]}
        for haiku, ours in names.items()
    }
    classes = len(p["dense1/bias"])
    return classifier(
        lambda batch, is_train: ConvDropoutModule(classes)(batch["x"], is_train), start, dropout
    )


def character_lstm(p):
    """fedjax's Shakespeare model without its tanh between the layers, which no other has.

    And with `dynamic_unroll` for its `static_unroll`, which took 190 s to compile and 34 s a round
    where this takes 10.
    """

    def forward(tokens):
        hidden = hk.Embed(90, 8)(tokens[:, :-1].T)
        core = hk.DeepRNN([hk.LSTM(256), hk.LSTM(256)])
        hidden, _ = hk.dynamic_unroll(core, hidden, core.initial_state(hidden.shape[1]))
        return jnp.transpose(hk.Linear(90)(hidden), (1, 0, 2))

    transformed = hk.transform(forward)

    def loss(params, batch, rng, train):
        del train
        tokens = batch["tokens"].astype(jnp.int32)
        targets = tokens[:, 1:]
        logits = transformed.apply(params, rng, tokens)
        counts = targets != 0
        values = fedjax.metrics.unreduced_cross_entropy_loss(targets, logits)
        return (values * counts).sum() / jnp.maximum(counts.sum(), 1)

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
    return loss, start


class CountedBatches(fedjax.ClientDataset):
    """A client's data set that counts the minibatches taken from all of them."""

    num_batches = 0

    def shuffle_repeat_batch(self, hparams=None, **kwargs):
        view = super().shuffle_repeat_batch(hparams, **kwargs)
        CountedBatches.num_batches += view._num_steps
        return view


def main(name, path, check):
    data = workloads.load(name, path)
    workload = data.workload
    if jax.local_device_count() > 1:
        fedjax.set_for_each_client_backend("pmap")
    loss, params = model_of(data, dropout=not check)
    params = jax.tree_util.tree_map(jnp.asarray, params)
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        jax.grad(lambda params, batch, rng: loss(params, batch, rng, True)),
        fedjax.optimizers.sgd(workload.learning_rate),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(workload.batch_size, num_epochs=1, skip_shuffle=check),
    )
    state = algorithm.init(params)
    evaluate = jax.jit(lambda params, batch: loss(params, batch, jax.random.PRNGKey(0), False))
    rounds = protocol.Rounds(
        lambda: evaluate(state.params, data.check()),
        versions={"fedjax": version("fedjax"), "jax": jax.__version__},
    )
    key = jax.random.PRNGKey(0)
    round_index = 0
    while rounds.begin():
        key, *keys = jax.random.split(key, workload.cohort_size + 1)
        clients = [
            (client, CountedBatches(data.client(client)), rng)
            for client, rng in zip(data.cohort(round_index), keys, strict=True)
        ]
        state, _ = algorithm.apply(state, clients)
        rounds.end(
            CountedBatches.num_batches, functools.partial(jax.block_until_ready, state.params)
        )
        CountedBatches.num_batches = 0
        round_index += 1


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], check=sys.argv[3:] == ["check"])
