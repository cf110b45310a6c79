"""One contract for every public algorithm factory; a factory missing from the table fails."""

import ast
import dataclasses
import functools
import inspect
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedax
from fedax import (
    algorithms,
    attacks,
    base_optimizers,
    codecs,
    optimizers,
    robust_means,
    train,
)
from fedax.algorithms.registry import ALGORITHMS, WRAPPERS
from fedax.clients.local_training import LocalOptions
from fedax.data import CohortReader
from fedax.rounds.cohort import run_round
from problems import identical, largest_difference, quadratic_model, quadratic_task

# A hyperparameter's two values. The first is the one that the other tests run with; with the
# second the result must differ. Nine epochs are more steps than num_local_steps allows.
TRACED = {
    "clip": (0.05, 0.2),
    "client_learning_rate": (0.1, 0.05),
    "server_learning_rate": (0.5, 0.1),
    "adaptivity": (0.1, 0.01),
    "momentum": (0.5, 0.9),
    "dampening": (0.1, 0.6),
    "second_moment_decay": (0.9, 0.5),
    "initial_accumulator": (0.1, 1.0),
    "final_scale": (1.0, 3.0),
    "bound_rate": (1.0, 20.0),
    "rho": (0.05, 0.2),
    "steps_decay": (0.9, 0.3),
    "client_decay": (0.9, 0.5),
    "server_decay": (0.9, 0.5),
    "slow_weights_step": (0.5, 0.8),
    "momentum_weight": (0.3, 0.8),
    "gradient_weights": ((1.0, 0.5, 0.25), (0.0, 1.0, 0.5)),
    "elasticity": (0.5, 0.1),
    "sensitivity_decay": (0.9, 0.2),
    "held_out_fraction": (0.5, 0.3),
    "patience": (1, 2),
    "cooldown": (0, 2),
    "threshold": (10.0, 0.0),
    "num_local_steps": (3, 1),
    "num_local_epochs": (9, 1),
    "proximal_weight": (0.1, 0.9),
    "q": (0.5, 2.0),
    "tilt": (0.5, 2.0),
    "epsilon": (1e-3, 1.0),
    "mixture_learning_rate": (0.01, 0.1),
    "convexity": (0.3, 1.0),
    "communication_probability": (0.3, 0.9),
    "attraction": (0.1, 0.9),
    "mixture": (0.3, 0.8),
    "num_head_steps": (2, 5),
    "initial_spread": (1.0, 0.1),
    "inner_learning_rate": (0.1, 0.4),
    "difference": (0.1, 0.2),
    "personal_learning_rate": (0.2, 0.1),
    "num_personal_steps": (2, 3),
}
# What cannot be traced: functions, names of choices, lengths of arrays.
STATIC = {
    "model", "algorithm", "build", "codec", "downlink", "base", "client_optimizer",
    "server_optimizer", "optimizer",
    "share", "restart", "bias_correction", "control_option", "sensitivity", "output", "rule",
    "weighting", "order", "batch_size", "sensitivity_batch_size", "loss_batch_size", "window",
    "version", "steps_seed", "where", "num_clusters", "averaging", "cluster_seed",
    "attack", "attack_seed", "mean",
    # Of private: what only the accounting reads, and numbers that tests/test_private.py varies.
    "bands", "horizon", "noise_seed", "delta", "epsilon", "quantile", "noise_multiplier",
    "clip_learning_rate",
}
# Values that are refused, and quoted.
REFUSED = {
    "clip": (0.0, -1),
    "num_local_steps": (-1,), "num_local_epochs": (-1, 1.5, abs), "batch_size": (0, 2.5),
    "patience": (0, 1.5), "cooldown": (-1,), "momentum": (-0.1, 1.0), "dampening": (-0.1, 1.0),
    "momentum_weight": (1.5,),
    "second_moment_decay": (-1, 1.0), "sensitivity_decay": (1.0,), "held_out_fraction": (0.0, 1),
    "client_decay": (0.0,), "server_decay": (0.0,), "steps_decay": (0.0,), "adaptivity": (0.0,),
    "gradient_weights": ((), (1.0, float("inf")), "al"), "final_scale": (0.0,),
    "bound_rate": (0.0,), "weighting": ("num_exampels",), "order": ("random",),
    "control_option": ("III",), "sensitivity": ("mean",), "output": ("logit",),
    "rule": ("papers",), "window": (0,), "sensitivity_batch_size": (0,), "loss_batch_size": (0,),
    "bias_correction": ("adam",), "epsilon": (0.0,), "convexity": (0.0,),
    "communication_probability": (0.0, 1.5), "version": ("III",), "steps_seed": (-1,), "tilt": (),
    "mixture": (1.5,), "num_head_steps": (-1,), "num_clusters": (0, 1.5), "averaging": ("modes",),
    "cluster_seed": (-1,), "difference": (0.0,), "num_personal_steps": (-1,),
}  # fmt: skip
BATCH_SIZE, ROUNDS = 2, 4


