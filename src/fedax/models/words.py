"""Next-word prediction with an LSTM: the Stack Overflow task."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from fedax.algorithm import Array, Model, Params
from fedax.factories import factory
from fedax.models.initializers import init_layer
from fedax.models.next_token import next_token
from fedax.models.recurrence import init_lstm, lstm
from fedax.validate import check_count


@factory(static=("leave_out",))
def word_lstm(
    vocabulary_size: int = 10_004,
    embedding_size: int = 96,
    num_units: int = 670,
    num_layers: int = 1,
    *,
    leave_out: Sequence[int] = (),
) -> Model:
    """The Stack Overflow model: embedding, LSTM layers, each projected back, and a dense layer.

    With the default sizes it is the network of Charles and Konečný 2020 and Reddi et al. 2021 for
    10,000 words and four further tokens (padding, beginning, end, unknown): 4,050,748 parameters.
    After each LSTM layer a linear layer maps the units back to the embedding's size, as in the code
    released with Reddi et al. 2021. Initial values are those of Keras: embedding uniform in (-0.05,
    0.05), kernels Glorot uniform, recurrent kernels orthogonal, biases 0, except 1 for forget
    gates.

    Args:
      vocabulary_size: V >= 2, including padding (0).
      embedding_size: E >= 1.
      num_units: H >= 1, number of units of each LSTM layer.
      num_layers: number of LSTM layers, >= 1.
      leave_out: ids that the accuracy leaves out as targets, see `fedax.next_token`.

    Returns:
      A model for batches `{'tokens': integer [B, T + 1]}`, as for `fedax.next_token`; its
      parameters are `{'embedding': [V, E], 'layers': ({'lstm': {...}, 'projection': {'w', 'b'}},
      ...), 'output': {'w': [E, V], 'b': [V]}}`, its outputs logits [B, T, V].

    Raises:
      ValueError: if a size is too small.

    Example:
      >>> params = jax.eval_shape(word_lstm().init, jax.random.key(0))
      >>> sum(leaf.size for leaf in jax.tree.leaves(params))
      4050748
    """
    check_count("vocabulary_size", vocabulary_size, at_least=2)
    check_count("embedding_size", embedding_size)
    check_count("num_units", num_units)
    check_count("num_layers", num_layers)

    def init(key: Array) -> Params:
        embedding_key, output_key, *layer_keys = jax.random.split(key, 2 + 2 * num_layers)
        table = (vocabulary_size, embedding_size)
        return {
            "embedding": jax.random.uniform(embedding_key, table, jnp.float32, -0.05, 0.05),
            "layers": tuple(
                {
                    "lstm": init_lstm(lstm_key, embedding_size, num_units),
                    "projection": init_layer(projection_key, (num_units, embedding_size)),
                }
                for lstm_key, projection_key in zip(
                    layer_keys[::2], layer_keys[1::2], strict=True
                )
            ),
            "output": init_layer(output_key, (embedding_size, vocabulary_size)),
        }

    def logits(params: Params, inputs: Array) -> Array:
        hidden = params["embedding"][inputs]
        for layer in params["layers"]:
            hidden = _dense(lstm(hidden, layer["lstm"]), layer["projection"])
        return _dense(hidden, params["output"])

    return next_token(init, logits, leave_out=leave_out)


def _dense(hidden: Array, layer: Params) -> Array:
    return hidden @ layer["w"] + layer["b"][None, None, :]
