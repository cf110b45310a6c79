"""Parameters in a file that other libraries read too (safetensors).

A file holds every array by its name and, as text in its header, their containers, so that
dictionaries, lists, tuples and named tuples are restored.
"""

from __future__ import annotations

import functools
import json
import re
from collections import namedtuple
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from fedax.algorithm import Params, PyTree
from fedax.devices.mesh import one_copy
from fedax.experiment.versions import __version__
from fedax.files.regular import read_file, write_as_named
from fedax.models.parameters import fitted, named_leaves
from fedax.outside.paths import expanded
from fedax.validate import require_path

# The one key of a file's header, whose text is JSON: with several their order would vary.
HEADER = "fedax"
# How the format calls the dtypes.
DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32",
    "I32": "int32", "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16",
    "F32": "float32", "F64": "float64", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
}

# How a structure says that keys are whole numbers, and such a key as text.
_INTEGERS = {"keys": "integers"}
_INTEGER = re.compile(r"-?\d{1,18}")

# Ends of names that say another format.
OTHER_FORMATS = {
    **dict.fromkeys((".npz", ".npy"), "NumPy's format"),
    **dict.fromkeys((".pt", ".pth"), "PyTorch's format"),
    **dict.fromkeys((".pkl", ".pickle", ".joblib"), "a pickle"),
    **dict.fromkeys((".h5", ".hdf5", ".keras"), "HDF5 or Keras's format"),
    **dict.fromkeys((".msgpack", ".ckpt", ".eqx", ".bin"), "a checkpoint of another library"),
    **dict.fromkeys((".onnx", ".pb", ".tflite", ".gguf"), "a model with its graph"),
    **dict.fromkeys((".json", ".toml", ".yaml", ".csv", ".txt"), "text"),
    **dict.fromkeys((".zip", ".gz", ".tar", ".parquet", ".mat"), "another format"),
}


def save_params(params: Params, path: str | Path) -> None:
    """Writes parameters to a safetensors file, which many libraries read.

    An array's name is its path, joined by dots: `{"dense": {"w": ...}}` has "dense.w". If writing
    is interrupted, an existing file stays as it was.

    Args:
      params: arrays in dictionaries, lists, tuples, named tuples or registered classes.
      path: the file, in an existing folder; an existing file is replaced.

    Raises:
      TypeError: if path is no path, as when the two are swapped.
      ValueError: if two arrays have the same name, an array's dtype is not in the format, or the
        path ends like another format, such as .npz.
      OSError: if the file cannot be written.

    Example:
      >>> import tempfile, pathlib
      >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.safetensors"
      >>> save_params({"dense": {"w": jnp.ones((2, 3)), "b": jnp.zeros(3)}}, path)
      >>> sorted(load_params(path)["dense"])
      ['b', 'w']
    """
    require_path("path", path, "The parameters come first: fedax.save_params(params, path).")
    suffix = Path(path).suffix.lower()
    if suffix in OTHER_FORMATS:
        raise ValueError(
            f"save_params writes a safetensors file, but the name {str(path)!r} means "
            f"{OTHER_FORMATS[suffix]}. Use {str(Path(path).with_suffix('.safetensors'))!r}."
        )
    content = encoded(params)
    try:
        write_as_named(expanded(path), content)
    except OSError as error:
        raise type(error)(error.errno, f"Cannot write {path}: {error.strerror}") from None


def load_params(path: str | Path, like: Params | None = None) -> Params:
    """Reads parameters from a safetensors file.

    Args:
      path: a file written by `save_params` or another library.
      like: parameters of the wanted structure, such as `task.model.init(key)`; arrays are matched
        by name. None: the saved structure, with two exceptions. A class registered with JAX (an
        Equinox module, say) becomes a dictionary, and a named tuple becomes one of the same name
        and fields. In a file from another library, names are split at their dots.

    Raises:
      TypeError: if path is no path.
      ValueError: if the file is not a safetensors file or is damaged, its arrays differ from
        those of `like` (the message says where), or it has 64-bit numbers and JAX has them off.
      OSError: if the file cannot be read.
    """
    require_path("path", path)
    try:
        content = read_file(expanded(path), links=True)
    except OSError as error:
        raise type(error)(error.errno, f"Cannot read {path}: {error.strerror}") from None
    arrays, header = decoded(content, str(path))
    if like is not None:
        return fitted(arrays, like, str(path), "like")
    if "structure" in header:
        return rebuilt(header["structure"], arrays)
    return _opened(arrays, str(path))


def encoded(params: Params, **metadata: Any) -> bytes:
    """The content of a file, the same for the same; `metadata` goes into its header."""
    host = {}
    for name, leaf in named_leaves(jax.device_get(one_copy(params))).items():
        if isinstance(leaf, bool | int | float):  # as JAX would take it
            leaf = np.asarray(leaf, jax.dtypes.canonicalize_dtype(type(leaf)))  # noqa: PLW2901
        dtype = getattr(leaf, "dtype", type(leaf).__name__)
        if str(dtype) not in DTYPES.values():
            raise ValueError(
                f"Array {name!r} has dtype {dtype}, which a safetensors file cannot store."
            )
        host[name] = np.asarray(leaf, order="C")
    header = {"version": __version__, "structure": structure(params), **metadata}
    return safetensors.numpy.save(host, {HEADER: json.dumps(header)})


