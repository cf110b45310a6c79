"""Parameters in files that other libraries read, and where training starts from."""

import json
import os
from collections import OrderedDict, namedtuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

import fedax
from fedax.experiment import params as params_module
from problems import identical, quadratic_task

pytestmark = pytest.mark.shares_programs

Layer = namedtuple("Layer", ["w", "b"])

TREE = {
    "dense.0": Layer(jnp.arange(6.0).reshape(2, 3), jnp.asarray(1.5, jnp.bfloat16)),
    "list": [jnp.zeros((0, 3)), (jnp.ones(2, jnp.float16), None), []],
    "empty": {},
    "scale": jnp.asarray(2.0),
    "turned": jnp.arange(6.0, dtype=jnp.float32).reshape(2, 3).T,
}


@pytest.mark.quick
def test_whole_numbers_as_keys_come_back(tmp_path):
    tree = {0: jnp.ones(1), 10: [jnp.zeros(2)], -3: {"0": jnp.ones(3)}}
    fedax.save_params(tree, tmp_path / "m.safetensors")
    found = fedax.load_params(tmp_path / "m.safetensors")
    assert identical(found, tree)
    assert set(found) == {0, 10, -3}
    with pytest.raises(ValueError, match="neither a container"):
        params_module.rebuilt({"dict": {"a": None}, "keys": "integers"}, {})


@pytest.mark.quick
@pytest.mark.parametrize("name", ["m.npz", "m.PT", "a/m.pkl", "m.h5", "m.tar.gz", "m.msgpack"])
def test_a_name_of_another_format_is_refused(name, tmp_path):
    with pytest.raises(ValueError, match=r"writes a safetensors file, but .*Use .*safetensors"):
        fedax.save_params({"w": jnp.ones(2)}, tmp_path / name)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["m", "m.safetensors", "model.v1", "rate-0.1"])
def test_any_other_name_is_taken(name, tmp_path):
    fedax.save_params({"w": jnp.ones(2)}, tmp_path / name)
    assert fedax.load_params(tmp_path / name)["w"].tolist() == [1, 1]


def test_what_is_saved_comes_back_with_its_containers_and_bits(tmp_path):
    fedax.save_params(TREE, tmp_path / "model.safetensors")
    found = fedax.load_params(tmp_path / "model.safetensors")
    assert list(found) == sorted(TREE)
    assert type(found["dense.0"]).__name__ == "Layer"
    assert found["dense.0"]._fields == Layer._fields
    assert found["empty"] == {}
    assert found["list"][2] == []
    assert found["list"][1][1] is None
    assert identical(list(jax.tree.leaves(found)), list(jax.tree.leaves(TREE)))
    exact = fedax.load_params(tmp_path / "model.safetensors", like=TREE)
    assert identical(exact, TREE)
    twice = fedax.load_params(tmp_path / "model.safetensors")
    assert jax.tree.structure(found) == jax.tree.structure(twice)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.mark.parametrize(
    ("tree", "names"),
    [
        (jnp.ones(2), ["params"]),
        (OrderedDict(b=jnp.ones(1), a={"c": jnp.ones(1)}), ["a.c", "b"]),
        ((jnp.ones(1), [jnp.ones(2)]), ["0", "1.0"]),
        ({"a": 1.5, "b": {"c.d": np.float32(2)}}, ["a", "b.c.d"]),
    ],
)
def test_another_library_reads_the_file_by_its_names(tmp_path, tree, names):
    fedax.save_params(tree, tmp_path / "p.safetensors")
    arrays = safetensors.numpy.load_file(tmp_path / "p.safetensors")
    assert sorted(arrays) == names
    assert identical([arrays[name] for name in params_module.named_leaves(tree)],
                     [np.asarray(leaf) for leaf in jax.tree.leaves(tree)])
    with safetensors.safe_open(tmp_path / "p.safetensors", "np") as file:
        assert json.loads(file.metadata()["fedax"])["version"] == fedax.__version__
    again = (tmp_path / "p.safetensors").read_bytes()
    fedax.save_params(tree, tmp_path / "p.safetensors")
    assert (tmp_path / "p.safetensors").read_bytes() == again


def test_a_file_of_another_library_is_opened_at_the_dots(tmp_path):
    arrays = {"layers.0.weight": np.ones((2, 2)), "layers.0.bias": np.zeros(2), "scale": np.ones(1)}
    safetensors.numpy.save_file(arrays, tmp_path / "theirs.safetensors")
    found = fedax.load_params(tmp_path / "theirs.safetensors")
    assert sorted(found["layers"]["0"]) == ["bias", "weight"]
    like = {"layers": [{"weight": jnp.zeros((2, 2)), "bias": jnp.zeros(2)}], "scale": jnp.zeros(1)}
    into = fedax.load_params(tmp_path / "theirs.safetensors", like=like)
    assert into["layers"][0]["weight"].sum() == 4
    safetensors.numpy.save_file({"a": np.ones(1), "a.b": np.ones(1)}, tmp_path / "odd.safetensors")
    with pytest.raises(ValueError, match=r"do not form a structure: 'a.*Pass like="):
        fedax.load_params(tmp_path / "odd.safetensors")


def test_a_module_comes_back_as_itself_with_like_and_else_as_dictionaries(tmp_path):
    import equinox as eqx

    module = eqx.filter(eqx.nn.Linear(3, 2, key=jax.random.key(0)), eqx.is_array)
    fedax.save_params(module, tmp_path / "m")
    assert set(fedax.load_params(tmp_path / "m")) == {"weight", "bias"}
    assert identical(fedax.load_params(tmp_path / "m", like=module), module)


