"""Images before a model sees them: the numbers, what is drawn, and who sees the same draw."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax import ModelError
from fedax.clients.gradients import full_gradient, loss_gradient
from fedax.clients.minibatches import Minibatch
from fedax.data.cohort_data import ClientData
from fedax.factories import partition
from fedax.models import (
    central_crop,
    inverted,
    preprocessed,
    random_crop,
    random_flip,
    scaled,
    standardised,
    standardised_each,
)
from fedax.rounds.cohort import client_key
from fedax.rounds.state import initial_state, run_key
from problems import identical, largest_difference

pytestmark = pytest.mark.shares_programs

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (6, 8, 7, 3)).astype(np.uint8)
KEY = jax.random.key(0)
CROPPED = (random_crop((5, 4)), random_flip(), standardised_each())


def floats(dtype=np.float64):
    return jnp.asarray(IMAGES.astype(dtype))


def tensorflow_standardised(images):
    """`tf.image.per_image_standardization`, with NumPy, in float64."""
    found = []
    for image in images.astype(np.float64):
        least = 1.0 / np.sqrt(image.size)
        found.append((image - image.mean()) / max(image.std(), least))
    return np.stack(found)


def linear(shape=(5, 4, 3), classes=4, dtype=jnp.float64):
    """Logits that are linear in the images."""
    size = int(np.prod(shape))

    def init(key):
        return {"w": jax.random.normal(key, (size, classes), dtype) / size}

    return fedax.classification(init, lambda params, x: x.reshape(len(x), -1) @ params["w"])


# The numbers.


@pytest.mark.quick
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_steps_are_what_numpy_computes(dtype):
    dtype = jnp.dtype(dtype)
    tolerance = {"bfloat16": 1e-2, "float32": 1e-5, "float64": 1e-12}[dtype.name]
    x = IMAGES.astype(np.float64)
    mean, std = np.array([100.0, 120.0, 90.0]), np.array([60.0, 50.0, 70.0])
    expected = {
        scaled(): x / 255, scaled(2.0): x / 2, inverted(): 1 - x,
        standardised(mean.tolist(), std.tolist()): (x - mean) / std,
        standardised(mean, std): (x - mean) / std,
        standardised_each(): tensorflow_standardised(IMAGES),
        central_crop((4, 4)): x[:, 2:6, 1:5],
    }
    for step, wanted in expected.items():
        found = step(floats(dtype), None)
        assert found.dtype == dtype
        np.testing.assert_allclose(
            np.asarray(found, np.float64), wanted, rtol=tolerance, atol=tolerance
        )


@pytest.mark.quick
def test_an_image_of_one_colour_is_not_divided_by_nothing():
    """The deviation is less than 1 / sqrt(n) = 1/4, so that is what divides."""
    flat, faint = np.full((4, 4, 1), 7.0), np.full((4, 4, 1), 7.0)
    faint[0, 0, 0] += 0.16
    found = np.asarray(standardised_each()(jnp.asarray(np.stack([flat, faint])), None))
    assert (found[0] == 0).all()
    np.testing.assert_allclose(found[1], (faint - faint.mean()) * 4, rtol=1e-12, atol=1e-12)


@pytest.mark.quick
@pytest.mark.parametrize("padding", [0, 2])
def test_a_crop_is_a_part_of_its_image_and_a_flip_its_mirror_image(padding):
    x = np.pad(IMAGES, ((0, 0), (padding,) * 2, (padding,) * 2, (0, 0))).astype(np.float64)
    found = np.asarray(random_crop((5, 4), padding)(floats(), KEY))
    for image, part in zip(x, found, strict=True):
        windows = np.lib.stride_tricks.sliding_window_view(image, (5, 4), (0, 1))
        assert (windows == np.moveaxis(part, 2, 0)[None, None]).all((2, 3, 4)).sum() == 1
    for before, after in zip(IMAGES, random_flip()(floats(), KEY), strict=True):
        same, mirrored = ((before[:, ::by] == np.asarray(after)).all() for by in (1, -1))
        assert same != mirrored


def chi_square(counts):
    expected = counts.sum() / counts.size
    return ((counts - expected) ** 2 / expected).sum()


@pytest.mark.quick
def test_offsets_and_flips_are_uniform_and_independent():
    """Where a crop begins is what its first pixel says; bounds are the 0.1% quantiles."""
    places = jnp.arange(9 * 9, dtype=jnp.float64).reshape(1, 9, 9, 1)
    images = jnp.broadcast_to(places, (64, 9, 9, 1))  # offsets 0 .. 4 each way

    @jax.jit
    def corners(key):
        first, second = jax.random.split(key)
        return random_flip()(random_crop(5)(images, first), second)[:, 0, (0, 4), 0]

    ends = np.asarray(jax.lax.map(corners, jax.random.split(KEY, 200))).reshape(-1, 2).astype(int)
    flips = ends[:, 0] > ends[:, 1]
    tops, lefts = np.divmod(ends.min(1), 9)
    counts = np.zeros((5, 5, 2))
    np.add.at(counts, (tops, lefts, flips.astype(int)), 1)
    assert counts.sum() == 12_800
    assert chi_square(counts) < 85.4  # 49 degrees of freedom
    assert chi_square(counts.sum((0, 1))) < 10.8  # 1
    assert chi_square(counts.sum((1, 2))) < 18.5  # 4
    # Nor does an image know of the next.
    following = np.zeros((25, 25))
    np.add.at(following, (5 * tops[:-1] + lefts[:-1], 5 * tops[1:] + lefts[1:]), 1)
    assert chi_square(following) < 739.0  # 624


# The model behind them.


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_training_and_evaluation_see_what_they_should(dtype):
    """The loss is that of the model on the steps' images, as are the outputs and metrics."""
    model = linear(dtype=jnp.dtype(dtype))
    wrapped = preprocessed(
        model, training=CROPPED, evaluation=(central_crop((5, 4)), standardised_each())
    )
    params = wrapped.init(KEY)
    assert identical(params, model.init(KEY))
    batch = {"x": jnp.asarray(IMAGES), "y": jnp.arange(6) % 4}
    drawn = jax.random.fold_in(KEY, 0x1A6E)
    wide = floats("float64" if dtype == "float64" else "float32")
    for number, step in enumerate(CROPPED):
        wide = step(wide, jax.random.fold_in(drawn, number))
    seen = batch | {"x": wide.astype(dtype)}
    assert identical(wrapped.loss(params, batch, KEY), model.loss(params, seen, KEY))
    middle = jnp.asarray(tensorflow_standardised(IMAGES[:, 1:6, 1:5]), dtype)
    outputs = wrapped.outputs(params, batch)
    tolerance = {"bfloat16": 2e-2, "float32": 1e-5, "float64": 1e-12}[dtype]
    np.testing.assert_allclose(
        np.asarray(outputs, np.float64),
        np.asarray(model.outputs(params, batch | {"x": middle}), np.float64),
        rtol=tolerance, atol=tolerance,
    )
    assert outputs.dtype == dtype
    assert identical(
        wrapped.metrics["loss"](outputs, batch), model.metrics["loss"](outputs, batch)
    )


