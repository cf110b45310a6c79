"""Matched averaging: scores by hand, best assignments by brute force, networks recovered."""

import itertools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedax import FederatedDataset, Task, classification, train
from fedax.algorithm import Individual, Participation, WrapperState
from fedax.algorithms.elastic import elastic
from fedax.algorithms.elastic_upload import ElasticUpload
from fedax.algorithms.matching import (
    Atoms,
    Matching,
    match_networks,
    match_scores,
    match_units,
    nearest_units,
)
from fedax.algorithms.pfnm import PFNMClient, PFNMUpload, pfnm
from fedax.data import ClientData
from fedax.models.mlp import character_mlp, mlp, select_units, widen
from fedax.rounds.evaluation import evaluate
from problems import largest_difference

FLAT = 1e14  # a prior variance so large that nothing shrinks
WHO = Participation(*(jnp.asarray(3, jnp.int32),) * 3)


def draw_network(sizes, seed=0, scale=1.0):
    random = np.random.default_rng(seed)
    return tuple(
        {"w": scale * random.normal(size=shape), "b": scale * random.normal(size=shape[1])}
        for shape in itertools.pairwise(sizes)
    )


def outputs(network, x):
    return np.asarray(mlp((1, 1))[1](jax.tree.map(jnp.asarray, tuple(network)), jnp.asarray(x)))


def draw_inputs(size, num=40):
    return np.random.default_rng(99).normal(size=(num, size))


def permuted(network, seed):
    random = np.random.default_rng(seed)
    return select_units(network, [random.permutation(len(layer["b"])) for layer in network[:-1]])


def plain_average(networks):
    return jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *networks)


def average(networks, capacity, matching=None, shares=None):
    matching = matching or Matching(prior_variance=FLAT)
    if shares is None:
        shares = np.full((len(networks), len(networks[0][-1]["b"])), 1 / len(networks))
    return match_networks(networks, shares, capacity, matching, np.random.default_rng(0))


def draw_atoms(places, size, num_clients, seed=3):
    random = np.random.default_rng(seed)
    counts = random.integers(1, num_clients, places)
    return Atoms(random.normal(size=(places, size)) * counts[:, None],
                 0.5 + random.uniform(size=(places, size)) + counts[:, None], counts)


# The scores and the assignment


@pytest.mark.quick
@pytest.mark.parametrize("popularity", ["derived", "released"])
def test_scores_by_hand(popularity):
    num_clients, mass, prior = 14, 3.0, 0.5
    atoms = draw_atoms(4, 5, num_clients)._replace(counts=np.array([1, 13, 6, 10]))
    units = np.random.default_rng(0).normal(size=(3, 5))
    precision = np.array([1.0, 2.0, 0.0, 0.3, 1.0])
    scores = match_scores(units, precision, atoms, 2, num_clients=num_clients,
                          prior_precision=prior, mass=mass, popularity=popularity)
    expected = np.zeros((3, 6))
    for row in range(3):
        for i in range(4):
            for d in range(5):
                s, q = atoms.sums[i, d], atoms.precisions[i, d]
                both = s + units[row, d] * precision[d]
                expected[row, i] += both**2 / (q + precision[d]) - s**2 / q
            m = atoms.counts[i]
            if popularity == "derived":
                expected[row, i] += 2 * np.log(m / (num_clients - m))
            else:
                expected[row, i] += np.log(min(m, 10) / (num_clients - min(m, 10)))
        for k in (1, 2):
            for d in range(5):
                expected[row, 3 + k] += (units[row, d] * precision[d]) ** 2 / (prior + precision[d])
            expected[row, 3 + k] += 2 * np.log(mass / num_clients) - 2 * np.log(k)
    np.testing.assert_allclose(scores, expected, rtol=1e-12, atol=1e-12)


