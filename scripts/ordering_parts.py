"""What the claims of `ordering_claims` are made of: types, measures, and changes of the data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

import fedax
from board_tasks import Board

L2 = 1e-3

Setting = dict[str, Any]
Found = dict[str, float]


class Trained(NamedTuple):
    """A run: its task, method and result, and the setting."""

    task: fedax.Task
    algorithm: fedax.FederatedAlgorithm
    result: fedax.TrainResult
    setting: Setting
    target: float


class Side(NamedTuple):
    """One of the two methods.

    Attributes:
      name: in the page.
      make: (model, **setting, **training) -> the algorithm.
      grid: the settings that are tried.
      measure: what a run comes to.
      model: the task's model -> the one that this method trains.
    """

    name: str
    make: Callable[..., fedax.FederatedAlgorithm]
    grid: Mapping[str, Sequence[Any]]
    measure: Callable[[Trained], Found]
    model: Callable[[fedax.Model], fedax.Model] = lambda model: model


class Condition(NamedTuple):
    """What must hold of a metric.

    Attributes:
      metric: of `Side.measure`; the first condition's also chooses the settings.
      higher: whether higher is better.
      unit: key of `LEAST`.
      most_behind: None: the first method must be ahead. A number: in the mean it may be behind by
        so much.
    """

    metric: str
    higher: bool = True
    unit: str = "accuracy"
    most_behind: float | None = None


class Ordering(NamedTuple):
    """A claim.

    Attributes:
      paper, claim: who says what.
      first, second: the method that is ahead, and the other.
      conditions: all must hold.
      board: the data and the runs; `load` takes `partition_seed`.
      change: (task, seed) -> the task, after the division in training, validation and test data.
    """

    paper: str
    claim: str
    first: Side
    second: Side
    conditions: tuple[Condition, ...]
    board: Board
    change: Callable[[fedax.Task, int], fedax.Task] = lambda task, _: task


def of_server(run: Trained) -> Found:
    """Accuracies of the server's model on the clients' test examples."""
    return accuracies(fedax.evaluate_clients(
        run.task.model, run.result.params, _test(run.task)
    ))


def of_server_and_sent(run: Trained) -> Found:
    """Accuracy on all test examples, and how many bytes a client uploads a round."""
    sent = fedax.communication(run.algorithm, run.task.model, run.task.train.client_at(0))
    return {"accuracy": of_server(run)["accuracy"], "bytes uploaded": float(sent.bytes_up)}


def of_own(run: Trained) -> Found:
    """Accuracies of the clients' own models on their own test examples."""
    return accuracies(fedax.evaluate_own_models(run.task, run.algorithm, run.result.state))


def after_a_step(run: Trained) -> Found:
    """Accuracies after one gradient step of each client on all of its training examples."""
    return accuracies(fedax.evaluate_personalized(
        run.task, run.result.params, client_learning_rate=run.setting["inner_learning_rate"],
        num_local_steps=1, batch_size=int(run.task.train.client_sizes.max()),
    ))


def accuracies(clients: fedax.ClientMetrics) -> Found:
    """Over all examples, over clients that count alike, over the worst tenth; their deviation."""
    return {
        "accuracy": clients.overall()["accuracy"],
        "mean accuracy": clients.worst(1.0)["accuracy"],
        "worst tenth": clients.worst()["accuracy"],
        "deviation": float(np.nanstd(clients["accuracy"])),
    }


def over_rounds(run: Trained) -> Found:
    """Rounds until the target (one more than there are if never); accuracy in the last ten."""
    curve = np.array(run.result.history["test_accuracy"], float)
    reached = np.flatnonzero(curve >= run.target)
    return {
        "rounds": float(reached[0] + 1 if len(reached) else len(curve) + 1),
        "accuracy of the last ten rounds": float(curve[-10:].mean()),
    }


def objective(run: Trained) -> Found:
    """The mean training loss of the clients, with the regulariser."""
    params = run.result.params
    loss = fedax.evaluate_clients(run.task.model, params, run.task.train)["loss"].mean()
    squares = sum(float((leaf.astype(float) ** 2).sum()) for leaf in jax.tree.leaves(params))
    return {"objective": float(loss + L2 / 2 * squares)}


def _test(task: fedax.Task) -> fedax.FederatedDataset:
    assert task.test is not None
    return task.test


def _changed(
    data: fedax.FederatedDataset, change: Callable[[int, dict[str, Any]], dict[str, Any]]
) -> fedax.FederatedDataset:
    return fedax.FederatedDataset.from_clients({
        str(name): change(number, {key: np.asarray(rows) for key, rows in client.items()})
        for number, (name, client) in enumerate(
            zip(data.client_names, map(data.client_at, range(data.num_clients)), strict=True)
        )
    })


def noisy(task: fedax.Task, seed: int) -> fedax.Task:
    """Annotators whose labels are random in 0, 20, 40 and 100% of the training examples."""
    draws = np.random.default_rng(seed)

    def change(number: int, client: dict[str, Any]) -> dict[str, Any]:
        wrong = draws.random(len(client["y"])) < (0.0, 0.2, 0.4, 1.0)[number % 4]
        random = draws.integers(0, 10, len(client["y"])).astype(client["y"].dtype)
        return {**client, "y": np.where(wrong, random, client["y"])}

    return task._replace(train=_changed(task.train, change))


def rotated(task: fedax.Task, seed: int) -> fedax.Task:
    """Client i's images are turned by i quarters, in all parts."""
    del seed

    def change(number: int, client: dict[str, Any]) -> dict[str, Any]:
        turned = np.rot90(client["x"], number % 4, axes=(1, 2))
        return {**client, "x": np.ascontiguousarray(turned)}

    return task._replace(train=_changed(task.train, change), test=_changed(_test(task), change))


def turned_after_training(task: fedax.Task, seed: int) -> fedax.Task:
    """A model that was trained on the images of the first half of the clients, for the others,
    whose images are turned by a quarter.
    """
    half = task.train.num_clients // 2
    upright = task._replace(train=task.train.take(np.arange(half)), test=None)
    base = fedax.train(
        upright, fedax.centralised(task.model, 0.1, batch_size=20, num_local_epochs=1),
        num_rounds=30, cohort_size=half, seed=seed, evaluate_every=0, progress=False,
    ).params
    others = np.arange(half, task.train.num_clients)
    turned = [
        _changed(data.take(others), lambda _, client: {
            **client, "x": np.ascontiguousarray(np.rot90(client["x"], 1, axes=(1, 2)))
        }) for data in (task.train, _test(task))
    ]
    model = task.model._replace(init=lambda key: base)  # noqa: ARG005
    return task._replace(model=model, train=turned[0], test=turned[1])


def regularised(task: fedax.Task, seed: int) -> fedax.Task:
    """The loss plus L2 / 2 times the squared norm of the parameters, as a strongly convex one."""
    del seed
    plain = task.model.loss

    def loss(params: Any, batch: Any, key: Any) -> Any:
        losses, weights = plain(params, batch, key)
        squares = sum((leaf**2).sum() for leaf in jax.tree.leaves(params))
        return losses + L2 / 2 * squares, weights

    return task._replace(model=task.model._replace(loss=loss))