def test_metrics_that_look_at_the_images_see_the_same_ones_as_the_model():
    """An autoencoder's error, whose target is the inverted image."""
    model = fedax.regression(
        lambda key: {"w": jnp.zeros(())}, lambda params, x: x * params["w"], targets="x"
    )
    wrapped = preprocessed(model, evaluation=[scaled(), inverted()], training=[scaled()])
    batch, params = {"x": jnp.asarray(IMAGES)}, wrapped.init(KEY)
    values, _ = wrapped.metrics["loss"](wrapped.outputs(params, batch), batch)
    expected = ((1 - IMAGES / 255.0) ** 2).reshape(6, -1).sum(1) / 2
    np.testing.assert_allclose(values, expected, rtol=1e-12)
    losses, _ = wrapped.loss(params, batch, KEY)
    np.testing.assert_allclose(
        losses, ((IMAGES / 255.0) ** 2).reshape(6, -1).sum(1) / 2, rtol=1e-12
    )


@pytest.mark.quick
def test_under_vmap_scan_and_grad_it_is_the_same():
    model = preprocessed(linear(), training=(random_crop((5, 4), 1), *CROPPED[1:]))
    params, gradient = model.init(KEY), loss_gradient(model)
    keys = jax.random.split(KEY, 3)
    x, y = jnp.asarray(np.stack([IMAGES] * 3)), jnp.zeros((3, 6), jnp.int32)

    def one(x, y, key):
        return gradient(params, Minibatch({"x": x, "y": y}, jnp.ones(6, bool)), key)[1]

    single = [one(*arguments) for arguments in zip(x, y, keys, strict=True)]
    assert not identical(single[0], single[1])  # other crops
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *single)
    _, scanned = jax.jit(lambda: jax.lax.scan(lambda c, of: (c, one(*of)), 0, (x, y, keys)))()
    for found in (jax.jit(jax.vmap(one))(x, y, keys), scanned):
        assert largest_difference(found, stacked) < 1e-12


# In a training run.


def image_task(sizes):
    rng = np.random.default_rng(1)
    data = fedax.FederatedDataset.from_clients([
        {"x": rng.integers(0, 256, (n, 8, 7, 3)).astype(np.uint8),
         "y": rng.integers(0, 4, n).astype(np.int32)}
        for n in sizes
    ])
    model = preprocessed(
        linear(), training=CROPPED, evaluation=(central_crop((5, 4)), standardised_each())
    )
    return fedax.Task(model, data, data, "images")


