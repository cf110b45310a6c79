"""Products with sparse rows, and local training that changes the rows that occur, against dense."""

import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.sparse

import fedax
from fedax.clients import sparse_steps
from fedax.clients.gradients import loss_gradient
from fedax.clients.minibatches import Minibatch
from fedax.clients.sparse_product import (
    _add_everywhere as add_everywhere,
)
from fedax.clients.sparse_product import (
    _add_on_cpu as add_on_cpu,
)
from fedax.clients.sparse_product import (
    _product_everywhere as product_everywhere,
)
from fedax.clients.sparse_product import (
    _product_on_cpu as product_on_cpu,
)
from fedax.clients.sparse_product import (
    add_product,
)
from fedax.data.bags import bags_of_words
from fedax.data.rows import SparseRows
from fedax.devices import compiling
from fedax.models import sparse_product, tag_logistic_regression
from fedax.rounds import simulate

NUM_WORDS, NUM_TAGS = 9, 4


def dense(columns, values, num_columns=NUM_WORDS):
    hits = jnp.stack([columns == column for column in range(num_columns)], -1)
    return jnp.where(hits, values[..., None], 0).sum(-2)


def dense_product(columns, values, matrix):
    return dense(columns, values, len(matrix)) @ matrix


def draw(*clients, num_entries=13):
    """Columns with padding and repetitions, values, and a matrix."""
    random = np.random.default_rng(0)
    shape = (*clients, 5, num_entries)
    return (
        jnp.asarray(random.integers(-1, NUM_WORDS, shape), "int32"),
        jnp.asarray(random.normal(size=shape)),
        jnp.asarray(random.normal(size=(*clients, NUM_WORDS, NUM_TAGS))),
    )


def gradients(function, columns, values, matrix):
    """Of first order, and both ways of second order, with respect to values and matrix."""

    def first(values, matrix):
        def loss(values, matrix):
            y = function(columns, values, matrix)
            return (jnp.sin(y) * jnp.cos(jnp.arange(y.size)).reshape(y.shape)).sum()

        return jax.grad(loss, (0, 1))(values, matrix)

    def slope(values, matrix):
        return sum((jnp.sin(leaf)).sum() for leaf in first(values, matrix))

    directions = (jnp.cos(values), jnp.cos(matrix))
    return (
        function(columns, values, matrix),
        first(values, matrix),
        jax.jvp(first, (values, matrix), directions)[1],
        jax.grad(slope, (0, 1))(values, matrix),
    )


def assert_close(actual, expected, tolerance=1e-12):
    def check(a, b):
        scale = max(1.0, float(jnp.abs(b).max()))
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * scale)

    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    jax.tree.map(check, actual, expected)


@pytest.mark.internals
@pytest.mark.quick
def test_product_and_gradients_of_both_orders_equal_the_dense_ones():
    arguments = draw()
    actual, expected = (
        jax.jit(partial(gradients, function))(*arguments)
        for function in (sparse_product, dense_product)
    )
    assert_close(actual, expected)


@pytest.mark.slow
@pytest.mark.internals
@pytest.mark.parametrize("num_entries", [0, 1, 23])
def test_the_ways_of_both_platforms_are_equal(num_entries):
    columns, values, matrix = draw(num_entries=num_entries)
    columns = jnp.maximum(columns, 0)  # as they come to the primitives
    rows = jnp.asarray(np.random.default_rng(1).normal(size=(5, NUM_TAGS)))
    x = dense(columns, values)
    for product in (product_everywhere, product_on_cpu):
        assert_close(product(columns, values, matrix), x @ matrix)
    for add in (add_everywhere, add_on_cpu):
        assert_close(add(columns, values, rows, matrix), matrix + x.T @ rows)


@pytest.mark.slow
@pytest.mark.internals
@pytest.mark.parametrize(
    "axes", [(0, 0, 0), (1, None, None), (None, None, 0)]
)
def test_many_clients(axes):
    arguments = tuple(
        array[0] if axis is None else jnp.moveaxis(array, 0, axis)
        for array, axis in zip(draw(3), axes, strict=True)
    )
    actual, expected = (
        jax.jit(jax.vmap(partial(gradients, function), axes))(*arguments)
        for function in (sparse_product, dense_product)
    )
    assert_close(actual, expected)


