"""`fedax.robust_means` against their papers, and `fedax.robust` around every method."""

import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax import robust_means, train
from fedax.algorithms.registry import ALGORITHMS
from fedax.cli.main import run_command
from fedax.codecs import eden, identity, top_k
from fedax.robust_means import coordinates
from problems import identical, largest_difference, quadratic_model, quadratic_task

TASK = quadratic_task()
MODEL = TASK.model
LOCAL = {"batch_size": 2, "num_local_epochs": 1, "weighting": "uniform"}
MEANS = list(robust_means.ROBUST_MEANS)
INDIVIDUAL = [name for name in MEANS if name != "norm_bound"]
# The rules that are the uniform mean with these arguments.
AS_MEAN = {
    "trimmed_mean": robust_means.trimmed_mean(0.0), "multi_krum": robust_means.multi_krum(0.0),
    "centred_clipping": robust_means.centred_clipping(1e12),
    "norm_bound": robust_means.norm_bound(1e12),
}
SUMMED = [name for name in ALGORITHMS if name not in ("pfnm", "afl", "centralised", "fedopt")]


def made(name):
    return robust_means.ROBUST_MEANS[name]()


def run(algorithm, num_rounds=3, task=TASK, **options):
    options = {"cohort_size": 6, "evaluate_every": 0, "seed": 2} | options
    return train(task, algorithm, num_rounds=num_rounds, **options)


def combined(rule, uploads, weights=None):
    uploads = jnp.asarray(uploads)
    weights = jnp.ones(len(uploads)) if weights is None else jnp.asarray(weights)
    weights = weights.astype(uploads.dtype)
    if rule.each is not None:
        uploads = jax.vmap(rule.each)(uploads)
    if rule.combine is None:
        return np.asarray(weights @ uploads / weights.sum())
    memory = () if rule.init is None else rule.init(uploads[0])
    return np.asarray(rule.combine(uploads, weights, memory)[0])


# By hand, from the papers. u is [n, d], w [n].