def test_scores_are_what_an_assignment_adds_to_the_log_posterior():
    # At the best theta, twice the log density of all units is a constant plus sum S^2/Q.
    random = np.random.default_rng(5)
    units, variance, prior_variance = random.normal(size=(3, 4)), 0.7, 2.0

    def twice_log_density(members):
        theta = sum(members) / variance / (1 / prior_variance + len(members) / variance)
        misfit = sum(((v - theta) ** 2).sum() / variance for v in members)
        return -misfit - (theta**2).sum() / prior_variance

    precision = np.full(4, 1 / variance)
    atoms = Atoms((units[0] + units[1])[None] / variance,
                  np.full((1, 4), 1 / prior_variance + 2 / variance), np.array([2]))
    join, alone = match_scores(
        units[2:], precision, atoms, 1, num_clients=4, prior_precision=1 / prior_variance, mass=4.0
    )[0]
    gain = twice_log_density(list(units)) - twice_log_density([units[0], units[1]])
    own = twice_log_density([units[2]])
    np.testing.assert_allclose(join - alone, gain - own, rtol=1e-12)  # log(2/2) = log(4/4) = 0


@pytest.mark.internals
@pytest.mark.parametrize("scale", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("capacity", [4, 5, 8])
def test_the_second_client_is_assigned_as_brute_force_would(capacity, scale):
    random = np.random.default_rng(7)
    first = random.normal(size=(4, 3))
    second = first[[2, 0, 3, 1]] + scale * random.normal(size=(4, 3))
    matching = Matching(variance=0.2, prior_variance=5.0, mass=1.0, num_sweeps=0)
    places, atoms = match_units(
        np.stack([first, second]), np.full((2, 3), 5.0), capacity, matching, random
    )
    owned = Atoms(first * 5, np.full((4, 3), 5.2), np.ones(4, int))
    scores = match_scores(second, np.full(3, 5.0), owned, capacity - 4, num_clients=2,
                          prior_precision=0.2, mass=1.0)
    best = max(sum(scores[row, i] for row, i in enumerate(choice))
               for choice in itertools.permutations(range(capacity), 4))
    first_place = {int(place): i for i, place in enumerate(places[0])}
    new = [row for row, place in enumerate(places[1]) if int(place) not in first_place]
    reached = sum(scores[row, first_place[int(place)]]
                  for row, place in enumerate(places[1]) if int(place) in first_place)
    reached += sum(scores[row, 4 + k] for k, row in enumerate(new))
    np.testing.assert_allclose(reached, best, rtol=1e-12)
    assert (atoms.counts > 0).sum() == 4 + len(new) <= capacity
    assert (np.diff(atoms.counts) <= 0).all()
    if scale == 3.0 and capacity == 8:
        assert new  # far apart: some open a new unit


# Networks


@pytest.mark.parametrize("sizes", [(5, 6, 3), (5, 6, 7, 3)])
@pytest.mark.parametrize("noise", [0.0, 1e-3])
def test_permuted_copies_give_back_the_network(sizes, noise):
    network = draw_network(sizes)
    clients = [permuted(network, seed) for seed in range(4)]
    random = np.random.default_rng(1)
    clients = jax.tree.map(lambda leaf: leaf + noise * random.normal(size=leaf.shape), clients)
    x, hidden = draw_inputs(sizes[0]), list(sizes[1:-1])
    matched, num_units = average(clients, [2 * size for size in hidden])
    assert num_units == hidden
    error = np.abs(outputs(matched, x) - outputs(network, x)).max()
    assert error < (1e-10 if noise == 0 else 0.1)
    assert np.abs(outputs(plain_average(clients), x) - outputs(network, x)).max() > 1
    # A client finds its units again, so it goes on from its own function, in its own order.
    places = nearest_units(clients[2], matched, num_units, np.ones(sizes[-1]))
    again = select_units(matched, places)
    assert largest_difference(again, clients[2]) < (1e-10 if noise == 0 else 1)
    np.testing.assert_allclose(outputs(again, x), outputs(clients[2], x), atol=1e-10 + 100 * noise)


@pytest.mark.parametrize("prior_variance", [2.0, FLAT])
def test_units_far_apart_are_kept_side_by_side(prior_variance):
    # Singletons: theta = v s/(1/sigma_0^2 + s), with s = 1/sigma^2 below and p_jk/sigma^2 into
    # output k. ReLU is homogeneous, so the factor below comes out of it.
    first, second = draw_network((5, 3, 2), 1, scale=10.0), draw_network((5, 4, 2), 2, scale=10.0)
    second = select_units(second, [np.arange(3)])
    shares = np.array([[0.3, 0.9], [0.7, 0.1]])
    variance = 0.5
    matching = Matching(variance=variance, prior_variance=prior_variance)
    matched, num_units = average([first, second], [8], matching, shares)
    assert num_units == [6]
    ratio, x = variance / prior_variance, draw_inputs(5)
    expected = (shares[0] * first[-1]["b"] + shares[1] * second[-1]["b"]) / (1 + ratio)
    for network, share in zip([first, second], shares, strict=True):
        hidden = outputs(network, x) - network[-1]["b"]
        expected = expected + hidden / (1 + ratio) * share / (share + ratio)
    np.testing.assert_allclose(outputs(matched, x), expected, rtol=1e-10, atol=1e-10)
    for leaf in (matched[0]["w"][:, 6:], matched[0]["b"][6:], matched[1]["w"][6:]):
        np.testing.assert_array_equal(leaf, 0)


@pytest.mark.quick
def test_two_hidden_layers_far_apart_stand_side_by_side():
    first, second = (draw_network((4, 3, 3, 2), seed, scale=10.0) for seed in (1, 2))
    # sigma^2 is small and the prior flat, so that nothing is worth sharing; but what a client
    # does not have counts as 0, so weights between the two networks are 0.
    matched, num_units = average(
        [first, second], [8, 8], Matching(variance=1e-6, prior_variance=FLAT)
    )
    assert num_units == [6, 6]
    x = draw_inputs(4)
    bias = (first[-1]["b"] + second[-1]["b"]) / 2
    expected = bias + sum(outputs(net, x) - net[-1]["b"] for net in (first, second))
    np.testing.assert_allclose(outputs(matched, x), expected, rtol=1e-9)


def test_a_full_capacity_makes_units_share_as_well_as_they_can():
    first, second = draw_network((5, 3, 2), 1, scale=10.0), draw_network((5, 3, 2), 2, scale=10.0)
    matched, num_units = average([first, second], [3])
    assert num_units == [3]

    def squared_distance(order):
        other = select_units(second, [np.array(order)])
        gaps = [((first[0][name] - other[0][name]) ** 2).sum() for name in ("w", "b")]
        return sum(gaps) + 0.5 * ((first[1]["w"] - other[1]["w"]) ** 2).sum()

    best = min(itertools.permutations(range(3)), key=squared_distance)
    expected = plain_average([first, select_units(second, [np.array(best)])])
    x = draw_inputs(5)
    np.testing.assert_allclose(outputs(matched, x), outputs(expected, x), rtol=1e-10)
    assert average([first, second], [4])[1] == [4]


def test_one_client_gives_back_its_network_and_a_class_that_nobody_has_is_zero():
    network, x = draw_network((5, 6, 7, 3)), draw_inputs(5)
    matched, num_units = average([network], [9, 9])
    assert num_units == [6, 7]
    np.testing.assert_allclose(outputs(matched, x), outputs(network, x), atol=1e-10)
    matched, _ = average([network], [9, 9], shares=np.array([[1.0, 1.0, 0.0]]))
    expected = outputs(network, x) * np.array([1, 1, 0])
    np.testing.assert_allclose(outputs(matched, x), expected, atol=1e-10)


# The algorithm


def upload(networks, weights, class_counts=None):
    networks = [jax.tree.map(jnp.asarray, tuple(network)) for network in networks]
    counts = np.ones((len(networks), 3)) if class_counts is None else class_counts
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *networks)
    places = [jnp.tile(jnp.arange(6), (len(networks), 1))]
    return Individual(PFNMUpload(stacked, jnp.asarray(counts), places), jnp.asarray(weights))


