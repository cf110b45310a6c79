"""`fedax.private`: mechanism, accounting, order of wrappers, audit, the command line."""

import itertools
import json
import math
import shutil
from typing import Any, NamedTuple

import dp_accounting
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm as normal

import fedax
from fedax import privacy
from fedax.algorithms.registry import ALGORITHMS
from fedax.cli.main import run_command
from fedax.data import CohortReader, FederatedDataset
from fedax.data.task import Task
from fedax.experiment.metrics import read_metrics
from fedax.factories import partition
from fedax.privacy import accounting
from fedax.privacy.noise import banded
from fedax.rounds.budget import mechanism_of
from problems import identical, largest_difference, quadratic_task

TASK = quadratic_task()
MODEL = TASK.model
N = TASK.train.num_clients
LOCAL = {"batch_size": 2, "num_local_epochs": 1}
SUMMED = [name for name in ALGORITHMS if name not in ("pfnm", "afl", "centralised", "fedopt")]
# Around these private is refused: they upload numbers that noise would swamp or make negative.
REFUSED = {"adaalter", "fedexp", "fednova", "ifca", "local_adam", "qfedavg", "term"}
FAST = ("ditto", "fedadam", "fedavg", "mime", "scaffold")
ALLOWED = [
    name if name in FAST else pytest.param(name, marks=pytest.mark.slow)
    for name in SUMMED if name not in REFUSED
]
# A norm that nobody reaches.
FREE = 1e12


def method(name):
    if name == "maml":
        return fedax.maml(MODEL, 0.05, 0.1)
    if name in ("minibatch_sgd", "server_only"):
        return ALGORITHMS[name].factory(MODEL)
    where = {"where": ()} if name == "fedrep" else {}  # the model has one array
    return ALGORITHMS[name].factory(MODEL, **where, **LOCAL)


def uniform(name):
    """The method with equal weights, where it has weights."""
    found = method(name)
    if name == "maml":
        return fedax.maml(MODEL, 0.05, 0.1, weighting="uniform")
    try:
        return ALGORITHMS[name].factory(
            MODEL, weighting="uniform", **LOCAL, **({"where": ()} if name == "fedrep" else {})
        )
    except (TypeError, ValueError):
        return found


def run(algorithm, num_rounds=3, **options):
    options = {"sampling": "full", "evaluate_every": 0, "seed": 2} | options
    return fedax.train(TASK, algorithm, num_rounds=num_rounds, progress=False, **options)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALLOWED)
def test_without_clipping_and_noise_it_is_the_method_with_equal_weights(name):
    plain = run(uniform(name))
    same = run(fedax.private(uniform(name), clip=FREE, noise_multiplier=0.0))
    assert largest_difference(plain.params, same.params) < 1e-12


@pytest.mark.quick
@pytest.mark.parametrize("name", sorted(REFUSED))
def test_around_methods_that_upload_other_numbers_it_is_refused(name):
    with pytest.raises(fedax.AlgorithmError, match="private cannot wrap a method whose clients"):
        run(fedax.private(method(name)), 1)


def no_longer_than_the_norm(lengths_of):
    """For any norm, seed and size of the data."""
    @hypothesis.given(st.floats(-6, 3), st.integers(0, 2**31 - 1), st.floats(-3, 3))
    @hypothesis.settings(max_examples=30, derandomize=True, deadline=None, database=None)
    def holds(size, seed, scale):
        lengths = lengths_of(10.0**size, seed, 10.0**scale)[1]
        assert (lengths <= 10.0**size * (1 + 1e-6)).all()

    holds()


@pytest.mark.parametrize("name", ALLOWED)
def test_no_upload_is_longer_than_the_norm(name):
    algorithm = fedax.private(method(name), noise_multiplier=0.0)
    cohort = CohortReader(TASK.train)(np.arange(N))
    state = algorithm.init(MODEL.init(jax.random.key(1)))
    own, reached = algorithm.init_client(state.params), 0
    for exchange in algorithm.exchanges:
        message = exchange.broadcast(state)

        @jax.jit
        def replies(clip, seed, scale, own=own, exchange=exchange, message=message):
            arrays = {name: array * scale for name, array in cohort.arrays.items()}

            def one(start, size):
                data = fedax.ClientData(arrays, start, size, cohort.capacity)
                return exchange.client(
                    message._replace(clip=clip), own, data, jax.random.key(seed)
                )

            return jax.vmap(one)(cohort.starts, cohort.num_examples)

        def lengths_of(clip, seed, scale, replies=replies):
            found = replies(jnp.asarray(clip), seed, jnp.asarray(scale))
            assert found.info == {}
            assert found.model_delta is None
            assert (found.weight == 1).all()
            return found.client_state, np.sqrt(sum(
                (np.asarray(leaf, np.float64).reshape(N, -1) ** 2).sum(1)
                for leaf in jax.tree.leaves(found.upload)
            ))

        no_longer_than_the_norm(lengths_of)
        states, lengths = lengths_of(1e-3, 7, 1.0)  # it is reached, by whoever uploads anything
        assert (lengths[lengths > 0] >= 1e-3 * (1 - 1e-6)).all()
        reached += (lengths > 0).any()
        own = jax.tree.map(lambda leaf: leaf[1], states)
    assert reached


