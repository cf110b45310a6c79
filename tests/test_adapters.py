"""Frozen arrays and low-rank adapters: the same numbers as the whole model, and less to send."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax.factories import partition
from fedax.models import (
    frozen,
    image_cnn,
    lora,
    merge_lora,
    merged,
    mlp_classifier,
    tag_logistic_regression,
)
from fedax.models.parameters import named_leaves

RANK = 2
METHODS = (fedax.fedadam, fedax.scaffold, fedax.mime)


@pytest.fixture(scope="module")
def task():
    rng = np.random.default_rng(0)
    data = fedax.FederatedDataset.from_clients([
        {"x": rng.normal(size=(n, 6)), "y": rng.integers(0, 3, n).astype(np.int32)}
        for n in (5, 8, 3, 9)
    ])
    return fedax.Task(mlp_classifier(6, [5, 4], 3), data, data)


@pytest.fixture(scope="module")
def params(task):
    return doubled(task.model.init(jax.random.key(3)))


def doubled(tree):
    return jax.tree.map(lambda leaf: leaf.astype(np.float64), tree)


def moved(params):
    """Parameters near these, so that no product of an adapter is 0."""
    keys = jax.random.split(jax.random.key(7), len(jax.tree.leaves(params)))
    return jax.tree.unflatten(jax.tree.structure(params), [
        leaf + 0.1 * jax.random.normal(key, leaf.shape, leaf.dtype)
        for leaf, key in zip(jax.tree.leaves(params), keys, strict=True)
    ])


def trained(task, model, method, **settings):
    settings = {"num_rounds": 3, "cohort_size": 3, "progress": False} | settings
    algorithm = method(model, num_local_steps=3, batch_size=4)
    return fedax.train(task._replace(model=model), algorithm, **settings)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__name__)
def test_a_frozen_model_trains_as_the_whole_one_without_those_gradients(task, params, method):
    small = frozen(task.model, params, ("0", "2.b"))
    run = trained(task, small, method)
    assert list(named_leaves(run.params)) == ["1.b", "1.w", "2.w"]

    def loss(whole, batch, key):
        stopped = jax.lax.stop_gradient(whole)
        free = (stopped[0], whole[1], {"b": stopped[2]["b"], "w": whole[2]["w"]})
        return task.model.loss(free, batch, key)

    same = task.model._replace(init=lambda key: params, loss=loss)
    reference = trained(task, same, method)
    whole = merged(run.params, params)
    for name, leaf in named_leaves(reference.params).items():
        np.testing.assert_allclose(named_leaves(whole)[name], leaf, rtol=0, atol=1e-14)
    assert not np.array_equal(whole[1]["w"], params[1]["w"])
    np.testing.assert_array_equal(whole[2]["b"], params[2]["b"])


@pytest.mark.quick
@pytest.mark.parametrize("alpha", [None, 3.0])
def test_an_adapted_model_is_the_merged_one_with_its_gradients(task, params, alpha):
    small = lora(task.model, params, RANK, where=lambda name: name.endswith("w"), alpha=alpha)
    own = moved(small.init(jax.random.key(0)))
    batch = dict(task.train.client_at(1))
    key = jax.random.key(1)

    def of_merged(own):
        return task.model.loss(merge_lora(own, params, alpha), batch, key)[0].sum()

    def of_adapters(own):
        return small.loss(own, batch, key)[0].sum()

    value, grads = jax.jit(jax.value_and_grad(of_adapters))(own)
    expected, expected_grads = jax.jit(jax.value_and_grad(of_merged))(own)
    np.testing.assert_allclose(value, expected, rtol=1e-14)
    for name, leaf in named_leaves(expected_grads).items():
        np.testing.assert_allclose(named_leaves(grads)[name], leaf, rtol=0, atol=1e-13)
    scale = 1 if alpha is None else alpha / RANK
    np.testing.assert_allclose(
        merge_lora(own, params, alpha)[0]["w"],
        np.asarray(params[0]["w"]) + scale * np.asarray(own["0.w"]["a"]) @ own["0.w"]["b"],
        rtol=1e-14,
    )


def test_an_adapter_starts_as_the_given_model_to_the_bit(task, params):
    small = lora(task.model, params, RANK, where=["0.w", "2.w"])
    batch = dict(task.train.client_at(1))
    np.testing.assert_array_equal(
        small.outputs(small.init(jax.random.key(5)), batch), task.model.outputs(params, batch)
    )


@pytest.mark.parametrize("kind", ["convolution", "scan", "tied", "returned"])
def test_every_use_of_an_adapted_array_is_right(kind):
    """Products are split; a loop, two uses of one matrix and a penalty on it merge it."""
    key = jax.random.key(0)
    x = jax.random.normal(key, (2, 6, 6, 4))
    params = {"w": jax.random.normal(key, (3, 3, 4, 4) if kind == "convolution" else (4, 4))}

    def outputs(params, batch):
        x, w = batch["x"], params["w"]
        if kind == "convolution":
            numbers = ("NHWC", "HWIO", "NHWC")
            return jax.lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=numbers)
        if kind == "scan":
            return jax.lax.scan(lambda x, _: (jnp.tanh(x @ w), None), x, None, length=3)[0]
        if kind == "tied":
            return jnp.tanh(x @ w) @ w.T + jnp.einsum("abci,oi->abco", x, w)
        return {"x": x @ w, "w": w, "norm": (w**2).sum()}

    def loss(params, batch, key):
        sums = [(leaf**2).sum() for leaf in jax.tree.leaves(outputs(params, batch))]
        return jnp.stack([sum(sums)]), jnp.ones(1)

    model = fedax.Model(lambda key: params, loss, outputs, {})
    small = lora(model, params, 1, where="w", alpha=2.0)
    own = moved(small.init(key))
    batch = {"x": x}
    for mine, theirs in (
        (small.outputs(own, batch), outputs(merge_lora(own, params, 2.0), batch)),
        (
            jax.jit(jax.grad(lambda own: small.loss(own, batch, key)[0][0]))(own),
            jax.grad(lambda own: loss(merge_lora(own, params, 2.0), batch, key)[0][0])(own),
        ),
    ):
        assert jax.tree.structure(mine) == jax.tree.structure(theirs)
        for one, other in zip(jax.tree.leaves(mine), jax.tree.leaves(theirs), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__name__)
def test_adapters_train_with_every_kind_of_method(task, params, method):
    small = lora(task.model, params, RANK, where=["0.w", "1.w"])
    run = trained(task, small, method)
    reference = trained(
        task,
        task.model._replace(
            init=small.init,
            loss=lambda own, *rest: task.model.loss(merge_lora(own, params), *rest),
            outputs=lambda own, batch: task.model.outputs(merge_lora(own, params), batch),
        ),
        method,
    )
    for name, leaf in named_leaves(reference.params).items():
        np.testing.assert_allclose(named_leaves(run.params)[name], leaf, rtol=0, atol=1e-12)
    assert all(leaf.any() for leaf in jax.tree.leaves(run.params))  # also B, which began at 0


def test_only_what_is_trained_is_sent(task, params):
    small = lora(task.model, params, RANK, where="0.w")
    sent = fedax.communication(fedax.fedavg(small, 0.1), small, task.train.client_at(0))
    numbers = 6 * RANK + RANK * 5
    assert sent.model_bytes == 8 * numbers
    assert sent.exchanges == ((8 * (numbers + 1), 8 * numbers),)  # and the learning rate
    head = frozen(task.model, params, lambda name: not name.startswith("2"))
    sent = fedax.communication(fedax.fedavg(head, 0.1), head, task.train.client_at(0))
    assert sent.model_bytes == 8 * (4 * 3 + 3)


def test_rank_4_needs_at_most_a_fifth_more_than_the_frozen_model():
    """Of a network of 12 matrices of 256 x 256; training all of it needs twice its size."""
    model = mlp_classifier(256, [256] * 11, 256)
    params = jax.tree.map(lambda leaf: leaf.astype(np.float32), model.init(jax.random.key(0)))
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    batch = {"x": np.zeros((8, 256), np.float32), "y": np.zeros(8, np.int32)}

    def memory(model, params):
        numbers, structure = partition(model)

        def step(numbers, params, batch):
            loss = structure(numbers).loss
            grads = jax.grad(lambda p: loss(p, batch, jax.random.key(0))[0].mean())(params)
            return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

        needs = jax.jit(step).lower(numbers, params, batch).compile().memory_analysis()
        return sum((
            needs.argument_size_in_bytes, needs.temp_size_in_bytes, needs.output_size_in_bytes,
        )) / size

    small = lora(model, params, 4)
    assert memory(small, small.init(jax.random.key(1))) < 1.2
    assert memory(model, params) > 2


def test_a_continued_run_of_adapters_is_exact(task, params):
    small = lora(task.model, params, RANK, where="0.w")
    whole = trained(task, small, fedax.scaffold, num_rounds=6)
    first = trained(task, small, fedax.scaffold, num_rounds=3)
    rest = trained(task, small, fedax.scaffold, num_rounds=6, state=first.state)
    for one, other in zip(
        jax.tree.leaves(whole.params), jax.tree.leaves(rest.params), strict=True
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("make", "words"), [
    (lambda m, p: frozen(m, p, "3"), "where names '3', but the model has no such array or group"),
    (lambda m, p: frozen(m, p, ("0", "1", "2")), "freezes 6 of 6"),
    (lambda m, p: frozen(m, p, lambda name: False), "freezes 0 of 6"),
    (lambda m, p: lora(m, p, 0), "rank must be a whole number of at least 1"),
    (lambda m, p: lora(m, p, 50), "No array has an adapter of rank 50"),
    (lambda m, p: lora(m, p, 1, where="0.b"), r"'0\.b' has the shape \[5\]"),
    (lambda m, p: lora(m, p, 1, alpha=0.0), "alpha must be a finite number above 0"),
])
def test_a_mistake_is_named(task, params, make, words):
    with pytest.raises(ValueError, match=words):
        make(task.model, params)


def test_a_convolutional_network_of_fedax_takes_adapters():
    model = image_cnn((8, 8, 1), 4)
    params = doubled(model.init(jax.random.key(0)))
    small = lora(model, params, 2)
    own = moved(small.init(jax.random.key(1)))
    batch = {"x": np.ones((2, 8, 8, 1)), "y": np.zeros(2, np.int32)}
    np.testing.assert_allclose(
        jax.jit(small.outputs)(own, batch),
        jax.jit(lambda own: model.outputs(merge_lora(own, params), batch))(own), rtol=1e-10,
    )


@pytest.mark.parametrize("where", ["w", "b"])
def test_a_model_with_a_sparse_matrix_may_be_frozen_in_part(where):
    """Training the matrix still updates rows in place; without it nothing is sparse."""
    rng = np.random.default_rng(0)
    data = fedax.FederatedDataset.from_clients([
        {"words": rng.integers(0, 9, (6, 3)), "tags": rng.integers(0, 4, (6, 2))}
        for _ in range(4)
    ])
    model = tag_logistic_regression(9, 4)
    params = doubled(model.init(jax.random.key(0)))
    small = frozen(model, params, where)
    runs = [
        trained(fedax.Task(small, data), model, fedax.fedavg)
        for model in (small, small._replace(sparse=None))
    ]
    one, other = (jax.tree.leaves(run.params) for run in runs)
    assert len(one) == 1
    np.testing.assert_allclose(one[0], other[0], rtol=0, atol=1e-14)
    assert np.abs(one[0] - params["b" if where == "w" else "w"]).max() > 1e-4
