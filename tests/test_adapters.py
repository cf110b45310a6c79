"""Frozen arrays and low-rank adapters: the same numbers as the whole model, and less to send."""

import flax.linen as nn
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
    low_rank,
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


@pytest.mark.slow
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


@pytest.mark.slow
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


def single(tree):
    return jax.tree.map(lambda leaf: leaf.astype(np.float32), tree)


def memory(model, params, frozen_params, batch):
    """Of a training step, in sizes of the frozen model's parameters."""
    numbers, structure = partition(model)

    def step(numbers, params, batch):
        loss = structure(numbers).loss
        grads = jax.grad(lambda p: loss(p, batch, jax.random.key(0))[0].mean())(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    needs = jax.jit(step).lower(numbers, params, batch).compile().memory_analysis()
    return sum((
        needs.argument_size_in_bytes, needs.temp_size_in_bytes, needs.output_size_in_bytes,
    )) / sum(leaf.nbytes for leaf in jax.tree.leaves(frozen_params))


def test_rank_4_needs_at_most_a_fifth_more_than_the_frozen_model():
    """Of a network of 12 matrices of 256 x 256; training all of it needs twice its size."""
    model = mlp_classifier(256, [256] * 11, 256)
    params = single(model.init(jax.random.key(0)))
    batch = {"x": np.zeros((8, 256), np.float32), "y": np.zeros(8, np.int32)}
    small = lora(model, params, 4)
    assert memory(small, small.init(jax.random.key(1)), params, batch) < 1.2
    assert memory(model, params, params, batch) > 2


@pytest.mark.slow
def test_a_continued_run_of_adapters_is_exact(task, params):
    small = lora(task.model, params, RANK, where="0.w")
    whole = trained(task, small, fedax.scaffold, num_rounds=6)
    first = trained(task, small, fedax.scaffold, num_rounds=3)
    rest = trained(task, small, fedax.scaffold, num_rounds=6, state=first.state)
    for one, other in zip(
        jax.tree.leaves(whole.params), jax.tree.leaves(rest.params), strict=True
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("make", [
    frozen,
    lambda model, params, where: lora(model, params, 1, where),
    lambda model, params, where: fedax.personal(fedax.fedavg(model, 0.1), model, where),
], ids=["frozen", "lora", "personal"])
def test_where_takes_text_with_commas_and_names_what_it_does_not_take(task, params, make):
    def arrays(where):
        made = make(task.model, params, where)
        is_model = isinstance(made, fedax.Model)
        return made.init(jax.random.key(0)) if is_model else made.init_client(params)

    jax.tree.map(np.testing.assert_array_equal, arrays(" 0.w, 1.w"), arrays(["0.w", "1.w"]))
    for wrong, said in ((123, "123"), (["0.w", 1], r"\['0.w', 1\]"), (b"0.w", "b'0.w'")):
        with pytest.raises(TypeError, match=rf"where must be .* but is {said}\. The model has"):
            make(task.model, params, wrong)


@pytest.mark.parametrize(("make", "words"), [
    (lambda m, p: frozen(m, p, "3"), "where names '3', but the model has no such array or group"),
    (lambda m, p: frozen(m, p, ("0", "1", "2")), "freezes 6 of 6"),
    (lambda m, p: frozen(m, p, lambda name: False), "freezes 0 of 6"),
    (lambda m, p: lora(m, p, 0), "rank must be a whole number of at least 1"),
    (lambda m, p: lora(m, p, 1, where=()), "where chooses no array"),
    (lambda m, p: lora(m, p, 50), "No array has an adapter of rank 50"),
    (lambda m, p: lora(m, p, 1, where="0.b"), r"'0\.b' has the shape \[5\]"),
    (lambda m, p: lora(m, p, 1, alpha=0.0), "alpha must be a finite number above 0"),
])
def test_a_mistake_is_named(task, params, make, words):
    with pytest.raises(ValueError, match=words):
        make(task.model, params)


@pytest.mark.slow
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


@pytest.mark.slow
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


class Block(nn.Module):
    """Of a transformer; the kernels of its attention have three axes."""

    @nn.compact
    def __call__(self, x):
        norm = {"force_float32_reductions": False, "param_dtype": x.dtype}
        y = nn.LayerNorm(**norm)(x)
        x = x + nn.MultiHeadDotProductAttention(num_heads=4)(y, y)
        y = nn.relu(nn.Dense(2 * x.shape[-1])(nn.LayerNorm(**norm)(x)))
        return x + nn.Dense(x.shape[-1])(y)


class Transformer(nn.Module):
    size: int
    words: int
    block: type[nn.Module]
    tied: bool = False

    @nn.compact
    def __call__(self, tokens):
        table = nn.Embed(self.words, self.size)
        x = table(tokens)
        for _ in range(2):
            x = self.block()(x)
        return table.attend(x) if self.tied else nn.Dense(self.words)(x)


def transformer(size, words, kind):
    """A model of the kind, and its batch of two sentences of four words."""
    block = nn.remat(Block) if "remat" in kind else Block
    network = Transformer(size, words, block, tied="tied" in kind)
    apply = jax.jit(network.apply) if "jit" in kind else network.apply
    x = np.random.default_rng(0).integers(0, words, (2, 4))
    batch = {"x": x.astype(np.int32), "y": x[:, ::-1].astype(np.int32)}

    def loss(params, batch, key):
        logs = jax.nn.log_softmax(apply(params, batch["x"]))
        right = jnp.take_along_axis(logs, batch["y"][..., None], axis=-1)
        return -right.mean((1, 2)), jnp.ones(len(right), right.dtype)

    return fedax.Model(
        lambda key: network.init(key, batch["x"]), loss, lambda p, b: apply(p, b["x"]), {}
    ), batch


@pytest.mark.slow
@pytest.mark.internals
@pytest.mark.parametrize("kind", ["plain", "tied", "remat", "jit", "jit of remat"])
def test_an_adapted_transformer_is_the_merged_one_with_its_gradients(kind):
    model, batch = transformer(16, 11, kind)
    params = moved(doubled(model.init(jax.random.key(0))))
    small = lora(model, params, 2)
    own = moved(small.init(jax.random.key(1)))
    query = "params.Block_0.MultiHeadDotProductAttention_0.query.kernel"
    query = query.replace("Block", "CheckpointBlock" if "remat" in kind else "Block")
    assert own[query]["a"].shape == (16, 2)  # of [16, 4, 4]
    assert own[query]["b"].shape == (2, 16)
    assert own[query.replace("query", "out")]["a"].shape == (16, 2)  # of [4, 4, 16]
    key = jax.random.key(2)

    def of_merged(own):
        whole = merge_lora(own, params)
        return model.loss(whole, batch, key)[0].sum(), model.outputs(whole, batch)

    def of_adapters(own):
        return small.loss(own, batch, key)[0].sum(), small.outputs(own, batch)

    mine = jax.jit(jax.value_and_grad(of_adapters, has_aux=True))(own)
    theirs = jax.jit(jax.value_and_grad(of_merged, has_aux=True))(own)
    for one, other in zip(jax.tree.leaves(mine), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)
    assert all(leaf.any() for leaf in jax.tree.leaves(mine[1]))


@pytest.mark.slow
@pytest.mark.internals
@pytest.mark.parametrize("kind", ["plain", "tied", "remat", "jit", "jit of remat"])
def test_rank_4_of_a_transformer_needs_at_most_a_fifth_more_than_the_frozen_model(kind):
    model, batch = transformer(256, 1000, kind)
    params = single(model.init(jax.random.key(0)))
    small = lora(model, params, 4)
    assert memory(small, small.init(jax.random.key(1)), params, batch) < 1.2
    if kind == "plain":
        assert memory(model, params, params, batch) > 2


@pytest.mark.slow
def test_only_the_adapters_of_a_transformer_are_sent():
    model, batch = transformer(8, 64, "plain")
    small = lora(model, model.init(jax.random.key(0)), 1, where=lambda n: n.endswith("kernel"))
    sent = fedax.communication(fedax.fedavg(small, 0.1), small, batch)
    attention, dense, head = 4 * (8 + 8), 2 * (8 + 16), 8 + 64
    numbers = 2 * (attention + dense) + head
    assert sent.model_bytes == 4 * numbers
    assert sent.exchanges == ((4 * numbers + 8, 4 * numbers),)  # and the learning rate, float64


X = np.random.default_rng(1).normal(size=(5, 4, 6))
USES = {
    "on the left": ((4, 6), lambda w, x: w @ x[0].T),  # as in Equinox
    "on the left, transposed": ((6, 4), lambda w, x: w.T @ x[0].T),
    "all but the last axis": ((4, 6, 7), lambda w, x: jnp.einsum("bci,cio->bo", x, w)),
    "in another order": ((4, 6, 7), lambda w, x: jnp.einsum("bic,cio->bo", x.swapaxes(1, 2), w)),
    "all but the first axis": ((7, 4, 6), lambda w, x: jnp.einsum("oci,bci->bo", w, x)),
    "the last axis": ((6, 2, 3), lambda w, x: jnp.tensordot(x, w, 1)),
    "rows": ((9, 6), lambda w, x: w[np.array([[1, 0, 1], [8, -1, 3]])]),
    "rows outside": ((9, 6), lambda w, x: jnp.take(w, jnp.array([1, 9]), 0, fill_value=2.0)),
    "rows of two axes": ((4, 6, 7), lambda w, x: w[np.array([1, 3]), np.array([0, 5])]),
    "channels first": ((3, 6, 7), lambda w, x: jax.lax.conv_general_dilated(
        x.swapaxes(1, 2), w, (1,), "SAME", dimension_numbers=("NCH", "HIO", "NCH"))),
    "in jit": ((6, 7), lambda w, x: jax.jit(lambda w: (x @ w, w.T))(w)[0]),
    "from checkpoint": ((6, 7), lambda w, x: x @ jax.checkpoint(lambda w: w.T)(w).T),
    "with a policy": ((6, 7), lambda w, x: jax.checkpoint(
        lambda w: jnp.sin(x @ w), policy=jax.checkpoint_policies.dots_saveable)(w)),
    "narrow": ((6, 7), lambda w, x: x @ w.astype(np.float32).astype(np.float64)),
}
MERGED = {
    "columns": ((9, 6), lambda w, x: w[:, np.array([1, 2])]),
    "part of a sum": ((6, 6, 7), lambda w, x: jnp.einsum("bci,jio->bcjo", x, w)),
    "vmap": ((5, 6, 9), lambda w, x: jax.vmap(jnp.dot)(x, w)),
    "own derivative": ((6, 7), lambda w, x: x @ halved(w)),
    "whole numbers": ((6, 7), lambda w, x: w.astype(np.int32)),
    "reshaped": ((6, 2, 3), lambda w, x: x @ w.reshape(6, 6)),
    "axes in another order": ((4, 6, 7), lambda w, x: w.transpose(0, 2, 1)),
    "itself": ((6, 7), lambda w, x: w @ w.T),
    "groups": ((3, 2, 9), lambda w, x: jax.lax.conv_general_dilated(
        x, w, (1,), "SAME", dimension_numbers=("NHC", "HIO", "NHC"), feature_group_count=3)),
}


@jax.custom_vjp
def halved(w):
    return w


halved.defvjp(lambda w: (w, None), lambda _, change: (change / 2,))


@pytest.mark.internals
@pytest.mark.parametrize("use", USES | MERGED)
def test_what_merges_an_adapter(use, monkeypatch):
    shape, function = (USES | MERGED)[use]
    params = {"w": jax.random.normal(jax.random.key(0), shape)}

    def outputs(params, batch):
        return function(params["w"], batch["x"])

    small = lora(fedax.Model(lambda key: params, None, outputs, {}), params, 1, "w", 2.0)
    own, batch = moved(small.init(jax.random.key(1))), {"x": X}
    theirs = both(lambda own: outputs(merge_lora(own, params, 2.0), batch), own)
    if use in USES:
        monkeypatch.delattr(low_rank.LowRank, "whole")
    mine = both(lambda own: small.outputs(own, batch), own)
    precision = 1e-6 if use == "narrow" else 1e-12
    for one, other in zip(jax.tree.leaves(mine), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(one, other, rtol=precision, atol=precision)


def both(outputs, own):
    """The outputs, and the gradients of the sum of their squares."""
    def squares(own):
        return (outputs(own).astype(np.float64) ** 2).sum()

    return jax.jit(lambda own: (outputs(own), jax.grad(squares)(own)))(own)
