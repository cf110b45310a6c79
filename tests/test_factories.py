"""A loop over settings compiles once, and numbers are all that it changes."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedax
from fedax import base_optimizers, optimizers, schedules
from fedax.factories import factory, partition, recipe
from fedax.rounds.evaluation import Evaluator
from problems import identical, largest_difference

rng = np.random.default_rng(0)
DATA = fedax.FederatedDataset.from_clients({
    str(i): {"x": x, "y": (x.sum(1) > i / 4).astype(np.int32)}
    for i, x in enumerate(rng.normal(size=(4, 6, 3)))
})


def init(key):
    del key
    return {"w": jnp.zeros((3, 2)), "b": jnp.zeros((1, 2))}


def apply(params, x):
    return x @ params["w"] + params["b"]


def model():
    return fedax.classification(init, apply)


def decaying(rate):
    return schedules.exponential_decay(rate, 1 - rate)


def over_a_base(rate):
    return fedax.mime(model(), rate, base_optimizers.adam(adaptivity=rate))


def over_an_optimizer(rate):
    server = optimizers.adam(adaptivity=rate, momentum=rate)
    return fedax.fedopt(model(), server_optimizer=server, client_learning_rate=rate)


def over_a_transformation(rate):
    server = base_optimizers.as_transformation(base_optimizers.rmsprop(adaptivity=rate))
    return fedax.fedopt(model(), server_optimizer=server)


def wrapped(rate):
    inner = fedax.fedprox(model(), decaying(rate), proximal_weight=decaying(rate))
    return fedax.elastic(inner, model(), elasticity=rate)


# Ways of making an algorithm from a number.
WAYS = {
    "fedavg": lambda rate: fedax.fedavg(model(), rate, 2 * rate),
    "fedyogi": lambda rate: fedax.fedyogi(model(), 1.0, rate, adaptivity=rate),
    "whole numbers": lambda rate: fedax.fedavg(model(), 1 if rate == 0.1 else rate),
    "schedules": lambda rate: fedax.fedavg(model(), decaying(rate), decaying(rate)),
    "base optimizer": over_a_base,
    "server optimizer": over_an_optimizer,
    "transformation": over_a_transformation,
    "wrapped": wrapped,
    "scaffold": lambda rate: fedax.scaffold(model(), rate),
    "arrays": lambda rate: fedax.local_update(
        model(), jnp.asarray(rate), gradient_weights=np.asarray([rate, 1.0])
    ),
}


def trained(algorithm, **options):
    task = fedax.Task(model(), DATA, DATA)
    options = {"num_rounds": 2, "cohort_size": 3, **options}
    return fedax.train(task, algorithm, **options)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_another_number_is_no_new_program(way, compiled):
    first = trained(WAYS[way](0.1))
    count = len(compiled)
    again = trained(WAYS[way](0.3))
    assert compiled[count:] == []
    assert largest_difference(first.params, again.params) > 1e-3


@pytest.mark.quick
def test_nor_are_another_seed_or_number_of_rounds(compiled):
    trained(fedax.fedavg(model(), 0.1))
    count = len(compiled)
    assert len(trained(fedax.fedavg(model(), 0.2), seed=5, num_rounds=7).history) == 7
    assert compiled[count:] == []


@pytest.mark.slow
def test_nor_are_the_diagnostics_of_another_run(compiled):
    trained(fedax.fedavg(model(), 0.1), diagnostics=True)
    count = len(compiled)
    trained(fedax.fedavg(model(), 0.2), diagnostics=True)
    assert compiled[count:] == []


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_numbers_as_arguments_are_numbers_in_closures(way):
    """The rounds' program against one whose factories were called with numbers."""
    algorithm = WAYS[way](0.3)
    task = fedax.Task(model(), DATA, DATA)
    state = fedax.initial_state(task, algorithm)
    cohort = fedax.CohortReader(DATA)(np.arange(4))
    states = state.client_store.read(np.arange(4))
    key = jax.random.key(0)
    direct = jax.jit(lambda server_state: fedax.run_round(
        algorithm, server_state, states, cohort, key
    )[0])(state.server_state)
    numbers, structure = partition(algorithm)
    traced = jax.jit(lambda numbers, server_state: fedax.run_round(
        structure(numbers), server_state, states, cohort, key
    )[0])(numbers, state.server_state)
    assert largest_difference(direct, traced) < 1e-12


def test_equal_numbers_stay_two():
    numbers, structure = partition(fedax.fedavg(model(), 0.1, 0.1))
    others, same = partition(fedax.fedavg(model(), 0.1, 0.2))
    assert same == structure
    assert hash(same) == hash(structure)
    assert np.allclose(np.array(numbers), [0.1, 0.1])
    assert np.allclose(np.array(others), [0.1, 0.2])


@pytest.mark.parametrize("other", [
    lambda: fedax.fedavg(model(), 0.1, num_local_steps=3),
    lambda: fedax.fedavg(model(), 0.1, batch_size=3),
    lambda: fedax.fedavg(model(), 0.1, order="iid"),
    lambda: fedax.fedavg(model(), decaying(0.1)),
    lambda: fedax.fedavg(fedax.classification(init, lambda p, x: 2 * apply(p, x)), 0.1),
    lambda: fedax.fedprox(model(), 0.1),
    lambda: fedax.fedavg(model(), 0.1, num_local_steps=jnp.asarray(3)),
])
def test_what_makes_a_new_program(other):
    assert partition(other())[1] != partition(fedax.fedavg(model(), 0.1))[1]


