"""The clients' side of `fedax.private`: uploads no longer than a norm, and nothing else."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedax.algorithm import Array, Exchange, ModelUpdate, Params, PyTree, Reply
from fedax.algorithms.statistics_message import refuse_statistics
from fedax.algorithms.uplink import EXACT
from fedax.clients.precision import widen
from fedax.clients.uploads import acceptable, fields_of, single_numbers
from fedax.mistakes.errors import AlgorithmError, kind_of


class PrivateMessage(NamedTuple):
    """The wrapped algorithm's message, and the norm to clip to."""

    inner: PyTree
    clip: Array


class PrivateUpload(NamedTuple):
    """The clipped upload, and whether it was within the norm, less 1/2; () with a fixed norm."""

    inner: PyTree
    within: PyTree


def clipped_reply(reply: Reply, before: PyTree, message: PrivateMessage, *, tells: bool) -> Reply:
    """The reply with a clipped upload, weight 1, and nothing that is said without noise.

    A reply that is not finite counts as an upload of 0, and the client keeps its state.

    Args:
      reply: of the wrapped algorithm.
      before: the client's state.
      message: with the norm.
      tells: whether the upload says if it was within the norm.
    """
    refuse_statistics(message, "private", "Leave private out.")
    _require_bounded(reply.upload)
    counts = acceptable(reply)
    upload = jax.tree.map(lambda leaf: jnp.where(counts, widen(leaf), 0), reply.upload)
    clipped, norm = _clipped(upload, message.clip)
    within: PyTree = ()
    if tells:
        dtype = message.clip.dtype
        within = (counts & (norm.astype(dtype) <= message.clip)).astype(dtype) - 0.5
    kept = jax.tree.map(
        lambda new, old: jnp.where(counts, new, old), reply.client_state, before
    )
    return Reply(PrivateUpload(clipped, within), jnp.ones(()), kept, {})


def described(
    exchange: Exchange, params: Params, upload: PyTree = None, index: int = 0
) -> list[Any]:
    """The shapes and dtypes of an exchange's uploads, as the exchange describes them.

    Args:
      exchange: of the wrapped algorithm.
      params: of the model.
      upload: what clients do upload, for a check; None: no check.
      index: the exchange's, for the message.

    Raises:
      AlgorithmError: they upload something else.
    """
    found = jax.tree.leaves(jax.eval_shape(exchange.upload or ModelUpdate, params))
    given = found if upload is None else jax.tree.leaves(upload)
    if [leaf.shape for leaf in given] != [leaf.shape for leaf in found]:
        raise AlgorithmError(
            f"The client of exchange {index + 1} uploads {kind_of(upload)} with arrays other than "
            "the exchange says. Give Exchange(..., upload=function), a function of the parameters "
            "that returns arrays like the upload."
        )
    return found


def _clipped(upload: PyTree, norm: Array) -> tuple[PyTree, Array]:
    """The upload, no longer than the norm, and its length before."""
    from jax_privacy.clipping import clip_pytree  # noqa: PLC0415 - optional, and slow to import

    with warnings.catch_warnings():  # it calls functions of Optax by their old names
        warnings.simplefilter("ignore", DeprecationWarning)
        clip: Any = clip_pytree  # its annotation has a Python number
        return clip(upload, norm)


def _require_bounded(upload: PyTree) -> None:
    """Raises a clear error if an upload has numbers that noise would swamp or make negative."""
    single = single_numbers(upload)
    for name in fields_of(upload):
        if name in single or name in EXACT:
            what = "a number" if name in single else "what must not be negative"
            raise AlgorithmError(
                f"private cannot wrap a method whose clients upload {what} beside the change of "
                f"the model ({name!r}): noise in proportion to the clipping norm would swamp it. "
                "Wrap another method."
            )
