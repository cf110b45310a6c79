"""The only round loop: sample a cohort, read its data, run the round, evaluate, report."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any, NamedTuple, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from fedax.algorithm import FederatedAlgorithm, Model, Params, PyTree
from fedax.chunks import automatic_chunk
from fedax.client_store import ClientStore
from fedax.cohort import RoundInfo, run_rounds
from fedax.communication import communication
from fedax.data.cohort_data import CohortData, CohortReader
from fedax.data.federated_dataset import FederatedDataset
from fedax.dispatch import MOST_ROUNDS, Pace, Prepared, Preparer, as_here
from fedax.dissimilarity import dissimilarity
from fedax.evaluation import Evaluator
from fedax.history import History
from fedax.mesh import AXIS, REPLICATED, one_copy, replicate
from fedax.processes import lost_processes
from fedax.sampling import Available, Sampler, Sampling, sampler
from fedax.timing import Stopwatch
from fedax.validate import check_count, unknown

# On so many clients, and examples of each, the diagnostics estimate dissimilarity.
MEASURED_CLIENTS = 5
MEASURED_EXAMPLES = 32


class DivergedError(ArithmeticError):
    """After a round there is nothing finite to go on with."""


class Task(NamedTuple):
    """A learning problem over a population of clients.

    Attributes:
      model: what is trained.
      train: the clients' training examples.
      test: the clients' test examples, or None; may be another population.
      name: how the task is called.
      references: what to compare with, such as a baseline's metrics: description -> function
        that computes them, `test_*` name -> value.
    """

    model: Model
    train: FederatedDataset
    test: FederatedDataset | None = None
    name: str = "custom"
    references: Mapping[str, Callable[[], Mapping[str, float]]] = MappingProxyType({})


class TrainingState(NamedTuple):
    """All that a run needs to go on exactly, besides its configuration.

    Attributes:
      server_state: with `params` and `round_index`.
      client_store: the clients' states.
    """

    server_state: Any
    client_store: ClientStore


class RoundReport(NamedTuple):
    """What a round reports.

    Attributes:
      metrics: `round` (1 after the first), `train_loss`, `num_local_steps` (mean over the
        clients) and `total_local_steps` (their sum), `num_reports` (clients with a positive
        weight), `num_rejected`, `num_dropped`, on evaluation rounds `test_*`, and what the
        algorithm and the diagnostics report. Means over nobody are NaN. Times: `seconds` of the
        round without compiling, in it `data_seconds` of waiting for the clients' data,
        `compile_seconds`, and `evaluation_seconds` on evaluation rounds; rounds that went to the
        device together have equal parts.
      rejected: names of the clients whose upload was not finite and so weighed 0.
      dropped: names of the clients that dropped out of the round.
      state: after the round, or None, see `state_every`. The next round changes its client store
        in place.
    """

    metrics: dict[str, float]
    rejected: list[str]
    dropped: list[str]
    state: TrainingState | None


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


def initial_state(task: Task, algorithm: FederatedAlgorithm, seed: int = 0) -> TrainingState:
    """The state before the first round; parameters are drawn from the seed.

    Raises:
      TypeError: the algorithm is not one.
      ValueError: the seed is not a whole number >= 0, or the model has no parameters, or some
        that are not floating point arrays.
    """
    check_count("seed", seed, at_least=0)
    if not isinstance(algorithm, FederatedAlgorithm):
        raise TypeError(
            f"An algorithm is what a factory such as fedax.fedavg(model) gives, not a "
            f"{type(algorithm).__name__}."
        )
    params = task.model.init(jax.random.fold_in(_run_key(seed), 0))
    if not jax.tree.leaves(params):
        raise ValueError("The model's init gives no parameters, so there is nothing to train.")
    for leaf in jax.tree.leaves(params):
        if not jnp.issubdtype(getattr(leaf, "dtype", type(leaf)), jnp.floating):
            what = getattr(leaf, "dtype", type(leaf).__name__)
            raise ValueError(
                f"The model's init gives a parameter of type {what} and shape "
                f"{np.shape(leaf) if hasattr(leaf, 'dtype') else '()'}; parameters must be "
                "floating point arrays. Keep anything else in the functions that use them "
                "(Equinox: eqx.partition)."
            )
    params = _strong(params)
    store = ClientStore(
        _strong(algorithm.init_client(params)), population(task, algorithm).num_clients
    )
    return TrainingState(_strong(algorithm.init(params)), store)


class SimulateOptions(TypedDict, total=False):
    """How `simulate` runs, besides the number of rounds.

    cohort_size: clients a round, default 10.
    seed: >= 0, default 0; fixes the parameters' initial values, the cohorts and all local
      randomness.
    evaluate_every: rounds between evaluations on `task.test`; the last round is evaluated too.
      None, the default: the last round only. 0: never.
    clients_per_chunk: clients that train batched at a time. None, the default: 1 on a CPU, where
      a batch gains nothing (docs/log.md), elsewhere as many as the memory takes.
    state: where to go on from, left as it is (client states are copied); None, the default,
      starts afresh.
    sampling, available, dropout: who is asked, who can be reached and how many drop out, see
      `fedax.sampling.sampler`; by default cohorts are uniform without replacement, everyone can
      be reached, and nobody drops out.
    state_every: rounds between reports that need a state, default 1; the last round's always has
      one. Short rounds in between may go to the device together, up to 64 and for about 0.05 s,
      which saves what a dispatch costs and changes no bit; only the last of them has a state.
      Algorithms with client states go round by round, and so does a data set that is too large
      to stay on the device.
    donate: default False. True: a report's state is gone when the next one comes, so that memory
      holds one server state, not two.
    mesh: devices over which cohorts are spread, see `fedax.mesh.client_mesh`; None: one device.
    diagnostics: default False. True: every round also reports `client_drift`, `update_cosine`,
      `pseudo_gradient_norm` and `effective_server_step` (see `fedax.diagnostics`), `bytes_down`
      and `bytes_up` of all clients together (see `fedax.communication`), and evaluation rounds
      `gradient_dissimilarity` and `hessian_dissimilarity`, estimated on 5 of the clients that
      took part to the end and 32 examples of each (see `fedax.dissimilarity`).
    """

    cohort_size: int
    seed: int
    evaluate_every: int | None
    clients_per_chunk: int | None
    state: TrainingState | None
    sampling: Sampling | Callable[[int, int], np.ndarray]
    available: Available | None
    dropout: float
    state_every: int
    donate: bool
    mesh: Mesh | None
    diagnostics: bool


class _Settings(NamedTuple):
    """`SimulateOptions` with their defaults."""

    cohort_size: int = 10
    seed: int = 0
    evaluate_every: int | None = None
    clients_per_chunk: int | None = None
    state: TrainingState | None = None
    sampling: Sampling | Callable[[int, int], np.ndarray] = "uniform"
    available: Available | None = None
    dropout: float = 0.0
    state_every: int = 1
    donate: bool = False
    mesh: Mesh | None = None
    diagnostics: bool = False

    @classmethod
    def checked(cls, num_rounds: int, options: SimulateOptions) -> _Settings:
        for name in options:
            if name not in cls._fields:
                raise TypeError(unknown("option", name, ["num_rounds", *cls._fields]))
        settings = cls(**options)
        check_count("num_rounds", num_rounds, at_least=0)
        check_count("cohort_size", settings.cohort_size)
        check_count("seed", settings.seed, at_least=0)
        check_count("state_every", settings.state_every)
        if settings.evaluate_every is not None:
            check_count("evaluate_every", settings.evaluate_every, at_least=0)
        if settings.clients_per_chunk is not None:
            check_count("clients_per_chunk", settings.clients_per_chunk)
        mesh = settings.mesh
        if mesh is not None and (not isinstance(mesh, Mesh) or mesh.axis_names != (AXIS,)):
            raise ValueError(
                f"mesh must be None or what fedax.client_mesh(devices) gives, but is {mesh!r}."
            )
        return settings


def simulate(
    task: Task,
    algorithm: FederatedAlgorithm,
    *,
    num_rounds: int,
    **options: Unpack[SimulateOptions],
) -> Iterator[RoundReport]:
    """Runs rounds one by one and yields a report after each.

    A round depends on the state, the seed and its own index only. So two runs with one seed on as
    many devices are identical to the bit, and so is one that was stopped and goes on from its
    state.

    Args:
      task: model and data.
      algorithm: what the rounds do.
      num_rounds: T >= 0, the last round's number, counted from the beginning of training.
      **options: see `SimulateOptions`.

    Raises:
      ValueError: an argument is out of its range; the sentence quotes it.
      DivergedError: in some round no client sent a finite upload, or the server's parameters
        became infinite or NaN.

    Example:
      >>> import fedax
      >>> task = fedax.load_task("shakespeare", model="small")
      >>> algorithm = fedax.fedavg(task.model, 0.5, num_local_steps=1)
      >>> for report in fedax.simulate(task, algorithm, num_rounds=1, evaluate_every=0):
      ...     print(int(report.metrics["round"]), report.rejected)
      1 []
    """
    settings = _Settings.checked(num_rounds, options)
    data = population(task, algorithm)
    draw = sampler(
        "full" if algorithm.pooled else settings.sampling,
        data.client_sizes, settings.cohort_size, settings.seed,
        available=None if algorithm.pooled else settings.available,
        dropout=0.0 if algorithm.pooled else settings.dropout,
    )
    state = settings.state
    if state is None:
        state = initial_state(task, algorithm, settings.seed)
    state = TrainingState(state.server_state, state.client_store.copy())
    return _rounds(task, algorithm, num_rounds, settings, data, draw, state)


def population(task: Task, algorithm: FederatedAlgorithm) -> FederatedDataset:
    """The clients that the algorithm trains on: the task's, or their pool as one."""
    return task.train.pooled() if algorithm.pooled else task.train


