"""Ranges of hyperparameters as text, for searches that are no grids."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedax.experiment.errors import ConfigError
from fedax.tuning.grids import items_of
from fedax.validate import quoted

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

KINDS = ("uniform", "loguniform", "int", "logint", "choice")


def parse_space(words: Sequence[str]) -> dict[str, BaseDistribution]:
    """Reads KEY=RANGE words.

    A range is `uniform(LOW, HIGH)`, `loguniform(LOW, HIGH)`, whole numbers from `int(LOW, HIGH)` or
    `logint(LOW, HIGH)`, both ends included, or one of `choice(A, B, ...)`.

    Raises:
      ConfigError: if a word is not KEY=RANGE; the message quotes it.

    Example:
      >>> parse_space(["client_learning_rate=loguniform(0.001, 10)"])
      {'client_learning_rate': FloatDistribution(high=10.0, log=True, low=0.001, step=None)}
    """
    space: dict[str, BaseDistribution] = {}
    for word in words:
        key, equals, text = (part.strip() for part in word.partition("="))
        if not (key and equals):
            raise ConfigError(
                "--search takes KEY=RANGE, such as client_learning_rate='loguniform(0.001, 10)', "
                f"but got {quoted(word)}."
            )
        if key in space:
            raise ConfigError(f"--search has {key} twice. Give one range.")
        space[key] = parse_range(key, text)
    if not space:
        raise ConfigError(
            "--search needs ranges, such as client_learning_rate='loguniform(0.001, 10)'."
        )
    return space


def parse_range(key: str, text: str) -> BaseDistribution:
    """One range, see `parse_space`.

    Raises:
      ConfigError: if it is not a range; the message quotes it.
    """
    from optuna.distributions import (  # noqa: PLC0415 - optional, and slow to import
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    found = re.fullmatch(r"(\w+)\s*\((.*)\)", text)
    if found is None or found[1] not in KINDS:
        ways = ", ".join(f"{kind}(LOW, HIGH)" for kind in KINDS[:-1])
        raise ConfigError(
            f"The range of {key} must be {ways} or choice(A, B, ...), but is {quoted(text)}."
        )
    kind, values = found[1], [
        _value(part) for part in items_of(found[2], f"The range of {key}, {quoted(text)}")
    ]
    if kind == "choice":
        if "" in values:
            raise ConfigError(f"The range of {key} has an empty choice: {quoted(text)}.")
        return CategoricalDistribution(values)
    wanted = int if "int" in kind else (int, float)
    log = kind.startswith("log")
    if len(values) != 2 or not all(isinstance(v, wanted) and math.isfinite(v) for v in values):
        what = "whole numbers" if wanted is int else "numbers"
        raise ConfigError(f"The range of {key} needs two {what}, but is {quoted(text)}.")
    low, high = values
    if low > high or (log and low <= 0):
        above = " above 0" if log else ""
        raise ConfigError(
            f"The range of {key} must go from a lower to a higher number{above}, but is "
            f"{quoted(text)}."
        )
    if wanted is int:
        return IntDistribution(low, high, log=log)
    return FloatDistribution(float(low), float(high), log=log)


def ends(of: BaseDistribution) -> list[Any]:
    """All values of a choice, the lowest and the highest of a range.

    Example:
      >>> ends(parse_range("rate", "uniform(0, 1)")), ends(parse_range("rate", "choice(a, b)"))
      ([0.0, 1.0], ['a', 'b'])
    """
    from optuna.distributions import CategoricalDistribution  # noqa: PLC0415 - as above

    if isinstance(of, CategoricalDistribution):
        return list(of.choices)
    return list(dict.fromkeys(getattr(of, end) for end in ("low", "high")))


def space_from_json(space: Mapping[str, str]) -> dict[str, BaseDistribution]:
    """Ranges that `optuna.distributions.distribution_to_json` has written.

    Raises:
      ValueError: if a text is not a range. The message is a phrase.
    """
    from optuna.distributions import json_to_distribution  # noqa: PLC0415 - as above

    found: dict[str, BaseDistribution] = {}
    for key, text in space.items():
        try:
            found[key] = json_to_distribution(text)
        except Exception:  # Optuna raises what reading and making it happen to raise
            raise ValueError(f"the range of {key} cannot be {quoted(text)}") from None
    return found


def _value(text: str) -> Any:
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return {"true": True, "false": False, "none": None}.get(text.lower(), text)
