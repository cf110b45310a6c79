"""Calls a model's functions; failures and wrong shapes raise a `ModelError`."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedax.algorithm import Array, Batch, Model, Params, PyTree
from fedax.mistakes.errors import (
    ModelError,
    array_words,
    checked_call,
    defined_at,
    kind_of,
)

# Names that are used for the same thing; those that are alike in letters are found without.
_SAME = (
    {"x", "input", "inputs", "feature", "features", "image", "images", "img", "pixels", "data"},
    {"y", "label", "labels", "target", "targets", "class", "classes", "output", "outputs"},
)


def require_model(model: Any, call: str = "") -> None:
    """Raises a clear error unless this is a `fedax.Model`.

    Args:
      model: the value.
      call: signature of the caller, to show in the message; optional.

    Raises:
      TypeError: if it is not.
    """
    if isinstance(model, Model):
        return
    raise TypeError(
        "model must be a fedax.Model, such as the result of fedax.classification(init, apply) or "
        f"fedax.regression, but is {kind_of(model)}.{_hint(model)}"
        + (f" Call {call}." if call else "")
    )


def require_function(name: str, function: Any, call: str) -> None:
    """Raises a clear error unless this is a function; a Flax module, though callable, is not one.

    Raises:
      TypeError: if it is not.
    """
    if callable(function) and not _is_flax(function):
        return
    wanted = f"{name} must be a function {call}, but is {kind_of(function)}."
    if _is_flax(function):
        raise TypeError(f"{wanted}{_FLAX}")
    hint = " For existing parameters: lambda key: params." if name == "init" else ""
    raise TypeError(wanted + hint)


def call_init(model: Model, key: Array) -> Params:
    """The model's initial parameters."""
    return checked_call(ModelError, "The model's init", "init(key)", model.init, (key,), {})


def takes_mask(function: Any) -> bool:
    """Whether a function of a batch has a parameter `mask`, for padding [B].

    Example:
      >>> takes_mask(lambda params, batch, key, mask: 0), takes_mask(lambda params, batch, key: 0)
      (True, False)
    """
    try:
        return "mask" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # built-in functions have no signature
        return False


def call_loss(
    model: Model, params: Params, batch: Batch, key: Array, mask: Array
) -> tuple[Array, Array]:
    """Losses [B], floating point, and their weights [B]; `mask` [B] is False for padding."""
    what, call = "The model's loss", "loss(params, batch, key)"
    function = _with_mask(model.loss, mask)
    result = _call(what, call, function, (params, batch, key), batch, {"params": params})
    losses, weights = _pair(what, model.loss, result, batch, "losses")
    if not jnp.issubdtype(losses.dtype, jnp.floating):
        raise ModelError(
            f"{what}{defined_at(model.loss)} must return floating point losses, which have "
            f"gradients, but they are {array_words(losses)}."
        )
    return losses, weights


def call_outputs(function: Any, params: Params, batch: Batch, mask: Array) -> PyTree:
    """The model's outputs; `mask` [B] is False for padding."""
    what, call = "The model's outputs", "outputs(params, batch)"
    function = _with_mask(function, mask)
    return _call(what, call, function, (params, batch), batch, {"params": params})


def call_update(function: Any, params: Params, batch: Batch, mask: Array) -> Params:
    """The parameters with other statistics; `mask` [B] is False for padding."""
    what, call = "The function update", "update(params, batch, mask)"
    result = _call(what, call, function, (params, batch, mask), batch, {"params": params})
    must = f"{what}{defined_at(function)} must return parameters like those that it gets, with"
    if jax.tree.structure(result) != jax.tree.structure(params):
        raise ModelError(f"{must} other statistics, but their structure differs.")
    for (path, new), old in zip(
        jax.tree_util.tree_leaves_with_path(result), jax.tree.leaves(params), strict=True
    ):
        if jnp.shape(new) != jnp.shape(old):
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            raise ModelError(
                f"{must} other statistics, but {name} has the shape {list(jnp.shape(new))} in "
                f"place of {list(jnp.shape(old))}."
            )
    return result


def call_metric(
    name: str, function: Any, outputs: PyTree, batch: Batch, mask: Array
) -> tuple[Array, Array]:
    """Values [B] of a metric and their weights [B]; `mask` [B] is False for padding."""
    what = f"The metric {name!r}"
    result = _call(
        what, "metric(outputs, batch)", _with_mask(function, mask), (outputs, batch), batch,
        {"outputs": outputs},
    )
    return _pair(what, function, result, batch, "values")


def array_of(batch: Batch, name: str, argument: str) -> Array:
    """An array of the batch, for a model with an argument for its name."""
    if name in batch:
        return batch[name]
    raise ModelError(
        f"The model needs the array {name!r}, but {_arrays(batch)}.{_suggestion(name, batch)} "
        f"Rename the array, or give {argument}={nearest(name, batch) or 'its name'!r} to the "
        "model's factory."
    )


