"""Any two pieces that make sense together work together, and do what the mathematics says."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedax import (
    FederatedAlgorithm,
    FederatedDataset,
    adaalter,
    base_optimizers,
    centralised,
    cmime,
    elastic,
    fedadam,
    fedavg,
    fedavgm,
    fedopt,
    fedprox,
    fedsgd,
    fedyogi,
    fomaml,
    local_adam,
    local_adaptive,
    local_sgd,
    local_update,
    local_update_decay,
    lookahead,
    maml,
    mime,
    mimelite,
    mimemvr,
    minibatch_sgd,
    optimizers,
    part_of_the_day,
    sampler,
    scaffold,
    schedules,
    server_only,
    train,
)
from fedax.experiment.build import build_algorithm
from problems import identical, largest_difference, quadratic_task

ROUNDS, COHORT = 12, 5
# Each compiles an expression of several methods.
pytestmark = pytest.mark.slow

TASK = quadratic_task(start=[3.0, -3.0, 3.0])._replace(test=None)
# Its outputs depend on the example, so that the sensitivity of elastic does.
MODEL = TASK.model._replace(outputs=lambda params, batch: batch["c"] * params["x"][None, :])
# Outputs that are equally sensitive to every coordinate.
EVEN = MODEL._replace(
    outputs=lambda params, batch: jnp.broadcast_to(params["x"].sum(), batch["c"].shape[:1])
)
LOCAL = {"batch_size": 2, "num_local_steps": 3}
PROX = LOCAL | {"proximal_weight": 0.1}
HELD_OUT = 0.4


class Run(NamedTuple):
    """An expression, and how it is trained."""

    algorithm: Callable[[], FederatedAlgorithm]
    options: Mapping[str, Any] = {}
    data: FederatedDataset = TASK.train

    def __call__(self, num_rounds=ROUNDS, **options):
        task = TASK._replace(model=MODEL, train=self.data)
        options = {"cohort_size": COHORT} | self.options | options
        return train(task, self.algorithm(), num_rounds=num_rounds, **options)


def rest_of_the_data():
    """Every client's examples but those that elastic holds out."""
    clients = []
    for i in range(TASK.train.num_clients):
        arrays = TASK.train.client(i)
        n = len(arrays["c"])
        h = min(max(round(HELD_OUT * n), 1), n - 1)
        held_out = [j * n // h for j in range(h)]  # none of a single example
        clients.append({key: np.delete(array, held_out, 0) for key, array in arrays.items()})
    return FederatedDataset.from_clients(clients)


REST = rest_of_the_data()


def neutral_elastic(algorithm):
    """With Omega equal everywhere and tau = 1, zeta = 1."""
    return elastic(algorithm, EVEN, 1.0, held_out_fraction=HELD_OUT)


def elastic_is_rest(algorithm, **options):
    """The neutral wrapper, and what it must equal: the algorithm on the rest of the data."""
    return Run(lambda: neutral_elastic(algorithm()), options), Run(algorithm, options, REST)


def decay(build, client_rate=0.1, server_rate=0.5, **options):
    """Plateau decay whose rates fall on a timetable: no loss falls by 1000."""
    timetable = {"window": 1, "patience": 1, "cooldown": 0, "threshold": 1e3, "client_decay": 0.8}
    return local_update_decay(build, MODEL, client_rate, server_rate, **timetable | options)


def falling(first, factor):
    """The rate on that timetable."""
    return lambda t: first * jnp.asarray(factor) ** jnp.maximum(t - 1, 0).astype(float)


def decay_is_schedule(build, client_rate=0.1, server_rate=0.5, **options):
    return (
        Run(lambda: decay(build, client_rate, server_rate), options),
        Run(lambda: build(falling(client_rate, 0.8), falling(server_rate, 0.9)), options),
    )


def decay_is_nothing(build, client_rate=0.1, server_rate=0.5, **options):
    """With endless patience."""
    return (
        Run(lambda: decay(build, client_rate, server_rate, patience=10**6), options),
        Run(lambda: build(client_rate, server_rate), options),
    )


def wrappers_commute(build, client_rate=0.1, server_rate=0.5, **options):
    """On a timetable, where it does not matter on which examples the loss is taken."""
    return (
        Run(
            lambda: decay(lambda c, s: elastic(build(c, s), MODEL, 0.4), client_rate, server_rate),
            options,
        ),
        Run(
            lambda: elastic(decay(build, client_rate, server_rate), MODEL, 0.4),
            options,
        ),
    )


def same(algorithm, one, other):
    """The same algorithm run in two ways."""
    return Run(algorithm, one), Run(algorithm, other)


def by_weight(seed, round_index):
    """The built-in way to sample, by a function."""
    draw = sampler("by_weight", TASK.train.client_sizes, COHORT, seed)
    return draw(round_index, 1).client_ids


# What is combined -> the expression, and another one that must give the same numbers.
COMBINATIONS = {
    "decay over elastic over FedProx with FedYogi": wrappers_commute(
        lambda c, s: fedyogi(MODEL, c, s, **PROX), server_rate=0.3
    ),
    "decay over elastic over SCAFFOLD, cyclic": wrappers_commute(
        lambda c, s: scaffold(MODEL, c, s, **PROX), sampling="cyclic"
    ),
    "decay over elastic over Mime with Adam, dropout": wrappers_commute(
        lambda c, s: mime(MODEL, c, base_optimizers.adam(adaptivity=1.0), s, **LOCAL), 0.5, 1.0,
        dropout=0.3,
    ),
    "decay over elastic over LocalUpdate": wrappers_commute(
        lambda c, s: local_update(MODEL, c, s, (1.0, 0.5, 0.25), **PROX), server_rate=0.1
    ),
    "decay over FedAvg": decay_is_nothing(lambda c, s: fedavg(MODEL, c, s, **LOCAL)),
    "decay over MAML with Yogi": decay_is_nothing(
        lambda c, s: maml(MODEL, c, s, optimizers.yogi(), batch_size=2), server_rate=0.3
    ),
    "decay over MimeLite with RMSProp": decay_is_schedule(
        lambda c, s: mimelite(MODEL, c, base_optimizers.rmsprop(adaptivity=1.0), s, **LOCAL), 0.3
    ),
    "decay over SCAFFOLD with Adagrad, part of the day": decay_is_schedule(
        lambda c, s: scaffold(MODEL, c, s, optimizers.adagrad(0.1), **LOCAL),
        available=part_of_the_day(0.5),
    ),
    "decay over MimeMVR": decay_is_schedule(lambda c, s: mimemvr(MODEL, c, 0.3, s, **LOCAL)),
    "decay over server only with Adam": decay_is_schedule(
        lambda c, s: server_only(MODEL, s, base_optimizers.adam(adaptivity=1.0))
    ),
    "decay over centralised with falling K": decay_is_schedule(
        lambda c, s: centralised(
            MODEL, c, batch_size=2, num_local_steps=schedules.exponential_decay(9, 0.9)
        )
    ),
    "decay over decay": (
        Run(lambda: decay(lambda c, s: decay(lambda *r: fedavg(MODEL, *r, **LOCAL), 0.1, s))),
        Run(lambda: decay(lambda c, s: fedavg(MODEL, falling(0.1, 0.8),
            lambda t: s * falling(1.0, 0.9)(t), **LOCAL))),
    ),
    "elastic over FedYogi with a proximal term": elastic_is_rest(
        lambda: fedyogi(MODEL, 0.1, 0.3, **PROX)
    ),
    "elastic over SCAFFOLD with a server optimizer": elastic_is_rest(
        lambda: scaffold(MODEL, 0.1, 0.3, optimizers.heavy_ball(0.5), "I", **LOCAL)
    ),
    "elastic over Mime with Adam": elastic_is_rest(
        lambda: mime(MODEL, 0.1, base_optimizers.adam(adaptivity=1.0), **LOCAL)
    ),
    "elastic over MimeMVR, everybody, uniform weights": elastic_is_rest(
        lambda: mimemvr(MODEL, 0.1, 0.5, weighting="uniform", **LOCAL), sampling="full"
    ),
    "elastic over LocalUpdate with AMSGrad": elastic_is_rest(
        lambda: local_update(MODEL, 0.1, 0.3, (1.0, 0.5), optimizers.amsgrad(), **PROX)
    ),
    "elastic over MAML with Yogi": elastic_is_rest(
        lambda: maml(MODEL, 0.1, 0.3, optimizers.yogi(), batch_size=2, num_local_steps=2)
    ),
    "elastic over AdaAlter with falling K": elastic_is_rest(
        lambda: adaalter(
            MODEL, 0.3, batch_size=2, num_local_steps=schedules.exponential_decay(4.0, 0.9)
        )
    ),
    "elastic over elastic": (
        Run(lambda: elastic(elastic(fedavg(MODEL, **LOCAL), EVEN, 1.0, held_out_fraction=0.4),
                            EVEN, 0.5, held_out_fraction=0.3)),
        Run(lambda: elastic(elastic(fedavg(MODEL, 0.1, 0.5, **LOCAL), EVEN, 1.0,
                                    held_out_fraction=0.4), EVEN, 1.0, held_out_fraction=0.3)),
    ),
    "FedYogi with a proximal term of 0": (
        Run(lambda: fedyogi(MODEL, 0.1, 0.3, **LOCAL, proximal_weight=0.0)),
        Run(lambda: fedyogi(MODEL, 0.1, 0.3, **LOCAL)),
    ),
    "every schedule constant, i.i.d. minibatches, by weight": (
        Run(
            lambda: fedyogi(
                MODEL, schedules.constant(0.1), schedules.staircase_decay(0.3, 1.0, 3),
                num_local_steps=schedules.exponential_decay(3, 1.0),
                proximal_weight=schedules.constant(0.1), order="iid", batch_size=2,
            ),
            {"sampling": "by_weight"},
        ),
        Run(
            lambda: fedyogi(MODEL, 0.1, 0.3, order="iid", **PROX),
            {"sampling": by_weight},
        ),
    ),
    "FedProx by rho and a staircase": (
        Run(lambda: fedprox(
            MODEL, schedules.staircase_decay(0.1, 0.5, 4), rho=0.02, **LOCAL
        )),
        Run(lambda: fedavg(
            MODEL, schedules.staircase_decay(0.1, 0.5, 4),
            proximal_weight=schedules.staircase_decay(0.2, 2.0, 4), **LOCAL,
        )),
    ),
    "SCAFFOLD with staircase client rates and a server schedule": (
        Run(lambda: scaffold(
            MODEL, schedules.staircase_decay(0.1, 0.5, 4), schedules.inverse_time_decay(1.0, 4.0),
            optimizers.yogi(0.1), weighting="uniform", **LOCAL,
        )),
        Run(lambda: scaffold(
            MODEL, lambda t: jnp.asarray([0.1, 0.05, 0.025])[t // 4],
            lambda t: 4.0 / (4.0 + t.astype(float)), optimizers.yogi(0.1), weighting="uniform",
            **LOCAL,
        )),
    ),
    "Mime with falling K": (
        Run(lambda: mime(
            MODEL, 0.1, base_optimizers.sgdm(0.5), batch_size=2,
            num_local_steps=schedules.exponential_decay(4.0, 0.8),
        )),
        Run(lambda: mime(
            MODEL, 0.1, base_optimizers.sgdm(0.5), batch_size=2,
            num_local_steps=lambda t: jnp.asarray([4, 4, 3, 3, 2, 2, 2, 1])[jnp.minimum(t, 7)],
        )),
    ),
    "SCAFFOLD with falling K and epochs, full": (
        Run(
            lambda: scaffold(
                MODEL, 0.1, batch_size=2, num_local_epochs=1,
                num_local_steps=schedules.exponential_decay(6.0, 0.8),
            ),
            {"sampling": "full", "cohort_size": 3},
        ),
        Run(
            lambda: scaffold(
                MODEL, 0.1, batch_size=2, num_local_epochs=1,
                num_local_steps=lambda t: jnp.ceil(6 * jnp.asarray(0.8) ** t.astype(float)),
            ),
            {"cohort_size": 10},
        ),
    ),
    "elastic with falling K": wrappers_commute(
        lambda c, s: fedsgd(MODEL, c, s, steps_decay=0.9, **LOCAL)
    ),
    "FedSGD with its three decays and Adam": (
        Run(lambda: fedsgd(
            MODEL, 0.1, 0.5, 0.9, 0.95, 0.97, optimizers.adam(0.1), weighting="uniform", **LOCAL
        )),
        Run(lambda: fedadam(
            MODEL, schedules.exponential_decay(0.1, 0.95), schedules.exponential_decay(0.5, 0.97),
            0.1, num_local_steps=schedules.exponential_decay(3, 0.9), batch_size=2,
            weighting="uniform",
        )),
    ),
    "a base as the server's optimizer": (
        Run(lambda: fedopt(
            MODEL, optax.sgd(0.1), base_optimizers.as_transformation(base_optimizers.sgdm(0.5)),
            **PROX,
        )),
        Run(lambda: fedavgm(MODEL, 0.1, 0.5, 0.5, **PROX)),
    ),
    "a clipped pseudo-gradient before Yogi, elastic": (
        Run(lambda: elastic(fedopt(
            MODEL, optax.sgd(0.1), optax.chain(optax.clip_by_global_norm(1e9), optimizers.yogi()),
            server_learning_rate=0.3, **PROX,
        ), MODEL)),
        Run(lambda: elastic(fedyogi(MODEL, 0.1, 0.3, **PROX), MODEL)),
    ),
    "MimeLite weighted by tokens, in the stored order": (
        Run(lambda: mimelite(
            MODEL, 0.1, base_optimizers.adam(adaptivity=1.0), batch_size=2, order="sequential",
            weighting="num_tokens",
        )),
        Run(lambda: mimelite(
            MODEL, 0.1, base_optimizers.adam(adaptivity=1.0), batch_size=2, order="sequential",
        )),
    ),
    "MimeMVR with schedules and a proximal term": (
        Run(lambda: mimemvr(
            MODEL, 0.1, schedules.inverse_time_decay(0.5, 2.0), schedules.constant(0.9), **PROX
        )),
        Run(lambda: mimemvr(MODEL, 0.1, lambda t: 1 / (2 + t.astype(float)), 0.9, **PROX)),
    ),
    "C-Mime without statistics": (
        Run(lambda: cmime(MODEL, 0.1, base_optimizers.sgd(), **PROX)),
        Run(lambda: mime(MODEL, 0.1, base_optimizers.sgd(), **PROX)),
    ),
    "LocalUpdate with Theta and Adam": (
        Run(lambda: local_update(MODEL, 0.1, 0.5, (1.0, 1.0, 1.0), optimizers.adam(), **PROX)),
        Run(lambda: local_update(MODEL, 0.1, 0.5, "all", optimizers.adam(), **PROX)),
    ),
    "LocalUpdate with a schedule is FedAvg": (
        Run(lambda: local_update(
            MODEL, 0.1, lambda t: 0.1 * schedules.inverse_time_decay(1.0, 9.0)(t), **PROX
        )),
        Run(lambda: fedavg(MODEL, 0.1, schedules.inverse_time_decay(1.0, 9.0), **PROX)),
    ),
    "FOMAML of one step, in the stored order": (
        Run(lambda: fomaml(MODEL, 0.1, 0.2, batch_size=4, num_local_steps=1, order="sequential")),
        Run(lambda: minibatch_sgd(MODEL, 0.2, batch_size=4, order="sequential")),
    ),
    "Lookahead with a proximal term and a staircase": (
        Run(lambda: lookahead(MODEL, schedules.staircase_decay(0.1, 0.5, 4), 0.5, **PROX)),
        Run(lambda: fedavg(MODEL, schedules.staircase_decay(0.1, 0.5, 4), 0.5, **PROX)),
    ),
    "Local SGD with dropout": (
        Run(lambda: local_sgd(MODEL, 0.1, **PROX), {"dropout": 0.3}),
        Run(lambda: fedavg(MODEL, 0.1, weighting="uniform", **PROX), {"dropout": 0.3}),
    ),
    "MAML with a proximal term of 0 and Yogi": (
        Run(lambda: maml(MODEL, 0.1, 0.3, optimizers.yogi(), batch_size=2, proximal_weight=0.0)),
        Run(lambda: maml(MODEL, 0.1, 0.3, optimizers.yogi(), batch_size=2)),
    ),
    "Local Adam with a proximal term and a staircase": (
        Run(lambda: local_adam(
            MODEL, schedules.staircase_decay(0.1, 0.5, 4), adaptivity=1.0, **PROX
        )),
        Run(lambda: local_adaptive(
            MODEL,
            base_optimizers.as_transformation(base_optimizers.adam(adaptivity=1.0)),
            schedules.staircase_decay(0.1, 0.5, 4), **PROX,
        )),
    ),
    "server only with a schedule": (
        Run(lambda: server_only(
            MODEL, schedules.staircase_decay(0.2, 0.5, 6), base_optimizers.sgd()
        )),
        Run(lambda: fedavg(
            MODEL, schedules.staircase_decay(0.2, 0.5, 6), batch_size=12, num_local_steps=1
        )),
    ),
    "centralised with momentum and a schedule": same(
        lambda: centralised(
            MODEL, schedules.staircase_decay(0.1, 0.5, 6), optimizers.heavy_ball(0.5), **PROX
        ),
        {"cohort_size": 1}, {"cohort_size": 7, "dropout": 0.5, "sampling": "cyclic"},
    ),
    "no dropout, everyone can be reached": same(
        lambda: elastic(scaffold(MODEL, 0.1, **PROX), MODEL),
        {"sampling": "cyclic", "dropout": 0.0, "available": part_of_the_day(1.0)},
        {"sampling": "cyclic"},
    ),
    "chunks, with replacement": same(
        lambda: decay(lambda c, s: elastic(scaffold(MODEL, c, s, **PROX), MODEL)),
        {"sampling": "with_replacement", "clients_per_chunk": 3}, {"sampling": "with_replacement"},
    ),
    "diagnostics": same(
        lambda: decay(lambda c, s: elastic(fedyogi(MODEL, c, s, **PROX), MODEL), server_rate=0.3),
        {"diagnostics": True}, {},
    ),
}  # fmt: skip
TO_THE_BIT = {
    "centralised with momentum and a schedule", "no dropout, everyone can be reached",
    "diagnostics",
}  # fmt: skip


def excess(x, data):
    """How far the mean loss over all examples is above its minimum."""
    A, c = data.arrays["A"], data.arrays["c"]
    best = np.linalg.solve(A.sum(0), np.einsum("bij,bj->i", A, c))
    return float((x - best) @ A.mean(0) @ (x - best)) / 2


@pytest.mark.parametrize("name", COMBINATIONS)
def test_a_combination_trains_and_is_what_it_should_be(name):
    combined, other = COMBINATIONS[name]
    result = combined()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.state.server_state))
    start = excess(np.array([3.0, -3.0, 3.0]), combined.data)
    assert excess(np.asarray(result.params["x"]), combined.data) < 0.5 * start
    expected = other().params
    assert largest_difference(result.params, expected) < 1e-12
    assert name not in TO_THE_BIT or identical(result.params, expected)


