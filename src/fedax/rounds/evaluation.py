"""Evaluates a model on a federated data set, over all clients and client by client."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from fedax.algorithm import Array, Batch, Model, Params, PyTree
from fedax.data.federated_dataset import FederatedDataset
from fedax.devices.compiling import jit
from fedax.devices.mesh import AXIS, REPLICATED, check_mesh
from fedax.factories import PROGRAMS, Structure, partition
from fedax.mistakes.errors import ModelError, kind_of
from fedax.mistakes.model import call_metric, call_outputs, require_model
from fedax.rounds.batch_sizes import traced_outputs, usual_batch_size
from fedax.rounds.blocks import IN_BATCHES, Blocks
from fedax.rounds.checks import (
    check_examples,
    require_dataset,
    require_params,
)
from fedax.rounds.client_metrics import ClientMetrics
from fedax.rounds.padding import check_metrics
from fedax.rounds.sampling import sample_examples
from fedax.rounds.scoring import Scoring, checked_scores, on_host, require_rows
from fedax.validate import check_count, plain

# The metrics of batches, each with its weights, and the outputs.
_Measured: TypeAlias = tuple[list[tuple[Array, Array]], PyTree]


class Evaluator:
    """Evaluates parameters on one data set; compiles once.

    The metric sets the weight of each example (for a sequence, say, its number of characters), so
    the mean over all clients equals that of the pooled examples.

    Args:
      model: provides `outputs`, `metrics` and `scores`.
      dataset: the examples, read in order.
      batch_size: examples per batch on a device; affects speed and memory only. None: chosen by
        `usual_batch_size` from the first parameters.
      mesh: devices that share the examples (those of this process); None: one device.
      sample: number of examples, drawn once uniformly without replacement; None, or at least as
        many as there are: all examples.
      seed: seed of that draw.
      redraws: whether `redraw` draws other examples; otherwise it does nothing.

    Attributes:
      num_examples: number of examples evaluated.
      num_all: number of examples in the data set.

    Raises:
      TypeError, ValueError: if the model or the data set has the wrong type, or the data are not
        numbers.
    """

    def __init__(
        self, model: Model, dataset: FederatedDataset, batch_size: int | None = None,
        mesh: Mesh | None = None, sample: int | None = None, seed: int = 0, *,
        redraws: bool = False,
    ) -> None:
        require_model(model, "fedax.evaluate(model, params, dataset)")
        require_dataset("dataset", dataset)
        if not isinstance(model.metrics, Mapping):
            raise TypeError(
                "The model's metrics must be a dictionary {name: metric} ({} for none), but are "
                f"{kind_of(model.metrics)}."
            )
        if batch_size is not None:
            check_count("batch_size", batch_size)
        self._model, self._dataset = model, dataset
        self._mesh = None if mesh is None else mesh.local_mesh
        self.num_examples = self.num_all = dataset.num_examples
        self._drawn: np.ndarray | None = None  # sorted rows, or all
        if sample is not None and sample < self.num_all:
            self._drawn, self.num_examples = sample_examples(seed, self.num_all, sample), sample
        self._redraws, self._seed = redraws and self._drawn is not None, seed
        self._asked, self._batch_size = plain(batch_size), 0  # until parameters are known
        self._tried = False
        self._blocks: Blocks | None = None  # likewise
        self._names = list(model.metrics)
        self._scores = checked_scores(model, dataset)
        numbers, structure = partition((model.outputs, tuple(model.metrics.values())))
        self._program = _program(structure, tuple(self._names), self._mesh, bool(self._scores))
        self._numbers = numbers

    def check(self, params: Params) -> None:
        """Traces the metrics on a batch; the evaluation then does not have to.

        Runs nothing, unless padding of the last batch could change the user's own metrics.

        Raises:
          ModelError: if the outputs or a metric raise an error or return something invalid, or
            compare the examples of a batch without taking its mask.
        """
        blocks, count = self._size(params), jax.ShapeDtypeStruct((), np.int32)
        self._program.eval_shape(self._numbers, params, blocks.shapes(), count, count, count)
        self._try(params)

    def redraw(self, round_index: int) -> None:
        """Draws the sample of a round, if it is another one for each; begun walks must be over."""
        if self._redraws:
            count = self.num_examples
            self._drawn = sample_examples(self._seed, self.num_all, count, round_index)
            self._blocks = None

    def overall(self, params: Params) -> dict[str, float]:
        """Metric name -> mean, or score, over the examples of all clients together."""
        return self._whole(params, clients=False).overall()

    def per_client(self, params: Params) -> ClientMetrics:
        """Metric name -> mean, or score, over each client's examples."""
        return self._whole(params, clients=True)

    def begin(self, params: Params, *, clients: bool | None = None) -> Walk:
        """Starts an evaluation of these parameters that runs batch by batch when asked.

        Args:
          params: what is evaluated.
          clients: whether to compute scores client by client, too; None: unless the examples are a
            sample, in which some clients may have none.
        """
        self._size(params)
        self._try(params)
        if clients is None:
            clients = self.num_examples == self.num_all
        return Walk(self, self._placed(params), clients=clients)

    def _whole(self, params: Params, *, clients: bool) -> ClientMetrics:
        walk = self.begin(params, clients=clients)
        walk.go_on(walk.batches_left)
        return walk.result()

    def _size(self, params: Params) -> Blocks:
        """Decides on the number of examples at a time, once."""
        if self._blocks is None:
            each = self._asked or usual_batch_size(self._model, params, self._dataset.arrays)
            devices = 1 if self._mesh is None else self._mesh.size
            self._batch_size = devices * min(each, -(-self.num_examples // devices))
            beside = 0
            if self._scores:
                beside = sum(
                    leaf.size * leaf.dtype.itemsize
                    for leaf in traced_outputs(self._model, params, self._dataset.arrays)
                )
            self._blocks = Blocks(
                self._dataset, self._drawn, self._batch_size, beside, self._mesh
            )
        return self._blocks

    def _try(self, params: Params) -> None:
        """Looks once at what the model gives, before anything is measured.

        Refuses metrics that a last batch that is filled up changes, and scores that fail.
        """
        leaves = jax.tree.leaves(params)
        if self._tried or not all(isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves):
            return
        self._tried = True
        if self._mesh is None and self.num_examples % self._batch_size:
            check_metrics(self._model, params, self._dataset, self._batch_size, self._of_a_batch)
        if self._scores:  # on examples of as many clients as there is room for
            places = np.linspace(0, self.num_examples - 1, self._batch_size).astype(int)
            rows = np.unique(places)
            rows = rows if self._drawn is None else self._drawn[rows]
            found = self._measure(
                self._placed(params), self._size(params).of_rows(rows), 0, 1, len(rows)
            )
            trial = Scoring(self._scores, self._dataset, clients=False)
            trial.add(rows, on_host(_flat(found[1]), len(rows)))
            trial.result()

    def _measure(
        self, params: Params, block: dict[str, Array], first: int, last: int, rows: int
    ) -> _Measured:
        """Starts the evaluation of the batches `first` to `last` - 1 of a block, see `_program`."""
        return self._program(
            self._numbers, params, block, np.int32(first), np.int32(last), np.int32(rows)
        )

    def _of_a_batch(self, params: Params, batch: Batch, mask: np.ndarray) -> _Measured:
        """What the program gives for one batch [batch_size, ...], of which a first part counts."""
        examples = self._size(params).placed({key: np.asarray(batch[key]) for key in batch})
        found = self._measure(params, examples, 0, 1, int(mask.sum()))
        return jax.tree.map(lambda leaf: leaf[0], found)

    def _placed(self, params: Params) -> Params:
        """The parameters where they are needed."""
        if self._mesh is None:
            return params
        return jax.device_put(params, NamedSharding(self._mesh, REPLICATED))


class Walk:
    """An evaluation in progress; its result is bit-identical however the batches are grouped.

    Args:
      evaluator: whose examples it walks through.
      params: what is evaluated.
      clients: whether scores are wanted client by client, too.
    """

    def __init__(self, evaluator: Evaluator, params: Params, *, clients: bool) -> None:
        self._of, self._params, self._next = evaluator, params, 0
        zeros = np.zeros(evaluator._dataset.num_clients)
        self._sums = {name: (zeros.copy(), zeros.copy()) for name in evaluator._names}
        self._scoring = Scoring(evaluator._scores, evaluator._dataset, clients=clients)

    @property
    def batches_left(self) -> int:
        """Number of batches left."""
        return -(-(self._of.num_examples - self._next) // self._of._batch_size)

    def go_on(self, count: int) -> None:
        """Evaluates the next batches, if there are any left."""
        of, blocks = self._of, self._of._size(self._params)
        under_way = deque[tuple[np.ndarray, slice, _Measured]]()
        end = min(self._next + count * blocks.batch_size, of.num_examples)
        while self._next < end:
            block, first = divmod(self._next // blocks.batch_size, blocks.batches)
            rows = blocks.rows(block)
            part = slice(
                first * blocks.batch_size,
                min(len(rows), end - block * blocks.batches * blocks.batch_size),
            )
            last = -(-part.stop // blocks.batch_size)
            found = of._measure(self._params, blocks[block], first, last, len(rows))
            self._next += part.stop - part.start
            under_way.append((rows[part], part, found))
            if len(under_way) > 1:  # the device has its next block before this one is looked at
                self._add(*under_way.popleft())
        for rows, part, found in under_way:
            self._add(rows, part, found)

    def result(self) -> ClientMetrics:
        """The metrics of the batches so far."""
        data, drawn = self._of._dataset, self._of._drawn
        sizes = data.client_sizes if drawn is None else np.diff(
            np.searchsorted(drawn, data.offsets)
        )
        scores = self._scoring.result()
        return ClientMetrics(self._sums, data.client_names, sizes, scores=scores)

    def _add(self, rows: np.ndarray, part: slice, found: _Measured) -> None:
        """Adds examples to their clients' sums of weight * value and of weights, in float64.

        They are the `part` of a block in which something was `found`.
        """
        of = self._of
        metrics, outputs = found
        if of._scores:
            whole = on_host(_flat(outputs), part)
            for first in range(0, len(rows), of._batch_size):  # a sum is then always of a batch
                batch = slice(first, first + of._batch_size)
                self._scoring.add(rows[batch], on_host(whole, batch))
        owners = np.searchsorted(of._dataset.offsets, rows, side="right") - 1
        for name, (values, weights) in zip(of._names, jax.device_get(metrics), strict=True):
            value = np.asarray(values.reshape(-1)[part], np.float64)
            weight = np.asarray(weights.reshape(-1)[part], np.float64)
            if (weight < 0).any():
                raise ModelError(
                    f"The metric {name!r} gives the weight {weight.min():g}, but weights must not "
                    "be negative; give weight 0 to an example that does not count."
                )
            counted = np.where(weight > 0, value, 0.0)
            _add_to(self._sums[name][0], owners, counted * weight)
            _add_to(self._sums[name][1], owners, weight)


def _add_to(sums: np.ndarray, owners: np.ndarray, values: np.ndarray) -> None:
    """Adds values to their owners' sums one after the other, as `np.add.at` does.

    The owners are sorted, and those after the first have no values so far.
    """
    first = owners[0]
    places = np.concatenate([[0], owners - first])
    found = np.bincount(places, np.concatenate([sums[first : first + 1], values]))
    sums[first : first + len(found)] = found


@functools.lru_cache(maxsize=PROGRAMS)
def _program(
    structure: Structure, names: tuple[str, ...], mesh: Mesh | None, gives_outputs: bool
) -> Any:
    """The metrics of all models of a structure on batches, which their numbers tell apart.

    With them the outputs, if they are wanted, else (). The batches `first` to `last` - 1 of a
    block are evaluated, in which the first `rows` examples count; other results are 0.
    """

    def of_a_batch(
        numbers: list[Array], params: Params, batch: Batch, mask: Array
    ) -> _Measured:
        outputs_of, metrics = structure(numbers)
        outputs = call_outputs(outputs_of, params, batch, mask)
        found = [
            call_metric(name, metric, outputs, batch, mask)
            for name, metric in zip(names, metrics, strict=True)
        ]
        return found, require_rows(outputs, mask.shape[0]) if gives_outputs else ()

    def measure(
        numbers: list[Array], params: Params, block: Batch, first: Array, last: Array, rows: Array
    ) -> _Measured:
        batches, size = next(iter(block.values())).shape[:2]
        devices, place = (1, 0) if mesh is None else (mesh.size, jax.lax.axis_index(AXIS))
        places = place * size + jnp.arange(size, dtype=jnp.int32)

        @functools.partial(jax.jit, inline=True)  # traced once, for its shapes and in the loop
        def of_number(number: Array) -> _Measured:
            batch = {
                key: jax.lax.dynamic_index_in_dim(array, number, keepdims=False)
                for key, array in block.items()
            }
            return of_a_batch(numbers, params, batch, number * (devices * size) + places < rows)

        shapes = jax.eval_shape(of_number, first)
        found = jax.tree.map(
            lambda leaf: jnp.zeros((batches, *leaf.shape), leaf.dtype), shapes
        )

        def body(number: Array, found: _Measured) -> _Measured:
            return jax.tree.map(
                lambda whole, leaf: jax.lax.dynamic_update_index_in_dim(whole, leaf, number, 0),
                found, of_number(number),
            )

        return jax.lax.fori_loop(first, last, body, found)

    if mesh is not None:
        measure = jax.shard_map(
            measure, mesh=mesh,
            in_specs=(REPLICATED, REPLICATED, IN_BATCHES, REPLICATED, REPLICATED, REPLICATED),
            out_specs=IN_BATCHES, check_vma=False,
        )
    return jit(measure, newer_loops=True)


def _flat(outputs: PyTree) -> PyTree:
    """[batches, batch, ...] -> [examples, ...], on the host."""
    return jax.tree.map(
        lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), jax.device_get(outputs)
    )


def evaluate(
    model: Model, params: Params, dataset: FederatedDataset, batch_size: int | None = None,
    *, mesh: Mesh | None = None,
) -> dict[str, float]:
    """Metric or score name -> value of `params` over the examples of all clients, all alike.

    Args:
      model, params, dataset: what is evaluated, on which examples.
      batch_size: examples per batch on a device; affects speed and memory only. None: chosen by
        the size of the model.
      mesh: this process's devices of it share the examples, see `fedax.client_mesh`; None: one.

    Raises:
      TypeError, ValueError: if an argument has the wrong type or is out of range.
      ModelError: if the outputs or a metric raise an error or return something invalid, or labels
        are out of range.
    """
    return _evaluator(model, params, dataset, batch_size, mesh).overall(params)


def evaluate_clients(
    model: Model, params: Params, dataset: FederatedDataset, batch_size: int | None = None,
    *, mesh: Mesh | None = None,
) -> ClientMetrics:
    """Metric name -> each client's mean, or score, float64 [num_clients], with the clients' names.

    Arguments and errors as for `evaluate`.

    Example:
      >>> import fedax, jax.numpy as jnp
      >>> data = fedax.FederatedDataset.from_clients({
      ...     "ada": {"x": np.ones((2, 1)), "y": np.array([1.0, 2.0])},
      ...     "bob": {"x": np.ones((1, 1)), "y": np.array([4.0])}})
      >>> model = fedax.regression(lambda key: jnp.zeros(1), lambda params, x: x @ params)
      >>> clients = evaluate_clients(model, jnp.ones(1), data)
      >>> clients["loss"].tolist(), clients.names.tolist()
      ([0.25, 4.5], ['ada', 'bob'])
      >>> clients.worst(), clients.worst_clients("loss")
      ({'loss': 4.5}, {'bob': 4.5, 'ada': 0.25})
    """
    return _evaluator(model, params, dataset, batch_size, mesh).per_client(params)


def _evaluator(
    model: Model, params: Params, dataset: FederatedDataset, batch_size: int | None,
    mesh: Mesh | None,
) -> Evaluator:
    """Raises a clear error if an argument has the wrong type or the model rejects the examples."""
    require_model(model, "fedax.evaluate(model, params, dataset)")
    require_params(params)
    require_dataset("dataset", dataset)
    check_examples(model, params, "dataset", dataset)
    check_mesh(mesh)
    return Evaluator(model, dataset, batch_size, mesh)
