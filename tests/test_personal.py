"""Personal arrays and the clients' own models, against NumPy written from the papers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax import Model, Task
from fedax.models.parameters import named_leaves
from problems import identical, largest_difference, quadratic_clients

SIZES = (3, 7, 1, 12, 5, 8)
DATA = quadratic_clients(SIZES)
START = {"u": jnp.asarray([0.1]), "v": jnp.asarray([0.0, -0.1])}
COHORTS = np.stack([np.random.default_rng(t).permutation(6)[:4] for t in range(3)])
FULL = {"batch_size": 20, "num_local_steps": 3, "order": "sequential"}


def model(separable=False):
    """(x - c)^T A (x - c) / 2 of x = (u, v); separable: without the products of u and v."""

    def loss(params, batch, key):
        del key
        gap = jnp.concatenate([params["u"], params["v"]])[None, :] - batch["c"]
        matrix = batch["A"]
        if separable:
            matrix = matrix.at[:, 0, 1:].set(0).at[:, 1:, 0].set(0)
        values = 0.5 * jnp.einsum("bi,bij,bj->b", gap, matrix, gap)
        return values, jnp.ones_like(values)

    def outputs(params, batch):
        x = jnp.concatenate([params["u"], params["v"]])
        return jnp.broadcast_to(x[None, :], batch["c"].shape)

    def distance(outputs, batch):
        values = ((outputs - batch["c"]) ** 2).sum(1)
        return values, jnp.ones_like(values)

    return Model(lambda key: START, loss, outputs, {"distance": distance})


MODEL = model()
TASK = Task(MODEL, DATA, DATA, "two blocks")


def trained(algorithm, cohorts=COHORTS, task=TASK, **options):
    return fedax.train(
        task, algorithm, num_rounds=len(cohorts), cohort_size=len(cohorts[0]),
        sampling=lambda seed, t: cohorts[t], **{"evaluate_every": 0} | options,
    )


def models_of(algorithm, result, task=TASK):
    """Each client's own model, [clients, 3]."""
    found = fedax.evaluate_own_models(task, algorithm, result.state, keep_params=True)
    return np.stack([np.concatenate([own["u"], own["v"]]) for own in found.params.values()])


def flat(params):
    return np.concatenate([params["u"], params["v"]])


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-14)


def gradient(i, x):
    """Of all of client i's examples."""
    first, last = DATA.offsets[i], DATA.offsets[i + 1]
    A, c = (DATA.arrays[name][first:last] for name in ("A", "c"))
    return np.mean([a @ (x - b) for a, b in zip(A, c, strict=True)], axis=0)


def share(cohort):
    sizes = np.asarray(SIZES)[cohort]
    return sizes / sizes.sum()


@pytest.mark.quick
def test_fedper_is_arivazhagan_et_als_algorithm():
    """Each client trains (u, v_i) by SGD; the server averages u by the numbers of examples."""
    algorithm = fedax.personal(fedax.fedavg(MODEL, 0.3, **FULL), MODEL, "v")
    result = trained(algorithm)
    u, v = np.array([0.1]), np.tile([0.0, -0.1], (6, 1))
    for cohort in COHORTS:
        ends = []
        for i in cohort:
            x = np.concatenate([u, v[i]])
            for _ in range(3):
                x = x - 0.3 * gradient(i, x)
            ends.append(x[:1])
            v[i] = x[1:]
        u = share(cohort) @ np.stack(ends)
    close(result.params["u"], u)
    close(models_of(algorithm, result), np.concatenate([np.tile(u, (6, 1)), v], axis=1))
    assert identical(result.params["v"], START["v"])


BASES = {
    "fedavg": lambda m: fedax.fedavg(m, 0.3, 0.5, **FULL),
    "fedadam": lambda m: fedax.fedadam(m, 0.3, 0.1, **FULL),
    "scaffold": lambda m: fedax.scaffold(m, 0.3, **FULL),
    "mime": lambda m: fedax.mime(m, 0.1, **FULL),
    "feddyn": lambda m: fedax.feddyn(m, 0.1, **FULL),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BASES)
