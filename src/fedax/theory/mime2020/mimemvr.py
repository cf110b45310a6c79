r"""MimeMVR, with momentum: Lemmas 8 to 11 and Theorem IV (Karimireddy et al. 2020, appendix G).

A round starts from :math:`x^{t-1}`, with the parameters :math:`x^{t-2}` of the round before and the
momentum :math:`m^{t-1}`, which are given here; :math:`V^{t-1} = m^{t-1} - \nabla f(x^{t-2})`. A
client of the cohort takes K steps :math:`y_k = y_{k-1} - \eta d_k` with

.. math::
    d_k &= \nabla f_i(y_{k-1}; \zeta) - \nabla f_i(x^{t-2}; \zeta) + a c + (1 - a) m^{t-1}, \qquad
    c = \frac1S \sum_{j \in S} \nabla f_j(x^{t-2}) \\
    m^t &= a \nabla f_S(x^{t-1}) + (1 - a)(m^{t-1} + \nabla f_S(x^{t-1}) - \nabla f_S(x^{t-2})).

Equation 15 is published with :math:`\nabla f_i(x^{t-1}; \zeta)` in d_k; see `lemma_9`. Left sides
are exact means over cohorts, minibatches and the cohort's members, and G^2 is the larger one of
the two points, where the proofs use it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedax.theory.charles2020.conditions import whole_steps
from fedax.theory.claims import Claim, require
from fedax.theory.given import as_count, as_number
from fedax.theory.mime2020.clients import Clients, Sampled, limited, sampled, statement
from fedax.theory.mime2020.rounds import Steps, walk
from fedax.theory.population import QuadraticPopulation, as_point

# Lemma 11's a is at most this share of 1 for eta <= 1/(40 delta K): 1536 / 40^2.
LARGEST_A = 0.96


class Before(NamedTuple):
    """What a round of MimeMVR starts from.

    Attributes:
      x: x^{t-1}, [d].
      older: x^{t-2}, [d].
      momentum: m^{t-1}, [d].
    """

    x: Any
    older: Any
    momentum: Any


def lemma_8(
    clients: Clients, before: Before, a: float, cohort_size: int | None = None,
    delta: float | None = None,
) -> Claim:
    r"""The momentum's error (Karimireddy et al. 2020, Lemma 8).

    .. math:: E|V^t|^2 \le (1 - a) E|V^{t-1}|^2 + 2 \delta^2 E|x^{t-1} - x^{t-2}|^2
        + \frac{2 a^2 G^2}{S}

    Args:
      clients: a `QuadraticPopulation`, or one of examples for each client.
      before: x^{t-1}, x^{t-2} and m^{t-1}.
      a: in [0, 1].
      cohort_size: S; None: all clients.
      delta: of (A2); None: the least.

    Raises:
      ConditionError: if a is not in [0, 1], delta is too small, or the clients' probabilities
        differ.

    Example:
      >>> pair = QuadraticPopulation.from_linear([2.0, 0.0], [1.0, -1.0])
      >>> claim = lemma_8(pair, Before(1.0, 1.0, 0.0), 0.5, cohort_size=1)  # grad f_i(1) = 3, -1
      >>> claim.actual, claim.bound  # (1.5^2 + 0.5^2) / 2 - 0.5^2 + 0.5^2 and 0.5 + 2 / 4 * 4
      (1.25, 2.5)
    """
    name = statement("Lemma 8")
    found = _Given(name, clients, before, a, cohort_size, delta)
    return Claim(
        name, "E|V^t|^2 <= (1 - a) E|V^t-1|^2 + 2 delta^2 E|x^t-1 - x^t-2|^2 + 2 a^2 G^2 / S",
        found.next_error(), "<=",
        (1 - a) * found.error + 2 * found.clients.delta**2 * found.moved
        + 2 * a**2 * found.G2 / found.size,
    )


def lemma_9(
    clients: Clients, before: Before, eta: float, K: int, a: float,
    cohort_size: int | None = None, *, delta: float | None = None, printed: bool = False,
) -> Claim:
    r"""An update's error (Karimireddy et al. 2020, Lemma 9).

    .. math:: E|d_k - \nabla f(y_{k-1})|^2 \le 3 E|V^{t-1}|^2
        + 3 \delta^2 E|y_{k-1} - x^{t-2}|^2 + \frac{3 a^2 G^2}{S}

    Args:
      clients, before, a, cohort_size, delta: as for `lemma_8`.
      eta: learning rate.
      K: local steps, whole, >= 1.
      printed: with the update of equation 15 as published.

    Returns:
      One claim with an entry for each step.

    Raises:
      ConditionError: if K is not a whole number >= 1, or as for `lemma_8`.

    Erratum: equation 15 is published with grad f_i(x^{t-1}; zeta) where the proof, and equation 14,
    have x^{t-2}. With it the lemma is false: one client f = x^2 / 2 that moved from x^{t-2} = 1 to
    x^{t-1} = 0, with the exact momentum 1, updates with d_1 = 1, and grad f(y_0) is 0; the right
    side is 0, as delta = G = V^{t-1} = 0.

    Example:
      >>> client = QuadraticPopulation.from_linear([1.0], [0.0])
      >>> before = Before(x=0.0, older=1.0, momentum=1.0)
      >>> claim = lemma_9(client, before, 0.1, 1, 0.5)
      >>> claim.actual.tolist(), claim.bound.tolist()
      ([0.0], [0.0])
      >>> lemma_9(client, before, 0.1, 1, 0.5, printed=True).actual.tolist()
      [1.0]
    """
    name = statement("Lemma 9", printed)
    found = _Given(name, clients, before, a, cohort_size, delta)
    steps = found.walk(eta, whole_steps(name, K), printed)
    return Claim(
        name, "E|d_k - grad f(y_k-1)|^2 <= 3 E|V^t-1|^2 + 3 delta^2 E|y_k-1 - x^t-2|^2 + "
        "3 a^2 G^2 / S",
        steps.errors, "<=",
        3 * found.error + 3 * found.clients.delta**2 * steps.distances(found.older)[:-1]
        + 3 * a**2 * found.G2 / found.size,
    )


def lemma_10(
    clients: Clients, before: Before, eta: float, K: int, a: float,
    cohort_size: int | None = None, *, delta: float | None = None,
) -> Claim:
    r"""How far a client moves (Karimireddy et al. 2020, Lemma 10).

    If :math:`\eta \le 1/(6 K \delta)`, then for :math:`\Delta_k = \max(E|y_k - x^{t-2}|^2, E|y_k -
    x^{t-1}|^2, E|x^{t-1} - x^{t-2}|^2)`

    .. math:: \Delta_k \le \left(1 + \frac1K\right) \Delta_{k-1}
        + \frac{18 \eta^2 K a^2 G^2}{S} + 18 \eta^2 K E|V^{t-1}|^2
        + 6 \eta^2 K E|\nabla f(y_{k-1})|^2.

    Arguments, returns and errors are those of `lemma_9`.

    Example:
      >>> client = QuadraticPopulation.from_linear([1.0], [0.0])
      >>> claim = lemma_10(client, Before(1.0, 1.0, 1.0), 0.1, 1, 0.5)
      >>> claim.actual.round(6).tolist(), claim.bound.round(6).tolist()  # 0.1^2, 6 * 0.1^2
      ([0.01], [0.06])
    """
    name = statement("Lemma 10")
    found = _Given(name, clients, before, a, cohort_size, delta)
    K = whole_steps(name, K)
    if found.clients.delta > 0:
        limited(name, eta, {"1/(6 K delta)": 1 / (6 * K * found.clients.delta)})
    steps = found.walk(eta, K)
    far = found.farthest(steps)
    return Claim(
        name, "Delta_k <= (1 + 1/K) Delta_k-1 + 18 eta^2 K (a^2 G^2 / S + E|V^t-1|^2) + "
        "6 eta^2 K E|grad f(y_k-1)|^2",
        far[1:], "<=",
        (1 + 1 / K) * far[:-1] + 6 * eta**2 * K * steps.gradients[:-1]
        + 18 * eta**2 * K * (a**2 * found.G2 / found.size + found.error),
    )


def lemma_11(
    clients: Clients, before: Before, eta: float, K: int, cohort_size: int | None = None, *,
    delta: float | None = None, printed: bool = False,
) -> Claim:
    r"""Progress in one step (Karimireddy et al. 2020, Lemma 11).

    If :math:`\eta \le \min(1/L, 1/(40 \delta K))` and :math:`a = 1536 \eta^2 \delta^2 K^2`, then
    with :math:`w_k = (8 \eta \delta^2 K / a) (1 + 2/K)^{K-k}`

    .. math:: E f(y_k) + \frac{3\eta}{a} E|V^t|^2 + w_k \Delta_k &\le
        E f(y_{k-1}) + \frac{3\eta}{a} E|V^{t-1}|^2 + w_{k-1} \Delta_{k-1} \\
        &\quad - \frac\eta4 E|\nabla f(y_{k-1})|^2 + \frac{12534\, \eta^3 \delta^2 K^2 G^2}{S}.

    Args:
      clients, before, eta, K, cohort_size: as for `lemma_9`.
      delta: of (A2), above 0; None: the least, if that is above 0.
      printed: with the published constant 11136.

    Returns:
      One claim with an entry for each step.

    Raises:
      ConditionError: if delta is not positive, eta is too large, or as for `lemma_9`.

    Erratum: the proof adds 1152 eta^2 delta^2 K^2 + 6 + 3 a / 2, times eta a G^2 / S. For a = 0.96,
    the largest, that is 8.16, and 1536 * 8.16 is 12534; 11136 is 1536 * 7.25. That 11136 fails by
    itself is not known.

    Example:
      >>> pair = QuadraticPopulation.from_linear([2.0, 0.0], [1.0, -1.0])
      >>> lemma_11(pair, Before(1.0, 1.0, 0.0), 1 / 80, 2, cohort_size=1).holds
      True
    """
    name = statement("Lemma 11", printed)
    K = whole_steps(name, K)
    own = sampled(name, clients, delta)
    a = momentum_share(name, own, eta, K)
    found = _Given(name, clients, before, a, cohort_size, own.delta)
    steps = found.walk(eta, K)
    weights = 8 * eta * own.delta**2 * K / a * (1 + 2 / K) ** (K - np.arange(K + 1))
    potential = steps.losses + weights * found.farthest(steps)
    constant = 11136 if printed else 12534
    return Claim(
        name, "E f(y_k) + (3 eta / a) E|V^t|^2 + w_k Delta_k <= E f(y_k-1) + (3 eta / a) "
        "E|V^t-1|^2 + w_k-1 Delta_k-1 - (eta / 4) E|grad f(y_k-1)|^2 + "
        f"{constant} eta^3 delta^2 K^2 G^2 / S",
        potential[1:] + 3 * eta / a * found.next_error(), "<=",
        potential[:-1] + 3 * eta / a * found.error - eta / 4 * steps.gradients[:-1]
        + constant * eta**3 * own.delta**2 * K**2 * found.G2 / found.size,
    )


def theorem_4(
    population: QuadraticPopulation, start: Any, eta: float, K: int, num_rounds: int, delta: float,
    cohort_size: int | None = None, *, momentum: Any = None, printed: bool = False,
) -> Claim:
    r"""MimeMVR on general losses (Karimireddy et al. 2020, Theorem IV).

    For eta and a as in `lemma_11`, and :math:`x^{-1} = x^0`,

    .. math:: \frac1{KT} \sum_{t,k} E|\nabla f(y_{k-1}^t)|^2 \le
        \frac{4 (f(x^0) - f^*)}{\eta K T} + \frac{12 |m^0 - \nabla f(x^0)|^2}{a T}
        + \frac{4 \cdot 12534\, \eta^2 \delta^2 K^2 G^2}{S}.

    The paper states its order for the best eta, for which the first and the last term fall as
    :math:`(\delta G F / (\sqrt S T))^{2/3}`.

    Args:
      population: clients with the same Hessian, as for `theorem_2`; gradients are full.
      start: x^0, [d].
      eta: learning rate.
      K: local steps, whole, >= 1.
      num_rounds: T.
      delta: of (A2), > 0.
      cohort_size: S; None: all clients.
      momentum: m^0, [d]; None: grad f(x^0).
      printed: without the term of m^0, and with 11136 instead of 4 times 12534.

    Raises:
      ConditionError: if the Hessians differ, or as for `lemma_11`.

    Errata: (a) the term of m^0 is missing, and the theorem does not say what m^0 is. One client f =
    x^2 / 2 from x^0 = 1, with m^0 = 0, eta = K = 1, delta = 0.001 and T = 100, hardly moves: the
    left side is 0.862, the published bound 0.02. (b) The last display divides by eta / 4 in its
    first term only, so 11136 lacks a factor of 4. (c) Lemma 12 sums Lemma 11, whose weight of
    Delta_0 is (1 + 2/K)^K times that of Delta_K, and replaces both by that of Delta_K. For clients
    with the same Hessian the theorem as it stands here is right, as d_k - grad f(y_{k-1}) is then
    V^t; for others the proof leaves it open.

    Example:
      >>> pair = QuadraticPopulation.from_linear([1.0, 1.0], [1.0, -1.0])
      >>> theorem_4(pair, 5.0, 1 / 40, 1, 100, delta=1.0, cohort_size=1).holds
      True
      >>> one = QuadraticPopulation.from_linear([1.0], [0.0])
      >>> claim = theorem_4(one, 1.0, 1.0, 1, 100, 0.001, momentum=0.0, printed=True)
      >>> round(claim.actual, 3), round(claim.bound, 3)
      (0.862, 0.02)
    """
    name = statement("Theorem IV", printed)
    found = sampled(name, population, delta)
    require(
        population.delta <= 1e-12 * found.smoothness, name,
        "clients with the same Hessian, without which (A1) does not hold for all x",
    )
    steps, T, N = whole_steps(name, K), as_count("num_rounds", num_rounds), population.num_clients
    a = momentum_share(name, found, eta, steps)
    size = N if cohort_size is None else as_count("cohort_size", cohort_size)
    require(size <= N, name, f"S <= N, but S = {size} and N = {N}")
    x = as_point(start, population.dimension)
    gradient = population.mean(population.gradients(x))
    m = gradient if momentum is None else as_point(momentum, population.dimension)
    values, vectors = np.linalg.eigh(population.matrix)
    away = (population.linear - population.mean(population.linear)) @ vectors
    share = (N - size) / (size * (N - 1)) if N > 1 else 0.0
    drawn = share * population.mean(away**2)
    squares = _mvr_squares(
        values, gradient @ vectors, (m - gradient) @ vectors, drawn, eta, steps, T, a
    )
    G2, gap = float(population.mean(away**2).sum()), population.loss(x) - population.loss(
        population.minimiser
    )
    noise = eta**2 * delta**2 * steps**2 * G2 / size
    first = 0.0 if printed else 12 * float((m - gradient) @ (m - gradient)) / (a * T)
    return Claim(
        name, "mean E|grad f(y)|^2 <= 4 F / (eta K T) + "
        + ("11136" if printed else "12 |m^0 - grad f(x^0)|^2 / (a T) + 4 * 12534")
        + " eta^2 delta^2 K^2 G^2 / S",
        float(squares.mean()), "<=",
        float(4 * gap / (eta * steps * T) + first + (11136 if printed else 50136) * noise),
    )


def momentum_share(name: str, clients: Sampled, eta: float, K: int) -> float:
    """The a of Lemma 11, 1536 eta^2 delta^2 K^2, for an eta that it allows."""
    require(clients.delta > 0, name, "delta > 0, but delta = 0")
    limits = {"1/(40 delta K)": 1 / (40 * clients.delta * K)}
    if clients.smoothness > 0:
        limits["1/L"] = 1 / clients.smoothness
    eta = limited(name, eta, limits)
    return min(1536 * (eta * clients.delta * K) ** 2, LARGEST_A)


def _mvr_squares(
    values: np.ndarray, gradient: np.ndarray, error: np.ndarray, drawn: np.ndarray, eta: float,
    K: int, T: int, a: float,
) -> np.ndarray:
    r"""E|grad f(y_{k-1})|^2, [T, K], for one Hessian, along its eigenvectors.

    With e = c - grad f(x) of a round, :math:`d_k = \nabla f(y_{k-1}) + a e + (1 - a) V` and then
    :math:`V \leftarrow (1 - a) V + a e`, so that every step has the new V in d_k.
    """
    powers = (1 - eta * values) ** np.arange(K + 1)[:, None]  # grad f(y_k) = r^k g - (1 - r^k) V'
    g, V = gradient, error
    gg, gV, VV = g**2, g * V, V**2
    squares = []
    for _ in range(T):
        gV, VV = (1 - a) * gV, (1 - a) ** 2 * VV + a**2 * drawn
        found = powers**2 * gg - 2 * powers * (1 - powers) * gV + (1 - powers) ** 2 * VV
        squares.append(found[:-1].sum(1))
        gV, gg = powers[-1] * gV - (1 - powers[-1]) * VV, found[-1]
    return np.array(squares)


class _Given:
    """The clients, S, a and what the round starts from, checked."""

    def __init__(
        self, name: str, clients: Clients, before: Before, a: float, cohort_size: int | None,
        delta: float | None,
    ) -> None:
        self.clients = sampled(name, clients, delta)
        self.f = self.clients.population
        d = self.f.dimension
        self.x, self.older, self.momentum = (as_point(one, d) for one in before)
        require(0 <= as_number("a", a) <= 1, name, f"a in [0, 1], but a = {a:g}")
        self.a, self.cohort_size = a, cohort_size
        self.size = self.f.num_clients if cohort_size is None else cohort_size
        self.G2 = max(self.clients.G2(self.x), self.clients.G2(self.older))
        self.moved = float(np.sum((self.x - self.older) ** 2))
        wrong = self.momentum - self.f.mean(self.f.gradients(self.older))
        self.error = float(wrong @ wrong)  # |V^{t-1}|^2

    def next_error(self) -> float:
        """E|V^t|^2."""
        now, then = self.f.gradients(self.x), self.f.gradients(self.older)
        squares = []
        for cohort in self.clients.cohorts(self.cohort_size):
            new, old = (values[list(cohort)].mean(0) for values in (now, then))
            m = self.a * new + (1 - self.a) * (self.momentum + new - old)
            squares.append(np.sum((m - self.f.mean(now)) ** 2))
        return float(np.mean(squares))

    def walk(self, eta: float, K: int, printed: bool = False) -> Steps:
        """The local steps from x^{t-1}; d_k is H (y - x^{t-1}) plus the rest."""
        gradients = self.f.gradients(self.older)
        shift = self.x - (self.x if printed else self.older)

        def offset(H: np.ndarray, cohort: tuple[int, ...]) -> np.ndarray:
            c = gradients[list(cohort)].mean(0)
            return H @ shift + self.a * c + (1 - self.a) * self.momentum

        return walk(self.clients, self.x, as_number("eta", eta), K, self.cohort_size, offset)

    def farthest(self, steps: Steps) -> np.ndarray:
        """Delta_k, [K + 1]."""
        return np.maximum(
            np.maximum(steps.distances(self.older), steps.distances(self.x)), self.moved
        )
