r"""The loss that a local update method minimises (Charles and Konečný 2020, section 3).

A client that takes K gradient steps with learning rate gamma from x and returns the sum of its
gradients weighted by Theta = (theta_1, ..., theta_K) returns, in expectation, the gradient of

.. math::
    \tilde f_i(x) = \tfrac12 (x - c_i)^T Q_i A_i (x - c_i), \qquad
    Q_i(\gamma, \Theta) = \sum_{k=1}^K \theta_k (I - \gamma A_i)^{k-1}

(Theorem 3), so the server does gradient descent on the surrogate loss E f~_i instead of f. Wherever
this package takes Theta, a number K means FedAvg's (1, ..., 1) of that length; it need not be whole
(decaying-steps paper 2021). Symbols: see `fedax.theory.population`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from fedax.theory.errors import TheoryError
from fedax.theory.given import as_array, as_count, as_number, as_population
from fedax.theory.population import (
    QuadraticPopulation,
    as_point,
    minimise,
    quadratic_value,
)

Weights: TypeAlias = float | Sequence[float] | np.ndarray


def last(K: int) -> np.ndarray:
    """Theta_K = (0, ..., 0, 1), of length K: the last gradient only (eq. 3).

    FOMAML with K - 1 local steps; K-step MAML is `last(2 K + 1)` (Theorem 4).

    Example:
      >>> last(3).tolist()
      [0.0, 0.0, 1.0]
    """
    weights = np.zeros(as_count("K", K))
    weights[-1] = 1
    return weights


def phi(K: float, eigenvalue: Any, gamma: float) -> Any:
    r"""phi_{K,l}(gamma) = (1 - (1 - gamma l)^K) / gamma, K l at gamma = 0 (eq. 17, 18).

    An eigenvalue l of A_i becomes this eigenvalue of Q_i(gamma, Theta_{1:K}) A_i (Lemma 11).

    Args:
      K: >= 0; real if gamma l <= 1, otherwise whole.
      eigenvalue: l, of any shape.
      gamma: >= 0.

    Example:
      >>> float(phi(2, 1.0, 0.5)), float(phi(2, 1.0, 0.0))
      (1.5, 2.0)
    """
    eigenvalue = np.asarray(eigenvalue, float)
    if gamma == 0:
        return K * eigenvalue
    rest = 1 - gamma * eigenvalue
    if (rest < 0).any() and int(K) != K:
        raise TheoryError(
            f"(1 - gamma l)^K is not real for gamma l = {gamma * eigenvalue.max():.4g} > 1 and "
            f"K = {K:g}; use a whole K or a smaller gamma."
        )
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        exact = -np.expm1(K * np.log1p(-gamma * eigenvalue)) / gamma
        return np.where(rest > 0, exact, (1 - rest**K) / gamma)


def chi(Theta: Weights, L: float, gamma: float) -> float:
    """The chi of Theorem 16: sum theta_k (1 - gamma L)^(k-1) / sum theta_k (eq. 21).

    Example:
      >>> chi(2, 1.0, 0.5)
      0.75
    """
    weights = sum_of(Theta)
    return float(distort(Theta, np.asarray(L, float), gamma) / weights)


def sum_of(Theta: Weights) -> float:
    """The sum of the theta_k, checked as `distort` does."""
    return float(np.sum(check_theta(Theta)))


def check_theta(Theta: Weights) -> Any:
    """Theta as a float K or an array of weights.

    Raises:
      TheoryError: if K is not above 0, or the weights are not finite numbers >= 0 with one above 0
        (Assumption 1).
    """
    weights = as_array("Theta", Theta)
    if weights.ndim > 1 or weights.size == 0 or (weights < 0).any() or not weights.any():
        raise TheoryError(
            f"K must be above 0, or Theta weights >= 0 that are not all 0, but it is {Theta}."
        )
    return float(weights) if weights.ndim == 0 else weights


def check_gamma(gamma: float) -> float:
    """The learning rate as a float.

    Raises:
      TheoryError: if it is not a finite number >= 0.
    """
    number = as_number("gamma", gamma)
    if number < 0:
        raise TheoryError(f"gamma must be a finite number >= 0, but is {gamma}.")
    return number


def distort(Theta: Weights, eigenvalue: np.ndarray, gamma: float) -> np.ndarray:
    """sum_k theta_k (1 - gamma l)^(k-1): Q_i's eigenvalue where A_i has l (Lemma 6.3)."""
    weights = check_theta(Theta)
    gamma = check_gamma(gamma)
    if isinstance(weights, float):
        safe = np.where(eigenvalue == 0, 1.0, eigenvalue)
        return np.where(eigenvalue == 0, weights, phi(weights, safe, gamma) / safe)
    rest = 1 - gamma * eigenvalue
    total = np.zeros_like(rest)
    with np.errstate(over="ignore", invalid="ignore"):  # not finite, which `minimise` refuses
        for weight in weights[::-1]:  # Horner's rule
            total = total * rest + weight
    return total


