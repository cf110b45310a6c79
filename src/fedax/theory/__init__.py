"""Exact theory of federated methods on quadratics.

Quadratic clients (`QuadraticPopulation`), the surrogate loss of local update methods on them
(`surrogate`), the exact mean and second moments of the rounds (`dynamics`, `moments`), one function
for every statement of the papers (`charles2020`, `decay2021`, `elastic2023`, `mime2020`), and the
resulting choices of gamma and K (`prescriptions`). It uses NumPy and SciPy in float64, independent
of the simulation engine.

Example:
  >>> clients = QuadraticPopulation.from_centres([1.0, 2.0], [1.0, 0.5])
  >>> round(surrogate(clients, gamma=0.5, Theta=2).gap, 6)  # FedAvg's distance from the minimiser
  0.047619
"""

from fedax.theory import (
    charles2020,
    decay2021,
    dynamics,
    elastic2023,
    mime2020,
    moments,
    prescriptions,
)
from fedax.theory.claims import Claim
from fedax.theory.errors import ConditionError, SingularError, TheoryError
from fedax.theory.files import population_from, read_population
from fedax.theory.population import QuadraticPopulation
from fedax.theory.surrogate import Surrogate, chi, last, phi, surrogate

__all__ = [
    "Claim",
    "ConditionError",
    "QuadraticPopulation",
    "SingularError",
    "Surrogate",
    "TheoryError",
    "charles2020",
    "chi",
    "decay2021",
    "dynamics",
    "elastic2023",
    "last",
    "mime2020",
    "moments",
    "phi",
    "population_from",
    "prescriptions",
    "read_population",
    "surrogate",
]
