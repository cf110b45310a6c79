"""Coming from PyTorch: weights there and back, data sets as arrays. PyTorch is not needed.

tests/torch_cnn.npz holds inputs, weights and outputs of a CNN in PyTorch, in evaluation mode.
"""

from pathlib import Path
from types import SimpleNamespace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from flax import nnx

import fedax
from fedax.models import from_torch, to_torch

OPTIONS = {"layers": {"fc1": "head"}, "flattened": {"fc1": (6, 4, 6)}}


class Network(nn.Module):
    """The fixture's network; it gives one layer another name."""

    @nn.compact
    def __call__(self, x):
        x = nn.Conv(4, (3, 3), padding="VALID", name="conv")(x)
        x = nn.relu(nn.BatchNorm(use_running_average=True, epsilon=1e-5, name="bn")(x))
        x = nn.Conv(6, (3, 3), padding="VALID", feature_group_count=2, name="grouped")(x)
        x = nn.relu(nn.GroupNorm(2, epsilon=1e-5, name="norm")(x))
        x = nn.Dense(10, name="head")(x.reshape(len(x), -1))
        return nn.Dense(5, name="fc2")(nn.relu(nn.LayerNorm(epsilon=1e-5, name="ln")(x)))


@pytest.fixture(scope="module")
def recorded():
    with np.load(Path(__file__).parent / "torch_cnn.npz") as file:
        state = {name.removeprefix("state."): file[name] for name in file if "state." in name}
        return file["inputs"], state, file["outputs"]


@pytest.fixture(scope="module")
def like():
    with jax.enable_x64(False), jax.numpy_rank_promotion("allow"):
        return Network().init(jax.random.key(0), jnp.zeros((1, 8, 10, 3)))


@pytest.mark.slow
def test_a_model_of_pytorch_predicts_alike_and_comes_back_to_the_bit(recorded, like, tmp_path):
    inputs, state, outputs = recorded
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(state, path)
    with jax.enable_x64(False), jax.numpy_rank_promotion("allow"):
        variables = from_torch(path, like, **OPTIONS)
        found = Network().apply(variables, jnp.moveaxis(jnp.asarray(inputs), 1, -1))
        back = to_torch(variables, state, **OPTIONS)
    np.testing.assert_allclose(found, outputs, rtol=0, atol=1e-6)
    assert list(back) == list(state)
    for name, array in state.items():
        assert back[name].dtype == array.dtype
        np.testing.assert_array_equal(back[name], array)


def test_what_has_no_place_is_named(recorded, like):
    _, state, _ = recorded
    with pytest.raises(ValueError, match=r"'fc1.weight' .* no counterpart here.*layers="):
        from_torch(state, like, flattened=OPTIONS["flattened"])
    with pytest.raises(ValueError, match=r"running statistics 'bn.running_mean'.*batch_stats"):
        from_torch(state, like["params"], **OPTIONS)
    missing = {name: array for name, array in state.items() if name != "fc2.bias"}
    with pytest.raises(ValueError, match=r"no array for 'params.fc2.bias'"):
        from_torch(missing, like, **OPTIONS)
    with pytest.raises(ValueError, match="flattened has the layer 'fc9'"):
        from_torch(state, like, layers=OPTIONS["layers"], flattened={"fc9": (1, 2, 3)})
    with pytest.raises(ValueError, match="4 x 4 x 6 = 96 inputs"):
        from_torch(state, like, layers=OPTIONS["layers"], flattened={"fc1": (4, 4, 6)})
    with pytest.raises(ValueError, match=r"'lstm.weight_ih_l0' .* has no counterpart"):
        from_torch({"lstm.weight_ih_l0": np.zeros((4, 2))}, {})


def test_a_norm_behind_a_flattened_image_is_reordered():
    state = {"norm.weight": np.arange(12.0), "norm.bias": -np.arange(12.0)}
    like = {"norm": {"scale": jnp.zeros(12), "bias": jnp.zeros(12)}}
    moved = from_torch(state, like, flattened={"norm": (3, 2, 2)})
    channels_last = np.moveaxis(np.arange(12.0).reshape(3, 2, 2), 0, -1).ravel()
    np.testing.assert_array_equal(moved["norm"]["scale"], channels_last)
    np.testing.assert_array_equal(moved["norm"]["bias"], -channels_last)
    back = to_torch(moved, state, flattened={"norm": (3, 2, 2)})
    np.testing.assert_array_equal(back["norm.bias"], state["norm.bias"])


