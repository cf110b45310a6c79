"""What a value made in Python is, as JSON: enough to notice another one, often to make it again.

What a factory made is the factory's name and its arguments (`fedax.factories`). Of any other
function it is the name and the values that it holds: those of its closure, its defaults and, for
code of the user's own, the plain globals that it reads. An array is its dtype, shape and a digest.
"""

from __future__ import annotations

import dataclasses
import dis
import functools
import hashlib
import inspect
import json
import math
import sysconfig
import types
from collections.abc import Callable, Mapping, Set
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedax.algorithm import Model
from fedax.data.federated_dataset import FederatedDataset
from fedax.data.task import Task
from fedax.factories import recipe
from fedax.signatures import option_defaults
from fedax.validate import told_apart

# The most bytes read of an array or a data set, and the number of blocks.
SAMPLED_BYTES = 2**20
SAMPLED_BLOCKS = 64
# A description ends after so many parts.
MOST_PARTS = 10_000
# In words a description is no longer than this.
MOST_CHARACTERS = 60
NOT_THERE = "not there"
MODEL = {"model": "the task's"}
# Arguments and fields that fedax 0.23 and before did not have. While they have this value they are
# left out, so that what was described then is the same now.
NEWER = {"scores": None}
_NOT_OWN = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib",
                                                          "platlib"))


class Describer:
    """Describes values; models among them are the task's, except the first.

    Args:
      complete: whether what a factory made has the defaults of its `**options`, too; fedax 0.22 and
        before left them out.

    Attributes:
      codes: name -> digest of the code, of the user's own functions that were met.
    """

    def __init__(self, *, complete: bool = False) -> None:
        self._complete = complete
        self.codes: dict[str, str] = {}
        self._parts = 0
        self._open: list[Any] = []

    def __call__(self, value: Any) -> Any:
        """The description of a value."""
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {"float": repr(value)}
        self._parts += 1
        if self._parts > MOST_PARTS or any(value is other for other in self._open):
            return {"type": _name(type(value))}
        if isinstance(value, Model) and self._open:
            return MODEL
        self._open.append(value)
        try:
            return self._described(value)
        finally:
            self._open.pop()

    def _described(self, value: Any) -> Any:  # noqa: PLR0911 - one a kind of value
        made = recipe(value)
        if made is not None:
            self._note(made.factory)
            defaults = option_defaults(made.factory) if self._complete else {}
            others = {name: defaults[name] for name in defaults if name not in made.arguments}
            arguments = self._each(made.arguments | others)
            return {"factory": _name(made.factory), "arguments": _but_newer(arguments)}
        if isinstance(value, np.ndarray | np.generic | jax.Array):
            return _array(value)
        if isinstance(value, FederatedDataset):
            return describe_data(value)
        if isinstance(value, Mapping):
            return {"dict": self._each(value)}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            fields = self._each(_fields(value))
            return {"type": _name(type(value)), "fields": _but_newer(fields)}
        if isinstance(value, list | tuple):
            return {type(value).__name__: [self(item) for item in value]}
        if isinstance(value, Set):
            return {"set": sorted(json.dumps(self(item)) for item in value)}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {f.name: getattr(value, f.name, None) for f in dataclasses.fields(value)}
            return {"type": _name(type(value)), "fields": self._each(fields)}
        return self._callable(value)

    def _callable(self, value: Any) -> Any:
        if isinstance(value, functools.partial):
            return {"partial": self(value.func), "holds": {
                "args": self(list(value.args)), **self._each(value.keywords)
            }}
        if isinstance(value, types.MethodType):
            return {"method": value.__name__, "of": self(value.__self__)}
        if isinstance(value, type):
            return {"class": _name(value)}
        function = inspect.unwrap(value) if hasattr(value, "__wrapped__") else value
        if not isinstance(function, types.FunctionType):
            return {"type": _name(type(value))}
        self._note(function)
        return {"function": _name(function), "holds": self._each(_held(function))}

    def _each(self, values: Mapping[Any, Any]) -> dict[str, Any]:
        return {str(name): self(value) for name, value in values.items()}

    def _note(self, function: Callable[..., Any]) -> None:
        function = inspect.unwrap(function)
        if isinstance(function, types.FunctionType) and _is_own(function):
            self.codes[_name(function)] = digest(_code(function.__code__))


def digest(description: Any) -> str:
    """A short digest of something that JSON holds."""
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()[:16]


def describe_data(data: FederatedDataset) -> dict[str, Any]:
    """Sizes, shapes, dtypes, and a digest of the offsets and of a bounded sample of the rest."""
    hashed = hashlib.sha256(data.offsets.tobytes())
    arrays = dict(data.arrays)
    for array in (*arrays.values(), *([] if data.names is None else [data.names])):
        _sample(array, hashed.update)
    return {
        "clients": data.num_clients,
        "examples": data.num_examples,
        "arrays": {name: f"{a.dtype}{list(a.shape[1:])}" for name, a in arrays.items()},
        "contents": hashed.hexdigest()[:16],
    }


def describe_task(task: Task) -> dict[str, Any]:
    """What makes a task another: a digest of its model, and its data."""
    # Without validation data as fedax 0.23 and before had it.
    validation = {} if task.validation is None else {"validation": describe_data(task.validation)}
    return {
        "model": digest(Describer()(task.model)),
        "train": describe_data(task.train),
        "test": None if task.test is None else describe_data(task.test),
        **validation,
    }