class Case(NamedTuple):
    """How a factory is built here.

    Attributes:
      build: (model, **options) -> algorithm.
      own: the hyperparameters beside those of local training.
      values: hyperparameter -> its two values, where TRACED has none that serve.
      convergence: options with which 400 rounds find a minimiser, where the first values do not.
      idle: hyperparameters of local training without effect on the result, and why.
      refuses: hyperparameters of local training that cannot be given or traced, and why.
      fixed: what is given in their place, a Python value.
      draws: whether the rounds of a given cohort are random.
    """

    build: Callable[..., Any]
    own: tuple[str, ...]
    values: Mapping[str, tuple[Any, Any]] = {}
    convergence: Mapping[str, Any] = {}
    idle: Mapping[str, str] = {}
    refuses: Mapping[str, str] = {}
    fixed: Mapping[str, Any] = {}
    draws: bool = True

    @property
    def options(self):
        """Hyperparameter -> its two values."""
        local = [n for n in ("num_local_steps", "num_local_epochs", "proximal_weight")
                 if n not in self.refuses]
        return {name: self.values.get(name, TRACED[name]) for name in (*self.own, *local)}

    def first(self, **options):
        """Every hyperparameter's first value, as a user gives it, but for `options`."""
        return {name: values[0] for name, values in self.options.items()} | options


RATES = ("client_learning_rate", "server_learning_rate")
MOMENTS = ("adaptivity", "momentum", "second_moment_decay", "initial_accumulator")


def split(options, *names):
    """The options of these names, and the others."""
    own = {name: options.pop(name) for name in names if name in options}
    return own, options


def fedopt(model, *, momentum, **options):
    own, rest = split(options, "client_optimizer", "server_optimizer")
    own = {"client_optimizer": optax.sgd(1.0),
           "server_optimizer": optimizers.heavy_ball(momentum)} | own
    return algorithms.fedopt(model, **own, **rest)


def with_base(factory, make, *names):
    """The factory with a base optimizer's hyperparameters beside its own."""

    def build(model, **options):
        own, rest = split(options, *names)
        return factory(model, base=make(**own), **rest)

    return build


def local_adaptive(model, *, momentum, **options):
    return algorithms.local_adaptive(model, optimizers.heavy_ball(momentum), **options)


def compressed(model, **options):
    return algorithms.compressed(algorithms.fedavg(model, **options), codecs.top_k(0.4))


def attacked(model, **options):
    return algorithms.attacked(algorithms.fedavg(model, **options), attacks.inner_product(0.5))


def robust(model, **options):
    return algorithms.robust(algorithms.fedavg(model, **options), robust_means.geometric_median())


def private(model, clip=50.0, epsilon=None, **options):
    inner = algorithms.fedavg(model, **options)
    return algorithms.private(inner, clip, noise_multiplier=0.0, epsilon=epsilon)


