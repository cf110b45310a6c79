"""Logistic regression from bags of words to tags, for Stack Overflow (Reddi et al. 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedax.algorithm import Array, Batch, Model, Params
from fedax.clients.sparse_steps import sparse_product
from fedax.factories import factory
from fedax.mistakes.errors import ModelError
from fedax.mistakes.model import array_of
from fedax.models.initializers import init_layer
from fedax.validate import check_count


@factory
def tag_logistic_regression(
    num_words: int = 10_000,
    num_tags: int = 500,
    *,
    normalize: bool = True,
    words: str = "words",
    counts: str = "counts",
    tags: str = "tags",
) -> Model:
    r"""One logistic regression for each tag, on a bag of words: 5,000,500 parameters.

    With v_j the count of word :math:`c_j`, divided by the sum of the counts if `normalize`, t_k = 1
    for the example's tags and 0 otherwise, and C tags,

    .. math:: z = b + \sum_j v_j w_{c_j}, \qquad
        \ell = \frac1C \sum_k \bigl(\log(1 + e^{z_k}) - t_k z_k\bigr)

    The bag stays sparse, and a client that trains by plain SGD changes only the rows of its own
    words, see `fedax.algorithm.Model.sparse`. Weights are Glorot uniform, biases are 0.

    The code released with Reddi et al. 2021 sums this loss over a minibatch, whereas fedax takes
    the mean: multiply its client learning rates by the batch size to get those of fedax.

    Args:
      num_words: N, size of the vocabulary.
      num_tags: C, number of tags.
      normalize: whether to divide a bag by its sum, as in Charles and Konečný 2020, the
        decaying-steps paper (2021) and Reddi et al. 2021.
      words: name of the array of words c, integers [n, m] below N; negative numbers are padding.
      counts: name of the array of their counts, [n, m]; without such an array they are 1.
      tags: name of the array of tags, integers [n, k] below C; negative numbers are padding.

    Returns:
      A model with the metric `loss`. Its parameters are `{'w': [N, C], 'b': [C]}`, its outputs the
      logits z [B, C].

    Raises:
      ValueError: if a size is not a whole number >= 1.
      ModelError: when used, if array shapes do not fit or words or tags are out of range.

    Example:
      >>> model = tag_logistic_regression(num_words=6, num_tags=2)
      >>> batch = {"words": jnp.array([[3, 5, -1]]), "tags": jnp.array([[1, -1]])}
      >>> params = {"w": jnp.zeros((6, 2)).at[3].set(2.0), "b": jnp.zeros(2)}
      >>> model.outputs(params, batch).tolist()  # half of the bag is word 3
      [[1.0, 1.0]]
    """
    check_count("num_words", num_words)
    check_count("num_tags", num_tags)

    def whole(batch: Batch, name: str, argument: str) -> Array:
        found = array_of(batch, name, argument)
        if found.ndim != 2 or not jnp.issubdtype(found.dtype, jnp.integer):
            raise ModelError(
                f"The {argument} {name!r} must be whole numbers, one row per example, padded "
                f"with -1, but are {found.dtype}{list(found.shape)}."
            )
        return found

    def logits(params: Params, batch: Batch) -> Array:
        columns = whole(batch, words, "words")
        dtype = params["b"].dtype
        values = batch[counts].astype(dtype) if counts in batch else jnp.ones(columns.shape, dtype)
        if values.shape != columns.shape:
            raise ModelError(
                f"The counts {counts!r} must have the shape of the words {words!r}, "
                f"{list(columns.shape)}, but have {list(values.shape)}."
            )
        if normalize:
            total = jnp.where(columns < 0, 0, values).sum(1, keepdims=True)
            values = values / jnp.where(total == 0, 1, total)
        return sparse_product(columns, values, params["w"]) + params["b"][None]

    def losses(logits: Array, batch: Batch) -> tuple[Array, Array]:
        found = whole(batch, tags, "tags").astype(jnp.int32)
        every = jnp.arange(num_tags, dtype=found.dtype)
        targets = (found[:, :, None] == every[None, None, :]).any(1)
        values = jax.nn.softplus(logits) - jnp.where(targets, logits, 0)
        values = values.mean(1)
        return values, jnp.ones_like(values)

    def check(params: Params, arrays: Mapping[str, Any]) -> None:
        del params
        for argument, name, count in (("words", words, num_words), ("tags", tags, num_tags)):
            if name in arrays and np.max(arrays[name]) >= count:
                raise ModelError(
                    f"The {argument} {name!r} must be below {count}, as the model has {count} "
                    f"{argument}, but one is {np.max(arrays[name])}. Leave out larger ones, "
                    "or make the model larger."
                )

    return Model(
        init=lambda key: init_layer(key, (num_words, num_tags)),
        loss=lambda params, batch, key: losses(logits(params, batch), batch),  # noqa: ARG005
        outputs=logits,
        metrics={"loss": losses},
        check=check,
        sparse={"w": True, "b": False},
    )