def decoded(content: bytes, where: str) -> tuple[dict[str, jax.Array], dict[str, Any]]:
    """The arrays by name of a file's content, and what `encoded` wrote into its header."""
    try:
        tensors = safetensors.deserialize(content)
    except safetensors.SafetensorError as error:
        raise ValueError(f"{where} is not a safetensors file, or damaged: {error}.") from None
    length = int.from_bytes(content[:8], "little")
    try:
        metadata = json.loads(content[8 : 8 + length]).get("__metadata__") or {}
        header = json.loads(metadata.get(HEADER, "{}"))
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise ValueError(f"{where} is damaged: {HEADER!r} in its header is not valid JSON.")
    arrays = {}
    for name, tensor in tensors:
        if tensor["dtype"] not in DTYPES:
            raise ValueError(f"The array {name!r} of {where} has dtype {tensor['dtype']}, which "
                             "parameters cannot have.")
        dtype = jnp.dtype(DTYPES[tensor["dtype"]])
        array = np.frombuffer(tensor["data"], dtype).reshape(tensor["shape"])
        arrays[name] = on_device(array, f"The array {name!r}", where)
    return arrays, header


def on_device(array: np.ndarray, name: str, where: str) -> jax.Array:
    """JAX's array of the same numbers; a sentence if it cannot hold them."""
    if jax.dtypes.canonicalize_dtype(array.dtype) != array.dtype:
        raise ValueError(
            f"{name} of {where} is {array.dtype}, but 64-bit numbers are off in JAX. Turn them on: "
            'jax.config.update("jax_enable_x64", True).'
        )
    return jnp.asarray(array)


def structure(tree: PyTree, mark: Callable[[str, Any], Any] = lambda name, leaf: name) -> Any:  # noqa: ARG005
    """The containers of a tree as JSON, with the arrays' names, or other marks, where they are.

    Example:
      >>> structure({"w": [1.0, (2.0, None)]})
      {'dict': {'w': {'list': ['w.0', {'tuple': ['w.1.0', None]}]}}}
    """
    leaves = iter(named_leaves(tree).items())
    return _structure(tree, lambda: mark(*next(leaves)))


def _structure(node: PyTree, leaf: Callable[[], Any]) -> Any:
    if node is None:
        return None
    # Its own children, one level down.
    paths, _ = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda part: part is not node)
    if len(paths) == 1 and not paths[0][0]:
        return leaf()
    children = {
        jax.tree_util.keystr(path, simple=True): _structure(child, leaf) for path, child in paths
    }
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        return {"namedtuple": [type(node).__name__, children]}
    for kind in (list, tuple):
        if isinstance(node, kind):
            return {kind.__name__: list(children.values())}
    if children and isinstance(node, dict) and all(type(key) is int for key in node):
        return {"dict": children, **_INTEGERS}
    return {"dict": children}


def rebuilt(structure: Any, arrays: Mapping[str, Any]) -> PyTree:
    """The tree of a structure, with these arrays.

    Raises:
      ValueError: if it is not a structure, or an array is missing.

    Example:
      >>> rebuilt({"dict": {"w": {"list": ["w.0"]}, "empty": {"dict": {}}}}, {"w.0": 1.0})
      {'w': [1.0], 'empty': {}}
    """
    try:
        return _rebuilt(structure, arrays)
    except RecursionError:
        raise ValueError("A structure of parameters is nested too deeply.") from None


def _rebuilt(structure: Any, arrays: Mapping[str, Any]) -> PyTree:
    match structure:
        case None:
            return None
        case str() if structure in arrays:
            return arrays[structure]
        case {"dict": dict(children), **others} if not others or (
            others == _INTEGERS and all(map(_INTEGER.fullmatch, children))
        ):
            kind = int if others else str
            return {kind(key): _rebuilt(child, arrays) for key, child in children.items()}
        case {"list": list(children), **others} if not others:
            return [_rebuilt(child, arrays) for child in children]
        case {"tuple": list(children), **others} if not others:
            return tuple(_rebuilt(child, arrays) for child in children)
        case {"namedtuple": [str(name), dict(fields)], **others} if not others:
            values = [_rebuilt(child, arrays) for child in fields.values()]
            return _named_tuple(name, tuple(fields))(*values)
        case _:
            raise ValueError(
                f"A structure of parameters has {str(structure)[:40]!r}, which is neither a "
                "container nor the name of an array."
            )


@functools.cache
def _named_tuple(name: str, fields: tuple[str, ...]) -> Any:
    """One type for all that are called alike, so that JAX takes their trees for alike."""
    return namedtuple(name, fields)


def _opened(arrays: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Arrays in nested dictionaries, their names opened at the dots."""
    tree: dict[str, Any] = {}
    for name, array in arrays.items():
        *way, last = name.split(".")
        place = tree
        for key in way:
            place = place.setdefault(key, {})
            if not isinstance(place, dict):
                break
        if not isinstance(place, dict) or last in place:
            raise ValueError(
                f"The names of the arrays in {where} do not form a structure: {name!r} is both an "
                "array and the beginning of another name. Pass like=."
            )
        place[last] = array
    return tree
