"""Next-character prediction with stacked LSTM or GRU layers: the Shakespeare task.

The model of Reddi et al., "Adaptive Federated Optimization" (ICLR 2021), in the code released with
it, and of Charles and Konečný 2020 (appendix C): an embedding of 8 dimensions, two LSTM layers of
256 units and one dense layer to the vocabulary, applied at every position (820,522 parameters),
over windows of 80 characters. The decaying-steps paper (2021, Table 3) has two GRU layers instead,
and 77 tokens.
"""

from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from fedax.algorithm import Array, Batch, Model, Params
from fedax.data.text import PADDING
from fedax.factories import factory
from fedax.mistakes.model import check_range
from fedax.models.next_token import mean_over_targets
from fedax.models.recurrence import gru, init_gru, init_lstm, lstm
from fedax.validate import check_choice

_CELLS = {"lstm": (init_lstm, lstm), "gru": (init_gru, gru)}


@factory
def character_lstm(
    num_units: int = 256,
    num_layers: int = 2,
    embedding_size: int = 8,
    vocabulary_size: int = 90,
    *,
    cell: Literal["lstm", "gru"] = "lstm",
) -> Model:
    """The Shakespeare model: embedding, stacked LSTM layers, one dense layer at every position.

    With `cell="gru"` its layers are GRUs with the same number of units; with the default sizes it
    has 622,890 parameters instead of 820,522. `character_lstm(vocabulary_size=77, cell="gru")` is
    the network of the decaying-steps paper (2021, Table 3), here with 619,445 parameters.

    A batch is `{'tokens': integer [B, T + 1]}`, where 0 is padding. The inputs are the tokens 1 to
    T, the targets y_1, ..., y_T the tokens 2 to T + 1. With M the positions of a sequence whose
    target is not padding, its loss and its weight are

        loss = -1/max(|M|, 1) sum_{t in M} log softmax(logits_t)[y_t]        weight = |M|

    so a weighted average over sequences is the average over targets, and a sequence of padding has
    loss 0 and weight 0. The metrics 'loss' and 'accuracy' (how often the largest logit is the
    target's) follow the same convention.

    The parameters are `{'embedding': [V, E], 'layers': ({...}, ...), 'output': {'kernel': [H, V],
    'bias': [V]}}`, float32, initialised as in Keras: embedding uniform in (-0.05, 0.05), layers by
    `init_lstm` or `init_gru`, output kernel Glorot uniform and bias 0. For another precision, cast
    them: the loss is computed in the parameters' dtype.

    Args:
      num_units: H >= 1, number of units of each recurrent layer.
      num_layers: number of recurrent layers, >= 1.
      embedding_size: E >= 1.
      vocabulary_size: V >= 2, including padding; tokens are in 0, ..., V - 1.
      cell: "lstm", or "gru", see `fedax.models.gru`.

    Returns:
      A `Model` whose outputs are the logits [B, T, V].

    Raises:
      ValueError: if a size is too small, or `cell` is unknown.

    Example:
      >>> model = character_lstm(num_units=16, num_layers=1)
      >>> params = model.init(jax.random.key(0))
      >>> batch = {'tokens': jnp.array([[5, 6, 7, 0], [8, 9, 0, 0]], jnp.uint8)}
      >>> losses, weights = model.loss(params, batch, jax.random.key(1))
      >>> weights.tolist()
      [2.0, 1.0]
    """
    if min(num_units, num_layers, embedding_size) < 1 or vocabulary_size < 2:
        raise ValueError(
            "num_units, num_layers and embedding_size must be at least 1 and vocabulary_size at "
            f"least 2, not {num_units}, {num_layers}, {embedding_size} and {vocabulary_size}"
        )
    check_choice("cell", cell, _CELLS)
    init_layer, layer = _CELLS[cell]

    def init(key: Array) -> Params:
        embedding_key, output_key, *layer_keys = jax.random.split(key, 2 + num_layers)
        widths = [embedding_size] + [num_units] * (num_layers - 1)
        glorot = jax.nn.initializers.glorot_uniform()
        shape = (vocabulary_size, embedding_size)
        return {
            "embedding": jax.random.uniform(embedding_key, shape, jnp.float32, -0.05, 0.05),
            "layers": tuple(
                init_layer(layer_key, width, num_units)
                for layer_key, width in zip(layer_keys, widths, strict=True)
            ),
            "output": {
                "kernel": glorot(output_key, (num_units, vocabulary_size), jnp.float32),
                "bias": jnp.zeros(vocabulary_size, jnp.float32),
            },
        }

    def loss(params: Params, batch: Batch, key: Array) -> tuple[Array, Array]:
        del key  # The model has no dropout.
        return character_cross_entropy(logits(params, batch), batch)

    def logits(params: Params, batch: Batch) -> Array:
        # A gather: as a one-hot product a step takes as long, or 1.2 times under `vmap` with 128
        # units.
        hidden = params["embedding"][batch["tokens"][:, :-1]]  # [B, T, E]
        for parameters in params["layers"]:
            hidden = layer(hidden, parameters)
        return hidden @ params["output"]["kernel"] + params["output"]["bias"][None, None, :]

    return Model(
        init=init,
        loss=loss,
        outputs=logits,
        metrics={"accuracy": character_accuracy, "loss": character_cross_entropy},
        check=lambda params, arrays: check_tokens(arrays, vocabulary_size),  # noqa: ARG005
    )


def check_tokens(arrays: Mapping[str, Any], vocabulary_size: int) -> None:
    """Raises a `ModelError` if a token is not in the vocabulary."""
    tokens = arrays.get("tokens")
    if tokens is not None and tokens.dtype.kind in "iu":  # otherwise the loss says so
        check_range("The tokens", tokens, vocabulary_size, "tokens")


def character_cross_entropy(logits: Array, batch: Batch) -> tuple[Array, Array]:
    """Each sequence's mean loss over its targets, and their number, both [B]."""
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, _targets(batch))
    return mean_over_targets(losses, _counts(losses, batch))


def character_accuracy(logits: Array, batch: Batch) -> tuple[Array, Array]:
    """Each sequence's accuracy over its targets and their number, both [B]."""
    hits = jnp.argmax(logits, axis=-1).astype(jnp.int32) == _targets(batch)
    values = hits.astype(logits.dtype)
    return mean_over_targets(values, _counts(values, batch))


def _targets(batch: Batch) -> Array:
    return batch["tokens"][:, 1:].astype(jnp.int32)


def _counts(values: Array, batch: Batch) -> Array:
    """1 for the targets that count, 0 for padding, [B, T]."""
    return (_targets(batch) != PADDING).astype(values.dtype)
