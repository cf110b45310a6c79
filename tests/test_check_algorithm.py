"""`check_algorithm` names each planted fault, and passes what keeps the contract."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax import Exchange, ModelUpdate
from fedax.contract.check import CHECKS, Checks, run_checks


class State(NamedTuple):
    """A server state."""

    params: Any
    round_index: Any
    extra: Any = ()


def changed(*, init=None, init_client=None, client=None, server=None, individual=False):
    """A factory of FedAvg with other parts; each gets FedAvg's own first."""

    def factory(model, client_learning_rate=0.1):
        algorithm = fedax.fedavg(model, client_learning_rate)
        (exchange,) = algorithm.exchanges
        return algorithm._replace(
            init=functools.partial(init, algorithm.init) if init else algorithm.init,
            init_client=init_client or algorithm.init_client,
            exchanges=(
                Exchange(
                    exchange.broadcast,
                    functools.partial(client, exchange.client) if client else exchange.client,
                    functools.partial(server, exchange.server) if server else exchange.server,
                    individual,
                ),
            ),
        )

    return factory


def with_upload(change):
    def client(inner, message, state, data, key):
        reply = inner(message, state, data, key)
        return change(reply, data)

    return client


def scaled(reply, scale):
    return reply._replace(upload=jax.tree.map(lambda leaf: leaf * scale, reply.upload))


def rounded(reply, data):
    del data
    return reply._replace(upload=ModelUpdate(jax.tree.map(
        lambda leaf: jnp.round(leaf).astype(jnp.int32), reply.upload.pseudo_gradient
    )))


def without_info(reply, data):
    """Nothing that is not finite is sent, whatever the data are."""
    del data
    return reply._replace(
        upload=jax.tree.map(jnp.nan_to_num, reply.upload), info={}
    )


def forgets_its_state(inner, message, state, data, key):
    return inner(message, state, data, key)._replace(client_state=(state, state))


def calls_home(reply, data):
    del data
    jax.pure_callback(lambda: np.float32(0), jax.ShapeDtypeStruct((), jnp.float32))
    return reply


def looks_at_each_example(reply, data):
    total = jnp.zeros((), reply.weight.dtype)
    for i in range(data.capacity):
        total += jnp.where(i < data.num_examples, 1, 0).astype(total.dtype)
    return reply._replace(weight=total)


CALLS = iter(range(10**6))


def counts_its_calls(reply, data):
    del data
    return scaled(reply, 1 + next(CALLS))


def draws_from_numpy(reply, data):
    del data
    return scaled(reply, jnp.asarray(np.random.default_rng().random(), reply.weight.dtype))


def asks_the_whole_cohort(inner, state, uploads, participation):
    """Divides by the number of places, those where nobody stands included."""
    mean = jax.tree.map(lambda leaf: leaf.mean(0), uploads.uploads)
    return inner(state, mean, participation)


def loops_over_the_cohort(inner, state, uploads, participation):
    mean = jax.tree.map(jnp.zeros_like, state.params)
    for i in range(uploads.weights.shape[0]):
        mean = jax.tree.map(
            lambda total, leaf, i=i: total + leaf[i] * uploads.weights[i].astype(leaf.dtype),
            mean, uploads.uploads.pseudo_gradient,
        )
    total = uploads.weights.sum()
    mean = jax.tree.map(lambda leaf: leaf / total.astype(leaf.dtype), mean)
    return inner(state, ModelUpdate(mean), participation)


def follows_the_first(inner, state, uploads, participation):
    return inner(state, jax.tree.map(lambda leaf: leaf[0], uploads.uploads), participation)


def advances(inner, state, mean, participation):
    state = inner(state, mean, participation)
    return state._replace(round_index=state.round_index + 1)


def stands_still(inner, state, mean, participation):
    del inner, mean, participation
    return state


def steps_in_float32(inner, state, mean, participation):
    state = inner(state, mean, participation)
    return state._replace(params=jax.tree.map(lambda x: x * jnp.float32(1), state.params))


def with_key(inner, params):
    state = inner(params)
    return State(state.params, state.round_index, jax.random.key(0))


def keyed_server(inner, state, mean, participation):
    del inner, participation
    params = jax.tree.map(jnp.subtract, state.params, mean.pseudo_gradient)
    return state._replace(params=params, extra=jax.random.split(state.extra)[0])


def branches_on_its_rate(model, client_learning_rate=0.1):
    return fedax.fedavg(model, client_learning_rate if client_learning_rate > 0 else 0.1)