def short(description: Any) -> str:
    """A description in a few words.

    Example:
      >>> short({"factory": "fedax.optimizers.schedules:constant", "arguments": {"value": 0.1}})
      'constant(value=0.1)'
    """
    return told_apart(_in_words(description), "", MOST_CHARACTERS)[0]


def short_pair(one: Any, other: Any) -> tuple[str, str]:
    """Two descriptions in a few words each, which tell them apart.

    Example:
      >>> short_pair("a" * 90, "a" * 89 + "b")[1][-8:]
      "aaaaaab'"
    """
    return told_apart(_in_words(one), _in_words(other), MOST_CHARACTERS)


def _in_words(description: Any) -> str:
    text = repr(description)
    if description == NOT_THERE:
        text = NOT_THERE
    elif isinstance(description, dict):
        name = next((description[key] for key in ("factory", "function", "type", "class")
                     if key in description), None)
        inside = next((description[key] for key in ("arguments", "holds", "fields", "dict")
                       if key in description), None)
        if "values" in description:
            text = repr(description["values"])
        elif "clients" in description:
            text = f"{description['clients']} clients"
        elif name is not None or inside is not None:
            parts = ", ".join(f"{key}={_in_words(value)}" for key, value in (inside or {}).items())
            text = f"{(name or '').split(':')[-1].split('.')[0]}({parts})"
    return text


def plain_values(description: Any) -> dict[str, Any]:
    """The plain values that functions hold, by name; of equal names the first.

    Example:
      >>> def method(rate):
      ...     return lambda x: rate * x
      >>> plain_values(Describer()(method(0.5)))
      {'rate': 0.5}
    """
    found: dict[str, Any] = {}

    def walk(node: Any, inside: bool) -> None:
        if isinstance(node, list):
            for item in node:
                walk(item, inside)
        if not isinstance(node, dict):
            return
        for name, value in node.items():
            if name in ("holds", "fields", "arguments") and isinstance(value, dict):
                within = inside or name == "holds"
                plain = {k: v for k, v in value.items() if isinstance(v, int | float | str)}
                for key, setting in plain.items() if within else ():
                    found.setdefault(key, setting)
                walk([v for k, v in value.items() if k not in plain], within)
            else:
                walk(value, inside)

    walk(description, inside=False)
    return found


def _held(function: types.FunctionType) -> dict[str, Any]:
    """What a function reads besides its arguments."""
    held: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            held[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    if function.__defaults__:
        arguments = function.__code__.co_varnames[: function.__code__.co_argcount]
        count = len(function.__defaults__)
        held |= zip(arguments[-count:], function.__defaults__, strict=True)
    held |= function.__kwdefaults__ or {}
    if _is_own(function):
        for instruction in dis.get_instructions(function):
            value = function.__globals__.get(str(instruction.argval))
            if instruction.opname == "LOAD_GLOBAL" and (
                isinstance(value, bool | int | float | str | np.ndarray | jax.Array)
                or (isinstance(value, types.FunctionType) and _is_own(value))
            ):
                held[instruction.argval] = value
    return held


def _is_own(function: types.FunctionType) -> bool:
    """Whether a function is the user's, and no library's."""
    where = function.__code__.co_filename
    module = function.__module__ or ""
    return module.split(".")[0] != "fedax" and not where.startswith(_NOT_OWN)


def _code(code: types.CodeType) -> list[Any]:
    """What a code object does, without where it stands."""
    constants = [
        _code(value) if isinstance(value, types.CodeType)
        else sorted(map(repr, value)) if isinstance(value, frozenset)
        else repr(value)
        for value in code.co_consts
    ]
    return [code.co_code.hex(), list(code.co_names), constants]


def _array(value: Any) -> dict[str, Any]:
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    array = np.asarray(value)
    if array.size <= 1:
        plain = array.astype(np.float64) if array.dtype.kind == "V" else array  # bfloat16
        return {"array": str(array.dtype), "values": plain.tolist()}
    hashed = hashlib.sha256()
    _sample(array, hashed.update)
    return {"array": f"{array.dtype}{list(array.shape)}", "contents": hashed.hexdigest()[:16]}


def _sample(array: Any, update: Callable[[bytes], Any]) -> None:
    """Hands on the bytes of an array, or of blocks of rows that lie evenly in a large one."""
    if array.ndim == 0 or array.nbytes <= SAMPLED_BYTES:
        update(np.asarray(array).tobytes())
        return
    row_bytes = max(array.nbytes // len(array), 1)
    num_blocks = min(max(SAMPLED_BYTES // row_bytes, 1), SAMPLED_BLOCKS, len(array))
    num_rows = max(SAMPLED_BYTES // num_blocks // row_bytes, 1)
    for start in np.linspace(0, len(array) - num_rows, num_blocks).astype(int).tolist():
        update(np.asarray(array[start : start + num_rows]).tobytes())


def _but_newer(described: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value for name, value in described.items()
        if not (name in NEWER and value == NEWER[name])
    }


def _fields(value: Any) -> dict[str, Any]:
    return dict(zip(value._fields, value, strict=True))


def _name(thing: Any) -> str:
    return f"{thing.__module__}:{thing.__qualname__}"