def _rounds(
    task: Task,
    algorithm: FederatedAlgorithm,
    num_rounds: int,
    settings: _Settings,
    data: FederatedDataset,
    draw: Sampler,
    state: TrainingState,
) -> Iterator[RoundReport]:
    mesh, every = settings.mesh, settings.evaluate_every

    step = _Step(algorithm, settings)
    key = replicate(jax.random.fold_in(_run_key(settings.seed), 1), mesh)
    server_state, store = state
    if settings.donate:  # the caller's own is left alone
        server_state = jax.tree.map(jnp.copy, server_state)
    server_state = replicate(server_state, mesh)

    def evaluates(number: int) -> bool:
        return every != 0 and bool(number == num_rounds or (every and number % every == 0))

    def state_is_wanted(number: int) -> bool:
        return number == num_rounds or number % settings.state_every == 0

    reader = CohortReader(data, mesh=mesh)
    measure = _Measurements(task, algorithm, settings, reader, data)
    # Packed rows of several rounds would take the host's memory, and compile for each size.
    together = reader.is_resident and not store.holds_anything and settings.state_every > 1
    pace = Pace(MOST_ROUNDS if together else 1)
    prepare = Preparer(
        draw, len(algorithm.exchanges), reader, data.client_sizes, pace,
        lambda number: evaluates(number) or state_is_wanted(number), num_rounds, mesh,
    )
    thread = ThreadPoolExecutor(1, "fedax-data")
    try:
        following = thread.submit(as_here(prepare), int(server_state.round_index))
        while True:
            watch = Stopwatch()
            prepared = following.result()
            if prepared is None:
                return
            waiting = watch.lap()
            number = prepared.first + prepared.num_rounds
            following = thread.submit(as_here(prepare), number)  # while the device works
            ids = prepared.client_ids[0]
            server_state, client_states, infos = step(
                server_state, store.read(ids), prepared.data, np.int32(prepared.num_rounds), key
            )
            with lost_processes(number):
                infos = jax.device_get(infos)
            running = watch.lap()
            pace.learn(running.seconds - running.compiling, prepared.num_rounds)
            times = {
                "seconds": waiting.seconds + running.seconds - running.compiling,
                "data_seconds": waiting.seconds,
                "compile_seconds": running.compiling,
            }
            found = _reports(prepared, infos, times, len(algorithm.exchanges), data, measure)
            report, done = next(found)
            try:
                for later in found:
                    yield report
                    report, done = later
            except DivergedError:
                yield report  # the last one that went well
                raise
            if store.holds_anything:
                _keep(store, prepared, done, client_states)
            if evaluates(number):
                measure.evaluate(
                    report.metrics, one_copy(server_state.params), prepared.client_ids[-1],
                    done, one_copy(key),
                )
            yield report._replace(state=TrainingState(server_state, store))
    finally:
        if not sys.is_finalizing():  # nothing is left to wait with then
            thread.shutdown(wait=False, cancel_futures=True)


