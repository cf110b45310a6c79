"""Sections 9.1 to 9.4: one round, the drift in it, and convergence."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedax.theory.charles2020.conditions import at_least, at_most, positive, whole_steps
from fedax.theory.claims import Claim, require
from fedax.theory.elastic2023.step_sizes import statement
from fedax.theory.given import as_count, as_number
from fedax.theory.mime2020.clients import least_G2
from fedax.theory.moments import output_covariances
from fedax.theory.population import QuadraticPopulation, as_point
from fedax.theory.surrogate import surrogate


class Rates(NamedTuple):
    """The learning rates of Algorithm 3.

    Attributes:
      local: eta_l > 0.
      server: eta_g > 0.
      phi: > 0, with phi eta_g >= 1.
    """

    local: float
    server: float = 1.0
    phi: float = 1.0


def lemma_7(
    population: QuadraticPopulation, x: Any, rates: Rates, K: int, B2: float,
    cohort_size: int | None = None, printed: bool = False,
) -> Claim:
    r"""Progress in one round (Chen et al. 2023, Lemma 7).

    If :math:`\tilde\eta \le 1/(8 (1 + B^2) \beta)`, then

    .. math:: E|x^r - x^*|^2 \le \left(1 - \frac{\mu \tilde\eta}{2}\right) |x - x^*|^2
        + \frac{\tilde\eta^2 \sigma^2}{K S}
        + \left(1 - \frac SN\right) \frac{4 \tilde\eta^2 G^2}{S}
        - \tilde\eta (f(x) - f^*) + 3 \beta \tilde\eta\, \mathcal E_r

    from a given x = x^{r-1}, with the drift :math:`\mathcal E_r = \frac1{KN} \sum_{k,i} E|y_{i,k-1}
    - x|^2`.

    Args:
      population: the clients, convex, with the same probability, and their noise.
      x: x^{r-1}, [d].
      rates: eta_l, eta_g and phi.
      K: local steps, whole, >= 1.
      B2: B^2 >= 1; G^2 is the least for it.
      cohort_size: S clients drawn without replacement; None: all.
      printed: with the condition :math:`\eta_l \le 1/(8 (1 + B^2) \beta K \eta_g)`, as published.

    Raises:
      ConditionError: if a client is not convex, the clients' probabilities differ, B^2 is too small
        for any G, or a rate is too large.

    Errata: phi is missing in the condition. For one client with A = 1, eta_g = K = 1, eta_l = 1/16
    and phi = 32 a round goes from x = 1 to -1, and the right side is -1. In the proof, noise of a
    step is taken to be uncorrelated with later gradients, which it is not; on quadratics the
    correlation is negative. E_r is published with y_{i,k}, but the proofs use y_{i,k-1}.

    Example:
      >>> pair = QuadraticPopulation.from_linear([2.0, 0.0], [1.0, -1.0])
      >>> claim = lemma_7(pair, 1.0, Rates(1 / 64), 1, 3.0)  # beta = 2
      >>> round(claim.actual, 6), round(claim.bound, 6)  # (63/64)^2, and 1 - 1/128
      (0.968994, 0.992188)
    """
    name = statement("Lemma 7", printed)
    at = _One(name, population, x, rates, K, B2, cohort_size)
    if printed:
        at.check_rate(name, at.step / rates.phi)
    else:
        at.check_rate(name, at.step)
    noise = at.step**2 * at.sigma2 / (at.K * at.size)
    drawn = (1 - at.size / at.clients.num_clients) * 4 * at.step**2 * at.G2 / at.size
    return Claim(
        name, "E|x^r - x*|^2 <= (1 - mu eta / 2) |x - x*|^2 + eta^2 sigma^2 / (K S) + "
        "(1 - S / N) 4 eta^2 G^2 / S - eta (f(x) - f*) + 3 beta eta E_r",
        at.next_distance(), "<=",
        (1 - at.mu * at.step / 2) * at.distance + noise + drawn - at.step * at.gap
        + 3 * at.beta * at.step * at.drift(),
    )


def lemma_8(
    population: QuadraticPopulation, x: Any, rates: Rates, K: int, B2: float,
    printed: bool = False,
) -> Claim:
    r"""The clients' drift (Chen et al. 2023, Lemma 8).

    If :math:`\tilde\eta \le 1/(8 (1 + B^2) \beta)`, then

    .. math:: 3 \beta \tilde\eta\, \mathcal E_r \le \frac{2 \tilde\eta}{3} (f(x) - f^*)
        + \frac{\tilde\eta^2 \sigma^2}{2 K \phi^2 \eta_g^2} + 18 \beta \tilde\eta^3 G^2.

    Args:
      population, x, rates, K, B2: as for `lemma_7`; the drift is over all clients.
      printed: without phi^2, as published.

    Raises:
      ConditionError: as for `lemma_7`, or if phi eta_g < 1.

    Errata: phi^2 is missing, which makes the lemma false if phi is below 1: at the minimiser of one
    client with A = 1 and sigma = 1, with phi = 1/4, eta_g = 4, K = 50 and eta~ = 1/16, the left
    side is 2.83 times the published bound. Slips of the proof, which leave the lemma right: 1 -
    1/(K - 1) must be 1 + 1/(K - 1); K eta_l^2 is eta~^2 / (K phi^2 eta_g^2), not eta~^2 / (phi
    eta_g K); and 3 beta eta~^3 sigma^2 lacks a factor of 3.

    Example:
      >>> one = QuadraticPopulation.from_linear([1.0], [0.0], noise=1.0)
      >>> rates = Rates(local=1 / 16 / 50, server=4.0, phi=0.25)
      >>> round(lemma_8(one, 0.0, rates, 50, 1.0).ratio, 2)
      0.18
      >>> round(lemma_8(one, 0.0, rates, 50, 1.0, printed=True).ratio, 2)
      2.83
    """
    name = statement("Lemma 8", printed)
    at = _One(name, population, x, rates, K, B2, None)
    at.check_rate(name, at.step)
    at_least(name, "phi eta_g", rates.phi * rates.server, "1", 1.0)
    scale = rates.server if printed else rates.phi * rates.server
    return Claim(
        name, "3 beta eta E_r <= (2 eta / 3) (f(x) - f*) + eta^2 sigma^2 / (2 K "
        + ("" if printed else "phi^2 ") + "eta_g^2) + 18 beta eta^3 G^2",
        3 * at.beta * at.step * at.drift(), "<=",
        2 * at.step / 3 * at.gap + at.step**2 * at.sigma2 / (2 * at.K * scale**2)
        + 18 * at.beta * at.step**3 * at.G2,
    )


def theorem_1(
    population: QuadraticPopulation, start: Any, rates: Rates, K: int, num_rounds: int,
    B2: float, cohort_size: int | None = None,
) -> tuple[Claim, ...]:
    r"""Elastic aggregation converges (Chen et al. 2023, Theorem I).

    If :math:`\tilde\eta \le 1/(8 (1 + B^2) \beta)` and :math:`\phi \eta_g \ge 1`, then with S of N
    clients in each round

    .. math::
        \frac1{R+1} \sum_{r=0}^{R} E f(x^r) - f^* &\le \frac{3 D^2}{\tilde\eta (R + 1)} + V \\
        \sum_{r=0}^{R} \frac{w_r}{W_R} E f(x^r) - f^* &\le \frac92 \mu D^2 e^{-\mu \tilde\eta R / 2}
        + V \quad \text{if } \mu > 0 \text{ and } R \ge \frac{1}{\mu \tilde\eta}

    where :math:`w_r = (1 - \mu \tilde\eta / 2)^{-r}`, :math:`D = |x^0 - x^*|` and

    .. math:: V = 3 \tilde\eta \frac{\sigma^2}{K S} \left(1 + \frac{S}{\phi^2 \eta_g^2}\right)
        + 12 \tilde\eta \left(1 - \frac SN\right) \frac{G^2}{S} + 54 \beta \tilde\eta^2 G^2.

    The paper states the order for the best eta~ (`lemma_1` and `lemma_2`).

    Args:
      population, K, B2, cohort_size: as for `lemma_7`.
      start: x^0, [d].
      rates: eta_l, eta_g and phi, the same in all rounds.
      num_rounds: R.

    Returns:
      The claim for convex losses and, if mu > 0 and R is large enough, that for strongly convex
      ones.

    Raises:
      ConditionError: as for `lemma_8`.

    Errata: D is published as :math:`|x^0 - x^*|^2`; the rates have the units of f for
    :math:`|x^0 - x^*|` only. In the proof of the strongly convex case the constants 3, 2, 8 and 36
    must be 9/2, 3, 12 and 54: Lemma 1 multiplies d_0 = 3 D^2 by 3 mu / 2.

    Example:
      >>> pair = QuadraticPopulation.from_linear([2.0, 1.0], [1.0, -1.0])
      >>> claims = theorem_1(pair, 5.0, Rates(1 / 320), 5, 300, 3.0)
      >>> [claim.holds for claim in claims]
      [True, True]
    """
    name = statement("Theorem I")
    at = _One(name, population, start, rates, K, B2, cohort_size)
    at.check_rate(name, at.step)
    at_least(name, "phi eta_g", rates.phi * rates.server, "1", 1.0)
    R, gaps = as_count("num_rounds", num_rounds), at.gaps(num_rounds)
    share = 1 + at.size / (rates.phi * rates.server) ** 2
    drawn = 12 * at.step * (1 - at.size / at.clients.num_clients) * at.G2 / at.size
    rest = (
        3 * at.step * at.sigma2 / (at.K * at.size) * share + drawn
        + 54 * at.beta * at.step**2 * at.G2
    )
    found = [Claim(
        name, "mean E f(x^r) - f* <= 3 D^2 / (eta (R + 1)) + V",
        float(gaps.mean()), "<=", float(3 * at.distance / (at.step * (R + 1)) + rest),
    )]
    if at.mu * at.step * R >= 1:
        weights = (1 - at.mu * at.step / 2) ** -np.arange(R + 1.0)
        found.append(Claim(
            name, "weighted mean of E f(x^r) - f* <= (9/2) mu D^2 exp(-mu eta R / 2) + V",
            float(weights @ gaps / weights.sum()), "<=",
            float(4.5 * at.mu * at.distance * np.exp(-at.mu * at.step * R / 2) + rest),
        ))
    return tuple(found)


class _One:
    """The clients, the constants and one round from x."""

    def __init__(
        self, name: str, population: QuadraticPopulation, x: Any, rates: Rates, K: int, B2: float,
        cohort_size: int | None,
    ) -> None:
        f, self.K, self.rates = population, whole_steps(name, K), rates
        require(
            float(np.ptp(f.probabilities)) <= 1e-12, name,
            "clients with the same probability, as a cohort is drawn uniformly",
        )
        for symbol, rate in zip(("eta_l", "eta_g", "phi"), rates, strict=True):
            positive(name, symbol, as_number(symbol, rate))
        require(f.mu >= -1e-12 * abs(f.L), name, f"convex clients (A2), but mu = {f.mu:g}")
        self.size = (
            f.num_clients if cohort_size is None else as_count("cohort_size", cohort_size)
        )
        require(
            self.size <= f.num_clients, name,
            f"S <= N, but S = {self.size} and N = {f.num_clients}",
        )
        self.mu, self.beta, self.sigma2 = max(f.mu, 0.0), f.L, f.G2
        self.B2, self.G2 = B2, least_G2(f, B2)
        require(np.isfinite(self.G2), name,
                f"(A1), which no G satisfies for these clients with B^2 = {B2:g}")
        self.clients, self.x = f, as_point(x, f.dimension)
        self.total = rates.phi * rates.server * rates.local
        self.step = self.K * self.total  # eta~
        away = self.x - f.minimiser
        self.distance = float(away @ away)
        self.gap = float(f.loss(self.x) - f.loss(f.minimiser))

    def check_rate(self, name: str, step: float) -> None:
        """Requires step <= 1 / (8 (1 + B^2) beta)."""
        at_most(
            name, "eta", step, "1/(8 (1 + B^2) beta)", 1 / (8 * (1 + self.B2) * self.beta)
        )

    def drift(self) -> float:
        """E_r, the mean square distance of y_0, ..., y_{K-1} from x."""
        f, eta = self.clients, self.rates.local
        squares = 0.0
        for k in range(1, self.K):
            found = surrogate(f, eta, k)
            moved = found.matrices @ self.x + found.linear
            noise = np.trace(output_covariances(f, eta, k), axis1=1, axis2=2)
            squares += eta**2 * float(f.mean(np.sum(moved**2, 1) + noise))
        return squares / self.K

    def next_distance(self) -> float:
        """E|x^r - x*|^2."""
        f = self.clients
        found = surrogate(f, self.rates.local, self.K)
        returned = found.matrices @ self.x + found.linear
        mean = f.mean(returned)
        away = self.x - self.total * mean - f.minimiser
        noise = np.trace(output_covariances(f, self.rates.local, self.K), axis1=1, axis2=2)
        variance = self.left_out() * f.mean(np.sum((returned - mean) ** 2, 1)) + f.mean(noise)
        return float(away @ away + self.total**2 * variance / self.size)

    def left_out(self) -> float:
        """(N - S) / (N - 1), the factor of a mean's variance without replacement."""
        N = self.clients.num_clients
        return (N - self.size) / (N - 1) if N > 1 else 0.0

    def gaps(self, num_rounds: int) -> np.ndarray:
        """E f(x^r) - f* of rounds r = 0, ..., R, [R + 1]."""
        f = self.clients
        found = surrogate(f, self.rates.local, self.K)
        noise = f.mean(output_covariances(f, self.rates.local, self.K))
        step = np.eye(f.dimension) - self.total * found.matrix
        shift = self.total * f.mean(found.linear)
        own = found.matrices - found.matrix, found.linear - f.mean(found.linear)
        x, covariance, gaps = self.x, np.zeros_like(step), []
        for _ in range(num_rounds + 1):
            spread = np.trace(f.matrix @ covariance) / 2
            gaps.append(float(f.loss(x) - f.loss(f.minimiser) + spread))
            away = own[0] @ x + own[1]
            drawn = f.mean(away[:, :, None] * away[:, None] + own[0] @ covariance @ own[0])
            variance = (self.left_out() * drawn + noise) / self.size
            x = step @ x - shift
            covariance = step @ covariance @ step.T + self.total**2 * variance
        return np.array(gaps)