class StubState(NamedTuple):
    params: Any
    round_index: Any


def stub(num_exchanges=1):
    """A method whose clients upload rows of their data, and whose server keeps what it gets."""

    def client(message, own, data, key):
        del key
        rows = data.examples(jnp.zeros(1, jnp.int32))
        info = {"train_loss": (jnp.asarray(1.0), jnp.asarray(1.0))}
        upload = fedax.ModelUpdate({name: rows[name][0] for name in message})
        return fedax.Reply(upload, jnp.asarray(3.0), own, info)

    def server(state, mean, participation):
        del participation
        return state._replace(params=mean.pseudo_gradient)

    exchange = fedax.Exchange(lambda state: state.params, client, server)
    return fedax.FederatedAlgorithm(
        lambda params: StubState(params, jnp.int32(0)), lambda params: (),
        (exchange,) * num_exchanges,
    )


def noises(num_rounds, size, num_exchanges=1, clients=4, **options):
    """What a server gets from clients that upload 0, in each round: [rounds, size]."""
    data = FederatedDataset({"x": np.zeros((clients, size), np.float32)}, np.arange(clients + 1))
    algorithm = fedax.private(stub(num_exchanges), **options)
    cohort = CohortReader(data)(np.arange(clients))
    state = algorithm.init({"x": jnp.zeros(size, jnp.float32)})
    step = jax.jit(lambda state: fedax.run_round(
        algorithm, state, (), cohort, jax.random.key(5)
    )[0])
    found = []
    for _ in range(num_rounds):
        state = step(state)
        found.append(np.asarray(state.params["x"], np.float64))
    return np.stack(found)


@pytest.mark.slow
def test_the_noise_has_the_deviation_that_it_says_and_is_new_in_each_round():
    size, clients, clip, z = 50_000, 4, 0.3, 1.7
    for exchanges in (1, 2):
        found = noises(4, size, exchanges, clients, clip=clip, noise_multiplier=z)
        covariance = found @ found.T / size
        expected = (math.sqrt(exchanges) * z * clip / clients) ** 2
        # A variance of n Gaussians has the deviation sqrt(2 / n), a covariance sqrt(1 / n).
        spread = expected * math.sqrt(2 / size)
        assert np.abs(covariance - expected * np.eye(4)).max() < 5 * spread
        assert abs(found.mean()) < 5 * math.sqrt(expected / size)


@pytest.mark.slow
def test_correlated_noise_has_the_covariance_of_its_matrix():
    size, clients, bands, rounds = 50_000, 4, 3, 6
    found = noises(rounds, size, 1, clients, clip=1.0, noise_multiplier=1.0, bands=bands,
                   horizon=50)
    column = banded(bands, 50)
    assert math.isclose(column @ column, 1, rel_tol=1e-6)
    matrix = sum(np.diag(np.full(rounds - k, column[k]), -k) for k in range(bands))
    inverse = np.linalg.inv(matrix)
    expected = inverse @ inverse.T / clients**2
    covariance = found @ found.T / size
    spread = np.sqrt(2 * np.outer(expected.diagonal(), expected.diagonal()) / size)
    assert (np.abs(covariance - expected) < 5 * spread).all()
    # The sums, which a model is, have less noise than with independent noise.
    prefix = np.tril(np.ones((rounds, rounds)))
    assert np.trace(prefix @ expected @ prefix.T) < np.trace(prefix @ prefix.T) / clients**2


