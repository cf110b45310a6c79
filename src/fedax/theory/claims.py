"""A published statement evaluated on a population."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

from fedax.theory.errors import ConditionError

# A claim's two sides are compared up to rounding: relative, and absolute for entries near 0, in
# units of the largest entry where that is above 1.
RELATIVE = 1e-9
ABSOLUTE = 1e-12


class Claim(NamedTuple):
    """An inequality or equation of a statement, evaluated on a population.

    Attributes:
      statement: paper and number, such as "Charles and Konečný 2020, Theorem 17".
      text: the claim in symbols, left side, relation and right side.
      actual: the left side, exact; a number or an array.
      relation: "<=", ">=" or "=".
      bound: the right side.
    """

    statement: str
    text: str
    actual: Any
    relation: Literal["<=", ">=", "="]
    bound: Any

    @property
    def holds(self) -> bool:
        """Whether the claim holds, up to rounding; False if a side is NaN."""
        actual, bound = np.asarray(self.actual, float), np.asarray(self.bound, float)
        sizes = np.maximum(np.abs(actual), np.abs(bound))
        scale = np.max(sizes, initial=1.0, where=np.isfinite(sizes))
        slack = RELATIVE * sizes + ABSOLUTE * scale
        below, above = actual <= bound + slack, actual >= bound - slack
        return bool(np.all({"<=": below, ">=": above, "=": below & above}[self.relation]))

    @property
    def ratio(self) -> float:
        """The actual side divided by the bound, maximised over an array; 0 / 0 is 0."""
        actual, bound = np.asarray(self.actual, float), np.asarray(self.bound, float)
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(np.max(np.where(actual == 0, 0.0, actual / bound)))


def require(satisfied: bool, statement: str, condition: str) -> None:
    """Raises a clear error unless the condition of a statement is satisfied.

    Args:
      satisfied: whether it is.
      statement: as in `Claim`.
      condition: with its values, such as "gamma < 1/L, but gamma = 0.6 and 1/L = 0.5".

    Raises:
      ConditionError: if it is not.
    """
    if not satisfied:
        raise ConditionError(f"{statement} needs {condition}.")