MODEL = classification(*mlp((5, 6, 3)))


@pytest.mark.quick
def test_the_server_leaves_out_clients_without_weight():
    networks = [permuted(draw_network((5, 6, 3)), 1), draw_network((5, 6, 3), 8),
                permuted(draw_network((5, 6, 3)), 2)]
    networks[1] = jax.tree.map(np.zeros_like, networks[1])
    algorithm = pfnm(MODEL, prior_variance=FLAT)
    state = algorithm.init(jax.tree.map(jnp.asarray, networks[0]))
    state = jax.jit(algorithm.exchanges[0].server)(state, upload(networks, [2.0, 0.0, 5.0]), WHO)
    x = draw_inputs(5)
    np.testing.assert_allclose(outputs(state.params, x), outputs(networks[0], x), atol=1e-10)
    assert state.num_units.tolist() == [6]
    assert state.class_counts.tolist() == [2, 2, 2]
    none = algorithm.exchanges[0].server(state, upload(networks, [0.0, 0.0, 0.0]), WHO)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(none.params))


@pytest.mark.internals
def test_hyperparameters_may_be_traced_in_a_grid():
    networks = [draw_network((5, 6, 3), seed) for seed in range(3)]
    cohort = upload(networks, [1.0, 1.0, 1.0])

    def server(variance, mass):
        algorithm = pfnm(MODEL, variance=variance, prior_variance=2 * variance, mass=mass)
        state = algorithm.init(jax.tree.map(jnp.asarray, networks[0]))
        return algorithm.exchanges[0].server(state, cohort, WHO)

    grid = jnp.array([0.1, 1.0, 10.0]), jnp.array([1.0, 2.0, 0.5])
    together = jax.jit(jax.vmap(server))(*grid)
    for place, (variance, mass) in enumerate(zip(*grid, strict=True)):
        alone = server(float(variance), float(mass))
        chosen = jax.tree.map(lambda leaf, i=place: leaf[i], together)
        np.testing.assert_array_equal(chosen.num_units, alone.num_units)
        for a, b in zip(jax.tree.leaves(chosen), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-12)
    assert len(set(together.num_units[:, 0].tolist())) > 1