@pytest.mark.slow
def test_clients_count_alike_and_the_denominator_is_public():
    """Weights of 3, one client with NaN, one absent: the sum of the clipped others over 4."""
    rows = np.array([[3.0, 4.0], [0.3, 0.0], [np.nan, 1.0], [0.0, -8.0]], np.float32)
    data = FederatedDataset({"x": rows}, np.arange(5))
    algorithm = fedax.private(stub(), clip=1.0, noise_multiplier=0.0)
    cohort = CohortReader(data)(np.arange(4), np.array([2**31 - 1] * 3 + [0]))
    state, _, info = fedax.run_round(
        algorithm, algorithm.init({"x": jnp.zeros(2, jnp.float32)}), (), cohort, jax.random.key(0)
    )
    assert np.allclose(state.params["x"], np.array([0.6 + 0.3, 0.8]) / 4, atol=1e-7)
    assert info.info == {}
    assert info.accepted.all()


def test_the_server_steps_also_if_nobody_reports():
    data = FederatedDataset({"x": np.ones((3, 2), np.float32)}, np.arange(4))
    algorithm = fedax.private(stub(), clip=1.0, noise_multiplier=1.0)
    cohort = CohortReader(data)(np.arange(3), np.zeros(3, np.int64))
    state, _, _ = fedax.run_round(
        algorithm, algorithm.init({"x": jnp.zeros(2, jnp.float32)}), (), cohort, jax.random.key(0)
    )
    assert (np.asarray(state.params["x"]) != 0).all()


@pytest.mark.slow
def test_the_adaptive_norm_follows_the_quantile():
    """Andrew et al. 2021, Algorithm 1, without noise: C exp(-eta (share - q)) by hand."""
    rows = np.array([[1.0], [2.0], [4.0], [8.0]], np.float32)
    data = FederatedDataset({"x": rows}, np.arange(5))
    algorithm = fedax.private(
        stub(), clip=3.0, noise_multiplier=0.0, quantile=0.6, clip_learning_rate=0.5
    )
    cohort = CohortReader(data)(np.arange(4))
    state = algorithm.init({"x": jnp.zeros(1, jnp.float32)})
    norm = 3.0
    for _ in range(5):
        state, _, _ = fedax.run_round(algorithm, state, (), cohort, jax.random.key(0))
        assert np.allclose(state.params["x"], np.minimum(rows[:, 0], norm).sum() / 4, rtol=1e-6)
        norm *= math.exp(-0.5 * ((rows[:, 0] <= norm).mean() - 0.6))
        assert np.allclose(state.own.clip, [norm], rtol=1e-6)


def test_the_adaptive_norm_s_noises_cost_what_one_does():
    """z_sum^-2 + (2 sigma_b)^-2 = z^-2 (Andrew et al. 2021, Theorem 1); sigma_b = 5 z.

    The paper has sigma_b = 100 / 20 and z_sum = (1 - 0.01)^-1/2 = 1.005 for 100 clients, z = 1.
    """
    size, clients, z = 50_000, 4, 1.0
    found = noises(1, size, 1, clients, clip=1.0, noise_multiplier=z, quantile=0.5,
                   clip_learning_rate=0.0)
    expected = (1.0050378 * z / clients) ** 2
    assert math.isclose(found.var(), expected, rel_tol=5 * math.sqrt(2 / size))
    # The bits' noise, from the norm's change over seeds: C = exp(-eta (share - q)).
    data = FederatedDataset({"x": np.zeros((clients, 1), np.float32)}, np.arange(clients + 1))
    cohort = CohortReader(data)(np.arange(clients))
    algorithm = fedax.private(stub(), clip=1.0, noise_multiplier=z, quantile=0.5)
    state = algorithm.init({"x": jnp.zeros(1, jnp.float32)})
    clips = jax.jit(jax.vmap(lambda seed: fedax.run_round(
        algorithm, state, (), cohort, jax.random.key(seed)
    )[0].own.clip[0]))(jnp.arange(4000))
    shares = 0.5 - np.log(np.asarray(clips, np.float64)) / 0.2
    assert abs(shares.mean() - 1) < 5 * 5 / clients / math.sqrt(4000)
    assert math.isclose(shares.std(), 5 * z / clients, rel_tol=5 / math.sqrt(2 * 4000))


