"""Measurements between rounds: validation or test metrics, and diagnostics."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fedax.algorithm import Array, FederatedAlgorithm, Params
from fedax.clients.local_training import LocalTraining
from fedax.data.cohort_data import CohortData, CohortReader
from fedax.data.federated_dataset import FederatedDataset
from fedax.data.task import Task
from fedax.devices.compiling import jit
from fedax.factories import PROGRAMS, Structure, partition
from fedax.measures.communication import Communication, communication
from fedax.measures.dissimilarity import dissimilarity
from fedax.mistakes.errors import ModelError
from fedax.optimizers.schedules import Schedule, as_schedule
from fedax.rounds.batch_sizes import usual_batch_size
from fedax.rounds.checks import check_examples, require_task
from fedax.rounds.client_metrics import CLIENTS_FOR_A_TENTH, ClientMetrics
from fedax.rounds.evaluation import Evaluator
from fedax.rounds.options import Settings
from fedax.rounds.own_models import OwnModels
from fedax.rounds.personalization import (
    FineTuning,
    Personalizer,
    checked_tuning,
    matched_clients,
)
from fedax.rounds.settings_of import setting_of
from fedax.rounds.state import TrainingState
from fedax.rounds.timing import Stopwatch

# Number of clients, and of examples of each, for the diagnostics' estimate of dissimilarity.
MEASURED_CLIENTS = 5
MEASURED_EXAMPLES = 32


def rehearse(
    task: Task, algorithm: FederatedAlgorithm, params: Params | None = None
) -> Communication:
    """Finds mistakes before a run: traces a round and an evaluation, and checks the labels.

    Args:
      task, algorithm: as for `simulate`.
      params: like the parameters to be trained; None: those from the model's init.

    Returns:
      What the algorithm sends.

    Raises:
      TypeError: if the task or the algorithm has the wrong type.
      ModelError, AlgorithmError, ValueError: as `simulate` raises them before its first round.
    """
    require_task(task)
    sent = communication(algorithm, task.model, task.train.client_at(0), params)
    if params is None:
        params = jax.eval_shape(task.model.init, jax.random.key(0))
    check_examples(task.model, params, "task.train", task.train)
    for part, data in held_out(task).items():
        check_examples(task.model, params, f"task.{part}", data)
        _check_evaluation(Evaluator(task.model, data), params, part)
    return sent


def held_out(task: Task) -> dict[str, FederatedDataset]:
    """The data that a task is evaluated on, by name; the first is evaluated between rounds.

    Where there are validation data, the test data wait for the end.
    """
    parts = {"validation": task.validation, "test": task.test}
    return {part: data for part, data in parts.items() if data is not None}


def without_held_out(task: Task) -> Task:
    """The task of a run that evaluates nothing."""
    return task._replace(test=None, validation=None)


def _check_evaluation(evaluator: Evaluator, params: Params, part: str) -> None:
    """Reports before the first round what evaluation would report after the last."""
    with _evaluating(part):
        evaluator.check(params)


@contextlib.contextmanager
def _evaluating(part: str) -> Iterator[None]:
    """Adds to an error that it occurred in an evaluation."""
    try:
        yield
    except ModelError as error:
        raise ModelError(f"Evaluation on task.{part}: {error}") from error.__cause__


class Measurements:
    """Measurements between rounds: validation or test metrics, and diagnostics.

    Attributes:
      sample: evaluates a sample of the examples between full evaluations, or None.
      part: which data are evaluated between rounds, "validation" or "test".
    """

    def __init__(
        self,
        task: Task,
        algorithm: FederatedAlgorithm,
        settings: Settings,
        reader: CohortReader,
        data: FederatedDataset,
        params: Params,
    ) -> None:
        self._evaluator: Evaluator | None = None
        self.sample: Evaluator | None = None
        self._at_end: Evaluator | None = None  # on the test data, if others are evaluated between
        parts = held_out(task) if settings.evaluate_every != 0 else {}
        self.part = next(iter(parts), "test")
        if parts:
            data_of_part = parts[self.part]
            make = functools.partial(Evaluator, task.model, data_of_part, mesh=settings.mesh)
            if settings.evaluation_sample is None or not settings.evaluate_every:
                self._evaluator = make()
            else:  # both with one size of batches, which compiles once
                with _evaluating(self.part):
                    size = usual_batch_size(task.model, params, data_of_part.arrays, soon=True)
                self._evaluator = make(size)
                self.sample = make(
                    size, sample=settings.evaluation_sample, seed=settings.seed,
                    redraws=settings.evaluation_redraw,
                )
        if len(parts) > 1:
            self._at_end = Evaluator(task.model, parts["test"], mesh=settings.mesh)
        self._training = training_evaluator(task, settings)
        self._personal: dict[str, _Personal] = {}
        if settings.personalizes and settings.evaluate_every != 0:
            own = None if algorithm.pooled or jax.process_count() > 1 else reader
            self._personal = {
                part: _Personal(of_part, algorithm, settings, own, part)
                for part, of_part in _personal_tasks(task).items()
            }
        self._algorithm = algorithm
        self._own = {} if settings.evaluate_every == 0 else measurements_of_own(
            task, algorithm, settings.seed, settings.clients_per_chunk, settings.mesh, reader
        )
        self._sent = None
        if settings.diagnostics:
            self._sent = communication(algorithm, task.model, task.train.client_at(0))
        # A mesh's reader brings cohorts to all devices; these few clients go to one.
        self._reader = reader if settings.mesh is None else CohortReader(data, 0)
        self._client_sizes = data.client_sizes
        numbers, structure = partition(task.model)
        self._dissimilarity = functools.partial(_program(structure), numbers)

    def check(self, params: Params) -> None:
        """Reports before the first round what evaluation would report after the last."""
        if self._evaluator is not None:
            _check_evaluation(self._evaluator, params, self.part)
        if self._at_end is not None:
            _check_evaluation(self._at_end, params, "test")

    def due(self, *, sampled: bool, waits: bool) -> Evaluator | None:
        """The evaluator of a round now; None if none is due or training continues meanwhile."""
        if not sampled or self.sample is None:
            return self._evaluator
        return self.sample if waits else None

    def evaluate(
        self, metrics: dict[str, float], state: TrainingState, client_ids: np.ndarray,
        done: np.ndarray, key: jax.Array, evaluator: Evaluator | None, *, last: bool,
    ) -> dict[str, Any]:
        """Adds the metrics of validation or test data, what the diagnostics measure, and the time.

        Args:
          metrics: of the round.
          state: after it, one copy.
          client_ids, done, key: of its cohort.
          evaluator: see `due`.
          last: whether it is the last round, in which the test data are evaluated, too.

        Returns:
          `clients`, `personal` and `own` of the round's report.
        """
        watch = Stopwatch()
        clients = personal = own = None
        params = state.server_state.params
        if evaluator is not None:
            evaluator.redraw(int(metrics["round"]))
            found = evaluator.per_client(params)
            clients = add_evaluation(metrics, evaluator, found, self.part)
        if last and self._at_end is not None:
            found = self._at_end.per_client(params)
            clients = add_evaluation(metrics, self._at_end, found, "test")
        if self._training is not None:
            metrics |= training_loss(self._training, params)
        for part, personalize in self._personal.items():
            if part == self.part or last:
                personal, of_all = personalize(params, int(metrics["round"]))
                metrics |= of_all
        for part, measure in self._own.items():
            if part == self.part or last:
                own, of_all = measure(
                    self._algorithm, state.server_state, state.client_store.read
                )
                metrics |= of_all
        metrics.update(self._similarity(params, client_ids, done, key))
        lap = watch.lap()
        metrics["evaluation_seconds"] = lap.seconds - lap.compiling
        metrics["compile_seconds"] += lap.compiling
        return {"clients": clients, "personal": personal, "own": own}

    def sent(self, dropped_at: np.ndarray, metrics: Mapping[str, float]) -> dict[str, float]:
        """Bytes of a round's cohort."""
        return {} if self._sent is None else self._sent.with_cohort(dropped_at, metrics)

    def _similarity(
        self, params: Params, client_ids: np.ndarray, done: np.ndarray, key: jax.Array
    ) -> dict[str, float]:
        """G^2 and delta on a few clients that finished the round, from the small to the large."""
        if self._sent is None:
            return {}
        finished = client_ids[done]
        # In an order that does not depend on how clients were dealt to devices.
        finished = finished[np.lexsort((finished, self._client_sizes[finished]))]
        most = min(MEASURED_CLIENTS, len(done))
        count = min(most, len(finished))
        few = np.full(most, client_ids[0])  # always as many, so that nothing compiles again
        few[:count] = finished[np.linspace(0, len(finished) - 1, count).round().astype(int)]
        cohort = self._reader(few)
        present = jnp.asarray(np.arange(most) < count)
        cohort = dataclasses.replace(
            cohort, num_examples=jnp.where(present, cohort.num_examples, 0)
        )
        found = self._dissimilarity(params, cohort, key)
        return {
            name: float(getattr(found, name))
            for name in ("gradient_dissimilarity", "hessian_dissimilarity")
        }


