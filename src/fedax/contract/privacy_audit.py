"""An audit of a privacy wrapper: canary clients give a lower bound on its epsilon."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedax.algorithm import (
    Array,
    Exchange,
    FederatedAlgorithm,
    ModelUpdate,
    Params,
    Participation,
    Reply,
    stateless,
)
from fedax.data.cohort_data import ClientExamples, CohortReader
from fedax.data.federated_dataset import FederatedDataset
from fedax.mistakes.algorithm import require_algorithm
from fedax.privacy.library import require_libraries
from fedax.rounds.cohort import run_round
from fedax.validate import check_count, check_number, check_seed

# A canary uploads as much as it can, and claims that weight.
LARGE = 1e6
WEIGHT = 10.0
_CHUNK = 50


class PrivacyAudit(NamedTuple):
    """What an audit found.

    Attributes:
      epsilon: a lower bound, with the given confidence.
      present, absent: scores of canaries that took part and of those that did not.
    """

    epsilon: float
    present: np.ndarray
    absent: np.ndarray

    def __repr__(self) -> str:
        count = len(self.present) + len(self.absent)
        return f"PrivacyAudit(epsilon is at least {self.epsilon:.3g}, by {count:,} canaries)"


class _State(NamedTuple):
    params: Params
    round_index: Array


def audit_privacy(
    wrap: Callable[[FederatedAlgorithm], FederatedAlgorithm],
    *,
    delta: float,
    num_rounds: int = 1,
    num_exchanges: int = 1,
    bands: int = 1,
    num_canaries: int = 200,
    num_runs: int = 50,
    confidence: float = 0.95,
    seed: int = 0,
) -> PrivacyAudit:
    """A lower bound on the epsilon of a wrapper, from attacks that anyone could carry out.

    Every client is a canary with a coordinate of its own. Half of them, drawn at random, upload as
    much as they can in it, in every exchange of every round, and claim 10 times the others' weight;
    the other half upload 0. With `bands` b each client takes part in every b-th round, otherwise in
    all. The attacker sees what the server gets,
    adds it up by coordinate, and guesses from each sum who took part. If that goes well, epsilon
    cannot be small (Jagielski et al. 2020, "Auditing Differentially Private Machine Learning", by
    jax-privacy's `CanaryScoreAuditor`, with Clopper-Pearson bounds).

    For a right mechanism the bound is below `fedax.privacy.epsilon` with cohorts of N / b of N
    clients, except in one of 20 audits with the default confidence. A bound above it shows that the
    mechanism is broken.

    Args:
      wrap: the wrapper, such as `lambda method: fedax.private(method, clip=1.0)`.
      delta: in (0, 1), at which epsilon is bounded.
      num_rounds, num_exchanges: of the method inside, >= 1.
      bands: b >= 1, of correlated noise.
      num_canaries: clients, >= 2.
      num_runs: how often all of it is repeated, >= 1.
      confidence: in (0.5, 1).
      seed: >= 0.

    Returns:
      The bound, and the scores.

    Raises:
      PrivacyError: jax-privacy is not installed.
      ValueError: an argument is out of its range.

    Example:
      >>> import fedax
      >>> def wrap(method):
      ...     return fedax.private(method, clip=1.0, noise_multiplier=2.0)
      >>> found = fedax.audit_privacy(wrap, delta=1e-3, num_canaries=100, num_runs=10)
      >>> limit = fedax.privacy.epsilon(2.0, 1, cohort_size=100, num_clients=100, delta=1e-3)
      >>> 0 < found.epsilon < limit
      True
    """
    require_libraries()
    from jax_privacy.auditing import CanaryScoreAuditor  # noqa: PLC0415 - optional

    check_number("delta", delta, above=0, below=1)
    check_count("num_rounds", num_rounds)
    check_count("num_exchanges", num_exchanges)
    check_count("bands", bands)
    check_count("num_canaries", num_canaries, at_least=2)
    check_count("num_runs", num_runs)
    check_number("confidence", confidence, above=0.5, below=1)
    check_seed(seed)
    algorithm = wrap(_canaries(num_exchanges, bands))
    require_algorithm(algorithm, "audit_privacy(wrap)")
    drawn = np.random.default_rng(seed).permuted(
        np.tile(np.arange(num_canaries) % 2, (num_runs, 1)), axis=1
    )
    everyone = np.arange(num_canaries)

    @jax.jit
    def attacked(takes_part: Array, key: Array) -> Array:
        """The sum of what the server got, times the number of clients, by coordinate."""
        arrays = {"canary": jnp.asarray(everyone, jnp.int32), "takes_part": takes_part}
        cohort = reader(everyone).with_arrays(arrays)
        state = algorithm.init({"x": jnp.zeros(num_canaries, jnp.float32)})

        def one(_: Any, state: Any) -> Any:
            return run_round(
                algorithm, state, (), cohort, key, clients_per_chunk=min(_CHUNK, num_canaries)
            )[0]

        return jax.lax.fori_loop(0, num_rounds, one, state).params["x"] * num_canaries

    reader = CohortReader(FederatedDataset(
        {"canary": everyone.astype(np.int32), "takes_part": np.zeros(num_canaries, np.int32)},
        np.arange(num_canaries + 1),
    ))
    scores = np.stack([
        attacked(jnp.asarray(row, jnp.int32), jax.random.fold_in(jax.random.key(seed), run))
        for run, row in enumerate(drawn)
    ])
    present, absent = scores[drawn == 1], scores[drawn == 0]
    epsilon = CanaryScoreAuditor(present, absent).epsilon_clopper_pearson(1 - confidence, delta)
    return PrivacyAudit(float(epsilon), present, absent)


def _canaries(num_exchanges: int, bands: int) -> FederatedAlgorithm:
    """The method whose clients are canaries, and whose server adds up what it gets."""

    def init(params: Params) -> _State:
        return _State(params, jnp.zeros((), jnp.int32))

    def client(message: _State, state: Any, data: ClientExamples, key: Array) -> Reply:
        del key
        own = data.examples(jnp.zeros(1, jnp.int32))
        canary, x = own["canary"][0], jnp.zeros_like(message.params["x"])
        present = (own["takes_part"][0] > 0) & (message.round_index % bands == canary % bands)
        x = x.at[canary].set(jnp.where(present, LARGE, 0.0).astype(x.dtype))
        return Reply(ModelUpdate({"x": x}), jnp.asarray(WEIGHT), state, {})

    def server(state: _State, mean: ModelUpdate, participation: Participation) -> _State:
        del participation
        return state._replace(
            params=jax.tree.map(jnp.add, state.params, mean.pseudo_gradient)
        )

    exchange = Exchange(lambda state: state, client, server)
    return FederatedAlgorithm(init, stateless, (exchange,) * num_exchanges)