@pytest.mark.internals
def test_adding_and_its_gradients():
    columns, values, matrix = draw()
    rows = jnp.asarray(np.random.default_rng(1).normal(size=(5, NUM_TAGS)))

    def loss(add, arguments):
        return (jnp.sin(add(*arguments)) * jnp.cos(matrix)).sum()

    def reference(values, rows, matrix):
        return matrix + dense(columns, values).T @ rows

    actual, expected = (
        jax.jit(jax.value_and_grad(partial(loss, add)))((values, rows, matrix))
        for add in (partial(add_product, columns), reference)
    )
    assert_close(actual, expected)


@pytest.mark.internals
def test_a_column_beyond_the_matrix_is_not_a_number():
    columns = jnp.array([[0, 3], [1, 2]])
    y = sparse_product(columns, jnp.ones((2, 2)), jnp.ones((3, 2)))
    assert jnp.isnan(y).tolist() == [[True, True], [False, False]]


def bags(seed, num_examples):
    random = np.random.default_rng(seed)
    words = np.stack([random.permutation(NUM_WORDS)[:5] for _ in range(num_examples)])
    sizes = random.integers(1, 6, num_examples)
    return {
        "words": np.where(np.arange(5) < sizes[:, None], words, -1).astype(np.int32),
        "counts": random.integers(1, 4, (num_examples, 5)).astype(np.float32),
        "tags": np.stack([random.permutation(NUM_TAGS) for _ in range(num_examples)])[:, :2]
        .astype(np.int32) * np.array([1, 1]) - np.array([[0, 3]]),  # the second may be none
    }


def problem():
    """The model in float64, the same with dense arithmetic, and a client of eleven examples."""
    model = tag_logistic_regression(NUM_WORDS, NUM_TAGS)

    def init(key):
        return jax.tree.map(lambda leaf: leaf.astype("float64"), model.init(key))

    def logits(params, batch):
        counts = jnp.where(batch["words"] < 0, 0, batch["counts"]).astype("float64")
        x = dense(batch["words"], counts / counts.sum(1, keepdims=True))
        return x @ params["w"] + params["b"][None]

    def loss(params, batch, key):
        z = logits(params, batch)
        targets = jnp.stack([(batch["tags"] == tag).any(1) for tag in range(NUM_TAGS)], 1)
        losses = -jnp.where(targets, jax.nn.log_sigmoid(z), jax.nn.log_sigmoid(-z)).mean(1)
        return losses, jnp.ones_like(losses)

    arrays = {name: jnp.asarray(array) for name, array in bags(0, 11).items()}
    data = fedax.ClientData(arrays, jnp.int32(0), jnp.int32(11), 11)
    sparse = model._replace(init=init)
    return sparse, sparse._replace(loss=loss, outputs=logits, sparse=None), data


# Method -> whether its steps are plain SGD, which changes the rows that occur and no other.
METHODS = {
    "fedavg": (partial(fedax.fedavg, batch_size=4, num_local_epochs=2), True),
    "proximal": (partial(fedax.fedavg, batch_size=4, proximal_weight=0.1), False),
    "momentum": (partial(fedax.fedopt, client_optimizer=optax.sgd(1.0, 0.9), batch_size=4), False),
    "scaffold": (partial(fedax.scaffold, batch_size=4), False),
    "maml": (partial(fedax.maml, batch_size=4, num_local_steps=2), True),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=pytest.mark.internals if name in ("fedavg", "maml") else ())
    for name in METHODS
])
def test_methods_train_as_with_the_dense_model(name, monkeypatch):
    method, is_plain = METHODS[name]
    in_place = []

    def noted(*arguments):
        in_place.append(arguments)
        return add_product(*arguments)

    monkeypatch.setattr(sparse_steps, "add_product", noted)
    sparse, reference, data = problem()
    start = sparse.init(jax.random.key(0))
    results = []
    for model in (sparse, reference):
        algorithm = method(model, client_learning_rate=3.0)
        exchange, state = algorithm.exchanges[0], algorithm.init(start)
        train = jax.jit(lambda data, exchange=exchange, state=state, algorithm=algorithm: (
            exchange.client(
                exchange.broadcast(state), algorithm.init_client(start), data, jax.random.key(1)
            )
        ))
        reply = train(data)
        results.append((reply.upload, reply.info))
    assert bool(in_place) == is_plain
    assert_close(results[0], results[1], 1e-12)
    assert float(jnp.abs(results[0][0].pseudo_gradient["w"]).max()) > 0.01