def test_steps_as_an_array_are_a_number(compiled):
    trained(fedax.fedavg(model(), 0.1, num_local_steps=jnp.asarray(3)))
    count = len(compiled)
    result = trained(fedax.fedavg(model(), 0.1, num_local_steps=jnp.asarray(4)))
    assert result.history["num_local_steps"].tolist() == [4, 4]
    assert compiled[count:] == []


def test_an_algorithm_that_was_changed_does_as_it_says_now():
    algorithm = fedax.fedavg(model(), 0.1)
    (exchange,) = algorithm.exchanges

    def nowhere(state, mean, participation):
        del mean, participation
        return state

    changed = algorithm._replace(exchanges=(exchange._replace(server=nowhere),))
    assert recipe(algorithm) is not None
    assert recipe(changed) is None
    assert largest_difference(trained(changed).params, init(None)) == 0
    assert partition(changed)[1] != partition(algorithm)[1]


def test_a_recipe_says_what_was_asked_for():
    made = recipe(fedax.elastic(fedax.fedavg(model(), 0.1, batch_size=5), model(), elasticity=0.3))
    assert made.factory.__name__ == "elastic"
    assert made.arguments["elasticity"] == 0.3
    inner = recipe(made.arguments["algorithm"])
    assert inner.factory.__name__ == "fedavg"
    assert inner.arguments["client_learning_rate"] == 0.1
    assert inner.arguments["batch_size"] == 5


@pytest.mark.slow
def test_a_user_s_factory(compiled):
    @factory
    def fedavg_twice(model, rate=0.1, name="plain"):
        assert name == "plain"
        return fedax.fedavg(model, 2 * rate)

    result = trained(fedavg_twice(model(), 0.2))
    count = len(compiled)
    assert identical(trained(fedavg_twice(model(), rate=0.2)).params, result.params)
    trained(fedavg_twice(model(), 0.3))
    assert compiled[count:] == []
    assert largest_difference(trained(fedax.fedavg(model(), 0.4)).params, result.params) < 1e-12


def test_static_numbers_are_structure():
    @factory(static=("limit",))
    def limited(limit: float, rate: float):
        return lambda t: rate * t if limit < 1 else rate

    numbers, structure = partition(limited(0.5, 0.1))
    assert [float(n) for n in numbers] == [0.1]
    assert partition(limited(2.0, 0.1))[1] != structure
    assert float(structure([3.0])(2)) == 6.0
    with pytest.raises(ValueError, match="Unknown argument 'limt' of limited"):
        factory(static=("limt",))(limited.__wrapped__)


def test_without_a_factory_an_algorithm_is_the_same_only_as_itself(compiled):
    def plain(rate):
        inner = fedax.fedavg.__wrapped__(model(), rate)
        return inner._replace(init=lambda params, *, inner=inner: inner.init(params))

    algorithm = plain(0.1)
    assert partition(algorithm)[1] == partition(algorithm)[1]
    assert partition(plain(0.1))[1] != partition(algorithm)[1]
    assert recipe(algorithm) is None


@pytest.mark.slow
def test_a_grid_in_one_program_is_a_loop():
    """`vmap` over settings: one round as a function of numbers, state and cohort."""
    task = fedax.Task(model(), DATA, DATA)
    rates = jnp.asarray([0.1, 0.5, 1.0])
    key = jax.random.key(0)
    cohort = fedax.CohortReader(DATA)(np.arange(4))

    def rounds(rate):
        algorithm = fedax.fedyogi(task.model, rate, 0.1, momentum=rate / 2)
        state = algorithm.init(task.model.init(key))
        return jax.lax.fori_loop(
            0, 3, lambda t, s: fedax.run_round(algorithm, s, (), cohort, key)[0], state
        ).params

    together = jax.jit(jax.vmap(rounds))(rates)
    for place, rate in enumerate(rates):
        alone = rounds(rate)
        lane = jax.tree.map(lambda leaf, place=place: leaf[place], together)
        assert largest_difference(alone, lane) < 1e-12


def test_optax_transformations_are_structure():
    """Their numbers are in closures of their own; one made once is one program."""
    server = optax.adam(0.1)
    first = partition(fedax.fedopt(model(), server_optimizer=server))
    assert partition(fedax.fedopt(model(), server_optimizer=server))[1] == first[1]
    assert partition(fedax.fedopt(model(), server_optimizer=optax.adam(0.1)))[1] != first[1]


def test_evaluators_of_one_model_share_a_program(compiled):
    params = init(None)
    before = Evaluator(model(), DATA).overall(params)
    count = len(compiled)
    assert Evaluator(model(), DATA).overall(params) == before
    assert compiled[count:] == []
    assert list(before) == ["accuracy", "loss"]


def test_the_page_on_speed_loops_over_settings(capsys):
    """Its loop over settings compiles once, and finds the fixed points."""
    page = Path(__file__).parent.parent / "docs" / "speed.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    session = {}
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"), \
            jax.numpy_rank_promotion("allow"):
        exec(compile(blocks[0], "speed.md", "exec"), session)
    numbers = [float(n) for n in re.findall(r"\d+\.\d*", capsys.readouterr().out)]
    loop = np.reshape(numbers, (3, 3))
    assert loop[1:, 2].tolist() == [0, 0]  # seconds of compiling
    # FedAvg's fixed point with K steps: (c_1 phi_1 + c_2 phi_2) / (phi_1 + phi_2).
    phi_1, phi_2 = (1 - (1 - np.array([0.1, 0.3, 0.5]) * a) ** 2 for a in (1.0, 2.0))
    assert np.allclose(loop[:, 1], (phi_1 + 0.5 * phi_2) / (phi_1 + phi_2), atol=1e-3)