def test_there_are_many_combinations():
    assert len(COMBINATIONS) >= 40
    assert set(COMBINATIONS) > TO_THE_BIT


def test_combinations_that_make_no_sense_are_refused_with_a_sentence():
    one_by_one = fedavg(MODEL)
    one_by_one = one_by_one._replace(
        exchanges=(one_by_one.exchanges[0]._replace(individual=True),)
    )
    with pytest.raises(ValueError, match=r"local_update_decay needs the mean .* one by one"):
        decay(lambda c, s: one_by_one)


@pytest.mark.parametrize(
    "build",
    [
        lambda c, s, **local: elastic(fedyogi(MODEL, c, s, **local), MODEL),
        lambda c, s, **local: scaffold(MODEL, c, s, optimizers.heavy_ball(0.5), **local),
        lambda c, s, **local: mime(MODEL, c, base_optimizers.sgdm(0.5), s, **local),
        lambda c, s, **local: local_update(MODEL, c, s, (1.0, 0.5, 0.25), **local),
    ],
    ids=["elastic over FedYogi", "SCAFFOLD", "Mime", "LocalUpdate"],
)
def test_schedules_are_changes_of_the_values_between_rounds(build):
    """Client rate, server rate, K and the proximal weight, all in round 5."""
    phases = [(0.1, 0.3, 3, 0.1), (0.05, 0.2, 2, 0.5)]

    def algorithm(c, s, steps, mu):
        return build(c, s, num_local_steps=steps, proximal_weight=mu, batch_size=2)

    def switched(*values):
        return lambda t: jnp.asarray(values)[(t >= 5).astype(int)]

    whole = Run(lambda: algorithm(*(switched(*v) for v in zip(*phases, strict=True))))()
    half = Run(lambda: algorithm(*phases[0]))(num_rounds=5)
    rest = Run(lambda: algorithm(*phases[1]))(state=half.state)
    assert largest_difference(whole.params, rest.params) < 1e-12


