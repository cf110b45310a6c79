"""Section 3: a round of local steps is a gradient step on a surrogate loss."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedax.theory.charles2020.conditions import statement, whole_steps
from fedax.theory.claims import Claim
from fedax.theory.population import QuadraticPopulation, as_point
from fedax.theory.surrogate import Surrogate, Weights, check_gamma, check_theta, last, surrogate


def lemma_1(examples: QuadraticPopulation, x: Any, printed: bool = False) -> Claim:
    r"""A client's loss is one quadratic, up to a constant (Charles and Konečný 2020, Lemma 1).

    .. math::
        f_i(x) = \tfrac12 |A_i^{1/2} (x - c_i)|^2 + \tau_i, \qquad
        \tau_i = \tfrac12 E[c_z^T A_z c_z] - \tfrac12 c_i^T A_i c_i

    Args:
      examples: the examples z of one client, each with its A_z, c_z and probability.
      x: points, [..., d].
      printed: with the tau_i of the published proof.

    Raises:
      SingularError: if an example or the client has no centre.

    Erratum: the proof's tau_i lacks the second 1/2, an error of c_i^T A_i c_i / 2 in every loss.
    For A_z = 1, 1 and c_z = 1, 3 it gives f_i(2) = -1.5; the loss is 0.5.

    Example:
      >>> client = QuadraticPopulation.from_centres([1.0, 1.0], [1.0, 3.0])
      >>> claim = lemma_1(client, [2.0])
      >>> float(claim.actual), float(claim.bound), float(lemma_1(client, [2.0], True).bound)
      (0.5, 0.5, -1.5)
    """
    x, c = np.asarray(x, float), examples.minimiser
    away = x[..., None, :] - examples.centres
    losses = np.einsum("...ni,nij,...nj->...n", away, examples.matrices, away) / 2
    tau = -np.sum(examples.probabilities @ (examples.linear * examples.centres)) / 2
    tau -= c @ examples.matrix @ c * (1 if printed else 0.5)
    quadratic = np.einsum("...i,ij,...j->...", x - c, examples.matrix, x - c) / 2
    return Claim(
        statement("Lemma 1", printed), "f_i(x) = |A_i^(1/2) (x - c_i)|^2 / 2 + tau_i",
        losses @ examples.probabilities, "=", quadratic + tau,
    )


def lemma_2(population: QuadraticPopulation, gamma: float, K: int, x: Any) -> Claim:
    r"""The mean gradients of local steps shrink linearly (Charles and Konečný 2020, Lemma 2).

    .. math:: E[g_{k+1}] = (I - \gamma A_i) E[g_k] \quad \Rightarrow \quad
        E[g_k] = (I - \gamma A_i)^{k-1} \nabla f_i(x)

    for g_1, ..., g_K of a client that starts from x. The left side takes the steps of Algorithm 2
    in the mean, and the right side multiplies by the matrix.

    Args:
      population: the clients. The lemma's proof inverts A_i, but singular ones are right too.
      gamma: client learning rate >= 0.
      K: the number of gradients, whole, >= 1.
      x: the clients' start, [d].

    Returns:
      One claim with both sides [K, N, d].

    Raises:
      ConditionError: if K is not a whole number >= 1.

    Example:
      >>> client = QuadraticPopulation.from_centres([1.0], [0.0])
      >>> lemma_2(client, 0.5, 3, [2.0]).actual.ravel().tolist()
      [2.0, 1.0, 0.5]
    """
    name = statement("Lemma 2")
    steps, gamma = whole_steps(name, K), check_gamma(gamma)
    x = as_point(x, population.dimension)
    powers = [population.apply(lambda a, k=k: (1 - gamma * a) ** k) for k in range(steps)]
    return Claim(
        name, "E g_k = (I - gamma A_i)^(k-1) grad f_i(x)",
        np.stack(local_gradients(population, gamma, steps, x)), "=",
        np.einsum("knij,nj->kni", np.stack(powers), population.gradients(x)),
    )


def theorem_3(
    population: QuadraticPopulation, gamma: float, Theta: Weights, x: Any, printed: bool = False
) -> tuple[Claim, Claim]:
    r"""A client returns a gradient of its surrogate loss (Charles and Konečný 2020, Theorem 3).

    .. math:: E[\mathrm{InnerLoop}(i, x, \gamma, \Theta)] = \nabla \tilde f_i(x) =
        Q_i(\gamma, \Theta) \nabla f_i(x)

    The minibatches must be drawn independently, as in Algorithm 2 (with replacement). In a shuffled
    epoch they are not, and the theorem fails: with two examples, A_z = 1, 3 and c_z = 0, gamma =
    1/4 and one step on each from x = 1, the mean result is 3.25, not 3.

    Args:
      population: the clients.
      gamma: client learning rate >= 0.
      Theta: gradient weights, or a whole K; the left side takes that many steps.
      x: the clients' start, [d].
      printed: with the loss of equation 9 as published.

    Raises:
      SingularError: if an A_i is not invertible.

    Erratum: equation 9 defines the surrogate loss as half the norm of (Q_i A_i)^{1/2} (x - c_i);
    it must be the squared norm, or its gradient is not linear in x. The decaying-steps paper (2021)
    repeats it (equation 4). With A = 1, c = 0, K = 2, gamma = 1/2 at x = 2 a client returns 3, and
    the gradient of the printed loss is .612.

    Example:
      >>> client = QuadraticPopulation.from_centres([1.0], [0.0])
      >>> first, second = theorem_3(client, 0.5, 2, [2.0])
      >>> first.actual.tolist(), first.bound.tolist(), second.bound.tolist()
      ([[3.0]], [[3.0]], [[3.0]])
      >>> theorem_3(client, 0.5, 2, [2.0], printed=True)[0].bound.round(3).tolist()
      [[0.612]]
    """
    name = statement("Theorem 3", printed)
    weights = check_theta(Theta)
    weights = np.ones(whole_steps(name, weights)) if isinstance(weights, float) else weights
    x, gamma = np.asarray(x, float), check_gamma(gamma)
    returned = np.tensordot(weights, local_gradients(population, gamma, len(weights), x), 1)
    found = surrogate(population, gamma, Theta)
    away = x - population.centres
    gradients = np.einsum("nij,nj->ni", found.matrices, away)
    if printed:
        gradients = gradients / (2 * np.sqrt(np.sum(away * gradients, 1, keepdims=True)))
    distorted = np.einsum("nij,nj->ni", found.distortions, population.gradients(x))
    return (
        Claim(name, "E[InnerLoop(i, x)] = grad f~_i(x)", returned, "=", gradients),
        Claim(name, "grad f~_i(x) = Q_i grad f_i(x)", gradients, "=", distorted),
    )


def theorem_4(
    population: QuadraticPopulation, gamma: float, K: int, x: Any, printed: bool = False
) -> tuple[Claim, Claim]:
    r"""MAML of K full steps is LocalUpdate with Theta_{2K+1} (Charles and Konečný 2020, Theorem 4).

    With X_K the point after K gradient steps on f_i from x and :math:`m_K^i = f_i(X_K(x))`,

    .. math:: \nabla m_K^i(x) = (I - \gamma A_i)^{2K} \nabla f_i(x)
        = \nabla \tilde f_i(x, \gamma, \Theta_{2K+1}),

    and so for the server's q, the mean of the clients' gradients: E q(x) is the gradient of the
    surrogate loss. The left side is computed by the chain rule, step by step.

    Args:
      population: the clients.
      gamma: client learning rate >= 0.
      K: gradient steps, whole, >= 1.
      x: the start, [d].
      printed: with the q(x) of equation 15 as published.

    Raises:
      ConditionError: if K is not a whole number >= 1.

    Errata: equation 14 must have grad m_K^i(x) on its right, the mean over examples of one client;
    equation 15 sums over all clients in I, and must average over the M in I_t, or the gradient is
    too large by the number of clients. The proof's display has (I - gamma A_i)^{2K+1}; it is (I -
    gamma A_i)^{2K} A_i (x - c_i). The theorem is right.

    Example:
      >>> clients = QuadraticPopulation.from_centres([1.0, 2.0], [0.0, 0.0])
      >>> each, mean = theorem_4(clients, 0.25, 1, [1.0])
      >>> each.actual.tolist(), each.bound.tolist()
      ([[0.5625], [0.5]], [[0.5625], [0.5]])
      >>> theorem_4(clients, 0.25, 1, [1.0], printed=True)[1].actual.tolist(), mean.bound.tolist()
      ([1.0625], [0.53125])
    """
    name = statement("Theorem 4", printed)
    steps = whole_steps(name, K)
    found: Surrogate = surrogate(population, gamma, last(2 * steps + 1))
    x = np.asarray(x, float)
    y = np.broadcast_to(x, population.linear.shape)
    step = np.eye(population.dimension) - found.gamma * population.matrices  # Jacobian of a step
    jacobian = np.eye(population.dimension)
    for _ in range(steps):
        y = np.einsum("nij,nj->ni", step, y) - found.gamma * population.linear
        jacobian = step @ jacobian
    gradients = np.einsum("nij,nj->ni", population.matrices, y) + population.linear
    chained = np.einsum("nji,nj->ni", jacobian, gradients)
    return (
        Claim(
            name, "grad m_K^i(x) = grad f~_i(x, gamma, Theta_2K+1)",
            chained, "=", found.matrices @ x + found.linear,
        ),
        Claim(
            name, "E q(x) = grad f~(x, gamma, Theta_2K+1)",
            chained.sum(0) if printed else population.mean(chained), "=", found.gradient(x),
        ),
    )


def local_gradients(
    population: QuadraticPopulation, gamma: float, steps: int, x: np.ndarray
) -> list[np.ndarray]:
    """The mean gradients E g_k of every client's local steps from x, each [N, d]."""
    y, found = np.broadcast_to(x, population.linear.shape), []
    for _ in range(steps):
        found.append(np.einsum("nij,nj->ni", population.matrices, y) + population.linear)
        y = y - gamma * found[-1]
    return found