def elastic(model, **options):
    own, rest = split(
        options, "elasticity", "sensitivity_decay", "held_out_fraction", "sensitivity", "output",
        "sensitivity_batch_size",
    )
    own = {"sensitivity_batch_size": 1} | own
    return algorithms.elastic(algorithms.fedavg(model, **rest), model, **own)


def local_update_decay(model, **options):
    own, rest = split(
        options, *RATES, "client_decay", "server_decay", "window", "patience", "cooldown",
        "threshold", "rule", "loss_batch_size",
    )
    return algorithms.local_update_decay(
        lambda client_rate, server_rate: algorithms.local_update(
            model, client_rate, server_rate, **rest
        ),
        model, **{"window": 1} | own,
    )


def personal(model, **options):
    return algorithms.personal(algorithms.fedavg(model, **options), model, ())


NO_STEPS = dict.fromkeys(
    ("num_local_steps", "num_local_epochs", "proximal_weight"), "there are no local steps"
)
ONE_STEP = dict.fromkeys(
    ("num_local_steps", "num_local_epochs", "proximal_weight"),
    "there is one local step, at the server's model",
)
FOR_EVALUATION = {"num_personal_steps": "it is for evaluation: tests/test_personal_methods.py"}
SERVER_STEP = {"server_learning_rate": 0.05, "momentum": 0.5}

