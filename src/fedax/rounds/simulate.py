"""The only round loop: sample a cohort, read its data, run the round, evaluate, report."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple, Unpack

import jax
from jax.sharding import Mesh, NamedSharding

from fedax.algorithm import FederatedAlgorithm, PyTree
from fedax.data.cohort_data import CohortData, CohortReader
from fedax.data.federated_dataset import FederatedDataset
from fedax.data.task import Task
from fedax.devices.compiling import jit, require_jit
from fedax.devices.mesh import REPLICATED, one_copy, replicate, spread, where_kept
from fedax.devices.processes import are_several
from fedax.factories import PROGRAMS, Structure, partition
from fedax.mistakes.algorithm import require_algorithm
from fedax.privacy import PrivacyError
from fedax.rounds.budget import budget_of, mechanism_of, require_same_mechanism
from fedax.rounds.checks import check_examples, require_state, require_task
from fedax.rounds.chunks import automatic_chunk
from fedax.rounds.cohort import RoundInfo, run_rounds
from fedax.rounds.dispatch import MOST_ROUNDS, Pace, Preparer
from fedax.rounds.meanwhile import Meanwhile
from fedax.rounds.measurements import Measurements, held_out
from fedax.rounds.options import Settings, SimulateOptions
from fedax.rounds.padding import check_loss
from fedax.rounds.rejections import reason
from fedax.rounds.report import DivergedError, RoundReport, reports
from fedax.rounds.sampling import Sampler, sampler
from fedax.rounds.state import TrainingState, initial_state, population, run_key
from fedax.rounds.turns import turns
from fedax.signatures import with_options
from fedax.validate import options_checked, plain


@options_checked
@with_options
def simulate(
    task: Task,
    algorithm: FederatedAlgorithm,
    *,
    num_rounds: int,
    **options: Unpack[SimulateOptions],
) -> Iterator[RoundReport]:
    """Runs rounds one by one and yields a report after each.

    A round depends only on the state, the seed and its own index. So two runs with the same seed on
    the same number of devices are bit-identical, even if one was stopped and continued from its
    state.

    Args:
      task: model and data.
      algorithm: the algorithm to run.
      num_rounds: T >= 0, number of the last round, counted from the beginning of training.
      **options: see `SimulateOptions`.

    Raises:
      TypeError: if the task, the algorithm or the state has the wrong type.
      ValueError: if an argument is out of range.
      ModelError, AlgorithmError: before the first round, if a function of the model or the
        algorithm fails or returns something invalid, or the model rejects the data.
      DivergedError: if in some round no client sent a finite upload, or the server's parameters
        became infinite or NaN.

    Example:
      >>> import fedax
      >>> task = fedax.load_task("shakespeare", model="small")
      >>> algorithm = fedax.fedavg(task.model, 0.5, num_local_steps=1)
      >>> for report in fedax.simulate(task, algorithm, num_rounds=1, evaluate_every=0):
      ...     print(int(report.metrics["round"]), report.rejected)
      1 []
    """
    return _simulated(task, algorithm, num_rounds, options, copies=True)


def simulate_from(
    task: Task, algorithm: FederatedAlgorithm, num_rounds: int, options: SimulateOptions
) -> Iterator[RoundReport]:
    """As `simulate`, but `state` is given away: the clients' states are not copied first."""
    return _simulated(task, algorithm, num_rounds, options, copies=False)


def _simulated(
    task: Task, algorithm: FederatedAlgorithm, num_rounds: int, options: SimulateOptions, *,
    copies: bool,
) -> Iterator[RoundReport]:
    num_rounds = plain(num_rounds)
    require_task(task)
    require_algorithm(algorithm)
    settings = Settings.checked(num_rounds, options, task.train.num_clients)
    data = population(task, algorithm)
    draw = cohorts_of(algorithm, data, settings)
    budget = budget_of(
        algorithm, data.num_clients, settings.sampling, settings.cohort_size, num_rounds
    )
    if budget is not None:
        num_rounds = min(num_rounds, budget.last_round)
    state = settings.state
    if state is None:
        state = initial_state(task, algorithm, settings.seed)
    else:
        require_state(state, algorithm, data)
        require_same_mechanism(
            mechanism_of(algorithm, data.num_clients, settings.sampling, settings.cohort_size),
            state.server_state,
        )
    params = one_copy(state.server_state.params)
    check_examples(task.model, params, "task.train", task.train)
    check_loss(task.model, params, algorithm, data)
    for part, held in (held_out(task) if settings.evaluate_every != 0 else {}).items():
        check_examples(task.model, params, f"task.{part}", held)
    if copies:
        state = TrainingState(state.server_state, state.client_store.copy())
    return _rounds(task, algorithm, num_rounds, settings, data, draw, state)


