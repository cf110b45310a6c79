"""PFedMe, IFCA and Per-FedAvg against NumPy written from the papers' algorithms."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from problems import identical, quadratic_model, quadratic_task

SIZES = (3, 7, 1, 12, 5, 8)
START = np.array([0.1, 0.0, -0.1])
TASK = quadratic_task(SIZES, start=list(START))
MODEL = TASK.model
COHORTS = np.stack([np.random.default_rng(t).permutation(6)[:4] for t in range(3)])
FULL = {"batch_size": 20, "num_local_steps": 3, "order": "sequential"}
PARTS = {"batch_size": 3, "num_local_epochs": 2, "order": "sequential"}
RANDOM = {"batch_size": 2, "num_local_epochs": 2, "weighting": "uniform"}


def trained(algorithm, cohorts=COHORTS, task=TASK, **options):
    return fedax.train(
        task, algorithm, num_rounds=len(cohorts), cohort_size=len(cohorts[0]),
        sampling=lambda seed, t: cohorts[t], **{"evaluate_every": 0} | options,
    )


def models_of(algorithm, result, task=TASK):
    """Each client's own model, [clients, 3]."""
    found = fedax.evaluate_own_models(task, algorithm, result.state, keep_params=True)
    return np.stack([own["x"] for own in found.params.values()])


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-14)


def quadratics(i, first=0, last=None):
    """Hessian A and gradient A x - b of the mean loss of a client's examples, as (A, b)."""
    arrays = TASK.train.client(i)
    A, c = arrays["A"][first:last], arrays["c"][first:last]
    return A.mean(0), np.einsum("nij,nj->i", A, c) / len(A)


def loss(i, x):
    arrays = TASK.train.client(i)
    gap = x - arrays["c"]
    return 0.5 * np.einsum("ni,nij,nj->n", gap, arrays["A"], gap).mean()


def walk(i, options):
    """The quadratics of a client's minibatches, in turn."""
    if options is FULL:
        return [quadratics(i)] * 3
    return 2 * [quadratics(i, k, k + 3) for k in range(0, SIZES[i], 3)]


# --------------------------------------------------------------------- pFedMe


@pytest.mark.quick
@pytest.mark.parametrize("options", [FULL, PARTS], ids=["full", "parts"])
def test_pfedme_is_dinh_et_als_algorithm_1(options):
    """Theta by K gradient steps on h(theta; w, D), then w - eta lambda (w - theta); beta."""
    eta, beta, lam, rho, K = 0.05, 0.8, 3.0, 0.1, 4
    algorithm = fedax.pfedme(MODEL, eta, beta, lam, rho, K, **options)
    result = trained(algorithm)
    x, own = START, np.tile(START, (6, 1))
    for cohort in COHORTS:
        ends = []
        for i in cohort:
            w = x
            for A, b in walk(i, options):
                theta = w
                for _ in range(K):
                    theta = theta - rho * (A @ theta - b + lam * (theta - w))
                w = w - eta * lam * (w - theta)
            own[i] = theta
            ends.append(w)
        x = (1 - beta) * x + beta * np.mean(ends, axis=0)
    close(result.params["x"], x)
    close(models_of(algorithm, result), own)


def test_with_many_inner_steps_pfedme_descends_the_moreau_envelopes():
    """Gradient lambda (w - prox(w)), with the prox in closed form."""
    eta, lam = 0.1, 2.0
    algorithm = fedax.pfedme(MODEL, eta, 1.0, lam, 0.2, 400, **FULL)
    result = trained(algorithm)
    x = START
    for cohort in COHORTS:
        ends = []
        for i in cohort:
            w, (A, b) = x, quadratics(i)
            for _ in range(3):
                w = w - eta * lam * (w - np.linalg.solve(A + lam * np.eye(3), b + lam * w))
            ends.append(w)
        x = np.mean(ends, axis=0)
    close(result.params["x"], x)


