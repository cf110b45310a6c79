"""The convolutional networks of Reddi et al. 2021 for EMNIST and of a CIFAR-10 benchmark."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax

from fedax.algorithm import Array, Batch, Model, Params
from fedax.factories import factory
from fedax.models.convolution import Implementation, convolution, is_fast
from fedax.models.dropout import dropout
from fedax.models.images import as_images, check_image_shape, rectified
from fedax.models.initializers import init_layer
from fedax.models.pooling import pooled_convolution
from fedax.models.supervised import classification
from fedax.validate import check_count, check_number


@factory(static=("dropout_rates",))
def image_cnn(
    image_shape: Sequence[int] = (28, 28, 1),
    num_classes: int = 62,
    *,
    dropout_rates: Sequence[float] = (0.25, 0.5),
    implementation: Implementation = "auto",
) -> Model:
    r"""Classification of images by two convolutions and two dense layers.

    .. math::
        h_1 &= r(x * W_1 + b_1) \quad [H - 2, W - 2, 32], \\
        h_2 &= d_1(\operatorname{pool}_{2 \times 2}(r(h_1 * W_2 + b_2))) \quad [.., .., 64], \\
        h_3 &= d_2(r(h_2 W_3 + b_3)) \quad [128], \qquad f(x) = h_3 W_4 + b_4

    with 3x3 kernels without padding, the maximum over windows of 2x2, r(z) = max(0, z) and dropout
    d: in training a number is set to 0 with its layer's rate p and divided by 1 - p otherwise;
    evaluation does not change it. Weights are Glorot uniform, biases are 0, both float32.

    With the default arguments it is the network for EMNIST with 62 classes in the code released
    with Reddi et al., "Adaptive federated optimization" (ICLR 2021): 1,206,590
    parameters. `image_cnn((32, 32, 3), 10)` is that of the CIFAR-10 benchmark of pfl-research
    (Granqvist et al., "pfl-research: simulation framework for accelerating research in private
    federated learning", 2024), with 1,626,442 parameters. The CNNs of Charles and Konečný 2020, the
    decaying-steps paper (2021) and Chen et al. 2023, which pool after each convolution, are
    `fedax.models.pooled_cnn`.

    Args:
      image_shape: [H, W, C], H and W >= 6.
      num_classes: number of classes, >= 2.
      dropout_rates: rates after pooling and after the dense layer, in [0, 1); (0, 0) turns dropout
        off.
      implementation: as for `fedax.models.convolution.convolution`.

    Returns:
      A model for batches `{'x': [B, H, W, C], 'y': [B]}`. x may have any shape [B, ...] with H W C
      numbers per example; it is cast to the parameters' dtype and not scaled. The metrics are
      `accuracy` and `loss`, the parameters `{'conv_1': {'w', 'b'}, 'conv_2', 'dense_1',
      'dense_2'}`, and the outputs logits [B, num_classes].

    Raises:
      ValueError: if a size or a rate is out of range; when used, if the inputs have the wrong
        shape.

    Example:
      >>> model = image_cnn()
      >>> params = jax.eval_shape(model.init, jax.random.key(0))
      >>> sum(leaf.size for leaf in jax.tree.leaves(params))
      1206590
      >>> {name: layer["w"].shape for name, layer in params.items()}["conv_2"]
      (3, 3, 32, 64)
    """
    shape = check_image_shape(image_shape, smallest=6)
    check_count("num_classes", num_classes, at_least=2)
    is_fast(implementation)
    after_pooling, after_dense = dropout_rates
    for rate in (after_pooling, after_dense):
        check_number("A dropout rate", rate, at_least=0, below=1)
    convolve, pool = (
        functools.partial(function, padding="VALID", implementation=implementation)
        for function in (convolution, pooled_convolution)
    )
    height, width, num_channels = shape
    kernel_shapes = {
        "conv_1": (3, 3, num_channels, 32),
        "conv_2": (3, 3, 32, 64),
        "dense_1": ((height - 4) // 2 * ((width - 4) // 2) * 64, 128),
        "dense_2": (128, num_classes),
    }

    def init(key: Array) -> Params:
        keys = jax.random.split(key, len(kernel_shapes))
        return {
            name: init_layer(layer_key, kernel_shape)
            for layer_key, (name, kernel_shape) in zip(keys, kernel_shapes.items(), strict=True)
        }

    def logits(params: Params, x: Array, key: Array | None = None) -> Array:
        keys = (None, None) if key is None else tuple(jax.random.split(key))
        images = as_images(x, shape, params["conv_1"]["w"])
        hidden = rectified(convolve(images, params["conv_1"]["w"]), params["conv_1"])
        hidden = pool(hidden, params["conv_2"]["w"])
        hidden = dropout(rectified(hidden, params["conv_2"]), after_pooling, keys[0])
        hidden = hidden.reshape(hidden.shape[0], -1) @ params["dense_1"]["w"]
        hidden = dropout(rectified(hidden, params["dense_1"]), after_dense, keys[1])
        return hidden @ params["dense_2"]["w"] + params["dense_2"]["b"][None]

    model = classification(init, logits)

    def loss(params: Params, batch: Batch, key: Array) -> tuple[Array, Array]:
        return model.metrics["loss"](logits(params, batch["x"], key), batch)

    return model._replace(loss=loss)
