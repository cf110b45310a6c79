"""What the value of a setting can be, by its annotation; and values given as text."""

from __future__ import annotations

import ast
import collections.abc
import functools
import inspect
import math
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
import optax

from fedax import optimizers
from fedax.attacks import ATTACKS, Attack
from fedax.codecs import CODECS, Codec
from fedax.experiment.errors import ConfigError
from fedax.factories import UNREADABLE, parse_call
from fedax.optimizers import base_optimizers
from fedax.optimizers.base_optimizers import BaseOptimizer
from fedax.optimizers.schedules import SCHEDULES, parse_schedule
from fedax.robust_means import ROBUST_MEANS, RobustMean
from fedax.sinks import sink_names
from fedax.validate import quoted

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

# What is said of an optimizer's arguments that do not fit.
NO_RATE = (
    "The learning rate is a setting of its own, client_learning_rate or server_learning_rate; SGD "
    "with momentum is heavy_ball(0.9)."
)

# Kinds of values, in the words of a list. Text in quotes is one of the choices that there are;
# what is of the kind OTHER is not known here.
NUMBER, WHOLE, SCHEDULE, OPTIMIZER, BASE, CODEC, MEAN, ATTACK = (
    "number", "whole number", "schedule", "optimizer", "base optimizer", "codec", "robust mean",
    "attack",
)
SWITCH, TEXT, PATH, NUMBERS, NONE, OTHER = (
    "true or false", "text", "path", "numbers such as '(1, 0.5)'", "none", "other"
)
KINDS: dict[Any, str] = {
    bool: SWITCH, int: WHOLE, float: NUMBER, str: TEXT, types.NoneType: NONE,
    Path: PATH,
    optax.GradientTransformation: OPTIMIZER, optax.GradientTransformationExtraArgs: OPTIMIZER,
    BaseOptimizer: BASE, Codec: CODEC, RobustMean: MEAN, Attack: ATTACK, np.ndarray: NUMBERS,
    tuple: NUMBERS, list: NUMBERS, collections.abc.Sequence: NUMBERS,
    collections.abc.Callable: SCHEDULE,
}
ARTICLES = {NUMBER: "a ", PATH: "a ", WHOLE: "a ", SCHEDULE: "a ", BASE: "a ", OPTIMIZER: "an ",
            CODEC: "a ", MEAN: "a ", ATTACK: "an "}
# Options of the command line that are settings of a run.
OPTIONS = {
    "--rounds": "num_rounds", "--cohort-size": "cohort_size", "--seed": "seed", "--log": "log",
}
# Chosen by names, or by a function of a name; text in a list.
NAMED = (Sequence[str], Callable[[str], bool])
# How the text of such a value is read.
READERS: dict[str, Callable[[str], Any]] = {
    PATH: Path,
    SCHEDULE: parse_schedule,
    BASE: lambda text: parse_call(text, BASES, "base optimizer"),
    CODEC: lambda text: parse_call(text, CODECS, "codec"),
    MEAN: lambda text: parse_call(text, ROBUST_MEANS, "robust mean"),
    ATTACK: lambda text: parse_call(text, ATTACKS, "attack"),
    OPTIMIZER: lambda text: parse_call(text, OPTIMIZERS, "optimizer", NO_RATE),
}
# Of annotations that cannot be evaluated, by a word in their text.
WRITTEN = {
    "Schedule": (NUMBER, SCHEDULE), "BaseOptimizer": (BASE,), "Codec": (CODEC,),
    "RobustMean": (MEAN,), "Attack": (ATTACK,),
    "GradientTransformation": (OPTIMIZER,),
}


