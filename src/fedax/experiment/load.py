"""A run on disk, read."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import jax

from fedax.algorithm import FederatedAlgorithm, Params
from fedax.data.describing import (
    MODEL,
    Describer,
    describe_task,
    digest,
    short,
)
from fedax.data.preparing import Table
from fedax.data.task import Task
from fedax.experiment import checkpoint
from fedax.experiment.folder import CONFIG, TABLE, RunError, read_run_config, read_summary
from fedax.experiment.metrics import read_history
from fedax.experiment.naming import made_again
from fedax.experiment.trust import is_own
from fedax.files.regular import read_file
from fedax.models.parameters import fitted
from fedax.outside.paths import expanded
from fedax.rounds.history import History
from fedax.rounds.state import TrainingState, initial_state
from fedax.tasks.registry import TASKS, load_task

# Of table.json.
MOST_BYTES = 2**26
GIVE_THEM = "create and pass both yourself: fedax.load_run(path, task=..., algorithm=...)."


def load_run(
    path: str | Path, *, task: Task | None = None, algorithm: FederatedAlgorithm | None = None
) -> LoadedRun:
    """Reads a run folder, whether the run is finished, was stopped or was killed.

    Data, model and checkpoints are read only when you use them: the history loads no data.

    Args:
      path: the folder, made by `fedax run` or by `fedax.train(..., out=path)`.
      task, algorithm: those of the run. Needed only for `task`, `algorithm` and `state` of a run
        that was made in Python from your own objects. None: loaded by name.

    Raises:
      RunError: if the folder does not exist or does not contain a run.

    Example:
      >>> import fedax, tempfile
      >>> task = fedax.load_task("quadratics")
      >>> out = tempfile.mkdtemp()
      >>> result = fedax.train(task, fedax.fedavg(task.model, 0.1), num_rounds=3, out=out)
      >>> run = load_run(out)
      >>> len(run.history), run.finished, run.task.name, len(run.algorithm.exchanges)
      (3, True, 'quadratics', 1)
    """
    return LoadedRun(expanded(path), task, algorithm)


class LoadedRun:
    """A run read from its folder, see `load_run`.

    Attributes:
      path: the folder.
      config: contents of config.json: every setting, and the versions of the libraries.
      history: the rounds so far. Those after the newest checkpoint are repeated when the run is
        continued.
      summary: contents of summary.json if the run is finished, else None.
    """

    def __init__(
        self, path: Path, task: Task | None, algorithm: FederatedAlgorithm | None
    ) -> None:
        self.path = path
        self.config: dict[str, Any] = read_run_config(path)
        self.history: History = read_history(path)
        self.summary: dict[str, Any] | None = read_summary(path)
        self._given_task = task
        self._given_algorithm = algorithm

    def __repr__(self) -> str:
        done = f"{len(self.history)} of {self.config['num_rounds']} rounds"
        state = "finished" if self.finished else "not finished"
        return (
            f"LoadedRun({self.config['algorithm']} on {self.config['task']}, {done}, {state}, "
            f"in {self.path})"
        )

    @property
    def finished(self) -> bool:
        """Whether the run reached its last round or stopped early."""
        return self.summary is not None

    @functools.cached_property
    def task(self) -> Task:
        """The task.

        Raises:
          RunError: if it cannot be loaded by name, or the given task is a different one.
        """
        if self._given_task is not None:
            if not self._is_the_task(self._given_task):
                raise RunError(
                    f"The given task is not the one of the run in {self.path}: its model or its "
                    "data differ."
                )
            return self._given_task
        if not self._of_python:
            return self._built.task
        name = self.config["task"]
        for model in TASKS[name].models if name in TASKS else ():
            task = load_task(name, model)
            if self._is_the_task(task):
                return task
        raise RunError(
            f"The task {name!r} of the run in {self.path} was created in Python and cannot be "
            "loaded by name. Pass it: fedax.load_run(path, task=...)."
        )

    @functools.cached_property
    def algorithm(self) -> FederatedAlgorithm:
        """The algorithm.

        Raises:
          RunError: if it cannot be created by name, or the given algorithm is a different one.
        """
        if not self._of_python:
            return self._given_algorithm or self._built.algorithm
        python, algorithm = self.config["python"], self._given_algorithm
        if algorithm is None:
            arguments = {"model": MODEL, **self.config["algorithm_options"]}
            description = {"factory": python["algorithm"] or "", "arguments": arguments}
            try:
                algorithm = made_again(description, self.task.model, own=is_own(self.config))
            except Exception as error:  # what a factory makes of arguments that anybody wrote
                raise RunError(
                    f"The algorithm {self.config['algorithm']!r} of the run in {self.path} cannot "
                    f"be created by name ({error}). Pass it: fedax.load_run(path, algorithm=...)."
                ) from None
        if python["method"] not in (  # fedax 0.22 and before left the defaults out
            digest(Describer(complete=complete)(algorithm)) for complete in (True, False)
        ):
            raise RunError(
                f"The given algorithm is not the one of the run in {self.path}, which is "
                f"{self.config['algorithm']}{short({'dict': self.config['algorithm_options']})}."
            )
        return algorithm

    @functools.cached_property
    def state(self) -> TrainingState:
        """The state of the newest complete checkpoint, or the initial state if there is none.

        Raises:
          RunError: as for `task` and `algorithm`, and if no checkpoint can be used.
        """
        initial = initial_state(self.task, self.algorithm, self.config["seed"])
        return checkpoint.restore_latest(self._checkpoints, initial, self._fingerprint).state

    @functools.cached_property
    def params(self) -> Params:
        """The parameters of the newest complete checkpoint, or the initial ones if there is none.

        They have the original dictionaries, lists and tuples, and the original classes if `task`
        was given, see `fedax.load_params`.

        Raises:
          RunError: if there are checkpoints, but none can be used.
        """
        stored = self._stored
        if stored is None or stored.params is None:
            return self.state.server_state.params
        return self._as_the_model(stored.params)

    @property
    def best_params(self) -> Params | None:
        """The best parameters by keep_best, up to the newest complete checkpoint, or None."""
        best = None if self._stored is None else self._stored.best
        return None if best is None else self._as_the_model(best.params)

    @property
    def best_round(self) -> int | None:
        """The round of `best_params`."""
        best = None if self._stored is None else self._stored.best
        return None if best is None else best.round

    @functools.cached_property
    def table(self) -> Table | None:
        """The preparation of the run's table, to apply to new data; None for other data.

        Raises:
          RunError: if the folder's table.json is damaged.
        """
        path = self.path / TABLE
        if not path.exists():
            return None
        try:
            return Table.from_json(read_file(path, MOST_BYTES))
        except (OSError, ValueError) as error:
            raise RunError(f"{path} cannot be read: {error}") from None

    @functools.cached_property
    def _stored(self) -> checkpoint.Stored | None:
        return checkpoint.read_latest(self._checkpoints, self._fingerprint)

    @functools.cached_property
    def _built(self) -> Any:
        from fedax.experiment import run  # noqa: PLC0415 - only to make it again
        from fedax.experiment.config import load_config  # noqa: PLC0415 - likewise

        return run.build(load_config(self.path / CONFIG, cure=GIVE_THEM))

    @property
    def _of_python(self) -> bool:
        return "python" in self.config

    @property
    def _checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def _fingerprint(self) -> str:
        return checkpoint.fingerprint(self.config)

    def _is_the_task(self, task: Task) -> bool:
        described = json.loads(json.dumps(describe_task(task)))
        return not self._of_python or described.items() <= self.config["python"].items()

    def _as_the_model(self, params: Params) -> Params:
        """Parameters in the containers that the given task's model has them in."""
        if self._given_task is None:
            return params
        like = self._given_task.model.init(jax.random.key(0))
        return fitted(params, like, f"The run in {self.path}", "the task's model")