def cohorts_of(
    algorithm: FederatedAlgorithm, data: FederatedDataset, settings: Settings
) -> Sampler:
    """Who takes part in which round."""
    mechanism = mechanism_of(
        algorithm, data.num_clients, settings.sampling, settings.cohort_size
    )
    measured = {
        "diagnostics": settings.diagnostics, "evaluate_training": settings.evaluate_training,
        "personalize_steps or personalize_epochs": settings.personalizes,
    }
    for name, wanted in measured.items():
        if wanted and mechanism is not None:
            raise PrivacyError(
                f"{name} measures the clients' training data without noise, which private "
                "withholds. Leave it out."
            )
    return sampler(
        "full" if algorithm.pooled else settings.sampling,
        data.client_sizes, settings.cohort_size, settings.seed,
        available=None if algorithm.pooled else settings.available,
        dropout=0.0 if algorithm.pooled else settings.dropout,
        groups=1 if mechanism is None else mechanism.bands,
    )


def _rounds(
    task: Task,
    algorithm: FederatedAlgorithm,
    num_rounds: int,
    settings: Settings,
    data: FederatedDataset,
    draw: Sampler,
    state: TrainingState,
) -> Iterator[RoundReport]:
    """The reports, from which those of sampled rounds are kept back until they are evaluated."""
    require_jit()  # the programs may be kept from before it was told so
    plan = _Plan(num_rounds, settings)
    reader = CohortReader(data, mesh=settings.mesh)
    params = one_copy(state.server_state.params)
    measure = Measurements(task, algorithm, settings, reader, data, params)
    measure.check(params)
    # Client states are changed in place. Several processes would keep back to different rounds.
    waits = measure.sample is None or state.client_store.holds_anything or are_several()
    rounds = _trained(task, algorithm, plan, data, draw, state, reader, measure, waits=waits)
    if measure.sample is not None and not waits and state.server_state.round_index < num_rounds:
        rounds = Meanwhile(
            measure.sample, measure.part, params, plan.is_sampled, plan.wants_state,
            donated=settings.donate,
        )(rounds)
    yield from rounds


class _Plan(NamedTuple):
    """What is wanted after which round, by its number."""

    num_rounds: int
    settings: Settings

    def evaluates(self, number: int) -> bool:
        every = self.settings.evaluate_every
        return every != 0 and bool(number == self.num_rounds or (every and number % every == 0))

    def is_sampled(self, number: int) -> bool:
        return self.evaluates(number) and number != self.num_rounds

    def wants_state(self, number: int) -> bool:
        return number == self.num_rounds or number % self.settings.state_every == 0


