"""The default metric for choosing models, and the metrics at the end of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from fedax.algorithm import FederatedAlgorithm, Params
from fedax.data.federated_dataset import FederatedDataset
from fedax.data.task import Task
from fedax.devices.mesh import one_copy
from fedax.rounds.directions import TEST, VALIDATION, direction, is_evaluated
from fedax.rounds.evaluation import Evaluator
from fedax.rounds.measurements import add_evaluation, held_out, measurements_of_own
from fedax.rounds.state import TrainingState
from fedax.rounds.stopping import BY_VALIDATION, EarlyStopping, Watch

FIRST = "loss"


def validation_metric(task: Task) -> str | None:
    """The default metric for choosing a task's models; None without validation data.

    It is `validation_loss`, or, for a model without a loss among its metrics, the first metric
    whose name says whether it should be high or low.

    Example:
      >>> import fedax
      >>> task = fedax.load_task("digits")
      >>> validation_metric(task), validation_metric(task.with_validation(0.1))
      (None, 'validation_loss')
    """
    if task.validation is None:
        return None
    names = sorted(task.model.metrics, key=lambda name: name != FIRST)
    return next((f"{VALIDATION}{name}" for name in names if direction(name)), None)


def watched(
    task: Task, early_stopping: EarlyStopping | None, keep_best: str | None,
    evaluate_every: int | None, *, adds: bool = False,
) -> tuple[EarlyStopping | None, str | None]:
    """When to stop and which model to keep, by default by the validation metric.

    With validation data and several evaluations, the best model on the validation data is kept.

    Args:
      task: the run's task.
      early_stopping, keep_best: as for `fedax.train`.
      evaluate_every: as for `simulate`.
      adds: whether `on_round` may add metrics of any name.

    Raises:
      ValueError: if this task does not measure the metric in its evaluation rounds.
    """
    default = validation_metric(task)
    if isinstance(early_stopping, EarlyStopping):
        metric = _named(early_stopping.metric, default, task, "early_stopping", adds=adds)
        early_stopping = dataclasses.replace(early_stopping, metric=metric)
    if keep_best is None and evaluate_every:
        return early_stopping, default
    if isinstance(keep_best, str):
        keep_best = _named(keep_best, default, task, "keep_best", adds=adds)
    return early_stopping, keep_best


def _named(metric: str, default: str | None, task: Task, what: str, *, adds: bool) -> str:
    if metric == BY_VALIDATION and default is not None:
        return default
    name = metric.partition(":")[0]
    if task.validation is None and (
        metric == BY_VALIDATION or (name.startswith(VALIDATION) and not adds)
    ):
        raise ValueError(
            f"{what} uses {'the validation loss' if metric == BY_VALIDATION else name}, but the "
            f"task {task.name} has no validation data. Hold some out, with --set validation=0.1 or "
            "task.with_validation(0.1), or name another metric, such as test_loss."
        )
    if metric == BY_VALIDATION:
        raise ValueError(
            f"{what} needs a metric: no name of the model's metrics says whether it should be "
            f"high or low. Name one, such as '{VALIDATION}{next(iter(task.model.metrics), 'x')}"
            ":max'."
        )
    if task.validation is not None and is_evaluated(name) and not name.startswith(VALIDATION):
        raise ValueError(
            f"{what} uses {name}, but the task {task.name} has validation data, so its test "
            f"data are evaluated at the end only. Use {VALIDATION}{name.partition('_')[2]}."
        )
    return metric


def at_end(
    task: Task, algorithm: FederatedAlgorithm, watch: Watch,
    rounds: Sequence[Mapping[str, float]], state: TrainingState, seed: int,
    evaluate_every: int | None, evaluation_sample: int | None,
) -> None:
    """Gives the watch the metrics at the end of a run.

    They come from the last evaluation. If training stopped before its last round, and that
    evaluation was on a sample or on validation data only, all data are evaluated now.

    Args:
      task, algorithm: what was learned, and how.
      watch: of the run, which is over.
      rounds: their metrics.
      state: after the last of them.
      seed, evaluate_every, evaluation_sample: as for `simulate`.
    """
    if not rounds:
        return
    last, parts = rounds[-1], held_out(task)
    watch.final = dict(next((m for m in reversed(rounds) if any(map(is_evaluated, m))), {}))
    waited = "validation" in parts and not any(name.startswith(TEST) for name in last)
    if evaluate_every != 0 and watch.why is not None and parts and (
        waited or (evaluate_every and evaluation_sample)
    ):
        server_state, read = one_copy(state.server_state), state.client_store.read
        watch.final = _evaluated(task, server_state.params, parts)
        for measure in measurements_of_own(task, algorithm, seed).values():
            watch.final |= measure(algorithm, server_state, read)[1]
    watch.final = {
        name: value for name, value in watch.final.items()
        if is_evaluated(name) or name.startswith("evaluated_")
    }
    if watch.best is None or len(parts) < 2 or evaluate_every == 0:
        return
    final = watch.final
    if watch.best.round != last["round"]:
        final = _evaluated(task, watch.best.params, {"test": parts["test"]})
    watch.best_test = {name: value for name, value in final.items() if name.startswith(TEST)}


def _evaluated(
    task: Task, params: Params, parts: Mapping[str, FederatedDataset]
) -> dict[str, float]:
    """The metrics of parameters on all examples of some parts."""
    metrics: dict[str, float] = {}
    for part, data in parts.items():
        evaluator = Evaluator(task.model, data)
        add_evaluation(metrics, evaluator, evaluator.per_client(params), part)
    return metrics
