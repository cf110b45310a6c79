"""Prediction of the next token of a sequence, with padding and chosen tokens left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.dtypes import canonicalize_dtype

from fedax.algorithm import Array, Batch, Model, Params
from fedax.data.text import PADDING
from fedax.factories import factory
from fedax.mistakes.errors import ModelError, array_words, checked_call
from fedax.mistakes.model import array_of, check_range, require_function


@factory(static=("leave_out", "padding"))
def next_token(
    init: Callable[[Array], Params],
    apply: Callable[[Params, Array], Array],
    *,
    leave_out: Sequence[int] = (),
    tokens: str = "tokens",
    padding: int = PADDING,
    weights: str | None = None,
) -> Model:
    r"""Next-token prediction with any model: the loss of logits z_t [V] at every position.

    .. math:: \ell = -\tfrac1W \textstyle\sum_t w_t \log \operatorname{softmax}(z_t)_{y_t}

    A batch has tokens [B, T + 1]: the inputs are the first T of a row, the targets y the last T. A
    target has weight w_t = 1, or 0 if it is padding. A sequence's loss is the mean over its targets
    and has weight W = sum_t w_t, so means over sequences are means over targets.

    The metric `loss` is the same. The metric `accuracy` (how often the largest logit is the
    target's) also leaves out the targets in `leave_out`: predicting "unknown" is not useful, and
    "end" is easy.

    Args:
      init: (key) -> parameters.
      apply: (parameters, inputs int32 [B, T]) -> logits [B, T, V].
      leave_out: ids that the accuracy leaves out as targets, for example
        `(vocabulary.unknown, vocabulary.end)` of a `fedax.Vocabulary`.
      tokens: name of the client array of tokens, integers [n, T + 1].
      padding: id of padding.
      weights: name of a client array [n, T] of additional weights of the targets, >= 0, by which
        w_t is multiplied. None: no such array.

    Raises:
      TypeError: if init or apply is not a function.
      ModelError: when used, if apply fails, the shapes of logits, tokens and weights do not fit, or
        the tokens are not integers in range.

    Example:
      >>> import jax
      >>> model = next_token(
      ...     init=lambda key: {"table": jnp.zeros((7, 7))},  # a bigram model of 7 ids
      ...     apply=lambda params, inputs: params["table"][inputs],
      ...     leave_out=(4, 6),
      ... )
      >>> batch = {"tokens": jnp.array([[5, 1, 2, 6, 0], [5, 3, 1, 2, 3]])}
      >>> losses, weights = model.loss(model.init(jax.random.key(0)), batch, jax.random.key(1))
      >>> bool(jnp.allclose(losses, jnp.log(7.0))), weights.tolist()  # 3 and 4 targets
      (True, [3.0, 4.0])
      >>> outputs = model.outputs(model.init(jax.random.key(0)), batch)
      >>> model.metrics["accuracy"](outputs, batch)[1].tolist()  # without the end, 6
      [2.0, 4.0]
    """
    require_function("init", init, "(key) -> parameters")
    require_function("apply", apply, "(parameters, inputs) -> logits")
    left_out = tuple(int(token) for token in leave_out)

    def tokens_of(batch: Batch) -> Array:
        found = array_of(batch, tokens, "tokens")
        if found.ndim != 2 or not jnp.issubdtype(found.dtype, jnp.integer):
            raise ModelError(
                f"The tokens {tokens!r} must be whole numbers [B, T + 1], one sequence per row, "
                "but "
                f"are {found.dtype}{list(found.shape)}. fedax.Vocabulary makes them from texts."
            )
        return found.astype(jnp.int32)

    def outputs(params: Params, batch: Batch) -> Array:
        inputs = tokens_of(batch)[:, :-1]
        logits = checked_call(
            ModelError, "The model's apply", "apply(params, inputs)", apply, (params, inputs),
            {"params": params, "inputs": inputs},
        )
        if getattr(logits, "ndim", 0) != 3 or logits.shape[:2] != inputs.shape:
            raise ModelError(
                f"apply must return logits [B, T, V] for inputs [B, T], here {list(inputs.shape)}, "
                f"but returned {array_words(logits)}."
            )
        return logits

    def targets(logits: Array, batch: Batch) -> tuple[Array, Array]:
        """The targets and their weights, each [B, T]."""
        y = tokens_of(batch)[:, 1:]
        w = (y != padding).astype(logits.dtype)
        if weights is not None:
            given = array_of(batch, weights, "weights")
            if given.shape != y.shape:
                raise ModelError(
                    f"The weights {weights!r} must have the shape [B, T] of the targets, "
                    f"{list(y.shape)}, but have {list(given.shape)}."
                )
            w = w * given.astype(logits.dtype)
        return y, w

    def losses(logits: Array, batch: Batch) -> tuple[Array, Array]:
        y, w = targets(logits, batch)
        return mean_over_targets(optax.softmax_cross_entropy_with_integer_labels(logits, y), w)

    def accuracy(logits: Array, batch: Batch) -> tuple[Array, Array]:
        y, w = targets(logits, batch)
        for token in left_out:
            w = jnp.where(y == token, 0, w)
        hits = logits.argmax(-1).astype(jnp.int32) == y
        return mean_over_targets(hits.astype(logits.dtype), w)

    def check(params: Params, arrays: Mapping[str, Any]) -> None:
        if tokens not in arrays:  # the loss is traced too, and says so there
            return
        ids = arrays[tokens]
        one = {tokens: jax.ShapeDtypeStruct((1, *ids.shape[1:]), canonicalize_dtype(ids.dtype))}
        try:
            logits = jax.eval_shape(outputs, params, one)
        except ModelError:
            return
        check_range(f"The tokens {tokens!r}", ids, logits.shape[-1], "tokens")

    return Model(
        init=init,
        loss=lambda params, batch, key: losses(outputs(params, batch), batch),  # noqa: ARG005
        outputs=outputs,
        metrics={"accuracy": accuracy, "loss": losses},
        check=check,
    )


@factory
def last_token(model: Model, tokens: str = "tokens") -> Model:
    """A model of sequences whose loss and metrics count the last target of each sequence only.

    LEAF's data are so: 80 characters predict one. The loss is that of the outputs, so a dropout of
    the model does nothing.

    Args:
      model: for batches of tokens [B, T + 1], with outputs [B, T, V], such as `character_lstm`.
      tokens: name of the client array of tokens.

    Example:
      >>> model = last_token(next_token(
      ...     lambda key: {"table": jnp.zeros((7, 7))}, lambda params, x: params["table"][x]))
      >>> batch = {"tokens": jnp.array([[5, 1, 2, 6], [5, 3, 1, 2]])}
      >>> _, weights = model.loss(model.init(jax.random.key(0)), batch, jax.random.key(1))
      >>> weights.tolist()
      [1.0, 1.0]
    """
    loss = model.metrics["loss"]

    def last(batch: Batch) -> Batch:
        return {**batch, tokens: batch[tokens][:, -2:]}

    def outputs(params: Params, batch: Batch) -> Array:
        return model.outputs(params, batch)[:, -1:]

    return model._replace(
        loss=lambda params, batch, key: loss(outputs(params, batch), last(batch)),  # noqa: ARG005
        outputs=outputs,
        metrics={
            name: lambda found, batch, metric=metric: metric(found, last(batch))
            for name, metric in model.metrics.items()
        },
    )


def mean_over_targets(values: Array, weights: Array) -> tuple[Array, Array]:
    """Each sequence's weighted mean of values [B, T], or 0 if all weights are 0, and its weight."""
    total = weights.sum(axis=-1)
    return (values * weights).sum(axis=-1) / jnp.where(total > 0, total, 1), total
