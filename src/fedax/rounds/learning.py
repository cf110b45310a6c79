"""Warnings about a run that does not learn, each given once, with a remedy."""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.dtypes import canonicalize_dtype

from fedax.algorithm import FederatedAlgorithm, Model, Params
from fedax.data.task import Task
from fedax.devices.mesh import one_copy
from fedax.factories import partition, recipe
from fedax.mistakes.errors import ModelError
from fedax.mistakes.model import call_outputs
from fedax.models.frozen import chosen
from fedax.models.parameters import named_leaves
from fedax.rounds.settings_of import recipes
from fedax.rounds.state import TrainingState
from fedax.rounds.untrained import mean_loss, untrained_loss
from fedax.validate import quoted

# Number of examples used to see whether outputs are probabilities, and how large inputs are.
FEW_EXAMPLES = 8
# Losses of the first rounds are too high from this factor times that of guessing, ln C.
FIRST_ROUNDS = 3
FAR_ABOVE = 5.0
# Inputs up to this need no scaling.
USUAL_INPUTS = 10.0
# A run of fewer rounds need not have learned anything. The loss ends with its mean over these.
LAST_ROUNDS = 5
# Whoever sees the loss fall by this share learns. Otherwise that of the model itself is looked at.
FALLS = 0.1
# A mean loss is below another if it is by this share.
BELOW = 1e-3


class Learning:
    """Whether a run learns: warnings before, during and after its rounds.

    It reads each round's loss. For a `fedax.classification` model it also computes the outputs of
    eight examples before the first round, and losses after the last round if they have not fallen.

    Args:
      task: what is learned.
      seed: of the run.
      rounds: the metrics of the rounds that were done before.
    """

    def __init__(self, task: Task, seed: int, rounds: Iterable[Mapping[str, Any]] = ()) -> None:
        self._task, self._seed = task, seed
        self._first: float | None = None
        self._last = deque[float](maxlen=LAST_ROUNDS)
        self._is_far = False
        self._num_rounds = self._num_empty = 0
        for metrics in rounds:
            self.add(metrics)
        self._goes_on = False

    def begin(self, state: TrainingState, algorithm: FederatedAlgorithm) -> list[str]:
        """Warnings about the model, unless it is trained already: they were given before."""
        if int(state.server_state.round_index) > 0:
            return []
        params = one_copy(state.server_state.params)
        found = [_statistics(params, algorithm)]
        with contextlib.suppress(ModelError):  # a model that fails says so in the first round
            found.append(_probabilities(self._task, params))
            found.append(_another_model(self._task, params, algorithm))
        return [said for said in found if said]

    def add(self, metrics: Mapping[str, Any]) -> list[str]:
        """Records a round; returns a warning if it is one of the first and its loss is too high.

        Args:
          metrics: of the round.
        """
        self._goes_on = True
        self._num_rounds += 1
        self._num_empty += metrics.get("num_reports") == metrics.get("num_rejected") == 0
        loss = metrics.get("train_loss")
        if loss is None or np.isnan(loss):
            return []
        self._last.append(float(loss))
        if self._first is None:
            self._first = float(loss)
        if self._is_far or metrics["round"] > FIRST_ROUNDS or loss <= FAR_ABOVE * np.log(2):
            return []
        said = _far_above(self._task, float(loss), int(metrics["round"]))
        self._is_far = said is not None
        return [said] if said else []

    def end(self, state: TrainingState) -> list[str]:
        """Warnings if most rounds had no clients, and if the loss has not fallen."""
        found = []
        if self._goes_on and 2 * self._num_empty > self._num_rounds:
            found.append(
                f"No client trained in {self._num_empty} of {self._num_rounds} rounds, so that "
                "these changed nothing. Let more clients take part: raise the availability or the "
                "cohort_size, or lower dropout."
            )
        return found + self._not_fallen(state)

    def _not_fallen(self, state: TrainingState) -> list[str]:
        """A warning if the loss has not fallen below that of the untrained model."""
        if not self._goes_on or len(self._last) < LAST_ROUNDS or self._first is None:
            return []
        fallen = self._first - np.mean(self._last)
        if fallen > FALLS * abs(self._first) and not self._is_far:
            return []
        before, now = untrained_loss(self._task, self._seed), mean_loss(
            self._task, one_copy(state.server_state.params)
        )
        if not np.isfinite(before) or before == 0 or now < before - BELOW * abs(before):
            return []
        return [
            f"The training loss has not fallen: it is {now:.4g} after the last round, and "
            f"{before:.4g} for the untrained model. Try client learning rates 10 times lower and "
            "higher, and check that the labels belong to their inputs."
        ]


def _statistics(params: Params, algorithm: FederatedAlgorithm) -> str | None:
    """A warning if running statistics, under the name that Flax uses, are trained by gradients."""
    names = list(named_leaves(params))
    handled = {
        name for found in recipes(algorithm) if found.factory.__name__ == "batch_statistics"
        for name, is_one in zip(names, chosen(params, found.arguments["where"]), strict=True)
        if is_one
    }
    trained = [n for n in names if "batch_stats" in n.split(".") and n not in handled]
    if not trained:
        return None
    said = (
        "The parameters contain 'batch_stats', the running statistics of Flax's BatchNorm, "
        "which would be trained by gradients, not updated from batches. "
    )
    if handled:
        return f"{said}Add {quoted(trained)} to where= of fedax.batch_statistics."
    return (
        f"{said}Use nn.GroupNorm or nn.LayerNorm instead of nn.BatchNorm, or "
        "fedax.batch_statistics around the method."
    )


