r"""Clients with examples, and the assumptions of Karimireddy et al. 2020 on them.

The functions of this package take `clients`: a `QuadraticPopulation`, whose clients compute full
gradients, or a list with one `QuadraticPopulation` of examples for every client, whose minibatches
have one example. Cohorts of S clients are drawn uniformly without replacement, so clients have the
same probability.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from fedax.theory.claims import Claim, require
from fedax.theory.errors import TheoryError
from fedax.theory.given import as_count, as_number, norms
from fedax.theory.population import SINGULAR, QuadraticPopulation, as_point

Clients: TypeAlias = "QuadraticPopulation | Sequence[QuadraticPopulation]"

# Cohorts are enumerated, so there must not be more than this number of them.
MOST_COHORTS = 20_000


@dataclasses.dataclass(frozen=True)
class Sampled:
    """Clients with their examples, and the constants of (A1) to (A3).

    Attributes:
      population: the clients' mean losses, all with the same probability.
      examples: the examples of each client.
      delta: of (A2), per example: the largest |H_i(zeta) - H|, or -mu if f is less convex.
      smoothness: L of (A3): the largest |eigenvalue| of H, the Hessian of f.
    """

    population: QuadraticPopulation
    examples: tuple[QuadraticPopulation, ...]
    delta: float
    smoothness: float

    def G2(self, x: np.ndarray) -> float:  # noqa: N802 - the field's letter
        """G^2 of (A1) at x."""
        return self.population.gradient_dissimilarity(x)

    def cohorts(self, cohort_size: int | None) -> Iterator[tuple[int, ...]]:
        """All cohorts of this size, which are equally probable; None: all clients."""
        N = self.population.num_clients
        size = N if cohort_size is None else as_count("cohort_size", cohort_size)
        if size > N:
            raise TheoryError(f"cohort_size must be at most {N}, but is {size}.")
        if (number := math.comb(N, size)) > MOST_COHORTS:
            raise TheoryError(
                f"{N} clients have {number:,} cohorts of {size}; at most {MOST_COHORTS:,} can be "
                "enumerated."
            )
        return itertools.combinations(range(N), size)


def sampled(name: str, clients: Clients, delta: float | None = None) -> Sampled:
    """The clients of a statement with this name; `delta` may be larger than theirs.

    Raises:
      ConditionError: if the clients' probabilities differ, or delta is too small.
    """
    if isinstance(clients, QuadraticPopulation):
        population = clients
        pairs = zip(clients.matrices, clients.linear, strict=True)
        examples = tuple(QuadraticPopulation.from_linear(A[None], b[None]) for A, b in pairs)
    else:
        examples = tuple(clients)
        if not examples:
            raise TheoryError("clients must have at least one client.")
        population = QuadraticPopulation.from_linear(
            np.stack([client.matrix for client in examples]),
            np.stack([client.mean(client.linear) for client in examples]),
        )
    require(
        float(np.ptp(population.probabilities)) <= 1e-12, name,
        "clients with the same probability, as a cohort is drawn uniformly",
    )
    values = np.linalg.eigvalsh(population.matrix)
    least = max(
        *(norms(c.matrices - population.matrix)[c.taking_part].max() for c in examples),
        -values[0], 0.0,
    )
    delta = float(least) if delta is None else as_number("delta", delta)
    require(
        delta >= least * (1 - 1e-12), name,
        f"delta of at least {least:g}, which these clients have (A2), but delta = {delta:g}",
    )
    return Sampled(population, examples, delta, float(np.abs(values).max()))


def hessian_dissimilarity(clients: Clients) -> float:
    r"""The least delta of (A2), per example (Karimireddy et al. 2020, section 2).

    .. math:: |\nabla^2 f_i(x; \zeta) - \nabla^2 f(x)| \le \delta, \qquad
        \nabla^2 f(x) \succeq -\delta I

    The paper says that f is weakly convex, but prints :math:`\nabla^2 f_i \succeq -\delta I`; its
    Lemma 4 needs f alone, which is taken here. `QuadraticPopulation.delta` has the clients' mean
    Hessians instead, and is never larger for convex f.

    Args:
      clients: a `QuadraticPopulation`, or one of examples for each client.

    Example:
      >>> client = QuadraticPopulation.from_linear([0.0, 2.0], [0.0, 0.0])  # its two examples
      >>> hessian_dissimilarity([client]), QuadraticPopulation.from_linear([1.0], [0.0]).delta
      (1.0, 0.0)
    """
    return sampled("Assumption A2", clients).delta


def least_B2(population: QuadraticPopulation) -> float:  # noqa: N802
    r"""The least B^2 of equation 7 (Karimireddy et al. 2020, and (A1) of Chen et al. 2023).

    .. math:: E|\nabla f_i(x)|^2 \le G^2 + B^2 |\nabla f(x)|^2 \quad \text{for all } x

    holds for some G if B^2 is larger: it is the largest eigenvalue of :math:`A^{-1} E[A_i^2]
    A^{-1}`, and at least 1. At the least B^2 itself, G exists only if the linear terms allow it.

    Raises:
      SingularError: if the Hessian A of f is singular.

    Example:
      >>> least_B2(QuadraticPopulation.from_linear([2.0, 0.0], [1.0, -1.0]))  # x^2 + x and -x
      2.0
    """
    _ = population.minimiser  # raises where A is singular
    inverse = np.linalg.inv(population.matrix)
    squares = population.mean(population.matrices @ population.matrices)
    return float(np.linalg.eigvalsh(inverse @ squares @ inverse)[-1])


def least_G2(population: QuadraticPopulation, B2: float) -> float:  # noqa: N802
    r"""The least G^2 of equation 7 for this B^2 (Karimireddy et al. 2020).

    .. math:: G^2 = \max_x \left(E|\nabla f_i(x)|^2 - B^2 |\nabla f(x)|^2\right),

    and at least 0; infinite if B^2 is too small. B = 1 is assumption (A1), which only clients with
    the same Hessian satisfy.

    Args:
      population: the clients.
      B2: B^2 >= 1.

    Raises:
      ConditionError: if B^2 < 1.

    Example:
      >>> pair = QuadraticPopulation.from_linear([2.0, 0.0], [1.0, -1.0])  # G = 1, mu = 1
      >>> [round(least_G2(pair, B2), 6) for B2 in (1.0, 2.0, 3.0, 9.0)]  # 1 + 1 / (B^2 - 2)
      [inf, inf, 2.0, 1.142857]
    """
    require(B2 >= 1, "Equation 7", f"B^2 >= 1, but B^2 = {B2:g}")
    A, b = population.matrix, population.mean(population.linear)
    curvature = B2 * A @ A - population.mean(population.matrices @ population.matrices)
    slope = population.mean(
        np.einsum("nij,nj->ni", population.matrices, population.linear)
    ) - B2 * A @ b
    constant = population.mean(np.sum(population.linear**2, 1)) - B2 * b @ b
    values, vectors = np.linalg.eigh(curvature)
    along = vectors.T @ slope
    scale = max(np.abs(A).max() ** 2 * B2, 1e-300)
    flat = values <= SINGULAR * 1e2 * scale
    size = max(float(np.abs(slope).max()), float(np.abs(A @ b).max()))
    if (values < -SINGULAR * 1e2 * scale).any() or (np.abs(along[flat]) > 1e-10 * size).any():
        return math.inf
    return max(0.0, float(constant + np.sum(along[~flat] ** 2 / values[~flat])))


def lemma_3(clients: Clients, x: Any, y: Any, delta: float | None = None) -> Claim:
    r"""Gradients change alike (Karimireddy et al. 2020, Lemma 3).

    .. math:: |\nabla f_i(y; \zeta) - \nabla f_i(x; \zeta) + \nabla f(x) - \nabla f(y)|^2
        \le \delta^2 |y - x|^2

    It is an equation if y - x is an eigenvector of H_i(zeta) - H with the eigenvalue +-delta.

    Args:
      clients: a `QuadraticPopulation`, or one of examples for each client.
      x, y: points, [d].
      delta: of (A2); None: the least.

    Returns:
      One claim with an entry for each example of each client, in order.

    Raises:
      ConditionError: if delta is too small.

    Example:
      >>> clients = QuadraticPopulation.from_linear([2.0, 0.0], [1.0, -1.0])
      >>> claim = lemma_3(clients, 0.0, 3.0)
      >>> claim.actual.tolist(), claim.bound
      ([9.0, 9.0], 9.0)
    """
    name = statement("Lemma 3")
    found = sampled(name, clients, delta)
    d = found.population.dimension
    away = as_point(y, d) - as_point(x, d)
    differences = np.concatenate([
        client.matrices[client.taking_part] - found.population.matrix for client in found.examples
    ])
    return Claim(
        name, "|grad f_i(y; zeta) - grad f_i(x; zeta) + grad f(x) - grad f(y)|^2 "
        "<= delta^2 |y - x|^2",
        np.sum((differences @ away) ** 2, 1), "<=", float(found.delta**2 * (away @ away)),
    )


def lemma_4(
    population: QuadraticPopulation, x: Any, ys: Any, gamma: float, delta: float | None = None
) -> Claim:
    r"""Averaging does not hurt (Karimireddy et al. 2020, Lemma 4).

    If f is delta-weakly convex and :math:`\gamma \ge \delta`, then for the mean :math:`\bar y`

    .. math:: \frac1S \sum_i f(y_i) + \gamma |x - y_i|^2 \ge f(\bar y) + \gamma |x - \bar y|^2.

    Half of it is enough: gamma >= delta / 2 makes :math:`f + \gamma |\cdot - x|^2` convex. That is
    the condition here, and at it the claim can be an equation.

    Args:
      population: the clients; f may be non-convex.
      x: [d].
      ys: y_i, [S, d].
      gamma: at least delta / 2.
      delta: -delta is at most every curvature of f; None: the least such.

    Raises:
      ConditionError: if gamma < delta / 2, or delta is too small.

    Example:
      >>> concave = QuadraticPopulation.from_linear([-2.0], [0.0])  # f = -x^2
      >>> claim = lemma_4(concave, 0.0, [[1.0], [-3.0]], gamma=1.0)
      >>> float(claim.actual), float(claim.bound)
      (0.0, 0.0)
    """
    name = statement("Lemma 4")
    least = max(0.0, -float(np.linalg.eigvalsh(population.matrix)[0]))
    delta = least if delta is None else as_number("delta", delta)
    require(
        delta >= least * (1 - 1e-12), name, f"delta of at least {least:g}, but delta = {delta:g}"
    )
    require(
        gamma >= delta / 2 * (1 - 1e-12), name,
        f"gamma >= delta / 2, but gamma = {gamma:g} and delta / 2 = {delta / 2:g}",
    )
    d = population.dimension
    x, ys = as_point(x, d), as_point(ys, d)

    def value(y: np.ndarray) -> Any:
        return population.loss(y) + gamma * np.sum((y - x) ** 2, -1)

    return Claim(
        name, "mean f(y_i) + gamma |x - y_i|^2 >= f(mean y_i) + gamma |x - mean y_i|^2",
        value(ys).mean(), ">=", value(ys.mean(0)),
    )


def statement(number: str, printed: bool = False) -> str:
    """Paper and number, the name of a statement in `Claim` and in errors."""
    return f"Karimireddy et al. 2020, {number}" + (" (as printed)" if printed else "")


def limited(name: str, eta: float, limits: dict[str, float]) -> float:
    """Requires 0 < eta <= the least of these limits, up to rounding, and returns eta."""
    symbol, least = min(limits.items(), key=lambda one: one[1])
    require(
        0 < as_number("eta", eta) <= least * (1 + 1e-12), name,
        f"0 < eta <= {symbol}, but eta = {eta:g} and {symbol} = {least:g}",
    )
    return float(eta)
