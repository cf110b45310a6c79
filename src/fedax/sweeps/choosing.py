"""Which setting of a sweep is best, how sure that is, and how hard it was to find."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fedax.data.task import Task
from fedax.outside.text import Told, in_columns
from fedax.rounds.directions import is_evaluated
from fedax.rounds.history import History, is_undefined, mean_and_spread
from fedax.rounds.measurements import held_out
from fedax.rounds.stopping import Goal
from fedax.rounds.untrained import LAST_ROUNDS
from fedax.rounds.validation import validation_metric
from fedax.sweeps.edges import Edge, edge
from fedax.sweeps.grid import different, product
from fedax.sweeps.record import Record, Setting
from fedax.validate import check_count, quoted, unknown

Rule: TypeAlias = str | Callable[[History], float]

# Paper 004, section 4: hyperparameters are chosen by the training loss, averaged over
# `LAST_ROUNDS` at the end.
PAPER_RULE = "train_loss"
# What lies within this part of the best value is as good as it, see `MethodChoice.sensitivity`.
CLOSE = 0.05


class RuleError(Told, ValueError):
    """Nothing can be chosen by this rule, as no run has what it asks for."""


class MethodChoice(NamedTuple):
    """What a sweep says of one method.

    Attributes:
      best: the number of its best setting; None if all diverged, or none has been run.
      order: the numbers of its settings, best first; those that diverged, then those without a
        score come last, and of equal ones the first of the grid comes first.
      edges: which of the best setting's values lie at the edge of the grid, and what to add there.
      sensitivity: the share of its settings whose score is within 5% of the best one's, in (0, 1];
        NaN without a best. Paper 004 (section 5.2) calls a method easy to tune that has many good
        settings, and shows them as heat maps; this is the number for it. 5% of what: of the best
        score itself, so a best loss of 2.0 has all losses up to 2.1 beside it, and a best accuracy
        of 0.60 all from 0.57.
      diverged: the numbers of the settings that diverged, for one seed at least.
      grid: the values of each of its hyperparameters, sorted.
    """

    best: int | None
    order: list[int]
    edges: list[Edge]
    sensitivity: float
    diverged: list[int]
    grid: dict[str, list[Any]]


class Choice(NamedTuple):
    """The settings of a sweep by how good they are; printed, a table of the best of each method.

    Attributes:
      rule: what they were chosen by, in words: the metric's or the function's name.
      maximise: whether a higher score is better.
      scores: float64 [settings, seeds], the seeds sorted; NaN where a run is missing or has not
        come as far, the worst infinity where it diverged.
      mean: float64 [settings], over the seeds that a setting has.
      spread: float64 [settings], the sample standard deviation over them; NaN with one.
      methods: by name, in the order of the sweep.
      settings: of the sweep, in order of their numbers.
    """

    rule: str
    maximise: bool
    scores: np.ndarray
    mean: np.ndarray
    spread: np.ndarray
    methods: dict[str, MethodChoice]
    settings: Sequence[Setting] = ()

    def __repr__(self) -> str:
        seeds = self.scores.shape[1]
        over = f"; mean ± sample standard deviation over {seeds} seeds" if seeds > 1 else ""
        better = "higher" if self.maximise else "lower"
        return (
            f"The best setting of each method by {self.rule}, {better} is better{over}\n"
            f"{in_columns(*self.table())}"
        )

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Headings and rows: each method's best setting, its score, how many are as good.

        A column that would be empty in every row is left out.
        """
        rows = []
        for method, chosen in self.methods.items():
            count, label, score, close = len(chosen.order), "none", "", ""
            if chosen.best is not None:
                label = self.settings[chosen.best].label or "the only one"
                score, spread = f"{self.mean[chosen.best]:.4g}", self.spread[chosen.best]
                score += "" if np.isnan(spread) else f" ± {spread:.2g}"
                close = f"{round(chosen.sensitivity * count)} of {count}" if count > 1 else ""
            rows.append([method, score, label, close, str(len(chosen.diverged) or "")])
        headings = ["method", self.rule, "best setting", f"within {CLOSE:.0%}", "diverged"]
        said = [0, 1, *(at for at in (2, 3, 4) if any(row[at] for row in rows))]
        if all(row[2] == "the only one" for row in rows):
            said.remove(2)
        return [headings[at] for at in said], [[row[at] for at in said] for row in rows]