@pytest.mark.parametrize(
    ("like", "sentence"),
    [
        ({"w": jnp.ones((2, 4)), "b": jnp.ones(3)},
         r"The array 'w' of .* is float64\[2, 3\], but that of like is float64\[2, 4\]\.$"),
        ({"w": jnp.ones((2, 3), jnp.float32), "b": jnp.ones(3)},
         r"'w' of .* is float64\[2, 3\], .* like is float32\[2, 3\]\. Convert it with \.astype\."),
        ({"w": jnp.ones((2, 3)), "b": jnp.ones(3), "c": jnp.ones(1)},
         r"has no array 'c', but like has one, float64\[1\]; it has 'b', 'w'\."),
        ({"w": jnp.ones((2, 3))}, "has an array 'b', but like does not; it has 'w'"),
    ],
)
def test_arrays_that_differ_are_named(tmp_path, like, sentence):
    fedax.save_params({"w": jnp.ones((2, 3)), "b": jnp.ones(3)}, tmp_path / "p")
    with pytest.raises(ValueError, match=sentence):
        fedax.load_params(tmp_path / "p", like=like)


def test_what_cannot_be_saved_is_a_sentence_and_the_file_of_before_stays(tmp_path, monkeypatch):
    path = tmp_path / "p"
    fedax.save_params({"w": jnp.ones(1)}, path)
    before = path.read_bytes()
    for tree, sentence in (
        ({"key": jax.random.key(0)}, "Array 'key' has dtype key<fry>"),
        ({"name": "ada"}, "Array 'name' has dtype str"),
        ({"z": np.ones(1, complex)}, "Array 'z' has dtype complex128"),
        ({"a": {"b": 1.0}, "a.b": 2.0}, "Two arrays would both be named 'a.b'"),
    ):
        with pytest.raises(ValueError, match=sentence):
            fedax.save_params(tree, path)
    with pytest.raises(FileNotFoundError, match=r"Cannot write .*nowhere.p: No such file"):
        fedax.save_params({"w": jnp.ones(1)}, tmp_path / "nowhere" / "p")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match=r"Cannot write .*No space left on device"):
            fedax.save_params({"w": jnp.zeros(1)}, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_no_file_of_parameters_is_a_sentence(tmp_path):
    path = tmp_path / "p"
    with pytest.raises(FileNotFoundError, match=r"Cannot read .*p: No such file"):
        fedax.load_params(path)
    fedax.save_params(TREE, path)
    whole = path.read_bytes()
    for cut in (0, 5, 40, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match="is not a safetensors file, or damaged"):
            fedax.load_params(path)
    path.write_bytes(whole)
    with jax.enable_x64(False), pytest.raises(
        ValueError, match=r"is float64, but 64-bit .* jax\.config\.update"
    ):
        fedax.load_params(path)


def test_eight_bits_too(tmp_path):
    for dtype in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
        tree = {"w": np.arange(4).astype(dtype)}
        fedax.save_params(tree, tmp_path / "p")
        assert identical(fedax.load_params(tmp_path / "p"), tree)


TASK = quadratic_task()
OPTIONS = {"num_rounds": 3, "cohort_size": 4, "evaluate_every": 0}


def test_training_starts_where_it_is_told():
    algorithm = fedax.fedavg(TASK.model, 0.1, batch_size=4)
    start = {"x": np.array([1.0, -2.0, 3.0])}
    told = fedax.train(TASK, algorithm, initial_params=start, **OPTIONS)
    same = fedax.initial_state(TASK, algorithm, params=start)
    assert identical(same.server_state.params, start)
    assert identical(fedax.train(TASK, algorithm, state=same, **OPTIONS).params, told.params)
    fixed = quadratic_task(start=[1.0, -2.0, 3.0])
    assert identical(fedax.train(fixed, algorithm, **OPTIONS).params, told.params)
    drawn = fedax.train(TASK, algorithm, **OPTIONS).params
    assert not identical(drawn, told.params)
    assert identical(start, {"x": np.array([1.0, -2.0, 3.0])})


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"y": np.zeros(3)}, "initial_params has no array 'x', but the model has one"),
        ({"x": np.zeros(4)}, r"'x' of initial_params is float64\[4\], but that of the model is "
                             r"float64\[3\]"),
        ({"x": np.zeros(3, np.float32)}, r"is float32\[3\], .*Convert it with \.astype"),
        ({"x": np.zeros(3), "b": np.zeros(1)}, "array 'b', but the model does not"),
    ],
)
def test_a_start_that_does_not_fit_the_model_is_a_sentence(params, sentence):
    algorithm = fedax.fedavg(TASK.model, 0.1)
    with pytest.raises(ValueError, match=sentence):
        fedax.train(TASK, algorithm, initial_params=params, **OPTIONS)


def test_a_state_and_a_start_are_one_too_many(tmp_path):
    algorithm = fedax.fedavg(TASK.model, 0.1)
    state = fedax.initial_state(TASK, algorithm)
    for other in ({"initial_params": {"x": np.zeros(3)}}, {"out": tmp_path / "run"}):
        with pytest.raises(ValueError, match=f"state and {next(iter(other))} cannot be combined"):
            fedax.train(TASK, algorithm, state=state, **other, **OPTIONS)
    assert not (tmp_path / "run").exists()