class _Step:
    """The compiled rounds; the first call chooses the chunks if nobody has."""

    def __init__(self, algorithm: FederatedAlgorithm, settings: _Settings) -> None:
        self._algorithm = algorithm
        self._settings = settings
        self._compiled: Any = None

    def __call__(
        self, server_state: Any, client_states: PyTree, cohorts: CohortData, *others: Any
    ) -> tuple[Any, PyTree, RoundInfo]:
        arguments = (server_state, client_states, cohorts, *others)
        if self._compiled is None:
            chunk, mesh = self._settings.clients_per_chunk, self._settings.mesh
            if chunk is None:
                share = cohorts.client_ids.shape[1] // (1 if mesh is None else mesh.size)
                chunk = automatic_chunk(self._program, arguments, share, jax.local_devices()[0])
            self._compiled = self._program(chunk)
        return self._compiled(*arguments)

    def _program(self, clients_per_chunk: int) -> Any:
        mesh = self._settings.mesh
        return jax.jit(
            functools.partial(
                run_rounds, self._algorithm, clients_per_chunk=clients_per_chunk,
                diagnostics=self._settings.diagnostics, mesh=mesh,
            ),
            out_shardings=None if mesh is None else NamedSharding(mesh, REPLICATED),
            donate_argnums=(0,) if self._settings.donate else (),
        )


