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
    "Compare the rows with each other. The values of gap, excess loss and sigma_c are only orders "
    "of magnitude: they depend on the damping and grow with the number of directions.",
    "The rows predict what happens from this point, not what another run would do: training with "
    "another gamma reaches regions of other curvature, often until gamma L is near 2.",
    "The model uses full gradients of these clients' sampled examples. It ignores minibatch noise, "
    "other clients and third derivatives.",
)


class Around(NamedTuple):
    """A value with half the damping, with the damping, and with double."""

    half: float
    once: float
    double: float


class Advice(NamedTuple):
    """What a quadratic model predicts for a run; `fedax.quadratic_model` explains the terms.

    Attributes:
      round_index: t, the number of rounds done.
      client_learning_rate, num_local_steps: gamma and K of round t. For clients that train for
        epochs, K is the mean over the sampled clients, rounded.
      num_clients, num_directions, num_parameters: N, m and P.
      mu, L: extreme Ritz values of the sampled clients' Hessians, mu before damping.
      negative_share, lifted_share: shares of the eigenvalues of the A_i.
      damping: smallest eigenvalue that the predictions use.
      agreement: measured over predicted decrease of the loss on the way to x*.
      distance: |x* - x|.
      predicted_fall: f(x) - f(x*) of the model.
      sigma_A: of the model.
      sigma_c, gap: of the model for gamma and K, with half, this and double the damping.
      rows: gamma and K, and half and double of each.
      notes: sentences about this run.
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
    """Fits a quadratic model at a run's newest checkpoint, and predicts the effect of gamma and K.

    Args:
      folder: a run folder; it is only read, and the run may continue meanwhile.
      num_clients: number of clients, sampled uniformly from the training population.
      max_examples: maximum number of examples of each client.
      num_directions: maximum number of directions of the model.
      seed: seed of the sample. Another seed shows how much the result depends on it.

    Raises:
      ConfigError: if the run's method does not have a client learning rate, or pools all data.
      ValueError: if a number is out of range.
      RunError, CheckpointError: if the folder is not a run folder, is damaged, or the run's
        derivatives are not finite.
    """
    check_count("num_clients", num_clients)
    check_count("seed", seed, at_least=0)
    config, built, restored = read_run(folder)
    names = config.algorithm, config.algorithm_source
    if "client_learning_rate" not in algorithm_settings(*names) or built.algorithm.pooled:
        raise ConfigError(
            f"--run does not support {config.algorithm}: "
            + ("it trains on all data in one place." if built.algorithm.pooled
               else "it does not have a client_learning_rate.")
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
        raise RunError(f"Cannot fit a quadratic model to {folder}: {error}") from None
    notes = []
    if base not in LIKE_FEDAVG or not _plain(options):
        notes.append(
            f"Clients of {config.algorithm} in this run do more than gradient steps on their "
            "losses. The table shows what FedAvg with the same gamma and K would do."
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
    raise ConfigError("--run needs a method that trains on its clients; this run's does not.")


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
        notes = [*notes, f"gamma L = {rows[0].relative_rate:.3g} is above 2: in the model, local "
                 "steps diverge along a client's steepest direction."]
    if not quadratic.agreement >= HOLDS:
        notes = [*notes, "The model does not fit with any damping. Do not use its numbers."]
    elif quadratic.lifted_share > 0.5:
        notes = [*notes, "Most eigenvalues were raised to the damping, which thus determines the "
                 "predictions."]
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
        f"Quadratic approximation at the current point (round {a.round_index}), on "
        f"{a.num_clients} sampled clients"
    )
    measured = [
        ["largest eigenvalue L of a client, at least", _text(a.L)],
        ["smallest eigenvalue mu of a client, at most", _text(a.mu)],
        ["share of negative eigenvalues", f"{a.negative_share:.0%}"],
        ["damping (share of eigenvalues raised to it)",
         f"{_text(a.damping)} ({a.lifted_share:.0%})"],
        ["directions used, of all parameters", f"{a.num_directions} of {a.num_parameters:,}"],
        ["distance from x to x*", _text(a.distance)],
        ["decrease of the loss from x to x*, predicted", _text(a.predicted_fall)],
        ["decrease of the loss from x to x*, measured", _text(a.predicted_fall * a.agreement)],
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
        Table("How to read these numbers", ["note"], [[text] for text in (*a.notes, *CAVEATS)]),
    ]


def _damped(name: str, values: Around, damping: float) -> list[str]:
    """A row with the value, and if there is damping with what half and double of it would give."""
    if damping == 0:
        return [name, _text(values.once)]
    return [f"{name} with half, this and double the damping", ", ".join(map(_text, values))]


def _text(value: float, otherwise: str = "none") -> str:
    return otherwise if np.isnan(value) else f"{value:.3g}"
