"""Models with statistics: averaged, kept by the client, recomputed; Flax and Equinox plug in."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import fedax
from problems import identical

SIZES = (5, 3, 8, 1)
RNG = np.random.default_rng(0)
CLIENTS = [
    {"x": (place + 1) * RNG.normal(size=(n, 2)) + place, "y": RNG.integers(0, 2, n)}
    for place, n in enumerate(SIZES)
]
DATA = fedax.FederatedDataset.from_clients(CLIENTS)
EVERYONE = np.stack([np.arange(4)] * 3)
OPTIONS = {"batch_size": 4, "num_local_epochs": 1}


def moments(x, mask):
    """Mean and variance of the rows that are no padding."""
    rows = mask[:, None].astype(x.dtype)
    mean = (rows * x).sum(0) / rows.sum()
    return mean, (rows * (x - mean[None, :]) ** 2).sum(0) / rows.sum()


def logits(params, x, mean, var):
    return (x - mean[None, :]) / jnp.sqrt(var + 1e-3)[None, :] @ params["w"]


def loss(params, batch, key, mask):
    del key
    found = logits(params, batch["x"], *moments(batch["x"], mask))
    losses = optax.losses.softmax_cross_entropy_with_integer_labels(found, batch["y"])
    return losses, jnp.ones_like(losses)


def init(key):
    return {"w": jax.random.normal(key, (2, 2)), "s": {"mean": jnp.zeros(2), "var": jnp.ones(2)}}


BY_HAND = fedax.classification(
    init, lambda params, x: logits(params, x, params["s"]["mean"], params["s"]["var"])
)._replace(loss=loss)
TASK = fedax.Task(BY_HAND, DATA, DATA)


def update(params, batch, mask):
    mean, var = moments(batch["x"], mask)
    return {**params, "s": {"mean": mean, "var": var}}


def trained(algorithm, task=TASK, cohorts=EVERYONE, **options):
    return fedax.train(
        task, algorithm, num_rounds=len(cohorts), cohort_size=len(cohorts[0]),
        sampling=lambda seed, t: cohorts[t], **{"evaluate_every": 0} | options,
    )


def own(algorithm, result, task=TASK):
    """Each client's model."""
    found = fedax.evaluate_own_models(task, algorithm, result.state, keep_params=True)
    return list(found.params.values())


def measured(client):
    """The mean of the minibatches' statistics, weighed by their examples."""
    x = CLIENTS[client]["x"]
    parts = [x[k : k + 4] for k in range(0, len(x), 4)]
    weights = [len(part) / len(x) for part in parts]
    return {
        "mean": sum(w * part.mean(0) for w, part in zip(weights, parts, strict=True)),
        "var": sum(w * part.var(0) for w, part in zip(weights, parts, strict=True)),
    }


def close(actual, expected):
    for name in ("mean", "var"):
        np.testing.assert_allclose(actual[name], expected[name], rtol=1e-12, atol=1e-14)


def average(clients):
    share = np.asarray(SIZES)[clients] / np.asarray(SIZES)[clients].sum()
    return {
        name: sum(p * measured(i)[name] for p, i in zip(share, clients, strict=True))
        for name in ("mean", "var")
    }


BASES = {
    "fedavg": lambda m: fedax.fedavg(m, 0.3, 0.5, **OPTIONS),
    "fedadam": lambda m: fedax.fedadam(m, 0.3, 0.1, **OPTIONS),
    "fedprox": lambda m: fedax.fedprox(m, 0.3, proximal_weight=0.5, **OPTIONS),
    "scaffold": lambda m: fedax.scaffold(m, 0.3, **OPTIONS),
    "mime": lambda m: fedax.mime(m, 0.1, **OPTIONS),
}


def with_statistics(base, model=BY_HAND, **options):
    return fedax.batch_statistics(base, model, "s", update, **{"batch_size": 4} | options)


