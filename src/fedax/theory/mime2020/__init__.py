r"""The statements of Karimireddy et al. 2020, one function each, named after it.

"Mime: Mimicking Centralized Stochastic Algorithms in Federated Learning", 2020. As in
`fedax.theory.charles2020`, a function checks the statement's conditions and returns a
`fedax.theory.claims.Claim`: the left side exactly, the relation, and the right side;
`printed=True` gives the published form where it is wrong. Roman numerals are Arabic here: Theorem
III is `theorem_3`. Theorems whose constants the paper does not state have those of its proofs.

G^2 is (A1)'s gradient dissimilarity, delta (A2)'s Hessian dissimilarity, L the smoothness and mu
the strong convexity of f, S the cohort size, and K the number of local steps. f is a mean of
quadratics, and `clients` may have examples with Hessians of their own.

Example:
  >>> from fedax.theory.population import QuadraticPopulation
  >>> pair = QuadraticPopulation.from_linear([2.0, 0.0], [1.0, -1.0])  # x^2 + x and -x
  >>> claim = lemma_5(pair, 1.0, 0.1, 1, cohort_size=1)
  >>> claim.actual.tolist(), claim.bound.tolist()  # (3^2 + 1) / 2, and 3 * 4 + 3 * 1
  ([5.0], [15.0])
"""

from fedax.theory.mime2020.clients import (
    hessian_dissimilarity,
    least_B2,
    least_G2,
    lemma_3,
    lemma_4,
)
from fedax.theory.mime2020.mimemvr import (
    Before,
    lemma_8,
    lemma_9,
    lemma_10,
    lemma_11,
    theorem_4,
)
from fedax.theory.mime2020.mimesgd import (
    lemma_5,
    lemma_6,
    lemma_7,
    mimesgd_rate,
    theorem_2,
    theorem_3,
)
from fedax.theory.mime2020.rates import Rates, Rounds, table_1, theorem_1

__all__ = [
    "Before",
    "Rates",
    "Rounds",
    "hessian_dissimilarity",
    "least_B2",
    "least_G2",
    "lemma_3",
    "lemma_4",
    "lemma_5",
    "lemma_6",
    "lemma_7",
    "lemma_8",
    "lemma_9",
    "lemma_10",
    "lemma_11",
    "mimesgd_rate",
    "table_1",
    "theorem_1",
    "theorem_2",
    "theorem_3",
    "theorem_4",
]