def by_hand_trimmed_mean(u, w, share=0.2):
    b = min(int(np.ceil(share * len(u))), (len(u) - 1) // 2)
    columns = [sorted(column)[b : len(u) - b] for column in u.T]
    return np.array([sum(column) / len(column) for column in columns])


def by_hand_coordinate_median(u, w):
    return np.array([np.median(column) for column in u.T])


def by_hand_geometric_median(u, w, nu=1e-6, iterations=3):
    v = np.median(np.repeat(u, w.astype(int), 0), 0)
    for _ in range(iterations):
        betas = [w_i / max(nu, np.linalg.norm(v - u_i)) for u_i, w_i in zip(u, w, strict=True)]
        v = sum(beta * u_i for beta, u_i in zip(betas, u, strict=True)) / sum(betas)
    return v


def scores(u, share):
    n = len(u)
    f = min(int(np.ceil(share * n)), n - 1)
    found = []
    for i in range(n):
        squares = sorted(np.sum((u[i] - u[j]) ** 2) for j in range(n) if j != i)
        found.append(sum(squares[: max(n - f - 2, 1)]))
    return np.array(found), f


def by_hand_krum(u, w, share=0.2):
    return u[np.lexsort((np.linalg.norm(u, axis=1), scores(u, share)[0]))[0]]


def by_hand_multi_krum(u, w, share=0.2):
    found, f = scores(u, share)
    return u[np.lexsort((np.linalg.norm(u, axis=1), found))[: len(u) - f]].mean(0)


def by_hand_centred_clipping(u, w, tau=1.0):
    v = np.zeros(u.shape[1])
    return v + np.mean([(x - v) * min(1, tau / np.linalg.norm(x - v)) for x in u], 0)


def by_hand_norm_bound(u, w, bound=1.0):
    return np.average([x / max(1, np.linalg.norm(x) / bound) for x in u], axis=0, weights=w)


@pytest.mark.parametrize("name", MEANS)
def test_a_rule_is_its_papers(name):
    """To 1e-12, for odd and even numbers of clients; those of weight 0 are as if not there."""
    rng = np.random.default_rng(5)
    combine = jax.jit(lambda u, w: combined_traced(made(name), u, w))
    for n, absent in itertools.product((1, 2, 3, 8, 11), (0, 3)):
        u, w = rng.normal(size=(n, 4)), rng.integers(1, 9, n).astype(float)
        expected = globals()[f"by_hand_{name}"](u, w)
        places = np.sort(rng.choice(n + absent, n, replace=False))  # in order, as ties are
        rows, weights = np.zeros((n + absent, 4)), np.zeros(n + absent)
        rows[places], weights[places] = u, w
        np.testing.assert_allclose(combine(rows, weights), expected, atol=1e-12, rtol=1e-12)


def combined_traced(rule, uploads, weights):
    if rule.each is not None:
        uploads = jax.vmap(rule.each)(uploads)
    if rule.combine is None:
        return weights @ uploads / weights.sum()
    memory = () if rule.init is None else rule.init(uploads[0])
    return rule.combine(uploads, weights, memory)[0]


@pytest.mark.quick
def test_many_iterations_reach_the_geometric_median():
    """Its first-order condition: the weighted unit vectors to the uploads add up to 0."""
    rng = np.random.default_rng(0)
    u, w = rng.normal(size=(9, 3)), rng.uniform(1, 2, 9)
    v = combined(robust_means.geometric_median(num_iterations=500), u, w)
    units = (u - v) / np.linalg.norm(u - v, axis=1, keepdims=True)
    assert np.abs(w @ units).max() < 1e-9


@pytest.mark.slow
def test_a_median_of_majorities_is_the_majoritys():
    u = np.array([[1.0, 2.0]] * 6 + [[50.0, -7.0]] * 5)
    for name in ("coordinate_median", "geometric_median"):
        np.testing.assert_allclose(combined(made(name), u), [1, 2], atol=1e-5)


# Of 10 clients, how many may lie by the papers: fewer than half for medians; b or f with a share of
# 0.2; of clipping none breaks it, as each lie moves it by at most the bound / n.
BREAKDOWN = {
    "coordinate_median": 4, "geometric_median": 4, "trimmed_mean": 2, "krum": 2, "multi_krum": 2,
}


@pytest.mark.quick
@pytest.mark.parametrize("name", BREAKDOWN)
@pytest.mark.parametrize("size", [1e3, 1e9, 1e18])
def test_breakdown_points(name, size):
    rng = np.random.default_rng(1)
    honest = rng.normal(size=(10, 5))
    longest = np.linalg.norm(honest, axis=1).max()

    def found(lies, rule):
        u = honest.copy()
        u[10 - lies :] = size
        return np.linalg.norm(combined(rule, u.astype(np.float32)))

    assert found(BREAKDOWN[name], made(name)) <= 2 * longest
    most = {"krum": 9, "multi_krum": 3}.get(name, BREAKDOWN[name] + 2)
    assert found(most, made(name)) > size / 100


@pytest.mark.parametrize("rule", [
    robust_means.norm_bound(2.0), robust_means.centred_clipping(2.0),
    robust_means.centred_clipping(2.0, num_iterations=4)], ids=str)
def test_a_lie_moves_a_clipping_mean_by_at_most_its_bound(rule):
    honest = np.random.default_rng(1).normal(size=(10, 5)).astype(np.float32)
    iterations = fedax.factories.recipe(rule).arguments.get("num_iterations", 1)
    for size, lies in itertools.product((1e3, 1e18), (1, 2, 9)):
        u = honest.copy()
        u[:lies] = size
        moved = np.linalg.norm(combined(rule, u) - combined(rule, honest))
        assert moved <= 2 * 2.0 * iterations * lies / 10 + 1e-5
        assert np.linalg.norm(combined(rule, u)) <= 2.0 * iterations + 1e-5


@pytest.mark.slow
def test_identities():
    rng = np.random.default_rng(3)
    u = rng.normal(size=(9, 4))
    for name, rule in AS_MEAN.items():
        np.testing.assert_allclose(combined(rule, u), u.mean(0), atol=1e-14, err_msg=name)
    for name in INDIVIDUAL:
        if name == "centred_clipping":  # which begins at 0
            continue
        np.testing.assert_allclose(combined(made(name), np.tile(u[0], (9, 1))), u[0], rtol=1e-14)
        np.testing.assert_allclose(combined(made(name), u[:1]), u[0], rtol=1e-14)


@pytest.mark.parametrize("name", INDIVIDUAL)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_nobody_counts(name, dtype):
    uploads, weights = jnp.zeros((4, 3), dtype), jnp.zeros(4, dtype)
    rule = made(name)
    memory = () if rule.init is None else rule.init(uploads[0])
    found, memory = rule.combine(uploads, weights, memory)
    assert found.dtype == dtype
    assert np.isfinite(found).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["trimmed_mean", "multi_krum", "norm_bound", "centred_clipping"])
