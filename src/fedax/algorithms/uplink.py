"""The clients' side of `fedax.compressed`: codes of what they upload, and what these leave over."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedax.algorithm import (
    Array,
    Exchange,
    FederatedAlgorithm,
    ModelUpdate,
    Params,
    PyTree,
    Reply,
)
from fedax.algorithms.statistics_message import refuse_statistics
from fedax.codecs import Codec, with_feedback
from fedax.codecs.codec import about, bits_as_they_are, encode_tree, init_tree
from fedax.data.cohort_data import ClientExamples
from fedax.mistakes.errors import AlgorithmError, kind_of

# Uploads that are neither changes nor gradients of the model are sent as they are: the averaged
# state of an optimizer on the clients, the sensitivity of `fedax.elastic` and the clusters of
# `fedax.ifca`. A code with an error could make them negative, and error feedback would add up what
# is no change.
EXACT = ("shared", "sensitivity", "members")
# What tells a codec's random numbers from those that the client trains with.
_CODEC = 0xC0DEC


class CompressedClient(NamedTuple):
    """What a client keeps.

    Attributes:
      inner: the wrapped algorithm's client state.
      memory: for each exchange the codec's memory of each uploaded array: what error feedback has
        left over, and what the codec itself remembers.
    """

    inner: PyTree
    memory: tuple[tuple[PyTree, ...], ...]


def coded_uploads(algorithm: FederatedAlgorithm, codec: Codec) -> FederatedAlgorithm:
    """The algorithm whose clients code what they upload."""
    remembers = not codec.unbiased
    coder = with_feedback(codec) if remembers else codec

    def init_client(params: Params) -> CompressedClient:
        return CompressedClient(algorithm.init_client(params), tuple(
            init_tree(coder, (exchange.upload or ModelUpdate)(params), EXACT)
            for exchange in algorithm.exchanges
        ))

    def sent(params: Params, message: PyTree, upload: PyTree) -> tuple[float, float]:
        del params
        return bits_as_they_are(message), about(coder, upload, EXACT)

    def coded(index: int, exchange: Exchange) -> Exchange:
        def client(message: PyTree, state: PyTree, data: ClientExamples, key: Array) -> Reply:
            refuse_statistics(message, "compressed", "Leave compressed out.")
            reply = exchange.client(message, state.inner if remembers else state, data, key)
            memory = None
            if remembers:
                _require_one_model(reply.upload)
                memory = _first_use(state.memory[index], data.repeat)
                _require_layout(reply.upload, memory, index)
            upload, bits, memory = encode_tree(
                coder, jax.random.fold_in(key, _CODEC), reply.upload, memory, EXACT
            )
            after = reply.client_state
            if remembers:
                kept = (*state.memory[:index], memory, *state.memory[index + 1 :])
                after = CompressedClient(after, kept)
            info = {**reply.info, "bits_up": (bits, jnp.ones_like(bits))}
            return reply._replace(upload=upload, client_state=after, info=info)

        return exchange._replace(client=client, sent=sent)

    def own_model(state: Any, own: CompressedClient, data: ClientExamples, key: Array) -> Params:
        assert algorithm.own_model is not None
        return algorithm.own_model(state, own.inner, data, key)

    return algorithm._replace(
        init_client=init_client if remembers else algorithm.init_client,
        own_model=own_model if remembers and algorithm.own_model else algorithm.own_model,
        exchanges=tuple(coded(i, exchange) for i, exchange in enumerate(algorithm.exchanges)),
    )


def _first_use(memory: tuple[PyTree, ...], repeat: Array | int) -> tuple[PyTree, ...]:
    """The memory without what is left over, if the client already takes part in this cohort."""
    return tuple(
        (jnp.where(jnp.asarray(repeat) == 0, own[0], 0), own[1]) if own else own
        for own in memory
    )


def _require_one_model(upload: PyTree) -> None:
    """Raises a clear error where clients upload to a cluster that they choose in each round."""
    if hasattr(upload, "members"):
        raise AlgorithmError(
            "compressed with a biased codec cannot wrap ifca: what a client has left over for one "
            "cluster would be added to it after the client chose another one. Use an unbiased "
            "codec, such as fedax.codecs.eden(2)."
        )


def _require_layout(upload: PyTree, memory: tuple[PyTree, ...], index: int) -> None:
    """Raises a clear error unless the memory is that of such an upload."""
    expected = [own[0].shape if own else None for own in memory]
    leaves = jax.tree.leaves(upload)
    if len(leaves) != len(expected) or any(
        shape is not None and leaf.shape != shape
        for leaf, shape in zip(leaves, expected, strict=True)
    ):
        raise AlgorithmError(
            f"compressed with a biased codec remembers something of every upload, but the client "
            f"of exchange {index + 1} uploads {kind_of(upload)} with arrays other than the "
            "exchange says. Give Exchange(..., upload=function), a function of the parameters that "
            "returns arrays like the upload, or use an unbiased codec."
        )
