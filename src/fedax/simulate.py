"""The only round loop: sample a cohort, read its data, run the round, evaluate, report."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any, NamedTuple, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from fedax.algorithm import FederatedAlgorithm, Model, Params, PyTree
from fedax.client_store import ClientStore
from fedax.cohort import RoundInfo, run_rounds
from fedax.communication import communication
from fedax.data.cohort_data import NOBODY, CohortData, CohortReader
from fedax.data.federated_dataset import FederatedDataset
from fedax.dissimilarity import dissimilarity
from fedax.evaluation import Evaluator
from fedax.history import History
from fedax.mesh import REPLICATED, deal, one_copy, replicate
from fedax.sampling import Available, Cohort, Sampler, Sampling, sampler
from fedax.validate import check_count, unknown

# On so many clients, and examples of each, the diagnostics estimate dissimilarity.
MEASURED_CLIENTS = 5
MEASURED_EXAMPLES = 32
# Rounds that go to the device together: at most so many, and for about so long.
MOST_ROUNDS = 64
DISPATCH_SECONDS = 0.05


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
        weight), `num_rejected`, `num_dropped`, `seconds`, on evaluation rounds `test_*`, and what
        the algorithm and the diagnostics report. Means over nobody are NaN.
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
      a batch gains nothing (docs/log.md), the whole cohort elsewhere.
    state: where to go on from, left as it is (client states are copied); None, the default,
      starts afresh.
    sampling, available, dropout: who is asked, who can be reached and how many drop out, see
      `fedax.sampling.sampler`; by default cohorts are uniform without replacement, everyone can
      be reached, and nobody drops out.
    state_every: rounds between reports with a state, default 1; the last round's always has one.
      Short rounds in between go to the device together, up to 64 at a time, which saves what a
      dispatch costs and changes no bit. Algorithms with client states go round by round.
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
        return settings

    @property
    def chunk(self) -> int:
        if self.clients_per_chunk is None:
            return 1 if jax.default_backend() == "cpu" else self.cohort_size
        return self.clients_per_chunk


def simulate(
    task: Task,
    algorithm: FederatedAlgorithm,
    *,
    num_rounds: int,
    **options: Unpack[SimulateOptions],
) -> Iterator[RoundReport]:
    """Runs rounds one by one and yields a report after each.

    A round depends on the state, the seed and its own index only. So two runs with one seed are
    identical to the bit, and so is one that was stopped and goes on from its state.

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


class _Prepared(NamedTuple):
    """Rounds that the host has made ready: who takes part, and their data on the device."""

    first: int  # round_index of the first
    count: int
    client_ids: np.ndarray  # [rounds, cohort_size], of which `count` are meant
    dropped_at: np.ndarray
    data: CohortData


