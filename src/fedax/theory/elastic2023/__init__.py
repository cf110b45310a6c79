r"""The statements of Chen et al. 2023, one function each, named after it.

"Elastic Aggregation for Federated Optimization", 2023, supplement, sections 4 and 7 to 9. As in
`fedax.theory.charles2020`, a function checks the statement's conditions and returns a
`fedax.theory.claims.Claim`; `printed=True` gives the published form where it is wrong. Theorems
whose constants the paper does not state have those of its proofs.

Algorithm 3, which the theory is about, multiplies the mean of the clients' models by one number
phi for all parameters, so the theory is FedAvg's with the server rate :math:`\phi \eta_g`:

.. math:: x^r = x^{r-1} + \phi \eta_g \frac1S \sum_{i \in S} (y_{i,K} - x^{r-1}), \qquad
    \tilde\eta = K \phi \eta_g \eta_l.

Here S is the cohort size, beta the smoothness of the f_i, mu the strong convexity, sigma^2 the
mean square of a gradient's noise, and (G, B) are those of (A1), which is equation 7 of Karimireddy
et al. 2020: `fedax.theory.mime2020.least_G2`.

Example:
  >>> extra_cost(fraction=0.1, num_local_epochs=10)
  0.005
"""

from fedax.theory.elastic2023.lower_bound import lemma_9, theorem_2
from fedax.theory.elastic2023.rounds import Rates, lemma_7, lemma_8, theorem_1
from fedax.theory.elastic2023.step_sizes import extra_cost, lemma_1, lemma_2

__all__ = [
    "Rates",
    "extra_cost",
    "lemma_1",
    "lemma_2",
    "lemma_7",
    "lemma_8",
    "lemma_9",
    "theorem_1",
    "theorem_2",
]
