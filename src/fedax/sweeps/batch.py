"""Trains several settings together: one cohort, one program, one row of state each."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedax.algorithm import Array, FederatedAlgorithm, Params, PyTree
from fedax.data.cohort_data import CohortData, CohortReader
from fedax.data.task import Task
from fedax.devices.mesh import client_mesh, one_copy, replicate
from fedax.factories import partition
from fedax.measures.communication import communication
from fedax.mistakes.algorithm import like_twin, require_one_structure
from fedax.privacy import PrivacyError
from fedax.rounds.budget import budget_of
from fedax.rounds.client_store import ClientStore
from fedax.rounds.dispatch import MOST_ROUNDS, Pace, Preparer
from fedax.rounds.evaluation import Evaluator
from fedax.rounds.measurements import (
    add_evaluation,
    held_out,
    measurements_of_own,
    training_evaluator,
    training_loss,
)
from fedax.rounds.options import Settings
from fedax.rounds.own_models import OwnModels
from fedax.rounds.padding import check_loss
from fedax.rounds.simulate import cohorts_of
from fedax.rounds.state import initial_params, population, run_key, state_at
from fedax.rounds.turns import Turn, turns
from fedax.rounds.untrained import mean_loss
from fedax.sweeps.program import (
    AXIS,
    BatchInfo,
    program,
    stack_states,
    stacked,
    take_state,
)


class BatchState(NamedTuple):
    """All that a batch needs to continue.

    Attributes:
      server_state: leaves [settings, ...], but one `round_index`.
      client_store: of states with leaves [settings, ...].
      diverged: int [settings], the round in which a setting diverged, or 0.
      alive: bool [settings]; also False for settings that were given up.
    """

    server_state: Any
    client_store: ClientStore
    diverged: np.ndarray
    alive: np.ndarray


class BatchReport(NamedTuple):
    """Rounds of a batch that ran on the device together.

    Attributes:
      first: the first of them, from 1.
      metrics: name -> float64 [rounds, settings]; NaN if a setting has no value.
    """

    first: int
    metrics: dict[str, np.ndarray]


class Shared:
    """What all batches of a sweep need, made once: evaluators, first parameters and their losses.

    It keeps the tasks, by whose identity it knows them.
    """

    def __init__(self) -> None:
        self._evaluators: dict[Any, tuple[Task, list[tuple[str, Evaluator]]]] = {}
        self._untrained: dict[tuple[int, int], tuple[Task, float]] = {}
        self._training: dict[Any, tuple[Task, Evaluator | None]] = {}
        self._first: tuple[Task, int, Params] | None = None

    def initial_params(self, task: Task, seed: int) -> Params:
        """See `fedax.rounds.state.initial_params`; keeps those of the last task and seed only."""
        if self._first is None or self._first[0] is not task or self._first[1] != seed:
            self._first = task, seed, initial_params(task.model, seed)
        return self._first[2]

    def untrained_loss(self, task: Task, seed: int) -> float:
        """See `fedax.rounds.untrained.untrained_loss`."""
        key = id(task), seed
        if key not in self._untrained:
            self._untrained[key] = task, mean_loss(task, self.initial_params(task, seed))
        return self._untrained[key][1]

    def training_evaluator(
        self, task: Task, settings: Settings, devices: Sequence[Any]
    ) -> Evaluator | None:
        """See `fedax.rounds.measurements.training_evaluator`."""
        wanted = settings.evaluate_training and settings.evaluate_every != 0
        key = id(task), wanted, tuple(devices)
        if key not in self._training:
            self._training[key] = task, training_evaluator(task, settings, client_mesh(devices))
        return self._training[key][1]

    def evaluators(
        self, task: Task, settings: Settings, devices: Sequence[Any]
    ) -> list[tuple[str, Evaluator]]:
        """Of which data and on what: those of the last round, and before them that of the others.

        The others are evaluated on a sample, or on all examples, of the first part; see `held_out`.
        """
        sample = settings.evaluation_sample if settings.evaluate_every else None
        seed = None if sample is None else settings.seed
        redraws = settings.evaluation_redraw
        key = id(task), settings.evaluate_every != 0, sample, seed, redraws, tuple(devices)
        if key not in self._evaluators:
            parts = held_out(task) if settings.evaluate_every != 0 else {}
            mesh = client_mesh(devices)
            found = [(part, Evaluator(task.model, of, mesh=mesh)) for part, of in parts.items()]
            if found and sample is None:
                found = [found[0], *found]
            elif found:
                part, data = next(iter(parts.items()))
                found = [(part, Evaluator(
                    task.model, data, mesh=mesh, sample=sample, seed=settings.seed,
                    redraws=redraws,
                )), *found]
            self._evaluators[key] = task, found
        return self._evaluators[key][1]


class BatchTraining:
    """Trains settings of one structure together, round by round.

    Iterating runs the rounds and yields a `BatchReport` for those that ran on the device together.

    Args:
      task: model and data.
      algorithms: one per setting; they differ in numbers only.
      num_rounds: T.
      settings: how rounds are run. `state`, `mesh` and `donate` are ignored.
      varies: which of the structure's numbers may differ, so that several batches of a grid share
        one program; see `varying`.
      devices: devices over which settings are spread; the number of settings is a multiple of
        theirs.
      state: state to continue from; None: start from the beginning.
      goes_on: whether more rounds may follow, so that test data are not evaluated yet if there are
        validation data.
      shared: what it has in common with the sweep's other batches.
    """

    def __init__(
        self,
        task: Task,
        algorithms: Sequence[FederatedAlgorithm],
        num_rounds: int,
        settings: Settings,
        varies: Sequence[bool],
        devices: Sequence[Any],
        state: BatchState | None = None,
        *,
        goes_on: bool = False,
        shared: Shared | None = None,
    ) -> None:
        self._goes_on, self._shared = goes_on, shared or Shared()
        self._task, self._algorithm, self._settings = task, algorithms[0], settings
        self._num_rounds = num_rounds
        for algorithm in algorithms:
            budget = budget_of(
                algorithm, task.train.num_clients, settings.sampling, settings.cohort_size,
                num_rounds,
            )
            if budget is not None:
                raise PrivacyError(
                    f"{budget.why} A sweep trains all of its {num_rounds} rounds: give fewer, or "
                    "leave epsilon out."
                )
        self._withholds = any(exchange.total for exchange in self._algorithm.exchanges)
        self._data = population(task, self._algorithm)
        self._mesh = Mesh(np.array(devices), (AXIS,)) if len(devices) > 1 else None
        self._devices = devices
        self._algorithms = algorithms
        parts = [partition(algorithm) for algorithm in algorithms]
        self._batch = stacked([numbers for numbers, _ in parts], varies)
        self._program = program(
            parts[0][1], tuple(varies), len(self._algorithm.exchanges),
            settings.clients_per_chunk or 1, settings.diagnostics, self._mesh,
            task.model.sparse is not None,
        )
        self._numbers = [self._place(n, v) for n, v in zip(*self._batch, strict=True)]
        self._arrays: tuple[Any, Any] = (None, None)
        self.state = state or beginning(
            task, algorithms, self._shared.initial_params(task, settings.seed)
        )

    def give_up(self, places: Sequence[int]) -> None:
        """Freezes these settings of the batch after the last round."""
        alive = self.state.alive.copy()
        alive[list(places)] = False
        self.state = self.state._replace(alive=alive)

    def __iter__(self) -> Iterator[BatchReport]:
        settings, store = self._settings, self.state.client_store
        reader = CohortReader(self._data)
        evaluators = self._shared.evaluators(self._task, settings, self._devices)
        training = self._shared.training_evaluator(self._task, settings, self._devices)
        own = {} if settings.evaluate_every == 0 else measurements_of_own(
            self._task, self._algorithm, settings.seed, settings.clients_per_chunk, reader=reader
        )
        sent = None
        if settings.diagnostics:
            sent = communication(self._algorithm, self._task.model, self._task.train.client_at(0))
        together = (
            reader.is_resident and not store.holds_anything and settings.state_every > 1
        )
        pace = Pace(MOST_ROUNDS if together else 1)
        prepare = Preparer(
            cohorts_of(self._algorithm, self._data, settings), len(self._algorithm.exchanges),
            reader, self._data.client_sizes, pace, self._stops, self._num_rounds, None,
        )
        key = replicate(run_key(settings.seed, 1), self._mesh)
        round_index = int(self.state.server_state.round_index)
        with contextlib.closing(turns(
            self._step, self._placed(self.state.server_state), round_index, store, key, prepare,
            pace,
        )) as going:
            for turn in going:
                metrics = self._taken(turn)
                if sent is not None:
                    each = [
                        sent.with_cohort(row, {name: of[at] for name, of in metrics.items()})
                        for at, row in enumerate(turn.prepared.dropped_at)
                    ]
                    ran = ~np.isnan(metrics["num_reports"])
                    for name in ("bytes_down", "bytes_up"):
                        column = np.stack([np.broadcast_to(of[name], ran[0].shape) for of in each])
                        metrics[name] = np.where(ran, column, np.nan)
                if self._evaluates(turn.number):
                    for part, evaluator in self._due(evaluators, turn.number):
                        evaluator.redraw(turn.number)
                        self._evaluate(metrics, evaluator, part)
                        if part in own:
                            self._add(metrics, functools.partial(self._of_own, own[part]))
                    if training is not None:
                        self._add(metrics, lambda _, params: training_loss(training, params))
                first = turn.prepared.first + 1
                del turn  # as in `simulate`
                yield BatchReport(first, metrics)
                if not self.state.alive.any():
                    return

    def _step(
        self, server_state: Any, client_states: PyTree, cohorts: CohortData, *others: Any
    ) -> tuple[Any, PyTree, BatchInfo]:
        if self._mesh is not None:
            if self._arrays[0] is not cohorts.arrays:
                self._arrays = cohorts.arrays, replicate(cohorts.arrays, self._mesh)
            cohorts = cohorts.with_arrays(self._arrays[1])
        alive = self._place(jnp.asarray(self.state.alive), True)
        return self._program(server_state, self._numbers, alive, client_states, cohorts, *others)

    def _taken(self, turn: Turn) -> dict[str, np.ndarray]:
        """The metrics of a turn, whose state is the batch's from now on."""
        infos: BatchInfo = jax.tree.map(lambda leaf: leaf[: turn.prepared.num_rounds], turn.infos)
        sound = infos.sound
        wrong = infos.ran & ~sound
        diverged = np.where(
            wrong.any(0), turn.prepared.first + 1 + wrong.argmax(0), self.state.diverged
        )
        store = self.state.client_store
        turn.keep(store)
        self.state = BatchState(turn.server_state, store, diverged, self.state.alive & sound[-1])
        info = infos.info
        columns = {name: mean for name, (mean, _) in info.info.items()}
        if "num_local_steps" in columns:
            columns["total_local_steps"] = info.num_local_steps
        columns |= {} if self._withholds else {
            "num_reports": info.num_reports, "num_rejected": (~info.accepted).sum(2),
            "num_dropped": info.dropped.sum(2),
        }
        running = np.maximum(sound.sum(1, keepdims=True), 1) * turn.prepared.num_rounds
        columns |= {name: seconds / running for name, seconds in turn.times.items()}
        return {
            name: np.where(sound, np.broadcast_to(column, sound.shape), np.nan).astype(np.float64)
            for name, column in columns.items()
        }

    def _due(
        self, evaluators: list[tuple[str, Evaluator]], number: int
    ) -> list[tuple[str, Evaluator]]:
        """What evaluates a round."""
        if number < self._num_rounds:
            return evaluators[:1]
        return evaluators[1:2] if self._goes_on else evaluators[1:]

    def _evaluate(
        self, metrics: dict[str, np.ndarray], evaluator: Evaluator, part: str
    ) -> None:
        """Adds the metrics of a part for the settings that run, one after the other."""
        def found(_: int, params: Params) -> dict[str, float]:
            values: dict[str, float] = {}
            add_evaluation(values, evaluator, evaluator.per_client(params), part)
            return values

        self._add(metrics, found)

    def _of_own(self, measure: OwnModels, place: int, _: Params) -> dict[str, float]:
        """The metrics of the own models of a setting's clients."""
        state = one_copy(take_state(self.state.server_state, place))
        store = self.state.client_store
        return measure(self._algorithms[place], state, lambda client_ids: jax.tree.map(
            lambda leaf: leaf[:, place], store.read(client_ids)
        ))[1]

    def _add(
        self, metrics: dict[str, np.ndarray],
        measure: Callable[[int, Params], Mapping[str, float]],
    ) -> None:
        """Adds to the last round what is measured of the settings that run.

        Args:
          metrics: of the rounds.
          measure: (a setting's place, its server's model) -> metrics.
        """
        params = jax.device_get(self.state.server_state.params)
        shape = metrics["seconds"].shape
        for place in np.flatnonzero(self.state.alive).tolist():
            own = jax.tree.map(lambda leaf, place=place: jnp.asarray(leaf[place]), params)
            for name, value in measure(place, own).items():
                metrics.setdefault(name, np.full(shape, np.nan))[-1, place] = value

    def _evaluates(self, number: int) -> bool:
        every = self._settings.evaluate_every
        return bool(held_out(self._task)) and every != 0 and bool(
            number == self._num_rounds or (every and number % every == 0)
        )

    def _stops(self, number: int) -> bool:
        return self._evaluates(number) or number % self._settings.state_every == 0

    def _placed(self, server_state: Any) -> Any:
        """The state where it is needed, a copy, as the program takes it away."""
        return jax.tree.map(
            lambda leaf: self._place(jnp.array(leaf), leaf.ndim > 0), server_state
        )

    def _place(self, array: Array, spread: bool) -> Any:
        """An array of all settings on their devices, or one number on all of them."""
        if self._mesh is None:
            return array
        if not spread and array.weak_type:  # which Python's numbers keep on a mesh
            return array.item()
        spec = PartitionSpec(AXIS) if spread else PartitionSpec()
        return jax.device_put(array, NamedSharding(self._mesh, spec))