class ConvTranspose2d:
    """As PyTorch's, whose kernel has the shape of a convolution's."""

    _parameters, _buffers = {"weight": np.zeros((2, 2, 3, 3))}, {}

    def named_modules(self):
        return [("up", self)]

    def state_dict(self):
        return {"up.weight": self._parameters["weight"]}


def test_a_layer_that_cannot_be_moved_is_refused_by_name():
    with pytest.raises(ValueError, match="The layer 'up' is a ConvTranspose2d"):
        from_torch(ConvTranspose2d(), {"up": {"kernel": jnp.zeros((3, 3, 2, 2))}})


@pytest.mark.quick
def test_nnx_and_layouts_of_pytorch():
    state = {"fc.weight": np.arange(6.0).reshape(2, 3), "fc.bias": np.ones(2)}
    layer = nnx.split(nnx.Dict(fc=nnx.Linear(3, 2, rngs=nnx.Rngs(0))))[1]
    moved = from_torch(state, layer)
    np.testing.assert_array_equal(nnx.to_pure_dict(moved)["fc"]["kernel"], state["fc.weight"].T)
    np.testing.assert_array_equal(to_torch(moved, state)["fc.weight"], state["fc.weight"])
    same = from_torch(state, {"fc": {"weight": jnp.zeros((2, 3)), "bias": jnp.zeros((2, 1))}})
    np.testing.assert_array_equal(same["fc"]["weight"], state["fc.weight"])
    assert same["fc"]["bias"].shape == (2, 1)


def default_collate(batch):
    return batch


def loader(
    dataset, sampler="RandomSampler", collate_fn=default_collate, batch_sampler=None, **options
):
    kind = type(sampler, (), {"replacement": False, **options})
    return SimpleNamespace(
        dataset=dataset, sampler=kind(), batch_sampler=batch_sampler, collate_fn=collate_fn
    )


ROWS = [(np.full((2, 2), n, np.float32), n) for n in range(10)]


@pytest.mark.quick
def test_data_sets_and_loaders_become_arrays():
    shuffled = loader(ROWS[:4])
    subset = loader(ROWS, "SubsetRandomSampler", indices=[4, 5, 6, 7, 8, 9])
    data = fedax.FederatedDataset.from_torch({"ada": shuffled, "bob": subset})
    assert data.names.tolist() == ["ada", "bob"]
    assert data.arrays["y"].tolist() == list(range(10))
    np.testing.assert_array_equal(data.client("bob")["x"][0], ROWS[4][0])
    flat = fedax.FederatedDataset.from_torch(ROWS, client_ids=[n % 3 for n in range(10)])
    assert flat.client(1)["y"].tolist() == [1, 4, 7]
    named = fedax.FederatedDataset.from_torch([[{"pixels": 1.0, "digit": 3}]])
    assert named.arrays.keys() == {"pixels", "digit"}


@pytest.mark.parametrize(("source", "message"), [
    ([SimpleNamespace()], "Client 0: SimpleNamespace has no length"),
    ([loader(ROWS, "WeightedRandomSampler")], "draws examples by WeightedRandomSampler"),
    ([loader(ROWS, replacement=True)], "draws examples by RandomSampler"),
    ([loader(ROWS, collate_fn=len)], "collate_fn of its own"),
    ([loader(ROWS, batch_sampler=[[0, 1]])], "batch_sampler of its own"),
    ([[]], "Client 0 has no examples"),
    ([ROWS, [("text", 1)]], "Client 1, example 0: 'x' is of type str"),
    ([[(1.0, 2, 3)]], "has 3 parts, but names= has 2"),
    ([[(np.zeros(2), 1), (np.zeros(3), 1)]], r"example 1: 'x' is float64\[3\].*float64\[2\]"),
])
def test_what_is_not_an_array_is_refused_with_client_and_example(source, message):
    with pytest.raises(ValueError, match=message):
        fedax.FederatedDataset.from_torch(source)


def test_one_data_set_of_all_clients_needs_their_names():
    with pytest.raises(TypeError, match="client_ids="):
        fedax.FederatedDataset.from_torch(SimpleNamespace(dataset=1))