def choose(
    record: Record,
    rule: Rule = PAPER_RULE,
    num_rounds: int | None = None,
    *,
    maximise: bool | None = None,
) -> Choice:
    """Finds the best setting of each method, by the mean over the seeds.

    Args:
      record: the rounds of the sweep.
      rule: "train_loss" is paper 004's rule (section 4): the mean training loss over the last
        100 rounds, or over all if there are fewer. Any other name of a metric stands for its last
        measured value, the higher or the lower the better as its name says, see
        `fedax.EarlyStopping`; "name:max" and "name:min" say it themselves. A metric of the test
        data, such as "test_accuracy", says too much good of the chosen setting: choose by
        validation data, see `fedax.Task`. A function gets the history of a run and
        returns its score, the smaller the better.
      num_rounds: compare after so many rounds, as if there were no more; None: after as many as
        the longest run has. A run with fewer has no score, unless it diverged; one whose score is
        not finite counts as diverged.
      maximise: for a function: whether a higher score is better.

    Raises:
      TypeError: the function returned no number, or maximise was given for a metric.
      ValueError: no run has the metric, or its name says no direction.

    Example:
      >>> settings = [Setting(n, "fedavg", {"client_learning_rate": 10.0**n}) for n in range(3)]
      >>> losses = np.array([[2.0, 1.8], [1.5, 1.0], [9.0, np.nan]])
      >>> record = Record(settings, np.arange(3), np.zeros(3, int), np.array([0, 0, 2]),
      ...                 np.array([2, 2, 1]), {"train_loss": losses})
      >>> choice = choose(record)
      >>> choice.mean.tolist(), choice.methods["fedavg"].best
      ([1.9, 1.25, inf], 1)
      >>> print(choice)
      The best setting of each method by train_loss, lower is better
      method  train_loss  best setting             within 5%  diverged
      fedavg  1.25        client_learning_rate=10  1 of 3     1
    """
    if num_rounds is not None:
        check_count("num_rounds", num_rounds)
    name, maximise = _named(rule, maximise)
    rounds = rounds_of(record) if num_rounds is None else num_rounds
    diverged = (record.diverged > 0) & (record.diverged <= rounds)
    there = ~diverged & (record.done >= max(rounds, 1))
    worst = -np.inf if maximise else np.inf
    of_runs = np.where(diverged, worst, np.nan)
    if there.any() and callable(rule):
        of_runs[there] = [
            _called(rule, History(record.history(int(row)).rounds[:rounds]), name)
            for row in np.flatnonzero(there)
        ]
    elif there.any():
        _require_measured(record, name, rounds)
        of_runs[there] = _last_values(record, name, rounds, there)
    of_runs[there & np.isinf(of_runs)] = worst
    seeds = np.unique(record.seed)
    scores = np.full((len(record.settings), len(seeds)), np.nan)
    scores[record.setting, np.searchsorted(seeds, record.seed)] = of_runs
    mean, spread = _mean_and_spread(scores)
    methods = {
        method: _of_method(
            [setting for setting in record.settings if setting.algorithm == method], mean, maximise
        )
        for method in record.algorithms
    }
    return Choice(name, maximise, scores, mean, spread, methods, record.settings)


def rounds_of(record: Record) -> int:
    """How many rounds the longest run has, one in which it diverged included."""
    return int(max(record.done.max(initial=0), record.diverged.max(initial=0)))