def beginning(
    task: Task, algorithms: Sequence[FederatedAlgorithm], params: Params
) -> BatchState:
    """The state of a batch before its first round; all settings start from these parameters."""
    states = [state_at(task, algorithm, params) for algorithm in algorithms]
    require_one_structure([(s.server_state, s.client_store.initial_state) for s in states])
    first, *others = (state.client_store.initial_state for state in states)
    clients = jax.tree.map(
        lambda *leaves: np.stack(leaves), first, *(like_twin(first, other) for other in others)
    )
    data = population(task, algorithms[0])
    check_loss(task.model, states[0].server_state.params, algorithms[0], data)
    store = ClientStore(clients, data.num_clients)
    none = np.zeros(len(algorithms), np.int64)
    return BatchState(
        stack_states([state.server_state for state in states]), store, none, none == 0
    )


def varying(numbers: Sequence[Sequence[Array]]) -> tuple[bool, ...]:
    """Which numbers of a structure differ between settings.

    Example:
      >>> varying([[jnp.asarray(0.1), jnp.asarray(0.9)], [jnp.asarray(0.3), jnp.asarray(0.9)]])
      (True, False)
    """
    return tuple(
        any(not np.array_equal(of_all[0], other) for other in of_all[1:])
        for of_all in zip(*numbers, strict=True)
    )


def regrouped(
    found: Sequence[tuple[BatchState, int]], task: Task, algorithms: Sequence[FederatedAlgorithm],
    params: Params,
) -> BatchState:
    """The state of a batch whose settings come from other batches, after the same round.

    Args:
      found: for each setting of the new batch, where it was.
      task, algorithms, params: of the new batch, as for `beginning`.
    """
    state = beginning(task, algorithms, params)
    store, stores = state.client_store, {id(one): one.client_store for one, _ in found}
    if store.holds_anything:
        known = [np.asarray(other.snapshot()["client_ids"]) for other in stores.values()]
        ids = np.unique(np.concatenate(known)).astype(np.int64)
        rows = {key: other.read(ids) for key, other in stores.items()}
        own = [
            jax.tree.map(lambda leaf, p=place: leaf[:, p], rows[id(one)]) for one, place in found
        ]
        store.write(ids, jax.tree.map(lambda *leaves: np.stack(leaves, axis=1), *own))
    return BatchState(
        stack_states([take_state(one.server_state, place) for one, place in found]), store,
        np.array([one.diverged[place] for one, place in found]),
        np.array([one.alive[place] for one, place in found]),
    )