@pytest.mark.slow
@pytest.mark.internals
def test_clients_count_their_classes_and_start_from_their_own_units():
    labels = np.array([9, 9, 0, 2, 2, 2, 1, 9], np.int32)
    data = ClientData({"x": jnp.zeros((8, 5)), "y": jnp.asarray(labels)}, jnp.int32(2),
                      jnp.int32(5), 8)
    algorithm = pfnm(MODEL, 0.0, batch_size=2)
    network = jax.tree.map(jnp.asarray, draw_network((5, 6, 3)))
    state = algorithm.init(permuted(network, 3))._replace(round_index=jnp.int32(4))
    exchange = algorithm.exchanges[0]
    message = exchange.broadcast(state)
    kept = PFNMClient(jax.tree.map(lambda leaf: 1.01 * leaf, network), jnp.asarray(True))
    client = jax.jit(exchange.client)
    reply = client(message, kept, data, jax.random.key(0))
    assert reply.upload.class_counts.tolist() == [1, 1, 3]
    assert largest_difference(reply.upload.network, network) < 1e-12
    assert largest_difference(select_units(state.params, reply.upload.places), network) < 1e-12
    assert reply.client_state.took_part
    # One that is new takes the first units, and in round 0 everyone its own random ones.
    new = algorithm.init_client(network)
    reply = client(message, new, data, jax.random.key(0))
    assert largest_difference(reply.upload.network, permuted(network, 3)) < 1e-12
    fresh = exchange.broadcast(state._replace(round_index=jnp.int32(0)))
    first, second = (client(fresh, new, data, jax.random.key(i)).upload.network
                     for i in (0, 1))
    assert largest_difference(first, network) > 0.1 < largest_difference(first, second)
    blind = pfnm(MODEL, labels=None).exchanges[0]
    reply = jax.jit(blind.client)(message, new, data, jax.random.key(0))
    assert reply.upload.class_counts.tolist() == [1, 1, 1]
    said = r"labels = 'label', but the clients' arrays are \['x', 'y'\]"
    with pytest.raises(ValueError, match=said):
        pfnm(MODEL, labels="label").exchanges[0].client(message, new, data, jax.random.key(0))


