r"""Section 7: FedAvg's rate of convergence and its limit.

Left sides are exact, for all rounds at once. An example's gradient is its client's plus noise that
does not depend on x; Assumption 4 allows no other on quadratics, as the noise (A_z - A_i) x is
bounded for all x only if A_z = A_i. mu_gamma and L_gamma stand for phi_{K,mu}(gamma) and
phi_{K,L}(gamma), and x*_gamma for the minimiser of FedAvg's surrogate loss.

M is the number of clients per round. With all clients the server takes the mean with weights p_i,
whose noise is sum_i p_i^2 times theirs, so M is then 1 / sum_i p_i^2, which is N if all p_i are
equal. Theorems 26, 27 and 29, Lemma 25 and Corollary 28 need all clients (see `lemma_23`), so they
take a `cohort_size` only with `printed=True`: M clients, drawn independently.

Schedules are for rounds t = 1, ..., T, in arrays, which fedax's algorithms take as
`lambda t: jnp.asarray(etas)[t]`, as they count rounds from 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedax.theory.charles2020.conditions import (
    at_most,
    convex,
    positive,
    round_numbers,
    statement,
    whole_steps,
)
from fedax.theory.charles2020.spectrum import extremes
from fedax.theory.claims import Claim, require
from fedax.theory.given import as_count
from fedax.theory.moments import mean_square_distances, output_covariances
from fedax.theory.population import QuadraticPopulation
from fedax.theory.surrogate import check_gamma, phi, surrogate


def lemma_23(
    population: QuadraticPopulation,
    gamma: float,
    K: int,
    x: Any,
    *,
    batch_size: int = 1,
    cohort_size: int | None = None,
    with_replacement: bool = True,
    printed: bool = False,
) -> Claim:
    r"""The variance of the server's update (Charles and Konečný 2020, Lemma 23).

    If gamma <= 2/L, the mean q of what M clients return from x has

    .. math:: E|q - \nabla \tilde f_\gamma(x)|^2 \le \frac{K G^2}{M B} + \frac1M
        \mathrm{Var}_i(\nabla \tilde f_i(x)),

    without the second term if all clients take part, and with it times (N - M) / (N - 1) if the M
    are drawn without replacement. The left side is exact: for one client it is
    :math:`(G^2 / B) \sum_{j<K} (1 - \gamma \lambda)^{2j}` if the noise is in one eigendirection.

    Args:
      population: the clients, mu > 0.
      gamma: 0 <= gamma <= 2/L.
      K: whole, >= 1.
      x: the server's model, [d].
      batch_size: B.
      cohort_size: M; None: all clients.
      with_replacement: whether the M clients are drawn independently with probabilities p_i, or
        without replacement, which needs equal p_i.
      printed: use K G^2 / (M B) for every gamma and M, as published.

    Raises:
      ConditionError: if mu is not positive, gamma > 2/L, K is not a whole number >= 1, M < 1, or
        clients are drawn without replacement and M > N or the p_i differ.

    Errata: (a) published for all gamma >= 0. The noise of a step enters later gradients times (I -
    gamma A_i)^j, which grows if gamma > 2/L: with A = 1, gamma = 2.5, K = 10 and G = M = B = 1 the
    variance is 2659.4, the published bound 10. In the proof the martingale differences are g_k -
    grad f_i(x_k), not g_k - E g_k. (b) The variance of drawing clients at random is missing. With A
    = 1, 1 and c = 1, -1, gamma = 0.1, K = 5, M = 2, G = B = 1 the variance is 10.099, the published
    bound 2.5.

    Example:
      >>> client = QuadraticPopulation.from_centres([1.0], [0.0], noise=1.0)
      >>> claim = lemma_23(client, 2.5, 10, [0.0], printed=True)
      >>> round(claim.actual, 1), claim.bound
      (2659.4, 10.0)
      >>> clients = QuadraticPopulation.from_centres([1.0, 1.0], [1.0, -1.0], noise=1.0)
      >>> claim = lemma_23(clients, 0.1, 5, [0.0], cohort_size=2)
      >>> round(claim.actual, 3), round(claim.bound, 3)
      (10.099, 10.885)
    """
    name = statement("Lemma 23", printed)
    clients, steps = convex(name, population), whole_steps(name, K)
    if not printed:
        at_most(name, "gamma", check_gamma(gamma), "2/L", 2 / clients.L)
    p, found = clients.probabilities, surrogate(clients, gamma, steps)
    noise = np.trace(output_covariances(clients, gamma, steps, batch_size), axis1=1, axis2=2)
    M = num_clients(name, clients, cohort_size)
    if cohort_size is None:
        actual, sampling = p**2 @ noise, 0.0
    else:
        gradients = found.matrices @ np.asarray(x, float) + found.linear
        sampling = p @ np.sum((gradients - p @ gradients) ** 2, 1) / M
        if not with_replacement:
            N = clients.num_clients
            require(np.ptp(p) < 1e-12, name, "equal p_i for draws without replacement")
            require(M <= N, name, f"M <= N without replacement, but M = {M:g} and N = {N}")
            sampling *= (N - M) / max(N - 1, 1)
        actual = p @ noise / M + sampling
    variance = steps * clients.G2 / (M * batch_size)
    return Claim(
        name,
        "E|q - grad f~(x)|^2 <= K G^2 / (M B)"
        + ("" if printed or cohort_size is None else " + the variance of drawing the clients"),
        float(actual), "<=", float(variance + (0 if printed else sampling)),
    )


def lemma_24(
    population: QuadraticPopulation, gamma: float, K: int, printed: bool = False
) -> tuple[Claim, Claim]:
    r"""FedAvg's surrogate loss is smooth and convex (Charles and Konečný 2020, Lemma 24).

    It is L_gamma-smooth and mu_gamma-strongly convex.

    .. math:: \gamma \le 1/L \quad \Rightarrow \quad
        \phi_{K,\mu}(\gamma) I \preceq E[Q_i(\gamma, \Theta_{1:K}) A_i] \preceq \phi_{K,L}(\gamma) I

    Args:
      population: the clients, mu > 0.
      gamma: 0 <= gamma <= 1/L.
      K: whole, >= 1.
      printed: for every gamma, as published.

    Raises:
      ConditionError: if mu is not positive, gamma > 1/L, or K is not a whole number >= 1.

    Erratum: published without the condition gamma <= 1/L. Beyond it phi_{K,lambda} does not grow
    with lambda if K is even: with eigenvalues 1 and 2, gamma = 0.95 and K = 2, the curvatures are
    phi = 1.05 and 0.2, not between mu_gamma = 1.05 and L_gamma = 0.2.

    Example:
      >>> client = QuadraticPopulation.from_centres([[[1.0, 0.0], [0.0, 2.0]]], [[0.0, 0.0]])
      >>> largest, smallest = lemma_24(client, 0.95, 2, printed=True)
      >>> round(float(largest.actual), 2), round(largest.bound, 2)
      (1.05, 0.2)
    """
    name = statement("Lemma 24", printed)
    clients, mu_gamma, L_gamma = curvatures(name, population, gamma, K, printed)
    return extremes(
        name, "E[Q_i A_i]", surrogate(clients, gamma, K).matrix,
        ("phi_K,L", L_gamma), ("phi_K,mu", mu_gamma),
    )


def lemma_25(
    population: QuadraticPopulation,
    gamma: float,
    K: int,
    etas: Sequence[float] | np.ndarray,
    start: Any,
    *,
    batch_size: int = 1,
    cohort_size: int | None = None,
    printed: bool = False,
) -> Claim:
    r"""Progress of one round (Charles and Konečný 2020, Lemma 25).

    If gamma <= 1/L, all clients take part and eta_t <= 1/L_gamma, then

    .. math:: E|x_{t+1} - x^*_\gamma|^2 \le (1 - \eta_t \mu_\gamma) E|x_t - x^*_\gamma|^2
        + \eta_t^2 \frac{K G^2}{M B}.

    The published condition is the stronger eta_t <= mu_gamma / L_gamma^2; section 7.1 leaves open
    whether it is needed. It is not: the gradient is co-coercive, |grad f~(x)|^2 <= L_gamma <grad
    f~(x), x - x*_gamma>, so a step of eta <= 1/L_gamma lowers |x - x*_gamma|^2 by at least eta
    <grad f~(x), x - x*_gamma> >= eta mu_gamma |x - x*_gamma|^2.

    Args:
      population: the clients, mu > 0, with their noise.
      gamma: 0 <= gamma <= 1/L.
      K: whole, >= 1.
      etas: server learning rates of rounds 1, ..., T.
      start: x_1, [d].
      batch_size: B.
      cohort_size: M clients drawn independently (only with `printed`); None: all.
      printed: for every gamma and M, with the condition on eta_t, as published.

    Returns:
      One claim with an entry for each round.

    Raises:
      ConditionError: if mu is not positive, gamma > 1/L, K is not a whole number >= 1, some eta_t
        is too large, or cohort_size is given.

    Errata: those of Lemmas 23 and 24, on which it rests.

    Example:
      >>> clients = QuadraticPopulation.from_centres([1.0, 2.0], [1.0, 0.5], noise=1.0)
      >>> claim = lemma_25(clients, 0.25, 2, [0.3, 0.2], [0.0])
      >>> claim.actual.round(3).tolist(), claim.bound.round(3).tolist()
      ([0.102, 0.056], [0.312, 0.106])
    """
    name = statement("Lemma 25", printed)
    clients, mu_gamma, L_gamma = curvatures(name, population, gamma, K, printed)
    etas = np.asarray(etas, float)
    check_eta(name, etas.max(initial=0.0), mu_gamma, L_gamma, printed)
    variance = variance_bound(name, clients, K, batch_size, cohort_size, printed)
    target = surrogate(clients, gamma, K).minimiser
    distances = fedavg_distances(clients, gamma, K, etas, start, target, batch_size, cohort_size)
    return Claim(
        name,
        "E|x_t+1 - x*_gamma|^2 <= (1 - eta_t mu_gamma) E|x_t - x*_gamma|^2 + eta_t^2 K G^2 / (M B)",
        distances[1:], "<=", (1 - etas * mu_gamma) * distances[:-1] + etas**2 * variance,
    )


def theorem_26(
    population: QuadraticPopulation,
    gamma: float,
    K: int,
    eta: float,
    start: Any,
    num_rounds: int,
    *,
    batch_size: int = 1,
    cohort_size: int | None = None,
    printed: bool = False,
) -> Claim:
    r"""Fixed learning rates (Charles and Konečný 2020, Theorem 26).

    If gamma <= 1/L, all clients take part and eta <= 1/L_gamma, then

    .. math:: E|x_{t+1} - x^*_\gamma|^2 \le (1 - \eta \mu_\gamma)^t |x_1 - x^*_\gamma|^2
        + \frac{\eta K G^2}{\mu_\gamma M B}.

    Args:
      population, gamma, K, start, batch_size, cohort_size, printed: as for `lemma_25`.
      eta: server learning rate, > 0; with printed at most mu_gamma / L_gamma^2.
      num_rounds: T.

    Returns:
      One claim with an entry for each x_t, t = 1, ..., T + 1.

    Raises:
      ConditionError: as for `lemma_25`.

    Errata: those of Lemmas 23 and 24. With eigenvalues 1 and 2, gamma = 0.95 and K = 2 the
    published condition allows eta = 26.25, with which x_2 is 26.6 times as far from x*_gamma as
    x_1 was.

    Example:
      >>> clients = QuadraticPopulation.from_centres([1.0, 2.0], [1.0, 0.5], noise=1.0)
      >>> claim = theorem_26(clients, 0.25, 2, 0.3, [0.0], 2)
      >>> claim.actual.round(3).tolist(), claim.bound.round(3).tolist()
      ([0.468, 0.102, 0.072], [0.64, 0.394, 0.277])
    """
    name = statement("Theorem 26", printed)
    clients, mu_gamma, L_gamma = curvatures(name, population, gamma, K, printed)
    positive(name, "eta", eta)
    check_eta(name, eta, mu_gamma, L_gamma, printed)
    variance = variance_bound(name, clients, K, batch_size, cohort_size, printed)
    target = surrogate(clients, gamma, K).minimiser
    etas = np.full(len(round_numbers(num_rounds)), eta)
    distances = fedavg_distances(clients, gamma, K, etas, start, target, batch_size, cohort_size)
    decay = (1 - eta * mu_gamma) ** np.arange(len(distances))
    return Claim(
        name,
        "E|x_t+1 - x*_gamma|^2 <= "
        "(1 - eta mu_gamma)^t |x_1 - x*_gamma|^2 + eta K G^2 / (mu_gamma M B)",
        distances, "<=", decay * distances[0] + eta * variance / mu_gamma,
    )


def variance_bound(
    name: str,
    clients: QuadraticPopulation,
    K: float,
    batch_size: int,
    cohort_size: int | None,
    printed: bool,
) -> float:
    """K G^2 / (M B), Lemma 23's bound with all clients."""
    require(
        printed or cohort_size is None, name,
        "full participation, as Lemma 23 omits the variance of sampling clients, but "
        f"cohort_size = {cohort_size}",
    )
    batch_size = as_count("batch_size", batch_size)
    return K * clients.G2 / (num_clients(name, clients, cohort_size) * batch_size)


