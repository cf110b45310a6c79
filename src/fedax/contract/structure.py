"""The clauses about types and programs: what can be said of a method without running it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedax.algorithm import Exchange, FederatedAlgorithm, Individual, Participation, Reply
from fedax.contract.bench import Bench, Broken, NotApplicable, cohort_of, rounds
from fedax.data.cohort_data import ClientData
from fedax.factories import recipe
from fedax.rounds.cohort import run_round

COHORT_SIZE = 5
HOST_CALLS = ("pure_callback", "io_callback")


def is_made(bench: Bench) -> str:
    """The factory gives an algorithm whose state begins as it must."""
    algorithm = _call("The factory", lambda: bench.algorithm)
    if not isinstance(algorithm, FederatedAlgorithm):
        raise Broken(
            f"The factory returned a {type(algorithm).__name__}; it must return a "
            "fedax.FederatedAlgorithm(init, init_client, exchanges)."
        )
    if not isinstance(algorithm.exchanges, tuple) or not algorithm.exchanges or not all(
        isinstance(exchange, Exchange) for exchange in algorithm.exchanges
    ):
        raise Broken("`exchanges` must be a tuple of at least one fedax.Exchange.")
    params = bench.model.init(jax.random.key(0))
    state = _call("init(params)", lambda: algorithm.init(params))
    for field in ("params", "round_index", "_replace"):
        if not hasattr(state, field):
            raise Broken(
                f"init(params) returned a {type(state).__name__} without `{field}`; the server's "
                "state is a NamedTuple with at least the fields params and round_index."
            )
    _same("init(params).params", _types(params), _types(state.params))
    index = jnp.asarray(state.round_index)
    if index.dtype != jnp.int32 or index.ndim or int(index):
        raise Broken(
            f"init(params).round_index is {state.round_index!r}; it must be jnp.int32(0)."
        )
    many = len(algorithm.exchanges)
    return f"The factory returns an algorithm with {many} exchange{'s' * (many > 1)} a round."


def keeps_types(bench: Bench) -> str:
    """States keep their structure, shapes and dtypes; uploads are floating point arrays."""
    trace_round(bench, jnp.result_type(float))
    one_by_one = any(exchange.individual for exchange in bench.algorithm.exchanges)
    seen = "seen one by one, which gives up secure aggregation" if one_by_one else "averaged"
    return f"States keep their structure, shapes and dtypes; uploads are floats and {seen}."


def keeps_low_precision(bench: Bench) -> str:
    """The same in bfloat16."""
    trace_round(bench, jnp.bfloat16)
    return "With bfloat16 parameters states and uploads keep their dtypes."


def can_be_traced(bench: Bench) -> str:
    """Floating point settings may be arguments of a compiled program."""
    numbers = bench.numbers
    if not numbers:
        raise NotApplicable("No setting is a floating point number.")

    def trace(names: tuple[str, ...]) -> None:
        chosen = {name: numbers[name] for name in names}
        jax.eval_shape(
            lambda chosen: bench.build(chosen).init(bench.model.init(jax.random.key(0))), chosen
        )
        jax.eval_shape(
            rounds(bench.build), chosen, bench.first_states, bench.everyone(),
            jnp.asarray(bench.cohorts), jax.random.key(0), 1,
        )

    for names in (*((name,) for name in numbers), tuple(numbers)):
        try:
            trace(names)
        except Exception as error:
            raise Broken(
                f"With {' and '.join(names)} traced the method fails: {sentence(error)} A floating "
                "point setting may be an argument of a compiled program, so it must not decide "
                "which code runs: use jnp.where, or name it in @fedax.factory(static=[...])."
            ) from None
    return f"Traced: {', '.join(numbers)}."


def is_noted(bench: Bench) -> str:
    """A factory that is decorated makes one program of all values of its numbers."""
    if recipe(bench.algorithm) is None:
        raise NotApplicable(
            "The factory is not decorated with @fedax.factory, so a loop over its settings "
            "compiles for each."
        )
    if not bench.numbers:
        raise NotApplicable("No setting is a floating point number.")
    return f"A loop over {', '.join(bench.numbers)} compiles once."


def is_one_program(bench: Bench) -> str:
    """A round is a program of the device, no longer for more clients or examples."""
    clients, capacity = bench.cohorts[0], bench.everyone().capacity
    names = [equation.primitive.name for equation in _operations(bench, clients, capacity)]
    for name in names:
        if name in HOST_CALLS:
            raise Broken(
                f"A round calls back to Python ({name}); write it in jax.numpy, so that it runs "
                "on the device."
            )
    several = np.repeat(clients, 4)
    many = len(_operations(bench, several, capacity))
    if many - len(names) >= len(several) - len(clients):
        raise Broken(
            f"A round of {len(clients)} clients is a program of {len(names)} operations, and one "
            f"of {len(several)} clients of {many}: a Python loop runs over the cohort. Use "
            "arrays with a leading axis, or jax.lax.scan."
        )
    many = len(_operations(bench, clients, 10 * capacity))
    if many - len(names) >= 9 * capacity:
        raise Broken(
            f"With {capacity} examples in the largest client a round is a program of {len(names)} "
            f"operations, and with {10 * capacity} of {many}: a Python loop runs over examples. "
            "Use local.train, or fedax.clients.minibatches.fold_minibatches."
        )
    return f"A round is one program of {len(names)} operations, whatever the cohort."


def is_pure(bench: Bench) -> str:
    """Traced twice, a round is the same program with the same constants."""
    clients, capacity = bench.cohorts[0], bench.everyone().capacity
    first, second = (
        [_constants(equation) for equation in _operations(bench, clients, capacity)]
        for _ in range(2)
    )
    if first != second:
        raise Broken(
            "Traced twice, a round is two different programs: something that is no argument "
            "changes, such as a global variable, a counter in Python or NumPy's randomness. Keep "
            "it in the server's or the client's state, and draw from the client's key."
        )
    return "A round depends on its arguments only."


def sentence(error: Exception) -> str:
    """What an exception says, in short."""
    text = " ".join(str(error).split()) or "no message"
    end = text.find(". ")
    if 0 < end < 300 and not isinstance(error, TypeError | ValueError):
        text = text[: end + 1]
    text = text if len(text) <= 400 else text[:397] + "..."
    return f"{type(error).__name__}: {text}" + ("" if text.endswith(".") else ".")


def trace_round(bench: Bench, dtype: Any) -> Any:
    """The types of the last upload, from tracing all that a round calls, one after the other.

    Raises:
      Broken: where it first fails.
    """
    algorithm = bench.algorithm

    def as_dtype(leaf: Any) -> Any:
        return jax.ShapeDtypeStruct(leaf.shape, dtype)

    params = jax.tree.map(as_dtype, jax.eval_shape(bench.model.init, jax.random.key(0)))
    everyone = bench.everyone(dtype=dtype)
    whole: Any = jax.ShapeDtypeStruct((), jnp.int32)
    data = ClientData(
        jax.tree.map(as_dtype, dict(everyone.arrays)), whole, whole, everyone.capacity, whole
    )
    key = jax.eval_shape(jax.random.key, 0)
    state = _eval("init", algorithm.init, params)
    reply: Any = None
    own = _eval("init_client", algorithm.init_client, params)
    many = len(algorithm.exchanges)
    for index, exchange in enumerate(algorithm.exchanges):
        of = f" of exchange {index + 1}" if many > 1 else ""
        message = _eval(f"broadcast{of}", exchange.broadcast, state)
        reply = _eval(f"client{of}", exchange.client, message, own, data, key)
        _check_reply(f"client{of}", reply, own)
        upload = reply.upload
        if exchange.individual:
            upload = Individual(
                *jax.tree.map(
                    lambda leaf: jax.ShapeDtypeStruct((COHORT_SIZE, *leaf.shape), leaf.dtype),
                    (upload, reply.weight),
                )
            )
        after = _eval(
            f"server{of}", exchange.server, state, upload, Participation(whole, whole, whole)
        )
        _same(f"The server's state, through server{of}:", _types(state), _types(after))
    return reply.upload


def _check_reply(where: str, reply: Any, own: Any) -> None:
    """Raises `Broken` if a client's answer is not a reply."""
    if not isinstance(reply, Reply):
        raise Broken(f"{where} returned a {type(reply).__name__}; it must return a fedax.Reply.")
    for path, leaf in jax.tree_util.tree_leaves_with_path(reply.upload):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise Broken(
                f"{where}: upload{_name(path)} is {_type(leaf)}; uploads are averaged, so they "
                "must be floating point arrays: use .astype of the parameters' dtype."
            )
    weight = reply.weight
    if getattr(weight, "shape", None) != ():
        raise Broken(f"{where}: the weight is {weight}; it must be a scalar.")
    if not isinstance(reply.info, Mapping):
        raise Broken(f"{where}: info is a {type(reply.info).__name__}; it must be a dictionary "
                     "name -> (value, weight), and {} if there is nothing to report.")
    for name, pair in reply.info.items():
        if not isinstance(pair, tuple) or [leaf.shape for leaf in pair] != [(), ()]:
            raise Broken(
                f"{where}: info[{name!r}] must be a pair of scalars (value, weight), but is "
                f"{jax.tree.map(_type, pair)}."
            )
    _same(f"The client's state, through {where}:", _types(own), _types(reply.client_state))