@pytest.mark.internals
def test_a_matrix_that_is_multiplied_twice_and_one_that_is_not():
    def loss(params, batch, key):
        y = sparse_product(batch["words"], batch["counts"], params["w"])
        z = sparse_product(batch["words"][:, ::-1], batch["counts"], params["w"])
        losses = (jnp.sin(y) * jnp.exp(z) + params["b"][None]).sum(1)
        return losses, jnp.ones_like(losses)

    random = np.random.default_rng(0)
    params = {
        name: jnp.asarray(random.normal(size=shape))
        for name, shape in (("w", (NUM_WORDS, NUM_TAGS)), ("v", (3, 2)), ("b", (NUM_TAGS,)))
    }
    batch = {name: jnp.asarray(array) for name, array in bags(0, 4).items()}
    batch["counts"] = batch["counts"].astype("float64")
    minibatch = Minibatch(batch, jnp.array([True, True, False, True]))
    model = fedax.Model(lambda key: params, loss, lambda params, batch: (), {})
    expected_loss, gradient = jax.jit(loss_gradient(model))(params, minibatch, jax.random.key(0))
    expected = jax.tree.map(lambda p, g: p - 0.3 * g, params, gradient)

    sparse = model._replace(sparse={"w": True, "v": True, "b": False})

    @jax.jit
    def step(params):
        loss, gradient = sparse_steps.sparse_gradient(sparse)(
            params, minibatch, jax.random.key(0)
        )
        return loss, sparse_steps.descend(params, gradient, 0.3)

    actual_loss, actual = step(params)
    assert_close(actual_loss, expected_loss)
    assert_close(actual, expected)


@pytest.mark.parametrize(
    ("sparse", "message"),
    [
        ({"w": True}, "sparse must be a tree of True and False like its parameters"),
        ({"w": False, "b": True}, "The model's loss failed"),  # b is added
    ],
)
def test_what_is_wrongly_called_sparse_is_a_sentence(sparse, message):
    model = tag_logistic_regression(NUM_WORDS, NUM_TAGS)._replace(sparse=sparse)
    batch = {name: jnp.asarray(array) for name, array in bags(0, 4).items()}
    gradient = sparse_steps.sparse_gradient(model)
    with pytest.raises(fedax.ModelError, match=message):
        gradient(
            model.init(jax.random.key(0)), Minibatch(batch, jnp.ones(4, bool)), jax.random.key(0)
        )


@pytest.mark.internals
@pytest.mark.parametrize("use", [
    lambda w, c, v: jax.jit(sparse_product)(c, v, w),
    lambda w, c, v: jax.jit(lambda c: sparse_product(c, v, w))(c),
    lambda w, c, v: jax.vmap(lambda c, v: sparse_product(c[None], v[None], w)[0])(c, v),
    lambda w, c, v: jax.checkpoint(lambda: sparse_product(c, v, w))(),
    lambda w, c, v: sparse_product(c, v, w) + (w**2).sum(),
    lambda w, c, v: sparse_product(c, v, w) + jnp.vdot(w, w),
], ids=["jit of it", "in jit", "in vmap", "in checkpoint", "w**2", "vdot"])
def test_a_sparse_matrix_that_is_used_otherwise_is_a_sentence(use):
    def loss(params, batch, key):
        losses = use(params["w"], batch["words"], batch["counts"] * 1.0).sum(1)
        return losses, jnp.ones_like(losses)

    model = tag_logistic_regression(NUM_WORDS, NUM_TAGS)._replace(loss=loss)
    minibatch = Minibatch(
        {name: jnp.asarray(array) for name, array in bags(0, 4).items()}, jnp.ones(4, bool)
    )
    params, key = model.init(jax.random.key(0)), jax.random.key(0)
    with pytest.raises(fedax.ModelError, match=r"used by fedax\.models\.sparse_product, in"):
        sparse_steps.sparse_gradient(model)(params, minibatch, key)
    loss_gradient(model)(params, minibatch, key)  # which has no such matrix


@pytest.mark.internals
def test_a_loss_that_fails_anyhow_says_so_alone():
    model = tag_logistic_regression(NUM_WORDS, NUM_TAGS)
    with pytest.raises(fedax.ModelError, match=r"^The model needs the array 'words'"):
        sparse_steps.sparse_gradient(model)(
            model.init(jax.random.key(0)), Minibatch({"x": jnp.ones(4)}, jnp.ones(4, bool)),
            jax.random.key(0),
        )


