r"""MimeSGD, without momentum: Lemmas 5 to 7, Theorems II and III (Karimireddy et al. 2020, F).

A round starts from x; a client of the cohort takes K steps :math:`y_k = y_{k-1} - \eta d_k` with

.. math:: d_k = \nabla f_i(y_{k-1}; \zeta) - \nabla f_i(x; \zeta) + c, \qquad
    c = \frac1S \sum_{j \in S} \nabla f_j(x).

The lemmas are about one round from a given x. Left sides are exact means over cohorts, minibatches
and the cohort's members, and G^2 is that of x, the only point at which the proofs use it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedax.theory.charles2020.conditions import whole_steps
from fedax.theory.claims import Claim, require
from fedax.theory.given import as_count
from fedax.theory.mime2020.clients import Clients, Sampled, limited, sampled, statement
from fedax.theory.mime2020.rounds import Steps, walk
from fedax.theory.population import QuadraticPopulation, as_point


class _Round(NamedTuple):
    clients: Sampled
    steps: Steps
    size: int  # S
    G2: float
    distances: np.ndarray  # E|y_k - x|^2, [K + 1]


def _round(
    name: str, clients: Clients, x: Any, eta: float, K: int, cohort_size: int | None,
    delta: float | None,
) -> _Round:
    found = sampled(name, clients, delta)
    K, f = whole_steps(name, K), found.population
    x = as_point(x, f.dimension)
    gradients = f.gradients(x)
    steps = walk(
        found, x, eta, K, cohort_size, lambda _, cohort: gradients[list(cohort)].mean(0)
    )
    size = f.num_clients if cohort_size is None else cohort_size
    return _Round(found, steps, size, found.G2(x), steps.distances(x))


def lemma_5(
    clients: Clients, x: Any, eta: float, K: int, cohort_size: int | None = None,
    delta: float | None = None,
) -> Claim:
    r"""The size of an update (Karimireddy et al. 2020, Lemma 5).

    .. math:: E|d_k|^2 \le \frac{3 G^2}{S} + 3 \delta^2 E|y_{k-1} - x|^2
        + 3 E|\nabla f(y_{k-1})|^2

    Args:
      clients: a `QuadraticPopulation`, or one of examples for each client.
      x: the server's parameters, [d].
      eta: learning rate.
      K: local steps, whole, >= 1.
      cohort_size: S; None: all clients.
      delta: of (A2); None: the least.

    Returns:
      One claim with an entry for each step.

    Raises:
      ConditionError: if delta is too small, K is not a whole number >= 1, or the clients'
        probabilities differ.

    Erratum: published without means on the right. For a given y_{k-1} it is false after the first
    step, as y_{k-1} tells which clients were drawn.

    Example:
      >>> pair = QuadraticPopulation.from_linear([2.0, 0.0], [1.0, -1.0])
      >>> claim = lemma_5(pair, 1.0, 0.1, 2)
      >>> claim.actual.round(6).tolist(), claim.bound.round(6).tolist()  # 3 * 4 / 2 + 3, ...
      ([1.0, 0.82], [9.0, 8.46])
    """
    name = statement("Lemma 5")
    found = _round(name, clients, x, eta, K, cohort_size, delta)
    return Claim(
        name, "E|d_k|^2 <= 3 G^2 / S + 3 delta^2 E|y_k-1 - x|^2 + 3 E|grad f(y_k-1)|^2",
        found.steps.updates, "<=",
        3 * found.G2 / found.size + 3 * found.clients.delta**2 * found.distances[:-1]
        + 3 * found.steps.gradients[:-1],
    )


def lemma_6(
    clients: Clients, x: Any, eta: float, K: int, cohort_size: int | None = None,
    delta: float | None = None,
) -> Claim:
    r"""How far a client moves (Karimireddy et al. 2020, Lemma 6).

    If :math:`\eta \le 1/(4 K \delta)`, then

    .. math:: E|y_k - x|^2 \le \left(1 + \frac2K\right) E|y_{k-1} - x|^2
        + \frac{6 K \eta^2 G^2}{S} + 6 K \eta^2 E|\nabla f(y_{k-1})|^2.

    Arguments, returns and errors are those of `lemma_5`; the condition on eta is that of the proof.

    Example:
      >>> pair = QuadraticPopulation.from_linear([2.0, 0.0], [1.0, -1.0])
      >>> claim = lemma_6(pair, 1.0, 0.1, 2)
      >>> claim.actual.round(6).tolist(), claim.bound.round(6).tolist()
      ([0.01, 0.0362], [0.36, 0.3572])
    """
    name = statement("Lemma 6")
    found = _round(name, clients, x, eta, K, cohort_size, delta)
    if found.clients.delta > 0:
        limited(name, eta, {"1/(4 K delta)": 1 / (4 * K * found.clients.delta)})
    return Claim(
        name, "E|y_k - x|^2 <= (1 + 2/K) E|y_k-1 - x|^2 + 6 K eta^2 (G^2 / S + "
        "E|grad f(y_k-1)|^2)",
        found.distances[1:], "<=",
        (1 + 2 / K) * found.distances[:-1]
        + 6 * K * eta**2 * (found.G2 / found.size + found.steps.gradients[:-1]),
    )


def lemma_7(
    clients: Clients, x: Any, eta: float, K: int, cohort_size: int | None = None, *,
    mu: float = 0.0, delta: float | None = None, printed: bool = False,
) -> Claim:
    r"""Progress in one step (Karimireddy et al. 2020, Lemma 7).

    If :math:`\eta \le \min(1/(18 L), 1/(756 \delta K), 1/(42 \mu K))`, then with
    :math:`a_k = \delta (1 + 3/K)^{K-k}`

    .. math:: \frac\eta4 E|\nabla f(y_{k-1})|^2 &\le
        E f(y_{k-1}) + (1 - \mu \eta) a_{k-1} E|y_{k-1} - x|^2 \\
        &\quad - E f(y_k) - a_k E|y_k - x|^2 + \frac{255 K \max(L, \delta) \eta^2 G^2}{2 S}.

    Args:
      clients, x, eta, K, cohort_size, delta: as for `lemma_5`.
      mu: >= 0, any constant.
      printed: with L instead of max(L, delta), as published.

    Returns:
      One claim with an entry for each step.

    Raises:
      ConditionError: if eta is too large, or as for `lemma_5`.

    Errata: (a) the proof uses delta <= L, but (A3) makes only f L-smooth, and (A2) then allows a
    larger delta. For f = 0, the mean of x^2 / 2 + x and -x^2 / 2 - x, L is 0, delta 1, and the
    published claim for k = 1 reads 0 <= -(1 + 3/K)^(K-1) E|y_1 - x|^2. (b) The proof replaces c by
    its mean in E<grad f(y_{k-1}), c>, although y_{k-1} depends on c after the first step. On
    quadratics with one Hessian A this leaves out eta^2 tr(A sum_{j<k} (I - eta A)^{j-1} Cov c), at
    most (k - 1) eta^2 L G^2 / S, for which the published constant has room; a constant of 3 L +
    252 K delta, which the proof would give, is false.

    Example:
      >>> pair = QuadraticPopulation.from_linear([2.0, 0.0], [1.0, -1.0])
      >>> claim = lemma_7(pair, 1.0, 1 / 1512, 2, cohort_size=1)
      >>> claim.holds, lemma_7(pair, 1.0, 1 / 1512, 2, 1, mu=1.0).holds
      (True, True)
      >>> flat = QuadraticPopulation.from_linear([1.0, -1.0], [1.0, -1.0])
      >>> lemma_7(flat, 0.0, 1 / 756, 1, 1, printed=True).holds
      False
    """
    name = statement("Lemma 7", printed)
    found = _round(name, clients, x, eta, K, cohort_size, delta)
    eta = limited(name, eta, _limits(found.clients, K, mu))
    delta, L = found.clients.delta, found.clients.smoothness
    weights = delta * (1 + 3 / K) ** (K - np.arange(K + 1))
    losses, distances = found.steps.losses, found.distances
    before = losses[:-1] + (1 - mu * eta) * weights[:-1] * distances[:-1]
    steep, symbol = (L, "L") if printed else (max(L, delta), "max(L, delta)")
    return Claim(
        name, "(eta / 4) E|grad f(y_k-1)|^2 <= A_k-1 - A_k + "
        f"255 K {symbol} eta^2 G^2 / (2 S)",
        eta / 4 * found.steps.gradients[:-1], "<=",
        before - losses[1:] - weights[1:] * distances[1:]
        + 255 * K * steep * eta**2 * found.G2 / (2 * found.size),
    )


def theorem_2(
    population: QuadraticPopulation, start: Any, eta: float, K: int, num_rounds: int,
    cohort_size: int | None = None, *, delta: float | None = None,
) -> Claim:
    r"""MimeSGD on strongly convex losses (Karimireddy et al. 2020, Theorem II).

    If f has curvature of at least mu > 0 and eta is as in `lemma_7`, then with :math:`q = 1 - \mu
    \eta / 4`, and weights :math:`q^{-j}` for the steps j = 1, ..., KT of all rounds, with the sum
    W,

    .. math:: E|\nabla f(x_{\mathrm{out}})|^2 \le \frac{8 (f(x^0) - f^*)}{\eta W}
        + \frac{1020 K \max(L, \delta) \eta G^2}{S}.

    The paper states its order, :math:`\tilde O(L G^2 / (\mu S T) + \ldots)`, for the best eta. The
    constants are those of its proof, with :math:`\mu / 4` for the progress that the proof leaves of
    mu.

    (A1) for all x needs clients with the same Hessian; here their gradients are full, so that the
    exact mean follows in closed form.

    Args:
      population: clients with the same Hessian.
      start: x^0, [d].
      eta: learning rate.
      K: local steps, whole, >= 1.
      num_rounds: T.
      cohort_size: S; None: all clients.
      delta: of (A2), at least 0; None: 0.

    Raises:
      ConditionError: if the Hessians differ, mu is not positive, or as for `lemma_7`.

    Example:
      >>> pair = QuadraticPopulation.from_linear([1.0, 1.0], [1.0, -1.0])
      >>> claim = theorem_2(pair, 5.0, 1 / 42, 1, 300, cohort_size=1)
      >>> round(claim.actual, 4), round(claim.bound, 1)
      (0.7365, 29.3)
    """
    name = statement("Theorem II")
    run = _Run(name, population, start, eta, K, num_rounds, cohort_size, delta)
    require(run.mu > 0, name, f"mu > 0 (A4), but mu = {run.mu:g}")
    limited(name, eta, _limits(run.clients, K, run.mu))
    q = 1 - run.mu * eta / 4
    weights = q ** -np.arange(1.0, run.squares.size + 1)
    return Claim(
        name, "E|grad f(x_out)|^2 <= 8 F / (eta W) + 1020 K max(L, delta) eta G^2 / S",
        float(weights @ run.squares.ravel() / weights.sum()), "<=",
        float(8 * run.gap / (eta * weights.sum()) + 2 * run.noise),
    )


def theorem_3(
    population: QuadraticPopulation, start: Any, eta: float, K: int, num_rounds: int,
    cohort_size: int | None = None, *, delta: float | None = None,
) -> Claim:
    r"""MimeSGD on general losses (Karimireddy et al. 2020, Theorem III).

    .. math:: \frac1{KT} \sum_{t,k} E|\nabla f(y_{k-1}^t)|^2 \le
        \frac{4 (f(x^0) - f^*)}{\eta K T} + \frac{510 K \max(L, \delta) \eta G^2}{S}

    for eta as in `lemma_7` with mu = 0. The paper states the order, :math:`O(G \sqrt{L F / (T S)} +
    (L + \delta K) F / (T K))`, for the best eta (`mimesgd_rate`); the constants are those of its
    proof. Arguments and errors are those of `theorem_2`, and mu may be 0.

    Example:
      >>> pair = QuadraticPopulation.from_linear([1.0, 1.0], [1.0, -1.0])
      >>> claim = theorem_3(pair, 5.0, 1 / 18, 1, 100, cohort_size=1)
      >>> round(claim.actual, 4), round(claim.bound, 1)  # 4 * 12.5 * 18 / 100 + 510 / 18
      (2.3402, 37.3)
    """
    name = statement("Theorem III")
    run = _Run(name, population, start, eta, K, num_rounds, cohort_size, delta)
    limited(name, eta, _limits(run.clients, K, 0.0))
    return Claim(
        name, "mean E|grad f(y)|^2 <= 4 F / (eta K T) + 510 K max(L, delta) eta G^2 / S",
        float(run.squares.mean()), "<=", float(4 * run.gap / (eta * run.squares.size) + run.noise),
    )


def mimesgd_rate(
    G2: float, L: float, delta: float, F: float, K: int, num_rounds: int, cohort_size: int
) -> float:
    r"""The eta of Theorem III (Karimireddy et al. 2020).

    .. math:: \eta = \min\left(\frac1{18 L}, \frac1{756 \delta K},
        \sqrt{\frac{F S}{255 K^2 L G^2 T}}\right)

    with max(L, delta) for the last L, as in `lemma_7`.

    Args:
      G2, L, delta: of (A1) to (A3); L > 0.
      F: f(x^0) - f^*.
      K: local steps.
      num_rounds: T.
      cohort_size: S.

    Example:
      >>> round(mimesgd_rate(1.0, 1.0, 0.0, 12.5, 1, 100_000, 1), 6)  # sqrt(12.5 / 2.55e7)
      0.0007
    """
    limits = [1 / (18 * L)]
    if delta > 0:
        limits.append(1 / (756 * delta * K))
    if G2 > 0:
        noise = 255 * K**2 * max(L, delta) * G2 * num_rounds
        limits.append(float(np.sqrt(F * cohort_size / noise)))
    return min(limits)


def _limits(clients: Sampled, K: int, mu: float) -> dict[str, float]:
    """The conditions of Lemma 7 on eta."""
    require(mu >= 0, statement("Lemma 7"), f"mu >= 0, but mu = {mu:g}")
    limits = {
        "1/(18 L)": 18 * clients.smoothness, "1/(756 delta K)": 756 * clients.delta * K,
        "1/(42 mu K)": 42 * mu * K,
    }
    return {symbol: 1 / value if value > 0 else np.inf for symbol, value in limits.items()}


class _Run:
    """E|grad f(y_{k-1})|^2 of all steps of a run with one Hessian A and full gradients."""

    def __init__(
        self, name: str, f: QuadraticPopulation, start: Any, eta: float, K: int, num_rounds: int,
        cohort_size: int | None, delta: float | None,
    ) -> None:
        found = sampled(name, f, delta)
        require(
            f.delta <= 1e-12 * found.smoothness, name,
            "clients with the same Hessian, without which (A1) does not hold for all x",
        )
        steps, T, N = whole_steps(name, K), as_count("num_rounds", num_rounds), f.num_clients
        size = N if cohort_size is None else as_count("cohort_size", cohort_size)
        require(size <= N, name, f"S <= N, but S = {size} and N = {N}")
        share = (N - size) / (size * (N - 1)) if N > 1 else 0.0
        values, vectors = np.linalg.eigh(f.matrix)
        away = (f.linear - f.mean(f.linear)) @ vectors  # along the eigenvectors of A
        drawn = share * f.mean(away**2)  # variances of c
        at = f.mean(f.gradients(as_point(start, f.dimension))) @ vectors
        mean, variance = at, np.zeros_like(at)  # of grad f(x^t)
        powers = (1 - eta * values[None]) ** np.arange(steps + 1)[:, None]
        squares = []
        for _ in range(T):  # grad f(y_k) = r^k grad f(x) - (1 - r^k) (c - grad f(x))
            second = mean**2 + variance
            squares.append((powers**2 @ second + (1 - powers) ** 2 @ drawn)[:-1])
            mean = powers[-1] * mean
            variance = powers[-1] ** 2 * variance + (1 - powers[-1]) ** 2 * drawn
        self.clients, self.squares = found, np.array(squares)
        self.mu = float(values[0])
        self.gap = float(f.loss(as_point(start, f.dimension)) - f.loss(f.minimiser))
        steep = max(found.smoothness, found.delta)
        self.noise = 510 * K * steep * eta * float(f.mean(away**2).sum()) / size
