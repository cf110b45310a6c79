"""Learning problems from a plain function of parameters and inputs."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import optax

from fedax.algorithm import Array, Batch, Model, Params
from fedax.factories import factory


@factory
def classification(
    init: Callable[[Array], Params],
    apply: Callable[[Params, Array], Array],
    *,
    inputs: str = "x",
    labels: str = "y",
) -> Model:
    r"""Softmax classification: :math:`\ell = -\log \operatorname{softmax}(f(w, x))_y`.

    Args:
      init: (key) -> parameters.
      apply: (parameters, inputs [B, ...]) -> logits [B, C]. Any library's model is such a
        function: Flax `lambda p, x: net.apply(p, x)`, Equinox
        `lambda p, x: jax.vmap(eqx.combine(p, static))(x)`.
      inputs, labels: the names of the client arrays; labels are integers [B] in 0 .. C - 1.

    Returns:
      A model with the metrics `accuracy` and `loss`.

    Raises:
      ValueError: when used, if the shapes of logits and labels do not fit.

    Example:
      >>> import jax
      >>> model = classification(
      ...     lambda key: {"w": jnp.zeros((4, 3))}, lambda p, x: x @ p["w"])
      >>> batch = {"x": jnp.ones((2, 4)), "y": jnp.array([0, 2])}
      >>> losses, weights = model.loss(model.init(jax.random.key(0)), batch, jax.random.key(1))
      >>> losses.round(4).tolist()  # log 3
      [1.0986, 1.0986]
    """
    def losses(logits: Array, batch: Batch) -> tuple[Array, Array]:
        if logits.ndim != 2 or logits.shape[:1] != batch[labels].shape:
            raise ValueError(
                f"Logits must have the shape [B, C] and the labels {labels!r} the shape [B], but "
                f"they are {list(logits.shape)} and {list(batch[labels].shape)}."
            )
        values = optax.softmax_cross_entropy_with_integer_labels(logits, batch[labels])
        return values, jnp.ones_like(values)

    def accuracy(logits: Array, batch: Batch) -> tuple[Array, Array]:
        hits = (logits.argmax(-1).astype(batch[labels].dtype) == batch[labels]).astype(logits.dtype)
        return hits, jnp.ones_like(hits)

    return Model(
        init=init,
        loss=lambda params, batch, key: losses(apply(params, batch[inputs]), batch),  # noqa: ARG005
        outputs=lambda params, batch: apply(params, batch[inputs]),
        metrics={"accuracy": accuracy, "loss": losses},
    )


@factory
def regression(
    init: Callable[[Array], Params],
    apply: Callable[[Params, Array], Array],
    *,
    inputs: str = "x",
    targets: str = "y",
) -> Model:
    r"""Least squares: :math:`\ell = \frac12 \lVert f(w, x) - y \rVert^2`.

    Args:
      init: (key) -> parameters.
      apply: (parameters, inputs [B, ...]) -> predictions, shaped like the targets.
      inputs, targets: the names of the client arrays.

    Returns:
      A model with the metric `loss`.

    Raises:
      ValueError: when used, if predictions and targets differ in shape.

    Example:
      >>> import jax
      >>> model = regression(lambda key: jnp.zeros(2), lambda p, x: x @ p)
      >>> batch = {"x": jnp.ones((1, 2)), "y": jnp.array([3.0])}
      >>> model.loss(model.init(jax.random.key(0)), batch, jax.random.key(1))[0].tolist()
      [4.5]
    """
    def losses(predictions: Array, batch: Batch) -> tuple[Array, Array]:
        if predictions.shape != batch[targets].shape:
            raise ValueError(
                f"Predictions and the targets {targets!r} must have the same shape, but are "
                f"{list(predictions.shape)} and {list(batch[targets].shape)}."
            )
        errors = (predictions - batch[targets]).reshape(predictions.shape[0], -1)
        values = (errors * errors).sum(1) / 2
        return values, jnp.ones_like(values)

    return Model(
        init=init,
        loss=lambda params, batch, key: losses(apply(params, batch[inputs]), batch),  # noqa: ARG005
        outputs=lambda params, batch: apply(params, batch[inputs]),
        metrics={"loss": losses},
    )
