"""A question to the theory: clients, gamma and K, with the defaults of `fedax theory`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedax.theory.errors import TheoryError
from fedax.theory.files import population_from, read_population
from fedax.theory.given import as_array, as_count
from fedax.theory.population import QuadraticPopulation
from fedax.theory.prescriptions import MOST_STEPS, check_accuracy
from fedax.theory.surrogate import Surrogate, surrogate

# What a matrix function of every client costs, N d^3, of which a question needs dozens.
MOST_WORK = 2**28


@dataclasses.dataclass(frozen=True)
class Question:
    """A question to the theory.

    Attributes:
      population: the clients.
      gamma: client learning rate >= 0.
      K: local steps, 1 to `MOST_STEPS`.
      accuracy: allowed distance to x*; None: a tenth of FedAvg's.
      start: x_1, [d] or a number; affects only rates of convergence.
      batch_size: B, for the clients' noise.
    """

    population: QuadraticPopulation
    gamma: float
    K: int
    accuracy: float | None = None
    start: Any = 0.0
    batch_size: int = 1

    def __post_init__(self) -> None:
        if as_count("K", self.K) > MOST_STEPS:
            raise TheoryError(
                f"K must be at most {MOST_STEPS:,} local steps, but is {self.K:,}. The "
                'row "K to infinity", shown for every K, gives the limit for many local steps. '
                "Or use a smaller gamma: the result depends mainly on gamma K."
            )
        as_count("batch_size", self.batch_size)
        as_array("start", self.start)
        num_clients, d = self.population.linear.shape
        if num_clients * d**3 > MOST_WORK:
            raise TheoryError(
                f"{num_clients:,} clients in {d:,} dimensions take too long for all questions "
                "together. Use single functions of fedax.theory in Python, such as "
                "surrogate(population, gamma, K).minimiser, or fewer dimensions."
            )
        if self.accuracy is not None:
            check_accuracy(self.accuracy)

    @property
    def surrogate(self) -> Surrogate:
        """The surrogate loss of FedAvg."""
        return surrogate(self.population, self.gamma, self.K)

    @property
    def wanted(self) -> float:
        """The allowed distance, 0 if there is no gap to close."""
        return self.surrogate.gap / 10 if self.accuracy is None else self.accuracy


# Way of giving clients by a few numbers -> the numbers that go with it.
WAYS = {
    "curvatures": ("centres", "probabilities", "noise"),
    "density_power": ("interval", "noise"),
    "random": ("mu", "L", "sigma_A", "sigma_c", "seed", "noise"),
}
NUMBERS = tuple(dict.fromkeys([*WAYS, *(name for names in WAYS.values() for name in names)]))
EXAMPLES = ("client_column", "target_column", "ridge", "intercept")
TWO_CLIENTS = {"curvatures": (1.0, 2.0), "centres": (1.0, 0.5)}


def clients_from(
    file: Path | None, numbers: Mapping[str, Any], examples: Mapping[str, Any]
) -> QuadraticPopulation:
    """The population of a command line.

    Args:
      file: see `fedax.theory.files`, or None.
      numbers: those given, by name: one of `WAYS` and what goes with it; none: the two clients
        of section 4 of Charles and Konečný 2020.
      examples: arguments of `read_population` for examples.

    Raises:
      TheoryError: if they cannot be combined, or are out of range.
    """
    if file is not None:
        if numbers:
            raise TheoryError(f"{_flag(next(iter(numbers)))} cannot be combined with a file.")
        return read_population(file, **examples)
    ways = [way for way in WAYS if way in numbers]
    if len(ways) > 1:
        raise TheoryError(f"Clients come from {' or '.join(map(_flag, ways))}, not from both.")
    if not ways:
        numbers, ways = TWO_CLIENTS | dict(numbers), ["curvatures"]
    (way,) = ways
    for name in numbers:
        if name not in (way, *WAYS[way]):
            wanted = next((w for w, names in WAYS.items() if name in names), way)
            raise TheoryError(f"{_flag(name)} goes with {_flag(wanted)}, not with {_flag(way)}.")
    values = dict(numbers)
    if way == "random":
        num_clients, dimension = values.pop("random")
        values = {"random": {"num_clients": num_clients, "dimension": dimension, **values}}
    elif way == "curvatures":
        values["matrices"] = values.pop("curvatures")
        if "centres" not in values:
            raise TheoryError("--curvatures needs --centres, one for each.")
    elif "interval" not in values:
        raise TheoryError("--density-power needs --interval, such as --interval 1 3.")
    return population_from(values)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def ask(
    population: QuadraticPopulation, gamma: float | None, K: int | None, **others: Any
) -> Question:
    """The question, with the defaults gamma = 1 / (2 L) and K = 10."""
    if gamma is None:
        gamma = 0.5 / population.L if population.L > 0 else 0.1
    return Question(population, gamma, 10 if K is None else K, **others)
