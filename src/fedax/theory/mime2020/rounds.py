"""The exact moments of one round of Mime, over cohorts, minibatches and the cohort's members."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedax.theory.mime2020.clients import Sampled


class Steps(NamedTuple):
    """Moments of a member's local steps k = 0, ..., K of one round, and of its updates.

    Attributes:
      moments: E (y_k - x, 1) (y_k - x, 1)^T, [K + 1, d + 1, d + 1].
      updates: E|d_k|^2 of k = 1, ..., K, [K].
      errors: E|d_k - grad f(y_{k-1})|^2, [K].
      clients: the clients, for f.
      x: where the round starts, [d].
    """

    moments: np.ndarray
    updates: np.ndarray
    errors: np.ndarray
    clients: Sampled
    x: np.ndarray

    @property
    def losses(self) -> np.ndarray:
        """E f(y_k), [K + 1]."""
        f, gradient = self.clients.population, self._gradient
        curved = np.einsum("ij,kij->k", f.matrix, self.moments[:, :-1, :-1]) / 2
        return curved + self.moments[:, :-1, -1] @ gradient + f.loss(self.x)

    @property
    def gradients(self) -> np.ndarray:
        """E|grad f(y_k)|^2, [K + 1]."""
        return _squares(self.clients.population.matrix, self._gradient, self.moments)

    def distances(self, to: np.ndarray) -> np.ndarray:
        """E|y_k - to|^2, [K + 1]."""
        return _squares(np.eye(len(self.x)), self.x - to, self.moments)

    @property
    def _gradient(self) -> np.ndarray:
        return self.clients.population.mean(self.clients.population.gradients(self.x))


def walk(
    clients: Sampled,
    x: np.ndarray,
    eta: float,
    K: int,
    cohort_size: int | None,
    offset: Callable[[np.ndarray, tuple[int, ...]], np.ndarray],
) -> Steps:
    """K local steps y <- y - eta d with d = H_i(zeta) (y - x) + an offset.

    Args:
      clients: the clients and their examples.
      x: where clients start, [d].
      eta: learning rate.
      K: local steps.
      cohort_size: S; None: all clients.
      offset: (Hessians of a client's examples [n, d, d], cohort) -> [n, d] or [d].
    """
    f = clients.population
    d, gradient = f.dimension, f.mean(f.gradients(x))
    moments = np.zeros((K + 1, d + 1, d + 1))
    updates, errors, number = np.zeros(K), np.zeros(K), 0
    for cohort in clients.cohorts(cohort_size):
        for member in cohort:
            examples = clients.examples[member]
            H, weights = examples.matrices, examples.probabilities
            own = np.broadcast_to(offset(H, cohort), examples.linear.shape)
            steps = np.zeros((len(H), d + 1, d + 1))
            steps[:, :d, :d], steps[:, :d, d] = np.eye(d) - eta * H, -eta * own
            steps[:, d, d] = 1
            moment = np.zeros((d + 1, d + 1))
            moment[d, d] = 1
            moments[0] += moment
            for k in range(K):
                for z, weight in enumerate(weights):
                    updates[k] += weight * _squares(H[z], own[z], moment)
                    errors[k] += weight * _squares(H[z] - f.matrix, own[z] - gradient, moment)
                moment = np.einsum("z,zij,jk,zlk->il", weights, steps, moment, steps)
                moments[k + 1] += moment
            number += 1
    return Steps(moments / number, updates / number, errors / number, clients, x)


def _squares(matrix: np.ndarray, vector: np.ndarray, moments: np.ndarray) -> np.ndarray:
    """E|M u + v|^2 of moments of (u, 1), [..., d + 1, d + 1]."""
    both = np.concatenate([matrix, vector[:, None]], 1)
    return np.maximum(np.einsum("ij,...jk,ik->...", both, moments, both), 0.0)