# Factory -> how it is built. A second entry of a factory has a further word after a comma.
CONTRACT = {
    "afl": Case(algorithms.afl, (*RATES, "mixture_learning_rate")),
    "adaalter": Case(
        algorithms.adaalter, ("client_learning_rate", "adaptivity", "initial_accumulator")
    ),
    "apfl": Case(algorithms.apfl, (*RATES, "mixture")),
    "apfl, adaptive": Case(algorithms.apfl, (*RATES, "mixture", "mixture_learning_rate")),
    "centralised": Case(
        algorithms.centralised, ("client_learning_rate",),
        values={"num_local_epochs": (9, 0)},  # one pass over the pool is more than 3 steps
    ),
    "cmime": Case(
        with_base(algorithms.cmime, base_optimizers.sgdm, "momentum"), (*RATES, "momentum")
    ),
    "attacked": Case(attacked, RATES),
    "compressed": Case(compressed, RATES),
    "ditto": Case(algorithms.ditto, (*RATES, "attraction")),
    "elastic": Case(elastic, (*RATES, "elasticity", "sensitivity_decay", "held_out_fraction")),
    "fedac": Case(algorithms.fedac, ("client_learning_rate", "convexity")),
    "fedac, version II": Case(
        functools.partial(algorithms.fedac, version="II"), ("client_learning_rate", "convexity")
    ),
    "fedadmm": Case(algorithms.fedadmm, RATES),
    "feddyn": Case(algorithms.feddyn, ("client_learning_rate",)),
    "fedexp": Case(algorithms.fedexp, ("client_learning_rate", "epsilon")),
    "fedlin": Case(algorithms.fedlin, RATES),
    "fednova": Case(algorithms.fednova, RATES),
    "fedadabound": Case(
        algorithms.fedadabound, (*RATES, *MOMENTS, "final_scale", "bound_rate"),
        values={"adaptivity": (0.5, 0.3)},
    ),
    "fedadagrad": Case(
        algorithms.fedadagrad, (*RATES, "adaptivity", "momentum", "initial_accumulator")
    ),
    "fedadam": Case(algorithms.fedadam, (*RATES, *MOMENTS), convergence=SERVER_STEP),
    "fedamsgrad": Case(algorithms.fedamsgrad, (*RATES, *MOMENTS), convergence=SERVER_STEP),
    "fedavg": Case(algorithms.fedavg, RATES),
    "fedavgm": Case(algorithms.fedavgm, (*RATES, "momentum", "dampening")),
    "fedopt": Case(fedopt, (*RATES, "momentum")),
    "fedprox": Case(algorithms.fedprox, RATES),
    "fedprox, rho": Case(
        algorithms.fedprox, (*RATES, "rho"), refuses={"proximal_weight": "rho says it"}
    ),
    "fedrep": Case(
        functools.partial(algorithms.fedrep, where=()), ("client_learning_rate", "num_head_steps"),
        idle={"num_head_steps": "the only array is shared: tests/test_personal.py"},
    ),
    "fedsgd": Case(
        algorithms.fedsgd, (*RATES, "steps_decay", "client_decay", "server_decay"),
        convergence={"steps_decay": 1.0, "client_decay": 1.0, "server_decay": 1.0},
    ),
    "fedyogi": Case(algorithms.fedyogi, (*RATES, *MOMENTS), convergence=SERVER_STEP),
    "fomaml": Case(algorithms.fomaml, RATES),
    "ifca": Case(algorithms.ifca, (*RATES, "initial_spread")),
    "ifca, gradients": Case(
        functools.partial(algorithms.ifca, averaging="gradients"), (*RATES, "initial_spread")
    ),
    "local_adam": Case(
        algorithms.local_adam, (*RATES, *MOMENTS), convergence={"client_learning_rate": 0.02}
    ),
    "local_adaptive": Case(local_adaptive, (*RATES, "momentum")),
    "local_sgd": Case(algorithms.local_sgd, ("client_learning_rate",)),
    "local_update": Case(algorithms.local_update, RATES),
    "local_update, Theta": Case(algorithms.local_update, (*RATES, "gradient_weights")),
    "local_update_decay": Case(
        local_update_decay,
        (*RATES, "client_decay", "server_decay", "patience", "cooldown", "threshold"),
        convergence={"patience": 1000},
    ),
    "lookahead": Case(algorithms.lookahead, ("client_learning_rate", "slow_weights_step")),
    "maml": Case(
        algorithms.maml, RATES,
        refuses={
            "num_local_steps": "reverse-mode differentiation needs a static length",
            "num_local_epochs": "so it counts steps",
        },
        fixed={"num_local_steps": 2},
    ),
    "mime": Case(
        with_base(algorithms.mime, base_optimizers.adam, *MOMENTS), (*RATES, *MOMENTS),
        convergence={"client_learning_rate": 0.02},
    ),
    "mimelite": Case(
        with_base(
            algorithms.mimelite, base_optimizers.rmsprop,
            "second_moment_decay", "adaptivity", "initial_accumulator",
        ),
        (*RATES, "second_moment_decay", "adaptivity", "initial_accumulator"),
        convergence={"client_learning_rate": 0.02},
    ),
    "mimemvr": Case(algorithms.mimemvr, (*RATES, "momentum_weight")),
    "minibatch_sgd": Case(algorithms.minibatch_sgd, ("server_learning_rate",), idle=ONE_STEP),
    "perfedavg": Case(
        algorithms.perfedavg,
        (*RATES, "inner_learning_rate", "difference", "num_personal_steps"),
        idle=FOR_EVALUATION | {"difference": "it is for version HF"},
    ),
    "perfedavg, HF": Case(
        functools.partial(algorithms.perfedavg, version="HF"),  # exact with any difference here
        (*RATES, "inner_learning_rate", "num_personal_steps"), idle=FOR_EVALUATION,
    ),
    "personal": Case(personal, RATES),
    "pfedme": Case(
        algorithms.pfedme,
        (*RATES, "attraction", "personal_learning_rate", "num_personal_steps"),
        values={"attraction": (2.0, 1.0)},
    ),
    "private": Case(private, (*RATES, "clip")),
    "robust": Case(robust, RATES),
    "qfedavg": Case(algorithms.qfedavg, (*RATES, "q")),
    "scaffnew": Case(
        algorithms.scaffnew, ("client_learning_rate", "communication_probability"),
    ),
    "scaffold": Case(algorithms.scaffold, RATES),
    "scaffold, option I": Case(
        functools.partial(algorithms.scaffold, control_option="I"), RATES
    ),
    "server_only": Case(
        with_base(algorithms.server_only, base_optimizers.adam, *MOMENTS),
        ("server_learning_rate", *MOMENTS),
        values={"server_learning_rate": (0.05, 0.1)}, idle=NO_STEPS, draws=False,
    ),
    "term": Case(algorithms.term, (*RATES, "tilt")),
}
# Factory -> why its contract is elsewhere.
ELSEWHERE = {
    "batch_statistics": "needs a model with statistics: tests/test_statistics.py",
    "pfnm": "trains networks whose units it matches, no quadratics: tests/test_pfnm.py",
}
# All tests of a case one after another, so that one process compiles its programs.
each_case = pytest.mark.parametrize("name", CONTRACT, scope="module")
# The same for tests that compile most: one method of each kind is fast, the others are slow.
KINDS = ("fedavg", "fedadam", "scaffold", "mime", "local_update_decay", "elastic", "private",
         "compressed", "robust", "ditto")
