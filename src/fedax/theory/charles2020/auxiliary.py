r"""Appendix B.3: the lemmas on which the proofs of section 6 rest."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedax.theory.charles2020.conditions import statement, well_behaved
from fedax.theory.claims import Claim, require
from fedax.theory.given import as_array
from fedax.theory.population import SINGULAR, QuadraticPopulation
from fedax.theory.surrogate import Weights, sum_of, surrogate


def lemma_30(population: QuadraticPopulation, gamma: float, Theta: Weights) -> tuple[Claim, Claim]:
    r"""The surrogate loss's minimiser (Charles and Konečný 2020, Lemma 30).

    If gamma < 1/L, then with :math:`\tilde A_i = Q_i A_i / \sum_k \theta_k`

    .. math:: x^*(\gamma, \Theta) = E[\tilde A_i]^{-1} E[\tilde A_i c_i].

    Returns:
      Two claims: the formula, and that the gradient of the surrogate loss is 0 there.

    Raises:
      ConditionError: if mu is not positive, or gamma >= 1/L.

    Example:
      >>> clients = QuadraticPopulation.from_centres([1.0, 2.0], [1.0, 0.5])
      >>> round(float(lemma_30(clients, 0.25, 2)[0].bound[0]), 6)  # (1.75 + 3 / 2) / (1.75 + 3)
      0.684211
    """
    name = statement("Lemma 30")
    clients = well_behaved(name, population, gamma)
    found = surrogate(clients, gamma, Theta)
    scaled = found.matrices / sum_of(Theta)
    centre = np.linalg.solve(
        clients.mean(scaled), clients.mean(np.einsum("nij,nj->ni", scaled, clients.centres))
    )
    return (
        Claim(name, "x*(gamma, Theta) = E[A~_i]^-1 E[A~_i c_i]", found.minimiser, "=", centre),
        Claim(name, "grad f~(E[A~_i]^-1 E[A~_i c_i]) = 0", found.gradient(centre), "=", 0.0),
    )


def lemma_31(matrices: Any, probabilities: Any = None) -> tuple[Claim, Claim]:
    r"""The inverse of the mean is at most the mean inverse (Charles and Konečný 2020, Lemma 31).

    For a random symmetric positive definite A (Groves and Rothenberg 1969),

    .. math:: E[A]^{-1} \preceq E[A^{-1}], \qquad |E[A]^{-1}| \le |E[A^{-1}]|.

    Equality holds if A does not vary.

    Args:
      matrices: the values of A, [n, d, d], or [n] if d is 1.
      probabilities: theirs, [n]; None: all equal.

    Returns:
      Two claims: the smallest eigenvalue of E[A^-1] - E[A]^-1 is at least 0; the norms.

    Raises:
      ConditionError: if a matrix is not positive definite.

    Example:
      >>> order, norms = lemma_31([1.0, 3.0])
      >>> norms.actual, round(norms.bound, 6)  # 1 / 2 and (1 + 1 / 3) / 2
      (0.5, 0.666667)
    """
    name = statement("Lemma 31")
    given = as_array("matrices", matrices)
    d = 1 if given.ndim == 1 else given.shape[-1]
    values = QuadraticPopulation.from_linear(given, np.zeros((len(given), d)), probabilities)
    smallest = values.eigen[0].min()
    require(
        smallest > SINGULAR * values.L, name,
        f"positive definite matrices, but one has the eigenvalue {smallest:g}",
    )
    inverse = np.linalg.inv(values.matrix)
    mean = values.mean(values.apply(lambda a: 1 / a))
    return (
        Claim(
            name, "lambda_min(E[A^-1] - E[A]^-1) >= 0",
            float(np.linalg.eigvalsh(mean - inverse)[0]), ">=", 0.0,
        ),
        Claim(
            name, "|E[A]^-1| <= |E[A^-1]|",
            float(np.linalg.norm(inverse, 2)), "<=", float(np.linalg.norm(mean, 2)),
        ),
    )


def lemma_34(a: Any, b: Any) -> Claim:
    r"""A ratio of sums is at most the largest ratio (Charles and Konečný 2020, Lemma 34).

    .. math:: \frac{a_i}{b_i} \le c \text{ for all } i \quad \Rightarrow \quad
        \frac{a_1 + \dots + a_n}{b_1 + \dots + b_n} \le c

    for positive numbers; c is the largest ratio. Equality holds if all ratios are equal.

    Args:
      a, b: positive numbers, [n].

    Raises:
      ConditionError: if a number is not positive, or a and b do not have the same length.

    Example:
      >>> claim = lemma_34([1.0, 4.0], [2.0, 2.0])
      >>> claim.actual, claim.bound
      (1.25, 2.0)
    """
    name = statement("Lemma 34")
    a, b = as_array("a", a), as_array("b", b)
    require(
        a.ndim == 1 and a.shape == b.shape and a.size > 0, name,
        f"as many a as b, at least one, but their shapes are {a.shape} and {b.shape}",
    )
    least = min(a.min(), b.min())
    require(least > 0, name, f"positive numbers, but one is {least:g}")
    return Claim(
        name, "(a_1 + ... + a_n) / (b_1 + ... + b_n) <= c",
        float(a.sum() / b.sum()), "<=", float(np.max(a / b)),
    )