class _Pace:
    """How many rounds go to the device together: so many as last about DISPATCH_SECONDS."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.count = 1
        self._warm = False

    def learn(self, seconds: float, count: int) -> None:
        """Takes notice of a dispatch; the first one compiled."""
        if self._warm:
            wanted = int(DISPATCH_SECONDS * count / max(seconds, 1e-9))
            self.count = max(1, min(wanted, 2 * self.count, self.most))
        self._warm = True


def _rounds(
    task: Task,
    algorithm: FederatedAlgorithm,
    num_rounds: int,
    settings: _Settings,
    data: FederatedDataset,
    draw: Sampler,
    state: TrainingState,
) -> Iterator[RoundReport]:
    mesh = settings.mesh
    reader = CohortReader(data, mesh=mesh)
    few = reader if mesh is None else CohortReader(data, 0)  # for the diagnostics' clients
    sizes = data.client_sizes  # computed anew at each access
    every = settings.evaluate_every
    evaluator = Evaluator(task.model, task.test) if task.test and every != 0 else None
    key = jax.random.fold_in(_run_key(settings.seed), 1)
    step = jax.jit(
        functools.partial(
            run_rounds, algorithm,
            clients_per_chunk=settings.chunk, diagnostics=settings.diagnostics, mesh=mesh,
        ),
        out_shardings=None if mesh is None else NamedSharding(mesh, REPLICATED),
        donate_argnums=(0,) if settings.donate else (),
    )
    measure = jax.jit(
        functools.partial(
            dissimilarity, task.model, max_examples=MEASURED_EXAMPLES, num_iterations=3
        )
    )
    sent = None
    if settings.diagnostics:
        sent = communication(algorithm, task.model, task.train.client(0))
    keeps_states = state.client_store.holds_anything
    pace = _Pace(1 if keeps_states or settings.state_every == 1 else MOST_ROUNDS)
    if settings.donate:  # the caller's own state is left alone
        state = state._replace(server_state=jax.tree.map(jnp.copy, state.server_state))
    state = state._replace(server_state=replicate(state.server_state, mesh))
    key = replicate(key, mesh)

    def evaluates(round_number: int) -> bool:
        return every != 0 and bool(
            round_number == num_rounds or (every and round_number % every == 0)
        )

    def arrange(cohort: Cohort) -> Cohort:
        """Like sizes share a chunk, and every device of a mesh has its share of all."""
        order = np.argsort(sizes[cohort.client_ids], kind="stable")
        dealt = deal(len(order), mesh)
        places = order[np.minimum(dealt, len(order) - 1)]
        dropped_at = np.where(dealt < len(order), cohort.dropped_at[places], NOBODY)
        return Cohort(cohort.client_ids[places], dropped_at)

    def prepare(first: int) -> _Prepared | None:
        """As many rounds as go together: up to one after which something is wanted."""
        if first >= num_rounds:
            return None
        count = 1
        while count < pace.count and not (
            first + count == num_rounds
            or (first + count) % settings.state_every == 0
            or evaluates(first + count)
        ):
            count += 1
        cohorts = [draw(first + i, len(algorithm.exchanges)) for i in range(count)]
        ids, dropped_at = (np.stack(rows) for rows in zip(*map(arrange, cohorts), strict=True))
        fill = np.minimum(np.arange(pace.most), count - 1)  # one program, however many there are
        return _Prepared(first, count, ids, dropped_at, reader(ids, dropped_at, fill))

    def report(
        prepared: _Prepared, place: int, info: RoundInfo, seconds: float
    ) -> tuple[RoundReport, np.ndarray]:
        """What one of the rounds says, and which of its clients did all they should."""
        number = prepared.first + place + 1
        ids, dropped_at = prepared.client_ids[place], prepared.dropped_at[place]
        rejected, dropped = (
            [data.name(int(i)) for i in ids[which]] for which in (~info.accepted, info.dropped)
        )
        done = info.accepted & (dropped_at >= len(algorithm.exchanges))
        if (rejected and not done.any()) or not info.finite:
            raise DivergedError(_diverged(number, rejected, info))
        metrics = _metrics(number, info)
        if sent is not None:
            metrics["bytes_down"], metrics["bytes_up"] = sent.with_cohort(dropped_at)
        metrics["seconds"] = seconds
        return RoundReport(metrics, rejected, dropped, None), done

    with ThreadPoolExecutor(1, "fedax-data") as thread:
        prepared = prepare(int(state.server_state.round_index))
        while prepared is not None:
            start = time.perf_counter()
            ids = prepared.client_ids[0]
            server_state, client_states, infos = step(
                state.server_state, state.client_store.read(ids), prepared.data,
                jnp.int32(prepared.count), key,
            )
            # While the device works.
            following = thread.submit(prepare, prepared.first + prepared.count)
            infos = jax.device_get(infos)
            seconds = time.perf_counter() - start
            pace.learn(seconds, prepared.count)
            for place in range(prepared.count):
                info = jax.tree.map(lambda leaf, place=place: leaf[place], infos)
                found, done = report(prepared, place, info, seconds / prepared.count)
                if place < prepared.count - 1:
                    yield found
            keeps = done & (np.asarray(prepared.data.repeats[0]) == 0) if keeps_states else done
            if keeps_states and not keeps.all():  # the others' are as before the round, or nobody's
                client_states = jax.tree.map(
                    lambda leaf, keeps=keeps: np.asarray(leaf)[keeps], client_states
                )
            if keeps_states:
                state.client_store.write(ids[keeps], client_states)
            state = TrainingState(server_state, state.client_store)
            number = prepared.first + prepared.count
            start = time.perf_counter()
            metrics = found.metrics
            if evaluator and evaluates(number):
                results = evaluator.overall(one_copy(server_state.params, mesh))
                metrics |= {f"test_{name}": value for name, value in results.items()}
            if settings.diagnostics and evaluates(number):
                similar = measure(
                    one_copy(server_state.params, mesh),
                    _measured(few, prepared.client_ids[-1], done), one_copy(key, mesh),
                )
                metrics |= {name: float(value) for name, value in similar._asdict().items()}
            if evaluates(number):
                metrics["evaluation_seconds"] = time.perf_counter() - start
            wanted = number % settings.state_every == 0 or number == num_rounds
            yield found._replace(state=state if wanted else None)
            prepared = following.result()


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
    return TrainResult(state.server_state.params, history, state)


def _measured(reader: CohortReader, client_ids: np.ndarray, done: np.ndarray) -> CohortData:
    """A few of the clients that finished the round, evenly from the small to the large."""
    finished = client_ids[done]
    most = min(MEASURED_CLIENTS, len(done))
    count = min(most, len(finished))
    few = np.full(most, client_ids[0])  # always as many, so that nothing compiles again
    few[:count] = finished[np.linspace(0, len(finished) - 1, count).round().astype(int)]
    cohort = reader(few)
    present = jnp.asarray(np.arange(most) < count)
    return dataclasses.replace(cohort, num_examples=jnp.where(present, cohort.num_examples, 0))


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
