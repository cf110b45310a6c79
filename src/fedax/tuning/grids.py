"""Grids as text: which values of which hyperparameters, of which methods."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fedax.experiment.build import algorithm_settings, task_settings
from fedax.experiment.config import RUN_KEYS
from fedax.experiment.errors import ConfigError
from fedax.experiment.presets import check_preset
from fedax.experiment.sources import Source
from fedax.experiment.values import parse_value
from fedax.sweeps.grid import same
from fedax.tasks.registry import TASKS, presets
from fedax.validate import quoted, unknown, unknown_option

T = TypeVar("T")
Grid = dict[str, list[Any]]

OPENING, CLOSING = "([{", ")]}"
SPACES = {
    "logspace": (np.logspace, "powers of ten, the exponents evenly spaced: logspace(-3, 0.5, 8)"),
    "linspace": (np.linspace, "evenly spaced numbers: linspace(0, 1, 5)"),
}
# Of what was typed so many letters are shown.
SHOWN = 100
# A grid of more values is a mistake, as is a sweep of more settings.
MOST_VALUES, MOST_SETTINGS = 1_000, 100_000

# Of a run's own settings those that a sweep can vary. The others say how long it is, what is
# measured, and how it is computed, which all settings of a sweep have alike.
VARIED_OF_RUN = ("cohort_size", "sampling", "availability", "dropout")


class Method(NamedTuple):
    """A method of a sweep, and where its settings have their places.

    Attributes:
      name: in a run, wrappers included.
      text: as the user wrote it.
      source: where it comes from if it is a user's.
      places: "run", "task" and "algorithm" -> the names of the settings there.
    """

    name: str
    text: str
    source: Source | None
    places: Mapping[str, Sequence[str]]


def method_of(
    name: str, text: str, source: Source | None, task: str, task_source: Source | None
) -> Method:
    """A method with the settings that it has on a task."""
    places = {
        "run": RUN_KEYS, "task": list(task_settings(task, task_source)),
        "algorithm": list(algorithm_settings(name, source)),
    }
    return Method(name, text, source, places)


def parse_grid(words: Sequence[str]) -> tuple[str | None, Grid]:
    """Reads words of a grid: KEY=VALUE,... or the name of a preset.

    Returns:
      The preset, or None; and key -> values, the keys as they were written.

    Raises:
      ConfigError: if a word is neither, or a value or a key is repeated.

    Example:
      >>> parse_grid(["client_learning_rate=0.1,1", "base=sgdm(0.9),adam(0.9,0.99)"])
      (None, {'client_learning_rate': [0.1, 1.0], 'base': ['sgdm(0.9)', 'adam(0.9,0.99)']})
      >>> parse_grid(["reddi2021", "momentum=0,0.9"])
      ('reddi2021', {'momentum': [0.0, 0.9]})
    """
    preset, grid = None, {}
    for word in words:
        key, equals, text = word.partition("=")
        key = key.strip()
        if not equals and re.fullmatch(r"[\w-]+", word) and not _is_number(word):
            if preset is not None:
                raise ConfigError(
                    f"--grid has two presets, {_cut(preset)} and {_cut(word)}. Give one; values "
                    "are written KEY=VALUE,..."
                )
            preset = word
            continue
        if not equals or not key:
            raise ConfigError(
                "--grid takes KEY=VALUE,VALUE,... without spaces or in quotes, such as "
                f"client_learning_rate=0.1,1, or the name of a preset, but got {quoted(word)}."
            )
        if key in grid:
            raise ConfigError(f"--grid has {_cut(key)} twice; give all of its values at once.")
        grid[key] = parse_values(text, key)
    return preset, grid


def parse_values(text: str, key: str = "KEY") -> list[Any]:
    """Reads values separated by commas; those in brackets separate nothing.

    Each is a number, true, false, none or text, or logspace(A, B, N) or linspace(A, B, N). Where
    one number is no whole one, all are floats.

    Raises:
      ConfigError: if a value is empty, repeated, or cannot be read.

    Example:
      >>> parse_values("0, logspace(-2, 0, 3)"), parse_values("1,2,none")
      ([0.0, 0.01, 0.1, 1.0], [1, 2, None])
    """
    found: list[Any] = []
    for item in items_of(text, f"--grid {_cut(f'{key}={text}')}"):
        if not item:
            raise ConfigError(
                f"--grid {_cut(f'{key}={text}')} has an empty value. Separate values by commas, "
                "without spaces or in quotes: KEY=0.1,1"
            )
        found += _spaced(item, key)
    if len(found) > MOST_VALUES:
        raise ConfigError(
            f"--grid {_cut(key)} has {len(found):,} values; the maximum is {MOST_VALUES:,}."
        )
    for place, value in enumerate(found):
        if any(same(value, other) for other in found[:place]):
            raise ConfigError(
                f"--grid {_cut(key)} has the value {quoted(value)} twice; leave one out."
            )
    return all_floats(found)


def all_floats(values: Sequence[Any]) -> list[Any]:
    """The values, with whole numbers as floats where there are both."""
    floats = any(isinstance(value, float) for value in values)
    return [float(value) if floats and type(value) is int else value for value in values]


def preset_grid(task: str, source: Source | None, preset: str) -> dict[str, Any]:
    """The grid of a preset; it may have keys that are no hyperparameters.

    Raises:
      ConfigError: if the preset is unknown, or does not have a grid; the message says which do.
    """
    if source is not None:
        raise ConfigError(
            f"The task {task} does not have presets, so the grid {preset!r} is unknown. Give "
            "values: --grid KEY=VALUE,VALUE"
        )
    try:
        check_preset(task, preset)
    except ConfigError as error:
        raise ConfigError(f"{error} Or give values: --grid KEY=VALUE,VALUE.") from None
    grid = {} if preset == "none" else presets(task)[preset]["grid"]
    if grid:
        return grid
    have = [name for name, tables in presets(task).items() if tables["grid"]]
    others = [name for name in TASKS if presets(name).get(preset, {}).get("grid")]
    which = f"presets with a grid: {', '.join(have)}" if have else (
        f"none of its presets has one; tasks whose {preset} has one: {', '.join(others)}"
        if others else "none of its presets has one"
    )
    raise ConfigError(
        f"Preset {preset} of task {task} does not have a grid ({which}). Give values: --grid "
        "KEY=VALUE,VALUE"
    )


def of_methods(
    given: Mapping[str, T], methods: Sequence[Method], option: str
) -> dict[str, dict[str, T]]:
    """What each method gets of KEY -> something, METHOD.KEY -> something.

    A key that a method does not have is left out for it. What is said for a method alone comes
    before what is said for all.

    Args:
      given: by key.
      methods: of the sweep.
      option: --grid or --set, for the sentences.

    Returns:
      method -> key -> something; a key's place stands before it only where it is needed.

    Raises:
      ConfigError: if the named method, or no method, has a key, or a key is ambiguous.
    """
    found: dict[str, dict[str, T]] = {method.name: {} for method in methods}
    for alone in (False, True):
        there: dict[tuple[str, str], str] = {}
        for word, value in given.items():
            method, key = _for_one(word, methods)
            if (method is not None) != alone:
                continue
            meant = [method] if method else methods
            keys = {one.name: _canonical(key, one, option) for one in meant}
            if not any(keys.values()):
                raise ConfigError(_nowhere(key, meant, option))
            for name, place in keys.items():
                if place is None:
                    continue
                if (name, place) in there:
                    raise ConfigError(
                        f"{option} has both {there[name, place]} and {word}, which are the same "
                        f"for {name}. Leave one out."
                    )
                there[name, place] = word
                found[name][place] = value
    return found


def check_varied(key: str) -> None:
    """Raises an error unless a sweep can vary a setting that every method has."""
    place, _, name = key.rpartition(".")
    if name not in RUN_KEYS or place not in ("", "run") or name in VARIED_OF_RUN:
        return
    cure = {"seed": "--seeds N runs every setting with N seeds",
            "num_rounds": "--rounds sets the rounds of all settings"}
    raise ConfigError(
        f"--grid cannot vary {name}: {cure.get(name, 'all settings share it, see --set')}."
    )


def _for_one(word: str, methods: Sequence[Method]) -> tuple[Method | None, str]:
    """The method that a key is for alone, and what is left of the key."""
    for method in methods:
        for name in (method.name, method.text):
            if word.startswith(f"{name}."):
                return method, word[len(name) + 1:]
    place = word.rpartition(".")[0]
    if place not in ("", "run", "task", "algorithm"):
        names = [*(method.name for method in methods), "run", "task", "algorithm"]
        raise ConfigError(
            f"{unknown('prefix', place, names)} Before a setting's name stands a method of this "
            "sweep, or run, task or algorithm."
        )
    return None, word


def _canonical(key: str, method: Method, option: str) -> str | None:
    """The key as all methods write it; None if the method has no such setting."""
    place, _, name = key.rpartition(".")
    fits = [at for at, names in method.places.items() if name in names]
    if place:
        if place not in fits:
            return None
        return name if len(fits) == 1 else key
    if len(fits) > 1:
        ways = " or ".join(f"{at}.{name}" for at in fits)
        raise ConfigError(f"{option} {name} belongs to the {' and the '.join(fits)} of "
                          f"{method.name}; write {ways}.")
    return name if fits else None


def _nowhere(key: str, methods: Sequence[Method], option: str) -> str:
    """The sentence for a key that none of the methods has."""
    known = dict.fromkeys(
        name for method in methods for at, names in method.places.items() for name in names
        if option != "--grid" or at != "run" or name in VARIED_OF_RUN
    )
    of = " and ".join(method.name for method in methods)
    return unknown_option(f"setting of runs of {of} in {option}", key.rpartition(".")[2], known)


def items_of(text: str, where: str) -> list[str]:
    """The items between commas outside brackets.

    Args:
      text: the items.
      where: it stands, for the sentence of an error.

    Raises:
      ConfigError: if the brackets do not match.

    Example:
      >>> items_of("sgdm(0.9), adam(0.9, 0.99)", "--grid base")
      ['sgdm(0.9)', 'adam(0.9, 0.99)']
    """
    items, depth = [""], []  # of brackets that are open
    for letter in text:
        if letter in OPENING:
            depth.append(letter)
        elif letter in CLOSING and (not depth or OPENING.index(depth.pop()) !=
                                    CLOSING.index(letter)):
            raise ConfigError(f"{where}: unmatched {letter!r}.")
        if letter == "," and not depth:
            items.append("")
        else:
            items[-1] += letter
    if depth:
        raise ConfigError(f"{where}: a {depth[-1]!r} is not closed.")
    return [item.strip() for item in items]


def _spaced(item: str, key: str) -> list[Any]:
    """The value, or those that logspace or linspace stand for."""
    name, bracket, inside = item.partition("(")
    if name.strip() not in SPACES or not bracket:
        return [parse_value(item)]
    make, meaning = SPACES[name.strip()]
    words = inside.removesuffix(")").split(",")
    try:
        first, last, count = float(words[0]), float(words[1]), int(words[2])
        if len(words) != 3 or not 1 <= count <= MOST_VALUES:
            raise ValueError
        with np.errstate(all="ignore"):
            values = [float(value) for value in make(first, last, count)]
        if not np.isfinite(values).all():
            raise ValueError
    except (ValueError, IndexError):
        raise ConfigError(
            f"--grid {_cut(f'{key}={item}')} cannot be read. {name.strip()}(FIRST, LAST, COUNT) "
            f"gives {meaning}."
        ) from None
    return values


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _is_number(word: str) -> bool:
    return isinstance(parse_value(word), int | float)
