"""Coordinate by coordinate: the median and the trimmed mean.

Yin, Chen, Ramchandran, Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal
Statistical Rates", ICML 2018, Definitions 1 and 2.
"""

from __future__ import annotations

import jax.numpy as jnp

from fedax.algorithm import Array, PyTree
from fedax.factories import factory
from fedax.robust_means.robust_mean import RobustMean, number_that_count, part_of
from fedax.validate import check_number


@factory
def coordinate_median() -> RobustMean:
    r"""The median of each coordinate (Yin et al. 2018, Definition 1).

    .. math:: m_j = \operatorname{median}_i\, u_{ij}

    Of an even number it is the mean of the middle two. All clients weigh the same. It tolerates
    fewer than half of the clients.

    Example:
      >>> import jax.numpy as jnp
      >>> from fedax.robust_means import coordinate_median
      >>> uploads = jnp.array([[1.0, 5.0], [2.0, 6.0], [1e9, -1e9]])
      >>> coordinate_median().combine(uploads, jnp.ones(3), ())[0].tolist()
      [2.0, 5.0]
    """

    def combine(uploads: Array, weights: Array, memory: PyTree) -> tuple[Array, PyTree]:
        n, ordered = number_that_count(weights), _in_order(uploads, weights)
        return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2, memory

    return RobustMean(combine, by_coordinate=True)


@factory
def trimmed_mean(share: float | Array = 0.2) -> RobustMean:
    r"""The mean of each coordinate without its extremes (Yin et al. 2018, Definition 2).

    With n clients, the b = ceil(share n) largest and the b smallest numbers are left out:

    .. math:: m_j = \frac{1}{n - 2b} \sum_{b < r \le n - b} u_{(r)j}

    where u_(r)j is the r-th smallest of coordinate j. At least the middle one or two stay. All
    clients weigh the same. It tolerates b clients.

    Args:
      share: of the clients that may lie, in [0, 0.5). 0 is the uniform mean. May be traced.

    Raises:
      ValueError: share is out of its range (unless it is traced).

    Example:
      >>> import jax.numpy as jnp
      >>> from fedax.robust_means import trimmed_mean
      >>> uploads = jnp.array([[1.0], [2.0], [3.0], [4.0], [1e9]])
      >>> trimmed_mean(0.2).combine(uploads, jnp.ones(5), ())[0].tolist()
      [3.0]
    """
    check_number("share", share, at_least=0, below=0.5)

    def combine(uploads: Array, weights: Array, memory: PyTree) -> tuple[Array, PyTree]:
        n = number_that_count(weights)
        trimmed = jnp.minimum(part_of(share, n), (n - 1) // 2)
        ranks = jnp.arange(uploads.shape[0], dtype=jnp.int32)[:, None]
        kept = (ranks >= trimmed) & (ranks < n - trimmed)
        total = jnp.where(kept, _in_order(uploads, weights), 0).sum(0)
        return total / (n - 2 * trimmed).astype(total.dtype), memory

    return RobustMean(combine, by_coordinate=True)


def weighted_median(uploads: Array, weights: Array) -> Array:
    """Of each coordinate of [n, d], the middle of the numbers with half of the weight on each side.

    With equal weights it is the median.
    """
    ranks = jnp.argsort(jnp.where(weights[:, None] > 0, uploads, jnp.inf), axis=0)
    ordered = jnp.take_along_axis(uploads, ranks, 0)
    below = jnp.cumsum(weights[ranks], 0)
    half = below[-1:] / 2
    low = jnp.take_along_axis(ordered, (below >= half).argmax(0, keepdims=True), 0)
    high = jnp.take_along_axis(ordered, (below > half).argmax(0, keepdims=True), 0)
    return ((low + high) / 2)[0]


def _in_order(uploads: Array, weights: Array) -> Array:
    """Each column in ascending order, without the rows that do not count, and then zeros."""
    ordered = jnp.sort(jnp.where(weights[:, None] > 0, uploads, jnp.inf), axis=0)
    return jnp.where(jnp.isinf(ordered), 0, ordered)
