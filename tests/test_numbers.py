"""What would spoil a run's numbers: overflow, shared noise, padding, and NumPy's own scalars."""

import itertools
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedax
from fedax.algorithm import Reply
from fedax.clients.uploads import acceptable
from fedax.devices.mesh import client_mesh
from fedax.rounds.padding import is_known


@pytest.fixture(autouse=True)
def as_users_have_it():
    """In float32, where numbers overflow sooner, and with JAX's own promotion of types."""
    with (
        jax.enable_x64(False), jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        yield


def linear(k=3):
    return fedax.classification(
        lambda key: {"w": jnp.zeros((4, k), jnp.float32)}, lambda p, x: x @ p["w"]
    )


def clients_with_outlier(scale):
    rng = np.random.default_rng(0)
    true = rng.normal(size=(4, 3))
    clients = {}
    for name in ("ada", "bob", "outlier"):
        x = rng.normal(size=(8, 4)).astype(np.float32)
        y = (x @ true).argmax(1).astype(np.int32)
        clients[name] = {"x": x * np.float32(scale if name == "outlier" else 1), "y": y}
    return fedax.FederatedDataset.from_clients(clients)


ADAPTIVE = {
    "fedadam": lambda m: fedax.fedadam(m, 0.1, 0.1),
    "fedadagrad": lambda m: fedax.fedadagrad(m, 0.1, 0.1),
    "fedyogi": lambda m: fedax.fedyogi(m, 0.1, 0.1),
    "amsgrad": lambda m: fedax.fedopt(m, server_optimizer=optax.amsgrad(0.1)),
    "mime": lambda m: fedax.mime(m, 0.1, fedax.base_optimizers.adam()),
    "mimelite": lambda m: fedax.mimelite(m, 0.1, fedax.base_optimizers.adam()),
    "scaffold": lambda m: fedax.scaffold(m, 0.1),
    "elastic": lambda m: fedax.elastic(fedax.fedadam(m, 0.1, 0.1), m),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ADAPTIVE)
@pytest.mark.filterwarnings("ignore:Client 'outlier' was rejected")
def test_a_huge_update_does_not_freeze_the_server(name):
    data, model = clients_with_outlier(1e25), linear()
    seen = []
    result = fedax.train(
        fedax.Task(model, data), ADAPTIVE[name](model), num_rounds=4, cohort_size=3,
        progress=False,
        on_round=lambda report: seen.append((report.rejected, report.state.server_state)),
    )
    assert [rejected for rejected, _ in seen] == [["outlier"]] * 4
    weights = [np.asarray(state.params["w"]) for _, state in seen]
    assert all((a != b).any() for a, b in itertools.pairwise(weights))
    for leaf in jax.tree.leaves(result.state.server_state):
        assert np.isfinite(np.asarray(leaf)).all()


@pytest.mark.quick
@pytest.mark.filterwarnings("ignore:Client 'outlier' was rejected")
def test_a_huge_update_is_rejected_alike_in_chunks_on_a_mesh_and_in_sweeps():
    data, model = clients_with_outlier(1e25), linear()
    task, algorithm = fedax.Task(model, data), fedax.fedadam(model, 0.1, 0.1)
    options = {"num_rounds": 3, "cohort_size": 3, "progress": False}
    alone = fedax.train(task, algorithm, **options)
    for others in ({"clients_per_chunk": 3}, {"mesh": client_mesh(jax.devices()[:1])}):
        result = fedax.train(task, algorithm, **options, **others)
        np.testing.assert_allclose(result.params["w"], alone.params["w"], atol=1e-6)
        assert result.history["num_rejected"].tolist() == [1, 1, 1]
    swept = fedax.sweep(
        task, {"a": lambda rate: fedax.fedadam(model, 0.1, rate)}, {"rate": [0.1, 0.2]}, **options
    )
    assert swept.record.metrics["num_rejected"].tolist() == [[1, 1, 1]] * 2
    assert swept.record.diverged.tolist() == [0, 0]


@pytest.mark.quick
def test_the_reason_names_the_large_numbers():
    data, model = clients_with_outlier(1e25), linear()
    with pytest.raises(fedax.DivergedError, match=r"beyond 1.8e\+19.*'x' has numbers up to \d"):
        fedax.train(
            fedax.Task(model, data.select(["outlier"])), fedax.fedadam(model), num_rounds=1,
            cohort_size=1, progress=False,
        )


@pytest.mark.quick
@pytest.mark.parametrize(("upload", "weight", "counts"), [
    ({"any": 1e25}, 1.0, True),  # nobody squares it
    ({"any": 1e25}, 1e10, False),
    ({"any": 1e30}, 1e-3, True),
    (fedax.ModelUpdate(1.8e19), 8.0, True),
    (fedax.ModelUpdate(1.9e19), 8.0, False),
    (fedax.ModelUpdate(-1.9e19), 8.0, False),
    (fedax.ModelUpdate(np.nan), 8.0, False),
    (fedax.ModelUpdate(0.0), 1e38, False),
    (fedax.ModelUpdate(0.0), -1.0, False),
])
def test_the_bound_is_that_of_the_guide(upload, weight, counts):
    upload = jax.tree.map(lambda value: jnp.full(3, value, jnp.float32), upload)
    reply = Reply(upload, jnp.float32(weight), (), {})
    assert bool(acceptable(reply)) is counts


@pytest.mark.quick
def test_half_precision_has_its_own_bound():
    for dtype, largest in ((jnp.float16, 255), (jnp.bfloat16, 1e19)):
        for factor, counts in ((1, True), (3, False)):
            upload = fedax.ModelUpdate(jnp.full(2, factor * largest, dtype))
            reply = Reply(upload, jnp.float32(1), (), {})
            assert bool(acceptable(reply)) is counts


@pytest.mark.quick
def test_an_overflow_of_the_servers_state_ends_the_run():
    """Squares of finite uploads, added up by a method of one's own."""
    model = fedax.Model(
        lambda key: jnp.zeros(2, jnp.float32),
        lambda p, b, key: ((p - b["x"]).sum(1), jnp.ones(len(b["x"]))), lambda p, b: b["x"], {},
    )
    data = fedax.FederatedDataset.from_clients({"ada": {"x": np.ones((2, 2), np.float32)}})
    growing = optax.GradientTransformation(
        lambda p: jnp.float32(1e30),
        lambda g, s, p=None: (jax.tree.map(lambda x: x / s, g), s * 1e4),
    )
    with pytest.raises(fedax.DivergedError, match=r"Round 3: .* numbers that its optimizer keeps"):
        fedax.train(
            fedax.Task(model, data), fedax.fedopt(model, server_optimizer=growing),
            num_rounds=5, cohort_size=1, progress=False,
        )


def noise_task():
    data = fedax.FederatedDataset({"x": np.ones(20, np.float32)}, np.arange(21))
    model = fedax.Model(
        lambda key: jnp.zeros(1000),
        lambda p, b, key: (0 * b["x"] * p[0], jnp.ones(len(b["x"]))), lambda p, b: b["x"], {},
    )
    return fedax.Task(model, data)


@pytest.mark.slow
@pytest.mark.parametrize("made", [
    fedax.fedopt, fedax.local_adaptive,
], ids=["fedopt", "local_adaptive"])
def test_clients_and_rounds_draw_their_own_noise(made):
    task = noise_task()
    algorithm = made(task.model, optax.noisy_sgd(1.0, eta=1.0, gamma=0.0, key=3))

    def go(num_rounds, **options):
        return fedax.train(
            task, algorithm, num_rounds=num_rounds, cohort_size=20, diagnostics=True,
            evaluate_every=0, progress=False, **options,
        )

    once, twice = go(1), go(2)
    assert abs(once.history["update_cosine"][0]) < 0.03
    assert 0.04 < float(once.params.var()) < 0.06  # 1/20
    second = np.asarray(twice.params - once.params)
    assert abs(np.corrcoef(np.asarray(once.params), second)[0, 1]) < 0.15
    np.testing.assert_allclose(go(1, clients_per_chunk=7).params, once.params, atol=1e-6)
    assert np.array_equal(go(2, state=once.state).params, twice.params)
    assert not np.allclose(go(1, seed=1).params, once.params)


@pytest.mark.quick
@pytest.mark.parametrize("side", ["client", "server"])
def test_typed_keys_are_saved_and_advance(side, tmp_path):
    task = noise_task()
    draws = optax.noisy_sgd(1.0, eta=1.0, gamma=0.0, key=jax.random.key(5))
    algorithm = (
        fedax.local_adaptive(task.model, draws) if side == "client"
        else fedax.fedopt(task.model, server_optimizer=draws)
    )
    options = {"cohort_size": 5, "evaluate_every": 0, "progress": False}
    whole = fedax.train(task, algorithm, num_rounds=2, **options)
    once = fedax.train(task, algorithm, num_rounds=1, out=tmp_path / "run", **options)
    resumed = fedax.train(task, algorithm, num_rounds=2, out=tmp_path / "run", **options)
    assert np.array_equal(resumed.params, whole.params)
    assert not np.allclose(whole.params, 2 * once.params)


X = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)


