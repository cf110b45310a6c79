"""Weights from PyTorch and back: names, layouts of layers, running statistics.

PyTorch is never imported: its tensors and modules are recognised by their attributes.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from fedax.algorithm import PyTree
from fedax.files.regular import read_file
from fedax.models.parameters import named_leaves
from fedax.outside.paths import expanded
from fedax.validate import quoted

# What arrays of a PyTorch layer are called here: Flax, Haiku and fedax's own, Equinox.
NAMES = {
    "weight": ("kernel", "w", "weight", "scale", "embedding"),
    "bias": ("bias", "b"),
    "running_mean": ("mean", "running_mean"),
    "running_var": ("var", "running_var"),
}
# Layouts [in, out] and [*space, in, out], where PyTorch has [out, in] and [out, in, *space].
INPUTS_FIRST = ("kernel", "w")
# Counts batches and takes no part in predictions.
COUNTER = "num_batches_tracked"
# Collections of Flax that hold the layers.
COLLECTIONS = ("", "params.", "batch_stats.")
# Modules of PyTorch with arrays that have the same meaning here.
SUPPORTED = (
    "Linear", "Conv1d", "Conv2d", "Conv3d", "Embedding", "LayerNorm", "GroupNorm",
    "BatchNorm1d", "BatchNorm2d", "BatchNorm3d",
)


class Place(NamedTuple):
    """Where an array of PyTorch is here: leaf `name`, its layout, the flattened image behind it."""

    name: str
    inputs_first: bool
    image: tuple[int, ...] | None


def from_torch(
    state: Any, like: PyTree, *, layers: Mapping[str, str] | None = None,
    flattened: Mapping[str, Sequence[int]] | None = None,
) -> PyTree:
    """Weights of a PyTorch model in the structure of a JAX model.

    A layer "fc" of PyTorch is "fc" or "params.fc" here. Its weight is "kernel" (Flax), "w" (fedax,
    Haiku), "weight" (Equinox), "scale" or "embedding", its bias "bias" or "b", its running
    statistics "mean" and "var". "kernel" and "w" are transposed, [out, in] to [in, out] and
    [out, in, height, width] to [height, width, in, out]; the others keep their layout.

    Args:
      state: the module (its layers are then checked for support), its `state_dict()`, or the path
        of a safetensors file with it.
      like: arrays with the structure of the result, such as `net.init(key, x)`, including
        `batch_stats`.
      layers: name of a layer in PyTorch -> its name in `like`, if they differ.
      flattened: name of a linear layer or a norm -> (channels, height, width) of the image that is
        flattened before it, since PyTorch flattens channels first and JAX models flatten channels
        last.

    Raises:
      TypeError: if `state` is neither a module, nor a dictionary of arrays, nor a path.
      OSError: if the file cannot be read.
      ValueError: if a layer is not supported, an array has no counterpart, or shapes differ; the
        message names it.

    Example:
      >>> params = from_torch(
      ...     {"fc.weight": np.arange(6.0).reshape(2, 3), "fc.bias": np.zeros(2)},
      ...     like={"fc": {"w": jnp.zeros((3, 2)), "b": jnp.zeros(2)}})
      >>> params["fc"]["w"].tolist()
      [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    """
    if isinstance(state, str | Path):
        state = _read(state)
    arrays, expected = _state(state, "state"), named_leaves(like)
    places = _places(arrays, expected, layers or {}, flattened or {})
    found = {}
    for name, place in places.items():
        wanted = expected[place.name]
        array = _moved(_numbers(name, arrays[name]), place, name, back=False)
        array = _of_shape(array, np.shape(wanted), name, place.name)
        found[place.name] = jnp.asarray(array, jnp.result_type(wanted))
    return jax.tree.unflatten(jax.tree.structure(like), [found[name] for name in expected])


def to_torch(
    params: PyTree, like: Any, *, layers: Mapping[str, str] | None = None,
    flattened: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, np.ndarray]:
    """Weights of a JAX model by PyTorch's names, in its layouts: the inverse of `from_torch`.

    Args:
      params: parameters from `fedax.train`.
      like: the module or its `state_dict()`, for names and shapes.
      layers, flattened: as for `from_torch`.

    Returns:
      NumPy arrays in the order of `like`. `fedax.save_params(arrays, "model.safetensors")` saves
      them for `safetensors.torch.load_file`, which `load_state_dict` then takes.

    Raises:
      TypeError, ValueError: as for `from_torch`.

    Example:
      >>> arrays = to_torch(
      ...     {"fc": {"w": np.arange(6.0).reshape(3, 2)}}, like={"fc.weight": np.zeros((2, 3))})
      >>> arrays["fc.weight"].tolist()
      [[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]]
    """
    arrays = _state(like, "like")
    given = named_leaves(params)
    places = _places(arrays, given, layers or {}, flattened or {})
    found = {}
    for name, tensor in arrays.items():
        wanted = _numbers(name, tensor)
        if name not in places:  # the counter of batches
            found[name] = wanted.copy()
            continue
        place = places[name]
        array = np.asarray(given[place.name])
        if place.image is not None or place.inputs_first:
            array = _moved(array, place, name, back=True)
        array = _of_shape(array, wanted.shape, place.name, name)
        found[name] = np.array(array, wanted.dtype, order="C")
    return found


def _read(path: str | Path) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file, whose 64-bit counters JAX would refuse."""
    try:
        content = read_file(expanded(path), links=True)
    except OSError as error:
        raise type(error)(error.errno, f"Cannot read {path}: {error.strerror}") from None
    try:
        return safetensors.numpy.load(content)
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise ValueError(
            f"{path} is not a safetensors file, is damaged, or has dtypes that NumPy lacks: "
            f"{error}. Save it again: safetensors.torch.save_file(model.float().state_dict(), ...)."
        ) from None


def _state(state: Any, argument: str) -> dict[str, Any]:
    """The arrays by name of a module, of a state dict, or of nested dictionaries."""
    if hasattr(state, "state_dict") and hasattr(state, "named_modules"):
        for name, module in state.named_modules():
            kind = type(module).__name__
            if kind not in SUPPORTED and (module._parameters or module._buffers):
                raise ValueError(
                    f"The layer {name!r} is a {kind}, whose weights cannot be moved. Supported "
                    f"are {', '.join(SUPPORTED)}."
                )
        state = state.state_dict()
    if not isinstance(state, Mapping):
        raise TypeError(
            f"{argument} must be a PyTorch module or its state_dict(), but is {quoted(state)}."
        )
    return _flat(state)


def _flat(state: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one, in PyTorch's order, which JAX would sort."""
    flat: dict[str, Any] = {}
    for key, value in state.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {
            f"{prefix}{key}": value
        }
    return flat


def _places(
    arrays: Mapping[str, Any], leaves: Mapping[str, Any], layers: Mapping[str, str],
    flattened: Mapping[str, Sequence[int]],
) -> dict[str, Place]:
    """PyTorch's name -> the place here, one to one."""
    present = {name.rpartition(".")[0] for name in arrays}
    for argument, names in (("layers", layers), ("flattened", flattened)):
        for layer in names:
            if layer not in present:
                raise ValueError(
                    f"{argument} has the layer {layer!r}, which PyTorch's model does not have; "
                    f"it has {', '.join(map(repr, sorted(present)))}."
                )
    # NNX keeps an array in a variable, as its "value".
    known = {name.removesuffix(".value"): name for name in leaves}
    places: dict[str, Place] = {}
    owner: dict[str, str] = {}
    for name in arrays:
        layer, _, kind = name.rpartition(".")
        if kind == COUNTER:
            continue
        if kind not in NAMES:
            raise ValueError(
                f"The array {name!r} of PyTorch's model has no counterpart: only arrays called "
                f"{', '.join(NAMES)} can be moved."
            )
        here = layers.get(layer, layer)
        candidates = [
            (f"{collection}{here}.{leaf}".removeprefix("."), leaf)
            for collection in COLLECTIONS for leaf in NAMES[kind]
        ]
        fitting = [(known[path], leaf) for path, leaf in candidates if path in known]
        if len(fitting) != 1:
            raise ValueError(_unplaced(name, layer, here, list(known), fitting))
        path, leaf = fitting[0]
        if path in owner:
            raise ValueError(
                f"{owner[path]!r} and {name!r} of PyTorch's model both go to {path!r}."
            )
        owner[path] = name
        # Of a linear layer the weight alone has inputs; of a norm all arrays have.
        weight = arrays.get(f"{layer}.weight")
        is_linear = weight is None or len(weight.shape) != 1
        image = None if kind != "weight" and is_linear else flattened.get(layer)
        places[name] = Place(path, leaf in INPUTS_FIRST, None if image is None else tuple(image))
    for name in leaves:
        if name not in owner:
            raise ValueError(
                f"PyTorch's model has no array for {name!r}; it has "
                f"{', '.join(map(repr, list(arrays)[:6]))}. If a layer has a different name there, "
                "give layers={PyTorch's name: name here}."
            )
    return places


def _unplaced(
    name: str, layer: str, here: str, known: list[str], fitting: list[tuple[str, str]]
) -> str:
    if fitting:
        return f"{name!r} could go to {' or '.join(repr(path) for path, _ in fitting)}."
    if name.endswith(("running_mean", "running_var")):
        return (
            f"The running statistics {name!r} have no counterpart in like. Include batch_stats "
            "(like=variables), or use group normalisation, which has none."
        )
    owners = sorted({path.rpartition(".")[0] for path in known})
    near = difflib.get_close_matches(here, owners, n=1, cutoff=0.3) or owners[:1]
    return (
        f"The array {name!r} of PyTorch's model has no counterpart here; the layers here are "
        f"{', '.join(map(repr, owners[:8]))}. If {layer!r} has a different name, give it, such as "
        f"layers={{{layer!r}: {(near or ['...'])[0]!r}}}."
    )


def _numbers(name: str, tensor: Any) -> np.ndarray:
    """A tensor, or an array, as NumPy's."""
    if hasattr(tensor, "detach"):
        tensor = tensor.detach().cpu()
        try:
            return tensor.numpy()
        except TypeError:
            raise ValueError(
                f"{name!r} is of {tensor.dtype}, which NumPy does not have; convert the model "
                "with .float() first."
            ) from None
    return np.asarray(tensor)


def _moved(array: np.ndarray, place: Place, name: str, *, back: bool) -> np.ndarray:
    """From PyTorch's layout to the one here, or back."""
    if place.image is not None:
        array = _reordered(array, place, name, back=back)
    if not place.inputs_first or array.ndim < 2:
        return array
    if back:  # [*space, in, out] to [out, in, *space]
        return np.moveaxis(array, (-1, -2), (0, 1))
    return np.moveaxis(array, (0, 1), (-1, -2))


def _reordered(array: np.ndarray, place: Place, name: str, *, back: bool) -> np.ndarray:
    """The inputs of a linear layer, or a norm, in the other order of channels and pixels."""
    assert place.image is not None
    axis = 0 if array.ndim == 1 or (back and place.inputs_first) else 1
    if array.ndim not in (1, 2) or array.shape[axis] != math.prod(place.image):
        raise ValueError(
            f"{name!r} has the shape {list(array.shape)}, but flattened gives it "
            f"{' x '.join(map(str, place.image))} = {math.prod(place.image)} inputs."
        )
    order = np.moveaxis(np.arange(array.shape[axis]).reshape(place.image), 0, -1).ravel()
    return np.take(array, np.argsort(order) if back else order, axis)


def _of_shape(
    array: np.ndarray, shape: tuple[int, ...], name: str, target: str
) -> np.ndarray:
    """The array, whose axes of one element may be others (a bias [out] or [out, 1, 1])."""
    if [n for n in array.shape if n != 1] != [n for n in shape if n != 1]:
        raise ValueError(
            f"{name!r} has the shape {list(array.shape)} in the layout of {target!r}, which is "
            f"{list(shape)}. A transposed convolution cannot be moved; otherwise give the two "
            "models the same sizes."
        )
    return array.reshape(shape)
