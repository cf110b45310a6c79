r"""The statements of Charles and Konečný 2020, one function each, named after it.

"On the Outsized Importance of Learning Rates in Local Update Methods", 2020. A function takes a
`fedax.theory.population.QuadraticPopulation` and the statement's symbols, checks the statement's
conditions (`fedax.theory.errors.ConditionError` names the one that is violated) and returns a
`fedax.theory.claims.Claim`, or a tuple of them: the left side exactly, the relation, and the right
side. If the published form is wrong, the corrected one is the default, and `printed=True` gives the
published form with its conditions. The docstring explains the error, and `docs/notebook/errata.md`
lists them all.

Theta_{1:K} = (1, ..., 1) is FedAvg, Theta_K = (0, ..., 0, 1) the last gradient only;
mu, L, kappa, sigma_A, sigma_c and G are the population's, f~ is the surrogate loss
(`fedax.theory.surrogate`).

Example:
  >>> from fedax.theory.errors import ConditionError
  >>> from fedax.theory.population import QuadraticPopulation
  >>> clients = QuadraticPopulation.from_centres([1.0, 2.0], [1.0, 0.5])
  >>> claim = theorem_17(clients, gamma=0.25, K=2)
  >>> round(claim.actual, 4), claim.relation, round(claim.bound, 4), claim.holds
  (0.0175, '<=', 0.2143, True)
  >>> try:
  ...     theorem_17(clients, gamma=0.6, K=2)
  ... except ConditionError as error:
  ...     print(error)
  Charles and Konečný 2020, Theorem 17 needs gamma < 1/L, but gamma = 0.6 and 1/L = 0.5.
"""

from fedax.theory.charles2020.auxiliary import lemma_30, lemma_31, lemma_34
from fedax.theory.charles2020.condition_numbers import (
    corollary_13,
    corollary_14,
    lemma_11,
    lemma_12,
    lemma_35,
)
from fedax.theory.charles2020.convergence import lemma_23, lemma_24, lemma_25, theorem_26
from fedax.theory.charles2020.decaying_rates import (
    Schedules,
    corollary_28,
    theorem_27,
    theorem_27_schedule,
    theorem_29,
    theorem_29_schedules,
)
from fedax.theory.charles2020.distance import (
    corollary_19,
    corollary_20,
    corollary_22,
    lemma_15,
    lemma_18,
    lemma_32,
    lemma_33,
    theorem_16,
    theorem_17,
    theorem_21,
)
from fedax.theory.charles2020.equivalence import lemma_1, lemma_2, theorem_3, theorem_4
from fedax.theory.charles2020.spectrum import (
    lemma_5,
    lemma_6,
    lemma_7,
    lemma_8,
    lemma_9,
    lemma_10,
)

__all__ = [
    "Schedules",
    "corollary_13",
    "corollary_14",
    "corollary_19",
    "corollary_20",
    "corollary_22",
    "corollary_28",
    "lemma_1",
    "lemma_2",
    "lemma_5",
    "lemma_6",
    "lemma_7",
    "lemma_8",
    "lemma_9",
    "lemma_10",
    "lemma_11",
    "lemma_12",
    "lemma_15",
    "lemma_18",
    "lemma_23",
    "lemma_24",
    "lemma_25",
    "lemma_30",
    "lemma_31",
    "lemma_32",
    "lemma_33",
    "lemma_34",
    "lemma_35",
    "theorem_3",
    "theorem_4",
    "theorem_16",
    "theorem_17",
    "theorem_21",
    "theorem_26",
    "theorem_27",
    "theorem_27_schedule",
    "theorem_29",
    "theorem_29_schedules",
]