@pytest.mark.slow
@pytest.mark.parametrize("name", BASES)
def test_the_server_averages_statistics_and_the_method_trains_the_rest(name):
    base = BASES[name](BY_HAND)
    cohorts = np.array([[0, 1], [2, 3], [1, 2]])
    result, alone = (trained(one, cohorts=cohorts) for one in (with_statistics(base), base))
    assert identical(result.params["w"], alone.params["w"])
    close(result.params["s"], average([1, 2]))
    assert identical(alone.params["s"]["var"], jnp.ones(2))


def test_update_begins_at_the_servers_statistics():
    """Also where local training moves arrays without gradients; with a momentum of 0.9."""
    def moving(params, batch, mask):
        new = update(params, batch, mask)["s"]
        return {**params, "s": jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, params["s"], new)}

    base = fedax.fedac(BY_HAND, 0.3, **OPTIONS, weighting="num_examples")
    algorithm = fedax.batch_statistics(base, BY_HAND, "s", moving, batch_size=8)
    result = trained(algorithm, cohorts=np.array([[1, 3]]))
    begins = {"mean": np.zeros(2), "var": np.ones(2)}
    close(result.params["s"], {
        name: 0.9 * begins[name] + 0.1 * average([1, 3])[name] for name in begins
    })


@pytest.mark.parametrize(("wrap", "error", "said"), [
    (fedax.compressed, fedax.AlgorithmError, "Leave compressed out"),
    (lambda a: fedax.compressed(fedax.personal(a, BY_HAND, "s")), fedax.AlgorithmError,
     "compressed would change the statistics"),
    (lambda a: fedax.elastic(a, BY_HAND), fedax.AlgorithmError,
     r"Put elastic inside: batch_statistics\(elastic"),
])
def test_wrappers_that_would_change_statistics_are_refused(wrap, error, said):
    with pytest.raises(error, match=said):
        trained(wrap(with_statistics(BASES["fedavg"](BY_HAND))))


@pytest.mark.quick
def test_what_update_must_be():
    base = BASES["fedavg"](BY_HAND)
    with pytest.raises(TypeError, match=r"three arguments, \(params, batch, mask\).*filled up"):
        fedax.batch_statistics(base, BY_HAND, "s", lambda params, batch: params)
    with pytest.raises(ValueError, match="cannot wrap a compressed algorithm"):
        with_statistics(fedax.compressed(base))

    def scalar(params, batch, mask):
        return {**params, "s": {**params["s"], "mean": jnp.zeros(())}}

    with pytest.raises(fedax.ModelError, match=r"s\.mean has the shape \[\] in place of \[2\]"):
        trained(fedax.batch_statistics(base, BY_HAND, "s", scalar))


@pytest.mark.quick
def test_where_names_several_groups_in_text():
    base = BASES["fedavg"](BY_HAND)
    found = [
        trained(fedax.batch_statistics(base, BY_HAND, where, update, batch_size=4)).params
        for where in ("s", "s.mean, s.var", ["s.mean", "s.var"])
    ]
    assert identical(found[0], found[1])
    assert identical(found[0], found[2])


@pytest.mark.slow
@pytest.mark.parametrize("name", BASES)
def test_fedbn_keeps_each_clients_statistics(name):
    base = BASES[name](BY_HAND)
    algorithm = fedax.personal(with_statistics(base), BY_HAND, "s")
    cohorts = np.array([[0, 1], [2, 1], [1, 2]])
    result, alone = (trained(one, cohorts=cohorts) for one in (algorithm, base))
    assert identical(result.params["w"], alone.params["w"])
    models = own(algorithm, result)
    for client in range(3):
        close(models[client]["s"], measured(client))
    close(models[3]["s"], {"mean": np.zeros(2), "var": np.ones(2)})  # never took part
    sent = fedax.communication(algorithm, BY_HAND, DATA.client_at(0))
    whole = fedax.communication(with_statistics(base), BY_HAND, DATA.client_at(0))
    assert whole.bytes_up > sent.bytes_up


@pytest.mark.slow
def test_statistics_are_recomputed_before_evaluation():
    base = BASES["fedadam"](BY_HAND)
    algorithm = with_statistics(base, kept="recomputed")
    result = trained(algorithm, evaluate_every=3)
    assert identical(result.params, trained(base).params)
    for client, params in enumerate(own(algorithm, result)):
        assert identical(params["w"], np.asarray(result.params["w"]))
        close(params["s"], measured(client))
    assert "test_own_accuracy" in result.history.rounds[-1]


