"""Whether two methods differ by more than chance: tests of paired seeds."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np


class PairedTest(NamedTuple):
    """A two-sided test of paired values.

    Attributes:
      name: its name in a table.
      function: its function in scipy.stats.
    """

    name: str
    function: str


TESTS = {
    "t-test": PairedTest("paired t-test", "ttest_rel"),
    "wilcoxon": PairedTest("Wilcoxon signed-rank test", "wilcoxon"),
}


def paired_p(first: Mapping[Any, float], second: Mapping[Any, float], test: str) -> float:
    """The two-sided p-value of the null hypothesis that paired values do not differ.

    Args:
      first, second: seed -> value; seeds in both are the pairs.
      test: "t-test", for the mean difference, assumed normal; or "wilcoxon", on ranks, whose
        p-value with 5 pairs or fewer is never below 0.05.

    Returns:
      NaN with fewer than two pairs, or if all differences are equal and not 0, so that chance
      cannot be estimated; 1 if all are 0.

    Example:
      >>> paired_p({0: 0.80, 1: 0.82, 2: 0.81}, {0: 0.70, 1: 0.73, 2: 0.70}, "t-test") < 0.01
      True
    """
    seeds = [seed for seed in first if seed in second]
    a, b = (np.array([values[seed] for seed in seeds]) for values in (first, second))
    if len(seeds) < 2 or not np.isfinite(a - b).all():
        return math.nan
    if (a == b).all():
        return 1.0
    rounding = 4 * np.finfo(float).eps * max(np.abs(a).max(), np.abs(b).max())
    if np.ptp(a - b) <= rounding:
        return math.nan
    from scipy import stats  # noqa: PLC0415 - slow, and few tables ask for it

    function: Callable[..., Any] = getattr(stats, TESTS[test].function)
    with warnings.catch_warnings():  # of ties, where Wilcoxon's p is an approximation
        warnings.simplefilter("ignore")
        return float(function(a, b).pvalue)