@dataclasses.dataclass(frozen=True, eq=False)
class Surrogate:
    """The loss that LocalUpdate(gamma, Theta) descends; see `surrogate`.

    Attributes:
      population: the clients.
      gamma: client learning rate.
      Theta: gradient weights, or K.
    """

    population: QuadraticPopulation
    gamma: float
    Theta: Any

    @functools.cached_property
    def distortions(self) -> np.ndarray:
        """Q_i, [N, d, d] (eq. 8)."""
        return self.population.apply(lambda l: distort(self.Theta, l, self.gamma))  # noqa: E741

    @functools.cached_property
    def matrices(self) -> np.ndarray:
        """Q_i A_i, the Hessians of the clients' surrogate losses, [N, d, d]."""
        return self.population.apply(lambda l: distort(self.Theta, l, self.gamma) * l)  # noqa: E741

    @functools.cached_property
    def linear(self) -> np.ndarray:
        """Q_i b_i, the clients' surrogate gradients at 0, [N, d]."""
        return np.einsum("nij,nj->ni", self.distortions, self.population.linear)

    @functools.cached_property
    def matrix(self) -> np.ndarray:
        """E[Q_i A_i], the Hessian of the surrogate loss, [d, d]."""
        return self.population.mean(self.matrices)

    @functools.cached_property
    def minimiser(self) -> np.ndarray:
        """x*(gamma, Theta) = E[Q_i A_i]^{-1} E[Q_i A_i c_i], [d].

        Raises:
          SingularError: if the surrogate loss has no unique minimiser.
        """
        return minimise(
            self.matrix, self.population.mean(self.linear),
            f"The surrogate loss for gamma = {self.gamma:g}",
            float(np.abs(self.matrices).max()),
        )

    @property
    def gap(self) -> float:
        """|x*(gamma, Theta) - x*|."""
        return float(np.linalg.norm(self.minimiser - self.population.minimiser))

    @property
    def excess_loss(self) -> float:
        """f(x*(gamma, Theta)) - f(x*)."""
        difference = self.minimiser - self.population.minimiser
        return float(difference @ self.population.matrix @ difference / 2)

    @functools.cached_property
    def spectrum(self) -> np.ndarray:
        """Eigenvalues of E[Q_i A_i], ascending, [d]."""
        return np.linalg.eigvalsh(self.matrix)

    @property
    def condition_number(self) -> float:
        """Largest over smallest eigenvalue; inf if the smallest is not positive."""
        return float(self.spectrum[-1] / self.spectrum[0]) if self.spectrum[0] > 0 else np.inf

    @functools.cached_property
    def ill_behaved(self) -> np.ndarray:
        """Indices, from 0, of clients whose own surrogate loss is not strictly convex.

        Section 4: the client learning rate should be small enough that there are none, even if the
        overall surrogate loss is well-behaved.
        """
        least = np.linalg.eigvalsh(self.matrices)[:, 0]
        return np.flatnonzero((least <= 0) & self.population.taking_part)

    def gradient(self, x: Any) -> np.ndarray:
        """Its gradient E[Q_i grad f_i(x)], the mean of the clients' outputs, [d] (Theorem 3)."""
        x = as_point(x, self.population.dimension)
        return self.matrix @ x + self.population.mean(self.linear)

    def loss(self, x: Any) -> Any:
        """E[x^T Q_i A_i x / 2 + (Q_i b_i)^T x] of points [..., d].

        f~ of Charles and Konečný 2020, equation 10, less the constant E[c_i^T Q_i A_i c_i] / 2.
        """
        return quadratic_value(self.matrix, self.population.mean(self.linear), x)

    @property
    def constant(self) -> float:
        """E[c_i^T Q_i A_i c_i] / 2, which `loss` leaves out of eq. 10; needs the centres."""
        centres = self.population.centres
        values = np.einsum("ni,nij,nj->n", centres, self.matrices, centres)
        return float(self.population.probabilities @ values / 2)


def surrogate(population: QuadraticPopulation, gamma: float, Theta: Weights) -> Surrogate:
    """The surrogate loss of LocalUpdate(gamma, Theta) on a population.

    Args:
      population: the clients.
      gamma: client learning rate >= 0.
      Theta: gradient weights theta_k >= 0, [K], not all 0; a number K > 0 is FedAvg's (1, ..., 1).

    Raises:
      TheoryError: if gamma or Theta is out of range.

    Example:
      >>> clients = QuadraticPopulation.from_centres([1.0, 2.0], [1.0, 0.5])
      >>> found = surrogate(clients, 0.5, 2)  # section 4: (4 - 3 gamma) / (6 - 5 gamma)
      >>> found.minimiser.round(6).tolist(), round(found.gap, 6)
      ([0.714286], 0.047619)
    """
    return Surrogate(as_population(population), check_gamma(gamma), check_theta(Theta))