@pytest.mark.slow
def test_pfedme_with_one_inner_step_is_fedavg():
    """Theta = w - rho grad f(w), so w moves by eta lambda rho grad f(w)."""
    one = fedax.pfedme(MODEL, 0.1, 0.8, 4.0, 0.25, 1, **RANDOM)
    base = fedax.fedavg(MODEL, 0.1 * 4.0 * 0.25, 0.8, **RANDOM)
    close(trained(one).params["x"], trained(base).params["x"])


def test_with_a_large_lambda_pfedme_tends_to_fedavg():
    """Lambda (w - theta) tends to grad f(w) as 1 / lambda, with rho = 1 / lambda."""
    expected = trained(fedax.fedavg(MODEL, 0.1, **RANDOM)).params["x"]
    gaps = [
        np.abs(trained(fedax.pfedme(MODEL, 0.1, 1.0, lam, 1 / lam, 5, **RANDOM)).params["x"]
               - expected).max()
        for lam in (1e3, 1e5)
    ]
    assert 0 < gaps[1] < 1e-4
    assert 80 < gaps[0] / gaps[1] < 120


def test_with_lambda_0_the_server_stays_and_clients_train_alone():
    algorithm = fedax.pfedme(MODEL, 0.1, 1.0, 0.0, 0.1, 4, **FULL)
    result = trained(algorithm)
    assert identical(result.params["x"], jnp.asarray(START))
    own = models_of(algorithm, result)
    i = COHORTS[0][0]
    theta, (A, b) = START, quadratics(i)
    for _ in range(4):
        theta = theta - 0.1 * (A @ theta - b)
    close(own[i], theta)


# ----------------------------------------------------------------------- IFCA


@pytest.mark.quick
@pytest.mark.parametrize("options", [FULL, PARTS], ids=["full", "parts"])
def test_ifca_is_ghosh_et_als_algorithm_1_with_model_averaging(options):
    algorithm = fedax.ifca(MODEL, 0.1, 0.8, 3, initial_spread=1.0, **options)
    result = trained(algorithm)
    initial = algorithm.init({"x": jnp.asarray(START)})
    clusters = np.stack([cluster["x"] for cluster in initial.clusters])
    close(clusters[0], START)
    sizes = []
    for cohort in COHORTS:
        ends = [[] for _ in clusters]
        for i in cohort:
            j = np.argmin([loss(i, x) for x in clusters])
            x = clusters[j]
            for A, b in walk(i, options):
                x = x - 0.1 * (A @ x - b)
            ends[j].append(x)
        sizes.append([len(of_cluster) for of_cluster in ends])
        for j, of_cluster in enumerate(ends):
            if of_cluster:
                clusters[j] += 0.8 * (np.mean(of_cluster, axis=0) - clusters[j])
    assert max(sizes[-1]) < 4
    assert np.min(sizes) == 0
    found = np.stack([cluster["x"] for cluster in result.state.server_state.clusters])
    close(found, clusters)
    close(result.params["x"], clusters[np.argmax(sizes[-1])])
    close(result.history["largest_cluster"], np.max(sizes, axis=1) / 4)
    own = [clusters[np.argmin([loss(i, x) for x in clusters])] for i in range(6)]
    close(models_of(algorithm, result), own)


def test_ifca_averages_gradients():
    """Option I: theta_j - gamma / m sum_i s_ij g_i, with full gradients of all m clients."""
    options = FULL | {"num_local_steps": 1}
    algorithm = fedax.ifca(
        MODEL, 0.3, num_clusters=3, averaging="gradients", initial_spread=1.0, **options
    )
    everyone = np.stack([np.arange(6)] * 3)
    result = trained(algorithm, everyone)
    initial = algorithm.init({"x": jnp.asarray(START)})
    clusters = np.stack([cluster["x"] for cluster in initial.clusters])
    assert len({int(np.argmin([loss(i, x) for x in clusters])) for i in range(6)}) > 1
    for _ in everyone:
        step = np.zeros_like(clusters)
        for i in range(6):
            j = np.argmin([loss(i, x) for x in clusters])
            A, b = quadratics(i)
            step[j] += A @ clusters[j] - b
        clusters = clusters - 0.3 / 6 * step
    close(np.stack([c["x"] for c in result.state.server_state.clusters]), clusters)


