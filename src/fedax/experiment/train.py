"""Training from Python."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import NamedTuple, Unpack

from fedax.algorithm import FederatedAlgorithm, Params
from fedax.data.task import Task
from fedax.devices.mesh import one_copy
from fedax.rounds.history import History
from fedax.rounds.options import SimulateOptions
from fedax.rounds.rejections import Rejections
from fedax.rounds.report import RoundReport
from fedax.rounds.simulate import simulate
from fedax.rounds.state import TrainingState, initial_state, population
from fedax.validate import check_count


class TrainResult(NamedTuple):
    """What `train` returns.

    Attributes:
      params: the trained parameters.
      history: the metrics of every round.
      state: to go on from, see `simulate`.
    """

    params: Params
    history: History
    state: TrainingState


def train(
    task: Task,
    algorithm: FederatedAlgorithm,
    *,
    num_rounds: int,
    on_round: Callable[[RoundReport], None] | None = None,
    **options: Unpack[SimulateOptions],
) -> TrainResult:
    """Trains for num_rounds rounds and returns the parameters and the history.

    Arguments and errors as for `simulate`; `on_round` is called with every report. A client whose
    upload is rejected in three rounds is named in a `RuntimeWarning`, with the reason.

    Example:
      >>> import fedax
      >>> task = fedax.load_task("shakespeare", model="small")
      >>> algorithm = fedax.fedyogi(task.model, 1.0, 0.01, batch_size=4, num_local_steps=2)
      >>> result = fedax.train(task, algorithm, num_rounds=2, evaluate_every=0)
      >>> len(result.history)
      2
    """
    check_count("num_rounds", num_rounds, at_least=0)
    if on_round is not None and not callable(on_round):
        raise TypeError(
            f"on_round must be a function of a fedax.RoundReport, but is {on_round!r}."
        )
    state = options.get("state")
    if state is None:
        state = initial_state(task, algorithm, options.get("seed", 0))
    options["state"] = state
    if on_round is None:  # nobody looks at the states in between
        options = {"state_every": max(num_rounds, 1), "donate": True, **options}
    history, start = History(), state
    rejections = Rejections(task.model, population(task, algorithm))
    for report in simulate(task, algorithm, num_rounds=num_rounds, **options):
        history.append(report.metrics)
        params = (report.state or start).server_state.params
        for sentence in rejections.add(report.rejected, params):
            warnings.warn(sentence, RuntimeWarning, stacklevel=2)
        state = report.state or state
        if on_round is not None:
            on_round(report)
    params = one_copy(state.server_state.params)
    return TrainResult(params, history, state)
