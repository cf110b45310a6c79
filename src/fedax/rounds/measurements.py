"""What is measured between rounds: test metrics, and the diagnostics."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from fedax.algorithm import FederatedAlgorithm, Params
from fedax.data.cohort_data import CohortReader
from fedax.data.federated_dataset import FederatedDataset
from fedax.data.task import Task
from fedax.measures.communication import communication
from fedax.measures.dissimilarity import dissimilarity
from fedax.mistakes.errors import ModelError
from fedax.rounds.evaluation import Evaluator
from fedax.rounds.options import Settings
from fedax.rounds.timing import Stopwatch

# On so many clients, and examples of each, the diagnostics estimate dissimilarity.
MEASURED_CLIENTS = 5
MEASURED_EXAMPLES = 32


class Measurements:
    """What is measured between rounds: test metrics, and the diagnostics."""

    def __init__(
        self,
        task: Task,
        algorithm: FederatedAlgorithm,
        settings: Settings,
        reader: CohortReader,
        data: FederatedDataset,
    ) -> None:
        self._evaluator = (
            Evaluator(task.model, task.test, mesh=settings.mesh)
            if task.test and settings.evaluate_every != 0 else None
        )
        self._sent = None
        if settings.diagnostics:
            self._sent = communication(algorithm, task.model, task.train.client(0))
        # A mesh's reader brings cohorts to all devices; these few clients go to one.
        self._reader = reader if settings.mesh is None else CohortReader(data, 0)
        self._client_sizes = data.client_sizes
        self._dissimilarity = jax.jit(
            functools.partial(
                dissimilarity, task.model, max_examples=MEASURED_EXAMPLES, num_iterations=3
            )
        )

    def check(self, params: Params) -> None:
        """Says before the first round what evaluation would say after the last."""
        if self._evaluator is None:
            return
        try:
            self._evaluator.check(params)
        except ModelError as error:
            raise ModelError(f"Evaluation on task.test: {error}") from error.__cause__

    def evaluate(
        self, metrics: dict[str, float], params: Params, client_ids: np.ndarray, done: np.ndarray,
        key: jax.Array,
    ) -> None:
        """Adds the test metrics, what the diagnostics measure, and how long it took."""
        watch = Stopwatch()
        if self._evaluator is not None:
            results = self._evaluator.overall(params)
            metrics.update({f"test_{name}": value for name, value in results.items()})
        metrics.update(self._similarity(params, client_ids, done, key))
        lap = watch.lap()
        metrics["evaluation_seconds"] = lap.seconds - lap.compiling
        metrics["compile_seconds"] += lap.compiling

    def sent(self, dropped_at: np.ndarray) -> dict[str, float]:
        """Bytes of a round's cohort."""
        if self._sent is None:
            return {}
        down, up = self._sent.with_cohort(dropped_at)
        return {"bytes_down": down, "bytes_up": up}

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
        return {name: float(value) for name, value in found._asdict().items()}