def measurements_of_own(
    task: Task, algorithm: FederatedAlgorithm, seed: int, clients_per_chunk: int | None = None,
    mesh: Mesh | None = None, reader: CohortReader | None = None,
) -> dict[str, OwnModels]:
    """What measures the clients' own models, by part; nothing if they have none.

    Args:
      task, algorithm, seed, clients_per_chunk, mesh: of the run.
      reader: of the training data for that mesh, if there is one.
    """
    if jax.process_count() > 1:
        reader = None
    return {
        part: OwnModels(of_part, part, Personalizer(
            of_part, None, seed, clients_per_chunk, mesh, reader
        )) for part, of_part in _tasks_of_own(task, algorithm).items()
    }


def evaluated_metrics(task: Task, algorithm: FederatedAlgorithm) -> list[str]:
    """The metrics of validation and test data that a run has at its end, by name."""
    all_metrics = [*task.model.metrics, *(task.model.scores or {})]
    names = [
        f"{part}_{kind}{metric}" for part, data in held_out(task).items()
        for kind in ("", *["worst_tenth_"] * (data.num_clients >= CLIENTS_FOR_A_TENTH))
        for metric in all_metrics
    ]
    for part, of_part in _tasks_of_own(task, algorithm).items():
        count = int((matched_clients(of_part)[1] >= 0).sum())
        kinds = ["own", "own_mean", *["own_worst_tenth"] * (count >= CLIENTS_FOR_A_TENTH)]
        names += [f"{part}_{kind}_{metric}" for kind in kinds for metric in task.model.metrics]
    return names


