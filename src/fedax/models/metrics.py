"""Metrics as the papers define them, in addition to the models' own.

Each factory returns a `fedax.algorithm.Metric`: (outputs, batch) -> (values [B], weights [B]).
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from fedax.algorithm import Array, Batch, Metric
from fedax.data.text import PADDING
from fedax.factories import factory
from fedax.mistakes.errors import ModelError
from fedax.mistakes.model import array_of
from fedax.models.next_token import mean_over_targets
from fedax.validate import check_count


@factory(static=("leave_out", "padding"))
def token_accuracy(
    leave_out: Sequence[int] = (), *, tokens: str = "tokens", padding: int = PADDING
) -> Metric:
    """Accuracy of the largest logit, for logits [B, T, V] and tokens [B, T + 1].

    Padding never counts. The code released with Reddi et al. 2021 has three variants for Stack
    Overflow: `accuracy_with_oov` leaves out only padding, `accuracy_no_oov` also unknown words, and
    `accuracy_no_oov_or_eos` also the end of a sentence; its beginning is never a target. For
    Shakespeare only padding is left out.

    Args:
      leave_out: ids that do not count as targets.
      tokens: name of the client array.
      padding: id of padding.

    Example:
      >>> logits = jnp.zeros((1, 3, 6)).at[:, :, 2].set(1.0)  # always 2
      >>> batch = {"tokens": jnp.array([[4, 2, 3, 0]])}  # 2 and, unknown, 3
      >>> [float(token_accuracy(left)(logits, batch)[0][0]) for left in ((), (3,))]
      [0.5, 1.0]
    """
    left_out = (padding, *(int(token) for token in leave_out))

    def accuracy(logits: Array, batch: Batch) -> tuple[Array, Array]:
        y = array_of(batch, tokens, "tokens")[:, 1:].astype(jnp.int32)
        counted = jnp.ones(y.shape, logits.dtype)
        for token in left_out:
            counted = jnp.where(y == token, 0, counted)
        hits = logits.argmax(-1).astype(y.dtype) == y
        return mean_over_targets(hits.astype(logits.dtype), counted)

    return accuracy


@factory
def recall_at(k: int = 5, *, labels: str = "tags") -> Metric:
    r"""Recall of the k largest scores: the share of all labels that is among them.

    .. math:: \frac{\sum_i |\operatorname{top}_k(z_i) \cap t_i|}{\sum_i |t_i|}

    An example has the value :math:`|top_k(z_i) \cap t_i| / |t_i|` and the weight |t_i|, so the mean
    is over all labels together, as in `keras.metrics.Recall(top_k=5)`, which the decaying-steps
    paper (2021) and Reddi et al. 2021 report for Stack Overflow's tags. An example without labels
    has weight 0.

    Args:
      k: number of scores, >= 1 and at most C.
      labels: name of the client array of labels, integers [n, m], padded with negative numbers.

    Raises:
      ValueError: if k is not a whole number >= 1.
      ModelError: when used, if the outputs are not scores [B, C] with C >= k.

    Example:
      >>> scores = jnp.array([[0.1, 0.9, 0.8], [0.3, 0.2, 0.1]])
      >>> batch = {"tags": jnp.array([[1, -1], [2, 0]])}
      >>> values, weights = recall_at(1)(scores, batch)
      >>> values.tolist(), weights.tolist()  # together 2 of 3
      ([1.0, 0.5], [1.0, 2.0])
    """
    check_count("k", k)

    def recall(scores: Array, batch: Batch) -> tuple[Array, Array]:
        own = array_of(batch, labels, "labels").astype(jnp.int32)
        if scores.ndim != 2 or scores.shape[1] < k:
            raise ModelError(
                f"recall_at({k}) needs scores [B, C] of at least {k} labels, but the outputs are "
                f"{list(scores.shape)}."
            )
        best = jax.lax.top_k(scores, k)[1].astype(own.dtype)
        is_label = own >= 0
        found = (own[:, :, None] == best[:, None, :]).any(2) & is_label
        count = is_label.sum(1).astype(scores.dtype)
        return found.sum(1).astype(scores.dtype) / jnp.where(count > 0, count, 1), count

    return recall


@factory
def mean_squared_error(*, targets: str = "x") -> Metric:
    r"""Mean square of an example's errors, :math:`\frac1D \lVert f(x) - x \rVert^2`.

    Reddi et al. 2021 reports it for the autoencoder, in hundredths judging by its table (0.98).

    Args:
      targets: name of the client array [n, ...].

    Example:
      >>> values, _ = mean_squared_error()(jnp.zeros((1, 4)), {"x": jnp.ones((1, 2, 2))})
      >>> values.tolist()
      [1.0]
    """

    def error(outputs: Array, batch: Batch) -> tuple[Array, Array]:
        wanted = array_of(batch, targets, "targets")
        wanted = wanted.reshape(wanted.shape[0], -1).astype(outputs.dtype)
        given = outputs.reshape(outputs.shape[0], -1)
        if given.shape != wanted.shape:
            raise ModelError(
                f"The outputs have the shape {list(outputs.shape)}, which does not fit the targets "
                f"{targets!r}, {list(wanted.shape)}."
            )
        values = jnp.square(given - wanted).mean(1)
        return values, jnp.ones_like(values)

    return error
