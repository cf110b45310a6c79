"""Calls a method's functions; failures and wrong results raise an `AlgorithmError`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fedax.algorithm import Array, Exchange, FederatedAlgorithm, Params, PyTree, Reply
from fedax.mistakes.errors import (
    AlgorithmError,
    array_words,
    checked_call,
    defined_at,
    described,
    kind_of,
)


def require_algorithm(algorithm: Any, call: str = "") -> None:
    """Raises a clear error unless this is a `fedax.FederatedAlgorithm` with a tuple of exchanges.

    Args:
      algorithm: the value.
      call: signature of the caller, to show in the message; optional.

    Raises:
      TypeError: if it is not, or one of its fields has the wrong type.
    """
    if not isinstance(algorithm, FederatedAlgorithm):
        name = getattr(algorithm, "__name__", "")
        hint = f" Call {call}." if call else ""
        if name and not isinstance(algorithm, type) and callable(algorithm):
            package = "fedax." if str(algorithm.__module__).startswith("fedax.") else ""
            hint = f" Call it with the model: {package}{name}(task.model)."
        raise TypeError(
            "algorithm must be the result of a factory such as fedax.fedavg(model), but is "
            f"{kind_of(algorithm)}.{hint}"
        )
    for name, cure in (("init", ""), ("init_client", ": fedax.algorithm.stateless keeps nothing")):
        function = getattr(algorithm, name)
        if not callable(function):
            raise TypeError(
                f"An algorithm's {name} must be a function (params) -> state, but is "
                f"{kind_of(function)}{cure}."
            )
    exchanges = algorithm.exchanges
    is_tuple = isinstance(exchanges, tuple) and not isinstance(exchanges, Exchange) and exchanges
    if not is_tuple or not all(isinstance(exchange, Exchange) for exchange in exchanges):
        raise TypeError(
            "An algorithm's exchanges must be a tuple of fedax.Exchange, such as (exchange,), but "
            f"are {kind_of(exchanges)}."
        )


def require_wrappable(algorithm: Any, call: str) -> None:
    """Raises a clear error unless a wrapper may go around this.

    Args:
      algorithm: what is to be wrapped.
      call: signature of the wrapper, to show in the message.

    Raises:
      TypeError: as `require_algorithm`.
      ValueError: it is private already, and a wrapper outside could undo that.
    """
    require_algorithm(algorithm, call)
    if any(exchange.total for exchange in algorithm.exchanges):
        raise ValueError(
            f"{call}: the algorithm is private already, and what is done to clipped uploads or to "
            "noise outside could undo the guarantee. Put private outside: "
            "fedax.private(other_wrapper(method))."
        )


def require_averaged(algorithm: FederatedAlgorithm, name: str) -> None:
    """Raises a ValueError around an algorithm whose server does not average uploads.

    Args:
      algorithm: what is to be wrapped.
      name: the wrapper's.
    """
    if algorithm.pooled or any(exchange.individual for exchange in algorithm.exchanges):
        raise ValueError(
            f"{name} needs an algorithm whose server averages uploads, but this one "
            + ("trains on the pool of all examples." if algorithm.pooled else
               "sees them one by one.")
        )


def call_state_inits(algorithm: FederatedAlgorithm, params: Params) -> tuple[Any, PyTree]:
    """The server's state before the first round, and a client's initial state."""
    server_state, client_state = (
        checked_call(
            AlgorithmError, f"The algorithm's {name}", f"{name}(params)", getattr(algorithm, name),
            (params,), {"params": params},
        )
        for name in ("init", "init_client")
    )
    if not all(hasattr(server_state, name) for name in ("params", "round_index", "_replace")):
        raise AlgorithmError(
            f"The algorithm's init{defined_at(algorithm.init)} must return a NamedTuple with at "
            f"least the fields params and round_index, but returned {kind_of(server_state)}."
        )
    for name, state in (("init", server_state), ("init_client", client_state)):
        _require_arrays(f"The algorithm's {name} returns a state", state)
    return server_state, client_state


def require_one_structure(states: Sequence[PyTree]) -> None:
    """Raises a clear error unless the initial states of several settings have the same structure.

    Raises:
      AlgorithmError: if they do not.
    """
    first, *others = map(jax.tree.structure, states)
    for other in others:
        if str(other) != str(first):  # a class that a factory defines again is the same, see below
            raise AlgorithmError(
                f"The algorithm's states for two settings have different structures: {first} "
                f"and {other}. Settings that change the structure must not be numbers."
            )


def call_broadcast(exchange: Exchange, place: str, server_state: Any) -> PyTree:
    """The message of an exchange; `place` identifies it, such as "exchange 1 of 2"."""
    return checked_call(
        AlgorithmError, f"The broadcast function of {place}", "broadcast(server_state)",
        exchange.broadcast, (server_state,), {},
    )


def call_client(
    exchange: Exchange, place: str, message: PyTree, client_state: PyTree, data: Any, key: Array
) -> Reply:
    """A client's reply, with Python numbers converted to arrays."""
    what = f"The client function of {place}"
    reply = checked_call(
        AlgorithmError, what, "client(message, client_state, data, key)", exchange.client,
        (message, client_state, data, key), {"data.arrays": getattr(data, "arrays", ())},
    )
    if not isinstance(reply, Reply):
        raise AlgorithmError(
            f"{what}{defined_at(exchange.client)} must return a fedax.Reply(upload, weight, "
            f"client_state, info), but returned {kind_of(reply)}."
        )
    _check_info(reply.info)
    for name in ("upload", "weight", "client_state", "model_delta"):
        _require_arrays(f"A client's {name.replace('_', ' ')} has a value", getattr(reply, name))
    reply = Reply(*jax.tree.map(jnp.asarray, tuple(reply)))
    for leaf in jax.tree.leaves(reply.upload):
        if not exchange.individual and not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise AlgorithmError(
                f"A client's upload has an array of type {leaf.dtype} and shape {leaf.shape}; "
                "uploads are averaged, so they must be floating point arrays: convert it with "
                ".astype(float)."
            )
    if reply.weight.ndim:
        raise AlgorithmError(
            f"A client's weight must be a scalar, but has shape {reply.weight.shape}."
        )
    reply = reply._replace(client_state=like_twin(client_state, reply.client_state))
    before, after = (
        jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), tree)
        for tree in (client_state, reply.client_state)
    )
    if before != after:
        raise AlgorithmError(
            f"A client's state was {before}, but client returned {after}; it must keep its "
            "structure, shapes and dtypes."
        )
    return reply