each_case_at_length = pytest.mark.parametrize(
    "name",
    [name if name in KINDS else pytest.param(name, marks=pytest.mark.slow) for name in CONTRACT],
    scope="module",
)

# Its outputs depend on the example, so that their sensitivity does.
MODEL = quadratic_model(3)._replace(
    outputs=lambda params, batch: batch["c"] * params["x"][None, :]
)
TASK = quadratic_task(sizes=(3, 5, 9, 4, 2, 6, 1))
EQUAL = TASK._replace(  # clients that share one quadratic
    train=fedax.FederatedDataset(
        {key: np.repeat(array[:1], 30, axis=0) for key, array in TASK.train.arrays.items()},
        TASK.train.offsets,
    )
)
# The cohorts of the rounds, in turn; the clients' states lie in the rows of one array.
COHORTS = np.array([[0, 1, 2, 3, 4], [0, 2, 4, 5, 6]])
OTHER_COHORTS = np.array([[1, 2, 3, 5, 6], [0, 1, 2, 3, 4]])
KEY = jax.random.key(1)


def build(name, **options):
    case = CONTRACT[name]
    return case.build(MODEL, **{"batch_size": BATCH_SIZE} | case.fixed | case.first() | options)


@functools.cache
def params(dtype=jnp.float64):
    return jax.tree.map(lambda leaf: leaf.astype(dtype), MODEL.init(jax.random.key(0)))


@functools.cache
def data(name, dtype=jnp.float64, equal=False):
    """All clients' data, as a cohort's, and the cohorts; the pool if the algorithm wants that."""
    pooled = build(name).pooled
    clients = (EQUAL if equal else TASK).train
    clients = clients.pooled() if pooled else clients
    everyone = CohortReader(clients)(np.arange(clients.num_clients))
    arrays = {key: jnp.asarray(array, dtype) for key, array in everyone.arrays.items()}
    return dataclasses.replace(everyone, arrays=arrays), np.array([[0]]) if pooled else COHORTS


def begin(algorithm, params, everyone):
    """The server's state before the first round, and the clients'."""
    client_states = jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf, (everyone.client_ids.shape[0], *leaf.shape)),
        algorithm.init_client(params),
    )
    return algorithm.init(params), client_states