def test_each_client_is_a_federation_of_its_own_on_personal_arrays(name):
    """Without products of u and v, u is the base method's, and v_i is that of client i alone."""
    apart = model(separable=True)
    task, base = TASK._replace(model=apart), BASES[name](apart)
    everyone = np.stack([np.arange(6)] * 3)
    result = trained(fedax.personal(base, apart, "v"), everyone, task)
    together = trained(base, everyone, task)
    assert identical(result.params["u"], together.params["u"])
    one = 3
    alone = task._replace(train=fedax.FederatedDataset.from_clients([DATA.client_at(one)]))
    own = models_of(fedax.personal(base, apart, "v"), result, task)
    expected = trained(base, np.zeros((3, 1), int), alone)
    close(own[one, 1:], expected.params["v"])


def test_nothing_personal_is_the_wrapped_algorithm():
    base = fedax.scaffold(MODEL, 0.3, **FULL)
    assert identical(trained(fedax.personal(base, MODEL, ())).params, trained(base).params)


@pytest.mark.parametrize(
    ("base", "message"),
    [(fedax.afl, "one by one"), (fedax.centralised, "pool of all examples")],
)
def test_a_server_that_does_not_average_is_refused(base, message):
    with pytest.raises(ValueError, match=message):
        fedax.personal(base(MODEL), MODEL, "v")


def test_what_cannot_be_personal_is_refused():
    base = fedax.fedavg(MODEL)
    with pytest.raises(ValueError, match="must leave some arrays to share"):
        fedax.personal(base, MODEL, lambda name: True)
    with pytest.raises(ValueError, match="'head', but the model has no such array"):
        fedax.personal(base, MODEL, "head")


@pytest.mark.parametrize("make", [
    lambda **where: fedax.personal(fedax.fedavg(MODEL), MODEL, **where),
    lambda **where: fedax.fedrep(MODEL, **where),
], ids=["personal", "fedrep"])
def test_a_choice_of_nothing_is_refused(make):
    """It would train the base method; `()` says that this is meant."""
    for where in ({}, {"where": " , "}, {"where": lambda name: "norm" in name}):
        with pytest.raises(ValueError, match=r"nothing would be personal.*where='u'.*'u', 'v'"):
            make(**where)
    assert make(where=()).own_model is make(where="()").own_model is None


def test_personal_elastic_reports_the_share_of_shared_arrays():
    """Zeros in place of personal arrays' sensitivity would count as moving further."""
    both = MODEL._replace(outputs=lambda params, batch: (
        batch["c"] * jnp.concatenate([params["u"], params["v"]])[None, :]
    ))
    algorithm = fedax.elastic(fedax.fedavg(both, 0.1, **FULL), both, 0.5)
    result = trained(
        fedax.personal(algorithm, both, "v"), task=TASK._replace(model=both)
    )
    # Of one shared number, which is the most sensitive one: zeta = 0.5.
    assert result.history["boosted_share"].tolist() == [0, 0, 0]


def test_a_report_gets_none_for_personal_arrays():
    base = fedax.fedavg(MODEL, 0.1, **FULL)

    def report(mean):
        assert mean.pseudo_gradient["v"] is None
        return {"moved": mean.pseudo_gradient["u"][0]}

    base = base._replace(exchanges=(base.exchanges[0]._replace(report=report),))
    result = trained(fedax.personal(base, MODEL, "v"))
    assert np.isfinite(result.history["moved"]).all()
    assert (trained(fedax.personal(fedax.fedexp(MODEL, **FULL), MODEL, "v"))
            .history["server_step"] >= 1).all()


def test_fedexp_extrapolates_by_the_shared_arrays_alone():
    """d_i are those of u: personal arrays, which move far and are never averaged, took eta to 233.

    Three clients with one u and far v_i: all u move alike, so eta = max(1, 1/2) = 1.
    """
    data = fedax.FederatedDataset.from_clients({
        str(i): {"A": np.tile(np.eye(3), (2, 1, 1)), "c": np.array([[1.0, 10.0 * i, 5.0]] * 2)}
        for i in (1, 2, 3)
    })
    task = Task(MODEL, data, data, "far apart")
    algorithm = fedax.personal(fedax.fedexp(MODEL, 0.1, **FULL), MODEL, "v")
    result = trained(algorithm, np.tile(np.arange(3), (2, 1)), task)
    assert result.history["server_step"].tolist() == [1, 1]
    u = 0.1
    for _ in range(6):  # three local steps a round
        u -= 0.1 * (u - 1)
    close(result.params["u"], [u])