def require_choosable(
    rule: Rule, task: Task, evaluates: bool, *, gives_up: bool = False
) -> None:
    """Raises a sentence, before anything is trained, if a rule cannot be followed after it.

    Args:
      rule: as for `choose`.
      task: on which the runs are.
      evaluates: whether they are evaluated at all.
      gives_up: whether settings are given up by it on the way.

    Raises:
      ValueError: the name of the metric says no direction, or it will not be measured.
    """
    if callable(rule):
        return
    name = Goal.of(rule, None, "choose").metric
    if not is_evaluated(name):
        return
    parts = held_out(task)
    asked = name.partition("_")[0]
    if asked not in parts or not evaluates:
        why = "evaluate_every is 0" if asked in parts else f"{task.name} has no {asked} data"
        raise ValueError(f"Cannot choose by {name}: {why}. Choose by train_loss.")
    if gives_up and "validation" in parts and asked == "test":
        raise ValueError(
            f"Cannot stop settings early by {name}: {task.name} has validation data, so test data "
            f"are only evaluated at the end. Choose by validation_{name.partition('_')[2]}."
        )
    measured = [f"{part}_{kind}{metric}" for part in parts for kind in ("", "worst_tenth_")
                for metric in [*task.model.metrics, *(task.model.scores or {})]]
    if name not in measured:
        raise ValueError(unknown("metric to choose by", name, [PAPER_RULE, *measured]))


def default_rule(tasks: Iterable[Task], *, evaluates: bool) -> str:
    """The rule if nobody names one: the validation loss if all tasks have it, else the paper's.

    Args:
      tasks: on which the runs are.
      evaluates: whether they are evaluated at all.
    """
    rules = {validation_metric(task) if evaluates else None for task in tasks}
    return (rules.pop() if len(rules) == 1 else None) or PAPER_RULE


def _named(rule: Rule, maximise: bool | None) -> tuple[str, bool]:
    """The rule's name, and whether a higher score is better."""
    if callable(rule):
        return getattr(rule, "__name__", type(rule).__name__), bool(maximise)
    if maximise is not None:
        raise TypeError(
            f"maximise is for a function; of a metric its name says it, or '{rule}:max'."
        )
    goal = Goal.of(rule, None, "choose")
    return goal.metric, goal.mode == "max"


def _require_measured(record: Record, name: str, rounds: int) -> None:
    """Raises a sentence unless a run has the metric."""
    measured = {
        known for known, values in record.metrics.items() if not np.isnan(values[:, :rounds]).all()
    }
    if name in record.metrics and name not in measured:
        if "evaluated_of" in measured and is_evaluated(name):
            raise RuleError(
                f"Cannot choose by {name}: it is undefined in every run, like an AUC with only one "
                "class."
            )
        raise RuleError(
            f"Cannot choose by {name}: it was not measured in the first {rounds} rounds."
        )
    if name not in measured:
        raise RuleError(unknown("metric to choose by", name, sorted(measured)))


def _last_values(record: Record, name: str, rounds: int, there: np.ndarray) -> list[float]:
    """The last value of a metric for each run that is there, or the mean of the last ones.

    NaN if a run has none, or its last is undefined though its losses are finite, such as an AUC of
    one class; infinite if it is not finite.
    """
    values = record.metrics[name][there, :rounds]
    measured = ~np.isnan(values)
    if is_evaluated(name):
        # All are evaluated in the same rounds, so where one has a gap it was not finite. Only what
        # is given up early is evaluated at its end as well.
        done = np.where(there, record.done, 0)
        longest = record.metrics[name][done == done.max(), :rounds]
        measured[:] = ~np.isnan(longest).all(axis=0)
    found: list[float] = []
    for row, of_run, has in zip(np.flatnonzero(there).tolist(), values, measured, strict=True):
        last = of_run[has][-LAST_ROUNDS if name == PAPER_RULE else -1:]
        if len(last) and np.isfinite(last).all():
            found.append(float(last.mean()))
        else:
            lost = len(last) and not _is_undefined(record, name, row, int(np.flatnonzero(has)[-1]))
            found.append(np.inf if lost else np.nan)
    return found


