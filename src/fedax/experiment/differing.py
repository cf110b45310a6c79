"""What tells a run from another one: digests of its data and its start; differences in words."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fedax.algorithm import Params
from fedax.data.describing import NOT_THERE, describe_task, short_pair
from fedax.data.federated_dataset import FederatedDataset
from fedax.data.task import Task
from fedax.experiment.checkpoint import FREE
from fedax.experiment.folder import RunError
from fedax.models.parameters import named_leaves

# How differences are told: so many, without the words that only structure a description.
MOST_DIFFERENCES = 3
STRUCTURAL = {"arguments", "arrays", "dict", "fields", "holds", "values"}
# An array of at most so many bytes is read whole, in pieces; of a larger one `describe_data` reads
# a sample.
MOST_BYTES = 2**28
PIECE_BYTES = 2**24


def record_of_tasks(tasks: Sequence[Task]) -> list[dict[str, Any]]:
    """What a run or a sweep writes down of its tasks: their models and their data."""
    found = []
    for task in tasks:
        described = describe_task(task)
        for name in ("train", "test", "validation"):
            data = getattr(task, name)
            if data is not None:
                described[name]["checksum"] = _checksum(data)
        found.append(described)
    return json.loads(json.dumps(found))


def require_same_tasks(before: Any, now: Sequence[Any], what: str, cure: str) -> None:
    """Raises an error if a task or its data are not what they were.

    Args:
      before: what `record_of_tasks` gave; None of fedax 0.22 and before, which wrote nothing down.
      now: the same of now, with more tasks perhaps.
      what: is gone on with, such as "run in DIR".
      cure: what to do.

    Raises:
      RunError: if they differ.
    """
    if not isinstance(before, list) or not all(isinstance(old, Mapping) for old in before):
        return
    pairs = zip(before, now, strict=False)
    phrases = [p for old, new in pairs for p in differences({"python": old}, {"python": new})]
    found = [*dict.fromkeys(phrases)]
    if len(before) > len(now) or found:
        raise RunError(
            f"The task of the {what} has changed: {in_words(found or ['one is missing'])}. {cure}"
        )


def in_words(found: Sequence[str]) -> str:
    """The first differences, and whether there are more."""
    told = [*found[:MOST_DIFFERENCES], *(["and more"] if len(found) > MOST_DIFFERENCES else [])]
    return "; ".join(told)


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between two configurations, as phrases; the settings that may are left out.

    Example:
      >>> differences({"seed": 0, "num_rounds": 5}, {"seed": 1, "num_rounds": 9})
      ['seed was 0 and is 1']
    """
    phrases: list[str] = []
    for name in {**now, **before}:
        if name not in (*FREE, "python"):
            inside = name == "algorithm_options"
            phrases += part_differences("" if inside else name, before.get(name), now.get(name))
    about_method = any(before.get(n) != now.get(n) for n in ("algorithm", "algorithm_options"))
    old, new = before.get("python", {}), now.get("python", {})
    for name in {**new, **old}:
        if name in ("train", "test", "validation"):
            phrases += part_differences(f"task.{name}", old.get(name), new.get(name))
        elif old.get(name) != new.get(name) and not (
            about_method and name in ("algorithm", "method")
        ):
            what = "start (initial_params)" if name == "initial_params" else name
            phrases.append(f"the {what} differs")
    return phrases


def part_differences(name: str, old: Any, new: Any) -> list[str]:
    """The phrases for a part of the configurations; a container that is of one kind is opened."""
    if old == new:
        return []
    if isinstance(old, Mapping) and isinstance(new, Mapping) and _kind(old) == _kind(new):
        found: list[str] = []
        for key in {**new, **old}:
            # What only says what kind of a thing the rest is of has no place in a sentence.
            way = name if key in STRUCTURAL else f"{name}.{key}".lstrip(".")
            found += part_differences(way, old.get(key, NOT_THERE), new.get(key, NOT_THERE))
        return [*dict.fromkeys(found)]
    for digest in (".contents", ".checksum"):
        if name.endswith(digest):
            return [f"the contents of {name.removesuffix(digest)} differ"]
    before, now = short_pair(old, new)
    return [f"{name} was {before} and is {now}"]


def _kind(description: Mapping[str, Any]) -> Any:
    """What two descriptions have in common whose parts can be compared."""
    return next((description[key] for key in ("factory", "function", "type", "class", "array")
                 if key in description), sorted(set(description) & {"list", "tuple", "dict"}))


def digest_of_params(params: Params | None) -> str | None:
    """A digest of parameters with their names, dtypes and shapes."""
    if params is None:
        return None
    hashed = hashlib.sha256()
    for name, leaf in named_leaves(jax.device_get(params)).items():
        array = np.asarray(leaf)
        hashed.update(f"{name} {array.dtype}{array.shape}".encode() + array.tobytes())
    return hashed.hexdigest()[:16]


def _checksum(data: FederatedDataset) -> str:
    """Of all arrays that are not too large, each in pieces of rows."""
    found = 0
    for array in data.arrays.values():
        if array.nbytes > MOST_BYTES:
            continue
        rows = max(PIECE_BYTES // max(array.nbytes // max(len(array), 1), 1), 1)
        for start in range(0, len(array), rows):
            found = zlib.crc32(np.asarray(array[start : start + rows]).tobytes(), found)
    return f"{found:08x}"