def call_report(exchange: Exchange, place: str, upload: PyTree) -> dict[str, Array]:
    """What an exchange reports about the mean upload; nothing without a report function."""
    if exchange.report is None:
        return {}
    what = f"The report function of {place}"
    found = checked_call(
        AlgorithmError, what, "report(mean_upload)", exchange.report, (upload,),
        {"mean_upload": upload},
    )
    values = {name: jnp.asarray(value) for name, value in found.items()}
    for name, value in values.items():
        if value.ndim or not jnp.issubdtype(value.dtype, jnp.floating):
            raise AlgorithmError(
                f"{what}{defined_at(exchange.report)} must return floating point scalars, but "
                f"{name!r} is of type {value.dtype} and shape {value.shape}."
            )
    return values


def call_server(
    exchange: Exchange, place: str, server_state: Any, upload: PyTree, participation: Any
) -> Any:
    """The server's state after an exchange."""
    what = f"The server function of {place}"
    after = checked_call(
        AlgorithmError, what, "server(server_state, mean_upload, participation)", exchange.server,
        (server_state, upload, participation), {"mean_upload": upload},
    )
    where = f"{what}{defined_at(exchange.server)}"
    after = like_twin(server_state, after)
    if jax.tree.structure(server_state) != jax.tree.structure(after):
        raise AlgorithmError(
            f"{where} must return a state like its argument, "
            f"{kind_of(server_state)} with the same fields, but returned "
            f"{kind_of(after)} of a different structure. Return server_state._replace(params=...)."
        )
    olds, news = jax.tree.leaves(server_state), jax.tree.leaves(after)
    for place_in_state, old, new in zip(described(server_state, None), olds, news, strict=True):
        is_number = not hasattr(new, "dtype")  # adapts its dtype
        if jnp.shape(old) != jnp.shape(new) or not (is_number or old.dtype == new.dtype):
            raise AlgorithmError(
                f"{where} must keep the shapes and dtypes of its state, but "
                f"server_state{place_in_state} came back as {array_words(new)}."
            )
    return after


def like_twin(given: PyTree, other: PyTree) -> PyTree:
    """The other tree, converted to the classes of the given one if names and fields are equal.

    A class that is defined inside a factory is a new class in every call.
    """
    mine, its = jax.tree.structure(given), jax.tree.structure(other)
    if mine != its and str(mine) == str(its):
        return jax.tree.unflatten(mine, jax.tree.leaves(other))
    return other


def _check_info(info: Any) -> None:
    """Raises a clear error unless it maps names to scalar pairs (value, weight)."""
    if not hasattr(info, "items"):
        raise AlgorithmError(
            "A client's info must be a dictionary, name -> (value, weight), but is "
            f"{kind_of(info)}."
        )
    for name, pair in info.items():
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise AlgorithmError(
                f"A client's info {name!r} must be a pair (value, weight), as values are averaged, "
                f"but is {array_words(pair)}. For equal weights, give (value, 1.0)."
            )
        shapes = [jnp.shape(part) for part in pair]
        if shapes != [(), ()]:
            raise AlgorithmError(
                f"A client's info {name!r} must be a scalar and its weight, but they have the "
                f"shapes {shapes[0]} and {shapes[1]}."
            )


def _require_arrays(what: str, tree: PyTree) -> None:
    """Raises a clear error if a leaf is neither an array nor a number."""
    for leaf in jax.tree.leaves(tree):
        if not hasattr(leaf, "dtype") and not isinstance(leaf, bool | int | float):
            raise AlgorithmError(
                f"{what} of type {type(leaf).__name__}, {kind_of(leaf)}; it must be of "
                "floating point arrays."
            )
