"""Models from a function of parameters and inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.dtypes import canonicalize_dtype
from jax.typing import ArrayLike

from fedax.algorithm import Array, Batch, Model, Params
from fedax.factories import factory
from fedax.mistakes.errors import ModelError, checked_call
from fedax.mistakes.model import array_of, require_function
from fedax.models.labels import Sigmoid, Softmax
from fedax.models.scoring import as_scores
from fedax.models.weighting import (
    check_weights,
    checked_class_weights,
    mean_of_cells,
    weights_of,
)
from fedax.validate import check_choice, check_number


@factory(static=("label_smoothing",))
def classification(
    init: Callable[[Array], Params],
    apply: Callable[[Params, Array], Array],
    *,
    inputs: str = "x",
    labels: str = "y",
    activation: Literal["softmax", "sigmoid"] = "softmax",
    class_weights: ArrayLike | None = None,
    example_weights: str | None = None,
    label_smoothing: float = 0.0,
    scores: Mapping[str, Any] | None = None,
) -> Model:
    r"""Softmax classification: :math:`\ell = -\log \operatorname{softmax}(f(w, x))_y`.

    With C classes, logits z = f(w, x), label smoothing s, class weights a and example weights e,

    .. math:: \ell = -\sum_c q_c \log \operatorname{softmax}(z)_c, \qquad
        q_c = (1 - s) [c = y] + \frac sC, \qquad
        \text{weight} = e\, a_y

    and with `activation="sigmoid"`, for two classes with one logit or for several labels per
    example, where t is 0 or 1,

    .. math:: \ell_k = -q_k \log \sigma(z_k) - (1 - q_k) \log \sigma(-z_k), \qquad
        q_k = (1 - s) t_k + \frac s2, \qquad
        \text{weight} = e_k\, a_{t_k}

    The loss over several examples, and over their labels k, is the weighted mean, :math:`\sum w
    \ell / \sum w`, in training and in evaluation.

    Args:
      init: (key) -> parameters.
      apply: (parameters, inputs [B, ...]) -> logits [B, C]. Any library's model is such a
        function: Flax `lambda p, x: net.apply(p, x)`, Equinox
        `lambda p, x: jax.vmap(eqx.combine(p, static))(x)`.
      inputs, labels: names of the client arrays; labels are integers [B] in 0 .. C - 1.
      activation: "softmax", or "sigmoid" for a logit [B] or [B, 1] with labels 0 and 1 [B], or
        for logits [B, L] with labels 0 and 1 [B, L].
      class_weights: a, [C], numbers >= 0; for a sigmoid the weights of 0 and 1, [2], or for each
        label [2, L]. See `fedax.models.balanced_class_weights`.
      example_weights: name of the client array of e, numbers >= 0, [B], or with the shape of the
        labels [B, L]. An example with weight 0 does not count, whatever its label.
      label_smoothing: s, in [0, 1).
      scores: functions of all outputs, in addition to the metrics: name -> a score from
        `fedax.scores`, a metric of scikit-learn, or your own `(outputs, labels, weights) ->
        number`, where weights are the example weights.

    Returns:
      A model with the metrics `accuracy` and `loss`. Accuracy uses the example weights only; with
      several labels it is the share of correct labels.

    Raises:
      TypeError: if init or apply is not a function.
      ValueError: if an option is out of range.
      ModelError: when used, if apply fails, the shapes of logits and labels do not fit, the labels
        are not integers in range, or weights are negative.

    Example:
      >>> import jax
      >>> model = classification(
      ...     lambda key: {"w": jnp.zeros((4, 3))}, lambda p, x: x @ p["w"])
      >>> batch = {"x": jnp.ones((2, 4)), "y": jnp.array([0, 2])}
      >>> losses, weights = model.loss(model.init(jax.random.key(0)), batch, jax.random.key(1))
      >>> losses.round(4).tolist()  # log 3
      [1.0986, 1.0986]
      >>> rare = classification(
      ...     lambda key: jnp.zeros(4), lambda p, x: x @ p,
      ...     activation="sigmoid", class_weights=[1.0, 9.0])
      >>> batch = {"x": jnp.ones((2, 4)), "y": jnp.array([0, 1])}
      >>> losses, weights = rare.loss(jnp.zeros(4), batch, jax.random.key(1))
      >>> losses.round(4).tolist(), weights.tolist()  # log 2
      ([0.6931, 0.6931], [1.0, 9.0])
    """
    require_function("init", init, "(key) -> parameters")
    require_function("apply", apply, "(parameters, inputs) -> logits")
    check_choice("activation", activation, ("softmax", "sigmoid"))
    check_number("label_smoothing", label_smoothing, at_least=0, below=1)
    of_classes = checked_class_weights(class_weights)
    make = Softmax if activation == "softmax" else Sigmoid
    target = make(labels, of_classes, example_weights, label_smoothing)

    def outputs(params: Params, batch: Batch) -> Array:
        return _applied(apply, params, array_of(batch, inputs, "inputs"))

    def fitting(params: Params, batch: Batch) -> Array:
        logits = outputs(params, batch)
        target.loss(logits, batch)
        return logits

    def check(params: Params, arrays: Mapping[str, Any]) -> None:
        names = (inputs, labels, *([example_weights] if example_weights else []))
        one = {
            name: jax.ShapeDtypeStruct(
                (1, *arrays[name].shape[1:]), canonicalize_dtype(arrays[name].dtype)
            )
            for name in names if name in arrays
        }
        try:
            logits = jax.eval_shape(fitting, params, one)
        except ModelError:  # the loss is traced too, and says so there
            return
        target.check(logits.shape, arrays)

    return Model(
        init=init,
        loss=lambda params, batch, key: target.loss(outputs(params, batch), batch),  # noqa: ARG005
        outputs=outputs,
        metrics={"accuracy": target.accuracy, "loss": target.loss},
        check=check,
        scores=as_scores(scores, labels, example_weights) or None,
    )


@factory
def regression(
    init: Callable[[Array], Params],
    apply: Callable[[Params, Array], Array],
    *,
    inputs: str = "x",
    targets: str = "y",
    mask: str | None = None,
    example_weights: str | None = None,
    scores: Mapping[str, Any] | None = None,
) -> Model:
    r"""Least squares: :math:`\ell = \frac12 \lVert f(w, x) - y \rVert^2`.

    With a mask m of known targets, D targets per example and example weights e,

    .. math:: \ell = \frac D2 \cdot
        \frac{\sum_k m_k (f_k(w, x) - y_k)^2}{\sum_k m_k}, \qquad
        \text{weight} = \frac eD \sum_k m_k

    so every known target counts equally in the weighted mean.

    Args:
      init: (key) -> parameters.
      apply: (parameters, inputs [B, ...]) -> predictions, shaped like the targets.
      inputs, targets: names of the client arrays.
      mask: name of the client array of m, [B] or with the shape of the targets: True or 1 where a
        target is known. Unknown targets may be any number, such as 0.
      example_weights: name of the client array of e, numbers >= 0, [B] or with the shape of the
        targets.
      scores: as for `classification`, computed from predictions and targets.

    Returns:
      A model with the metric `loss`.

    Raises:
      TypeError: if init or apply is not a function.
      ModelError: when used, if apply fails, predictions and targets differ in shape, or weights are
        negative.

    Example:
      >>> import jax
      >>> model = regression(lambda key: jnp.zeros(2), lambda p, x: x @ p)
      >>> batch = {"x": jnp.ones((1, 2)), "y": jnp.array([3.0])}
      >>> model.loss(model.init(jax.random.key(0)), batch, jax.random.key(1))[0].tolist()
      [4.5]
    """
    require_function("init", init, "(key) -> parameters")
    require_function("apply", apply, "(parameters, inputs) -> predictions")
    columns = {"mask": mask, "example_weights": example_weights}

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
        errors = predictions - wanted
        weights = jnp.ones((), errors.dtype)
        for argument, name in columns.items():
            found = weights_of(batch, name, argument, wanted)
            if found is not None:
                weights = weights * found.astype(errors.dtype)
        if weights.ndim:  # what does not count has no gradient, even if it is not finite
            errors = jnp.where(weights == 0, 0, errors)
            values, weights = mean_of_cells(errors * errors / 2, weights)
            return values * (errors.size // len(errors)), weights
        errors = errors.reshape(predictions.shape[0], -1)
        values = (errors * errors).sum(1) / 2
        return values, jnp.ones_like(values)

    def check(params: Params, arrays: Mapping[str, Any]) -> None:
        del params
        for argument, name in columns.items():
            check_weights(argument, name, arrays)

    return Model(
        init=init,
        loss=lambda params, batch, key: losses(outputs(params, batch), batch),  # noqa: ARG005
        outputs=outputs,
        metrics={"loss": losses},
        check=check if mask or example_weights else None,
        scores=as_scores(scores, targets, example_weights) or None,
    )


def _applied(apply: Callable[[Params, Array], Array], params: Params, inputs: Array) -> Array:
    """The result of the user's function for the inputs."""
    given = {"params": params, "inputs": inputs}
    return checked_call(
        ModelError, "The model's apply", "apply(params, inputs)", apply, (params, inputs), given
    )