def train_rounds(name, clients_per_chunk=1):
    """(options, params, everyone, cohorts, key, num_rounds) -> the server's, the clients' states.

    In round t the clients of row t of `cohorts` take part, from its first row again after the last.
    """

    def run(options, params, everyone, cohorts, key, num_rounds):
        algorithm = build(name, **options)

        def one_round(t, states):
            server_state, client_states = states
            ids = cohorts[t % cohorts.shape[0]]
            cohort = dataclasses.replace(everyone, **{
                field: getattr(everyone, field)[ids]
                for field in ("client_ids", "starts", "num_examples", "repeats", "dropped_at")
            })
            server_state, own, _ = run_round(
                algorithm, server_state, jax.tree.map(lambda leaf: leaf[ids], client_states),
                cohort, key, clients_per_chunk=clients_per_chunk,
            )
            return server_state, jax.tree.map(
                lambda leaf, new: leaf.at[ids].set(new), client_states, own
            )

        start = begin(algorithm, params, everyone)
        return jax.lax.fori_loop(0, num_rounds, one_round, start)

    return run


@functools.cache
def traced_rounds(name):
    """`train_rounds`, compiled once for all values of the hyperparameters, keys and cohorts."""
    return jax.jit(train_rounds(name))


def traced(options):
    """Arrays whose dtypes, float64 and int64, stand up for themselves in promotions."""
    return {name: jnp.asarray(np.asarray(value)) for name, value in options.items()}


def public_factories():
    return [
        name
        for name in algorithms.__all__
        if inspect.isfunction(getattr(algorithms, name))
        and inspect.signature(getattr(algorithms, name)).return_annotation == "FederatedAlgorithm"
    ]


def factory(name):
    return name.split(",")[0]


@pytest.mark.quick
def test_the_table_has_every_public_factory():
    known = {*map(factory, CONTRACT), *ELSEWHERE}
    assert set(public_factories()) | set(ELSEWHERE) == known
    assert {*ALGORITHMS, *WRAPPERS} <= known
    for name in algorithms.__all__:
        assert getattr(fedax, name) is getattr(algorithms, name)


@pytest.mark.quick
def test_every_numeric_option_is_traced():
    """By the test below: all that is not of STATIC is among a factory's options here."""
    local = set(inspect.get_annotations(LocalOptions)) - STATIC
    for name in map(factory, CONTRACT):
        parameters = inspect.signature(getattr(algorithms, name)).parameters.values()
        options = {p.name for p in parameters if p.kind is not p.VAR_KEYWORD} - STATIC
        if any(p.kind is p.VAR_KEYWORD for p in parameters):
            options |= local
        cases = [case for full, case in CONTRACT.items() if factory(full) == name]
        mapped = set().union(*(case.options for case in cases))
        assert options <= mapped | set().union(*(case.refuses for case in cases)), name
    for make in (base_optimizers.sgdm, base_optimizers.rmsprop, base_optimizers.adam):
        assert set(inspect.signature(make).parameters) <= set(TRACED)


@each_case_at_length
def test_a_traced_hyperparameter_gives_what_separate_runs_give(name):
    """All hyperparameters are traced at once, and `vmap` maps over a second value of each.

    Together two clients are a chunk, which leaves a place in the last, alone each client is: this
    changes rounding only. `test_jit_equals_no_jit` has the whole cohort in one, and options that
    are not traced.
    """
    case = CONTRACT[name]
    lanes = [case.first()] + [case.first(**{o: v[1]}) for o, v in case.options.items()]
    stacked = traced({option: [lane[option] for lane in lanes] for option in lanes[0]})
    arguments = (params(), *data(name), KEY, ROUNDS)
    run = train_rounds(name, clients_per_chunk=2)
    together = jax.jit(jax.vmap(run, in_axes=(0, *[None] * 5)))(stacked, *arguments)
    first = None
    for i, (option, lane) in enumerate(zip(["none", *case.options], lanes, strict=True)):
        alone = traced_rounds(name)(traced(lane), *arguments)
        mapped = jax.tree.map(lambda leaf, i=i: leaf[i], together)
        assert largest_difference(mapped, alone) < 1e-12, option
        if first is None:
            first = alone
        elif option in case.idle:
            assert largest_difference(alone, first) == 0, option
        else:
            pair = (alone[0].params, first[0].params)
            if build(name).own_model:  # some change only the clients' own models
                pair = (alone, first)
            assert largest_difference(*pair) > 1e-6, option


