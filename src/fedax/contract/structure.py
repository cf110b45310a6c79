"""Clauses about types and programs, checked without running the method."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedax.algorithm import (
    FederatedAlgorithm,
    Individual,
    Participation,
    PublicParticipation,
)
from fedax.contract.bench import Bench, Broken, NotApplicable, cohort_of, rounds
from fedax.data.cohort_data import ClientData
from fedax.factories import recipe
from fedax.mistakes.algorithm import (
    call_broadcast,
    call_client,
    call_server,
    call_state_inits,
    require_algorithm,
)
from fedax.mistakes.errors import (
    PASSED_ON,
    AlgorithmError,
    checked_call,
    described,
    kind_of,
    said,
)
from fedax.rounds.cohort import run_round

HOST_CALLS = ("pure_callback", "io_callback")


def is_made(bench: Bench) -> str:
    """The factory returns an algorithm with a valid initial state."""
    if not callable(bench.factory):
        raise Broken(
            f"check_algorithm takes a factory, such as fedax.fedavg, but got "
            f"{kind_of(bench.factory)}. Give the function itself, not its result."
        )
    params = bench.model.init(jax.random.key(0))
    algorithm = checked_call(
        AlgorithmError, "The factory", "factory(model, **settings)", lambda: bench.algorithm, (), {}
    )
    if not isinstance(algorithm, FederatedAlgorithm):
        raise Broken(
            f"The factory returned {kind_of(algorithm)}; it must return a "
            "fedax.FederatedAlgorithm(init, init_client, exchanges)."
        )
    try:
        require_algorithm(algorithm)
    except TypeError as error:
        raise Broken(str(error)) from None
    state, _ = call_state_inits(bench.algorithm, params)
    if _types(state.params) != _types(params):
        raise Broken(
            f"init(params).params are {_types(state.params)}, but the parameters are "
            f"{_types(params)}; `init` must store them unchanged in the state's `params`."
        )
    index = jnp.asarray(state.round_index)
    if index.dtype != jnp.int32 or index.ndim or int(index):
        raise Broken(
            f"init(params).round_index is {state.round_index!r}; it must be jnp.int32(0)."
        )
    many = len(bench.algorithm.exchanges)
    return f"The factory returns an algorithm with {many} exchange{'s' * (many > 1)} per round."


def keeps_types(bench: Bench) -> str:
    """States keep their structure, shapes and dtypes; uploads are floating point arrays."""
    last_upload(bench, jnp.result_type(float))
    one_by_one = any(exchange.individual for exchange in bench.algorithm.exchanges)
    seen = "seen one by one, which gives up secure aggregation" if one_by_one else "averaged"
    return f"States keep their structure, shapes and dtypes; uploads are floats and {seen}."


def keeps_low_precision(bench: Bench) -> str:
    """The same in bfloat16."""
    try:
        last_upload(bench, jnp.bfloat16)
    except AlgorithmError as error:
        raise Broken(
            f"With bfloat16 parameters: {error} Where a number meets an array, cast it: "
            "jnp.asarray(number, array.dtype)."
        ) from None
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
                f"With {' and '.join(names)} traced the method fails. {sentence(error)} A floating "
                "point setting may be an argument of a compiled program, so it must not decide "
                "which code runs: use jnp.where, or name it in @fedax.factory(static=[...])."
            ) from None
    return f"Traced: {', '.join(numbers)}."


def is_noted(bench: Bench) -> str:
    """A decorated factory makes one program for all values of its numbers."""
    if recipe(bench.algorithm) is None:
        raise NotApplicable(
            "The factory is not decorated with @fedax.factory, so a loop over its settings "
            "compiles once for each."
        )
    if not bench.numbers:
        raise NotApplicable("No setting is a floating point number.")
    return f"A loop over {', '.join(bench.numbers)} compiles once."


def is_one_program(bench: Bench) -> str:
    """A round is a program on the device whose length does not grow with clients or examples."""
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
    if not bench.algorithm.pooled and many - len(names) >= len(several) - len(clients):
        raise Broken(
            f"A round of {len(clients)} clients is a program of {len(names)} operations, but one "
            f"of {len(several)} clients has {many}: a Python loop runs over the cohort. Use "
            "arrays with a leading axis, or jax.lax.scan."
        )
    many = len(_operations(bench, clients, 10 * capacity))
    if many - len(names) >= 9 * capacity:
        raise Broken(
            f"With {capacity} examples in the largest client a round is a program of {len(names)} "
            f"operations, but with {10 * capacity} it has {many}: a Python loop runs over "
            "examples. Use local.train, or fedax.clients.minibatches.fold_minibatches."
        )
    return f"A round is one program of {len(names)} operations for every cohort."


def is_pure(bench: Bench) -> str:
    """Traced twice, a round is the same program with the same constants."""
    clients, capacity = bench.cohorts[0], bench.everyone().capacity
    first, second = (
        [_constants(equation) for equation in _operations(bench, clients, capacity)]
        for _ in range(2)
    )
    if first != second:
        raise Broken(
            "Traced twice, a round is two different programs: something that is not an argument "
            "changes, such as a global variable, a counter in Python or NumPy's randomness. Keep "
            "it in the server's or the client's state, and draw from the client's key."
        )
    return "A round depends on its arguments only."


def sentence(error: Exception) -> str:
    """An error's message; clear messages are not changed."""
    return str(error) if isinstance(error, PASSED_ON) else said(error)


def last_upload(bench: Bench, dtype: Any) -> Any:
    """The types of a round's last upload, from tracing all that a round calls.

    Args:
      bench: the method.
      dtype: of the parameters and the data.

    Raises:
      AlgorithmError: if a function fails or returns something invalid.
    """
    algorithm, everyone = bench.algorithm, bench.everyone(dtype=dtype)
    many = len(algorithm.exchanges)

    def one_round(params: Any, arrays: Any, key: Any) -> Any:
        state, own = call_state_inits(algorithm, params)
        upload: Any = ()
        for index, exchange in enumerate(algorithm.exchanges):
            place = f"exchange {index + 1} of {many}"
            data = ClientData(arrays, jnp.int32(0), jnp.int32(1), everyone.capacity)
            message = call_broadcast(exchange, place, state)
            reply = call_client(exchange, place, message, own, data, key)
            upload = reply.upload
            if exchange.individual:
                upload = Individual(
                    *jax.tree.map(lambda leaf: jnp.stack([leaf] * 5), (upload, reply.weight))
                )
            one = jnp.int32(1)
            who = Participation(one, one, one)
            if exchange.total:
                who = PublicParticipation(one, jnp.float32(1), key)
            state = call_server(exchange, place, state, upload, who)
        return upload

    params = jax.tree.map(
        lambda leaf: jnp.asarray(leaf, dtype), bench.model.init(jax.random.key(0))
    )
    return jax.eval_shape(one_round, params, dict(everyone.arrays), jax.random.key(0))


def _types(tree: Any) -> str:
    return ", ".join(described(tree))


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