@pytest.mark.slow
@pytest.mark.parametrize("bands", [1, 3])
def test_arrays_and_exchanges_have_noise_of_their_own(bands):
    size, clients = 20_000, 3
    zeros = np.zeros((clients, size), np.float32)
    data = FederatedDataset({"x": zeros, "y": zeros}, np.arange(clients + 1))
    algorithm = fedax.private(stub(2), clip=1.0, noise_multiplier=1.0, bands=bands)
    cohort = CohortReader(data)(np.arange(clients))
    state = algorithm.init({name: jnp.zeros(size, jnp.float32) for name in "xy"})
    found = []
    for t in range(2):
        for exchange in algorithm.exchanges:  # each server's step alone, to see both
            total = exchange.client(
                exchange.broadcast(state), (), _examples(cohort), jax.random.key(0)
            ).upload
            who = fedax.algorithm.PublicParticipation(
                jnp.int32(3), jnp.float32(3), jax.random.fold_in(jax.random.key(t), len(found))
            )
            state = exchange.server(state, total, who)
            found += [np.asarray(state.params[name], np.float64) for name in "xy"]
    matrix = np.corrcoef(np.stack(found))
    # Rows: round 1 exchange 1 (x, y), exchange 2 (x, y), then round 2. Only bands correlate, and
    # then the same array in the same exchange of another round.
    expected = np.eye(8)
    if bands > 1:
        first = banded(bands, 1000)
        inverse = np.linalg.inv(np.array([[first[0], 0], [first[1], first[0]]]))
        covariance = inverse @ inverse.T
        share = covariance[0, 1] / math.sqrt(covariance[0, 0] * covariance[1, 1])
        for place in range(4):
            expected[place, place + 4] = expected[place + 4, place] = share
    assert np.abs(matrix - expected).max() < 5 / math.sqrt(size)


def _examples(cohort):
    return fedax.ClientData(cohort.arrays, cohort.starts[0], cohort.num_examples[0], 1)


SETTINGS = [
    (z, rounds, cohort, clients, bands)
    for z in (0.3, 0.8, 1.0, 2.5) for rounds, cohort, clients, bands in (
        (1, 10, 10, 1), (100, 10, 1000, 1), (500, 100, 3400, 1), (40, 20, 400, 4),
        (60, 50, 400, 8),
    )
]