def _is_undefined(record: Record, name: str, row: int, number: int) -> bool:
    """Whether a run's metric is not defined in a round (from 0), as `is_undefined` has it."""
    metrics = {
        known: values[row, number] for known, values in record.metrics.items()
        if known == name or (number < values.shape[1] and not np.isnan(values[:, number]).all())
    }
    return is_undefined(metrics, name)


def _called(rule: Callable[[History], Any], history: History, name: str) -> float:
    score = rule(history)
    try:
        if isinstance(score, str | bytes | bool):
            raise TypeError
        number = float(score)
    except (TypeError, ValueError):
        raise TypeError(
            f"{name} must return a number for a run's history, but returned {quoted(score)}."
        ) from None
    return number if np.isfinite(number) else np.inf


def _mean_and_spread(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Over the seeds of each setting that has any, and over those of each that has two."""
    mean, spread = np.full((2, len(scores)), np.nan)
    for setting, of_seeds in enumerate(scores):
        known = of_seeds[~np.isnan(of_seeds)]
        if len(known):
            mean[setting], around = mean_and_spread(known)
            spread[setting] = around if np.isfinite(known).all() else np.nan
    return mean, spread


def _of_method(settings: Sequence[Setting], mean: np.ndarray, maximise: bool) -> MethodChoice:
    numbers = np.array([setting.number for setting in settings])
    cost = -mean[numbers] if maximise else mean[numbers]
    order = numbers[np.argsort(cost, kind="stable")]  # NaN last
    names = dict.fromkeys(name for setting in settings for name in setting.values)
    grid = {
        name: different([s.values[name] for s in settings if name in s.values]) for name in names
    }
    diverged = numbers[np.isposinf(cost)].tolist()
    least = np.nanmin(cost, initial=np.inf)
    if not np.isfinite(least):
        return MethodChoice(None, order.tolist(), [], np.nan, diverged, grid)
    best = settings[int(np.flatnonzero(numbers == order[0])[0])]
    close = cost <= least + CLOSE * abs(least)
    found = (edge(name, value, grid[name]) for name, value in best.values.items())
    return MethodChoice(
        best.number, order.tolist(), [one for one in found if one is not None],
        float(close.mean()), diverged, grid,
    )


def without_edges(choice: Choice) -> Choice:
    """The choice of a search, which has no grid that could be wider."""
    return choice._replace(methods={
        name: chosen._replace(edges=[]) for name, chosen in choice.methods.items()
    })


def extended(settings: Sequence[Setting], choice: Choice) -> list[Setting]:
    """The settings that the edges of the grids ask for: those that have an added value.

    Each is the product of what is added to some hyperparameters with all values of the others.

    Args:
      settings: those of the sweep, which keep their numbers.
      choice: what was chosen of them.

    Returns:
      New settings, numbered on; none if no best setting lies at an edge.

    Example:
      >>> settings = [Setting(n, "fedavg", {"client_learning_rate": 10.0**n}) for n in range(3)]
      >>> record = Record(settings, np.arange(3), np.zeros(3, int), np.zeros(3, int),
      ...                 np.ones(3, int), {"train_loss": np.array([[3.0], [2.0], [1.0]])})
      >>> [setting.label for setting in extended(settings, choose(record))]
      ['client_learning_rate=1000', 'client_learning_rate=1e+04']
    """
    found: list[Setting] = []
    for method, chosen in choice.methods.items():
        added = {one.name: one.add for one in chosen.edges}
        wider = {
            name: different([*values, *added.get(name, [])])
            for name, values in chosen.grid.items()
        }
        for values in product(wider):
            if any(values[name] in new for name, new in added.items()):
                found.append(Setting(len(settings) + len(found), method, values))
    return found
