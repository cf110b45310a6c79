"""Section 9.5: a lower bound from two clients."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedax.theory.charles2020.conditions import at_most, positive, whole_steps
from fedax.theory.claims import Claim, require
from fedax.theory.elastic2023.step_sizes import statement
from fedax.theory.given import as_array, as_number

# Lemma 9's constant: (1 - e^(-1/8)) / 64.
SMALLEST = -float(np.expm1(-1 / 8)) / 64


def lemma_9(
    etas: Any, K: int, start: float, *, G: float, mu: float, printed: bool = False
) -> Claim:
    r"""No step sizes remove the drift (Chen et al. 2023, Lemma 9).

    If :math:`\eta_r \le 1/\mu`, K >= 2 and x^0 > 0, then the sequence

    .. math:: x^r = x^{r-1} \frac{1 + (1 - 2 \mu \eta_r)^K}{2}
        + \frac{\eta_r G}{2} \sum_{\tau=0}^{K-1} (1 - (1 - 2 \mu \eta_r)^\tau)

    has :math:`x^R \ge c \min(x^0, G / (\mu R))` with :math:`c = (1 - e^{-1/8}) / 64`. The paper
    states it for some c.

    Args:
      etas: of the rounds, [R].
      K: local steps, whole, >= 2.
      start: x^0 > 0.
      G, mu: > 0.
      printed: with :math:`(1 - 2 \mu \eta_r)^K` as the factor of x^{r-1}, as in equation 21.

    Returns:
      One claim with an entry for each round r = 1, ..., R; the right side has R for all.

    Raises:
      ConditionError: if an argument is out of its range.

    Errata: (a) the factor is published as (1 - 2 mu eta)^K, which is negative for an odd K and eta
    > 1/(2 mu), and then the lemma is false for every c: with mu = G = 1, K = 3, eta = 1 and x^0 =
    10 the right side of equation 21 is -9. Theorem II has the factor above. (b) In the proof,
    gamma_r G / (4 mu) lacks 1/R, and gamma_r^2 G / (4 mu R) is with R^2; (1 - z/n)^n <= 1 - z is
    false for n > 1, and 1 - exp(-z) >= 15 z / 16 for z <= 1/8 is what is needed; and the induction
    must then use both terms: (1 - 2 z) x + z (15 z G / (64 mu)) is at least the smaller of x and 15
    z G / (128 mu).

    Example:
      >>> claim = lemma_9([0.5, 0.1], 3, 1.0, G=1.0, mu=1.0)
      >>> claim.actual.round(4).tolist(), f"{claim.bound:.6f}"  # 0.5 + 0.25 * 2, ...
      ([1.0, 0.784], '0.000918')
      >>> lemma_9([1.0], 3, 10.0, G=1.0, mu=1.0, printed=True).actual.tolist()
      [-9.0]
    """
    name = statement("Lemma 9", printed)
    etas, K = np.atleast_1d(as_array("etas", etas)), whole_steps(name, K)
    require(K >= 2, name, f"K >= 2, but K = {K}")
    for symbol, value in (("x^0", start), ("G", G), ("mu", mu)):
        positive(name, symbol, as_number(symbol, value))
    positive(name, "eta", float(etas.min()))
    at_most(name, "eta", float(etas.max()), "1/mu", 1 / mu)
    x, path = float(start), []
    for eta in etas:
        q = 1 - 2 * mu * eta
        x *= q**K if printed else (1 + q**K) / 2
        x += eta * G / 2 * float(np.sum(1 - q ** np.arange(K)))
        path.append(x)
    return Claim(
        name, "x^r >= c min(x^0, G / (mu R))",
        np.array(path), ">=", SMALLEST * min(float(start), G / (mu * len(etas))),
    )


def theorem_2(
    etas: Any, K: int, start: float, *, G: float, mu: float, weight: float = 0.5
) -> Claim:
    r"""A lower bound from two clients (Chen et al. 2023, Theorem II).

    With :math:`f_1 = \mu x^2 + G x` and :math:`f_2 = -G x`, x^0 > 0, :math:`\phi \eta_g = 1`, K >=
    2 and :math:`\eta_r \le 1/\mu`, after R rounds in which the second client has the weight alpha
    >= 1/2,

    .. math:: f(x^r) - f^* \ge c^2 \min\left(f(x^0) - f^*, \frac{G^2}{2 \mu R^2}\right),

    with f = mu x^2 / 2 and the c of `lemma_9`. The paper states the order.

    Args:
      etas: of the rounds, [R].
      K: local steps, whole, >= 2.
      start: x^0 > 0.
      G, mu: > 0.
      weight: alpha in [1/2, 1].

    Returns:
      One claim with an entry for each round r = 1, ..., R; the right side has R for all.

    Raises:
      ConditionError: if an argument is out of its range.

    Errata: (a) "f_1 and f_2 satisfy A1 with B = 3" is false for this G. The mean of the squared
    gradients is 2 mu^2 x^2 + 2 mu G x + G^2, which exceeds B^2 mu^2 x^2 by G^2 (1 + 1/(B^2 - 2)) at
    most: B = 3 needs 8/7 G^2 in place of G^2, and B^2 = 3 needs 2 G^2. (b) The proof assumes alpha
    <= 1/2, but its next inequality holds for alpha >= 1/2 only; with alpha = 0 the first client is
    alone, and x^r may reach its minimiser -G / (2 mu). Swapping the clients and the sign, as the
    proof says, covers the rest.

    Example:
      >>> claim = theorem_2([0.5, 0.1], 3, 1.0, G=1.0, mu=1.0)
      >>> claim.actual.round(4).tolist(), claim.holds  # half the squares of Lemma 9's example
      ([0.5, 0.3073], True)
    """
    name = statement("Theorem II")
    require(0.5 <= as_number("weight", weight) <= 1, name,
            f"a weight in [1/2, 1], but it is {weight:g}")
    bound = lemma_9(etas, K, start, G=G, mu=mu).bound
    x, path = float(start), []
    for eta in np.atleast_1d(as_array("etas", etas)):
        q = (1 - 2 * mu * eta) ** np.arange(K + 1)
        first = q[-1] * x - eta * G * q[:-1].sum()
        x = (1 - weight) * first + weight * (x + eta * G * K)
        path.append(x)
    return Claim(
        name, "f(x^r) - f* >= c^2 min(f(x^0) - f*, G^2 / (2 mu R^2))",
        mu * np.array(path) ** 2 / 2, ">=", mu * bound**2 / 2,
    )