def add_evaluation(
    metrics: dict[str, float], evaluator: Evaluator, found: ClientMetrics, part: str
) -> ClientMetrics | None:
    """Adds the metrics of a part; returns them client by client if they are of all examples."""
    metrics |= {f"{part}_{name}": value for name, value in found.overall().items()}
    metrics |= {"evaluated_examples": evaluator.num_examples, "evaluated_of": evaluator.num_all}
    if evaluator.num_examples < evaluator.num_all:
        return None  # of some clients there is no example
    if len(found.names) >= CLIENTS_FOR_A_TENTH:
        worst = found.worst()
        metrics |= {f"{part}_worst_tenth_{name}": value for name, value in worst.items()}
    return found


def training_evaluator(
    task: Task, settings: Settings, mesh: Mesh | None = None
) -> Evaluator | None:
    """Evaluates all training clients, if that is wanted.

    Raises:
      ValueError: if the model has no metric "loss".
    """
    if not settings.evaluate_training or settings.evaluate_every == 0:
        return None
    loss = task.model.metrics.get("loss")
    if loss is None:
        raise ValueError(
            "evaluate_training measures the metric 'loss', but the model has "
            f"{', '.join(task.model.metrics) or 'no metrics'}. Add it to the model's metrics."
        )
    model = task.model._replace(metrics={"loss": loss})
    return Evaluator(model, task.train, mesh=settings.mesh or mesh)


