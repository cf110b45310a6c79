"""The server's side of `fedax.compressed`: codes of the model's changes, for the clients' copy."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedax.algorithm import (
    Array,
    Exchange,
    FederatedAlgorithm,
    Params,
    Participation,
    PyTree,
    Reply,
    WrapperState,
    own_model_inside,
    with_params,
)
from fedax.algorithms.division import require_whole
from fedax.codecs import Codec
from fedax.codecs.codec import about, bits_as_they_are, encode_tree, init_tree
from fedax.data.cohort_data import ClientExamples
from fedax.mistakes.errors import AlgorithmError


class Broadcast(NamedTuple):
    """What the server knows of the clients' copy of the model.

    Attributes:
      copy: the model that the clients have, like the parameters.
      memory: the codec's own for each array.
      bits: scalar, of the message that changed the copy last.
    """

    copy: Params
    memory: tuple[PyTree, ...]
    bits: Array


class CompressedMessage(NamedTuple):
    """The wrapped algorithm's message, made from the clients' copy, and the bits of its change."""

    inner: PyTree
    bits: Array


def coded_broadcasts(algorithm: FederatedAlgorithm, codec: Codec) -> FederatedAlgorithm:
    """The algorithm whose clients follow the model with a copy."""
    last = len(algorithm.exchanges) - 1

    def init(params: Params) -> WrapperState:
        state = algorithm.init(params)
        leaves = jax.tree.leaves(params)
        own = {id(leaf) for leaf in leaves}
        if sum(id(leaf) in own for leaf in jax.tree.leaves(state)) > len(leaves):
            raise AlgorithmError(
                "compressed cannot code the broadcasts of this method: it sends a second model, of "
                "which the clients have no copy. Leave out downlink."
            )
        whole = jnp.asarray(bits_as_they_are(params), float)  # a client's first message
        copy = jax.tree.map(jnp.asarray, params)
        return WrapperState(state, Broadcast(copy, init_tree(codec, params), whole))

    def followed(index: int, exchange: Exchange) -> Exchange:
        def broadcast(state: WrapperState) -> CompressedMessage:
            message = require_whole(
                exchange.broadcast(with_params(state.inner, state.own.copy)),
                "So compressed cannot code its broadcasts. Leave out downlink.",
            )
            model = {id(leaf) for leaf in jax.tree.leaves(state.own.copy)}
            others = [leaf for leaf in jax.tree.leaves(message) if id(leaf) not in model]
            bits = state.own.bits if index == 0 else jnp.zeros((), float)
            return CompressedMessage(message, bits + bits_as_they_are(others))

        def client(
            message: CompressedMessage, state: PyTree, data: ClientExamples, key: Array
        ) -> Reply:
            reply = exchange.client(message.inner, state, data, key)
            one = jnp.ones_like(message.bits)
            return reply._replace(info={**reply.info, "bits_down": (message.bits, one)})

        def server(
            state: WrapperState, mean: PyTree, participation: Participation
        ) -> WrapperState:
            state = state._replace(inner=exchange.server(state.inner, mean, participation))
            if index < last:
                return state
            change = jax.tree.map(jnp.subtract, state.params, state.own.copy)
            key = jax.random.key(0)  # biased codecs draw nothing
            change, bits, memory = encode_tree(codec, key, change, state.own.memory)
            copy = jax.tree.map(jnp.add, state.own.copy, change)
            return state._replace(own=Broadcast(copy, memory, bits))

        def sent(params: Params, message: PyTree, upload: PyTree) -> tuple[float, float]:
            assert exchange.sent is not None
            *arrays, _ = jax.tree.leaves(message)  # the number of bits itself is not sent
            down, up = exchange.sent(params, arrays, upload)
            if index == 0:
                down += about(codec, params) - bits_as_they_are(params)
            return down, up

        return exchange._replace(broadcast=broadcast, client=client, server=server, sent=sent)

    return algorithm._replace(
        init=init, own_model=own_model_inside(algorithm),
        exchanges=tuple(followed(i, exchange) for i, exchange in enumerate(algorithm.exchanges)),
    )