def reads_past_its_own(model, client_learning_rate=0.1):
    algorithm = fedax.fedavg(model, client_learning_rate)
    (exchange,) = algorithm.exchanges

    def client(message, state, data, key):
        reply = exchange.client(message, state, data, key)
        three = data.examples(jnp.arange(3, dtype=jnp.int32))
        loss = model.loss(message.params, three, key)[0].mean()
        return scaled(reply, jnp.exp(-loss))

    return algorithm._replace(exchanges=(exchange._replace(client=client),))


def uploads_no_pseudo_gradient(model, client_learning_rate=0.1):
    algorithm = fedax.fedavg(model, client_learning_rate)
    (exchange,) = algorithm.exchanges

    def client(*arguments):
        reply = exchange.client(*arguments)
        return reply._replace(upload=reply.upload.pseudo_gradient)

    def server(state, mean, participation):
        return exchange.server(state, ModelUpdate(mean), participation)

    return algorithm._replace(exchanges=(exchange._replace(client=client, server=server),))


def ignores_the_scale(reply, data):
    """Sends the change twice, and the server looks at the one that elastic does not scale."""
    del data
    return reply._replace(upload=Twice(reply.upload.pseudo_gradient, reply.upload.pseudo_gradient))


class Twice(NamedTuple):
    """An upload."""

    pseudo_gradient: Any
    other: Any


def uses_the_other(inner, state, mean, participation):
    return inner(state, ModelUpdate(mean.other), participation)


