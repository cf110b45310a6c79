"""Scores, which are functions of all outputs, over all clients and client by client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from fedax.algorithm import Model, PyTree, Score
from fedax.data.federated_dataset import FederatedDataset
from fedax.mistakes.errors import ModelError, array_words, checked_call, defined_at, kind_of
from fedax.mistakes.model import nearest
from fedax.models.scoring import Folded, as_scores


def checked_scores(model: Model, dataset: FederatedDataset) -> dict[str, Score]:
    """The model's scores, after checking that the data set has their arrays.

    Raises:
      TypeError, ValueError: if they have the wrong type, or one has the name of a metric.
      ModelError: if the data set does not have the labels or weights.
    """
    scores = as_scores(model.scores)
    for name, score in scores.items():
        if name in model.metrics:
            raise ValueError(f"The model also has a metric named {name!r}; rename the score.")
        for what, array in (("labels", score.labels), ("weights", score.weights)):
            if array is not None and array not in dataset.arrays:
                near = nearest(array, dataset.arrays)
                raise ModelError(
                    f"The score {name!r} needs the {what} {array!r}, but the data have "
                    f"{', '.join(map(repr, sorted(dataset.arrays)))}. Give {what}="
                    f"{near or 'a name'!r} to the model's factory, or to fedax.scores.Score."
                )
        if score.weights is not None and dataset.arrays[score.weights].ndim != 1:
            raise ModelError(
                f"The weights {score.weights!r} of the score {name!r} must be one number an "
                f"example, but are {array_words(dataset.arrays[score.weights])}."
            )
    return scores


def require_rows(outputs: PyTree, count: int) -> PyTree:
    """The outputs, unchanged, if they have a row for each example.

    Raises:
      ModelError: if an array does not.
    """
    for leaf in jax.tree.leaves(outputs):
        if leaf.shape[:1] != (count,):
            raise ModelError(
                f"The model's outputs must have the examples along their first axis, {count} here, "
                f"but one is {array_words(leaf)}."
            )
    return outputs


def on_host(outputs: PyTree, count: int | slice) -> PyTree:
    """These rows, or the first ones, of the outputs as NumPy arrays, floats at least float32."""
    part = count if isinstance(count, slice) else slice(count)

    def taken(leaf: Any) -> np.ndarray:
        array = np.asarray(leaf)[part]
        narrow = jax.numpy.issubdtype(array.dtype, np.floating) and array.dtype.itemsize < 4
        return array.astype(np.float32) if narrow else array

    return jax.tree.map(taken, jax.device_get(outputs))


class Scoring:
    """Computes scores from the outputs of examples, in the order of their rows.

    A `Folded` score keeps only its sums, over all clients and over the current one. The others
    keep all outputs.

    Args:
      scores: by name.
      dataset: provides labels and weights.
      clients: whether to compute them for each client, too.
    """

    def __init__(
        self, scores: Mapping[str, Score], dataset: FederatedDataset, *, clients: bool
    ) -> None:
        self._scores, self._dataset, self._clients = scores, dataset, clients
        self._folds = {
            name: _Fold(name, score.function, dataset.num_clients if clients else 0)
            for name, score in scores.items() if isinstance(score.function, Folded)
        }
        self._gathers = len(self._folds) < len(scores)
        self._rows: list[np.ndarray] = []
        self._outputs: list[PyTree] = []

    def add(self, rows: np.ndarray, outputs: PyTree) -> None:
        """Adds the next examples; outputs [n, ...] on the host."""
        if self._gathers:
            self._rows.append(rows)
            self._outputs.append(outputs)
        for name, fold in self._folds.items():
            counted, labels, weights = self._weighed(self._scores[name], rows)
            if len(counted):
                picked = _picked(outputs, counted, len(rows))
                fold.add(self._owners(rows[counted]), picked, labels, weights)

    def result(self) -> dict[str, tuple[float, np.ndarray]]:
        """Score name -> its value for all clients together and for each; NaN if undefined."""
        if self._gathers and self._rows:
            rows = np.concatenate(self._rows)
            outputs = jax.tree.map(lambda *parts: np.concatenate(parts), *self._outputs)
            self._rows, self._outputs = [rows], [outputs]
        return {
            name: self._folds[name].result() if name in self._folds else self._gathered(name, score)
            for name, score in self._scores.items()
        }

    def _gathered(self, name: str, score: Score) -> tuple[float, np.ndarray]:
        of_clients = np.full(self._dataset.num_clients if self._clients else 0, np.nan)
        if not self._rows:
            return np.nan, of_clients
        rows, outputs = self._rows[0], self._outputs[0]
        counted, labels, weights = self._weighed(score, rows)
        outputs = _picked(outputs, counted, len(rows))
        if self._clients:
            owners = self._owners(rows[counted])
            for owner, part in _parts(owners):
                of_clients[owner] = _value(
                    name, score.function, jax.tree.map(lambda leaf, part=part: leaf[part], outputs),
                    labels[part], weights[part],
                )
        return _value(name, score.function, outputs, labels, weights), of_clients

    def _weighed(self, score: Score, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Which of the rows weigh more than 0, and their labels and weights."""
        arrays = self._dataset.arrays
        if score.weights is None:
            weights = np.ones(len(rows))
        else:
            weights = np.asarray(arrays[score.weights][rows], np.float64)
            if not (weights >= 0).all():
                raise ModelError(
                    f"The weights {score.weights!r} must not be negative or NaN, but one is "
                    f"{weights[~(weights >= 0)][0]:g}; use weight 0 for an example that does not "
                    "count."
                )
        counted = np.flatnonzero(weights > 0)
        return counted, np.asarray(arrays[score.labels][rows[counted]]), weights[counted]

    def _owners(self, rows: np.ndarray) -> np.ndarray:
        return np.searchsorted(self._dataset.offsets, rows, side="right") - 1