@pytest.mark.parametrize(("z", "rounds", "cohort", "clients", "bands"), SETTINGS)
def test_epsilon_is_dp_accounting_s(z, rounds, cohort, clients, bands):
    assert len(SETTINGS) == 20
    relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    if z < 0.5:
        orders = np.concatenate((np.linspace(1.01, 8, 50), np.arange(8, 64),
                                 np.linspace(65, 512, 10, dtype=int)))
        accountant = dp_accounting.rdp.RdpAccountant(orders, relation)
    else:
        accountant = dp_accounting.pld.PLDAccountant(relation)
    event = dp_accounting.PoissonSampledDpEvent(
        cohort / (clients // bands), dp_accounting.GaussianDpEvent(z)
    )
    accountant.compose(event, -(-rounds // bands))
    expected = accountant.get_epsilon(1e-5)
    found = privacy.epsilon(
        z, rounds, cohort_size=cohort, num_clients=clients, delta=1e-5, bands=bands
    )
    assert math.isclose(found, expected, rel_tol=1e-6)


@pytest.mark.quick
def test_epsilon_of_full_cohorts_is_that_of_one_gaussian():
    """Balle and Wang 2018, Theorem 8: delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)."""
    for z, rounds in ((1.0, 1), (2.0, 9), (5.0, 100)):
        mu, eps = math.sqrt(rounds) / z, 1.0
        delta = normal.cdf(mu / 2 - eps / mu) - math.exp(eps) * normal.cdf(-mu / 2 - eps / mu)
        found = privacy.epsilon(z, rounds, cohort_size=50, num_clients=50, delta=delta)
        assert eps <= found <= eps + 0.01  # the discretisation is pessimistic


def test_epsilon_of_a_published_example():
    """Abadi et al. 2016, section 5.1: q = 0.01, sigma = 4, 10,000 steps, delta 1e-5: 1.26.

    Theirs is min over lambda <= 32 of (alpha(lambda) + log(1 / delta)) / lambda, an upper bound;
    alpha(lambda) / lambda is Rényi's divergence of order lambda + 1. Nearly exact is the limit of
    Bu et al. 2020, Corollary 1: Gaussian with mu = q sqrt(T (e^(1 / sigma^2) - 1)). In bands, a
    group has the same q in every eighth round (Choquette-Choo et al. 2023, Theorem 4).
    """
    q, sigma, steps, delta = 0.01, 4.0, 10_000, 1e-5
    event = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(sigma))
    orders = np.arange(2, 34)
    accountant = dp_accounting.rdp.RdpAccountant(orders)
    accountant.compose(event, steps)
    published = (accountant._rdp + math.log(1 / delta) / (orders - 1)).min()
    assert f"{published:.2f}" == "1.26"

    mu = q * math.sqrt(steps * math.expm1(sigma**-2))
    limit = brentq(
        lambda eps: normal.cdf(mu / 2 - eps / mu)
        - math.exp(eps) * normal.cdf(-mu / 2 - eps / mu) - delta, 0.1, 2.0,
    )
    found = privacy.epsilon(sigma, steps, cohort_size=100, num_clients=10_000, delta=delta)
    assert found < published
    assert math.isclose(found, limit, rel_tol=0.01)
    assert found == privacy.epsilon(
        sigma, 8 * steps, cohort_size=100, num_clients=80_000, delta=delta, bands=8
    )


@pytest.mark.slow
def test_noise_and_rounds_are_the_inverse_of_epsilon():
    who = {"cohort_size": 50, "num_clients": 1000, "delta": 1e-4}
    z = privacy.noise_multiplier(3.0, 100, **who)
    assert privacy.epsilon(z, 100, **who) <= 3.0 < privacy.epsilon(z * 0.9995, 100, **who)
    rounds = privacy.num_rounds(3.0, 1.0, **who)
    assert privacy.epsilon(1.0, rounds, **who) <= 3.0 < privacy.epsilon(1.0, rounds + 1, **who)
    assert privacy.num_rounds(0.01, 0.5, **who) == 0
    few = {"cohort_size": 3, "num_clients": 20}  # epsilon is 0 for some, delta being enough
    assert privacy.noise_multiplier(1e-3, 4, **few) > 0
    assert privacy.num_rounds(1e-3, 3.0, **few) >= 1
    assert privacy.epsilon(0.0, 1, **who) == math.inf
    assert privacy.epsilon(1.0, 0, **who) == 0


def test_rounds_within_a_budget_are_looked_for_in_whole_cycles(monkeypatch):
    """A begun cycle of the bands' groups costs as much as a whole one; each try costs a second."""
    tried = []

    def steps(noise, rounds, cohort_size, num_clients, delta, bands):
        tried.append(rounds)
        return 0.4 * math.ceil(rounds / bands) ** 0.7

    monkeypatch.setattr(accounting, "_epsilon", steps)
    who = {"cohort_size": 10, "num_clients": 10_000, "delta": 1e-5}
    for bands, cycles in itertools.product((1, 100, 1000), (1, 2, 7, 60)):
        budget = 0.4 * cycles**0.7 * 1.001
        tried.clear()
        assert privacy.num_rounds(budget, 1.0, bands=bands, **who) == cycles * bands
        assert len(tried) <= 20
        assert privacy.epsilon(1.0, cycles * bands - bands + 1, bands=bands, **who) <= budget


def test_a_delta_below_the_tails_of_distributions_has_a_finite_epsilon():
    """Full cohorts are one Gaussian (Balle and Wang 2018, Theorem 8); Rényi's is above."""
    z, delta = 64.0, 1e-16
    mu = 1 / z

    def log_delta(eps):
        first, second = normal.logcdf(mu / 2 - eps / mu), eps + normal.logcdf(-mu / 2 - eps / mu)
        return first + math.log1p(-math.exp(second - first))

    exact = brentq(lambda eps: log_delta(eps) - math.log(delta), 1e-3, 1.0)
    found = privacy.epsilon(z, 1, cohort_size=50, num_clients=50, delta=delta)
    assert exact < found < 1.3 * exact
    sampled = privacy.epsilon(z, 100, cohort_size=100, num_clients=100_000, delta=delta)
    assert 0 < sampled < 0.1


@pytest.mark.quick
def test_more_groups_than_clients_are_none(capsys):
    line = ["privacy", "--clients", "1000", "--rounds", "1", "--noise-multiplier", "1"]
    assert run_command([*line, "--cohort-size", "10", "--bands", "2000"]) == 2
    assert "bands must be at most 1,000" in capsys.readouterr().err.replace("1000", "1,000")
    assert run_command([*line, "--cohort-size", "1001"]) == 2
    assert "1000 clients make only 1000" in capsys.readouterr().err


@pytest.mark.slow
def test_only_sampling_with_a_guarantee_is_accepted():
    algorithm = fedax.private(method("fedavg"))
    for sampling in ("uniform", "cyclic", "by_weight", "with_replacement", lambda seed, t: [0]):
        with pytest.raises(privacy.PrivacyError, match="sampling"):
            run(algorithm, sampling=sampling, cohort_size=4)
    with pytest.raises(privacy.PrivacyError, match="'poisson', but sampling is 'full'"):
        run(fedax.private(method("fedavg"), bands=2))
    for name, value in {
        "diagnostics": True, "evaluate_training": True, "personalize_steps": 2,
    }.items():
        with pytest.raises(privacy.PrivacyError, match=f"{name}.* measures the clients' training"):
            run(algorithm, **{name: value})
    with pytest.raises(privacy.PrivacyError, match="A sweep trains all of its 50 rounds"):
        fedax.sweep(
            TASK, lambda z: fedax.private(method("fedavg"), noise_multiplier=z, epsilon=3.0),
            {"z": [1.0, 2.0]}, num_rounds=50, sampling="full", choose="test_distance:min",
        )
    with pytest.raises(privacy.PrivacyError, match="make only 3 groups of 3"):
        run(fedax.private(method("fedavg"), bands=3), sampling="poisson", cohort_size=4)


@pytest.mark.slow
def test_wrappers_go_inside():
    inner = fedax.private(method("fedavg"))
    for outside in (
        fedax.compressed, lambda a: fedax.elastic(a, MODEL), lambda a: fedax.personal(a, MODEL),
        fedax.private, lambda a: fedax.robust(a, fedax.robust_means.coordinate_median()),
        lambda a: fedax.attacked(a, fedax.attacks.sign_flip()),
    ):
        with pytest.raises(ValueError, match="Put private outside"):
            outside(inner)
    with pytest.raises(ValueError, match="sees them one by one"):
        fedax.private(fedax.afl(MODEL))
    with pytest.raises(ValueError, match="trains on the pool"):
        fedax.private(fedax.centralised(MODEL))
    with pytest.raises(privacy.PrivacyError, match="bands with quantile"):
        fedax.private(method("fedavg"), bands=2, quantile=0.5)
    run(fedax.private(fedax.compressed(method("scaffold"))))
    run(fedax.private(fedax.compressed(method("mime"), fedax.codecs.top_k(0.5))))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), [
    ("fedavg", {"quantile": 0.5}), ("scaffold", {}), ("mime", {"bands": 2}),
])
def test_resumed_to_the_bit(name, options):
    algorithm = fedax.private(method(name), clip=0.2, **options)
    how = {"sampling": "poisson", "cohort_size": 2}
    whole = run(algorithm, 6, **how)
    half = run(algorithm, 3, **how)
    again = run(algorithm, 6, state=half.state, **how)
    assert identical(whole.state.server_state, again.state.server_state)