@pytest.mark.parametrize("method", ["fedadam", "scaffold", "mime"])
def test_without_its_bound_a_rule_is_the_method(name, method):
    """With weights that are equal, as the rules but norm_bound weigh all clients alike."""
    plain = ALGORITHMS[method].factory(MODEL, **LOCAL)
    same = run(fedax.robust(plain, AS_MEAN[name]))
    assert largest_difference(same.params, run(plain).params) < 1e-11


def method(name):
    if name == "maml":
        return fedax.maml(MODEL, 0.05, 0.1)
    if name in ("minibatch_sgd", "server_only"):
        return ALGORITHMS[name].factory(MODEL)
    where = {"where": ()} if name == "fedrep" else {}  # the model has one array
    return ALGORITHMS[name].factory(MODEL, **where, batch_size=2, num_local_epochs=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in SUMMED if n not in ("ifca", "term")])
def test_every_method_has_a_robust_mean(name):
    takes = name not in ("fednova", "fedexp", "qfedavg")  # these upload single numbers
    for rule in ("trimmed_mean", *["centred_clipping"] * takes):
        result = run(fedax.robust(method(name), made(rule)), 2)
        assert np.isfinite(result.params["x"]).all()


@pytest.mark.quick
@pytest.mark.parametrize("name", ["krum", "centred_clipping", "norm_bound"])
def test_resumed_and_in_chunks(name):
    """Killed and resumed to the bit, also with dropouts and a memory at the server."""
    algorithm = fedax.robust(fedax.scaffold(MODEL, **LOCAL), made(name))
    options = {"dropout": 0.3}
    whole, half = run(algorithm, 6, **options), run(algorithm, 3, **options)
    rest = run(algorithm, 6, state=half.state, **options)
    assert identical(whole.state.server_state, rest.state.server_state)
    chunks = run(algorithm, 6, clients_per_chunk=4, **options)
    assert largest_difference(whole.params, chunks.params) < 1e-12


@pytest.mark.parametrize("name", MEANS)
@pytest.mark.parametrize("dtype", [
    jnp.float32, pytest.param(jnp.bfloat16, marks=pytest.mark.slow)])
def test_a_client_that_is_rejected_is_as_if_not_there(name, dtype):
    """One uploads NaN, one what is too large to be squared; also in low precision."""
    plain = fedax.fedavg(MODEL, 0.1, **LOCAL)
    (exchange,) = plain.exchanges

    def client(message, state, data, key):
        reply = exchange.client(message, state, data, key)
        # What is too large is clipped by a norm bound before it is looked at.
        large = jnp.nan if name == "norm_bound" else 1e30
        spoilt = jnp.select([data.client_id == 3, data.client_id == 5], [jnp.nan, large], 0.0)
        return reply._replace(
            upload=jax.tree.map(lambda u: u + spoilt.astype(u.dtype), reply.upload)
        )

    spoilt = plain._replace(exchanges=(exchange._replace(client=client),))
    key, reader = jax.random.key(0), fedax.CohortReader(TASK.train)
    start = jax.tree.map(lambda leaf: leaf.astype(dtype), MODEL.init(key))
    states = []
    for algorithm, ids in ((spoilt, [1, 3, 4, 5, 7, 8, 9]), (plain, [1, 4, 7, 8, 9])):
        wrapped = fedax.robust(algorithm, made(name))
        cohort = reader(np.array(ids))
        cohort = cohort.with_arrays({k: v.astype(dtype) for k, v in cohort.arrays.items()})
        round_ = jax.jit(lambda s, c, a=wrapped: fedax.run_round(a, s, (), c, key)[0])
        states.append(round_(wrapped.init(start), cohort))
    assert states[0].params["x"].dtype == dtype
    difference = largest_difference(states[0].params, states[1].params)
    assert difference < (1e-5 if dtype == jnp.float32 else 1e-2)


