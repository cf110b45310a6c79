"""From an algorithm's name and options, as text, to the algorithm."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import optax

from fedax import optimizers
from fedax.algorithm import FederatedAlgorithm, Model
from fedax.algorithms.registry import ALGORITHMS, WRAPPERS
from fedax.clients.local_training import LocalOptions
from fedax.experiment.errors import ConfigError
from fedax.optimizers import base_optimizers
from fedax.optimizers.base_optimizers import BaseOptimizer
from fedax.optimizers.schedules import parse_call, parse_schedule
from fedax.validate import unknown

BASES = {
    "sgd": base_optimizers.sgd,
    "sgdm": base_optimizers.sgdm,
    "rmsprop": base_optimizers.rmsprop,
    "adam": base_optimizers.adam,
}


def _base_transformation(base: Callable[..., BaseOptimizer], *arguments: Any, **named: Any) -> Any:
    """A base optimizer of Mime as an optax transformation."""
    return base_optimizers.as_transformation(base(*arguments, **named))


OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "sgd": lambda: optax.sgd(1.0),
    "heavy_ball": optimizers.heavy_ball,
    "adagrad": optimizers.adagrad,
    "adam": optimizers.adam,
    "yogi": optimizers.yogi,
    "amsgrad": optimizers.amsgrad,
    "adabound": optimizers.adabound,
} | {
    f"mime_{name}": functools.partial(_base_transformation, base) for name, base in BASES.items()
}


RATES = ("client_learning_rate", "server_learning_rate")


def algorithm_parts(text: str) -> list[str]:
    """The wrappers of an algorithm, outermost first, and what they wrap.

    Example:
      >>> algorithm_parts("local_update_decay+elastic+fedprox")
      ['local_update_decay', 'elastic', 'fedprox']
      >>> algorithm_parts("elastic")  # a wrapper alone wraps its default
      ['elastic', 'fedavg']

    Raises:
      ConfigError: a name is unknown, or stands where it cannot.
    """
    parts = str(text).split("+")
    if "" in parts and len(parts) > 1:
        raise ConfigError(
            f"Beside a '+' in {text!r} there is no name; wrap as in 'elastic+fedavg'."
        )
    for part in parts:
        if part not in ALGORITHMS and part not in WRAPPERS:
            raise ConfigError(unknown("algorithm", part, [*ALGORITHMS, *WRAPPERS]))
    for part in parts[:-1]:
        if part not in WRAPPERS:
            raise ConfigError(
                f"{part} in {text!r} wraps nothing; only {' and '.join(WRAPPERS)} can stand "
                "before a '+'."
            )
    if parts[-1] in WRAPPERS:
        parts.append(WRAPPERS[parts[-1]][1])
    return parts


def algorithm_keys(text: str) -> dict[str, str]:
    """Option name -> annotation, of the options that an algorithm's factories take."""
    keys: dict[str, str] = {}
    for part in reversed(algorithm_parts(text)):
        own = _own_keys(part)
        if part == "local_update_decay":  # it lowers the rates that there are
            own = {key: value for key, value in own.items() if key not in RATES or key in keys}
        keys |= own
    return keys


def build_algorithm(
    text: str, options: Mapping[str, Any], model: Model
) -> FederatedAlgorithm:
    """The algorithm of that name with these options.

    Raises:
      ConfigError: an option's value is out of its range.
    """
    keys = algorithm_keys(text)
    try:
        values = {key: _parse(value, keys[key]) for key, value in options.items()}
        return _build(algorithm_parts(text), values, model)
    except (SyntaxError, TypeError, ValueError) as error:
        raise ConfigError(f"Algorithm {text}: {error}") from None


def _build(parts: list[str], values: Mapping[str, Any], model: Model) -> FederatedAlgorithm:
    first, *rest = parts
    own = {key: value for key, value in values.items() if key in _own_keys(first)}
    if not rest:
        return ALGORITHMS[first].factory(model, **own)
    takes = set().union(*map(_own_keys, rest))

    def inner(**rates: Any) -> FederatedAlgorithm:
        return _build(rest, {**values, **{k: v for k, v in rates.items() if k in takes}}, model)

    if first == "local_update_decay":
        for key in RATES:
            if key not in takes:
                own[key] = None
        return WRAPPERS[first][0].factory(
            lambda client_rate, server_rate: inner(
                client_learning_rate=client_rate, server_learning_rate=server_rate
            ),
            model, **own,
        )
    return WRAPPERS[first][0].factory(inner(), model, **own)


def _own_keys(part: str) -> dict[str, str]:
    info = ALGORITHMS[part] if part in ALGORITHMS else WRAPPERS[part][0]
    keys: dict[str, Any] = {}
    for parameter in inspect.signature(info.factory).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            keys |= inspect.get_annotations(LocalOptions)
        elif parameter.name not in ("model", "algorithm", "build"):
            keys[parameter.name] = parameter.annotation
    return {key: getattr(value, "__forward_arg__", str(value)) for key, value in keys.items()}


def _parse(value: Any, annotation: str) -> Any:
    """A value from a command line or a file, which may be the text of a schedule and the like."""
    if not isinstance(value, str):
        return value
    parsers: dict[str, Callable[[str], Any]] = {
        "Schedule": parse_schedule,
        "BaseOptimizer": lambda text: parse_call(text, BASES, "base optimizer"),
        "GradientTransformation": lambda text: parse_call(text, OPTIMIZERS, "optimizer"),
        "GradientWeights": _parse_gradient_weights,
    }
    for name, parse in parsers.items():
        if name in annotation:
            return parse(value)
    return value


def _parse_gradient_weights(text: str) -> Any:
    if text in ("all", "last"):
        return text
    try:
        return tuple(float(number) for number in ast.literal_eval(text))
    except (SyntaxError, TypeError, ValueError):
        raise ValueError(
            f"gradient_weights must be all, last or numbers such as '(1, 0.5)', but is {text!r}."
        ) from None
