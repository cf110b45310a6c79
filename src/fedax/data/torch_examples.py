"""Examples of PyTorch's `Dataset` and `DataLoader` as arrays; PyTorch is never imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedax.validate import quoted


def torch_clients(clients: Any, names: Sequence[str]) -> Any:
    """The arrays of every client's data set, for `FederatedDataset.from_clients`."""
    if isinstance(clients, Mapping):
        return {name: torch_arrays(part, names, f"Client {quoted(name)}")
                for name, part in clients.items()}
    if not isinstance(clients, list | tuple):
        raise TypeError(
            "from_torch takes one data set per client, in a dictionary or a list, but got "
            f"{type(clients).__name__}. For one data set of all clients, also give client_ids=."
        )
    return [torch_arrays(part, names, f"Client {index}") for index, part in enumerate(clients)]


def torch_arrays(source: Any, names: Sequence[str], where: str) -> dict[str, np.ndarray]:
    """The arrays of a data set or loader, example by example."""
    if isinstance(names, str):
        names = (names,)
    dataset, indices = _examples(source, where)
    arrays: dict[str, np.ndarray] = {}
    for row, index in enumerate(indices):
        place = f"{where}, example {index}"
        parts = _parts(dataset[index], names, place)
        if row == 0:
            arrays = {key: np.empty((len(indices), *value.shape), value.dtype)
                      for key, value in parts.items()}
        if parts.keys() != arrays.keys():
            raise ValueError(f"{place} has {list(parts)}, but the first has {list(arrays)}.")
        for key, value in parts.items():
            if value.shape != arrays[key].shape[1:] or value.dtype != arrays[key].dtype:
                raise ValueError(
                    f"{place}: {key!r} is {value.dtype}{list(value.shape)}, but that of the first "
                    f"is {arrays[key].dtype}{list(arrays[key].shape[1:])}. Give all examples the "
                    "same shape and type, for example by a transform of the data set."
                )
            arrays[key][row] = value
    if not arrays:
        raise ValueError(f"{where} has no examples. Leave out such clients.")
    return arrays


def _examples(source: Any, where: str) -> tuple[Any, Sequence[int]]:
    """A data set with what a loader's sampler takes of it, without batches and their order."""
    if hasattr(source, "batch_sampler") and hasattr(source, "dataset"):
        dataset, sampler = source.dataset, source.sampler
        kind = type(sampler).__name__
        collate = getattr(source.collate_fn, "__name__", "")
        if collate not in ("default_collate", "default_convert"):
            raise ValueError(
                f"{where}: the DataLoader has a collate_fn of its own, which makes batches. "
                "Give its dataset, with a transform that makes each example."
            )
        if type(source.batch_sampler).__name__ not in ("BatchSampler", "NoneType"):
            raise ValueError(
                f"{where}: the DataLoader has a batch_sampler of its own. Give its dataset, or a "
                "Subset of it; fedax draws its own batches."
            )
        if kind == "SubsetRandomSampler":
            return dataset, [int(index) for index in sampler.indices]
        if kind not in ("SequentialSampler", "RandomSampler") or getattr(
            sampler, "replacement", False
        ):
            raise ValueError(
                f"{where}: the DataLoader draws examples by {kind}. Give its dataset, or a Subset "
                "of it; fedax draws its own batches."
            )
        source = dataset
    if not hasattr(source, "__getitem__") or not hasattr(source, "__len__"):
        raise ValueError(
            f"{where}: {type(source).__name__} has no length or cannot be indexed, as an "
            "IterableDataset. Collect its examples in a list first."
        )
    return source, range(len(source))


def _parts(example: Any, names: Sequence[str], place: str) -> dict[str, np.ndarray]:
    """The arrays of one example by name."""
    if isinstance(example, Mapping):
        return {str(key): _array(value, f"{place}: {key!r}") for key, value in example.items()}
    parts = tuple(example) if isinstance(example, tuple | list) else (example,)
    if len(parts) != len(names):
        raise ValueError(
            f"{place}: has {len(parts)} parts, but names= has {len(names)}, {quoted(list(names))}. "
            "Give one name for each part."
        )
    named = zip(names, parts, strict=True)
    return {key: _array(value, f"{place}: {key!r}") for key, value in named}


def _array(value: Any, place: str) -> np.ndarray:
    """A tensor, array or number as NumPy's array."""
    kind = type(value).__name__
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        try:
            return value.numpy()
        except (TypeError, RuntimeError):
            raise ValueError(
                f"{place} is a tensor of {value.dtype} that NumPy cannot hold. Convert it first, "
                "with .float() or .to_dense()."
            ) from None
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths
        array = np.empty((), object)
    if array.dtype.kind not in "biuf":
        raise ValueError(
            f"{place} is of type {kind}, not numbers. Convert it with a transform of the data "
            "set, such as torchvision's ToTensor()."
        )
    return array