def test_a_state_of_another_mechanism_is_refused():
    how = {"sampling": "poisson", "cohort_size": 2}
    half = run(fedax.private(method("fedavg"), noise_multiplier=0.5), 2, **how)
    with pytest.raises(privacy.PrivacyError, match=r"with noise_multiplier 0\.5, .* is now 5"):
        run(fedax.private(method("fedavg"), noise_multiplier=5.0), 3, state=half.state, **how)
    with pytest.raises(privacy.PrivacyError, match=r"with cohort_size 2, .* is now 1"):
        run(fedax.private(method("fedavg"), noise_multiplier=0.5), 3, state=half.state,
            sampling="poisson", cohort_size=1)


@pytest.mark.slow
def test_other_seeds_have_other_noise_and_cohorts():
    def of(seed, noise_seed):
        algorithm = fedax.private(method("fedavg"), noise_seed=noise_seed)
        return np.asarray(jax.tree.leaves(run(algorithm, 1, seed=seed).params)[0])

    start = np.asarray(jax.tree.leaves(MODEL.init(jax.random.key(0)))[0])
    found = [of(0, 0), of(1, 0), of(0, 1), of(0, 2**32), of(0, 2**100)]
    assert start.shape == found[0].shape
    for i, one in enumerate(found):
        for other in found[:i]:
            assert not np.allclose(one, other)
    assert np.array_equal(found[0], of(0, 0))


@pytest.mark.slow
def test_numbers_are_no_structure_and_a_sweep_is_one_program():
    def of(clip, noise, rate):
        return fedax.private(
            fedax.fedavg(MODEL, rate, **LOCAL), clip=clip, noise_multiplier=noise
        )

    assert partition(of(0.1, 1.0, 0.1))[1] == partition(of(0.3, 2.0, 0.2))[1]
    result = fedax.sweep(
        TASK, of, {"clip": [0.1, 0.5], "noise": [0.0, 1.0], "rate": [0.05, 0.1]}, num_rounds=3,
        seeds=[2], cohort_size=3, sampling="poisson", choose="test_distance:min", progress=False,
    )
    record = result.record
    assert len(record.settings) == 8
    assert not {"num_reports", "train_loss"} & record.metrics.keys()
    for place in range(8):
        values = record.settings[record.setting[place]].values
        single = run(of(**values), cohort_size=3, sampling="poisson", evaluate_every=None)
        swept = record.metrics["test_distance"][place, -1]
        assert math.isclose(swept, single.test["test_distance"], rel_tol=1e-9)


