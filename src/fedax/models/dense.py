"""Networks of dense layers as problems: logistic regression, an MLP, an autoencoder."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from fedax.algorithm import Array, Batch, Model, Params
from fedax.factories import factory
from fedax.mistakes.errors import ModelError
from fedax.mistakes.model import array_of
from fedax.models.initializers import Initialization, init_layer
from fedax.models.mlp import mlp
from fedax.models.supervised import classification
from fedax.validate import check_count


@factory
def logistic_regression(
    num_features: int = 784, num_classes: int = 62, *, initialization: Initialization = "keras"
) -> Model:
    """Softmax regression, by default with 48,670 parameters (Karimireddy et al. 2020, appendix A).

    It is `mlp_classifier` without hidden layers.

    Args:
      num_features: number of features per example.
      num_classes: number of classes, >= 2.
      initialization: "keras" or "pytorch", see `fedax.models.init_layer`.

    Example:
      >>> params = logistic_regression().init(jax.random.key(0))
      >>> sum(leaf.size for leaf in jax.tree.leaves(params))
      48670
    """
    return mlp_classifier(num_features, (), num_classes, initialization=initialization)


@factory
def mlp_classifier(
    num_features: int = 784,
    hidden_sizes: Sequence[int] = (300, 100),
    num_classes: int = 62,
    *,
    initialization: Initialization = "keras",
) -> Model:
    """Classification by a multi-layer perceptron, `fedax.models.mlp.mlp`.

    By default it is the MLP of Karimireddy et al. 2020 (appendix A, "300u-100"; the paper does not
    state its activation), with 271,862 parameters. `mlp_classifier(hidden_sizes=(200, 200),
    num_classes=10, initialization="pytorch")` is the MNIST network of FedDyn (Acar et al. 2021),
    and of McMahan et al. (2017), with 199,210.

    Args:
      num_features: number of features per example.
      hidden_sizes: widths of the hidden layers.
      num_classes: number of classes, >= 2.
      initialization: "keras" or "pytorch", see `fedax.models.init_layer`.

    Returns:
      A model for batches `{'x': [B, ...], 'y': [B]}`. x is flattened and cast to the parameters'
      dtype; the metrics are `accuracy` and `loss`.

    Raises:
      ValueError: if a size is out of range; when used, if the inputs have the wrong shape.

    Example:
      >>> params = mlp_classifier().init(jax.random.key(0))
      >>> sum(leaf.size for leaf in jax.tree.leaves(params))
      271862
    """
    check_count("num_classes", num_classes, at_least=2)
    sizes = (num_features, *hidden_sizes, num_classes)
    return classification(*mlp(sizes, initialization=initialization))


@factory
def autoencoder(
    num_features: int = 784, hidden_sizes: Sequence[int] = (1000, 500, 250), code_size: int = 30
) -> Model:
    r"""The bottleneck autoencoder of Reddi et al. 2021 for EMNIST, 2,837,314 parameters.

    Dense layers of `hidden_sizes`, then `code_size`, then the sizes mirrored, back to
    `num_features`. All layers use the logistic function except the code, which is linear. With x
    the example's D numbers, which must be in [0, 1], and f(x) the output,

    .. math:: \ell = \frac1D \lVert f(x) - x \rVert^2

    Reddi et al. 2021 trains it on inverted pixels, 1 - x. The code released with the paper sums
    this loss over a minibatch, whereas fedax takes the mean: multiply its client learning rates by
    the batch size to get those of fedax.

    Args:
      num_features: D, number of features per example.
      hidden_sizes: widths of the layers before the code; those after it are mirrored.
      code_size: width of the code.

    Returns:
      A model for batches `{'x': [B, ...]}` with the metric `loss`. Its outputs are f(x) [B, D], and
      its parameters a tuple of layers `{'w': [in, out], 'b': [out]}`, initialised as in Keras.

    Raises:
      ValueError: if a size is not a whole number >= 1.

    Example:
      >>> params = jax.eval_shape(autoencoder().init, jax.random.key(0))
      >>> sum(leaf.size for leaf in jax.tree.leaves(params))
      2837314
    """
    sizes = (num_features, *hidden_sizes, code_size, *reversed(hidden_sizes), num_features)
    for size in sizes:
        check_count("A layer size", size)

    def init(key: Array) -> Params:
        keys = jax.random.split(key, len(sizes) - 1)
        return tuple(
            init_layer(layer_key, shape)
            for layer_key, shape in zip(keys, itertools.pairwise(sizes), strict=True)
        )

    def inputs(batch: Batch, like: Array) -> Array:
        x = array_of(batch, "x", "inputs")
        flat = x.reshape(x.shape[0], -1).astype(like.dtype)
        if flat.shape[1] != num_features:
            raise ModelError(
                f"The autoencoder takes {num_features} numbers per example, but the inputs have "
                f"the shape {list(x.shape)}, {flat.shape[1]} per example."
            )
        return flat

    def outputs(params: Params, batch: Batch) -> Array:
        hidden = inputs(batch, params[0]["w"])
        for place, layer in enumerate(params):
            hidden = hidden @ layer["w"] + layer["b"][None, :]
            if place != len(hidden_sizes):  # the code
                hidden = jax.nn.sigmoid(hidden)
        return hidden

    def squared_error(outputs: Array, batch: Batch) -> tuple[Array, Array]:
        values = jnp.square(outputs - inputs(batch, outputs)).mean(1)
        return values, jnp.ones_like(values)

    return Model(
        init=init,
        loss=lambda params, batch, key: squared_error(outputs(params, batch), batch),  # noqa: ARG005
        outputs=outputs,
        metrics={"loss": squared_error},
    )
