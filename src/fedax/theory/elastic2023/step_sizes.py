"""Section 7.2: step sizes for linear and sublinear rates; section 4: the extra cost."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedax.theory.charles2020.conditions import at_least, at_most, positive
from fedax.theory.claims import Claim, require
from fedax.theory.given import as_array, as_count, as_number


def extra_cost(fraction: float = 0.1, num_local_epochs: int = 10) -> float:
    r"""The share of training cost that the sensitivities add (Chen et al. 2023, section 4).

    .. math:: \frac{\mu}{2 e}

    mu is the fraction of a client's examples on which the sensitivities are computed, once a round,
    and e the number of local epochs. (The paper calls the decay of the sensitivities mu too.)

    Args:
      fraction: mu in [0, 1]; the paper's 10% by default.
      num_local_epochs: e >= 1; the paper's 10 by default.

    Raises:
      ConditionError: if the fraction is not in [0, 1].

    Example:
      >>> extra_cost()
      0.005
    """
    fraction = as_number("fraction", fraction)
    require(0 <= fraction <= 1, statement("section 4"),
            f"a fraction in [0, 1], but it is {fraction:g}")
    return fraction / (2 * as_count("num_local_epochs", num_local_epochs))


def lemma_1(
    distances: Any, mu: float, eta_max: float, c: float, printed: bool = False
) -> tuple[float, Claim]:
    r"""The step size for a linear rate (Chen et al. 2023, Lemma 1).

    For d_0, ..., d_{R+1} >= 0, :math:`\eta_{\max} \le 1/\mu` and :math:`R \ge 1/(2 \eta_{\max}
    \mu)`, with :math:`\eta = \min(\eta_{\max}, \ln(\max(e, \mu^2 R d_0 / c)) / (\mu R))` and
    weights :math:`w_r = (1 - \mu \eta)^{1-r}` with the sum W_R,

    .. math:: \frac1{W_R} \sum_{r=1}^{R+1} w_r \left(\frac{(1 - \mu \eta) d_{r-1} - d_r}{\eta} +
        c \eta\right) \le 3 \mu d_0 e^{-\mu \eta_{\max} R}
        + \left(3 + \ln \max(e, \mu^2 R d_0 / c)\right) \frac{c}{\mu R}.

    The paper states the order of the right side.

    Args:
      distances: d_0, ..., d_{R+1}, [R + 2], R >= 1.
      mu: > 0.
      eta_max: in (0, 1/mu], at least 1/(2 mu R).
      c: >= 0.
      printed: with max(1, ...) in eta, as published.

    Returns:
      eta and the claim.

    Raises:
      ConditionError: if an argument is out of its range, or eta is 0.

    Erratum: the published eta has max(1, mu^2 R d_0 / c) in the logarithm, which makes eta 0 if
    mu^2 R d_0 <= c, and less than the 1/(2 mu R) that the proof needs if that is below the root of
    e.

    Example:
      >>> eta, claim = lemma_1([4.0, 2.0, 1.0, 0.5], mu=1.0, eta_max=0.5, c=0.1)
      >>> eta, claim.holds
      (0.5, True)
    """
    name = statement("Lemma 1", printed)
    d = as_array("distances", distances)
    require(d.ndim == 1 and len(d) >= 3 and d.min() >= 0, name, "d_0, ..., d_R+1 >= 0 with R >= 1")
    R = len(d) - 2
    positive(name, "mu", as_number("mu", mu))
    require(as_number("c", c) >= 0, name, f"c >= 0, but c = {c:g}")
    at_most(name, "eta_max", as_number("eta_max", eta_max), "1/mu", 1 / mu)
    at_least(name, "eta_max", eta_max, "1/(2 mu R)", 1 / (2 * mu * R))
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.nan_to_num(mu**2 * R * d[0] / np.float64(c), nan=0.0, posinf=np.inf)
    logarithm = float(np.log(max(1.0 if printed else np.e, share)))
    eta = min(eta_max, logarithm / (mu * R))
    positive(name, "eta", eta)
    w = (1 - mu * eta) ** -np.arange(float(R + 1)) if mu * eta < 1 else np.eye(1, R + 1, R)[0]
    terms = ((1 - mu * eta) * d[:-1] - d[1:]) / eta + c * eta
    rest = 0.0 if c == 0 else (3 + logarithm) * c / (mu * R)
    return eta, Claim(
        name, "Psi_R <= 3 mu d_0 exp(-mu eta_max R) + (3 + ln(max(e, mu^2 R d_0 / c))) c / (mu R)",
        float(w @ terms / w.sum()), "<=",
        float(3 * mu * d[0] * np.exp(-mu * eta_max * R) + rest),
    )


def lemma_2(distances: Any, eta_max: float, c_1: float, c_2: float) -> tuple[float, Claim]:
    r"""The step size for a sublinear rate (Chen et al. 2023, Lemma 2).

    For d_0, ..., d_{R+1} >= 0 and :math:`\eta = \min(\eta_{\max}, \sqrt{d_0 / (c_1 (R + 1))},
    \sqrt[3]{d_0 / (c_2 (R + 1))})`,

    .. math:: \frac1{R+1} \sum_{r=1}^{R+1} \left(\frac{d_{r-1} - d_r}{\eta} + c_1 \eta +
        c_2 \eta^2\right) \le \frac{d_0}{\eta_{\max} (R + 1)}
        + \frac{2 \sqrt{c_1 d_0}}{\sqrt{R + 1}} + 2 \left(\frac{d_0}{R + 1}\right)^{2/3} c_2^{1/3}.

    Args:
      distances: d_0, ..., d_{R+1}, [R + 2], d_0 > 0.
      eta_max: > 0.
      c_1, c_2: >= 0.

    Returns:
      eta and the claim.

    Raises:
      ConditionError: if an argument is out of its range.

    Errata of the proof: c_2^{1/2} in its first case must be c_2^{1/3}; the second case is
    eta_max^3 >= d_0 / (c_2 (R + 1)); and its last line has c eta for c_1 eta + c_2 eta^2, and = for
    <=. The lemma is right.

    Example:
      >>> eta, claim = lemma_2([8.0, 0.0], eta_max=4.0, c_1=2.0, c_2=1.0)
      >>> eta, claim.actual, claim.bound  # 8/2 + 4 + 4 and 8/4 + 2 * 4 + 2 * 4
      (2.0, 12.0, 18.0)
    """
    name = statement("Lemma 2")
    d = as_array("distances", distances)
    require(
        d.ndim == 1 and len(d) >= 2 and d.min() >= 0 and d[0] > 0, name,
        "d_0 > 0 and d_1, ..., d_R+1 >= 0",
    )
    positive(name, "eta_max", as_number("eta_max", eta_max))
    for symbol, value in (("c_1", c_1), ("c_2", c_2)):
        require(as_number(symbol, value) >= 0, name, f"{symbol} >= 0, but {symbol} = {value:g}")
    rounds, eta = len(d) - 1, eta_max
    if c_1 > 0:
        eta = min(eta, (d[0] / (c_1 * rounds)) ** 0.5)
    if c_2 > 0:
        eta = min(eta, (d[0] / (c_2 * rounds)) ** (1 / 3))
    psi = float((d[0] - d[-1]) / (eta * rounds) + c_1 * eta + c_2 * eta**2)
    bound = d[0] / (eta_max * rounds) + 2 * (c_1 * d[0] / rounds) ** 0.5
    return float(eta), Claim(
        name, "Psi_R <= d_0 / (eta_max (R + 1)) + 2 (c_1 d_0 / (R + 1))^(1/2) + "
        "2 (d_0 / (R + 1))^(2/3) c_2^(1/3)",
        psi, "<=", float(bound + 2 * (d[0] / rounds) ** (2 / 3) * c_2 ** (1 / 3)),
    )


def statement(number: str, printed: bool = False) -> str:
    """Paper and number, the name of a statement in `Claim` and in errors."""
    return f"Chen et al. 2023, {number}" + (" (as printed)" if printed else "")