@pytest.mark.slow
def test_a_run_stops_at_its_budget():
    algorithm = fedax.private(method("fedavg"), noise_multiplier=2.0, epsilon=4.0, delta=1e-2)
    mechanism = mechanism_of(algorithm, N, "poisson", 4)
    result = run(algorithm, 1000, sampling="poisson", cohort_size=4)
    rounds = len(result.history)
    assert mechanism.epsilon(rounds) <= 4.0 < mechanism.epsilon(rounds + 1)
    assert 1 < rounds < 1000
    assert result.stopped.startswith(f"Round {rounds} is the last within the privacy budget")
    more = list(fedax.simulate(
        TASK, algorithm, num_rounds=1000, state=result.state, sampling="poisson", cohort_size=4
    ))
    assert more == []
    with pytest.raises(privacy.PrivacyError, match="one round with noise_multiplier"):
        run(fedax.private(method("fedavg"), noise_multiplier=0.5, epsilon=0.1, delta=1e-2))
    assert run(algorithm, 2, sampling="poisson", cohort_size=4).stopped is None


@pytest.mark.quick
def test_nothing_is_told_of_the_clients():
    result = run(fedax.private(method("fedavg")), 2, sampling="poisson", cohort_size=4)
    told = set(result.history.rounds[-1])
    assert all(name == "round" or "seconds" in name for name in told), told


