"""Convolutional networks with pooling after each convolution.

They are the CNNs of Charles and Konečný 2020, the decaying-steps paper (2021) and Chen et al. 2023.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax

from fedax.algorithm import Array, Model, Params
from fedax.factories import factory
from fedax.models.convolution import Implementation, check_pads, is_fast
from fedax.models.images import as_images, check_image_shape, rectified
from fedax.models.initializers import Initialization, check_initialization, init_layer
from fedax.models.pooling import pooled_convolution
from fedax.models.supervised import classification
from fedax.validate import check_choice, check_count


@factory
def pooled_cnn(
    image_shape: Sequence[int] = (28, 28, 1),
    num_classes: int = 62,
    *,
    num_filters: Sequence[int] = (32, 64),
    kernel_size: int = 5,
    padding: str = "SAME",
    hidden_sizes: Sequence[int] = (512,),
    initialization: Initialization = "keras",
    implementation: Implementation = "auto",
) -> Model:
    r"""Classification of images by convolutions, each with 2x2 pooling, and dense layers.

    .. math::
        h_0 &= x, \qquad h_c = \operatorname{pool}_{2 \times 2}(r(h_{c-1} * W_c + b_c)) \\
        h_d &= r(h_{d-1} W_d + b_d), \qquad f(x) = h_{D-1} W_D + b_D

    with r(z) = max(0, z), and the maximum over windows of 2x2; a last odd row or column is dropped.

    * `pooled_cnn()` is the CNN of McMahan et al. (2017) that Charles and Konečný 2020 trains on
      EMNIST with 62 classes (appendix C): 1,690,046 parameters.
    * `pooled_cnn((32, 32, 1), kernel_size=3, num_classes=64, padding="VALID")` is the CNN of the
      decaying-steps paper (2021, Table 2), with 64 outputs and images of 32 x 32 as printed:
      1,231,808 parameters. The paper trains in TensorFlow (appendix B) and does not state padding
      or initialisation; these are the defaults of its Keras layers.
    * `pooled_cnn((32, 32, 3), 10, num_filters=(64, 64), padding="VALID", hidden_sizes=(384, 192),
      initialization="pytorch")` is the CIFAR-10 network of FedDyn (Acar et al. 2021), whose code
      made the data of Chen et al. 2023: 797,962 parameters. Chen et al. 2023 does not say which
      CNNs it trains.

    Args:
      image_shape: [H, W, C].
      num_classes: number of classes, >= 2.
      num_filters: number of filters of each convolution.
      kernel_size: height and width of the kernels.
      padding: padding of the convolutions, "SAME" or "VALID".
      hidden_sizes: widths of the dense layers before the last.
      initialization: "keras" or "pytorch", see `fedax.models.init_layer`.
      implementation: as for `fedax.models.convolution`.

    Returns:
      A model for batches `{'x': [B, H, W, C], 'y': [B]}`, as for `fedax.models.image_cnn`. Its
      parameters are `{'conv_1': {'w', 'b'}, ..., 'dense_1', ...}`.

    Raises:
      ValueError: if a size is out of range, or pooling leaves no pixels for the dense layers; when
        used, if the inputs have the wrong shape.

    Example:
      >>> params = jax.eval_shape(pooled_cnn().init, jax.random.key(0))
      >>> sum(leaf.size for leaf in jax.tree.leaves(params))
      1690046
    """
    shape = check_image_shape(image_shape)
    check_count("num_classes", num_classes, at_least=2)
    check_count("kernel_size", kernel_size)
    check_choice("padding", padding, ("SAME", "VALID"))
    check_initialization(initialization)
    is_fast(implementation)
    window = (kernel_size, kernel_size)
    sizes, kernel_shapes = shape[:2], {}
    for place, (before, filters) in enumerate(
        zip((shape[2], *num_filters), num_filters, strict=False), start=1
    ):
        check_count("A number of filters", filters)
        pads = check_pads(padding, sizes, window, (1, 1))
        sizes = tuple(
            (size + sum(pair) - kernel_size + 1) // 2
            for size, pair in zip(sizes, pads, strict=True)
        )
        if min(sizes) < 1:
            raise ValueError(
                f"After {place} of {len(num_filters)} convolutions and poolings no pixels are "
                f"left of images of {list(shape[:2])}. Use fewer num_filters, or larger images."
            )
        kernel_shapes[f"conv_{place}"] = (*window, before, filters)
    widths = (sizes[0] * sizes[1] * (*shape, *num_filters)[-1], *hidden_sizes, num_classes)
    for place, width in enumerate(widths[1:], start=1):
        check_count("A hidden size", width)
        kernel_shapes[f"dense_{place}"] = (widths[place - 1], width)

    def init(key: Array) -> Params:
        keys = jax.random.split(key, len(kernel_shapes))
        return {
            name: init_layer(layer_key, kernel_shape, initialization)
            for layer_key, (name, kernel_shape) in zip(keys, kernel_shapes.items(), strict=True)
        }

    def logits(params: Params, x: Array) -> Array:
        hidden = as_images(x, shape, params["dense_1"]["w"])
        for place in range(1, len(num_filters) + 1):
            layer = params[f"conv_{place}"]
            pooled = pooled_convolution(
                hidden, layer["w"], padding, implementation=implementation
            )
            # Bias and activation after the maximum, which they keep: a quarter of the numbers.
            hidden = rectified(pooled, layer)
        hidden = hidden.reshape(hidden.shape[0], -1)
        for place in range(1, len(hidden_sizes) + 1):
            layer = params[f"dense_{place}"]
            hidden = rectified(hidden @ layer["w"], layer)
        last = params[f"dense_{len(hidden_sizes) + 1}"]
        return hidden @ last["w"] + last["b"][None]

    return classification(init, logits)
