"""Multi-layer perceptrons: one for arrays, one for characters.

Their parameters are a tuple of layers `{'w': [in, out], 'b': [out]}`. The widths come from the
parameters that are passed in, as matched averaging (`fedax.algorithms.pfnm`) needs: its result is
wider than the networks it was built from.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from fedax.algorithm import Array, Batch, Model, Params
from fedax.factories import factory
from fedax.mistakes.errors import ModelError
from fedax.models.characters import character_accuracy, character_cross_entropy, check_tokens
from fedax.models.initializers import Initialization, check_initialization, init_layer
from fedax.validate import check_count


@factory
def mlp(
    layer_sizes: Sequence[int],
    *,
    initialization: Initialization = "keras",
) -> tuple[Callable[[Array], Params], Callable[[Params, Array], Array]]:
    r"""A multi-layer perceptron, as `init` and `apply` for `fedax.classification`.

    .. math:: h_0 = x, \quad h_c = \max(0, h_{c-1} W_c + b_c), \quad f(x) = h_{C-1} W_C + b_C

    By default weights are Glorot uniform and biases are 0, both float32. A unit whose weights,
    incoming and outgoing, and bias are all 0 never changes: its gradients are exactly 0.

    Args:
      layer_sizes: sizes of the input, every hidden layer and the output, each >= 1.
      initialization: "keras" or "pytorch", see `fedax.models.init_layer`.

    Returns:
      init: `(key) -> params`, a tuple of layers `{'w': [in, out], 'b': [out]}`.
      apply: `(params, x) -> [B, out]`. x [B, ...] is flattened and cast to the parameters' dtype.

    Raises:
      ValueError: if there are fewer than two sizes, or one is not an integer >= 1; when used, if
        the inputs do not have layer_sizes[0] numbers per example.

    Example:
      >>> from fedax import classification
      >>> model = classification(*mlp((784, 100, 10)))
      >>> params = model.init(jax.random.key(0))
      >>> [layer["w"].shape for layer in params]
      [(784, 100), (100, 10)]
    """
    sizes = tuple(layer_sizes)
    if len(sizes) < 2:
        raise ValueError(f"An MLP needs the sizes of its input and its output, but got {sizes}.")
    for size in sizes:
        check_count("A layer size", size)
    check_initialization(initialization)

    def init(key: Array) -> Params:
        keys = jax.random.split(key, len(sizes) - 1)
        return tuple(
            init_layer(layer_key, shape, initialization)
            for layer_key, shape in zip(keys, itertools.pairwise(sizes), strict=True)
        )

    def apply(params: Params, x: Array) -> Array:
        first, *rest = params
        flat = x.reshape(x.shape[0], -1).astype(first["w"].dtype)
        if flat.shape[1] != first["w"].shape[0]:
            raise ValueError(
                f"The MLP takes {first['w'].shape[0]} numbers per example, but the inputs have "
                f"the shape {list(x.shape)}, {flat.shape[1]} per example."
            )
        return _layers_above(flat @ first["w"] + first["b"][None, :], rest)

    return init, apply


@factory
def character_mlp(
    context: int = 4, hidden_sizes: Sequence[int] = (128,), vocabulary_size: int = 90
) -> Model:
    """Next-character prediction from the last few characters, by an MLP.

    Batches, losses, weights, metrics and padding are those of `fedax.models.character_lstm`. The
    input at position t is the `context` tokens up to and with token t, each as a one-hot vector of
    V numbers, with padding (0) before the first. They are concatenated, oldest first, so the first
    layer is an ordinary one, w [context V, H]. The parameters are those of `mlp((context V,
    *hidden_sizes, V))`.

    Args:
      context: number of characters that the prediction uses, >= 1.
      hidden_sizes: widths of the hidden layers, at least one.
      vocabulary_size: V >= 2, including padding; tokens are in 0, ..., V - 1.

    Returns:
      A `Model` whose outputs are the logits [B, T, V].

    Raises:
      ValueError: if a size is too small.

    Example:
      >>> model = character_mlp(context=2, hidden_sizes=(16,))
      >>> params = model.init(jax.random.key(0))
      >>> [layer["w"].shape for layer in params]
      [(180, 16), (16, 90)]
      >>> batch = {'tokens': jnp.array([[5, 6, 7, 0], [8, 9, 0, 0]], jnp.uint8)}
      >>> losses, weights = model.loss(params, batch, jax.random.key(1))
      >>> weights.tolist()
      [2.0, 1.0]
    """
    check_count("context", context)
    check_count("vocabulary_size", vocabulary_size, at_least=2)
    if not hidden_sizes:
        raise ValueError("character_mlp needs at least one hidden layer, but hidden_sizes is empty")
    init, _ = mlp((context * vocabulary_size, *hidden_sizes, vocabulary_size))

    def logits(params: Params, batch: Batch) -> Array:
        first, *rest = params
        tokens = batch["tokens"][:, :-1].astype(jnp.int32)
        length = tokens.shape[1]
        padded = jnp.pad(tokens, ((0, 0), (context - 1, 0)))
        # The product of a one-hot vector with w is a row of w.
        tables = first["w"].reshape(context, vocabulary_size, -1)
        hidden = first["b"][None, None, :]
        for place in range(context):
            hidden = hidden + tables[place][padded[:, place : place + length]]
        return _layers_above(hidden, rest)

    return Model(
        init=init,
        loss=lambda params, batch, key: character_cross_entropy(logits(params, batch), batch),  # noqa: ARG005
        outputs=logits,
        metrics={"accuracy": character_accuracy, "loss": character_cross_entropy},
        check=lambda params, arrays: check_tokens(arrays, vocabulary_size),  # noqa: ARG005
    )


def hidden_sizes(params: Params) -> list[int]:
    """The widths of a network's hidden layers.

    Raises:
      ModelError: if the parameters are not those of an MLP with a hidden layer.
    """
    layers = list(params) if isinstance(params, list | tuple) else []
    fits = len(layers) > 1 and all(
        isinstance(layer, dict) and set(layer) == {"w", "b"} for layer in layers
    )
    if not fits or any(
        below["b"].shape + above["b"].shape != above["w"].shape
        for below, above in itertools.pairwise(layers)
    ):
        raise ModelError(
            "The parameters must be those of a multi-layer perceptron with at least one hidden "
            "layer, a tuple of {'w': [in, out], 'b': [out]} as fedax.models.mlp builds it, but "
            f"have the shapes {jax.tree.map(lambda leaf: list(leaf.shape), params)}."
        )
    return [layer["b"].shape[0] for layer in layers[:-1]]


def widen(params: Params, sizes: Sequence[int]) -> Params:
    """The network with hidden layers of these sizes; the weights of the units it lacks are 0."""
    rows = [params[0]["w"].shape[0], *sizes]
    columns = [*sizes, params[-1]["b"].shape[0]]
    return tuple(
        {
            "w": jnp.zeros_like(layer["w"], shape=(m, n))
            .at[: layer["w"].shape[0], : layer["w"].shape[1]].set(layer["w"]),
            "b": jnp.zeros_like(layer["b"], shape=n).at[: len(layer["b"])].set(layer["b"]),
        }
        for layer, m, n in zip(params, rows, columns, strict=True)
    )


def select_units(params: Params, units: Sequence[Array]) -> Params:
    """The network of these units (integers) of each hidden layer, in this order."""
    layers = list(params)
    for h, chosen in enumerate(units):
        layers[h] = {"w": layers[h]["w"][:, chosen], "b": layers[h]["b"][chosen]}
        layers[h + 1] = {"w": layers[h + 1]["w"][chosen], "b": layers[h + 1]["b"]}
    return tuple(layers)


def _layers_above(hidden: Array, layers: Sequence[Params]) -> Array:
    """The outputs, from the first layer's pre-activations [..., H] and the layers after it."""
    lead = (None,) * (hidden.ndim - 1)
    for layer in layers:
        hidden = jax.nn.relu(hidden) @ layer["w"] + layer["b"][lead]
    return hidden
