"""Learning problems from a plain function of parameters and inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.dtypes import canonicalize_dtype

from fedax.algorithm import Array, Batch, Model, Params
from fedax.factories import factory
from fedax.mistakes.errors import ModelError, checked_call
from fedax.mistakes.model import array_of, check_range, require_function
from fedax.models.scoring import as_scores


@factory
def classification(
    init: Callable[[Array], Params],
    apply: Callable[[Params, Array], Array],
    *,
    inputs: str = "x",
    labels: str = "y",
    scores: Mapping[str, Any] | None = None,
) -> Model:
    r"""Softmax classification: :math:`\ell = -\log \operatorname{softmax}(f(w, x))_y`.

    Args:
      init: (key) -> parameters.
      apply: (parameters, inputs [B, ...]) -> logits [B, C]. Any library's model is such a
        function: Flax `lambda p, x: net.apply(p, x)`, Equinox
        `lambda p, x: jax.vmap(eqx.combine(p, static))(x)`.
      inputs, labels: the names of the client arrays; labels are integers [B] in 0 .. C - 1.
      scores: functions of all outputs beside the metrics: name -> what `fedax.scores` gives, a
        metric of scikit-learn, or your own `(outputs, labels, weights) -> number`.

    Returns:
      A model with the metrics `accuracy` and `loss`.

    Raises:
      TypeError: init or apply is no function.
      ModelError: when used, if apply fails, the shapes of logits and labels do not fit, or the
        labels are not whole numbers in their range.

    Example:
      >>> import jax
      >>> model = classification(
      ...     lambda key: {"w": jnp.zeros((4, 3))}, lambda p, x: x @ p["w"])
      >>> batch = {"x": jnp.ones((2, 4)), "y": jnp.array([0, 2])}
      >>> losses, weights = model.loss(model.init(jax.random.key(0)), batch, jax.random.key(1))
      >>> losses.round(4).tolist()  # log 3
      [1.0986, 1.0986]
    """
    require_function("init", init, "(key) -> parameters")
    require_function("apply", apply, "(parameters, inputs) -> logits")

    def outputs(params: Params, batch: Batch) -> Array:
        return _applied(apply, params, array_of(batch, inputs, "inputs"))

    def labels_of(logits: Array, batch: Batch) -> Array:
        found = array_of(batch, labels, "labels")
        _check_shapes(logits, found, labels)
        return found

    def losses(logits: Array, batch: Batch) -> tuple[Array, Array]:
        found = labels_of(logits, batch)
        # The loss of a label beyond the classes is NaN; a negative one would count from their end.
        found = found.astype(int)
        found = jnp.where(found < 0, logits.shape[1], found)
        values = optax.softmax_cross_entropy_with_integer_labels(logits, found)
        return values, jnp.ones_like(values)

    def accuracy(logits: Array, batch: Batch) -> tuple[Array, Array]:
        found = labels_of(logits, batch)
        hits = (logits.argmax(-1).astype(int) == found.astype(int)).astype(logits.dtype)
        return hits, jnp.ones_like(hits)

    def fitting(params: Params, batch: Batch) -> Array:
        logits = outputs(params, batch)
        labels_of(logits, batch)
        return logits

    def check(params: Params, arrays: Mapping[str, Any]) -> None:
        found = {name: arrays[name] for name in (inputs, labels) if name in arrays}
        one = {
            name: jax.ShapeDtypeStruct((1, *array.shape[1:]), canonicalize_dtype(array.dtype))
            for name, array in found.items()
        }
        try:
            logits = jax.eval_shape(fitting, params, one)
        except ModelError:  # the loss is traced too, and says so there
            return
        check_range(f"The labels {labels!r}", found[labels], logits.shape[1], "classes")

    return Model(
        init=init,
        loss=lambda params, batch, key: losses(outputs(params, batch), batch),  # noqa: ARG005
        outputs=outputs,
        metrics={"accuracy": accuracy, "loss": losses},
        check=check,
        scores=as_scores(scores, labels) or None,
    )


@factory
def regression(
    init: Callable[[Array], Params],
    apply: Callable[[Params, Array], Array],
    *,
    inputs: str = "x",
    targets: str = "y",
    scores: Mapping[str, Any] | None = None,
) -> Model:
    r"""Least squares: :math:`\ell = \frac12 \lVert f(w, x) - y \rVert^2`.

    Args:
      init: (key) -> parameters.
      apply: (parameters, inputs [B, ...]) -> predictions, shaped like the targets.
      inputs, targets: the names of the client arrays.
      scores: as for `classification`, of predictions and targets.

    Returns:
      A model with the metric `loss`.

    Raises:
      TypeError: init or apply is no function.
      ModelError: when used, if apply fails, or predictions and targets differ in shape.

    Example:
      >>> import jax
      >>> model = regression(lambda key: jnp.zeros(2), lambda p, x: x @ p)
      >>> batch = {"x": jnp.ones((1, 2)), "y": jnp.array([3.0])}
      >>> model.loss(model.init(jax.random.key(0)), batch, jax.random.key(1))[0].tolist()
      [4.5]
    """
    require_function("init", init, "(key) -> parameters")
    require_function("apply", apply, "(parameters, inputs) -> predictions")

    def outputs(params: Params, batch: Batch) -> Array:
        return _applied(apply, params, array_of(batch, inputs, "inputs"))

    def losses(predictions: Array, batch: Batch) -> tuple[Array, Array]:
        wanted = array_of(batch, targets, "targets")
        given, target = list(predictions.shape), list(wanted.shape)
        if given != target:
            raise ModelError(
                f"Predictions and the targets {targets!r} must have the same shape, but are "
                f"{given} and {target}." + (
                    f" Drop the targets' last axis: {targets}[:, 0]." if target == [*given, 1] else
                    " Drop the predictions' last axis in apply: predictions[:, 0]."
                    if given == [*target, 1] else " apply must give a prediction for each target."
                )
            )
        errors = (predictions - wanted).reshape(predictions.shape[0], -1)
        values = (errors * errors).sum(1) / 2
        return values, jnp.ones_like(values)

    return Model(
        init=init,
        loss=lambda params, batch, key: losses(outputs(params, batch), batch),  # noqa: ARG005
        outputs=outputs,
        metrics={"loss": losses},
        scores=as_scores(scores, targets) or None,
    )


def _applied(apply: Callable[[Params, Array], Array], params: Params, inputs: Array) -> Array:
    """What the user's function gives for the inputs."""
    given = {"params": params, "inputs": inputs}
    return checked_call(
        ModelError, "The model's apply", "apply(params, inputs)", apply, (params, inputs), given
    )


def _check_shapes(logits: Array, found: Array, labels: str) -> None:
    """Raises a sentence unless logits are [B, C] and labels whole numbers [B]."""
    if logits.ndim != 2 or logits.shape[:1] != found.shape:
        cure = (
            " Logits have one column a class, two columns for two classes." if logits.ndim != 2
            else f" They look one-hot; give {labels}.argmax(1)." if found.shape == logits.shape
            else f" Drop the labels' last axis: {labels}[:, 0]."
            if found.shape == (len(logits), 1) else " An example has one label."
        )
        raise ModelError(
            f"Logits must have the shape [B, C] and the labels {labels!r} the shape [B], but they "
            f"are {list(logits.shape)} and {list(found.shape)}.{cure}"
        )
    if not jnp.issubdtype(found.dtype, jnp.integer):
        raise ModelError(
            f"The labels {labels!r} must be whole numbers, from 0 to {logits.shape[1] - 1}, but "
            f"are {found.dtype}. Convert them with {labels}.astype(np.int32)."
        )
