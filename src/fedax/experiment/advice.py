"""Advice for a run: what a quadratic model at its newest checkpoint says of gamma and K."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedax.algorithm import FederatedAlgorithm
from fedax.clients.local_training import LocalMessage, LocalTraining
from fedax.clients.minibatches import count_local_steps
from fedax.data.cohort_data import ClientData, CohortData, CohortReader
from fedax.experiment.build import algorithm_parts, algorithm_settings
from fedax.experiment.errors import ConfigError
from fedax.experiment.folder import RunError
from fedax.experiment.run import read_run
from fedax.measures.quadratic_model import HOLDS, AdviceRow, QuadraticModel, advise, quadratic_model
from fedax.report.tables import Table
from fedax.validate import check_count

# Their clients take plain gradient steps on their own losses and send the sum of these gradients
# or a multiple of it, so what they stop at is FedAvg's x*(gamma, K).
LIKE_FEDAVG = {
    "fedadabound", "fedadagrad", "fedadam", "fedamsgrad", "fedavg", "fedavgm", "fedopt", "fedsgd",
    "fedyogi", "local_sgd", "local_update", "lookahead",
}

CAVEATS = (
    "Compare the rows with each other. Gap, excess loss and sigma_c themselves are orders of "
    "magnitude: they depend on the damping and grow with the number of directions.",
    "The rows say what follows from this point, not what another run would do: training with "
    "another gamma goes where the curvature is another, often until gamma L is near 2.",
    "The model has full gradients of these clients' sampled examples: no noise of minibatches, no "
    "other clients, no third derivatives.",
)


class Around(NamedTuple):
    """A value with half the damping, with the damping, and with double."""

    half: float
    once: float
    double: float


class Advice(NamedTuple):
    """What a quadratic model says of a run; see `fedax.quadratic_model` for the words.

    Attributes:
      round_index: t, the rounds that the run has done.
      client_learning_rate, num_local_steps: gamma and K of round t. Of clients that take epochs K
        is the mean over those sampled, rounded.
      num_clients, num_directions, num_parameters: N, m and P.
      mu, L: extreme Ritz values of the sampled clients' Hessians, mu before lifting.
      negative_share, lifted_share: of the eigenvalues of the A_i.
      damping: smallest eigenvalue that the predictions use.
      agreement: real over predicted fall of the loss on the way to x*.
      distance: |x* - x|.
      predicted_fall: f(x) - f(x*) of the model.
      sigma_A: of the model.
      sigma_c, gap: of the model for gamma and K; by how much they are the damping's doing.
      rows: gamma and K, and half and double of each.
      notes: sentences on this run.
    """

    round_index: int
    client_learning_rate: float
    num_local_steps: int
    num_clients: int
    num_directions: int
    num_parameters: int
    mu: float
    L: float
    negative_share: float
    lifted_share: float
    damping: float
    agreement: float
    distance: float
    predicted_fall: float
    sigma_A: float  # noqa: N815 - the field's letters
    sigma_c: Around
    gap: Around
    rows: list[AdviceRow]
    notes: list[str]


def run_advice(
    folder: Path,
    *,
    num_clients: int = 10,
    max_examples: int = 64,
    num_directions: int = 20,
    seed: int = 0,
) -> Advice:
    """Measures a quadratic model at a run's newest checkpoint and asks it about gamma and K.

    Args:
      folder: a run folder; it is only read, and the run may go on meanwhile.
      num_clients: sampled uniformly from the training population, all of it if it is smaller.
      max_examples: of each at most.
      num_directions: of the model, at most.
      seed: of the sample. Another one shows how much depends on it.

    Raises:
      ConfigError: the run's algorithm has no client learning rate, or trains in one place.
      ValueError: a number is out of its range.
      RunError, CheckpointError: the folder is no run folder, or damaged, or the run's derivatives
        are not finite.
    """
    check_count("num_clients", num_clients)
    check_count("seed", seed, at_least=0)
    config, built, restored = read_run(folder)
    names = config.algorithm, config.algorithm_source
    if "client_learning_rate" not in algorithm_settings(*names) or built.algorithm.pooled:
        raise ConfigError(
            f"There is no advice for {config.algorithm}: "
            + ("it trains in one place." if built.algorithm.pooled
               else "it has no client_learning_rate.")
        )
    state = restored.state.server_state
    train, options = built.task.train, config.algorithm_options
    count = min(num_clients, train.num_clients)
    ids = np.random.default_rng(seed).choice(train.num_clients, count, replace=False)
    cohort = CohortReader(train)(np.sort(ids))
    message = _message(built.algorithm, state)
    gamma, K = float(message.client_learning_rate), _steps(message, options, cohort)
    base = None if config.algorithm_source else algorithm_parts(config.algorithm)[-1]
    weighting = options.get("weighting", "uniform" if base == "local_sgd" else "num_examples")
    try:
        quadratic = quadratic_model(
            built.task.model, state.params, cohort, jax.random.key(seed),
            num_directions=num_directions, max_examples=max_examples,
            batch_size=min(16, max_examples), weighting=weighting,
        )
    except ValueError as error:
        raise RunError(f"There is no quadratic model of {folder}: {error}") from None
    notes = []
    if base not in LIKE_FEDAVG or not _plain(options):
        notes.append(
            f"The clients of {config.algorithm}, as this run has it, do not just take gradient "
            "steps on their losses; this is what FedAvg with its gamma and K would do."
        )
    return _advice(quadratic, gamma, K, int(state.round_index), notes)


def _plain(options: Mapping[str, Any]) -> bool:
    """Whether local steps are gradient steps, whose gradients count alike."""
    return not options.get("proximal_weight") and not options.get("client_optimizer") and (
        options.get("gradient_weights", "all") == "all"
    )


def _message(algorithm: FederatedAlgorithm, state: Any) -> LocalMessage:
    """What the clients train with in the next round."""
    for exchange in algorithm.exchanges:
        found = jax.tree.leaves(
            exchange.broadcast(state), is_leaf=lambda part: isinstance(part, LocalMessage)
        )
        for part in found:
            if isinstance(part, LocalMessage):
                return part
    raise ConfigError("The run's algorithm does not train at its clients, so there is no advice.")


def _steps(message: LocalMessage, options: Mapping[str, Any], cohort: CohortData) -> int:
    """The mean number of local steps of these clients, at least 1."""
    everyone = ClientData(cohort.arrays, cohort.starts, cohort.num_examples, cohort.capacity)
    steps = count_local_steps(
        everyone,
        options.get("batch_size", LocalTraining._field_defaults["batch_size"]),
        options.get("num_local_epochs"),
        # maml keeps its own out of the message.
        options.get("num_local_steps") if message.num_local_steps is None
        else message.num_local_steps,
    )
    return max(1, round(float(np.mean(np.asarray(steps)))))


def _advice(
    quadratic: QuadraticModel, gamma: float, K: int, round_index: int, notes: list[str]
) -> Advice:
    clients = quadratic.population
    rows = advise(quadratic, gamma, K)
    half, double = (quadratic.with_damping(f * quadratic.damping) for f in (0.5, 2.0))
    if rows[0].relative_rate >= 2:
        notes = [*notes, f"gamma L = {rows[0].relative_rate:.3g} is above 2: along the steepest "
                 "direction of a client its local steps diverge in the model."]
    if not quadratic.agreement >= HOLDS:
        notes = [*notes, "No damping made the model hold: its numbers are of no use here."]
    elif quadratic.lifted_share > 0.5:
        notes = [*notes, "Most eigenvalues are lifted, so the predictions are the damping's doing."]
    return Advice(
        round_index, gamma, K, len(quadratic.matrices), len(quadratic.basis),
        quadratic.basis.shape[1],
        quadratic.mu, quadratic.L, quadratic.negative_share, quadratic.lifted_share,
        quadratic.damping, quadratic.agreement,
        float(np.linalg.norm(clients.minimiser)), -float(clients.loss(clients.minimiser)),
        clients.sigma_A,
        Around(half.population.sigma_c, clients.sigma_c, double.population.sigma_c),
        Around(advise(half, gamma, K)[0].gap, rows[0].gap, advise(double, gamma, K)[0].gap),
        rows, notes,
    )


def advice_tables(advice: Advice) -> list[Table]:
    """The advice as tables to print: what was measured, what follows, and what it is not."""
    a = advice
    label = (
        "A quadratic model of a problem that is not quadratic, at the current point (round "
        f"{a.round_index}), on {a.num_clients} sampled clients"
    )
    measured = [
        ["largest eigenvalue L of a client, at least", _text(a.L)],
        ["smallest eigenvalue mu of a client, at most", _text(a.mu)],
        ["share of eigenvalues that are negative", f"{a.negative_share:.0%}"],
        ["lifted to the damping", f"{_text(a.damping)} ({a.lifted_share:.0%} of them)"],
        ["directions, of parameters", f"{a.num_directions} of {a.num_parameters:,}"],
        ["distance from x to x*", _text(a.distance)],
        ["fall of the loss to x*, predicted", _text(a.predicted_fall)],
        ["fall of the loss to x*, real", _text(a.predicted_fall * a.agreement)],
        ["sigma_A", _text(a.sigma_A)],
        _damped("sigma_c", a.sigma_c, a.damping),
        _damped("gap", a.gap, a.damping),
    ]
    rows = [
        [
            _text(row.client_learning_rate), str(row.num_local_steps), _text(row.relative_rate),
            _text(row.gap, "diverges"), _text(row.excess_loss, "diverges"),
            _text(row.condition_number), _text(row.bound, "gamma L >= 1"), str(row.num_not_convex),
        ]
        for row in a.rows
    ]
    headings = ["gamma", "K", "gamma L", "gap", "excess loss", "condition", "Theorem 17",
                "clients not convex"]
    title = "FedAvg in the model: gap |x*(gamma, K) - x*|, excess loss f(x*(gamma, K)) - f(x*)"
    return [
        Table(label, ["measured", "value"], measured),
        Table(title, headings, rows),
        Table("What to make of it", ["note"], [[text] for text in (*a.notes, *CAVEATS)]),
    ]


def _damped(name: str, values: Around, damping: float) -> list[str]:
    """A row with the value, and if there is damping with what half and double of it would give."""
    if damping == 0:
        return [name, _text(values.once)]
    return [f"{name} at half, this and double damping", ", ".join(map(_text, values))]


def _text(value: float, otherwise: str = "none") -> str:
    return otherwise if np.isnan(value) else f"{value:.3g}"