def _another_model(task: Task, params: Params, algorithm: FederatedAlgorithm) -> str | None:
    """A warning if the method's model has other outputs than the one that is evaluated."""
    models = [found.arguments.get("model") for found in recipes(algorithm)]
    given = [model for model in models if isinstance(model, Model)]
    if not given or partition(given[-1])[1] == partition(task.model)[1]:
        return None
    trained = given[-1]  # of the innermost method; elastic's, around it, is measured, not trained
    many = _large(params, 1)  # begun with zeros, all models may be alike
    own, others = (
        jax.tree.leaves(_outputs(model, task, many)) for model in (task.model, trained)
    )
    if len(own) == len(others) and all(
        one.shape == other.shape and np.allclose(one, other, 1e-3, equal_nan=True)
        for one, other in zip(own, others, strict=True)
    ):
        return None
    return (
        "The method trains another model than task.model, which is evaluated: of the same "
        "parameters their outputs differ. Make the method with task.model, as in "
        "fedax.fedavg(task.model)."
    )


def _probabilities(task: Task, params: Params) -> str | None:
    """A warning if outputs of `fedax.classification` look like probabilities, not logits."""
    made = recipe(task.model)
    if made is None or made.factory.__name__ != "classification":
        return None
    outputs = functools.partial(_outputs, task.model, task)
    if made.arguments["activation"] == "sigmoid":
        # Logits may be between 0 and 1, but not those of large parameters, whatever their sign.
        for sign in (1, -1):
            found = outputs(_large(params, sign))
            if not (found.size and found.min() >= 0 and found.max() <= 1 and found.any()):
                return None
        every, last = "between 0 and 1", "sigmoid"
    else:
        found = outputs(params)
        if not (found.min() >= 0 and np.allclose(found.sum(-1), 1, atol=1e-3)):
            return None
        every, last = "between 0 and 1 and sum to 1", "softmax"
    return (
        f"The outputs of every example are {every}, as probabilities do. "
        f"fedax.classification takes logits: remove the {last} at the end of apply, or "
        "training is slow and the loss too high."
    )


def _outputs(model: Model, task: Task, params: Params) -> Any:
    """A model's outputs of a few training examples."""
    batch = {name: jnp.asarray(rows) for name, rows in _few(task).items()}
    size = len(next(iter(batch.values())))
    found = call_outputs(model.outputs, params, batch, jnp.ones(size, bool))
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), found)


def _few(task: Task) -> dict[str, np.ndarray]:
    """A few training examples, evenly spaced."""
    data = task.train
    rows = np.unique(np.linspace(0, data.num_examples - 1, FEW_EXAMPLES).astype(int))
    return {name: np.asarray(array[rows]) for name, array in data.arrays.items()}


def _large(params: Params, sign: int) -> Params:
    """Parameters of the same shapes that are random and large."""
    generator = np.random.default_rng(0)
    return jax.tree.map(
        lambda leaf: jnp.asarray(sign * 10 * generator.normal(size=leaf.shape), leaf.dtype)
        if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf,
        params,
    )


def _far_above(task: Task, loss: float, number: int) -> str | None:
    """A warning if a round's loss is far above that of guessing one of the task's C classes."""
    classes = _classes(task)
    if not classes or loss <= FAR_ABOVE * np.log(classes):
        return None
    guess = np.log(classes)
    most = {
        name: float(np.abs(array.astype(np.float64)).max(initial=0))
        for name, array in _few(task).items()
        if array.dtype.kind == "f" or (array.dtype == np.uint8 and array.ndim > 1)
    }
    made = recipe(task.model)
    own = "" if made is None else made.arguments.get("inputs", "")
    most = {own: most[own]} if own in most else most
    largest = max(most, key=lambda name: most[name], default=None)
    cure = (
        "Lower the client learning rate, or begin with smaller parameters."
        if largest is None or most[largest] <= USUAL_INPUTS else
        f"{largest!r} has numbers up to {most[largest]:.4g}: unless the model scales it, divide it "
        "by that, or standardise each column. Otherwise lower the client learning rate."
    )
    return (
        f"The training loss of round {number} is {loss:.4g}, {loss / guess:.0f} times that of "
        f"guessing one of {classes} classes (ln {classes} = {guess:.2f}). {cure}"
    )


def _classes(task: Task) -> int:
    """C if the task's model classifies into C classes; 2 for a sigmoid; otherwise 0."""
    model = task.model
    if not {"accuracy", "loss"} <= model.metrics.keys():
        return 0
    one = {
        name: jax.ShapeDtypeStruct((1, *array.shape[1:]), canonicalize_dtype(array.dtype))
        for name, array in task.train.arrays.items()
    }
    params = jax.eval_shape(model.init, jax.random.key(0))
    found = jax.eval_shape(
        functools.partial(call_outputs, model.outputs), params, one,
        jax.ShapeDtypeStruct((1,), bool),
    )
    shape = getattr(found, "shape", ())
    made = recipe(model)
    if len(shape) == 1 or (made is not None and made.arguments.get("activation") == "sigmoid"):
        return 2
    return shape[1] if len(shape) == 2 and shape[1] > 1 else 0