@pytest.mark.slow
def test_own_models_of_the_method_get_statistics():
    algorithm = with_statistics(fedax.ditto(BY_HAND, 0.3, **OPTIONS))
    result = trained(algorithm)
    close(result.params["s"], average([0, 1, 2, 3]))
    for client, params in enumerate(own(algorithm, result)):
        close(params["s"], measured(client))


@pytest.mark.slow
def test_a_momentum_in_update_counts_once_a_round():
    def slow(params, batch, mask):
        new = update(params, batch, mask)["s"]
        return {**params, "s": jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, params["s"], new)}

    algorithm = fedax.batch_statistics(BASES["fedavg"](BY_HAND), BY_HAND, "s", slow, batch_size=4)
    mean, var = np.zeros(2), np.ones(2)
    for _ in range(3):
        new = average([0, 1, 2, 3])
        mean, var = 0.9 * mean + 0.1 * new["mean"], 0.9 * var + 0.1 * new["var"]
    close(trained(algorithm).params["s"], {"mean": mean, "var": var})


@pytest.mark.slow
def test_a_run_continues_to_the_bit():
    algorithm = fedax.personal(with_statistics(BASES["scaffold"](BY_HAND)), BY_HAND, "s")
    half = trained(algorithm, cohorts=EVERYONE[:1])
    rest = trained(algorithm, state=half.state)
    whole = trained(algorithm)
    assert identical(whole.state.server_state, rest.state.server_state)
    assert identical(own(algorithm, whole), own(algorithm, rest))


@pytest.mark.quick
def test_mistakes_are_explained():
    base = BASES["fedavg"](BY_HAND)
    with pytest.raises(ValueError, match="leave some to train, but chooses 0 of 3"):
        fedax.batch_statistics(base, BY_HAND, (), update)
    with pytest.raises(ValueError, match="Unknown kept 'mean'"):
        with_statistics(base, kept="mean")
    with pytest.raises(fedax.ModelError, match="must return parameters like those"):
        trained(fedax.batch_statistics(base, BY_HAND, "s", lambda params, batch, mask: params["s"]))
    with pytest.raises(fedax.AlgorithmError, match="in the pseudo-gradient"):
        trained(with_statistics(fedax.ifca(BY_HAND)))
    with pytest.raises(fedax.AlgorithmError, match="Put it outside: personal"):
        trained(with_statistics(fedax.personal(base, BY_HAND, "s")))


# ------------------------------------------------------------- Flax and Equinox

SINGLE = fedax.FederatedDataset.from_clients(
    [{"x": one["x"].astype(np.float32), "y": one["y"]} for one in CLIENTS]
)


@pytest.fixture
def as_users_do():
    with (
        jax.enable_x64(False), jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        yield


def nearly(group, expected):
    for name in ("mean", "var"):
        np.testing.assert_allclose(group[name], expected[name], rtol=1e-5, atol=1e-5)


def cross_entropy(found, batch):
    losses = optax.losses.softmax_cross_entropy_with_integer_labels(found, batch["y"])
    return losses, jnp.ones_like(losses)


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x, mask=None):
        rows = None if mask is None else mask[:, None]
        norm = nn.BatchNorm(use_running_average=mask is None, momentum=0.0, name="norm")
        return nn.Dense(2)(norm(x, mask=rows))


def of_linen():
    net = Linen()

    def training(params, batch, mask):
        return net.apply(params, batch["x"], mask, mutable=["batch_stats"])

    def update(params, batch, mask):
        return {**params, **training(params, batch, mask)[1]}

    def loss(params, batch, key, mask):
        del key
        return cross_entropy(training(params, batch, mask)[0], batch)

    model = fedax.classification(lambda key: net.init(key, jnp.zeros((1, 2))), net.apply)
    return model._replace(loss=loss), update, "batch_stats"