class _Fold:
    """The sums of one score: of all clients, and of the client that is under way."""

    def __init__(self, name: str, function: Folded, num_clients: int) -> None:
        self._name, self._function = name, function
        self._total: Any = None
        self._owner, self._own = -1, None
        self._of_clients = np.full(num_clients, np.nan)

    def add(self, owners: np.ndarray, outputs: PyTree, labels: Any, weights: Any) -> None:
        self._total = _sum(self._total, self._statistics(outputs, labels, weights))
        if not len(self._of_clients):
            return
        for owner, part in _parts(owners):
            if owner != self._owner:
                self._close()
                self._owner = owner
            own = jax.tree.map(lambda leaf, part=part: leaf[part], outputs)
            self._own = _sum(self._own, self._statistics(own, labels[part], weights[part]))

    def result(self) -> tuple[float, np.ndarray]:
        self._close()
        return self._value(self._total), self._of_clients.copy()

    def _close(self) -> None:
        """The client under way is whole, as far as is known."""
        if self._owner >= 0:
            self._of_clients[self._owner] = self._value(self._own)
        self._own = None

    def _statistics(self, outputs: PyTree, labels: Any, weights: Any) -> Any:
        if _has_nan(outputs):
            return np.nan
        arguments = outputs, labels, weights
        call = "statistics(outputs, labels, weights)"
        return np.asarray(_called(self._name, call, self._function.statistics, arguments))

    def _value(self, sums: Any) -> float:
        if sums is None or np.isnan(sums).any():
            return np.nan
        found = _called(self._name, "value(sums)", self._function.value, (sums,))
        return _number(self._name, self._function.value, found)


def _sum(total: Any, more: Any) -> Any:
    return more if total is None else total + more


def _parts(owners: np.ndarray) -> list[tuple[int, slice]]:
    """Where each client's examples are, of sorted owners."""
    starts = np.flatnonzero(np.diff(owners, prepend=-1))
    ends = [*starts[1:].tolist(), len(owners)]
    return [
        (int(owners[start]), slice(start, end))
        for start, end in zip(starts.tolist(), ends, strict=True)
    ]


def _picked(outputs: PyTree, counted: np.ndarray, count: int) -> PyTree:
    if len(counted) == count:
        return outputs
    return jax.tree.map(lambda leaf: leaf[counted], outputs)


def _has_nan(outputs: PyTree) -> bool:
    return any(leaf.dtype.kind == "f" and np.isnan(leaf).any() for leaf in jax.tree.leaves(outputs))


def _value(name: str, function: Any, outputs: PyTree, labels: Any, weights: Any) -> float:
    """A score of some examples; NaN without any, and where the model gives NaN."""
    if not len(weights) or _has_nan(outputs):
        return np.nan
    found = _called(
        name, "function(outputs, labels, weights)", function, (outputs, labels, weights)
    )
    return _number(name, function, found)


def _called(name: str, call: str, function: Any, arguments: tuple[Any, ...]) -> Any:
    """What a user's function gives; what it raises becomes a `ModelError`."""
    names = call.partition("(")[2].rstrip(")").split(", ")
    given = dict(zip(names, arguments, strict=True))
    return checked_call(ModelError, f"The score {name!r}", call, function, arguments, given)


def _number(name: str, function: Any, found: Any) -> float:
    """What a score returned, if it is one number."""
    try:
        array = np.asarray(found)
    except (TypeError, ValueError):  # such as a ragged list
        array = np.asarray(None)
    if array.ndim == 0 and (array.dtype.kind in "iuf" or array.dtype.name == "bfloat16"):
        return float(array)
    said = array_words(array) if getattr(array, "ndim", 0) else kind_of(found)
    raise ModelError(
        f"The score {name!r}{defined_at(function)} must return one number, but returned {said}."
    )
