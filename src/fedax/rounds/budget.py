"""What a run of `fedax.private` guarantees, and the round after which its budget is spent."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from fedax.algorithm import FederatedAlgorithm
from fedax.algorithms.private import private
from fedax.factories import recipe
from fedax.privacy.accounting import check_cohort, checked_delta, epsilon
from fedax.privacy.accounting import num_rounds as rounds_within
from fedax.privacy.library import PrivacyError
from fedax.validate import quoted

ADJACENCY = "one client's uploads replaced by zero"


class Mechanism(NamedTuple):
    """What a guarantee depends on, besides the number of rounds.

    Attributes:
      noise_multiplier, delta, bands, budget: of `fedax.private`; the budget is its `epsilon`.
      cohort_size: the expected number of clients in a round.
      num_clients: N.
    """

    noise_multiplier: float
    delta: float
    bands: int
    budget: float | None
    cohort_size: int
    num_clients: int

    def epsilon(self, rounds: int) -> float:
        """What a number of rounds guarantees."""
        return epsilon(
            self.noise_multiplier, rounds, cohort_size=self.cohort_size,
            num_clients=self.num_clients, delta=self.delta, bands=self.bands,
        )

    def guarantee(self, rounds: int) -> dict[str, Any]:
        """The guarantee of some rounds, for a summary; an infinite epsilon is None."""
        reached = self.epsilon(rounds)
        return {
            "epsilon": reached if math.isfinite(reached) else None, "delta": self.delta,
            "budget": self.budget, "noise_multiplier": self.noise_multiplier, "bands": self.bands,
            "sampling": sampling_in_words(self.cohort_size, self.num_clients, self.bands),
            "sampling_probability": self.cohort_size / (self.num_clients // self.bands),
            "num_rounds": rounds, "adjacency": ADJACENCY,
        }


def sampling_in_words(cohort_size: int, num_clients: int, bands: int) -> str:
    """The sampling that a guarantee is for.

    Example:
      >>> sampling_in_words(100, 3400, 1)
      'Poisson: in each round a client takes part with probability 0.0294'
      >>> sampling_in_words(100, 3400, 4)
      'Poisson: every 4 rounds a client takes part with probability 0.118'
    """
    if bands == 1 and cohort_size == num_clients:
        return "full: all clients take part in every round"
    often = "in each round" if bands == 1 else f"every {bands} rounds"
    probability = cohort_size / (num_clients // bands)
    return f"Poisson: {often} a client takes part with probability {probability:.3g}"


class Budget(NamedTuple):
    """The last round within the budget, and why there are no more, in a sentence."""

    last_round: int
    why: str


def mechanism_of(
    algorithm: FederatedAlgorithm, num_clients: int, sampling: Any, cohort_size: int
) -> Mechanism | None:
    """The mechanism of a run; None if the algorithm is not private.

    Args:
      algorithm: of the run.
      num_clients: N.
      sampling, cohort_size: of the run.

    Raises:
      PrivacyError: no guarantee is known for such cohorts.

    Example:
      >>> import fedax
      >>> from fedax.models import character_lstm
      >>> algorithm = fedax.private(fedax.fedavg(character_lstm(16, 1)), noise_multiplier=1.0)
      >>> print(f"{mechanism_of(algorithm, 3400, 'poisson', 100).epsilon(500):.2f}")
      3.47
    """
    found = recipe(algorithm)
    if found is None or found.factory is not inspect.unwrap(private):
        if any(exchange.total for exchange in algorithm.exchanges):
            raise PrivacyError(
                "A server of this algorithm receives sums, as of fedax.private, but the algorithm "
                "is not fedax.private's, so no guarantee is known. Put private outside."
            )
        return None
    given = found.arguments
    bands = int(given["bands"])
    if sampling not in ("poisson", "full") or (sampling == "full" and bands > 1):
        valid = "poisson" if bands > 1 else "poisson' or 'full"
        raise PrivacyError(
            f"private with bands={bands} has a guarantee for sampling '{valid}', but sampling is "
            f"{quoted(sampling)}. Give sampling='poisson': each client then takes part by chance, "
            "cohort_size of them on average."
        )
    cohort_size = num_clients if sampling == "full" else int(cohort_size)
    check_cohort(cohort_size, num_clients, bands)
    delta = given["delta"]
    budget = given["epsilon"]
    return Mechanism(
        float(given["noise_multiplier"]),
        checked_delta(None if delta is None else float(delta), num_clients), bands,
        None if budget is None else float(budget), cohort_size, num_clients,
    )


def require_same_mechanism(mechanism: Mechanism | None, server_state: Any) -> None:
    """Raises a `PrivacyError` if earlier rounds had another noise or other cohorts.

    Their guarantee would not be that of this run's rounds.
    """
    if mechanism is None or int(server_state.round_index) == 0:
        return
    for name, before, now in (
        ("noise_multiplier", server_state.own.multiplier, mechanism.noise_multiplier),
        ("cohort_size", server_state.own.expected, mechanism.cohort_size),
    ):
        if not math.isclose(float(before), now, rel_tol=1e-6):
            raise PrivacyError(
                f"The state comes from rounds with {name} {float(before):g}, but {name} is now "
                f"{now:g}: their privacy would be miscounted. Continue with the same {name}."
            )


def budget_of(
    algorithm: FederatedAlgorithm, num_clients: int, sampling: Any, cohort_size: int,
    num_rounds: int,
) -> Budget | None:
    """The budget of a run; None if it has none, or one for all of its rounds.

    Args:
      algorithm, num_clients, sampling, cohort_size: as for `mechanism_of`.
      num_rounds: T.

    Raises:
      PrivacyError: as `mechanism_of`, or not even one round is within the budget.
    """
    mechanism = mechanism_of(algorithm, num_clients, sampling, cohort_size)
    if mechanism is None or mechanism.budget is None:
        return None
    if mechanism.epsilon(num_rounds) <= mechanism.budget:
        return None
    last = rounds_within(
        mechanism.budget, mechanism.noise_multiplier, cohort_size=mechanism.cohort_size,
        num_clients=num_clients, delta=mechanism.delta, bands=mechanism.bands,
    )
    if last == 0:
        raise PrivacyError(
            f"The budget is epsilon {mechanism.budget:g}, but one round with noise_multiplier "
            f"{mechanism.noise_multiplier:g} takes {mechanism.epsilon(1):.3g}. Give a larger "
            "noise_multiplier: fedax.privacy.noise_multiplier finds it."
        )
    return Budget(last, (
        f"Round {last} is the last within the privacy budget of epsilon {mechanism.budget:g}: "
        f"{last} rounds have {mechanism.epsilon(last):.4g}, with delta {mechanism.delta:.3g}."
    ))


def in_words(guarantee: Mapping[str, Any]) -> str:
    """The guarantee of a summary in words.

    Example:
      >>> in_words({"epsilon": 7.912, "delta": 1e-5})
      'epsilon 7.91 with delta 1e-05 for every client'
    """
    if guarantee["epsilon"] is None:
        return "no finite epsilon, so no guarantee"
    epsilon, delta = guarantee["epsilon"], guarantee["delta"]
    return f"epsilon {epsilon:.3g} with delta {delta:.3g} for every client"