@each_case
def test_a_hyperparameter_that_cannot_be_traced_is_refused(name):
    case = CONTRACT[name]
    for option in case.refuses:
        with pytest.raises((TypeError, ValueError), match=option):
            jax.eval_shape(
                lambda value, option=option: build(name, **{option: value}).init(params()),
                jnp.asarray(TRACED[option][1]),
            )


@each_case_at_length
def test_jit_equals_no_jit(name):
    compiled = traced_rounds(name)(
        traced(CONTRACT[name].first()), params(), *data(name), KEY, 2
    )
    with jax.disable_jit():  # fewer operations if the cohort is one chunk
        interpreted = train_rounds(name, clients_per_chunk=5)({}, params(), *data(name), KEY, 2)
    assert largest_difference(compiled, interpreted) < 1e-12


@each_case
def test_seeds_and_cohorts_change_the_result_and_one_trace_serves_all(name):
    options = traced(CONTRACT[name].first())
    result, again, other = (
        traced_rounds(name)(options, params(), *data(name), key, ROUNDS)
        for key in (KEY, KEY, jax.random.key(2))
    )
    assert identical(again, result)
    difference = largest_difference(other[0].params, result[0].params)
    assert difference > 1e-6 if CONTRACT[name].draws else difference == 0
    if not build(name).pooled:
        everyone, _ = data(name)
        others = traced_rounds(name)(options, params(), everyone, OTHER_COHORTS, KEY, ROUNDS)
        assert largest_difference(others[0].params, result[0].params) > 1e-6
    assert traced_rounds(name)._cache_size() == 1


@each_case
@pytest.mark.parametrize("dtype", [jnp.float64, jnp.bfloat16])
def test_state_keeps_its_structure_shapes_and_dtypes(name, dtype):
    """In the parameters' dtype, whatever that of a traced hyperparameter is (here float64)."""
    arguments = (traced(CONTRACT[name].first()), params(dtype), *data(name, dtype), KEY)
    after = jax.eval_shape(train_rounds(name), *arguments, 1)
    before = jax.eval_shape(
        lambda options, *others: begin(build(name, **options), *others), *arguments[:3]
    )
    signature = functools.partial(jax.tree.map, lambda leaf: (leaf.shape, str(leaf.dtype)))
    assert signature(after) == signature(before)
    floats = {
        leaf.dtype for leaf in jax.tree.leaves(before) if jnp.issubdtype(leaf.dtype, jnp.floating)
    }
    # The plateau's losses, the memory of error feedback and clipping norms need more digits than
    # parameters of low precision have.
    own = ("local_update_decay", "compressed", "private")
    wide = {jnp.dtype(jnp.float32)} if name in own else set()
    assert floats == {jnp.dtype(dtype)} | (wide if dtype == jnp.bfloat16 else set())
    assert int(build(name).init(params()).round_index) == 0


@each_case_at_length
@pytest.mark.parametrize(
    ("dtype", "error"), [(jnp.float32, 1e-4), (jnp.bfloat16, 0.2)], ids=["float32", "bfloat16"]
)
def test_low_precision_runs(name, dtype, error):
    run = jax.jit(functools.partial(train_rounds(name), {}))
    server_state, _ = run(params(dtype), *data(name, dtype), KEY, ROUNDS)
    assert server_state.params["x"].dtype == dtype
    assert int(server_state.round_index) == ROUNDS
    exact, _ = traced_rounds(name)(
        traced(CONTRACT[name].first()), params(), *data(name), KEY, ROUNDS
    )
    x = np.asarray(server_state.params["x"], np.float64)
    assert np.max(np.abs(x - exact.params["x"])) < error