def deepest():
    """All that can be stacked, with client states."""
    return decay(
        lambda c, s: elastic(
            scaffold(
                MODEL, c, s, optimizers.yogi(0.1), "I", batch_size=2,
                num_local_steps=schedules.exponential_decay(4.0, 0.9),
                proximal_weight=schedules.inverse_time_decay(0.1, 5.0),
            ),
            MODEL, sensitivity="average",
        ),
        window=2, patience=2,
    )


@pytest.mark.parametrize("first", [1, 5])
def test_the_deepest_expression_resumes_to_the_bit(first):
    run = Run(deepest, {"dropout": 0.2, "sampling": "by_weight", "clients_per_chunk": 2})
    whole = run()
    part = run(num_rounds=first)
    resumed = run(state=part.state)
    assert identical(resumed.state.server_state, whole.state.server_state)
    everyone = np.arange(TASK.train.num_clients)
    assert identical(
        resumed.state.client_store.read(everyone), whole.state.client_store.read(everyone)
    )
    again = run(state=part.state)  # the state that was given is as it was
    assert identical(again.state.server_state, whole.state.server_state)
    losses = [*part.history["train_loss"], *resumed.history["train_loss"]]
    assert losses == list(whole.history["train_loss"])


# The command line's name and options -> the expression.
NAMED = {
    "local_update_decay+elastic+fedprox": (
        {"client_learning_rate": 0.1, "server_learning_rate": 0.5, "proximal_weight": 0.2,
         "elasticity": 0.3, "window": 2, "patience": 1, "cooldown": 1, "threshold": 0.5,
         "server_optimizer": "heavy_ball(0.5)", **LOCAL},
        lambda: local_update_decay(
            lambda c, s: elastic(
                fedprox(MODEL, c, s, optimizers.heavy_ball(0.5), proximal_weight=0.2, **LOCAL),
                MODEL, 0.3,
            ),
            MODEL, 0.1, 0.5, window=2, patience=1, cooldown=1, threshold=0.5,
        ),
    ),
    "elastic+local_update_decay+mime": (
        {"client_learning_rate": 0.1, "server_learning_rate": 0.9, "base": "adam(0.5, 0.9, 1.0)",
         "held_out_fraction": 0.3, "window": 1, "patience": 1, "cooldown": 0, "threshold": 0.5,
         "num_local_steps": "exponential_decay(4, 0.9)"},
        lambda: elastic(
            local_update_decay(
                lambda c, s: mime(
                    MODEL, c, base_optimizers.adam(0.5, 0.9, 1.0), s,
                    num_local_steps=schedules.exponential_decay(4, 0.9),
                ),
                MODEL, 0.1, 0.9, window=1, patience=1, cooldown=0, threshold=0.5,
            ),
            MODEL, held_out_fraction=0.3,
        ),
    ),
    "elastic+scaffold": (
        {"client_learning_rate": "staircase_decay(0.1, 0.5, 4)", "server_optimizer": "yogi(0.1)",
         "server_learning_rate": 0.3, "output": "softmax", **PROX},
        lambda: elastic(
            scaffold(MODEL, schedules.staircase_decay(0.1, 0.5, 4), 0.3, optimizers.yogi(0.1),
                     **PROX),
            MODEL, output="softmax",
        ),
    ),
    "local_update_decay": (
        {"gradient_weights": "(1, 0.5)", "window": 1, "patience": 2, "cooldown": 0},
        lambda: local_update_decay(
            lambda c, s: local_update(MODEL, c, s, (1.0, 0.5)), MODEL,
            window=1, patience=2, cooldown=0,
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
def test_a_name_on_the_command_line_is_its_expression(name):
    options, expression = NAMED[name]
    named = Run(lambda: build_algorithm(name, options, MODEL))()
    written = Run(expression)()
    assert identical(named.state.server_state, written.state.server_state)
