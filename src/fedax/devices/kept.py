"""Programs that the next process takes as they are, without tracing them again.

JAX's own cache is asked when a program has been traced and lowered, which takes longer than loading
it. Here a program is found by what it is made of: the text of a recipe, the types of its arguments,
the devices, and the sources and versions of what it is computed with.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
import pickle
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import jax
import numpy as np

from fedax.devices.internals import (
    deserialize_and_load,
    prepare_lapack,
    report_seconds,
    serialize,
)

Value = TypeVar("Value")

# What, besides fedax's source, decides about a program.
PACKAGES = ("jax", "jaxlib", "numpy", "optax")

# Functions outside a program, which JAX makes ready when it lowers one that calls them. Of others
# than LAPACK's and XLA's own words on placement a loaded program would find nothing there.
CALLS = re.compile(r"custom_call @([^\s(]+)")
LAPACK, PLACEMENT = "lapack_", {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"}


class Store(Protocol):
    """Bytes by names; whatever goes wrong in it, nothing raises."""

    def get(self, key: str) -> bytes | None:
        """What was put there, or None."""
        ...

    def put(self, key: str, value: bytes) -> None:
        """Keeps it."""
        ...

    def aside(self) -> contextlib.AbstractContextManager[None]:
        """Meanwhile JAX neither reads nor writes here."""
        ...


class _Chosen:
    store: Store | None = None


def keep_in(store: Store | None) -> None:
    """Has `Kept` programs stored here from now on; None: nowhere."""
    _Chosen.store = store


class Kept:
    """A jitted function that is loaded from the store, if it is there, and otherwise put there.

    It behaves as the function does, and is the function where there is no store or no recipe.

    Args:
      jitted: result of `fedax.devices.compiling.jit`.
      recipe: what it is made of, all but the types of its arguments; None: not known.
      devices: on which it runs; None: the default one.
    """

    def __init__(
        self, jitted: Any, recipe: str | None, devices: Sequence[Any] | None = None
    ) -> None:
        self._jitted, self._recipe = jitted, recipe
        self._devices = devices
        self._ready: dict[str, Any] = {}

    def __call__(self, *arguments: Any) -> Any:
        """The function's result."""
        for ready in self._ready.values():
            with contextlib.suppress(TypeError, ValueError):  # other types; nothing ran
                return ready(*arguments)
        key = self._key(arguments)
        if key is None or key in self._ready:  # the types of one, but in other places
            return self._jitted(*arguments)
        self._ready[key] = ready = self._loaded(key, arguments) or self._compiled(key, arguments)
        with contextlib.suppress(TypeError, ValueError):
            return ready(*arguments)
        return self._jitted(*arguments)

    def prepare(self, *arguments: Any) -> None:
        """Loads the program for arguments of these types, or traces it; nothing runs.

        Raises:
          Exception: those of the function, if it is traced.
        """
        key = self._key(arguments)
        if key is not None and key not in self._ready:
            loaded = self._loaded(key, arguments)
            if loaded is not None:
                self._ready[key] = loaded
        if key not in self._ready:
            self._jitted.eval_shape(*arguments)

    def _loaded(self, key: str, arguments: tuple[Any, ...]) -> Any:
        content = None if _Chosen.store is None else _Chosen.store.get(key)
        if content is None:
            return None
        start = time.perf_counter()
        try:
            calls, outputs, program = pickle.loads(content)  # trusted as the machine code in it
            if calls:
                prepare_lapack()
            loaded = deserialize_and_load(
                program, jax.tree.structure((arguments, {})), jax.tree.structure(outputs),
                execution_devices=self._devices or [jax.local_devices()[0]],
            )
        except Exception:  # of another version of something that is not in the key
            return None
        report_seconds("load_program", time.perf_counter() - start)
        return loaded

    def _compiled(self, key: str, arguments: tuple[Any, ...]) -> Any:
        """The compiled program, which is stored if it can be."""
        store = _Chosen.store
        assert store is not None
        lowered = self._jitted.lower(*arguments)
        calls = set(CALLS.findall(lowered.as_text())) - PLACEMENT
        if not all(name.startswith(LAPACK) for name in calls):
            return lowered.compile()
        with store.aside():  # one that was loaded cannot be written again
            compiled = lowered.compile()
        with contextlib.suppress(Exception):  # of a kind that cannot be written
            program, _, tree = serialize(compiled)
            outputs = jax.tree.unflatten(tree, range(tree.num_leaves))
            store.put(key, pickle.dumps((bool(calls), outputs, program)))
        return compiled

    def _key(self, arguments: tuple[Any, ...]) -> str | None:
        if self._recipe is None or _Chosen.store is None or jax.process_count() > 1:
            return None
        leaves, tree = jax.tree.flatten(arguments)
        places = [str(device) for device in self._devices or ()]
        return _named(self._recipe, [str(tree), *map(_type, leaves), *places])


def remembered(recipe: str | None, arguments: Any, compute: Callable[[], Value]) -> Value:
    """The result of a computation that depends on a recipe and its arguments' types only.

    Args:
      recipe: of all that the result depends on besides the arguments; None: it is computed.
      arguments: a pytree of arrays.
      compute: returns something that is JSON; it is not called where the store has the result.
    """
    store = _Chosen.store
    if recipe is None or store is None:
        return compute()
    leaves, tree = jax.tree.flatten(arguments)
    key = _named(recipe, [str(tree), *map(_type, leaves)])
    content = store.get(key)
    if content is not None:
        return json.loads(content)
    found = compute()
    store.put(key, json.dumps(found).encode())
    return found


def _type(leaf: Any) -> str:
    """Shape and dtype of an argument, and whether its dtype is weak."""
    if not hasattr(leaf, "dtype"):
        return type(leaf).__name__
    dtype = jax.dtypes.canonicalize_dtype(leaf.dtype, allow_extended_dtype=True)
    return f"{dtype} {list(np.shape(leaf))} {getattr(leaf, 'weak_type', False)}"


def _named(recipe: str, types: list[str]) -> str:
    text = json.dumps([recipe, types, _surroundings(), jax.default_backend(), _settings()])
    return f"fedax-{hashlib.sha256(text.encode()).hexdigest()}"


@functools.cache
def _surroundings() -> list[str]:
    """Digest of fedax's source, and the versions of what it is computed with."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    versions = [f"{name} {importlib.metadata.version(name)}" for name in PACKAGES]
    return [digest.hexdigest(), sys.version, *versions]


def _settings() -> list[str]:
    """What users set of JAX and XLA."""
    told = [f"{n}={value}" for n, value in os.environ.items() if n.startswith(("JAX_", "XLA_"))]
    values: dict[str, Any] = jax.config.values  # pyright: ignore[reportAttributeAccessIssue]
    return sorted(told + [f"{name} {value}" for name, value in values.items()])
