"""Compressed messages between clients and server, around any method."""

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
    Participation,
    PyTree,
    Reply,
    WrapperState,
    own_model_inside,
    with_params,
)
from fedax.algorithms.division import require_whole
from fedax.codecs import Codec, eden, with_feedback
from fedax.codecs.codec import about, bits_as_they_are, encode_tree, init_tree
from fedax.data.cohort_data import ClientExamples
from fedax.factories import factory
from fedax.mistakes.algorithm import require_algorithm
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


@factory
def compressed(
    algorithm: FederatedAlgorithm,
    codec: Codec | None = None,
    downlink: Codec | None = None,
) -> FederatedAlgorithm:
    r"""Fewer bytes: every array that a client uploads goes through a codec.

    Each client i sends a code of its upload u_i, and the server averages what it decodes:

    .. math::
        \hat u_i = Q(u_i) \quad\text{with mean } u_i,
            \qquad\text{or, with a biased codec,}\qquad
        \hat u_i = C(u_i + e_i), \quad e_i \leftarrow u_i + e_i - \hat u_i

    With a biased codec, e_i is the client's memory (error feedback, Karimireddy et al. 2019). It is
    part of the client's state and waits until the client takes part again. If that is rare, it is
    old by then, and an unbiased codec is the better choice. Of a client drawn twice in a round, the
    first upload uses and changes the memory. A client that drops out of a round keeps the memory
    that it had before.

    Uploads of SCAFFOLD are changes of x and of the control variates c_i. Error feedback keeps the
    server's c within the mean memory of the mean c_i; the errors of an unbiased codec add up in c.

    With `downlink` the server sends changes of the model as well. The clients' copy w follows it,

    .. math:: w_0 = x_0, \qquad w_{t+1} = w_t + C(x_{t+1} - w_t),

    and a round starts from w_t wherever the method would start from x_t, in all of its exchanges.
    What is missing in w is in the next difference, so this needs no other memory. Every client must
    receive every message, also in rounds without it; `bits_down` counts the round's own.

    Scalars of an upload, weights, and the arrays of optimizers and of `fedax.elastic` that must not
    be negative are sent as they are.

    Args:
      algorithm: the wrapped algorithm. A wrapper of the method itself goes inside:
        `compressed(elastic(...))`.
      codec: one of `fedax.codecs`, for the uploads; None is `eden()`.
      downlink: for the model, a biased codec: `top_k`, `sign` or `power_sgd`. An unbiased one would
        move the copy away from the model. None: the model is sent as it is.

    Returns:
      The algorithm. Each round also reports `bits_up`, the mean number of bits that a client
      uploads in the round, and with `downlink` also `bits_down`.

    Raises:
      ValueError: the server receives uploads one by one (`pfnm`, `afl`), nothing is sent
        (`centralised`), the algorithm is compressed already, or `downlink` is unbiased.
      AlgorithmError: when it is first traced, `downlink` around a method that sends a second model
        (`mimemvr`, `fedac`), or a biased codec around a method with an upload of its own that its
        `Exchange` does not describe.

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> model = character_lstm(16, 1)
      >>> algorithm = fedax.compressed(fedax.fedadam(model), fedax.codecs.eden(2))
    """
    require_algorithm(algorithm, "fedax.compressed(algorithm, codec)")
    codec = eden() if codec is None else codec
    for name, value in (("codec", codec), ("downlink", downlink)):
        if value is not None and not isinstance(value, Codec):
            raise TypeError(
                f"{name} must be one of fedax.codecs, such as fedax.codecs.qsgd(4), but is "
                f"{value!r}."
            )
    if algorithm.pooled:
        raise ValueError(
            "compressed cannot wrap a method that trains on all examples in one place: nothing is "
            "sent. Wrap a federated method."
        )
    if any(exchange.individual for exchange in algorithm.exchanges):
        raise ValueError(
            "compressed needs uploads that are averaged, but the server of the wrapped algorithm "
            "receives them one by one and would match or compare them with their errors. Wrap a "
            "different algorithm."
        )
    if any(exchange.sent is not None for exchange in algorithm.exchanges):
        raise ValueError(
            "compressed cannot wrap an algorithm that is compressed already: its decoded uploads "
            "would be coded again, and the bits of only one code would count. Use one codec."
        )
    if downlink is not None and downlink.unbiased:
        raise ValueError(
            f"downlink must be a biased codec, such as fedax.codecs.top_k(0.1), but is {downlink}. "
            "The errors of an unbiased one would move the clients' copy away from the model."
        )
    algorithm = _coded_uploads(algorithm, codec)
    return algorithm if downlink is None else _coded_broadcasts(algorithm, downlink)


def _coded_uploads(algorithm: FederatedAlgorithm, codec: Codec) -> FederatedAlgorithm:
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
            reply = exchange.client(message, state.inner if remembers else state, data, key)
            memory = None
            if remembers:
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


def _coded_broadcasts(algorithm: FederatedAlgorithm, codec: Codec) -> FederatedAlgorithm:
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


def _first_use(memory: tuple[PyTree, ...], repeat: Array | int) -> tuple[PyTree, ...]:
    """The memory without what is left over, if the client already takes part in this cohort."""
    return tuple(
        (jnp.where(jnp.asarray(repeat) == 0, own[0], 0), own[1]) if own else own
        for own in memory
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
