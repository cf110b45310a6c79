r"""Second moments of LocalUpdate on quadratics with additive noise, exactly.

Convergence theorems bound :math:`E|x_t - y|^2`. Where an example's gradient is grad f_i plus noise
of covariance C_i that does not depend on x, the pair (E x_t, E x_t x_t^T) follows a closed linear
recursion, so the bounded quantity can be computed instead of sampled. Symbols: see
`fedax.theory.population`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedax.theory.errors import TheoryError
from fedax.theory.given import as_count
from fedax.theory.population import QuadraticPopulation, as_point
from fedax.theory.surrogate import Weights, check_gamma, check_theta, distort, surrogate


def output_covariances(
    population: QuadraticPopulation, gamma: float, Theta: Weights, batch_size: int = 1
) -> np.ndarray:
    r"""Covariance of each client's output, [N, d, d], for any start x.

    The noise n_k of step k enters the K - k later gradients too, so the client returns
    :math:`\sum_k T_k n_k` more than its mean, with

    .. math:: T_k = \theta_k I - \gamma \sum_{l > k} \theta_l A_i (I - \gamma A_i)^{l-k-1},

    which is (I - gamma A_i)^{K-k} for FedAvg. Its trace is Lemma 23's variance, exactly. FedAvg's
    sum is geometric; for a K that is not whole (decaying-steps paper 2021) its closed form is used.

    Args:
      population: the clients, with their noise.
      gamma: client learning rate >= 0.
      Theta: gradient weights, or K.
      batch_size: B, examples per minibatch.
    """
    weights = check_theta(Theta)
    gamma = check_gamma(gamma)
    batch_size = as_count("batch_size", batch_size)
    values, vectors = population.eigen
    a, b = values[:, :, None], values[:, None, :]
    if isinstance(weights, float):  # sum_k r^(k-1) with r = (1 - gamma l_a) (1 - gamma l_b)
        total = distort(weights, gamma * (a + b) - (gamma * a) * (gamma * b), 1.0)
    else:
        later = np.zeros_like(values)
        total = np.zeros((*values.shape, values.shape[1]))  # sum_k t_k(l_a) t_k(l_b)
        for weight in weights[::-1]:
            t = weight - gamma * values * later
            total += t[:, :, None] * t[:, None, :]
            later = weight + (1 - gamma * values) * later
    turned = vectors.swapaxes(1, 2) @ population.noise @ vectors
    return vectors @ (turned * total) @ vectors.swapaxes(1, 2) / batch_size


def mean_square_distances(
    population: QuadraticPopulation,
    gammas: Sequence[float] | np.ndarray,
    Thetas: Sequence[Weights],
    etas: Sequence[float] | np.ndarray,
    start: Any,
    targets: Any,
    *,
    batch_size: int = 1,
    cohort_size: int | None = None,
) -> np.ndarray:
    r"""E|x_t - y_t|^2 of LocalUpdate for t = 1, ..., T + 1, where x_1 is the start.

    .. math:: x_{t+1} = x_t - \eta_t q_t, \qquad
        E\,q_t = \nabla \tilde f_t(x_t), \qquad
        \mathrm{Cov}\,q_t = \text{what the clients' noise and their sampling give}.

    With all clients the server takes E, and the noise contributes sum_i p_i^2 V_i. With a cohort of
    M clients drawn independently with probabilities p_i it takes their plain mean, and both parts
    are divided by M.

    Args:
      population: the clients, with their noise.
      gammas, Thetas, etas: of each round, [T].
      start: x_1, [d].
      targets: y_t, [d] for all t, or [T + 1, d].
      batch_size: B.
      cohort_size: M; None: all clients.
    """
    d = population.dimension
    if not len(gammas) == len(Thetas) == len(etas):
        raise TheoryError(
            f"gammas, Thetas and etas must have the same length, but have {len(gammas)}, "
            f"{len(Thetas)} and {len(etas)}."
        )
    if cohort_size is not None:
        cohort_size = as_count("cohort_size", cohort_size)
    z = np.append(as_point(start, d), 1.0)
    moment = np.outer(z, z)  # E (x, 1) (x, 1)^T
    targets = np.broadcast_to(np.asarray(targets, float), (len(etas) + 1, d))
    distances = [_distance(moment, targets[0])]
    p = population.probabilities
    known: dict[Any, Any] = {}
    for gamma, Theta, eta, target in zip(gammas, Thetas, etas, targets[1:], strict=True):
        key = (float(gamma), np.asarray(Theta, float).tobytes())
        if key not in known:
            found = surrogate(population, gamma, Theta)
            outputs = np.concatenate([found.matrices, found.linear[:, :, None]], 2)  # [H_i, h_i]
            noise = output_covariances(population, gamma, Theta, batch_size)
            known = {key: (outputs, population.mean(outputs), noise)}
        outputs, mean, noise = known[key]
        if cohort_size is None:
            covariance = np.tensordot(p**2, noise, 1)
        else:
            spread = population.mean(outputs @ moment @ outputs.swapaxes(1, 2))
            spread = spread - mean @ moment @ mean.T
            covariance = (spread + population.mean(noise)) / cohort_size
        step = np.eye(d + 1)
        step[:d] -= eta * mean
        moment = step @ moment @ step.T
        moment[:d, :d] += eta * (eta * covariance)
        distances.append(_distance(moment, target))
    return np.array(distances)


def _distance(moment: np.ndarray, target: np.ndarray) -> float:
    """E|x - y|^2 from E (x, 1) (x, 1)^T."""
    away = np.append(np.eye(len(target)), -target[:, None], axis=1)
    return float(max(np.trace(away @ moment @ away.T), 0.0))