@pytest.mark.slow
def test_a_round_in_which_nobody_counts_changes_nothing():
    plain = fedax.fedadam(MODEL, **LOCAL)
    (exchange,) = plain.exchanges
    silent = plain._replace(exchanges=(exchange._replace(
        client=lambda *a: exchange.client(*a)._replace(weight=jnp.zeros(()))
    ),))
    for name in ("centred_clipping", "multi_krum"):
        algorithm = fedax.robust(silent, made(name))
        before = algorithm.init(MODEL.init(jax.random.key(0)))
        cohort = fedax.CohortReader(TASK.train)(np.arange(4))
        after = fedax.run_round(algorithm, before, (), cohort, jax.random.key(1))[0]
        assert identical(after.params, before.params)
        assert identical(after.own, before.own)


def test_centred_clipping_remembers_the_last_mean_of_each_exchange():
    algorithm = fedax.robust(
        fedax.mime(MODEL, **LOCAL), robust_means.centred_clipping(1e6)
    )
    own = run(algorithm, 2).state.server_state.own
    assert [memory.shape for memory in own] == [(3,), (3,)]
    assert all(np.abs(memory).max() > 0 for memory in own)


@pytest.mark.slow
def test_around_and_inside_other_wrappers():
    plain = fedax.fedavg(MODEL, **LOCAL)
    rule, bound = robust_means.coordinate_median(), robust_means.norm_bound(0.5)
    for algorithm in (
        fedax.robust(fedax.compressed(plain, eden(2)), rule),
        fedax.robust(fedax.compressed(plain, top_k(0.5)), robust_means.centred_clipping()),
        fedax.robust(fedax.elastic(plain, MODEL), rule),
        fedax.robust(fedax.personal(plain, MODEL, ()), rule),
        fedax.robust(fedax.local_update_decay(
            lambda c, s: fedax.fedavg(MODEL, c, s, **LOCAL), MODEL), rule),
        fedax.robust(fedax.robust(plain, bound), rule),
        fedax.compressed(fedax.robust(plain, bound), eden(2)),
        fedax.elastic(fedax.robust(plain, bound), MODEL),
        fedax.local_update_decay(
            lambda c, s: fedax.robust(fedax.fedavg(MODEL, c, s, **LOCAL), bound), MODEL),
    ):  # fmt: skip
        assert np.isfinite(run(algorithm, 2).params["x"]).all()
    coded = run(fedax.robust(fedax.compressed(plain, identity()), rule), 3)
    assert identical(coded.params, run(fedax.robust(plain, rule), 3).params)