@pytest.mark.parametrize(("total", "swapped"), [(0.0, True), (1.0, True), (1e6, False)])
def test_a_client_finds_its_units_by_the_classes_that_it_has_a_share_of(total, swapped):
    # In the client's network two units have exchanged their weights into class 0, of which it has
    # one example. They count for its share of that class, 1 or 1e-6; others' weights are about 1.
    network = jax.tree.map(jnp.asarray, draw_network((5, 6, 3)))
    network[1]["w"] = network[1]["w"].at[:2, 0].set(jnp.array([50.0, -50.0]))
    mine = jax.tree.map(jnp.copy, network)
    mine[1]["w"] = mine[1]["w"].at[:2, 0].multiply(-1.0)
    data = ClientData({"x": jnp.zeros((3, 5)), "y": jnp.arange(3)}, jnp.int32(0), jnp.int32(3), 3)
    algorithm = pfnm(MODEL, 0.0)
    state = algorithm.init(network)._replace(
        round_index=jnp.int32(1), class_counts=jnp.array([total, 1.0, 1.0])
    )
    exchange = algorithm.exchanges[0]
    kept = PFNMClient(mine, jnp.asarray(True))
    reply = jax.jit(exchange.client)(exchange.broadcast(state), kept, data, jax.random.key(0))
    order = np.array([1, 0, 2, 3, 4, 5] if swapped else range(6))
    assert largest_difference(reply.upload.network, select_units(network, [order])) < 1e-12


NUM_CLASSES, NUM_INPUTS = 8, 10


def draw_examples(num, seed):
    """Every class is two clusters."""
    centres = np.random.default_rng(0).normal(size=(NUM_CLASSES, 2, NUM_INPUTS)) * 1.3
    random = np.random.default_rng(seed)
    y, cluster = random.integers(0, NUM_CLASSES, num), random.integers(0, 2, num)
    x = centres[y, cluster] + 0.6 * random.normal(size=(num, NUM_INPUTS))
    return x.astype(np.float32), y


def disjoint_task():
    """Two clients, each with half of the classes."""
    x, y = draw_examples(1600, 1)
    clients = [{"x": x[half], "y": y[half]} for half in (y < NUM_CLASSES // 2,
                                                         y >= NUM_CLASSES // 2)]
    names = ("x", "y")
    test = FederatedDataset.from_clients([dict(zip(names, draw_examples(800, 2), strict=True))])
    model = classification(*mlp((NUM_INPUTS, 24, NUM_CLASSES)))
    return Task(model, FederatedDataset.from_clients(clients), test, "disjoint")


@pytest.mark.slow
def test_matching_beats_plain_averaging_and_rounds_improve_it():
    task = disjoint_task()
    algorithm = pfnm(task.model, 0.1, variance=0.1, num_local_epochs=10)
    result = train(task, algorithm, num_rounds=1, cohort_size=2, evaluate_every=1)
    networks = result.state.client_store.read(np.arange(2)).network
    plain = jax.tree.map(lambda leaf: leaf.mean(0, dtype=leaf.dtype), networks)
    plain_accuracy = evaluate(task.model, plain, task.test)["accuracy"]
    one_shot = result.history["test_accuracy"][0]
    assert one_shot > plain_accuracy + 0.1
    longer = train(task, algorithm, num_rounds=4, cohort_size=2, evaluate_every=1,
                   state=result.state)
    assert longer.history["test_accuracy"][-1] > one_shot + 0.04
    assert longer.history["test_accuracy"][-1] > 0.9
    # Units that are not in use are exactly zero, and more are in use than one client has.
    state = longer.state.server_state
    used = int(state.num_units[0])
    assert 24 < used <= 48
    first, second = state.params
    for leaf in (first["w"][:, used:], first["b"][used:], second["w"][used:]):
        np.testing.assert_array_equal(leaf, 0)
    assert float(jnp.abs(first["w"][:, :used]).max(0).min()) > 0


@pytest.mark.slow
@pytest.mark.internals
def test_a_round_without_training_changes_nothing():
    task = disjoint_task()
    rate = lambda t: jnp.where(t == 0, 0.1, 0.0)  # noqa: E731
    algorithm = pfnm(task.model, rate, variance=0.03, prior_variance=1e6, num_local_epochs=3)
    history = train(task, algorithm, num_rounds=3, cohort_size=2, evaluate_every=1).history
    np.testing.assert_allclose(history["test_loss"][1:], history["test_loss"][0], rtol=1e-4)


@pytest.mark.slow
@pytest.mark.internals
def test_a_client_with_nan_is_left_out_and_counted():
    x, y = draw_examples(90, 1)
    x[70] = np.nan
    data = FederatedDataset({"x": x, "y": y}, np.array([0, 30, 60, 90]))
    model = classification(*mlp((NUM_INPUTS, 4, NUM_CLASSES)))
    result = train(Task(model, data, None, "nan"), pfnm(model), num_rounds=2, cohort_size=3)
    np.testing.assert_array_equal(result.history["num_rejected"], 1)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.params))
    taken = result.state.client_store.read(np.arange(3)).took_part
    np.testing.assert_array_equal(taken, [True, True, False])


