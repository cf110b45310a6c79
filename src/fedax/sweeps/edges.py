"""Best values at the edge of a grid, and values to add there."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from fedax.sweeps.grid import is_number

Side: TypeAlias = Literal["smallest", "largest"]

# Number of values that continue a grid.
ADDED = 2
# What differs by no more than this part of itself counts as the same number: 3.16 and 10^0.5.
ALIKE = 0.02
# Half a decade is written 3 at least: log10(10^0.5 / 3), in halves of a decade.
WRITTEN = 0.05


class Edge(NamedTuple):
    """A best value at an end of its grid.

    Attributes:
      name: the hyperparameter.
      value: its best value.
      side: which end of the grid.
      add: values that continue the grid, from the edge outwards.
    """

    name: str
    value: int | float
    side: Side
    add: list[Any]


class Bounds(NamedTuple):
    """The values that a hyperparameter can have.

    Attributes:
      least, most: the bounds.
      has_least, has_most: whether the bound is a valid value.
      whole: whether it is a whole number.
    """

    least: float = -math.inf
    most: float = math.inf
    has_least: bool = False
    has_most: bool = False
    whole: bool = False


# What is no hyperparameter but the situation that a method is in, so that no edge asks for more.
SITUATION = (
    r"(\w+_)?seed|num_clients|examples_per_client|max_examples|cohort_size|availability|dropout"
)

# What a name says of its bounds; the first pattern that fits.
BOUNDS = [
    (r"num_\w+|(\w+_)?batch_size|window|patience|cooldown|capacity",
     Bounds(least=1, has_least=True, whole=True)),
    (r"momentum_weight|(client|server|steps)_decay", Bounds(least=0.0, most=1.0, has_most=True)),
    (r"momentum|dampening|\w+_decay", Bounds(least=0.0, most=1.0, has_least=True)),
    (r"\w+_fraction", Bounds(least=0.0, most=1.0)),
]


def edge(name: str, value: Any, values: Sequence[Any]) -> Edge | None:
    """The edge where a best value is; None if it is not at an edge, or no value can be added there.

    Args:
      name: the hyperparameter; its name determines the valid values.
      value: its best value.
      values: its grid, sorted.

    Example:
      >>> edge("client_learning_rate", 1.0, [0.01, 0.1, 1.0]).add
      [10.0, 100.0]
      >>> edge("momentum", 0.9, [0.0, 0.9]).add
      [0.99, 0.999]
      >>> edge("num_local_steps", 1, [1, 2, 5])  # there is no smaller number of steps
    """
    own = name.rpartition(".")[2]  # without its place, as in task.seed
    if len(values) < 2 or not all(map(is_number, values)) or re.fullmatch(SITUATION, own):
        return None
    if value not in (values[0], values[-1]):
        return None
    side: Side = "smallest" if value == values[0] else "largest"
    add = continued(values, side, bounds_of(own, values))
    return Edge(name, value, side, add) if add else None


def bounds_of(name: str, values: Sequence[Any]) -> Bounds:
    """The values that a hyperparameter can have, as its name says.

    If the name is unknown, a grid of positive numbers stays positive, and one that begins with 0
    gets no values below 0.
    """
    for pattern, bounds in BOUNDS:
        if re.fullmatch(pattern, name):
            return bounds
    return Bounds() if values[0] < 0 else Bounds(least=0.0, has_least=values[0] == 0)


def continued(values: Sequence[Any], side: Side, bounds: Bounds) -> list[Any]:
    """The next values of a grid beyond one of its ends, in the steps that it has there.

    A grid with equal differences continues with them; one that repeats by decades (1, 3, 10, 30)
    continues by decades (100, 300); any other continues with its last ratio. Numbers below a bound
    of 1 continue with the ratio of their distances to it (0.9, 0.99: 0.999). Beyond a bound, the
    grid ends at the bound if that is a valid value.

    Example:
      >>> continued([0.1, 0.316, 1.0, 3.16], "largest", Bounds())
      [10.0, 31.6]
      >>> continued([1, 2, 3, 4], "largest", Bounds(least=1, has_least=True, whole=True))
      [5, 6]
    """
    for candidates in _ways(values, side == "largest", bounds):
        inside: list[Any] = []
        for number in candidates:
            if not math.isfinite(number):
                break
            value = float(f"{number:.12g}")
            value = _clipped(round(value) if bounds.whole else value, bounds)
            if value is None or value in inside or values[0] <= value <= values[-1]:
                break
            inside.append(value)
        if inside:
            return inside
    return []


def _clipped(value: float, bounds: Bounds) -> int | float | None:
    """The value, or the bound where it is beyond; None where that is none."""
    if value < bounds.least or (value == bounds.least and not bounds.has_least):
        return bounds.least if bounds.has_least else None
    if value > bounds.most or (value == bounds.most and not bounds.has_most):
        return bounds.most if bounds.has_most else None
    return value


def _ways(values: Sequence[Any], up: bool, bounds: Bounds) -> Iterator[list[float]]:
    """Candidates beyond an end of the grid, the likeliest way to continue it first."""
    end, before = (values[-1], values[-2]) if up else (values[0], values[1])
    by_difference = [end + (end - before) * step for step in range(1, ADDED + 1)]
    even = _are_alike(np.diff([float(value) for value in values]))
    if bounds.most == 1 and max(end, before) < 1:
        ratio = (1 - end) / (1 - before)
        yield [round(1 - (1 - end) * ratio**step, 12) for step in range(1, ADDED + 1)]
    elif even:
        yield by_difference
    if min(end, before) > 0:
        yield _by_decades([value for value in values if value > 0], up)
        yield _by_ratio(values, end, before)
    yield by_difference


def _are_alike(steps: np.ndarray) -> bool:
    """Whether there are several steps, and all are one."""
    mean = steps.mean()
    return len(steps) > 1 and bool(np.all(np.abs(steps - mean) <= ALIKE * abs(mean)))


def _by_ratio(values: Sequence[Any], end: float, before: float) -> list[float]:
    """By the last ratio, but at most a decade at once where not all are that one.

    Of halves of a decade (0.3, 1) come the next ones as they are written (3, 10).
    """
    last, other = math.log10(end), math.log10(before)
    step = last - other
    if not (values[0] > 0 and _are_alike(np.diff(np.log10([float(v) for v in values])))):
        step = max(min(step, 1.0), -1.0)
    halves = [(2 * power, value) for power, value in ((last, end), (other, before))]
    written = all(abs(half - round(half)) <= WRITTEN for half, _ in halves)
    odd = [_power(-(round(half) // 2)) * value for half, value in halves if round(half) % 2]
    numbers: list[float] = []
    for count in range(1, ADDED + 1):
        power = last + step * count
        half = round(2 * power)
        if not written:
            numbers.append(_power(power))
        elif half % 2 and odd:
            numbers.append(_power(half // 2) * odd[0])
        else:
            numbers.append(_power(half / 2))
    return numbers


def _power(exponent: float) -> float:
    """Ten to this power; infinite beyond what a float can be."""
    return 10.0**exponent if exponent < sys.float_info.max_10_exp else math.inf


def _by_decades(values: Sequence[Any], up: bool) -> list[float]:
    """The next numbers if each ten times another is in the grid as well; otherwise none."""
    def found(wanted: float) -> bool:
        return any(abs(value - wanted) <= ALIKE * wanted for value in values)

    largest, smallest = values[-1], values[0]
    inner = [value for value in values if value * 10 <= largest * (1 + ALIKE)]
    if not inner or not all(found(value * 10) for value in inner):
        return []
    if up:
        outside = [value * 10 for value in values if value * 10 > largest * (1 + ALIKE)]
        return [*outside, *(value * 10 for value in outside)][:ADDED]
    outside = [value / 10 for value in values[::-1] if value / 10 < smallest * (1 - ALIKE)]
    return [*outside, *(value / 10 for value in outside)][:ADDED]
