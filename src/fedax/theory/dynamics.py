r"""The exact mean dynamics of a round on quadratics: one affine map per method.

On quadratics every method below maps its state affinely in a round, so the mean state of the next
round is the same map of the mean state. This holds with full batches, and also with minibatches
drawn independently (with replacement) and cohorts drawn uniformly: sampling changes the variance,
not the mean. (Mime's two factors use the same cohort; `mime` accounts for that. Minibatches of a
shuffled epoch are not independent: Theorem 3 of Charles and Konečný 2020 does not cover them.)

SGDm is Mime's base optimizer m <- (1 - beta) g + beta m, x <- x - eta m (Karimireddy et al. 2020,
Table 4); Adam's rounds are not affine, so it has no mean dynamics. Symbols:
`fedax.theory.population`; :math:`P_i(\gamma) = \sum_{k=1}^K (I - \gamma A_i)^{k-1}`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import numpy as np

from fedax.theory.errors import SingularError, TheoryError
from fedax.theory.given import as_count
from fedax.theory.population import SINGULAR, QuadraticPopulation, as_point
from fedax.theory.surrogate import Weights, check_gamma, distort, surrogate

# SCAFFOLD's state has a vector for every client, and its matrix the square of that.
MOST_STATES = 4000


class Affine(NamedTuple):
    """A round z <- M z + v; the first `dimension` entries of z are x, the others start at 0.

    Attributes:
      dimension: d.
      matrix: M, [s, s].
      offset: v, [s].

    Example:
      >>> clients = QuadraticPopulation.from_centres([1.0, 2.0], [1.0, 0.5])
      >>> rounds = fedavg(clients, gamma=0.5, K=2)
      >>> rounds.fixed_point.round(6).tolist()  # section 4 of Charles and Konečný 2020
      [0.714286]
      >>> rounds.trajectory([0.0], 2).round(6).tolist()
      [[0.0], [0.625], [0.703125]]
    """

    dimension: int
    matrix: np.ndarray
    offset: np.ndarray

    def trajectory(self, start: Any, num_rounds: int) -> np.ndarray:
        """Mean x before round 1 and after each of the rounds, [num_rounds + 1, d]."""
        return follow([self] * num_rounds, start)

    @property
    def fixed_point(self) -> np.ndarray:
        """The x that a round does not change, [d]; it is the limit if `spectral_radius` is below 1.

        Raises:
          SingularError: if there is none, or more than one.
        """
        self._check_finite()
        rest = np.eye(len(self.matrix)) - self.matrix
        sizes = np.linalg.svd(rest, compute_uv=False)
        if sizes[-1] <= SINGULAR * max(sizes[0], 1):
            raise SingularError(
                "The rounds have no unique fixed point: in some direction they do not move the "
                "model (is a learning rate 0, or E[Q_i A_i] singular?)."
            )
        return np.linalg.solve(rest, self.offset)[: self.dimension]

    @property
    def spectral_radius(self) -> float:
        """The factor by which the distance to the fixed point eventually shrinks per round."""
        self._check_finite()
        return float(np.abs(np.linalg.eigvals(self.matrix)).max())

    def _check_finite(self) -> None:
        if not (np.isfinite(self.matrix).all() and np.isfinite(self.offset).all()):
            raise TheoryError(
                "A round's numbers overflow float64: local steps diverge. Lower a learning rate "
                "or the number of local steps."
            )


def follow(rounds: Iterable[Affine], start: Any) -> np.ndarray:
    """Mean x before round 1 and after each round, for rounds that differ (schedules), [T + 1, d].

    Args:
      rounds: rounds of one method, with states of the same size.
      start: x_0, [d], or a number if d is 1.

    Raises:
      TheoryError: if start and the rounds have different dimensions.
    """
    rounds = list(rounds)
    x = as_point(start, rounds[0].dimension if rounds else np.size(start))
    state = np.concatenate([x, np.zeros(len(rounds[0].offset) - len(x))]) if rounds else x
    path = [x]
    for one in rounds:
        state = one.matrix @ state + one.offset
        path.append(state[: len(x)])
    return np.stack(path)


def server_only(population: QuadraticPopulation, eta: float, momentum: float = 0.0) -> Affine:
    """Server-only: x <- x - eta U(grad f(x)) (Karimireddy et al. 2020).

    Args:
      population: the clients.
      eta: learning rate >= 0.
      momentum: beta in [0, 1) of SGDm.
    """
    return _descent(population.matrix, population.mean(population.linear), eta, momentum)


def local_update(
    population: QuadraticPopulation, gamma: float, Theta: Weights, eta: float, momentum: float = 0.0
) -> Affine:
    """LocalUpdate: x <- x - eta E[sum_k theta_k g_{i,k}] (Charles and Konečný 2020, Theorem 3).

    Args:
      population: the clients.
      gamma: client learning rate >= 0.
      Theta: gradient weights, or K for (1, ..., 1).
      eta: server learning rate >= 0.
      momentum: beta in [0, 1) of SGDm on the server.
    """
    found = surrogate(population, gamma, Theta)
    return _descent(found.matrix, population.mean(found.linear), eta, momentum)


def fedavg(
    population: QuadraticPopulation,
    gamma: float,
    K: float,
    eta: float = 1.0,
    momentum: float = 0.0,
) -> Affine:
    """FedAvg: x <- x - eta E[x - y_{i,K}]; `local_update` with eta gamma for its eta.

    Args:
      population: the clients.
      gamma: client learning rate >= 0.
      K: local steps.
      eta: server learning rate >= 0; 1 averages the clients' models.
      momentum: beta in [0, 1) of SGDm on the server.
    """
    return local_update(population, gamma, K, check_gamma(gamma) * eta, momentum)


def fedprox(
    population: QuadraticPopulation,
    gamma: float,
    K: float,
    proximal_weight: float,
    eta: float = 1.0,
) -> Affine:
    """FedProx (Li et al. 2020): local gradient A_i y + b_i + w (y - x), w the proximal weight.

    y_K - x = -gamma sum_k (I - gamma (A_i + w I))^{k-1} grad f_i(x), so the server descends
    on a surrogate loss with the distortion of A_i + w I.

    Args:
      population: the clients.
      gamma: client learning rate >= 0.
      K: local steps.
      proximal_weight: w >= 0.
      eta: server learning rate >= 0.
    """
    if not np.isfinite(proximal_weight) or proximal_weight < 0:
        raise TheoryError(f"proximal_weight must be finite and >= 0, but is {proximal_weight}.")
    distortions = population.apply(
        lambda values: distort(K, values + proximal_weight, check_gamma(gamma))
    )
    matrix, linear = _through(population, distortions)
    return _descent(gamma * matrix, gamma * linear, eta)


def mime(
    population: QuadraticPopulation,
    eta: float,
    K: float,
    momentum: float = 0.0,
    cohort_size: int | None = None,
) -> Affine:
    r"""Mime with SGD or SGDm (Karimireddy et al. 2020, Algorithm 1).

    .. math::
        x \leftarrow x - \eta\,(1/S) \sum_{i \in S} P_i\,[(1 - \beta) \nabla f_S(x) + \beta m],
        \qquad m \leftarrow (1 - \beta) \nabla f_S(x) + \beta m

    with :math:`P_i = P_i(\eta (1 - \beta))` and f_S the cohort's mean loss. The cohort is in both
    factors, so with M of N clients the mean of their product is

    .. math:: (1 - \rho) E[P_i] \nabla f + \rho\, E[P_i \nabla f_i], \quad
        \rho = \frac{N - M}{M (N - 1)}:

    Mime at rho = 0 (all clients), MimeLite at rho = 1 (one client). Only Mime of all clients
    always has x* as its fixed point.

    Args:
      population: the clients.
      eta: learning rate >= 0.
      K: local steps.
      momentum: beta in [0, 1).
      cohort_size: M clients drawn uniformly without replacement; None: all of them.

    Raises:
      TheoryError: if cohort_size is given and the clients' probabilities differ.
    """
    N = population.num_clients
    share = _cohort_share(population, cohort_size)
    rho = (1 - share) / (share * (N - 1)) if N > 1 else 0.0
    return _mimicked(population, eta, K, momentum, rho)


def mimelite(
    population: QuadraticPopulation, eta: float, K: float, momentum: float = 0.0
) -> Affine:
    """MimeLite with SGD or SGDm (Karimireddy et al. 2020): local gradients are not corrected.

    Arguments as for `mime`; cohorts do not change the mean.
    """
    return _mimicked(population, eta, K, momentum, rho=1.0)


def scaffold(
    population: QuadraticPopulation,
    gamma: float,
    K: float,
    eta: float = 1.0,
    control_option: Literal["I", "II"] = "II",
    cohort_size: int | None = None,
) -> Affine:
    """SCAFFOLD (Reddi et al. 2021, Algorithm 4): local gradient A_i y + b_i - c_i + c, c = E c_i.

    y_K - x = D_i = -gamma P_i(gamma) (grad f_i(x) - c_i + c); x <- x + eta E D_i; a client of the
    cohort then keeps c_i - c - D_i / (K gamma) (option II) or grad f_i(x) (option I).

    Args:
      population: the clients. The state has a vector for each client.
      gamma: client learning rate > 0.
      K: local steps.
      eta: server learning rate >= 0.
      control_option: "I" or "II".
      cohort_size: M clients drawn uniformly without replacement; None: all of them.

    Raises:
      TheoryError: if gamma is 0, or cohort_size is given and the clients' probabilities differ.
    """
    if control_option not in ("I", "II"):
        raise TheoryError(f"control_option must be 'I' or 'II', but is {control_option!r}.")
    if check_gamma(gamma) == 0:
        raise TheoryError("gamma must be above 0: SCAFFOLD's clients divide by it.")
    N, d = population.linear.shape
    p = population.probabilities
    share = _cohort_share(population, cohort_size)
    steps = population.apply(lambda values: -gamma * distort(K, values, gamma))  # -gamma P_i

    size = (1 + N) * d
    if size > MOST_STATES:
        raise TheoryError(
            f"SCAFFOLD's mean dynamics of {N} clients in {d} dimensions have a state of {size:,} "
            f"numbers and a matrix of its square; here it may have at most {MOST_STATES:,}."
        )
    x, own = slice(0, d), [slice((1 + i) * d, (2 + i) * d) for i in range(N)]
    shift = np.zeros((size, size + 1))  # of the state, as a function of (state, 1)
    control = np.zeros((d, size + 1))  # c
    for i in range(N):
        control[:, own[i]] = p[i] * np.eye(d)
    for i in range(N):
        gradient = np.zeros((d, size + 1))
        gradient[:, x], gradient[:, -1] = population.matrices[i], population.linear[i]
        corrected = gradient + control
        corrected[:, own[i]] -= np.eye(d)
        moved = steps[i] @ corrected  # D_i
        shift[x] += eta * p[i] * moved
        if control_option == "II":
            shift[own[i]] = share * (-control - moved / (K * gamma))
        else:
            shift[own[i]] = share * gradient
            shift[own[i], own[i]] -= share * np.eye(d)
    return Affine(d, np.eye(size) + shift[:, :-1], shift[:, -1])


def _mimicked(
    population: QuadraticPopulation, eta: float, K: float, momentum: float, rho: float
) -> Affine:
    fresh = 1 - _check_momentum(momentum)
    distortions = population.apply(lambda values: distort(K, values, check_gamma(eta) * fresh))
    mean = population.mean(distortions)
    lite, lite_linear = _through(population, distortions)
    A, b = population.matrix, population.mean(population.linear)
    matrix = (1 - rho) * mean @ A + rho * lite
    linear = (1 - rho) * mean @ b + rho * lite_linear
    d = len(b)
    eye = np.eye(d)
    return Affine(
        d,
        np.block([
            [eye - eta * fresh * matrix, -eta * momentum * mean],
            [fresh * A, momentum * eye],
        ]),
        np.concatenate([-eta * fresh * linear, fresh * b]),
    )


def _descent(matrix: np.ndarray, linear: np.ndarray, eta: float, momentum: float = 0.0) -> Affine:
    """SGD or SGDm with the gradient H x + h."""
    if not np.isfinite(eta) or eta < 0:
        raise TheoryError(f"eta must be a finite number >= 0, but is {eta}.")
    fresh = 1 - _check_momentum(momentum)
    d = len(linear)
    eye = np.eye(d)
    if momentum == 0:
        return Affine(d, eye - eta * matrix, -eta * linear)
    gradient = np.block([[fresh * matrix, momentum * eye]])
    return Affine(
        d,
        np.vstack([np.block([[eye, np.zeros((d, d))]]) - eta * gradient, gradient]),
        np.concatenate([-eta * fresh * linear, fresh * linear]),
    )


def _through(
    population: QuadraticPopulation, distortions: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """E[Q_i A_i] and E[Q_i b_i]."""
    linear = np.einsum("nij,nj->ni", distortions, population.linear)
    return population.mean(distortions @ population.matrices), population.mean(linear)


def _check_momentum(momentum: float) -> float:
    if not 0 <= momentum < 1:
        raise TheoryError(f"momentum must be in [0, 1), but is {momentum}.")
    return momentum


def _cohort_share(population: QuadraticPopulation, cohort_size: int | None) -> float:
    """M / N."""
    N = population.num_clients
    if cohort_size is None:
        return 1.0
    if not 1 <= as_count("cohort_size", cohort_size) <= N:
        raise TheoryError(f"cohort_size must be a whole number in [1, {N}], but is {cohort_size}.")
    if np.ptp(population.probabilities) > 1e-12:
        raise TheoryError("A cohort is drawn uniformly, but the clients' probabilities differ.")
    return cohort_size / N