ON_ONE_CORE = """
import numpy as np
import fedax
from fedax.models.mlp import mlp
arrays = {"x": np.ones((4, 200), np.float32), "y": np.array([0, 1, 1, 2])}
model = fedax.classification(*mlp((200, 150, 3)))  # 120 kB between two layers
task = fedax.Task(model, fedax.FederatedDataset(arrays, np.array([0, 2, 4])))
fedax.train(task, fedax.pfnm(model), num_rounds=1, cohort_size=2, evaluate_every=0)
"""


@pytest.mark.slow
def test_networks_of_more_than_100_kb_on_one_core():
    """The one thread is busy with the program that waits for the matching."""
    subprocess.run(
        [sys.executable, "-c", ON_ONE_CORE], env=os.environ | {"NPROC": "1"}, check=True,
        timeout=300,
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"variance": 0.0}, "variance must be a finite number above 0"),
        ({"prior_variance": -1.0}, "prior_variance must be a finite number above 0"),
        ({"mass": "1"}, "mass must be a finite number above 0"),
        ({"num_sweeps": -1}, "num_sweeps must be a whole number of at least 0"),
        ({"popularity": "relesed"}, "Did you mean 'released'"),
        ({"capacity": 0}, "capacity must be a whole number of at least 1, but is 0"),
    ],
)
def test_bad_hyperparameters_are_quoted(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        pfnm(MODEL, **options).init(MODEL.init(jax.random.key(0)))


@pytest.mark.parametrize("params", [{"w": np.zeros((2, 2)), "b": np.zeros(2)},
                                    draw_network((5, 3)), draw_network((5, 3, 2))[::-1]])
def test_other_parameters_are_refused(params):
    with pytest.raises(ValueError, match="at least one hidden layer, a tuple of"):
        pfnm(MODEL).init(params)


# The models


@pytest.mark.slow
@pytest.mark.internals
def test_zero_units_get_no_gradient():
    network = jax.tree.map(jnp.asarray, draw_network((5, 6, 3)))
    wide = widen(network, [9])
    batch = {"x": jnp.asarray(draw_inputs(5, 4)), "y": jnp.array([0, 1, 2, 2])}

    def loss(params):
        return MODEL.loss(params, batch, jax.random.key(0))[0].mean()

    np.testing.assert_allclose(loss(wide), loss(network), rtol=1e-14)
    gradient = jax.grad(loss)(wide)
    for leaf in (gradient[0]["w"][:, 6:], gradient[0]["b"][6:], gradient[1]["w"][6:]):
        np.testing.assert_array_equal(leaf, 0)
    narrow = jax.grad(loss)(network)
    assert largest_difference(select_units(gradient, [np.arange(6)]), narrow) < 1e-12


def test_mlp_by_hand_and_its_errors():
    network, x = draw_network((6, 4, 5, 3)), draw_inputs(6, 2)
    hidden = np.maximum(x @ network[0]["w"] + network[0]["b"], 0)
    hidden = np.maximum(hidden @ network[1]["w"] + network[1]["b"], 0)
    expected = hidden @ network[2]["w"] + network[2]["b"]
    np.testing.assert_allclose(outputs(network, x.reshape(2, 3, 2)), expected, rtol=1e-12)
    with pytest.raises(ValueError, match=r"takes 6 numbers per example, but .* \[2, 5\]"):
        outputs(network, x[:, :5])
    for sizes in ((4,), (4, 0)):
        with pytest.raises(ValueError, match=r"MLP needs the sizes|A layer size must be"):
            mlp(sizes)


CHARACTERS = character_mlp(context=3, hidden_sizes=(7, 6), vocabulary_size=11)


def character_loss(params, tokens):
    losses, weights = CHARACTERS.loss(params, {"tokens": jnp.asarray(tokens)}, jax.random.key(0))
    return (losses * weights).sum() / weights.sum()


@pytest.mark.slow
def test_character_mlp_is_an_mlp_of_one_hot_windows():
    tokens = np.random.default_rng(1).integers(1, 11, size=(4, 9)).astype(np.uint8)
    tokens[0, 6:] = 0
    params = jax.tree.map(jnp.asarray, draw_network((33, 7, 6, 11)))
    logits = np.asarray(CHARACTERS.outputs(params, {"tokens": jnp.asarray(tokens)}))
    windows = np.zeros((4, 8, 33))
    for b, t, place in itertools.product(range(4), range(8), range(3)):
        when = t - 2 + place
        token = tokens[b, when] if when >= 0 else 0
        windows[b, t, 11 * place + token] = 1
    expected = outputs(params, windows.reshape(32, 33)).reshape(4, 8, 11)
    np.testing.assert_allclose(logits, expected, rtol=1e-10, atol=1e-12)
    log_softmax = expected - np.log(np.exp(expected).sum(-1, keepdims=True))
    terms = [-log_softmax[b, t, tokens[b, t + 1]]
             for b, t in itertools.product(range(4), range(8)) if tokens[b, t + 1]]
    np.testing.assert_allclose(character_loss(params, tokens), np.mean(terms), rtol=1e-10)
    padded = np.pad(tokens, [(0, 2), (0, 3)])
    np.testing.assert_allclose(character_loss(params, padded), np.mean(terms), rtol=1e-10)
    metrics = CHARACTERS.metrics["accuracy"](jnp.asarray(logits), {"tokens": jnp.asarray(tokens)})
    assert metrics[1].tolist() == [5, 8, 8, 8]


def test_character_mlp_refuses_empty_sizes():
    for sizes in ({"context": 0}, {"hidden_sizes": ()}, {"vocabulary_size": 1}):
        with pytest.raises(ValueError, match=r"context must|hidden_sizes|vocabulary_size must"):
            character_mlp(**sizes)


@pytest.mark.slow
def test_pfnm_takes_the_character_mlp():
    tokens = (np.arange(108).reshape(12, 9) * 3 % 10 + 1).astype(np.uint8)
    data = FederatedDataset({"tokens": tokens}, np.array([0, 5, 12]))
    algorithm = pfnm(CHARACTERS, 0.5, labels="tokens", batch_size=2, num_local_epochs=3,
                     prior_variance=10.0, weighting="num_tokens")
    history = train(Task(CHARACTERS, data, data, "text"), algorithm, num_rounds=4, cohort_size=2,
                    evaluate_every=1).history
    assert history["train_loss"][-1] < history["train_loss"][0] - 0.5


# Elastic aggregation over it


def elastic_round(round_index, tau=0.5):
    """A server's update by hand and by `elastic`, from three networks that began at its units."""
    server = jax.tree.map(jnp.asarray, widen(draw_network((5, 8, 3), 20), [12]))
    ends = [jax.tree.map(jnp.asarray, tuple(draw_network((5, 6, 3), seed))) for seed in range(3)]
    places = [np.array(order) for order in ([3, 0, 7, 2, 5, 1], [6, 4, 2, 0, 1, 3], range(6))]
    omegas = [jax.tree.map(lambda leaf, s=seed: jnp.abs(s + leaf) * (1 + s), server)
              for seed in range(3)]
    weights = np.array([1.0, 3.0, 0.0])
    mean = jax.tree.map(lambda a, b, c: 0.25 * a + 0.75 * b + 0 * c, *omegas)
    largest = max(float(leaf.max()) for leaf in jax.tree.leaves(mean))
    zeta = jax.tree.map(lambda leaf: 1 + tau - leaf / largest, mean)
    moved = []
    for end, place in zip(ends, places, strict=True):
        start, factor = (select_units(of, [place]) for of in (server, zeta))
        scaled = jax.tree.map(lambda s, z, e: s + z * (e - s), start, factor, end)
        moved.append(scaled if round_index else end)
    plain = pfnm(MODEL, prior_variance=FLAT, capacity=2)
    state = plain.init(ends[0])._replace(params=server, round_index=jnp.int32(round_index))
    expected = plain.exchanges[0].server(state, upload(moved, weights), WHO)

    sent = upload(ends, weights)
    sent = sent.uploads._replace(places=[jnp.stack([jnp.asarray(place) for place in places])])
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *omegas)
    wrapped = elastic(plain, MODEL, tau)
    found = jax.jit(wrapped.exchanges[0].server)(
        WrapperState(state, ()), Individual(ElasticUpload(sent, stacked), jnp.asarray(weights)), WHO
    )
    return expected, found.inner, plain.exchanges[0].server(state, upload(ends, weights), WHO)


