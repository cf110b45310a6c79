"""`fedax.attacked`: who is hostile, what each attack uploads, and that a defence sees it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import fedax
from fedax import attacks, robust_means, train
from fedax.algorithm import WrapperState
from problems import identical, largest_difference, quadratic_task

TASK = quadratic_task()
MODEL = TASK.model
LOCAL = {"batch_size": 2, "num_local_epochs": 1, "weighting": "uniform"}
METHOD = fedax.fedavg(MODEL, 0.1, **LOCAL)
ALL = {
    "sign_flip": attacks.sign_flip(2.0), "scaling": attacks.scaling(7.0),
    "gaussian": attacks.gaussian(3.0), "little_is_enough": attacks.little_is_enough(1.5),
    "inner_product": attacks.inner_product(0.5),
}


def run(algorithm, num_rounds=3, **options):
    options = {"cohort_size": 6, "evaluate_every": 0, "seed": 2} | options
    return train(TASK, algorithm, num_rounds=num_rounds, **options)


def uploads(algorithm, key=1):
    """Of all clients in the first round, as the server receives them one by one."""
    (exchange,) = algorithm.exchanges
    spied = algorithm._replace(
        init=lambda params: WrapperState(algorithm.init(params), jnp.zeros((10, 3))),
        exchanges=(exchange._replace(
            broadcast=lambda state: exchange.broadcast(state.inner), individual=True,
            server=lambda state, each, _: state._replace(own=each.uploads.pseudo_gradient["x"]),
        ),),
    )
    cohort = fedax.CohortReader(TASK.train)(np.arange(10))
    start = spied.init(MODEL.init(jax.random.key(0)))
    after, _, info = jax.jit(
        lambda state, key: fedax.run_round(spied, state, (), cohort, key)
    )(start, jax.random.key(key))
    return np.asarray(after.own), info


def hostile_clients(share, seed=0):
    """Which of ten clients a sign flip changes."""
    algorithm = fedax.attacked(METHOD, attacks.sign_flip(), share, seed)
    message = METHOD.exchanges[0].broadcast(METHOD.init(MODEL.init(jax.random.key(0))))
    arrays = {name: jnp.asarray(array) for name, array in TASK.train.client_at(0).items()}

    def hostile(client_id):
        data = fedax.ClientData(arrays, jnp.int32(0), jnp.int32(3), 3, client_id=client_id)
        reply = algorithm.exchanges[0].client(message, (), data, jax.random.key(0))
        return reply.info["hostile_share"][0]

    return np.flatnonzero(jax.jit(jax.vmap(hostile))(jnp.arange(10, dtype=jnp.int32)))


@pytest.mark.quick
@pytest.mark.parametrize("share", [0.1, 0.2, 0.45])
def test_close_to_the_share_of_any_population_is_hostile(share):
    """By the golden ratio: the first N clients, for every N and several seeds."""
    ids = np.arange(100_000, dtype=np.uint64)
    for seed in range(5):
        start = int(jax.random.bits(jax.random.key(seed), (), jnp.uint32))
        hostile = (ids * 2654435769 + start) % 2**32 / 2**32 < share
        assert hostile_clients(share, seed).tolist() == np.flatnonzero(hostile[:10]).tolist()
        away = np.abs(np.cumsum(hostile) - share * (ids + 1.0))
        assert away.max() <= 4
        assert away[:100].max() <= 2


@pytest.mark.quick
def test_none_and_all_and_another_seed():
    assert hostile_clients(0.0).tolist() == []
    assert hostile_clients(1.0).tolist() == list(range(10))
    found = {tuple(hostile_clients(0.3, seed)) for seed in range(6)}
    assert len(found) > 2
    assert set(hostile_clients(0.2)) < set(hostile_clients(0.4))


@pytest.mark.slow
def test_what_each_attack_uploads():
    honest, _ = uploads(METHOD)
    who = hostile_clients(0.3)
    others = np.setdiff1d(np.arange(10), who)
    mean, deviation = honest[who].mean(0), honest[who].std(0)
    expected = {
        "sign_flip": -2 * honest[who], "scaling": 7 * honest[who],
        "little_is_enough": [mean - 1.5 * deviation] * len(who),
        "inner_product": [-0.5 * honest[others].mean(0)] * len(who),
    }
    for name, attack in ALL.items():
        found, info = uploads(fedax.attacked(METHOD, attack, 0.3))
        np.testing.assert_allclose(found[others], honest[others], rtol=1e-12)
        assert float(info.info["hostile_share"][0]) == len(who) / 10
        if name == "gaussian":
            assert 1 < found[who].std() < 6
            again, _ = uploads(fedax.attacked(METHOD, attack, 0.3), key=2)
            assert np.abs(again[who] - found[who]).min() > 0
        else:
            np.testing.assert_allclose(found[who], expected[name], rtol=1e-12)


@pytest.mark.slow
def test_labels_are_flipped_in_training_only_of_hostile_clients():
    task = fedax.load_task("digits")
    method = fedax.fedavg(task.model, 0.1, batch_size=10)
    flipped = fedax.attacked(method, attacks.label_flip(10), 1.0)
    arrays = dict(task.train.arrays)
    wrong = fedax.FederatedDataset({**arrays, "y": 9 - arrays["y"]}, task.train.offsets)
    options = {"num_rounds": 2, "cohort_size": 5, "evaluate_every": 0, "progress": False}
    expected = train(task._replace(train=wrong), method, **options)
    assert largest_difference(train(task, flipped, **options).params, expected.params) < 1e-12
    nobody = fedax.attacked(method, attacks.label_flip(10), 0.0)
    plain = train(task, method, **options)
    assert largest_difference(train(task, nobody, **options).params, plain.params) < 1e-12


@pytest.mark.slow
def test_the_default_z_is_the_papers():
    """Baruch et al. 2019, Algorithm 3: n = 50, m = 24, as in section 4 of the paper."""
    for n, m in ((50, 24), (50, 12), (51, 20), (10, 2), (10, 4)):
        hostile = jnp.arange(n) < m
        values = jnp.where(jnp.arange(n) % 2 == 0, 1.0, -1.0)[:, None]  # of even m: mean 0, std 1
        found = attacks.little_is_enough().together(values, hostile, ~hostile)
        supporters = np.floor(n / 2 + 1) - m
        z = norm.ppf((n - m - supporters) / (n - m))
        np.testing.assert_allclose(found, [-max(z, 0)], atol=1e-9)


@pytest.mark.slow
def test_two_attacks_are_by_the_same_clients():
    both = fedax.attacked(fedax.attacked(METHOD, ALL["sign_flip"], 0.3), ALL["scaling"], 0.3)
    found, _ = uploads(both)
    honest, _ = uploads(METHOD)
    who = hostile_clients(0.3)
    np.testing.assert_allclose(found[who], -14 * honest[who], rtol=1e-12)
    twice = fedax.attacked(
        fedax.attacked(METHOD, ALL["inner_product"], 0.3), ALL["little_is_enough"], 0.3
    )
    lies, _ = uploads(twice)  # of equal lies the deviation is 0
    np.testing.assert_allclose(
        lies[who], uploads(fedax.attacked(METHOD, ALL["inner_product"], 0.3))[0][who], rtol=1e-12
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sign_flip", "inner_product"])
def test_nobody_hostile_is_the_method(name):
    for method in (fedax.scaffold(MODEL, **LOCAL), fedax.mime(MODEL, **LOCAL)):
        same = run(fedax.attacked(method, ALL[name], 0.0))
        assert largest_difference(same.params, run(method).params) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gaussian", "little_is_enough"])
def test_the_same_over_chunks_and_after_a_kill(name):
    algorithm = fedax.robust(
        fedax.attacked(fedax.scaffold(MODEL, **LOCAL), ALL[name], 0.3),
        robust_means.trimmed_mean(0.3),
    )
    options = {"dropout": 0.3}
    whole, half = run(algorithm, 6, **options), run(algorithm, 3, **options)
    rest = run(algorithm, 6, state=half.state, **options)
    assert identical(whole.state.server_state, rest.state.server_state)
    chunks = run(algorithm, 6, clients_per_chunk=4, **options)
    assert largest_difference(whole.params, chunks.params) < 1e-12


@pytest.mark.slow
def test_a_plain_mean_of_colluding_clients():
    """Without single uploads at the server: the weighted mean of what they agreed on."""
    method = fedax.fedavg(MODEL, 0.1, batch_size=2)  # weighted by numbers of examples
    lies, _ = uploads(fedax.attacked(method, ALL["inner_product"], 0.3))
    sizes = np.asarray(TASK.train.client_sizes, float)
    cohort = fedax.CohortReader(TASK.train)(np.arange(10))
    algorithm = fedax.attacked(method, ALL["inner_product"], 0.3)
    start = algorithm.init(MODEL.init(jax.random.key(0)))
    after = fedax.run_round(algorithm, start, (), cohort, jax.random.key(1))[0]
    expected = start.params["x"] - sizes @ lies / sizes.sum()
    np.testing.assert_allclose(after.params["x"], expected, rtol=1e-12)


@pytest.mark.quick
@pytest.mark.parametrize("name", ["scaling", "inner_product"])
def test_a_norm_bound_holds_for_lies(name):
    attack = {"scaling": attacks.scaling(1e6), "inner_product": attacks.inner_product(1e6)}[name]
    algorithm = fedax.robust(fedax.attacked(METHOD, attack, 0.3), robust_means.norm_bound(0.1))
    lies, _ = uploads(algorithm)
    lengths = np.linalg.norm(lies, axis=1)
    assert lengths.max() < 0.1 * (1 + 1e-9)
    assert np.isclose(lengths[hostile_clients(0.3)], 0.1).all()


@pytest.mark.slow
def test_inside_other_wrappers():
    for attack in (ALL["sign_flip"], ALL["little_is_enough"]):
        lied = fedax.attacked(METHOD, attack, 0.3)
        for algorithm in (
            fedax.compressed(lied, fedax.codecs.eden(2)), fedax.elastic(lied, MODEL),
            fedax.robust(fedax.elastic(lied, MODEL), robust_means.coordinate_median()),
            fedax.local_update_decay(
                lambda c, s, a=attack: fedax.attacked(fedax.fedavg(MODEL, c, s, **LOCAL), a), MODEL
            ),
        ):  # fmt: skip
            assert np.isfinite(run(algorithm, 2).params["x"]).all()


@pytest.mark.slow
def test_labels_are_flipped_of_a_part_of_the_examples():
    task = fedax.load_task("digits")
    lied = fedax.attacked(fedax.fedavg(task.model, batch_size=10), attacks.label_flip(10), 0.3)
    result = train(
        task, fedax.elastic(lied, task.model), num_rounds=1, cohort_size=3, evaluate_every=0
    )
    assert np.isfinite(result.history["train_loss"]).all()


def test_shares_and_sizes_of_a_sweep_are_one_program():
    def build(size):
        return fedax.attacked(METHOD, attacks.inner_product(size), 0.2)

    assert len({fedax.partition(build(size))[1] for size in (0.1, 0.5, 100.0)}) == 1


@pytest.mark.quick
def test_what_cannot_be_is_refused_with_a_sentence():
    with pytest.raises(ValueError, match="no clients that could lie"):
        fedax.attacked(fedax.centralised(MODEL))
    with pytest.raises(TypeError, match="attack must be one of"):
        fedax.attacked(METHOD, "sign_flip")
    with pytest.raises(ValueError, match="share"):
        fedax.attacked(METHOD, share=1.1)
    with pytest.raises(ValueError, match="attack_seed"):
        fedax.attacked(METHOD, attack_seed=-1)
    for make, word in (
        (lambda: attacks.sign_flip(0.0), "scale"), (lambda: attacks.scaling(0.0), "factor"),
        (lambda: attacks.gaussian(-1.0), "scale"), (lambda: attacks.label_flip(1), "num_classes"),
        (lambda: attacks.little_is_enough(-1.0), "z"),
        (lambda: attacks.inner_product(0.0), "epsilon"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=word):
            make()