@pytest.mark.slow
def test_the_command_line_says_what_is_guaranteed(tmp_path, capsys):
    folder = tmp_path / "run"
    words = ["run", "digits", "private+fedavg", "--rounds", "4", "--cohort-size", "4", "--out",
             str(folder), "--set", "sampling=poisson", "noise_multiplier=2", "delta=0.01"]
    assert run_command(words) == 0
    said = capsys.readouterr().out
    summary = json.loads((folder / "summary.json").read_text())["privacy"]
    expected = privacy.epsilon(2.0, 4, cohort_size=4, num_clients=20, delta=0.01)
    assert summary["epsilon"] == expected
    assert f"Privacy: epsilon {expected:.3g} with delta 0.01 for every client." in said
    assert f"epsilon {expected:.3g} with delta 0.01" in (folder / "report.html").read_text()
    assert not any("train_loss" in metrics or "num_reports" in metrics
                   for metrics in read_metrics(folder))
    assert run_command(["privacy", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["epsilon"] == expected
    sampling = "Poisson: in each round a client takes part with probability 0.2"
    assert summary["sampling"] == sampling
    assert sampling in (folder / "report.html").read_text()
    asked = ["privacy", "--clients", "20", "--cohort-size", "4", "--rounds", "4",
             "--noise-multiplier", "2", "--delta", "0.01"]
    assert run_command([*asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["epsilon"] == expected
    assert run_command(asked) == 0
    assert sampling in capsys.readouterr().out
    # Killed two rounds after its last checkpoint: these have told something, too.
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"round": 5, "seconds": 1.0}\n{"round": 6, "seconds": 1.0}\n')
    assert run_command(["privacy", str(folder), "--json"]) == 0
    more = privacy.epsilon(2.0, 6, cohort_size=4, num_clients=20, delta=0.01)
    assert json.loads(capsys.readouterr().out)["epsilon"] == more
    # Stopped in its first round: nothing has been told.
    shutil.rmtree(folder / "checkpoints")
    (folder / "summary.json").unlink()
    (folder / "metrics.jsonl").write_text("")
    assert run_command(["privacy", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["epsilon"] == 0
    assert run_command(["privacy", "--clients", "20"]) == 2
    assert "Give a run folder, or the population" in capsys.readouterr().err


@pytest.mark.quick
def test_poisson_cohorts():
    sizes = np.ones(200, int)
    draw = fedax.sampler("poisson", sizes, 20, seed=3)
    counts, lengths = np.zeros(200), []
    for t in range(2000):
        cohort = draw(t, 1)
        there = cohort.client_ids[cohort.dropped_at >= 0]
        assert len(np.unique(there)) == len(there)
        counts[there] += 1
        lengths.append(len(there))
    assert {len(draw(t, 1).client_ids) for t in range(100)} == {43}  # 20 + 5 sqrt(20)
    assert abs(np.mean(lengths) - 20) < 5 * math.sqrt(18 / 2000)
    assert math.isclose(np.var(lengths), 18, rel_tol=5 * math.sqrt(2 / 2000))
    assert np.abs(counts - 200).max() < 5 * math.sqrt(2000 * 0.09)
    empty = fedax.sampler("poisson", sizes, 1, seed=3)
    assert any((empty(t, 1).dropped_at < 0).all() for t in range(20))


@pytest.mark.quick
def test_groups_take_turns():
    draw = fedax.sampler("poisson", np.ones(31, int), 8, seed=1, groups=3)
    seen = {}
    for t in range(90):
        cohort = draw(t, 1)
        for client in cohort.client_ids[cohort.dropped_at >= 0].tolist():
            seen.setdefault(client, set()).add(t % 3)
    assert all(len(turns) == 1 for turns in seen.values())
    # Each of a group of 10 takes part in 8 of 10 of its turns, and sizes are binomial.
    sizes = [int((draw(t, 1).dropped_at >= 0).sum()) for t in range(600)]
    assert abs(np.mean(sizes) - 8) < 5 * math.sqrt(1.6 / 600)
    assert math.isclose(np.var(sizes), 1.6, rel_tol=5 * math.sqrt(2 / 600))
    assert len(seen) == 30  # one of 31 is left out


AUDITED = {"delta": 1e-3, "num_canaries": 100, "num_runs": 100}


def limit(z, rounds=1, bands=1):
    return privacy.epsilon(z, rounds, cohort_size=300 // bands, num_clients=300, delta=1e-3,
                           bands=bands)


@pytest.mark.parametrize(("options", "rounds", "exchanges"), [
    ({}, 1, 1), ({}, 4, 1), ({}, 1, 3), ({"quantile": 0.5}, 3, 2), ({"bands": 3}, 6, 1),
])
def test_the_audit_of_the_right_mechanism_is_below_its_epsilon(options, rounds, exchanges):
    found = fedax.audit_privacy(
        lambda inner: fedax.private(inner, clip=0.7, noise_multiplier=1.5, **options),
        num_rounds=rounds, num_exchanges=exchanges, bands=options.get("bands", 1), **AUDITED,
    )
    bound = limit(1.5, rounds, options.get("bands", 1))
    assert 0.3 * bound < found.epsilon < bound


def broken(change):
    """private with a fault in each exchange."""

    def wrap(inner):
        made = fedax.private(inner, clip=0.7, noise_multiplier=1.5)
        return made._replace(exchanges=tuple(map(change, made.exchanges)))

    return wrap


@pytest.mark.quick
def test_the_audit_finds_noise_that_was_forgotten():
    found = fedax.audit_privacy(
        lambda inner: fedax.private(inner, clip=0.7, noise_multiplier=1e-3), **AUDITED
    )
    assert found.epsilon > limit(1.5)


@pytest.mark.slow
def test_the_audit_finds_clipping_per_exchange():
    """Of four exchanges each is clipped to what the round may upload, in place of half of that."""
    def change(exchange):
        def broadcast(state):
            message = exchange.broadcast(state)
            return message._replace(clip=message.clip * math.sqrt(4))

        return exchange._replace(broadcast=broadcast)

    found = fedax.audit_privacy(broken(change), num_exchanges=4, **AUDITED)
    assert found.epsilon > limit(1.5)


def test_the_audit_finds_weights_that_are_not_public():
    def change(exchange):
        def client(message, state, data, key):
            return exchange.client(message, state, data, key)._replace(weight=jnp.asarray(10.0))

        return exchange._replace(client=client)

    assert fedax.audit_privacy(broken(change), **AUDITED).epsilon > limit(1.5)


def test_client_states_of_a_client_that_does_not_count_stay():
    """SCAFFOLD's control of a client whose loss is NaN is as before."""
    arrays = {name: np.array(array, copy=True) for name, array in TASK.train.arrays.items()}
    first = TASK.train.offsets[1]
    name = next(k for k, a in arrays.items() if a.dtype.kind == "f")
    arrays[name][:first] = np.nan
    task = Task(MODEL, FederatedDataset(arrays, TASK.train.offsets), None, "spoilt")
    algorithm = fedax.private(method("scaffold"), clip=0.2, noise_multiplier=0.0)
    result = fedax.train(task, algorithm, num_rounds=2, sampling="full", evaluate_every=0,
                         progress=False)
    own = result.state.client_store.read(np.arange(N))
    for leaf in jax.tree.leaves(own):
        assert np.isfinite(np.asarray(leaf)).all()
        assert not np.asarray(leaf)[0].any()
        assert np.asarray(leaf)[1].any()