def parse_settings(
    words: Sequence[str], options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Reads KEY=VALUE words. A value is a number, true, false, none, or else text, as in quotes.

    Args:
      words: of --set.
      options: of `OPTIONS`, with their values; None: it is not given.

    Raises:
      ConfigError: if a word does not contain '=', or a setting is given twice.

    Example:
      >>> parse_settings(["client_learning_rate=0.1", "num_local_steps=none", "model=small"])
      {'client_learning_rate': 0.1, 'num_local_steps': None, 'model': 'small'}
    """
    settings: dict[str, Any] = {}
    given_as: dict[str, str] = {}
    given = [(f"run.{OPTIONS[option]}", value, option)
             for option, value in (options or {}).items() if value is not None]
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key.strip():
            raise ConfigError(
                f"--set takes KEY=VALUE, such as num_rounds=50, but got {quoted(word)}."
            )
        given.append((key.strip(), parse_value(value.strip()), f"--set {word}"))
    for key, value, written in given:
        twice = next((other for other in settings if _is_same(key, other)), None)
        if twice is not None:
            raise ConfigError(
                f"The setting {key} is given twice: {given_as[twice]} and {written}. Leave one out."
            )
        settings[key], given_as[key] = value, written
    return settings


def _is_same(one: str, other: str) -> bool:
    """Whether two keys are one setting's; without a prefix it may be any part's."""
    (place, _, name), (elsewhere, _, another) = one.rpartition("."), other.rpartition(".")
    parts = {"", "run", "task", "algorithm"}
    return name == another and (
        place == elsewhere or ("" in (place, elsewhere) and {place, elsewhere} <= parts)
    )


def parse_value(text: str) -> Any:
    """What a word stands for: a number, true, false, none, or else itself; in quotes always text.

    Example:
      >>> parse_value("1_0"), parse_value("'1_0'")
      (10, '1_0')
    """
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    words = {"none": None, "true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text


def kinds_of(hint: Any) -> tuple[str, ...]:
    """What a value may be whose annotation this is.

    Example:
      >>> kinds_of(float | None), kinds_of(Literal["mean", "sum"])
      (('number', 'none'), ("'mean'", "'sum'"))
    """
    if isinstance(hint, str) or type(hint).__name__ == "ForwardRef":
        text = str(hint)
        return next((kinds for word, kinds in WRITTEN.items() if word in text), (OTHER,))
    kinds: list[str] = []
    for part in _parts(hint):
        origin = typing.get_origin(part) or part
        if any(part == named for named in NAMED):
            kinds.append(TEXT)
        elif origin is Literal:
            kinds += [f"'{choice}'" for choice in typing.get_args(part)]
        elif origin is not jax.Array:
            known = isinstance(origin, collections.abc.Hashable)
            kinds.append(KINDS.get(origin, OTHER) if known else OTHER)
    if set(kinds) <= {NONE} and jax.Array in _parts(hint):  # else it is what stands beside it
        kinds.insert(0, NUMBER)
    return tuple(dict.fromkeys(kinds))


def describe(hint: Any, articles: bool = False) -> str:
    """The same in words, if need be with articles.

    Example:
      >>> describe(int | None), describe(Literal["mean", "sum"])
      ('whole number or none', 'mean or sum')
    """
    kinds = kinds_of(hint)
    if hint is Any:
        return "any value"
    if OTHER in kinds:
        return hint if isinstance(hint, str) else inspect.formatannotation(hint)
    words = [kind[1:-1] if kind.startswith("'") else kind for kind in kinds]
    if articles:
        words = [f"{ARTICLES.get(word, '')}{word}" for word in words]
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


def parse(name: str, value: Any, hint: Any) -> Any:
    """A value from a command line or a file, which may be the text of a schedule and the like.

    Raises:
      SyntaxError, ValueError: if the text is not a possible value.
    """
    kinds = set(kinds_of(hint))
    if not isinstance(value, str):
        return _converted(value, kinds)
    if f"'{value}'" in kinds or TEXT in kinds:
        return value
    for kind, read in READERS.items():
        if kind in kinds:
            return read(value)
    return _parse_numbers(name, value, hint) if NUMBERS in kinds else _parse_expression(value)


def check_kind(name: str, value: Any, hint: Any) -> None:
    """Raises a `ValueError` unless the parsed value matches its annotation.

    A function or an optimizer that was made from text always passes.
    """
    kinds = kinds_of(hint)
    known = OTHER not in kinds and isinstance(value, bool | int | float | str | None)
    if not known or f"'{value}'" in kinds or any(_fits(value, kind) for kind in kinds):
        return
    shown = "none" if value is None else quoted(value)
    raise ValueError(f"{name} must be {describe(hint, articles=True)}, but is {shown}.")


def _parts(hint: Any) -> list[Any]:
    """The members of a union, opened; or what it is alone."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return [hint]
    return [part for member in typing.get_args(hint) for part in _parts(member)]


def _converted(value: Any, kinds: set[str]) -> Any:
    """What the words of a command line were taken for, as the annotation has it."""
    if value is None:
        return "none" if "'none'" in kinds else None  # where it is one of the choices
    if TEXT in kinds <= {TEXT, NONE}:
        return str(value).lower() if isinstance(value, bool) else str(value)
    if not (_is_whole(value) and NUMBER in kinds <= {NUMBER, NONE}):
        return value
    if abs(value) <= sys.float_info.max:
        return float(value)
    return math.inf if value > 0 else -math.inf


def _parse_expression(text: str) -> Any:
    """A tuple, a list, a dictionary or a schedule, and otherwise the text."""
    if text.startswith(("(", "[", "{")):
        try:
            return ast.literal_eval(text)
        except UNREADABLE:
            return text
    is_call = text.endswith(")") and text.partition("(")[0].strip() in SCHEDULES
    return parse_schedule(text) if is_call else text


def _parse_numbers(name: str, text: str, hint: Any) -> tuple[Any, ...]:
    floats = any(float in typing.get_args(part) for part in _parts(hint))
    try:
        found = tuple(ast.literal_eval(text))
        return tuple(float(number) for number in found) if floats else found
    except (*UNREADABLE, OverflowError):
        raise ValueError(f"{name} must be {describe(hint)}, but is {quoted(text)}.") from None


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _fits(value: Any, kind: str) -> bool:
    return {
        NUMBER: _is_whole(value) or isinstance(value, float), WHOLE: _is_whole(value),
        SWITCH: isinstance(value, bool), TEXT: isinstance(value, str), NONE: value is None,
    }.get(kind, False)


def log_names(given: Any) -> tuple[str, ...]:
    """Checks the names of sinks; raises a `ConfigError` if one is unknown."""
    try:
        return sink_names(() if given is None else given)
    except ValueError as error:
        raise ConfigError(str(error)) from None