@pytest.mark.slow
@pytest.mark.parametrize("weighting", ["uniform", "num_examples"])
@pytest.mark.parametrize("averaging", ["models", "gradients"])
def test_ifca_with_one_cluster_is_fedavg_to_the_bit(weighting, averaging):
    options = RANDOM | {"weighting": weighting}
    one = trained(fedax.ifca(MODEL, 0.1, 0.7, 1, averaging=averaging, **options))
    base = trained(fedax.fedavg(MODEL, 0.1, 0.7, **options))
    assert identical(one.params, base.params)
    assert (one.history["train_loss"] == base.history["train_loss"]).all()


def test_ifcas_clusters_begin_apart():
    """The given model, and others of the model's own initialisation, by the cluster's seed."""
    drawn = quadratic_model(3)
    params = drawn.init(jax.random.key(5))

    def initial(model, **options):
        algorithm = fedax.ifca(model, num_clusters=4, **options)
        return [np.asarray(one["x"]) for one in algorithm.init(params).clusters]

    first, again, other = initial(drawn), initial(drawn), initial(drawn, cluster_seed=1)
    assert identical(first, again)
    assert identical(first[0], np.asarray(params["x"]))
    assert identical(first[0], other[0])
    assert not any(identical(a, b) for a, b in itertools.combinations([*first, *other[1:]], 2))
    # A model whose initial arrays are not drawn: only the spread tells clusters apart.
    same = initial(MODEL)
    assert not any(identical(a, b) for a, b in itertools.combinations(same, 2))
    assert max(np.abs(one - START).max() for one in same[1:]) < 0.05


@pytest.mark.slow
def test_ifca_finds_two_groups_of_clients():
    """Clients around c and around -c; with one model for all, the loss stays high."""
    rng = np.random.default_rng(0)
    centre = np.array([2.0, -1.0, 1.0])
    data = fedax.FederatedDataset.from_clients([
        {"A": np.tile(np.eye(3), (5, 1, 1)), "c": side * centre + 0.1 * rng.normal(size=(5, 3))}
        for side in (1, -1) * 6
    ])
    task = fedax.Task(quadratic_model(3), data, data)
    algorithm = fedax.ifca(task.model, 0.3, num_clusters=2, **FULL)
    result = fedax.train(task, algorithm, num_rounds=20, cohort_size=12, evaluate_every=20)
    own = models_of(algorithm, result, task)
    assert np.abs(own - np.outer([1, -1] * 6, centre)).max() < 0.2
    last = result.history.rounds[-1]
    assert last["test_own_distance"] < 0.1
    assert last["test_distance"] > 5


def test_a_cluster_whose_loss_is_nan_is_not_chosen():
    """`argmin` alone would choose it."""
    def loss(params, batch, key):
        losses, weights = MODEL.loss(params, batch, key)
        return jnp.where(params["x"][0] == START[0], jnp.nan, losses), weights

    broken = MODEL._replace(loss=loss)
    algorithm = fedax.ifca(broken, 0.1, initial_spread=1.0, **FULL)
    result = trained(algorithm, task=TASK._replace(model=broken))
    first, second = result.state.server_state.clusters
    assert identical(first["x"], jnp.asarray(START))
    assert identical(result.params, second)


def test_ifca_says_what_it_needs():
    with pytest.raises(ValueError, match=r"num_clusters must be .* but is 0"):
        fedax.ifca(MODEL, num_clusters=0)
    with pytest.raises(fedax.AlgorithmError, match="pseudo-gradient"):
        trained(fedax.elastic(fedax.ifca(MODEL), MODEL))


# ----------------------------------------------------------------- Per-FedAvg