class Net(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(2, momentum=0.0, rngs=rngs)
        self.dense = nnx.Linear(2, 2, rngs=rngs)

    def __call__(self, x, mask=None):
        rows = None if mask is None else mask[:, None]
        return self.dense(self.norm(x, use_running_average=mask is None, mask=rows))


def of_nnx():
    def parts(key):
        graph, params, stats = nnx.split(Net(nnx.Rngs(key)), nnx.Param, nnx.BatchStat)
        arrays = {"params": nnx.to_pure_dict(params), "batch_stats": nnx.to_pure_dict(stats)}
        return graph, arrays

    graph, _ = parts(jax.random.key(0))

    def merged(params):
        return nnx.merge(graph, params["params"], params["batch_stats"])

    def update(params, batch, mask):
        net = merged(params)
        net(batch["x"], mask)
        stats = nnx.split(net, nnx.Param, nnx.BatchStat)[2]
        return {**params, "batch_stats": nnx.to_pure_dict(stats)}

    def loss(params, batch, key, mask):
        del key
        return cross_entropy(merged(params)(batch["x"], mask), batch)

    model = fedax.classification(
        lambda key: parts(key)[1], lambda params, x: merged(params)(x)
    )
    return model._replace(loss=loss), update, "batch_stats"


@pytest.mark.slow
@pytest.mark.usefixtures("as_users_do")
@pytest.mark.parametrize("library", [of_linen, of_nnx])
@pytest.mark.parametrize("base", ["scaffold", "fedadam"])
def test_fedbn_on_a_model_of_flax(library, base):
    """The normalisation comes first, so its statistics are those of the client's inputs."""
    model, update, stats = library()
    inner = fedax.batch_statistics(BASES[base](model), model, stats, update, batch_size=4)
    algorithm = fedax.personal(inner, model, lambda name: "norm" in name)
    task = fedax.Task(model, SINGLE, SINGLE)
    result = trained(algorithm, task, evaluate_every=3)
    for client, params in enumerate(own(algorithm, result, task)):
        nearly(params[stats]["norm"], measured(client))
    assert np.isfinite(result.history.rounds[-1]["test_own_loss"])
    nearly(trained(inner, task).params[stats]["norm"], average([0, 1, 2, 3]))


# In points of accuracy; stated before the first run.
MARGIN = 5.0


class Digits(nn.Module):
    @nn.compact
    def __call__(self, x, mask=None):
        for width in (32, 32):
            x = nn.Dense(width)(x)
            x = nn.relu(nn.BatchNorm(use_running_average=mask is None, momentum=0.0)(
                x, mask=None if mask is None else mask[:, None]
            ))
        return nn.Dense(10)(x)


def two_domains(seed):
    """20 clients with 35 digits to train on and 35 to test on; every other client's are inverted
    and twice as bright.
    """
    arrays = fedax.load_task("digits", "logistic").train.arrays
    images = np.asarray(arrays["x"]).reshape(-1, 64)
    rng = np.random.default_rng(seed)
    parts = rng.permutation(len(arrays["y"]))[:1400].reshape(20, 2, 35)
    change = [lambda x: x, lambda x: 2 * (x.max() - x)]
    return [
        fedax.FederatedDataset.from_clients({
            f"client {place}": {
                "x": change[place % 2](images[rows[which]]).astype(np.float32),
                "y": np.asarray(arrays["y"])[rows[which]],
            }
            for place, rows in enumerate(parts)
        })
        for which in (0, 1)
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("as_users_do")
def test_fedbn_beats_fedavg_on_two_domains():
    """Own models after 30 rounds, mean over the clients and 3 seeds: by at least MARGIN points.

    FedAvg averages the statistics, FedBN keeps them and the normalisation's scale and offset.
    """
    net = Digits()

    def training(params, batch, mask):
        return net.apply(params, batch["x"], mask, mutable=["batch_stats"])

    def update(params, batch, mask):
        return {**params, **training(params, batch, mask)[1]}

    def loss(params, batch, key, mask):
        del key
        return cross_entropy(training(params, batch, mask)[0], batch)

    model = fedax.classification(
        lambda key: net.init(key, jnp.zeros((1, 64))), net.apply
    )._replace(loss=loss)
    averaged = fedax.batch_statistics(
        fedax.fedavg(model, 0.1, batch_size=20, num_local_epochs=2), model, "batch_stats", update
    )
    fedbn = fedax.personal(averaged, model, lambda name: "BatchNorm" in name)
    found, apart = {"fedavg": [], "fedbn": []}, []
    for seed in range(3):
        train, test = two_domains(seed)
        task = fedax.Task(model, train, test)
        options = {"num_rounds": 30, "cohort_size": 10, "evaluate_every": 0, "seed": seed}
        state = fedax.train(task, averaged, **options).state
        whole = fedax.evaluate_clients(model, state.server_state.params, test)
        found["fedavg"].append(100 * np.mean(whole["accuracy"]))
        state = fedax.train(task, fedbn, **options).state
        own = fedax.evaluate_own_models(task, fedbn, state, keep_params=True)
        found["fedbn"].append(100 * np.mean(own["accuracy"]))
        means = np.stack([
            params["batch_stats"]["BatchNorm_0"]["mean"] for params in own.params.values()
        ])
        within = np.linalg.norm(means[0::2] - means[0::2].mean(0), axis=1).mean()
        apart.append(np.linalg.norm(means[0::2].mean(0) - means[1::2].mean(0)) / within)
    print(found, apart)
    assert min(apart) > 2  # the domains' statistics differ more than those within a domain
    assert np.mean(found["fedbn"]) > np.mean(found["fedavg"]) + MARGIN


class Equinox(eqx.Module):
    norm: eqx.nn.BatchNorm
    dense: eqx.nn.Linear

    def __init__(self, key):
        self.norm = eqx.nn.BatchNorm(2, "batch", mode="batch", momentum=0.0)
        self.dense = eqx.nn.Linear(2, 2, key=key)

    def __call__(self, x, state):
        x, state = self.norm(x, state)
        return self.dense(x), state


@pytest.mark.slow
@pytest.mark.usefixtures("as_users_do")
def test_fedbn_on_a_state_of_equinox():
    """Its normalisation takes no mask, so here all minibatches are whole."""

    def parts(key):
        net, state = eqx.nn.make_with_state(Equinox)(key)
        arrays, static = eqx.partition((net, state), eqx.is_inexact_array)
        return {"net": arrays[0], "state": jax.tree.leaves(arrays[1])}, (arrays[1], static)

    like, static = parts(jax.random.key(0))[1]

    def run(params, x, *, inference):
        state = jax.tree.unflatten(jax.tree.structure(like), params["state"])
        net, state = eqx.combine((params["net"], state), static)
        net = eqx.nn.inference_mode(net, value=inference)
        return jax.vmap(net, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(x, state)

    def update(params, batch, mask):
        state = run(params, batch["x"], inference=False)[1]
        return {**params, "state": jax.tree.leaves(eqx.filter(state, eqx.is_inexact_array))}

    def loss(params, batch, key):
        del key
        return cross_entropy(run(params, batch["x"], inference=False)[0], batch)

    model = fedax.classification(
        lambda key: parts(key)[0], lambda params, x: run(params, x, inference=True)[0]
    )._replace(loss=loss)
    whole = SINGLE.client(2)
    data = fedax.FederatedDataset.from_clients([
        {name: array[k : k + 4] for name, array in whole.items()} for k in (0, 4)
    ])
    task = fedax.Task(model, data, data)
    inner = fedax.batch_statistics(
        fedax.scaffold(model, 0.1, **OPTIONS), model, "state", update, batch_size=4
    )
    algorithm = fedax.personal(inner, model, "state")
    result = trained(algorithm, task, np.array([[0, 1]] * 2), evaluate_every=2)
    for k, params in zip((0, 4), own(algorithm, result, task), strict=True):
        x = whole["x"][k : k + 4]
        mean, var = params["state"]
        nearly({"mean": mean, "var": var}, {"mean": x.mean(0), "var": x.var(0)})
