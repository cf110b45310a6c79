"""What a reproduction by training is: what is trained, what was published, what would agree."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from fedax.report.tables import Table
from fedax.reproductions.results import LAST_ROUNDS, Results

if TYPE_CHECKING:  # matplotlib is slow to import, and only drawing needs it
    from matplotlib.figure import Figure

Scale: TypeAlias = Literal["small", "paper"]

# With fewer seeds the spread is unknown.
LEAST_SEEDS = 3
# What the name of a panel ends with that is on data which the paper, or its figure, has not.
NOT_IN_THE_FIGURE = ", not in the figure"
BEYOND = (", not in the paper", NOT_IN_THE_FIGURE)


def name_of(panel: str) -> str:
    """What the paper calls a panel, or what other data replace.

    Example:
      >>> name_of("Shakespeare"), name_of("plays for Shakespeare")
      ('Shakespeare', 'Shakespeare')
      >>> name_of("CIFAR-10, not in the figure")
      'CIFAR-10'
    """
    for words in BEYOND:
        panel = panel.removesuffix(words)
    return panel.rpartition(" for ")[2]


class Part(NamedTuple):
    """A method on a task, trained with every setting of a grid and with several seeds.

    Attributes:
      panel: the row or the panel that it belongs to, such as "Shakespeare"; on a stand-in "plays
        for Shakespeare".
      label: the method as the paper calls it, such as "FedAvgM".
      task, algorithm: as in `fedax sweep`; tasks need no data that the plan does not name.
      preset: where settings come from that are not given here.
      settings: KEY -> value, as `--set` takes them.
      grid: KEY -> values, tuned over; empty: nothing is.
      num_seeds: at least 3, from the setting `seed` on.
    """

    panel: str
    label: str
    task: str
    algorithm: str
    preset: str = "none"
    settings: Mapping[str, Any] = {}
    grid: Mapping[str, Sequence[Any]] = {}
    num_seeds: int = LEAST_SEEDS


def _plain(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


class Plan(NamedTuple):
    """One way to run an experiment: at a scale, on the paper's data or on other data.

    Attributes:
      parts: what is trained.
      settings: sentences: the settings, where each comes from, and what is reduced.
      hours: panel -> rough hours on 2 cores and on one GPU; the latter are guesses.
      changed: panels that differ from what was published in more than data and rounds, as by
        another network or by fewer settings tried.
    """

    parts: tuple[Part, ...]
    settings: str
    hours: Mapping[str, tuple[float, float]] = {}
    changed: Collection[str] = ()

    @property
    def panels(self) -> list[str]:
        """The panels, in order."""
        return list(dict.fromkeys(part.panel for part in self.parts))

    @property
    def num_runs(self) -> int:
        """How many settings with how many seeds."""
        return sum(
            part.num_seeds * math.prod(map(len, part.grid.values())) for part in self.parts
        )

    @property
    def rough_hours(self) -> tuple[float, float]:
        """Hours of all panels on 2 cores and on one GPU."""
        each = [self.hours.get(panel, (0.0, 0.0)) for panel in self.panels]
        return sum(cpu for cpu, _ in each), sum(gpu for _, gpu in each)

    @property
    def tried(self) -> list[tuple[str, str, str]]:
        """What is tuned over: panel, methods with the same grid, the grid.

        Example:
          >>> grid = {"client_learning_rate": [0.1, 1.0]}
          >>> Plan((Part("CIFAR-10", "Avg", "cifar10", "fedavg", grid=grid),), "").tried
          [('CIFAR-10', 'Avg', 'client_learning_rate 0.1, 1')]
        """
        found: dict[tuple[str, str], dict[str, None]] = {}
        for part in self.parts:
            words = "; ".join(
                f"{key} {', '.join(_plain(value) for value in values)}"
                for key, values in part.grid.items()
            )
            if words:
                found.setdefault((part.panel, words), {})[part.label] = None
        return [(panel, " / ".join(labels), words) for (panel, words), labels in found.items()]

    def only(self, panels: Collection[str]) -> Plan:
        """The plan with these panels alone."""
        return self._replace(parts=tuple(part for part in self.parts if part.panel in panels))

    def of(self, names: Collection[str]) -> Plan:
        """The plan with some panels, methods, or methods of panels, and hours in proportion."""
        panels = {name for name in names if name in self.panels} or {*self.panels}
        labels = {*names} - panels
        return self.with_parts(
            part for part in self.only(panels).parts if not labels or part.label in labels
        )

    def without(self, other: Plan) -> Plan:
        """The plan without the methods of another, panel by panel."""
        taken = {(part.panel, part.label) for part in other.parts}
        return self._replace(
            parts=tuple(part for part in self.parts if (part.panel, part.label) not in taken)
        )

    def with_seeds(self, count: int) -> Plan:
        """The plan with this number of seeds of each part, and hours in proportion."""
        return self.with_parts(part._replace(num_seeds=count) for part in self.parts)

    def with_parts(self, parts: Iterable[Part]) -> Plan:
        """The plan with other parts of its panels, and each panel's hours in proportion to runs."""
        chosen = self._replace(parts=tuple(parts))
        shares = {panel: chosen.only([panel]).num_runs / self.only([panel]).num_runs
                  for panel in chosen.panels}
        return chosen._replace(hours={
            panel: (share * self.hours[panel][0], share * self.hours[panel][1])
            for panel, share in shares.items() if panel in self.hours
        })


class Outcome(NamedTuple):
    """What a criterion came to.

    Attributes:
      measured: in words, with the spread.
      agrees: whether it is as published.
      inconclusive: whether the runs cannot tell, as where both are the same; it counts as no
        point.
      run: whether all that it compares was run; if not, it counts as no point either.
    """

    measured: str
    agrees: bool
    inconclusive: bool = False
    run: bool = True

    @property
    def counts(self) -> bool:
        """Whether it is a point that agrees or disagrees."""
        return self.run and not self.inconclusive

    @property
    def word(self) -> str:
        """For a table."""
        if not self.run:
            return "not run"
        return "inconclusive" if self.inconclusive else "yes" if self.agrees else "no"


class Criterion(NamedTuple):
    """What would count as agreement, written down before anything is run.

    Attributes:
      statement: what was published, and what must be measured to agree with it; begins with the
        panel's name.
      judge: tells from the results whether it is so.
    """

    statement: str
    judge: Callable[[Results], Outcome]

    @property
    def beyond(self) -> str:
        """How its panel ends if its data are not used in the paper, or in the figure."""
        panel = self.statement.partition(":")[0]
        return next((words for words in BEYOND if panel.endswith(words)), "")


class Experiment(NamedTuple):
    """A published table or figure that training makes.

    Attributes:
      description: the question, one line.
      source: paper and place.
      plan: of a scale, on the paper's data or, with True, on stand-ins; None: there is none.
      criteria: what would count as agreement, for results of a plan.
      tables: published beside measured.
      draw: the figure in the paper's own axes; None: the source is a table.
      by, maximise: by which metric the best setting of a method is chosen, see `Results`.
      over: over how many last rounds, see `results.traces_of`.
      alone: why it can be asked of the paper's data in full alone; empty: it can be of others.
    """

    description: str
    source: str
    plan: Callable[[Scale, bool], Plan | None]
    criteria: Callable[[Results], Sequence[Criterion]]
    tables: Callable[[Results], list[Table]]
    draw: Callable[[Figure, Results], None] | None = None
    by: str = "train_loss"
    maximise: bool = False
    over: int = LAST_ROUNDS
    alone: str = ""