@each_case
def test_converges_on_equal_quadratics(name):
    """Clients that share one quadratic leave no drift, so every method must find its minimiser."""
    case = CONTRACT[name]
    options = traced(case.first(**case.convergence))
    A, c = (EQUAL.train.arrays[key][0] for key in ("A", "c"))
    start = params()["x"]
    end = traced_rounds(name)(options, params(), *data(name, equal=True), KEY, 400)[0].params["x"]
    gap = [float((x - c) @ A @ (x - c)) for x in (start, end)]
    assert gap[1] < 0.02 * gap[0]


@each_case
def test_bad_options_are_refused_with_the_value(name):
    case = CONTRACT[name]
    annotations = inspect.get_annotations(LocalOptions)
    choices = set(inspect.signature(getattr(algorithms, factory(name))).parameters) & set(REFUSED)
    for option in {*case.options, *choices, *annotations} - set(case.refuses):
        values = REFUSED.get(option, (-0.1,))
        if option not in STATIC:
            values = (*values, float("nan"), "0.1", [[0.1, 0.2]])
        for value in values:
            with pytest.raises(ValueError, match=f"{option}.*{re.escape(str(value))}"):
                build(name, **{option: value})
    with pytest.raises(TypeError, match="client_lr"):
        build(name, client_lr=0.1)


@pytest.mark.quick
def test_sentences_of_refused_values():
    with pytest.raises(ValueError, match=r"momentum must be .* below 1, but is 1\.5\.$"):
        fedax.fedavgm(MODEL, momentum=1.5)
    with pytest.raises(ValueError, match=r"adaptivity must be .* above 0, but is 0\.0\.$"):
        fedax.fedadam(MODEL, adaptivity=0.0)
    with pytest.raises(ValueError, match=r"second_moment_decay .* but is -1\.$"):
        fedax.fedyogi(MODEL, second_moment_decay=-1)
    with pytest.raises(ValueError, match="Did you mean 'num_examples'"):
        fedax.fedavg(MODEL, weighting="num_exampels")


@pytest.mark.parametrize("side", ["client", "server"])
@pytest.mark.parametrize("optimizer", ["adam", "adamw", "amsgrad", "adabelief", "lion", "rmsprop"])
def test_any_optax_optimizer_works_on_either_side(optimizer, side):
    task = quadratic_task()
    theirs = getattr(optax, optimizer)(0.03)
    pair = (theirs, optax.sgd(1.0)) if side == "client" else (optax.sgd(0.05), theirs)
    algorithm = fedax.fedopt(task.model, *pair, batch_size=4)
    with jax.numpy_dtype_promotion("standard"):  # optax's own arithmetic mixes dtypes
        losses = train(task, algorithm, num_rounds=40, cohort_size=10).history["train_loss"]
    assert losses[-1] < losses[0]


FILES = sorted(
    path
    for path in pathlib.Path(inspect.getfile(algorithms)).parent.glob("*.py")
    if path.stem not in ("__init__", "matching", "registry")  # the others are methods
)


@pytest.mark.quick
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_algorithm_loops_over_neither_clients_nor_local_steps(path):
    """That is done once, in `fedax.rounds.cohort` and `fedax.clients`."""
    loops = {"fori_loop", "scan", "while_loop", "associative_scan", "vmap", "pmap", "shard_map"}
    for node in ast.walk(ast.parse(path.read_text())):
        where = f"{path.name}, line {getattr(node, 'lineno', 0)}"
        called = ast.unparse(node) if isinstance(node, ast.Attribute | ast.Name) else ""
        assert called.split(".")[-1] not in loops, where
        assert not called.endswith("lax.map"), where
        assert not isinstance(node, ast.While), where
        if isinstance(node, ast.For | ast.comprehension):
            assert "range(" not in ast.unparse(node.iter), where


@pytest.mark.quick
def test_a_file_of_a_method_is_short():
    """The average is under 200 lines, docstrings and all."""
    assert np.mean([len(path.read_text().splitlines()) for path in FILES]) < 200