def _trained(
    task: Task,
    algorithm: FederatedAlgorithm,
    plan: _Plan,
    data: FederatedDataset,
    draw: Sampler,
    state: TrainingState,
    reader: CohortReader,
    measure: Measurements,
    *,
    waits: bool,
) -> Iterator[RoundReport]:
    """The rounds; `waits`: for the evaluation on a sample, too."""
    settings = plan.settings
    mesh = settings.mesh
    step = _Step(algorithm, settings, sparse=task.model.sparse is not None)
    key = replicate(run_key(settings.seed, 1), mesh)
    server_state, store = state
    if settings.donate:  # the caller's own is left alone
        server_state = jax.device_put(server_state, may_alias=False)
    server_state = replicate(server_state, mesh)

    def why(name: str) -> str:
        return reason(name, task.model, one_copy(server_state.params), data)

    # Packed rows of several rounds would take the host's memory, and compile for each size.
    # Of several processes each would find another number of rounds that pays.
    together = (
        reader.is_resident and not store.holds_anything and settings.state_every > 1
        and not are_several()
    )
    pace = Pace(MOST_ROUNDS if together else 1)
    prepare = Preparer(
        draw, len(algorithm.exchanges), reader, data.client_sizes, pace,
        lambda number: plan.evaluates(number) or plan.wants_state(number), plan.num_rounds, mesh,
    )
    with contextlib.closing(turns(
        step, server_state, int(server_state.round_index), store, key, prepare, pace
    )) as going:
        for turn in going:
            prepared, number = turn.prepared, turn.number
            server_state = turn.server_state
            found = reports(
                prepared, turn.infos, turn.times, len(algorithm.exchanges), data, why,
                any(exchange.total for exchange in algorithm.exchanges), measure.sent,
            )
            report, done = next(found)
            try:
                for later in found:
                    yield report
                    report, done = later
            except DivergedError:
                yield report  # the last one that went well
                raise
            turn.keep(store, done)
            del turn  # or the clients' states would be in memory during the next round
            found_of_clients = measure.evaluate(
                report.metrics, TrainingState(one_copy(server_state), store),
                prepared.client_ids[-1], done, one_copy(key), measure.due(
                    sampled=plan.is_sampled(number), waits=waits
                ), last=number == plan.num_rounds,
            ) if plan.evaluates(number) else {}
            yield report._replace(state=TrainingState(server_state, store), **found_of_clients)


class _Step:
    """The compiled rounds; the first call chooses the chunks if nobody has."""

    def __init__(
        self, algorithm: FederatedAlgorithm, settings: Settings, *, sparse: bool
    ) -> None:
        numbers, self._structure = partition(algorithm)
        self._numbers = numbers if settings.mesh is None else [
            # Python's numbers adapt to the dtype of what they meet, on a mesh as on one device.
            number.item() if number.weak_type else replicate(number, settings.mesh)
            for number in numbers
        ]
        self._settings, self._sparse = settings, sparse
        self._compiled: Any = None

    def __call__(
        self, server_state: Any, client_states: PyTree, cohorts: CohortData, *others: Any
    ) -> tuple[Any, PyTree, RoundInfo]:
        if self._settings.mesh is not None:
            client_states = spread(client_states, self._settings.mesh)
        arguments = (server_state, self._numbers, client_states, cohorts, *others)
        if self._compiled is None:
            chunk, mesh = self._settings.clients_per_chunk, self._settings.mesh
            if chunk is None:
                share = cohorts.client_ids.shape[1] // (1 if mesh is None else mesh.size)
                chunk = automatic_chunk(self._program, arguments, share, jax.local_devices()[0])
            self._compiled = self._program(chunk)
        return self._compiled(*arguments)

    def _program(self, clients_per_chunk: int) -> Any:
        settings = self._settings
        return _program(
            self._structure, clients_per_chunk, settings.diagnostics, settings.mesh,
            settings.donate, self._sparse,
        )


@functools.lru_cache(maxsize=PROGRAMS)
def _program(
    structure: Structure,
    clients_per_chunk: int,
    diagnostics: bool,
    mesh: Mesh | None,
    donate: bool,
    sparse: bool,
) -> Any:
    """The rounds of all algorithms of a structure, which their numbers tell apart."""

    def rounds(server_state: Any, numbers: list[jax.Array], *others: Any) -> Any:
        return run_rounds(
            structure(numbers), server_state, *others,
            clients_per_chunk=clients_per_chunk, diagnostics=diagnostics, mesh=mesh,
        )

    everywhere = None if mesh is None else NamedSharding(mesh, REPLICATED)
    rounds.__name__ = run_rounds.__name__  # as which profiles and kept programs have it
    return jit(
        rounds,
        newer_loops=sparse,
        out_shardings=None if mesh is None else (everywhere, where_kept(mesh), everywhere),
        donate_argnums=(0,) if donate else (),
    )