def _call(where: str, function: Callable[[], Any]) -> Any:
    try:
        return function()
    except Exception as error:
        raise Broken(f"{where} failed. {sentence(error)}") from None


def _eval(where: str, function: Callable[..., Any], *arguments: Any) -> Any:
    return _call(where, lambda: jax.eval_shape(function, *arguments))


def _types(tree: Any) -> dict[str, str]:
    """Path -> dtype and shape of every leaf."""
    return {
        _name(path): _type(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _type(leaf: Any) -> str:
    leaf = leaf if hasattr(leaf, "dtype") else jnp.asarray(leaf)
    return f"{leaf.dtype}{list(leaf.shape)}"


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path)


def _same(where: str, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Raises `Broken` with the first array that is not what it was."""
    for name in [*before, *(name for name in after if name not in before)]:
        was, now = before.get(name, "not there"), after.get(name, "not there")
        if was != now:
            raise Broken(
                f"{where} {name or 'it'} was {was} and is {now} now; structure, shapes and dtypes "
                "must stay. Where a number meets an array, cast it: jnp.asarray(number, "
                "array.dtype)."
            )


def _operations(bench: Bench, clients: np.ndarray, capacity: int) -> list[Any]:
    """All operations of a round of these clients, those inside of others too."""
    cohort = dataclasses.replace(cohort_of(bench.everyone(), clients), capacity=capacity)
    server_state, client_states = bench.first_states
    client_states = jax.tree.map(lambda leaf: leaf[clients], client_states)
    program = jax.make_jaxpr(
        lambda *arguments: run_round(bench.algorithm, *arguments)
    )(server_state, client_states, cohort, jax.random.key(0))
    return [*_equations(program.jaxpr)]


def _equations(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns")
        ):
            if hasattr(inner, "eqns"):
                yield from _equations(getattr(inner, "jaxpr", inner))


def _constants(equation: Any) -> tuple[str, list[bytes]]:
    """The name of an operation, and what it takes that is no variable."""
    return equation.primitive.name, [
        np.asarray(value.val).tobytes() for value in equation.invars if hasattr(value, "val")
    ]