@pytest.mark.internals
@pytest.mark.parametrize("dtype", ["int32", "float32", "bfloat16"])
def test_values_take_the_type_of_the_matrix(dtype):
    w = jnp.arange(12.0, dtype="bfloat16").reshape(4, 3)
    y = sparse_product(jnp.array([[1, 3, -1], [4, 0, 0]]), jnp.array([[2, 1, 9]] * 2, dtype), w)
    assert y.dtype == w.dtype
    np.testing.assert_array_equal(y[0].astype(float), [15, 18, 21])
    assert bool(jnp.isnan(y[1]).all())  # there is no column 4


def test_a_wrapped_model_keeps_its_sparse_matrix():
    model = tag_logistic_regression(NUM_WORDS, NUM_TAGS)
    assert fedax.models.preprocessed(model).sparse == model.sparse


def test_tags_may_be_stored_in_few_bits():
    """300 modulo 256 is 44, which is no tag of this post."""
    model = tag_logistic_regression(5, 301)
    logits = jnp.zeros((1, 301)).at[0, 300].set(9.0)
    for dtype in ("int8", "int16", "int32"):
        batch = {"tags": jnp.array([[44, -1]], dtype)}
        values, _ = model.metrics["loss"](logits, batch)
        expected = (300 * np.log(2) + np.log1p(np.exp(9.0))) / 301
        np.testing.assert_allclose(values, [expected], rtol=1e-6)


def test_bags_are_counted_or_not():
    model = tag_logistic_regression(6, 2)
    counted = tag_logistic_regression(6, 2, normalize=False)
    params = {"w": jnp.arange(12.0).reshape(6, 2), "b": jnp.ones(2)}
    batch = {"words": jnp.array([[3, 5, -1], [-1, -1, -1]]), "counts": jnp.array([[1, 3, 9]] * 2)}
    without = {"words": batch["words"]}
    w = params["w"]
    for network, given, row in (
        (model, batch, (w[3] + 3 * w[5]) / 4), (model, without, (w[3] + w[5]) / 2),
        (counted, batch, w[3] + 3 * w[5]), (counted, without, w[3] + w[5]),
    ):
        np.testing.assert_allclose(network.outputs(params, given), [row + 1, np.ones(2)])


def test_the_tag_model_has_its_size_and_its_loss():
    model = tag_logistic_regression()
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    size = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    assert size == 10_000 * 500 + 500 == 5_000_500
    logits = jnp.array([[2.0, -1.0, 0.5]])
    small = tag_logistic_regression(5, 3)
    values, weights = small.metrics["loss"](logits, {"tags": jnp.array([[2, 0, 2, -1]])})
    chances = 1 / (1 + np.exp(-np.asarray(logits[0])))
    expected = -(np.log(chances[0]) + np.log(1 - chances[1]) + np.log(chances[2])) / 3
    np.testing.assert_allclose(values, [expected], rtol=1e-12)
    assert weights.tolist() == [1.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"words": [[9, 0]]}, "words 'words' must be below 9"),
        ({"tags": [[0, 4]]}, "tags 'tags' must be below 4"),
        ({"words": [[0.0, 1.0]]}, "words 'words' must be whole numbers"),
        ({"tags": [0]}, "tags 'tags' must be whole numbers"),
        ({"counts": [[1.0]]}, "counts 'counts' must have the shape of the words"),
        ({"words": None}, "needs the array 'words'"),
    ],
)
def test_data_that_do_not_fit_are_sentences(change, message):
    model = tag_logistic_regression(NUM_WORDS, NUM_TAGS)
    arrays = {"words": [[0, 1]], "counts": [[1.0, 2.0]], "tags": [[0, -1]], **change}
    arrays = {name: np.asarray(array) for name, array in arrays.items() if array is not None}
    data = fedax.FederatedDataset.from_clients([arrays])
    task = fedax.Task(model, data, data, "tags")
    with pytest.raises(fedax.ModelError, match=message):
        fedax.train(task, fedax.fedavg(model), num_rounds=1, cohort_size=1)