def info_nce(rows):
    scores = rows @ rows.T
    return np.log(np.exp(scores).sum(1)) - np.diag(scores)


def contrastive(masked):
    def scores(z, mask):
        s = z @ z.T
        return -jnp.diag(jax.nn.log_softmax(s if mask is None else jnp.where(mask, s, -jnp.inf)))

    def with_mask(params, batch, key, mask):
        return scores(batch["x"] * params, mask), jnp.ones(len(batch["x"]))

    def without(params, batch, key):
        return scores(batch["x"] * params, None), jnp.ones(len(batch["x"]))

    def metric(outputs, batch, mask):
        return scores(outputs, mask), jnp.ones(len(outputs))

    def plain_metric(outputs, batch):
        return scores(outputs, None), jnp.ones(len(outputs))

    return fedax.Model(
        lambda key: jnp.ones(2), with_mask if masked else without, lambda p, b: b["x"] * p,
        {"nce": metric if masked else plain_metric},
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", [fedax.fedavg, fedax.scaffold, fedax.mime, fedax.mimelite])
def test_a_loss_of_the_whole_batch_gets_the_mask(method):
    model = contrastive(masked=True)
    data = fedax.FederatedDataset.from_clients({"ada": {"x": X}})
    result = fedax.train(
        fedax.Task(model, data), method(model, 0.0, batch_size=4, order="sequential"),
        num_rounds=1, cohort_size=1, progress=False,
    )
    right = (info_nce(X[:4]).sum() + info_nce(X[4:]).sum()) / 5
    np.testing.assert_allclose(result.history["train_loss"][0], right, rtol=1e-6)
    found = fedax.evaluate(model, jnp.ones(2), data, batch_size=4)
    np.testing.assert_allclose(found["nce"], right, rtol=1e-6)


@pytest.mark.slow
def test_a_loss_of_the_whole_batch_without_mask_is_refused():
    model = contrastive(masked=False)
    task = fedax.Task(model, fedax.FederatedDataset.from_clients({"ada": {"x": X}}))
    options = {"num_rounds": 1, "cohort_size": 1, "progress": False}
    algorithm = fedax.fedavg(model, 0.1, batch_size=4)
    with pytest.raises(fedax.ModelError, match=r"The model's loss .*compares.*mask"):
        fedax.train(task, algorithm, **options)
    with pytest.raises(fedax.ModelError, match="mask"):
        fedax.sweep(
            task, {"a": lambda rate: fedax.fedavg(model, rate, batch_size=4)}, {"rate": [0.1, 0.2]},
            **options,
        )
    fedax.train(task, fedax.fedavg(model, 0.1, batch_size=5), **options)  # nothing is filled up
    fedax.train(task, fedax.fedavg(model, 0.1, batch_size=20), **options)
    with pytest.raises(fedax.ModelError, match=r"outputs.*metrics.*mask"):
        fedax.evaluate(model, jnp.ones(2), task.train, batch_size=4)


@pytest.mark.quick
def test_batch_statistics_are_refused_and_other_models_are_not():
    normal = fedax.classification(
        lambda key: jnp.zeros((2, 3)), lambda p, x: ((x - x.mean(0)) / (x.std(0) + 0.1)) @ p
    )
    data = fedax.FederatedDataset.from_clients({"ada": {"x": X, "y": np.arange(5) % 3}})
    options = {"num_rounds": 1, "cohort_size": 1, "progress": False}
    with pytest.raises(fedax.ModelError, match="group normalisation"):
        fedax.train(fedax.Task(normal, data), fedax.fedavg(normal, batch_size=4), **options)
    plain = fedax.classification(lambda key: jnp.zeros((2, 3)), lambda p, x: x @ p)
    fedax.train(fedax.Task(plain, data, data), fedax.fedavg(plain, batch_size=4), **options)
    assert is_known(fedax.load_task("digits").model)


@pytest.mark.quick
def test_an_example_of_weight_0_may_have_an_infinite_loss():
    missing = {"ada": [0, 0, 1], "bob": [0, 0]}
    data = fedax.FederatedDataset.from_clients({
        name: {"x": np.ones(len(m), np.float32), "missing": np.array(m, np.float32)}
        for name, m in missing.items()
    })

    def loss(p, b, key=None):
        return (p - b["x"]) ** 2 - jnp.log(1 - b["missing"]), 1 - b["missing"]

    model = fedax.Model(lambda key: jnp.zeros(()), loss, lambda p, b: p, {"loss": loss})
    result = fedax.train(
        fedax.Task(model, data, data), fedax.fedavg(model, 0.1), num_rounds=2, cohort_size=2,
        progress=False,
    )
    assert result.history["num_rejected"].tolist() == [0, 0]
    assert np.isfinite(result.history["test_loss"][-1])


@pytest.mark.slow
def test_a_gradient_that_is_not_finite_is_told_from_a_rate_that_is_too_high():
    data = fedax.FederatedDataset.from_clients({"ada": {"x": np.ones((3, 2), np.float32)}})
    model = fedax.Model(
        lambda key: {"w": jnp.zeros(2)},
        lambda p, b, key: (jnp.sqrt(((b["x"] * p["w"]) ** 2).sum(1)), jnp.ones(3)),
        lambda p, b: b["x"], {},
    )
    for rate in (0.1, 0.0):
        with pytest.raises(fedax.DivergedError, match=r"gradient is not.*\['w'\].*cannot help"):
            fedax.train(
                fedax.Task(model, data), fedax.fedavg(model, rate), num_rounds=1, cohort_size=1,
                progress=False,
            )


SCALARS = [np.int64, np.uint8, np.array, jnp.asarray]


@pytest.mark.slow
@pytest.mark.parametrize("scalar", SCALARS, ids=lambda kind: kind.__name__)
def test_whole_numbers_of_numpy_are_taken(scalar, tmp_path):
    data, model = clients_with_outlier(1), linear()
    task = fedax.Task(model, data, data)

    def go(kind, out):
        return fedax.train(
            task, fedax.fedavg(model, 0.1, batch_size=kind(3), num_local_epochs=kind(2)),
            num_rounds=kind(2), cohort_size=kind(2), seed=kind(1), evaluate_every=kind(1),
            clients_per_chunk=kind(2), evaluation_sample=kind(4), checkpoint_every=kind(1),
            progress=False, out=out,
        ).params["w"]

    assert np.array_equal(go(scalar, tmp_path / "a"), go(int, tmp_path / "b"))
    with_them, without = (
        fedax.evaluate_personalized(
            task, {"w": jnp.ones((4, 3))}, client_learning_rate=0.1, num_local_steps=kind(2),
            batch_size=kind(3), clients=kind(2),
        ).overall() for kind in (scalar, int)
    )
    assert with_them == without
    assert fedax.load_task("digits", num_clients=scalar(5)).train.num_clients == 5


@pytest.mark.quick
def test_an_unknown_setting_of_a_task_is_named():
    with pytest.raises(TypeError, match=r"'modle' of the task digits\. Did you mean 'model'\?"):
        fedax.load_task("digits", modle="mlp")


@pytest.mark.quick
def test_a_history_without_rounds_is_empty():
    data, model = clients_with_outlier(1), linear()
    result = fedax.train(
        fedax.Task(model, data), fedax.fedavg(model), num_rounds=0, cohort_size=2, progress=False
    )
    assert result.history["train_loss"].tolist() == []


@pytest.mark.quick
def test_probabilities_in_place_of_logits_are_noticed():
    data = clients_with_outlier(1)
    model = fedax.classification(
        lambda key: jnp.zeros((4, 3)), lambda p, x: jax.nn.softmax(x @ p)
    )
    with pytest.warns(RuntimeWarning, match="takes logits") as said:
        fedax.train(
            fedax.Task(model, data, data), fedax.fedavg(model), num_rounds=3, cohort_size=2,
            evaluate_every=1, progress=False,
        )
    assert len(said) == 1


@pytest.mark.slow
def test_a_sweep_judges_divergence_by_the_untrained_loss():
    data, model = clients_with_outlier(1), linear()
    rates = {"rate": [0.1, 1e10, 1e25]}
    result = fedax.sweep(
        fedax.Task(model, data), {"a": lambda rate: fedax.fedavg(model, rate)}, rates,
        num_rounds=4, cohort_size=2, progress=False,
    )
    assert result.record.diverged.tolist()[0] == 0
    assert all(result.record.diverged[1:] > 0)
    assert result.best().values == {"rate": 0.1}


def added(report):
    report.metrics["test_auc"] = np.float32(report.metrics["round"] / 8)


@pytest.mark.slow
def test_metrics_of_on_round_are_kept_everywhere(tmp_path):
    data, model = clients_with_outlier(1), linear()
    task = fedax.Task(model, data, data)
    options = {"num_rounds": 3, "cohort_size": 2, "evaluate_every": 1, "progress": False}
    for out in (None, tmp_path / "run"):
        result = fedax.train(
            task, fedax.fedavg(model), on_round=added, out=out, keep_best="test_auc:max", **options
        )
        assert result.history["test_auc"].tolist() == [1 / 8, 2 / 8, 3 / 8]
        assert result.best_round == 3
    assert '"test_auc": 0.125' in (tmp_path / "run" / "metrics.jsonl").read_text()
    for value in ("high", None, [1.0], {"a": 1}):
        with pytest.raises(TypeError, match=r"added the metric 'auc'.*is a number"):
            fedax.train(
                task, fedax.fedavg(model),
                on_round=lambda report, v=value: report.metrics.update(auc=v), **options,
            )
    with pytest.raises(ValueError, match="removed one or changed the round"):
        fedax.train(
            task, fedax.fedavg(model), on_round=lambda r: r.metrics.update(round=7), **options
        )


INNER = '''
from typing import Any, NamedTuple
import jax, jax.numpy as jnp, fedax

@fedax.factory
def inner(model, client_learning_rate=0.1, **local_options):
    local = fedax.LocalTraining.checked(model, client_learning_rate, local_options)

    class State(NamedTuple):
        params: Any
        round_index: jax.Array

    def client(message, state, data, key):
        result = local.train(message, data, key)
        change = jax.tree.map(jnp.subtract, message.params, result.params)
        return local.reply(fedax.ModelUpdate(change), message, data, result)

    def server(state, mean, participation):
        params = jax.tree.map(jnp.subtract, state.params, mean.pseudo_gradient)
        return RESULT

    return fedax.FederatedAlgorithm(
        lambda params: State(params, jnp.int32(0)), lambda params: (),
        (fedax.Exchange(local.message, client, server),),
    )
'''


@pytest.mark.parametrize("result", [
    "state._replace(params=params)", "State(params, state.round_index)",
])
@pytest.mark.slow
def test_a_state_class_may_be_defined_inside_the_factory(result):
    module = types.ModuleType("inner_method")
    exec(INNER.replace("RESULT", result), module.__dict__)
    assert fedax.check_algorithm(module.inner).failed == []
    data, model = clients_with_outlier(1), linear()
    swept = fedax.sweep(
        fedax.Task(model, data), {"a": lambda rate: module.inner(model, rate)},
        {"rate": [0.1, 0.2]}, num_rounds=2, cohort_size=2, progress=False,
    )
    assert (swept.record.diverged == 0).all()