@pytest.mark.quick
@pytest.mark.parametrize("options", [FULL, PARTS], ids=["full", "parts"])
@pytest.mark.parametrize("version", ["FO", "HF"])
def test_perfedavg_is_fallah_et_als_algorithm_1(version, options):
    """W - beta (I - alpha H(w)) grad f(w - alpha grad f(w)), with H = 0 in FO.

    In the stored order a step's three minibatches are the same one.
    """
    beta, alpha, delta = 0.2, 0.3, 0.1
    algorithm = fedax.perfedavg(
        MODEL, beta, 0.9, alpha, version=version, difference=delta, num_personal_steps=2, **options
    )
    result = trained(algorithm)
    x = START
    for cohort in COHORTS:
        ends = []
        for i in cohort:
            w = x
            for A, b in walk(i, options):
                v = A @ (w - alpha * (A @ w - b)) - b
                w = w - beta * (v - (alpha * (A @ v) if version == "HF" else 0))
            ends.append(w)
        x = x + 0.9 * (np.mean(ends, axis=0) - x)
    np.testing.assert_allclose(result.params["x"], x, rtol=1e-12)
    own = np.stack([x] * 6)
    for i in range(6):
        A, b = quadratics(i)
        for _ in range(2):
            own[i] = own[i] - alpha * (A @ own[i] - b)
    np.testing.assert_allclose(models_of(algorithm, result), own, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["FO", "HF"])
def test_perfedavg_with_inner_rate_0_is_fedavg_to_the_bit(version):
    one = fedax.perfedavg(MODEL, 0.1, 0.7, 0.0, version=version, **RANDOM)
    assert identical(trained(one).params, trained(fedax.fedavg(MODEL, 0.1, 0.7, **RANDOM)).params)


@pytest.mark.slow
def test_perfedavgs_minibatches_are_drawn_independently():
    """One step on one example each: D' is FedAvg's, D and D'' any of the client's."""
    client, alpha, beta = 1, 0.3, 0.2
    A, c = (TASK.train.client(client)[name] for name in "Ac")
    options = {"batch_size": 1, "num_local_steps": 1}
    seen = set()
    for seed in range(12):
        algorithm = fedax.perfedavg(MODEL, beta, 1.0, alpha, version="HF", **options)
        found = trained(algorithm, np.array([[client]]), seed=seed).params["x"]
        plain = trained(fedax.fedavg(MODEL, beta, **options), np.array([[client]]), seed=seed)
        outer = np.argmin([
            np.abs(START - beta * a @ (START - b) - plain.params["x"]).max()
            for a, b in zip(A, c, strict=True)
        ])
        fits = []
        for d, h in itertools.product(range(7), repeat=2):
            v = A[outer] @ (START - alpha * A[d] @ (START - c[d]) - c[outer])
            fits.append(np.abs(START - beta * (v - alpha * A[h] @ v) - found).max())
        place = int(np.argmin(fits))
        assert fits[place] < 1e-9
        seen.add((int(outer), *divmod(place, 7)))
    assert len({d for _, d, _ in seen}) > 3
    assert len({h for _, _, h in seen}) > 3
    assert any(len(set(batches)) == 3 for batches in seen)


# ------------------------------------------------------------------ all three