@pytest.mark.parametrize("name", ["ditto", "apfl"])
def test_weighting_uniform_is_the_papers_mean_and_the_docstring_says_so(name):
    """Both papers average the models of the round's clients with equal weights."""
    factory = getattr(fedax, name)
    result = trained(factory(MODEL, 0.3, weighting="uniform", **FULL))
    x = flat(START)
    for cohort in COHORTS:
        ends = []
        for i in cohort:
            y = x
            for _ in range(3):
                y = y - 0.3 * gradient(i, y)
            ends.append(y)
        x = np.mean(ends, axis=0)
    close(flat(result.params), x)
    assert 'the paper\'s mean is weighting="uniform"' in " ".join(factory.__doc__.split())


def wrapped(wrapper, algorithm):
    """One wrapper around another algorithm."""
    if wrapper == "local_update_decay":
        return fedax.local_update_decay(lambda gamma, eta: algorithm, MODEL, 0.1, 1.0, window=2)
    return {
        "elastic": lambda: fedax.elastic(algorithm, MODEL),
        "compressed": lambda: fedax.compressed(algorithm, fedax.codecs.top_k(0.5)),
        "downlink": lambda: fedax.compressed(algorithm, downlink=fedax.codecs.sign()),
        "personal": lambda: fedax.personal(algorithm, MODEL, "u"),
    }[wrapper]()


FEDPER = fedax.personal(fedax.fedavg(MODEL, 0.1, **FULL), MODEL, "v")


@pytest.mark.parametrize(("wrapper", "words"), [
    ("compressed", "Put compressed outside"), ("downlink", "Put compressed outside"),
    ("local_update_decay", "each client would lower the rates by itself"),
])
def test_wrappers_that_would_act_on_each_client_apart_go_outside(wrapper, words):
    with pytest.raises(ValueError, match=words):
        fedax.personal(wrapped(wrapper, fedax.fedavg(MODEL, 0.1)), MODEL, "v")
    with pytest.raises(ValueError, match="Name all of them in one where"):
        fedax.personal(FEDPER, MODEL, "u")


@pytest.mark.parametrize(("wrapper", "words"), [
    ("elastic", r"Put it outside: personal\(elastic"), ("downlink", "Leave out downlink"),
    ("local_update_decay", "cannot measure the loss"),
])
def test_wrappers_that_need_the_whole_model_say_so(wrapper, words):
    with pytest.raises(fedax.AlgorithmError, match=words):
        trained(wrapped(wrapper, FEDPER))


@pytest.mark.slow
@pytest.mark.parametrize("inner", ["fedper", "ditto", "apfl"])
@pytest.mark.parametrize("codec", ["identity", "top_k"])
def test_own_models_are_measured_under_a_codec(inner, codec):
    """A code without errors changes nothing; one with a memory changes what is uploaded."""
    algorithm = {
        "fedper": FEDPER, "ditto": fedax.ditto(MODEL, 0.1, attraction=0.5, **FULL),
        "apfl": fedax.apfl(MODEL, 0.1, mixture=0.5, **FULL),
    }[inner]
    codec = {"identity": fedax.codecs.identity, "top_k": lambda: fedax.codecs.top_k(1.0)}[codec]()
    coded = fedax.compressed(algorithm, codec)
    found, expected = (models_of(one, trained(one)) for one in (coded, algorithm))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


def test_a_codec_counts_shared_arrays_only():
    coded = fedax.compressed(FEDPER, fedax.codecs.identity())
    whole = fedax.compressed(fedax.fedavg(MODEL, 0.1, **FULL), fedax.codecs.identity())
    up, all_up = (
        fedax.communication(one, MODEL, DATA.client_at(0)).bytes_up for one in (coded, whole)
    )
    assert all_up - up == 2 * 8  # v has two numbers