def training_loss(evaluator: Evaluator, params: Params) -> dict[str, float]:
    """The loss over all training clients, each counting alike, and over all their examples."""
    found = evaluator.per_client(params)
    return {
        "all_clients_loss": float(np.nanmean(found["loss"])),
        "all_examples_loss": found.overall()["loss"],
    }


def require_personalization(
    task: Task, algorithm: FederatedAlgorithm, settings: Settings
) -> None:
    """Raises a clear error if clients should fine-tune but cannot.

    Raises:
      ValueError: if the method has no learning rate for it, or no client has both training and test
        examples.
    """
    if settings.personalizes:
        _tuning_of(algorithm, settings)
        for of_part in _personal_tasks(task).values():
            matched_clients(of_part)


def _personal_tasks(task: Task) -> dict[str, Task]:
    """By part, tasks whose test data are those that test clients after fine-tuning.

    Test data of other clients are left out if there are validation data.
    """
    parts = held_out(task)
    if len(parts) > 1 and (task.train.places_of(parts["test"]) < 0).all():
        del parts["test"]
    return {
        part: task._replace(test=data, validation=None) for part, data in parts.items()
    } or {"test": task}


def _tasks_of_own(task: Task, algorithm: FederatedAlgorithm) -> dict[str, Task]:
    """By part, the tasks whose test data test the clients' own models, if they have such."""
    if algorithm.own_model is None:
        return {}
    return {
        part: of_part for part, of_part in _personal_tasks(task).items()
        if of_part.test is not None and (task.train.places_of(of_part.test) >= 0).any()
    }


def _tuning_of(algorithm: FederatedAlgorithm, settings: Settings) -> tuple[Schedule, FineTuning]:
    """The rate that clients fine-tune with, as a schedule, and the rest."""
    rate = settings.personalize_learning_rate
    if rate is None:
        rate = setting_of(algorithm, "client_learning_rate")
    if rate is None:
        raise ValueError(
            "Clients fine-tune with the method's client_learning_rate, but this method does not "
            "have one; give personalize_learning_rate, such as 0.1."
        )
    batch_size = setting_of(algorithm, "batch_size") or LocalTraining._field_defaults["batch_size"]
    return as_schedule(rate), checked_tuning(
        None, settings.personalize_steps, settings.personalize_epochs, batch_size
    )


class _Personal:
    """The clients' fine-tuning in evaluation rounds, as the options say."""

    def __init__(
        self, task: Task, algorithm: FederatedAlgorithm, settings: Settings,
        reader: CohortReader | None, part: str,
    ) -> None:
        self._part = part
        self._rate, self._tuning = _tuning_of(algorithm, settings)
        self._personalizer = Personalizer(
            task, settings.personalize_clients, settings.seed, settings.clients_per_chunk,
            settings.mesh, reader,
        )

    def __call__(
        self, params: Params, round_index: int
    ) -> tuple[ClientMetrics, dict[str, float]]:
        """The clients' metrics, and `test_personal_*` or `validation_personal_*`."""
        rate = float(self._rate(jnp.int32(round_index)))
        clients = self._personalizer(params, self._tuning._replace(client_learning_rate=rate))
        assert clients.before is not None
        before = clients.before.overall().items()
        after = clients.overall().items()
        return clients, {
            **{f"{self._part}_personal_{name}": value for name, value in after},
            **{f"{self._part}_personal_before_{name}": value for name, value in before},
        }


@functools.lru_cache(maxsize=PROGRAMS)
def _program(structure: Structure) -> Any:
    """The dissimilarity of all models of a structure, which their numbers tell apart."""

    def measure(numbers: list[Array], params: Params, cohort: CohortData, key: Array) -> Any:
        return dissimilarity(
            structure(numbers), params, cohort, key,
            max_examples=MEASURED_EXAMPLES, num_iterations=3,
        )

    return jit(measure)