ALL = {
    "pfedme": lambda gamma=0.1, eta=1.0: fedax.pfedme(MODEL, gamma, eta, batch_size=4),
    "ifca": lambda gamma=0.1, eta=1.0: fedax.ifca(
        MODEL, gamma, eta, batch_size=4, initial_spread=1.0
    ),
    "perfedavg": lambda gamma=0.1, eta=1.0: fedax.perfedavg(MODEL, gamma, eta, batch_size=4),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_a_run_continues_to_the_bit_and_reports_the_own_models(name):
    options = {"cohort_size": 3, "evaluate_every": 1}
    whole = list(fedax.simulate(TASK, ALL[name](), num_rounds=4, **options))
    first = list(fedax.simulate(TASK, ALL[name](), num_rounds=2, **options))
    rest = list(
        fedax.simulate(TASK, ALL[name](), num_rounds=4, state=first[-1].state, **options)
    )
    assert identical(whole[-1].state.server_state, rest[-1].state.server_state)
    assert whole[-1].metrics["test_own_distance"] == rest[-1].metrics["test_own_distance"]
    assert "test_own_mean_distance" in whole[-1].metrics


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pfedme", "ifca", "perfedavg"])
def test_the_last_arrays_may_be_personal(name):
    """`personal` finds the parameters wherever the method keeps or sends them."""
    model = fedax.models.mlp_classifier(4, [3], 2)
    rng = np.random.default_rng(0)
    data = fedax.FederatedDataset.from_clients([
        {"x": rng.normal(size=(6, 4)).astype(np.float32), "y": rng.integers(0, 2, 6)}
        for _ in range(4)
    ])
    algorithm = fedax.personal(getattr(fedax, name)(model, 0.1), model, where="1")
    task = fedax.Task(model, data, data)
    with jax.enable_x64(False):
        result = fedax.train(task, algorithm, num_rounds=2, cohort_size=4)
        base = fedax.communication(getattr(fedax, name)(model, 0.1), model, data.client_at(0))
        sent = fedax.communication(algorithm, model, data.client_at(0))
    copies = 2 if name == "ifca" else 1
    assert base.bytes_up - sent.bytes_up == copies * 4 * (2 * 3 + 2)
    assert np.isfinite(result.history.rounds[-1]["test_own_accuracy"])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "wrapper"), [
    pair for pair in itertools.product(ALL, ["top_k", "decay", "elastic"])
    if pair[0] != "ifca"  # which is refused
])
def test_own_models_are_measured_inside_a_wrapper(name, wrapper):
    """Rates that do not fall, and a code without errors, change nothing."""
    wrapped = {
        "top_k": lambda: fedax.compressed(ALL[name](), fedax.codecs.top_k(1.0)),
        "decay": lambda: fedax.local_update_decay(ALL[name], MODEL, 0.1, 1.0, window=100),
        "elastic": lambda: fedax.elastic(ALL[name](), MODEL),
    }[wrapper]()
    found, expected = (models_of(one, trained(one)) for one in (wrapped, ALL[name]()))
    if wrapper != "elastic":
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)
    assert np.isfinite(found).all()


@pytest.mark.parametrize(("wrap", "said"), [
    (lambda: fedax.compressed(ALL["ifca"](), fedax.codecs.top_k(0.5)),
     "left over for one cluster would be added to it after the client chose another"),
    (lambda: fedax.local_update_decay(ALL["ifca"], MODEL, 0.1, 1.0, window=3),
     "the loss would be that of one cluster's model on all clients"),
])
def test_wrappers_that_know_one_model_only_refuse_ifca(wrap, said):
    with pytest.raises(fedax.AlgorithmError, match=said):
        trained(wrap())


@pytest.mark.slow
def test_a_codec_leaves_the_clusters_alone():
    """A coarse code of s_ij would change the clusters' means; their changes it may code."""
    algorithm = fedax.compressed(ALL["ifca"](), fedax.codecs.qsgd(1))
    history = trained(algorithm).history["largest_cluster"]
    assert set(history) <= {0.25, 0.5, 0.75, 1.0}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "special"), [
    ("ifca", {"num_clusters": 1}), ("perfedavg", {"inner_learning_rate": 0.0}),
    ("pfedme", {"num_personal_steps": 1, "attraction": 4.0, "personal_learning_rate": 0.25}),
])
def test_the_proximal_weight_attracts_to_the_servers_model(name, special):
    """Where the method is FedAvg, it is FedProx."""
    algorithm = getattr(fedax, name)(MODEL, 0.1, proximal_weight=0.7, **special, **RANDOM)
    found = trained(algorithm).params["x"]
    base = fedax.fedprox(MODEL, 0.1, proximal_weight=0.7, **RANDOM)
    close(found, trained(base).params["x"])
