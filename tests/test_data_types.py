"""Arrays that no model can compute with are sentences that name client and array."""

import datetime

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedax
from fedax import FederatedDataset, Task

pytestmark = pytest.mark.quick

X = np.arange(36.0).reshape(12, 3)
Y = np.arange(12) % 5

# What an array must not be -> words of the sentence.
ARRAYS = {
    "text": (np.array(["a"] * 12), "text"),
    "bytes": (np.array([b"a"] * 12), "text"),
    "text of any length": (np.array(["a"] * 12, np.dtypes.StringDType()), "text"),
    "mixed": ([1, "a"] * 6, "text"),
    "objects": (np.array([1, None] * 6, object), "objects"),
    "dates": ([datetime.date(2020, 1, 1)] * 12, "objects"),
    "days": (np.array(["2020-01-01"] * 12, "M8[D]"), "datetime64"),
    "seconds": (np.array([1] * 12, "m8[s]"), "timedelta64"),
    "long doubles": (np.ones(12, np.clongdouble), "complex"),
    "records": (np.zeros(12, [("a", float), ("b", int)]), "'a'"),
    "raw bytes": (np.zeros(12, "V8"), "V8"),
    "another byte order": (np.ones(12, np.dtype(float).newbyteorder()), "byte order"),
    "whole numbers without end": ([10**400] * 12, "objects"),
    "lists of unequal lengths": ([[1], [1, 2]] * 6, "the same shape"),
    "keys": (jax.random.split(jax.random.key(0), 12), "cannot become an array"),
    "a mask": (np.ma.masked_array(X, X > 3), "masked"),
}
if np.longdouble is not np.float64 and np.dtype(np.longdouble).itemsize > 8:
    ARRAYS["a long double"] = (np.ones(12, np.longdouble), "float")


@pytest.mark.parametrize("kind", ARRAYS)
def test_what_no_model_can_take_is_a_sentence(kind):
    array, word = ARRAYS[kind]
    clients = {"eve": {"x": X, "y": Y}, "ada": {"x": X, "y": array}}
    for make in (
        lambda: FederatedDataset.from_clients(clients),
        lambda: FederatedDataset.from_arrays({"x": X, "y": array}, Y),
        lambda: FederatedDataset({"x": X, "y": array}, np.array([0, 4, 12])),
    ):
        with pytest.raises(ValueError, match=r"array 'y'") as caught:
            make()
        assert word in str(caught.value)
        assert len(str(caught.value)) < 400
    with pytest.raises(ValueError, match="Client 'ada': array 'y'"):
        FederatedDataset.from_clients(clients)


def test_numbers_of_every_kind_are_taken():
    kinds = [bool, np.int8, np.uint64, np.float16, np.float32, jnp.bfloat16, np.complex64]
    for kind in kinds:
        data = FederatedDataset.from_clients([{"x": X.astype(kind)}])
        assert data.arrays["x"].dtype == kind


@pytest.mark.parametrize("name", [5, None, ("x",)])
def test_an_array_has_a_name(name):
    for make in (
        lambda: FederatedDataset.from_clients({"ada": {name: X}}),
        lambda: FederatedDataset.from_arrays({name: X}, Y),
        lambda: FederatedDataset({name: X}, np.array([0, 12])),
    ):
        with pytest.raises(TypeError, match="name must be text"):
            make()


@pytest.mark.parametrize("names", ["ab", 5, ["a"]])
def test_as_many_names_as_clients(names):
    with pytest.raises(ValueError, match="2 clients need as many names"):
        FederatedDataset({"x": X}, np.array([0, 4, 12]), names)


def own_model():
    """A model without a check of its own; labels are looked up as whole numbers."""
    def loss(params, batch, key):
        losses = -jax.nn.log_softmax(batch["x"].astype(float) @ params)[:, 0]
        return losses * batch["y"].astype(float), jnp.ones_like(losses)

    return fedax.Model(lambda key: jnp.zeros((3, 5)), loss, lambda params, batch: batch["x"], {})


@pytest.mark.parametrize("label", [2**32 + 1, -(2**31) - 1, 2**31])
def test_whole_numbers_that_would_become_others_are_a_sentence(label):
    """2**32 + 1 would train as class 1, whatever the model."""
    y = Y.copy()
    y[7] = label
    data = FederatedDataset({"x": X, "y": y}, np.array([0, 4, 8, 12]), ["ada", "bob", "eve"])
    model = own_model()
    with jax.enable_x64(False), pytest.raises(fedax.ModelError, match=r"client 'bob': .*'y'") as e:
        fedax.train(Task(model, data), fedax.fedavg(model), num_rounds=1, cohort_size=3)
    assert str(label) in str(e.value)


@pytest.mark.quick
@pytest.mark.parametrize("bad", [2**32 + 3, 1e300, -1e39])
@pytest.mark.parametrize("resident", [True, False])
def test_numbers_that_jax_would_change_reach_no_model(bad, resident):
    """`fedax.predict` and cohorts look at them, too, and not only the start of training."""
    x = np.array([[bad], [1]])
    data = FederatedDataset({"x": x, "y": np.zeros(2)}, np.array([0, 1, 2]))
    model = fedax.regression(lambda key: jnp.zeros(1), lambda p, x: x.astype(p.dtype) @ p)
    size = 2**30 if resident else 0
    with jax.enable_x64(False):
        for call in (
            lambda: fedax.predict(model, jnp.ones(1), data),
            lambda: fedax.predict(model, jnp.ones(1), x),
            lambda: fedax.CohortReader(data, size)(np.arange(2)),
            lambda: fedax.train(Task(model, data), fedax.fedavg(model), num_rounds=1),
        ):
            with pytest.raises(fedax.ModelError, match=r"'x' has .* but JAX stores") as caught:
                call()
            assert f"{bad:g}" in str(caught.value) or str(bad) in str(caught.value)
        # What is infinite stays so, and what fits is taken.
        fits = np.array([[np.inf], [np.nan], [3e38]])
        assert fedax.predict(model, jnp.ones(1), fits).tolist()[0] == np.inf


@pytest.mark.parametrize("kind", ["int8", "int32", "int64", "uint8", "uint32", "uint64"])
def test_labels_of_every_width_are_looked_at(kind):
    model = fedax.classification(lambda key: jnp.zeros((3, 5)), lambda p, x: x @ p)
    info = np.iinfo(kind)
    for label in (5, info.min or 5, info.max):
        y = Y.astype(kind)
        y[7] = label
        data = FederatedDataset({"x": X, "y": y}, np.array([0, 4, 8, 12]), ["ada", "bob", "eve"])
        with pytest.raises(fedax.ModelError, match="client 'bob': The labels 'y'") as caught:
            fedax.train(Task(model, data), fedax.fedavg(model), num_rounds=1, cohort_size=3)
        assert str(label) in str(caught.value)
