"""The best setting of a sweep, its spread over seeds, and how easy the method is to tune."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fedax.algorithm import FederatedAlgorithm
from fedax.data.task import Task
from fedax.outside.text import Told, in_columns
from fedax.rounds.directions import is_evaluated
from fedax.rounds.history import History, is_undefined, mean_and_spread
from fedax.rounds.measurements import evaluated_metrics, held_out
from fedax.rounds.stopping import Goal
from fedax.rounds.untrained import LAST_ROUNDS
from fedax.rounds.validation import validation_metric
from fedax.sweeps.edges import Edge, edge
from fedax.sweeps.grid import different, product
from fedax.sweeps.record import Record, Setting
from fedax.validate import check_count, quoted, unknown

Rule: TypeAlias = str | Callable[[History], float]

# Reddi et al. 2021, section 4: hyperparameters are chosen by the training loss, averaged over
# `LAST_ROUNDS` at the end.
PAPER_RULE = "train_loss"
# What lies within this part of the best value is as good as it, see `MethodChoice.sensitivity`.
CLOSE = 0.05


class RuleError(Told, ValueError):
    """Nothing can be chosen by this rule, as no run has its metric."""


class MethodChoice(NamedTuple):
    """Result of a sweep for one method.

    Attributes:
      best: number of its best setting; None if all diverged or none has been run.
      order: numbers of its settings, best first, then those that diverged, then those without a
        score. Equal scores keep the grid's order.
      edges: values of the best setting that are at an edge of the grid, and values to add there.
      sensitivity: share of its settings whose score is within 5% of the best, in (0, 1]; NaN
        without a best setting. A large share means that the method is easy to tune (Reddi et al.
        2021, section 5.2, shows this as heat maps). The 5% are of the best score: with a best loss
        of 2.0, losses up to 2.1 count; with a best accuracy of 0.60, accuracies from 0.57.
      diverged: numbers of the settings that diverged for at least one seed.
      grid: values of each of its hyperparameters, sorted.
    """

    best: int | None
    order: list[int]
    edges: list[Edge]
    sensitivity: float
    diverged: list[int]
    grid: dict[str, list[Any]]


class Choice(NamedTuple):
    """The ranked settings of a sweep; prints as a table of each method's best setting.

    Attributes:
      rule: name of the metric or function that ranks them.
      maximise: whether a higher score is better.
      scores: float64 [settings, seeds], seeds sorted; NaN if a run is missing or has too few
        rounds, plus or minus infinity (the worse one) if it diverged.
      mean: float64 [settings], mean over the seeds of a setting.
      spread: float64 [settings], sample standard deviation over the seeds; NaN for one seed.
      methods: name -> `MethodChoice`, in the order of the sweep.
      settings: settings of the sweep, in order of their numbers.
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
        """Headings and rows: each method's best setting, its score, and how many are close to it.

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
      record: rounds of the sweep.
      rule: "train_loss" is the rule of Reddi et al. 2021 (section 4): the mean training loss over
        the last 100 rounds, or over all if there are fewer. Any other metric's name means its last
        measured value, such as "validation_own_accuracy" for methods whose clients have models of
        their own. Whether higher or lower is better follows from the name, see
        `fedax.EarlyStopping`, or from "name:max" or "name:min". A metric of the test data, such as
        "test_accuracy", makes the chosen setting look too good: use validation data instead, see
        `fedax.Task`. A function takes the history of a run and returns its score; smaller is
        better.
      num_rounds: number of rounds after which runs are compared; later rounds are ignored. None:
        the length of the longest run. A run with fewer rounds has no score, unless it diverged; a
        run whose score is not finite counts as diverged.
      maximise: for a function, whether a higher score is better.

    Raises:
      TypeError: if the function does not return a number, or maximise is given for a metric.
      ValueError: if no run has the metric, or its direction is unknown.

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
    """Number of rounds of the longest run, including a round in which it diverged."""
    return int(max(record.done.max(initial=0), record.diverged.max(initial=0)))


def require_choosable(
    rule: Rule, task: Task, algorithm: FederatedAlgorithm, *, evaluates: bool,
    reported: Collection[str] = (PAPER_RULE,), gives_up: bool = False,
) -> None:
    """Raises a clear error before training if a rule cannot be used after it.

    Args:
      rule: as for `choose`.
      task, algorithm: of a run.
      evaluates: whether runs are evaluated at all.
      reported: names of what the clients report, see `Communication`.
      gives_up: whether settings are stopped early by this rule.

    Raises:
      ValueError: if the metric's direction is unknown, or it will not be measured.
    """
    if callable(rule):
        return
    name = Goal.of(rule, None, "choose").metric
    if not is_evaluated(name):
        if name in task.model.metrics and name not in reported:
            raise ValueError(
                f"Cannot choose by {name}: it is measured on held-out data only. Choose by "
                f"test_{name}, or by validation_{name} with validation data."
            )
        if name == PAPER_RULE and not algorithm.pooled and PAPER_RULE not in reported:
            evaluated = "" if evaluates else " with evaluate_every above 0"
            raise ValueError(
                f"Cannot choose by {name}: a method does not report it, as private ones do not. "
                "Choose by a metric of test data, such as test_loss, or of validation data "
                f"(validation=0.1 holds some out){evaluated}."
            )
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
    measured = evaluated_metrics(task, algorithm)
    if name in measured:
        return
    if algorithm.own_model is None and name.startswith(f"{asked}_own_"):
        raise ValueError(
            f"Cannot choose by {name}: the clients of one of the methods do not have models of "
            "their own. Sweep only methods such as ditto, or choose by another metric."
        )
    raise ValueError(unknown("metric to choose by", name, [PAPER_RULE, *measured]))


def default_rule(tasks: Iterable[Task], *, evaluates: bool) -> str:
    """The default rule: the validation loss if all tasks have it, else the paper's rule.

    Args:
      tasks: the tasks of the runs.
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
            f"maximise is for a function; for a metric use its name, such as '{rule}:max'."
        )
    goal = Goal.of(rule, None, "choose")
    return goal.metric, goal.mode == "max"


def _require_measured(record: Record, name: str, rounds: int) -> None:
    """Raises a clear error unless a run has the metric."""
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
    """The last value of a metric for each run, or the mean of the last ones.

    NaN if a run has none, or its last is undefined though its losses are finite, such as an AUC of
    one class; infinite if it is not finite.
    """
    values = record.metrics[name][there, :rounds]
    methods = {method: name in record.measured(method) for method in record.algorithms}
    has_any = [methods[record.settings[number].algorithm] for number in record.setting[there]]
    measured = ~np.isnan(values)
    if is_evaluated(name):
        # All are evaluated in the same rounds, so where one has a gap it was not finite. Only what
        # is given up early is evaluated at its end as well.
        done = np.where(there, record.done, 0)
        longest = record.metrics[name][done == done.max(), :rounds]
        measured[has_any] = ~np.isnan(longest).all(axis=0)
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
    """The choice of a search, which has no grid to extend."""
    return choice._replace(methods={
        name: chosen._replace(edges=[]) for name, chosen in choice.methods.items()
    })


def extended(settings: Sequence[Setting], choice: Choice) -> list[Setting]:
    """The settings to add because a best value is at an edge of its grid.

    They are the products of the added values of some hyperparameters with all values of the others.

    Args:
      settings: settings of the sweep, which keep their numbers.
      choice: the choice among them.

    Returns:
      New settings, with the next numbers; none if no best setting is at an edge.

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