@pytest.mark.quick
def test_only_shared_arrays_are_sent_and_only_personal_ones_are_kept():
    algorithm = fedax.personal(fedax.scaffold(MODEL), MODEL, "v")
    sent = fedax.communication(algorithm, MODEL, DATA.client_at(0))
    number = 8  # float64: u and its control, the learning rate; and the round, int32
    assert (sent.bytes_down, sent.bytes_up) == (3 * number + 4, 2 * number)
    state = algorithm.init_client(START)
    floats = [leaf.size for leaf in jax.tree.leaves(state) if leaf.dtype == float]
    # v and the server's control of it; the client's control of all.
    assert sum(floats) == 2 + 2 + 3
    assert all("arrays" in name or "inner" in name or "round" in name
               for name in named_leaves(state))


def test_a_client_that_was_not_drawn_has_the_initial_personal_arrays():
    algorithm = fedax.personal(fedax.fedavg(MODEL, 0.3, **FULL), MODEL, "v")
    result = trained(algorithm, np.array([[1, 4]]))
    own = models_of(algorithm, result)
    moved = (own[:, 1:] != np.asarray(START["v"])).any(1)
    assert moved.tolist() == [False, True, False, False, True, False]
    assert (own[:, 0] == result.params["u"][0]).all()
    assert len(result.state.client_store) == 2


def test_a_client_that_drops_out_keeps_its_personal_arrays():
    """With two exchanges: some clients drop out between them."""
    algorithm = fedax.personal(fedax.mime(MODEL, 0.1, **FULL), MODEL, "v")
    result = trained(algorithm, np.array([np.arange(6)]), dropout=0.5)
    dropped = int(result.history["num_dropped"][0])
    moved = (models_of(algorithm, result)[:, 1:] != np.asarray(START["v"])).any(1)
    assert 0 < dropped < 6
    assert int(moved.sum()) == 6 - dropped


@pytest.mark.slow
def test_a_run_continues_to_the_bit_and_reports_the_own_models():
    algorithm = fedax.ditto(MODEL, 0.3, attraction=0.5, batch_size=4)
    options = {"cohort_size": 3, "evaluate_every": 1}
    whole = list(fedax.simulate(TASK, algorithm, num_rounds=4, **options))
    first = list(fedax.simulate(TASK, algorithm, num_rounds=2, **options))
    rest = list(
        fedax.simulate(TASK, algorithm, num_rounds=4, state=first[-1].state, **options)
    )
    names = [name for name in whole[-1].metrics if name.startswith("test_own")]
    assert names == ["test_own_distance", "test_own_mean_distance"]
    for a, b in zip(whole[2:], rest, strict=True):
        assert [a.metrics[name] for name in names] == [b.metrics[name] for name in names]
    assert identical(
        whole[-1].state.client_store.read(np.arange(6)),
        rest[-1].state.client_store.read(np.arange(6)),
    )


def test_own_models_are_measured_in_groups_as_one_by_one():
    """70 clients are two groups; of 70 the worst tenth are seven."""
    rng = np.random.default_rng(0)
    many = quadratic_clients(rng.integers(1, 5, 70))
    task = Task(MODEL, many, many)
    algorithm = fedax.personal(fedax.fedavg(MODEL, 0.3, **FULL), MODEL, "v")
    result = fedax.train(task, algorithm, num_rounds=2, cohort_size=30)
    found = fedax.evaluate_own_models(task, algorithm, result.state, keep_params=True)
    total, each = 0.0, []
    for place, name in enumerate(found.names.tolist()):
        c = many.client_at(place)["c"]
        values = ((flat(found.params[name]) - c) ** 2).sum(1)
        total += values.sum()
        each.append(values.mean())
    close(found["distance"], each)
    last = result.history.rounds[-1]
    close(last["test_own_distance"], total / many.num_examples)
    close(last["test_own_mean_distance"], np.mean(each))
    close(last["test_own_worst_tenth_distance"], np.mean(np.sort(each)[-7:]))
    server = np.asarray(flat(result.params))
    close(found.before["distance"][3], ((server - many.client_at(3)["c"]) ** 2).sum(1).mean())


def test_a_method_without_own_models_says_so():
    algorithm = fedax.fedavg(MODEL)
    result = trained(algorithm, COHORTS[:1], evaluate_every=1)
    assert not any("own" in name for name in result.history.rounds[-1])
    with pytest.raises(ValueError, match="do not have models of their own"):
        fedax.evaluate_own_models(TASK, algorithm, result.state)


# --------------------------------------------------------------------- FedRep