def test_sparse_matrices_become_bags():
    matrix = scipy.sparse.coo_array(
        ([1.0, 2.0, 4.0, 8.0, 0.0], ([0, 0, 2, 0, 1], [6, 2, 1, 6, 3])), shape=(3, 7)
    )
    for given in (matrix, matrix.tocsc(), SparseRows(matrix)):
        words, counts = bags_of_words(given)
        assert words.tolist() == [[2, 6], [-1, -1], [1, -1]]
        assert counts.tolist() == [[2.0, 9.0], [0.0, 0.0], [4.0, 0.0]]
        assert (words.dtype, counts.dtype) == (np.int32, np.float32)
        params = {"w": jnp.arange(14.0).reshape(7, 2), "b": jnp.zeros(2)}
        model = tag_logistic_regression(7, 2, normalize=False)
        outputs = model.outputs(params, {"words": words, "counts": counts})
        np.testing.assert_allclose(outputs, matrix @ np.asarray(params["w"]))
    assert matrix.nnz == 5  # what was given is as it was
    assert bags_of_words(scipy.sparse.csr_array((0, 7)))[0].shape == (0, 1)
    with pytest.raises(TypeError, match="takes a SciPy sparse matrix"):
        bags_of_words(np.eye(3))


@pytest.mark.slow
@pytest.mark.internals
def test_rounds_of_a_sparse_model_compile_for_it(monkeypatch):
    """The loops of its products, and of no other model, are written XLA's newer way."""
    asked = []

    def noted(function, **options):
        asked.append(options["newer_loops"])
        return jax.jit(function)

    monkeypatch.setattr(simulate, "jit", noted)
    sparse, reference, data = problem()
    clients = fedax.FederatedDataset.from_arrays(data.arrays, np.zeros(11, int))
    for model in (sparse, reference):
        algorithm = fedax.fedavg(model, 0.1, batch_size=4)
        next(fedax.simulate(fedax.Task(model, clients), algorithm, num_rounds=1, cohort_size=1))
    assert asked == [True, False]
    assert not compiling.options(None, newer_loops=True)


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.optimised
def test_a_step_of_the_tag_model_is_five_times_as_fast_as_a_dense_one():
    """Processor time of local steps; 100 of 10,000 Zipf distributed words an example."""
    random = np.random.default_rng(0)
    # The first of exponential times whose rates are the words' chances.
    times = random.exponential(size=(200, 10_000)) * np.arange(1, 10_001)
    words = np.argpartition(times, 100)[:, :100]
    x = np.zeros((200, 10_000), np.float32)
    np.put_along_axis(x, words, np.float32(1 / 100), 1)
    tags = random.integers(0, 500, (200, 3)).astype(np.int32)
    sparse = tag_logistic_regression()

    def outputs(params, batch):
        return batch["x"] @ params["w"] + params["b"][None]

    model = sparse._replace(
        loss=lambda p, batch, key: sparse.metrics["loss"](outputs(p, batch), batch), sparse=None
    )
    params = jax.jit(sparse.init)(jax.random.key(0))

    def training(of, arrays):
        arrays = {name: jnp.asarray(values) for name, values in {**arrays, "tags": tags}.items()}
        data = fedax.ClientData(arrays, jnp.int32(0), jnp.int32(200), 200)

        # As fedax compiles them; the tests' own flags have the older loops, where there are any.
        older = compiling.options(None, newer_loops=False) or {}
        options = dict.fromkeys(older, of.sparse is not None)

        @partial(jax.jit, compiler_options=options)
        def train(params, num_steps):
            algorithm = fedax.fedavg(of, 1e3, batch_size=100, num_local_steps=num_steps)
            exchange = algorithm.exchanges[0]
            message = exchange.broadcast(algorithm.init(params))
            return exchange.client(message, (), data, jax.random.key(0)).upload.pseudo_gradient

        return train

    trainings = [training(sparse, {"words": words.astype(np.int32)}), training(model, {"x": x})]
    changes = [jax.block_until_ready(train(params, jnp.int32(9))) for train in trainings]
    for name, change in changes[1].items():
        largest = float(jnp.abs(change).max())
        np.testing.assert_allclose(changes[0][name], change, rtol=0, atol=1e-5 * largest)

    seconds = np.full((2, 2), np.inf)
    for _ in range(5):
        for place, train in enumerate(trainings):
            for length, num_steps in enumerate((1, 9)):
                start = time.process_time()
                jax.block_until_ready(train(params, jnp.int32(num_steps)))
                taken = time.process_time() - start
                seconds[place, length] = min(seconds[place, length], taken)
    # Of eight steps: a training copies the model and compares it, however many steps it takes.
    of_sparse, of_dense = seconds[:, 1] - seconds[:, 0]
    assert of_dense > 5 * of_sparse