def check_range(what: str, values: np.ndarray, count: int, things: str) -> None:
    """Raises a clear error unless all values are in 0 .. count - 1.

    Args:
      what: the values, such as "The labels 'y'".
      values: whole numbers, not empty.
      count: number of things.
      things: what they are, such as "classes".
    """
    least, most = int(np.min(values)), int(np.max(values))
    if least < 0 or most >= count:
        raise ModelError(
            f"{what} must be from 0 to {count - 1}, as the model has {count} {things}, but range "
            f"from {least} to {most}. Number the {things} from 0, or make the model larger."
        )


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The name that was probably meant, if any.

    Example:
      >>> nearest("y", ["features", "label"])
      'label'
    """
    names = [str(known) for known in names]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    alike = [known for group in _SAME if name in group for known in names if known in group]
    return next(iter([*near, *alike]), None)


def _with_mask(function: Any, mask: Array) -> Any:
    """The function with the mask, if it takes one."""
    return functools.partial(function, mask=mask) if takes_mask(function) else function


class _NoArrayError(KeyError):
    """The batch does not have an array."""


class _Asked(dict):
    """A batch that tells its own missing arrays from other missing keys."""

    def __missing__(self, name: Any) -> Any:
        raise _NoArrayError(name)


def _call(
    what: str, call: str, function: Any, arguments: tuple[Any, ...], batch: Batch,
    given: Mapping[str, Any],
) -> Any:
    """Calls a function of a batch; the error names arrays that the batch does not have."""

    def explain(error: Exception) -> str | None:
        if not isinstance(error, KeyError):
            return None
        asked = [_Asked(batch) if argument is batch else argument for argument in arguments]
        try:  # once more, to see whose key is missing
            function(*asked)
        except _NoArrayError as missing:
            name = missing.args[0]
            return (
                f"{what}{defined_at(function)} asks the batch for {name!r}, but "
                f"{_arrays(batch)}.{_suggestion(str(name), batch)} Ask for the array by its name, "
                "or rename it in the data."
            )
        except Exception:
            return None

    return checked_call(
        ModelError, what, call, function, arguments, {**given, "batch": dict(batch)}, explain
    )


def _pair(
    what: str, function: Any, result: Any, batch: Batch, name: str
) -> tuple[Array, Array]:
    """The result of a loss or a metric, checked to be two arrays of the batch's length."""
    size = jax.tree.leaves(dict(batch))[0].shape[0]
    contract = (
        f"{what}{defined_at(function)} must return ({name} [B], weights [B]), a number and its "
        f"weight for each of the B = {size} examples of the batch"
    )
    if not isinstance(result, tuple | list) or len(result) != 2:
        several = isinstance(result, tuple | list)
        words = f"{len(result)} values" if several else f"a single {array_words(result)}"
        raise ModelError(
            f"{contract}, but returned {words}. For equal weights, return "
            f"({name}, jnp.ones_like({name}))."
        )
    pair = []
    for part, value in zip((name, "weights"), result, strict=True):
        try:
            array = jnp.asarray(value)
        except (TypeError, ValueError):
            raise ModelError(f"{contract}, but its {part} are {kind_of(value)}.") from None
        if array.shape != (size,):
            cure = (
                " Do not average over the batch; fedax does." if not array.ndim
                else f" Take a mean over the axes after the first, as in {part}.mean(1)."
                if array.shape[0] == size and array.shape[1:] != (1,)
                else f" Drop an axis, as in {part}[:, 0]." if array.shape == (size, 1) else ""
            )
            raise ModelError(
                f"{contract}, but its {part} have the shape {list(array.shape)}.{cure}"
            )
        pair.append(array)
    return pair[0], pair[1]


def _arrays(batch: Batch) -> str:
    return "the data have " + (", ".join(map(repr, sorted(batch))) or "no arrays")


def _suggestion(name: str, batch: Batch) -> str:
    near = nearest(name, batch)
    return f" Did you mean {near!r}?" if near else ""


def _is_flax(value: Any) -> bool:
    """Whether it is a module with functions `init` and `apply`, as Flax's and Haiku's are."""
    return callable(getattr(value, "init", None)) and callable(getattr(value, "apply", None))


_FLAX = (
    " With Flax: fedax.classification(lambda key: net.init(key, x), net.apply), with x an example "
    "of the inputs."
)


def _hint(model: Any) -> str:
    """What to use instead."""
    if isinstance(getattr(model, "model", None), Model):
        return f" Use the {type(model).__name__.lower()}'s model: task.model."
    if _is_flax(model):
        return _FLAX
    if isinstance(model, int | float):
        return " The model is the first argument."
    return ""
