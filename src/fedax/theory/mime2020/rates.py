"""Table 1 and Theorem I: the order of the number of rounds (Karimireddy et al. 2020)."""

from __future__ import annotations

from typing import NamedTuple

from fedax.theory.claims import require
from fedax.theory.given import as_count, as_number
from fedax.theory.mime2020.clients import statement


class Rates(NamedTuple):
    """The order of the number of rounds; None where the table has no entry.

    Attributes:
      non_convex: for L-smooth f.
      strongly_convex: for f that is mu-PL strongly convex as well.
    """

    non_convex: float
    strongly_convex: float | None


class Rounds(NamedTuple):
    """The orders of Theorem I.

    Attributes:
      strongly_convex: MimeMVR without momentum, log factors left out; None without mu.
      non_convex: without momentum.
      momentum: with momentum.
    """

    strongly_convex: float | None
    non_convex: float
    momentum: float


def table_1(
    epsilon: float,
    *,
    G: float,
    L: float,
    delta: float,
    cohort_size: int,
    num_clients: int,
    mu: float | None = None,
) -> dict[str, Rates]:
    r"""Rounds until :math:`|\nabla f|^2 \le \epsilon` (Karimireddy et al. 2020, Table 1).

    ============  =======================================  ====================================
    method        non-convex                               strongly convex
    ============  =======================================  ====================================
    SGD           G^2 / (S eps^2) + L / eps                G^2 / (mu S eps) + L / mu
    MVR           (G / (sqrt(S) eps))^(3/2) + L / eps      --
    FedSGD        SGD's + G / eps^(3/2)                    SGD's + G / (mu sqrt(eps))
    SCAFFOLD      (N / S)^(2/3) L / eps                    N / S + L / mu
    MimeSGD       G^2 / (S eps^2) + delta / eps            G^2 / (mu S eps) + delta / mu
    MimeMVR       (G / (sqrt(S) eps))^(3/2) + delta / eps  --
    lower bound   (G / (sqrt(S) eps))^(3/2)                G^2 / (S eps)
    ============  =======================================  ====================================

    They are orders: constants, logarithms, and also factors of L and f(x^0) - f^*, are left out, so
    the terms do not have the same units. Compare how they change with epsilon, S and delta, not
    one method's number with another's. FedSGD needs K >= sigma^2 / G^2 local steps, MimeSGD and
    MimeMVR K >= L / delta.

    Args:
      epsilon: > 0.
      G, L, delta: of (A1) to (A3), >= 0.
      cohort_size: S >= 1.
      num_clients: N, for SCAFFOLD.
      mu: of (A4), > 0; None: without the second column.

    Returns:
      The rates of each row, by its name.

    Raises:
      ConditionError: if a value is out of its range.

    Example:
      >>> rows = table_1(0.01, G=1.0, L=2.0, delta=0.5, cohort_size=10, num_clients=1000, mu=0.5)
      >>> [round(rows[name].non_convex) for name in ("SGD", "FedSGD", "MimeSGD", "MimeMVR")]
      [1200, 2200, 1050, 228]
      >>> round(rows["MimeSGD"].strongly_convex, 9), rows["MimeMVR"].strongly_convex
      (21.0, None)
    """
    name = statement("Table 1")
    S, N = as_count("cohort_size", cohort_size), as_count("num_clients", num_clients)
    _check(name, epsilon, G=G, L=L, delta=delta)
    require(S <= N, name, f"S <= N, but S = {S} and N = {N}")
    statistical, optimal = G**2 / (S * epsilon**2), (G / (S**0.5 * epsilon)) ** 1.5
    drift = G / epsilon**1.5
    rows = {
        "SGD": statistical + L / epsilon,
        "MVR": optimal + L / epsilon,
        "FedSGD": statistical + drift + L / epsilon,
        "SCAFFOLD": (N / S) ** (2 / 3) * L / epsilon,
        "MimeSGD": statistical + delta / epsilon,
        "MimeMVR": optimal + delta / epsilon,
        "lower bound": optimal,
    }
    convex: dict[str, float] = {}
    if mu is not None:
        require(as_number("mu", mu) > 0, name, f"mu > 0, but mu = {mu:g}")
        noise = G**2 / (mu * S * epsilon)
        convex = {
            "SGD": noise + L / mu,
            "FedSGD": noise + G / (mu * epsilon**0.5) + L / mu,
            "SCAFFOLD": N / S + L / mu,
            "MimeSGD": noise + delta / mu,
            "lower bound": G**2 / (S * epsilon),
        }
    return {row: Rates(rounds, convex.get(row)) for row, rounds in rows.items()}


def theorem_1(
    epsilon: float,
    *,
    G: float,
    L: float,
    delta: float,
    F: float,
    K: int,
    cohort_size: int,
    mu: float | None = None,
) -> Rounds:
    r"""Rounds of MimeMVR until :math:`|\nabla f|^2 \le \epsilon` (Karimireddy et al. 2020, I).

    .. math::
        \frac{L G^2}{\mu S \epsilon} + \frac{L + \delta K}{\mu K}, \qquad
        \frac{L G^2 F}{S \epsilon^2} + \frac{(L + \delta K) F}{\epsilon K}, \qquad
        \frac{\delta G F}{\sqrt S\, \epsilon^{3/2}} + \frac{(L + \delta K) F}{\epsilon K}

    for strongly convex losses, for general ones, and for general ones with momentum; constants and
    logarithms are left out. Local steps lower the second terms until K is about L / delta. With
    momentum, the first term is derived from Theorem IV's proof for its best eta, as the statement
    cannot be read in the available text; Table 1 has (G / (sqrt(S) eps))^(3/2), with the same power
    of epsilon.

    Args:
      epsilon: > 0.
      G, L, delta: of (A1) to (A3), >= 0.
      F: f(x^0) - f^*, >= 0.
      K: local steps, whole, >= 1.
      cohort_size: S >= 1.
      mu: of (A4), > 0; None: without the first.

    Raises:
      ConditionError: if a value is out of its range.

    Example:
      >>> options = {"G": 1.0, "L": 2.0, "delta": 0.5, "F": 1.0, "cohort_size": 10, "mu": 0.5}
      >>> [round(value, 6) for value in theorem_1(0.01, K=4, **options)]
      [42.0, 2100.0, 258.113883]
    """
    name = statement("Theorem I")
    S, K = as_count("cohort_size", cohort_size), as_count("K", K)
    _check(name, epsilon, G=G, L=L, delta=delta, F=F)
    require(mu is None or as_number("mu", mu) > 0, name, f"mu > 0, but mu = {mu}")
    steps = (L + delta * K) / K
    return Rounds(
        None if mu is None else L * G**2 / (mu * S * epsilon) + steps / mu,
        L * G**2 * F / (S * epsilon**2) + steps * F / epsilon,
        delta * G * F / (S**0.5 * epsilon**1.5) + steps * F / epsilon,
    )


def _check(name: str, epsilon: float, **at_least_0: float) -> None:
    require(as_number("epsilon", epsilon) > 0, name, f"epsilon > 0, but epsilon = {epsilon:g}")
    for symbol, value in at_least_0.items():
        require(as_number(symbol, value) >= 0, name, f"{symbol} >= 0, but {symbol} = {value:g}")