# The fault -> the check that names it, a part of its sentence, and the factory.
FAULTS = {
    "returns a function": ("factory", "returned the function <lambda>", lambda model: lambda x: x),
    "fails": ("factory", "The factory failed in ", lambda model: {}["x"]),
    "exchanges in a list": ("factory", "must be a tuple of fedax.Exchange", lambda model: (
        fedax.fedavg(model)._replace(exchanges=[]))),
    "params are others": ("factory", "init(params).params are ['x'] float64[3], but", changed(
        init=lambda inner, params: inner({"x": params["x"]}))),
    "no round index": ("factory", "the fields params and round_index, but returned a dict", changed(
        init=lambda inner, params: params)),
    "begins at 1": ("factory", "must be jnp.int32", changed(
        init=lambda inner, params: inner(params)._replace(round_index=jnp.int32(1)))),
    "integer upload": ("types", "type int32 and shape (); uploads are averaged", changed(
        client=with_upload(rounded))),
    "vector weight": ("types", "weight must be a scalar", changed(
        client=with_upload(lambda reply, data: reply._replace(weight=jnp.ones(2))))),
    "no reply": ("types", "must return a fedax.Reply", changed(
        client=with_upload(lambda reply, data: tuple(reply)))),
    "info without weight": ("types", "info 'n' must be a pair (value, weight)", changed(
        client=with_upload(lambda reply, data: reply._replace(info={"n": jnp.ones(())})))),
    "client state grows": ("types", "it must keep its structure, shapes and dtypes", changed(
        init_client=lambda params: jnp.zeros(2), client=forgets_its_state)),
    "server fails": ("types", "The server function of exchange 1 of 1 failed in ", changed(
        server=lambda inner, state, mean, who: state.replace(mean))),
    "server state changes": ("types", "params['x'] float64[3] came back as float64[2]", changed(
        server=lambda inner, state, mean, who: state._replace(
            params={"x": state.params["x"][:2], "inner": state.params["inner"]}))),
    "two rounds in one": ("finite", "round_index is 8", changed(server=advances)),
    "divides by 0": ("finite", "not finite", changed(
        client=with_upload(lambda reply, data: scaled(reply, jnp.inf * reply.weight)))),
    "float32 throughout": ("precision", "bfloat16[] came back as float32[]", changed(
        server=steps_in_float32)),
    "calls Python": ("program", "calls back to Python (pure_callback)", changed(
        client=with_upload(calls_home))),
    "unrolls examples": ("program", "a Python loop runs over examples", changed(
        client=with_upload(looks_at_each_example))),
    "unrolls clients": ("program", "a Python loop runs over the cohort", changed(
        server=loops_over_the_cohort, individual=True)),
    "counts in Python": ("pure", "Traced twice", changed(client=with_upload(counts_its_calls))),
    "NumPy's randomness": ("pure", "draw from the client's key", changed(
        client=with_upload(draws_from_numpy))),
    "branches on a number": ("traced", "With client_learning_rate traced the method fails",
                             branches_on_its_rate),
    "follows the first": ("cohort order", "in another order gives numbers that differ", changed(
        server=follows_the_first, individual=True)),
    "reads past its own": ("own examples", "a client reads beyond its own", reads_past_its_own),
    "counts the empty": ("empty clients", "An empty place in the cohort changes", changed(
        server=asks_the_whole_cohort, individual=True)),
    "hides NaN": ("non-finite", "was counted", changed(client=with_upload(without_info))),
    "keeps a key": ("resume", "jax.random.key_data", changed(init=with_key, server=keyed_server)),
    "does not learn": ("learns", "pass others to these checks", changed(server=stands_still)),
    "does not follow elastic": ("elastic", "do not depend on the elasticity", changed(
        client=with_upload(ignores_the_scale), server=uses_the_other)),
    "does not use its rate": ("decay", "change nothing", lambda model, client_learning_rate=0.1: (
        fedax.fedavg(model, 0.1))),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named(fault):
    name, sentence, factory = FAULTS[fault]
    with jax.numpy_dtype_promotion("standard"):  # as a user has it
        (check,) = run_checks(factory, {}, [name])
    assert check.passed is False
    assert sentence in check.sentence
    assert check.sentence.endswith(".")


def test_every_check_that_can_fail_has_its_fault():
    """The others hold by the engine's doing, whatever the method is, or follow from these."""
    by_the_engine = {"compiles once", "loop", "vmap", "chunks"}
    assert {name for name, *_ in FAULTS.values()} == set(CHECKS) - by_the_engine


@pytest.mark.quick
def test_what_needs_a_failed_check_is_not_run():
    checks = fedax.check_algorithm(lambda model: 3)
    assert [check.passed for check in checks] == [False] + [None] * (len(CHECKS) - 1)
    assert checks[1].sentence == "Not run, as 'factory' failed."
    with pytest.raises(AssertionError, match=r"The contract does not hold. factory: The factory"):
        checks.raise_if_failed()


@pytest.mark.quick
def test_an_algorithm_in_place_of_its_factory_is_a_sentence():
    model = fedax.regression(lambda key: jnp.zeros(1), lambda params, x: x @ params)
    first = fedax.check_algorithm(fedax.fedavg(model))[0]
    assert (first.name, first.passed) == ("factory", False)
    assert first.sentence == (
        "check_algorithm takes a factory, such as fedax.fedavg, but got a FederatedAlgorithm. Give "
        "the function itself, not its result."
    )


def test_what_says_nothing_about_a_method_is_not_run():
    found = run_checks(uploads_no_pseudo_gradient, {}, ["elastic", "loop"])
    assert [check.passed for check in found] == [None, None]
    assert "is a dict without one. Upload a NamedTuple with a field" in found[1].sentence
    assert "not decorated with @fedax.factory" in found[0].sentence
    (check,) = run_checks(fedax.centralised, {}, ["non-finite"])
    assert check.passed is None
    (check,) = run_checks(fedax.fedsgd, {}, ["loop"])
    assert "client_learning_rate" in check.sentence


@pytest.mark.quick
def test_a_table_is_what_it_prints():
    found = run_checks(branches_on_its_rate, {}, ["factory", "traced", "vmap"])
    assert isinstance(found, Checks)
    lines = repr(found).splitlines()
    assert lines[0].startswith("passed   factory  The factory returns an algorithm with 1 exchange")
    assert lines[1].startswith("FAILED   traced   With client_learning_rate traced")
    assert lines[-1] == "not run  vmap     Not run, as 'traced' failed."
    assert max(map(len, lines)) <= 100


@pytest.mark.slow
def test_a_method_with_two_exchanges_in_a_users_precision():
    """Float32, with JAX as it comes. Others pass all: in test_own_methods.py and test_guides.py."""
    names = ["factory", "types", "precision", "chunks"]
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        checks = run_checks(fedax.mime, {}, names)
    assert {check.passed for check in checks} == {True}
    assert "2 exchanges" in checks[0].sentence


@pytest.mark.slow
def test_a_state_s_class_may_be_defined_inside_the_factory():
    @fedax.factory
    def inner(model, client_learning_rate=0.1):
        algorithm = fedax.fedavg(model, client_learning_rate)
        (exchange,) = algorithm.exchanges

        class Own(NamedTuple):
            params: Any
            round_index: Any

        def init(params):
            return Own(*algorithm.init(params)[:2])

        def server(state, mean, participation):
            step = jax.tree.map(jnp.subtract, state.params, mean.pseudo_gradient)
            return state._replace(params=step)

        return algorithm._replace(init=init, exchanges=(exchange._replace(server=server),))

    assert not fedax.check_algorithm(inner).failed
    swept = fedax.sweep(
        fedax.load_task("quadratics"), inner, {"client_learning_rate": [0.01, 0.1]},
        num_rounds=2, progress=False,
    )
    assert swept.best() is not None