@pytest.mark.parametrize("name", MEANS)
def test_rules_of_lengths_take_no_numbers_beside_the_change(name):
    """K_i is most of (d_i / K_i, K_i): norm_bound(1) made FedNova's step 1/400 of FedAvg's."""
    algorithm = fedax.robust(fedax.fednova(MODEL, **LOCAL), made(name))
    if made(name).by_coordinate:
        assert np.isfinite(run(algorithm, 1).params["x"]).all()
        return
    with pytest.raises(fedax.AlgorithmError, match=r"how long an upload is.*'num_steps'"):
        run(algorithm, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scaffold", "scaffnew"])
def test_clipping_takes_methods_with_control_variates_elsewhere(name):
    """As the documentation says: what is clipped is missing in the server's variate for ever.

    40 clients with 1/2 |x - c_i|^2, all in every round, full gradients: both methods come to the
    mean of the c_i without clipping, as FedAvg does, whose limit clipping moves a little.
    """
    targets = np.random.default_rng(1).normal(1.0, 1.0, (40, 20))
    data = fedax.FederatedDataset.from_clients({
        str(i): {"A": np.eye(20)[None], "c": c[None]} for i, c in enumerate(targets)})
    task = quadratic_task()._replace(model=quadratic_model(20), train=data, test=data)
    start = np.linalg.norm(targets.mean(0))

    def distance(method, **options):
        algorithm = getattr(fedax, method)(task.model, 0.1, batch_size=1, **options)
        ends = [
            run(one, 300, task, sampling="full", cohort_size=40).params["x"]
            for one in (algorithm, fedax.robust(algorithm, robust_means.norm_bound(1.0)))
        ]
        return [np.linalg.norm(end - targets.mean(0)) for end in ends]

    options = {"scaffold": {"num_local_steps": 5}, "scaffnew": {"communication_probability": 0.5}}
    plain, clipped = distance(name, weighting="uniform", **options[name])
    _, without = distance("fedavg", weighting="uniform", num_local_steps=5)
    assert plain < 1e-3
    assert clipped > max(0.1 * start, 3 * without)


@pytest.mark.slow
def test_the_geometric_median_begins_where_half_of_the_weight_is():
    """Six liars with 1.5% of the weight and one upload: their median of coordinates is -100."""
    uploads = np.array([[0.9], [1.0], [1.1], [1.0], *[[-100.0]] * 6])
    weights = np.array([100.0] * 4 + [1.0] * 6)
    (found,) = combined(robust_means.geometric_median(), uploads, weights)
    assert found == pytest.approx(1, abs=0.1)


@pytest.mark.quick
def test_the_weighted_median_of_coordinates():
    u = jnp.array([[1.0, 8.0], [2.0, 6.0], [3.0, 4.0], [9.0, 9.0]])
    for weights, expected in (
        ((1, 1, 1, 0), (2, 6)),  # the usual one, without the last
        ((1, 1, 1, 1), (2.5, 7)),
        ((5, 1, 1, 0), (1, 8)),
        ((2, 1, 1, 0), (1.5, 7)),  # half of the weight is at most 1, half at least 2
        ((0, 0, 0, 7), (9, 9)),
    ):
        found = coordinates.weighted_median(u, jnp.asarray(weights, float))
        assert found.tolist() == list(expected), weights


@pytest.mark.slow
def test_what_a_server_reports_is_of_the_robust_mean():
    algorithm = fedax.robust(fedax.fedexp(MODEL, **LOCAL), robust_means.coordinate_median())
    assert np.isfinite(run(algorithm, 2).history["server_step"]).all()


@pytest.mark.slow
def test_what_cannot_be_is_refused_with_a_sentence():
    plain, rule = fedax.fedavg(MODEL, **LOCAL), robust_means.krum()
    clipping = robust_means.centred_clipping()
    network = fedax.load_task("digits").model
    for algorithm, words in (
        (fedax.pfnm(network), "sees them one by one"),
        (fedax.afl(MODEL), "sees them one by one"),
        (fedax.robust(plain, rule), "sees them one by one"),
        (fedax.centralised(MODEL), "the pool of all examples"),
    ):
        with pytest.raises(ValueError, match=words):
            fedax.robust(algorithm, rule)
    robust = fedax.robust(plain, rule)
    for wrap in (
        lambda: fedax.compressed(robust),
        lambda: fedax.personal(robust, network, "1"),
        lambda: fedax.local_update_decay(lambda c, s: robust, MODEL),
        lambda: fedax.batch_statistics(robust, network, "1", lambda p, b, m: p),
    ):
        with pytest.raises(ValueError, match=r"one by one|averag"):
            wrap()
    with pytest.raises(TypeError, match="mean must be one of"):
        fedax.robust(plain, "krum")
    decayed = fedax.local_update_decay(lambda c, s: fedax.fedavg(MODEL, c, s, **LOCAL), MODEL)
    for algorithm, words in (
        (fedax.robust(fedax.ifca(MODEL), rule), "clusters would outvote"),
        (fedax.robust(fedax.term(MODEL), robust_means.coordinate_median()), "say themselves"),
        (fedax.robust(decayed, clipping), r"how long an upload is.*'loss'"),
        (fedax.robust(fedax.fedexp(MODEL), rule), "'squared_norm'"),
        (fedax.elastic(robust, MODEL), "uploads one by one"),
    ):
        with pytest.raises(fedax.AlgorithmError, match=words):
            run(algorithm, 1)
    (exchange,) = plain.exchanges
    own = plain._replace(exchanges=(exchange._replace(
        client=lambda *a: exchange.client(*a)._replace(upload={"x": jnp.zeros((3, 2))}),
        server=lambda state, mean, participation: state,
    ),))
    with pytest.raises(fedax.AlgorithmError, match="upload=function"):
        run(fedax.robust(own, clipping), 1)
    run(fedax.robust(own, rule), 1)


@pytest.mark.quick
@pytest.mark.parametrize(("name", "word", "values"), [
    ("trimmed_mean", "share", (-0.1, 0.5)), ("krum", "share", (-0.1, 0.5)),
    ("multi_krum", "share", (0.5,)), ("geometric_median", "smoothing", (0.0,)),
    ("geometric_median", "num_iterations", (0,)), ("centred_clipping", "radius", (0.0,)),
    ("centred_clipping", "num_iterations", (0,)), ("norm_bound", "bound", (0.0, -1.0)),
])
def test_arguments_out_of_range(name, word, values):
    for value in values:
        with pytest.raises(ValueError, match=word):
            robust_means.ROBUST_MEANS[name](**{word: value})


@pytest.mark.slow
def test_shares_of_a_sweep_are_one_program():
    def build(share):
        return fedax.robust(fedax.fedavg(MODEL, **LOCAL), robust_means.trimmed_mean(share))

    assert len({fedax.partition(build(share))[1] for share in (0.0, 0.1, 0.4)}) == 1
    swept = fedax.sweep(
        TASK, build, {"share": [0.0, 0.4]}, num_rounds=3, cohort_size=6, seeds=2,
        evaluate_every=0, progress=False,
    )
    for place, share in enumerate((0.0, 0.4)):
        alone = run(build(share), seed=0)
        losses = swept.record.metrics["train_loss"][2 * place]
        np.testing.assert_allclose(losses, alone.history["train_loss"], rtol=1e-10)


@pytest.mark.quick
def test_by_name_on_the_command_line(tmp_path, capsys):
    out = tmp_path / "run"
    line = ["run", "quadratics", "robust+attacked+fedadam", "--rounds", "3", "--out", str(out),
            "--set", "mean=krum(0.3)", "attack=gaussian(10)", "share=0.3"]
    assert run_command(line) == 0, capsys.readouterr().err
    options = json.loads((out / "config.json").read_text())["algorithm_options"]
    assert options["mean"] == "krum(0.3)"
    assert options["attack"] == "gaussian(10)"
    assert run_command([*line[:6], str(tmp_path / "other"), "--set", "mean=crum(0.2)"]) == 2
    assert "krum" in capsys.readouterr().err


@pytest.mark.quick
@pytest.mark.parametrize("name", MEANS)
def test_the_clients_order_does_not_matter(name):
    """Several devices have another one. Of two or four clients some are each other's nearest."""
    rng = np.random.default_rng(7)
    for n in (2, 4, 9):
        u, w = jnp.asarray(rng.normal(size=(n, 3))), jnp.asarray(rng.integers(1, 9, n), float)
        first = combined_traced(made(name), u, w)
        for _ in range(5):
            order = rng.permutation(n)
            again = combined_traced(made(name), u[order], w[order])
            np.testing.assert_allclose(again, first, rtol=1e-12, atol=1e-12)