def _keep(store: ClientStore, prepared: Prepared, done: np.ndarray, client_states: PyTree) -> None:
    """Stores the states of the clients that did all; the others' are as before, or nobody's."""
    keeps = np.flatnonzero(done & (np.asarray(prepared.data.repeats[0]) == 0))
    kept = [np.asarray(leaf)[keeps] for leaf in jax.tree.leaves(client_states)]
    states = jax.tree.unflatten(jax.tree.structure(client_states), kept)
    store.write(prepared.client_ids[0][keeps], states)


def _reports(
    prepared: Prepared,
    infos: RoundInfo,
    times: Mapping[str, float],
    num_exchanges: int,
    data: FederatedDataset,
    measure: _Measurements,
) -> Iterator[tuple[RoundReport, np.ndarray]]:
    """What the rounds say, and which of their clients did all they should; up to one gone wrong."""
    for place, (ids, dropped_at) in enumerate(
        zip(prepared.client_ids, prepared.dropped_at, strict=True)
    ):
        info: RoundInfo = jax.tree.map(lambda leaf, place=place: leaf[place], infos)
        number = prepared.first + place + 1
        done = info.accepted & (dropped_at >= num_exchanges)
        rejected, dropped = (
            [data.name(int(i)) for i in ids[which]] for which in (~info.accepted, info.dropped)
        )
        if (rejected and not done.any()) or not info.finite:
            raise DivergedError(_diverged(number, rejected, info))
        metrics = _metrics(number, info) | measure.sent(dropped_at)
        metrics |= {name: time / prepared.num_rounds for name, time in times.items()}
        yield RoundReport(metrics, rejected, dropped, None), done


class _Measurements:
    """What is measured between rounds: test metrics, and the diagnostics."""

    def __init__(
        self,
        task: Task,
        algorithm: FederatedAlgorithm,
        settings: _Settings,
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


def train(
    task: Task,
    algorithm: FederatedAlgorithm,
    *,
    num_rounds: int,
    on_round: Callable[[RoundReport], None] | None = None,
    **options: Unpack[SimulateOptions],
) -> TrainResult:
    """Trains for num_rounds rounds and returns the parameters and the history.

    Arguments and errors as for `simulate`; `on_round` is called with every report.

    Example:
      >>> import fedax
      >>> task = fedax.load_task("shakespeare", model="small")
      >>> algorithm = fedax.fedyogi(task.model, 1.0, 0.01, batch_size=4, num_local_steps=2)
      >>> result = fedax.train(task, algorithm, num_rounds=2, evaluate_every=0)
      >>> len(result.history)
      2
    """
    check_count("num_rounds", num_rounds, at_least=0)
    state = options.get("state")
    if state is None:
        state = initial_state(task, algorithm, options.get("seed", 0))
    options["state"] = state
    if on_round is None:  # nobody looks at the states in between
        options = {"state_every": max(num_rounds, 1), "donate": True, **options}
    history = History()
    for report in simulate(task, algorithm, num_rounds=num_rounds, **options):
        history.append(report.metrics)
        state = report.state or state
        if on_round is not None:
            on_round(report)
    params = one_copy(state.server_state.params)
    return TrainResult(params, history, state)


def _metrics(round_number: int, info: RoundInfo) -> dict[str, float]:
    means: Mapping[str, float] = {name: float(mean) for name, (mean, _) in info.info.items()}
    metrics: dict[str, float] = {"round": round_number, **means}
    if "num_local_steps" in info.info:
        metrics["total_local_steps"] = int(info.num_local_steps)
    return metrics | {
        "num_reports": int(info.num_reports),
        "num_rejected": int((~info.accepted).sum()),
        "num_dropped": int(info.dropped.sum()),
    }


def _diverged(round_number: int, rejected: list[str], info: RoundInfo) -> str:
    if info.finite:
        names = ", ".join(rejected[:3]) + (", ..." if len(rejected) > 3 else "")
        what = f"none of the {len(rejected)} clients ({names}) sent a finite upload"
    else:
        what = "the server's parameters are no longer finite"
    return (
        f"Round {round_number}: {what}, so training has diverged. Lower the client or the server "
        "learning rate, or look for NaN in the clients' data."
    )


def _strong(tree: PyTree) -> PyTree:
    """The tree with no weakly typed array, which would have the second round compile again."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.asarray(leaf).dtype), tree)


def _run_key(seed: int) -> jax.Array:
    # The implementation is named, so that a user's jax_default_prng_impl changes no number, and
    # NumPy spreads the seed, of which jax.random.key would keep 32 bits.
    words = np.random.SeedSequence(seed).generate_state(2, np.uint32)
    return jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")