@pytest.mark.slow
def test_a_client_sees_the_same_whatever_the_chunk_or_the_cohort():
    task = image_task((5, 3, 4, 2))
    algorithm = fedax.fedavg(task.model, 0.1, batch_size=2, num_local_epochs=2)
    options = {"num_rounds": 2, "cohort_size": 3, "progress": False}
    one, several = (
        fedax.train(task, algorithm, clients_per_chunk=chunk, **options) for chunk in (1, 3)
    )
    assert largest_difference(one.params, several.params) < 1e-12
    assert one.history["test_loss"][-1] == pytest.approx(several.history["test_loss"][-1])
    # Another order of the cohort: the clients' names and data change places, their ids do not.
    order = [(lambda seed, t, ids=ids: np.array(ids)) for ids in ([0, 2, 3], [3, 0, 2])]
    turned = [
        fedax.train(task, algorithm, sampling=draw, **options | {"num_rounds": 1}).params
        for draw in order
    ]
    assert largest_difference(*turned) < 1e-12
    other = fedax.train(task, algorithm, seed=1, **options)
    assert largest_difference(other.params, one.params) > 1e-3


@pytest.mark.slow
def test_both_gradients_of_a_step_of_mime_see_one_draw():
    """With K = 1 they are at the same point, so they cancel and c is left: FedSGD's step."""
    task = image_task((3, 3))
    options = {"batch_size": 2, "num_local_steps": 1}
    base = fedax.base_optimizers.sgdm(0.0)
    algorithm = fedax.mime(task.model, 0.1, base, **options)
    result = fedax.train(task, algorithm, num_rounds=1, cohort_size=2, progress=False)
    start = initial_state(task, algorithm).server_state.params

    run = run_key(0, 1)

    @jax.jit
    def full(arrays, client):
        key = client_key(run, jnp.int32(0), client, 0, 0)
        data = ClientData(arrays, jnp.int32(0), jnp.int32(3), 3)
        return full_gradient(loss_gradient(task.model), start, data, key, batch_size=2)[1]["w"]

    gradients = [full(task.train.client(client), client) for client in (0, 1)]
    np.testing.assert_allclose(
        result.params["w"], start["w"] - 0.05 * sum(gradients), rtol=1e-9, atol=1e-12
    )


def test_models_that_differ_in_numbers_only_share_a_program():
    model = linear()

    def made(mean, divisor, size=5):
        steps = [random_crop(size), scaled(divisor), standardised([mean] * 3, [1.0] * 3)]
        return preprocessed(model, training=steps)

    numbers, structure = partition(made(0.1, 255.0))
    assert sorted(float(number) for number in numbers) == [*[0.1] * 3, *[1.0] * 3, 255.0]
    assert partition(made(0.2, 127.0))[1] == structure
    assert partition(made(0.1, 255.0, size=4))[1] != structure


# What is wrong is a sentence.


@pytest.mark.quick
def test_labels_are_checked_although_the_images_change_their_size():
    task = image_task((4, 3))
    task.train.arrays["y"][3] = 4
    algorithm = fedax.fedavg(task.model, 0.1)
    with pytest.raises(ModelError, match=r"'y' must be from 0 to 3.* 1 to 4"):
        fedax.train(task, algorithm, num_rounds=1, cohort_size=2, progress=False)


@pytest.mark.quick
@pytest.mark.parametrize(("make", "error", "words"), [
    (lambda: random_crop(0), ValueError, "crop's height must be .* at least 1, but is 0"),
    (lambda: random_crop((3, 4, 5)), ValueError, r"height and width, not \(3, 4, 5\)"),
    (lambda: random_crop(3, -1), ValueError, "padding must be .* at least 0, but is -1"),
    (lambda: scaled(0), ValueError, "divisor must be .* above 0, but is 0"),
    (lambda: standardised([0.0], [0.0]), ValueError, "standard deviation must be .* above 0"),
    (lambda: standardised([np.nan], [1.0]), ValueError, "A mean must be a finite number"),
    (lambda: preprocessed("model"), TypeError, "model must be a fedax.Model"),
    (lambda: preprocessed(linear(), training=scaled()), TypeError, "training must be a list"),
    (lambda: preprocessed(linear(), evaluation=[3]), TypeError, "evaluation must be a list"),
    (lambda: random_crop(9)(floats(), KEY), ModelError, "9x9 pixels does not fit .* 8x7"),
    (lambda: random_flip()(floats(), None), ModelError, "random_flip is random"),
    (lambda: standardised([0.0] * 2, [1.0] * 2)(floats(), None), ModelError,
     "2 means and 2 standard deviations, but the images have 3 channels"),
    (lambda: preprocessed(linear()).outputs({"w": jnp.zeros((1, 1))}, {"x": jnp.zeros((2, 3))}),
     ModelError, r"'x' must have the shape \[B, height, width, channels\], but have \[2, 3\]"),
    (lambda: preprocessed(linear(), images="z").loss({"w": jnp.zeros((1, 1))}, {"x": IMAGES}, KEY),
     ModelError, "needs the array 'z'"),
])
def test_a_mistake_is_a_sentence(make, error, words):
    with pytest.raises(error, match=words):
        make()