def curvatures(
    name: str, population: QuadraticPopulation, gamma: float, K: int, printed: bool = False
) -> tuple[QuadraticPopulation, float, float]:
    """The clients, mu_gamma and L_gamma, with gamma <= 1/L unless printed."""
    clients, steps = convex(name, population), whole_steps(name, K)
    if not printed:
        at_most(name, "gamma", check_gamma(gamma), "1/L", 1 / clients.L)
    return clients, float(phi(steps, clients.mu, gamma)), float(phi(steps, clients.L, gamma))


def check_eta(name: str, eta: float, mu_gamma: float, L_gamma: float, printed: bool) -> None:
    """The published condition or the relaxed one."""
    if printed:
        at_most(name, "eta", eta, "mu_gamma / L_gamma^2", mu_gamma / L_gamma**2)
    else:
        at_most(name, "eta", eta, "1/L_gamma", 1 / L_gamma)


def fedavg_distances(
    clients: QuadraticPopulation,
    gammas: Any,
    K: int,
    etas: np.ndarray,
    start: Any,
    target: np.ndarray,
    batch_size: int,
    cohort_size: int | None,
) -> np.ndarray:
    """E|x_t - target|^2, t = 1, ..., T + 1, of FedAvg with K steps."""
    return mean_square_distances(
        clients, np.broadcast_to(gammas, etas.shape), [K] * len(etas), etas, start, target,
        batch_size=batch_size, cohort_size=cohort_size,
    )


def default_offset(b: float | None, mu_gamma: float, L_gamma: float) -> float:
    """Theorem 27's b where none is given."""
    return 2 * (L_gamma / mu_gamma) ** 2 if b is None else b


def num_clients(name: str, clients: QuadraticPopulation, cohort_size: int | None) -> float:
    """M: of a cohort, or as many equal weights as have the p_i's sum of squares."""
    if cohort_size is None:
        return float(1 / (clients.probabilities @ clients.probabilities))
    require(cohort_size >= 1, name, f"M >= 1, but M = {cohort_size:g}")
    return cohort_size