@pytest.mark.quick
def test_fedrep_is_collins_et_als_algorithm_1():
    """The head's tau steps with u fixed, then the representation's with v fixed."""
    algorithm = fedax.fedrep(MODEL, "v", 0.3, num_head_steps=4, **FULL)
    result = trained(algorithm)
    u, v = np.array([0.1]), np.tile([0.0, -0.1], (6, 1))
    for cohort in COHORTS:
        ends = []
        for i in cohort:
            for _ in range(4):
                v[i] = v[i] - 0.3 * gradient(i, np.concatenate([u, v[i]]))[1:]
            own = u
            for _ in range(3):
                own = own - 0.3 * gradient(i, np.concatenate([own, v[i]]))[:1]
            ends.append(own)
        u = np.mean(ends, axis=0)
    close(result.params["u"], u)
    close(models_of(algorithm, result), np.concatenate([np.tile(u, (6, 1)), v], axis=1))


def test_fedrep_without_a_head_is_fedavg():
    one = fedax.fedrep(MODEL, (), 0.3, weighting="num_examples", **FULL)
    assert identical(trained(one).params, trained(fedax.fedavg(MODEL, 0.3, **FULL)).params)


# ---------------------------------------------------------------------- Ditto


@pytest.mark.quick
def test_ditto_is_li_et_als_algorithm_1():
    algorithm = fedax.ditto(MODEL, 0.3, 0.8, attraction=0.7, **FULL)
    result = trained(algorithm)
    x, own = flat(START), np.tile(flat(START), (6, 1))
    for cohort in COHORTS:
        ends = []
        for i in cohort:
            y = x
            for _ in range(3):
                y = y - 0.3 * gradient(i, y)
                own[i] = own[i] - 0.3 * (gradient(i, own[i]) + 0.7 * (own[i] - x))
            ends.append(y)
        x = x + 0.8 * (share(cohort) @ np.stack(ends) - x)
    close(flat(result.params), x)
    close(models_of(algorithm, result), own)


@pytest.mark.slow
def test_dittos_server_model_is_fedavgs():
    options = {"batch_size": 2, "num_local_epochs": 2}
    ditto = trained(fedax.ditto(MODEL, 0.3, attraction=0.7, **options))
    assert identical(ditto.params, trained(fedax.fedavg(MODEL, 0.3, **options)).params)
    assert largest_difference(ditto.params, START) > 0.1


# ----------------------------------------------------------------------- APFL


@pytest.mark.quick
@pytest.mark.parametrize("rate", [None, 0.2])
def test_apfl_is_deng_et_als_algorithm_1(rate):
    """Both models move at once; with a rate for alpha, it moves first (equation 11)."""
    algorithm = fedax.apfl(MODEL, 0.3, 0.8, 0.4, rate, **FULL)
    result = trained(algorithm)
    x, v, alpha = flat(START), np.tile(flat(START), (6, 1)), np.full(6, 0.4)
    for cohort in COHORTS:
        ends = []
        for i in cohort:
            if rate is not None:
                mixture = alpha[i] * v[i] + (1 - alpha[i]) * x
                alpha[i] = np.clip(alpha[i] - rate * (v[i] - x) @ gradient(i, mixture), 0, 1)
            y = x
            for _ in range(3):
                mixture = alpha[i] * v[i] + (1 - alpha[i]) * y
                v[i] = v[i] - 0.3 * alpha[i] * gradient(i, mixture)
                y = y - 0.3 * gradient(i, y)
            ends.append(y)
        x = x + 0.8 * (share(cohort) @ np.stack(ends) - x)
    close(flat(result.params), x)
    close(models_of(algorithm, result), alpha[:, None] * v + (1 - alpha[:, None]) * x)
    assert (rate is None) == (len(set(alpha)) == 1)


@pytest.mark.slow
def test_apfl_with_alpha_0_is_fedavg():
    options = {"batch_size": 2, "num_local_epochs": 2}
    algorithm = fedax.apfl(MODEL, 0.3, mixture=0.0, **options)
    result = trained(algorithm)
    assert identical(result.params, trained(fedax.fedavg(MODEL, 0.3, **options)).params)
    assert (models_of(algorithm, result) == np.asarray(flat(result.params))).all()
