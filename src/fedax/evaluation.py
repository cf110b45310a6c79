"""Metrics of a model over a federated data set: over all clients, and client by client."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from fedax.algorithm import Array, Batch, Model, Params
from fedax.data.federated_dataset import FederatedDataset


class Evaluator:
    """Evaluates parameters on one data set; compiles once.

    A metric's mean weighs every example as the metric says (a sequence by its characters, say),
    so the mean over all clients is that of the pooled examples.

    Args:
      model: whose `outputs` and `metrics` are used.
      dataset: the examples, read in order.
      batch_size: examples at a time; changes nothing but speed and memory.
    """

    def __init__(self, model: Model, dataset: FederatedDataset, batch_size: int = 128) -> None:
        self._dataset = dataset
        self._batch_size = min(batch_size, dataset.num_examples)
        self._names = list(model.metrics)

        @jax.jit
        def measure(params: Params, batch: Batch) -> list[tuple[Array, Array]]:
            outputs = model.outputs(params, batch)
            return [metric(outputs, batch) for metric in model.metrics.values()]

        self._measure = measure

    def overall(self, params: Params) -> dict[str, float]:
        """Metric name -> mean over the examples of all clients together."""
        sums = self._sums(params)
        return {
            name: float(totals.sum() / weights.sum()) if weights.sum() else float("nan")
            for name, (totals, weights) in sums.items()
        }

    def per_client(self, params: Params) -> dict[str, np.ndarray]:
        """Metric name -> mean over each client's examples, float64 [num_clients].

        NaN where nothing of a client weighs.
        """
        return {
            name: np.divide(
                totals, weights, out=np.full_like(totals, np.nan), where=weights > 0
            )
            for name, (totals, weights) in self._sums(params).items()
        }

    def _sums(self, params: Params) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Metric name -> (sum of weight * value, sum of weights), each float64 [num_clients]."""
        dataset, size = self._dataset, self._batch_size
        zeros = np.zeros(dataset.num_clients)
        sums = {name: (zeros.copy(), zeros.copy()) for name in self._names}
        for first in range(0, dataset.num_examples, size):
            rows = np.arange(first, min(first + size, dataset.num_examples))
            filled = np.minimum(np.arange(first, first + size), rows[-1])
            batch = {key: jnp.asarray(array[filled]) for key, array in dataset.arrays.items()}
            owners = np.searchsorted(dataset.offsets, rows, side="right") - 1
            for name, (values, weights) in zip(
                self._names, jax.device_get(self._measure(params, batch)), strict=True
            ):
                value = np.asarray(values, np.float64)[: len(rows)]
                weight = np.asarray(weights, np.float64)[: len(rows)]
                product = np.where(weight > 0, value * weight, 0.0)
                np.add.at(sums[name][0], owners, product)
                np.add.at(sums[name][1], owners, weight)
        return sums


def evaluate(
    model: Model, params: Params, dataset: FederatedDataset, batch_size: int = 128
) -> dict[str, float]:
    """Metric name -> mean over the examples of all clients; see `Evaluator`."""
    return Evaluator(model, dataset, batch_size).overall(params)


def evaluate_clients(
    model: Model, params: Params, dataset: FederatedDataset, batch_size: int = 128
) -> dict[str, np.ndarray]:
    """Metric name -> each client's mean, float64 [num_clients]; see `Evaluator`."""
    return Evaluator(model, dataset, batch_size).per_client(params)