@pytest.mark.quick
def test_elastic_scales_what_each_client_changed_before_units_are_matched():
    expected, found, plain = elastic_round(round_index=4)
    assert largest_difference(found.params, expected.params) < 1e-12
    assert largest_difference(found.params, plain.params) > 0.01
    # In round 0 clients start from networks of their own, so there is no change to scale.
    expected, found, plain = elastic_round(round_index=0)
    assert largest_difference(found.params, plain.params) < 1e-12


@pytest.mark.slow
def test_elastic_measures_at_the_matched_network_on_what_is_held_out():
    random = np.random.default_rng(3)
    x, y = random.normal(size=(20, 5)), random.integers(0, 3, 20)
    data = ClientData({"x": jnp.asarray(x), "y": jnp.asarray(y)}, jnp.int32(0), jnp.int32(20), 20)
    algorithm = elastic(pfnm(MODEL, 0.1, num_local_epochs=1), MODEL, sensitivity="average",
                        sensitivity_batch_size=20)
    params = jax.tree.map(jnp.asarray, draw_network((5, 6, 3)))
    state = algorithm.init(params)
    exchange = algorithm.exchanges[0]
    reply = exchange.client(exchange.broadcast(state), algorithm.init_client(params), data,
                            jax.random.key(0))
    rows = jnp.asarray(x[[0, 10]])  # a tenth, spread evenly
    expected = jax.grad(lambda p: (MODEL.outputs(p, {"x": rows}) ** 2).sum())(state.params)
    assert largest_difference(reply.upload.sensitivity, jax.tree.map(jnp.abs, expected)) < 1e-12
    assert exchange.individual
    assert reply.upload.inner.class_counts.sum() == 18


@pytest.mark.slow
def test_elastic_over_pfnm_trains_and_says_how_many_parameters_it_boosts():
    random = np.random.default_rng(1)
    clients = {}
    for name in "abcd":
        x = random.normal(size=(30, 5))
        clients[name] = {"x": x, "y": np.argmax(x[:, :3], 1).astype(np.int32)}
    data = FederatedDataset.from_clients(clients)
    task = Task(MODEL, train=data, test=data)
    algorithm = elastic(pfnm(MODEL, 0.3, num_local_epochs=5, prior_variance=FLAT), MODEL)
    result = train(task, algorithm, num_rounds=6, cohort_size=3, clients_per_chunk=2)
    assert result.history["test_accuracy"][-1] > 0.8
    shares = np.array(result.history["boosted_share"])
    assert shares.shape == (6,)
    assert ((shares > 0.5) & (shares <= 1)).all()
