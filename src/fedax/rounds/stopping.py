"""Early stopping, and keeping the best model."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, get_args

import jax
import numpy as np

from fedax.algorithm import Params
from fedax.devices.mesh import one_copy
from fedax.devices.processes import agreed
from fedax.outside.text import Told
from fedax.rounds.budget import Budget
from fedax.rounds.directions import TEST, Mode, direction, is_evaluated
from fedax.rounds.report import RoundReport
from fedax.validate import check_choice, check_count, check_number, quoted, unknown

# How the reason begins if it was the caller's.
ON_ROUND = "on_round returned True after round"

# In place of a metric: the validation loss of the task, see `rounds.validation`.
BY_VALIDATION = "validation"

# Of a metric and its direction; a longer text is a mistake.
LONGEST_NAME = 200
# Halves of letters, which no file takes.
_HALVES = re.compile("[\ud800-\udfff]")


class MetricError(Told, ValueError):
    """A metric that early stopping or `keep_best` needs is not measured."""


@dataclasses.dataclass(frozen=True)
class EarlyStopping:
    """Stops training when a metric has not improved for a while.

    Attributes:
      metric: its name in the history; by default the validation loss of the task.
        `validation_*` and `test_*` are measured in evaluation rounds, so give `evaluate_every`;
        `train_loss` and others in every round.
      patience: >= 1, number of measurements without an improvement after which training stops. It
        counts evaluations for `validation_*` and `test_*`, and rounds for other metrics.
      min_delta: >= 0; only a larger change is an improvement. NaN and infinity are not
        improvements.
      mode: "max" or "min". None: the words of the name decide: accuracy, auc, auprc, auroc, bleu,
        correct, cosine, f1, kappa, mcc, precision, r2, recall, reward, score, sensitivity and
        specificity should be high; bpc, brier, bytes, dissimilarity, distance, drift, ece, error,
        loss, mae, mse, nll, norm, perplexity, regret, rmse and seconds low. The metric "name:max"
        has the same effect as mode "max".

    Raises:
      ValueError: if an argument is out of range, or mode is None and the name does not give a
        direction.

    Example:
      >>> EarlyStopping("test_accuracy", patience=3).mode
      'max'
    """

    metric: str = BY_VALIDATION
    patience: int = 5
    min_delta: float = 0.0
    mode: Mode | None = None

    def __post_init__(self) -> None:
        if self.metric != BY_VALIDATION:
            goal = Goal.of(self.metric, self.mode, "early_stopping")
            object.__setattr__(self, "metric", goal.metric)
            object.__setattr__(self, "mode", goal.mode)
        check_count("patience", self.patience)
        check_number("min_delta", self.min_delta, at_least=0)
        object.__setattr__(self, "patience", int(self.patience))
        object.__setattr__(self, "min_delta", float(self.min_delta))


class Goal(NamedTuple):
    """A metric and its direction."""

    metric: str
    mode: Mode

    @classmethod
    def of(cls, text: Any, mode: Any, what: str) -> Goal:
        """From "name" or "name:mode".

        Raises:
          ValueError: if the direction is unknown.

        Example:
          >>> Goal.of("test_loss", None, "keep_best"), Goal.of("lift:max", None, "keep_best").mode
          (Goal(metric='test_loss', mode='min'), 'max')
        """
        if not isinstance(text, str) or not 0 < len(text) <= LONGEST_NAME:
            raise ValueError(
                f"{what} must be a metric's name, such as 'test_loss', not {quoted(text)}."
            )
        name, _, said = text.partition(":")
        mode = mode or said or None
        if mode is not None:
            check_choice(f"direction for {name}", mode, get_args(Mode))
            return cls(name, mode)
        mode = direction(name)
        if mode is None:
            raise ValueError(
                f"{what}: the name {name!r} does not say whether it should be high or low; write "
                f"'{name}:max' or '{name}:min'."
            )
        return cls(name, mode)

    def improves(self, value: float | None, best: float | None, min_delta: float = 0.0) -> bool:
        """Whether the value is better than the best so far by more than min_delta."""
        if value is None or not math.isfinite(value):
            return False
        gain = 0.0 if best is None else value - best if self.mode == "max" else best - value
        return best is None or gain > min_delta


class Best(NamedTuple):
    """The model of the round in which a metric was best.

    Attributes:
      goal: the metric.
      round: its round, 1 after the first.
      value: value of the metric.
      params: copies on the host.
    """

    goal: Goal
    round: int
    value: float
    params: Params


class Watch:
    """Checks every round's report: whether to stop, and whether the model is the best so far.

    Args:
      early_stopping: when to stop; None: never.
      keep_best: a metric as in `EarlyStopping`; None: no model is kept.
      on_round: called with every report; returns True to stop.
      evaluate_every: as for `simulate`.
      validates: whether the task has validation data, which `validation_*` are measured on.
      budget: the last round within a privacy budget; None: there is none.

    Attributes:
      why: the reason to stop; None while training continues.
      best: the best model, or None.
      final: metrics of validation and test data at the end, see `rounds.validation.at_end`.
      best_test: the test metrics of the best model, if the task has validation data; else None.

    Raises:
      TypeError, ValueError: if an argument is invalid, or a metric of the test data is never
        measured, or only once for early stopping.
    """

    def __init__(
        self,
        early_stopping: EarlyStopping | None = None,
        keep_best: str | None = None,
        on_round: Callable[[RoundReport], Any] | None = None,
        *,
        evaluate_every: int | None = None,
        validates: bool = False,
        budget: Budget | None = None,
    ) -> None:
        if not (early_stopping is None or isinstance(early_stopping, EarlyStopping)):
            raise TypeError(
                "early_stopping must be None or for example fedax.EarlyStopping('test_loss', "
                f"patience=5), but is {early_stopping!r}."
            )
        if not (on_round is None or callable(on_round)):
            raise TypeError(
                f"on_round must be a function of a fedax.RoundReport, but is {on_round!r}."
            )
        self._stopping = early_stopping
        self._goal = None if keep_best is None else Goal.of(keep_best, None, "keep_best")
        self._on_round, self._budget = on_round, budget
        self._evaluates_often, self._validates = bool(evaluate_every), validates
        self._record: float | None = None  # the best value for early stopping
        self._since_record = 0  # measurements
        self._seen: set[str] = set()
        self.why: str | None = None
        self.best: Best | None = None
        self.final: dict[str, float] = {}
        self.best_test: dict[str, float] | None = None
        self._check_evaluation(evaluate_every)

    @property
    def needs_every_state(self) -> bool:
        """Whether the state after every round may be needed, not only after evaluations."""
        return any(not self._is_evaluated(name) for name in self._metrics())

    def replay(self, rounds: Iterable[Mapping[str, Any]], best: Best | None) -> None:
        """Records rounds that were run before, and the best model of these."""
        for metrics in rounds:
            if self.why is None:
                self.why = self._learn(metrics) or self._spent(metrics)
        if best is not None and best.goal == self._goal:
            self.best = best

    def see(self, report: RoundReport) -> None:
        """Records a round and the metrics that on_round adds to it.

        Raises:
          TypeError: if on_round returned neither True, nor False, nor None, or added a metric that
            is not a number.
          ValueError: if a metric is not measured, or on_round removed one.
        """
        stops = self._told(report)
        self._require(report.metrics)
        if self._stopping is not None:
            self.why = self._decided(self.why or self._learn(report.metrics))
        self.why = self.why or self._spent(report.metrics)
        if self._goal is not None:
            self._keep(self._goal, report)
        if self._on_round is not None:
            number = int(report.metrics["round"])
            self.why = self._decided(self.why or (f"{ON_ROUND} {number}." if stops else None))

    def _told(self, report: RoundReport) -> bool:
        """Calls on_round, which may add metrics; whether it asks to stop."""
        if self._on_round is None:
            return False
        before = dict(report.metrics)
        answer = self._on_round(report)
        number = int(before["round"])
        if not (answer is None or isinstance(answer, bool | np.bool_)):
            raise TypeError(
                "on_round must return True to stop, and False or None to continue, but returned "
                f"{answer!r} after round {number}."
            )
        metrics = report.metrics
        if metrics.get("round") != number or not before.keys() <= metrics.keys():
            raise MetricError(
                f"on_round may add metrics and change them, but after round {number} it removed "
                "one or changed the round's number."
            )
        for name, value in metrics.items():
            if name not in before or value is not before[name]:
                metrics[name] = _as_metric(name, value, number)
        return bool(answer)

    def _spent(self, metrics: Mapping[str, Any]) -> str | None:
        """Why to stop, if the privacy budget has no further round."""
        budget = self._budget
        return budget.why if budget and metrics["round"] >= budget.last_round else None

    def _decided(self, why: str | None) -> str | None:
        """The reason to stop, if the first of several processes has one."""
        return (why or "Another process stopped.") if agreed(why is not None) else None

    def _learn(self, metrics: Mapping[str, Any]) -> str | None:
        """Counts measurements without an improvement; why to stop, if they are enough."""
        stopping = self._stopping
        if stopping is None or stopping.metric not in metrics:
            return None
        name, value = stopping.metric, metrics[stopping.metric]
        if Goal.of(name, stopping.mode, "").improves(value, self._record, stopping.min_delta):
            self._record, self._since_record = value, 0
            return None
        self._since_record += 1
        if self._since_record < stopping.patience:
            return None
        by = f" by more than {stopping.min_delta:g}" if stopping.min_delta else ""
        record = "never finite" if self._record is None else f"{self._record:.6g} at best"
        unit = "evaluations" if self._is_evaluated(name) else "rounds"
        return (
            f"{name}, {record}, did not improve{by} in {stopping.patience} {unit} up to round "
            f"{metrics['round']}."
        )

    def _keep(self, goal: Goal, report: RoundReport) -> None:
        """Copies the model if it is the best so far."""
        value = report.metrics.get(goal.metric)
        if value is None or not goal.improves(value, self.best and self.best.value):
            return
        assert report.state is not None  # see `needs_every_state`
        params = one_copy(report.state.server_state.params)
        copies = jax.tree.map(lambda leaf: np.array(leaf, copy=True), params)
        self.best = Best(goal, int(report.metrics["round"]), float(value), copies)

    def _metrics(self) -> list[str]:
        """The names of the metrics that are watched."""
        return [part.metric for part in (self._stopping, self._goal) if part is not None]

    def _is_evaluated(self, name: str) -> bool:
        """Whether evaluation measures it, not every round, nor a caller's on_round."""
        return is_evaluated(name) and (self._validates or name.startswith(TEST))

    def _check_evaluation(self, evaluate_every: int | None) -> None:
        for name in filter(self._is_evaluated, self._metrics()):
            if evaluate_every == 0:
                raise MetricError(
                    f"{name} is needed, but evaluate_every=0 turns evaluation off; set it to the "
                    "number of rounds between evaluations."
                )
        stopping = self._stopping
        if stopping is not None and self._is_evaluated(stopping.metric) and evaluate_every is None:
            raise MetricError(
                f"Early stopping watches {stopping.metric}, but only the last round is evaluated; "
                "set evaluate_every, the number of rounds between evaluations."
            )

    def _require(self, metrics: Mapping[str, Any]) -> None:
        """Raises a clear error if a metric is not measured where it should be."""
        evaluated = "evaluation_seconds" in metrics
        for name in self._metrics():
            if name in metrics:
                self._seen.add(name)
            waits = not evaluated and (self._evaluates_often or self._is_evaluated(name))
            if name not in self._seen and not waits:
                there = [key for key in metrics if key != "round" and "seconds" not in key]
                raise MetricError(unknown("metric to watch", name, there))


def _as_metric(name: Any, value: Any, number: int) -> int | float:
    """A value that on_round put into the metrics, as a Python number."""
    if isinstance(name, str) and (name == "rejected" or _HALVES.search(name)):
        why = "names the list of rejected clients" if name == "rejected" else "is no text"
        raise MetricError(
            f"on_round added the metric {quoted(name)} after round {number}, which {why}. Choose "
            "another name."
        )
    if isinstance(name, str) and not isinstance(value, str | bytes | bool):
        array = np.asarray(value)
        if array.ndim == 0 and array.dtype.kind in "iuf":
            return array.item()
        if array.ndim == 0 and array.dtype.name == "bfloat16":
            return float(array)
    raise TypeError(
        f"on_round added the metric {quoted(name)} after round {number} with the value "
        f"{quoted(value)}; a metric has a name and is a number, such as float(auc)."
    )
